/* Writes the sample container into a folder: format_make_sample DIR [big] */
#include "sample.h"

#include <stdio.h>
#include <string.h>

static sample made;

static void write_it(void **state)
{
    const char *const *arguments = (const char *const *)*state;
    sample_make(&made, arguments[1] != NULL && strcmp(arguments[1], "big") == 0 ? SAMPLE_BIG : 0);
    sample_write(&made, arguments[0]);
    sample_free(&made);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s DIR [big]\n", argv[0]);
        return 2;
    }
    /* As a test, because the sample checks itself with assertions. */
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(write_it, argv + 1)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
