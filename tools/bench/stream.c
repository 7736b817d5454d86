/* What the disk can do: sequential reads, writes and copies past the page cache, in the pattern of the best loaders. */
#include "bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK ((size_t)8 << 20)
#define ALIGNMENT ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)
enum {
    STREAMS = 4 /* at the same time: enough to keep a disk's queue filled, whatever the number of processors */
};

/* ------------------------------------------------------------------------------------------------- files */

static int by_size(const void *a, const void *b)
{
    const bench_file *x = a, *y = b;
    return x->size < y->size ? 1 : x->size > y->size ? -1 : strcmp(x->path, y->path);
}

static bool add_file(bench_files *files, const char *path, uint64_t size)
{
    bench_file *grown = realloc(files->file, (files->count + 1) * sizeof *grown);
    if (grown == NULL) return false;
    files->file = grown;
    snprintf(grown[files->count].path, sizeof grown->path, "%s", path);
    grown[files->count++].size = size;
    files->bytes += size;
    return true;
}

moepack_status bench_files_list(const char *dir, bench_files *files, moepack_error *error)
{
    *files = (bench_files){0};
    DIR *stream = opendir(dir);
    if (stream == NULL) return bench_fail(error, MOEPACK_E_IO, "%.300s: %s", dir, strerror(errno));
    bool memory = true;
    for (struct dirent *entry = readdir(stream); entry != NULL && memory; entry = readdir(stream)) {
        char path[PATH_MAX];
        struct stat info;
        const int length = snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (length < 0 || (size_t)length >= sizeof path || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) continue;
        memory = add_file(files, path, (uint64_t)info.st_size);
    }
    closedir(stream);
    if (!memory) {
        bench_files_free(files);
        return bench_fail(error, MOEPACK_E_REFUSED, "no memory");
    }
    if (files->count > 0) qsort(files->file, files->count, sizeof *files->file, by_size);
    return MOEPACK_OK;
}

void bench_files_free(bench_files *files)
{
    free(files->file);
    *files = (bench_files){0};
}

/* ------------------------------------------------------------------------------------------------- one stream */

/* One block of one file. Descriptors are -1 where nothing is read or written. */
typedef struct block {
    int from, to;
    uint64_t offset;
    size_t size;
} block;

typedef struct stream {
    block *blocks;
    size_t count;
    int *fds;
    size_t fd_count;
    bool direct;
    bool write_back;          /* sync the files written */
    uint8_t *buffer[STREAMS]; /* touched before the clock runs */
    uint8_t *fresh;           /* memory that nobody has touched, for all blocks; NULL: the buffers, again and again */
    void *fresh_map;
    size_t fresh_size;
} stream;

static void stream_close(stream *s)
{
    for (size_t i = 0; i < s->fd_count; i++)
        if (s->fds[i] >= 0) close(s->fds[i]);
    for (size_t i = 0; i < STREAMS; i++) free(s->buffer[i]);
    if (s->fresh_map != NULL) munmap(s->fresh_map, s->fresh_size);
    free(s->fds);
    free(s->blocks);
    *s = (stream){0};
}

static size_t round_up(size_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Fresh memory of a load: each block has its own place. */
static uint8_t *place_of(const stream *s, size_t i)
{
    return s->fresh != NULL ? s->fresh + i * BLOCK : s->buffer[omp_get_thread_num()];
}

static bool transfer(const block *b, uint8_t *buffer)
{
    const size_t asked = round_up(b->size);
    for (size_t done = 0; b->from >= 0 && done < b->size;) {
        const ssize_t n = pread(b->from, buffer + done, asked - done, (off_t)(b->offset + done));
        if (n <= 0) return false;
        done += (size_t)n;
    }
    for (size_t done = 0; b->to >= 0 && done < asked;) {
        const ssize_t n = pwrite(b->to, buffer + done, asked - done, (off_t)(b->offset + done));
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* Whole blocks, the last one of a file rounded up to pages: whoever wrote it cuts the file afterwards. */
static moepack_status stream_run(const stream *s, bench_stream *out, moepack_error *error)
{
    int failed = 0;
    const double started = cli_seconds();
#pragma omp parallel for num_threads(STREAMS) reduction(| : failed) schedule(dynamic)
    for (size_t i = 0; i < s->count; i++) {
        errno = 0;
        if (failed == 0 && !cli_cancelled && !transfer(&s->blocks[i], place_of(s, i)))
            failed = errno != 0 ? errno : EIO;
    }
    for (size_t i = 0; s->write_back && i < s->fd_count; i++)
        if (s->fds[i] >= 0 && fdatasync(s->fds[i]) != 0 && errno != EROFS && errno != EBADF && errno != EINVAL)
            failed = errno;
    out->seconds = cli_seconds() - started;
    out->direct = s->direct;
    if (failed != 0) return bench_fail(error, MOEPACK_E_IO, "sequential reading or writing: %s", strerror(failed));
    return bench_go_on(error);
}

/* O_DIRECT where the file system has it. */
static int open_file(stream *s, const char *path, int flags)
{
    int fd = s->direct ? open(path, flags | O_DIRECT | O_CLOEXEC, 0600) : -1;
    if (fd < 0) {
        s->direct = false;
        fd = open(path, flags | O_CLOEXEC, 0600);
    }
    s->fds[s->fd_count++] = fd;
    return fd;
}

static void add_blocks(stream *s, int from, int to, uint64_t size)
{
    for (uint64_t offset = 0; offset < size; offset += BLOCK) {
        const uint64_t left = size - offset;
        s->blocks[s->count++] = (block){from, to, offset, left < BLOCK ? (size_t)left : BLOCK};
    }
}

/* In huge pages, as the loader's memory: the fewer pieces a transfer has, the faster it is. */
static uint8_t *make_buffer(void)
{
    uint8_t *buffer = aligned_alloc(HUGE_PAGE, BLOCK);
    if (buffer == NULL) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(buffer, BLOCK, MADV_HUGEPAGE);
#endif
    memset(buffer, 0x5a, BLOCK);
    return buffer;
}

static moepack_status stream_make(stream *s, uint64_t bytes, size_t files, size_t descriptors, moepack_error *error)
{
    *s = (stream){.direct = true};
    s->blocks = calloc((size_t)(bytes / BLOCK) + files + 1, sizeof *s->blocks);
    s->fds = calloc(descriptors + 1, sizeof *s->fds);
    bool memory = s->blocks != NULL && s->fds != NULL;
    for (size_t i = 0; i < STREAMS; i++) {
        s->buffer[i] = make_buffer();
        memory = memory && s->buffer[i] != NULL;
    }
    if (memory) return MOEPACK_OK;
    stream_close(s);
    return bench_fail(error, MOEPACK_E_REFUSED, "no memory");
}

/* ------------------------------------------------------------------------------------------------- the three */

/* As much as all blocks need, as the loader asks for it. */
static moepack_status make_fresh(stream *s, moepack_error *error)
{
    s->fresh_size = s->count * BLOCK + HUGE_PAGE;
    void *map = mmap(NULL, s->fresh_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return bench_fail(error, MOEPACK_E_REFUSED, "no memory: %s", strerror(errno));
    s->fresh_map = map;
    s->fresh = (uint8_t *)map + (HUGE_PAGE - (uintptr_t)map % HUGE_PAGE) % HUGE_PAGE;
#ifdef MADV_HUGEPAGE
    madvise(s->fresh, s->count * BLOCK, MADV_HUGEPAGE);
#endif
    return MOEPACK_OK;
}

moepack_status bench_stream_read(const bench_files *files, bool fresh, bench_stream *out, moepack_error *error)
{
    stream s;
    moepack_status status = stream_make(&s, files->bytes, files->count, files->count, error);
    if (status != MOEPACK_OK) return status;
    for (size_t i = 0; i < files->count && status == MOEPACK_OK; i++) {
        const int fd = open_file(&s, files->file[i].path, O_RDONLY);
        if (fd < 0) status = bench_fail(error, MOEPACK_E_IO, "%.300s: %s", files->file[i].path, strerror(errno));
        add_blocks(&s, fd, -1, files->file[i].size);
    }
    if (status == MOEPACK_OK && fresh) status = make_fresh(&s, error);
    if (status == MOEPACK_OK) status = stream_run(&s, out, error);
    stream_close(&s);
    return status;
}

static const char *copy_name(const char *dir, size_t i, char buf[PATH_MAX])
{
    snprintf(buf, PATH_MAX, "%s/stream-%zu", dir, i);
    return buf;
}

static int create(stream *s, const char *dir, size_t i, uint64_t size)
{
    char path[PATH_MAX];
    const int fd = open_file(s, copy_name(dir, i, path), O_RDWR | O_CREAT | O_TRUNC);
    /* Space first, as the converter does; a file system that cannot is as fast as it is. */
    if (fd >= 0 && size > 0) (void)!posix_fallocate(fd, 0, (off_t)round_up((size_t)size));
    return fd;
}

static void remove_copies(const char *dir, size_t count)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < count; i++) unlink(copy_name(dir, i, path));
}

moepack_status bench_stream_copy(const bench_files *files, const char *dir, bench_stream *out, moepack_error *error)
{
    stream s;
    moepack_status status = stream_make(&s, files->bytes, files->count, 2 * files->count, error);
    if (status != MOEPACK_OK) return status;
    s.write_back = true;
    for (size_t i = 0; i < files->count && status == MOEPACK_OK; i++) {
        const int from = open_file(&s, files->file[i].path, O_RDONLY), to = create(&s, dir, i, files->file[i].size);
        if (from < 0 || to < 0) status = bench_fail(error, MOEPACK_E_IO, "%.300s: %s", dir, strerror(errno));
        add_blocks(&s, from, to, files->file[i].size);
    }
    if (status == MOEPACK_OK) status = stream_run(&s, out, error);
    remove_copies(dir, files->count);
    stream_close(&s);
    return status;
}

moepack_status bench_stream_write(const char *dir, uint64_t size, bench_stream *out, moepack_error *error)
{
    stream s;
    moepack_status status = stream_make(&s, size, 1, 1, error);
    if (status != MOEPACK_OK) return status;
    s.write_back = true;
    const int fd = create(&s, dir, 0, size);
    if (fd < 0) status = bench_fail(error, MOEPACK_E_IO, "%.300s: %s", dir, strerror(errno));
    add_blocks(&s, -1, fd, size);
    if (status == MOEPACK_OK) status = stream_run(&s, out, error);
    remove_copies(dir, 1);
    stream_close(&s);
    return status;
}

/* ------------------------------------------------------------------------------------------------- the page cache */

/* Pages of a file that are in memory. */
static bool count_resident(int fd, uint64_t size, uint64_t *resident, uint64_t *pages)
{
    const long page = sysconf(_SC_PAGESIZE); /* what mincore counts in */
    if (size == 0) return true;
    if (page <= 0) return false;
    const uint64_t count = (size + (uint64_t)page - 1) / (uint64_t)page;
    void *map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *state = malloc((size_t)count);
    bool known = map != MAP_FAILED && state != NULL && mincore(map, (size_t)size, state) == 0;
    for (uint64_t i = 0; known && i < count; i++) *resident += state[i] & 1;
    *pages += count;
    free(state);
    if (map != MAP_FAILED) munmap(map, (size_t)size);
    return known;
}

moepack_status bench_drop_cache(const bench_files *files, double *resident, moepack_error *error)
{
    uint64_t in_memory = 0, pages = 0;
    for (size_t i = 0; i < files->count; i++) {
        const bench_file *file = &files->file[i];
        const int fd = open(file->path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return bench_fail(error, MOEPACK_E_IO, "%.300s: %s", file->path, strerror(errno));
        fdatasync(fd); /* only clean pages can be dropped */
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        const bool known = count_resident(fd, file->size, &in_memory, &pages);
        close(fd);
        if (!known) return bench_fail(error, MOEPACK_E_IO, "%.300s: cannot ask which pages are cached", file->path);
    }
    *resident = pages > 0 ? (double)in_memory / (double)pages : 0;
    return bench_go_on(error);
}
