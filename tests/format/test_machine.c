/* Quotas, memory nodes and pages of made-up machines. */
#include "sample.h"

#include "io/io.h"
#include "io/machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static char root[64];

static int setup(void **state)
{
    (void)state;
    strcpy(root, "format_machine_XXXXXX");
    return mkdtemp(root) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    return mpk_tree_remove(root, NULL) != MOEPACK_OK;
}

/* A file under the root, with its folders. */
static void put(const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *at = strchr(path, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_quota(void **state)
{
    (void)state;
    assert_int_equal(mpk_cpu_quota(root), UINT_MAX); /* nothing there */
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(mpk_cpu_quota(root), UINT_MAX);
    put("sys/fs/cgroup/a/cpu.max", "250000 100000\n"); /* an ancestor's, rounded up */
    assert_int_equal(mpk_cpu_quota(root), 3);
    put("sys/fs/cgroup/a/b/cpu.max", "1000 100000\n");
    assert_int_equal(mpk_cpu_quota(root), 1);
    put("sys/fs/cgroup/a/b/cpu.max", "100000 0\n");
    assert_int_equal(mpk_cpu_quota(root), 3);
    put("sys/fs/cgroup/cpu.max", "200000 100000\n"); /* inside a container the mount point is the group */
    put("proc/self/cgroup", "12:cpu:/x\n0::/\n");
    assert_int_equal(mpk_cpu_quota(root), 2);
    assert_in_range(mpk_cpus(), 1, 1 << 20);
}

static void test_nodes(void **state)
{
    (void)state;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(1, &cpus);
    CPU_SET(9, &cpus);
    assert_int_equal(mpk_memory_nodes(root, &cpus), 0); /* the machine does not say */
    put("sys/devices/system/node/has_memory", "0-1,3\n");
    put("sys/devices/system/node/node0/cpulist", "0-3\n");
    put("sys/devices/system/node/node1/cpulist", "4-7\n");
    put("sys/devices/system/node/node2/cpulist", "9\n"); /* processors without memory */
    put("sys/devices/system/node/node3/cpulist", "8,9,12-15\n");
    assert_int_equal(mpk_memory_nodes(root, &cpus), 1u << 0 | 1u << 3);
    CPU_CLR(9, &cpus);
    assert_int_equal(mpk_memory_nodes(root, &cpus), 1u << 0);
    CPU_SET(5, &cpus);
    assert_int_equal(mpk_memory_nodes(root, &cpus), 1u << 0 | 1u << 1);
    put("sys/devices/system/node/node0/cpulist", "\n"); /* memory without processors */
    assert_int_equal(mpk_memory_nodes(root, &cpus), 1u << 1);
    put("sys/devices/system/node/has_memory", "4294967295,1,70\n"); /* numbers beyond reason are passed over */
    assert_int_equal(mpk_memory_nodes(root, &cpus), 1u << 1);
}

/* On this machine, whatever it is: memory stays usable. */
static void test_spread(void **state)
{
    (void)state;
    const size_t size = (size_t)4 << 20;
    unsigned char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    mpk_memory_spread(memory, size);
    mpk_memory_spread(NULL, 0);
    memset(memory, 1, size);
    assert_int_equal(memory[size - 1], 1);
    munmap(memory, size);
}

/* Memory pages of every size in use: exactly the whole ones. */
static void test_whole_pages(void **state)
{
    (void)state;
    static const size_t pages[] = {4096, 16384, 65536};
    const size_t here = mpk_memory_page();
    assert_true(here >= 4096 && (here & (here - 1)) == 0);
    for (size_t p = 0; p < 3; p++)
        for (size_t at = 0; at < 2 * pages[p]; at += 1024)
            for (size_t size = 0; size < 4 * pages[p]; size += 4096) {
                size_t begin, first = (at + pages[p] - 1) / pages[p] * pages[p],
                              last = (at + size) / pages[p] * pages[p];
                const size_t bytes =
                    mpk_whole_pages((const void *)(uintptr_t)(pages[p] * 100 + at), size, pages[p], &begin);
                assert_int_equal(bytes, last > first ? last - first : 0);
                assert_int_equal(begin, first - at);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_quota, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nodes, setup, teardown),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_whole_pages),
    };
    return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
