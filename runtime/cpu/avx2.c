/* AVX2 + FMA kernels: a tile line is two vectors of 8 rows by 32 bits, one lane per row.
 *
 * With MOEPACK_EMULATE_AVX2 the intrinsics come from a plain C header of the tests, as for AVX-512. */
#if defined(__x86_64__) || defined(MOEPACK_EMULATE_AVX2)

#include "elementwise.h"
#include "int8.h"

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

#include "lines_avx2.h"

/* As in avx512.c. */
#define PREFETCH_BYTES 8192

/* Most tokens in registers at once: sixteen registers hold no more sums. */
#define TOKENS 4
/* gcc keeps the sums of four tokens of BF16 weights in memory (42 instead of 84 GFLOP/s on Zen 4). */
#define DENSE_TOKENS 3

MPK_DEFINE_ELEMENTWISE(avx2, TARGET)

/* 2v, as vpshufb wants it. */
#define TWICE 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* Magnitudes of the eight positive codes for vpermps, which uses three index bits. */
static const float magnitudes[8] __attribute__((aligned(32))) = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

KERNEL void store_rows(float *y, __m256 v)
{
    _mm256_storeu_ps(y, canonical(v));
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
    UNROLL
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
    UNROLL
    for (size_t i = 0; i < T * 2; i++) store_rows(y[i / 2] + y_offset + i % 2 * 8, sum[i]);
}

KERNEL void e2m1_rows(const size_t T, const uint8_t *w, const uint8_t *s, size_t tiles, const float *const *x,
                      float *const *y, size_t y_offset)
{
    const size_t N = TOKENS / T;
    __m256 sum[TOKENS * 2];
    UNROLL
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
    UNROLL
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
    UNROLL
    for (size_t i = 0; i < T * 2; i++) sum[i] = _mm256_setzero_ps();
    size_t c = 0;
    for (; columns - c >= N * MPK_BLOCK; c += N * MPK_BLOCK) dense_blocks(T, N, W, w + c / W * 64, x, c, lines, sum);
    for (; columns - c >= MPK_BLOCK; c += MPK_BLOCK) dense_blocks(T, 1, W, w + c / W * 64, x, c, lines, sum);
    if (c < columns) dense_blocks(T, 1, W, w + c / W * 64, x, c, (columns - c) / W, sum);
    store_sums(T, sum, y, y_offset);
}

/* ---------------------------------------------------------------------------------------------- many tokens
 *
 * Weights are decoded once for all tokens of a call, into the first-level cache. */

/* From this many tokens on that is faster than decoding in registers for every four of them. */
#define PANEL_TOKENS 12       /* fix16 */
#define FLOAT_PANEL_TOKENS 12 /* E2M1 with F32 inputs */
#define DENSE_PANEL_TOKENS 12 /* BF16, F32 */
/* Tokens whose inputs are kept in the form that the kernel below reads. */
#define SLAB 64
/* Tokens of F32 inputs at once: twelve sums hide the latency of two FMA units. */
#define WIDE 6
/* Their inputs: this many columns, in rows that far apart. */
#define INPUT_COLUMNS 256
#define INPUT_STRIDE (INPUT_COLUMNS + 16)

/* Sixteen blocks of weights as pairs of 16-bit integers 2v, and the inputs to match: pair 4c + 2h of a block holds
 * columns 8c + h and 8c + h + 4, the next one the columns two further on. */
typedef struct fix16_panel {
    int16_t weight[16][16][MPK_ROWS][2] __attribute__((aligned(64)));
    int32_t input[SLAB][16][16] __attribute__((aligned(64)));
} fix16_panel;

static const int8_t twice_codes[32] __attribute__((aligned(32))) = {TWICE, TWICE};

/* Both columns of a pair are sign-extended bytes of one word: bytes 0 and 2, or 1 and 3. */
KERNEL __m256i bytes_even(__m256i v)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
}

KERNEL void fix16_decode(const uint8_t *w, size_t blocks, fix16_panel *p)
{
    const __m256i lut = load((const uint8_t *)twice_codes), low = _mm256_set1_epi8(15);
    for (size_t i = 0; i < blocks * 4; i++) {
        _mm_prefetch((const char *)w + i * 64 + PREFETCH_BYTES, _MM_HINT_T0);
        UNROLL
        for (size_t v = 0; v < 2; v++) UNROLL
        for (size_t h = 0; h < 2; h++) {
            __m256i line = load(w + i * 64 + v * 32);
            if (h == 1) line = _mm256_srli_epi16(line, 4);
            line = _mm256_shuffle_epi8(lut, _mm256_and_si256(line, low));
            int16_t(*out)[MPK_ROWS][2] = &p->weight[i / 4][i % 4 * 4 + h * 2];
            _mm256_store_si256((__m256i *)(void *)out[0][v * 8], bytes_even(line));
            _mm256_store_si256((__m256i *)(void *)out[1][v * 8], _mm256_srai_epi16(line, 8));
        }
    }
}

/* q = 256 hi + lo of all columns, in the panel's order. */
KERNEL void fix16_join(const mpk_fix16_block *x, size_t blocks, int32_t (*out)[16])
{
    const __m256i top = _mm256_set1_epi16((int16_t)0xff00);
    for (size_t b = 0; b < blocks; b++) UNROLL
    for (size_t i = 0; i < 2; i++) {
        const __m256i digits = _mm256_loadu_si256((const __m256i *)(const void *)x[b].digit[i * 2]);
        const __m256i hi = _mm256_shuffle_epi32(digits, 0xa0), lo = _mm256_shuffle_epi32(digits, 0xf5);
        const __m256i even = _mm256_add_epi16(_mm256_slli_epi16(hi, 8), bytes_even(lo));
        const __m256i odd = _mm256_add_epi16(_mm256_and_si256(hi, top), _mm256_srai_epi16(lo, 8));
        _mm256_store_si256((__m256i *)(void *)&out[b][i * 8], _mm256_blend_epi32(even, odd, 0xaa));
    }
}

/* One group (spec/numerics.md 4.3) of 16 rows for T tokens, added to y. */
KERNEL void fix16_group(const size_t T, const fix16_panel *p, size_t slot, const uint8_t *s, size_t blocks,
                        const mpk_fix16_block *const *x, size_t first, float *const *y, size_t y_offset)
{
    __m256 group[TOKENS * 2], segment[TOKENS * 2];
    UNROLL
    for (size_t i = 0; i < T * 2; i++) group[i] = segment[i] = _mm256_setzero_ps();
    for (size_t b = 0; b < blocks; b++) {
        __m256i sum[TOKENS * 2];
        UNROLL
        for (size_t i = 0; i < T * 2; i++) sum[i] = _mm256_set1_epi32(0);
        UNROLL
        for (size_t j = 0; j < 16; j++) {
            __m256i w[2] = {load((const uint8_t *)p->weight[b][j][0]), load((const uint8_t *)p->weight[b][j][8])};
            KEEP(w[0]); /* else gcc loads them again for every product */
            KEEP(w[1]);
            UNROLL
            for (size_t t = 0; t < T; t++) {
                const __m256i q = _mm256_set1_epi32(p->input[slot + t][b][j]);
                UNROLL
                for (size_t v = 0; v < 2; v++) {
                    sum[t * 2 + v] = _mm256_add_epi32(sum[t * 2 + v], _mm256_madd_epi16(w[v], q));
                    KEEP(sum[t * 2 + v]);
                }
            }
        }
        UNROLL
        for (size_t v = 0; v < 2; v++) {
            const __m256 scale = weight_scales(s + b * MPK_ROWS + v * 8);
            UNROLL
            for (size_t t = 0; t < T; t++) {
                const size_t i = t * 2 + v;
                __m256 d = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[i]), _mm256_set1_ps(x[t][first + b].scale));
                segment[i] = _mm256_fmadd_ps(d, scale, segment[i]);
            }
        }
        if (b % 4 != 3 && b + 1 < blocks) continue;
        UNROLL
        for (size_t i = 0; i < T * 2; i++) {
            group[i] = _mm256_add_ps(group[i], segment[i]);
            segment[i] = _mm256_setzero_ps();
        }
    }
    UNROLL
    for (size_t i = 0; i < T * 2; i++) {
        float *at = y[i / 2] + y_offset + i % 2 * 8;
        _mm256_storeu_ps(at, _mm256_add_ps(_mm256_loadu_ps(at), group[i]));
    }
}

/* `columns` columns of one block, decoded to F32, for T tokens. y = y + chain, or with `s` y = fma(chain,
 * scale, y). */
KERNEL void panel_chain(const size_t T, const float *w, const uint8_t *s, const float *in, size_t columns,
                        float *const *y, size_t y_offset)
{
    __m256 chain[WIDE * 2];
    UNROLL
    for (size_t i = 0; i < T * 2; i++) chain[i] = _mm256_setzero_ps();
    UNROLL
    for (size_t c = 0; c < columns; c++) {
        __m256 line[2] = {_mm256_load_ps(w + c * MPK_ROWS), _mm256_load_ps(w + c * MPK_ROWS + 8)};
        KEEP(line[0]);
        KEEP(line[1]);
        UNROLL
        for (size_t t = 0; t < T; t++) {
            const __m256 v = _mm256_set1_ps(in[t * INPUT_STRIDE + c]);
            chain[t * 2] = _mm256_fmadd_ps(line[0], v, chain[t * 2]);
            chain[t * 2 + 1] = _mm256_fmadd_ps(line[1], v, chain[t * 2 + 1]);
        }
    }
    UNROLL
    for (size_t v = 0; v < 2; v++) {
        const __m256 scale = s != NULL ? weight_scales(s + v * 8) : _mm256_set1_ps(1.0f);
        UNROLL
        for (size_t t = 0; t < T; t++) {
            float *at = y[t] + y_offset + v * 8;
            /* times 1 is exact: both rules are this one operation */
            _mm256_storeu_ps(at, _mm256_fmadd_ps(chain[t * 2 + v], scale, _mm256_loadu_ps(at)));
        }
    }
}

KERNEL void e2m1_decode(const uint8_t *w, float *out)
{
    const __m256 lut = _mm256_load_ps(magnitudes);
    const __m256i sign = _mm256_set1_epi32((int)0x80000000);
    for (size_t i = 0; i < 8; i++) {
        if (i % 2 == 0) _mm_prefetch((const char *)w + i * 32 + PREFETCH_BYTES, _MM_HINT_T0);
        __m256i line = load(w + i * 32);
        UNROLL
        for (size_t j = 0; j < 8; j++) {
            const __m256i negative = _mm256_and_si256(_mm256_slli_epi32(line, 28), sign);
            const __m256 v = _mm256_or_ps(_mm256_permutevar8x32_ps(lut, line), _mm256_castsi256_ps(negative));
            _mm256_store_ps(out + (i / 2 * 8 + j) * MPK_ROWS + i % 2 * 8, v);
            line = _mm256_srli_epi32(line, 4);
        }
    }
}

KERNEL void bf16_decode(const uint8_t *w, size_t lines, float *out)
{
    const __m256i top = _mm256_set1_epi32((int)0xffff0000);
    for (size_t i = 0; i < lines * 2; i++) {
        if (i % 2 == 0) _mm_prefetch((const char *)w + i * 32 + PREFETCH_BYTES, _MM_HINT_T0);
        const __m256i line = load(w + i * 32);
        float *at = out + i / 2 * 2 * MPK_ROWS + i % 2 * 8;
        _mm256_store_ps(at, _mm256_castsi256_ps(_mm256_slli_epi32(line, 16)));
        _mm256_store_ps(at + MPK_ROWS, _mm256_castsi256_ps(_mm256_and_si256(line, top)));
    }
}

#include "rows.h"

#ifndef MOEPACK_EMULATE_AVX2
#define LANE_FMA(a, b, c) ((lane_float)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#endif
#include "forms_lanes.h"

#define AVX2_FIELDS \
    .forms = form_lanes, MPK_ROWS_FIELDS, .quantize_int8 = mpk_int8_quantize_avx2, MPK_ELEMENTWISE_FIELDS(avx2)

const mpk_kernels mpk_kernels_avx2 = {.name = "avx2", .gemv_int8 = mpk_int8_gemv_avx2, AVX2_FIELDS};
const mpk_kernels mpk_kernels_avxvnni = {.name = "avxvnni", .gemv_int8 = mpk_int8_gemv_avxvnni, AVX2_FIELDS};
#else
typedef int mpk_avx2_needs_x86;
#endif
