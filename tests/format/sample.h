/* A small container, made by hand: 2 blocks of 3 experts, two schemas, one expert absent, trunk tensors of every kind,
 * source files, parts. Its content is pseudo-random, its layout follows spec/container.md sections 7 and 8 on its own,
 * without any planner. */
#ifndef MOEPACK_TESTS_SAMPLE_H
#define MOEPACK_TESTS_SAMPLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "build.h"
#include "bytes.h"
#include "layout.h"

typedef struct sample {
    mpk_tables t;
    uint8_t **canonical; /* per section */
    uint8_t **stored;
    uint64_t *canonical_size;
} sample;

enum {
    SAMPLE_BIG = 1, /* a trunk tensor of 9 MiB, which has parts */
};

void sample_make(sample *s, unsigned flags);
void sample_free(sample *s);
/* The file of a shard, whole. */
void sample_encode_shard(const sample *s, uint32_t shard, mpk_buf *out);
/* All files, into a folder that exists. */
void sample_write(const sample *s, const char *dir);

/* Text of the index with everything in it, as opened. */
moepack_index *sample_open(const sample *s, mpk_buf *bytes);

/* Next pseudo-random number (splitmix64). */
uint64_t sample_random(uint64_t *state);

/* Calls every getter for every entry, follows every reference, and checks what the getters promise. Fails the test if
 * anything is out of range; used on indexes that were accepted although something in them was changed. */
void sample_walk(const moepack_index *index);

#define assert_status(expected, call, error)                                                          \
    do {                                                                                              \
        moepack_status got_ = (call);                                                                 \
        if (got_ != (expected)) {                                                                     \
            char line_[1024];                                                                         \
            moepack_error_format((error), line_, sizeof line_);                                       \
            print_error("%s:%d: status %d (%s), expected %d\n", __FILE__, __LINE__, (int)got_, line_, \
                        (int)(expected));                                                             \
        }                                                                                             \
        assert_int_equal(got_, (expected));                                                           \
    } while (0)

#endif
