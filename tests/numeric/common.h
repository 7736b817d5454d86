/* Shared by the numeric tests: kernel families to compare, random numbers, and matrices in panel order. */
#ifndef MOEPACK_TESTS_NUMERIC_COMMON_H
#define MOEPACK_TESTS_NUMERIC_COMMON_H

#include "cpu/kernels.h"
#include "layer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Where an emulated processor runs the tests everything takes twenty times as long: fewer cases, the same paths. */
#ifdef MOEPACK_TEST_EMULATED
#define TEST_CASES(native, emulated) (emulated)
#else
#define TEST_CASES(native, emulated) (native)
#endif

/* A family as this machine can run it. */
typedef struct test_family {
    const mpk_kernels *kernels;
    const char *how; /* "native", "emulated", or "as avx512": AVX-VNNI in the other encoding */
} test_family;

/* All of them, the scalar one first; the count goes to *count. */
const test_family *test_families(size_t *count);

/* Prints the one line that says which families ran natively, emulated or not at all. */
void test_print_families(void);

/* xorshift64*: the tests are the same on every machine. */
typedef struct test_random {
    uint64_t state;
} test_random;

uint64_t test_next(test_random *r);
uint32_t test_below(test_random *r, uint32_t limit);
double test_uniform(test_random *r); /* (0, 1) */
double test_normal(test_random *r);

/* Memory aligned to 64 bytes, zeroed; fails the test when there is none. Free with free(). */
void *test_alloc(size_t bytes);

/* A matrix with its panel and its values, value[r * cols + c], exact in double. */
typedef struct test_matrix {
    mpk_matrix_view view;
    double *value;
    void *weights;
    uint8_t *scales;
} test_matrix;

/* Random matrix: Gaussian with standard deviation `spread`. E2M1 uses all codes and scale bytes around that size. */
test_matrix test_matrix_random(test_random *r, moepack_encoding encoding, uint64_t rows, uint64_t cols, double spread);
void test_matrix_free(test_matrix *m);

/* One code or value of a panel, by row and column; E2M1 code, BF16 bits or F32 bits. */
void test_panel_set(const test_matrix *m, uint64_t row, uint64_t col, uint32_t bits);
uint32_t test_panel_get(const test_matrix *m, uint64_t row, uint64_t col);
uint8_t *test_scale_at(const test_matrix *m, uint64_t row, uint64_t col);

/* Fails with the first difference between two float arrays, bit for bit. */
void test_same_bits(const float *a, const float *b, size_t n, const char *what);

/* sqrt(sum (a - b)^2 / sum b^2) */
double test_relative_l2(const float *a, const double *b, size_t n);

#endif
