/* The MXFP4 encoder: exact where the values are codes, best of all scales where they are not, ties to even, the ends of
 * the range; and the error of its scale rule beside the usual ones, on three distributions. */
#include "mxfp4.h"

/* cmocka wants these in this order. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N MPK_MXFP4_BLOCK

static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

static float decode(const uint8_t *codes, uint8_t scale, int i)
{
    return values[codes[i / 2] >> i % 2 * 4 & 15] * ldexpf(1.0f, scale - 127);
}

static uint64_t state = 1;

static double uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(state >> 11) + 0.5) / 9007199254740992.0;
}

static double gauss(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

/* What was encoded once comes back, zeros with their signs, at every scale where 6 does not overflow. */
static void codes_are_exact(void **unused)
{
    (void)unused;
    for (int e = -127; e <= 125; e++) {
        float x[N];
        uint8_t codes[N / 2], scale;
        for (int i = 0; i < N; i++) x[i] = values[i % 16] * ldexpf(1.0f, e);
        assert_true(mpk_mxfp4_encode(x, codes, &scale));
        for (int i = 0; i < N; i++) {
            const float y = decode(codes, scale, i);
            assert_memory_equal(&x[i], &y, sizeof y);
        }
        assert_true(mpk_mxfp4_error(x, codes, scale) == 0);
    }
}

static void ties_go_to_even_codes(void **unused)
{
    (void)unused;
    static const float tie[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f}, even[7] = {0, 1, 1, 2, 2, 4, 4};
    for (int t = 0; t < 7; t++) {
        float x[N];
        uint8_t codes[N / 2], scale;
        for (int i = 0; i < N; i++) x[i] = 6.0f; /* many that are exact fix the scale */
        x[5] = tie[t];
        x[6] = -tie[t];
        assert_true(mpk_mxfp4_encode(x, codes, &scale));
        assert_int_equal(scale, 127);
        assert_true(decode(codes, scale, 5) == even[t] && decode(codes, scale, 6) == -even[t]);
    }
}

static void ends_of_the_range(void **unused)
{
    (void)unused;
    float x[N] = {0};
    uint8_t codes[N / 2], scale;
    assert_true(mpk_mxfp4_encode(x, codes, &scale));
    assert_int_equal(scale, 127);
    for (int i = 0; i < N; i++) x[i] = 3.4e38f;
    assert_true(mpk_mxfp4_encode(x, codes, &scale));
    for (int i = 0; i < N; i++) assert_true(decode(codes, scale, i) == 0x1.8p127f);
    for (int i = 0; i < N; i++) x[i] = 0x1p-149f;
    assert_true(mpk_mxfp4_encode(x, codes, &scale));
    for (int i = 0; i < N; i++) assert_true(fabsf(decode(codes, scale, i) - x[i]) <= 0x1p-128f);
    x[7] = INFINITY;
    scale = 3;
    assert_false(mpk_mxfp4_encode(x, codes, &scale));
    x[7] = NAN;
    assert_false(mpk_mxfp4_encode(x, codes, &scale));
    assert_int_equal(scale, 3);
}

/* Encodes at a given scale, straight from the definition: the nearest of all codes, by search. */
static double error_of_scale(const float *x, int e)
{
    double sum = 0;
    for (int i = 0; i < N; i++) {
        double best = INFINITY;
        for (int c = 0; c < 16; c++) {
            const double off = (double)x[i] - (double)values[c] * ldexp(1, e);
            if (off * off < best) best = off * off;
        }
        sum += best;
    }
    return sum;
}

/* 0 Gauss, 1 Laplace, 2 Student with five degrees of freedom */
static float draw(int distribution)
{
    if (distribution == 0) return (float)gauss();
    if (distribution == 1) {
        const double u = uniform() - 0.5;
        return (float)(u < 0 ? log(1 + 2 * u) : -log(1 - 2 * u));
    }
    double chi = 0;
    for (int i = 0; i < 5; i++) {
        const double g = gauss();
        chi += g * g;
    }
    return (float)(gauss() / sqrt(chi / 5));
}

/* No scale at all is better than the chosen one, in nearly every block; and the usual rules are measurably worse. */
static void scale_rule(void **unused)
{
    (void)unused;
    static const char *const names[] = {"Gauss", "Laplace", "Student t5"};
    for (int distribution = 0; distribution < 3; distribution++) {
        double sum = 0, ours = 0, floor_rule = 0, ceil_rule = 0, any = 0;
        for (int block = 0; block < 2000; block++) {
            float x[N], most = 0;
            uint8_t codes[N / 2], scale;
            for (int i = 0; i < N; i++) {
                x[i] = draw(distribution);
                sum += (double)x[i] * (double)x[i];
                if (fabsf(x[i]) > most) most = fabsf(x[i]);
            }
            assert_true(mpk_mxfp4_encode(x, codes, &scale));
            const double error = mpk_mxfp4_error(x, codes, scale), found = error_of_scale(x, scale - 127);
            assert_true(fabs(error - found) <= 1e-12 * found);
            double best = INFINITY;
            for (int e = -12; e <= 6; e++) {
                const double other = error_of_scale(x, e);
                if (other < best) best = other;
            }
            const int usual = (int)floor(log2((double)most)) - 2;
            ours += error;
            any += best;
            floor_rule += error_of_scale(x, usual);
            ceil_rule += error_of_scale(x, (double)most > 6 * ldexp(1, usual) ? usual + 1 : usual);
        }
        print_message("%-10s rel-RMS: chosen %.4f, best of all %.4f, floor %.4f, ceil %.4f\n", names[distribution],
                      sqrt(ours / sum), sqrt(any / sum), sqrt(floor_rule / sum), sqrt(ceil_rule / sum));
        assert_true(ours <= any * 1.0001 && ours < floor_rule && ours < ceil_rule);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_exact),
        cmocka_unit_test(ties_go_to_even_codes),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(scale_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
