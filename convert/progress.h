/* Telling the caller how far a long call is, and asking whether to stop. Internal. */
#ifndef MOEPACK_CONVERT_PROGRESS_H
#define MOEPACK_CONVERT_PROGRESS_H

#include "moepack/convert.h"

#include <pthread.h>

/* Counts bytes from any thread and calls back at most about six times a second. */
typedef struct mpk_meter {
    const moepack_callbacks *callbacks; /* may be NULL */
    pthread_mutex_t lock;
    moepack_progress now;
    int64_t last_ns; /* monotonic time of the last call, INT64_MIN: none yet */
    uint64_t warnings;
} mpk_meter;

void mpk_meter_init(mpk_meter *meter, const moepack_callbacks *callbacks);
void mpk_meter_free(mpk_meter *meter);
/* Starts a stage: `stage` must outlive the meter. */
void mpk_meter_stage(mpk_meter *meter, const char *stage, uint64_t total_bytes);
/* `label` must outlive the meter. */
void mpk_meter_add(mpk_meter *meter, const char *label, uint64_t bytes);
/* The last call of a stage: always made. */
void mpk_meter_end(mpk_meter *meter);
void mpk_meter_warn(mpk_meter *meter, const char *format, ...) MOEPACK_PRINTF(2, 3);

bool mpk_cancelled(const moepack_callbacks *callbacks);
/* Seconds of a clock that only goes forward. */
double mpk_seconds(void);

#endif
