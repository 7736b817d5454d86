/* Products of matrices in panel order: the one place where the kernel for a storage form is chosen. */
#include "layer_job.h"

static size_t tile_columns(moepack_encoding encoding)
{
    return encoding == MOEPACK_ENC_E2M1 ? 32 : encoding == MOEPACK_ENC_BF16 ? 8 : 4;
}

bool mpk_uses_fix16(const mpk_job *j, const mpk_matrix_view *m)
{
    return j->round && m->encoding == MOEPACK_ENC_E2M1;
}

/* y[i] for `count` row blocks from `first` on, for tokens with input rows x[0 .. tokens). */
void mpk_multiply(const mpk_job *j, const mpk_matrix_view *m, size_t first, size_t count, const void *const *x,
                  float *const *y, size_t tokens)
{
    const mpk_kernels *k = j->kernels;
    const size_t columns = tile_columns(m->encoding), tiles = ((size_t)m->cols + columns - 1) / columns;
    const mpk_gemv op = {.weights = (const uint8_t *)m->weights + first * tiles * MPK_TILE_BYTES,
                         .scales = m->scales != NULL ? m->scales + first * tiles * MPK_ROWS : NULL,
                         .tiles = tiles,
                         .row_blocks = count,
                         .tokens = tokens,
                         .x = x,
                         .y = y};
    if (m->encoding == MOEPACK_ENC_BF16)
        k->gemv_bf16(&op);
    else if (m->encoding == MOEPACK_ENC_F32)
        k->gemv_f32(&op);
    else if (j->round)
        k->gemv_fix16(&op);
    else
        k->gemv_e2m1(&op);
}

/* The same into rows of an array, MPK_CALL_TOKENS at a time. */
void mpk_multiply_rows(const mpk_job *j, const mpk_matrix_view *m, size_t first, size_t count, const void *const *x,
                       float *y, size_t stride, size_t tokens)
{
    float *rows[MPK_CALL_TOKENS];
    for (size_t t = 0; t < tokens; t += MPK_CALL_TOKENS) {
        const size_t n = tokens - t < MPK_CALL_TOKENS ? tokens - t : MPK_CALL_TOKENS;
        for (size_t i = 0; i < n; i++) rows[i] = y + (t + i) * stride;
        mpk_multiply(j, m, first, count, x + t, rows, n);
    }
}

size_t mpk_row_block_bytes(const mpk_matrix_view *m)
{
    const size_t columns = tile_columns(m->encoding), tiles = ((size_t)m->cols + columns - 1) / columns;
    return tiles * (m->scales != NULL ? MPK_TILE_BYTES + MPK_ROWS : MPK_TILE_BYTES);
}
