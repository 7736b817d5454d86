/* Experts in less memory than they need: traces replayed through a residency, as fast as experts arrive. Nothing is
 * computed, so what is measured is what misses cost. The first half of a trace fills the slots, the second is measured.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

typedef enum policy {
    POLICY_LRU,
    POLICY_LFU,
    POLICY_PINNED, /* the experts that the first half selects most are pinned, all but top-k slots; the rest LRU */
    POLICIES
} policy;

static const char *const policy_names[POLICIES] = {"lru", "lfu", "pinned"};
static const unsigned percents[] = {25, 50, 75};

typedef struct replay_run {
    bench *b;
    bench_dir dir;
    char container[PATH_MAX];
    bench_files files;
    bench_load load;
    uint64_t all_bytes, slot_bytes; /* with a slot for every expert; of one */
    uint32_t experts;
    const bench_trace *trace;
    int32_t *by_use; /* experts, those that the first half of the trace selects most in front */
    bool buffered;
} replay_run;

/* ------------------------------------------------------------------------------------------------- replay */

/* As a decoder does: a token's experts are known together, and needed together. */
static moepack_status replay_token(const replay_run *run, moepack_residency *r, size_t token, moepack_error *error)
{
    const int32_t *ids = run->trace->ids + run->trace->first[token];
    const size_t count = run->trace->first[token + 1] - run->trace->first[token];
    moepack_status status = bench_go_on(error);
    size_t held = 0;
    if (status == MOEPACK_OK) moepack_residency_prefetch(r, 0, ids, count);
    for (; status == MOEPACK_OK && held < count; held += status == MOEPACK_OK)
        status = moepack_residency_acquire(r, 0, (uint32_t)ids[held], error);
    for (size_t i = 0; i < held; i++) moepack_residency_release(r, 0, (uint32_t)ids[i]);
    return status;
}

static moepack_status replay(const replay_run *run, moepack_residency *r, size_t from, size_t to, moepack_error *error)
{
    moepack_status status = MOEPACK_OK;
    for (size_t t = from; t < to && status == MOEPACK_OK; t++) status = replay_token(run, r, t, error);
    return status;
}

static moepack_status create(const replay_run *run, policy p, uint64_t budget, moepack_residency **r,
                             moepack_error *error)
{
    moepack_residency_options options;
    moepack_residency_options_init(&options);
    options.budget = budget;
    options.evict = p == POLICY_LFU ? MOEPACK_EVICT_LFU : MOEPACK_EVICT_LRU;
    return moepack_residency_create(run->load.pack, run->load.placement, 0, &options, r, error);
}

static uint32_t pinned_of(const replay_run *run, policy p, uint32_t slots)
{
    return p == POLICY_PINNED ? slots - (uint32_t)run->b->geometry.top_k : 0;
}

/* One replay: bytes of misses per second; hits and acquisitions are added to the result. */
static moepack_status measure_once(const replay_run *run, policy p, uint32_t slots, double *rate, uint64_t counts[2],
                                   double *bytes, moepack_error *error)
{
    moepack_residency *r = NULL;
    moepack_residency_report before, after;
    const size_t half = run->trace->tokens / 2;
    moepack_status status = create(run, p, run->all_bytes - (run->experts - slots) * run->slot_bytes, &r, error);
    for (uint32_t i = 0; i < pinned_of(run, p, slots) && status == MOEPACK_OK; i++)
        status = moepack_residency_pin(r, 0, (uint32_t)run->by_use[i], error);
    if (status == MOEPACK_OK) status = replay(run, r, 0, half, error);
    moepack_residency_report_get(r, &before);
    const double started = cli_seconds();
    if (status == MOEPACK_OK) status = replay(run, r, half, run->trace->tokens, error);
    const double seconds = cli_seconds() - started;
    moepack_residency_report_get(r, &after);
    moepack_residency_free(r);
    counts[0] += after.hits - before.hits;
    counts[1] += after.hits - before.hits + after.misses - before.misses;
    *bytes = (double)(after.bytes_read - before.bytes_read);
    *rate = seconds > 0 ? *bytes / seconds : 0;
    return status;
}

static moepack_status limit_once(replay_run *run, double *rate, moepack_error *error)
{
    bench_stream stream = {0};
    double resident;
    moepack_status status = bench_drop_cache(&run->files, &resident, error);
    if (status == MOEPACK_OK) status = bench_stream_read(&run->files, false, &stream, error);
    run->buffered = run->buffered || !stream.direct;
    *rate = stream.seconds > 0 ? (double)run->files.bytes / stream.seconds : 0;
    return status;
}

static moepack_status measure(replay_run *run, const char *trace, policy p, unsigned percent, moepack_error *error)
{
    bench *b = run->b;
    char name[64];
    uint64_t counts[2] = {0};
    uint32_t slots = (uint32_t)((uint64_t)run->experts * percent / 100);
    if (slots < b->geometry.top_k) slots = (uint32_t)b->geometry.top_k;
    snprintf(name, sizeof name, "residency.%s.%s.%u", trace, policy_names[p], percent);
    bench_result *result = bench_result_new(b, name, "GB/s", 1e9);
    if (result == NULL) return bench_fail(error, MOEPACK_E_REFUSED, "no memory");
    result->limit_name = "misses at the rate of an O_DIRECT read";
    result->threads = b->threads;
    moepack_status status = MOEPACK_OK;
    const double started = cli_seconds();
    for (unsigned runs = 0; status == MOEPACK_OK && bench_more(b, started, runs); runs++) {
        double limit = 0, rate = 0;
        status = limit_once(run, &limit, error);
        if (status == MOEPACK_OK) status = measure_once(run, p, slots, &rate, counts, &result->bytes, error);
        if (status != MOEPACK_OK) break;
        bench_add(&result->limit, limit);
        bench_add(&result->figure, rate);
    }
    if (status == MOEPACK_OK) status = bench_go_on(error);
    if (status != MOEPACK_OK) return status;
    result->has_hit_rate = true;
    result->hit_rate = counts[1] > 0 ? (double)counts[0] / (double)counts[1] : 0;
    snprintf(result->note, sizeof result->note, "hit rate %.3f; %u of %u experts in memory, %u pinned%s%s",
             result->hit_rate, slots, run->experts, pinned_of(run, p, slots),
             counts[0] == counts[1] ? "; no misses" : "", run->buffered ? "; limit buffered" : "");
    bench_result_done(b, result);
    return MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------- traces */

typedef struct use {
    int32_t expert;
    uint64_t count;
} use;

static int by_count(const void *a, const void *b)
{
    const use *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count ? 1 : -1) : x->expert - y->expert;
}

static bool rank_by_use(replay_run *run)
{
    const bench_trace *trace = run->trace;
    use *uses = calloc(run->experts, sizeof *uses);
    if (uses == NULL) return false;
    for (uint32_t e = 0; e < run->experts; e++) uses[e].expert = (int32_t)e;
    for (size_t i = 0; i < trace->first[trace->tokens / 2]; i++) uses[trace->ids[i]].count++;
    qsort(uses, run->experts, sizeof *uses, by_count);
    for (uint32_t e = 0; e < run->experts; e++) run->by_use[e] = uses[e].expert;
    free(uses);
    return true;
}

static moepack_status measure_trace(replay_run *run, const char *name, const bench_trace *trace, moepack_error *error)
{
    run->trace = trace;
    moepack_status status = rank_by_use(run) ? MOEPACK_OK : bench_fail(error, MOEPACK_E_REFUSED, "no memory");
    for (unsigned p = 0; p < POLICIES; p++)
        for (size_t i = 0; i < sizeof percents / sizeof *percents && status == MOEPACK_OK; i++)
            status = measure(run, name, (policy)p, percents[i], error);
    return status;
}

static moepack_status measure_drawn(replay_run *run, bench_trace_kind kind, moepack_error *error)
{
    bench_trace trace;
    moepack_status status =
        bench_trace_draw(kind, run->experts, (uint32_t)run->b->geometry.top_k, run->b->quick ? 96 : 256, &trace, error);
    if (status == MOEPACK_OK) status = measure_trace(run, bench_trace_names[kind], &trace, error);
    bench_trace_free(&trace);
    return status;
}

/* ------------------------------------------------------------------------------------------------- material */

static moepack_status prepare(replay_run *run, moepack_error *error)
{
    char source[PATH_MAX];
    moepack_convert_report converted;
    moepack_residency_report report;
    moepack_residency *r = NULL;
    const mpk_synth_geometry *g = &run->b->geometry;
    moepack_status status = bench_dir_make(&run->dir, bench_tmpdir(run->b), 2 * bench_checkpoint_bytes(g), error);
    if (status != MOEPACK_OK) return status;
    run->experts = (uint32_t)g->experts;
    run->by_use = calloc(run->experts, sizeof *run->by_use);
    snprintf(source, sizeof source, "%s/source", run->dir.path);
    snprintf(run->container, sizeof run->container, "%s/c.moepack", run->dir.path);
    if (run->by_use == NULL) return bench_fail(error, MOEPACK_E_REFUSED, "no memory");
    status = bench_synth(run->b, g, source, error);
    if (status == MOEPACK_OK) status = bench_convert(source, run->container, &converted, error);
    bench_remove_tree(source);
    if (status == MOEPACK_OK) status = bench_files_list(run->container, &run->files, error);
    if (status == MOEPACK_OK) status = bench_plan_open(&run->load, run->container, error);
    if (status == MOEPACK_OK) status = create(run, POLICY_LRU, INT64_MAX, &r, error);
    moepack_residency_report_get(r, &report);
    moepack_residency_free(r);
    run->all_bytes = report.budget_used;
    run->slot_bytes = report.slot_bytes;
    return status;
}

moepack_status bench_residency(bench *b, moepack_error *error)
{
    replay_run run = {.b = b};
    moepack_status status = prepare(&run, error);
    if (status == MOEPACK_OK && b->trace.tokens > 0) {
        status = measure_trace(&run, "file", &b->trace, error);
    } else {
        for (unsigned kind = 0; kind < BENCH_TRACES && status == MOEPACK_OK; kind++)
            status = measure_drawn(&run, (bench_trace_kind)kind, error);
    }
    bench_load_close(&run.load);
    bench_files_free(&run.files);
    bench_dir_remove(&run.dir);
    free(run.by_use);
    return status;
}
