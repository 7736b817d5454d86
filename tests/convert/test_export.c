/* export gives back the source directory byte for byte, or nothing. */
#include "test_pack_files.h"

#include "io/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void gives_back_the_source(void **state)
{
    (void)state;
    static const char *const sources[] = {TINY, QUANT};
    for (size_t s = 0; s < 2; s++)
        for (unsigned k = 0; k < 12; k++) {
            moepack_error error;
            moepack_export_report report;
            moepack_export_options export_options;
            moepack_convert_options options =
                options_of((moepack_layout)(k % 2), (moepack_shard_by)(k / 2 % 3), k < 6 ? 0 : 200000, 2);
            convert_to(sources[s], at("e.moepack"), &options, NULL);
            moepack_export_options_init(&export_options);
            export_options.jobs = 1 + k % 4;
            assert_status(moepack_export(at("e.moepack"), at("back"), &export_options, &report, &error), MOEPACK_OK,
                          &error, "");
            assert_same_tree(sources[s], at("back"));
            mpk_file_list list;
            uint64_t bytes = 0;
            assert_status(mpk_dir_list(at("back"), &list, &error), MOEPACK_OK, &error, "");
            for (size_t i = 0; i < list.count; i++) bytes += list.size[i];
            assert_int_equal(report.files, list.count);
            assert_int_equal(report.written_bytes, bytes);
            mpk_file_list_free(&list);
            remove_tree(at("back"));
            remove_tree(at("e.moepack"));
        }
}

static const char *pack(void)
{
    static const char *path;
    if (!path) {
        path = at("tiny.moepack");
        convert_to(TINY, path, NULL, NULL);
    }
    return path;
}

/* An export that must fail and leave nothing. */
static void fails(const char *from, const char *out, moepack_status wanted, const char *text, moepack_error *error)
{
    assert_status(moepack_export(from, out, NULL, NULL, error), wanted, error, text);
    assert_false(exists(out));
    assert_false(exists(at("out.partial")));
}

static void damage_is_not_published(void **state)
{
    (void)state;
    moepack_error error;
    void *bytes;
    moepack_index *index = open_index(pack(), &bytes);
    section_at place;
    find_section(index, 2, 11, 4, &place);
    flip(at2(pack(), place.file), place.section.offset + 10, 8);
    fails(pack(), at("out"), MOEPACK_E_CORRUPT, place.name, &error);
    assert_string_equal(error.layer, "3");
    assert_int_equal(error.expert, 11);
    assert_non_null(strstr(error.file, place.file));
    assert_int_equal(error.offset, place.section.offset);
    flip(at2(pack(), place.file), place.section.offset + 10, 8);
    /* A source header, and a trunk tensor. */
    moepack_source_file file;
    moepack_tensor tensor;
    moepack_section section;
    moepack_index_source_file(index, 1, &file);
    moepack_index_section(index, file.section, &section);
    flip(at2(pack(), "trunk-000.mpk"), section.offset + 20, 8);
    fails(pack(), at("out"), MOEPACK_E_CORRUPT, "trunk-000.mpk", &error);
    flip(at2(pack(), "trunk-000.mpk"), section.offset + 20, 8);
    for (uint32_t i = 0; i < moepack_index_tensors(index); i += 40) {
        moepack_index_tensor(index, i, &tensor);
        moepack_index_section(index, tensor.section, &section);
        flip(at2(pack(), "trunk-000.mpk"), section.offset, 8);
        fails(pack(), at("out"), MOEPACK_E_CORRUPT, "trunk-000.mpk", &error);
        flip(at2(pack(), "trunk-000.mpk"), section.offset, 8);
    }
    moepack_index_close(index);
    free(bytes);
    assert_status(moepack_export(pack(), at("out"), NULL, NULL, &error), MOEPACK_OK, &error, "");
    assert_same_tree(TINY, at("out"));
    remove_tree(at("out"));
}

static void incomplete_containers_are_refused(void **state)
{
    (void)state;
    moepack_error error;
    const char *copy = at("copy.moepack");
    copy_tree(pack(), copy);
    remove(at2(copy, "experts-0000-0022.mpk"));
    fails(copy, at("out"), MOEPACK_E_INCOMPLETE, "experts-0000-0022.mpk", &error);
    copy_tree(pack(), copy);
    truncate_to(at2(copy, "trunk-000.mpk"), size_of(at2(copy, "trunk-000.mpk")) - 1);
    fails(copy, at("out"), MOEPACK_E_INCOMPLETE, "trunk-000.mpk", &error);
    /* A source file is named as such, once; it is no tensor. */
    assert_string_equal(error.tensor, "");
    assert_int_equal(strncmp(error.message, "source file ", 12), 0);
    assert_null(strstr(error.message + 1, "source file "));
    remove(at2(copy, "index.mpk"));
    fails(copy, at("out"), MOEPACK_E_INCOMPLETE, "", &error);
    remove_tree(copy);
    fails(at("nothing"), at("out"), MOEPACK_E_INCOMPLETE, "nothing", &error);
}

static void existing_directory_is_kept_safe(void **state)
{
    (void)state;
    moepack_error error;
    moepack_export_options options;
    const char *out = at("out");
    moepack_export_options_init(&options);
    assert_int_equal(mkdir(out, 0777), 0);
    assert_status(moepack_export(pack(), out, &options, NULL, &error), MOEPACK_E_REFUSED, &error, "exists already");
    options.overwrite = true;
    assert_status(moepack_export(pack(), out, &options, NULL, &error), MOEPACK_OK, &error, "");
    assert_same_tree(TINY, out);
    /* Damaged files of the same checkpoint are replaced ... */
    flip(at2(out, "config.json"), 5, 1);
    assert_status(moepack_export(pack(), out, &options, NULL, &error), MOEPACK_OK, &error, "");
    assert_same_tree(TINY, out);
    assert_false(exists(at("out.old")));
    /* ... but nothing that the container does not hold, hidden files included. */
    static const char *const strays[] = {"thesis.tex", ".git", "figures/.hidden"};
    for (size_t i = 0; i < 3; i++) {
        write_file(at2(out, strays[i]), "x", 1);
        assert_status(moepack_export(pack(), out, &options, NULL, &error), MOEPACK_E_REFUSED, &error, strays[i]);
        assert_true(exists(at2(out, strays[i])));
        remove(at2(out, strays[i]));
    }
    assert_int_equal(mkdir(at("out.partial"), 0777), 0);
    assert_status(moepack_export(pack(), out, &options, NULL, &error), MOEPACK_E_REFUSED, &error, "out.partial");
    remove_tree(at("out.partial"));
    assert_int_equal(mkdir(at("out.old"), 0777), 0);
    assert_status(moepack_export(pack(), out, &options, NULL, &error), MOEPACK_E_REFUSED, &error, "out.old");
    remove_tree(at("out.old"));
    assert_same_tree(TINY, out);
    options.overwrite = false;
    assert_status(moepack_export(pack(), at2(pack(), "inside"), &options, NULL, &error), MOEPACK_E_REFUSED, &error,
                  "inside");
    remove_tree(out);
}

/* ---- faults ---- */

static const char *fail_operation;
static int fail_errno;
static unsigned fail_after, calls;

static int fault(const char *operation, const char *path)
{
    if (!strstr(path, "/out") || strcmp(operation, fail_operation) != 0) return 0;
    return __sync_fetch_and_add(&calls, 1) == fail_after ? fail_errno : 0;
}

static void faults_leave_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *operation;
        int number;
        moepack_status wanted;
    } faults[] = {{"write", ENOSPC, MOEPACK_E_REFUSED},   {"write", EIO, MOEPACK_E_IO},
                  {"reserve", ENOSPC, MOEPACK_E_REFUSED}, {"sync", EIO, MOEPACK_E_IO},
                  {"mkdir", EROFS, MOEPACK_E_IO},         {"open", EROFS, MOEPACK_E_IO},
                  {"rename", EIO, MOEPACK_E_IO}};
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        unsigned failures = 0;
        for (fail_after = 0; fail_after < 4000; fail_after = fail_after * 5 / 2 + 1) {
            moepack_error error;
            fail_operation = faults[k].operation;
            fail_errno = faults[k].number;
            calls = 0;
            mpk_fault_hook_set(fault);
            moepack_status status = moepack_export(pack(), at("out"), NULL, NULL, &error);
            mpk_fault_hook_set(NULL);
            if (calls <= fail_after) { /* there were not so many calls */
                assert_status(status, MOEPACK_OK, &error, "");
                remove_tree(at("out"));
                break;
            }
            if (status == MOEPACK_OK)
                fail_msg("%s number %u failed and nobody noticed", faults[k].operation, fail_after);
            assert_status(status, faults[k].wanted, &error, "out");
            /* A sync of the parent directory may fail after the rename: then the complete output stands. */
            if (exists(at("out"))) {
                assert_string_equal(faults[k].operation, "sync");
                assert_same_tree(TINY, at("out"));
                remove_tree(at("out"));
            }
            assert_false(exists(at("out.partial")));
            failures++;
        }
        assert_true(failures > 0);
    }
}

static void cancel_when_writing(void *user, const moepack_progress *progress)
{
    (void)progress;
    *(volatile int *)user = 1;
}

static void cancel_leaves_nothing(void **state)
{
    (void)state;
    volatile int cancel = 0;
    moepack_error error;
    moepack_export_options options;
    moepack_export_options_init(&options);
    options.callbacks =
        (moepack_callbacks){.progress = cancel_when_writing, .user = (void *)(uintptr_t)&cancel, .cancel = &cancel};
    assert_status(moepack_export(pack(), at("out"), &options, NULL, &error), MOEPACK_E_INTERRUPTED, &error, "");
    assert_false(exists(at("out")));
    assert_false(exists(at("out.partial")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_back_the_source),
        cmocka_unit_test(damage_is_not_published),
        cmocka_unit_test(incomplete_containers_are_refused),
        cmocka_unit_test(existing_directory_is_kept_safe),
        cmocka_unit_test(faults_leave_nothing),
        cmocka_unit_test(cancel_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
