/* The layer in three calls - begin, experts, finish - gives the bits of the layer in one, and the experts can be chosen
 * by the caller. */
#include "support.h"

#include "container.h"

#include <stdlib.h>
#include <string.h>

#define T 9u
#define H 128u
#define L 64u
#define K 2u
#define E 7u

static char root[256], path[300];
static float x[T * H];

static int set_up(void **state)
{
    (void)state;
    container_spec spec = container_default();
    new_dir(root, NULL);
    snprintf(path, sizeof path, "%s/steps.moepack", root);
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

static void load_whole(session *s)
{
    session_plan(s, path, "linear", 1, 0, NULL);
    assert_ok(session_load(s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s->error);
}

typedef struct result {
    float y[T * H], s[T * L], z[T * L], weights[T * K];
    int32_t ids[T * K];
} result;

static void in_one(session *s, uint32_t block, const moepack_layer_options *options, result *r)
{
    const moepack_layer_output output = {r->y, r->s, r->ids, r->weights, NULL};
    assert_ok(moepack_layer_run(s->load, block, x, T, options, &output, &s->error), &s->error);
}

static void in_three(session *s, uint32_t block, const moepack_layer_options *options, result *r)
{
    assert_ok(moepack_layer_begin(s->load, block, x, T, options, r->ids, r->weights, r->z, &s->error), &s->error);
    assert_ok(moepack_experts_run(s->load, block, r->z, r->ids, r->weights, T, K, options, r->s, &s->error), &s->error);
    assert_ok(moepack_layer_finish(s->load, block, x, r->s, T, options, r->y, &s->error), &s->error);
}

static void three_calls_are_one(void **state)
{
    (void)state;
    static result one, three;
    static const char *const kernels[] = {"scalar", NULL};
    session s;
    load_whole(&s);
    for (uint32_t block = 0; block < 3; block++)
        for (unsigned compute = 0; compute < 3; compute++)
            for (size_t k = 0; k < 2; k++) {
                moepack_layer_options options;
                moepack_layer_options_init(&options);
                options.compute = (moepack_compute)compute;
                options.kernels = kernels[k];
                options.threads = 1 + (unsigned)k;
                in_one(&s, block, &options, &one);
                in_three(&s, block, &options, &three);
                assert_memory_equal(one.y, three.y, sizeof one.y);
                assert_memory_equal(one.s, three.s, sizeof one.s);
                assert_memory_equal(one.ids, three.ids, sizeof one.ids);
                assert_memory_equal(one.weights, three.weights, sizeof one.weights);
                assert_true(one.y[0] != 0.0f && three.z[0] != 0.0f);
            }
    session_close(&s);
}

/* Any number of slots: s is the weighted sum of what each expert alone gives, added in slot order. */
static void own_routing(void **state)
{
    (void)state;
    enum {
        SLOTS = 5
    };
    static result r;
    static float single[SLOTS][T * L], s_all[T * L];
    int32_t ids[T * SLOTS], one_id[T];
    float weights[T * SLOTS], ones[T];
    session s;
    load_whole(&s);
    in_three(&s, 0, NULL, &r);
    for (size_t i = 0; i < T * SLOTS; i++) {
        ids[i] = (int32_t)((i * 3 + i / SLOTS) % E);
        weights[i] = (float)(1 + i % 4) * 0.25f;
    }
    assert_ok(moepack_experts_run(s.load, 0, r.z, ids, weights, T, SLOTS, NULL, s_all, &s.error), &s.error);
    for (size_t i = 0; i < SLOTS; i++) {
        for (size_t t = 0; t < T; t++) {
            one_id[t] = ids[t * SLOTS + i];
            ones[t] = 1.0f;
        }
        assert_ok(moepack_experts_run(s.load, 0, r.z, one_id, ones, T, 1, NULL, single[i], &s.error), &s.error);
    }
    for (size_t t = 0; t < T; t++)
        for (size_t c = 0; c < L; c++) {
            /* Products with these weights are exact in double, so this is the fused chain up to one rounding a slot. */
            float sum = 0;
            for (size_t i = 0; i < SLOTS; i++)
                sum = (float)((double)weights[t * SLOTS + i] * single[i][t * L + c] + (double)sum);
            assert_true(sum - s_all[t * L + c] < 1e-4f && s_all[t * L + c] - sum < 1e-4f);
        }
    session_close(&s);
}

/* Ranks: each computes its experts of the same choice, the sums are added, one call finishes. */
static void ranks_add_up(void **state)
{
    (void)state;
    static result whole, part;
    static float sum[T * L], y[T * H];
    moepack_layer_options options;
    moepack_layer_options_init(&options);
    options.compute = MOEPACK_COMPUTE_F32;
    session s;
    load_whole(&s);
    in_three(&s, 1, &options, &whole);
    session_close(&s);
    options.partial = true;
    memset(sum, 0, sizeof sum);
    for (uint32_t rank = 0; rank < 3; rank++) {
        session_plan(&s, path, "round-robin", 3, rank, NULL);
        assert_ok(session_load(&s, rank, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
        assert_ok(moepack_experts_run(s.load, 1, whole.z, whole.ids, whole.weights, T, K, &options, part.s, &s.error),
                  &s.error);
        for (size_t i = 0; i < T * L; i++) sum[i] += part.s[i];
        if (rank == 2) assert_ok(moepack_layer_finish(s.load, 1, x, sum, T, &options, y, &s.error), &s.error);
        session_close(&s);
    }
    for (size_t i = 0; i < T * H; i++) assert_true(y[i] - whole.y[i] < 1e-4f && whole.y[i] - y[i] < 1e-4f);
}

static void missing_experts(void **state)
{
    (void)state;
    static result r;
    session s;
    load_whole(&s);
    in_three(&s, 0, NULL, &r);
    session_close(&s);
    session_plan(&s, path, "linear", 3, 0, NULL); /* experts 0 to 2 */
    assert_ok(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    int32_t ids[T * K] = {0};
    ids[3] = 5;
    assert_status(moepack_experts_run(s.load, 0, r.z, ids, r.weights, T, K, NULL, r.s, &s.error), MOEPACK_E_INCOMPLETE,
                  &s.error);
    assert_int_equal(s.error.expert, 5);
    assert_mentions(&s.error, "token 1");
    session_close(&s);
}

static void bad_arguments(void **state)
{
    (void)state;
    static result r;
    session s;
    load_whole(&s);
    in_three(&s, 0, NULL, &r);
    int32_t ids[T * K] = {0};
    for (size_t i = 0; i < 2; i++) {
        ids[7] = i == 0 ? -1 : (int32_t)E;
        assert_status(moepack_experts_run(s.load, 0, r.z, ids, r.weights, T, K, NULL, r.s, &s.error), MOEPACK_E_USAGE,
                      &s.error);
        assert_mentions(&s.error, "token 3");
    }
    assert_status(moepack_experts_run(NULL, 0, r.z, r.ids, r.weights, T, K, NULL, r.s, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_status(moepack_experts_run(s.load, 0, NULL, r.ids, r.weights, T, K, NULL, r.s, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_status(moepack_experts_run(s.load, 0, r.z, NULL, r.weights, T, K, NULL, r.s, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_status(moepack_experts_run(s.load, 0, r.z, r.ids, NULL, T, K, NULL, r.s, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_status(moepack_experts_run(s.load, 9, r.z, r.ids, r.weights, T, K, NULL, r.s, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_status(moepack_experts_run(s.load, 0, r.z, r.ids, r.weights, T, SIZE_MAX, NULL, r.s, &s.error),
                  MOEPACK_E_USAGE, &s.error);
    assert_status(moepack_layer_begin(s.load, 0, NULL, T, NULL, r.ids, r.weights, r.z, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_status(moepack_layer_finish(s.load, 0, x, NULL, T, NULL, r.y, &s.error), MOEPACK_E_USAGE, &s.error);
    assert_status(moepack_layer_finish(s.load, 0, x, r.s, T, NULL, NULL, &s.error), MOEPACK_E_USAGE, &s.error);
    /* Nothing to do is fine: no tokens, and no experts, which give a sum of zero. */
    assert_ok(moepack_experts_run(s.load, 0, NULL, NULL, NULL, 0, K, NULL, NULL, &s.error), &s.error);
    assert_ok(moepack_experts_run(s.load, 0, r.z, NULL, NULL, T, 0, NULL, r.s, &s.error), &s.error);
    for (size_t i = 0; i < T * L; i++) assert_true(r.s[i] == 0.0f);
    session_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_calls_are_one), cmocka_unit_test(own_routing),   cmocka_unit_test(ranks_add_up),
        cmocka_unit_test(missing_experts),     cmocka_unit_test(bad_arguments),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
