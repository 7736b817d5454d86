/* What the layer can compute, and whether a view fits its policy. */
#include "layer.h"

#include "../format/error.h"
#include "cpu/kernels.h"
#include "layer_internal.h"

#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define ONLY(value) (UINT64_C(1) << (value))

/* Names a field and its value the way the policy prints them. */
static moepack_status unsupported(const moepack_policy *policy, const char *key, const char *why, moepack_error *error)
{
    char text[64] = "?";
    const char *name = NULL;
    for (size_t i = 0; i < moepack_policy_key_count(); i++)
        if (moepack_policy_get(policy, i, &name, text, sizeof text) == MOEPACK_OK && strcmp(name, key) == 0) break;
    return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "cannot compute a layer with %s = %s%s", key, text, why);
}

/* Activations that are functions of two branches, and those that are clamped. */
static bool needs_gate(uint64_t activation)
{
    return activation == MOEPACK_ACT_SILU_CLAMPED || activation == MOEPACK_ACT_SWIGLU_OAI ||
           activation == MOEPACK_ACT_SITU;
}

static bool has_limit(uint64_t activation)
{
    return activation == MOEPACK_ACT_SILU_CLAMPED || activation == MOEPACK_ACT_SWIGLU_OAI;
}

/* Combinations of fields that say nothing together: no formula of spec/numerics.md uses them. */
moepack_status mpk_layer_policy_supported(const moepack_policy *p, moepack_error *error)
{
    const bool shared = p->shared_width > 0, sparsemixer = p->score == MOEPACK_SCORE_SPARSEMIXER;
    const bool table = p->select == MOEPACK_SELECT_TOKEN_TABLE, grouped = p->groups > 1 && p->groups > p->groups_kept;
    const struct {
        bool senseless;
        const char *key, *why;
    } rules[] = {
        {sparsemixer && p->select != MOEPACK_SELECT_SCORE, "select", " and score = sparsemixer"},
        {sparsemixer && p->weight_from != MOEPACK_WEIGHT_UNBIASED, "weight_from", " and score = sparsemixer"},
        {grouped && (sparsemixer || table), "groups", sparsemixer ? " and score = sparsemixer" : " and a token table"},
        {table != (p->token_ids != 0), "token_ids", table ? " and a token table" : " and no token table"},
        {!p->gated && needs_gate(p->activation), "gated", ", which its activation needs"},
        {!p->gated && shared && needs_gate(p->shared_activation), "gated", ", which the shared activation needs"},
        {p->act_limit != 0.0 && !has_limit(p->activation), "act_limit", ", which its activation does not have"},
        {p->shared_act_limit != 0.0 && shared && !has_limit(p->shared_activation), "shared_act_limit",
         ", which the shared activation does not have"},
        {p->latent_norm && !p->latent, "latent_norm", " and no latent space"},
        {p->shared_gate != MOEPACK_SHARED_GATE_NONE && !shared, "shared_gate", " and no shared experts"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].senseless) return unsupported(p, rules[i].key, rules[i].why, error);
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
    /* Two matrices of one section share a scale plane: the second one's begins at any whole 16 bytes. */
    if (!aligned(m->weights) || (byte_scales && (uintptr_t)m->scales % MPK_ROWS != 0))
        return mpk_fail(error, MOEPACK_E_USAGE, "matrix %s is not aligned to %d bytes", role, MPK_VIEW_ALIGNMENT);
    return MOEPACK_OK;
}

static moepack_status check_vector(const void *v, const char *role, moepack_error *error)
{
    return v != NULL ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_USAGE, "vector %s is missing", role);
}

static moepack_status check_expert(const mpk_layer_view *v, uint32_t e, moepack_error *error)
{
    const moepack_policy *p = &v->policy;
    const mpk_expert_view *x = &v->expert[e];
    moepack_status status = MOEPACK_OK;
    if (p->gated) status = check_matrix(&x->gate, "gate", p->intermediate, p->expert_input, false, error);
    if (status == MOEPACK_OK) status = check_matrix(&x->up, "up", p->intermediate, p->expert_input, false, error);
    if (status == MOEPACK_OK) status = check_matrix(&x->down, "down", p->expert_input, p->intermediate, false, error);
    if (status == MOEPACK_OK && p->expert_bias) {
        if (p->gated) status = check_vector(x->gate_bias, "gate bias", error);
        if (status == MOEPACK_OK) status = check_vector(x->up_bias, "up bias", error);
        if (status == MOEPACK_OK) status = check_vector(x->down_bias, "down bias", error);
    }
    if (status != MOEPACK_OK) mpk_error_expert(error, e);
    return status;
}

static moepack_status check_shared(const mpk_layer_view *v, moepack_error *error)
{
    const moepack_policy *p = &v->policy;
    moepack_status status = MOEPACK_OK;
    if (p->shared_width == 0) return MOEPACK_OK;
    if (p->gated) status = check_matrix(&v->shared_gate, "shared_gate", p->shared_width, p->hidden, false, error);
    if (status == MOEPACK_OK)
        status = check_matrix(&v->shared_up, "shared_up", p->shared_width, p->hidden, false, error);
    if (status == MOEPACK_OK)
        status = check_matrix(&v->shared_down, "shared_down", p->hidden, p->shared_width, false, error);
    if (status == MOEPACK_OK && p->shared_gate != MOEPACK_SHARED_GATE_NONE)
        status = check_matrix(&v->shared_router, "shared_router", 1, p->hidden, false, error);
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
    if (status == MOEPACK_OK && p->latent_norm) status = check_vector(v->latent_norm, "latent_norm", error);
    return status == MOEPACK_OK ? check_shared(v, error) : status;
}

/* What steps 1 to 3 read besides the policy. */
static moepack_status check_router(const mpk_layer_view *v, moepack_error *error)
{
    const moepack_policy *p = &v->policy;
    moepack_status status = check_matrix(&v->router, "router", v->experts, p->hidden, true, error);
    if (status == MOEPACK_OK && mpk_uses_bias(p)) status = check_vector(v->router_bias, "router_bias", error);
    if (status == MOEPACK_OK && p->logit_bias) status = check_vector(v->logit_bias, "logit_bias", error);
    if (status == MOEPACK_OK && p->select == MOEPACK_SELECT_TOKEN_TABLE)
        status = check_vector(v->token_table, "token_table", error);
    return status;
}

moepack_status mpk_layer_check_router(const mpk_layer_view *v, moepack_error *error)
{
    moepack_status status = mpk_layer_policy_supported(&v->policy, error);
    if (status == MOEPACK_OK) status = check_numbers(&v->policy, v->experts, error);
    return status == MOEPACK_OK ? check_router(v, error) : status;
}

moepack_status mpk_layer_check(const mpk_layer_view *v, moepack_error *error)
{
    const moepack_policy *p = &v->policy;
    moepack_status status = mpk_layer_check_finish(v, error);
    if (status == MOEPACK_OK) status = check_router(v, error);
    if (status == MOEPACK_OK && p->latent)
        status = check_matrix(&v->latent_down, "latent_down", p->expert_input, p->hidden, false, error);
    if (status == MOEPACK_OK && (v->expert == NULL || v->present == NULL))
        status = mpk_fail(error, MOEPACK_E_USAGE, "the view has no experts");
    for (uint32_t e = 0; status == MOEPACK_OK && e < v->experts; e++)
        if (v->present[e]) status = check_expert(v, e, error);
    return status;
}
