/* moepack_balance_*: against the goldens' float64 results, against a plain version with a full sort, and by hand. */
#include "support.h"
#include "tensor_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- goldens ---- */

typedef struct golden_case {
    const char *file;
    uint32_t k;
} golden_case;

static const golden_case cases[] = {
    {"k3_tiny/golden/qb_layer_1_t460.safetensors", 5},
    {"k3_tiny/golden/qb_layer_1_t512.safetensors", 5},
    {"k3_quant/golden/qb_layer_1_t448.safetensors", 16},
};

static void *zeros(size_t count, size_t size)
{
    void *at = calloc(count + 1, size);
    assert_non_null(at);
    return at;
}

static void assert_near(const char *file, const char *name, const double *found)
{
    values v = read_tensor(file, name);
    for (size_t i = 0; i < v.count; i++)
        if (!(fabs(found[i] - v.at[i]) <= 1e-12))
            fail_msg("%s, %s[%zu]: %.17g, should be %.17g", file, name, i, found[i], v.at[i]);
    free(v.at);
}

static void assert_load(const golden_case *c, const char *name, const values *scores, const double *bias)
{
    moepack_error error = {0};
    const uint32_t experts = (uint32_t)scores->dims[1];
    values v = read_tensor(c->file, name);
    uint64_t *load = zeros(experts, sizeof *load);
    assert_ok(moepack_balance_load(scores->at, (size_t)scores->dims[0], experts, c->k, bias, load, &error), &error);
    for (uint32_t e = 0; e < experts; e++)
        if ((double)load[e] != v.at[e])
            fail_msg("%s, %s[%u]: %llu, should be %.0f", c->file, name, e, (unsigned long long)load[e], v.at[e]);
    free(load);
    free(v.at);
}

/* Margins are what the quantile is about: how many tokens lie above it and how many on it. */
static void assert_margins(const char *file, const values *scores, const double *alpha, const double *c)
{
    values positive = read_tensor(file, "positive_margins"), zero = read_tensor(file, "zero_margins");
    const size_t experts = (size_t)scores->dims[1];
    for (size_t e = 0; e < experts; e++) {
        size_t above = 0, on = 0;
        for (size_t t = 0; t < (size_t)scores->dims[0]; t++) {
            const double margin = scores->at[t * experts + e] - alpha[t] - c[e];
            above += margin > 1e-9;
            on += fabs(margin) <= 1e-9;
        }
        assert_int_equal(above, (size_t)positive.at[e]);
        assert_int_equal(on, (size_t)zero.at[e]);
    }
    free(positive.at);
    free(zero.at);
}

static void goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const golden_case *g = &cases[i];
        moepack_error error = {0};
        values scores = read_tensor(g->file, "scores_f64"), bias = read_tensor(g->file, "bias_old");
        const size_t tokens = (size_t)scores.dims[0];
        const uint32_t experts = (uint32_t)scores.dims[1];
        double *alpha = zeros(tokens, sizeof *alpha), *c = zeros(experts, sizeof *c);
        assert_load(g, "load_before", &scores, bias.at);
        assert_ok(moepack_balance_quantile(scores.at, tokens, experts, g->k, bias.at, alpha, c, &error), &error);
        assert_near(g->file, "alpha_f64", alpha);
        assert_near(g->file, "c_f64", c);
        assert_near(g->file, "bias_new_f64", bias.at);
        assert_margins(g->file, &scores, alpha, c);
        assert_load(g, "load_after", &scores, bias.at);
        for (int round = 1; round < 8; round++)
            assert_ok(moepack_balance_quantile(scores.at, tokens, experts, g->k, bias.at, NULL, NULL, &error), &error);
        assert_near(g->file, "bias_8_f64", bias.at);
        assert_load(g, "load_after_8", &scores, bias.at);
        free(alpha);
        free(c);
        free(bias.at);
        free(scores.at);
    }
}

/* ---- against a plain version ---- */

static int ascending(const void *pa, const void *pb)
{
    const double a = *(const double *)pa, b = *(const double *)pb;
    return (a > b) - (a < b);
}

#define MAX_T 60
#define MAX_E 9

static double plain_cutoff(const double *s, const double *b, size_t experts, size_t k)
{
    double choice[MAX_E];
    for (size_t e = 0; e < experts; e++) choice[e] = s[e] + b[e];
    qsort(choice, experts, sizeof *choice, ascending);
    return choice[experts - 1 - k];
}

static double plain_quantile(const double *scores, const double *alpha, size_t tokens, size_t experts, size_t k,
                             size_t e)
{
    double m[MAX_T + 1];
    for (size_t t = 0; t < tokens; t++) m[t] = scores[t * experts + e] - alpha[t];
    qsort(m, tokens, sizeof *m, ascending);
    const size_t p = (tokens - 1) * (experts - k), floor = p / experts;
    const double rest = (double)(p % experts) / (double)experts;
    return p % experts == 0 ? m[floor] : m[floor] + rest * (m[floor + 1] - m[floor]);
}

static uint64_t rows_of(const double *scores, const double *b, size_t tokens, size_t experts, size_t k, size_t e)
{
    uint64_t rows = 0;
    for (size_t t = 0; t < tokens; t++) {
        size_t before = 0;
        const double own = scores[t * experts + e] + b[e];
        for (size_t i = 0; i < experts; i++) {
            const double other = scores[t * experts + i] + b[i];
            before += other > own || (other == own && i < e);
        }
        rows += before < k;
    }
    return rows;
}

static uint64_t seed = 20261130;

static uint32_t below(uint32_t limit)
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (uint32_t)((seed * UINT64_C(2685821657736338717)) >> 33) % limit;
}

/* Few different values, so that ties are everywhere. Both versions compute the same expressions: equal, not close. */
static void plain_version(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        const size_t experts = 2 + below(MAX_E - 1), k = 1 + below((uint32_t)experts - 1), tokens = 1 + below(MAX_T);
        double scores[MAX_T * MAX_E], bias[MAX_E], alpha[MAX_T], c[MAX_E], alpha_plain[MAX_T], new_bias[MAX_E];
        uint64_t load[MAX_E];
        moepack_error error = {0};
        const uint32_t steps = 1u << below(12);
        for (size_t i = 0; i < tokens * experts; i++) scores[i] = (double)below(steps + 1) / (double)steps;
        for (size_t e = 0; e < experts; e++) new_bias[e] = bias[e] = (double)below(9) / 8.0 - 0.5;
        assert_ok(moepack_balance_load(scores, tokens, (uint32_t)experts, (uint32_t)k, bias, load, &error), &error);
        for (size_t e = 0; e < experts; e++) assert_true(load[e] == rows_of(scores, bias, tokens, experts, k, e));
        assert_ok(moepack_balance_quantile(scores, tokens, (uint32_t)experts, (uint32_t)k, new_bias, alpha, c, &error),
                  &error);
        for (size_t t = 0; t < tokens; t++) {
            alpha_plain[t] = plain_cutoff(scores + t * experts, bias, experts, k);
            assert_true(alpha[t] == alpha_plain[t]);
        }
        double sum = 0;
        for (size_t e = 0; e < experts; e++) {
            assert_true(c[e] == plain_quantile(scores, alpha_plain, tokens, experts, k, e));
            assert_true(fabs(new_bias[e] - new_bias[0] + c[e] - c[0]) <= 1e-15 * 8);
            sum += new_bias[e];
        }
        assert_true(fabs(sum) <= 1e-14);
    }
}

/* ---- by hand ---- */

static void equal_choices_go_to_lower_ids(void **state)
{
    (void)state;
    moepack_error error = {0};
    uint64_t load[4];
    static const double same[3 * 4] = {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
    static const double none[4] = {0, 0, 0, 0}, last[4] = {0, 0, 0, 0.25};
    assert_ok(moepack_balance_load(same, 3, 4, 2, none, load, &error), &error);
    assert_true(load[0] == 3 && load[1] == 3 && load[2] == 0 && load[3] == 0);
    assert_ok(moepack_balance_load(same, 3, 4, 2, last, load, &error), &error);
    assert_true(load[0] == 3 && load[1] == 0 && load[2] == 0 && load[3] == 3);
    /* -0 is +0: the first expert wins although its sign bit says less. */
    static const double zero[2] = {-0.0, 0.0}, minus[2] = {-0.0, 0.0};
    assert_ok(moepack_balance_load(zero, 1, 2, 1, minus, load, &error), &error);
    assert_true(load[0] == 1 && load[1] == 0);
    static const double negative[2 * 2] = {-3, -2, -1, -7};
    assert_ok(moepack_balance_load(negative, 2, 2, 1, none, load, &error), &error);
    assert_true(load[0] == 1 && load[1] == 1);
    assert_ok(moepack_balance_load(same, 3, 4, 4, none, load, &error), &error);
    assert_true(load[0] == 3 && load[3] == 3);
    assert_ok(moepack_balance_load(NULL, 0, 4, 2, none, load, &error), &error);
    assert_true(load[0] == 0 && load[1] == 0 && load[2] == 0 && load[3] == 0);
}

static void one_and_two_tokens(void **state)
{
    (void)state;
    moepack_error error = {0};
    /* One token: every margin is its own quantile, and the new bias makes all choices equal. */
    static const double one[4] = {0.5, 0.25, 1, 0.75};
    double bias[4] = {0, 0, 0, 0}, alpha[2], c[4];
    assert_ok(moepack_balance_quantile(one, 1, 4, 1, bias, alpha, c, &error), &error);
    assert_true(alpha[0] == 0.75);
    assert_true(c[0] == -0.25 && c[1] == -0.5 && c[2] == 0.25 && c[3] == 0);
    for (size_t e = 0; e < 4; e++) assert_true(bias[e] == -c[e] - 0.125);
    /* Two tokens, E = 4, k = 1: position 3/4 between the two margins. */
    static const double two[8] = {0.5, 0.25, 1, 0.75, 1, 0, 0.5, 0.25};
    memset(bias, 0, sizeof bias);
    assert_ok(moepack_balance_quantile(two, 2, 4, 1, bias, alpha, c, &error), &error);
    assert_true(alpha[0] == 0.75 && alpha[1] == 0.5);
    assert_true(c[0] == -0.25 + 0.75 * 0.75 && c[1] == -0.5 && c[2] == 0.1875 && c[3] == -0.0625);
}

static void refusals(void **state)
{
    (void)state;
    moepack_error error = {0};
    uint64_t load[3];
    double scores[2 * 3] = {1, 2, 3, 4, 5, 6}, bias[3] = {0, 0, 0};
    assert_status(moepack_balance_quantile(scores, 2, 3, 3, bias, NULL, NULL, &error), MOEPACK_E_USAGE, &error);
    assert_mentions(&error, "all 3 experts");
    assert_status(moepack_balance_quantile(scores, 0, 3, 1, bias, NULL, NULL, &error), MOEPACK_E_USAGE, &error);
    assert_mentions(&error, "at least one token");
    static const uint32_t bad_k[] = {0, 4, UINT32_MAX};
    for (size_t i = 0; i < COUNT(bad_k); i++) {
        assert_status(moepack_balance_quantile(scores, 2, 3, bad_k[i], bias, NULL, NULL, &error), MOEPACK_E_USAGE,
                      &error);
        assert_status(moepack_balance_load(scores, 2, 3, bad_k[i], bias, load, &error), MOEPACK_E_USAGE, &error);
    }
    assert_status(moepack_balance_load(scores, 2, 0, 1, bias, load, &error), MOEPACK_E_USAGE, &error);
    assert_status(moepack_balance_load(scores, SIZE_MAX / 2, 3, 1, bias, load, &error), MOEPACK_E_USAGE, &error);
    assert_status(moepack_balance_load(NULL, 2, 3, 1, bias, load, &error), MOEPACK_E_USAGE, &error);
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT(bad); i++) {
        scores[4] = bad[i];
        assert_status(moepack_balance_quantile(scores, 2, 3, 1, bias, NULL, NULL, &error), MOEPACK_E_USAGE, &error);
        assert_mentions(&error, "token 1");
        assert_int_equal(error.expert, 1);
        scores[4] = 5;
        bias[2] = bad[i];
        assert_status(moepack_balance_load(scores, 2, 3, 1, bias, load, &error), MOEPACK_E_USAGE, &error);
        assert_int_equal(error.expert, 2);
        bias[2] = 0;
    }
    /* Finite numbers whose differences are not. */
    scores[0] = 1.7e308;
    scores[1] = -1.7e308;
    assert_status(moepack_balance_quantile(scores, 1, 3, 1, bias, NULL, NULL, &error), MOEPACK_OK, &error);
    bias[0] = bias[1] = bias[2] = -1.7e308;
    assert_status(moepack_balance_quantile(scores, 1, 3, 2, bias, NULL, NULL, &error), MOEPACK_E_USAGE, &error);
    assert_mentions(&error, "too large");
    assert_true(bias[0] == -1.7e308 && bias[1] == -1.7e308 && bias[2] == -1.7e308);
}

static void sign_rule(void **state)
{
    (void)state;
    moepack_error error = {0};
    double bias[4] = {1, 1, 1, 1};
    static const uint64_t whole[4] = {4, 0, 2, 2}, third[3] = {1, 0, 0}, none[4] = {0, 0, 0, 0};
    assert_ok(moepack_balance_sign(whole, 4, 0.25, bias, &error), &error);
    assert_true(bias[0] == 0.75 && bias[1] == 1.25 && bias[2] == 1 && bias[3] == 1);
    assert_ok(moepack_balance_sign(third, 3, 0.25, bias, &error), &error);
    assert_true(bias[0] == 0.5 && bias[1] == 1.5 && bias[2] == 1.25 && bias[3] == 1);
    assert_ok(moepack_balance_sign(none, 4, 0.25, bias, &error), &error);
    assert_true(bias[0] == 0.5 && bias[1] == 1.5 && bias[2] == 1.25 && bias[3] == 1);
    /* Sums that just fit and just do not. */
    static const uint64_t large[2] = {UINT64_C(1) << 63, (UINT64_C(1) << 63) - 1},
                          over[2] = {UINT64_C(1) << 63, UINT64_C(1) << 63};
    assert_ok(moepack_balance_sign(large, 2, 1, bias, &error), &error);
    assert_true(bias[0] == -0.5 && bias[1] == 2.5);
    assert_status(moepack_balance_sign(over, 2, 1, bias, &error), MOEPACK_E_USAGE, &error);
    static const double bad[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_status(moepack_balance_sign(whole, 4, bad[i], bias, &error), MOEPACK_E_USAGE, &error);
    assert_status(moepack_balance_sign(whole, 0, 1, bias, &error), MOEPACK_E_USAGE, &error);
    assert_true(bias[0] == -0.5 && bias[1] == 2.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens),
        cmocka_unit_test(plain_version),
        cmocka_unit_test(equal_choices_go_to_lower_ids),
        cmocka_unit_test(one_and_two_tokens),
        cmocka_unit_test(refusals),
        cmocka_unit_test(sign_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
