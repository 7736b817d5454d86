/* The safetensors writer: round trips, and everything that must leave no file behind. */
#include "test_source_files.h"

#include "io/io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *dir;

static int setup(void **state)
{
    (void)state;
    dir = strdup(make_dir());
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_dir(dir);
    free((char *)dir);
    return 0;
}

static moepack_error error;
static const uint64_t dims[] = {2, 3};

static moepack_safetensors_writer *create(const char *path, bool overwrite)
{
    moepack_safetensors_writer *writer = NULL;
    expect_ok(moepack_safetensors_create(path, overwrite, &writer, &error), &error);
    return writer;
}

static void assert_gone(const char *path)
{
    char partial[600];
    assert_false(mpk_path_exists(path));
    strcpy(partial, path);
    strcat(partial, ".partial");
    assert_false(mpk_path_exists(partial));
}

static void round_trip(void **state)
{
    (void)state;
    const char *path = in_dir(dir, "out.safetensors");
    moepack_safetensors_writer *writer = create(path, false);
    expect_ok(moepack_safetensors_add_metadata(writer, "layer", "3", &error), &error);
    expect_ok(moepack_safetensors_add(writer, "y", MOEPACK_DTYPE_F32, 2, dims, &error), &error);
    expect_ok(moepack_safetensors_add(writer, "\"\\\n caf\xc3\xa9", MOEPACK_DTYPE_U8, 0, NULL, &error), &error);
    expect_ok(moepack_safetensors_add(writer, "empty", MOEPACK_DTYPE_BF16, 1, (uint64_t[]){0}, &error), &error);
    expect_ok(moepack_safetensors_add(writer, "a", MOEPACK_DTYPE_F4, 1, (uint64_t[]){6}, &error), &error);
    uint8_t data[28];
    for (uint8_t i = 0; i < 28; i++) data[i] = i;
    for (size_t at = 0; at < 28; at += 7) expect_ok(moepack_safetensors_append(writer, data + at, 7, &error), &error);
    assert_false(mpk_path_exists(path));
    expect_ok(moepack_safetensors_finish(writer, &error), &error);

    size_t size;
    char *bytes = read_text(path, &size);
    static const char wanted[] =
        "{\"__metadata__\":{\"layer\":\"3\"},\"y\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"\\\"\\\\\\n caf\xc3\xa9\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[24,25]},"
        "\"empty\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[25,25]},"
        "\"a\":{\"dtype\":\"F4\",\"shape\":[6],\"data_offsets\":[25,28]}}";
    size_t padded = (sizeof wanted - 1 + 7) / 8 * 8;
    assert_int_equal(size, 8 + padded + 28);
    assert_memory_equal(bytes + 8, wanted, sizeof wanted - 1);
    for (size_t i = sizeof wanted - 1; i < padded; i++) assert_int_equal(bytes[8 + i], ' ');
    assert_memory_equal(bytes + 8 + padded, data, 28);
    free(bytes);

    moepack_safetensors *file = NULL;
    expect_ok(moepack_safetensors_open(path, &file, &error), &error);
    assert_int_equal(moepack_safetensors_count(file), 4);
    assert_string_equal(moepack_safetensors_metadata(file, "layer"), "3");
    size_t found = moepack_safetensors_find(file, "\"\\\n caf\xc3\xa9");
    uint8_t byte;
    expect_ok(moepack_safetensors_read(file, found, 0, &byte, 1, &error), &error);
    assert_int_equal(byte, 24);
    moepack_safetensors_close(file);
}

static void nothing_declared(void **state)
{
    (void)state;
    const char *path = in_dir(dir, "nothing.safetensors");
    expect_ok(moepack_safetensors_finish(create(path, false), &error), &error);
    size_t size;
    char *bytes = read_text(path, &size);
    assert_int_equal(size, 16);
    assert_memory_equal(bytes, "\x08\0\0\0\0\0\0\0{}      ", 16);
    free(bytes);
}

static void existing_files_are_kept(void **state)
{
    (void)state;
    const char *path = in_dir(dir, "kept.safetensors");
    moepack_safetensors_writer *writer = NULL;
    write_text(path, "old");
    expect_error(moepack_safetensors_create(path, false, &writer, &error), MOEPACK_E_REFUSED, &error,
                 "kept.safetensors");
    assert_null(writer);

    /* Giving up keeps the old file even when it may be replaced. */
    moepack_safetensors_abort(create(path, true));
    size_t size;
    char *bytes = read_text(path, &size);
    assert_string_equal(bytes, "old");
    free(bytes);

    writer = create(path, true);
    moepack_safetensors_writer *second = NULL;
    expect_error(moepack_safetensors_create(path, true, &second, &error), MOEPACK_E_REFUSED, &error, ".partial");
    expect_ok(moepack_safetensors_finish(writer, &error), &error);
    bytes = read_text(path, &size);
    assert_int_equal(size, 16);
    free(bytes);
}

/* --overwrite replaces files, not devices, pipes or what a link points to. */
static void only_regular_files_are_replaced(void **state)
{
    (void)state;
    moepack_safetensors_writer *writer = NULL;
    const char *pipe_path = in_dir(dir, "pipe.safetensors");
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    expect_error(moepack_safetensors_create(pipe_path, true, &writer, &error), MOEPACK_E_REFUSED, &error,
                 "regular file");
    assert_null(writer);
    struct stat st;
    assert_int_equal(lstat(pipe_path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(unlink(pipe_path), 0);

    const char *link_path = in_dir(dir, "link.safetensors");
    assert_int_equal(symlink("nowhere", link_path), 0);
    expect_error(moepack_safetensors_create(link_path, true, &writer, &error), MOEPACK_E_REFUSED, &error,
                 "regular file");
    assert_int_equal(unlink(link_path), 0);
    expect_error(moepack_safetensors_create(dir, true, &writer, &error), MOEPACK_E_REFUSED, &error, "regular file");
}

/* Another program may create the file between create and finish. */
static void late_files_are_kept(void **state)
{
    (void)state;
    const char *path = in_dir(dir, "late.safetensors");
    moepack_safetensors_writer *writer = create(path, false);
    write_text(path, "other");
    assert_int_not_equal(moepack_safetensors_finish(writer, &error), MOEPACK_OK);
    size_t size;
    char *bytes = read_text(path, &size);
    assert_string_equal(bytes, "other");
    free(bytes);
    assert_false(mpk_path_exists(in_dir(dir, "late.safetensors.partial")));
}

static void wrong_amounts_leave_nothing(void **state)
{
    (void)state;
    const char *path = in_dir(dir, "amount.safetensors");
    uint8_t data[25] = {0};
    for (size_t given = 0; given < 24; given += 8) {
        moepack_safetensors_writer *writer = create(path, false);
        expect_ok(moepack_safetensors_add(writer, "y", MOEPACK_DTYPE_F32, 2, dims, &error), &error);
        expect_ok(moepack_safetensors_append(writer, data, given, &error), &error);
        expect_error(moepack_safetensors_finish(writer, &error), MOEPACK_E_USAGE, &error, "of 24 declared");
        assert_gone(path);
    }
    moepack_safetensors_writer *writer = create(path, false);
    expect_ok(moepack_safetensors_add(writer, "y", MOEPACK_DTYPE_F32, 2, dims, &error), &error);
    expect_error(moepack_safetensors_append(writer, data, 25, &error), MOEPACK_E_USAGE, &error, "more data");
    /* Once wrong, always wrong: what came in between is lost. */
    assert_int_equal(moepack_safetensors_append(writer, data, 24, &error), MOEPACK_E_USAGE);
    assert_int_equal(moepack_safetensors_finish(writer, &error), MOEPACK_E_USAGE);
    assert_gone(path);
}

static void wrong_declarations_are_refused(void **state)
{
    (void)state;
    const char *path = in_dir(dir, "declare.safetensors");
    moepack_safetensors_writer *writer = create(path, false);
    const uint64_t huge[] = {(uint64_t)1 << 62, 4}, negative[] = {UINT64_MAX}, third = 3;
    expect_ok(moepack_safetensors_add(writer, "y", MOEPACK_DTYPE_F32, 2, dims, &error), &error);
    expect_error(moepack_safetensors_add(writer, "y", MOEPACK_DTYPE_F32, 2, dims, &error), MOEPACK_E_USAGE, &error,
                 "twice");
    expect_error(moepack_safetensors_add(writer, "__metadata__", MOEPACK_DTYPE_F32, 2, dims, &error), MOEPACK_E_USAGE,
                 &error, "reserved");
    expect_error(moepack_safetensors_add(writer, "h", MOEPACK_DTYPE_F32, 2, huge, &error), MOEPACK_E_USAGE, &error,
                 "shape");
    expect_error(moepack_safetensors_add(writer, "n", MOEPACK_DTYPE_U8, 1, negative, &error), MOEPACK_E_USAGE, &error,
                 "shape");
    expect_error(moepack_safetensors_add(writer, "o", MOEPACK_DTYPE_F4, 1, &third, &error), MOEPACK_E_USAGE, &error,
                 "shape");
    expect_error(moepack_safetensors_add(writer, "d", (moepack_dtype)99, 2, dims, &error), MOEPACK_E_USAGE, &error,
                 "dtype");
    expect_error(moepack_safetensors_add(writer, "\xff", MOEPACK_DTYPE_U8, 2, dims, &error), MOEPACK_E_USAGE, &error,
                 "UTF-8");
    expect_error(moepack_safetensors_add_metadata(writer, "k", "\xff", &error), MOEPACK_E_USAGE, &error, "UTF-8");
    expect_ok(moepack_safetensors_append(writer, dims, 0, &error), &error);
    expect_error(moepack_safetensors_add(writer, "z", MOEPACK_DTYPE_U8, 2, dims, &error), MOEPACK_E_USAGE, &error,
                 "after data");
    expect_error(moepack_safetensors_add_metadata(writer, "k", "v", &error), MOEPACK_E_USAGE, &error, "after data");
    moepack_safetensors_abort(writer);
    moepack_safetensors_abort(NULL);
    assert_gone(path);
}

/* Each kind of system call fails once; the error comes through and nothing remains. */
static const char *failing;

static int fail_operation(const char *operation, const char *path)
{
    (void)path;
    return failing && strcmp(operation, failing) == 0 ? EIO : 0;
}

static void failing_disks_leave_nothing(void **state)
{
    (void)state;
    static const char *const operations[] = {"open", "write", "sync", "rename"};
    const char *path = in_dir(dir, "disk.safetensors");
    uint8_t data[24] = {0};
    mpk_fault_hook_set(fail_operation);
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        failing = operations[i];
        moepack_safetensors_writer *writer = NULL;
        moepack_status status = moepack_safetensors_create(path, false, &writer, &error);
        if (!status) status = moepack_safetensors_add(writer, "y", MOEPACK_DTYPE_F32, 2, dims, &error);
        if (!status) status = moepack_safetensors_append(writer, data, sizeof data, &error);
        if (writer) {
            moepack_status last = moepack_safetensors_finish(writer, status ? NULL : &error);
            status = status ? status : last;
        }
        expect_error(status, MOEPACK_E_IO, &error, "Input/output error");
        failing = NULL;
        assert_gone(path);
    }
    mpk_fault_hook_set(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(nothing_declared),
        cmocka_unit_test(existing_files_are_kept),
        cmocka_unit_test(only_regular_files_are_replaced),
        cmocka_unit_test(late_files_are_kept),
        cmocka_unit_test(wrong_amounts_leave_nothing),
        cmocka_unit_test(wrong_declarations_are_refused),
        cmocka_unit_test(failing_disks_leave_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
