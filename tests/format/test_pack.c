/* Opening a container from a folder and reading its content; damage of every kind and the verdict for it. */
#include "sample.h"

#include "io/io.h"
#include "io/pack.h"
#include "repair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sample s;
static char folder[64], dir[128];

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "format_pack_XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(dir, sizeof dir, "%s/a.moepack", folder);
    sample_make(&s, SAMPLE_BIG);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sample_free(&s);
    return mpk_tree_remove(folder, NULL) != MOEPACK_OK;
}

static int fresh(void **state)
{
    (void)state;
    if (mpk_tree_remove(dir, NULL) != MOEPACK_OK || mkdir(dir, 0777) != 0) return 1;
    sample_write(&s, dir);
    return 0;
}

static const char *in_dir(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* The section of a place, as published, against what the sample made. */
static void check_content(mpk_pack *pack, const mpk_section_place *place)
{
    void *bytes;
    uint64_t size;
    moepack_error e;
    assert_status(MOEPACK_OK, mpk_pack_read_canonical(pack, place, &bytes, &size, &e), &e);
    assert_int_equal(size, s.canonical_size[place->section]);
    assert_memory_equal(bytes, s.canonical[place->section], size);
    free(bytes);
    uint64_t stored = s.t.sections[place->section].stored_length;
    uint8_t *exact = malloc(stored + 1);
    assert_non_null(exact);
    assert_status(MOEPACK_OK, mpk_pack_read_stored(pack, place, true, exact, &e), &e);
    assert_memory_equal(exact, s.stored[place->section], stored);
    free(exact);
}

/* An error about a trunk tensor names the layer if, and only if, it belongs to a MoE block. Returns whether it does. */
static bool names_its_layer(const mpk_pack *pack, uint32_t i, const mpk_section_place *place)
{
    moepack_error e = {.expert = -1, .offset = -1};
    moepack_tensor tensor;
    char label[MOEPACK_LABEL_MAX] = "";
    moepack_index_tensor(mpk_pack_index(pack), i, &tensor);
    if (tensor.block != MOEPACK_NO_BLOCK) moepack_index_label(mpk_pack_index(pack), tensor.block, label);
    mpk_pack_error_place(pack, place, &e);
    assert_string_equal(e.layer, label);
    return tensor.block != MOEPACK_NO_BLOCK;
}

static void test_all_content(void **state)
{
    (void)state;
    mpk_pack *pack;
    moepack_error e;
    mpk_section_place place;
    assert_status(MOEPACK_OK, mpk_pack_open(dir, &pack, &e), &e);
    assert_string_equal(mpk_pack_dir(pack), dir);
    assert_string_equal(mpk_pack_shard_path(pack, 1), in_dir("experts-0000-0001.mpk"));
    assert_string_equal(mpk_pack_shard_path(pack, 7), "");
    const moepack_index *x = mpk_pack_index(pack);
    unsigned sections = 0;
    for (uint32_t b = 0; b < 2; ++b) {
        for (uint32_t expert = 0; expert < 3; ++expert) {
            moepack_record r;
            uint32_t first, count;
            moepack_index_record(x, b * 3 + expert, &r);
            if (r.shard == MOEPACK_NO_SHARD) continue;
            moepack_index_schema(x, r.schema, &first, &count);
            for (uint32_t k = 0; k < count; ++k, ++sections) {
                mpk_pack_place_expert(pack, b, expert, k, &place);
                assert_true(place.section == r.first_section + k && place.desc == first + k);
                assert_non_null(strstr(place.name, "experts."));
                check_content(pack, &place);
            }
        }
    }
    uint32_t in_blocks = 0;
    for (uint32_t i = 0; i < moepack_index_tensors(x); ++i, ++sections) {
        mpk_pack_place_tensor(pack, i, &place);
        check_content(pack, &place);
        in_blocks += names_its_layer(pack, i, &place);
    }
    for (uint32_t i = 0; i < moepack_index_source_files(x); ++i, ++sections) {
        mpk_pack_place_file(pack, i, &place);
        check_content(pack, &place);
    }
    assert_true(in_blocks > 0);
    assert_int_equal(sections, s.t.section_count);
    /* an expert that a subset left out, and what does not exist at all */
    uint8_t byte;
    mpk_pack_place_expert(pack, 1, 1, 0, &place);
    assert_status(MOEPACK_E_INCOMPLETE, mpk_pack_read_stored(pack, &place, true, &byte, &e), &e);
    assert_string_equal(e.layer, "mtp.0");
    assert_int_equal(e.expert, 1);
    void *bytes;
    uint64_t size;
    assert_status(MOEPACK_E_INCOMPLETE, mpk_pack_read_canonical(pack, &place, &bytes, &size, &e), &e);
    mpk_pack_place_expert(pack, 9, 99, 9, &place);
    assert_status(MOEPACK_E_INCOMPLETE, mpk_pack_read_canonical(pack, &place, &bytes, &size, &e), &e);
    mpk_pack_place_tensor(pack, 999, &place);
    assert_status(MOEPACK_E_INCOMPLETE, mpk_pack_read_canonical(pack, &place, &bytes, &size, &e), &e);
    int fd;
    assert_status(MOEPACK_E_USAGE, mpk_pack_shard(pack, 3, &fd, &e), &e);
    mpk_pack_close(pack);
    mpk_pack_close(NULL);
}

static void expect_open(const char *path, moepack_status expected)
{
    mpk_pack *pack;
    moepack_error e;
    assert_status(expected, mpk_pack_open(path, &pack, &e), &e);
    if (expected != MOEPACK_OK) {
        assert_null(pack);
        assert_true(e.file[0] != '\0');
    }
    mpk_pack_close(pack);
}

static void test_open(void **state)
{
    (void)state;
    char other[200];
    expect_open(dir, MOEPACK_OK);
    snprintf(other, sizeof other, "%s/", dir);
    expect_open(other, MOEPACK_OK);
    snprintf(other, sizeof other, "%s/none", folder);
    expect_open(other, MOEPACK_E_INCOMPLETE);
    expect_open(in_dir("index.mpk"), MOEPACK_E_IO);
    snprintf(other, sizeof other, "%s/x.moepack.partial", folder);
    assert_int_equal(rename(dir, other), 0);
    expect_open(other, MOEPACK_E_INCOMPLETE);
    strcat(other, "//");
    expect_open(other, MOEPACK_E_INCOMPLETE);
    assert_int_equal(rename(other, dir), 0);
    assert_int_equal(truncate(in_dir("index.mpk"), 1000), 0);
    expect_open(dir, MOEPACK_E_INCOMPLETE);
    assert_int_equal(truncate(in_dir("index.mpk"), 0), 0);
    expect_open(dir, MOEPACK_E_INCOMPLETE);
    assert_int_equal(unlink(in_dir("index.mpk")), 0);
    expect_open(dir, MOEPACK_E_INCOMPLETE);
    assert_int_equal(mkfifo(in_dir("index.mpk"), 0600), 0);
    alarm(20);
    expect_open(dir, MOEPACK_E_IO);
    alarm(0);
}

static void poke(const char *name, long offset, int mask)
{
    FILE *file = fopen(in_dir(name), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_true(byte >= 0);
    assert_int_equal(fseek(file, offset, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ mask, file), byte ^ mask);
    assert_int_equal(fclose(file), 0);
}

/* Opens the pack anew and asks for a shard twice: the same answer both times. */
static void expect_shard(uint32_t shard, moepack_status expected, const char *word)
{
    mpk_pack *pack;
    moepack_error e = {0}, again;
    int fd;
    assert_status(MOEPACK_OK, mpk_pack_open(dir, &pack, &e), &e);
    assert_status(expected, mpk_pack_shard(pack, shard, &fd, &e), &e);
    assert_true((fd >= 0) == (expected == MOEPACK_OK));
    if (expected != MOEPACK_OK) {
        assert_string_equal(e.file, mpk_pack_shard_path(pack, shard));
        assert_non_null(strstr(e.message, word));
        assert_int_equal(mpk_pack_shard(pack, shard, &fd, &again), expected);
        assert_string_equal(again.message, e.message);
    }
    mpk_pack_close(pack);
}

static void test_shards(void **state)
{
    (void)state;
    static const char name[] = "experts-0000-0001.mpk", second[] = "experts-0002-0002.mpk";
    const moepack_shard *shard = &s.t.shards[1];
    expect_shard(0, MOEPACK_OK, "");
    expect_shard(1, MOEPACK_OK, "");
    for (long i = 0; i < 4096; i += i < 128 ? 1 : 31) { /* every byte of the header, some of the zeros behind it */
        poke(name, i, 0x10);
        expect_shard(1, MOEPACK_E_CORRUPT, "header");
        poke(name, i, 0x10);
    }
    for (long i = 0; i < (long)shard->tail_length; i += 37) {
        poke(name, (long)shard->tail_offset + i, 0x80);
        expect_shard(1, MOEPACK_E_CORRUPT, "tail");
        poke(name, (long)shard->tail_offset + i, 0x80);
    }
    static const long lengths[] = {0, 1, 63, 64, 127, 128, 4095, 4096, 5000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; ++i) {
        assert_int_equal(fresh(NULL), 0);
        assert_int_equal(truncate(in_dir(name), lengths[i]), 0);
        expect_shard(1, MOEPACK_E_INCOMPLETE, "bytes");
    }
    assert_int_equal(fresh(NULL), 0);
    assert_int_equal(truncate(in_dir(name), (long)shard->file_length - 1), 0);
    expect_shard(1, MOEPACK_E_INCOMPLETE, "bytes");
    assert_int_equal(truncate(in_dir(name), (long)shard->file_length + 1), 0);
    expect_shard(1, MOEPACK_E_CORRUPT, "bytes");
    assert_int_equal(unlink(in_dir(name)), 0);
    expect_shard(1, MOEPACK_E_INCOMPLETE, "No such file");
    expect_shard(2, MOEPACK_OK, ""); /* the others are not affected */
    /* a shard in another's place */
    char from[200];
    strcpy(from, in_dir(second));
    assert_int_equal(rename(from, in_dir(name)), 0);
    expect_shard(1, MOEPACK_E_CORRUPT, "shard number");
    /* cut short as well: corrupt wins */
    assert_int_equal(truncate(in_dir(name), 5000), 0);
    expect_shard(1, MOEPACK_E_CORRUPT, "shard number");
}

/* The shard of another container with the same plan is told by its root, one of another plan by the plan id. */
static void test_foreign_shards(void **state)
{
    (void)state;
    mpk_buf bytes = {0};
    sample_encode_shard(&s, 1, &bytes);
    for (int other_plan = 0; other_plan < 2; ++other_plan) {
        bytes.data[other_plan ? 64 : 104] ^= 1;
        repair_header(bytes.data, 128);
        FILE *file = fopen(in_dir("experts-0000-0001.mpk"), "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(bytes.data, 1, bytes.size, file), bytes.size);
        fclose(file);
        expect_shard(1, MOEPACK_E_CORRUPT, other_plan ? "plan_id" : "shard_root");
    }
    free(bytes.data);
}

static void test_damaged_content(void **state)
{
    (void)state;
    mpk_pack *pack;
    moepack_error e;
    mpk_section_place place;
    void *bytes;
    uint64_t size;
    uint8_t buf[4096];
    const moepack_section *section = &s.t.sections[2]; /* w2.weight_packed of block 0, expert 0 */
    poke("experts-0000-0001.mpk", (long)section->offset + 100, 4);
    assert_status(MOEPACK_OK, mpk_pack_open(dir, &pack, &e), &e);
    mpk_pack_place_expert(pack, 0, 0, 2, &place);
    assert_status(MOEPACK_OK, mpk_pack_read_stored(pack, &place, false, buf, &e), &e);
    assert_status(MOEPACK_E_CORRUPT, mpk_pack_read_stored(pack, &place, true, buf, &e), &e);
    assert_status(MOEPACK_E_CORRUPT, mpk_pack_read_canonical(pack, &place, &bytes, &size, &e), &e);
    assert_null(bytes);
    assert_string_equal(e.file, in_dir("experts-0000-0001.mpk"));
    assert_string_equal(e.layer, "1");
    assert_int_equal(e.expert, 0);
    assert_string_equal(e.tensor, "layers.1.moe.experts.0.w2.weight_packed");
    assert_int_equal(e.offset, section->offset);
    char ending[64], expected[17], found[17];
    moepack_hash64_text(section->xxh3_stored, expected);
    moepack_hash64_text(moepack_hash64(buf, section->stored_length), found);
    snprintf(ending, sizeof ending, "expected %s, found %s", expected, found);
    assert_string_equal(e.message + strlen(e.message) - strlen(ending), ending);
    mpk_pack_place_expert(pack, 0, 0, 3, &place); /* its neighbours are fine */
    check_content(pack, &place);
    mpk_pack_close(pack);
}

/* Panel bytes and their hash agree, but the published bytes do not: caught by the second hash. */
static void test_wrong_canonical_hash(void **state)
{
    (void)state;
    mpk_pack *pack;
    moepack_error e;
    mpk_section_place place;
    void *bytes;
    uint64_t size;
    s.t.sections[0].xxh3_canonical ^= 1;
    mpk_buf tail = {0}, index = {0};
    assert_status(MOEPACK_OK, mpk_encode_expert_tail(&s.t, 1, &tail, &e), &e);
    moepack_hash128 keep = s.t.shards[1].root;
    s.t.shards[1].root = moepack_hash128_of(tail.data, tail.size);
    sample_write(&s, dir);
    assert_status(MOEPACK_OK, mpk_pack_open(dir, &pack, &e), &e);
    mpk_pack_place_expert(pack, 0, 0, 0, &place);
    assert_status(MOEPACK_E_CORRUPT, mpk_pack_read_canonical(pack, &place, &bytes, &size, &e), &e);
    assert_non_null(strstr(e.message, "published bytes"));
    mpk_pack_close(pack);
    s.t.shards[1].root = keep;
    s.t.sections[0].xxh3_canonical ^= 1;
    free(tail.data);
    free(index.data);
}

/* A section in a codec of the future: stored bytes can be read and checked, its content cannot. */
static void test_unknown_codec(void **state)
{
    (void)state;
    mpk_pack *pack;
    moepack_error e;
    mpk_section_place place;
    void *bytes;
    uint64_t size;
    moepack_section *big = &s.t.sections[s.t.tensors[8].section];
    big->codec = (moepack_codec)3;
    mpk_buf tail = {0};
    assert_status(MOEPACK_OK, mpk_encode_trunk_tail(&s.t, 0, &tail, &e), &e);
    moepack_hash128 keep = s.t.shards[0].root;
    s.t.shards[0].root = moepack_hash128_of(tail.data, tail.size);
    sample_write(&s, dir);
    assert_status(MOEPACK_OK, mpk_pack_open(dir, &pack, &e), &e);
    mpk_pack_place_tensor(pack, 8, &place);
    uint8_t *stored = malloc(big->stored_length);
    assert_non_null(stored);
    assert_status(MOEPACK_OK, mpk_pack_read_stored(pack, &place, true, stored, &e), &e);
    assert_status(MOEPACK_E_UNSUPPORTED, mpk_pack_read_canonical(pack, &place, &bytes, &size, &e), &e);
    assert_string_equal(e.tensor, "zbig");
    mpk_pack_close(pack);
    free(stored);
    free(tail.data);
    s.t.shards[0].root = keep;
    big->codec = MOEPACK_CODEC_RAW;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_all_content, fresh),     cmocka_unit_test_setup(test_open, fresh),
        cmocka_unit_test_setup(test_shards, fresh),          cmocka_unit_test_setup(test_foreign_shards, fresh),
        cmocka_unit_test_setup(test_damaged_content, fresh), cmocka_unit_test_setup(test_wrong_canonical_hash, fresh),
        cmocka_unit_test_setup(test_unknown_codec, fresh),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
