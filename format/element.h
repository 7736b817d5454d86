/* Values of single elements as F32, exact for every encoding. Internal; header only. Where speed counts the kernels
 * have their own ways to the same values (runtime/cpu/). */
#ifndef MOEPACK_FORMAT_ELEMENT_H
#define MOEPACK_FORMAT_ELEMENT_H

#include <stdint.h>
#include <string.h>

static inline float mpk_value_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float mpk_value_bf16(uint32_t bits)
{
    return mpk_value_f32(bits << 16);
}

static inline float mpk_value_f16(uint32_t h)
{
    const uint32_t exponent = (h >> 10) & 31u, fraction = h & 0x3ffu, sign = (h & 0x8000u) << 16;
    if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * ((float)fraction * 0x1p-24f);
    if (exponent == 31) return mpk_value_f32(fraction != 0 ? 0x7fc00000u : sign | 0x7f800000u);
    return mpk_value_f32(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Bias 7, no infinities; 7f and ff are NaN. */
static inline float mpk_value_e4m3(uint32_t code)
{
    const uint32_t exponent = (code >> 3) & 15u, fraction = code & 7u, sign = (code & 0x80u) << 24;
    if ((code & 0x7fu) == 0x7fu) return mpk_value_f32(0x7fc00000u);
    if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * ((float)fraction * 0x1p-9f);
    return mpk_value_f32(sign | (exponent + 120) << 23 | fraction << 20);
}

/* 2^(byte - 127); byte 0 is a subnormal, 255 a NaN. */
static inline float mpk_value_e8m0(uint32_t byte)
{
    return mpk_value_f32(byte == 255 ? 0x7fc00000u : byte == 0 ? 0x00400000u : byte << 23);
}

static inline float mpk_value_e2m1(uint32_t code)
{
    static const float magnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return code & 8u ? -magnitude[code & 7u] : magnitude[code & 7u];
}

static inline float mpk_value_int4(uint32_t code)
{
    return (float)((int32_t)code - 8);
}

#endif
