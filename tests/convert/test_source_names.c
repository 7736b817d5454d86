/* The family table: patterns, terms, and what every entry must keep so that the code which walks it may rely on it. */
#include "test_source_files.h"

#include "families.h"
#include "safetensors.h"
#include "source.h"

#include <stdio.h>
#include <string.h>

static void patterns_match_exactly(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool match;
        uint64_t number;
    } want[] = {
        {"experts.{expert}.w1", "experts.0.w1", true, 0},
        {"experts.{expert}.w1", "experts.895.w1", true, 895},
        {"experts.{expert}.w1", "experts.18446744073709551614.w1", true, UINT64_MAX - 1},
        {"experts.{expert}.w1", "experts.18446744073709551615.w1", false, 0},
        {"experts.{expert}.w1", "experts.99999999999999999999.w1", false, 0},
        {"experts.{expert}.w1", "experts.01.w1", false, 0},
        {"experts.{expert}.w1", "experts.00.w1", false, 0},
        {"experts.{expert}.w1", "experts..w1", false, 0},
        {"experts.{expert}.w1", "experts.+1.w1", false, 0},
        {"experts.{expert}.w1", "experts.-1.w1", false, 0},
        {"experts.{expert}.w1", "experts.1 .w1", false, 0},
        {"experts.{expert}.w1", "experts.1.w1x", false, 0},
        {"experts.{expert}.w1", "experts.1.w", false, 0},
        {"experts.{expert}.w1", "experts.1", false, 0},
        {"experts.{expert}.w1", "xexperts.1.w1", false, 0},
        {"experts.{expert}.w1", "", false, 0},
        {"experts.gate_up_proj", "experts.gate_up_proj", true, UINT64_MAX},
        {"experts.gate_up_proj", "experts.gate_up_proj_bias", false, 0},
        {"experts.expert_{expert}.wi", "experts.expert_7.wi", true, 7},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        uint64_t number;
        bool match = mpk_pattern_match(want[i].pattern, want[i].text, &number, NULL);
        if (match != want[i].match) fail_msg("%s / %s", want[i].pattern, want[i].text);
        if (!match) continue;
        char text[64];
        assert_true(number == want[i].number);
        assert_int_equal(mpk_pattern_fill(want[i].pattern, number, text, sizeof text), strlen(want[i].text));
        assert_string_equal(text, want[i].text);
    }
    uint64_t layer;
    const char *rest;
    assert_true(mpk_pattern_match("model.layers.{layer}.mlp.", "model.layers.12.mlp.gate.weight", &layer, &rest));
    assert_int_equal(layer, 12);
    assert_string_equal(rest, "gate.weight");
    assert_false(mpk_pattern_match("model.layers.{layer}.mlp.", "model.layers.12.mlpx", &layer, &rest));
}

static void names_are_classified(void **state)
{
    (void)state;
    const mpk_family *family = mpk_family_at(0);
    static const struct {
        const char *name;
        mpk_name_kind kind;
        uint32_t layer;
        uint64_t expert;
    } want[] = {
        {"model.embed_tokens.weight", MPK_NAME_TRUNK, 0, UINT64_MAX},
        {"language_model.model.layers.3.self_attn.q_proj.weight", MPK_NAME_TRUNK, 0, UINT64_MAX},
        {"language_model.model.layers.03.block_sparse_moe.gate.weight", MPK_NAME_TRUNK, 0, UINT64_MAX},
        {"model.layers.4294967296.block_sparse_moe.gate.weight", MPK_NAME_TRUNK, 0, UINT64_MAX},
        {"language_model.model.layers.3.block_sparse_moe.gate.weight", MPK_NAME_ROLE, 3, UINT64_MAX},
        {"model.layers.3.block_sparse_moe.gate.weight", MPK_NAME_ROLE, 3, UINT64_MAX},
        {"model.layers.3.block_sparse_moe.gate.weight2", MPK_NAME_OTHER, 3, UINT64_MAX},
        {"model.layers.3.block_sparse_moe.experts.17.w2.weight_scale", MPK_NAME_EXPERT, 3, 17},
        {"model.layers.3.block_sparse_moe.experts.17.w2.weight", MPK_NAME_EXPERT, 3, 17},
        {"model.layers.3.block_sparse_moe.experts.17.w2.weight_shape", MPK_NAME_EXPERT, 3, 17},
        {"model.layers.3.block_sparse_moe.experts.17.w2.weight_zero_point", MPK_NAME_UNKNOWN_EXPERT, 3, UINT64_MAX},
        {"model.layers.3.block_sparse_moe.shared_experts.up_proj.weight_scale", MPK_NAME_ROLE, 3, UINT64_MAX},
        {"model.layers.3.block_sparse_moe.shared_experts.up_proj.bias", MPK_NAME_UNKNOWN_EXPERT, 3, UINT64_MAX},
        {"model.layers.3.block_sparse_moe.experts.x", MPK_NAME_UNKNOWN_EXPERT, 3, UINT64_MAX},
        {"model.layers.3.block_sparse_moe.", MPK_NAME_OTHER, 3, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mpk_name name;
        mpk_family_match(family, want[i].name, &name);
        if (name.kind != want[i].kind) fail_msg("%s is kind %d", want[i].name, (int)name.kind);
        assert_int_equal(name.layer, want[i].layer);
        assert_true(name.kind == MPK_NAME_UNKNOWN_EXPERT || name.expert == want[i].expert);
    }
}

static void terms_are_exact(void **state)
{
    (void)state;
    const uint64_t size[MPK_SIZE_COUNT] = {[MPK_ONE] = 1, [MPK_I] = 96, [MPK_L] = 33, [MPK_H] = (uint64_t)1 << 62};
    uint64_t value;
    assert_true(mpk_term_value((mpk_term){MPK_I, MPK_L, 2, 32}, size, &value));
    assert_int_equal(value, 96 * 33 * 2 / 32);
    assert_true(mpk_term_value((mpk_term){MPK_ONE, MPK_ONE, 0, 1}, size, &value));
    assert_int_equal(value, 0);
    assert_false(mpk_term_value((mpk_term){MPK_L, MPK_ONE, 1, 2}, size, &value));
    assert_false(mpk_term_value((mpk_term){MPK_H, MPK_ONE, 4, 4}, size, &value));
    assert_false(mpk_term_value((mpk_term){MPK_H, MPK_H, 1, 1}, size, &value));
}

/* Sizes at which every form of every family is whole. */
static const uint64_t whole[MPK_SIZE_COUNT] = {
    [MPK_ONE] = 1, [MPK_E] = 6, [MPK_H] = 1024, [MPK_L] = 512, [MPK_I] = 256, [MPK_S] = 384,
};

static void check_section(const mpk_family_section *section)
{
    uint64_t dims[MPK_RANK_MAX], bytes;
    assert_true(section->rank >= 1 && section->rank <= MPK_RANK_MAX);
    assert_true(section->matrix_count <= MPK_MATRICES_MAX);
    for (uint32_t d = 0; d < section->rank; d++) assert_true(mpk_term_value(section->dims[d], whole, &dims[d]));
    assert_true(mpk_tensor_bytes(section->dtype, section->rank, dims, &bytes));
    uint64_t covered = 0;
    for (uint32_t m = 0; m < section->matrix_count; m++) {
        const mpk_family_matrix *from = &section->matrices[m];
        uint64_t rows = 0, cols = 0, base = 0, row = 0, col = 0;
        assert_true(mpk_term_value(from->rows, whole, &rows) && mpk_term_value(from->cols, whole, &cols) &&
                    mpk_term_value(from->base, whole, &base) && mpk_term_value(from->row_stride, whole, &row) &&
                    mpk_term_value(from->col_stride, whole, &col));
        assert_true(rows > 0 && cols > 0);
        /* The last element lies inside the section. */
        assert_true((base + (rows - 1) * row + (cols - 1) * col + 1) * from->bits <= bytes * 8);
        covered += rows * cols * from->bits;
        assert_non_null(moepack_role_name((moepack_role)from->role));
        assert_non_null(moepack_plane_name((moepack_plane)from->plane));
        assert_non_null(moepack_encoding_name((moepack_encoding)from->encoding));
    }
    if (section->matrix_count) assert_int_equal(covered, bytes * 8);
    const char *hole = strchr(section->pattern, '{');
    assert_true(!hole || (strncmp(hole, "{expert}", 8) == 0 && !strchr(hole + 1, '{')));
}

static void families_are_sound(void **state)
{
    (void)state;
    const mpk_family *family;
    size_t count = 0;
    for (; (family = mpk_family_at(count)); count++) {
        assert_string_equal(moepack_family_name(count), family->name);
        assert_non_null(moepack_family_about(count));
        assert_non_null(moepack_family_tested(count));
        assert_string_equal(moepack_family_type(count, 0), family->types[0].model_type);
        assert_null(moepack_family_type(count, family->type_count));
        size_t forms = 0;
        while (moepack_family_form(count, forms)) forms++;
        assert_true(forms > 0);
        if (mpk_family_plain(family)) assert_string_equal(moepack_family_form(count, 0), "bf16");
        assert_non_null(family->text_type);
        assert_true(family->router_dtype == MOEPACK_DTYPE_F32 || family->router_dtype == MOEPACK_DTYPE_BF16);
        assert_true(family->type_count > 0 && family->prefix_count > 0 && family->form_count > 0);
        unsigned seen[MPK_KEY_COUNT] = {0};
        for (uint32_t k = 0; k < family->key_count; k++) {
            seen[family->keys[k].key]++;
            assert_true(family->keys[k].name || !family->keys[k].required);
        }
        for (size_t k = 0; k < MPK_KEY_COUNT; k++) assert_true(seen[k] == 1 || (k >= MPK_KEY_OPTIONAL && seen[k] == 0));
        for (uint32_t a = 0; a < family->alias_count; a++) assert_int_equal(seen[family->aliases[a].key], 1);
        for (uint32_t t = 0; t < family->type_count; t++) assert_null(mpk_family_refusal(family->types[t].model_type));
        for (uint32_t p = 0; p < family->prefix_count; p++) {
            const char *pattern = family->prefixes[p].pattern;
            assert_non_null(strstr(pattern, "{layer}"));
            assert_int_equal(pattern[strlen(pattern) - 1], '.');
        }
        const mpk_source_schema *schema = NULL;
        for (uint32_t f = 0; f < family->form_count; f++) {
            const mpk_family_form *form = &family->forms[f];
            assert_true(form->count > 0 && form->count <= sizeof schema->sections / sizeof schema->sections[0]);
            for (uint32_t s = 0; s < form->count; s++) {
                check_section(&form->sections[s]);
                if (family->expert_stem)
                    assert_int_equal(
                        strncmp(form->sections[s].pattern, family->expert_stem, strlen(family->expert_stem)), 0);
            }
        }
        moepack_policy policy;
        moepack_policy_init(&policy);
        for (uint32_t i = 0; i < family->setting_count; i++)
            assert_int_equal(moepack_policy_set(&policy, family->settings[i].field, family->settings[i].value, NULL),
                             0);
        for (uint32_t i = 0; i < family->number_count; i++)
            assert_int_equal(moepack_policy_set(&policy, family->numbers[i].field, "1", NULL), 0);
        for (uint32_t r = 0; r < family->role_count; r++) {
            uint64_t value;
            assert_non_null(moepack_role_name(family->roles[r].role));
            for (uint32_t d = 0; d < family->roles[r].rank; d++)
                assert_true(mpk_term_value(family->roles[r].dims[d], whole, &value));
        }
    }
    assert_int_equal(count, 21);
    assert_null(moepack_family_name(count));
    assert_null(moepack_family_about(count));
    assert_null(moepack_family_tested(count));
    assert_null(moepack_family_type(count, 0));
    assert_null(moepack_family_form(count, 0));
    assert_string_equal(moepack_family_type(0, 1), "kimi_linear");
    assert_null(moepack_family_type(0, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_match_exactly),
        cmocka_unit_test(names_are_classified),
        cmocka_unit_test(terms_are_exact),
        cmocka_unit_test(families_are_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
