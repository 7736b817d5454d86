/* Reading and writing lines of 16 rows with AVX-512, for avx512.c and int8_avx512.c. Include after TARGET and unroll.h.
 */
#ifndef MOEPACK_CPU_LINES_AVX512_H
#define MOEPACK_CPU_LINES_AVX512_H

/* 12 + 2v for the sixteen E2M1 codes, four times over: vpermb uses six index bits and a nibble has four, so the two
 * bits that the neighbouring nibble leaves above it select among equal copies and need no mask. */
#define CODES 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0
static const uint8_t offset_codes[64] __attribute__((aligned(64))) = {CODES, CODES, CODES, CODES};

/* 2^(byte - 127) of sixteen rows: byte 0 is the subnormal 2^-127, 255 is NaN. */
KERNEL __m512 weight_scales(const uint8_t *s)
{
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)s));
    __m512i bits = _mm512_max_epi32(_mm512_slli_epi32(bytes, 23), _mm512_set1_epi32(0x00400000));
    __mmask16 nan = _mm512_cmpeq_epi32_mask(bytes, _mm512_set1_epi32(255));
    return _mm512_castsi512_ps(_mm512_mask_set1_epi32(bits, nan, 0x7fc00000));
}

KERNEL void store_rows(float *y, __m512 v)
{
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    __m512i out = _mm512_mask_set1_epi32(_mm512_castps_si512(v), nan, 0x7fc00000);
    _mm512_storeu_si512(y, out);
}

KERNEL __m512i word_of(const int8_t *digits)
{
    int32_t word;
    memcpy(&word, digits, sizeof word);
    return _mm512_set1_epi32(word);
}

#endif
