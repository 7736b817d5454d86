/* The hashes of spec/container.md section 5, computed while bytes pass by. Internal. */
#ifndef MOEPACK_CONVERT_PIPELINE_HASH_H
#define MOEPACK_CONVERT_PIPELINE_HASH_H

#include "layout.h"
#include "pipeline_jobs.h"

/* Receives the hash of part i when its last byte has passed. */
typedef void (*mpk_part_done)(void *user, uint64_t i, uint64_t xxh3);

/* Canonical hash, stored hash and part hashes of one section, fed chunk by chunk through a lane's states. */
typedef struct mpk_section_hash {
    mpk_lane *lane;
    bool same; /* stored bytes are the canonical ones: hashed once */
    uint64_t part_count;
    uint64_t part, filled; /* current part, bytes of it that passed */
    mpk_part_done done;
    void *user;
} mpk_section_hash;

void mpk_section_hash_init(mpk_section_hash *hasher, mpk_lane *lane, bool same, uint64_t decoded_length,
                           mpk_part_done done, void *user);
void mpk_section_hash_canonical(mpk_section_hash *hasher, const void *bytes, size_t size);
void mpk_section_hash_stored(mpk_section_hash *hasher, const void *bytes, size_t size);
void mpk_section_hash_end(mpk_section_hash *hasher, uint64_t *canonical, uint64_t *stored);

/* One item of canonical_root. */
typedef struct mpk_root_item {
    const char *name;
    const uint64_t *dims; /* of one section */
    uint64_t expert;      /* UINT64_MAX: none */
    uint64_t slices;      /* fused: E, prepended to the dims, or (flat) a factor of the first; 0: not fused */
    bool flat;
    uint64_t hash;                    /* canonical */
    uint32_t name_length, rank, file; /* file: 0 for sections of records */
    moepack_dtype dtype;
} mpk_root_item;

/* Sorts the items and hashes them. */
moepack_status mpk_canonical_root(mpk_root_item *items, size_t count, moepack_hash128 *out, moepack_error *error);

/* hash128 over words, each stored little-endian: the file hash. */
typedef struct mpk_word_hash {
    mpk_hasher *state;
} mpk_word_hash;
bool mpk_word_hash_begin(mpk_word_hash *hash);
void mpk_word_hash_add(mpk_word_hash *hash, uint64_t word);
/* Also frees the state. */
moepack_hash128 mpk_word_hash_end(mpk_word_hash *hash);

#endif
