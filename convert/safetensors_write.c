/* Writer of safetensors files: declarations, then data in the same order, then finish. */
#include "safetensors.h"

#include "bytes.h"
#include "error.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct moepack_safetensors_writer {
    char *path, *partial;
    bool overwrite;
    int fd;
    json_t *header;    /* the header as it will be written; NULL once it is */
    json_t *metadata;  /* inside header */
    uint64_t declared; /* bytes of data */
    uint64_t appended;
    uint64_t data_start;   /* 0: the header is not written yet */
    moepack_status failed; /* first failure of append; finish then gives up */
};

static const char METADATA[] = "__metadata__";

static moepack_status out_of_memory(moepack_error *error)
{
    return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
}

static char *partial_name(const char *path)
{
    static const char suffix[] = ".partial";
    size_t length = strlen(path);
    char *name = malloc(length + sizeof suffix);
    if (!name) return NULL;
    memcpy(name, path, length);
    memcpy(name + length, suffix, sizeof suffix);
    return name;
}

static moepack_status refuse_existing(const char *path, const char *why, moepack_error *error)
{
    mpk_fail(error, MOEPACK_E_REFUSED, "%s", why);
    mpk_error_file(error, path);
    return MOEPACK_E_REFUSED;
}

static void free_writer(moepack_safetensors_writer *writer)
{
    json_decref(writer->header);
    free(writer->path);
    free(writer->partial);
    free(writer);
}

moepack_status moepack_safetensors_create(const char *path, bool overwrite, moepack_safetensors_writer **out,
                                          moepack_error *error)
{
    struct stat st;
    if (!overwrite && mpk_path_exists(path)) return refuse_existing(path, "exists already", error);
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* a device, a pipe, a link, a directory */
        return refuse_existing(path, "is not a regular file", error);
    moepack_safetensors_writer *writer = calloc(1, sizeof *writer);
    if (!writer) return out_of_memory(error);
    writer->overwrite = overwrite;
    writer->fd = -1;
    writer->path = strdup(path);
    writer->partial = partial_name(path);
    writer->header = json_object();
    writer->metadata = json_object();
    /* Keys keep their order of insertion, so __metadata__ comes first in the file; it also occupies the name. */
    bool made = writer->path && writer->partial && writer->header && writer->metadata &&
                json_object_set_new(writer->header, METADATA, writer->metadata) == 0;
    moepack_status status = made ? MOEPACK_OK : out_of_memory(error);
    if (!status && mpk_path_exists(writer->partial))
        status = refuse_existing(writer->partial, "left by an interrupted run, or in use by another; remove it first",
                                 error);
    if (!status) status = mpk_file_create(writer->partial, &writer->fd, error);
    if (status) {
        free_writer(writer);
        return status;
    }
    *out = writer;
    return MOEPACK_OK;
}

moepack_status moepack_safetensors_add_metadata(moepack_safetensors_writer *writer, const char *key, const char *value,
                                                moepack_error *error)
{
    if (writer->data_start) return mpk_fail(error, MOEPACK_E_USAGE, "metadata \"%.80s\" after data", key);
    json_t *text = json_string(value); /* refuses what is not UTF-8 */
    if (!text || json_object_get(writer->metadata, key) || json_object_set_new(writer->metadata, key, text) != 0)
        return mpk_fail(error, MOEPACK_E_USAGE, "metadata \"%.80s\" is given twice or not UTF-8", key);
    return MOEPACK_OK;
}

static json_t *tensor_entry(moepack_dtype dtype, uint32_t rank, const uint64_t *dims, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    for (uint32_t d = 0; d < rank; d++) json_array_append_new(shape, json_integer((json_int_t)dims[d]));
    if (json_array_size(shape) != rank) { /* an append ran out of memory */
        json_decref(shape);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", moepack_dtype_name(dtype), "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)end);
}

moepack_status moepack_safetensors_add(moepack_safetensors_writer *writer, const char *name, moepack_dtype dtype,
                                       uint32_t rank, const uint64_t *dims, moepack_error *error)
{
    moepack_status status = MOEPACK_OK;
    uint64_t bytes = 0, end = 0;
    bool dims_fit = true;
    for (uint32_t d = 0; d < rank; d++) dims_fit = dims_fit && dims[d] <= INT64_MAX;
    if (writer->data_start)
        status = mpk_fail(error, MOEPACK_E_USAGE, "tensor declared after data");
    else if (!moepack_dtype_name(dtype))
        status = mpk_fail(error, MOEPACK_E_USAGE, "dtype %d is unknown", (int)dtype);
    else if (json_object_get(writer->header, name))
        status = mpk_fail(error, MOEPACK_E_USAGE, "name is given twice or reserved");
    else if (!dims_fit || !mpk_tensor_bytes(dtype, rank, dims, &bytes) || !mpk_add64(writer->declared, bytes, &end) ||
             end > INT64_MAX)
        status = mpk_fail(error, MOEPACK_E_USAGE, "shape is too large or no whole number of bytes");
    else if (json_object_set_new(writer->header, name, tensor_entry(dtype, rank, dims, writer->declared, end)) != 0)
        status = mpk_fail(error, MOEPACK_E_USAGE, "name is not UTF-8, or out of memory");
    if (status) {
        mpk_error_file(error, writer->path);
        mpk_error_tensor(error, name, -1);
        return status;
    }
    writer->declared = end;
    return MOEPACK_OK;
}

/* Length word and header, padded with spaces so that data begins at a multiple of 8. */
static moepack_status write_header(moepack_safetensors_writer *writer, moepack_error *error)
{
    if (json_object_size(writer->metadata) == 0) json_object_del(writer->header, METADATA);
    char *text = json_dumps(writer->header, JSON_COMPACT);
    json_decref(writer->header);
    writer->header = NULL;
    writer->metadata = NULL;
    if (!text) return out_of_memory(error);
    size_t length = strlen(text), padded = (length + 7) / 8 * 8;
    if (padded > MPK_SAFETENSORS_HEADER_MAX) {
        free(text);
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "header of %zu bytes is above the format's limit", padded);
    }
    char *bytes = malloc(8 + padded);
    if (bytes) {
        mpk_store64(bytes, padded);
        memcpy(bytes + 8, text, length);
        memset(bytes + 8 + length, ' ', padded - length);
    }
    free(text);
    if (!bytes) return out_of_memory(error);
    moepack_status status = mpk_file_pwrite(writer->fd, bytes, 8 + padded, 0, writer->partial, error);
    free(bytes);
    writer->data_start = 8 + padded;
    return status;
}

static moepack_status append(moepack_safetensors_writer *writer, const void *data, size_t size, moepack_error *error)
{
    if (!writer->data_start) {
        moepack_status status = write_header(writer, error);
        if (status) return status;
    }
    if (size > writer->declared - writer->appended)
        return mpk_fail(error, MOEPACK_E_USAGE, "more data than the %llu bytes declared",
                        (unsigned long long)writer->declared);
    if (size == 0) return MOEPACK_OK;
    uint64_t offset = writer->data_start + writer->appended;
    writer->appended += size;
    return mpk_file_pwrite(writer->fd, data, size, offset, writer->partial, error);
}

moepack_status moepack_safetensors_append(moepack_safetensors_writer *writer, const void *data, size_t size,
                                          moepack_error *error)
{
    if (writer->failed) return mpk_fail(error, writer->failed, "an earlier write failed");
    writer->failed = append(writer, data, size, error);
    if (writer->failed) mpk_error_file(error, writer->path);
    return writer->failed;
}

moepack_status moepack_safetensors_finish(moepack_safetensors_writer *writer, moepack_error *error)
{
    moepack_status status = moepack_safetensors_append(writer, NULL, 0, error);
    if (!status && writer->appended < writer->declared) {
        status = mpk_fail(error, MOEPACK_E_USAGE, "%llu of %llu declared bytes were given",
                          (unsigned long long)writer->appended, (unsigned long long)writer->declared);
        mpk_error_file(error, writer->path);
    }
    if (!status) status = mpk_file_sync(writer->fd, writer->partial, error);
    if (!status) status = mpk_rename_durable(writer->partial, writer->path, writer->overwrite, error);
    if (status) {
        moepack_safetensors_abort(writer);
        return status;
    }
    close(writer->fd);
    free_writer(writer);
    return MOEPACK_OK;
}

void moepack_safetensors_abort(moepack_safetensors_writer *writer)
{
    if (!writer) return;
    if (writer->fd >= 0) close(writer->fd);
    mpk_tree_remove(writer->partial, NULL);
    free_writer(writer);
}
