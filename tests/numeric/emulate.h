/* What the emulations of the two x86 families share: a vector as a union of its element arrays, and element-wise
 * operations written once for any width. Plain C: it runs on every machine and under the sanitizers, about a hundred
 * times slower than the real thing. Only what the kernels use is here; a new intrinsic in a kernel fails to compile
 * until it is added.
 *
 * The real header must not be included beside this one, so the names are free. */
#ifndef MOEPACK_TESTS_EMULATE_H
#define MOEPACK_TESTS_EMULATE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __IMMINTRIN_H
#error "the emulated and the real intrinsics exclude each other"
#endif

typedef struct {
    uint8_t u8[16];
} __m128i;

/* A vector type of `BYTES` bytes. */
#define EMULATED_VECTOR(TYPE, BYTES) \
    typedef union {                  \
        int8_t i8[BYTES];            \
        uint8_t u8[BYTES];           \
        int16_t i16[BYTES / 2];      \
        uint16_t u16[BYTES / 2];     \
        int32_t i32[BYTES / 4];      \
        uint32_t u32[BYTES / 4];     \
        float f32[BYTES / 4];        \
    } TYPE

/* static TYPE NAME(...) with one statement for each of COUNT elements i, into r. */
#define EMULATED_UNARY(TYPE, NAME, COUNT, STATEMENT) \
    static inline TYPE NAME(TYPE a)                  \
    {                                                \
        TYPE r;                                      \
        for (int i = 0; i < (COUNT); i++) STATEMENT; \
        return r;                                    \
    }
#define EMULATED_BINARY(TYPE, NAME, COUNT, STATEMENT) \
    static inline TYPE NAME(TYPE a, TYPE b)           \
    {                                                 \
        TYPE r;                                       \
        for (int i = 0; i < (COUNT); i++) STATEMENT;  \
        return r;                                     \
    }
#define EMULATED_TERNARY(TYPE, NAME, COUNT, STATEMENT) \
    static inline TYPE NAME(TYPE a, TYPE b, TYPE c)    \
    {                                                  \
        TYPE r;                                        \
        for (int i = 0; i < (COUNT); i++) STATEMENT;   \
        return r;                                      \
    }
/* The real ones take an int (AVX2) or an unsigned (AVX-512) count. */
#define EMULATED_SHIFT(TYPE, NAME, COUNTER, COUNT, STATEMENT) \
    static inline TYPE NAME(TYPE a, COUNTER n)                \
    {                                                         \
        TYPE r;                                               \
        for (int i = 0; i < (COUNT); i++) STATEMENT;          \
        return r;                                             \
    }
#define EMULATED_SET(TYPE, NAME, ELEMENT, COUNT, FIELD)   \
    static inline TYPE NAME(ELEMENT v)                    \
    {                                                     \
        TYPE r;                                           \
        for (int i = 0; i < (COUNT); i++) r.FIELD[i] = v; \
        return r;                                         \
    }
#define EMULATED_LOAD(TYPE, NAME, ALIGNMENT)                                              \
    static inline TYPE NAME(const void *p)                                                \
    {                                                                                     \
        TYPE r;                                                                           \
        if ((uintptr_t)p % (ALIGNMENT) != 0) __builtin_trap(); /* as the hardware does */ \
        memcpy(&r, p, sizeof r);                                                          \
        return r;                                                                         \
    }

#define _MM_HINT_T0 3
#define _MM_HINT_T1 2
#define _mm_prefetch(p, hint) ((void)(p))
#define _CMP_UNORD_Q 3

static inline __m128i _mm_loadu_si128(const __m128i *p)
{
    __m128i r;
    memcpy(&r, p, 16);
    return r;
}

static inline __m128i _mm_loadl_epi64(const __m128i *p)
{
    __m128i r = {{0}};
    memcpy(&r, p, 8);
    return r;
}

#endif
