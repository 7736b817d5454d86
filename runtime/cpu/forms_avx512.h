/* The storage forms of forms.h with AVX-512. Included by avx512.c, whose helpers it uses. */
#ifndef MOEPACK_CPU_FORMS_AVX512_H
#define MOEPACK_CPU_FORMS_AVX512_H

#include "forms.h"

/* Most tokens at once; fewer tokens take more blocks of 32 columns at once, as many chains in all. */
#define FORM_TOKENS 8
#define FORM_CHAINS 8

/* ---- scales ---- */

/* E4M3 codes in the low bytes of lanes. */
KERNEL __m512 e4m3_values(__m512i codes)
{
    const __m512i bits =
        _mm512_and_si512(_mm512_srai_epi32(_mm512_slli_epi32(codes, 24), 4), _mm512_set1_epi32((int)0x87f00000));
    const __m512i seven = _mm512_set1_epi32(0x7f);
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(_mm512_and_si512(codes, seven), seven);
    const __m512 v = _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p120f));
    return _mm512_castsi512_ps(_mm512_mask_set1_epi32(_mm512_castps_si512(v), nan, 0x7fc00000));
}

/* Sixteen scales side by side. */
KERNEL __m512 row_scales(const uint8_t *s, moepack_encoding encoding)
{
    float v[MPK_ROWS];
    switch (encoding) {
    case MOEPACK_ENC_E8M0:
        return weight_scales(s);
    case MOEPACK_ENC_E4M3:
        return e4m3_values(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)s)));
    case MOEPACK_ENC_BF16:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)s)), 16));
    default:
        for (size_t r = 0; r < MPK_ROWS; r++) v[r] = mpk_scale_value(s, encoding, r);
        return _mm512_loadu_ps(v);
    }
}

/* The scales of a row block in panel order. */
KERNEL const uint8_t *group_scales(const mpk_form_scales *s, size_t row_block)
{
    return s->at + row_block * s->cols * MPK_ROWS * mpk_scale_bytes(s->encoding);
}

/* ---- E4M3 ---- */

/* Chains over `lines` lines of 4 columns of N blocks for T tokens. *top keeps the largest code without its sign of each
 * byte: 7f is NaN, which the arithmetic below would take for 480. */
KERNEL void e4m3_chains(const size_t T, const size_t N, const uint8_t *w, const float *const *x, size_t first,
                        size_t lines, __m512 *chain, __m512i *top)
{
    const __m512i mask = _mm512_set1_epi32((int)0x87f00000), signs = _mm512_set1_epi32((int)0x80808080);
    const __m512 unit = _mm512_set1_ps(0x1p120f);
    for (size_t i = 0; i < T * N; i++) chain[i] = _mm512_setzero_ps();
    for (size_t l = 0; l < lines; l++) UNROLL
    for (size_t n = 0; n < N; n++) {
        const uint8_t *at = w + n * 2 * MPK_TILE_BYTES + l * 64;
        _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T1);
        const __m512i line = _mm512_load_si512(at);
        *top = _mm512_max_epu8(*top, _mm512_or_si512(line, signs));
        /* Bits 11 to 4 of a 16-bit half, and the sign above, are those of a BF16 that is 2^-120 times the value. */
        const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(line, 8), 4), odd = _mm512_srai_epi16(line, 4);
        const __m512i bits[4] = {_mm512_and_si512(_mm512_slli_epi32(even, 16), mask),
                                 _mm512_and_si512(_mm512_slli_epi32(odd, 16), mask), _mm512_and_si512(even, mask),
                                 _mm512_and_si512(odd, mask)};
        UNROLL
        for (size_t h = 0; h < 4; h++) {
            const __m512 v = _mm512_mul_ps(_mm512_castsi512_ps(bits[h]), unit);
            UNROLL
            for (size_t t = 0; t < T; t++)
                chain[t * N + n] =
                    _mm512_fmadd_ps(v, _mm512_set1_ps(x[t][first + n * MPK_BLOCK + l * 4 + h]), chain[t * N + n]);
        }
    }
}

enum {
    RULE_PLAIN,
    RULE_GRID,
    RULE_GROUP
};

KERNEL void e4m3_rows(const size_t T, const int rule, const mpk_gemv *op, const mpk_form_scales *s, size_t r, size_t t0)
{
    const size_t N = FORM_CHAINS / T, columns = op->tiles * 16, blocks = (columns + MPK_BLOCK - 1) / MPK_BLOCK;
    const uint8_t *w = op->weights + r * op->tiles * MPK_TILE_BYTES, *scales = NULL;
    const float *const *x = (const float *const *)op->x + t0;
    const size_t width = mpk_scale_bytes(s->encoding);
    if (rule == RULE_GRID) scales = s->at + (s->first_row + r * MPK_ROWS) / MPK_GRID * s->cols * width;
    if (rule == RULE_GROUP) scales = group_scales(s, r);
    __m512 sum[FORM_TOKENS], part[FORM_TOKENS], chain[FORM_CHAINS];
    __m512i top = _mm512_setzero_si512();
    for (size_t t = 0; t < T; t++) sum[t] = part[t] = _mm512_setzero_ps();
    for (size_t b = 0; b < blocks;) {
        const size_t left = columns - b * MPK_BLOCK, n = left >= N * MPK_BLOCK ? N : 1;
        const uint8_t *at = w + b * 2 * MPK_TILE_BYTES;
        if (n == N)
            e4m3_chains(T, N, at, x, b * MPK_BLOCK, left < MPK_BLOCK ? left / 4 : 8, chain, &top);
        else
            e4m3_chains(T, 1, at, x, b * MPK_BLOCK, left < MPK_BLOCK ? left / 4 : 8, chain, &top);
        for (size_t i = 0; i < n; i++, b++) {
            const bool ends = b % 4 == 3 || b + 1 == blocks;
            __m512 scale = _mm512_setzero_ps();
            if (rule == RULE_GROUP) scale = row_scales(scales + b * MPK_ROWS * width, s->encoding);
            if (rule == RULE_GRID && ends) scale = _mm512_set1_ps(mpk_scale_value(scales, s->encoding, b / 4));
            UNROLL
            for (size_t t = 0; t < T; t++) {
                const __m512 c = chain[t * n + i];
                if (rule == RULE_PLAIN) sum[t] = _mm512_add_ps(sum[t], c);
                if (rule == RULE_GROUP) sum[t] = _mm512_fmadd_ps(c, scale, sum[t]);
                if (rule != RULE_GRID) continue;
                part[t] = _mm512_add_ps(part[t], c);
                if (!ends) continue;
                sum[t] = _mm512_fmadd_ps(part[t], scale, sum[t]);
                part[t] = _mm512_setzero_ps();
            }
        }
    }
    const __m512i all = _mm512_set1_epi32(0xff);
    __mmask16 nan = 0;
    for (unsigned h = 0; h < 4; h++)
        nan |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_srli_epi32(top, 8 * h), all), all);
    for (size_t t = 0; t < T; t++)
        store_rows(op->y[t0 + t] + r * MPK_ROWS,
                   _mm512_castsi512_ps(_mm512_mask_set1_epi32(_mm512_castps_si512(sum[t]), nan, 0x7fc00000)));
}

/* ---- 4-bit codes, F32 inputs ---- */

static const float int4_values[16] __attribute__((aligned(64))) = {
    -8.0f, -7.0f, -6.0f, -5.0f, -4.0f, -3.0f, -2.0f, -1.0f, 0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f};

/* Chains over lines [from, to) of N blocks. */
KERNEL void nibble_chains(const size_t T, const size_t N, const uint8_t *w, const float *const *x, size_t first,
                          size_t from, size_t to, __m512 lut, __m512 *chain)
{
    for (size_t i = 0; i < T * N; i++) chain[i] = _mm512_setzero_ps();
    for (size_t l = from; l < to; l++) UNROLL
    for (size_t n = 0; n < N; n++) {
        const uint8_t *at = w + n * MPK_TILE_BYTES + l * 64;
        _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T1);
        __m512i line = _mm512_load_si512(at);
        UNROLL
        for (size_t j = 0; j < 8; j++) {
            const __m512 v = _mm512_permutexvar_ps(line, lut);
            line = _mm512_srli_epi32(line, 4);
            UNROLL
            for (size_t t = 0; t < T; t++)
                chain[t * N + n] =
                    _mm512_fmadd_ps(v, _mm512_set1_ps(x[t][first + n * MPK_BLOCK + l * 8 + j]), chain[t * N + n]);
        }
    }
}

/* G groups in a block: 1 (int4) or 2 (NVFP4). */
KERNEL void nibble_rows(const size_t T, const size_t G, const mpk_gemv *op, const mpk_form_scales *s, size_t r,
                        size_t t0)
{
    const size_t N = FORM_CHAINS / T, width = mpk_scale_bytes(s->encoding) * MPK_ROWS;
    const uint8_t *w = op->weights + r * op->tiles * MPK_TILE_BYTES, *scales = group_scales(s, r);
    const float *const *x = (const float *const *)op->x + t0;
    const __m512 lut = _mm512_load_ps(G == 1 ? int4_values : value_codes);
    __m512 sum[FORM_TOKENS], chain[2][FORM_CHAINS];
    for (size_t t = 0; t < T; t++) sum[t] = _mm512_setzero_ps();
    for (size_t b = 0; b < op->tiles;) {
        const size_t n = op->tiles - b >= N ? N : 1;
        UNROLL
        for (size_t g = 0; g < G; g++) {
            const uint8_t *at = w + b * MPK_TILE_BYTES;
            if (n == N)
                nibble_chains(T, N, at, x, b * MPK_BLOCK, g * 2, G == 1 ? 4 : g * 2 + 2, lut, chain[g]);
            else
                nibble_chains(T, 1, at, x, b * MPK_BLOCK, g * 2, G == 1 ? 4 : g * 2 + 2, lut, chain[g]);
        }
        for (size_t i = 0; i < n; i++, b++)
            for (size_t g = 0; g < G && b * G + g < s->cols; g++) {
                const __m512 scale = row_scales(scales + (b * G + g) * width, s->encoding);
                UNROLL
                for (size_t t = 0; t < T; t++) sum[t] = _mm512_fmadd_ps(chain[g][t * n + i], scale, sum[t]);
            }
    }
    for (size_t t = 0; t < T; t++) store_rows(op->y[t0 + t] + r * MPK_ROWS, sum[t]);
}

/* ---- 4-bit codes, fix16 inputs ---- */

/* 12 + v of int4 codes: half of what the input scale expects. */
#define INT4_CODES 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19
static const uint8_t offset_int4[64] __attribute__((aligned(64))) = {INT4_CODES, INT4_CODES, INT4_CODES, INT4_CODES};

/* One block: adds each of its G groups to the segments of T tokens. */
KERNEL void form_fix16_block(const size_t T, const size_t G, const uint8_t *w, const uint8_t *scales, size_t width,
                             size_t groups, moepack_encoding encoding, const mpk_fix16_block *const *x, size_t b,
                             __m512i lut, __m512 *segment)
{
    UNROLL
    for (size_t g = 0; g < G; g++) {
        __m512i hi[FORM_TOKENS], lo[FORM_TOKENS], hi_odd[FORM_TOKENS], lo_odd[FORM_TOKENS];
        if (g >= groups) break;
        UNROLL
        for (size_t t = 0; t < T; t++) {
            const mpk_fix16_block *block = x[t] + b;
            hi[t] = hi_odd[t] = lo_odd[t] = _mm512_setzero_si512();
            lo[t] = _mm512_set1_epi32(G == 1   ? block->seed
                                      : g == 0 ? block->seed_first
                                               : block->seed - block->seed_first);
        }
        UNROLL
        for (size_t i = 0; i < 4 / G; i++) {
            const size_t c = g * 2 + i;
            _mm_prefetch((const char *)w + c * 64 + PREFETCH_BYTES, _MM_HINT_T1);
            const __m512i line = _mm512_load_si512(w + c * 64);
            const __m512i even = _mm512_permutexvar_epi8(line, lut);
            const __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(line, 4), lut);
            UNROLL
            for (size_t t = 0; t < T; t++) {
                const int8_t(*digit)[2][4] = x[t][b].digit[c];
                hi[t] = _mm512_dpbusd_epi32(hi[t], even, word_of(digit[0][0]));
                lo[t] = _mm512_dpbusd_epi32(lo[t], even, word_of(digit[0][1]));
                if (T <= 2) {
                    hi_odd[t] = _mm512_dpbusd_epi32(hi_odd[t], odd, word_of(digit[1][0]));
                    lo_odd[t] = _mm512_dpbusd_epi32(lo_odd[t], odd, word_of(digit[1][1]));
                } else {
                    hi[t] = _mm512_dpbusd_epi32(hi[t], odd, word_of(digit[1][0]));
                    lo[t] = _mm512_dpbusd_epi32(lo[t], odd, word_of(digit[1][1]));
                }
            }
        }
        const __m512 scale = row_scales(scales + g * width, encoding);
        UNROLL
        for (size_t t = 0; t < T; t++) {
            if (T <= 2) {
                hi[t] = _mm512_add_epi32(hi[t], hi_odd[t]);
                lo[t] = _mm512_add_epi32(lo[t], lo_odd[t]);
            }
            const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(hi[t], 8), lo[t]));
            const float unit = G == 1 ? 2.0f * x[t][b].scale : x[t][b].scale;
            segment[t] = _mm512_fmadd_ps(_mm512_mul_ps(sum, _mm512_set1_ps(unit)), scale, segment[t]);
        }
    }
}

KERNEL void form_fix16_rows(const size_t T, const size_t G, const mpk_gemv *op, const mpk_form_scales *s, size_t r,
                            size_t t0)
{
    const size_t width = mpk_scale_bytes(s->encoding) * MPK_ROWS;
    const uint8_t *w = op->weights + r * op->tiles * MPK_TILE_BYTES, *scales = group_scales(s, r);
    const mpk_fix16_block *const *x = (const mpk_fix16_block *const *)op->x + t0;
    const __m512i lut = _mm512_load_si512(G == 1 ? offset_int4 : offset_codes);
    __m512 sum[FORM_TOKENS], group[FORM_TOKENS], segment[FORM_TOKENS];
    for (size_t t = 0; t < T; t++) sum[t] = group[t] = segment[t] = _mm512_setzero_ps();
    for (size_t b = 0; b < op->tiles; b++) {
        const bool last = b + 1 == op->tiles;
        form_fix16_block(T, G, w + b * MPK_TILE_BYTES, scales + b * G * width, width, s->cols - b * G, s->encoding, x,
                         b, lut, segment);
        if (b % 4 != 3 && !last) continue;
        for (size_t t = 0; t < T; t++) {
            group[t] = _mm512_add_ps(group[t], segment[t]);
            segment[t] = _mm512_setzero_ps();
        }
        if (b % 16 != 15 && !last) continue;
        for (size_t t = 0; t < T; t++) {
            sum[t] = _mm512_add_ps(sum[t], group[t]);
            group[t] = _mm512_setzero_ps();
        }
    }
    for (size_t t = 0; t < T; t++) store_rows(op->y[t0 + t] + r * MPK_ROWS, sum[t]);
}

/* ---- F16 ---- */

/* Values of 16-bit halves in the upper half of lanes; the lower half is anything. */
KERNEL __m512 f16_values(__m512i v)
{
    const __m512i sign = _mm512_and_si512(v, _mm512_set1_epi32((int)0x80000000));
    const __m512i rest = _mm512_and_si512(v, _mm512_set1_epi32(0x7fff0000)), top = _mm512_set1_epi32(0x7c000000);
    const __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_srli_epi32(rest, 3)), _mm512_set1_ps(0x1p112f));
    /* Infinities and NaNs keep their fraction under the largest exponent. */
    const __m512i special = _mm512_or_si512(_mm512_srli_epi32(rest, 3), _mm512_set1_epi32(0x7f800000));
    const __mmask16 is = _mm512_cmpeq_epi32_mask(_mm512_and_si512(v, top), top);
    return _mm512_castsi512_ps(_mm512_or_si512(sign, _mm512_mask_mov_epi32(_mm512_castps_si512(scaled), is, special)));
}

KERNEL void f16_chains(const size_t T, const size_t N, const uint8_t *w, const float *const *x, size_t first,
                       size_t lines, __m512 *chain)
{
    for (size_t i = 0; i < T * N; i++) chain[i] = _mm512_setzero_ps();
    for (size_t l = 0; l < lines; l++) UNROLL
    for (size_t n = 0; n < N; n++) {
        const uint8_t *at = w + n * 4 * MPK_TILE_BYTES + l * 64;
        _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T1);
        const __m512i line = _mm512_load_si512(at);
        UNROLL
        for (size_t h = 0; h < 2; h++) {
            const __m512 v = f16_values(h == 0 ? _mm512_slli_epi32(line, 16) : line);
            UNROLL
            for (size_t t = 0; t < T; t++)
                chain[t * N + n] =
                    _mm512_fmadd_ps(v, _mm512_set1_ps(x[t][first + n * MPK_BLOCK + l * 2 + h]), chain[t * N + n]);
        }
    }
}

KERNEL void f16_rows(const size_t T, const mpk_gemv *op, size_t r, size_t t0)
{
    const size_t N = FORM_CHAINS / T, columns = op->tiles * 8;
    const uint8_t *w = op->weights + r * op->tiles * MPK_TILE_BYTES;
    const float *const *x = (const float *const *)op->x + t0;
    __m512 sum[FORM_TOKENS], chain[FORM_CHAINS];
    for (size_t t = 0; t < T; t++) sum[t] = _mm512_setzero_ps();
    for (size_t c = 0; c < columns;) {
        const size_t left = columns - c, n = left >= N * MPK_BLOCK ? N : 1;
        if (n == N)
            f16_chains(T, N, w + c * 32, x, c, left < MPK_BLOCK ? left / 2 : 16, chain);
        else
            f16_chains(T, 1, w + c * 32, x, c, left < MPK_BLOCK ? left / 2 : 16, chain);
        for (size_t i = 0; i < n; i++, c += MPK_BLOCK)
            for (size_t t = 0; t < T; t++) sum[t] = _mm512_add_ps(sum[t], chain[t * n + i]);
    }
    for (size_t t = 0; t < T; t++) store_rows(op->y[t0 + t] + r * MPK_ROWS, sum[t]);
}

/* ---- the table ---- */

/* A row block stays in the first cache levels while groups of tokens pass over it. */
#define FORM(name, ROWS)                                                                             \
    TARGET static void name(const mpk_gemv *op, const mpk_form_scales *s)                            \
    {                                                                                                \
        (void)s;                                                                                     \
        for (size_t r = 0; r < op->row_blocks; r++)                                                  \
            for (size_t t = 0, n; t < op->tokens; t += n) {                                          \
                n = op->tokens - t >= 8 ? 8 : op->tokens - t >= 4 ? 4 : op->tokens - t >= 2 ? 2 : 1; \
                if (n == 8)                                                                          \
                    ROWS(8);                                                                         \
                else if (n == 4)                                                                     \
                    ROWS(4);                                                                         \
                else if (n == 2)                                                                     \
                    ROWS(2);                                                                         \
                else                                                                                 \
                    ROWS(1);                                                                         \
            }                                                                                        \
    }
#define F16_ROWS(T) f16_rows(T, op, r, t)
#define PLAIN_ROWS(T) e4m3_rows(T, RULE_PLAIN, op, s, r, t)
#define GRID_ROWS(T) e4m3_rows(T, RULE_GRID, op, s, r, t)
#define GROUP_ROWS(T) e4m3_rows(T, RULE_GROUP, op, s, r, t)
#define INT4_ROWS(T) nibble_rows(T, 1, op, s, r, t)
#define NVFP4_ROWS(T) nibble_rows(T, 2, op, s, r, t)
#define INT4_FIX16_ROWS(T) form_fix16_rows(T, 1, op, s, r, t)
#define NVFP4_FIX16_ROWS(T) form_fix16_rows(T, 2, op, s, r, t)
FORM(form_f16, F16_ROWS)
FORM(form_e4m3, PLAIN_ROWS)
FORM(form_e4m3_grid, GRID_ROWS)
FORM(form_e4m3_group, GROUP_ROWS)
FORM(form_int4, INT4_ROWS)
FORM(form_nvfp4, NVFP4_ROWS)
FORM(form_int4_fix16, INT4_FIX16_ROWS)
FORM(form_nvfp4_fix16, NVFP4_FIX16_ROWS)

static mpk_form_table form_table = {
    [MPK_FORM_F16] = form_f16,
    [MPK_FORM_E4M3] = form_e4m3,
    [MPK_FORM_E4M3_GRID] = form_e4m3_grid,
    [MPK_FORM_E4M3_GROUP] = form_e4m3_group,
    [MPK_FORM_INT4] = form_int4,
    [MPK_FORM_NVFP4] = form_nvfp4,
    [MPK_FORM_INT4_FIX16] = form_int4_fix16,
    [MPK_FORM_NVFP4_FIX16] = form_nvfp4_fix16,
};

#endif
