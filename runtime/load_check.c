/* Verification of what was loaded. */
#include "load.h"

#include "error.h"
#include "io/io.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- stored hashes, one unit at a time ---- */

static moepack_status bad_hash(const mpk_load_job *job, const mpk_checked *checked, const mpk_piece *piece,
                               const char *what, uint64_t expected, uint64_t found, moepack_error *error)
{
    char expected_text[17], found_text[17];
    moepack_hash64_text(expected, expected_text);
    moepack_hash64_text(found, found_text);
    moepack_status status =
        mpk_fail(error, MOEPACK_E_CORRUPT, "%s do not match their hash (%" PRIu64 " bytes): expected %s, found %s",
                 what, checked == NULL ? piece->stored : checked->length, expected_text, found_text);
    if (checked != NULL) mpk_error_offset(error, checked->offset);
    return mpk_load_fail_at(job->load, piece, status, error);
}

moepack_status mpk_load_check_unit(mpk_load_job *job, const mpk_unit *unit, moepack_error *error)
{
    uint64_t bytes = 0;
    for (size_t c = unit->first_checked; c < unit->first_checked + unit->checked_count; c++) {
        const mpk_checked *checked = &job->checked[c];
        const uint64_t found = moepack_hash64(unit->bytes + (checked->offset - unit->offset), (size_t)checked->length);
        if (found != checked->hash)
            return bad_hash(job, checked, &job->load->pieces[checked->piece], "stored bytes", checked->hash, found,
                            error);
        bytes += checked->length;
    }
    pthread_mutex_lock(&job->lock);
    job->verified_bytes += bytes;
    pthread_mutex_unlock(&job->lock);
    return MOEPACK_OK;
}

/* ---- NaN scales ---- */

static moepack_status nan_scale(const mpk_load_job *job, const mpk_piece *piece, uint64_t at, moepack_error *error)
{
    moepack_status status = mpk_fail(error, MOEPACK_E_CORRUPT, "scale byte 255 is NaN: this expert cannot be computed");
    mpk_error_offset(error, piece->offset + at);
    return mpk_load_fail_at(job->load, piece, status, error);
}

/* Scale plane in published order, anywhere in its section. */
static bool find_nan_canonical(const mpk_piece *piece, const moepack_matrix *m, uint64_t *at)
{
    for (uint64_t r = 0; r < m->rows; r++) {
        const uint64_t row = m->base + r * m->row_stride;
        if (m->col_stride == 1) {
            const uint8_t *hit = memchr(piece->bytes + row, 255, (size_t)m->cols);
            if (hit == NULL) continue;
            *at = (uint64_t)(hit - piece->bytes);
            return true;
        }
        for (uint64_t c = 0; c < m->cols; c++) {
            if (piece->bytes[row + c * m->col_stride] != 255) continue;
            *at = row + c * m->col_stride;
            return true;
        }
    }
    return false;
}

/* A stored E8M0 byte of 255. In panel order padding is 127, so that a whole plane can be searched at once. */
static moepack_status check_scales(const mpk_load_job *job, const mpk_piece *piece, const moepack_desc *desc,
                                   moepack_error *error)
{
    uint64_t start = 0;
    for (uint32_t i = 0; i < desc->matrix_count; i++) {
        moepack_matrix matrix;
        uint64_t length = 0, at;
        moepack_index_matrix(job->load->index, desc->first_matrix + i, &matrix);
        const bool panel = desc->layout == MOEPACK_LAYOUT_PANEL;
        if (panel && !moepack_panel_length(&matrix, &length))
            return mpk_load_fail_at(job->load, piece, mpk_fail(error, MOEPACK_E_CORRUPT, "has no panel form"), error);
        if (matrix.encoding == MOEPACK_ENC_E8M0 && matrix.bits == 8) {
            if (panel) {
                const uint8_t *hit = memchr(piece->bytes + start, 255, (size_t)length);
                if (hit != NULL) return nan_scale(job, piece, (uint64_t)(hit - piece->bytes), error);
            } else if (find_nan_canonical(piece, &matrix, &at)) {
                return nan_scale(job, piece, at, error);
            }
        }
        start += length;
    }
    return MOEPACK_OK;
}

/* ---- what MOEPACK_CHECK_FULL adds ---- */

/* A buffer for the published bytes of a section. Buffers are kept from section to section, at most one per thread:
 * memory that was never used costs far more than the check. */
typedef struct mpk_published {
    struct mpk_published *next;
    size_t size;
    uint8_t bytes[];
} mpk_published;

static mpk_published *published_take(mpk_load_job *job, size_t size)
{
    pthread_mutex_lock(&job->lock);
    mpk_published *buffer = job->published;
    if (buffer != NULL) job->published = buffer->next;
    pthread_mutex_unlock(&job->lock);
    if (buffer != NULL && buffer->size >= size) return buffer;
    free(buffer);
    if (size > SIZE_MAX - sizeof *buffer) return NULL;
    buffer = malloc(sizeof *buffer + size);
    if (buffer != NULL) buffer->size = size;
    return buffer;
}

static void published_return(mpk_load_job *job, mpk_published *buffer)
{
    if (buffer == NULL) return;
    pthread_mutex_lock(&job->lock);
    buffer->next = job->published;
    job->published = buffer;
    pthread_mutex_unlock(&job->lock);
}

void mpk_load_check_end(mpk_load_job *job)
{
    while (job->published != NULL) {
        mpk_published *buffer = job->published;
        job->published = buffer->next;
        free(buffer);
    }
}

static moepack_status check_canonical(mpk_load_job *job, const mpk_piece *piece, const moepack_desc *desc,
                                      const moepack_section *section, moepack_error *error)
{
    uint64_t found = 0;
    if (desc->layout == MOEPACK_LAYOUT_CANONICAL) {
        found = moepack_hash64(piece->bytes, (size_t)piece->stored);
    } else {
        moepack_matrix *matrices = calloc(desc->matrix_count, sizeof *matrices);
        mpk_published *published = published_take(job, (size_t)desc->canonical_length);
        moepack_status status = MOEPACK_OK;
        if (matrices == NULL || published == NULL) {
            status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        } else {
            for (uint32_t m = 0; m < desc->matrix_count; m++)
                moepack_index_matrix(job->load->index, desc->first_matrix + m, &matrices[m]);
            status = moepack_panel_to_canonical(matrices, desc->matrix_count, piece->bytes, (size_t)piece->stored,
                                                published->bytes, (size_t)desc->canonical_length, error);
            if (status == MOEPACK_OK) found = moepack_hash64(published->bytes, (size_t)desc->canonical_length);
        }
        free(matrices);
        published_return(job, published);
        if (status != MOEPACK_OK) return mpk_load_fail_at(job->load, piece, status, error);
    }
    if (found == section->xxh3_canonical) return MOEPACK_OK;
    return bad_hash(job, NULL, piece, "published bytes", section->xxh3_canonical, found, error);
}

/* Where the zero bytes behind a piece end: at the next section, or at the end of its last page (all that was loaded).
 */
static uint64_t padding_end(const mpk_load_job *job, size_t position)
{
    const mpk_piece *piece = &job->load->pieces[job->order[position]];
    const uint64_t end = piece->offset + piece->stored;
    uint64_t limit = (end + MPK_PAGE - 1) & ~(uint64_t)(MPK_PAGE - 1);
    if (piece->expert != MPK_NO_EXPERT) {
        if (piece->record_end < limit) limit = piece->record_end;
        if (position + 1 < job->order_count) {
            const mpk_piece *next = &job->load->pieces[job->order[position + 1]];
            if (next->shard == piece->shard && next->offset >= end && next->offset < limit) limit = next->offset;
        }
        return limit;
    }
    /* Sections of the trunk are numbered in storage order; the first of another shard starts before this one's end. */
    const uint64_t sections = moepack_index_sections(job->load->index);
    for (uint64_t s = piece->section + 1; s < sections; s++) {
        moepack_section next;
        moepack_index_section(job->load->index, s, &next);
        if (next.stored_length == 0) continue;
        if (next.offset >= end && next.offset < limit) limit = next.offset;
        break;
    }
    return limit;
}

static moepack_status check_padding(const mpk_load_job *job, size_t position, moepack_error *error)
{
    const mpk_piece *piece = &job->load->pieces[job->order[position]];
    const uint64_t limit = padding_end(job, position);
    for (uint64_t at = piece->offset + piece->stored; at < limit; at++) {
        if (piece->bytes[at - piece->offset] == 0) continue;
        moepack_status status = mpk_fail(error, MOEPACK_E_CORRUPT, "padding behind the section is not zero");
        mpk_error_offset(error, at);
        return mpk_load_fail_at(job->load, piece, status, error);
    }
    return MOEPACK_OK;
}

/* A section with parts was checked by them; its own hash is checked here. */
static moepack_status check_whole(const mpk_load_job *job, const mpk_piece *piece, const moepack_section *section,
                                  moepack_error *error)
{
    if (section->first_part == MOEPACK_NO_PARTS) return MOEPACK_OK;
    const uint64_t found = moepack_hash64(piece->bytes, (size_t)piece->stored);
    if (found == section->xxh3_stored) return MOEPACK_OK;
    return bad_hash(job, NULL, piece, "stored bytes", section->xxh3_stored, found, error);
}

moepack_status mpk_load_check_piece(mpk_load_job *job, size_t position, moepack_error *error)
{
    const mpk_piece *piece = &job->load->pieces[job->order[position]];
    moepack_desc desc;
    moepack_section section;
    moepack_index_desc(job->load->index, piece->desc, &desc);
    moepack_index_section(job->load->index, piece->section, &section);
    moepack_status status = MOEPACK_OK;
    /* A mapping that nobody wants verified is not touched at all. */
    if (job->options.io == MOEPACK_IO_DIRECT || job->options.check != MOEPACK_CHECK_NONE)
        status = check_scales(job, piece, &desc, error);
    if (status != MOEPACK_OK || job->options.check != MOEPACK_CHECK_FULL) return status;
    status = check_whole(job, piece, &section, error);
    if (status == MOEPACK_OK) status = check_canonical(job, piece, &desc, &section, error);
    if (status == MOEPACK_OK) status = check_padding(job, position, error);
    return status;
}
