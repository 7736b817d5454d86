/* MiniMax-M2: sigmoid with a selection bias that lies beside the gate, not under it; weights divided by their plain
 * sum. */
#include "families_tables.h"

static const mpk_family_section bf16[] = {GATED(PLAIN_BF16, "w1", "w3", "w2")};

/* Releases are FP8 128x128, which any matrix in a tensor of its own may be (storage_forms.c). */
static const mpk_family_form forms[] = {
    {"bf16", NULL, COUNT(bf16), bf16},
};

static const mpk_family_role roles[] = {
    ROUTER("gate.weight"),
    {"e_score_correction_bias", MOEPACK_ROLE_ROUTER_BIAS, MPK_IF_BIASED, 1, {SIZE(MPK_E)}},
};

static const mpk_family_prefix prefixes[] = {{"model.layers.{layer}.block_sparse_moe.", MOEPACK_STACK_MAIN}};

static const mpk_family_key keys[] = {
    {MPK_KEY_HIDDEN, "hidden_size", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_LAYERS, "num_hidden_layers", MPK_KIND_COUNT, true, 0},
    NO_KEY(MPK_KEY_FIRST_DENSE, 0),
    NO_KEY(MPK_KEY_LAYER_STEP, 1),
    NO_KEY(MPK_KEY_SPARSE_STEP, 1),
    NO_KEY(MPK_KEY_DENSE_LAYERS, 0),
    NO_KEY(MPK_KEY_LAYER_TYPES, 0),
    NO_KEY(MPK_KEY_MTP, 0),
    {MPK_KEY_EXPERTS, "num_local_experts", MPK_KIND_COUNT, true, 0},
    {MPK_KEY_TOP_K, "num_experts_per_tok", MPK_KIND_COUNT, true, 0},
    NO_KEY(MPK_KEY_SHARED, 0),
    {MPK_KEY_INTERMEDIATE, "intermediate_size", MPK_KIND_COUNT, true, 0},
    NO_LATENT,
    {MPK_KEY_ACTIVATION, "hidden_act", MPK_KIND_NAME, true, 0},
    NO_SITU,
    {MPK_KEY_SCORE, "scoring_func", MPK_KIND_NAME, false, MOEPACK_SCORE_SIGMOID},
    NO_KEY(MPK_KEY_METHOD, MPK_METHOD_BIASED),
    NO_KEY(MPK_KEY_GROUPED, 0),
    NO_KEY(MPK_KEY_GROUPS, 1),
    NO_KEY(MPK_KEY_GROUPS_KEPT, 1),
    NO_KEY(MPK_KEY_RENORMALIZE, 1),
    NO_KEY(MPK_KEY_SCALE, 1),
};

static const mpk_family_name names[] = {
    {MPK_KEY_ACTIVATION, "silu", MOEPACK_ACT_SILU},
    {MPK_KEY_SCORE, "sigmoid", MOEPACK_SCORE_SIGMOID},
};

static const mpk_family_must musts[] = {{"use_routing_bias", "true"}, {"shared_intermediate_size", "0|null"}};
static const mpk_family_type types[] = {{"minimax_m2", NULL, NULL}};

const mpk_family mpk_family_minimax_m2 = {
    .name = "minimax_m2",
    .about = "MiniMax-M2, M2.1, M2.5: sigmoid, selection bias, renormalised",
    .tested = "layer goldens of transformers 5.24.0",
    OWN_TABLES,
    .text_type = "minimax_m2",
    .expert_stem = "experts.",
    .renorm_k1 = true,
    .router_dtype = MOEPACK_DTYPE_F32,
    .strict = true,
};
