/* A directory that appears under its name only when it is complete. Internal; shared by convert and export.
 *
 * Work goes to OUT.partial, whose exclusive creation is what keeps two processes apart. With `replace` an existing OUT
 * is swapped with the new one and removed last, so that at any moment one complete directory exists. Nothing is ever
 * removed that this program did not make. */
#ifndef MOEPACK_CONVERT_PUBLISH_H
#define MOEPACK_CONVERT_PUBLISH_H

#include "io/io.h"
#include "progress.h"

/* Says whether an existing directory may be replaced; MOEPACK_E_REFUSED with the reason if not. */
typedef moepack_status (*mpk_replaceable)(void *user, const char *dir, moepack_error *error);

typedef struct mpk_publish {
    char *out, *partial, *old;
    bool overwrite, replace; /* OUT may be replaced; there is one to replace */
    mpk_replaceable replaceable;
    void *user;
    bool made;             /* OUT.partial is ours */
    int fd;                /* then: it, opened, to know it again */
    mpk_made_dirs parents; /* made on the way to it */
} mpk_publish;

/* Checks names only, changes nothing. MOEPACK_E_REFUSED: OUT exists (unless overwrite and replaceable agree),
 * OUT.partial or OUT.old exists, or one of OUT and `source` lies inside the other. MOEPACK_E_USAGE: a name that cannot
 * be an output's. */
moepack_status mpk_publish_init(mpk_publish *publish, const char *out, const char *source, bool overwrite,
                                mpk_replaceable replaceable, void *user, moepack_error *error);
/* Makes OUT.partial, then looks at OUT once more: another process may have published meanwhile. */
moepack_status mpk_publish_begin(mpk_publish *publish, moepack_error *error);
/* Gives it its name. What was there before and could not be removed afterwards is only warned about. */
moepack_status mpk_publish_end(mpk_publish *publish, mpk_meter *meter, moepack_error *error);
/* Removes OUT.partial, and empty directories made above it, if it was made and not published; frees the names. */
void mpk_publish_free(mpk_publish *publish);

/* MOEPACK_E_REFUSED if the file system of `path` has less than `needed` bytes free. */
moepack_status mpk_publish_space(const char *path, uint64_t needed, uint64_t *available, moepack_error *error);

#endif
