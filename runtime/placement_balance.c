/* Placements from measured load: longest processing time first under equal memory, then exchanges, then replicas.
 *
 * One block at a time: blocks run one after the other, so what counts is the most loaded rank of each block. */
#include "error.h"
#include "io/io.h"
#include "placement_internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Exchanges tried for one block, per expert; the search ends much earlier when nothing helps any more. */
#define EXCHANGES_PER_EXPERT 4

typedef struct loaded_expert {
    uint64_t rows;
    uint32_t expert;
} loaded_expert;

/* One block being placed. */
typedef struct work {
    uint32_t experts, ranks;
    const uint64_t *rows;
    loaded_expert *order; /* by load, then by id */
    uint32_t *rank;       /* [experts] the first rank */
    uint32_t *room;       /* [ranks] experts that still fit */
    double *load;         /* [ranks] */
    uint64_t *extra;      /* [ranks] bytes left for replicas of this block */
    uint8_t *holds;       /* [experts][ranks] */
    uint32_t *copies;     /* [experts] */
} work;

static void free_work(work *w)
{
    free(w->order);
    free(w->rank);
    free(w->room);
    free(w->load);
    free(w->extra);
    free(w->holds);
    free(w->copies);
}

static bool new_work(work *w, uint32_t experts, uint32_t ranks)
{
    *w = (work){.experts = experts, .ranks = ranks};
    w->order = calloc(experts, sizeof *w->order);
    w->rank = calloc(experts, sizeof *w->rank);
    w->room = calloc(ranks, sizeof *w->room);
    w->load = calloc(ranks, sizeof *w->load);
    w->extra = calloc(ranks, sizeof *w->extra);
    w->holds = calloc(experts, ranks);
    w->copies = calloc(experts, sizeof *w->copies);
    return w->order && w->rank && w->room && w->load && w->extra && w->holds && w->copies;
}

/* ---- one copy of each expert ---- */

static int most_rows_first(const void *left, const void *right)
{
    const loaded_expert *a = left, *b = right;
    if (a->rows != b->rows) return a->rows > b->rows ? -1 : 1;
    return a->expert < b->expert ? -1 : a->expert > b->expert;
}

static void sort_by_load(work *w)
{
    for (uint32_t e = 0; e < w->experts; e++) w->order[e] = (loaded_expert){w->rows[e], e};
    qsort(w->order, w->experts, sizeof *w->order, most_rows_first);
}

/* Ranks that hold the fewest experts so far get one more than the others, so that the sums stay even. */
static void set_room(work *w, const uint64_t *held)
{
    const uint32_t small = w->experts / w->ranks;
    for (uint32_t r = 0; r < w->ranks; r++) w->room[r] = small;
    for (uint32_t i = 0; i < w->experts % w->ranks; i++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t r = 0; r < w->ranks; r++)
            if (w->room[r] == small && (best == UINT32_MAX || held[r] < held[best])) best = r;
        w->room[best]++;
    }
}

static void place_once(work *w)
{
    for (uint32_t i = 0; i < w->experts; i++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t r = 0; r < w->ranks; r++)
            if (w->room[r] > 0 && (best == UINT32_MAX || w->load[r] < w->load[best])) best = r;
        const uint32_t e = w->order[i].expert;
        w->rank[e] = best;
        w->room[best]--;
        w->load[best] += (double)w->rows[e];
    }
}

static uint32_t most_loaded(const work *w)
{
    uint32_t most = 0;
    for (uint32_t r = 1; r < w->ranks; r++)
        if (w->load[r] > w->load[most]) most = r;
    return most;
}

/* Exchanges an expert of the most loaded rank for one of another rank that makes the larger of both loads smallest. */
static bool exchange(work *w)
{
    const uint32_t top = most_loaded(w);
    double best = w->load[top];
    uint32_t give = UINT32_MAX, take = UINT32_MAX;
    for (uint32_t a = 0; a < w->experts; a++) {
        if (w->rank[a] != top) continue;
        for (uint32_t b = 0; b < w->experts; b++) {
            if (w->rank[b] == top || w->rows[b] >= w->rows[a]) continue;
            const double moved = (double)(w->rows[a] - w->rows[b]);
            const double here = w->load[top] - moved, there = w->load[w->rank[b]] + moved;
            const double larger = here > there ? here : there;
            if (larger < best) {
                best = larger;
                give = a;
                take = b;
            }
        }
    }
    if (give == UINT32_MAX) return false;
    const uint32_t other = w->rank[take];
    const double moved = (double)(w->rows[give] - w->rows[take]);
    w->load[top] -= moved;
    w->load[other] += moved;
    w->rank[give] = other;
    w->rank[take] = top;
    return true;
}

/* ---- replicas ---- */

static void sum_shares(work *w)
{
    memset(w->load, 0, w->ranks * sizeof *w->load);
    for (uint32_t e = 0; e < w->experts; e++)
        for (uint32_t r = 0; r < w->ranks; r++)
            if (w->holds[(size_t)e * w->ranks + r]) w->load[r] += (double)w->rows[e] / w->copies[e];
}

static double largest(const work *w)
{
    return w->load[most_loaded(w)];
}

/* The least loaded rank that has room for a copy and none yet. */
static uint32_t place_for_copy(const work *w, uint32_t expert, uint64_t bytes)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t r = 0; r < w->ranks; r++) {
        if (w->extra[r] < bytes || w->holds[(size_t)expert * w->ranks + r]) continue;
        if (best == UINT32_MAX || w->load[r] < w->load[best]) best = r;
    }
    return best;
}

/* Copies the expert with the largest share on the most loaded rank; false when nothing fits or it would not help. */
static bool replicate(work *w, const moepack_index *index, uint64_t first_record)
{
    const uint32_t top = most_loaded(w);
    uint32_t expert = UINT32_MAX;
    double share = 0;
    for (uint32_t e = 0; e < w->experts; e++) {
        const double part = (double)w->rows[e] / w->copies[e];
        if (w->holds[(size_t)e * w->ranks + top] && part > share) {
            share = part;
            expert = e;
        }
    }
    if (expert == UINT32_MAX) return false;
    moepack_record record;
    moepack_index_record(index, first_record + expert, &record);
    const uint32_t to = place_for_copy(w, expert, record.length);
    if (to == UINT32_MAX) return false;
    const double before = largest(w);
    uint8_t *holds = &w->holds[(size_t)expert * w->ranks + to];
    *holds = 1;
    w->copies[expert]++;
    sum_shares(w);
    if (largest(w) < before) {
        w->extra[to] -= record.length;
        return true;
    }
    *holds = 0;
    w->copies[expert]--;
    sum_shares(w);
    return false;
}

static moepack_status make_table(const work *w, rank_table *table, moepack_error *error)
{
    size_t total = 0;
    for (uint32_t e = 0; e < w->experts; e++) total += w->copies[e];
    *table = (rank_table){.experts = w->experts,
                          .first = calloc((size_t)w->experts + 1, sizeof *table->first),
                          .rank = calloc(total + 1, sizeof *table->rank)};
    if (table->first == NULL || table->rank == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    size_t at = 0;
    for (uint32_t e = 0; e < w->experts; e++) {
        table->first[e] = at;
        table->rank[at++] = w->rank[e];
        for (uint32_t r = 0; r < w->ranks; r++)
            if (r != w->rank[e] && w->holds[(size_t)e * w->ranks + r]) table->rank[at++] = r;
    }
    table->first[w->experts] = at;
    return MOEPACK_OK;
}

/* ---- blocks ---- */

static moepack_status balance_block(moepack_placement *p, const moepack_index *index, uint32_t b, const uint64_t *rows,
                                    uint64_t *held, uint64_t replica_bytes, moepack_error *error)
{
    moepack_block block;
    moepack_index_block(index, b, &block);
    work w;
    moepack_status status = MOEPACK_OK;
    if (!new_work(&w, block.experts, p->ranks)) status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    if (status == MOEPACK_OK && rows == NULL) {
        for (uint32_t e = 0; e < w.experts; e++) w.rank[e] = mpk_linear_rank(e, w.experts, p->ranks);
    } else if (status == MOEPACK_OK) {
        w.rows = rows;
        sort_by_load(&w);
        set_room(&w, held);
        place_once(&w);
        for (uint64_t i = 0; i < (uint64_t)EXCHANGES_PER_EXPERT * w.experts && exchange(&w); i++) continue;
    }
    if (status == MOEPACK_OK) {
        for (uint32_t e = 0; e < w.experts; e++) {
            w.holds[(size_t)e * w.ranks + w.rank[e]] = 1;
            w.copies[e] = 1;
            held[w.rank[e]]++;
        }
        for (uint32_t r = 0; r < w.ranks; r++) w.extra[r] = replica_bytes;
        if (rows != NULL) {
            sum_shares(&w);
            while (replicate(&w, index, block.first_record)) continue;
        }
        p->table_of[b] = (uint32_t)p->table_count;
        status = make_table(&w, &p->tables[p->table_count++], error);
    }
    free_work(&w);
    return status;
}

moepack_status moepack_placement_balance(const moepack_pack *pack, uint32_t ranks, const uint64_t *const *rows,
                                         uint64_t replica_bytes, moepack_placement **out, moepack_error *error)
{
    if (pack == NULL || rows == NULL || out == NULL)
        return mpk_fail(error, MOEPACK_E_USAGE, "a container, loads and a place for the result are needed");
    *out = NULL;
    if (ranks == 0) return mpk_fail(error, MOEPACK_E_USAGE, "the number of ranks must be at least 1");
    const moepack_index *index = moepack_pack_index(pack);
    moepack_placement *p = mpk_placement_new(index, ranks);
    if (p != NULL) p->tables = calloc((size_t)p->blocks + 1, sizeof *p->tables);
    uint64_t *held = calloc(ranks, sizeof *held); /* experts of all blocks so far */
    if (p == NULL || p->tables == NULL || held == NULL) {
        free(held);
        moepack_placement_free(p);
        return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    p->rule = RULE_TABLE;
    uint64_t measured = 0;
    for (uint32_t b = 0; b < p->blocks; b++) measured += rows[b] != NULL;
    moepack_status status = MOEPACK_OK;
    for (int pass = 0; pass < 2; pass++) /* what is placed by rule comes first, the others make up for it */
        for (uint32_t b = 0; b < p->blocks && status == MOEPACK_OK; b++)
            if ((rows[b] != NULL) == (pass == 1))
                status = balance_block(p, index, b, rows[b], held, pass == 1 ? replica_bytes / measured : 0, error);
    free(held);
    if (status != MOEPACK_OK) {
        moepack_placement_free(p);
        return status;
    }
    *out = p;
    return MOEPACK_OK;
}

void moepack_placement_load(const moepack_placement *placement, uint32_t block, const uint64_t *rows, bool divided,
                            double *per_rank)
{
    memset(per_rank, 0, placement->ranks * sizeof *per_rank);
    if (block >= placement->blocks) return;
    for (uint32_t e = 0; e < placement->experts[block]; e++) {
        uint32_t copies = 0;
        if (!divided) {
            per_rank[mpk_computing_rank(placement, block, e)] += (double)rows[e];
            continue;
        }
        for (uint32_t r = 0; r < placement->ranks; r++) copies += moepack_placement_holds(placement, r, block, e);
        for (uint32_t r = 0; r < placement->ranks; r++)
            if (moepack_placement_holds(placement, r, block, e)) per_rank[r] += (double)rows[e] / copies;
    }
}

/* ---- files ---- */

static json_t *lists_of(const moepack_placement *p, uint32_t block)
{
    json_t *lists = json_array();
    for (uint32_t e = 0; e < p->experts[block]; e++) {
        json_t *ranks = json_array();
        for (int first = 1; first >= 0; first--) /* the one that computes, then the others */
            for (uint32_t r = 0; r < p->ranks; r++)
                if (moepack_placement_holds(p, r, block, e) &&
                    moepack_placement_computes(p, r, block, e) == (first == 1))
                    json_array_append_new(ranks, json_integer((json_int_t)r));
        json_array_append_new(lists, ranks);
    }
    return lists;
}

/* A file that could not be written whole is removed again: it is our own, made a moment ago. */
static moepack_status write_new(const char *path, const char *text, moepack_error *error)
{
    int fd;
    moepack_status status = mpk_file_create(path, &fd, error);
    if (status != MOEPACK_OK) return status;
    status = mpk_file_pwrite(fd, text, strlen(text), 0, path, error);
    if (status == MOEPACK_OK) status = mpk_file_sync(fd, path, error);
    close(fd);
    if (status != MOEPACK_OK) unlink(path);
    return status;
}

moepack_status moepack_placement_write(const moepack_placement *placement, const moepack_pack *pack, const char *path,
                                       moepack_error *error)
{
    if (placement == NULL || pack == NULL || path == NULL)
        return mpk_fail(error, MOEPACK_E_USAGE, "a placement, its container and a path are needed");
    json_t *layers = json_object();
    for (uint32_t b = 0; b < placement->blocks; b++) {
        char label[MOEPACK_LABEL_MAX];
        moepack_index_label(moepack_pack_index(pack), b, label);
        json_object_set_new(layers, label, lists_of(placement, b));
    }
    json_t *root = json_pack("{s:I, s:o}", "ranks", (json_int_t)placement->ranks, "layers", layers);
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (text == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    moepack_status status = write_new(path, text, error);
    free(text);
    return status;
}
