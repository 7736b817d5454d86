/* Running a layer from a load: results do not depend on how the weights came into memory, partial sums add up, and what
 * is missing or contradictory is named. The values themselves are checked in test_golden.c. */
#include "support.h"

#include "container.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define T 9u
#define H 128u
#define L 64u
#define K 2u

static char root[256], panel_path[300], canonical_path[300];
static float x[T * H];

static int set_up(void **state)
{
    (void)state;
    container_spec spec = container_default();
    new_dir(root, NULL);
    snprintf(panel_path, sizeof panel_path, "%s/panel.moepack", root);
    snprintf(canonical_path, sizeof canonical_path, "%s/canonical.moepack", root);
    container_write(&spec, panel_path);
    spec.layout = MOEPACK_LAYOUT_CANONICAL;
    container_write(&spec, canonical_path);
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
    float y[T * H], s[T * L], weights[T * K];
    int32_t ids[T * K];
} result;

static moepack_status run(const session *s, uint32_t block, const moepack_layer_options *options, result *r,
                          moepack_error *error)
{
    memset(r, 0, sizeof *r);
    const moepack_layer_output output = {r->y, r->s, r->ids, r->weights, NULL};
    return moepack_layer_run(s->load, block, x, T, options, &output, error);
}

static void load_whole(session *s, const char *path, moepack_io io)
{
    session_plan(s, path, "linear", 1, 0, NULL);
    assert_ok(session_load(s, 0, io, MOEPACK_CHECK_ON_LOAD), &s->error);
}

static bool any_nonzero(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] != 0.0f) return true;
    return false;
}

static void paths_and_layouts_give_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t block = 0; block < 3; block++)
        for (int compute = 0; compute < 3; compute++) {
            moepack_layer_options options;
            moepack_layer_options_init(&options);
            options.compute = (moepack_compute)compute;
            result base, other;
            for (int way = 0; way < 4; way++) {
                session s;
                load_whole(&s, way < 2 ? panel_path : canonical_path, (moepack_io)(way % 2));
                assert_ok(run(&s, block, &options, way == 0 ? &base : &other, &s.error), &s.error);
                if (way > 0) assert_memory_equal(&base, &other, sizeof base);
                session_close(&s);
            }
            assert_true(any_nonzero(base.y, T * H));
            assert_true(any_nonzero(base.s, T * L));
        }
}

/* s of the ranks, computed apart, adds up to s of the whole: each term is one rank's, up to rounding of the additions.
 */
static void partial_sums_add_up(void **state)
{
    (void)state;
    char file[300];
    snprintf(file, sizeof file, "%s/replicas.json", root);
    write_text(file, "{\"ranks\": 3, \"layers\": {\"*\": [[0,1],[1],[2,0],[0],[1,2],[2],[0,1,2]],"
                     "\"encoder.0\": [[0],[1],[2],[0],[1,0]]}}");
    const char *const placements[] = {"linear", "round-robin", file};
    for (size_t p = 0; p < 3; p++) {
        moepack_layer_options options;
        moepack_layer_options_init(&options);
        options.compute = MOEPACK_COMPUTE_F32;
        static result whole, part;
        double sum[T * L] = {0};
        session s;
        load_whole(&s, panel_path, MOEPACK_IO_DIRECT);
        assert_ok(run(&s, 1, &options, &whole, &s.error), &s.error);
        options.partial = true;
        session_close(&s);
        for (uint32_t rank = 0; rank < 3; rank++) {
            session_plan(&s, panel_path, placements[p], 3, rank, NULL);
            assert_ok(session_load(&s, rank, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
            assert_ok(run(&s, 1, &options, &part, &s.error), &s.error);
            assert_false(any_nonzero(part.y, T * H)); /* not written */
            assert_memory_equal(part.ids, whole.ids, sizeof whole.ids);
            assert_memory_equal(part.weights, whole.weights, sizeof whole.weights);
            for (size_t i = 0; i < T * L; i++) sum[i] += (double)part.s[i];
            session_close(&s);
        }
        double difference = 0, size = 0;
        for (size_t i = 0; i < T * L; i++) {
            const double d = sum[i] - (double)whole.s[i];
            difference += d * d;
            size += (double)whole.s[i] * (double)whole.s[i];
        }
        assert_true(size > 0);
        assert_true(difference <= size * 1e-13); /* rel-L2 3e-7: a few F32 roundings */
    }
}

static void missing_experts_are_named(void **state)
{
    (void)state;
    session s;
    static result r;
    session_plan(&s, panel_path, "linear", 7, 0, NULL); /* expert 0 only */
    assert_ok(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    assert_status(run(&s, 1, NULL, &r, &s.error), MOEPACK_E_INCOMPLETE, &s.error);
    assert_mentions(&s.error, "layer 2, expert ");
    /* Without y, with and without a place for ids: the same error, because no partial sum was asked for. */
    for (int with_ids = 0; with_ids < 2; with_ids++) {
        const moepack_layer_output output = {NULL, r.s, with_ids ? r.ids : NULL, NULL, NULL};
        assert_status(moepack_layer_run(s.load, 1, x, T, NULL, &output, &s.error), MOEPACK_E_INCOMPLETE, &s.error);
        assert_mentions(&s.error, "layer 2, expert ");
    }
    /* Routing alone needs no expert. */
    const moepack_layer_output routing = {NULL, NULL, r.ids, r.weights, NULL};
    assert_ok(moepack_layer_run(s.load, 1, x, T, NULL, &routing, &s.error), &s.error);
    session_close(&s);
}

static void missing_parts_are_named(void **state)
{
    (void)state;
    session s;
    static result r;
    const uint32_t blocks[] = {1};
    moepack_plan_options options;
    moepack_plan_options_init(&options);
    options.blocks = blocks;
    options.block_count = 1;
    session_plan(&s, panel_path, "linear", 1, 0, &options);
    assert_ok(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    assert_ok(run(&s, 1, NULL, &r, &s.error), &s.error);
    assert_status(run(&s, 2, NULL, &r, &s.error), MOEPACK_E_INCOMPLETE, &s.error);
    assert_mentions(&s.error, "layer encoder.0");
    assert_status(run(&s, 3, NULL, &r, &s.error), MOEPACK_E_USAGE, &s.error);
    session_close(&s);
    options.dense = false;
    session_plan(&s, panel_path, "linear", 1, 0, &options);
    assert_ok(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    assert_status(run(&s, 1, NULL, &r, &s.error), MOEPACK_E_INCOMPLETE, &s.error);
    assert_mentions(&s.error, "layer 2");
    assert_mentions(&s.error, "dense");
    session_close(&s);
}

static void policy_overrides(void **state)
{
    (void)state;
    session s;
    static result base, other;
    moepack_policy policy;
    moepack_layer_options options;
    moepack_layer_options_init(&options);
    load_whole(&s, panel_path, MOEPACK_IO_DIRECT);
    const moepack_index *index = moepack_pack_index(s.pack);
    assert_ok(run(&s, 0, NULL, &base, &s.error), &s.error);
    options.policy = &policy;
    assert_ok(moepack_index_policy(index, 0, &policy, NULL, &s.error), &s.error);
    assert_ok(run(&s, 0, &options, &other, &s.error), &s.error);
    assert_memory_equal(&base, &other, sizeof base);
    policy.scale = 2.0;
    assert_ok(run(&s, 0, &options, &other, &s.error), &s.error);
    assert_memory_equal(base.ids, other.ids, sizeof base.ids);
    for (size_t i = 0; i < T * K; i++) assert_true(other.weights[i] == 2.0f * base.weights[i]);
    policy.hidden = 256;
    assert_status(run(&s, 0, &options, &other, &s.error), MOEPACK_E_USAGE, &s.error);
    assert_mentions(&s.error, "hidden=256");
    policy.hidden = H;
    policy.top_k = 8;
    assert_true(run(&s, 0, &options, &other, &s.error) != MOEPACK_OK);
    session_close(&s);
}

static void kernels_by_name_and_environment(void **state)
{
    (void)state;
    session s;
    static result base, other;
    moepack_layer_options options;
    moepack_layer_options_init(&options);
    load_whole(&s, panel_path, MOEPACK_IO_DIRECT);
    unsetenv("MOEPACK_KERNELS");
    const char *best = NULL, *name = NULL;
    assert_ok(moepack_kernels_name(NULL, &best, &s.error), &s.error);
    assert_ok(run(&s, 0, NULL, &base, &s.error), &s.error);
    static const char *const names[] = {"scalar", "avx2", "avxvnni", "avx512"};
    for (size_t i = 0; i < 4; i++) {
        options.kernels = names[i];
        const moepack_status status = moepack_kernels_name(names[i], &name, &s.error);
        if (status == MOEPACK_OK) {
            assert_string_equal(name, names[i]);
            assert_ok(run(&s, 0, &options, &other, &s.error), &s.error);
            assert_memory_equal(&base, &other, sizeof base);
            assert_int_equal(setenv("MOEPACK_KERNELS", names[i], 1), 0);
            assert_ok(moepack_kernels_name(NULL, &name, &s.error), &s.error);
            assert_string_equal(name, names[i]);
            assert_ok(run(&s, 0, NULL, &other, &s.error), &s.error);
            assert_memory_equal(&base, &other, sizeof base);
        } else {
            print_message("kernels %s do not run on this processor\n", names[i]);
            assert_status(status, MOEPACK_E_UNSUPPORTED, &s.error);
            assert_status(run(&s, 0, &options, &other, &s.error), MOEPACK_E_UNSUPPORTED, &s.error);
        }
        unsetenv("MOEPACK_KERNELS");
    }
    assert_int_equal(setenv("MOEPACK_KERNELS", "sse9", 1), 0);
    assert_status(run(&s, 0, NULL, &other, &s.error), MOEPACK_E_USAGE, &s.error);
    assert_mentions(&s.error, "sse9");
    options.kernels = "scalar"; /* a name in code wins */
    assert_ok(run(&s, 0, &options, &other, &s.error), &s.error);
    assert_int_equal(setenv("MOEPACK_KERNELS", "", 1), 0);
    assert_ok(moepack_kernels_name(NULL, &name, &s.error), &s.error);
    assert_string_equal(name, best);
    unsetenv("MOEPACK_KERNELS");
    options.kernels = "AVX2";
    assert_status(run(&s, 0, &options, &other, &s.error), MOEPACK_E_USAGE, &s.error);
    session_close(&s);
}

/* ---- many callers at once ---- */

typedef struct caller {
    const session *s;
    result r;
    moepack_status status;
    moepack_error error;
} caller;

static void *call(void *arg)
{
    caller *c = arg;
    moepack_layer_options options;
    moepack_layer_options_init(&options);
    options.threads = 1;
    for (int i = 0; i < 20 && c->status == MOEPACK_OK; i++) c->status = run(c->s, 1, &options, &c->r, &c->error);
    return NULL;
}

static void many_threads_share_a_load(void **state)
{
    (void)state;
    static caller callers[4];
    static result base;
    pthread_t threads[4];
    session s;
    load_whole(&s, panel_path, MOEPACK_IO_MMAP);
    assert_ok(run(&s, 1, NULL, &base, &s.error), &s.error);
    for (size_t i = 0; i < 4; i++) {
        callers[i].s = &s;
        assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_ok(callers[i].status, &callers[i].error);
        assert_memory_equal(&callers[i].r, &base, sizeof base);
    }
    session_close(&s);
}

static void *open_and_load(void *arg)
{
    caller *c = arg;
    moepack_load *load = NULL;
    for (int i = 0; i < 10 && c->status == MOEPACK_OK; i++) {
        c->status = moepack_load_create(c->s->pack, c->s->placement, 0, c->s->plan, NULL, &load, NULL, &c->error);
        moepack_load_free(load);
    }
    return NULL;
}

/* Shards are opened on first use: here by several loads at the same time. */
static void many_loads_share_a_pack(void **state)
{
    (void)state;
    static caller callers[4];
    pthread_t threads[4];
    session s;
    session_plan(&s, panel_path, "linear", 1, 0, NULL);
    for (size_t i = 0; i < 4; i++) {
        callers[i].s = &s;
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_load, &callers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_ok(callers[i].status, &callers[i].error);
    }
    session_close(&s);
}

static void bad_arguments(void **state)
{
    (void)state;
    session s;
    static result r;
    moepack_layer_options options;
    const moepack_layer_output output = {r.y, NULL, NULL, NULL, NULL};
    load_whole(&s, panel_path, MOEPACK_IO_MMAP);
    assert_status(moepack_layer_run(NULL, 0, x, T, NULL, &output, &s.error), MOEPACK_E_USAGE, &s.error);
    assert_status(moepack_layer_run(s.load, 0, NULL, T, NULL, &output, &s.error), MOEPACK_E_USAGE, &s.error);
    assert_status(moepack_layer_run(s.load, 0, x, T, NULL, NULL, &s.error), MOEPACK_E_USAGE, &s.error);
    assert_ok(moepack_layer_run(s.load, 0, NULL, 0, NULL, &output, &s.error), &s.error);
    moepack_layer_options_init(&options);
    options.size += 1;
    assert_status(moepack_layer_run(s.load, 0, x, T, &options, &output, &s.error), MOEPACK_E_USAGE, &s.error);
    moepack_layer_options_init(&options);
    options.compute = (moepack_compute)9;
    assert_status(moepack_layer_run(s.load, 0, x, T, &options, &output, &s.error), MOEPACK_E_USAGE, &s.error);
    session_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_and_layouts_give_the_same_bits),
        cmocka_unit_test(partial_sums_add_up),
        cmocka_unit_test(missing_experts_are_named),
        cmocka_unit_test(missing_parts_are_named),
        cmocka_unit_test(policy_overrides),
        cmocka_unit_test(kernels_by_name_and_environment),
        cmocka_unit_test(many_threads_share_a_load),
        cmocka_unit_test(many_loads_share_a_pack),
        cmocka_unit_test(bad_arguments),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
