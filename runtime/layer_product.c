/* Products of matrices in panel order: the one place where the kernel for a storage form is chosen. */
#include "layer_job.h"

#include "cpu/elementary.h"
#include "cpu/forms.h"

static size_t tile_columns(moepack_encoding encoding)
{
    switch (encoding) {
    case MOEPACK_ENC_E2M1:
    case MOEPACK_ENC_INT4_OFFSET:
        return 32;
    case MOEPACK_ENC_E4M3:
        return 16;
    case MOEPACK_ENC_F32:
        return 4;
    default:
        return 8;
    }
}

mpk_input mpk_input_of(const mpk_job *j, const mpk_matrix_view *m)
{
    if (!j->round || (m->encoding != MOEPACK_ENC_E2M1 && m->encoding != MOEPACK_ENC_INT4_OFFSET)) return MPK_INPUT_F32;
    const bool mxfp4 = m->encoding == MOEPACK_ENC_E2M1 && m->group_cols != 16;
    return j->int8 && mxfp4 ? MPK_INPUT_INT8 : MPK_INPUT_FIX16;
}

/* Storage forms of forms.h; MPK_FORM_COUNT: those that have kernels in every family. */
static mpk_form form_of(const mpk_matrix_view *m, bool fix16)
{
    switch (m->encoding) {
    case MOEPACK_ENC_F16:
        return MPK_FORM_F16;
    case MOEPACK_ENC_E4M3:
        return m->scale_kind == MPK_SCALE_GRID     ? MPK_FORM_E4M3_GRID
               : m->scale_kind == MPK_SCALE_GROUPS ? MPK_FORM_E4M3_GROUP
                                                   : MPK_FORM_E4M3;
    case MOEPACK_ENC_INT4_OFFSET:
        return fix16 ? MPK_FORM_INT4_FIX16 : MPK_FORM_INT4;
    case MOEPACK_ENC_E2M1:
        if (m->group_cols == 16) return fix16 ? MPK_FORM_NVFP4_FIX16 : MPK_FORM_NVFP4;
        return MPK_FORM_COUNT;
    default:
        return MPK_FORM_COUNT;
    }
}

static size_t scales_in_row(const mpk_matrix_view *m)
{
    const size_t columns = m->scale_kind == MPK_SCALE_GRID ? MPK_GRID : m->group_cols;
    return columns == 0 ? 0 : ((size_t)m->cols + columns - 1) / columns;
}

/* Scales of a group's 16 rows stand side by side; the others are found by row. */
static const uint8_t *first_scale(const mpk_matrix_view *m, size_t row_block)
{
    if (m->scale_kind != MPK_SCALE_GROUPS) return m->scales;
    return m->scales + row_block * scales_in_row(m) * MPK_ROWS * mpk_scale_bytes(m->scale_encoding);
}

/* Scales of finished rows: spec/numerics.md 3.4. */
static void scale_rows(const mpk_matrix_view *m, size_t first, size_t count, float *const *y, size_t tokens)
{
    const bool row = m->scale_kind == MPK_SCALE_ROWS, whole = m->scale_kind == MPK_SCALE_ONE;
    const float global = m->global != NULL ? mpk_scale_value(m->global, MOEPACK_ENC_F32, 0) : 1.0f;
    for (size_t r = 0; r < count * MPK_ROWS; r++) {
        const size_t number = first * MPK_ROWS + r;
        if (number >= m->rows) break;
        const float scale = row     ? mpk_scale_value(m->scales, m->scale_encoding, number)
                            : whole ? mpk_scale_value(m->scales, m->scale_encoding, 0)
                                    : 1.0f;
        for (size_t t = 0; t < tokens; t++) {
            float v = y[t][r];
            if (row || whole) v = __builtin_fmaf(v, scale, 0.0f);
            if (m->global != NULL) v = m->global_divides ? v / global + 0.0f : __builtin_fmaf(v, global, 0.0f);
            y[t][r] = mpk_canonical(v);
        }
    }
}

/* y[i] for `count` row blocks from `first` on, for tokens with input rows x[0 .. tokens). Rows that the matrix does not
 * have are anything. */
void mpk_multiply(const mpk_job *j, const mpk_matrix_view *m, mpk_input input, size_t first, size_t count,
                  const void *const *x, float *const *y, size_t tokens)
{
    const mpk_kernels *k = j->kernels;
    const size_t columns = tile_columns(m->encoding), tiles = ((size_t)m->cols + columns - 1) / columns;
    const mpk_gemv op = {.weights = (const uint8_t *)m->weights + first * tiles * MPK_TILE_BYTES,
                         .scales = m->scales != NULL ? first_scale(m, first) : NULL,
                         .tiles = tiles,
                         .row_blocks = count,
                         .tokens = tokens,
                         .x = x,
                         .y = y};
    const mpk_form form = form_of(m, input == MPK_INPUT_FIX16);
    if (form < MPK_FORM_COUNT) {
        const mpk_form_scales scales = {op.scales, m->scale_encoding, scales_in_row(m), first * MPK_ROWS};
        (k->forms != NULL ? k->forms : mpk_forms_scalar)[form](&op, &scales);
    } else if (m->encoding == MOEPACK_ENC_BF16)
        k->gemv_bf16(&op);
    else if (m->encoding == MOEPACK_ENC_F32)
        k->gemv_f32(&op);
    else if (input == MPK_INPUT_INT8)
        k->gemv_int8(&op);
    else if (input == MPK_INPUT_FIX16)
        k->gemv_fix16(&op);
    else
        k->gemv_e2m1(&op);
    if (m->scale_kind == MPK_SCALE_ROWS || m->scale_kind == MPK_SCALE_ONE || m->global != NULL)
        scale_rows(m, first, count, y, tokens);
}

/* The same into rows of an array, MPK_CALL_TOKENS at a time. */
void mpk_multiply_rows(const mpk_job *j, const mpk_matrix_view *m, size_t first, size_t count, const void *const *x,
                       float *y, size_t stride, size_t tokens)
{
    float *rows[MPK_CALL_TOKENS];
    for (size_t t = 0; t < tokens; t += MPK_CALL_TOKENS) {
        const size_t n = tokens - t < MPK_CALL_TOKENS ? tokens - t : MPK_CALL_TOKENS;
        for (size_t i = 0; i < n; i++) rows[i] = y + (t + i) * stride;
        mpk_multiply(j, m, MPK_INPUT_F32, first, count, x + t, rows, n);
    }
}

size_t mpk_row_block_bytes(const mpk_matrix_view *m)
{
    const size_t columns = tile_columns(m->encoding), tiles = ((size_t)m->cols + columns - 1) / columns;
    const size_t groups = m->scale_kind == MPK_SCALE_GROUPS ? scales_in_row(m) : 0;
    return tiles * MPK_TILE_BYTES + groups * MPK_ROWS * mpk_scale_bytes(m->scale_encoding);
}
