/* Reader of safetensors files.
 *
 * File: u64 header length N, N bytes of JSON, data. Every rule of the format is enforced here, once, so that nothing
 * behind this file has to doubt an offset: data regions are contiguous from the header's end to the file's end. */
#include "safetensors.h"

#include "bytes.h"
#include "error.h"
#include "json.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char METADATA[] = "__metadata__";

/* ---------------------------------------------------------------------------------------------- tensor entries */

static const char *tensor_name(const moepack_safetensors *file, const mpk_st_tensor *tensor)
{
    return (const char *)file->names.data + tensor->name;
}

static const char *name_of(const moepack_safetensors *file, uint32_t tensor)
{
    return tensor_name(file, &file->tensors[tensor]);
}

/* Fails with a message, naming the file `path` and the tensor `name` of the scope it is used in. */
#define FAIL_TENSOR(status, ...)              \
    do {                                      \
        mpk_fail(error, status, __VA_ARGS__); \
        mpk_error_file(error, path);          \
        mpk_error_tensor(error, name, -1);    \
        return status;                        \
    } while (0)

bool mpk_tensor_bytes(moepack_dtype dtype, uint32_t rank, const uint64_t *dims, uint64_t *bytes)
{
    uint64_t bits = moepack_dtype_bits(dtype);
    /* A zero anywhere makes the tensor empty even where the other dims alone would overflow. */
    for (uint32_t d = 0; d < rank; d++) {
        if (dims[d] == 0) {
            *bytes = 0;
            return true;
        }
    }
    uint64_t elements = 1;
    for (uint32_t d = 0; d < rank; d++) {
        if (!mpk_mul64(elements, dims[d], &elements)) return false;
    }
    /* Whole bytes per element first: 2^61 doubles must not overflow on the way through bits. */
    if (bits % 8 == 0) {
        if (!mpk_mul64(elements, bits / 8, bytes)) return false;
    } else {
        if (!mpk_mul64(elements, bits, bytes) || *bytes % 8 != 0) return false;
        *bytes /= 8;
    }
    return *bytes <= INT64_MAX;
}

static moepack_status read_dtype(const json_t *value, const char *path, const char *name, uint32_t *dtype,
                                 moepack_error *error)
{
    if (!json_is_string(value)) FAIL_TENSOR(MOEPACK_E_CORRUPT, "dtype is %s, not a string", mpk_json_kind(value));
    moepack_dtype found = moepack_dtype_parse(json_string_value(value));
    if (found == MOEPACK_DTYPE_INVALID)
        FAIL_TENSOR(MOEPACK_E_UNSUPPORTED, "unknown dtype \"%.40s\"", json_string_value(value));
    *dtype = (uint32_t)found;
    return MOEPACK_OK;
}

static moepack_status read_offsets(const json_t *value, const char *path, const char *name, mpk_st_tensor *tensor,
                                   moepack_error *error)
{
    uint64_t begin, end;
    char shown[64];
    if (!json_is_array(value) || json_array_size(value) != 2 || !mpk_json_u64(json_array_get(value, 0), &begin) ||
        !mpk_json_u64(json_array_get(value, 1), &end))
        FAIL_TENSOR(MOEPACK_E_CORRUPT, "data_offsets %s are not two non-negative integers",
                    mpk_json_show(value, shown, sizeof shown));
    if (end < begin)
        FAIL_TENSOR(MOEPACK_E_CORRUPT, "data_offsets end before they begin: %s",
                    mpk_json_show(value, shown, sizeof shown));
    tensor->offset = begin;
    tensor->length = end - begin;
    return MOEPACK_OK;
}

/* `tensor` comes with name set; its dims are appended to the file's. */
static moepack_status read_entry(moepack_safetensors *file, const char *path, const char *name, const json_t *value,
                                 mpk_st_tensor *tensor, moepack_error *error)
{
    const json_t *shape = json_object_get(value, "shape");
    char shown[80];
    if (!json_is_object(value)) FAIL_TENSOR(MOEPACK_E_CORRUPT, "entry is %s, not an object", mpk_json_kind(value));
    if (!json_is_array(shape)) FAIL_TENSOR(MOEPACK_E_CORRUPT, "shape is %s, not a list", mpk_json_kind(shape));
    moepack_status status = read_dtype(json_object_get(value, "dtype"), path, name, &tensor->dtype, error);
    if (!status) status = read_offsets(json_object_get(value, "data_offsets"), path, name, tensor, error);
    if (status) return status;
    if (json_object_size(value) != 3)
        FAIL_TENSOR(MOEPACK_E_CORRUPT, "entry has other keys than dtype, shape and data_offsets");

    tensor->rank = (uint32_t)json_array_size(shape);
    tensor->dims = (uint32_t)file->dims_count;
    for (uint32_t d = 0; d < tensor->rank; d++) {
        if (!mpk_grow(&file->all_dims, file->dims_count, sizeof *file->all_dims))
            FAIL_TENSOR(MOEPACK_E_REFUSED, "out of memory");
        if (!mpk_json_u64(json_array_get(shape, d), &file->all_dims[file->dims_count++]))
            FAIL_TENSOR(MOEPACK_E_CORRUPT, "shape %s has an entry that is no non-negative integer",
                        mpk_json_show(shape, shown, sizeof shown));
    }
    const uint64_t *dims = tensor->rank ? file->all_dims + tensor->dims : NULL;
    uint64_t bytes;
    const char *dtype = moepack_dtype_name((moepack_dtype)tensor->dtype);
    if (!mpk_tensor_bytes((moepack_dtype)tensor->dtype, tensor->rank, dims, &bytes))
        FAIL_TENSOR(MOEPACK_E_CORRUPT, "shape %s of dtype %s is too large or no whole number of bytes",
                    mpk_json_show(shape, shown, sizeof shown), dtype);
    if (bytes != tensor->length)
        FAIL_TENSOR(MOEPACK_E_CORRUPT, "shape %s of dtype %s has %llu bytes, data_offsets span %llu",
                    mpk_json_show(shape, shown, sizeof shown), dtype, (unsigned long long)bytes,
                    (unsigned long long)tensor->length);
    return MOEPACK_OK;
}

static bool keep_text(mpk_buf *all, const char *text)
{
    return mpk_buf_append(all, text, strlen(text) + 1) != NULL;
}

static moepack_status add_tensor(moepack_safetensors *file, const char *path, const char *name, const json_t *value,
                                 moepack_error *error)
{
    mpk_st_tensor tensor = {.name = (uint32_t)file->names.size};
    moepack_status status = read_entry(file, path, name, value, &tensor, error);
    if (status) return status;
    if (!mpk_grow(&file->tensors, file->count, sizeof *file->tensors) || !keep_text(&file->names, name))
        FAIL_TENSOR(MOEPACK_E_REFUSED, "out of memory");
    file->tensors[file->count++] = tensor;
    return MOEPACK_OK;
}

static moepack_status add_metadata(moepack_safetensors *file, const char *path, const json_t *value,
                                   moepack_error *error)
{
    const char *name = METADATA;
    if (file->has_metadata) FAIL_TENSOR(MOEPACK_E_CORRUPT, "duplicate key");
    file->has_metadata = true;
    if (!json_is_object(value))
        FAIL_TENSOR(MOEPACK_E_CORRUPT, "__metadata__ is %s, not an object", mpk_json_kind(value));
    const char *key;
    json_t *text;
    json_object_foreach((json_t *)value, key, text)
    {
        if (!json_is_string(text))
            FAIL_TENSOR(MOEPACK_E_CORRUPT, "__metadata__ key \"%s\" is %s, not a string", key, mpk_json_kind(text));
        if (!keep_text(&file->metadata, key) || !keep_text(&file->metadata, json_string_value(text)))
            FAIL_TENSOR(MOEPACK_E_REFUSED, "out of memory");
    }
    return MOEPACK_OK;
}

/* ---------------------------------------------------------------------------------------------- whole headers */

/* A header's text being walked. `at` is the next byte; bytes of the file before the text: 8. */
typedef struct walk {
    moepack_safetensors *file;
    const char *text, *path;
    size_t size, at;
    moepack_error *error;
} walk;

static moepack_status bad_syntax(const walk *w, const char *what)
{
    mpk_fail(w->error, MOEPACK_E_CORRUPT, "not valid JSON: %s", what);
    mpk_error_file(w->error, w->path);
    mpk_error_offset(w->error, 8 + w->at);
    return MOEPACK_E_CORRUPT;
}

static char next_byte(walk *w)
{
    while (w->at < w->size && strchr(" \t\r\n", w->text[w->at]) && w->text[w->at]) w->at++;
    return w->at < w->size ? w->text[w->at] : 0;
}

static moepack_status next_value(walk *w, json_t **value)
{
    size_t used;
    moepack_status status =
        mpk_json_parse_part(w->text + w->at, w->size - w->at, w->path, 8 + w->at, value, &used, w->error);
    if (!status) w->at += used;
    return status;
}

/* "name": {...} */
static moepack_status read_member(walk *w)
{
    json_t *name = NULL, *value = NULL;
    if (next_byte(w) != '"') return bad_syntax(w, "a name in quotes expected");
    moepack_status status = next_value(w, &name);
    if (!status && next_byte(w) != ':') status = bad_syntax(w, "':' expected");
    w->at++;
    if (!status) status = next_value(w, &value);
    if (!status) {
        const char *text = json_string_value(name);
        status = strcmp(text, METADATA) == 0 ? add_metadata(w->file, w->path, value, w->error)
                                             : add_tensor(w->file, w->path, text, value, w->error);
    }
    json_decref(name);
    json_decref(value);
    return status;
}

/* The header's object, member by member: jansson parses every name and value, this only the commas between them. */
static moepack_status read_members(walk *w)
{
    w->at++; /* '{' was seen */
    if (next_byte(w) == '}') {
        w->at++;
    } else {
        for (bool more = true; more; w->at++) {
            moepack_status status = read_member(w);
            if (status) return status;
            char separator = next_byte(w);
            if (separator != ',' && separator != '}') return bad_syntax(w, "',' or '}' expected");
            more = separator == ',';
        }
    }
    return w->at == w->size ? MOEPACK_OK : bad_syntax(w, "text behind the end of the object");
}

static int by_offset(const void *a, const void *b, void *user)
{
    const mpk_st_tensor *x = a, *y = b;
    const moepack_safetensors *file = user;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->length != y->length) return x->length < y->length ? -1 : 1; /* empty ones first */
    return strcmp(tensor_name(file, x), tensor_name(file, y));
}

/* Names may be made to share a hash; then the name decides, so sorting stays n log n. */
static int by_key(const void *a, const void *b, void *user)
{
    const mpk_st_key *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->tensor == y->tensor ? 0 : strcmp(name_of(user, x->tensor), name_of(user, y->tensor));
}

static moepack_status index_names(moepack_safetensors *file, const char *path, moepack_error *error)
{
    file->keys = malloc((file->count + 1) * sizeof *file->keys);
    if (!file->keys) {
        mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        mpk_error_file(error, path);
        return MOEPACK_E_REFUSED;
    }
    for (uint32_t i = 0; i < file->count; i++) {
        const char *name = name_of(file, i);
        file->keys[i] = (mpk_st_key){moepack_hash64(name, strlen(name)), i};
    }
    qsort_r(file->keys, file->count, sizeof *file->keys, by_key, file);
    for (size_t i = 1; i < file->count; i++) {
        const mpk_st_key *a = &file->keys[i - 1], *b = &file->keys[i];
        const char *name = name_of(file, b->tensor);
        if (a->hash == b->hash && strcmp(name_of(file, a->tensor), name) == 0)
            FAIL_TENSOR(MOEPACK_E_CORRUPT, "duplicate key");
    }
    return MOEPACK_OK;
}

/* Offsets are still relative to the data. Makes them absolute, and checks that they cover it without hole or overlap.
 */
static moepack_status check_coverage(moepack_safetensors *file, const char *path, moepack_error *error)
{
    uint64_t data_size = file->file_size - file->data_start, covered = 0;
    for (size_t i = 0; i < file->count; i++) {
        mpk_st_tensor *tensor = &file->tensors[i];
        const char *name = tensor_name(file, tensor);
        if (tensor->offset != covered) {
            bool hole = tensor->offset > covered;
            FAIL_TENSOR(MOEPACK_E_CORRUPT, "data_offsets begin at %llu, %s the data before, which ends at %llu",
                        (unsigned long long)tensor->offset, hole ? "leaving a hole after" : "overlapping",
                        (unsigned long long)covered);
        }
        covered += tensor->length; /* offset + length came from one int64: no overflow */
    }
    if (covered == data_size) {
        for (size_t i = 0; i < file->count; i++) file->tensors[i].offset += file->data_start;
        return MOEPACK_OK;
    }
    bool shorter = data_size < covered;
    moepack_status status = shorter ? MOEPACK_E_INCOMPLETE : MOEPACK_E_CORRUPT;
    mpk_fail(error, status, "file has %llu bytes of data, its header describes %llu: %s", (unsigned long long)data_size,
             (unsigned long long)covered, shorter ? "truncated" : "bytes that belong to no tensor");
    mpk_error_file(error, path);
    return status;
}

static moepack_status bad_header(const char *path, const char *what, moepack_error *error)
{
    mpk_fail(error, MOEPACK_E_CORRUPT, "not a safetensors file: %s", what);
    mpk_error_file(error, path);
    return MOEPACK_E_CORRUPT;
}

moepack_status mpk_safetensors_parse(moepack_safetensors *file, const char *text, size_t size, uint64_t file_size,
                                     const char *path, moepack_error *error)
{
    file->file_size = file_size;
    file->data_start = 8 + (uint64_t)size;
    if (size == 0 || text[0] != '{') return bad_header(path, "its header does not begin with '{'", error);
    size_t used = size;
    while (text[used - 1] == ' ') used--;
    if (text[used - 1] != '}') return bad_header(path, "its header does not end with '}' and spaces", error);

    walk w = {file, text, path, used, 0, error};
    moepack_status status = read_members(&w);
    if (status) return status;
    if (file->count) qsort_r(file->tensors, file->count, sizeof *file->tensors, by_offset, file);
    status = index_names(file, path, error);
    return status ? status : check_coverage(file, path, error);
}

/* Reads length word and header text (malloc'ed, NULL on failure). */
static moepack_status read_header(const moepack_safetensors *file, uint64_t file_size, char **text, size_t *size,
                                  moepack_error *error)
{
    uint8_t word[8];
    if (file_size < sizeof word) {
        mpk_fail(error, MOEPACK_E_INCOMPLETE, "file has %llu bytes, a safetensors file at least 8",
                 (unsigned long long)file_size);
        mpk_error_file(error, file->path);
        return MOEPACK_E_INCOMPLETE;
    }
    moepack_status status = mpk_file_pread(file->fd, word, sizeof word, 0, file->path, error);
    if (status) return status;
    uint64_t length = mpk_load64(word);
    if (length > MPK_SAFETENSORS_HEADER_MAX) {
        mpk_fail(error, MOEPACK_E_CORRUPT, "header length %llu is above the format's limit of %u",
                 (unsigned long long)length, MPK_SAFETENSORS_HEADER_MAX);
        mpk_error_file(error, file->path);
        mpk_error_offset(error, 0);
        return MOEPACK_E_CORRUPT;
    }
    if (length > file_size - sizeof word) {
        mpk_fail(error, MOEPACK_E_INCOMPLETE, "file has %llu bytes, its header alone ends at %llu",
                 (unsigned long long)file_size, (unsigned long long)length + 8);
        mpk_error_file(error, file->path);
        return MOEPACK_E_INCOMPLETE;
    }
    *text = malloc((size_t)length + 1);
    if (!*text) {
        mpk_fail(error, MOEPACK_E_REFUSED, "out of memory for a header of %llu bytes", (unsigned long long)length);
        mpk_error_file(error, file->path);
        return MOEPACK_E_REFUSED;
    }
    *size = (size_t)length;
    status = mpk_file_pread(file->fd, *text, *size, sizeof word, file->path, error);
    if (status) {
        free(*text);
        *text = NULL;
    }
    return status;
}

moepack_status moepack_safetensors_open(const char *path, moepack_safetensors **out, moepack_error *error)
{
    moepack_safetensors *file = calloc(1, sizeof *file);
    if (!file) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    file->fd = -1;
    file->path = strdup(path);
    char *text = NULL;
    size_t size = 0;
    uint64_t file_size = 0;
    moepack_status status = file->path ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    if (!status) status = mpk_file_open(path, &file->fd, &file_size, error);
    if (!status) status = mpk_file_stamp_of(file->fd, path, &file->stamp, error);
    if (!status) status = read_header(file, file_size, &text, &size, error);
    if (!status) status = mpk_safetensors_parse(file, text, size, file_size, path, error);
    free(text);
    if (status) {
        moepack_safetensors_close(file);
        return status;
    }
    *out = file;
    return MOEPACK_OK;
}

/* ---------------------------------------------------------------------------------------------- getters */

void moepack_safetensors_close(moepack_safetensors *file)
{
    if (!file) return;
    if (file->fd >= 0) close(file->fd);
    free(file->path);
    free(file->tensors);
    free(file->keys);
    free(file->names.data);
    free(file->all_dims);
    free(file->metadata.data);
    free(file);
}

size_t moepack_safetensors_count(const moepack_safetensors *file)
{
    return file->count;
}

void moepack_safetensors_get(const moepack_safetensors *file, size_t i, moepack_safetensors_tensor *out)
{
    memset(out, 0, sizeof *out);
    if (i >= file->count) return;
    const mpk_st_tensor *tensor = &file->tensors[i];
    out->name = tensor_name(file, tensor);
    out->dtype = (moepack_dtype)tensor->dtype;
    out->rank = tensor->rank;
    out->dims = tensor->rank ? file->all_dims + tensor->dims : NULL;
    out->offset = tensor->offset;
    out->length = tensor->length;
}

size_t moepack_safetensors_find(const moepack_safetensors *file, const char *name)
{
    if (!name) return SIZE_MAX;
    uint64_t hash = moepack_hash64(name, strlen(name));
    size_t low = 0, high = file->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const mpk_st_key *key = &file->keys[middle];
        int order = key->hash == hash ? strcmp(name_of(file, key->tensor), name) : key->hash < hash ? -1 : 1;
        if (order == 0) return key->tensor;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return SIZE_MAX;
}

const char *moepack_safetensors_metadata(const moepack_safetensors *file, const char *key)
{
    for (size_t at = 0; at < file->metadata.size;) {
        const char *name = (const char *)file->metadata.data + at, *value = name + strlen(name) + 1;
        if (strcmp(name, key) == 0) return value;
        at += strlen(name) + strlen(value) + 2;
    }
    return NULL;
}

uint64_t moepack_safetensors_data_start(const moepack_safetensors *file)
{
    return file->data_start;
}

moepack_status moepack_safetensors_read(const moepack_safetensors *file, size_t i, uint64_t begin, void *buf,
                                        size_t size, moepack_error *error)
{
    if (i >= file->count) return mpk_fail(error, MOEPACK_E_USAGE, "tensor number %zu of %zu", i, file->count);
    const mpk_st_tensor *tensor = &file->tensors[i];
    const char *name = tensor_name(file, tensor), *path = file->path;
    if (begin > tensor->length || size > tensor->length - begin)
        FAIL_TENSOR(MOEPACK_E_USAGE, "bytes %llu + %zu asked for, the tensor has %llu", (unsigned long long)begin, size,
                    (unsigned long long)tensor->length);
    if (size == 0) return MOEPACK_OK;
    moepack_status status = mpk_file_pread(file->fd, buf, size, tensor->offset + begin, path, error);
    if (status) mpk_error_tensor(error, name, -1);
    return status;
}
