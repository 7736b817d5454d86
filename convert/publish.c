/* Work in OUT.partial, then one durable rename. Nothing that this process did not create is ever removed or replaced.
 */
#include "publish.h"

#include "error.h"
#include "io/io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* malloc'ed absolute path without links; of a path that does not exist yet, its nearest existing ancestor's plus the
 * rest. */
static char *absolute(const char *path)
{
    char *head = strdup(path), *real = NULL;
    size_t cut = head ? strlen(head) : 0;
    while (head && !(real = realpath(cut ? head : ".", NULL))) {
        if (errno != ENOENT || cut == 0) break;
        while (cut > 0 && head[cut - 1] != '/') cut--;
        while (cut > 1 && head[cut - 1] == '/') cut--;
        head[cut] = '\0';
    }
    free(head);
    if (!real) return NULL;
    const char *rest = path + cut;
    while (*rest == '/') rest++;
    char *whole = *rest ? mpk_path_join(real, rest) : strdup(real);
    free(real);
    return whole;
}

static bool inside(const char *inner, const char *outer)
{
    size_t length = strlen(outer);
    while (length > 0 && outer[length - 1] == '/') length--;
    return strncmp(inner, outer, length) == 0 && (inner[length] == '\0' || inner[length] == '/');
}

/* Of a resolved path only what does not exist yet can still hold "..": where that leads is not known. */
static bool climbs(const char *path)
{
    for (const char *at = path; (at = strstr(at, "/.."));) {
        at += 3;
        if (*at == '/' || *at == '\0') return true;
    }
    return false;
}

static moepack_status check_apart(const char *out, const char *source, moepack_error *error)
{
    char *a = absolute(out), *b = absolute(source);
    moepack_status status = MOEPACK_OK;
    /* A name that cannot be resolved fails later, with the system's reason. */
    if (a && climbs(a))
        status =
            mpk_fail(error, MOEPACK_E_USAGE, "the output's name goes through a directory that does not exist and back");
    else if (a && b && (inside(a, b) || inside(b, a)))
        status = mpk_fail(error, MOEPACK_E_REFUSED, "output and input must not lie inside each other (%s)", source);
    free(a);
    free(b);
    return status;
}

static char *with_suffix(const char *name, const char *suffix)
{
    size_t length = strlen(name), more = strlen(suffix) + 1;
    char *text = malloc(length + more);
    if (!text) return NULL;
    memcpy(text, name, length);
    memcpy(text + length, suffix, more);
    return text;
}

static bool ends_with(const char *name, const char *suffix)
{
    size_t a = strlen(name), b = strlen(suffix);
    return a >= b && strcmp(name + a - b, suffix) == 0;
}

/* Names under which readers would take the output for something else, or that name no entry of a directory. */
static moepack_status check_form(const char *out, moepack_error *error)
{
    static const char *const taken[] = {".partial", ".old"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (ends_with(out, taken[i]))
            return mpk_fail(error, MOEPACK_E_USAGE,
                            "an output's name must not end in %s, which marks unfinished or replaced outputs",
                            taken[i]);
    const char *slash = strrchr(out, '/');
    const char *last = slash ? slash + 1 : out;
    if (strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        return mpk_fail(error, MOEPACK_E_USAGE, "an output's name must not end in '%s'", last);
    return MOEPACK_OK;
}

static moepack_status refuse_partial(const mpk_publish *p, moepack_error *error)
{
    /* Both: killed while one output was replacing another, between two renames. */
    bool replaced = mpk_path_exists(p->old);
    moepack_status status =
        replaced
            ? mpk_fail(error, MOEPACK_E_REFUSED,
                       "an unfinished output is there already, and the previous one is kept as %.200s; if nothing is "
                       "writing, remove the first and give the second its name back",
                       p->old)
            : mpk_fail(error, MOEPACK_E_REFUSED,
                       "an unfinished output is there already; remove it if nothing is writing to it");
    mpk_error_file(error, p->partial);
    return status;
}

static moepack_status check_out(mpk_publish *p, moepack_error *error)
{
    p->replace = false;
    if (!mpk_path_exists(p->out)) return MOEPACK_OK;
    if (!p->overwrite)
        return mpk_fail(error, MOEPACK_E_REFUSED,
                        "the output exists already, and replacing it was not asked for (--overwrite)");
    if (!mpk_path_is_dir(p->out)) return mpk_fail(error, MOEPACK_E_REFUSED, "the output exists and is no directory");
    if (mpk_path_exists(p->old)) {
        moepack_status status =
            mpk_fail(error, MOEPACK_E_REFUSED, "the name that the old output would be moved to is taken");
        mpk_error_file(error, p->old);
        return status;
    }
    p->replace = true;
    return p->replaceable(p->user, p->out, error);
}

moepack_status mpk_publish_init(mpk_publish *publish, const char *out, const char *source, bool overwrite,
                                mpk_replaceable replaceable, void *user, moepack_error *error)
{
    *publish = (mpk_publish){.overwrite = overwrite, .replaceable = replaceable, .user = user, .fd = -1};
    size_t length = out ? strlen(out) : 0;
    while (length > 1 && out[length - 1] == '/') length--;
    if (length == 0 || (length == 1 && out[0] == '/')) return mpk_fail(error, MOEPACK_E_USAGE, "no output name given");
    publish->out = strndup(out, length);
    publish->partial = publish->out ? with_suffix(publish->out, ".partial") : NULL;
    publish->old = publish->out ? with_suffix(publish->out, ".old") : NULL;
    if (!publish->out || !publish->partial || !publish->old) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    moepack_status status = check_apart(publish->out, source, error);
    if (status == MOEPACK_OK) status = check_form(publish->out, error);
    if (status == MOEPACK_OK && mpk_path_exists(publish->partial)) status = refuse_partial(publish, error);
    if (status == MOEPACK_OK) status = check_out(publish, error);
    if (status != MOEPACK_OK) mpk_error_file(error, publish->out);
    return status;
}

moepack_status mpk_publish_begin(mpk_publish *publish, moepack_error *error)
{
    moepack_status status = mpk_parents_make(publish->partial, &publish->parents, error);
    if (status == MOEPACK_OK) {
        status = mpk_dir_create(publish->partial, &publish->fd, error);
        publish->made = status == MOEPACK_OK;
        if (status == MOEPACK_E_REFUSED && mpk_path_exists(publish->partial)) status = refuse_partial(publish, error);
    }
    /* Whoever held the name OUT.partial before may have published between the first look and this one. */
    if (status == MOEPACK_OK) status = check_out(publish, error);
    if (status != MOEPACK_OK) mpk_error_file(error, publish->out);
    return status;
}

/* Afterwards the new directory is OUT and the one before is OUT.old; or nothing has changed. */
static moepack_status put_in_place(const mpk_publish *p, moepack_error *error)
{
    moepack_status status = mpk_rename_swap(p->partial, p->out, error);
    if (status == MOEPACK_OK) {
        status = mpk_rename_keep(p->partial, p->old, error);
        if (status != MOEPACK_OK) mpk_rename_swap(p->partial, p->out, NULL);
        return status;
    }
    if (status != MOEPACK_E_UNSUPPORTED) return status;
    status = mpk_rename_keep(p->out, p->old, error);
    if (status != MOEPACK_OK) return status;
    status = mpk_rename_keep(p->partial, p->out, error);
    /* Best effort: the old output goes back to its name; if that fails too, it is complete under OUT.old. */
    if (status != MOEPACK_OK) mpk_rename_keep(p->old, p->out, NULL);
    return status;
}

/* What was replaced is looked at once more under its new name: it may have got files since. */
static void remove_old(const mpk_publish *p, mpk_meter *meter)
{
    moepack_error why = {.offset = -1, .expert = -1};
    if (p->replaceable(p->user, p->old, &why) != MOEPACK_OK)
        mpk_meter_warn(meter, "%s: the replaced output is kept: %s", p->old, why.message);
    else if (mpk_tree_remove(p->old, NULL) != MOEPACK_OK)
        mpk_meter_warn(meter, "%s: the replaced output could not be removed", p->old);
}

moepack_status mpk_publish_end(mpk_publish *publish, mpk_meter *meter, moepack_error *error)
{
    moepack_status status = MOEPACK_OK;
    if (!mpk_dir_is(publish->fd, publish->partial)) {
        status = mpk_fail(error, MOEPACK_E_REFUSED, "this directory was removed or replaced while it was written");
        mpk_error_file(error, publish->partial);
        return status;
    }
    if (publish->replace) status = publish->replaceable(publish->user, publish->out, error);
    if (status == MOEPACK_OK)
        status =
            publish->replace ? put_in_place(publish, error) : mpk_rename_keep(publish->partial, publish->out, error);
    if (status != MOEPACK_OK) {
        mpk_error_file(error, publish->out);
        return status;
    }
    publish->made = false;
    mpk_made_dirs_end(&publish->parents, false);
    status = mpk_parent_sync(publish->out, error);
    /* Not certain to last: then what was there before stays as OUT.old. */
    if (status == MOEPACK_OK && publish->replace) remove_old(publish, meter);
    if (status != MOEPACK_OK && publish->replace)
        mpk_meter_warn(meter, "%s: the replaced output is kept", publish->old);
    return status;
}

void mpk_publish_free(mpk_publish *publish)
{
    if (publish->made && mpk_dir_is(publish->fd, publish->partial)) mpk_tree_remove(publish->partial, NULL);
    if (publish->partial && publish->fd >= 0) close(publish->fd);
    mpk_made_dirs_end(&publish->parents, true);
    free(publish->out);
    free(publish->partial);
    free(publish->old);
    *publish = (mpk_publish){.fd = -1};
}

moepack_status mpk_publish_space(const char *path, uint64_t needed, uint64_t *available, moepack_error *error)
{
    moepack_status status = mpk_disk_free(path, available, error);
    if (status != MOEPACK_OK || *available >= needed) return status;
    status = mpk_fail(error, MOEPACK_E_REFUSED, "not enough disk space: %llu bytes needed, %llu available",
                      (unsigned long long)needed, (unsigned long long)*available);
    mpk_error_file(error, path);
    return status;
}
