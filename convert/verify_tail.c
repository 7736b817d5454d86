/* A tail repeats what the index says about its shard, so that the index can be rebuilt. A tail whose hash is right but
 * whose words differ would only show on the day the index is lost. The index leaves no choice about a tail
 * (spec/container.md 7 and 8), so the two are compared byte for byte. */
#include "verify_internal.h"

#include "tableset.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t expert_ids[] = {MPK_T_SECTIONS, MPK_T_PARTS, MPK_T_TAIL_RECORDS};
static const uint32_t trunk_ids[] = {MPK_T_INFO,   MPK_T_SHARDS,   MPK_T_BLOCKS,  MPK_T_SCHEMAS,
                                     MPK_T_DESCS,  MPK_T_MATRICES, MPK_T_DIMS,    MPK_T_POLICIES,
                                     MPK_T_FIELDS, MPK_T_SECTIONS, MPK_T_PARTS,   MPK_T_TENSORS,
                                     MPK_T_FILES,  MPK_T_ROLES,    MPK_T_STRINGS, MPK_T_TAIL_OWNERS};

/* Says which table differs, and where. Both sets have been decoded; the tail's is at the shard's tail offset. */
static moepack_status first_difference(const mpk_verify_shard *shard, const uint8_t *tail, const mpk_tables_view *here,
                                       const mpk_tables_view *there, const uint32_t *ids, size_t count,
                                       moepack_error *error)
{
    for (size_t i = 0; i < count; i++) {
        const mpk_table *a = &here->t[ids[i]], *b = &there->t[ids[i]];
        const char *name = mpk_table_name(ids[i]);
        if (a->count != b->count)
            return mpk_fail(error, MOEPACK_E_CORRUPT, "the tail has %llu entries in %s, the index asks for %llu",
                            (unsigned long long)a->count, name, (unsigned long long)b->count);
        uint32_t size = mpk_table_entry(ids[i]);
        for (uint64_t e = 0; e < a->count; e++) {
            if (memcmp(a->data + e * size, b->data + e * size, size) == 0) continue;
            mpk_fail(error, MOEPACK_E_CORRUPT, "the tail differs from the index: table %s, entry %llu", name,
                     (unsigned long long)e);
            mpk_error_offset(error, shard->entry.tail_offset + (uint64_t)(a->data - tail) + e * size);
            return MOEPACK_E_CORRUPT;
        }
    }
    return MOEPACK_OK;
}

static moepack_status compare(mpk_verify *v, const mpk_verify_shard *shard, const uint8_t *tail, moepack_error *error)
{
    bool trunk = shard->entry.kind == MOEPACK_SHARD_TRUNK;
    const uint32_t *ids = trunk ? trunk_ids : expert_ids;
    size_t count = trunk ? sizeof trunk_ids / sizeof *trunk_ids : sizeof expert_ids / sizeof *expert_ids;
    mpk_tables_view here, there;
    mpk_buf wanted = {0};
    moepack_status status =
        mpk_tableset_decode(tail, shard->entry.tail_length, shard->entry.tail_offset, ids, count, &here, error);
    if (status == MOEPACK_OK) status = mpk_index_tail(v->index, shard->number, &wanted, error);
    if (status == MOEPACK_OK)
        status = mpk_tableset_decode(wanted.data, wanted.size, shard->entry.tail_offset, ids, count, &there, error);
    if (status == MOEPACK_OK) status = first_difference(shard, tail, &here, &there, ids, count, error);
    free(wanted.data);
    return status;
}

void mpk_verify_tail(mpk_verify *v, const mpk_verify_shard *shard, const uint8_t *tail)
{
    moepack_error error = {.offset = -1};
    if (compare(v, shard, tail, &error) != MOEPACK_OK)
        mpk_verify_found_error(v, shard->number, "tail", shard->entry.tail_offset, shard->entry.tail_length, &error);
}
