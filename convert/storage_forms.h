/* Storage forms of single matrices: how the published tensors of one weight matrix spell codes and scales. Internal.
 *
 * Any form may stand in for any other, in every family, for each matrix of each expert and each dense part on its own:
 * re-released checkpoints mix them. A family says what a matrix is called and how large it is (mpk_family_part, and
 * roles named "....weight"); the tables here say which tensors "NAME.SUFFIX" hold it. A form is chosen by the suffixes
 * and dtypes that are there and by the shapes of the scales, never by the config. Adding a form means a line of
 * storage_forms.c and, for a new suffix, one of its list of suffixes.
 *
 * Sources: the compressors of compressed-tensors 0.20 (pack-quantized, mxfp4-pack-quantized, nvfp4-pack-quantized,
 * float-quantized), DeepSeek's published inference code (weight_scale_inv, scale), NVIDIA Model Optimizer (NVFP4, FP8),
 * and the published checkpoints that use them. */
#ifndef MOEPACK_CONVERT_STORAGE_FORMS_H
#define MOEPACK_CONVERT_STORAGE_FORMS_H

#include "moepack/format.h"

/* Suffixes are numbered; MPK_SUFFIX_WEIGHT is the plain one. */
#define MPK_SUFFIX_WEIGHT 0u
#define MPK_SUFFIXES 10u

/* Shape of a plane of a matrix [out, in]. */
typedef enum mpk_extent {
    MPK_EXTENT_WEIGHT, /* [out, in / pack] */
    MPK_EXTENT_GROUPS, /* [out, in / group] */
    MPK_EXTENT_GRID,   /* [out / 128, in / 128], rounded up */
    MPK_EXTENT_ROWS,   /* [out] or [out, 1] */
    MPK_EXTENT_ONE,    /* [] or [1] */
    MPK_EXTENT_PAIR    /* [2] */
} mpk_extent;

typedef struct mpk_form_plane {
    uint8_t suffix, plane, extent;
    uint8_t encoding; /* NONE: that of the dtype */
    uint8_t unit;     /* codes in an element of the tensor, or columns in a group */
    bool optional;
    uint32_t dtypes; /* one bit each */
} mpk_form_plane;

#define MPK_FORM_PLANES 4

typedef struct mpk_storage_form {
    const char *name;   /* "fp8-block" */
    const char *claims; /* what a quantization_config may call it, separated by spaces; NULL: there need not be one */
    uint32_t count;
    mpk_form_plane planes[MPK_FORM_PLANES];
} mpk_storage_form;

/* A tensor as far as forms look at it. */
typedef struct mpk_form_tensor {
    moepack_dtype dtype;
    uint32_t rank;
    const uint64_t *dims;
} mpk_form_tensor;

/* Form i, NULL past the end. */
const mpk_storage_form *mpk_storage_form_at(size_t i);

/* "weight_scale_inv" ...; NULL past the end. */
const char *mpk_form_suffix(uint32_t suffix);
/* The number of a suffix, exactly. */
bool mpk_form_find_suffix(const char *text, uint32_t *suffix);

/* A plane with this suffix and dtype in any form; NULL: no form has it. `more`, if wanted: whether others differ in
 * shape. */
const mpk_form_plane *mpk_form_known(uint32_t suffix, moepack_dtype dtype, bool *more);

/* Whether a tensor has dtype and shape of a plane of a matrix [out, in]. */
bool mpk_form_plane_fits(const mpk_form_plane *plane, const mpk_form_tensor *tensor, uint64_t out, uint64_t in);

/* Chooses the form that has exactly the tensors given, by suffix; dtype NONE (0): there is none. NULL: no form has;
 * then *nearest is the one that lacks fewest, and *lacking the first suffix that it lacks, MPK_SUFFIXES if nothing is
 * lacking but the tensors do not go together. */
const mpk_storage_form *mpk_form_choose(const mpk_form_tensor tensors[MPK_SUFFIXES], uint64_t out, uint64_t in,
                                        const mpk_storage_form **nearest, uint32_t *lacking);

/* The logical matrix inside a tensor that fits. */
void mpk_form_matrix(const mpk_form_plane *plane, const mpk_form_tensor *tensor, moepack_role role, uint64_t out,
                     uint64_t in, moepack_matrix *matrix);

/* Whether a quantization_config of this class (config_quant.c) may stand beside experts in this form. */
bool mpk_form_claimed(const mpk_storage_form *form, const char *claim);

#endif
