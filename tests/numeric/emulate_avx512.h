/* The AVX-512 intrinsics that runtime/cpu/avx512.c uses, in plain C (see emulate.h). */
#ifndef MOEPACK_TESTS_EMULATE_AVX512_H
#define MOEPACK_TESTS_EMULATE_AVX512_H

#include "emulate.h"

EMULATED_VECTOR(emulated512, 64);
#define __m512i emulated512
#define __m512 emulated512
typedef uint16_t __mmask16;

EMULATED_LOAD(emulated512, _mm512_load_si512, 64)
EMULATED_LOAD(emulated512, _mm512_load_ps, 64)
EMULATED_SET(emulated512, _mm512_set1_epi32, int32_t, 16, i32)
EMULATED_SET(emulated512, _mm512_set1_ps, float, 16, f32)
EMULATED_BINARY(emulated512, _mm512_add_epi32, 16, r.u32[i] = a.u32[i] + b.u32[i])
EMULATED_BINARY(emulated512, _mm512_max_epi32, 16, r.i32[i] = a.i32[i] > b.i32[i] ? a.i32[i] : b.i32[i])
EMULATED_BINARY(emulated512, _mm512_and_si512, 16, r.u32[i] = a.u32[i] & b.u32[i])
EMULATED_BINARY(emulated512, _mm512_add_ps, 16, r.f32[i] = a.f32[i] + b.f32[i])
EMULATED_BINARY(emulated512, _mm512_mul_ps, 16, r.f32[i] = a.f32[i] * b.f32[i])
EMULATED_TERNARY(emulated512, _mm512_fmadd_ps, 16, r.f32[i] = fmaf(a.f32[i], b.f32[i], c.f32[i]))
EMULATED_UNARY(emulated512, _mm512_cvtepi32_ps, 16, r.f32[i] = (float)a.i32[i])
EMULATED_SHIFT(emulated512, _mm512_slli_epi32, unsigned, 16, r.u32[i] = n > 31 ? 0 : a.u32[i] << n)
EMULATED_SHIFT(emulated512, _mm512_srli_epi32, unsigned, 16, r.u32[i] = n > 31 ? 0 : a.u32[i] >> n)
EMULATED_SHIFT(emulated512, _mm512_srli_epi16, unsigned, 32, r.u16[i] = (uint16_t)(n > 15 ? 0 : a.u16[i] >> n))
EMULATED_BINARY(emulated512, _mm512_permutexvar_epi8, 64, r.u8[i] = b.u8[a.u8[i] & 63])
EMULATED_BINARY(emulated512, _mm512_permutexvar_ps, 16, r.f32[i] = b.f32[a.u32[i] & 15])
EMULATED_BINARY(emulated512, _mm512_sub_epi32, 16, r.u32[i] = a.u32[i] - b.u32[i])
EMULATED_BINARY(emulated512, _mm512_or_si512, 16, r.u32[i] = a.u32[i] | b.u32[i])
EMULATED_BINARY(emulated512, _mm512_max_epu8, 64, r.u8[i] = a.u8[i] > b.u8[i] ? a.u8[i] : b.u8[i])
EMULATED_SHIFT(emulated512, _mm512_slli_epi16, unsigned, 32, r.u16[i] = (uint16_t)(n > 15 ? 0 : a.u16[i] << n))
/* Counts below the width only; right shifts of negative numbers are arithmetic in every compiler that builds this. */
EMULATED_SHIFT(emulated512, _mm512_srai_epi32, unsigned, 16, r.i32[i] = a.i32[i] >> n)
EMULATED_SHIFT(emulated512, _mm512_srai_epi16, unsigned, 32, r.i16[i] = (int16_t)(a.i16[i] >> n))
#define _mm512_setzero_si512() _mm512_set1_epi32(0)
#define _mm512_setzero_ps() _mm512_set1_epi32(0)
#define _mm512_castsi512_ps(a) (a)
#define _mm512_castps_si512(a) (a)

/* Four products of unsigned by signed bytes added to each 32-bit lane, without saturation. */
EMULATED_TERNARY(emulated512, _mm512_dpbusd_epi32, 16, {
    int32_t sum = 0;
    for (int k = 0; k < 4; k++) sum += b.u8[4 * i + k] * c.i8[4 * i + k];
    r.u32[i] = a.u32[i] + (uint32_t)sum;
})

static inline emulated512 _mm512_cvtepu8_epi32(__m128i a)
{
    emulated512 r;
    for (int i = 0; i < 16; i++) r.i32[i] = a.u8[i];
    return r;
}

typedef struct {
    uint16_t u16[16];
} __m256i;

static inline __m256i _mm256_loadu_si256(const __m256i *p)
{
    __m256i r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline emulated512 _mm512_cvtepu16_epi32(__m256i a)
{
    emulated512 r;
    for (int i = 0; i < 16; i++) r.i32[i] = a.u16[i];
    return r;
}

static inline emulated512 _mm512_loadu_ps(const void *p)
{
    emulated512 r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline emulated512 _mm512_mask_mov_epi32(emulated512 a, __mmask16 mask, emulated512 b)
{
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) a.i32[i] = b.i32[i];
    return a;
}

static inline __mmask16 _mm512_cmpeq_epi32_mask(emulated512 a, emulated512 b)
{
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(a.i32[i] == b.i32[i]) << i;
    return (__mmask16)mask;
}

/* Only _CMP_UNORD_Q. */
static inline __mmask16 _mm512_cmp_ps_mask(emulated512 a, emulated512 b, int predicate)
{
    unsigned mask = 0;
    if (predicate != _CMP_UNORD_Q) __builtin_trap();
    for (int i = 0; i < 16; i++) mask |= (unsigned)(isnan(a.f32[i]) || isnan(b.f32[i])) << i;
    return (__mmask16)mask;
}

static inline emulated512 _mm512_mask_set1_epi32(emulated512 a, __mmask16 mask, int32_t v)
{
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) a.i32[i] = v;
    return a;
}

static inline void _mm512_storeu_si512(void *p, emulated512 a)
{
    memcpy(p, &a, sizeof a);
}

#endif
