/* The only file that knows which hash function is used. */
#include "hash.h"

#include <stdlib.h>
#include <xxhash.h>

struct mpk_hasher {
    XXH3_state_t *state;
    unsigned bits;
};

uint64_t moepack_hash64(const void *data, size_t size)
{
    return XXH3_64bits(data, size);
}

static moepack_hash128 from_xxh(XXH128_hash_t hash)
{
    return (moepack_hash128){.low = hash.low64, .high = hash.high64};
}

moepack_hash128 moepack_hash128_of(const void *data, size_t size)
{
    return from_xxh(XXH3_128bits(data, size));
}

static void hex(uint64_t value, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (unsigned i = 0; i < 16; ++i) out[i] = digits[value >> (60 - 4 * i) & 15];
}

void moepack_hash64_text(uint64_t hash, char buf[17])
{
    hex(hash, buf);
    buf[16] = '\0';
}

void moepack_hash128_text(moepack_hash128 hash, char buf[33])
{
    hex(hash.high, buf);
    hex(hash.low, buf + 16);
    buf[32] = '\0';
}

mpk_hasher *mpk_hasher_new(unsigned bits)
{
    mpk_hasher *hasher = calloc(1, sizeof *hasher);
    if (hasher == NULL) return NULL;
    hasher->bits = bits;
    hasher->state = XXH3_createState();
    if (hasher->state == NULL) {
        free(hasher);
        return NULL;
    }
    mpk_hasher_reset(hasher);
    return hasher;
}

void mpk_hasher_free(mpk_hasher *hasher)
{
    if (hasher == NULL) return;
    XXH3_freeState(hasher->state);
    free(hasher);
}

void mpk_hasher_reset(mpk_hasher *hasher)
{
    if (hasher->bits == 64)
        XXH3_64bits_reset(hasher->state);
    else
        XXH3_128bits_reset(hasher->state);
}

void mpk_hasher_add(mpk_hasher *hasher, const void *data, size_t size)
{
    if (hasher->bits == 64)
        XXH3_64bits_update(hasher->state, data, size);
    else
        XXH3_128bits_update(hasher->state, data, size);
}

uint64_t mpk_hasher_hash64(const mpk_hasher *hasher)
{
    return hasher->bits == 64 ? XXH3_64bits_digest(hasher->state) : 0;
}

moepack_hash128 mpk_hasher_hash128(const mpk_hasher *hasher)
{
    if (hasher->bits == 64) return (moepack_hash128){0, 0};
    return from_xxh(XXH3_128bits_digest(hasher->state));
}
