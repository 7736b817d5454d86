#include "test_pack_files.h"

#include "io/io.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char base[64];

int setup_dir(void **state)
{
    (void)state;
    snprintf(base, sizeof base, "/tmp/moepack-test-XXXXXX");
    return mkdtemp(base) ? 0 : -1;
}

/* All paths handed out; they live until the end of the program's tests. */
static char **paths;
static size_t path_count;

int teardown_dir(void **state)
{
    (void)state;
    mpk_fault_hook_set(NULL);
    for (size_t i = 0; i < path_count; i++) free(paths[i]);
    free(paths);
    paths = NULL;
    path_count = 0;
    return mpk_tree_remove(base, NULL) == MOEPACK_OK ? 0 : -1;
}

const char *at2(const char *directory, const char *name)
{
    char *path = mpk_path_join(directory, name);
    char **more = realloc(paths, (path_count + 1) * sizeof *paths);
    assert_non_null(path);
    assert_non_null(more);
    paths = more;
    paths[path_count++] = path;
    return path;
}

const char *at(const char *name)
{
    return at2(base, name);
}

bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

uint64_t size_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}

char *read_file(const char *path, size_t *size)
{
    moepack_error error;
    void *data;
    moepack_status status = mpk_file_read_all(path, SIZE_MAX / 2, &data, size, &error);
    assert_status(status, MOEPACK_OK, &error, "");
    return data;
}

void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wbe");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

void copy_file(const char *from, const char *to)
{
    size_t size;
    char *bytes = read_file(from, &size);
    write_file(to, bytes, size);
    free(bytes);
}

void copy_tree(const char *from, const char *to)
{
    moepack_error error;
    mpk_file_list list;
    assert_status(mpk_dir_list(from, &list, &error), MOEPACK_OK, &error, "");
    assert_status(mpk_dir_make(to, &error), MOEPACK_OK, &error, "");
    for (size_t i = 0; i < list.count; i++) {
        char *target = mpk_path_join(to, list.name[i]), *source = mpk_path_join(from, list.name[i]);
        char *slash = strrchr(target, '/');
        *slash = '\0';
        assert_status(mpk_dir_make(target, &error), MOEPACK_OK, &error, "");
        *slash = '/';
        copy_file(source, target);
        free(target);
        free(source);
    }
    mpk_file_list_free(&list);
}

void remove_tree(const char *path)
{
    moepack_error error;
    assert_status(mpk_tree_remove(path, &error), MOEPACK_OK, &error, "");
}

void flip(const char *path, uint64_t offset, uint8_t mask)
{
    uint8_t byte;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= mask;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    close(fd);
}

void truncate_to(const char *path, uint64_t size)
{
    assert_int_equal(truncate(path, (off_t)size), 0);
}

void append_byte(const char *path, uint8_t byte)
{
    FILE *file = fopen(path, "abe");
    assert_non_null(file);
    assert_int_equal(fputc(byte, file), byte);
    assert_int_equal(fclose(file), 0);
}

void assert_same_tree(const char *a, const char *b)
{
    moepack_error error;
    mpk_file_list left, right;
    assert_status(mpk_dir_list(a, &left, &error), MOEPACK_OK, &error, "");
    assert_status(mpk_dir_list(b, &right, &error), MOEPACK_OK, &error, "");
    assert_int_equal(left.count, right.count);
    assert_true(left.count > 0);
    for (size_t i = 0; i < left.count; i++) {
        assert_string_equal(left.name[i], right.name[i]);
        size_t left_size, right_size;
        char *p = mpk_path_join(a, left.name[i]), *q = mpk_path_join(b, left.name[i]);
        char *x = read_file(p, &left_size), *y = read_file(q, &right_size);
        if (left_size != right_size || memcmp(x, y, left_size) != 0) fail_msg("%s and %s differ", p, q);
        free(x);
        free(y);
        free(p);
        free(q);
    }
    mpk_file_list_free(&left);
    mpk_file_list_free(&right);
}

unsigned replace_in_file(const char *path, const char *from, const char *to)
{
    assert_int_equal(strlen(from), strlen(to));
    size_t size, length = strlen(from);
    unsigned found = 0;
    char *bytes = read_file(path, &size);
    for (size_t i = 0; i + length <= size; i++)
        if (memcmp(bytes + i, from, length) == 0) {
            memcpy(bytes + i, to, length);
            found++;
        }
    write_file(path, bytes, size);
    free(bytes);
    return found;
}

void assert_status(moepack_status status, moepack_status wanted, const moepack_error *error, const char *text)
{
    char line[2048] = "";
    if (status != MOEPACK_OK) moepack_error_format(error, line, sizeof line);
    if (status != wanted) fail_msg("status %d where %d was expected: %s", (int)status, (int)wanted, line);
    if (text[0] && !strstr(line, text)) fail_msg("\"%s\" does not occur in: %s", text, line);
}

moepack_convert_options options_of(moepack_layout layout, moepack_shard_by by, uint64_t shard_size, unsigned jobs)
{
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.layout = layout;
    options.shard_by = by;
    options.shard_size = shard_size;
    options.jobs = jobs;
    return options;
}

void convert_to(const char *source, const char *out, const moepack_convert_options *options,
                moepack_convert_report *report)
{
    moepack_error error;
    moepack_convert_report unused;
    assert_status(moepack_convert(source, out, options, report ? report : &unused, &error), MOEPACK_OK, &error, "");
}

static void collect(void *user, const moepack_finding *finding)
{
    findings *found = user;
    if (found->count < sizeof found->item / sizeof *found->item) found->item[found->count] = *finding;
    found->count++;
}

moepack_status verify_into(const char *pack, const moepack_verify_options *options, findings *found,
                           moepack_verify_report *report, moepack_error *error)
{
    moepack_verify_options mine;
    moepack_verify_report unused;
    if (options)
        mine = *options;
    else
        moepack_verify_options_init(&mine);
    found->count = 0;
    mine.finding = collect;
    mine.callbacks.user = found;
    return moepack_verify(pack, &mine, report ? report : &unused, error);
}

moepack_index *open_index(const char *pack, void **bytes)
{
    moepack_error error;
    moepack_index *index;
    size_t size;
    *bytes = read_file(at2(pack, "index.mpk"), &size);
    assert_status(moepack_index_open(*bytes, size, "index.mpk", &index, &error), MOEPACK_OK, &error, "");
    return index;
}

void find_section(const moepack_index *index, uint32_t block, uint32_t expert, uint32_t s, section_at *out)
{
    moepack_block b;
    moepack_record record;
    moepack_shard shard;
    moepack_index_block(index, block, &b);
    moepack_index_record(index, b.first_record + expert, &record);
    moepack_index_shard(index, record.shard, &shard);
    moepack_index_section(index, record.first_section + s, &out->section);
    moepack_index_section_name(index, block, expert, s, out->name, sizeof out->name);
    moepack_index_label(index, block, out->label);
    snprintf(out->file, sizeof out->file, "%.*s", (int)shard.name.length, shard.name.data);
}
