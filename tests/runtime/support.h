/* Shared by the runtime's tests: directories, damage, and the usual open-place-plan-load in one call. */
#ifndef TESTS_RUNTIME_SUPPORT_H
#define TESTS_RUNTIME_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "moepack/runtime.h"

/* Fails the test with the formatted error. */
void assert_ok(moepack_status status, const moepack_error *error);
/* Fails unless the status is the wanted one; prints the error then. */
void assert_status(moepack_status found, moepack_status wanted, const moepack_error *error);
/* Fails unless the error's one-line form contains the text. */
void assert_mentions(const moepack_error *error, const char *text);

/* A new empty directory below `parent` (NULL: $TMPDIR or /tmp). Static storage per call site is the caller's: buf of
 * 256. */
void new_dir(char *buf, const char *parent);
void make_dir(const char *path);
void remove_tree(const char *path);
void copy_tree(const char *from, const char *to);
/* XORs one byte of a file. */
void flip_byte(const char *dir, const char *name, uint64_t offset, uint8_t mask);
void write_text(const char *path, const char *text);

/* Everything between a path and a load. */
typedef struct session {
    moepack_pack *pack;
    moepack_placement *placement;
    moepack_plan *plan;
    moepack_load *load;
    moepack_load_report report;
    moepack_error error;
} session;

/* Opens, places ("linear" for NULL) and plans; fails the test on an error. `options` may be NULL. */
void session_plan(session *s, const char *path, const char *placement, uint32_t ranks, uint32_t rank,
                  const moepack_plan_options *options);
/* The load's status; s->error and s->report are filled. */
moepack_status session_load(session *s, uint32_t rank, moepack_io io, moepack_check check);
void session_close(session *s);

/* Place of section s of an expert in its shard file, and the file's name. */
void place_of(const moepack_pack *pack, uint32_t block, uint32_t expert, uint32_t s, char name[128],
              moepack_section *section);

#endif
