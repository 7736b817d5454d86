/* Switch Transformers: an encoder and a decoder, one expert per token, experts with a limited capacity. */
#include "families_tables.h"

#define EXPERT(element, code, width)                                                               \
    {.pattern = "experts.expert_{expert}.wi.weight",                                               \
     .dtype = (element),                                                                           \
     .rank = 2,                                                                                    \
     .dims = {SIZE(MPK_I), SIZE(MPK_L)},                                                           \
     .matrix_count = 1,                                                                            \
     .matrices = {INSIDE(MOEPACK_ROLE_UP, code, width, MPK_I, MPK_L, ZERO, SIZE(MPK_L), NUM(1))}}, \
    {                                                                                              \
        .pattern = "experts.expert_{expert}.wo.weight", .dtype = (element), .rank = 2,             \
        .dims = {SIZE(MPK_L), SIZE(MPK_I)}, .matrix_count = 1, .matrices = {                       \
            INSIDE(MOEPACK_ROLE_DOWN, code, width, MPK_L, MPK_I, ZERO, SIZE(MPK_I), NUM(1))        \
        }                                                                                          \
    }

static const mpk_family_section bf16[] = {EXPERT(MOEPACK_DTYPE_BF16, MOEPACK_ENC_BF16, 16)};

static const mpk_family_form forms[] = {
    {"bf16", NULL, COUNT(bf16), bf16},
};

static const mpk_family_role roles[] = {ROUTER("router.classifier.weight")};

/* Dense layers have the same prefixes, and wi and wo right behind them. */
static const mpk_family_prefix prefixes[] = {
    {"encoder.block.{layer}.layer.1.mlp.", MOEPACK_STACK_ENCODER},
    {"decoder.block.{layer}.layer.2.mlp.", MOEPACK_STACK_DECODER},
};

static const mpk_family_key keys[] = {
    PLAIN_KEYS_BUT_K("d_model", "num_layers", "num_experts", MOEPACK_SCORE_SOFTMAX),
    NO_KEY(MPK_KEY_TOP_K, 1),
    NO_KEY(MPK_KEY_SPARSE_STEP, 1),
    NO_KEY(MPK_KEY_DENSE_LAYERS, 0),
    NO_KEY(MPK_KEY_SHARED, 0),
    {MPK_KEY_INTERMEDIATE, "d_ff", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_ACTIVATION, "dense_act_fn", MPK_KIND_NAME, false, MOEPACK_ACT_RELU},
    NO_KEY(MPK_KEY_RENORMALIZE, 0),
    {MPK_KEY_ENCODER_STEP, "encoder_sparse_step", MPK_KIND_COUNT0, true, 0},
    {MPK_KEY_DECODER_STEP, "decoder_sparse_step", MPK_KIND_COUNT0, true, 0},
    {MPK_KEY_DECODER_LAYERS, "num_decoder_layers", MPK_KIND_COUNT, false, 0},
};

static const mpk_family_name names[] = {{MPK_KEY_ACTIVATION, "relu", MOEPACK_ACT_RELU}};

/* Tokens beyond an expert's capacity, counted per sequence, come out as 0: `run --capacity config` does as the
 * published code does, and without it every token is computed. */
static const mpk_family_setting settings[] = {{"gated", "no"}, {"capacity", "per_sequence"}};
static const mpk_family_number numbers[] = {{"expert_capacity", "capacity_tokens", true}};
static const mpk_family_must musts[] = {
    {"num_selected_experts", "1"},
    {"is_gated_act", "false"},
    {"router_bias", "false"},
    {"router_type", "\"tokens_masked\""},
};
static const mpk_family_type types[] = {{"switch_transformers", NULL, NULL}};

const mpk_family mpk_family_switch = {
    .name = "switch_transformers",
    .about = "Switch Transformers: top 1 of a softmax, relu without a gate, capacity per sequence, encoder and decoder",
    .tested = "layer goldens of transformers 4.57.6 and 5.24.0",
    OWN_TABLES,
    .text_type = "switch_transformers",
    .expert_stem = "experts.",
    .settings = settings,
    .setting_count = COUNT(settings),
    .numbers = numbers,
    .number_count = COUNT(numbers),
    .router_dtype = MOEPACK_DTYPE_F32,
    .strict = true,
};
