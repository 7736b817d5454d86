/* Errors, dtypes, names, hashes, codecs, strings, growing arrays: the small pieces. */
#include "sample.h"

#include "codec.h"
#include "error.h"
#include "hash.h"
#include "names.h"
#include "string_pool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_error_places(void **state)
{
    (void)state;
    moepack_error e;
    char line[1024], small[10];
    assert_int_equal(mpk_fail(&e, MOEPACK_E_CORRUPT, "bad %d", 7), MOEPACK_E_CORRUPT);
    assert_int_equal(e.expert, -1);
    assert_int_equal(e.offset, -1);
    assert_int_equal(moepack_error_format(&e, line, sizeof line), 5);
    assert_string_equal(line, "bad 7");
    mpk_error_file(&e, "a/b.mpk");
    mpk_error_file(&e, "later"); /* the first one stays */
    mpk_error_layer(&e, "mtp.0");
    mpk_error_expert(&e, 12);
    mpk_error_tensor(&e, "w1.weightXXX", 9);
    mpk_error_offset(&e, 4096);
    size_t n = moepack_error_format(&e, line, sizeof line);
    assert_string_equal(line, "a/b.mpk: layer mtp.0, expert 12, tensor w1.weight, offset 4096: bad 7");
    assert_int_equal(n, strlen(line));
    assert_int_equal(moepack_error_format(&e, small, sizeof small), n);
    assert_string_equal(small, "a/b.mpk: ");
    assert_int_equal(moepack_error_format(&e, NULL, 0), n);
}

static void test_error_text(void **state)
{
    (void)state;
    moepack_error e;
    char path[600];
    memset(path, 'x', sizeof path);
    memcpy(path + 590, "/end.mpk", 9);
    mpk_fail_errno(&e, MOEPACK_E_IO, ENOENT, "cannot open");
    assert_string_equal(e.message, "cannot open: No such file or directory");
    mpk_error_file(&e, path);
    assert_int_equal(strlen(e.file), sizeof e.file - 1);
    assert_string_equal(e.file + sizeof e.file - 1 - 8, "/end.mpk");
    mpk_error_tensor(&e, "a\nb\x1b[31m", -1);
    assert_string_equal(e.tensor, "a?b?[31m");
    /* Error texts are always UTF-8, whatever a name holds. */
    mpk_fail(&e, MOEPACK_E_USAGE, "\xc3\xa9 \xff \xe2\x82\xac \xe2\x82 \xed\xa0\x80 \xc0\x80 \xf0\x9f\x98\x80 \xf5");
    assert_string_equal(e.message, "\xc3\xa9 ? \xe2\x82\xac ?? ??? ?? \xf0\x9f\x98\x80 ?");
    mpk_fail_errno(&e, MOEPACK_E_IO, ENOENT, "cannot open");
    /* The message may be made of the error's own text. */
    mpk_fail(&e, MOEPACK_E_USAGE, "again: %s", e.message);
    assert_string_equal(e.message, "again: cannot open: No such file or directory");
    assert_string_equal(e.file, "");
    /* Everything takes NULL. */
    assert_int_equal(mpk_fail(NULL, MOEPACK_E_IO, "x"), MOEPACK_E_IO);
    mpk_error_file(NULL, "x");
    mpk_error_tensor(NULL, "x", -1);
}

static void test_status_names(void **state)
{
    (void)state;
    static const moepack_status all[] = {MOEPACK_OK,        MOEPACK_E_IO,         MOEPACK_E_USAGE,
                                         MOEPACK_E_CORRUPT, MOEPACK_E_INCOMPLETE, MOEPACK_E_UNSUPPORTED,
                                         MOEPACK_E_REFUSED, MOEPACK_E_INTERRUPTED};
    for (size_t i = 0; i < 8; ++i) {
        for (size_t k = 0; k < i; ++k)
            assert_string_not_equal(moepack_status_name(all[i]), moepack_status_name(all[k]));
    }
    assert_non_null(moepack_status_name((moepack_status)99));
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", MOEPACK_VERSION_MAJOR, MOEPACK_VERSION_MINOR,
             MOEPACK_VERSION_PATCH);
    assert_string_equal(moepack_version(), expected);
}

/* Numbers, names and widths as spec/container.md 4.3 lists them. */
static void test_dtypes(void **state)
{
    (void)state;
    static const char *const names[] = {"BOOL",        "U8",      "I8",      "I16",     "U16",     "F16",
                                        "BF16",        "I32",     "U32",     "F32",     "F64",     "I64",
                                        "U64",         "C64",     "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ",
                                        "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "F4"};
    static const unsigned bits[] = {8, 8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 64, 64, 64, 8, 8, 8, 8, 8, 6, 6, 4};
    for (unsigned i = 0; i < 22; ++i) {
        assert_string_equal(moepack_dtype_name((moepack_dtype)(i + 1)), names[i]);
        assert_int_equal(moepack_dtype_bits((moepack_dtype)(i + 1)), bits[i]);
        assert_int_equal(moepack_dtype_parse(names[i]), i + 1);
    }
    assert_int_equal(MOEPACK_DTYPE_COUNT, 23);
    static const int wrong[] = {0, 23, 1000};
    for (size_t i = 0; i < 3; ++i) {
        assert_null(moepack_dtype_name((moepack_dtype)wrong[i]));
        assert_int_equal(moepack_dtype_bits((moepack_dtype)wrong[i]), 0);
    }
    assert_int_equal(moepack_dtype_parse("bf16"), 0);
    assert_int_equal(moepack_dtype_parse(""), 0);
    assert_int_equal(moepack_dtype_parse(NULL), 0);
}

static void test_names(void **state)
{
    (void)state;
    char label[MOEPACK_LABEL_MAX], name[64];
    assert_string_equal(moepack_role_name(MOEPACK_ROLE_LATENT_DOWN), "latent_down");
    assert_string_equal(moepack_plane_name(MOEPACK_PLANE_GLOBAL_SCALE), "global_scale");
    assert_string_equal(moepack_encoding_name(MOEPACK_ENC_INT4_OFFSET), "INT4_OFFSET");
    for (int i = 0; i < 40; ++i) {
        assert_true((moepack_role_name((moepack_role)i) != NULL) == (i <= 3 || (i >= 16 && i <= 26)));
        assert_true((moepack_plane_name((moepack_plane)i) != NULL) == (i <= 7));
        assert_true((moepack_encoding_name((moepack_encoding)i) != NULL) == (i <= 9));
    }
    mpk_label(MOEPACK_STACK_MAIN, 12, label);
    assert_string_equal(label, "12");
    mpk_label(MOEPACK_STACK_ENCODER, 4294967295u, label);
    assert_string_equal(label, "encoder.4294967295");
    moepack_str prefix = {"a.b.", 4};
    static const struct {
        const char *pattern, *name;
        unsigned count;
    } cases[] = {
        {"experts.{expert}.w1", "a.b.experts.42.w1", 1},
        {"{expert}", "a.b.42", 1},
        {"experts.gate_up", "a.b.experts.gate_up", 0},
        {"{exp{expert}", "a.b.{exp42", 1},
        {"{expert", "a.b.{expert", 0},
        {"{expert}{expert}", "a.b.42{expert}", 2},
        {"", "a.b.", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        moepack_str pattern = {cases[i].pattern, (uint32_t)strlen(cases[i].pattern)};
        assert_int_equal(mpk_pattern_experts(pattern), cases[i].count);
        assert_int_equal(mpk_section_name(prefix, pattern, 42, name, sizeof name), strlen(cases[i].name));
        assert_string_equal(name, cases[i].name);
        for (size_t size = 0; size < strlen(cases[i].name) + 2; ++size) {
            char cut[40];
            memset(cut, '#', sizeof cut);
            assert_int_equal(mpk_section_name(prefix, pattern, 42, cut, size), strlen(cases[i].name));
            if (size > 0) assert_int_equal(strncmp(cut, cases[i].name, size - 1), 0);
            assert_int_equal(cut[size], '#');
        }
    }
}

static void test_hashes(void **state)
{
    (void)state;
    char text[33];
    assert_true(moepack_hash64("", 0) == MPK_HASH64_EMPTY);
    moepack_hash64_text(moepack_hash64("", 0), text);
    assert_string_equal(text, "2d06800538d394c2"); /* spec 5.1 */
    moepack_hash128_text(moepack_hash128_of("", 0), text);
    assert_string_equal(text, "99aa06d3014798d86001c324468d497f"); /* printf '' | xxhsum -H2 */
    uint8_t bytes[5000];
    uint64_t seed = 1;
    for (size_t i = 0; i < sizeof bytes; ++i) bytes[i] = (uint8_t)sample_random(&seed);
    for (unsigned bits = 64; bits <= 128; bits += 64) {
        mpk_hasher *hasher = mpk_hasher_new(bits);
        assert_non_null(hasher);
        for (size_t at = 0; at < sizeof bytes; at += 7) {
            mpk_hasher_add(hasher, bytes + at, sizeof bytes - at < 7 ? sizeof bytes - at : 7);
        }
        if (bits == 64)
            assert_true(mpk_hasher_hash64(hasher) == moepack_hash64(bytes, sizeof bytes));
        else
            assert_true(mpk_hash128_equal(mpk_hasher_hash128(hasher), moepack_hash128_of(bytes, sizeof bytes)));
        mpk_hasher_free(hasher);
    }
}

static void test_codec(void **state)
{
    (void)state;
    moepack_error e;
    uint8_t to[8] = {0};
    assert_string_equal(mpk_codec_name(0), "raw");
    assert_null(mpk_codec_name(1));
    assert_status(MOEPACK_OK, mpk_codec_decode(0, "abc", 3, to, 3, &e), &e);
    assert_memory_equal(to, "abc", 4);
    assert_status(MOEPACK_E_CORRUPT, mpk_codec_decode(0, "abcd", 4, to, 3, &e), &e);
    assert_status(MOEPACK_E_UNSUPPORTED, mpk_codec_decode(255, "abcd", 4, to, 4, &e), &e);
}

static void test_strings(void **state)
{
    (void)state;
    mpk_tables t = {0};
    moepack_str first, again, all[3000];
    assert_true(mpk_tables_string(&t, "alpha", 5, &first));
    for (uint32_t i = 0; i < 3000; ++i) {
        char text[300];
        int n = snprintf(text, sizeof text, "%u", i);
        memset(text + n, 'z', 100); /* several chunks */
        assert_true(mpk_tables_string(&t, text, (size_t)n + 100, &all[i]));
    }
    char long_text[70000];
    memset(long_text, 'q', sizeof long_text);
    assert_true(mpk_tables_string(&t, long_text, sizeof long_text, &again));
    assert_true(mpk_tables_string(&t, "alpha", 5, &again));
    assert_ptr_equal(first.data, again.data);
    assert_true(mpk_tables_string(&t, "", 0, &again));
    assert_int_equal(again.length, 0);
    uint64_t size = mpk_strings_size(t.strings);
    uint8_t *pool = malloc(size);
    assert_non_null(pool);
    mpk_strings_write(t.strings, pool);
    assert_memory_equal(pool, "alpha", 5);
    for (uint32_t i = 0; i < 3000; ++i) {
        uint32_t offset;
        assert_true(mpk_strings_find(t.strings, all[i], &offset));
        assert_memory_equal(pool + offset, all[i].data, all[i].length);
    }
    uint32_t offset;
    assert_false(mpk_strings_find(t.strings, (moepack_str){"beta", 4}, &offset));
    free(pool);
    mpk_tables_free(&t);
}

static void test_grow_and_buf(void **state)
{
    (void)state;
    uint32_t *numbers = NULL;
    for (size_t i = 0; i < 1000; ++i) {
        assert_true(mpk_grow(&numbers, i, sizeof *numbers));
        numbers[i] = (uint32_t)i;
    }
    for (size_t i = 0; i < 1000; ++i) assert_int_equal(numbers[i], i);
    free(numbers);
    mpk_buf buf = {0};
    for (int i = 0; i < 1000; ++i) assert_non_null(mpk_buf_append(&buf, "0123456789", 10));
    assert_non_null(mpk_buf_append(&buf, NULL, 5));
    assert_int_equal(buf.size, 10005);
    assert_memory_equal(buf.data + 9990, "0123456789\0\0\0\0\0", 15);
    assert_null(mpk_buf_append(&buf, NULL, SIZE_MAX));
    assert_int_equal(buf.size, 10005);
    free(buf.data);
}

static void test_bytes(void **state)
{
    (void)state;
    uint8_t b[9] = {0};
    mpk_store64(b + 1, UINT64_C(0x8877665544332211));
    assert_memory_equal(b + 1, "\x11\x22\x33\x44\x55\x66\x77\x88", 8);
    assert_true(mpk_load64(b + 1) == UINT64_C(0x8877665544332211));
    assert_true(mpk_load32(b + 1) == 0x44332211u);
    assert_true(mpk_load16(b + 1) == 0x2211u);
    uint64_t out;
    assert_false(mpk_add64(UINT64_MAX, 1, &out));
    assert_false(mpk_mul64(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
    assert_false(mpk_align64(UINT64_MAX - 5, 4096, &out));
    assert_true(mpk_align64(4097, 4096, &out) && out == 8192);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_places), cmocka_unit_test(test_error_text), cmocka_unit_test(test_status_names),
        cmocka_unit_test(test_dtypes),       cmocka_unit_test(test_names),      cmocka_unit_test(test_hashes),
        cmocka_unit_test(test_codec),        cmocka_unit_test(test_strings),    cmocka_unit_test(test_grow_and_buf),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
