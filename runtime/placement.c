/* Which rank holds which expert: two rules by formula, and tables read from a JSON file. */
#include "error.h"
#include "io/io.h"
#include "open.h"
#include "placement_internal.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

/* A full K3 placement with three replicas each is about 2 MB of JSON; anything near this limit is not a placement. */
#define PLACEMENT_FILE_LIMIT (UINT64_C(256) << 20)

/* ---- building from a file ---- */

typedef struct file_job {
    const char *path;
    const moepack_index *index;
    moepack_placement *placement;
    moepack_error *error;
} file_job;

static moepack_status fail_at(const file_job *job, moepack_status status, const char *label, int64_t expert)
{
    mpk_error_file(job->error, job->path);
    mpk_error_layer(job->error, label);
    mpk_error_expert(job->error, expert);
    return status;
}

static moepack_status check_rank(const file_job *job, const json_t *value, json_int_t *rank)
{
    if (!json_is_integer(value)) return mpk_fail(job->error, MOEPACK_E_USAGE, "a rank must be an integer");
    *rank = json_integer_value(value);
    if (*rank < 0 || *rank >= (json_int_t)job->placement->ranks)
        return mpk_fail(job->error, MOEPACK_E_USAGE, "rank %" JSON_INTEGER_FORMAT " is outside 0..%" PRIu32, *rank,
                        job->placement->ranks - 1);
    return MOEPACK_OK;
}

/* Ranks of one expert, appended at *used. */
static moepack_status read_expert(const file_job *job, const json_t *list, uint32_t *ranks, size_t *used)
{
    if (!json_is_array(list)) return mpk_fail(job->error, MOEPACK_E_USAGE, "an expert's entry must be a list of ranks");
    const size_t count = json_array_size(list), first = *used;
    if (count == 0) return mpk_fail(job->error, MOEPACK_E_USAGE, "the expert is placed nowhere: its list is empty");
    for (size_t i = 0; i < count; i++) {
        json_int_t rank = 0;
        moepack_status status = check_rank(job, json_array_get(list, i), &rank);
        if (status != MOEPACK_OK) return status;
        for (size_t j = first; j < *used; j++)
            if (ranks[j] == (uint32_t)rank)
                return mpk_fail(job->error, MOEPACK_E_USAGE, "rank %" JSON_INTEGER_FORMAT " is listed twice", rank);
        ranks[(*used)++] = (uint32_t)rank;
    }
    return MOEPACK_OK;
}

static size_t count_ranks(const json_t *lists)
{
    size_t total = 0;
    for (size_t e = 0; e < json_array_size(lists); e++) total += json_array_size(json_array_get(lists, e));
    return total;
}

/* The list under one label becomes the next table. */
static moepack_status read_table(const file_job *job, const char *label, const json_t *lists)
{
    if (!json_is_array(lists))
        return fail_at(job, mpk_fail(job->error, MOEPACK_E_USAGE, "must be a list with one list of ranks per expert"),
                       label, -1);
    const size_t experts = json_array_size(lists);
    if (experts >= UINT32_MAX)
        return fail_at(job, mpk_fail(job->error, MOEPACK_E_USAGE, "too many experts"), label, -1);
    rank_table *table = &job->placement->tables[job->placement->table_count];
    table->experts = (uint32_t)experts;
    table->first = calloc(experts + 1, sizeof *table->first);
    table->rank = calloc(count_ranks(lists) + 1, sizeof *table->rank);
    job->placement->table_count++; /* from here on moepack_placement_free frees it */
    if (table->first == NULL || table->rank == NULL) return mpk_fail(job->error, MOEPACK_E_REFUSED, "out of memory");
    size_t used = 0;
    for (size_t e = 0; e < experts; e++) {
        table->first[e] = used;
        moepack_status status = read_expert(job, json_array_get(lists, e), table->rank, &used);
        if (status != MOEPACK_OK) return fail_at(job, status, label, (int64_t)e);
    }
    table->first[experts] = used;
    return MOEPACK_OK;
}

/* A label is what moepack_index_label gives; moepack_index_find_block would take a name prefix too. */
static uint32_t block_of_label(const moepack_index *index, const char *label)
{
    const uint32_t block = moepack_index_find_block(index, label);
    if (block == MOEPACK_NO_BLOCK) return block;
    char own[MOEPACK_LABEL_MAX];
    moepack_index_label(index, block, own);
    return strcmp(own, label) == 0 ? block : MOEPACK_NO_BLOCK;
}

static moepack_status assign_table(const file_job *job, uint32_t block, uint32_t table, const char *label)
{
    moepack_placement *p = job->placement;
    if (p->tables[table].experts != p->experts[block]) {
        char own[MOEPACK_LABEL_MAX];
        moepack_index_label(job->index, block, own);
        return fail_at(job,
                       mpk_fail(job->error, MOEPACK_E_USAGE,
                                "the list under \"%s\" has %" PRIu32 " experts, the layer has %" PRIu32, label,
                                p->tables[table].experts, p->experts[block]),
                       own, -1);
    }
    p->table_of[block] = table;
    return MOEPACK_OK;
}

static moepack_status read_layers(const file_job *job, json_t *layers)
{
    moepack_placement *p = job->placement;
    if (!json_is_object(layers))
        return fail_at(job, mpk_fail(job->error, MOEPACK_E_USAGE, "\"layers\" must be an object"), NULL, -1);
    p->tables = calloc(json_object_size(layers) + 1, sizeof *p->tables);
    if (p->tables == NULL) return mpk_fail(job->error, MOEPACK_E_REFUSED, "out of memory");
    uint32_t star = UINT32_MAX;
    const char *label;
    json_t *lists;
    json_object_foreach(layers, label, lists)
    {
        const bool is_star = strcmp(label, "*") == 0;
        const uint32_t block = is_star ? MOEPACK_NO_BLOCK : block_of_label(job->index, label);
        if (!is_star && block == MOEPACK_NO_BLOCK)
            return fail_at(job,
                           mpk_fail(job->error, MOEPACK_E_USAGE, "the container has no MoE layer \"%.40s\"", label),
                           label, -1);
        const uint32_t table = (uint32_t)p->table_count;
        moepack_status status = read_table(job, label, lists);
        if (status == MOEPACK_OK && !is_star) status = assign_table(job, block, table, label);
        if (status != MOEPACK_OK) return status;
        if (is_star) star = table;
    }
    for (uint32_t b = 0; b < p->blocks; b++) {
        if (p->table_of[b] != UINT32_MAX) continue;
        char own[MOEPACK_LABEL_MAX];
        moepack_index_label(job->index, b, own);
        if (star == UINT32_MAX)
            return fail_at(
                job, mpk_fail(job->error, MOEPACK_E_USAGE, "the layer is placed nowhere: no list for it and no \"*\""),
                own, -1);
        moepack_status status = assign_table(job, b, star, "*");
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}

static moepack_status read_root(const file_job *job, json_t *root)
{
    if (!json_is_object(root))
        return fail_at(job, mpk_fail(job->error, MOEPACK_E_USAGE, "a placement must be a JSON object"), NULL, -1);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, "ranks") != 0 && strcmp(key, "layers") != 0)
            return fail_at(job, mpk_fail(job->error, MOEPACK_E_USAGE, "unknown key \"%.80s\"", key), NULL, -1);
    }
    const json_t *ranks = json_object_get(root, "ranks");
    if (!json_is_integer(ranks))
        return fail_at(job, mpk_fail(job->error, MOEPACK_E_USAGE, "\"ranks\" must be an integer"), NULL, -1);
    if (json_integer_value(ranks) != (json_int_t)job->placement->ranks)
        return fail_at(job,
                       mpk_fail(job->error, MOEPACK_E_USAGE,
                                "the file places %" JSON_INTEGER_FORMAT " ranks, %" PRIu32 " were asked for",
                                json_integer_value(ranks), job->placement->ranks),
                       NULL, -1);
    json_t *layers = json_object_get(root, "layers");
    if (layers == NULL) return fail_at(job, mpk_fail(job->error, MOEPACK_E_USAGE, "\"layers\" is missing"), NULL, -1);
    return read_layers(job, layers);
}

static moepack_status read_file(const file_job *job)
{
    if (!mpk_path_exists(job->path))
        return mpk_fail(job->error, MOEPACK_E_USAGE,
                        "\"%.200s\" is neither linear nor round-robin nor an existing file", job->path);
    void *data = NULL;
    size_t size = 0;
    moepack_status status = mpk_file_read_all(job->path, PLACEMENT_FILE_LIMIT, &data, &size, job->error);
    if (status != MOEPACK_OK) return status;
    json_error_t why;
    json_t *root = json_loadb(data, size, JSON_REJECT_DUPLICATES, &why);
    free(data);
    if (root == NULL)
        return fail_at(job,
                       mpk_fail(job->error, MOEPACK_E_USAGE, "line %d, column %d: %s", why.line, why.column, why.text),
                       NULL, -1);
    status = read_root(job, root);
    json_decref(root);
    return status;
}

/* ---- public ---- */

moepack_placement *mpk_placement_new(const moepack_index *index, uint32_t ranks)
{
    moepack_placement *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->ranks = ranks;
    p->blocks = moepack_index_blocks(index);
    p->experts = calloc((size_t)p->blocks + 1, sizeof *p->experts);
    p->table_of = calloc((size_t)p->blocks + 1, sizeof *p->table_of);
    if (p->experts == NULL || p->table_of == NULL) {
        moepack_placement_free(p);
        return NULL;
    }
    for (uint32_t b = 0; b < p->blocks; b++) {
        moepack_block block;
        moepack_index_block(index, b, &block);
        p->experts[b] = block.experts;
        p->table_of[b] = UINT32_MAX;
    }
    return p;
}

moepack_status moepack_placement_create(const moepack_pack *pack, const char *spec, uint32_t ranks,
                                        moepack_placement **out, moepack_error *error)
{
    if (out == NULL || pack == NULL || spec == NULL)
        return mpk_fail(error, MOEPACK_E_USAGE, "a container, a placement and a place for the result are needed");
    *out = NULL;
    if (ranks == 0) return mpk_fail(error, MOEPACK_E_USAGE, "the number of ranks must be at least 1");
    const moepack_index *index = moepack_pack_index(pack);
    moepack_placement *p = mpk_placement_new(index, ranks);
    if (p == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    moepack_status status = MOEPACK_OK;
    if (strcmp(spec, "linear") == 0) {
        p->rule = RULE_LINEAR;
    } else if (strcmp(spec, "round-robin") == 0) {
        p->rule = RULE_ROUND_ROBIN;
    } else {
        p->rule = RULE_TABLE;
        const file_job job = {spec, index, p, error};
        status = read_file(&job);
    }
    if (status != MOEPACK_OK) {
        moepack_placement_free(p);
        return status;
    }
    *out = p;
    return MOEPACK_OK;
}

void moepack_placement_free(moepack_placement *placement)
{
    if (placement == NULL) return;
    for (size_t i = 0; i < placement->table_count; i++) {
        free(placement->tables[i].first);
        free(placement->tables[i].rank);
    }
    free(placement->tables);
    free(placement->table_of);
    free(placement->experts);
    free(placement);
}

uint32_t moepack_placement_ranks(const moepack_placement *placement)
{
    return placement->ranks;
}

/* The rank that computes an expert. The first E mod N ranks hold one expert more than the others. */
uint32_t mpk_linear_rank(uint32_t expert, uint32_t experts, uint32_t ranks)
{
    const uint32_t small = experts / ranks, larger_ranks = experts % ranks;
    const uint64_t in_larger = (uint64_t)larger_ranks * ((uint64_t)small + 1);
    if (expert < in_larger) return (uint32_t)(expert / ((uint64_t)small + 1));
    return (uint32_t)(larger_ranks + (expert - in_larger) / small);
}

uint32_t mpk_computing_rank(const moepack_placement *p, uint32_t block, uint32_t expert)
{
    if (p->rule == RULE_LINEAR) return mpk_linear_rank(expert, p->experts[block], p->ranks);
    if (p->rule == RULE_ROUND_ROBIN) return expert % p->ranks;
    const rank_table *table = &p->tables[p->table_of[block]];
    return table->rank[table->first[expert]];
}

static bool in_range(const moepack_placement *p, uint32_t rank, uint32_t block, uint32_t expert)
{
    return rank < p->ranks && block < p->blocks && expert < p->experts[block];
}

bool moepack_placement_computes(const moepack_placement *placement, uint32_t rank, uint32_t block, uint32_t expert)
{
    return in_range(placement, rank, block, expert) && mpk_computing_rank(placement, block, expert) == rank;
}

bool moepack_placement_holds(const moepack_placement *placement, uint32_t rank, uint32_t block, uint32_t expert)
{
    if (!in_range(placement, rank, block, expert)) return false;
    if (placement->rule != RULE_TABLE) return mpk_computing_rank(placement, block, expert) == rank;
    const rank_table *table = &placement->tables[placement->table_of[block]];
    for (size_t i = table->first[expert]; i < table->first[expert + 1]; i++)
        if (table->rank[i] == rank) return true;
    return false;
}
