/* File headers (spec/container.md section 3). Internal. */
#ifndef MOEPACK_FORMAT_HEADER_H
#define MOEPACK_FORMAT_HEADER_H

#include "build.h"
#include "layout.h"

/* Checks rules 1 to 6 of section 10 on the first `size` bytes of a file of `real_length` bytes. kind_mask has bit 1 <<
 * kind for each kind that is welcome. A file shorter than recorded sets *truncated and is no error yet: damage found in
 * what is there comes first (mpk_header_truncated is the verdict after that). */
moepack_status mpk_header_check(const uint8_t *data, uint64_t size, uint64_t real_length, unsigned kind_mask,
                                uint32_t *kind, uint64_t *file_length, bool *truncated, moepack_error *error);
moepack_status mpk_header_truncated(uint64_t file_length, uint64_t real_length, moepack_error *error);

/* Hash over bytes 64..119 (rule 7). 128 bytes must be there. */
moepack_status mpk_header_check_second(const uint8_t *data, moepack_error *error);

/* Fills bytes 0..63; the second hash is set by mpk_header_finish once bytes 64..119 stand. */
void mpk_header_start(uint8_t *header, uint32_t kind, uint64_t file_length);
void mpk_header_finish(uint8_t *header);

void mpk_store_hash128(uint8_t *to, moepack_hash128 hash);
moepack_hash128 mpk_load_hash128(const uint8_t *from);

/* Header of an index: length of its table set and root hash. */
typedef struct mpk_index_header {
    uint64_t file_length, set_length;
    moepack_hash128 root;
} mpk_index_header;
/* Writes the header in front of a table set that is in place: `file` holds all `length` bytes of the index. */
void mpk_index_header_write(uint8_t *file, uint64_t length);
moepack_status mpk_decode_index_header(const uint8_t *data, uint64_t size, mpk_index_header *out, moepack_error *error);

#endif
