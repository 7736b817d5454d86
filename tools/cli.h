/* What the subcommands of the moepack command line share.
 *
 * A subcommand is one file cmd_NAME.c with one function `int cmd_NAME(int argc, char **argv)`: argv[0] is the command's
 * name, the result is the exit code. It calls cli_parse with its own table of options, does its work through the public
 * headers, puts data on stdout and talk on stderr, and reports a failure with cli_fail. main.c lists the commands, and
 * checks after the call that stdout could be written.
 *
 * Exit codes are the values of moepack_status. */
#ifndef MOEPACK_TOOLS_CLI_H
#define MOEPACK_TOOLS_CLI_H

#include "moepack/convert.h"
#include "moepack/format.h"
#include "moepack/runtime.h"
#include "options.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The subcommands, in the order of the help text. */
int cmd_convert(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_route(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_synth(int argc, char **argv);
int cmd_families(int argc, char **argv);

/* ------------------------------------------------------------------------------------------------- failures */

/* Prints "moepack: error: FILE: layer L, expert E, tensor T, offset O: MESSAGE" to stderr and, with --json, an object
 * with the key "error" to stdout. Returns the exit code. */
int cli_fail(const cli_common *common, const moepack_error *error);

/* The same for a failure that the command line itself found: a status and a sentence. */
int cli_failf(const cli_common *common, moepack_status status, const char *fmt, ...) MOEPACK_PRINTF(3, 4);

/* Only the line on stderr. */
void cli_error_line(const moepack_error *error);

/* {"status", "exit_code", "file", "layer", "expert", "tensor", "offset", "message"}, null where unknown. */
json_t *cli_error_json(const moepack_error *error);

/* ------------------------------------------------------------------------------------------------- output */

/* Prints the object to stdout, with a final newline, and frees it. Returns the exit code: 0, or 1 without memory. */
int cli_print_json(const cli_common *common, json_t *object);

/* Text of any bytes as a JSON string; bytes that are no UTF-8 become U+FFFD. NULL gives null. */
json_t *cli_json_text(const char *text, size_t length);
json_t *cli_json_str(moepack_str str);
/* Counts and sizes; JSON integers of the library are signed. */
json_t *cli_json_u64(uint64_t value);
/* Label of a MoE block: an integer for the main stack ("3"), else a string ("encoder.1"), null for "". */
json_t *cli_json_label(const char *label);
json_t *cli_json_hash128(moepack_hash128 hash);
json_t *cli_json_hash64(uint64_t hash);
/* Adds "io", how files were read and written, and "io_reason", why not directly or "". */
void cli_json_io(json_t *object, const char *reason);

/* "1.56 TB (1.42 TiB)": both units, because mixing them up is the commonest mistake about model sizes. */
#define CLI_SIZE_TEXT 64
const char *cli_size(uint64_t bytes, char buf[CLI_SIZE_TEXT]);
/* "1.56 TB" alone, for tables and progress. */
const char *cli_size_short(uint64_t bytes, char buf[CLI_SIZE_TEXT]);

/* Writes text whose content others chose (names from a file): control characters appear as \xNN. */
void cli_put_text(FILE *stream, const char *text, size_t length);
void cli_put_str(FILE *stream, moepack_str str);

/* A line of talk on stderr, unless --quiet. */
void cli_note(const cli_common *common, const char *fmt, ...) MOEPACK_PRINTF(2, 3);

/* ------------------------------------------------------------------------------------------------- progress, signals
 */

/* What progress and warnings of one command need. Initialise with cli_talk_init. */
typedef struct cli_talk {
    const cli_common *common;
    bool progress, terminal; /* print progress at all; rewrite one line */
    bool line_open;          /* a progress line without its newline is on the terminal */
    bool complete;           /* the last line of this stage was printed */
    double started, printed; /* seconds of the monotonic clock */
    uint64_t start_bytes;    /* done_bytes at `started`, for the rate */
    char stage[32];
    json_t *warnings; /* array of lines, for the JSON report */
} cli_talk;

void cli_talk_init(cli_talk *talk, const cli_common *common);
/* Ends a progress line, frees. Call it before the report is printed. */
void cli_talk_end(cli_talk *talk);
/* Callbacks of moepack_callbacks with `user` = cli_talk. */
void cli_talk_progress(void *user, const moepack_progress *progress);
void cli_talk_warn(void *user, const char *line);
/* All callbacks of a long call: progress, warnings and the cancel flag. */
moepack_callbacks cli_callbacks(cli_talk *talk);
double cli_seconds(void);

/* Set by Ctrl-C (SIGINT), SIGTERM and, unless it is ignored (nohup), SIGHUP. */
extern volatile int cli_cancelled;
void cli_catch_signals(void);
/* While a container is mapped: a file that shrinks ends the process with exit code 1 and an error that names `path`, in
 * JSON too where that was asked for. Nothing may be in stdout's buffer then. */
void cli_catch_sigbus(const cli_common *common, const char *path);

#endif
