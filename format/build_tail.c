/* Tails of shards, their lengths, and plan ids (spec/container.md 5.6, 7, 8).
 *
 * All are made from the encoded tables of an index, whole or about to be written: copies with a few fields set to zero,
 * and the sections of one shard. */
#include "bytes.h"
#include "error.h"
#include "index.h"
#include "tail.h"

#include <stdlib.h>
#include <string.h>

/* Tables that describe the plan, in a plan id. A trunk's tail has INFO before them. */
static const uint32_t plan_ids[] = {
    MPK_T_SHARDS,   MPK_T_BLOCKS, MPK_T_SCHEMAS, MPK_T_DESCS, MPK_T_MATRICES, MPK_T_DIMS,
    MPK_T_POLICIES, MPK_T_FIELDS, MPK_T_TENSORS, MPK_T_FILES, MPK_T_ROLES,    MPK_T_STRINGS,
};
static const uint32_t trunk_ids[] = {
    MPK_T_INFO,  MPK_T_SHARDS,   MPK_T_BLOCKS,  MPK_T_SCHEMAS,     MPK_T_DESCS, MPK_T_MATRICES,
    MPK_T_DIMS,  MPK_T_POLICIES, MPK_T_FIELDS,  MPK_T_SECTIONS,    MPK_T_PARTS, MPK_T_TENSORS,
    MPK_T_FILES, MPK_T_ROLES,    MPK_T_STRINGS, MPK_T_TAIL_OWNERS,
};
static const uint32_t expert_ids[] = {MPK_T_SECTIONS, MPK_T_PARTS, MPK_T_TAIL_RECORDS};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void clear_fields(uint8_t *table, uint64_t count, uint32_t entry, uint32_t at, uint32_t size)
{
    for (uint64_t i = 0; i < count; ++i) memset(table + i * entry + at, 0, size);
}

/* Copies the plan's tables to their places and clears what is not known before everything is written. */
static void copy_plan(const mpk_tables_view *view, uint8_t *const *entries)
{
    for (size_t i = 0; i < COUNT(plan_ids); ++i) {
        uint32_t id = plan_ids[i];
        size_t size = (size_t)(view->t[id].count * mpk_table_entry(id));
        if (size > 0) memcpy(entries[id], view->t[id].data, size);
    }
    /* SHARDS: file length, tail offset, tail length, shard_root. FILES: hash. */
    clear_fields(entries[MPK_T_SHARDS], view->t[MPK_T_SHARDS].count, 64, 16, 40);
    clear_fields(entries[MPK_T_FILES], view->t[MPK_T_FILES].count, 64, 32, 16);
}

moepack_status mpk_view_plan_id(const mpk_tables_view *view, moepack_hash128 *out, moepack_error *error)
{
    mpk_buf set = {0};
    uint64_t counts[MPK_T_END];
    uint8_t *entries[MPK_T_END] = {NULL};
    for (uint32_t id = 0; id < MPK_T_END; ++id) counts[id] = view->t[id].count;
    moepack_status status = mpk_tableset_append(&set, plan_ids, COUNT(plan_ids), counts, entries, error);
    if (status == MOEPACK_OK) {
        copy_plan(view, entries);
        clear_fields(entries[MPK_T_TENSORS], counts[MPK_T_TENSORS], 32, 16, 8); /* section */
        clear_fields(entries[MPK_T_FILES], counts[MPK_T_FILES], 64, 16, 8);     /* section */
        *out = moepack_hash128_of(set.data, set.size);
    }
    free(set.data);
    return status;
}

/* ---- which sections and records a shard holds ---- */

static const uint8_t *entry_of(const mpk_tables_view *view, uint32_t table, uint64_t i)
{
    return view->t[table].data + i * mpk_table_entry(table);
}

/* A list of numbers that grows. */
typedef struct numbers {
    uint64_t *at;
    size_t count;
} numbers;

static bool add(numbers *list, uint64_t number)
{
    if (!mpk_grow(&list->at, list->count, sizeof *list->at)) return false;
    list->at[list->count++] = number;
    return true;
}

static moepack_status no_memory(moepack_error *error)
{
    return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
}

/* Parts of section `i`, which are those up to the next section that has any. Counted by adding up stored lengths. */
static uint64_t parts_of(const mpk_tables_view *view, uint64_t i)
{
    const uint8_t *s = entry_of(view, MPK_T_SECTIONS, i);
    uint64_t first = mpk_load32(s + 32), stored = mpk_load64(s + 8), sum = 0, n = 0;
    if (first == MOEPACK_NO_PARTS) return 0;
    while (sum < stored && first + n < view->t[MPK_T_PARTS].count) {
        sum += mpk_load32(entry_of(view, MPK_T_PARTS, first + n));
        ++n;
    }
    return n;
}

/* Copies the listed sections and their parts, with `first entry in PARTS` counted anew. */
static void copy_sections(const mpk_tables_view *view, const numbers *sections, uint8_t *const *entries)
{
    uint8_t *to = entries[MPK_T_SECTIONS], *part_to = entries[MPK_T_PARTS];
    uint64_t parts_done = 0;
    for (size_t k = 0; k < sections->count; ++k, to += 40) {
        const uint8_t *from = entry_of(view, MPK_T_SECTIONS, sections->at[k]);
        uint64_t n = parts_of(view, sections->at[k]);
        memcpy(to, from, 40);
        if (n == 0) continue;
        memcpy(part_to + 16 * parts_done, entry_of(view, MPK_T_PARTS, mpk_load32(from + 32)), (size_t)(16 * n));
        mpk_store32(to + 32, (uint32_t)parts_done);
        parts_done += n;
    }
}

static uint64_t count_parts(const mpk_tables_view *view, const numbers *sections)
{
    uint64_t n = 0;
    for (size_t k = 0; k < sections->count; ++k) n += parts_of(view, sections->at[k]);
    return n;
}

/* ---- experts ---- */

typedef struct placed_record {
    uint64_t offset, record;
    uint32_t block, expert;
} placed_record;

static int by_offset(const void *a, const void *b)
{
    const placed_record *ra = (const placed_record *)a, *rb = (const placed_record *)b;
    if (ra->offset != rb->offset) return ra->offset < rb->offset ? -1 : 1;
    return ra->record < rb->record ? -1 : ra->record > rb->record;
}

/* Records of a shard in order of place. */
static moepack_status list_records(const mpk_tables_view *view, uint32_t shard, placed_record **list, size_t *count,
                                   moepack_error *error)
{
    *list = NULL;
    *count = 0;
    for (uint64_t b = 0; b < view->t[MPK_T_BLOCKS].count; ++b) {
        const uint8_t *block = entry_of(view, MPK_T_BLOCKS, b);
        uint32_t experts = mpk_load32(block + 16);
        uint64_t first = mpk_load64(block + 24);
        for (uint32_t e = 0; e < experts; ++e) {
            const uint8_t *record = entry_of(view, MPK_T_RECORDS, first + e);
            if (mpk_load32(record) != shard) continue;
            if (!mpk_grow(list, *count, sizeof **list)) return no_memory(error);
            (*list)[(*count)++] = (placed_record){mpk_load64(record + 8), first + e, (uint32_t)b, e};
        }
    }
    if (*count > 0) qsort(*list, *count, sizeof **list, by_offset);
    return MOEPACK_OK;
}

static bool list_record_sections(const mpk_tables_view *view, const placed_record *list, size_t count,
                                 numbers *sections)
{
    for (size_t i = 0; i < count; ++i) {
        const uint8_t *record = entry_of(view, MPK_T_RECORDS, list[i].record);
        uint32_t n = mpk_load32(entry_of(view, MPK_T_SCHEMAS, mpk_load32(record + 4)) + 4);
        uint64_t first = mpk_load64(record + 24);
        for (uint32_t k = 0; k < n; ++k) {
            if (!add(sections, first + k)) return false;
        }
    }
    return true;
}

static void put_tail_records(const mpk_tables_view *view, const placed_record *list, size_t count, uint8_t *e)
{
    uint64_t first_section = 0;
    for (size_t i = 0; i < count; ++i, e += 40) {
        const uint8_t *record = entry_of(view, MPK_T_RECORDS, list[i].record);
        uint32_t schema = mpk_load32(record + 4);
        mpk_store32(e, list[i].block);
        mpk_store32(e + 4, list[i].expert);
        mpk_store32(e + 8, schema);
        mpk_store64(e + 16, mpk_load64(record + 8));
        mpk_store64(e + 24, mpk_load64(record + 16));
        mpk_store64(e + 32, first_section);
        first_section += mpk_load32(entry_of(view, MPK_T_SCHEMAS, schema) + 4);
    }
}

static moepack_status expert_tail(const mpk_tables_view *view, uint32_t shard, mpk_buf *out, moepack_error *error)
{
    placed_record *list;
    size_t count;
    numbers sections = {NULL, 0};
    uint64_t counts[MPK_T_END] = {0};
    uint8_t *entries[MPK_T_END] = {NULL};
    moepack_status status = list_records(view, shard, &list, &count, error);
    if (status == MOEPACK_OK && !list_record_sections(view, list, count, &sections)) status = no_memory(error);
    if (status == MOEPACK_OK) {
        counts[MPK_T_SECTIONS] = sections.count;
        counts[MPK_T_PARTS] = count_parts(view, &sections);
        counts[MPK_T_TAIL_RECORDS] = count;
        status = mpk_tableset_append(out, expert_ids, COUNT(expert_ids), counts, entries, error);
    }
    if (status == MOEPACK_OK) {
        copy_sections(view, &sections, entries);
        put_tail_records(view, list, count, entries[MPK_T_TAIL_RECORDS]);
    }
    free(sections.at);
    free(list);
    return status;
}

/* ---- trunk ---- */

typedef struct owner {
    uint64_t section;
    uint32_t what, entry; /* 0 tensor, 1 file */
} owner;

static int by_section(const void *a, const void *b)
{
    const owner *oa = (const owner *)a, *ob = (const owner *)b;
    return oa->section < ob->section ? -1 : oa->section > ob->section;
}

static moepack_status list_owners(const mpk_tables_view *view, uint32_t shard, owner **list, size_t *count,
                                  moepack_error *error)
{
    static const struct {
        uint32_t table, shard_at;
    } kinds[] = {{MPK_T_TENSORS, 24}, {MPK_T_FILES, 12}};
    *list = NULL;
    *count = 0;
    for (uint32_t what = 0; what < COUNT(kinds); ++what) {
        for (uint64_t i = 0; i < view->t[kinds[what].table].count; ++i) {
            const uint8_t *e = entry_of(view, kinds[what].table, i);
            if (mpk_load32(e + kinds[what].shard_at) != shard) continue;
            if (!mpk_grow(list, *count, sizeof **list)) return no_memory(error);
            (*list)[(*count)++] = (owner){mpk_load64(e + 16), what, (uint32_t)i};
        }
    }
    if (*count > 0) qsort(*list, *count, sizeof **list, by_section);
    return MOEPACK_OK;
}

static moepack_status trunk_tail(const mpk_tables_view *view, uint32_t shard, mpk_buf *out, moepack_error *error)
{
    owner *owners;
    size_t count;
    numbers sections = {NULL, 0};
    uint64_t counts[MPK_T_END] = {0};
    uint8_t *entries[MPK_T_END] = {NULL};
    moepack_status status = list_owners(view, shard, &owners, &count, error);
    for (size_t i = 0; i < count && status == MOEPACK_OK; ++i) {
        if (!add(&sections, owners[i].section)) status = no_memory(error);
    }
    if (status == MOEPACK_OK) {
        for (size_t i = 0; i < COUNT(trunk_ids); ++i) counts[trunk_ids[i]] = view->t[trunk_ids[i]].count;
        counts[MPK_T_SECTIONS] = sections.count;
        counts[MPK_T_PARTS] = count_parts(view, &sections);
        counts[MPK_T_TAIL_OWNERS] = count;
        status = mpk_tableset_append(out, trunk_ids, COUNT(trunk_ids), counts, entries, error);
    }
    if (status == MOEPACK_OK) {
        memcpy(entries[MPK_T_INFO], view->t[MPK_T_INFO].data, 128);
        memset(entries[MPK_T_INFO], 0, 16); /* canonical_root */
        copy_plan(view, entries);
        copy_sections(view, &sections, entries);
        for (size_t i = 0; i < count; ++i) {
            mpk_store32(entries[MPK_T_TAIL_OWNERS] + 8 * i, owners[i].what);
            mpk_store32(entries[MPK_T_TAIL_OWNERS] + 8 * i + 4, owners[i].entry);
        }
    }
    free(sections.at);
    free(owners);
    return status;
}

moepack_status mpk_view_tail(const mpk_tables_view *view, uint32_t shard, mpk_buf *out, moepack_error *error)
{
    uint32_t kind = mpk_load32(entry_of(view, MPK_T_SHARDS, shard) + 8);
    return kind == MOEPACK_SHARD_TRUNK ? trunk_tail(view, shard, out, error) : expert_tail(view, shard, out, error);
}

moepack_status mpk_index_tail(const moepack_index *index, uint32_t shard, mpk_buf *out, moepack_error *error)
{
    if (shard >= moepack_index_shards(index))
        return mpk_fail(error, MOEPACK_E_USAGE, "the container has no shard %u", (unsigned)shard);
    return mpk_view_tail(&index->tables, shard, out, error);
}

moepack_status mpk_index_plan_id(const moepack_index *index, moepack_hash128 *out, moepack_error *error)
{
    return mpk_view_plan_id(&index->tables, out, error);
}

/* ---- lengths, before any hash is known ---- */

/* Parts of a section of a builder: by decoded length, which source files have from their raw section itself. */
static uint64_t planned_parts(const mpk_tables *t, uint64_t section, const moepack_desc *desc)
{
    const moepack_section *s = &t->sections[section];
    return mpk_part_count(desc != NULL ? desc->decoded_length : s->stored_length, s->codec);
}

static void planned_expert_counts(const mpk_tables *t, uint32_t shard, uint64_t *counts)
{
    for (size_t i = 0; i < t->record_count; ++i) {
        const moepack_record *r = &t->records[i];
        if (r->shard != shard) continue;
        const mpk_schema_entry *schema = &t->schemas[r->schema];
        ++counts[MPK_T_TAIL_RECORDS];
        counts[MPK_T_SECTIONS] += schema->count;
        for (uint32_t k = 0; k < schema->count; ++k)
            counts[MPK_T_PARTS] += planned_parts(t, r->first_section + k, &t->descs[schema->first_desc + k]);
    }
}

static void planned_trunk_counts(const mpk_tables *t, uint32_t shard, uint64_t *counts)
{
    mpk_tables_count(t, false, counts);
    for (size_t i = 0; i < t->tensor_count; ++i) {
        const moepack_tensor *tensor = &t->tensors[i];
        if (tensor->shard != shard) continue;
        ++counts[MPK_T_SECTIONS];
        counts[MPK_T_PARTS] += planned_parts(t, tensor->section, &t->descs[tensor->desc]);
    }
    for (size_t i = 0; i < t->file_count; ++i) {
        if (t->files[i].shard != shard) continue;
        ++counts[MPK_T_SECTIONS];
        counts[MPK_T_PARTS] += planned_parts(t, t->files[i].section, NULL);
    }
    counts[MPK_T_TAIL_OWNERS] = counts[MPK_T_SECTIONS];
}

moepack_status mpk_tail_length(const mpk_tables *tables, uint32_t shard, uint64_t *length, moepack_error *error)
{
    uint64_t counts[MPK_T_END] = {0};
    bool fits;
    if (shard >= tables->shard_count) return mpk_fail(error, MOEPACK_E_USAGE, "there is no shard %u", (unsigned)shard);
    if (tables->shards[shard].kind == MOEPACK_SHARD_TRUNK) {
        planned_trunk_counts(tables, shard, counts);
        fits = mpk_tableset_length(trunk_ids, COUNT(trunk_ids), counts, length);
    } else {
        planned_expert_counts(tables, shard, counts);
        fits = mpk_tableset_length(expert_ids, COUNT(expert_ids), counts, length);
    }
    return fits ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_UNSUPPORTED, "tail of more than 2^64 bytes");
}
