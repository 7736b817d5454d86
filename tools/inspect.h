/* Parts of `moepack inspect`. The command reads the index; only --stats of a layer or expert reads scale planes from
 * shards. */
#ifndef MOEPACK_TOOLS_INSPECT_H
#define MOEPACK_TOOLS_INSPECT_H

#include "summary.h"

#define INSPECT_NONE UINT32_MAX

typedef struct inspect_args {
    cli_common common;
    const char *layer;
    uint64_t expert;
    bool shards, tensors, policy, stats, expert_given;
} inspect_args;

/* What all views share. */
typedef struct inspect_view {
    const inspect_args *args;
    const moepack_pack *pack;
    const char *path;
    const moepack_index *index;
    moepack_info info;
    pack_summary summary;
    uint32_t block;              /* --layer, or INSPECT_NONE */
    uint32_t expert;             /* --expert, or INSPECT_NONE */
    struct inspect_stats *stats; /* --stats, else NULL */
} inspect_view;

/* The record of --layer L --expert E; its schema's sections are desc first_desc + s. */
void inspect_expert_record(const inspect_view *view, moepack_record *record, uint32_t *first_desc, uint32_t *sections);

/* ---- inspect_text.c, inspect_json.c: one function each for the chosen view */
void inspect_print_text(const inspect_view *view);
json_t *inspect_json(const inspect_view *view);

/* ---- inspect_stats.c */

/* Bytes of one role and plane, over everything that the view selects. */
typedef struct inspect_sum {
    uint64_t matrices, published_bytes, stored_bytes;
} inspect_sum;

enum {
    INSPECT_ROLES = 32,
    INSPECT_PLANES = 8,
    INSPECT_SCALES = 256
};

typedef struct inspect_stats {
    inspect_sum sums[INSPECT_ROLES][INSPECT_PLANES];
    inspect_sum carried;                /* trunk tensors that no MoE layer uses */
    bool scales;                        /* exponents were counted */
    uint64_t exponents[INSPECT_SCALES]; /* by E8M0 byte: 2^(byte - 127), 255: NaN */
} inspect_stats;

/* Sums for the whole container, a layer or an expert; for the latter two also the histogram of the experts' E8M0
 * scales, for which their scale planes are read, and checked, from the shards. */
moepack_status inspect_gather_stats(const inspect_view *view, inspect_stats *out, moepack_error *error);
/* "gate weight", "router weight" ... */
void inspect_sum_name(unsigned role, unsigned plane, char *buf, size_t size);

#endif
