/* Fewer bytes than the experts need: the same bits as a full load, eviction by the rules, and failures that name the
 * expert and leave everything usable. */
#include "support.h"

#include "container.h"
#include "io/io.h"

#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define T 37u
#define H 128u
#define L 64u
#define K 2u

static char root[256], paths[2][300]; /* panel, canonical */
static float x[T * H];
static atomic_int failing;

static int fault(const char *operation, const char *path)
{
    return atomic_load(&failing) && strcmp(operation, "read") == 0 && strstr(path, ".mpk") != NULL ? EIO : 0;
}

static int set_up(void **state)
{
    (void)state;
    container_spec spec = container_default();
    new_dir(root, NULL);
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%d.moepack", root, i);
        spec.layout = i == 0 ? MOEPACK_LAYOUT_PANEL : MOEPACK_LAYOUT_CANONICAL;
        container_write(&spec, paths[i]);
    }
    for (size_t i = 0; i < T * H; i++) x[i] = (float)((i * 2654435761u >> 8 & 0xffff)) / 16384.0f - 2.0f;
    mpk_fault_hook_set(fault);
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

/* The numbers of a budget that is too small. */
static moepack_status create(session *s, uint32_t rank, uint64_t budget, moepack_evict evict, moepack_io io,
                             moepack_residency **out)
{
    moepack_residency_options options;
    moepack_residency_options_init(&options);
    options.budget = budget;
    options.evict = evict;
    options.io = io;
    options.threads = 2;
    return moepack_residency_create(s->pack, s->placement, rank, &options, out, &s->error);
}

/* A residency with exactly so many slots of one block's experts. */
static moepack_residency *with_slots(session *s, const char *path, uint64_t slots, moepack_evict evict)
{
    moepack_residency *r;
    moepack_residency_report report;
    session_plan(s, path, NULL, 1, 0, NULL);
    assert_ok(create(s, 0, UINT64_C(1) << 40, evict, MOEPACK_IO_DIRECT, &r), &s->error);
    moepack_residency_report_get(r, &report);
    moepack_residency_free(r);
    assert_ok(
        create(s, 0, report.budget_used - (report.slots - slots) * report.slot_bytes, evict, MOEPACK_IO_DIRECT, &r),
        &s->error);
    moepack_residency_report_get(r, &report);
    assert_int_equal(report.slots, slots);
    assert_true(report.budget_used <= report.budget);
    return r;
}

static void every_budget_gives_the_same_bits(void **state)
{
    (void)state;
    static result base, other;
    for (int layout = 0; layout < 2; layout++)
        for (uint64_t slots = K; slots <= 19; slots += slots < 5 ? 1 : 7)
            for (unsigned threads = 1; threads <= 3; threads++) {
                session s;
                moepack_layer_options options;
                moepack_layer_options_init(&options);
                options.threads = threads;
                moepack_residency *r = with_slots(&s, paths[layout], slots, MOEPACK_EVICT_LRU);
                assert_ok(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
                for (uint32_t block = 0; block < 3; block++)
                    for (int compute = 0; compute < 2; compute++) {
                        options.compute = (moepack_compute)compute;
                        const moepack_layer_output want = {base.y, base.s, base.ids, base.weights, NULL};
                        const moepack_layer_output got = {other.y, other.s, other.ids, other.weights, NULL};
                        memset(&other, 0xff, sizeof other);
                        assert_ok(moepack_layer_run(s.load, block, x, T, &options, &want, &s.error), &s.error);
                        assert_ok(moepack_residency_run(r, block, x, T, &options, &got, &s.error), &s.error);
                        assert_memory_equal(&base, &other, sizeof base);
                    }
                moepack_residency_report report;
                moepack_residency_report_get(r, &report);
                assert_true(report.resident_bytes <= report.budget);
                assert_true(report.misses > 0 && report.bytes_verified > 0);
                moepack_residency_free(r);
                session_close(&s);
            }
}

/* NaN, infinities, zeros of both signs, subnormal and huge numbers, in a caller that rounds upwards. */
static void odd_numbers_give_the_same_bits(void **state)
{
    (void)state;
    static const float odd[] = {NAN, INFINITY, -INFINITY, -0.0f, 1e-42f, -3e38f, 3e38f, 1e20f};
    static float strange[T * H];
    static result base, other;
    session s;
    memcpy(strange, x, sizeof x);
    for (size_t t = 1; t < T; t++) /* the first token stays ordinary */
        for (size_t i = 0; i < H; i += t % 3 == 0 ? 1 : 29) strange[t * H + i] = odd[(t / 3 + i) % 8];
    for (size_t i = 0; i < H; i++) strange[2 * H + i] = -0.0f;
    moepack_residency *r = with_slots(&s, paths[0], K, MOEPACK_EVICT_LRU);
    assert_ok(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    const int rounding = fegetround();
    for (int compute = 0; compute < 2; compute++)
        for (unsigned threads = 1; threads <= 2; threads++) {
            moepack_layer_options options;
            moepack_layer_options_init(&options);
            options.compute = (moepack_compute)compute;
            options.threads = threads;
            const moepack_layer_output want = {base.y, base.s, base.ids, base.weights, NULL};
            const moepack_layer_output got = {other.y, other.s, other.ids, other.weights, NULL};
            memset(&other, 0x55, sizeof other);
            assert_ok(moepack_layer_run(s.load, 1, strange, T, &options, &want, &s.error), &s.error);
            fesetround(FE_UPWARD);
            moepack_status status = moepack_residency_run(r, 1, strange, T, &options, &got, &s.error);
            fesetround(rounding);
            assert_ok(status, &s.error);
            assert_memory_equal(&base, &other, sizeof base);
        }
    size_t odd_sums = 0;
    for (size_t i = 0; i < T * L; i++) odd_sums += isfinite(base.s[i]) ? 0 : 1;
    assert_true(odd_sums > 0 && odd_sums < T * L);
    moepack_residency_free(r);
    session_close(&s);
}

/* What is in memory is used before it makes room for what is not. */
static void a_run_uses_what_is_there(void **state)
{
    (void)state;
    static result out;
    enum {
        SLOTS = 4
    };
    session s;
    moepack_residency_report before, after;
    bool selected[7] = {false};
    uint64_t wanted = 0, there = 0;
    moepack_residency *r = with_slots(&s, paths[0], SLOTS, MOEPACK_EVICT_LRU);
    const moepack_layer_output to = {NULL, out.s, out.ids, NULL, NULL};
    assert_ok(moepack_residency_run(r, 0, x, T, NULL, &to, &s.error), &s.error);
    for (size_t i = 0; i < T * K; i++) selected[out.ids[i]] = true;
    for (uint32_t e = 3; e < 7; e++) assert_ok(moepack_residency_acquire(r, 0, e, &s.error), &s.error);
    for (uint32_t e = 3; e < 7; e++) moepack_residency_release(r, 0, e);
    for (int e = 0; e < 7; e++) wanted += selected[e], there += selected[e] && e >= 3;
    assert_true(wanted > SLOTS && there > 0);
    moepack_residency_report_get(r, &before);
    assert_ok(moepack_residency_run(r, 0, x, T, NULL, &to, &s.error), &s.error);
    moepack_residency_report_get(r, &after);
    assert_int_equal(after.hits - before.hits, there);
    assert_int_equal(after.misses - before.misses, wanted - there);
    moepack_residency_free(r);
    session_close(&s);
}

static void wrong_calls_are_refused_or_ignored(void **state)
{
    (void)state;
    session s;
    moepack_residency *r;
    moepack_residency_report report;
    uint64_t length;
    const int32_t id = 0;
    session_plan(&s, paths[0], NULL, 1, 0, NULL);
    for (int i = 0; i < 3; i++) {
        moepack_residency_options options;
        moepack_residency_options_init(&options);
        options.budget = UINT64_C(1) << 40;
        if (i == 0) options.evict = (moepack_evict)7;
        if (i == 1) options.io = (moepack_io)2;
        if (i == 2) options.check = (moepack_check)3;
        assert_status(moepack_residency_create(s.pack, s.placement, 0, &options, &r, &s.error), MOEPACK_E_USAGE,
                      &s.error);
        assert_null(r);
    }
    assert_status(moepack_residency_acquire(NULL, 0, 0, &s.error), MOEPACK_E_INCOMPLETE, &s.error);
    assert_status(moepack_residency_pin(NULL, 0, 0, &s.error), MOEPACK_E_INCOMPLETE, &s.error);
    assert_null(moepack_residency_section(NULL, 0, 0, 0, &length));
    moepack_residency_release(NULL, 0, 0);
    moepack_residency_unpin(NULL, 0, 0);
    moepack_residency_prefetch(NULL, 0, &id, 1);
    memset(&report, 0xff, sizeof report);
    moepack_residency_report_get(NULL, &report);
    assert_int_equal(report.slots, 0);
    moepack_residency_free(NULL);
    session_close(&s);
}

static void too_small_a_budget_is_refused_with_the_numbers(void **state)
{
    (void)state;
    session s;
    moepack_residency *r;
    session_plan(&s, paths[0], NULL, 1, 0, NULL);
    assert_status(create(&s, 0, 4096, MOEPACK_EVICT_LRU, MOEPACK_IO_DIRECT, &r), MOEPACK_E_REFUSED, &s.error);
    assert_mentions(&s.error, "the budget is 4096");
    assert_null(r);
    session_close(&s);
}

static void use(moepack_residency *r, uint32_t expert)
{
    moepack_error error = {0};
    assert_ok(moepack_residency_acquire(r, 0, expert, &error), &error);
    moepack_residency_release(r, 0, expert);
}

static bool hit(moepack_residency *r, uint32_t expert)
{
    moepack_residency_report before, after;
    moepack_residency_report_get(r, &before);
    use(r, expert);
    moepack_residency_report_get(r, &after);
    return after.hits > before.hits;
}

static void eviction_follows_the_policy(void **state)
{
    (void)state;
    for (int evict = 0; evict < 2; evict++) {
        session s;
        moepack_residency *r = with_slots(&s, paths[0], 3, (moepack_evict)evict);
        use(r, 0), use(r, 0), use(r, 0); /* most often, longest ago */
        use(r, 1), use(r, 2), use(r, 2);
        use(r, 3); /* LRU: 0 goes; LFU: 1 goes */
        assert_true(hit(r, 2));
        assert_int_equal(hit(r, 0), evict == MOEPACK_EVICT_LFU);
        moepack_residency_free(r);
        session_close(&s);
    }
}

/* A prefetch keeps those of its experts that are in memory, even where they would be the next to go. */
static void a_prefetch_spares_what_it_names(void **state)
{
    (void)state;
    for (int evict = 0; evict < 2; evict++) {
        session s;
        moepack_residency *r = with_slots(&s, paths[0], 3, (moepack_evict)evict);
        use(r, 0), use(r, 1), use(r, 1), use(r, 2), use(r, 2);
        const int32_t ids[] = {4, 5, 0};
        moepack_residency_prefetch(r, 0, ids, 3);
        use(r, 4), use(r, 5);
        assert_true(hit(r, 0));
        moepack_residency_free(r);
        session_close(&s);
    }
}

static void pinned_and_held_experts_stay(void **state)
{
    (void)state;
    session s;
    moepack_residency *r = with_slots(&s, paths[0], 3, MOEPACK_EVICT_LRU);
    moepack_residency_report before, after;
    assert_ok(moepack_residency_pin(r, 0, 0, &s.error), &s.error);
    assert_ok(moepack_residency_pin(r, 0, 0, &s.error), &s.error); /* again: no second slot */
    moepack_residency_report_get(r, &before);
    assert_status(moepack_residency_pin(r, 0, 1, &s.error), MOEPACK_E_REFUSED, &s.error);
    moepack_residency_report_get(r, &after); /* refused before anything was read */
    assert_int_equal(after.bytes_read, before.bytes_read);
    assert_int_equal(after.misses, 1);
    for (uint32_t e = 1; e < 7; e++) use(r, e);
    assert_true(hit(r, 0));
    assert_ok(moepack_residency_acquire(r, 0, 1, &s.error), &s.error);
    assert_ok(moepack_residency_acquire(r, 0, 2, &s.error), &s.error);
    assert_status(moepack_residency_acquire(r, 0, 3, &s.error), MOEPACK_E_REFUSED, &s.error);
    moepack_residency_release(r, 0, 1);
    assert_ok(moepack_residency_acquire(r, 0, 3, &s.error), &s.error);
    moepack_residency_release(r, 0, 2);
    moepack_residency_release(r, 0, 3);
    moepack_residency_unpin(r, 0, 0);
    assert_ok(moepack_residency_pin(r, 0, 5, &s.error), &s.error);
    moepack_residency_free(r);
    session_close(&s);
}

static void damage_is_named_and_the_rest_stays_usable(void **state)
{
    (void)state;
    char path[300], name[128];
    session s;
    moepack_section section;
    snprintf(path, sizeof path, "%s/damaged.moepack", root);
    copy_tree(paths[0], path);
    moepack_residency *r = with_slots(&s, path, 3, MOEPACK_EVICT_LRU);
    place_of(s.pack, 0, 4, 2, name, &section);
    flip_byte(path, name, section.offset + section.stored_length / 2, 0x10);
    const int32_t ids[] = {4, 1, -7, 99};
    moepack_residency_prefetch(r, 0, ids, 4);
    for (int i = 0; i < 2; i++) {
        assert_status(moepack_residency_acquire(r, 0, 4, &s.error), MOEPACK_E_CORRUPT, &s.error);
        assert_mentions(&s.error, "expert 4");
    }
    use(r, 1);
    moepack_residency_report before, after;
    moepack_residency_report_get(r, &before);
    assert_true(before.failed_reads >= 2);
    assert_int_equal(before.hits + before.misses, 1);
    atomic_store(&failing, 1);
    assert_status(moepack_residency_acquire(r, 0, 5, &s.error), MOEPACK_E_IO, &s.error);
    assert_status(moepack_residency_pin(r, 0, 5, &s.error), MOEPACK_E_IO, &s.error);
    atomic_store(&failing, 0);
    moepack_residency_report_get(r, &after);
    assert_int_equal(after.bytes_read, before.bytes_read);
    assert_true(after.failed_reads > before.failed_reads);
    use(r, 5);
    moepack_residency_prefetch(r, 0, (const int32_t[]){2, 3}, 2); /* cancelled by the end */
    moepack_residency_free(r);
    session_close(&s);
}

typedef struct stress {
    moepack_residency *r;
    uint32_t seed;
    const void *lost;
} stress;

static void *stress_thread(void *argument)
{
    stress *own = argument;
    for (int i = 0; i < 300; i++) {
        own->seed = own->seed * 1664525u + 1013904223u;
        const uint32_t e = own->seed >> 16 & 3, next = own->seed >> 24 & 3;
        const int32_t id = (int32_t)next;
        uint64_t length;
        if (moepack_residency_acquire(own->r, 0, e, NULL) != MOEPACK_OK) continue; /* every slot is held */
        moepack_residency_prefetch(own->r, 0, &id, 1);
        if (moepack_residency_section(own->r, 0, e, 0, &length) == NULL) own->lost = own;
        moepack_residency_release(own->r, 0, e);
    }
    return NULL;
}

static void many_threads(void **state)
{
    (void)state;
    session s;
    moepack_residency *r = with_slots(&s, paths[0], 2, MOEPACK_EVICT_LFU);
    pthread_t threads[4];
    stress own[4];
    for (uint32_t i = 0; i < 4; i++) {
        own[i] = (stress){r, i + 1, NULL};
        assert_int_equal(pthread_create(&threads[i], NULL, stress_thread, &own[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_null(own[i].lost);
    }
    moepack_residency_report report;
    moepack_residency_report_get(r, &report);
    assert_true(report.evictions > 0);
    assert_true(report.resident_bytes <= report.budget);
    moepack_residency_free(r);
    session_close(&s);
}

typedef struct runner {
    moepack_residency *r;
    moepack_status status;
    moepack_error error;
    result out;
} runner;

static void *runner_thread(void *argument)
{
    runner *own = argument;
    const moepack_layer_output to = {own->out.y, own->out.s, own->out.ids, own->out.weights, NULL};
    moepack_layer_options options;
    moepack_layer_options_init(&options);
    options.threads = 1;
    for (int i = 0; i < 3 && own->status == MOEPACK_OK; i++)
        own->status = moepack_residency_run(own->r, 0, x, T, &options, &to, &own->error);
    return NULL;
}

/* More runs at once than there are slots. */
static void runs_at_the_same_time(void **state)
{
    (void)state;
    static runner own[4];
    static result base;
    session s;
    pthread_t threads[4];
    moepack_residency *r = with_slots(&s, paths[1], K, MOEPACK_EVICT_LRU);
    const moepack_layer_output want = {base.y, base.s, base.ids, base.weights, NULL};
    assert_ok(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    assert_ok(moepack_layer_run(s.load, 0, x, T, NULL, &want, &s.error), &s.error);
    for (int i = 0; i < 4; i++) {
        own[i].r = r;
        assert_int_equal(pthread_create(&threads[i], NULL, runner_thread, &own[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) {
        assert_ok(own[i].status, &own[i].error);
        assert_memory_equal(&own[i].out, &base, sizeof base);
    }
    moepack_residency_free(r);
    session_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_budget_gives_the_same_bits),
        cmocka_unit_test(odd_numbers_give_the_same_bits),
        cmocka_unit_test(a_run_uses_what_is_there),
        cmocka_unit_test(wrong_calls_are_refused_or_ignored),
        cmocka_unit_test(too_small_a_budget_is_refused_with_the_numbers),
        cmocka_unit_test(eviction_follows_the_policy),
        cmocka_unit_test(a_prefetch_spares_what_it_names),
        cmocka_unit_test(pinned_and_held_experts_stay),
        cmocka_unit_test(damage_is_named_and_the_rest_stays_usable),
        cmocka_unit_test(many_threads),
        cmocka_unit_test(runs_at_the_same_time),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
