/* Figures of arithmetic: the router, experts, dense parts and whole layers.
 *
 * Weights are loaded as often as it takes to fill more than the last-level cache, and every run takes the next experts
 * of the next copy, so that each one is read from memory. One or two tokens are held against the read scan; more
 * against the peak of the units that do the products, or, for whole layers, against whichever of the two takes longer.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* A limit is measured as long as its figure, up to this. */
#define LIMIT_SECONDS 0.2

enum {
    COPIES_MAX = 8,
    TOKENS_MAX = 512
};

typedef struct compute {
    bench *b;
    bench_dir dir;
    bench_load load[COPIES_MAX];
    unsigned copies;
    moepack_policy policy;
    uint32_t experts;
    uint64_t expert_bytes, dense_bytes, router_bytes;
    double expert_flops, dense_flops, router_flops; /* per token (and expert) */
    float *x, *z, *s, *y, *weights;
    int32_t *ids;
    uint8_t *touched; /* [experts] */
    uint64_t random;
} compute;

/* What one run did. */
typedef struct work_done {
    double seconds, bytes, word_flops, f32_flops;
} work_done;

typedef struct compute_figure compute_figure;
typedef moepack_status compute_step(compute *c, const compute_figure *figure, unsigned run, work_done *done,
                                    moepack_error *error);

typedef enum bound {
    BOUND_MEMORY,
    BOUND_COMPUTE,
    BOUND_EITHER
} bound;

struct compute_figure {
    unsigned bit; /* group that shows it */
    const char *name;
    size_t tokens;
    bool quick, one_thread, skewed;
    bound bound;
    compute_step *run;
    bool int8; /* --compute int8 */
};

/* ------------------------------------------------------------------------------------------------- inputs */

/* xorshift64*: the values decide nothing but must differ. Sum of four: bell-shaped enough. */
static float next_random(compute *c)
{
    float sum = 0;
    c->random ^= c->random >> 12;
    c->random ^= c->random << 25;
    c->random ^= c->random >> 27;
    const uint64_t bits = c->random * UINT64_C(2685821657736338717);
    for (int i = 0; i < 4; i++) sum += (float)((bits >> (16 * i)) & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7f;
}

static void fill(compute *c, float *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) rows[i] = next_random(c);
}

/* Tokens that resemble each other, so that they choose nearly the same experts. */
static void fill_skewed(compute *c, float *rows, size_t tokens, size_t width)
{
    fill(c, rows, width);
    for (size_t t = tokens; t-- > 0;)
        for (size_t i = 0; i < width; i++) rows[t * width + i] = rows[i] + (t > 0 ? 0.1f * next_random(c) : 0.0f);
}

static moepack_layer_options layer_options(const compute *c, const compute_figure *figure)
{
    moepack_layer_options options;
    moepack_layer_options_init(&options);
    options.threads = figure->one_thread ? 1 : c->b->threads;
    options.kernels = c->b->kernels;
    if (figure->int8) options.compute = MOEPACK_COMPUTE_INT8;
    return options;
}

/* ------------------------------------------------------------------------------------------------- runs */

static const moepack_load *copy_of(const compute *c, unsigned run)
{
    return c->load[run % c->copies].load;
}

static moepack_status run_router(compute *c, const compute_figure *f, unsigned run, work_done *done,
                                 moepack_error *error)
{
    const moepack_layer_options options = layer_options(c, f);
    fill(c, c->x, f->tokens * (size_t)c->policy.hidden);
    const double started = cli_seconds();
    moepack_status status =
        moepack_layer_begin(copy_of(c, run), 0, c->x, f->tokens, &options, c->ids, c->weights, NULL, error);
    done->seconds = cli_seconds() - started;
    done->bytes = (double)c->router_bytes;
    done->f32_flops = c->router_flops * (double)f->tokens;
    return status;
}

/* Every token goes to the same experts: as many rows per expert as there are tokens. The next run takes the next ones.
 */
static moepack_status run_experts(compute *c, const compute_figure *f, unsigned run, work_done *done,
                                  moepack_error *error)
{
    const moepack_layer_options options = layer_options(c, f);
    const size_t k = (size_t)c->policy.top_k;
    const unsigned sets = (unsigned)(c->experts / k);
    const int32_t first = (int32_t)(run / c->copies % sets * k);
    fill(c, c->z, f->tokens * (size_t)c->policy.expert_input);
    for (size_t p = 0; p < f->tokens * k; p++) {
        c->ids[p] = first + (int32_t)(p % k);
        c->weights[p] = 1.0f / (float)k;
    }
    const double started = cli_seconds();
    moepack_status status =
        moepack_experts_run(copy_of(c, run), 0, c->z, c->ids, c->weights, f->tokens, k, &options, c->s, error);
    done->seconds = cli_seconds() - started;
    done->bytes = (double)(c->expert_bytes * k);
    done->word_flops = c->expert_flops * (double)(f->tokens * k);
    return status;
}

/* Everything but the routed experts: router, latent projections, norm, shared experts. */
static moepack_status run_dense(compute *c, const compute_figure *f, unsigned run, work_done *done,
                                moepack_error *error)
{
    const moepack_layer_options options = layer_options(c, f);
    const moepack_load *load = copy_of(c, run);
    fill(c, c->x, f->tokens * (size_t)c->policy.hidden);
    fill(c, c->s, f->tokens * (size_t)c->policy.expert_input);
    const double started = cli_seconds();
    moepack_status status = moepack_layer_begin(load, 0, c->x, f->tokens, &options, c->ids, c->weights, c->z, error);
    if (status == MOEPACK_OK) status = moepack_layer_finish(load, 0, c->x, c->s, f->tokens, &options, c->y, error);
    done->seconds = cli_seconds() - started;
    done->bytes = (double)c->dense_bytes;
    done->f32_flops = c->dense_flops * (double)f->tokens;
    return status;
}

static uint64_t distinct_experts(compute *c, size_t pairs)
{
    uint64_t count = 0;
    memset(c->touched, 0, c->experts);
    for (size_t p = 0; p < pairs; p++) {
        count += c->touched[c->ids[p]] == 0;
        c->touched[c->ids[p]] = 1;
    }
    return count;
}

static moepack_status run_layer(compute *c, const compute_figure *f, unsigned run, work_done *done,
                                moepack_error *error)
{
    const moepack_layer_options options = layer_options(c, f);
    const size_t hidden = (size_t)c->policy.hidden, pairs = f->tokens * (size_t)c->policy.top_k;
    const moepack_layer_output output = {.y = c->y, .topk_ids = c->ids};
    if (f->skewed)
        fill_skewed(c, c->x, f->tokens, hidden);
    else
        fill(c, c->x, f->tokens * hidden);
    const double started = cli_seconds();
    moepack_status status = moepack_layer_run(copy_of(c, run), 0, c->x, f->tokens, &options, &output, error);
    done->seconds = cli_seconds() - started;
    if (status != MOEPACK_OK) return status;
    done->bytes = (double)(c->dense_bytes + c->expert_bytes * distinct_experts(c, pairs));
    done->word_flops = c->expert_flops * (double)pairs;
    done->f32_flops = c->dense_flops * (double)f->tokens;
    return MOEPACK_OK;
}

/* In the order in which they are measured. The first of a name is the one with all threads. */
static const compute_figure figures[] = {
    {BENCH_ROUTER, "router.t1", 1, true, false, false, BOUND_MEMORY, run_router, false},
    {BENCH_ROUTER, "router.t8", 8, false, false, false, BOUND_COMPUTE, run_router, false},
    {BENCH_ROUTER, "router.t64", 64, true, false, false, BOUND_COMPUTE, run_router, false},
    {BENCH_EXPERT, "expert.t1", 1, true, false, false, BOUND_MEMORY, run_experts, false},
    {BENCH_EXPERT, "expert.t1", 1, true, true, false, BOUND_MEMORY, run_experts, false},
    {BENCH_EXPERT, "expert.t2", 2, true, false, false, BOUND_MEMORY, run_experts, false},
    {BENCH_EXPERT, "expert.t4", 4, false, false, false, BOUND_COMPUTE, run_experts, false},
    {BENCH_EXPERT, "expert.t8", 8, true, false, false, BOUND_COMPUTE, run_experts, false},
    {BENCH_EXPERT, "expert.t16", 16, false, false, false, BOUND_COMPUTE, run_experts, false},
    {BENCH_EXPERT | BENCH_PREFILL, "expert.t64", 64, true, false, false, BOUND_COMPUTE, run_experts, false},
    {BENCH_EXPERT, "expert.t1.int8", 1, false, false, false, BOUND_MEMORY, run_experts, true},
    {BENCH_EXPERT, "expert.t8.int8", 8, false, false, false, BOUND_COMPUTE, run_experts, true},
    {BENCH_EXPERT | BENCH_PREFILL, "expert.t64.int8", 64, true, false, false, BOUND_COMPUTE, run_experts, true},
    {BENCH_DENSE, "dense.t1", 1, true, false, false, BOUND_MEMORY, run_dense, false},
    {BENCH_DENSE, "dense.t8", 8, false, false, false, BOUND_COMPUTE, run_dense, false},
    {BENCH_DENSE | BENCH_PREFILL, "dense.t64", 64, true, false, false, BOUND_COMPUTE, run_dense, false},
    {BENCH_LAYER, "layer.t1", 1, true, false, false, BOUND_MEMORY, run_layer, false},
    {BENCH_LAYER, "layer.t2", 2, false, false, false, BOUND_EITHER, run_layer, false},
    {BENCH_LAYER, "layer.t4", 4, false, false, false, BOUND_EITHER, run_layer, false},
    {BENCH_LAYER, "layer.t8", 8, true, false, false, BOUND_EITHER, run_layer, false},
    {BENCH_LAYER, "layer.t16", 16, false, false, false, BOUND_EITHER, run_layer, false},
    {BENCH_LAYER, "layer.t32", 32, false, false, false, BOUND_EITHER, run_layer, false},
    {BENCH_LAYER | BENCH_PREFILL, "layer.t64", 64, true, false, false, BOUND_EITHER, run_layer, false},
    {BENCH_PREFILL, "layer.t512", 512, false, false, false, BOUND_EITHER, run_layer, false},
    {BENCH_LAYER, "layer.t8.skewed", 8, true, false, true, BOUND_EITHER, run_layer, false},
    {BENCH_LAYER, "layer.t64.skewed", 64, false, false, true, BOUND_EITHER, run_layer, false},
};

/* ------------------------------------------------------------------------------------------------- measuring */

/* Limits and figure of one round. */
typedef struct round_samples {
    work_done done;
    double scan, word, f32; /* 0: not needed */
} round_samples;

typedef struct rounds {
    round_samples round[BENCH_SAMPLES];
    unsigned count;
} rounds;

static double memory_seconds(const round_samples *r)
{
    return r->scan > 0 ? r->done.bytes / r->scan : 0;
}

static double compute_seconds(const round_samples *r)
{
    return (r->word > 0 ? r->done.word_flops / r->word : 0) + (r->f32 > 0 ? r->done.f32_flops / r->f32 : 0);
}

/* One limit for all rounds of a figure: the one that takes longer in most of them. */
static bool by_memory(const compute_figure *f, const rounds *all)
{
    unsigned memory = 0;
    if (f->bound != BOUND_EITHER) return f->bound == BOUND_MEMORY;
    for (unsigned i = 0; i < all->count; i++)
        memory += memory_seconds(&all->round[i]) >= compute_seconds(&all->round[i]);
    return 2 * memory >= all->count;
}

/* The unit that multiplies the experts' weights. */
static bench_peak unit_of(const compute_figure *f)
{
    return f->int8 ? BENCH_PEAK_BYTE : BENCH_PEAK_WORD;
}

static const char *limit_name(const compute *c, const compute_figure *f, bool memory)
{
    const char *kernels = c->b->kernels;
    if (memory) return "read scan";
    if (f->run == run_experts) return bench_peak_name(kernels, unit_of(f));
    if (f->run == run_layer) return "peaks of both units, by share";
    return bench_peak_name(kernels, BENCH_PEAK_F32);
}

/* Appends how a figure compares with the same one in default mode, where that was measured. */
static void note_ratio(const bench *b, const compute_figure *f, bench_result *result)
{
    const size_t length = strlen(f->name) - strlen(".int8"), used = strlen(result->note);
    for (const bench_result *r = b->results; f->int8 && r < result; r++)
        if (strlen(r->name) == length && strncmp(r->name, f->name, length) == 0 && r->threads == result->threads)
            snprintf(result->note + used, sizeof result->note - used, ", %.2fx of %s",
                     bench_median(&result->figure) / bench_median(&r->figure), r->name);
}

static moepack_status report(compute *c, const compute_figure *f, const rounds *all, moepack_error *error)
{
    const bool memory = by_memory(f, all);
    bench_result *result = bench_result_new(c->b, f->name, memory ? "GB/s" : "GFLOP/s", 1e9);
    if (result == NULL) return bench_fail(error, MOEPACK_E_REFUSED, "no memory");
    bench_samples seconds = {.count = 0};
    for (unsigned i = 0; i < all->count; i++) {
        const round_samples *r = &all->round[i];
        const double flops = r->done.word_flops + r->done.f32_flops, amount = memory ? r->done.bytes : flops;
        bench_add(&result->figure, amount / r->done.seconds);
        bench_add(&result->limit, amount / (memory ? memory_seconds(r) : compute_seconds(r)));
        bench_add(&seconds, r->done.seconds);
        result->bytes += r->done.bytes / all->count;
        result->flops += flops / all->count;
    }
    result->limit_name = limit_name(c, f, memory);
    result->threads = f->one_thread ? 1 : c->b->threads;
    result->kernels = c->b->kernels;
    const double ms = bench_median(&seconds) * 1e3;
    if (f->run == run_layer || f->run == run_experts)
        snprintf(result->note, sizeof result->note, "%.2f ms, %.1f experts", ms,
                 (result->bytes - (f->run == run_layer ? (double)c->dense_bytes : 0)) / (double)c->expert_bytes);
    else
        snprintf(result->note, sizeof result->note, "%.2f ms", ms);
    note_ratio(c->b, f, result);
    bench_result_done(c->b, result);
    return MOEPACK_OK;
}

static moepack_status measure(compute *c, const compute_figure *f, moepack_error *error)
{
    bench *b = c->b;
    const unsigned threads = f->one_thread ? 1 : b->threads;
    const bool units = f->bound != BOUND_MEMORY;
    const bool word = units && (f->run == run_experts || f->run == run_layer), f32 = units && f->run != run_experts;
    rounds all = {.count = 0};
    work_done first = {0};
    /* Not counted: starts the threads and touches the scratch memory. */
    moepack_status status = f->run(c, f, 0, &first, error);
    double last = first.seconds;
    const double started = cli_seconds();
    while (status == MOEPACK_OK && bench_more(b, started, all.count)) {
        round_samples *r = &all.round[all.count];
        const double each = last < LIMIT_SECONDS ? last : LIMIT_SECONDS;
        if (f->bound != BOUND_COMPUTE) r->scan = bench_scan_for(b, threads, each);
        if (word) r->word = bench_peak_for(b->kernels, unit_of(f), threads, each);
        if (f32) r->f32 = bench_peak_for(b->kernels, BENCH_PEAK_F32, threads, each);
        status = f->run(c, f, all.count + 1, &r->done, error);
        last = r->done.seconds;
        all.count++;
    }
    if (status == MOEPACK_OK) status = bench_go_on(error);
    return status == MOEPACK_OK ? report(c, f, &all, error) : status;
}

/* ------------------------------------------------------------------------------------------------- material */

static uint64_t router_bytes(const moepack_index *index, const moepack_block *block)
{
    uint64_t bytes = 0;
    for (uint32_t r = 0; r < block->role_count; r++) {
        moepack_role_entry role;
        moepack_tensor tensor;
        moepack_section section;
        moepack_index_role(index, block->first_role + r, &role);
        if (role.role != MOEPACK_ROLE_ROUTER && role.role != MOEPACK_ROLE_ROUTER_BIAS) continue;
        moepack_index_tensor(index, role.tensor, &tensor);
        moepack_index_section(index, tensor.section, &section);
        bytes += section.stored_length;
    }
    return bytes;
}

/* Exact bytes and operations, from the container. */
static moepack_status count_work(compute *c, moepack_error *error)
{
    const moepack_index *index = moepack_pack_index(c->load[0].pack);
    moepack_block block;
    moepack_index_block(index, 0, &block);
    moepack_status status = moepack_index_policy(index, block.policy, &c->policy, NULL, error);
    if (status != MOEPACK_OK) return status;
    const moepack_policy *p = &c->policy;
    c->experts = block.experts;
    c->expert_bytes = moepack_plan_expert_bytes(c->load[0].plan) / block.experts;
    c->dense_bytes = moepack_plan_dense_bytes(c->load[0].plan);
    c->router_bytes = router_bytes(index, &block);
    c->expert_flops = 2.0 * 3.0 * (double)p->intermediate * (double)p->expert_input;
    c->router_flops = 2.0 * (double)block.experts * (double)p->hidden;
    c->dense_flops = c->router_flops + 2.0 * 3.0 * (double)p->shared_width * (double)p->hidden +
                     (p->latent ? 2.0 * 2.0 * (double)p->expert_input * (double)p->hidden : 0.0);
    return MOEPACK_OK;
}

static float *rows(size_t tokens, uint64_t width)
{
    return calloc(tokens * (size_t)width + 1, sizeof(float));
}

static moepack_status make_inputs(compute *c, moepack_error *error)
{
    const moepack_policy *p = &c->policy;
    c->random = UINT64_C(0x9e3779b97f4a7c15);
    c->x = rows(TOKENS_MAX, p->hidden);
    c->y = rows(TOKENS_MAX, p->hidden);
    c->z = rows(TOKENS_MAX, p->expert_input);
    c->s = rows(TOKENS_MAX, p->expert_input);
    c->weights = rows(TOKENS_MAX, p->top_k);
    c->ids = calloc(TOKENS_MAX * (size_t)p->top_k, sizeof *c->ids);
    c->touched = calloc(c->experts, 1);
    const bool all = c->x && c->y && c->z && c->s && c->weights && c->ids && c->touched;
    return all ? MOEPACK_OK : bench_fail(error, MOEPACK_E_REFUSED, "no memory for inputs");
}

/* As many copies as hold four times the last-level cache in expert weights (twice with --quick: memory that was never
 * used is slow to come), and fit into memory. */
static moepack_status load_copies(compute *c, const char *path, moepack_error *error)
{
    moepack_status status = MOEPACK_OK;
    const uint64_t wanted = (c->b->quick ? 2 : 4) * c->b->machine.last_cache;
    for (c->copies = 0; c->copies < COPIES_MAX && status == MOEPACK_OK; c->copies++) {
        bench_load *load = &c->load[c->copies];
        const uint64_t bytes = c->copies > 0 ? moepack_plan_expert_bytes(c->load[0].plan) : 0;
        const uint64_t all = bytes + (c->copies > 0 ? moepack_plan_dense_bytes(c->load[0].plan) : 0);
        if (c->copies > 0 &&
            (c->copies * bytes >= wanted || (c->copies + 1) * all > c->b->machine.memory_available / 2))
            break;
        status = bench_plan_open(load, path, error);
        if (status == MOEPACK_OK) status = bench_load_run(load, MOEPACK_CHECK_NONE, error);
    }
    if (status == MOEPACK_OK && c->copies * moepack_plan_expert_bytes(c->load[0].plan) < c->b->machine.last_cache)
        cli_note(c->b->common,
                 "moepack: note: all weights fit into the last-level cache; figures held against the read scan "
                 "will look too good");
    return status;
}

static moepack_status prepare(compute *c, moepack_error *error)
{
    bench *b = c->b;
    char source[PATH_MAX], container[PATH_MAX];
    moepack_convert_report converted;
    const uint64_t bytes = 2 * bench_checkpoint_bytes(&b->geometry);
    moepack_status status = bench_buffer_make(b, 0, error);
    /* A machine that runs out of memory may end any process: refuse early. */
    if (status == MOEPACK_OK && b->machine.memory_available > 0 &&
        bytes / 2 + b->buffer_size > b->machine.memory_available / 10 * 9)
        status = bench_fail(error, MOEPACK_E_REFUSED, "%llu experts do not fit into memory (--experts)",
                            (unsigned long long)b->geometry.experts);
    if (status == MOEPACK_OK) status = bench_dir_make(&c->dir, bench_memdir(b, bytes), bytes, error);
    snprintf(source, sizeof source, "%s/source", c->dir.path);
    snprintf(container, sizeof container, "%s/c.moepack", c->dir.path);
    if (status == MOEPACK_OK) status = bench_synth(b, &b->geometry, source, error);
    if (status == MOEPACK_OK) status = bench_convert(source, container, &converted, error);
    if (status == MOEPACK_OK) bench_remove_tree(source);
    if (status == MOEPACK_OK) status = load_copies(c, container, error);
    bench_dir_remove(&c->dir);
    if (status == MOEPACK_OK) status = count_work(c, error);
    if (status == MOEPACK_OK) status = make_inputs(c, error);
    return status;
}

moepack_status bench_compute(bench *b, unsigned what, moepack_error *error)
{
    compute c = {.b = b};
    moepack_status status = prepare(&c, error);
    for (size_t i = 0; i < sizeof figures / sizeof figures[0] && status == MOEPACK_OK; i++) {
        const compute_figure *f = &figures[i];
        if ((what & f->bit) == 0 || (b->quick && !f->quick) || (f->one_thread && b->threads == 1)) continue;
        status = measure(&c, f, error);
    }
    for (unsigned i = 0; i < COPIES_MAX; i++) bench_load_close(&c.load[i]);
    free(c.x);
    free(c.y);
    free(c.z);
    free(c.s);
    free(c.weights);
    free(c.ids);
    free(c.touched);
    return status;
}
