#include "test_source_files.h"

#include "io/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *make_dir(void)
{
    static char path[256];
    const char *base = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.200s/moepack-test-XXXXXX", base ? base : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

void remove_dir(const char *dir)
{
    assert_int_equal(mpk_tree_remove(dir, NULL), MOEPACK_OK);
}

const char *in_dir(const char *dir, const char *name)
{
    static char buffers[8][512];
    static unsigned next;
    char *buffer = buffers[next++ % 8];
    snprintf(buffer, sizeof buffers[0], "%s/%s", dir, name);
    return buffer;
}

void write_bytes(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (size) assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

void write_safetensors(const char *path, uint64_t length_word, const char *header, size_t header_size, size_t data)
{
    if (length_word == UINT64_MAX) length_word = header_size;
    uint8_t *bytes = malloc(8 + header_size + data);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(length_word >> (8 * i));
    memcpy(bytes + 8, header, header_size);
    for (size_t i = 0; i < data; i++) bytes[8 + header_size + i] = (uint8_t)i;
    write_bytes(path, bytes, 8 + header_size + data);
    free(bytes);
}

char *read_text(const char *path, size_t *size)
{
    void *data;
    moepack_error error;
    expect_ok(mpk_file_read_all(path, UINT32_MAX, &data, size, &error), &error);
    return data;
}

void expect_ok(moepack_status status, const moepack_error *error)
{
    char text[1024];
    if (status == MOEPACK_OK) return;
    moepack_error_format(error, text, sizeof text);
    fail_msg("status %d: %s", (int)status, text);
}

void expect_error(moepack_status found, moepack_status wanted, const moepack_error *error, const char *part)
{
    char text[1024] = "";
    if (found != MOEPACK_OK) moepack_error_format(error, text, sizeof text);
    if (found != wanted) fail_msg("status %d instead of %d: %s", (int)found, (int)wanted, text);
    assert_int_equal(error->status, wanted);
    if (!strstr(text, part)) fail_msg("\"%s\" is not in: %s", part, text);
}
