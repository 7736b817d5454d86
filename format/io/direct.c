/* Files past the page cache: a transfer goes through O_DIRECT as far as it covers whole pages, so that no second copy
 * of a container's bytes is made in memory. What the file system or the alignment does not allow goes through the page
 * cache; the first reason is kept. */
#include "bytes.h"
#include "error.h"
#include "io/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Largest transfer of one system call, a multiple of a page. */
#define TRANSFER_MAX ((size_t)1 << 30)

static void refuse(mpk_direct *file, int errno_value)
{
    int none = 0;
    atomic_compare_exchange_strong(&file->refused, &none, errno_value);
}

#ifdef O_DIRECT
/* The file that is open as fd, not whatever has its name now. -1 and errno. */
static int open_again(int fd, const char *path, int flags)
{
    char name[32];
    struct stat a, b;
    const int fault = mpk_fault("open", path);
    if (fault > 0) {
        errno = fault;
        return -1;
    }
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int again;
    do again = open(name, flags);
    while (again < 0 && errno == EINTR);
    if (again < 0 && errno == ENOENT) again = open(path, flags); /* no /proc */
    if (again < 0) return -1;
    if (fstat(fd, &a) == 0 && fstat(again, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino) return again;
    close(again);
    errno = EOPNOTSUPP;
    return -1;
}
#endif

moepack_status mpk_direct_begin(mpk_direct *file, int fd, const char *path, bool write, moepack_error *error)
{
    file->fd = fd;
    file->direct_fd = -1;
    file->path = path;
    atomic_init(&file->refused, 0);
#ifdef O_DIRECT
    const int flags = (write ? O_RDWR : O_RDONLY) | O_NOCTTY | O_NONBLOCK | O_CLOEXEC | O_DIRECT;
    do file->direct_fd = open_again(fd, path, flags);
    while (file->direct_fd < 0 && errno == EINTR);
    if (file->direct_fd >= 0) return MOEPACK_OK;
    /* A file system without direct I/O says EINVAL; anything else is a failure like that of any open. */
    if (errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS) {
        mpk_fail_errno(error, MOEPACK_E_IO, errno, "cannot open");
        mpk_error_file(error, path);
        return MOEPACK_E_IO;
    }
    refuse(file, errno);
#else
    (void)write;
    (void)error;
    refuse(file, ENOTSUP);
#endif
    return MOEPACK_OK;
}

void mpk_direct_end(mpk_direct *file)
{
    if (file->direct_fd >= 0) close(file->direct_fd);
    file->direct_fd = -1;
}

bool mpk_direct_reason(const mpk_direct *file, char *out, size_t size)
{
    const int refused = atomic_load(&file->refused);
    if (refused == 0) return true;
    char words[64];
    const char *name = strrchr(file->path, '/');
    snprintf(out, size, "%.60s: no O_DIRECT: %s", name != NULL ? name + 1 : file->path,
             strerror_r(refused, words, sizeof words));
    return false;
}

static bool usable(const mpk_direct *file)
{
    return file->direct_fd >= 0 && atomic_load(&file->refused) == 0;
}

static moepack_status failed(const mpk_direct *file, int errno_value, const char *what, uint64_t offset,
                             moepack_error *error)
{
    moepack_status status = errno_value == ENOSPC || errno_value == EDQUOT ? MOEPACK_E_REFUSED : MOEPACK_E_IO;
    mpk_fail_errno(error, status, errno_value, "%s", what);
    mpk_error_file(error, file->path);
    mpk_error_offset(error, offset);
    return status;
}

/* One system call after asking the hook. `room`: what may be transferred, a multiple of a page. */
static ssize_t transfer(const mpk_direct *file, bool write, uint8_t *bytes, uint64_t room, uint64_t offset)
{
    for (;;) {
        size_t size = room < TRANSFER_MAX ? (size_t)room : TRANSFER_MAX, most = size;
        ssize_t n = -1;
        if (mpk_fault_transfer(write ? "write" : "read", file->path, &most)) {
            if (write && most >= MPK_PAGE) size = most & ~(size_t)(MPK_PAGE - 1);
            n = write ? pwrite(file->direct_fd, bytes, size, (off_t)offset)
                      : pread(file->direct_fd, bytes, size, (off_t)offset);
            if (!write && n > 0 && (size_t)n > most) n = (ssize_t)most; /* as short as the hook wants it */
        }
        if (n >= 0 || errno != EINTR) return n;
    }
}

/* Fills [offset, offset + length), whole pages, as far as the file goes, until `wanted` bytes are there. *got: so many
 * are. Stops with MOEPACK_OK where the page cache has to go on. */
static moepack_status read_pages(mpk_direct *file, uint8_t *to, uint64_t length, uint64_t offset, uint64_t wanted,
                                 uint64_t *got, moepack_error *error)
{
    *got = 0;
    while (*got < wanted) {
        /* After a short read go on from a whole page: direct I/O takes nothing else. */
        const uint64_t from = *got & ~(uint64_t)(MPK_PAGE - 1);
        const ssize_t n = transfer(file, false, to + from, length - from, offset + from);
        if (n < 0 && errno == EINVAL) {
            refuse(file, EINVAL);
            return MOEPACK_OK;
        }
        if (n < 0) return failed(file, errno, "read failed", offset + from, error);
        if (from + (uint64_t)n <= *got) return MOEPACK_OK; /* the end of the file, or crumbs */
        *got = from + (uint64_t)n;
    }
    return MOEPACK_OK;
}

moepack_status mpk_direct_read(mpk_direct *file, uint8_t *buffer, size_t size, uint64_t offset, uint8_t **data,
                               moepack_error *error)
{
    const uint64_t skip = offset % MPK_PAGE, start = offset - skip;
    uint64_t end, got = 0, done = 0;
    *data = buffer + skip;
    if (usable(file) && size > 0 && mpk_add64(offset, size, &end) && end < INT64_MAX - MPK_PAGE) {
        const uint64_t length = (skip + size + MPK_PAGE - 1) & ~(uint64_t)(MPK_PAGE - 1);
        moepack_status status = read_pages(file, buffer, length, start, skip + size, &got, error);
        if (status != MOEPACK_OK) return status;
    }
    if (got > skip) done = got - skip;
    if (done >= size) return MOEPACK_OK;
    return mpk_file_pread(file->fd, *data + done, size - (size_t)done, offset + done, file->path, error);
}

/* Whole pages. *done: so many bytes went. Stops with MOEPACK_OK where the page cache has to go on. */
static moepack_status write_pages(mpk_direct *file, const uint8_t *from, size_t size, uint64_t offset, size_t *done,
                                  moepack_error *error)
{
    *done = 0;
    while (*done < size) {
        uint8_t *at;
        const uint8_t *next = from + *done;
        memcpy(&at, &next, sizeof at); /* one function reads and writes; pwrite changes nothing there */
        const ssize_t n = transfer(file, true, at, size - *done, offset + *done);
        if (n < 0 && errno == EINVAL) {
            refuse(file, EINVAL);
            return MOEPACK_OK;
        }
        if (n <= 0) return failed(file, n < 0 ? errno : EIO, "write failed", offset + *done, error);
        *done += (size_t)n & ~(size_t)(MPK_PAGE - 1);
        if ((size_t)n < MPK_PAGE) return MOEPACK_OK;
    }
    return MOEPACK_OK;
}

moepack_status mpk_direct_write(mpk_direct *file, const uint8_t *data, size_t size, uint64_t offset,
                                moepack_error *error)
{
    const size_t into = (size_t)(offset % MPK_PAGE), head = into == 0 ? 0 : MPK_PAGE - into;
    size_t done = 0;
    const bool aligned = (uintptr_t)data % MPK_PAGE == into && size <= INT64_MAX && offset < INT64_MAX - size;
    if (aligned && usable(file) && size >= head + MPK_PAGE) {
        moepack_status status =
            head == 0 ? MOEPACK_OK : mpk_file_pwrite(file->fd, data, head, offset, file->path, error);
        if (status == MOEPACK_OK)
            status =
                write_pages(file, data + head, (size - head) & ~(size_t)(MPK_PAGE - 1), offset + head, &done, error);
        if (status != MOEPACK_OK) return status;
        done += head;
    }
    if (done == size) return MOEPACK_OK;
    return mpk_file_pwrite(file->fd, data + done, size - done, offset + done, file->path, error);
}
