/* Reading an index: what the getters say about the sample, and the verdict for each rule that one changed field can
 * break. */
#include "sample.h"

#include "header.h"
#include "repair.h"
#include "tableset.h"

#include <stdlib.h>
#include <string.h>

static void assert_str(moepack_str text, const char *expected)
{
    assert_int_equal(text.length, strlen(expected));
    assert_memory_equal(text.data, expected, text.length);
}

static void test_round_trip(void **state)
{
    (void)state;
    sample s;
    sample_make(&s, SAMPLE_BIG);
    mpk_buf bytes = {0};
    moepack_index *x = sample_open(&s, &bytes);
    sample_walk(x);
    moepack_info info;
    moepack_index_info(x, &info);
    assert_str(info.family, "sample_family");
    assert_true(info.subset && info.layout == MOEPACK_LAYOUT_PANEL && info.source_bytes == 12345);
    assert_true(info.plan_id.low == s.t.info.plan_id.low && info.plan_id.high == s.t.info.plan_id.high);
    assert_int_equal(moepack_index_file_length(x), bytes.size);
    assert_int_equal(moepack_index_shards(x), 3);
    assert_int_equal(moepack_index_blocks(x), 2);
    assert_int_equal(moepack_index_schemas(x), 2);
    assert_int_equal(moepack_index_tensors(x), 9);
    assert_int_equal(moepack_index_source_files(x), 6);
    assert_int_equal(moepack_index_records(x), 6);
    assert_int_equal(moepack_index_sections(x), s.t.section_count);
    for (size_t i = 0; i < s.t.record_count; ++i) {
        moepack_record r;
        moepack_index_record(x, i, &r);
        assert_memory_equal(&r, &s.t.records[i], sizeof r);
    }
    for (size_t i = 0; i < s.t.section_count; ++i) {
        moepack_section got;
        moepack_index_section(x, i, &got);
        const moepack_section *want = &s.t.sections[i];
        assert_true(got.offset == want->offset && got.stored_length == want->stored_length);
        assert_true(got.xxh3_stored == want->xxh3_stored && got.xxh3_canonical == want->xxh3_canonical);
        assert_true(got.first_part == want->first_part && got.codec == want->codec);
    }
    for (uint32_t i = 0; i < s.t.matrix_count; ++i) {
        moepack_matrix m;
        moepack_index_matrix(x, i, &m);
        assert_true(m.rows == s.t.matrices[i].rows && m.col_stride == s.t.matrices[i].col_stride);
        assert_true(m.base == s.t.matrices[i].base && m.encoding == s.t.matrices[i].encoding);
    }
    moepack_policy policy;
    uint32_t overrides;
    assert_int_equal(moepack_index_policy(x, 1, &policy, &overrides, NULL), MOEPACK_OK);
    assert_memory_equal(&policy, &s.t.policies[1].policy, sizeof policy);
    assert_int_equal(overrides, 2);
    assert_int_equal(moepack_index_policy(x, 2, &policy, NULL, NULL), MOEPACK_E_USAGE);
    moepack_index_close(x);
    moepack_index_close(NULL);
    free(bytes.data);
    sample_free(&s);
}

static void test_lookups(void **state)
{
    (void)state;
    sample s;
    sample_make(&s, 0);
    mpk_buf bytes = {0};
    moepack_index *x = sample_open(&s, &bytes);
    static const struct {
        const char *label;
        uint32_t block;
    } labels[] = {
        {"1", 0},
        {"mtp.0", 1},
        {"layers.1.moe.", 0},
        {"layers.1.moe", 0},
        {"layers.2.moe", 1},
        {"2", MOEPACK_NO_BLOCK},
        {"", MOEPACK_NO_BLOCK},
        {"layers.1.mo", MOEPACK_NO_BLOCK},
        {"01", MOEPACK_NO_BLOCK},
        {"main.1", MOEPACK_NO_BLOCK},
    };
    for (size_t i = 0; i < sizeof labels / sizeof labels[0]; ++i)
        assert_int_equal(moepack_index_find_block(x, labels[i].label), labels[i].block);
    assert_int_equal(moepack_index_find_block(x, NULL), MOEPACK_NO_BLOCK);
    assert_int_equal(moepack_index_find_tensor(x, "empty", 5), 0);
    assert_int_equal(moepack_index_find_tensor(x, "six", 3), 6); /* the first of two */
    assert_int_equal(moepack_index_find_tensor(x, "layers.2.moe.gate.weight", 24), 4);
    assert_int_equal(moepack_index_find_tensor(x, "si", 2), UINT32_MAX);
    assert_int_equal(moepack_index_find_tensor(x, "zzz", 3), UINT32_MAX);
    assert_int_equal(moepack_index_find_tensor(x, "", 0), UINT32_MAX);
    char name[100];
    moepack_index_section_name(x, 0, 1, 0, name, sizeof name);
    assert_string_equal(name, "layers.1.moe.experts.1.w1.weight_packed");
    moepack_index_section_name(x, 1, 2, 1, name, sizeof name);
    assert_string_equal(name, "layers.2.moe.experts.down");
    assert_int_equal(moepack_index_section_name(x, 1, 1, 0, name, sizeof name), 0); /* absent */
    assert_int_equal(moepack_index_section_name(x, 0, 3, 0, name, sizeof name), 0);
    assert_int_equal(moepack_index_section_name(x, 0, 0, 6, name, sizeof name), 0);
    assert_int_equal(moepack_index_section_name(x, 9, 0, 0, name, sizeof name), 0);
    /* Beyond a table every getter gives zeros. */
    moepack_record r;
    moepack_desc d;
    moepack_shard shard;
    moepack_index_record(x, 6, &r);
    moepack_index_desc(x, 1000, &d);
    moepack_index_shard(x, UINT32_MAX, &shard);
    assert_true(r.length == 0 && d.dtype == 0 && shard.name.length == 0);
    moepack_index_close(x);
    free(bytes.data);
    sample_free(&s);
}

static void test_empty_container(void **state)
{
    (void)state;
    mpk_tables t = {.info = {.page_size = 4096, .writer_revision = 1}};
    mpk_buf bytes = {0};
    moepack_index *x = NULL;
    moepack_error e;
    assert_status(MOEPACK_OK, mpk_encode_index(&t, &bytes, &e), &e);
    assert_status(MOEPACK_OK, moepack_index_open(bytes.data, bytes.size, "x", &x, &e), &e);
    sample_walk(x);
    assert_int_equal(moepack_index_blocks(x), 0);
    assert_int_equal(moepack_index_find_tensor(x, "a", 1), UINT32_MAX);
    moepack_index_close(x);
    free(bytes.data);
    mpk_tables_free(&t);
}

static void test_refuses_foreign_string(void **state)
{
    (void)state;
    mpk_tables t = {.info = {.page_size = 4096, .family = {"not interned", 12}}};
    mpk_buf bytes = {0};
    moepack_error e;
    assert_status(MOEPACK_E_USAGE, mpk_encode_index(&t, &bytes, &e), &e);
    free(bytes.data);
}

/* ---- one field changed, hashes made right again ---- */

typedef struct change {
    uint32_t table, entry, at, size;
    uint64_t value;
    moepack_status status;
} change;

#define C MOEPACK_E_CORRUPT
#define U MOEPACK_E_UNSUPPORTED
#define ABSENT 4 /* record of the expert that is not there */

static const change changes[] = {
    {MPK_T_INFO, 0, 32, 4, 0xffffffff, C},
    {MPK_T_INFO, 0, 44, 4, 100000, C},
    {MPK_T_INFO, 0, 48, 4, 8192, C},
    {MPK_T_INFO, 0, 56, 4, 2, C},
    {MPK_T_INFO, 0, 64, 4, 5, C},
    {MPK_T_INFO, 0, 88, 1, 1, C},
    {MPK_T_INFO, 0, 127, 1, 1, C},
    {MPK_T_INFO, 0, 52, 4, 7, MOEPACK_OK},
    {MPK_T_INFO, 0, 60, 4, 9, MOEPACK_OK},
    {MPK_T_INFO, 0, 64, 4, 0, C}, /* an expert is absent */

    {MPK_T_SHARDS, 0, 4, 4, 0, C},
    {MPK_T_SHARDS, 0, 0, 4, 0xfffffff0, C},
    {MPK_T_SHARDS, 1, 8, 4, 1, C},
    {MPK_T_SHARDS, 1, 8, 4, 2, C}, /* experts in a trunk shard */
    {MPK_T_SHARDS, 0, 8, 4, 3, C},
    {MPK_T_SHARDS, 0, 12, 4, 1, C},
    {MPK_T_SHARDS, 0, 56, 8, 1, C},
    {MPK_T_SHARDS, 0, 16, 8, 4096, C},
    {MPK_T_SHARDS, 0, 16, 8, UINT64_MAX, C},
    {MPK_T_SHARDS, 0, 24, 8, 0, C},
    {MPK_T_SHARDS, 0, 24, 8, 5000, C},
    {MPK_T_SHARDS, 0, 32, 8, 1, C},

    {MPK_T_BLOCKS, 0, 0, 4, 4, C},
    {MPK_T_BLOCKS, 0, 0, 4, 3, C},
    {MPK_T_BLOCKS, 0, 4, 4, 0, MOEPACK_OK},
    {MPK_T_BLOCKS, 1, 0, 4, 0, C}, /* main 1, main 0 */
    {MPK_T_BLOCKS, 0, 12, 4, 11, C},
    {MPK_T_BLOCKS, 0, 16, 4, 4, C},
    {MPK_T_BLOCKS, 0, 16, 4, 0, C},
    {MPK_T_BLOCKS, 0, 16, 4, 1, C},
    {MPK_T_BLOCKS, 0, 20, 4, 2, C},
    {MPK_T_BLOCKS, 1, 24, 8, 2, C},
    {MPK_T_BLOCKS, 1, 24, 8, UINT64_MAX, C},
    {MPK_T_BLOCKS, 1, 32, 4, 3, C},
    {MPK_T_BLOCKS, 1, 36, 4, 0xffffffff, C},
    {MPK_T_BLOCKS, 0, 40, 1, 1, C},
    {MPK_T_BLOCKS, 1, 36, 4, 0, MOEPACK_OK},

    {MPK_T_SCHEMAS, 0, 4, 4, 0, C},
    {MPK_T_SCHEMAS, 0, 0, 4, 0xffffffff, C},
    {MPK_T_SCHEMAS, 1, 4, 4, 100, C},
    {MPK_T_SCHEMAS, 0, 4, 4, 7, C},
    {MPK_T_SCHEMAS, 1, 4, 4, 4, C}, /* a trunk description inside */

    {MPK_T_DESCS, 0, 0, 4, 0xfffffff0, C},
    {MPK_T_DESCS, 0, 8, 2, 0, U},
    {MPK_T_DESCS, 0, 8, 2, 23, U},
    {MPK_T_DESCS, 0, 8, 2, MOEPACK_DTYPE_I8, MOEPACK_OK},
    {MPK_T_DESCS, 0, 8, 2, MOEPACK_DTYPE_F32, C},
    {MPK_T_DESCS, 0, 10, 1, 2, C},
    {MPK_T_DESCS, 0, 10, 1, 0, C},
    {MPK_T_DESCS, 3, 10, 1, 1, MOEPACK_OK}, /* whole tiles: as long in both orders */
    {MPK_T_DESCS, 4, 10, 1, 1, C},          /* opaque in panel order */
    {MPK_T_DESCS, 0, 11, 1, 1, C},
    {MPK_T_DESCS, 6, 11, 1, 0, C},
    {MPK_T_DESCS, 9, 11, 1, 1, C},
    {MPK_T_DESCS, 0, 11, 1, 2, C},
    {MPK_T_DESCS, 0, 12, 4, 3, C},
    {MPK_T_DESCS, 0, 12, 4, 0xffffffff, C},
    {MPK_T_DESCS, 0, 16, 4, 0xffffffff, C},
    {MPK_T_DESCS, 0, 20, 4, 0xffffffff, C},
    {MPK_T_DESCS, 0, 24, 4, 2, C},
    {MPK_T_DESCS, 0, 24, 4, 0, C},
    {MPK_T_DESCS, 0, 28, 4, 1, C},
    {MPK_T_DESCS, 0, 32, 8, 341, C},
    {MPK_T_DESCS, 0, 40, 8, 340, C},
    {MPK_T_DESCS, 0, 48, 8, 1, C},
    {MPK_T_DESCS, 0, 63, 1, 1, C},

    {MPK_T_MATRICES, 0, 0, 2, 4, U},
    {MPK_T_MATRICES, 0, 0, 2, 27, U},
    {MPK_T_MATRICES, 0, 0, 2, 0, MOEPACK_OK},
    {MPK_T_MATRICES, 0, 2, 2, 8, U},
    {MPK_T_MATRICES, 0, 4, 2, 10, U},
    {MPK_T_MATRICES, 0, 4, 2, 1, C},
    {MPK_T_MATRICES, 0, 4, 2, 7, MOEPACK_OK},
    {MPK_T_MATRICES, 0, 6, 2, 5, C},
    {MPK_T_MATRICES, 0, 6, 2, 8, C},
    {MPK_T_MATRICES, 0, 8, 4, 1, C},
    {MPK_T_MATRICES, 1, 8, 4, 0, C},
    {MPK_T_MATRICES, 1, 12, 4, 0, C},
    {MPK_T_MATRICES, 0, 16, 8, 18, C},
    {MPK_T_MATRICES, 0, 16, 8, 16, C},
    {MPK_T_MATRICES, 0, 16, 8, UINT64_MAX, C},
    {MPK_T_MATRICES, 0, 24, 8, 39, C},
    {MPK_T_MATRICES, 0, 24, 8, UINT64_MAX, C},
    {MPK_T_MATRICES, 0, 32, 8, 1, C},
    {MPK_T_MATRICES, 0, 32, 8, UINT64_MAX, C},
    {MPK_T_MATRICES, 0, 40, 8, 41, C},
    {MPK_T_MATRICES, 0, 48, 8, UINT64_MAX, C},
    {MPK_T_MATRICES, 0, 56, 8, 1, C},

    {MPK_T_DIMS, 0, 0, 8, 18, C},
    {MPK_T_DIMS, 0, 0, 8, UINT64_MAX, C},
    {MPK_T_DIMS, 0, 0, 8, 0, C},

    {MPK_T_POLICIES, 0, 0, 4, 1, C},
    {MPK_T_POLICIES, 0, 4, 4, 38, C},
    {MPK_T_POLICIES, 0, 4, 4, 0xffffffff, C},
    {MPK_T_POLICIES, 1, 0, 4, 0, MOEPACK_OK},
    {MPK_T_POLICIES, 1, 4, 4, 40, C},

    {MPK_T_FIELDS, 0, 0, 2, 40, U},
    {MPK_T_FIELDS, 0, 0, 2, 0, U},
    {MPK_T_FIELDS, 0, 0, 2, 2, C},
    {MPK_T_FIELDS, 0, 2, 2, 2, U},
    {MPK_T_FIELDS, 0, 2, 2, 3, U},
    {MPK_T_FIELDS, 10, 2, 2, 1, U},
    {MPK_T_FIELDS, 0, 4, 4, 2, C},
    {MPK_T_FIELDS, 0, 4, 4, 1, MOEPACK_OK},
    {MPK_T_FIELDS, 3, 8, 8, 4, C},
    {MPK_T_FIELDS, 3, 8, 8, 0, C},
    {MPK_T_FIELDS, 4, 8, 8, 6, U},
    {MPK_T_FIELDS, 9, 8, 8, 2, U},
    {MPK_T_FIELDS, 10, 8, 8, UINT64_C(0x7ff0000000000000), C},
    {MPK_T_FIELDS, 38, 8, 8, 9, U},

    {MPK_T_RECORDS, 0, 0, 4, 3, C},
    {MPK_T_RECORDS, 0, 0, 4, 0, C},
    {MPK_T_RECORDS, 0, 4, 4, 2, C},
    {MPK_T_RECORDS, 0, 4, 4, 1, C},
    {MPK_T_RECORDS, 0, 8, 8, 0, C},
    {MPK_T_RECORDS, 0, 8, 8, 4104, C},
    {MPK_T_RECORDS, 0, 8, 8, UINT64_C(0xfffffffffffff000), C},
    {MPK_T_RECORDS, 0, 16, 8, 0, C},
    {MPK_T_RECORDS, 0, 16, 8, UINT64_C(0xfffffffffffff000), C},
    {MPK_T_RECORDS, 0, 24, 8, 1, C},
    {MPK_T_RECORDS, 1, 24, 8, UINT64_MAX, C},
    {MPK_T_RECORDS, ABSENT, 4, 4, 1, C},
    {MPK_T_RECORDS, ABSENT, 8, 8, 4096, C},
    {MPK_T_RECORDS, ABSENT, 16, 8, 4096, C},
    {MPK_T_RECORDS, ABSENT, 24, 8, 5, C},
    {MPK_T_RECORDS, ABSENT, 0, 4, 1, C},
    {MPK_T_RECORDS, 0, 0, 4, 0xffffffff, C},

    {MPK_T_SECTIONS, 0, 0, 8, 0, C},
    {MPK_T_SECTIONS, 0, 0, 8, 8200, C},
    {MPK_T_SECTIONS, 2, 0, 8, 4097, C},
    {MPK_T_SECTIONS, 0, 8, 8, 1025, C},
    {MPK_T_SECTIONS, 0, 8, 8, UINT64_MAX, C},
    {MPK_T_SECTIONS, 0, 32, 4, 0, C},
    {MPK_T_SECTIONS, 0, 36, 1, 1, C}, /* another codec needs parts */
    {MPK_T_SECTIONS, 0, 37, 1, 1, C},
    {MPK_T_SECTIONS, 0, 39, 1, 1, C},
    {MPK_T_SECTIONS, 5, 0, 8, 4096, C},
    {MPK_T_SECTIONS, 5, 16, 8, 1, C},
    {MPK_T_SECTIONS, 5, 24, 8, 1, C},
    {MPK_T_SECTIONS, 0, 16, 8, 1, MOEPACK_OK},
    {MPK_T_SECTIONS, 0, 24, 8, 1, MOEPACK_OK},
    {MPK_T_SECTIONS, 5, 36, 1, 1, MOEPACK_OK},

    {MPK_T_PARTS, 0, 0, 4, 4194303, C},
    {MPK_T_PARTS, 2, 0, 4, 0, C},
    {MPK_T_PARTS, 0, 4, 4, 1, C},
    {MPK_T_PARTS, 0, 8, 8, 1, MOEPACK_OK},

    {MPK_T_TENSORS, 0, 0, 4, 0xffffffff, C},
    {MPK_T_TENSORS, 0, 4, 4, 0xffff, C},
    {MPK_T_TENSORS, 0, 8, 4, 15, C},
    {MPK_T_TENSORS, 0, 8, 4, 0, C},
    {MPK_T_TENSORS, 0, 12, 4, 6, C},
    {MPK_T_TENSORS, 0, 12, 4, 2, C},
    {MPK_T_TENSORS, 0, 16, 8, 0, C},
    {MPK_T_TENSORS, 0, 16, 8, UINT64_MAX, C},
    {MPK_T_TENSORS, 0, 24, 4, 1, C},
    {MPK_T_TENSORS, 0, 24, 4, 3, C},
    {MPK_T_TENSORS, 0, 28, 4, 2, C},
    {MPK_T_TENSORS, 0, 28, 4, 1, MOEPACK_OK},
    {MPK_T_TENSORS, 7, 12, 4, 0, C}, /* "six" twice of one file */

    {MPK_T_FILES, 0, 0, 4, 0xffffffff, C},
    {MPK_T_FILES, 0, 4, 4, 0, C},
    {MPK_T_FILES, 0, 8, 4, 1, C},
    {MPK_T_FILES, 5, 8, 4, 4, C},
    {MPK_T_FILES, 3, 8, 4, 3, MOEPACK_OK},
    {MPK_T_FILES, 0, 12, 4, 1, C},
    {MPK_T_FILES, 0, 16, 8, 0, C},
    {MPK_T_FILES, 0, 24, 8, 299, C},
    {MPK_T_FILES, 0, 24, 8, UINT64_MAX, C},
    {MPK_T_FILES, 2, 24, 8, 412, C},
    {MPK_T_FILES, 0, 48, 8, 1, C},
    {MPK_T_FILES, 0, 32, 8, 1, MOEPACK_OK},

    {MPK_T_ROLES, 0, 0, 2, 27, U},
    {MPK_T_ROLES, 0, 0, 2, 3, C},
    {MPK_T_ROLES, 0, 2, 2, 8, U},
    {MPK_T_ROLES, 0, 0, 2, 18, C},
    {MPK_T_ROLES, 0, 4, 4, 9, C},
    {MPK_T_ROLES, 0, 4, 4, 8, MOEPACK_OK},
};

static uint8_t *find_entry(const mpk_buf *bytes, const change *c)
{
    mpk_tables_view view;
    assert_int_equal(mpk_tableset_decode(bytes->data + 128, bytes->size - 128, 128, mpk_index_table_ids,
                                         MPK_INDEX_TABLES, &view, NULL),
                     MOEPACK_OK);
    size_t at = (size_t)(view.t[c->table].data - bytes->data) + (size_t)c->entry * mpk_table_entry(c->table) + c->at;
    assert_true(c->entry < view.t[c->table].count);
    return bytes->data + at;
}

static void store(uint8_t *to, uint32_t size, uint64_t value)
{
    for (uint32_t i = 0; i < size; ++i) to[i] = (uint8_t)(value >> 8 * i);
}

static void test_changed_fields(void **state)
{
    (void)state;
    sample s;
    sample_make(&s, SAMPLE_BIG);
    mpk_buf bytes = {0};
    moepack_error e;
    assert_status(MOEPACK_OK, mpk_encode_index(&s.t, &bytes, &e), &e);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; ++i) {
        const change *c = &changes[i];
        uint8_t keep[8], *at = find_entry(&bytes, c);
        memcpy(keep, at, c->size);
        store(at, c->size, c->value);
        repair_index(bytes.data, bytes.size);
        moepack_index *x = NULL;
        moepack_status status = moepack_index_open(bytes.data, bytes.size, "i.mpk", &x, &e);
        if (status != c->status) {
            print_error("change %zu: table %s entry %u at %u: status %d, expected %d (%s)\n", i,
                        mpk_table_name(c->table), c->entry, c->at, status, c->status,
                        status != MOEPACK_OK ? e.message : "");
        }
        assert_int_equal(status, c->status);
        if (status == MOEPACK_OK) {
            sample_walk(x);
        } else {
            assert_string_equal(e.file, "i.mpk");
            assert_non_null(strstr(e.message, "table"));
            assert_true(e.offset >= 128 && (uint64_t)e.offset <= bytes.size);
        }
        moepack_index_close(x);
        memcpy(at, keep, c->size);
    }
    free(bytes.data);
    sample_free(&s);
}

/* Two shards swap their places: an order in which records do not ascend, as after a repair, is fine; overlap is not. */
static void test_records_out_of_order(void **state)
{
    (void)state;
    sample s;
    moepack_error e;
    sample_make(&s, 0);
    moepack_record *a = &s.t.records[0], *b = &s.t.records[1];
    assert_true(a->shard == b->shard && a->length == b->length);
    uint64_t offset = a->offset;
    for (uint32_t k = 0; k < 6; ++k) {
        moepack_section *sa = &s.t.sections[a->first_section + k], *sb = &s.t.sections[b->first_section + k];
        uint64_t keep = sa->offset;
        sa->offset = sb->offset;
        sb->offset = keep;
    }
    a->offset = b->offset;
    b->offset = offset;
    mpk_buf bytes = {0};
    moepack_index *x = sample_open(&s, &bytes);
    sample_walk(x);
    moepack_index_close(x);
    /* Now record 1 to the place of record 0, which is out of order and on top of it. */
    for (uint32_t k = 0; k < 6; ++k)
        s.t.sections[b->first_section + k].offset = s.t.sections[a->first_section + k].offset;
    b->offset = a->offset;
    bytes.size = 0;
    assert_status(MOEPACK_OK, mpk_encode_index(&s.t, &bytes, &e), &e);
    assert_status(MOEPACK_E_CORRUPT, moepack_index_open(bytes.data, bytes.size, "x", &x, &e), &e);
    assert_non_null(strstr(e.message, "overlaps record"));
    free(bytes.data);
    sample_free(&s);
}

static void expect_tables(sample *s, moepack_status expected)
{
    mpk_buf bytes = {0};
    moepack_index *x = NULL;
    moepack_error e;
    assert_status(MOEPACK_OK, mpk_encode_index(&s->t, &bytes, &e), &e);
    assert_status(expected, moepack_index_open(bytes.data, bytes.size, "x", &x, &e), &e);
    moepack_index_close(x);
    free(bytes.data);
}

static void test_names(void **state)
{
    (void)state;
    static const char *const bad_shards[] = {"a/b", ".", "..", "experts-0002-0002.mpk", "a\0b"};
    static const char *const bad_files[] = {"config.json", "/abs", "a//b", "a/",  "../x",
                                            "a/../b",      "./x",  "a/.",  "a\0b"};
    sample s;
    sample_make(&s, 0);
    moepack_str keep = s.t.shards[0].name;
    for (size_t i = 0; i < sizeof bad_shards / sizeof bad_shards[0]; ++i) {
        size_t length = bad_shards[i][0] == 'a' && bad_shards[i][1] == '\0' ? 3 : strlen(bad_shards[i]);
        assert_true(mpk_tables_string(&s.t, bad_shards[i], length, &s.t.shards[0].name));
        expect_tables(&s, MOEPACK_E_CORRUPT);
    }
    char long_name[300];
    memset(long_name, 'n', sizeof long_name);
    assert_true(mpk_tables_string(&s.t, long_name, sizeof long_name, &s.t.shards[0].name));
    expect_tables(&s, MOEPACK_E_UNSUPPORTED);
    s.t.shards[0].name = keep;
    keep = s.t.files[5].name;
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; ++i) {
        size_t length = bad_files[i][0] == 'a' && bad_files[i][1] == '\0' ? 3 : strlen(bad_files[i]);
        assert_true(mpk_tables_string(&s.t, bad_files[i], length, &s.t.files[5].name));
        expect_tables(&s, MOEPACK_E_CORRUPT);
    }
    s.t.files[5].name = keep;
    expect_tables(&s, MOEPACK_OK);
    keep = s.t.descs[0].name;
    assert_true(mpk_tables_string(&s.t, "{expert}.{expert}", 17, &s.t.descs[0].name));
    expect_tables(&s, MOEPACK_E_CORRUPT);
    /* A long name is none the worse for it, up to the reader's limits. */
    char *very_long = malloc(70000);
    assert_non_null(very_long);
    memset(very_long, 'n', 70000);
    memcpy(very_long, "{expert}", 8);
    static const struct {
        size_t length;
        moepack_status pattern, tensor;
    } lengths[] = {{4096, MOEPACK_OK, MOEPACK_OK},
                   {4097, MOEPACK_E_UNSUPPORTED, MOEPACK_OK},
                   {65535, MOEPACK_E_UNSUPPORTED, MOEPACK_OK},
                   {65536, MOEPACK_E_UNSUPPORTED, MOEPACK_E_UNSUPPORTED}};
    moepack_str last = s.t.tensors[7].name;
    for (size_t i = 0; i < 4; ++i) {
        assert_true(mpk_tables_string(&s.t, very_long, lengths[i].length, &s.t.descs[0].name));
        expect_tables(&s, lengths[i].pattern);
        s.t.descs[0].name = keep;
        very_long[0] = 'z'; /* sorts behind all others */
        assert_true(mpk_tables_string(&s.t, very_long, lengths[i].length, &s.t.tensors[7].name));
        expect_tables(&s, lengths[i].tensor);
        s.t.tensors[7].name = last;
        very_long[0] = '{';
    }
    free(very_long);
    expect_tables(&s, MOEPACK_OK);
    sample_free(&s);
}

/* A codec that this version does not know: listing works, the parts still have to add up. */
static void test_unknown_codec(void **state)
{
    (void)state;
    sample s;
    sample_make(&s, SAMPLE_BIG);
    uint64_t big = s.t.tensors[8].section;
    s.t.sections[big].codec = (moepack_codec)5;
    expect_tables(&s, MOEPACK_OK);
    /* compressed source header: its parts are found by adding up */
    uint64_t header = s.t.files[0].section;
    moepack_section keep = s.t.sections[header];
    s.t.sections[header].codec = (moepack_codec)5;
    expect_tables(&s, MOEPACK_E_CORRUPT);
    s.t.sections[header].first_part = 3;
    assert_true(mpk_grow(&s.t.parts, s.t.part_count, sizeof *s.t.parts));
    s.t.parts[s.t.part_count++] = (mpk_part_entry){300, 1};
    expect_tables(&s, MOEPACK_OK);
    s.t.parts[3].stored_length = 301;
    expect_tables(&s, MOEPACK_E_CORRUPT);
    s.t.sections[header] = keep;
    expect_tables(&s, MOEPACK_E_CORRUPT); /* a part that belongs to no section */
    --s.t.part_count;
    expect_tables(&s, MOEPACK_OK);
    sample_free(&s);
}

/* A dim of 0 makes an empty tensor even where the others overflow; without it they are refused. Rank and matrices have
 * limits. */
static void test_dims(void **state)
{
    (void)state;
    sample s;
    sample_make(&s, 0);
    uint32_t first = s.t.descs[12].first_dim; /* [0, 4] */
    s.t.dims[first + 1] = UINT64_MAX;
    expect_tables(&s, MOEPACK_OK);
    s.t.dims[first] = 2;
    expect_tables(&s, MOEPACK_E_CORRUPT);
    s.t.dims[first] = 0;
    for (int i = 0; i < 65; ++i) {
        assert_true(mpk_grow(&s.t.dims, s.t.dim_count, sizeof *s.t.dims));
        s.t.dims[s.t.dim_count++] = i == 0 ? 0 : 1;
    }
    s.t.descs[12].first_dim = (uint32_t)s.t.dim_count - 65;
    s.t.descs[12].rank = 64;
    expect_tables(&s, MOEPACK_OK);
    s.t.descs[12].rank = 65;
    expect_tables(&s, MOEPACK_E_UNSUPPORTED);
    s.t.descs[12].rank = 64;
    for (int i = 0; i < 65; ++i) {
        assert_true(mpk_grow(&s.t.matrices, s.t.matrix_count, sizeof *s.t.matrices));
        s.t.matrices[s.t.matrix_count++] = (moepack_matrix){.bits = 8};
    }
    s.t.descs[12].first_matrix = (uint32_t)s.t.matrix_count - 65;
    s.t.descs[12].matrix_count = 64;
    expect_tables(&s, MOEPACK_OK);
    s.t.descs[12].matrix_count = 65;
    expect_tables(&s, MOEPACK_E_UNSUPPORTED);
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_empty_container),
        cmocka_unit_test(test_refuses_foreign_string),
        cmocka_unit_test(test_changed_fields),
        cmocka_unit_test(test_records_out_of_order),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_unknown_codec),
        cmocka_unit_test(test_dims),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
