/* moepack run: one rank's experts from a container into memory, and a MoE layer computed from them. */
#include "run_io.h"
#include "summary.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

typedef struct run_args {
    cli_common common;
    const char *layer, *input, *output, *device, *placement;
    uint64_t rank, ranks, budget, threads;
    bool rank_given, ranks_given, overwrite;
    unsigned compute, io, check, capacity;
    cli_list policy;
} run_args;

/* In the order of moepack_compute, moepack_io and moepack_check. */
static const char *const compute_names[] = {"bf16", "f32", "int8", NULL};
static const char *const capacity_names[] = {"none", "config", NULL};
static const char *const io_names[] = {"direct", "mmap", NULL};
static const char *const check_names[] = {"none", "load", "full", NULL};

#define AT(field) offsetof(run_args, field)

static const cli_option options[] = {
    {"layer", "L", CLI_TEXT, AT(layer),
     "MoE layer: its number, 'encoder.1' where a model has two stacks, or the prefix of its tensor names", NULL, 0, 0,
     0},
    {"input", "FILE", CLI_TEXT, AT(input),
     "safetensors file with tensor x [T, H], or [S, T, H] for S sequences, BF16 or F32; and token_ids [T] or [S, T], "
     "I32 or I64, where the layer routes by them",
     NULL, 0, 0, 0},
    {"output", "FILE", CLI_TEXT, AT(output),
     "safetensors file to write: y [T, H] F32, s [T, L] F32 (expert sum before norm and up projection), topk_ids [T, "
     "k] I32, topk_weights [T, k] F32; with a capacity kept [T] I32, how many of a token's experts took it",
     NULL, 0, 0, 0},
    {"device", "cpu|cuda:N", CLI_TEXT, AT(device), "where to compute; this build has the CPU (default)", NULL, 0, 0, 0},
    {"ranks", "N", CLI_NUMBER, AT(ranks),
     "number of ranks; with more than one, s is the sum over this rank's experts and y is not written", NULL, 1,
     UINT32_MAX, AT(ranks_given)},
    {"rank", "R", CLI_NUMBER, AT(rank), "this rank, counted from 0", NULL, 0, UINT32_MAX - 1, AT(rank_given)},
    {"placement", "SPEC", CLI_TEXT, AT(placement),
     "linear (default), round-robin, or a JSON file; see 'moepack help plan'", NULL, 0, 0, 0},
    {"budget", "BYTES", CLI_SIZE, AT(budget),
     "bytes of weights this rank may hold: experts are read when tokens select them, and the least recently used gives "
     "way. The dense tensors and top-k experts must fit (else exit code 6)",
     NULL, 1, INT64_MAX, 0},
    {"compute", "bf16|f32|int8", CLI_CHOICE, AT(compute),
     "bf16 (default): inputs of products rounded to BF16, sums F32; f32: no rounding; int8: for many tokens, inputs of "
     "MXFP4 experts as 8-bit integers (error up to 2e-2), all else as bf16",
     compute_names, 0, 0, 0},
    {"capacity", "none|config", CLI_CHOICE, AT(capacity),
     "none (default): every token is computed; config: experts drop tokens as the model's policy says, counted for "
     "each "
     "sequence",
     capacity_names, 0, 0, 0},
    {"policy", "KEY=VALUE", CLI_LIST, AT(policy),
     "override a field of the routing policy for this run; may be repeated", NULL, 0, 0, 0},
    {"threads", "N", CLI_NUMBER, AT(threads),
     "compute threads; default: OMP_NUM_THREADS or all processors. Results do not depend on it. Where the system "
     "refuses to start threads, OpenMP ends the process: 1 needs none",
     NULL, 1, INT_MAX, 0},
    {"io", "direct|mmap", CLI_CHOICE, AT(io),
     "read the weights past the page cache into memory (default), or map the files", io_names, 0, 0, 0},
    {"check", "none|load|full", CLI_CHOICE, AT(check),
     "hashes: not checked, those of the stored bytes while loading (default), or also those of the published bytes",
     check_names, 0, 0, 0},
    {"overwrite", NULL, CLI_FLAG, AT(overwrite), "replace the output file if it exists", NULL, 0, 0, 0},
    {0},
};

static const cli_command command = {
    .name = "run",
    .operands = "PACK --layer L --input FILE --output FILE",
    .operand_count = 1,
    .about = "Loads the experts of one MoE layer that a rank holds, and computes y = MoE(x). The results are "
             "the same bits for every kernel set, number of threads, batch and way of reading. "
             "MOEPACK_KERNELS=scalar|avx2|avxvnni|avx512 in the environment asks for one kernel set.",
    .options = options,
    .example = "  moepack run k3.moepack --layer 17 --input x.safetensors --output y.safetensors\n"
               "  moepack run k3.moepack --layer 17 --input x.safetensors --output y.safetensors --budget 4G\n"
               "  moepack run k3.moepack --layer 17 --input x.safetensors --output s3.safetensors --ranks 16 --rank 3 "
               "--io mmap",
};

/* Everything a run holds; run_close frees what is there. */
typedef struct run_state {
    const run_args *args;
    const char *path;
    moepack_pack *pack;
    moepack_placement *placement;
    moepack_plan *plan;
    moepack_load *load;           /* NULL with --budget */
    moepack_residency *residency; /* with --budget */
    run_input input;
    run_result result;
    uint32_t block, ranks;
    moepack_policy policy;
    const char *kernels_asked, *kernels;
    unsigned threads;
    moepack_load_report loaded;
    moepack_residency_report resident; /* with --budget, of the whole run */
    double compute_seconds;
    cli_talk talk;
    char label[MOEPACK_LABEL_MAX];
} run_state;

/* ------------------------------------------------------------------------------------------------- preparation */

/* What can be refused without opening anything. */
static int check_args(const run_args *args)
{
    const cli_common *common = &args->common;
    if (args->layer == NULL || args->input == NULL || args->output == NULL)
        return cli_misuse(&command, common, "--layer, --input and --output are needed");
    if (args->rank_given && !args->ranks_given) return cli_misuse(&command, common, "--rank needs --ranks");
    if (args->ranks_given && args->ranks > 1 && !args->rank_given)
        return cli_misuse(&command, common, "--ranks needs --rank");
    if (args->ranks_given && args->rank >= args->ranks) {
        return cli_misuse(&command, common, "--rank %llu: there are ranks 0 to %llu", (ull)args->rank,
                          (ull)args->ranks - 1);
    }
    if (strncmp(args->device, "cuda", 4) == 0)
        return cli_failf(common, MOEPACK_E_UNSUPPORTED, "--device %.100s: built without CUDA", args->device);
    if (strcmp(args->device, "cpu") != 0)
        return cli_misuse(&command, common, "--device: '%.100s' is neither cpu nor cuda:N", args->device);
    if (args->capacity != 0 && args->budget > 0)
        return cli_failf(common, MOEPACK_E_UNSUPPORTED, "--capacity config is not counted with --budget");
    return CLI_GO_ON;
}

static moepack_status prepare(run_state *run, moepack_error *error)
{
    const run_args *args = run->args;
    moepack_plan_options plan_options;
    moepack_status status = run_check_apart(args->output, run->path, args->input, error);
    if (status == MOEPACK_OK) status = run_check_output(args->output, args->overwrite, error);
    if (status == MOEPACK_OK) status = run_policy(run->pack, run->block, &args->policy, &run->policy, error);
    if (status == MOEPACK_OK) status = moepack_kernels_name(run->kernels_asked, &run->kernels, error);
    if (status == MOEPACK_OK) status = run_input_open(args->input, run->policy.hidden, &run->input, error);
    if (status == MOEPACK_OK)
        status = run_result_create(run->input.tokens, &run->policy, run->ranks > 1, args->capacity != 0, &run->result,
                                   error);
    if (status == MOEPACK_OK && run->policy.token_ids) status = run_input_token_ids(&run->input, error);
    if (status == MOEPACK_OK)
        status = moepack_placement_create(run->pack, args->placement, run->ranks, &run->placement, error);
    moepack_plan_options_init(&plan_options);
    plan_options.blocks = &run->block;
    plan_options.block_count = 1;
    plan_options.dense = true;
    if (status == MOEPACK_OK)
        status = moepack_plan_create(run->pack, run->placement, (uint32_t)args->rank, &plan_options, &run->plan, error);
    return status;
}

/* ------------------------------------------------------------------------------------------------- work */

static void on_load_progress(void *user, uint64_t done, uint64_t total)
{
    run_state *run = user;
    moepack_progress progress = {.stage = "load", .label = run->label, .done_bytes = done, .total_bytes = total};
    cli_talk_progress(&run->talk, &progress);
}

/* With --budget: the dense tensors, and slots for experts. */
static moepack_status make_residency(run_state *run, moepack_error *error)
{
    moepack_residency_options residency_options;
    moepack_residency_options_init(&residency_options);
    residency_options.blocks = &run->block;
    residency_options.block_count = 1;
    residency_options.budget = run->args->budget;
    residency_options.io = (moepack_io)run->args->io;
    residency_options.check = (moepack_check)run->args->check;
    if (residency_options.io == MOEPACK_IO_MMAP) cli_catch_sigbus(&run->args->common, run->path);
    const double started = cli_seconds();
    moepack_status status = moepack_residency_create(run->pack, run->placement, (uint32_t)run->args->rank,
                                                     &residency_options, &run->residency, error);
    run->loaded.seconds = cli_seconds() - started;
    return status;
}

/* What was read is known at the end. */
static void note_residency(run_state *run)
{
    moepack_residency_report *resident = &run->resident;
    moepack_residency_report_get(run->residency, resident);
    run->loaded.bytes_wanted = moepack_plan_dense_bytes(run->plan) + moepack_plan_expert_bytes(run->plan);
    run->loaded.bytes_read = resident->dense_bytes_read + resident->bytes_read;
    run->loaded.bytes_verified = resident->dense_bytes_verified + resident->bytes_verified;
    run->loaded.io = resident->io;
    memcpy(run->loaded.io_reason, resident->io_reason, sizeof run->loaded.io_reason);
}

static moepack_status load(run_state *run, moepack_error *error)
{
    moepack_load_options load_options;
    if (run->args->budget > 0) return make_residency(run, error);
    moepack_load_options_init(&load_options);
    load_options.io = (moepack_io)run->args->io;
    load_options.check = (moepack_check)run->args->check;
    load_options.progress = on_load_progress;
    load_options.user = run;
    load_options.cancel = &cli_cancelled;
    if (load_options.io == MOEPACK_IO_MMAP) cli_catch_sigbus(&run->args->common, run->path);
    return moepack_load_create(run->pack, run->placement, (uint32_t)run->args->rank, run->plan, &load_options,
                               &run->load, &run->loaded, error);
}

static moepack_status interrupted(moepack_error *error)
{
    *error = (moepack_error){.status = MOEPACK_E_INTERRUPTED, .expert = -1, .offset = -1};
    snprintf(error->message, sizeof error->message, "interrupted");
    return MOEPACK_E_INTERRUPTED;
}

static float *offset_or_null(float *rows, uint64_t count)
{
    return rows != NULL ? rows + count : NULL;
}

/* Tokens of a sequence: the second dimension of x where it has three, else all. */
static uint64_t sequence_length(const run_input *input)
{
    return input->lead_rank == 2 ? input->lead[1] : input->tokens;
}

/* Tokens [first, first + count): whole sequences where a capacity counts them. */
static moepack_status compute_rows(run_state *run, uint64_t first, uint64_t count, void *raw, float *x,
                                   moepack_error *error)
{
    moepack_layer_options layer_options;
    const run_result *r = &run->result;
    moepack_layer_options_init(&layer_options);
    layer_options.compute = (moepack_compute)run->args->compute;
    layer_options.threads = run->threads;
    layer_options.kernels = run->kernels_asked;
    layer_options.policy = run->args->policy.count > 0 ? &run->policy : NULL;
    layer_options.partial = run->ranks > 1;
    layer_options.token_ids = run->input.token_ids != NULL ? run->input.token_ids + first : NULL;
    layer_options.capacity = r->kept != NULL;
    if (r->kept != NULL && count > 0) layer_options.sequences = (size_t)(count / sequence_length(&run->input));
    moepack_layer_output output = {
        .y = offset_or_null(r->y, first * r->hidden),
        .s = r->s + first * r->expert_input,
        .topk_ids = r->topk_ids + first * r->top_k,
        .topk_weights = r->topk_weights + first * r->top_k,
        .kept = r->kept != NULL ? r->kept + first : NULL,
    };
    moepack_status status = run_input_read(&run->input, first, count, raw, x, error);
    double started = cli_seconds();
    if (status == MOEPACK_OK && run->residency != NULL)
        status = moepack_residency_run(run->residency, run->block, x, (size_t)count, &layer_options, &output, error);
    else if (status == MOEPACK_OK)
        status = moepack_layer_run(run->load, run->block, x, (size_t)count, &layer_options, &output, error);
    run->compute_seconds += cli_seconds() - started;
    return status;
}

/* In portions, so that Ctrl-C is noticed between them and memory for inputs stays bounded. Row i of a batch equals a
 * batch of one, so the portions do not show in the result. No tokens are one empty portion, which still checks
 * everything. */
static moepack_status compute(run_state *run, moepack_error *error)
{
    /* 2048 tokens: with top 16 of 896, about 36 rows for each expert, enough to make reading its weights again per
     * portion cheap. A residency takes 256 at a time. */
    const uint64_t row = run->input.hidden * 4, most = run->residency != NULL ? 256 : 2048;
    uint64_t portion = run->input.tokens < most ? run->input.tokens : most;
    const uint64_t sequence = sequence_length(&run->input);
    if (run->result.kept != NULL && sequence > 0)
        portion = portion > sequence ? portion / sequence * sequence : sequence;
    void *raw = malloc((size_t)(portion * row) + 1);
    float *x = malloc((size_t)(portion * row) + sizeof *x);
    moepack_status status = MOEPACK_OK;
    if (raw == NULL || x == NULL) {
        *error = (moepack_error){.status = MOEPACK_E_REFUSED, .expert = -1, .offset = -1};
        snprintf(error->message, sizeof error->message, "not enough memory for %llu tokens", (ull)portion);
        status = MOEPACK_E_REFUSED;
    }
    for (uint64_t first = 0; status == MOEPACK_OK; first += portion) {
        uint64_t left = run->input.tokens - first;
        status = cli_cancelled ? interrupted(error)
                               : compute_rows(run, first, left < portion ? left : portion, raw, x, error);
        if (left <= portion) break;
    }
    free(raw);
    free(x);
    if (status == MOEPACK_OK && cli_cancelled) status = interrupted(error);
    return status;
}

/* ------------------------------------------------------------------------------------------------- report */

/* Pairs of token and expert that the capacity left out. */
static uint64_t dropped(const run_state *run)
{
    uint64_t count = 0;
    for (uint64_t t = 0; run->result.kept != NULL && t < run->result.tokens; t++)
        count += run->result.top_k - (uint64_t)run->result.kept[t];
    return count;
}

/* The capacity in force, as the policy names it. */
static const char *capacity_text(const run_state *run, char buf[120])
{
    const moepack_policy *p = &run->policy;
    if (run->args->capacity == 0 || p->capacity == MOEPACK_CAPACITY_NONE)
        snprintf(buf, 120, "none");
    else if (p->capacity == MOEPACK_CAPACITY_PER_SEQUENCE)
        snprintf(buf, 120, "per_sequence %llu", (ull)p->capacity_tokens);
    else
        snprintf(buf, 120, "factor %g, at least %llu", p->capacity_factor, (ull)p->capacity_min);
    return buf;
}

static json_t *residency_json(const moepack_residency_report *r)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f}", "budget",
                     cli_json_u64(r->budget), "budget_used", cli_json_u64(r->budget_used), "dense_bytes",
                     cli_json_u64(r->dense_bytes), "slots", cli_json_u64(r->slots), "slot_bytes",
                     cli_json_u64(r->slot_bytes), "experts", cli_json_u64(r->experts), "hits", cli_json_u64(r->hits),
                     "misses", cli_json_u64(r->misses), "misses_in_time", cli_json_u64(r->misses_in_time), "evictions",
                     cli_json_u64(r->evictions), "bytes_read", cli_json_u64(r->bytes_read), "bytes_verified",
                     cli_json_u64(r->bytes_verified), "resident_bytes", cli_json_u64(r->resident_bytes), "wait_seconds",
                     r->wait_seconds);
}

static json_t *report_json(const run_state *run)
{
    char text[120];
    const moepack_load_report *loaded = &run->loaded;
    json_t *object =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:s, s:o}", "bytes_wanted", cli_json_u64(loaded->bytes_wanted),
                  "dense_bytes", cli_json_u64(moepack_plan_dense_bytes(run->plan)), "expert_bytes",
                  cli_json_u64(moepack_plan_expert_bytes(run->plan)), "bytes_read", cli_json_u64(loaded->bytes_read),
                  "bytes_verified", cli_json_u64(loaded->bytes_verified), "io", io_names[loaded->io], "io_reason",
                  cli_json_text(loaded->io_reason, strlen(loaded->io_reason)));
    json_t *more =
        json_pack("{s:s, s:I, s:f, s:f, s:o, s:o, s:o, s:I, s:I, s:o, s:s}", "kernels", run->kernels, "threads",
                  (json_int_t)run->threads, "load_seconds", loaded->seconds, "compute_seconds", run->compute_seconds,
                  "tokens", cli_json_u64(run->input.tokens), "layer", cli_json_label(run->label), "experts",
                  cli_json_u64(moepack_plan_experts(run->plan)), "rank", (json_int_t)run->args->rank, "ranks",
                  (json_int_t)run->ranks, "output", cli_json_text(run->args->output, strlen(run->args->output)),
                  "compute", compute_names[run->args->compute]);
    if (object != NULL && more != NULL) json_object_update(object, more);
    json_decref(more);
    if (object != NULL) {
        json_object_set_new(object, "capacity", json_string(capacity_text(run, text)));
        json_object_set_new(object, "dropped", cli_json_u64(dropped(run)));
    }
    if (object != NULL && run->residency != NULL)
        json_object_set_new(object, "residency", residency_json(&run->resident));
    return object;
}

static void print_residency(const moepack_residency_report *r)
{
    char a[CLI_SIZE_TEXT], b[CLI_SIZE_TEXT];
    printf("\n  budget    %s: dense %s, ", cli_size(r->budget, a), cli_size_short(r->dense_bytes, b));
    printf("%llu slots of %s for %llu experts; %s resident", (ull)r->slots, cli_size_short(r->slot_bytes, a),
           (ull)r->experts, cli_size_short(r->resident_bytes, b));
    printf("\n  experts   %llu hits, %llu misses (%llu of them read in time), %llu evictions, %s read, waited %.3f s",
           (ull)r->hits, (ull)r->misses, (ull)r->misses_in_time, (ull)r->evictions, cli_size_short(r->bytes_read, a),
           r->wait_seconds);
}

static void print_report(const run_state *run)
{
    const moepack_load_report *loaded = &run->loaded;
    char a[CLI_SIZE_TEXT], b[CLI_SIZE_TEXT], c[CLI_SIZE_TEXT], text[120];
    printf("layer %s", run->label);
    if (run->ranks > 1) printf(", rank %llu of %u", (ull)run->args->rank, run->ranks);
    printf(": %llu tokens to %s\n", (ull)run->input.tokens, run->args->output);
    printf("  wanted    %s: %llu experts %s, dense %s\n", cli_size(loaded->bytes_wanted, a),
           (ull)moepack_plan_experts(run->plan), cli_size_short(moepack_plan_expert_bytes(run->plan), b),
           cli_size_short(moepack_plan_dense_bytes(run->plan), c));
    printf("  read      %s through %s", cli_size(loaded->bytes_read, a), io_names[loaded->io]);
    if (loaded->io_reason[0] != '\0') printf(" (%s)", loaded->io_reason);
    printf("\n  verified  %s\n", cli_size(loaded->bytes_verified, a));
    printf("  load      %.3f s", loaded->seconds);
    if (run->residency != NULL)
        print_residency(&run->resident);
    else if (loaded->seconds > 0)
        printf(", %s/s", cli_size_short((uint64_t)((double)loaded->bytes_wanted / loaded->seconds), a));
    if (run->result.kept != NULL)
        printf("\n  capacity  %s: %llu of %llu assignments dropped", capacity_text(run, text), (ull)dropped(run),
               (ull)(run->result.tokens * run->result.top_k));
    printf("\n  compute   %.3f s, %s, %s kernels, %u threads\n", run->compute_seconds,
           compute_names[run->args->compute], run->kernels, run->threads);
}

static void run_close(run_state *run)
{
    moepack_load_free(run->load);
    moepack_residency_free(run->residency);
    moepack_plan_free(run->plan);
    moepack_placement_free(run->placement);
    run_result_free(&run->result);
    run_input_close(&run->input);
    moepack_close(run->pack);
}

static int run_all(run_state *run)
{
    moepack_error error = {0};
    const cli_common *common = &run->args->common;
    if (moepack_open(run->path, &run->pack, &error) != MOEPACK_OK) return cli_fail(common, &error);
    run->block = summary_find_block(common, run->pack, run->args->layer);
    if (run->block == MOEPACK_NO_BLOCK) return MOEPACK_E_USAGE;
    moepack_index_label(moepack_pack_index(run->pack), run->block, run->label);

    cli_talk_init(&run->talk, common);
    moepack_status status = prepare(run, &error);
    if (status == MOEPACK_OK) status = load(run, &error);
    cli_talk_end(&run->talk);
    if (status == MOEPACK_OK) status = compute(run, &error);
    if (run->residency != NULL) note_residency(run);
    if (status == MOEPACK_OK)
        status = run_write(run->args->output, run->args->overwrite, &run->input, &run->result, &error);
    if (status != MOEPACK_OK) return cli_fail(common, &error);
    if (common->json) return cli_print_json(common, report_json(run));
    if (!common->quiet) print_report(run);
    return 0;
}

int cmd_run(int argc, char **argv)
{
    run_args args = {.device = "cpu",
                     .placement = "linear",
                     .compute = MOEPACK_COMPUTE_BF16,
                     .io = MOEPACK_IO_DIRECT,
                     .check = MOEPACK_CHECK_ON_LOAD};
    char **operands = NULL;
    int code = cli_parse(&command, argc, argv, &args, &operands);
    if (code == CLI_GO_ON) code = check_args(&args);
    if (code == CLI_GO_ON) {
        const char *kernels = getenv("MOEPACK_KERNELS");
        run_state run = {
            .args = &args,
            .path = operands[0],
            .ranks = args.ranks_given ? (uint32_t)args.ranks : 1,
            .kernels_asked = kernels != NULL && kernels[0] != '\0' ? kernels : NULL,
            .threads = args.threads > 0 ? (unsigned)args.threads : moepack_threads(),
        };
        code = run_all(&run);
        run_close(&run);
    }
    cli_list_free(&args.policy);
    return code;
}
