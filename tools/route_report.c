/* The report of moepack route, as text and as JSON. */
#include "route.h"

#include <math.h>
#include <string.h>

typedef unsigned long long ull;

static const char *const bias_names[BIAS_COUNT] = {"none", "checkpoint", "quantile", "sign"};

/* ------------------------------------------------------------------------------------------------- JSON */

/* Ratios of nothing are null. */
static json_t *ratio(const route_load *load, double value)
{
    return load->rows > 0 ? json_real(value) : json_null();
}

static json_t *counts_json(const route_load *load, uint32_t experts)
{
    json_t *list = json_array();
    for (uint32_t e = 0; e < experts; e++) json_array_append_new(list, cli_json_u64(load->load[e]));
    return list;
}

static json_t *ranks_json(const route_load *load, uint32_t ranks)
{
    json_t *list = json_array();
    for (uint32_t r = 0; r < ranks; r++) {
        const route_rank *rank = &load->ranks[r];
        json_array_append_new(list,
                              json_pack("{s:I, s:o, s:o, s:o, s:o}", "rank", (json_int_t)r, "experts",
                                        cli_json_u64(rank->experts), "rows", cli_json_u64(rank->rows), "tokens",
                                        cli_json_u64(rank->tokens), "read_bytes", cli_json_u64(rank->read_bytes)));
    }
    return list;
}

/* The keys of one selection; `suffix` is "" or "_after". */
static void add_load(json_t *object, const route_report *report, const route_load *load, const char *suffix)
{
    const struct {
        const char *key;
        json_t *value;
    } entries[] = {
        {"load", counts_json(load, report->experts.experts)},
        {"imbalance", ratio(load, load->imbalance)},
        {"variation", ratio(load, load->variation)},
        {"entropy", ratio(load, load->entropy)},
        {"idle_experts", cli_json_u64(load->idle)},
        {"read_bytes", cli_json_u64(load->active_bytes)},
        {"ranks", load->ranks != NULL ? ranks_json(load, report->experts.ranks) : NULL},
        {"rank_imbalance", load->ranks != NULL ? ratio(load, load->rank_imbalance) : NULL},
    };
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s%s", entries[i].key, suffix);
        if (entries[i].value != NULL) json_object_set_new(object, key, entries[i].value);
    }
}

static void add_balance(json_t *object, const route_report *report)
{
    json_t *bias = json_array(), *compared = json_array();
    for (uint32_t e = 0; e < report->experts.experts; e++)
        json_array_append_new(bias, json_real((double)report->bias[e]));
    for (unsigned i = 0; i < BIAS_COUNT; i++) {
        const route_load *load = &report->compared[i];
        json_array_append_new(compared, json_pack("{s:s, s:o, s:o, s:o, s:o}", "bias", bias_names[i], "imbalance",
                                                  ratio(load, load->imbalance), "variation",
                                                  ratio(load, load->variation), "entropy", ratio(load, load->entropy),
                                                  "idle_experts", cli_json_u64(load->idle)));
    }
    json_object_set_new(object, "bias", bias);
    json_object_set_new(object, "compared", compared);
    json_object_set_new(object, "rule", json_string(route_rule_names[report->args->rule]));
    json_object_set_new(object, "rounds", cli_json_u64(report->args->rounds));
    json_object_set_new(object, "gamma", json_real(report->args->gamma));
    add_load(object, report, &report->compared[report->chosen], "_after");
    if (report->args->write_bias != NULL)
        json_object_set_new(object, "output",
                            cli_json_text(report->args->write_bias, strlen(report->args->write_bias)));
}

json_t *route_report_json(const route_report *report)
{
    const route_load *load = &report->load;
    json_t *object = json_pack(
        "{s:o, s:o, s:I, s:o, s:o, s:o, s:f, s:o, s:o}", "layer", cli_json_label(report->label), "tokens",
        cli_json_u64(report->tokens), "experts", (json_int_t)report->experts.experts, "top_k",
        cli_json_u64(report->top_k), "expert_bytes", cli_json_u64(report->experts.total_bytes), "read_absent",
        cli_json_u64(load->active_absent), "entropy_max", log2((double)report->experts.experts), "bytes_wanted",
        cli_json_u64(report->loaded.bytes_wanted), "bytes_read", cli_json_u64(report->loaded.bytes_read));
    if (object == NULL) return NULL;
    json_object_set_new(object, "read_share",
                        report->experts.total_bytes > 0
                            ? json_real((double)load->active_bytes / (double)report->experts.total_bytes)
                            : json_null());
    add_load(object, report, load, "");
    if (report->args->balance) add_balance(object, report);
    return object;
}

/* ------------------------------------------------------------------------------------------------- text */

static void print_figures(const route_report *report)
{
    const route_load *load = &report->load;
    const uint32_t experts = report->experts.experts;
    char a[CLI_SIZE_TEXT], b[CLI_SIZE_TEXT];
    printf("layer %s: %llu tokens, top %llu of %u experts\n", report->label, (ull)report->tokens, (ull)report->top_k,
           experts);
    printf("  rows       %llu: %llu to %llu per expert, most for expert %u; %llu idle\n", (ull)load->rows,
           (ull)load->smallest, (ull)load->largest, load->busiest, (ull)load->idle);
    if (load->rows > 0)
        printf("  imbalance  %.3f (max / mean), coefficient of variation %.3f, entropy %.3f of %.3f bits\n",
               load->imbalance, load->variation, load->entropy, log2((double)experts));
    printf("  bytes      this batch reads %llu of %u experts: %s of %s", (ull)(experts - load->idle), experts,
           cli_size_short(load->active_bytes, a), cli_size_short(report->experts.total_bytes, b));
    if (report->experts.total_bytes > 0)
        printf(" (%.1f %%)", 100.0 * (double)load->active_bytes / (double)report->experts.total_bytes);
    if (load->active_absent > 0) printf("; %llu of them are not in this container", (ull)load->active_absent);
    putchar('\n');
}

static void print_ranks(const route_report *report)
{
    const route_load *load = &report->load, *after = report->args->balance ? &report->compared[report->chosen] : NULL;
    char a[CLI_SIZE_TEXT];
    if (load->ranks == NULL) return;
    printf("\n%6s  %8s  %10s  %10s  %12s%s\n", "rank", "experts", "rows", "tokens", "reads",
           after != NULL ? "  rows after  tokens after" : "");
    for (uint32_t r = 0; r < report->experts.ranks; r++) {
        const route_rank *rank = &load->ranks[r];
        printf("%6u  %8llu  %10llu  %10llu  %12s", r, (ull)rank->experts, (ull)rank->rows, (ull)rank->tokens,
               cli_size_short(rank->read_bytes, a));
        if (after != NULL) printf("  %10llu  %12llu", (ull)after->ranks[r].rows, (ull)after->ranks[r].tokens);
        putchar('\n');
    }
    if (load->rows == 0) return;
    printf("imbalance of ranks %.3f (largest / mean, in rows)", load->rank_imbalance);
    if (after != NULL) printf(", after %.3f", after->rank_imbalance);
    putchar('\n');
}

static void print_compared(const route_report *report)
{
    const route_args *args = report->args;
    if (!args->balance) return;
    printf("\n%-30s  %9s  %9s  %8s  %5s\n", "selection bias", "imbalance", "variation", "entropy", "idle");
    for (unsigned i = 0; i < BIAS_COUNT; i++) {
        const route_load *load = &report->compared[i];
        char name[64];
        if (i == BIAS_QUANTILE)
            snprintf(name, sizeof name, "quantile, rounds %llu", (ull)args->rounds);
        else if (i == BIAS_SIGN)
            snprintf(name, sizeof name, "sign, rounds %llu, gamma %g", (ull)args->rounds, args->gamma);
        else
            snprintf(name, sizeof name, "%s", bias_names[i]);
        printf("%-30s  %9.3f  %9.3f  %8.3f  %5llu%s\n", name, load->imbalance, load->variation, load->entropy,
               (ull)load->idle, i == report->chosen ? "  <-" : "");
    }
    if (args->write_bias != NULL) printf("bias written to %s\n", args->write_bias);
}

/* Sixteen experts a line, or eight with what they get afterwards. */
static void print_counts(const route_report *report)
{
    const route_load *after = report->args->balance ? &report->compared[report->chosen] : NULL;
    const uint32_t per_line = after != NULL ? 8 : 16;
    printf("\nrows per expert%s\n", after != NULL ? ", before>after" : "");
    for (uint32_t e = 0; e < report->experts.experts; e++) {
        if (e % per_line == 0) printf("%s%6u:", e > 0 ? "\n" : "", e);
        char text[48];
        if (after != NULL)
            snprintf(text, sizeof text, "%llu>%llu", (ull)report->load.load[e], (ull)after->load[e]);
        else
            snprintf(text, sizeof text, "%llu", (ull)report->load.load[e]);
        printf(" %*s", after != NULL ? 13 : 6, text);
    }
    putchar('\n');
}

void route_report_print(const route_report *report)
{
    print_figures(report);
    print_ranks(report);
    print_compared(report);
    print_counts(report);
}
