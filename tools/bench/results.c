/* Samples, ratios, and how they are printed. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------- samples */

void bench_add(bench_samples *samples, double rate)
{
    if (samples->count < BENCH_SAMPLES) samples->rate[samples->count++] = rate;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

/* Quantile of the sorted samples: 0 smallest, 1 median, 2 largest. For an even number the median is the mean of the two
 * in the middle. */
static double quantile(const bench_samples *samples, int which)
{
    double sorted[BENCH_SAMPLES];
    const unsigned n = samples->count;
    if (n == 0) return 0;
    memcpy(sorted, samples->rate, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, ascending);
    if (which == 0) return sorted[0];
    if (which == 2) return sorted[n - 1];
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

double bench_min(const bench_samples *samples)
{
    return quantile(samples, 0);
}

double bench_median(const bench_samples *samples)
{
    return quantile(samples, 1);
}

double bench_max(const bench_samples *samples)
{
    return quantile(samples, 2);
}

/* ------------------------------------------------------------------------------------------------- results */

bench_result *bench_result_new(bench *b, const char *name, const char *unit, double scale)
{
    if (b->result_count == b->result_capacity) {
        const size_t capacity = b->result_capacity == 0 ? 32 : 2 * b->result_capacity;
        bench_result *grown = realloc(b->results, capacity * sizeof *grown);
        if (grown == NULL) return NULL;
        b->results = grown;
        b->result_capacity = capacity;
    }
    bench_result *result = &b->results[b->result_count++];
    memset(result, 0, sizeof *result);
    snprintf(result->name, sizeof result->name, "%s", name);
    result->unit = unit;
    result->scale = scale;
    result->kernels = "";
    result->limit_name = "";
    return result;
}

/* At least three runs, so that one disturbed run does not decide; two when time is short, and no more than needed when
 * one run takes longer than everything was meant to. */
bool bench_more(const bench *b, double started, unsigned runs)
{
    const double now = cli_seconds(), spent = now - started;
    if (cli_cancelled || runs >= BENCH_SAMPLES) return false;
    if (runs == 0) return true;
    const bool late = (b->deadline > 0 && now > b->deadline) || spent > 4 * b->seconds;
    if (runs < 3) return !late || (runs < 2 && spent < 2 * b->seconds);
    return !late && spent < b->seconds;
}

static double ratio_of(const bench_result *result)
{
    const double limit = bench_median(&result->limit);
    return limit > 0 ? bench_median(&result->figure) / limit : 0;
}

/* Largest against largest: on a machine that others use as well, the pair that was disturbed least. */
static double best_ratio_of(const bench_result *result)
{
    const double limit = bench_max(&result->limit);
    return limit > 0 ? bench_max(&result->figure) / limit : 0;
}

/* ------------------------------------------------------------------------------------------------- text */

void bench_print_machine(const bench *b)
{
    const bench_machine *m = &b->machine;
    char memory[CLI_SIZE_TEXT], available[CLI_SIZE_TEXT], cache[CLI_SIZE_TEXT];
    if (b->common->json) return;
    printf("processor   %s, %u usable, last-level cache %s\n", m->model, m->processors,
           cli_size_short(m->last_cache, cache));
    printf("            %s\n", m->isa);
    printf("memory      %s, %s available; pages of %llu bytes, transparent huge pages: %s\n",
           cli_size_short(m->memory, memory), cli_size_short(m->memory_available, available),
           (unsigned long long)m->page, m->page_mode);
    printf("load        %.1f in the last minute\n", m->load);
    printf("kernels     %s, %u threads\n", b->kernels, b->threads);
    fflush(stdout);
}

static void print_head(const bench *b)
{
    char size[CLI_SIZE_TEXT], huge[CLI_SIZE_TEXT];
    if (b->buffer != NULL)
        printf("scan        over %s, %s of it in huge pages%s\n", cli_size_short(b->buffer_size, size),
               cli_size_short(b->buffer_huge, huge),
               b->buffer_bounded ? "; BOUNDED: less than 4 times the last-level cache, scans may come from it" : "");
    printf("%-28s %9s %9s %6s %6s  %9s %9s %4s %3s  %s\n", "name", "achieved", "limit", "ratio", "best", "min", "max",
           "runs", "thr", "unit, limit");
    fflush(stdout);
}

void bench_print_limits(const bench *b)
{
    if (b->common->json) return;
    for (size_t i = 0; i < b->limit_count; i++) {
        const bench_limit *limit = &b->limits[i];
        printf("limit       %8.2f %s with %u thread%s: %s\n", bench_median(&limit->samples) / 1e9, limit->unit,
               limit->threads, limit->threads == 1 ? "" : "s", limit->name);
    }
    fflush(stdout);
}

void bench_result_done(const bench *b, const bench_result *result)
{
    const double scale = result->scale, ratio = ratio_of(result);
    if (b->common->json) return;
    if (b->result_count == 1) print_head(b);
    printf("%-28s %9.3f %9.3f %6.3f %6.3f  %9.3f %9.3f %4u %3u  %s, %s", result->name,
           bench_median(&result->figure) / scale, bench_median(&result->limit) / scale, ratio, best_ratio_of(result),
           bench_min(&result->figure) / scale, bench_max(&result->figure) / scale, result->figure.count,
           result->threads, result->unit, result->limit_name);
    if (ratio > BENCH_SUSPECT) printf("; SUSPECT: above its limit");
    if (result->note[0] != '\0') printf("; %s", result->note);
    putchar('\n');
    fflush(stdout);
}

/* ------------------------------------------------------------------------------------------------- JSON */

static json_t *machine_json(const bench *b)
{
    const bench_machine *m = &b->machine;
    return json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:b, s:f}", "processor",
                     cli_json_text(m->model, strlen(m->model)), "isa", m->isa, "processors", (json_int_t)m->processors,
                     "last_level_cache_bytes", (json_int_t)m->last_cache, "memory_bytes", (json_int_t)m->memory,
                     "memory_available_bytes", (json_int_t)m->memory_available, "page_bytes", (json_int_t)m->page,
                     "transparent_huge_pages", m->page_mode, "scan_buffer_bytes", (json_int_t)b->buffer_size,
                     "scan_buffer_huge_bytes", (json_int_t)b->buffer_huge, "scan_buffer_bounded",
                     (int)b->buffer_bounded, "load_average", m->load);
}

static json_t *result_json(const bench_result *r)
{
    const double scale = r->scale, value = bench_median(&r->figure) / scale, limit = bench_median(&r->limit) / scale;
    json_t *object =
        json_pack("{s:s, s:f, s:s, s:f, s:f, s:I, s:s, s:f, s:f, s:f, s:I}", "name", r->name, "value", value, "unit",
                  r->unit, "limit", limit, "ratio", limit > 0 ? value / limit : 0, "threads", (json_int_t)r->threads,
                  "kernels", r->kernels, "min", bench_min(&r->figure) / scale, "median", value, "max",
                  bench_max(&r->figure) / scale, "runs", (json_int_t)r->figure.count);
    json_t *more = json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:b, s:s}", "limit_name", r->limit_name, "limit_min",
                             bench_min(&r->limit) / scale, "limit_max", bench_max(&r->limit) / scale, "best_ratio",
                             best_ratio_of(r), "bytes", r->bytes, "flops", r->flops, "suspect",
                             (int)(ratio_of(r) > BENCH_SUSPECT), "note", r->note);
    if (object != NULL && more != NULL) json_object_update(object, more);
    json_decref(more);
    if (object != NULL && r->has_hit_rate) json_object_set_new(object, "hit_rate", json_real(r->hit_rate));
    return object;
}

static json_t *limit_json(const bench_limit *limit)
{
    const bench_samples *s = &limit->samples;
    return json_pack("{s:s, s:f, s:s, s:I, s:f, s:f, s:I}", "name", limit->name, "value", bench_median(s) / 1e9, "unit",
                     limit->unit, "threads", (json_int_t)limit->threads, "min", bench_min(s) / 1e9, "max",
                     bench_max(s) / 1e9, "runs", (json_int_t)s->count);
}

json_t *bench_json(const bench *b)
{
    json_t *results = json_array(), *limits = json_array();
    for (size_t i = 0; i < b->limit_count; i++) json_array_append_new(limits, limit_json(&b->limits[i]));
    for (size_t i = 0; i < b->result_count; i++) json_array_append_new(results, result_json(&b->results[i]));
    return json_pack("{s:o, s:o, s:o, s:b}", "machine", machine_json(b), "limits", limits, "results", results, "quick",
                     (int)b->quick);
}
