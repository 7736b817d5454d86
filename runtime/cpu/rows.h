/* From functions written for any number of tokens to the gemv entries of a kernel table: the tail end of every vector
 * family. Include once, after TARGET, TOKENS (4 or 8: the most tokens that fit into registers) and the family's
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
static void gemv(const mpk_gemv *op, rows_function *const *table)
{
    for (size_t r = 0; r < op->row_blocks; r++)
        for (size_t t = 0; t < op->tokens;) {
            const size_t n = op->tokens - t < TOKENS ? op->tokens - t : TOKENS;
            table[n](op, r, t);
            t += n;
        }
}

static void rows_gemv_fix16(const mpk_gemv *op)
{
    gemv(op, fix16_table);
}

static void rows_gemv_e2m1(const mpk_gemv *op)
{
    gemv(op, e2m1_table);
}

static void rows_gemv_bf16(const mpk_gemv *op)
{
    gemv(op, bf16_table);
}

static void rows_gemv_f32(const mpk_gemv *op)
{
    gemv(op, f32_table);
}

/* The fields of the kernel table that this header provides. */
#define MPK_ROWS_FIELDS \
    .gemv_fix16 = rows_gemv_fix16, .gemv_e2m1 = rows_gemv_e2m1, .gemv_bf16 = rows_gemv_bf16, .gemv_f32 = rows_gemv_f32

#endif
