/* Status names, and filling and printing a moepack_error. */
#include "error.h"

#include <stdio.h>
#include <string.h>

const char *moepack_status_name(moepack_status status)
{
    switch (status) {
    case MOEPACK_OK:
        return "ok";
    case MOEPACK_E_IO:
        return "I/O error";
    case MOEPACK_E_USAGE:
        return "wrong usage";
    case MOEPACK_E_CORRUPT:
        return "corrupt data";
    case MOEPACK_E_INCOMPLETE:
        return "incomplete";
    case MOEPACK_E_UNSUPPORTED:
        return "unsupported";
    case MOEPACK_E_REFUSED:
        return "refused";
    case MOEPACK_E_INTERRUPTED:
        return "interrupted";
    }
    return "unknown status";
}

#define MPK_STRING2(x) #x
#define MPK_STRING(x) MPK_STRING2(x)

const char *moepack_version(void)
{
    return MPK_STRING(MOEPACK_VERSION_MAJOR) "." MPK_STRING(MOEPACK_VERSION_MINOR) "." MPK_STRING(
        MOEPACK_VERSION_PATCH);
}

/* Bytes of the UTF-8 character that starts here; 0 if there is none. */
static size_t utf8_length(const unsigned char *c)
{
    size_t n = c[0] < 0x80                   ? 1
               : c[0] >= 0xc2 && c[0] < 0xe0 ? 2
               : (c[0] & 0xf0) == 0xe0       ? 3
               : c[0] >= 0xf0 && c[0] < 0xf5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; ++i) {
        if ((c[i] & 0xc0) != 0x80) return 0; /* also the zero at the end */
    }
    /* Longer forms than needed, surrogates, and numbers above 0x10ffff. */
    if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f)) return 0;
    if ((c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] > 0x8f)) return 0;
    return n;
}

/* Names come from files: a control byte in one must not break the error line or steer a terminal, and a byte that is no
 * UTF-8 (or a character cut off by the end of the buffer) must not break a JSON report. */
static void clean(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c != '\0';) {
        size_t n = utf8_length(c);
        if (n == 0 || *c < 0x20 || *c == 0x7f) *c = '?';
        c += n == 0 ? 1 : n;
    }
}

static moepack_status fail_with(moepack_error *error, moepack_status status, int errno_value, const char *format,
                                va_list args)
{
    if (error == NULL) return status;
    char text[sizeof error->message]; /* first, because the arguments may point into *error */
    int length = vsnprintf(text, sizeof text, format, args);
    if (length < 0) snprintf(text, sizeof text, "%s", format);
    if (errno_value != 0 && length >= 0 && (size_t)length < sizeof text) {
        char reason[128];
        /* The GNU strerror_r: returns the text, which may or may not lie in `reason`. */
        const char *words = strerror_r(errno_value, reason, sizeof reason);
        snprintf(text + length, sizeof text - (size_t)length, ": %s", words);
    }
    clean(text);
    memset(error, 0, sizeof *error);
    error->status = status;
    error->expert = -1;
    error->offset = -1;
    memcpy(error->message, text, sizeof text);
    error->message[sizeof error->message - 1] = '\0';
    return status;
}

moepack_status mpk_fail(moepack_error *error, moepack_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail_with(error, status, 0, format, args);
    va_end(args);
    return status;
}

moepack_status mpk_fail_errno(moepack_error *error, moepack_status status, int errno_value, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail_with(error, status, errno_value, format, args);
    va_end(args);
    return status;
}

/* The end of a path says more than its beginning. */
void mpk_error_file(moepack_error *error, const char *file)
{
    if (error == NULL || file == NULL || file[0] == '\0' || error->file[0] != '\0') return;
    size_t length = strlen(file), room = sizeof error->file - 1;
    const char *from = length > room ? file + (length - room) : file;
    memcpy(error->file, from, strlen(from) + 1);
    if (from != file) memcpy(error->file, "...", 3);
    clean(error->file);
}

void mpk_error_layer(moepack_error *error, const char *label)
{
    if (error == NULL || label == NULL || error->layer[0] != '\0') return;
    snprintf(error->layer, sizeof error->layer, "%s", label);
    clean(error->layer);
}

void mpk_error_expert(moepack_error *error, int64_t expert)
{
    if (error != NULL && expert >= 0 && error->expert < 0) error->expert = expert;
}

void mpk_error_tensor(moepack_error *error, const char *tensor, long tensor_length)
{
    if (error == NULL || tensor == NULL || error->tensor[0] != '\0') return;
    size_t length = tensor_length < 0 ? strlen(tensor) : (size_t)tensor_length;
    if (length > sizeof error->tensor - 1) length = sizeof error->tensor - 1;
    memcpy(error->tensor, tensor, length);
    error->tensor[length] = '\0';
    for (size_t i = 0; i < length; ++i) {
        if (error->tensor[i] == '\0') error->tensor[i] = '?';
    }
    clean(error->tensor);
}

void mpk_error_offset(moepack_error *error, uint64_t offset)
{
    if (error != NULL && error->offset < 0 && offset <= INT64_MAX) error->offset = (int64_t)offset;
}

/* snprintf that appends: `used` is what was wanted so far. */
static size_t append(char *buf, size_t size, size_t used, const char *format, ...) MOEPACK_PRINTF(4, 5);
static size_t append(char *buf, size_t size, size_t used, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(used < size ? buf + used : NULL, used < size ? size - used : 0, format, args);
    va_end(args);
    return used + (n > 0 ? (size_t)n : 0);
}

size_t moepack_error_format(const moepack_error *error, char *buf, size_t size)
{
    if (size > 0) buf[0] = '\0';
    if (error == NULL) return 0;
    size_t used = 0;
    const char *between = "";
    if (error->file[0] != '\0') used = append(buf, size, used, "%s: ", error->file);
    if (error->layer[0] != '\0') {
        used = append(buf, size, used, "layer %s", error->layer);
        between = ", ";
    }
    if (error->expert >= 0) {
        used = append(buf, size, used, "%sexpert %lld", between, (long long)error->expert);
        between = ", ";
    }
    if (error->tensor[0] != '\0') {
        used = append(buf, size, used, "%stensor %s", between, error->tensor);
        between = ", ";
    }
    if (error->offset >= 0) {
        used = append(buf, size, used, "%soffset %lld", between, (long long)error->offset);
        between = ", ";
    }
    return append(buf, size, used, "%s%s", between[0] != '\0' ? ": " : "", error->message);
}
