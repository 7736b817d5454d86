/* convert on the K3 fixtures: the same content for every layout, sharding and number of jobs, the same bytes for every
 * number of jobs, and a clear refusal of everything that must not be converted. */
#include "test_pack_files.h"

#include "io/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const sources[] = {TINY, QUANT};

static void content_does_not_depend_on_options(void **state)
{
    (void)state;
    for (size_t s = 0; s < 2; s++) {
        moepack_hash128 root = {0};
        for (unsigned k = 0; k < 2 * 3 * 2 + 1; k++) {
            static const uint64_t sizes[] = {0, 250000, 1}; /* 1 byte: a shard for everything */
            moepack_convert_options options =
                options_of((moepack_layout)(k % 2), (moepack_shard_by)(k / 2 % 3), sizes[k / 6], 2);
            options.verify = true;
            moepack_convert_report report;
            const char *out = at("options.moepack");
            convert_to(sources[s], out, &options, &report);
            if (k == 0) root = report.canonical_root;
            assert_true(report.canonical_root.low == root.low && report.canonical_root.high == root.high);
            assert_int_equal(report.tensors, s == 0 ? 527 : 393); /* README-k3 of the fixtures */
            assert_int_equal(report.experts, s == 0 ? 69 : 56);
            assert_int_equal(report.resumed_bytes, 0);
            /* The report's size is that of the files. */
            mpk_file_list list;
            moepack_error error;
            uint64_t bytes = 0;
            assert_status(mpk_dir_list(out, &list, &error), MOEPACK_OK, &error, "");
            for (size_t i = 0; i < list.count; i++) bytes += list.size[i];
            assert_int_equal(report.written_bytes, bytes);
            assert_int_equal(report.shards + 1, list.count);
            mpk_file_list_free(&list);
            remove_tree(out);
        }
        assert_true(root.low != 0);
    }
}

static void bytes_do_not_depend_on_jobs(void **state)
{
    (void)state;
    for (size_t s = 0; s < 2; s++)
        for (unsigned layout = 0; layout < 2; layout++) {
            moepack_convert_options options = options_of((moepack_layout)layout, MOEPACK_SHARD_BY_EXPERT, 300000, 1);
            convert_to(sources[s], at("one.moepack"), &options, NULL);
            for (unsigned jobs = 2; jobs <= 8; jobs *= 2) {
                options.jobs = jobs;
                convert_to(sources[s], at("many.moepack"), &options, NULL);
                assert_same_tree(at("one.moepack"), at("many.moepack"));
                remove_tree(at("many.moepack"));
            }
            remove_tree(at("one.moepack"));
        }
}

/* Reads and writes that transfer a few bytes at a time must not change anything. */
static int short_transfers(const char *operation, const char *path)
{
    (void)path;
    return strcmp(operation, "read") == 0 || strcmp(operation, "write") == 0 ? -4099 : 0;
}

static void short_transfers_change_nothing(void **state)
{
    (void)state;
    convert_to(TINY, at("long.moepack"), NULL, NULL);
    mpk_fault_hook_set(short_transfers);
    convert_to(TINY, at("short.moepack"), NULL, NULL);
    mpk_fault_hook_set(NULL);
    assert_same_tree(at("long.moepack"), at("short.moepack"));
    remove_tree(at("long.moepack"));
    remove_tree(at("short.moepack"));
}

/* From the first shard on, refuses once to open a file of some name a second time in a row: that is how it is opened
 * for direct I/O. (Before, the headers of sources are read; after, scales.) */
static const char *refused_part;
static char opened_last[512];
static bool saw_shard, refused_once;

static int refuse_direct(const char *operation, const char *path)
{
    if (strcmp(operation, "open") != 0) return 0;
    saw_shard = saw_shard || strstr(path, "trunk") != NULL;
    const bool again =
        !refused_once && saw_shard && strcmp(opened_last, path) == 0 && strstr(path, refused_part) != NULL;
    snprintf(opened_last, sizeof opened_last, "%s", path);
    refused_once = refused_once || again;
    return again ? EINVAL : 0;
}

/* What goes through the page cache gives the same container, and the reports of convert and verify say so. */
static void page_cache_is_reported(void **state)
{
    (void)state;
    static const char *const parts[] = {"-of-", "trunk"};
    convert_to(TINY, at("long.moepack"), NULL, NULL);
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.jobs = 1;
    for (size_t i = 0; i < 2; i++) {
        moepack_convert_report report;
        refused_part = parts[i];
        saw_shard = refused_once = false;
        mpk_fault_hook_set(refuse_direct);
        convert_to(TINY, at("buffered.moepack"), &options, &report);
        mpk_fault_hook_set(NULL);
        assert_non_null(strstr(report.io_reason, parts[i]));
        assert_non_null(strstr(report.io_reason, "no O_DIRECT: Invalid argument"));
        assert_same_tree(at("long.moepack"), at("buffered.moepack"));
        remove_tree(at("buffered.moepack"));
    }
    moepack_verify_report report;
    moepack_error error;
    mpk_fault_hook_set(refuse_direct);
    refused_once = false;
    const moepack_status status = moepack_verify(at("long.moepack"), NULL, &report, &error);
    mpk_fault_hook_set(NULL);
    assert_status(status, MOEPACK_OK, &error, "");
    assert_non_null(strstr(report.io_reason, "no O_DIRECT: Invalid argument"));
    remove_tree(at("long.moepack"));
}

static void refuses(const char *source, const char *out, const moepack_convert_options *options, moepack_status wanted,
                    const char *text)
{
    moepack_error error;
    assert_status(moepack_convert(source, out, options, NULL, &error), wanted, &error, text);
}

static void existing_output_is_refused(void **state)
{
    (void)state;
    const char *out = at("there.moepack");
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    assert_int_equal(mkdir(out, 0777), 0);
    refuses(TINY, out, &options, MOEPACK_E_REFUSED, "exists already");
    /* A trailing slash is the same name. */
    refuses(TINY, at("there.moepack/"), &options, MOEPACK_E_REFUSED, "exists already");
    options.overwrite = true;
    convert_to(TINY, out, &options, NULL); /* empty: nothing can be lost */
    convert_to(QUANT, out, &options, NULL);
    assert_false(exists(at("there.moepack.old")));
    convert_to(QUANT, at("fresh.moepack"), NULL, NULL);
    assert_same_tree(out, at("fresh.moepack"));
    /* Not ours: a stray file, a directory without an index, a file of that name. */
    write_file(at2(out, "notes.txt"), "x", 1);
    refuses(TINY, out, &options, MOEPACK_E_REFUSED, "notes.txt");
    assert_true(exists(at2(out, "notes.txt")));
    remove(at2(out, "notes.txt"));
    write_file(at2(out, "index.mpk"), "not an index", 12);
    refuses(TINY, out, &options, MOEPACK_E_REFUSED, "no container");
    remove_tree(out);
    write_file(out, "x", 1);
    refuses(TINY, out, &options, MOEPACK_E_REFUSED, "no directory");
    remove(out);
    remove_tree(at("fresh.moepack"));
}

static void left_over_partial_is_refused(void **state)
{
    (void)state;
    const char *partial = at("left.moepack.partial");
    assert_int_equal(mkdir(partial, 0777), 0);
    write_file(at2(partial, "experts-0000-0022.mpk"), "work", 4);
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.overwrite = true;
    refuses(TINY, at("left.moepack"), &options, MOEPACK_E_REFUSED, "left.moepack.partial");
    assert_int_equal(size_of(at2(partial, "experts-0000-0022.mpk")), 4); /* neither used nor deleted */
    assert_false(exists(at("left.moepack")));
    remove_tree(partial);
}

static void output_inside_the_source_is_refused(void **state)
{
    (void)state;
    const char *source = at("inside");
    copy_tree(TINY, source);
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    refuses(source, at2(source, "out.moepack"), &options, MOEPACK_E_REFUSED, "inside each other");
    refuses(source, at2(source, "new/deep/out.moepack"), &options, MOEPACK_E_REFUSED, "inside each other");
    options.overwrite = true;
    refuses(source, source, &options, MOEPACK_E_REFUSED, "inside each other");
    refuses(source, at("."), &options, MOEPACK_E_REFUSED, "inside each other");
    assert_int_equal(symlink(source, at("link")), 0);
    refuses(source, at("link/out.moepack"), &options, MOEPACK_E_REFUSED, "inside each other");
    remove(at("link"));
    assert_same_tree(source, TINY);
    /* A neighbour whose name begins the same is no inside. */
    options.overwrite = false;
    convert_to(source, at("inside-out"), &options, NULL);
    remove_tree(at("inside-out"));
    remove_tree(source);
}

static void dry_run_writes_nothing(void **state)
{
    (void)state;
    moepack_convert_options options;
    moepack_convert_report dry, real;
    moepack_convert_options_init(&options);
    options.dry_run = true;
    convert_to(TINY, at("new/parent/dry.moepack"), &options, &dry);
    assert_false(exists(at("new")));
    options.dry_run = false;
    convert_to(TINY, at("new/parent/dry.moepack"), &options, &real);
    assert_int_equal(dry.written_bytes, real.written_bytes);
    assert_int_equal(dry.source_bytes, real.source_bytes);
    assert_int_equal(dry.experts, real.experts);
    assert_int_equal(dry.tensors, real.tensors);
    assert_int_equal(dry.shards, real.shards);
    assert_true(dry.needed_disk_bytes >= dry.written_bytes);
    assert_true(dry.available_disk_bytes > 0);
    assert_true(dry.peak_memory_bytes > 0 && dry.peak_memory_bytes < (uint64_t)1 << 30);
    remove_tree(at("new"));
}

/* Position of a byte of a tensor in a source file of a copy. */
static uint64_t tensor_offset(const char *path, const char *name, uint64_t *length)
{
    moepack_error error;
    moepack_safetensors *file;
    moepack_safetensors_tensor tensor;
    assert_status(moepack_safetensors_open(path, &file, &error), MOEPACK_OK, &error, "");
    size_t i = moepack_safetensors_find(file, name);
    if (i == SIZE_MAX) {
        moepack_safetensors_close(file);
        return 0;
    }
    moepack_safetensors_get(file, i, &tensor);
    *length = tensor.length;
    moepack_safetensors_close(file);
    return tensor.offset;
}

#define PREFIX "language_model.model.layers."

static const char *const tiny_files[] = {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                         "model-00003-of-00003.safetensors"};

/* Sets one byte of a tensor, wherever it lies. Returns its file and position. */
static const char *set_tensor_byte(const char *source, const char *name, uint64_t at_byte, uint8_t value,
                                   uint64_t *offset)
{
    for (size_t i = 0; i < 3; i++) {
        uint64_t length = 0, start = tensor_offset(at2(source, tiny_files[i]), name, &length);
        if (start == 0) continue;
        assert_true(at_byte < length);
        size_t size;
        char *bytes = read_file(at2(source, tiny_files[i]), &size);
        bytes[start + at_byte] = (char)value;
        write_file(at2(source, tiny_files[i]), bytes, size);
        free(bytes);
        *offset = start + at_byte;
        return tiny_files[i];
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static void nan_scales_stop(void **state)
{
    (void)state;
    const char *source = at("nan-source"), *out = at("nan.moepack");
    const char *tensor = PREFIX "2.block_sparse_moe.experts.13.w3.weight_scale";
    uint64_t offset = 0;
    moepack_error error;
    moepack_convert_options options = options_of(MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, 0, 2);
    copy_tree(TINY, source);
    const char *file = set_tensor_byte(source, tensor, 100, 255, &offset);
    assert_status(moepack_convert(source, out, &options, NULL, &error), MOEPACK_E_CORRUPT, &error, "scale byte 255");
    assert_string_equal(error.layer, "2");
    assert_int_equal(error.expert, 13);
    assert_string_equal(error.tensor, tensor);
    assert_int_equal(error.offset, offset);
    assert_non_null(strstr(error.file, file));
    assert_false(exists(out));
    assert_false(exists(at("nan.moepack.partial")));
    options.layout = MOEPACK_LAYOUT_CANONICAL;
    assert_status(moepack_convert(source, out, &options, NULL, &error), MOEPACK_E_CORRUPT, &error, tensor);
    options.allow_nan_scales = true;
    options.verify = true;
    convert_to(source, out, &options, NULL);
    moepack_export_report report;
    assert_status(moepack_export(out, at("nan-back"), NULL, &report, &error), MOEPACK_OK, &error, "");
    assert_same_tree(source, at("nan-back"));
    remove_tree(at("nan-back"));
    remove_tree(out);
    remove_tree(source);
}

typedef struct warnings {
    unsigned count;
    char last[1024];
} warnings;

static void take_warning(void *user, const char *line)
{
    warnings *w = user;
    w->count++;
    snprintf(w->last, sizeof w->last, "%s", line);
}

/* Scale 2^126 times a code of 4 or 6 and 2^127 times one of 2 or more overflow; smaller codes do not. */
static void overflowing_scales_warn_once(void **state)
{
    (void)state;
    const char *source = at("large-scale"), *out = at("large-scale.moepack");
    const char *scale = PREFIX "1.block_sparse_moe.experts.5.w2.weight_scale";
    const char *weight = PREFIX "1.block_sparse_moe.experts.5.w2.weight_packed";
    uint64_t offset;
    warnings w = {0};
    moepack_convert_report report;
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.callbacks = (moepack_callbacks){.warn = take_warning, .user = &w};
    /* The fixtures hold a row of scale 254 over zeros alone: no warning. */
    convert_to(TINY, out, &options, &report);
    assert_int_equal(w.count, 0);
    assert_int_equal(report.warnings, 0);
    remove_tree(out);
    copy_tree(TINY, source);
    /* Row 1 (w2 is [96, 64]: 32 bytes and 2 scales a row), first group: all codes 0 but four. */
    for (uint64_t i = 0; i < 16; i++) set_tensor_byte(source, weight, 32 + i, 0, &offset);
    set_tensor_byte(source, weight, 32, 0x65, &offset); /* 3 and 4 */
    set_tensor_byte(source, weight, 40, 0xF3, &offset); /* 1.5 and -6 */
    set_tensor_byte(source, scale, 2, 253, &offset);
    convert_to(source, out, &options, &report);
    assert_int_equal(w.count, 1);
    assert_int_equal(report.warnings, 1);
    assert_non_null(strstr(w.last, "2 weights in 1 "));
    remove_tree(out);
    set_tensor_byte(source, scale, 2, 254, &offset);
    convert_to(source, out, &options, &report);
    assert_int_equal(w.count, 2);
    assert_non_null(strstr(w.last, "3 weights in 1 "));
    remove_tree(out);
    remove_tree(source);
}

static void missing_expert_stops_by_name(void **state)
{
    (void)state;
    const char *source = at("lost-source");
    moepack_error error;
    copy_tree(TINY, source);
    static const char from[] = "layers.3.block_sparse_moe.experts.9.", to[] = "layers.3.block_sparse_moe.visitor.9.";
    unsigned replaced = replace_in_file(at2(source, "model.safetensors.index.json"), from, to);
    for (size_t i = 0; i < 3; i++) replaced += replace_in_file(at2(source, tiny_files[i]), from, to);
    assert_int_equal(replaced, 2 * 6);
    moepack_status status = moepack_convert(source, at("lost.moepack"), NULL, NULL, &error);
    assert_status(status, MOEPACK_E_INCOMPLETE, &error, "");
    assert_string_equal(error.layer, "3");
    assert_int_equal(error.expert, 9);
    assert_false(exists(at("lost.moepack")));
    assert_false(exists(at("lost.moepack.partial")));
    remove_tree(source);
}

static void subsets(void **state)
{
    (void)state;
    moepack_convert_options options;
    moepack_convert_report report;
    moepack_error error;
    const char *out = at("subset.moepack");
    moepack_convert_options_init(&options);
    options.verify = true;
    options.layers = "2-3";
    options.experts = "0-3,20";
    convert_to(TINY, out, &options, &report);
    assert_int_equal(report.experts, 10);
    void *bytes;
    moepack_index *index = open_index(out, &bytes);
    moepack_info info;
    moepack_index_info(index, &info);
    assert_true(info.subset);
    assert_int_equal(moepack_index_blocks(index), 2);
    assert_int_equal(moepack_index_records(index), 46);
    for (uint32_t b = 0; b < 2; b++)
        for (uint32_t e = 0; e < 23; e++) {
            moepack_block block;
            moepack_record record;
            moepack_index_block(index, b, &block);
            assert_int_equal(block.number, b + 2);
            moepack_index_record(index, block.first_record + e, &record);
            assert_int_equal(record.shard == MOEPACK_NO_SHARD, !(e <= 3 || e == 20));
        }
    moepack_index_close(index);
    free(bytes);
    assert_status(moepack_export(out, at("subset-back"), NULL, NULL, &error), MOEPACK_E_UNSUPPORTED, &error, "part");
    assert_false(exists(at("subset-back")));
    remove_tree(out);
    options.layers = options.experts = NULL;
    options.moe_only = true;
    convert_to(TINY, out, &options, &report);
    assert_int_equal(report.experts, 69);
    assert_true(report.tensors < 527);
    remove_tree(out);
    options.layers = "7";
    refuses(TINY, out, &options, MOEPACK_E_USAGE, "7");
    assert_false(exists(out));
}

static void bad_options_are_usage_errors(void **state)
{
    (void)state;
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.size--;
    refuses(TINY, at("x.moepack"), &options, MOEPACK_E_USAGE, "");
    moepack_convert_options_init(&options);
    options.layout = (moepack_layout)7;
    refuses(TINY, at("x.moepack"), &options, MOEPACK_E_USAGE, "layout");
    moepack_convert_options_init(&options);
    options.shard_by = (moepack_shard_by)7;
    refuses(TINY, at("x.moepack"), &options, MOEPACK_E_USAGE, "shard");
    moepack_convert_options_init(&options);
    options.codec = (moepack_codec)1;
    refuses(TINY, at("x.moepack"), &options, MOEPACK_E_UNSUPPORTED, "codec");
    moepack_convert_options_init(&options);
    refuses(TINY, "", &options, MOEPACK_E_USAGE, "");
    refuses(TINY, "/", &options, MOEPACK_E_USAGE, "");
    refuses(at("nowhere"), at("x.moepack"), &options, MOEPACK_E_INCOMPLETE, "nowhere");
    assert_false(exists(at("x.moepack.partial")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_does_not_depend_on_options),
        cmocka_unit_test(bytes_do_not_depend_on_jobs),
        cmocka_unit_test(short_transfers_change_nothing),
        cmocka_unit_test(page_cache_is_reported),
        cmocka_unit_test(existing_output_is_refused),
        cmocka_unit_test(left_over_partial_is_refused),
        cmocka_unit_test(output_inside_the_source_is_refused),
        cmocka_unit_test(dry_run_writes_nothing),
        cmocka_unit_test(nan_scales_stop),
        cmocka_unit_test(overflowing_scales_warn_once),
        cmocka_unit_test(missing_expert_stops_by_name),
        cmocka_unit_test(subsets),
        cmocka_unit_test(bad_options_are_usage_errors),
    };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
