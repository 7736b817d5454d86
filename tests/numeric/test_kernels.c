/* Every kernel of every family gives the scalar family's bits, and the scalar family agrees with double arithmetic. */
#include "common.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than a kernel call of the layer gets. */
#define MAX_TOKENS 67

/* Inputs of a product in all forms that kernels read. */
typedef struct inputs {
    size_t padded, tokens;
    float *x;
    mpk_fix16_block *blocks;
    mpk_int8_block *bytes;
    const void *x_rows[MAX_TOKENS], *block_rows[MAX_TOKENS], *byte_rows[MAX_TOKENS];
} inputs;

static void put_bits(float *at, uint32_t bits)
{
    memcpy(at, &bits, 4);
}

/* Kind 0: Gaussian. Others add what breaks careless kernels, one kind per token at random. */
static void fill_token(test_random *r, float *x, size_t cols, int kind)
{
    static const float scale[] = {1.0f, 1.0f, 1.0f, 0x1p-128f, 0x1p+118f, 1.0f, 0x1p-40f, 1.0f};
    for (size_t i = 0; i < cols; i++) x[i] = (float)test_normal(r) * scale[kind];
    const size_t at = test_below(r, (uint32_t)cols);
    if (kind == 1) x[at] *= 1000.0f;
    if (kind == 2)
        for (size_t i = at / 32 * 32; i < cols && i < at / 32 * 32 + 32; i++) x[i] = i & 1 ? -0.0f : 0.0f;
    if (kind == 5) put_bits(x + at, test_below(r, 2) ? 0x7f800000u : 0xff800000u);
    if (kind == 6) put_bits(x + at, 0xffc12345u);
    if (kind == 7)
        for (size_t i = 0; i < cols; i++) x[i] = test_below(r, 2) ? 1.9921875f : -1.9921875f; /* largest significand */
}

static inputs make_inputs(test_random *r, size_t cols, size_t tokens, bool plain)
{
    inputs in = {.padded = (cols + 31) / 32 * 32, .tokens = tokens};
    in.x = test_alloc(tokens * in.padded * sizeof(float));
    in.blocks = test_alloc(tokens * in.padded / 32 * sizeof(mpk_fix16_block));
    in.bytes = test_alloc(tokens * in.padded / 32 * sizeof(mpk_int8_block));
    for (size_t t = 0; t < tokens; t++) {
        float *x = in.x + t * in.padded;
        mpk_fix16_block *blocks = in.blocks + t * in.padded / 32;
        mpk_int8_block *bytes = in.bytes + t * in.padded / 32;
        fill_token(r, x, cols, plain ? 0 : (int)test_below(r, 8));
        mpk_kernels_scalar.round_bf16(x, x, in.padded);
        mpk_kernels_scalar.quantize(x, blocks, in.padded / 32);
        mpk_kernels_scalar.quantize_int8(x, bytes, in.padded / 32);
        in.x_rows[t] = x;
        in.block_rows[t] = blocks;
        in.byte_rows[t] = bytes;
    }
    return in;
}

static void free_inputs(inputs *in)
{
    free(in->x);
    free(in->blocks);
    free(in->bytes);
}

enum {
    FIX16,
    INT8,
    E2M1,
    BF16,
    F32,
    FORMS
};
static const char *const form_names[] = {"fix16", "int8", "e2m1", "bf16", "f32"};

static moepack_encoding form_encoding(int form)
{
    return form == BF16 ? MOEPACK_ENC_BF16 : form == F32 ? MOEPACK_ENC_F32 : MOEPACK_ENC_E2M1;
}

/* y [tokens][rows rounded up to 16], computed `run` row blocks at a time. */
static float *product(const mpk_kernels *k, int form, const test_matrix *m, const inputs *in, size_t run)
{
    const size_t tile_cols = form == BF16 ? 8 : form == F32 ? 4 : 32;
    const size_t tiles = (m->view.cols + tile_cols - 1) / tile_cols, blocks = (m->view.rows + 15) / 16;
    float *y = test_alloc(in->tokens * blocks * 16 * sizeof(float)), *rows[MAX_TOKENS];
    for (size_t first = 0; first < blocks; first += run) {
        for (size_t t = 0; t < in->tokens; t++) rows[t] = y + t * blocks * 16 + first * 16;
        const mpk_gemv op = {.weights = (const uint8_t *)m->view.weights + first * tiles * 256,
                             .scales = m->scales != NULL ? m->scales + first * tiles * 16 : NULL,
                             .tiles = tiles,
                             .row_blocks = blocks - first < run ? blocks - first : run,
                             .tokens = in->tokens,
                             .x = form == FIX16  ? in->block_rows
                                  : form == INT8 ? in->byte_rows
                                                 : in->x_rows,
                             .y = rows};
        (form == FIX16  ? k->gemv_fix16
         : form == INT8 ? k->gemv_int8
         : form == E2M1 ? k->gemv_e2m1
         : form == BF16 ? k->gemv_bf16
                        : k->gemv_f32)(&op);
    }
    return y;
}

/* Scale bytes at the ends of their range, and weights that are infinite or NaN. */
static void add_extremes(test_random *r, const test_matrix *m)
{
    static const uint8_t bytes[] = {0, 1, 127, 253, 254, 255};
    for (uint64_t row = 0; row < m->view.rows; row++)
        for (uint64_t col = 0; col < m->view.cols; col += 32) {
            if (m->scales != NULL && test_below(r, 4) == 0)
                *test_scale_at(m, row, col) = bytes[test_below(r, test_below(r, 8) == 0 ? 6 : 5)];
            if (m->scales == NULL && test_below(r, 40) == 0)
                test_panel_set(m, row, col, m->view.encoding == MOEPACK_ENC_BF16 ? 0x7f80 : 0x7fc00001u);
        }
}

static void compare_families(test_random *r, int form, uint64_t rows, uint64_t cols, bool plain)
{
    size_t count;
    const test_family *families = test_families(&count);
    test_matrix m = test_matrix_random(r, form_encoding(form), rows, cols, 0.02);
    if (!plain) add_extremes(r, &m);
    const size_t tokens = 1 + test_below(r, test_below(r, 8) == 0 ? MAX_TOKENS : 13),
                 n = tokens * ((rows + 15) / 16 * 16);
    inputs in = make_inputs(r, cols, tokens, plain);
    float *expected = product(&mpk_kernels_scalar, form, &m, &in, 1);
    for (size_t f = 1; f < count; f++) {
        char what[160];
        snprintf(what, sizeof what, "%s %s, %s, [%d, %d], %zu tokens", families[f].how, families[f].kernels->name,
                 form_names[form], (int)rows, (int)cols, tokens);
        float *y = product(families[f].kernels, form, &m, &in, 1 + test_below(r, 4));
        test_same_bits(y, expected, n, what);
        free(y);
    }
    free(expected);
    free_inputs(&in);
    test_matrix_free(&m);
}

static void test_products_of_all_families(void **state)
{
    (void)state;
    static const uint16_t rows[] = {1, 15, 16, 17, 48, 61};
    static const uint16_t cols[] = {1, 7, 31, 32, 33, 64, 96, 100, 128, 130, 256, 288, 500, 512, 544, 1030};
    test_random r = {1};
    for (int form = 0; form < FORMS; form++)
        for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++)
            for (int plain = 0; plain < 2; plain++)
                for (size_t i = 0; i < 3; i++) compare_families(&r, form, rows[test_below(&r, 6)], cols[c], plain);
}

/* Each number of tokens on its own, because each has its own function. */
static void test_token_counts(void **state)
{
    (void)state;
    size_t count;
    const test_family *families = test_families(&count);
    test_random r = {2};
    for (int form = 0; form < FORMS; form++) {
        test_matrix m = test_matrix_random(&r, form_encoding(form), 40, 700, 0.02);
        inputs in = make_inputs(&r, 700, MAX_TOKENS, false);
        float *expected = product(&mpk_kernels_scalar, form, &m, &in, 1);
        for (size_t f = 0; f < count; f++)
            for (size_t tokens = 1; tokens <= MAX_TOKENS; tokens = tokens == 19 ? MAX_TOKENS : tokens + 1) {
                in.tokens = tokens;
                float *y = product(families[f].kernels, form, &m, &in, 3);
                test_same_bits(y, expected, tokens * 48, families[f].kernels->name);
                free(y);
            }
        free(expected);
        free_inputs(&in);
        test_matrix_free(&m);
    }
}

/* All sixteen codes at all scale bytes that are finite, one weight at a time: y = code * 2^(byte - 127) * x. */
static void test_all_codes_and_scales(void **state)
{
    (void)state;
    static const float value[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    size_t count;
    const test_family *families = test_families(&count);
    test_random r = {3};
    test_matrix m = test_matrix_random(&r, MOEPACK_ENC_E2M1, 16, 32, 0.02);
    inputs in = make_inputs(&r, 32, 1, true);
    for (unsigned byte = 0; byte < 255; byte++) {
        memset(m.weights, 0, 256);
        memset(m.scales, (int)byte, 16);
        const uint32_t col = test_below(&r, 32);
        for (uint32_t row = 0; row < 16; row++) test_panel_set(&m, row, col, row);
        for (size_t f = 0; f < count; f++)
            for (int form = FIX16; form <= E2M1; form++) {
                memset(in.x, 0, 32 * sizeof(float));
                in.x[col] = byte < 64 ? 0x1p+30f : byte > 190 ? -0x1p-70f : 1.25f;
                mpk_kernels_scalar.quantize(in.x, in.blocks, 1);
                mpk_kernels_scalar.quantize_int8(in.x, in.bytes, 1);
                float *y = product(families[f].kernels, form, &m, &in, 1), expected[16];
                const int8_t q = in.bytes->q[col / 8][col & 1][col % 8 >> 1];
                const double input = form == INT8 ? q * 2 * (double)in.bytes->scale : (double)in.x[col];
                for (int row = 0; row < 16; row++)
                    expected[row] = (float)(ldexp((double)value[row], (int)byte - 127) * input) + 0.0f;
                test_same_bits(y, expected, 16, families[f].kernels->name);
                free(y);
            }
    }
    free_inputs(&in);
    test_matrix_free(&m);
}

/* Scale byte 255 is NaN whatever the sum is. */
static void test_nan_scale(void **state)
{
    (void)state;
    size_t count;
    const test_family *families = test_families(&count);
    test_random r = {4};
    test_matrix m = test_matrix_random(&r, MOEPACK_ENC_E2M1, 16, 64, 0.02);
    inputs in = make_inputs(&r, 64, 2, true);
    *test_scale_at(&m, 5, 40) = 255;
    memset(in.x, 0, in.padded * sizeof(float)); /* token 0: all sums are 0 */
    mpk_kernels_scalar.quantize(in.x, in.blocks, 2);
    mpk_kernels_scalar.quantize_int8(in.x, in.bytes, 2);
    for (size_t f = 0; f < count; f++)
        for (int form = FIX16; form <= E2M1; form++) {
            float *y = product(families[f].kernels, form, &m, &in, 1);
            for (size_t i = 0; i < 32; i++) {
                uint32_t bits;
                memcpy(&bits, y + i, 4);
                assert_int_equal(bits == 0x7fc00000u, i % 16 == 5);
            }
            free(y);
        }
    free_inputs(&in);
    test_matrix_free(&m);
}

/* Gaussian inputs against double: the F32 chains within 5e-7, fix16 within 2e-5, int8 within 8e-3 (their
 * own quantisation; typical are 4e-6 and 5e-3). */
static void test_products_against_double(void **state)
{
    (void)state;
    static const double limits[FORMS] = {2e-5, 8e-3, 5e-7, 5e-7, 5e-7};
    const uint64_t rows = 64, cols = 1000;
    test_random r = {5};
    for (int form = 0; form < FORMS; form++) {
        test_matrix m = test_matrix_random(&r, form_encoding(form), rows, cols, 0.02);
        inputs in = make_inputs(&r, cols, 4, true);
        float *y = product(&mpk_kernels_scalar, form, &m, &in, 2);
        double *expected = test_alloc(in.tokens * rows * sizeof(double));
        for (size_t t = 0; t < in.tokens; t++)
            for (uint64_t row = 0; row < rows; row++)
                for (uint64_t c = 0; c < cols; c++)
                    expected[t * rows + row] += m.value[row * cols + c] * (double)in.x[t * in.padded + c];
        const double error = test_relative_l2(y, expected, in.tokens * rows);
        if (!(error <= limits[form])) fail_msg("%s: relative error %g", form_names[form], error);
        assert_true(error > 0.0);
        free(expected);
        free(y);
        free_inputs(&in);
        test_matrix_free(&m);
    }
}

/* Blocks are equal byte for byte, and q times the scale is the input within half a unit. */
static void test_quantize(void **state)
{
    (void)state;
    size_t count;
    const test_family *families = test_families(&count);
    test_random r = {6};
    for (int round = 0; round < 400; round++) {
        const size_t blocks = 1 + test_below(&r, 4);
        float x[128];
        mpk_fix16_block expected[4], got[4];
        for (size_t b = 0; b < blocks; b++) fill_token(&r, x + b * 32, 32, (int)test_below(&r, 8));
        if (round % 2 == 0) mpk_kernels_scalar.round_bf16(x, x, blocks * 32);
        mpk_kernels_scalar.quantize(x, expected, blocks);
        for (size_t f = 1; f < count; f++) {
            families[f].kernels->quantize(x, got, blocks);
            assert_memory_equal(got, expected, blocks * sizeof *got);
        }
        for (size_t i = 0; i < blocks * 32; i++) {
            const mpk_fix16_block *b = &expected[i / 32];
            const size_t c = i % 32 / 8, j = i % 8;
            const int q = 256 * b->digit[c][j & 1][0][j >> 1] + b->digit[c][j & 1][1][j >> 1];
            if (isnan(b->scale) || b->scale == 0.0f) {
                assert_int_equal(q, 0);
                continue;
            }
            assert_true(abs(q) <= 32639);
            assert_true(fabs(q * 2.0 * (double)b->scale - (double)x[i]) <= (double)b->scale);
        }
    }
}

/* Blocks are equal byte for byte, q times the step is the input within half a step, and the largest is 126 or 127. */
static void test_quantize_int8(void **state)
{
    (void)state;
    size_t count;
    const test_family *families = test_families(&count);
    test_random r = {9};
    for (int round = 0; round < 2000; round++) {
        float x[32];
        mpk_int8_block expected, got;
        fill_token(&r, x, 32, (int)test_below(&r, 8));
        if (round % 4 == 1)
            for (size_t i = 0; i < 32; i++) put_bits(x + i, test_below(&r, 0x00800000u) >> test_below(&r, 24));
        if (round % 2 == 0) mpk_kernels_scalar.round_bf16(x, x, 32);
        mpk_kernels_scalar.quantize_int8(x, &expected, 1);
        for (size_t f = 1; f < count; f++) {
            families[f].kernels->quantize_int8(x, &got, 1);
            assert_memory_equal(&got, &expected, sizeof got);
        }
        int largest = 0;
        for (size_t i = 0; i < 32; i++) {
            const int q = expected.q[i / 8][i & 1][i % 8 >> 1];
            const double step = 2 * (double)expected.scale;
            largest = abs(q) > largest ? abs(q) : largest;
            if (isnan(expected.scale) || expected.scale == 0.0f) continue;
            if (round % 2 == 0) assert_true(fabs(q * step - (double)x[i]) <= step * (0.5 + 1e-5));
        }
        assert_true(largest <= 127);
        if (expected.scale > 0.0f)
            assert_true(largest >= 126);
        else
            assert_int_equal(largest, 0);
    }
}

/* Hundreds of tokens at once, every count of groups; and each token alone gives the same. */
static void test_many_tokens(void **state)
{
    (void)state;
    enum {
        MANY = 64
    };
    size_t count;
    const test_family *families = test_families(&count);
    test_random r = {10};
    test_matrix m = test_matrix_random(&r, MOEPACK_ENC_E2M1, 32, 1100, 0.02);
    const size_t tiles = 35;
    mpk_int8_block *blocks = test_alloc(MANY * tiles * sizeof *blocks);
    float x[35 * 32] = {0}, *rows[MANY];
    const void *given[MANY];
    for (size_t t = 0; t < MANY; t++) {
        fill_token(&r, x, 1100, (int)test_below(&r, 8));
        mpk_kernels_scalar.quantize_int8(x, blocks + t * tiles, tiles);
        given[t] = blocks + t * tiles;
    }
    float *alone = test_alloc(MANY * 32 * sizeof *alone), *together = test_alloc(MANY * 32 * sizeof *together);
    for (size_t f = 0; f < count; f++)
        for (size_t tokens = f == 0 ? 1 : MANY; tokens <= MANY; tokens += MANY - 1) {
            float *y = tokens == 1 ? alone : together;
            for (size_t t = 0; t < MANY; t += tokens) {
                for (size_t i = 0; i < tokens; i++) rows[i] = y + (t + i) * 32;
                const mpk_gemv op = {m.view.weights, m.view.scales, tiles, 2, tokens, given + t, rows};
                families[f].kernels->gemv_int8(&op);
            }
            if (tokens == MANY) test_same_bits(together, alone, MANY * 32, families[f].kernels->name);
        }
    free(alone);
    free(together);
    free(blocks);
    test_matrix_free(&m);
}

static float special(test_random *r)
{
    static const uint32_t bits[] = {0,          0x80000000u, 1,          0x80000001u, 0x007fffff,
                                    0x7f7fffff, 0xff7fffff,  0x7f800000, 0xff800000,  0x7fc00000,
                                    0xffc00000, 0x7f800001,  0x3f800000, 0x42b17218};
    float v;
    const uint32_t any = (uint32_t)test_next(r);
    memcpy(&v, test_below(r, 4) == 0 ? &bits[test_below(r, 14)] : &any, 4);
    return test_below(r, 2) ? v : (float)(test_normal(r) * 10);
}

/* Element-wise kernels: any bit pattern in, the same bits out (NaNs count as equal before they are made canonical). */
static void test_elementwise(void **state)
{
    (void)state;
    enum {
        N = 160,
        ACTIVATIONS = 8,
        OUTPUTS = 7 + 2 * ACTIVATIONS
    };
    size_t count;
    const test_family *families = test_families(&count);
    test_random r = {7};
    for (int round = 0; round < 200; round++) {
        float a[N], b[N], expected[OUTPUTS][N], got[OUTPUTS][N];
        for (size_t i = 0; i < N; i++) {
            a[i] = special(&r);
            b[i] = special(&r);
        }
        mpk_activation_params params[ACTIVATIONS];
        for (unsigned p = 0; p < ACTIVATIONS; p++) {
            const bool second = round % 2 == 1;
            params[p] = (mpk_activation_params){(moepack_activation)p, second ? 1.5f : 4.0f, second ? 0.0f : 25.0f,
                                                1.702f, second ? 0.0f : 7.0f};
        }
        for (size_t f = 0; f < count; f++) {
            const mpk_kernels *k = families[f].kernels;
            float(*out)[N] = f == 0 ? expected : got;
            k->round_bf16(a, out[0], N);
            k->sigmoid(a, out[1], N);
            k->exp_minus(a, 3.5f, out[2], N);
            memcpy(out[3], b, sizeof b);
            k->accumulate(0.3f, a, out[3], N);
            k->sqrt_softplus(a, out[4], N);
            k->scale(0.3f, a, out[5], N);
            memcpy(out[6], b, sizeof b);
            k->add(a, out[6], N);
            for (size_t p = 0; p < ACTIVATIONS; p++) {
                k->activate(&params[p], a, b, out[7 + 2 * p], N);
                k->activate(&params[p], a, NULL, out[8 + 2 * p], N);
            }
            for (size_t o = 0; f > 0 && o < OUTPUTS; o++)
                for (size_t i = 0; i < N; i++)
                    if (!(isnan(got[o][i]) && isnan(expected[o][i])))
                        test_same_bits(&got[o][i], &expected[o][i], 1, k->name);
        }
    }
}

static void test_norm(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 31, 32, 33, 96, 500, 512, 513, 3584};
    size_t count;
    const test_family *families = test_families(&count);
    test_random r = {8};
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        const size_t n = widths[w], padded = (n + 31) / 32 * 32;
        float *s = test_alloc(padded * 4), *weight = test_alloc(n * 4), *out = test_alloc(n * 4),
              *first = test_alloc(n * 4);
        double squares = 0, *expected = test_alloc(n * sizeof(double));
        for (size_t i = 0; i < n; i++) {
            s[i] = (float)test_normal(&r) * 0.01f;
            weight[i] = (float)test_normal(&r);
            squares += (double)s[i] * (double)s[i];
        }
        for (size_t i = 0; i < n; i++)
            expected[i] = (double)s[i] / sqrt(squares / (double)n + 1e-5) * (double)weight[i];
        for (size_t f = 0; f < count; f++) {
            families[f].kernels->norm(s, weight, 1e-5f, f == 0 ? first : out, n);
            if (f > 0) test_same_bits(out, first, n, families[f].kernels->name);
        }
        assert_true(test_relative_l2(first, expected, n) <= 5e-7);
        free(s);
        free(weight);
        free(out);
        free(first);
        free(expected);
    }
}

static void test_select(void **state)
{
    (void)state;
    const mpk_kernels *kernels = NULL;
    moepack_error error = {0};
    assert_int_equal(mpk_kernels_select("scalar", &kernels, &error), MOEPACK_OK);
    assert_string_equal(kernels->name, "scalar");
    assert_int_equal(mpk_kernels_select("sse9", &kernels, &error), MOEPACK_E_USAGE);
    assert_non_null(strstr(error.message, "sse9"));
    assert_non_null(strstr(error.message, "scalar, neon, avx2, avxvnni, avx512"));
    assert_int_equal(mpk_kernels_select("", &kernels, &error), MOEPACK_E_USAGE);
    const char *best = NULL;
    for (size_t i = 0; mpk_kernels_name(i) != NULL; i++) {
        const moepack_status status = mpk_kernels_select(mpk_kernels_name(i), &kernels, &error);
        assert_int_equal(status, mpk_kernels_usable(i) ? MOEPACK_OK : MOEPACK_E_UNSUPPORTED);
        if (status == MOEPACK_OK) best = mpk_kernels_name(i);
    }
    assert_int_equal(mpk_kernels_select(NULL, &kernels, &error), MOEPACK_OK);
    assert_string_equal(kernels->name, best);
    const char *wanted = getenv("MOEPACK_TEST_BEST"); /* known where the processor is an emulated one */
    if (wanted != NULL) assert_string_equal(kernels->name, wanted);
}

/* Whatever the caller set, kernels see round-to-nearest with subnormals, and the caller gets its state back. */
static void test_float_guard(void **state)
{
    (void)state;
    volatile float one = 1.0f, three = 3.0f, tiny = 0x1p-126f, half = 0.5f;
    volatile float nearest = one / three; /* volatile results: the divisions must stay where they stand */
    assert_int_equal(fesetround(FE_DOWNWARD), 0);
    volatile float down = one / three;
    mpk_float_guard guard;
    mpk_float_enter(&guard);
    volatile float inside = one / three, kept = tiny * half;
    mpk_float_leave(&guard);
    volatile float after = one / three;
    fesetround(FE_TONEAREST);
    assert_true(inside == nearest && after == down && down < nearest);
    assert_true(kept == 0x1p-127f);
}

int main(void)
{
    test_print_families();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_of_all_families),
        cmocka_unit_test(test_token_counts),
        cmocka_unit_test(test_all_codes_and_scales),
        cmocka_unit_test(test_nan_scale),
        cmocka_unit_test(test_products_against_double),
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_quantize_int8),
        cmocka_unit_test(test_many_tokens),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_select),
        cmocka_unit_test(test_float_guard),
    };
    return cmocka_run_group_tests_name("numeric kernels", tests, NULL, NULL);
}
