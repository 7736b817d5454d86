/* Placements: both rules against their definition, and every rule that a placement file must keep. */
#include "support.h"

#include "container.h"

#include <stdlib.h>
#include <string.h>

static char root[256], pack_path[300], file_path[300];
static moepack_pack *pack;

static int set_up(void **state)
{
    (void)state;
    moepack_error error = {0};
    const container_spec spec = container_default();
    new_dir(root, NULL);
    snprintf(pack_path, sizeof pack_path, "%s/small.moepack", root);
    snprintf(file_path, sizeof file_path, "%s/placement.json", root);
    container_write(&spec, pack_path);
    assert_ok(moepack_open(pack_path, &pack, &error), &error);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    moepack_close(pack);
    remove_tree(root);
    return 0;
}

static moepack_placement *create(const char *spec, uint32_t ranks)
{
    moepack_error error = {0};
    moepack_placement *p = NULL;
    assert_ok(moepack_placement_create(pack, spec, ranks, &p, &error), &error);
    assert_int_equal(moepack_placement_ranks(p), ranks);
    return p;
}

static uint32_t experts_of(uint32_t block)
{
    moepack_block b;
    moepack_index_block(moepack_pack_index(pack), block, &b);
    return b.experts;
}

/* Contiguous ranges in rank order, sizes differ by at most one, larger ones first: counted, not computed. */
static void linear_ranges(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
        moepack_placement *p = create("linear", ranks);
        for (uint32_t block = 0; block < 3; block++) {
            const uint32_t experts = experts_of(block);
            uint32_t next = 0;
            for (uint32_t r = 0; r < ranks; r++) {
                const uint32_t count = experts / ranks + (r < experts % ranks ? 1 : 0);
                for (uint32_t e = 0; e < experts; e++) {
                    const bool mine = e >= next && e < next + count;
                    assert_int_equal(moepack_placement_holds(p, r, block, e), mine);
                    assert_int_equal(moepack_placement_computes(p, r, block, e), mine);
                }
                next += count;
            }
            assert_int_equal(next, experts);
        }
        moepack_placement_free(p);
    }
}

static void round_robin(void **state)
{
    (void)state;
    moepack_placement *p = create("round-robin", 3);
    for (uint32_t block = 0; block < 3; block++)
        for (uint32_t e = 0; e < experts_of(block); e++)
            for (uint32_t r = 0; r < 3; r++) {
                assert_int_equal(moepack_placement_holds(p, r, block, e), e % 3 == r);
                assert_int_equal(moepack_placement_computes(p, r, block, e), e % 3 == r);
            }
    moepack_placement_free(p);
}

static void outside_is_false(void **state)
{
    (void)state;
    moepack_placement *p = create("linear", 2);
    assert_false(moepack_placement_holds(p, 2, 0, 0));
    assert_false(moepack_placement_holds(p, 0, 3, 0));
    assert_false(moepack_placement_holds(p, 1, 2, 5));
    assert_false(moepack_placement_computes(p, 2, 0, 0));
    assert_false(moepack_placement_computes(p, 0, 0, 7));
    moepack_placement_free(p);
}

static void file_with_replicas(void **state)
{
    (void)state;
    write_text(file_path, "{\"ranks\": 3, \"layers\": {"
                          "\"*\": [[0],[1],[2],[0,1],[1,2],[2,0],[0,1,2]],"
                          "\"2\": [[2],[2],[2],[1],[1],[0],[0]],"
                          "\"encoder.0\": [[1,0],[1],[1],[1],[2]]}}");
    moepack_placement *p = create(file_path, 3);
    assert_true(moepack_placement_computes(p, 0, 0, 3));
    assert_true(moepack_placement_holds(p, 1, 0, 3));
    assert_false(moepack_placement_computes(p, 1, 0, 3));
    assert_false(moepack_placement_holds(p, 2, 0, 3));
    assert_true(moepack_placement_computes(p, 2, 0, 5)); /* the first listed computes, not the lowest */
    assert_true(moepack_placement_holds(p, 0, 0, 5));
    for (uint32_t r = 0; r < 3; r++) assert_true(moepack_placement_holds(p, r, 0, 6));
    assert_true(moepack_placement_computes(p, 2, 1, 0));
    assert_false(moepack_placement_holds(p, 0, 1, 0));
    assert_true(moepack_placement_computes(p, 1, 2, 0));
    assert_true(moepack_placement_holds(p, 0, 2, 0));
    assert_true(moepack_placement_computes(p, 2, 2, 4));
    moepack_placement_free(p);
}

typedef struct bad_file {
    const char *text;
    const char *mentions[3];
} bad_file;

#define STAR "\"*\": [[0],[0],[0],[0],[0],[0],[0]]"
#define ENCODER "\"encoder.0\": [[0],[0],[0],[0],[1]]"

static const bad_file bad_files[] = {
    {"{\"ranks\": 2, \"layers\": {", {"line 1"}},
    {"[1]", {"must be a JSON object"}},
    {"{\"ranks\": 2}", {"\"layers\" is missing"}},
    {"{\"layers\": {" STAR "," ENCODER "}}", {"\"ranks\" must be an integer"}},
    {"{\"ranks\": 2.0, \"layers\": {" STAR "," ENCODER "}}", {"\"ranks\" must be an integer"}},
    {"{\"ranks\": 3, \"layers\": {" STAR "," ENCODER "}}", {"places 3 ranks", "2 were asked for"}},
    {"{\"ranks\": 2, \"layers\": [], \"x\": 1}", {"unknown key \"x\""}},
    {"{\"ranks\": 2, \"layers\": []}", {"\"layers\" must be an object"}},
    {"{\"ranks\": 2, \"ranks\": 2, \"layers\": {" STAR "," ENCODER "}}", {"line 1", "duplicate"}},
    {"{\"ranks\": 2, \"layers\": {" ENCODER "}}", {"layer 1", "placed nowhere"}},
    {"{\"ranks\": 2, \"layers\": {" STAR "}}", {"layer encoder.0", "7 experts", "the layer has 5"}},
    {"{\"ranks\": 2, \"layers\": {" STAR "," ENCODER ", \"3\": [[0]]}}", {"no MoE layer \"3\""}},
    {"{\"ranks\": 2, \"layers\": {" STAR "," ENCODER ", \"model.layers.2.block_sparse_moe.\": [[0]]}}",
     {"no MoE layer"}},
    {"{\"ranks\": 2, \"layers\": {" STAR "," ENCODER ", \"2\": [[0],[0],[0],[0],[0],[0]]}}", {"layer 2", "6 experts"}},
    {"{\"ranks\": 2, \"layers\": {" STAR "," ENCODER ", \"2\": {}}}", {"layer 2", "must be a list"}},
    {"{\"ranks\": 2, \"layers\": {" STAR "," ENCODER ", \"2\": [[0],[0],[0],[],[0],[0],[0]]}}",
     {"layer 2", "expert 3", "placed nowhere"}},
    {"{\"ranks\": 2, \"layers\": {" STAR "," ENCODER ", \"2\": [[0],[0],[0],[0],[0],[2],[0]]}}",
     {"layer 2", "expert 5", "rank 2 is outside 0..1"}},
    {"{\"ranks\": 2, \"layers\": {" STAR "," ENCODER ", \"2\": [[-1],[0],[0],[0],[0],[0],[0]]}}",
     {"expert 0", "rank -1"}},
    {"{\"ranks\": 2, \"layers\": {" STAR "," ENCODER ", \"2\": [[0],[0,1,0],[0],[0],[0],[0],[0]]}}",
     {"expert 1", "rank 0 is listed twice"}},
    {"{\"ranks\": 2, \"layers\": {" STAR "," ENCODER ", \"2\": [[0],[0],[\"0\"],[0],[0],[0],[0]]}}",
     {"expert 2", "must be an integer"}},
    {"{\"ranks\": 2, \"layers\": {" STAR "," ENCODER ", \"2\": [[0],[0],[0],[0],[0],[0],0]}}",
     {"expert 6", "must be a list of ranks"}},
    {"{\"ranks\": 2, \"layers\": {\"*\": [[0],[0],[0],[0],[0],[0],[9]]," ENCODER "}}",
     {"layer *", "expert 6", "rank 9"}},
};

static void bad_files_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_files / sizeof *bad_files; i++) {
        moepack_error error = {0};
        moepack_placement *p = (moepack_placement *)1;
        write_text(file_path, bad_files[i].text);
        assert_status(moepack_placement_create(pack, file_path, 2, &p, &error), MOEPACK_E_USAGE, &error);
        assert_null(p);
        assert_mentions(&error, "placement.json");
        for (size_t m = 0; m < 3 && bad_files[i].mentions[m] != NULL; m++)
            assert_mentions(&error, bad_files[i].mentions[m]);
    }
}

static void bad_arguments(void **state)
{
    (void)state;
    moepack_error error = {0};
    moepack_placement *p = NULL;
    assert_status(moepack_placement_create(pack, "linear", 0, &p, &error), MOEPACK_E_USAGE, &error);
    assert_status(moepack_placement_create(pack, "lineal", 2, &p, &error), MOEPACK_E_USAGE, &error);
    assert_mentions(&error, "lineal");
    assert_status(moepack_placement_create(pack, NULL, 2, &p, &error), MOEPACK_E_USAGE, &error);
    assert_status(moepack_placement_create(pack, "linear", 2, NULL, NULL), MOEPACK_E_USAGE, &error);
    moepack_placement_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_ranges),         cmocka_unit_test(round_robin),
        cmocka_unit_test(outside_is_false),      cmocka_unit_test(file_with_replicas),
        cmocka_unit_test(bad_files_are_refused), cmocka_unit_test(bad_arguments),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
