/* A conversion that fails: whatever breaks, and whenever, nothing lies at the output's name, no partial output is left,
 * and the source is as it was. */
#include "test_pack_files.h"

#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OUT "faulty.moepack"

static const char *fail_operation, *fail_path;
static int fail_errno;
static unsigned fail_after, calls;

/* Fails call number fail_after of one kind on paths that contain fail_path. */
static int fault(const char *operation, const char *path)
{
    if (strcmp(operation, fail_operation) != 0 || !strstr(path, fail_path)) return 0;
    return __sync_fetch_and_add(&calls, 1) == fail_after ? fail_errno : 0;
}

static void try_faults(const char *operation, const char *path, int number, moepack_status wanted, const char *text)
{
    unsigned failures = 0;
    moepack_convert_options options = options_of(MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, 600000, 2);
    for (fail_after = 0; fail_after < 4000; fail_after = fail_after * 5 / 2 + 1) {
        moepack_error error;
        fail_operation = operation;
        fail_path = path;
        fail_errno = number;
        calls = 0;
        mpk_fault_hook_set(fault);
        moepack_status status = moepack_convert(TINY, at(OUT), &options, NULL, &error);
        mpk_fault_hook_set(NULL);
        if (calls <= fail_after) {
            assert_status(status, MOEPACK_OK, &error, "");
            remove_tree(at(OUT));
            break;
        }
        if (status == MOEPACK_OK) fail_msg("%s number %u failed and nobody noticed", operation, fail_after);
        assert_status(status, wanted, &error, text);
        /* A sync of the parent directory may fail after the rename: then the complete output stands. */
        if (exists(at(OUT))) {
            assert_string_equal(operation, "sync");
            moepack_verify_report report;
            assert_status(moepack_verify(at(OUT), NULL, &report, &error), MOEPACK_OK, &error, "");
            remove_tree(at(OUT));
        }
        assert_false(exists(at(OUT ".partial")));
        failures++;
    }
    assert_true(failures > 0);
}

static void full_disk(void **state)
{
    (void)state;
    try_faults("write", OUT, ENOSPC, MOEPACK_E_REFUSED, OUT);
    try_faults("reserve", OUT, ENOSPC, MOEPACK_E_REFUSED, OUT);
}

static void broken_disk(void **state)
{
    (void)state;
    try_faults("write", OUT, EIO, MOEPACK_E_IO, OUT);
    try_faults("sync", OUT, EIO, MOEPACK_E_IO, OUT);
    try_faults("rename", OUT, EIO, MOEPACK_E_IO, OUT);
    try_faults("read", ".safetensors", EIO, MOEPACK_E_IO, ".safetensors");
}

static void read_only_disk(void **state)
{
    (void)state;
    try_faults("mkdir", OUT, EROFS, MOEPACK_E_IO, OUT);
    try_faults("open", OUT, EROFS, MOEPACK_E_IO, OUT);
    /* Without a hook: below a plain file nothing can be made, not even by root. */
    moepack_error error;
    write_file(at("file"), "x", 1);
    assert_int_not_equal(moepack_convert(TINY, at("file/out.moepack"), NULL, NULL, &error), MOEPACK_OK);
    assert_int_equal(size_of(at("file")), 1);
    if (geteuid() == 0) return; /* root writes into read-only directories */
    assert_int_equal(mkdir(at("locked"), 0555), 0);
    assert_status(moepack_convert(TINY, at("locked/out.moepack"), NULL, NULL, &error), MOEPACK_E_IO, &error, "locked");
    assert_false(exists(at("locked/out.moepack.partial")));
}

/* ---- a failing replacement keeps what was there ---- */

static void failed_overwrite_keeps_the_old_container(void **state)
{
    (void)state;
    static const char *const operations[] = {"write", "sync", "rename"};
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    convert_to(TINY, at("old.moepack"), &options, NULL);
    copy_tree(at("old.moepack"), at(OUT));
    options.overwrite = true;
    for (size_t k = 0; k < 3; k++)
        for (fail_after = 0; fail_after < 3; fail_after++) {
            moepack_error error;
            fail_operation = operations[k];
            fail_path = OUT;
            fail_errno = EIO;
            calls = 0;
            mpk_fault_hook_set(fault);
            moepack_status status = moepack_convert(QUANT, at(OUT), &options, NULL, &error);
            mpk_fault_hook_set(NULL);
            if (calls <= fail_after) { /* it went through, and replaced */
                assert_status(status, MOEPACK_OK, &error, "");
                remove_tree(at(OUT));
                copy_tree(at("old.moepack"), at(OUT));
                break;
            }
            assert_status(status, MOEPACK_E_IO, &error, OUT);
            assert_same_tree(at("old.moepack"), at(OUT));
            assert_false(exists(at(OUT ".partial")));
            assert_false(exists(at(OUT ".old")));
        }
    remove_tree(at(OUT));
    remove_tree(at("old.moepack"));
}

/* ---- a source that changes ---- */

static const char *touched;
static const char *touch_operation;

/* Gives the source file another time when the output is first touched, that is after all headers were read. */
static int touch(const char *operation, const char *path)
{
    if (strcmp(operation, touch_operation) == 0 && strstr(path, OUT) && __sync_fetch_and_add(&calls, 1) == fail_after) {
        const struct timespec times[2] = {{.tv_sec = 1000000000 + (long)calls}, {.tv_sec = 1000000000 + (long)calls}};
        if (utimensat(AT_FDCWD, touched, times, 0) != 0) return EIO;
    }
    return 0;
}

static void changing_source_is_noticed(void **state)
{
    (void)state;
    moepack_error error;
    const char *source = at("changing");
    moepack_convert_options options = options_of(MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, 0, 1);
    copy_tree(TINY, source);
    static const char *const files[] = {"model-00002-of-00003.safetensors", "tokenizer_config.json", "config.json"};
    for (size_t i = 0; i < 3; i++) {
        /* Before its data is opened; for the weights also while they are being read (many writes are theirs). */
        for (fail_after = 0; fail_after <= (i == 0 ? 250 : 0); fail_after += 250) {
            touched = at2(source, files[i]);
            touch_operation = fail_after ? "write" : "mkdir";
            calls = 0;
            mpk_fault_hook_set(touch);
            moepack_status status = moepack_convert(source, at(OUT), &options, NULL, &error);
            mpk_fault_hook_set(NULL);
            assert_true(calls > fail_after);
            assert_status(status, MOEPACK_E_CORRUPT, &error, files[i]);
            assert_false(exists(at(OUT)));
            assert_false(exists(at(OUT ".partial")));
        }
    }
    assert_same_tree(source, TINY);
    remove_tree(source);
}

/* ---- cancel ---- */

typedef struct stopper {
    volatile int cancel;
    const char *stage;
    bool seen;
} stopper;

static void stop_at_stage(void *user, const moepack_progress *progress)
{
    stopper *s = user;
    if (strcmp(progress->stage, s->stage) != 0) return;
    s->seen = true;
    s->cancel = 1;
}

/* Waits a little so that the rate limit of progress lets every stage report. */
static int slow(const char *operation, const char *path)
{
    (void)path;
    if (strcmp(operation, "mkdir") == 0 || strcmp(operation, "sync") == 0) usleep(60000);
    return 0;
}

static void cancel_leaves_nothing(void **state)
{
    (void)state;
    static const char *const stages[] = {"read headers", "convert", "verify"};
    for (size_t i = 0; i < 3; i++) {
        stopper s = {.stage = stages[i]};
        moepack_error error;
        moepack_convert_options options;
        moepack_convert_options_init(&options);
        options.verify = true;
        options.callbacks = (moepack_callbacks){.progress = stop_at_stage, .user = &s, .cancel = &s.cancel};
        mpk_fault_hook_set(slow);
        moepack_status status = moepack_convert(TINY, at(OUT), &options, NULL, &error);
        mpk_fault_hook_set(NULL);
        assert_true(s.seen);
        assert_status(status, MOEPACK_E_INTERRUPTED, &error, "");
        assert_false(exists(at(OUT)));
        assert_false(exists(at(OUT ".partial")));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_disk),
        cmocka_unit_test(broken_disk),
        cmocka_unit_test(read_only_disk),
        cmocka_unit_test(failed_overwrite_keeps_the_old_container),
        cmocka_unit_test(changing_source_is_noticed),
        cmocka_unit_test(cancel_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
