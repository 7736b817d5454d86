/* Body of one implementation of hash_impl.h: the functions of xxhash.h as they are in the file that includes this,
 * once. The including file names the table in MPK_HASH_TABLE and its text name in MPK_HASH_NAME; with XXH_INLINE_ALL
 * defined it gets functions compiled here, without it those of the installed library. */
#include "hash_impl.h"

#include <xxhash.h>

/* XXH3 is final since 0.8.0: from there on every version and every implementation gives the same values. */
#if XXH_VERSION_NUMBER < 800
#error "xxHash 0.8.0 or later is needed"
#endif

static moepack_hash128 from_xxh(XXH128_hash_t hash)
{
    return (moepack_hash128){.low = hash.low64, .high = hash.high64};
}

static uint64_t hash64(const void *data, size_t size)
{
    return XXH3_64bits(data, size);
}

static moepack_hash128 hash128(const void *data, size_t size)
{
    return from_xxh(XXH3_128bits(data, size));
}

static void *create(void)
{
    return XXH3_createState();
}

static void release(void *state)
{
    XXH3_freeState(state);
}

static void reset(void *state, unsigned bits)
{
    if (bits == 64)
        XXH3_64bits_reset(state);
    else
        XXH3_128bits_reset(state);
}

static void add(void *state, unsigned bits, const void *data, size_t size)
{
    if (bits == 64)
        XXH3_64bits_update(state, data, size);
    else
        XXH3_128bits_update(state, data, size);
}

static uint64_t digest64(const void *state)
{
    return XXH3_64bits_digest(state);
}

static moepack_hash128 digest128(const void *state)
{
    return from_xxh(XXH3_128bits_digest(state));
}

const mpk_hash_impl MPK_HASH_TABLE = {
    .name = MPK_HASH_NAME,
    .hash64 = hash64,
    .hash128 = hash128,
    .create = create,
    .release = release,
    .reset = reset,
    .add = add,
    .digest64 = digest64,
    .digest128 = digest128,
};
