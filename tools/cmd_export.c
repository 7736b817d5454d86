/* moepack export: a container back into the files it was made from. */
#include "cli.h"

#include <limits.h>
#include <string.h>

typedef struct export_args {
    cli_common common;
    uint64_t jobs;
    bool overwrite;
} export_args;

static const cli_option options[] = {
    {"jobs", "N", CLI_NUMBER, offsetof(export_args, jobs),
     "files written at the same time; default: 4 per core, at most 8", NULL, 1, UINT_MAX, 0},
    {"overwrite", NULL, CLI_FLAG, offsetof(export_args, overwrite), "replace OUT_DIR if it exists", NULL, 0, 0, 0},
    {0},
};

static const cli_command command = {
    .name = "export",
    .operands = "PACK OUT_DIR",
    .operand_count = 2,
    .about = "Writes the published files again: every safetensors file, config and side file, byte for byte. "
             "Each is checked against the hash recorded at conversion before OUT_DIR gets its name. A "
             "container that holds only a part of its source (--layers, --experts, --moe-only) cannot be "
             "exported in this version.",
    .options = options,
    .example = "  moepack export k3.moepack Kimi-K3-again",
};

static int export_pack(const export_args *args, const char *pack, const char *out)
{
    moepack_export_options export_options;
    moepack_export_report report = {0};
    moepack_error error = {0};
    cli_talk talk;
    char size[CLI_SIZE_TEXT];
    moepack_export_options_init(&export_options);
    export_options.overwrite = args->overwrite;
    export_options.jobs = (unsigned)args->jobs;
    cli_talk_init(&talk, &args->common);
    export_options.callbacks = cli_callbacks(&talk);
    moepack_status status = moepack_export(pack, out, &export_options, &report, &error);
    cli_talk_end(&talk);
    if (status != MOEPACK_OK) return cli_fail(&args->common, &error);
    if (args->common.json) {
        return cli_print_json(
            &args->common, json_pack("{s:o, s:o, s:o, s:o, s:f}", "container", cli_json_text(pack, strlen(pack)),
                                     "directory", cli_json_text(out, strlen(out)), "files", cli_json_u64(report.files),
                                     "written_bytes", cli_json_u64(report.written_bytes), "seconds", report.seconds));
    }
    if (args->common.quiet) return 0;
    printf("%s: %llu files, %s, every file hash as recorded, %.2f s\n", out, (unsigned long long)report.files,
           cli_size(report.written_bytes, size), report.seconds);
    return 0;
}

int cmd_export(int argc, char **argv)
{
    export_args args = {0};
    char **operands = NULL;
    int code = cli_parse(&command, argc, argv, &args, &operands);
    return code == CLI_GO_ON ? export_pack(&args, operands[0], operands[1]) : code;
}
