/* A layer with the experts of a residency. Each (token, slot) pair's expert output is computed by the layer's own code
 * when its expert is in memory. The outputs are then added in slot order with the layer's own kernel, so that the bits
 * are those of moepack_layer_run. */
#include "residency.h"

#include "bytes.h"
#include "cpu/elementary.h"
#include "cpu/kernels.h"
#include "error.h"

#include <stdlib.h>

#define PART_TOKENS ((size_t)256)
#define PART_BYTES ((size_t)128 << 20)

typedef struct part {
    moepack_residency *r;
    uint32_t block, experts;
    const mpk_layer_view *dense;
    const mpk_layer_options *how;
    const uint8_t *counts;           /* [E]: experts that count */
    size_t tokens, k, width, stride; /* stride: width in whole blocks of 32 */
    const int32_t *ids;
    const float *weights, *z;
    float *o;          /* [T k][stride] outputs of experts, padded with zeros as kernels want it */
    float *sum;        /* [stride] */
    float *rows, *out; /* [T k][L] inputs and outputs of one batch */
    float *factors;    /* [T k] weights of a batch, for policies where they enter inside the experts */
    int32_t *batch_ids;
    size_t *pairs;
    uint8_t *need, *present; /* [E] */
    int32_t *wanted;         /* experts still to be computed */
    size_t wanted_count;
} part;

/* All pairs of the experts that are marked present. */
static moepack_status compute(part *p, moepack_error *error)
{
    mpk_layer_view view = *p->dense;
    size_t count = 0;
    view.expert = mpk_load_block_of(p->r->job.load, p->block)->experts;
    view.present = p->present;
    for (size_t i = 0; i < p->tokens * p->k; i++) {
        if (!p->present[p->ids[i]]) continue;
        memcpy(p->rows + count * p->width, p->z + i / p->k * p->width, p->width * sizeof(float));
        p->batch_ids[count] = p->ids[i];
        p->factors[count] = p->weights[i];
        p->pairs[count++] = i;
    }
    const mpk_experts_input in = {p->rows, p->batch_ids, p->factors, 1, true, true};
    moepack_status status = mpk_layer_experts(&view, &in, count, p->how, p->out, error);
    for (size_t i = 0; i < count && status == MOEPACK_OK; i++)
        memcpy(p->o + p->pairs[i] * p->stride, p->out + i * p->width, p->width * sizeof(float));
    return status;
}

static mpk_entry *entry_of(const part *p, int32_t expert)
{
    return mpk_residency_entry(p->r, p->block, (uint32_t)expert);
}

static moepack_status take_one(part *p, int32_t expert, mpk_acquire how, size_t *count, moepack_error *error)
{
    bool got = false;
    const moepack_status status = mpk_residency_acquire(p->r, entry_of(p, expert), how, &got, error);
    if (got) p->present[expert] = 1, ++*count;
    return status;
}

/* Experts of the next batch. Those that are used up make room for those that are missing: while there are any, a batch
 * is as small as keeps every reader busy. */
static size_t batch_limit(const part *p, size_t missing)
{
    const size_t slots = p->r->slot_count, half = slots > 1 ? slots / 2 : 1, readers = p->r->options.threads;
    if (missing == 0) return slots;
    return readers < half ? readers : half;
}

/* Acquires some of the wanted experts that are there, else waits for the first. */
static moepack_status take_batch(part *p, moepack_error *error)
{
    const size_t limit = batch_limit(p, mpk_residency_request(p->r, p->block, p->wanted, p->wanted_count, false));
    moepack_status status = MOEPACK_OK;
    size_t count = 0;
    for (size_t i = 0; i < p->wanted_count && count < limit && status == MOEPACK_OK; i++)
        status = take_one(p, p->wanted[i], MPK_ACQUIRE_TRY, &count, error);
    if (count > 0 || status != MOEPACK_OK) return status;
    return take_one(p, p->wanted[0], MPK_ACQUIRE_WAIT, &count, error);
}

static void give_batch(part *p)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->wanted_count; i++) {
        const int32_t e = p->wanted[i];
        if (!p->present[e]) {
            p->wanted[kept++] = e;
            continue;
        }
        mpk_residency_forget(p->r, entry_of(p, e)); /* first, so that its slot is free once it is released */
        mpk_residency_release(p->r, entry_of(p, e));
        p->present[e] = 0;
    }
    p->wanted_count = kept;
}

static moepack_status run_experts(part *p, moepack_error *error)
{
    moepack_status status = MOEPACK_OK;
    memset(p->need, 0, p->experts);
    memset(p->present, 0, p->experts);
    p->wanted_count = 0;
    for (size_t i = 0; i < p->tokens * p->k; i++)
        if (p->counts[p->ids[i]]) p->need[p->ids[i]] = 1;
    for (uint32_t e = 0; e < p->experts; e++)
        if (p->need[e]) p->wanted[p->wanted_count++] = (int32_t)e;
    mpk_residency_expect(p->r, p->block, p->wanted, p->wanted_count);
    while (p->wanted_count > 0 && status == MOEPACK_OK) {
        status = take_batch(p, error);
        if (status == MOEPACK_OK) status = compute(p, error);
        give_batch(p);
    }
    for (size_t i = 0; i < p->wanted_count; i++) mpk_residency_forget(p->r, entry_of(p, p->wanted[i]));
    return status;
}

/* Step 6 of spec/numerics.md: in slot order from +0, rounded as in a kernel's thread. */
static void add_up(const part *p, float *s)
{
    const bool weigh = p->dense->policy.weight_applied == MOEPACK_APPLY_OUTPUT;
    mpk_float_guard guard;
    mpk_float_enter(&guard);
    for (size_t t = 0; t < p->tokens; t++) {
        memset(p->sum, 0, p->stride * sizeof *p->sum);
        for (size_t i = t * p->k; i < (t + 1) * p->k; i++)
            if (p->counts[p->ids[i]])
                p->how->kernels->accumulate(weigh ? p->weights[i] : 1.0f, p->o + i * p->stride, p->sum, p->stride);
        for (size_t c = 0; c < p->width; c++) s[t * p->width + c] = mpk_canonical(p->sum[c]);
    }
    mpk_float_leave(&guard);
}

static void *take(uint8_t **at, size_t count, size_t size)
{
    uint8_t *here = *at;
    *at += (count * size + MPK_VIEW_ALIGNMENT - 1) / MPK_VIEW_ALIGNMENT * MPK_VIEW_ALIGNMENT;
    return here;
}

/* Memory of a part; with base NULL only its size. */
static size_t lay_out(part *p, size_t tokens, uint8_t *base, float **z, float **weights, int32_t **ids)
{
    uint8_t *at = base;
    const size_t pairs = tokens * p->k;
    *z = take(&at, tokens * p->width, sizeof(float));
    *weights = take(&at, pairs, sizeof(float));
    *ids = take(&at, pairs, sizeof(int32_t));
    p->o = take(&at, pairs * p->stride, sizeof(float));
    p->sum = take(&at, p->stride, sizeof(float));
    p->rows = take(&at, pairs * p->width, sizeof(float));
    p->out = take(&at, pairs * p->width, sizeof(float));
    p->factors = take(&at, pairs, sizeof(float));
    p->batch_ids = take(&at, pairs, sizeof(int32_t));
    p->pairs = take(&at, pairs, sizeof(size_t));
    p->need = take(&at, p->experts, 1);
    p->present = take(&at, p->experts, 1);
    p->wanted = take(&at, p->experts, sizeof(int32_t));
    return (size_t)(at - base);
}

static moepack_status check_selected(const part *p, const uint8_t *holds, size_t first, moepack_error *error)
{
    for (size_t i = 0; i < p->tokens * p->k; i++) {
        if (holds[p->ids[i]]) continue;
        mpk_fail(error, MOEPACK_E_INCOMPLETE, "token %zu selects this expert, which this rank does not hold",
                 first + i / p->k);
        mpk_error_expert(error, p->ids[i]);
        return MOEPACK_E_INCOMPLETE;
    }
    return MOEPACK_OK;
}

moepack_status mpk_residency_run_view(moepack_residency *r, uint32_t block, const mpk_layer_view *view,
                                      const mpk_layer_options *how, const float *x, size_t tokens, bool partial,
                                      const moepack_layer_output *out, moepack_error *error)
{
    const mpk_load_block *entry = mpk_load_block_of(r->job.load, block);
    const moepack_policy *policy = &view->policy;
    const size_t hidden = (size_t)policy->hidden;
    part p = {.r = r, .block = block, .experts = view->experts, .dense = view, .how = how};
    p.counts = partial ? entry->computes : entry->holds;
    p.k = (size_t)policy->top_k;
    p.width = (size_t)policy->expert_input;
    p.stride = (p.width + MPK_BLOCK - 1) / MPK_BLOCK * MPK_BLOCK;
    uint64_t row;
    if (how->capacity)
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "a residency does not count the capacity of experts");
    for (size_t t = 0; out->kept != NULL && t < tokens; t++) out->kept[t] = (int32_t)p.k;
    if (!mpk_mul64(p.k, p.stride, &row) || row > SIZE_MAX / 64)
        return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    size_t portion = PART_BYTES / (3 * sizeof(float) * (size_t)row + 1);
    if (portion > PART_TOKENS) portion = PART_TOKENS;
    if (portion > tokens) portion = tokens;
    if (portion == 0) portion = 1;
    float *z, *weights;
    int32_t *ids;
    const size_t bytes = lay_out(&p, portion, NULL, &z, &weights, &ids) + MPK_VIEW_ALIGNMENT;
    uint8_t *memory = aligned_alloc(MPK_VIEW_ALIGNMENT, bytes);
    float *sums = calloc(portion * p.width + 1, sizeof *sums);
    moepack_status status =
        memory == NULL || sums == NULL ? mpk_fail(error, MOEPACK_E_REFUSED, "out of memory") : MOEPACK_OK;
    if (status == MOEPACK_OK) {
        lay_out(&p, portion, memory, &z, &weights, &ids);
        memset(p.o, 0, portion * p.k * p.stride * sizeof *p.o);
    }
    const bool want = out->s != NULL || (out->y != NULL && !partial);
    for (size_t t = 0; t < tokens && status == MOEPACK_OK; t += portion) {
        p.tokens = tokens - t < portion ? tokens - t : portion;
        p.ids = ids, p.weights = weights, p.z = z;
        float *s = out->s != NULL ? out->s + t * p.width : sums;
        mpk_layer_options part_how = *how;
        part_how.sequences = 0; /* they count for a capacity only */
        if (how->token_ids != NULL) part_how.token_ids = how->token_ids + t;
        status = mpk_layer_begin(view, x + t * hidden, p.tokens, &part_how, ids, weights, z, error);
        if (status == MOEPACK_OK && want && !partial) status = check_selected(&p, entry->holds, t, error);
        if (status == MOEPACK_OK && want) status = run_experts(&p, error);
        if (status != MOEPACK_OK) break;
        if (want) add_up(&p, s);
        if (out->y != NULL && !partial)
            status = mpk_layer_finish(view, x + t * hidden, s, p.tokens, how, out->y + t * hidden, error);
        if (out->topk_ids != NULL) memcpy(out->topk_ids + t * p.k, ids, p.tokens * p.k * sizeof *ids);
        if (out->topk_weights != NULL) memcpy(out->topk_weights + t * p.k, weights, p.tokens * p.k * sizeof *weights);
    }
    free(memory);
    free(sums);
    return status;
}
