/* Random numbers of `moepack synth`: integers only, so that a seed gives the same bytes on every machine.
 *
 * Nothing runs on from one tensor or row to the next: a tensor's key comes from the seed and its published name, a
 * row's key from the tensor's key and the row number. Any row can therefore be made alone, by any thread, in any order.
 */
#ifndef MOEPACK_SYNTH_RNG_H
#define MOEPACK_SYNTH_RNG_H

#include <stdint.h>

/* SplitMix64 (Steele, Lea, Flood 2014): step of the counter and output function. */
#define MPK_SYNTH_STEP UINT64_C(0x9E3779B97F4A7C15)

static inline uint64_t mpk_synth_mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* The n-th number (from 0) of the sequence that belongs to `key`. */
static inline uint64_t mpk_synth_nth(uint64_t key, uint64_t n)
{
    return mpk_synth_mix(key + MPK_SYNTH_STEP * (n + 1));
}

/* Key of the thing called `name` under `seed`. */
uint64_t mpk_synth_key(uint64_t seed, const char *name);

/* A permutation of 0 .. count-1 (Fisher-Yates) that `key` alone decides. */
void mpk_synth_shuffle(uint64_t key, uint32_t *ids, uint32_t count);

#endif
