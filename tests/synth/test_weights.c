/* Random weights: the same bytes everywhere, the statistics that were promised, and a quantiser that does what the OCP
 * Microscaling specification says. */
#include "moepack/format.h"
#include "rng.h"
#include "weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const mpk_synth_law plain = {.centre = 0.0, .std = 0.02, .spread = 0.35};

static void assert_hash(const void *data, size_t size, const char *expected)
{
    char text[33];
    moepack_hash128_text(moepack_hash128_of(data, size), text);
    assert_string_equal(text, expected);
}

static void *buffer(size_t size)
{
    void *p = malloc(size);
    assert_non_null(p);
    return p;
}

/* ------------------------------------------------------------------------------------------------- determinism */

/* SplitMix64 with seed 1234567: the first values of the published reference implementation. */
static void splitmix_is_the_published_one(void **state)
{
    (void)state;
    static const uint64_t expected[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                        UINT64_C(9817491932198370423)};
    for (unsigned i = 0; i < 3; i++) assert_int_equal(mpk_synth_nth(1234567, i), expected[i]);
}

static void golden_bytes(void **state)
{
    (void)state;
    enum {
        ROWS = 40,
        COLS = 352
    };
    uint8_t *packed = buffer(ROWS * COLS / 2), *scale = buffer(ROWS * COLS / 32), *half = buffer(ROWS * 100 * 2),
            *full = buffer(ROWS * 7 * 4);
    for (size_t i = 0; mpk_synth_kernels_get(i) != NULL; i++) {
        const mpk_synth_kernels *k = mpk_synth_kernels_get(i);
        print_message("kernels: %s\n", k->name);
        k->mxfp4(42, 0, ROWS, COLS, &plain, packed, scale);
        k->bf16(43, 0, ROWS, 100, &plain, half); /* 100 columns: the last block is cut */
        k->f32(44, 0, ROWS, 7, &plain, full);
        assert_hash(packed, ROWS * COLS / 2, "dd7cce6ed075e8228a5ee94b7520d46d");
        assert_hash(scale, ROWS * COLS / 32, "39b8a9bbc7a677f1ae08f8fb177dd6cf");
        assert_hash(half, ROWS * 100 * 2, "d4be283e8445f2db35a54a6364030f98");
        assert_hash(full, ROWS * 7 * 4, "e0f520ae4aef0faed636bfd490e7d9d4");
    }
    free(packed);
    free(scale);
    free(half);
    free(full);
}

static void rows_do_not_depend_on_each_other(void **state)
{
    (void)state;
    enum {
        ROWS = 20,
        COLS = 96,
        FIRST = 7,
        SOME = 5
    };
    uint8_t packed[ROWS * COLS / 2], scale[ROWS * COLS / 32], some_packed[SOME * COLS / 2],
        some_scale[SOME * COLS / 32];
    uint8_t half[ROWS * 50 * 2], some_half[SOME * 50 * 2];
    const mpk_synth_kernels *k = mpk_synth_kernels_get(0);
    k->mxfp4(5, 0, ROWS, COLS, &plain, packed, scale);
    k->mxfp4(5, FIRST, SOME, COLS, &plain, some_packed, some_scale);
    assert_memory_equal(some_packed, packed + FIRST * COLS / 2, sizeof some_packed);
    assert_memory_equal(some_scale, scale + FIRST * COLS / 32, sizeof some_scale);
    k->bf16(5, 0, ROWS, 50, &plain, half);
    k->bf16(5, FIRST, SOME, 50, &plain, some_half);
    assert_memory_equal(some_half, half + FIRST * 50 * 2, sizeof some_half);
}

static void keys_differ(void **state)
{
    (void)state;
    assert_int_not_equal(mpk_synth_key(1, "a"), mpk_synth_key(2, "a"));
    assert_int_not_equal(mpk_synth_key(1, "a"), mpk_synth_key(1, "b"));
    assert_int_not_equal(mpk_synth_key(1, "ab"), mpk_synth_key(1, "ba"));
    assert_int_not_equal(mpk_synth_key(0, ""), mpk_synth_key(0, "a"));
}

static void shuffle_is_a_permutation(void **state)
{
    (void)state;
    enum {
        COUNT = 896
    };
    uint32_t ids[COUNT], other[COUNT];
    bool seen[COUNT] = {false};
    unsigned in_place = 0;
    mpk_synth_shuffle(9, ids, COUNT);
    mpk_synth_shuffle(10, other, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        assert_true(ids[i] < COUNT && !seen[ids[i]]);
        seen[ids[i]] = true;
        in_place += ids[i] == i;
    }
    assert_true(in_place < 10); /* 1 is expected; 10 happen once in 10^7 seeds */
    assert_memory_not_equal(ids, other, sizeof ids);
}

/* ------------------------------------------------------------------------------------------------- quantiser */

static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/* OCP Microscaling Formats v1.0, section 6.3, word for word in double; every value here is exact in double. */
static uint8_t reference_block(const int16_t v[32], mpk_synth_unit unit, uint8_t packed[16])
{
    double value[32], largest = 0;
    memset(packed, 0, 16);
    for (unsigned c = 0; c < 32; c++) {
        value[c] = ldexp((double)v[c % 2 * 16 + c / 2] * unit.mantissa, unit.exponent);
        largest = fmax(largest, fabs(value[c]));
    }
    if (largest == 0) return 0;
    int exponent = (int)floor(log2(largest));
    if (ldexp(1.0, exponent) > largest) exponent--; /* log2 may round up to a whole number */
    exponent -= 2;
    for (unsigned c = 0; c < 32; c++) {
        double m = fabs(value[c]) / ldexp(1.0, exponent), best = 1e9;
        unsigned code = 0;
        for (unsigned i = 0; i < 8; i++) {
            double distance = fabs(m - e2m1[i]);
            if (distance < best || (distance == best && i % 2 == 0)) {
                best = distance;
                code = i;
            }
        }
        if (signbit(value[c]) && v[c % 2 * 16 + c / 2] != 0) code |= 8;
        packed[c / 2] |= (uint8_t)(code << c % 2 * 4);
    }
    return (uint8_t)(exponent + 127);
}

static void check_block(const int16_t v[32], mpk_synth_unit unit)
{
    uint8_t expected[16], packed[16];
    uint8_t scale = reference_block(v, unit, expected);
    for (size_t i = 0; mpk_synth_kernels_get(i) != NULL; i++) {
        memset(packed, 0xEE, sizeof packed);
        assert_int_equal(mpk_synth_kernels_get(i)->quantise(v, unit, packed), scale);
        assert_memory_equal(packed, expected, sizeof packed);
    }
}

static void quantiser_follows_the_specification(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 20000; n++) {
        int16_t v[32];
        mpk_synth_unit unit = {.mantissa = 32768 + (uint32_t)(mpk_synth_nth(n, 99) % 32768),
                               .exponent = (int)(mpk_synth_nth(n, 98) % 60) - 60};
        unsigned width = (unsigned)(mpk_synth_nth(n, 97) % 15); /* blocks of all sizes, from one level to 20000 */
        if (n % 3 == 0) unit.mantissa = n % 2 ? 32768 : 65535;  /* powers of two make exact ties */
        for (unsigned i = 0; i < 32; i++)
            v[i] = (int16_t)(((int32_t)(mpk_synth_nth(n, i) % 40001) - 20000) / (1 << width));
        check_block(v, unit);
    }
}

/* Every halfway point, its neighbours and the border of saturation, with both signs. */
static void quantiser_ties(void **state)
{
    (void)state;
    static const int16_t quarters[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 31};
    static const uint8_t codes[16] = {0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 6, 6, 6, 7, 7}; /* 31/4 saturates to 6 */
    mpk_synth_unit unit = {.mantissa = 32768, .exponent = -15};                        /* 1.0 */
    int16_t v[32];
    uint8_t packed[16];
    for (unsigned i = 0; i < 16; i++) {
        v[i] = (int16_t)(quarters[i] * 16);
        v[16 + i] = (int16_t)-v[i];
    }
    check_block(v, unit);
    assert_int_equal(mpk_synth_kernels_get(0)->quantise(v, unit, packed), 127 + 8 - 2); /* 31 x 4 = 496: 2^8 */
    for (unsigned i = 0; i < 16; i++) assert_int_equal(packed[i], codes[i] | (i == 0 ? 0 : (codes[i] | 8) << 4));
}

static void quantiser_of_nothing(void **state)
{
    (void)state;
    int16_t v[32] = {0};
    mpk_synth_unit unit = {.mantissa = 40000, .exponent = -20};
    check_block(v, unit);
    v[31] = -1;
    check_block(v, unit);
}

static void unit_is_cut_to_16_bits(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 1000; n++) {
        double value = ldexp(1.0 + (double)(mpk_synth_nth(3, n) >> 12) / 4503599627370496.0, (int)(n % 80) - 60);
        mpk_synth_unit unit = mpk_synth_unit_of(value);
        double back = ldexp(unit.mantissa, unit.exponent);
        assert_in_range(unit.mantissa, 32768, 65535);
        assert_true(back <= value && value - back < ldexp(value, -15));
    }
}

/* ------------------------------------------------------------------------------------------------- statistics */

static void bell_shape(void **state)
{
    (void)state;
    enum {
        ROWS = 200,
        COLS = 5000,
        COUNT = ROWS * COLS
    };
    static const mpk_synth_law one = {.centre = 0.0, .std = MPK_SYNTH_SIGMA, .spread = 0.0};
    uint8_t *bytes = buffer(COUNT * 4);
    mpk_synth_kernels_get(0)->f32(77, 0, ROWS, COLS, &one, bytes);
    double sum = 0, square = 0, fourth = 0;
    unsigned count = 0, far = 0, beyond = 0;
    for (size_t i = 0; i < COUNT; i++) {
        float value;
        memcpy(&value, bytes + 4 * i, sizeof value); /* written little-endian; this test runs on such machines */
        double x = (double)value / MPK_SYNTH_SIGMA;
        if (fabs(x) > 4.0) {
            far++; /* only outliers get there: without them |x| <= 2356 / 614 */
            continue;
        }
        beyond += fabs(x) > 2.0;
        sum += x;
        square += x * x;
        fourth += x * x * x * x;
        count++;
    }
    free(bytes);
    square /= count;
    assert_true(fabs(sum / count) < 0.005);
    assert_true(square > 0.98 && square < 1.02);
    double excess = fourth / count / (square * square) - 3;
    assert_true(excess > -0.15 && excess < 0.15);                  /* four bytes alone: -0.3 */
    assert_true(beyond > 0.040 * count && beyond < 0.051 * count); /* normal distribution: 0.0455 */
    assert_true(far > 0.0009 * COUNT && far < 0.0016 * COUNT);     /* 0.002 x P(8 |x| > 4) = 0.00123 */
}

static void mxfp4_statistics(void **state)
{
    (void)state;
    enum {
        ROWS = 512,
        COLS = 3584
    };
    static const mpk_synth_law law = {.centre = 0.0, .std = 1.5 / 59.87, .spread = 0.35};
    uint8_t *packed = buffer(ROWS * COLS / 2), *scale = buffer(ROWS * COLS / 32);
    double share[16] = {0}, entropy = 0, step = 1.0 / (ROWS * COLS);
    mpk_synth_kernels_get(0)->mxfp4(3, 0, ROWS, COLS, &law, packed, scale);
    for (size_t i = 0; i < ROWS * COLS / 2; i++) {
        share[packed[i] & 15] += step;
        share[packed[i] >> 4] += step;
    }
    for (unsigned c = 0; c < 16; c++) entropy -= share[c] * log2(share[c]);
    print_message("entropy %.4f bits, share of -0 %.4f, of +0 %.4f\n", entropy, share[8], share[0]);
    assert_true(entropy > 3.6 && entropy < 3.95); /* uniform codes: 4 */
    assert_true(share[8] > 0.03 && share[8] < 0.07);
    for (unsigned c = 1; c < 8; c++) assert_true(fabs(share[c] - share[c + 8]) < 0.002); /* symmetric */
    unsigned low = 255, high = 0;
    for (size_t i = 0; i < ROWS * COLS / 32; i++) {
        low = scale[i] < low ? scale[i] : low;
        high = scale[i] > high ? scale[i] : high;
    }
    print_message("scale bytes %u .. %u\n", low, high);
    /* A largest value of 2 deviations, 0.05 = 2^-4.3, means 127 - 5 - 2 = 120; rows spread over two octaves either
     * side, outliers add three. */
    assert_in_range(low, 115, 119);
    assert_in_range(high, 122, 127);
    free(packed);
    free(scale);
}

static void row_scales_spread(void **state)
{
    (void)state;
    double sum = 0, square = 0;
    enum {
        COUNT = 20000
    };
    for (unsigned i = 0; i < COUNT; i++) {
        double l = log(mpk_synth_factor(mpk_synth_nth(1, i), 0.35));
        sum += l;
        square += l * l;
    }
    double mean = sum / COUNT, deviation = sqrt(square / COUNT - mean * mean);
    assert_true(deviation > 0.37 && deviation < 0.46);
    assert_true(fabs(mpk_synth_factor(UINT64_C(0x8000800080008000), 0.35) - 1.0) < 1e-12);
}

static void bf16_rounds_to_even(void **state)
{
    (void)state;
    assert_int_equal(mpk_synth_bf16(1.0f), 0x3F80);
    assert_int_equal(mpk_synth_bf16(-2.0f), 0xC000);
    assert_int_equal(mpk_synth_bf16(1.00390625f), 0x3F80); /* halfway between 0x3F80 and 0x3F81 */
    assert_int_equal(mpk_synth_bf16(1.01171875f), 0x3F82); /* halfway between 0x3F81 and 0x3F82 */
    assert_int_equal(mpk_synth_bf16(1.00390637f), 0x3F81);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(splitmix_is_the_published_one),
                                       cmocka_unit_test(golden_bytes),
                                       cmocka_unit_test(rows_do_not_depend_on_each_other),
                                       cmocka_unit_test(keys_differ),
                                       cmocka_unit_test(shuffle_is_a_permutation),
                                       cmocka_unit_test(quantiser_follows_the_specification),
                                       cmocka_unit_test(quantiser_ties),
                                       cmocka_unit_test(quantiser_of_nothing),
                                       cmocka_unit_test(unit_is_cut_to_16_bits),
                                       cmocka_unit_test(bell_shape),
                                       cmocka_unit_test(mxfp4_statistics),
                                       cmocka_unit_test(row_scales_spread),
                                       cmocka_unit_test(bf16_rounds_to_even)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
