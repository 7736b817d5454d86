/* moepack/runtime.h - from a container to the output of a MoE layer.
 *
 *   moepack_open ........ reads index.mpk (once, hashed); no shard is touched
 *   moepack_placement ... which rank holds which expert
 *   moepack_plan ........ the exact byte ranges a rank needs, before anything is read
 *   moepack_load ........ those bytes in memory, verified; as mmap views or through direct I/O
 *   moepack_layer_run ... y = MoE(x) for one block, on the CPU
 *   moepack_router_run .. which experts tokens go to, from the router's tensors alone
 *   moepack_balance_* ... what a selection bias does to the load of the experts
 *
 * Ownership: what a function returns through `**out` is freed by the function named beside it. A pack outlives its
 * plans and loads. Threads: a pack, placement or plan may be used by many threads; a load may be run by many threads at
 * once (each call uses its own scratch memory; a load keeps that of one call, at most 64 MiB, for the next).
 */
#ifndef MOEPACK_RUNTIME_H
#define MOEPACK_RUNTIME_H

#include "moepack/format.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------- open and inspect */

typedef struct moepack_pack moepack_pack;

/* Opens the container directory `path`. Needs index.mpk alone. Errors: INCOMPLETE (no index, or a .partial directory),
 * CORRUPT, UNSUPPORTED, IO. */
MOEPACK_API moepack_status moepack_open(const char *path, moepack_pack **out, moepack_error *error);
MOEPACK_API void moepack_close(moepack_pack *pack);
/* All inspection goes through the index getters of moepack/format.h. Lives as long as the pack. */
MOEPACK_API const moepack_index *moepack_pack_index(const moepack_pack *pack);
MOEPACK_API const char *moepack_pack_path(const moepack_pack *pack);

/* ------------------------------------------------------------------------------------------------- placement */

typedef struct moepack_placement moepack_placement;

/* `spec` is "linear" (contiguous ranges, the first E mod N ranks hold one expert more), "round-robin" (expert e on rank
 * e mod N), or the path of a JSON file {"ranks": N, "layers": {"*" | label: [[rank, ...] per expert]}}: the first
 * listed rank computes, further ones are replicas. Every expert must be placed at least once, on ranks below N; `ranks`
 * must equal the file's. Any other content is MOEPACK_E_USAGE; errors name file, label, expert and rank. */
MOEPACK_API moepack_status moepack_placement_create(const moepack_pack *pack, const char *spec, uint32_t ranks,
                                                    moepack_placement **out, moepack_error *error);
MOEPACK_API void moepack_placement_free(moepack_placement *placement);
MOEPACK_API uint32_t moepack_placement_ranks(const moepack_placement *placement);
/* Does `rank` hold expert `expert` of block `block` (any replica)? Does it compute it (first listed)? */
MOEPACK_API bool moepack_placement_holds(const moepack_placement *placement, uint32_t rank, uint32_t block,
                                         uint32_t expert);
MOEPACK_API bool moepack_placement_computes(const moepack_placement *placement, uint32_t rank, uint32_t block,
                                            uint32_t expert);

/* Places experts by measured load. rows[b][e]: rows that expert e of block b got (moepack_router_run, a trace); NULL
 * for a block that was not measured, which is placed linearly. Every rank holds the same number of experts of a block,
 * give or take one, and of all blocks together, so memory stays even. Within that, experts go from the most to the
 * least loaded to the rank with the least load so far, and are then exchanged as long as the largest load falls.
 * `replica_bytes` is what a rank may hold beyond that: an expert of the most loaded rank is copied to the least loaded
 * one while that helps an engine that divides an expert's rows evenly among its copies. The first rank of an expert is
 * the one that computes here. Deterministic. Errors: USAGE for no ranks, REFUSED without memory. */
MOEPACK_API moepack_status moepack_placement_balance(const moepack_pack *pack, uint32_t ranks,
                                                     const uint64_t *const *rows, uint64_t replica_bytes,
                                                     moepack_placement **out, moepack_error *error);
/* Rows per rank [ranks] of one block with E counts `rows`; `divided`: an expert's rows are shared evenly by its copies,
 * otherwise the first computes them all. */
MOEPACK_API void moepack_placement_load(const moepack_placement *placement, uint32_t block, const uint64_t *rows,
                                        bool divided, double *per_rank);
/* Writes a file that moepack_placement_create reads. An existing file is REFUSED. */
MOEPACK_API moepack_status moepack_placement_write(const moepack_placement *placement, const moepack_pack *pack,
                                                   const char *path, moepack_error *error);

/* ------------------------------------------------------------------------------------------------- plan */

/* One coalesced read. */
typedef struct moepack_read {
    uint32_t shard;
    uint64_t offset, length;
} moepack_read;

typedef struct moepack_plan moepack_plan;

typedef struct moepack_plan_options {
    size_t size;            /* sizeof(moepack_plan_options) */
    const uint32_t *blocks; /* block numbers; NULL: all */
    uint32_t block_count;
    bool dense;       /* with the blocks' trunk tensors (router, latent, shared); default true */
    uint64_t budget;  /* bytes wanted that this rank may hold; 0: no limit. Exceeded: MOEPACK_E_REFUSED, "needs X bytes,
                         budget is Y" */
    bool router_only; /* no experts, and of the trunk tensors those of the router (`dense` does not matter then): enough
                       * for moepack_router_run and moepack_router_bias */
} moepack_plan_options;

MOEPACK_API void moepack_plan_options_init(moepack_plan_options *options);
/* Byte plan of one rank, from the index alone. MOEPACK_E_INCOMPLETE if the rank's experts include some that a subset
 * container does not hold. */
MOEPACK_API moepack_status moepack_plan_create(const moepack_pack *pack, const moepack_placement *placement,
                                               uint32_t rank, const moepack_plan_options *options, moepack_plan **out,
                                               moepack_error *error);
MOEPACK_API void moepack_plan_free(moepack_plan *plan);
MOEPACK_API uint64_t moepack_plan_experts(const moepack_plan *plan);
/* Stored bytes of the expert sections resp. of the dense tensors; bytes wanted is their sum. */
MOEPACK_API uint64_t moepack_plan_expert_bytes(const moepack_plan *plan);
MOEPACK_API uint64_t moepack_plan_dense_bytes(const moepack_plan *plan);
/* Reads sorted by (shard, offset), adjacent ones merged. They are whole pages of 4096 bytes, as direct I/O asks for
 * them, so their sum exceeds the bytes wanted by the padding inside records and by what shares a page with a small
 * trunk tensor. */
MOEPACK_API size_t moepack_plan_reads(const moepack_plan *plan);
MOEPACK_API void moepack_plan_read(const moepack_plan *plan, size_t i, moepack_read *out);

/* ------------------------------------------------------------------------------------------------- load */

typedef enum moepack_io {
    MOEPACK_IO_DIRECT = 0,
    MOEPACK_IO_MMAP = 1
} moepack_io;
typedef enum moepack_check {
    MOEPACK_CHECK_NONE = 0,
    MOEPACK_CHECK_ON_LOAD = 1,
    MOEPACK_CHECK_FULL = 2
} moepack_check;

typedef struct moepack_load_options {
    size_t size; /* sizeof(moepack_load_options) */
    moepack_io io;
    moepack_check check; /* none | stored hashes while loading (default) | also canonical hashes and padding of what was
                          * loaded. With MMAP, none touches nothing: NaN scale bytes are then not noticed either */
    unsigned threads;    /* reader threads; 0: twice the processors that this process may use, at most 8 */
    void (*progress)(void *user, uint64_t done_bytes, uint64_t total_bytes); /* from reader threads, one at a time */
    void *user;
    const volatile int *cancel; /* non-zero: stop with MOEPACK_E_INTERRUPTED */
} moepack_load_options;

typedef struct moepack_load_report {
    uint64_t bytes_wanted; /* as planned */
    uint64_t bytes_read;   /* DIRECT: asked of the kernel. MMAP: touched by verifying and rearranging. Headers and tails
                              of shards do not count */
    uint64_t bytes_verified; /* whose stored hash was checked, each byte once */
    moepack_io io;           /* path taken */
    char io_reason[160];     /* why not as asked for ("O_DIRECT not supported by tmpfs"), or "" */
    double seconds;
} moepack_load_report;

typedef struct moepack_load moepack_load;

MOEPACK_API void moepack_load_options_init(moepack_load_options *options);
/* Loads what a plan names. With MMAP, views point into the mapped shards (zero copy; valid until moepack_load_free; a
 * file that shrinks under a mapping raises SIGBUS in the reader: use DIRECT on file systems you do not control).
 * Containers in canonical layout are rearranged into panels in memory, and the report says so. Experts with a NaN scale
 * byte are CORRUPT. */
MOEPACK_API moepack_status moepack_load_create(moepack_pack *pack, const moepack_placement *placement, uint32_t rank,
                                               const moepack_plan *plan, const moepack_load_options *options,
                                               moepack_load **out, moepack_load_report *report, moepack_error *error);
MOEPACK_API void moepack_load_free(moepack_load *load);
/* Stored bytes of section s of an expert that was loaded: address (64-byte aligned) and length; NULL if it was not.
 * Sections that were rearranged in memory (canonical layout) are returned as the panels they became. An empty section
 * has an address and length 0. */
MOEPACK_API const void *moepack_load_section(const moepack_load *load, uint32_t block, uint32_t expert, uint32_t s,
                                             uint64_t *length);

/* ------------------------------------------------------------------------------------------------- layer */

typedef enum moepack_compute {
    MOEPACK_COMPUTE_BF16 = 0,
    MOEPACK_COMPUTE_F32 = 1,
    MOEPACK_COMPUTE_INT8 =
        2 /* inputs of the experts' MXFP4 products as 8-bit integers, at most 2e-2 from float64 (relative
           * L2), the same bits everywhere; all else, experts in other forms too, as in BF16 */
} moepack_compute;

typedef struct moepack_layer_options {
    size_t size;             /* sizeof(moepack_layer_options) */
    moepack_compute compute; /* spec/numerics.md */
    unsigned threads;        /* 0: as moepack_threads says */
    const char
        *kernels; /* "scalar", "avx2", "avxvnni", "avx512": that one or an error. NULL: as the environment
                   * variable     MOEPACK_KERNELS says, read at every call; unset or empty: the best for this CPU */
    const moepack_policy *policy; /* NULL: the container's */
    bool partial; /* s of the experts this rank computes (first listed in the placement); y is not written */
    const float *router_bias; /* [E] in place of the container's selection bias; NULL: the container's. Without effect
                               * where the policy has none (select = score) */
    const int32_t *token_ids; /* [T], for policies with token_ids = yes; an id past the layer's table is USAGE */
    size_t sequences;         /* x is that many sequences of equal length, one behind the other; 0: one. Only counts
                               * for the capacity */
    bool capacity; /* moepack_layer_run drops what exceeds the policy's capacity (spec/numerics.md 5.7); default: every
                    * token is computed. The calls that do a part of the layer refuse it (USAGE) */
} moepack_layer_options;

/* Caller-owned results; any may be NULL. k and L come from the policy (L = expert_input). */
typedef struct moepack_layer_output {
    float *y;            /* [T, H] */
    float *s;            /* [T, L] weighted sum of the experts, before norm and up projection */
    int32_t *topk_ids;   /* [T, k] slot order: choice descending, id ascending */
    float *topk_weights; /* [T, k] */
    int32_t *kept;       /* [T] how many of a token's slots were within the capacity: k where none is in force */
} moepack_layer_output;

MOEPACK_API void moepack_layer_options_init(moepack_layer_options *options);
/* Runs one block on x [T, H]. The load must hold the block's dense tensors, and (unless `partial`) every expert the
 * router picks: else MOEPACK_E_INCOMPLETE names the expert. Results do not depend on threads, on T, on kernels or on
 * the I/O path. Threads come from OpenMP, whose runtime ends the process when the system refuses to start one (a limit
 * on processes or on address space); nothing above it can prevent that. With threads = 1 none is started. */
MOEPACK_API moepack_status moepack_layer_run(const moepack_load *load, uint32_t block, const float *x, size_t tokens,
                                             const moepack_layer_options *options, const moepack_layer_output *output,
                                             moepack_error *error);

/* The same layer in three calls, for an engine that has its own router, or that adds up s over ranks in between. One
 * after the other they give the bits of moepack_layer_run. All need the block's dense tensors in the load; errors are
 * those of moepack_layer_run. begin: router and latent projection. x [T, H] to topk_ids [T, k], topk_weights [T, k] and
 * z [T, L], what experts read (x itself where there is no latent; rounded to BF16 in the default mode). Any result may
 * be NULL. */
MOEPACK_API moepack_status moepack_layer_begin(const moepack_load *load, uint32_t block, const float *x, size_t tokens,
                                               const moepack_layer_options *options, int32_t *topk_ids,
                                               float *topk_weights, float *z, moepack_error *error);
/* The routed experts: s [T, L] = sum over the slots of weights[t, i] * expert ids[t, i] of z[t], in slot order. ids and
 * weights are [T, slots], any number of slots; ids lie below E (else USAGE). With options->partial, experts that this
 * rank does not compute are left out; else one that was not loaded is INCOMPLETE. */
MOEPACK_API moepack_status moepack_experts_run(const moepack_load *load, uint32_t block, const float *z,
                                               const int32_t *ids, const float *weights, size_t tokens, size_t slots,
                                               const moepack_layer_options *options, float *s, moepack_error *error);
/* Norm, up projection and shared experts: x [T, H] and the complete s [T, L] to y [T, H]. */
MOEPACK_API moepack_status moepack_layer_finish(const moepack_load *load, uint32_t block, const float *x,
                                                const float *s, size_t tokens, const moepack_layer_options *options,
                                                float *y, moepack_error *error);

/* ------------------------------------------------------------------------------------------------- residency */

/* Which expert gives way: the least recently used one, or the one with the fewest uses (halved every 8 uses per slot;
 * ties: the least recently used). Pinned experts never do: with moepack_residency_pin a residency holds a fixed set. */
typedef enum moepack_evict {
    MOEPACK_EVICT_LRU = 0,
    MOEPACK_EVICT_LFU = 1
} moepack_evict;

typedef struct moepack_residency_options {
    size_t size;            /* sizeof(moepack_residency_options) */
    const uint32_t *blocks; /* block numbers; NULL: all */
    uint32_t block_count;
    uint64_t budget; /* bytes of weights that may be in memory: dense tensors, slots, and where records are rearranged a
                      * read buffer per thread. Scratch of calls and the tables of the index are not counted */
    moepack_evict evict;
    moepack_io io; /* DIRECT: misses past the page cache. MMAP: through it; dense tensors stay mapped */
    moepack_check check;
    unsigned threads; /* that read, at most 64; 0: min(4, twice the processors). Fewer where their read buffers would
                         not fit */
} moepack_residency_options;

typedef struct moepack_residency_report {
    uint64_t budget, budget_used; /* budget_used: all that was reserved; does not change and never exceeds the budget */
    uint64_t dense_bytes, slot_bytes;
    uint64_t slots, experts; /* slots; experts of this rank */
    uint64_t hits;           /* acquired, and in memory since an earlier use */
    uint64_t misses;         /* acquired, and read for it */
    uint64_t misses_in_time; /* of these: already there, thanks to a prefetch */
    uint64_t evictions;
    uint64_t failed_reads;               /* of experts; they count as neither hit nor miss */
    uint64_t bytes_read, bytes_verified; /* of experts, also by reads that failed in the end */
    uint64_t dense_bytes_read, dense_bytes_verified;
    uint64_t resident_bytes; /* dense tensors, and slots with an expert */
    double wait_seconds;     /* of all acquiring threads */
    moepack_io io;           /* as in moepack_load_report, of the dense tensors */
    char io_reason[160];     /* the same, of the dense tensors and of experts */
} moepack_residency_report;

typedef struct moepack_residency moepack_residency;

MOEPACK_API void moepack_residency_options_init(moepack_residency_options *options);
/* A rank with fewer bytes than its experts need. Dense tensors are loaded here; experts are read when they are
 * acquired, each into a slot of one fixed size, and checked as by moepack_load_create before anything sees them.
 * REFUSED with the numbers where the budget does not hold the dense tensors and k experts (fewer where the rank has
 * fewer). The pack and the placement outlive it. Other errors: as moepack_load_create. */
MOEPACK_API moepack_status moepack_residency_create(moepack_pack *pack, const moepack_placement *placement,
                                                    uint32_t rank, const moepack_residency_options *options,
                                                    moepack_residency **out, moepack_error *error);
/* Stops reading and gives everything back. Nobody may still use the residency. */
MOEPACK_API void moepack_residency_free(moepack_residency *residency);

/* All functions below may be called from any number of threads.
 *
 * acquire: waits until the expert is in memory and keeps it there until released as often as acquired. REFUSED where
 * every slot is held by others; CORRUPT, IO ... where it cannot be read: the residency stays usable. INCOMPLETE: not
 * this rank's expert. Allocates nothing. */
MOEPACK_API moepack_status moepack_residency_acquire(moepack_residency *residency, uint32_t block, uint32_t expert,
                                                     moepack_error *error);
MOEPACK_API void moepack_residency_release(moepack_residency *residency, uint32_t block, uint32_t expert);
/* As moepack_load_section, of an expert that the caller has acquired. */
MOEPACK_API const void *moepack_residency_section(moepack_residency *residency, uint32_t block, uint32_t expert,
                                                  uint32_t s, uint64_t *length);
/* Asks for experts that will be needed (a router's top-k of the next tokens), in this order, and returns at once. Ids
 * that this rank does not hold are passed over. What is in use, what a run that began will use, and what was asked for
 * (in memory already or not) and not used since, does not give way to a prefetch; a failure shows when the expert is
 * acquired. */
MOEPACK_API void moepack_residency_prefetch(moepack_residency *residency, uint32_t block, const int32_t *ids,
                                            size_t count);
/* Reads an expert and keeps it until unpinned. REFUSED where fewer than k slots would be left. */
MOEPACK_API moepack_status moepack_residency_pin(moepack_residency *residency, uint32_t block, uint32_t expert,
                                                 moepack_error *error);
MOEPACK_API void moepack_residency_unpin(moepack_residency *residency, uint32_t block, uint32_t expert);
MOEPACK_API void moepack_residency_report_get(moepack_residency *residency, moepack_residency_report *report);
/* moepack_layer_run with the experts of a residency: the same bits. Experts in memory are computed, few at a time while
 * others are still to be read; every expert is read at most once for a part of up to 256 tokens (unless other threads
 * use the residency, too), whose expert outputs [tokens, k, L] F32 are kept (at most 128 MiB). It waits while others
 * hold every slot: the calling thread must not. */
MOEPACK_API moepack_status moepack_residency_run(moepack_residency *residency, uint32_t block, const float *x,
                                                 size_t tokens, const moepack_layer_options *options,
                                                 const moepack_layer_output *output, moepack_error *error);

/* ------------------------------------------------------------------------------------------------- routing */

/* Caller-owned results; any may be NULL. */
typedef struct moepack_router_output {
    float *scores;       /* [T, E] unbiased scores; logits where the function applies to the selected alone */
    int32_t *topk_ids;   /* [T, k] slot order, as moepack_layer_run gives them, bit for bit */
    float *topk_weights; /* [T, k] */
} moepack_router_output;

/* Routes x [T, H] through one block. A load made with `router_only` suffices; errors are those of moepack_layer_run. */
MOEPACK_API moepack_status moepack_router_run(const moepack_load *load, uint32_t block, const float *x, size_t tokens,
                                              const moepack_layer_options *options, const moepack_router_output *output,
                                              moepack_error *error);
/* The block's selection bias [E]. *present: whether it has one; `bias` is zeros where it has none. */
MOEPACK_API moepack_status moepack_router_bias(const moepack_load *load, uint32_t block, float *bias, bool *present,
                                               moepack_error *error);

/* What a selection bias b does to the load, from unbiased scores s [T, E]; all in float64, with OpenMP's
 * default number of threads, on which results do not depend. These need no load and no pack. The
 * selection is the router's without groups: the k largest of s + b, equal ones by lower id. Scores and biases must be
 * finite (else USAGE, naming the place), 1 <= k <= E < 2^31.
 *
 * load: rows per expert, [E]; T = 0 gives zeros. */
MOEPACK_API moepack_status moepack_balance_load(const double *scores, size_t tokens, uint32_t experts, uint32_t top_k,
                                                const double *bias, uint64_t *load, moepack_error *error);
/* One step of Quantile Balancing, in place; no step size.
 *   alpha_i = the (k+1)-th largest of s_i + b: what token i's choices must exceed
 *   c_j     = the (1 - k/E) quantile over tokens of s_ij - alpha_i: ascending m[0 .. T-1], position p = (T-1)(E-k)/E
 *             split in integers into floor and rest: m[floor] + rest x (m[floor+1] - m[floor])
 *   b_j     = -c_j - mean(-c)
 * so that without ties every expert would be chosen by its fair share of the tokens. alpha [T] and c [E] may be NULL.
 * USAGE unless k < E and T >= 1. */
MOEPACK_API moepack_status moepack_balance_quantile(const double *scores, size_t tokens, uint32_t experts,
                                                    uint32_t top_k, double *bias, double *alpha, double *c,
                                                    moepack_error *error);
/* One step of the older sign rule, in place: b_j += gamma * sign(mean load - load_j). `gamma` must be finite and
 * positive. */
MOEPACK_API moepack_status moepack_balance_sign(const uint64_t *load, uint32_t experts, double gamma, double *bias,
                                                moepack_error *error);

/* Threads that a call of the layer uses where it is left to the library: OMP_NUM_THREADS or omp_set_num_threads, else
 * the processors of the affinity mask, no more than the control group's CPU quota when the load was made. Inside a
 * parallel region of the caller only the calling thread works, unless nested regions are allowed
 * (OMP_MAX_ACTIVE_LEVELS). */
MOEPACK_API unsigned moepack_threads(void);

/* Name of the kernel set that `kernels` (NULL: as in moepack_layer_options) selects on this CPU. */
MOEPACK_API moepack_status moepack_kernels_name(const char *kernels, const char **name, moepack_error *error);

#ifdef __cplusplus
}
#endif
#endif
