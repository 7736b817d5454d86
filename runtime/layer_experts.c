/* The experts, shared and routed: grouping of tokens, gate, up and activation, down projection and the sum in slot
 * order. */
#include "layer_job.h"

/* Columns of the expert sum in a task where there are few tokens. */
#define SUM_COLUMNS ((size_t)512)

static mpk_activation_params activation_of(const moepack_policy *p, uint64_t kind)
{
    return (mpk_activation_params){(moepack_activation)kind, (float)p->situ_beta, (float)p->situ_linear_beta};
}

/* Gate, up and activation of up to MPK_MAX_RUN row blocks for up to MPK_CALL_TOKENS tokens. `fix16` are the same inputs
 * as `x` for matrices that want them so; NULL: none does. Results lie in the scratch,
 * rows `width` floats apart; returns their address. `rows` is the true number of rows of the matrices. */
static float *gate_up(const mpk_job *j, const mpk_matrix_view *gate, const mpk_matrix_view *up, uint64_t kind,
                      size_t first, size_t width, size_t rows, const void *const *x, const void *const *fix16,
                      size_t tokens, uint8_t *scratch)
{
    float *g = (float *)(void *)scratch, *u = g + MPK_CALL_TOKENS * MPK_MAX_RUN * MPK_ROWS;
    float *g_rows[MPK_CALL_TOKENS], *u_rows[MPK_CALL_TOKENS];
    for (size_t i = 0; i < tokens; i++) {
        g_rows[i] = g + i * width;
        u_rows[i] = u + i * width;
    }
    const size_t left = mpk_row_blocks(gate) - first, wanted = width / MPK_ROWS, count = left < wanted ? left : wanted;
    const mpk_activation_params params = activation_of(&j->view->policy, kind);
    const bool gate_fix16 = fix16 != NULL && mpk_uses_fix16(j, gate), up_fix16 = fix16 != NULL && mpk_uses_fix16(j, up);
    mpk_multiply(j, gate, gate_fix16, first, count, gate_fix16 ? fix16 : x, g_rows, tokens);
    mpk_multiply(j, up, up_fix16, first, count, up_fix16 ? fix16 : x, u_rows, tokens);
    for (size_t i = 0; i < tokens; i++) {
        const size_t n = count * MPK_ROWS, true_rows = rows - first * MPK_ROWS;
        j->kernels->activate(&params, g_rows[i], u_rows[i], g_rows[i], n);
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
    for (size_t t = 0; t < j->tokens; t += MPK_CALL_TOKENS) {
        const size_t n = j->tokens - t < MPK_CALL_TOKENS ? j->tokens - t : MPK_CALL_TOKENS;
        const float *a = gate_up(j, &v->shared_gate, &v->shared_up, v->policy.shared_activation, first, width,
                                 j->n.shared, j->x_rows + t, NULL, n, scratch);
        for (size_t k = 0; k < n; k++)
            memcpy(j->shared + (t + k) * j->n.shared_pad + first * MPK_ROWS, a + k * width, width * sizeof(float));
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
        const size_t pair = 2 * (mpk_row_block_bytes(&x->gate) + mpk_row_block_bytes(&x->up));
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
    set_expert_tasks(j);
}

/* Bytes from one pair's input of the down projection to the next. */
static size_t act_stride(const mpk_job *j)
{
    return j->n.inner_pad * sizeof(float);
}

/* Step 5, first half: columns [first * 16, + width) of one expert's inner width for all its tokens. */
static void expert_gate_up(mpk_job *j, uint32_t e, size_t first, size_t width, uint8_t *scratch)
{
    const mpk_expert_view *x = &j->view->expert[e];
    const bool down_fix16 = mpk_uses_fix16(j, &x->down);
    const void *rows[MPK_CALL_TOKENS], *fix16[MPK_CALL_TOKENS];
    for (uint32_t at = j->start[e]; at < j->start[e + 1]; at += MPK_CALL_TOKENS) {
        const size_t left = j->start[e + 1] - at, n = left < MPK_CALL_TOKENS ? left : MPK_CALL_TOKENS;
        for (size_t i = 0; i < n; i++) {
            const size_t t = j->pairs[at + i] / j->n.k;
            rows[i] = j->z_rows[t];
            fix16[i] = j->z_fix16_rows[t];
        }
        const float *a =
            gate_up(j, &x->gate, &x->up, j->view->policy.activation, first, width, j->n.inner, rows, fix16, n, scratch);
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
    const mpk_matrix_view *down = &j->view->expert[e].down;
    const bool fix16 = mpk_uses_fix16(j, down);
    const void *rows[MPK_CALL_TOKENS];
    float *out[MPK_CALL_TOKENS];
    (void)scratch;
    for (uint32_t at = j->start[e]; at < j->start[e + 1]; at += MPK_CALL_TOKENS) {
        const size_t more = j->start[e + 1] - at, n = more < MPK_CALL_TOKENS ? more : MPK_CALL_TOKENS;
        for (size_t k = 0; k < n; k++) {
            rows[k] = j->act + j->pairs[at + k] * act_stride(j);
            out[k] = j->o + j->pairs[at + k] * j->n.input_pad + first * MPK_ROWS;
        }
        mpk_multiply(j, down, fix16, first, left < run ? left : run, rows, out, n);
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
    for (size_t p = t * n->k; p < (t + 1) * n->k; p++)
        if (j->view->present[j->ids[p]])
            j->kernels->accumulate(j->weights[p], j->o + p * n->input_pad + first, s, width);
}
