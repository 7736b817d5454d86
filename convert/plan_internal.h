/* Shared by the planner's files: plan.c (blocks, records, pieces), plan_desc.c (schemas, descriptions), plan_trunk.c
 * (trunk tensors and source files), plan_shards.c (shards and offsets). */
#ifndef MOEPACK_CONVERT_PLAN_INTERNAL_H
#define MOEPACK_CONVERT_PLAN_INTERNAL_H

#include "bytes.h"
#include "error.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* Where the sections of one schema lie in a record (spec/container.md section 7). */
typedef struct mpk_record_geometry {
    uint64_t *offset; /* of each section from the record's start */
    uint64_t length;
} mpk_record_geometry;

typedef struct mpk_planner {
    const mpk_source *source;
    const mpk_plan_options *options;
    mpk_plan *plan;
    mpk_tables *tables; /* &plan->tables */
    moepack_error *error;
    uint8_t *in_record;            /* per source tensor: its bytes are in records */
    uint32_t *tensor_entry;        /* per source tensor: its entry in TENSORS */
    uint32_t *file_entry;          /* per source file: its entry in FILES, UINT32_MAX: missing */
    uint32_t *block_entry;         /* per source block: its entry in BLOCKS, MOEPACK_NO_BLOCK: not selected */
    uint32_t *schema_entry;        /* per source schema: its entry in SCHEMAS, UINT32_MAX: not used yet */
    uint32_t *policy_entry;        /* likewise */
    mpk_record_geometry *geometry; /* per entry of SCHEMAS */
    uint32_t *storage;             /* trunk: entries of TENSORS in storage order */
    uint64_t first_trunk_section;
    uint64_t stored_bytes; /* canonical bytes of all sections of tensors */
} mpk_planner;

moepack_status mpk_plan_oom(mpk_planner *planner);
moepack_status mpk_plan_too_large(mpk_planner *planner);

/* plan_desc.c */
moepack_status mpk_plan_schema(mpk_planner *planner, uint32_t source_schema, uint32_t *schema);
moepack_status mpk_plan_tensor_desc(mpk_planner *planner, const mpk_source_tensor *tensor, uint32_t *desc);

/* plan_trunk.c: TENSORS, ROLES, FILES and their sections, and the storage order. */
moepack_status mpk_plan_trunk(mpk_planner *planner);

/* plan_shards.c: SHARDS, all offsets, PARTS, tails. */
moepack_status mpk_plan_shards(mpk_planner *planner);

/* A new section without a place yet. */
moepack_status mpk_plan_section(mpk_planner *planner, uint64_t stored_length, uint64_t *section);

#endif
