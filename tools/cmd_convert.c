/* moepack convert: a published checkpoint into a container. */
#include "cli.h"

#include <limits.h>
#include <string.h>

typedef struct convert_args {
    cli_common common;
    const char *layers, *experts;
    unsigned shard_by, layout, codec;
    uint64_t shard_size, jobs;
    bool shard_size_given;
    cli_list policy;
    bool moe_only, verify, dry_run, overwrite, allow_nan_scales, force_requantize;
    unsigned quantize;
} convert_args;

enum {
    CODEC_RAW,
    CODEC_SCALES,
    CODEC_ZSTD
};

/* In the order of moepack_shard_by; the layouts in reading order of the help, see layout_of. */
static const char *const shard_names[] = {"expert", "layer", "size", NULL};
static const char *const layout_names[] = {"panel", "canonical", NULL};
static const moepack_layout layout_of[] = {MOEPACK_LAYOUT_PANEL, MOEPACK_LAYOUT_CANONICAL};
static const char *const quantize_names[] = {"no", "mxfp4", NULL};
static const char *const codec_names[] = {"raw", "scales", "zstd", NULL};

#define AT(field) offsetof(convert_args, field)

static const cli_option options[] = {
    {"layers", "LIST", CLI_TEXT, AT(layers),
     "only these MoE layers: numbers and ranges, 'encoder.1' where a model has two stacks (1-3,7); default: all", NULL,
     0, 0, 0},
    {"experts", "LIST", CLI_TEXT, AT(experts), "only these experts of every layer (0-13,20); default: all", NULL, 0, 0,
     0},
    {"shard-by", "expert|layer|size", CLI_CHOICE, AT(shard_by),
     "what a shard file holds: a range of experts of every layer (default), all experts of some layers, or so many "
     "bytes",
     shard_names, 0, 0, 0},
    {"shard-size", "BYTES", CLI_SIZE, AT(shard_size), "size that shards aim at; also bounds trunk files; default: 24G",
     NULL, 1, INT64_MAX, AT(shard_size_given)},
    {"codec", "raw|scales|zstd", CLI_CHOICE, AT(codec),
     "raw (default) can be mapped as it is; the compressed forms are not in this version", codec_names, 0, 0, 0},
    {"layout", "panel|canonical", CLI_CHOICE, AT(layout),
     "order of weights: as the kernels read them (default), or as published; reversible", layout_names, 0, 0, 0},
    {"moe-only", NULL, CLI_FLAG, AT(moe_only),
     "leave out what belongs to no MoE layer (such a container cannot be exported)", NULL, 0, 0, 0},
    {"policy", "KEY=VALUE", CLI_LIST, AT(policy),
     "override a field of the routing policy, recorded as such; may be repeated", NULL, 0, 0, 0},
    {"jobs", "N", CLI_NUMBER, AT(jobs), "files read and written at the same time; default: 4 per core, at most 8", NULL,
     1, UINT_MAX, 0},
    {"verify", NULL, CLI_FLAG, AT(verify), "read everything back before the container gets its name", NULL, 0, 0, 0},
    {"dry-run", NULL, CLI_FLAG, AT(dry_run), "check the source and print sizes; write nothing", NULL, 0, 0, 0},
    {"overwrite", NULL, CLI_FLAG, AT(overwrite), "replace OUT if it exists", NULL, 0, 0, 0},
    {"allow-nan-scales", NULL, CLI_FLAG, AT(allow_nan_scales),
     "store scale bytes that mean NaN (255) instead of stopping; 'run' refuses such experts", NULL, 0, 0, 0},
    {"quantize", "no|mxfp4", CLI_CHOICE, AT(quantize),
     "encode expert weights of 8 bits and more as MXFP4: a quarter of BF16, with an error of about 11 %; the container "
     "says so, and cannot be exported",
     quantize_names, 0, 0, 0},
    {"force-requantize", NULL, CLI_FLAG, AT(force_requantize),
     "with --quantize: also experts that have 4 bits already, which adds a second error", NULL, 0, 0, 0},
    {0},
};

static const cli_command command = {
    .name = "convert",
    .operands = "SRC OUT",
    .operand_count = 2,
    .about = "Converts SRC, a directory with config.json and safetensors files, into the container directory "
             "OUT. Every byte of the source is kept: 'moepack export' gives the files back. SRC is only read. "
             "Work goes to OUT.partial, which becomes OUT when all is written and synced; disk space for the "
             "whole container is needed, and checked first.",
    .options = options,
    .example = "  moepack convert Kimi-K3 k3.moepack --dry-run\n"
               "  moepack convert Kimi-K3 k3.moepack --verify",
};

static json_t *report_json(const convert_args *args, const char *out, const moepack_convert_report *report,
                           json_t *warnings)
{
    json_t *object = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:f, s:o}", "container", cli_json_text(out, strlen(out)), "source_bytes",
        cli_json_u64(report->source_bytes), "written_bytes", cli_json_u64(args->dry_run ? 0 : report->written_bytes),
        "experts", cli_json_u64(report->experts), "tensors", cli_json_u64(report->tensors), "shards",
        cli_json_u64(report->shards), "seconds", report->seconds, "resumed_bytes", cli_json_u64(report->resumed_bytes));
    if (object == NULL) return NULL;
    json_object_set(object, "warnings", warnings);
    json_object_set_new(object, "plan",
                        json_pack("{s:o, s:o, s:o, s:o}", "container_bytes", cli_json_u64(report->written_bytes),
                                  "needed_disk_bytes", cli_json_u64(report->needed_disk_bytes), "available_disk_bytes",
                                  cli_json_u64(report->available_disk_bytes), "peak_memory_bytes",
                                  cli_json_u64(report->peak_memory_bytes)));
    if (!args->dry_run) {
        json_object_set_new(object, "root_hash", cli_json_hash128(report->root_hash));
        json_object_set_new(object, "canonical_root", cli_json_hash128(report->canonical_root));
        cli_json_io(object, report->io_reason);
    }
    return object;
}

static void print_dry_run(const moepack_convert_report *report)
{
    char size[CLI_SIZE_TEXT];
    printf("would read     %s, %llu tensors, %llu experts\n", cli_size(report->source_bytes, size),
           (unsigned long long)report->tensors, (unsigned long long)report->experts);
    printf("would write    %s in %llu shard file%s\n", cli_size(report->written_bytes, size),
           (unsigned long long)report->shards, report->shards == 1 ? "" : "s");
    printf("disk needed    %s\n", cli_size(report->needed_disk_bytes, size));
    printf("disk free      %s%s\n", cli_size(report->available_disk_bytes, size),
           report->available_disk_bytes < report->needed_disk_bytes ? ": NOT ENOUGH" : "");
    printf("memory needed  %s\n", cli_size(report->peak_memory_bytes, size));
}

static void print_report(const char *out, const moepack_convert_report *report)
{
    char size[CLI_SIZE_TEXT], hash[33];
    printf("%s\n", out);
    printf("  read        %s, %llu tensors\n", cli_size(report->source_bytes, size),
           (unsigned long long)report->tensors);
    printf("  written     %s, %llu experts in %llu shard file%s\n", cli_size(report->written_bytes, size),
           (unsigned long long)report->experts, (unsigned long long)report->shards, report->shards == 1 ? "" : "s");
    if (report->resumed_bytes > 0) printf("  resumed     %s\n", cli_size(report->resumed_bytes, size));
    printf("  time        %.2f s", report->seconds);
    if (report->seconds > 0)
        printf(", %s/s", cli_size_short((uint64_t)((double)report->written_bytes / report->seconds), size));
    putchar('\n');
    if (report->io_reason[0] != '\0') printf("  io          buffered (%s)\n", report->io_reason);
    moepack_hash128_text(report->root_hash, hash);
    printf("  root hash   %s\n", hash);
}

static void fill_options(const convert_args *args, moepack_convert_options *out)
{
    moepack_convert_options_init(out);
    out->layers = args->layers;
    out->experts = args->experts;
    out->shard_by = (moepack_shard_by)args->shard_by;
    if (args->shard_size_given) out->shard_size = args->shard_size;
    out->layout = layout_of[args->layout];
    out->codec = MOEPACK_CODEC_RAW;
    out->moe_only = args->moe_only;
    out->policy = args->policy.items;
    out->policy_count = args->policy.count;
    out->jobs = (unsigned)args->jobs;
    out->verify = args->verify;
    out->dry_run = args->dry_run;
    out->overwrite = args->overwrite;
    out->allow_nan_scales = args->allow_nan_scales;
    out->quantize_mxfp4 = args->quantize != 0;
    out->force_requantize = args->force_requantize;
}

static int convert(const convert_args *args, const char *src, const char *out)
{
    moepack_convert_options convert_options;
    moepack_convert_report report = {0};
    moepack_error error = {0};
    cli_talk talk;
    if (args->codec != CODEC_RAW) {
        return cli_failf(&args->common, MOEPACK_E_UNSUPPORTED, "--codec %s is not in this version; raw is",
                         codec_names[args->codec]);
    }
    if (args->force_requantize && args->quantize == 0)
        return cli_misuse(&command, &args->common, "--force-requantize goes with --quantize mxfp4");
    fill_options(args, &convert_options);
    cli_talk_init(&talk, &args->common);
    convert_options.callbacks = cli_callbacks(&talk);
    moepack_status status = moepack_convert(src, out, &convert_options, &report, &error);
    json_t *warnings = json_incref(talk.warnings);
    cli_talk_end(&talk);
    int code = 0;
    if (status != MOEPACK_OK) {
        code = cli_fail(&args->common, &error);
    } else if (args->common.json) {
        code = cli_print_json(&args->common, report_json(args, out, &report, warnings));
    } else if (args->dry_run) {
        print_dry_run(&report);
    } else if (!args->common.quiet) {
        print_report(out, &report);
    }
    json_decref(warnings);
    return code;
}

int cmd_convert(int argc, char **argv)
{
    convert_args args = {0};
    char **operands = NULL;
    int code = cli_parse(&command, argc, argv, &args, &operands);
    if (code == CLI_GO_ON) code = convert(&args, operands[0], operands[1]);
    cli_list_free(&args.policy);
    return code;
}
