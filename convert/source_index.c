/* model.safetensors.index.json: read into a compact form, and compared with what the headers really hold. An index is a
 * claim; the headers are the truth. */
#include "source_internal.h"

#include "error.h"
#include "json.h"

#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Kimi K3's has 497,220 names in about 50 MB. A limit only keeps a wrong file from filling memory. */
#define INDEX_MAX ((uint64_t)1 << 30)

/* ------------------------------------------------------------------------------------------------ reading */

static moepack_status bad_index(const char *path, moepack_status status, moepack_error *error)
{
    mpk_error_file(error, path);
    return status;
}

#define FAIL_INDEX(status, ...) (mpk_fail(error, status, __VA_ARGS__), bad_index(path, status, error))

/* A shard is a plain name beside the index: nothing that leads elsewhere, and nothing that is also a side file. */
static moepack_status check_shard_name(const char *path, const char *tensor, const json_t *value, moepack_error *error)
{
    if (!json_is_string(value))
        return FAIL_INDEX(MOEPACK_E_CORRUPT, "weight_map of \"%.100s\" is %s, not a file name", tensor,
                          mpk_json_kind(value));
    const char *name = json_string_value(value);
    if (name[0] == 0 || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return FAIL_INDEX(MOEPACK_E_CORRUPT, "weight_map of \"%.100s\" is \"%.100s\", not a plain file name", tensor,
                          name);
    static const char ending[] = ".safetensors";
    size_t length = strlen(name), tail = sizeof ending - 1;
    if (length <= tail || strcmp(name + length - tail, ending) != 0)
        return FAIL_INDEX(MOEPACK_E_UNSUPPORTED, "weight_map of \"%.100s\" is \"%.100s\", not a .safetensors file",
                          tensor, name);
    return MOEPACK_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int by_entry_name(const void *a, const void *b)
{
    return strcmp(((const mpk_weight_entry *)a)->name, ((const mpk_weight_entry *)b)->name);
}

/* Sorted list of the distinct shard names. A jansson object serves as the set. */
static moepack_status collect_shards(const json_t *weights, const char *path, mpk_weight_map *out, moepack_error *error)
{
    json_t *set = json_object();
    moepack_status status = set ? MOEPACK_OK : FAIL_INDEX(MOEPACK_E_REFUSED, "out of memory");
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)weights, tensor, value)
    {
        if (status) break;
        status = check_shard_name(path, tensor, value, error);
        if (!status && json_object_set_new(set, json_string_value(value), json_null()) != 0)
            status = FAIL_INDEX(MOEPACK_E_REFUSED, "out of memory");
    }
    if (!status) {
        out->shards = calloc(json_object_size(set) + 1, sizeof *out->shards);
        if (!out->shards) status = FAIL_INDEX(MOEPACK_E_REFUSED, "out of memory");
    }
    json_object_foreach(set, tensor, value)
    {
        if (status) break;
        out->shards[out->shard_count] = mpk_arena_string(out->arena, tensor);
        if (!out->shards[out->shard_count++]) status = FAIL_INDEX(MOEPACK_E_REFUSED, "out of memory");
    }
    json_decref(set);
    if (!status) qsort(out->shards, out->shard_count, sizeof *out->shards, by_text);
    return status;
}

static moepack_status collect_entries(const json_t *weights, const char *path, mpk_weight_map *out,
                                      moepack_error *error)
{
    out->entries = calloc(json_object_size(weights) + 1, sizeof *out->entries);
    if (!out->entries) return FAIL_INDEX(MOEPACK_E_REFUSED, "out of memory");
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)weights, tensor, value)
    {
        const char *shard = json_string_value(value);
        char **place = bsearch(&shard, out->shards, out->shard_count, sizeof *out->shards, by_text);
        mpk_weight_entry *entry = &out->entries[out->count];
        entry->file = (uint32_t)(place - out->shards);
        entry->name = mpk_arena_string(out->arena, tensor);
        if (!entry->name) return FAIL_INDEX(MOEPACK_E_REFUSED, "out of memory");
        out->count++;
    }
    qsort(out->entries, out->count, sizeof *out->entries, by_entry_name);
    return MOEPACK_OK;
}

static moepack_status read_map(const json_t *root, const char *path, mpk_weight_map *out, moepack_error *error)
{
    const json_t *weights = json_object_get(root, "weight_map");
    if (!json_is_object(weights))
        return FAIL_INDEX(MOEPACK_E_CORRUPT, "weight_map is %s, not an object", mpk_json_kind(weights));
    if (json_object_size(weights) == 0) return FAIL_INDEX(MOEPACK_E_INCOMPLETE, "weight_map lists no tensor");
    if (json_object_size(weights) >= UINT32_MAX) return FAIL_INDEX(MOEPACK_E_UNSUPPORTED, "2^32 tensors or more");
    out->has_total = mpk_json_u64(json_object_get(json_object_get(root, "metadata"), "total_size"), &out->total_size);
    moepack_status status = collect_shards(weights, path, out, error);
    return status ? status : collect_entries(weights, path, out, error);
}

moepack_status mpk_weight_map_read(const char *path, mpk_weight_map *out, moepack_error *error)
{
    void *text;
    size_t size;
    json_t *root;
    moepack_status status = mpk_file_read_all(path, INDEX_MAX, &text, &size, error);
    if (status) return status;
    status = mpk_json_parse(text, size, path, 0, &root, error);
    free(text);
    if (status) return status;
    status = read_map(root, path, out, error);
    json_decref(root);
#ifdef __GLIBC__
    if (size > (8u << 20)) malloc_trim(0); /* the tree of a large index; headers come next */
#endif
    return status;
}

void mpk_weight_map_free(mpk_weight_map *map)
{
    free(map->shards);
    free(map->entries);
    mpk_arena_free(map->arena);
    memset(map, 0, sizeof *map);
}

/* ------------------------------------------------------------------------------------------------ comparing */

static int by_tensor_name(const void *a, const void *b, void *user)
{
    const mpk_source *source = user;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    int order = strcmp(source->tensors[x].name, source->tensors[y].name);
    if (order != 0) return order;
    return x < y ? -1 : x > y;
}

/* What the comparison found, to be said once and not per tensor. */
typedef struct findings {
    size_t unlisted, misplaced, absent;
    const char *first_unlisted, *first_misplaced, *first_absent;
    /* The needed tensor in a missing shard that comes first by layer and expert. */
    size_t lost;
    const mpk_weight_entry *first_lost;
} findings;

static void note(size_t *count, const char **first, const char *name)
{
    if ((*count)++ == 0) *first = name;
}

/* Order in which a person would look: blocks by layer, experts by number, then everything else. */
static bool comes_before(const mpk_source_state *state, const char *a, const char *b)
{
    mpk_name x, y;
    mpk_family_match(state->family, a, &x);
    mpk_family_match(state->family, b, &y);
    if ((x.kind == MPK_NAME_TRUNK) != (y.kind == MPK_NAME_TRUNK)) return y.kind == MPK_NAME_TRUNK;
    if (x.layer != y.layer) return x.layer < y.layer;
    return x.expert < y.expert; /* role tensors have UINT64_MAX */
}

/* An entry whose tensor is nowhere. */
static moepack_status absent_entry(mpk_opening *o, const mpk_weight_entry *entry, findings *f)
{
    bool needed = mpk_source_name_kept(o->state, o->options->moe_only, entry->name);
    if (o->source->files[entry->file].missing) {
        if (!needed) return MOEPACK_OK;
        f->lost++;
        if (!f->first_lost || comes_before(o->state, entry->name, f->first_lost->name)) f->first_lost = entry;
        return MOEPACK_OK;
    }
    if (!needed) {
        note(&f->absent, &f->first_absent, entry->name);
        return MOEPACK_OK;
    }
    mpk_fail(o->error, MOEPACK_E_INCOMPLETE, "the index json lists this tensor here, but no shard holds it");
    return mpk_source_blame(o, MOEPACK_E_INCOMPLETE, entry->file, entry->name);
}

/* Entries and tensors side by side in order of names. */
static moepack_status merge(mpk_opening *o, const uint32_t *order, findings *f)
{
    const mpk_source *source = o->source;
    const mpk_weight_map *map = &o->map;
    uint32_t t = 0;
    for (size_t e = 0; e < map->count; e++) {
        const mpk_weight_entry *entry = &map->entries[e];
        while (t < source->tensor_count && strcmp(source->tensors[order[t]].name, entry->name) < 0)
            note(&f->unlisted, &f->first_unlisted, source->tensors[order[t++]].name);
        bool found = false, in_place = false;
        for (; t < source->tensor_count && strcmp(source->tensors[order[t]].name, entry->name) == 0; t++) {
            found = true;
            in_place = in_place || source->tensors[order[t]].file == entry->file;
        }
        if (found && !in_place) note(&f->misplaced, &f->first_misplaced, entry->name);
        moepack_status status = found ? MOEPACK_OK : absent_entry(o, entry, f);
        if (status) return status;
    }
    while (t < source->tensor_count) note(&f->unlisted, &f->first_unlisted, source->tensors[order[t++]].name);
    return MOEPACK_OK;
}

static moepack_status report(mpk_opening *o, const findings *f)
{
    if (f->first_lost) {
        mpk_fail(o->error, MOEPACK_E_INCOMPLETE,
                 "shard is missing; %zu tensors that the selection needs are in missing shards", f->lost);
        return mpk_source_blame(o, MOEPACK_E_INCOMPLETE, f->first_lost->file, f->first_lost->name);
    }
    if (f->unlisted)
        mpk_source_warn(o, "%zu tensors that the index json does not list are kept, the first is %s", f->unlisted,
                        f->first_unlisted);
    if (f->misplaced)
        mpk_source_warn(o, "%zu tensors are in other shards than the index json says, the first is %s", f->misplaced,
                        f->first_misplaced);
    if (f->absent)
        mpk_source_warn(
            o,
            "%zu tensors that the index json lists are in no shard; the selection does not need them, the first is %s",
            f->absent, f->first_absent);
    return MOEPACK_OK;
}

/* The same name in two shards. Those of experts and roles were refused before. */
static void warn_doubles(mpk_opening *o, const uint32_t *order)
{
    const mpk_source *source = o->source;
    size_t count = 0;
    const mpk_source_tensor *first = NULL, *again = NULL;
    for (uint32_t i = 1; i < source->tensor_count; i++) {
        const mpk_source_tensor *a = &source->tensors[order[i - 1]], *b = &source->tensors[order[i]];
        if (strcmp(a->name, b->name) != 0 || !mpk_source_name_kept(o->state, o->options->moe_only, b->name)) continue;
        if (count++ > 0) continue;
        first = a;
        again = b;
    }
    if (count)
        mpk_source_warn(o, "%zu tensors are in two shards and kept twice, the first is %s, in %s and in %s", count,
                        first->name, source->files[first->file].name, source->files[again->file].name);
}

static void check_total(mpk_opening *o)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < o->source->file_count; i++) {
        if (o->source->files[i].missing) return;
    }
    for (uint32_t i = 0; i < o->source->tensor_count; i++) total += o->source->tensors[i].length;
    if (!o->map.has_total)
        mpk_source_warn(o, "the index json has no metadata.total_size");
    else if (o->map.total_size != total)
        mpk_source_warn(o, "the index json's metadata.total_size is %llu, the tensors have %llu bytes",
                        (unsigned long long)o->map.total_size, (unsigned long long)total);
}

moepack_status mpk_source_check_index(mpk_opening *o)
{
    uint32_t count = o->source->tensor_count;
    uint32_t *order = malloc(((size_t)count + 1) * sizeof *order);
    if (!order) return mpk_source_oom(o);
    for (uint32_t i = 0; i < count; i++) order[i] = i;
    qsort_r(order, count, sizeof *order, by_tensor_name, o->source);
    findings found = {0};
    moepack_status status = o->sharded ? merge(o, order, &found) : MOEPACK_OK;
    if (!status) status = report(o, &found);
    if (!status) warn_doubles(o, order);
    if (!status && o->sharded) check_total(o);
    free(order);
    return status;
}
