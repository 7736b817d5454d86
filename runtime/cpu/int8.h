/* Inputs of the int8 mode, and the kernels of that mode that vector families take into their tables. */
#ifndef MOEPACK_CPU_INT8_H
#define MOEPACK_CPU_INT8_H

#include "elementwise.h"

/* One block (spec/numerics.md section 12). The largest magnitude m = t 2^e, t in [0.5, 1) with 24 significant bits,
 * gives the step g 2^(e-15), where g = ceil(t 2^15 / 127) lies in 130 .. 259: D g then has at most 24 bits. Scaling by
 * 2^-e is done in two halves, as for fix16. */
MPK_INLINE void mpk_body_quantize_int8_block(const float *restrict x, mpk_int8_block *restrict out)
{
    uint32_t top = 0;
    for (size_t i = 0; i < MPK_BLOCK; i++) {
        uint32_t u = mpk_bits(x[i]) & 0x7fffffffu;
        top = u > top ? u : top;
    }
    memset(out, 0, sizeof *out);
    if (top == 0) return;
    if (top >= 0x7f800000u) {
        out->scale = mpk_float(0x7fc00000u);
        return;
    }
    const bool normal = top >= 0x00800000u;
    const int zeros = __builtin_clz(top), e = normal ? (int)(top >> 23) - 126 : 32 - zeros - 149;
    const uint32_t significand = normal ? (top & 0x007fffffu) | 0x00800000u : top << (zeros - 8);
    const float g = (float)((significand + 127 * 512 - 1) / (127 * 512));
    const float first = mpk_power_of_two(-e / 2), second = mpk_power_of_two(-e - -e / 2), per_step = 32768.0f / g;
    const float magic = 0x1.8p+23f; /* adding it rounds to an integer, ties to even */
    int32_t q[MPK_BLOCK];
    int32_t sum = 0, pair[2] = {0, 0};
    for (size_t i = 0; i < MPK_BLOCK; i++) {
        q[i] = (int32_t)(mpk_bits(((x[i] * first) * second) * per_step + magic) - 0x4b400000u);
        sum += q[i];
    }
    for (size_t c = 0; c < 4; c++)
        for (size_t h = 0; h < 2; h++)
            for (size_t i = 0; i < 4; i++) {
                const int32_t v = q[c * 8 + i * 2 + h];
                out->q[c][h][i] = (int8_t)v;
                pair[i / 2] += v;
            }
    out->seed = -12 * sum;
    for (size_t i = 0; i < 2; i++) out->seed_pair[i] = (int16_t)(-12 * pair[i]); /* at most 12 * 16 * 127 */
    out->scale = (g * mpk_power_of_two((e - 16) / 2)) * mpk_power_of_two(e - 16 - (e - 16) / 2);
}

MPK_INLINE void mpk_body_quantize_int8(const float *restrict x, mpk_int8_block *restrict out, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++) mpk_body_quantize_int8_block(x + b * MPK_BLOCK, out + b);
}

void mpk_int8_gemv_scalar(const mpk_gemv *op);
void mpk_int8_quantize_scalar(const float *x, mpk_int8_block *out, size_t blocks);
void mpk_int8_gemv_avx2(const mpk_gemv *op);
void mpk_int8_gemv_avxvnni(const mpk_gemv *op);
void mpk_int8_gemv_avx512(const mpk_gemv *op);
void mpk_int8_quantize_avx2(const float *x, mpk_int8_block *out, size_t blocks);
void mpk_int8_quantize_avx512(const float *x, mpk_int8_block *out, size_t blocks);

#endif
