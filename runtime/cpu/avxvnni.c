/* The int8 mode with AVX-VNNI: vpdpbusd on 256-bit vectors, for processors that have it without AVX-512. The rest of
 * the family avxvnni is AVX2's (avx2.c). No such processor was at hand: the tests run this source by emulation, and on
 * AVX-512 processors with the same instruction in the encoding that those know (MOEPACK_AVXVNNI_AS_AVX512). */
#if defined(__x86_64__) || defined(MOEPACK_EMULATE_AVX2)

#include "int8.h"

#ifdef MOEPACK_EMULATE_AVX2
#include "emulate_avx2.h"
#define TARGET
#define KEEP(v) ((void)(v))
#else
#include <immintrin.h>
#define KEEP(v) __asm__("" : "+x"(v)) /* as in avx2.c */
#ifdef MOEPACK_AVXVNNI_AS_AVX512
#define TARGET __attribute__((target("avx2,fma,avx512vnni,avx512vl")))
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#else
#define TARGET __attribute__((target("avx2,fma,avxvnni")))
#endif
#endif

#define SEED(x) _mm256_set1_epi32((x)->seed)
#define ADD(sum, w, q) _mm256_dpbusd_avx_epi32(sum, w, q)
#define TOTAL(sum) (sum)
#define GEMV mpk_int8_gemv_avxvnni
#include "int8_avx2.h"
#else
typedef int mpk_avxvnni_needs_x86;
#endif
