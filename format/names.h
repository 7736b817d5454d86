/* Names: of roles, planes, encodings and blocks, and the published name of a section. Internal. */
#ifndef MOEPACK_FORMAT_NAMES_H
#define MOEPACK_FORMAT_NAMES_H

#include "moepack/format.h"

/* Width in bits that an encoding demands of its elements; 0: any (none), or unknown. */
unsigned mpk_encoding_bits(moepack_encoding encoding);

/* "3", "encoder.1", "mtp.0" into buf of MOEPACK_LABEL_MAX bytes. */
void mpk_label(moepack_stack stack, uint32_t number, char *buf);

/* Prefix plus pattern, with `{expert}` replaced by the decimal id. snprintf's contract. */
size_t mpk_section_name(moepack_str prefix, moepack_str pattern, uint32_t expert, char *buf, size_t size);

/* How often `{expert}` occurs in a pattern. */
unsigned mpk_pattern_experts(moepack_str pattern);

/* Order of byte strings: memcmp, then the shorter first. */
int mpk_str_compare(moepack_str a, moepack_str b);

#endif
