/* Making and freeing a residency: dense tensors loaded, experts cut into units, slots within the budget. */
#include "residency.h"

#include "bytes.h"
#include "error.h"

#include <inttypes.h>
#include <stdlib.h>

/* A few requests in flight keep a drive busy; more would hold slots that are not usable yet. */
#define DEFAULT_READERS 4u
#define MOST_READERS 64u

void moepack_residency_options_init(moepack_residency_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->check = MOEPACK_CHECK_ON_LOAD;
}

static moepack_status no_memory(moepack_error *error)
{
    return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
}

/* ---- dense tensors ---- */

static moepack_status load_dense(moepack_residency *r, const moepack_placement *placement, uint32_t rank,
                                 moepack_error *error)
{
    moepack_load_options options;
    moepack_load_report report;
    moepack_load_options_init(&options);
    options.io = r->options.io;
    options.check = r->options.check;
    moepack_status status =
        moepack_load_create(r->job.load->pack, placement, rank, r->dense_plan, &options, &r->dense, &report, error);
    if (status != MOEPACK_OK) return status;
    memcpy(r->report.io_reason, report.io_reason, sizeof report.io_reason);
    r->report.io = report.io;
    r->report.dense_bytes_read = report.bytes_read;
    r->report.dense_bytes_verified = report.bytes_verified;
    const uint64_t mapped = options.io == MOEPACK_IO_MMAP ? moepack_plan_dense_bytes(r->dense_plan) : 0;
    r->dense_bytes = mapped + r->dense->stored.size + r->dense->moved.size + r->bias_bytes;
    return MOEPACK_OK;
}

/* ---- experts ---- */

/* One read for each record, so that no unit spans two. */
static void split_reads(moepack_plan *plan)
{
    plan->read_count = 0;
    for (size_t i = 0; i < plan->item_count; i++)
        if (plan->items[i].length > 0)
            plan->reads[plan->read_count++] =
                (moepack_read){plan->items[i].shard, plan->items[i].offset, plan->items[i].length};
}

static moepack_status make_entries(moepack_residency *r, moepack_error *error)
{
    const moepack_load *load = r->job.load;
    size_t total = 0;
    r->entries = calloc(r->plan->item_count + 1, sizeof *r->entries);
    r->block_start = calloc(load->block_count + 1, sizeof *r->block_start);
    if (r->entries == NULL || r->block_start == NULL) return no_memory(error);
    for (size_t i = 0; i < load->block_count; i++) {
        moepack_block block;
        moepack_index_block(load->index, load->blocks[i].block, &block);
        r->block_start[i] = total;
        total += block.experts;
    }
    r->first_entry = malloc((total + 1) * sizeof *r->first_entry);
    if (r->first_entry == NULL) return no_memory(error);
    for (size_t i = 0; i < total; i++) r->first_entry[i] = MPK_NO_ENTRY;
    for (size_t i = 0; i < r->plan->item_count; i++) {
        const mpk_plan_item *item = &r->plan->items[i];
        r->entries[i] = (mpk_entry){.block = item->block,
                                    .expert = item->expert,
                                    .offset = item->offset,
                                    .length = item->length,
                                    .shard = item->shard,
                                    .slot = MPK_NO_SLOT,
                                    .next = MPK_NO_ENTRY,
                                    .previous = MPK_NO_ENTRY};
        const size_t b = (size_t)(mpk_load_block_of(load, item->block) - load->blocks);
        r->first_entry[r->block_start[b] + item->expert] = i;
    }
    r->entry_count = r->plan->item_count;
    return MOEPACK_OK;
}

/* Which units and pieces make up which expert: both follow one another by (shard, offset). */
static void assign_units(moepack_residency *r)
{
    const mpk_load_job *job = &r->job;
    for (size_t o = 0; o < job->order_count; o++) {
        const mpk_piece *piece = &job->load->pieces[job->order[o]];
        mpk_entry *e = mpk_residency_entry(r, piece->block, piece->expert);
        if (e->order_count++ == 0) e->first_order = o;
    }
    for (size_t u = 0; u < job->unit_count; u++) {
        const mpk_piece *piece = &job->load->pieces[job->checked[job->units[u].first_checked].piece];
        mpk_entry *e = mpk_residency_entry(r, piece->block, piece->expert);
        if (e->unit_count++ == 0) e->first_unit = u;
    }
}

/* Bytes that the largest record needs in a slot, and where records are rearranged, beside it. All or none are: kernels
 * find an expert in its slot alone. */
static moepack_status size_slots(moepack_residency *r, moepack_error *error)
{
    moepack_load *load = r->job.load;
    uint64_t record = MPK_PAGE, moved = 0;
    bool moves = false;
    for (size_t i = 0; i < load->piece_count; i++) {
        mpk_piece *piece = &load->pieces[i];
        moepack_status status = mpk_load_plan_move(load, piece, error);
        if (status != MOEPACK_OK) return status;
        piece->data = piece->bytes;
        moves = moves || piece->move != MPK_MOVE_NOT || piece->offset % MPK_VIEW_ALIGNMENT != 0;
    }
    for (size_t i = 0; i < r->entry_count; i++) {
        const mpk_entry *e = &r->entries[i];
        uint64_t sum = 0;
        if (e->length > record) record = e->length;
        for (size_t o = e->first_order; o < e->first_order + e->order_count; o++) {
            mpk_piece *piece = &load->pieces[r->job.order[o]];
            uint64_t padded;
            if (moves && piece->move == MPK_MOVE_NOT) piece->move = MPK_MOVE_COPY;
            if (!mpk_align64(piece->length, MPK_VIEW_ALIGNMENT, &padded) || !mpk_add64(sum, padded, &sum))
                return mpk_fail(error, MOEPACK_E_REFUSED, "more bytes than the address space has");
        }
        if (sum > moved) moved = sum;
    }
    r->slot_bytes = moves ? (moved + MPK_PAGE - 1) / MPK_PAGE * MPK_PAGE : record;
    r->stage_bytes = moves ? record : 0;
    return MOEPACK_OK;
}

/* Biases are decoded beside the slots, for all experts at once: they are small. */
static moepack_status make_biases(moepack_residency *r, moepack_error *error)
{
    const moepack_load *load = r->job.load;
    moepack_status status = MOEPACK_OK;
    for (size_t i = 0; i < load->block_count && status == MOEPACK_OK; i++) {
        mpk_load_block *entry = &load->blocks[i];
        moepack_block block;
        uint64_t bytes;
        moepack_index_block(load->index, entry->block, &block);
        status = moepack_index_policy(load->index, block.policy, &entry->view.policy, NULL, error);
        if (status == MOEPACK_OK) status = mpk_load_make_biases(entry, block.experts, &bytes, error);
        if (status == MOEPACK_OK) r->bias_bytes += bytes;
    }
    return status;
}

/* ---- budget ---- */

static void count_least_slots(moepack_residency *r)
{
    const moepack_load *load = r->job.load;
    for (size_t i = 0; i < load->block_count; i++) {
        moepack_block block;
        moepack_policy policy;
        uint32_t held = 0;
        moepack_index_block(load->index, load->blocks[i].block, &block);
        if (moepack_index_policy(load->index, block.policy, &policy, NULL, NULL) != MOEPACK_OK) continue;
        for (uint32_t e = 0; e < block.experts; e++) held += load->blocks[i].holds[e];
        const uint32_t needed = policy.top_k < held ? (uint32_t)policy.top_k : held;
        if (needed > r->least_slots) r->least_slots = needed;
    }
}

/* Bytes that a call needs beside `dense` bytes, with one reader. REFUSED where the budget is smaller. */
static moepack_status check_budget(const moepack_residency *r, uint64_t dense, bool exact, moepack_error *error)
{
    const uint64_t budget = r->options.budget, least = r->least_slots;
    uint64_t needed;
    if (mpk_mul64(least, r->slot_bytes, &needed) && mpk_add64(needed, dense, &needed) &&
        mpk_add64(needed, r->stage_bytes, &needed) && needed <= budget)
        return MOEPACK_OK;
    return mpk_fail(error, MOEPACK_E_REFUSED,
                    "a call needs %s%" PRIu64 " bytes: dense tensors %" PRIu64 ", %" PRIu64 " experts of %" PRIu64
                    ", read buffer %" PRIu64 "; the budget is %" PRIu64,
                    exact ? "" : "at least ", needed, dense, least, r->slot_bytes, r->stage_bytes, budget);
}

/* Slots that fit beside the dense tensors. With as few readers as needed to fit. */
static moepack_status fit(moepack_residency *r, moepack_error *error)
{
    const uint64_t least = r->least_slots * r->slot_bytes;
    moepack_status status = check_budget(r, r->dense_bytes, true, error);
    if (status != MOEPACK_OK) return status;
    const uint64_t left = r->options.budget - r->dense_bytes;
    uint64_t stages = r->stage_bytes * r->options.threads;
    while (r->options.threads > 1 && least + stages > left) {
        r->options.threads--;
        stages -= r->stage_bytes;
    }
    const uint64_t slots = (left - stages) / r->slot_bytes;
    r->slot_count = (uint32_t)(slots < r->entry_count ? slots : r->entry_count);
    r->report.budget_used = r->dense_bytes + stages + r->slot_count * r->slot_bytes;
    return MOEPACK_OK;
}

static moepack_status make_slots(moepack_residency *r, moepack_error *error)
{
    r->slots = calloc((size_t)r->slot_count + 1, sizeof *r->slots);
    r->threads = calloc(r->options.threads, sizeof *r->threads);
    if (r->slots == NULL || r->threads == NULL) return no_memory(error);
    for (uint32_t s = 0; s < r->slot_count; s++) r->slots[s].entry = MPK_NO_ENTRY;
    moepack_status status = mpk_load_memory_make(&r->job.load->moved, r->slot_count * r->slot_bytes, error);
    if (status == MOEPACK_OK) status = mpk_load_memory_make(&r->stages, r->options.threads * r->stage_bytes, error);
    return status;
}

/* ---- files and threads ---- */

static moepack_status open_files(moepack_residency *r, moepack_error *error)
{
    moepack_load *load = r->job.load;
    const size_t shards = moepack_index_shards(load->index);
    r->files = calloc(shards + 1, sizeof *r->files);
    r->opened = calloc(shards + 1, sizeof *r->opened);
    if (r->files == NULL || r->opened == NULL) return no_memory(error);
    for (size_t i = 0; i < r->plan->read_count; i++) {
        const uint32_t s = r->plan->reads[i].shard;
        int fd;
        if (r->opened[s]) continue;
        moepack_status status = mpk_pack_shard(load->pack->files, s, &fd, error);
        if (status == MOEPACK_OK)
            status = mpk_direct_begin(&r->files[s], fd, mpk_pack_shard_path(load->pack->files, s), false, error);
        if (status != MOEPACK_OK) return status;
        r->opened[s] = true;
    }
    return MOEPACK_OK;
}

static moepack_status start_threads(moepack_residency *r, moepack_error *error)
{
    while (r->started < r->options.threads &&
           pthread_create(&r->threads[r->started], NULL, mpk_residency_thread, r) == 0)
        r->started++;
    return r->started > 0 ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_REFUSED, "no thread can be started");
}

/* ---- the whole ---- */

static moepack_status build(moepack_residency *r, const moepack_placement *placement, uint32_t rank,
                            moepack_error *error)
{
    moepack_plan_options options;
    moepack_load *load = r->job.load;
    moepack_plan_options_init(&options);
    options.blocks = r->options.blocks;
    options.block_count = r->options.block_count;
    options.dense = false;
    moepack_status status = moepack_plan_create(load->pack, placement, rank, &options, &r->plan, error);
    if (status == MOEPACK_OK)
        status = mpk_plan_dense(load->pack, rank, options.blocks, options.block_count, &r->dense_plan, error);
    if (status != MOEPACK_OK) return status;
    split_reads(r->plan);
    r->job.plan = r->plan;
    status = mpk_load_make_pieces(&r->job, placement, error);
    if (status == MOEPACK_OK) status = mpk_load_cut(&r->job, error);
    if (status == MOEPACK_OK) status = make_entries(r, error);
    if (status != MOEPACK_OK) return status;
    assign_units(r);
    status = size_slots(r, error);
    if (status == MOEPACK_OK) status = make_biases(r, error);
    count_least_slots(r);
    /* Asked before anything large is read; what the dense tensors really take is known afterwards. */
    if (status == MOEPACK_OK)
        status = check_budget(r, moepack_plan_dense_bytes(r->dense_plan) + r->bias_bytes, false, error);
    if (status == MOEPACK_OK) status = load_dense(r, placement, rank, error);
    if (status == MOEPACK_OK) status = fit(r, error);
    if (status == MOEPACK_OK) status = make_slots(r, error);
    if (status == MOEPACK_OK) status = open_files(r, error);
    if (status == MOEPACK_OK) status = start_threads(r, error);
    return status;
}

static moepack_status take_options(moepack_residency_options *to, const moepack_residency_options *given,
                                   moepack_error *error)
{
    if (given != NULL && !mpk_take_options(to, sizeof *to, given))
        return mpk_fail(error, MOEPACK_E_USAGE, "residency options of unknown size");
    const struct {
        const char *what;
        int value, last;
    } choices[] = {
        {"eviction policy", (int)to->evict, MOEPACK_EVICT_LFU},
        {"way of reading", (int)to->io, MOEPACK_IO_MMAP},
        {"way of checking", (int)to->check, MOEPACK_CHECK_FULL},
    };
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].value < 0 || choices[i].value > choices[i].last)
            return mpk_fail(error, MOEPACK_E_USAGE, "%d is no %s", choices[i].value, choices[i].what);
    return MOEPACK_OK;
}

moepack_status moepack_residency_create(moepack_pack *pack, const moepack_placement *placement, uint32_t rank,
                                        const moepack_residency_options *options, moepack_residency **out,
                                        moepack_error *error)
{
    if (out == NULL || pack == NULL || placement == NULL)
        return mpk_fail(error, MOEPACK_E_USAGE, "a container, a placement and a place for the result are needed");
    *out = NULL;
    moepack_residency *r = calloc(1, sizeof *r);
    moepack_load *load = calloc(1, sizeof *load);
    if (r == NULL || load == NULL) {
        free(r);
        free(load);
        return no_memory(error);
    }
    moepack_residency_options_init(&r->options);
    r->job.load = load;
    load->pack = pack;
    load->index = moepack_pack_index(pack);
    pthread_mutex_init(&r->job.lock, NULL);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->arrived, NULL);
    r->queue_first = r->queue_last = MPK_NO_ENTRY;
    moepack_status status = take_options(&r->options, options, error);
    if (r->options.threads == 0) {
        const unsigned usable = mpk_readers_default();
        r->options.threads = usable < DEFAULT_READERS ? usable : DEFAULT_READERS;
    }
    if (r->options.threads > MOST_READERS) r->options.threads = MOST_READERS;
    r->job.options.io = MOEPACK_IO_DIRECT; /* bytes are in memory of our own either way */
    r->job.options.check = r->options.check;
    if (status == MOEPACK_OK) status = build(r, placement, rank, error);
    if (status != MOEPACK_OK) {
        moepack_residency_free(r);
        return status;
    }
    *out = r;
    return MOEPACK_OK;
}

void moepack_residency_free(moepack_residency *r)
{
    if (r == NULL) return;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    for (unsigned i = 0; i < r->started; i++) pthread_join(r->threads[i], NULL);
    for (uint32_t s = 0; r->opened != NULL && s < moepack_index_shards(r->job.load->index); s++)
        if (r->opened[s]) mpk_direct_end(&r->files[s]);
    free(r->files);
    free(r->opened);
    free(r->threads);
    free(r->slots);
    free(r->entries);
    free(r->first_entry);
    free(r->block_start);
    free(r->job.order);
    free(r->job.checked);
    free(r->job.units);
    mpk_load_memory_free(&r->stages);
    moepack_load_free(r->job.load);
    moepack_load_free(r->dense);
    moepack_plan_free(r->plan);
    moepack_plan_free(r->dense_plan);
    pthread_mutex_destroy(&r->job.lock);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->arrived);
    free(r);
}

void moepack_residency_report_get(moepack_residency *r, moepack_residency_report *report)
{
    if (report == NULL) return;
    *report = (moepack_residency_report){0};
    if (r == NULL) return;
    pthread_mutex_lock(&r->job.lock);
    const uint64_t verified = r->job.verified_bytes;
    pthread_mutex_unlock(&r->job.lock);
    pthread_mutex_lock(&r->lock);
    *report = r->report;
    report->bytes_verified = verified;
    report->budget = r->options.budget;
    report->dense_bytes = r->dense_bytes;
    report->slot_bytes = r->slot_bytes;
    report->slots = r->slot_count;
    report->experts = r->entry_count;
    report->resident_bytes = r->dense_bytes;
    for (uint32_t s = 0; s < r->slot_count; s++)
        if (r->slots[s].entry != MPK_NO_ENTRY) report->resident_bytes += r->slot_bytes;
    pthread_mutex_unlock(&r->lock);
    for (uint32_t s = 0; s < moepack_index_shards(r->job.load->index) && report->io_reason[0] == '\0'; s++)
        if (r->opened[s]) (void)mpk_direct_reason(&r->files[s], report->io_reason, sizeof report->io_reason);
}

const void *moepack_residency_section(moepack_residency *r, uint32_t block, uint32_t expert, uint32_t s,
                                      uint64_t *length)
{
    return r != NULL ? moepack_load_section(r->job.load, block, expert, s, length) : NULL;
}
