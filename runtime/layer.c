/* The calls of one MoE layer: chunks of tokens, one parallel region each, through the steps of the files beside this
 * one. Sums are added in slot order by the owner of the output rows, so that no result depends on the schedule. */
#include "layer.h"

#include "../format/bytes.h"
#include "../format/error.h"
#include "layer_job.h"

#include <omp.h>
#include <stdlib.h>

static size_t pad(size_t n)
{
    return (n + MPK_BLOCK - 1) / MPK_BLOCK * MPK_BLOCK;
}

static void copy_routing(const mpk_job *j)
{
    const size_t count = j->tokens * j->n.k;
    if (j->given_sum || j->given_latent) return;
    if (j->out.topk_ids != NULL) memcpy(j->out.topk_ids, j->ids, count * sizeof *j->ids);
    if (j->out.topk_weights != NULL) memcpy(j->out.topk_weights, j->weights, count * sizeof *j->weights);
}

/* `part` with everything that has a row per token moved `t` tokens on from `whole`. */
static void move_rows(mpk_job *part, const mpk_job *whole, size_t t)
{
    const mpk_shape *n = &whole->n;
    const mpk_layer_output *out = &whole->out;
    part->x_in = whole->x_in != NULL ? whole->x_in + t * n->hidden : NULL;
    part->s_in = whole->s_in != NULL ? whole->s_in + t * n->input : NULL;
    part->z_in = whole->z_in != NULL ? whole->z_in + t * n->input : NULL;
    part->token_ids = whole->token_ids != NULL ? whole->token_ids + t : NULL;
    part->out.kept = out->kept != NULL ? out->kept + t : NULL;
    part->ids_in = whole->ids_in != NULL ? whole->ids_in + t * n->k : NULL;
    part->weights_in = whole->weights_in != NULL ? whole->weights_in + t * n->k : NULL;
    part->z_out = whole->z_out != NULL ? whole->z_out + t * n->input : NULL;
    part->scores_out = whole->scores_out != NULL ? whole->scores_out + t * n->experts : NULL;
    part->out.y = out->y != NULL ? out->y + t * n->hidden : NULL;
    part->out.s = out->s != NULL ? out->s + t * n->input : NULL;
    part->out.topk_ids = out->topk_ids != NULL ? out->topk_ids + t * n->k : NULL;
    part->out.topk_weights = out->topk_weights != NULL ? out->topk_weights + t * n->k : NULL;
}

static void run_chunks(mpk_job *j, size_t tokens)
{
    const mpk_job whole = *j;
    for (size_t t = 0; t < tokens && j->missing_expert < 0; t += j->capacity) {
        j->tokens = tokens - t < j->capacity ? tokens - t : j->capacity;
        j->missing_token = j->first_token = t;
        move_rows(j, &whole, t);
        mpk_run_chunk(j);
        if (!j->want_experts && j->out.kept != NULL) mpk_apply_capacity(j);
        copy_routing(j);
    }
}

static mpk_job start_job(const mpk_layer_view *view, const mpk_layer_options *options)
{
    const moepack_policy *p = &view->policy;
    mpk_job j = {.view = view, .missing_expert = -1, .limit = UINT64_MAX};
    mpk_shape *n = &j.n;
    *n = (mpk_shape){.hidden = (size_t)p->hidden,
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
    j.threads = wanted == 0 ? (unsigned)omp_get_max_threads() : wanted > 4096 ? 4096 : wanted;
    j.round = options == NULL || options->compute != MPK_COMPUTE_F32;
    j.int8 = options != NULL && options->compute == MPK_COMPUTE_INT8;
    j.kernels = options != NULL ? options->kernels : NULL;
    j.token_ids = options != NULL ? options->token_ids : NULL;
    return j;
}

/* Tokens that an expert takes of a sequence (spec/numerics.md 5.7). */
static uint64_t capacity_of(const mpk_layer_view *view, size_t sequence)
{
    const moepack_policy *p = &view->policy;
    if (p->capacity == MOEPACK_CAPACITY_NONE) return UINT64_MAX;
    if (p->capacity == MOEPACK_CAPACITY_PER_SEQUENCE) return p->capacity_tokens;
    const double share = p->capacity_factor * ((double)sequence * (double)p->top_k) / (double)view->experts;
    const uint64_t whole = share > 0 ? share < 0x1p63 ? (uint64_t)share : UINT64_MAX - 1 : 0;
    return whole > p->capacity_min ? whole : p->capacity_min;
}

/* Sequences and token ids, which only a call knows. */
static moepack_status take_tokens(mpk_job *j, const mpk_layer_options *options, size_t tokens, moepack_error *error)
{
    const size_t sequences = options != NULL && options->sequences > 0 ? options->sequences : 1;
    const mpk_layer_view *v = j->view;
    if (tokens % sequences != 0)
        return mpk_fail(error, MOEPACK_E_USAGE, "%zu tokens are not %zu sequences of equal length", tokens, sequences);
    j->sequence = tokens / sequences;
    if (options != NULL && options->capacity) j->limit = capacity_of(v, j->sequence);
    if (v->policy.select != MOEPACK_SELECT_TOKEN_TABLE || tokens == 0) return MOEPACK_OK;
    if (j->token_ids == NULL) return mpk_fail(error, MOEPACK_E_USAGE, "the layer routes by token ids, none were given");
    for (size_t t = 0; t < tokens; t++)
        if (j->token_ids[t] < 0 || (uint64_t)j->token_ids[t] >= v->vocabulary)
            return mpk_fail(error, MOEPACK_E_USAGE, "token %zu has the id %ld, the layer's table %llu rows", t,
                            (long)j->token_ids[t], (unsigned long long)v->vocabulary);
    return MOEPACK_OK;
}

/* Whose rows of x are used. A copy is needed where rows want padding, and where z is the same array. */
static void plan_inputs(mpk_job *j)
{
    j->need_x = j->want_experts || j->want_latent || j->want_y;
    j->direct_x = j->n.hidden == j->n.hidden_pad && (j->round || j->view->policy.latent);
}

/* Finds memory and kernels, runs, and cleans up. The view has been checked. */
static moepack_status execute(mpk_job *j, size_t tokens, const mpk_layer_options *options, moepack_error *error)
{
    if (tokens == 0) return MOEPACK_OK;
    plan_inputs(j);
    if (j->kernels == NULL) {
        const moepack_status status = mpk_kernels_select(NULL, &j->kernels, error);
        if (status != MOEPACK_OK) return status;
    }
    const size_t bytes = mpk_job_plan(j, tokens);
    if (bytes == 0) return mpk_fail(error, MOEPACK_E_USAGE, "the layer's sizes overflow");
    const bool own = options == NULL || options->workspace == NULL;
    if (!own && (options->workspace_size < bytes || (uintptr_t)options->workspace % MPK_VIEW_ALIGNMENT != 0))
        return mpk_fail(error, MOEPACK_E_USAGE,
                        "the workspace of %zu bytes is too small or not aligned; %zu are needed",
                        options->workspace_size, bytes);
    mpk_spare *spare = options != NULL ? options->spare : NULL;
    void *memory = own ? mpk_spare_take(spare, bytes) : options->workspace;
    if (memory == NULL)
        return mpk_fail(error, MOEPACK_E_REFUSED, "no memory for %zu bytes of intermediate results", bytes);
    mpk_job_place(j, memory);
    run_chunks(j, tokens);
    if (own) mpk_spare_give(spare, memory);
    if (j->missing_expert < 0) return MOEPACK_OK;
    mpk_fail(error, MOEPACK_E_INCOMPLETE, "token %zu selects expert %lld, which is not loaded", j->missing_token,
             (long long)j->missing_expert);
    mpk_error_expert(error, j->missing_expert);
    return MOEPACK_E_INCOMPLETE;
}

size_t mpk_layer_workspace_size(const mpk_layer_view *layer, size_t tokens, const mpk_layer_options *options)
{
    mpk_job j = start_job(layer, options);
    j.want_experts = j.want_y = true;
    if (options != NULL && options->capacity) j.limit = 0; /* any limit takes the same memory */
    plan_inputs(&j);
    return mpk_job_plan(&j, tokens > 0 ? tokens : 1);
}

moepack_status mpk_layer_run(const mpk_layer_view *layer, const float *x, size_t tokens,
                             const mpk_layer_options *options, mpk_layer_output output, moepack_error *error)
{
    moepack_status status = mpk_layer_check(layer, error);
    if (status != MOEPACK_OK) return status;
    mpk_job j = start_job(layer, options);
    j.want_y = output.y != NULL;
    j.want_experts = output.y != NULL || output.s != NULL;
    j.x_in = x;
    j.out = output;
    status = take_tokens(&j, options, tokens, error);
    if (status != MOEPACK_OK) return status;
    return execute(&j, tokens, options, error);
}

moepack_status mpk_layer_finish(const mpk_layer_view *layer, const float *x, const float *s, size_t tokens,
                                const mpk_layer_options *options, float *y, moepack_error *error)
{
    const moepack_status status = mpk_layer_check_finish(layer, error);
    if (status != MOEPACK_OK) return status;
    mpk_job j = start_job(layer, options);
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
    moepack_status status = mpk_layer_check(layer, error);
    if (status != MOEPACK_OK) return status;
    mpk_job j = start_job(layer, options);
    j.want_latent = z != NULL;
    j.x_in = x;
    j.z_out = z;
    j.out.topk_ids = topk_ids;
    j.out.topk_weights = topk_weights;
    status = take_tokens(&j, options, tokens, error);
    if (status != MOEPACK_OK) return status;
    return execute(&j, tokens, options, error);
}

moepack_status mpk_layer_route(const mpk_layer_view *layer, const float *x, size_t tokens,
                               const mpk_layer_options *options, float *scores, int32_t *topk_ids, float *topk_weights,
                               moepack_error *error)
{
    moepack_status status = mpk_layer_check_router(layer, error);
    if (status != MOEPACK_OK) return status;
    mpk_job j = start_job(layer, options);
    j.x_in = x;
    j.scores_out = scores;
    j.out.topk_ids = topk_ids;
    j.out.topk_weights = topk_weights;
    status = take_tokens(&j, options, tokens, error);
    if (status != MOEPACK_OK) return status;
    return execute(&j, tokens, options, error);
}

moepack_status mpk_layer_experts(const mpk_layer_view *layer, const mpk_experts_input *in, size_t tokens,
                                 const mpk_layer_options *options, float *s, moepack_error *error)
{
    const moepack_status status = mpk_layer_check(layer, error);
    if (status != MOEPACK_OK) return status;
    uint64_t pairs;
    if (in->own_output && in->slots != 1)
        return mpk_fail(error, MOEPACK_E_USAGE, "an expert's own output is of one slot, not %zu", in->slots);
    if (!mpk_mul64(tokens, in->slots, &pairs) || pairs > UINT32_MAX)
        return mpk_fail(error, MOEPACK_E_USAGE, "%zu tokens with %zu experts each are too many", tokens, in->slots);
    for (size_t p = 0; p < (size_t)pairs; p++)
        if (in->ids[p] < 0 || (uint32_t)in->ids[p] >= layer->experts)
            return mpk_fail(error, MOEPACK_E_USAGE, "token %zu: there is no expert %ld, the layer has %lu",
                            p / in->slots, (long)in->ids[p], (unsigned long)layer->experts);
    mpk_job j = start_job(layer, options);
    j.n.k = in->slots;
    j.want_experts = j.given_latent = true;
    j.need_all = in->need_all;
    j.z_in = in->z;
    j.ids_in = in->ids;
    j.weights_in = in->weights;
    j.own_output = in->own_output;
    j.out.s = s;
    return execute(&j, tokens, options, error);
}
