/* The C library against the container vectors of spec/vectors/.
 *
 * Usage: test_spec_vectors VECTOR_DIR WORK_DIR. Valid containers must open, list and verify. Each case of invalid.json
 * is applied to a copy of its base in WORK_DIR; opening and verify must answer with the verdict that the case names,
 * and at the point it names: "open" when the index alone must be refused, "directory" when the files are fine and their
 * place is not, "content" when the index is fine and a shard is not, "verify" when it must be refused there at the
 * latest. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "moepack/convert.h"
#include "moepack/format.h"
#include "moepack/runtime.h"

#define MAX_FILES 16

static const char *vector_dir, *work_dir;

/* ------------------------------------------------------------------------------------------------- containers in
 * memory */

struct file {
    char name[128];
    unsigned char *data;
    size_t size;
};

struct container {
    struct file files[MAX_FILES];
    size_t count;
};

static void join(char *out, size_t size, const char *a, const char *b)
{
    int n = snprintf(out, size, "%s/%s", a, b);
    assert_true(n > 0 && (size_t)n < size);
}

static void read_file(const char *path, struct file *file)
{
    FILE *in = fopen(path, "rb");
    if (!in) fail_msg("%s: %s", path, strerror(errno));
    assert_int_equal(fseek(in, 0, SEEK_END), 0);
    long size = ftell(in);
    assert_true(size >= 0);
    rewind(in);
    file->size = (size_t)size;
    file->data = malloc(file->size + 1);
    assert_non_null(file->data);
    assert_int_equal(fread(file->data, 1, file->size, in), file->size);
    fclose(in);
}

static void read_container(const char *name, struct container *out)
{
    char folder[1024], path[2048];
    join(folder, sizeof folder, vector_dir, "valid");
    join(path, sizeof path, folder, name);
    memcpy(folder, path, sizeof folder - 1);
    folder[sizeof folder - 1] = 0;
    DIR *dir = opendir(folder);
    if (!dir) fail_msg("%s: %s", folder, strerror(errno));
    out->count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        assert_true(out->count < MAX_FILES && strlen(entry->d_name) < sizeof out->files[0].name);
        struct file *file = &out->files[out->count++];
        strcpy(file->name, entry->d_name);
        join(path, sizeof path, folder, entry->d_name);
        read_file(path, file);
    }
    closedir(dir);
    assert_true(out->count > 0);
}

static void free_container(struct container *c)
{
    for (size_t i = 0; i < c->count; i++) free(c->files[i].data);
    c->count = 0;
}

static struct file *find_file(struct container *c, const char *name)
{
    for (size_t i = 0; i < c->count; i++)
        if (!strcmp(c->files[i].name, name)) return &c->files[i];
    return NULL;
}

/* Replaces `remove` bytes at `offset` by `size` bytes (zeros when data is NULL). */
static void splice(struct file *file, size_t offset, size_t remove, const unsigned char *data, size_t size)
{
    assert_true(offset <= file->size && remove <= file->size - offset);
    size_t rest = file->size - offset - remove;
    unsigned char *bytes = malloc(offset + size + rest + 1);
    assert_non_null(bytes);
    memcpy(bytes, file->data, offset);
    if (data)
        memcpy(bytes + offset, data, size);
    else
        memset(bytes + offset, 0, size);
    memcpy(bytes + offset + size, file->data + offset + remove, rest);
    free(file->data);
    file->data = bytes;
    file->size = offset + size + rest;
}

/* ------------------------------------------------------------------------------------------------- edits */

static size_t number(const json_t *edit, const char *key)
{
    const json_t *value = json_object_get(edit, key);
    assert_true(json_is_integer(value) && json_integer_value(value) >= 0);
    return (size_t)json_integer_value(value);
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    if (!value) fail_msg("a case has no %s", key);
    return value;
}

static unsigned nibble(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'a') + 10;
}

static unsigned char *from_hex(const char *hex, size_t *size)
{
    *size = strlen(hex) / 2;
    unsigned char *out = malloc(*size + 1);
    assert_non_null(out);
    for (size_t i = 0; i < *size; i++) out[i] = (unsigned char)(nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]));
    return out;
}

static void apply_copy(struct file *file, const json_t *edit)
{
    struct container other;
    read_container(text(edit, "container"), &other);
    struct file *from = find_file(&other, text(edit, "from"));
    assert_non_null(from);
    splice(file, 0, file->size, from->data, from->size);
    free_container(&other);
}

static void apply_edit(struct container *c, const json_t *edit)
{
    const char *op = text(edit, "op");
    struct file *file = find_file(c, text(edit, "file"));
    assert_non_null(file);
    if (!strcmp(op, "delete")) {
        free(file->data);
        *file = c->files[--c->count];
    } else if (!strcmp(op, "truncate")) {
        splice(file, number(edit, "length"), file->size - number(edit, "length"), NULL, 0);
    } else if (!strcmp(op, "insert_zeros")) {
        splice(file, number(edit, "offset"), 0, NULL, number(edit, "length"));
    } else if (!strcmp(op, "copy")) {
        apply_copy(file, edit);
    } else {
        size_t size;
        unsigned char *data = from_hex(text(edit, "hex"), &size);
        if (!strcmp(op, "replace"))
            splice(file, number(edit, "offset"), size, data, size);
        else if (!strcmp(op, "splice"))
            splice(file, number(edit, "offset"), number(edit, "remove"), data, size);
        else
            fail_msg("unknown edit %s", op);
        free(data);
    }
}

/* Removes what the last case left in the work directory; there are only plain files. */
static void clear_folder(const char *folder)
{
    char path[2048];
    DIR *dir = opendir(folder);
    if (!dir) return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        join(path, sizeof path, folder, entry->d_name);
        unlink(path);
    }
    closedir(dir);
}

static void write_container(const struct container *c, const char *folder)
{
    char path[2048];
    mkdir(work_dir, 0777);
    mkdir(folder, 0777);
    clear_folder(folder);
    for (size_t i = 0; i < c->count; i++) {
        join(path, sizeof path, folder, c->files[i].name);
        FILE *out = fopen(path, "wb");
        if (!out) fail_msg("%s: %s", path, strerror(errno));
        assert_int_equal(fwrite(c->files[i].data, 1, c->files[i].size, out), c->files[i].size);
        assert_int_equal(fclose(out), 0);
    }
}

/* ------------------------------------------------------------------------------------------------- the library's
 * verdicts */

static moepack_status status_of(const char *verdict)
{
    static const struct {
        const char *verdict;
        moepack_status status;
    } table[] = {{"ok", MOEPACK_OK},
                 {"corrupt", MOEPACK_E_CORRUPT},
                 {"incomplete", MOEPACK_E_INCOMPLETE},
                 {"unsupported", MOEPACK_E_UNSUPPORTED}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(verdict, table[i].verdict)) return table[i].status;
    fail_msg("unknown verdict %s", verdict);
    return MOEPACK_E_IO;
}

static moepack_status try_open(const char *path, moepack_error *error)
{
    moepack_pack *pack = NULL;
    moepack_status status = moepack_open(path, &pack, error);
    if ((status == MOEPACK_OK) != (pack != NULL)) fail_msg("moepack_open: status and handle contradict each other");
    moepack_close(pack);
    return status;
}

static moepack_status try_index(struct container *c, moepack_error *error)
{
    struct file *file = find_file(c, "index.mpk");
    if (!file) return MOEPACK_E_INCOMPLETE;
    /* An exact allocation, so that the sanitizer sees a read past the end. */
    unsigned char *exact = malloc(file->size ? file->size : 1);
    assert_non_null(exact);
    memcpy(exact, file->data, file->size);
    moepack_index *index = NULL;
    moepack_status status = moepack_index_open(exact, file->size, "index.mpk", &index, error);
    moepack_index_close(index);
    free(exact);
    return status;
}

static void count_finding(void *user, const moepack_finding *finding)
{
    (void)finding;
    ++*(size_t *)user;
}

static moepack_status try_verify(const char *path, size_t *findings, moepack_error *error)
{
    moepack_verify_options options;
    moepack_verify_report report;
    moepack_verify_options_init(&options);
    *findings = 0;
    options.jobs = 1;
    options.finding = count_finding;
    options.callbacks.user = findings;
    return moepack_verify(path, &options, &report, error);
}

static int mismatch(const char *name, const char *action, moepack_status found, moepack_status wanted,
                    const moepack_error *error)
{
    char why[1024] = "";
    if (found != MOEPACK_OK) moepack_error_format(error, why, sizeof why);
    print_error("%s: %s says %s instead of %s: %s\n", name, action, moepack_status_name(found),
                moepack_status_name(wanted), why);
    return 1;
}

static int run_case(const json_t *entry)
{
    const char *name = text(entry, "name"), *at = text(entry, "at");
    moepack_status wanted = status_of(text(entry, "verdict"));
    struct container c;
    char folder[1024];
    read_container(text(entry, "base"), &c);
    size_t i;
    const json_t *edit;
    json_array_foreach(json_object_get(entry, "edits"), i, edit) apply_edit(&c, edit);
    const char *directory = json_string_value(json_object_get(entry, "directory"));
    join(folder, sizeof folder, work_dir, directory ? directory : "case");
    write_container(&c, folder);

    int wrong = 0;
    size_t findings;
    moepack_error error = {0};
    moepack_status index = try_index(&c, &error);
    moepack_status expected_open = !strcmp(at, "content") ? MOEPACK_OK : wanted;
    moepack_status expected_index = !strcmp(at, "directory") ? MOEPACK_OK : expected_open;
    if (strcmp(at, "verify") && index != expected_index)
        wrong |= mismatch(name, "moepack_index_open", index, expected_index, &error);
    moepack_status opened = try_open(folder, &error);
    if (strcmp(at, "verify") && opened != expected_open)
        wrong |= mismatch(name, "moepack_open", opened, expected_open, &error);
    moepack_status verified = try_verify(folder, &findings, &error);
    if (verified != wanted) wrong |= mismatch(name, "moepack_verify", verified, wanted, &error);
    free_container(&c);
    return wrong;
}

/* ------------------------------------------------------------------------------------------------- tests */

/* Walks every table through the getters. */
static void list_index(const moepack_index *index)
{
    char label[MOEPACK_LABEL_MAX], name[512];
    uint64_t sections = 0;
    for (uint32_t b = 0; b < moepack_index_blocks(index); b++) {
        moepack_block block;
        moepack_policy policy;
        uint32_t overrides;
        moepack_index_block(index, b, &block);
        moepack_index_label(index, b, label);
        assert_int_equal(moepack_index_find_block(index, label), b);
        assert_int_equal(moepack_index_policy(index, block.policy, &policy, &overrides, NULL), MOEPACK_OK);
        assert_int_equal(moepack_policy_check(&policy, block.experts, NULL), MOEPACK_OK);
        for (uint32_t e = 0; e < block.experts; e++) {
            moepack_record record;
            moepack_index_record(index, block.first_record + e, &record);
            if (record.shard == MOEPACK_NO_SHARD) continue;
            uint32_t first, count;
            moepack_index_schema(index, record.schema, &first, &count);
            assert_int_equal(record.first_section, sections);
            for (uint32_t s = 0; s < count; s++)
                assert_true(moepack_index_section_name(index, b, e, s, name, sizeof name) < sizeof name);
            sections += count;
        }
    }
    for (uint32_t t = 0; t < moepack_index_tensors(index); t++) {
        moepack_tensor tensor;
        moepack_index_tensor(index, t, &tensor);
        assert_int_not_equal(moepack_index_find_tensor(index, tensor.name.data, tensor.name.length), UINT32_MAX);
    }
    assert_int_equal(sections + moepack_index_tensors(index) + moepack_index_source_files(index),
                     moepack_index_sections(index));
}

static void valid_containers(void **state)
{
    (void)state;
    char valid[1024], path[2048];
    join(valid, sizeof valid, vector_dir, "valid");
    DIR *dir = opendir(valid);
    assert_non_null(dir);
    size_t count = 0;
    int wrong = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        join(path, sizeof path, valid, entry->d_name);
        count++;
        moepack_pack *pack = NULL;
        moepack_error error = {0};
        size_t findings;
        moepack_status status = moepack_open(path, &pack, &error);
        if (status != MOEPACK_OK) {
            wrong |= mismatch(entry->d_name, "moepack_open", status, MOEPACK_OK, &error);
            continue;
        }
        list_index(moepack_pack_index(pack));
        moepack_close(pack);
        status = try_verify(path, &findings, &error);
        if (status != MOEPACK_OK || findings)
            wrong |= mismatch(entry->d_name, "moepack_verify", status, MOEPACK_OK, &error);
    }
    closedir(dir);
    assert_true(count >= 7);
    assert_int_equal(wrong, 0);
}

static void invalid_cases(void **state)
{
    (void)state;
    char path[1024];
    json_error_t why;
    join(path, sizeof path, vector_dir, "invalid.json");
    json_t *cases = json_load_file(path, 0, &why);
    if (!cases) fail_msg("%s: %s", path, why.text);
    size_t i;
    int wrong = 0;
    const json_t *entry;
    json_array_foreach(cases, i, entry) wrong += run_case(entry);
    print_message("%zu cases, %d with a wrong verdict\n", json_array_size(cases), wrong);
    assert_true(json_array_size(cases) > 300);
    json_decref(cases);
    assert_int_equal(wrong, 0);
}

/* Padding and hashes cover every byte of a shard: any flip must be found. One in 61, so that every residue of a page
 * and of a word comes up; verify of the whole container each time. */
static void flipped_bytes(void **state)
{
    (void)state;
    struct container c;
    char folder[1024];
    read_container("minimal", &c);
    join(folder, sizeof folder, work_dir, "case");
    int wrong = 0;
    for (size_t f = 0; f < c.count; f++)
        for (size_t at = 0; at < c.files[f].size; at += at < 128 ? 1 : 61) {
            if (at >= 24 && at < 32) continue; /* may-ignore bits; their hash is covered by the other offsets */
            size_t findings;
            moepack_error error = {0};
            c.files[f].data[at] ^= 0x20;
            write_container(&c, folder);
            moepack_status status = try_verify(folder, &findings, &error);
            if (status != MOEPACK_E_CORRUPT) {
                print_error("%s at %zu: ", c.files[f].name, at);
                wrong |= mismatch("flip", "moepack_verify", status, MOEPACK_E_CORRUPT, &error);
            }
            c.files[f].data[at] ^= 0x20;
        }
    free_container(&c);
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s VECTOR_DIR WORK_DIR\n", argv[0]);
        return 2;
    }
    vector_dir = argv[1];
    work_dir = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_containers),
        cmocka_unit_test(invalid_cases),
        cmocka_unit_test(flipped_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
