/* The steps around the experts: inputs, router, latent, norm and output. */
#include "layer_job.h"
#include "router.h"

static void point_rows(mpk_job *j, size_t t)
{
    const mpk_shape *n = &j->n;
    j->z_rows[t] = j->z + t * n->input_pad;
    j->z_fix16_rows[t] = j->z_fix16 + t * (n->input_pad / MPK_BLOCK);
    j->z_int8_rows[t] = j->int8 ? j->z_int8 + t * (n->input_pad / MPK_BLOCK) : NULL;
    j->shared_rows[t] = j->shared + t * n->shared_pad;
    j->n_rows[t] = j->n_out + t * n->input_pad;
}

/* In place of steps 1 to 4: one token's latent and experts, chosen by the caller. */
static void take_latent(mpk_job *j, size_t t)
{
    const mpk_shape *n = &j->n;
    memcpy(j->z + t * n->input_pad, j->z_in + t * n->input, n->input * sizeof(float));
    if (n->k > 0) { /* without slots there need be no arrays */
        memcpy(j->ids + t * n->k, j->ids_in + t * n->k, n->k * sizeof *j->ids);
        memcpy(j->weights + t * n->k, j->weights_in + t * n->k, n->k * sizeof *j->weights);
    }
}

/* Copies one token in where that is needed, pads it and rounds it. */
void mpk_prepare_token(mpk_job *j, size_t t, uint8_t *scratch)
{
    const mpk_shape *n = &j->n;
    (void)scratch;
    point_rows(j, t);
    if (j->given_latent) {
        take_latent(j, t);
        return;
    }
    const float *raw = j->x_in + t * n->hidden;
    if (!j->direct_x) {
        float *copy = j->x_raw + t * n->hidden_pad;
        memcpy(copy, raw, n->hidden * sizeof(float));
        mpk_clear_tail(copy, n->hidden, n->hidden_pad);
        raw = copy;
    }
    j->raw_rows[t] = j->x_rows[t] = raw;
    if (!j->round || !j->need_x) return;
    float *rounded = j->x + t * n->hidden_pad;
    j->kernels->round_bf16(raw, rounded, n->hidden_pad);
    j->x_rows[t] = rounded;
}

/* Row blocks [i run, + run) of a matrix for all tokens of the chunk. */
static void project(const mpk_job *j, const mpk_matrix_view *m, size_t run, size_t i, const void *const *x, float *y,
                    size_t stride)
{
    const size_t first = i * run, left = mpk_row_blocks(m) - first;
    mpk_multiply_rows(j, m, first, left < run ? left : run, x, y + first * MPK_ROWS, stride, j->tokens);
}

void mpk_router_rows(mpk_job *j, size_t i, uint8_t *scratch)
{
    (void)scratch;
    project(j, &j->view->router, j->run[MPK_STAGE_ROUTER], i, j->raw_rows, j->logits, j->n.experts_pad);
}

void mpk_latent_rows(mpk_job *j, size_t i, uint8_t *scratch)
{
    (void)scratch;
    project(j, &j->view->latent_down, j->run[MPK_STAGE_LATENT_DOWN], i, j->x_rows, j->z, j->n.input_pad);
}

void mpk_shared_gate_rows(mpk_job *j, size_t i, uint8_t *scratch)
{
    (void)scratch;
    project(j, &j->view->shared_router, j->run[MPK_STAGE_SHARED_GATE], i, j->x_rows, j->shared_gate, MPK_ROWS);
}

void mpk_route_token(mpk_job *j, size_t t, uint8_t *scratch)
{
    const mpk_shape *n = &j->n;
    const mpk_layer_view *v = j->view;
    float *logits = j->logits + t * n->experts_pad;
    if (v->policy.logit_bias) j->kernels->add(v->logit_bias, logits, (n->experts + MPK_ROWS - 1) / MPK_ROWS * MPK_ROWS);
    mpk_router_input in = {.logits = logits, .bias = mpk_uses_bias(&v->policy) ? v->router_bias : NULL};
    if (v->policy.select == MOEPACK_SELECT_TOKEN_TABLE) in.chosen = v->token_table + (size_t)j->token_ids[t] * n->k;
    mpk_route(&v->policy, v->experts, &in, j->kernels, scratch, j->ids + t * n->k, j->weights + t * n->k);
    if (j->scores_out == NULL) return;
    float *score = (float *)(void *)scratch;
    mpk_router_score(&v->policy, v->experts, logits, j->kernels, score);
    memcpy(j->scores_out + t * n->experts, score, n->experts * sizeof *score);
}

/* Pads and rounds a row of z, unless it is a row of x and both were done, and makes the blocks that kernels read. */
void mpk_finish_latent(mpk_job *j, size_t t, uint8_t *scratch)
{
    const mpk_shape *n = &j->n;
    float *z = j->z + t * n->input_pad;
    (void)scratch;
    if (j->given_latent || j->view->policy.latent) {
        mpk_clear_tail(z, n->input, n->input_pad);
        if (j->round) j->kernels->round_bf16(z, z, n->input_pad);
    }
    if (j->round && j->want_experts)
        j->kernels->quantize(z, j->z_fix16 + t * (n->input_pad / MPK_BLOCK), n->input_pad / MPK_BLOCK);
    if (j->int8 && j->want_experts)
        j->kernels->quantize_int8(z, j->z_int8 + t * (n->input_pad / MPK_BLOCK), n->input_pad / MPK_BLOCK);
    if (j->z_out != NULL) memcpy(j->z_out + t * n->input, z, n->input * sizeof(float));
}

/* What each of a token's experts reads, where weights enter there. */
void mpk_weigh_inputs(mpk_job *j, size_t t, uint8_t *scratch)
{
    const mpk_shape *n = &j->n;
    const float *z = j->z + t * n->input_pad;
    (void)scratch;
    for (size_t p = t * n->k; p < (t + 1) * n->k; p++) {
        float *to = j->weighed + p * n->input_pad;
        j->kernels->scale(j->weights[p], z, to, n->input_pad);
        if (!j->round) continue;
        j->kernels->round_bf16(to, to, n->input_pad);
        j->kernels->quantize(to, j->weighed_fix16 + p * (n->input_pad / MPK_BLOCK), n->input_pad / MPK_BLOCK);
        if (j->int8)
            j->kernels->quantize_int8(to, j->weighed_int8 + p * (n->input_pad / MPK_BLOCK), n->input_pad / MPK_BLOCK);
    }
}

/* Step 7, and s on its way out. */
void mpk_norm_token(mpk_job *j, size_t t, uint8_t *scratch)
{
    (void)scratch;
    const mpk_shape *n = &j->n;
    const moepack_policy *p = &j->view->policy;
    float *s = j->s + t * n->input_pad, *out = j->n_out + t * n->input_pad;
    if (j->given_sum) memcpy(s, j->s_in + t * n->input, n->input * sizeof(float));
    mpk_clear_tail(s, n->input, n->input_pad);
    for (size_t i = 0; i < n->input; i++) s[i] = mpk_canonical(s[i]);
    if (j->out.s != NULL) memcpy(j->out.s + t * n->input, s, n->input * sizeof(float));
    if (!j->want_y || !p->latent) return;
    if (!p->latent_norm) {
        memcpy(out, s, n->input_pad * sizeof(float));
        return;
    }
    j->kernels->norm(s, j->view->latent_norm, (float)p->norm_eps, out, n->input);
    mpk_clear_tail(out, n->input, n->input_pad);
    if (j->round) j->kernels->round_bf16(out, out, n->input_pad);
}

/* Step 8 for `count` row blocks and up to MPK_CALL_TOKENS tokens from `t` on. */
static void output_part(mpk_job *j, size_t first, size_t count, size_t t, size_t tokens, uint8_t *scratch)
{
    const mpk_layer_view *v = j->view;
    const size_t width = count * MPK_ROWS, from = first * MPK_ROWS;
    const size_t valid = j->n.hidden - from < width ? j->n.hidden - from : width;
    float *routed = (float *)(void *)scratch, *shared = routed + MPK_CALL_TOKENS * MPK_MAX_RUN * MPK_ROWS;
    if (v->policy.latent) {
        mpk_multiply_rows(j, &v->latent_up, first, count, j->n_rows + t, routed, width, tokens);
    } else {
        for (size_t i = 0; i < tokens; i++)
            memcpy(routed + i * width, j->s + (t + i) * j->n.input_pad + from, width * sizeof(float));
    }
    if (v->policy.shared_width > 0)
        mpk_multiply_rows(j, &v->shared_down, first, count, j->shared_rows + t, shared, width, tokens);
    for (size_t i = 0; i < tokens; i++) {
        float *y = j->out.y + (t + i) * j->n.hidden + from;
        float *h = shared + i * width;
        const float *r = routed + i * width;
        if (v->policy.shared_width > 0 && v->policy.shared_gate != MOEPACK_SHARED_GATE_NONE)
            j->kernels->scale(mpk_sigmoid(j->shared_gate[(t + i) * MPK_ROWS]), h, h, width);
        for (size_t c = 0; c < valid; c++) y[c] = mpk_canonical(v->policy.shared_width > 0 ? r[c] + h[c] : r[c]);
    }
}

void mpk_output_rows(mpk_job *j, size_t i, uint8_t *scratch)
{
    const size_t blocks = (j->n.hidden + MPK_ROWS - 1) / MPK_ROWS, run = j->run[MPK_STAGE_OUTPUT];
    const size_t first = i * run, left = blocks - first;
    for (size_t t = 0; t < j->tokens; t += MPK_CALL_TOKENS) {
        const size_t n = j->tokens - t < MPK_CALL_TOKENS ? j->tokens - t : MPK_CALL_TOKENS;
        output_part(j, first, left < run ? left : run, t, n, scratch);
    }
}
