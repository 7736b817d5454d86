/* Balanced placements: what they promise (even memory, replicas within their bytes, never worse than the plain rules)
 * on random loads, and a small case whose best answer is known by trying all of them. */
#include "support.h"

#include "container.h"

#include <stdlib.h>
#include <string.h>

static char root[256], pack_path[300];
static moepack_pack *pack;

static int set_up(void **state)
{
    (void)state;
    moepack_error error = {0};
    const container_spec spec = container_default();
    new_dir(root, NULL);
    snprintf(pack_path, sizeof pack_path, "%s/small.moepack", root);
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

static uint32_t block_count(void)
{
    return moepack_index_blocks(moepack_pack_index(pack));
}

static moepack_block block_of(uint32_t b)
{
    moepack_block block;
    moepack_index_block(moepack_pack_index(pack), b, &block);
    return block;
}

/* Loads from nothing to very skewed; `seed` 0: all equal. */
static uint64_t **make_rows(unsigned seed)
{
    uint64_t **rows = calloc(block_count(), sizeof *rows), state = seed;
    for (uint32_t b = 0; b < block_count(); b++) {
        rows[b] = calloc(block_of(b).experts, sizeof **rows);
        for (uint32_t e = 0; e < block_of(b).experts; e++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            rows[b][e] = seed == 0 ? 7 : (state >> 33) % 1000 >> (state >> 60);
        }
    }
    return rows;
}

static void free_rows(uint64_t **rows)
{
    for (uint32_t b = 0; b < block_count(); b++) free(rows[b]);
    free(rows);
}

static double largest(const moepack_placement *p, uint32_t b, const uint64_t *rows, bool divided)
{
    double per_rank[16], most = 0;
    moepack_placement_load(p, b, rows, divided, per_rank);
    for (uint32_t r = 0; r < moepack_placement_ranks(p); r++)
        if (per_rank[r] > most) most = per_rank[r];
    return most;
}

static moepack_placement *balance(uint64_t **rows, uint32_t ranks, uint64_t replica_bytes)
{
    moepack_error error = {0};
    moepack_placement *p = NULL;
    assert_ok(moepack_placement_balance(pack, ranks, (const uint64_t *const *)rows, replica_bytes, &p, &error), &error);
    assert_int_equal(moepack_placement_ranks(p), ranks);
    return p;
}

static void keeps_its_promises(void **state)
{
    (void)state;
    moepack_error error = {0};
    for (unsigned seed = 0; seed < 40; seed++) {
        const uint32_t ranks = 1 + seed % 7;
        uint64_t **rows = make_rows(seed);
        moepack_placement *p = balance(rows, ranks, 0), *plain;
        assert_ok(moepack_placement_create(pack, "linear", ranks, &plain, &error), &error);
        uint32_t sum[16] = {0}, least = UINT32_MAX, most = 0;
        for (uint32_t b = 0; b < block_count(); b++) {
            const uint32_t experts = block_of(b).experts;
            for (uint32_t r = 0; r < ranks; r++) {
                uint32_t holds = 0;
                for (uint32_t e = 0; e < experts; e++) {
                    assert_int_equal(moepack_placement_holds(p, r, b, e), moepack_placement_computes(p, r, b, e));
                    holds += moepack_placement_holds(p, r, b, e);
                }
                assert_true(holds == experts / ranks || holds == experts / ranks + 1);
                sum[r] += holds;
            }
            assert_true(largest(p, b, rows[b], false) <= largest(plain, b, rows[b], false));
        }
        for (uint32_t r = 0; r < ranks; r++) {
            if (sum[r] < least) least = sum[r];
            if (sum[r] > most) most = sum[r];
        }
        assert_true(most - least <= 1);
        moepack_placement_free(plain);
        moepack_placement_free(p);
        free_rows(rows);
    }
}

/* The smallest possible largest load of two ranks with equally many experts, by trying every subset. */
static uint64_t best_of_all(const uint64_t *rows, uint32_t experts)
{
    uint64_t best = UINT64_MAX, total = 0;
    for (uint32_t e = 0; e < experts; e++) total += rows[e];
    for (uint32_t subset = 0; subset < 1u << experts; subset++) {
        uint64_t sum = 0;
        uint32_t count = 0;
        for (uint32_t e = 0; e < experts; e++) {
            if (!(subset >> e & 1)) continue;
            count++;
            sum += rows[e];
        }
        if (count != experts / 2 && count != (experts + 1) / 2) continue;
        const uint64_t larger = sum > total - sum ? sum : total - sum;
        if (larger < best) best = larger;
    }
    return best;
}

/* Nothing can be below the best of all, and two ranks stay within Graham's bound for longest processing time first,
 * 7/6. */
static void close_to_the_best(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed < 30; seed++) {
        uint64_t **rows = make_rows(seed);
        moepack_placement *p = balance(rows, 2, 0);
        for (uint32_t b = 0; b < block_count(); b++) {
            const double best = (double)best_of_all(rows[b], block_of(b).experts),
                         found = largest(p, b, rows[b], false);
            assert_true(found >= best && found <= best * 7 / 6);
        }
        moepack_placement_free(p);
        free_rows(rows);
    }
}

static void replicas_stay_within_their_bytes(void **state)
{
    (void)state;
    moepack_record record;
    moepack_index_record(moepack_pack_index(pack), block_of(0).first_record, &record);
    for (unsigned seed = 1; seed < 20; seed++) {
        uint64_t **rows = make_rows(seed);
        const uint64_t bytes = block_count() * record.length * (1 + seed % 3);
        moepack_placement *alone = balance(rows, 3, 0), *p = balance(rows, 3, bytes), *again = balance(rows, 3, bytes);
        bool any = false;
        for (uint32_t r = 0; r < 3; r++) {
            uint64_t extra = 0;
            for (uint32_t b = 0; b < block_count(); b++) {
                for (uint32_t e = 0; e < block_of(b).experts; e++) {
                    moepack_index_record(moepack_pack_index(pack), block_of(b).first_record + e, &record);
                    const bool holds = moepack_placement_holds(p, r, b, e),
                               computes = moepack_placement_computes(p, r, b, e);
                    assert_int_equal(computes, moepack_placement_computes(alone, r, b, e));
                    assert_int_equal(holds, moepack_placement_holds(again, r, b, e));
                    if (holds && !computes) extra += record.length;
                }
            }
            assert_true(extra <= bytes);
            any = any || extra > 0;
        }
        for (uint32_t b = 0; b < block_count(); b++)
            assert_true(largest(p, b, rows[b], true) <= largest(alone, b, rows[b], true));
        assert_true(any);
        moepack_placement_free(again);
        moepack_placement_free(p);
        moepack_placement_free(alone);
        free_rows(rows);
    }
}

static void unmeasured_blocks_are_linear(void **state)
{
    (void)state;
    moepack_error error = {0};
    uint64_t **rows = make_rows(5);
    free(rows[1]);
    rows[1] = NULL;
    moepack_placement *p = balance(rows, 4, 0), *plain;
    assert_ok(moepack_placement_create(pack, "linear", 4, &plain, &error), &error);
    for (uint32_t r = 0; r < 4; r++)
        for (uint32_t e = 0; e < block_of(1).experts; e++)
            assert_int_equal(moepack_placement_computes(p, r, 1, e), moepack_placement_computes(plain, r, 1, e));
    moepack_placement_free(plain);
    moepack_placement_free(p);
    free_rows(rows);
}

static void files_come_back(void **state)
{
    (void)state;
    moepack_error error = {0};
    char path[320];
    snprintf(path, sizeof path, "%s/balanced.json", root);
    uint64_t **rows = make_rows(9);
    moepack_placement *p = balance(rows, 3, UINT64_C(1) << 20), *read;
    assert_ok(moepack_placement_write(p, pack, path, &error), &error);
    assert_ok(moepack_placement_create(pack, path, 3, &read, &error), &error);
    for (uint32_t b = 0; b < block_count(); b++) {
        for (uint32_t e = 0; e < block_of(b).experts; e++) {
            for (uint32_t r = 0; r < 3; r++) {
                assert_int_equal(moepack_placement_holds(read, r, b, e), moepack_placement_holds(p, r, b, e));
                assert_int_equal(moepack_placement_computes(read, r, b, e), moepack_placement_computes(p, r, b, e));
            }
        }
    }
    assert_int_equal(moepack_placement_write(p, pack, path, &error), MOEPACK_E_REFUSED);
    moepack_placement_free(read);
    moepack_placement_free(p);
    free_rows(rows);
    assert_int_equal(moepack_placement_balance(pack, 0, (const uint64_t *const *)&(uint64_t *){NULL}, 0, &p, &error),
                     MOEPACK_E_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        cmocka_unit_test(close_to_the_best),
        cmocka_unit_test(replicas_stay_within_their_bytes),
        cmocka_unit_test(unmeasured_blocks_are_linear),
        cmocka_unit_test(files_come_back),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
