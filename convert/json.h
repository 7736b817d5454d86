/* Typed access to parsed JSON, with errors that name the key and the value found. Internal.
 *
 * JSON comes from files that anybody may have made: no type is taken for granted, integers must be exact, and a text is
 * parsed with duplicate keys refused, because two readers may otherwise see two different files. */
#ifndef MOEPACK_CONVERT_JSON_H
#define MOEPACK_CONVERT_JSON_H

#include "moepack/format.h"

#include <jansson.h>

/* Parses a complete text. MOEPACK_E_CORRUPT with the byte offset (`base` + position in the text) when it is not JSON,
 * not UTF-8, has a key twice in one object, or goes deeper than jansson's limit of 2048 levels. */
moepack_status mpk_json_parse(const char *text, size_t size, const char *path, uint64_t base, json_t **out,
                              moepack_error *error);

/* The same for the value that `text` begins with; *used is where it ends. Lets a caller walk a very large object member
 * by member and never hold the whole tree. */
moepack_status mpk_json_parse_part(const char *text, size_t size, const char *path, uint64_t base, json_t **out,
                                   size_t *used, moepack_error *error);

/* "an integer", "a list" ... of a value; NULL gives "nothing". */
const char *mpk_json_kind(const json_t *value);
/* A value as short text for messages; long ones are cut with "...". Returns buf. */
const char *mpk_json_show(const json_t *value, char *buf, size_t size);

/* A non-negative exact integer. False for anything else, NULL included. */
bool mpk_json_u64(const json_t *value, uint64_t *out);

#endif
