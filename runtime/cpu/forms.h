/* Products of weights in the storage forms beside E2M1 with E8M0 scales, BF16 and F32 (spec/numerics.md sections 3 and
 * 4). A family of kernels has a table of these, or uses the scalar one. */
#ifndef MOEPACK_CPU_FORMS_H
#define MOEPACK_CPU_FORMS_H

#include "kernels.h"

typedef enum mpk_form {
    MPK_FORM_F16,        /* no scales */
    MPK_FORM_E4M3,       /* no scales, or scales that multiply the finished row */
    MPK_FORM_E4M3_GRID,  /* one scale per 128 rows and 128 columns */
    MPK_FORM_E4M3_GROUP, /* one scale per row and 32 columns */
    MPK_FORM_INT4,       /* code - 8; one scale per row and 32 columns */
    MPK_FORM_NVFP4,      /* E2M1; one scale per row and 16 columns */
    MPK_FORM_INT4_FIX16, /* the same on mpk_fix16_block */
    MPK_FORM_NVFP4_FIX16,
    MPK_FORM_COUNT
} mpk_form;

#define MPK_GRID 128u /* rows and columns that share a scale of a grid */

/* Scales of a product. Those of groups are in panel order, for each group those of 16 rows; those of a grid are in row
 * order. */
typedef struct mpk_form_scales {
    const uint8_t *at;         /* of the first row block in the product; of the whole grid */
    moepack_encoding encoding; /* E8M0, E4M3, BF16, F16 or F32 */
    size_t cols;               /* groups of a row, scales in a row of the grid */
    size_t first_row;          /* grids: row of the matrix that the product begins with */
} mpk_form_scales;

typedef void mpk_form_function(const mpk_gemv *op, const mpk_form_scales *scales);
typedef mpk_form_function *const mpk_form_table[MPK_FORM_COUNT];

extern mpk_form_table mpk_forms_scalar;

/* Value i of an array of scales, as F32. Exact. NaN for NaN codes. */
float mpk_scale_value(const uint8_t *at, moepack_encoding encoding, size_t i);
size_t mpk_scale_bytes(moepack_encoding encoding);

#endif
