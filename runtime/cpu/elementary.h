/* Elementary functions in F32, one lane at a time, with the same result on every machine.
 *
 * Only + - * / and fused multiply-add on binary32 are used, all correctly rounded, so every compiler that neither
 * contracts nor reassociates (-ffp-contract=off, no -ffast-math) gives the same bits, vectorised or not. There are no
 * branches: the loops around these functions vectorise. spec/numerics.md section 6 is the normative description; the
 * constants here are listed there. Polynomials are minimax fits (Remez) for the stated intervals, rounded to binary32.
 */
#ifndef MOEPACK_CPU_ELEMENTARY_H
#define MOEPACK_CPU_ELEMENTARY_H

#include <stdbool.h>
#include <stddef.h>
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

/* sqrt(ln(1 + e^x)). softplus x = max(x, 0) + ln(1 + e), e = e^-|x| <= 1, and ln(1 + e) = 2 artanh r with r = e / (2 +
 * e)
 * <= 1/3, an odd polynomial in r (relative error 4.6e-9). Far left that is e^(x / 2), where e^x may be subnormal. */
MPK_INLINE float mpk_sqrt_softplus(float x)
{
    float e = mpk_exp(mpk_float(mpk_bits(x) | 0x80000000u));
    float r = e / (2.0f + e);
    float z = r * r;
    float p = 0x1.1efa3ap-3f;
    p = __builtin_fmaf(p, z, 0x1.1eb5bcp-3f);
    p = __builtin_fmaf(p, z, 0x1.99d280p-3f);
    p = __builtin_fmaf(p, z, 0x1.555500p-2f);
    float twice = r + r;
    float log = __builtin_fmaf(twice * z, p, twice);
    float sum = x + log;
    float root = __builtin_sqrtf(x > 0.0f ? sum : log); /* a NaN comes through e */
    return x < -40.0f ? mpk_exp(0.5f * x) : root;
}

/* The error function: an odd polynomial below 1 (relative error 1.3e-9), above 1 - e^q(a) with q = ln(erfc a). From 4
 * on it is 1 in F32. */
MPK_INLINE float mpk_erf(float x)
{
    uint32_t sign = mpk_bits(x) & 0x80000000u;
    float a = mpk_float(mpk_bits(x) & 0x7fffffffu);
    a = a > 4.0f ? 4.0f : a;
    float z = a * a;
    float p = 0x1.4996f6p-14f;
    p = __builtin_fmaf(p, z, -0x1.a40958p-11f);
    p = __builtin_fmaf(p, z, 0x1.540898p-8f);
    p = __builtin_fmaf(p, z, -0x1.b7f97ep-6f);
    p = __builtin_fmaf(p, z, 0x1.ce2d00p-4f);
    p = __builtin_fmaf(p, z, -0x1.81273ep-2f);
    p = __builtin_fmaf(p, z, 0x1.06eba8p-3f);
    float small = __builtin_fmaf(a, p, a);
    float q = 0x1.8e86d0p-13f;
    q = __builtin_fmaf(q, a, -0x1.8732ecp-9f);
    q = __builtin_fmaf(q, a, 0x1.684a10p-6f);
    q = __builtin_fmaf(q, a, -0x1.a7aa64p-4f);
    q = __builtin_fmaf(q, a, -0x1.46882cp-1f);
    q = __builtin_fmaf(q, a, -0x1.20989ap+0f);
    q = __builtin_fmaf(q, a, -0x1.26c0b8p-12f);
    float large = 1.0f - mpk_exp(q);
    float v = a < 1.0f ? small : large;
    return mpk_float(mpk_bits(v) | sign);
}

/* v Phi(v), by the error function. */
MPK_INLINE float mpk_gelu(float v)
{
    return (0.5f * v) * (1.0f + mpk_erf(v * 0x1.6a09e6p-1f));
}

/* The approximation of the same by tanh: 0.5 v (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))). */
MPK_INLINE float mpk_gelu_tanh(float v)
{
    float inner = __builtin_fmaf((0x1.6e4e26p-5f * v) * v, v, v);
    return (0.5f * v) * (1.0f + mpk_tanh(0x1.988454p-1f * inner));
}

/* The nested sum over blocks of 32 columns (spec/numerics.md section 4): FMA chains over 4 blocks, those summed by
 * fours, those summed. Zero-initialise. */
typedef struct mpk_nested_sum {
    float sum, group, segment;
} mpk_nested_sum;

MPK_INLINE void mpk_nested_add(mpk_nested_sum *n, float scaled, float scale)
{
    n->segment = __builtin_fmaf(scaled, scale, n->segment);
}

/* After everything of block b was added. */
MPK_INLINE void mpk_nested_end(mpk_nested_sum *n, size_t b, bool last)
{
    if (b % 4 == 3 || last) {
        n->group += n->segment;
        n->segment = 0.0f;
    }
    if (b % 16 == 15 || last) {
        n->sum += n->group;
        n->group = 0.0f;
    }
}

#endif
