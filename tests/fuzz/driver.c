/* Runs a fuzz target without libFuzzer: fuzz_NAME [-n MUTATIONS] [-s SEED] FILE_OR_FOLDER ...
 *
 * Each file is given as it is, then MUTATIONS changed copies of it (default 200). The same seed gives the same copies
 * on every machine. A crash prints nothing here: the sanitizers and the exit status tell. -v prints each file's name
 * first. */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned long mutations = 200, inputs;
static uint64_t random_state = 1;
static bool verbose;

static uint64_t next_random(void)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* A copy of exact size, so that a sanitizer sees the first byte too far. */
static void give(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size == 0 ? 1 : size);
    if (copy == NULL) exit(3);
    if (size > 0) memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    ++inputs;
}

/* Numbers that sit on the edges of fields. */
static uint64_t edge_number(void)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     2,
                                     4095,
                                     4096,
                                     4097,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     UINT64_C(1) << 32,
                                     UINT64_C(0x7fffffffffffffff),
                                     UINT64_C(1) << 63,
                                     UINT64_MAX - 4095,
                                     UINT64_MAX};
    uint64_t pick = next_random();
    return pick % 3 == 0 ? pick >> 50 : edges[(pick >> 8) % (sizeof edges / sizeof edges[0])];
}

/* One change; the buffer has room for `room` bytes. */
static size_t mutate(uint8_t *data, size_t size, size_t room)
{
    if (size == 0) return size;
    size_t at = (size_t)(next_random() % size), n;
    switch (next_random() % 7) {
    case 0:
        data[at] ^= (uint8_t)(1u << next_random() % 8);
        break;
    case 1:
        data[at] = (uint8_t)next_random();
        break;
    case 2: /* a number, at a place where one may lie */
        n = (size_t)1 << next_random() % 4;
        at -= at % n;
        for (uint64_t value = edge_number(), i = 0; i < n && at + i < size; ++i)
            data[at + i] = (uint8_t)(value >> 8 * i);
        break;
    case 3:
        size = at;
        break;
    case 4: /* some bytes again, further on */
        n = (size_t)(next_random() % 64) + 1;
        if (n > room - size) n = room - size;
        memmove(data + at + n, data + at, size - at);
        size += n;
        break;
    case 5: /* some bytes gone */
        n = (size_t)(next_random() % 64) + 1;
        if (n > size - at) n = size - at;
        memmove(data + at, data + at + n, size - at - n);
        size -= n;
        break;
    default: /* bytes from elsewhere */
        n = (size_t)(next_random() % 64) + 1;
        if (n > size - at) n = size - at;
        memmove(data + at, data + next_random() % (size - n + 1), n);
        break;
    }
    return size;
}

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "%s: cannot read\n", path);
        if (file != NULL) fclose(file);
        return 1;
    }
    long length = ftell(file);
    rewind(file);
    size_t size = length < 0 ? 0 : (size_t)length, room = size + 512;
    uint8_t *seed = malloc(room), *copy = malloc(room);
    if (seed == NULL || copy == NULL || fread(seed, 1, size, file) != size) {
        fprintf(stderr, "%s: cannot read\n", path);
        fclose(file);
        free(seed);
        free(copy);
        return 1;
    }
    fclose(file);
    if (verbose) printf("%s\n", path);
    give(seed, size);
    for (unsigned long i = 0; i < mutations; ++i) {
        size_t n = size;
        memcpy(copy, seed, size);
        for (uint64_t changes = next_random() % 4 + 1; changes > 0; --changes) n = mutate(copy, n, room);
        give(copy, n);
    }
    free(seed);
    free(copy);
    return 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* not alphasort, which depends on the locale */
}

static int run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        fprintf(stderr, "%s: not there\n", path);
        return 1;
    }
    if (!S_ISDIR(st.st_mode)) return run_file(path);
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, by_name), failed = n < 0;
    for (int i = 0; i < n; ++i) {
        char inner[4096];
        if (entries[i]->d_name[0] != '.') {
            snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
            failed |= run_path(inner);
        }
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return failed;
}

int main(int argc, char **argv)
{
    for (int option; (option = getopt(argc, argv, "n:s:v")) != -1;) {
        switch (option) {
        case 'n':
            mutations = strtoul(optarg, NULL, 10);
            break;
        case 's':
            random_state = strtoull(optarg, NULL, 10);
            break;
        case 'v':
            verbose = true;
            break;
        default:
            return 2;
        }
    }
    int failed = optind == argc;
    for (int i = optind; i < argc; ++i) failed |= run_path(argv[i]);
    printf("%lu inputs\n", inputs);
    return failed || inputs == 0;
}
