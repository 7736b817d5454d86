/* DeepSeek-V4: scores are square roots of softplus, and the first layers choose experts by token id. */
#include "families_tables.h"

static const mpk_family_section bf16[] = {GATED(PLAIN_BF16, "w1", "w3", "w2")};

static const mpk_family_form forms[] = {
    {"bf16", NULL, COUNT(bf16), bf16},
};

/* gate.bias is a selection bias here, and elsewhere would be one of the logits. Layers with a table have none. */
static const mpk_family_role roles[] = {
    ROUTER("gate.weight"),
    {"gate.bias", MOEPACK_ROLE_ROUTER_BIAS, MPK_IF_BIASED, 1, {SIZE(MPK_E)}},
    {"gate.tid2eid", MOEPACK_ROLE_TOKEN_TABLE, MPK_IF_TOKEN_TABLE, 2, {SIZE(MPK_V), SIZE(MPK_K)}},
    {"shared_experts.w1.weight", MOEPACK_ROLE_SHARED_GATE, MPK_IF_SHARED, 2, {SIZE(MPK_S), SIZE(MPK_H)}},
    {"shared_experts.w3.weight", MOEPACK_ROLE_SHARED_UP, MPK_IF_SHARED, 2, {SIZE(MPK_S), SIZE(MPK_H)}},
    {"shared_experts.w2.weight", MOEPACK_ROLE_SHARED_DOWN, MPK_IF_SHARED, 2, {SIZE(MPK_H), SIZE(MPK_S)}},
};

/* What transformers saves, and the names of the releases. */
static const mpk_family_prefix prefixes[] = {
    {"model.layers.{layer}.ffn.", MOEPACK_STACK_MAIN},
    {"layers.{layer}.ffn.", MOEPACK_STACK_MAIN},
};

static const mpk_family_key keys[] = {
    {MPK_KEY_HIDDEN, "hidden_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_LAYERS, "num_hidden_layers", MPK_KIND_COUNT, true, 0},
    NO_KEY(MPK_KEY_FIRST_DENSE, 0),
    NO_KEY(MPK_KEY_LAYER_STEP, 1),
    NO_KEY(MPK_KEY_SPARSE_STEP, 1),
    NO_KEY(MPK_KEY_DENSE_LAYERS, 0),
    {MPK_KEY_LAYER_TYPES, "mlp_layer_types", MPK_KIND_TYPES, false, 0},
    {MPK_KEY_HASH_LAYERS, "num_hash_layers", MPK_KIND_COUNT0, false, 0},
    {MPK_KEY_VOCABULARY, "vocab_size", MPK_KIND_COUNT, true, 0},
    NO_KEY(MPK_KEY_MTP, 0),
    {MPK_KEY_EXPERTS, "n_routed_experts", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_TOP_K, "num_experts_per_tok", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_SHARED, "n_shared_experts", MPK_KIND_COUNT0, false, 0},
    {MPK_KEY_INTERMEDIATE, "moe_intermediate_size", MPK_KIND_COUNT, true, 0},
    NO_LATENT,
    {MPK_KEY_ACTIVATION, "hidden_act", MPK_KIND_NAME, true, 0},
    NO_SITU,
    {MPK_KEY_SCORE, "scoring_func", MPK_KIND_NAME, false, MOEPACK_SCORE_SQRT_SOFTPLUS},
    {MPK_KEY_METHOD, "topk_method", MPK_KIND_NAME, false, MPK_METHOD_BIASED},
    NO_KEY(MPK_KEY_GROUPED, 0),
    NO_KEY(MPK_KEY_GROUPS, 1),
    NO_KEY(MPK_KEY_GROUPS_KEPT, 1),
    {MPK_KEY_RENORMALIZE, "norm_topk_prob", MPK_KIND_BOOL, true, 0},
    {MPK_KEY_SCALE, "routed_scaling_factor", MPK_KIND_REAL, true, 0},
};

/* "silu" is clamped by swiglu_limit. */
static const mpk_family_name names[] = {
    {MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SILU_CLAMPED},
    {MPK_KEY_SCORE, "sqrtsoftplus", MOEPACK_SCORE_SQRT_SOFTPLUS},
    {MPK_KEY_METHOD, "noaux_tc", MPK_METHOD_BIASED},
    {MPK_KEY_LAYER_TYPES, "moe", MPK_LAYER_MOE},
    {MPK_KEY_LAYER_TYPES, "hash_moe", MPK_LAYER_HASHED},
};

static const mpk_family_number numbers[] = {
    {"swiglu_limit", "act_limit", true},
    {"swiglu_limit", "shared_act_limit", true},
};
static const mpk_family_must musts[] = {{"mlp_bias", "false"}};
static const mpk_family_type types[] = {{"deepseek_v4", NULL, NULL}};

const mpk_family mpk_family_deepseek_v4 = {
    .name = "deepseek_v4",
    .about = "DeepSeek-V4: square root of softplus, selection bias or token table, clamped SwiGLU, shared expert",
    .tested = "layer goldens of transformers 5.24.0",
    OWN_TABLES,
    .text_type = "deepseek_v4",
    .expert_stem = "experts.",
    .numbers = numbers,
    .number_count = COUNT(numbers),
    .renorm_eps = 1e-20,
    .renorm_k1 = true,
    .router_dtype = MOEPACK_DTYPE_BF16,
    .strict = true,
};
