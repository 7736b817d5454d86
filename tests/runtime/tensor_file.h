/* Tensors of the fixtures' golden files. */
#ifndef TESTS_RUNTIME_TENSOR_FILE_H
#define TESTS_RUNTIME_TENSOR_FILE_H

#include <stddef.h>
#include <stdint.h>

/* A tensor of a golden file, converted to double (every dtype used there fits). */
typedef struct values {
    double *at;
    size_t count;
    uint64_t dims[3];
    uint32_t rank;
} values;

/* `file` is relative to the fixtures. Fails the test if it cannot be read. `at` is freed with free(). */
values read_tensor(const char *file, const char *name);

#endif
