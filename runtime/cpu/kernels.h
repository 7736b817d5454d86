/* The arithmetic kernels of the CPU path, one table of functions per instruction set family.
 *
 * Every family computes the same bits (spec/numerics.md); they differ in speed only. Kernels do not allocate, do not
 * touch the floating point environment and do not fail: callers check everything first (layer.c) and run them under
 * mpk_float_guard. */
#ifndef MOEPACK_CPU_KERNELS_H
#define MOEPACK_CPU_KERNELS_H

#include "moepack/format.h"

#include <stddef.h>
#include <stdint.h>

/* Rows of a panel tile, and columns of a block: the unit of summation and of input scales. */
#define MPK_ROWS 16
#define MPK_BLOCK 32
#define MPK_TILE_BYTES 256

/* 32 inputs as 16-bit integers q with a common power-of-two scale (spec/numerics.md section 4), split into two signed
 * base-256 digits, q = 256 hi + lo, in the order in which kernels read them: the word of line c, half h (columns
 * 8c + h, +2, +4, +6) holds four digits; hi digits are in digit[c][h][0], lo digits in digit[c][h][1].
 * Kernels look weights up as 12 + 2v (unsigned); the seeds take the surplus of 12 sum(q) away again. */
typedef struct mpk_fix16_block {
    int8_t digit[4][2][2][4];
    int32_t seed;       /* -12 * sum of all q */
    int16_t seed_hi[2]; /* -12 * sum of the hi digits with index 0,1 and 2,3 in their word, modulo 2^16 */
    int16_t seed_lo[2];
    float scale;        /* 2^-k / 2 (weights enter as 2v); NaN where an input is infinite or NaN */
    int32_t seed_first; /* `seed` of the first 16 columns alone */
} mpk_fix16_block;

_Static_assert(sizeof(mpk_fix16_block) == 84, "kernels step through blocks by this size");

/* 32 inputs as 8-bit integers with a common scale (spec/numerics.md section 12), words in the order of fix16's digits.
 */
typedef struct mpk_int8_block {
    int8_t q[4][2][4];
    int32_t seed;         /* -12 * sum of all q */
    int16_t seed_pair[2]; /* -12 * sum of those with index 0,1 and 2,3 in their word */
    float scale;          /* f; NaN where an input is infinite or NaN */
} mpk_int8_block;

_Static_assert(sizeof(mpk_int8_block) == 44, "kernels step through blocks by this size");

/* y[t][0 .. 16 row_blocks) = W x[t]: W are `row_blocks` consecutive row blocks of a matrix in panel order. */
typedef struct mpk_gemv {
    const uint8_t *weights; /* first tile, 64-byte aligned */
    const uint8_t *scales;  /* E2M1 only: first 16 scale bytes */
    size_t tiles;           /* tiles in a row block: ceil(cols / columns of a tile) */
    size_t row_blocks;
    size_t tokens;
    const void *const *x; /* per token: ceil(cols / 32) blocks, or floats, zero up to a multiple of 32 columns */
    float *const *y;      /* per token: 16 row_blocks floats, no alignment needed */
} mpk_gemv;

/* The activation of an expert or of the shared experts (spec/numerics.md section 6). */
typedef struct mpk_activation_params {
    moepack_activation kind;
    float beta;        /* SITU */
    float linear_beta; /* SITU; 0: the up branch is not capped */
    float alpha;       /* SWIGLU_OAI */
    float limit;       /* SILU_CLAMPED, SWIGLU_OAI; 0: none */
} mpk_activation_params;

struct mpk_form_scales;

/* Arrays of the element-wise functions need no alignment; n is a multiple of 16. */
typedef struct mpk_kernels {
    const char *name;
    void (*gemv_fix16)(const mpk_gemv *op); /* E2M1 weights, x: mpk_fix16_block */
    void (*gemv_e2m1)(const mpk_gemv *op);  /* E2M1 weights, x: float */
    void (*gemv_int8)(const mpk_gemv *op);  /* E2M1 weights, x: mpk_int8_block */
    void (*gemv_bf16)(const mpk_gemv *op);
    void (*gemv_f32)(const mpk_gemv *op);
    void (*quantize)(const float *x, mpk_fix16_block *out, size_t blocks);
    void (*quantize_int8)(const float *x, mpk_int8_block *out, size_t blocks);
    void (*round_bf16)(const float *x, float *out, size_t n); /* x == out is fine */
    /* out == gate is fine. up == NULL: not gated, the activation of `gate` alone (RELU, RELU2, SILU, GELU, GELU_TANH).
     */
    void (*activate)(const mpk_activation_params *params, const float *gate, const float *up, float *out, size_t n);
    void (*sigmoid)(const float *x, float *out, size_t n);
    void (*sqrt_softplus)(const float *x, float *out, size_t n);
    void (*scale)(float weight, const float *x, float *out, size_t n);    /* out = weight x; x == out is fine */
    void (*add)(const float *b, float *y, size_t n);                      /* y = y + b */
    void (*exp_minus)(const float *x, float shift, float *out, size_t n); /* e^(x - shift) */
    void (*accumulate)(float weight, const float *o, float *s, size_t n); /* s = fma(weight, o, s) */
    void (*norm)(const float *s, const float *weight, float eps, float *out,
                 size_t n);                                                         /* s beyond n is zero up to 32 */
    void (*const *forms)(const mpk_gemv *op, const struct mpk_form_scales *scales); /* forms.h; NULL: the scalar ones */
} mpk_kernels;

extern const mpk_kernels mpk_kernels_scalar;
#if defined(__x86_64__)
extern const mpk_kernels mpk_kernels_avx2;
extern const mpk_kernels mpk_kernels_avxvnni;
extern const mpk_kernels mpk_kernels_avx512;
#elif defined(__aarch64__)
extern const mpk_kernels mpk_kernels_neon;
#endif

/* The family of that name, or the best one this processor runs for NULL. Errors: USAGE for an unknown name (lists the
 * known ones), UNSUPPORTED for a known family that this processor or operating system lacks. */
moepack_status mpk_kernels_select(const char *name, const mpk_kernels **out, moepack_error *error);

/* Name of family i, best last; NULL past the end. And whether this processor runs it. */
const char *mpk_kernels_name(size_t i);
int mpk_kernels_usable(size_t i);

/* Floating point state of the calling thread: enter sets round to nearest with subnormals kept and exceptions masked,
 * leave restores what was there. */
typedef struct mpk_float_guard {
    uint64_t saved;
} mpk_float_guard;

void mpk_float_enter(mpk_float_guard *guard);
void mpk_float_leave(const mpk_float_guard *guard);

#endif
