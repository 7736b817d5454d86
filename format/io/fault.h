/* The fault hook, as the files of this folder use it. Internal to format/io. */
#ifndef MOEPACK_IO_FAULT_H
#define MOEPACK_IO_FAULT_H

#include "io/io.h"

extern mpk_fault_hook mpk_fault_installed;

/* 0: go on; positive: fail with this errno; negative: transfer at most that many bytes (read and write). */
static inline int mpk_fault(const char *operation, const char *path)
{
    return mpk_fault_installed == NULL ? 0 : mpk_fault_installed(operation, path);
}

/* Limits a transfer as the hook asked; sets errno and returns false when the call is to fail. */
bool mpk_fault_transfer(const char *operation, const char *path, size_t *size);

/* One open without the checks of mpk_file_open but with O_CLOEXEC and EINTR handled; -1 and errno. */
int mpk_raw_open(const char *path, int flags, unsigned mode);
/* mpk_file_open with extra flags (O_DIRECT). *errno_value receives the reason of a failure, 0 where it was no system
 * call. */
moepack_status mpk_file_open_flags(const char *path, int extra_flags, int *fd, uint64_t *size, int *errno_value,
                                   moepack_error *error);

#endif
