/* moepack bench: what this machine does, beside what it could do. */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

typedef struct bench_args {
    cli_common common;
    bool quick;
    const char *kernels, *tmpdir, *seconds, *trace;
    uint64_t threads, experts, buffer, hidden, latent, intermediate, top_k;
    bool threads_given, experts_given, hidden_given, latent_given, intermediate_given, top_k_given;
} bench_args;

#define AT(field) offsetof(bench_args, field)
#define SIZE(name, field, least, help)                                                    \
    {                                                                                     \
        name, "N", CLI_NUMBER, AT(field), help, NULL, least, INT32_MAX, AT(field##_given) \
    }

static const cli_option options[] = {
    {"quick", NULL, CLI_FLAG, AT(quick), "fewer sizes and runs: everything within a minute", NULL, 0, 0, 0},
    {"threads", "N", CLI_NUMBER, AT(threads), "default: OMP_NUM_THREADS or all processors", NULL, 1, 1024,
     AT(threads_given)},
    {"kernels", "NAME", CLI_TEXT, AT(kernels), "scalar, neon, avx2, avxvnni or avx512; default: the best one here",
     NULL, 0, 0, 0},
    SIZE("experts", experts, 1,
         "experts of the layer that is computed; default: 64 (32 with --quick), fewer where memory is "
         "short"),
    {"seconds", "S", CLI_TEXT, AT(seconds), "time for one figure with its limit; default: 3 (0.8 with --quick)", NULL,
     0, 0, 0},
    {"tmpdir", "DIR", CLI_TEXT, AT(tmpdir),
     "for temporary files, on the disk to be measured; default: $TMPDIR or /var/tmp, and memory for weights that are "
     "only "
     "computed with",
     NULL, 0, 0, 0},
    {"buffer", "BYTES", CLI_SIZE, AT(buffer),
     "buffer of the read scan; default: 4 times the last-level cache, at least 1 GiB, at most a quarter of free memory",
     NULL, 1, INT64_MAX, 0},
    {"trace", "FILE", CLI_TEXT, AT(trace),
     "residency: replay this trace instead of drawn ones: text, one line per token, expert ids separated by blanks",
     NULL, 0, 0, 0},
    SIZE("hidden", hidden, 1, "width of the model; default: 7168"),
    SIZE("latent", latent, 0, "width at which experts work; default: 3584"),
    SIZE("intermediate", intermediate, 1, "inner width of an expert; default: 3072"),
    SIZE("top-k", top_k, 1, "experts per token; default: 16"),
    {0},
};

static const cli_command command = {
    .name = "bench",
    .operands = "WHAT",
    .operand_count = 1,
    .about =
        "Measures WHAT: read, write, hash, open, convert, verify, load, router, expert, dense, layer, prefill, or all; "
        "or residency, which is not part of all. "
        "Every figure stands beside its limit, measured in the same process, in turns: for weights that stream from "
        "memory the rate of a plain read scan, for arithmetic the peak of the unit that does it, for files O_DIRECT "
        "transfers on the same file system. ratio = achieved / limit, of the medians; a ratio above 1.05 is marked as "
        "suspect. The weights are random, in the shapes of Kimi K3 unless other sizes are given; expert.tN has N rows "
        "for each of top-k experts, layer.tN has N tokens. residency.TRACE.POLICY.P "
        "keeps P percent of the experts in memory and replays which experts tokens select (uniform, zipf, locality; "
        "seed "
        "1), with experts of a sixteenth of K3's size; its note has the hit rate. Temporary files are removed, also "
        "after Ctrl-C.",
    .options = options,
    .example = "  moepack bench all --quick\n"
               "  moepack bench expert --threads 1 --kernels avx2 --json",
};

#define IO (BENCH_READ | BENCH_WRITE | BENCH_HASH | BENCH_OPEN | BENCH_CONVERT | BENCH_VERIFY | BENCH_LOAD)
#define COMPUTE (BENCH_ROUTER | BENCH_EXPERT | BENCH_DENSE | BENCH_LAYER | BENCH_PREFILL)

static const struct {
    const char *name;
    unsigned what;
} groups[] = {
    {"read", BENCH_READ},           {"write", BENCH_WRITE},   {"hash", BENCH_HASH},   {"open", BENCH_OPEN},
    {"convert", BENCH_CONVERT},     {"verify", BENCH_VERIFY}, {"load", BENCH_LOAD},   {"router", BENCH_ROUTER},
    {"expert", BENCH_EXPERT},       {"dense", BENCH_DENSE},   {"layer", BENCH_LAYER}, {"prefill", BENCH_PREFILL},
    {"residency", BENCH_RESIDENCY}, {"all", IO | COMPUTE},
};

static unsigned group_of(const char *name)
{
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++)
        if (strcmp(groups[i].name, name) == 0) return groups[i].what;
    return 0;
}

/* Seconds as a plain decimal number; -1: not one. */
static double read_seconds(const char *text)
{
    char *end = NULL;
    const double value = strtod(text, &end);
    return end != text && *end == '\0' && value >= 0 && value <= 3600 ? value : -1;
}

/* Two copies of the layer, its source and its container must fit beside the buffer of the read scan. */
static void choose_experts(bench *b)
{
    mpk_synth_geometry *g = &b->geometry;
    g->experts = b->quick ? 32 : 64;
    while (g->experts > g->top_k && g->experts > 1 && 5 * bench_checkpoint_bytes(g) > b->machine.memory_available / 2)
        g->experts /= 2;
    if (g->experts < g->top_k) g->experts = g->top_k;
}

static mpk_synth_geometry geometry_of(const bench_args *args)
{
    mpk_synth_geometry g = mpk_synth_kimi_k3.published;
    g.layers = 2;
    g.first_dense = 1;
    g.dense_intermediate = 64;
    g.vocab = 64;
    if (args->hidden_given) g.hidden = args->hidden;
    if (args->latent_given) g.latent = args->latent;
    if (args->intermediate_given) g.intermediate = args->intermediate;
    if (args->top_k_given) g.top_k = args->top_k;
    if (args->experts_given) g.experts = args->experts;
    if (args->experts_given && !args->top_k_given && g.top_k > g.experts) g.top_k = g.experts;
    return g;
}

/* Many experts of a sixteenth of K3's size, so that traces with thousands of selections take seconds. A trace says how
 * many there are at least. */
static moepack_status residency_geometry(bench *b, const bench_args *args, moepack_error *error)
{
    mpk_synth_geometry *g = &b->geometry;
    const bench_trace *trace = &b->trace;
    if (args->trace != NULL) {
        moepack_status status = bench_trace_read(args->trace, &b->trace, error);
        if (status != MOEPACK_OK) return status;
    }
    if (!args->hidden_given) g->hidden = 256;
    if (!args->latent_given) g->latent = 896;
    if (!args->intermediate_given) g->intermediate = 768;
    if (!args->experts_given) g->experts = trace->tokens > 0 ? trace->experts : b->quick ? 64 : 256;
    if (!args->top_k_given) g->top_k = trace->tokens > 0 ? trace->most : g->experts < 64 ? 1 : b->quick ? 8 : 16;
    g->shared = 1;
    if (trace->experts > g->experts || trace->most > g->top_k)
        return bench_fail(error, MOEPACK_E_USAGE,
                          "%.300s: %u of %u experts a token, more than --top-k and --experts say", args->trace,
                          trace->most, trace->experts);
    return MOEPACK_OK;
}

static moepack_status set_up(bench *b, const bench_args *args, unsigned what, moepack_error *error)
{
    moepack_status status = moepack_kernels_name(args->kernels, &b->kernels, error);
    if (status != MOEPACK_OK) return status;
    bench_machine_read(&b->machine);
    b->threads = args->threads_given ? (unsigned)args->threads : b->machine.processors;
    b->geometry = geometry_of(args);
    if (what & BENCH_RESIDENCY)
        status = residency_geometry(b, args, error);
    else if (!args->experts_given)
        choose_experts(b);
    if (status != MOEPACK_OK) return status;
    b->io_experts = b->quick ? 8 : 32;
    if (b->io_experts > b->geometry.experts) b->io_experts = b->geometry.experts;
    /* The geometry must be one that a checkpoint can have: this says what is wrong with it. */
    mpk_synth_plan plan;
    status = mpk_synth_plan_make(&plan, &mpk_synth_kimi_k3, &b->geometry, 1, 0, error);
    if (status != MOEPACK_OK) return status;
    mpk_synth_plan_free(&plan);
    return args->buffer > 0 ? bench_buffer_make(b, args->buffer, error) : MOEPACK_OK;
}

static int measure(const bench_args *args, unsigned what)
{
    moepack_error error = {0};
    bench b = {.common = &args->common, .quick = args->quick, .tmpdir = args->tmpdir, .kernels = ""};
    b.seconds = args->seconds != NULL ? read_seconds(args->seconds) : args->quick ? 0.8 : 3;
    if (b.seconds < 0)
        return cli_misuse(&command, &args->common, "--seconds: '%.40s' is no number of seconds", args->seconds);
    if (args->quick) b.deadline = cli_seconds() + 40; /* preparing what is measured last takes the rest */
    moepack_status status = set_up(&b, args, what, &error);
    if (status == MOEPACK_OK) bench_print_machine(&b);
    if (status == MOEPACK_OK && what == (IO | COMPUTE)) status = bench_limits(&b, &error);
    if (status == MOEPACK_OK) bench_print_limits(&b);
    if (status == MOEPACK_OK && (what & IO)) status = bench_io(&b, what, &error);
    if (status == MOEPACK_OK && (what & COMPUTE)) status = bench_compute(&b, what, &error);
    if (status == MOEPACK_OK && (what & BENCH_RESIDENCY)) status = bench_residency(&b, &error);
    int code = 0;
    if (status != MOEPACK_OK)
        code = cli_fail(&args->common, &error);
    else if (args->common.json)
        code = cli_print_json(&args->common, bench_json(&b));
    bench_buffer_free(&b);
    bench_trace_free(&b.trace);
    free(b.results);
    return code;
}

int cmd_bench(int argc, char **argv)
{
    bench_args args = {0};
    char **operands = NULL;
    int code = cli_parse(&command, argc, argv, &args, &operands);
    if (code != CLI_GO_ON) return code;
    const unsigned what = group_of(operands[0]);
    if (what == 0) return cli_misuse(&command, &args.common, "'%.40s' is nothing that bench measures", operands[0]);
    if (args.trace != NULL && what != BENCH_RESIDENCY)
        return cli_misuse(&command, &args.common, "--trace is for bench residency");
    return measure(&args, what);
}
