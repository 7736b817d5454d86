/* The experts, shared and routed: grouping of tokens, gate, up and activation, down projection and the sum in slot
 * order. */
#include "layer_job.h"

/* Columns of the expert sum in a task where there are few tokens. */
#define SUM_COLUMNS ((size_t)512)

/* `shared`: of the shared experts. */
static mpk_activation_params activation_of(const moepack_policy *p, bool shared)
{
    return (mpk_activation_params){.kind = (moepack_activation)(shared ? p->shared_activation : p->activation),
                                   .beta = (float)p->situ_beta,
                                   .linear_beta = (float)p->situ_linear_beta,
                                   .alpha = (float)p->act_alpha,
                                   .limit = (float)(shared ? p->shared_act_limit : p->act_limit)};
}

/* The first half of an expert, or of the shared experts. */
typedef struct network {
    const mpk_matrix_view *gate, *up; /* gate NULL: not gated */
    const float *gate_bias, *up_bias; /* NULL: none */
    mpk_activation_params activation;
    size_t rows; /* true number of rows of the matrices */
} network;

/* A product for up to MPK_CALL_TOKENS tokens, with its bias. Inputs stand under their form; dense parts have
 * floats alone. */
static void multiply_add(const mpk_job *j, const mpk_matrix_view *m, const float *bias, size_t first, size_t count,
                         const void *const *const *inputs, float *const *y, size_t tokens)
{
    const mpk_input form = inputs[MPK_INPUT_FIX16] != NULL ? mpk_input_of(j, m) : MPK_INPUT_F32;
    mpk_multiply(j, m, form, first, count, inputs[form], y, tokens);
    for (size_t i = 0; bias != NULL && i < tokens; i++)
        j->kernels->add(bias + first * MPK_ROWS, y[i], count * MPK_ROWS);
}

/* Gate, up and activation of up to MPK_MAX_RUN row blocks for up to MPK_CALL_TOKENS tokens. Results lie in the scratch,
 * rows `width` floats apart; returns their address. `weights` NULL: the activation's output as it is. */
static float *gate_up(const mpk_job *j, const network *net, size_t first, size_t width,
                      const void *const *const *inputs, const float *weights, size_t tokens, uint8_t *scratch)
{
    float *g = (float *)(void *)scratch, *u = g + MPK_CALL_TOKENS * MPK_MAX_RUN * MPK_ROWS;
    float *g_rows[MPK_CALL_TOKENS], *u_rows[MPK_CALL_TOKENS];
    for (size_t i = 0; i < tokens; i++) {
        g_rows[i] = g + i * width;
        u_rows[i] = u + i * width;
    }
    const size_t left = mpk_row_blocks(net->up) - first, wanted = width / MPK_ROWS,
                 count = left < wanted ? left : wanted;
    if (net->gate != NULL) multiply_add(j, net->gate, net->gate_bias, first, count, inputs, g_rows, tokens);
    multiply_add(j, net->up, net->up_bias, first, count, inputs, u_rows, tokens);
    for (size_t i = 0; i < tokens; i++) {
        const size_t n = count * MPK_ROWS, true_rows = net->rows - first * MPK_ROWS;
        if (net->gate != NULL)
            j->kernels->activate(&net->activation, g_rows[i], u_rows[i], g_rows[i], n);
        else
            j->kernels->activate(&net->activation, u_rows[i], NULL, g_rows[i], n);
        if (weights != NULL) j->kernels->scale(weights[i], g_rows[i], g_rows[i], n);
        mpk_clear_tail(g_rows[i], true_rows < n ? true_rows : n, width);
        if (j->round) j->kernels->round_bf16(g_rows[i], g_rows[i], width);
    }
    return g;
}

/* Shared experts, a run of columns of their inner width. */
void mpk_shared_columns(mpk_job *j, size_t i, uint8_t *scratch)
{
    const mpk_layer_view *v = j->view;
    const size_t run = j->run[MPK_STAGE_SHARED], first = i * run, left = j->n.shared_pad / MPK_ROWS - first;
    const size_t width = (left < run ? left : run) * MPK_ROWS;
    const network net = {.gate = v->policy.gated ? &v->shared_gate : NULL,
                         .up = &v->shared_up,
                         .activation = activation_of(&v->policy, true),
                         .rows = j->n.shared};
    for (size_t t = 0; t < j->tokens; t += MPK_CALL_TOKENS) {
        const size_t n = j->tokens - t < MPK_CALL_TOKENS ? j->tokens - t : MPK_CALL_TOKENS;
        const void *const *const inputs[MPK_INPUTS] = {[MPK_INPUT_F32] = j->x_rows + t};
        const float *a = gate_up(j, &net, first, width, inputs, NULL, n, scratch);
        for (size_t k = 0; k < n; k++)
            memcpy(j->shared + (t + k) * j->n.shared_pad + first * MPK_ROWS, a + k * width, width * sizeof(float));
    }
}

void mpk_apply_capacity(mpk_job *j)
{
    const size_t k = j->n.k;
    for (size_t t = 0; t < j->tokens; t++) {
        int32_t kept = (int32_t)k;
        if (j->limit != UINT64_MAX) {
            if ((j->first_token + t) % j->sequence == 0) memset(j->filled, 0, j->n.experts * sizeof *j->filled);
            for (size_t p = t * k; p < (t + 1) * k; p++) {
                const int32_t e = j->ids[p];
                const bool room = j->filled[e] < j->limit;
                j->computed[p] = room ? e : -1;
                j->filled[e] += room;
                kept -= !room;
            }
        }
        if (j->out.kept != NULL) j->out.kept[t] = kept;
    }
}

/* How much work there is in the stages that depend on who selected what. */
static void set_expert_tasks(mpk_job *j)
{
    const size_t gate_blocks = j->n.inner_pad / MPK_ROWS, down_blocks = (j->n.input + MPK_ROWS - 1) / MPK_ROWS;
    const size_t active = j->active_count;
    if (j->missing_expert >= 0) return; /* no tasks at all */
    if (active > 0) {
        const mpk_expert_view *x = &j->view->expert[j->active[0]];
        const size_t one = mpk_row_block_bytes(&x->up), pair = j->view->policy.gated ? 4 * one : 2 * one;
        /* The activation's blocks of 32 columns are two row blocks. */
        j->run[MPK_STAGE_GATE_UP] = 2 * mpk_run_length(j, active * (gate_blocks / 2), pair, MPK_MAX_RUN / 2);
        j->run[MPK_STAGE_DOWN] = mpk_run_length(j, active * down_blocks, mpk_row_block_bytes(&x->down), down_blocks);
        mpk_schedule_set(j->schedule, MPK_STAGE_GATE_UP, active * mpk_tasks(gate_blocks, j->run[MPK_STAGE_GATE_UP]));
        mpk_schedule_set(j->schedule, MPK_STAGE_DOWN, active * mpk_tasks(down_blocks, j->run[MPK_STAGE_DOWN]));
    }
    const size_t columns = down_blocks * MPK_ROWS;
    j->sum_columns = j->tokens >= (size_t)j->threads * 8 || columns <= SUM_COLUMNS ? columns : SUM_COLUMNS;
    mpk_schedule_set(j->schedule, MPK_STAGE_SUM, j->tokens * mpk_tasks(columns, j->sum_columns));
    mpk_schedule_set(j->schedule, MPK_STAGE_NORM, j->tokens);
    mpk_set_output_tasks(j);
}

void mpk_group_pairs(mpk_job *j, size_t i, uint8_t *scratch)
{
    const mpk_layer_view *v = j->view;
    const size_t count = j->tokens * j->n.k, experts = j->n.experts;
    (void)i, (void)scratch;
    mpk_apply_capacity(j);
    memset(j->start, 0, (experts + 1) * sizeof *j->start);
    for (size_t p = 0; p < count; p++) {
        const int32_t e = j->computed[p];
        if (e < 0) continue;
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
    for (size_t p = count; p-- > 0;)
        if (j->computed[p] >= 0) j->pairs[--j->start[j->computed[p]]] = (uint32_t)p;
    set_expert_tasks(j);
}

/* Bytes from one pair's input of the down projection to the next. */
static size_t act_stride(const mpk_job *j)
{
    return j->n.inner_pad * sizeof(float);
}

/* One pair's input: its token's, or its own where that is weighted. */
static const void *pair_input(const mpk_job *j, uint32_t pair, mpk_input form)
{
    const size_t t = pair / j->n.k, blocks = j->n.input_pad / MPK_BLOCK;
    const bool own = mpk_weighs_input(j);
    switch (form) {
    case MPK_INPUT_FIX16:
        return own ? (const void *)(j->weighed_fix16 + pair * blocks) : j->z_fix16_rows[t];
    case MPK_INPUT_INT8:
        if (!j->int8) return NULL;
        return own ? (const void *)(j->weighed_int8 + pair * blocks) : j->z_int8_rows[t];
    default:
        return own ? (const void *)(j->weighed + pair * j->n.input_pad) : j->z_rows[t];
    }
}

/* Step 5, first half: columns [first * 16, + width) of one expert's inner width for all its tokens. */
static void expert_gate_up(mpk_job *j, uint32_t e, size_t first, size_t width, uint8_t *scratch)
{
    const mpk_expert_view *x = &j->view->expert[e];
    const moepack_policy *p = &j->view->policy;
    const network net = {.gate = p->gated ? &x->gate : NULL,
                         .up = &x->up,
                         .gate_bias = p->expert_bias ? x->gate_bias : NULL,
                         .up_bias = p->expert_bias ? x->up_bias : NULL,
                         .activation = activation_of(p, false),
                         .rows = j->n.inner};
    const mpk_input of_down = mpk_input_of(j, &x->down);
    const bool weigh = p->weight_applied == MOEPACK_APPLY_HIDDEN;
    const void *rows[MPK_INPUTS][MPK_CALL_TOKENS];
    const void *const *const inputs[MPK_INPUTS] = {rows[MPK_INPUT_F32], rows[MPK_INPUT_FIX16], rows[MPK_INPUT_INT8]};
    float weights[MPK_CALL_TOKENS];
    for (uint32_t at = j->start[e]; at < j->start[e + 1]; at += MPK_CALL_TOKENS) {
        const size_t left = j->start[e + 1] - at, n = left < MPK_CALL_TOKENS ? left : MPK_CALL_TOKENS;
        for (size_t i = 0; i < n; i++) {
            for (int form = 0; form < MPK_INPUTS; form++)
                rows[form][i] = pair_input(j, j->pairs[at + i], (mpk_input)form);
            weights[i] = j->weights[j->pairs[at + i]];
        }
        const float *a = gate_up(j, &net, first, width, inputs, weigh ? weights : NULL, n, scratch);
        for (size_t i = 0; i < n; i++) {
            uint8_t *act = j->act + j->pairs[at + i] * act_stride(j);
            const size_t block = first * MPK_ROWS / MPK_BLOCK, count = width / MPK_BLOCK;
            if (of_down == MPK_INPUT_INT8)
                j->kernels->quantize_int8(a + i * width, (mpk_int8_block *)(void *)act + block, count);
            else if (of_down == MPK_INPUT_FIX16)
                j->kernels->quantize(a + i * width, (mpk_fix16_block *)(void *)act + block, count);
            else
                memcpy(act + first * MPK_ROWS * sizeof(float), a + i * width, width * sizeof(float));
        }
    }
}

void mpk_gate_up_rows(mpk_job *j, size_t i, uint8_t *scratch)
{
    const size_t blocks = j->n.inner_pad / MPK_ROWS, run = j->run[MPK_STAGE_GATE_UP];
    const size_t per_expert = mpk_tasks(blocks, run), first = i % per_expert * run, left = blocks - first;
    expert_gate_up(j, j->active[i / per_expert], first, (left < run ? left : run) * MPK_ROWS, scratch);
}

/* A run of row blocks of one expert's down projection for all its tokens, into o[pair]. */
void mpk_down_rows(mpk_job *j, size_t i, uint8_t *scratch)
{
    const size_t blocks = (j->n.input + MPK_ROWS - 1) / MPK_ROWS, run = j->run[MPK_STAGE_DOWN];
    const size_t per_expert = mpk_tasks(blocks, run), first = i % per_expert * run, left = blocks - first;
    const uint32_t e = j->active[i / per_expert];
    const mpk_expert_view *x = &j->view->expert[e];
    const float *bias = j->view->policy.expert_bias ? x->down_bias : NULL;
    const void *rows[MPK_CALL_TOKENS];
    const void *const *const inputs[MPK_INPUTS] = {rows, rows, rows}; /* in the form that the matrix wants */
    float *out[MPK_CALL_TOKENS];
    (void)scratch;
    for (uint32_t at = j->start[e]; at < j->start[e + 1]; at += MPK_CALL_TOKENS) {
        const size_t more = j->start[e + 1] - at, n = more < MPK_CALL_TOKENS ? more : MPK_CALL_TOKENS;
        for (size_t k = 0; k < n; k++) {
            rows[k] = j->act + j->pairs[at + k] * act_stride(j);
            out[k] = j->o + j->pairs[at + k] * j->n.input_pad + first * MPK_ROWS;
        }
        multiply_add(j, &x->down, bias, first, left < run ? left : run, inputs, out, n);
    }
}

/* Step 6. */
void mpk_sum_columns(mpk_job *j, size_t i, uint8_t *scratch)
{
    const mpk_shape *n = &j->n;
    const size_t columns = (n->input + MPK_ROWS - 1) / MPK_ROWS * MPK_ROWS, parts = mpk_tasks(columns, j->sum_columns);
    const size_t t = i / parts, first = i % parts * j->sum_columns, left = columns - first;
    const size_t width = left < j->sum_columns ? left : j->sum_columns;
    float *s = j->s + t * n->input_pad + first;
    (void)scratch;
    mpk_clear_tail(s, 0, width);
    if (j->own_output) { /* not through a sum from +0, which would lose the sign of a zero */
        if (j->view->present[j->ids[t]]) memcpy(s, j->o + t * n->input_pad + first, width * sizeof *s);
        return;
    }
    const bool weigh = j->view->policy.weight_applied == MOEPACK_APPLY_OUTPUT;
    for (size_t p = t * n->k; p < (t + 1) * n->k; p++)
        if (j->computed[p] >= 0 && j->view->present[j->computed[p]])
            j->kernels->accumulate(weigh ? j->weights[p] : 1.0f, j->o + p * n->input_pad + first, s, width);
}
