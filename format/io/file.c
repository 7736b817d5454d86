/* Plain files: open, read, write, reserve, sync. */
#include "bytes.h"
#include "error.h"
#include "io/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

mpk_fault_hook mpk_fault_installed;

void mpk_fault_hook_set(mpk_fault_hook hook)
{
    mpk_fault_installed = hook;
}

bool mpk_fault_transfer(const char *operation, const char *path, size_t *size)
{
    int fault = mpk_fault(operation, path);
    if (fault > 0) {
        errno = fault;
        return false;
    }
    if (fault < 0) {
        size_t most = (size_t)0 - (size_t)fault;
        if (*size > most) *size = most;
    }
    return true;
}

static moepack_status io_fail(moepack_error *error, int errno_value, const char *what, const char *path)
{
    moepack_status status = errno_value == ENOSPC || errno_value == EDQUOT ? MOEPACK_E_REFUSED : MOEPACK_E_IO;
    mpk_fail_errno(error, status, errno_value, "%s", what);
    mpk_error_file(error, path);
    return status;
}

int mpk_raw_open(const char *path, int flags, unsigned mode)
{
    for (;;) {
        int fault = mpk_fault("open", path), fd = -1;
        if (fault > 0)
            errno = fault;
        else
            fd = open(path, flags | O_CLOEXEC, (mode_t)mode);
        if (fd >= 0 || errno != EINTR) return fd;
    }
}

static moepack_status open_failed(moepack_error *error, int errno_value, const char *path)
{
    bool missing = errno_value == ENOENT || errno_value == ENOTDIR;
    moepack_status status = missing ? MOEPACK_E_INCOMPLETE : MOEPACK_E_IO;
    mpk_fail_errno(error, status, errno_value, "cannot open");
    mpk_error_file(error, path);
    return status;
}

moepack_status mpk_file_open_flags(const char *path, int extra_flags, int *fd_out, uint64_t *size, int *errno_value,
                                   moepack_error *error)
{
    struct stat st;
    *fd_out = -1;
    *errno_value = 0;
    /* Looked at before it is opened: opening a device may already do something. */
    if (stat(path, &st) != 0) {
        *errno_value = errno;
        return open_failed(error, *errno_value, path);
    }
    bool regular = S_ISREG(st.st_mode);
    int fd = -1;
    if (regular) {
        /* O_NONBLOCK: should the path have become a FIFO meanwhile, this must not wait for a writer. */
        fd = mpk_raw_open(path, O_RDONLY | O_NOCTTY | O_NONBLOCK | extra_flags, 0);
        if (fd < 0 || fstat(fd, &st) != 0) {
            *errno_value = errno;
            if (fd >= 0) close(fd);
            return open_failed(error, *errno_value, path);
        }
        regular = S_ISREG(st.st_mode);
    }
    if (!regular) {
        if (fd >= 0) close(fd);
        mpk_fail(error, MOEPACK_E_IO, "not a regular file");
        mpk_error_file(error, path);
        return MOEPACK_E_IO;
    }
    *fd_out = fd;
    if (size != NULL) *size = (uint64_t)st.st_size;
    return MOEPACK_OK;
}

moepack_status mpk_file_open(const char *path, int *fd, uint64_t *size, moepack_error *error)
{
    int errno_value;
    return mpk_file_open_flags(path, 0, fd, size, &errno_value, error);
}

moepack_status mpk_file_create(const char *path, int *fd_out, moepack_error *error)
{
    int fd = mpk_raw_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOCTTY, 0666);
    *fd_out = fd;
    if (fd >= 0) return MOEPACK_OK;
    if (errno == EEXIST) {
        mpk_fail(error, MOEPACK_E_REFUSED, "exists already");
        mpk_error_file(error, path);
        return MOEPACK_E_REFUSED;
    }
    return io_fail(error, errno, "cannot create", path);
}

/* Largest transfer of one system call: Linux moves at most 2^31 - 4096 bytes anyway. */
#define TRANSFER_MAX ((size_t)1 << 30)

moepack_status mpk_file_pread(int fd, void *buf, size_t size, uint64_t offset, const char *path, moepack_error *error)
{
    uint8_t *to = (uint8_t *)buf;
    uint64_t end;
    if (!mpk_add64(offset, size, &end) || end > INT64_MAX) {
        mpk_fail(error, MOEPACK_E_USAGE, "read beyond 2^63 bytes");
        mpk_error_file(error, path);
        return MOEPACK_E_USAGE;
    }
    while (size > 0) {
        size_t want = size < TRANSFER_MAX ? size : TRANSFER_MAX;
        ssize_t n = mpk_fault_transfer("read", path, &want) ? pread(fd, to, want, (off_t)offset) : -1;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            moepack_status status = io_fail(error, errno, "read failed", path);
            mpk_error_offset(error, offset);
            return status;
        }
        if (n == 0) {
            mpk_fail(error, MOEPACK_E_INCOMPLETE, "the file ends here, %zu more bytes were expected", size);
            mpk_error_file(error, path);
            mpk_error_offset(error, offset);
            return MOEPACK_E_INCOMPLETE;
        }
        to += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return MOEPACK_OK;
}

moepack_status mpk_file_pwrite(int fd, const void *buf, size_t size, uint64_t offset, const char *path,
                               moepack_error *error)
{
    const uint8_t *from = (const uint8_t *)buf;
    uint64_t end;
    if (!mpk_add64(offset, size, &end) || end > INT64_MAX) {
        mpk_fail(error, MOEPACK_E_USAGE, "write beyond 2^63 bytes");
        mpk_error_file(error, path);
        return MOEPACK_E_USAGE;
    }
    while (size > 0) {
        size_t want = size < TRANSFER_MAX ? size : TRANSFER_MAX;
        ssize_t n = mpk_fault_transfer("write", path, &want) ? pwrite(fd, from, want, (off_t)offset) : -1;
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            moepack_status status = io_fail(error, n < 0 ? errno : EIO, "write failed", path);
            mpk_error_offset(error, offset);
            return status;
        }
        from += n;
        size -= (size_t)n;
        offset += (uint64_t)n;
    }
    return MOEPACK_OK;
}

/* Runs one attempt of fallocate, ftruncate or fsync after asking the hook. */
static int attempt_reserve(int fd, uint64_t size, bool blocks, const char *path)
{
    for (;;) {
        int fault = mpk_fault("reserve", path), rc = -1;
        if (fault > 0)
            errno = fault;
        else
            rc = blocks ? fallocate(fd, 0, 0, (off_t)size) : ftruncate(fd, (off_t)size);
        if (rc == 0 || errno != EINTR) return rc;
    }
}

moepack_status mpk_file_reserve(int fd, uint64_t size, const char *path, moepack_error *error)
{
    if (size > INT64_MAX) {
        mpk_fail(error, MOEPACK_E_USAGE, "file of more than 2^63 bytes");
        mpk_error_file(error, path);
        return MOEPACK_E_USAGE;
    }
    /* fallocate refuses a length of 0, and not every file system has it. */
    bool no_blocks = size == 0;
    if (!no_blocks && attempt_reserve(fd, size, true, path) != 0) {
        if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
            return io_fail(error, errno, "cannot reserve space", path);
        no_blocks = true;
    }
    if (no_blocks && attempt_reserve(fd, size, false, path) != 0)
        return io_fail(error, errno, "cannot set the length", path);
    return MOEPACK_OK;
}

moepack_status mpk_file_sync(int fd, const char *path, moepack_error *error)
{
    for (;;) {
        int fault = mpk_fault("sync", path), rc = -1;
        if (fault > 0)
            errno = fault;
        else
            rc = fsync(fd);
        if (rc == 0) return MOEPACK_OK;
        if (errno != EINTR) return io_fail(error, errno, "sync failed", path);
    }
}

moepack_status mpk_file_read_all(const char *path, uint64_t limit, void **data, size_t *size, moepack_error *error)
{
    int fd;
    uint64_t length;
    *data = NULL;
    *size = 0;
    moepack_status status = mpk_file_open(path, &fd, &length, error);
    if (status != MOEPACK_OK) return status;
    if (length > limit || length >= SIZE_MAX) {
        status = mpk_fail(error, MOEPACK_E_UNSUPPORTED, "file of %llu bytes, the limit is %llu",
                          (unsigned long long)length, (unsigned long long)limit);
        mpk_error_file(error, path);
    }
    char *bytes = NULL;
    if (status == MOEPACK_OK) {
        bytes = malloc((size_t)length + 1);
        if (bytes == NULL) {
            status = mpk_fail(error, MOEPACK_E_REFUSED, "no memory for %llu bytes", (unsigned long long)length);
            mpk_error_file(error, path);
        }
    }
    if (status == MOEPACK_OK) status = mpk_file_pread(fd, bytes, (size_t)length, 0, path, error);
    close(fd);
    if (status != MOEPACK_OK) {
        free(bytes);
        return status;
    }
    bytes[length] = '\0';
    *data = bytes;
    *size = (size_t)length;
    return MOEPACK_OK;
}

moepack_status mpk_file_stamp_of(int fd, const char *path, mpk_file_stamp *out, moepack_error *error)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return io_fail(error, errno, "cannot stat", path);
    *out = (mpk_file_stamp){
        .device = (uint64_t)st.st_dev,
        .inode = (uint64_t)st.st_ino,
        .size = (uint64_t)st.st_size,
        .mtime_s = st.st_mtim.tv_sec,
        .mtime_ns = st.st_mtim.tv_nsec,
        .ctime_s = st.st_ctim.tv_sec,
        .ctime_ns = st.st_ctim.tv_nsec,
    };
    return MOEPACK_OK;
}

bool mpk_file_stamp_equal(const mpk_file_stamp *a, const mpk_file_stamp *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size && a->mtime_s == b->mtime_s &&
           a->mtime_ns == b->mtime_ns && a->ctime_s == b->ctime_s && a->ctime_ns == b->ctime_ns;
}
