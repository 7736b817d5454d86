/* A published checkpoint, read and understood: files, tensors, MoE blocks, and which tensor is what. Internal.
 *
 * Memory: headers are parsed one file at a time and kept only in this compact form (K3: 497,220 tensors, about 100 MB
 * with their names). Nothing here reads tensor data. */
#ifndef MOEPACK_CONVERT_SOURCE_H
#define MOEPACK_CONVERT_SOURCE_H

#include "io/io.h"
#include "moepack/convert.h"

#define MPK_NO_TENSOR UINT32_MAX

typedef struct mpk_source_file {
    char *name; /* relative to the source directory */
    moepack_source_kind kind;
    uint64_t size;
    uint64_t data_start;  /* safetensors: 8 + header length; 0: others */
    mpk_file_stamp stamp; /* when its header was read; compared again after its data was read */
    bool missing;         /* listed by the index json, not there, and not needed by the selection */
} mpk_source_file;

typedef struct mpk_source_tensor {
    const char *name;
    const uint64_t *dims;
    uint64_t offset, length; /* from the start of the file; bytes */
    uint32_t file;
    uint32_t block; /* index into blocks, MOEPACK_NO_BLOCK: none */
    uint32_t rank;
    uint16_t dtype;
    uint16_t role; /* moepack_role of a dense tensor of a block; NONE for expert sections and all else */
    uint16_t plane;
    uint16_t encoding;
    uint32_t group_rows, group_cols; /* scales of a dense part: weights that share one; else 0 */
} mpk_source_tensor;

/* Whose bytes a section holds: a tensor's as published, or (convert --quantize) what was made of one. */
typedef enum mpk_derived {
    MPK_AS_PUBLISHED,
    MPK_DERIVED_CODES,
    MPK_DERIVED_SCALES
} mpk_derived;

/* One section slot of an expert schema: shape and meaning, equal for all experts that use the schema. */
typedef struct mpk_source_section {
    const char *pattern; /* after the prefix: "experts.{expert}.w1.weight_packed" */
    moepack_dtype dtype;
    bool fused; /* slice of a tensor of all experts */
    bool flat;  /* whose first dimension is E times this one's */
    uint32_t rank;
    uint64_t dims[8]; /* of one expert's section */
    uint64_t length;  /* bytes of one expert's section */
    uint32_t matrix_count;
    moepack_matrix matrices[4];
    mpk_derived derived;
    uint32_t published;       /* section of the published schema that this one is, or is made of */
    uint32_t published_scale; /* derived: and its scales; UINT32_MAX: none */
} mpk_source_section;

typedef struct mpk_source_schema {
    uint32_t count;
    mpk_source_section sections[16];
} mpk_source_schema;

typedef struct mpk_source_block {
    moepack_stack stack;
    uint32_t number;
    char *prefix; /* with its final dot */
    char label[MOEPACK_LABEL_MAX];
    uint32_t experts;
    uint32_t policy;           /* index into policies */
    bool selected;             /* by --layers */
    uint32_t schema;           /* of all its experts, or ... */
    uint32_t *expert_schema;   /* ... [experts], where each may be stored in another form; NULL: `schema` */
    uint32_t stride;           /* sections from one expert to the next; 0: as many as the schema has */
    uint32_t *section;         /* [experts x stride] tensor index; MPK_NO_TENSOR where the expert is not selected */
    uint32_t *published;       /* where `section` is that of a rewritten schema: that of the published one, with ... */
    uint32_t published_stride; /* ... so many from one expert to the next */
} mpk_source_block;

static inline uint32_t mpk_source_expert_schema(const mpk_source_block *block, uint32_t expert)
{
    return block->expert_schema ? block->expert_schema[expert] : block->schema;
}

typedef struct mpk_source_policy {
    moepack_policy policy;
    uint64_t overridden;
} mpk_source_policy;

typedef struct mpk_source {
    char *dir;
    const char *family; /* from the family table */
    char *model_type;
    mpk_source_file *files;
    uint32_t file_count; /* sorted by (kind, name) as FILES of the container */
    mpk_source_tensor *tensors;
    uint32_t tensor_count; /* sorted by (file, offset, length, name) */
    mpk_source_block *blocks;
    uint32_t block_count;
    mpk_source_schema *schemas;
    uint32_t schema_count;
    mpk_source_schema *published; /* [schema_count] before quantising; NULL: schemas are as published */
    bool quantized;
    mpk_source_policy *policies;
    uint32_t policy_count;
    uint8_t *expert_selected; /* [max experts of any block] by --experts */
    bool subset;              /* the selection leaves something out */
    uint64_t ignored_files;   /* weight files that the index does not list */
    uint64_t warnings;
    void *arena; /* names and dims */
} mpk_source;

typedef struct mpk_source_options {
    const char *layers, *experts;
    bool moe_only;
    const char *const *policy;
    size_t policy_count;
    const moepack_callbacks *callbacks;
} mpk_source_options;

/* The tensors of an expert, one per section of its schema. */
static inline const uint32_t *mpk_source_expert_tensors(const mpk_source *source, const mpk_source_block *block,
                                                        uint32_t expert)
{
    return block->section + (size_t)expert * (block->stride ? block->stride : source->schemas[block->schema].count);
}

/* The same of the published schema; only of a source that was rewritten. */
static inline const uint32_t *mpk_source_published_tensors(const mpk_source_block *block, uint32_t expert)
{
    return block->published + (size_t)expert * block->published_stride;
}

/* Reads and checks everything: index json, headers, config, family, names, shapes, selection. */
moepack_status mpk_source_open(const char *dir, const mpk_source_options *options, mpk_source **out,
                               moepack_error *error);
void mpk_source_close(mpk_source *source);

/* Whether the container will hold this tensor (selection, moe_only). */
bool mpk_source_tensor_kept(const mpk_source *source, const mpk_source_options *options, uint32_t tensor);

#endif
