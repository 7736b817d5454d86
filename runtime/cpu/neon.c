/* AArch64 kernels: NEON with the dot product instructions of Armv8.2 (FEAT_DotProd). A tile line is four vectors of 4
 * rows by 32 bits, one 32-bit lane per row, called groups here.
 *
 * Vector instructions per 64-byte line (16 rows x 8 columns) for T tokens, counted from this source:
 *   fix16, T <= 2   4 loads, 16 decode (and, ushr, 2 tbl), 17 T (load of digits, 16 sdot by element), and per block
 *                   28 scale + 28 T (zeroes, shift, add, convert, multiply, fmla), a quarter of which falls on a line:
 *                   27 + 24 T; 51 for one token
 *   int8, T <= 3    4 loads, 16 decode, 9 T (load of inputs, 8 sdot by element), and per block 28 scale + 16 T (zeroes,
 *                   convert, multiply, fmla): 27 + 13 T; 40 for one token
 *   e2m1 in f32     4 loads, 24 + 32 tbl and shifts, 32 T fmla, 8 T scalar loads: about 60 + 40 T
 *   BF16            4 loads, 8 to widen, 8 T fmla, 2 T scalar loads (16 rows x 2 columns)
 *   F32             4 loads, 4 T fmla, T scalar loads (16 rows x 1 column)
 * They have run under emulation only; nothing here was tuned on hardware, and there is no software prefetch because no
 * measurement asked for one.
 *
 * BFDOT and BFMMLA are not used for BF16 weights: they add products in pairs, round in their own way (to odd, unless
 * FEAT_EBF16 is switched on) and flush subnormals, so they cannot give the bits of spec/numerics.md section 3.1. */
#if defined(__aarch64__)

#include "elementwise.h"
#include "int8.h"

#include <arm_neon.h>

#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))

#include "unroll.h"

/* Most tokens at once. 32 registers hold the sums of 16 rows up to two tokens, of 8 rows up to four, else of 4 rows. */
#define TOKENS 8
#define DENSE_TOKENS 8

MPK_DEFINE_ELEMENTWISE(neon, TARGET)

/* 2v of the sixteen E2M1 codes: sdot takes signed bytes on both sides, so the seeds of the blocks are not needed. */
static const int8_t twice_codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Bytes 2 and 3 of the sixteen values as F32; bytes 0 and 1 are zero. */
static const uint8_t value_byte2[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                        0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};
static const uint8_t value_byte3[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                        0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};

/* Where the F32 of column 2i + h of four rows lie in the pair (bytes 2, bytes 3) of the columns h, h + 2, h + 4, h + 6.
 * Index 255 gives 0. */
#define PICK(row, i) 255, 255, 4 * (row) + (i), 16 + 4 * (row) + (i)
#define PICK_COLUMN(i)                                 \
    {                                                  \
        PICK(0, i), PICK(1, i), PICK(2, i), PICK(3, i) \
    }
static const uint8_t pick[4][16] = {PICK_COLUMN(0), PICK_COLUMN(1), PICK_COLUMN(2), PICK_COLUMN(3)};

/* 2^(byte - 127) of V times four rows: byte 0 is the subnormal 2^-127, 255 is NaN. */
KERNEL void weight_scales(const size_t V, const uint8_t *s, float32x4_t *scale)
{
    UNROLL
    for (size_t v = 0; v < V; v++) {
        uint32_t four;
        memcpy(&four, s + v * 4, sizeof four);
        const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
        uint32x4_t bits = vshlq_n_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))), 23);
        const uint32x4_t nan = vceqq_u32(bits, vdupq_n_u32(0x7f800000u));
        bits = vmaxq_u32(bits, vdupq_n_u32(0x00400000u));
        scale[v] = vreinterpretq_f32_u32(vorrq_u32(bits, nan));
    }
}

KERNEL void store_rows(float *y, float32x4_t v)
{
    const uint32x4_t number = vceqq_f32(v, v);
    vst1q_f32(y, vbslq_f32(number, v, vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000u))));
}

/* Sums of T tokens and V groups, groups first. */
KERNEL void store_sums(const size_t T, const size_t V, const float32x4_t *sum, float *const *y, size_t y_offset)
{
    UNROLL
    for (size_t i = 0; i < T * V; i++) store_rows(y[i / V] + y_offset + i % V * 4, sum[i]);
}

/* Adds one block of 32 columns, V groups of 4 rows, to the chains of T tokens. */
KERNEL void fix16_block(const size_t T, const size_t V, const uint8_t *w, const uint8_t *s,
                        const mpk_fix16_block *const *x, size_t b, float32x4_t *segment)
{
    const int8x16_t lut = vld1q_s8(twice_codes);
    int32x4_t hi[TOKENS * 2], lo[TOKENS * 2];
    UNROLL
    for (size_t i = 0; i < T * V; i++) hi[i] = lo[i] = vdupq_n_s32(0);
    UNROLL
    for (size_t c = 0; c < 4; c++) {
        int8x16_t even[4], odd[4];
        UNROLL
        for (size_t v = 0; v < V; v++) {
            const uint8x16_t line = vld1q_u8(w + c * 64 + v * 16);
            even[v] = vqtbl1q_s8(lut, vandq_u8(line, vdupq_n_u8(15)));
            odd[v] = vqtbl1q_s8(lut, vshrq_n_u8(line, 4));
        }
        UNROLL
        for (size_t t = 0; t < T; t++) {
            const int8x16_t digits = vld1q_s8(x[t][b].digit[c][0][0]); /* hi and lo of even, hi and lo of odd columns */
            UNROLL
            for (size_t v = 0; v < V; v++) {
                const size_t i = t * V + v;
                hi[i] = vdotq_laneq_s32(hi[i], even[v], digits, 0);
                lo[i] = vdotq_laneq_s32(lo[i], even[v], digits, 1);
                hi[i] = vdotq_laneq_s32(hi[i], odd[v], digits, 2);
                lo[i] = vdotq_laneq_s32(lo[i], odd[v], digits, 3);
            }
        }
    }
    float32x4_t scale[4];
    weight_scales(V, s, scale);
    UNROLL
    for (size_t t = 0; t < T; t++) {
        UNROLL
        for (size_t v = 0; v < V; v++) {
            const size_t i = t * V + v;
            const float32x4_t exact = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(hi[i], 8), lo[i]));
            segment[i] = vfmaq_f32(segment[i], vmulq_n_f32(exact, x[t][b].scale), scale[v]);
        }
    }
}

/* The same with inputs of one digit, which is half the products. */
KERNEL void int8_block(const size_t T, const size_t V, const uint8_t *w, const uint8_t *s,
                       const mpk_int8_block *const *x, size_t b, float32x4_t *segment)
{
    const int8x16_t lut = vld1q_s8(twice_codes);
    int32x4_t sum[TOKENS * 2];
    UNROLL
    for (size_t i = 0; i < T * V; i++) sum[i] = vdupq_n_s32(0);
    UNROLL
    for (size_t c = 0; c < 4; c++) {
        int8x16_t even[4], odd[4];
        UNROLL
        for (size_t v = 0; v < V; v++) {
            const uint8x16_t line = vld1q_u8(w + c * 64 + v * 16);
            even[v] = vqtbl1q_s8(lut, vandq_u8(line, vdupq_n_u8(15)));
            odd[v] = vqtbl1q_s8(lut, vshrq_n_u8(line, 4));
        }
        UNROLL
        for (size_t t = 0; t < T; t++) {
            const int8x8_t q = vld1_s8(x[t][b].q[c][0]); /* even, then odd columns */
            UNROLL
            for (size_t v = 0; v < V; v++) {
                sum[t * V + v] = vdotq_lane_s32(sum[t * V + v], even[v], q, 0);
                sum[t * V + v] = vdotq_lane_s32(sum[t * V + v], odd[v], q, 1);
            }
        }
    }
    float32x4_t scale[4];
    weight_scales(V, s, scale);
    UNROLL
    for (size_t i = 0; i < T * V; i++) {
        const float32x4_t exact = vcvtq_f32_s32(sum[i]);
        segment[i] = vfmaq_f32(segment[i], vmulq_n_f32(exact, x[i / V][b].scale), scale[i % V]);
    }
}

/* V groups for T tokens with inputs of one or two digits: FMA chains over 4 blocks, those summed by fours, those
 * summed.
 */
KERNEL void integer_part(const size_t T, const size_t V, const size_t digits, const uint8_t *w, const uint8_t *s,
                         size_t tiles, const void *const *x, float *const *y, size_t y_offset)
{
    float32x4_t sum[TOKENS * 2], group[TOKENS * 2], segment[TOKENS * 2];
    for (size_t i = 0; i < T * V; i++) sum[i] = vdupq_n_f32(0);
    for (size_t b = 0; b < tiles;) {
        const size_t group_end = tiles - b > 16 ? b + 16 : tiles;
        for (size_t i = 0; i < T * V; i++) group[i] = vdupq_n_f32(0);
        while (b < group_end) {
            const size_t segment_end = group_end - b > 4 ? b + 4 : group_end;
            for (size_t i = 0; i < T * V; i++) segment[i] = vdupq_n_f32(0);
            for (; b < segment_end; b++) {
                const uint8_t *tile = w + b * MPK_TILE_BYTES, *tile_scales = s + b * MPK_ROWS;
                if (digits == 2)
                    fix16_block(T, V, tile, tile_scales, (const mpk_fix16_block *const *)x, b, segment);
                else
                    int8_block(T, V, tile, tile_scales, (const mpk_int8_block *const *)x, b, segment);
            }
            for (size_t i = 0; i < T * V; i++) group[i] = vaddq_f32(group[i], segment[i]);
        }
        for (size_t i = 0; i < T * V; i++) sum[i] = vaddq_f32(sum[i], group[i]);
    }
    store_sums(T, V, sum, y, y_offset);
}

KERNEL void fix16_rows(const size_t T, const uint8_t *w, const uint8_t *s, size_t tiles,
                       const mpk_fix16_block *const *x, float *const *y, size_t y_offset)
{
    const size_t V = T <= 2 ? 4 : T <= 4 ? 2 : 1;
    for (size_t g = 0; g < 4; g += V)
        integer_part(T, V, 2, w + g * 16, s + g * 4, tiles, (const void *const *)x, y, y_offset + g * 4);
}

/* Half the sums leave room for more rows. */
KERNEL void int8_rows(const size_t T, const mpk_gemv *op, size_t r, size_t t)
{
    const size_t V = T <= 3 ? 4 : T <= 6 ? 2 : 1;
    const uint8_t *w = op->weights + r * op->tiles * MPK_TILE_BYTES, *s = op->scales + r * op->tiles * MPK_ROWS;
    for (size_t g = 0; g < 4; g += V)
        integer_part(T, V, 1, w + g * 16, s + g * 4, op->tiles, op->x + t, op->y + t, r * MPK_ROWS + g * 4);
}

/* F32 inputs: N blocks next to each other, because one chain of FMAs waits for itself. */
KERNEL void e2m1_blocks(const size_t T, const size_t V, const size_t N, const uint8_t *w, const uint8_t *s,
                        const float *const *x, size_t b, float32x4_t *sum)
{
    const uint8x16_t byte2 = vld1q_u8(value_byte2), byte3 = vld1q_u8(value_byte3);
    float32x4_t chain[TOKENS * 2];
    for (size_t i = 0; i < T * V * N; i++) chain[i] = vdupq_n_f32(0);
    for (size_t c = 0; c < 4; c++) UNROLL
    for (size_t i = 0; i < N * V; i++) {
        const uint8x16_t line = vld1q_u8(w + (b + i / V) * MPK_TILE_BYTES + c * 64 + i % V * 16);
        const uint8x16_t code[2] = {vandq_u8(line, vdupq_n_u8(15)), vshrq_n_u8(line, 4)};
        uint8x16x2_t bytes[2];
        UNROLL
        for (size_t h = 0; h < 2; h++) {
            bytes[h].val[0] = vqtbl1q_u8(byte2, code[h]);
            bytes[h].val[1] = vqtbl1q_u8(byte3, code[h]);
        }
        UNROLL
        for (size_t j = 0; j < 8; j++) {
            const float32x4_t value = vreinterpretq_f32_u8(vqtbl2q_u8(bytes[j % 2], vld1q_u8(pick[j / 2])));
            UNROLL
            for (size_t t = 0; t < T; t++)
                chain[t * N * V + i] =
                    vfmaq_n_f32(chain[t * N * V + i], value, x[t][(b + i / V) * MPK_BLOCK + c * 8 + j]);
        }
    }
    UNROLL
    for (size_t n = 0; n < N; n++) {
        float32x4_t scale[4];
        weight_scales(V, s + (b + n) * MPK_ROWS, scale);
        UNROLL
        for (size_t t = 0; t < T; t++) {
            UNROLL
            for (size_t v = 0; v < V; v++)
                sum[t * V + v] = vfmaq_f32(sum[t * V + v], chain[(t * N + n) * V + v], scale[v]);
        }
    }
}

/* V groups for T tokens, so many blocks at once that sixteen registers hold the chains. */
KERNEL void e2m1_part(const size_t T, const size_t V, const uint8_t *w, const uint8_t *s, size_t tiles,
                      const float *const *x, float *const *y, size_t y_offset)
{
    const size_t N = TOKENS * 2 / (T * V);
    float32x4_t sum[TOKENS * 2];
    for (size_t i = 0; i < T * V; i++) sum[i] = vdupq_n_f32(0);
    size_t b = 0;
    for (; tiles - b >= N; b += N) e2m1_blocks(T, V, N, w, s, x, b, sum);
    for (; b < tiles; b++) e2m1_blocks(T, V, 1, w, s, x, b, sum);
    store_sums(T, V, sum, y, y_offset);
}

KERNEL void e2m1_rows(const size_t T, const uint8_t *w, const uint8_t *s, size_t tiles, const float *const *x,
                      float *const *y, size_t y_offset)
{
    const size_t V = T <= 4 ? 4 : 2;
    for (size_t g = 0; g < 4; g += V) e2m1_part(T, V, w + g * 16, s + g * 4, tiles, x, y, y_offset + g * 4);
}

/* `lines` lines of N blocks of BF16 or F32 weights (W columns in a word) from column `first` on. */
KERNEL void dense_blocks(const size_t T, const size_t V, const size_t N, const size_t W, const uint8_t *w,
                         const float *const *x, size_t first, size_t lines, float32x4_t *sum)
{
    const size_t block_bytes = MPK_BLOCK / W * 64;
    float32x4_t chain[TOKENS * 2];
    for (size_t i = 0; i < T * V * N; i++) chain[i] = vdupq_n_f32(0);
    for (size_t c = 0; c < lines; c++) UNROLL
    for (size_t i = 0; i < N * V; i++) {
        const uint32x4_t line = vreinterpretq_u32_u8(vld1q_u8(w + i / V * block_bytes + c * 64 + i % V * 16));
        UNROLL
        for (size_t h = 0; h < W; h++) {
            const uint32x4_t bits = W == 1   ? line
                                    : h == 0 ? vshlq_n_u32(line, 16)
                                             : vandq_u32(line, vdupq_n_u32(0xffff0000u));
            UNROLL
            for (size_t t = 0; t < T; t++)
                chain[t * N * V + i] = vfmaq_n_f32(chain[t * N * V + i], vreinterpretq_f32_u32(bits),
                                                   x[t][first + i / V * MPK_BLOCK + c * W + h]);
        }
    }
    UNROLL
    for (size_t n = 0; n < N; n++) UNROLL
    for (size_t i = 0; i < T * V; i++) sum[i] = vaddq_f32(sum[i], chain[(i / V * N + n) * V + i % V]);
}

KERNEL void dense_part(const size_t T, const size_t V, const size_t W, const uint8_t *w, size_t tiles,
                       const float *const *x, float *const *y, size_t y_offset)
{
    const size_t N = TOKENS * 2 / (T * V), columns = tiles * 4 * W, lines = MPK_BLOCK / W;
    float32x4_t sum[TOKENS * 2];
    for (size_t i = 0; i < T * V; i++) sum[i] = vdupq_n_f32(0);
    size_t c = 0;
    for (; columns - c >= N * MPK_BLOCK; c += N * MPK_BLOCK) dense_blocks(T, V, N, W, w + c / W * 64, x, c, lines, sum);
    for (; columns - c >= MPK_BLOCK; c += MPK_BLOCK) dense_blocks(T, V, 1, W, w + c / W * 64, x, c, lines, sum);
    if (c < columns) dense_blocks(T, V, 1, W, w + c / W * 64, x, c, (columns - c) / W, sum);
    store_sums(T, V, sum, y, y_offset);
}

KERNEL void dense_rows(const size_t T, const size_t W, const uint8_t *w, size_t tiles, const float *const *x,
                       float *const *y, size_t y_offset)
{
    const size_t V = T <= 4 ? 4 : 2;
    for (size_t g = 0; g < 4; g += V) dense_part(T, V, W, w + g * 16, tiles, x, y, y_offset + g * 4);
}

#include "rows.h"

#define INT8_ROWS(T)                                                         \
    TARGET static void int8_rows_##T(const mpk_gemv *op, size_t r, size_t t) \
    {                                                                        \
        int8_rows(T, op, r, t);                                              \
    }
ALL_TOKENS(INT8_ROWS)

static rows_function *const int8_table[TOKENS + 1] = TABLE(int8_rows);

static void neon_gemv_int8(const mpk_gemv *op)
{
    gemv(op, int8_table, TOKENS);
}

TARGET static void neon_quantize_int8(const float *x, mpk_int8_block *out, size_t blocks)
{
    mpk_body_quantize_int8(x, out, blocks);
}

/* An entry that this family lacks is taken from the scalar one by naming its function here. */
const mpk_kernels mpk_kernels_neon = {.name = "neon",
                                      .gemv_int8 = neon_gemv_int8,
                                      .quantize_int8 = neon_quantize_int8,
                                      MPK_ROWS_FIELDS,
                                      MPK_ELEMENTWISE_FIELDS(neon)};
#else
typedef int mpk_neon_needs_aarch64;
#endif
