/* Who is in memory: the queue of what is to be read, the threads that read, and who gives way. */
#include "residency.h"

#include "error.h"

#include <time.h>

/* Uses per slot after which all counts are halved, so that old favourites fade. */
#define AGEING 8u

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

mpk_entry *mpk_residency_entry(const moepack_residency *r, uint32_t block, uint32_t expert)
{
    const mpk_load_block *found = mpk_load_block_of(r->job.load, block);
    moepack_block info;
    if (found == NULL) return NULL;
    moepack_index_block(r->job.load->index, block, &info);
    if (expert >= info.experts) return NULL;
    const size_t i = r->first_entry[r->block_start[found - r->job.load->blocks] + expert];
    return i == MPK_NO_ENTRY ? NULL : &r->entries[i];
}

/* ---- queue ---- */

static void take_out(moepack_residency *r, mpk_entry *e)
{
    if (e->previous != MPK_NO_ENTRY)
        r->entries[e->previous].next = e->next;
    else
        r->queue_first = e->next;
    if (e->next != MPK_NO_ENTRY)
        r->entries[e->next].previous = e->previous;
    else
        r->queue_last = e->previous;
    e->next = e->previous = MPK_NO_ENTRY;
}

static void put_in(moepack_residency *r, mpk_entry *e, bool front)
{
    const size_t i = (size_t)(e - r->entries);
    e->next = front ? r->queue_first : MPK_NO_ENTRY;
    e->previous = front ? MPK_NO_ENTRY : r->queue_last;
    if (e->next != MPK_NO_ENTRY) r->entries[e->next].previous = i;
    if (e->previous != MPK_NO_ENTRY) r->entries[e->previous].next = i;
    if (front || r->queue_first == MPK_NO_ENTRY) r->queue_first = i;
    if (!front || r->queue_last == MPK_NO_ENTRY) r->queue_last = i;
    e->state = MPK_ENTRY_QUEUED;
    pthread_cond_signal(&r->work);
}

/* ---- slots ---- */

/* How much an expert in the queue is needed. */
typedef enum urgency {
    URGENCY_DEMANDED, /* somebody waits for it: takes any slot that nobody holds */
    URGENCY_EXPECTED, /* a run will: takes none that a run expects */
    URGENCY_PREFETCH, /* asked for: nor one that was asked for and not used yet */
    URGENCIES
} urgency;

static urgency urgency_of(const mpk_entry *e)
{
    return e->refs > 0 ? URGENCY_DEMANDED : e->expected > 0 ? URGENCY_EXPECTED : URGENCY_PREFETCH;
}

static bool may_give_way(const mpk_entry *e, urgency to)
{
    if (e->state != MPK_ENTRY_READY || e->held) return false;
    if (e->expected > 0) return to == URGENCY_DEMANDED;
    return !e->asked || to != URGENCY_PREFETCH;
}

static bool gives_way_before(const moepack_residency *r, const mpk_entry *a, const mpk_entry *b)
{
    if ((a->expected > 0) != (b->expected > 0)) return b->expected > 0;
    if (a->asked != b->asked) return b->asked;
    if (r->options.evict == MOEPACK_EVICT_LFU && a->uses != b->uses) return a->uses < b->uses;
    return a->stamp < b->stamp;
}

/* A free slot, or one whose expert gives way; MPK_NO_SLOT: none now. */
static uint32_t find_slot(moepack_residency *r, urgency need)
{
    mpk_entry *victim = NULL;
    for (uint32_t s = 0; s < r->slot_count; s++) {
        if (r->slots[s].entry == MPK_NO_ENTRY) return s;
        mpk_entry *e = &r->entries[r->slots[s].entry];
        if (!may_give_way(e, need)) continue;
        if (victim == NULL || gives_way_before(r, e, victim)) victim = e;
    }
    if (victim == NULL) return MPK_NO_SLOT;
    const uint32_t slot = victim->slot;
    victim->state = MPK_ENTRY_ABSENT;
    victim->slot = MPK_NO_SLOT;
    r->slots[slot].entry = MPK_NO_ENTRY;
    r->report.evictions++;
    return slot;
}

static void empty_slot(moepack_residency *r, mpk_entry *e)
{
    r->slots[e->slot].entry = MPK_NO_ENTRY;
    e->slot = MPK_NO_SLOT;
    e->state = MPK_ENTRY_ABSENT;
    pthread_cond_broadcast(&r->work);
}

/* Counts who may not be evicted. */
static void update_held(moepack_residency *r, mpk_entry *e)
{
    const bool held = e->refs > 0 || e->pinned;
    if (held == e->held) return;
    e->held = held;
    if (held) {
        r->held_count++;
    } else {
        r->held_count--;
        pthread_cond_broadcast(&r->work);
        pthread_cond_broadcast(&r->arrived);
    }
}

/* ---- reading ---- */

/* The most urgent in the queue that can have a slot, equal ones in the queue's order. */
static mpk_entry *next_to_read(moepack_residency *r)
{
    mpk_entry *first[URGENCIES] = {NULL}, *e = NULL;
    uint32_t slot = MPK_NO_SLOT;
    for (size_t i = r->queue_first; i != MPK_NO_ENTRY; i = r->entries[i].next) {
        mpk_entry **of = &first[urgency_of(&r->entries[i])];
        if (*of == NULL) *of = &r->entries[i];
    }
    for (unsigned u = 0; u < URGENCIES && slot == MPK_NO_SLOT; u++)
        if (first[u] != NULL) e = first[u], slot = find_slot(r, (urgency)u);
    if (slot == MPK_NO_SLOT) return NULL;
    take_out(r, e);
    e->slot = slot;
    e->state = MPK_ENTRY_LOADING;
    e->used = false;
    e->stamp = ++r->clock;
    r->slots[slot].entry = (size_t)(e - r->entries);
    return e;
}

static void finish_read(moepack_residency *r, mpk_entry *e, uint64_t bytes, moepack_status status,
                        const moepack_error *error)
{
    r->report.bytes_read += bytes;
    e->state = MPK_ENTRY_READY;
    if (status != MOEPACK_OK) {
        r->report.failed_reads++;
        e->state = MPK_ENTRY_FAILED;
        r->slots[e->slot].status = status;
        r->slots[e->slot].error = *error;
        if (e->refs == 0) empty_slot(r, e);
    }
    pthread_cond_broadcast(&r->arrived);
    pthread_cond_broadcast(&r->work);
}

void *mpk_residency_thread(void *argument)
{
    moepack_residency *r = argument;
    moepack_error error;
    pthread_mutex_lock(&r->lock);
    uint8_t *stage = r->stage_bytes > 0 ? r->stages.base + r->thread_count * r->stage_bytes : NULL;
    r->thread_count++;
    while (!r->closing) {
        mpk_entry *e = next_to_read(r);
        if (e == NULL) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        error = (moepack_error){.expert = -1, .offset = -1};
        uint64_t bytes;
        const moepack_status status = mpk_residency_read(r, e, stage, &bytes, &error);
        pthread_mutex_lock(&r->lock);
        finish_read(r, e, bytes, status, &error);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ---- acquiring ---- */

static void count_use(moepack_residency *r, mpk_entry *e, bool waited)
{
    if (e->used) {
        r->report.hits++;
    } else {
        r->report.misses++;
        if (!waited) r->report.misses_in_time++;
    }
    e->used = true;
    e->asked = false;
    e->stamp = ++r->clock;
    e->uses++;
    if (++r->since_ageing < (uint64_t)AGEING * r->slot_count) return;
    r->since_ageing = 0;
    for (size_t i = 0; i < r->entry_count; i++) r->entries[i].uses /= 2;
}

static void drop_ref(moepack_residency *r, mpk_entry *e)
{
    e->refs--;
    update_held(r, e);
    if (e->refs == 0 && e->state == MPK_ENTRY_FAILED) empty_slot(r, e);
}

/* Waits for an expert that this caller has a reference to. */
static void wait_for(moepack_residency *r, mpk_entry *e)
{
    if (e->state == MPK_ENTRY_QUEUED) take_out(r, e), put_in(r, e, true);
    if (e->state == MPK_ENTRY_ABSENT) put_in(r, e, true);
    while (e->state != MPK_ENTRY_READY && e->state != MPK_ENTRY_FAILED) pthread_cond_wait(&r->arrived, &r->lock);
}

moepack_status mpk_residency_acquire(moepack_residency *r, mpk_entry *e, mpk_acquire how, bool *got,
                                     moepack_error *error)
{
    moepack_status status = MOEPACK_OK;
    pthread_mutex_lock(&r->lock);
    *got = false;
    if (how == MPK_ACQUIRE_TRY &&
        (e->state != MPK_ENTRY_READY || (!e->held && r->held_count >= r->slot_count))) { /* others wait for its slot */
        pthread_mutex_unlock(&r->lock);
        return MOEPACK_OK;
    }
    const bool waits = e->state != MPK_ENTRY_READY;
    const double started = waits ? now() : 0;
    while (how == MPK_ACQUIRE_WAIT && !e->held && r->held_count >= r->slot_count)
        pthread_cond_wait(&r->arrived, &r->lock);
    if (!e->held && r->held_count >= r->slot_count) {
        pthread_mutex_unlock(&r->lock);
        status =
            mpk_fail(error, MOEPACK_E_REFUSED, "all %lu slots of the residency are held", (unsigned long)r->slot_count);
        mpk_error_expert(error, e->expert);
        return status;
    }
    e->refs++;
    update_held(r, e);
    if (waits) wait_for(r, e);
    if (e->state == MPK_ENTRY_FAILED) {
        status = r->slots[e->slot].status;
        if (error != NULL) *error = r->slots[e->slot].error;
        drop_ref(r, e);
    } else {
        count_use(r, e, waits);
        *got = true;
    }
    if (waits) r->report.wait_seconds += now() - started;
    pthread_mutex_unlock(&r->lock);
    return status;
}

void mpk_residency_expect(moepack_residency *r, uint32_t block, const int32_t *ids, size_t count)
{
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < count; i++) mpk_residency_entry(r, block, (uint32_t)ids[i])->expected++;
    pthread_mutex_unlock(&r->lock);
}

void mpk_residency_forget(moepack_residency *r, mpk_entry *e)
{
    pthread_mutex_lock(&r->lock);
    if (--e->expected == 0) pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
}

size_t mpk_residency_request(moepack_residency *r, uint32_t block, const int32_t *ids, size_t count, bool asked)
{
    size_t missing = 0;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < count; i++) {
        mpk_entry *e = ids[i] < 0 ? NULL : mpk_residency_entry(r, block, (uint32_t)ids[i]);
        if (e == NULL) continue;
        missing += e->state != MPK_ENTRY_READY;
        e->asked = e->asked || asked;
        if (e->state == MPK_ENTRY_ABSENT) put_in(r, e, false);
    }
    pthread_mutex_unlock(&r->lock);
    return missing;
}

void mpk_residency_release(moepack_residency *r, mpk_entry *e)
{
    pthread_mutex_lock(&r->lock);
    if (e->refs > 0) drop_ref(r, e);
    pthread_mutex_unlock(&r->lock);
}

static moepack_status find(moepack_residency *r, uint32_t block, uint32_t expert, mpk_entry **out, moepack_error *error)
{
    *out = r != NULL ? mpk_residency_entry(r, block, expert) : NULL;
    if (*out != NULL) return MOEPACK_OK;
    mpk_fail(error, MOEPACK_E_INCOMPLETE, "this residency does not serve the expert");
    mpk_error_expert(error, expert);
    return MOEPACK_E_INCOMPLETE;
}

moepack_status moepack_residency_acquire(moepack_residency *r, uint32_t block, uint32_t expert, moepack_error *error)
{
    mpk_entry *e;
    bool got;
    const moepack_status status = find(r, block, expert, &e, error);
    return status != MOEPACK_OK ? status : mpk_residency_acquire(r, e, MPK_ACQUIRE_ONCE, &got, error);
}

void moepack_residency_release(moepack_residency *r, uint32_t block, uint32_t expert)
{
    mpk_entry *e = r != NULL ? mpk_residency_entry(r, block, expert) : NULL;
    if (e != NULL) mpk_residency_release(r, e);
}

void moepack_residency_prefetch(moepack_residency *r, uint32_t block, const int32_t *ids, size_t count)
{
    if (r != NULL && ids != NULL) (void)mpk_residency_request(r, block, ids, count, true);
}

/* Reserves a slot for good, before anything is read. */
static moepack_status reserve_pin(moepack_residency *r, mpk_entry *e, moepack_error *error)
{
    if (e->pinned) return MOEPACK_OK;
    if (r->pinned_count + r->least_slots >= r->slot_count)
        return mpk_fail(error, MOEPACK_E_REFUSED, "%lu of %lu slots are pinned, a call needs %lu",
                        (unsigned long)r->pinned_count, (unsigned long)r->slot_count, (unsigned long)r->least_slots);
    if (!e->held && r->held_count >= r->slot_count)
        return mpk_fail(error, MOEPACK_E_REFUSED, "all %lu slots of the residency are held",
                        (unsigned long)r->slot_count);
    r->pinned_count++;
    e->pinned = true;
    update_held(r, e);
    return MOEPACK_OK;
}

static void drop_pin(moepack_residency *r, mpk_entry *e)
{
    pthread_mutex_lock(&r->lock);
    if (e->pinned) r->pinned_count--;
    e->pinned = false;
    update_held(r, e);
    pthread_mutex_unlock(&r->lock);
}

moepack_status moepack_residency_pin(moepack_residency *r, uint32_t block, uint32_t expert, moepack_error *error)
{
    mpk_entry *e;
    bool got;
    moepack_status status = find(r, block, expert, &e, error);
    if (status != MOEPACK_OK) return status;
    pthread_mutex_lock(&r->lock);
    status = reserve_pin(r, e, error);
    pthread_mutex_unlock(&r->lock);
    if (status != MOEPACK_OK) {
        mpk_error_expert(error, expert);
        return status;
    }
    status = mpk_residency_acquire(r, e, MPK_ACQUIRE_ONCE, &got, error);
    if (status == MOEPACK_OK)
        mpk_residency_release(r, e);
    else
        drop_pin(r, e);
    return status;
}

void moepack_residency_unpin(moepack_residency *r, uint32_t block, uint32_t expert)
{
    mpk_entry *e = r != NULL ? mpk_residency_entry(r, block, expert) : NULL;
    if (e != NULL) drop_pin(r, e);
}
