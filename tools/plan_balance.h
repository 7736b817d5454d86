/* plan --placement balance: experts placed by the load that `moepack route` measured. */
#ifndef MOEPACK_TOOLS_PLAN_BALANCE_H
#define MOEPACK_TOOLS_PLAN_BALANCE_H

#include "cli.h"

/* Rows per expert of the blocks that traces speak of. */
typedef struct plan_loads {
    uint64_t **rows; /* [blocks]; NULL: not measured */
    uint32_t blocks;
} plan_loads;

/* Adds up the reports of `moepack route --json` in a file: one JSON object after the other. Prints its own error; 0 or
 * an exit code. Freed with plan_loads_free, also after an error. */
int plan_loads_read(const cli_common *common, const moepack_pack *pack, const char *path, plan_loads *loads);
void plan_loads_free(plan_loads *loads);

/* Bytes of the largest rank of a placement; 0 or an exit code. */
int plan_largest_rank(const cli_common *common, const moepack_pack *pack, const moepack_placement *placement,
                      uint64_t *bytes);

/* The balanced placement; replicas fill what `budget` leaves (0: no replicas). */
int plan_balance(const cli_common *common, const moepack_pack *pack, uint32_t ranks, const plan_loads *loads,
                 uint64_t budget, moepack_placement **out);

/* Largest / mean rows of a rank per measured block: linear, balanced, and where engines divide rows among replicas. */
json_t *plan_balance_json(const moepack_pack *pack, const moepack_placement *placement, const plan_loads *loads);
void plan_balance_print(const moepack_pack *pack, const moepack_placement *placement, const plan_loads *loads);

#endif
