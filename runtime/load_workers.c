/* A loop whose passes are shared among a few threads. */
#include "load.h"

#include "error.h"
#include "io/machine.h"

#include <stdlib.h>

/* Hashing and O_DIRECT reading saturate common NVMe drives with 8 threads; more only cost memory bandwidth. */
#define DEFAULT_THREADS_MAX 8u

typedef struct loop {
    size_t count;
    atomic_size_t next;
    atomic_bool stop;
    const volatile int *cancel;
    moepack_status (*work)(void *context, size_t i, moepack_error *error);
    void *context;
    pthread_mutex_t lock; /* guards what follows */
    size_t failed_at;
    moepack_status status;
    moepack_error error;
} loop;

static void note_failure(loop *l, size_t i, moepack_status status, const moepack_error *error)
{
    atomic_store(&l->stop, true);
    pthread_mutex_lock(&l->lock);
    if (l->status == MOEPACK_OK || i < l->failed_at) {
        l->failed_at = i;
        l->status = status;
        l->error = *error;
    }
    pthread_mutex_unlock(&l->lock);
}

static void *loop_thread(void *arg)
{
    loop *l = arg;
    while (!atomic_load(&l->stop)) {
        const size_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->count) break;
        moepack_error error = {0};
        moepack_status status = MOEPACK_OK;
        if (l->cancel != NULL && __atomic_load_n(l->cancel, __ATOMIC_RELAXED) != 0)
            status = mpk_fail(&error, MOEPACK_E_INTERRUPTED, "interrupted");
        else
            status = l->work(l->context, i, &error);
        if (status != MOEPACK_OK) note_failure(l, i, status, &error);
    }
    return NULL;
}

moepack_status mpk_workers_run(unsigned threads, size_t count, const volatile int *cancel,
                               moepack_status (*work)(void *context, size_t i, moepack_error *error), void *context,
                               moepack_error *error)
{
    loop l = {.count = count, .cancel = cancel, .work = work, .context = context, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (threads > count) threads = (unsigned)count;
    pthread_t *extra = threads > 1 ? calloc(threads - 1, sizeof *extra) : NULL;
    unsigned started = 0;
    /* Fewer threads than asked for only make it slower: the calling thread works too. */
    while (extra != NULL && started < threads - 1 && pthread_create(&extra[started], NULL, loop_thread, &l) == 0)
        started++;
    loop_thread(&l);
    for (unsigned i = 0; i < started; i++) pthread_join(extra[i], NULL);
    free(extra);
    pthread_mutex_destroy(&l.lock);
    if (l.status != MOEPACK_OK && error != NULL) *error = l.error;
    return l.status;
}

unsigned mpk_workers_default(void)
{
    const unsigned cores = mpk_cpus();
    return cores < DEFAULT_THREADS_MAX ? cores : DEFAULT_THREADS_MAX;
}

unsigned mpk_readers_default(void)
{
    const unsigned cores = mpk_cpus();
    return cores < DEFAULT_THREADS_MAX / 2 ? 2 * cores : DEFAULT_THREADS_MAX;
}
