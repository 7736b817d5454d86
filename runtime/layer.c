/* The steps of one MoE layer, scheduled over threads: one parallel region per chunk of tokens, tasks of (expert, row
 * blocks), and sums in slot order by the owner of the output rows, so that no result depends on the schedule. */
#include "layer.h"

#include "../format/bytes.h"
#include "../format/error.h"
#include "cpu/elementary.h"
#include "cpu/kernels.h"
#include "layer_internal.h"
#include "router.h"

#include <omp.h>
#include <stdlib.h>

/* Tokens worked off together at most: beyond this, reading weights again costs little next to the arithmetic. */
#define CHUNK_TOKENS 512
/* And fewer where their intermediate results would need more memory than this. */
#define CHUNK_BYTES ((size_t)256 << 20)
/* Tokens that one kernel call gets: bounds the pointer arrays on the stack and the buffers of a thread. */
#define CALL_TOKENS 64
/* Row blocks of 16 in one task, at most: long runs keep prefetching useful. */
#define MAX_RUN 8

/* Sizes, and the same rounded up to whole blocks of 32 columns. */
typedef struct shape {
    size_t hidden, input, inner, shared, experts, k;
    size_t hidden_pad, input_pad, inner_pad, shared_pad, experts_pad;
} shape;

/* One call: what is wanted, and the arrays of one chunk. Rows of arrays are padded with zeros to whole blocks. */
typedef struct job {
    const mpk_layer_view *view;
    const mpk_kernels *kernels;
    shape n;
    bool round;        /* MPK_COMPUTE_BF16 */
    bool want_experts; /* steps 4 to 6 */
    bool want_y;       /* steps 7 and 8 */
    bool given_sum;    /* steps 1 to 6 were done elsewhere: s is an input */
    bool want_latent;  /* step 4, where experts are not wanted */
    bool given_latent; /* steps 1 to 4 were done elsewhere: z, ids and weights are inputs */
    bool need_all;     /* a selected expert that is absent is an error also without y */
    int threads;

    size_t capacity, tokens; /* of the chunk arrays, and in use */
    const float *x_in, *s_in, *z_in, *weights_in;
    const int32_t *ids_in;
    mpk_layer_output out;
    float *z_out;      /* [T, L] of step 4 */
    float *scores_out; /* [T, E] of step 1 */

    float *x_raw;             /* [T][hidden_pad] as given */
    float *x;                 /* [T][hidden_pad] rounded; = x_raw in F32 mode */
    float *logits;            /* [T][experts_pad] */
    float *z;                 /* [T][input_pad] what experts read; = x without a latent */
    mpk_fix16_block *z_fix16; /* [T][input_pad / 32] */
    int32_t *ids;             /* [T][k] */
    float *weights;           /* [T][k] */
    uint32_t *start;          /* [experts + 1]: pairs of expert e are pairs[start[e]] .. pairs[start[e + 1]] */
    uint32_t *pairs;          /* [T k] t k + slot, sorted by expert, then by token */
    uint32_t *active;         /* experts with pairs that are present */
    size_t active_count;
    uint8_t *act;  /* [T k][inner_pad floats or blocks] input of the down projection */
    float *shared; /* [T][shared_pad] */
    float *s;      /* [T][input_pad] */
    float *n_out;  /* [T][input_pad] input of the up projection */
    const void **x_rows, **raw_rows, **z_rows, **z_fix16_rows, **shared_rows, **n_rows; /* [T] */

    uint8_t *scratch; /* [threads][scratch_bytes] */
    size_t scratch_bytes;
    size_t down_run; /* row blocks in a task of the down projection, limited by the scratch */

    int64_t missing_expert; /* -1: none */
    size_t missing_token;
} job;

static size_t pad(size_t n)
{
    return (n + MPK_BLOCK - 1) / MPK_BLOCK * MPK_BLOCK;
}

/* ------------------------------------------------------------------------------------------------ memory */

/* Hands out parts of one allocation; with base == NULL it only counts. */
typedef struct arena {
    uint8_t *base;
    size_t used;
    bool overflow;
} arena;

static void *take(arena *a, size_t rows, size_t columns, size_t size)
{
    uint64_t bytes, end;
    if (!mpk_mul64(rows, columns, &bytes) || !mpk_mul64(bytes, size, &bytes) ||
        !mpk_align64(bytes, MPK_VIEW_ALIGNMENT, &bytes) || !mpk_add64(a->used, bytes, &end) || end > PTRDIFF_MAX) {
        a->overflow = true;
        return NULL;
    }
    void *at = a->base != NULL ? a->base + a->used : NULL;
    a->used = (size_t)end;
    return at;
}

static void take_rows(arena *a, job *j)
{
    const void ***rows[] = {&j->x_rows, &j->raw_rows, &j->z_rows, &j->z_fix16_rows, &j->shared_rows, &j->n_rows};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        *rows[i] = (const void **)take(a, j->capacity, 1, sizeof(void *));
}

/* Scratch of a thread: the router's, or gate and up outputs of one task, or outputs of the down projection for all
 * pairs. */
static void size_scratch(job *j, arena *a)
{
    const size_t act = 2 * CALL_TOKENS * MAX_RUN * MPK_ROWS * sizeof(float);
    size_t bytes = mpk_router_scratch_size((uint32_t)j->n.experts);
    if (act > bytes) bytes = act;
    const size_t pairs = j->capacity * j->n.k;
    if (pairs > UINT32_MAX) { /* pairs are numbered in 32 bits */
        a->overflow = true;
        return;
    }
    j->down_run = 4;
    while (j->down_run > 1 && pairs * j->down_run * MPK_ROWS * sizeof(float) > (size_t)1 << 20) j->down_run /= 2;
    const size_t down = pairs * j->down_run * MPK_ROWS * sizeof(float);
    if (down > bytes) bytes = down;
    j->scratch_bytes = (bytes + MPK_VIEW_ALIGNMENT - 1) / MPK_VIEW_ALIGNMENT * MPK_VIEW_ALIGNMENT;
}

static void lay_out(job *j, arena *a)
{
    const shape *n = &j->n;
    const size_t t = j->capacity, f = sizeof(float);
    j->x_raw = take(a, t, n->hidden_pad, f);
    j->x = j->round ? take(a, t, n->hidden_pad, f) : j->x_raw;
    j->logits = take(a, t, n->experts_pad, f);
    j->z = j->view->policy.latent ? take(a, t, n->input_pad, f) : j->x;
    j->z_fix16 = take(a, t, n->input_pad / MPK_BLOCK, sizeof(mpk_fix16_block));
    j->ids = take(a, t, n->k, sizeof(int32_t));
    j->weights = take(a, t, n->k, f);
    j->start = take(a, n->experts + 1, 1, sizeof(uint32_t));
    j->pairs = take(a, t, n->k, sizeof(uint32_t));
    j->active = take(a, n->experts, 1, sizeof(uint32_t));
    j->act = take(a, t * n->k, n->inner_pad, f); /* t <= CHUNK_TOKENS, k < 2^31 */
    j->shared = take(a, t, n->shared_pad, f);
    j->s = take(a, t, n->input_pad, f);
    j->n_out = take(a, t, n->input_pad, f);
    take_rows(a, j);
    size_scratch(j, a);
    j->scratch = take(a, (size_t)j->threads, j->scratch_bytes, 1);
}

/* Chooses the chunk and returns the bytes it needs, 0 on overflow. */
static size_t plan(job *j, size_t tokens)
{
    for (j->capacity = tokens < CHUNK_TOKENS ? tokens : CHUNK_TOKENS;; j->capacity = (j->capacity + 1) / 2) {
        arena count = {0};
        lay_out(j, &count);
        if (!count.overflow && (count.used <= CHUNK_BYTES || j->capacity <= 8)) return count.used;
        if (j->capacity <= 1) return 0;
    }
}

/* ------------------------------------------------------------------------------------------------ matrices */

static size_t tile_columns(moepack_encoding encoding)
{
    return encoding == MOEPACK_ENC_E2M1 ? 32 : encoding == MOEPACK_ENC_BF16 ? 8 : 4;
}

static size_t row_blocks(const mpk_matrix_view *m)
{
    return (size_t)((m->rows + MPK_ROWS - 1) / MPK_ROWS);
}

static bool uses_fix16(const job *j, const mpk_matrix_view *m)
{
    return j->round && m->encoding == MOEPACK_ENC_E2M1;
}

/* y[i] for `count` row blocks from `first` on, for tokens with input rows x[0 .. tokens). */
static void multiply(const job *j, const mpk_matrix_view *m, size_t first, size_t count, const void *const *x,
                     float *const *y, size_t tokens)
{
    const mpk_kernels *k = j->kernels;
    const size_t columns = tile_columns(m->encoding), tiles = ((size_t)m->cols + columns - 1) / columns;
    const mpk_gemv op = {.weights = (const uint8_t *)m->weights + first * tiles * MPK_TILE_BYTES,
                         .scales = m->scales != NULL ? m->scales + first * tiles * MPK_ROWS : NULL,
                         .tiles = tiles,
                         .row_blocks = count,
                         .tokens = tokens,
                         .x = x,
                         .y = y};
    if (m->encoding == MOEPACK_ENC_BF16)
        k->gemv_bf16(&op);
    else if (m->encoding == MOEPACK_ENC_F32)
        k->gemv_f32(&op);
    else if (j->round)
        k->gemv_fix16(&op);
    else
        k->gemv_e2m1(&op);
}

/* The same into rows of an array, CALL_TOKENS at a time. */
static void multiply_rows(const job *j, const mpk_matrix_view *m, size_t first, size_t count, const void *const *x,
                          float *y, size_t stride, size_t tokens)
{
    float *rows[CALL_TOKENS];
    for (size_t t = 0; t < tokens; t += CALL_TOKENS) {
        const size_t n = tokens - t < CALL_TOKENS ? tokens - t : CALL_TOKENS;
        for (size_t i = 0; i < n; i++) rows[i] = y + (t + i) * stride;
        multiply(j, m, first, count, x + t, rows, n);
    }
}

static uint8_t *my_scratch(const job *j)
{
    return j->scratch + (size_t)omp_get_thread_num() * j->scratch_bytes;
}

/* Row blocks per task: as many as leave every thread some eight tasks, a power of two up to `limit`. */
static size_t run_length(const job *j, size_t blocks, size_t limit)
{
    size_t run = limit;
    while (run > 1 && blocks / run < (size_t)j->threads * 8) run /= 2;
    return run;
}

/* Rows past the true size of a matrix come out of padding codes: 0, or NaN where an input was infinite. */
static void clear_tail(float *row, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) row[i] = 0.0f;
}

/* ------------------------------------------------------------------------------------------------ steps */

static void point_rows(job *j, size_t t)
{
    const shape *n = &j->n;
    j->z_rows[t] = j->z + t * n->input_pad;
    j->z_fix16_rows[t] = j->z_fix16 + t * (n->input_pad / MPK_BLOCK);
    j->shared_rows[t] = j->shared + t * n->shared_pad;
    j->n_rows[t] = j->n_out + t * n->input_pad;
}

/* Copies one token in, pads it and rounds it. */
static void prepare_token(job *j, size_t t)
{
    const shape *n = &j->n;
    float *raw = j->x_raw + t * n->hidden_pad, *rounded = j->x + t * n->hidden_pad;
    memcpy(raw, j->x_in + t * n->hidden, n->hidden * sizeof(float));
    clear_tail(raw, n->hidden, n->hidden_pad);
    if (j->round) j->kernels->round_bf16(raw, rounded, n->hidden_pad);
    j->raw_rows[t] = raw;
    j->x_rows[t] = rounded;
    point_rows(j, t);
}

static mpk_activation_params activation_of(const moepack_policy *p, uint64_t kind)
{
    return (mpk_activation_params){(moepack_activation)kind, (float)p->situ_beta, (float)p->situ_linear_beta};
}

/* Gate, up and activation of up to MAX_RUN row blocks for up to CALL_TOKENS tokens. Results lie in the scratch, rows
 * `width` floats apart; returns their address. `rows` is the true number of rows of the matrices. */
static float *gate_up(const job *j, const mpk_matrix_view *gate, const mpk_matrix_view *up, uint64_t kind, size_t first,
                      size_t width, size_t rows, const void *const *x, size_t tokens)
{
    float *g = (float *)(void *)my_scratch(j), *u = g + CALL_TOKENS * MAX_RUN * MPK_ROWS;
    float *g_rows[CALL_TOKENS], *u_rows[CALL_TOKENS];
    for (size_t i = 0; i < tokens; i++) {
        g_rows[i] = g + i * width;
        u_rows[i] = u + i * width;
    }
    const size_t left = row_blocks(gate) - first, wanted = width / MPK_ROWS, count = left < wanted ? left : wanted;
    const mpk_activation_params params = activation_of(&j->view->policy, kind);
    multiply(j, gate, first, count, x, g_rows, tokens);
    multiply(j, up, first, count, x, u_rows, tokens);
    for (size_t i = 0; i < tokens; i++) {
        const size_t n = count * MPK_ROWS, true_rows = rows - first * MPK_ROWS;
        j->kernels->activate(&params, g_rows[i], u_rows[i], g_rows[i], n);
        clear_tail(g_rows[i], true_rows < n ? true_rows : n, width);
        if (j->round) j->kernels->round_bf16(g_rows[i], g_rows[i], width);
    }
    return g;
}

/* Shared experts, columns [first * 16, + width) of their inner width. */
static void shared_part(job *j, size_t first, size_t width)
{
    const mpk_layer_view *v = j->view;
    for (size_t t = 0; t < j->tokens; t += CALL_TOKENS) {
        const size_t n = j->tokens - t < CALL_TOKENS ? j->tokens - t : CALL_TOKENS;
        const float *a = gate_up(j, &v->shared_gate, &v->shared_up, v->policy.shared_activation, first, width,
                                 j->n.shared, j->x_rows + t, n);
        for (size_t i = 0; i < n; i++)
            memcpy(j->shared + (t + i) * j->n.shared_pad + first * MPK_ROWS, a + i * width, width * sizeof(float));
    }
}

/* Steps 1, 4 and the first half of the shared experts: everything that reads x. One list of tasks, so that no thread
 * waits between them. */
static void project_inputs(job *j)
{
    const mpk_layer_view *v = j->view;
    const shape *n = &j->n;
    const bool routed = !j->given_sum;
    const size_t run = run_length(j, (n->input_pad + n->shared_pad) / MPK_ROWS, MAX_RUN);
    const size_t pairs = run > 2 ? run : 2; /* the activation's blocks of 32 are two row blocks */
    const size_t router_tasks = routed ? (row_blocks(&v->router) + run - 1) / run : 0;
    const bool latent = routed && (j->want_experts || j->want_latent) && v->policy.latent;
    const size_t down_blocks = latent ? row_blocks(&v->latent_down) : 0;
    const size_t down_tasks = (down_blocks + run - 1) / run;
    const size_t shared_tasks = j->want_y ? (n->shared_pad / MPK_ROWS + pairs - 1) / pairs : 0;
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < router_tasks + down_tasks + shared_tasks; i++) {
        if (i < router_tasks) {
            const size_t first = i * run, left = row_blocks(&v->router) - first;
            multiply_rows(j, &v->router, first, left < run ? left : run, j->raw_rows, j->logits + first * MPK_ROWS,
                          n->experts_pad, j->tokens);
        } else if (i < router_tasks + down_tasks) {
            const size_t first = (i - router_tasks) * run, left = down_blocks - first;
            multiply_rows(j, &v->latent_down, first, left < run ? left : run, j->x_rows, j->z + first * MPK_ROWS,
                          n->input_pad, j->tokens);
        } else {
            const size_t first = (i - router_tasks - down_tasks) * pairs, left = n->shared_pad / MPK_ROWS - first;
            shared_part(j, first, (left < pairs ? left : pairs) * MPK_ROWS);
        }
    }
}

/* Pads and rounds a row of z, unless it is a row of x and both were done, and makes what fix16 kernels read. */
static void finish_latent(job *j, size_t t, bool fresh)
{
    const shape *n = &j->n;
    float *z = j->z + t * n->input_pad;
    if (fresh) {
        clear_tail(z, n->input, n->input_pad);
        if (j->round) j->kernels->round_bf16(z, z, n->input_pad);
    }
    if (j->round && j->want_experts)
        j->kernels->quantize(z, j->z_fix16 + t * (n->input_pad / MPK_BLOCK), n->input_pad / MPK_BLOCK);
}

/* Steps 2 and 3, and the latent's rounding. */
static void route_token(job *j, size_t t)
{
    const shape *n = &j->n;
    const mpk_layer_view *v = j->view;
    mpk_route(&v->policy, v->experts, mpk_uses_bias(&v->policy) ? v->router_bias : NULL, j->logits + t * n->experts_pad,
              j->kernels, my_scratch(j), j->ids + t * n->k, j->weights + t * n->k);
    if (j->scores_out != NULL) {
        float *score = (float *)(void *)my_scratch(j);
        mpk_router_score(&v->policy, v->experts, j->logits + t * n->experts_pad, j->kernels, score);
        memcpy(j->scores_out + t * n->experts, score, n->experts * sizeof *score);
    }
    if (!j->want_experts && !j->want_latent) return;
    finish_latent(j, t, v->policy.latent);
    if (j->z_out != NULL) memcpy(j->z_out + t * n->input, j->z + t * n->input_pad, n->input * sizeof(float));
}

/* In place of steps 1 to 4: one token's latent and experts, chosen by the caller. */
static void take_latent(job *j, size_t t)
{
    const shape *n = &j->n;
    memcpy(j->z + t * n->input_pad, j->z_in + t * n->input, n->input * sizeof(float));
    if (n->k > 0) { /* without slots there need be no arrays */
        memcpy(j->ids + t * n->k, j->ids_in + t * n->k, n->k * sizeof *j->ids);
        memcpy(j->weights + t * n->k, j->weights_in + t * n->k, n->k * sizeof *j->weights);
    }
    point_rows(j, t);
    finish_latent(j, t, true);
}

/* Sorts the pairs (token, slot) by expert and lists the experts that have work here. */
static void group_pairs(job *j)
{
    const mpk_layer_view *v = j->view;
    const size_t count = j->tokens * j->n.k, experts = j->n.experts;
    memset(j->start, 0, (experts + 1) * sizeof *j->start);
    for (size_t p = 0; p < count; p++) {
        const int32_t e = j->ids[p];
        j->start[e]++;
        if (!v->present[e] && (j->want_y || j->need_all) && j->missing_expert < 0) {
            j->missing_expert = e;
            j->missing_token += p / j->n.k;
        }
    }
    uint32_t sum = 0;
    j->active_count = 0;
    for (size_t e = 0; e < experts; e++) {
        const uint32_t pairs = j->start[e];
        if (pairs > 0 && v->present[e]) j->active[j->active_count++] = (uint32_t)e;
        sum += pairs;
        j->start[e] = sum; /* the end; filling from behind turns it into the start */
    }
    j->start[experts] = sum;
    for (size_t p = count; p-- > 0;) j->pairs[--j->start[j->ids[p]]] = (uint32_t)p;
}

/* Bytes from one pair's input of the down projection to the next. */
static size_t act_stride(const job *j)
{
    return j->n.inner_pad * sizeof(float);
}

/* Step 5, first half: columns [first * 16, + width) of one expert's inner width for all its tokens. */
static void expert_gate_up(job *j, uint32_t e, size_t first, size_t width)
{
    const mpk_expert_view *x = &j->view->expert[e];
    const bool gate_fix16 = uses_fix16(j, &x->gate), down_fix16 = uses_fix16(j, &x->down);
    const void *rows[CALL_TOKENS];
    for (uint32_t at = j->start[e]; at < j->start[e + 1]; at += CALL_TOKENS) {
        const size_t left = j->start[e + 1] - at, n = left < CALL_TOKENS ? left : CALL_TOKENS;
        for (size_t i = 0; i < n; i++) {
            const size_t t = j->pairs[at + i] / j->n.k;
            rows[i] = gate_fix16 ? j->z_fix16_rows[t] : j->z_rows[t];
        }
        const float *a = gate_up(j, &x->gate, &x->up, j->view->policy.activation, first, width, j->n.inner, rows, n);
        for (size_t i = 0; i < n; i++) {
            uint8_t *act = j->act + j->pairs[at + i] * act_stride(j);
            if (down_fix16)
                j->kernels->quantize(a + i * width, (mpk_fix16_block *)(void *)act + first * MPK_ROWS / MPK_BLOCK,
                                     width / MPK_BLOCK);
            else
                memcpy(act + first * MPK_ROWS * sizeof(float), a + i * width, width * sizeof(float));
        }
    }
}

static void gate_up_experts(job *j)
{
    const size_t blocks = j->n.inner_pad / MPK_ROWS;
    const size_t half = run_length(j, j->active_count * blocks, MAX_RUN), run = half > 2 ? half : 2;
    const size_t per_expert = (blocks + run - 1) / run;
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < j->active_count * per_expert; i++) {
        const size_t first = i % per_expert * run, left = blocks - first;
        expert_gate_up(j, j->active[i / per_expert], first, (left < run ? left : run) * MPK_ROWS);
    }
}

/* Row blocks [first, first + count) of one expert's down projection for all its tokens, into o[pair]. */
static void expert_down(const job *j, uint32_t e, size_t first, size_t count, float *o)
{
    const void *rows[CALL_TOKENS];
    float *out[CALL_TOKENS];
    for (uint32_t at = j->start[e]; at < j->start[e + 1]; at += CALL_TOKENS) {
        const size_t left = j->start[e + 1] - at, n = left < CALL_TOKENS ? left : CALL_TOKENS;
        for (size_t i = 0; i < n; i++) {
            rows[i] = j->act + j->pairs[at + i] * act_stride(j);
            out[i] = o + j->pairs[at + i] * count * MPK_ROWS;
        }
        multiply(j, &j->view->expert[e].down, first, count, rows, out, n);
    }
}

/* Step 5, second half, and 6. A task owns some rows of s, does them for all experts and adds each token's outputs in
 * slot order: the sum does not depend on who computed what when. */
static void down_and_sum(job *j)
{
    const shape *n = &j->n;
    const size_t blocks = (n->input + MPK_ROWS - 1) / MPK_ROWS, run = run_length(j, blocks, j->down_run);
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < (blocks + run - 1) / run; i++) {
        float *o = (float *)(void *)my_scratch(j);
        const size_t first = i * run, left = blocks - first, count = left < run ? left : run;
        for (size_t a = 0; a < j->active_count; a++) expert_down(j, j->active[a], first, count, o);
        for (size_t t = 0; t < j->tokens; t++) {
            float *s = j->s + t * n->input_pad + first * MPK_ROWS;
            clear_tail(s, 0, count * MPK_ROWS);
            for (size_t p = t * n->k; p < (t + 1) * n->k; p++)
                if (j->view->present[j->ids[p]])
                    j->kernels->accumulate(j->weights[p], o + p * count * MPK_ROWS, s, count * MPK_ROWS);
        }
    }
}

/* Step 7, and s on its way out. */
static void norm_token(job *j, size_t t)
{
    const shape *n = &j->n;
    const moepack_policy *p = &j->view->policy;
    float *s = j->s + t * n->input_pad, *out = j->n_out + t * n->input_pad;
    if (j->given_sum) memcpy(s, j->s_in + t * n->input, n->input * sizeof(float));
    clear_tail(s, n->input, n->input_pad);
    for (size_t i = 0; i < n->input; i++) s[i] = mpk_canonical(s[i]);
    if (j->out.s != NULL) memcpy(j->out.s + t * n->input, s, n->input * sizeof(float));
    if (!j->want_y || !p->latent) return;
    if (!p->latent_norm) {
        memcpy(out, s, n->input_pad * sizeof(float));
        return;
    }
    j->kernels->norm(s, j->view->latent_norm, (float)p->norm_eps, out, n->input);
    clear_tail(out, n->input, n->input_pad);
    if (j->round) j->kernels->round_bf16(out, out, n->input_pad);
}

/* Step 8 for `count` row blocks and up to CALL_TOKENS tokens from `t` on. */
static void output_part(job *j, size_t first, size_t count, size_t t, size_t tokens)
{
    const mpk_layer_view *v = j->view;
    const size_t width = count * MPK_ROWS, from = first * MPK_ROWS;
    const size_t valid = j->n.hidden - from < width ? j->n.hidden - from : width;
    float *routed = (float *)(void *)my_scratch(j), *shared = routed + CALL_TOKENS * MAX_RUN * MPK_ROWS;
    if (v->policy.latent) {
        multiply_rows(j, &v->latent_up, first, count, j->n_rows + t, routed, width, tokens);
    } else {
        for (size_t i = 0; i < tokens; i++)
            memcpy(routed + i * width, j->s + (t + i) * j->n.input_pad + from, width * sizeof(float));
    }
    if (v->policy.shared_width > 0)
        multiply_rows(j, &v->shared_down, first, count, j->shared_rows + t, shared, width, tokens);
    for (size_t i = 0; i < tokens; i++) {
        float *y = j->out.y + (t + i) * j->n.hidden + from;
        for (size_t c = 0; c < valid; c++) {
            const float r = routed[i * width + c];
            y[c] = mpk_canonical(v->policy.shared_width > 0 ? r + shared[i * width + c] : r);
        }
    }
}

static void write_outputs(job *j)
{
    const size_t blocks = (j->n.hidden + MPK_ROWS - 1) / MPK_ROWS, run = run_length(j, blocks, MAX_RUN);
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < (blocks + run - 1) / run; i++) {
        const size_t first = i * run, left = blocks - first;
        for (size_t t = 0; t < j->tokens; t += CALL_TOKENS) {
            const size_t n = j->tokens - t < CALL_TOKENS ? j->tokens - t : CALL_TOKENS;
            output_part(j, first, left < run ? left : run, t, n);
        }
    }
}

/* ------------------------------------------------------------------------------------------------ the call */

/* Steps 1 to 4 and the first half of the shared experts. */
static void start_chunk(job *j)
{
#pragma omp for schedule(static)
    for (size_t t = 0; t < j->tokens; t++) prepare_token(j, t);
    project_inputs(j);
    if (j->given_sum) return;
#pragma omp for schedule(static)
    for (size_t t = 0; t < j->tokens; t++) route_token(j, t);
}

/* All steps of one chunk, run by every thread of the team; each loop and `single` ends with a barrier. */
static void run_chunk(job *j)
{
    mpk_float_guard guard;
    mpk_float_enter(&guard);
    if (j->given_latent) {
#pragma omp for schedule(static)
        for (size_t t = 0; t < j->tokens; t++) take_latent(j, t);
    } else {
        start_chunk(j);
    }
    if (j->want_experts) {
#pragma omp single
        group_pairs(j);
        if (j->missing_expert < 0) {
            gate_up_experts(j);
            down_and_sum(j);
        }
    }
    if ((j->want_experts || j->given_sum) && j->missing_expert < 0) {
#pragma omp for schedule(static)
        for (size_t t = 0; t < j->tokens; t++) norm_token(j, t);
        if (j->want_y) write_outputs(j);
    }
    mpk_float_leave(&guard);
}

static void copy_routing(const job *j)
{
    const size_t count = j->tokens * j->n.k;
    if (j->given_sum || j->given_latent) return;
    if (j->out.topk_ids != NULL) memcpy(j->out.topk_ids, j->ids, count * sizeof *j->ids);
    if (j->out.topk_weights != NULL) memcpy(j->out.topk_weights, j->weights, count * sizeof *j->weights);
}

/* `part` with everything that has a row per token moved `t` tokens on from `whole`. */
static void move_rows(job *part, const job *whole, size_t t)
{
    const shape *n = &whole->n;
    const mpk_layer_output *out = &whole->out;
    part->x_in = whole->x_in != NULL ? whole->x_in + t * n->hidden : NULL;
    part->s_in = whole->s_in != NULL ? whole->s_in + t * n->input : NULL;
    part->z_in = whole->z_in != NULL ? whole->z_in + t * n->input : NULL;
    part->ids_in = whole->ids_in != NULL ? whole->ids_in + t * n->k : NULL;
    part->weights_in = whole->weights_in != NULL ? whole->weights_in + t * n->k : NULL;
    part->z_out = whole->z_out != NULL ? whole->z_out + t * n->input : NULL;
    part->scores_out = whole->scores_out != NULL ? whole->scores_out + t * n->experts : NULL;
    part->out.y = out->y != NULL ? out->y + t * n->hidden : NULL;
    part->out.s = out->s != NULL ? out->s + t * n->input : NULL;
    part->out.topk_ids = out->topk_ids != NULL ? out->topk_ids + t * n->k : NULL;
    part->out.topk_weights = out->topk_weights != NULL ? out->topk_weights + t * n->k : NULL;
}

static void run_chunks(job *j, size_t tokens)
{
    const job whole = *j;
    for (size_t t = 0; t < tokens && j->missing_expert < 0; t += j->capacity) {
        j->tokens = tokens - t < j->capacity ? tokens - t : j->capacity;
        j->missing_token = t;
        move_rows(j, &whole, t);
#pragma omp parallel num_threads(j->threads)
        run_chunk(j);
        copy_routing(j);
    }
}

static job start_job(const mpk_layer_view *view, const mpk_layer_options *options)
{
    const moepack_policy *p = &view->policy;
    job j = {.view = view, .missing_expert = -1};
    shape *n = &j.n;
    *n = (shape){.hidden = (size_t)p->hidden,
                 .input = (size_t)p->expert_input,
                 .inner = (size_t)p->intermediate,
                 .shared = (size_t)p->shared_width,
                 .experts = view->experts,
                 .k = (size_t)p->top_k};
    n->hidden_pad = pad(n->hidden);
    n->input_pad = pad(n->input);
    n->inner_pad = pad(n->inner);
    n->shared_pad = pad(n->shared);
    n->experts_pad = pad(n->experts);
    const unsigned wanted = options != NULL ? options->threads : 0;
    j.threads = wanted == 0 ? omp_get_max_threads() : wanted > 4096 ? 4096 : (int)wanted;
    j.round = options == NULL || options->compute == MPK_COMPUTE_BF16;
    j.kernels = options != NULL ? options->kernels : NULL;
    return j;
}

/* Finds memory and kernels, runs, and cleans up. The view has been checked. */
static moepack_status execute(job *j, size_t tokens, const mpk_layer_options *options, moepack_error *error)
{
    if (tokens == 0) return MOEPACK_OK;
    if (j->kernels == NULL) {
        const moepack_status status = mpk_kernels_select(NULL, &j->kernels, error);
        if (status != MOEPACK_OK) return status;
    }
    const size_t bytes = plan(j, tokens);
    if (bytes == 0) return mpk_fail(error, MOEPACK_E_USAGE, "the layer's sizes overflow");
    const bool own = options == NULL || options->workspace == NULL;
    if (!own && (options->workspace_size < bytes || (uintptr_t)options->workspace % MPK_VIEW_ALIGNMENT != 0))
        return mpk_fail(error, MOEPACK_E_USAGE,
                        "the workspace of %zu bytes is too small or not aligned; %zu are needed",
                        options->workspace_size, bytes);
    arena memory = {.base = own ? aligned_alloc(MPK_VIEW_ALIGNMENT, bytes) : options->workspace};
    if (memory.base == NULL)
        return mpk_fail(error, MOEPACK_E_REFUSED, "no memory for %zu bytes of intermediate results", bytes);
    lay_out(j, &memory);
    run_chunks(j, tokens);
    if (own) free(memory.base);
    if (j->missing_expert < 0) return MOEPACK_OK;
    mpk_fail(error, MOEPACK_E_INCOMPLETE, "token %zu selects expert %lld, which is not loaded", j->missing_token,
             (long long)j->missing_expert);
    mpk_error_expert(error, j->missing_expert);
    return MOEPACK_E_INCOMPLETE;
}

size_t mpk_layer_workspace_size(const mpk_layer_view *layer, size_t tokens, const mpk_layer_options *options)
{
    job j = start_job(layer, options);
    j.want_experts = j.want_y = true;
    return plan(&j, tokens > 0 ? tokens : 1);
}

moepack_status mpk_layer_run(const mpk_layer_view *layer, const float *x, size_t tokens,
                             const mpk_layer_options *options, mpk_layer_output output, moepack_error *error)
{
    const moepack_status status = mpk_layer_check(layer, error);
    if (status != MOEPACK_OK) return status;
    job j = start_job(layer, options);
    j.want_y = output.y != NULL;
    j.want_experts = output.y != NULL || output.s != NULL;
    j.x_in = x;
    j.out = output;
    return execute(&j, tokens, options, error);
}

moepack_status mpk_layer_finish(const mpk_layer_view *layer, const float *x, const float *s, size_t tokens,
                                const mpk_layer_options *options, float *y, moepack_error *error)
{
    const moepack_status status = mpk_layer_check_finish(layer, error);
    if (status != MOEPACK_OK) return status;
    job j = start_job(layer, options);
    j.want_y = j.given_sum = true;
    j.x_in = x;
    j.s_in = s;
    j.out.y = y;
    return execute(&j, tokens, options, error);
}

moepack_status mpk_layer_begin(const mpk_layer_view *layer, const float *x, size_t tokens,
                               const mpk_layer_options *options, int32_t *topk_ids, float *topk_weights, float *z,
                               moepack_error *error)
{
    const moepack_status status = mpk_layer_check(layer, error);
    if (status != MOEPACK_OK) return status;
    job j = start_job(layer, options);
    j.want_latent = z != NULL;
    j.x_in = x;
    j.z_out = z;
    j.out.topk_ids = topk_ids;
    j.out.topk_weights = topk_weights;
    return execute(&j, tokens, options, error);
}

moepack_status mpk_layer_route(const mpk_layer_view *layer, const float *x, size_t tokens,
                               const mpk_layer_options *options, float *scores, int32_t *topk_ids, float *topk_weights,
                               moepack_error *error)
{
    const moepack_status status = mpk_layer_check_router(layer, error);
    if (status != MOEPACK_OK) return status;
    job j = start_job(layer, options);
    j.x_in = x;
    j.scores_out = scores;
    j.out.topk_ids = topk_ids;
    j.out.topk_weights = topk_weights;
    return execute(&j, tokens, options, error);
}

moepack_status mpk_layer_experts(const mpk_layer_view *layer, const mpk_experts_input *in, size_t tokens,
                                 const mpk_layer_options *options, float *s, moepack_error *error)
{
    const moepack_status status = mpk_layer_check(layer, error);
    if (status != MOEPACK_OK) return status;
    uint64_t pairs;
    if (!mpk_mul64(tokens, in->slots, &pairs) || pairs > UINT32_MAX)
        return mpk_fail(error, MOEPACK_E_USAGE, "%zu tokens with %zu experts each are too many", tokens, in->slots);
    for (size_t p = 0; p < (size_t)pairs; p++)
        if (in->ids[p] < 0 || (uint32_t)in->ids[p] >= layer->experts)
            return mpk_fail(error, MOEPACK_E_USAGE, "token %zu: there is no expert %ld, the layer has %lu",
                            p / in->slots, (long)in->ids[p], (unsigned long)layer->experts);
    job j = start_job(layer, options);
    j.n.k = in->slots;
    j.want_experts = j.given_latent = true;
    j.need_all = in->need_all;
    j.z_in = in->z;
    j.ids_in = in->ids;
    j.weights_in = in->weights;
    j.out.s = s;
    return execute(&j, tokens, options, error);
}
