/* Files, directories and names, with faults injected. Works in a folder of its own inside the current one. */
#include "sample.h"

#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "format_io_XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    mpk_fault_hook_set(NULL);
    return mpk_tree_remove(folder, NULL) != MOEPACK_OK;
}

static const char *in_folder(const char *name)
{
    static char path[8][300];
    static int next;
    char *to = path[next++ % 8];
    snprintf(to, 300, "%s/%s", folder, name);
    return to;
}

static void put(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* ---- faults ---- */

static const char *fault_operation;
static int fault_answers[4], fault_at, fault_seen;

/* Gives the listed answers, one a call, to calls of one kind; 0 afterwards. */
static int fault(const char *operation, const char *path)
{
    assert_non_null(path);
    if (strcmp(operation, fault_operation) != 0) return 0;
    ++fault_seen;
    return fault_at < 4 ? fault_answers[fault_at++] : 0;
}

static void fault_set(const char *operation, int a, int b, int c, int d)
{
    fault_operation = operation;
    fault_answers[0] = a;
    fault_answers[1] = b;
    fault_answers[2] = c;
    fault_answers[3] = d;
    fault_at = fault_seen = 0;
    mpk_fault_hook_set(fault);
}

static void test_eintr_and_short_transfers(void **state)
{
    (void)state;
    const char *path = in_folder("short");
    uint8_t bytes[1000], back[1000];
    uint64_t seed = 3;
    int fd;
    moepack_error e;
    for (size_t i = 0; i < sizeof bytes; ++i) bytes[i] = (uint8_t)sample_random(&seed);
    fault_set("open", EINTR, EINTR, 0, 0);
    assert_status(MOEPACK_OK, mpk_file_create(path, &fd, &e), &e);
    assert_int_equal(fault_seen, 3);
    fault_set("write", -1, EINTR, -500, EINTR);
    assert_status(MOEPACK_OK, mpk_file_pwrite(fd, bytes, sizeof bytes, 0, path, &e), &e);
    assert_int_equal(fault_seen, 5);
    fault_set("read", EINTR, -3, -700, EINTR);
    assert_status(MOEPACK_OK, mpk_file_pread(fd, back, sizeof back, 0, path, &e), &e);
    assert_memory_equal(back, bytes, sizeof bytes);
    assert_int_equal(fault_seen, 5);
    fault_set("sync", EINTR, 0, 0, 0);
    assert_status(MOEPACK_OK, mpk_file_sync(fd, path, &e), &e);
    fault_set("read", -3, EIO, 0, 0);
    assert_status(MOEPACK_E_IO, mpk_file_pread(fd, back, sizeof back, 10, path, &e), &e);
    assert_string_equal(e.file, path);
    assert_int_equal(e.offset, 13);
    assert_non_null(strstr(e.message, "Input/output error"));
    fault_set("write", ENOSPC, 0, 0, 0);
    assert_status(MOEPACK_E_REFUSED, mpk_file_pwrite(fd, bytes, 10, 0, path, &e), &e);
    fault_set("sync", EIO, 0, 0, 0);
    assert_status(MOEPACK_E_IO, mpk_file_sync(fd, path, &e), &e);
    mpk_fault_hook_set(NULL);
    assert_status(MOEPACK_E_INCOMPLETE, mpk_file_pread(fd, back, 11, 990, path, &e), &e);
    assert_int_equal(e.offset, 1000);
    assert_status(MOEPACK_E_USAGE, mpk_file_pread(fd, back, 11, UINT64_MAX, path, &e), &e);
    assert_status(MOEPACK_E_USAGE, mpk_file_pwrite(fd, back, 11, INT64_MAX, path, &e), &e);
    close(fd);
}

static void test_open(void **state)
{
    (void)state;
    int fd;
    uint64_t size;
    moepack_error e;
    put(in_folder("plain"), "12345", 5);
    assert_status(MOEPACK_OK, mpk_file_open(in_folder("plain"), &fd, &size, &e), &e);
    assert_int_equal(size, 5);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    close(fd);
    assert_status(MOEPACK_E_INCOMPLETE, mpk_file_open(in_folder("nothing"), &fd, &size, &e), &e);
    assert_int_equal(fd, -1);
    assert_status(MOEPACK_E_INCOMPLETE, mpk_file_open(in_folder("plain/below"), &fd, &size, &e), &e);
    assert_status(MOEPACK_E_IO, mpk_file_open(folder, &fd, &size, &e), &e);
    assert_status(MOEPACK_E_REFUSED, mpk_file_create(in_folder("plain"), &fd, &e), &e);
    fault_set("open", EACCES, 0, 0, 0);
    assert_status(MOEPACK_E_IO, mpk_file_open(in_folder("plain"), &fd, &size, &e), &e);
    mpk_fault_hook_set(NULL);
    /* A FIFO without a writer: refused at once instead of waiting for one. Likewise a device, and links to them. */
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    assert_int_equal(symlink("fifo", in_folder("to_fifo")), 0);
    assert_int_equal(symlink("plain", in_folder("to_plain")), 0);
    alarm(20); /* ends the test should it block */
    assert_status(MOEPACK_E_IO, mpk_file_open(in_folder("fifo"), &fd, &size, &e), &e);
    assert_string_equal(e.message, "not a regular file");
    assert_status(MOEPACK_E_IO, mpk_file_open(in_folder("to_fifo"), &fd, &size, &e), &e);
    assert_status(MOEPACK_E_IO, mpk_file_open("/dev/null", &fd, &size, &e), &e);
    void *data;
    size_t n;
    assert_status(MOEPACK_E_IO, mpk_file_read_all(in_folder("fifo"), 100, &data, &n, &e), &e);
    alarm(0);
    assert_status(MOEPACK_OK, mpk_file_read_all(in_folder("to_plain"), 5, &data, &n, &e), &e);
    assert_int_equal(n, 5);
    assert_string_equal((char *)data, "12345"); /* the extra zero */
    free(data);
    assert_status(MOEPACK_E_UNSUPPORTED, mpk_file_read_all(in_folder("plain"), 4, &data, &n, &e), &e);
    assert_null(data);
}

static void test_reserve_and_stamp(void **state)
{
    (void)state;
    const char *path = in_folder("reserved");
    int fd;
    struct stat st;
    moepack_error e;
    mpk_file_stamp a, b;
    assert_status(MOEPACK_OK, mpk_file_create(path, &fd, &e), &e);
    assert_status(MOEPACK_OK, mpk_file_reserve(fd, 100000, path, &e), &e);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 100000);
    /* no fallocate on this file system: the length is set */
    fault_set("reserve", EOPNOTSUPP, 0, 0, 0);
    assert_status(MOEPACK_OK, mpk_file_reserve(fd, 300000, path, &e), &e);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 300000);
    assert_int_equal(fault_seen, 2);
    fault_set("reserve", ENOSPC, 0, 0, 0);
    assert_status(MOEPACK_E_REFUSED, mpk_file_reserve(fd, 400000, path, &e), &e);
    mpk_fault_hook_set(NULL);
    assert_status(MOEPACK_OK, mpk_file_reserve(fd, 0, path, &e), &e);
    assert_status(MOEPACK_E_USAGE, mpk_file_reserve(fd, UINT64_MAX, path, &e), &e);
    assert_status(MOEPACK_OK, mpk_file_stamp_of(fd, path, &a, &e), &e);
    assert_status(MOEPACK_OK, mpk_file_stamp_of(fd, path, &b, &e), &e);
    assert_true(mpk_file_stamp_equal(&a, &b));
    assert_status(MOEPACK_OK, mpk_file_pwrite(fd, "x", 1, 0, path, &e), &e);
    assert_status(MOEPACK_OK, mpk_file_stamp_of(fd, path, &b, &e), &e);
    assert_false(mpk_file_stamp_equal(&a, &b));
    close(fd);
}

static void test_paths(void **state)
{
    (void)state;
    static const char *const cases[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < 4; ++i) {
        char *path = mpk_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(path, cases[i][2]);
        free(path);
    }
    moepack_error e;
    assert_status(MOEPACK_OK, mpk_dir_make(in_folder("p/q/r"), &e), &e);
    assert_status(MOEPACK_OK, mpk_dir_make(in_folder("p/q/r/"), &e), &e);
    assert_true(mpk_path_is_dir(in_folder("p/q/r")));
    put(in_folder("p/file"), "x", 1);
    assert_status(MOEPACK_E_IO, mpk_dir_make(in_folder("p/file/x"), &e), &e);
    fault_set("mkdir", EROFS, 0, 0, 0);
    assert_status(MOEPACK_E_IO, mpk_dir_make(in_folder("p/new"), &e), &e);
    mpk_fault_hook_set(NULL);
    assert_status(MOEPACK_OK, mpk_dir_sync(in_folder("p"), &e), &e);
    assert_true(mpk_path_exists(in_folder("p/file")));
    assert_false(mpk_path_is_dir(in_folder("p/file")));
    assert_false(mpk_path_exists(in_folder("p/none")));
    uint64_t here, below;
    assert_status(MOEPACK_OK, mpk_disk_free(folder, &here, &e), &e);
    assert_status(MOEPACK_OK, mpk_disk_free(in_folder("not/yet/there"), &below, &e), &e);
    assert_true(here > 0 && below > 0);
}

static void test_rename(void **state)
{
    (void)state;
    moepack_error e;
    put(in_folder("from"), "new", 3);
    put(in_folder("to"), "old", 3);
    assert_status(MOEPACK_E_REFUSED, mpk_rename_durable(in_folder("from"), in_folder("to"), false, &e), &e);
    assert_true(mpk_path_exists(in_folder("from")));
    /* a file system that cannot promise it: looking first */
    fault_set("rename", EINVAL, 0, 0, 0);
    assert_status(MOEPACK_E_REFUSED, mpk_rename_durable(in_folder("from"), in_folder("to"), false, &e), &e);
    fault_set("rename", EINTR, EINVAL, EINTR, 0);
    assert_status(MOEPACK_OK, mpk_rename_durable(in_folder("from"), in_folder("fresh"), false, &e), &e);
    mpk_fault_hook_set(NULL);
    assert_status(MOEPACK_OK, mpk_rename_durable(in_folder("fresh"), in_folder("to"), true, &e), &e);
    void *data;
    size_t size;
    assert_status(MOEPACK_OK, mpk_file_read_all(in_folder("to"), 10, &data, &size, &e), &e);
    assert_string_equal((char *)data, "new");
    free(data);
    /* directories: an existing one is kept, even an empty one, or replaced with all that is in it */
    assert_status(MOEPACK_OK, mpk_dir_make(in_folder("dir_new"), &e), &e);
    put(in_folder("dir_new/a"), "a", 1);
    assert_status(MOEPACK_OK, mpk_dir_make(in_folder("dir_old/sub"), &e), &e);
    put(in_folder("dir_old/sub/b"), "b", 1);
    assert_status(MOEPACK_OK, mpk_dir_make(in_folder("dir_empty"), &e), &e);
    assert_status(MOEPACK_E_REFUSED, mpk_rename_durable(in_folder("dir_new"), in_folder("dir_old"), false, &e), &e);
    assert_status(MOEPACK_E_REFUSED, mpk_rename_durable(in_folder("dir_new"), in_folder("dir_empty"), false, &e), &e);
    assert_status(MOEPACK_OK, mpk_rename_durable(in_folder("dir_new"), in_folder("dir_old"), true, &e), &e);
    assert_true(mpk_path_exists(in_folder("dir_old/a")));
    assert_false(mpk_path_exists(in_folder("dir_old/sub")));
    assert_false(mpk_path_exists(in_folder("dir_new")));
    assert_status(MOEPACK_E_IO, mpk_rename_durable(in_folder("none"), in_folder("x"), false, &e), &e);
}

static void test_tree(void **state)
{
    (void)state;
    moepack_error e;
    assert_status(MOEPACK_OK, mpk_dir_make(in_folder("t/one/two"), &e), &e);
    assert_status(MOEPACK_OK, mpk_dir_make(in_folder("outside"), &e), &e);
    put(in_folder("outside/keep"), "k", 1);
    put(in_folder("t/b"), "22", 2);
    put(in_folder("t/a.json"), "1", 1);
    put(in_folder("t/one/z"), "333", 3);
    put(in_folder("t/one/two/y"), "", 0);
    put(in_folder("t/.hidden"), "h", 1);
    put(in_folder("t/one.x"), "4444", 4);
    assert_int_equal(symlink("../outside", in_folder("t/to_dir")), 0);
    assert_int_equal(symlink("../outside/keep", in_folder("t/to_file")), 0);
    assert_int_equal(symlink("nowhere", in_folder("t/dangling")), 0);
    assert_int_equal(mkfifo(in_folder("t/pipe"), 0600), 0);
    mpk_file_list list;
    assert_status(MOEPACK_OK, mpk_dir_list(in_folder("t"), &list, &e), &e);
    static const char *const names[] = {"a.json", "b", "one.x", "one/two/y", "one/z", "to_file"};
    static const uint64_t sizes[] = {1, 2, 4, 0, 3, 1};
    assert_int_equal(list.count, 6);
    static const char *const left_out[MPK_LEFT_KINDS] = {".hidden", "pipe", "dangling", "to_dir"};
    for (size_t k = 0; k < MPK_LEFT_KINDS; ++k) {
        assert_int_equal(list.left_out[k].count, 1);
        assert_string_equal(list.left_out[k].first, left_out[k]);
    }
    for (size_t i = 0; i < 6; ++i) {
        assert_string_equal(list.name[i], names[i]);
        assert_int_equal(list.size[i], sizes[i]);
    }
    mpk_file_list_free(&list);
    assert_status(MOEPACK_E_INCOMPLETE, mpk_dir_list(in_folder("no"), &list, &e), &e);
    assert_status(MOEPACK_E_IO, mpk_dir_list(in_folder("t/b"), &list, &e), &e);
    mpk_file_list_free(&list);
    fault_set("unlink", EACCES, 0, 0, 0);
    assert_status(MOEPACK_E_IO, mpk_tree_remove(in_folder("t"), &e), &e);
    fault_set("unlink", EINTR, EINTR, 0, 0);
    assert_status(MOEPACK_OK, mpk_tree_remove(in_folder("t"), &e), &e);
    mpk_fault_hook_set(NULL);
    assert_false(mpk_path_exists(in_folder("t")));
    assert_true(mpk_path_exists(in_folder("outside/keep")));            /* links are removed, not followed */
    assert_status(MOEPACK_OK, mpk_tree_remove(in_folder("t"), &e), &e); /* nothing there is fine */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eintr_and_short_transfers),
        cmocka_unit_test(test_open),
        cmocka_unit_test(test_reserve_and_stamp),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_rename),
        cmocka_unit_test(test_tree),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
