/* One implementation of XXH3 per instruction set, behind one table. Internal to format/, and to its tests.
 *
 * A distribution's libxxhash is built for the oldest processor of its architecture, so on x86-64 it hashes with SSE2
 * and one core does not keep up with its own memory. The library's header carries the same functions for AVX2 and
 * AVX-512; hash_avx2.c and hash_avx512.c compile them, hash.c chooses.
 */
#ifndef MOEPACK_FORMAT_HASH_IMPL_H
#define MOEPACK_FORMAT_HASH_IMPL_H

#include "moepack/format.h"

/* A streaming state belongs to the implementation that created it: its layout and alignment are that one's own. */
typedef struct mpk_hash_impl {
    const char *name;
    uint64_t (*hash64)(const void *data, size_t size);
    moepack_hash128 (*hash128)(const void *data, size_t size);
    void *(*create)(void); /* NULL when out of memory */
    void (*release)(void *state);
    void (*reset)(void *state, unsigned bits);
    void (*add)(void *state, unsigned bits, const void *data, size_t size);
    uint64_t (*digest64)(const void *state);
    moepack_hash128 (*digest128)(const void *state);
} mpk_hash_impl;

/* The installed library as it is: always there. */
extern const mpk_hash_impl mpk_hash_library;
#if defined(__x86_64__)
extern const mpk_hash_impl mpk_hash_avx2, mpk_hash_avx512;
#endif

/* Implementation i of those that this machine can run, best first; NULL past the last. */
const mpk_hash_impl *mpk_hash_usable(size_t i);

#endif
