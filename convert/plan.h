/* Planning a container: from an opened source to every byte position of every file, before anything is written.
 * Internal.
 *
 * Pure: no I/O, and the same source and options give the same plan. All lengths are known here because sections are
 * stored raw; only hashes are still zero. */
#ifndef MOEPACK_CONVERT_PLAN_H
#define MOEPACK_CONVERT_PLAN_H

#include "build.h"
#include "pipeline_chunk.h"
#include "source.h"

#define MPK_SHARD_SIZE_DEFAULT ((uint64_t)24000000000) /* convert.h */
#define MPK_NO_DESC UINT32_MAX

typedef struct mpk_plan_options {
    const uint8_t *kept; /* per source tensor, whether it is stored; NULL: all are */
    moepack_shard_by shard_by;
    uint64_t shard_size; /* not 0 */
    moepack_layout layout;
    moepack_codec codec;
} mpk_plan_options;

/* One section's bytes in the source and where they go. A per-expert tensor, one expert's slice of a fused tensor, a
 * trunk tensor, a source header, or a side file. */
typedef struct mpk_piece {
    uint64_t offset, length; /* in the source file, canonical bytes */
    uint64_t section;        /* in tables.sections */
    uint32_t file;           /* in tables.files */
    uint32_t shard;
    uint32_t desc;   /* MPK_NO_DESC: a file's own bytes */
    uint32_t tensor; /* source tensor, MPK_NO_TENSOR: a file's own bytes */
    uint32_t block;  /* in tables.blocks, MOEPACK_NO_BLOCK: trunk */
    uint32_t expert; /* UINT32_MAX: none */
    /* Quantised (quantize.h): the piece is a published weight section; its codes go to `section` and `desc`, its scales
     * to the ones behind. NULL: stored as published. */
    const mpk_source_section *quantized, *scale;
    uint64_t scale_offset; /* of the published scales, in file scale_file */
    uint32_t scale_file;
} mpk_piece;

typedef struct mpk_plan {
    mpk_tables tables;
    mpk_piece *pieces; /* in order of (file, offset, length, tensor, expert) */
    size_t piece_count;
    uint32_t *source_file;  /* of each entry of tables.files */
    uint32_t *source_block; /* of each entry of tables.blocks */
    uint64_t source_bytes;  /* that will be read */
    uint64_t written_bytes; /* all files of the container */
    uint64_t needed_bytes;  /* the same in whole blocks of the file system */
    uint64_t record_count;  /* experts that are stored */
} mpk_plan;

moepack_status mpk_plan_make(const mpk_source *source, const mpk_plan_options *options, mpk_plan *plan,
                             moepack_error *error);
void mpk_plan_free(mpk_plan *plan);

/* What is known about the bytes of a piece. */
void mpk_plan_shape(const mpk_plan *plan, const mpk_piece *piece, mpk_shape *out);
/* Upper estimate of the memory that converting by this plan takes with so many jobs. */
uint64_t mpk_plan_memory(const mpk_plan *plan, const mpk_source *source, unsigned jobs);

#endif
