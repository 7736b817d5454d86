#include "layers.h"

#include "cpu/elementary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static moepack_policy policy_of(const geometry *g)
{
    return (moepack_policy){.hidden = g->hidden,
                            .expert_input = g->input,
                            .intermediate = g->inner,
                            .top_k = g->k,
                            .score = g->softmax ? MOEPACK_SCORE_SOFTMAX : MOEPACK_SCORE_SIGMOID,
                            .select = g->softmax ? MOEPACK_SELECT_SCORE : MOEPACK_SELECT_BIASED,
                            .renormalize = MOEPACK_RENORM_SUM_EPS,
                            .renorm_eps = 1e-20,
                            .scale = 1.5,
                            .groups = 1,
                            .groups_kept = 1,
                            .activation = g->activation,
                            .gated = 1,
                            .situ_beta = 4.0,
                            .situ_linear_beta = g->linear_beta,
                            .latent = g->latent,
                            .latent_norm = g->norm,
                            .norm_eps = 1e-5,
                            .shared_width = g->shared,
                            .shared_activation = g->shared_activation};
}

layer make_layer(const geometry *g, uint64_t seed)
{
    test_random r = {seed};
    layer l = {0};
    const double h = 1 / sqrt((double)g->hidden), in = 1 / sqrt((double)g->input), inner = 1 / sqrt((double)g->inner);
    l.router = test_matrix_random(&r, g->dense_encoding, g->experts, g->hidden, 2 * h);
    l.expert = test_alloc(g->experts * sizeof *l.expert);
    l.experts = test_alloc(g->experts * sizeof *l.experts);
    l.present = test_alloc(g->experts);
    l.bias = test_alloc(g->experts * sizeof(float));
    l.norm = test_alloc(g->input * sizeof(float));
    for (uint32_t e = 0; e < g->experts; e++) {
        l.expert[e][0] = test_matrix_random(&r, g->expert_encoding, g->inner, g->input, 2 * in);
        l.expert[e][1] = test_matrix_random(&r, g->expert_encoding, g->inner, g->input, in);
        l.expert[e][2] = test_matrix_random(&r, g->expert_encoding, g->input, g->inner, inner);
        l.experts[e] =
            (mpk_expert_view){.gate = l.expert[e][0].view, .up = l.expert[e][1].view, .down = l.expert[e][2].view};
        l.present[e] = 1;
        l.bias[e] = (float)test_normal(&r) * 0.05f;
    }
    for (uint64_t i = 0; i < g->input; i++) l.norm[i] = mpk_bf16(1.0f + 0.2f * (float)test_normal(&r));
    l.view = (mpk_layer_view){.policy = policy_of(g),
                              .experts = g->experts,
                              .router = l.router.view,
                              .router_bias = g->softmax ? NULL : l.bias,
                              .latent_norm = g->norm ? l.norm : NULL,
                              .expert = l.experts,
                              .present = l.present};
    if (g->latent) {
        l.latent_down = test_matrix_random(&r, g->dense_encoding, g->input, g->hidden, h);
        l.latent_up = test_matrix_random(&r, g->dense_encoding, g->hidden, g->input, in);
        l.view.latent_down = l.latent_down.view;
        l.view.latent_up = l.latent_up.view;
    }
    if (g->shared > 0) {
        l.shared[0] = test_matrix_random(&r, g->dense_encoding, g->shared, g->hidden, 2 * h);
        l.shared[1] = test_matrix_random(&r, g->dense_encoding, g->shared, g->hidden, h);
        l.shared[2] = test_matrix_random(&r, g->dense_encoding, g->hidden, g->shared, 1 / sqrt((double)g->shared));
        l.view.shared_gate = l.shared[0].view;
        l.view.shared_up = l.shared[1].view;
        l.view.shared_down = l.shared[2].view;
    }
    return l;
}

void free_layer(layer *l)
{
    for (uint32_t e = 0; e < l->view.experts; e++)
        for (int i = 0; i < 3; i++) test_matrix_free(&l->expert[e][i]);
    for (int i = 0; i < 3; i++) test_matrix_free(&l->shared[i]);
    test_matrix_free(&l->router);
    test_matrix_free(&l->latent_down);
    test_matrix_free(&l->latent_up);
    free(l->expert);
    free(l->experts);
    free(l->present);
    free(l->bias);
    free(l->norm);
}

float *make_x(const geometry *g, size_t tokens, uint64_t seed)
{
    test_random r = {seed};
    float *x = test_alloc(tokens * g->hidden * sizeof(float));
    for (size_t i = 0; i < tokens * g->hidden; i++) x[i] = mpk_bf16((float)test_normal(&r));
    return x;
}

result run(const layer *l, const float *x, size_t tokens, const mpk_layer_options *options, bool want_y)
{
    const moepack_policy *p = &l->view.policy;
    result out = {.y = want_y ? test_alloc(tokens * p->hidden * 4) : NULL,
                  .s = test_alloc(tokens * p->expert_input * 4),
                  .weights = test_alloc(tokens * p->top_k * 4),
                  .ids = test_alloc(tokens * p->top_k * 4)};
    moepack_error error = {0};
    const mpk_layer_output output = {.y = out.y, .s = out.s, .topk_ids = out.ids, .topk_weights = out.weights};
    if (mpk_layer_run(&l->view, x, tokens, options, output, &error) != MOEPACK_OK) fail_msg("%s", error.message);
    return out;
}

void free_result(result *r)
{
    free(r->y);
    free(r->s);
    free(r->weights);
    free(r->ids);
}

void same_results(const layer *l, const result *a, const result *b, size_t tokens, const char *what)
{
    const moepack_policy *p = &l->view.policy;
    assert_memory_equal(a->ids, b->ids, tokens * p->top_k * 4);
    test_same_bits(a->weights, b->weights, tokens * p->top_k, what);
    test_same_bits(a->s, b->s, tokens * p->expert_input, what);
    if (a->y != NULL && b->y != NULL) test_same_bits(a->y, b->y, tokens * p->hidden, what);
}
