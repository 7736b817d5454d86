/* The storage forms. */
#include "storage_forms.h"

#include "names.h"
#include "source_internal.h"

#include <string.h>

enum {
    WEIGHT = MPK_SUFFIX_WEIGHT,
    PACKED,
    SCALE,
    SCALE_INV,
    SCALE_2,
    GLOBAL,
    SHAPE,
    INPUT,
    INPUT_GLOBAL,
    V4_SCALE
};

static const char *const suffixes[MPK_SUFFIXES] = {
    [WEIGHT] = "weight",
    [PACKED] = "weight_packed",
    [SCALE] = "weight_scale",
    [SCALE_INV] = "weight_scale_inv",
    [SCALE_2] = "weight_scale_2",
    [GLOBAL] = "weight_global_scale",
    [SHAPE] = "weight_shape",
    [INPUT] = "input_scale",
    [INPUT_GLOBAL] = "input_global_scale",
    [V4_SCALE] = "scale",
};

#define DTYPE(name) (1u << MOEPACK_DTYPE_##name)
#define FLOATS (DTYPE(F32) | DTYPE(BF16) | DTYPE(F16))
#define EXPONENTS (DTYPE(U8) | DTYPE(F8_E8M0))

/* Lines of the table: codes, scales of groups (encoding, columns), and scales of other shapes. */
/* clang-format off */
#define CODES(suffix, dtypes, encoding, pack) \
    {suffix, MOEPACK_PLANE_WEIGHT, MPK_EXTENT_WEIGHT, MOEPACK_ENC_##encoding, pack, false, dtypes}
#define FP8 CODES(WEIGHT, DTYPE(F8_E4M3), E4M3, 1)
#define GROUPS(suffix, dtypes, encoding, columns) \
    {suffix, MOEPACK_PLANE_SCALE, MPK_EXTENT_GROUPS, MOEPACK_ENC_##encoding, columns, false, dtypes}
#define SCALES(suffix, shape, dtypes, encoding) \
    {suffix, MOEPACK_PLANE_SCALE, MPK_EXTENT_##shape, MOEPACK_ENC_##encoding, 1, false, dtypes}
#define WHOLE(suffix, plane, optional) \
    {suffix, MOEPACK_PLANE_##plane, MPK_EXTENT_ONE, MOEPACK_ENC_F32, 1, optional, DTYPE(F32)}
/* Scales of activations, for kernels that quantise those: carried, not used. */
#define UNUSED(suffix) \
    {suffix, MOEPACK_PLANE_OTHER, MPK_EXTENT_ONE, MOEPACK_ENC_NONE, 1, true, FLOATS}

/* weight_scale_inv multiplies, despite its name. Where shapes of two forms coincide (one row, one column of squares)
 * they mean the same. */
static const mpk_storage_form forms[] = {
    {"bf16", NULL, 1, {CODES(WEIGHT, DTYPE(BF16), BF16, 1)}},
    {"f16", NULL, 1, {CODES(WEIGHT, DTYPE(F16), F16, 1)}},
    {"f32", NULL, 1, {CODES(WEIGHT, DTYPE(F32), F32, 1)}},
    {"mxfp4", "mxfp4-pack-quantized", 2,
     {CODES(PACKED, DTYPE(U8), E2M1, 2), GROUPS(SCALE, EXPONENTS, E8M0, 32)}},
    {"mxfp4", "fp8", 2, {CODES(WEIGHT, DTYPE(I8), E2M1, 2), GROUPS(V4_SCALE, DTYPE(F8_E8M0), E8M0, 32)}},
    {"nvfp4", "nvfp4-pack-quantized", 4,
     {CODES(PACKED, DTYPE(U8), E2M1, 2), GROUPS(SCALE, DTYPE(F8_E4M3), E4M3, 16),
      WHOLE(GLOBAL, GLOBAL_DIVISOR, false), UNUSED(INPUT_GLOBAL)}},
    {"nvfp4", "modelopt", 4,
     {CODES(WEIGHT, DTYPE(U8), E2M1, 2), GROUPS(SCALE, DTYPE(F8_E4M3), E4M3, 16),
      WHOLE(SCALE_2, GLOBAL_SCALE, false), UNUSED(INPUT)}},
    {"int4", "pack-quantized", 3,
     {CODES(PACKED, DTYPE(I32), INT4_OFFSET, 8), GROUPS(SCALE, FLOATS, NONE, 32),
      {SHAPE, MOEPACK_PLANE_SHAPE, MPK_EXTENT_PAIR, MOEPACK_ENC_NONE, 1, true, DTYPE(I64) | DTYPE(I32)}}},
    {"fp8-tensor", "fp8 float-quantized modelopt", 3, {FP8, SCALES(SCALE, ONE, FLOATS, NONE), UNUSED(INPUT)}},
    {"fp8-row", "fp8 float-quantized modelopt", 3, {FP8, SCALES(SCALE, ROWS, FLOATS, NONE), UNUSED(INPUT)}},
    {"fp8-128x128", "fp8", 3, {FP8, SCALES(SCALE_INV, GRID, FLOATS, NONE), UNUSED(INPUT)}},
    {"fp8-128x128", "fp8 float-quantized modelopt", 3, {FP8, SCALES(SCALE, GRID, FLOATS, NONE), UNUSED(INPUT)}},
    {"fp8-128x128", "fp8", 2, {FP8, SCALES(SCALE_INV, GRID, DTYPE(F8_E8M0), E8M0)}},
    {"fp8-128x128", "fp8", 2, {FP8, SCALES(V4_SCALE, GRID, DTYPE(F8_E8M0), E8M0)}},
    {"mxfp8", "mxfp8 fp8 mxfp8-quantized modelopt", 2, {FP8, GROUPS(SCALE_INV, EXPONENTS, E8M0, 32)}},
    {"mxfp8", "mxfp8 fp8 mxfp8-quantized modelopt", 2, {FP8, GROUPS(SCALE, EXPONENTS, E8M0, 32)}},
};
/* clang-format on */

#define FORM_COUNT (sizeof forms / sizeof forms[0])

const mpk_storage_form *mpk_storage_form_at(size_t i)
{
    return i < FORM_COUNT ? &forms[i] : NULL;
}

const char *mpk_form_suffix(uint32_t suffix)
{
    return suffix < MPK_SUFFIXES ? suffixes[suffix] : NULL;
}

bool mpk_form_find_suffix(const char *text, uint32_t *suffix)
{
    for (uint32_t s = 0; s < MPK_SUFFIXES; s++) {
        if (strcmp(suffixes[s], text) != 0) continue;
        *suffix = s;
        return true;
    }
    return false;
}

static bool has_dtype(const mpk_form_plane *plane, moepack_dtype dtype)
{
    return (unsigned)dtype < 32 && (plane->dtypes >> dtype & 1) != 0;
}

const mpk_form_plane *mpk_form_known(uint32_t suffix, moepack_dtype dtype, bool *more)
{
    const mpk_form_plane *found = NULL;
    if (more) *more = false;
    for (size_t f = 0; f < FORM_COUNT; f++) {
        for (uint32_t p = 0; p < forms[f].count; p++) {
            const mpk_form_plane *plane = &forms[f].planes[p];
            if (plane->suffix != suffix || !has_dtype(plane, dtype)) continue;
            if (found && more && (found->extent != plane->extent || found->unit != plane->unit)) *more = true;
            if (!found) found = plane;
        }
    }
    return found;
}

/* ------------------------------------------------------------------------------------------------ shapes */

static bool has_shape(const mpk_form_tensor *t, uint32_t rank, uint64_t first, uint64_t second)
{
    return t->rank == rank && (rank < 1 || t->dims[0] == first) && (rank < 2 || t->dims[1] == second);
}

bool mpk_form_plane_fits(const mpk_form_plane *plane, const mpk_form_tensor *t, uint64_t out, uint64_t in)
{
    if (!has_dtype(plane, t->dtype)) return false;
    switch ((mpk_extent)plane->extent) {
    case MPK_EXTENT_WEIGHT:
    case MPK_EXTENT_GROUPS:
        return in % plane->unit == 0 && has_shape(t, 2, out, in / plane->unit);
    case MPK_EXTENT_GRID:
        return has_shape(t, 2, out / 128 + (out % 128 != 0), in / 128 + (in % 128 != 0));
    case MPK_EXTENT_ROWS:
        return has_shape(t, 1, out, 0) || has_shape(t, 2, out, 1);
    case MPK_EXTENT_ONE:
        return has_shape(t, 0, 0, 0) || has_shape(t, 1, 1, 0);
    case MPK_EXTENT_PAIR:
        return has_shape(t, 1, 2, 0);
    }
    return false;
}

/* ------------------------------------------------------------------------------------------------ choice */

/* Suffixes that the form has and the tensors lack; UINT32_MAX: there are tensors that the form does not have, with this
 * dtype. *fits: nothing is lacking, and all shapes are right. */
static uint32_t count_lacking(const mpk_storage_form *form, const mpk_form_tensor *tensors, uint64_t out, uint64_t in,
                              uint32_t *first, bool *fits)
{
    uint32_t lacking = 0, used = 0;
    *fits = true;
    *first = MPK_SUFFIXES;
    for (uint32_t p = 0; p < form->count; p++) {
        const mpk_form_plane *plane = &form->planes[p];
        const mpk_form_tensor *t = &tensors[plane->suffix];
        used |= 1u << plane->suffix;
        if (t->dtype == 0) {
            if (plane->optional) continue;
            if (lacking++ == 0) *first = plane->suffix;
            continue;
        }
        if (!has_dtype(plane, t->dtype)) return UINT32_MAX;
        *fits = *fits && mpk_form_plane_fits(plane, t, out, in);
    }
    for (uint32_t s = 0; s < MPK_SUFFIXES; s++)
        if (tensors[s].dtype != 0 && (used >> s & 1) == 0) return UINT32_MAX;
    *fits = *fits && lacking == 0;
    return lacking;
}

const mpk_storage_form *mpk_form_choose(const mpk_form_tensor tensors[MPK_SUFFIXES], uint64_t out, uint64_t in,
                                        const mpk_storage_form **nearest, uint32_t *lacking)
{
    uint32_t best = UINT32_MAX;
    *nearest = NULL;
    *lacking = MPK_SUFFIXES;
    for (size_t f = 0; f < FORM_COUNT; f++) {
        bool fits;
        uint32_t first, count = count_lacking(&forms[f], tensors, out, in, &first, &fits);
        if (count < UINT32_MAX && fits) return &forms[f];
        if (count >= best) continue;
        best = count;
        *nearest = &forms[f];
        *lacking = first;
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------ matrices */

void mpk_form_matrix(const mpk_form_plane *plane, const mpk_form_tensor *tensor, moepack_role role, uint64_t out,
                     uint64_t in, moepack_matrix *matrix)
{
    moepack_encoding encoding = (moepack_encoding)plane->encoding;
    if (encoding == MOEPACK_ENC_NONE) encoding = mpk_dense_encoding(tensor->dtype);
    if (encoding == MOEPACK_ENC_NONE) encoding = mpk_table_encoding(tensor->dtype);
    *matrix = (moepack_matrix){.role = role,
                               .plane = (moepack_plane)plane->plane,
                               .encoding = encoding,
                               .bits = mpk_encoding_bits(encoding),
                               .rows = tensor->rank > 0 ? tensor->dims[0] : 1,
                               .cols = tensor->rank > 1 ? tensor->dims[1] : 1,
                               .col_stride = 1};
    if (plane->extent == MPK_EXTENT_WEIGHT) matrix->cols = in;
    matrix->row_stride = matrix->cols;
    if (plane->plane != MOEPACK_PLANE_SCALE) return;
    const bool grid = plane->extent == MPK_EXTENT_GRID, one = plane->extent == MPK_EXTENT_ONE;
    matrix->group_rows = grid ? 128 : one ? (uint32_t)out : 1;
    matrix->group_cols = grid ? 128 : plane->extent == MPK_EXTENT_GROUPS ? plane->unit : (uint32_t)in;
}

/* ------------------------------------------------------------------------------------------------ claims */

bool mpk_form_claimed(const mpk_storage_form *form, const char *claim)
{
    if (claim[0] == 0 || !form->claims) return claim[0] == 0 && !form->claims;
    if (strcmp(claim, "mixed") == 0) return true;
    const size_t length = strlen(claim);
    for (const char *at = form->claims; (at = strstr(at, claim)) != NULL; at += length)
        if ((at == form->claims || at[-1] == ' ') && (at[length] == 0 || at[length] == ' ')) return true;
    return false;
}
