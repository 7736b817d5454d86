/* Which kernel family runs here: processor and operating system are asked, then the best or the named one is taken. */
#include "kernels.h"

#include "../../format/cpu.h"
#include "../../format/error.h"

#include <fenv.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

static int has_avx2(void)
{
    return mpk_cpu_has_avx2() && __builtin_cpu_supports("fma");
}

/* CPUID leaf 7, sub-leaf 1, EAX bit 4. */
static int has_avxvnni(void)
{
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

static int has_avx512(void)
{
    return has_avx2() && mpk_cpu_has_avx512f() && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1ul << 20) /* sdot and udot, in every user program's auxiliary vector */
#endif

static int has_neon_dot(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}
#endif

static int always(void)
{
    return 1;
}

/* A family of another architecture has a name and a condition, and nothing else. */
static int not_here(void)
{
    return 0;
}

#if defined(__x86_64__)
#define X86(usable, kernels) usable, kernels
#define ARM(usable, kernels) not_here, NULL
#elif defined(__aarch64__)
#define X86(usable, kernels) not_here, NULL
#define ARM(usable, kernels) usable, kernels
#else
#define X86(usable, kernels) not_here, NULL
#define ARM(usable, kernels) not_here, NULL
#endif

/* Best last. Names are known on every machine, so that a wrong machine and a wrong name are different errors. */
static const struct family {
    const char *name;
    const char *needs;
    int (*usable)(void);
    const mpk_kernels *kernels;
} families[] = {
    {"scalar", "nothing", always, &mpk_kernels_scalar},
    {"neon", "AArch64 with the dot product instructions (asimddp)", ARM(has_neon_dot, &mpk_kernels_neon)},
    {"avx2", "AVX2 and FMA", X86(has_avx2, &mpk_kernels_avx2)},
    {"avxvnni", "AVX2, FMA and AVX-VNNI", X86(has_avxvnni, &mpk_kernels_avxvnni)},
    {"avx512", "AVX-512 F, BW, VL, DQ, VBMI and VNNI", X86(has_avx512, &mpk_kernels_avx512)},
};

#define FAMILIES (sizeof families / sizeof families[0])

const char *mpk_kernels_name(size_t i)
{
    return i < FAMILIES ? families[i].name : NULL;
}

int mpk_kernels_usable(size_t i)
{
    return i < FAMILIES && families[i].usable();
}

static moepack_status unknown_name(const char *name, moepack_error *error)
{
    char known[128] = "";
    size_t used = 0;
    for (size_t i = 0; i < FAMILIES; i++) {
        int n = snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ", families[i].name);
        if (n < 0 || (size_t)n >= sizeof known - used) break;
        used += (size_t)n;
    }
    return mpk_fail(error, MOEPACK_E_USAGE, "unknown kernel family \"%s\"; known ones: %s", name, known);
}

moepack_status mpk_kernels_select(const char *name, const mpk_kernels **out, moepack_error *error)
{
    for (size_t i = FAMILIES; i-- > 0;) {
        const struct family *family = &families[i];
        if (name != NULL && strcmp(name, family->name) != 0) continue;
        if (family->usable()) {
            *out = family->kernels;
            return MOEPACK_OK;
        }
        if (name != NULL)
            return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "kernel family \"%s\" needs %s, which this machine lacks",
                            name, family->needs);
    }
    return unknown_name(name != NULL ? name : "", error);
}

#if defined(__x86_64__)
/* MXCSR after reset: round to nearest, all exceptions masked, no flush to zero, subnormals read as they are. */
#define MXCSR_DEFAULT 0x1f80u

void mpk_float_enter(mpk_float_guard *guard)
{
    guard->saved = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
}

void mpk_float_leave(const mpk_float_guard *guard)
{
    _mm_setcsr((unsigned)guard->saved);
}
#elif defined(__aarch64__)
/* FPCR 0: round to nearest (RMode), subnormals kept in results (FZ) and operands (FIZ), NaNs propagate (DN), no traps,
 * and none of the alternative behaviours of FEAT_AFP (AH, NEP). Reads of the register need no barrier: it takes effect
 * in program order. */
void mpk_float_enter(mpk_float_guard *guard)
{
    __asm__ volatile("mrs %0, fpcr" : "=r"(guard->saved));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
}

void mpk_float_leave(const mpk_float_guard *guard)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(guard->saved));
}
#else
void mpk_float_enter(mpk_float_guard *guard)
{
    guard->saved = (uint64_t)(int64_t)fegetround();
    fesetround(FE_TONEAREST);
}

void mpk_float_leave(const mpk_float_guard *guard)
{
    fesetround((int)(int64_t)guard->saved);
}
#endif
