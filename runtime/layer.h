/* One MoE layer on the CPU: from weights in memory, in panel order, to the layer's output. Internal.
 *
 * Nothing here knows about containers, files or ranks: the loader fills an mpk_layer_view with pointers and calls
 * mpk_layer_run. The arithmetic is fixed by spec/numerics.md: the same inputs give the same bits for every kernel
 * family, thread count and batch split. */
#ifndef MOEPACK_RUNTIME_LAYER_H
#define MOEPACK_RUNTIME_LAYER_H

#include "moepack/format.h"

#include <stddef.h>
#include <stdint.h>

/* Every pointer to weights in a view must be aligned to this many bytes (one tile line). */
#define MPK_VIEW_ALIGNMENT 64

/* Which weights of a matrix share a scale (spec/numerics.md section 3). */
typedef enum mpk_scale_kind {
    MPK_SCALE_NONE,   /* F32, BF16, F16, E4M3 */
    MPK_SCALE_GROUPS, /* one per row and `group_cols` columns: E2M1, INT4_OFFSET, E4M3. In panel order: scale (r, g) is
                         number (r div 16 * ceil(cols / group_cols) + g) * 16 + r mod 16; padding rows hold 1.0 */
    MPK_SCALE_GRID,   /* one per 128 x 128 weights, [ceil(rows / 128), ceil(cols / 128)] in row order: E4M3 */
    MPK_SCALE_ROWS,   /* one per row, [rows]: E4M3 */
    MPK_SCALE_ONE     /* one: E4M3 */
} mpk_scale_kind;

/* One matrix in panel order (spec/container.md): rows padded to 16, columns padded to a tile, padding codes zero. A
 * tile has 32 columns of 4 bits, 16 of 8, 8 of 16 or 4 of 32; tile (R, C) starts at byte (R * ceil(cols / tile columns)
 * + C) * 256. A matrix that a layer lacks is all zero. */
typedef struct mpk_matrix_view {
    const void *weights;
    const uint8_t *scales;     /* aligned to 16 bytes for E2M1 with E8M0 scales; else only to themselves */
    moepack_encoding encoding; /* E2M1, INT4_OFFSET, E4M3, F16, BF16 or F32 */
    uint64_t rows, cols;       /* true shape, without padding */
    mpk_scale_kind scale_kind;
    moepack_encoding scale_encoding; /* E8M0, E4M3, BF16, F16 or F32 */
    uint32_t group_cols;             /* 32, or 16 for E2M1 with E4M3 scales */
    const uint8_t *global;           /* an F32 that multiplies finished rows; NULL: none */
    bool global_divides;             /* it divides them */
} mpk_matrix_view;

/* One expert: gate and up [I, L], down [L, I]. Biases: F32, zero-padded to a multiple of 16. */
typedef struct mpk_expert_view {
    mpk_matrix_view gate, up, down;               /* no gate without policy.gated */
    const float *gate_bias, *up_bias, *down_bias; /* only with policy.expert_bias */
} mpk_expert_view;

typedef struct mpk_layer_view {
    moepack_policy policy;
    uint32_t experts;              /* E: of the whole layer, not of this rank */
    mpk_matrix_view router;        /* [E, H] F16, BF16 or F32 */
    mpk_matrix_view latent_down;   /* [L, H], only with policy.latent */
    mpk_matrix_view latent_up;     /* [H, L], only with policy.latent */
    mpk_matrix_view shared_gate;   /* [S, H], only with policy.shared_width and policy.gated */
    mpk_matrix_view shared_up;     /* [S, H] */
    mpk_matrix_view shared_down;   /* [H, S] */
    mpk_matrix_view shared_router; /* [1, H], only with policy.shared_gate */
    const float *logit_bias;       /* [E] zero-padded to a multiple of 16, only with policy.logit_bias */
    const int32_t *token_table;    /* [vocabulary, k] experts below E, only with policy.select == token_table */
    uint64_t vocabulary;
    const float *router_bias;      /* [E], only with policy.select == biased (or weight_from == biased) */
    const float *latent_norm;      /* [L], exact F32 copy of the published weights, only with policy.latent_norm */
    const mpk_expert_view *expert; /* [E]; entries that are not present are not looked at */
    const uint8_t *present;        /* [E]; 1: this rank holds the expert and computes it */
} mpk_layer_view;

typedef enum mpk_compute {
    MPK_COMPUTE_BF16 = 0, /* default: x, latent, activations and norm output rounded to BF16; 4-bit weights by fix16 */
    MPK_COMPUTE_F32 = 1,  /* nothing is rounded to BF16 */
    MPK_COMPUTE_INT8 = 2  /* default, but 4-bit weights by products of 8-bit inputs */
} mpk_compute;

struct mpk_kernels; /* cpu/kernels.h */

/* Scratch memory that waits for the next call, so that calls of the same size neither allocate nor meet fresh pages.
 * Begins zeroed. Any number of threads may use one: a call that finds it taken allocates. Holds one piece, of at most
 * 64 MiB (a K3 layer of about 100 tokens). */
typedef struct mpk_spare {
    _Atomic(void *) memory;
} mpk_spare;

void mpk_spare_free(mpk_spare *spare);

/* A zeroed record is valid and means the defaults. */
typedef struct mpk_layer_options {
    mpk_compute compute;
    unsigned threads;                  /* 0: what OpenMP would use */
    const struct mpk_kernels *kernels; /* NULL: the best family of this processor */
    void *workspace;                   /* caller's scratch, aligned to MPK_VIEW_ALIGNMENT; NULL: of `spare` */
    size_t workspace_size;             /* at least mpk_layer_workspace_size() */
    mpk_spare *spare;                  /* where scratch comes from without a workspace; NULL: one allocation per call */
    const int32_t *token_ids;          /* [T], where the policy has a token table */
    bool capacity;                     /* mpk_layer_run drops what exceeds the policy's capacity */
    size_t sequences;                  /* the tokens are that many sequences of equal length; 0: one */
} mpk_layer_options;

/* Where results go; all row-major, no alignment needed. Any pointer may be NULL. */
typedef struct mpk_layer_output {
    float *y;            /* [T, H]; NULL: only steps up to the expert sum are done, over the experts present */
    float *s;            /* [T, L] expert sum before norm and up projection (partial where experts are absent) */
    int32_t *topk_ids;   /* [T, k] in slot order */
    float *topk_weights; /* [T, k] */
    int32_t *kept;       /* [T] slots of the token that were within the capacity; k where there is none */
} mpk_layer_output;

/* Whether this version can compute a policy at all: MOEPACK_E_UNSUPPORTED names the field and its value. */
moepack_status mpk_layer_policy_supported(const moepack_policy *policy, moepack_error *error);

/* Checks policy, encodings, shapes and pointers of a view. mpk_layer_run does this itself; a loader calls it to refuse
 * early. UNSUPPORTED: policy or encoding; USAGE: shapes that contradict the policy, missing or misaligned pointers. */
moepack_status mpk_layer_check(const mpk_layer_view *layer, moepack_error *error);

/* Bytes of scratch that mpk_layer_run needs for `tokens` rows. It is bounded: large batches are worked off in parts
 * (the result does not depend on it). 0 on overflow. */
size_t mpk_layer_workspace_size(const mpk_layer_view *layer, size_t tokens, const mpk_layer_options *options);

/* Runs the layer on x [T, H]. `options` may be NULL. T == 0 is fine and does nothing.
 * Errors: those of mpk_layer_check; INCOMPLETE when y is wanted and a selected expert is not present (names it);
 * REFUSED when the scratch cannot be allocated; USAGE when the caller's scratch is too small. */
moepack_status mpk_layer_run(const mpk_layer_view *layer, const float *x, size_t tokens,
                             const mpk_layer_options *options, mpk_layer_output output, moepack_error *error);

/* Steps 1 to 4 alone: the router's choice and what experts read, z [T, L] (x where there is no latent; rounded to BF16
 * in the default mode). Any result may be NULL. */
moepack_status mpk_layer_begin(const mpk_layer_view *layer, const float *x, size_t tokens,
                               const mpk_layer_options *options, int32_t *topk_ids, float *topk_weights, float *z,
                               moepack_error *error);

/* Steps 1 to 3 alone, on a view of which only policy, experts, router and router_bias are looked at: unbiased scores
 * [T, E] and the choice. Any result may be NULL. */
moepack_status mpk_layer_route(const mpk_layer_view *layer, const float *x, size_t tokens,
                               const mpk_layer_options *options, float *scores, int32_t *topk_ids, float *topk_weights,
                               moepack_error *error);

/* Steps 5 and 6 alone, for a caller that routes by itself. */
typedef struct mpk_experts_input {
    const float *z;       /* [T, L] */
    const int32_t *ids;   /* [T, slots] below E */
    const float *weights; /* [T, slots]; s adds up in slot order */
    size_t slots;
    bool need_all;   /* absent experts are INCOMPLETE; else they are left out */
    bool own_output; /* with one slot: s is the expert's output, not a weighted sum */
} mpk_experts_input;

moepack_status mpk_layer_experts(const mpk_layer_view *layer, const mpk_experts_input *in, size_t tokens,
                                 const mpk_layer_options *options, float *s, moepack_error *error);

/* Steps 7 and 8 alone, for a caller that added the partial sums of several ranks: from x [T, H] and the complete expert
 * sum s [T, L] to y [T, H]. Needs no expert. */
moepack_status mpk_layer_finish(const mpk_layer_view *layer, const float *x, const float *s, size_t tokens,
                                const mpk_layer_options *options, float *y, moepack_error *error);

#endif
