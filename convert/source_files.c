/* Which files of a directory belong to the checkpoint, and as what. */
#include "source_internal.h"

#include "error.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char INDEX_NAME[] = "model.safetensors.index.json";
static const char SINGLE_NAME[] = "model.safetensors";
static const char CONFIG_NAME[] = "config.json";

/* Endings of files that hold weights, in whatever format. One that the index json does not list is another copy of the
 * model or something unfinished: it is left out, and that is said. */
static const char *const weight_endings[] = {
    ".safetensors", ".bin", ".pt",      ".pth",  ".gguf",      ".ggml", ".ckpt",   ".h5",
    ".hdf5",        ".npz", ".msgpack", ".onnx", ".onnx_data", ".ot",   ".tflite",
};

static bool ends_with(const char *name, const char *ending)
{
    size_t n = strlen(name), e = strlen(ending);
    return n > e && strcasecmp(name + n - e, ending) == 0;
}

static bool is_weight_file(const char *name)
{
    for (size_t i = 0; i < sizeof weight_endings / sizeof weight_endings[0]; i++) {
        if (ends_with(name, weight_endings[i])) return true;
    }
    return false;
}

static bool is_top_level(const char *name)
{
    return strchr(name, '/') == NULL;
}

static bool in_list(const mpk_file_list *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->name[i], name) == 0) return true;
    }
    return false;
}

static bool is_shard(const mpk_opening *o, const char *name)
{
    for (size_t i = 0; i < o->map.shard_count; i++) {
        if (strcmp(o->map.shards[i], name) == 0) return true;
    }
    return false;
}

static moepack_status add_file(mpk_opening *o, const char *name, moepack_source_kind kind)
{
    mpk_source_file *file = &o->source->files[o->source->file_count];
    file->name = mpk_arena_string(o->source->arena, name);
    if (!file->name) return mpk_source_oom(o);
    file->kind = kind;
    o->source->file_count++;
    return MOEPACK_OK;
}

/* Size and identity of a file that is stored whole. */
static moepack_status stamp_file(mpk_opening *o, mpk_source_file *file)
{
    char *path = mpk_source_path(o, file->name);
    if (!path) return mpk_source_oom(o);
    int fd = -1;
    moepack_status status = mpk_file_open(path, &fd, &file->size, o->error);
    if (!status) status = mpk_file_stamp_of(fd, path, &file->stamp, o->error);
    if (fd >= 0) close(fd);
    free(path);
    return status;
}

static moepack_status incomplete(mpk_opening *o, const char *what)
{
    mpk_fail(o->error, MOEPACK_E_INCOMPLETE, "%s", what);
    mpk_error_file(o->error, o->source->dir);
    return MOEPACK_E_INCOMPLETE;
}

/* Without an index json there must be one file of weights. Several without one are a broken download: nothing says
 * which belong together or whether one is missing. */
static moepack_status find_single(mpk_opening *o, const mpk_file_list *list)
{
    const char *only = NULL;
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        if (!is_top_level(list->name[i]) || !ends_with(list->name[i], ".safetensors")) continue;
        only = list->name[i];
        count++;
    }
    if (in_list(list, SINGLE_NAME)) {
        only = SINGLE_NAME;
        count = 1;
    }
    if (count == 0) return incomplete(o, "no model.safetensors.index.json and no .safetensors file in this directory");
    if (count > 1) return incomplete(o, "several .safetensors files, but model.safetensors.index.json is missing");
    o->map.shards = malloc(sizeof *o->map.shards);
    if (!o->map.shards || !(o->map.shards[0] = mpk_arena_string(o->map.arena, only))) return mpk_source_oom(o);
    o->map.shard_count = 1;
    return MOEPACK_OK;
}

static moepack_status find_weights(mpk_opening *o, const mpk_file_list *list)
{
    o->sharded = in_list(list, INDEX_NAME);
    if (!o->sharded) return find_single(o, list);
    char *path = mpk_source_path(o, INDEX_NAME);
    if (!path) return mpk_source_oom(o);
    moepack_status status = mpk_weight_map_read(path, &o->map, o->error);
    free(path);
    return status;
}

static moepack_status add_sides(mpk_opening *o, const mpk_file_list *list)
{
    const char *ignored = NULL;
    for (size_t i = 0; i < list->count; i++) {
        const char *name = list->name[i];
        if (strcmp(name, CONFIG_NAME) == 0 || (o->sharded && strcmp(name, INDEX_NAME) == 0) || is_shard(o, name))
            continue;
        if (is_weight_file(name)) {
            if (!ignored) ignored = name;
            o->source->ignored_files++;
            continue;
        }
        moepack_status status = add_file(o, name, MOEPACK_SOURCE_SIDE);
        if (status) return status;
    }
    if (ignored)
        mpk_source_warn(o, "%llu weight file%s that the checkpoint does not list left out, the first is %s",
                        (unsigned long long)o->source->ignored_files, o->source->ignored_files == 1 ? "" : "s",
                        ignored);
    return MOEPACK_OK;
}

/* What a listing passes over, and containers, which are hardly meant to be files of a checkpoint. */
static void warn_about(mpk_opening *o, const mpk_file_list *list)
{
    static const char *const what[MPK_LEFT_KINDS] = {
        [MPK_LEFT_HIDDEN] = "hidden",
        [MPK_LEFT_SPECIAL] = "neither files nor directories",
        [MPK_LEFT_DANGLING] = "links to nothing",
        [MPK_LEFT_DIR_LINK] = "links to directories",
    };
    const char *container = NULL;
    unsigned long long containers = 0;
    for (size_t k = 0; k < MPK_LEFT_KINDS; k++)
        if (list->left_out[k].count)
            mpk_source_warn(o, "entries left out (%s): %llu, the first is %s", what[k],
                            (unsigned long long)list->left_out[k].count, list->left_out[k].first);
    for (size_t i = 0; i < list->count; i++) {
        const char *slash = strrchr(list->name[i], '/');
        if (strcmp(slash ? slash + 1 : list->name[i], "index.mpk") != 0) continue;
        if (!container) container = list->name[i];
        containers++;
    }
    if (container)
        mpk_source_warn(o, "the source holds a container (%llu, the first is that of %s), stored like any other file",
                        containers, container);
}

/* Files in the order of the container's FILES table: by kind, then name. */
static moepack_status add_all(mpk_opening *o, const mpk_file_list *list)
{
    o->source->files = calloc(o->map.shard_count + list->count + 2, sizeof *o->source->files);
    if (!o->source->files) return mpk_source_oom(o);
    moepack_status status = MOEPACK_OK;
    for (size_t i = 0; i < o->map.shard_count && !status; i++)
        status = add_file(o, o->map.shards[i], MOEPACK_SOURCE_SAFETENSORS);
    if (!status && o->sharded) status = add_file(o, INDEX_NAME, MOEPACK_SOURCE_INDEX_JSON);
    if (!status) status = add_file(o, CONFIG_NAME, MOEPACK_SOURCE_CONFIG);
    if (!status) status = add_sides(o, list);
    for (size_t i = o->map.shard_count; i < o->source->file_count && !status; i++)
        status = stamp_file(o, &o->source->files[i]);
    return status;
}

moepack_status mpk_source_list(mpk_opening *o)
{
    mpk_file_list list = {0};
    moepack_status status = mpk_dir_list(o->source->dir, &list, o->error);
    if (status) return status;
    if (!in_list(&list, CONFIG_NAME)) status = incomplete(o, "config.json is missing");
    if (!status) status = find_weights(o, &list);
    if (!status) status = add_all(o, &list);
    if (!status) warn_about(o, &list);
    mpk_file_list_free(&list);
    return status;
}
