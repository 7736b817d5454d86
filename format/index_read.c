/* Opening an index: header, root hash, directory, then every table (index_check.c). The bytes stay the caller's. */
#include "error.h"
#include "hash.h"
#include "header.h"
#include "index.h"

#include <stdlib.h>

static moepack_status open_bytes(const uint8_t *data, size_t size, moepack_index *index, moepack_error *error)
{
    mpk_index_header header;
    moepack_status status = mpk_decode_index_header(data, size, &header, error);
    if (status != MOEPACK_OK) return status;
    const uint8_t *set = data + MPK_HEADER;
    moepack_hash128 root = moepack_hash128_of(set, (size_t)header.set_length);
    if (!mpk_hash128_equal(root, header.root)) {
        char expected[33], found[33];
        moepack_hash128_text(header.root, expected);
        moepack_hash128_text(root, found);
        return mpk_fail(error, MOEPACK_E_CORRUPT, "root hash does not match: expected %s, found %s", expected, found);
    }
    *index = (moepack_index){.data = data, .size = size, .root = root};
    status = mpk_tableset_decode(set, header.set_length, MPK_HEADER, mpk_index_table_ids, MPK_INDEX_TABLES,
                                 &index->tables, error);
    return status == MOEPACK_OK ? mpk_index_check(index, error) : status;
}

moepack_status moepack_index_open(const void *data, size_t size, const char *name, moepack_index **out,
                                  moepack_error *error)
{
    if (out == NULL || (data == NULL && size > 0))
        return mpk_fail(error, MOEPACK_E_USAGE, "moepack_index_open: missing argument");
    *out = NULL;
    moepack_index *index = malloc(sizeof *index);
    moepack_status status = MOEPACK_OK;
    if (index == NULL)
        status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    else
        status = open_bytes((const uint8_t *)data, size, index, error);
    if (status != MOEPACK_OK) {
        free(index);
        mpk_error_file(error, name);
        return status;
    }
    *out = index;
    return MOEPACK_OK;
}

void moepack_index_close(moepack_index *index)
{
    free(index);
}
