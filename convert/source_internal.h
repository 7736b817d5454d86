/* What the files that open a source share. Internal to source*.c.
 *
 * Order of work (source.c): list the directory, read the index json, read config.json, read all headers, resolve names.
 * Large JSON trees exist one at a time and never beside each other. */
#ifndef MOEPACK_CONVERT_SOURCE_INTERNAL_H
#define MOEPACK_CONVERT_SOURCE_INTERNAL_H

#include "config.h"
#include "source.h"

/* Memory that is freed all at once. */
typedef struct mpk_arena mpk_arena;
mpk_arena *mpk_arena_new(void);
void mpk_arena_free(mpk_arena *arena);
/* Aligned to 8 bytes; NULL when out of memory. */
void *mpk_arena_alloc(mpk_arena *arena, size_t size);
char *mpk_arena_string(mpk_arena *arena, const char *text);

/* An opened source with what only source*.c need. */
typedef struct mpk_source_state {
    mpk_source open; /* first: a pointer to it is a pointer to this */
    const mpk_family *family;
    mpk_config config;
} mpk_source_state;

/* model.safetensors.index.json in compact form. */
typedef struct mpk_weight_entry {
    const char *name;
    uint32_t file; /* index into the source's files: shards come first there, sorted by name */
} mpk_weight_entry;

typedef struct mpk_weight_map {
    char **shards; /* sorted */
    size_t shard_count;
    mpk_weight_entry *entries; /* sorted by name */
    size_t count;
    bool has_total;
    uint64_t total_size;
    mpk_arena *arena;
} mpk_weight_map;

/* source_parts.c's: tensors of matrices that may have any storage form. */
typedef struct mpk_parts mpk_parts;

/* One mpk_source_open at work. */
typedef struct mpk_opening {
    mpk_source_state *state;
    mpk_source *source; /* &state->open */
    const mpk_source_options *options;
    moepack_error *error;
    bool sharded; /* there is an index json */
    mpk_weight_map map;
    uint32_t prefix[MPK_STACKS]; /* which of the family's prefixes each stack uses, UINT32_MAX: none seen */
    uint32_t *role_tensor;       /* [blocks x roles of the family] */
    uint32_t *form;              /* [blocks] storage form, UINT32_MAX: none seen */
    uint32_t *form_schema;       /* [forms of the family] */
    mpk_parts *parts;
    uint32_t *deferred; /* tensors that several forms have, found before the block's form was known */
    size_t deferred_count;
    bool settle;    /* do not defer any more */
    size_t unknown; /* tensors of blocks that no pattern knows */
    const char *first_unknown;
} mpk_opening;

moepack_status mpk_source_oom(mpk_opening *o);
void mpk_source_warn(mpk_opening *o, const char *format, ...) MOEPACK_PRINTF(2, 3);
/* "DIR/NAME", malloc'ed. */
char *mpk_source_path(const mpk_opening *o, const char *name);
/* Adds file (UINT32_MAX: none), tensor and, where the name tells them, layer and expert to the error; returns its
 * status. */
moepack_status mpk_source_blame(mpk_opening *o, moepack_status status, uint32_t file, const char *tensor);

/* source_index.c */
moepack_status mpk_weight_map_read(const char *path, mpk_weight_map *out, moepack_error *error);
void mpk_weight_map_free(mpk_weight_map *map);
/* Index json against headers: missing shards, missing, misplaced, unlisted and doubled tensors, total size. */
moepack_status mpk_source_check_index(mpk_opening *o);

/* source_files.c: fills source->files. */
moepack_status mpk_source_list(mpk_opening *o);

/* source_resolve.c: blocks, selection, roles, sections, policies. */
moepack_status mpk_source_resolve(mpk_opening *o);
/* Block that a matched name belongs to, MOEPACK_NO_BLOCK: none. */
uint32_t mpk_source_block_of(const mpk_source_state *state, const mpk_name *name);
/* Whether the selection keeps a tensor of this name. */
bool mpk_source_name_kept(const mpk_source_state *state, bool moe_only, const char *name);

moepack_status mpk_source_doubled(mpk_opening *o, uint32_t first, uint32_t second);
/* A tensor that the block should have, by its name after the prefix. expert -1: none. */
moepack_status mpk_source_missing(mpk_opening *o, const mpk_source_block *block, const char *suffix, int64_t expert);

/* source_parts.c: once blocks are known; one tensor of an expert or a role; then one block and one role at a time. */
moepack_status mpk_parts_new(mpk_opening *o);
void mpk_parts_free(mpk_opening *o);
moepack_status mpk_parts_add(mpk_opening *o, uint32_t tensor, uint32_t block, const mpk_name *name);
moepack_status mpk_parts_add_role(mpk_opening *o, uint32_t tensor, uint32_t block, const mpk_name *name);
/* Whether a block has tensors of mpk_parts_add. */
bool mpk_parts_hold(const mpk_opening *o, uint32_t block);
/* Fills the schemas and sections of a selected block. */
moepack_status mpk_parts_settle(mpk_opening *o, uint32_t block);
moepack_status mpk_parts_settle_role(mpk_opening *o, uint32_t block, const mpk_family_role *role);

/* source_schema.c */
/* "[3, 4]"; returns buf. */
const char *mpk_source_show_shape(const uint64_t *dims, uint32_t rank, char *buf, size_t size);
/* Schema of a storage form at this source's sizes; made on first use. */
moepack_status mpk_source_schema_of(mpk_opening *o, uint32_t form, uint32_t *schema);
/* How experts share a tensor: not at all, behind a first dimension E, or one after the other in the first dimension. */
typedef enum mpk_fusion {
    MPK_SEPARATE,
    MPK_FUSED,
    MPK_FLAT
} mpk_fusion;

/* Shape and dtype of a tensor against `rank` terms of one expert; MOEPACK_E_CORRUPT prints both. */
moepack_status mpk_source_check_shape(mpk_opening *o, uint32_t tensor, const mpk_term *dims, uint32_t rank,
                                      mpk_fusion fusion);
/* Encoding of a dense tensor; MOEPACK_ENC_NONE if its dtype has none. */
moepack_encoding mpk_dense_encoding(moepack_dtype dtype);
/* The same for tables of expert ids. */
moepack_encoding mpk_table_encoding(moepack_dtype dtype);

#endif
