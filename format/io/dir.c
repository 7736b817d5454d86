/* Directories and names: paths, mkdir -p, durable rename, listing, free space. */
#include "error.h"
#include "io/fault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static moepack_status dir_fail(moepack_error *error, int errno_value, const char *what, const char *path)
{
    moepack_status status = errno_value == ENOSPC || errno_value == EDQUOT ? MOEPACK_E_REFUSED : MOEPACK_E_IO;
    mpk_fail_errno(error, status, errno_value, "%s", what);
    mpk_error_file(error, path);
    return status;
}

static moepack_status no_memory(moepack_error *error, const char *path)
{
    mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    mpk_error_file(error, path);
    return MOEPACK_E_REFUSED;
}

char *mpk_path_join(const char *a, const char *b)
{
    size_t a_length = strlen(a), b_length = strlen(b);
    bool slash = a_length > 0 && a[a_length - 1] != '/';
    char *path = malloc(a_length + b_length + 2);
    if (path == NULL) return NULL;
    memcpy(path, a, a_length);
    if (slash) path[a_length++] = '/';
    memcpy(path + a_length, b, b_length + 1);
    return path;
}

bool mpk_path_exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

bool mpk_path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int make_one(const char *path)
{
    for (;;) {
        int fault = mpk_fault("mkdir", path), rc = -1;
        if (fault > 0)
            errno = fault;
        else
            rc = mkdir(path, 0777);
        if (rc == 0 || errno != EINTR) return rc;
    }
}

moepack_status mpk_dir_make(const char *path, moepack_error *error)
{
    char *part = strdup(path);
    if (part == NULL) return no_memory(error, path);
    moepack_status status = MOEPACK_OK;
    /* Each prefix that ends before a slash, then the whole. */
    for (char *at = part; status == MOEPACK_OK; ++at) {
        if (*at != '/' && *at != '\0') continue;
        char keep = *at;
        *at = '\0';
        if (part[0] != '\0' && !mpk_path_is_dir(part) && make_one(part) != 0 &&
            !(errno == EEXIST && mpk_path_is_dir(part))) /* another process may have been faster */
            status = dir_fail(error, errno, "cannot make the directory", part);
        *at = keep;
        if (keep == '\0') break;
    }
    free(part);
    return status;
}

moepack_status mpk_dir_create(const char *path, int *fd, moepack_error *error)
{
    *fd = -1;
    if (make_one(path) != 0) {
        if (errno != EEXIST) return dir_fail(error, errno, "cannot make the directory", path);
        mpk_fail(error, MOEPACK_E_REFUSED, "exists already");
        mpk_error_file(error, path);
        return MOEPACK_E_REFUSED;
    }
    *fd = mpk_raw_open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (*fd >= 0) return MOEPACK_OK;
    int reason = errno;
    rmdir(path);
    return dir_fail(error, reason, "cannot open the directory", path);
}

bool mpk_dir_is(int fd, const char *path)
{
    struct stat mine, there;
    return fd >= 0 && fstat(fd, &mine) == 0 && lstat(path, &there) == 0 && mine.st_dev == there.st_dev &&
           mine.st_ino == there.st_ino;
}

/* Makes one directory unless it is there, and notes it if it was this call that made it. */
static moepack_status make_noted(const char *path, mpk_made_dirs *made, moepack_error *error)
{
    if (mpk_path_is_dir(path)) return MOEPACK_OK;
    char **list = realloc(made->path, (made->count + 1) * sizeof *list);
    if (list == NULL) return no_memory(error, path);
    made->path = list;
    char *copy = strdup(path);
    if (copy == NULL) return no_memory(error, path);
    if (make_one(path) == 0) {
        list[made->count++] = copy;
        return MOEPACK_OK;
    }
    int reason = errno;
    free(copy);
    if (reason == EEXIST && mpk_path_is_dir(path)) return MOEPACK_OK; /* another process was faster */
    return dir_fail(error, reason, "cannot make the directory", path);
}

moepack_status mpk_parents_make(const char *path, mpk_made_dirs *made, moepack_error *error)
{
    *made = (mpk_made_dirs){NULL, 0};
    char *part = strdup(path);
    if (part == NULL) return no_memory(error, path);
    size_t length = strlen(part);
    while (length > 0 && part[length - 1] == '/') part[--length] = '\0';
    moepack_status status = MOEPACK_OK;
    for (char *at = part; *at != '\0' && status == MOEPACK_OK; ++at) {
        if (*at != '/' || at == part) continue;
        *at = '\0';
        status = make_noted(part, made, error);
        *at = '/';
    }
    free(part);
    if (status != MOEPACK_OK) mpk_made_dirs_end(made, true);
    return status;
}

void mpk_made_dirs_end(mpk_made_dirs *made, bool remove)
{
    while (made->count > 0) {
        char *path = made->path[--made->count];
        if (remove) rmdir(path); /* fails, as it should, where something lies in it by now */
        free(path);
    }
    free(made->path);
    *made = (mpk_made_dirs){NULL, 0};
}

moepack_status mpk_dir_sync(const char *path, moepack_error *error)
{
    int fd = mpk_raw_open(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return dir_fail(error, errno, "cannot open the directory", path);
    moepack_status status = mpk_file_sync(fd, path, error);
    close(fd);
    return status;
}

/* "a/b/c" and "a/b/c/" give "a/b", "c" gives ".", "/c" gives "/". */
static char *parent_of(const char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') --length;
    while (length > 0 && path[length - 1] != '/') --length;
    while (length > 1 && path[length - 1] == '/') --length;
    return length == 0 ? strdup(".") : strndup(path, length);
}

static int rename_flags(const char *from, const char *to, unsigned flags)
{
    for (;;) {
        int fault = mpk_fault("rename", to), rc = -1;
        if (fault > 0)
            errno = fault;
        else
            rc = renameat2(AT_FDCWD, from, AT_FDCWD, to, flags);
        if (rc == 0 || errno != EINTR) return rc;
    }
}

/* Where the file system cannot refuse to replace (some network file systems), looking first has to do. For a directory
 * that is safe all the same: a plain rename replaces nothing but an empty one. */
static int rename_keep(const char *from, const char *to)
{
    int rc = rename_flags(from, to, RENAME_NOREPLACE);
    if (rc == 0 || (errno != EINVAL && errno != ENOSYS)) return rc;
    if (mpk_path_exists(to)) {
        errno = EEXIST;
        return -1;
    }
    rc = rename_flags(from, to, 0);
    if (rc != 0 && errno == ENOTEMPTY) errno = EEXIST;
    return rc;
}

static moepack_status rename_fail(moepack_error *error, int errno_value, const char *to)
{
    if (errno_value != EEXIST) return dir_fail(error, errno_value, "cannot rename to this name", to);
    mpk_fail(error, MOEPACK_E_REFUSED, "exists already");
    mpk_error_file(error, to);
    return MOEPACK_E_REFUSED;
}

moepack_status mpk_rename_keep(const char *from, const char *to, moepack_error *error)
{
    return rename_keep(from, to) == 0 ? MOEPACK_OK : rename_fail(error, errno, to);
}

moepack_status mpk_rename_swap(const char *a, const char *b, moepack_error *error)
{
    if (rename_flags(a, b, RENAME_EXCHANGE) == 0) return MOEPACK_OK;
    int reason = errno;
    moepack_status status = dir_fail(error, reason, "cannot swap names", b);
    return reason == EINVAL || reason == ENOSYS ? MOEPACK_E_UNSUPPORTED : status;
}

moepack_status mpk_parent_sync(const char *path, moepack_error *error)
{
    moepack_error why = {.offset = -1, .expert = -1};
    char *parent = parent_of(path);
    if (parent == NULL) return no_memory(error, path);
    moepack_status status = mpk_dir_sync(parent, &why);
    free(parent);
    if (status == MOEPACK_OK) return status;
    mpk_fail(error, status,
             "it is there and complete, but may not outlast a power failure: syncing its directory failed (%.200s)",
             why.message);
    mpk_error_file(error, path);
    return status;
}

moepack_status mpk_rename_durable(const char *from, const char *to, bool replace, moepack_error *error)
{
    moepack_status status;
    int rc = replace ? rename_flags(from, to, 0) : rename_keep(from, to);
    if (rc != 0 && replace && (errno == ENOTEMPTY || errno == EEXIST)) {
        /* A directory with something in it: swap the two in one step, then remove what was there before. */
        if (rename_flags(from, to, RENAME_EXCHANGE) != 0) return dir_fail(error, errno, "cannot replace", to);
        status = mpk_tree_remove(from, error);
        if (status != MOEPACK_OK) return status;
    } else if (rc != 0) {
        return rename_fail(error, errno, to);
    }
    return mpk_parent_sync(to, error);
}

moepack_status mpk_disk_free(const char *path, uint64_t *bytes, moepack_error *error)
{
    struct statvfs fs;
    char *at = strdup(path);
    while (at != NULL && statvfs(at, &fs) != 0) {
        bool root = strcmp(at, ".") == 0 || strcmp(at, "/") == 0;
        if ((errno != ENOENT && errno != ENOTDIR) || root) {
            moepack_status status = dir_fail(error, errno, "cannot ask for free space", at);
            free(at);
            return status;
        }
        char *up = parent_of(at);
        free(at);
        at = up;
    }
    if (at == NULL) return no_memory(error, path);
    free(at);
    if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, bytes)) *bytes = UINT64_MAX;
    return MOEPACK_OK;
}
