/* The opened index, inside format/. Internal. */
#ifndef MOEPACK_FORMAT_INDEX_H
#define MOEPACK_FORMAT_INDEX_H

#include "bytes.h"
#include "tableset.h"

struct moepack_index {
    const uint8_t *data; /* the caller's bytes, whole file */
    uint64_t size;
    mpk_tables_view tables;
    moepack_hash128 root;
};

/* Entry i of a table; the caller keeps i below the count. */
static inline const uint8_t *mpk_index_entry(const moepack_index *index, uint32_t table, uint64_t i)
{
    return index->tables.t[table].data + i * mpk_table_entry(table);
}

static inline uint64_t mpk_index_count(const moepack_index *index, uint32_t table)
{
    return index->tables.t[table].count;
}

/* All rules of spec section 10 for the tables, in the order of the tables. */
moepack_status mpk_index_check(const moepack_index *index, moepack_error *error);

/* ---- parts of it ---- */

/* "table NAME, entry I: ..." with the place in the file. */
moepack_status mpk_index_bad(const moepack_index *index, moepack_error *error, moepack_status status, uint32_t table,
                             uint64_t entry, const char *format, ...) MOEPACK_PRINTF(6, 7);
/* Records, sections, parts, and where trunk sections lie. */
moepack_status mpk_index_check_data(const moepack_index *index, moepack_error *error);
/* Decodes policy i with every check but those that need an expert count. */
moepack_status mpk_index_decode_policy(const moepack_index *index, uint32_t i, moepack_policy *out, uint32_t *overrides,
                                       moepack_error *error);

#endif
