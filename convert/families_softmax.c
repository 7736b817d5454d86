/* Families that take the best of a softmax over all experts and have neither groups nor shared experts: Mixtral,
 * Qwen3-MoE, OLMoE. */
#include "families_tables.h"

#define SOFTMAX_KEYS                                                                                    \
    {MPK_KEY_HIDDEN, "hidden_size", MPK_KIND_COUNT, true, 0},                                           \
        {MPK_KEY_LAYERS, "num_hidden_layers", MPK_KIND_COUNT, true, 0}, NO_KEY(MPK_KEY_FIRST_DENSE, 0), \
        NO_KEY(MPK_KEY_LAYER_STEP, 1), NO_KEY(MPK_KEY_LAYER_TYPES, 0), NO_KEY(MPK_KEY_MTP, 0),          \
        {MPK_KEY_TOP_K, "num_experts_per_tok", MPK_KIND_COUNT, true, 0}, NO_LATENT,                     \
        {MPK_KEY_ACTIVATION, "hidden_act", MPK_KIND_NAME, true, 0}, NO_SITU,                            \
        NO_KEY(MPK_KEY_SCORE, MOEPACK_SCORE_SOFTMAX), NO_KEY(MPK_KEY_METHOD, MPK_METHOD_BEST),          \
        NO_KEY(MPK_KEY_GROUPED, 0), NO_KEY(MPK_KEY_GROUPS, 1), NO_KEY(MPK_KEY_GROUPS_KEPT, 1),          \
        NO_KEY(MPK_KEY_SCALE, 1)

static const mpk_family_role roles[] = {
    ROUTER("gate.weight"),
};

/* Logits come from the model's dtype, and weights are divided by their plain sum, also that of one expert. */
#define SOFTMAX_TABLES(family_name)                                                                                   \
    .text_type = family_name, .expert_stem = "experts.", .roles = roles, .role_count = COUNT(roles), .renorm_eps = 0, \
    .renorm_k1 = true, .router_dtype = MOEPACK_DTYPE_BF16, .strict = true

/* ------------------------------------------------------------------------------------------------ Mixtral */

static const mpk_family_section w_bf16[] = {GATED(PLAIN_BF16, "w1", "w3", "w2")};

/* What transformers 5 saves with save_original_format=False. */
static const mpk_family_section fused_bf16[] = {HALVES("experts.gate_up_proj", "experts.down_proj", BF16_ELEMENTS)};
static const mpk_family_section fused_f32[] = {HALVES("experts.gate_up_proj", "experts.down_proj", F32_ELEMENTS)};

static const mpk_family_form w_forms[] = {
    {"bf16", NULL, COUNT(w_bf16), w_bf16},
    {"bf16-fused", NULL, COUNT(fused_bf16), fused_bf16},
    {"f32-fused", NULL, COUNT(fused_f32), fused_f32},
};

/* The second is where transformers 5 puts fused experts. */
static const mpk_family_prefix mixtral_prefixes[] = {
    {"model.layers.{layer}.block_sparse_moe.", MOEPACK_STACK_MAIN},
    {"model.layers.{layer}.mlp.", MOEPACK_STACK_MAIN},
};

static const mpk_family_key mixtral_keys[] = {
    SOFTMAX_KEYS,
    NO_KEY(MPK_KEY_SPARSE_STEP, 1),
    NO_KEY(MPK_KEY_DENSE_LAYERS, 0),
    {MPK_KEY_EXPERTS, "num_local_experts", MPK_KIND_COUNT, true, 0},
    NO_KEY(MPK_KEY_SHARED, 0),
    {MPK_KEY_INTERMEDIATE, "intermediate_size", MPK_KIND_COUNT, true, 0},
    NO_KEY(MPK_KEY_RENORMALIZE, 1),
};

static const mpk_family_alias mixtral_aliases[] = {{MPK_KEY_EXPERTS, "num_experts"}};
static const mpk_family_name silu[] = {{MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SILU}};
static const mpk_family_type mixtral_types[] = {{"mixtral", NULL, NULL}};

const mpk_family mpk_family_mixtral = {
    .name = "mixtral",
    .about = "Mixtral 8x7B, 8x22B: softmax, renormalised",
    .tested = "layer goldens of transformers 4.57.6 and 5.24.0",
    .types = mixtral_types,
    .type_count = COUNT(mixtral_types),
    .prefixes = mixtral_prefixes,
    .prefix_count = COUNT(mixtral_prefixes),
    .forms = w_forms,
    .form_count = COUNT(w_forms),
    .keys = mixtral_keys,
    .key_count = COUNT(mixtral_keys),
    .names = silu,
    .name_count = COUNT(silu),
    .aliases = mixtral_aliases,
    .alias_count = COUNT(mixtral_aliases),
    SOFTMAX_TABLES("mixtral"),
};

/* ------------------------------------------------------------------------------------------------ Qwen3-MoE, OLMoE */

static const mpk_family_section proj_bf16[] = {GATED(PLAIN_BF16, "gate_proj", "up_proj", "down_proj")};

static const mpk_family_form proj_forms[] = {
    {"bf16", NULL, COUNT(proj_bf16), proj_bf16},
    {"bf16-fused", NULL, COUNT(fused_bf16), fused_bf16},
    {"f32-fused", NULL, COUNT(fused_f32), fused_f32},
};

static const mpk_family_prefix mlp_prefixes[] = {
    {"model.layers.{layer}.mlp.", MOEPACK_STACK_MAIN},
};

static const mpk_family_alias mlp_aliases[] = {{MPK_KEY_EXPERTS, "num_local_experts"}};

/* Some configs carry shared_expert_intermediate_size from Qwen2, as 0: there is no shared expert. */
static const mpk_family_key qwen3_keys[] = {
    SOFTMAX_KEYS,
    {MPK_KEY_SPARSE_STEP, "decoder_sparse_step", MPK_KIND_COUNT, false, 1},
    {MPK_KEY_DENSE_LAYERS, "mlp_only_layers", MPK_KIND_LAYERS, false, 0},
    {MPK_KEY_EXPERTS, "num_experts", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_SHARED, "shared_expert_intermediate_size", MPK_KIND_COUNT0, false, 0},
    {MPK_KEY_INTERMEDIATE, "moe_intermediate_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_RENORMALIZE, "norm_topk_prob", MPK_KIND_BOOL, true, 0},
};

static const mpk_family_name qwen3_names[] = {
    {MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SILU},
    {MPK_KEY_SHARED, "0", 0},
};

static const mpk_family_type qwen3_types[] = {{"qwen3_moe", NULL, NULL}};

const mpk_family mpk_family_qwen3_moe = {
    .name = "qwen3_moe",
    .about = "Qwen3-30B-A3B, 235B-A22B: softmax",
    .tested = "layer goldens of transformers 5.24.0",
    .types = qwen3_types,
    .type_count = COUNT(qwen3_types),
    .prefixes = mlp_prefixes,
    .prefix_count = COUNT(mlp_prefixes),
    .forms = proj_forms,
    .form_count = COUNT(proj_forms),
    .keys = qwen3_keys,
    .key_count = COUNT(qwen3_keys),
    .names = qwen3_names,
    .name_count = COUNT(qwen3_names),
    .aliases = mlp_aliases,
    .alias_count = COUNT(mlp_aliases),
    SOFTMAX_TABLES("qwen3_moe"),
};

static const mpk_family_key olmoe_keys[] = {
    SOFTMAX_KEYS,
    NO_KEY(MPK_KEY_SPARSE_STEP, 1),
    NO_KEY(MPK_KEY_DENSE_LAYERS, 0),
    {MPK_KEY_EXPERTS, "num_experts", MPK_KIND_COUNT, true, 0},
    NO_KEY(MPK_KEY_SHARED, 0),
    {MPK_KEY_INTERMEDIATE, "intermediate_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_RENORMALIZE, "norm_topk_prob", MPK_KIND_BOOL, true, 0},
};

static const mpk_family_type olmoe_types[] = {{"olmoe", NULL, NULL}};

const mpk_family mpk_family_olmoe = {
    .name = "olmoe",
    .about = "OLMoE: softmax",
    .tested = "layer goldens of transformers 5.24.0",
    .types = olmoe_types,
    .type_count = COUNT(olmoe_types),
    .prefixes = mlp_prefixes,
    .prefix_count = COUNT(mlp_prefixes),
    .forms = proj_forms,
    .form_count = COUNT(proj_forms),
    .keys = olmoe_keys,
    .key_count = COUNT(olmoe_keys),
    .names = silu,
    .name_count = COUNT(silu),
    .aliases = mlp_aliases,
    .alias_count = COUNT(mlp_aliases),
    SOFTMAX_TABLES("olmoe"),
};
