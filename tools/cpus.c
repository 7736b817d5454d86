/* How many processors this process may use. */
#include "cli.h"

#include <sched.h>
#include <stdlib.h>

/* Whole processors of the control group's quota ("max 100000" or "200000 100000"), 0: no limit known. */
static unsigned quota(void)
{
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
    unsigned long long limit = 0, period = 0;
    if (file == NULL) return 0;
    int read = fscanf(file, "%llu %llu", &limit, &period);
    fclose(file);
    if (read != 2 || period == 0) return 0;
    unsigned long long whole = (limit + period - 1) / period;
    return whole > 0 && whole < 1u << 20 ? (unsigned)whole : 1;
}

unsigned cli_threads(void)
{
    const char *asked = getenv("OMP_NUM_THREADS");
    if (asked != NULL) {
        unsigned long n = strtoul(asked, NULL, 10);
        if (n > 0 && n < 1u << 20) return (unsigned)n;
    }
    cpu_set_t set;
    unsigned count = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
    unsigned limit = quota();
    return limit > 0 && limit < count ? limit : count;
}
