/* Families whose experts are published as one tensor of all experts: gpt-oss, Granite-MoE, Llama 4, DBRX; and
 * Phi-3.5-MoE, which is per expert. Nothing of their layouts can be told from shapes (gpt-oss: I = H, Llama 4: 2I = H
 * in small copies). */
#include "families_tables.h"

static const mpk_family_name silu[] = {{MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SILU}};

/* Every layer is a MoE block. */
#define ALL_LAYERS NO_KEY(MPK_KEY_SPARSE_STEP, 1), NO_KEY(MPK_KEY_DENSE_LAYERS, 0)

/* ------------------------------------------------------------------------------------------------ gpt-oss */

/* Biases of one expert. Those of gate and up are interleaved like the rows they belong to. */
#define VECTOR(role, base, step)                                                                                  \
    {                                                                                                             \
        (role), MOEPACK_PLANE_BIAS, MOEPACK_ENC_BF16, 16, 0, 0, SIZE(MPK_I), NUM(1), NUM(base), NUM(step), NUM(1) \
    }
#define OSS_BIASES                                                                                                 \
    {.pattern = "experts.gate_up_proj_bias",                                                                       \
     .dtype = MOEPACK_DTYPE_BF16,                                                                                  \
     .rank = 1,                                                                                                    \
     .dims = {TIMES(2, MPK_I)},                                                                                    \
     .matrix_count = 2,                                                                                            \
     .matrices = {VECTOR(MOEPACK_ROLE_GATE, 0, 2), VECTOR(MOEPACK_ROLE_UP, 1, 2)}},                                \
    {                                                                                                              \
        .pattern = "experts.down_proj_bias", .dtype = MOEPACK_DTYPE_BF16, .rank = 1, .dims = {SIZE(MPK_L)},        \
        .matrix_count = 1, .matrices = {                                                                           \
            {MOEPACK_ROLE_DOWN, MOEPACK_PLANE_BIAS, MOEPACK_ENC_BF16, 16, 0, 0, SIZE(MPK_L), NUM(1), ZERO, NUM(1), \
             NUM(1)}                                                                                               \
        }                                                                                                          \
    }

/* Codes and scales: rows of gate and up take turns; 32 columns of a row are 16 bytes, the even column in the low
 * nibble. */
#define OSS_CODES(role, base, step)                                                                                  \
    {                                                                                                                \
        (role), MOEPACK_PLANE_WEIGHT, MOEPACK_ENC_E2M1, 4, 0, 0, SIZE(MPK_I), SIZE(MPK_L), base, TIMES(step, MPK_L), \
            NUM(1)                                                                                                   \
    }
#define OSS_SCALES(role, base, div)                                                                                    \
    {                                                                                                                  \
        (role), MOEPACK_PLANE_SCALE, MOEPACK_ENC_E8M0, 8, 1, 32, SIZE(MPK_I), PART(MPK_L, 32), base, PART(MPK_L, div), \
            NUM(1)                                                                                                     \
    }

static const mpk_family_section oss_mxfp4[] = {
    {.pattern = "experts.gate_up_proj_blocks",
     .dtype = MOEPACK_DTYPE_U8,
     .rank = 3,
     .dims = {TIMES(2, MPK_I), PART(MPK_L, 32), NUM(16)},
     .matrix_count = 2,
     .matrices = {OSS_CODES(MOEPACK_ROLE_GATE, ZERO, 2), OSS_CODES(MOEPACK_ROLE_UP, SIZE(MPK_L), 2)}},
    {.pattern = "experts.gate_up_proj_scales",
     .dtype = MOEPACK_DTYPE_U8,
     .rank = 2,
     .dims = {TIMES(2, MPK_I), PART(MPK_L, 32)},
     .matrix_count = 2,
     .matrices = {OSS_SCALES(MOEPACK_ROLE_GATE, ZERO, 16), OSS_SCALES(MOEPACK_ROLE_UP, PART(MPK_L, 32), 16)}},
    {.pattern = "experts.down_proj_blocks",
     .dtype = MOEPACK_DTYPE_U8,
     .rank = 3,
     .dims = {SIZE(MPK_L), PART(MPK_I, 32), NUM(16)},
     .matrix_count = 1,
     .matrices = {{MOEPACK_ROLE_DOWN, MOEPACK_PLANE_WEIGHT, MOEPACK_ENC_E2M1, 4, 0, 0, SIZE(MPK_L), SIZE(MPK_I), ZERO,
                   SIZE(MPK_I), NUM(1)}}},
    {.pattern = "experts.down_proj_scales",
     .dtype = MOEPACK_DTYPE_U8,
     .rank = 2,
     .dims = {SIZE(MPK_L), PART(MPK_I, 32)},
     .matrix_count = 1,
     .matrices = {{MOEPACK_ROLE_DOWN, MOEPACK_PLANE_SCALE, MOEPACK_ENC_E8M0, 8, 1, 32, SIZE(MPK_L), PART(MPK_I, 32),
                   ZERO, PART(MPK_I, 32), NUM(1)}}},
    OSS_BIASES,
};

/* Re-uploads in BF16 are transposed against the release, and still interleaved. */
static const mpk_family_section oss_bf16[] = {
    TRANSPOSED("experts.gate_up_proj", "experts.down_proj", MPK_ONE, 2, BF16_ELEMENTS),
    OSS_BIASES,
};

static const mpk_family_form oss_forms[] = {
    {"mxfp4-blocks", "mxfp4", COUNT(oss_mxfp4), oss_mxfp4},
    {"bf16-fused", NULL, COUNT(oss_bf16), oss_bf16},
};

static const mpk_family_role oss_roles[] = {
    ROUTER("router.weight"),
    {"router.bias", MOEPACK_ROLE_LOGIT_BIAS, MPK_IF_LOGIT_BIAS, 1, {SIZE(MPK_E)}},
};

static const mpk_family_prefix oss_prefixes[] = {{"model.layers.{layer}.mlp.", MOEPACK_STACK_MAIN}};

static const mpk_family_key oss_keys[] = {
    PLAIN_KEYS("hidden_size", "num_hidden_layers", "num_local_experts", "num_experts_per_tok",
               MOEPACK_SCORE_SOFTMAX_SELECTED),
    ALL_LAYERS,
    NO_KEY(MPK_KEY_SHARED, 0),
    {MPK_KEY_INTERMEDIATE, "intermediate_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_ACTIVATION, "hidden_act", MPK_KIND_NAME, false, MOEPACK_ACT_SWIGLU_OAI},
    NO_KEY(MPK_KEY_RENORMALIZE, 0),
};

/* hidden_act says "silu"; the published code clamps, uses sigmoid(1.702 g) and adds 1 to the up branch. */
static const mpk_family_name oss_names[] = {{MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SWIGLU_OAI}};
static const mpk_family_alias oss_aliases[] = {{MPK_KEY_TOP_K, "experts_per_token"}};
static const mpk_family_setting oss_settings[] = {
    {"logit_bias", "yes"}, {"expert_bias", "yes"}, {"act_alpha", "1.702"}, {"act_limit", "7"}};
static const mpk_family_number oss_numbers[] = {
    {"swiglu_alpha", "act_alpha", false},
    {"swiglu_limit", "act_limit", false},
};
static const mpk_family_type oss_types[] = {{"gpt_oss", NULL, NULL}};

const mpk_family mpk_family_gpt_oss = {
    .name = "gpt_oss",
    .about = "gpt-oss 20b, 120b: softmax over the selected, biases, clamped SwiGLU, MXFP4 blocks or BF16",
    .tested = "layer goldens of transformers 5.24.0",
    .types = oss_types,
    .type_count = COUNT(oss_types),
    .text_type = "gpt_oss",
    .prefixes = oss_prefixes,
    .prefix_count = COUNT(oss_prefixes),
    .expert_stem = "experts.",
    .forms = oss_forms,
    .form_count = COUNT(oss_forms),
    .roles = oss_roles,
    .role_count = COUNT(oss_roles),
    .keys = oss_keys,
    .key_count = COUNT(oss_keys),
    .names = oss_names,
    .name_count = COUNT(oss_names),
    .aliases = oss_aliases,
    .alias_count = COUNT(oss_aliases),
    .settings = oss_settings,
    .setting_count = COUNT(oss_settings),
    .numbers = oss_numbers,
    .number_count = COUNT(oss_numbers),
    .router_dtype = MOEPACK_DTYPE_BF16,
    .strict = true,
};

/* ------------------------------------------------------------------------------------------------ Granite-MoE */

static const mpk_family_section granite_bf16[] = {HALVES("input_linear.weight", "output_linear.weight", BF16_ELEMENTS)};
static const mpk_family_section granite_f32[] = {HALVES("input_linear.weight", "output_linear.weight", F32_ELEMENTS)};

static const mpk_family_form granite_forms[] = {
    {"bf16-fused", NULL, COUNT(granite_bf16), granite_bf16},
    {"f32-fused", NULL, COUNT(granite_f32), granite_f32},
};

static const mpk_family_role granite_roles[] = {ROUTER("router.layer.weight")};
static const mpk_family_prefix granite_prefixes[] = {{"model.layers.{layer}.block_sparse_moe.", MOEPACK_STACK_MAIN}};

static const mpk_family_key granite_keys[] = {
    PLAIN_KEYS("hidden_size", "num_hidden_layers", "num_local_experts", "num_experts_per_tok",
               MOEPACK_SCORE_SOFTMAX_SELECTED),
    ALL_LAYERS,
    NO_KEY(MPK_KEY_SHARED, 0),
    {MPK_KEY_INTERMEDIATE, "intermediate_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_ACTIVATION, "hidden_act", MPK_KIND_NAME, true, 0},
    NO_KEY(MPK_KEY_RENORMALIZE, 0),
};

static const mpk_family_type granite_types[] = {{"granitemoe", NULL, NULL}};

const mpk_family mpk_family_granitemoe = {
    .name = "granitemoe",
    .about = "Granite 3 MoE: softmax over the selected, fused tensors",
    .tested = "layer goldens of transformers 5.24.0",
    .types = granite_types,
    .type_count = COUNT(granite_types),
    .text_type = "granitemoe",
    .prefixes = granite_prefixes,
    .prefix_count = COUNT(granite_prefixes),
    .forms = granite_forms,
    .form_count = COUNT(granite_forms),
    .roles = granite_roles,
    .role_count = COUNT(granite_roles),
    .keys = granite_keys,
    .key_count = COUNT(granite_keys),
    .names = silu,
    .name_count = COUNT(silu),
    .router_dtype = MOEPACK_DTYPE_BF16,
    .strict = true,
};

/* ------------------------------------------------------------------------------------------------ Llama 4 */

static const mpk_family_section llama4_bf16[] = {
    TRANSPOSED("experts.gate_up_proj", "experts.down_proj", MPK_I, 1, BF16_ELEMENTS)};
static const mpk_family_section llama4_f32[] = {
    TRANSPOSED("experts.gate_up_proj", "experts.down_proj", MPK_I, 1, F32_ELEMENTS)};

static const mpk_family_form llama4_forms[] = {
    {"bf16-fused", NULL, COUNT(llama4_bf16), llama4_bf16},
    {"f32-fused", NULL, COUNT(llama4_f32), llama4_f32},
};

static const mpk_family_role llama4_roles[] = {
    ROUTER("router.weight"),
    SHARED("shared_expert."),
};

/* Dense layers have the same prefix. */
static const mpk_family_prefix llama4_prefixes[] = {
    {"language_model.model.layers.{layer}.feed_forward.", MOEPACK_STACK_MAIN},
    {"model.layers.{layer}.feed_forward.", MOEPACK_STACK_MAIN},
};

static const mpk_family_key llama4_keys[] = {
    PLAIN_KEYS("hidden_size", "num_hidden_layers", "num_local_experts", "num_experts_per_tok",
               MOEPACK_SCORE_SIGMOID_SELECTED),
    {MPK_KEY_SPARSE_STEP, "interleave_moe_layer_step", MPK_KIND_COUNT, true, 1},
    NO_KEY(MPK_KEY_DENSE_LAYERS, 0),
    {MPK_KEY_MOE_LAYERS, "moe_layers", MPK_KIND_LAYERS, false, 0},
    NO_KEY(MPK_KEY_SHARED, 1),
    {MPK_KEY_INTERMEDIATE, "intermediate_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_ACTIVATION, "hidden_act", MPK_KIND_NAME, true, 0},
    NO_KEY(MPK_KEY_RENORMALIZE, 0),
};

/* The sigmoid of the selected logit multiplies the expert's input. */
static const mpk_family_setting llama4_settings[] = {{"weight_applied", "input"}};
static const mpk_family_type llama4_types[] = {{"llama4", NULL, NULL}, {"llama4_text", NULL, NULL}};

const mpk_family mpk_family_llama4 = {
    .name = "llama4",
    .about =
        "Llama 4 Scout, Maverick: sigmoid of the selected on the expert's input, shared expert, fused and transposed",
    .tested = "layer goldens of transformers 5.24.0",
    .types = llama4_types,
    .type_count = COUNT(llama4_types),
    .text_type = "llama4_text",
    .prefixes = llama4_prefixes,
    .prefix_count = COUNT(llama4_prefixes),
    .expert_stem = "experts.",
    .forms = llama4_forms,
    .form_count = COUNT(llama4_forms),
    .roles = llama4_roles,
    .role_count = COUNT(llama4_roles),
    .keys = llama4_keys,
    .key_count = COUNT(llama4_keys),
    .names = silu,
    .name_count = COUNT(silu),
    .settings = llama4_settings,
    .setting_count = COUNT(llama4_settings),
    .router_dtype = MOEPACK_DTYPE_BF16,
    .strict = true,
};

/* ------------------------------------------------------------------------------------------------ DBRX */

/* [E I, H] each: experts follow one another in the first dimension. w2 is stored like w1, so the down projection reads
 * it transposed. */
#define FLAT(which, role, element, code, width, out, in, row_stride, col_stride)         \
    {                                                                                    \
        .pattern = "experts.mlp." which, .flat = true, .dtype = (element), .rank = 2,    \
        .dims = {SIZE(MPK_I), SIZE(MPK_L)}, .matrix_count = 1, .matrices = {             \
            INSIDE(role, code, width, out, in, ZERO, SIZE(row_stride), SIZE(col_stride)) \
        }                                                                                \
    }
#define DBRX(type) DBRX_(type)
#define DBRX_(element, code, width)                                                      \
    FLAT("w1", MOEPACK_ROLE_GATE, element, code, width, MPK_I, MPK_L, MPK_L, MPK_ONE),   \
        FLAT("v1", MOEPACK_ROLE_UP, element, code, width, MPK_I, MPK_L, MPK_L, MPK_ONE), \
        FLAT("w2", MOEPACK_ROLE_DOWN, element, code, width, MPK_L, MPK_I, MPK_ONE, MPK_L)

static const mpk_family_section dbrx_bf16[] = {DBRX(BF16_ELEMENTS)};
static const mpk_family_section dbrx_f32[] = {DBRX(F32_ELEMENTS)};

static const mpk_family_form dbrx_forms[] = {
    {"bf16-flat", NULL, COUNT(dbrx_bf16), dbrx_bf16},
    {"f32-flat", NULL, COUNT(dbrx_f32), dbrx_f32},
};

static const mpk_family_role dbrx_roles[] = {ROUTER("router.layer.weight")};
static const mpk_family_prefix dbrx_prefixes[] = {{"transformer.blocks.{layer}.ffn.", MOEPACK_STACK_MAIN}};

static const mpk_family_key dbrx_keys[] = {
    PLAIN_KEYS("d_model", "n_layers", "ffn_config.moe_num_experts", "ffn_config.moe_top_k", MOEPACK_SCORE_SOFTMAX),
    ALL_LAYERS,
    NO_KEY(MPK_KEY_SHARED, 0),
    {MPK_KEY_INTERMEDIATE, "ffn_config.ffn_hidden_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_ACTIVATION, "ffn_config.ffn_act_fn.name", MPK_KIND_NAME, false, MOEPACK_ACT_SILU},
    NO_KEY(MPK_KEY_RENORMALIZE, 1),
};

/* The order of the norm that weights are divided by: 1 is their sum, and what an absent key means. */
static const mpk_family_must dbrx_musts[] = {{"ffn_config.moe_normalize_expert_weights", "1.0|1"}};
static const mpk_family_type dbrx_types[] = {{"dbrx", NULL, NULL}};

const mpk_family mpk_family_dbrx = {
    .name = "dbrx",
    .about = "DBRX: softmax, renormalised, experts one after the other in flat tensors",
    .tested = "layer goldens of transformers 5.24.0",
    .types = dbrx_types,
    .type_count = COUNT(dbrx_types),
    .text_type = "dbrx",
    .prefixes = dbrx_prefixes,
    .prefix_count = COUNT(dbrx_prefixes),
    .expert_stem = "experts.",
    .forms = dbrx_forms,
    .form_count = COUNT(dbrx_forms),
    .roles = dbrx_roles,
    .role_count = COUNT(dbrx_roles),
    .keys = dbrx_keys,
    .key_count = COUNT(dbrx_keys),
    .names = silu,
    .name_count = COUNT(silu),
    .musts = dbrx_musts,
    .must_count = COUNT(dbrx_musts),
    .renorm_k1 = true,
    .router_dtype = MOEPACK_DTYPE_BF16,
    .strict = true,
};

/* ------------------------------------------------------------------------------------------------ Phi-3.5-MoE */

static const mpk_family_section phi_bf16[] = {GATED(PLAIN_BF16, "w1", "w3", "w2")};

static const mpk_family_form phi_forms[] = {
    {"bf16", NULL, COUNT(phi_bf16), phi_bf16},
};

static const mpk_family_role phi_roles[] = {ROUTER("gate.weight")};

static const mpk_family_key phi_keys[] = {
    PLAIN_KEYS("hidden_size", "num_hidden_layers", "num_local_experts", "num_experts_per_tok",
               MOEPACK_SCORE_SPARSEMIXER),
    ALL_LAYERS,
    NO_KEY(MPK_KEY_SHARED, 0),
    {MPK_KEY_INTERMEDIATE, "intermediate_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_ACTIVATION, "hidden_act", MPK_KIND_NAME, true, 0},
    NO_KEY(MPK_KEY_RENORMALIZE, 0),
};

/* Named for what it does in training; at inference it is the width of the mask. */
static const mpk_family_number phi_numbers[] = {{"router_jitter_noise", "sparsemixer_eps", false}};
static const mpk_family_must phi_musts[] = {{"num_experts_per_tok", "2"}};
static const mpk_family_type phi_types[] = {{"phimoe", NULL, NULL}};

const mpk_family mpk_family_phimoe = {
    .name = "phimoe",
    .about = "Phi-3.5-MoE: sparsemixer",
    .tested = "layer goldens of transformers 5.24.0",
    .types = phi_types,
    .type_count = COUNT(phi_types),
    .text_type = "phimoe",
    .prefixes = granite_prefixes,
    .prefix_count = COUNT(granite_prefixes),
    .expert_stem = "experts.",
    .forms = phi_forms,
    .form_count = COUNT(phi_forms),
    .roles = phi_roles,
    .role_count = COUNT(phi_roles),
    .keys = phi_keys,
    .key_count = COUNT(phi_keys),
    .names = silu,
    .name_count = COUNT(silu),
    .numbers = phi_numbers,
    .number_count = COUNT(phi_numbers),
    .musts = phi_musts,
    .must_count = COUNT(phi_musts),
    .router_dtype = MOEPACK_DTYPE_BF16,
    .strict = true,
};
