/* The output of one fixed layer, hashed, against constants: every family on every architecture gives these bits.
 * Weights and inputs are made of integers, so that no math library has a say. */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HIDDEN = 112,
    INPUT = 96,
    INNER = 160,
    SHARED = 64,
    EXPERTS = 23,
    TOP_K = 5,
    RUNS = 4,
    MOST_TOKENS = 70
};

static const size_t tokens_of[RUNS] = {1, 3, 9, MOST_TOKENS};

/* One line per mode: XXH3-64 of y for each number of tokens. A hash may change only with spec/numerics.md. */
static const struct mode {
    const char *name;
    mpk_compute compute;
    uint64_t hash[RUNS];
} modes[] = {
    {"default", MPK_COMPUTE_BF16, {0x644329502a02ccf5, 0x5cdfd003a78f4fb4, 0x58796b40e004d74c, 0x61f6ce3db0b74d89}},
    {"f32", MPK_COMPUTE_F32, {0xce327d8bc3208c59, 0x5b4d844a6a0e30c1, 0x50f494cec9ecddb8, 0x7cc856c898f85b75}},
    {"int8", MPK_COMPUTE_INT8, {0xc971bdef98b79c46, 0xbd276eef057a410a, 0xf94d035094d69bdb, 0xa884e6ef4e6fbdb2}},
};

#define MODES (sizeof modes / sizeof modes[0])

/* A multiple of 1/64 in [-1, 1): exact in BF16 and F32. */
static float small_number(test_random *r)
{
    return (float)((int)test_below(r, 128) - 64) / 64.0f;
}

/* Codes and scale bytes, or BF16 numbers of at most 2^-3. */
static test_matrix matrix(test_random *r, moepack_encoding encoding, uint64_t rows, uint64_t cols)
{
    test_matrix m = test_matrix_random(r, encoding, rows, cols, 1);
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t col = 0; col < cols; col++) {
            if (encoding == MOEPACK_ENC_E2M1) {
                if (col % MPK_BLOCK == 0) *test_scale_at(&m, row, col) = (uint8_t)(120 + test_below(r, 4));
                test_panel_set(&m, row, col, test_below(r, 16));
                continue;
            }
            const float v = small_number(r) / 8.0f;
            uint32_t bits;
            memcpy(&bits, &v, sizeof bits);
            test_panel_set(&m, row, col, bits >> 16);
        }
    return m;
}

static const moepack_policy policy = {.hidden = HIDDEN,
                                      .expert_input = INPUT,
                                      .intermediate = INNER,
                                      .top_k = TOP_K,
                                      .score = MOEPACK_SCORE_SIGMOID,
                                      .select = MOEPACK_SELECT_BIASED,
                                      .renormalize = MOEPACK_RENORM_SUM_EPS,
                                      .renorm_eps = 1e-20,
                                      .scale = 2.5,
                                      .groups = 1,
                                      .groups_kept = 1,
                                      .activation = MOEPACK_ACT_SITU,
                                      .gated = 1,
                                      .situ_beta = 4.0,
                                      .situ_linear_beta = 25.0,
                                      .latent = 1,
                                      .latent_norm = 1,
                                      .norm_eps = 1e-5,
                                      .shared_width = SHARED,
                                      .shared_activation = MOEPACK_ACT_SITU};

enum {
    ROUTER,
    DOWN,
    UP,
    SHARED_GATE,
    SHARED_UP,
    SHARED_DOWN,
    DENSE
};
static const struct shape {
    uint64_t rows, cols;
} shapes[DENSE] = {{EXPERTS, HIDDEN}, {INPUT, HIDDEN},  {HIDDEN, INPUT},
                   {SHARED, HIDDEN},  {SHARED, HIDDEN}, {HIDDEN, SHARED}};

typedef struct fixed_layer {
    test_matrix dense[DENSE], expert[EXPERTS][3];
    mpk_expert_view experts[EXPERTS];
    uint8_t present[EXPERTS];
    float bias[EXPERTS], norm[INPUT], x[MOST_TOKENS * HIDDEN];
    mpk_layer_view view;
} fixed_layer;

static fixed_layer *make_layer(void)
{
    test_random r = {20240229};
    fixed_layer *l = test_alloc(sizeof *l);
    for (int i = 0; i < DENSE; i++) l->dense[i] = matrix(&r, MOEPACK_ENC_BF16, shapes[i].rows, shapes[i].cols);
    for (int e = 0; e < EXPERTS; e++) {
        l->expert[e][0] = matrix(&r, MOEPACK_ENC_E2M1, INNER, INPUT);
        l->expert[e][1] = matrix(&r, MOEPACK_ENC_E2M1, INNER, INPUT);
        l->expert[e][2] = matrix(&r, MOEPACK_ENC_E2M1, INPUT, INNER);
        l->experts[e] =
            (mpk_expert_view){.gate = l->expert[e][0].view, .up = l->expert[e][1].view, .down = l->expert[e][2].view};
        l->present[e] = 1;
        l->bias[e] = small_number(&r) / 16.0f;
    }
    for (int i = 0; i < INPUT; i++) l->norm[i] = 1.0f + small_number(&r) / 2.0f;
    for (int i = 0; i < MOST_TOKENS * HIDDEN; i++) l->x[i] = 2.0f * small_number(&r);
    l->view = (mpk_layer_view){.policy = policy,
                               .experts = EXPERTS,
                               .router = l->dense[ROUTER].view,
                               .router_bias = l->bias,
                               .latent_norm = l->norm,
                               .latent_down = l->dense[DOWN].view,
                               .latent_up = l->dense[UP].view,
                               .shared_gate = l->dense[SHARED_GATE].view,
                               .shared_up = l->dense[SHARED_UP].view,
                               .shared_down = l->dense[SHARED_DOWN].view,
                               .expert = l->experts,
                               .present = l->present};
    return l;
}

static void test_fixed_layer(void **state)
{
    (void)state;
    size_t count, wrong = 0;
    const test_family *families = test_families(&count);
    fixed_layer *l = make_layer();
    float *y = test_alloc(MOST_TOKENS * HIDDEN * sizeof(float));
    for (size_t m = 0; m < MODES; m++)
        for (size_t f = 0; f < count; f++)
            for (size_t i = 0; i < RUNS; i++) {
                const mpk_layer_options options = {.compute = modes[m].compute, .kernels = families[f].kernels};
                moepack_error error = {0};
                if (mpk_layer_run(&l->view, l->x, tokens_of[i], &options, (mpk_layer_output){.y = y}, &error) !=
                    MOEPACK_OK)
                    fail_msg("%s", error.message);
                const uint64_t hash = moepack_hash64(y, tokens_of[i] * HIDDEN * sizeof(float));
                if (hash == modes[m].hash[i]) continue;
                wrong++;
                printf("%s, %s %s, %zu tokens: 0x%016llx\n", modes[m].name, families[f].how, families[f].kernels->name,
                       tokens_of[i], (unsigned long long)hash);
            }
    assert_int_equal(wrong, 0);
    free(y);
    for (int i = 0; i < DENSE; i++) test_matrix_free(&l->dense[i]);
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < 3; i++) test_matrix_free(&l->expert[e][i]);
    free(l);
}

int main(void)
{
    test_print_families();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fixed_layer)};
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
