/* What this processor and its operating system let a program use. Internal. */
#ifndef MOEPACK_FORMAT_CPU_H
#define MOEPACK_FORMAT_CPU_H

#if defined(__x86_64__)
#include <stdbool.h>
#include <stdint.h>

/* XCR0: the state that the operating system saves on a context switch. A processor may have a register file that the
 * system does not keep; CPUID alone does not say so. Bits: 1 SSE, 2 AVX, 5-7 AVX-512 (masks, upper halves, registers
 * 16-31). Only asked after CPUID says that XGETBV exists and is enabled. */
static inline uint64_t mpk_cpu_saved_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

#define MPK_STATE_AVX 0x06u
#define MPK_STATE_AVX512 0xe6u

static inline bool mpk_cpu_has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && (mpk_cpu_saved_state() & MPK_STATE_AVX) == MPK_STATE_AVX;
}

static inline bool mpk_cpu_has_avx512f(void)
{
    return mpk_cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           (mpk_cpu_saved_state() & MPK_STATE_AVX512) == MPK_STATE_AVX512;
}
#endif

#endif
