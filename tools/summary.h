/* What the commands derive from an index: bytes, which shard holds what, texts. Public getters only; no shard is
 * opened. */
#ifndef MOEPACK_TOOLS_SUMMARY_H
#define MOEPACK_TOOLS_SUMMARY_H

#include "cli.h"

/* Contents of one shard file. */
typedef struct shard_summary {
    uint64_t records;
    uint32_t first_expert, last_expert; /* smallest and largest id, if records > 0 */
    uint32_t *blocks;                   /* MoE blocks with a record here, ascending */
    size_t block_count, block_capacity;
    uint64_t tensors; /* trunk tensors */
    bool present;     /* a file of the recorded length is there */
} shard_summary;

typedef struct pack_summary {
    shard_summary *shards;
    uint32_t shard_count;
    uint64_t experts;      /* records in the container */
    uint64_t absent;       /* experts that a subset leaves out */
    uint64_t expert_bytes; /* of their records, with padding */
    uint64_t index_bytes, trunk_file_bytes, expert_file_bytes;
    uint32_t trunk_files, expert_files, missing_files;
} pack_summary;

/* False without memory. `path` is the container's directory: shard files are looked for there, not opened. */
bool summary_create(const moepack_index *index, const char *path, pack_summary *out);
void summary_free(pack_summary *summary);

/* "1-3,7,encoder.0-5": labels of blocks, given in index order. Freed with free(); NULL without memory. */
char *summary_labels(const moepack_index *index, const uint32_t *blocks, size_t count);
/* Labels of all blocks, or of those with policy `policy`; UINT32_MAX: any. */
char *summary_all_labels(const moepack_index *index, uint32_t policy);

/* Block by label or prefix; otherwise reports the labels there are and returns MOEPACK_NO_BLOCK. */
uint32_t summary_find_block(const cli_common *common, const moepack_pack *pack, const char *label);

const char *summary_layout_name(moepack_layout layout);
const char *summary_codec_name(uint32_t codec);

/* "[3072, 1792]" */
void summary_shape_text(const moepack_index *index, const moepack_desc *desc, char *buf, size_t size);
json_t *summary_shape_json(const moepack_index *index, const moepack_desc *desc);
/* {key: value}: enumerations as words, numbers as numbers. */
json_t *summary_policy_json(const moepack_policy *policy);

/* First record of a block that is in the container; false if there is none. */
bool summary_first_record(const moepack_index *index, const moepack_block *block, moepack_record *record);

#endif
