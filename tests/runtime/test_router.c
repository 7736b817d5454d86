/* moepack_router_run: a load of the router alone routes as the whole layer does, and its scores are the goldens'. */
#include "support.h"

#include "container.h"
#include "moepack/convert.h"
#include "tensor_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define T 9u
#define H 128u
#define K 2u
#define E 7u

static char root[256], path[300];
static float x[T * H];

static int set_up(void **state)
{
    (void)state;
    container_spec spec = container_default();
    new_dir(root, NULL);
    snprintf(path, sizeof path, "%s/router.moepack", root);
    container_write(&spec, path);
    for (size_t i = 0; i < T * H; i++) x[i] = (float)((i * 2654435761u >> 8 & 0xffff)) / 16384.0f - 2.0f;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(root);
    return 0;
}

typedef struct result {
    float scores[T * E], weights[T * K];
    int32_t ids[T * K];
} result;

static void load_router(session *s, const char *pack, moepack_io io)
{
    moepack_plan_options options;
    moepack_plan_options_init(&options);
    options.router_only = true;
    session_plan(s, pack, "linear", 1, 0, &options);
    assert_ok(session_load(s, 0, io, MOEPACK_CHECK_ON_LOAD), &s->error);
}

static void route(session *s, uint32_t block, size_t first, size_t rows, const moepack_layer_options *options,
                  result *r)
{
    moepack_block info;
    moepack_index_block(moepack_pack_index(s->pack), block, &info);
    const moepack_router_output output = {r->scores + first * info.experts, r->ids + first * K, r->weights + first * K};
    assert_ok(moepack_router_run(s->load, block, x + first * H, rows, options, &output, &s->error), &s->error);
}

static void the_routers_tensors_alone(void **state)
{
    (void)state;
    session whole, router;
    session_plan(&whole, path, "linear", 1, 0, NULL);
    load_router(&router, path, MOEPACK_IO_DIRECT);
    assert_int_equal(moepack_plan_experts(router.plan), 0);
    assert_int_equal(moepack_plan_expert_bytes(router.plan), 0);
    /* A [7 or 5, 128] BF16 matrix, padded to 16 rows, and a bias in each of three blocks. */
    assert_int_equal(moepack_plan_dense_bytes(router.plan), 3 * 16 * 128 * 2 + (7 + 7 + 5) * 4);
    assert_true(moepack_plan_dense_bytes(whole.plan) > 2 * moepack_plan_dense_bytes(router.plan));
    assert_true(router.report.bytes_verified >= router.report.bytes_wanted);
    uint64_t length;
    assert_null(moepack_load_section(router.load, 0, 0, 0, &length));
    session_close(&whole);
    session_close(&router);
}

static void routes_as_the_layer_does(void **state)
{
    (void)state;
    static result whole, alone, parts;
    session s, router;
    session_plan(&s, path, "linear", 1, 0, NULL);
    assert_ok(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    for (int io = 0; io < 2; io++) {
        load_router(&router, path, (moepack_io)io);
        for (uint32_t block = 0; block < 3; block++) {
            moepack_layer_options options;
            moepack_layer_options_init(&options);
            memset(&alone, 0, sizeof alone);
            memset(&whole, 0, sizeof whole);
            memset(&parts, 0, sizeof parts);
            route(&s, block, 0, T, NULL, &whole);
            assert_ok(moepack_layer_begin(s.load, block, x, T, NULL, whole.ids, whole.weights, NULL, &s.error),
                      &s.error);
            route(&router, block, 0, T, NULL, &alone);
            assert_memory_equal(&whole, &alone, sizeof whole);
            options.kernels = "scalar";
            options.threads = 2;
            for (size_t at = 0; at < T; at += 4) route(&router, block, at, T - at < 4 ? T - at : 4, &options, &parts);
            assert_memory_equal(&whole, &parts, sizeof whole);
        }
        session_close(&router);
    }
    session_close(&s);
}

/* More tokens than are worked off together. */
static void long_batches(void **state)
{
    (void)state;
    static result once;
    const size_t times = 150;
    float *rows = calloc(times, sizeof x);
    float *scores = calloc(times, sizeof once.scores);
    int32_t *ids = calloc(times, sizeof once.ids);
    assert_true(rows != NULL && scores != NULL && ids != NULL);
    for (size_t i = 0; i < times; i++) memcpy(rows + i * T * H, x, sizeof x);
    session s;
    load_router(&s, path, MOEPACK_IO_DIRECT);
    route(&s, 0, 0, T, NULL, &once);
    const moepack_router_output output = {.scores = scores, .topk_ids = ids};
    assert_ok(moepack_router_run(s.load, 0, rows, times * T, NULL, &output, &s.error), &s.error);
    for (size_t i = 0; i < times; i++) {
        assert_memory_equal(scores + i * T * E, once.scores, sizeof once.scores);
        assert_memory_equal(ids + i * T * K, once.ids, sizeof once.ids);
    }
    session_close(&s);
    free(rows);
    free(scores);
    free(ids);
}

static void what_is_missing_is_said(void **state)
{
    (void)state;
    static float y[T * H];
    static result r;
    session s;
    load_router(&s, path, MOEPACK_IO_DIRECT);
    assert_status(moepack_layer_run(s.load, 0, x, T, NULL, &(moepack_layer_output){.y = y}, &s.error),
                  MOEPACK_E_INCOMPLETE, &s.error);
    assert_mentions(&s.error, "only the layer's router");
    assert_status(moepack_layer_begin(s.load, 0, x, T, NULL, r.ids, r.weights, y, &s.error), MOEPACK_E_INCOMPLETE,
                  &s.error);
    assert_status(moepack_router_run(s.load, 9, x, T, NULL, &(moepack_router_output){0}, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_status(moepack_router_run(s.load, 0, NULL, T, NULL, &(moepack_router_output){0}, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_ok(moepack_router_run(s.load, 0, NULL, 0, NULL, &(moepack_router_output){0}, &s.error), &s.error);
    assert_ok(moepack_router_run(s.load, 0, x, T, NULL, &(moepack_router_output){0}, &s.error), &s.error);
    session_close(&s);

    moepack_plan_options options;
    moepack_plan_options_init(&options);
    options.dense = false;
    float bias[E];
    bool present;
    session_plan(&s, path, "linear", 1, 0, &options);
    assert_ok(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    assert_status(moepack_router_run(s.load, 0, x, T, NULL, &(moepack_router_output){0}, &s.error),
                  MOEPACK_E_INCOMPLETE, &s.error);
    assert_status(moepack_router_bias(s.load, 0, bias, &present, &s.error), MOEPACK_E_INCOMPLETE, &s.error);
    session_close(&s);
}

static void another_bias(void **state)
{
    (void)state;
    static result stored, same, zero, without, pushed;
    float bias[E], other[E] = {0};
    bool present = false;
    session s;
    moepack_policy policy;
    moepack_layer_options options;
    moepack_layer_options_init(&options);
    load_router(&s, path, MOEPACK_IO_DIRECT);
    assert_ok(moepack_router_bias(s.load, 0, bias, &present, &s.error), &s.error);
    assert_true(present);
    route(&s, 0, 0, T, NULL, &stored);
    options.router_bias = bias;
    route(&s, 0, 0, T, &options, &same);
    assert_memory_equal(&stored, &same, sizeof stored);
    /* Zeros are what a policy without a bias does; the scores are never biased. */
    options.router_bias = other;
    route(&s, 0, 0, T, &options, &zero);
    moepack_block info;
    moepack_index_block(moepack_pack_index(s.pack), 0, &info);
    assert_ok(moepack_index_policy(moepack_pack_index(s.pack), info.policy, &policy, NULL, &s.error), &s.error);
    assert_ok(moepack_policy_set(&policy, "select", "score", &s.error), &s.error);
    options.router_bias = bias;
    options.policy = &policy;
    route(&s, 0, 0, T, &options, &without);
    assert_memory_equal(&zero, &without, sizeof zero);
    assert_memory_equal(zero.scores, stored.scores, sizeof zero.scores);
    /* A bias beyond all scores decides alone. */
    other[6] = 3;
    other[4] = 2;
    options.policy = NULL;
    options.router_bias = other;
    route(&s, 0, 0, T, &options, &pushed);
    for (size_t t = 0; t < T; t++) assert_true(pushed.ids[t * K] == 6 && pushed.ids[t * K + 1] == 4);
    session_close(&s);
}

/* ---- goldens ---- */

typedef struct golden_case {
    const char *fixture, *file;
    uint32_t k;
    moepack_layout layout;
} golden_case;

static const golden_case cases[] = {
    {"k3_tiny", "k3_tiny/golden/qb_layer_1_t460.safetensors", 5, MOEPACK_LAYOUT_PANEL},
    {"k3_tiny", "k3_tiny/golden/qb_layer_1_t512.safetensors", 5, MOEPACK_LAYOUT_CANONICAL},
    {"k3_quant", "k3_quant/golden/qb_layer_1_t448.safetensors", 16, MOEPACK_LAYOUT_PANEL},
};

static void convert(const golden_case *c, char out[300])
{
    char source[400];
    moepack_error error = {0};
    moepack_convert_options options;
    moepack_convert_report report;
    moepack_convert_options_init(&options);
    options.layout = c->layout;
    snprintf(source, sizeof source, "%s/%s/checkpoint", MOEPACK_FIXTURES, c->fixture);
    snprintf(out, 300, "%s/golden.moepack", root);
    assert_ok(moepack_convert(source, out, &options, &report, &error), &error);
}

static void assert_near(const golden_case *c, const char *name, const double *found)
{
    values v = read_tensor(c->file, name);
    for (size_t i = 0; i < v.count; i++)
        if (!(fabs(found[i] - v.at[i]) <= 1e-6))
            fail_msg("%s, %s[%zu]: %.9g, should be %.9g", c->file, name, i, found[i], v.at[i]);
    free(v.at);
}

static void assert_load(const golden_case *c, const char *name, const int32_t *ids, size_t count)
{
    values v = read_tensor(c->file, name);
    double *load = calloc(v.count, sizeof *load);
    assert_non_null(load);
    for (size_t i = 0; i < count; i++) load[ids[i]]++;
    for (size_t e = 0; e < v.count; e++)
        if (load[e] != v.at[e]) fail_msg("%s, %s[%zu]: %.0f, should be %.0f", c->file, name, e, load[e], v.at[e]);
    free(load);
    free(v.at);
}

/* One case: F32 scores, the load they give, one step of balancing on them, and the load under the new bias as F32. */
static void check_golden(const golden_case *c, const session *s)
{
    moepack_error error = {0};
    values in = read_tensor(c->file, "x"), shape = read_tensor(c->file, "scores_f64"),
           old = read_tensor(c->file, "bias_old");
    const size_t tokens = (size_t)shape.dims[0], experts = old.count, pairs = tokens * c->k;
    float *rows = calloc(in.count, sizeof *rows), *scores = calloc(shape.count, sizeof *scores),
          *bias = calloc(experts, sizeof *bias);
    double *wide = calloc(shape.count, sizeof *wide), *alpha = calloc(tokens, sizeof *alpha),
           *q = calloc(experts, sizeof *q);
    int32_t *ids = calloc(pairs, sizeof *ids);
    bool present = false;
    assert_true(rows != NULL && scores != NULL && bias != NULL && wide != NULL && alpha != NULL && q != NULL &&
                ids != NULL);
    for (size_t i = 0; i < in.count; i++) rows[i] = (float)in.at[i];
    moepack_layer_options options;
    moepack_layer_options_init(&options);
    const moepack_router_output output = {.scores = scores, .topk_ids = ids};
    assert_ok(moepack_router_run(s->load, 0, rows, tokens, &options, &output, &error), &error);
    for (size_t i = 0; i < shape.count; i++) wide[i] = (double)scores[i];
    assert_near(c, "scores_f64", wide);
    assert_load(c, "load_before", ids, pairs);
    assert_ok(moepack_router_bias(s->load, 0, bias, &present, &error), &error);
    for (size_t e = 0; e < experts; e++) assert_true(present && (double)bias[e] == old.at[e]);
    assert_ok(moepack_balance_quantile(wide, tokens, (uint32_t)experts, c->k, old.at, alpha, q, &error), &error);
    assert_near(c, "alpha_f64", alpha);
    assert_near(c, "c_f64", q);
    assert_near(c, "bias_new_f64", old.at);
    for (size_t e = 0; e < experts; e++) bias[e] = (float)old.at[e];
    options.router_bias = bias;
    assert_ok(moepack_router_run(s->load, 0, rows, tokens, &options, &output, &error), &error);
    assert_load(c, "load_after", ids, pairs);
    void *all[] = {in.at, shape.at, old.at, rows, scores, bias, wide, alpha, q, ids};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char pack[300];
        session s;
        convert(&cases[i], pack);
        load_router(&s, pack, MOEPACK_IO_DIRECT);
        check_golden(&cases[i], &s);
        session_close(&s);
        remove_tree(pack);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_routers_tensors_alone),
        cmocka_unit_test(routes_as_the_layer_does),
        cmocka_unit_test(long_batches),
        cmocka_unit_test(what_is_missing_is_said),
        cmocka_unit_test(another_bias),
        cmocka_unit_test(goldens),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
