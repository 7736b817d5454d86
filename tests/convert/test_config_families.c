/* config.json of the families beside Kimi: what each key does to the policy and to the choice of layers, and attacks.
 */
#include "test_source_files.h"

#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES "\"hidden_size\":64,\"num_hidden_layers\":6,\"hidden_act\":\"silu\","
#define DEEPSEEK                                                                                                  \
    SIZES "\"first_k_dense_replace\":1,\"n_routed_experts\":24,\"num_experts_per_tok\":4,\"n_shared_experts\":2," \
          "\"moe_intermediate_size\":16,"
#define GROUPS "\"n_group\":8,\"topk_group\":3,\"routed_scaling_factor\":2.5,"

typedef struct base {
    const char *name, *text;
} base;

static const base bases[] = {
    {"deepseek", "{\"model_type\":\"deepseek\"," DEEPSEEK "\"norm_topk_prob\":false}"},
    {"deepseek_v2", "{\"model_type\":\"deepseek_v2\"," DEEPSEEK GROUPS
                    "\"topk_method\":\"group_limited_greedy\",\"norm_topk_prob\":false}"},
    {"deepseek_v3", "{\"model_type\":\"deepseek_v3\"," DEEPSEEK GROUPS "\"norm_topk_prob\":true}"},
    {"glm4_moe",
     "{\"model_type\":\"glm4_moe\"," DEEPSEEK "\"n_group\":1,\"topk_group\":1,\"routed_scaling_factor\":2.5,"
     "\"norm_topk_prob\":true}"},
    {"mixtral", "{\"model_type\":\"mixtral\"," SIZES
                "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"intermediate_size\":96}"},
    {"qwen3_moe", "{\"model_type\":\"qwen3_moe\"," SIZES "\"num_experts\":16,\"num_experts_per_tok\":4,"
                  "\"moe_intermediate_size\":16,\"norm_topk_prob\":true}"},
    {"olmoe", "{\"model_type\":\"olmoe\"," SIZES "\"num_experts\":16,\"num_experts_per_tok\":4,"
              "\"intermediate_size\":16,\"norm_topk_prob\":false}"},
};

enum {
    DEEPSEEK_16B,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GLM4,
    MIXTRAL,
    QWEN3,
    OLMOE
};

static moepack_error error;

/* Reads a base with keys replaced by those of `patch` (JSON; a value of "-" removes the key). */
static moepack_status read_with(int which, const char *patch, mpk_config *out)
{
    json_t *root = json_loads(bases[which].text, 0, NULL), *change = json_loads(patch, 0, NULL), *value;
    assert_non_null(root);
    assert_non_null(change);
    const char *key;
    json_object_foreach(change, key, value)
    {
        if (json_is_string(value) && strcmp(json_string_value(value), "-") == 0)
            json_object_del(root, key);
        else
            json_object_set(root, key, value);
    }
    char *dump = json_dumps(root, JSON_COMPACT);
    memset(&error, 0, sizeof error);
    moepack_status status = mpk_config_read(dump, strlen(dump), "config.json", out, &error);
    free(dump);
    json_decref(root);
    json_decref(change);
    return status;
}

static mpk_config read_ok(int which, const char *patch)
{
    mpk_config config;
    moepack_status status = read_with(which, patch, &config);
    if (status) print_message("%s %s\n", bases[which].name, patch);
    expect_ok(status, &error);
    assert_string_equal(config.family->name, bases[which].name);
    return config;
}

static void policies(void **state)
{
    (void)state;
    static const struct {
        int which;
        uint64_t score, select, renormalize, renorm_k1, groups, kept, group_score, group_mask, shared, router;
        double scale;
    } want[] = {
        {DEEPSEEK_16B, MOEPACK_SCORE_SOFTMAX, MOEPACK_SELECT_SCORE, MOEPACK_RENORM_NONE, 0, 1, 1,
         MOEPACK_GROUP_TOP2_SUM, MOEPACK_MASK_NEG_INF, 32, MOEPACK_DTYPE_F32, 1},
        {DEEPSEEK_V2, MOEPACK_SCORE_SOFTMAX, MOEPACK_SELECT_SCORE, MOEPACK_RENORM_NONE, 0, 8, 3, MOEPACK_GROUP_MAX,
         MOEPACK_MASK_ZERO, 32, MOEPACK_DTYPE_F32, 2.5},
        {DEEPSEEK_V3, MOEPACK_SCORE_SIGMOID, MOEPACK_SELECT_BIASED, MOEPACK_RENORM_SUM_EPS, 0, 8, 3,
         MOEPACK_GROUP_TOP2_SUM, MOEPACK_MASK_NEG_INF, 32, MOEPACK_DTYPE_F32, 2.5},
        {GLM4, MOEPACK_SCORE_SIGMOID, MOEPACK_SELECT_BIASED, MOEPACK_RENORM_SUM_EPS, 0, 1, 1, MOEPACK_GROUP_TOP2_SUM,
         MOEPACK_MASK_NEG_INF, 32, MOEPACK_DTYPE_F32, 2.5},
        {MIXTRAL, MOEPACK_SCORE_SOFTMAX, MOEPACK_SELECT_SCORE, MOEPACK_RENORM_SUM, 1, 1, 1, MOEPACK_GROUP_TOP2_SUM,
         MOEPACK_MASK_NEG_INF, 0, MOEPACK_DTYPE_BF16, 1},
        {QWEN3, MOEPACK_SCORE_SOFTMAX, MOEPACK_SELECT_SCORE, MOEPACK_RENORM_SUM, 1, 1, 1, MOEPACK_GROUP_TOP2_SUM,
         MOEPACK_MASK_NEG_INF, 0, MOEPACK_DTYPE_BF16, 1},
        {OLMOE, MOEPACK_SCORE_SOFTMAX, MOEPACK_SELECT_SCORE, MOEPACK_RENORM_NONE, 1, 1, 1, MOEPACK_GROUP_TOP2_SUM,
         MOEPACK_MASK_NEG_INF, 0, MOEPACK_DTYPE_BF16, 1},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mpk_config c = read_ok(want[i].which, "{}");
        const moepack_policy *p = &c.policy;
        assert_int_equal(p->score, want[i].score);
        assert_int_equal(p->select, want[i].select);
        assert_int_equal(p->renormalize, want[i].renormalize);
        assert_int_equal(p->renorm_k1, want[i].renorm_k1);
        assert_true(p->renorm_eps == (p->router_dtype == MOEPACK_DTYPE_F32 ? 1e-20 : 0));
        assert_int_equal(p->groups, want[i].groups);
        assert_int_equal(p->groups_kept, want[i].kept);
        assert_int_equal(p->group_score, want[i].group_score);
        assert_int_equal(p->group_mask, want[i].group_mask);
        assert_int_equal(p->shared_width, want[i].shared);
        assert_int_equal(p->router_dtype, want[i].router);
        assert_true(p->scale == want[i].scale);
        assert_int_equal(p->scale_when, MOEPACK_SCALE_ALWAYS);
        assert_int_equal(p->weight_from, MOEPACK_WEIGHT_UNBIASED);
        assert_int_equal(p->activation, MOEPACK_ACT_SILU);
        assert_int_equal(p->latent, 0);
        assert_int_equal(p->expert_input, 64);
    }
}

static void keys_act(void **state)
{
    (void)state;
    assert_int_equal(read_ok(DEEPSEEK_16B, "{\"norm_topk_prob\":true}").policy.renormalize, MOEPACK_RENORM_SUM_EPS);
    assert_int_equal(read_ok(OLMOE, "{\"norm_topk_prob\":true}").policy.renormalize, MOEPACK_RENORM_SUM);
    assert_int_equal(read_ok(QWEN3, "{\"norm_topk_prob\":false}").policy.renormalize, MOEPACK_RENORM_NONE);
    assert_int_equal(read_ok(DEEPSEEK_V3, "{\"norm_topk_prob\":false}").policy.renormalize, MOEPACK_RENORM_NONE);
    assert_int_equal(read_ok(DEEPSEEK_V3, "{\"n_shared_experts\":null}").policy.shared_width, 0);
    assert_int_equal(read_ok(DEEPSEEK_V3, "{\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\"}").policy.groups,
                     8);
    assert_int_equal(read_ok(DEEPSEEK_V3, "{\"model_type\":\"kimi_k2\"}").policy.groups, 8);
    assert_int_equal(read_ok(DEEPSEEK_V3, "{\"n_group\":1,\"topk_group\":1}").policy.groups, 1);
    assert_int_equal(read_ok(DEEPSEEK_V3, "{\"topk_group\":8}").policy.groups, 1);
    assert_int_equal(read_ok(DEEPSEEK_V3, "{\"num_nextn_predict_layers\":1}").stack[MOEPACK_STACK_MTP].count, 1);
    /* Greedy ignores groups, also such as cannot be. */
    assert_int_equal(read_ok(DEEPSEEK_V2, "{\"topk_method\":\"greedy\"}").policy.groups, 1);
    assert_int_equal(read_ok(DEEPSEEK_V2, "{\"topk_method\":\"greedy\",\"n_group\":7}").policy.groups, 1);
    assert_int_equal(
        read_ok(DEEPSEEK_V2, "{\"topk_method\":\"greedy\",\"n_group\":null,\"topk_group\":null}").policy.groups, 1);
    assert_int_equal(read_ok(DEEPSEEK_V2, "{\"topk_method\":\"greedy\"}").policy.select, MOEPACK_SELECT_SCORE);
    /* A group of one expert has a best one. */
    assert_int_equal(read_ok(DEEPSEEK_V2, "{\"n_group\":24,\"topk_group\":6}").policy.groups, 24);
    /* Other spellings. */
    assert_int_equal(read_ok(DEEPSEEK_V3, "{\"n_routed_experts\":\"-\",\"num_local_experts\":48}").size[MPK_E], 48);
    assert_int_equal(read_ok(DEEPSEEK_V3, "{\"n_routed_experts\":null,\"num_experts\":48}").size[MPK_E], 48);
    assert_int_equal(read_ok(GLM4, "{\"num_experts\":24,\"num_local_experts\":24}").size[MPK_E], 24);
    assert_int_equal(read_ok(MIXTRAL, "{\"num_local_experts\":\"-\",\"num_experts\":9}").size[MPK_E], 9);
    assert_int_equal(read_ok(QWEN3, "{\"num_experts\":\"-\",\"num_local_experts\":32}").size[MPK_E], 32);
    assert_int_equal(read_ok(QWEN3, "{\"num_local_experts\":null}").size[MPK_E], 16);
    assert_int_equal(read_ok(QWEN3, "{\"shared_expert_intermediate_size\":0}").policy.shared_width, 0);
}

/* Layers 0..5 as a bit each. */
static unsigned moe_layers(int which, const char *patch)
{
    mpk_config c = read_ok(which, patch);
    unsigned bits = 0, count = 0;
    for (unsigned layer = 0; layer < c.stack[0].count; layer++) {
        if (!mpk_layers_is_moe(&c.stack[0], layer)) continue;
        bits |= 1u << layer;
        count++;
    }
    assert_int_equal(mpk_layers_moe_count(&c.stack[0]), count);
    assert_false(mpk_layers_is_moe(&c.stack[0], c.stack[0].count));
    for (unsigned layer = 0; layer < c.stack[0].count; layer++) {
        unsigned next = layer;
        while (next < c.stack[0].count && !(bits >> next & 1)) next++;
        assert_int_equal(mpk_layers_next(&c.stack[0], layer), next);
    }
    return bits;
}

static void layers(void **state)
{
    (void)state;
    assert_int_equal(moe_layers(MIXTRAL, "{}"), 0x3F);
    assert_int_equal(moe_layers(OLMOE, "{}"), 0x3F);
    assert_int_equal(moe_layers(DEEPSEEK_V3, "{}"), 0x3E);
    assert_int_equal(moe_layers(DEEPSEEK_V3, "{\"first_k_dense_replace\":0}"), 0x3F);
    assert_int_equal(moe_layers(DEEPSEEK_V3, "{\"moe_layer_freq\":2}"), 0x14);
    assert_int_equal(moe_layers(DEEPSEEK_V3, "{\"moe_layer_freq\":3,\"first_k_dense_replace\":0}"), 0x09);
    assert_int_equal(moe_layers(QWEN3, "{}"), 0x3F);
    assert_int_equal(moe_layers(QWEN3, "{\"decoder_sparse_step\":1}"), 0x3F);
    assert_int_equal(moe_layers(QWEN3, "{\"decoder_sparse_step\":2}"), 0x2A);
    assert_int_equal(moe_layers(QWEN3, "{\"decoder_sparse_step\":6}"), 0x20);
    assert_int_equal(moe_layers(QWEN3, "{\"mlp_only_layers\":[]}"), 0x3F);
    assert_int_equal(moe_layers(QWEN3, "{\"mlp_only_layers\":[0,5,2,2,99]}"), 0x1A);
    assert_int_equal(moe_layers(QWEN3, "{\"mlp_only_layers\":[1],\"decoder_sparse_step\":2}"), 0x28);
    assert_int_equal(
        moe_layers(GLM4, "{\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\",\"sparse\",\"sparse\",\"sparse\"]}"),
        0x3E);
    assert_int_equal(mpk_layers_moe_count(&(mpk_layers){.count = 4000000000u, .first_dense = 1, .step = 3}),
                     1333333333);
    mpk_config big = read_ok(QWEN3, "{\"num_hidden_layers\":4096,\"mlp_only_layers\":[4095]}");
    assert_int_equal(mpk_layers_moe_count(&big.stack[0]), 4095);
    assert_int_equal(mpk_layers_next(&big.stack[0], 4095), 4096);
}

static void wrong_values_are_named(void **state)
{
    (void)state;
    static const struct {
        int which;
        const char *patch;
        moepack_status status;
        const char *part;
    } want[] = {
        {DEEPSEEK_V3, "{\"scoring_func\":\"softmax\"}", MOEPACK_E_UNSUPPORTED,
         "scoring_func is \"softmax\"; known for deepseek_v3: sigmoid"},
        {DEEPSEEK_V3, "{\"topk_method\":\"greedy\"}", MOEPACK_E_UNSUPPORTED,
         "topk_method is \"greedy\"; known for deepseek_v3: noaux_tc"},
        {DEEPSEEK_V2, "{\"topk_method\":\"noaux_tc\"}", MOEPACK_E_UNSUPPORTED,
         "known for deepseek_v2: greedy, group_limited_greedy"},
        {DEEPSEEK_V2, "{\"topk_method\":\"-\"}", MOEPACK_E_INCOMPLETE, "key topk_method is missing"},
        {DEEPSEEK_V2, "{\"norm_topk_prob\":true}", MOEPACK_E_UNSUPPORTED,
         "norm_topk_prob is true; known for deepseek_v2: false"},
        {DEEPSEEK_V2, "{\"norm_topk_prob\":\"false\"}", MOEPACK_E_CORRUPT,
         "norm_topk_prob is \"false\", not true or false"},
        {DEEPSEEK_V2, "{\"scoring_func\":\"sigmoid\"}", MOEPACK_E_UNSUPPORTED, "scoring_func is \"sigmoid\""},
        {DEEPSEEK_16B, "{\"topk_method\":\"noaux_tc\"}", MOEPACK_E_UNSUPPORTED, "topk_method is \"noaux_tc\""},
        {DEEPSEEK_16B, "{\"norm_topk_prob\":null}", MOEPACK_E_INCOMPLETE, "key norm_topk_prob is null"},
        {DEEPSEEK_V3, "{\"n_group\":\"-\"}", MOEPACK_E_INCOMPLETE, "key n_group is missing"},
        {DEEPSEEK_V2, "{\"topk_group\":null}", MOEPACK_E_INCOMPLETE, "key topk_group is missing"},
        {DEEPSEEK_V3, "{\"topk_group\":9}", MOEPACK_E_CORRUPT, "topk_group is 9, more than n_group, which is 8"},
        {DEEPSEEK_V3, "{\"n_group\":7}", MOEPACK_E_CORRUPT, "n_group is 7, which does not divide n_routed_experts, 24"},
        {DEEPSEEK_V3, "{\"n_group\":7,\"topk_group\":7}", MOEPACK_E_CORRUPT, "n_group is 7, which does not divide"},
        {DEEPSEEK_V3, "{\"n_group\":24,\"topk_group\":6}", MOEPACK_E_CORRUPT, "groups of one expert"},
        {DEEPSEEK_V3, "{\"topk_group\":1}", MOEPACK_E_CORRUPT, "1 of 8 groups hold only 3 experts"},
        {DEEPSEEK_V3, "{\"topk_group\":0}", MOEPACK_E_CORRUPT, "topk_group is 0"},
        {DEEPSEEK_V3, "{\"num_experts_per_tok\":25}", MOEPACK_E_CORRUPT,
         "num_experts_per_tok is 25, more than n_routed_experts"},
        {DEEPSEEK_V3, "{\"num_experts\":25}", MOEPACK_E_CORRUPT, "n_routed_experts is 24, but num_experts is 25"},
        {DEEPSEEK_V3, "{\"num_local_experts\":\"24\"}", MOEPACK_E_CORRUPT,
         "n_routed_experts is 24, but num_local_experts is \"24\""},
        {DEEPSEEK_V3, "{\"n_routed_experts\":\"-\",\"num_experts\":0}", MOEPACK_E_CORRUPT,
         "num_experts is 0, not a positive"},
        {DEEPSEEK_V3, "{\"n_routed_experts\":\"-\",\"num_experts\":4,\"num_local_experts\":5}", MOEPACK_E_CORRUPT,
         "num_local_experts is 5, but num_experts is 4"},
        {DEEPSEEK_V3, "{\"n_routed_experts\":null}", MOEPACK_E_INCOMPLETE, "key n_routed_experts is null"},
        {DEEPSEEK_V3, "{\"moe_layer_freq\":[0,1,1,1,1,1]}", MOEPACK_E_CORRUPT,
         "moe_layer_freq is [0,1,1,1,1,1], not a positive integer"},
        {DEEPSEEK_V3, "{\"first_k_dense_replace\":\"-\"}", MOEPACK_E_INCOMPLETE, "first_k_dense_replace"},
        {DEEPSEEK_V3, "{\"first_k_dense_replace\":6}", MOEPACK_E_UNSUPPORTED,
         "no layer is a MoE block: num_hidden_layers 6, first_k_dense_replace 6"},
        {DEEPSEEK_V3, "{\"moe_layer_freq\":6}", MOEPACK_E_UNSUPPORTED, "no layer is a MoE block"},
        {DEEPSEEK_V3, "{\"routed_scaling_factor\":\"-\"}", MOEPACK_E_INCOMPLETE, "routed_scaling_factor"},
        {GLM4, "{\"scoring_func\":\"softmax\"}", MOEPACK_E_UNSUPPORTED, "known for glm4_moe: sigmoid"},
        {GLM4, "{\"mlp_layer_types\":[\"dense\",\"sparse\"]}", MOEPACK_E_CORRUPT,
         "mlp_layer_types has 2 entries, num_hidden_layers is 6"},
        {GLM4, "{\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\",\"dense\",\"sparse\",\"sparse\"]}",
         MOEPACK_E_CORRUPT, "mlp_layer_types makes layer 3 dense, against first_k_dense_replace 1"},
        {GLM4, "{\"mlp_layer_types\":[1]}", MOEPACK_E_CORRUPT, "not a list of types of layers"},
        {GLM4, "{\"mlp_layer_types\":[\"dense\",\"moe\",\"moe\",\"moe\",\"moe\",\"moe\"]}", MOEPACK_E_UNSUPPORTED,
         "mlp_layer_types has a layer of type \"moe\"; known for glm4_moe: dense, sparse"},
        {GLM4, "{\"mlp_layer_types\":\"sparse\"}", MOEPACK_E_CORRUPT, "mlp_layer_types is \"sparse\""},
        {GLM4, "{\"quantization_config\":{\"quant_method\":\"awq\"}}", MOEPACK_E_UNSUPPORTED,
         "quant_method is \"awq\"; supported: compressed-tensors, fp8"},
        {MIXTRAL, "{\"hidden_act\":\"gelu\"}", MOEPACK_E_UNSUPPORTED,
         "hidden_act is \"gelu\"; known for mixtral: silu"},
        {MIXTRAL, "{\"num_experts_per_tok\":9}", MOEPACK_E_CORRUPT,
         "num_experts_per_tok is 9, more than num_local_experts"},
        {MIXTRAL, "{\"num_experts\":4}", MOEPACK_E_CORRUPT, "num_local_experts is 8, but num_experts is 4"},
        {QWEN3, "{\"decoder_sparse_step\":0}", MOEPACK_E_CORRUPT, "decoder_sparse_step is 0, not a positive integer"},
        {QWEN3, "{\"decoder_sparse_step\":7}", MOEPACK_E_UNSUPPORTED,
         "no layer is a MoE block: num_hidden_layers 6, decoder_sparse_step 7"},
        {QWEN3, "{\"mlp_only_layers\":[0,1,2,3,4,5]}", MOEPACK_E_UNSUPPORTED, "no layer is a MoE block"},
        {QWEN3, "{\"mlp_only_layers\":[1,3,5],\"decoder_sparse_step\":2}", MOEPACK_E_UNSUPPORTED,
         "no layer is a MoE block"},
        {QWEN3, "{\"mlp_only_layers\":3}", MOEPACK_E_CORRUPT, "mlp_only_layers is 3, not a list of layers"},
        {QWEN3, "{\"mlp_only_layers\":[-1]}", MOEPACK_E_CORRUPT, "mlp_only_layers is [-1]"},
        {QWEN3, "{\"mlp_only_layers\":[true]}", MOEPACK_E_CORRUPT, "mlp_only_layers is [true]"},
        {QWEN3, "{\"mlp_only_layers\":{}}", MOEPACK_E_CORRUPT, "mlp_only_layers is {}"},
        {QWEN3, "{\"mlp_only_layers\":[1],\"num_hidden_layers\":4097}", MOEPACK_E_UNSUPPORTED,
         "configs that list layers may have 4096"},
        {QWEN3, "{\"shared_expert_intermediate_size\":512}", MOEPACK_E_UNSUPPORTED,
         "shared_expert_intermediate_size is 512; known for qwen3_moe: 0"},
        {QWEN3, "{\"norm_topk_prob\":\"-\"}", MOEPACK_E_INCOMPLETE, "norm_topk_prob"},
        {OLMOE, "{\"intermediate_size\":\"-\"}", MOEPACK_E_INCOMPLETE, "intermediate_size"},
        {OLMOE, "{\"norm_topk_prob\":0}", MOEPACK_E_CORRUPT, "norm_topk_prob is 0, not true or false"},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mpk_config config;
        moepack_status status = read_with(want[i].which, want[i].patch, &config);
        if (status != want[i].status) print_message("%s %s\n", bases[want[i].which].name, want[i].patch);
        expect_error(status, want[i].status, &error, want[i].part);
        expect_error(status, want[i].status, &error, "config.json: ");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policies),
        cmocka_unit_test(keys_act),
        cmocka_unit_test(layers),
        cmocka_unit_test(wrong_values_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
