/* Padding elements of the panel order: every bit of a panel section either comes back in the published bytes or is
 * padding that verify has to look at. */
/* cmocka wants these in this order. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "build.h"

#include <stdlib.h>
#include <string.h>

static moepack_matrix weight(moepack_encoding encoding, uint16_t bits, uint64_t rows, uint64_t cols, uint64_t base)
{
    return (moepack_matrix){.role = MOEPACK_ROLE_GATE,
                            .plane = MOEPACK_PLANE_WEIGHT,
                            .encoding = encoding,
                            .bits = bits,
                            .rows = rows,
                            .cols = cols,
                            .base = base,
                            .row_stride = cols,
                            .col_stride = 1};
}

static moepack_matrix scale(moepack_encoding encoding, uint16_t bits, uint64_t rows, uint64_t cols, uint32_t group)
{
    moepack_matrix m = weight(encoding, bits, rows, cols, 0);
    m.plane = MOEPACK_PLANE_SCALE;
    m.group_rows = 1;
    m.group_cols = group;
    return m;
}

/* Flips every bit of the panel form: the published bytes change, or the padding is found wrong at that byte, never both
 * and never neither. Returns the number of padding bits. */
static uint64_t flip_every_bit(const moepack_matrix *matrices, uint32_t count)
{
    moepack_error error;
    uint64_t canonical = 0, panel = 0, padding = 0, at;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t length;
        assert_true(moepack_panel_length(&matrices[i], &length));
        panel += length;
        canonical += matrices[i].rows * matrices[i].cols * matrices[i].bits;
    }
    assert_int_equal(canonical % 8, 0);
    canonical /= 8;
    uint8_t *published = malloc(canonical), *stored = malloc(panel), *back = malloc(canonical);
    assert_true(published && stored && back);
    for (uint64_t i = 0; i < canonical; i++) published[i] = (uint8_t)(i * 2654435761u >> 7);
    assert_int_equal(moepack_panel_from_canonical(matrices, count, published, canonical, stored, panel, &error),
                     MOEPACK_OK);
    assert_true(mpk_panel_padding(matrices, count, stored, &at));
    for (uint64_t bit = 0; bit < 8 * panel; bit++) {
        stored[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(moepack_panel_to_canonical(matrices, count, stored, panel, back, canonical, &error),
                         MOEPACK_OK);
        bool changed = memcmp(back, published, canonical) != 0, sound = mpk_panel_padding(matrices, count, stored, &at);
        stored[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(changed == sound);
        if (sound) continue;
        assert_true(at <= bit / 8 && bit / 8 - at < 4); /* the first byte of the element */
        padding++;
    }
    free(published);
    free(stored);
    free(back);
    return padding;
}

static void every_bit_of_weights(void **state)
{
    (void)state;
    static const struct {
        moepack_encoding encoding;
        uint16_t bits;
    } kinds[] = {{MOEPACK_ENC_E2M1, 4}, {MOEPACK_ENC_E4M3, 8}, {MOEPACK_ENC_BF16, 16}, {MOEPACK_ENC_F32, 32}};
    static const uint64_t shapes[][2] = {{16, 32}, {17, 32}, {16, 34}, {5, 6}, {33, 70}, {1, 2}, {32, 64}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            moepack_matrix m = weight(kinds[k].encoding, kinds[k].bits, shapes[i][0], shapes[i][1], 0);
            uint64_t length;
            assert_true(moepack_panel_length(&m, &length));
            assert_int_equal(flip_every_bit(&m, 1), 8 * length - m.rows * m.cols * m.bits);
        }
}

static void every_bit_of_scales(void **state)
{
    (void)state;
    static const struct {
        moepack_encoding encoding;
        uint16_t bits;
    } kinds[] = {{MOEPACK_ENC_E8M0, 8}, {MOEPACK_ENC_E4M3, 8}, {MOEPACK_ENC_BF16, 16}, {MOEPACK_ENC_F16, 16}};
    static const uint64_t shapes[][2] = {{16, 3}, {17, 2}, {1, 1}, {31, 5}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            moepack_matrix m = scale(kinds[k].encoding, kinds[k].bits, shapes[i][0], shapes[i][1], k % 2 ? 16 : 32);
            uint64_t rows = (m.rows + 15) / 16 * 16 - m.rows;
            assert_int_equal(flip_every_bit(&m, 1), rows * m.cols * m.bits);
        }
}

/* Several matrices in one section, transposed and interleaved: offsets count from the section's start. */
static void every_bit_of_fused_sections(void **state)
{
    (void)state;
    moepack_matrix two[2] = {weight(MOEPACK_ENC_BF16, 16, 9, 10, 0), weight(MOEPACK_ENC_BF16, 16, 9, 10, 1)};
    for (unsigned i = 0; i < 2; i++) { /* published as [10][9][2] */
        two[i].row_stride = 2;
        two[i].col_stride = 18;
    }
    assert_int_equal(flip_every_bit(two, 2), 2 * 16 * (16 * 16 - 90));
    /* 15 nibbles in row order (a scale of no panel group), and 13: half a byte of each is unused. */
    moepack_matrix odd[2] = {scale(MOEPACK_ENC_E2M1, 4, 3, 5, 128), scale(MOEPACK_ENC_E2M1, 4, 1, 13, 128)};
    odd[1].base = 15;
    assert_int_equal(flip_every_bit(odd, 2), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bit_of_weights),
        cmocka_unit_test(every_bit_of_scales),
        cmocka_unit_test(every_bit_of_fused_sections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
