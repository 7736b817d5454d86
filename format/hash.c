/* The only file that knows which implementation of the hash function is used. */
#include "hash.h"

#include "cpu.h"
#include "hash_impl.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <xxhash.h>

struct mpk_hasher {
    const mpk_hash_impl *impl; /* the state is this one's */
    void *state;
    unsigned bits;
};

static bool always(void)
{
    return true;
}

/* Best first. */
static const struct choice {
    const mpk_hash_impl *impl;
    bool (*usable)(void);
} choices[] = {
#if defined(__x86_64__)
    {&mpk_hash_avx512, mpk_cpu_has_avx512f},
    {&mpk_hash_avx2, mpk_cpu_has_avx2},
#endif
    {&mpk_hash_library, always},
};

const mpk_hash_impl *mpk_hash_usable(size_t i)
{
    for (size_t k = 0; k < sizeof choices / sizeof choices[0]; ++k)
        if (choices[k].usable() && i-- == 0) return choices[k].impl;
    return NULL;
}

/* Chosen at the first hash. Two threads may both choose; they choose the same, and the tables are constants, so nothing
 * has to be ordered. */
static const mpk_hash_impl *best(void)
{
    static _Atomic(const mpk_hash_impl *) chosen;
    const mpk_hash_impl *impl = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (impl != NULL) return impl;
    impl = mpk_hash_usable(0);
    atomic_store_explicit(&chosen, impl, memory_order_relaxed);
    return impl;
}

/* Up to here XXH3 uses no vectors, and choosing would only cost time. */
#define SHORT ((size_t)240)

uint64_t moepack_hash64(const void *data, size_t size)
{
    if (size <= SHORT) return XXH3_64bits(data, size);
    return best()->hash64(data, size);
}

moepack_hash128 moepack_hash128_of(const void *data, size_t size)
{
    if (size <= SHORT) {
        XXH128_hash_t hash = XXH3_128bits(data, size);
        return (moepack_hash128){.low = hash.low64, .high = hash.high64};
    }
    return best()->hash128(data, size);
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
    hasher->impl = best();
    hasher->state = hasher->impl->create();
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
    hasher->impl->release(hasher->state);
    free(hasher);
}

void mpk_hasher_reset(mpk_hasher *hasher)
{
    hasher->impl->reset(hasher->state, hasher->bits);
}

void mpk_hasher_add(mpk_hasher *hasher, const void *data, size_t size)
{
    hasher->impl->add(hasher->state, hasher->bits, data, size);
}

uint64_t mpk_hasher_hash64(const mpk_hasher *hasher)
{
    return hasher->bits == 64 ? hasher->impl->digest64(hasher->state) : 0;
}

moepack_hash128 mpk_hasher_hash128(const mpk_hasher *hasher)
{
    if (hasher->bits == 64) return (moepack_hash128){0, 0};
    return hasher->impl->digest128(hasher->state);
}
