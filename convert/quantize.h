/* convert --quantize mxfp4: expert matrices become two sections, codes and scales, that no source tensor holds.
 * Internal.
 *
 * quantize.c rewrites the schemas of an opened source and encodes rows; quantize_pipeline.c moves them. The rule that
 * chooses scales is format/mxfp4.c's. */
#ifndef MOEPACK_CONVERT_QUANTIZE_H
#define MOEPACK_CONVERT_QUANTIZE_H

#include "source.h"

/* Replaces every weight section of experts (F32, BF16, F16, or FP8 E4M3 with scales of its own) by `NAME_packed` and
 * `NAME_scale`; other sections stay. UNSUPPORTED: a form that cannot be read here, or rows that are no whole blocks.
 * REFUSED: 4-bit experts, unless `force`: then MXFP4 and int4 are decoded and encoded again. */
moepack_status mpk_source_quantize(mpk_source *source, bool force, moepack_error *error);

/* Published bytes of one section: its codes and, where it has them, its scales. */
typedef struct mpk_quantize_input {
    const mpk_source_section *weight, *scale; /* scale: NULL or the section */
    const uint8_t *weight_bytes;              /* from the byte of element `first` on */
    uint64_t first;
    const uint8_t *scale_bytes; /* whole */
} mpk_quantize_input;

/* Encodes rows [row, row + count) of matrix `m` of the section: count x cols / 2 bytes of codes and count x cols / 32
 * of scales, row by row. CORRUPT for an infinite or NaN weight: *bad gets its element number. */
moepack_status mpk_quantize_rows(const mpk_quantize_input *input, uint32_t m, uint64_t row, uint64_t count,
                                 uint8_t *codes, uint8_t *scales, uint64_t *bad, moepack_error *error);

#endif
