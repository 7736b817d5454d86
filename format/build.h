/* Writing containers: the tables in memory, and their encoding. Internal; used by convert/ (and by tests).
 *
 * A builder holds plain arrays of the public structs of moepack/format.h, except that strings come from
 * the builder's own pool. The order of entries is the caller's duty (spec/container.md); encoding checks nothing but
 * overflow, because every index is read back through moepack_index_open before it is published. */
#ifndef MOEPACK_FORMAT_BUILD_H
#define MOEPACK_FORMAT_BUILD_H

#include "moepack/format.h"

/* Growable byte buffer. Zero-initialise; free(data). */
typedef struct mpk_buf {
    uint8_t *data;
    size_t size, capacity;
} mpk_buf;
/* Appends `size` bytes (zeros if `bytes` is NULL) and returns where they start, NULL when out of memory. */
void *mpk_buf_append(mpk_buf *buf, const void *bytes, size_t size);

typedef struct mpk_policy_entry {
    moepack_policy policy;
    uint64_t overridden; /* bit i: key i of format/policy.c's table */
} mpk_policy_entry;
typedef struct mpk_schema_entry {
    uint32_t first_desc, count;
} mpk_schema_entry;
typedef struct mpk_part_entry {
    uint32_t stored_length;
    uint64_t xxh3;
} mpk_part_entry;

/* Interned strings with stable addresses; encoded in order of first use. */
typedef struct mpk_strings mpk_strings;

/* Arrays grow through mpk_grow and are freed by mpk_tables_free. Zero-initialise. */
typedef struct mpk_tables {
    moepack_info info;
    moepack_shard *shards;
    size_t shard_count;
    moepack_block *blocks;
    size_t block_count;
    mpk_schema_entry *schemas;
    size_t schema_count;
    moepack_desc *descs;
    size_t desc_count;
    moepack_matrix *matrices;
    size_t matrix_count;
    uint64_t *dims;
    size_t dim_count;
    mpk_policy_entry *policies;
    size_t policy_count;
    moepack_record *records;
    size_t record_count;
    moepack_section *sections;
    size_t section_count;
    mpk_part_entry *parts;
    size_t part_count;
    moepack_tensor *tensors;
    size_t tensor_count;
    moepack_source_file *files;
    size_t file_count;
    moepack_role_entry *roles;
    size_t role_count;
    mpk_strings *strings;
} mpk_tables;

void mpk_tables_free(mpk_tables *tables);
/* The pool's copy of this text, the same pointer for equal text; lives as long as the tables. False when out of memory
 * or when the pool would pass 4 GiB. */
bool mpk_tables_string(mpk_tables *tables, const char *text, size_t length, moepack_str *out);

/* Table set of an index (tables 1..16). Appends to out. */
moepack_status mpk_encode_index_tables(const mpk_tables *tables, mpk_buf *out, moepack_error *error);
/* Complete index.mpk: header, table set; root_hash computed. */
moepack_status mpk_encode_index(const mpk_tables *tables, mpk_buf *out, moepack_error *error);
/* plan_id of the tables (spec/container.md 5.6). */
moepack_status mpk_plan_id(const mpk_tables *tables, moepack_hash128 *out, moepack_error *error);

/* Tail of an expert shard / of a trunk shard, from the tables (spec/container.md 7 and 8). */
moepack_status mpk_encode_expert_tail(const mpk_tables *tables, uint32_t shard, mpk_buf *out, moepack_error *error);
moepack_status mpk_encode_trunk_tail(const mpk_tables *tables, uint32_t shard, mpk_buf *out, moepack_error *error);
/* Exact length of that tail, computable before any hash is known (plain arithmetic). */
moepack_status mpk_tail_length(const mpk_tables *tables, uint32_t shard, uint64_t *length, moepack_error *error);

/* The tail that a shard must have, and the plan id, from an opened index: what verify compares byte for byte. */
moepack_status mpk_index_tail(const moepack_index *index, uint32_t shard, mpk_buf *out, moepack_error *error);
moepack_status mpk_index_plan_id(const moepack_index *index, moepack_hash128 *out, moepack_error *error);

/* Whether the padding elements of these matrices in panel order are what spec/container.md section 9 asks for: zero
 * codes, scales of 1.0. If not, *at is the first byte that is wrong. Reads exactly the sum of the matrices' panel
 * lengths; the time is in proportion to rows and padding, not to the elements. */
bool mpk_panel_padding(const moepack_matrix *matrices, uint32_t count, const void *stored, uint64_t *at);

/* First 4096 bytes of a shard. Uses tables->shards[shard] (lengths, root) and info.plan_id. */
void mpk_encode_shard_header(const mpk_tables *tables, uint32_t shard, uint8_t page[4096]);

/* Decoded shard header, for readers. `size` bytes of the file's start are given (128 suffice). Checks rules 1..7 of
 * section 10 with `real_length`. */
typedef struct mpk_shard_header {
    uint32_t kind, number;
    uint64_t file_length, tail_offset, tail_length;
    moepack_hash128 plan_id, root;
} mpk_shard_header;
moepack_status mpk_decode_shard_header(const void *data, size_t size, uint64_t real_length, mpk_shard_header *out,
                                       moepack_error *error);

/* One item of canonical_root (5.4) appended; items must come sorted. The root is moepack_hash128_of the whole. */
moepack_status mpk_canonical_item(mpk_buf *out, const char *name, size_t name_length, moepack_dtype dtype,
                                  const uint64_t *dims, uint32_t rank, uint64_t expert, uint64_t hash,
                                  moepack_error *error);

/* Makes room for element number `count` of a malloc'ed array whose capacity is the next power of two at or above its
 * count (at least 16). False when out of memory; the array is then unchanged. */
bool mpk_grow(void *array_pointer, size_t count, size_t element_size);

#endif
