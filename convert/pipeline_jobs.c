/* Worker threads of the pipeline, their buffers out of one bounded pool, and how many there should be. */
#include "pipeline_jobs.h"

#include "error.h"
#include "io/io.h"
#include "io/machine.h"
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- how many threads ---- */

/* More than this many only compete for the disk. */
#define DEFAULT_JOBS_MAX 8u

unsigned mpk_jobs_default(void)
{
    const unsigned cores = mpk_cpus();
    return cores < DEFAULT_JOBS_MAX / 4 ? 4 * cores : DEFAULT_JOBS_MAX;
}

unsigned mpk_jobs_choose(unsigned asked, size_t items)
{
    unsigned jobs = asked ? asked : mpk_jobs_default();
    if (jobs > MPK_JOBS_MAX) jobs = MPK_JOBS_MAX;
    if (jobs > items) jobs = (unsigned)items;
    return jobs ? jobs : 1;
}

/* ---- running items ---- */

typedef struct run {
    pthread_mutex_t lock;
    size_t next, count, failed_item;
    bool stop;
    moepack_status status;
    moepack_error *error;
    const moepack_callbacks *callbacks;
    mpk_job job;
    void *user;
} run;

typedef struct worker {
    run *run;
    unsigned lane;
    pthread_t thread;
} worker;

static bool take_item(run *r, size_t *item)
{
    pthread_mutex_lock(&r->lock);
    if (r->next < r->count && mpk_cancelled(r->callbacks) && r->status == MOEPACK_OK) {
        r->stop = true;
        r->status = mpk_fail(r->error, MOEPACK_E_INTERRUPTED, "interrupted");
    }
    bool more = !r->stop && r->next < r->count;
    if (more) *item = r->next++;
    pthread_mutex_unlock(&r->lock);
    return more;
}

static void *work(void *argument)
{
    worker *self = argument;
    run *r = self->run;
    size_t item;
    while (take_item(r, &item)) {
        moepack_error error;
        moepack_status status = r->job(r->user, self->lane, item, &error);
        if (status == MOEPACK_OK) continue;
        pthread_mutex_lock(&r->lock);
        /* The failure of the lowest item wins, so that the same damage gives the same message for any number of jobs in
         * nearly all cases. */
        if (r->status == MOEPACK_OK || item < r->failed_item) {
            r->status = status;
            r->failed_item = item;
            if (r->error) *r->error = error;
        }
        r->stop = true;
        pthread_mutex_unlock(&r->lock);
    }
    return NULL;
}

moepack_status mpk_jobs_run(unsigned jobs, size_t count, const moepack_callbacks *callbacks, mpk_job job, void *user,
                            moepack_error *error)
{
    run r = {.count = count, .failed_item = SIZE_MAX, .error = error, .callbacks = callbacks, .job = job, .user = user};
    pthread_mutex_init(&r.lock, NULL);
    worker *workers = calloc(jobs ? jobs : 1, sizeof *workers);
    if (!workers) {
        pthread_mutex_destroy(&r.lock);
        return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    unsigned started = 0;
    for (unsigned i = 1; i < jobs; i++) {
        workers[i] = (worker){.run = &r, .lane = i};
        /* Fewer threads than asked for is slower, not wrong. */
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) break;
        started = i;
    }
    workers[0] = (worker){.run = &r, .lane = 0};
    work(&workers[0]);
    for (unsigned i = 1; i <= started; i++) pthread_join(workers[i].thread, NULL);
    free(workers);
    pthread_mutex_destroy(&r.lock);
    return r.status;
}

/* ---- lanes and the pool ---- */

/* Small inputs get small buffers, but not so small that padding is looked at in crumbs. */
#define LANE_LEAST ((uint64_t)64 << 10)

static uint64_t lane_bytes(unsigned jobs)
{
    uint64_t share = MPK_POOL_BYTES / 2 / (2 * (uint64_t)jobs) & ~(uint64_t)4095;
    return share < MPK_LANE_BYTES ? share : MPK_LANE_BYTES;
}

/* Large buffers in huge pages: direct I/O looks up every page it transfers to or from. */
static uint8_t *lane_buffer(uint64_t size)
{
    const uint64_t huge = (uint64_t)2 << 20;
    if (size < huge) return aligned_alloc(MPK_PAGE, (size + MPK_PAGE - 1) / MPK_PAGE * MPK_PAGE);
    size = (size + huge - 1) / huge * huge;
    uint8_t *buffer = aligned_alloc(huge, size);
#ifdef MADV_HUGEPAGE
    if (buffer) madvise(buffer, size, MADV_HUGEPAGE); /* advice */
#endif
    return buffer;
}

uint64_t mpk_lanes_memory(unsigned jobs, uint64_t largest)
{
    return 2 * lane_bytes(jobs) * jobs + largest;
}

moepack_status mpk_lanes_init(mpk_lanes *lanes, unsigned jobs, uint64_t useful, moepack_error *error)
{
    *lanes = (mpk_lanes){.count = jobs, .bytes = lane_bytes(jobs), .lendable = MPK_POOL_BYTES / 2};
    if (useful < LANE_LEAST) useful = LANE_LEAST;
    if (useful < lanes->bytes) lanes->bytes = (useful + 4095) & ~(uint64_t)4095;
    pthread_mutex_init(&lanes->lock, NULL);
    pthread_cond_init(&lanes->freed, NULL);
    lanes->lane = calloc(jobs, sizeof *lanes->lane);
    bool good = lanes->lane != NULL;
    for (unsigned i = 0; good && i < jobs; i++) {
        mpk_lane *lane = &lanes->lane[i];
        *lane = (mpk_lane){.bytes = lanes->bytes, .owner = lanes};
        lane->in = lane_buffer(MPK_DIRECT_ROOM(lanes->bytes));
        lane->out = lane_buffer(MPK_DIRECT_ROOM(lanes->bytes));
        lane->first = mpk_hasher_new(64);
        lane->second = mpk_hasher_new(64);
        lane->part = mpk_hasher_new(64);
        good = lane->in && lane->out && lane->first && lane->second && lane->part;
    }
    if (good) return MOEPACK_OK;
    mpk_lanes_free(lanes);
    return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory for the buffers of %u jobs", jobs);
}

void mpk_lanes_free(mpk_lanes *lanes)
{
    for (unsigned i = 0; lanes->lane && i < lanes->count; i++) {
        mpk_lane *lane = &lanes->lane[i];
        free(lane->in);
        free(lane->out);
        mpk_hasher_free(lane->first);
        mpk_hasher_free(lane->second);
        mpk_hasher_free(lane->part);
    }
    free(lanes->lane);
    lanes->lane = NULL;
    pthread_cond_destroy(&lanes->freed);
    pthread_mutex_destroy(&lanes->lock);
}

moepack_status mpk_buffers_take(mpk_lane *lane, uint64_t in, uint64_t out, mpk_buffers *buffers, moepack_error *error)
{
    *buffers = (mpk_buffers){.in = lane->in, .out = lane->out, .out_bytes = lane->bytes};
    if (in <= lane->bytes && out <= lane->bytes) return MOEPACK_OK;
    mpk_lanes *lanes = lane->owner;
    const uint64_t most = MPK_POOL_BYTES / 2;
    if (in > most || out > most - in)
        return mpk_fail(error, MOEPACK_E_REFUSED, "needs %llu bytes of buffers at once, %llu are allowed",
                        (unsigned long long)(in <= UINT64_MAX - out ? in + out : UINT64_MAX), (unsigned long long)most);
    const uint64_t need = in + out;
    pthread_mutex_lock(&lanes->lock);
    while (lanes->lendable < need) pthread_cond_wait(&lanes->freed, &lanes->lock);
    lanes->lendable -= need;
    pthread_mutex_unlock(&lanes->lock);
    buffers->borrowed_bytes = need;
    const uint64_t first = (MPK_DIRECT_ROOM(in) + MPK_PAGE - 1) & ~(uint64_t)(MPK_PAGE - 1);
    const uint64_t second = (MPK_DIRECT_ROOM(out) + MPK_PAGE - 1) & ~(uint64_t)(MPK_PAGE - 1);
    buffers->borrowed = aligned_alloc(MPK_PAGE, first + second);
    if (!buffers->borrowed) {
        mpk_buffers_return(lane, buffers);
        return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory for %llu bytes of buffers", (unsigned long long)need);
    }
    buffers->in = buffers->borrowed;
    buffers->out = buffers->in + first;
    buffers->out_bytes = out;
    return MOEPACK_OK;
}

void mpk_buffers_return(mpk_lane *lane, mpk_buffers *buffers)
{
    if (!buffers->borrowed_bytes) return;
    free(buffers->borrowed);
    mpk_lanes *lanes = lane->owner;
    pthread_mutex_lock(&lanes->lock);
    lanes->lendable += buffers->borrowed_bytes;
    pthread_cond_broadcast(&lanes->freed);
    pthread_mutex_unlock(&lanes->lock);
    *buffers = (mpk_buffers){0};
}
