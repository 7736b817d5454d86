/* Files: the one place where moepack touches them. Internal.
 *
 * Every function retries EINTR, finishes short reads and writes, opens with O_CLOEXEC, and reports through
 * moepack_error with the path. Paths are used as given. Nothing here follows a link to anything but a regular file or
 * directory; FIFOs, devices and sockets are refused before they can block. All functions may be called from several
 * threads. */
#ifndef MOEPACK_IO_H
#define MOEPACK_IO_H

#include "moepack/format.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#define MPK_PAGE 4096u

/* ---- plain files ---- */

/* Opens a regular file for reading. MOEPACK_E_INCOMPLETE if it does not exist, MOEPACK_E_IO otherwise. */
moepack_status mpk_file_open(const char *path, int *fd, uint64_t *size, moepack_error *error);
/* Creates a file that must not exist yet. */
moepack_status mpk_file_create(const char *path, int *fd, moepack_error *error);
/* Reads exactly `size` bytes; the file ending before them is MOEPACK_E_INCOMPLETE. `path` is for errors. */
moepack_status mpk_file_pread(int fd, void *buf, size_t size, uint64_t offset, const char *path, moepack_error *error);
moepack_status mpk_file_pwrite(int fd, const void *buf, size_t size, uint64_t offset, const char *path,
                               moepack_error *error);
/* Reserves blocks where the file system can (ENOSPC now rather than later), else just sets the length. */
moepack_status mpk_file_reserve(int fd, uint64_t size, const char *path, moepack_error *error);
moepack_status mpk_file_sync(int fd, const char *path, moepack_error *error);
/* Whole file into malloc'ed memory (one extra zero byte behind it), refused above `limit` bytes
 * (MOEPACK_E_UNSUPPORTED). */
moepack_status mpk_file_read_all(const char *path, uint64_t limit, void **data, size_t *size, moepack_error *error);
/* Identity of an open file, to notice that a source changed while it was read. */
typedef struct mpk_file_stamp {
    uint64_t device, inode, size;
    int64_t mtime_s, mtime_ns, ctime_s, ctime_ns;
} mpk_file_stamp;
moepack_status mpk_file_stamp_of(int fd, const char *path, mpk_file_stamp *out, moepack_error *error);
bool mpk_file_stamp_equal(const mpk_file_stamp *a, const mpk_file_stamp *b);

/* ---- directories and names ---- */

/* malloc'ed "a/b". NULL when out of memory. */
char *mpk_path_join(const char *a, const char *b);
/* mkdir -p. */
moepack_status mpk_dir_make(const char *path, moepack_error *error);
moepack_status mpk_dir_sync(const char *path, moepack_error *error);
bool mpk_path_exists(const char *path);
bool mpk_path_is_dir(const char *path);
/* Makes ONE directory that must not exist yet and opens it: holding *fd keeps its identity from being given to another.
 * MOEPACK_E_REFUSED if the name is taken. */
moepack_status mpk_dir_create(const char *path, int *fd, moepack_error *error);
/* Whether `path` still names the directory that is open as fd. */
bool mpk_dir_is(int fd, const char *path);
/* Makes the missing directories above `path` and notes which: another process may be making the same ones. */
typedef struct mpk_made_dirs {
    char **path;
    size_t count;
} mpk_made_dirs;
moepack_status mpk_parents_make(const char *path, mpk_made_dirs *made, moepack_error *error);
/* Frees the list; `remove` takes those away again that are empty, innermost first. */
void mpk_made_dirs_end(mpk_made_dirs *made, bool remove);
/* Renames without a sync and never replaces: a taken name is MOEPACK_E_REFUSED. */
moepack_status mpk_rename_keep(const char *from, const char *to, moepack_error *error);
/* Swaps two names in one step. MOEPACK_E_UNSUPPORTED where the file system cannot. */
moepack_status mpk_rename_swap(const char *a, const char *b, moepack_error *error);
/* Syncs the directory that holds `path`, after a rename to it; the error says that the rename has taken place. */
moepack_status mpk_parent_sync(const char *path, moepack_error *error);
/* mpk_rename_keep, or with `replace` a rename that replaces, then mpk_parent_sync. */
moepack_status mpk_rename_durable(const char *from, const char *to, bool replace, moepack_error *error);
/* Removes a directory tree. Does not follow links. */
moepack_status mpk_tree_remove(const char *path, moepack_error *error);
/* Free bytes for this process on the file system that holds `path` or its nearest existing parent. */
moepack_status mpk_disk_free(const char *path, uint64_t *bytes, moepack_error *error);

/* All regular files below `root` (links to regular files followed, links to directories not, hidden ones left out) as
 * paths relative to it, '/' separated, sorted by bytes. What is left out is counted by kind. Free with
 * mpk_file_list_free. */
enum {
    MPK_LEFT_HIDDEN,
    MPK_LEFT_SPECIAL,
    MPK_LEFT_DANGLING,
    MPK_LEFT_DIR_LINK,
    MPK_LEFT_KINDS
};
typedef struct mpk_left_out {
    char *first; /* the first name by bytes, NULL: none */
    uint64_t count;
} mpk_left_out;
typedef struct mpk_file_list {
    char **name;
    uint64_t *size;
    size_t count;
    mpk_left_out left_out[MPK_LEFT_KINDS];
} mpk_file_list;
moepack_status mpk_dir_list(const char *root, mpk_file_list *out, moepack_error *error);
void mpk_file_list_free(mpk_file_list *list);

/* ---- past the page cache ---- */

/* An open file that is also open with O_DIRECT, where that is possible. Any number of threads may use it. */
typedef struct mpk_direct {
    int fd, direct_fd; /* direct_fd -1: not possible */
    const char *path;
    atomic_int refused; /* errno of the first refusal; 0: none */
} mpk_direct;

/* Where there is no direct I/O everything goes through the page cache. fd and path stay the caller's and must live as
 * long as `file`; mpk_direct_end closes what was opened here. */
moepack_status mpk_direct_begin(mpk_direct *file, int fd, const char *path, bool write, moepack_error *error);
void mpk_direct_end(mpk_direct *file);
/* False, and the reason, if something went through the page cache that could have gone directly elsewhere. */
bool mpk_direct_reason(const mpk_direct *file, char *out, size_t size);
/* Bytes of memory that a direct read of `size` bytes at any offset needs. */
#define MPK_DIRECT_ROOM(size) ((size) + 2 * (uint64_t)MPK_PAGE)
/* Reads exactly `size` bytes to *data, which lies inside `buffer`: page aligned, MPK_DIRECT_ROOM(size) bytes. Errors as
 * mpk_file_pread. */
moepack_status mpk_direct_read(mpk_direct *file, uint8_t *buffer, size_t size, uint64_t offset, uint8_t **data,
                               moepack_error *error);
/* Writes as mpk_file_pwrite does. Whole pages go directly if `data` lies in its page where `offset` lies in its own. */
moepack_status mpk_direct_write(mpk_direct *file, const uint8_t *data, size_t size, uint64_t offset,
                                moepack_error *error);

/* ---- reading many spans fast ---- */

/* One contiguous read into caller memory. */
typedef struct mpk_span {
    int source;      /* index into the reader's sources */
    uint64_t offset; /* any; direct I/O widens it to whole blocks internally */
    uint64_t length;
    void *dest; /* `length` bytes; direct I/O writes here without a copy where offset, length and dest are page
                   multiples */
    void *user;
} mpk_span;

typedef struct mpk_span_reader_options {
    unsigned threads;           /* 0: min(8, 2 x mpk_cpus()) */
    bool direct;                /* O_DIRECT; falls back per source with a reason */
    const volatile int *cancel; /* may be NULL; non-zero stops with MOEPACK_E_INTERRUPTED */
    /* Called on a reader thread when a span's bytes are in memory (and hot in cache). An error stops the reading. */
    moepack_status (*done)(void *user, const mpk_span *span, moepack_error *error);
    void *user;
} mpk_span_reader_options;

typedef struct mpk_span_report {
    uint64_t bytes_wanted; /* sum of lengths */
    uint64_t bytes_read;   /* what was asked of the kernel, widening included */
    bool direct;           /* every source was read directly */
    char reason[128];      /* why not, for the first source that was not; "" */
} mpk_span_report;

/* Reads all spans with a pool of threads; `paths[i]` names source i. Spans are taken in the given order (sort them by
 * source and offset). A file that ends early is MOEPACK_E_INCOMPLETE, with file and offset. */
moepack_status mpk_span_read(const char *const *paths, size_t path_count, const mpk_span *spans, size_t span_count,
                             const mpk_span_reader_options *options, mpk_span_report *report, moepack_error *error);

/* ---- fault injection (tests) ---- */

/* When set, called before every open, read, write, reserve, sync, rename, mkdir, unlink with its name and path; a
 * non-zero result is taken as errno of a failed call; a negative one, for read and write, lets the call go through with
 * at most that many bytes (a short transfer). Set once, before any other thread runs. */
typedef int (*mpk_fault_hook)(const char *operation, const char *path);
void mpk_fault_hook_set(mpk_fault_hook hook);

#endif
