/* Filling a moepack_error. Internal. */
#ifndef MOEPACK_FORMAT_ERROR_H
#define MOEPACK_FORMAT_ERROR_H

#include "moepack/format.h"

#include <stdarg.h>

/* Fills `error` (may be NULL) with a status and a message, clears all places (file, layer, ...), and returns the status
 * so that callers can write `return mpk_fail(error, ...)`. */
moepack_status mpk_fail(moepack_error *error, moepack_status status, const char *format, ...) MOEPACK_PRINTF(3, 4);

/* Same, with ": " and strerror(errno_value) appended. */
moepack_status mpk_fail_errno(moepack_error *error, moepack_status status, int errno_value, const char *format, ...)
    MOEPACK_PRINTF(4, 5);

/* Adds places to an error already filled. NULL, "" and -1 mean "leave as it is"; a place already known is kept, so
 * inner functions win over outer ones. `tensor_length` < 0: tensor is terminated by a zero. All accept error == NULL.
 */
void mpk_error_file(moepack_error *error, const char *file);
void mpk_error_layer(moepack_error *error, const char *label);
void mpk_error_expert(moepack_error *error, int64_t expert);
void mpk_error_tensor(moepack_error *error, const char *tensor, long tensor_length);
void mpk_error_offset(moepack_error *error, uint64_t offset);

#endif
