/* The storage forms of forms.h as loops over the 16 rows of a line, which compilers turn into vectors of whatever width
 * TARGET has. For families without kernels written by hand. Include after TARGET and unroll.h. */
#ifndef MOEPACK_CPU_FORMS_LANES_H
#define MOEPACK_CPU_FORMS_LANES_H

#include "elementary.h"
#include "forms.h"

#define LANE_TOKENS 4

/* The vectors below are passed between functions of one file alone, so that nobody else depends on how. Compilers warn
 * at the end of the file, so there is no pop. */
#pragma GCC diagnostic ignored "-Wpsabi"

typedef struct lane_form {
    moepack_encoding encoding;
    unsigned bits;
    size_t group; /* columns that share a scale of their row; 0: none do */
    bool grid;
} lane_form;

/* Half a line: 8 rows. Operators of the compiler's own vectors need no instruction set; multiply-add does. */
typedef float lane_float __attribute__((vector_size(32)));
typedef uint32_t lane_bits __attribute__((vector_size(32)));
typedef int32_t lane_int __attribute__((vector_size(32)));
#define LANES 8
#define HALVES 2

KERNEL lane_float lane_all(float v)
{
    return (lane_float){v, v, v, v, v, v, v, v};
}

KERNEL lane_float lane_fma(lane_float a, lane_float b, lane_float c)
{
#ifdef LANE_FMA
    return LANE_FMA(a, b, c);
#else
    for (size_t r = 0; r < LANES; r++) c[r] = __builtin_fmaf(a[r], b[r], c[r]);
    return c;
#endif
}

KERNEL lane_float lane_load(const float *p)
{
    lane_float v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Column h of the words of half a line, exactly. Fields of a code are moved to those of an F32, whose value then is off
 * by a power of two: so subnormal codes need no care. */
KERNEL lane_float lane_values(const lane_form f, lane_bits words, unsigned h)
{
    const lane_bits code = words >> (h * f.bits) & ((1u << f.bits) - 1);
    if (f.encoding == MOEPACK_ENC_E4M3) {
        const lane_float value = (lane_float)((code & 0x80u) << 24 | (code & 0x7fu) << 20) * 0x1p120f;
        const lane_bits nan = (lane_bits)((code & 0x7fu) == 0x7fu);
        return (lane_float)((lane_bits)value | (nan & 0x7fc00000u));
    }
    if (f.encoding == MOEPACK_ENC_INT4_OFFSET) return __builtin_convertvector((lane_int)code - 8, lane_float);
    if (f.encoding == MOEPACK_ENC_E2M1) return (lane_float)((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
    const lane_bits rest = (code & 0x7fffu) << 13, sign = (code & 0x8000u) << 16;
    const lane_bits special = (lane_bits)((code & 0x7c00u) == 0x7c00u);
    const lane_bits finite = (lane_bits)((lane_float)rest * 0x1p112f);
    return (lane_float)(sign | (special & (rest | 0x7f800000u)) | (~special & finite));
}

KERNEL void lane_scales(const uint8_t *s, moepack_encoding encoding, float *v)
{
    if (encoding == MOEPACK_ENC_BF16) {
        uint16_t half[MPK_ROWS];
        memcpy(half, s, sizeof half);
        for (size_t r = 0; r < MPK_ROWS; r++) v[r] = mpk_float((uint32_t)half[r] << 16);
        return;
    }
    for (size_t r = 0; r < MPK_ROWS; r++) v[r] = mpk_scale_value(s, encoding, r);
}

/* Chains over columns [from, to), whole words. */
KERNEL void lane_chains(const size_t T, const lane_form f, const uint8_t *w, const float *const *x, size_t from,
                        size_t to, lane_float chain[][HALVES])
{
    const unsigned per_word = 32 / f.bits;
    UNROLL
    for (size_t t = 0; t < T; t++) chain[t][0] = chain[t][1] = lane_all(0.0f);
    for (size_t c = from; c < to; c += per_word) {
        lane_bits words[HALVES];
        memcpy(words, w + c / per_word * 64, sizeof words);
        UNROLL
        for (unsigned h = 0; h < per_word; h++) {
            const lane_float low = lane_values(f, words[0], h), high = lane_values(f, words[1], h);
            UNROLL
            for (size_t t = 0; t < T; t++) {
                const lane_float v = lane_all(x[t][c + h]);
                chain[t][0] = lane_fma(low, v, chain[t][0]);
                chain[t][1] = lane_fma(high, v, chain[t][1]);
            }
        }
    }
}

KERNEL void lane_store(float *y, lane_float v)
{
    const lane_bits nan = (lane_bits)(v != v), out = (nan & 0x7fc00000u) | (~nan & (lane_bits)v);
    memcpy(y, &out, sizeof out);
}

KERNEL void lane_rows(const size_t T, const lane_form f, const mpk_gemv *op, const mpk_form_scales *s, size_t r0,
                      size_t t0)
{
    const size_t columns = op->tiles * (128 / f.bits), step = f.group ? f.group : MPK_BLOCK;
    const size_t width = mpk_scale_bytes(s->encoding);
    const uint8_t *w = op->weights + r0 * op->tiles * MPK_TILE_BYTES, *scales = NULL;
    const float *const *x = (const float *const *)op->x + t0;
    lane_float sum[LANE_TOKENS][HALVES], part[LANE_TOKENS][HALVES], chain[LANE_TOKENS][HALVES];
    if (f.grid) scales = s->at + (s->first_row + r0 * MPK_ROWS) / MPK_GRID * s->cols * width;
    if (f.group) scales = s->at + r0 * s->cols * MPK_ROWS * width;
    for (size_t t = 0; t < T; t++) sum[t][0] = sum[t][1] = part[t][0] = part[t][1] = lane_all(0.0f);
    for (size_t c = 0, g = 0; c < columns && (f.group == 0 || g < s->cols); c += step, g++) {
        const size_t end = columns - c < step ? columns : c + step;
        float scale[MPK_ROWS];
        lane_chains(T, f, w, x, c, end, chain);
        if (f.group) lane_scales(scales + g * MPK_ROWS * width, s->encoding, scale);
        const bool ends = f.grid && (end % MPK_GRID == 0 || end == columns);
        const lane_float square = lane_all(ends ? mpk_scale_value(scales, s->encoding, c / MPK_GRID) : 0.0f);
        UNROLL
        for (size_t i = 0; i < T * HALVES; i++) {
            const size_t t = i / HALVES, k = i % HALVES;
            if (f.group) {
                sum[t][k] = lane_fma(chain[t][k], lane_load(scale + k * LANES), sum[t][k]);
            } else if (f.grid) {
                part[t][k] = part[t][k] + chain[t][k];
                if (!ends) continue;
                sum[t][k] = lane_fma(part[t][k], square, sum[t][k]);
                part[t][k] = lane_all(0.0f);
            } else {
                sum[t][k] = sum[t][k] + chain[t][k];
            }
        }
    }
    for (size_t i = 0; i < T * HALVES; i++)
        lane_store(op->y[t0 + i / HALVES] + r0 * MPK_ROWS + i % HALVES * LANES, sum[i / HALVES][i % HALVES]);
}

/* Exact sums of twice the weight times q over columns [from, to) of a block: F32 holds all partial sums, too. */
KERNEL void lane_fix16_rows(const size_t T, const lane_form f, const mpk_gemv *op, const mpk_form_scales *s, size_t r0,
                            size_t t0)
{
    const size_t width = mpk_scale_bytes(s->encoding) * MPK_ROWS, per_block = MPK_BLOCK / f.group;
    const uint8_t *w = op->weights + r0 * op->tiles * MPK_TILE_BYTES, *scales = s->at + r0 * s->cols * width;
    const mpk_fix16_block *const *x = (const mpk_fix16_block *const *)op->x + t0;
    lane_float sum[LANE_TOKENS][HALVES], group[LANE_TOKENS][HALVES], segment[LANE_TOKENS][HALVES];
    for (size_t t = 0; t < T; t++)
        for (size_t k = 0; k < HALVES; k++) sum[t][k] = group[t][k] = segment[t][k] = lane_all(0.0f);
    for (size_t g = 0; g < s->cols; g++) {
        const size_t b = g / per_block, from = g % per_block * f.group;
        const bool last = g + 1 == s->cols, ends = last || (g + 1) % per_block == 0;
        float q[LANE_TOKENS][MPK_BLOCK], scale[MPK_ROWS];
        const float *rows[LANE_TOKENS];
        lane_float dot[LANE_TOKENS][HALVES];
        for (size_t t = 0; t < T; t++) {
            for (size_t i = from; i < from + f.group; i++) {
                const int8_t(*digit)[4] = x[t][b].digit[i / 8][i % 2];
                q[t][i] = (float)(2 * (256 * digit[0][i % 8 / 2] + digit[1][i % 8 / 2]));
            }
            rows[t] = q[t];
        }
        lane_chains(T, f, w + b * MPK_TILE_BYTES, rows, from, from + f.group, dot);
        lane_scales(scales + g * width, s->encoding, scale);
        UNROLL
        for (size_t i = 0; i < T * HALVES; i++) {
            const size_t t = i / HALVES, k = i % HALVES;
            segment[t][k] = lane_fma(dot[t][k] * x[t][b].scale, lane_load(scale + k * LANES), segment[t][k]);
            if (!ends || (b % 4 != 3 && !last)) continue;
            group[t][k] = group[t][k] + segment[t][k];
            segment[t][k] = lane_all(0.0f);
            if (b % 16 != 15 && !last) continue;
            sum[t][k] = sum[t][k] + group[t][k];
            group[t][k] = lane_all(0.0f);
        }
    }
    for (size_t i = 0; i < T * HALVES; i++)
        lane_store(op->y[t0 + i / HALVES] + r0 * MPK_ROWS + i % HALVES * LANES, sum[i / HALVES][i % HALVES]);
}

#define LANE_FORM(name, rows, ...)                                        \
    TARGET static void name(const mpk_gemv *op, const mpk_form_scales *s) \
    {                                                                     \
        const lane_form f = {__VA_ARGS__};                                \
        for (size_t r = 0; r < op->row_blocks; r++)                       \
            for (size_t t = 0, n; t < op->tokens; t += n) {               \
                n = op->tokens - t >= LANE_TOKENS ? LANE_TOKENS : 1;      \
                if (n == 1)                                               \
                    rows(1, f, op, s, r, t);                              \
                else                                                      \
                    rows(LANE_TOKENS, f, op, s, r, t);                    \
            }                                                             \
    }
LANE_FORM(lanes_f16, lane_rows, MOEPACK_ENC_F16, 16, 0, false)
LANE_FORM(lanes_e4m3, lane_rows, MOEPACK_ENC_E4M3, 8, 0, false)
LANE_FORM(lanes_e4m3_grid, lane_rows, MOEPACK_ENC_E4M3, 8, 0, true)
LANE_FORM(lanes_e4m3_group, lane_rows, MOEPACK_ENC_E4M3, 8, 32, false)
LANE_FORM(lanes_int4, lane_rows, MOEPACK_ENC_INT4_OFFSET, 4, 32, false)
LANE_FORM(lanes_nvfp4, lane_rows, MOEPACK_ENC_E2M1, 4, 16, false)
LANE_FORM(lanes_int4_fix16, lane_fix16_rows, MOEPACK_ENC_INT4_OFFSET, 4, 32, false)
LANE_FORM(lanes_nvfp4_fix16, lane_fix16_rows, MOEPACK_ENC_E2M1, 4, 16, false)

static mpk_form_table form_lanes = {
    [MPK_FORM_F16] = lanes_f16,
    [MPK_FORM_E4M3] = lanes_e4m3,
    [MPK_FORM_E4M3_GRID] = lanes_e4m3_grid,
    [MPK_FORM_E4M3_GROUP] = lanes_e4m3_group,
    [MPK_FORM_INT4] = lanes_int4,
    [MPK_FORM_NVFP4] = lanes_nvfp4,
    [MPK_FORM_INT4_FIX16] = lanes_int4_fix16,
    [MPK_FORM_NVFP4_FIX16] = lanes_nvfp4_fix16,
};

#endif
