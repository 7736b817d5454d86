/* moepack verify: every byte of a container, without its source. */
#include "cli.h"

#include <limits.h>
#include <string.h>

typedef struct verify_args {
    cli_common common;
    const char *layers, *experts;
    uint64_t rank, ranks, jobs;
    bool rank_given, ranks_given;
} verify_args;

#define AT(field) offsetof(verify_args, field)

static const cli_option options[] = {
    {"rank", "R", CLI_NUMBER, AT(rank), "only what rank R of N loads (linear placement), counted from 0", NULL, 0,
     UINT32_MAX - 1, AT(rank_given)},
    {"ranks", "N", CLI_NUMBER, AT(ranks), "number of ranks", NULL, 1, UINT32_MAX, AT(ranks_given)},
    {"layers", "LIST", CLI_TEXT, AT(layers), "only these MoE layers (1-3,7,encoder.1); default: everything", NULL, 0, 0,
     0},
    {"experts", "LIST", CLI_TEXT, AT(experts), "only these experts of every layer (0-13,20)", NULL, 0, 0, 0},
    {"jobs", "N", CLI_NUMBER, AT(jobs), "shards checked at the same time; default: 4 per core, at most 8", NULL, 1,
     UINT_MAX, 0},
    {0},
};

static const cli_command command = {
    .name = "verify",
    .operands = "PACK",
    .operand_count = 1,
    .about = "Reads the container and checks headers, tables, every section's hash as stored and as published, "
             "padding, and the hash of every source file. Goes on after a finding and names each: file, layer, "
             "expert, tensor, offset. Exit code 0: all as recorded. 3: damaged. 4: something is missing, and "
             "nothing is damaged. 1: neither, but something cannot be read. 5: none of these, but something was "
             "written by another version of the format.",
    .options = options,
    .example = "  moepack verify k3.moepack\n"
               "  moepack verify k3.moepack --ranks 64 --rank 3 --json",
};

/* Findings as they come: a line each on stdout, or collected for the report. One object serves all callbacks of the
 * library, so cli_talk has to be its first member. */
typedef struct findings {
    cli_talk talk;
    json_t *bad, *missing;
    json_t *lines; /* file: number of findings that something is missing, for the text */
} findings;

/* A shard that is cut short misses thousands of sections; the first ones tell what is wrong with it. JSON has all. */
enum {
    MISSING_LINES = 10
};

static json_t *text_or_null(const char *text)
{
    return text[0] != '\0' ? cli_json_text(text, strlen(text)) : json_null();
}

static void collect(findings *all, const moepack_finding *finding)
{
    json_t *item = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "file", text_or_null(finding->file),
                             "layer", cli_json_label(finding->layer), "expert",
                             finding->expert >= 0 ? json_integer(finding->expert) : json_null(), "section",
                             text_or_null(finding->section), "offset", cli_json_u64(finding->offset), "length",
                             cli_json_u64(finding->length), "expected", text_or_null(finding->expected), "found",
                             text_or_null(finding->found), "message", text_or_null(finding->message));
    if (!finding->missing)
        json_object_set_new(item, "kind",
                            json_string(finding->unsupported  ? "unsupported"
                                        : finding->unreadable ? "unreadable"
                                                              : "corrupt"));
    json_array_append_new(finding->missing ? all->missing : all->bad, item);
}

static void print_finding(const moepack_finding *finding)
{
    printf("%s  ", finding->unsupported  ? "UNSUPPORTED"
                   : finding->missing    ? "MISSING"
                   : finding->unreadable ? "UNREADABLE"
                                         : "BAD");
    cli_put_text(stdout, finding->file, strlen(finding->file));
    if (finding->layer[0] != '\0') {
        fputs(": layer ", stdout);
        cli_put_text(stdout, finding->layer, strlen(finding->layer));
    }
    if (finding->expert >= 0) printf(", expert %lld", (long long)finding->expert);
    if (finding->section[0] != '\0') {
        fputs(finding->layer[0] != '\0' ? ", " : ": ", stdout);
        cli_put_text(stdout, finding->section, strlen(finding->section));
    }
    printf(", offset %llu, length %llu: ", (unsigned long long)finding->offset, (unsigned long long)finding->length);
    cli_put_text(stdout, finding->message, strlen(finding->message));
    if (finding->expected[0] != '\0' || finding->found[0] != '\0') {
        fputs(" (expected ", stdout);
        cli_put_text(stdout, finding->expected, strlen(finding->expected));
        fputs(", found ", stdout);
        cli_put_text(stdout, finding->found, strlen(finding->found));
        fputc(')', stdout);
    }
    putchar('\n');
    fflush(stdout);
}

/* Number of such findings in this file so far, this one included; 1 when they cannot be counted (a name that is no
 * UTF-8). */
static json_int_t count_missing(findings *all, const char *file)
{
    json_int_t count = json_integer_value(json_object_get(all->lines, file)) + 1;
    return json_object_set_new(all->lines, file, json_integer(count)) == 0 ? count : 1;
}

static void on_finding(void *user, const moepack_finding *finding)
{
    findings *all = user;
    if (all->talk.common->json) {
        collect(all, finding);
        return;
    }
    if (finding->missing && count_missing(all, finding->file) > MISSING_LINES) return;
    if (all->talk.line_open) fputs("\r\033[K", stderr);
    all->talk.line_open = false;
    print_finding(finding);
}

/* How many findings on_finding did not print, for each file. */
static void print_left_out(const findings *all)
{
    const char *file;
    json_t *count;
    json_object_foreach(all->lines, file, count)
    {
        if (json_integer_value(count) <= MISSING_LINES) continue;
        printf("MISSING  ... and %lld more of ", (long long)json_integer_value(count) - MISSING_LINES);
        cli_put_text(stdout, file, strlen(file));
        putchar('\n');
    }
}

/* The report is the same object whether or not something is wrong; "error" is there when the check could not be done.
 */
static int print_json_report(const findings *all, moepack_status status, const moepack_verify_report *report,
                             const moepack_error *error)
{
    json_t *object =
        json_pack("{s:b, s:o, s:o, s:O, s:O, s:f}", "ok", status == MOEPACK_OK, "checked_bytes",
                  cli_json_u64(report->checked_bytes), "checked_sections", cli_json_u64(report->checked_sections),
                  "bad", all->bad, "missing", all->missing, "seconds", report->seconds);
    if (object != NULL) cli_json_io(object, report->io_reason);
    if (object != NULL && status != MOEPACK_OK) json_object_set_new(object, "error", cli_error_json(error));
    return cli_print_json(all->talk.common, object);
}

static int finish(const findings *all, const char *pack, moepack_status status, const moepack_verify_report *report,
                  const moepack_error *error)
{
    char size[CLI_SIZE_TEXT];
    bool counted = report->bad + report->missing + report->unsupported + report->unreadable > 0;
    if (all->talk.common->json) {
        if (status != MOEPACK_OK) cli_error_line(error);
        int code = print_json_report(all, status, report, error);
        return status != MOEPACK_OK ? (int)status : code;
    }
    print_left_out(all);
    if (counted || (status == MOEPACK_OK && !all->talk.common->quiet)) {
        printf("%s: %s: %llu sections, %s checked in %.2f s", pack, status == MOEPACK_OK ? "ok" : "NOT ok",
               (unsigned long long)report->checked_sections, cli_size(report->checked_bytes, size), report->seconds);
        if (counted)
            printf("; %llu bad, %llu missing", (unsigned long long)report->bad, (unsigned long long)report->missing);
        if (report->unreadable) printf(", %llu unreadable", (unsigned long long)report->unreadable);
        if (report->unsupported) printf(", %llu of another version", (unsigned long long)report->unsupported);
        if (report->io_reason[0] != '\0') printf("; read through the page cache (%s)", report->io_reason);
        putchar('\n');
    }
    if (status != MOEPACK_OK) cli_error_line(error);
    return (int)status;
}

static int verify(const verify_args *args, const char *pack)
{
    moepack_verify_options verify_options;
    moepack_verify_report report = {0};
    moepack_error error = {0};
    if (args->rank_given != args->ranks_given)
        return cli_misuse(&command, &args->common, "--rank and --ranks belong together");
    if (args->ranks_given && args->rank >= args->ranks) {
        return cli_misuse(&command, &args->common, "--rank %llu: there are ranks 0 to %llu",
                          (unsigned long long)args->rank, (unsigned long long)args->ranks - 1);
    }
    findings all = {.bad = json_array(), .missing = json_array(), .lines = json_object()};
    cli_talk_init(&all.talk, &args->common);
    moepack_verify_options_init(&verify_options);
    verify_options.layers = args->layers;
    verify_options.experts = args->experts;
    verify_options.rank = (uint32_t)args->rank;
    verify_options.ranks = (uint32_t)args->ranks;
    verify_options.jobs = (unsigned)args->jobs;
    verify_options.callbacks = cli_callbacks(&all.talk);
    verify_options.finding = on_finding;
    moepack_status status = moepack_verify(pack, &verify_options, &report, &error);
    cli_talk_end(&all.talk);
    int code = finish(&all, pack, status, &report, &error);
    json_decref(all.bad);
    json_decref(all.missing);
    json_decref(all.lines);
    return code;
}

int cmd_verify(int argc, char **argv)
{
    verify_args args = {0};
    char **operands = NULL;
    int code = cli_parse(&command, argc, argv, &args, &operands);
    return code == CLI_GO_ON ? verify(&args, operands[0]) : code;
}
