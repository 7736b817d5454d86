/* Which experts tokens select: read from a file, or drawn in one of three ways. */
#include "bench.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const bench_trace_names[BENCH_TRACES] = {"uniform", "zipf", "locality"};

/* Chance that a slot keeps its expert from one token to the next, in a trace with locality. */
#define KEEP 0.7

static bool allocate(bench_trace *trace, size_t tokens, size_t ids)
{
    trace->first = calloc(tokens + 1, sizeof *trace->first);
    trace->ids = malloc((ids + 1) * sizeof *trace->ids);
    return trace->first != NULL && trace->ids != NULL;
}

void bench_trace_free(bench_trace *trace)
{
    free(trace->first);
    free(trace->ids);
    *trace = (bench_trace){0};
}

/* ------------------------------------------------------------------------------------------------- files */

/* A whole file as text; NULL with an error. */
static char *read_text(const char *path, size_t *size, moepack_error *error)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t capacity = 0;
    *size = 0;
    for (size_t got = 1; file != NULL && got > 0; *size += got) {
        if (capacity - *size < 2) {
            char *grown = realloc(text, capacity = 2 * capacity + 65536);
            if (grown == NULL) break;
            text = grown;
        }
        got = fread(text + *size, 1, capacity - *size - 1, file);
    }
    const bool well = file != NULL && text != NULL && feof(file);
    if (!well) bench_fail(error, MOEPACK_E_IO, "%.300s: %s", path, errno != 0 ? strerror(errno) : "cannot be read");
    if (file != NULL) fclose(file);
    if (well) text[*size] = '\0';
    if (!well) free(text);
    return well ? text : NULL;
}

static void count_parts(const char *text, size_t *lines, size_t *words)
{
    bool in_word = false;
    *lines = 1, *words = 0;
    for (; *text != '\0'; text++) {
        const bool blank = isspace((unsigned char)*text) != 0;
        *lines += *text == '\n';
        *words += !blank && !in_word;
        in_word = !blank;
    }
}

/* The ids of one line; empty lines are no tokens. */
static bool parse_line(bench_trace *trace, char *line)
{
    size_t end = trace->first[trace->tokens];
    char *rest = NULL;
    for (char *word = strtok_r(line, " \t\r", &rest); word != NULL; word = strtok_r(NULL, " \t\r", &rest)) {
        char *stop = NULL;
        const unsigned long id = strtoul(word, &stop, 10);
        if (!isdigit((unsigned char)*word) || *stop != '\0' || id >= BENCH_TRACE_EXPERTS) return false;
        trace->ids[end++] = (int32_t)id;
        if (id >= trace->experts) trace->experts = (uint32_t)id + 1;
    }
    const size_t count = end - trace->first[trace->tokens];
    if (count > trace->most) trace->most = (uint32_t)count;
    if (count > 0) trace->first[++trace->tokens] = end;
    return true;
}

moepack_status bench_trace_read(const char *path, bench_trace *trace, moepack_error *error)
{
    size_t size, lines, words, number = 1;
    *trace = (bench_trace){0};
    errno = 0;
    char *text = read_text(path, &size, error);
    if (text == NULL) return MOEPACK_E_IO;
    moepack_status status = MOEPACK_OK;
    count_parts(text, &lines, &words);
    if (strlen(text) != size) status = bench_fail(error, MOEPACK_E_USAGE, "%.300s: not a text file", path);
    if (status == MOEPACK_OK && !allocate(trace, lines, words))
        status = bench_fail(error, MOEPACK_E_REFUSED, "no memory");
    for (char *line = text; status == MOEPACK_OK && line != NULL; number++) {
        char *end = strchr(line, '\n');
        if (end != NULL) *end = '\0';
        if (!parse_line(trace, line))
            status = bench_fail(error, MOEPACK_E_USAGE, "%.300s: line %zu is not a list of expert ids below %d", path,
                                number, BENCH_TRACE_EXPERTS);
        line = end != NULL ? end + 1 : NULL;
    }
    if (status == MOEPACK_OK && trace->tokens < 2)
        status = bench_fail(error, MOEPACK_E_USAGE, "%.300s: a trace needs two tokens at least", path);
    free(text);
    return status;
}

/* ------------------------------------------------------------------------------------------------- drawing */

/* splitmix64, as numbers in [0, 1). */
static double draw(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

typedef struct drawing {
    uint64_t state;
    uint32_t experts;
    double *below;  /* [E] chance of all ranks before this one; NULL: all alike */
    int32_t *order; /* [E] expert of each rank */
    uint8_t *taken; /* [E] by the token */
} drawing;

static int32_t draw_expert(drawing *d)
{
    const double u = draw(&d->state);
    if (d->below == NULL) return (int32_t)(u * d->experts);
    uint32_t low = 0, high = d->experts; /* the last rank with below <= u */
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (d->below[middle] <= u)
            low = middle;
        else
            high = middle;
    }
    return d->order[low];
}

/* Chance proportional to 1 / rank, ranks in a drawn order. */
static bool begin_zipf(drawing *d)
{
    double sum = 0;
    d->below = calloc(d->experts, sizeof *d->below);
    d->order = calloc(d->experts, sizeof *d->order);
    if (d->below == NULL || d->order == NULL) return false;
    for (uint32_t i = 0; i < d->experts; i++) {
        d->order[i] = (int32_t)i;
        d->below[i] = sum;
        sum += 1.0 / (i + 1.0);
    }
    for (uint32_t i = 0; i < d->experts; i++) d->below[i] /= sum;
    for (uint32_t i = d->experts; i-- > 1;) {
        const uint32_t other = (uint32_t)(draw(&d->state) * (i + 1.0));
        const int32_t kept = d->order[i];
        d->order[i] = d->order[other];
        d->order[other] = kept;
    }
    return true;
}

/* `top_k` different experts. `before`: the last token's, of which slots may be kept; NULL: none. */
static void draw_token(drawing *d, uint32_t top_k, const int32_t *before, int32_t *ids)
{
    memset(d->taken, 0, d->experts);
    for (uint32_t slot = 0; slot < top_k; slot++) {
        const bool keeps = before != NULL && draw(&d->state) < KEEP && !d->taken[before[slot]];
        ids[slot] = keeps ? before[slot] : draw_expert(d);
        while (!keeps && d->taken[ids[slot]]) ids[slot] = draw_expert(d);
        d->taken[ids[slot]] = 1;
    }
}

moepack_status bench_trace_draw(bench_trace_kind kind, uint32_t experts, uint32_t top_k, size_t tokens,
                                bench_trace *trace, moepack_error *error)
{
    drawing d = {.state = BENCH_TRACE_SEED + (uint64_t)kind, .experts = experts, .taken = calloc(experts, 1)};
    *trace = (bench_trace){.experts = experts, .most = top_k};
    bool memory = d.taken != NULL && allocate(trace, tokens, tokens * top_k);
    if (memory && kind == BENCH_TRACE_ZIPF) memory = begin_zipf(&d);
    for (; memory && trace->tokens < tokens; trace->tokens++) {
        int32_t *ids = trace->ids + trace->first[trace->tokens];
        const bool local = kind == BENCH_TRACE_LOCALITY && trace->tokens > 0;
        draw_token(&d, top_k, local ? ids - top_k : NULL, ids);
        trace->first[trace->tokens + 1] = trace->first[trace->tokens] + top_k;
    }
    free(d.below);
    free(d.order);
    free(d.taken);
    return memory ? MOEPACK_OK : bench_fail(error, MOEPACK_E_REFUSED, "no memory");
}
