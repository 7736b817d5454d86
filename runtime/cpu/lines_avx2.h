/* Reading and writing half lines of 8 rows with AVX2, for avx2.c and int8_avx2.h. Include after TARGET and unroll.h. */
#ifndef MOEPACK_CPU_LINES_AVX2_H
#define MOEPACK_CPU_LINES_AVX2_H

/* 12 + 2v of the sixteen E2M1 codes, in both halves as vpshufb wants it. */
#define CODES 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0
static const uint8_t offset_codes[32] __attribute__((aligned(32))) = {CODES, CODES};

/* 2^(byte - 127) of eight rows: byte 0 is the subnormal 2^-127, 255 is NaN. */
KERNEL __m256 weight_scales(const uint8_t *s)
{
    __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)s)), 23);
    __m256i nan = _mm256_cmpeq_epi32(bits, _mm256_set1_epi32(0x7f800000));
    bits = _mm256_max_epi32(bits, _mm256_set1_epi32(0x00400000));
    return _mm256_castsi256_ps(_mm256_or_si256(bits, nan));
}

/* With every NaN the same one. */
KERNEL __m256 canonical(__m256 v)
{
    const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    return _mm256_blendv_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), nan);
}

KERNEL __m256i word_of(const void *bytes)
{
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm256_set1_epi32(word);
}

KERNEL __m256i load(const uint8_t *p)
{
    return _mm256_load_si256((const __m256i *)(const void *)p);
}

#endif
