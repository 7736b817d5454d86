/* config.json: every key's meaning, its default, and everything that must be refused. */
#include "test_source_files.h"

#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char base[] =
    "{\"model_type\":\"kimi_k3\",\"text_config\":{\"model_type\":\"kimi_linear\",\"hidden_size\":7168,"
    "\"num_hidden_layers\":93,\"first_k_dense_replace\":1,\"moe_layer_freq\":1,\"num_experts\":896,"
    "\"num_experts_per_token\":16,\"num_shared_experts\":2,\"moe_intermediate_size\":3072,"
    "\"routed_expert_hidden_size\":3584,\"latent_moe_use_norm\":true,\"rms_norm_eps\":1e-05,\"hidden_act\":\"situ\","
    "\"activation_situ_beta\":4.0,\"activation_situ_linear_beta\":25.0,\"moe_router_activation_func\":\"sigmoid\","
    "\"topk_method\":\"noaux_tc\",\"use_grouped_topk\":true,\"num_expert_group\":1,\"topk_group\":1,"
    "\"moe_renormalize\":true,\"routed_scaling_factor\":1.0,\"num_nextn_predict_layers\":0,"
    "\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-quantized\","
    "\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":4,\"group_size\":32}}},\"ignore\":[\"lm_head\"]}}}";

static moepack_error error;

/* Reads `base` with keys of its text_config replaced by those of `patch` (JSON; a value of "-" removes the key). */
static moepack_status read_with(const char *patch, mpk_config *out)
{
    json_t *root = json_loads(base, 0, NULL), *change = json_loads(patch, 0, NULL), *value;
    assert_non_null(root);
    assert_non_null(change);
    json_t *text = json_object_get(root, "text_config");
    const char *key;
    json_object_foreach(change, key, value)
    {
        if (json_is_string(value) && strcmp(json_string_value(value), "-") == 0)
            json_object_del(text, key);
        else
            json_object_set(text, key, value);
    }
    char *dump = json_dumps(root, JSON_COMPACT);
    memset(&error, 0, sizeof error);
    moepack_status status = mpk_config_read(dump, strlen(dump), "config.json", out, &error);
    free(dump);
    json_decref(root);
    json_decref(change);
    return status;
}

static mpk_config read_ok(const char *patch)
{
    mpk_config config;
    moepack_status status = read_with(patch, &config);
    if (status) print_message("%s\n", patch);
    expect_ok(status, &error);
    return config;
}

static void published_values(void **state)
{
    (void)state;
    mpk_config c = read_ok("{}");
    const moepack_policy *p = &c.policy;
    assert_string_equal(c.family->name, "kimi_k3");
    assert_string_equal(c.model_type, "kimi_k3");
    assert_string_equal(c.quant, "mxfp4-pack-quantized");
    assert_int_equal(c.stack[0].count, 93);
    assert_false(mpk_layers_is_moe(&c.stack[0], 0));
    assert_true(mpk_layers_is_moe(&c.stack[0], 1));
    assert_true(mpk_layers_is_moe(&c.stack[0], 92));
    assert_false(mpk_layers_is_moe(&c.stack[0], 93));
    assert_int_equal(c.size[MPK_E], 896);
    assert_int_equal(c.size[MPK_S], 6144);
    assert_int_equal(p->hidden, 7168);
    assert_int_equal(p->expert_input, 3584);
    assert_int_equal(p->intermediate, 3072);
    assert_int_equal(p->top_k, 16);
    assert_int_equal(p->score, MOEPACK_SCORE_SIGMOID);
    assert_int_equal(p->select, MOEPACK_SELECT_BIASED);
    assert_int_equal(p->weight_from, MOEPACK_WEIGHT_UNBIASED);
    assert_int_equal(p->renormalize, MOEPACK_RENORM_SUM_EPS);
    assert_true(p->renorm_eps == 1e-20);
    assert_int_equal(p->renorm_k1, 0);
    assert_true(p->scale == 1.0);
    assert_int_equal(p->scale_when, MOEPACK_SCALE_ALWAYS);
    assert_int_equal(p->groups, 1);
    assert_int_equal(p->groups_kept, 1);
    assert_int_equal(p->logit_bias, 0);
    assert_int_equal(p->activation, MOEPACK_ACT_SITU);
    assert_int_equal(p->gated, 1);
    assert_true(p->situ_beta == 4.0 && p->situ_linear_beta == 25.0);
    assert_int_equal(p->expert_bias, 0);
    assert_int_equal(p->latent, 1);
    assert_int_equal(p->latent_norm, 1);
    assert_true(p->norm_eps == 1e-5);
    assert_int_equal(p->shared_width, 6144);
    assert_int_equal(p->shared_gate, MOEPACK_SHARED_GATE_NONE);
    assert_int_equal(p->shared_activation, MOEPACK_ACT_SITU);
    assert_int_equal(p->weight_applied, MOEPACK_APPLY_OUTPUT);
    assert_int_equal(p->token_ids, 0);
    assert_int_equal(p->capacity, MOEPACK_CAPACITY_NONE);
    assert_int_equal(p->router_dtype, MOEPACK_DTYPE_F32);
}

static void optional_values(void **state)
{
    (void)state;
    assert_true(read_ok("{\"activation_situ_linear_beta\":null}").policy.situ_linear_beta == 0);
    assert_true(read_ok("{\"activation_situ_linear_beta\":\"-\"}").policy.situ_linear_beta == 0);
    assert_true(read_ok("{\"activation_situ_beta\":\"-\"}").policy.situ_beta == 1.0);
    assert_true(read_ok("{\"activation_situ_beta\":null}").policy.situ_beta == 1.0);
    assert_true(read_ok("{\"activation_situ_beta\":0}").policy.situ_beta == 1.0);
    assert_true(read_ok("{\"activation_situ_beta\":2}").policy.situ_beta == 2.0);

    mpk_config c = read_ok("{\"routed_expert_hidden_size\":null}");
    assert_int_equal(c.policy.latent, 0);
    assert_int_equal(c.policy.latent_norm, 0);
    assert_int_equal(c.policy.expert_input, 7168);
    assert_int_equal(read_ok("{\"routed_expert_hidden_size\":\"-\",\"rms_norm_eps\":\"-\"}").policy.latent, 0);
    c = read_ok("{\"latent_moe_use_norm\":false}");
    assert_int_equal(c.policy.latent, 1);
    assert_int_equal(c.policy.latent_norm, 0);
    assert_int_equal(read_ok("{\"latent_moe_use_norm\":\"-\"}").policy.latent_norm, 0);

    assert_int_equal(read_ok("{\"num_shared_experts\":0}").policy.shared_width, 0);
    assert_int_equal(read_ok("{\"num_shared_experts\":null}").policy.shared_width, 0);
    assert_int_equal(read_ok("{\"num_shared_experts\":\"-\"}").policy.shared_width, 0);
    assert_int_equal(read_ok("{\"moe_router_activation_func\":\"softmax\"}").policy.score, MOEPACK_SCORE_SOFTMAX);
    assert_int_equal(read_ok("{\"moe_renormalize\":false}").policy.renormalize, MOEPACK_RENORM_NONE);
    assert_true(read_ok("{\"routed_scaling_factor\":2.446}").policy.scale == 2.446);
    assert_true(read_ok("{\"routed_scaling_factor\":2}").policy.scale == 2.0);
    c = read_ok("{\"hidden_act\":\"silu\"}");
    assert_int_equal(c.policy.activation, MOEPACK_ACT_SILU);
    assert_int_equal(c.policy.shared_activation, MOEPACK_ACT_SILU);
    assert_string_equal(read_ok("{\"quantization_config\":\"-\"}").quant, "");
    assert_string_equal(read_ok("{\"quantization_config\":null}").quant, "");

    c = read_ok("{\"first_k_dense_replace\":3,\"moe_layer_freq\":2}");
    assert_false(mpk_layers_is_moe(&c.stack[0], 3));
    assert_true(mpk_layers_is_moe(&c.stack[0], 4));
    assert_false(mpk_layers_is_moe(&c.stack[0], 5));
    c = read_ok("{\"first_k_dense_replace\":\"-\",\"moe_layer_freq\":\"-\"}");
    assert_true(mpk_layers_is_moe(&c.stack[0], 0));
    assert_int_equal(read_ok("{\"num_nextn_predict_layers\":2}").stack[MOEPACK_STACK_MTP].count, 2);
}

static void groups_act_only_when_several_are_dropped(void **state)
{
    (void)state;
    static const struct {
        const char *patch;
        uint64_t groups, kept;
    } want[] = {
        {"{\"num_expert_group\":8,\"topk_group\":4}", 8, 4},
        {"{\"num_expert_group\":8,\"topk_group\":8}", 1, 1},
        {"{\"num_expert_group\":8,\"topk_group\":9}", 1, 1},
        {"{\"num_expert_group\":1,\"topk_group\":4}", 1, 1},
        {"{\"num_expert_group\":null,\"topk_group\":null}", 1, 1},
        {"{\"use_grouped_topk\":false}", 1, 1},
        {"{\"use_grouped_topk\":\"-\",\"topk_method\":\"-\",\"num_expert_group\":7,\"topk_group\":1}", 7, 1},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mpk_config c = read_ok(want[i].patch);
        assert_int_equal(c.policy.groups, want[i].groups);
        assert_int_equal(c.policy.groups_kept, want[i].kept);
        assert_int_equal(c.policy.group_score, MOEPACK_GROUP_TOP2_SUM);
        assert_int_equal(c.policy.group_mask, MOEPACK_MASK_NEG_INF);
    }
}

static void wrong_values_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *patch;
        moepack_status status;
        const char *part;
    } want[] = {
        {"{\"hidden_size\":\"-\"}", MOEPACK_E_INCOMPLETE, "key hidden_size is missing"},
        {"{\"num_hidden_layers\":\"-\"}", MOEPACK_E_INCOMPLETE, "num_hidden_layers"},
        {"{\"num_experts\":null}", MOEPACK_E_INCOMPLETE, "key num_experts is null"},
        {"{\"num_experts_per_token\":\"-\"}", MOEPACK_E_INCOMPLETE, "num_experts_per_token"},
        {"{\"moe_intermediate_size\":\"-\"}", MOEPACK_E_INCOMPLETE, "moe_intermediate_size"},
        {"{\"hidden_act\":\"-\"}", MOEPACK_E_INCOMPLETE, "hidden_act"},
        {"{\"moe_router_activation_func\":\"-\"}", MOEPACK_E_INCOMPLETE, "moe_router_activation_func"},
        {"{\"moe_renormalize\":\"-\"}", MOEPACK_E_INCOMPLETE, "moe_renormalize"},
        {"{\"routed_scaling_factor\":\"-\"}", MOEPACK_E_INCOMPLETE, "routed_scaling_factor"},
        {"{\"rms_norm_eps\":\"-\"}", MOEPACK_E_INCOMPLETE, "rms_norm_eps"},
        {"{\"hidden_size\":\"7168\"}", MOEPACK_E_CORRUPT, "hidden_size is \"7168\", not a positive integer"},
        {"{\"hidden_size\":7168.0}", MOEPACK_E_CORRUPT, "hidden_size is 7168.0"},
        {"{\"hidden_size\":0}", MOEPACK_E_CORRUPT, "hidden_size is 0"},
        {"{\"hidden_size\":-1}", MOEPACK_E_CORRUPT, "hidden_size is -1"},
        {"{\"hidden_size\":4294967296}", MOEPACK_E_CORRUPT, "hidden_size is 4294967296"},
        {"{\"num_experts\":[896]}", MOEPACK_E_CORRUPT, "num_experts is [896]"},
        {"{\"num_experts\":true}", MOEPACK_E_CORRUPT, "num_experts is true"},
        {"{\"routed_expert_hidden_size\":0}", MOEPACK_E_CORRUPT, "routed_expert_hidden_size is 0"},
        {"{\"routed_expert_hidden_size\":{}}", MOEPACK_E_CORRUPT, "routed_expert_hidden_size is {}"},
        {"{\"num_shared_experts\":-2}", MOEPACK_E_CORRUPT, "num_shared_experts is -2"},
        {"{\"moe_layer_freq\":0}", MOEPACK_E_CORRUPT, "moe_layer_freq is 0"},
        {"{\"moe_layer_freq\":[0,1]}", MOEPACK_E_CORRUPT, "moe_layer_freq is [0,1]"},
        {"{\"first_k_dense_replace\":-1}", MOEPACK_E_CORRUPT, "first_k_dense_replace is -1"},
        {"{\"latent_moe_use_norm\":1}", MOEPACK_E_CORRUPT, "latent_moe_use_norm is 1, not true or false"},
        {"{\"moe_renormalize\":\"true\"}", MOEPACK_E_CORRUPT, "moe_renormalize is \"true\""},
        {"{\"rms_norm_eps\":\"1e-5\"}", MOEPACK_E_CORRUPT, "rms_norm_eps"},
        {"{\"rms_norm_eps\":-1e-5}", MOEPACK_E_UNSUPPORTED, "rms_norm_eps is -1e-05"},
        {"{\"routed_scaling_factor\":\"1\"}", MOEPACK_E_CORRUPT, "routed_scaling_factor"},
        {"{\"hidden_act\":1}", MOEPACK_E_CORRUPT, "hidden_act is 1, not a string"},
        {"{\"hidden_act\":\"gelu\"}", MOEPACK_E_UNSUPPORTED, "hidden_act is \"gelu\"; known for kimi_k3: situ, silu"},
        {"{\"moe_router_activation_func\":\"relu\"}", MOEPACK_E_UNSUPPORTED, "sigmoid, softmax"},
        {"{\"topk_method\":\"greedy\"}", MOEPACK_E_UNSUPPORTED, "topk_method is \"greedy\""},
        {"{\"activation_situ_linear_beta\":0}", MOEPACK_E_UNSUPPORTED, "activation_situ_linear_beta is 0"},
        {"{\"activation_situ_linear_beta\":-1}", MOEPACK_E_UNSUPPORTED, "activation_situ_linear_beta is -1"},
        {"{\"activation_situ_beta\":-4}", MOEPACK_E_UNSUPPORTED, "activation_situ_beta is -4"},
        {"{\"activation_situ_beta\":\"4\"}", MOEPACK_E_CORRUPT, "activation_situ_beta"},
        {"{\"num_experts_per_token\":897}", MOEPACK_E_CORRUPT,
         "num_experts_per_token is 897, more than num_experts, which is 896"},
        {"{\"num_expert_group\":5,\"topk_group\":2}", MOEPACK_E_CORRUPT,
         "num_expert_group is 5, which does not divide"},
        {"{\"num_expert_group\":448,\"topk_group\":4}", MOEPACK_E_CORRUPT, "hold only 8 experts"},
        {"{\"num_expert_group\":8,\"topk_group\":4,\"use_grouped_topk\":false}", MOEPACK_E_UNSUPPORTED,
         "use_grouped_topk is false"},
        {"{\"num_expert_group\":8,\"topk_group\":0}", MOEPACK_E_CORRUPT, "topk_group is 0"},
        {"{\"first_k_dense_replace\":93}", MOEPACK_E_UNSUPPORTED, "no layer is a MoE block"},
        {"{\"moe_layer_freq\":100}", MOEPACK_E_UNSUPPORTED, "no layer is a MoE block"},
        {"{\"model_type\":\"qwen3_moe\"}", MOEPACK_E_UNSUPPORTED, "text_config.model_type is \"qwen3_moe\""},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mpk_config config;
        moepack_status status = read_with(want[i].patch, &config);
        if (status != want[i].status) print_message("%s\n", want[i].patch);
        expect_error(status, want[i].status, &error, want[i].part);
        expect_error(status, want[i].status, &error, "config.json: ");
    }
}

static void quantisation_must_be_known(void **state)
{
    (void)state;
#define QUANT(format, groups)                                                              \
    "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":" format \
    ",\"config_groups\":" groups "}}"
#define WEIGHTS(rest) QUANT("\"mxfp4-pack-quantized\"", "{\"g\":{\"weights\":{" rest "}}}")
    static const struct {
        const char *patch;
        moepack_status status;
        const char *part;
    } want[] = {
        {"{\"quantization_config\":[]}", MOEPACK_E_CORRUPT, "a list"},
        {"{\"quantization_config\":{}}", MOEPACK_E_UNSUPPORTED, "quant_method is missing"},
        {"{\"quantization_config\":{\"quant_method\":\"gptq\"}}", MOEPACK_E_UNSUPPORTED, "quant_method is \"gptq\""},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\"}}", MOEPACK_OK, ""},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}}", MOEPACK_E_UNSUPPORTED, "fmt"},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]}}", MOEPACK_E_UNSUPPORTED,
         "weight_block_size is [64,64]"},
        {"{\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"W4A8_AWQ\"}}", MOEPACK_E_UNSUPPORTED,
         "quant_algo"},
        {QUANT("\"int-quantized\"", "{}"), MOEPACK_E_UNSUPPORTED,
         "format is \"int-quantized\"; supported: mxfp4-pack-quantized"},
        {QUANT("\"pack-quantized\"", "{\"g\":{\"weights\":{\"num_bits\":8,\"group_size\":32}}}"), MOEPACK_E_UNSUPPORTED,
         "weights.num_bits is 8"},
        {QUANT("4", "{}"), MOEPACK_E_UNSUPPORTED, "format is 4"},
        {QUANT("\"mxfp4-pack-quantized\"", "{}"), MOEPACK_E_UNSUPPORTED, "config_groups is {}"},
        {QUANT("\"mxfp4-pack-quantized\"", "{\"g\":{}}"), MOEPACK_E_UNSUPPORTED, "config_groups.g.weights is missing"},
        {QUANT("\"mxfp4-pack-quantized\"", "{\"g\":{\"format\":\"int\",\"weights\":{}}}"), MOEPACK_E_UNSUPPORTED,
         "config_groups.g.format"},
        {WEIGHTS("\"num_bits\":8,\"group_size\":32"), MOEPACK_E_UNSUPPORTED, "weights.num_bits is 8; supported: 4"},
        {WEIGHTS("\"num_bits\":\"4\",\"group_size\":32"), MOEPACK_E_UNSUPPORTED, "weights.num_bits is \"4\""},
        {WEIGHTS("\"num_bits\":4"), MOEPACK_E_UNSUPPORTED, "weights.group_size is missing"},
        {WEIGHTS("\"num_bits\":4,\"group_size\":16"), MOEPACK_E_UNSUPPORTED, "weights.group_size is 16; supported: 32"},
        {WEIGHTS("\"num_bits\":4,\"group_size\":32,\"type\":\"int\""), MOEPACK_E_UNSUPPORTED,
         "weights.type is \"int\""},
        {WEIGHTS("\"num_bits\":4,\"group_size\":32,\"strategy\":\"channel\""), MOEPACK_E_UNSUPPORTED, "strategy"},
        {WEIGHTS("\"num_bits\":4,\"group_size\":32,\"symmetric\":false"), MOEPACK_E_UNSUPPORTED, "symmetric is false"},
        {WEIGHTS("\"num_bits\":4,\"group_size\":32,\"actorder\":\"group\""), MOEPACK_E_UNSUPPORTED, "actorder"},
        {WEIGHTS("\"num_bits\":4,\"group_size\":32,\"type\":\"float\",\"actorder\":null,\"symmetric\":true"),
         MOEPACK_OK, ""},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mpk_config config;
        moepack_status status = read_with(want[i].patch, &config);
        if (status != want[i].status) print_message("%s\n", want[i].patch);
        if (want[i].status == MOEPACK_OK)
            expect_ok(status, &error);
        else
            expect_error(status, want[i].status, &error, want[i].part);
    }
}

static void whole_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        moepack_status status;
        const char *part;
    } want[] = {
        {"", MOEPACK_E_CORRUPT, "not valid JSON"},
        {"[]", MOEPACK_E_CORRUPT, "a list, not an object"},
        {"7", MOEPACK_E_CORRUPT, "an integer"},
        {"{\"a\":1,\"a\":1}", MOEPACK_E_CORRUPT, "duplicate"},
        {"{\"a\":NaN}", MOEPACK_E_CORRUPT, "not valid JSON"},
        {"{}", MOEPACK_E_INCOMPLETE, "model_type is missing"},
        {"{\"model_type\":7}", MOEPACK_E_CORRUPT, "model_type is 7"},
        {"{\"model_type\":\"llama\"}", MOEPACK_E_UNSUPPORTED,
         "model_type \"llama\" is not known; known: kimi_k3, kimi_linear, deepseek, "},
        {"{\"model_type\":\"qwen3_vl_moe\"}", MOEPACK_E_UNSUPPORTED,
         "\"qwen3_vl_moe\" is not supported by this version: its experts are fused tensors"},
        {"{\"model_type\":\"kimi_k3\",\"text_config\":7}", MOEPACK_E_CORRUPT, "text_config is 7"},
        {"{\"model_type\":\"kimi_k3\"}", MOEPACK_E_INCOMPLETE, "hidden_size"},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mpk_config config;
        memset(&error, 0, sizeof error);
        moepack_status status = mpk_config_read(want[i].text, strlen(want[i].text), "config.json", &config, &error);
        expect_error(status, want[i].status, &error, want[i].part);
    }
}

static mpk_config read_file(const char *path)
{
    size_t size;
    char *text = read_text(in_dir(MOEPACK_FIXTURES, path), &size);
    mpk_config config;
    expect_ok(mpk_config_read(text, size, path, &config, &error), &error);
    free(text);
    return config;
}

static void published_layouts(void **state)
{
    (void)state;
    assert_int_equal(read_file("k3_tiny/checkpoint/config.json").size[MPK_E], 23);
    assert_int_equal(read_file("k3_quant/checkpoint/config.json").policy.top_k, 16);

    /* A text-only copy: what was nested is the whole config. */
    json_t *root = json_loads(base, 0, NULL);
    json_t *text = json_object_get(root, "text_config");
    static const char *const keep[] = {"both", "routed_expert_hidden_size", "hidden_act", "neither"};
    for (size_t i = 0; i < 4; i++) {
        json_t *copy = json_copy(text);
        if (i == 1 || i == 3) json_object_set_new(copy, "hidden_act", json_string("silu"));
        if (i == 2 || i == 3) json_object_set_new(copy, "routed_expert_hidden_size", json_null());
        char *dump = json_dumps(copy, JSON_COMPACT);
        mpk_config config;
        print_message("kimi_linear with %s\n", keep[i]);
        expect_ok(mpk_config_read(dump, strlen(dump), "config.json", &config, &error), &error);
        assert_string_equal(config.family->name, i == 3 ? "kimi_linear" : "kimi_k3");
        assert_string_equal(config.model_type, "kimi_linear");
        free(dump);
        json_decref(copy);
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values),
        cmocka_unit_test(optional_values),
        cmocka_unit_test(groups_act_only_when_several_are_dropped),
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(quantisation_must_be_known),
        cmocka_unit_test(whole_texts),
        cmocka_unit_test(published_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
