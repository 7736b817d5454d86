/* Kimi K3: tensors and config.json as published (names, dtypes, nesting, quantisation entry).
 *
 * Attention is a stand-in: a few tensors under published names, two heads of 16, because nothing here computes with it.
 */
#include "synth.h"

#define MODEL "language_model.model."
#define LAYER MODEL "layers.{layer}."
#define MOE LAYER "block_sparse_moe."

/* Rows of the table. Matrices: standard deviation `gain` / sqrt(cols), `spread` of the row scales (see mpk_synth_law).
 * Vectors: `centre` plus or minus `deviation`. */
#define MATRIX(at, name, rows, cols, gain, spread, need)                                              \
    {                                                                                                 \
        at, name, MPK_SYNTH_BF16, 2, MPK_SYNTH_##rows, MPK_SYNTH_##cols, 0.0, gain, spread, 0.0, need \
    }
#define VECTOR(at, name, store, cols, centre, deviation, need)                                             \
    {                                                                                                      \
        at, name, MPK_SYNTH_##store, 1, MPK_SYNTH_ONE, MPK_SYNTH_##cols, centre, deviation, 0.0, 0.0, need \
    }
#define PACKED(at, name, rows, cols, gain)                                                                        \
    {                                                                                                             \
        at, name, MPK_SYNTH_MXFP4, 2, MPK_SYNTH_##rows, MPK_SYNTH_##cols, 0.0, gain, 0.35, 0.17, MPK_SYNTH_ALWAYS \
    }

#define START MPK_SYNTH_AT_START
#define EVERY MPK_SYNTH_EVERY_LAYER
#define DENSE MPK_SYNTH_DENSE_LAYER
#define SPARSE MPK_SYNTH_MOE_LAYER
#define EXPERT MPK_SYNTH_EXPERT
#define END MPK_SYNTH_AT_END
#define ALWAYS MPK_SYNTH_ALWAYS
#define LATENT MPK_SYNTH_NEEDS_LATENT
#define SHARED MPK_SYNTH_NEEDS_SHARED

/* Gains follow from inputs of variance 1: gain 1 keeps it. The gate and up branches of experts are wider, so that the
 * activation is used over its whole range, and router logits get a deviation of 1.5. The selection bias lies near a
 * common offset, as training leaves it. */
/* clang-format off */
static const mpk_synth_tensor tensors[] = {
    MATRIX(START, MODEL "embed_tokens.weight", VOCAB, HIDDEN, 1.0, 0.2, ALWAYS),

    VECTOR(EVERY, LAYER "input_layernorm.weight", BF16, HIDDEN, 1.0, 0.1, ALWAYS),
    VECTOR(EVERY, LAYER "post_attention_layernorm.weight", BF16, HIDDEN, 1.0, 0.1, ALWAYS),
    MATRIX(EVERY, LAYER "self_attn.q_proj.weight", ATTENTION, HIDDEN, 1.0, 0.35, ALWAYS),
    MATRIX(EVERY, LAYER "self_attn.k_proj.weight", ATTENTION, HIDDEN, 1.0, 0.35, ALWAYS),
    MATRIX(EVERY, LAYER "self_attn.v_proj.weight", ATTENTION, HIDDEN, 1.0, 0.35, ALWAYS),
    VECTOR(EVERY, LAYER "self_attn.A_log", F32, HEADS, 1.5, 0.5, ALWAYS),
    VECTOR(EVERY, LAYER "self_attn.dt_bias", F32, ATTENTION, 0.0, 1.0, ALWAYS),
    MATRIX(EVERY, LAYER "self_attn.o_proj.weight", HIDDEN, ATTENTION, 1.0, 0.35, ALWAYS),

    MATRIX(DENSE, LAYER "mlp.gate_proj.weight", DENSE, HIDDEN, 1.0, 0.35, ALWAYS),
    MATRIX(DENSE, LAYER "mlp.up_proj.weight", DENSE, HIDDEN, 1.0, 0.35, ALWAYS),
    MATRIX(DENSE, LAYER "mlp.down_proj.weight", HIDDEN, DENSE, 1.0, 0.35, ALWAYS),

    MATRIX(SPARSE, MOE "gate.weight", EXPERTS, HIDDEN, 1.5, 0.22, ALWAYS),
    VECTOR(SPARSE, MOE "gate.e_score_correction_bias", F32, EXPERTS, 0.75, 0.02, ALWAYS),
    MATRIX(SPARSE, MOE "routed_expert_down_proj.weight", WIDTH, HIDDEN, 1.0, 0.35, LATENT),
    VECTOR(SPARSE, MOE "routed_expert_norm.weight", BF16, WIDTH, 1.0, 0.1, LATENT),
    MATRIX(SPARSE, MOE "routed_expert_up_proj.weight", HIDDEN, WIDTH, 1.0, 0.35, LATENT),
    MATRIX(SPARSE, MOE "shared_experts.gate_proj.weight", SHARED, HIDDEN, 1.5, 0.35, SHARED),
    MATRIX(SPARSE, MOE "shared_experts.up_proj.weight", SHARED, HIDDEN, 2.0, 0.35, SHARED),
    MATRIX(SPARSE, MOE "shared_experts.down_proj.weight", HIDDEN, SHARED, 0.5, 0.35, SHARED),

    PACKED(EXPERT, MOE "experts.{expert}.w1.weight", INTERMEDIATE, WIDTH, 1.5),
    PACKED(EXPERT, MOE "experts.{expert}.w2.weight", WIDTH, INTERMEDIATE, 1.0),
    PACKED(EXPERT, MOE "experts.{expert}.w3.weight", INTERMEDIATE, WIDTH, 2.5),

    VECTOR(END, MODEL "norm.weight", BF16, HIDDEN, 1.0, 0.1, ALWAYS),
    MATRIX(END, "language_model.lm_head.weight", VOCAB, HIDDEN, 1.0, 0.2, ALWAYS),
};
/* clang-format on */

/* ------------------------------------------------------------------------------------------------- config.json */

#define REAL(text) "real:" text

static json_t *quantization(void)
{
    json_t *weights =
        json_pack("{s:n, s:n, s:b, s:i, s:i, s:n, s:{}, s:s, s:s, s:b, s:s, s:n}", "actorder", "block_structure",
                  "dynamic", 0, "group_size", 32, "num_bits", 4, "observer", "observer_kwargs", "scale_dtype",
                  "torch.uint8", "strategy", "group", "symmetric", 1, "type", "float", "zp_dtype");
    json_t *group = json_pack("{s:s, s:n, s:n, s:[s], s:o}", "format", "mxfp4-pack-quantized", "input_activations",
                              "output_activations", "targets", "Linear", "weights", weights);
    return json_pack("{s:{s:o}, s:s, s:[s, s, s, s], s:n, s:s, s:s}", "config_groups", "group_0", group, "format",
                     "mxfp4-pack-quantized", "ignore", "re:.*self_attn.*", "re:.*shared_experts.*",
                     "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*", "kv_cache_scheme", "quant_method",
                     "compressed-tensors", "quantization_status", "compressed");
}

static json_t *linear_attention(const mpk_synth_geometry *g)
{
    json_t *layers = json_array();
    for (uint64_t n = 1; n <= g->layers; n++) json_array_append_new(layers, json_integer((json_int_t)n));
    return json_pack("{s:[], s:s, s:i, s:o, s:i, s:i}", "full_attn_layers", "gate_lower_bound", REAL("-5.0"),
                     "head_dim", MPK_SYNTH_HEAD_WIDTH, "kda_layers", layers, "num_heads", MPK_SYNTH_HEAD_COUNT,
                     "short_conv_kernel_size", 4);
}

static void set_u64(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

static json_t *text_config(const mpk_synth_geometry *g)
{
    json_t *c =
        json_pack("{s:s, s:s, s:[s], s:i, s:s, s:i, s:s, s:b, s:s, s:i, s:b, s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:b, "
                  "s:i, s:s, s:b}",
                  "activation_situ_beta", REAL("4.0"), "activation_situ_linear_beta", REAL("25.0"), "architectures",
                  "KimiLinearForCausalLM", "bos_token_id", 1, "dtype", "bfloat16", "eos_token_id", 2, "hidden_act",
                  "situ", "latent_moe_use_norm", 1, "model_type", "kimi_linear", "moe_layer_freq", 1, "moe_renormalize",
                  1, "moe_router_activation_func", "sigmoid", "num_attention_heads", MPK_SYNTH_HEAD_COUNT,
                  "num_expert_group", 1, "num_key_value_heads", MPK_SYNTH_HEAD_COUNT, "num_nextn_predict_layers", 0,
                  "rms_norm_eps", REAL("1e-05"), "routed_scaling_factor", REAL("1.0"), "tie_word_embeddings", 0,
                  "topk_group", 1, "topk_method", "noaux_tc", "use_grouped_topk", 1);
    if (c == NULL) return NULL;
    set_u64(c, "first_k_dense_replace", g->first_dense);
    set_u64(c, "hidden_size", g->hidden);
    set_u64(c, "intermediate_size", g->dense_intermediate);
    set_u64(c, "moe_intermediate_size", g->intermediate);
    set_u64(c, "num_experts", g->experts);
    set_u64(c, "num_experts_per_token", g->top_k);
    set_u64(c, "num_hidden_layers", g->layers);
    set_u64(c, "num_shared_experts", g->shared);
    set_u64(c, "vocab_size", g->vocab);
    json_object_set_new(c, "routed_expert_hidden_size",
                        g->latent == 0 ? json_null() : json_integer((json_int_t)g->latent));
    json_object_set_new(c, "linear_attn_config", linear_attention(g));
    json_object_set_new(c, "quantization_config", quantization());
    return c;
}

static json_t *config(const mpk_synth_geometry *g)
{
    return json_pack("{s:[s], s:i, s:s, s:i, s:s, s:i, s:o, s:b}", "architectures", "KimiK3ForConditionalGeneration",
                     "bos_token_id", 1, "dtype", "bfloat16", "eos_token_id", 2, "model_type", "kimi_k3", "pad_token_id",
                     0, "text_config", text_config(g), "tie_word_embeddings", 0);
}

const mpk_synth_family mpk_synth_kimi_k3 = {
    .name = "kimi_k3",
    .about = "Kimi K3: latent MoE, MXFP4 experts in the compressed-tensors layout",
    .tensors = tensors,
    .tensor_count = sizeof tensors / sizeof tensors[0],
    .config = config,
    .preset = "k3",
    /* The size of the vocabulary says nothing about the MoE layers; it is that of the predecessor, Kimi K2. */
    .published = {.hidden = 7168,
                  .latent = 3584,
                  .intermediate = 3072,
                  .experts = 896,
                  .top_k = 16,
                  .shared = 2,
                  .layers = 93,
                  .first_dense = 1,
                  .dense_intermediate = 33792,
                  .vocab = 163840},
    .small = {.hidden = 256,
              .latent = 128,
              .intermediate = 96,
              .experts = 32,
              .top_k = 4,
              .shared = 2,
              .layers = 3,
              .first_dense = 1,
              .dense_intermediate = 192,
              .vocab = 64},
};
