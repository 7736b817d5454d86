/* Plans: byte counts and reads worked out by hand for the default container of container.c, and the partition by ranks.
 *
 * An expert there: w1 and w3 [96, 64], w2 [64, 96], 4 bits. Panels: w1, w3: 6 row blocks x 2 tiles x 256 = 3072 bytes;
 * w2: 4 x 3 x 256 = 3072. Scale planes: 6 x 2 x 16 = 192, 192, 4 x 3 x 16 = 192. Stored: 3 x (3072 + 192) = 9792 bytes.
 * The record has one page for each weight plane and one for all scale planes: 4 pages, 16384 bytes. A shard starts with
 * a header page and holds 3 ids of each of 3 blocks. */
#include "support.h"

#include "container.h"

#include <string.h>
#include <unistd.h>

#define EXPERT_BYTES UINT64_C(9792)
#define RECORD UINT64_C(16384)

/* Dense bytes of a block: router rows padded to 16 x 128 BF16 = 4096, bias 4 E, latent down 64 x 128 x 2 = 16384,
 * shared gate and up 64 x 128 x 2 each, norm 64 x 2 = 128, latent up 128 x 64 x 2, shared down 128 x 64 x 2. */
#define DENSE_BYTES(E) (UINT64_C(4096) + 4 * (E) + 5 * UINT64_C(16384) + 128)

static char root[256], pack_path[300];

static int set_up(void **state)
{
    (void)state;
    const container_spec spec = container_default();
    new_dir(root, NULL);
    snprintf(pack_path, sizeof pack_path, "%s/small.moepack", root);
    container_write(&spec, pack_path);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(root);
    return 0;
}

static moepack_plan_options only(const uint32_t *blocks, uint32_t count, bool dense)
{
    moepack_plan_options options;
    moepack_plan_options_init(&options);
    options.blocks = blocks;
    options.block_count = count;
    options.dense = dense;
    return options;
}

static void assert_read(const moepack_plan *plan, size_t i, uint32_t shard, uint64_t offset, uint64_t length)
{
    moepack_read read;
    moepack_plan_read(plan, i, &read);
    assert_int_equal(read.shard, shard);
    assert_int_equal(read.offset, offset);
    assert_int_equal(read.length, length);
}

static void everything_on_one_rank(void **state)
{
    (void)state;
    session s;
    session_plan(&s, pack_path, "linear", 1, 0, NULL);
    assert_int_equal(moepack_plan_experts(s.plan), 19);
    assert_int_equal(moepack_plan_expert_bytes(s.plan), 19 * EXPERT_BYTES);
    assert_int_equal(moepack_plan_dense_bytes(s.plan), 2 * DENSE_BYTES(7) + DENSE_BYTES(5));
    /* The trunk's role tensors lie together; expert shards are read from the first record to the last: 9, 8 and 2
     * records. */
    assert_int_equal(moepack_plan_reads(s.plan), 4);
    assert_read(s.plan, 1, 1, 4096, 9 * RECORD);
    assert_read(s.plan, 2, 2, 4096, 8 * RECORD);
    assert_read(s.plan, 3, 3, 4096, 2 * RECORD);
    moepack_read read;
    moepack_plan_read(s.plan, 0, &read);
    assert_int_equal(read.shard, 0);
    assert_int_equal(read.offset, 4096);
    assert_true(read.length >= moepack_plan_dense_bytes(s.plan));
    assert_int_equal(read.length % 4096, 0);
    moepack_plan_read(s.plan, 4, &read);
    assert_int_equal(read.length, 0);
    session_close(&s);
}

static void records_coalesce_only_when_adjacent(void **state)
{
    (void)state;
    session s;
    const uint32_t block_1[] = {1}, blocks_0_2[] = {2, 0, 2};
    moepack_plan_options options = only(block_1, 1, false);
    /* Rank 0 of 2 holds experts 0..3 of block 1: 0..2 in shard 1 behind block 0's three records, 3 first of its block
     * in shard 2. */
    session_plan(&s, pack_path, "linear", 2, 0, &options);
    assert_int_equal(moepack_plan_experts(s.plan), 4);
    assert_int_equal(moepack_plan_dense_bytes(s.plan), 0);
    assert_int_equal(moepack_plan_reads(s.plan), 2);
    assert_read(s.plan, 0, 1, 4096 + 3 * RECORD, 3 * RECORD);
    assert_read(s.plan, 1, 2, 4096 + 3 * RECORD, RECORD);
    session_close(&s);
    /* Round-robin on 2 ranks: experts 1, 3, 5 of block 1: three single records. */
    session_plan(&s, pack_path, "round-robin", 2, 1, &options);
    assert_int_equal(moepack_plan_reads(s.plan), 3);
    assert_read(s.plan, 0, 1, 4096 + 4 * RECORD, RECORD);
    assert_read(s.plan, 1, 2, 4096 + 3 * RECORD, RECORD);
    assert_read(s.plan, 2, 2, 4096 + 5 * RECORD, RECORD);
    session_close(&s);
    /* A block named twice counts once; block 1's records leave a hole between those of 0 and 2. */
    options = only(blocks_0_2, 3, false);
    session_plan(&s, pack_path, "linear", 1, 0, &options);
    assert_int_equal(moepack_plan_experts(s.plan), 12);
    assert_int_equal(moepack_plan_reads(s.plan), 5);
    assert_read(s.plan, 0, 1, 4096, 3 * RECORD);
    assert_read(s.plan, 1, 1, 4096 + 6 * RECORD, 3 * RECORD);
    assert_read(s.plan, 2, 2, 4096, 3 * RECORD);
    assert_read(s.plan, 3, 2, 4096 + 6 * RECORD, 2 * RECORD);
    assert_read(s.plan, 4, 3, 4096, RECORD);
    session_close(&s);
}

static void ranks_partition_the_experts(void **state)
{
    (void)state;
    static const char *const rules[] = {"linear", "round-robin"};
    for (size_t rule = 0; rule < 2; rule++)
        for (uint32_t ranks = 1; ranks <= 8; ranks++) {
            uint64_t experts = 0, bytes = 0;
            uint32_t owners[3][7] = {{0}};
            for (uint32_t r = 0; r < ranks; r++) {
                session s;
                session_plan(&s, pack_path, rules[rule], ranks, r, NULL);
                experts += moepack_plan_experts(s.plan);
                bytes += moepack_plan_expert_bytes(s.plan);
                assert_int_equal(moepack_plan_dense_bytes(s.plan), 2 * DENSE_BYTES(7) + DENSE_BYTES(5));
                for (uint32_t b = 0; b < 3; b++)
                    for (uint32_t e = 0; e < 7; e++) owners[b][e] += moepack_placement_holds(s.placement, r, b, e);
                session_close(&s);
            }
            assert_int_equal(experts, 19);
            assert_int_equal(bytes, 19 * EXPERT_BYTES);
            for (uint32_t b = 0; b < 3; b++)
                for (uint32_t e = 0; e < 7; e++) assert_int_equal(owners[b][e], b < 2 || e < 5);
        }
}

static void replicas_are_planned(void **state)
{
    (void)state;
    char path[300];
    session s;
    const uint32_t block_0[] = {0};
    const moepack_plan_options options = only(block_0, 1, false);
    snprintf(path, sizeof path, "%s/replicas.json", root);
    write_text(
        path,
        "{\"ranks\": 2, \"layers\": {\"*\": [[0,1],[0],[0],[0],[0],[0],[1,0]], \"encoder.0\": [[0],[0],[0],[0],[0]]}}");
    session_plan(&s, pack_path, path, 2, 1, &options);
    assert_int_equal(moepack_plan_experts(s.plan), 2);
    assert_int_equal(moepack_plan_expert_bytes(s.plan), 2 * EXPERT_BYTES);
    session_close(&s);
    session_plan(&s, pack_path, path, 2, 0, &options);
    assert_int_equal(moepack_plan_experts(s.plan), 7);
    session_close(&s);
}

static void budget(void **state)
{
    (void)state;
    session s;
    moepack_plan *plan = NULL;
    moepack_plan_options options;
    moepack_plan_options_init(&options);
    session_plan(&s, pack_path, "linear", 2, 0, NULL);
    const uint64_t wanted = moepack_plan_expert_bytes(s.plan) + moepack_plan_dense_bytes(s.plan);
    options.budget = wanted;
    assert_ok(moepack_plan_create(s.pack, s.placement, 0, &options, &plan, &s.error), &s.error);
    moepack_plan_free(plan);
    options.budget = wanted - 1;
    assert_status(moepack_plan_create(s.pack, s.placement, 0, &options, &plan, &s.error), MOEPACK_E_REFUSED, &s.error);
    assert_null(plan);
    char text[100];
    snprintf(text, sizeof text, "needs %llu bytes, budget is %llu", (unsigned long long)wanted,
             (unsigned long long)wanted - 1);
    assert_mentions(&s.error, text);
    session_close(&s);
}

static void bad_arguments(void **state)
{
    (void)state;
    session s;
    moepack_plan *plan = NULL;
    const uint32_t beyond[] = {0, 3};
    moepack_plan_options options = only(beyond, 2, false);
    session_plan(&s, pack_path, "linear", 2, 0, NULL);
    assert_status(moepack_plan_create(s.pack, s.placement, 0, &options, &plan, &s.error), MOEPACK_E_USAGE, &s.error);
    assert_mentions(&s.error, "block 3");
    assert_status(moepack_plan_create(s.pack, s.placement, 2, NULL, &plan, &s.error), MOEPACK_E_USAGE, &s.error);
    assert_mentions(&s.error, "rank 2");
    options.size = sizeof options + 8;
    assert_status(moepack_plan_create(s.pack, s.placement, 0, &options, &plan, &s.error), MOEPACK_E_USAGE, &s.error);
    session_close(&s);
}

static void subset_names_the_missing_expert(void **state)
{
    (void)state;
    char path[300];
    session s;
    moepack_plan *plan = NULL;
    container_spec spec = container_default();
    spec.absent_expert = 5;
    snprintf(path, sizeof path, "%s/subset.moepack", root);
    container_write(&spec, path);
    session_plan(&s, path, "linear", 2, 0, NULL); /* 0..3: complete */
    assert_int_equal(moepack_plan_experts(s.plan), 11);
    assert_status(moepack_plan_create(s.pack, s.placement, 1, NULL, &plan, &s.error), MOEPACK_E_INCOMPLETE, &s.error);
    assert_mentions(&s.error, "layer 1, expert 5");
    session_close(&s);
}

static void plans_need_the_index_alone(void **state)
{
    (void)state;
    char path[300], file[400];
    session s;
    snprintf(path, sizeof path, "%s/index-only.moepack", root);
    copy_tree(pack_path, path);
    static const char *const shards[] = {"trunk-000.mpk", "experts-0000-0002.mpk", "experts-0003-0005.mpk",
                                         "experts-0006-0008.mpk"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(file, sizeof file, "%s/%s", path, shards[i]);
        assert_int_equal(unlink(file), 0);
    }
    session_plan(&s, path, "linear", 3, 1, NULL);
    assert_true(moepack_plan_experts(s.plan) > 0);
    session_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_on_one_rank),
        cmocka_unit_test(records_coalesce_only_when_adjacent),
        cmocka_unit_test(ranks_partition_the_experts),
        cmocka_unit_test(replicas_are_planned),
        cmocka_unit_test(budget),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(subset_names_the_missing_expert),
        cmocka_unit_test(plans_need_the_index_alone),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
