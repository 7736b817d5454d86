/* --layers and --experts. */
#include "test_source_files.h"

#include "selection.h"

#include <string.h>

static const mpk_selection_block blocks[] = {
    {MOEPACK_STACK_MAIN, 1},    {MOEPACK_STACK_MAIN, 2},    {MOEPACK_STACK_MAIN, 4},
    {MOEPACK_STACK_ENCODER, 1}, {MOEPACK_STACK_ENCODER, 3}, {MOEPACK_STACK_MTP, 0},
};
enum {
    BLOCKS = sizeof blocks / sizeof blocks[0]
};

static void layers(void **state)
{
    (void)state;
    static const struct {
        const char *text, *selected; /* NULL: refused */
    } want[] = {
        {NULL, "111111"},
        {"1", "100000"},
        {"1-4", "111000"},
        {"0-4", "111000"},
        {"2,1", "110000"},
        {"2-4,4", "011000"},
        {"encoder.1", "000100"},
        {"encoder.1-3,mtp.0", "000111"},
        {"4,encoder.3", "001010"},
        {"", NULL},
        {",", NULL},
        {"1,", NULL},
        {"3", NULL}, /* no MoE block */
        {"3-3", NULL},
        {"5", NULL}, /* beyond */
        {"1-5", NULL},
        {"4-1", NULL}, /* backwards */
        {"-1", NULL},
        {"1-", NULL},
        {"1-2-4", NULL},
        {" 1", NULL},
        {"1 ", NULL},
        {"+1", NULL},
        {"all", NULL},
        {"encoder", NULL},
        {"encoder.", NULL},
        {"encoder.2", NULL},
        {"encoder.4", NULL},
        {"decoder.1", NULL},
        {"mtp.0-1", NULL},
        {"18446744073709551617", NULL}, /* 2^64 + 1 */
        {"4294967297", NULL},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        uint8_t selected[BLOCKS];
        char text[BLOCKS + 1] = {0};
        moepack_error error;
        moepack_status status = mpk_select_layers(want[i].text, blocks, BLOCKS, selected, &error);
        if (!want[i].selected) {
            expect_error(status, MOEPACK_E_USAGE, &error, "layers: ");
            continue;
        }
        expect_ok(status, &error);
        for (int b = 0; b < BLOCKS; b++) text[b] = (char)('0' + selected[b]);
        assert_string_equal(text, want[i].selected);
    }
}

static void experts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *selected;
    } want[] = {
        {NULL, "1111111"},    {"0", "1000000"}, {"0-2,6", "1110001"}, {"6-6", "0000001"},
        {"0-6,3", "1111111"}, {"7", NULL},      {"0-7", NULL},        {"encoder.1", NULL},
        {"", NULL},           {"1,,2", NULL},   {"3-1", NULL},        {"0x1", NULL},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        uint8_t selected[7];
        char text[8] = {0};
        moepack_error error;
        moepack_status status = mpk_select_experts(want[i].text, 7, selected, &error);
        if (!want[i].selected) {
            expect_error(status, MOEPACK_E_USAGE, &error, "experts: ");
            continue;
        }
        expect_ok(status, &error);
        for (int b = 0; b < 7; b++) text[b] = (char)('0' + selected[b]);
        assert_string_equal(text, want[i].selected);
    }
}

static void messages_name_the_item(void **state)
{
    (void)state;
    uint8_t selected[BLOCKS];
    moepack_error error;
    expect_error(mpk_select_layers("1,2-9", blocks, BLOCKS, selected, &error), MOEPACK_E_USAGE, &error,
                 "layers: \"2-9\" is beyond the model, whose last MoE layer is 4");
    expect_error(mpk_select_layers("decoder.1", blocks, BLOCKS, selected, &error), MOEPACK_E_USAGE, &error,
                 "\"decoder.1\" names a stack");
    expect_error(mpk_select_experts("0,5-6", 6, selected, &error), MOEPACK_E_USAGE, &error,
                 "experts: \"5-6\" is beyond the model, which has 6 experts");
}

static void labels(void **state)
{
    (void)state;
    char label[MOEPACK_LABEL_MAX];
    mpk_block_label(MOEPACK_STACK_MAIN, 4294967295u, label);
    assert_string_equal(label, "4294967295");
    mpk_block_label(MOEPACK_STACK_DECODER, 1, label);
    assert_string_equal(label, "decoder.1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers),
        cmocka_unit_test(experts),
        cmocka_unit_test(messages_name_the_item),
        cmocka_unit_test(labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
