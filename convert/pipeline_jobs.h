/* Threads and memory of convert, verify and export. Internal.
 *
 * Work is a list of items taken in order by a few threads. Each thread has a *lane*: two buffers and the hash states it
 * needs. All lanes together take at most half of MPK_POOL_BYTES however many there are; the other half is lent, one
 * request at a time waiting its turn, to the rare item that must be in memory whole and is larger than a lane's buffer.
 */
#ifndef MOEPACK_CONVERT_PIPELINE_JOBS_H
#define MOEPACK_CONVERT_PIPELINE_JOBS_H

#include "hash.h"
#include "moepack/convert.h"

#include <pthread.h>

/* Bound of all buffers of one call, whatever its number of jobs. */
#define MPK_POOL_BYTES ((uint64_t)512 << 20)
/* What a lane's buffer holds: large enough that a request costs little beside its data, small enough that all lanes'
 * bytes are still in the cache when they are hashed and rearranged, and that getting the memory takes no time. With the
 * room of a direct transfer, one huge page. Measured: verify 0.82-0.84 of the disk's rate, with 4 MiB 0.73-0.82. */
#define MPK_LANE_BYTES (((uint64_t)2 << 20) - 2 * 4096)
#define MPK_JOBS_MAX 256u

/* Four per processor of mpk_cpus, at most 8: a job waits for the disk most of the time, and a disk wants several
 * requests at once (measured on 2 processors: verify 3.3 GB/s with 4 jobs, 4.3 with 8, 4.5 with 16). */
unsigned mpk_jobs_default(void);
/* `asked`, or the default for 0; at most MPK_JOBS_MAX, and never more than there are items. */
unsigned mpk_jobs_choose(unsigned asked, size_t items);

/* One item. `lane` numbers the thread, below the number of jobs. */
typedef moepack_status (*mpk_job)(void *user, unsigned lane, size_t item, moepack_error *error);

/* Runs job for items 0 .. count - 1. Stops handing out items after a failure; of several failures the one of the lowest
 * item is returned. MOEPACK_E_INTERRUPTED when the cancel flag is set before all items were done. */
moepack_status mpk_jobs_run(unsigned jobs, size_t count, const moepack_callbacks *callbacks, mpk_job job, void *user,
                            moepack_error *error);

typedef struct mpk_lane {
    uint8_t *in, *out; /* page aligned, room for a direct transfer of `bytes` each */
    uint64_t bytes;
    mpk_hasher *first, *second, *part;
    struct mpk_lanes *owner;
} mpk_lane;

typedef struct mpk_lanes {
    mpk_lane *lane;
    unsigned count;
    uint64_t bytes; /* of one buffer */
    pthread_mutex_t lock;
    pthread_cond_t freed;
    uint64_t lendable;
} mpk_lanes;

/* `useful`: more bytes in one buffer than this would not help (the whole input, or the largest item). */
moepack_status mpk_lanes_init(mpk_lanes *lanes, unsigned jobs, uint64_t useful, moepack_error *error);
void mpk_lanes_free(mpk_lanes *lanes);
/* Bytes that lanes of `jobs` threads take, plus `largest` lent ones: for the estimate before a conversion. */
uint64_t mpk_lanes_memory(unsigned jobs, uint64_t largest);

/* Two buffers for one item, page aligned and with room for a direct transfer: the lane's own when both fit, else
 * borrowed ones. MOEPACK_E_REFUSED when they can never
 * fit. */
typedef struct mpk_buffers {
    uint8_t *in, *out;
    uint64_t out_bytes; /* that `out` holds */
    void *borrowed;
    uint64_t borrowed_bytes;
} mpk_buffers;
moepack_status mpk_buffers_take(mpk_lane *lane, uint64_t in, uint64_t out, mpk_buffers *buffers, moepack_error *error);
void mpk_buffers_return(mpk_lane *lane, mpk_buffers *buffers);

#endif
