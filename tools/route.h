/* Shared by cmd_route.c and what it reports (route_stats.c, route_report.c). */
#ifndef MOEPACK_TOOLS_ROUTE_H
#define MOEPACK_TOOLS_ROUTE_H

#include "run_io.h"

typedef struct route_args {
    cli_common common;
    const char *layer, *input, *placement, *gamma_text, *write_bias, *write_trace;
    uint64_t ranks, rounds, threads;
    bool balance, overwrite;
    bool rule_given, rounds_given, ranks_given;
    unsigned rule;
    double gamma;
    cli_list policy;
} route_args;

/* Values of --rule. */
enum {
    RULE_QUANTILE,
    RULE_SIGN
};
extern const char *const route_rule_names[];

/* One rank of an expert-parallel group. */
typedef struct route_rank {
    uint64_t experts;    /* it computes */
    uint64_t rows;       /* pairs of a token and one of these experts */
    uint64_t tokens;     /* that reach the rank: each counts once, whatever number of its experts live there */
    uint64_t read_bytes; /* stored bytes of its experts that get a row */
} route_rank;

/* What one selection does to the experts. */
typedef struct route_load {
    uint64_t *load; /* [E] rows per expert */
    uint64_t rows, largest, smallest, idle;
    uint32_t busiest;
    double mean, imbalance, variation, entropy; /* variation: standard deviation / mean; entropy in bits */
    uint64_t active_bytes,
        active_absent; /* stored bytes of experts that get a row; such experts not in the container */
    route_rank *ranks; /* [ranks], NULL without --ranks */
    double rank_imbalance;
} route_load;

/* Where experts live and what they weigh. */
typedef struct route_experts {
    uint32_t experts, ranks;
    uint64_t *bytes;   /* [E]; 0: not in the container */
    bool *present;     /* [E] */
    uint32_t *rank_of; /* [E]: the rank that computes it; NULL without --ranks */
    uint64_t total_bytes;
} route_experts;

/* `placement` may be NULL. False without memory. */
bool route_experts_create(const moepack_index *index, uint32_t block, const moepack_placement *placement,
                          route_experts *out);
void route_experts_free(route_experts *experts);
/* Counts ids [tokens, top_k]. False without memory. */
bool route_load_create(const route_experts *experts, const int32_t *ids, uint64_t tokens, uint64_t top_k,
                       route_load *out);
void route_load_free(route_load *load);

/* Selection biases that are compared. */
enum {
    BIAS_NONE,
    BIAS_CHECKPOINT,
    BIAS_QUANTILE,
    BIAS_SIGN,
    BIAS_COUNT
};

/* All that is reported. */
typedef struct route_report {
    const route_args *args;
    const char *label;
    uint64_t tokens, top_k;
    route_experts experts;
    route_load load; /* of the container's policy (with --policy) */
    moepack_load_report loaded;
    /* with --balance */
    route_load compared[BIAS_COUNT];
    unsigned chosen;   /* BIAS_QUANTILE or BIAS_SIGN */
    const float *bias; /* [E] of the chosen rule */
} route_report;

/* Text, one line per token: ids [tokens, top_k] separated by blanks. */
moepack_status route_trace_write(const char *path, bool overwrite, const int32_t *ids, uint64_t tokens, uint64_t top_k,
                                 moepack_error *error);

json_t *route_report_json(const route_report *report);
void route_report_print(const route_report *report);

#endif
