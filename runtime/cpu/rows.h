/* From functions written for any number of tokens to the gemv entries of a kernel table: the tail end of every vector
 * family. Include once, after TARGET, TOKENS (4 or 8: the most tokens that fit into registers), DENSE_TOKENS (the same
 * for BF16 and F32 weights) and the family's
 * fix16_rows, e2m1_rows and dense_rows. */
#ifndef MOEPACK_CPU_ROWS_H
#define MOEPACK_CPU_ROWS_H

#include "kernels.h"

/* One function per number of tokens, so that the loops over tokens unroll and everything stays in registers. */
typedef void rows_function(const mpk_gemv *op, size_t row_block, size_t token);

#define FIX16_ROWS(T)                                                                                                 \
    TARGET static void fix16_rows_##T(const mpk_gemv *op, size_t r, size_t t)                                         \
    {                                                                                                                 \
        fix16_rows(T, op->weights + r * op->tiles * MPK_TILE_BYTES, op->scales + r * op->tiles * MPK_ROWS, op->tiles, \
                   (const mpk_fix16_block *const *)op->x + t, op->y + t, r * MPK_ROWS);                               \
    }
#define E2M1_ROWS(T)                                                                                                 \
    TARGET static void e2m1_rows_##T(const mpk_gemv *op, size_t r, size_t t)                                         \
    {                                                                                                                \
        e2m1_rows(T, op->weights + r * op->tiles * MPK_TILE_BYTES, op->scales + r * op->tiles * MPK_ROWS, op->tiles, \
                  (const float *const *)op->x + t, op->y + t, r * MPK_ROWS);                                         \
    }
#define DENSE_ROWS(T)                                                                                              \
    TARGET static void bf16_rows_##T(const mpk_gemv *op, size_t r, size_t t)                                       \
    {                                                                                                              \
        dense_rows(T, 2, op->weights + r * op->tiles * MPK_TILE_BYTES, op->tiles, (const float *const *)op->x + t, \
                   op->y + t, r * MPK_ROWS);                                                                       \
    }                                                                                                              \
    TARGET static void f32_rows_##T(const mpk_gemv *op, size_t r, size_t t)                                        \
    {                                                                                                              \
        dense_rows(T, 1, op->weights + r * op->tiles * MPK_TILE_BYTES, op->tiles, (const float *const *)op->x + t, \
                   op->y + t, r * MPK_ROWS);                                                                       \
    }
#if TOKENS == 4
#define ALL_TOKENS(DEFINE) DEFINE(1) DEFINE(2) DEFINE(3) DEFINE(4)
#define TABLE(NAME)                                  \
    {                                                \
        NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4 \
    }
#elif TOKENS == 8
#define ALL_TOKENS(DEFINE) DEFINE(1) DEFINE(2) DEFINE(3) DEFINE(4) DEFINE(5) DEFINE(6) DEFINE(7) DEFINE(8)
#define TABLE(NAME)                                                                          \
    {                                                                                        \
        NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6, NAME##_7, NAME##_8 \
    }
#else
#error "TOKENS must be 4 or 8"
#endif

ALL_TOKENS(FIX16_ROWS)
ALL_TOKENS(E2M1_ROWS)
ALL_TOKENS(DENSE_ROWS)

static rows_function *const fix16_table[TOKENS + 1] = TABLE(fix16_rows);
static rows_function *const e2m1_table[TOKENS + 1] = TABLE(e2m1_rows);
static rows_function *const bf16_table[TOKENS + 1] = TABLE(bf16_rows);
static rows_function *const f32_table[TOKENS + 1] = TABLE(f32_rows);

/* A row block stays in the first cache levels while groups of tokens pass over it. */
static void gemv(const mpk_gemv *op, rows_function *const *table, size_t most)
{
    for (size_t r = 0; r < op->row_blocks; r++)
        for (size_t t = 0; t < op->tokens;) {
            const size_t n = op->tokens - t < most ? op->tokens - t : most;
            table[n](op, r, t);
            t += n;
        }
}

#ifdef PANEL_TOKENS

/* Many tokens. Weights are decoded once, into a buffer that stays in the first-level cache, and y holds the sums in
 * between: fix16_decode, fix16_join and fix16_group for a group of columns, e2m1_decode, bf16_decode and panel_chain
 * for a block. */

#define FIX16_GROUP(T)                                                                                             \
    TARGET static void fix16_group_##T(const fix16_panel *p, size_t slot, const uint8_t *s, size_t blocks,         \
                                       const mpk_fix16_block *const *x, size_t first, float *const *y, size_t off) \
    {                                                                                                              \
        fix16_group(T, p, slot, s, blocks, x, first, y, off);                                                      \
    }
#define PANEL_CHAIN(T)                                                                                    \
    TARGET static void panel_chain_##T(const float *w, const uint8_t *s, const float *in, size_t columns, \
                                       float *const *y, size_t off)                                       \
    {                                                                                                     \
        if (columns == MPK_BLOCK) {                                                                       \
            panel_chain(T, w, s, in, MPK_BLOCK, y, off);                                                  \
        } else {                                                                                          \
            panel_chain(T, w, s, in, columns, y, off);                                                    \
        }                                                                                                 \
    }
#if WIDE != 6
#error "the tables below are for six"
#endif
#define ALL_WIDE(DEFINE) DEFINE(1) DEFINE(2) DEFINE(3) DEFINE(4) DEFINE(5) DEFINE(6)
#define WIDE_TABLE(NAME)                                                 \
    {                                                                    \
        NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6 \
    }

ALL_TOKENS(FIX16_GROUP)
ALL_WIDE(PANEL_CHAIN)

typedef void fix16_group_function(const fix16_panel *p, size_t slot, const uint8_t *s, size_t blocks,
                                  const mpk_fix16_block *const *x, size_t first, float *const *y, size_t off);
typedef void panel_chain_function(const float *w, const uint8_t *s, const float *in, size_t columns, float *const *y,
                                  size_t off);
static fix16_group_function *const group_table[TOKENS + 1] = TABLE(fix16_group);
static panel_chain_function *const chain_table[WIDE + 1] = WIDE_TABLE(panel_chain);

static void clear_sums(const mpk_gemv *op)
{
    for (size_t t = 0; t < op->tokens; t++) memset(op->y[t], 0, op->row_blocks * MPK_ROWS * sizeof(float));
}

static void finish_sums(const mpk_gemv *op)
{
    for (size_t t = 0; t < op->tokens; t++)
        for (size_t i = 0; i < op->row_blocks * MPK_ROWS; i++) op->y[t][i] = mpk_canonical(op->y[t][i]);
}

/* Blocks [b, + blocks) of all row blocks for tokens [t, + tokens). */
TARGET static void fix16_slab(const mpk_gemv *op, fix16_panel *panel, size_t b, size_t blocks, size_t t, size_t tokens)
{
    const mpk_fix16_block *const *x = (const mpk_fix16_block *const *)op->x + t;
    for (size_t i = 0; i < tokens; i++) fix16_join(x[i] + b, blocks, panel->input[i]);
    for (size_t r = 0; r < op->row_blocks; r++) {
        fix16_decode(op->weights + (r * op->tiles + b) * MPK_TILE_BYTES, blocks, panel);
        for (size_t i = 0; i < tokens; i += TOKENS)
            group_table[tokens - i < TOKENS ? tokens - i : TOKENS](
                panel, i, op->scales + (r * op->tiles + b) * MPK_ROWS, blocks, x + i, b, op->y + t + i, r * MPK_ROWS);
    }
}

static void fix16_many(const mpk_gemv *op)
{
    fix16_panel panel;
    clear_sums(op);
    for (size_t b = 0; b < op->tiles; b += 16)
        for (size_t t = 0; t < op->tokens; t += SLAB)
            fix16_slab(op, &panel, b, op->tiles - b < 16 ? op->tiles - b : 16, t,
                       op->tokens - t < SLAB ? op->tokens - t : SLAB);
    finish_sums(op);
}

/* Columns [c, + columns) of all row blocks for `tokens` tokens, whose inputs lie in `in`. */
TARGET static void float_slab(const mpk_gemv *op, size_t per_word, const float *in, size_t c, size_t columns, size_t t,
                              size_t tokens)
{
    float panel[MPK_BLOCK * MPK_ROWS] __attribute__((aligned(64)));
    for (size_t r = 0; r < op->row_blocks; r++)
        for (size_t i = 0; i < columns; i += MPK_BLOCK) {
            const size_t count = columns - i < MPK_BLOCK ? columns - i : MPK_BLOCK, first = c + i;
            const uint8_t *w = op->weights + r * op->tiles * MPK_TILE_BYTES + first / per_word * 64;
            const uint8_t *s = per_word == 8 ? op->scales + (r * op->tiles + first / MPK_BLOCK) * MPK_ROWS : NULL;
            const float *values = panel;
            if (per_word == 8) e2m1_decode(w, panel);
            if (per_word == 2) bf16_decode(w, count / 2, panel);
            if (per_word == 1) values = (const float *)(const void *)w;
            for (size_t k = 0; k < tokens; k += WIDE)
                chain_table[tokens - k < WIDE ? tokens - k : WIDE](values, s, in + k * INPUT_STRIDE + i, count,
                                                                   op->y + t + k, r * MPK_ROWS);
        }
}

/* `per_word`: columns in a word: 8 (E2M1), 2 (BF16) or 1 (F32, read where it lies). Inputs are copied, because rows of
 * common widths are a multiple of 4 KiB apart and would share a few sets of the cache. */
TARGET static void float_many(const mpk_gemv *op, size_t per_word)
{
    float in[SLAB * INPUT_STRIDE] __attribute__((aligned(64)));
    const size_t columns = op->tiles * 4 * per_word;
    clear_sums(op);
    for (size_t c = 0; c < columns; c += INPUT_COLUMNS)
        for (size_t t = 0; t < op->tokens; t += SLAB) {
            const size_t count = columns - c < INPUT_COLUMNS ? columns - c : INPUT_COLUMNS;
            const size_t tokens = op->tokens - t < SLAB ? op->tokens - t : SLAB;
            for (size_t i = 0; i < tokens; i++)
                memcpy(in + i * INPUT_STRIDE, (const float *)op->x[t + i] + c, count * sizeof *in);
            float_slab(op, per_word, in, c, count, t, tokens);
        }
    finish_sums(op);
}

#define MANY(op, least, call)      \
    if ((op)->tokens >= (least)) { \
        call;                      \
        return;                    \
    }
#else
#define MANY(op, least, call)
#endif

static void rows_gemv_fix16(const mpk_gemv *op)
{
    MANY(op, PANEL_TOKENS, fix16_many(op))
    gemv(op, fix16_table, TOKENS);
}

static void rows_gemv_e2m1(const mpk_gemv *op)
{
    MANY(op, FLOAT_PANEL_TOKENS, float_many(op, 8))
    gemv(op, e2m1_table, TOKENS);
}

static void rows_gemv_bf16(const mpk_gemv *op)
{
    MANY(op, DENSE_PANEL_TOKENS, float_many(op, 2))
    gemv(op, bf16_table, DENSE_TOKENS);
}

static void rows_gemv_f32(const mpk_gemv *op)
{
    MANY(op, DENSE_PANEL_TOKENS, float_many(op, 1))
    gemv(op, f32_table, DENSE_TOKENS);
}

/* The fields of the kernel table that this header provides. */
#define MPK_ROWS_FIELDS \
    .gemv_fix16 = rows_gemv_fix16, .gemv_e2m1 = rows_gemv_e2m1, .gemv_bf16 = rows_gemv_bf16, .gemv_f32 = rows_gemv_f32

#endif
