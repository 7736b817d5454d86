/* The steps around the experts: inputs, router, latent, norm and output. */
#include "layer_job.h"
#include "router.h"

static void point_rows(mpk_job *j, size_t t)
{
    const mpk_shape *n = &j->n;
    j->z_rows[t] = j->z + t * n->input_pad;
    j->z_fix16_rows[t] = j->z_fix16 + t * (n->input_pad / MPK_BLOCK);
    j->shared_rows[t] = j->shared + t * n->shared_pad;
    j->n_rows[t] = j->n_out + t * n->input_pad;
}

/* Copies one token in, pads it and rounds it. */
void mpk_prepare_token(mpk_job *j, size_t t)
{
    const mpk_shape *n = &j->n;
    float *raw = j->x_raw + t * n->hidden_pad, *rounded = j->x + t * n->hidden_pad;
    memcpy(raw, j->x_in + t * n->hidden, n->hidden * sizeof(float));
    mpk_clear_tail(raw, n->hidden, n->hidden_pad);
    if (j->round) j->kernels->round_bf16(raw, rounded, n->hidden_pad);
    j->raw_rows[t] = raw;
    j->x_rows[t] = rounded;
    point_rows(j, t);
}

/* Steps 1, 4 and the first half of the shared experts: everything that reads x. One list of tasks, so that no thread
 * waits between them. */
void mpk_project_inputs(mpk_job *j)
{
    const mpk_layer_view *v = j->view;
    const mpk_shape *n = &j->n;
    const bool routed = !j->given_sum;
    const size_t run = mpk_run_length(j, (n->input_pad + n->shared_pad) / MPK_ROWS, MPK_MAX_RUN);
    const size_t pairs = run > 2 ? run : 2; /* the activation's blocks of 32 are two row blocks */
    const size_t router_tasks = routed ? (mpk_row_blocks(&v->router) + run - 1) / run : 0;
    const bool latent = routed && (j->want_experts || j->want_latent) && v->policy.latent;
    const size_t down_blocks = latent ? mpk_row_blocks(&v->latent_down) : 0;
    const size_t down_tasks = (down_blocks + run - 1) / run;
    const size_t shared_tasks = j->want_y ? (n->shared_pad / MPK_ROWS + pairs - 1) / pairs : 0;
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < router_tasks + down_tasks + shared_tasks; i++) {
        if (i < router_tasks) {
            const size_t first = i * run, left = mpk_row_blocks(&v->router) - first;
            mpk_multiply_rows(j, &v->router, first, left < run ? left : run, j->raw_rows, j->logits + first * MPK_ROWS,
                              n->experts_pad, j->tokens);
        } else if (i < router_tasks + down_tasks) {
            const size_t first = (i - router_tasks) * run, left = down_blocks - first;
            mpk_multiply_rows(j, &v->latent_down, first, left < run ? left : run, j->x_rows, j->z + first * MPK_ROWS,
                              n->input_pad, j->tokens);
        } else {
            const size_t first = (i - router_tasks - down_tasks) * pairs, left = n->shared_pad / MPK_ROWS - first;
            mpk_shared_part(j, first, (left < pairs ? left : pairs) * MPK_ROWS);
        }
    }
}

/* Pads and rounds a row of z, unless it is a row of x and both were done, and makes what fix16 kernels read. */
static void finish_latent(mpk_job *j, size_t t, bool fresh)
{
    const mpk_shape *n = &j->n;
    float *z = j->z + t * n->input_pad;
    if (fresh) {
        mpk_clear_tail(z, n->input, n->input_pad);
        if (j->round) j->kernels->round_bf16(z, z, n->input_pad);
    }
    if (j->round && j->want_experts)
        j->kernels->quantize(z, j->z_fix16 + t * (n->input_pad / MPK_BLOCK), n->input_pad / MPK_BLOCK);
}

/* Steps 2 and 3, and the latent's rounding. */
void mpk_route_token(mpk_job *j, size_t t)
{
    const mpk_shape *n = &j->n;
    const mpk_layer_view *v = j->view;
    mpk_route(&v->policy, v->experts, mpk_uses_bias(&v->policy) ? v->router_bias : NULL, j->logits + t * n->experts_pad,
              j->kernels, mpk_my_scratch(j), j->ids + t * n->k, j->weights + t * n->k);
    if (j->scores_out != NULL) {
        float *score = (float *)(void *)mpk_my_scratch(j);
        mpk_router_score(&v->policy, v->experts, j->logits + t * n->experts_pad, j->kernels, score);
        memcpy(j->scores_out + t * n->experts, score, n->experts * sizeof *score);
    }
    if (!j->want_experts && !j->want_latent) return;
    finish_latent(j, t, v->policy.latent);
    if (j->z_out != NULL) memcpy(j->z_out + t * n->input, j->z + t * n->input_pad, n->input * sizeof(float));
}

/* In place of steps 1 to 4: one token's latent and experts, chosen by the caller. */
void mpk_take_latent(mpk_job *j, size_t t)
{
    const mpk_shape *n = &j->n;
    memcpy(j->z + t * n->input_pad, j->z_in + t * n->input, n->input * sizeof(float));
    if (n->k > 0) { /* without slots there need be no arrays */
        memcpy(j->ids + t * n->k, j->ids_in + t * n->k, n->k * sizeof *j->ids);
        memcpy(j->weights + t * n->k, j->weights_in + t * n->k, n->k * sizeof *j->weights);
    }
    point_rows(j, t);
    finish_latent(j, t, true);
}

/* Step 7, and s on its way out. */
void mpk_norm_token(mpk_job *j, size_t t)
{
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
static void output_part(mpk_job *j, size_t first, size_t count, size_t t, size_t tokens)
{
    const mpk_layer_view *v = j->view;
    const size_t width = count * MPK_ROWS, from = first * MPK_ROWS;
    const size_t valid = j->n.hidden - from < width ? j->n.hidden - from : width;
    float *routed = (float *)(void *)mpk_my_scratch(j), *shared = routed + MPK_CALL_TOKENS * MPK_MAX_RUN * MPK_ROWS;
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
        for (size_t c = 0; c < valid; c++) {
            const float r = routed[i * width + c];
            y[c] = mpk_canonical(v->policy.shared_width > 0 ? r + shared[i * width + c] : r);
        }
    }
}

void mpk_write_outputs(mpk_job *j)
{
    const size_t blocks = (j->n.hidden + MPK_ROWS - 1) / MPK_ROWS, run = mpk_run_length(j, blocks, MPK_MAX_RUN);
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < (blocks + run - 1) / run; i++) {
        const size_t first = i * run, left = blocks - first;
        for (size_t t = 0; t < j->tokens; t += MPK_CALL_TOKENS) {
            const size_t n = j->tokens - t < MPK_CALL_TOKENS ? j->tokens - t : MPK_CALL_TOKENS;
            output_part(j, first, left < run ? left : run, t, n);
        }
    }
}
