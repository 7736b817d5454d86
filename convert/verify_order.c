/* Storage order of the trunk (spec/container.md section 8): sections are numbered first by the roles that tensors play
 * in blocks, one stream for a device, then by their places in the source. */
#include "verify_internal.h"

#include <stdio.h>
#include <stdlib.h>

static const uint16_t role_order[] = {
    MOEPACK_ROLE_ROUTER,      MOEPACK_ROLE_ROUTER_BIAS,   MOEPACK_ROLE_LOGIT_BIAS,  MOEPACK_ROLE_TOKEN_TABLE,
    MOEPACK_ROLE_LATENT_DOWN, MOEPACK_ROLE_SHARED_ROUTER, MOEPACK_ROLE_SHARED_GATE, MOEPACK_ROLE_SHARED_UP,
    MOEPACK_ROLE_LATENT_NORM, MOEPACK_ROLE_LATENT_UP,     MOEPACK_ROLE_SHARED_DOWN,
};

typedef struct trunk_order {
    const mpk_verify *v;
    uint64_t first, count; /* sections of trunk tensors */
    size_t *check;         /* of trunk section first + i */
    uint8_t *has_role;
    uint64_t next; /* sections of tensors with a role, so far */
} trunk_order;

/* UINT64_MAX where all tensors with a role stand where they should; else the section that is out of order. */
static uint64_t walk_roles(trunk_order *t, uint32_t block_number)
{
    moepack_block block;
    moepack_index_block(t->v->index, block_number, &block);
    for (size_t r = 0; r < sizeof role_order / sizeof *role_order; r++)
        for (uint32_t i = 0; i < block.role_count; i++) { /* planes ascend inside a role */
            moepack_role_entry entry;
            moepack_tensor tensor;
            moepack_index_role(t->v->index, block.first_role + i, &entry);
            if (entry.role != role_order[r]) continue;
            moepack_index_tensor(t->v->index, entry.tensor, &tensor);
            uint64_t section = tensor.section - t->first;
            if (t->has_role[section]) continue; /* of an earlier role, or of another block as well */
            t->has_role[section] = 1;
            if (section != t->next++) return section;
        }
    return UINT64_MAX;
}

/* Likewise for the others, which follow in order of source file and place in it. */
static uint64_t walk_rest(const trunk_order *t, const uint32_t *place)
{
    const mpk_index_piece *before = NULL;
    size_t before_number = 0;
    for (uint64_t i = t->next; i < t->count; i++) {
        size_t number = t->v->checks[t->check[i]].piece;
        const mpk_index_piece *piece = &t->v->pieces.piece[number];
        if (before &&
            (piece->file < before->file || (piece->file == before->file && place[number] < place[before_number])))
            return i;
        before = piece;
        before_number = number;
    }
    return UINT64_MAX;
}

/* Shards fill up one after another, for empty sections too. */
static uint64_t walk_shards(const trunk_order *t)
{
    for (uint64_t i = 1; i < t->count; i++)
        if (t->v->checks[t->check[i]].shard < t->v->checks[t->check[i - 1]].shard) return i;
    return UINT64_MAX;
}

static uint64_t out_of_order(trunk_order *t, const uint32_t *place)
{
    for (size_t i = 0; i < t->v->check_count; i++) {
        const mpk_check *check = &t->v->checks[i];
        if (check->piece != MPK_NO_PIECE && check->section >= t->first) t->check[check->section - t->first] = i;
    }
    uint64_t wrong = UINT64_MAX;
    for (uint32_t b = 0; b < moepack_index_blocks(t->v->index) && wrong == UINT64_MAX; b++) wrong = walk_roles(t, b);
    if (wrong == UINT64_MAX) wrong = walk_rest(t, place);
    return wrong == UINT64_MAX ? walk_shards(t) : wrong;
}

moepack_status mpk_verify_order(mpk_verify *v, const uint32_t *place, moepack_error *error)
{
    trunk_order t = {.v = v, .count = moepack_index_tensors(v->index)};
    t.first = moepack_index_sections(v->index) - moepack_index_source_files(v->index) - t.count;
    t.check = calloc(t.count + 1, sizeof *t.check);
    t.has_role = calloc(t.count + 1, 1);
    moepack_status status = t.check && t.has_role ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    uint64_t wrong = status == MOEPACK_OK ? out_of_order(&t, place) : UINT64_MAX;
    if (wrong != UINT64_MAX) {
        moepack_finding finding;
        const mpk_check *check = &v->checks[t.check[wrong]];
        mpk_verify_describe(v, check, &finding);
        snprintf(finding.message, sizeof finding.message, "not where the storage order of the trunk puts this tensor");
        mpk_verify_found(v, check->shard, &finding);
    }
    free(t.check);
    free(t.has_role);
    return status;
}
