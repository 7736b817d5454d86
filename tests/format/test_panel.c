/* The panel order against spec/container.md section 9, bit by bit. */
#include "sample.h"

#include <stdlib.h>
#include <string.h>

static bool get_bit(const uint8_t *bytes, uint64_t bit)
{
    return bytes[bit / 8] >> (bit % 8) & 1;
}

static void set_bit(uint8_t *bytes, uint64_t bit, bool value)
{
    if (value) bytes[bit / 8] |= (uint8_t)(1u << (bit % 8));
}

/* First bit of element (r, c) in the tiles, as the formula of the document says it. */
static uint64_t tile_bit(uint64_t r, uint64_t c, uint64_t cols, uint64_t b)
{
    uint64_t C = 128 / b, w = 32 / b, TC = (cols + C - 1) / C;
    uint64_t byte = ((r / 16) * TC + (c / C)) * 256 + ((c % C) / w) * 64 + (r % 16) * 4 + ((c % w) * b) / 8;
    return byte * 8 + ((c % w) * b) % 8;
}

static uint64_t scale_bit(uint64_t r, uint64_t g, uint64_t cols, uint64_t k)
{
    return (((r / 16) * cols + g) * 16 * k + (r % 16) * k) * 8;
}

static bool is_group_scale(const moepack_matrix *m)
{
    return m->plane == MOEPACK_PLANE_SCALE && m->group_rows == 1 && (m->group_cols == 16 || m->group_cols == 32) &&
           (m->bits == 8 || m->bits == 16 || m->bits == 32);
}

static uint64_t naive_length(const moepack_matrix *m)
{
    uint64_t row_blocks = (m->rows + 15) / 16, C = 128 / m->bits;
    if (m->plane == MOEPACK_PLANE_WEIGHT && m->bits <= 32) return row_blocks * ((m->cols + C - 1) / C) * 256;
    if (is_group_scale(m)) return row_blocks * m->cols * 16 * m->bits / 8;
    return (m->rows * m->cols * m->bits + 7) / 8;
}

static uint64_t padding_of(moepack_encoding encoding)
{
    return encoding == MOEPACK_ENC_E8M0   ? 0x7f
           : encoding == MOEPACK_ENC_E4M3 ? 0x38
           : encoding == MOEPACK_ENC_BF16 ? 0x3f80
           : encoding == MOEPACK_ENC_F32  ? 0x3f800000
           : encoding == MOEPACK_ENC_F16  ? 0x3c00
                                          : 0;
}

/* One matrix from canonical bytes to `out` (zeroed, naive_length bytes). */
static void naive(const moepack_matrix *m, const uint8_t *canonical, uint8_t *out)
{
    bool tiles = m->plane == MOEPACK_PLANE_WEIGHT && m->bits <= 32, scales = is_group_scale(m);
    for (uint64_t r = 0; r < m->rows; ++r) {
        for (uint64_t c = 0; c < m->cols; ++c) {
            uint64_t from = (m->base + r * m->row_stride + c * m->col_stride) * m->bits;
            uint64_t to = tiles    ? tile_bit(r, c, m->cols, m->bits)
                          : scales ? scale_bit(r, c, m->cols, m->bits / 8)
                                   : (r * m->cols + c) * m->bits;
            for (uint64_t b = 0; b < m->bits; ++b) set_bit(out, to + b, get_bit(canonical, from + b));
        }
    }
    for (uint64_t r = m->rows; scales && r < (m->rows + 15) / 16 * 16; ++r) {
        for (uint64_t c = 0; c < m->cols; ++c) {
            for (uint64_t b = 0; b < m->bits; ++b)
                set_bit(out, scale_bit(r, c, m->cols, m->bits / 8) + b, padding_of(m->encoding) >> b & 1);
        }
    }
}

/* Each bit of the stored form is either an element's or padding: changing it changes the published bytes, or is noticed
 * as padding, never both. */
static void check_padding(const moepack_matrix *matrices, uint32_t count, uint8_t *stored, uint64_t decoded,
                          const uint8_t *canonical, uint64_t size)
{
    uint8_t *back = malloc(size + 1);
    uint64_t at = 0;
    assert_non_null(back);
    assert_true(mpk_panel_padding(matrices, count, stored, &at));
    for (uint64_t bit = 0; bit < decoded * 8; bit += 5) {
        stored[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        bool clean = mpk_panel_padding(matrices, count, stored, &at);
        assert_int_equal(moepack_panel_to_canonical(matrices, count, stored, decoded, back, size, NULL), MOEPACK_OK);
        assert_true((memcmp(back, canonical, size) != 0) == clean);
        if (!clean) assert_true(at <= bit / 8 && bit / 8 - at < 4); /* the first byte of that element */
        stored[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    free(back);
}

/* Converts, compares with the formula, converts back. The section has exactly `size` canonical bytes. */
static void check_section(const moepack_matrix *matrices, uint32_t count, uint64_t size, uint64_t seed)
{
    uint64_t decoded = 0, length;
    for (uint32_t i = 0; i < count; ++i) {
        assert_true(moepack_panel_length(&matrices[i], &length));
        assert_true(length == naive_length(&matrices[i]));
        decoded += length;
    }
    /* exact sizes on the heap: a sanitizer sees one byte too far */
    uint8_t *canonical = malloc(size + (size == 0)), *expected = calloc(decoded + (decoded == 0), 1);
    uint8_t *got = malloc(decoded + (decoded == 0)), *back = malloc(size + (size == 0));
    assert_true(canonical != NULL && expected != NULL && got != NULL && back != NULL);
    for (uint64_t i = 0; i < size; ++i) canonical[i] = (uint8_t)sample_random(&seed);
    uint8_t *at = expected;
    for (uint32_t i = 0; i < count; ++i) {
        naive(&matrices[i], canonical, at);
        at += naive_length(&matrices[i]);
    }
    memset(got, 0xa5, decoded);
    memset(back, 0x5a, size);
    moepack_error e;
    assert_status(MOEPACK_OK, moepack_panel_from_canonical(matrices, count, canonical, size, got, decoded, &e), &e);
    assert_memory_equal(got, expected, decoded);
    assert_status(MOEPACK_OK, moepack_panel_to_canonical(matrices, count, got, decoded, back, size, &e), &e);
    assert_memory_equal(back, canonical, size);
    if (decoded > 0 && decoded <= 1024) check_padding(matrices, count, got, decoded, canonical, size);
    free(canonical);
    free(expected);
    free(got);
    free(back);
}

static moepack_matrix weight(unsigned bits, uint64_t rows, uint64_t cols)
{
    return (moepack_matrix){.role = MOEPACK_ROLE_GATE,
                            .plane = MOEPACK_PLANE_WEIGHT,
                            .bits = bits,
                            .rows = rows,
                            .cols = cols,
                            .row_stride = cols,
                            .col_stride = 1};
}

static const unsigned widths[] = {4, 8, 16, 32};

static uint64_t byte_length(const moepack_matrix *m)
{
    return m->rows * m->cols * m->bits / 8;
}

static void test_row_major(void **state)
{
    (void)state;
    static const uint64_t rows[] = {1, 2, 15, 16, 17, 33, 48}, cols[] = {1, 2, 3, 4, 8, 31, 32, 33, 64, 70, 96};
    for (size_t w = 0; w < 4; ++w) {
        for (size_t r = 0; r < 7; ++r) {
            for (size_t c = 0; c < 11; ++c) {
                moepack_matrix m = weight(widths[w], rows[r], cols[c]);
                if (rows[r] * cols[c] * widths[w] % 8 != 0) continue; /* not whole bytes */
                check_section(&m, 1, byte_length(&m), r * 100 + c);
            }
        }
    }
}

static void test_transposed(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {{1, 8}, {16, 32}, {17, 40}, {40, 17}, {50, 6}, {32, 64}};
    for (size_t w = 0; w < 4; ++w) {
        for (size_t i = 0; i < 6; ++i) {
            moepack_matrix m = weight(widths[w], sizes[i][0], sizes[i][1]);
            m.row_stride = 1;
            m.col_stride = m.rows;
            check_section(&m, 1, byte_length(&m), i);
        }
    }
}

/* gate and up as halves, in turns row by row, and in turns element by element, each with a different stride and base */
static void test_fused(void **state)
{
    (void)state;
    for (size_t w = 0; w < 4; ++w) {
        for (uint64_t cols = 3; cols <= 66; cols += 21) {
            uint64_t rows = 18, all = rows * cols;
            moepack_matrix halves[2] = {weight(widths[w], rows, cols), weight(widths[w], rows, cols)};
            halves[1].base = all;
            check_section(halves, 2, 2 * byte_length(&halves[0]), cols);
            moepack_matrix turns[2] = {halves[0], halves[0]};
            turns[0].row_stride = turns[1].row_stride = 2 * cols;
            turns[1].base = cols;
            check_section(turns, 2, 2 * byte_length(&halves[0]), cols + 1);
            moepack_matrix elements[2] = {halves[0], halves[0]};
            elements[0].row_stride = elements[1].row_stride = 2 * cols;
            elements[0].col_stride = elements[1].col_stride = 2;
            elements[1].base = 1;
            check_section(elements, 2, 2 * byte_length(&halves[0]), cols + 2);
        }
    }
}

static void test_group_scales(void **state)
{
    (void)state;
    static const struct {
        moepack_encoding encoding;
        unsigned bits;
    } kinds[] = {{MOEPACK_ENC_E8M0, 8},
                 {MOEPACK_ENC_E4M3, 8},
                 {MOEPACK_ENC_BF16, 16},
                 {MOEPACK_ENC_F16, 16},
                 {MOEPACK_ENC_F32, 32}};
    static const uint32_t groups[] = {16, 32};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
        for (size_t g = 0; g < 2; ++g) {
            for (uint64_t rows = 1; rows < 50; rows += 15) {
                for (uint64_t cols = 1; cols < 52; cols += 5) {
                    moepack_matrix m = weight(kinds[k].bits, rows, cols);
                    m.plane = MOEPACK_PLANE_SCALE;
                    m.encoding = kinds[k].encoding;
                    m.group_rows = 1;
                    m.group_cols = groups[g];
                    check_section(&m, 1, byte_length(&m), rows + cols);
                    m.row_stride = 1; /* transposed */
                    m.col_stride = rows;
                    check_section(&m, 1, byte_length(&m), rows + cols);
                }
            }
        }
    }
}

/* Scales of other groups, biases, shapes and 64-bit elements stay in row order. */
static void test_row_order(void **state)
{
    (void)state;
    static const struct {
        moepack_plane plane;
        unsigned bits;
        uint32_t group_rows, group_cols;
    } kinds[] = {
        {MOEPACK_PLANE_SCALE, 32, 128, 128}, {MOEPACK_PLANE_SCALE, 32, 1, 64}, {MOEPACK_PLANE_SCALE, 16, 1, 64},
        {MOEPACK_PLANE_SCALE, 8, 2, 32},     {MOEPACK_PLANE_BIAS, 16, 0, 0},   {MOEPACK_PLANE_SHAPE, 64, 0, 0},
        {MOEPACK_PLANE_WEIGHT, 64, 0, 0},    {MOEPACK_PLANE_OTHER, 4, 0, 0},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
        for (unsigned transposed = 0; transposed < 2; ++transposed) {
            moepack_matrix m = weight(kinds[k].bits, 6, 7);
            m.plane = kinds[k].plane;
            m.group_rows = kinds[k].group_rows;
            m.group_cols = kinds[k].group_cols;
            if (transposed) {
                m.row_stride = 1;
                m.col_stride = 6;
            }
            check_section(&m, 1, byte_length(&m), k);
        }
    }
}

/* A plane with 4-bit codes and its scales in one section, as some files have it. */
static void test_mixed_section(void **state)
{
    (void)state;
    moepack_matrix m[3] = {weight(4, 20, 64), weight(8, 20, 2), weight(32, 20, 1)};
    m[1].plane = MOEPACK_PLANE_SCALE;
    m[1].encoding = MOEPACK_ENC_E8M0;
    m[1].group_rows = 1;
    m[1].group_cols = 32;
    m[1].base = 640;
    m[2].plane = MOEPACK_PLANE_BIAS;
    m[2].base = 170;
    check_section(m, 3, 640 + 40 + 80, 5);
    moepack_matrix empty = weight(4, 0, 64);
    check_section(&empty, 1, 0, 6);
    check_section(NULL, 0, 0, 7);
}

/* The example of the document: b = 4, cols = 64, element (18, 45): byte 842, bits 4..7. */
static void test_worked_example(void **state)
{
    (void)state;
    moepack_matrix m = weight(4, 32, 64);
    uint8_t canonical[1024] = {0}, panel[1024];
    canonical[(18 * 64 + 45) / 2] = 0xb0; /* odd element: high nibble */
    assert_int_equal(moepack_panel_from_canonical(&m, 1, canonical, 1024, panel, 1024, NULL), MOEPACK_OK);
    for (size_t i = 0; i < sizeof panel; ++i) assert_int_equal(panel[i], i == 842 ? 0xb0 : 0);
}

static void test_refuses(void **state)
{
    (void)state;
    uint8_t a[4096] = {0}, b[4096];
    uint64_t length;
    moepack_error e;
    moepack_matrix m = weight(4, 16, 32), w;
    assert_status(MOEPACK_OK, moepack_panel_from_canonical(&m, 1, a, 256, b, 256, &e), &e);
    assert_status(MOEPACK_E_USAGE, moepack_panel_from_canonical(&m, 1, a, 255, b, 256, &e), &e);
    assert_status(MOEPACK_E_USAGE, moepack_panel_from_canonical(&m, 1, a, 257, b, 256, &e), &e);
    assert_status(MOEPACK_E_USAGE, moepack_panel_from_canonical(&m, 1, a, 256, b, 512, &e), &e);
    assert_status(MOEPACK_E_USAGE, moepack_panel_to_canonical(&m, 1, a, 256, b, 0, &e), &e);
    w = m;
    w.base = 1;
    assert_status(MOEPACK_E_USAGE, moepack_panel_from_canonical(&w, 1, a, 256, b, 256, &e), &e);
    w = m;
    w.row_stride = UINT64_MAX;
    assert_status(MOEPACK_E_USAGE, moepack_panel_from_canonical(&w, 1, a, 256, b, 256, &e), &e);
    w = m;
    w.rows = UINT64_MAX;
    assert_false(moepack_panel_length(&w, &length));
    assert_status(MOEPACK_E_USAGE, moepack_panel_from_canonical(&w, 1, a, 256, b, 256, &e), &e);
    static const unsigned odd[] = {0, 1, 2, 6, 12, 24, 65, 128, 4294967295u};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; ++i) {
        w = m;
        w.bits = odd[i];
        assert_false(moepack_panel_length(&w, &length));
        assert_status(MOEPACK_E_USAGE, moepack_panel_from_canonical(&w, 1, a, 256, b, 256, &e), &e);
    }
    /* Random geometry: an answer, whatever it is, and nothing written out of bounds (the sanitizers look). */
    uint64_t seed = 99;
    for (int i = 0; i < 20000; ++i) {
        w = weight(widths[sample_random(&seed) % 4], sample_random(&seed) % 40, sample_random(&seed) % 40);
        w.plane = (moepack_plane)(sample_random(&seed) % 7);
        w.group_rows = (uint32_t)(sample_random(&seed) % 2);
        w.group_cols = (uint32_t)(sample_random(&seed) % 3) * 16;
        w.base = sample_random(&seed) % 20;
        w.row_stride = sample_random(&seed) % 80;
        w.col_stride = sample_random(&seed) % 80;
        uint64_t canonical = w.rows * w.cols * w.bits / 8;
        if (!moepack_panel_length(&w, &length) || canonical > 4096 || length > 8192) continue;
        uint8_t *from = calloc(canonical + 1, 1), *to = malloc(length + 1);
        assert_true(from != NULL && to != NULL);
        moepack_status status = moepack_panel_from_canonical(&w, 1, from, canonical, to, length, NULL);
        assert_true(status == MOEPACK_OK || status == MOEPACK_E_USAGE);
        if (status == MOEPACK_OK)
            assert_int_equal(moepack_panel_to_canonical(&w, 1, to, length, from, canonical, NULL), MOEPACK_OK);
        free(from);
        free(to);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_major),      cmocka_unit_test(test_transposed), cmocka_unit_test(test_fused),
        cmocka_unit_test(test_group_scales),   cmocka_unit_test(test_row_order),  cmocka_unit_test(test_mixed_section),
        cmocka_unit_test(test_worked_example), cmocka_unit_test(test_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
