/* Progress, warnings and signals. */
#include "cli.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* At most six progress lines a second: enough for the eye, cheap over a slow connection. */
static const double progress_interval = 1.0 / 6;

volatile int cli_cancelled;

double cli_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ------------------------------------------------------------------------------------------------- progress */

void cli_talk_init(cli_talk *talk, const cli_common *common)
{
    memset(talk, 0, sizeof *talk);
    talk->common = common;
    talk->terminal = isatty(STDERR_FILENO) == 1;
    talk->progress = !common->quiet && (talk->terminal || common->progress);
    talk->warnings = json_array();
}

static void close_line(cli_talk *talk)
{
    if (!talk->line_open) return;
    fputc('\n', stderr);
    talk->line_open = false;
}

void cli_talk_end(cli_talk *talk)
{
    close_line(talk);
    json_decref(talk->warnings);
    talk->warnings = NULL;
}

/* "1:05:09" or "0:42" */
static void duration(double seconds, char *buf, size_t size)
{
    unsigned long long s = seconds < 0 ? 0 : seconds > 1e9 ? 1000000000 : (unsigned long long)(seconds + 0.5);
    if (s >= 3600) {
        snprintf(buf, size, "%llu:%02llu:%02llu", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(buf, size, "%llu:%02llu", s / 60, s % 60);
    }
}

static void print_progress(cli_talk *talk, const moepack_progress *progress, double now)
{
    char done[CLI_SIZE_TEXT], total[CLI_SIZE_TEXT], speed[CLI_SIZE_TEXT], eta[32];
    double elapsed = now - talk->started;
    double rate = elapsed > 0 ? (double)(progress->done_bytes - talk->start_bytes) / elapsed : 0;
    uint64_t left = progress->total_bytes > progress->done_bytes ? progress->total_bytes - progress->done_bytes : 0;
    snprintf(eta, sizeof eta, "?");
    if (left == 0 || rate > 0) duration(left == 0 ? 0 : (double)left / rate, eta, sizeof eta);
    unsigned percent = left == 0 ? 100 : (unsigned)((double)progress->done_bytes / (double)progress->total_bytes * 100);
    if (talk->terminal) fputs("\r\033[K", stderr);
    fprintf(stderr, "%s", progress->stage);
    if (progress->label[0] != '\0') {
        /* Labels of blocks are numbers or "encoder.1"; everything else is a file's name. */
        fputc(' ', stderr);
        if (progress->label[0] >= '0' && progress->label[0] <= '9') fputs("layer ", stderr);
        cli_put_text(stderr, progress->label, strlen(progress->label));
    }
    if (progress->total_bytes > 0) {
        fprintf(stderr, ": %s of %s, %u %%", cli_size_short(progress->done_bytes, done),
                cli_size_short(progress->total_bytes, total), percent);
        if (rate > 0) fprintf(stderr, ", %s/s", cli_size_short((uint64_t)rate, speed));
        fprintf(stderr, ", ETA %s", eta);
    } else {
        fputs(" ...", stderr); /* a stage that cannot say how long it will take */
    }
    if (talk->terminal) {
        talk->line_open = true;
        fflush(stderr);
    } else {
        fputc('\n', stderr);
    }
}

void cli_talk_progress(void *user, const moepack_progress *progress)
{
    cli_talk *talk = user;
    if (!talk->progress) return;
    double now = cli_seconds();
    if (strncmp(talk->stage, progress->stage, sizeof talk->stage - 1) != 0) {
        close_line(talk);
        snprintf(talk->stage, sizeof talk->stage, "%s", progress->stage);
        talk->started = now;
        talk->start_bytes = progress->done_bytes;
        talk->printed = 0;
        talk->complete = false;
    }
    bool last = progress->total_bytes > 0 && progress->done_bytes >= progress->total_bytes;
    if (talk->complete || (!last && now - talk->printed < progress_interval)) return;
    talk->printed = now;
    talk->complete = last;
    print_progress(talk, progress, now);
    if (last) close_line(talk);
}

void cli_talk_warn(void *user, const char *line)
{
    cli_talk *talk = user;
    json_array_append_new(talk->warnings, cli_json_text(line, strlen(line)));
    if (talk->common->quiet) return;
    if (talk->line_open) fputs("\r\033[K", stderr);
    talk->line_open = false;
    fputs("moepack: warning: ", stderr);
    cli_put_text(stderr, line, strlen(line));
    fputc('\n', stderr);
}

moepack_callbacks cli_callbacks(cli_talk *talk)
{
    return (moepack_callbacks){
        .progress = cli_talk_progress,
        .warn = cli_talk_warn,
        .user = talk,
        .cancel = &cli_cancelled,
    };
}

/* ------------------------------------------------------------------------------------------------- signals */

static void on_cancel(int signal_number)
{
    (void)signal_number;
    cli_cancelled = 1;
}

void cli_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_cancel, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

/* What the SIGBUS handler prints, put together beforehand: a handler may do little more than write. */
static char sigbus_line[512], sigbus_json[2048];

static void on_sigbus(int signal_number)
{
    (void)signal_number;
    ssize_t ignored = write(STDERR_FILENO, sigbus_line, strlen(sigbus_line));
    ignored = write(STDOUT_FILENO, sigbus_json, strlen(sigbus_json));
    (void)ignored;
    _exit((int)MOEPACK_E_IO);
}

void cli_catch_sigbus(const cli_common *common, const char *path)
{
    moepack_error error = {.status = MOEPACK_E_IO, .expert = -1, .offset = -1};
    /* A long path keeps its end, where the container's name is. */
    size_t length = strlen(path), room = sizeof error.file - 1;
    snprintf(error.file, sizeof error.file, "%s", length > room ? path + length - room : path);
    snprintf(error.message, sizeof error.message,
             "a file shrank or became unreadable while it was mapped (--io direct reads without mapping)");
    snprintf(sigbus_line, sizeof sigbus_line, "moepack: error: %.300s: %.180s\n", error.file, error.message);
    char *text = NULL;
    json_t *object = common->json ? json_pack("{s:o}", "error", cli_error_json(&error)) : NULL;
    if (object != NULL) text = json_dumps(object, JSON_INDENT(2));
    sigbus_json[0] = '\0';
    /* One that does not fit would be cut to something that is no JSON. */
    if (text != NULL && strlen(text) + 2 <= sizeof sigbus_json) snprintf(sigbus_json, sizeof sigbus_json, "%s\n", text);
    free(text);
    json_decref(object);
    struct sigaction action = {.sa_handler = on_sigbus};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
