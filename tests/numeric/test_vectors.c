/* spec/vectors/numerics.json, made by an independent implementation in exact arithmetic, bit for bit with every family.
 */
#include "common.h"
#include "cpu/elementary.h"
#include "cpu/forms.h"
#include "layer_job.h"
#include "router.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *vectors;

static json_t *get(const json_t *object, const char *key)
{
    json_t *item = json_object_get(object, key);
    if (item == NULL) fail_msg("numerics.json has no \"%s\"", key);
    return item;
}

static const char *text(const json_t *object, const char *key)
{
    const char *s = json_string_value(get(object, key));
    assert_non_null(s);
    return s;
}

static double number(const json_t *object, const char *key)
{
    json_t *item = get(object, key);
    assert_true(json_is_number(item));
    return json_number_value(item);
}

/* Floats from a string of hexadecimal words; room for `padding` zeros more. */
static float *floats(const char *s, size_t *count, size_t padding)
{
    const size_t n = (strlen(s) + 1) / 9;
    float *v = test_alloc((n + padding) * sizeof(float));
    for (size_t i = 0; i < n; i++) v[i] = mpk_float((uint32_t)strtoul(s + 9 * i, NULL, 16));
    if (count != NULL) *count = n;
    return v;
}

static float *get_floats(const json_t *object, const char *key, size_t *count)
{
    return floats(text(object, key), count, 32);
}

static void canonical_all(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++) v[i] = mpk_canonical(v[i]);
}

static void test_functions(void **state)
{
    (void)state;
    size_t count, n;
    const test_family *families = test_families(&count);
    const json_t *functions = get(vectors, "functions");
    float *x = get_floats(functions, "x", &n), *e = get_floats(functions, "exp", NULL),
          *s = get_floats(functions, "sigmoid", NULL), *t = get_floats(functions, "tanh", NULL),
          *b = get_floats(functions, "round_bf16", NULL), *p = get_floats(functions, "sqrt_softplus", NULL),
          *error = get_floats(functions, "erf", NULL), *out = test_alloc((n + 16) * 4);
    assert_true(n > 50);
    for (size_t i = 0; i < n; i++) {
        out[i] = mpk_canonical(mpk_tanh(x[i]));
        if (mpk_bits(out[i]) != mpk_bits(t[i]))
            fail_msg("tanh(%a): %a, expected %a", (double)x[i], (double)out[i], (double)t[i]);
        out[i] = mpk_canonical(mpk_erf(x[i]));
        if (mpk_bits(out[i]) != mpk_bits(error[i]))
            fail_msg("erf(%a): %a, expected %a", (double)x[i], (double)out[i], (double)error[i]);
    }
    const size_t padded = (n + 15) / 16 * 16;
    for (size_t f = 0; f < count; f++) {
        const mpk_kernels *k = families[f].kernels;
        k->exp_minus(x, 0.0f, out, padded);
        canonical_all(out, n);
        test_same_bits(out, e, n, "exp");
        k->sigmoid(x, out, padded);
        canonical_all(out, n);
        test_same_bits(out, s, n, "sigmoid");
        k->sqrt_softplus(x, out, padded);
        canonical_all(out, n);
        test_same_bits(out, p, n, "sqrt_softplus");
        k->round_bf16(x, out, padded);
        test_same_bits(out, b, n, "round_bf16");
    }
    free(x);
    free(e);
    free(s);
    free(t);
    free(b);
    free(p);
    free(error);
    free(out);
}

static void test_activations(void **state)
{
    (void)state;
    size_t count, index, n;
    const test_family *families = test_families(&count);
    json_t *v;
    json_array_foreach(get(vectors, "activations"), index, v)
    {
        moepack_policy policy;
        moepack_policy_init(&policy);
        assert_int_equal(moepack_policy_set(&policy, "activation", text(v, "activation"), NULL), MOEPACK_OK);
        const mpk_activation_params params = {(moepack_activation)policy.activation, (float)number(v, "situ_beta"),
                                              (float)number(v, "situ_linear_beta"), (float)number(v, "act_alpha"),
                                              (float)number(v, "act_limit")};
        const bool gated = json_is_true(get(v, "gated"));
        float *g = get_floats(v, "gate", &n), *u = get_floats(v, "up", NULL), *expected = get_floats(v, "out", NULL),
              *out = test_alloc(n * 4);
        assert_int_equal(n % 16, 0);
        for (size_t f = 0; f < count; f++) {
            families[f].kernels->activate(&params, g, gated ? u : NULL, out, n);
            canonical_all(out, n);
            test_same_bits(out, expected, n, text(v, "activation"));
        }
        free(g);
        free(u);
        free(expected);
        free(out);
    }
    assert_int_equal(index, 16);
}

static void test_fix16_inputs(void **state)
{
    (void)state;
    size_t count, index;
    const test_family *families = test_families(&count);
    json_t *v;
    json_array_foreach(get(vectors, "fix16_inputs"), index, v)
    {
        float *x = get_floats(v, "x", NULL), *f = get_floats(v, "f", NULL);
        for (size_t i = 0; i < count; i++) {
            mpk_fix16_block b;
            families[i].kernels->quantize(x, &b, 1);
            test_same_bits(&b.scale, f, 1, "f");
            for (size_t c = 0; c < 32; c++) {
                const size_t line = c / 8, j = c % 8;
                const int q = 256 * b.digit[line][j & 1][0][j >> 1] + b.digit[line][j & 1][1][j >> 1];
                assert_int_equal(q, json_integer_value(json_array_get(get(v, "q"), c)));
            }
        }
        free(x);
        free(f);
    }
    assert_true(index >= 10);
}

static void test_int8_inputs(void **state)
{
    (void)state;
    size_t count, index;
    const test_family *families = test_families(&count);
    json_t *v;
    json_array_foreach(get(vectors, "int8_inputs"), index, v)
    {
        float *x = get_floats(v, "x", NULL), *f = get_floats(v, "f", NULL);
        for (size_t i = 0; i < count; i++) {
            mpk_int8_block b;
            families[i].kernels->quantize_int8(x, &b, 1);
            test_same_bits(&b.scale, f, 1, "f");
            for (size_t c = 0; c < 32; c++)
                assert_int_equal(b.q[c / 8][c & 1][c % 8 >> 1], json_integer_value(json_array_get(get(v, "q"), c)));
        }
        free(x);
        free(f);
    }
    assert_true(index >= 19);
}

/* A panel of random rows; the row of a vector goes into row 0, which alone is compared. */
static test_matrix one_row(moepack_encoding encoding, size_t cols)
{
    test_random r = {99};
    return test_matrix_random(&r, encoding, 5, cols, 0.02);
}

static float first_row(void (*gemv)(const mpk_gemv *), const test_matrix *m, size_t tile_cols, const void *x)
{
    float y[16], *rows[1] = {y};
    const void *inputs[1] = {x};
    const mpk_gemv op = {m->weights, m->scales, (m->view.cols + tile_cols - 1) / tile_cols, 1, 1, inputs, rows};
    gemv(&op);
    return y[0];
}

static void test_e2m1_rows(void **state)
{
    (void)state;
    size_t count, index, cols;
    const test_family *families = test_families(&count);
    json_t *v;
    json_array_foreach(get(vectors, "e2m1_rows"), index, v)
    {
        float *x = get_floats(v, "x", &cols), *fix16 = get_floats(v, "fix16", NULL),
              *int8 = get_floats(v, "int8", NULL), *f32 = get_floats(v, "f32", NULL);
        const char *codes = text(v, "codes");
        const size_t blocks = (cols + 31) / 32;
        assert_int_equal(strlen(codes), cols);
        test_matrix m = one_row(MOEPACK_ENC_E2M1, cols);
        for (size_t c = 0; c < cols; c++) {
            const char digit[2] = {codes[c], 0};
            test_panel_set(&m, 0, c, (uint32_t)strtoul(digit, NULL, 16));
            *test_scale_at(&m, 0, c) = (uint8_t)json_integer_value(json_array_get(get(v, "scales"), c / 32));
        }
        mpk_fix16_block *q = test_alloc(blocks * sizeof *q);
        mpk_int8_block *bytes = test_alloc(blocks * sizeof *bytes);
        for (size_t f = 0; f < count; f++) {
            const mpk_kernels *k = families[f].kernels;
            k->quantize(x, q, blocks);
            const float a = first_row(k->gemv_fix16, &m, 32, q), b = first_row(k->gemv_e2m1, &m, 32, x);
            test_same_bits(&a, fix16, 1, "fix16 row");
            test_same_bits(&b, f32, 1, "f32 row");
            k->quantize_int8(x, bytes, blocks);
            const float c = first_row(k->gemv_int8, &m, 32, bytes);
            test_same_bits(&c, int8, 1, "int8 row");
        }
        free(q);
        free(bytes);
        free(int8);
        free(x);
        free(fix16);
        free(f32);
        test_matrix_free(&m);
    }
    assert_int_equal(index, 26);
}

static void test_dense_rows(void **state)
{
    (void)state;
    size_t count, index, cols;
    const test_family *families = test_families(&count);
    json_t *v;
    json_array_foreach(get(vectors, "dense_rows"), index, v)
    {
        const bool bf16 = strcmp(text(v, "encoding"), "BF16") == 0;
        float *x = get_floats(v, "x", &cols), *w = get_floats(v, "w", NULL), *y = get_floats(v, "y", NULL);
        test_matrix m = one_row(bf16 ? MOEPACK_ENC_BF16 : MOEPACK_ENC_F32, cols);
        for (size_t c = 0; c < cols; c++) test_panel_set(&m, 0, c, bf16 ? mpk_bits(w[c]) >> 16 : mpk_bits(w[c]));
        for (size_t f = 0; f < count; f++) {
            const mpk_kernels *k = families[f].kernels;
            const float a = first_row(bf16 ? k->gemv_bf16 : k->gemv_f32, &m, bf16 ? 8 : 4, x);
            test_same_bits(&a, y, 1, "dense row");
        }
        free(x);
        free(w);
        free(y);
        test_matrix_free(&m);
    }
    assert_int_equal(index, 18);
}

static moepack_encoding encoding_of(const char *name)
{
    for (int e = 0; moepack_encoding_name((moepack_encoding)e) != NULL; e++)
        if (strcmp(moepack_encoding_name((moepack_encoding)e), name) == 0) return (moepack_encoding)e;
    fail_msg("no encoding %s", name);
    return MOEPACK_ENC_NONE;
}

/* Element i of a row whose words are `step` bytes apart, or of an array (step: bytes of a word). */
static void put_code(uint8_t *at, size_t i, size_t bits, size_t step, uint32_t code)
{
    uint32_t word;
    uint8_t *to = at + i / (32 / bits) * step;
    memcpy(&word, to, 4);
    word |= code << (i % (32 / bits) * bits);
    memcpy(to, &word, 4);
}

static void test_form_rows(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        mpk_scale_kind kind;
    } kinds[] = {{"none", MPK_SCALE_NONE},
                 {"one", MPK_SCALE_ONE},
                 {"rows", MPK_SCALE_ROWS},
                 {"grid", MPK_SCALE_GRID},
                 {"groups", MPK_SCALE_GROUPS}};
    size_t count, index, cols;
    const test_family *families = test_families(&count);
    json_t *v;
    json_array_foreach(get(vectors, "form_rows"), index, v)
    {
        float *x = get_floats(v, "x", &cols), *f32 = get_floats(v, "f32", NULL);
        const json_t *codes = get(v, "codes"), *scales = get(v, "scales"), *fix16 = json_object_get(v, "fix16");
        const moepack_encoding encoding = encoding_of(text(v, "encoding")),
                               scale = encoding_of(text(v, "scale_encoding"));
        const size_t bits = encoding == MOEPACK_ENC_F16 ? 16 : encoding == MOEPACK_ENC_E4M3 ? 8 : 4;
        const size_t width = mpk_scale_bytes(scale);
        uint8_t *weights = test_alloc((cols + 31) * bits * 64 / 32 + 256),
                *at = test_alloc(json_array_size(scales) * 64 + 64);
        float global = 0;
        mpk_matrix_view m = {.weights = weights,
                             .encoding = encoding,
                             .rows = 1,
                             .cols = cols,
                             .scales = at,
                             .scale_encoding = scale,
                             .group_cols = (uint32_t)number(v, "group")};
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            if (strcmp(kinds[k].name, text(v, "kind")) == 0) m.scale_kind = kinds[k].kind;
        for (size_t c = 0; c < cols; c++)
            put_code(weights, c, bits, 64, (uint32_t)json_integer_value(json_array_get(codes, c)));
        for (size_t g = 0; g < json_array_size(scales); g++) {
            const uint32_t code = (uint32_t)json_integer_value(json_array_get(scales, g));
            memcpy(at + (m.scale_kind == MPK_SCALE_GROUPS ? g * 16 : g) * width, &code, width);
        }
        if (json_object_get(v, "global") != NULL) {
            float *word = get_floats(v, "global", NULL);
            global = word[0];
            free(word);
            m.global = (const uint8_t *)&global;
            m.global_divides = json_is_true(get(v, "divides"));
        }
        mpk_fix16_block *q = test_alloc((cols + 31) / 32 * sizeof *q);
        for (size_t f = 0; f < count; f++) {
            const mpk_job job = {.kernels = families[f].kernels, .round = true};
            float y[16], *rows[1] = {y};
            const void *floats_in[1] = {x}, *blocks_in[1] = {q};
            mpk_multiply(&job, &m, false, 0, 1, floats_in, rows, 1);
            test_same_bits(y, f32, 1, text(v, "encoding"));
            if (fix16 == NULL) continue;
            float *wanted = get_floats(v, "fix16", NULL);
            families[f].kernels->quantize(x, q, (cols + 31) / 32);
            mpk_multiply(&job, &m, true, 0, 1, blocks_in, rows, 1);
            test_same_bits(y, wanted, 1, "fix16 row of a form");
            free(wanted);
        }
        free(q);
        free(x);
        free(f32);
        free(weights);
        free(at);
    }
    assert_int_equal(index, 48);
}

static void test_norm(void **state)
{
    (void)state;
    size_t count, index, n;
    const test_family *families = test_families(&count);
    json_t *v;
    json_array_foreach(get(vectors, "norm"), index, v)
    {
        float *s = get_floats(v, "s", &n), *w = get_floats(v, "w", NULL), *expected = get_floats(v, "out", NULL),
              *out = test_alloc(n * 4);
        for (size_t f = 0; f < count; f++) {
            families[f].kernels->norm(s, w, (float)number(v, "norm_eps"), out, n);
            canonical_all(out, n);
            test_same_bits(out, expected, n, "norm");
        }
        free(s);
        free(w);
        free(expected);
        free(out);
    }
    assert_true(index >= 6);
}

/* Policy fields by the names and values of spec/container.md section 6. */
static moepack_policy read_policy(const json_t *object)
{
    moepack_policy p;
    moepack_policy_init(&p);
    const char *key;
    json_t *item;
    moepack_error error;
    json_object_foreach((json_t *)(uintptr_t)object, key, item)
    {
        char value[64];
        if (json_is_string(item))
            snprintf(value, sizeof value, "%s", json_string_value(item));
        else if (strcmp(key, "renorm_k1") == 0)
            snprintf(value, sizeof value, "%s", json_integer_value(item) ? "yes" : "no");
        else if (json_is_integer(item))
            snprintf(value, sizeof value, "%lld", (long long)json_integer_value(item));
        else
            snprintf(value, sizeof value, "%.17g", json_real_value(item));
        if (moepack_policy_set(&p, key, value, &error) != MOEPACK_OK) fail_msg("%s", error.message);
    }
    return p;
}

static void test_router(void **state)
{
    (void)state;
    size_t count, index, experts, k;
    const test_family *families = test_families(&count);
    json_t *v;
    json_array_foreach(get(vectors, "router"), index, v)
    {
        const moepack_policy p = read_policy(get(v, "policy"));
        float *logits = get_floats(v, "logits", &experts), *bias = get_floats(v, "bias", NULL),
              *expected = get_floats(v, "weights", &k), weights[64];
        int32_t ids[64];
        assert_int_equal(k, p.top_k);
        const bool use_bias = p.select == MOEPACK_SELECT_BIASED || p.weight_from == MOEPACK_WEIGHT_BIASED;
        void *scratch = test_alloc(mpk_router_scratch_size((uint32_t)experts));
        int32_t row[64]; /* a token table has just the ids that are expected */
        for (size_t i = 0; i < k; i++) row[i] = (int32_t)json_integer_value(json_array_get(get(v, "ids"), i));
        const mpk_router_input in = {logits, use_bias ? bias : NULL, row};
        for (size_t f = 0; f < count; f++) {
            mpk_route(&p, (uint32_t)experts, &in, families[f].kernels, scratch, ids, weights);
            for (size_t i = 0; i < k; i++)
                assert_int_equal(ids[i], json_integer_value(json_array_get(get(v, "ids"), i)));
            test_same_bits(weights, expected, k, "weights");
        }
        free(scratch);
        free(logits);
        free(bias);
        free(expected);
    }
    assert_int_equal(index, 96);
}

/* ------------------------------------------------------------------------------------------------ the whole layer */

static test_matrix read_matrix(const json_t *object)
{
    const bool four_bits = strcmp(text(object, "encoding"), "E2M1") == 0;
    const json_t *rows = get(object, "rows");
    const size_t width = strlen(json_string_value(json_array_get(rows, 0))), cols = four_bits ? width : (width + 1) / 9;
    test_random r = {1};
    test_matrix m =
        test_matrix_random(&r, four_bits ? MOEPACK_ENC_E2M1 : MOEPACK_ENC_BF16, json_array_size(rows), cols, 1);
    for (size_t row = 0; row < m.view.rows; row++) {
        const char *s = json_string_value(json_array_get(rows, row));
        for (size_t c = 0; c < cols; c++) {
            char word[9] = {0};
            memcpy(word, four_bits ? s + c : s + 9 * c, four_bits ? 1 : 8);
            const uint32_t bits = (uint32_t)strtoul(word, NULL, 16);
            test_panel_set(&m, row, c, four_bits ? bits : bits >> 16);
            if (four_bits)
                *test_scale_at(&m, row, c) =
                    (uint8_t)json_integer_value(json_array_get(json_array_get(get(object, "scales"), row), c / 32));
        }
    }
    return m;
}

static void compare_rows(const float *got, const json_t *rows, size_t width, const char *what)
{
    for (size_t t = 0; t < json_array_size(rows); t++) {
        size_t n;
        float *expected = floats(json_string_value(json_array_get(rows, t)), &n, 0);
        assert_int_equal(n, width);
        test_same_bits(got + t * width, expected, width, what);
        free(expected);
    }
}

static void run_layer(const mpk_layer_view *view, const float *x, const mpk_layer_options *options,
                      const json_t *expected)
{
    const moepack_policy *p = &view->policy;
    float *y = test_alloc(2 * p->hidden * 4), *s = test_alloc(2 * p->expert_input * 4),
          *weights = test_alloc(2 * p->top_k * 4);
    int32_t *ids = test_alloc(2 * p->top_k * 4);
    moepack_error error;
    if (mpk_layer_run(view, x, 2, options, (mpk_layer_output){.y = y, .s = s, .topk_ids = ids, .topk_weights = weights},
                      &error) != MOEPACK_OK)
        fail_msg("%s", error.message);
    for (size_t i = 0; i < 2 * p->top_k; i++) {
        const json_t *row = json_array_get(get(expected, "ids"), i / p->top_k);
        assert_int_equal(ids[i], json_integer_value(json_array_get(row, i % p->top_k)));
    }
    compare_rows(weights, get(expected, "weights"), p->top_k, "weights");
    compare_rows(s, get(expected, "s"), p->expert_input, "s");
    compare_rows(y, get(expected, "y"), p->hidden, "y");
    free(y);
    free(s);
    free(weights);
    free(ids);
}

static void test_layer(void **state)
{
    (void)state;
    enum {
        EXPERTS = 5
    };
    size_t count;
    const test_family *families = test_families(&count);
    const json_t *l = get(vectors, "layer"), *experts = get(l, "experts"), *shared = get(l, "shared"),
                 *rows = get(l, "x");
    mpk_layer_view view = {.policy = read_policy(get(l, "policy")), .experts = EXPERTS};
    view.policy.latent = view.policy.latent_norm = 1;
    view.policy.activation = view.policy.shared_activation = MOEPACK_ACT_SITU;
    assert_int_equal(json_array_size(experts), EXPERTS);
    const json_t *parts[6] = {get(l, "router"),          get(l, "latent_down"),     get(l, "latent_up"),
                              json_array_get(shared, 0), json_array_get(shared, 1), json_array_get(shared, 2)};
    mpk_matrix_view *at[6] = {&view.router,      &view.latent_down, &view.latent_up,
                              &view.shared_gate, &view.shared_up,   &view.shared_down};
    test_matrix dense[6], four_bits[EXPERTS][3];
    for (size_t i = 0; i < 6; i++) {
        dense[i] = read_matrix(parts[i]);
        *at[i] = dense[i].view;
    }
    mpk_expert_view expert[EXPERTS];
    const uint8_t present[EXPERTS] = {1, 1, 1, 1, 1};
    for (size_t e = 0; e < EXPERTS; e++) {
        for (size_t i = 0; i < 3; i++) four_bits[e][i] = read_matrix(json_array_get(json_array_get(experts, e), i));
        expert[e] =
            (mpk_expert_view){.gate = four_bits[e][0].view, .up = four_bits[e][1].view, .down = four_bits[e][2].view};
    }
    float *bias = get_floats(l, "router_bias", NULL), *norm = get_floats(l, "latent_norm", NULL),
          *x = test_alloc(2 * view.policy.hidden * 4);
    view.router_bias = bias;
    view.latent_norm = norm;
    view.expert = expert;
    view.present = present;
    for (size_t t = 0; t < 2; t++) {
        float *row = floats(json_string_value(json_array_get(rows, t)), NULL, 0);
        memcpy(x + t * view.policy.hidden, row, view.policy.hidden * 4);
        free(row);
    }
    for (size_t f = 0; f < count; f++) {
        const json_t *results = get(l, "results");
        mpk_layer_options options = {.kernels = families[f].kernels, .threads = 2};
        run_layer(&view, x, &options, get(results, "bf16"));
        options.compute = MPK_COMPUTE_F32;
        run_layer(&view, x, &options, get(results, "f32"));
        options.compute = MPK_COMPUTE_INT8;
        run_layer(&view, x, &options, get(results, "int8"));
    }
    for (size_t i = 0; i < 6; i++) test_matrix_free(&dense[i]);
    for (size_t e = 0; e < EXPERTS; e++)
        for (size_t i = 0; i < 3; i++) test_matrix_free(&four_bits[e][i]);
    free(bias);
    free(norm);
    free(x);
}

int main(void)
{
    json_error_t error;
    vectors = json_load_file(MOEPACK_SPEC "/vectors/numerics.json", 0, &error);
    if (vectors == NULL) {
        fprintf(stderr, "numerics.json, line %d: %s\n", error.line, error.text);
        return 1;
    }
    test_print_families();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions),   cmocka_unit_test(test_activations), cmocka_unit_test(test_fix16_inputs),
        cmocka_unit_test(test_e2m1_rows),   cmocka_unit_test(test_dense_rows),  cmocka_unit_test(test_norm),
        cmocka_unit_test(test_router),      cmocka_unit_test(test_layer),       cmocka_unit_test(test_form_rows),
        cmocka_unit_test(test_int8_inputs),
    };
    const int failures = cmocka_run_group_tests_name("numeric vectors", tests, NULL, NULL);
    json_decref(vectors);
    return failures;
}
