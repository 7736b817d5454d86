/* The public handle of an opened container. */
#include "open.h"

#include "error.h"

#include <stdlib.h>

moepack_status moepack_open(const char *path, moepack_pack **out, moepack_error *error)
{
    if (out == NULL || path == NULL)
        return mpk_fail(error, MOEPACK_E_USAGE, "a path and a place for the result are needed");
    *out = NULL;
    moepack_pack *pack = calloc(1, sizeof *pack);
    if (pack == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    moepack_status status = mpk_pack_open(path, &pack->files, error);
    if (status != MOEPACK_OK) {
        free(pack);
        return status;
    }
    *out = pack;
    return MOEPACK_OK;
}

void moepack_close(moepack_pack *pack)
{
    if (pack == NULL) return;
    mpk_pack_close(pack->files);
    free(pack);
}

const moepack_index *moepack_pack_index(const moepack_pack *pack)
{
    return mpk_pack_index(pack->files);
}

const char *moepack_pack_path(const moepack_pack *pack)
{
    return mpk_pack_dir(pack->files);
}
