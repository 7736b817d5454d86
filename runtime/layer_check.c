/* What the layer can compute, and whether a view fits its policy. */
#include "layer.h"

#include "../format/error.h"
#include "cpu/kernels.h"
#include "layer_internal.h"

#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define ONLY(value) (UINT64_C(1) << (value))

/* Enumerated fields with the values that are implemented, one bit each. */
static const struct allowed {
    const char *key;
    size_t at;
    uint64_t values;
} allowed_fields[] = {
#define FIELD(name) #name, offsetof(moepack_policy, name)
    {FIELD(score), ONLY(MOEPACK_SCORE_SIGMOID) | ONLY(MOEPACK_SCORE_SOFTMAX)},
    {FIELD(select), ONLY(MOEPACK_SELECT_SCORE) | ONLY(MOEPACK_SELECT_BIASED)},
    {FIELD(weight_from), ONLY(MOEPACK_WEIGHT_UNBIASED) | ONLY(MOEPACK_WEIGHT_BIASED)},
    {FIELD(renormalize), ONLY(MOEPACK_RENORM_NONE) | ONLY(MOEPACK_RENORM_SUM) | ONLY(MOEPACK_RENORM_SUM_EPS)},
    {FIELD(renorm_k1), ONLY(0) | ONLY(1)},
    {FIELD(scale_when), ONLY(MOEPACK_SCALE_ALWAYS) | ONLY(MOEPACK_SCALE_IF_NOT_RENORMALIZED)},
    {FIELD(group_score), ONLY(MOEPACK_GROUP_MAX) | ONLY(MOEPACK_GROUP_TOP2_SUM)},
    {FIELD(group_mask), ONLY(MOEPACK_MASK_NEG_INF) | ONLY(MOEPACK_MASK_ZERO)},
    {FIELD(logit_bias), ONLY(0)},
    {FIELD(activation), ONLY(MOEPACK_ACT_SITU) | ONLY(MOEPACK_ACT_SILU)},
    {FIELD(gated), ONLY(1)},
    {FIELD(expert_bias), ONLY(0)},
    {FIELD(latent), ONLY(0) | ONLY(1)},
    {FIELD(latent_norm), ONLY(0) | ONLY(1)},
    {FIELD(shared_gate), ONLY(MOEPACK_SHARED_GATE_NONE)},
    {FIELD(weight_applied), ONLY(MOEPACK_APPLY_OUTPUT)},
    {FIELD(token_ids), ONLY(0)},
    {FIELD(capacity), ONLY(MOEPACK_CAPACITY_NONE)},
};

static uint64_t field_value(const moepack_policy *policy, size_t at)
{
    uint64_t value;
    memcpy(&value, (const char *)policy + at, sizeof value);
    return value;
}

/* Names a field and its value the way the policy prints them. */
static moepack_status unsupported(const moepack_policy *policy, const char *key, moepack_error *error)
{
    char text[64] = "?";
    const char *name = NULL;
    for (size_t i = 0; i < moepack_policy_key_count(); i++)
        if (moepack_policy_get(policy, i, &name, text, sizeof text) == MOEPACK_OK && strcmp(name, key) == 0) break;
    return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "this version cannot compute a layer with %s = %s", key, text);
}

moepack_status mpk_layer_policy_supported(const moepack_policy *policy, moepack_error *error)
{
    for (size_t i = 0; i < COUNT(allowed_fields); i++) {
        const uint64_t value = field_value(policy, allowed_fields[i].at);
        if (value > 63 || (allowed_fields[i].values & ONLY(value)) == 0)
            return unsupported(policy, allowed_fields[i].key, error);
    }
    const uint64_t shared_allowed = ONLY(MOEPACK_ACT_SITU) | ONLY(MOEPACK_ACT_SILU);
    if (policy->shared_width > 0) {
        if (policy->shared_activation > 63 || (shared_allowed & ONLY(policy->shared_activation)) == 0)
            return unsupported(policy, "shared_activation", error);
        if (policy->shared_act_limit != 0.0) return unsupported(policy, "shared_act_limit", error);
    }
    if (policy->act_limit != 0.0) return unsupported(policy, "act_limit", error);
    if (policy->latent_norm && !policy->latent) return unsupported(policy, "latent_norm", error);
    return MOEPACK_OK;
}

static moepack_status check_numbers(const moepack_policy *p, uint32_t experts, moepack_error *error)
{
    const uint64_t limit = UINT32_MAX;
    if (p->hidden == 0 || p->expert_input == 0 || p->intermediate == 0 || p->hidden > limit ||
        p->expert_input > limit || p->intermediate > limit || p->shared_width > limit)
        return mpk_fail(error, MOEPACK_E_USAGE, "widths must lie between 1 and %llu", (unsigned long long)limit);
    if (!p->latent && p->expert_input != p->hidden)
        return mpk_fail(error, MOEPACK_E_USAGE,
                        "expert input %llu differs from hidden size %llu without a latent projection",
                        (unsigned long long)p->expert_input, (unsigned long long)p->hidden);
    if (experts == 0 || experts > INT32_MAX || p->top_k == 0 || p->top_k > experts)
        return mpk_fail(error, MOEPACK_E_USAGE, "cannot select %llu of %lu experts", (unsigned long long)p->top_k,
                        (unsigned long)experts);
    if (p->groups == 0 || p->groups > experts || experts % p->groups != 0 || p->groups_kept == 0 ||
        p->groups_kept > p->groups)
        return mpk_fail(error, MOEPACK_E_USAGE, "%lu experts do not form %llu groups of which %llu are kept",
                        (unsigned long)experts, (unsigned long long)p->groups, (unsigned long long)p->groups_kept);
    const bool situ =
        p->activation == MOEPACK_ACT_SITU || (p->shared_width > 0 && p->shared_activation == MOEPACK_ACT_SITU);
    if (situ && !((float)p->situ_beta > 0.0f && isfinite((float)p->situ_beta) && p->situ_linear_beta >= 0.0 &&
                  isfinite((float)p->situ_linear_beta)))
        return mpk_fail(error, MOEPACK_E_USAGE, "situ betas %g and %g are out of range", p->situ_beta,
                        p->situ_linear_beta);
    return MOEPACK_OK;
}

static bool aligned(const void *p)
{
    return ((uintptr_t)p & (MPK_VIEW_ALIGNMENT - 1)) == 0;
}

/* Which scales a matrix may have; `group_cols` 0: any. */
static const struct {
    moepack_encoding weights;
    mpk_scale_kind kind;
    uint32_t group_cols;
    uint64_t scales; /* encodings, one bit each */
} storage_forms[] = {
#define FLOATS (ONLY(MOEPACK_ENC_BF16) | ONLY(MOEPACK_ENC_F16) | ONLY(MOEPACK_ENC_F32))
    {MOEPACK_ENC_F32, MPK_SCALE_NONE, 0, ONLY(MOEPACK_ENC_NONE)},
    {MOEPACK_ENC_BF16, MPK_SCALE_NONE, 0, ONLY(MOEPACK_ENC_NONE)},
    {MOEPACK_ENC_F16, MPK_SCALE_NONE, 0, ONLY(MOEPACK_ENC_NONE)},
    {MOEPACK_ENC_E4M3, MPK_SCALE_NONE, 0, ONLY(MOEPACK_ENC_NONE)},
    {MOEPACK_ENC_E4M3, MPK_SCALE_ONE, 0, FLOATS | ONLY(MOEPACK_ENC_E8M0)},
    {MOEPACK_ENC_E4M3, MPK_SCALE_ROWS, 0, FLOATS | ONLY(MOEPACK_ENC_E8M0)},
    {MOEPACK_ENC_E4M3, MPK_SCALE_GRID, 0, FLOATS | ONLY(MOEPACK_ENC_E8M0)},
    {MOEPACK_ENC_E4M3, MPK_SCALE_GROUPS, 32, FLOATS | ONLY(MOEPACK_ENC_E8M0)},
    {MOEPACK_ENC_INT4_OFFSET, MPK_SCALE_GROUPS, 32, FLOATS},
    {MOEPACK_ENC_E2M1, MPK_SCALE_GROUPS, 32, ONLY(MOEPACK_ENC_E8M0)},
    {MOEPACK_ENC_E2M1, MPK_SCALE_GROUPS, 16, ONLY(MOEPACK_ENC_E4M3)},
};

/* The routers of all known models are plain; a scaled one would not be what the published code computes. */
static bool known_form(const mpk_matrix_view *m, bool plain)
{
    if (plain && (m->encoding == MOEPACK_ENC_E4M3 || m->scale_kind != MPK_SCALE_NONE)) return false;
    for (size_t i = 0; i < COUNT(storage_forms); i++)
        if (storage_forms[i].weights == m->encoding && storage_forms[i].kind == m->scale_kind &&
            (storage_forms[i].group_cols == 0 || storage_forms[i].group_cols == m->group_cols) &&
            (unsigned)m->scale_encoding < 64 && (storage_forms[i].scales & ONLY(m->scale_encoding)) != 0)
            return true;
    return false;
}

/* `role` names the matrix in errors. */
static moepack_status check_matrix(const mpk_matrix_view *m, const char *role, uint64_t rows, uint64_t cols, bool plain,
                                   moepack_error *error)
{
    if (m->weights == NULL || (m->scale_kind != MPK_SCALE_NONE && m->scales == NULL))
        return mpk_fail(error, MOEPACK_E_USAGE, "matrix %s is missing", role);
    if (!known_form(m, plain)) {
        const char *name = moepack_encoding_name(m->encoding), *scale = moepack_encoding_name(m->scale_encoding);
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED,
                        "this version cannot compute with matrix %s in encoding %s with scales of %s", role,
                        name != NULL ? name : "(unknown)", scale != NULL ? scale : "(unknown)");
    }
    if (m->rows != rows || m->cols != cols)
        return mpk_fail(error, MOEPACK_E_USAGE, "matrix %s is [%llu, %llu], expected [%llu, %llu]", role,
                        (unsigned long long)m->rows, (unsigned long long)m->cols, (unsigned long long)rows,
                        (unsigned long long)cols);
    const bool byte_scales = m->encoding == MOEPACK_ENC_E2M1 && m->scale_encoding == MOEPACK_ENC_E8M0;
    if (!aligned(m->weights) || (byte_scales && !aligned(m->scales)))
        return mpk_fail(error, MOEPACK_E_USAGE, "matrix %s is not aligned to %d bytes", role, MPK_VIEW_ALIGNMENT);
    return MOEPACK_OK;
}

static moepack_status check_expert(const mpk_layer_view *v, uint32_t e, moepack_error *error)
{
    const moepack_policy *p = &v->policy;
    const mpk_expert_view *x = &v->expert[e];
    moepack_status status = check_matrix(&x->gate, "gate", p->intermediate, p->expert_input, false, error);
    if (status == MOEPACK_OK) status = check_matrix(&x->up, "up", p->intermediate, p->expert_input, false, error);
    if (status == MOEPACK_OK) status = check_matrix(&x->down, "down", p->expert_input, p->intermediate, false, error);
    if (status != MOEPACK_OK) mpk_error_expert(error, e);
    return status;
}

/* The matrices that steps 7 and 8 use. */
moepack_status mpk_layer_check_finish(const mpk_layer_view *v, moepack_error *error)
{
    const moepack_policy *p = &v->policy;
    moepack_status status = mpk_layer_policy_supported(p, error);
    if (status == MOEPACK_OK) status = check_numbers(p, v->experts, error);
    if (status == MOEPACK_OK && p->latent)
        status = check_matrix(&v->latent_up, "latent_up", p->hidden, p->expert_input, false, error);
    if (status == MOEPACK_OK && p->latent_norm && v->latent_norm == NULL)
        status = mpk_fail(error, MOEPACK_E_USAGE, "vector latent_norm is missing");
    if (status == MOEPACK_OK && p->shared_width > 0)
        status = check_matrix(&v->shared_gate, "shared_gate", p->shared_width, p->hidden, false, error);
    if (status == MOEPACK_OK && p->shared_width > 0)
        status = check_matrix(&v->shared_up, "shared_up", p->shared_width, p->hidden, false, error);
    if (status == MOEPACK_OK && p->shared_width > 0)
        status = check_matrix(&v->shared_down, "shared_down", p->hidden, p->shared_width, false, error);
    return status;
}

moepack_status mpk_layer_check_router(const mpk_layer_view *v, moepack_error *error)
{
    const moepack_policy *p = &v->policy;
    moepack_status status = mpk_layer_policy_supported(p, error);
    if (status == MOEPACK_OK) status = check_numbers(p, v->experts, error);
    if (status == MOEPACK_OK) status = check_matrix(&v->router, "router", v->experts, p->hidden, true, error);
    if (status == MOEPACK_OK && mpk_uses_bias(p) && v->router_bias == NULL)
        status = mpk_fail(error, MOEPACK_E_USAGE, "vector router_bias is missing");
    return status;
}

moepack_status mpk_layer_check(const mpk_layer_view *v, moepack_error *error)
{
    const moepack_policy *p = &v->policy;
    moepack_status status = mpk_layer_check_finish(v, error);
    if (status == MOEPACK_OK) status = check_matrix(&v->router, "router", v->experts, p->hidden, true, error);
    if (status == MOEPACK_OK && p->latent)
        status = check_matrix(&v->latent_down, "latent_down", p->expert_input, p->hidden, false, error);
    if (status == MOEPACK_OK && mpk_uses_bias(p) && v->router_bias == NULL)
        status = mpk_fail(error, MOEPACK_E_USAGE, "vector router_bias is missing");
    if (status == MOEPACK_OK && (v->expert == NULL || v->present == NULL))
        status = mpk_fail(error, MOEPACK_E_USAGE, "the view has no experts");
    for (uint32_t e = 0; status == MOEPACK_OK && e < v->experts; e++)
        if (v->present[e]) status = check_expert(v, e, error);
    return status;
}
