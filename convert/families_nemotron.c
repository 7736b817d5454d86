/* Nemotron-H: MoE blocks among attention and Mamba layers, experts without a gate, with or without a latent space. */
#include "families_tables.h"

#define UNGATED(type) type("up_proj", MOEPACK_ROLE_UP, MPK_I, MPK_L), type("down_proj", MOEPACK_ROLE_DOWN, MPK_L, MPK_I)

static const mpk_family_section bf16[] = {UNGATED(PLAIN_BF16)};

static const mpk_family_form forms[] = {
    {"bf16", NULL, COUNT(bf16), bf16},
};

/* There is no norm in the latent space. Shared experts see the full width. */
static const mpk_family_role roles[] = {
    ROUTER("gate.weight"),
    {"gate.e_score_correction_bias", MOEPACK_ROLE_ROUTER_BIAS, MPK_IF_BIASED, 1, {SIZE(MPK_E)}},
    {"fc1_latent_proj.weight", MOEPACK_ROLE_LATENT_DOWN, MPK_IF_LATENT, 2, {SIZE(MPK_L), SIZE(MPK_H)}},
    {"fc2_latent_proj.weight", MOEPACK_ROLE_LATENT_UP, MPK_IF_LATENT, 2, {SIZE(MPK_H), SIZE(MPK_L)}},
    {"shared_experts.up_proj.weight", MOEPACK_ROLE_SHARED_UP, MPK_IF_SHARED, 2, {SIZE(MPK_S), SIZE(MPK_H)}},
    {"shared_experts.down_proj.weight", MOEPACK_ROLE_SHARED_DOWN, MPK_IF_SHARED, 2, {SIZE(MPK_H), SIZE(MPK_S)}},
};

/* Layers of all kinds have this prefix. */
static const mpk_family_prefix prefixes[] = {
    {"backbone.layers.{layer}.mixer.", MOEPACK_STACK_MAIN},
    {"language_model.backbone.layers.{layer}.mixer.", MOEPACK_STACK_MAIN},
    {"model.layers.{layer}.mixer.", MOEPACK_STACK_MAIN},
};

static const mpk_family_key keys[] = {
    {MPK_KEY_HIDDEN, "hidden_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_LAYERS, "num_hidden_layers", MPK_KIND_COUNT, true, 0},
    NO_KEY(MPK_KEY_FIRST_DENSE, 0),
    NO_KEY(MPK_KEY_LAYER_STEP, 1),
    NO_KEY(MPK_KEY_SPARSE_STEP, 1),
    NO_KEY(MPK_KEY_DENSE_LAYERS, 0),
    {MPK_KEY_LAYER_TYPES, "layers_block_type", MPK_KIND_TYPES, false, 0},
    {MPK_KEY_PATTERN, "hybrid_override_pattern", MPK_KIND_PATTERN, false, 0},
    NO_KEY(MPK_KEY_MTP, 0),
    {MPK_KEY_EXPERTS, "n_routed_experts", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_TOP_K, "num_experts_per_tok", MPK_KIND_COUNT, true, 0},
    NO_KEY(MPK_KEY_SHARED, 0),
    {MPK_KEY_SHARED_WIDTH, "moe_shared_expert_intermediate_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_INTERMEDIATE, "moe_intermediate_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_LATENT, "moe_latent_size", MPK_KIND_COUNT, false, 0},
    NO_KEY(MPK_KEY_LATENT_NORM, 0),
    NO_KEY(MPK_KEY_NORM_EPS, 0),
    {MPK_KEY_ACTIVATION, "mlp_hidden_act", MPK_KIND_NAME, true, 0},
    NO_SITU,
    NO_KEY(MPK_KEY_SCORE, MOEPACK_SCORE_SIGMOID),
    NO_KEY(MPK_KEY_METHOD, MPK_METHOD_BIASED),
    NO_KEY(MPK_KEY_GROUPED, 1),
    {MPK_KEY_GROUPS, "n_group", MPK_KIND_COUNT, false, 1},
    {MPK_KEY_GROUPS_KEPT, "topk_group", MPK_KIND_COUNT, false, 1},
    {MPK_KEY_RENORMALIZE, "norm_topk_prob", MPK_KIND_BOOL, true, 0},
    {MPK_KEY_SCALE, "routed_scaling_factor", MPK_KIND_REAL, true, 0},
};

/* Letters of the releases' pattern; words of what transformers saves. */
static const mpk_family_name names[] = {
    {MPK_KEY_ACTIVATION, "relu2", MOEPACK_ACT_RELU2},
    {MPK_KEY_PATTERN, "E", MPK_LAYER_MOE},
    {MPK_KEY_PATTERN, "M", MPK_LAYER_DENSE},
    {MPK_KEY_PATTERN, "*", MPK_LAYER_DENSE},
    {MPK_KEY_PATTERN, "-", MPK_LAYER_DENSE},
    {MPK_KEY_LAYER_TYPES, "moe", MPK_LAYER_MOE},
    {MPK_KEY_LAYER_TYPES, "mlp", MPK_LAYER_DENSE},
    {MPK_KEY_LAYER_TYPES, "linear_attention", MPK_LAYER_DENSE},
    {MPK_KEY_LAYER_TYPES, "full_attention", MPK_LAYER_DENSE},
    {MPK_KEY_LAYER_TYPES, "mamba", MPK_LAYER_DENSE},
    {MPK_KEY_LAYER_TYPES, "attention", MPK_LAYER_DENSE},
};

static const mpk_family_setting settings[] = {{"gated", "no"}};
static const mpk_family_must musts[] = {{"n_shared_experts", "1"}, {"mlp_bias", "false"}};
static const mpk_family_type types[] = {{"nemotron_h", NULL, NULL}};

const mpk_family mpk_family_nemotron_h = {
    .name = "nemotron_h",
    .about =
        "Nemotron 3 Nano, Super, Ultra: sigmoid, selection bias, relu2 without a gate, with or without a latent space",
    .tested = "layer goldens of transformers 5.24.0",
    OWN_TABLES,
    .text_type = "nemotron_h",
    .expert_stem = "experts.",
    .settings = settings,
    .setting_count = COUNT(settings),
    .renorm_eps = 1e-20,
    .router_dtype = MOEPACK_DTYPE_F32,
    .strict = true,
};
