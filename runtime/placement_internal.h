/* What the makers of placements share: placement.c reads rules and files, placement_balance.c computes. Internal. */
#ifndef MOEPACK_RUNTIME_PLACEMENT_INTERNAL_H
#define MOEPACK_RUNTIME_PLACEMENT_INTERNAL_H

#include "moepack/runtime.h"

typedef enum placement_rule {
    RULE_LINEAR,
    RULE_ROUND_ROBIN,
    RULE_TABLE
} placement_rule;

/* One list of the file: ranks of expert e are rank[first[e]] (the one that computes) .. rank[first[e + 1] - 1]. */
typedef struct rank_table {
    uint32_t experts;
    size_t *first; /* experts + 1 */
    uint32_t *rank;
} rank_table;

struct moepack_placement {
    placement_rule rule;
    uint32_t ranks, blocks;
    uint32_t *experts;  /* per block */
    uint32_t *table_of; /* per block: its table. Blocks placed by "*" share one */
    rank_table *tables;
    size_t table_count;
};

/* A placement of nothing yet; NULL without memory. Freed by moepack_placement_free. */
moepack_placement *mpk_placement_new(const moepack_index *index, uint32_t ranks);

/* The rank of an expert under the linear rule, and of any placement the one that computes it; block and expert exist.
 */
uint32_t mpk_linear_rank(uint32_t expert, uint32_t experts, uint32_t ranks);
uint32_t mpk_computing_rank(const moepack_placement *placement, uint32_t block, uint32_t expert);

#endif
