/* Running one block of a load: options, environment and outputs around runtime/layer.h. */
#include "load.h"

#include "cpu/kernels.h"
#include "error.h"
#include "io/machine.h"
#include "residency.h"

#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>

void moepack_layer_options_init(moepack_layer_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->compute = MOEPACK_COMPUTE_BF16;
}

unsigned mpk_default_threads_limit(void)
{
    const char *asked = getenv("OMP_NUM_THREADS");
    return asked != NULL && asked[0] != '\0' ? UINT_MAX : mpk_cpu_quota("");
}

/* OpenMP knows the affinity mask, but not the quota. */
static unsigned default_threads(unsigned limit)
{
    const unsigned threads = (unsigned)omp_get_max_threads();
    return threads < limit ? threads : limit;
}

unsigned moepack_threads(void)
{
    return default_threads(mpk_default_threads_limit());
}

/* A name given in code wins over the environment; an empty variable counts as none. */
static moepack_status select_kernels(const char *name, const mpk_kernels **out, moepack_error *error)
{
    if (name == NULL) name = getenv("MOEPACK_KERNELS");
    if (name != NULL && name[0] == '\0') name = NULL;
    return mpk_kernels_select(name, out, error);
}

moepack_status moepack_kernels_name(const char *kernels, const char **name, moepack_error *error)
{
    const mpk_kernels *chosen = NULL;
    if (name == NULL) return mpk_fail(error, MOEPACK_E_USAGE, "a place for the result is needed");
    *name = NULL;
    moepack_status status = select_kernels(kernels, &chosen, error);
    if (status == MOEPACK_OK) *name = chosen->name;
    return status;
}

/* Sizes that the stored tensors have and an override cannot change. */
static moepack_status check_override(const moepack_policy *stored, const moepack_policy *given, uint64_t experts,
                                     moepack_error *error)
{
    const struct {
        const char *name;
        uint64_t stored, given;
    } size[] = {
        {"hidden", stored->hidden, given->hidden},
        {"expert_input", stored->expert_input, given->expert_input},
        {"intermediate", stored->intermediate, given->intermediate},
        {"latent", stored->latent, given->latent},
    };
    moepack_status status = moepack_policy_check(given, experts, error);
    if (status != MOEPACK_OK) return status;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
        if (size[i].stored != size[i].given)
            return mpk_fail(error, MOEPACK_E_USAGE,
                            "policy override %s=%" PRIu64 " contradicts the stored tensors: %" PRIu64, size[i].name,
                            size[i].given, size[i].stored);
    if (given->shared_width != 0 && given->shared_width != stored->shared_width)
        return mpk_fail(error, MOEPACK_E_USAGE,
                        "policy override shared_width=%" PRIu64 " contradicts the stored tensors: %" PRIu64,
                        given->shared_width, stored->shared_width);
    return MOEPACK_OK;
}

static bool holds_all(const mpk_layer_view *view)
{
    for (uint32_t e = 0; e < view->experts; e++)
        if (!view->present[e]) return false;
    return true;
}

/* Without y the layer is content with a partial sum; a caller who did not ask for one must not get it. */
static moepack_status check_selected(const mpk_layer_view *view, const int32_t *ids, size_t tokens,
                                     moepack_error *error)
{
    for (size_t i = 0; i < tokens * (size_t)view->policy.top_k; i++) {
        const int32_t e = ids[i];
        if (e < 0 || view->present[e]) continue;
        mpk_fail(error, MOEPACK_E_INCOMPLETE, "token %zu selects this expert, which was not loaded",
                 i / (size_t)view->policy.top_k);
        mpk_error_expert(error, e);
        return MOEPACK_E_INCOMPLETE;
    }
    return MOEPACK_OK;
}

static moepack_status run_view(const mpk_layer_view *view, const float *x, size_t tokens,
                               const moepack_layer_options *options, const mpk_layer_options *how,
                               const moepack_layer_output *output, moepack_error *error)
{
    mpk_layer_output to = {options->partial ? NULL : output->y, output->s, output->topk_ids, output->topk_weights,
                           output->kept};
    const bool check_ids = !options->partial && to.y == NULL && to.s != NULL && !holds_all(view);
    int32_t *own_ids = NULL;
    if (check_ids && to.topk_ids == NULL) {
        uint64_t count;
        if (!__builtin_mul_overflow((uint64_t)tokens, view->policy.top_k, &count) && count < SIZE_MAX / sizeof *own_ids)
            own_ids = calloc((size_t)count + 1, sizeof *own_ids);
        if (own_ids == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        to.topk_ids = own_ids;
    }
    moepack_status status = mpk_layer_run(view, x, tokens, how, to, error);
    if (status == MOEPACK_OK && check_ids) status = check_selected(view, to.topk_ids, tokens, error);
    free(own_ids);
    return status;
}

_Static_assert((int)MOEPACK_COMPUTE_BF16 == MPK_COMPUTE_BF16 && (int)MOEPACK_COMPUTE_F32 == MPK_COMPUTE_F32 &&
                   (int)MOEPACK_COMPUTE_INT8 == MPK_COMPUTE_INT8,
               "the public modes are the internal ones");

/* What a call of this file works on. */
typedef struct call {
    const moepack_load *load;
    const mpk_load_block *entry;
    moepack_layer_options given;
    mpk_layer_view view; /* with the caller's policy and the experts that count */
    mpk_layer_options how;
} call;

/* The loaded block that a call names. */
static moepack_status find_block(call *c, uint32_t block, moepack_error *error)
{
    const moepack_index *index = c->load->index;
    const uint32_t blocks = moepack_index_blocks(index);
    if (block >= blocks)
        return mpk_fail(error, MOEPACK_E_USAGE, "block %" PRIu32 " does not exist, the container has %" PRIu32, block,
                        blocks);
    c->entry = mpk_load_block_of(c->load, block);
    if (c->entry != NULL) return MOEPACK_OK;
    char label[MOEPACK_LABEL_MAX];
    moepack_index_label(index, block, label);
    mpk_fail(error, MOEPACK_E_INCOMPLETE, "the layer was not loaded");
    mpk_error_layer(error, label);
    return MOEPACK_E_INCOMPLETE;
}

static moepack_status take_call(call *c, const moepack_load *load, uint32_t block, const moepack_layer_options *options,
                                moepack_error *error)
{
    *c = (call){.load = load};
    moepack_layer_options_init(&c->given);
    if (options != NULL && !mpk_take_options(&c->given, sizeof c->given, options))
        return mpk_fail(error, MOEPACK_E_USAGE, "layer options of unknown size");
    if ((unsigned)c->given.compute > MOEPACK_COMPUTE_INT8)
        return mpk_fail(error, MOEPACK_E_USAGE, "%d is no compute mode", (int)c->given.compute);
    return find_block(c, block, error);
}

/* For the calls that do a part of the layer. */
static moepack_status refuse_capacity(const call *c, moepack_error *error)
{
    if (!c->given.capacity) return MOEPACK_OK;
    return mpk_fail(error, MOEPACK_E_USAGE, "a capacity is only for moepack_layer_run, which sees tokens and choice");
}

/* View and options of a call, on a whole block or (router_suffices) on its router at least: where it fails, and where
 * the work fails, name_block says which block it was. */
static moepack_status prepare_call(call *c, bool router_suffices, moepack_error *error)
{
    const mpk_load_block *entry = c->entry;
    if (entry->view_status != MOEPACK_OK && !(router_suffices && entry->has_router)) {
        if (error != NULL) *error = entry->view_error;
        return entry->view_status;
    }
    c->view = entry->view;
    if (c->given.partial) c->view.present = entry->computes;
    if (c->given.policy != NULL) {
        moepack_status status = check_override(&entry->view.policy, c->given.policy, c->view.experts, error);
        if (status != MOEPACK_OK) return status;
        c->view.policy = *c->given.policy;
    }
    if (c->given.router_bias != NULL) c->view.router_bias = c->given.router_bias;
    c->how =
        (mpk_layer_options){.compute = (mpk_compute)c->given.compute,
                            .threads = c->given.threads > 0 ? c->given.threads : default_threads(c->load->cpu_quota),
                            .spare = c->load->spare,
                            .token_ids = c->given.token_ids,
                            .capacity = c->given.capacity,
                            .sequences = c->given.sequences};
    return select_kernels(c->given.kernels, &c->how.kernels, error);
}

static moepack_status name_block(const call *c, moepack_status status, moepack_error *error)
{
    if (status == MOEPACK_OK || error == NULL) return status;
    char label[MOEPACK_LABEL_MAX];
    moepack_index_label(c->load->index, c->entry->block, label);
    mpk_error_file(error, moepack_pack_path(c->load->pack));
    mpk_error_layer(error, label);
    return status;
}

moepack_status moepack_layer_run(const moepack_load *load, uint32_t block, const float *x, size_t tokens,
                                 const moepack_layer_options *options, const moepack_layer_output *output,
                                 moepack_error *error)
{
    call c;
    if (load == NULL || output == NULL || (x == NULL && tokens > 0))
        return mpk_fail(error, MOEPACK_E_USAGE, "a load, an input and places for the output are needed");
    moepack_status status = take_call(&c, load, block, options, error);
    if (status != MOEPACK_OK) return status;
    status = prepare_call(&c, false, error);
    if (status == MOEPACK_OK) status = run_view(&c.view, x, tokens, &c.given, &c.how, output, error);
    return name_block(&c, status, error);
}

moepack_status moepack_residency_run(moepack_residency *residency, uint32_t block, const float *x, size_t tokens,
                                     const moepack_layer_options *options, const moepack_layer_output *output,
                                     moepack_error *error)
{
    call c;
    if (residency == NULL || output == NULL || (x == NULL && tokens > 0))
        return mpk_fail(error, MOEPACK_E_USAGE, "a residency, an input and places for the output are needed");
    moepack_status status = take_call(&c, residency->dense, block, options, error);
    if (status != MOEPACK_OK) return status;
    status = prepare_call(&c, false, error);
    if (status == MOEPACK_OK)
        status = mpk_residency_run_view(residency, block, &c.view, &c.how, x, tokens, c.given.partial, output, error);
    return name_block(&c, status, error);
}

/* ------------------------------------------------------------------------------------------------ the steps apart */

moepack_status moepack_layer_begin(const moepack_load *load, uint32_t block, const float *x, size_t tokens,
                                   const moepack_layer_options *options, int32_t *topk_ids, float *topk_weights,
                                   float *z, moepack_error *error)
{
    call c;
    if (load == NULL || (x == NULL && tokens > 0))
        return mpk_fail(error, MOEPACK_E_USAGE, "a load and an input are needed");
    moepack_status status = take_call(&c, load, block, options, error);
    if (status == MOEPACK_OK) status = refuse_capacity(&c, error);
    if (status != MOEPACK_OK) return status;
    status = prepare_call(&c, false, error);
    if (status == MOEPACK_OK) status = mpk_layer_begin(&c.view, x, tokens, &c.how, topk_ids, topk_weights, z, error);
    return name_block(&c, status, error);
}

moepack_status moepack_experts_run(const moepack_load *load, uint32_t block, const float *z, const int32_t *ids,
                                   const float *weights, size_t tokens, size_t slots,
                                   const moepack_layer_options *options, float *s, moepack_error *error)
{
    call c;
    const bool given = z != NULL && s != NULL && (slots == 0 || (ids != NULL && weights != NULL));
    if (load == NULL || (tokens > 0 && !given))
        return mpk_fail(error, MOEPACK_E_USAGE, "a load, inputs, experts and a place for the output are needed");
    moepack_status status = take_call(&c, load, block, options, error);
    if (status == MOEPACK_OK) status = refuse_capacity(&c, error);
    if (status != MOEPACK_OK) return status;
    status = prepare_call(&c, false, error);
    const mpk_experts_input in = {z, ids, weights, slots, !c.given.partial, false};
    if (status == MOEPACK_OK) status = mpk_layer_experts(&c.view, &in, tokens, &c.how, s, error);
    return name_block(&c, status, error);
}

moepack_status moepack_layer_finish(const moepack_load *load, uint32_t block, const float *x, const float *s,
                                    size_t tokens, const moepack_layer_options *options, float *y, moepack_error *error)
{
    call c;
    if (load == NULL || (tokens > 0 && (x == NULL || s == NULL || y == NULL)))
        return mpk_fail(error, MOEPACK_E_USAGE, "a load, inputs and a place for the output are needed");
    moepack_status status = take_call(&c, load, block, options, error);
    if (status == MOEPACK_OK) status = refuse_capacity(&c, error);
    if (status != MOEPACK_OK) return status;
    status = prepare_call(&c, false, error);
    if (status == MOEPACK_OK) status = mpk_layer_finish(&c.view, x, s, tokens, &c.how, y, error);
    return name_block(&c, status, error);
}

/* ------------------------------------------------------------------------------------------------ the router alone */

moepack_status moepack_router_run(const moepack_load *load, uint32_t block, const float *x, size_t tokens,
                                  const moepack_layer_options *options, const moepack_router_output *output,
                                  moepack_error *error)
{
    call c;
    if (load == NULL || output == NULL || (x == NULL && tokens > 0))
        return mpk_fail(error, MOEPACK_E_USAGE, "a load, an input and places for the output are needed");
    moepack_status status = take_call(&c, load, block, options, error);
    if (status == MOEPACK_OK) status = refuse_capacity(&c, error);
    if (status != MOEPACK_OK) return status;
    status = prepare_call(&c, true, error);
    if (status == MOEPACK_OK)
        status =
            mpk_layer_route(&c.view, x, tokens, &c.how, output->scores, output->topk_ids, output->topk_weights, error);
    return name_block(&c, status, error);
}

moepack_status moepack_router_bias(const moepack_load *load, uint32_t block, float *bias, bool *present,
                                   moepack_error *error)
{
    call c;
    if (load == NULL || bias == NULL || present == NULL)
        return mpk_fail(error, MOEPACK_E_USAGE, "a load and places for the results are needed");
    moepack_status status = take_call(&c, load, block, NULL, error);
    if (status != MOEPACK_OK) return status;
    if (!c.entry->has_router) return name_block(&c, prepare_call(&c, true, error), error);
    const float *stored = c.entry->router_bias;
    for (uint32_t e = 0; e < c.entry->view.experts; e++) bias[e] = stored != NULL ? stored[e] : 0.0f;
    *present = stored != NULL;
    return MOEPACK_OK;
}
