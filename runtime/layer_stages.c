/* Which parts of a chunk's work wait for which, how they are cut into tasks, and the team that does them. */
#include "layer_job.h"

/* Weights that a task reads: enough to stream well, and little enough (some 20 microseconds from memory) that nobody
 * waits long for the last one. */
#define TASK_BYTES ((size_t)512 << 10)

#define AFTER(stage) (UINT32_C(1) << (stage))

static const struct {
    uint32_t after;
    void (*task)(mpk_job *j, size_t i, uint8_t *scratch);
} stages[MPK_STAGES] = {
    [MPK_STAGE_PREPARE] = {0, mpk_prepare_token},
    [MPK_STAGE_ROUTER] = {AFTER(MPK_STAGE_PREPARE), mpk_router_rows},
    [MPK_STAGE_LATENT_DOWN] = {AFTER(MPK_STAGE_PREPARE), mpk_latent_rows},
    [MPK_STAGE_ROUTE] = {AFTER(MPK_STAGE_ROUTER), mpk_route_token},
    [MPK_STAGE_LATENT] = {AFTER(MPK_STAGE_LATENT_DOWN), mpk_finish_latent},
    [MPK_STAGE_GROUP] = {AFTER(MPK_STAGE_ROUTE), mpk_group_pairs},
    [MPK_STAGE_WEIGH] = {AFTER(MPK_STAGE_ROUTE) | AFTER(MPK_STAGE_LATENT), mpk_weigh_inputs},
    [MPK_STAGE_GATE_UP] = {AFTER(MPK_STAGE_GROUP) | AFTER(MPK_STAGE_LATENT) | AFTER(MPK_STAGE_WEIGH), mpk_gate_up_rows},
    [MPK_STAGE_DOWN] = {AFTER(MPK_STAGE_GATE_UP), mpk_down_rows},
    [MPK_STAGE_SUM] = {AFTER(MPK_STAGE_DOWN), mpk_sum_columns},
    [MPK_STAGE_NORM] = {AFTER(MPK_STAGE_SUM), mpk_norm_token},
    [MPK_STAGE_SHARED] = {AFTER(MPK_STAGE_PREPARE), mpk_shared_columns},
    [MPK_STAGE_SHARED_GATE] = {AFTER(MPK_STAGE_PREPARE), mpk_shared_gate_rows},
    [MPK_STAGE_OUTPUT] = {AFTER(MPK_STAGE_NORM) | AFTER(MPK_STAGE_SHARED) | AFTER(MPK_STAGE_SHARED_GATE),
                          mpk_output_rows},
};

size_t mpk_run_length(const mpk_job *j, size_t blocks, size_t block_bytes, size_t limit)
{
    size_t run = TASK_BYTES / (block_bytes > 0 ? block_bytes : 1);
    if (run > limit) run = limit;
    while (run > 1 && blocks / run < (size_t)j->threads * 8) run /= 2;
    return run > 0 ? run : 1;
}

/* Tasks of a stage that multiplies by `m`. */
static void set_product(mpk_job *j, unsigned stage, const mpk_matrix_view *m)
{
    const size_t blocks = mpk_row_blocks(m);
    j->run[stage] = mpk_run_length(j, blocks, mpk_row_block_bytes(m), MPK_MAX_RUN);
    mpk_schedule_set(j->schedule, stage, mpk_tasks(blocks, j->run[stage]));
}

void mpk_set_output_tasks(mpk_job *j)
{
    const mpk_layer_view *v = j->view;
    const size_t blocks = (j->n.hidden + MPK_ROWS - 1) / MPK_ROWS;
    size_t bytes = v->policy.latent ? mpk_row_block_bytes(&v->latent_up) : 0;
    if (v->policy.shared_width > 0) bytes += mpk_row_block_bytes(&v->shared_down);
    if (!j->want_y) return;
    j->run[MPK_STAGE_OUTPUT] = mpk_run_length(j, blocks, bytes, MPK_MAX_RUN);
    mpk_schedule_set(j->schedule, MPK_STAGE_OUTPUT, mpk_tasks(blocks, j->run[MPK_STAGE_OUTPUT]));
}

/* What is known before the router has spoken. */
static void set_first_tasks(mpk_job *j)
{
    const mpk_layer_view *v = j->view;
    const bool routes = !j->given_sum && !j->given_latent, wants_z = j->want_experts || j->want_latent;
    mpk_schedule_set(j->schedule, MPK_STAGE_PREPARE, j->tokens);
    if (routes) {
        set_product(j, MPK_STAGE_ROUTER, &v->router);
        mpk_schedule_set(j->schedule, MPK_STAGE_ROUTE, j->tokens);
    }
    if (routes && wants_z && v->policy.latent) set_product(j, MPK_STAGE_LATENT_DOWN, &v->latent_down);
    if (wants_z) mpk_schedule_set(j->schedule, MPK_STAGE_LATENT, j->tokens);
    if (j->want_experts) mpk_schedule_set(j->schedule, MPK_STAGE_GROUP, 1);
    if (j->want_experts && mpk_weighs_input(j)) mpk_schedule_set(j->schedule, MPK_STAGE_WEIGH, j->tokens);
    if (j->given_sum) {
        mpk_schedule_set(j->schedule, MPK_STAGE_NORM, j->tokens);
        mpk_set_output_tasks(j);
    }
    const size_t pairs = j->n.shared_pad / MPK_BLOCK; /* of row blocks: 32 columns, which the activation needs */
    if (!j->want_y || pairs == 0) return;
    const size_t one = mpk_row_block_bytes(&v->shared_up), bytes = v->policy.gated ? 4 * one : 2 * one;
    if (v->policy.shared_gate != MOEPACK_SHARED_GATE_NONE) set_product(j, MPK_STAGE_SHARED_GATE, &v->shared_router);
    j->run[MPK_STAGE_SHARED] = 2 * mpk_run_length(j, pairs, bytes, MPK_MAX_RUN / 2);
    mpk_schedule_set(j->schedule, MPK_STAGE_SHARED, mpk_tasks(2 * pairs, j->run[MPK_STAGE_SHARED]));
}

static void run_task(void *context, unsigned stage, size_t i, unsigned worker)
{
    mpk_job *j = context;
    stages[stage].task(j, i, j->scratch + worker * j->scratch_bytes);
}

static void run_worker(void *context, unsigned worker)
{
    mpk_job *j = context;
    mpk_float_guard guard;
    mpk_float_enter(&guard);
    mpk_schedule_work(j->schedule, run_task, j, worker);
    mpk_float_leave(&guard);
}

void mpk_run_chunk(mpk_job *j)
{
    mpk_schedule schedule;
    uint32_t after[MPK_STAGES];
    for (unsigned i = 0; i < MPK_STAGES; i++) after[i] = stages[i].after;
    mpk_schedule_init(&schedule, after, MPK_STAGES);
    j->schedule = &schedule;
    set_first_tasks(j);
    mpk_team_run(j->threads, run_worker, j);
    j->schedule = NULL;
}
