#include "tensor_file.h"

#include "moepack/convert.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

static double element(moepack_dtype dtype, const uint8_t *p)
{
    uint32_t bits32;
    float f32;
    double f64;
    int32_t i32;
    switch (dtype) {
    case MOEPACK_DTYPE_F64:
        memcpy(&f64, p, 8);
        return f64;
    case MOEPACK_DTYPE_F32:
        memcpy(&f32, p, 4);
        return (double)f32;
    case MOEPACK_DTYPE_I32:
        memcpy(&i32, p, 4);
        return (double)i32;
    case MOEPACK_DTYPE_BF16:
        bits32 = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
        memcpy(&f32, &bits32, 4);
        return (double)f32;
    default:
        fail_msg("unexpected dtype %d", (int)dtype);
        return 0;
    }
}

values read_tensor(const char *file, const char *name)
{
    char path[500];
    moepack_error error = {0};
    moepack_safetensors *st = NULL;
    moepack_safetensors_tensor t;
    values v = {0};
    snprintf(path, sizeof path, "%s/%s", MOEPACK_FIXTURES, file);
    assert_ok(moepack_safetensors_open(path, &st, &error), &error);
    const size_t i = moepack_safetensors_find(st, name);
    if (i == SIZE_MAX) fail_msg("%s has no tensor %s", file, name);
    moepack_safetensors_get(st, i, &t);
    assert_true(t.rank <= 3);
    v.rank = t.rank;
    memcpy(v.dims, t.dims, t.rank * sizeof *v.dims);
    const size_t width = moepack_dtype_bits(t.dtype) / 8;
    v.count = (size_t)t.length / width;
    v.at = calloc(v.count + 1, sizeof *v.at);
    uint8_t *bytes = malloc((size_t)t.length + 1);
    assert_true(v.at != NULL && bytes != NULL);
    assert_ok(moepack_safetensors_read(st, i, 0, bytes, (size_t)t.length, &error), &error);
    for (size_t e = 0; e < v.count; e++) v.at[e] = element(t.dtype, bytes + e * width);
    free(bytes);
    moepack_safetensors_close(st);
    return v;
}
