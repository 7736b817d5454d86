/* How a section is cut into chunks that fit a buffer: whole, by rows of 16, or as plain bytes. */
#include "pipeline_chunk.h"

#include "bytes.h"

#include <string.h>

void mpk_shape_of(const moepack_desc *desc, const moepack_matrix *matrices, mpk_shape *out)
{
    *out = (mpk_shape){.matrices = matrices,
                       .matrix_count = desc->matrix_count,
                       .layout = desc->layout,
                       .canonical_length = desc->canonical_length,
                       .decoded_length = desc->decoded_length};
}

void mpk_shape_opaque(uint64_t length, mpk_shape *out)
{
    *out = (mpk_shape){.layout = MOEPACK_LAYOUT_CANONICAL, .canonical_length = length, .decoded_length = length};
}

/* Bytes of a row-major matrix of this many rows; false if they are not whole or overflow. */
static bool row_major_bytes(const moepack_matrix *m, uint64_t rows, uint64_t *bytes)
{
    uint64_t elements, bits;
    if (!mpk_mul64(rows, m->cols, &elements) || !mpk_mul64(elements, m->bits, &bits) || bits % 8 != 0) return false;
    *bytes = bits / 8;
    return true;
}

/* The rows [row, row + rows) of a row-major matrix as a matrix of their own. */
static moepack_matrix row_group(const moepack_matrix *m, uint64_t rows)
{
    moepack_matrix group = *m;
    group.rows = rows;
    group.base = 0;
    group.row_stride = m->cols;
    group.col_stride = 1;
    return group;
}

static bool cuts_into_rows(const mpk_shape *shape)
{
    uint64_t canonical = 0, stored = 0;
    for (uint32_t i = 0; i < shape->matrix_count; i++) {
        const moepack_matrix *m = &shape->matrices[i];
        uint64_t base_bits, bytes, block, panel;
        if (m->rows == 0 || m->cols == 0 || m->col_stride != 1 || m->row_stride != m->cols) return false;
        if (!mpk_mul64(m->base, m->bits, &base_bits) || base_bits % 8 != 0 || base_bits / 8 != canonical) return false;
        if (!row_major_bytes(m, m->rows, &bytes) || !mpk_add64(canonical, bytes, &canonical)) return false;
        if (!row_major_bytes(m, 16, &block)) return false;
        if (!moepack_panel_length(m, &panel) || !mpk_add64(stored, panel, &stored)) return false;
    }
    return canonical == shape->canonical_length && stored == shape->decoded_length;
}

void mpk_chunker_init(mpk_chunker *chunker, const mpk_shape *shape, uint64_t limit)
{
    *chunker = (mpk_chunker){.shape = *shape, .limit = limit};
    if (shape->layout == MOEPACK_LAYOUT_CANONICAL) return;
    bool small = shape->canonical_length <= limit && shape->decoded_length <= limit;
    chunker->by_rows = !small && cuts_into_rows(shape);
    chunker->whole = !chunker->by_rows;
}

/* Rows of the next group: as many blocks of 16 as keep both forms within the limit, at least one. */
static uint64_t group_rows(const mpk_chunker *chunker, const moepack_matrix *m, uint64_t left, uint64_t *canonical,
                           uint64_t *stored)
{
    moepack_matrix block = row_group(m, 16);
    uint64_t c = 0, s = 0;
    row_major_bytes(m, 16, &c);
    moepack_panel_length(&block, &s);
    uint64_t larger = c > s ? c : s;
    uint64_t blocks = larger ? chunker->limit / larger : 1;
    if (blocks == 0) blocks = 1;
    uint64_t rows = left / 16 >= blocks ? blocks * 16 : left;
    block = row_group(m, rows);
    *canonical = *stored = 0; /* cuts_into_rows has made sure that neither can fail */
    row_major_bytes(m, rows, canonical);
    moepack_panel_length(&block, stored);
    return rows;
}

static bool next_rows(mpk_chunker *chunker, mpk_chunk *chunk)
{
    if (chunker->matrix >= chunker->shape.matrix_count) return false;
    const moepack_matrix *m = &chunker->shape.matrices[chunker->matrix];
    uint64_t rows = group_rows(chunker, m, m->rows - chunker->row, &chunk->canonical_length, &chunk->stored_length);
    chunk->rows = row_group(m, rows);
    chunk->matrices = &chunk->rows;
    chunk->matrix_count = 1;
    chunker->row += rows;
    if (chunker->row == m->rows) {
        chunker->row = 0;
        chunker->matrix++;
    }
    return true;
}

static bool next_plain(const mpk_chunker *chunker, mpk_chunk *chunk)
{
    uint64_t left = chunker->shape.canonical_length - chunker->canonical;
    if (left == 0) return false;
    chunk->same = true;
    chunk->canonical_length = chunk->stored_length = left < chunker->limit ? left : chunker->limit;
    return true;
}

static bool next_whole(const mpk_chunker *chunker, mpk_chunk *chunk)
{
    if (chunker->canonical == chunker->shape.canonical_length) return false;
    chunk->canonical_length = chunker->shape.canonical_length;
    chunk->stored_length = chunker->shape.decoded_length;
    chunk->matrices = chunker->shape.matrices;
    chunk->matrix_count = chunker->shape.matrix_count;
    return true;
}

bool mpk_chunker_next(mpk_chunker *chunker, mpk_chunk *chunk)
{
    memset(chunk, 0, sizeof *chunk);
    bool more = chunker->by_rows ? next_rows(chunker, chunk)
                : chunker->whole ? next_whole(chunker, chunk)
                                 : next_plain(chunker, chunk);
    if (!more) return false;
    chunk->canonical_offset = chunker->canonical;
    chunk->stored_offset = chunker->stored;
    chunker->canonical += chunk->canonical_length;
    chunker->stored += chunk->stored_length;
    return true;
}

void mpk_chunker_need(const mpk_chunker *chunker, uint64_t *canonical, uint64_t *stored)
{
    *canonical = *stored = 0;
    mpk_chunker walk = *chunker;
    mpk_chunk chunk;
    if (!chunker->by_rows) {
        if (!mpk_chunker_next(&walk, &chunk)) return;
        *canonical = chunk.canonical_length;
        *stored = chunk.same ? 0 : chunk.stored_length;
        return;
    }
    /* The first group of a matrix is its largest. */
    for (walk.matrix = 0; walk.matrix < walk.shape.matrix_count; walk.matrix++) {
        const moepack_matrix *m = &walk.shape.matrices[walk.matrix];
        uint64_t c, s;
        group_rows(&walk, m, m->rows, &c, &s);
        if (c > *canonical) *canonical = c;
        if (s > *stored) *stored = s;
    }
}

#define STEP ((uint64_t)256 << 10)

void mpk_chunk_steps(const mpk_chunk *chunk, mpk_chunker *steps)
{
    const mpk_shape shape = {.matrices = chunk->matrices,
                             .matrix_count = chunk->matrix_count,
                             .layout = MOEPACK_LAYOUT_PANEL,
                             .canonical_length = chunk->canonical_length,
                             .decoded_length = chunk->stored_length};
    mpk_chunker_init(steps, &shape, STEP);
}
