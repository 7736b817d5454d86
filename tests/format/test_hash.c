/* Every implementation of the hash function that this machine can run, against the installed library: one-shot and in
 * pieces, 64 and 128 bits, at every alignment. The library is called directly, not through the tables. */
#include "sample.h"

#include "hash.h"
#include "hash_impl.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Several stripes and blocks of XXH3: a block is 16 stripes of 64 bytes, and the state buffers 256 bytes. */
#define LONGEST ((size_t)70000)

static uint8_t *filled(size_t size)
{
    uint8_t *bytes = malloc(size); /* exactly as long: a read past the end is seen by AddressSanitizer */
    uint64_t x = UINT64_C(0x9e3779b97f4a7c15);
    assert_non_null(bytes);
    for (size_t i = 0; i < size; ++i) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (uint8_t)(x >> 56);
    }
    return bytes;
}

static bool same128(moepack_hash128 hash, XXH128_hash_t expected)
{
    return hash.low == expected.low64 && hash.high == expected.high64;
}

static void check_pieces(const mpk_hash_impl *impl, void *state, const uint8_t *bytes, size_t size, size_t step)
{
    for (unsigned bits = 64; bits <= 128; bits += 64) {
        impl->reset(state, bits);
        for (size_t at = 0; at < size; at += step)
            impl->add(state, bits, bytes + at, size - at < step ? size - at : step);
        if (bits == 64)
            assert_true(impl->digest64(state) == XXH3_64bits(bytes, size));
        else
            assert_true(same128(impl->digest128(state), XXH3_128bits(bytes, size)));
    }
}

static void check_whole(const mpk_hash_impl *impl, const uint8_t *bytes, size_t size)
{
    assert_true(impl->hash64(bytes, size) == XXH3_64bits(bytes, size));
    assert_true(same128(impl->hash128(bytes, size), XXH3_128bits(bytes, size)));
}

static void test_library_is_last(void **state)
{
    (void)state;
    size_t count = 0;
    while (mpk_hash_usable(count) != NULL) {
        print_message("usable: %s\n", mpk_hash_usable(count)->name);
        ++count;
    }
    assert_true(count >= 1);
    assert_ptr_equal(mpk_hash_usable(count - 1), &mpk_hash_library);
    assert_null(mpk_hash_usable(count + 5));
}

#if defined(__x86_64__)
/* A machine with the instructions must not fall back in silence. The compiler's own check also asks whether the system
 * saves the AVX registers. */
static void test_wide_ones_are_used(void **state)
{
    (void)state;
    bool avx2 = false, avx512 = false;
    for (size_t i = 0; mpk_hash_usable(i) != NULL; ++i) {
        avx2 |= mpk_hash_usable(i) == &mpk_hash_avx2;
        avx512 |= mpk_hash_usable(i) == &mpk_hash_avx512;
    }
    __builtin_cpu_init();
    assert_int_equal(avx2, __builtin_cpu_supports("avx2") != 0);
    assert_int_equal(avx512, __builtin_cpu_supports("avx512f") != 0);
}
#endif

static void test_every_short_length(void **state)
{
    (void)state;
    for (size_t i = 0; mpk_hash_usable(i) != NULL; ++i) {
        const mpk_hash_impl *impl = mpk_hash_usable(i);
        void *stream = impl->create();
        assert_non_null(stream);
        for (size_t size = 0; size <= 1100; ++size) {
            uint8_t *bytes = filled(size > 0 ? size : 1);
            check_whole(impl, bytes, size);
            check_pieces(impl, stream, bytes, size, 1 + size / 3);
            if (size % 41 == 0) check_pieces(impl, stream, bytes, size, 1);
            free(bytes);
        }
        impl->release(stream);
    }
}

/* 240 is the longest input of the short path, 256 the state's buffer, 1024 a block, 64 a stripe. */
static void test_boundaries_at_every_alignment(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,   1,   16,  17,   128,  129,  240,  241,  255,
                                   256, 257, 512, 1023, 1024, 1025, 2048, 4097, 65536};
    uint8_t *bytes = filled(LONGEST);
    for (size_t i = 0; mpk_hash_usable(i) != NULL; ++i) {
        const mpk_hash_impl *impl = mpk_hash_usable(i);
        void *stream = impl->create();
        assert_non_null(stream);
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; ++k) {
            for (size_t at = 0; at < 65; ++at) check_whole(impl, bytes + at, sizes[k]);
            for (size_t at = 0; at < 65; at += 13) {
                check_pieces(impl, stream, bytes + at, sizes[k], 63);
                check_pieces(impl, stream, bytes + at, sizes[k], 257);
                check_pieces(impl, stream, bytes + at, sizes[k], 4099);
            }
        }
        impl->release(stream);
    }
    free(bytes);
}

/* The public functions and the hasher go through the chosen one. */
static void test_chosen_one(void **state)
{
    (void)state;
    uint8_t *bytes = filled(LONGEST);
    for (size_t size = 0; size <= LONGEST; size += size < 1100 ? 1 : 6890) {
        assert_true(moepack_hash64(bytes, size) == XXH3_64bits(bytes, size));
        assert_true(same128(moepack_hash128_of(bytes, size), XXH3_128bits(bytes, size)));
    }
    for (unsigned bits = 64; bits <= 128; bits += 64) {
        mpk_hasher *hasher = mpk_hasher_new(bits);
        assert_non_null(hasher);
        for (unsigned again = 0; again < 2; ++again) {
            mpk_hasher_reset(hasher);
            mpk_hasher_add(hasher, bytes, 100);
            mpk_hasher_add(hasher, bytes + 100, 0);
            mpk_hasher_add(hasher, bytes + 100, LONGEST - 100);
            if (bits == 64)
                assert_true(mpk_hasher_hash64(hasher) == XXH3_64bits(bytes, LONGEST));
            else
                assert_true(same128(mpk_hasher_hash128(hasher), XXH3_128bits(bytes, LONGEST)));
        }
        mpk_hasher_free(hasher);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_library_is_last),
#if defined(__x86_64__)
        cmocka_unit_test(test_wide_ones_are_used),
#endif
        cmocka_unit_test(test_every_short_length),
        cmocka_unit_test(test_boundaries_at_every_alignment),
        cmocka_unit_test(test_chosen_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
