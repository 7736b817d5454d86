/* Inside of a residency. Internal.
 *
 * A residency is a load whose experts come and go: the pieces, checked stretches and units of the loader, with slots of
 * one size in place of the arena. Reading is done by a pool of threads; whoever acquires waits for them. */
#ifndef MOEPACK_RUNTIME_RESIDENCY_H
#define MOEPACK_RUNTIME_RESIDENCY_H

#include "io/io.h"
#include "load.h"

#define MPK_NO_SLOT UINT32_MAX
#define MPK_NO_ENTRY SIZE_MAX

typedef enum mpk_entry_state {
    MPK_ENTRY_ABSENT,
    MPK_ENTRY_QUEUED,
    MPK_ENTRY_LOADING,
    MPK_ENTRY_READY,
    MPK_ENTRY_FAILED /* the slot keeps the error until the last that waited has seen it */
} mpk_entry_state;

typedef struct mpk_entry {
    uint32_t block, expert;
    size_t first_unit, unit_count, first_order, order_count;
    uint64_t offset, length; /* the record's pages in its shard */
    uint32_t shard, slot;
    uint32_t refs;     /* holders, and those who wait */
    uint32_t expected; /* runs that will acquire it */
    bool held, pinned;
    bool used;  /* since it was read */
    bool asked; /* by a prefetch, and not used since */
    mpk_entry_state state;
    uint64_t stamp, uses;  /* LRU: of the last use; LFU: aged number of uses */
    size_t next, previous; /* queue */
} mpk_entry;

typedef struct mpk_slot {
    size_t entry; /* MPK_NO_ENTRY: free */
    moepack_status status;
    moepack_error error;
} mpk_slot;

struct moepack_residency {
    mpk_load_job job; /* lock: of the loader's counters */
    moepack_load *dense;
    moepack_plan *dense_plan, *plan;
    moepack_residency_options options;
    mpk_entry *entries;
    size_t entry_count;
    size_t *first_entry; /* [blocks of the load][E]: number in `entries`, MPK_NO_ENTRY */
    size_t *block_start; /* [blocks of the load] */
    mpk_slot *slots;
    uint32_t slot_count;
    uint64_t slot_bytes, stage_bytes, dense_bytes, bias_bytes;
    mpk_load_memory stages;
    mpk_direct *files; /* [shards] */
    bool *opened;
    pthread_t *threads;
    unsigned started;     /* threads that were created */
    pthread_mutex_t lock; /* guards all below, and states of entries and slots */
    pthread_cond_t work, arrived;
    bool closing;
    unsigned thread_count; /* threads that run, in the order of their stages */
    size_t queue_first, queue_last;
    uint32_t held_count;                /* entries held or pinned: never more than slots */
    uint32_t pinned_count, least_slots; /* least_slots: what a call needs */
    uint64_t clock, since_ageing;
    moepack_residency_report report;
};

/* residency_cache.c */
mpk_entry *mpk_residency_entry(const moepack_residency *r, uint32_t block, uint32_t expert);
/* A run says which experts it is going to acquire, and takes that back for each: meanwhile they give way to no
 * prefetch, and come before one. */
void mpk_residency_expect(moepack_residency *r, uint32_t block, const int32_t *ids, size_t count);
void mpk_residency_forget(moepack_residency *r, mpk_entry *e);
/* Queues what is absent. `asked`: for a prefetch. Returns how many are not in memory yet. */
size_t mpk_residency_request(moepack_residency *r, uint32_t block, const int32_t *ids, size_t count, bool asked);
typedef enum mpk_acquire {
    MPK_ACQUIRE_TRY,  /* only what is there; *got says */
    MPK_ACQUIRE_ONCE, /* REFUSED where every slot is held */
    MPK_ACQUIRE_WAIT  /* waits for a slot: for callers that hold none */
} mpk_acquire;
moepack_status mpk_residency_acquire(moepack_residency *r, mpk_entry *e, mpk_acquire how, bool *got,
                                     moepack_error *error);
void mpk_residency_release(moepack_residency *r, mpk_entry *e);
void *mpk_residency_thread(void *argument);

/* residency_run.c: `view` is of the dense tensors, without experts. */
moepack_status mpk_residency_run_view(moepack_residency *r, uint32_t block, const mpk_layer_view *view,
                                      const mpk_layer_options *how, const float *x, size_t tokens, bool partial,
                                      const moepack_layer_output *out, moepack_error *error);

/* residency_read.c: brings one expert into its slot, verified. `stage`: this thread's, where records move. `bytes`:
 * what was read, also where it failed. */
moepack_status mpk_residency_read(moepack_residency *r, mpk_entry *e, uint8_t *stage, uint64_t *bytes,
                                  moepack_error *error);

#endif
