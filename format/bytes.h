/* Little-endian loads and stores, and arithmetic that notices overflow. Internal; header only.
 * Container bytes are read through these and never by casting a struct onto the file: alignment and byte order are then
 * no question, on any machine. */
#ifndef MOEPACK_FORMAT_BYTES_H
#define MOEPACK_FORMAT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t mpk_load16(const void *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t mpk_load32(const void *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t mpk_load64(const void *p)
{
    const uint8_t *b = (const uint8_t *)p;
    return (uint64_t)mpk_load32(b) | (uint64_t)mpk_load32(b + 4) << 32;
}

static inline void mpk_store16(void *p, uint16_t v)
{
    uint8_t *b = (uint8_t *)p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}

static inline void mpk_store32(void *p, uint32_t v)
{
    uint8_t *b = (uint8_t *)p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
    b[2] = (uint8_t)(v >> 16);
    b[3] = (uint8_t)(v >> 24);
}

static inline void mpk_store64(void *p, uint64_t v)
{
    uint8_t *b = (uint8_t *)p;
    mpk_store32(b, (uint32_t)v);
    mpk_store32(b + 4, (uint32_t)(v >> 32));
}

static inline bool mpk_add64(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

static inline bool mpk_mul64(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

/* Rounds up to a multiple of `unit` (a power of two); false on overflow. */
static inline bool mpk_align64(uint64_t a, uint64_t unit, uint64_t *up)
{
    uint64_t sum;
    if (!mpk_add64(a, unit - 1, &sum)) return false;
    *up = sum & ~(unit - 1);
    return true;
}

#endif
