/* DeepSeek-MoE 16B, V2 and V3 (with the models that reuse V3's layout), and GLM-4.5. One set of tensor names, four ways
 * to route. */
#include "families_tables.h"

static const mpk_family_section bf16[] = {GATED(PLAIN_BF16, "gate_proj", "up_proj", "down_proj")};

static const mpk_family_form forms[] = {
    {"bf16", NULL, COUNT(bf16), bf16},
};

/* The shared experts are one MLP of n_shared_experts times the width, whatever their number. */
static const mpk_family_role roles[] = {
    ROUTER("gate.weight"),
    {"gate.e_score_correction_bias", MOEPACK_ROLE_ROUTER_BIAS, MPK_IF_BIASED, 1, {SIZE(MPK_E)}},
    SHARED("shared_experts."),
};

/* Prediction layers have the same names, with numbers from num_hidden_layers on. */
static const mpk_family_prefix prefixes[] = {
    {"model.layers.{layer}.mlp.", MOEPACK_STACK_MAIN},
};

/* transformers has called the number of experts by each of these names. */
static const mpk_family_alias aliases[] = {
    {MPK_KEY_EXPERTS, "num_local_experts"},
    {MPK_KEY_EXPERTS, "num_experts"},
};

#define COMMON_KEYS                                                                                          \
    {MPK_KEY_HIDDEN, "hidden_size", MPK_KIND_COUNT, true, 0},                                                \
        {MPK_KEY_LAYERS, "num_hidden_layers", MPK_KIND_COUNT, true, 0},                                      \
        {MPK_KEY_FIRST_DENSE, "first_k_dense_replace", MPK_KIND_COUNT0, true, 0},                            \
        {MPK_KEY_LAYER_STEP, "moe_layer_freq", MPK_KIND_COUNT, false, 1}, NO_KEY(MPK_KEY_SPARSE_STEP, 1),    \
        NO_KEY(MPK_KEY_DENSE_LAYERS, 0), {MPK_KEY_LAYER_TYPES, "mlp_layer_types", MPK_KIND_TYPES, false, 0}, \
        {MPK_KEY_EXPERTS, "n_routed_experts", MPK_KIND_COUNT, true, 0},                                      \
        {MPK_KEY_TOP_K, "num_experts_per_tok", MPK_KIND_COUNT, true, 0},                                     \
        {MPK_KEY_SHARED, "n_shared_experts", MPK_KIND_COUNT0, false, 0},                                     \
        {MPK_KEY_INTERMEDIATE, "moe_intermediate_size", MPK_KIND_COUNT, true, 0}, NO_LATENT,                 \
        {MPK_KEY_ACTIVATION, "hidden_act", MPK_KIND_NAME, true, 0}, NO_SITU, NO_KEY(MPK_KEY_GROUPED, 1),     \
    {                                                                                                        \
        MPK_KEY_RENORMALIZE, "norm_topk_prob", MPK_KIND_BOOL, true, 0                                        \
    }

#define GROUP_KEYS                                                  \
    {MPK_KEY_GROUPS, "n_group", MPK_KIND_COUNT, false, 1},          \
    {                                                               \
        MPK_KEY_GROUPS_KEPT, "topk_group", MPK_KIND_COUNT, false, 1 \
    }

#define COMMON_TABLES(family_name)                                                                              \
    .text_type = family_name, .prefixes = prefixes, .prefix_count = COUNT(prefixes), .expert_stem = "experts.", \
    .forms = forms, .form_count = COUNT(forms), .roles = roles, .role_count = COUNT(roles), .aliases = aliases, \
    .alias_count = COUNT(aliases), .renorm_eps = 1e-20, .router_dtype = MOEPACK_DTYPE_F32, .strict = true

/* ------------------------------------------------------------------------------------------------ 16B */

/* The published code scales nothing: there is no routed_scaling_factor. */
static const mpk_family_key moe_16b_keys[] = {
    COMMON_KEYS,
    NO_KEY(MPK_KEY_MTP, 0),
    {MPK_KEY_SCORE, "scoring_func", MPK_KIND_NAME, false, MOEPACK_SCORE_SOFTMAX},
    {MPK_KEY_METHOD, "topk_method", MPK_KIND_NAME, false, MPK_METHOD_BEST},
    NO_KEY(MPK_KEY_GROUPS, 1),
    NO_KEY(MPK_KEY_GROUPS_KEPT, 1),
    NO_KEY(MPK_KEY_SCALE, 1),
};

static const mpk_family_name moe_16b_names[] = {
    {MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SILU},
    {MPK_KEY_SCORE, "softmax", MOEPACK_SCORE_SOFTMAX},
    {MPK_KEY_METHOD, "greedy", MPK_METHOD_BEST},
};

static const mpk_family_type moe_16b_types[] = {{"deepseek", NULL, NULL}};

const mpk_family mpk_family_deepseek = {
    .name = "deepseek",
    .about = "DeepSeek-MoE 16B: softmax, shared experts",
    .tested =
        "layer goldens of the DeepSeek-V2 module of transformers 5.24.0 (greedy, scale 1); the remote code was not run",
    .types = moe_16b_types,
    .type_count = COUNT(moe_16b_types),
    .keys = moe_16b_keys,
    .key_count = COUNT(moe_16b_keys),
    .names = moe_16b_names,
    .name_count = COUNT(moe_16b_names),
    COMMON_TABLES("deepseek"),
};

/* ------------------------------------------------------------------------------------------------ V2 */

static const mpk_family_key v2_keys[] = {
    COMMON_KEYS,
    GROUP_KEYS,
    NO_KEY(MPK_KEY_MTP, 0),
    {MPK_KEY_SCORE, "scoring_func", MPK_KIND_NAME, false, MOEPACK_SCORE_SOFTMAX},
    {MPK_KEY_METHOD, "topk_method", MPK_KIND_NAME, true, 0},
    {MPK_KEY_SCALE, "routed_scaling_factor", MPK_KIND_REAL, true, 0},
};

/* norm_topk_prob true means two different things: the remote code then renormalises instead of scaling, transformers
 * ignores it. No release has it. */
static const mpk_family_name v2_names[] = {
    {MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SILU},
    {MPK_KEY_SCORE, "softmax", MOEPACK_SCORE_SOFTMAX},
    {MPK_KEY_METHOD, "greedy", MPK_METHOD_BEST},
    {MPK_KEY_METHOD, "group_limited_greedy", MPK_METHOD_GROUP_MAX},
    {MPK_KEY_RENORMALIZE, "false", 0},
};

static const mpk_family_type v2_types[] = {{"deepseek_v2", NULL, NULL}};

const mpk_family mpk_family_deepseek_v2 = {
    .name = "deepseek_v2",
    .about = "DeepSeek-V2 and V2-Lite: softmax, groups by their best expert, shared experts",
    .tested = "layer goldens of transformers 5.24.0",
    .types = v2_types,
    .type_count = COUNT(v2_types),
    .keys = v2_keys,
    .key_count = COUNT(v2_keys),
    .names = v2_names,
    .name_count = COUNT(v2_names),
    COMMON_TABLES("deepseek_v2"),
};

/* ------------------------------------------------------------------------------------------------ V3, GLM-4.5 */

/* What transformers saves of V3, and every GLM, has no scoring_func and no topk_method: there is only one of each. */
#define BIASED_KEYS                                                                                \
    COMMON_KEYS, GROUP_KEYS, {MPK_KEY_MTP, "num_nextn_predict_layers", MPK_KIND_COUNT0, false, 0}, \
        {MPK_KEY_SCORE, "scoring_func", MPK_KIND_NAME, false, MOEPACK_SCORE_SIGMOID},              \
        {MPK_KEY_METHOD, "topk_method", MPK_KIND_NAME, false, MPK_METHOD_BIASED},                  \
    {                                                                                              \
        MPK_KEY_SCALE, "routed_scaling_factor", MPK_KIND_REAL, true, 0                             \
    }

static const mpk_family_key biased_keys[] = {BIASED_KEYS};

static const mpk_family_name biased_names[] = {
    {MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SILU},
    {MPK_KEY_SCORE, "sigmoid", MOEPACK_SCORE_SIGMOID},
    {MPK_KEY_METHOD, "noaux_tc", MPK_METHOD_BIASED},
};

static const mpk_family_type v3_types[] = {
    {"deepseek_v3", NULL, NULL},
    {"kimi_k2", NULL, NULL},
};

static const mpk_family_type glm4_types[] = {{"glm4_moe", NULL, NULL}};

const mpk_family mpk_family_deepseek_v3 = {
    .name = "deepseek_v3",
    .about = "DeepSeek-V3, R1, V3.1, Moonlight, Kimi K2 and K2-Thinking: sigmoid, selection bias, groups by two best, "
             "shared "
             "experts",
    .tested = "layer goldens of transformers 5.24.0 (groups masked with -inf), also with FP8 128x128 and int4 weights",
    .types = v3_types,
    .type_count = COUNT(v3_types),
    .keys = biased_keys,
    .key_count = COUNT(biased_keys),
    .names = biased_names,
    .name_count = COUNT(biased_names),
    .mtp_may_lack = true,
    COMMON_TABLES("deepseek_v3"),
};

const mpk_family mpk_family_glm4_moe = {
    .name = "glm4_moe",
    .about = "GLM-4.5, 4.6, 4.7: sigmoid, selection bias, shared expert",
    .tested = "layer goldens of transformers 5.24.0",
    .types = glm4_types,
    .type_count = COUNT(glm4_types),
    .keys = biased_keys,
    .key_count = COUNT(biased_keys),
    .names = biased_names,
    .name_count = COUNT(biased_names),
    .mtp_may_lack = true,
    COMMON_TABLES("glm4_moe"),
};
