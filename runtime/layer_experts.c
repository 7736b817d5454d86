/* The experts, shared and routed: grouping of tokens, gate, up and activation, down projection and the sum in slot
 * order. */
#include "layer_job.h"

static mpk_activation_params activation_of(const moepack_policy *p, uint64_t kind)
{
    return (mpk_activation_params){(moepack_activation)kind, (float)p->situ_beta, (float)p->situ_linear_beta};
}

/* Gate, up and activation of up to MPK_MAX_RUN row blocks for up to MPK_CALL_TOKENS tokens. Results lie in the scratch,
 * rows `width` floats apart; returns their address. `rows` is the true number of rows of the matrices. */
static float *gate_up(const mpk_job *j, const mpk_matrix_view *gate, const mpk_matrix_view *up, uint64_t kind,
                      size_t first, size_t width, size_t rows, const void *const *x, size_t tokens)
{
    float *g = (float *)(void *)mpk_my_scratch(j), *u = g + MPK_CALL_TOKENS * MPK_MAX_RUN * MPK_ROWS;
    float *g_rows[MPK_CALL_TOKENS], *u_rows[MPK_CALL_TOKENS];
    for (size_t i = 0; i < tokens; i++) {
        g_rows[i] = g + i * width;
        u_rows[i] = u + i * width;
    }
    const size_t left = mpk_row_blocks(gate) - first, wanted = width / MPK_ROWS, count = left < wanted ? left : wanted;
    const mpk_activation_params params = activation_of(&j->view->policy, kind);
    mpk_multiply(j, gate, first, count, x, g_rows, tokens);
    mpk_multiply(j, up, first, count, x, u_rows, tokens);
    for (size_t i = 0; i < tokens; i++) {
        const size_t n = count * MPK_ROWS, true_rows = rows - first * MPK_ROWS;
        j->kernels->activate(&params, g_rows[i], u_rows[i], g_rows[i], n);
        mpk_clear_tail(g_rows[i], true_rows < n ? true_rows : n, width);
        if (j->round) j->kernels->round_bf16(g_rows[i], g_rows[i], width);
    }
    return g;
}

/* Shared experts, columns [first * 16, + width) of their inner width. */
void mpk_shared_part(mpk_job *j, size_t first, size_t width)
{
    const mpk_layer_view *v = j->view;
    for (size_t t = 0; t < j->tokens; t += MPK_CALL_TOKENS) {
        const size_t n = j->tokens - t < MPK_CALL_TOKENS ? j->tokens - t : MPK_CALL_TOKENS;
        const float *a = gate_up(j, &v->shared_gate, &v->shared_up, v->policy.shared_activation, first, width,
                                 j->n.shared, j->x_rows + t, n);
        for (size_t i = 0; i < n; i++)
            memcpy(j->shared + (t + i) * j->n.shared_pad + first * MPK_ROWS, a + i * width, width * sizeof(float));
    }
}

/* Sorts the pairs (token, slot) by expert and lists the experts that have work here. */
void mpk_group_pairs(mpk_job *j)
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
static size_t act_stride(const mpk_job *j)
{
    return j->n.inner_pad * sizeof(float);
}

/* Step 5, first half: columns [first * 16, + width) of one expert's inner width for all its tokens. */
static void expert_gate_up(mpk_job *j, uint32_t e, size_t first, size_t width)
{
    const mpk_expert_view *x = &j->view->expert[e];
    const bool gate_fix16 = mpk_uses_fix16(j, &x->gate), down_fix16 = mpk_uses_fix16(j, &x->down);
    const void *rows[MPK_CALL_TOKENS];
    for (uint32_t at = j->start[e]; at < j->start[e + 1]; at += MPK_CALL_TOKENS) {
        const size_t left = j->start[e + 1] - at, n = left < MPK_CALL_TOKENS ? left : MPK_CALL_TOKENS;
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

void mpk_gate_up_experts(mpk_job *j)
{
    const size_t blocks = j->n.inner_pad / MPK_ROWS;
    const size_t half = mpk_run_length(j, j->active_count * blocks, MPK_MAX_RUN), run = half > 2 ? half : 2;
    const size_t per_expert = (blocks + run - 1) / run;
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < j->active_count * per_expert; i++) {
        const size_t first = i % per_expert * run, left = blocks - first;
        expert_gate_up(j, j->active[i / per_expert], first, (left < run ? left : run) * MPK_ROWS);
    }
}

/* Row blocks [first, first + count) of one expert's down projection for all its tokens, into o[pair]. */
static void expert_down(const mpk_job *j, uint32_t e, size_t first, size_t count, float *o)
{
    const void *rows[MPK_CALL_TOKENS];
    float *out[MPK_CALL_TOKENS];
    for (uint32_t at = j->start[e]; at < j->start[e + 1]; at += MPK_CALL_TOKENS) {
        const size_t left = j->start[e + 1] - at, n = left < MPK_CALL_TOKENS ? left : MPK_CALL_TOKENS;
        for (size_t i = 0; i < n; i++) {
            rows[i] = j->act + j->pairs[at + i] * act_stride(j);
            out[i] = o + j->pairs[at + i] * count * MPK_ROWS;
        }
        mpk_multiply(j, &j->view->expert[e].down, first, count, rows, out, n);
    }
}

/* Step 5, second half, and 6. A task owns some rows of s, does them for all experts and adds each token's outputs in
 * slot order: the sum does not depend on who computed what when. */
void mpk_down_and_sum(mpk_job *j)
{
    const mpk_shape *n = &j->n;
    const size_t blocks = (n->input + MPK_ROWS - 1) / MPK_ROWS, run = mpk_run_length(j, blocks, j->down_run);
#pragma omp for schedule(dynamic)
    for (size_t i = 0; i < (blocks + run - 1) / run; i++) {
        float *o = (float *)(void *)mpk_my_scratch(j);
        const size_t first = i * run, left = blocks - first, count = left < run ? left : run;
        for (size_t a = 0; a < j->active_count; a++) expert_down(j, j->active[a], first, count, o);
        for (size_t t = 0; t < j->tokens; t++) {
            float *s = j->s + t * n->input_pad + first * MPK_ROWS;
            mpk_clear_tail(s, 0, count * MPK_ROWS);
            for (size_t p = t * n->k; p < (t + 1) * n->k; p++)
                if (j->view->present[j->ids[p]])
                    j->kernels->accumulate(j->weights[p], o + p * count * MPK_ROWS, s, count * MPK_ROWS);
        }
    }
}
