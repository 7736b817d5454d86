/* moepack plan: which bytes each rank will read. */
#include "plan_balance.h"
#include "summary.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

typedef struct plan_args {
    cli_common common;
    uint64_t rank, ranks, budget;
    bool rank_given, ranks_given;
    const char *placement, *trace, *write_placement;
    plan_loads loads; /* with --placement balance */
} plan_args;

#define AT(field) offsetof(plan_args, field)

/* Ranks that one report lists: each is a line, or a JSON object with its reads. No cluster comes near. */
enum {
    LISTED_RANKS = 4096
};

static const cli_option options[] = {
    {"ranks", "N", CLI_NUMBER, AT(ranks), "number of ranks", NULL, 1, UINT32_MAX, AT(ranks_given)},
    {"rank", "R", CLI_NUMBER, AT(rank),
     "only rank R, counted from 0, with its reads; default: a table of all, at most 4096", NULL, 0, UINT32_MAX - 1,
     AT(rank_given)},
    {"placement", "SPEC", CLI_TEXT, AT(placement),
     "linear (default: contiguous ranges), round-robin, or a JSON file {\"ranks\": N, \"layers\": {\"*\" or label: "
     "[[rank, ...] per expert]}}; balance: by measured load, see --trace",
     NULL, 0, 0, 0},
    {"trace", "FILE", CLI_TEXT, AT(trace),
     "for balance: reports of `moepack route --json`, one after the other; several of one layer add up", NULL, 0, 0, 0},
    {"write-placement", "FILE", CLI_TEXT, AT(write_placement), "also write the placement as a JSON file, a new one",
     NULL, 0, 0, 0},
    {"budget", "BYTES", CLI_SIZE, AT(budget),
     "bytes a rank may hold; more is refused (exit code 6). With balance, what is left is used for replicas", NULL, 1,
     INT64_MAX, 0},
    {0},
};

static const cli_command command = {
    .name = "plan",
    .operands = "PACK",
    .operand_count = 1,
    .about = "Prints, from the index alone, what each rank of an expert-parallel group reads: its own experts, "
             "and the tensors of the MoE layers that every rank needs (router, latent projections, shared "
             "experts). Nothing is read from the shards.",
    .options = options,
    .example = "  moepack plan k3.moepack --ranks 16\n"
               "  moepack plan k3.moepack --ranks 16 --rank 3 --placement eplb.json --json\n"
               "  moepack route k3.moepack --layer 1 --input x.safetensors --json >> load.json\n"
               "  moepack plan k3.moepack --ranks 16 --placement balance --trace load.json --write-placement p.json",
};

/* One rank's line; reads only where they are shown. */
typedef struct rank_plan {
    uint64_t experts, expert_bytes, dense_bytes, reads;
    json_t *read_list;
} rank_plan;

static uint64_t rank_bytes(const rank_plan *plan)
{
    return plan->expert_bytes + plan->dense_bytes;
}

static json_t *reads_json(const moepack_index *index, const moepack_plan *plan)
{
    json_t *reads = json_array();
    size_t count = moepack_plan_reads(plan);
    for (size_t i = 0; i < count; i++) {
        moepack_read read;
        moepack_shard shard;
        moepack_plan_read(plan, i, &read);
        moepack_index_shard(index, read.shard, &shard);
        json_array_append_new(reads, json_pack("{s:o, s:o, s:o}", "file", cli_json_str(shard.name), "offset",
                                               cli_json_u64(read.offset), "length", cli_json_u64(read.length)));
    }
    return reads;
}

static void print_reads(const moepack_index *index, const moepack_plan *plan)
{
    size_t count = moepack_plan_reads(plan);
    printf("\n%16s  %14s  %s\n", "offset", "length", "file");
    for (size_t i = 0; i < count; i++) {
        moepack_read read;
        moepack_shard shard;
        moepack_plan_read(plan, i, &read);
        moepack_index_shard(index, read.shard, &shard);
        printf("%16llu  %14llu  ", (ull)read.offset, (ull)read.length);
        cli_put_str(stdout, shard.name);
        putchar('\n');
    }
}

static bool shown(const plan_args *args, uint32_t rank)
{
    return !args->rank_given || args->rank == rank;
}

static void print_rank(uint32_t rank, const rank_plan *plan)
{
    char experts[CLI_SIZE_TEXT], dense[CLI_SIZE_TEXT], total[CLI_SIZE_TEXT];
    printf("%6u  %9llu  %12s  %12s  %-26s %8llu\n", rank, (ull)plan->experts,
           cli_size_short(plan->expert_bytes, experts), cli_size_short(plan->dense_bytes, dense),
           cli_size(rank_bytes(plan), total), (ull)plan->reads);
}

static json_t *rank_json(uint32_t rank, const rank_plan *plan)
{
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o}", "rank", (json_int_t)rank, "experts", cli_json_u64(plan->experts),
                     "bytes_wanted", cli_json_u64(rank_bytes(plan)), "expert_bytes", cli_json_u64(plan->expert_bytes),
                     "dense_bytes", cli_json_u64(plan->dense_bytes), "reads", plan->read_list);
}

/* Running totals over the ranks, for the imbalance; not known, and why, when a rank that was not asked about cannot be
 * planned (a subset), or there are too many. */
typedef struct totals {
    double sum, max, dense; /* dense: what every rank reads, whatever experts it has */
    const char *unknown;
} totals;

static double imbalance(const totals *t, uint64_t ranks)
{
    return t->sum > 0 ? t->max * (double)ranks / t->sum : 1;
}

/* Plans one rank, adds it to the totals and to the report. */
static moepack_status plan_rank(const plan_args *args, const moepack_pack *pack, const moepack_placement *placement,
                                uint32_t rank, totals *sums, json_t *list, moepack_error *error)
{
    moepack_plan_options plan_options;
    moepack_plan *plan = NULL;
    rank_plan line = {0};
    moepack_plan_options_init(&plan_options);
    plan_options.dense = true;
    /* --rank asks about that rank alone; the others only count for the imbalance. */
    plan_options.budget = shown(args, rank) ? args->budget : 0;
    moepack_status status = moepack_plan_create(pack, placement, rank, &plan_options, &plan, error);
    if (status == MOEPACK_E_INCOMPLETE && !shown(args, rank)) {
        sums->unknown = "the container lacks experts of other ranks";
        return MOEPACK_OK;
    }
    if (status != MOEPACK_OK) return status;
    const moepack_index *index = moepack_pack_index(pack);
    line.experts = moepack_plan_experts(plan);
    line.expert_bytes = moepack_plan_expert_bytes(plan);
    line.dense_bytes = moepack_plan_dense_bytes(plan);
    line.reads = moepack_plan_reads(plan);
    sums->sum += (double)rank_bytes(&line);
    if ((double)rank_bytes(&line) > sums->max) sums->max = (double)rank_bytes(&line);
    sums->dense = (double)line.dense_bytes;
    if (shown(args, rank) && args->common.json) {
        line.read_list = reads_json(index, plan);
        json_array_append_new(list, rank_json(rank, &line));
    } else if (shown(args, rank)) {
        print_rank(rank, &line);
        if (args->rank_given) print_reads(index, plan);
    }
    moepack_plan_free(plan);
    return MOEPACK_OK;
}

/* Ranks that may hold an expert: both rules leave those from the largest expert count on empty. A file may use any. */
static uint64_t ranks_with_experts(const plan_args *args, const moepack_index *index)
{
    uint64_t most = 1;
    bool rule = strcmp(args->placement, "linear") == 0 || strcmp(args->placement, "round-robin") == 0;
    if (!rule) return args->ranks;
    for (uint32_t b = 0; b < moepack_index_blocks(index); b++) {
        moepack_block block;
        moepack_index_block(index, b, &block);
        if (block.experts > most) most = block.experts;
    }
    return most < args->ranks ? most : args->ranks;
}

/* Plans the ranks that the report or the imbalance needs, in ascending order. Of the ranks without experts only the one
 * that was asked about is planned; the others read the same dense bytes. */
static moepack_status plan_ranks(const plan_args *args, const moepack_pack *pack, const moepack_placement *placement,
                                 totals *sums, json_t *list, moepack_error *error)
{
    uint64_t end = args->rank_given ? ranks_with_experts(args, moepack_pack_index(pack)) : args->ranks, planned = 0;
    if (end > LISTED_RANKS) {
        sums->unknown = "that needs a plan of every rank, and there are too many";
        end = 0;
    }
    moepack_status status = MOEPACK_OK;
    for (uint64_t rank = 0; rank < end && status == MOEPACK_OK; rank++, planned++) {
        status = plan_rank(args, pack, placement, (uint32_t)rank, sums, list, error);
        if (cli_cancelled && status == MOEPACK_OK) {
            *error = (moepack_error){.status = MOEPACK_E_INTERRUPTED, .expert = -1, .offset = -1};
            snprintf(error->message, sizeof error->message, "interrupted");
            return MOEPACK_E_INTERRUPTED;
        }
    }
    if (status == MOEPACK_OK && args->rank_given && args->rank >= end) {
        status = plan_rank(args, pack, placement, (uint32_t)args->rank, sums, list, error);
        planned++;
    }
    sums->sum += (double)(args->ranks - planned) * sums->dense;
    return status;
}

static int plan_all(const plan_args *args, const moepack_pack *pack, const moepack_placement *placement)
{
    moepack_error error = {0};
    totals sums = {0};
    json_t *list = json_array();
    if (!args->common.json)
        printf("%6s  %9s  %12s  %12s  %-26s %8s\n", "rank", "experts", "expert bytes", "dense bytes", "bytes wanted",
               "reads");
    moepack_status status = plan_ranks(args, pack, placement, &sums, list, &error);
    if (status != MOEPACK_OK) {
        json_decref(list);
        return cli_fail(&args->common, &error);
    }
    json_t *ratio = sums.unknown != NULL ? json_null() : json_real(imbalance(&sums, args->ranks));
    if (args->common.json) {
        json_t *report = json_pack("{s:o, s:o}", "ranks", list, "imbalance", ratio);
        if (args->trace != NULL)
            json_object_set_new(report, "balance", plan_balance_json(pack, placement, &args->loads));
        return cli_print_json(&args->common, report);
    }
    if (sums.unknown != NULL) {
        printf("\nimbalance not known: %s\n", sums.unknown);
    } else {
        printf("\nimbalance %.3f (largest rank / mean, in bytes)\n", imbalance(&sums, args->ranks));
    }
    if (args->trace != NULL) plan_balance_print(pack, placement, &args->loads);
    json_decref(ratio);
    json_decref(list);
    return 0;
}

/* The placement that was asked for, computed or read. Prints its own error. */
static int make_placement(plan_args *args, const moepack_pack *pack, moepack_placement **placement)
{
    moepack_error error = {0};
    if (strcmp(args->placement, "balance") != 0) {
        moepack_status status =
            moepack_placement_create(pack, args->placement, (uint32_t)args->ranks, placement, &error);
        return status == MOEPACK_OK ? 0 : cli_fail(&args->common, &error);
    }
    int code = plan_loads_read(&args->common, pack, args->trace, &args->loads);
    if (code != 0) return code;
    return plan_balance(&args->common, pack, (uint32_t)args->ranks, &args->loads, args->budget, placement);
}

static int plan_pack(plan_args *args, const char *path)
{
    moepack_pack *pack = NULL;
    moepack_placement *placement = NULL;
    moepack_error error = {0};
    if (!args->ranks_given) return cli_misuse(&command, &args->common, "--ranks is needed");
    if (args->rank_given && args->rank >= args->ranks) {
        return cli_misuse(&command, &args->common, "--rank %llu: there are ranks 0 to %llu", (ull)args->rank,
                          (ull)args->ranks - 1);
    }
    if (!args->rank_given && args->ranks > LISTED_RANKS) {
        return cli_misuse(&command, &args->common, "--ranks %llu: at most %d ranks are listed; --rank R asks for one",
                          (ull)args->ranks, LISTED_RANKS);
    }
    if ((strcmp(args->placement, "balance") == 0) != (args->trace != NULL))
        return cli_misuse(&command, &args->common, "--placement balance and --trace go together");
    if (args->trace != NULL && args->ranks > LISTED_RANKS)
        return cli_misuse(&command, &args->common, "--placement balance: at most %d ranks", LISTED_RANKS);
    if (moepack_open(path, &pack, &error) != MOEPACK_OK) return cli_fail(&args->common, &error);
    int code = make_placement(args, pack, &placement);
    if (code == 0 && args->write_placement != NULL &&
        moepack_placement_write(placement, pack, args->write_placement, &error) != MOEPACK_OK)
        code = cli_fail(&args->common, &error);
    if (code == 0) code = plan_all(args, pack, placement);
    plan_loads_free(&args->loads);
    moepack_placement_free(placement);
    moepack_close(pack);
    return code;
}

int cmd_plan(int argc, char **argv)
{
    plan_args args = {.placement = "linear"};
    char **operands = NULL;
    int code = cli_parse(&command, argc, argv, &args, &operands);
    return code == CLI_GO_ON ? plan_pack(&args, operands[0]) : code;
}
