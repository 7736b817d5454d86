/* From logits to the selected experts and their weights, by the policy record (spec/numerics.md section 5). */
#include "router.h"

#include "cpu/elementary.h"

#include <stdlib.h>

/* Up to this many selected experts are kept sorted by insertion; more are sorted as a whole. */
#define INSERTION_LIMIT 64

/* Arrays of one thread's scratch: all of `padded` elements (experts rounded up to 32). */
typedef struct scratch_view {
    float *score;  /* what weights are made of */
    float *choice; /* what decides the selection */
    uint64_t *key; /* candidates as sortable integers */
} scratch_view;

static size_t padded_experts(uint32_t experts)
{
    return ((size_t)experts + MPK_BLOCK - 1) / MPK_BLOCK * MPK_BLOCK;
}

size_t mpk_router_scratch_size(uint32_t experts)
{
    return padded_experts(experts) * (2 * sizeof(float) + 2 * sizeof(uint64_t));
}

/* A number and an index as one integer, so that a larger integer is an earlier place: larger values first, NaN after
 * -inf, equal values (also -0 and +0) by lower index. */
static uint64_t sort_key(float value, uint32_t index)
{
    uint32_t u = mpk_bits(value + 0.0f); /* -0 becomes +0 */
    uint32_t ordered = u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
    if (value != value) ordered = 0;
    return (uint64_t)ordered << 32 | (UINT32_MAX - index);
}

static uint32_t key_index(uint64_t key)
{
    return UINT32_MAX - (uint32_t)key;
}

static int descending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* The k largest of n keys to the front of `out`, in descending order. `out` has room for max(n, k) and may not be
 * `key`. */
static void largest(const uint64_t *key, size_t n, size_t k, uint64_t *out)
{
    if (k > INSERTION_LIMIT) {
        memcpy(out, key, n * sizeof *out);
        qsort(out, n, sizeof *out, descending);
        return;
    }
    size_t held = 0;
    for (size_t i = 0; i < n; i++) {
        if (held == k && key[i] < out[k - 1]) continue;
        size_t at = held < k ? held++ : k - 1;
        for (; at > 0 && out[at - 1] < key[i]; at--) out[at] = out[at - 1];
        out[at] = key[i];
    }
}

/* Sums in blocks of 32, blocks in order. */
static float sum_blocks(const float *v, size_t n)
{
    float total = 0.0f;
    for (size_t b = 0; b < n; b += MPK_BLOCK) {
        float block = 0.0f;
        for (size_t i = b; i < n && i < b + MPK_BLOCK; i++) block += v[i];
        total += block;
    }
    return total;
}

static void softmax(const float *logits, size_t n, const mpk_kernels *kernels, float *score)
{
    float top = mpk_float(0xff800000u);
    for (size_t i = 0; i < n; i++) top = logits[i] > top ? logits[i] : top;
    kernels->exp_minus(logits, top, score, (n + 15) / 16 * 16);
    const float sum = sum_blocks(score, n);
    for (size_t i = 0; i < n; i++) score[i] /= sum;
}

/* Score of one group of experts: its best choice, or the sum of its two best. */
static float group_score(const moepack_policy *policy, const float *choice, size_t size)
{
    uint64_t best = 0, second = 0;
    for (size_t i = 0; i < size; i++) {
        uint64_t key = sort_key(choice[i], (uint32_t)i);
        if (key > best) {
            second = best;
            best = key;
        } else if (key > second) {
            second = key;
        }
    }
    const float first = choice[key_index(best)];
    if (policy->group_score == MOEPACK_GROUP_MAX || size < 2) return first;
    return first + choice[key_index(second)];
}

/* Overwrites the choices of all but the best groups. */
static void mask_groups(const moepack_policy *policy, uint32_t experts, const scratch_view *at, uint64_t *kept)
{
    const size_t groups = (size_t)policy->groups, size = experts / groups;
    for (size_t g = 0; g < groups; g++)
        at->key[g] = sort_key(group_score(policy, at->choice + g * size, size), (uint32_t)g);
    largest(at->key, groups, (size_t)policy->groups_kept, kept);
    const uint64_t last = kept[policy->groups_kept - 1];
    const float masked = policy->group_mask == MOEPACK_MASK_ZERO ? 0.0f : mpk_float(0xff800000u);
    for (size_t g = 0; g < groups; g++) {
        if (at->key[g] >= last) continue;
        for (size_t i = 0; i < size; i++) at->choice[g * size + i] = masked;
    }
}

/* From scores to choices; where weights are made of biased scores, these replace the scores (before any masking). */
static void apply_bias(const moepack_policy *policy, uint32_t experts, const float *bias, const scratch_view *at)
{
    for (size_t e = 0; e < experts; e++) {
        const float biased = bias != NULL ? at->score[e] + bias[e] : at->score[e];
        at->choice[e] = policy->select == MOEPACK_SELECT_BIASED ? biased : at->score[e];
        if (policy->weight_from == MOEPACK_WEIGHT_BIASED) at->score[e] = biased;
    }
}

/* Renormalises and scales the weights of one token. */
static void finish_weights(const moepack_policy *policy, float *weights)
{
    const size_t k = (size_t)policy->top_k;
    const int renormalized = policy->renormalize != MOEPACK_RENORM_NONE && (k > 1 || policy->renorm_k1 != 0);
    if (renormalized) {
        float sum = 0.0f;
        for (size_t i = 0; i < k; i++) sum += weights[i];
        if (policy->renormalize == MOEPACK_RENORM_SUM_EPS) sum += (float)policy->renorm_eps;
        for (size_t i = 0; i < k; i++) weights[i] /= sum;
    }
    if (!renormalized || policy->scale_when == MOEPACK_SCALE_ALWAYS) {
        const float scale = (float)policy->scale;
        for (size_t i = 0; i < k; i++) weights[i] *= scale;
    }
    for (size_t i = 0; i < k; i++) weights[i] = mpk_canonical(weights[i]);
}

void mpk_router_score(const moepack_policy *policy, uint32_t experts, const float *logits, const mpk_kernels *kernels,
                      float *score)
{
    const size_t lanes = ((size_t)experts + 15) / 16 * 16;
    switch (policy->score) {
    case MOEPACK_SCORE_SOFTMAX:
        softmax(logits, experts, kernels, score);
        return;
    case MOEPACK_SCORE_SIGMOID:
        kernels->sigmoid(logits, score, lanes);
        return;
    case MOEPACK_SCORE_SQRT_SOFTPLUS:
        kernels->sqrt_softplus(logits, score, lanes);
        return;
    default: /* the function comes after the selection */
        memcpy(score, logits, experts * sizeof *score);
        return;
    }
}

/* Where the function applies to the selected alone: from their values to weights. */
static void finish_selected(const moepack_policy *policy, float *weights)
{
    const size_t k = (size_t)policy->top_k;
    float top = mpk_float(0xff800000u), sum = 0.0f;
    if (policy->score == MOEPACK_SCORE_SIGMOID_SELECTED)
        for (size_t i = 0; i < k; i++) weights[i] = mpk_sigmoid(weights[i]);
    if (policy->score != MOEPACK_SCORE_SOFTMAX_SELECTED) return;
    for (size_t i = 0; i < k; i++) top = weights[i] > top ? weights[i] : top;
    for (size_t i = 0; i < k; i++) sum += weights[i] = mpk_exp(weights[i] - top);
    for (size_t i = 0; i < k; i++) weights[i] /= sum;
}

/* Slot after slot: the best of those left, and its share in a softmax over those left that are near it. */
static void sparsemixer(const moepack_policy *policy, uint32_t experts, const mpk_kernels *kernels,
                        const scratch_view *at, int32_t *ids, float *weights)
{
    const float limit = 2.0f * (float)policy->sparsemixer_eps;
    for (uint32_t e = 0; e < experts; e++) at->key[e] = sort_key(at->score[e], e);
    for (size_t slot = 0; slot < policy->top_k; slot++) {
        uint64_t best = 0;
        for (size_t e = 0; e < experts; e++) best = at->key[e] > best ? at->key[e] : best;
        const uint32_t id = key_index(best);
        const float top = at->score[id];
        kernels->exp_minus(at->score, top, at->choice, ((size_t)experts + 15) / 16 * 16);
        for (size_t e = 0; e < experts; e++) {
            const float v = at->score[e], size = v < 0.0f ? -v : v, base = size < top ? top : size;
            if (at->key[e] == 0 || (top - v) / base > limit) at->choice[e] = 0.0f;
        }
        ids[slot] = (int32_t)id;
        weights[slot] = at->choice[id] / sum_blocks(at->choice, experts);
        at->key[id] = 0; /* below every key: taken */
    }
}

static void select_experts(const moepack_policy *policy, uint32_t experts, const scratch_view *at, uint64_t *best,
                           int32_t *ids)
{
    if (policy->groups > 1 && policy->groups > policy->groups_kept) mask_groups(policy, experts, at, best);
    for (uint32_t e = 0; e < experts; e++) at->key[e] = sort_key(at->choice[e], e);
    largest(at->key, experts, (size_t)policy->top_k, best);
    for (size_t i = 0; i < policy->top_k; i++) ids[i] = (int32_t)key_index(best[i]);
}

void mpk_route(const moepack_policy *policy, uint32_t experts, const mpk_router_input *in, const mpk_kernels *kernels,
               void *scratch, int32_t *ids, float *weights)
{
    const size_t padded = padded_experts(experts), k = (size_t)policy->top_k;
    uint64_t *best = scratch;
    const scratch_view at = {.key = best + padded,
                             .score = (float *)(void *)(best + 2 * padded),
                             .choice = (float *)(void *)(best + 2 * padded) + padded};
    mpk_router_score(policy, experts, in->logits, kernels, at.score);
    if (policy->score == MOEPACK_SCORE_SPARSEMIXER) {
        sparsemixer(policy, experts, kernels, &at, ids, weights);
    } else {
        apply_bias(policy, experts, in->bias, &at);
        if (policy->select == MOEPACK_SELECT_TOKEN_TABLE)
            memcpy(ids, in->chosen, k * sizeof *ids);
        else
            select_experts(policy, experts, &at, best, ids);
        for (size_t i = 0; i < k; i++) weights[i] = at.score[ids[i]];
        finish_selected(policy, weights);
    }
    finish_weights(policy, weights);
}
