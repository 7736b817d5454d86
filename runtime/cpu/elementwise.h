/* Bodies of the element-wise kernels, shared by all families: each family wraps them in functions that carry its own
 * target attribute, so the compiler vectorises the same source for each instruction set. Lanes never meet, so the
 * result does not depend on the vector width. Fixed inner loops of 16 let gcc vectorise at -O2 as well. */
#ifndef MOEPACK_CPU_ELEMENTWISE_H
#define MOEPACK_CPU_ELEMENTWISE_H

#include "elementary.h"
#include "kernels.h"

#define MPK_LANES 16

MPK_INLINE void mpk_body_round_bf16(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i += MPK_LANES)
        for (size_t j = 0; j < MPK_LANES; j++) out[i + j] = mpk_bf16(x[i + j]);
}

MPK_INLINE void mpk_body_sigmoid(const float *restrict x, float *restrict out, size_t n)
{
    for (size_t i = 0; i < n; i += MPK_LANES)
        for (size_t j = 0; j < MPK_LANES; j++) out[i + j] = mpk_sigmoid(x[i + j]);
}

MPK_INLINE void mpk_body_exp_minus(const float *restrict x, float shift, float *restrict out, size_t n)
{
    for (size_t i = 0; i < n; i += MPK_LANES)
        for (size_t j = 0; j < MPK_LANES; j++) out[i + j] = mpk_exp(x[i + j] - shift);
}

MPK_INLINE void mpk_body_accumulate(float weight, const float *restrict o, float *restrict s, size_t n)
{
    for (size_t i = 0; i < n; i += MPK_LANES)
        for (size_t j = 0; j < MPK_LANES; j++) s[i + j] = __builtin_fmaf(weight, o[i + j], s[i + j]);
}

MPK_INLINE void mpk_body_sqrt_softplus(const float *restrict x, float *restrict out, size_t n)
{
    for (size_t i = 0; i < n; i += MPK_LANES)
        for (size_t j = 0; j < MPK_LANES; j++) out[i + j] = mpk_sqrt_softplus(x[i + j]);
}

MPK_INLINE void mpk_body_scale(float weight, const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i += MPK_LANES)
        for (size_t j = 0; j < MPK_LANES; j++) out[i + j] = weight * x[i + j];
}

MPK_INLINE void mpk_body_add(const float *restrict b, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i += MPK_LANES)
        for (size_t j = 0; j < MPK_LANES; j++) y[i + j] = y[i + j] + b[i + j];
}

/* One loop for each activation, with the expression RESULT of g (the activated branch) and u: gated, or alone. */
#define MPK_LOOP(RESULT)                                 \
    for (size_t i = 0; i < n; i += MPK_LANES)            \
        for (size_t j = 0; j < MPK_LANES; j++) {         \
            const float g = gate[i + j], u = up[i + j];  \
            (void)u; /* not every expression has both */ \
            out[i + j] = (RESULT);                       \
        }                                                \
    return

MPK_INLINE float mpk_relu(float v)
{
    return v < 0.0f ? 0.0f : v;
}

MPK_INLINE float mpk_at_most(float v, float limit)
{
    return v > limit ? limit : v;
}

MPK_INLINE float mpk_clamp(float v, float limit)
{
    return mpk_at_most(v < -limit ? -limit : v, limit);
}

MPK_INLINE float mpk_swiglu_oai(float g, float u, float alpha)
{
    return (g * mpk_sigmoid(alpha * g)) * (u + 1.0f);
}

/* Without a gate, the activation of `gate` alone; `up` is not read. */
MPK_INLINE void mpk_body_activate_alone(moepack_activation kind, const float *restrict gate, float *restrict out,
                                        size_t n)
{
    const float *up = gate;
    switch (kind) {
    case MOEPACK_ACT_RELU:
        MPK_LOOP(mpk_relu(g));
    case MOEPACK_ACT_RELU2:
        MPK_LOOP(mpk_relu(g) * mpk_relu(g));
    case MOEPACK_ACT_GELU:
        MPK_LOOP(mpk_gelu(g));
    case MOEPACK_ACT_GELU_TANH:
        MPK_LOOP(mpk_gelu_tanh(g));
    default: /* SILU: layer_check.c lets nothing else through */
        MPK_LOOP(g * mpk_sigmoid(g));
    }
}

MPK_INLINE void mpk_body_activate_clamped(const mpk_activation_params *params, const float *restrict gate,
                                          const float *restrict up, float *restrict out, size_t n)
{
    const float alpha = params->alpha, limit = params->limit > 0.0f ? params->limit : mpk_float(0x7f800000u);
    if (params->kind == MOEPACK_ACT_SWIGLU_OAI) {
        MPK_LOOP(mpk_swiglu_oai(mpk_at_most(g, limit), mpk_clamp(u, limit), alpha));
    } else {
        MPK_LOOP((mpk_at_most(g, limit) * mpk_sigmoid(mpk_at_most(g, limit))) * mpk_clamp(u, limit));
    }
}

MPK_INLINE void mpk_body_activate(const mpk_activation_params *params, const float *restrict gate,
                                  const float *restrict up, float *restrict out, size_t n)
{
    const float beta = params->beta, linear = params->linear_beta;
    if (up == NULL) {
        mpk_body_activate_alone(params->kind, gate, out, n);
        return;
    }
    switch (params->kind) {
    case MOEPACK_ACT_RELU:
        MPK_LOOP(mpk_relu(g) * u);
    case MOEPACK_ACT_RELU2:
        MPK_LOOP((mpk_relu(g) * mpk_relu(g)) * u);
    case MOEPACK_ACT_SILU:
        MPK_LOOP((g * mpk_sigmoid(g)) * u);
    case MOEPACK_ACT_GELU:
        MPK_LOOP(mpk_gelu(g) * u);
    case MOEPACK_ACT_GELU_TANH:
        MPK_LOOP(mpk_gelu_tanh(g) * u);
    case MOEPACK_ACT_SILU_CLAMPED:
    case MOEPACK_ACT_SWIGLU_OAI:
        mpk_body_activate_clamped(params, gate, up, out, n);
        return;
    default: /* SITU */
        if (linear == 0.0f) {
            MPK_LOOP(((beta * mpk_tanh(g / beta)) * mpk_sigmoid(g)) * u);
        } else {
            MPK_LOOP(((beta * mpk_tanh(g / beta)) * mpk_sigmoid(g)) * (linear * mpk_tanh(u / linear)));
        }
    }
}

#undef MPK_LOOP

/* RMSNorm of s [n]; s is zero from n up to a multiple of 32. Blocks of 32 squares are chained by FMA, sixteen blocks
 * side by side because one chain waits for itself. */
MPK_INLINE void mpk_body_norm(const float *restrict s, const float *restrict weight, float eps, float *restrict out,
                              size_t n)
{
    const size_t blocks = (n + MPK_BLOCK - 1) / MPK_BLOCK;
    float total = 0.0f;
    for (size_t b = 0; b < blocks; b += MPK_LANES) {
        const size_t count = blocks - b < MPK_LANES ? blocks - b : MPK_LANES;
        float chain[MPK_LANES] = {0};
        for (size_t c = 0; c < MPK_BLOCK; c++)
            for (size_t i = 0; i < count; i++) {
                float v = s[(b + i) * MPK_BLOCK + c];
                chain[i] = __builtin_fmaf(v, v, chain[i]);
            }
        for (size_t i = 0; i < count; i++) total += chain[i];
    }
    const float inverse = 1.0f / __builtin_sqrtf(total / (float)n + eps);
    for (size_t i = 0; i < n; i++) out[i] = (s[i] * inverse) * weight[i];
}

/* 2^e for -149 <= e <= 127. */
MPK_INLINE float mpk_power_of_two(int e)
{
    return mpk_float(e >= -126 ? (uint32_t)(e + 127) << 23 : 1u << (e + 149));
}

/* One block of fix16. The largest magnitude m = f 2^e, f in [0.5, 1), decides k = 15 - e, or 14 - e where m 2^k would
 * round to more than 32639 (the largest value with two signed digits). Scaling by 2^k is done in two exact halves,
 * because 2^k itself can be outside binary32; what underflows on the way is far below one half and becomes 0 either
 * way. */
MPK_INLINE void mpk_body_quantize_block(const float *restrict x, mpk_fix16_block *restrict out)
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
    const int e = top >= 0x00800000u ? (int)(top >> 23) - 126 : 32 - __builtin_clz(top) - 149;
    int k = 15 - e;
    const float magic = 0x1.8p+23f; /* adding it rounds to an integer, ties to even */
    float largest = (mpk_float(top) * mpk_power_of_two(k / 2)) * mpk_power_of_two(k - k / 2);
    if ((largest + magic) - magic > 32639.0f) k--;
    const float first = mpk_power_of_two(k / 2), second = mpk_power_of_two(k - k / 2);
    int32_t q[MPK_BLOCK];
    int32_t sum = 0;
    for (size_t i = 0; i < MPK_BLOCK; i++) {
        q[i] = (int32_t)(mpk_bits((x[i] * first) * second + magic) - 0x4b400000u);
        sum += q[i];
        if (i + 1 == MPK_BLOCK / 2) out->seed_first = -12 * sum;
    }
    int32_t hi_sum[2] = {0, 0}, lo_sum[2] = {0, 0};
    for (size_t c = 0; c < 4; c++)
        for (size_t h = 0; h < 2; h++)
            for (size_t i = 0; i < 4; i++) {
                int32_t v = q[c * 8 + i * 2 + h];
                int32_t hi = (v + 128) >> 8, lo = v - hi * 256;
                out->digit[c][h][0][i] = (int8_t)hi;
                out->digit[c][h][1][i] = (int8_t)lo;
                hi_sum[i / 2] += hi;
                lo_sum[i / 2] += lo;
            }
    out->seed = -12 * sum;
    for (size_t i = 0; i < 2; i++) {
        out->seed_hi[i] = (int16_t)(uint16_t)(uint32_t)(-12 * hi_sum[i]);
        out->seed_lo[i] = (int16_t)(uint16_t)(uint32_t)(-12 * lo_sum[i]);
    }
    out->scale = mpk_power_of_two(-k - 1);
}

MPK_INLINE void mpk_body_quantize(const float *restrict x, mpk_fix16_block *restrict out, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++) mpk_body_quantize_block(x + b * MPK_BLOCK, out + b);
}

/* Defines the element-wise kernels NAME_round_bf16 ... of one family, each with the given attribute. */
#define MPK_DEFINE_ELEMENTWISE(NAME, TARGET)                                                                       \
    TARGET static void NAME##_round_bf16(const float *x, float *out, size_t n)                                     \
    {                                                                                                              \
        mpk_body_round_bf16(x, out, n);                                                                            \
    }                                                                                                              \
    TARGET static void NAME##_sigmoid(const float *x, float *out, size_t n)                                        \
    {                                                                                                              \
        mpk_body_sigmoid(x, out, n);                                                                               \
    }                                                                                                              \
    TARGET static void NAME##_exp_minus(const float *x, float shift, float *out, size_t n)                         \
    {                                                                                                              \
        mpk_body_exp_minus(x, shift, out, n);                                                                      \
    }                                                                                                              \
    TARGET static void NAME##_sqrt_softplus(const float *x, float *out, size_t n)                                  \
    {                                                                                                              \
        mpk_body_sqrt_softplus(x, out, n);                                                                         \
    }                                                                                                              \
    TARGET static void NAME##_scale(float weight, const float *x, float *out, size_t n)                            \
    {                                                                                                              \
        mpk_body_scale(weight, x, out, n);                                                                         \
    }                                                                                                              \
    TARGET static void NAME##_add(const float *b, float *y, size_t n)                                              \
    {                                                                                                              \
        mpk_body_add(b, y, n);                                                                                     \
    }                                                                                                              \
    TARGET static void NAME##_accumulate(float weight, const float *o, float *s, size_t n)                         \
    {                                                                                                              \
        mpk_body_accumulate(weight, o, s, n);                                                                      \
    }                                                                                                              \
    TARGET static void NAME##_activate(const mpk_activation_params *p, const float *g, const float *u, float *out, \
                                       size_t n)                                                                   \
    {                                                                                                              \
        mpk_body_activate(p, g, u, out, n);                                                                        \
    }                                                                                                              \
    TARGET static void NAME##_norm(const float *s, const float *weight, float eps, float *out, size_t n)           \
    {                                                                                                              \
        mpk_body_norm(s, weight, eps, out, n);                                                                     \
    }                                                                                                              \
    TARGET static void NAME##_quantize(const float *x, mpk_fix16_block *out, size_t blocks)                        \
    {                                                                                                              \
        mpk_body_quantize(x, out, blocks);                                                                         \
    }

/* The fields of the kernel table that MPK_DEFINE_ELEMENTWISE fills. */
#define MPK_ELEMENTWISE_FIELDS(NAME)                                                                            \
    .quantize = NAME##_quantize, .round_bf16 = NAME##_round_bf16, .activate = NAME##_activate,                  \
    .sigmoid = NAME##_sigmoid, .sqrt_softplus = NAME##_sqrt_softplus, .scale = NAME##_scale, .add = NAME##_add, \
    .exp_minus = NAME##_exp_minus, .accumulate = NAME##_accumulate, .norm = NAME##_norm

#endif
