/* Inner loops of weights.c, included once per instruction set with
 *   SET(name)     name with the set's suffix
 *   TARGET        function attribute, may be empty
 *   VECTOR_BYTES  16 or 32
 * Plain vector arithmetic of the compiler (no intrinsics): element-wise, so every width gives the same numbers. */

typedef uint64_t SET(u64) __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t SET(u16) __attribute__((vector_size(VECTOR_BYTES)));
typedef int16_t SET(i16) __attribute__((vector_size(VECTOR_BYTES)));
typedef uint8_t SET(u8) __attribute__((vector_size(VECTOR_BYTES / 2)));

#define PARTS (BLOCK * 2 / VECTOR_BYTES) /* vectors in a block; as many hold the state words of LANES lanes */

typedef struct SET(stream) {
    SET(u64) a[PARTS], b[PARTS];
} SET(stream);

TARGET INLINE void SET(stream_start)(SET(stream) * s, uint64_t key)
{
    uint64_t seed[2 * LANES];
    for (unsigned i = 0; i < 2 * LANES; i++)
        seed[i] = mpk_synth_nth(key, i) | (i >= LANES); /* a lane must not be zero */
    memcpy(s->a, seed, sizeof s->a);
    memcpy(s->b, seed + LANES, sizeof s->b);
}

/* Next word of each lane of part i, as 16-bit numbers. Which number lands in which half word depends on the byte order,
 * so big-endian machines swap. */
TARGET INLINE SET(u16) SET(next)(SET(stream) * s, unsigned i)
{
    SET(u64) x = s->a[i], y = s->b[i];
    x ^= x << 23;
    x ^= y ^ x >> 18 ^ y >> 5;
    s->a[i] = y;
    s->b[i] = x;
    x += y;
#ifdef BIG_ENDIAN_MACHINE
    for (unsigned k = 0; k < VECTOR_BYTES / 8; k++) x[k] = __builtin_bswap64(x[k]);
#endif
    return (SET(u16))x;
}

/* Steps 1 and 2. The two bytes of a 16-bit number may lie either way round: only their sum counts. */
TARGET INLINE void SET(bell)(SET(stream) * s, SET(i16) v[PARTS])
{
    for (unsigned i = 0; i < PARTS; i++) {
        SET(u16) r = SET(next)(s, i), q = SET(next)(s, i);
        SET(i16) x = (SET(i16))((r & 255) + (r >> 8) + (q & 255) + (q >> 8)) - 510; /* -510 .. 510, deviation 147.8 */
        SET(i16) y = x >> 2, cube = (y * y >> 6) * y;                               /* at most 252 x 127 */
        v[i] = x * 4 + (cube >> 7) + (cube >> 9);
    }
}

/* Steps 1 to 3. */
TARGET INLINE void SET(draw)(SET(stream) * s, uint64_t key, uint64_t block, SET(i16) v[PARTS])
{
    SET(bell)(s, v);
    uint64_t word = mpk_synth_nth(key, NTH_OUTLIERS + block);
    if (has_outlier(word)) {
        int16_t all[BLOCK];
        memcpy(all, v, sizeof all);
        place_outliers(word, all);
        memcpy(v, all, sizeof all);
    }
}

TARGET INLINE SET(i16) SET(larger)(SET(i16) a, SET(i16) b)
{
    return b ^ ((a ^ b) & (a > b));
}

TARGET INLINE unsigned SET(largest)(const SET(i16) magnitude[PARTS])
{
    SET(i16) top = magnitude[0];
    for (unsigned i = 1; i < PARTS; i++) top = SET(larger)(top, magnitude[i]);
    top = SET(larger)(top, (SET(i16))((SET(u64))top >> 32)); /* then within each 64-bit lane */
    top = SET(larger)(top, (SET(i16))((SET(u64))top >> 16));
    uint64_t lane[VECTOR_BYTES / 8], largest = 0;
    memcpy(lane, &top, sizeof lane);
    for (unsigned i = 0; i < VECTOR_BYTES / 8; i++) {
        uint64_t low = lane[i] & 0x7FFF;
        largest = low > largest ? low : largest;
    }
    return (unsigned)largest;
}

/* Step 4. */
TARGET INLINE uint8_t SET(quantise)(const SET(i16) v[PARTS], limits *l, uint8_t packed[HALF])
{
    SET(i16) magnitude[PARTS], code[PARTS];
    for (unsigned i = 0; i < PARTS; i++) magnitude[i] = (v[i] ^ v[i] >> 15) - (v[i] >> 15);
    unsigned largest = SET(largest)(magnitude);
    if (largest == 0) {
        memset(packed, 0, HALF);
        return 0;
    }
    unsigned log = 31u - (unsigned)__builtin_clz(largest * l->unit.mantissa);
    if (!(l->have >> log & 1)) limits_add(l, log);
    for (unsigned i = 0; i < PARTS; i++) {
        code[i] = (v[i] >> 12 & 8) + 7; /* a negative number that rounds to zero is code 8, -0 */
        for (unsigned k = 0; k < 7; k++) {
            SET(i16) at;
            memcpy(&at, l->at[log][k], sizeof at);
            code[i] += at > magnitude[i]; /* -1 where the limit is not reached */
        }
    }
    for (unsigned i = 0; i < PARTS / 2 + PARTS % 2; i++) {
        SET(u8) bytes = __builtin_convertvector((SET(u16))(code[i] | code[PARTS / 2 + i] << 4), SET(u8));
        memcpy(packed + i * sizeof bytes, &bytes, sizeof bytes);
    }
    return scale_byte((int)log + l->unit.exponent);
}

TARGET static uint8_t SET(quantise_block)(const int16_t v[BLOCK], mpk_synth_unit unit, uint8_t packed[HALF])
{
    limits l = {.unit = unit, .have = 0};
    SET(i16) parts[PARTS];
    memcpy(parts, v, sizeof parts);
    return SET(quantise)(parts, &l, packed);
}

TARGET static void SET(mxfp4)(uint64_t key, uint64_t first, uint64_t rows, uint64_t cols, const mpk_synth_law *law,
                              uint8_t *packed, uint8_t *scale)
{
    limits l;
    for (uint64_t row = first; row < first + rows; row++) {
        uint64_t row_key = mpk_synth_nth(key, row);
        SET(stream) s;
        SET(stream_start)(&s, row_key);
        l.unit = mpk_synth_unit_of(row_unit(row_key, law));
        l.have = 0;
        for (uint64_t block = 0; block < cols / BLOCK; block++, packed += HALF) {
            SET(i16) v[PARTS];
            SET(draw)(&s, row_key, block, v);
            *scale++ = SET(quantise)(v, &l, packed);
        }
    }
}

/* Draws a block and turns it into F32 values, as bits. */
TARGET INLINE void SET(draw_f32)(SET(stream) * s, uint64_t key, uint64_t block, float centre, float unit,
                                 uint32_t bits[BLOCK])
{
    SET(i16) v[PARTS];
    int16_t all[BLOCK];
    float value[BLOCK];
    SET(draw)(s, key, block, v);
    memcpy(all, v, sizeof all);
    for (unsigned i = 0; i < BLOCK; i++) value[i] = centre + (float)all[i] * unit;
    memcpy(bits, value, sizeof value);
}

TARGET static void SET(bf16)(uint64_t key, uint64_t first, uint64_t rows, uint64_t cols, const mpk_synth_law *law,
                             uint8_t *out)
{
    for (uint64_t row = first; row < first + rows; row++) {
        uint64_t row_key = mpk_synth_nth(key, row);
        float unit = (float)row_unit(row_key, law);
        SET(stream) s;
        SET(stream_start)(&s, row_key);
        for (uint64_t at = 0; at < cols; at += BLOCK) {
            uint32_t bits[BLOCK];
            uint16_t half[BLOCK];
            SET(draw_f32)(&s, row_key, at / BLOCK, (float)law->centre, unit, bits);
            for (unsigned i = 0; i < BLOCK; i++) half[i] = LITTLE16(BF16_OF(bits[i]));
            size_t n = cols - at < BLOCK ? (size_t)(cols - at) : BLOCK;
            memcpy(out, half, n * 2);
            out += n * 2;
        }
    }
}

TARGET static void SET(f32)(uint64_t key, uint64_t first, uint64_t rows, uint64_t cols, const mpk_synth_law *law,
                            uint8_t *out)
{
    for (uint64_t row = first; row < first + rows; row++) {
        uint64_t row_key = mpk_synth_nth(key, row);
        float unit = (float)row_unit(row_key, law);
        SET(stream) s;
        SET(stream_start)(&s, row_key);
        for (uint64_t at = 0; at < cols; at += BLOCK) {
            uint32_t bits[BLOCK];
            SET(draw_f32)(&s, row_key, at / BLOCK, (float)law->centre, unit, bits);
            for (unsigned i = 0; i < BLOCK; i++) bits[i] = LITTLE32(bits[i]);
            size_t n = cols - at < BLOCK ? (size_t)(cols - at) : BLOCK;
            memcpy(out, bits, n * 4);
            out += n * 4;
        }
    }
}

#undef PARTS
#undef SET
#undef TARGET
#undef VECTOR_BYTES
