/* Inputs, weights and callers that break careless kernels, on whole layers: every family gives the scalar one's bits,
 * for every number of threads and batch split, and the results that are known in advance are right. */
#include "cpu/elementary.h"
#include "layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define NAN_BITS 0x7fc00000u

static const geometry geometries[] = {
    {"latent", 112, 96, 64, 64, 5, 23, MOEPACK_ENC_E2M1, MOEPACK_ENC_BF16, MOEPACK_ACT_SITU, MOEPACK_ACT_SITU, 25, true,
     true, false},
    {"odd widths, k = E", 77, 101, 43, 21, 9, 9, MOEPACK_ENC_E2M1, MOEPACK_ENC_F32, MOEPACK_ACT_SILU, MOEPACK_ACT_SITU,
     0, true, true, true},
    {"bf16 experts", 96, 96, 80, 33, 2, 8, MOEPACK_ENC_BF16, MOEPACK_ENC_BF16, MOEPACK_ACT_SILU, MOEPACK_ACT_SILU, 0,
     false, false, true},
    {"f32 experts", 40, 40, 50, 17, 1, 4, MOEPACK_ENC_F32, MOEPACK_ENC_F32, MOEPACK_ACT_SITU, MOEPACK_ACT_SILU, 2,
     false, false, false},
};

/* Small, for many tokens. */
static const geometry narrow = {
    "narrow",         32, 32,   32,   16,   2, 5, MOEPACK_ENC_E2M1, MOEPACK_ENC_BF16, MOEPACK_ACT_SITU,
    MOEPACK_ACT_SITU, 25, true, true, false};

static const mpk_compute modes[] = {MPK_COMPUTE_BF16, MPK_COMPUTE_F32, MPK_COMPUTE_INT8};

/* Runs the layer in every mode and family against the scalar one on one thread. */
static void same_everywhere(const layer *l, const float *x, size_t tokens, const char *what)
{
    size_t count;
    const test_family *families = test_families(&count);
    for (size_t m = 0; m < COUNT(modes); m++) {
        const mpk_layer_options scalar = {.compute = modes[m], .threads = 1, .kernels = &mpk_kernels_scalar};
        result expected = run(l, x, tokens, &scalar, true);
        for (size_t f = 0; f < count; f++) {
            char text[128];
            const mpk_layer_options options = {
                .compute = modes[m], .threads = 1 + (unsigned)(f + tokens) % 4, .kernels = families[f].kernels};
            snprintf(text, sizeof text, "%s: %s %s, mode %d", what, families[f].how, families[f].kernels->name,
                     (int)modes[m]);
            result got = run(l, x, tokens, &options, true);
            same_results(l, &got, &expected, tokens, text);
            free_result(&got);
        }
        free_result(&expected);
    }
}

/* Tokens [first, + tokens) of a batch again, on their own, with what runs by default. */
static void same_alone(const layer *l, const float *x, const result *whole, size_t first, size_t tokens,
                       mpk_compute compute)
{
    const moepack_policy *p = &l->view.policy;
    result alone = run(l, x + first * p->hidden, tokens, &(mpk_layer_options){.compute = compute, .threads = 2}, true);
    const result part = {whole->y + first * p->hidden, whole->s + first * p->expert_input,
                         whole->weights + first * p->top_k, whole->ids + first * p->top_k};
    same_results(l, &alone, &part, tokens, "tokens alone");
    free_result(&alone);
}

/* ------------------------------------------------------------------------------------------------ inputs */

enum {
    GAUSSIAN,
    SUBNORMAL,
    SMALLEST,
    PLUS_INFINITY,
    MINUS_INFINITY,
    SIGNALLING,
    ALL_NAN,
    LARGEST,
    BOTH_INFINITIES,
    ZERO,
    ONE_HUGE,
    MIXED,
    KINDS
};

static void fill(test_random *r, float *x, size_t n, int kind)
{
    const size_t at = test_below(r, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        const float v = (float)test_normal(r);
        const uint32_t sign = test_below(r, 2) << 31;
        const float of_kind[KINDS] = {[GAUSSIAN] = v,
                                      [SUBNORMAL] = v * 0x1p-130f,
                                      [SMALLEST] = mpk_float(sign | test_below(r, 2)),
                                      [PLUS_INFINITY] = v,
                                      [MINUS_INFINITY] = v,
                                      [SIGNALLING] = v,
                                      [ALL_NAN] = mpk_float(0xffc12345u),
                                      [LARGEST] = mpk_float(sign | 0x7f7fffffu),
                                      [BOTH_INFINITIES] = v,
                                      [ZERO] = mpk_float(sign),
                                      [ONE_HUGE] = v,
                                      [MIXED] = i % 2 ? v : v * 0x1p-140f};
        memcpy(x + i, &of_kind[kind], sizeof *x);
    }
    static const uint32_t one[KINDS] = {[PLUS_INFINITY] = 0x7f800000u,
                                        [MINUS_INFINITY] = 0xff800000u,
                                        [SIGNALLING] = 0x7f812345u,
                                        [BOTH_INFINITIES] = 0x7f800000u,
                                        [ONE_HUGE] = 0x71800000u};
    if (one[kind] != 0) memcpy(x + at, &one[kind], sizeof *x);
    if (kind == BOTH_INFINITIES) x[(at + 1) % n] = mpk_float(0xff800000u);
}

static void all_bits(const float *v, size_t n, uint32_t bits)
{
    for (size_t i = 0; i < n; i++) assert_int_equal(mpk_bits(v[i]), bits);
}

static void test_inputs(void **state)
{
    (void)state;
    const size_t tokens = TEST_CASES(KINDS + 1, KINDS);
    for (size_t i = 0; i < COUNT(geometries); i++) {
        const geometry *g = &geometries[i];
        test_random r = {500 + i};
        layer l = make_layer(g, 600 + i);
        float *x = test_alloc(tokens * g->hidden * sizeof(float));
        for (size_t t = 0; t < tokens; t++) fill(&r, x + t * g->hidden, g->hidden, (int)(t % KINDS));
        same_everywhere(&l, x, tokens, g->name);
        for (size_t m = 0; m < COUNT(modes); m++) {
            result whole = run(&l, x, tokens, &(mpk_layer_options){.compute = modes[m]}, true);
            for (size_t t = 0; t < KINDS; t++) same_alone(&l, x, &whole, t, 1, modes[m]);
            for (size_t c = 0; c < g->hidden; c++) assert_true(isfinite(whole.y[c])); /* its neighbours are not */
            all_bits(whole.y + ZERO * g->hidden, g->hidden, 0);                       /* sums are never -0 */
            all_bits(whole.y + ALL_NAN * g->hidden, g->hidden, NAN_BITS);
            all_bits(whole.s + ALL_NAN * g->input, g->input, NAN_BITS);
            all_bits(whole.weights + ALL_NAN * g->k, g->k, NAN_BITS);
            for (size_t e = 0; e < g->k; e++) assert_int_equal(whole.ids[ALL_NAN * g->k + e], e);
            free_result(&whole);
        }
        free(x);
        free_layer(&l);
    }
}

/* ------------------------------------------------------------------------------------------------ weights */

/* The first `some` of the values that are tried: results stay finite with those before SOME_FINITE. */
enum {
    SOME_FINITE = 4,
    SOME = 6
};
static const uint8_t scale_bytes[SOME] = {0, 1, 2, 127, 254, 255};
static const uint32_t bf16_bits[SOME] = {0x0001, 0x8001, 0x007f, 0x8000, 0x7f80, 0xffc1};
static const uint32_t f32_bits[SOME] = {0x00000001, 0x807fffff, 0x00000100, 0x80000000, 0xff800000, 0x7f812345};

static void spoil_matrix(test_random *r, const test_matrix *m, uint32_t some)
{
    for (uint64_t row = 0; row < m->view.rows; row++)
        for (uint64_t col = 0; col < m->view.cols; col++) {
            const uint32_t n = test_below(r, some);
            if (m->view.encoding == MOEPACK_ENC_E2M1) {
                if (col % MPK_BLOCK == 0 && test_below(r, 4) == 0) *test_scale_at(m, row, col) = scale_bytes[n];
            } else if (test_below(r, some == SOME ? 200 : 8) == 0) {
                test_panel_set(m, row, col, m->view.encoding == MOEPACK_ENC_BF16 ? bf16_bits[n] : f32_bits[n]);
            }
        }
}

static void test_weights(void **state)
{
    (void)state;
    const size_t tokens = 7;
    for (size_t i = 0; i < COUNT(geometries); i++)
        for (uint32_t some = SOME_FINITE; some <= SOME; some += SOME - SOME_FINITE) {
            const geometry *g = &geometries[i];
            test_random r = {700 + i};
            layer l = make_layer(g, 800 + i);
            float *x = make_x(g, tokens, 900 + i);
            const test_matrix *dense[] = {&l.router,    &l.latent_down, &l.latent_up,
                                          &l.shared[0], &l.shared[1],   &l.shared[2]};
            for (size_t d = 0; d < COUNT(dense); d++)
                if (dense[d]->weights != NULL) spoil_matrix(&r, dense[d], some);
            for (uint32_t e = 0; e < g->experts; e++)
                for (int m = 0; m < 3; m++) spoil_matrix(&r, &l.expert[e][m], some);
            same_everywhere(&l, x, tokens, g->name);
            if (some == SOME_FINITE) {
                result got = run(&l, x, tokens, NULL, true);
                for (size_t c = 0; c < tokens * g->hidden; c++) assert_true(isfinite(got.y[c]));
                free_result(&got);
            }
            free(x);
            free_layer(&l);
        }
}

/* ------------------------------------------------------------------------------------------------ the router */

/* Logits of ten experts, as F32 weights of the first column where the input is 1; and the order they give where those
 * of sigmoid or softmax are equal: 1e4 and 1e3 are, -1e4 and -1e3 are, and only softmax tells the former from 0. */
#define ROUTED 10
static const struct logits {
    const char *name;
    float logit[ROUTED];
    int32_t order[ROUTED];
} routed[] = {
    {"all large", {1e4f, 1e4f, 1e4f, 1e4f, 1e4f, 1e4f, 1e4f, 1e4f, 1e4f, 1e4f}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
    {"all small",
     {-1e4f, -1e4f, -1e4f, -1e4f, -1e4f, -1e4f, -1e4f, -1e4f, -1e4f, -1e4f},
     {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
    {"all zero", {0, -0.0f, 0, -0.0f, 0, 0, 0, 0, 0, -0.0f}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
    {"in turns", {-1e4f, 1e4f, -1e4f, 1e4f, -1e4f, 1e4f, -1e4f, 1e4f, -1e4f, 1e4f}, {1, 3, 5, 7, 9, 0, 2, 4, 6, 8}},
    {"one large",
     {-1e4f, -1e4f, -1e4f, -1e4f, -1e4f, -1e4f, -1e4f, 1e4f, -1e4f, -1e4f},
     {7, 0, 1, 2, 3, 4, 5, 6, 8, 9}},
    {"subnormal", {1e-40f, 0, -1e-40f, 1e-40f, 0, 0, 0, 0, 0, 0}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
    {"two infinite",
     {-1e4f, INFINITY, -INFINITY, 1e4f, 1e4f, 1e4f, 1e4f, 1e4f, 1e4f, 1e4f},
     {1, 3, 4, 5, 6, 7, 8, 9, 0, 2}},
};

static float routed_score(const geometry *g, const float *logit, int32_t expert)
{
    if (!g->softmax) return logit[expert] > 1 ? 1.0f : logit[expert] < -1 ? 0.0f : 0.5f;
    float top = -INFINITY, equal = 0;
    for (int i = 0; i < ROUTED; i++) top = logit[i] > top ? logit[i] : top;
    for (int i = 0; i < ROUTED; i++) equal += top - logit[i] < 1 ? 1.0f : 0.0f;
    return top - logit[expert] < 1 ? 1 / equal : 0.0f;
}

static void check_routed(const geometry *g, const moepack_policy *p, const struct logits *c, const result *got)
{
    float sum = 0;
    for (size_t i = 0; i < g->k; i++) sum += routed_score(g, c->logit, c->order[i]);
    for (size_t i = 0; i < g->k; i++) {
        const float score = routed_score(g, c->logit, c->order[i]),
                    weight = score / (sum + (float)p->renorm_eps) * (float)p->scale;
        if (got->ids[i] != c->order[i] || fabsf(got->weights[i] - weight) > 1e-6f)
            fail_msg("%s: slot %zu has expert %d, weight %g; expected %d, %g", c->name, i, (int)got->ids[i],
                     (double)got->weights[i], (int)c->order[i], (double)weight);
    }
}

static void test_saturated_router(void **state)
{
    (void)state;
    for (int softmax = 0; softmax < 2; softmax++)
        for (uint64_t k = 3; k <= ROUTED; k += ROUTED - 3) {
            geometry g = geometries[1];
            g.experts = ROUTED, g.k = k, g.softmax = softmax;
            layer l = make_layer(&g, 40);
            float *x = make_x(&g, 1, 41);
            x[0] = 1.0f;
            memset(l.bias, 0, ROUTED * sizeof *l.bias);
            for (uint32_t e = 0; e < ROUTED; e++)
                for (uint64_t c = 1; c < g.hidden; c++) test_panel_set(&l.router, e, c, 0);
            for (size_t i = 0; i < COUNT(routed); i++) {
                if (softmax && i + 1 == COUNT(routed)) break; /* inf - inf is NaN: nothing to know */
                for (uint32_t e = 0; e < ROUTED; e++) test_panel_set(&l.router, e, 0, mpk_bits(routed[i].logit[e]));
                result got = run(&l, x, 1, NULL, true);
                check_routed(&g, &l.view.policy, &routed[i], &got);
                free_result(&got);
                same_everywhere(&l, x, 1, routed[i].name);
            }
            free(x);
            free_layer(&l);
        }
}

/* ------------------------------------------------------------------------------------------------ numbers of tokens */

/* Chunks of 512 tokens and calls of 64 begin and end around these. */
static void same_splits(const layer *l, const float *x, size_t tokens)
{
    static const size_t cut[] = {0, 1, 63, 64, 65, 511, 512, 513, 1024, 2047, 4096};
    result whole = run(l, x, tokens, NULL, true);
    for (size_t i = 0; i < COUNT(cut); i++) {
        const size_t next = i + 1 < COUNT(cut) ? cut[i + 1] : tokens;
        same_alone(l, x, &whole, cut[i], next - cut[i] < 66 ? next - cut[i] : 66, MPK_COMPUTE_BF16);
    }
    free_result(&whole);
}

/* As routed, all to one expert, and all to every expert. */
static void test_many_tokens(void **state)
{
    (void)state;
    const size_t tokens = TEST_CASES(4097, 1025);
    for (int way = 0; way < 3; way++) {
        geometry g = narrow;
        g.k = way == 0 ? 2 : way == 1 ? 1 : g.experts;
        layer l = make_layer(&g, 50);
        float *x = make_x(&g, tokens, 51);
        if (way == 1) l.bias[3] = 5.0f;
        size_t count;
        const test_family *families = test_families(&count);
        result expected = run(&l, x, tokens, &(mpk_layer_options){.kernels = &mpk_kernels_scalar}, true);
        for (size_t f = 1; f < count; f++) {
            result got = run(&l, x, tokens, &(mpk_layer_options){.kernels = families[f].kernels}, true);
            same_results(&l, &got, &expected, tokens, families[f].kernels->name);
            free_result(&got);
        }
        for (size_t t = 0; way == 1 && t < tokens; t++) assert_int_equal(expected.ids[t], 3);
        if (tokens > 4096) same_splits(&l, x, tokens);
        free_result(&expected);
        free(x);
        free_layer(&l);
    }
}

static void test_no_tokens(void **state)
{
    (void)state;
    size_t count;
    const test_family *families = test_families(&count);
    layer l = make_layer(&narrow, 52);
    for (size_t f = 0; f < count; f++) {
        float y[4] = {1, 2, 3, 4}, s[4] = {1, 2, 3, 4}, weights[4] = {1, 2, 3, 4};
        const float before[4] = {1, 2, 3, 4};
        int32_t ids[4] = {-1, -2, -3, -4};
        moepack_error error = {0};
        const mpk_layer_output output = {.y = y, .s = s, .topk_ids = ids, .topk_weights = weights};
        for (int with = 0; with < 2; with++) /* an array or none */
            assert_int_equal(mpk_layer_run(&l.view, with ? y : NULL, 0,
                                           &(mpk_layer_options){.kernels = families[f].kernels}, output, &error),
                             MOEPACK_OK);
        test_same_bits(y, before, 4, "y");
        test_same_bits(s, before, 4, "s");
        test_same_bits(weights, before, 4, "weights");
        for (int i = 0; i < 4; i++) assert_int_equal(ids[i], -1 - i);
    }
    free_layer(&l);
}

/* ------------------------------------------------------------------------------------------------ the caller's state
 */

#if defined(__x86_64__)
/* MXCSR: flush to zero, subnormals read as zero, the three other ways to round, traps for invalid, division by zero and
 * overflow. */
static const uint64_t states[] = {0x1f80, 0x9fc0, 0x3f80, 0x5f80, 0x7f80, 0xffc0, 0x1900};
#define STATE_BITS 0xffc0u /* the others are flags of what has happened */

static uint64_t float_state(void)
{
    return _mm_getcsr() & STATE_BITS;
}
static void set_float_state(uint64_t bits)
{
    _mm_setcsr((unsigned)bits);
}
#elif defined(__aarch64__)
/* FPCR: FZ, DN, both, the three other ways to round, all together with AHP. */
static const uint64_t states[] = {0, 1u << 24, 1u << 25, 3u << 24, 1u << 22, 2u << 22, 3u << 22, 7u << 24 | 3u << 22};

static uint64_t float_state(void)
{
    uint64_t bits;
    __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
}
static void set_float_state(uint64_t bits)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(bits));
}
#else
#include <fenv.h>
static const uint64_t states[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};

static uint64_t float_state(void)
{
    return (uint64_t)fegetround();
}
static void set_float_state(uint64_t bits)
{
    fesetround((int)bits);
}
#endif

/* What the caller set neither changes a bit of the result nor gets lost, on threads of its own and on others. */
static void test_float_state(void **state)
{
    (void)state;
    const size_t tokens = KINDS;
    const geometry *g = &narrow;
    test_random r = {60};
    size_t count;
    const test_family *families = test_families(&count);
    layer l = make_layer(g, 61);
    l.view.policy.scale = 2.827, l.view.policy.situ_beta = 4.1, l.view.policy.norm_eps = 1e-5; /* no F32 numbers */
    l.view.policy.situ_linear_beta = 25.3;
    for (uint32_t e = 0; e < g->experts; e++) *test_scale_at(&l.expert[e][0], e, 0) = 0;
    float *x = test_alloc(tokens * g->hidden * sizeof(float));
    for (size_t t = 0; t < tokens; t++) fill(&r, x + t * g->hidden, g->hidden, (int)t);
    const uint64_t before = float_state();
    for (size_t m = 0; m < COUNT(modes); m++) {
        result expected = run(&l, x, tokens, &(mpk_layer_options){.compute = modes[m]}, true);
        for (size_t f = 0; f < count; f++)
            for (size_t i = 0; i < COUNT(states); i++) {
                const mpk_layer_options options = {
                    .compute = modes[m], .threads = i % 2 ? 1 : 3, .kernels = families[f].kernels};
                set_float_state(states[i]);
                result got = run(&l, x, tokens, &options, true);
                const uint64_t after = float_state();
                set_float_state(before);
                assert_int_equal(after, states[i]);
                same_results(&l, &got, &expected, tokens, families[f].kernels->name);
                free_result(&got);
            }
        free_result(&expected);
    }
    free(x);
    free_layer(&l);
}

int main(void)
{
    test_print_families();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs),      cmocka_unit_test(test_weights),   cmocka_unit_test(test_saturated_router),
        cmocka_unit_test(test_many_tokens), cmocka_unit_test(test_no_tokens), cmocka_unit_test(test_float_state),
    };
    return cmocka_run_group_tests_name("adversarial", tests, NULL, NULL);
}
