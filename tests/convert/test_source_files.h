/* Temporary directories and hand-made files for the tests of convert/. */
#ifndef TEST_SOURCE_FILES_H
#define TEST_SOURCE_FILES_H

#include "moepack/convert.h"

/* cmocka wants these in this order. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

/* A new empty directory; the name stays valid until the next call. */
const char *make_dir(void);
void remove_dir(const char *dir);

/* "DIR/NAME" in one of a few static buffers. */
const char *in_dir(const char *dir, const char *name);

void write_bytes(const char *path, const void *data, size_t size);
void write_text(const char *path, const char *text);
/* A safetensors file: length word (`length_word` if it is not UINT64_MAX), header text, `data` bytes of counting
 * values. */
void write_safetensors(const char *path, uint64_t length_word, const char *header, size_t header_size, size_t data);
char *read_text(const char *path, size_t *size);

/* Fails the test with the error's text unless status is OK. */
void expect_ok(moepack_status status, const moepack_error *error);
/* Checks status and that `part` occurs in the formatted error ("" always does). */
void expect_error(moepack_status found, moepack_status wanted, const moepack_error *error, const char *part);

#endif
