/* Tails of shards and plan ids: read back field by field, from a builder and from an opened index. */
#include "sample.h"

#include "hash.h"
#include "tableset.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t expert_ids[] = {MPK_T_SECTIONS, MPK_T_PARTS, MPK_T_TAIL_RECORDS};
static const uint32_t trunk_ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 21};

static void check_section_entry(const mpk_tables_view *tail, uint64_t i, const moepack_section *want,
                                uint32_t first_part)
{
    const uint8_t *e = tail->t[MPK_T_SECTIONS].data + 40 * i;
    assert_true(mpk_load64(e) == want->offset && mpk_load64(e + 8) == want->stored_length);
    assert_true(mpk_load64(e + 16) == want->xxh3_stored && mpk_load64(e + 24) == want->xxh3_canonical);
    assert_int_equal(mpk_load32(e + 32), first_part);
    assert_int_equal(e[36], want->codec);
}

static void test_expert_tail(void **state)
{
    (void)state;
    sample s;
    moepack_error e;
    sample_make(&s, 0);
    for (uint32_t shard = 1; shard < 3; ++shard) {
        mpk_buf tail = {0};
        mpk_tables_view view;
        uint64_t length, sections = 0, records = 0;
        assert_status(MOEPACK_OK, mpk_encode_expert_tail(&s.t, shard, &tail, &e), &e);
        assert_status(MOEPACK_OK, mpk_tail_length(&s.t, shard, &length, &e), &e);
        assert_int_equal(tail.size, length);
        assert_status(MOEPACK_OK, mpk_tableset_decode(tail.data, tail.size, 0, expert_ids, 3, &view, &e), &e);
        for (uint32_t i = 0; i < 6; ++i) {
            const moepack_record *r = &s.t.records[i];
            if (r->shard != shard) continue;
            const uint8_t *got = view.t[MPK_T_TAIL_RECORDS].data + 40 * records++;
            assert_int_equal(mpk_load32(got), i / 3);
            assert_int_equal(mpk_load32(got + 4), i % 3);
            assert_int_equal(mpk_load32(got + 8), r->schema);
            assert_int_equal(mpk_load32(got + 12), 0);
            assert_true(mpk_load64(got + 16) == r->offset && mpk_load64(got + 24) == r->length);
            assert_true(mpk_load64(got + 32) == sections);
            for (uint32_t k = 0; k < s.t.schemas[r->schema].count; ++k)
                check_section_entry(&view, sections++, &s.t.sections[r->first_section + k], MOEPACK_NO_PARTS);
        }
        assert_int_equal(view.t[MPK_T_TAIL_RECORDS].count, records);
        assert_int_equal(view.t[MPK_T_SECTIONS].count, sections);
        assert_true(records > 0);
        free(tail.data);
    }
    mpk_buf none = {0};
    assert_status(MOEPACK_E_USAGE, mpk_encode_expert_tail(&s.t, 0, &none, &e), &e);
    assert_status(MOEPACK_E_USAGE, mpk_encode_trunk_tail(&s.t, 1, &none, &e), &e);
    assert_status(MOEPACK_E_USAGE, mpk_encode_trunk_tail(&s.t, 9, &none, &e), &e);
    sample_free(&s);
}

static void test_trunk_tail(void **state)
{
    (void)state;
    sample s;
    moepack_error e;
    sample_make(&s, SAMPLE_BIG);
    mpk_buf tail = {0}, index = {0};
    mpk_tables_view view, whole;
    uint64_t length;
    assert_status(MOEPACK_OK, mpk_encode_trunk_tail(&s.t, 0, &tail, &e), &e);
    assert_status(MOEPACK_OK, mpk_tail_length(&s.t, 0, &length, &e), &e);
    assert_int_equal(tail.size, length);
    assert_status(MOEPACK_OK, mpk_tableset_decode(tail.data, tail.size, 0, trunk_ids, 16, &view, &e), &e);
    assert_status(MOEPACK_OK, mpk_encode_index_tables(&s.t, &index, &e), &e);
    assert_status(MOEPACK_OK, mpk_tableset_decode(index.data, index.size, 0, mpk_index_table_ids, 16, &whole, &e), &e);
    /* tables that are copies */
    static const uint32_t same[] = {3, 4, 5, 6, 7, 8, 9, 13, 15, 16};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; ++i) {
        assert_int_equal(view.t[same[i]].count, whole.t[same[i]].count);
        assert_memory_equal(view.t[same[i]].data, whole.t[same[i]].data,
                            whole.t[same[i]].count * mpk_table_entry(same[i]));
    }
    const uint8_t *info = view.t[MPK_T_INFO].data, *whole_info = whole.t[MPK_T_INFO].data;
    for (int i = 0; i < 16; ++i) assert_int_equal(info[i], 0);
    assert_memory_equal(info + 16, whole_info + 16, 112);
    for (uint64_t i = 0; i < 3; ++i) {
        const uint8_t *got = view.t[MPK_T_SHARDS].data + 64 * i, *want = whole.t[MPK_T_SHARDS].data + 64 * i;
        assert_memory_equal(got, want, 16);
        for (int k = 16; k < 56; ++k) assert_int_equal(got[k], 0);
    }
    for (uint64_t i = 0; i < s.t.file_count; ++i) {
        const uint8_t *got = view.t[MPK_T_FILES].data + 64 * i, *want = whole.t[MPK_T_FILES].data + 64 * i;
        assert_memory_equal(got, want, 32);
        for (int k = 32; k < 48; ++k) assert_int_equal(got[k], 0);
    }
    /* sections in storage order, each with its owner */
    uint64_t n = s.t.tensor_count + s.t.file_count;
    assert_int_equal(view.t[MPK_T_SECTIONS].count, n);
    assert_int_equal(view.t[MPK_T_PARTS].count, 3);
    for (uint64_t i = 0; i < n; ++i) {
        const uint8_t *owner = view.t[MPK_T_TAIL_OWNERS].data + 8 * i;
        uint32_t what = mpk_load32(owner), entry = mpk_load32(owner + 4);
        uint64_t section = what == 0 ? s.t.tensors[entry].section : s.t.files[entry].section;
        assert_true(section == s.t.section_count - n + i);
        bool big = what == 0 && entry == 8;
        check_section_entry(&view, i, &s.t.sections[section], big ? 0 : MOEPACK_NO_PARTS);
    }
    free(tail.data);
    free(index.data);
    sample_free(&s);
}

static void test_from_index(void **state)
{
    (void)state;
    sample s;
    moepack_error e;
    sample_make(&s, SAMPLE_BIG);
    mpk_buf bytes = {0};
    moepack_index *x = sample_open(&s, &bytes);
    for (uint32_t shard = 0; shard < 3; ++shard) {
        mpk_buf a = {0}, b = {0};
        assert_status(MOEPACK_OK, mpk_index_tail(x, shard, &a, &e), &e);
        assert_status(MOEPACK_OK,
                      shard == 0 ? mpk_encode_trunk_tail(&s.t, 0, &b, &e) : mpk_encode_expert_tail(&s.t, shard, &b, &e),
                      &e);
        assert_int_equal(a.size, b.size);
        assert_memory_equal(a.data, b.data, a.size);
        moepack_shard entry;
        moepack_index_shard(x, shard, &entry);
        assert_true(mpk_hash128_equal(moepack_hash128_of(a.data, a.size), entry.root));
        free(a.data);
        free(b.data);
    }
    mpk_buf none = {0};
    assert_status(MOEPACK_E_USAGE, mpk_index_tail(x, 3, &none, &e), &e);
    moepack_hash128 id;
    assert_status(MOEPACK_OK, mpk_index_plan_id(x, &id, &e), &e);
    assert_true(mpk_hash128_equal(id, s.t.info.plan_id));
    moepack_index_close(x);
    free(bytes.data);
    sample_free(&s);
}

/* The plan id knows shapes, names and places of the plan, and nothing of content, lengths of tails or hashes. */
static void test_plan_id(void **state)
{
    (void)state;
    sample s;
    sample_make(&s, 0);
    moepack_hash128 first = s.t.info.plan_id, id;
    s.t.sections[0].xxh3_stored ^= 1;
    s.t.sections[0].offset += 8;
    s.t.records[0].offset += 4096;
    s.t.shards[0].file_length += 1;
    s.t.shards[1].root.low ^= 1;
    s.t.shards[1].tail_offset += 4096;
    s.t.files[1].hash.high ^= 1;
    s.t.files[1].section += 1;
    s.t.tensors[0].section += 1;
    s.t.info.canonical_root.low ^= 1;
    assert_int_equal(mpk_plan_id(&s.t, &id, NULL), MOEPACK_OK);
    assert_true(mpk_hash128_equal(id, first));
    s.t.files[1].length += 1;
    assert_int_equal(mpk_plan_id(&s.t, &id, NULL), MOEPACK_OK);
    assert_false(mpk_hash128_equal(id, first));
    s.t.files[1].length -= 1;
    s.t.policies[0].policy.top_k = 1;
    assert_int_equal(mpk_plan_id(&s.t, &id, NULL), MOEPACK_OK);
    assert_false(mpk_hash128_equal(id, first));
    sample_free(&s);
}

/* Byte for byte as spec 5.4 has it. */
static void test_canonical_item(void **state)
{
    (void)state;
    static const uint64_t dims[] = {3, 5};
    static const char expected[] = "\x04\0\0\0"
                                   "a.bc"
                                   "\x07\0\0\0"
                                   "\x02\0\0\0"
                                   "\x03\0\0\0\0\0\0\0"
                                   "\x05\0\0\0\0\0\0\0"
                                   "\xff\xff\xff\xff\xff\xff\xff\xff"
                                   "\x88\x77\x66\x55\x44\x33\x22\x11";
    mpk_buf out = {0};
    assert_int_equal(mpk_canonical_item(&out, "a.bc", 4, MOEPACK_DTYPE_BF16, dims, 2, UINT64_MAX,
                                        UINT64_C(0x1122334455667788), NULL),
                     MOEPACK_OK);
    assert_int_equal(out.size, sizeof expected - 1);
    assert_memory_equal(out.data, expected, out.size);
    assert_int_equal(mpk_canonical_item(&out, "", 0, MOEPACK_DTYPE_U8, NULL, 0, 7, 0, NULL), MOEPACK_OK);
    assert_int_equal(out.size, sizeof expected - 1 + 4 + 8 + 16);
    free(out.data);
}

/* Directory rules of 4.1, one broken at a time. */
static void test_directory(void **state)
{
    (void)state;
    sample s;
    moepack_error e;
    sample_make(&s, 0);
    mpk_buf tail = {0};
    mpk_tables_view view;
    assert_status(MOEPACK_OK, mpk_encode_expert_tail(&s.t, 1, &tail, &e), &e);
    static const struct {
        size_t at;
        uint8_t value;
    } cases[] = {
        {0, 2},     {0, 4},  {4, 1},    {8, 12},    {8, 99}, {12, 41}, {12, 0},  {16, 1},  {16, 200},
        {23, 0xff}, {24, 0}, {24, 192}, {31, 0x80}, {32, 1}, {39, 1},  {40, 13}, {104, 1}, {127, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        uint8_t keep = tail.data[cases[i].at];
        assert_int_not_equal(keep, cases[i].value);
        tail.data[cases[i].at] = cases[i].value;
        moepack_status status = mpk_tableset_decode(tail.data, tail.size, 4096, expert_ids, 3, &view, &e);
        assert_status(MOEPACK_E_CORRUPT, status, &e);
        assert_true(e.offset >= 4096 && (uint64_t)e.offset <= 4096 + tail.size);
        tail.data[cases[i].at] = keep;
    }
    for (size_t size = 0; size < tail.size; ++size) {
        uint8_t *exact = malloc(size + 1);
        assert_non_null(exact);
        memcpy(exact, tail.data, size);
        assert_status(MOEPACK_E_CORRUPT, mpk_tableset_decode(exact, size, 0, expert_ids, 3, &view, &e), &e);
        free(exact);
    }
    assert_non_null(mpk_buf_append(&tail, NULL, 1));
    assert_status(MOEPACK_E_CORRUPT, mpk_tableset_decode(tail.data, tail.size, 0, expert_ids, 3, &view, &e), &e);
    free(tail.data);
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expert_tail), cmocka_unit_test(test_trunk_tail),     cmocka_unit_test(test_from_index),
        cmocka_unit_test(test_plan_id),     cmocka_unit_test(test_canonical_item), cmocka_unit_test(test_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
