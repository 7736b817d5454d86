/* The string pool of a builder. Internal to format/. */
#ifndef MOEPACK_FORMAT_STRING_POOL_H
#define MOEPACK_FORMAT_STRING_POOL_H

#include "build.h"

void mpk_strings_free(mpk_strings *strings);
/* Bytes of the pool, in order of first use. */
uint64_t mpk_strings_size(const mpk_strings *strings);
void mpk_strings_write(const mpk_strings *strings, uint8_t *out);
/* Where a text lies in the pool; false if it is not there. */
bool mpk_strings_find(const mpk_strings *strings, moepack_str text, uint32_t *offset);

#endif
