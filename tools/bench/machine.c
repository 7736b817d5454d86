/* What the machine says about itself: processor, caches, pages, memory. Everything is optional: a figure is worth
 * less without it, but not wrong. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* First line of a file, without its newline. */
static bool first_line(const char *path, char *buf, size_t size)
{
    FILE *file = fopen(path, "r");
    buf[0] = '\0';
    if (file == NULL) return false;
    bool found = fgets(buf, (int)size, file) != NULL;
    fclose(file);
    buf[strcspn(buf, "\n")] = '\0';
    return found;
}

/* Instruction sets that kernels and limits may use, as the system names them. */
static const char *const isa_names[] = {"avx2",        "fma",         "avx_vnni", "avx512f",  "avx512bw", "avx512vbmi",
                                        "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16", "asimd",
                                        "asimddp",     "i8mm",        "bf16",     "sve"};

static void take_flags(bench_machine *machine, char *flags)
{
    char *rest = NULL;
    for (char *flag = strtok_r(flags, " \t\n", &rest); flag != NULL; flag = strtok_r(NULL, " \t\n", &rest)) {
        for (size_t i = 0; i < sizeof isa_names / sizeof isa_names[0]; i++) {
            size_t used = strlen(machine->isa);
            if (strcmp(flag, isa_names[i]) != 0) continue;
            snprintf(machine->isa + used, sizeof machine->isa - used, "%s%s", used > 0 ? " " : "", flag);
        }
    }
}

/* The first processor stands for all. */
static void read_cpuinfo(bench_machine *machine)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char *line = NULL;
    size_t capacity = 0;
    bool model = false, flags = false;
    while (file != NULL && !(model && flags) && getline(&line, &capacity, file) > 0) {
        char *value = strchr(line, ':');
        if (value == NULL) continue;
        value += strspn(value, ": ");
        if (!model && strncmp(line, "model name", 10) == 0) {
            value[strcspn(value, "\n")] = '\0';
            snprintf(machine->model, sizeof machine->model, "%s", value);
            model = true;
        } else if (!flags && (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0)) {
            take_flags(machine, value);
            flags = true;
        }
    }
    free(line);
    if (file != NULL) fclose(file);
    if (!model) snprintf(machine->model, sizeof machine->model, "unknown processor");
}

/* Largest cache of the first processor: the last level. */
static uint64_t last_level_cache(void)
{
    uint64_t largest = 0;
    for (unsigned i = 0; i < 8; i++) {
        char path[96], text[32];
        uint64_t size;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%u/size", i);
        if (!first_line(path, text, sizeof text)) continue;
        /* "266240K": the kernel's K is 1024 */
        char *end = NULL;
        size = strtoull(text, &end, 10);
        if (end != NULL && *end == 'K') size <<= 10;
        if (end != NULL && *end == 'M') size <<= 20;
        if (size > largest) largest = size;
    }
    return largest;
}

/* "Name:  123 kB" of a file of such lines, in bytes. */
static uint64_t field_of(const char *path, const char *name)
{
    FILE *file = fopen(path, "r");
    char line[256];
    uint64_t value = 0;
    const size_t length = strlen(name);
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            value = strtoull(line + length + 1, NULL, 10) * 1024;
    }
    if (file != NULL) fclose(file);
    return value;
}

uint64_t bench_huge_bytes(void)
{
    return field_of("/proc/self/smaps_rollup", "AnonHugePages");
}

void bench_machine_read(bench_machine *machine)
{
    memset(machine, 0, sizeof *machine);
    read_cpuinfo(machine);
    if (!first_line("/sys/kernel/mm/transparent_hugepage/enabled", machine->page_mode, sizeof machine->page_mode))
        snprintf(machine->page_mode, sizeof machine->page_mode, "unknown");
    long page = sysconf(_SC_PAGESIZE);
    machine->page = page > 0 ? (uint64_t)page : 4096;
    machine->last_cache = last_level_cache();
    machine->memory = field_of("/proc/meminfo", "MemTotal");
    machine->memory_available = field_of("/proc/meminfo", "MemAvailable");
    machine->processors = moepack_threads();
    double load[1];
    machine->load = getloadavg(load, 1) == 1 ? load[0] : -1;
}
