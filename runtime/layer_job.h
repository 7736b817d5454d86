/* One call of the layer while it runs: what is wanted, the arrays of a chunk, and the steps. Shared by the layer's own
 * files: layer.c (calls), layer_stages.c (what may run when), layer_memory.c, layer_product.c, layer_steps.c,
 * layer_experts.c. */
#ifndef MOEPACK_RUNTIME_LAYER_JOB_H
#define MOEPACK_RUNTIME_LAYER_JOB_H

#include "cpu/elementary.h"
#include "cpu/kernels.h"
#include "layer.h"
#include "layer_internal.h"
#include "schedule.h"

/* Tokens that one kernel call gets: bounds the pointer arrays on the stack and the buffers of a thread. */
#define MPK_CALL_TOKENS 64
/* Row blocks of 16 in one task, at most: long runs keep prefetching useful. */
#define MPK_MAX_RUN 8

/* Sizes, and the same rounded up to whole blocks of 32 columns. */
typedef struct mpk_shape {
    size_t hidden, input, inner, shared, experts, k;
    size_t hidden_pad, input_pad, inner_pad, shared_pad, experts_pad;
} mpk_shape;

/* The parts of a chunk's work that wait for each other, in order of preference: see layer_stages.c. */
enum {
    MPK_STAGE_PREPARE,     /* a task for each token: the input, or the given latent */
    MPK_STAGE_ROUTER,      /* step 1, a task for a run of row blocks, like all products */
    MPK_STAGE_LATENT_DOWN, /* step 4 */
    MPK_STAGE_ROUTE,       /* steps 2 and 3, a task for each token */
    MPK_STAGE_LATENT,      /* rounding of step 4, a task for each token */
    MPK_STAGE_WEIGH,       /* inputs times weights where the policy says so, a task for each token */
    MPK_STAGE_GROUP,       /* one task: tokens by expert */
    MPK_STAGE_GATE_UP,     /* step 5, a task for each active expert and run of row blocks */
    MPK_STAGE_DOWN,        /* the same */
    MPK_STAGE_SUM,         /* step 6, a task for each token and part of its columns */
    MPK_STAGE_NORM,        /* step 7, a task for each token */
    MPK_STAGE_SHARED_GATE, /* the logit of the shared experts' gate */
    MPK_STAGE_SHARED,      /* first half of the shared experts: fills the gaps of all stages above */
    MPK_STAGE_OUTPUT,      /* step 8 */
    MPK_STAGES
};

/* One call: what is wanted, and the arrays of one chunk. Rows of arrays are padded with zeros to whole blocks. */
typedef struct mpk_job {
    const mpk_layer_view *view;
    const mpk_kernels *kernels;
    mpk_shape n;
    bool round;        /* not MPK_COMPUTE_F32 */
    bool int8;         /* MPK_COMPUTE_INT8 */
    bool want_experts; /* steps 4 to 6 */
    bool want_y;       /* steps 7 and 8 */
    bool given_sum;    /* steps 1 to 6 were done elsewhere: s is an input */
    bool want_latent;  /* step 4, where experts are not wanted */
    bool given_latent; /* steps 1 to 4 were done elsewhere: z, ids and weights are inputs */
    bool need_all;     /* a selected expert that is absent is an error also without y */
    bool own_output;   /* one slot: s is the expert's output, not a weighted sum */
    bool need_x;       /* somebody besides the router reads x */
    bool direct_x;     /* rows of x are used where the caller has them */
    unsigned threads;

    size_t capacity, tokens; /* of the chunk arrays, and in use */
    const float *x_in, *s_in, *z_in, *weights_in;
    const int32_t *ids_in;
    mpk_layer_output out;
    float *z_out;      /* [T, L] of step 4 */
    float *scores_out; /* [T, E] of step 1 */

    float *x_raw;             /* [T][hidden_pad] as given; not there with direct_x */
    float *x;                 /* [T][hidden_pad] rounded; = x_raw in F32 mode */
    float *logits;            /* [T][experts_pad] */
    float *z;                 /* [T][input_pad] what experts read; = x without a latent */
    mpk_fix16_block *z_fix16; /* [T][input_pad / 32] */
    mpk_int8_block *z_int8;   /* the same, only where int8 is set */
    int32_t *ids;             /* [T][k] */
    int32_t *computed;        /* [T][k] the same with -1 where the capacity is exceeded; = ids without one */
    uint32_t *filled;         /* [experts] tokens of the current sequence so far, only with a capacity */
    float *weights;           /* [T][k] */
    uint32_t *start;          /* [experts + 1]: pairs of expert e are pairs[start[e]] .. pairs[start[e + 1]] */
    uint32_t *pairs;          /* [T k] t k + slot, sorted by expert, then by token */
    uint32_t *active;         /* experts with pairs that are present */
    size_t active_count;
    uint8_t *act;                   /* [T k][inner_pad floats or blocks] input of the down projection */
    float *o;                       /* [T k][input_pad] its output */
    mpk_fix16_block *weighed_fix16; /* [T k][input_pad / 32] */
    mpk_int8_block *weighed_int8;   /* the same, only where int8 is set */
    float *weighed;                 /* [T k][input_pad] inputs times weights, where the policy weights the input */
    float *shared;                  /* [T][shared_pad] */
    float *shared_gate;             /* [T][MPK_ROWS] of which the first is the logit */
    float *s;                       /* [T][input_pad] */
    float *n_out;                   /* [T][input_pad] input of the up projection */
    const void **x_rows, **raw_rows, **z_rows, **z_fix16_rows, **z_int8_rows, **shared_rows, **n_rows; /* [T] */

    uint8_t *scratch; /* [threads][scratch_bytes] */
    size_t scratch_bytes;

    mpk_schedule *schedule; /* of the chunk */
    size_t run[MPK_STAGES]; /* row blocks in a task */
    size_t sum_columns;     /* columns in a task of MPK_STAGE_SUM */

    const int32_t *token_ids; /* [T] */
    uint64_t limit;           /* tokens an expert takes of a sequence; UINT64_MAX: any number */
    size_t sequence;          /* tokens in a sequence */
    size_t first_token;       /* of the chunk */

    int64_t missing_expert; /* -1: none */
    size_t missing_token;
} mpk_job;

/* ------------------------------------------------------------------------------------------------ layer_memory.c */

/* Chooses the chunk and returns the bytes it needs, 0 on overflow. */
size_t mpk_job_plan(mpk_job *j, size_t tokens);

/* Scratch memory of at least that size, NULL where there is none; and its return. `spare` may be NULL. */
void *mpk_spare_take(mpk_spare *spare, size_t bytes);
void mpk_spare_give(mpk_spare *spare, void *memory);

/* Points the arrays of the planned chunk into `base`, of that many bytes. */
void mpk_job_place(mpk_job *j, void *base);

/* ------------------------------------------------------------------------------------------------ layer_product.c */

static inline size_t mpk_row_blocks(const mpk_matrix_view *m)
{
    return (size_t)((m->rows + MPK_ROWS - 1) / MPK_ROWS);
}

/* What products read: floats, or one of the blocks of integers. */
typedef enum mpk_input {
    MPK_INPUT_F32,
    MPK_INPUT_FIX16,
    MPK_INPUT_INT8,
    MPK_INPUTS
} mpk_input;

/* What a product with this matrix of an expert reads. Dense parts read floats. */
mpk_input mpk_input_of(const mpk_job *j, const mpk_matrix_view *m);

/* y[i] for `count` row blocks from `first` on, for tokens with input rows x[0 .. tokens), at most MPK_CALL_TOKENS. The
 * one place where the kernel for a matrix is chosen. */
void mpk_multiply(const mpk_job *j, const mpk_matrix_view *m, mpk_input input, size_t first, size_t count,
                  const void *const *x, float *const *y, size_t tokens);

/* The same into rows of an array, MPK_CALL_TOKENS at a time. */
void mpk_multiply_rows(const mpk_job *j, const mpk_matrix_view *m, size_t first, size_t count, const void *const *x,
                       float *y, size_t stride, size_t tokens);

/* Bytes of a row block, for the size of tasks. */
size_t mpk_row_block_bytes(const mpk_matrix_view *m);

/* ------------------------------------------------------------------------------------------------ layer_stages.c */

/* Does one chunk with a team of threads. */
void mpk_run_chunk(mpk_job *j);

/* Row blocks in a task: long runs stream well, but every thread should get some eight tasks. The last one may be
 * shorter. At most `limit`. */
size_t mpk_run_length(const mpk_job *j, size_t blocks, size_t block_bytes, size_t limit);

/* Sets the tasks of step 8, once it is certain that there will be one. */
void mpk_set_output_tasks(mpk_job *j);

/* ------------------------------------------------------------------------------------------------ tasks
 * Task i of a stage; `scratch` is the thread's own. The steps of spec/numerics.md. layer_steps.c: */

void mpk_prepare_token(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_router_rows(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_latent_rows(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_route_token(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_finish_latent(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_weigh_inputs(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_shared_gate_rows(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_norm_token(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_output_rows(mpk_job *j, size_t i, uint8_t *scratch);

/* layer_experts.c: */

/* Sorts the pairs (token, slot) by expert, lists the experts that have work here, and sets the tasks of the stages that
 * depend on it. */
void mpk_group_pairs(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_shared_columns(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_gate_up_rows(mpk_job *j, size_t i, uint8_t *scratch);
void mpk_down_rows(mpk_job *j, size_t i, uint8_t *scratch);

/* Fills `computed` and the caller's `kept` from the ids of the chunk. */
void mpk_apply_capacity(mpk_job *j);

/* Adds a token's outputs in slot order: the sum does not depend on who computed what when. */
void mpk_sum_columns(mpk_job *j, size_t i, uint8_t *scratch);

/* ------------------------------------------------------------------------------------------------ small helpers */

static inline size_t mpk_tasks(size_t blocks, size_t run)
{
    return (blocks + run - 1) / run;
}

static inline bool mpk_weighs_input(const mpk_job *j)
{
    return j->view->policy.weight_applied == MOEPACK_APPLY_INPUT;
}

/* Rows past the true size of a matrix come out of padding codes: 0, or NaN where an input was infinite. */
static inline void mpk_clear_tail(float *row, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) row[i] = 0.0f;
}

#endif
