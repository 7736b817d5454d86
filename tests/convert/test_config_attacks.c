/* Attacks on the config of every family, driven by the family's own table: each key missing, null, of a wrong type, out
 * of range or with an unknown name. A family that is added is attacked without another line here but its fixture's
 * name. */
#include "test_source_files.h"

#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const fixtures[] = {
    "k3_tiny",
    "kimi_linear",
    "deepseek_moe_16b",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe",
    "mixtral",
    "qwen3_moe",
    "olmoe",
    "qwen2_moe",
    "qwen3_next",
    "qwen3_5_moe",
    "gpt_oss_bf16",
    "granitemoe",
    "llama4",
    "dbrx",
    "phimoe",
    "nemotron_h_latent",
    "deepseek_v4",
    "gpt_oss",
    "mixtral_tf5",
    "mixtral_tf5_fused",
    "nemotron_h_nano",
    "minimax_m2_fp8",
    "switch_transformers",
};

static moepack_error error;

static json_t *read_fixture(const char *name)
{
    char path[128];
    size_t size;
    snprintf(path, sizeof path, "%s/checkpoint/config.json", name);
    char *text = read_text(in_dir(MOEPACK_FIXTURES, path), &size);
    json_t *root = json_loadb(text, size, 0, NULL);
    assert_non_null(root);
    free(text);
    return root;
}

/* The object that holds the text model's keys. */
static json_t *text_of(json_t *root)
{
    json_t *nested = json_object_get(root, "text_config");
    return json_is_object(nested) ? nested : root;
}

/* Puts a value (stolen) at a dotted path, or removes what is there for NULL. */
static void put(json_t *object, const char *path, json_t *value)
{
    for (const char *dot; object && (dot = strchr(path, '.')); path = dot + 1)
        object = json_object_getn(object, path, (size_t)(dot - path));
    if (value)
        json_object_set_new(object, path, value);
    else
        json_object_del(object, path);
}

static moepack_status read_tree(const json_t *root, mpk_config *out)
{
    char *dump = json_dumps(root, JSON_COMPACT);
    memset(&error, 0, sizeof error);
    moepack_status status = mpk_config_read(dump, strlen(dump), "config.json", out, &error);
    free(dump);
    return status;
}

/* The fixture's config with one key of its text model replaced, under every name that the key has. */
static moepack_status read_changed(const char *fixture, const mpk_family *family, const mpk_family_key *key,
                                   const char *value)
{
    mpk_config config;
    json_t *root = read_fixture(fixture);
    for (uint32_t a = 0; a < family->alias_count; a++)
        if (family->aliases[a].key == key->key) put(text_of(root), family->aliases[a].name, NULL);
    put(text_of(root), key->name, value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL);
    moepack_status status = read_tree(root, &config);
    json_decref(root);
    return status;
}

/* The message must name file and key. */
static void expect_named(moepack_status found, moepack_status wanted, const char *fixture, const char *key,
                         const char *value)
{
    if (found != wanted) print_message("%s: %s = %s\n", fixture, key, value ? value : "(absent)");
    expect_error(found, wanted, &error, "config.json");
    expect_error(found, wanted, &error, key);
}

static void attack_key(const char *fixture, const mpk_family *family, const mpk_family_key *key)
{
    static const char *const wrong[MPK_KIND_PATTERN + 1][6] = {
        [MPK_KIND_COUNT] = {"0", "-1", "1.5", "\"3\"", "4294967295", "[]"},
        [MPK_KIND_COUNT0] = {"-1", "1.5", "\"3\"", "4294967295", "[]", "true"},
        [MPK_KIND_REAL] = {"\"2\"", "[]", "{}", "true"},
        [MPK_KIND_BOOL] = {"0", "1", "\"true\"", "[]"},
        [MPK_KIND_NAME] = {"0", "true", "[]", "{}"},
        [MPK_KIND_LAYERS] = {"1", "\"0\"", "[-1]", "[\"0\"]", "{}", "[0.5]"},
        [MPK_KIND_TYPES] = {"1", "\"moe\"", "[0]", "[[]]", "{}", "[null]"},
        [MPK_KIND_PATTERN] = {"1", "[]", "{}", "true"},
    };
    if (!key->name) return;
    if (key->required) {
        expect_named(read_changed(fixture, family, key, NULL), MOEPACK_E_INCOMPLETE, fixture, key->name, NULL);
        expect_named(read_changed(fixture, family, key, "null"), MOEPACK_E_INCOMPLETE, fixture, key->name, "null");
    }
    for (size_t i = 0; i < 6 && wrong[key->kind][i]; i++)
        expect_named(read_changed(fixture, family, key, wrong[key->kind][i]), MOEPACK_E_CORRUPT, fixture, key->name,
                     wrong[key->kind][i]);
    if (key->kind == MPK_KIND_NAME)
        expect_named(read_changed(fixture, family, key, "\"of no model\""), MOEPACK_E_UNSUPPORTED, fixture, key->name,
                     "\"of no model\"");
}

static void every_key_of_every_family(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof fixtures / sizeof fixtures[0]; f++) {
        json_t *root = read_fixture(fixtures[f]);
        mpk_config config;
        expect_ok(read_tree(root, &config), &error);
        json_decref(root);
        for (uint32_t k = 0; k < config.family->key_count; k++)
            attack_key(fixtures[f], config.family, &config.family->keys[k]);
    }
}

static void numbers_and_musts(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof fixtures / sizeof fixtures[0]; f++) {
        json_t *root = read_fixture(fixtures[f]);
        mpk_config config;
        expect_ok(read_tree(root, &config), &error);
        json_decref(root);
        const mpk_family *family = config.family;
        for (uint32_t i = 0; i < family->number_count; i++) {
            const mpk_family_key key = {MPK_KEY_COUNT, family->numbers[i].name, MPK_KIND_REAL, true, 0};
            expect_named(read_changed(fixtures[f], family, &key, "\"7\""), MOEPACK_E_CORRUPT, fixtures[f], key.name,
                         "\"7\"");
            if (family->numbers[i].required)
                expect_named(read_changed(fixtures[f], family, &key, NULL), MOEPACK_E_INCOMPLETE, fixtures[f], key.name,
                             NULL);
        }
        for (uint32_t i = 0; i < family->must_count; i++) {
            const mpk_family_key key = {MPK_KEY_COUNT, family->musts[i].name, MPK_KIND_REAL, true, 0};
            bool counted = false; /* a key with a meaning of its own is refused for its type first */
            for (uint32_t k = 0; k < family->key_count; k++)
                counted = counted || (family->keys[k].name && strcmp(family->keys[k].name, key.name) == 0);
            if (counted) continue;
            expect_named(read_changed(fixtures[f], family, &key, "[\"another\"]"), MOEPACK_E_UNSUPPORTED, fixtures[f],
                         key.name, "[\"another\"]");
        }
    }
}

/* More experts per token than experts; the key of either is named. */
static void too_many_selected(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof fixtures / sizeof fixtures[0]; f++) {
        json_t *root = read_fixture(fixtures[f]);
        mpk_config config;
        expect_ok(read_tree(root, &config), &error);
        json_decref(root);
        char k[24];
        snprintf(k, sizeof k, "%llu", (unsigned long long)config.size[MPK_E] + 1);
        for (uint32_t i = 0; i < config.family->key_count; i++) {
            const mpk_family_key *key = &config.family->keys[i];
            if (key->key != MPK_KEY_TOP_K || !key->name) continue;
            moepack_status status = read_changed(fixtures[f], config.family, key, k);
            /* Phi-3.5-MoE selects two or nothing that the record can say. */
            bool fixed = false;
            for (uint32_t m = 0; m < config.family->must_count; m++)
                fixed = fixed || strcmp(config.family->musts[m].name, key->name) == 0;
            if (!fixed || status != MOEPACK_E_UNSUPPORTED)
                expect_named(status, MOEPACK_E_CORRUPT, fixtures[f], key->name, k);
        }
    }
}

/* Whatever the values, the reader comes back with a verdict, and with a policy that passes its own check. */
static void any_value_anywhere(void **state)
{
    (void)state;
    static const char *const values[] = {"null",  "0",     "1",       "2",  "7",   "-3", "4294967294",
                                         "1e308", "-0.0",  "\"\"",    "[]", "[1]", "{}", "{\"name\":1}",
                                         "true",  "false", "\"silu\""};
    for (size_t f = 0; f < sizeof fixtures / sizeof fixtures[0]; f++) {
        json_t *whole = read_fixture(fixtures[f]);
        const char *name;
        json_t *ignored;
        json_object_foreach(text_of(whole), name, ignored)
        {
            for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
                mpk_config config;
                json_t *root = json_deep_copy(whole);
                put(text_of(root), name, json_loads(values[i], JSON_DECODE_ANY, NULL));
                moepack_status status = read_tree(root, &config);
                json_decref(root);
                if (status == MOEPACK_OK)
                    assert_int_equal(moepack_policy_check(&config.policy, config.size[MPK_E], &error), MOEPACK_OK);
                else
                    expect_error(status, status, &error, "config.json");
            }
        }
        json_decref(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_of_every_family),
        cmocka_unit_test(numbers_and_musts),
        cmocka_unit_test(too_many_selected),
        cmocka_unit_test(any_value_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
