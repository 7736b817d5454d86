/* Kimi Linear and Kimi K3. */
#include "families_tables.h"

/* w1 is the gate, w3 the up and w2 the down projection. */
static const mpk_family_section kimi_bf16[] = {
    GATED(PLAIN_BF16, "w1", "w3", "w2"),
};

static const mpk_family_form kimi_forms[] = {
    {"bf16", NULL, COUNT(kimi_bf16), kimi_bf16},
};

static const mpk_family_role kimi_roles[] = {
    ROUTER("gate.weight"),
    {"gate.e_score_correction_bias", MOEPACK_ROLE_ROUTER_BIAS, MPK_IF_BIASED, 1, {SIZE(MPK_E)}},
    {"routed_expert_down_proj.weight", MOEPACK_ROLE_LATENT_DOWN, MPK_IF_LATENT, 2, {SIZE(MPK_L), SIZE(MPK_H)}},
    {"routed_expert_norm.weight", MOEPACK_ROLE_LATENT_NORM, MPK_IF_LATENT_NORM, 1, {SIZE(MPK_L)}},
    {"routed_expert_up_proj.weight", MOEPACK_ROLE_LATENT_UP, MPK_IF_LATENT, 2, {SIZE(MPK_H), SIZE(MPK_L)}},
    SHARED("shared_experts."),
};

/* Multimodal wrapper first, then text-only copies. */
static const mpk_family_prefix kimi_prefixes[] = {
    {"language_model.model.layers.{layer}.block_sparse_moe.", MOEPACK_STACK_MAIN},
    {"model.layers.{layer}.block_sparse_moe.", MOEPACK_STACK_MAIN},
};

/* Note the names: num_experts_per_token, not _tok; moe_renormalize, not norm_topk_prob. */
static const mpk_family_key kimi_keys[] = {
    {MPK_KEY_HIDDEN, "hidden_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_LAYERS, "num_hidden_layers", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_FIRST_DENSE, "first_k_dense_replace", MPK_KIND_COUNT0, false, 0},
    {MPK_KEY_LAYER_STEP, "moe_layer_freq", MPK_KIND_COUNT, false, 1},
    NO_KEY(MPK_KEY_SPARSE_STEP, 1),
    NO_KEY(MPK_KEY_DENSE_LAYERS, 0),
    {MPK_KEY_LAYER_TYPES, "mlp_layer_types", MPK_KIND_TYPES, false, 0},
    {MPK_KEY_MTP, "num_nextn_predict_layers", MPK_KIND_COUNT0, false, 0},
    {MPK_KEY_EXPERTS, "num_experts", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_TOP_K, "num_experts_per_token", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_SHARED, "num_shared_experts", MPK_KIND_COUNT0, false, 0},
    {MPK_KEY_INTERMEDIATE, "moe_intermediate_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_LATENT, "routed_expert_hidden_size", MPK_KIND_COUNT, false, 0},
    {MPK_KEY_LATENT_NORM, "latent_moe_use_norm", MPK_KIND_BOOL, false, 0},
    {MPK_KEY_NORM_EPS, "rms_norm_eps", MPK_KIND_REAL, false, 0},
    {MPK_KEY_ACTIVATION, "hidden_act", MPK_KIND_NAME, true, 0},
    {MPK_KEY_SITU_BETA, "activation_situ_beta", MPK_KIND_REAL, false, 1.0},
    {MPK_KEY_SITU_LINEAR_BETA, "activation_situ_linear_beta", MPK_KIND_REAL, false, 0},
    {MPK_KEY_SCORE, "moe_router_activation_func", MPK_KIND_NAME, true, 0},
    {MPK_KEY_METHOD, "topk_method", MPK_KIND_NAME, false, MPK_METHOD_BIASED},
    {MPK_KEY_GROUPED, "use_grouped_topk", MPK_KIND_BOOL, false, 1},
    {MPK_KEY_GROUPS, "num_expert_group", MPK_KIND_COUNT, false, 1},
    {MPK_KEY_GROUPS_KEPT, "topk_group", MPK_KIND_COUNT, false, 1},
    {MPK_KEY_RENORMALIZE, "moe_renormalize", MPK_KIND_BOOL, true, 0},
    {MPK_KEY_SCALE, "routed_scaling_factor", MPK_KIND_REAL, true, 0},
};

static const mpk_family_name kimi_names[] = {
    {MPK_KEY_ACTIVATION, "situ", MOEPACK_ACT_SITU},    {MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SILU},
    {MPK_KEY_SCORE, "sigmoid", MOEPACK_SCORE_SIGMOID}, {MPK_KEY_SCORE, "softmax", MOEPACK_SCORE_SOFTMAX},
    {MPK_KEY_METHOD, "noaux_tc", MPK_METHOD_BIASED},
};

/* Text-only copies of K3 call themselves kimi_linear, like the smaller model whose configuration class they share. */
static const mpk_family_type kimi_k3_types[] = {
    {"kimi_k3", NULL, NULL},
    {"kimi_linear", "routed_expert_hidden_size", NULL},
    {"kimi_linear", "hidden_act", "situ"},
};

static const mpk_family_type kimi_linear_types[] = {
    {"kimi_linear", NULL, NULL},
};

#define KIMI_TABLES                                                                                         \
    .text_type = "kimi_linear", .prefixes = kimi_prefixes, .prefix_count = COUNT(kimi_prefixes),            \
    .expert_stem = "experts.", .forms = kimi_forms, .form_count = COUNT(kimi_forms), .roles = kimi_roles,   \
    .role_count = COUNT(kimi_roles), .keys = kimi_keys, .key_count = COUNT(kimi_keys), .names = kimi_names, \
    .name_count = COUNT(kimi_names), .renorm_eps = 1e-20, .router_dtype = MOEPACK_DTYPE_F32

const mpk_family mpk_family_kimi_k3 = {
    .name = "kimi_k3",
    .about = "Kimi K3: latent experts, SiTU",
    .tested = "layer goldens of a second implementation after the published code, on small checkpoints in the "
              "published layout",
    .types = kimi_k3_types,
    .type_count = COUNT(kimi_k3_types),
    KIMI_TABLES,
};

const mpk_family mpk_family_kimi_linear = {
    .name = "kimi_linear",
    .about = "Kimi Linear: SiLU experts at full width",
    .tested =
        "layer goldens of transformers 5.24.0 and of a gate after the published remote code (weight_from = biased)",
    .types = kimi_linear_types,
    .type_count = COUNT(kimi_linear_types),
    KIMI_TABLES,
};
