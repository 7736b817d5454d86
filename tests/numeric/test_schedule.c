/* Stages, tasks and teams: everything is done once and in order, whatever the threads do, and a caller's own threads
 * are left alone. Also the layer on all of that: same bits for odd numbers of threads, in a caller's parallel region,
 * and where OpenMP grants fewer threads than asked for. */
#include "common.h"
#include "schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef MOEPACK_PTHREAD_TEAM
#include <omp.h>
#endif

/* ------------------------------------------------------------------------------------------------ stages */

#define STAGES 9
#define TASKS_MAX 200

/* What the tasks themselves see. Plain integers: ThreadSanitizer reports them if stages do not wait for each other. */
typedef struct watch {
    mpk_schedule schedule;
    uint32_t after[STAGES];
    size_t tasks[STAGES], late; /* tasks of the last stage are set by a task of stage 0 */
    uint32_t runs[STAGES][TASKS_MAX];
    atomic_uint out_of_order;
} watch;

static void watch_task(void *context, unsigned stage, size_t i, unsigned worker)
{
    watch *w = context;
    (void)worker;
    for (unsigned s = 0; s < stage; s++)
        for (size_t k = 0; (w->after[stage] >> s & 1) != 0 && k < w->tasks[s]; k++)
            if (w->runs[s][k] != 1) atomic_fetch_add(&w->out_of_order, 1);
    w->runs[stage][i]++;
    if (stage == 0 && i == 0) {
        w->tasks[STAGES - 1] = w->late;
        mpk_schedule_set(&w->schedule, STAGES - 1, w->late);
    }
}

static void watch_work(void *context, unsigned worker)
{
    watch *w = context;
    mpk_schedule_work(&w->schedule, watch_task, w, worker);
}

static void test_order(void **state)
{
    (void)state;
    test_random r = {11};
    watch *w = aligned_alloc(128, (sizeof *w + 127) / 128 * 128);
    assert_non_null(w);
    for (unsigned round = 0; round < 140; round++) {
        memset(w, 0, sizeof *w);
        for (unsigned s = 1; s < STAGES; s++) w->after[s] = (uint32_t)test_next(&r) & ((1u << s) - 1);
        w->after[STAGES - 1] |= 1;
        mpk_schedule_init(&w->schedule, w->after, STAGES);
        for (unsigned s = 0; s < STAGES - 1; s++) {
            w->tasks[s] = test_below(&r, 3) == 0 ? 0 : test_below(&r, s % 3 == 0 ? 4 : TASKS_MAX);
            if (s == 0) w->tasks[s]++;
            mpk_schedule_set(&w->schedule, s, w->tasks[s]);
        }
        w->late = test_below(&r, TASKS_MAX);
        mpk_team_run(1 + round % 7, watch_work, w);
        assert_int_equal(atomic_load(&w->out_of_order), 0);
        for (unsigned s = 0; s < STAGES; s++)
            for (size_t i = 0; i < TASKS_MAX; i++) assert_int_equal(w->runs[s][i], i < w->tasks[s]);
    }
    free(w);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    watch *w = aligned_alloc(128, (sizeof *w + 127) / 128 * 128);
    assert_non_null(w);
    memset(w, 0, sizeof *w);
    mpk_schedule_init(&w->schedule, w->after, 3);
    mpk_team_run(4, watch_work, w);
    mpk_schedule_init(&w->schedule, w->after, 0);
    mpk_team_run(1, watch_work, w);
    free(w);
}

/* ------------------------------------------------------------------------------------------------ teams */

typedef struct head_count {
    atomic_uint heads, highest;
} head_count;

static void count_head(void *context, unsigned worker)
{
    head_count *c = context;
    atomic_fetch_add(&c->heads, 1);
    unsigned highest = atomic_load(&c->highest);
    while (worker > highest && !atomic_compare_exchange_weak(&c->highest, &highest, worker)) {
    }
}

static void test_team(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= 7; threads++) {
        head_count c = {0};
        mpk_team_run(threads, count_head, &c);
        assert_in_range(atomic_load(&c.heads), 1, threads);
        assert_int_equal(atomic_load(&c.highest), atomic_load(&c.heads) - 1);
    }
}

#ifndef MOEPACK_PTHREAD_TEAM
/* Heads in teams that two threads of a region start, 3 threads each. */
static unsigned heads_inside(int levels)
{
    head_count c[2] = {{0}, {0}};
    omp_set_max_active_levels(levels);
#pragma omp parallel for num_threads(2) schedule(static)
    for (int i = 0; i < 2; i++) mpk_team_run(3, count_head, &c[i]);
    omp_set_max_active_levels(1);
    return atomic_load(&c[0].heads) + atomic_load(&c[1].heads);
}

static void test_inside_a_region(void **state)
{
    (void)state;
    assert_int_equal(heads_inside(1), 2);
    assert_in_range(heads_inside(2), 2, 6); /* 6, unless OMP_THREAD_LIMIT says less */
}
#endif

/* ------------------------------------------------------------------------------------------------ the layer */

typedef struct small_layer {
    mpk_layer_view view;
    test_matrix dense[6], expert[6][3];
    mpk_expert_view experts[6];
    uint8_t present[6];
    float bias[32], *norm;
} small_layer;

/* Widths are multiples of nothing; several runs of row blocks in each matrix. */
static small_layer *make_layer(void)
{
    const uint64_t h = 331, in = 203, inner = 157, shared = 211;
    test_random r = {5};
    small_layer *l = test_alloc(sizeof *l);
    const uint64_t size[6][2] = {{6, h}, {in, h}, {h, in}, {shared, h}, {shared, h}, {h, shared}};
    for (int i = 0; i < 6; i++) {
        l->dense[i] = test_matrix_random(&r, MOEPACK_ENC_BF16, size[i][0], size[i][1], 0.06);
        l->expert[i][0] = test_matrix_random(&r, MOEPACK_ENC_E2M1, inner, in, 0.06);
        l->expert[i][1] = test_matrix_random(&r, MOEPACK_ENC_E2M1, inner, in, 0.06);
        l->expert[i][2] = test_matrix_random(&r, MOEPACK_ENC_E2M1, in, inner, 0.06);
        l->experts[i] =
            (mpk_expert_view){.gate = l->expert[i][0].view, .up = l->expert[i][1].view, .down = l->expert[i][2].view};
        l->present[i] = 1;
        l->bias[i] = 0.01f * (float)i;
    }
    l->norm = test_alloc(256 * sizeof *l->norm);
    for (int i = 0; i < 256; i++) l->norm[i] = 1.0f + 0.001f * (float)i;
    l->view = (mpk_layer_view){.policy = {.hidden = h,
                                          .expert_input = in,
                                          .intermediate = inner,
                                          .top_k = 3,
                                          .select = MOEPACK_SELECT_BIASED,
                                          .renormalize = MOEPACK_RENORM_SUM_EPS,
                                          .renorm_eps = 1e-20,
                                          .scale = 1,
                                          .groups = 1,
                                          .groups_kept = 1,
                                          .activation = MOEPACK_ACT_SITU,
                                          .gated = 1,
                                          .situ_beta = 4,
                                          .situ_linear_beta = 25,
                                          .latent = 1,
                                          .latent_norm = 1,
                                          .norm_eps = 1e-5,
                                          .shared_width = shared,
                                          .shared_activation = MOEPACK_ACT_SITU},
                               .experts = 6,
                               .router = l->dense[0].view,
                               .latent_down = l->dense[1].view,
                               .latent_up = l->dense[2].view,
                               .shared_gate = l->dense[3].view,
                               .shared_up = l->dense[4].view,
                               .shared_down = l->dense[5].view,
                               .router_bias = l->bias,
                               .latent_norm = l->norm,
                               .expert = l->experts,
                               .present = l->present};
    return l;
}

static void free_layer(small_layer *l)
{
    for (int i = 0; i < 6; i++) {
        test_matrix_free(&l->dense[i]);
        for (int m = 0; m < 3; m++) test_matrix_free(&l->expert[i][m]);
    }
    free(l->norm);
    free(l);
}

static float *layer_inputs(size_t tokens)
{
    test_random r = {6};
    float *x = test_alloc(tokens * 331 * sizeof *x);
    for (size_t i = 0; i < tokens * 331; i++) x[i] = (float)test_normal(&r);
    return x;
}

static float *run_layer(const small_layer *l, const float *x, size_t tokens, unsigned threads)
{
    moepack_error error;
    float *y = malloc(tokens * 331 * sizeof *y);
    const mpk_layer_options options = {.threads = threads};
    const mpk_layer_output out = {.y = y};
    if (y == NULL || mpk_layer_run(&l->view, x, tokens, &options, out, &error) != MOEPACK_OK) abort();
    return y;
}

static void test_layer_threads(void **state)
{
    (void)state;
    static const size_t tokens[] = {1, 2, 5, 67};
    small_layer *l = make_layer();
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        float *x = layer_inputs(tokens[i]), *expected = run_layer(l, x, tokens[i], 1);
        for (unsigned threads = 2; threads <= 7; threads++) {
            float *y = run_layer(l, x, tokens[i], threads);
            test_same_bits(y, expected, tokens[i] * 331, "threads");
            free(y);
        }
        free(expected);
        free(x);
    }
    free_layer(l);
}

/* Memory left by another call, smaller or larger, full of something else; and two calls at once. */
typedef struct spare_run {
    const small_layer *l;
    const float *x;
    mpk_spare *spare;
    float *y[2][12];
} spare_run;

static void run_with_spare(void *context, unsigned worker)
{
    spare_run *r = context;
    moepack_error error;
    for (size_t i = 0; i < 12; i++) {
        const mpk_layer_options options = {.threads = 1, .spare = r->spare};
        const mpk_layer_output out = {.y = r->y[worker][i]};
        if (mpk_layer_run(&r->l->view, r->x, 1 + i * 5 % 12, &options, out, &error) != MOEPACK_OK) abort();
    }
}

static void test_spare_memory(void **state)
{
    (void)state;
    mpk_spare spare = {NULL};
    small_layer *l = make_layer();
    float *x = layer_inputs(12), *expected = run_layer(l, x, 12, 1);
    spare_run *r = test_alloc(sizeof *r);
    *r = (spare_run){.l = l, .x = x, .spare = &spare};
    for (int w = 0; w < 2; w++)
        for (int i = 0; i < 12; i++) r->y[w][i] = test_alloc(12 * 331 * sizeof(float));
    mpk_team_run(2, run_with_spare, r);
    run_with_spare(r, 1); /* should the team have been one thread */
    assert_non_null(atomic_load(&spare.memory));
    const bool first_ran = r->y[0][0][0] != 0.0f;
    for (int w = 0; w < 2; w++)
        for (size_t i = 0; i < 12; i++) {
            if (w == 1 || first_ran) test_same_bits(r->y[w][i], expected, (1 + i * 5 % 12) * 331, "with spare memory");
            free(r->y[w][i]);
        }
    mpk_spare_free(&spare);
    mpk_spare_free(&spare);
    free(r);
    free(expected);
    free(x);
    free_layer(l);
}

#ifndef MOEPACK_PTHREAD_TEAM
static void test_layer_inside_a_region(void **state)
{
    (void)state;
    small_layer *l = make_layer();
    float *x = layer_inputs(3), *expected = run_layer(l, x, 3, 1), *y[3];
    for (int levels = 1; levels <= 2; levels++) {
        omp_set_max_active_levels(levels);
#pragma omp parallel for num_threads(3) schedule(static)
        for (int i = 0; i < 3; i++) y[i] = run_layer(l, x, 3, 2);
        omp_set_max_active_levels(1);
        for (int i = 0; i < 3; i++) {
            test_same_bits(y[i], expected, 3 * 331, "in a parallel region");
            free(y[i]);
        }
    }
    free(expected);
    free(x);
    free_layer(l);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_nothing_to_do),
        cmocka_unit_test(test_team),
        cmocka_unit_test(test_layer_threads),
        cmocka_unit_test(test_spare_memory),
#ifndef MOEPACK_PTHREAD_TEAM
        cmocka_unit_test(test_inside_a_region),
        cmocka_unit_test(test_layer_inside_a_region),
#endif
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
