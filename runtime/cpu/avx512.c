/* AVX-512 kernels (F, BW, VL, VBMI, VNNI): one load is one tile line, 16 rows by 32 bits, one lane per row.
 *
 * With MOEPACK_EMULATE_AVX512 the intrinsics come from a plain C header of the tests and no target attribute is set, so
 * that the same source runs on any machine and under the sanitizers. */
#if defined(__x86_64__) || defined(MOEPACK_EMULATE_AVX512)

#include "elementwise.h"
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

/* How far ahead of the line in use weights are requested. Panels are read front to back, so this runs into the next row
 * block; past the end of a matrix it requests a line for nothing, which cannot fault. */
#define PREFETCH_BYTES 8192
/* fix16 kernels: one thread reads 0.89 of the scan with this, 0.83 with half of it (Zen 4). */
#define FIX16_PREFETCH_BYTES 16384

/* Most tokens a kernel keeps in registers at once: weights are decoded once for all of them. */
#define TOKENS 8
#define DENSE_TOKENS 8

MPK_DEFINE_ELEMENTWISE(avx512, TARGET)

static const float value_codes[16] __attribute__((aligned(64))) = {
    0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* Adds one block of 32 columns to the chains of T tokens. One or two tokens alone would wait for vpdpbusd's five
 * cycles: they get separate sums for odd columns (20 -> 30 GB/s from cache on Sapphire Rapids). */
KERNEL void fix16_block(const size_t T, const uint8_t *w, const uint8_t *s, const mpk_fix16_block *const *x, size_t b,
                        __m512i lut, __m512 *segment)
{
    __m512i hi[TOKENS], lo[TOKENS], hi_odd[TOKENS], lo_odd[TOKENS];
    UNROLL
    for (size_t t = 0; t < T; t++) {
        hi[t] = hi_odd[t] = lo_odd[t] = _mm512_setzero_si512();
        lo[t] = _mm512_set1_epi32(x[t][b].seed);
    }
    UNROLL
    for (size_t c = 0; c < 4; c++) {
        _mm_prefetch((const char *)w + c * 64 + FIX16_PREFETCH_BYTES, _MM_HINT_T1);
        __m512i line = _mm512_load_si512(w + c * 64);
        __m512i even = _mm512_permutexvar_epi8(line, lut);
        __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(line, 4), lut);
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
    __m512 scale = weight_scales(s);
    UNROLL
    for (size_t t = 0; t < T; t++) {
        if (T <= 2) {
            hi[t] = _mm512_add_epi32(hi[t], hi_odd[t]);
            lo[t] = _mm512_add_epi32(lo[t], lo_odd[t]);
        }
        __m512 exact = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(hi[t], 8), lo[t]));
        segment[t] = _mm512_fmadd_ps(_mm512_mul_ps(exact, _mm512_set1_ps(x[t][b].scale)), scale, segment[t]);
    }
}

/* One row block for T tokens: FMA chains over 4 blocks, those summed by fours, those summed. */
KERNEL void fix16_rows(const size_t T, const uint8_t *w, const uint8_t *s, size_t tiles,
                       const mpk_fix16_block *const *x, float *const *y, size_t y_offset)
{
    const __m512i lut = _mm512_load_si512(offset_codes);
    __m512 sum[TOKENS], group[TOKENS], segment[TOKENS];
    for (size_t t = 0; t < T; t++) sum[t] = _mm512_setzero_ps();
    for (size_t b = 0; b < tiles;) {
        const size_t group_end = tiles - b > 16 ? b + 16 : tiles;
        for (size_t t = 0; t < T; t++) group[t] = _mm512_setzero_ps();
        while (b < group_end) {
            const size_t segment_end = group_end - b > 4 ? b + 4 : group_end;
            for (size_t t = 0; t < T; t++) segment[t] = _mm512_setzero_ps();
            _mm_prefetch((const char *)s + b * MPK_ROWS + FIX16_PREFETCH_BYTES / 16, _MM_HINT_T1);
            for (; b < segment_end; b++) fix16_block(T, w + b * MPK_TILE_BYTES, s + b * MPK_ROWS, x, b, lut, segment);
            for (size_t t = 0; t < T; t++) group[t] = _mm512_add_ps(group[t], segment[t]);
        }
        for (size_t t = 0; t < T; t++) sum[t] = _mm512_add_ps(sum[t], group[t]);
    }
    for (size_t t = 0; t < T; t++) store_rows(y[t] + y_offset, sum[t]);
}

/* F32 inputs. Chains of 32 columns run one after the other in each lane; N blocks at once, next to T tokens, keep the
 * FMA units busy. `values` decodes the columns of one line. */
KERNEL void e2m1_blocks(const size_t T, const size_t N, const uint8_t *w, const uint8_t *s, const float *const *x,
                        size_t b, __m512 *sum)
{
    const __m512 lut = _mm512_load_ps(value_codes);
    __m512 chain[TOKENS];
    for (size_t i = 0; i < T * N; i++) chain[i] = _mm512_setzero_ps();
    UNROLL
    for (size_t c = 0; c < 4; c++) {
        __m512i line[TOKENS];
        UNROLL
        for (size_t n = 0; n < N; n++) {
            const uint8_t *at = w + (b + n) * MPK_TILE_BYTES + c * 64;
            _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T1);
            line[n] = _mm512_load_si512(at);
        }
        UNROLL
        for (size_t j = 0; j < 8; j++) UNROLL
        for (size_t n = 0; n < N; n++) {
            __m512 v = _mm512_permutexvar_ps(line[n], lut); /* vpermps uses four index bits: no mask */
            line[n] = _mm512_srli_epi32(line[n], 4);
            UNROLL
            for (size_t t = 0; t < T; t++)
                chain[t * N + n] =
                    _mm512_fmadd_ps(v, _mm512_set1_ps(x[t][(b + n) * MPK_BLOCK + c * 8 + j]), chain[t * N + n]);
        }
    }
    UNROLL
    for (size_t n = 0; n < N; n++) {
        __m512 scale = weight_scales(s + (b + n) * MPK_ROWS);
        UNROLL
        for (size_t t = 0; t < T; t++) sum[t] = _mm512_fmadd_ps(chain[t * N + n], scale, sum[t]);
    }
}

KERNEL void e2m1_rows(const size_t T, const uint8_t *w, const uint8_t *s, size_t tiles, const float *const *x,
                      float *const *y, size_t y_offset)
{
    __m512 sum[TOKENS];
    for (size_t t = 0; t < T; t++) sum[t] = _mm512_setzero_ps();
    size_t b = 0;
    for (; tiles - b >= TOKENS / T; b += TOKENS / T) e2m1_blocks(T, TOKENS / T, w, s, x, b, sum);
    for (; b < tiles; b++) e2m1_blocks(T, 1, w, s, x, b, sum);
    for (size_t t = 0; t < T; t++) store_rows(y[t] + y_offset, sum[t]);
}

/* Columns [0, columns) of N blocks of BF16 or F32 weights (W columns in a word), blocks `block_bytes` apart. */
KERNEL void dense_blocks(const size_t T, const size_t N, const size_t W, const uint8_t *w, const float *const *x,
                         size_t first, size_t lines, __m512 *sum)
{
    const size_t block_bytes = MPK_BLOCK / W * 64;
    __m512 chain[TOKENS];
    for (size_t i = 0; i < T * N; i++) chain[i] = _mm512_setzero_ps();
    for (size_t c = 0; c < lines; c++) UNROLL
    for (size_t n = 0; n < N; n++) {
        const uint8_t *at = w + n * block_bytes + c * 64;
        _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T1);
        __m512i line = _mm512_load_si512(at);
        UNROLL
        for (size_t h = 0; h < W; h++) {
            __m512i bits = W == 1   ? line
                           : h == 0 ? _mm512_slli_epi32(line, 16)
                                    : _mm512_and_si512(line, _mm512_set1_epi32((int)0xffff0000));
            __m512 v = _mm512_castsi512_ps(bits);
            UNROLL
            for (size_t t = 0; t < T; t++)
                chain[t * N + n] =
                    _mm512_fmadd_ps(v, _mm512_set1_ps(x[t][first + n * MPK_BLOCK + c * W + h]), chain[t * N + n]);
        }
    }
    UNROLL
    for (size_t n = 0; n < N; n++) UNROLL
    for (size_t t = 0; t < T; t++) sum[t] = _mm512_add_ps(sum[t], chain[t * N + n]);
}

KERNEL void dense_rows(const size_t T, const size_t W, const uint8_t *w, size_t tiles, const float *const *x,
                       float *const *y, size_t y_offset)
{
    const size_t N = TOKENS / T, columns = tiles * 4 * W, lines = MPK_BLOCK / W;
    __m512 sum[TOKENS];
    for (size_t t = 0; t < T; t++) sum[t] = _mm512_setzero_ps();
    size_t c = 0;
    for (; columns - c >= N * MPK_BLOCK; c += N * MPK_BLOCK) dense_blocks(T, N, W, w + c / W * 64, x, c, lines, sum);
    for (; columns - c >= MPK_BLOCK; c += MPK_BLOCK) dense_blocks(T, 1, W, w + c / W * 64, x, c, lines, sum);
    if (c < columns) dense_blocks(T, 1, W, w + c / W * 64, x, c, (columns - c) / W, sum);
    for (size_t t = 0; t < T; t++) store_rows(y[t] + y_offset, sum[t]);
}

#include "rows.h"

#include "forms_avx512.h"

const mpk_kernels mpk_kernels_avx512 = {.name = "avx512",
                                        .forms = form_table,
                                        MPK_ROWS_FIELDS,
                                        .gemv_int8 = mpk_int8_gemv_avx512,
                                        .quantize_int8 = mpk_int8_quantize_avx512,
                                        MPK_ELEMENTWISE_FIELDS(avx512)};
#else
typedef int mpk_avx512_needs_x86;
#endif
