/* Sections cut into chunks: what is permuted group by group must be what is permuted whole, and hashes that see the
 * chunks must be those of the whole. */
#include "test_pack_files.h"

#include "pipeline_chunk.h"
#include "pipeline_hash.h"

#include <stdlib.h>
#include <string.h>

/* A row-major matrix at an element position. */
static moepack_matrix row_major(moepack_plane plane, uint32_t bits, uint64_t rows, uint64_t cols, uint64_t base)
{
    return (moepack_matrix){.role = MOEPACK_ROLE_GATE,
                            .plane = plane,
                            .encoding = plane == MOEPACK_PLANE_SCALE ? MOEPACK_ENC_E8M0 : MOEPACK_ENC_BF16,
                            .bits = bits,
                            .group_rows = plane == MOEPACK_PLANE_SCALE ? 1 : 0,
                            .group_cols = plane == MOEPACK_PLANE_SCALE ? 32 : 0,
                            .rows = rows,
                            .cols = cols,
                            .base = base,
                            .row_stride = cols,
                            .col_stride = 1};
}

static uint8_t *pattern(size_t size)
{
    uint8_t *bytes = malloc(size + 1);
    assert_non_null(bytes);
    uint32_t x = 12345;
    for (size_t i = 0; i < size; i++) {
        x = x * 1664525 + 1013904223;
        bytes[i] = (uint8_t)(x >> 24);
    }
    return bytes;
}

/* Goes through all chunks both ways and compares with the whole; returns how many chunks there were. */
static unsigned walk(const mpk_shape *shape, uint64_t limit, const uint8_t *canonical, const uint8_t *stored)
{
    mpk_chunker chunker;
    mpk_chunk chunk;
    uint64_t most_canonical, most_stored, c = 0, s = 0;
    unsigned count = 0;
    moepack_error error;
    mpk_chunker_init(&chunker, shape, limit);
    mpk_chunker_need(&chunker, &most_canonical, &most_stored);
    while (mpk_chunker_next(&chunker, &chunk)) {
        assert_int_equal(chunk.canonical_offset, c);
        assert_int_equal(chunk.stored_offset, s);
        assert_true(chunk.canonical_length <= most_canonical);
        if (!chunk.same) {
            assert_true(chunk.stored_length <= most_stored);
            uint8_t *to = malloc(chunk.stored_length), *back = malloc(chunk.canonical_length);
            assert_status(moepack_panel_from_canonical(chunk.matrices, chunk.matrix_count, canonical + c,
                                                       chunk.canonical_length, to, chunk.stored_length, &error),
                          MOEPACK_OK, &error, "");
            assert_memory_equal(to, stored + s, chunk.stored_length);
            assert_status(moepack_panel_to_canonical(chunk.matrices, chunk.matrix_count, stored + s,
                                                     chunk.stored_length, back, chunk.canonical_length, &error),
                          MOEPACK_OK, &error, "");
            assert_memory_equal(back, canonical + c, chunk.canonical_length);
            free(to);
            free(back);
        }
        c += chunk.canonical_length;
        s += chunk.stored_length;
        count++;
    }
    assert_int_equal(c, shape->canonical_length);
    assert_int_equal(s, shape->decoded_length);
    return count;
}

/* All limits from tiny to everything; `cuts`: whether a small limit must give several chunks. */
static void check(const moepack_matrix *matrices, uint32_t count, uint64_t canonical_length, bool cuts)
{
    moepack_error error;
    mpk_shape shape = {.matrices = matrices,
                       .matrix_count = count,
                       .layout = MOEPACK_LAYOUT_PANEL,
                       .canonical_length = canonical_length};
    for (uint32_t i = 0; i < count; i++) {
        uint64_t length;
        assert_true(moepack_panel_length(&matrices[i], &length));
        shape.decoded_length += length;
    }
    uint8_t *canonical = pattern(canonical_length), *stored = malloc(shape.decoded_length);
    assert_status(moepack_panel_from_canonical(matrices, count, canonical, canonical_length, stored,
                                               shape.decoded_length, &error),
                  MOEPACK_OK, &error, "");
    for (uint64_t limit = 1; limit < 2 * shape.decoded_length + 2; limit = limit * 3 / 2 + 1) {
        unsigned chunks = walk(&shape, limit, canonical, stored);
        if (limit == 1) assert_true(cuts ? chunks > 1 : chunks == 1);
    }
    free(canonical);
    free(stored);
}

static void cuts_row_major_matrices(void **state)
{
    (void)state;
    static const struct {
        moepack_plane plane;
        uint32_t bits;
    } kinds[] = {{MOEPACK_PLANE_WEIGHT, 4},  {MOEPACK_PLANE_WEIGHT, 8}, {MOEPACK_PLANE_WEIGHT, 16},
                 {MOEPACK_PLANE_WEIGHT, 32}, {MOEPACK_PLANE_SCALE, 8},  {MOEPACK_PLANE_SCALE, 16}};
    static const uint64_t rows[] = {17, 32, 100, 129}, cols[] = {2, 10, 64, 97};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t r = 0; r < 4; r++)
            for (size_t c = 0; c < 4; c++) {
                if (kinds[k].bits == 4 && rows[r] * cols[c] % 2 != 0) continue; /* no whole number of bytes */
                moepack_matrix m = row_major(kinds[k].plane, kinds[k].bits, rows[r], cols[c], 0);
                if (kinds[k].bits == 16 && kinds[k].plane == MOEPACK_PLANE_SCALE) m.encoding = MOEPACK_ENC_BF16;
                check(&m, 1, rows[r] * cols[c] * kinds[k].bits / 8, true);
            }
}

/* gate over up in one tensor, one after the other: two row-major matrices. */
static void cuts_matrices_that_follow_one_another(void **state)
{
    (void)state;
    moepack_matrix m[2] = {row_major(MOEPACK_PLANE_WEIGHT, 16, 50, 33, 0),
                           row_major(MOEPACK_PLANE_WEIGHT, 16, 70, 33, 50 * 33)};
    check(m, 2, (50 + 70) * 33 * 2, true);
}

/* Interleaved rows and transposed matrices cannot be cut into contiguous ranges. */
static void keeps_strided_matrices_whole(void **state)
{
    (void)state;
    moepack_matrix m[2] = {row_major(MOEPACK_PLANE_WEIGHT, 16, 40, 24, 0),
                           row_major(MOEPACK_PLANE_WEIGHT, 16, 40, 24, 24)};
    m[0].row_stride = m[1].row_stride = 48;
    check(m, 2, 80 * 24 * 2, false);
    moepack_matrix transposed = row_major(MOEPACK_PLANE_WEIGHT, 16, 40, 24, 0);
    transposed.row_stride = 1;
    transposed.col_stride = 40;
    check(&transposed, 1, 40 * 24 * 2, false);
}

static void cuts_published_order_anywhere(void **state)
{
    (void)state;
    uint8_t *bytes = pattern(1000);
    mpk_shape shape;
    mpk_shape_opaque(1000, &shape);
    assert_int_equal(walk(&shape, 1, bytes, bytes), 1000);
    assert_int_equal(walk(&shape, 300, bytes, bytes), 4);
    assert_int_equal(walk(&shape, 5000, bytes, bytes), 1);
    mpk_shape_opaque(0, &shape);
    assert_int_equal(walk(&shape, 10, bytes, bytes), 0);
    free(bytes);
}

typedef struct parts {
    uint64_t hash[8];
    uint64_t count;
} parts;

static void take_part(void *user, uint64_t i, uint64_t xxh3)
{
    parts *p = user;
    assert_int_equal(i, p->count);
    p->hash[p->count++] = xxh3;
}

static void hashes_chunks_and_parts(void **state)
{
    (void)state;
    const size_t size = (9 << 20) + 12345;
    uint8_t *bytes = pattern(size);
    moepack_error error;
    mpk_lanes lanes;
    assert_status(mpk_lanes_init(&lanes, 1, UINT64_MAX, &error), MOEPACK_OK, &error, "");
    static const size_t steps[] = {1 << 20, 5000001, 4 << 20, SIZE_MAX};
    for (size_t k = 0; k < 4; k++) {
        parts p = {.count = 0};
        mpk_section_hash hasher;
        mpk_section_hash_init(&hasher, lanes.lane, false, size, take_part, &p);
        for (size_t at_byte = 0; at_byte < size;) {
            size_t step = size - at_byte < steps[k] ? size - at_byte : steps[k];
            mpk_section_hash_canonical(&hasher, bytes + at_byte, step);
            mpk_section_hash_stored(&hasher, bytes + at_byte, step);
            at_byte += step;
        }
        uint64_t canonical, stored;
        mpk_section_hash_end(&hasher, &canonical, &stored);
        assert_true(canonical == moepack_hash64(bytes, size));
        assert_true(stored == canonical);
        assert_int_equal(p.count, 3);
        assert_true(p.hash[0] == moepack_hash64(bytes, 4 << 20));
        assert_true(p.hash[1] == moepack_hash64(bytes + (4 << 20), 4 << 20));
        assert_true(p.hash[2] == moepack_hash64(bytes + (8 << 20), size - (8 << 20)));
    }
    mpk_lanes_free(&lanes);
    free(bytes);
}

/* The pool lends at most half of itself, and what can never fit is refused instead of waited for. */
static void pool_is_bounded(void **state)
{
    (void)state;
    moepack_error error;
    for (unsigned jobs = 1; jobs <= MPK_JOBS_MAX; jobs *= 2)
        assert_true(mpk_lanes_memory(jobs, MPK_POOL_BYTES / 2) <= MPK_POOL_BYTES);
    mpk_lanes lanes;
    mpk_buffers buffers;
    assert_status(mpk_lanes_init(&lanes, 2, UINT64_MAX, &error), MOEPACK_OK, &error, "");
    assert_status(mpk_buffers_take(&lanes.lane[0], 100, lanes.bytes, &buffers, &error), MOEPACK_OK, &error, "");
    assert_ptr_equal(buffers.in, lanes.lane[0].in);
    mpk_buffers_return(&lanes.lane[0], &buffers);
    assert_status(mpk_buffers_take(&lanes.lane[0], lanes.bytes + 1, 10, &buffers, &error), MOEPACK_OK, &error, "");
    assert_ptr_not_equal(buffers.in, lanes.lane[0].in);
    memset(buffers.in, 1, lanes.bytes + 1);
    memset(buffers.out, 2, 10);
    mpk_buffers_return(&lanes.lane[0], &buffers);
    assert_int_equal(lanes.lendable, MPK_POOL_BYTES / 2);
    assert_status(mpk_buffers_take(&lanes.lane[0], MPK_POOL_BYTES / 2, 1, &buffers, &error), MOEPACK_E_REFUSED, &error,
                  "");
    assert_status(mpk_buffers_take(&lanes.lane[0], UINT64_MAX, UINT64_MAX, &buffers, &error), MOEPACK_E_REFUSED, &error,
                  "");
    mpk_lanes_free(&lanes);
}

static moepack_status failing_job(void *user, unsigned lane, size_t item, moepack_error *error)
{
    (void)lane;
    size_t *from = user;
    if (item < *from) return MOEPACK_OK;
    *error = (moepack_error){.status = MOEPACK_E_CORRUPT, .expert = (int64_t)item, .offset = -1};
    return MOEPACK_E_CORRUPT;
}

/* Items are handed out in order, so the first that fails is always reached, and its error is the one returned. */
static void lowest_failure_wins(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 50; round++) {
        size_t from = round;
        moepack_error error;
        assert_int_equal(mpk_jobs_run(4, 1000, NULL, failing_job, &from, &error), MOEPACK_E_CORRUPT);
        assert_int_equal(error.expert, round);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_row_major_matrices),      cmocka_unit_test(cuts_matrices_that_follow_one_another),
        cmocka_unit_test(keeps_strided_matrices_whole), cmocka_unit_test(cuts_published_order_anywhere),
        cmocka_unit_test(hashes_chunks_and_parts),      cmocka_unit_test(pool_is_bounded),
        cmocka_unit_test(lowest_failure_wins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
