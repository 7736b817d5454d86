/* The pieces of source tensors that a container holds, by published name. Internal; for verify and export.
 *
 * The index has no names of expert tensors, only patterns; here every name is spelled out once (K3: 497,000 names,
 * about 70 MB), because source headers and canonical_root are in terms of names. */
#ifndef MOEPACK_CONVERT_PIECES_H
#define MOEPACK_CONVERT_PIECES_H

#include "pipeline_chunk.h"
#include "pipeline_hash.h"

typedef struct mpk_index_piece {
    const char *name; /* not terminated */
    uint32_t name_length;
    uint32_t desc, shard;
    uint32_t block;  /* MOEPACK_NO_BLOCK: none */
    uint32_t expert; /* UINT32_MAX: a trunk tensor */
    uint32_t file;   /* trunk tensors: source file; 0 else */
    uint64_t section;
} mpk_index_piece;

/* A description with what it refers to. */
typedef struct mpk_index_desc {
    bool loaded;
    moepack_desc desc;
    uint64_t *dims;
    moepack_matrix *matrices;
} mpk_index_desc;

typedef struct mpk_pieces {
    const moepack_index *index;
    mpk_index_piece *piece; /* sorted by (name, file, expert) */
    size_t count;
    mpk_index_desc *descs; /* by number; those that a piece uses are loaded */
    size_t desc_count;
    char *names;
} mpk_pieces;

moepack_status mpk_pieces_open(const moepack_index *index, mpk_pieces *out, moepack_error *error);
void mpk_pieces_close(mpk_pieces *pieces);

void mpk_pieces_shape(const mpk_pieces *pieces, const mpk_index_piece *piece, mpk_shape *out);
moepack_status mpk_pieces_canonical_root(const mpk_pieces *pieces, moepack_hash128 *out, moepack_error *error);

/* A piece at its place in its source file. */
typedef struct mpk_placed {
    uint64_t offset, length;
    uint32_t order; /* number of its tensor in the header */
    size_t piece;
} mpk_placed;

/* Places the pieces of source file `file` from its stored section (length word and header): in the order of file
 * hashes. The header must agree with the container on every name, dtype, shape and length, and cover the whole file.
 * `*missing` counts tensors or slices that the container does not hold; in a container that is no subset they are
 * MOEPACK_E_CORRUPT. */
moepack_status mpk_pieces_place(const mpk_pieces *pieces, uint32_t file, const void *section, size_t size,
                                mpk_placed **placed, size_t *count, uint64_t *missing, moepack_error *error);
/* Spec/container.md 5.3. */
moepack_status mpk_pieces_file_hash(const mpk_pieces *pieces, uint32_t file, const mpk_placed *placed, size_t count,
                                    moepack_hash128 *out, moepack_error *error);

#endif
