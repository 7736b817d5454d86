/* Table sets: the directory and the tables behind it (spec/container.md 4.1). Internal. */
#ifndef MOEPACK_FORMAT_TABLESET_H
#define MOEPACK_FORMAT_TABLESET_H

#include "build.h"
#include "layout.h"

/* One table: where its entries lie, and how many there are. */
typedef struct mpk_table {
    const uint8_t *data;
    uint64_t count;
} mpk_table;

/* Tables by id; those that a set does not hold are empty. */
typedef struct mpk_tables_view {
    mpk_table t[MPK_T_END];
} mpk_tables_view;

const char *mpk_table_name(uint32_t id);
uint32_t mpk_table_entry(uint32_t id);

/* Reads a set that must hold exactly the given tables, in that order. `file_offset` is where the set starts in its
 * file, for errors. Everything of 4.1 is checked: sizes, places, zero gaps, the exact end. */
moepack_status mpk_tableset_decode(const uint8_t *set, uint64_t length, uint64_t file_offset, const uint32_t *ids,
                                   size_t id_count, mpk_tables_view *out, moepack_error *error);

/* Length of a set of tables with these numbers of entries (indexed by id); false on overflow. */
bool mpk_tableset_length(const uint32_t *ids, size_t id_count, const uint64_t *counts, uint64_t *length);

/* Appends a whole set with its directory and zeroed entries; entries[id] receives each table's place (valid until the
 * buffer grows again). */
moepack_status mpk_tableset_append(mpk_buf *out, const uint32_t *ids, size_t id_count, const uint64_t *counts,
                                   uint8_t **entries, moepack_error *error);

extern const uint32_t mpk_index_table_ids[MPK_INDEX_TABLES];

#endif
