/* plan --placement balance. */
#include "plan_balance.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ traces */

void plan_loads_free(plan_loads *loads)
{
    for (uint32_t b = 0; b < loads->blocks; b++) free(loads->rows[b]);
    free(loads->rows);
    *loads = (plan_loads){0};
}

static int bad_trace(const cli_common *common, const char *path, unsigned long entry, const char *what)
{
    return cli_failf(common, MOEPACK_E_USAGE, "%s: report %lu: %s; wanted is what `moepack route --json` prints", path,
                     entry, what);
}

static uint32_t find_block(const moepack_index *index, const json_t *label)
{
    char text[32];
    if (!json_is_integer(label) && !json_is_string(label)) return MOEPACK_NO_BLOCK;
    snprintf(text, sizeof text, "%lld", (long long)json_integer_value(label));
    return moepack_index_find_block(index, json_is_string(label) ? json_string_value(label) : text);
}

/* Adds one report; NULL or what is wrong with it. */
static const char *add_report(const moepack_index *index, const json_t *report, plan_loads *loads)
{
    const json_t *label = json_object_get(report, "layer"), *load = json_object_get(report, "load");
    const uint32_t b = find_block(index, label);
    if (label == NULL || load == NULL) return "\"layer\" or \"load\" is missing";
    if (b == MOEPACK_NO_BLOCK) return "the container has no such layer";
    moepack_block block;
    moepack_index_block(index, b, &block);
    if (!json_is_array(load) || json_array_size(load) != block.experts)
        return "\"load\" is not one number for each expert of the layer";
    for (uint32_t e = 0; e < block.experts; e++) {
        const json_t *rows = json_array_get(load, e);
        if (!json_is_integer(rows) || json_integer_value(rows) < 0 || json_integer_value(rows) > INT32_MAX)
            return "a load is not a number of rows";
    }
    if (loads->rows[b] == NULL) loads->rows[b] = calloc(block.experts, sizeof **loads->rows);
    if (loads->rows[b] == NULL) return "out of memory";
    for (uint32_t e = 0; e < block.experts; e++)
        loads->rows[b][e] += (uint64_t)json_integer_value(json_array_get(load, e));
    return NULL;
}

/* Whether only white space is left. */
static bool at_end(FILE *file)
{
    int c;
    while ((c = getc(file)) == ' ' || c == '\n' || c == '\t' || c == '\r') continue;
    if (c != EOF) ungetc(c, file);
    return c == EOF;
}

int plan_loads_read(const cli_common *common, const moepack_pack *pack, const char *path, plan_loads *loads)
{
    const moepack_index *index = moepack_pack_index(pack);
    *loads = (plan_loads){.blocks = moepack_index_blocks(index)};
    loads->rows = calloc((size_t)loads->blocks + 1, sizeof *loads->rows);
    if (loads->rows == NULL) return cli_failf(common, MOEPACK_E_REFUSED, "out of memory");
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return cli_failf(common, errno == ENOENT ? MOEPACK_E_INCOMPLETE : MOEPACK_E_IO, "%s: %s", path,
                         strerror(errno));
    int code = 0;
    unsigned long entry = 0;
    while (code == 0 && !at_end(file)) {
        json_error_t why;
        entry++;
        json_t *report = json_loadf(file, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &why);
        const char *wrong = report == NULL ? why.text : add_report(index, report, loads);
        if (wrong != NULL) code = bad_trace(common, path, entry, wrong);
        json_decref(report);
    }
    if (code == 0 && ferror(file)) code = cli_failf(common, MOEPACK_E_IO, "%s: cannot be read", path);
    if (code == 0 && entry == 0) code = bad_trace(common, path, 1, "the file is empty");
    fclose(file);
    return code;
}

/* ------------------------------------------------------------------------------------------------ the placement */

int plan_largest_rank(const cli_common *common, const moepack_pack *pack, const moepack_placement *placement,
                      uint64_t *bytes)
{
    *bytes = 0;
    for (uint32_t rank = 0; rank < moepack_placement_ranks(placement); rank++) {
        moepack_plan_options options;
        moepack_plan *plan = NULL;
        moepack_error error = {0};
        moepack_plan_options_init(&options);
        options.dense = true;
        if (moepack_plan_create(pack, placement, rank, &options, &plan, &error) != MOEPACK_OK)
            return cli_fail(common, &error);
        const uint64_t wanted = moepack_plan_expert_bytes(plan) + moepack_plan_dense_bytes(plan);
        if (wanted > *bytes) *bytes = wanted;
        moepack_plan_free(plan);
    }
    return 0;
}

int plan_balance(const cli_common *common, const moepack_pack *pack, uint32_t ranks, const plan_loads *loads,
                 uint64_t budget, moepack_placement **out)
{
    moepack_error error = {0};
    const uint64_t *const *rows = (const uint64_t *const *)loads->rows;
    if (moepack_placement_balance(pack, ranks, rows, 0, out, &error) != MOEPACK_OK) return cli_fail(common, &error);
    uint64_t largest = 0;
    int code = budget != 0 ? plan_largest_rank(common, pack, *out, &largest) : 0;
    /* Over budget already: the plan of that rank says so, with both numbers. */
    if (code != 0 || budget == 0 || largest >= budget) return code;
    moepack_placement_free(*out);
    *out = NULL;
    return moepack_placement_balance(pack, ranks, rows, budget - largest, out, &error) == MOEPACK_OK
               ? 0
               : cli_fail(common, &error);
}

/* ------------------------------------------------------------------------------------------------ the report */

typedef struct figures {
    double linear, balanced, divided; /* largest / mean rows of a rank */
    uint64_t rows, replicas;
} figures;

static double imbalance(const moepack_placement *placement, uint32_t block, const uint64_t *rows, bool divided,
                        double *per_rank)
{
    const uint32_t ranks = moepack_placement_ranks(placement);
    double most = 0, sum = 0;
    moepack_placement_load(placement, block, rows, divided, per_rank);
    for (uint32_t r = 0; r < ranks; r++) {
        sum += per_rank[r];
        if (per_rank[r] > most) most = per_rank[r];
    }
    return sum > 0 ? most * ranks / sum : 1;
}

static bool measure(const moepack_pack *pack, const moepack_placement *placement, const plan_loads *loads,
                    uint32_t block, figures *out)
{
    moepack_error error = {0};
    moepack_placement *linear = NULL;
    moepack_block b;
    const uint32_t ranks = moepack_placement_ranks(placement);
    double *per_rank = calloc(ranks, sizeof *per_rank);
    const uint64_t *rows = loads->rows[block];
    moepack_index_block(moepack_pack_index(pack), block, &b);
    bool done = per_rank != NULL && moepack_placement_create(pack, "linear", ranks, &linear, &error) == MOEPACK_OK;
    if (done) {
        *out = (figures){.linear = imbalance(linear, block, rows, false, per_rank),
                         .balanced = imbalance(placement, block, rows, false, per_rank),
                         .divided = imbalance(placement, block, rows, true, per_rank)};
        for (uint32_t e = 0; e < b.experts; e++) {
            out->rows += rows[e];
            for (uint32_t r = 0; r < ranks; r++)
                out->replicas += moepack_placement_holds(placement, r, block, e) &&
                                 !moepack_placement_computes(placement, r, block, e);
        }
    }
    moepack_placement_free(linear);
    free(per_rank);
    return done;
}

json_t *plan_balance_json(const moepack_pack *pack, const moepack_placement *placement, const plan_loads *loads)
{
    json_t *list = json_array();
    for (uint32_t b = 0; b < loads->blocks; b++) {
        figures f;
        char label[MOEPACK_LABEL_MAX];
        if (loads->rows[b] == NULL || !measure(pack, placement, loads, b, &f)) continue;
        moepack_index_label(moepack_pack_index(pack), b, label);
        json_array_append_new(list,
                              json_pack("{s:o, s:o, s:o, s:f, s:f, s:f}", "layer", cli_json_label(label), "rows",
                                        cli_json_u64(f.rows), "replicas", cli_json_u64(f.replicas), "imbalance_linear",
                                        f.linear, "imbalance", f.balanced, "imbalance_divided", f.divided));
    }
    return list;
}

void plan_balance_print(const moepack_pack *pack, const moepack_placement *placement, const plan_loads *loads)
{
    printf(
        "\nrows of the most loaded rank / mean; divided: where an engine shares an expert's rows among its copies\n");
    printf("%12s  %10s  %8s  %8s  %8s  %8s\n", "layer", "rows", "linear", "balanced", "replicas", "divided");
    for (uint32_t b = 0; b < loads->blocks; b++) {
        figures f;
        char label[MOEPACK_LABEL_MAX];
        if (loads->rows[b] == NULL || !measure(pack, placement, loads, b, &f)) continue;
        moepack_index_label(moepack_pack_index(pack), b, label);
        printf("%12s  %10llu  %8.3f  %8.3f  %8llu  %8.3f\n", label, (unsigned long long)f.rows, f.linear, f.balanced,
               (unsigned long long)f.replicas, f.divided);
    }
}
