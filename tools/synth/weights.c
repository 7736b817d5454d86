/* How a block of 32 weights comes about (the loops are in weights_kernel.h)
 *
 * 1. Eight lanes of xorshift128+ (Vigna 2014; shifts 23, 18, 5), seeded per row, give 16 words of 64 bits: four random
 * bytes a weight. Shifts, xors and adds only, so it vectorises on any instruction set.
 * 2. The sum of four bytes (Irwin-Hall) has the right shape but an excess kurtosis of -0.3. A cubic term repairs most
 * of it, as the Cornish-Fisher expansion says: x + 0.3 (x^3 - 3x) / 24, here up to a common factor.
 * 3. A 64-bit word per block places outliers.
 * 4. MXFP4, OCP Microscaling Formats v1.0, section 6.3: the shared exponent is floor(log2(largest magnitude)) minus the
 *    largest exponent of the element type (2 for E2M1, whose largest number is 6 = 1.5 x 2^2); elements are divided by
 * the scale and rounded to the nearest E2M1 number, ties to even, and saturate at 6. Because the row's unit is
 * constant, rounding is seven comparisons of the integer |v| with limits that depend on the row and the block's
 * exponent only; a row meets about four exponents.
 *
 * Nothing is shuffled: even columns come from the first half of a block's numbers, odd ones from the second, so that
 * packing two nibbles is a shift and an or. */
#include "weights.h"

#include "rng.h"

#include <stdbool.h>
#include <string.h>

#define BLOCK MPK_SYNTH_BLOCK
#define HALF (BLOCK / 2)
#define LANES 8

/* Nearest, ties to even; NaN and overflow cannot occur. */
#define BF16_OF(bits) ((uint16_t)(((bits) + 0x7FFF + ((bits) >> 16 & 1)) >> 16))

#define INLINE static inline __attribute__((always_inline))

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define BIG_ENDIAN_MACHINE
#define LITTLE16(v) __builtin_bswap16(v)
#define LITTLE32(v) __builtin_bswap32(v)
#else
#define LITTLE16(v) (v)
#define LITTLE32(v) (v)
#endif

/* Numbers that a row's key gives: 0 .. 15 seed its stream, 16 is its scale, 32 + n places the outliers of block n. */
enum {
    NTH_SCALE = 16,
    NTH_OUTLIERS = 32
};

/* ------------------------------------------------------------------------------------------------- outliers, row scale
 */

/* 0.2 % of the weights are outliers: two chances a block, each 0.032 = 32 x 0.002 / 2, each at a random column. Bits
 * 0..15 and 32..47 of the block's word decide whether, bits 16..20 and 48..52 where. */
#define OUTLIER_CHANCE 2097u /* of 65536 */

INLINE bool has_outlier(uint64_t word)
{
    return (word & 0xFFFF) < OUTLIER_CHANCE || (word >> 32 & 0xFFFF) < OUTLIER_CHANCE;
}

INLINE void place_outliers(uint64_t word, int16_t v[BLOCK])
{
    unsigned first = word >> 16 & (BLOCK - 1), second = word >> 48 & (BLOCK - 1);
    int16_t a = v[first], b = v[second]; /* read before writing: the same column twice is multiplied once */
    if ((word & 0xFFFF) < OUTLIER_CHANCE) v[first] = (int16_t)(a * MPK_SYNTH_OUTLIER);
    if ((word >> 32 & 0xFFFF) < OUTLIER_CHANCE) v[second] = (int16_t)(b * MPK_SYNTH_OUTLIER);
}

double mpk_synth_factor(uint64_t random, double spread)
{
    double factor = 1.0;
    for (unsigned i = 0; i < 4; i++) factor *= 1.0 + spread * ((double)(random >> 16 * i & 0xFFFF) / 32768.0 - 1.0);
    return factor;
}

static double row_unit(uint64_t row_key, const mpk_synth_law *law)
{
    return law->std / MPK_SYNTH_SIGMA * mpk_synth_factor(mpk_synth_nth(row_key, NTH_SCALE), law->spread);
}

/* ------------------------------------------------------------------------------------------------- MXFP4 limits */

mpk_synth_unit mpk_synth_unit_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    mpk_synth_unit unit;
    unit.mantissa = (uint32_t)(0x8000 | (bits >> 37 & 0x7FFF));
    unit.exponent = (int)(bits >> 52 & 0x7FF) - 1023 - 15;
    return unit;
}

/* Limits of |v| for one row, by floor(log2(largest |v| x mantissa)); filled when an exponent is first met, each limit
 * repeated over the widest vector. */
typedef struct limits {
    int16_t at[32][7][16];
    mpk_synth_unit unit;
    uint32_t have;
} limits;

/* Halfway points between neighbouring E2M1 numbers 0, .5, 1, 1.5, 2, 3, 4, 6, in quarters, and whether the halfway
 * point itself rounds up (to the code with an even mantissa bit). */
static const struct {
    uint32_t quarters;
    bool up;
} halfway[7] = {{1, false}, {3, true}, {5, false}, {7, true}, {10, false}, {14, true}, {20, false}};

/* |v| x mantissa x 2^exponent / scale reaches halfway point q/4 when |v| x mantissa >= q x 2^(log - 4): the scale is
 * 2^(log - 2 + exponent). Products stay below 20 x 2^26, limits below 1.25 x the largest |v| + 1 < 2^15. */
static __attribute__((noinline)) void limits_add(limits *l, unsigned log)
{
    for (unsigned i = 0; i < 7; i++) {
        uint32_t product = halfway[i].quarters << (log - 4);
        uint32_t least = product / l->unit.mantissa, rest = product % l->unit.mantissa;
        int16_t limit = (int16_t)(least + (rest != 0 || !halfway[i].up));
        for (unsigned k = 0; k < 16; k++) l->at[log][i][k] = limit;
    }
    l->have |= UINT32_C(1) << log;
}

/* Value for the element type's largest exponent, 2, and the bias of the scale byte, 127; 255 would be NaN. */
INLINE uint8_t scale_byte(int log)
{
    int byte = log - 2 + 127;
    return (uint8_t)(byte < 0 ? 0 : byte > 254 ? 254 : byte);
}

uint16_t mpk_synth_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return BF16_OF(bits);
}

/* ------------------------------------------------------------------------------------------------- instruction sets */

#define SET(name) name##_generic
#define TARGET
#define VECTOR_BYTES 16
#include "weights_kernel.h"
static const mpk_synth_kernels generic = {"generic", mxfp4_generic, bf16_generic, f32_generic, quantise_block_generic};

#if defined(__x86_64__)
#define SET(name) name##_avx2
#define TARGET __attribute__((target("avx2")))
#define VECTOR_BYTES 32
#include "weights_kernel.h"
static const mpk_synth_kernels avx2 = {"avx2", mxfp4_avx2, bf16_avx2, f32_avx2, quantise_block_avx2};

const mpk_synth_kernels *mpk_synth_kernels_get(size_t i)
{
    const mpk_synth_kernels *all[] = {&avx2, &generic};
    if (!__builtin_cpu_supports("avx2")) i++;
    return i < 2 ? all[i] : NULL;
}
#else
const mpk_synth_kernels *mpk_synth_kernels_get(size_t i)
{
    return i == 0 ? &generic : NULL;
}
#endif
