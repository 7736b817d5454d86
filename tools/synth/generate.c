/* Data of all shards: worker threads make pieces, the calling thread writes them in order.
 *
 * A piece is what lies back to back in a file and is made at once: both planes of an MXFP4 matrix, or some rows of
 * another tensor. Workers take pieces by number and may be at most `slot_count` ahead of the writer, so memory stays at
 * a few expert matrices per job, whatever the size of the checkpoint. Every piece depends on the seed and its name
 * alone: the bytes are the same for any number of jobs. */
#include "synth.h"

#include "rng.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PIECE_BYTES (UINT64_C(4) << 20) /* of BF16 and F32 tensors */

/* ------------------------------------------------------------------------------------------------- pieces */

typedef struct piece {
    const mpk_synth_atom *atom;
    const mpk_synth_tensor *tensor;
    uint64_t first, rows, bytes;
} piece;

/* Place in the sequence of all pieces. */
typedef struct cursor {
    size_t atom, tensor; /* tensor: counted from the atom's first */
    uint64_t row;
} cursor;

static uint64_t row_bytes(const mpk_synth_plan *plan, const mpk_synth_tensor *tensor)
{
    uint64_t cols = plan->dims[tensor->cols];
    switch (tensor->store) {
    case MPK_SYNTH_MXFP4:
        return cols / 2 + cols / MPK_SYNTH_BLOCK;
    case MPK_SYNTH_BF16:
        return cols * 2;
    case MPK_SYNTH_F32:
        break;
    }
    return cols * 4;
}

static bool next_piece(const mpk_synth_plan *plan, cursor *c, piece *out)
{
    if (c->atom == plan->atom_count) return false;
    out->atom = &plan->atoms[c->atom];
    out->tensor = &plan->family->tensors[out->atom->tensor + c->tensor];
    uint64_t rows = plan->dims[out->tensor->rows], bytes = row_bytes(plan, out->tensor), most = rows;
    if (out->tensor->store != MPK_SYNTH_MXFP4) most = bytes < PIECE_BYTES ? PIECE_BYTES / bytes : 1;
    out->first = c->row;
    out->rows = rows - c->row < most ? rows - c->row : most;
    out->bytes = out->rows * bytes;
    c->row += out->rows;
    if (c->row == rows) {
        c->row = 0;
        if (++c->tensor == mpk_synth_atom_tensors(plan, out->atom)) {
            c->tensor = 0;
            c->atom++;
        }
    }
    return true;
}

/* Square root by Newton's method, from above until it no longer falls: + and / only. */
static double root(double x)
{
    double r = x > 1.0 ? x : 1.0;
    for (;;) {
        double next = 0.5 * (r + x / r);
        if (next >= r) return r;
        r = next;
    }
}

/* Number of a tensor's key that decides the scale of the whole tensor; rows use the numbers from 0 on. */
#define NTH_TENSOR_SCALE (UINT64_MAX - 1)

static void fill_piece(const mpk_synth_plan *plan, const mpk_synth_kernels *kernels, const piece *p, uint8_t *out)
{
    mpk_synth_item item;
    mpk_synth_item_make(plan, p->atom, p->tensor, 0, &item);
    uint64_t key = mpk_synth_key(plan->seed, item.name), cols = plan->dims[p->tensor->cols];
    mpk_synth_law law = {.centre = p->tensor->centre, .std = p->tensor->gain, .spread = p->tensor->spread};
    if (p->tensor->rank == 2) law.std /= root((double)cols);
    law.std *= mpk_synth_factor(mpk_synth_nth(key, NTH_TENSOR_SCALE), p->tensor->tensor_spread);
    switch (p->tensor->store) {
    case MPK_SYNTH_MXFP4:
        kernels->mxfp4(key, p->first, p->rows, cols, &law, out, out + p->rows * (cols / 2));
        break;
    case MPK_SYNTH_BF16:
        kernels->bf16(key, p->first, p->rows, cols, &law, out);
        break;
    case MPK_SYNTH_F32:
        kernels->f32(key, p->first, p->rows, cols, &law, out);
        break;
    }
}

/* ------------------------------------------------------------------------------------------------- workers */

typedef struct slot {
    uint8_t *data;
    uint64_t size;
    uint64_t ready; /* number of the piece it holds, plus 1 */
} slot;

typedef struct pool {
    const mpk_synth_plan *plan;
    const mpk_synth_kernels *kernels;
    pthread_mutex_t lock;
    pthread_cond_t may_fill, may_write;
    cursor at;              /* next piece to make */
    uint64_t made, written; /* pieces taken by workers, pieces written */
    bool stop, no_memory;
    slot *slots;
    unsigned slot_count, thread_count;
    pthread_t *threads;
} pool;

static bool slot_reserve(slot *s, uint64_t bytes)
{
    if (s->size >= bytes) return true;
    free(s->data);
    s->data = bytes > SIZE_MAX ? NULL : malloc((size_t)bytes);
    s->size = s->data == NULL ? 0 : bytes;
    return s->data != NULL;
}

/* Takes the next piece when there is room for it; false when there is nothing left to do. */
static bool take_piece(pool *p, piece *out, uint64_t *number)
{
    pthread_mutex_lock(&p->lock);
    while (!p->stop && p->made - p->written >= p->slot_count) pthread_cond_wait(&p->may_fill, &p->lock);
    bool found = !p->stop && next_piece(p->plan, &p->at, out);
    if (found) *number = p->made++;
    pthread_mutex_unlock(&p->lock);
    return found;
}

static void *work(void *user)
{
    pool *p = user;
    piece job;
    uint64_t number;
    while (take_piece(p, &job, &number)) {
        slot *s = &p->slots[number % p->slot_count];
        bool ok = slot_reserve(s, job.bytes);
        if (ok) fill_piece(p->plan, p->kernels, &job, s->data);
        pthread_mutex_lock(&p->lock);
        s->ready = number + 1;
        if (!ok) p->no_memory = p->stop = true;
        pthread_cond_broadcast(&p->may_write);
        pthread_cond_broadcast(&p->may_fill);
        pthread_mutex_unlock(&p->lock);
    }
    return NULL;
}

/* Data of piece `number`, NULL when a worker ran out of memory. */
static const uint8_t *wait_for(pool *p, uint64_t number)
{
    slot *s = &p->slots[number % p->slot_count];
    pthread_mutex_lock(&p->lock);
    while (s->ready != number + 1 && !p->no_memory) pthread_cond_wait(&p->may_write, &p->lock);
    const uint8_t *data = p->no_memory ? NULL : s->data;
    pthread_mutex_unlock(&p->lock);
    return data;
}

static void release(pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->written++;
    pthread_cond_broadcast(&p->may_fill);
    pthread_mutex_unlock(&p->lock);
}

static void pool_end(pool *p)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->may_fill);
    pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->thread_count; i++) pthread_join(p->threads[i], NULL);
    for (unsigned i = 0; p->slots != NULL && i < p->slot_count; i++) free(p->slots[i].data);
    free(p->slots);
    free(p->threads);
    pthread_cond_destroy(&p->may_fill);
    pthread_cond_destroy(&p->may_write);
    pthread_mutex_destroy(&p->lock);
}

static moepack_status pool_start(pool *p, const mpk_synth_plan *plan, unsigned jobs, moepack_error *error)
{
    memset(p, 0, sizeof *p);
    p->plan = plan;
    p->kernels = mpk_synth_kernels_get(0);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->may_fill, NULL);
    pthread_cond_init(&p->may_write, NULL);
    p->slot_count = jobs + 2; /* one being written, one waiting */
    p->slots = calloc(p->slot_count, sizeof *p->slots);
    p->threads = calloc(jobs, sizeof *p->threads);
    if (p->slots == NULL || p->threads == NULL)
        return mpk_synth_fail(error, MOEPACK_E_REFUSED, 0, "not enough memory for %u jobs", jobs);
    for (unsigned i = 0; i < jobs; i++) {
        int code = pthread_create(&p->threads[p->thread_count], NULL, work, p);
        if (code == 0) {
            p->thread_count++;
        } else if (i + 1 == jobs && p->thread_count == 0) {
            return mpk_synth_fail(error, MOEPACK_E_IO, code, "cannot start a thread");
        }
    }
    return MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------- writing */

typedef struct writing {
    const mpk_synth_plan *plan;
    const char *dir;
    const moepack_callbacks *callbacks;
    moepack_safetensors_writer *file; /* of the current shard */
    uint32_t shard;
    uint64_t done;
    struct timespec shown;
} writing;

static moepack_status declare(void *user, const mpk_synth_item *item, moepack_error *error)
{
    return moepack_safetensors_add(user, item->name, item->dtype, item->rank, item->dims, error);
}

static moepack_status shard_start(writing *w, uint32_t shard, moepack_error *error)
{
    char name[MPK_SYNTH_FILE], *path = NULL;
    mpk_synth_shard_name(w->plan, shard, name);
    if (asprintf(&path, "%s/%s", w->dir, name) < 0)
        return mpk_synth_fail(error, MOEPACK_E_REFUSED, 0, "not enough memory");
    moepack_status status = moepack_safetensors_create(path, false, &w->file, error);
    free(path);
    if (status != MOEPACK_OK) {
        w->file = NULL;
        return status;
    }
    w->shard = shard;
    status = moepack_safetensors_add_metadata(w->file, "format", "pt", error);
    return status == MOEPACK_OK ? mpk_synth_shard_visit(w->plan, shard, declare, w->file, error) : status;
}

static moepack_status shard_finish(writing *w, moepack_error *error)
{
    moepack_safetensors_writer *file = w->file;
    w->file = NULL;
    return file == NULL ? MOEPACK_OK : moepack_safetensors_finish(file, error);
}

/* At most six times a second, and at the end. */
static void show(writing *w, const piece *p)
{
    if (w->callbacks->progress == NULL) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double passed = (double)(now.tv_sec - w->shown.tv_sec) + 1e-9 * (double)(now.tv_nsec - w->shown.tv_nsec);
    if (passed < 1.0 / 6 && w->done < w->plan->total_bytes) return;
    w->shown = now;
    char label[16];
    snprintf(label, sizeof label, "%" PRIu32, p->atom->layer);
    moepack_progress progress = {
        .stage = "synth", .label = label, .done_bytes = w->done, .total_bytes = w->plan->total_bytes};
    w->callbacks->progress(w->callbacks->user, &progress);
}

static moepack_status write_piece(writing *w, pool *workers, const piece *p, uint64_t number, moepack_error *error)
{
    if (w->callbacks->cancel != NULL && *w->callbacks->cancel != 0)
        return mpk_synth_fail(error, MOEPACK_E_INTERRUPTED, 0, "interrupted");
    if (w->file == NULL || p->atom->shard != w->shard) {
        moepack_status status = shard_finish(w, error);
        if (status == MOEPACK_OK) status = shard_start(w, p->atom->shard, error);
        if (status != MOEPACK_OK) return status;
    }
    const uint8_t *data = wait_for(workers, number);
    if (data == NULL)
        return mpk_synth_fail(error, MOEPACK_E_REFUSED, 0,
                              "not enough memory: a buffer of %" PRIu64 " bytes is needed per job", p->bytes);
    moepack_status status = moepack_safetensors_append(w->file, data, (size_t)p->bytes, error);
    if (status != MOEPACK_OK) return status;
    release(workers);
    w->done += p->bytes;
    show(w, p);
    return MOEPACK_OK;
}

moepack_status mpk_synth_write_shards(const mpk_synth_plan *plan, const char *dir, unsigned jobs,
                                      const moepack_callbacks *callbacks, moepack_error *error)
{
    writing w = {.plan = plan, .dir = dir, .callbacks = callbacks};
    pool workers;
    cursor at = {0};
    piece p;
    moepack_status status = pool_start(&workers, plan, jobs, error);
    for (uint64_t number = 0; status == MOEPACK_OK && next_piece(plan, &at, &p); number++) {
        status = write_piece(&w, &workers, &p, number, error);
    }
    pool_end(&workers);
    if (status == MOEPACK_OK) return shard_finish(&w, error);
    moepack_safetensors_abort(w.file);
    return status;
}
