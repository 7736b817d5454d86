/* Throttled progress, warnings and the cancel flag, shared by convert, verify and export. */
#include "progress.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

/* "at most about 6 times a second": convert.h. */
#define MIN_INTERVAL_NS (1000000000 / 6)

static int64_t monotonic_ns(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 0;
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double mpk_seconds(void)
{
    return (double)monotonic_ns() * 1e-9;
}

bool mpk_cancelled(const moepack_callbacks *callbacks)
{
    return callbacks && callbacks->cancel && __atomic_load_n(callbacks->cancel, __ATOMIC_RELAXED) != 0;
}

void mpk_meter_init(mpk_meter *meter, const moepack_callbacks *callbacks)
{
    *meter = (mpk_meter){.callbacks = callbacks, .now = {.stage = "", .label = ""}, .last_ns = INT64_MIN};
    pthread_mutex_init(&meter->lock, NULL);
}

void mpk_meter_free(mpk_meter *meter)
{
    pthread_mutex_destroy(&meter->lock);
}

static void report(mpk_meter *meter, bool always)
{
    if (!meter->callbacks || !meter->callbacks->progress) return;
    int64_t now = monotonic_ns();
    if (!always && meter->last_ns != INT64_MIN && now - meter->last_ns < MIN_INTERVAL_NS) return;
    meter->last_ns = now;
    meter->callbacks->progress(meter->callbacks->user, &meter->now);
}

void mpk_meter_stage(mpk_meter *meter, const char *stage, uint64_t total_bytes)
{
    pthread_mutex_lock(&meter->lock);
    meter->now = (moepack_progress){.stage = stage, .label = "", .total_bytes = total_bytes};
    report(meter, false);
    pthread_mutex_unlock(&meter->lock);
}

void mpk_meter_add(mpk_meter *meter, const char *label, uint64_t bytes)
{
    pthread_mutex_lock(&meter->lock);
    meter->now.label = label ? label : "";
    meter->now.done_bytes += bytes;
    report(meter, false);
    pthread_mutex_unlock(&meter->lock);
}

void mpk_meter_end(mpk_meter *meter)
{
    pthread_mutex_lock(&meter->lock);
    report(meter, true);
    pthread_mutex_unlock(&meter->lock);
}

void mpk_meter_warn(mpk_meter *meter, const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&meter->lock);
    meter->warnings++;
    if (meter->callbacks && meter->callbacks->warn) meter->callbacks->warn(meter->callbacks->user, line);
    pthread_mutex_unlock(&meter->lock);
}
