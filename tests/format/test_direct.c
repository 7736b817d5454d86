/* Transfers past the page cache: the same bytes as through it, at every alignment, with short and failing calls, up to
 * and beyond the end of the file. */
#include "sample.h"

#include "io/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE ((size_t)100 * 4096 + 1234)
static char folder[64], path[100];
static uint8_t *content, *buffer;

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "format_direct_XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    content = malloc(SIZE + 8);
    buffer = aligned_alloc(MPK_PAGE, MPK_DIRECT_ROOM(128 * (size_t)MPK_PAGE));
    if (content == NULL || buffer == NULL) return 1;
    uint64_t seed = 7;
    for (size_t i = 0; i < SIZE; i += 8) mpk_store64(content + i, sample_random(&seed));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mpk_fault_hook_set(NULL);
    free(content);
    free(buffer);
    return mpk_tree_remove(folder, NULL) != MOEPACK_OK;
}

/* ---- faults ---- */

static const char *fault_operation;
static int fault_answer, fault_call, calls;

/* Call number fault_call of an operation, or with -1 every one, gets the answer. */
static int fault(const char *operation, const char *name)
{
    (void)name;
    if (fault_operation == NULL || strcmp(operation, fault_operation) != 0) return 0;
    return calls++ == fault_call || fault_call < 0 ? fault_answer : 0;
}

static void fault_set(const char *operation, int answer, int call)
{
    fault_operation = operation;
    fault_answer = answer;
    fault_call = call;
    calls = 0;
    mpk_fault_hook_set(operation == NULL ? NULL : fault);
}

/* ---- one file ---- */

static void make_file(void)
{
    moepack_error e;
    int fd;
    unlink(path);
    assert_status(MOEPACK_OK, mpk_file_create(path, &fd, &e), &e);
    assert_status(MOEPACK_OK, mpk_file_pwrite(fd, content, SIZE, 0, path, &e), &e);
    assert_status(MOEPACK_OK, mpk_file_sync(fd, path, &e), &e);
    close(fd);
}

static void begin(mpk_direct *file)
{
    moepack_error e;
    int fd = mpk_file_open(path, &fd, NULL, &e) == MOEPACK_OK ? fd : -1;
    assert_true(fd >= 0);
    assert_status(MOEPACK_OK, mpk_direct_begin(file, fd, path, false, &e), &e);
}

static void end(mpk_direct *file)
{
    mpk_direct_end(file);
    close(file->fd);
}

static const struct {
    uint64_t offset;
    size_t size;
} places[] = {
    {0, 4096}, {0, 3 * 4096}, {4096, 1},         {4095, 2},     {1, 4095},           {5000, 65536},
    {123, 0},  {0, SIZE},     {SIZE - 1234, 17}, {SIZE - 1, 1}, {SIZE - 5000, 5000},
};

static void read_all(mpk_direct *file)
{
    moepack_error e;
    for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
        uint8_t *data;
        memset(buffer, 0xee, MPK_DIRECT_ROOM(places[i].size));
        assert_status(MOEPACK_OK, mpk_direct_read(file, buffer, places[i].size, places[i].offset, &data, &e), &e);
        assert_true(data >= buffer && (size_t)(data - buffer) < MPK_PAGE);
        assert_memory_equal(data, content + places[i].offset, places[i].size);
    }
}

static void test_read(void **state)
{
    (void)state;
    mpk_direct file;
    char why[160] = "";
    make_file();
    begin(&file);
    read_all(&file);
    print_message("direct I/O here: %s %s\n", mpk_direct_reason(&file, why, sizeof why) ? "yes" : "no", why);
    /* Interrupted, and short by every amount: in whole pages and in crumbs. */
    static const int answers[] = {EINTR, -4096, -3 * 4096, -5000, -100};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; ++i) {
        fault_set("read", answers[i], answers[i] == -100 || answers[i] == EINTR ? 0 : -1);
        read_all(&file);
    }
    fault_set(NULL, 0, 0);
    end(&file);
}

static void test_read_fails(void **state)
{
    (void)state;
    mpk_direct file;
    moepack_error e;
    uint8_t *data;
    make_file();
    begin(&file);
    fault_set("read", EIO, 0);
    assert_status(MOEPACK_E_IO, mpk_direct_read(&file, buffer, 65536, 8192, &data, &e), &e);
    assert_string_equal(e.file, path);
    assert_int_equal(e.offset, 8192);
    fault_set(NULL, 0, 0);
    /* The file ends before what is wanted does, inside a page and at one. */
    assert_status(MOEPACK_E_INCOMPLETE, mpk_direct_read(&file, buffer, 5001, SIZE - 5000, &data, &e), &e);
    assert_int_equal(e.offset, SIZE);
    assert_status(MOEPACK_E_INCOMPLETE, mpk_direct_read(&file, buffer, 1, SIZE + 100000, &data, &e), &e);
    assert_status(MOEPACK_E_USAGE, mpk_direct_read(&file, buffer, 1, UINT64_MAX, &data, &e), &e);
    end(&file);
}

static void test_fallback(void **state)
{
    (void)state;
    mpk_direct file;
    moepack_error e;
    char why[160] = "";
    make_file();
    /* A file system without direct I/O: refused at the open, or only when something is read. */
    int fd;
    assert_status(MOEPACK_OK, mpk_file_open(path, &fd, NULL, &e), &e);
    fault_set("open", EINVAL, 0);
    assert_status(MOEPACK_OK, mpk_direct_begin(&file, fd, path, false, &e), &e);
    fault_set(NULL, 0, 0);
    read_all(&file);
    assert_false(mpk_direct_reason(&file, why, sizeof why));
    assert_string_equal(why, "file: no O_DIRECT: Invalid argument");
    end(&file);
    begin(&file);
    if (mpk_direct_reason(&file, why, sizeof why)) { /* else it was refused already */
        fault_set("read", EINVAL, 0);
        read_all(&file);
        assert_false(mpk_direct_reason(&file, why, sizeof why));
        fault_set(NULL, 0, 0);
    }
    end(&file);
    /* Any other failure of the open is one. */
    assert_status(MOEPACK_OK, mpk_file_open(path, &fd, NULL, &e), &e);
    fault_set("open", EMFILE, 0);
    assert_status(MOEPACK_E_IO, mpk_direct_begin(&file, fd, path, false, &e), &e);
    fault_set(NULL, 0, 0);
    close(fd);
}

/* Writes a file piece by piece, with memory that lies as the file does or not, and reads it back. */
static void write_all(const char *operation, int answer, int call)
{
    moepack_error e;
    mpk_direct file;
    int fd;
    unlink(path);
    assert_status(MOEPACK_OK, mpk_file_create(path, &fd, &e), &e);
    assert_status(MOEPACK_OK, mpk_file_reserve(fd, SIZE, path, &e), &e);
    assert_status(MOEPACK_OK, mpk_direct_begin(&file, fd, path, true, &e), &e);
    fault_set(operation, answer, call);
    static const size_t lengths[] = {4096, 100, 3996, 8192, 12288 + 7, 1, 65536, 4088};
    uint64_t at = 0;
    for (size_t i = 0; at < SIZE; ++i) {
        size_t size = lengths[i % 8] < SIZE - at ? lengths[i % 8] : (size_t)(SIZE - at);
        uint8_t *data = buffer + (i % 3 == 2 ? 64 : at % MPK_PAGE);
        memcpy(data, content + at, size);
        assert_status(MOEPACK_OK, mpk_direct_write(&file, data, size, at, &e), &e);
        at += size;
    }
    fault_set(NULL, 0, 0);
    end(&file);
    void *all;
    size_t size;
    assert_status(MOEPACK_OK, mpk_file_read_all(path, SIZE * 2, &all, &size, &e), &e);
    assert_int_equal(size, SIZE); /* whole pages must not have made it longer */
    assert_memory_equal(all, content, SIZE);
    free(all);
}

static void test_write(void **state)
{
    (void)state;
    write_all(NULL, 0, 0);
    write_all("write", EINTR, 3);
    write_all("write", -4096, -1);
    write_all("write", -5000, -1);
    write_all("write", EINVAL, 0);
}

static void test_write_fails(void **state)
{
    (void)state;
    static const struct {
        int number;
        moepack_status status;
    } kinds[] = {{EIO, MOEPACK_E_IO}, {ENOSPC, MOEPACK_E_REFUSED}};
    for (size_t i = 0; i < 2; ++i) {
        moepack_error e;
        mpk_direct file;
        int fd;
        unlink(path);
        assert_status(MOEPACK_OK, mpk_file_create(path, &fd, &e), &e);
        assert_status(MOEPACK_OK, mpk_direct_begin(&file, fd, path, true, &e), &e);
        fault_set("write", kinds[i].number, 0);
        assert_status(kinds[i].status, mpk_direct_write(&file, buffer, 65536, 4096, &e), &e);
        assert_string_equal(e.file, path);
        assert_int_equal(e.offset, 4096);
        fault_set(NULL, 0, 0);
        end(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),  cmocka_unit_test(test_read_fails),  cmocka_unit_test(test_fallback),
        cmocka_unit_test(test_write), cmocka_unit_test(test_write_fails),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
