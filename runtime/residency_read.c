/* A miss: one record from its shard into a slot, checked as by a load before anybody can see it. */
#include "residency.h"

#include "error.h"

static moepack_status read_pages(moepack_residency *r, const mpk_entry *e, const mpk_unit *unit, uint8_t *to,
                                 moepack_error *error)
{
    mpk_direct *file = &r->files[e->shard];
    uint8_t *data = to; /* stays: whole pages into aligned memory lie where they were asked for */
    moepack_status status = r->options.io == MOEPACK_IO_DIRECT
                                ? mpk_direct_read(file, to, (size_t)unit->length, unit->offset, &data, error)
                                : mpk_file_pread(file->fd, to, (size_t)unit->length, unit->offset, file->path, error);
    if (status != MOEPACK_OK) mpk_error_expert(error, e->expert);
    return status;
}

static bool closing(moepack_residency *r)
{
    pthread_mutex_lock(&r->lock);
    const bool closing = r->closing;
    pthread_mutex_unlock(&r->lock);
    return closing;
}

/* The record's bytes at `at`, and the addresses of its pieces. */
static moepack_status read_units(moepack_residency *r, const mpk_entry *e, uint8_t *at, uint64_t *bytes,
                                 moepack_error *error)
{
    mpk_load_job *job = &r->job;
    for (size_t u = e->first_unit; u < e->first_unit + e->unit_count; u++) {
        mpk_unit unit = job->units[u];
        unit.bytes = at + (unit.offset - e->offset);
        if (closing(r)) return mpk_fail(error, MOEPACK_E_INTERRUPTED, "the residency is being closed");
        moepack_status status = read_pages(r, e, &unit, unit.bytes, error);
        if (status == MOEPACK_OK) *bytes += unit.length;
        if (status == MOEPACK_OK && job->options.check != MOEPACK_CHECK_NONE)
            status = mpk_load_check_unit(job, &unit, error);
        if (status != MOEPACK_OK) return status;
    }
    for (size_t o = e->first_order; o < e->first_order + e->order_count; o++) {
        mpk_piece *piece = &job->load->pieces[job->order[o]];
        piece->bytes = at + (piece->offset - e->offset);
    }
    return MOEPACK_OK;
}

moepack_status mpk_residency_read(moepack_residency *r, mpk_entry *e, uint8_t *stage, uint64_t *bytes,
                                  moepack_error *error)
{
    mpk_load_job *job = &r->job;
    moepack_load *load = job->load;
    uint8_t *slot = load->moved.base + e->slot * r->slot_bytes;
    *bytes = 0;
    moepack_status status = read_units(r, e, stage != NULL ? stage : slot, bytes, error);
    for (size_t o = e->first_order; status == MOEPACK_OK && o < e->first_order + e->order_count; o++)
        status = mpk_load_check_piece(job, o, error);
    uint64_t at = 0;
    for (size_t o = e->first_order; status == MOEPACK_OK && o < e->first_order + e->order_count; o++) {
        mpk_piece *piece = &load->pieces[job->order[o]];
        piece->data = piece->bytes;
        if (stage == NULL) continue;
        piece->data = slot + at;
        at += (piece->length + MPK_VIEW_ALIGNMENT - 1) / MPK_VIEW_ALIGNMENT * MPK_VIEW_ALIGNMENT;
        status = mpk_load_move_piece(job, piece, error);
    }
    if (status != MOEPACK_OK) return status;
    for (size_t i = 0; i < load->block_count; i++)
        if (load->blocks[i].block == e->block) return mpk_load_place_expert(load, &load->blocks[i], e->expert, error);
    return MOEPACK_OK;
}
