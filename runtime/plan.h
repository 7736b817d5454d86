/* Inside of a plan, for the loader. Internal. */
#ifndef MOEPACK_RUNTIME_PLAN_H
#define MOEPACK_RUNTIME_PLAN_H

#include "open.h"

#define MPK_NO_EXPERT UINT32_MAX

/* One record or one trunk tensor that the rank needs, with the whole pages it lies in. */
typedef struct mpk_plan_item {
    uint64_t offset, length; /* page multiples; length 0: nothing but empty sections */
    uint32_t shard;
    uint32_t block;  /* records only */
    uint32_t expert; /* MPK_NO_EXPERT: a trunk tensor */
    uint32_t tensor; /* trunk tensors only */
} mpk_plan_item;

struct moepack_plan {
    const moepack_pack *pack;
    uint32_t rank;
    uint32_t *blocks; /* ascending, no block twice */
    uint32_t block_count;
    bool dense, router_only;
    bool no_experts;      /* dense tensors alone: a residency reads the experts itself */
    mpk_plan_item *items; /* sorted by (shard, offset); every expert and every tensor once */
    size_t item_count, item_capacity;
    moepack_read *reads;
    size_t read_count;
    uint64_t experts, expert_bytes, dense_bytes;
};

/* The dense tensors alone of the given blocks, for a residency. */
moepack_status mpk_plan_dense(const moepack_pack *pack, uint32_t rank, const uint32_t *blocks, uint32_t block_count,
                              moepack_plan **out, moepack_error *error);

/* Roles of the tensors that decide where tokens go. */
static inline bool mpk_router_role(moepack_role role)
{
    return role == MOEPACK_ROLE_ROUTER || role == MOEPACK_ROLE_ROUTER_BIAS || role == MOEPACK_ROLE_LOGIT_BIAS ||
           role == MOEPACK_ROLE_TOKEN_TABLE;
}

#endif
