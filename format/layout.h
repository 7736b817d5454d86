/* Numbers of spec/container.md: ids and entry sizes of the tables, sizes of headers, limits. Internal. */
#ifndef MOEPACK_FORMAT_LAYOUT_H
#define MOEPACK_FORMAT_LAYOUT_H

#include "moepack/format.h"

#define MPK_PAGE_SIZE 4096u
#define MPK_PREAMBLE 64u
#define MPK_HEADER 128u
#define MPK_TABLE_ALIGN 64u
#define MPK_SMALL 2048u                /* sections up to this share a page (spec 7) */
#define MPK_PARTED ((uint64_t)8 << 20) /* longer sections have parts (spec 4.9) */
#define MPK_PART ((uint64_t)4 << 20)
#define MPK_WRITER_REVISION 1u

enum {
    MPK_KIND_INDEX = 1,
    MPK_KIND_TRUNK = 2,
    MPK_KIND_EXPERTS = 3,
};

enum {
    MPK_T_INFO = 1,
    MPK_T_SHARDS,
    MPK_T_BLOCKS,
    MPK_T_SCHEMAS,
    MPK_T_DESCS,
    MPK_T_MATRICES,
    MPK_T_DIMS,
    MPK_T_POLICIES,
    MPK_T_FIELDS,
    MPK_T_RECORDS,
    MPK_T_SECTIONS,
    MPK_T_PARTS,
    MPK_T_TENSORS,
    MPK_T_FILES,
    MPK_T_ROLES,
    MPK_T_STRINGS,
    MPK_T_TAIL_RECORDS = 20,
    MPK_T_TAIL_OWNERS = 21,
    MPK_T_END, /* one above the largest id */
    MPK_INDEX_TABLES = 16
};

/* Limits of this reader (spec 11 allows them). They bound the time that hostile tables can cost; nothing published
 * comes near: PyTorch tensors have at most 64 dimensions, a section holds the few matrices of one expert. */
#define MPK_RANK_MAX 64u
#define MPK_MATRICES_MAX 64u
#define MPK_COVER_BUDGET \
    ((uint64_t)1 << 24) /* half bytes counted one by one in a whole index, for odd arrangements (cover.c) */
#define MPK_NAME_MAX 65535u
#define MPK_PATH_MAX \
    4096u /* paths of source files (PATH_MAX of Linux) and name patterns, which are looked at byte by byte */
#define MPK_SHARD_NAME_MAX 255u /* NAME_MAX of every Linux file system */

/* Parts of a section of this decoded length. */
static inline uint64_t mpk_part_count(uint64_t decoded_length, unsigned codec)
{
    if (codec == MOEPACK_CODEC_RAW && decoded_length <= MPK_PARTED) return 0;
    return decoded_length / MPK_PART + (decoded_length % MPK_PART != 0);
}

#endif
