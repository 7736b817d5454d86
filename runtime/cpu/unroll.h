/* How kernels that are written once for any number of tokens become one straight piece of code per number. Include
 * after defining TARGET.
 *
 * In optimised builds KERNEL functions are inlined with constant sizes and their loops unrolled, so that arrays of sums
 * become registers. Emulated, sanitized and unoptimised builds keep the loops: speed is no aim there, and unrolled code
 * with every access instrumented takes compilers minutes. */
#ifndef MOEPACK_CPU_UNROLL_H
#define MOEPACK_CPU_UNROLL_H

#if defined(__SANITIZE_ADDRESS__)
#define MPK_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define MPK_SANITIZED 1
#endif
#endif

#if defined(MOEPACK_EMULATE_AVX2) || defined(MOEPACK_EMULATE_AVX512) || defined(MPK_SANITIZED) || !defined(__OPTIMIZE__)
#define KERNEL TARGET static
#define UNROLL
#define UNROLL_16
#else
#define KERNEL TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define UNROLL_16 _Pragma("GCC unroll 16")
#endif

#endif
