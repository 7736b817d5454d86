/* Exhaustive damage in memory: every byte, every length, with and without hashes made right again. */
#include "sample.h"

#include "repair.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t masks[] = {0x01, 0x80, 0xff};

typedef struct attack {
    sample s;
    mpk_buf index;
} attack;

static int setup(void **state)
{
    attack *a = calloc(1, sizeof *a);
    assert_non_null(a);
    sample_make(&a->s, SAMPLE_BIG);
    moepack_error e;
    assert_status(MOEPACK_OK, mpk_encode_index(&a->s.t, &a->index, &e), &e);
    *state = a;
    return 0;
}

static int teardown(void **state)
{
    attack *a = (attack *)*state;
    free(a->index.data);
    sample_free(&a->s);
    free(a);
    return 0;
}

/* A copy whose size is exact, so that a sanitizer sees the first byte read beyond it. */
static moepack_status open_copy(const uint8_t *data, size_t size, moepack_error *e)
{
    uint8_t *copy = malloc(size + (size == 0));
    assert_non_null(copy);
    memcpy(copy, data, size);
    moepack_index *x = NULL;
    moepack_status status = moepack_index_open(copy, size, "index.mpk", &x, e);
    assert_true((status == MOEPACK_OK) == (x != NULL));
    if (status == MOEPACK_OK) sample_walk(x);
    moepack_index_close(x);
    free(copy);
    return status;
}

static void test_every_byte(void **state)
{
    attack *a = (attack *)*state;
    moepack_error e;
    uint8_t *bytes = a->index.data;
    for (size_t i = 0; i < a->index.size; ++i) {
        for (size_t m = 0; m < sizeof masks; ++m) {
            bytes[i] ^= masks[m];
            moepack_status status = open_copy(bytes, a->index.size, &e);
            bytes[i] ^= masks[m];
            assert_status(MOEPACK_E_CORRUPT, status, &e);
        }
    }
    assert_status(MOEPACK_OK, open_copy(bytes, a->index.size, &e), &e);
}

static void test_every_length(void **state)
{
    attack *a = (attack *)*state;
    moepack_error e;
    for (size_t size = 0; size < a->index.size; ++size)
        assert_status(MOEPACK_E_INCOMPLETE, open_copy(a->index.data, size, &e), &e);
    for (size_t more = 1; more < 70; ++more) {
        assert_non_null(mpk_buf_append(&a->index, NULL, more));
        assert_status(MOEPACK_E_CORRUPT, open_copy(a->index.data, a->index.size, &e), &e);
        a->index.size -= more;
    }
    /* Cut short and damaged as well: corrupt wins, as far as it can be seen. */
    for (size_t i = 0; i < 128; ++i) {
        a->index.data[i] ^= 1;
        assert_status(MOEPACK_E_CORRUPT, open_copy(a->index.data, 200, &e), &e);
        if (i < 8) assert_status(MOEPACK_E_CORRUPT, open_copy(a->index.data, i + 1, &e), &e);
        a->index.data[i] ^= 1;
    }
}

/* The verdicts of section 10 in their order, on headers whose hashes are right. */
static void test_header_fields(void **state)
{
    attack *a = (attack *)*state;
    static const struct {
        unsigned at, size;
        uint64_t value;
        moepack_status status;
    } cases[] = {
        {8, 2, 1, MOEPACK_E_UNSUPPORTED},
        {10, 2, 0, MOEPACK_E_UNSUPPORTED},
        {10, 2, 2, MOEPACK_E_UNSUPPORTED},
        {16, 8, 1, MOEPACK_E_UNSUPPORTED},
        {16, 8, UINT64_C(1) << 63, MOEPACK_E_UNSUPPORTED},
        {24, 8, 1, MOEPACK_OK},
        {24, 8, UINT64_MAX, MOEPACK_OK}, /* may-ignore bits */
        {12, 4, 0, MOEPACK_E_CORRUPT},
        {12, 4, 2, MOEPACK_E_CORRUPT},
        {12, 4, 33, MOEPACK_E_CORRUPT},
        {32, 4, 64, MOEPACK_E_CORRUPT},
        {32, 4, 129, MOEPACK_E_CORRUPT},
        {36, 4, 1, MOEPACK_E_CORRUPT},
        {48, 8, 1, MOEPACK_E_CORRUPT},
        {40, 8, 0, MOEPACK_E_CORRUPT},
        {40, 8, 64, MOEPACK_E_CORRUPT},
        {40, 8, 127, MOEPACK_E_CORRUPT},
        {40, 8, UINT64_MAX, MOEPACK_E_CORRUPT},
        {64, 8, 64, MOEPACK_E_CORRUPT},
        {64, 8, UINT64_MAX, MOEPACK_E_CORRUPT},
        {72, 8, 0, MOEPACK_E_CORRUPT},
        {72, 8, UINT64_MAX, MOEPACK_E_CORRUPT},
        {96, 8, 1, MOEPACK_E_CORRUPT},
        {112, 8, 1, MOEPACK_E_CORRUPT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        moepack_error e;
        uint8_t keep[128], *bytes = a->index.data;
        memcpy(keep, bytes, sizeof keep);
        for (unsigned k = 0; k < cases[i].size; ++k) bytes[cases[i].at + k] = (uint8_t)(cases[i].value >> 8 * k);
        repair_header(bytes, a->index.size);
        assert_status(cases[i].status, open_copy(bytes, a->index.size, &e), &e);
        memcpy(bytes, keep, sizeof keep);
    }
    /* An unknown version wins over a length that does not fit, a must-understand bit over a reserved field. */
    uint8_t keep[128];
    moepack_error e;
    memcpy(keep, a->index.data, sizeof keep);
    mpk_store16(a->index.data + 8, 3);
    repair_header(a->index.data, a->index.size);
    assert_status(MOEPACK_E_UNSUPPORTED, open_copy(a->index.data, 100, &e), &e);
    memcpy(a->index.data, keep, sizeof keep);
    mpk_store64(a->index.data + 16, 4);
    mpk_store32(a->index.data + 36, 4);
    repair_header(a->index.data, a->index.size);
    assert_status(MOEPACK_E_UNSUPPORTED, open_copy(a->index.data, a->index.size, &e), &e);
    memcpy(a->index.data, keep, sizeof keep);
}

/* Every byte behind the header changed, hashes made right: rejected, or an index on which every getter stays in range.
 */
static void test_every_byte_with_right_hashes(void **state)
{
    attack *a = (attack *)*state;
    size_t accepted = 0, rejected = 0;
    uint8_t *bytes = a->index.data;
    for (size_t i = 128; i < a->index.size; ++i) {
        for (size_t m = 0; m < sizeof masks; ++m) {
            moepack_error e;
            bytes[i] ^= masks[m];
            repair_index(bytes, a->index.size);
            moepack_status status = open_copy(bytes, a->index.size, &e);
            bytes[i] ^= masks[m];
            assert_true(status == MOEPACK_OK || status == MOEPACK_E_CORRUPT || status == MOEPACK_E_UNSUPPORTED);
            if (status == MOEPACK_OK)
                ++accepted;
            else
                ++rejected;
        }
    }
    repair_index(bytes, a->index.size);
    moepack_error e;
    assert_status(MOEPACK_OK, open_copy(bytes, a->index.size, &e), &e);
    print_message("with right hashes: %zu changes rejected, %zu accepted (hashes, texts, policy values)\n", rejected,
                  accepted);
    assert_true(rejected > accepted);
}

/* Several random changes at once, and random lengths with lengths and hashes made right. */
static void test_random_with_right_hashes(void **state)
{
    attack *a = (attack *)*state;
    uint64_t seed = 7;
    uint8_t *copy = malloc(a->index.size + 200);
    assert_non_null(copy);
    for (int round = 0; round < 20000; ++round) {
        size_t size = a->index.size;
        if (sample_random(&seed) % 4 == 0) size = (size_t)(sample_random(&seed) % (a->index.size + 200));
        memset(copy, 0, a->index.size + 200);
        memcpy(copy, a->index.data, size < a->index.size ? size : a->index.size);
        for (uint64_t n = sample_random(&seed) % 4 + 1; n > 0 && size > 128; --n) {
            size_t at = 128 + (size_t)(sample_random(&seed) % (size - 128));
            static const uint8_t favourites[] = {0, 1, 2, 3, 0x7f, 0x80, 0xfe, 0xff};
            copy[at] = sample_random(&seed) % 2 ? favourites[sample_random(&seed) % 8] : (uint8_t)sample_random(&seed);
        }
        repair_index_fully(copy, size);
        moepack_error e;
        moepack_status status = open_copy(copy, size, &e);
        assert_true(status == MOEPACK_OK || status == MOEPACK_E_CORRUPT || status == MOEPACK_E_UNSUPPORTED ||
                    (status == MOEPACK_E_INCOMPLETE && size < 128));
    }
    free(copy);
}

/* ---- shard headers ---- */

static void test_shard_header(void **state)
{
    attack *a = (attack *)*state;
    for (uint32_t shard = 0; shard < 3; ++shard) {
        uint8_t page[4096];
        mpk_shard_header h;
        moepack_error e;
        const moepack_shard *entry = &a->s.t.shards[shard];
        mpk_encode_shard_header(&a->s.t, shard, page);
        for (size_t i = 128; i < sizeof page; ++i) assert_int_equal(page[i], 0);
        assert_status(MOEPACK_OK, mpk_decode_shard_header(page, 128, entry->file_length, &h, &e), &e);
        assert_true(h.kind == (uint32_t)entry->kind && h.number == shard && h.file_length == entry->file_length);
        assert_true(h.tail_offset == entry->tail_offset && h.tail_length == entry->tail_length);
        assert_true(h.root.low == entry->root.low && h.plan_id.high == a->s.t.info.plan_id.high);
        for (size_t i = 0; i < 128; ++i) {
            for (size_t m = 0; m < sizeof masks; ++m) {
                page[i] ^= masks[m];
                moepack_status status = mpk_decode_shard_header(page, 128, entry->file_length, &h, &e);
                assert_status(MOEPACK_E_CORRUPT, status, &e);
                repair_header(page, 128);
                status = mpk_decode_shard_header(page, 128, entry->file_length, &h, &e);
                bool free_field = (i >= 24 && i < 32) || (i >= 64 && i < 84) || (i >= 104 && i < 120);
                bool hash = (i >= 56 && i < 64) || i >= 120; /* the repair undid the change */
                bool kind = i == 12 && masks[m] == 1;        /* 2 and 3 are both kinds of shard */
                if (free_field || hash || kind)
                    assert_status(MOEPACK_OK, status, &e);
                else
                    assert_int_not_equal(status, MOEPACK_OK);
                mpk_encode_shard_header(&a->s.t, shard, page);
            }
        }
        for (uint64_t length = 0; length < entry->file_length; length += length < 300 ? 1 : 4093)
            assert_status(MOEPACK_E_INCOMPLETE,
                          mpk_decode_shard_header(page, length < 128 ? (size_t)length : 128, length, &h, &e), &e);
        assert_status(MOEPACK_E_CORRUPT, mpk_decode_shard_header(page, 128, entry->file_length + 1, &h, &e), &e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_length, setup, teardown),
        cmocka_unit_test_setup_teardown(test_header_fields, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_byte_with_right_hashes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_random_with_right_hashes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shard_header, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
