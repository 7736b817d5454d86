/* The arrays of one call: how many tokens are worked off together, and where everything lies in one allocation. */
#include "../format/bytes.h"
#include "layer_job.h"
#include "router.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Tokens worked off together at most: beyond this, reading weights again costs little next to the arithmetic. */
#define CHUNK_TOKENS 512
/* And fewer where their intermediate results would need more memory than this. */
#define CHUNK_BYTES ((size_t)384 << 20)

/* Hands out parts of one allocation; with base == NULL it only counts. */
typedef struct arena {
    uint8_t *base;
    size_t used;
    bool overflow;
} arena;

static void *take(arena *a, size_t rows, size_t columns, size_t size)
{
    uint64_t bytes, end;
    if (!mpk_mul64(rows, columns, &bytes) || !mpk_mul64(bytes, size, &bytes) ||
        !mpk_align64(bytes, MPK_VIEW_ALIGNMENT, &bytes) || !mpk_add64(a->used, bytes, &end) || end > PTRDIFF_MAX) {
        a->overflow = true;
        return NULL;
    }
    void *at = a->base != NULL ? a->base + a->used : NULL;
    a->used = (size_t)end;
    return at;
}

static void take_rows(arena *a, mpk_job *j)
{
    const void ***rows[] = {&j->x_rows,      &j->raw_rows,    &j->z_rows, &j->z_fix16_rows,
                            &j->z_int8_rows, &j->shared_rows, &j->n_rows};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        *rows[i] = (const void **)take(a, j->capacity, 1, sizeof(void *));
}

/* Scratch of a thread: the router's, or two arrays of outputs of one task. */
static void size_scratch(mpk_job *j, arena *a)
{
    const size_t two = 2 * MPK_CALL_TOKENS * MPK_MAX_RUN * MPK_ROWS * sizeof(float);
    size_t bytes = mpk_router_scratch_size((uint32_t)j->n.experts);
    if (two > bytes) bytes = two;
    if (j->capacity * j->n.k > UINT32_MAX) a->overflow = true; /* pairs are numbered in 32 bits */
    j->scratch_bytes = (bytes + MPK_VIEW_ALIGNMENT - 1) / MPK_VIEW_ALIGNMENT * MPK_VIEW_ALIGNMENT;
}

static void lay_out(mpk_job *j, arena *a)
{
    const mpk_shape *n = &j->n;
    const size_t t = j->capacity, f = sizeof(float);
    j->x_raw = j->direct_x ? NULL : take(a, t, n->hidden_pad, f);
    j->x = j->round ? take(a, t, n->hidden_pad, f) : j->x_raw;
    j->logits = take(a, t, n->experts_pad, f);
    j->z = j->view->policy.latent ? take(a, t, n->input_pad, f) : j->x;
    j->z_fix16 = take(a, t, n->input_pad / MPK_BLOCK, sizeof(mpk_fix16_block));
    j->z_int8 = take(a, j->int8 ? t : 0, n->input_pad / MPK_BLOCK, sizeof(mpk_int8_block));
    j->ids = take(a, t, n->k, sizeof(int32_t));
    j->weights = take(a, t, n->k, f);
    j->computed = j->limit != UINT64_MAX ? take(a, t, n->k, sizeof(int32_t)) : j->ids;
    j->filled = j->limit != UINT64_MAX ? take(a, n->experts, 1, sizeof(uint32_t)) : NULL;
    j->start = take(a, n->experts + 1, 1, sizeof(uint32_t));
    j->pairs = take(a, t, n->k, sizeof(uint32_t));
    j->active = take(a, n->experts, 1, sizeof(uint32_t));
    j->act = take(a, t * n->k, n->inner_pad, f); /* t <= CHUNK_TOKENS, k < 2^31 */
    j->o = take(a, t * n->k, n->input_pad, f);
    if (mpk_weighs_input(j)) {
        j->weighed = take(a, t * n->k, n->input_pad, f);
        j->weighed_fix16 = take(a, t * n->k, n->input_pad / MPK_BLOCK, sizeof(mpk_fix16_block));
        j->weighed_int8 = take(a, j->int8 ? t * n->k : 0, n->input_pad / MPK_BLOCK, sizeof(mpk_int8_block));
    }
    j->shared = take(a, t, n->shared_pad, f);
    j->shared_gate = take(a, t, MPK_ROWS, f);
    j->s = take(a, t, n->input_pad, f);
    j->n_out = take(a, t, n->input_pad, f);
    take_rows(a, j);
    size_scratch(j, a);
    j->scratch = take(a, j->threads, j->scratch_bytes, 1);
}

/* Chooses the chunk and returns the bytes it needs, 0 on overflow. */
size_t mpk_job_plan(mpk_job *j, size_t tokens)
{
    for (j->capacity = tokens < CHUNK_TOKENS ? tokens : CHUNK_TOKENS;; j->capacity = (j->capacity + 1) / 2) {
        arena count = {0};
        lay_out(j, &count);
        if (!count.overflow && (count.used <= CHUNK_BYTES || j->capacity <= 8)) return count.used;
        if (j->capacity <= 1) return 0;
    }
}

void mpk_job_place(mpk_job *j, void *base)
{
    arena memory = {.base = base};
    lay_out(j, &memory);
}

/* ------------------------------------------------------------------------------------------------ spare memory */

#define SPARE_BYTES ((size_t)64 << 20)

/* Before the memory that is handed out: how much it is. */
typedef union spare_header {
    size_t bytes;
    uint8_t line[MPK_VIEW_ALIGNMENT];
} spare_header;

void *mpk_spare_take(mpk_spare *spare, size_t bytes)
{
    spare_header *at = spare != NULL ? atomic_exchange(&spare->memory, NULL) : NULL;
    if (at == NULL || at->bytes < bytes) {
        free(at);
        if (bytes > PTRDIFF_MAX - sizeof *at) return NULL;
        const size_t whole = (bytes + sizeof *at + MPK_VIEW_ALIGNMENT - 1) / MPK_VIEW_ALIGNMENT * MPK_VIEW_ALIGNMENT;
        at = aligned_alloc(MPK_VIEW_ALIGNMENT, whole);
        if (at == NULL) return NULL;
        at->bytes = bytes;
    }
    return at + 1;
}

void mpk_spare_give(mpk_spare *spare, void *memory)
{
    spare_header *at = (spare_header *)memory - 1;
    if (spare != NULL && at->bytes <= SPARE_BYTES) at = atomic_exchange(&spare->memory, at);
    free(at);
}

void mpk_spare_free(mpk_spare *spare)
{
    free(atomic_exchange(&spare->memory, NULL));
}
