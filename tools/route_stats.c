/* Figures of a selection: rows per expert and per rank, and how uneven they are. */
#include "route.h"

#include <math.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------------------------------- experts */

static void weigh_expert(const moepack_index *index, const moepack_block *block, uint32_t expert, route_experts *out)
{
    moepack_record record;
    uint32_t first_desc, sections;
    moepack_index_record(index, block->first_record + expert, &record);
    out->present[expert] = record.shard != MOEPACK_NO_SHARD;
    if (!out->present[expert]) return;
    moepack_index_schema(index, record.schema, &first_desc, &sections);
    for (uint32_t s = 0; s < sections; s++) {
        moepack_section section;
        moepack_index_section(index, record.first_section + s, &section);
        out->bytes[expert] += section.stored_length;
    }
    out->total_bytes += out->bytes[expert];
}

bool route_experts_create(const moepack_index *index, uint32_t block, const moepack_placement *placement,
                          route_experts *out)
{
    moepack_block info;
    moepack_index_block(index, block, &info);
    *out = (route_experts){.experts = info.experts};
    out->bytes = calloc(info.experts, sizeof *out->bytes);
    out->present = calloc(info.experts, sizeof *out->present);
    if (placement != NULL) {
        out->ranks = moepack_placement_ranks(placement);
        out->rank_of = calloc(info.experts, sizeof *out->rank_of);
    }
    if (out->bytes == NULL || out->present == NULL || (placement != NULL && out->rank_of == NULL)) return false;
    for (uint32_t e = 0; e < info.experts; e++) {
        weigh_expert(index, &info, e, out);
        /* Every expert is computed somewhere: the placement has been checked. */
        while (out->rank_of != NULL && !moepack_placement_computes(placement, out->rank_of[e], block, e))
            out->rank_of[e]++;
    }
    return true;
}

void route_experts_free(route_experts *experts)
{
    free(experts->bytes);
    free(experts->present);
    free(experts->rank_of);
    *experts = (route_experts){0};
}

/* ------------------------------------------------------------------------------------------------- load */

static void add_expert(route_load *out, const route_experts *experts, uint32_t e)
{
    const uint64_t rows = out->load[e];
    out->rows += rows;
    if (rows > out->largest) {
        out->largest = rows;
        out->busiest = e;
    }
    if (e == 0 || rows < out->smallest) out->smallest = rows;
    if (rows == 0) {
        out->idle++;
    } else {
        out->active_bytes += experts->bytes[e];
        if (!experts->present[e]) out->active_absent++;
    }
}

/* All zero without any rows. */
static void measure(route_load *out, uint32_t experts)
{
    double squares = 0;
    if (out->rows == 0) return;
    out->mean = (double)out->rows / experts;
    out->imbalance = (double)out->largest / out->mean;
    for (uint32_t e = 0; e < experts; e++) {
        const double d = (double)out->load[e] - out->mean, share = (double)out->load[e] / (double)out->rows;
        squares += d * d;
        if (share > 0) out->entropy -= share * log2(share);
    }
    out->variation = sqrt(squares / experts) / out->mean;
    if (out->entropy < 0) out->entropy = 0; /* -0 where one expert gets all */
}

/* Rows, and tokens: each once per rank. */
static bool count_ranks(const route_experts *experts, const int32_t *ids, uint64_t tokens, uint64_t top_k,
                        route_load *out)
{
    uint64_t *seen = calloc(experts->ranks, sizeof *seen), largest = 0; /* last token that reached the rank, plus 1 */
    out->ranks = calloc(experts->ranks, sizeof *out->ranks);
    if (seen == NULL || out->ranks == NULL) {
        free(seen);
        return false;
    }
    for (uint64_t i = 0; i < tokens * top_k; i++) {
        const uint32_t rank = experts->rank_of[ids[i]];
        out->ranks[rank].rows++;
        if (seen[rank] != i / top_k + 1) out->ranks[rank].tokens++;
        seen[rank] = i / top_k + 1;
    }
    for (uint32_t e = 0; e < experts->experts; e++) {
        route_rank *rank = &out->ranks[experts->rank_of[e]];
        rank->experts++;
        if (out->load[e] > 0) rank->read_bytes += experts->bytes[e];
    }
    for (uint32_t r = 0; r < experts->ranks; r++) largest = out->ranks[r].rows > largest ? out->ranks[r].rows : largest;
    if (out->rows > 0) out->rank_imbalance = (double)largest * experts->ranks / (double)out->rows;
    free(seen);
    return true;
}

bool route_load_create(const route_experts *experts, const int32_t *ids, uint64_t tokens, uint64_t top_k,
                       route_load *out)
{
    *out = (route_load){0};
    out->load = calloc(experts->experts, sizeof *out->load);
    if (out->load == NULL) return false;
    for (uint64_t i = 0; i < tokens * top_k; i++) out->load[ids[i]]++;
    for (uint32_t e = 0; e < experts->experts; e++) add_expert(out, experts, e);
    measure(out, experts->experts);
    return experts->rank_of == NULL || count_ranks(experts, ids, tokens, top_k, out);
}

void route_load_free(route_load *load)
{
    free(load->load);
    free(load->ranks);
    *load = (route_load){0};
}
