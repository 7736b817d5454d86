/* moepack route: where a user's tokens go, and what a selection bias does to the load of the experts. */
#include "route.h"
#include "summary.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <omp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

const char *const route_rule_names[] = {"quantile", "sign", NULL};

/* The step size that DeepSeek-V3 was trained with for most of its tokens. */
#define DEFAULT_GAMMA 0.001

#define AT(field) offsetof(route_args, field)

static const cli_option options[] = {
    {"layer", "L", CLI_TEXT, AT(layer),
     "MoE layer: its number, 'encoder.1' where a model has two stacks, or the prefix of its tensor names", NULL, 0, 0,
     0},
    {"input", "FILE", CLI_TEXT, AT(input), "safetensors file with tensor x [T, H] or [S, T, H], BF16 or F32", NULL, 0,
     0, 0},
    {"balance", NULL, CLI_FLAG, AT(balance),
     "also the selection bias after Quantile Balancing on these tokens, beside the sign rule, the checkpoint's bias "
     "and none",
     NULL, 0, 0, 0},
    {"rule", "quantile|sign", CLI_CHOICE, AT(rule),
     "with --balance: the rule that gives bias and load_after; quantile (default) has no step size, sign adds gamma "
     "x sign(mean load - load)",
     route_rule_names, 0, 0, AT(rule_given)},
    {"gamma", "G", CLI_TEXT, AT(gamma_text), "with --balance: step size of the sign rule; default: 0.001", NULL, 0, 0,
     0},
    {"rounds", "N", CLI_NUMBER, AT(rounds), "with --balance: steps of either rule, on the same scores; default: 1",
     NULL, 1, UINT32_MAX, AT(rounds_given)},
    {"policy", "KEY=VALUE", CLI_LIST, AT(policy),
     "override a field of the routing policy for this call; may be repeated", NULL, 0, 0, 0},
    {"ranks", "N", CLI_NUMBER, AT(ranks), "also rows, tokens and bytes of each rank of an expert-parallel group", NULL,
     1, UINT32_MAX, AT(ranks_given)},
    {"placement", "SPEC", CLI_TEXT, AT(placement),
     "with --ranks: linear (default), round-robin, or a JSON file; see 'moepack help plan'", NULL, 0, 0, 0},
    {"write-bias", "FILE", CLI_TEXT, AT(write_bias),
     "with --balance: safetensors file to write: the new bias [E] F32, under the name of the checkpoint's tensor "
     "('bias' where it has none)",
     NULL, 0, 0, 0},
    {"write-trace", "FILE", CLI_TEXT, AT(write_trace),
     "text file to write: one line per token, the experts it selects separated by blanks, as 'moepack bench residency "
     "--trace' reads it",
     NULL, 0, 0, 0},
    {"overwrite", NULL, CLI_FLAG, AT(overwrite), "replace output files that exist", NULL, 0, 0, 0},
    {"threads", "N", CLI_NUMBER, AT(threads), "compute threads; default: OMP_NUM_THREADS or all processors", NULL, 1,
     INT_MAX, 0},
    {0},
};

static const cli_command command = {
    .name = "route",
    .operands = "PACK --layer L --input FILE",
    .operand_count = 1,
    .about = "Counts which experts of one MoE layer the tokens select: rows per expert, how uneven they are, what each "
             "rank gets, and how many of the expert bytes such a batch reads. Only the router's tensors are read. "
             "Quantile Balancing needs k < E and no active groups.",
    .options = options,
    .example = "  moepack route k3.moepack --layer 17 --input x.safetensors --ranks 16\n"
               "  moepack route k3.moepack --layer 17 --input x.safetensors --balance --rounds 4 --write-bias "
               "bias.safetensors",
};

/* Everything a call holds; route_close frees what is there. */
typedef struct route_state {
    const route_args *args;
    const char *path;
    moepack_pack *pack;
    moepack_placement *whole, *placement; /* one rank, for loading; the user's, for counting */
    moepack_plan *plan;
    moepack_load *load;
    run_input input;
    uint32_t block, experts;
    moepack_policy policy;
    const char *kernels;
    unsigned threads;
    int32_t *ids;   /* [T, k] of the last selection */
    double *scores; /* [T, E], with --balance */
    float *bias[BIAS_COUNT];
    route_report report;
    char label[MOEPACK_LABEL_MAX];
} route_state;

static moepack_status fail(moepack_error *error, moepack_status status, const char *fmt, ...) MOEPACK_PRINTF(3, 4);

static moepack_status fail(moepack_error *error, moepack_status status, const char *fmt, ...)
{
    va_list args;
    *error = (moepack_error){.status = status, .expert = -1, .offset = -1};
    va_start(args, fmt);
    vsnprintf(error->message, sizeof error->message, fmt, args);
    va_end(args);
    return status;
}

static moepack_status no_memory(const route_state *route, moepack_error *error)
{
    return fail(error, MOEPACK_E_REFUSED, "not enough memory to route %llu tokens", (ull)route->input.tokens);
}

/* ------------------------------------------------------------------------------------------------- preparation */

static bool read_gamma(const char *text, double *gamma)
{
    char *end = NULL;
    *gamma = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*gamma) && *gamma > 0;
}

/* What can be refused without opening anything. */
static int check_args(route_args *args)
{
    const cli_common *common = &args->common;
    const struct {
        const char *name;
        bool given;
    } balance_only[] = {
        {"rule", args->rule_given},
        {"gamma", args->gamma_text != NULL},
        {"rounds", args->rounds_given},
        {"write-bias", args->write_bias != NULL},
    };
    if (args->layer == NULL || args->input == NULL)
        return cli_misuse(&command, common, "--layer and --input are needed");
    for (size_t i = 0; i < sizeof balance_only / sizeof balance_only[0]; i++) {
        if (balance_only[i].given && !args->balance)
            return cli_misuse(&command, common, "--%s needs --balance", balance_only[i].name);
    }
    if (args->overwrite && args->write_bias == NULL && args->write_trace == NULL)
        return cli_misuse(&command, common, "--overwrite needs --write-bias or --write-trace");
    if (args->write_bias != NULL && args->write_trace != NULL && strcmp(args->write_bias, args->write_trace) == 0)
        return cli_misuse(&command, common, "--write-bias and --write-trace name the same file");
    if (args->placement != NULL && !args->ranks_given) return cli_misuse(&command, common, "--placement needs --ranks");
    if (args->gamma_text != NULL && !read_gamma(args->gamma_text, &args->gamma))
        return cli_misuse(&command, common, "--gamma: '%.100s' is no positive number", args->gamma_text);
    return CLI_GO_ON;
}

/* The formulas speak of the k largest of all experts. */
static moepack_status check_balance(const route_state *route, moepack_error *error)
{
    const moepack_policy *policy = &route->policy;
    if (policy->groups > 1 && policy->groups > policy->groups_kept)
        return fail(error, MOEPACK_E_UNSUPPORTED,
                    "--balance: not defined for a router with %llu groups of which %llu "
                    "are kept",
                    (ull)policy->groups, (ull)policy->groups_kept);
    if (policy->top_k >= route->experts)
        return fail(error, MOEPACK_E_USAGE,
                    "--balance: all %u experts are selected for every token, nothing to balance", route->experts);
    if (route->input.tokens == 0) return fail(error, MOEPACK_E_USAGE, "--balance needs at least one token");
    return MOEPACK_OK;
}

static moepack_status allocate(route_state *route, moepack_error *error)
{
    uint64_t pairs, cells;
    if (__builtin_mul_overflow(route->input.tokens, route->policy.top_k, &pairs) ||
        __builtin_mul_overflow(route->input.tokens, (uint64_t)route->experts, &cells) ||
        pairs > PTRDIFF_MAX / sizeof *route->ids || cells > PTRDIFF_MAX / sizeof *route->scores)
        return no_memory(route, error);
    route->ids = malloc((size_t)pairs * sizeof *route->ids + 1);
    bool ok = route->ids != NULL;
    if (route->args->balance) {
        route->scores = malloc((size_t)cells * sizeof *route->scores + 1);
        ok = ok && route->scores != NULL;
        for (unsigned i = 0; i < BIAS_COUNT; i++) {
            route->bias[i] = calloc(route->experts, sizeof *route->bias[i]);
            ok = ok && route->bias[i] != NULL;
        }
    }
    return ok ? MOEPACK_OK : no_memory(route, error);
}

static moepack_status plan_and_load(route_state *route, moepack_error *error)
{
    moepack_plan_options plan_options;
    moepack_load_options load_options;
    moepack_plan_options_init(&plan_options);
    plan_options.blocks = &route->block;
    plan_options.block_count = 1;
    plan_options.router_only = true;
    moepack_load_options_init(&load_options);
    load_options.cancel = &cli_cancelled;
    moepack_status status = moepack_placement_create(route->pack, "linear", 1, &route->whole, error);
    if (status == MOEPACK_OK)
        status = moepack_plan_create(route->pack, route->whole, 0, &plan_options, &route->plan, error);
    if (status == MOEPACK_OK)
        status = moepack_load_create(route->pack, route->whole, 0, route->plan, &load_options, &route->load,
                                     &route->report.loaded, error);
    return status;
}

static moepack_status prepare(route_state *route, moepack_error *error)
{
    const route_args *args = route->args;
    const char *name = NULL;
    const char *const outputs[] = {args->write_bias, args->write_trace};
    moepack_status status = MOEPACK_OK;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs && status == MOEPACK_OK; i++) {
        if (outputs[i] == NULL) continue;
        status = run_check_apart(outputs[i], route->path, args->input, error);
        if (status == MOEPACK_OK) status = run_check_output(outputs[i], args->overwrite, error);
    }
    if (status == MOEPACK_OK) status = run_policy(route->pack, route->block, &args->policy, &route->policy, error);
    if (status == MOEPACK_OK) status = moepack_kernels_name(route->kernels, &name, error);
    if (status == MOEPACK_OK) status = run_input_open(args->input, route->policy.hidden, &route->input, error);
    if (status == MOEPACK_OK && args->balance) status = check_balance(route, error);
    if (status == MOEPACK_OK && args->ranks_given)
        status = moepack_placement_create(route->pack, args->placement != NULL ? args->placement : "linear",
                                          (uint32_t)args->ranks, &route->placement, error);
    if (status == MOEPACK_OK) status = allocate(route, error);
    if (status == MOEPACK_OK &&
        !route_experts_create(moepack_pack_index(route->pack), route->block, route->placement, &route->report.experts))
        status = no_memory(route, error);
    if (status == MOEPACK_OK) status = plan_and_load(route, error);
    return status;
}

/* ------------------------------------------------------------------------------------------------- routing */

/* Tokens routed together. */
#define PORTION 1024

static moepack_status route_rows(route_state *route, uint64_t first, uint64_t count, const moepack_layer_options *how,
                                 const float *x, float *scores, moepack_error *error)
{
    const moepack_router_output output = {.scores = scores, .topk_ids = route->ids + first * route->policy.top_k};
    moepack_status status = moepack_router_run(route->load, route->block, x, (size_t)count, how, &output, error);
    if (status != MOEPACK_OK || scores == NULL) return status;
    for (uint64_t i = 0; i < count * route->experts; i++) route->scores[first * route->experts + i] = (double)scores[i];
    return MOEPACK_OK;
}

/* Fills ids, and the scores where they are asked for. `bias` NULL: the policy as it is; else the selection is by score
 * + bias. In portions, so that memory for inputs stays bounded and Ctrl-C is noticed between them. No tokens are one
 * empty portion, which still checks everything. */
static moepack_status route_all(route_state *route, const float *bias, bool want_scores, moepack_error *error)
{
    const uint64_t tokens = route->input.tokens, portion = tokens < PORTION ? tokens : PORTION;
    moepack_policy policy = route->policy;
    moepack_layer_options how;
    moepack_layer_options_init(&how);
    how.threads = route->threads;
    how.kernels = route->kernels;
    how.policy = &policy;
    how.router_bias = bias;
    if (bias != NULL) policy.select = MOEPACK_SELECT_BIASED;
    void *raw = malloc((size_t)(portion * route->input.hidden * 4) + 1);
    float *x = malloc((size_t)(portion * route->input.hidden * 4) + sizeof *x);
    float *scores = want_scores ? malloc((size_t)portion * route->experts * sizeof *scores + sizeof *scores) : NULL;
    moepack_status status = MOEPACK_OK;
    if (raw == NULL || x == NULL || (want_scores && scores == NULL)) status = no_memory(route, error);
    for (uint64_t first = 0; status == MOEPACK_OK; first += portion) {
        const uint64_t left = tokens - first, count = left < portion ? left : portion;
        status = cli_cancelled ? fail(error, MOEPACK_E_INTERRUPTED, "interrupted")
                               : run_input_read(&route->input, first, count, raw, x, error);
        if (status == MOEPACK_OK) status = route_rows(route, first, count, &how, x, scores, error);
        if (left <= portion) break;
    }
    free(raw);
    free(x);
    free(scores);
    return status;
}

static moepack_status count(route_state *route, route_load *load, moepack_error *error)
{
    if (route_load_create(&route->report.experts, route->ids, route->input.tokens, route->policy.top_k, load))
        return MOEPACK_OK;
    return no_memory(route, error);
}

/* ------------------------------------------------------------------------------------------------- balancing */

/* `rounds` steps of one rule on a copy of the checkpoint's bias, in float64. */
static moepack_status balance(route_state *route, unsigned rule, double *bias, uint64_t *load, moepack_error *error)
{
    const size_t tokens = (size_t)route->input.tokens;
    const uint32_t experts = route->experts, top_k = (uint32_t)route->policy.top_k;
    moepack_status status = MOEPACK_OK;
    for (uint32_t e = 0; e < experts; e++) bias[e] = (double)route->bias[BIAS_CHECKPOINT][e];
    for (uint64_t round = 0; round < route->args->rounds && status == MOEPACK_OK; round++) {
        if (cli_cancelled) return fail(error, MOEPACK_E_INTERRUPTED, "interrupted");
        if (rule == BIAS_QUANTILE) {
            status = moepack_balance_quantile(route->scores, tokens, experts, top_k, bias, NULL, NULL, error);
        } else {
            status = moepack_balance_load(route->scores, tokens, experts, top_k, bias, load, error);
            if (status == MOEPACK_OK) status = moepack_balance_sign(load, experts, route->args->gamma, bias, error);
        }
    }
    return status;
}

/* Both rules; the results rounded to F32, as a checkpoint stores a bias. */
static moepack_status make_biases(route_state *route, moepack_error *error)
{
    static const unsigned rules[] = {BIAS_QUANTILE, BIAS_SIGN};
    double *bias = calloc(route->experts, sizeof *bias);
    uint64_t *load = calloc(route->experts, sizeof *load);
    moepack_status status = bias != NULL && load != NULL ? MOEPACK_OK : no_memory(route, error);
    for (size_t i = 0; i < 2 && status == MOEPACK_OK; i++) {
        status = balance(route, rules[i], bias, load, error);
        for (uint32_t e = 0; e < route->experts && status == MOEPACK_OK; e++) route->bias[rules[i]][e] = (float)bias[e];
    }
    free(bias);
    free(load);
    return status;
}

/* What each other bias does to these tokens: the selection is the router's own, in F32. */
static moepack_status compare(route_state *route, moepack_error *error)
{
    moepack_status status = make_biases(route, error);
    for (unsigned i = 0; i < BIAS_COUNT && status == MOEPACK_OK; i++) {
        if (i == BIAS_CHECKPOINT) continue;
        status = route_all(route, route->bias[i], false, error);
        if (status == MOEPACK_OK) status = count(route, &route->report.compared[i], error);
    }
    return status;
}

/* The bias of the checkpoint, zeros where its policy selects by the scores alone. */
static moepack_status read_bias(route_state *route, moepack_error *error)
{
    float *bias = route->bias[BIAS_CHECKPOINT];
    bool present = false;
    moepack_status status = moepack_router_bias(route->load, route->block, bias, &present, error);
    if (!present || route->policy.select != MOEPACK_SELECT_BIASED) memset(bias, 0, route->experts * sizeof *bias);
    return status;
}

/* ------------------------------------------------------------------------------------------------- output */

/* Name of the checkpoint's bias tensor, else "bias". NULL without memory. */
static char *bias_name(const route_state *route)
{
    const moepack_index *index = moepack_pack_index(route->pack);
    moepack_block block;
    moepack_index_block(index, route->block, &block);
    for (uint32_t r = 0; r < block.role_count; r++) {
        moepack_role_entry role;
        moepack_tensor tensor;
        moepack_index_role(index, block.first_role + r, &role);
        if (role.role != MOEPACK_ROLE_ROUTER_BIAS) continue;
        moepack_index_tensor(index, role.tensor, &tensor);
        return strndup(tensor.name.data, tensor.name.length);
    }
    return strdup("bias");
}

static moepack_status append_bias(const route_state *route, moepack_safetensors_writer *writer, moepack_error *error)
{
    moepack_status status = MOEPACK_OK;
    for (uint32_t e = 0; e < route->experts && status == MOEPACK_OK; e++) {
        uint32_t bits;
        memcpy(&bits, &route->report.bias[e], sizeof bits);
        const uint8_t bytes[4] = {(uint8_t)bits, (uint8_t)(bits >> 8), (uint8_t)(bits >> 16), (uint8_t)(bits >> 24)};
        status = moepack_safetensors_append(writer, bytes, sizeof bytes, error);
    }
    return status;
}

static moepack_status write_bias(const route_state *route, moepack_error *error)
{
    const route_args *args = route->args;
    const uint64_t dims[1] = {route->experts};
    moepack_safetensors_writer *writer = NULL;
    char *name = bias_name(route);
    if (name == NULL) return no_memory(route, error);
    moepack_status status = moepack_safetensors_create(args->write_bias, args->overwrite, &writer, error);
    if (status == MOEPACK_OK) {
        status = moepack_safetensors_add(writer, name, MOEPACK_DTYPE_F32, 1, dims, error);
        if (status == MOEPACK_OK) status = append_bias(route, writer, error);
        if (status == MOEPACK_OK)
            status = moepack_safetensors_finish(writer, error);
        else
            moepack_safetensors_abort(writer);
    }
    free(name);
    return status;
}

static void route_close(route_state *route)
{
    for (unsigned i = 0; i < BIAS_COUNT; i++) {
        route_load_free(&route->report.compared[i]);
        free(route->bias[i]);
    }
    route_load_free(&route->report.load);
    route_experts_free(&route->report.experts);
    free(route->ids);
    free(route->scores);
    moepack_load_free(route->load);
    moepack_plan_free(route->plan);
    moepack_placement_free(route->whole);
    moepack_placement_free(route->placement);
    run_input_close(&route->input);
    moepack_close(route->pack);
}

static moepack_status work(route_state *route, moepack_error *error)
{
    const route_args *args = route->args;
    moepack_status status = prepare(route, error);
    if (status == MOEPACK_OK) status = route_all(route, NULL, args->balance, error);
    if (status == MOEPACK_OK) status = count(route, &route->report.load, error);
    if (status == MOEPACK_OK && args->write_trace != NULL)
        status = route_trace_write(args->write_trace, args->overwrite, route->ids, route->input.tokens,
                                   route->policy.top_k, error);
    if (status != MOEPACK_OK || !args->balance) return status;
    status = count(route, &route->report.compared[BIAS_CHECKPOINT], error);
    if (status != MOEPACK_OK) return status;
    route->report.bias = route->bias[route->report.chosen];
    status = read_bias(route, error);
    if (status == MOEPACK_OK) status = compare(route, error);
    if (status == MOEPACK_OK && args->write_bias != NULL) status = write_bias(route, error);
    return status;
}

static int route_layer(route_state *route)
{
    moepack_error error = {0};
    moepack_block block;
    const cli_common *common = &route->args->common;
    if (moepack_open(route->path, &route->pack, &error) != MOEPACK_OK) return cli_fail(common, &error);
    route->block = summary_find_block(common, route->pack, route->args->layer);
    if (route->block == MOEPACK_NO_BLOCK) return MOEPACK_E_USAGE;
    moepack_index_label(moepack_pack_index(route->pack), route->block, route->label);
    moepack_index_block(moepack_pack_index(route->pack), route->block, &block);
    route->experts = block.experts;

    route->report.args = route->args;
    route->report.label = route->label;
    route->report.chosen = route->args->rule == RULE_QUANTILE ? BIAS_QUANTILE : BIAS_SIGN;
    if (work(route, &error) != MOEPACK_OK) return cli_fail(common, &error);
    route->report.tokens = route->input.tokens;
    route->report.top_k = route->policy.top_k;
    if (common->json) return cli_print_json(common, route_report_json(&route->report));
    route_report_print(&route->report);
    return 0;
}

int cmd_route(int argc, char **argv)
{
    route_args args = {.rule = RULE_QUANTILE, .rounds = 1, .gamma = DEFAULT_GAMMA};
    char **operands = NULL;
    int code = cli_parse(&command, argc, argv, &args, &operands);
    if (code == CLI_GO_ON) code = check_args(&args);
    if (code == CLI_GO_ON) {
        const char *kernels = getenv("MOEPACK_KERNELS");
        route_state route = {
            .args = &args,
            .path = operands[0],
            .kernels = kernels != NULL && kernels[0] != '\0' ? kernels : NULL,
            .threads = args.threads > 0 ? (unsigned)args.threads : moepack_threads(),
        };
        omp_set_num_threads((int)route.threads); /* for the balancing, which takes the default */
        code = route_layer(&route);
        route_close(&route);
    }
    cli_list_free(&args.policy);
    return code;
}
