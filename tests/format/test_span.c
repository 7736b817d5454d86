/* Reading many spans: direct and buffered give the same bytes, each span is reported once, faults and early ends are
 * named. */
#include "sample.h"

#include "io/io.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64], path_a[100], path_b[100];
static const char *paths[2];
#define SIZE_A ((size_t)20 * 1024 * 1024 + 12345)
#define SIZE_B ((size_t)70001)
static uint8_t *content[2];

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "format_span_XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(path_a, sizeof path_a, "%s/a", folder);
    snprintf(path_b, sizeof path_b, "%s/b", folder);
    paths[0] = path_a;
    paths[1] = path_b;
    static const size_t sizes[2] = {SIZE_A, SIZE_B};
    for (int i = 0; i < 2; ++i) {
        uint64_t seed = 40u + (unsigned)i;
        content[i] = malloc(sizes[i] + 8);
        if (content[i] == NULL) return 1;
        for (size_t k = 0; k < sizes[i]; k += 8) mpk_store64(content[i] + k, sample_random(&seed));
        FILE *file = fopen(paths[i], "wb");
        if (file == NULL || fwrite(content[i], 1, sizes[i], file) != sizes[i] || fclose(file) != 0) return 1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mpk_fault_hook_set(NULL);
    free(content[0]);
    free(content[1]);
    return mpk_tree_remove(folder, NULL) != MOEPACK_OK;
}

typedef struct seen {
    pthread_mutex_t lock;
    unsigned *times; /* per span, by user */
    unsigned fail_after, total;
} seen;

/* Cannot use the assertions of cmocka: it runs on other threads. */
static moepack_status done(void *user, const mpk_span *span, moepack_error *error)
{
    (void)error;
    seen *s = (seen *)user;
    pthread_mutex_lock(&s->lock);
    ++s->times[(uintptr_t)span->user];
    bool wrong = memcmp(span->dest, content[span->source] + span->offset, span->length) != 0;
    bool stop = ++s->total == s->fail_after;
    pthread_mutex_unlock(&s->lock);
    return wrong ? MOEPACK_E_CORRUPT : stop ? MOEPACK_E_REFUSED : MOEPACK_OK;
}

/* Spans of every alignment; the first is large enough for several threads, one is empty. */
static size_t make_spans(mpk_span *spans, uint8_t *memory)
{
    static const struct {
        int source;
        uint64_t offset, length, shift; /* shift: of the destination from a page */
    } specs[] = {
        {0, 0, 18u << 20, 0},
        {0, 4096, 8192, 0},
        {0, 1, 4095, 0},
        {0, 4095, 2, 1},
        {0, 8 * 1048576 - 1, 2, 0},
        {0, 5000, 9 << 20, 904},
        {0, SIZE_A - 12345, 12345, 0},
        {0, SIZE_A, 0, 0},
        {1, 0, SIZE_B, 0},
        {1, SIZE_B - 1, 1, 0},
        {1, 4096, 4096, 0},
        {1, 123, 4567, 77},
    };
    size_t n = sizeof specs / sizeof specs[0], at = 0;
    for (size_t i = 0; i < n; ++i) {
        spans[i] = (mpk_span){specs[i].source, specs[i].offset, specs[i].length, memory + at + specs[i].shift,
                              (void *)(uintptr_t)i};
        at += (specs[i].length + specs[i].shift + 2 * 4096) / 4096 * 4096;
    }
    return n;
}

static void read_all(bool direct, unsigned threads, mpk_span_report *report)
{
    mpk_span spans[16];
    unsigned times[16] = {0};
    seen s = {PTHREAD_MUTEX_INITIALIZER, times, 0, 0};
    uint8_t *memory = aligned_alloc(4096, (size_t)40 << 20);
    assert_non_null(memory);
    memset(memory, 0xee, (size_t)40 << 20);
    size_t n = make_spans(spans, memory);
    uint64_t wanted = 0;
    for (size_t i = 0; i < n; ++i) wanted += spans[i].length;
    mpk_span_reader_options o = {.threads = threads, .direct = direct, .done = done, .user = &s};
    moepack_error e;
    assert_status(MOEPACK_OK, mpk_span_read(paths, 2, spans, n, &o, report, &e), &e);
    for (size_t i = 0; i < n; ++i) {
        assert_int_equal(times[i], 1);
        assert_memory_equal(spans[i].dest, content[spans[i].source] + spans[i].offset, spans[i].length);
        assert_int_equal(((uint8_t *)spans[i].dest)[spans[i].length], 0xee); /* not a byte more */
    }
    assert_true(report->bytes_wanted == wanted);
    free(memory);
}

static void test_buffered(void **state)
{
    (void)state;
    mpk_span_report report;
    for (unsigned threads = 0; threads < 9; threads += 4) {
        read_all(false, threads, &report);
        assert_false(report.direct);
        assert_true(report.bytes_read == report.bytes_wanted);
        assert_string_equal(report.reason, "");
    }
}

static void test_direct(void **state)
{
    (void)state;
    mpk_span_report report;
    for (unsigned threads = 0; threads < 9; threads += 4) {
        read_all(true, threads, &report);
        if (report.direct) {
            assert_true(report.bytes_read > report.bytes_wanted); /* widened to whole blocks */
            assert_string_equal(report.reason, "");
        } else {
            assert_string_not_equal(report.reason, "");
        }
    }
    print_message("direct I/O here: %s%s\n", report.direct ? "yes" : "no, ", report.reason);
}

/* ---- faults; the hook runs on several threads, so it only counts atomically ---- */

static int fault_mode;
static int calls;

static int fault(const char *operation, const char *path)
{
    bool a = strcmp(path, path_a) == 0;
    int n = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    switch (fault_mode) {
    case 1:
        return strcmp(operation, "read") == 0 && n % 3 == 0 ? EINTR : 0;
    case 2:
        return strcmp(operation, "read") == 0 ? -1000000 : 0; /* short reads */
    case 3:
        return strcmp(operation, "read") == 0 && a && n > 4 ? EIO : 0;
    case 4:
        return strcmp(operation, "open") == 0 && a && n == 2 ? EINVAL : 0; /* the O_DIRECT open of the first file */
    case 5:
        return strcmp(operation, "read") == 0 && n == 5 ? EINVAL : 0; /* the first direct read */
    default:
        return 0;
    }
}

static void fault_set(int mode)
{
    fault_mode = mode;
    calls = 0;
    mpk_fault_hook_set(mode == 0 ? NULL : fault);
}

static void test_interrupted_and_short(void **state)
{
    (void)state;
    mpk_span_report report;
    for (int mode = 1; mode <= 2; ++mode) {
        fault_set(mode);
        read_all(false, 2, &report);
        fault_set(mode);
        read_all(true, 2, &report);
    }
    fault_set(0);
}

static void test_fallback(void **state)
{
    (void)state;
    mpk_span_report report;
    fault_set(4);
    read_all(true, 2, &report);
    assert_false(report.direct);
    assert_non_null(strstr(report.reason, "a: cannot open with O_DIRECT: Invalid argument"));
    fault_set(5);
    read_all(true, 1, &report);
    assert_false(report.direct);
    assert_non_null(strstr(report.reason, "O_DIRECT"));
    fault_set(0);
}

static void test_errors(void **state)
{
    (void)state;
    uint8_t *memory = aligned_alloc(4096, 24 << 20);
    assert_non_null(memory);
    unsigned times[4] = {0};
    seen s = {PTHREAD_MUTEX_INITIALIZER, times, 0, 0};
    moepack_error e;
    mpk_span_report report;
    for (int direct = 0; direct < 2; ++direct) {
        mpk_span_reader_options o = {.threads = 2, .direct = direct != 0, .done = done, .user = &s};
        /* the file ends before the span does */
        mpk_span spans[2] = {{1, 65536, SIZE_B - 65536 + 1, memory, (void *)0}, {0, 0, 100, memory + 4096, (void *)1}};
        assert_status(MOEPACK_E_INCOMPLETE, mpk_span_read(paths, 2, spans, 2, &o, &report, &e), &e);
        assert_string_equal(e.file, path_b);
        assert_int_equal(e.offset, SIZE_B);
        spans[0].offset = SIZE_B + 100000;
        assert_status(MOEPACK_E_INCOMPLETE, mpk_span_read(paths, 2, spans, 2, &o, &report, &e), &e);
        /* a span beyond 2^63, a source that is not there */
        spans[0].offset = UINT64_MAX;
        assert_status(MOEPACK_E_USAGE, mpk_span_read(paths, 2, spans, 2, &o, &report, &e), &e);
        spans[0] = (mpk_span){2, 0, 1, memory, (void *)0};
        assert_status(MOEPACK_E_USAGE, mpk_span_read(paths, 2, spans, 2, &o, &report, &e), &e);
        const char *missing[2] = {path_a, "no such file"};
        assert_status(MOEPACK_E_INCOMPLETE, mpk_span_read(missing, 2, spans, 0, &o, &report, &e), &e);
        assert_string_equal(e.file, "no such file");
        /* the callback stops it; so does the cancel flag */
        spans[0] = (mpk_span){0, 0, 20 << 20, memory, (void *)0};
        s.total = 0;
        s.fail_after = 1;
        assert_status(MOEPACK_E_REFUSED, mpk_span_read(paths, 2, spans, 1, &o, &report, NULL), &e);
        s.fail_after = 0;
        volatile int cancel = 1;
        o.cancel = &cancel;
        assert_status(MOEPACK_E_INTERRUPTED, mpk_span_read(paths, 2, spans, 1, &o, &report, &e), &e);
        cancel = 0;
        fault_set(3);
        assert_status(MOEPACK_E_IO, mpk_span_read(paths, 2, spans, 1, &o, &report, &e), &e);
        assert_string_equal(e.file, path_a);
        fault_set(0);
        /* nothing to do is fine */
        assert_status(MOEPACK_OK, mpk_span_read(paths, 2, NULL, 0, &o, &report, &e), &e);
        assert_status(MOEPACK_OK, mpk_span_read(NULL, 0, NULL, 0, &o, NULL, &e), &e);
    }
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buffered), cmocka_unit_test(test_direct), cmocka_unit_test(test_interrupted_and_short),
        cmocka_unit_test(test_fallback), cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
