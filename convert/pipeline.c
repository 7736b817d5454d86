/* Source bytes to shard bytes. Pieces are taken in source order, neighbours in one read; each is checked, hashed,
 * permuted, hashed again and written where the plan says. Threads share nothing but the list of batches, so the bytes
 * written do not depend on how many there are. */
#include "pipeline.h"

#include "mxfp4.h"
#include "quantize.h"

#include "error.h"
#include "pipeline_hash.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A hole between two wanted pieces up to this size is read along rather than seeked over. */
#define MAX_HOLE ((uint64_t)64 << 10)

/* Consecutive pieces of one file. */
typedef struct batch {
    size_t first, count;
    uint64_t length; /* of the span that holds them; 0: a single piece, read chunk by chunk */
} batch;

typedef struct open_file {
    int fd;
    mpk_direct direct;
    char *path;
    size_t batches_left;
    mpk_file_stamp stamp;
} open_file;

typedef struct mover {
    mpk_pipeline *pipeline;
    mpk_plan *plan;
    batch *batches;
    size_t batch_count;
    open_file *files;
    mpk_lanes lanes;
    pthread_mutex_t lock;
    size_t *large_scales; /* pieces with scale bytes of 253 or 254 */
    size_t large_scale_count;
} mover;

void mpk_pipeline_error_piece(const mpk_pipeline *pipeline, const mpk_piece *piece, moepack_error *error)
{
    if (piece->block != MOEPACK_NO_BLOCK)
        mpk_error_layer(error, pipeline->source->blocks[pipeline->plan->source_block[piece->block]].label);
    if (piece->expert != UINT32_MAX) mpk_error_expert(error, piece->expert);
    if (piece->tensor != MPK_NO_TENSOR) mpk_error_tensor(error, pipeline->source->tensors[piece->tensor].name, -1);
}

/* ---- batches ---- */

/* Whether a piece fits a lane whole, so that it can share a read with its neighbours. */
static bool is_small(const mover *m, const mpk_piece *piece)
{
    mpk_shape shape;
    if (piece->quantized) return false;
    mpk_plan_shape(m->plan, piece, &shape);
    return shape.canonical_length <= m->lanes.bytes && shape.decoded_length <= m->lanes.bytes;
}

static bool joins(const mover *m, const batch *last, const mpk_piece *piece)
{
    const mpk_piece *first = &m->plan->pieces[last->first], *before = &m->plan->pieces[last->first + last->count - 1];
    if (last->length == 0 || first->file != piece->file || !is_small(m, piece)) return false;
    return piece->offset - (before->offset + before->length) <= MAX_HOLE &&
           piece->offset + piece->length - first->offset <= m->lanes.bytes;
}

static moepack_status make_batches(mover *m, moepack_error *error)
{
    for (size_t i = 0; i < m->plan->piece_count; i++) {
        const mpk_piece *piece = &m->plan->pieces[i];
        batch *last = m->batch_count ? &m->batches[m->batch_count - 1] : NULL;
        if (last && joins(m, last, piece)) {
            last->count++;
            last->length = piece->offset + piece->length - m->plan->pieces[last->first].offset;
            continue;
        }
        if (!mpk_grow(&m->batches, m->batch_count, sizeof *m->batches))
            return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        m->batches[m->batch_count++] =
            (batch){.first = i, .count = 1, .length = is_small(m, piece) ? piece->length : 0};
        m->files[piece->file].batches_left++;
    }
    return MOEPACK_OK;
}

/* ---- source files ---- */

static moepack_status changed(const char *path, moepack_error *error)
{
    moepack_status status = mpk_fail(error, MOEPACK_E_CORRUPT, "the file changed while it was being converted");
    mpk_error_file(error, path);
    return status;
}

static bool stamp_known(const mpk_file_stamp *stamp)
{
    return stamp->inode != 0 || stamp->size != 0 || stamp->mtime_s != 0;
}

/* Opens the file of a batch, or takes the open one. */
static moepack_status file_take(mover *m, uint32_t file, moepack_error *error)
{
    open_file *f = &m->files[file];
    const mpk_source_file *known = &m->pipeline->source->files[m->plan->source_file[file]];
    moepack_status status = MOEPACK_OK;
    pthread_mutex_lock(&m->lock);
    if (f->fd < 0) {
        uint64_t size;
        if (!f->path) f->path = mpk_path_join(m->pipeline->source->dir, known->name);
        status = f->path ? mpk_file_open(f->path, &f->fd, &size, error)
                         : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        if (status == MOEPACK_OK) status = mpk_file_stamp_of(f->fd, f->path, &f->stamp, error);
        if (status == MOEPACK_OK &&
            (size != known->size || (stamp_known(&known->stamp) && !mpk_file_stamp_equal(&f->stamp, &known->stamp))))
            status = changed(f->path, error);
        if (status == MOEPACK_OK) status = mpk_direct_begin(&f->direct, f->fd, f->path, false, error);
        if (status != MOEPACK_OK && f->fd >= 0) {
            close(f->fd);
            f->fd = -1;
        }
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* Keeps the first reason, of the sources and then of the shards. */
static void note_reason(mpk_pipeline *pipeline, const mpk_direct *file)
{
    moepack_convert_report *report = pipeline->report;
    if (report->io_reason[0] == '\0') mpk_direct_reason(file, report->io_reason, sizeof report->io_reason);
}

/* One at a time: under the lock, or after the workers. */
static void close_file(mover *m, open_file *f)
{
    note_reason(m->pipeline, &f->direct);
    mpk_direct_end(&f->direct);
    close(f->fd);
    f->fd = -1;
}

/* The last batch of a file closes it, after checking that it is still the file that was opened. */
static moepack_status file_return(mover *m, uint32_t file, moepack_error *error)
{
    open_file *f = &m->files[file];
    moepack_status status = MOEPACK_OK;
    pthread_mutex_lock(&m->lock);
    if (--f->batches_left == 0) {
        mpk_file_stamp now;
        status = mpk_file_stamp_of(f->fd, f->path, &now, error);
        if (status == MOEPACK_OK && !mpk_file_stamp_equal(&now, &f->stamp)) status = changed(f->path, error);
        close_file(m, f);
    }
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* ---- pieces ---- */

static void store_part(void *user, uint64_t i, uint64_t xxh3)
{
    mpk_part_entry *parts = user;
    parts[i].xxh3 = xxh3;
}

static moepack_status remember_large_scale(mover *m, size_t piece, moepack_error *error)
{
    pthread_mutex_lock(&m->lock);
    bool room = mpk_grow(&m->large_scales, m->large_scale_count, sizeof *m->large_scales);
    if (room) m->large_scales[m->large_scale_count++] = piece;
    pthread_mutex_unlock(&m->lock);
    return room ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
}

static moepack_status check_scales(mover *m, const mpk_piece *piece, const mpk_scale_scan *scan, moepack_error *error)
{
    if (scan->nan && !m->pipeline->allow_nan_scales) {
        moepack_status status = mpk_fail(error, MOEPACK_E_CORRUPT, "scale byte 255 (E8M0 NaN)");
        mpk_error_file(error, m->files[piece->file].path);
        mpk_error_offset(error, piece->offset + scan->nan_at);
        return status;
    }
    return MOEPACK_OK;
}

/* Hashes the published bytes of a chunk and rearranges them into `stored`. A group of rows goes step by step, so that
 * each step is read from memory once. */
static moepack_status rearrange(const mpk_chunk *chunk, const uint8_t *canonical, uint8_t *stored,
                                mpk_section_hash *hasher, moepack_error *error)
{
    mpk_chunker steps;
    mpk_chunk step;
    moepack_status status = MOEPACK_OK;
    mpk_chunk_steps(chunk, &steps);
    while (status == MOEPACK_OK && mpk_chunker_next(&steps, &step)) {
        const uint8_t *from = canonical + step.canonical_offset;
        uint8_t *to = stored + step.stored_offset;
        mpk_section_hash_canonical(hasher, from, step.canonical_length);
        status = moepack_panel_from_canonical(step.matrices, step.matrix_count, from, step.canonical_length, to,
                                              step.stored_length, error);
        if (status == MOEPACK_OK) mpk_section_hash_stored(hasher, to, step.stored_length);
    }
    return status;
}

/* One chunk: from the source, or from `loaded`, to its place in the shard. */
static moepack_status move_chunk(mover *m, const mpk_piece *piece, const mpk_chunk *chunk, const uint8_t *loaded,
                                 const mpk_buffers *buffers, mpk_section_hash *hasher, const mpk_shape *shape,
                                 mpk_scale_scan *scan, moepack_error *error)
{
    const moepack_section *section = &m->plan->tables.sections[piece->section];
    const uint64_t target = section->offset + chunk->stored_offset;
    uint8_t *read = NULL, *stored = buffers->out + target % MPK_PAGE; /* in its page as in the file: direct I/O */
    moepack_status status = MOEPACK_OK;
    if (!loaded)
        status = mpk_direct_read(&m->files[piece->file].direct, buffers->in, chunk->canonical_length,
                                 piece->offset + chunk->canonical_offset, &read, error);
    const uint8_t *canonical = loaded ? loaded + chunk->canonical_offset : read;
    if (status != MOEPACK_OK) return status;
    mpk_scales_scan(shape, chunk->canonical_offset, canonical, chunk->canonical_length, scan);
    status = check_scales(m, piece, scan, error);
    if (status != MOEPACK_OK) return status;
    mpk_direct *to = &m->pipeline->shard[piece->shard];
    if (!chunk->same) {
        status = rearrange(chunk, canonical, stored, hasher, error);
        return status == MOEPACK_OK ? mpk_direct_write(to, stored, chunk->stored_length, target, error) : status;
    }
    mpk_section_hash_stored(hasher, canonical, chunk->stored_length);
    if (chunk->stored_length <= buffers->out_bytes && (uintptr_t)canonical % MPK_PAGE != target % MPK_PAGE) {
        memcpy(stored, canonical, chunk->stored_length);
        canonical = stored;
    }
    return mpk_direct_write(to, canonical, chunk->stored_length, target, error);
}

/* The block that progress is reported under. */
static const char *label_of(const mover *m, const mpk_piece *piece)
{
    return piece->block == MOEPACK_NO_BLOCK ? ""
                                            : m->pipeline->source->blocks[m->plan->source_block[piece->block]].label;
}

static moepack_status move_piece(mover *m, mpk_lane *lane, size_t index, const uint8_t *loaded, moepack_error *error)
{
    const mpk_piece *piece = &m->plan->pieces[index];
    mpk_tables *t = &m->plan->tables;
    moepack_section *section = &t->sections[piece->section];
    mpk_shape shape;
    mpk_chunker chunker;
    mpk_chunk chunk;
    mpk_buffers buffers;
    mpk_section_hash hasher;
    uint64_t in, out;
    mpk_plan_shape(m->plan, piece, &shape);
    mpk_chunker_init(&chunker, &shape, lane->bytes);
    mpk_chunker_need(&chunker, &in, &out);
    moepack_status status = mpk_buffers_take(lane, in, out, &buffers, error);
    if (status != MOEPACK_OK) return status;
    mpk_part_entry *parts = section->first_part == MOEPACK_NO_PARTS ? NULL : t->parts + section->first_part;
    mpk_section_hash_init(&hasher, lane, shape.layout == MOEPACK_LAYOUT_CANONICAL, shape.decoded_length, store_part,
                          parts);
    mpk_scale_scan scan = {0};
    while (status == MOEPACK_OK && mpk_chunker_next(&chunker, &chunk)) {
        if (mpk_cancelled(m->pipeline->callbacks)) status = mpk_fail(error, MOEPACK_E_INTERRUPTED, "interrupted");
        if (status == MOEPACK_OK)
            status = move_chunk(m, piece, &chunk, loaded, &buffers, &hasher, &shape, &scan, error);
        if (status == MOEPACK_OK) mpk_meter_add(m->pipeline->meter, label_of(m, piece), chunk.canonical_length);
    }
    mpk_buffers_return(lane, &buffers);
    if (status == MOEPACK_OK) mpk_section_hash_end(&hasher, &section->xxh3_canonical, &section->xxh3_stored);
    if (status == MOEPACK_OK && scan.large) status = remember_large_scale(m, index, error);
    return status;
}

/* ---- quantised pieces (quantize.h) ---- */

/* A quantised piece on its way: rows are encoded and written group by group; the scales, a thirty-second of the codes'
 * number, wait until the last. */
typedef struct quantizing {
    const mpk_piece *piece;
    mpk_quantize_input input;
    uint8_t *scales; /* published order */
    uint64_t scales_used;
    mpk_section_hash hasher;
} quantizing;

static moepack_status read_scales(mover *m, quantizing *q, uint8_t **bytes, moepack_error *error)
{
    const mpk_piece *piece = q->piece;
    *bytes = NULL;
    if (!piece->scale) return MOEPACK_OK;
    int fd;
    uint64_t size;
    const mpk_source *source = m->pipeline->source;
    char *path = mpk_path_join(source->dir, source->files[m->plan->source_file[piece->scale_file]].name);
    *bytes = malloc(piece->scale->length + 1);
    if (!*bytes || !path) {
        free(path);
        return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    moepack_status status = mpk_file_open(path, &fd, &size, error);
    if (status == MOEPACK_OK) {
        status = mpk_file_pread(fd, *bytes, (size_t)piece->scale->length, piece->scale_offset, path, error);
        close(fd);
    }
    free(path);
    q->input.scale = piece->scale;
    q->input.scale_bytes = *bytes;
    return status;
}

/* One chunk of codes: rows of one matrix, or all matrices of the section. */
static moepack_status quantize_chunk(mover *m, quantizing *q, const mpk_chunk *chunk, uint64_t *row, uint32_t *matrix,
                                     uint8_t *codes, uint8_t *stored, moepack_error *error)
{
    const mpk_source_section *weight = q->input.weight;
    uint64_t left = chunk->canonical_length, at = 0, bad = 0;
    moepack_status status = MOEPACK_OK;
    while (left > 0 && status == MOEPACK_OK) {
        const moepack_matrix *from = &weight->matrices[*matrix];
        const uint64_t row_bytes = from->cols / 2, rows = from->rows - *row;
        const uint64_t count = left / row_bytes < rows ? left / row_bytes : rows;
        status =
            mpk_quantize_rows(&q->input, *matrix, *row, count, codes + at, q->scales + q->scales_used, &bad, error);
        if (status != MOEPACK_OK) mpk_error_offset(error, q->piece->offset + bad * from->bits / 8);
        q->scales_used += count * from->cols / MPK_MXFP4_BLOCK;
        at += count * row_bytes;
        left -= count * row_bytes;
        *row += count;
        if (*row < from->rows) continue;
        *row = 0;
        ++*matrix;
    }
    const uint64_t target = m->plan->tables.sections[q->piece->section].offset + chunk->stored_offset;
    if (status != MOEPACK_OK) return status;
    if (chunk->same) {
        mpk_section_hash_stored(&q->hasher, codes, chunk->stored_length);
        return mpk_direct_write(&m->pipeline->shard[q->piece->shard], codes, chunk->stored_length, target, error);
    }
    status = rearrange(chunk, codes, stored, &q->hasher, error);
    return status == MOEPACK_OK
               ? mpk_direct_write(&m->pipeline->shard[q->piece->shard], stored, chunk->stored_length, target, error)
               : status;
}

static void begin_section(mover *m, mpk_lane *lane, quantizing *q, uint64_t section, const mpk_shape *shape)
{
    mpk_tables *t = &m->plan->tables;
    const moepack_section *s = &t->sections[section];
    mpk_section_hash_init(&q->hasher, lane, shape->layout == MOEPACK_LAYOUT_CANONICAL, shape->decoded_length,
                          store_part, s->first_part == MOEPACK_NO_PARTS ? NULL : t->parts + s->first_part);
}

/* The scales, which are in memory whole, to the section behind the codes. */
static moepack_status write_scales(mover *m, mpk_lane *lane, quantizing *q, moepack_error *error)
{
    const mpk_piece *piece = q->piece;
    const moepack_desc *desc = &m->plan->tables.descs[piece->desc + 1];
    moepack_section *section = &m->plan->tables.sections[piece->section + 1];
    mpk_shape shape;
    mpk_shape_of(desc, m->plan->tables.matrices + desc->first_matrix, &shape);
    begin_section(m, lane, q, piece->section + 1, &shape);
    const mpk_chunk whole = {.canonical_length = shape.canonical_length,
                             .stored_length = shape.decoded_length,
                             .matrices = shape.matrices,
                             .matrix_count = shape.matrix_count};
    uint8_t *stored = q->scales;
    moepack_status status = MOEPACK_OK;
    if (shape.layout == MOEPACK_LAYOUT_CANONICAL) {
        mpk_section_hash_stored(&q->hasher, stored, shape.decoded_length);
    } else {
        stored = malloc(shape.decoded_length + 1);
        status = stored ? rearrange(&whole, q->scales, stored, &q->hasher, error)
                        : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    if (status == MOEPACK_OK)
        status =
            mpk_direct_write(&m->pipeline->shard[piece->shard], stored, shape.decoded_length, section->offset, error);
    if (status == MOEPACK_OK) mpk_section_hash_end(&q->hasher, &section->xxh3_canonical, &section->xxh3_stored);
    if (stored != q->scales) free(stored);
    return status;
}

static moepack_status quantize_codes(mover *m, mpk_lane *lane, quantizing *q, const mpk_shape *shape, uint8_t *codes,
                                     uint8_t *stored, moepack_error *error)
{
    moepack_section *section = &m->plan->tables.sections[q->piece->section];
    mpk_chunker chunker;
    mpk_chunk chunk;
    uint64_t row = 0;
    uint32_t matrix = 0;
    moepack_status status = MOEPACK_OK;
    mpk_chunker_init(&chunker, shape, lane->bytes);
    begin_section(m, lane, q, q->piece->section, shape);
    while (status == MOEPACK_OK && mpk_chunker_next(&chunker, &chunk)) {
        if (mpk_cancelled(m->pipeline->callbacks)) status = mpk_fail(error, MOEPACK_E_INTERRUPTED, "interrupted");
        if (status == MOEPACK_OK)
            status = quantize_chunk(m, q, &chunk, &row, &matrix, codes + chunk.canonical_offset, stored, error);
    }
    if (status == MOEPACK_OK) mpk_section_hash_end(&q->hasher, &section->xxh3_canonical, &section->xxh3_stored);
    return status == MOEPACK_OK ? write_scales(m, lane, q, error) : status;
}

/* The published section is read whole: its matrices may lie in it in any way. It and its codes come out of the pool
 * that bounds all buffers. */
static moepack_status quantize_piece(mover *m, mpk_lane *lane, size_t index, moepack_error *error)
{
    const mpk_piece *piece = &m->plan->pieces[index];
    mpk_shape shape;
    mpk_buffers buffers;
    uint8_t *read = NULL, *scales = NULL;
    mpk_plan_shape(m->plan, piece, &shape);
    quantizing q = {.piece = piece, .input = {.weight = piece->quantized}};
    moepack_status status =
        mpk_buffers_take(lane, piece->length, shape.canonical_length + shape.decoded_length, &buffers, error);
    if (status != MOEPACK_OK) return status;
    q.scales = malloc(m->plan->tables.descs[piece->desc + 1].canonical_length + 1);
    if (!q.scales) status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    if (status == MOEPACK_OK) status = read_scales(m, &q, &scales, error);
    if (status == MOEPACK_OK)
        status = mpk_direct_read(&m->files[piece->file].direct, buffers.in, piece->length, piece->offset, &read, error);
    q.input.weight_bytes = read;
    if (status == MOEPACK_OK)
        status = quantize_codes(m, lane, &q, &shape, buffers.out, buffers.out + shape.canonical_length, error);
    if (status != MOEPACK_OK && status != MOEPACK_E_INTERRUPTED) mpk_error_file(error, m->files[piece->file].path);
    if (status == MOEPACK_OK) mpk_meter_add(m->pipeline->meter, label_of(m, piece), piece->length);
    mpk_buffers_return(lane, &buffers);
    free(scales);
    free(q.scales);
    return status;
}

static moepack_status move_batch(void *user, unsigned lane_number, size_t item, moepack_error *error)
{
    mover *m = user;
    mpk_lane *lane = &m->lanes.lane[lane_number];
    const batch *b = &m->batches[item];
    const mpk_piece *first = &m->plan->pieces[b->first];
    uint8_t *loaded = NULL;
    moepack_status status = file_take(m, first->file, error);
    if (status == MOEPACK_OK && b->length)
        status = mpk_direct_read(&m->files[first->file].direct, lane->in, b->length, first->offset, &loaded, error);
    for (size_t i = b->first; i < b->first + b->count && status == MOEPACK_OK; i++) {
        const mpk_piece *piece = &m->plan->pieces[i];
        status = piece->quantized
                     ? quantize_piece(m, lane, i, error)
                     : move_piece(m, lane, i, b->length ? loaded + (piece->offset - first->offset) : NULL, error);
        if (status != MOEPACK_OK && status != MOEPACK_E_INTERRUPTED)
            mpk_pipeline_error_piece(m->pipeline, piece, error);
    }
    return status == MOEPACK_OK ? file_return(m, first->file, error) : status;
}

static moepack_status warn_overflows(mover *m, moepack_error *error)
{
    uint64_t weights, sections;
    moepack_status status = mpk_scales_overflows(m->pipeline->source, m->plan, m->large_scales, m->large_scale_count,
                                                 &weights, &sections, error);
    if (status == MOEPACK_OK && weights)
        mpk_meter_warn(
            m->pipeline->meter,
            "%llu weights in %llu scale planes overflow to infinity when they are dequantised to F32 or BF16 "
            "(scale byte 253 or 254); they are stored as published",
            (unsigned long long)weights, (unsigned long long)sections);
    return status;
}

static moepack_status move_all(mpk_pipeline *pipeline, moepack_error *error)
{
    mover m = {.pipeline = pipeline, .plan = pipeline->plan};
    uint32_t file_count = (uint32_t)m.plan->tables.file_count;
    moepack_status status = mpk_lanes_init(&m.lanes, pipeline->jobs, m.plan->source_bytes, error);
    if (status != MOEPACK_OK) return status;
    pthread_mutex_init(&m.lock, NULL);
    m.files = calloc(file_count ? file_count : 1, sizeof *m.files);
    if (!m.files) status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (uint32_t i = 0; m.files && i < file_count; i++) m.files[i].fd = -1;
    if (status == MOEPACK_OK) status = make_batches(&m, error);
    if (status == MOEPACK_OK)
        status = mpk_jobs_run(pipeline->jobs, m.batch_count, pipeline->callbacks, move_batch, &m, error);
    if (status == MOEPACK_OK) status = warn_overflows(&m, error);
    for (uint32_t i = 0; m.files && i < file_count; i++) {
        if (m.files[i].fd >= 0) close_file(&m, &m.files[i]);
        free(m.files[i].path);
    }
    free(m.files);
    free(m.batches);
    free(m.large_scales);
    pthread_mutex_destroy(&m.lock);
    mpk_lanes_free(&m.lanes);
    return status;
}

/* ---- the whole ---- */

/* Path of a container file whose name is not terminated. */
static char *path_of(const char *dir, const moepack_str *name)
{
    char *text = strndup(name->data, name->length);
    char *path = text ? mpk_path_join(dir, text) : NULL;
    free(text);
    return path;
}

static moepack_status create_shards(mpk_pipeline *pipeline, moepack_error *error)
{
    const mpk_tables *t = &pipeline->plan->tables;
    moepack_status status = MOEPACK_OK;
    for (size_t i = 0; i < t->shard_count && status == MOEPACK_OK; i++) {
        char *path = pipeline->shard_path[i] = path_of(pipeline->dir, &t->shards[i].name);
        if (!path) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        status = mpk_file_create(path, &pipeline->shard_fd[i], error);
        /* A reserved file reads as zeros, which is what every gap between sections must hold. */
        if (status == MOEPACK_OK)
            status = mpk_file_reserve(pipeline->shard_fd[i], t->shards[i].file_length, path, error);
        if (status == MOEPACK_OK)
            status = mpk_direct_begin(&pipeline->shard[i], pipeline->shard_fd[i], path, true, error);
    }
    return status;
}

static moepack_status open_shard_arrays(mpk_pipeline *pipeline, size_t shards, moepack_error *error)
{
    pipeline->shard_fd = malloc((shards ? shards : 1) * sizeof *pipeline->shard_fd);
    pipeline->shard_path = calloc(shards ? shards : 1, sizeof *pipeline->shard_path);
    pipeline->shard = calloc(shards ? shards : 1, sizeof *pipeline->shard);
    for (size_t i = 0; pipeline->shard && i < shards; i++) pipeline->shard[i].direct_fd = -1;
    for (size_t i = 0; pipeline->shard_fd && i < shards; i++) pipeline->shard_fd[i] = -1;
    if (pipeline->shard_fd && pipeline->shard_path && pipeline->shard) return MOEPACK_OK;
    return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
}

static void close_shards(mpk_pipeline *pipeline, size_t shards)
{
    for (size_t i = 0; pipeline->shard && i < shards; i++) {
        if (pipeline->shard[i].path) note_reason(pipeline, &pipeline->shard[i]);
        mpk_direct_end(&pipeline->shard[i]);
    }
    for (size_t i = 0; pipeline->shard_fd && i < shards; i++)
        if (pipeline->shard_fd[i] >= 0) close(pipeline->shard_fd[i]);
    for (size_t i = 0; pipeline->shard_path && i < shards; i++) free(pipeline->shard_path[i]);
    free(pipeline->shard_fd);
    free(pipeline->shard_path);
    free(pipeline->shard);
    pipeline->shard = NULL;
    pipeline->shard_fd = NULL;
    pipeline->shard_path = NULL;
}

moepack_status mpk_pipeline_run(mpk_pipeline *pipeline, moepack_hash128 *root_hash, moepack_error *error)
{
    size_t shards = pipeline->plan->tables.shard_count;
    mpk_meter_stage(pipeline->meter, "convert", pipeline->plan->source_bytes);
    moepack_status status = open_shard_arrays(pipeline, shards, error);
    if (status == MOEPACK_OK) status = create_shards(pipeline, error);
    if (status == MOEPACK_OK) status = move_all(pipeline, error);
    if (status == MOEPACK_OK) status = mpk_pipeline_finish(pipeline, root_hash, error);
    mpk_meter_end(pipeline->meter);
    close_shards(pipeline, shards);
    return status;
}
