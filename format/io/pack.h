/* An opened container directory: index in memory, shards opened and checked on first use. Internal; shared by convert/
 * (verify, export) and runtime/ (loader). May be used from several threads. */
#ifndef MOEPACK_IO_PACK_H
#define MOEPACK_IO_PACK_H

#include "moepack/format.h"

#include <stdbool.h>

typedef struct mpk_pack mpk_pack;

/* Opens DIR: reads DIR/index.mpk and checks it. A directory that is not there, one whose name ends in ".partial", or
 * one without an index, is MOEPACK_E_INCOMPLETE; something that is no directory is MOEPACK_E_IO. */
moepack_status mpk_pack_open(const char *dir, mpk_pack **out, moepack_error *error);
void mpk_pack_close(mpk_pack *pack);

const moepack_index *mpk_pack_index(const mpk_pack *pack);
const char *mpk_pack_dir(const mpk_pack *pack);
/* "DIR/NAME" of a shard; lives as long as the pack. */
const char *mpk_pack_shard_path(const mpk_pack *pack, uint32_t shard);

/* Opens a shard on first use and checks header, length, plan_id, number and shard_root (spec/container.md section 10).
 * *fd stays the pack's. Later calls return the same result, error included. */
moepack_status mpk_pack_shard(mpk_pack *pack, uint32_t shard, int *fd, moepack_error *error);

/* What a section is, in words, for errors and reports. */
typedef struct mpk_section_place {
    uint32_t shard;
    uint64_t section;
    uint32_t desc;
    uint32_t block; /* of an expert, or of a trunk tensor that belongs to a MoE block; else MOEPACK_NO_BLOCK */
    int64_t expert; /* -1 */
    char name[192]; /* published tensor name, or source file name */
} mpk_section_place;

/* Place of section s of an expert / of trunk tensor t / of source file f. */
void mpk_pack_place_expert(const mpk_pack *pack, uint32_t block, uint32_t expert, uint32_t s, mpk_section_place *out);
void mpk_pack_place_tensor(const mpk_pack *pack, uint32_t tensor, mpk_section_place *out);
void mpk_pack_place_file(const mpk_pack *pack, uint32_t file, mpk_section_place *out);
/* Adds file, layer, expert, tensor and offset of a place to an error; a source file is named in the message. */
void mpk_pack_error_place(const mpk_pack *pack, const mpk_section_place *place, moepack_error *error);

/* Reads a section's stored bytes into `buf` (stored_length bytes) and, if `verify`, checks them against the stored
 * hash: MOEPACK_E_CORRUPT names everything and ends with "expected HASH, found HASH". */
moepack_status mpk_pack_read_stored(mpk_pack *pack, const mpk_section_place *place, bool verify, void *buf,
                                    moepack_error *error);
/* Reads a section and turns it into its published bytes: *buf is malloc'ed, *size its canonical length. Stored hash and
 * canonical hash are both checked. */
moepack_status mpk_pack_read_canonical(mpk_pack *pack, const mpk_section_place *place, void **buf, uint64_t *size,
                                       moepack_error *error);

#endif
