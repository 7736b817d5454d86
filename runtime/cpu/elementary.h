/* Elementary functions in F32, one lane at a time, with the same result on every machine.
 *
 * Only + - * / and fused multiply-add on binary32 are used, all correctly rounded, so every compiler that neither
 * contracts nor reassociates (-ffp-contract=off, no -ffast-math) gives the same bits, vectorised or not. There are no
 * branches: the loops around these functions vectorise. spec/numerics.md section 6 is the normative description; the
 * constants here are listed there. Polynomials are minimax fits (Remez) for the stated intervals, rounded to binary32.
 */
#ifndef MOEPACK_CPU_ELEMENTARY_H
#define MOEPACK_CPU_ELEMENTARY_H

#include <stdint.h>
#include <string.h>

#define MPK_INLINE static inline __attribute__((always_inline))

MPK_INLINE uint32_t mpk_bits(float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return u;
}

MPK_INLINE float mpk_float(uint32_t u)
{
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

/* x86 makes negative NaNs, Arm positive ones: outputs hold exactly one NaN. */
MPK_INLINE float mpk_canonical(float v)
{
    return v != v ? mpk_float(0x7fc00000u) : v;
}

/* Nearest BF16 value, ties to even, as a float. Overflows to infinity; every NaN becomes 0x7fc00000. */
MPK_INLINE float mpk_bf16(float v)
{
    uint32_t u = mpk_bits(v);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    return mpk_float((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : rounded);
}

/* e^x, error < 1 ulp; subnormal results are right, too. x = n ln 2 + r, |r| <= 0.347; e^r = 1 + r + r^2 q(r), where q
 * causes a relative error of 3.3e-9. n comes out of the low bits of n + 1.5 * 2^23. The two factors of 2^n are normal
 * numbers for every n in [-151, 129], and their order rounds a subnormal result once. */
MPK_INLINE float mpk_exp(float x)
{
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = __builtin_fmaf(x, 0x1.715476p+0f, 0x1.8p+23f);
    float n = shifted - 0x1.8p+23f;
    float r = __builtin_fmaf(n, -0x1.62e430p-1f, x);
    r = __builtin_fmaf(n, 0x1.05c610p-29f, r);
    float q = 0x1.6a1a72p-10f;
    q = __builtin_fmaf(q, r, 0x1.123fc6p-7f);
    q = __builtin_fmaf(q, r, 0x1.555916p-5f);
    q = __builtin_fmaf(q, r, 0x1.55548ap-3f);
    q = __builtin_fmaf(q, r, 0x1.fffffcp-2f);
    float near = 1.0f + r;
    float rest = r - (near - 1.0f); /* what that addition rounded off, exactly */
    float e = near + __builtin_fmaf(r * r, q, rest);
    int32_t power = (int32_t)(mpk_bits(shifted) - 0x4b400000u);
    int32_t half = power >> 1;
    float first = mpk_float((uint32_t)(half + 127) << 23);
    float second = mpk_float((uint32_t)(power - half + 127) << 23);
    return (e * first) * second;
}

/* 1 / (1 + e^-x) through e = e^-|x| <= 1, so that neither side overflows and small results keep their precision. Left
 * of zero e / (1 + e) is written e - e * (e / (1 + e)): there the rounding of 1 + e would weigh twice. */
MPK_INLINE float mpk_sigmoid(float x)
{
    float e = mpk_exp(mpk_float(mpk_bits(x) | 0x80000000u));
    float top = x < 0.0f ? e : 1.0f;
    float ratio = top / (1.0f + e);
    return x < 0.0f ? __builtin_fmaf(-e, ratio, e) : ratio; /* a NaN comes through e */
}

/* tanh x = 1 - 2 / (e^2|x| + 1) with the sign of x; below 0.625 that would cancel, an odd polynomial takes over
 * (relative error 4.4e-9). */
MPK_INLINE float mpk_tanh(float x)
{
    uint32_t sign = mpk_bits(x) & 0x80000000u;
    float a = mpk_float(mpk_bits(x) & 0x7fffffffu);
    float large = 1.0f - 2.0f / (mpk_exp(a + a) + 1.0f);
    float z = a * a;
    float p = -0x1.75d50ap-8f;
    p = __builtin_fmaf(p, z, 0x1.5223dep-6f);
    p = __builtin_fmaf(p, z, -0x1.b83bf4p-5f);
    p = __builtin_fmaf(p, z, 0x1.110724p-3f);
    p = __builtin_fmaf(p, z, -0x1.555532p-2f);
    float small = __builtin_fmaf(a * z, p, a);
    float t = a < 0.625f ? small : large;
    return mpk_float(mpk_bits(t) | sign);
}

#endif
