/* Opening a published checkpoint. */
#include "source_internal.h"

#include "build.h"
#include "error.h"
#include "safetensors.h"
#include "selection.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Published configs have a few KB; vocabularies inside them a few MB. */
#define CONFIG_MAX ((uint64_t)64 << 20)

/* ------------------------------------------------------------------------------------------------ shared helpers */

moepack_status mpk_source_oom(mpk_opening *o)
{
    mpk_fail(o->error, MOEPACK_E_REFUSED, "out of memory");
    if (o->source) mpk_error_file(o->error, o->source->dir);
    return MOEPACK_E_REFUSED;
}

void mpk_source_warn(mpk_opening *o, const char *format, ...)
{
    o->source->warnings++;
    const moepack_callbacks *callbacks = o->options->callbacks;
    if (!callbacks || !callbacks->warn) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    callbacks->warn(callbacks->user, line);
}

char *mpk_source_path(const mpk_opening *o, const char *name)
{
    return mpk_path_join(o->source->dir, name);
}

moepack_status mpk_source_blame(mpk_opening *o, moepack_status status, uint32_t file, const char *tensor)
{
    if (file != UINT32_MAX) {
        char *path = mpk_source_path(o, o->source->files[file].name);
        mpk_error_file(o->error, path ? path : o->source->files[file].name);
        free(path);
    }
    mpk_error_tensor(o->error, tensor, -1);
    mpk_name name;
    mpk_family_match(o->state->family, tensor, &name);
    uint32_t block = o->source->blocks ? mpk_source_block_of(o->state, &name) : MOEPACK_NO_BLOCK;
    if (block != MOEPACK_NO_BLOCK) mpk_error_layer(o->error, o->source->blocks[block].label);
    if (name.kind == MPK_NAME_EXPERT && name.expert <= INT64_MAX) mpk_error_expert(o->error, (int64_t)name.expert);
    return status;
}

/* ------------------------------------------------------------------------------------------------ config and headers
 */

static moepack_status read_config(mpk_opening *o)
{
    char *path = mpk_source_path(o, "config.json");
    if (!path) return mpk_source_oom(o);
    void *text = NULL;
    size_t size;
    moepack_status status = mpk_file_read_all(path, CONFIG_MAX, &text, &size, o->error);
    if (!status) status = mpk_config_read(text, size, path, &o->state->config, o->error);
    free(text);
    free(path);
    if (status) return status;
    o->state->family = o->state->config.family;
    o->source->family = o->state->family->name;
    o->source->model_type = mpk_arena_string(o->source->arena, o->state->config.model_type);
    return o->source->model_type ? MOEPACK_OK : mpk_source_oom(o);
}

static moepack_status add_tensor(mpk_opening *o, uint32_t file, const moepack_safetensors_tensor *from)
{
    mpk_source *source = o->source;
    if (source->tensor_count == UINT32_MAX - 1)
        return mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "more than 2^32 - 2 tensors");
    if (!mpk_grow(&source->tensors, source->tensor_count, sizeof *source->tensors)) return mpk_source_oom(o);
    uint64_t *dims = mpk_arena_alloc(source->arena, from->rank * sizeof *dims);
    char *name = mpk_arena_string(source->arena, from->name);
    if (!dims || !name) return mpk_source_oom(o);
    if (from->rank) memcpy(dims, from->dims, from->rank * sizeof *dims);
    source->tensors[source->tensor_count++] = (mpk_source_tensor){
        .name = name,
        .dims = dims,
        .offset = from->offset,
        .length = from->length,
        .file = file,
        .block = MOEPACK_NO_BLOCK,
        .rank = from->rank,
        .dtype = (uint16_t)from->dtype,
    };
    return MOEPACK_OK;
}

static moepack_status read_header(mpk_opening *o, uint32_t file, const char *path)
{
    mpk_source_file *into = &o->source->files[file];
    moepack_safetensors *shard;
    moepack_status status = moepack_safetensors_open(path, &shard, o->error);
    /* access follows links: a cache that links to a blob it no longer has lacks the shard, too. */
    if (status == MOEPACK_E_INCOMPLETE && o->sharded && access(path, F_OK) != 0) {
        into->missing = true;
        return MOEPACK_OK;
    }
    if (status) return status;
    into->size = shard->file_size;
    into->data_start = shard->data_start;
    into->stamp = shard->stamp;
    size_t count = moepack_safetensors_count(shard);
    for (size_t i = 0; i < count && !status; i++) {
        moepack_safetensors_tensor tensor;
        moepack_safetensors_get(shard, i, &tensor);
        status = add_tensor(o, file, &tensor);
    }
    moepack_safetensors_close(shard);
    return status;
}

static moepack_status read_headers(mpk_opening *o)
{
    const moepack_callbacks *callbacks = o->options->callbacks;
    for (uint32_t f = 0; f < o->map.shard_count; f++) {
        if (callbacks && callbacks->cancel && __atomic_load_n(callbacks->cancel, __ATOMIC_RELAXED) != 0)
            return mpk_fail(o->error, MOEPACK_E_INTERRUPTED, "interrupted while reading headers");
        char *path = mpk_source_path(o, o->source->files[f].name);
        if (!path) return mpk_source_oom(o);
        moepack_status status = read_header(o, f, path);
        free(path);
        if (status) return status;
    }
    return MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------ open and close */

static void note_subset(mpk_opening *o)
{
    mpk_source *source = o->source;
    for (uint32_t i = 0; i < source->file_count; i++) {
        if (!source->files[i].missing) continue;
        source->subset = true;
        mpk_source_warn(o, "%s is missing; the selection does not need it", source->files[i].name);
    }
    for (uint32_t i = 0; i < source->tensor_count && !source->subset; i++)
        source->subset = !mpk_source_tensor_kept(source, o->options, i);
}

static moepack_status open_source(mpk_opening *o, const char *dir)
{
    o->source->dir = strdup(dir);
    o->source->arena = mpk_arena_new();
    o->map.arena = mpk_arena_new();
    if (!o->source->dir || !o->source->arena || !o->map.arena) return mpk_source_oom(o);
    moepack_status status = mpk_source_list(o);
    if (!status) status = read_config(o);
    if (!status) status = read_headers(o);
    if (!status) status = mpk_source_resolve(o);
    if (!status) note_subset(o);
    return status;
}

moepack_status mpk_source_open(const char *dir, const mpk_source_options *options, mpk_source **out,
                               moepack_error *error)
{
    mpk_opening o = {.options = options, .error = error};
    o.state = calloc(1, sizeof *o.state);
    if (!o.state) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    o.source = &o.state->open;
    moepack_status status = open_source(&o, dir);
    mpk_weight_map_free(&o.map);
    free(o.role_tensor);
    free(o.form);
    free(o.form_schema);
    mpk_parts_free(&o);
    free(o.deferred);
    if (status) {
        mpk_source_close(o.source);
        return status;
    }
    *out = o.source;
    return MOEPACK_OK;
}

void mpk_source_close(mpk_source *source)
{
    if (!source) return;
    for (uint32_t b = 0; b < source->block_count; b++) {
        free(source->blocks[b].section);
        free(source->blocks[b].expert_schema);
        free(source->blocks[b].published);
    }
    free(source->blocks);
    free(source->files);
    free(source->tensors);
    free(source->schemas);
    free(source->policies);
    free(source->published);
    free(source->expert_selected);
    free(source->dir);
    mpk_arena_free(source->arena);
    free(source);
}

bool mpk_source_tensor_kept(const mpk_source *source, const mpk_source_options *options, uint32_t tensor)
{
    return mpk_source_name_kept((const mpk_source_state *)source, options->moe_only, source->tensors[tensor].name);
}
