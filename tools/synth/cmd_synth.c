/* moepack synth: a checkpoint in a published layout with random weights. */
#include "../cli.h"
#include "synth.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

/* Options that override a field of the geometry: value, and whether it was given. */
enum {
    SIZE_COUNT = 10
};

typedef struct synth_args {
    cli_common common;
    uint64_t seed, shards, jobs, tokens;
    bool tokens_given;
    const char *preset, *input;
    uint64_t size[SIZE_COUNT];
    bool size_given[SIZE_COUNT];
} synth_args;

/* By position in synth_args.size. */
static const size_t geometry_field[SIZE_COUNT] = {offsetof(mpk_synth_geometry, hidden),
                                                  offsetof(mpk_synth_geometry, latent),
                                                  offsetof(mpk_synth_geometry, intermediate),
                                                  offsetof(mpk_synth_geometry, experts),
                                                  offsetof(mpk_synth_geometry, top_k),
                                                  offsetof(mpk_synth_geometry, shared),
                                                  offsetof(mpk_synth_geometry, layers),
                                                  offsetof(mpk_synth_geometry, first_dense),
                                                  offsetof(mpk_synth_geometry, dense_intermediate),
                                                  offsetof(mpk_synth_geometry, vocab)};

#define AT(field) offsetof(synth_args, field)
#define SIZE(option, i, least, help)                                                          \
    {                                                                                         \
        option, "N", CLI_NUMBER, AT(size[i]), help, NULL, least, INT32_MAX, AT(size_given[i]) \
    }

static const cli_option options[] = {
    {"seed", "N", CLI_NUMBER, AT(seed),
     "every byte follows from it, on any machine, with any number of jobs; default: 1", NULL, 0, 0, 0},
    {"preset", "NAME", CLI_TEXT, AT(preset),
     "sizes of a published model (k3: all of Kimi K3, 1.5 TB); the options below override them", NULL, 0, 0, 0},
    SIZE("hidden", 0, 1, "width of the model; default: 256"),
    SIZE("latent", 1, 0,
         "width at which routed experts work, a multiple of 32; 0: the width of the model; default: 128"),
    SIZE("intermediate", 2, 1, "inner width of an expert, a multiple of 32; default: 96"),
    SIZE("experts", 3, 1, "routed experts of a layer; default: 32"),
    SIZE("top-k", 4, 1, "experts selected per token; default: 4"),
    SIZE("shared", 5, 0, "shared experts; default: 2"),
    SIZE("layers", 6, 1, "all layers; default: 3"),
    SIZE("first-dense", 7, 0, "how many of them come first and have no experts; default: 1"),
    SIZE("dense-intermediate", 8, 1, "inner width of those; default: 192"),
    SIZE("vocab", 9, 1, "rows of the embedding; default: 64"),
    {"shards", "N", CLI_NUMBER, AT(shards), "files to distribute the tensors to; default: one per layer", NULL, 1,
     UINT32_MAX, 0},
    {"input", "FILE", CLI_TEXT, AT(input), "also write an input for 'moepack run': x [tokens, hidden]; outside OUT_DIR",
     NULL, 0, 0, 0},
    {"tokens", "T", CLI_NUMBER, AT(tokens), "rows of that input; default: 16", NULL, 1, INT32_MAX, AT(tokens_given)},
    {"jobs", "N", CLI_NUMBER, AT(jobs), "threads that make weights; default: cores, at most 8", NULL, 1, 1024, 0},
    {0},
};

static const cli_command command = {
    .name = "synth",
    .operands = "FAMILY OUT_DIR",
    .operand_count = 2,
    .about = "Writes a checkpoint in the published layout of FAMILY (kimi_k3) with random weights of realistic\n"
             "statistics: bell-shaped, scales that spread from row to row, 0.2 % outliers, quantised by the rule of\n"
             "the OCP Microscaling specification. For tests and measurements without the download.\n"
             "OUT_DIR must not exist, or be empty.",
    .options = options,
    .example =
        "  moepack synth kimi_k3 k3 --seed 1 --input x.safetensors --tokens 4\n"
        "  moepack synth kimi_k3 wide --preset k3 --layers 2 --experts 16 --vocab 1024 --dense-intermediate 1024",
};

/* ------------------------------------------------------------------------------------------------- arguments */

static int unknown_family(const synth_args *args, const char *name)
{
    char known[256] = "";
    for (size_t i = 0; mpk_synth_family_get(i) != NULL; i++) {
        size_t length = strlen(known);
        snprintf(known + length, sizeof known - length, "%s%s", i == 0 ? "" : ", ", mpk_synth_family_get(i)->name);
    }
    return cli_failf(&args->common, MOEPACK_E_UNSUPPORTED, "unknown family '%.100s'; known: %s", name, known);
}

static mpk_synth_geometry geometry_of(const synth_args *args, const mpk_synth_family *family)
{
    mpk_synth_geometry geometry = args->preset == NULL ? family->small : family->published;
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        if (args->size_given[i]) memcpy((char *)&geometry + geometry_field[i], &args->size[i], sizeof args->size[i]);
    }
    return geometry;
}

/* True when `file` would lie in the directory `dir`, as far as the two texts say. */
static bool inside(const char *file, const char *dir)
{
    size_t length = strlen(dir);
    while (length > 1 && dir[length - 1] == '/') length--;
    return strncmp(file, dir, length) == 0 && (file[length] == '\0' || file[length] == '/');
}

static int check_arguments(const synth_args *args, const mpk_synth_family *family, const char *out)
{
    if (args->preset != NULL && strcmp(args->preset, family->preset) != 0) {
        return cli_misuse(&command, &args->common, "unknown preset '%.100s' of family %s; known: %s", args->preset,
                          family->name, family->preset);
    }
    if (args->tokens_given && args->input == NULL) return cli_misuse(&command, &args->common, "--tokens needs --input");
    if (args->input == NULL) return CLI_GO_ON;
    if (inside(args->input, out))
        return cli_misuse(&command, &args->common,
                          "--input must lie outside OUT_DIR: a checkpoint holds no other weight files");
    if (access(args->input, F_OK) == 0)
        return cli_failf(&args->common, MOEPACK_E_REFUSED, "%.300s exists", args->input);
    return CLI_GO_ON;
}

/* ------------------------------------------------------------------------------------------------- report */

static json_t *report_json(const synth_args *args, const mpk_synth_plan *plan, const char *out,
                           const mpk_synth_report *report)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f, s:o}", "family", plan->family->name, "checkpoint",
                     cli_json_text(out, strlen(out)), "seed", cli_json_u64(args->seed), "tensors",
                     cli_json_u64(report->tensors), "experts", cli_json_u64(report->experts), "shards",
                     cli_json_u64(report->shards), "tensor_bytes", cli_json_u64(report->tensor_bytes), "written_bytes",
                     cli_json_u64(report->written_bytes), "seconds", report->seconds, "input",
                     args->input == NULL ? json_null() : cli_json_text(args->input, strlen(args->input)));
}

static void print_report(const synth_args *args, const mpk_synth_plan *plan, const char *out,
                         const mpk_synth_report *report)
{
    char size[CLI_SIZE_TEXT];
    const mpk_synth_geometry *g = &plan->geometry;
    printf("%s\n", out);
    printf("  family      %s, seed %" PRIu64 "\n", plan->family->name, args->seed);
    printf("  layers      %" PRIu64 ", %" PRIu64 " of them with %" PRIu64 " experts, %" PRIu64 " per token\n",
           g->layers, g->layers - g->first_dense, g->experts, g->top_k);
    printf("  widths      hidden %" PRIu64 ", latent %" PRIu64 ", expert %" PRIu64 "\n", g->hidden, g->latent,
           g->intermediate);
    printf("  written     %s, %" PRIu64 " tensors in %" PRIu64 " shard file%s\n", cli_size(report->written_bytes, size),
           report->tensors, report->shards, report->shards == 1 ? "" : "s");
    printf("  time        %.1f s", report->seconds);
    if (report->seconds > 0)
        printf(", %s/s", cli_size_short((uint64_t)((double)report->written_bytes / report->seconds), size));
    printf("\n");
    if (args->input != NULL)
        printf("  input       %s: x [%" PRIu64 ", %" PRIu64 "] BF16\n", args->input, args->tokens, g->hidden);
}

/* ------------------------------------------------------------------------------------------------- command */

static moepack_status make(const synth_args *args, const mpk_synth_plan *plan, const char *out,
                           mpk_synth_report *report, moepack_error *error)
{
    cli_talk talk;
    cli_talk_init(&talk, &args->common);
    moepack_callbacks callbacks = cli_callbacks(&talk);
    moepack_status status = mpk_synth_write(plan, out, (unsigned)args->jobs, &callbacks, report, error);
    cli_talk_end(&talk);
    if (status == MOEPACK_OK && args->input != NULL) {
        status = mpk_synth_write_input(args->input, args->seed, args->tokens, plan->geometry.hidden, error);
    }
    return status;
}

static int synth(const synth_args *args, const char *family_name, const char *out)
{
    const mpk_synth_family *family = mpk_synth_family_find(family_name);
    if (family == NULL) return unknown_family(args, family_name);
    int code = check_arguments(args, family, out);
    if (code != CLI_GO_ON) return code;
    mpk_synth_geometry geometry = geometry_of(args, family);
    mpk_synth_plan plan;
    mpk_synth_report report;
    moepack_error error = {0};
    moepack_status status = mpk_synth_plan_make(&plan, family, &geometry, args->seed, args->shards, &error);
    if (status == MOEPACK_OK) status = make(args, &plan, out, &report, &error);
    if (status != MOEPACK_OK) {
        code = cli_fail(&args->common, &error);
    } else if (args->common.json) {
        code = cli_print_json(&args->common, report_json(args, &plan, out, &report));
    } else {
        if (!args->common.quiet) print_report(args, &plan, out, &report);
        code = 0;
    }
    mpk_synth_plan_free(&plan);
    return code;
}

int cmd_synth(int argc, char **argv)
{
    synth_args args = {.seed = 1, .tokens = 16};
    char **operands = NULL;
    int code = cli_parse(&command, argc, argv, &args, &operands);
    return code == CLI_GO_ON ? synth(&args, operands[0], operands[1]) : code;
}
