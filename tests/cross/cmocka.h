/* The part of cmocka's interface that the portable tests use, for targets that have no cmocka package. A failed
 * assertion ends the program. */
#ifndef MOEPACK_TESTS_CROSS_CMOCKA_H
#define MOEPACK_TESTS_CROSS_CMOCKA_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test)(void **state);
    int (*setup)(void **state);
    int (*teardown)(void **state);
    void *initial_state;
};

int cross_run(const char *group, const struct CMUnitTest *tests, size_t count, int (*setup)(void **state),
              int (*teardown)(void **state));
_Noreturn void cross_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
void cross_equal(uintmax_t a, uintmax_t b, int wanted, const char *what, const char *file, int line);
void cross_in_range(uintmax_t v, uintmax_t low, uintmax_t high, const char *what, const char *file, int line);
void cross_string(const char *a, const char *b, int wanted, const char *file, int line);
void cross_memory(const void *a, const void *b, size_t n, int wanted, const char *file, int line);

/* Like cmocka's, these take pointers and numbers alike. */
#define CROSS_NUMBER(v) ((uintmax_t)(v))
#define CROSS_EQUAL(a, b, wanted) \
    cross_equal(CROSS_NUMBER(a), CROSS_NUMBER(b), wanted, #a " against " #b, __FILE__, __LINE__)

#define assert_true(c) cross_equal((c) ? UINTMAX_C(1) : UINTMAX_C(0), 1, 1, #c, __FILE__, __LINE__)
#define assert_false(c) cross_equal((c) ? UINTMAX_C(1) : UINTMAX_C(0), 0, 1, #c, __FILE__, __LINE__)
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_null(p) assert_true((p) == NULL)
#define assert_ptr_equal(a, b) assert_true((const void *)(a) == (const void *)(b))
#define assert_int_equal(a, b) CROSS_EQUAL(a, b, 1)
#define assert_int_not_equal(a, b) CROSS_EQUAL(a, b, 0)
#define assert_in_range(v, low, high) \
    cross_in_range(CROSS_NUMBER(v), CROSS_NUMBER(low), CROSS_NUMBER(high), #v, __FILE__, __LINE__)
#define assert_string_equal(a, b) cross_string(a, b, 1, __FILE__, __LINE__)
#define assert_string_not_equal(a, b) cross_string(a, b, 0, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n) cross_memory(a, b, n, 1, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, n) cross_memory(a, b, n, 0, __FILE__, __LINE__)
#define fail_msg(...) cross_fail(__FILE__, __LINE__, __VA_ARGS__)
#define print_error(...) fprintf(stderr, __VA_ARGS__)
#define print_message(...) printf(__VA_ARGS__)
#define fail() cross_fail(__FILE__, __LINE__, "failed")

#define cmocka_unit_test(f)     \
    {                           \
#f, f, NULL, NULL, NULL \
    }
#define cmocka_unit_test_setup(f, setup) \
    {                                    \
#f, f, setup, NULL, NULL         \
    }
#define cmocka_unit_test_setup_teardown(f, setup, teardown) \
    {                                                       \
#f, f, setup, teardown, NULL                        \
    }
#define cmocka_unit_test_prestate(f, state) \
    {                                       \
#f, f, NULL, NULL, state            \
    }
#define cmocka_run_group_tests(tests, setup, teardown) cmocka_run_group_tests_name(#tests, tests, setup, teardown)
#define cmocka_run_group_tests_name(group, tests, setup, teardown) \
    cross_run(group, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

#endif
