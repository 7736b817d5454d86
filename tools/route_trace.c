/* The selections of `moepack route` as a text file that `moepack bench residency --trace` replays. */
#include "route.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static moepack_status io_error(moepack_error *error, const char *path, const char *what)
{
    const int number = errno;
    *error = (moepack_error){.status = MOEPACK_E_IO, .expert = -1, .offset = -1};
    snprintf(error->file, sizeof error->file, "%s", path);
    snprintf(error->message, sizeof error->message, "%s: %s", what, strerror(number));
    return MOEPACK_E_IO;
}

static bool write_lines(FILE *file, const int32_t *ids, uint64_t tokens, uint64_t top_k)
{
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t i = 0; i < top_k; i++)
            if (fprintf(file, "%ld%c", (long)ids[t * top_k + i], i + 1 < top_k ? ' ' : '\n') < 0) return false;
    return fflush(file) == 0 && fsync(fileno(file)) == 0;
}

/* A file that appeared meanwhile stays, where the file system can tell. */
static bool put_in_place(const char *from, const char *to, bool overwrite)
{
    if (overwrite) return rename(from, to) == 0;
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return true;
    return (errno == EINVAL || errno == ENOSYS) && rename(from, to) == 0;
}

moepack_status route_trace_write(const char *path, bool overwrite, const int32_t *ids, uint64_t tokens, uint64_t top_k,
                                 moepack_error *error)
{
    const size_t size = strlen(path) + 48;
    char *partial = malloc(size);
    if (partial == NULL) return errno = ENOMEM, io_error(error, path, "cannot be written");
    snprintf(partial, size, "%s.partial-%ld", path, (long)getpid());
    const int fd = open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool well = file != NULL && write_lines(file, ids, tokens, top_k);
    moepack_status status = well ? MOEPACK_OK : io_error(error, path, "cannot be written");
    if (file != NULL && fclose(file) != 0 && well) well = false, status = io_error(error, path, "cannot be written");
    if (file == NULL && fd >= 0) close(fd);
    if (well && !put_in_place(partial, path, overwrite))
        well = false, status = io_error(error, path, "cannot be put in its place");
    if (!well && fd >= 0) unlink(partial);
    free(partial);
    return status;
}
