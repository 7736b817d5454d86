/* Cutting a section into chunks that can be permuted, hashed and moved one after another. Internal.
 *
 * A section in published order is cut anywhere. A section in panel order is cut into groups of 16-row blocks where
 * every matrix is a plain row-major range of the published bytes, because then both the published and the stored bytes
 * of a group are contiguous (spec/container.md section 9). Only transposed, strided or interleaved matrices need the
 * whole section in memory. */
#ifndef MOEPACK_CONVERT_PIPELINE_CHUNK_H
#define MOEPACK_CONVERT_PIPELINE_CHUNK_H

#include "moepack/format.h"

/* What is known about the bytes of a section. */
typedef struct mpk_shape {
    const moepack_matrix *matrices;
    uint32_t matrix_count;
    moepack_layout layout;
    uint64_t canonical_length, decoded_length;
} mpk_shape;

typedef struct mpk_chunk {
    uint64_t canonical_offset, canonical_length; /* from the section's start */
    uint64_t stored_offset, stored_length;
    bool same;                      /* stored bytes are the published ones */
    moepack_matrix rows;            /* a group of row blocks: the matrix it is */
    const moepack_matrix *matrices; /* what to permute: &rows, or all of the section's */
    uint32_t matrix_count;
} mpk_chunk;

typedef struct mpk_chunker {
    mpk_shape shape;
    uint64_t limit;
    bool by_rows, whole;
    uint32_t matrix;
    uint64_t row, canonical, stored;
} mpk_chunker;

/* Chunks have at most `limit` bytes in either form, unless one block of 16 rows or a section that cannot be cut is
 * larger. */
void mpk_chunker_init(mpk_chunker *chunker, const mpk_shape *shape, uint64_t limit);
/* False when the section is finished. `chunk` must stay where it is while it is used. */
bool mpk_chunker_next(mpk_chunker *chunker, mpk_chunk *chunk);
/* Largest canonical and stored length of any chunk. */
void mpk_chunker_need(const mpk_chunker *chunker, uint64_t *canonical, uint64_t *stored);

/* Cuts a chunk in weight order further, into steps that stay in a core's own cache while their bytes are hashed and
 * moved. */
void mpk_chunk_steps(const mpk_chunk *chunk, mpk_chunker *steps);

/* Shape of a description, from an index or from tables under construction. */
void mpk_shape_of(const moepack_desc *desc, const moepack_matrix *matrices, mpk_shape *out);
/* Bytes without meaning: source headers and side files. */
void mpk_shape_opaque(uint64_t length, mpk_shape *out);

#endif
