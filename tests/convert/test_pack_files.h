/* Containers made from the fixtures, damage, and comparison of whole directories: for the tests of convert, verify and
 * export. */
#ifndef TEST_PACK_FILES_H
#define TEST_PACK_FILES_H

#include "moepack/convert.h"

/* cmocka wants these in this order. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#define TINY MOEPACK_FIXTURES "/k3_tiny/checkpoint"
#define QUANT MOEPACK_FIXTURES "/k3_quant/checkpoint"

/* A directory of this test's own, made by setup_dir and removed by teardown_dir; at() gives paths in it. */
int setup_dir(void **state);
int teardown_dir(void **state);
const char *at(const char *name);
const char *at2(const char *directory, const char *name);

bool exists(const char *path);
uint64_t size_of(const char *path);
void copy_file(const char *from, const char *to);
void copy_tree(const char *from, const char *to);
void remove_tree(const char *path);
void flip(const char *path, uint64_t offset, uint8_t mask);
void truncate_to(const char *path, uint64_t size);
void append_byte(const char *path, uint8_t byte);
void write_file(const char *path, const void *bytes, size_t size);
/* Terminated contents, to be freed. */
char *read_file(const char *path, size_t *size);
/* Fails the test unless both directories hold the same files with the same bytes. */
void assert_same_tree(const char *a, const char *b);
/* Replaces every occurrence of a text by another of the same length; returns how many there were. */
unsigned replace_in_file(const char *path, const char *from, const char *to);

/* Fails the test with the error's text unless status is the wanted one and every one of the texts occurs in the error.
 */
void assert_status(moepack_status status, moepack_status wanted, const moepack_error *error, const char *text);

/* Converts or fails the test. Options NULL: defaults. */
void convert_to(const char *source, const char *out, const moepack_convert_options *options,
                moepack_convert_report *report);
/* Defaults with these changes. */
moepack_convert_options options_of(moepack_layout layout, moepack_shard_by by, uint64_t shard_size, unsigned jobs);

/* Findings of one verify. */
typedef struct findings {
    moepack_finding item[512];
    size_t count; /* may be larger than what item holds */
} findings;
moepack_status verify_into(const char *pack, const moepack_verify_options *options, findings *found,
                           moepack_verify_report *report, moepack_error *error);

/* Opened index of a container, for looking up places. */
moepack_index *open_index(const char *pack, void **bytes);
/* Published name, shard file and place of section s of an expert. */
typedef struct section_at {
    char file[64], name[192], label[MOEPACK_LABEL_MAX];
    moepack_section section;
} section_at;
void find_section(const moepack_index *index, uint32_t block, uint32_t expert, uint32_t s, section_at *out);

#endif
