/* Loading what a plan names. */
#include "load.h"

#include "error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

void moepack_load_options_init(moepack_load_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->io = MOEPACK_IO_DIRECT;
    options->check = MOEPACK_CHECK_ON_LOAD;
}

/* ---- pieces ---- */

static void fill_piece(const moepack_load *load, mpk_piece *piece, const mpk_plan_item *item, uint64_t section,
                       uint32_t desc, uint32_t number)
{
    moepack_section entry;
    moepack_index_section(load->index, section, &entry);
    *piece = (mpk_piece){.section = section,
                         .offset = entry.offset,
                         .stored = entry.stored_length,
                         .shard = item->shard,
                         .desc = desc,
                         .block = item->block,
                         .expert = item->expert,
                         .number = number};
}

static moepack_status check_codec(const moepack_load *load, const mpk_piece *piece, moepack_error *error)
{
    moepack_section section;
    moepack_index_section(load->index, piece->section, &section);
    if (section.codec == MOEPACK_CODEC_RAW) return MOEPACK_OK;
    return mpk_load_fail_at(
        load, piece, mpk_fail(error, MOEPACK_E_UNSUPPORTED, "this version cannot decode codec %d", (int)section.codec),
        error);
}

static mpk_load_block *find_block(const moepack_load *load, uint32_t block)
{
    size_t low = 0, high = load->block_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (load->blocks[middle].block == block) return &load->blocks[middle];
        if (load->blocks[middle].block < block)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const mpk_load_block *mpk_load_block_of(const moepack_load *load, uint32_t block)
{
    return find_block(load, block);
}

static moepack_status add_record(moepack_load *load, const mpk_plan_item *item, moepack_error *error)
{
    moepack_block block;
    moepack_record record;
    uint32_t first_desc, sections;
    moepack_index_block(load->index, item->block, &block);
    moepack_index_record(load->index, block.first_record + item->expert, &record);
    moepack_index_schema(load->index, record.schema, &first_desc, &sections);
    find_block(load, item->block)->first_piece[item->expert] = load->piece_count;
    for (uint32_t s = 0; s < sections; s++) {
        mpk_piece *piece = &load->pieces[load->piece_count++];
        fill_piece(load, piece, item, record.first_section + s, first_desc + s, s);
        piece->record_end = record.offset + record.length;
        moepack_status status = check_codec(load, piece, error);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}

static moepack_status add_tensor(moepack_load *load, const mpk_plan_item *item, moepack_error *error)
{
    moepack_tensor tensor;
    moepack_index_tensor(load->index, item->tensor, &tensor);
    load->tensor_piece[load->tensor_count++] = load->piece_count;
    mpk_piece *piece = &load->pieces[load->piece_count++];
    fill_piece(load, piece, item, tensor.section, tensor.desc, item->tensor);
    return check_codec(load, piece, error);
}

static int compare_tensors(const void *pa, const void *pb, void *context)
{
    const mpk_piece *pieces = context;
    const uint32_t a = pieces[*(const size_t *)pa].number, b = pieces[*(const size_t *)pb].number;
    return (a > b) - (a < b);
}

static size_t count_pieces(const moepack_load *load, const moepack_plan *plan)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->item_count; i++) {
        const mpk_plan_item *item = &plan->items[i];
        if (item->expert == MPK_NO_EXPERT) {
            count++;
            continue;
        }
        moepack_block block;
        moepack_record record;
        uint32_t first_desc, sections;
        moepack_index_block(load->index, item->block, &block);
        moepack_index_record(load->index, block.first_record + item->expert, &record);
        moepack_index_schema(load->index, record.schema, &first_desc, &sections);
        count += sections;
    }
    return count;
}

static moepack_status make_pieces(moepack_load *load, const moepack_plan *plan, moepack_error *error)
{
    load->pieces = calloc(count_pieces(load, plan) + 1, sizeof *load->pieces);
    load->tensor_piece = calloc(plan->item_count + 1, sizeof *load->tensor_piece);
    if (load->pieces == NULL || load->tensor_piece == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (size_t i = 0; i < plan->item_count; i++) {
        const mpk_plan_item *item = &plan->items[i];
        moepack_status status =
            item->expert == MPK_NO_EXPERT ? add_tensor(load, item, error) : add_record(load, item, error);
        if (status != MOEPACK_OK) return status;
    }
    if (load->tensor_count > 0)
        qsort_r(load->tensor_piece, load->tensor_count, sizeof *load->tensor_piece, compare_tensors, load->pieces);
    return MOEPACK_OK;
}

const mpk_piece *mpk_load_tensor(const moepack_load *load, uint32_t tensor)
{
    size_t low = 0, high = load->tensor_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const mpk_piece *piece = &load->pieces[load->tensor_piece[middle]];
        if (piece->number == tensor) return piece;
        if (piece->number < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

moepack_status mpk_load_fail_at(const moepack_load *load, const mpk_piece *piece, moepack_status status,
                                moepack_error *error)
{
    mpk_section_place place;
    uint32_t block = piece->block;
    if (piece->expert == MPK_NO_EXPERT) {
        moepack_tensor tensor;
        moepack_index_tensor(load->index, piece->number, &tensor);
        block = tensor.block;
        mpk_pack_place_tensor(load->pack->files, piece->number, &place);
    } else {
        mpk_pack_place_expert(load->pack->files, piece->block, piece->expert, piece->number, &place);
    }
    mpk_pack_error_place(load->pack->files, &place, error);
    if (block < moepack_index_blocks(load->index)) {
        char label[MOEPACK_LABEL_MAX];
        moepack_index_label(load->index, block, label);
        mpk_error_layer(error, label);
    }
    return status;
}

/* ---- blocks ---- */

static moepack_status make_block(moepack_load *load, const moepack_placement *placement, uint32_t rank, uint32_t number,
                                 moepack_error *error)
{
    mpk_load_block *entry = &load->blocks[load->block_count++];
    moepack_block block;
    moepack_index_block(load->index, number, &block);
    entry->block = number;
    entry->first_piece = calloc((size_t)block.experts + 1, sizeof *entry->first_piece);
    entry->holds = calloc((size_t)block.experts + 1, 1);
    entry->computes = calloc((size_t)block.experts + 1, 1);
    entry->experts = calloc((size_t)block.experts + 1, sizeof *entry->experts);
    if (entry->first_piece == NULL || entry->holds == NULL || entry->computes == NULL || entry->experts == NULL)
        return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (uint32_t e = 0; e < block.experts; e++) {
        entry->first_piece[e] = SIZE_MAX;
        if (load->router_only || load->no_experts) continue;
        entry->holds[e] = moepack_placement_holds(placement, rank, number, e);
        entry->computes[e] = moepack_placement_computes(placement, rank, number, e);
    }
    return MOEPACK_OK;
}

static moepack_status make_blocks(moepack_load *load, const moepack_placement *placement, const moepack_plan *plan,
                                  moepack_error *error)
{
    load->blocks = calloc((size_t)plan->block_count + 1, sizeof *load->blocks);
    if (load->blocks == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (uint32_t i = 0; i < plan->block_count; i++) {
        moepack_status status = make_block(load, placement, plan->rank, plan->blocks[i], error);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}

/* The plan names what is loaded, the placement what is computed: they must be about the same experts. */
static moepack_status compare_with_placement(const moepack_load *load, const moepack_plan *plan, moepack_error *error)
{
    uint64_t held = 0;
    for (size_t i = 0; i < load->block_count; i++) {
        moepack_block block;
        moepack_index_block(load->index, load->blocks[i].block, &block);
        for (uint32_t e = 0; e < block.experts; e++) {
            if (!load->blocks[i].holds[e]) continue;
            held++;
            if (load->blocks[i].first_piece[e] == SIZE_MAX)
                return mpk_fail(error, MOEPACK_E_USAGE, "the plan was made for another placement");
        }
    }
    return held == plan->experts ? MOEPACK_OK
                                 : mpk_fail(error, MOEPACK_E_USAGE, "the plan was made for another placement");
}

/* ---- the whole ---- */

static moepack_status second_pass(void *context, size_t position, moepack_error *error)
{
    mpk_load_job *job = context;
    moepack_status status = mpk_load_check_piece(job, position, error);
    if (status != MOEPACK_OK) return status;
    return mpk_load_move_piece(job, &job->load->pieces[job->order[position]], error);
}

static bool second_pass_needed(const mpk_load_job *job)
{
    return job->options.io == MOEPACK_IO_DIRECT || job->options.check != MOEPACK_CHECK_NONE ||
           job->load->moved.map != NULL;
}

/* Bytes of a mapping that are touched although nobody wants them verified. */
static void count_moved(mpk_load_job *job)
{
    if (job->options.io != MOEPACK_IO_MMAP || job->options.check != MOEPACK_CHECK_NONE) return;
    for (size_t i = 0; i < job->load->piece_count; i++)
        if (job->load->pieces[i].move != MPK_MOVE_NOT) job->read_bytes += job->load->pieces[i].stored;
}

/* Goes before the reason for buffered reads: that one may be long, and its end can be missed. */
static void note_rearranged(mpk_load_job *job)
{
    char why[sizeof job->reason];
    for (size_t i = 0; i < job->load->piece_count; i++) {
        if (job->load->pieces[i].move != MPK_MOVE_REARRANGE) continue;
        memcpy(why, job->reason, sizeof why);
        snprintf(job->reason, sizeof job->reason, "canonical layout rearranged in memory%s%.110s",
                 why[0] != '\0' ? "; " : "", why);
        return;
    }
}

moepack_status mpk_load_make_pieces(mpk_load_job *job, const moepack_placement *placement, moepack_error *error)
{
    moepack_load *load = job->load;
    moepack_status status = make_blocks(load, placement, job->plan, error);
    if (status == MOEPACK_OK) status = make_pieces(load, job->plan, error);
    if (status == MOEPACK_OK) status = compare_with_placement(load, job->plan, error);
    return status;
}

static moepack_status run_job(mpk_load_job *job, const moepack_placement *placement, moepack_error *error)
{
    moepack_load *load = job->load;
    moepack_status status = mpk_load_make_pieces(job, placement, error);
    if (status == MOEPACK_OK) status = mpk_load_read(job, error);
    if (status == MOEPACK_OK) status = mpk_load_plan_moves(job, error);
    if (status != MOEPACK_OK) return status;
    if (second_pass_needed(job)) {
        count_moved(job);
        status = mpk_workers_run(job->threads, job->order_count, job->options.cancel, second_pass, job, error);
        if (status != MOEPACK_OK) return status;
    }
    note_rearranged(job);
    if (job->gives_up_stored) mpk_load_release_stored(job);
    return mpk_load_make_views(load, error);
}

static moepack_status check_arguments(const moepack_pack *pack, const moepack_placement *placement, uint32_t rank,
                                      const moepack_plan *plan, const moepack_load_options *options,
                                      moepack_error *error)
{
    if (pack == NULL || placement == NULL || plan == NULL)
        return mpk_fail(error, MOEPACK_E_USAGE, "a container, a placement and a plan are needed");
    if (plan->pack != pack) return mpk_fail(error, MOEPACK_E_USAGE, "the plan belongs to another container");
    if (plan->rank != rank || rank >= moepack_placement_ranks(placement))
        return mpk_fail(error, MOEPACK_E_USAGE, "the plan is for rank %" PRIu32 ", not for rank %" PRIu32, plan->rank,
                        rank);
    if (options->io != MOEPACK_IO_DIRECT && options->io != MOEPACK_IO_MMAP)
        return mpk_fail(error, MOEPACK_E_USAGE, "%d is no I/O path", (int)options->io);
    if (options->check != MOEPACK_CHECK_NONE && options->check != MOEPACK_CHECK_ON_LOAD &&
        options->check != MOEPACK_CHECK_FULL)
        return mpk_fail(error, MOEPACK_E_USAGE, "%d is no verification policy", (int)options->check);
    return MOEPACK_OK;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fill_report(const mpk_load_job *job, double started, moepack_load_report *report)
{
    *report = (moepack_load_report){.bytes_wanted = job->plan->expert_bytes + job->plan->dense_bytes,
                                    .bytes_read = job->read_bytes,
                                    .bytes_verified = job->verified_bytes,
                                    .io = job->options.io,
                                    .seconds = now() - started};
    memcpy(report->io_reason, job->reason, sizeof report->io_reason);
}

moepack_status moepack_load_create(moepack_pack *pack, const moepack_placement *placement, uint32_t rank,
                                   const moepack_plan *plan, const moepack_load_options *options, moepack_load **out,
                                   moepack_load_report *report, moepack_error *error)
{
    const double started = now();
    if (out == NULL) return mpk_fail(error, MOEPACK_E_USAGE, "a place for the result is needed");
    *out = NULL;
    mpk_load_job job = {.plan = plan, .lock = PTHREAD_MUTEX_INITIALIZER};
    moepack_load_options_init(&job.options);
    if (options != NULL && !mpk_take_options(&job.options, sizeof job.options, options))
        return mpk_fail(error, MOEPACK_E_USAGE, "load options of unknown size");
    moepack_status status = check_arguments(pack, placement, rank, plan, &job.options, error);
    if (status != MOEPACK_OK) return status;
    job.threads = job.options.threads == 0 ? mpk_workers_default() : job.options.threads;
    job.readers = job.options.threads == 0 ? mpk_readers_default() : job.options.threads;
    moepack_load *load = calloc(1, sizeof *load);
    if (load == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    load->pack = pack;
    load->index = moepack_pack_index(pack);
    load->dense = plan->dense;
    load->router_only = plan->router_only;
    load->no_experts = plan->no_experts;
    load->mappings = calloc((size_t)moepack_index_shards(load->index) + 1, sizeof *load->mappings);
    load->cpu_quota = mpk_default_threads_limit();
    load->spare = calloc(1, sizeof *load->spare);
    job.load = load;
    status = load->mappings == NULL || load->spare == NULL ? mpk_fail(error, MOEPACK_E_REFUSED, "out of memory")
                                                           : run_job(&job, placement, error);
    if (report != NULL) fill_report(&job, started, report);
    mpk_load_check_end(&job);
    free(job.order);
    free(job.checked);
    free(job.units);
    pthread_mutex_destroy(&job.lock);
    if (status != MOEPACK_OK) {
        moepack_load_free(load);
        return status;
    }
    *out = load;
    return MOEPACK_OK;
}

void moepack_load_free(moepack_load *load)
{
    if (load == NULL) return;
    for (size_t i = 0; i < load->block_count; i++) mpk_load_free_views(&load->blocks[i]);
    free(load->blocks);
    free(load->pieces);
    free(load->tensor_piece);
    mpk_load_memory_free(&load->stored);
    mpk_load_memory_free(&load->moved);
    for (uint32_t s = 0; load->mappings != NULL && s < moepack_index_shards(load->index); s++)
        if (load->mappings[s].map != NULL) munmap(load->mappings[s].map, load->mappings[s].size);
    free(load->mappings);
    if (load->spare != NULL) mpk_spare_free(load->spare);
    free(load->spare);
    free(load);
}

const void *moepack_load_section(const moepack_load *load, uint32_t block, uint32_t expert, uint32_t s,
                                 uint64_t *length)
{
    if (length != NULL) *length = 0;
    const mpk_load_block *entry = mpk_load_block_of(load, block);
    moepack_block info;
    moepack_record record;
    uint32_t first_desc, sections;
    if (entry == NULL) return NULL;
    moepack_index_block(load->index, block, &info);
    if (expert >= info.experts || entry->first_piece[expert] == SIZE_MAX) return NULL;
    moepack_index_record(load->index, info.first_record + expert, &record);
    moepack_index_schema(load->index, record.schema, &first_desc, &sections);
    if (s >= sections) return NULL;
    const mpk_piece *piece = &load->pieces[entry->first_piece[expert] + s];
    if (length != NULL) *length = piece->length;
    return piece->data;
}
