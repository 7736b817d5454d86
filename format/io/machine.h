/* What this process may use of the machine: processors and memory nodes. Internal.
 *
 * `root` goes before every path that is read ("" for the running machine), so that tests can show another one. */
#ifndef MOEPACK_IO_MACHINE_H
#define MOEPACK_IO_MACHINE_H

#include <limits.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>

/* Processors of the affinity mask, no more than the control group's CPU quota; at least 1. */
unsigned mpk_cpus(void);

/* Whole processors that the quota of the process's control group (v2: cpu.max, of any ancestor too) amounts to, rounded
 * up; UINT_MAX where there is no limit. */
unsigned mpk_cpu_quota(const char *root);

/* The nodes below 64 that have memory and at least one of `cpus`, as a bit mask; 0 where the machine does not say. */
uint64_t mpk_memory_nodes(const char *root, const cpu_set_t *cpus);

/* Asks for memory that was not touched yet to come from all nodes of the process's processors in turns, because any of
 * its threads may read any of it. Advice: nothing happens on one node, where the caller has a memory policy (numactl),
 * or where the kernel declines. */
void mpk_memory_spread(void *memory, size_t size);

/* Bytes of a page of memory, which calls like madvise count in: 4096, 16384 or 65536, as the kernel was built. Files
 * are laid out in pages of MPK_PAGE bytes everywhere. */
size_t mpk_memory_page(void);

/* Bytes of the whole pages (of `page` bytes, a power of 2) inside [memory, memory + size), and how far into it they
 * begin. */
size_t mpk_whole_pages(const void *memory, size_t size, size_t page, size_t *begin);

#endif
