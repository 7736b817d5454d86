/* The AVX2, FMA and AVX-VNNI intrinsics that runtime/cpu uses, in plain C (see emulate.h). */
#ifndef MOEPACK_TESTS_EMULATE_AVX2_H
#define MOEPACK_TESTS_EMULATE_AVX2_H

#include "emulate.h"

EMULATED_VECTOR(emulated256, 32);
#define __m256i emulated256
#define __m256 emulated256

EMULATED_LOAD(emulated256, _mm256_load_si256, 32)
EMULATED_LOAD(emulated256, _mm256_load_ps, 32)
EMULATED_SET(emulated256, _mm256_set1_epi8, int8_t, 32, i8)
EMULATED_SET(emulated256, _mm256_set1_epi16, int16_t, 16, i16)
EMULATED_SET(emulated256, _mm256_set1_epi32, int32_t, 8, i32)
EMULATED_SET(emulated256, _mm256_set1_ps, float, 8, f32)
EMULATED_BINARY(emulated256, _mm256_add_epi16, 16, r.u16[i] = (uint16_t)(a.u16[i] + b.u16[i]))
EMULATED_BINARY(emulated256, _mm256_add_epi32, 8, r.u32[i] = a.u32[i] + b.u32[i])
EMULATED_BINARY(emulated256, _mm256_max_epi32, 8, r.i32[i] = a.i32[i] > b.i32[i] ? a.i32[i] : b.i32[i])
EMULATED_BINARY(emulated256, _mm256_and_si256, 8, r.u32[i] = a.u32[i] & b.u32[i])
EMULATED_BINARY(emulated256, _mm256_or_si256, 8, r.u32[i] = a.u32[i] | b.u32[i])
EMULATED_BINARY(emulated256, _mm256_or_ps, 8, r.u32[i] = a.u32[i] | b.u32[i])
EMULATED_BINARY(emulated256, _mm256_cmpeq_epi32, 8, r.u32[i] = a.u32[i] == b.u32[i] ? UINT32_MAX : 0)
EMULATED_BINARY(emulated256, _mm256_add_ps, 8, r.f32[i] = a.f32[i] + b.f32[i])
EMULATED_BINARY(emulated256, _mm256_mul_ps, 8, r.f32[i] = a.f32[i] * b.f32[i])
EMULATED_TERNARY(emulated256, _mm256_fmadd_ps, 8, r.f32[i] = fmaf(a.f32[i], b.f32[i], c.f32[i]))
EMULATED_TERNARY(emulated256, _mm256_blendv_ps, 8, r.u32[i] = c.u32[i] >> 31 ? b.u32[i] : a.u32[i])
EMULATED_UNARY(emulated256, _mm256_cvtepi32_ps, 8, r.f32[i] = (float)a.i32[i])
EMULATED_SHIFT(emulated256, _mm256_slli_epi32, int, 8, r.u32[i] = n > 31 ? 0 : a.u32[i] << n)
EMULATED_SHIFT(emulated256, _mm256_srli_epi32, int, 8, r.u32[i] = n > 31 ? 0 : a.u32[i] >> n)
EMULATED_SHIFT(emulated256, _mm256_srli_epi16, int, 16, r.u16[i] = (uint16_t)(n > 15 ? 0 : a.u16[i] >> n))
EMULATED_SHIFT(emulated256, _mm256_slli_epi16, int, 16, r.u16[i] = (uint16_t)(n > 15 ? 0 : a.u16[i] << n))
EMULATED_SHIFT(emulated256, _mm256_srai_epi16, int, 16, r.i16[i] = (int16_t)(a.i16[i] >> (n > 15 ? 15 : n)))
EMULATED_SHIFT(emulated256, _mm256_shuffle_epi32, int, 8, r.u32[i] = a.u32[(i & 4) + (n >> (i % 4 * 2) & 3)])
EMULATED_BINARY(emulated256, _mm256_permutevar8x32_ps, 8, r.f32[i] = a.f32[b.u32[i] & 7])
/* Within each half of 16 bytes; an index with its top bit set gives 0. */
EMULATED_BINARY(emulated256, _mm256_shuffle_epi8, 32, r.u8[i] = b.u8[i] & 128 ? 0 : a.u8[(i & 16) + (b.u8[i] & 15)])
EMULATED_BINARY(emulated256, _mm256_madd_epi16, 8,
                r.i32[i] = a.i16[2 * i] * b.i16[2 * i] + a.i16[2 * i + 1] * b.i16[2 * i + 1])
/* Two products of unsigned by signed bytes, saturated to 16 bits. */
EMULATED_BINARY(emulated256, _mm256_maddubs_epi16, 16, {
    int sum = a.u8[2 * i] * b.i8[2 * i] + a.u8[2 * i + 1] * b.i8[2 * i + 1];
    r.i16[i] = (int16_t)(sum > INT16_MAX ? INT16_MAX : sum < INT16_MIN ? INT16_MIN : sum);
})
/* Four products of unsigned by signed bytes added to each 32-bit lane, without saturation. */
EMULATED_TERNARY(emulated256, _mm256_dpbusd_avx_epi32, 8, {
    int32_t sum = 0;
    for (int k = 0; k < 4; k++) sum += b.u8[4 * i + k] * c.i8[4 * i + k];
    r.u32[i] = a.u32[i] + (uint32_t)sum;
})
#define _mm256_setzero_ps() _mm256_set1_epi32(0)
#define _mm256_castsi256_ps(a) (a)

static inline emulated256 _mm256_cvtepu8_epi32(__m128i a)
{
    emulated256 r;
    for (int i = 0; i < 8; i++) r.i32[i] = a.u8[i];
    return r;
}

/* Only _CMP_UNORD_Q. */
static inline emulated256 _mm256_cmp_ps(emulated256 a, emulated256 b, int predicate)
{
    emulated256 r;
    if (predicate != _CMP_UNORD_Q) __builtin_trap();
    for (int i = 0; i < 8; i++) r.u32[i] = isnan(a.f32[i]) || isnan(b.f32[i]) ? UINT32_MAX : 0;
    return r;
}

static inline emulated256 _mm256_blend_epi32(emulated256 a, emulated256 b, int mask)
{
    for (int i = 0; i < 8; i++)
        if (mask >> i & 1) a.u32[i] = b.u32[i];
    return a;
}

static inline emulated256 _mm256_loadu_ps(const float *p)
{
    emulated256 r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline emulated256 _mm256_loadu_si256(const emulated256 *p)
{
    emulated256 r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline void _mm256_store_ps(float *p, emulated256 a)
{
    if ((uintptr_t)p % 32 != 0) __builtin_trap();
    memcpy(p, &a, sizeof a);
}

static inline void _mm256_store_si256(emulated256 *p, emulated256 a)
{
    if ((uintptr_t)p % 32 != 0) __builtin_trap();
    memcpy(p, &a, sizeof a);
}

static inline void _mm256_storeu_ps(float *p, emulated256 a)
{
    memcpy(p, &a, sizeof a);
}

#endif
