/* What is checked, in which order, and how findings are reported. */
#include "verify_internal.h"

#include "pipeline_hash.h"
#include "selection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void moepack_verify_options_init(moepack_verify_options *options)
{
    *options = (moepack_verify_options){.size = sizeof *options};
}

/* ---- findings ---- */

/* Copies text into a fixed field; a long one is cut. */
static void set_text(char *to, size_t size, const char *from, size_t length)
{
    if (length >= size) length = size - 1;
    if (length) memcpy(to, from, length);
    to[length] = '\0';
}

void mpk_verify_found(mpk_verify *v, uint32_t shard, const moepack_finding *finding)
{
    uint32_t order = shard == UINT32_MAX ? 0 : shard + 1; /* the index comes first */
    uint64_t *const counters[MPK_VERDICTS] = {&v->report->bad, &v->report->missing, &v->report->unreadable,
                                              &v->report->unsupported};
    unsigned kind = finding->unsupported  ? MPK_FOUND_UNSUPPORTED
                    : finding->missing    ? MPK_FOUND_MISSING
                    : finding->unreadable ? MPK_FOUND_UNREADABLE
                                          : MPK_FOUND_CORRUPT;
    pthread_mutex_lock(&v->lock);
    ++*counters[kind];
    mpk_first *first = &v->first[kind];
    if (!first->any || order < first->shard || (order == first->shard && finding->offset < first->offset))
        *first = (mpk_first){.any = true, .shard = order, .offset = finding->offset, .finding = *finding};
    if (v->options->finding) v->options->finding(v->options->callbacks.user, finding);
    pthread_mutex_unlock(&v->lock);
}

void mpk_verify_count(mpk_verify *v, uint64_t bytes, uint64_t sections)
{
    pthread_mutex_lock(&v->lock);
    v->report->checked_bytes += bytes;
    v->report->checked_sections += sections;
    pthread_mutex_unlock(&v->lock);
}

void mpk_verify_name_shard(const mpk_verify *v, uint32_t shard, moepack_finding *out)
{
    moepack_shard entry;
    *out = (moepack_finding){.expert = -1};
    moepack_index_shard(v->index, shard, &entry);
    set_text(out->file, sizeof out->file, entry.name.data, entry.name.length);
}

void mpk_verify_explain(const moepack_error *error, moepack_finding *out)
{
    out->missing = error->status == MOEPACK_E_INCOMPLETE;
    out->unsupported = error->status == MOEPACK_E_UNSUPPORTED;
    /* Out of memory (REFUSED) is of this kind, too: a failure of this machine. */
    out->unreadable = error->status == MOEPACK_E_IO || error->status == MOEPACK_E_REFUSED;
    snprintf(out->message, sizeof out->message, "%s%.*s", out->unreadable ? "unreadable: " : "",
             (int)sizeof out->message - 16, error->message);
}

void mpk_verify_found_error(mpk_verify *v, uint32_t shard, const char *section, uint64_t offset, uint64_t length,
                            const moepack_error *error)
{
    moepack_finding finding;
    mpk_verify_name_shard(v, shard, &finding);
    set_text(finding.section, sizeof finding.section, section, strlen(section));
    finding.offset = error->offset >= 0 ? (uint64_t)error->offset : offset;
    finding.length = length;
    mpk_verify_explain(error, &finding);
    mpk_verify_found(v, shard, &finding);
}

void mpk_verify_describe(const mpk_verify *v, const mpk_check *check, moepack_finding *out)
{
    mpk_verify_name_shard(v, check->shard, out);
    out->offset = check->offset;
    out->length = check->length;
    if (check->piece == MPK_NO_PIECE) {
        moepack_source_file file;
        moepack_index_source_file(v->index, check->file, &file);
        set_text(out->section, sizeof out->section, file.name.data, file.name.length);
        return;
    }
    const mpk_index_piece *piece = &v->pieces.piece[check->piece];
    set_text(out->section, sizeof out->section, piece->name, piece->name_length);
    if (piece->block != MOEPACK_NO_BLOCK) moepack_index_label(v->index, piece->block, out->layer);
    if (piece->expert != UINT32_MAX) out->expert = piece->expert;
}

/* ---- the index ---- */

/* A statement about the container, as opposed to failures of this machine or of the call. */
static bool is_verdict(moepack_status status)
{
    return status == MOEPACK_E_CORRUPT || status == MOEPACK_E_INCOMPLETE || status == MOEPACK_E_UNSUPPORTED;
}

/* An index that cannot be used is the one finding there is. */
static moepack_status index_finding(mpk_verify *v, const moepack_error *error)
{
    moepack_finding finding = {.file = "index.mpk", .section = "index", .expert = -1};
    finding.missing = error->status == MOEPACK_E_INCOMPLETE;
    finding.unsupported = error->status == MOEPACK_E_UNSUPPORTED;
    finding.offset = error->offset >= 0 ? (uint64_t)error->offset : 0;
    set_text(finding.message, sizeof finding.message, error->message, strlen(error->message));
    mpk_verify_found(v, UINT32_MAX, &finding);
    return error->status;
}

static moepack_status open_index(mpk_verify *v, moepack_error *error)
{
    moepack_error local = {.offset = -1};
    char *path = mpk_path_join(v->dir, "index.mpk");
    if (!path) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    moepack_status status = mpk_file_read_all(path, SIZE_MAX / 2, &v->index_bytes, &v->index_size, &local);
    free(path);
    if (status == MOEPACK_OK) {
        mpk_verify_count(v, v->index_size, 0);
        status = moepack_index_open(v->index_bytes, v->index_size, "index.mpk", &v->index, &local);
    }
    if (is_verdict(status)) return index_finding(v, &local);
    if (status != MOEPACK_OK) {
        if (error) *error = local;
        return status;
    }
    moepack_index_info(v->index, &v->info);
    return MOEPACK_OK;
}

/* ---- selection ---- */

static moepack_status select_blocks(mpk_verify *v, uint32_t blocks, uint32_t *most_experts, moepack_error *error)
{
    mpk_selection_block *names = calloc((size_t)blocks + 1, sizeof *names);
    v->block_selected = calloc((size_t)blocks + 1, 1);
    v->labels = calloc((size_t)blocks + 1, sizeof *v->labels);
    *most_experts = 0;
    for (uint32_t i = 0; names && v->labels && i < blocks; i++) {
        moepack_block block;
        moepack_index_block(v->index, i, &block);
        moepack_index_label(v->index, i, v->labels[i]);
        names[i] = (mpk_selection_block){.stack = block.stack, .number = block.number};
        if (block.experts > *most_experts) *most_experts = block.experts;
    }
    moepack_status status =
        names && v->labels && v->block_selected
            ? mpk_select_layers_of_part(v->options->layers, names, blocks, v->info.subset, v->block_selected, error)
            : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    free(names);
    return status;
}

static moepack_status select_all(mpk_verify *v, moepack_error *error)
{
    const moepack_verify_options *o = v->options;
    if (o->ranks > 0 && o->rank >= o->ranks)
        return mpk_fail(error, MOEPACK_E_USAGE, "rank %u of %u ranks", o->rank, o->ranks);
    uint32_t most;
    moepack_status status = select_blocks(v, moepack_index_blocks(v->index), &most, error);
    if (status != MOEPACK_OK) return status;
    v->expert_selected = calloc((size_t)most + 1, 1);
    if (!v->expert_selected) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    v->everything = !o->layers && !o->experts && o->ranks == 0;
    return mpk_select_experts(o->experts, most, v->expert_selected, error);
}

/* Linear placement: contiguous ranges of experts, the first E mod ranks of them one longer. */
static bool of_rank(const moepack_verify_options *options, uint32_t experts, uint32_t expert)
{
    if (options->ranks == 0) return true;
    uint32_t each = experts / options->ranks, longer = experts % options->ranks;
    uint64_t first = (uint64_t)options->rank * each + (options->rank < longer ? options->rank : longer);
    uint64_t count = (uint64_t)each + (options->rank < longer);
    return expert >= first && expert - first < count;
}

static bool piece_selected(const mpk_verify *v, const mpk_index_piece *piece)
{
    if (v->everything) return true;
    if (piece->block == MOEPACK_NO_BLOCK || !v->block_selected[piece->block]) return false;
    if (piece->expert == UINT32_MAX) return true;
    moepack_block block;
    moepack_index_block(v->index, piece->block, &block);
    return v->expert_selected[piece->expert] && of_rank(v->options, block.experts, piece->expert);
}

/* ---- the list of checks ---- */

static int check_order(const void *left, const void *right)
{
    const mpk_check *a = left, *b = right;
    if (a->shard != b->shard) return a->shard < b->shard ? -1 : 1;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return a->section < b->section ? -1 : a->section > b->section;
}

static void fill_check(const mpk_verify *v, mpk_check *check, uint64_t section, uint32_t shard, size_t piece,
                       uint32_t file, bool selected)
{
    moepack_section entry;
    moepack_index_section(v->index, section, &entry);
    *check = (mpk_check){.offset = entry.offset,
                         .length = entry.stored_length,
                         .section = section,
                         .piece = piece,
                         .file = file,
                         .shard = shard,
                         .selected = selected};
}

static uint64_t record_end(const mpk_verify *v, const mpk_index_piece *piece)
{
    moepack_block block;
    moepack_record record;
    moepack_index_block(v->index, piece->block, &block);
    moepack_index_record(v->index, block.first_record + piece->expert, &record);
    return record.offset + record.length;
}

/* Where the padding behind check i ends: at the next section, the end of data, or, in a selection, of the record. */
static uint64_t gap_end(const mpk_verify *v, size_t i)
{
    const mpk_check *check = &v->checks[i];
    if (!check->selected || check->length == 0) return 0;
    moepack_shard shard;
    moepack_index_shard(v->index, check->shard, &shard);
    bool last = i + 1 == v->check_count || v->checks[i + 1].shard != check->shard;
    uint64_t end = last ? shard.tail_offset : v->checks[i + 1].offset;
    if (v->everything) return end;
    if (check->piece == MPK_NO_PIECE || v->pieces.piece[check->piece].expert == UINT32_MAX) return 0;
    uint64_t limit = record_end(v, &v->pieces.piece[check->piece]);
    return end < limit ? end : limit;
}

static moepack_status make_checks(mpk_verify *v, moepack_error *error)
{
    moepack_status status = mpk_pieces_open(v->index, &v->pieces, error);
    if (status != MOEPACK_OK) return status;
    uint32_t files = moepack_index_source_files(v->index);
    v->check_count = v->pieces.count + files;
    v->checks = calloc(v->check_count + 1, sizeof *v->checks);
    if (!v->checks) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (size_t i = 0; i < v->pieces.count; i++) {
        const mpk_index_piece *piece = &v->pieces.piece[i];
        fill_check(v, &v->checks[i], piece->section, piece->shard, i, 0, piece_selected(v, piece));
    }
    for (uint32_t i = 0; i < files; i++) {
        moepack_source_file file;
        moepack_index_source_file(v->index, i, &file);
        fill_check(v, &v->checks[v->pieces.count + i], file.section, file.shard, MPK_NO_PIECE, i, v->everything);
    }
    qsort(v->checks, v->check_count, sizeof *v->checks, check_order);
    uint64_t total = 0;
    for (size_t i = 0; i < v->check_count; i++) {
        v->checks[i].gap_end = gap_end(v, i);
        if (v->checks[i].selected) total += v->checks[i].length;
    }
    mpk_meter_stage(&v->meter, "verify", total);
    return MOEPACK_OK;
}

/* ---- shard after shard ---- */

typedef struct shard_work {
    mpk_verify *v;
    mpk_verify_shard *shard;
    mpk_check *checks;
} shard_work;

static moepack_status check_item(void *user, unsigned lane, size_t item, moepack_error *error)
{
    shard_work *work = user;
    return mpk_verify_section(work->v, &work->v->lanes.lane[lane], work->shard, &work->checks[item], error);
}

/* `checks` are those of one shard; count may be 0 (a trunk that holds nothing). */
static moepack_status verify_shard(mpk_verify *v, uint32_t number, mpk_check *checks, size_t count,
                                   moepack_error *error)
{
    bool any = v->everything;
    for (size_t i = 0; i < count; i++) any = any || checks[i].selected;
    if (!any) return MOEPACK_OK;
    mpk_verify_shard shard;
    moepack_status status = mpk_verify_shard_open(v, number, &shard, error);
    if (status == MOEPACK_OK && !shard.skip) {
        size_t first = 0; /* empty sections have offset 0 */
        while (first < count && checks[first].length == 0) first++;
        if (v->everything)
            mpk_verify_zero(v, &v->lanes.lane[0], &shard, MPK_PAGE,
                            first < count ? checks[first].offset : shard.entry.tail_offset);
        shard_work work = {.v = v, .shard = &shard, .checks = checks};
        unsigned jobs = v->jobs < count ? v->jobs : (unsigned)count;
        status = mpk_jobs_run(jobs, count, &v->options->callbacks, check_item, &work, error);
    }
    if (shard.skip)
        for (size_t i = 0; i < count; i++) checks[i].bad = true;
    if (shard.direct.path && v->report->io_reason[0] == '\0')
        mpk_direct_reason(&shard.direct, v->report->io_reason, sizeof v->report->io_reason);
    mpk_direct_end(&shard.direct);
    if (shard.fd >= 0) close(shard.fd);
    free(shard.path);
    return status;
}

static moepack_status verify_shards(mpk_verify *v, moepack_error *error)
{
    v->jobs = mpk_jobs_choose(v->options->jobs, v->check_count);
    uint64_t largest = 0;
    for (size_t i = 0; i < v->check_count; i++) {
        mpk_shape shape;
        mpk_verify_shape(v, &v->checks[i], &shape);
        if (v->checks[i].length > largest) largest = v->checks[i].length;
        if (shape.canonical_length > largest) largest = shape.canonical_length;
    }
    moepack_status status = mpk_lanes_init(&v->lanes, v->jobs, largest, error);
    if (status != MOEPACK_OK) return status;
    size_t at = 0;
    for (uint32_t shard = 0; shard < moepack_index_shards(v->index) && status == MOEPACK_OK; shard++) {
        size_t first = at;
        while (at < v->check_count && v->checks[at].shard == shard) at++;
        status = verify_shard(v, shard, v->checks + first, at - first, error);
    }
    mpk_lanes_free(&v->lanes);
    return status;
}

/* ---- entry ---- */

/* Sections of findings that are parts of the container's own structure, not tensors or source files. */
static bool is_structure(const char *section)
{
    static const char *const names[] = {"", "index", "header", "tail", "padding", "canonical_root", "plan_id", "INFO"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(section, names[i]) == 0) return true;
    return false;
}

/* The status and error of a run that found something. */
static moepack_status verdict(const mpk_verify *v, moepack_error *error)
{
    static const moepack_status statuses[MPK_VERDICTS] = {MOEPACK_E_CORRUPT, MOEPACK_E_INCOMPLETE, MOEPACK_E_IO,
                                                          MOEPACK_E_UNSUPPORTED};
    unsigned kind = 0;
    while (kind < MPK_VERDICTS && !v->first[kind].any) kind++;
    if (kind == MPK_VERDICTS) return MOEPACK_OK;
    const moepack_finding *first = &v->first[kind].finding;
    mpk_fail(error, statuses[kind], "%s%s%s%s%s", first->message, first->expected[0] ? ": expected " : "",
             first->expected, first->found[0] ? ", found " : "", first->found);
    mpk_error_file(error, first->file);
    mpk_error_layer(error, first->layer);
    mpk_error_expert(error, first->expert);
    if (!is_structure(first->section)) mpk_error_tensor(error, first->section, -1);
    mpk_error_offset(error, first->offset);
    return statuses[kind];
}

static void close_all(mpk_verify *v)
{
    mpk_pieces_close(&v->pieces);
    moepack_index_close(v->index);
    free(v->index_bytes);
    free(v->labels);
    free(v->block_selected);
    free(v->expert_selected);
    free(v->checks);
    pthread_mutex_destroy(&v->lock);
    mpk_meter_free(&v->meter);
}

moepack_status mpk_verify_dir(const char *dir, const moepack_verify_options *options, moepack_verify_report *report,
                              moepack_error *error)
{
    mpk_verify v = {.dir = dir, .options = options, .report = report};
    double start = mpk_seconds();
    *report = (moepack_verify_report){0};
    if (!mpk_path_is_dir(dir)) {
        moepack_status status = mpk_path_exists(dir) ? mpk_fail(error, MOEPACK_E_IO, "not a directory")
                                                     : mpk_fail(error, MOEPACK_E_INCOMPLETE, "no such directory");
        mpk_error_file(error, dir);
        return status;
    }
    mpk_meter_init(&v.meter, &options->callbacks);
    pthread_mutex_init(&v.lock, NULL);
    moepack_status status = open_index(&v, error);
    if (status == MOEPACK_OK) status = select_all(&v, error);
    if (status == MOEPACK_OK) status = make_checks(&v, error);
    if (status == MOEPACK_OK) status = verify_shards(&v, error);
    if (status == MOEPACK_OK && v.everything) status = mpk_verify_source(&v, error);
    mpk_meter_end(&v.meter);
    /* Findings decide, unless the run itself could not go on. */
    bool any = report->bad + report->missing + report->unsupported + report->unreadable > 0;
    if (status == MOEPACK_OK || (any && is_verdict(status))) status = verdict(&v, error);
    report->seconds = mpk_seconds() - start;
    close_all(&v);
    return status;
}

moepack_status moepack_verify(const char *pack, const moepack_verify_options *options, moepack_verify_report *report,
                              moepack_error *error)
{
    moepack_verify_options defaults;
    moepack_verify_report unused;
    moepack_verify_options_init(&defaults);
    if (!options) options = &defaults;
    if (!report) report = &unused;
    *report = (moepack_verify_report){0};
    if (!pack) return mpk_fail(error, MOEPACK_E_USAGE, "no container given");
    if (pack[0] == '\0') return mpk_fail(error, MOEPACK_E_USAGE, "the container's name is empty");
    if (options->size != sizeof *options) return mpk_fail(error, MOEPACK_E_USAGE, "options of another version");
    size_t length = strlen(pack);
    while (length > 1 && pack[length - 1] == '/') length--;
    static const char partial[] = ".partial";
    const size_t tail = sizeof partial - 1;
    if (length >= tail && memcmp(pack + length - tail, partial, tail) == 0) {
        moepack_status status = mpk_fail(error, MOEPACK_E_INCOMPLETE, "an unfinished conversion");
        mpk_error_file(error, pack);
        return status;
    }
    return mpk_verify_dir(pack, options, report, error);
}
