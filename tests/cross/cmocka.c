/* Runs tests one after the other and ends the program at the first failure. */
#include "cmocka.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void cross_fail(const char *file, int line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

void cross_equal(uintmax_t a, uintmax_t b, int wanted, const char *what, const char *file, int line)
{
    if ((a == b) != (wanted != 0))
        cross_fail(file, line, "%s: %" PRIdMAX " and %" PRIdMAX, what, (intmax_t)a, (intmax_t)b);
}

void cross_in_range(uintmax_t v, uintmax_t low, uintmax_t high, const char *what, const char *file, int line)
{
    if (v < low || v > high)
        cross_fail(file, line, "%s: %" PRIuMAX " is not in %" PRIuMAX "..%" PRIuMAX, what, v, low, high);
}

void cross_string(const char *a, const char *b, int wanted, const char *file, int line)
{
    if ((strcmp(a, b) == 0) != (wanted != 0)) cross_fail(file, line, "\"%s\" and \"%s\"", a, b);
}

void cross_memory(const void *a, const void *b, size_t n, int wanted, const char *file, int line)
{
    if ((memcmp(a, b, n) == 0) != (wanted != 0))
        cross_fail(file, line, "%zu bytes are %s", n, wanted ? "different" : "the same");
}

int cross_run(const char *group, const struct CMUnitTest *tests, size_t count, int (*setup)(void **state),
              int (*teardown)(void **state))
{
    void *shared = NULL;
    if (setup != NULL && setup(&shared) != 0) cross_fail(__FILE__, __LINE__, "%s: setup failed", group);
    for (size_t i = 0; i < count; i++) {
        void *state = tests[i].initial_state != NULL ? tests[i].initial_state : shared;
        printf("%s: %s\n", group, tests[i].name);
        fflush(stdout);
        if (tests[i].setup != NULL && tests[i].setup(&state) != 0)
            cross_fail(__FILE__, __LINE__, "%s: setup failed", tests[i].name);
        tests[i].test(&state);
        if (tests[i].teardown != NULL && tests[i].teardown(&state) != 0)
            cross_fail(__FILE__, __LINE__, "%s: teardown failed", tests[i].name);
    }
    return teardown != NULL && teardown(&shared) != 0;
}
