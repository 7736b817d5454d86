/* The int8 mode on 256-bit vectors of 8 rows, for int8_avx2.c (vpmaddubsw, sums of 16 bits) and avxvnni.c (vpdpbusd, 32
 * bits). Include after TARGET, and after these, which belong to the way of summing:
 *   SEED(x)          the sums of a block before its columns
 *   ADD(sum, w, q)   adds four products of 12 + 2v and q per row
 *   TOTAL(sum)       the block's sums as 32-bit integers
 *   GEMV             name of the function that this defines */
#include "unroll.h"

#include "lines_avx2.h"

#define PREFETCH_BYTES 8192

/* Up to three tokens read the weights as they lie. More share a panel of decoded weights, 16 rows by one group of 16
 * blocks, in the first-level cache, up to five tokens at a time: ten sums, two weights and one input in 16 registers.
 */
#define DIRECT_TOKENS 3
#define TOKENS 5
#define GROUP 16

/* 12 + 2v, 16 rows: vector v of half h of line c of block b is code[b][c][h][v]. */
typedef struct panel {
    uint8_t code[GROUP][4][2][2][32] __attribute__((aligned(64)));
    float scale[GROUP][MPK_ROWS] __attribute__((aligned(64)));
} panel;

KERNEL __m256i decode(__m256i line, size_t h)
{
    if (h == 1) line = _mm256_srli_epi16(line, 4);
    return _mm256_shuffle_epi8(load(offset_codes), _mm256_and_si256(line, _mm256_set1_epi8(15)));
}

KERNEL void fill_panel(panel *p, const uint8_t *w, const uint8_t *s, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++) {
        for (size_t i = 0; i < 8; i++) {
            const __m256i line = load(w + b * MPK_TILE_BYTES + i * 32);
            if (i % 2 == 0) _mm_prefetch((const char *)w + b * MPK_TILE_BYTES + i * 32 + PREFETCH_BYTES, _MM_HINT_T0);
            for (size_t h = 0; h < 2; h++)
                _mm256_store_si256((__m256i *)(void *)p->code[b][i / 2][h][i % 2], decode(line, h));
        }
        for (size_t v = 0; v < 2; v++) _mm256_store_ps(p->scale[b] + v * 8, weight_scales(s + b * MPK_ROWS + v * 8));
    }
}

/* Adds one block of 32 columns of 16 rows to the chains of T tokens; weights come from a panel (p, its block i) or from
 * w and s. */
KERNEL void block(const size_t T, const panel *p, size_t i, const uint8_t *w, const uint8_t *s,
                  const mpk_int8_block *const *x, size_t b, __m256 *segment)
{
    __m256i sum[TOKENS * 2];
    UNROLL_16
    for (size_t t = 0; t < T; t++) sum[t * 2] = sum[t * 2 + 1] = SEED(&x[t][b]);
    UNROLL_16
    for (size_t c = 0; c < 4; c++) {
        if (p == NULL) _mm_prefetch((const char *)w + c * 64 + PREFETCH_BYTES, _MM_HINT_T0);
        UNROLL_16
        for (size_t h = 0; h < 2; h++) {
            __m256i code[2];
            UNROLL_16
            for (size_t v = 0; v < 2; v++) {
                code[v] = p != NULL ? load(p->code[i][c][h][v]) : decode(load(w + c * 64 + v * 32), h);
                KEEP(code[v]);
            }
            UNROLL_16
            for (size_t t = 0; t < T; t++) {
                const __m256i q = word_of(x[t][b].q[c][h]);
                UNROLL_16
                for (size_t v = 0; v < 2; v++) {
                    sum[t * 2 + v] = ADD(sum[t * 2 + v], code[v], q);
                    KEEP(sum[t * 2 + v]);
                }
            }
        }
    }
    UNROLL_16
    for (size_t v = 0; v < 2; v++) {
        const __m256 scale = p != NULL ? _mm256_load_ps(p->scale[i] + v * 8) : weight_scales(s + v * 8);
        UNROLL_16
        for (size_t t = 0; t < T; t++) {
            const __m256 exact = _mm256_cvtepi32_ps(TOTAL(sum[t * 2 + v]));
            segment[t * 2 + v] =
                _mm256_fmadd_ps(_mm256_mul_ps(exact, _mm256_set1_ps(x[t][b].scale)), scale, segment[t * 2 + v]);
        }
    }
}

/* The sums of one group of blocks from `first` on: FMA chains over 4 blocks, those summed. */
KERNEL void group_of(const size_t T, const panel *p, const uint8_t *w, const uint8_t *s, const mpk_int8_block *const *x,
                     size_t first, size_t end, __m256 *group)
{
    for (size_t i = 0; i < T * 2; i++) group[i] = _mm256_setzero_ps();
    for (size_t b = first; b < end;) {
        const size_t segment_end = end - b > 4 ? b + 4 : end;
        __m256 segment[TOKENS * 2];
        for (size_t i = 0; i < T * 2; i++) segment[i] = _mm256_setzero_ps();
        for (; b < segment_end; b++) block(T, p, b - first, w + b * MPK_TILE_BYTES, s + b * MPK_ROWS, x, b, segment);
        for (size_t i = 0; i < T * 2; i++) group[i] = _mm256_add_ps(group[i], segment[i]);
    }
}

KERNEL void direct_rows(const size_t T, const mpk_gemv *op, size_t r)
{
    const uint8_t *w = op->weights + r * op->tiles * MPK_TILE_BYTES, *s = op->scales + r * op->tiles * MPK_ROWS;
    const mpk_int8_block *const *x = (const mpk_int8_block *const *)op->x;
    __m256 sum[TOKENS * 2], group[TOKENS * 2];
    for (size_t i = 0; i < T * 2; i++) sum[i] = _mm256_setzero_ps();
    for (size_t b = 0; b < op->tiles; b += GROUP) {
        const size_t end = op->tiles - b > GROUP ? b + GROUP : op->tiles;
        _mm_prefetch((const char *)s + b * MPK_ROWS + PREFETCH_BYTES / 16, _MM_HINT_T0);
        group_of(T, NULL, w, s, x, b, end, group);
        for (size_t i = 0; i < T * 2; i++) sum[i] = _mm256_add_ps(sum[i], group[i]);
    }
    for (size_t i = 0; i < T * 2; i++) _mm256_storeu_ps(op->y[i / 2] + r * MPK_ROWS + i % 2 * 8, canonical(sum[i]));
}

/* Adds the sums of one group of blocks to y of T tokens from `t` on. */
KERNEL void panel_rows(const size_t T, const mpk_gemv *op, const panel *p, size_t r, size_t b, size_t t)
{
    const size_t end = op->tiles - b > GROUP ? b + GROUP : op->tiles;
    __m256 group[TOKENS * 2];
    group_of(T, p, op->weights, op->scales, (const mpk_int8_block *const *)op->x + t, b, end, group);
    for (size_t i = 0; i < T * 2; i++) {
        float *y = op->y[t + i / 2] + r * MPK_ROWS + i % 2 * 8;
        const __m256 before = b == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(y), sum = _mm256_add_ps(before, group[i]);
        _mm256_storeu_ps(y, end == op->tiles ? canonical(sum) : sum);
    }
}

#define DIRECT(T)                                               \
    TARGET static void direct_##T(const mpk_gemv *op, size_t r) \
    {                                                           \
        direct_rows(T, op, r);                                  \
    }
#define PANEL(T)                                                                                   \
    TARGET static void panel_##T(const mpk_gemv *op, const panel *p, size_t r, size_t b, size_t t) \
    {                                                                                              \
        panel_rows(T, op, p, r, b, t);                                                             \
    }
DIRECT(1)
DIRECT(2)
DIRECT(3)
PANEL(2)
PANEL(3)
PANEL(4)
PANEL(5)

static void (*const direct_table[DIRECT_TOKENS + 1])(const mpk_gemv *, size_t) = {NULL, direct_1, direct_2, direct_3};
static void (*const panel_table[TOKENS + 1])(const mpk_gemv *, const panel *, size_t, size_t,
                                             size_t) = {NULL, NULL, panel_2, panel_3, panel_4, panel_5};

TARGET static void fill(panel *p, const mpk_gemv *op, size_t r, size_t b)
{
    const size_t tile = r * op->tiles + b, left = op->tiles - b;
    fill_panel(p, op->weights + tile * MPK_TILE_BYTES, op->scales + tile * MPK_ROWS, left < GROUP ? left : GROUP);
}

void GEMV(const mpk_gemv *op)
{
    panel p;
    for (size_t r = 0; r < op->row_blocks && op->tokens > 0; r++) {
        if (op->tokens <= DIRECT_TOKENS) {
            direct_table[op->tokens](op, r);
            continue;
        }
        for (size_t b = 0; b < op->tiles; b += GROUP) {
            fill(&p, op, r, b);
            for (size_t t = 0; t < op->tokens;) {
                const size_t left = op->tokens - t, groups = (left + TOKENS - 1) / TOKENS,
                             n = (left + groups - 1) / groups;
                panel_table[n](op, &p, r, b, t);
                t += n;
            }
        }
    }
}
