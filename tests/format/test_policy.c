/* Policy records: defaults, text, checks, words, and the table of spec/container.md section 6 against the code. */
#include "sample.h"

#include "policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_defaults_are_valid(void **state)
{
    (void)state;
    moepack_policy p;
    moepack_error e;
    memset(&p, 0, sizeof p);
    assert_status(MOEPACK_E_USAGE, moepack_policy_check(&p, 8, &e), &e);
    moepack_policy_init(&p);
    assert_status(MOEPACK_OK, moepack_policy_check(&p, 8, &e), &e);
}

/* Every key: its value as text, set again, gives the same record. */
static void test_get_set_round_trip(void **state)
{
    (void)state;
    moepack_policy p, copy;
    moepack_error e;
    moepack_policy_init(&p);
    p.scale = 0.1;
    p.renorm_eps = 1e-20;
    p.act_alpha = 1.0 / 3;
    p.hidden = UINT64_MAX;
    p.activation = MOEPACK_ACT_SITU;
    p.latent = 1;
    memset(&copy, 0xff, sizeof copy);
    for (size_t i = 0; i < moepack_policy_key_count(); ++i) {
        const char *key;
        char value[64];
        assert_int_equal(moepack_policy_get(&p, i, &key, value, sizeof value), MOEPACK_OK);
        assert_status(MOEPACK_OK, moepack_policy_set(&copy, key, value, &e), &e);
    }
    assert_memory_equal(&p, &copy, sizeof p);
    const char *key;
    char value[64];
    assert_int_equal(moepack_policy_get(&p, moepack_policy_key_count(), &key, value, sizeof value), MOEPACK_E_USAGE);
}

static void test_set_refuses(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"nokey", "1"},       {"top_k", "-1"}, {"top_k", ""},    {"top_k", "4x"},   {"top_k", "18446744073709551616"},
        {"score", "Sigmoid"}, {"score", "1"},  {"scale", "nan"}, {"scale", "inf"},  {"scale", "1e999"},
        {"scale", "0x10"},    {"scale", ""},   {"gated", "2"},   {"gated", "true"}, {"router_dtype", "I32"},
    };
    moepack_policy p, before;
    moepack_error e;
    moepack_policy_init(&p);
    before = p;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        assert_status(MOEPACK_E_USAGE, moepack_policy_set(&p, wrong[i][0], wrong[i][1], &e), &e);
        assert_memory_equal(&p, &before, sizeof p);
    }
    assert_status(MOEPACK_E_USAGE, moepack_policy_set(&p, "weight_from", "both", &e), &e);
    assert_non_null(strstr(e.message, "unbiased, biased"));
    assert_status(MOEPACK_OK, moepack_policy_set(&p, "weight_from", "biased", &e), &e);
    assert_int_equal(p.weight_from, MOEPACK_WEIGHT_BIASED);
    assert_status(MOEPACK_OK, moepack_policy_set(&p, "renorm_k1", "1", &e), &e);
    assert_int_equal(p.renorm_k1, 1);
}

static void test_check(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        uint64_t experts;
        moepack_status status;
    } cases[] = {
        {"top_k", "8", 8, MOEPACK_OK},
        {"top_k", "9", 8, MOEPACK_E_USAGE},
        {"top_k", "0", 8, MOEPACK_E_USAGE},
        {"top_k", "1", 0, MOEPACK_E_USAGE},
        {"groups", "0", 8, MOEPACK_E_USAGE},
        {"groups", "3", 8, MOEPACK_E_USAGE},
        {"groups", "4", 8, MOEPACK_OK},
        {"groups_kept", "2", 8, MOEPACK_E_USAGE},
        {"groups_kept", "0", 8, MOEPACK_E_USAGE},
        {"situ_beta", "0", 8, MOEPACK_E_USAGE},
        {"situ_beta", "-1", 8, MOEPACK_E_USAGE},
        {"situ_beta", "1e308", 8, MOEPACK_E_USAGE},
        {"situ_beta", "1e-50", 8, MOEPACK_E_USAGE},
        {"scale", "1e300", 8, MOEPACK_E_USAGE},
        {"scale", "-1e300", 8, MOEPACK_E_USAGE},
        {"scale", "-2", 8, MOEPACK_OK},
        {"scale", "3.4028234663852886e38", 8, MOEPACK_OK}, /* the largest F32 */
        {"scale", "3.4028236e38", 8, MOEPACK_E_USAGE},     /* rounds to infinity */
        {"act_alpha", "-1", 8, MOEPACK_OK},
        {"norm_eps", "-1", 8, MOEPACK_E_USAGE},
        {"norm_eps", "0", 8, MOEPACK_OK},
        {"renorm_eps", "-1e-20", 8, MOEPACK_E_USAGE},
        {"act_limit", "-7", 8, MOEPACK_E_USAGE},
        {"shared_act_limit", "-7", 8, MOEPACK_E_USAGE},
        {"situ_linear_beta", "-25", 8, MOEPACK_E_USAGE},
        {"sparsemixer_eps", "-0.01", 8, MOEPACK_E_USAGE},
        {"hidden", "7", 8, MOEPACK_E_USAGE},
        {"latent", "yes", 8, MOEPACK_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        moepack_policy p;
        moepack_error e;
        moepack_policy_init(&p);
        assert_status(MOEPACK_OK, moepack_policy_set(&p, cases[i].key, cases[i].value, &e), &e);
        assert_status(cases[i].status, moepack_policy_check(&p, cases[i].experts, &e), &e);
    }
    moepack_policy p;
    moepack_policy_init(&p);
    p.groups = 4;
    p.groups_kept = 2;
    p.top_k = 4;
    assert_int_equal(moepack_policy_check(&p, 8, NULL), MOEPACK_OK);
    p.top_k = 5; /* two groups of two */
    assert_int_equal(moepack_policy_check(&p, 8, NULL), MOEPACK_E_USAGE);
    p.top_k = 4;
    p.scale = 1.0 / 0.0;
    assert_int_equal(moepack_policy_check(&p, 8, NULL), MOEPACK_E_USAGE);
    p.scale = 1;
    moepack_error e;
    p.norm_eps = -0.5; /* key and value are named */
    assert_status(MOEPACK_E_USAGE, moepack_policy_check(&p, 8, &e), &e);
    assert_non_null(strstr(e.message, "norm_eps is -0.5"));
    p.norm_eps = 1e300;
    assert_status(MOEPACK_E_USAGE, moepack_policy_check(&p, 8, &e), &e);
    assert_non_null(strstr(e.message, "norm_eps is 1e+300"));
    p.norm_eps = 1e-5;
    p.score = 77;
    assert_int_equal(moepack_policy_check(&p, 8, NULL), MOEPACK_E_USAGE);
}

static void test_describe(void **state)
{
    (void)state;
    moepack_policy p;
    char text[2000], again[2000];
    moepack_policy_init(&p);
    p.hidden = 7168;
    p.expert_input = 3584;
    p.intermediate = 3072;
    p.top_k = 16;
    p.score = MOEPACK_SCORE_SIGMOID;
    p.select = MOEPACK_SELECT_BIASED;
    p.renormalize = MOEPACK_RENORM_SUM_EPS;
    p.activation = p.shared_activation = MOEPACK_ACT_SITU;
    p.situ_beta = 4;
    p.situ_linear_beta = 25;
    p.latent = p.latent_norm = 1;
    p.shared_width = 6144;
    size_t n = moepack_policy_describe(&p, 896, text, sizeof text);
    assert_int_equal(n, strlen(text));
    assert_non_null(strstr(text, "router: sigmoid scores + selection bias, top 16 of 896\n"));
    assert_non_null(strstr(text, "SiTU with beta 4, linear beta 25"));
    assert_non_null(strstr(text, "RMSNorm"));
    assert_non_null(strstr(text, "inner width 6144"));
    for (size_t size = 1; size <= n; ++size) {
        memset(again, '#', sizeof again);
        assert_int_equal(moepack_policy_describe(&p, 896, again, size), n);
        assert_int_equal(strncmp(again, text, size - 1), 0);
        assert_int_equal(again[size - 1], 0);
        assert_int_equal(again[size], '#');
    }
    assert_int_equal(moepack_policy_describe(&p, 896, NULL, 0), n);
}

/* ---- the document ---- */

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size > 0);
    rewind(file);
    char *text = malloc((size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, file), (size_t)size);
    text[size] = '\0';
    fclose(file);
    return text;
}

/* "0 no, 1 yes" for key i; "" for plain numbers. */
static void values_text(size_t i, char *buf, size_t size)
{
    const mpk_policy_value *values;
    size_t n = mpk_policy_values(i, &values), used = 0;
    buf[0] = '\0';
    for (size_t v = 0; v < n; ++v) {
        used += (size_t)snprintf(buf + used, size - used, "%s%llu %s", v > 0 ? ", " : "",
                                 (unsigned long long)values[v].value, values[v].name);
    }
}

static void test_document_lists_the_same_keys(void **state)
{
    (void)state;
    char *text = read_text(MOEPACK_SPEC_FILE);
    const char *section = strstr(text, "\n## 6. Policy records");
    const char *end = section == NULL ? NULL : strstr(section + 1, "\n## 7.");
    assert_non_null(section);
    assert_non_null(end);
    size_t rows = 0;
    for (const char *line = section; line != NULL && line < end; line = strchr(line + 1, '\n')) {
        unsigned id;
        char key[64], type[8], row[600], expected[300];
        if (sscanf(line, "\n| %u | %63s | %7s |", &id, key, type) != 3) continue;
        assert_true(rows < moepack_policy_key_count());
        assert_int_equal(id, mpk_policy_key_id(rows));
        assert_string_equal(key, mpk_policy_key_name(rows));
        assert_string_equal(type, mpk_policy_key_type(rows) == MPK_POLICY_F64 ? "f64" : "u64");
        size_t length = strcspn(line + 1, "\n");
        snprintf(row, sizeof row, "%.*s", (int)length, line + 1);
        values_text(rows, expected, sizeof expected);
        const char *meaning = strstr(row, type);
        assert_non_null(meaning);
        meaning += 6; /* "u64 | " */
        assert_int_equal(strncmp(meaning, expected, strlen(expected)), 0);
        if (expected[0] != '\0') assert_non_null(strchr(": ", meaning[strlen(expected)])); /* the list ends there */
        ++rows;
    }
    assert_int_equal(rows, moepack_policy_key_count());
    free(text);
}

static void test_ids_ascend(void **state)
{
    (void)state;
    for (size_t i = 0; i < moepack_policy_key_count(); ++i) {
        if (i > 0) assert_true(mpk_policy_key_id(i) > mpk_policy_key_id(i - 1));
        assert_int_equal(mpk_policy_key_find(mpk_policy_key_id(i)), i);
    }
    assert_true(mpk_policy_key_find(0) == SIZE_MAX);
    assert_true(mpk_policy_key_find(999) == SIZE_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_valid), cmocka_unit_test(test_get_set_round_trip),
        cmocka_unit_test(test_set_refuses),        cmocka_unit_test(test_check),
        cmocka_unit_test(test_describe),           cmocka_unit_test(test_document_lists_the_same_keys),
        cmocka_unit_test(test_ids_ascend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
