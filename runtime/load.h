/* Inside of a load. Internal.
 *
 * A load goes through these steps (load.c):
 *   pieces ... one entry per section the plan names
 *   bytes .... read into one arena, or mapped; every piece knows where its stored bytes are (load_read.c)
 *   check .... stored hashes, on each stretch of bytes while it is hot; then what needs whole sections: NaN scales,
 * canonical hashes, padding (load_check.c) move ..... sections that kernels cannot use where they lie are copied or
 * rearranged into a second arena (load_memory.c) views .... one mpk_layer_view per block (load_view.c) */
#ifndef MOEPACK_RUNTIME_LOAD_H
#define MOEPACK_RUNTIME_LOAD_H

#include "layer.h"
#include "open.h"
#include "plan.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- memory ---- */

/* Anonymous memory, aligned to 2 MiB so that the kernel can back it with huge pages. */
typedef struct mpk_load_memory {
    void *map;
    size_t map_size;
    uint8_t *base;
    size_t size;
} mpk_load_memory;

moepack_status mpk_load_memory_make(mpk_load_memory *arena, uint64_t size, moepack_error *error);
void mpk_load_memory_free(mpk_load_memory *arena);

/* A shard mapped read-only, whole. */
typedef struct mpk_mapping {
    void *map;
    size_t size;
} mpk_mapping;

/* ---- the load ---- */

/* What has to happen to a section before kernels can read it. */
typedef enum mpk_move {
    MPK_MOVE_NOT,      /* used where it lies */
    MPK_MOVE_COPY,     /* not aligned to MPK_VIEW_ALIGNMENT, or its surroundings are given up */
    MPK_MOVE_REARRANGE /* canonical matrices become panels */
} mpk_move;

/* One section in memory. */
typedef struct mpk_piece {
    uint64_t section;        /* number in the index */
    uint64_t offset, stored; /* in the shard file */
    uint64_t record_end;     /* experts: end of the record in the shard file */
    const uint8_t *bytes;    /* stored bytes */
    const uint8_t *data;     /* what views and moepack_load_section use */
    uint64_t length;         /* of `data` */
    uint32_t shard, desc;
    uint32_t block;  /* experts only */
    uint32_t expert; /* MPK_NO_EXPERT: a trunk tensor */
    uint32_t number; /* section of the schema, or trunk tensor */
    mpk_move move;
} mpk_piece;

typedef struct mpk_load_block {
    uint32_t block;
    size_t *first_piece;                           /* [E]; SIZE_MAX: not loaded */
    uint8_t *holds, *computes;                     /* [E] */
    mpk_expert_view *experts;                      /* [E] */
    float *router_bias, *logit_bias, *latent_norm; /* decoded; NULL: the block has none */
    float *expert_bias;                            /* [E][gate, up, down], each padded to whole blocks of 32 */
    int32_t *token_table;                          /* [vocabulary, k] */
    mpk_layer_view view;
    bool has_router;            /* the view's router is there, whatever else is missing */
    moepack_status view_status; /* why this block cannot be run; MOEPACK_OK: it can */
    moepack_error view_error;
} mpk_load_block;

struct moepack_load {
    moepack_pack *pack;
    const moepack_index *index;
    bool dense, router_only, no_experts;
    mpk_piece *pieces; /* experts' pieces by schema section, one expert after the other; tensors */
    size_t piece_count;
    size_t *tensor_piece; /* pieces of trunk tensors, by ascending tensor number */
    size_t tensor_count;
    mpk_load_block *blocks; /* ascending by block number */
    size_t block_count;
    mpk_load_memory stored, moved;
    mpk_mapping *mappings; /* [shards] */
    unsigned cpu_quota;    /* bound of OpenMP's default number of threads */
    mpk_spare *spare;      /* scratch of runs; apart, because runs take the load as const */
};

/* The piece of a trunk tensor, NULL if it was not loaded. */
const mpk_piece *mpk_load_tensor(const moepack_load *load, uint32_t tensor);
/* The entry of a block, NULL if it was not loaded. */
const mpk_load_block *mpk_load_block_of(const moepack_load *load, uint32_t block);
/* Fills an error (already holding a message) with the place of a piece. Returns the error's status. */
moepack_status mpk_load_fail_at(const moepack_load *load, const mpk_piece *piece, moepack_status status,
                                moepack_error *error);

/* ---- the work of loading ---- */

/* Bytes with a hash of their own: a section, or a part of one. */
typedef struct mpk_checked {
    size_t piece;
    uint64_t offset, length; /* in the shard file */
    uint64_t hash;
} mpk_checked;

/* What one thread reads and checks at a time: whole pages, one or more checked stretches. */
typedef struct mpk_unit {
    size_t first_checked, checked_count;
    uint64_t offset, length;
    uint8_t *bytes;
    uint32_t shard;
} mpk_unit;

typedef struct mpk_load_job {
    moepack_load *load;
    const moepack_plan *plan;
    moepack_load_options options;
    unsigned threads; /* that compute */
    unsigned readers; /* of the disk: twice as many by default, because each waits for it about half of its time */
    size_t *order;    /* non-empty pieces by (shard, offset) */
    size_t order_count;
    mpk_checked *checked;
    size_t checked_count, checked_capacity;
    mpk_unit *units;
    size_t unit_count, unit_capacity;
    bool gives_up_stored; /* everything moves: the stored bytes are freed in the end */
    pthread_mutex_t lock; /* guards what follows and the progress callback */
    uint64_t done_bytes, total_bytes, verified_bytes;
    uint64_t read_bytes; /* direct: what was asked of the kernel. mmap: what was touched */
    char reason[160];
    struct mpk_published *published; /* buffers of published bytes that no thread uses at the moment */
} mpk_load_job;

/* load.c: blocks and pieces of the plan. */
moepack_status mpk_load_make_pieces(mpk_load_job *job, const moepack_placement *placement, moepack_error *error);
/* load_read.c: order, checked stretches and units; shards opened. Then the bytes. */
moepack_status mpk_load_cut(mpk_load_job *job, moepack_error *error);
moepack_status mpk_load_read(mpk_load_job *job, moepack_error *error);
/* load_check.c: stored hashes of one unit; then per piece, in a second pass: NaN scales, canonical hash, padding. */
moepack_status mpk_load_check_unit(mpk_load_job *job, const mpk_unit *unit, moepack_error *error);
moepack_status mpk_load_check_piece(mpk_load_job *job, size_t position, moepack_error *error);
void mpk_load_check_end(mpk_load_job *job);
/* load_memory.c: decides what moves and reserves the second arena; then does it for one piece; then gives up what
 * nothing points to any more. */
moepack_status mpk_load_plan_moves(mpk_load_job *job, moepack_error *error);
/* What has to happen to one piece whose bytes have an address, and the length it then has. */
moepack_status mpk_load_plan_move(const moepack_load *load, mpk_piece *piece, moepack_error *error);
moepack_status mpk_load_move_piece(mpk_load_job *job, mpk_piece *piece, moepack_error *error);
void mpk_load_release_stored(mpk_load_job *job);
/* load_view.c */
moepack_status mpk_load_make_views(moepack_load *load, moepack_error *error);
/* Room for the biases of all experts of a block whose policy is known, zeros; `bytes`: how much. */
moepack_status mpk_load_make_biases(mpk_load_block *entry, uint32_t experts, uint64_t *bytes, moepack_error *error);
/* Points the view of one expert at the data of its pieces. */
moepack_status mpk_load_place_expert(const moepack_load *load, mpk_load_block *entry, uint32_t expert,
                                     moepack_error *error);
void mpk_load_free_views(mpk_load_block *block);

/* load_workers.c: calls work(context, i) for every i below count from up to `threads` threads. Stops at the first
 * failure (of those that happened, the one with the lowest i is reported) or when *cancel becomes non-zero. */
moepack_status mpk_workers_run(unsigned threads, size_t count, const volatile int *cancel,
                               moepack_status (*work)(void *context, size_t i, moepack_error *error), void *context,
                               moepack_error *error);
/* min(8, processors that this process may use: mpk_cpus). */
unsigned mpk_workers_default(void);
/* Twice as many, at most 8: for threads that wait for a disk half of their time. */
unsigned mpk_readers_default(void);

/* run.c: at most so many threads where the caller leaves it to us. UINT_MAX: OMP_NUM_THREADS says what is wanted. */
unsigned mpk_default_threads_limit(void);

#endif
