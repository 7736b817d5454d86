/* Synthetic checkpoints: a family's published layout, any geometry, random weights.
 *
 * A family is a table of tensors (names, shapes in symbols, value laws) and a function that writes its config.
 * Everything else - planning, shards, generation in several threads, publishing - is the same for all. */
#ifndef MOEPACK_SYNTH_H
#define MOEPACK_SYNTH_H

#include "moepack/convert.h"
#include "weights.h"

#include <jansson.h>

/* ------------------------------------------------------------------------------------------------- geometry */

/* What the user chooses. */
typedef struct mpk_synth_geometry {
    uint64_t hidden;
    uint64_t latent;       /* width at which routed experts work; 0: no latent space, they run at `hidden` */
    uint64_t intermediate; /* of one expert */
    uint64_t experts, top_k;
    uint64_t shared; /* shared experts, stored as one of this many times the width; 0: none */
    uint64_t layers, first_dense;
    uint64_t dense_intermediate; /* of the dense layers' MLP */
    uint64_t vocab;
} mpk_synth_geometry;

/* Sizes that shapes are written in. */
typedef enum mpk_synth_dim {
    MPK_SYNTH_ONE,
    MPK_SYNTH_HIDDEN,
    MPK_SYNTH_WIDTH, /* latent, or hidden without a latent space */
    MPK_SYNTH_INTERMEDIATE,
    MPK_SYNTH_EXPERTS,
    MPK_SYNTH_SHARED, /* shared x intermediate */
    MPK_SYNTH_DENSE,
    MPK_SYNTH_VOCAB,
    MPK_SYNTH_ATTENTION, /* heads x head width of the small attention stand-in */
    MPK_SYNTH_HEADS,
    MPK_SYNTH_DIMS
} mpk_synth_dim;

enum {
    MPK_SYNTH_HEAD_COUNT = 2,
    MPK_SYNTH_HEAD_WIDTH = 16
};

/* ------------------------------------------------------------------------------------------------- families */

typedef enum mpk_synth_place {
    MPK_SYNTH_AT_START,
    MPK_SYNTH_EVERY_LAYER,
    MPK_SYNTH_DENSE_LAYER,
    MPK_SYNTH_MOE_LAYER,
    MPK_SYNTH_EXPERT, /* experts come after everything else of their layer, in an order that the seed decides */
    MPK_SYNTH_AT_END
} mpk_synth_place;

typedef enum mpk_synth_store {
    MPK_SYNTH_BF16,
    MPK_SYNTH_F32,
    MPK_SYNTH_MXFP4 /* two tensors: NAME_packed U8 [rows, cols / 2], then NAME_scale U8 [rows, cols / 32] */
} mpk_synth_store;

typedef enum mpk_synth_need {
    MPK_SYNTH_ALWAYS,
    MPK_SYNTH_NEEDS_LATENT,
    MPK_SYNTH_NEEDS_SHARED
} mpk_synth_need;

typedef struct mpk_synth_tensor {
    mpk_synth_place place;
    const char *name; /* {layer} and {expert} stand for numbers */
    mpk_synth_store store;
    unsigned rank; /* 1: [cols], 2: [rows, cols] */
    mpk_synth_dim rows, cols;
    double centre;
    double gain;          /* standard deviation; divided by sqrt(cols) when rank is 2 */
    double spread;        /* of the row scales, see mpk_synth_law */
    double tensor_spread; /* of the scales of whole tensors, the same way */
    mpk_synth_need need;
} mpk_synth_tensor;

typedef struct mpk_synth_family {
    const char *name, *about;
    const mpk_synth_tensor *tensors;
    size_t tensor_count;
    /* config.json; NULL without memory. Reals are strings "real:0.5": their text is part of the files that a seed
     * decides. */
    json_t *(*config)(const mpk_synth_geometry *geometry);
    /* Geometry of the published model, for --preset. */
    const char *preset;
    mpk_synth_geometry published;
    mpk_synth_geometry small; /* the default */
} mpk_synth_family;

extern const mpk_synth_family mpk_synth_kimi_k3;

/* The i-th family, NULL past the end. */
const mpk_synth_family *mpk_synth_family_get(size_t i);
const mpk_synth_family *mpk_synth_family_find(const char *name);

/* ------------------------------------------------------------------------------------------------- plan */

/* What is never cut by a shard's end: a tensor, or all tensors of one expert. */
typedef struct mpk_synth_atom {
    uint32_t layer;
    int32_t expert;  /* -1: a single tensor */
    uint32_t tensor; /* in the family's table; the first one of an expert */
    uint32_t shard;
} mpk_synth_atom;

typedef struct mpk_synth_plan {
    const mpk_synth_family *family;
    mpk_synth_geometry geometry;
    uint64_t seed;
    uint64_t dims[MPK_SYNTH_DIMS];
    mpk_synth_atom *atoms; /* in file order */
    size_t atom_count;
    uint32_t shard_count;
    uint64_t tensors, experts;
    uint64_t total_bytes; /* of tensor data */
    uint64_t disk_bytes;  /* upper bound of all files */
} mpk_synth_plan;

/* shards 0: one per layer. USAGE: sizes that contradict each other; REFUSED: not enough memory. */
moepack_status mpk_synth_plan_make(mpk_synth_plan *plan, const mpk_synth_family *family,
                                   const mpk_synth_geometry *geometry, uint64_t seed, uint64_t shards,
                                   moepack_error *error);
void mpk_synth_plan_free(mpk_synth_plan *plan);

/* Number of table rows that atom stands for, from atom->tensor on. */
size_t mpk_synth_atom_tensors(const mpk_synth_plan *plan, const mpk_synth_atom *atom);

#define MPK_SYNTH_NAME 256

/* One published tensor of an atom. `part` counts within its table row: 0, and 1 for the scales of MXFP4. */
typedef struct mpk_synth_item {
    char name[MPK_SYNTH_NAME];
    moepack_dtype dtype;
    unsigned rank;
    uint64_t dims[2];
    uint64_t bytes;
} mpk_synth_item;

unsigned mpk_synth_parts(const mpk_synth_tensor *tensor);
void mpk_synth_item_make(const mpk_synth_plan *plan, const mpk_synth_atom *atom, const mpk_synth_tensor *tensor,
                         unsigned part, mpk_synth_item *item);

/* Calls `visit` for every tensor of a shard in file order; stops at the first failure. */
typedef moepack_status mpk_synth_visit(void *user, const mpk_synth_item *item, moepack_error *error);
moepack_status mpk_synth_shard_visit(const mpk_synth_plan *plan, uint32_t shard, mpk_synth_visit *visit, void *user,
                                     moepack_error *error);

#define MPK_SYNTH_FILE 64
void mpk_synth_shard_name(const mpk_synth_plan *plan, uint32_t shard, char name[MPK_SYNTH_FILE]);

/* ------------------------------------------------------------------------------------------------- output */

typedef struct mpk_synth_report {
    uint64_t tensors, experts, shards;
    uint64_t tensor_bytes;  /* metadata.total_size */
    uint64_t written_bytes; /* all files */
    double seconds;
} mpk_synth_report;

/* Data of all shards into the directory `dir`. */
moepack_status mpk_synth_write_shards(const mpk_synth_plan *plan, const char *dir, unsigned jobs,
                                      const moepack_callbacks *callbacks, moepack_error *error);

/* The whole checkpoint: `out` must not exist or be an empty directory. Work goes to `out`.partial, which is renamed in
 * the end; on failure nothing remains of it. jobs 0: one per processor, at most 8. REFUSED: `out` or `out`.partial
 * exists, not enough disk. */
moepack_status mpk_synth_write(const mpk_synth_plan *plan, const char *out, unsigned jobs,
                               const moepack_callbacks *callbacks, mpk_synth_report *report, moepack_error *error);

/* A file with `x` [tokens, hidden] BF16 as a norm in front of the MoE block gives it: uneven channels, two of them
 * massive. REFUSED if `path` exists. */
moepack_status mpk_synth_write_input(const char *path, uint64_t seed, uint64_t tokens, uint64_t hidden,
                                     moepack_error *error);

/* Fills `error` (may be NULL) and returns the status; with errno_value != 0 strerror's text is appended. */
moepack_status mpk_synth_fail(moepack_error *error, moepack_status status, int errno_value, const char *fmt, ...)
    MOEPACK_PRINTF(4, 5);

#endif
