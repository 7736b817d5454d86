/* Portable kernels in plain C: the readable form of the rules, and what runs on processors without a family of their
 * own. */
#include "elementwise.h"
#include "int8.h"

#include "../../format/bytes.h"
#include "../../format/element.h"

MPK_DEFINE_ELEMENTWISE(scalar, )

void mpk_int8_quantize_scalar(const float *x, mpk_int8_block *out, size_t blocks)
{
    mpk_body_quantize_int8(x, out, blocks);
}

/* 2v of the sixteen E2M1 codes. */
static const int8_t twice_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Exact dot product of one row of a tile with a block, in units of the block's scale. */
static int32_t dot_fix16(const uint8_t *tile, size_t row, const mpk_fix16_block *x)
{
    int32_t hi = 0, lo = 0;
    for (size_t c = 0; c < 4; c++) {
        uint32_t word = mpk_load32(tile + c * 64 + row * 4);
        for (size_t j = 0; j < 8; j++) {
            int32_t v = twice_e2m1[(word >> (4 * j)) & 15];
            hi += v * x->digit[c][j & 1][0][j >> 1];
            lo += v * x->digit[c][j & 1][1][j >> 1];
        }
    }
    return 256 * hi + lo;
}

static void row_block_fix16(const uint8_t *w, const uint8_t *s, size_t tiles, const mpk_fix16_block *x, float *y)
{
    for (size_t row = 0; row < MPK_ROWS; row++) {
        mpk_nested_sum sum = {0};
        for (size_t b = 0; b < tiles; b++) {
            mpk_nested_add(&sum, (float)dot_fix16(w + b * MPK_TILE_BYTES, row, x + b) * x[b].scale,
                           mpk_value_e8m0(s[b * MPK_ROWS + row]));
            mpk_nested_end(&sum, b, b + 1 == tiles);
        }
        y[row] = mpk_canonical(sum.sum);
    }
}

/* The same with 8-bit inputs. */
static int32_t dot_int8(const uint8_t *tile, size_t row, const mpk_int8_block *x)
{
    int32_t sum = 0;
    for (size_t c = 0; c < 4; c++) {
        uint32_t word = mpk_load32(tile + c * 64 + row * 4);
        for (size_t j = 0; j < 8; j++) sum += twice_e2m1[(word >> (4 * j)) & 15] * x->q[c][j & 1][j >> 1];
    }
    return sum;
}

static void row_block_int8(const uint8_t *w, const uint8_t *s, size_t tiles, const mpk_int8_block *x, float *y)
{
    for (size_t row = 0; row < MPK_ROWS; row++) {
        mpk_nested_sum sum = {0};
        for (size_t b = 0; b < tiles; b++) {
            mpk_nested_add(&sum, (float)dot_int8(w + b * MPK_TILE_BYTES, row, x + b) * x[b].scale,
                           mpk_value_e8m0(s[b * MPK_ROWS + row]));
            mpk_nested_end(&sum, b, b + 1 == tiles);
        }
        y[row] = mpk_canonical(sum.sum);
    }
}

static void row_block_e2m1(const uint8_t *w, const uint8_t *s, size_t tiles, const float *x, float *y)
{
    for (size_t row = 0; row < MPK_ROWS; row++) {
        float sum = 0.0f;
        for (size_t b = 0; b < tiles; b++) {
            float chain = 0.0f;
            for (size_t c = 0; c < MPK_BLOCK; c++) {
                uint32_t word = mpk_load32(w + b * MPK_TILE_BYTES + c / 8 * 64 + row * 4);
                chain = __builtin_fmaf(mpk_value_e2m1((word >> (4 * (c % 8))) & 15), x[b * MPK_BLOCK + c], chain);
            }
            sum = __builtin_fmaf(chain, mpk_value_e8m0(s[b * MPK_ROWS + row]), sum);
        }
        y[row] = mpk_canonical(sum);
    }
}

/* Rows of 32-bit words, `per_word` columns in each (2: BF16, 1: F32). */
static void row_block_dense(const uint8_t *w, size_t tiles, const float *x, size_t per_word, float *y)
{
    const size_t columns = tiles * 4 * per_word;
    for (size_t row = 0; row < MPK_ROWS; row++) {
        float sum = 0.0f;
        for (size_t first = 0; first < columns; first += MPK_BLOCK) {
            const size_t count = columns - first < MPK_BLOCK ? columns - first : MPK_BLOCK;
            float chain = 0.0f;
            for (size_t c = first; c < first + count; c++) {
                uint32_t word = mpk_load32(w + c / per_word * 64 + row * 4);
                if (per_word == 2) word = c % 2 == 0 ? word << 16 : word & 0xffff0000u;
                chain = __builtin_fmaf(mpk_float(word), x[c], chain);
            }
            sum += chain;
        }
        y[row] = mpk_canonical(sum);
    }
}

static void scalar_gemv_fix16(const mpk_gemv *op)
{
    for (size_t r = 0; r < op->row_blocks; r++)
        for (size_t t = 0; t < op->tokens; t++)
            row_block_fix16(op->weights + r * op->tiles * MPK_TILE_BYTES, op->scales + r * op->tiles * MPK_ROWS,
                            op->tiles, (const mpk_fix16_block *)op->x[t], op->y[t] + r * MPK_ROWS);
}

void mpk_int8_gemv_scalar(const mpk_gemv *op)
{
    for (size_t r = 0; r < op->row_blocks; r++)
        for (size_t t = 0; t < op->tokens; t++)
            row_block_int8(op->weights + r * op->tiles * MPK_TILE_BYTES, op->scales + r * op->tiles * MPK_ROWS,
                           op->tiles, (const mpk_int8_block *)op->x[t], op->y[t] + r * MPK_ROWS);
}

static void scalar_gemv_e2m1(const mpk_gemv *op)
{
    for (size_t r = 0; r < op->row_blocks; r++)
        for (size_t t = 0; t < op->tokens; t++)
            row_block_e2m1(op->weights + r * op->tiles * MPK_TILE_BYTES, op->scales + r * op->tiles * MPK_ROWS,
                           op->tiles, (const float *)op->x[t], op->y[t] + r * MPK_ROWS);
}

static void gemv_dense(const mpk_gemv *op, size_t per_word)
{
    for (size_t r = 0; r < op->row_blocks; r++)
        for (size_t t = 0; t < op->tokens; t++)
            row_block_dense(op->weights + r * op->tiles * MPK_TILE_BYTES, op->tiles, (const float *)op->x[t], per_word,
                            op->y[t] + r * MPK_ROWS);
}

static void scalar_gemv_bf16(const mpk_gemv *op)
{
    gemv_dense(op, 2);
}

static void scalar_gemv_f32(const mpk_gemv *op)
{
    gemv_dense(op, 1);
}

const mpk_kernels mpk_kernels_scalar = {.name = "scalar",
                                        .gemv_fix16 = scalar_gemv_fix16,
                                        .gemv_e2m1 = scalar_gemv_e2m1,
                                        .gemv_int8 = mpk_int8_gemv_scalar,
                                        .quantize_int8 = mpk_int8_quantize_scalar,
                                        .gemv_bf16 = scalar_gemv_bf16,
                                        .gemv_f32 = scalar_gemv_f32,
                                        MPK_ELEMENTWISE_FIELDS(scalar)};
