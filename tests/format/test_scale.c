/* An index of Kimi K3's size: 92 blocks x 896 experts x 6 sections. Time and memory are printed; the size is asserted.
 */
#include "sample.h"

#include "hash.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCKS 92u
#define EXPERTS 896u
#define PER_SHARD 14u

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Bytes that malloc has handed out, large blocks included. */
static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static moepack_str str(mpk_tables *t, const char *text)
{
    moepack_str out;
    assert_true(mpk_tables_string(t, text, strlen(text), &out));
    return out;
}

#define PUSH(array, count, ...)                                    \
    do {                                                           \
        assert_true(mpk_grow(&(array), (count), sizeof *(array))); \
        (array)[(count)++] = __VA_ARGS__;                          \
    } while (0)

static void add_schema(mpk_tables *t)
{
    static const struct {
        const char *name;
        uint64_t rows, cols;
        bool scale;
    } planes[] = {
        {"experts.{expert}.w1.weight_packed", 3072, 3584, false}, {"experts.{expert}.w1.weight_scale", 3072, 112, true},
        {"experts.{expert}.w2.weight_packed", 3584, 3072, false}, {"experts.{expert}.w2.weight_scale", 3584, 96, true},
        {"experts.{expert}.w3.weight_packed", 3072, 3584, false}, {"experts.{expert}.w3.weight_scale", 3072, 112, true},
    };
    for (uint32_t i = 0; i < 6; ++i) {
        moepack_matrix m = {.role = MOEPACK_ROLE_GATE,
                            .plane = planes[i].scale ? MOEPACK_PLANE_SCALE : MOEPACK_PLANE_WEIGHT,
                            .encoding = planes[i].scale ? MOEPACK_ENC_E8M0 : MOEPACK_ENC_E2M1,
                            .bits = planes[i].scale ? 8 : 4,
                            .group_rows = planes[i].scale,
                            .group_cols = planes[i].scale ? 32 : 0,
                            .rows = planes[i].rows,
                            .cols = planes[i].cols,
                            .row_stride = planes[i].cols,
                            .col_stride = 1};
        uint64_t bytes = m.rows * m.cols * m.bits / 8;
        moepack_desc d = {.name = str(t, planes[i].name),
                          .dtype = MOEPACK_DTYPE_U8,
                          .layout = MOEPACK_LAYOUT_PANEL,
                          .rank = 2,
                          .first_dim = (uint32_t)t->dim_count,
                          .first_matrix = i,
                          .matrix_count = 1,
                          .canonical_length = bytes};
        assert_true(moepack_panel_length(&m, &d.decoded_length));
        PUSH(t->dims, t->dim_count, planes[i].rows);
        PUSH(t->dims, t->dim_count, bytes / planes[i].rows);
        PUSH(t->matrices, t->matrix_count, m);
        PUSH(t->descs, t->desc_count, d);
    }
    PUSH(t->schemas, t->schema_count, (mpk_schema_entry){0, 6});
}

static void add_records(mpk_tables *t, uint64_t *shard_end)
{
    uint64_t hash = 1;
    for (uint32_t b = 0; b < BLOCKS; ++b) {
        char prefix[100];
        snprintf(prefix, sizeof prefix, "language_model.model.layers.%u.block_sparse_moe.", b + 1);
        PUSH(t->blocks, t->block_count,
             (moepack_block){MOEPACK_STACK_MAIN, b + 1, str(t, prefix), EXPERTS, 0, t->record_count, 0, 0});
        for (uint32_t e = 0; e < EXPERTS; ++e) {
            uint32_t shard = 1 + e / PER_SHARD;
            moepack_record r = {shard, 0, shard_end[shard], 0, t->section_count};
            uint64_t at = r.offset;
            for (uint32_t k = 0; k < 6; ++k) {
                uint64_t length = t->descs[k].decoded_length;
                moepack_section s = {at, length, sample_random(&hash), sample_random(&hash), MOEPACK_NO_PARTS, 0};
                PUSH(t->sections, t->section_count, s);
                at += length; /* every plane is whole pages */
            }
            r.length = at - r.offset;
            shard_end[shard] = at;
            PUSH(t->records, t->record_count, r);
        }
    }
}

static void make(mpk_tables *t)
{
    static uint64_t shard_end[1 + EXPERTS / PER_SHARD];
    t->info = (moepack_info){.page_size = 4096,
                             .writer_revision = 1,
                             .layout = MOEPACK_LAYOUT_PANEL,
                             .family = str(t, "kimi_k3"),
                             .model_type = str(t, "kimi_k3")};
    add_schema(t);
    mpk_policy_entry p = {.overridden = 0};
    moepack_policy_init(&p.policy);
    p.policy.top_k = 16;
    PUSH(t->policies, t->policy_count, p);
    PUSH(t->shards, t->shard_count, (moepack_shard){.name = str(t, "trunk-000.mpk"), .kind = MOEPACK_SHARD_TRUNK});
    for (uint32_t i = 0; i < EXPERTS / PER_SHARD; ++i) {
        char name[40];
        snprintf(name, sizeof name, "experts-%04u-%04u.mpk", i * PER_SHARD, i * PER_SHARD + PER_SHARD - 1);
        PUSH(t->shards, t->shard_count, (moepack_shard){.name = str(t, name), .kind = MOEPACK_SHARD_EXPERTS});
    }
    for (size_t i = 0; i < t->shard_count; ++i) shard_end[i] = 4096;
    add_records(t, shard_end);
    for (uint32_t i = 0; i < t->shard_count; ++i) {
        t->shards[i].tail_offset = shard_end[i];
        assert_int_equal(mpk_tail_length(t, i, &t->shards[i].tail_length, NULL), MOEPACK_OK);
        t->shards[i].file_length = shard_end[i] + t->shards[i].tail_length;
    }
}

static void test_k3_size(void **state)
{
    (void)state;
    mpk_tables t = {0};
    mpk_buf bytes = {0};
    moepack_error e;
    make(&t);
    assert_int_equal(t.section_count, 494592);
    assert_int_equal(t.record_count, 82432);
    double start = now();
    assert_status(MOEPACK_OK, mpk_encode_index(&t, &bytes, &e), &e);
    double encoded = now() - start;
    mpk_tables_free(&t);
    assert_true(bytes.size < 23000000);
    moepack_index *x = NULL;
    double best_open = 1e9, best_hash = 1e9;
    size_t grew = 0;
    for (int run = 0; run < 5; ++run) {
        size_t before = allocated();
        start = now();
        assert_status(MOEPACK_OK, moepack_index_open(bytes.data, bytes.size, "index.mpk", &x, &e), &e);
        double taken = now() - start;
        grew = allocated() - before;
        best_open = taken < best_open ? taken : best_open;
        start = now();
        moepack_hash128 root = moepack_hash128_of(bytes.data + 128, bytes.size - 128);
        taken = now() - start;
        best_hash = taken < best_hash ? taken : best_hash;
        assert_true(mpk_hash128_equal(root, moepack_index_root_hash(x)));
        if (run < 4) moepack_index_close(x);
    }
    print_message(
        "K3-size index: %.2f MB, encoded in %.0f ms, opened in %.1f ms of which hashing %.1f ms, %zu bytes kept\n",
        (double)bytes.size / 1e6, encoded * 1e3, best_open * 1e3, best_hash * 1e3, grew);
    assert_true(grew < 4096); /* the caller's bytes are used, nothing is decoded into memory */
    char name[200];
    moepack_index_section_name(x, 91, 895, 5, name, sizeof name);
    assert_string_equal(name, "language_model.model.layers.92.block_sparse_moe.experts.895.w3.weight_scale");
    moepack_index_close(x);
    free(bytes.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_k3_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
