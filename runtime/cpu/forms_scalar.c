/* The storage forms of forms.h in plain C: the readable form of the rules, and what families without kernels of their
 * own for a form use. */
#include "forms.h"

#include "../../format/bytes.h"
#include "../../format/element.h"
#include "elementary.h"

size_t mpk_scale_bytes(moepack_encoding encoding)
{
    return encoding == MOEPACK_ENC_F32 ? 4 : encoding == MOEPACK_ENC_BF16 || encoding == MOEPACK_ENC_F16 ? 2 : 1;
}

float mpk_scale_value(const uint8_t *at, moepack_encoding encoding, size_t i)
{
    switch (encoding) {
    case MOEPACK_ENC_F32:
        return mpk_value_f32(mpk_load32(at + 4 * i));
    case MOEPACK_ENC_BF16:
        return mpk_value_bf16(mpk_load16(at + 2 * i));
    case MOEPACK_ENC_F16:
        return mpk_value_f16(mpk_load16(at + 2 * i));
    case MOEPACK_ENC_E4M3:
        return mpk_value_e4m3(at[i]);
    default:
        return mpk_value_e8m0(at[i]);
    }
}

/* ---- F32 chains ---- */

/* How a form is stored and scaled. */
typedef struct rule {
    float (*value)(uint32_t code);
    size_t bits;
    size_t group; /* columns that share a scale of their row; 0: none do */
    bool grid;
} rule;

static float weight(const uint8_t *tiles, const rule *form, size_t row, size_t c)
{
    const size_t word = 32 / form->bits;
    const uint32_t bits = mpk_load32(tiles + c / word * 64 + row * 4) >> (c % word * form->bits);
    return form->value(bits & ((1u << form->bits) - 1));
}

static float chain(const uint8_t *tiles, const rule *form, size_t row, const float *x, size_t first, size_t end)
{
    float c = 0.0f;
    for (size_t i = first; i < end; i++) c = __builtin_fmaf(weight(tiles, form, row, i), x[i], c);
    return c;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* 3.1, the form's scales being none or of whole rows. */
static float row_plain(const uint8_t *w, const rule *form, size_t row, size_t cols, const float *x)
{
    float y = 0.0f;
    for (size_t c = 0; c < cols; c += MPK_BLOCK) y += chain(w, form, row, x, c, smaller(c + MPK_BLOCK, cols));
    return y;
}

/* 3.2: `s` are the scales of the row block. Columns end with the last group that has one: others are padding. */
static float row_groups(const uint8_t *w, const rule *form, size_t row, size_t cols, const float *x, const uint8_t *s,
                        const mpk_form_scales *scales)
{
    float y = 0.0f;
    for (size_t g = 0; g < scales->cols; g++) {
        const size_t first = g * form->group;
        const float scale = mpk_scale_value(s, scales->encoding, g * MPK_ROWS + row);
        y = __builtin_fmaf(chain(w, form, row, x, first, smaller(first + form->group, cols)), scale, y);
    }
    return y;
}

/* 3.3: `s` are the scales of the grid's row. */
static float row_grid(const uint8_t *w, const rule *form, size_t row, size_t cols, const float *x, const uint8_t *s,
                      const mpk_form_scales *scales)
{
    float y = 0.0f;
    for (size_t g = 0; g < scales->cols; g++) {
        const size_t first = g * MPK_GRID;
        const float part =
            row_plain(w + first * form->bits / 32 * 64, form, row, smaller(MPK_GRID, cols - first), x + first);
        y = __builtin_fmaf(part, mpk_scale_value(s, scales->encoding, g), y);
    }
    return y;
}

/* The scales of a row block. */
static const uint8_t *scales_of(const mpk_form_scales *s, const rule *form, size_t row_block)
{
    const size_t width = mpk_scale_bytes(s->encoding);
    if (form->grid) return s->at + (s->first_row + row_block * MPK_ROWS) / MPK_GRID * s->cols * width;
    return form->group == 0 ? NULL : s->at + row_block * s->cols * MPK_ROWS * width;
}

/* Columns are counted in whole tiles: inputs past the matrix's last one are zero and change nothing. */
static void gemv(const mpk_gemv *op, const mpk_form_scales *s, const rule *form)
{
    const size_t cols = op->tiles * (128 / form->bits);
    for (size_t r = 0; r < op->row_blocks; r++) {
        const uint8_t *w = op->weights + r * op->tiles * MPK_TILE_BYTES, *scales = scales_of(s, form, r);
        for (size_t t = 0; t < op->tokens; t++) {
            const float *x = (const float *)op->x[t];
            float *y = op->y[t] + r * MPK_ROWS;
            for (size_t row = 0; row < MPK_ROWS; row++)
                y[row] = mpk_canonical(form->grid    ? row_grid(w, form, row, cols, x, scales, s)
                                       : form->group ? row_groups(w, form, row, cols, x, scales, s)
                                                     : row_plain(w, form, row, cols, x));
        }
    }
}

/* ---- fix16 ---- */

/* Sum over columns [first, end) of a block of twice the weight times q: section 4.2. */
static int32_t dot_fix16(const uint8_t *tile, const rule *form, size_t row, const mpk_fix16_block *x, size_t first,
                         size_t end)
{
    int32_t sum = 0;
    for (size_t i = first; i < end; i++) {
        const size_t c = i / 8, h = i % 2, d = i % 8 / 2;
        const int32_t q = 256 * x->digit[c][h][0][d] + x->digit[c][h][1][d];
        sum += (int32_t)(2.0f * weight(tile, form, row, i)) * q;
    }
    return sum;
}

/* `groups` is the number of scales of the row, `s` those of the row block. */
static float row_fix16(const uint8_t *w, const rule *form, size_t row, const mpk_fix16_block *x, const uint8_t *s,
                       const mpk_form_scales *scales)
{
    const size_t per_block = MPK_BLOCK / form->group;
    mpk_nested_sum sum = {0};
    for (size_t g = 0; g < scales->cols; g++) {
        const size_t b = g / per_block, first = g % per_block * form->group;
        const float dot = (float)dot_fix16(w + b * MPK_TILE_BYTES, form, row, x + b, first, first + form->group);
        const float scale = mpk_scale_value(s, scales->encoding, g * MPK_ROWS + row);
        mpk_nested_add(&sum, dot * x[b].scale, scale);
        const bool last = g + 1 == scales->cols;
        if (last || (g + 1) % per_block == 0) mpk_nested_end(&sum, b, last);
    }
    return sum.sum;
}

static void gemv_fix16(const mpk_gemv *op, const mpk_form_scales *s, const rule *form)
{
    for (size_t r = 0; r < op->row_blocks; r++)
        for (size_t t = 0; t < op->tokens; t++)
            for (size_t row = 0; row < MPK_ROWS; row++)
                op->y[t][r * MPK_ROWS + row] =
                    mpk_canonical(row_fix16(op->weights + r * op->tiles * MPK_TILE_BYTES, form, row,
                                            (const mpk_fix16_block *)op->x[t], scales_of(s, form, r), s));
}

/* ---- the table ---- */

static const rule f16 = {mpk_value_f16, 16, 0, false}, e4m3 = {mpk_value_e4m3, 8, 0, false},
                  e4m3_grid = {mpk_value_e4m3, 8, 0, true}, e4m3_group = {mpk_value_e4m3, 8, 32, false},
                  int4 = {mpk_value_int4, 4, 32, false}, nvfp4 = {mpk_value_e2m1, 4, 16, false};

#define DEFINE(name, function, form)                               \
    static void name(const mpk_gemv *op, const mpk_form_scales *s) \
    {                                                              \
        function(op, s, &(form));                                  \
    }
DEFINE(scalar_f16, gemv, f16)
DEFINE(scalar_e4m3, gemv, e4m3)
DEFINE(scalar_e4m3_grid, gemv, e4m3_grid)
DEFINE(scalar_e4m3_group, gemv, e4m3_group)
DEFINE(scalar_int4, gemv, int4)
DEFINE(scalar_nvfp4, gemv, nvfp4)
DEFINE(scalar_int4_fix16, gemv_fix16, int4)
DEFINE(scalar_nvfp4_fix16, gemv_fix16, nvfp4)

mpk_form_table mpk_forms_scalar = {
    [MPK_FORM_F16] = scalar_f16,
    [MPK_FORM_E4M3] = scalar_e4m3,
    [MPK_FORM_E4M3_GRID] = scalar_e4m3_grid,
    [MPK_FORM_E4M3_GROUP] = scalar_e4m3_group,
    [MPK_FORM_INT4] = scalar_int4,
    [MPK_FORM_NVFP4] = scalar_nvfp4,
    [MPK_FORM_INT4_FIX16] = scalar_int4_fix16,
    [MPK_FORM_NVFP4_FIX16] = scalar_nvfp4_fix16,
};
