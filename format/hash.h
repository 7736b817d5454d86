/* Hashing in pieces. Internal; the one-shot functions are in moepack/format.h. */
#ifndef MOEPACK_FORMAT_HASH_H
#define MOEPACK_FORMAT_HASH_H

#include "moepack/format.h"

/* XXH3-64 of no bytes: the hash of every empty section. */
#define MPK_HASH64_EMPTY UINT64_C(0x2d06800538d394c2)

/* One hash over bytes that arrive in pieces, 64 or 128 bits wide. NULL when out of memory. */
typedef struct mpk_hasher mpk_hasher;
mpk_hasher *mpk_hasher_new(unsigned bits);
void mpk_hasher_free(mpk_hasher *hasher);
void mpk_hasher_reset(mpk_hasher *hasher);
void mpk_hasher_add(mpk_hasher *hasher, const void *data, size_t size);
/* The one that matches the width given to mpk_hasher_new; zero for the other. */
uint64_t mpk_hasher_hash64(const mpk_hasher *hasher);
moepack_hash128 mpk_hasher_hash128(const mpk_hasher *hasher);

static inline bool mpk_hash128_equal(moepack_hash128 a, moepack_hash128 b)
{
    return a.low == b.low && a.high == b.high;
}

#endif
