/* Bringing the bytes of a plan into memory: through direct reads into one arena that mirrors the pages of the files, or
 * as mapped shards. Either way the work is cut into units that one thread reads and checks while they are hot in its
 * cache. */
#include "load.h"

#include "error.h"
#include "io/io.h"
#include "io/machine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Small enough to be hot when it is hashed, large enough to keep a drive busy; the size of a part
 * (spec/container.md 4.9). */
#define UNIT_BYTES (UINT64_C(4) << 20)

static const uint8_t nothing[MPK_VIEW_ALIGNMENT] __attribute__((aligned(MPK_VIEW_ALIGNMENT)));

/* ---- order, checked stretches, units ---- */

static int compare_places(const void *pa, const void *pb, void *context)
{
    const mpk_piece *pieces = context;
    const mpk_piece *a = &pieces[*(const size_t *)pa], *b = &pieces[*(const size_t *)pb];
    if (a->shard != b->shard) return a->shard < b->shard ? -1 : 1;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static moepack_status make_order(mpk_load_job *job, moepack_error *error)
{
    moepack_load *load = job->load;
    job->order = calloc(load->piece_count + 1, sizeof *job->order);
    if (job->order == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (size_t i = 0; i < load->piece_count; i++) {
        load->pieces[i].bytes = nothing;
        if (load->pieces[i].stored > 0) job->order[job->order_count++] = i;
    }
    if (job->order_count > 0) qsort_r(job->order, job->order_count, sizeof *job->order, compare_places, load->pieces);
    return MOEPACK_OK;
}

static bool make_room(void *array_pointer, size_t count, size_t *capacity, size_t element)
{
    if (count < *capacity) return true;
    void *old;
    memcpy(&old, array_pointer, sizeof old);
    const size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    if (wanted > SIZE_MAX / element) return false;
    void *grown = realloc(old, wanted * element);
    if (grown == NULL) return false;
    memcpy(array_pointer, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

static bool add_checked(mpk_load_job *job, size_t piece, uint64_t offset, uint64_t length, uint64_t hash)
{
    if (!make_room(&job->checked, job->checked_count, &job->checked_capacity, sizeof *job->checked)) return false;
    job->checked[job->checked_count++] = (mpk_checked){piece, offset, length, hash};
    return true;
}

/* Every piece as one stretch, or as its parts. */
static moepack_status make_checked(mpk_load_job *job, moepack_error *error)
{
    for (size_t i = 0; i < job->order_count; i++) {
        const size_t p = job->order[i];
        const mpk_piece *piece = &job->load->pieces[p];
        moepack_section section;
        moepack_index_section(job->load->index, piece->section, &section);
        bool ok = true;
        if (section.first_part == MOEPACK_NO_PARTS) {
            ok = add_checked(job, p, piece->offset, piece->stored, section.xxh3_stored);
        } else {
            uint64_t at = 0;
            for (uint32_t part = section.first_part; at < piece->stored && ok; part++) {
                uint32_t length;
                uint64_t hash;
                moepack_index_part(job->load->index, part, &length, &hash);
                /* The index's checks promise that the lengths add up; an endless loop must not depend on that. */
                if (length == 0 || length > piece->stored - at)
                    return mpk_load_fail_at(job->load, piece,
                                            mpk_fail(error, MOEPACK_E_CORRUPT, "parts do not add up to the section"),
                                            error);
                ok = add_checked(job, p, piece->offset + at, length, hash);
                at += length;
            }
        }
        if (!ok) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    return MOEPACK_OK;
}

/* Cuts the plan's reads into units. A cut is always at a page and at the start of a checked stretch. */
static moepack_status make_units(mpk_load_job *job, moepack_error *error)
{
    const moepack_plan *plan = job->plan;
    size_t c = 0;
    for (size_t r = 0; r < plan->read_count; r++) {
        const moepack_read *read = &plan->reads[r];
        const uint64_t end = read->offset + read->length;
        uint64_t start = read->offset;
        while (start < end) {
            const size_t first = c;
            uint64_t cut = end;
            for (c++; c < job->checked_count; c++) {
                const mpk_checked *next = &job->checked[c];
                if (job->load->pieces[next->piece].shard != read->shard || next->offset >= end) break;
                if (next->offset % MPK_PAGE == 0 && next->offset + next->length - start > UNIT_BYTES) {
                    cut = next->offset;
                    break;
                }
            }
            if (!make_room(&job->units, job->unit_count, &job->unit_capacity, sizeof *job->units))
                return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
            job->units[job->unit_count++] = (mpk_unit){first, c - first, start, cut - start, NULL, read->shard};
            job->total_bytes += cut - start;
            start = cut;
        }
    }
    return MOEPACK_OK;
}

/* Opens (and so checks) every shard that the plan reads from. */
static moepack_status open_shards(mpk_load_job *job, moepack_error *error)
{
    for (size_t r = 0; r < job->plan->read_count; r++) {
        if (r > 0 && job->plan->reads[r].shard == job->plan->reads[r - 1].shard) continue;
        int fd;
        moepack_status status = mpk_pack_shard(job->load->pack->files, job->plan->reads[r].shard, &fd, error);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}

/* A piece's bytes are contiguous in memory even if they spread over units: the units of one read follow one another. */
static void set_addresses(mpk_load_job *job)
{
    for (size_t u = 0; u < job->unit_count; u++) {
        const mpk_unit *unit = &job->units[u];
        for (size_t c = unit->first_checked; c < unit->first_checked + unit->checked_count; c++) {
            mpk_piece *piece = &job->load->pieces[job->checked[c].piece];
            if (job->checked[c].offset == piece->offset) piece->bytes = unit->bytes + (piece->offset - unit->offset);
        }
    }
}

/* ---- direct ---- */

static void note_progress(mpk_load_job *job, uint64_t bytes)
{
    pthread_mutex_lock(&job->lock);
    job->done_bytes += bytes;
    if (job->options.progress != NULL) job->options.progress(job->options.user, job->done_bytes, job->total_bytes);
    pthread_mutex_unlock(&job->lock);
}

static moepack_status unit_read(void *user, const mpk_span *span, moepack_error *error)
{
    mpk_load_job *job = user;
    const mpk_unit *unit = span->user;
    if (job->options.check != MOEPACK_CHECK_NONE) {
        moepack_status status = mpk_load_check_unit(job, unit, error);
        if (status != MOEPACK_OK) return status;
    }
    note_progress(job, unit->length);
    return MOEPACK_OK;
}

/* Spans for all units and the list of files they come from. */
static size_t fill_spans(mpk_load_job *job, mpk_span *spans, const char **paths)
{
    size_t sources = 0;
    for (size_t u = 0; u < job->unit_count; u++) {
        mpk_unit *unit = &job->units[u];
        if (u == 0 || unit->shard != job->units[u - 1].shard)
            paths[sources++] = mpk_pack_shard_path(job->load->pack->files, unit->shard);
        spans[u] = (mpk_span){(int)(sources - 1), unit->offset, unit->length, unit->bytes, unit};
    }
    return sources;
}

static moepack_status read_direct(mpk_load_job *job, moepack_error *error)
{
    moepack_load *load = job->load;
    moepack_status status = mpk_load_memory_make(&load->stored, job->total_bytes, error);
    if (status != MOEPACK_OK) return status;
    uint64_t at = 0;
    for (size_t u = 0; u < job->unit_count; u++) {
        job->units[u].bytes = load->stored.base + at;
        at += job->units[u].length;
    }
    set_addresses(job);
    mpk_span *spans = calloc(job->unit_count + 1, sizeof *spans);
    const char **paths = calloc((size_t)moepack_index_shards(load->index) + 1, sizeof *paths);
    if (spans == NULL || paths == NULL) {
        status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    } else {
        const size_t sources = fill_spans(job, spans, paths);
        const mpk_span_reader_options options = {
            .threads = job->readers, .direct = true, .cancel = job->options.cancel, .done = unit_read, .user = job};
        mpk_span_report report = {0};
        status = mpk_span_read(paths, sources, spans, job->unit_count, &options, &report, error);
        job->read_bytes = report.bytes_read;
        if (!report.direct) snprintf(job->reason, sizeof job->reason, "%s", report.reason);
    }
    free(spans);
    free(paths);
    return status;
}

/* ---- mmap ---- */

static moepack_status map_shard(mpk_load_job *job, uint32_t number, moepack_error *error)
{
    moepack_load *load = job->load;
    const char *path = mpk_pack_shard_path(load->pack->files, number);
    moepack_shard shard;
    moepack_index_shard(load->index, number, &shard);
    int fd;
    moepack_status status = mpk_pack_shard(load->pack->files, number, &fd, error);
    if (status != MOEPACK_OK) return status;
    /* The shard was opened and measured when first used, maybe long ago; touching a page behind the end would be
     * SIGBUS. */
    struct stat st;
    if (fstat(fd, &st) != 0) {
        status = mpk_fail_errno(error, MOEPACK_E_IO, errno, "cannot examine");
    } else if (st.st_size < 0 || (uint64_t)st.st_size < shard.file_length) {
        status = mpk_fail(error, MOEPACK_E_INCOMPLETE, "has %" PRIu64 " bytes, should have %" PRIu64,
                          (uint64_t)st.st_size, shard.file_length);
    } else {
        void *map = mmap(NULL, (size_t)shard.file_length, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            status = mpk_fail_errno(error, MOEPACK_E_IO, errno, "cannot map");
        else
            load->mappings[number] = (mpk_mapping){map, (size_t)shard.file_length};
    }
    if (status != MOEPACK_OK) mpk_error_file(error, path);
    return status;
}

static moepack_status unit_touch(void *context, size_t u, moepack_error *error)
{
    mpk_load_job *job = context;
    const mpk_unit *unit = &job->units[u];
    const size_t before =
        (uintptr_t)unit->bytes % mpk_memory_page(); /* pages of memory may be larger than the file's */
    /* Advice: one request instead of one fault per page. */
    madvise(unit->bytes - before, (size_t)unit->length + before, MADV_WILLNEED);
    moepack_status status = mpk_load_check_unit(job, unit, error);
    if (status == MOEPACK_OK) note_progress(job, unit->length);
    return status;
}

static moepack_status read_mapped(mpk_load_job *job, moepack_error *error)
{
    for (size_t u = 0; u < job->unit_count; u++) {
        mpk_unit *unit = &job->units[u];
        if (job->load->mappings[unit->shard].map == NULL) {
            moepack_status status = map_shard(job, unit->shard, error);
            if (status != MOEPACK_OK) return status;
        }
        unit->bytes = (uint8_t *)job->load->mappings[unit->shard].map + unit->offset;
    }
    set_addresses(job);
    if (job->options.check == MOEPACK_CHECK_NONE) return MOEPACK_OK;
    job->read_bytes = job->total_bytes;
    return mpk_workers_run(job->readers, job->unit_count, job->options.cancel, unit_touch, job, error);
}

moepack_status mpk_load_cut(mpk_load_job *job, moepack_error *error)
{
    moepack_status status = make_order(job, error);
    if (status == MOEPACK_OK) status = make_checked(job, error);
    if (status == MOEPACK_OK) status = make_units(job, error);
    if (status == MOEPACK_OK) status = open_shards(job, error);
    return status;
}

moepack_status mpk_load_read(mpk_load_job *job, moepack_error *error)
{
    moepack_status status = mpk_load_cut(job, error);
    if (status != MOEPACK_OK) return status;
    return job->options.io == MOEPACK_IO_MMAP ? read_mapped(job, error) : read_direct(job, error);
}
