/* The storage forms of cpu/forms.h: every family gives the scalar bits, and the scalar ones agree with double
 * arithmetic on the values of the codes. */
#include "common.h"

#include "cpu/forms.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 15

typedef struct form_case {
    const char *name;
    mpk_form form;
    moepack_encoding weights;
    unsigned bits;
    size_t group; /* columns of a scale: 0 none, 128 a grid */
    bool fix16;
} form_case;

static const form_case cases[] = {
    {"f16", MPK_FORM_F16, MOEPACK_ENC_F16, 16, 0, false},
    {"e4m3", MPK_FORM_E4M3, MOEPACK_ENC_E4M3, 8, 0, false},
    {"e4m3 grid", MPK_FORM_E4M3_GRID, MOEPACK_ENC_E4M3, 8, 128, false},
    {"e4m3 groups", MPK_FORM_E4M3_GROUP, MOEPACK_ENC_E4M3, 8, 32, false},
    {"int4", MPK_FORM_INT4, MOEPACK_ENC_INT4_OFFSET, 4, 32, false},
    {"nvfp4", MPK_FORM_NVFP4, MOEPACK_ENC_E2M1, 4, 16, false},
    {"int4 fix16", MPK_FORM_INT4_FIX16, MOEPACK_ENC_INT4_OFFSET, 4, 32, true},
    {"nvfp4 fix16", MPK_FORM_NVFP4_FIX16, MOEPACK_ENC_E2M1, 4, 16, true},
};
#define CASES (sizeof cases / sizeof cases[0])

static const moepack_encoding scale_encodings[] = {MOEPACK_ENC_E8M0, MOEPACK_ENC_E4M3, MOEPACK_ENC_BF16,
                                                   MOEPACK_ENC_F16, MOEPACK_ENC_F32};

/* One product in all the forms that kernels read. */
typedef struct product {
    const form_case *form;
    size_t rows, cols, row_blocks, tiles, scale_cols, tokens;
    uint8_t *weights, *scales;
    moepack_encoding scale_encoding;
    float *x;
    mpk_fix16_block *blocks;
    size_t padded;
} product;

static double half_value(uint32_t h)
{
    const int e = (int)(h >> 10 & 31);
    const double v = e == 0    ? ldexp(h & 1023, -24)
                     : e == 31 ? ((h & 1023) ? NAN : INFINITY)
                               : ldexp(1024 + (h & 1023), e - 25);
    return h & 0x8000 ? -v : v;
}

static double e4m3_value(uint32_t c)
{
    const int e = (int)(c >> 3 & 15);
    const double v = (c & 127) == 127 ? NAN : e == 0 ? ldexp(c & 7, -9) : ldexp(8 + (c & 7), e - 10);
    return c & 128 ? -v : v;
}

static double code_value(const form_case *f, uint32_t code)
{
    static const double e2m1[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    switch (f->weights) {
    case MOEPACK_ENC_F16:
        return half_value(code);
    case MOEPACK_ENC_E4M3:
        return e4m3_value(code);
    case MOEPACK_ENC_INT4_OFFSET:
        return (double)code - 8;
    default:
        return code & 8 ? -e2m1[code & 7] : e2m1[code];
    }
}

/* By the rule of spec/container.md section 9. */
static uint32_t code_at(const product *p, size_t r, size_t c)
{
    const size_t b = p->form->bits, tile = 128 / b, w = 32 / b;
    const size_t byte = (r / 16 * p->tiles + c / tile) * 256 + c % tile / w * 64 + r % 16 * 4;
    uint32_t word;
    memcpy(&word, p->weights + byte, 4);
    return word >> (c % w * b) & ((1u << b) - 1);
}

static double scale_at(const product *p, size_t r, size_t c)
{
    size_t i;
    if (p->form->group == 0) return 1;
    if (p->form->group == 128)
        i = r / 128 * p->scale_cols + c / 128;
    else
        i = (r / 16 * p->scale_cols + c / p->form->group) * 16 + r % 16;
    float f = 0;
    uint16_t h;
    switch (p->scale_encoding) {
    case MOEPACK_ENC_E8M0:
        return p->scales[i] == 255 ? NAN : ldexp(1, p->scales[i] - 127);
    case MOEPACK_ENC_E4M3:
        return e4m3_value(p->scales[i]);
    case MOEPACK_ENC_F32:
        memcpy(&f, p->scales + 4 * i, 4);
        return f;
    case MOEPACK_ENC_F16:
        memcpy(&h, p->scales + 2 * i, 2);
        return half_value(h);
    default:
        memcpy((uint8_t *)&f + 2, p->scales + 2 * i, 2);
        return f;
    }
}

static void fill_scales(test_random *r, product *p, size_t count, bool plain)
{
    const size_t width = mpk_scale_bytes(p->scale_encoding);
    for (size_t i = 0; i < count; i++) {
        const float v = (float)(0.01 + test_uniform(r));
        uint8_t *at = p->scales + i * width;
        uint32_t bits;
        uint16_t half = (uint16_t)(0x2000 + test_below(r, 0x1c00));
        memcpy(&bits, &v, 4);
        if (p->scale_encoding == MOEPACK_ENC_F32) memcpy(at, &v, 4);
        if (p->scale_encoding == MOEPACK_ENC_BF16) memcpy(at, (uint8_t *)&bits + 2, 2);
        if (p->scale_encoding == MOEPACK_ENC_F16) memcpy(at, &half, 2);
        if (p->scale_encoding == MOEPACK_ENC_E8M0) *at = (uint8_t)(plain ? 120 + test_below(r, 8) : test_below(r, 256));
        if (p->scale_encoding == MOEPACK_ENC_E4M3)
            *at = (uint8_t)(plain ? 0x20 + test_below(r, 0x28) : test_below(r, 256));
    }
}

/* Plain products have neither NaN nor infinite values. */
static product make_product(test_random *r, const form_case *form, size_t rows, size_t cols, size_t tokens, bool plain)
{
    product p = {.form = form, .rows = rows, .cols = cols, .row_blocks = (rows + 15) / 16, .tokens = tokens};
    const size_t tile = 128 / form->bits;
    p.tiles = (cols + tile - 1) / tile;
    p.padded = (cols + 31) / 32 * 32;
    p.scale_encoding = scale_encodings[test_below(r, 5)];
    if (form->group == 16) p.scale_encoding = MOEPACK_ENC_E4M3;
    p.scale_cols = form->group == 0 ? 0 : (cols + form->group - 1) / form->group;
    const size_t scale_rows = form->group == 128 ? (rows + 127) / 128 : p.row_blocks * 16;
    p.weights = test_alloc(p.row_blocks * p.tiles * 256);
    p.scales = test_alloc(scale_rows * p.scale_cols * 4 + 64);
    fill_scales(r, &p, scale_rows * p.scale_cols, plain);
    for (size_t row = 0; row < rows; row++)
        for (size_t c = 0; c < cols; c++) {
            uint32_t code = (uint32_t)(test_next(r) >> 40) & ((1u << form->bits) - 1);
            if (form->bits == 16 && (plain || test_below(r, 16) != 0)) code &= 0xbfffu;
            if (form->bits == 8 && (code & 127) == 127 && (plain || test_below(r, 4) != 0)) code &= 0x8fu;
            const size_t w = 32 / form->bits;
            uint32_t word;
            uint8_t *at = p.weights + (row / 16 * p.tiles + c / tile) * 256 + c % tile / w * 64 + row % 16 * 4;
            memcpy(&word, at, 4);
            word |= code << (c % w * form->bits);
            memcpy(at, &word, 4);
        }
    p.x = test_alloc(tokens * p.padded * sizeof(float));
    p.blocks = test_alloc(tokens * p.padded / 32 * sizeof(mpk_fix16_block));
    for (size_t t = 0; t < tokens; t++) {
        float *x = p.x + t * p.padded;
        for (size_t c = 0; c < cols; c++) x[c] = (float)test_normal(r);
        if (!plain && test_below(r, 8) == 0) x[test_below(r, (uint32_t)cols)] = INFINITY;
        mpk_kernels_scalar.round_bf16(x, x, p.padded);
        mpk_kernels_scalar.quantize(x, p.blocks + t * (p.padded / 32), p.padded / 32);
    }
    return p;
}

static void free_product(product *p)
{
    free(p->weights);
    free(p->scales);
    free(p->x);
    free(p->blocks);
}

/* y [tokens][16 row_blocks], `run` row blocks at a time. */
static float *multiply(mpk_form_table *table, const product *p, size_t run)
{
    const void *x[MAX_TOKENS];
    float *y = test_alloc(p->tokens * p->row_blocks * 16 * sizeof(float)), *rows[MAX_TOKENS];
    for (size_t first = 0; first < p->row_blocks; first += run) {
        for (size_t t = 0; t < p->tokens; t++) {
            rows[t] = y + t * p->row_blocks * 16 + first * 16;
            x[t] = p->form->fix16 ? (const void *)(p->blocks + t * (p->padded / 32)) : p->x + t * p->padded;
        }
        const mpk_gemv op = {.weights = p->weights + first * p->tiles * 256,
                             .tiles = p->tiles,
                             .row_blocks = p->row_blocks - first < run ? p->row_blocks - first : run,
                             .tokens = p->tokens,
                             .x = x,
                             .y = rows};
        const size_t skip = p->form->group == 128 ? 0 : first * 16 * p->scale_cols * mpk_scale_bytes(p->scale_encoding);
        const mpk_form_scales scales = {p->scales + skip, p->scale_encoding, p->scale_cols, first * 16};
        (*table)[p->form->form](&op, &scales);
    }
    return y;
}

static void test_families_agree(void **state)
{
    (void)state;
    static const uint16_t rows[] = {1, 16, 17, 130, 290}, cols[] = {16, 32, 48, 64, 112, 128, 144, 272, 512, 528, 1056};
    size_t count;
    const test_family *families = test_families(&count);
    test_random r = {11};
    for (size_t c = 0; c < CASES; c++)
        for (size_t i = 0; i < sizeof cols / sizeof cols[0]; i++)
            for (int plain = 0; plain < 2; plain++) {
                const size_t wide = cases[c].group == 32 && cases[c].bits == 4 ? (cols[i] + 31u) / 32 * 32 : cols[i];
                product p =
                    make_product(&r, &cases[c], rows[test_below(&r, 5)], wide, 1 + test_below(&r, MAX_TOKENS), plain);
                float *expected = multiply(&mpk_forms_scalar, &p, 1);
                for (size_t f = 0; f < count; f++) {
                    if (families[f].kernels->forms == NULL) continue;
                    char what[128];
                    snprintf(what, sizeof what, "%s %s, %s, [%zu, %zu], %zu tokens", families[f].how,
                             families[f].kernels->name, cases[c].name, p.rows, p.cols, p.tokens);
                    float *y =
                        multiply((mpk_form_table *)(void *)families[f].kernels->forms, &p, 1 + test_below(&r, 12));
                    test_same_bits(y, expected, p.tokens * p.row_blocks * 16, what);
                    free(y);
                }
                free(expected);
                free_product(&p);
            }
}

static void test_scalar_against_double(void **state)
{
    (void)state;
    test_random r = {12};
    for (size_t c = 0; c < CASES; c++)
        for (size_t i = 0; i < 4; i++) {
            product p = make_product(&r, &cases[c], 150, i % 2 ? 320 : 288, 2, true);
            float *y = multiply(&mpk_forms_scalar, &p, 3);
            double *wanted = test_alloc(p.tokens * p.row_blocks * 16 * sizeof *wanted);
            for (size_t t = 0; t < p.tokens; t++)
                for (size_t row = 0; row < p.rows; row++)
                    for (size_t k = 0; k < p.cols; k++)
                        wanted[t * p.row_blocks * 16 + row] += code_value(p.form, code_at(&p, row, k)) *
                                                               scale_at(&p, row, k) * (double)p.x[t * p.padded + k];
            for (size_t t = 0; t < p.tokens; t++) /* padding rows of int4 are not zero */
                for (size_t row = p.rows; row < p.row_blocks * 16; row++) y[t * p.row_blocks * 16 + row] = 0;
            const double error = test_relative_l2(y, wanted, p.tokens * p.row_blocks * 16);
            if (!(error < (p.form->fix16 ? 4e-5 : 1e-6))) fail_msg("%s: %.3g away", p.form->name, error);
            free(wanted);
            free(y);
            free_product(&p);
        }
}

/* Every code alone, and every scale byte. */
static void test_all_values(void **state)
{
    (void)state;
    uint8_t bytes[256];
    for (unsigned i = 0; i < 256; i++) bytes[i] = (uint8_t)i;
    for (unsigned i = 0; i < 256; i++) {
        const double v = e4m3_value(i), e = i == 255 ? NAN : ldexp(1, (int)i - 127);
        const double a = (double)mpk_scale_value(bytes, MOEPACK_ENC_E4M3, i),
                     b = (double)mpk_scale_value(bytes, MOEPACK_ENC_E8M0, i);
        assert_true(isnan(v) ? isnan(a) : a == v);
        assert_true(isnan(e) ? isnan(b) : b == e);
    }
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t code = (uint16_t)h;
        const double v = half_value(h), a = (double)mpk_scale_value((const uint8_t *)&code, MOEPACK_ENC_F16, 0);
        assert_true(isnan(v) ? isnan(a) : a == v);
    }
}

int main(void)
{
    test_print_families();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_families_agree),
                                       cmocka_unit_test(test_scalar_against_double), cmocka_unit_test(test_all_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
