/* verify on damaged containers: every kind of damage is found, named, and does not hide the next one. */
#include "test_pack_files.h"

#include "io/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A container of k3_tiny with several expert and trunk shards, made once. */
static const char *pack(void)
{
    static const char *path;
    if (!path) {
        path = at("tiny.moepack");
        moepack_convert_options options = options_of(MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, 400000, 2);
        convert_to(TINY, path, &options, NULL);
    }
    return path;
}

static const char *shard_path(uint32_t shard)
{
    void *bytes;
    moepack_index *index = open_index(pack(), &bytes);
    moepack_shard entry;
    char name[64];
    moepack_index_shard(index, shard, &entry);
    snprintf(name, sizeof name, "%.*s", (int)entry.name.length, entry.name.data);
    moepack_index_close(index);
    free(bytes);
    return at2(pack(), name);
}

/* Number of the first shard of a kind. */
static uint32_t first_shard(moepack_shard_kind kind)
{
    void *bytes;
    moepack_index *index = open_index(pack(), &bytes);
    uint32_t found = UINT32_MAX;
    for (uint32_t i = 0; i < moepack_index_shards(index) && found == UINT32_MAX; i++) {
        moepack_shard entry;
        moepack_index_shard(index, i, &entry);
        if (entry.kind == kind) found = i;
    }
    moepack_index_close(index);
    free(bytes);
    assert_true(found != UINT32_MAX);
    return found;
}

static moepack_status verify_pack(findings *found)
{
    moepack_error error;
    return verify_into(pack(), NULL, found, NULL, &error);
}

static void sound_container_has_no_findings(void **state)
{
    (void)state;
    static findings found;
    moepack_verify_report report;
    moepack_error error;
    uint64_t bytes = 0;
    assert_status(verify_into(pack(), NULL, &found, &report, &error), MOEPACK_OK, &error, "");
    assert_int_equal(found.count, 0);
    assert_int_equal(report.bad + report.missing, 0);
    /* Every byte of every file is looked at. */
    void *index_bytes;
    moepack_index *index = open_index(pack(), &index_bytes);
    for (uint32_t i = 0; i < moepack_index_shards(index); i++) bytes += size_of(shard_path(i));
    assert_int_equal(report.checked_bytes, bytes + size_of(at2(pack(), "index.mpk")));
    assert_int_equal(report.checked_sections, moepack_index_sections(index));
    moepack_index_close(index);
    free(index_bytes);
}

static void names_the_damaged_section_of_every_expert(void **state)
{
    (void)state;
    static findings found;
    void *bytes;
    moepack_index *index = open_index(pack(), &bytes);
    unsigned tried = 0;
    for (uint32_t b = 0; b < moepack_index_blocks(index); b++) {
        moepack_block block;
        moepack_index_block(index, b, &block);
        for (uint32_t e = 0; e < block.experts; e++) {
            section_at place;
            find_section(index, b, e, (b + e) % 6, &place);
            uint64_t offset = place.section.offset + (e * 977u) % place.section.stored_length;
            flip(at2(pack(), place.file), offset, 0x10);
            assert_int_equal(verify_pack(&found), MOEPACK_E_CORRUPT);
            flip(at2(pack(), place.file), offset, 0x10);
            assert_int_equal(found.count, 1);
            assert_string_equal(found.item[0].file, place.file);
            assert_string_equal(found.item[0].layer, place.label);
            assert_int_equal(found.item[0].expert, e);
            assert_string_equal(found.item[0].section, place.name);
            assert_int_equal(found.item[0].offset, place.section.offset);
            assert_int_equal(found.item[0].length, place.section.stored_length);
            char hash[17];
            moepack_hash64_text(place.section.xxh3_stored, hash);
            assert_string_equal(found.item[0].expected, hash);
            assert_string_not_equal(found.item[0].found, hash);
            assert_false(found.item[0].missing);
            tried++;
        }
    }
    assert_int_equal(tried, 69);
    moepack_index_close(index);
    free(bytes);
    assert_int_equal(verify_pack(&found), MOEPACK_OK);
}

static void names_the_damaged_trunk_tensor(void **state)
{
    (void)state;
    static findings found;
    unsigned in_blocks = 0;
    void *bytes;
    moepack_index *index = open_index(pack(), &bytes);
    for (uint32_t i = 0; i < moepack_index_tensors(index); i++) {
        moepack_tensor tensor;
        moepack_section section;
        moepack_index_tensor(index, i, &tensor);
        moepack_index_section(index, tensor.section, &section);
        if (section.stored_length == 0) continue;
        const char *path = shard_path(tensor.shard);
        flip(path, section.offset + section.stored_length - 1, 1);
        assert_int_equal(verify_pack(&found), MOEPACK_E_CORRUPT);
        flip(path, section.offset + section.stored_length - 1, 1);
        assert_int_equal(found.count, 1);
        assert_int_equal(strlen(found.item[0].section), tensor.name.length);
        assert_memory_equal(found.item[0].section, tensor.name.data, tensor.name.length);
        assert_int_equal(found.item[0].expert, -1);
        char label[MOEPACK_LABEL_MAX] = "";
        if (tensor.block != MOEPACK_NO_BLOCK) {
            moepack_index_label(index, tensor.block, label);
            in_blocks++;
        }
        assert_string_equal(found.item[0].layer, label);
    }
    assert_true(in_blocks >= 3 * 8); /* routers, biases, latent projections, shared experts */
    moepack_index_close(index);
    free(bytes);
}

static void finds_every_flipped_byte_of_headers_and_tails(void **state)
{
    (void)state;
    static findings found;
    void *bytes;
    moepack_index *index = open_index(pack(), &bytes);
    uint32_t shards[] = {first_shard(MOEPACK_SHARD_TRUNK), first_shard(MOEPACK_SHARD_EXPERTS)};
    for (size_t k = 0; k < 2; k++) {
        moepack_shard shard;
        moepack_index_shard(index, shards[k], &shard);
        const char *path = shard_path(shards[k]);
        for (uint64_t offset = 0; offset < shard.file_length; offset++) {
            bool header = offset < 128, page = offset < 4096, tail = offset >= shard.tail_offset;
            if (!header && page && offset % 1021 != 0) continue; /* a sample of the header page's padding ... */
            if (!page && !tail) continue;
            if (tail && (offset - shard.tail_offset) % 997 != 0) continue; /* ... and of the tail */
            flip(path, offset, 0x40);
            moepack_status status = verify_pack(&found);
            flip(path, offset, 0x40);
            assert_int_equal(status, MOEPACK_E_CORRUPT);
            assert_true(found.count >= 1);
            assert_memory_equal(found.item[0].file, shard.name.data, shard.name.length);
            assert_string_equal(found.item[0].section, header ? "header" : tail ? "tail" : "padding");
            /* The sections are still checked, and are sound. */
            assert_int_equal(found.count, 1);
        }
    }
    moepack_index_close(index);
    free(bytes);
}

static void finds_flipped_padding(void **state)
{
    (void)state;
    static findings found;
    void *bytes;
    moepack_index *index = open_index(pack(), &bytes);
    section_at place;
    /* Expert sections of the fixture do not fill their pages. */
    find_section(index, 1, 7, 0, &place);
    uint64_t offset = place.section.offset + place.section.stored_length;
    assert_true(offset % 4096 != 0);
    flip(at2(pack(), place.file), offset, 0x80);
    assert_int_equal(verify_pack(&found), MOEPACK_E_CORRUPT);
    flip(at2(pack(), place.file), offset, 0x80);
    assert_int_equal(found.count, 1);
    assert_string_equal(found.item[0].section, "padding");
    assert_string_equal(found.item[0].expected, "zero padding");
    assert_string_equal(found.item[0].file, place.file);
    assert_int_equal(found.item[0].offset, offset);
    moepack_index_close(index);
    free(bytes);
}

static void index_damage_is_one_finding(void **state)
{
    (void)state;
    static findings found;
    const char *path = at2(pack(), "index.mpk");
    uint64_t size = size_of(path);
    for (uint64_t offset = 0; offset < size; offset += offset < 128 ? 1 : 61) {
        flip(path, offset, 0x04);
        moepack_status status = verify_pack(&found);
        flip(path, offset, 0x04);
        assert_int_equal(status, MOEPACK_E_CORRUPT);
        assert_int_equal(found.count, 1);
        assert_string_equal(found.item[0].file, "index.mpk");
        assert_int_equal(found.item[0].expert, -1);
        assert_string_equal(found.item[0].layer, "");
    }
}

static void goes_on_and_lists_everything(void **state)
{
    (void)state;
    static findings found;
    void *bytes;
    moepack_index *index = open_index(pack(), &bytes);
    const char *copy = at("many.moepack");
    copy_tree(pack(), copy);
    section_at place;
    unsigned damaged = 0;
    for (uint32_t b = 0; b < 3; b++)
        for (uint32_t e = b; e < 23; e += 4) {
            find_section(index, b, e, 2, &place);
            flip(at2(copy, place.file), place.section.offset, 0xFF);
            damaged++;
        }
    moepack_error error;
    moepack_verify_report report;
    moepack_verify_options options;
    moepack_verify_options_init(&options);
    for (unsigned jobs = 1; jobs <= 4; jobs += 3) {
        options.jobs = jobs;
        assert_status(verify_into(copy, &options, &found, &report, &error), MOEPACK_E_CORRUPT, &error,
                      "layer 1, expert 0");
        assert_int_equal(found.count, damaged);
        assert_int_equal(report.bad, damaged);
        assert_int_equal(report.missing, 0);
        assert_int_equal(report.checked_sections, moepack_index_sections(index));
    }
    moepack_index_close(index);
    free(bytes);
    remove_tree(copy);
}

static void truncated_shard_is_incomplete(void **state)
{
    (void)state;
    static findings found;
    moepack_error error;
    const char *copy = at("short.moepack");
    uint32_t shards[] = {first_shard(MOEPACK_SHARD_TRUNK), first_shard(MOEPACK_SHARD_EXPERTS)};
    for (size_t k = 0; k < 2; k++) {
        const char *name = strrchr(shard_path(shards[k]), '/') + 1;
        uint64_t size = size_of(shard_path(shards[k]));
        const uint64_t lengths[] = {0, 1, 63, 64, 127, 128, 4095, 4096, 5000, size / 2, size - 1};
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            copy_tree(pack(), copy);
            truncate_to(at2(copy, name), lengths[i]);
            assert_status(verify_into(copy, NULL, &found, NULL, &error), MOEPACK_E_INCOMPLETE, &error, name);
            assert_true(found.count >= 2); /* header and tail at least */
            for (size_t f = 0; f < found.count && f < 512; f++) {
                assert_string_equal(found.item[f].file, name);
                assert_true(found.item[f].missing);
            }
            remove_tree(copy);
        }
    }
}

static void extended_shard_is_corrupt(void **state)
{
    (void)state;
    static findings found;
    moepack_error error;
    const char *copy = at("long.moepack");
    copy_tree(pack(), copy);
    const char *path = shard_path(first_shard(MOEPACK_SHARD_EXPERTS));
    append_byte(at2(copy, strrchr(path, '/') + 1), 0);
    assert_status(verify_into(copy, NULL, &found, NULL, &error), MOEPACK_E_CORRUPT, &error, "");
    assert_int_equal(found.count, 1);
    assert_string_equal(found.item[0].section, "header");
    append_byte(at2(copy, "index.mpk"), 0);
    assert_status(verify_into(copy, NULL, &found, NULL, &error), MOEPACK_E_CORRUPT, &error, "index.mpk");
    remove_tree(copy);
}

static void missing_files_are_named(void **state)
{
    (void)state;
    static findings found;
    moepack_error error;
    moepack_verify_report report;
    const char *copy = at("missing.moepack");
    copy_tree(pack(), copy);
    const char *experts = at2(copy, strrchr(shard_path(first_shard(MOEPACK_SHARD_EXPERTS)), '/') + 1);
    const char *trunk = at2(copy, strrchr(shard_path(first_shard(MOEPACK_SHARD_TRUNK)), '/') + 1);
    remove(experts);
    assert_status(verify_into(copy, NULL, &found, &report, &error), MOEPACK_E_INCOMPLETE, &error, "experts-0000");
    assert_int_equal(found.count, 1);
    assert_true(found.item[0].missing);
    /* Damage elsewhere is still found, and outweighs. */
    flip(trunk, 4096, 1);
    assert_status(verify_into(copy, NULL, &found, &report, &error), MOEPACK_E_CORRUPT, &error, "");
    assert_int_equal(report.missing, 1);
    assert_int_equal(report.bad, 1);
    remove(at2(copy, "index.mpk"));
    assert_status(verify_into(copy, NULL, &found, &report, &error), MOEPACK_E_INCOMPLETE, &error, "index.mpk");
    assert_int_equal(found.count, 1);
    remove_tree(copy);
    assert_status(verify_into(copy, NULL, &found, &report, &error), MOEPACK_E_INCOMPLETE, &error, copy);
    write_file(copy, "", 0);
    assert_status(verify_into(copy, NULL, &found, &report, &error), MOEPACK_E_IO, &error, copy);
    remove(copy);
    assert_status(verify_into(at("x.moepack.partial/"), NULL, &found, &report, &error), MOEPACK_E_INCOMPLETE, &error,
                  "unfinished");
}

static const char *failing;
static const char *failing_operation;
static int failing_errno;

static int fail_on_file(const char *operation, const char *path)
{
    return strcmp(operation, failing_operation) == 0 && strstr(path, failing) ? failing_errno : 0;
}

/* A shard that is there but cannot be looked at says nothing about the container. */
static void unreadable_files_are_no_damage(void **state)
{
    (void)state;
    static findings found;
    moepack_error error;
    moepack_verify_report report;
    const char *copy = at("unreadable.moepack");
    char name[64];
    snprintf(name, sizeof name, "%s", strrchr(shard_path(first_shard(MOEPACK_SHARD_EXPERTS)), '/') + 1);
    copy_tree(pack(), copy);
    const char *shard = at2(copy, name);
    for (unsigned kind = 0; kind < 5; kind++) {
        failing = name;
        failing_operation = kind == 4 ? "read" : "open";
        failing_errno = kind == 4 ? EIO : EACCES;
        if (kind < 3) remove(shard);
        if (kind == 0) assert_int_equal(mkdir(shard, 0777), 0);
        if (kind == 1) assert_int_equal(mkfifo(shard, 0600), 0);
        if (kind == 2) assert_int_equal(symlink(name, shard), 0);
        if (kind == 3) copy_tree(pack(), copy);
        if (kind >= 3) mpk_fault_hook_set(fail_on_file);
        moepack_status status = verify_into(copy, NULL, &found, &report, &error);
        mpk_fault_hook_set(NULL);
        assert_status(status, MOEPACK_E_IO, &error, name);
        assert_non_null(strstr(error.message, "unreadable: "));
        assert_int_equal(report.bad + report.missing + report.unsupported, 0);
        assert_int_equal(report.unreadable, found.count);
        assert_true(kind == 4 ? found.count > 1 : found.count == 1);
        for (size_t f = 0; f < found.count && f < 512; f++) assert_true(found.item[f].unreadable);
        if (kind == 2) remove(shard);
    }
    /* Missing outweighs it, damage outweighs both. */
    failing_operation = "open";
    mpk_fault_hook_set(fail_on_file);
    remove(at2(copy, "trunk-000.mpk"));
    assert_status(verify_into(copy, NULL, &found, &report, &error), MOEPACK_E_INCOMPLETE, &error, "trunk-000");
    assert_int_equal(report.unreadable, 1);
    copy_file(at2(pack(), "trunk-000.mpk"), at2(copy, "trunk-000.mpk"));
    flip(at2(copy, "trunk-000.mpk"), 4096, 1);
    assert_status(verify_into(copy, NULL, &found, &report, &error), MOEPACK_E_CORRUPT, &error, "trunk-000");
    assert_int_equal(report.unreadable, 1);
    mpk_fault_hook_set(NULL);
    remove_tree(copy);
}

static void layers_of_a_part_are_looked_for_in_it(void **state)
{
    (void)state;
    static findings found;
    moepack_error error;
    moepack_convert_options options;
    moepack_verify_options verify_options;
    moepack_convert_options_init(&options);
    moepack_verify_options_init(&verify_options);
    options.layers = "2";
    convert_to(TINY, at("layer2.moepack"), &options, NULL);
    static const char *const absent[] = {"1", "3", "0-1", "2,1", "99", "mtp.0"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        verify_options.layers = absent[i];
        assert_status(verify_into(at("layer2.moepack"), &verify_options, &found, NULL, &error), MOEPACK_E_USAGE, &error,
                      "is not in this container");
    }
    verify_options.layers = "1-3";
    assert_status(verify_into(at("layer2.moepack"), &verify_options, &found, NULL, &error), MOEPACK_OK, &error, "");
    remove_tree(at("layer2.moepack"));
}

/* Three ways of mixing: another model, the same shape with other weights, and another shard of the same container. */
static void foreign_shards_are_named(void **state)
{
    (void)state;
    static findings found;
    moepack_error error;
    const char *source = at("other-source"), *copy = at("mixed.moepack"), *other = at("other.moepack");
    const char *name = strrchr(shard_path(first_shard(MOEPACK_SHARD_EXPERTS)), '/') + 1;
    char shard[64];
    snprintf(shard, sizeof shard, "%s", name);
    copy_tree(TINY, source);
    /* One bit of the last tensor byte of each weight file: other weights, the same shape. */
    const char *weights = at2(source, "model-00001-of-00003.safetensors");
    flip(weights, size_of(weights) - 1, 1);
    moepack_convert_options options = options_of(MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, 400000, 2);
    convert_to(source, other, &options, NULL);
    for (uint32_t i = 0; i < 3; i++) {
        char file[64];
        snprintf(file, sizeof file, "%s", strrchr(shard_path(i), '/') + 1);
        copy_tree(pack(), copy);
        copy_file(at2(other, file), at2(copy, file));
        size_t a, b;
        char *mine = read_file(at2(pack(), file), &a), *theirs = read_file(at2(other, file), &b);
        bool same = a == b && memcmp(mine, theirs, a) == 0;
        free(mine);
        free(theirs);
        assert_status(verify_into(copy, NULL, &found, NULL, &error), same ? MOEPACK_OK : MOEPACK_E_CORRUPT, &error,
                      same ? "" : file);
        assert_int_equal(found.count, same ? 0 : 1);
        remove_tree(copy);
    }
    const char *quant = at("quant.moepack");
    convert_to(QUANT, quant, NULL, NULL);
    copy_tree(pack(), copy);
    copy_file(at2(quant, "experts-0000-0055.mpk"), at2(copy, shard));
    assert_status(verify_into(copy, NULL, &found, NULL, &error), MOEPACK_E_CORRUPT, &error, "another container");
    assert_int_equal(found.count, 1);
    assert_string_equal(found.item[0].file, shard);
    copy_file(shard_path(1), at2(copy, shard));
    assert_status(verify_into(copy, NULL, &found, NULL, &error), MOEPACK_E_CORRUPT, &error, "another shard");
    assert_int_equal(strncmp(found.item[0].expected, "shard ", 6), 0);
    assert_int_equal(strncmp(found.item[0].found, "shard ", 6), 0);
    assert_string_not_equal(found.item[0].expected, found.item[0].found);
    remove_tree(copy);
    remove_tree(quant);
    remove_tree(other);
    remove_tree(source);
}

static void selections_check_only_their_part(void **state)
{
    (void)state;
    static findings found;
    moepack_error error;
    void *bytes;
    moepack_index *index = open_index(pack(), &bytes);
    section_at place;
    find_section(index, 1, 20, 3, &place); /* layer 2 */
    flip(at2(pack(), place.file), place.section.offset, 2);
    moepack_verify_options options;
    static const struct {
        const char *layers, *experts;
        uint32_t rank, ranks;
        bool hit;
    } cases[] = {{"1,3", NULL, 0, 0, false}, {"2", NULL, 0, 0, true},     {NULL, "0-19", 0, 0, false},
                 {NULL, "20", 0, 0, true},   {"2", "21-22", 0, 0, false}, {NULL, NULL, 0, 3, false},
                 {NULL, NULL, 1, 3, false},  {NULL, NULL, 2, 3, true},    {"2", NULL, 22, 23, false},
                 {"2", NULL, 20, 23, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        moepack_verify_options_init(&options);
        options.layers = cases[i].layers;
        options.experts = cases[i].experts;
        options.rank = cases[i].rank;
        options.ranks = cases[i].ranks;
        moepack_status status = verify_into(pack(), &options, &found, NULL, &error);
        assert_status(status, cases[i].hit ? MOEPACK_E_CORRUPT : MOEPACK_OK, &error, "");
    }
    options.rank = 3;
    options.ranks = 3;
    assert_status(verify_into(pack(), &options, &found, NULL, &error), MOEPACK_E_USAGE, &error, "");
    moepack_verify_options_init(&options);
    options.layers = "99";
    assert_status(verify_into(pack(), &options, &found, NULL, &error), MOEPACK_E_USAGE, &error, "99");
    flip(at2(pack(), place.file), place.section.offset, 2);
    moepack_index_close(index);
    free(bytes);
}

/* A large side file: its damaged part is named, not just the file. */
static void large_sections_are_checked_in_parts(void **state)
{
    (void)state;
    static findings found;
    moepack_error error;
    const char *source = at("large-source"), *out = at("large.moepack");
    const size_t size = (21 << 20) + 777;
    uint8_t *bytes = malloc(size);
    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    copy_tree(TINY, source);
    write_file(at2(source, "tokenizer.json"), bytes, size);
    free(bytes);
    convert_to(source, out, NULL, NULL);
    assert_status(verify_into(out, NULL, &found, NULL, &error), MOEPACK_OK, &error, "");
    void *index_bytes;
    moepack_index *index = open_index(out, &index_bytes);
    for (uint32_t i = 0; i < moepack_index_source_files(index); i++) {
        moepack_source_file file;
        moepack_section section;
        moepack_index_source_file(index, i, &file);
        moepack_index_section(index, file.section, &section);
        if (file.length != size) continue;
        assert_true(section.first_part != MOEPACK_NO_PARTS);
        flip(at2(out, "trunk-000.mpk"), section.offset + (9 << 20), 1);
        flip(at2(out, "trunk-000.mpk"), section.offset + size - 1, 1);
        assert_status(verify_into(out, NULL, &found, NULL, &error), MOEPACK_E_CORRUPT, &error, "tokenizer.json");
        assert_int_equal(found.count, 2);
        assert_int_equal(found.item[0].offset, section.offset + (8 << 20));
        assert_int_equal(found.item[0].length, 4 << 20);
        assert_int_equal(found.item[1].offset, section.offset + (20 << 20));
        assert_int_equal(found.item[1].length, (1 << 20) + 777);
    }
    assert_true(found.count == 2);
    moepack_index_close(index);
    free(index_bytes);
    remove_tree(out);
    remove_tree(source);
}

static void cancel_at_once(void *user, const moepack_progress *progress)
{
    (void)progress;
    *(volatile int *)user = 1;
}

static void cancel_stops(void **state)
{
    (void)state;
    volatile int cancel = 0;
    moepack_error error;
    moepack_verify_report report;
    moepack_verify_options options;
    moepack_verify_options_init(&options);
    options.callbacks =
        (moepack_callbacks){.progress = cancel_at_once, .user = (void *)(uintptr_t)&cancel, .cancel = &cancel};
    assert_status(moepack_verify(pack(), &options, &report, &error), MOEPACK_E_INTERRUPTED, &error, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_container_has_no_findings),
        cmocka_unit_test(names_the_damaged_section_of_every_expert),
        cmocka_unit_test(names_the_damaged_trunk_tensor),
        cmocka_unit_test(finds_every_flipped_byte_of_headers_and_tails),
        cmocka_unit_test(finds_flipped_padding),
        cmocka_unit_test(index_damage_is_one_finding),
        cmocka_unit_test(goes_on_and_lists_everything),
        cmocka_unit_test(truncated_shard_is_incomplete),
        cmocka_unit_test(extended_shard_is_corrupt),
        cmocka_unit_test(missing_files_are_named),
        cmocka_unit_test(unreadable_files_are_no_damage),
        cmocka_unit_test(layers_of_a_part_are_looked_for_in_it),
        cmocka_unit_test(foreign_shards_are_named),
        cmocka_unit_test(selections_check_only_their_part),
        cmocka_unit_test(large_sections_are_checked_in_parts),
        cmocka_unit_test(cancel_stops),
    };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
