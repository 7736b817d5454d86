/* A policy in plain English, for people who look at a container. */
#include "policy.h"

#include "error.h"

#include <stdio.h>

typedef struct text {
    char *buf;
    size_t size, used;
} text;

static void say(text *t, const char *format, ...) MOEPACK_PRINTF(2, 3);
static void say(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n =
        vsnprintf(t->used < t->size ? t->buf + t->used : NULL, t->used < t->size ? t->size - t->used : 0, format, args);
    va_end(args);
    if (n > 0) t->used += (size_t)n;
}

typedef unsigned long long ull;

static const char *score_words(uint64_t score)
{
    switch (score) {
    case MOEPACK_SCORE_SOFTMAX:
        return "softmax scores over all experts";
    case MOEPACK_SCORE_SIGMOID:
        return "sigmoid scores";
    case MOEPACK_SCORE_SQRT_SOFTPLUS:
        return "square roots of softplus as scores";
    case MOEPACK_SCORE_SOFTMAX_SELECTED:
        return "logits as scores, softmax over the selected";
    case MOEPACK_SCORE_SIGMOID_SELECTED:
        return "logits as scores, sigmoid of the selected";
    case MOEPACK_SCORE_SPARSEMIXER:
        return "sparsemixer scores";
    default:
        return "unknown scores";
    }
}

static void describe_router(text *t, const moepack_policy *p, uint64_t experts)
{
    say(t, "router: %s%s", p->logit_bias ? "logits + bias, " : "", score_words(p->score));
    if (p->score == MOEPACK_SCORE_SPARSEMIXER) say(t, " (eps %g)", p->sparsemixer_eps);
    if (p->select == MOEPACK_SELECT_BIASED) say(t, " + selection bias");
    if (p->select == MOEPACK_SELECT_TOKEN_TABLE)
        say(t, ", %llu of %llu chosen from a table by token id\n", (ull)p->top_k, (ull)experts);
    else
        say(t, ", top %llu of %llu\n", (ull)p->top_k, (ull)experts);
    if (p->groups > 1) {
        say(t, "groups: %llu of %llu kept, by the %s of a group, others set to %s\n", (ull)p->groups_kept,
            (ull)p->groups, p->group_score == MOEPACK_GROUP_MAX ? "best score" : "sum of the two best scores",
            p->group_mask == MOEPACK_MASK_NEG_INF ? "-infinity" : "zero");
    }
}

static void describe_weights(text *t, const moepack_policy *p)
{
    say(t, "weights: %s scores", p->weight_from == MOEPACK_WEIGHT_BIASED ? "biased" : "unbiased");
    if (p->renormalize == MOEPACK_RENORM_NONE) {
        say(t, ", not renormalised");
    } else {
        say(t, " divided by their sum");
        if (p->renormalize == MOEPACK_RENORM_SUM_EPS) say(t, " + %g", p->renorm_eps);
        if (p->top_k == 1) say(t, p->renorm_k1 ? " (also for one expert)" : " (not for one expert)");
    }
    say(t, ", times %g%s", p->scale,
        p->scale_when == MOEPACK_SCALE_IF_NOT_RENORMALIZED ? " when not renormalised" : "");
    static const char *const places[] = {"expert output", "inner activations", "expert input"};
    say(t, ", applied to the %s\n", p->weight_applied < 3 ? places[p->weight_applied] : "?");
}

static void describe_activation(text *t, const moepack_policy *p, uint64_t activation, double limit)
{
    switch (activation) {
    case MOEPACK_ACT_RELU:
        say(t, "ReLU");
        break;
    case MOEPACK_ACT_RELU2:
        say(t, "squared ReLU");
        break;
    case MOEPACK_ACT_SILU:
        say(t, "SiLU");
        break;
    case MOEPACK_ACT_SILU_CLAMPED:
        say(t, "clamped SiLU");
        break;
    case MOEPACK_ACT_SWIGLU_OAI:
        say(t, "SwiGLU with alpha %g and linear branch + 1", p->act_alpha);
        break;
    case MOEPACK_ACT_GELU:
        say(t, "GELU");
        break;
    case MOEPACK_ACT_GELU_TANH:
        say(t, "GELU (tanh form)");
        break;
    case MOEPACK_ACT_SITU:
        say(t, "SiTU with beta %g", p->situ_beta);
        if (p->situ_linear_beta > 0) say(t, ", linear beta %g", p->situ_linear_beta);
        break;
    default:
        say(t, "unknown activation");
        break;
    }
    if (limit > 0) say(t, ", limit %g", limit);
}

static void describe_experts(text *t, const moepack_policy *p)
{
    say(t, "experts: %llu -> %llu -> %llu, ", (ull)p->expert_input, (ull)p->intermediate, (ull)p->expert_input);
    describe_activation(t, p, p->activation, p->act_limit);
    say(t, "%s%s\n", p->gated ? ", gated" : ", not gated", p->expert_bias ? ", with biases" : "");
    if (p->latent) {
        say(t, "latent: hidden %llu projected down to %llu before the experts and up again after", (ull)p->hidden,
            (ull)p->expert_input);
        if (p->latent_norm) say(t, ", RMSNorm (eps %g) on the expert sum", p->norm_eps);
        say(t, "\n");
    } else {
        say(t, "hidden: %llu\n", (ull)p->hidden);
    }
    if (p->shared_width > 0) {
        say(t, "shared experts: inner width %llu, ", (ull)p->shared_width);
        describe_activation(t, p, p->shared_activation, p->shared_act_limit);
        say(t, "%s\n", p->shared_gate == MOEPACK_SHARED_GATE_SIGMOID ? ", behind a sigmoid gate" : ", always on");
    } else {
        say(t, "shared experts: none\n");
    }
}

size_t moepack_policy_describe(const moepack_policy *policy, uint64_t experts, char *buf, size_t size)
{
    if (size > 0) buf[0] = '\0';
    text t = {buf, size, 0};
    describe_router(&t, policy, experts);
    describe_weights(&t, policy);
    describe_experts(&t, policy);
    if (policy->capacity == MOEPACK_CAPACITY_PER_SEQUENCE)
        say(&t, "capacity: %llu tokens an expert and sequence\n", (ull)policy->capacity_tokens);
    if (policy->capacity == MOEPACK_CAPACITY_FACTOR)
        say(&t, "capacity: factor %g, at least %llu tokens\n", policy->capacity_factor, (ull)policy->capacity_min);
    if (policy->token_ids) say(&t, "needs token ids\n");
    if (policy->router_dtype != MOEPACK_DTYPE_F32)
        say(&t, "the published code computes logits in %s; here F32\n", mpk_policy_value_name(policy, "router_dtype"));
    return t.used;
}
