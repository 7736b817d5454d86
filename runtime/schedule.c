/* Stages and tasks without barriers, and the team of threads that works on them. */
#include "schedule.h"

#include <sched.h>

#ifdef MOEPACK_PTHREAD_TEAM
#include <pthread.h>
#else
#include <omp.h>
#endif

/* A waiting thread looks again this often before it offers its processor to others: some tens of microseconds, longer
 * than most gaps between stages. */
#define SPINS 1000

void mpk_schedule_init(mpk_schedule *s, const uint32_t *after, unsigned stages)
{
    s->stages = stages;
    for (unsigned i = 0; i < stages; i++) {
        atomic_init(&s->stage[i].next, 0);
        atomic_init(&s->stage[i].done, 0);
        atomic_init(&s->stage[i].finished, false);
        s->stage[i].tasks = 0;
        s->stage[i].after = after[i];
    }
}

void mpk_schedule_set(mpk_schedule *s, unsigned stage, size_t tasks)
{
    s->stage[stage].tasks = tasks;
}

static bool is_finished(mpk_schedule *s, unsigned stage);

/* Once this is true, `tasks` is final and everything that earlier stages wrote can be seen. */
static bool is_ready(mpk_schedule *s, unsigned stage)
{
    for (uint32_t left = s->stage[stage].after; left != 0; left &= left - 1)
        if (!is_finished(s, (unsigned)__builtin_ctz(left))) return false;
    return true;
}

static bool is_finished(mpk_schedule *s, unsigned stage)
{
    mpk_stage *at = &s->stage[stage];
    if (atomic_load_explicit(&at->finished, memory_order_acquire)) return true;
    if (!is_ready(s, stage) || atomic_load_explicit(&at->done, memory_order_acquire) < at->tasks) return false;
    atomic_store_explicit(&at->finished, true, memory_order_release);
    return true;
}

/* A task of the first stage that has one to give. */
static bool take(mpk_schedule *s, unsigned *stage, size_t *i)
{
    for (unsigned at = 0; at < s->stages; at++) {
        mpk_stage *from = &s->stage[at];
        if (atomic_load_explicit(&from->finished, memory_order_acquire) || !is_ready(s, at)) continue;
        if (atomic_load_explicit(&from->next, memory_order_relaxed) >= from->tasks) continue;
        *i = atomic_fetch_add_explicit(&from->next, 1, memory_order_relaxed);
        *stage = at;
        if (*i < from->tasks) return true;
    }
    return false;
}

static bool all_finished(mpk_schedule *s)
{
    for (unsigned i = s->stages; i-- > 0;)
        if (!is_finished(s, i)) return false;
    return true;
}

static void wait_a_little(unsigned *spins)
{
    if (++*spins < SPINS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb");
#endif
    } else {
        sched_yield();
    }
}

void mpk_schedule_work(mpk_schedule *s, void (*task)(void *context, unsigned stage, size_t i, unsigned worker),
                       void *context, unsigned worker)
{
    unsigned stage = 0, spins = 0;
    size_t i = 0;
    while (!all_finished(s)) {
        if (!take(s, &stage, &i)) {
            wait_a_little(&spins);
            continue;
        }
        spins = 0;
        task(context, stage, i, worker);
        atomic_fetch_add_explicit(&s->stage[stage].done, 1, memory_order_acq_rel);
    }
}

#ifdef MOEPACK_PTHREAD_TEAM
/* For ThreadSanitizer, which does not see how libgomp's threads wait for each other. */
typedef struct member {
    pthread_t thread;
    void (*body)(void *context, unsigned worker);
    void *context;
    unsigned worker;
} member;

#define MEMBERS_MAX 64

static void *member_run(void *argument)
{
    member *self = argument;
    self->body(self->context, self->worker);
    return NULL;
}

void mpk_team_run(unsigned threads, void (*body)(void *context, unsigned worker), void *context)
{
    member members[MEMBERS_MAX];
    unsigned started = 1;
    if (threads > MEMBERS_MAX) threads = MEMBERS_MAX;
    for (; started < threads; started++) {
        members[started] = (member){.body = body, .context = context, .worker = started};
        if (pthread_create(&members[started].thread, NULL, member_run, &members[started]) != 0) break;
    }
    body(context, 0);
    for (unsigned i = 1; i < started; i++) pthread_join(members[i].thread, NULL);
}
#else
void mpk_team_run(unsigned threads, void (*body)(void *context, unsigned worker), void *context)
{
#pragma omp parallel num_threads((int)threads)
    body(context, (unsigned)omp_get_thread_num());
}
#endif
