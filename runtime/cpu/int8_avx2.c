/* The int8 mode with AVX2. vpmaddubsw adds two products: at most 2 * 24 * 127 = 6096, far from saturation. A block's
 * sums stay in 16 bits, where they may wrap around on the way: with the seed a lane's true value is at most 12 * 16 *
 * 127 = 24384. */
#if defined(__x86_64__) || defined(MOEPACK_EMULATE_AVX2)

#include "int8.h"

#ifdef MOEPACK_EMULATE_AVX2
#include "emulate_avx2.h"
#define TARGET
#define KEEP(v) ((void)(v))
#else
#include <immintrin.h>
#define TARGET __attribute__((target("avx2,fma")))
#define KEEP(v) __asm__("" : "+x"(v)) /* as in avx2.c */
#endif

#define SEED(x) word_of((x)->seed_pair)
#define ADD(sum, w, q) _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, q))
#define TOTAL(sum) _mm256_madd_epi16(sum, _mm256_set1_epi16(1))
#define GEMV mpk_int8_gemv_avx2
#include "int8_avx2.h"

TARGET void mpk_int8_quantize_avx2(const float *x, mpk_int8_block *out, size_t blocks)
{
    mpk_body_quantize_int8(x, out, blocks);
}
#else
typedef int mpk_int8_avx2_needs_x86;
#endif
