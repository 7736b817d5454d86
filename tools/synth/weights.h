/* Random weights with the statistics of trained ones, and their quantisation to MXFP4.
 *
 * A weight is v x unit. v is an integer with a bell-shaped distribution (standard deviation about MPK_SYNTH_SIGMA),
 * rarely eight times larger (outliers); unit is one number per row, spread from row to row like a log-normal. Only
 * integers and
 * + - * / sqrt on IEEE doubles take part, so the bytes depend on the seed alone: not on the machine, the compiler, the
 * instruction set or the number of threads. */
#ifndef MOEPACK_SYNTH_WEIGHTS_H
#define MOEPACK_SYNTH_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#define MPK_SYNTH_BLOCK 32    /* columns that share one scale byte in MXFP4; also the unit in which numbers are drawn */
#define MPK_SYNTH_SIGMA 614.0 /* standard deviation of v without outliers, measured over 10^8 draws: 614 */
#define MPK_SYNTH_OUTLIER 8   /* factor of an outlier */

/* What a tensor's values look like: centre + std x (bell) x (row scale). */
typedef struct mpk_synth_law {
    double centre;
    double std;
    double spread; /* 0: every row alike; 0.35: standard deviation of ln(row scale) about 0.4 */
} mpk_synth_law;

/* Fills rows [first, first + rows) of a tensor with `cols` columns whose key is `key`. Little-endian. */
typedef void mpk_synth_fill(uint64_t key, uint64_t first, uint64_t rows, uint64_t cols, const mpk_synth_law *law,
                            uint8_t *out);

/* MXFP4: `packed` gets rows x cols / 2 bytes, `scale` rows x cols / 32; cols is a multiple of 32. */
typedef void mpk_synth_fill_mxfp4(uint64_t key, uint64_t first, uint64_t rows, uint64_t cols, const mpk_synth_law *law,
                                  uint8_t *packed, uint8_t *scale);

/* Product of four uniform numbers in 1 - spread .. 1 + spread: close to log-normal. Decided by the four 16-bit parts of
 * `random`. */
double mpk_synth_factor(uint64_t random, double spread);

/* Nearest BF16 number, ties to even, as bits. Not for NaN. */
uint16_t mpk_synth_bf16(float value);

/* A row's unit as mantissa x 2^exponent with 16 bits of mantissa, 32768 .. 65535: products with v are then exact
 * integers. */
typedef struct mpk_synth_unit {
    uint32_t mantissa;
    int exponent;
} mpk_synth_unit;

mpk_synth_unit mpk_synth_unit_of(double value); /* value > 0 and normal; cut to 16 bits */

/* Quantises one block, v x unit, to 16 packed bytes and returns the scale byte. The first 16 numbers are the even
 * columns, the others the odd ones; |v| <= 20000. */
typedef uint8_t mpk_synth_quantise(const int16_t v[MPK_SYNTH_BLOCK], mpk_synth_unit unit,
                                   uint8_t packed[MPK_SYNTH_BLOCK / 2]);

/* The same code compiled for several instruction sets; all give the same bytes. */
typedef struct mpk_synth_kernels {
    const char *name;
    mpk_synth_fill_mxfp4 *mxfp4;
    mpk_synth_fill *bf16;
    mpk_synth_fill *f32;
    mpk_synth_quantise *quantise;
} mpk_synth_kernels;

/* The i-th set this processor can run, the best one first; NULL past the end. */
const mpk_synth_kernels *mpk_synth_kernels_get(size_t i);

#endif
