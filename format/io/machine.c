/* Processors, quota and memory nodes of this process. */
#include "io/machine.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* linux/mempolicy.h, which not every system installs. */
#define POLICY_DEFAULT 0
#define POLICY_INTERLEAVE 3

#define NODES_MAX 64u

/* ------------------------------------------------------------------------------------------------ processors */

/* Cores that one cpu.max file ("QUOTA PERIOD" or "max PERIOD") allows, rounded up. */
static unsigned quota_of(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file) return UINT_MAX;
    unsigned long long quota = 0, period = 0;
    const int fields = fscanf(file, "%llu %llu", &quota, &period);
    fclose(file);
    if (fields != 2 || period == 0) return UINT_MAX;
    const unsigned long long cores = quota / period + (quota % period != 0);
    return cores < 1 ? 1 : cores < UINT_MAX ? (unsigned)cores : UINT_MAX;
}

/* A limit may sit on any ancestor of the process's group, so the whole path up to the mount point is asked. */
unsigned mpk_cpu_quota(const char *root)
{
    char line[1024], path[2300], group[1024] = "";
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (!file) return UINT_MAX;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::", 3) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(group, sizeof group, "%s", line + 3);
    }
    fclose(file);
    unsigned cores = UINT_MAX;
    for (;;) {
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%scpu.max", root, group, strcmp(group, "/") == 0 ? "" : "/");
        const unsigned here = quota_of(path);
        if (here < cores) cores = here;
        char *slash = strrchr(group, '/');
        if (!slash) return cores;
        *slash = '\0';
    }
}

unsigned mpk_cpus(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    long cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
    if (cores < 1) cores = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    const unsigned quota = mpk_cpu_quota(""), usable = cores < 1 ? 1 : (unsigned)cores;
    return quota < usable ? quota : usable;
}

/* ------------------------------------------------------------------------------------------------ memory nodes */

/* Reads a list of ranges ("0-3,8,10-11") and calls each(user, i) for every number in it below `limit`. */
static bool read_list(const char *path, unsigned limit, void (*each)(void *user, unsigned i), void *user)
{
    FILE *file = fopen(path, "re");
    unsigned first, last;
    if (!file) return false;
    while (fscanf(file, "%u", &first) == 1) {
        last = first;
        int next = fgetc(file);
        if (next == '-') {
            if (fscanf(file, "%u", &last) != 1) break;
            next = fgetc(file);
        }
        for (unsigned i = first; i <= last && i < limit; i++) each(user, i);
        if (next != ',') break;
    }
    fclose(file);
    return true;
}

static void add_node(void *user, unsigned i)
{
    *(uint64_t *)user |= UINT64_C(1) << i;
}

typedef struct cpu_search {
    const cpu_set_t *cpus;
    bool found;
} cpu_search;

static void find_cpu(void *user, unsigned i)
{
    cpu_search *search = user;
    if (CPU_ISSET(i, search->cpus)) search->found = true;
}

uint64_t mpk_memory_nodes(const char *root, const cpu_set_t *cpus)
{
    char path[1100];
    uint64_t with_memory = 0, nodes = 0;
    snprintf(path, sizeof path, "%s/sys/devices/system/node/has_memory", root);
    if (!read_list(path, NODES_MAX, add_node, &with_memory)) return 0;
    for (unsigned n = 0; n < NODES_MAX; n++) {
        cpu_search search = {.cpus = cpus};
        if ((with_memory >> n & 1) == 0) continue;
        snprintf(path, sizeof path, "%s/sys/devices/system/node/node%u/cpulist", root, n);
        read_list(path, CPU_SETSIZE, find_cpu, &search);
        if (search.found) add_node(&nodes, n);
    }
    return nodes;
}

void mpk_memory_spread(void *memory, size_t size)
{
    cpu_set_t cpus;
    int policy = POLICY_DEFAULT;
    if (size == 0 || sched_getaffinity(0, sizeof cpus, &cpus) != 0) return;
    const uint64_t nodes = mpk_memory_nodes("", &cpus);
    if ((nodes & (nodes - 1)) == 0) return;
#if defined(SYS_mbind) && defined(SYS_get_mempolicy)
    if (syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0) != 0 || policy != POLICY_DEFAULT) return;
    unsigned long mask[NODES_MAX / 8 / sizeof(unsigned long)];
    memcpy(mask, &nodes, sizeof mask);
    (void)syscall(SYS_mbind, memory, size, POLICY_INTERLEAVE, mask, NODES_MAX + 1, 0);
#else
    (void)memory, (void)policy;
#endif
}

size_t mpk_memory_page(void)
{
    const long page = sysconf(_SC_PAGESIZE);
    return page > 0 ? (size_t)page : 65536; /* the largest in use: right, if less exact, for smaller ones */
}

size_t mpk_whole_pages(const void *memory, size_t size, size_t page, size_t *begin)
{
    const size_t into = (uintptr_t)memory % page;
    *begin = into == 0 ? 0 : page - into;
    return size > *begin ? (size - *begin) & ~(page - 1) : 0;
}
