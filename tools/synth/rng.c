/* Counter-based random numbers: every row can be made on its own, in any order, with the same result. */
#include "rng.h"

uint64_t mpk_synth_key(uint64_t seed, const char *name)
{
    uint64_t key = mpk_synth_mix(seed + MPK_SYNTH_STEP);
    for (; *name; name++) key = mpk_synth_mix(key + MPK_SYNTH_STEP + (uint8_t)*name);
    return key;
}

/* Uniform in 0 .. bound-1: the high half of a 32 x 32 bit product. Its bias, below bound / 2^32, does not matter here.
 */
static uint32_t below(uint64_t random, uint32_t bound)
{
    return (uint32_t)((random >> 32) * bound >> 32);
}

void mpk_synth_shuffle(uint64_t key, uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) ids[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = below(mpk_synth_nth(key, i), i), t = ids[i - 1];
        ids[i - 1] = ids[j];
        ids[j] = t;
    }
}
