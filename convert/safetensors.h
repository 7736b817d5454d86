/* Inside of the safetensors reader, for the source reader and for tests. Internal.
 *
 * A header is one JSON object with a member per tensor. Kimi K3's 494,592 routed tensors in one header are 77 MB of
 * text, and would be a tree of 450 MB: so jansson parses member by member, and what is kept are flat arrays (170 bytes
 * a tensor). */
#ifndef MOEPACK_CONVERT_SAFETENSORS_H
#define MOEPACK_CONVERT_SAFETENSORS_H

#include "build.h"
#include "io/io.h"
#include "moepack/convert.h"

/* The format's own limit on the header, from the reference implementation. */
#define MPK_SAFETENSORS_HEADER_MAX 100000000u

typedef struct mpk_st_tensor {
    uint64_t offset, length; /* from the start of the file; bytes */
    uint32_t name, dims;     /* positions in `names` and `all_dims`; a header is below 2^32 bytes, so both fit */
    uint32_t rank;
    uint32_t dtype;
} mpk_st_tensor;

/* Tensors are found by the hash of their name, then the name itself. */
typedef struct mpk_st_key {
    uint64_t hash;
    uint32_t tensor;
} mpk_st_key;

struct moepack_safetensors {
    int fd; /* -1: parsed from memory */
    char *path;
    uint64_t file_size, data_start;
    mpk_file_stamp stamp;   /* taken before the header was read */
    mpk_st_tensor *tensors; /* by (offset, length, name): empty ones first among equals */
    mpk_st_key *keys;       /* by (hash, name) */
    size_t count;
    mpk_buf names; /* each with its zero */
    uint64_t *all_dims;
    size_t dims_count;
    mpk_buf metadata; /* key, zero, value, zero ... */
    bool has_metadata;
};

/* Checks header text that was read from a file of `file_size` bytes, and fills everything but fd, path and stamp. */
moepack_status mpk_safetensors_parse(moepack_safetensors *file, const char *text, size_t size, uint64_t file_size,
                                     const char *path, moepack_error *error);

/* Bytes of a tensor: product(dims) x width / 8. False on overflow (2^63) or when that is no whole number of bytes. */
bool mpk_tensor_bytes(moepack_dtype dtype, uint32_t rank, const uint64_t *dims, uint64_t *bytes);

#endif
