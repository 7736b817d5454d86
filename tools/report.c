/* Errors, JSON and sizes as the commands print them. */
#include "cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------- text */

void cli_put_text(FILE *stream, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f) {
            fprintf(stream, "\\x%02x", c);
        } else {
            fputc(c, stream);
        }
    }
}

void cli_put_str(FILE *stream, moepack_str str)
{
    cli_put_text(stream, str.data, str.length);
}

static const char *scaled(uint64_t bytes, double step, const char *const *units, char *buf, size_t size)
{
    double value = (double)bytes;
    size_t unit = 0;
    /* 999.95 would be printed as 1000.0 */
    while (value >= step - step / 20000 && units[unit + 1] != NULL) {
        value /= step;
        unit++;
    }
    if (unit == 0) {
        snprintf(buf, size, "%llu %s", (unsigned long long)bytes, units[0]);
    } else {
        snprintf(buf, size, "%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, units[unit]);
    }
    return buf;
}

const char *cli_size_short(uint64_t bytes, char buf[CLI_SIZE_TEXT])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", NULL};
    return scaled(bytes, 1000, units, buf, CLI_SIZE_TEXT);
}

const char *cli_size(uint64_t bytes, char buf[CLI_SIZE_TEXT])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", NULL};
    char decimal[CLI_SIZE_TEXT], binary[24];
    cli_size_short(bytes, decimal);
    if (bytes < 1000) return strcpy(buf, decimal);
    scaled(bytes, 1024, units, binary, sizeof binary);
    snprintf(buf, CLI_SIZE_TEXT, "%.24s (%s)", decimal, binary);
    return buf;
}

void cli_note(const cli_common *common, const char *fmt, ...)
{
    if (common->quiet) return;
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

/* ------------------------------------------------------------------------------------------------- JSON */

/* Length of the UTF-8 sequence at p, 0 if it is none. */
static size_t utf8_length(const unsigned char *p, size_t left)
{
    size_t n = p[0] < 0x80 ? 1 : (p[0] & 0xe0) == 0xc0 ? 2 : (p[0] & 0xf0) == 0xe0 ? 3 : (p[0] & 0xf8) == 0xf0 ? 4 : 0;
    if (n == 0 || n > left) return 0;
    json_t *probe = json_stringn((const char *)p, n);
    if (probe == NULL) return 0;
    json_decref(probe);
    return n;
}

json_t *cli_json_text(const char *text, size_t length)
{
    if (text == NULL) return json_null();
    json_t *string = json_stringn(text, length);
    if (string != NULL) return string;
    char *clean = malloc(3 * length + 1);
    if (clean == NULL) return NULL;
    size_t used = 0;
    for (size_t i = 0; i < length;) {
        size_t n = utf8_length((const unsigned char *)text + i, length - i);
        if (n == 0) {
            memcpy(clean + used, "\xef\xbf\xbd", 3);
            used += 3;
            i++;
        } else {
            memcpy(clean + used, text + i, n);
            used += n;
            i += n;
        }
    }
    string = json_stringn(clean, used);
    free(clean);
    return string;
}

json_t *cli_json_str(moepack_str str)
{
    return cli_json_text(str.data != NULL ? str.data : "", str.length);
}

json_t *cli_json_u64(uint64_t value)
{
    return json_integer((json_int_t)value);
}

json_t *cli_json_label(const char *label)
{
    uint64_t number;
    if (label[0] == '\0') return json_null();
    if (cli_read_number(label, &number)) return cli_json_u64(number);
    return cli_json_text(label, strlen(label));
}

json_t *cli_json_hash128(moepack_hash128 hash)
{
    char text[33];
    moepack_hash128_text(hash, text);
    return json_string(text);
}

void cli_json_io(json_t *object, const char *reason)
{
    json_object_set_new(object, "io", json_string(reason[0] == '\0' ? "direct" : "buffered"));
    json_object_set_new(object, "io_reason", cli_json_text(reason, strlen(reason)));
}

json_t *cli_json_hash64(uint64_t hash)
{
    char text[17];
    moepack_hash64_text(hash, text);
    return json_string(text);
}

int cli_print_json(const cli_common *common, json_t *object)
{
    if (object == NULL) return cli_failf(common, MOEPACK_E_IO, "no memory");
    /* 15 digits: 1e-20 and 0.1 print as written. A failing stdout is found when main closes it. */
    json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    putchar('\n');
    json_decref(object);
    return 0;
}

/* ------------------------------------------------------------------------------------------------- errors */

json_t *cli_error_json(const moepack_error *error)
{
    json_t *offset = error->offset >= 0 ? json_integer(error->offset) : json_null();
    json_t *expert = error->expert >= 0 ? json_integer(error->expert) : json_null();
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "status", moepack_status_name(error->status),
                     "exit_code", (int)error->status, "file",
                     error->file[0] != '\0' ? cli_json_text(error->file, strlen(error->file)) : json_null(), "layer",
                     cli_json_label(error->layer), "expert", expert, "tensor",
                     error->tensor[0] != '\0' ? cli_json_text(error->tensor, strlen(error->tensor)) : json_null(),
                     "offset", offset, "message", cli_json_text(error->message, strlen(error->message)));
}

void cli_error_line(const moepack_error *error)
{
    char text[1400];
    moepack_error_format(error, text, sizeof text);
    fflush(stdout); /* keeps the order where both go to one place */
    fputs("moepack: error: ", stderr);
    cli_put_text(stderr, text, strlen(text));
    fputc('\n', stderr);
}

int cli_fail(const cli_common *common, const moepack_error *error)
{
    cli_error_line(error);
    if (common->json) cli_print_json(common, json_pack("{s:o}", "error", cli_error_json(error)));
    return (int)error->status;
}

int cli_failf(const cli_common *common, moepack_status status, const char *fmt, ...)
{
    moepack_error error = {.status = status, .expert = -1, .offset = -1};
    va_list args;
    va_start(args, fmt);
    vsnprintf(error.message, sizeof error.message, fmt, args);
    va_end(args);
    return cli_fail(common, &error);
}
