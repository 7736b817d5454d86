/* Input and output files of `run` and `route`. */
#include "run_io.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef unsigned long long ull;

static moepack_status fail(moepack_error *error, moepack_status status, const char *file, const char *tensor,
                           const char *fmt, ...) MOEPACK_PRINTF(5, 6);

static moepack_status fail(moepack_error *error, moepack_status status, const char *file, const char *tensor,
                           const char *fmt, ...)
{
    va_list args;
    memset(error, 0, sizeof *error);
    error->status = status;
    error->expert = error->offset = -1;
    /* A long path keeps its end, where the file's name is. */
    size_t length = strlen(file), room = sizeof error->file - 1;
    snprintf(error->file, sizeof error->file, "%s", length > room ? file + length - room : file);
    snprintf(error->tensor, sizeof error->tensor, "%s", tensor);
    va_start(args, fmt);
    vsnprintf(error->message, sizeof error->message, fmt, args);
    va_end(args);
    return status;
}

/* ------------------------------------------------------------------------------------------------- policy */

moepack_status run_policy(const moepack_pack *pack, uint32_t block, const cli_list *overrides, moepack_policy *out,
                          moepack_error *error)
{
    moepack_block info;
    const moepack_index *index = moepack_pack_index(pack);
    moepack_index_block(index, block, &info);
    moepack_status status = moepack_index_policy(index, info.policy, out, NULL, error);
    for (size_t i = 0; i < overrides->count && status == MOEPACK_OK; i++) {
        const char *item = overrides->items[i], *value = strchr(item, '=');
        char key[64];
        if (value == NULL || (size_t)(value - item) >= sizeof key)
            return fail(error, MOEPACK_E_USAGE, "", "", "--policy %.100s is not of the form KEY=VALUE", item);
        snprintf(key, sizeof key, "%.*s", (int)(value - item), item);
        moepack_policy before = *out;
        status = moepack_policy_set(out, key, value + 1, error);
        if (status == MOEPACK_OK && !moepack_policy_same_structure(&before, out))
            return fail(error, MOEPACK_E_USAGE, "", "", "--policy %.100s: this field follows from the tensors", item);
    }
    return status == MOEPACK_OK ? moepack_policy_check(out, info.experts, error) : status;
}

/* ------------------------------------------------------------------------------------------------- input */

static moepack_status check_x(const moepack_safetensors_tensor *x, uint64_t hidden, run_input *out,
                              moepack_error *error)
{
    if (x->dtype != MOEPACK_DTYPE_BF16 && x->dtype != MOEPACK_DTYPE_F32) {
        return fail(error, MOEPACK_E_UNSUPPORTED, out->path, "x", "dtype is %s, not BF16 or F32",
                    moepack_dtype_name(x->dtype));
    }
    if (x->rank != 2 && x->rank != 3) {
        return fail(error, MOEPACK_E_USAGE, out->path, "x",
                    "has %u dimensions, not 2 ([tokens, hidden]) or 3 ([sequences, tokens, hidden])", x->rank);
    }
    uint64_t width = x->dims[x->rank - 1];
    if (width != hidden) {
        return fail(error, MOEPACK_E_USAGE, out->path, "x", "is %llu wide, the layer's hidden size is %llu", (ull)width,
                    (ull)hidden);
    }
    out->dtype = x->dtype;
    out->hidden = hidden;
    out->lead_rank = x->rank - 1;
    out->tokens = 1;
    for (uint32_t i = 0; i < out->lead_rank; i++) {
        out->lead[i] = x->dims[i];
        if (__builtin_mul_overflow(out->tokens, x->dims[i], &out->tokens))
            return fail(error, MOEPACK_E_REFUSED, out->path, "x", "too many tokens");
    }
    return MOEPACK_OK;
}

moepack_status run_input_open(const char *path, uint64_t hidden, run_input *out, moepack_error *error)
{
    moepack_safetensors_tensor x;
    *out = (run_input){.path = path};
    moepack_status status = moepack_safetensors_open(path, &out->file, error);
    if (status != MOEPACK_OK) return status;
    out->tensor = moepack_safetensors_find(out->file, "x");
    if (out->tensor == SIZE_MAX) {
        status = fail(error, MOEPACK_E_INCOMPLETE, path, "x", "no tensor of this name");
    } else {
        moepack_safetensors_get(out->file, out->tensor, &x);
        status = check_x(&x, hidden, out, error);
    }
    if (status != MOEPACK_OK) run_input_close(out);
    return status;
}

moepack_status run_input_token_ids(run_input *input, moepack_error *error)
{
    static const char name[] = "token_ids";
    moepack_safetensors_tensor t;
    const size_t at = moepack_safetensors_find(input->file, name);
    if (at == SIZE_MAX)
        return fail(error, MOEPACK_E_INCOMPLETE, input->path, name, "the layer routes by token ids: no such tensor");
    moepack_safetensors_get(input->file, at, &t);
    if (t.dtype != MOEPACK_DTYPE_I32 && t.dtype != MOEPACK_DTYPE_I64)
        return fail(error, MOEPACK_E_UNSUPPORTED, input->path, name, "dtype is %s, not I32 or I64",
                    moepack_dtype_name(t.dtype));
    uint64_t count = 1;
    for (uint32_t i = 0; i < t.rank; i++)
        if (__builtin_mul_overflow(count, t.dims[i], &count)) count = UINT64_MAX;
    if (count != input->tokens)
        return fail(error, MOEPACK_E_USAGE, input->path, name, "has %llu elements for %llu tokens", (ull)count,
                    (ull)input->tokens);
    const size_t width = t.dtype == MOEPACK_DTYPE_I64 ? 8 : 4;
    uint8_t *raw = malloc((size_t)count * width + 1);
    input->token_ids = malloc((size_t)count * sizeof *input->token_ids + 1);
    moepack_status status = raw != NULL && input->token_ids != NULL
                                ? moepack_safetensors_read(input->file, at, 0, raw, (size_t)count * width, error)
                                : fail(error, MOEPACK_E_REFUSED, input->path, name, "out of memory");
    for (uint64_t i = 0; status == MOEPACK_OK && i < count; i++) {
        uint64_t id = 0;
        for (size_t b = 0; b < width; b++) id |= (uint64_t)raw[i * width + b] << (8 * b);
        /* What no I32 holds is past every table: -1 says so, too. */
        input->token_ids[i] = id <= INT32_MAX ? (int32_t)id : -1;
    }
    free(raw);
    return status;
}

void run_input_close(run_input *input)
{
    free(input->token_ids);
    input->token_ids = NULL;
    moepack_safetensors_close(input->file);
    input->file = NULL;
}

/* Bytes of the file, little-endian, to floats; BF16 is the upper half of an F32. */
static void widen(const run_input *input, const uint8_t *raw, float *x, size_t count)
{
    bool wide = input->dtype == MOEPACK_DTYPE_F32;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *p = raw + i * (wide ? 4 : 2);
        uint32_t bits = wide ? (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24
                             : (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

moepack_status run_input_read(const run_input *input, uint64_t first, uint64_t count, void *raw, float *x,
                              moepack_error *error)
{
    size_t width = input->dtype == MOEPACK_DTYPE_F32 ? 4 : 2, row = (size_t)input->hidden * width;
    if (count == 0) return MOEPACK_OK;
    moepack_status status =
        moepack_safetensors_read(input->file, input->tensor, first * row, raw, (size_t)count * row, error);
    if (status == MOEPACK_OK) widen(input, raw, x, (size_t)(count * input->hidden));
    return status;
}

/* ------------------------------------------------------------------------------------------------- results */

/* Room for tokens x width values of 4 bytes, at least one. */
static void *rows(uint64_t tokens, uint64_t width)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(tokens, width, &bytes) || __builtin_mul_overflow(bytes, 4, &bytes) ||
        bytes > SIZE_MAX / 2)
        return NULL;
    return calloc((size_t)bytes / 4 + 1, 4);
}

moepack_status run_result_create(uint64_t tokens, const moepack_policy *policy, bool partial, bool kept,
                                 run_result *out, moepack_error *error)
{
    *out = (run_result){
        .tokens = tokens, .hidden = policy->hidden, .expert_input = policy->expert_input, .top_k = policy->top_k};
    if (!partial) out->y = rows(tokens, out->hidden);
    out->s = rows(tokens, out->expert_input);
    out->topk_ids = rows(tokens, out->top_k);
    out->topk_weights = rows(tokens, out->top_k);
    if (kept) out->kept = rows(tokens, 1);
    if ((out->kept != NULL || !kept) && (out->y != NULL || partial) && out->s != NULL && out->topk_ids != NULL &&
        out->topk_weights != NULL)
        return MOEPACK_OK;
    run_result_free(out);
    return fail(error, MOEPACK_E_REFUSED, "", "", "not enough memory for the results of %llu tokens", (ull)tokens);
}

void run_result_free(run_result *result)
{
    free(result->y);
    free(result->s);
    free(result->topk_ids);
    free(result->topk_weights);
    free(result->kept);
    *result = (run_result){0};
}

/* ------------------------------------------------------------------------------------------------- output */

/* One tensor of the output file: [the input's leading dims, width], or without the width, which is 1 then. */
typedef struct output_tensor {
    const char *name;
    moepack_dtype dtype;
    uint64_t width;
    const void *data;
    bool flat;
} output_tensor;

static moepack_status declare(moepack_safetensors_writer *writer, const run_input *input, const output_tensor *tensor,
                              moepack_error *error)
{
    uint64_t dims[3] = {0};
    for (uint32_t i = 0; i < input->lead_rank; i++) dims[i] = input->lead[i];
    dims[input->lead_rank] = tensor->width;
    const uint32_t rank = tensor->flat ? input->lead_rank : input->lead_rank + 1;
    return moepack_safetensors_add(writer, tensor->name, tensor->dtype, rank, dims, error);
}

/* 32-bit values to the file's little-endian order, a buffer at a time. */
static moepack_status append(moepack_safetensors_writer *writer, const output_tensor *tensor, uint64_t tokens,
                             moepack_error *error)
{
    uint8_t buf[4096];
    uint64_t count = tokens * tensor->width;
    for (uint64_t done = 0; done < count;) {
        size_t n = count - done < sizeof buf / 4 ? (size_t)(count - done) : sizeof buf / 4;
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, (const uint8_t *)tensor->data + (done + i) * 4, 4);
            for (unsigned b = 0; b < 4; b++) buf[4 * i + b] = (uint8_t)(bits >> (8 * b));
        }
        moepack_status status = moepack_safetensors_append(writer, buf, 4 * n, error);
        if (status != MOEPACK_OK) return status;
        done += n;
    }
    return MOEPACK_OK;
}

/* Directory part of a path; "." without one. Freed with free(); NULL without memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    return length == 0 ? strdup(".") : strndup(path, length);
}

/* Whether the file's directory is PACK or lies in it, links resolved. */
static bool lies_in(const char *path, const char *pack)
{
    char outer[PATH_MAX], inner[PATH_MAX];
    char *folder = folder_of(path);
    bool known = folder != NULL && realpath(pack, outer) != NULL && realpath(folder, inner) != NULL;
    free(folder);
    if (!known) return false; /* what cannot be resolved is not there, and opening it fails */
    size_t length = strlen(outer);
    return strncmp(inner, outer, length) == 0 && (inner[length] == '\0' || inner[length] == '/' || length == 1);
}

moepack_status run_check_apart(const char *path, const char *pack, const char *input, moepack_error *error)
{
    struct stat out, in;
    if (lies_in(path, pack))
        return fail(error, MOEPACK_E_REFUSED, path, "", "lies inside the container, whose files stay as they are");
    if (lstat(path, &out) == 0 && stat(input, &in) == 0 && out.st_dev == in.st_dev && out.st_ino == in.st_ino)
        return fail(error, MOEPACK_E_REFUSED, path, "", "is the input file");
    return MOEPACK_OK;
}

moepack_status run_check_output(const char *path, bool overwrite, moepack_error *error)
{
    struct stat st;
    if (lstat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode)) return fail(error, MOEPACK_E_REFUSED, path, "", "is a directory");
        /* A device, a pipe, a link: replacing one is never what a user wants. */
        if (!S_ISREG(st.st_mode)) return fail(error, MOEPACK_E_REFUSED, path, "", "is not a regular file");
        if (!overwrite) return fail(error, MOEPACK_E_REFUSED, path, "", "exists already; --overwrite replaces it");
        return MOEPACK_OK;
    }
    char *folder = folder_of(path);
    if (folder == NULL) return fail(error, MOEPACK_E_REFUSED, path, "", "out of memory");
    moepack_status status = MOEPACK_OK;
    if (access(folder, W_OK | X_OK) != 0)
        status = fail(error, MOEPACK_E_IO, path, "", "cannot write to its directory: %s", strerror(errno));
    free(folder);
    return status;
}

moepack_status run_write(const char *path, bool overwrite, const run_input *input, const run_result *result,
                         moepack_error *error)
{
    const output_tensor tensors[] = {
        {"y", MOEPACK_DTYPE_F32, result->hidden, result->y, false},
        {"s", MOEPACK_DTYPE_F32, result->expert_input, result->s, false},
        {"topk_ids", MOEPACK_DTYPE_I32, result->top_k, result->topk_ids, false},
        {"topk_weights", MOEPACK_DTYPE_F32, result->top_k, result->topk_weights, false},
        {"kept", MOEPACK_DTYPE_I32, 1, result->kept, true},
    };
    const size_t count = sizeof tensors / sizeof tensors[0];
    moepack_safetensors_writer *writer = NULL;
    moepack_status status = moepack_safetensors_create(path, overwrite, &writer, error);
    if (status != MOEPACK_OK) return status;
    for (size_t i = 0; i < count && status == MOEPACK_OK; i++) {
        if (tensors[i].data != NULL) status = declare(writer, input, &tensors[i], error);
    }
    for (size_t i = 0; i < count && status == MOEPACK_OK; i++) {
        if (tensors[i].data != NULL) status = append(writer, &tensors[i], result->tokens, error);
    }
    if (status == MOEPACK_OK) return moepack_safetensors_finish(writer, error);
    moepack_safetensors_abort(writer);
    return status;
}
