/* The int8 mode with AVX-512 VNNI: vpdpbusd sums four products of 12 + 2v and q in each of 16 rows.
 *
 * With MOEPACK_EMULATE_AVX512 the intrinsics come from a plain C header of the tests, as in avx512.c. */
#if defined(__x86_64__) || defined(MOEPACK_EMULATE_AVX512)

#include "int8.h"

#ifdef MOEPACK_EMULATE_AVX512
#include "emulate_avx512.h"
#define TARGET
#else
#include <immintrin.h>
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx2,fma")))
#endif

#include "unroll.h"

#include "lines_avx512.h"

#define PREFETCH_BYTES 8192

/* Most tokens next to each other: twelve sums and twelve chains leave eight of 32 registers for weights. */
#define TOKENS 12

/* Adds one block of 32 columns to the chains of T tokens. Few tokens would wait for vpdpbusd: they get a second sum for
 * odd columns. */
KERNEL void block(const size_t T, const uint8_t *w, const uint8_t *s, const mpk_int8_block *const *x, size_t b,
                  __m512i lut, __m512 *segment)
{
    __m512i sum[TOKENS], odd_sum[TOKENS];
    UNROLL_16
    for (size_t t = 0; t < T; t++) {
        sum[t] = _mm512_set1_epi32(x[t][b].seed);
        odd_sum[t] = _mm512_setzero_si512();
    }
    UNROLL_16
    for (size_t c = 0; c < 4; c++) {
        _mm_prefetch((const char *)w + c * 64 + PREFETCH_BYTES, _MM_HINT_T1);
        const __m512i line = _mm512_load_si512(w + c * 64);
        const __m512i even = _mm512_permutexvar_epi8(line, lut);
        const __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(line, 4), lut);
        UNROLL_16
        for (size_t t = 0; t < T; t++) {
            sum[t] = _mm512_dpbusd_epi32(sum[t], even, word_of(x[t][b].q[c][0]));
            if (T <= 4) odd_sum[t] = _mm512_dpbusd_epi32(odd_sum[t], odd, word_of(x[t][b].q[c][1]));
        }
        UNROLL_16
        for (size_t t = 0; t < T; t++)
            if (T > 4) sum[t] = _mm512_dpbusd_epi32(sum[t], odd, word_of(x[t][b].q[c][1]));
    }
    const __m512 scale = weight_scales(s);
    UNROLL_16
    for (size_t t = 0; t < T; t++) {
        if (T <= 4) sum[t] = _mm512_add_epi32(sum[t], odd_sum[t]);
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[t]), _mm512_set1_ps(x[t][b].scale));
        segment[t] = _mm512_fmadd_ps(scaled, scale, segment[t]);
    }
}

/* One row block for T tokens: FMA chains over 4 blocks, those summed by fours, those summed. */
KERNEL void rows(const size_t T, const mpk_gemv *op, size_t r, size_t first)
{
    const __m512i lut = _mm512_load_si512(offset_codes);
    const uint8_t *w = op->weights + r * op->tiles * MPK_TILE_BYTES, *s = op->scales + r * op->tiles * MPK_ROWS;
    const mpk_int8_block *const *x = (const mpk_int8_block *const *)op->x + first;
    const size_t tiles = op->tiles;
    __m512 sum[TOKENS], group[TOKENS], segment[TOKENS];
    for (size_t t = 0; t < T; t++) sum[t] = _mm512_setzero_ps();
    for (size_t b = 0; b < tiles;) {
        const size_t group_end = tiles - b > 16 ? b + 16 : tiles;
        for (size_t t = 0; t < T; t++) group[t] = _mm512_setzero_ps();
        while (b < group_end) {
            const size_t segment_end = group_end - b > 4 ? b + 4 : group_end;
            UNROLL_16
            for (size_t t = 0; t < T; t++) segment[t] = _mm512_setzero_ps();
            _mm_prefetch((const char *)s + b * MPK_ROWS + PREFETCH_BYTES / 16, _MM_HINT_T1);
            for (; b < segment_end; b++) block(T, w + b * MPK_TILE_BYTES, s + b * MPK_ROWS, x, b, lut, segment);
            UNROLL_16
            for (size_t t = 0; t < T; t++) group[t] = _mm512_add_ps(group[t], segment[t]);
        }
        for (size_t t = 0; t < T; t++) sum[t] = _mm512_add_ps(sum[t], group[t]);
    }
    for (size_t t = 0; t < T; t++) store_rows(op->y[first + t] + r * MPK_ROWS, sum[t]);
}

#define ROWS(T)                                                             \
    TARGET static void rows_##T(const mpk_gemv *op, size_t r, size_t first) \
    {                                                                       \
        rows(T, op, r, first);                                              \
    }
#define EACH(DEFINE) \
    DEFINE(1)        \
    DEFINE(2) DEFINE(3) DEFINE(4) DEFINE(5) DEFINE(6) DEFINE(7) DEFINE(8) DEFINE(9) DEFINE(10) DEFINE(11) DEFINE(12)
EACH(ROWS)

static void (*const table[TOKENS + 1])(const mpk_gemv *, size_t, size_t) = {
    NULL, rows_1, rows_2, rows_3, rows_4, rows_5, rows_6, rows_7, rows_8, rows_9, rows_10, rows_11, rows_12};

/* Groups of tokens of nearly equal sizes pass over each row block. */
void mpk_int8_gemv_avx512(const mpk_gemv *op)
{
    for (size_t r = 0; r < op->row_blocks; r++)
        for (size_t t = 0; t < op->tokens;) {
            const size_t left = op->tokens - t, groups = (left + TOKENS - 1) / TOKENS, n = (left + groups - 1) / groups;
            table[n](op, r, t);
            t += n;
        }
}

TARGET void mpk_int8_quantize_avx512(const float *x, mpk_int8_block *out, size_t blocks)
{
    mpk_body_quantize_int8(x, out, blocks);
}
#else
typedef int mpk_int8_avx512_needs_x86;
#endif
