/* The public call: checks, plan, pipeline, publication. */
#include "moepack/convert.h"

#include "error.h"
#include "io/io.h"
#include "io/pack.h"
#include "pipeline.h"
#include "publish.h"
#include "quantize.h"
#include "verify.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Files open beside the shards: sources, one per job, and what the caller and the C library have open. */
#define OTHER_FILES 64

void moepack_convert_options_init(moepack_convert_options *options)
{
    *options = (moepack_convert_options){.size = sizeof *options,
                                         .shard_by = MOEPACK_SHARD_BY_EXPERT,
                                         .shard_size = MPK_SHARD_SIZE_DEFAULT,
                                         .layout = MOEPACK_LAYOUT_PANEL,
                                         .codec = MOEPACK_CODEC_RAW};
}

typedef struct conversion {
    moepack_convert_options options;
    mpk_source_options selection;
    mpk_source *source;
    mpk_plan plan;
    mpk_publish publish;
    mpk_meter meter;
    unsigned jobs;
    moepack_convert_report *report;
} conversion;

static moepack_status check_options(moepack_convert_options *options, moepack_error *error)
{
    if (options->size != sizeof *options) return mpk_fail(error, MOEPACK_E_USAGE, "options of another version");
    if (options->layout != MOEPACK_LAYOUT_CANONICAL && options->layout != MOEPACK_LAYOUT_PANEL)
        return mpk_fail(error, MOEPACK_E_USAGE, "unknown layout %d", (int)options->layout);
    if (options->codec != MOEPACK_CODEC_RAW)
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "codec %d is not available in this version", (int)options->codec);
    if (!options->policy && options->policy_count > 0)
        return mpk_fail(error, MOEPACK_E_USAGE, "%zu policy overrides are announced, but none given",
                        options->policy_count);
    if (options->shard_size == 0) options->shard_size = MPK_SHARD_SIZE_DEFAULT;
    return MOEPACK_OK;
}

/* ---- replacing an existing output ---- */

static bool same_text(moepack_str text, const char *name)
{
    return text.length == strlen(name) && memcmp(text.data, name, text.length) == 0;
}

/* The index and the shards it names. */
static bool is_part(const mpk_pack *old, const char *name)
{
    if (strcmp(name, "index.mpk") == 0) return true;
    const moepack_index *index = mpk_pack_index(old);
    for (uint32_t i = 0; i < moepack_index_shards(index); i++) {
        moepack_shard shard;
        moepack_index_shard(index, i, &shard);
        if (same_text(shard.name, name)) return true;
    }
    return false;
}

/* What an entry that would have to be removed is not; NULL: a file of the container. */
static const char *foreign(const mpk_pack *old, const char *dir, const char *name)
{
    if (!is_part(old, name)) return "no part of the container";
    char *path = mpk_path_join(dir, name);
    bool folder = !path || mpk_path_is_dir(path);
    free(path);
    return folder ? "no file" : NULL;
}

/* Only an empty directory, or one that holds the files of one container alone, is ours to replace. */
static moepack_status container_replaceable(void *user, const char *dir, moepack_error *error)
{
    (void)user;
    moepack_error why = {.offset = -1, .expert = -1};
    mpk_pack *old = NULL;
    DIR *list = opendir(dir);
    if (!list) return mpk_fail_errno(error, MOEPACK_E_IO, errno, "cannot read the directory");
    moepack_status status = MOEPACK_OK;
    for (const struct dirent *entry; status == MOEPACK_OK && (entry = readdir(list));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (!old && mpk_pack_open(dir, &old, &why) != MOEPACK_OK) {
            status = mpk_fail(error, MOEPACK_E_REFUSED, "not replaced: it holds '%.64s' and is no container (%.200s)",
                              entry->d_name, why.message);
            break;
        }
        const char *what = foreign(old, dir, entry->d_name);
        if (what)
            status =
                mpk_fail(error, MOEPACK_E_REFUSED, "not replaced: it holds '%.200s', which is %s", entry->d_name, what);
    }
    closedir(list);
    mpk_pack_close(old);
    return status;
}

/* ---- before the first byte ---- */

static moepack_status make_plan(conversion *c, moepack_error *error)
{
    uint32_t tensors = c->source->tensor_count;
    uint8_t *kept = malloc(tensors ? tensors : 1);
    if (!kept) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (uint32_t i = 0; i < tensors; i++) kept[i] = mpk_source_tensor_kept(c->source, &c->selection, i);
    mpk_plan_options options = {.kept = kept,
                                .shard_by = c->options.shard_by,
                                .shard_size = c->options.shard_size,
                                .layout = c->options.layout,
                                .codec = c->options.codec};
    moepack_status status = mpk_plan_make(c->source, &options, &c->plan, error);
    free(kept);
    if (status != MOEPACK_OK) return status;
    c->jobs = mpk_jobs_choose(c->options.jobs, c->plan.piece_count);
    moepack_convert_report *report = c->report;
    report->source_bytes = c->plan.source_bytes;
    report->written_bytes = c->plan.written_bytes;
    report->needed_disk_bytes = c->plan.needed_bytes;
    report->experts = c->plan.record_count;
    report->tensors = c->plan.tables.info.source_tensors;
    report->shards = c->plan.tables.shard_count;
    report->peak_memory_bytes = mpk_plan_memory(&c->plan, c->source, c->jobs);
    return MOEPACK_OK;
}

static moepack_status check_open_files(const conversion *c, moepack_error *error)
{
    struct rlimit limit;
    uint64_t needed = (uint64_t)c->plan.tables.shard_count + c->jobs + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || needed <= limit.rlim_cur)
        return MOEPACK_OK;
    return mpk_fail(error, MOEPACK_E_REFUSED,
                    "%zu shards need %llu open files, the limit is %llu: choose a larger shard size or raise the limit",
                    c->plan.tables.shard_count, (unsigned long long)needed, (unsigned long long)limit.rlim_cur);
}

static moepack_status prepare(conversion *c, const char *src, const char *out, moepack_error *error)
{
    moepack_status status =
        mpk_publish_init(&c->publish, out, src, c->options.overwrite, container_replaceable, NULL, error);
    if (status == MOEPACK_OK) {
        mpk_meter_stage(&c->meter, "read headers", 0);
        status = mpk_source_open(src, &c->selection, &c->source, error);
    }
    if (status == MOEPACK_OK && c->options.quantize_mxfp4)
        status = mpk_source_quantize(c->source, c->options.force_requantize, error);
    if (status == MOEPACK_OK) status = make_plan(c, error);
    if (status == MOEPACK_OK) status = check_open_files(c, error);
    if (status != MOEPACK_OK) return status;
    status = mpk_publish_space(c->publish.out, c->plan.needed_bytes, &c->report->available_disk_bytes, error);
    /* A dry run reports both figures and leaves the judgement to the reader. */
    return status == MOEPACK_E_REFUSED && c->options.dry_run ? MOEPACK_OK : status;
}

/* ---- the work ---- */

static moepack_status verify_partial(conversion *c, moepack_error *error)
{
    moepack_verify_options options;
    moepack_verify_report report;
    moepack_verify_options_init(&options);
    options.jobs = c->options.jobs;
    options.callbacks = c->options.callbacks;
    moepack_status status = mpk_verify_dir(c->publish.partial, &options, &report, error);
    if (c->report->io_reason[0] == '\0') memcpy(c->report->io_reason, report.io_reason, sizeof c->report->io_reason);
    return status;
}

static moepack_status execute(conversion *c, moepack_error *error)
{
    moepack_status status = mpk_publish_begin(&c->publish, error);
    mpk_pipeline pipeline = {.source = c->source,
                             .plan = &c->plan,
                             .dir = c->publish.partial,
                             .jobs = c->jobs,
                             .allow_nan_scales = c->options.allow_nan_scales,
                             .callbacks = &c->options.callbacks,
                             .meter = &c->meter,
                             .report = c->report};
    if (status == MOEPACK_OK) status = mpk_pipeline_run(&pipeline, &c->report->root_hash, error);
    if (status == MOEPACK_OK) c->report->canonical_root = c->plan.tables.info.canonical_root;
    if (status == MOEPACK_OK && c->options.verify) status = verify_partial(c, error);
    if (status == MOEPACK_OK && mpk_cancelled(&c->options.callbacks))
        status = mpk_fail(error, MOEPACK_E_INTERRUPTED, "interrupted");
    return status == MOEPACK_OK ? mpk_publish_end(&c->publish, &c->meter, error) : status;
}

moepack_status moepack_convert(const char *src, const char *out, const moepack_convert_options *options,
                               moepack_convert_report *report, moepack_error *error)
{
    moepack_convert_report unused;
    conversion c = {.report = report ? report : &unused, .publish = {.fd = -1}};
    *c.report = (moepack_convert_report){0};
    double start = mpk_seconds();
    if (options)
        c.options = *options;
    else
        moepack_convert_options_init(&c.options);
    if (!src || !out) return mpk_fail(error, MOEPACK_E_USAGE, "source and output are needed");
    if (src[0] == '\0') return mpk_fail(error, MOEPACK_E_USAGE, "the source's name is empty");
    if (out[0] == '\0') return mpk_fail(error, MOEPACK_E_USAGE, "the output's name is empty");
    moepack_status status = check_options(&c.options, error);
    if (status != MOEPACK_OK) return status;
    c.selection = (mpk_source_options){.layers = c.options.layers,
                                       .experts = c.options.experts,
                                       .moe_only = c.options.moe_only,
                                       .policy = c.options.policy,
                                       .policy_count = c.options.policy_count,
                                       .callbacks = &c.options.callbacks};
    mpk_meter_init(&c.meter, &c.options.callbacks);
    status = prepare(&c, src, out, error);
    if (status == MOEPACK_OK && !c.options.dry_run) status = execute(&c, error);
    c.report->warnings = c.meter.warnings + (c.source ? c.source->warnings : 0);
    c.report->seconds = mpk_seconds() - start;
    mpk_publish_free(&c.publish);
    mpk_plan_free(&c.plan);
    mpk_source_close(c.source);
    mpk_meter_free(&c.meter);
    return status;
}
