/* After the last tensor byte: file hashes and canonical_root, tails and headers of the shards, and the index as the
 * last file, read back through the public reader before it is written. */
#include "pipeline.h"

#include "error.h"
#include "pipeline_hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Room for a name pattern of the family tables. */
#define MPK_NAME_ROOM 256

/* Spec/container.md 5.3; zero where not all of a file is stored. Pieces are in the order it asks for. */
static moepack_status hash_files(mpk_plan *plan, moepack_error *error)
{
    mpk_tables *t = &plan->tables;
    size_t i = 0;
    for (uint32_t f = 0; f < t->file_count; f++) {
        mpk_word_hash hash;
        uint64_t covered = 0;
        bool derived = false; /* quantised: the bytes stored are not the file's */
        if (!mpk_word_hash_begin(&hash)) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        for (; i < plan->piece_count && plan->pieces[i].file == f; i++) {
            covered += plan->pieces[i].length;
            derived = derived || plan->pieces[i].quantized != NULL;
            mpk_word_hash_add(&hash, t->sections[plan->pieces[i].section].xxh3_canonical);
        }
        moepack_hash128 whole = mpk_word_hash_end(&hash);
        t->files[f].hash = covered == t->files[f].length && !derived ? whole : (moepack_hash128){0};
    }
    return MOEPACK_OK;
}

/* A name pattern with its {expert} filled in. snprintf's contract. */
static size_t fill_expert(const char *pattern, uint32_t expert, char *buf, size_t size)
{
    const char *hole = strstr(pattern, "{expert}");
    if (hole == NULL) return (size_t)snprintf(buf, size, "%s", pattern);
    return (size_t)snprintf(buf, size, "%.*s%lu%s", (int)(hole - pattern), pattern, (unsigned long)expert,
                            hole + strlen("{expert}"));
}

/* The item of a section of a record whose bytes no source tensor has: its name is written into *names. */
static bool derived_item(const mpk_plan *plan, const mpk_piece *piece, uint32_t behind, char **names,
                         mpk_root_item *item)
{
    const mpk_tables *t = &plan->tables;
    const moepack_block *block = &t->blocks[piece->block];
    const moepack_desc *desc = &t->descs[piece->desc + behind];
    char pattern[MPK_NAME_ROOM];
    if (desc->name.length >= sizeof pattern) return false;
    memcpy(pattern, desc->name.data, desc->name.length);
    pattern[desc->name.length] = '\0';
    const size_t suffix = fill_expert(pattern, piece->expert, NULL, 0), size = block->prefix.length + suffix + 1;
    char *name = malloc(size);
    if (!name) return false;
    memcpy(name, block->prefix.data, block->prefix.length);
    fill_expert(pattern, piece->expert, name + block->prefix.length, suffix + 1);
    *names = name;
    *item = (mpk_root_item){.name = name,
                            .name_length = (uint32_t)(size - 1),
                            .dims = t->dims + desc->first_dim,
                            .rank = desc->rank,
                            .slices = desc->fused ? block->experts : 0,
                            .dtype = desc->dtype,
                            .expert = piece->expert,
                            .hash = t->sections[piece->section + behind].xxh3_canonical};
    return true;
}

static mpk_root_item published_item(const mpk_source *source, const mpk_plan *plan, const mpk_piece *piece)
{
    const mpk_source_tensor *tensor = &source->tensors[piece->tensor];
    const bool trunk = piece->expert == UINT32_MAX;
    return (mpk_root_item){.name = tensor->name,
                           .name_length = (uint32_t)strlen(tensor->name),
                           .dims = tensor->dims,
                           .rank = tensor->rank,
                           .dtype = (moepack_dtype)tensor->dtype,
                           .expert = trunk ? UINT64_MAX : piece->expert,
                           .file = trunk ? piece->file : 0,
                           .hash = plan->tables.sections[piece->section].xxh3_canonical};
}

static moepack_status hash_canonical(const mpk_source *source, mpk_plan *plan, moepack_error *error)
{
    mpk_root_item *items = calloc(2 * plan->piece_count + 1, sizeof *items);
    char **names = calloc(2 * plan->piece_count + 1, sizeof *names);
    moepack_status status = items && names ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    size_t count = 0;
    for (size_t i = 0; i < plan->piece_count && status == MOEPACK_OK; i++) {
        const mpk_piece *piece = &plan->pieces[i];
        if (piece->tensor == MPK_NO_TENSOR) continue;
        if (!piece->quantized) {
            items[count++] = published_item(source, plan, piece);
            continue;
        }
        for (uint32_t behind = 0; behind < 2 && status == MOEPACK_OK; behind++, count++)
            if (!derived_item(plan, piece, behind, &names[count], &items[count]))
                status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    if (status == MOEPACK_OK) status = mpk_canonical_root(items, count, &plan->tables.info.canonical_root, error);
    for (size_t i = 0; names && i < 2 * plan->piece_count; i++) free(names[i]);
    free(names);
    free(items);
    return status;
}

static moepack_status finish_shard(mpk_pipeline *pipeline, uint32_t number, moepack_error *error)
{
    mpk_tables *t = &pipeline->plan->tables;
    moepack_shard *shard = &t->shards[number];
    const char *path = pipeline->shard_path[number];
    int fd = pipeline->shard_fd[number];
    mpk_buf tail = {0};
    moepack_status status = shard->kind == MOEPACK_SHARD_TRUNK ? mpk_encode_trunk_tail(t, number, &tail, error)
                                                               : mpk_encode_expert_tail(t, number, &tail, error);
    if (status == MOEPACK_OK && tail.size != shard->tail_length)
        status = mpk_fail(error, MOEPACK_E_UNSUPPORTED, "tail of %zu bytes where %llu were planned", tail.size,
                          (unsigned long long)shard->tail_length);
    if (status == MOEPACK_OK) status = mpk_file_pwrite(fd, tail.data, tail.size, shard->tail_offset, path, error);
    if (status == MOEPACK_OK) {
        uint8_t page[MPK_PAGE];
        shard->root = moepack_hash128_of(tail.data, tail.size);
        mpk_encode_shard_header(t, number, page);
        status = mpk_file_pwrite(fd, page, sizeof page, 0, path, error);
    }
    free(tail.data);
    if (status == MOEPACK_OK) status = mpk_file_sync(fd, path, error);
    if (status != MOEPACK_OK) mpk_error_file(error, path);
    return status;
}

/* What is about to be published must be what a reader accepts. */
static moepack_status read_back(const mpk_buf *bytes, const mpk_plan *plan, moepack_hash128 *root_hash,
                                moepack_error *error)
{
    moepack_index *index;
    moepack_status status = moepack_index_open(bytes->data, bytes->size, "index.mpk", &index, error);
    if (status != MOEPACK_OK) return status;
    moepack_info info;
    moepack_index_info(index, &info);
    *root_hash = moepack_index_root_hash(index);
    bool same = moepack_index_sections(index) == plan->tables.section_count &&
                moepack_index_records(index) == plan->tables.record_count &&
                moepack_index_tensors(index) == plan->tables.tensor_count &&
                info.canonical_root.low == plan->tables.info.canonical_root.low &&
                info.canonical_root.high == plan->tables.info.canonical_root.high;
    moepack_index_close(index);
    return same ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_CORRUPT, "the index written differs from the one planned");
}

static moepack_status write_index(mpk_pipeline *pipeline, moepack_hash128 *root_hash, moepack_error *error)
{
    mpk_buf bytes = {0};
    int fd = -1;
    char *path = mpk_path_join(pipeline->dir, "index.mpk");
    moepack_status status = path ? mpk_encode_index(&pipeline->plan->tables, &bytes, error)
                                 : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    if (status == MOEPACK_OK) status = read_back(&bytes, pipeline->plan, root_hash, error);
    if (status == MOEPACK_OK) status = mpk_file_create(path, &fd, error);
    if (status == MOEPACK_OK) status = mpk_file_pwrite(fd, bytes.data, bytes.size, 0, path, error);
    if (status == MOEPACK_OK) status = mpk_file_sync(fd, path, error);
    if (fd >= 0) close(fd);
    if (status == MOEPACK_OK) status = mpk_dir_sync(pipeline->dir, error);
    free(bytes.data);
    free(path);
    return status;
}

moepack_status mpk_pipeline_finish(mpk_pipeline *pipeline, moepack_hash128 *root_hash, moepack_error *error)
{
    moepack_status status = hash_files(pipeline->plan, error);
    if (status == MOEPACK_OK) status = hash_canonical(pipeline->source, pipeline->plan, error);
    for (uint32_t i = 0; i < pipeline->plan->tables.shard_count && status == MOEPACK_OK; i++) {
        if (mpk_cancelled(pipeline->callbacks)) return mpk_fail(error, MOEPACK_E_INTERRUPTED, "interrupted");
        status = finish_shard(pipeline, i, error);
    }
    return status == MOEPACK_OK ? write_index(pipeline, root_hash, error) : status;
}
