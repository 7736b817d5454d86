/* Names: who may publish under one, what may be replaced, what is refused before anything is written, and what a source
 * directory holds besides files. */
#include "test_pack_files.h"

#include "io/io.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 8

static void refuses(const char *source, const char *out, const moepack_convert_options *options, moepack_status wanted,
                    const char *text)
{
    moepack_error error;
    assert_status(moepack_convert(source, out, options, NULL, &error), wanted, &error, text);
}

/* ---- several at once ---- */

typedef moepack_status (*job)(const char *out, bool overwrite);

static moepack_status convert_job(const char *out, bool overwrite)
{
    moepack_convert_options options = options_of(MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, 0, 1);
    options.overwrite = overwrite;
    return moepack_convert(TINY, out, &options, NULL, NULL);
}

static const char *pack;

static moepack_status export_job(const char *out, bool overwrite)
{
    moepack_export_options options;
    moepack_export_options_init(&options);
    options.overwrite = overwrite;
    options.jobs = 1;
    return moepack_export(pack, out, &options, NULL, NULL);
}

/* Runs the job in PROCESSES processes that start together; returns how many succeeded. All others must be REFUSED. */
static unsigned run_together(job work, const char *out, bool overwrite)
{
    int start[2];
    pid_t child[PROCESSES];
    char byte;
    unsigned succeeded = 0;
    assert_int_equal(pipe(start), 0);
    for (unsigned i = 0; i < PROCESSES; i++) {
        child[i] = fork();
        assert_true(child[i] >= 0);
        if (child[i] > 0) continue;
        close(start[1]);
        if (read(start[0], &byte, 1) != 0) _exit(99); /* until the parent closes its end */
        _exit((int)work(out, overwrite));
    }
    close(start[0]);
    close(start[1]);
    for (unsigned i = 0; i < PROCESSES; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == MOEPACK_OK)
            succeeded++;
        else
            assert_int_equal(WEXITSTATUS(status), MOEPACK_E_REFUSED);
    }
    return succeeded;
}

static void one_of_many_conversions_succeeds(void **state)
{
    (void)state;
    moepack_error error;
    for (unsigned round = 0; round < 5; round++) {
        const char *out = at(round % 2 ? "new/deep/together.moepack" : "together.moepack");
        assert_int_equal(run_together(convert_job, out, false), 1);
        assert_status(moepack_verify(out, NULL, NULL, &error), MOEPACK_OK, &error, "");
        remove_tree(out);
        assert_false(exists(at("together.moepack.partial")));
        if (round % 2) assert_int_equal(rmdir(at("new/deep")), 0); /* nothing else is left in it */
        if (round % 2) assert_int_equal(rmdir(at("new")), 0);
    }
    for (unsigned round = 0; round < 3; round++) {
        const char *out = at("replaced.moepack");
        convert_to(QUANT, out, NULL, NULL);
        assert_true(run_together(convert_job, out, true) >= 1);
        assert_same_tree(pack, out);
        assert_false(exists(at("replaced.moepack.partial")));
        assert_false(exists(at("replaced.moepack.old")));
        remove_tree(out);
    }
}

static void one_of_many_exports_succeeds(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 5; round++) {
        assert_int_equal(run_together(export_job, at("back"), false), 1);
        assert_same_tree(TINY, at("back"));
        assert_true(run_together(export_job, at("back"), true) >= 1);
        assert_same_tree(TINY, at("back"));
        remove_tree(at("back"));
        assert_false(exists(at("back.partial")));
        assert_false(exists(at("back.old")));
    }
}

/* Another directory takes the place of one of ours, or of the output, while it is written. */
static const char *stolen, *thief;
static unsigned writes;

static int steal(const char *operation, const char *path)
{
    (void)path;
    if (strcmp(operation, "write") != 0 || writes++ != 3) return 0;
    char aside[512];
    snprintf(aside, sizeof aside, "%s.aside", stolen);
    if (exists(stolen) && rename(stolen, aside) != 0) return EIO;
    return rename(thief, stolen) == 0 ? 0 : EIO;
}

static void nothing_of_others_is_touched(void **state)
{
    (void)state;
    const char *const stolen_names[] = {at("mine.moepack"), at("mine.moepack.partial")};
    moepack_convert_options options = options_of(MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, 0, 1);
    for (size_t i = 0; i < 2; i++) {
        moepack_error error;
        stolen = stolen_names[i];
        thief = at("thief");
        assert_int_equal(mkdir(thief, 0777), 0);
        write_file(at2(thief, "work"), "theirs", 6);
        writes = 0;
        mpk_fault_hook_set(steal);
        moepack_status status = moepack_convert(TINY, at("mine.moepack"), &options, NULL, &error);
        mpk_fault_hook_set(NULL);
        assert_int_not_equal(status, MOEPACK_OK);
        assert_int_equal(size_of(at2(stolen, "work")), 6);
        if (i == 0) {
            assert_status(status, MOEPACK_E_REFUSED, &error, "exists already");
            assert_false(exists(at("mine.moepack.partial")));
        } else {
            assert_false(exists(at("mine.moepack")));
            remove_tree(at("mine.moepack.partial.aside"));
        }
        remove_tree(stolen);
    }
}

/* ---- replacing ---- */

static void foreign_files_are_not_replaced(void **state)
{
    (void)state;
    const char *out = at("own.moepack");
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.overwrite = true;
    static const char *const strays[] = {"other.mpk", "experts-9999-9999.mpk", ".hidden"};
    convert_to(TINY, out, &options, NULL);
    for (size_t i = 0; i < 3; i++) {
        write_file(at2(out, strays[i]), "x", 1);
        refuses(QUANT, out, &options, MOEPACK_E_REFUSED, strays[i]);
        assert_int_equal(size_of(at2(out, strays[i])), 1);
        remove(at2(out, strays[i]));
    }
    assert_same_tree(pack, out);
    /* A directory under the name of a shard is not one of ours. */
    remove(at2(out, "trunk-000.mpk"));
    assert_int_equal(mkdir(at2(out, "trunk-000.mpk"), 0777), 0);
    write_file(at2(out, "trunk-000.mpk/work"), "x", 1);
    refuses(QUANT, out, &options, MOEPACK_E_REFUSED, "trunk-000.mpk");
    assert_true(exists(at2(out, "trunk-000.mpk/work")));
    remove_tree(at2(out, "trunk-000.mpk"));
    /* A shard that is missing takes nothing from that. */
    convert_to(QUANT, out, &options, NULL);
    remove_tree(out);
}

static unsigned renames;

static int no_swap(const char *operation, const char *path)
{
    (void)path;
    return strcmp(operation, "rename") == 0 && renames++ == 0 ? EINVAL : 0;
}

static void replaces_without_swapping_names(void **state)
{
    (void)state;
    const char *out = at("plain.moepack");
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.overwrite = true;
    convert_to(QUANT, out, &options, NULL);
    renames = 0;
    mpk_fault_hook_set(no_swap);
    convert_to(TINY, out, &options, NULL);
    mpk_fault_hook_set(NULL);
    assert_int_equal(renames, 3);
    assert_same_tree(pack, out);
    assert_false(exists(at("plain.moepack.old")));
    remove_tree(out);
}

static void an_interrupted_replacement_is_explained(void **state)
{
    (void)state;
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.overwrite = true;
    assert_int_equal(mkdir(at("killed.moepack.partial"), 0777), 0);
    assert_int_equal(mkdir(at("killed.moepack.old"), 0777), 0);
    refuses(TINY, at("killed.moepack"), &options, MOEPACK_E_REFUSED, "killed.moepack.old");
    refuses(TINY, at("killed.moepack"), &options, MOEPACK_E_REFUSED, "killed.moepack.partial");
    assert_int_equal(rmdir(at("killed.moepack.partial")), 0);
    assert_int_equal(rmdir(at("killed.moepack.old")), 0);
}

static char parent[512];

static int no_parent_sync(const char *operation, const char *path)
{
    return strcmp(operation, "sync") == 0 && strcmp(path, parent) == 0 ? EIO : 0;
}

static void uncertain_durability_is_said(void **state)
{
    (void)state;
    moepack_error error;
    const char *out = at("unsure.moepack");
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.overwrite = true;
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(out, '/') - out), out);
    for (unsigned replace = 0; replace < 2; replace++) {
        mpk_fault_hook_set(no_parent_sync);
        moepack_status status = moepack_convert(TINY, out, &options, NULL, &error);
        mpk_fault_hook_set(NULL);
        assert_status(status, MOEPACK_E_IO, &error, "it is there and complete, but may not outlast");
        assert_string_equal(error.file, out);
        assert_same_tree(pack, out);
        assert_false(exists(at("unsure.moepack.partial")));
        assert_int_equal(exists(at("unsure.moepack.old")), replace); /* kept until the new one is certain */
    }
    remove_tree(at("unsure.moepack.old"));
    remove_tree(out);
}

/* ---- names ---- */

static void unusable_names_are_refused(void **state)
{
    (void)state;
    moepack_error error;
    static const struct {
        const char *name, *text;
    } names[] = {{"x.partial", ".partial"}, {"x.partial/", ".partial"},          {"x.old", ".old"},
                 {"o12/.", "'.'"},          {"nosuch/../o11", "does not exist"}, {"o12/..", ""}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        refuses(TINY, at(names[i].name), NULL, MOEPACK_E_USAGE, names[i].text);
        assert_status(moepack_export(pack, at(names[i].name), NULL, NULL, &error), MOEPACK_E_USAGE, &error,
                      names[i].text);
    }
    static const char *const untouched[] = {"x.partial", "x.partial.partial", "x.old", "o12", "nosuch", "o11"};
    for (size_t i = 0; i < sizeof untouched / sizeof *untouched; i++) assert_false(exists(at(untouched[i])));
    refuses("", at("x.moepack"), NULL, MOEPACK_E_USAGE, "source's name is empty");
    refuses(TINY, "", NULL, MOEPACK_E_USAGE, "output's name is empty");
    assert_status(moepack_export("", at("x"), NULL, NULL, &error), MOEPACK_E_USAGE, &error, "name is empty");
    assert_status(moepack_export(pack, "", NULL, NULL, &error), MOEPACK_E_USAGE, &error, "name is empty");
    assert_status(moepack_verify("", NULL, NULL, &error), MOEPACK_E_USAGE, &error, "name is empty");
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.policy_count = 1;
    refuses(TINY, at("x.moepack"), &options, MOEPACK_E_USAGE, "policy");
}

static int full_disk(const char *operation, const char *path)
{
    (void)path;
    return strcmp(operation, "write") == 0 ? ENOSPC : 0;
}

static void parents_are_taken_away_again(void **state)
{
    (void)state;
    assert_int_equal(mkdir(at("kept"), 0777), 0);
    mpk_fault_hook_set(full_disk);
    moepack_error error;
    moepack_status status = moepack_convert(TINY, at("kept/new/deep/x.moepack"), NULL, NULL, &error);
    mpk_fault_hook_set(NULL);
    assert_status(status, MOEPACK_E_REFUSED, &error, "");
    assert_true(exists(at("kept"))); /* empty, but not made by that call */
    assert_false(exists(at("kept/new")));
    refuses(at("nowhere"), at("kept/new/x.moepack"), NULL, MOEPACK_E_INCOMPLETE, "nowhere");
    assert_false(exists(at("kept/new")));
}

/* ---- what is no file of the source ---- */

typedef struct warnings {
    unsigned count;
    char text[4096];
} warnings;

static void take_warning(void *user, const char *line)
{
    warnings *w = user;
    size_t length = strlen(w->text);
    w->count++;
    snprintf(w->text + length, sizeof w->text - length, "%s\n", line);
}

static void what_is_left_out_is_said(void **state)
{
    (void)state;
    warnings w = {0};
    const char *source = at("odd-source"), *out = at("odd.moepack");
    moepack_convert_options options;
    moepack_convert_report report;
    moepack_convert_options_init(&options);
    options.callbacks = (moepack_callbacks){.warn = take_warning, .user = &w};
    copy_tree(TINY, source);
    write_file(at2(source, ".gitattributes"), "x", 1);
    write_file(at2(source, "figures/.later"), "x", 1);
    assert_int_equal(mkfifo(at2(source, "pipe"), 0600), 0);
    assert_int_equal(symlink("nowhere", at2(source, "dangling")), 0);
    assert_int_equal(symlink("figures", at2(source, "link")), 0);
    copy_tree(pack, at2(source, "old.moepack"));
    convert_to(source, out, &options, &report);
    assert_int_equal(w.count, 5);
    assert_int_equal(report.warnings, 5);
    static const char *const lines[] = {
        "entries left out (hidden): 2, the first is .gitattributes\n",
        "entries left out (neither files nor directories): 1, the first is pipe\n",
        "entries left out (links to nothing): 1, the first is dangling\n",
        "entries left out (links to directories): 1, the first is link\n",
        "old.moepack/index.mpk",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(w.text, lines[i])) fail_msg("not said: %s; but: %s", lines[i], w.text);
    remove_tree(out);
    remove_tree(source);
}

static int setup(void **state)
{
    if (setup_dir(state) != 0) return -1;
    pack = at("tiny.moepack");
    return moepack_convert(TINY, pack, NULL, NULL, NULL) == MOEPACK_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_many_conversions_succeeds), cmocka_unit_test(one_of_many_exports_succeeds),
        cmocka_unit_test(nothing_of_others_is_touched),     cmocka_unit_test(foreign_files_are_not_replaced),
        cmocka_unit_test(replaces_without_swapping_names),  cmocka_unit_test(an_interrupted_replacement_is_explained),
        cmocka_unit_test(uncertain_durability_is_said),     cmocka_unit_test(unusable_names_are_refused),
        cmocka_unit_test(parents_are_taken_away_again),     cmocka_unit_test(what_is_left_out_is_said),
    };
    return cmocka_run_group_tests(tests, setup, teardown_dir);
}
