/* Any bytes as a safetensors file: opened or refused, and what is opened keeps the format's promises. */
#include "moepack/convert.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REQUIRE(condition)         \
    do {                           \
        if (!(condition)) abort(); \
    } while (0)

/* Wide enough for a product that stops growing once it is past the file's bits. */
__extension__ typedef unsigned __int128 wide;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Data regions follow one another from the header to the end of the file, sizes agree with shapes, names lead back. */
static void check(const moepack_safetensors *file, size_t size)
{
    uint64_t at = moepack_safetensors_data_start(file);
    for (size_t i = 0; i < moepack_safetensors_count(file); i++) {
        moepack_safetensors_tensor t;
        moepack_safetensors_get(file, i, &t);
        REQUIRE(t.offset == at && t.length <= size - at);
        at += t.length;
        wide bits = moepack_dtype_bits(t.dtype);
        REQUIRE(bits != 0);
        for (uint32_t d = 0; d < t.rank && bits <= (wide)size * 8; d++) bits *= t.dims[d];
        for (uint32_t d = 0; d < t.rank; d++) bits = t.dims[d] == 0 ? 0 : bits;
        REQUIRE(bits == (wide)t.length * 8);
        REQUIRE(moepack_safetensors_find(file, t.name) == i);
        uint8_t last;
        if (t.length) REQUIRE(moepack_safetensors_read(file, i, t.length - 1, &last, 1, NULL) == MOEPACK_OK);
        REQUIRE(moepack_safetensors_read(file, i, t.length, &last, 1, NULL) == MOEPACK_E_USAGE);
    }
    REQUIRE(at == size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    REQUIRE(fd >= 0);
    REQUIRE(size == 0 || write(fd, data, size) == (ssize_t)size);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    moepack_safetensors *file = NULL;
    moepack_error error = {.status = MOEPACK_OK};
    moepack_status status = moepack_safetensors_open(path, &file, &error);
    if (status == MOEPACK_OK) {
        check(file, size);
        moepack_safetensors_close(file);
    } else {
        REQUIRE(status == error.status && error.message[0] != 0 && file == NULL);
        REQUIRE(status == MOEPACK_E_CORRUPT || status == MOEPACK_E_INCOMPLETE || status == MOEPACK_E_UNSUPPORTED);
    }
    close(fd);
    return 0;
}
