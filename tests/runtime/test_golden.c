/* The fixtures' golden results: published checkpoint -> convert -> load -> layer, against float64 results that another
 * implementation computed (tests/fixtures/README.md). Tolerances are those of that document; what must be equal is
 * compared bit for bit. */
#include "support.h"
#include "tensor_file.h"

#include "moepack/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static char root[256];

/* ---- fixtures and golden files ---- */

typedef struct fixture {
    const char *name;
    char panel[300], canonical[300];
} fixture;

static fixture fixtures[] = {{.name = "k3_tiny"}, {.name = "k3_quant"}};

static void convert(const char *name, moepack_layout layout, char out[300])
{
    char source[400];
    moepack_error error = {0};
    moepack_convert_options options;
    moepack_convert_report report;
    moepack_convert_options_init(&options);
    options.layout = layout;
    snprintf(source, sizeof source, "%s/%s/checkpoint", MOEPACK_FIXTURES, name);
    snprintf(out, 300, "%s/%s-%s.moepack", root, name, layout == MOEPACK_LAYOUT_PANEL ? "panel" : "canonical");
    assert_ok(moepack_convert(source, out, &options, &report, &error), &error);
}

static int set_up(void **state)
{
    (void)state;
    unsetenv("MOEPACK_KERNELS");
    new_dir(root, NULL);
    for (size_t i = 0; i < 2; i++) {
        convert(fixtures[i].name, MOEPACK_LAYOUT_PANEL, fixtures[i].panel);
        convert(fixtures[i].name, MOEPACK_LAYOUT_CANONICAL, fixtures[i].canonical);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(root);
    return 0;
}

typedef struct golden {
    size_t T, H, L, k;
    float *x;
    values ids, weights, s, y;
} golden;

static golden read_golden(const char *file)
{
    golden g;
    values x = read_tensor(file, "x");
    g.ids = read_tensor(file, "topk_ids");
    g.weights = read_tensor(file, "topk_weights");
    g.s = read_tensor(file, "s_f64");
    g.y = read_tensor(file, "y_f64");
    g.T = (size_t)x.dims[0];
    g.H = (size_t)x.dims[1];
    g.L = (size_t)g.s.dims[1];
    g.k = (size_t)g.ids.dims[1];
    g.x = calloc(x.count, sizeof *g.x);
    assert_non_null(g.x);
    for (size_t i = 0; i < x.count; i++) g.x[i] = (float)x.at[i];
    free(x.at);
    return g;
}

static void free_golden(golden *g)
{
    free(g->x);
    free(g->ids.at);
    free(g->weights.at);
    free(g->s.at);
    free(g->y.at);
}

/* ---- results and comparisons ---- */

typedef struct result {
    float *y, *s, *weights;
    int32_t *ids;
    size_t T, H, L, k;
} result;

static result new_result(const golden *g)
{
    result r = {calloc(g->T * g->H, 4),
                calloc(g->T * g->L, 4),
                calloc(g->T * g->k, 4),
                calloc(g->T * g->k, 4),
                g->T,
                g->H,
                g->L,
                g->k};
    assert_true(r.y != NULL && r.s != NULL && r.weights != NULL && r.ids != NULL);
    return r;
}

static void free_result(result *r)
{
    free(r->y);
    free(r->s);
    free(r->weights);
    free(r->ids);
}

static void same(const char *way, const char *what, const void *a, const void *b, size_t count, size_t width)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp((const uint8_t *)a + 4 * i, (const uint8_t *)b + 4 * i, 4) != 0)
            fail_msg("%s: %s differs at row %zu, column %zu", way, what, i / width, i % width);
}

static void assert_same_bits(const char *way, const result *a, const result *b)
{
    same(way, "topk_ids", a->ids, b->ids, a->T * a->k, a->k);
    same(way, "topk_weights", a->weights, b->weights, a->T * a->k, a->k);
    same(way, "s", a->s, b->s, a->T * a->L, a->L);
    same(way, "y", a->y, b->y, a->T * a->H, a->H);
}

static void run_rows(const session *s, uint32_t block, const golden *g, size_t first, size_t rows,
                     const moepack_layer_options *options, const result *r)
{
    moepack_error error = {0};
    const moepack_layer_output output = {r->y + first * g->H, r->s + first * g->L, r->ids + first * g->k,
                                         r->weights + first * g->k, NULL};
    assert_ok(moepack_layer_run(s->load, block, g->x + first * g->H, rows, options, &output, &error), &error);
}

/* rel-L2 over the tensor and over each row; a row that should be all zero must be. */
static void assert_close(const char *what, const double *found, const double *wanted, size_t rows, size_t width,
                         double all_limit, double row_limit)
{
    double all_error = 0, all_size = 0, worst = 0;
    for (size_t r = 0; r < rows; r++) {
        double error = 0, size = 0;
        for (size_t c = 0; c < width; c++) {
            const double d = found[r * width + c] - wanted[r * width + c];
            error += d * d;
            size += wanted[r * width + c] * wanted[r * width + c];
        }
        all_error += error;
        all_size += size;
        if (size == 0) {
            if (error != 0) fail_msg("%s, row %zu: should be zero", what, r);
            continue;
        }
        const double relative = sqrt(error / size);
        if (!(relative <= worst)) worst = relative;
        if (!(relative <= row_limit)) fail_msg("%s, row %zu: rel-L2 %.3g, limit %.3g", what, r, relative, row_limit);
    }
    const double relative = sqrt(all_error / all_size);
    if (!(relative <= all_limit)) fail_msg("%s: rel-L2 %.3g, limit %.3g", what, relative, all_limit);
    print_message("  %-28s rel-L2 %.2e of %.0e, worst row %.2e of %.0e\n", what, relative, all_limit, worst, row_limit);
}

static void assert_close_f32(const char *what, const float *found, const values *wanted, size_t rows, double all_limit,
                             double row_limit)
{
    double *wide = calloc(wanted->count, sizeof *wide);
    assert_non_null(wide);
    for (size_t i = 0; i < wanted->count; i++) wide[i] = (double)found[i];
    assert_close(what, wide, wanted->at, rows, wanted->count / rows, all_limit, row_limit);
    free(wide);
}

static void assert_routing(const result *r, const golden *g)
{
    for (size_t i = 0; i < g->T * g->k; i++) {
        if ((double)r->ids[i] != g->ids.at[i])
            fail_msg("token %zu, slot %zu: expert %d, should be %.0f", i / g->k, i % g->k, r->ids[i], g->ids.at[i]);
        const double d = fabs((double)r->weights[i] - g->weights.at[i]);
        if (!(d <= 1e-6)) fail_msg("token %zu, slot %zu: weight off by %.3g", i / g->k, i % g->k, d);
    }
}

/* ---- the cases ---- */

typedef struct golden_case {
    size_t fixture;
    const char *label, *file;
    double f32_all, f32_row;
} golden_case;

static const golden_case cases[] = {
    {0, "1", "k3_tiny/golden/layer_1.safetensors", 2e-6, 5e-6},
    {0, "2", "k3_tiny/golden/layer_2.safetensors", 2e-6, 5e-6},
    {0, "3", "k3_tiny/golden/layer_3.safetensors", 2e-6, 5e-6},
    {0, "3", "k3_tiny/golden/ties_layer_3.safetensors", 1e-5, 1e-5},
    {1, "1", "k3_quant/golden/layer_1.safetensors", 2e-6, 5e-6},
};
#define CASES (sizeof cases / sizeof *cases)

static void load_whole(session *s, const char *path, moepack_io io)
{
    session_plan(s, path, "linear", 1, 0, NULL);
    assert_ok(session_load(s, 0, io, MOEPACK_CHECK_ON_LOAD), &s->error);
}

static uint32_t block_of(const session *s, const char *label)
{
    const uint32_t block = moepack_index_find_block(moepack_pack_index(s->pack), label);
    assert_true(block != MOEPACK_NO_BLOCK);
    return block;
}

static void results_match_the_goldens(void **state)
{
    (void)state;
    for (size_t c = 0; c < CASES; c++) {
        golden g = read_golden(cases[c].file);
        result r = new_result(&g);
        session s;
        moepack_layer_options options;
        moepack_layer_options_init(&options);
        load_whole(&s, fixtures[cases[c].fixture].panel, MOEPACK_IO_DIRECT);
        print_message("%s\n", cases[c].file);
        options.compute = MOEPACK_COMPUTE_F32;
        run_rows(&s, block_of(&s, cases[c].label), &g, 0, g.T, &options, &r);
        assert_routing(&r, &g);
        assert_close_f32("f32 s", r.s, &g.s, g.T, cases[c].f32_all, cases[c].f32_row);
        assert_close_f32("f32 y", r.y, &g.y, g.T, cases[c].f32_all, cases[c].f32_row);
        options.compute = MOEPACK_COMPUTE_BF16;
        run_rows(&s, block_of(&s, cases[c].label), &g, 0, g.T, &options, &r);
        assert_routing(&r, &g);
        assert_close_f32("bf16 s", r.s, &g.s, g.T, 5e-3, 1.5e-2);
        assert_close_f32("bf16 y", r.y, &g.y, g.T, 5e-3, 1.5e-2);
        options.compute = MOEPACK_COMPUTE_INT8;
        result bf16 = new_result(&g);
        memcpy(bf16.s, r.s, g.T * g.L * sizeof *r.s);
        run_rows(&s, block_of(&s, cases[c].label), &g, 0, g.T, &options, &r);
        assert_memory_not_equal(r.s, bf16.s, g.T * g.L * sizeof *r.s); /* it was another mode that ran */
        free_result(&bf16);
        assert_routing(&r, &g);
        /* Rows of the ties file are so large that the activation saturates: spec/numerics.md 12.5. */
        const bool saturated = strstr(cases[c].file, "ties") != NULL;
        assert_close_f32("int8 s", r.s, &g.s, g.T, saturated ? 2e-1 : 2e-2, saturated ? 2e-1 : 6e-2);
        assert_close_f32("int8 y", r.y, &g.y, g.T, saturated ? 2e-1 : 2e-2, saturated ? 2e-1 : 6e-2);
        session_close(&s);
        free_result(&r);
        free_golden(&g);
    }
}

/* Whether a mistake in the data path would show: without the selection bias the answer is another. */
static void goldens_can_fail(void **state)
{
    (void)state;
    golden g = read_golden(cases[0].file);
    result r = new_result(&g);
    session s;
    moepack_policy policy;
    moepack_layer_options options;
    moepack_layer_options_init(&options);
    options.policy = &policy;
    load_whole(&s, fixtures[0].panel, MOEPACK_IO_DIRECT);
    const uint32_t block = block_of(&s, "1");
    moepack_block info;
    moepack_index_block(moepack_pack_index(s.pack), block, &info);
    assert_ok(moepack_index_policy(moepack_pack_index(s.pack), info.policy, &policy, NULL, &s.error), &s.error);
    assert_ok(moepack_policy_set(&policy, "select", "score", &s.error), &s.error);
    run_rows(&s, block, &g, 0, g.T, &options, &r);
    size_t changed = 0;
    for (size_t i = 0; i < g.T * g.k; i++) changed += (double)r.ids[i] != g.ids.at[i];
    assert_true(changed > 0);
    session_close(&s);
    free_result(&r);
    free_golden(&g);
}

/* ---- one result for every thread count, batch split, kernel family, I/O path and layout ---- */

static void other_threads_and_batches(const session *s, uint32_t block, const golden *g, moepack_layer_options options,
                                      const result *base, result *r)
{
    for (options.threads = 2; options.threads <= 4; options.threads *= 2) {
        run_rows(s, block, g, 0, g->T, &options, r);
        assert_same_bits("more threads", base, r);
    }
    options.threads = 2;
    for (size_t part = 1; part <= 7; part += 3) {
        memset(r->y, 0xff, g->T * g->H * sizeof *r->y);
        for (size_t at = 0; at < g->T; at += part)
            run_rows(s, block, g, at, at + part < g->T ? part : g->T - at, &options, r);
        assert_same_bits("batch in parts", base, r);
    }
}

static void other_kernels(const session *s, uint32_t block, const golden *g, moepack_layer_options options,
                          const result *base, result *r)
{
    static const char *const families[] = {"scalar", "avx2", "avxvnni", "avx512"};
    for (size_t f = 0; f < 4; f++) {
        const char *name;
        moepack_error error = {0};
        options.kernels = families[f];
        if (moepack_kernels_name(families[f], &name, &error) == MOEPACK_E_UNSUPPORTED) continue;
        run_rows(s, block, g, 0, g->T, &options, r);
        assert_same_bits(families[f], base, r);
    }
}

static void other_loads(const golden_case *c, const golden *g, const moepack_layer_options *options, const result *base,
                        result *r)
{
    const fixture *f = &fixtures[c->fixture];
    for (int way = 1; way < 4; way++) {
        session s;
        load_whole(&s, way < 2 ? f->panel : f->canonical, (moepack_io)(way % 2));
        run_rows(&s, block_of(&s, c->label), g, 0, g->T, options, r);
        assert_same_bits("another load", base, r);
        session_close(&s);
    }
}

static void report_kernels(void)
{
    static const char *const families[] = {"scalar", "avx2", "avxvnni", "avx512"};
    for (size_t f = 0; f < 4; f++) {
        const char *name;
        const bool runs = moepack_kernels_name(families[f], &name, NULL) == MOEPACK_OK;
        print_message("kernels %s: %s\n", families[f], runs ? "run natively" : "not on this processor, not run here");
    }
}

static void results_are_bitwise_stable(void **state)
{
    (void)state;
    report_kernels();
    for (size_t c = 0; c < CASES; c++)
        for (int compute = 0; compute < 3; compute++) {
            golden g = read_golden(cases[c].file);
            result base = new_result(&g), r = new_result(&g);
            moepack_layer_options options;
            moepack_layer_options_init(&options);
            options.compute = (moepack_compute)compute;
            options.threads = 1;
            session s;
            load_whole(&s, fixtures[cases[c].fixture].panel, MOEPACK_IO_DIRECT);
            const uint32_t block = block_of(&s, cases[c].label);
            run_rows(&s, block, &g, 0, g.T, &options, &base);
            other_threads_and_batches(&s, block, &g, options, &base, &r);
            other_kernels(&s, block, &g, options, &base, &r);
            session_close(&s);
            other_loads(&cases[c], &g, &options, &base, &r);
            free_result(&r);
            free_result(&base);
            free_golden(&g);
        }
}

typedef struct rank_case {
    size_t fixture;
    const char *label, *layer, *ep3;
} rank_case;

static const rank_case rank_cases[] = {
    {0, "1", "k3_tiny/golden/layer_1.safetensors", "k3_tiny/golden/layer_1_ep3.safetensors"},
    {0, "2", "k3_tiny/golden/layer_2.safetensors", "k3_tiny/golden/layer_2_ep3.safetensors"},
    {0, "3", "k3_tiny/golden/layer_3.safetensors", "k3_tiny/golden/layer_3_ep3.safetensors"},
    {1, "1", "k3_quant/golden/layer_1.safetensors", "k3_quant/golden/layer_1_ep3.safetensors"},
};

/* Three expert-parallel ranks: each one's experts are the golden's range, its part is the golden's, and the parts add
 * up. */
static void ranks_match_the_goldens(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof rank_cases / sizeof *rank_cases; c++) {
        const rank_case *rc = &rank_cases[c];
        golden g = read_golden(rc->layer);
        values parts = read_tensor(rc->ep3, "s_partial_f64");
        values start = read_tensor(rc->ep3, "expert_start"), count = read_tensor(rc->ep3, "expert_count");
        result r = new_result(&g);
        const size_t size = g.T * g.L;
        double *sum = calloc(size, sizeof *sum), *part = calloc(size, sizeof *part);
        assert_true(sum != NULL && part != NULL && parts.count == 3 * size);
        moepack_layer_options options;
        moepack_layer_options_init(&options);
        options.compute = MOEPACK_COMPUTE_F32;
        options.partial = true;
        print_message("%s\n", rc->ep3);
        for (uint32_t rank = 0; rank < 3; rank++) {
            session s;
            char what[32];
            session_plan(&s, fixtures[rc->fixture].panel, "linear", 3, rank, NULL);
            assert_ok(session_load(&s, rank, (moepack_io)(rank % 2), MOEPACK_CHECK_ON_LOAD), &s.error);
            const uint32_t block = block_of(&s, rc->label);
            moepack_block info;
            moepack_index_block(moepack_pack_index(s.pack), block, &info);
            for (uint32_t e = 0; e < info.experts; e++)
                assert_int_equal(moepack_placement_computes(s.placement, rank, block, e),
                                 (double)e >= start.at[rank] && (double)e < start.at[rank] + count.at[rank]);
            run_rows(&s, block, &g, 0, g.T, &options, &r);
            for (size_t i = 0; i < size; i++) {
                part[i] = (double)r.s[i];
                sum[i] += part[i];
            }
            snprintf(what, sizeof what, "rank %u, partial s", rank);
            assert_close(what, part, parts.at + rank * size, g.T, g.L, 2e-6, 5e-6);
            assert_routing(&r, &g);
            session_close(&s);
        }
        assert_close("sum of the ranks", sum, g.s.at, g.T, g.L, 2e-6, 5e-6);
        free(sum);
        free(part);
        free(parts.at);
        free(start.at);
        free(count.at);
        free_result(&r);
        free_golden(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_match_the_goldens),
        cmocka_unit_test(goldens_can_fail),
        cmocka_unit_test(results_are_bitwise_stable),
        cmocka_unit_test(ranks_match_the_goldens),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
