/* E8M0 scale bytes: 255 is NaN and stops a conversion; 253 and 254 times a large code is infinity in F32 and is worth a
 * warning, because the official dequantisation then gives infinity. */
#include "pipeline.h"

#include "bytes.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void scan_range(const uint8_t *bytes, uint64_t size, uint64_t position, mpk_scale_scan *scan)
{
    const uint8_t *nan = memchr(bytes, 255, size);
    if (nan) {
        uint64_t at = position + (uint64_t)(nan - bytes);
        if (!scan->nan || at < scan->nan_at) scan->nan_at = at;
        scan->nan = true;
    }
    scan->large = scan->large || memchr(bytes, 254, size) || memchr(bytes, 253, size);
}

void mpk_scales_scan(const mpk_shape *shape, uint64_t offset, const uint8_t *bytes, uint64_t size, mpk_scale_scan *scan)
{
    for (uint32_t i = 0; i < shape->matrix_count; i++) {
        const moepack_matrix *m = &shape->matrices[i];
        if (m->encoding != MOEPACK_ENC_E8M0 || m->cols == 0) continue;
        if (m->col_stride == 1 && m->row_stride == m->cols) {
            uint64_t first = m->base > offset ? m->base : offset;
            uint64_t end = m->base + m->rows * m->cols;
            if (end > offset + size) end = offset + size;
            if (first < end) scan_range(bytes + (first - offset), end - first, first, scan);
            continue;
        }
        for (uint64_t r = 0; r < m->rows; r++)
            for (uint64_t c = 0; c < m->cols; c++) {
                uint64_t at = m->base + r * m->row_stride + c * m->col_stride;
                if (at >= offset && at - offset < size) scan_range(bytes + (at - offset), 1, at, scan);
            }
    }
}

/* ---- overflow ---- */

typedef struct section_bytes {
    int fd;
    char *path;
    const mpk_piece *piece;
} section_bytes;

static moepack_status open_piece(const mpk_source *source, const mpk_plan *plan, const mpk_piece *piece,
                                 section_bytes *out, moepack_error *error)
{
    uint64_t size;
    *out = (section_bytes){.fd = -1, .piece = piece};
    out->path = mpk_path_join(source->dir, source->files[plan->source_file[piece->file]].name);
    if (!out->path) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    return mpk_file_open(out->path, &out->fd, &size, error);
}

static void close_piece(section_bytes *bytes)
{
    if (bytes->fd >= 0) close(bytes->fd);
    free(bytes->path);
}

/* Codes of one row in [first, first + count) whose magnitude times 2^(scale - 127) is at least 2^128. E2M1 magnitudes
 * by their low three bits: 0, .5, 1, 1.5, 2, 3, 4, 6; so 2^126 overflows from 4 (6, 7), 2^127 from 2 (4 ... 7). */
static uint64_t overflowing_codes(const uint8_t *row, uint64_t first, uint64_t count, uint8_t scale)
{
    unsigned least = scale == 254 ? 4 : 6;
    uint64_t found = 0;
    for (uint64_t c = first; c < first + count; c++) {
        unsigned code = ((unsigned)row[c / 2] >> (c % 2 * 4)) & 7u;
        found += code >= least;
    }
    return found;
}

static moepack_status count_rows(const section_bytes *weights, const moepack_matrix *w, const uint8_t *scales,
                                 const moepack_matrix *s, uint64_t *overflows, moepack_error *error)
{
    uint64_t row_bytes = (w->cols + 1) / 2;
    uint8_t *row = malloc(row_bytes ? row_bytes : 1);
    if (!row) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    moepack_status status = MOEPACK_OK;
    for (uint64_t r = 0; r < s->rows && r < w->rows && status == MOEPACK_OK; r++) {
        bool loaded = false;
        for (uint64_t g = 0; g < s->cols && status == MOEPACK_OK; g++) {
            uint8_t scale = scales[s->base + r * s->row_stride + g * s->col_stride];
            uint64_t first = g * s->group_cols;
            if ((scale != 253 && scale != 254) || first >= w->cols) continue;
            if (!loaded)
                status =
                    mpk_file_pread(weights->fd, row, row_bytes,
                                   weights->piece->offset + (w->base + r * w->row_stride) / 2, weights->path, error);
            loaded = true;
            uint64_t count = w->cols - first < s->group_cols ? w->cols - first : s->group_cols;
            if (status == MOEPACK_OK) *overflows += overflowing_codes(row, first, count, scale);
        }
    }
    free(row);
    return status;
}

/* The 4-bit weights that a scale matrix belongs to: same role, in another section of the same record. */
static bool find_weights(const mpk_plan *plan, const mpk_piece *scale, const moepack_matrix *s, const size_t *piece_of,
                         const mpk_piece **piece, const moepack_matrix **w)
{
    const mpk_tables *t = &plan->tables;
    if (scale->block == MOEPACK_NO_BLOCK || scale->expert == UINT32_MAX) return false;
    const moepack_record *record = &t->records[t->blocks[scale->block].first_record + scale->expert];
    const mpk_schema_entry *schema = &t->schemas[record->schema];
    for (uint32_t i = 0; i < schema->count; i++) {
        const moepack_desc *desc = &t->descs[schema->first_desc + i];
        for (uint32_t m = 0; m < desc->matrix_count; m++) {
            *w = &t->matrices[desc->first_matrix + m];
            *piece = &plan->pieces[piece_of[record->first_section + i]];
            if ((*w)->role == s->role && (*w)->plane == MOEPACK_PLANE_WEIGHT && (*w)->encoding == MOEPACK_ENC_E2M1)
                return (*w)->col_stride == 1 && (*w)->base % 2 == 0 && (*w)->row_stride % 2 == 0 && s->group_rows == 1;
        }
    }
    return false;
}

static moepack_status count_piece(const mpk_source *source, const mpk_plan *plan, const mpk_piece *scale,
                                  const size_t *piece_of, uint64_t *overflows, moepack_error *error)
{
    mpk_shape shape;
    section_bytes bytes, weights;
    mpk_plan_shape(plan, scale, &shape);
    moepack_status status = open_piece(source, plan, scale, &bytes, error);
    uint8_t *scales = malloc(scale->length ? scale->length : 1);
    if (status == MOEPACK_OK && !scales) status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    if (status == MOEPACK_OK)
        status = mpk_file_pread(bytes.fd, scales, scale->length, scale->offset, bytes.path, error);
    for (uint32_t i = 0; i < shape.matrix_count && status == MOEPACK_OK; i++) {
        const moepack_matrix *s = &shape.matrices[i], *w;
        const mpk_piece *piece;
        if (s->encoding != MOEPACK_ENC_E8M0 || !find_weights(plan, scale, s, piece_of, &piece, &w)) continue;
        status = open_piece(source, plan, piece, &weights, error);
        if (status == MOEPACK_OK) status = count_rows(&weights, w, scales, s, overflows, error);
        close_piece(&weights);
    }
    free(scales);
    close_piece(&bytes);
    return status;
}

moepack_status mpk_scales_overflows(const mpk_source *source, const mpk_plan *plan, const size_t *pieces, size_t count,
                                    uint64_t *weights, uint64_t *sections, moepack_error *error)
{
    *weights = *sections = 0;
    if (count == 0) return MOEPACK_OK;
    size_t *piece_of = calloc(plan->tables.section_count ? plan->tables.section_count : 1, sizeof *piece_of);
    if (!piece_of) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (size_t i = 0; i < plan->piece_count; i++) piece_of[plan->pieces[i].section] = i;
    moepack_status status = MOEPACK_OK;
    for (size_t i = 0; i < count && status == MOEPACK_OK; i++) {
        uint64_t here = 0;
        status = count_piece(source, plan, &plan->pieces[pieces[i]], piece_of, &here, error);
        *weights += here;
        *sections += here > 0;
    }
    free(piece_of);
    return status;
}
