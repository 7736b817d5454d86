/* Do matrices hold every bit of a section once? The folding answer against counting, and no counting for published
 * forms. */
#include "sample.h"

#include "cover.h"

#include <string.h>

static moepack_matrix matrix(unsigned bits, uint64_t rows, uint64_t cols, uint64_t base, uint64_t down, uint64_t right)
{
    return (moepack_matrix){.plane = MOEPACK_PLANE_WEIGHT,
                            .bits = bits,
                            .rows = rows,
                            .cols = cols,
                            .base = base,
                            .row_stride = down,
                            .col_stride = right};
}

static mpk_cover cover(const moepack_matrix *m, uint32_t count, uint64_t length)
{
    uint64_t budget = 0; /* nothing may be counted element by element */
    return mpk_matrices_cover(m, count, length, &budget);
}

static void test_published_forms(void **state)
{
    (void)state;
    const uint64_t R = 3072, C = 1u << 20, all = R * C;
    static const unsigned widths[] = {4, 8, 16, 32, 64};
    for (size_t w = 0; w < 5; ++w) {
        unsigned b = widths[w];
        uint64_t length = all * b / 8;
        moepack_matrix whole[] = {matrix(b, R, C, 0, C, 1)};
        moepack_matrix transposed[] = {matrix(b, R, C, 0, 1, R)};
        moepack_matrix halves[] = {matrix(b, R, C, 0, C, 1), matrix(b, R, C, all, C, 1)};
        moepack_matrix rows[] = {matrix(b, R, C, 0, 2 * C, 1), matrix(b, R, C, C, 2 * C, 1)};
        moepack_matrix elements[] = {matrix(b, R, C, 1, 2 * C, 2), matrix(b, R, C, 0, 2 * C, 2)};
        /* [C, 2 R]: gate and up side by side in each row of a transposed tensor, and in turns there */
        moepack_matrix sides[] = {matrix(b, R, C, R, 1, 2 * R), matrix(b, R, C, 0, 1, 2 * R)};
        moepack_matrix turns[] = {matrix(b, R, C, 0, 2, 2 * R), matrix(b, R, C, 1, 2, 2 * R)};
        assert_int_equal(cover(whole, 1, length), MPK_COVER_YES);
        assert_int_equal(cover(transposed, 1, length), MPK_COVER_YES);
        assert_int_equal(cover(halves, 2, 2 * length), MPK_COVER_YES);
        assert_int_equal(cover(rows, 2, 2 * length), MPK_COVER_YES);
        assert_int_equal(cover(elements, 2, 2 * length), MPK_COVER_YES);
        assert_int_equal(cover(sides, 2, 2 * length), MPK_COVER_YES);
        assert_int_equal(cover(turns, 2, 2 * length), MPK_COVER_YES);
        halves[1].base = all - 1;
        assert_int_equal(cover(halves, 2, 2 * length), MPK_COVER_NO);
        whole[0].row_stride = 0;
        assert_int_equal(cover(whole, 1, length), MPK_COVER_NO);
    }
    /* codes and their scales in one section, of different widths; an empty matrix between them */
    moepack_matrix mixed[] = {matrix(4, 20, 64, 0, 64, 1), matrix(8, 0, 5, 9, 9, 9), matrix(8, 20, 2, 640, 2, 1),
                              matrix(32, 20, 1, 170, 1, 1)};
    assert_int_equal(cover(mixed, 4, 760), MPK_COVER_YES);
    mixed[3].base = 169;
    assert_int_equal(cover(mixed, 4, 760), MPK_COVER_NO);
    assert_int_equal(cover(NULL, 0, 0), MPK_COVER_YES);
}

/* The answer by counting, written another way. */
static bool counted(const moepack_matrix *m, uint32_t count, uint64_t length)
{
    uint8_t marks[4096] = {0};
    for (uint32_t i = 0; i < count; ++i) {
        for (uint64_t r = 0; r < m[i].rows; ++r) {
            for (uint64_t c = 0; c < m[i].cols; ++c) {
                for (uint64_t k = 0; k < m[i].bits / 4; ++k)
                    ++marks[(m[i].base + r * m[i].row_stride + c * m[i].col_stride) * (m[i].bits / 4) + k];
            }
        }
    }
    for (uint64_t i = 0; i < 2 * length; ++i) {
        if (marks[i] != 1) return false;
    }
    return true;
}

static void test_against_counting(void **state)
{
    (void)state;
    uint64_t seed = 5;
    unsigned yes = 0, no = 0;
    for (int round = 0; round < 400000; ++round) {
        moepack_matrix m[4];
        uint32_t count = 1 + (uint32_t)(sample_random(&seed) % 4);
        uint64_t length = 0;
        bool inside = true;
        uint64_t rows = 1 + sample_random(&seed) % 4, cols = 1 + sample_random(&seed) % 4;
        for (uint32_t i = 0; i < count; ++i) {
            if (sample_random(&seed) % 4 == 0) rows = 1 + sample_random(&seed) % 4;
            m[i] = matrix(8, rows, cols, sample_random(&seed) % 12, sample_random(&seed) % 9, sample_random(&seed) % 9);
            if (sample_random(&seed) % 2) m[i].row_stride = cols * count;
            if (sample_random(&seed) % 2) m[i].col_stride = 1;
            if (sample_random(&seed) % 2) m[i].base = i * cols;
            length += rows * cols;
        }
        for (uint32_t i = 0; i < count; ++i)
            inside =
                inside && m[i].base + (m[i].rows - 1) * m[i].row_stride + (m[i].cols - 1) * m[i].col_stride < length;
        if (!inside) continue; /* not what the function is for */
        uint64_t budget = 1000;
        bool expected = counted(m, count, length);
        assert_int_equal(mpk_matrices_cover(m, count, length, &budget), expected ? MPK_COVER_YES : MPK_COVER_NO);
        if (expected)
            ++yes;
        else
            ++no;
    }
    assert_true(yes > 1000 && no > 1000); /* both answers were tried */
}

/* An arrangement that does not fold is counted within the budget, and unknown beyond it. */
static void test_budget(void **state)
{
    (void)state;
    /* {0, 3} + {0, 1, 2} + 6 i: fine. Here the same numbers in an order that has no period: two runs and a comb. */
    moepack_matrix m[] = {matrix(8, 2, 1, 0, 3, 1), matrix(8, 2, 1, 1, 1, 1), matrix(8, 1, 2, 4, 1, 1)};
    uint64_t budget = 11;
    assert_int_equal(mpk_matrices_cover(m, 3, 6, &budget), MPK_COVER_UNKNOWN);
    assert_int_equal(budget, 11);
    budget = 12;
    assert_int_equal(mpk_matrices_cover(m, 3, 6, &budget), MPK_COVER_YES);
    assert_int_equal(budget, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_forms),
        cmocka_unit_test(test_against_counting),
        cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
