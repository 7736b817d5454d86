/* Carrying out a plan: source bytes to shard bytes. Internal. */
#ifndef MOEPACK_CONVERT_PIPELINE_H
#define MOEPACK_CONVERT_PIPELINE_H

#include "io/io.h"
#include "pipeline_jobs.h"
#include "plan.h"
#include "progress.h"

typedef struct mpk_pipeline {
    const mpk_source *source;
    mpk_plan *plan;
    const char *dir; /* where the container's files are created; exists and is empty */
    unsigned jobs;
    bool allow_nan_scales;
    const moepack_callbacks *callbacks;
    mpk_meter *meter;
    int *shard_fd; /* -1: not open */
    mpk_direct *shard;
    char **shard_path;
    moepack_convert_report *report; /* receives the reason for what did not go directly */
} mpk_pipeline;

/* Writes every file of the container into dir and syncs it: shards, then the index. Fills the hashes of plan->tables
 * and sets *root_hash. On failure files may be left in dir. */
moepack_status mpk_pipeline_run(mpk_pipeline *pipeline, moepack_hash128 *root_hash, moepack_error *error);

/* pipeline_scales.c: checks of E8M0 scale bytes. */

/* What one pass over scale bytes found. */
typedef struct mpk_scale_scan {
    bool nan;        /* a byte of 255 */
    uint64_t nan_at; /* the first one's position in the section */
    bool large;      /* a byte of 253 or 254: products may overflow F32 */
} mpk_scale_scan;

/* Looks at those of the canonical bytes [offset, offset + size) of a section that are E8M0 scales. Adds to `scan`. */
void mpk_scales_scan(const mpk_shape *shape, uint64_t offset, const uint8_t *bytes, uint64_t size,
                     mpk_scale_scan *scan);

/* Of the scale pieces listed (indices into plan->pieces), counts the weights whose published dequantisation overflows
 * to infinity, reading them again from the source. */
moepack_status mpk_scales_overflows(const mpk_source *source, const mpk_plan *plan, const size_t *pieces, size_t count,
                                    uint64_t *weights, uint64_t *sections, moepack_error *error);

/* pipeline_finish.c: everything after the last tensor byte. */
moepack_status mpk_pipeline_finish(mpk_pipeline *pipeline, moepack_hash128 *root_hash, moepack_error *error);

/* Adds what a piece is to an error about it. */
void mpk_pipeline_error_piece(const mpk_pipeline *pipeline, const mpk_piece *piece, moepack_error *error);

#endif
