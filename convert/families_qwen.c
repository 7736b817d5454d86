/* Qwen models with a shared expert behind a sigmoid gate: Qwen2-MoE, Qwen3-Next, Qwen3.5 and 3.6. */
#include "families_tables.h"

static const mpk_family_section bf16[] = {GATED(PLAIN_BF16, "gate_proj", "up_proj", "down_proj")};
static const mpk_family_section fused_bf16[] = {HALVES("experts.gate_up_proj", "experts.down_proj", BF16_ELEMENTS)};
static const mpk_family_section fused_f32[] = {HALVES("experts.gate_up_proj", "experts.down_proj", F32_ELEMENTS)};

/* Releases of Qwen2 and Qwen3-Next are per expert, those of 3.5 and 3.6 fused; transformers saves each either way. */
static const mpk_family_form forms[] = {
    {"bf16", NULL, COUNT(bf16), bf16},
    {"bf16-fused", NULL, COUNT(fused_bf16), fused_bf16},
    {"f32-fused", NULL, COUNT(fused_f32), fused_f32},
};

/* Singular: there is one shared expert, of its own width. Its gate is one logit per token. */
static const mpk_family_role roles[] = {
    ROUTER("gate.weight"),
    SHARED("shared_expert."),
    {"shared_expert_gate.weight", MOEPACK_ROLE_SHARED_ROUTER, MPK_IF_SHARED_GATED, 2, {NUM(1), SIZE(MPK_H)}},
};

static const mpk_family_setting settings[] = {{"shared_gate", "sigmoid"}};
static const mpk_family_name silu[] = {{MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SILU}};
static const mpk_family_alias aliases[] = {{MPK_KEY_EXPERTS, "num_local_experts"}};

static const mpk_family_prefix prefixes[] = {{"model.layers.{layer}.mlp.", MOEPACK_STACK_MAIN}};
static const mpk_family_prefix nested_prefixes[] = {
    {"model.language_model.layers.{layer}.mlp.", MOEPACK_STACK_MAIN},
    {"model.layers.{layer}.mlp.", MOEPACK_STACK_MAIN},
};

#define QWEN_KEYS                                                                                                      \
    PLAIN_KEYS("hidden_size", "num_hidden_layers", "num_experts", "num_experts_per_tok", MOEPACK_SCORE_SOFTMAX),       \
        NO_KEY(MPK_KEY_SHARED, 0), {MPK_KEY_SHARED_WIDTH, "shared_expert_intermediate_size", MPK_KIND_COUNT, true, 0}, \
        {MPK_KEY_INTERMEDIATE, "moe_intermediate_size", MPK_KIND_COUNT, true, 0},                                      \
        {MPK_KEY_ACTIVATION, "hidden_act", MPK_KIND_NAME, true, 0},                                                    \
        {MPK_KEY_SPARSE_STEP, "decoder_sparse_step", MPK_KIND_COUNT, false, 1},                                        \
    {                                                                                                                  \
        MPK_KEY_DENSE_LAYERS, "mlp_only_layers", MPK_KIND_LAYERS, false, 0                                             \
    }

/* Weights are divided by their plain sum. Logits come from the model's dtype. */
#define QWEN_TABLES                                                                                                    \
    .expert_stem = "experts.", .forms = forms, .form_count = COUNT(forms), .roles = roles, .role_count = COUNT(roles), \
    .names = silu, .name_count = COUNT(silu), .aliases = aliases, .alias_count = COUNT(aliases), .settings = settings, \
    .setting_count = COUNT(settings), .renorm_eps = 0, .renorm_k1 = true, .router_dtype = MOEPACK_DTYPE_BF16,          \
    .strict = true

static const mpk_family_key qwen2_keys[] = {
    QWEN_KEYS,
    {MPK_KEY_RENORMALIZE, "norm_topk_prob", MPK_KIND_BOOL, true, 0},
};

/* The configuration has no such key: weights are always divided by their sum. */
static const mpk_family_key qwen3_5_keys[] = {
    QWEN_KEYS,
    NO_KEY(MPK_KEY_RENORMALIZE, 1),
};

static const mpk_family_must qwen3_5_musts[] = {{"norm_topk_prob", "true"}};

static const mpk_family_type qwen2_types[] = {{"qwen2_moe", NULL, NULL}};
static const mpk_family_type qwen3_next_types[] = {{"qwen3_next", NULL, NULL}};
static const mpk_family_type qwen3_5_types[] = {{"qwen3_5_moe", NULL, NULL}, {"qwen3_5_moe_text", NULL, NULL}};

const mpk_family mpk_family_qwen2_moe = {
    .name = "qwen2_moe",
    .about = "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B: softmax, shared expert with a gate of its own",
    .tested = "layer goldens of transformers 5.24.0 and 4.57.6",
    .types = qwen2_types,
    .type_count = COUNT(qwen2_types),
    .text_type = "qwen2_moe",
    .prefixes = prefixes,
    .prefix_count = COUNT(prefixes),
    .keys = qwen2_keys,
    .key_count = COUNT(qwen2_keys),
    QWEN_TABLES,
};

const mpk_family mpk_family_qwen3_next = {
    .name = "qwen3_next",
    .about = "Qwen3-Next-80B-A3B: softmax, shared expert with a gate of its own",
    .tested = "layer goldens of transformers 5.24.0",
    .types = qwen3_next_types,
    .type_count = COUNT(qwen3_next_types),
    .text_type = "qwen3_next",
    .prefixes = prefixes,
    .prefix_count = COUNT(prefixes),
    .keys = qwen2_keys,
    .key_count = COUNT(qwen2_keys),
    QWEN_TABLES,
};

const mpk_family mpk_family_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .about = "Qwen3.5 and 3.6 MoE: softmax, renormalised, shared expert with a gate of its own, fused tensors",
    .tested = "layer goldens of transformers 5.24.0",
    .types = qwen3_5_types,
    .type_count = COUNT(qwen3_5_types),
    .text_type = "qwen3_5_moe_text",
    .prefixes = nested_prefixes,
    .prefix_count = COUNT(nested_prefixes),
    .keys = qwen3_5_keys,
    .key_count = COUNT(qwen3_5_keys),
    .musts = qwen3_5_musts,
    .must_count = COUNT(qwen3_5_musts),
    QWEN_TABLES,
};
