/* AVX2 + FMA kernels: a tile line is two vectors of 8 rows by 32 bits, one lane per row.
 *
 * With MOEPACK_EMULATE_AVX2 the intrinsics come from a plain C header of the tests, as for AVX-512. */
#if defined(__x86_64__) || defined(MOEPACK_EMULATE_AVX2)

#include "elementwise.h"

#ifdef MOEPACK_EMULATE_AVX2
#include "emulate_avx2.h"
#define TARGET
#define KEEP(v) ((void)(v))
#else
#include <immintrin.h>
#define TARGET __attribute__((target("avx2,fma")))
/* gcc 12 reassociates integer vector additions, hoists all products and spills them (17 instead of 22 GB/s from L2 on
 * Zen 3). An empty asm that claims to change the sum keeps the written order. */
#define KEEP(v) __asm__("" : "+x"(v))
#endif

#include "unroll.h"

/* As in avx512.c. */
#define PREFETCH_BYTES 8192

/* Most tokens in registers at once: sixteen registers hold no more sums. */
#define TOKENS 4

MPK_DEFINE_ELEMENTWISE(avx2, TARGET)

/* 12 + 2v of the sixteen E2M1 codes, in both halves as vpshufb wants it. */
#define CODES 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0
static const uint8_t offset_codes[32] __attribute__((aligned(32))) = {CODES, CODES};

/* Magnitudes of the eight positive codes for vpermps, which uses three index bits. */
static const float magnitudes[8] __attribute__((aligned(32))) = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

/* 2^(byte - 127) of eight rows: byte 0 is the subnormal 2^-127, 255 is NaN. */
KERNEL __m256 weight_scales(const uint8_t *s)
{
    __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)s)), 23);
    __m256i nan = _mm256_cmpeq_epi32(bits, _mm256_set1_epi32(0x7f800000));
    bits = _mm256_max_epi32(bits, _mm256_set1_epi32(0x00400000));
    return _mm256_castsi256_ps(_mm256_or_si256(bits, nan));
}

KERNEL void store_rows(float *y, __m256 v)
{
    __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    __m256 canonical = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    _mm256_storeu_ps(y, _mm256_blendv_ps(v, canonical, nan));
}

KERNEL __m256i word_of(const void *bytes)
{
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm256_set1_epi32(word);
}

KERNEL __m256i load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

/* Adds one block of 32 columns, V vectors of 8 rows, to the chains of T tokens. The 16-bit lanes may wrap around on the
 * way: with the seed a lane's true value is at most 12 * 16 * 128 = 24576. */
KERNEL void fix16_block(const size_t T, const size_t V, const uint8_t *w, const uint8_t *s,
                        const mpk_fix16_block *const *x, size_t b, __m256 *segment)
{
    const __m256i lut = load(offset_codes), low = _mm256_set1_epi8(15);
    __m256i hi[TOKENS * 2], lo[TOKENS * 2];
    UNROLL
    for (size_t i = 0; i < T * V; i++) {
        hi[i] = word_of(x[i / V][b].seed_hi);
        lo[i] = word_of(x[i / V][b].seed_lo);
    }
    UNROLL
    for (size_t c = 0; c < 4; c++) {
        _mm_prefetch((const char *)w + c * 64 + PREFETCH_BYTES, _MM_HINT_T0);
        UNROLL
        for (size_t h = 0; h < 2; h++) {
            __m256i code[2];
            UNROLL
            for (size_t v = 0; v < V; v++) {
                __m256i line = load(w + c * 64 + v * 32);
                if (h == 1) line = _mm256_srli_epi16(line, 4);
                code[v] = _mm256_shuffle_epi8(lut, _mm256_and_si256(line, low));
            }
            UNROLL
            for (size_t t = 0; t < T; t++) {
                const __m256i hi_digits = word_of(x[t][b].digit[c][h][0]);
                UNROLL
                for (size_t v = 0; v < V; v++) {
                    hi[t * V + v] = _mm256_add_epi16(hi[t * V + v], _mm256_maddubs_epi16(code[v], hi_digits));
                    KEEP(hi[t * V + v]);
                }
                const __m256i lo_digits = word_of(x[t][b].digit[c][h][1]);
                UNROLL
                for (size_t v = 0; v < V; v++) {
                    lo[t * V + v] = _mm256_add_epi16(lo[t * V + v], _mm256_maddubs_epi16(code[v], lo_digits));
                    KEEP(lo[t * V + v]);
                }
            }
        }
    }
    const __m256i high_weight = _mm256_set1_epi16(256), one = _mm256_set1_epi16(1);
    UNROLL
    for (size_t v = 0; v < V; v++) {
        const __m256 scale = weight_scales(s + v * 8);
        UNROLL
        for (size_t t = 0; t < T; t++) {
            __m256i exact =
                _mm256_add_epi32(_mm256_madd_epi16(hi[t * V + v], high_weight), _mm256_madd_epi16(lo[t * V + v], one));
            __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(exact), _mm256_set1_ps(x[t][b].scale));
            segment[t * V + v] = _mm256_fmadd_ps(scaled, scale, segment[t * V + v]);
        }
    }
}

/* V * 8 rows for T tokens: FMA chains over 4 blocks, those summed by fours, those summed. */
KERNEL void fix16_part(const size_t T, const size_t V, const uint8_t *w, const uint8_t *s, size_t tiles,
                       const mpk_fix16_block *const *x, float *const *y, size_t y_offset)
{
    __m256 sum[TOKENS * 2], group[TOKENS * 2], segment[TOKENS * 2];
    for (size_t i = 0; i < T * V; i++) sum[i] = _mm256_setzero_ps();
    for (size_t b = 0; b < tiles;) {
        const size_t group_end = tiles - b > 16 ? b + 16 : tiles;
        for (size_t i = 0; i < T * V; i++) group[i] = _mm256_setzero_ps();
        while (b < group_end) {
            const size_t segment_end = group_end - b > 4 ? b + 4 : group_end;
            for (size_t i = 0; i < T * V; i++) segment[i] = _mm256_setzero_ps();
            _mm_prefetch((const char *)s + b * MPK_ROWS + PREFETCH_BYTES / 16, _MM_HINT_T0);
            for (; b < segment_end; b++) fix16_block(T, V, w + b * MPK_TILE_BYTES, s + b * MPK_ROWS, x, b, segment);
            for (size_t i = 0; i < T * V; i++) group[i] = _mm256_add_ps(group[i], segment[i]);
        }
        for (size_t i = 0; i < T * V; i++) sum[i] = _mm256_add_ps(sum[i], group[i]);
    }
    for (size_t i = 0; i < T * V; i++) store_rows(y[i / V] + y_offset + i % V * 8, sum[i]);
}

/* Sixteen rows at once up to three tokens; four tokens have registers for eight rows only. */
KERNEL void fix16_rows(const size_t T, const uint8_t *w, const uint8_t *s, size_t tiles,
                       const mpk_fix16_block *const *x, float *const *y, size_t y_offset)
{
    if (T < 4) {
        fix16_part(T, 2, w, s, tiles, x, y, y_offset);
    } else {
        fix16_part(T, 1, w, s, tiles, x, y, y_offset);
        fix16_part(T, 1, w + 32, s + 8, tiles, x, y, y_offset + 8);
    }
}

/* F32 inputs, N blocks at once next to T tokens, 8 rows in each of two vectors. */
KERNEL void e2m1_blocks(const size_t T, const size_t N, const uint8_t *w, const uint8_t *s, const float *const *x,
                        size_t b, __m256 *sum)
{
    const __m256 lut = _mm256_load_ps(magnitudes);
    const __m256i sign = _mm256_set1_epi32((int)0x80000000);
    __m256 chain[TOKENS * 2];
    for (size_t i = 0; i < T * N * 2; i++) chain[i] = _mm256_setzero_ps();
    UNROLL
    for (size_t c = 0; c < 4; c++) {
        __m256i line[TOKENS * 2];
        UNROLL
        for (size_t i = 0; i < N * 2; i++) {
            const uint8_t *at = w + (b + i / 2) * MPK_TILE_BYTES + c * 64 + i % 2 * 32;
            if (i % 2 == 0) _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T0);
            line[i] = load(at);
        }
        UNROLL
        for (size_t j = 0; j < 8; j++) UNROLL
        for (size_t i = 0; i < N * 2; i++) {
            __m256i negative = _mm256_and_si256(_mm256_slli_epi32(line[i], 28), sign);
            __m256 v = _mm256_permutevar8x32_ps(lut, line[i]);
            v = _mm256_or_ps(v, _mm256_castsi256_ps(negative));
            line[i] = _mm256_srli_epi32(line[i], 4);
            UNROLL
            for (size_t t = 0; t < T; t++)
                chain[t * N * 2 + i] =
                    _mm256_fmadd_ps(v, _mm256_set1_ps(x[t][(b + i / 2) * MPK_BLOCK + c * 8 + j]), chain[t * N * 2 + i]);
        }
    }
    UNROLL
    for (size_t i = 0; i < N * 2; i++) {
        const __m256 scale = weight_scales(s + (b + i / 2) * MPK_ROWS + i % 2 * 8);
        UNROLL
        for (size_t t = 0; t < T; t++)
            sum[t * 2 + i % 2] = _mm256_fmadd_ps(chain[t * N * 2 + i], scale, sum[t * 2 + i % 2]);
    }
}

KERNEL void store_sums(const size_t T, const __m256 *sum, float *const *y, size_t y_offset)
{
    for (size_t i = 0; i < T * 2; i++) store_rows(y[i / 2] + y_offset + i % 2 * 8, sum[i]);
}

KERNEL void e2m1_rows(const size_t T, const uint8_t *w, const uint8_t *s, size_t tiles, const float *const *x,
                      float *const *y, size_t y_offset)
{
    const size_t N = TOKENS / T;
    __m256 sum[TOKENS * 2];
    for (size_t i = 0; i < T * 2; i++) sum[i] = _mm256_setzero_ps();
    size_t b = 0;
    for (; tiles - b >= N; b += N) e2m1_blocks(T, N, w, s, x, b, sum);
    for (; b < tiles; b++) e2m1_blocks(T, 1, w, s, x, b, sum);
    store_sums(T, sum, y, y_offset);
}

/* `lines` lines of N blocks of BF16 or F32 weights (W columns in a word) from column `first` on. */
KERNEL void dense_blocks(const size_t T, const size_t N, const size_t W, const uint8_t *w, const float *const *x,
                         size_t first, size_t lines, __m256 *sum)
{
    const size_t block_bytes = MPK_BLOCK / W * 64;
    __m256 chain[TOKENS * 2];
    for (size_t i = 0; i < T * N * 2; i++) chain[i] = _mm256_setzero_ps();
    for (size_t c = 0; c < lines; c++) UNROLL
    for (size_t i = 0; i < N * 2; i++) {
        const uint8_t *at = w + i / 2 * block_bytes + c * 64 + i % 2 * 32;
        if (i % 2 == 0) _mm_prefetch((const char *)at + PREFETCH_BYTES, _MM_HINT_T0);
        __m256i line = load(at);
        UNROLL
        for (size_t h = 0; h < W; h++) {
            __m256i bits = W == 1   ? line
                           : h == 0 ? _mm256_slli_epi32(line, 16)
                                    : _mm256_and_si256(line, _mm256_set1_epi32((int)0xffff0000));
            __m256 v = _mm256_castsi256_ps(bits);
            UNROLL
            for (size_t t = 0; t < T; t++)
                chain[t * N * 2 + i] = _mm256_fmadd_ps(v, _mm256_set1_ps(x[t][first + i / 2 * MPK_BLOCK + c * W + h]),
                                                       chain[t * N * 2 + i]);
        }
    }
    UNROLL
    for (size_t i = 0; i < N * 2; i++) UNROLL
    for (size_t t = 0; t < T; t++) sum[t * 2 + i % 2] = _mm256_add_ps(sum[t * 2 + i % 2], chain[t * N * 2 + i]);
}

KERNEL void dense_rows(const size_t T, const size_t W, const uint8_t *w, size_t tiles, const float *const *x,
                       float *const *y, size_t y_offset)
{
    const size_t N = TOKENS / T, columns = tiles * 4 * W, lines = MPK_BLOCK / W;
    __m256 sum[TOKENS * 2];
    for (size_t i = 0; i < T * 2; i++) sum[i] = _mm256_setzero_ps();
    size_t c = 0;
    for (; columns - c >= N * MPK_BLOCK; c += N * MPK_BLOCK) dense_blocks(T, N, W, w + c / W * 64, x, c, lines, sum);
    for (; columns - c >= MPK_BLOCK; c += MPK_BLOCK) dense_blocks(T, 1, W, w + c / W * 64, x, c, lines, sum);
    if (c < columns) dense_blocks(T, 1, W, w + c / W * 64, x, c, (columns - c) / W, sum);
    store_sums(T, sum, y, y_offset);
}

#include "rows.h"

const mpk_kernels mpk_kernels_avx2 = {.name = "avx2", MPK_ROWS_FIELDS, MPK_ELEMENTWISE_FIELDS(avx2)};
#else
typedef int mpk_avx2_needs_x86;
#endif
