/* The whole layer on small random geometries: against double arithmetic, and against itself for other kernels, thread
 * counts, batch splits and ranks. */
#include "layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const geometry geometries[] = {
    {"k3", 112, 96, 64, 64, 5, 23, MOEPACK_ENC_E2M1, MOEPACK_ENC_BF16, MOEPACK_ACT_SITU, MOEPACK_ACT_SITU, 25, true,
     true, false},
    {"odd widths", 77, 101, 43, 21, 3, 9, MOEPACK_ENC_E2M1, MOEPACK_ENC_BF16, MOEPACK_ACT_SITU, MOEPACK_ACT_SITU, 0,
     true, true, false},
    {"no latent", 96, 96, 80, 0, 2, 8, MOEPACK_ENC_E2M1, MOEPACK_ENC_F32, MOEPACK_ACT_SILU, MOEPACK_ACT_SILU, 0, false,
     false, true},
    {"bf16 experts", 64, 48, 40, 33, 4, 6, MOEPACK_ENC_BF16, MOEPACK_ENC_BF16, MOEPACK_ACT_SILU, MOEPACK_ACT_SITU, 3,
     true, false, true},
    {"f32 experts, k = E", 40, 40, 50, 17, 4, 4, MOEPACK_ENC_F32, MOEPACK_ENC_F32, MOEPACK_ACT_SITU, MOEPACK_ACT_SILU,
     2, false, false, false},
    {"wide", TEST_CASES(1100, 540), 600, 560, 64, 2, 3, MOEPACK_ENC_E2M1, MOEPACK_ENC_BF16, MOEPACK_ACT_SITU,
     MOEPACK_ACT_SITU, 25, true, true, false},
};

#define GEOMETRIES (sizeof geometries / sizeof geometries[0])

/* ------------------------------------------------------------------------------------------------ double reference */

static void multiply(const test_matrix *m, const double *x, double *y)
{
    for (uint64_t row = 0; row < m->view.rows; row++) {
        y[row] = 0;
        for (uint64_t c = 0; c < m->view.cols; c++) y[row] += m->value[row * m->view.cols + c] * x[c];
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* One gated network: down(act(gate x, up x)). */
static void network(const moepack_policy *p, uint64_t kind, const test_matrix *gate, const test_matrix *up,
                    const test_matrix *down, const double *x, double *out)
{
    const uint64_t inner = gate->view.rows;
    double *g = test_alloc(inner * 8), *u = test_alloc(inner * 8);
    multiply(gate, x, g);
    multiply(up, x, u);
    for (uint64_t i = 0; i < inner; i++) {
        if (kind == MOEPACK_ACT_SILU) {
            g[i] = g[i] * sigmoid(g[i]) * u[i];
            continue;
        }
        const double lb = p->situ_linear_beta;
        g[i] = p->situ_beta * tanh(g[i] / p->situ_beta) * sigmoid(g[i]) * (lb > 0 ? lb * tanh(u[i] / lb) : u[i]);
    }
    multiply(down, g, out);
    free(g);
    free(u);
}

/* Scores and selection of one token; ids by repeated maximum. */
static void route(const layer *l, const double *x, int32_t *ids, double *weights)
{
    const moepack_policy *p = &l->view.policy;
    const uint32_t experts = l->view.experts;
    double *score = test_alloc(experts * 8), sum = 0, total = 0;
    bool *taken = test_alloc(experts);
    multiply(&l->router, x, score);
    for (uint32_t e = 0; e < experts; e++) {
        score[e] = p->score == MOEPACK_SCORE_SOFTMAX ? exp(score[e]) : sigmoid(score[e]);
        total += score[e];
    }
    for (uint32_t e = 0; p->score == MOEPACK_SCORE_SOFTMAX && e < experts; e++) score[e] /= total;
    for (uint64_t i = 0; i < p->top_k; i++) {
        int32_t best = -1;
        double top = -INFINITY;
        for (uint32_t e = 0; e < experts; e++) {
            const double choice = score[e] + (l->view.router_bias != NULL ? (double)l->bias[e] : 0);
            if (!taken[e] && choice > top) {
                top = choice;
                best = (int32_t)e;
            }
        }
        taken[best] = true;
        ids[i] = best;
        weights[i] = score[best];
        sum += score[best];
    }
    for (uint64_t i = 0; i < p->top_k; i++) weights[i] = weights[i] / (sum + p->renorm_eps) * p->scale;
    free(score);
    free(taken);
}

static void reference_token(const layer *l, const float *x_in, double *y, double *s, int32_t *ids, double *weights)
{
    const moepack_policy *p = &l->view.policy;
    const uint64_t h = p->hidden, in = p->expert_input;
    double *x = test_alloc(h * 8), *z = test_alloc(in * 8), *o = test_alloc((h > in ? h : in) * 8);
    for (uint64_t i = 0; i < h; i++) x[i] = (double)x_in[i];
    route(l, x, ids, weights);
    if (p->latent)
        multiply(&l->latent_down, x, z);
    else
        memcpy(z, x, h * 8);
    for (uint64_t i = 0; i < p->top_k; i++) {
        test_matrix *e = l->expert[ids[i]];
        network(p, p->activation, &e[0], &e[1], &e[2], z, o);
        for (uint64_t c = 0; c < in; c++) s[c] += weights[i] * o[c];
    }
    memcpy(z, s, in * 8);
    if (p->latent_norm) {
        double squares = 0;
        for (uint64_t c = 0; c < in; c++) squares += s[c] * s[c];
        for (uint64_t c = 0; c < in; c++) z[c] = s[c] / sqrt(squares / (double)in + p->norm_eps) * (double)l->norm[c];
    }
    if (p->latent)
        multiply(&l->latent_up, z, y);
    else
        memcpy(y, z, h * 8);
    if (p->shared_width > 0) {
        network(p, p->shared_activation, &l->shared[0], &l->shared[1], &l->shared[2], x, o);
        for (uint64_t c = 0; c < h; c++) y[c] += o[c];
    }
    free(x);
    free(z);
    free(o);
}

static void test_against_double(void **state)
{
    (void)state;
    const size_t tokens = TEST_CASES(13, 4);
    for (size_t i = 0; i < GEOMETRIES; i++) {
        const geometry *g = &geometries[i];
        layer l = make_layer(g, 100 + i);
        float *x = make_x(g, tokens, 200 + i);
        double *y = test_alloc(tokens * g->hidden * 8), *s = test_alloc(tokens * g->input * 8),
               *weights = test_alloc(tokens * g->k * 8);
        int32_t *ids = test_alloc(tokens * g->k * 4);
        for (size_t t = 0; t < tokens; t++)
            reference_token(&l, x + t * g->hidden, y + t * g->hidden, s + t * g->input, ids + t * g->k,
                            weights + t * g->k);
        for (int mode = MPK_COMPUTE_BF16; mode <= MPK_COMPUTE_INT8; mode++) {
            const mpk_layer_options options = {.compute = (mpk_compute)mode};
            result got = run(&l, x, tokens, &options, true);
            const double limit = mode == MPK_COMPUTE_F32    ? 2e-6
                                 : mode == MPK_COMPUTE_INT8 ? 2e-2
                                                            : 5e-3,
                         y_error = test_relative_l2(got.y, y, tokens * g->hidden),
                         s_error = test_relative_l2(got.s, s, tokens * g->input);
            assert_memory_equal(got.ids, ids, tokens * g->k * 4);
            for (size_t w = 0; w < tokens * g->k; w++)
                assert_true(fabs((double)got.weights[w] - weights[w]) <= 1e-6 * 1.5);
            if (!(y_error <= limit && s_error <= limit))
                fail_msg("%s: errors %g (y), %g (s)", g->name, y_error, s_error);
            free_result(&got);
        }
        free(y);
        free(s);
        free(weights);
        free(ids);
        free(x);
        free_layer(&l);
    }
}

/* ------------------------------------------------------------------------------------------------ same bits */

/* Other kernels, threads and batch splits, in all modes. */
static void test_one_result(void **state)
{
    (void)state;
    size_t count;
    const test_family *families = test_families(&count);
    const size_t tokens = 17;
    for (size_t i = 0; i < GEOMETRIES; i++) {
        const geometry *g = &geometries[i];
        layer l = make_layer(g, 300 + i);
        float *x = make_x(g, tokens, 400 + i);
        for (int mode = MPK_COMPUTE_BF16; mode <= MPK_COMPUTE_INT8; mode++) {
            const mpk_layer_options scalar = {
                .compute = (mpk_compute)mode, .threads = 1, .kernels = &mpk_kernels_scalar};
            result expected = run(&l, x, tokens, &scalar, true);
            for (size_t f = 0; f < count; f++) {
                const mpk_layer_options options = {
                    .compute = (mpk_compute)mode, .threads = 1 + (unsigned)(f + i) % 7, .kernels = families[f].kernels};
                result got = run(&l, x, tokens, &options, true);
                same_results(&l, &got, &expected, tokens, families[f].kernels->name);
                free_result(&got);
            }
            for (size_t t = 0; t < tokens; t += t % 3 + 1) {
                const size_t n = t % 3 + 1 < tokens - t ? t % 3 + 1 : tokens - t;
                result got = run(&l, x + t * g->hidden, n,
                                 &(mpk_layer_options){.compute = (mpk_compute)mode, .threads = 2}, true);
                const result part = {expected.y + t * g->hidden, expected.s + t * g->input, expected.weights + t * g->k,
                                     expected.ids + t * g->k};
                same_results(&l, &got, &part, n, "batch split");
                free_result(&got);
            }
            free_result(&expected);
        }
        free(x);
        free_layer(&l);
    }
}

/* More tokens than one chunk holds, and every thread count. */
static void test_many_tokens(void **state)
{
    (void)state;
    const geometry g = {
        "many",           32, 32,   32,   16,   2, 5, MOEPACK_ENC_E2M1, MOEPACK_ENC_BF16, MOEPACK_ACT_SITU,
        MOEPACK_ACT_SITU, 25, true, true, false};
    const size_t tokens = 1100;
    layer l = make_layer(&g, 7);
    float *x = make_x(&g, tokens, 8);
    result expected = run(&l, x, tokens, &(mpk_layer_options){.threads = 1}, true);
    for (unsigned threads = 2; threads <= 7; threads++) {
        result got = run(&l, x, tokens, &(mpk_layer_options){.threads = threads}, true);
        same_results(&l, &got, &expected, tokens, "threads");
        free_result(&got);
    }
    result last = run(&l, x + (tokens - 1) * g.hidden, 1, NULL, true);
    const result part = {expected.y + (tokens - 1) * g.hidden, expected.s + (tokens - 1) * g.input,
                         expected.weights + (tokens - 1) * g.k, expected.ids + (tokens - 1) * g.k};
    same_results(&l, &last, &part, 1, "last token alone");
    free_result(&last);
    free_result(&expected);
    free(x);
    free_layer(&l);
}

/* Every token to the same expert, which the bias forces. */
static void test_one_hot_expert(void **state)
{
    (void)state;
    const geometry *g = &geometries[0];
    const size_t tokens = 70;
    layer l = make_layer(g, 9);
    l.bias[19] = 5.0f;
    float *x = make_x(g, tokens, 10);
    result scalar = run(&l, x, tokens, &(mpk_layer_options){.threads = 3, .kernels = &mpk_kernels_scalar}, true);
    result best = run(&l, x, tokens, NULL, true);
    same_results(&l, &best, &scalar, tokens, "one hot expert");
    for (size_t t = 0; t < tokens; t++) assert_int_equal(best.ids[t * g->k], 19);
    free_result(&scalar);
    free_result(&best);
    free(x);
    free_layer(&l);
}

/* ------------------------------------------------------------------------------------------------ ranks and errors */

static void test_ranks_add_up(void **state)
{
    (void)state;
    const geometry *g = &geometries[0];
    const size_t tokens = 12, n = tokens * g->input;
    layer l = make_layer(g, 11);
    float *x = make_x(g, tokens, 12), *sum = test_alloc(n * 4), *y = test_alloc(tokens * g->hidden * 4);
    double *whole = test_alloc(n * 8), *y_whole = test_alloc(tokens * g->hidden * 8);
    result full = run(&l, x, tokens, NULL, true);
    for (uint32_t rank = 0; rank < 3; rank++) {
        for (uint32_t e = 0; e < g->experts; e++) {
            l.present[e] = e % 3 == rank;
            memset(&l.experts[e], 0, sizeof l.experts[e]); /* absent experts must not be looked at */
            if (l.present[e])
                l.experts[e] = (mpk_expert_view){
                    .gate = l.expert[e][0].view, .up = l.expert[e][1].view, .down = l.expert[e][2].view};
        }
        result part = run(&l, x, tokens, NULL, false);
        assert_memory_equal(part.ids, full.ids, tokens * g->k * 4);
        for (size_t i = 0; i < n; i++) sum[i] += part.s[i];
        free_result(&part);
    }
    for (size_t i = 0; i < n; i++) whole[i] = (double)full.s[i];
    for (size_t i = 0; i < tokens * g->hidden; i++) y_whole[i] = (double)full.y[i];
    assert_true(test_relative_l2(sum, whole, n) <= 3e-7);
    moepack_error error = {0};
    assert_int_equal(mpk_layer_finish(&l.view, x, full.s, tokens, NULL, y, &error), MOEPACK_OK);
    test_same_bits(y, full.y, tokens * g->hidden, "finish from the complete sum");
    assert_int_equal(mpk_layer_finish(&l.view, x, sum, tokens, NULL, y, &error), MOEPACK_OK);
    assert_true(test_relative_l2(y, y_whole, tokens * g->hidden) <= 5e-3);
    free_result(&full);
    free(sum);
    free(whole);
    free(y_whole);
    free(y);
    free(x);
    free_layer(&l);
}

static void test_missing_expert(void **state)
{
    (void)state;
    const geometry *g = &geometries[0];
    layer l = make_layer(g, 13);
    float *x = make_x(g, 6, 14), *y = test_alloc(6 * g->hidden * 4);
    result full = run(&l, x, 6, NULL, true);
    const int32_t victim = full.ids[2 * g->k + 1];
    l.present[victim] = 0;
    size_t first = 0; /* the first token that selects it */
    for (bool found = false; !found; first += !found)
        for (uint64_t i = 0; i < g->k; i++) found = found || full.ids[first * g->k + i] == victim;
    moepack_error error = {0};
    char expected[64];
    snprintf(expected, sizeof expected, "token %zu selects expert %d", first, victim);
    assert_int_equal(mpk_layer_run(&l.view, x, 6, NULL, (mpk_layer_output){.y = y}, &error), MOEPACK_E_INCOMPLETE);
    assert_int_equal(error.expert, victim);
    assert_non_null(strstr(error.message, expected));
    free_result(&full);
    free(x);
    free(y);
    free_layer(&l);
}

static void expect(layer *l, moepack_status status, const char *text)
{
    float x[2048] = {0}, y[2048];
    moepack_error error = {0};
    assert_int_equal(mpk_layer_run(&l->view, x, 1, NULL, (mpk_layer_output){.y = y}, &error), status);
    if (strstr(error.message, text) == NULL) fail_msg("\"%s\" does not name %s", error.message, text);
}

static void test_refusals(void **state)
{
    (void)state;
    layer l = make_layer(&geometries[0], 15);
    const mpk_layer_view good = l.view;
    l.view.policy.score = MOEPACK_SCORE_SPARSEMIXER;
    expect(&l, MOEPACK_E_UNSUPPORTED, "select = biased and score = sparsemixer");
    l.view = good;
    l.view.policy.gated = 0;
    expect(&l, MOEPACK_E_UNSUPPORTED, "gated = no");
    l.view = good;
    l.view.policy.act_limit = 7;
    expect(&l, MOEPACK_E_UNSUPPORTED, "act_limit = 7");
    l.view = good;
    l.view.policy.token_ids = 1;
    expect(&l, MOEPACK_E_UNSUPPORTED, "token_ids = yes");
    l.view = good;
    l.view.policy.shared_gate = 1;
    expect(&l, MOEPACK_E_USAGE, "shared_router");
    l.view = good;
    l.view.policy.logit_bias = 1;
    expect(&l, MOEPACK_E_USAGE, "logit_bias");
    l.view = good;
    l.view.policy.expert_bias = 1;
    expect(&l, MOEPACK_E_USAGE, "gate bias");
    l.view = good;
    l.view.router.encoding = MOEPACK_ENC_E2M1;
    l.view.router.scales = l.expert[0][0].scales;
    expect(&l, MOEPACK_E_UNSUPPORTED, "router in encoding");
    l.view = good;
    l.experts[3].down.encoding = MOEPACK_ENC_E8M0;
    expect(&l, MOEPACK_E_UNSUPPORTED, "down in encoding");
    l.experts[3].down = l.expert[3][2].view;
    l.experts[2].up.rows++;
    expect(&l, MOEPACK_E_USAGE, "up is [65, 96], expected [64, 96]");
    l.experts[2].up = l.expert[2][1].view;
    l.view.latent_norm = NULL;
    expect(&l, MOEPACK_E_USAGE, "latent_norm");
    l.view = good;
    l.view.policy.top_k = 24;
    expect(&l, MOEPACK_E_USAGE, "24 of 23");
    l.view = good;
    l.view.shared_up.weights = (const uint8_t *)l.view.shared_up.weights + 4;
    expect(&l, MOEPACK_E_USAGE, "aligned");
    l.view = good;
    free_layer(&l);
}

/* Nothing to do, routing alone, and the caller's own scratch. */
static void test_calls(void **state)
{
    (void)state;
    const geometry *g = &geometries[1];
    layer l = make_layer(g, 16);
    float *x = make_x(g, 5, 17), *weights = test_alloc(5 * g->k * 4), *y = test_alloc(5 * g->hidden * 4);
    int32_t *ids = test_alloc(5 * g->k * 4);
    moepack_error error = {0};
    assert_int_equal(mpk_layer_run(&l.view, x, 0, NULL, (mpk_layer_output){.y = y}, &error), MOEPACK_OK);
    result full = run(&l, x, 5, NULL, true);
    memset(l.present, 0, g->experts); /* routing needs no expert */
    assert_int_equal(
        mpk_layer_run(&l.view, x, 5, NULL, (mpk_layer_output){.topk_ids = ids, .topk_weights = weights}, &error),
        MOEPACK_OK);
    memset(l.present, 1, g->experts);
    assert_memory_equal(ids, full.ids, 5 * g->k * 4);
    test_same_bits(weights, full.weights, 5 * g->k, "weights of routing alone");

    mpk_layer_options options = {.threads = 2};
    options.workspace_size = mpk_layer_workspace_size(&l.view, 5, &options);
    options.workspace = test_alloc(options.workspace_size);
    memset(options.workspace, 0xff, options.workspace_size); /* NaNs: nothing may be taken for zero */
    assert_int_equal(mpk_layer_run(&l.view, x, 5, &options, (mpk_layer_output){.y = y}, &error), MOEPACK_OK);
    test_same_bits(y, full.y, 5 * g->hidden, "with the caller's scratch");
    options.workspace_size--;
    assert_int_equal(mpk_layer_run(&l.view, x, 5, &options, (mpk_layer_output){.y = y}, &error), MOEPACK_E_USAGE);
    free(options.workspace);
    free_result(&full);
    free(x);
    free(y);
    free(ids);
    free(weights);
    free_layer(&l);
}

/* An infinite input makes its own token NaN or infinite, in every family alike, and no other token. */
static void test_infinite_input(void **state)
{
    (void)state;
    size_t count;
    const test_family *families = test_families(&count);
    const geometry *g = &geometries[1];
    layer l = make_layer(g, 18);
    float *x = make_x(g, 4, 19);
    result clean = run(&l, x, 4, NULL, true);
    x[2 * g->hidden + 3] = INFINITY;
    result expected = run(&l, x, 4, &(mpk_layer_options){.kernels = &mpk_kernels_scalar}, true);
    for (size_t f = 0; f < count; f++) {
        result got = run(&l, x, 4, &(mpk_layer_options){.kernels = families[f].kernels}, true);
        same_results(&l, &got, &expected, 4, families[f].kernels->name);
        free_result(&got);
    }
    test_same_bits(expected.y, clean.y, 2 * g->hidden, "tokens before");
    test_same_bits(expected.y + 3 * g->hidden, clean.y + 3 * g->hidden, g->hidden, "token after");
    assert_true(isfinite(expected.y[2 * g->hidden]) == 0);
    free_result(&clean);
    free_result(&expected);
    free(x);
    free_layer(&l);
}

int main(void)
{
    test_print_families();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double), cmocka_unit_test(test_one_result),
        cmocka_unit_test(test_many_tokens),    cmocka_unit_test(test_one_hot_expert),
        cmocka_unit_test(test_ranks_add_up),   cmocka_unit_test(test_missing_expert),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_calls),
        cmocka_unit_test(test_infinite_input),
    };
    return cmocka_run_group_tests_name("layer", tests, NULL, NULL);
}
