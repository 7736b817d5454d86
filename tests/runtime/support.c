#include "support.h"

#include "io/io.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void assert_status(moepack_status found, moepack_status wanted, const moepack_error *error)
{
    if (found == wanted) return;
    char text[1400];
    moepack_error_format(error, text, sizeof text);
    fail_msg("status %d, wanted %d: %s", (int)found, (int)wanted, text);
}

void assert_ok(moepack_status status, const moepack_error *error)
{
    assert_status(status, MOEPACK_OK, error);
}

void assert_mentions(const moepack_error *error, const char *text)
{
    char line[1400];
    moepack_error_format(error, line, sizeof line);
    if (strstr(line, text) == NULL) fail_msg("\"%s\" is not in: %s", text, line);
}

void new_dir(char *buf, const char *parent)
{
    if (parent == NULL) parent = getenv("TMPDIR");
    if (parent == NULL || parent[0] == '\0') parent = "/tmp";
    snprintf(buf, 256, "%s/moepack-runtime-XXXXXX", parent);
    assert_non_null(mkdtemp(buf));
}

void make_dir(const char *path)
{
    moepack_error error = {0};
    assert_ok(mpk_dir_make(path, &error), &error);
}

void remove_tree(const char *path)
{
    moepack_error error = {0};
    assert_ok(mpk_tree_remove(path, &error), &error);
}

static void copy_file(const char *from, const char *to)
{
    moepack_error error = {0};
    void *data;
    size_t size;
    assert_ok(mpk_file_read_all(from, UINT64_MAX / 4, &data, &size, &error), &error);
    FILE *f = fopen(to, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    free(data);
}

void copy_tree(const char *from, const char *to)
{
    moepack_error error = {0};
    mpk_file_list list = {0};
    make_dir(to);
    assert_ok(mpk_dir_list(from, &list, &error), &error);
    for (size_t i = 0; i < list.count; i++) {
        char source[512], target[512];
        snprintf(source, sizeof source, "%s/%s", from, list.name[i]);
        snprintf(target, sizeof target, "%s/%s", to, list.name[i]);
        copy_file(source, target);
    }
    mpk_file_list_free(&list);
}

void flip_byte(const char *dir, const char *name, uint64_t offset, uint8_t mask)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)offset, SEEK_SET), 0);
    const int byte = fgetc(f);
    assert_true(byte != EOF);
    assert_int_equal(fseek(f, (long)offset, SEEK_SET), 0);
    assert_true(fputc(byte ^ mask, f) != EOF);
    assert_int_equal(fclose(f), 0);
}

void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

void session_plan(session *s, const char *path, const char *placement, uint32_t ranks, uint32_t rank,
                  const moepack_plan_options *options)
{
    memset(s, 0, sizeof *s);
    assert_ok(moepack_open(path, &s->pack, &s->error), &s->error);
    assert_ok(
        moepack_placement_create(s->pack, placement == NULL ? "linear" : placement, ranks, &s->placement, &s->error),
        &s->error);
    assert_ok(moepack_plan_create(s->pack, s->placement, rank, options, &s->plan, &s->error), &s->error);
}

moepack_status session_load(session *s, uint32_t rank, moepack_io io, moepack_check check)
{
    moepack_load_options options;
    moepack_load_options_init(&options);
    options.io = io;
    options.check = check;
    return moepack_load_create(s->pack, s->placement, rank, s->plan, &options, &s->load, &s->report, &s->error);
}

void session_close(session *s)
{
    moepack_load_free(s->load);
    moepack_plan_free(s->plan);
    moepack_placement_free(s->placement);
    moepack_close(s->pack);
    memset(s, 0, sizeof *s);
}

void place_of(const moepack_pack *pack, uint32_t block, uint32_t expert, uint32_t s, char name[128],
              moepack_section *section)
{
    const moepack_index *index = moepack_pack_index(pack);
    moepack_block b;
    moepack_record record;
    moepack_shard shard;
    moepack_index_block(index, block, &b);
    moepack_index_record(index, b.first_record + expert, &record);
    moepack_index_shard(index, record.shard, &shard);
    moepack_index_section(index, record.first_section + s, section);
    snprintf(name, 128, "%.*s", (int)shard.name.length, shard.name.data);
}
