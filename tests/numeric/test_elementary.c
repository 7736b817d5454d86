/* exp, sigmoid and tanh: error against double arithmetic over the whole range, special values, and the rounding to
 * BF16. */
#include "common.h"
#include "cpu/elementary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Promised in spec/numerics.md section 6. The C library's double functions are good to about 1 ulp of double, so they
 * serve as exact here. */
#define LIMIT 2.0

/* Distance between an F32 and an exact value in units of the last place of the exact value. */
static double error_in_ulps(float got, double exact)
{
    if (isnan(exact)) return isnan(got) ? 0.0 : INFINITY;
    if (fabs(exact) >= 0x1.ffffffp+127) return isinf(got) && (got > 0) == (exact > 0) ? 0.0 : INFINITY;
    if (!isfinite(got)) return fabs(exact) > 0x1.fffffcp+127 ? 0.5 : INFINITY;
    int exponent;
    frexp(exact, &exponent);
    const double unit = ldexp(1.0, exponent - 24 < -149 ? -149 : exponent - 24);
    return fabs((double)got - exact) / unit;
}

static double exact_sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}

typedef float single_function(float x);
typedef double exact_function(double x);

static float single_exp(float x)
{
    return mpk_exp(x);
}
static float single_sigmoid(float x)
{
    return mpk_sigmoid(x);
}
static float single_tanh(float x)
{
    return mpk_tanh(x);
}

static float single_sqrt_softplus(float x)
{
    return mpk_sqrt_softplus(x);
}
static float single_erf(float x)
{
    return mpk_erf(x);
}

static double exact_sqrt_softplus(double x)
{
    return sqrt((x > 0 ? x : 0) + log1p(exp(-fabs(x))));
}

static const struct function {
    const char *name;
    single_function *single;
    exact_function *exact;
} functions[] = {{"exp", single_exp, exp},
                 {"sigmoid", single_sigmoid, exact_sigmoid},
                 {"tanh", single_tanh, tanh},
                 {"sqrt_softplus", single_sqrt_softplus, exact_sqrt_softplus},
                 {"erf", single_erf, erf}};

#define FUNCTIONS (sizeof functions / sizeof functions[0])

static void check(const struct function *f, uint32_t bits, double *worst, float *where)
{
    const float x = mpk_float(bits);
    const double error = error_in_ulps(f->single(x), f->exact((double)x));
    if (error > *worst) {
        *worst = error;
        *where = x;
    }
}

/* Every 997th bit pattern, so all exponents and both signs; then every 3rd one where the functions change. Under
 * emulation a twentieth of them. */
static void test_error_bounds(void **state)
{
    (void)state;
    const uint32_t wide = TEST_CASES(997, 19937), middle = TEST_CASES(3, 61), near = TEST_CASES(97, 1931);
    for (size_t i = 0; i < FUNCTIONS; i++) {
        double worst = 0;
        float where = 0;
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += wide) check(&functions[i], (uint32_t)bits, &worst, &where);
        for (uint32_t bits = mpk_bits(0.54f); bits < mpk_bits(0.75f); bits += middle) {
            check(&functions[i], bits, &worst, &where);
            check(&functions[i], bits | 0x80000000u, &worst, &where);
        }
        for (uint32_t bits = mpk_bits(0.98f); bits < mpk_bits(1.02f); bits += near)
            check(&functions[i], bits, &worst, &where);
        for (uint32_t bits = mpk_bits(80.0f); bits < mpk_bits(106.0f); bits += near) {
            check(&functions[i], bits, &worst, &where);
            check(&functions[i], bits | 0x80000000u, &worst, &where);
        }
        printf("%s: largest error %.3f ulp, at %a\n", functions[i].name, worst, (double)where);
        if (!(worst <= LIMIT)) fail_msg("%s errs by %g ulp at %a", functions[i].name, worst, (double)where);
    }
}

static void same(float got, uint32_t bits)
{
    if (mpk_bits(got) != bits) fail_msg("%08x instead of %08x", mpk_bits(got), bits);
}

static void test_special_values(void **state)
{
    (void)state;
    const float infinity = mpk_float(0x7f800000), nan = mpk_float(0x7fc00000);
    same(mpk_exp(0.0f), 0x3f800000);
    same(mpk_exp(-0.0f), 0x3f800000);
    same(mpk_exp(infinity), 0x7f800000);
    same(mpk_exp(-infinity), 0);
    same(mpk_exp(88.72284f), 0x7f800000); /* first F32 above ln(largest) */
    same(mpk_exp(-103.2789f), 1);         /* smallest subnormal */
    same(mpk_exp(-104.0f), 0);
    assert_true(isnan(mpk_exp(nan)));
    same(mpk_sigmoid(0.0f), 0x3f000000);
    same(mpk_sigmoid(infinity), 0x3f800000);
    same(mpk_sigmoid(-infinity), 0);
    assert_true(mpk_sigmoid(-100.0f) > 0.0f);
    assert_true(isnan(mpk_sigmoid(nan)));
    same(mpk_tanh(0.0f), 0);
    same(mpk_tanh(-0.0f), 0x80000000);
    same(mpk_tanh(infinity), 0x3f800000);
    same(mpk_tanh(-infinity), 0xbf800000);
    same(mpk_tanh(mpk_float(1)), 1);
    assert_true(isnan(mpk_tanh(nan)));
    same(mpk_sqrt_softplus(infinity), 0x7f800000);
    same(mpk_sqrt_softplus(-infinity), 0);
    assert_true(mpk_sqrt_softplus(-100.0f) > 0.0f);
    assert_true(isnan(mpk_sqrt_softplus(nan)));
    same(mpk_erf(0.0f), 0);
    same(mpk_erf(-0.0f), 0x80000000);
    same(mpk_erf(infinity), 0x3f800000);
    same(mpk_erf(-infinity), 0xbf800000);
    assert_true(isnan(mpk_erf(nan)));
}

/* Every result of the rounding for every upper half and the lower halves around the tie. */
static void test_bf16(void **state)
{
    (void)state;
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (uint32_t high = 0; high < 0x10000; high++)
        for (size_t i = 0; i < sizeof low / sizeof low[0]; i++) {
            const uint32_t bits = high << 16 | low[i];
            const float x = mpk_float(bits);
            uint32_t expected = high + (low[i] > 0x8000 || (low[i] == 0x8000 && (high & 1)));
            if (isnan(x)) expected = 0x7fc0;
            same(mpk_bf16(x), expected << 16);
        }
    same(mpk_bf16(mpk_float(0x7f7fffff)), 0x7f800000); /* overflows to infinity */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_bounds),
        cmocka_unit_test(test_special_values),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests_name("elementary functions", tests, NULL, NULL);
}
