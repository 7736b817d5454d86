/* Whole directory trees: removing one, listing one. */
#include "error.h"
#include "io/fault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static moepack_status tree_fail(moepack_error *error, int errno_value, const char *what, const char *path)
{
    mpk_fail_errno(error, MOEPACK_E_IO, errno_value, "%s", what);
    mpk_error_file(error, path);
    return MOEPACK_E_IO;
}

static moepack_status no_memory(moepack_error *error, const char *path)
{
    mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    mpk_error_file(error, path);
    return MOEPACK_E_REFUSED;
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static int unlink_at(int parent, const char *name, int flags, const char *path)
{
    for (;;) {
        int fault = mpk_fault("unlink", path), rc = -1;
        if (fault > 0)
            errno = fault;
        else
            rc = unlinkat(parent, name, flags);
        if (rc == 0 || errno != EINTR) return rc;
    }
}

static moepack_status remove_entry(int parent, const char *name, const char *path, moepack_error *error);

/* Removes everything inside an open directory; closes it. */
static moepack_status remove_inside(int fd, const char *path, moepack_error *error)
{
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int reason = errno;
        close(fd);
        return tree_fail(error, reason, "cannot read the directory", path);
    }
    moepack_status status = MOEPACK_OK;
    while (status == MOEPACK_OK) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            if (errno != 0) status = tree_fail(error, errno, "cannot read the directory", path);
            break;
        }
        if (is_dots(entry->d_name)) continue;
        char *inner = mpk_path_join(path, entry->d_name);
        status = inner == NULL ? no_memory(error, path) : remove_entry(dirfd(dir), entry->d_name, inner, error);
        free(inner);
    }
    closedir(dir);
    return status;
}

/* O_NOFOLLOW: a link to a directory is unlinked, what it points to is left alone. */
static moepack_status remove_entry(int parent, const char *name, const char *path, moepack_error *error)
{
    struct stat st;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? MOEPACK_OK : tree_fail(error, errno, "cannot remove", path);
    }
    if (!S_ISDIR(st.st_mode)) {
        return unlink_at(parent, name, 0, path) == 0 ? MOEPACK_OK : tree_fail(error, errno, "cannot remove", path);
    }
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return tree_fail(error, errno, "cannot open the directory", path);
    moepack_status status = remove_inside(fd, path, error);
    if (status != MOEPACK_OK) return status;
    return unlink_at(parent, name, AT_REMOVEDIR, path) == 0 ? MOEPACK_OK
                                                            : tree_fail(error, errno, "cannot remove", path);
}

moepack_status mpk_tree_remove(const char *path, moepack_error *error)
{
    return remove_entry(AT_FDCWD, path, path, error);
}

/* ---- listing ---- */

typedef struct listed {
    char *name;
    uint64_t size;
} listed;

typedef struct listing {
    listed *entries;
    size_t count, capacity;
    mpk_left_out left_out[MPK_LEFT_KINDS];
} listing;

static bool leave_out(listing *list, unsigned kind, const char *name)
{
    mpk_left_out *left = &list->left_out[kind];
    left->count++;
    if (left->first != NULL && strcmp(left->first, name) <= 0) return true;
    char *copy = strdup(name);
    if (copy == NULL) return false;
    free(left->first);
    left->first = copy;
    return true;
}

static bool add(listing *list, const char *name, uint64_t size)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        listed *bigger = realloc(list->entries, capacity * sizeof *bigger);
        if (bigger == NULL) return false;
        list->entries = bigger;
        list->capacity = capacity;
    }
    char *copy = strdup(name);
    if (copy == NULL) return false;
    list->entries[list->count++] = (listed){copy, size};
    return true;
}

static moepack_status list_dir(int parent, const char *name, const char *relative, const char *root, listing *list,
                               moepack_error *error);

/* One directory entry: a folder is walked into, a regular file (or a link to one) noted, the rest counted. */
static moepack_status list_entry(int dir, const char *name, const char *relative, const char *root, listing *list,
                                 moepack_error *error)
{
    struct stat st;
    unsigned kind = MPK_LEFT_KINDS;
    if (name[0] == '.') return leave_out(list, MPK_LEFT_HIDDEN, relative) ? MOEPACK_OK : no_memory(error, root);
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? MOEPACK_OK : tree_fail(error, errno, "cannot stat an entry of", root);
    }
    if (S_ISDIR(st.st_mode)) return list_dir(dir, name, relative, root, list, error);
    if (S_ISLNK(st.st_mode) && fstatat(dir, name, &st, 0) != 0)
        kind = MPK_LEFT_DANGLING;
    else if (S_ISDIR(st.st_mode))
        kind = MPK_LEFT_DIR_LINK;
    else if (!S_ISREG(st.st_mode))
        kind = MPK_LEFT_SPECIAL;
    bool noted = kind < MPK_LEFT_KINDS ? leave_out(list, kind, relative) : add(list, relative, (uint64_t)st.st_size);
    return noted ? MOEPACK_OK : no_memory(error, root);
}

static moepack_status list_dir(int parent, const char *name, const char *relative, const char *root, listing *list,
                               moepack_error *error)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (relative[0] != '\0' ? O_NOFOLLOW : 0));
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL) {
        int reason = errno;
        if (fd >= 0) close(fd);
        tree_fail(error, reason, relative[0] != '\0' ? "cannot read a folder" : "cannot read the directory", root);
        return MOEPACK_E_IO;
    }
    moepack_status status = MOEPACK_OK;
    while (status == MOEPACK_OK) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            if (errno != 0) status = tree_fail(error, errno, "cannot read the directory", root);
            break;
        }
        if (is_dots(entry->d_name)) continue;
        char *inner = mpk_path_join(relative, entry->d_name);
        status =
            inner == NULL ? no_memory(error, root) : list_entry(dirfd(dir), entry->d_name, inner, root, list, error);
        free(inner);
    }
    closedir(dir);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const listed *)a)->name, ((const listed *)b)->name);
}

void mpk_file_list_free(mpk_file_list *list)
{
    for (size_t i = 0; i < list->count; ++i) free(list->name[i]);
    free(list->name);
    free(list->size);
    for (unsigned k = 0; k < MPK_LEFT_KINDS; ++k) free(list->left_out[k].first);
    memset(list, 0, sizeof *list);
}

moepack_status mpk_dir_list(const char *root, mpk_file_list *out, moepack_error *error)
{
    listing list = {NULL, 0, 0, {{NULL, 0}}};
    memset(out, 0, sizeof *out);
    moepack_status status;
    if (!mpk_path_exists(root)) {
        status = mpk_fail(error, MOEPACK_E_INCOMPLETE, "no such directory");
        mpk_error_file(error, root);
        return status;
    }
    status = list_dir(AT_FDCWD, root, "", root, &list, error);
    if (status == MOEPACK_OK && list.count > 0) {
        qsort(list.entries, list.count, sizeof *list.entries, by_name);
        out->name = calloc(list.count, sizeof *out->name);
        out->size = calloc(list.count, sizeof *out->size);
        if (out->name == NULL || out->size == NULL) status = no_memory(error, root);
    }
    if (status == MOEPACK_OK) {
        out->count = list.count;
        memcpy(out->left_out, list.left_out, sizeof out->left_out);
        for (size_t i = 0; i < list.count; ++i) {
            out->name[i] = list.entries[i].name;
            out->size[i] = list.entries[i].size;
        }
    } else {
        for (size_t i = 0; i < list.count; ++i) free(list.entries[i].name);
        for (unsigned k = 0; k < MPK_LEFT_KINDS; ++k) free(list.left_out[k].first);
        mpk_file_list_free(out);
    }
    free(list.entries);
    return status;
}
