/* Selection and weights against a brute-force oracle, over random policies and logits full of ties. */
#include "common.h"
#include "cpu/elementary.h"
#include "router.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_EXPERTS 600

/* Whether a comes before b: larger first, NaN last, equal ones by number. */
static bool before(float a, uint32_t a_id, float b, uint32_t b_id)
{
    if (isnan(a) != isnan(b)) return isnan(b);
    if (!isnan(a) && a != b) return a > b;
    return a_id < b_id;
}

/* k times the best of what is left. */
static void pick(const float *value, uint32_t n, uint32_t k, uint32_t *ids)
{
    bool taken[MAX_EXPERTS] = {false};
    for (uint32_t i = 0; i < k; i++) {
        uint32_t best = n;
        for (uint32_t e = 0; e < n; e++)
            if (!taken[e] && (best == n || before(value[e], e, value[best], best))) best = e;
        taken[best] = true;
        ids[i] = best;
    }
}

static void oracle_scores(const moepack_policy *p, uint32_t experts, const float *logits, float *score)
{
    if (p->score == MOEPACK_SCORE_SIGMOID) {
        for (uint32_t e = 0; e < experts; e++) score[e] = mpk_sigmoid(logits[e]);
        return;
    }
    if (p->score == MOEPACK_SCORE_SQRT_SOFTPLUS) {
        for (uint32_t e = 0; e < experts; e++) score[e] = mpk_sqrt_softplus(logits[e]);
        return;
    }
    if (p->score != MOEPACK_SCORE_SOFTMAX) {
        memcpy(score, logits, experts * sizeof *score);
        return;
    }
    float top = -INFINITY, sum = 0;
    for (uint32_t e = 0; e < experts; e++)
        if (logits[e] > top) top = logits[e];
    for (uint32_t e = 0; e < experts; e++) score[e] = mpk_exp(logits[e] - top);
    for (uint32_t e = 0; e < experts;) {
        float block = 0;
        for (uint32_t i = 0; i < 32 && e < experts; i++) block += score[e++];
        sum += block;
    }
    for (uint32_t e = 0; e < experts; e++) score[e] /= sum;
}

static void oracle_mask(const moepack_policy *p, uint32_t experts, float *choice)
{
    const uint32_t groups = (uint32_t)p->groups, size = experts / groups;
    float group[MAX_EXPERTS];
    uint32_t best[2], order[MAX_EXPERTS];
    if (groups == 1 || p->groups_kept == p->groups) return;
    for (uint32_t g = 0; g < groups; g++) {
        pick(choice + g * size, size, size < 2 ? 1 : 2, best);
        group[g] = choice[g * size + best[0]];
        if (p->group_score == MOEPACK_GROUP_TOP2_SUM && size > 1) group[g] += choice[g * size + best[1]];
    }
    pick(group, groups, groups, order);
    for (uint32_t i = (uint32_t)p->groups_kept; i < groups; i++)
        for (uint32_t e = 0; e < size; e++)
            choice[order[i] * size + e] = p->group_mask == MOEPACK_MASK_ZERO ? 0.0f : -INFINITY;
}

/* The function over the selected alone. */
static void oracle_selected(const moepack_policy *p, float *weights)
{
    float top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < p->top_k; i++) {
        if (p->score == MOEPACK_SCORE_SIGMOID_SELECTED) weights[i] = mpk_sigmoid(weights[i]);
        if (weights[i] > top) top = weights[i];
    }
    if (p->score != MOEPACK_SCORE_SOFTMAX_SELECTED) return;
    for (uint32_t i = 0; i < p->top_k; i++) sum += mpk_exp(weights[i] - top);
    for (uint32_t i = 0; i < p->top_k; i++) weights[i] = mpk_exp(weights[i] - top) / sum;
}

/* A softmax for every slot, over the experts before which the slots so far come in the order, and which are near. */
static void oracle_sparsemixer(const moepack_policy *p, uint32_t experts, const float *logits, uint32_t *ids,
                               float *weights)
{
    pick(logits, experts, (uint32_t)p->top_k, ids);
    for (uint32_t i = 0; i < p->top_k; i++) {
        const float top = logits[ids[i]];
        float sum = 0;
        for (uint32_t e = 0; e < experts;) {
            float block = 0;
            for (uint32_t n = 0; n < 32 && e < experts; n++, e++) {
                const float size = fabsf(logits[e]);
                const bool taken = e != ids[i] && before(logits[e], e, top, ids[i]);
                const bool far = (top - logits[e]) / (size < top ? top : size) > 2 * (float)p->sparsemixer_eps;
                block += taken || far ? 0.0f : mpk_exp(logits[e] - top);
            }
            sum += block;
        }
        weights[i] = mpk_exp(top - top) / sum;
    }
}

static void oracle_finish(const moepack_policy *p, float *weights)
{
    float sum = 0;
    for (uint32_t i = 0; i < p->top_k; i++) sum += weights[i];
    if (p->renormalize == MOEPACK_RENORM_SUM_EPS) sum += (float)p->renorm_eps;
    const bool renormalized = p->renormalize != MOEPACK_RENORM_NONE && (p->top_k > 1 || p->renorm_k1);
    for (uint32_t i = 0; i < p->top_k; i++) {
        if (renormalized) weights[i] /= sum;
        if (!renormalized || p->scale_when == MOEPACK_SCALE_ALWAYS) weights[i] *= (float)p->scale;
    }
}

static void oracle(const moepack_policy *p, uint32_t experts, const mpk_router_input *in, uint32_t *ids, float *weights)
{
    float score[MAX_EXPERTS], biased[MAX_EXPERTS], choice[MAX_EXPERTS];
    const uint32_t k = (uint32_t)p->top_k;
    if (p->score == MOEPACK_SCORE_SPARSEMIXER) {
        oracle_sparsemixer(p, experts, in->logits, ids, weights);
        oracle_finish(p, weights);
        return;
    }
    oracle_scores(p, experts, in->logits, score);
    for (uint32_t e = 0; e < experts; e++) {
        biased[e] = score[e] + (in->bias != NULL ? in->bias[e] : 0.0f);
        choice[e] = p->select == MOEPACK_SELECT_BIASED ? biased[e] : score[e];
    }
    oracle_mask(p, experts, choice);
    pick(choice, experts, k, ids);
    for (uint32_t i = 0; i < k; i++) {
        if (p->select == MOEPACK_SELECT_TOKEN_TABLE) ids[i] = (uint32_t)in->chosen[i];
        weights[i] = p->weight_from == MOEPACK_WEIGHT_BIASED ? biased[ids[i]] : score[ids[i]];
    }
    oracle_selected(p, weights);
    oracle_finish(p, weights);
}

static moepack_policy random_policy(test_random *r, uint32_t *experts)
{
    moepack_policy p = {0};
    const uint32_t groups = test_below(r, 3) == 0 ? 1 + test_below(r, 8) : 1;
    *experts = groups * (1 + test_below(r, test_below(r, 4) == 0 ? MAX_EXPERTS / groups : 20));
    p.groups = groups;
    p.groups_kept = 1 + test_below(r, groups);
    p.top_k = 1 + test_below(r, *experts);
    if (test_below(r, 2) == 0 && p.top_k > 8) p.top_k = 8;
    p.score = test_below(r, 6);
    p.select = test_below(r, 3);
    p.weight_from = test_below(r, 2);
    p.renormalize = test_below(r, 3);
    p.renorm_eps = test_below(r, 2) ? 1e-20 : 0.25;
    p.renorm_k1 = test_below(r, 2);
    p.scale = 1.0 + test_below(r, 3);
    p.scale_when = test_below(r, 2);
    p.group_score = test_below(r, 2);
    p.group_mask = test_below(r, 2);
    p.sparsemixer_eps = test_below(r, 2) ? 0.01 : 0.125;
    if (p.score == MOEPACK_SCORE_SPARSEMIXER) { /* what goes together: mpk_layer_policy_supported */
        p.select = MOEPACK_SELECT_SCORE;
        p.weight_from = MOEPACK_WEIGHT_UNBIASED;
        if (p.top_k > 40) p.top_k = 40; /* a softmax for each */
    }
    if (p.score == MOEPACK_SCORE_SPARSEMIXER || p.select == MOEPACK_SELECT_TOKEN_TABLE) p.groups = p.groups_kept = 1;
    p.token_ids = p.select == MOEPACK_SELECT_TOKEN_TABLE;
    p.gated = 1;
    p.activation = MOEPACK_ACT_SILU;
    assert_int_equal(mpk_layer_policy_supported(&p, NULL), MOEPACK_OK);
    return p;
}

/* Few different values, so that ties are the rule; now and then what no model should produce. */
static float random_value(test_random *r)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, -0.0f, 200.0f, -200.0f};
    if (test_below(r, 60) == 0) return odd[test_below(r, 6)];
    return ((float)test_below(r, 17) - 8.0f) * 0.25f;
}

static void test_against_oracle(void **state)
{
    (void)state;
    size_t count;
    const test_family *families = test_families(&count);
    test_random r = {11};
    for (int round = 0; round < 3000; round++) {
        uint32_t experts, expected_ids[MAX_EXPERTS];
        const moepack_policy p = random_policy(&r, &experts);
        float logits[MAX_EXPERTS + 32] = {0}, bias[MAX_EXPERTS], expected[MAX_EXPERTS], weights[MAX_EXPERTS];
        int32_t ids[MAX_EXPERTS], row[MAX_EXPERTS];
        for (uint32_t e = 0; e < experts; e++) {
            logits[e] = random_value(&r);
            bias[e] = test_below(&r, 2) ? random_value(&r) * 0.125f : 0.0f;
        }
        const bool use_bias = p.select == MOEPACK_SELECT_BIASED || p.weight_from == MOEPACK_WEIGHT_BIASED;
        for (uint32_t i = 0; i < p.top_k; i++) row[i] = (int32_t)test_below(&r, experts);
        const mpk_router_input in = {logits, use_bias ? bias : NULL, row};
        oracle(&p, experts, &in, expected_ids, expected);
        void *scratch = test_alloc(mpk_router_scratch_size(experts));
        mpk_route(&p, experts, &in, families[(size_t)round % count].kernels, scratch, ids, weights);
        free(scratch);
        for (uint32_t i = 0; i < p.top_k; i++) {
            if ((uint32_t)ids[i] != expected_ids[i])
                fail_msg("round %d: slot %u is expert %d instead of %u", round, i, ids[i], expected_ids[i]);
            if (isnan(expected[i])) expected[i] = mpk_float(0x7fc00000);
        }
        test_same_bits(weights, expected, p.top_k, "weights");
    }
}

/* The published case by hand: sigmoid scores, bias for selection only, ties by id. */
static void test_known_case(void **state)
{
    (void)state;
    const moepack_policy p = {.top_k = 3,
                              .score = MOEPACK_SCORE_SIGMOID,
                              .select = MOEPACK_SELECT_BIASED,
                              .renormalize = MOEPACK_RENORM_SUM_EPS,
                              .renorm_eps = 1e-20,
                              .scale = 2.0,
                              .groups = 1,
                              .groups_kept = 1};
    float logits[32] = {0, 0, 0, 0, 0}, bias[5] = {-1.0f, 0.0f, 0.5f, 0.0f, -0.25f}, weights[3];
    int32_t ids[3];
    void *scratch = test_alloc(mpk_router_scratch_size(5));
    mpk_route(&p, 5, &(mpk_router_input){.logits = logits, .bias = bias}, &mpk_kernels_scalar, scratch, ids, weights);
    free(scratch);
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], 1);
    assert_int_equal(ids[2], 3);
    for (int i = 0; i < 3; i++) assert_true(weights[i] == 2.0f * (0.5f / 1.5f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_oracle), cmocka_unit_test(test_known_case)};
    return cmocka_run_group_tests_name("router", tests, NULL, NULL);
}
