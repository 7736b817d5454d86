#include "test_source_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *text_config(bool quantised)
{
    json_t *text =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b}", "model_type", "kimi_linear", "hidden_size",
                  MODEL_H, "num_hidden_layers", MODEL_LAYERS, "first_k_dense_replace", 1, "moe_layer_freq", 1,
                  "num_experts", MODEL_E, "num_experts_per_token", MODEL_K, "num_shared_experts", MODEL_SHARED,
                  "moe_intermediate_size", MODEL_I, "routed_expert_hidden_size", MODEL_L, "latent_moe_use_norm", 1);
    json_t *rest = json_pack("{s:f, s:s, s:f, s:f, s:s, s:s, s:b, s:i, s:i, s:b, s:f, s:i}", "rms_norm_eps", 1e-5,
                             "hidden_act", "situ", "activation_situ_beta", 4.0, "activation_situ_linear_beta", 25.0,
                             "moe_router_activation_func", "sigmoid", "topk_method", "noaux_tc", "use_grouped_topk", 1,
                             "num_expert_group", 1, "topk_group", 1, "moe_renormalize", 1, "routed_scaling_factor", 1.0,
                             "num_nextn_predict_layers", 0);
    assert_non_null(text);
    assert_non_null(rest);
    json_object_update(text, rest);
    json_decref(rest);
    if (quantised) {
        json_t *quant =
            json_pack("{s:s, s:s, s:{s:{s:{s:i, s:i, s:s, s:s, s:b}}}, s:[s]}", "quant_method", "compressed-tensors",
                      "format", "mxfp4-pack-quantized", "config_groups", "group_0", "weights", "num_bits", 4,
                      "group_size", 32, "type", "float", "strategy", "group", "symmetric", 1, "ignore", "lm_head");
        assert_non_null(quant);
        json_object_set_new(text, "quantization_config", quant);
    }
    return text;
}

model_tensor *model_add(model *m, const char *name, const char *dtype, uint32_t rank, uint64_t a, uint64_t b, int shard)
{
    m->tensors = realloc(m->tensors, (m->count + 1) * sizeof *m->tensors);
    assert_non_null(m->tensors);
    model_tensor *t = &m->tensors[m->count++];
    *t = (model_tensor){.dtype = dtype, .rank = rank, .dims = {a, b}, .shard = shard, .listed = true};
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

static void add_in_block(model *m, int layer, const char *suffix, const char *dtype, uint32_t rank, uint64_t a,
                         uint64_t b)
{
    char name[160];
    snprintf(name, sizeof name, "%s%d.block_sparse_moe.%s", m->prefix, layer, suffix);
    model_add(m, name, dtype, rank, a, b, layer);
}

static void add_expert(model *m, int layer, int expert, const char *w, uint64_t out, uint64_t in)
{
    char suffix[96];
    if (m->bf16) {
        snprintf(suffix, sizeof suffix, "experts.%d.%s.weight", expert, w);
        add_in_block(m, layer, suffix, "BF16", 2, out, in);
        return;
    }
    snprintf(suffix, sizeof suffix, "experts.%d.%s.weight_packed", expert, w);
    add_in_block(m, layer, suffix, "U8", 2, out, in / 2);
    snprintf(suffix, sizeof suffix, "experts.%d.%s.weight_scale", expert, w);
    add_in_block(m, layer, suffix, "U8", 2, out, in / 32);
}

static void add_block(model *m, int layer)
{
    const uint64_t S = MODEL_SHARED * MODEL_I;
    /* Not in order of numbers, as published. */
    for (int i = 0; i < MODEL_E; i++) {
        int e = (i * 2 + 1) % MODEL_E;
        add_expert(m, layer, e, "w1", MODEL_I, MODEL_L);
        add_expert(m, layer, e, "w2", MODEL_L, MODEL_I);
        add_expert(m, layer, e, "w3", MODEL_I, MODEL_L);
    }
    add_in_block(m, layer, "gate.weight", "BF16", 2, MODEL_E, MODEL_H);
    add_in_block(m, layer, "gate.e_score_correction_bias", "F32", 1, MODEL_E, 0);
    add_in_block(m, layer, "routed_expert_down_proj.weight", "BF16", 2, MODEL_L, MODEL_H);
    add_in_block(m, layer, "routed_expert_norm.weight", "BF16", 1, MODEL_L, 0);
    add_in_block(m, layer, "routed_expert_up_proj.weight", "BF16", 2, MODEL_H, MODEL_L);
    add_in_block(m, layer, "shared_experts.gate_proj.weight", "BF16", 2, S, MODEL_H);
    add_in_block(m, layer, "shared_experts.up_proj.weight", "BF16", 2, S, MODEL_H);
    add_in_block(m, layer, "shared_experts.down_proj.weight", "BF16", 2, MODEL_H, S);
}

static model *make(bool bf16, bool text_only)
{
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->bf16 = bf16;
    m->prefix = text_only ? "model.layers." : "language_model.model.layers.";
    m->shards = 3;
    m->text = text_config(!bf16);
    m->config = text_only ? m->text : json_pack("{s:s, s:o}", "model_type", "kimi_k3", "text_config", m->text);
    model_add(m, "embed.weight", "BF16", 2, 16, MODEL_H, 1);
    model_add(m, "scalar", "F32", 0, 0, 0, 1);
    for (int layer = 1; layer < MODEL_LAYERS; layer++) add_block(m, layer);
    model_add(m, "head.weight", "BF16", 2, 16, MODEL_H, 3);
    return m;
}

model *model_new(void)
{
    return make(false, false);
}

model *model_new_bf16(void)
{
    return make(true, false);
}

model *model_new_text_only(void)
{
    return make(false, true);
}

void model_free(model *m)
{
    json_decref(m->config);
    json_decref(m->index);
    free(m->tensors);
    free(m);
}

model_tensor *model_find(model *m, int layer, const char *suffix)
{
    char name[160];
    snprintf(name, sizeof name, "%s%d.block_sparse_moe.%s", m->prefix, layer, suffix);
    for (size_t i = 0; i < m->count; i++) {
        if (strcmp(m->tensors[i].name, name) == 0) return &m->tensors[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

void model_remove(model *m, int layer, const char *suffix)
{
    model_tensor *t = model_find(m, layer, suffix);
    *t = m->tensors[--m->count];
}

void model_remove_matching(model *m, const char *part)
{
    size_t kept = 0;
    for (size_t i = 0; i < m->count; i++) {
        if (!strstr(m->tensors[i].name, part)) m->tensors[kept++] = m->tensors[i];
    }
    assert_int_not_equal(kept, m->count);
    m->count = kept;
}

void model_set(model *m, const char *key, json_t *value)
{
    if (value)
        json_object_set_new(m->text, key, value);
    else
        json_object_del(m->text, key);
}

static void shard_name(const model *m, int shard, char *buf, size_t size)
{
    if (m->no_index && m->shards == 1)
        snprintf(buf, size, "model.safetensors");
    else
        snprintf(buf, size, "model-%05d-of-%05d.safetensors", shard, m->shards);
}

static void write_shard(const model *m, const char *dir, int shard)
{
    char name[64];
    shard_name(m, shard, name, sizeof name);
    moepack_safetensors_writer *writer;
    moepack_error error;
    expect_ok(moepack_safetensors_create(in_dir(dir, name), true, &writer, &error), &error);
    for (size_t i = 0; i < m->count; i++) {
        const model_tensor *t = &m->tensors[i];
        if (t->shard != shard) continue;
        expect_ok(moepack_safetensors_add(writer, t->name, moepack_dtype_parse(t->dtype), t->rank, t->dims, &error),
                  &error);
    }
    for (size_t i = 0; i < m->count; i++) {
        const model_tensor *t = &m->tensors[i];
        if (t->shard != shard) continue;
        size_t bytes = moepack_dtype_bits(moepack_dtype_parse(t->dtype)) / 8;
        for (uint32_t d = 0; d < t->rank; d++) bytes *= (size_t)t->dims[d];
        uint8_t *data = malloc(bytes + 1);
        for (size_t b = 0; b < bytes; b++) data[b] = (uint8_t)(b % 251);
        expect_ok(moepack_safetensors_append(writer, data, bytes, &error), &error);
        free(data);
    }
    expect_ok(moepack_safetensors_finish(writer, &error), &error);
}

static json_t *make_index(const model *m)
{
    json_t *map = json_object();
    uint64_t total = 0;
    for (size_t i = 0; i < m->count; i++) {
        const model_tensor *t = &m->tensors[i];
        uint64_t bytes = moepack_dtype_bits(moepack_dtype_parse(t->dtype)) / 8;
        for (uint32_t d = 0; d < t->rank; d++) bytes *= t->dims[d];
        total += bytes;
        if (!t->listed) continue;
        char name[64];
        shard_name(m, t->listed_in ? t->listed_in : t->shard, name, sizeof name);
        json_object_set_new(map, t->name, json_string(name));
    }
    return json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
}

void model_write(const model *m, const char *dir)
{
    char *text = json_dumps(m->config, JSON_INDENT(2));
    write_text(in_dir(dir, "config.json"), text);
    free(text);
    for (int s = 1; s <= m->shards; s++) write_shard(m, dir, s);
    if (m->no_index) return;
    json_t *index = m->index ? json_incref(m->index) : make_index(m);
    text = json_dumps(index, JSON_INDENT(2));
    write_text(in_dir(dir, "model.safetensors.index.json"), text);
    free(text);
    json_decref(index);
}
