/* Tasks of one call shared among the threads of a team. Internal.
 *
 * Work is cut into stages, each of a number of tasks that may run in any order and side by side. A stage starts when
 * the stages that it comes after are finished. There are no barriers: a thread takes the next task of the first stage
 * that is ready, so that stages that nothing else waits for yet fill the gaps of the others. Who runs a task is left
 * to chance; results must not depend on it. */
#ifndef MOEPACK_RUNTIME_SCHEDULE_H
#define MOEPACK_RUNTIME_SCHEDULE_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MPK_STAGES_MAX 16

/* Two cache lines, so that threads that count in one stage do not disturb those in the next. */
typedef struct mpk_stage {
    alignas(128) atomic_size_t next; /* first task that nobody took; may run past the number of tasks */
    atomic_size_t done;
    atomic_bool finished;
    size_t tasks;
    uint32_t after; /* bit i: comes after stage i */
} mpk_stage;

typedef struct mpk_schedule {
    mpk_stage stage[MPK_STAGES_MAX];
    unsigned stages;
} mpk_schedule;

/* Before the team starts, or from a task of a stage that `stage` comes after. Stages begin without tasks. */
void mpk_schedule_set(mpk_schedule *s, unsigned stage, size_t tasks);

/* `after` [stages]: bit masks of earlier stages (i < the stage's own number). */
void mpk_schedule_init(mpk_schedule *s, const uint32_t *after, unsigned stages);

/* Runs tasks until all stages are finished. Called by every thread of the team; any number of them, also one, ends the
 * work. `task` gets each pair (stage, i) exactly once, in one of the threads. */
void mpk_schedule_work(mpk_schedule *s, void (*task)(void *context, unsigned stage, size_t i, unsigned worker),
                       void *context, unsigned worker);

/* Calls body(context, worker) in up to `threads` threads at once, with different worker numbers below `threads`, and
 * returns when all have returned. Fewer threads are used where OpenMP says so: inside a parallel region of the caller
 * only the calling thread, unless nested regions are allowed (OMP_MAX_ACTIVE_LEVELS). */
void mpk_team_run(unsigned threads, void (*body)(void *context, unsigned worker), void *context);

#endif
