/* Bytes by role and plane, and the distribution of scales. */
#include "inspect.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void inspect_sum_name(unsigned role, unsigned plane, char *buf, size_t size)
{
    const char *role_name = moepack_role_name((moepack_role)role),
               *plane_name = moepack_plane_name((moepack_plane)plane);
    snprintf(buf, size, "%s %s", role_name != NULL ? role_name : "?", plane_name != NULL ? plane_name : "?");
}

/* ------------------------------------------------------------------------------------------------- sums */

static void add_sum(inspect_sum *sum, uint64_t published, uint64_t stored)
{
    sum->matrices++;
    sum->published_bytes += published;
    sum->stored_bytes += stored;
}

static uint64_t matrix_bytes(const moepack_matrix *matrix)
{
    return matrix->bits < 8 ? matrix->rows * matrix->cols * matrix->bits / 8
                            : matrix->rows * matrix->cols * (matrix->bits / 8);
}

/* A section with several matrices (fused gate and up) is split by their published sizes, its stored bytes in
 * proportion. */
static void add_section(const inspect_view *view, inspect_stats *out, const moepack_desc *desc, uint64_t stored)
{
    if (desc->matrix_count == 0) {
        add_sum(&out->carried, desc->canonical_length, stored);
        return;
    }
    for (uint32_t i = 0; i < desc->matrix_count; i++) {
        moepack_matrix matrix;
        moepack_index_matrix(view->index, desc->first_matrix + i, &matrix);
        uint64_t published = desc->matrix_count == 1 ? desc->canonical_length : matrix_bytes(&matrix);
        double share = desc->canonical_length > 0 ? (double)published / (double)desc->canonical_length : 0;
        uint64_t part = desc->matrix_count == 1 ? stored : (uint64_t)((double)stored * share + 0.5);
        add_sum(&out->sums[matrix.role % INSPECT_ROLES][matrix.plane % INSPECT_PLANES], published, part);
    }
}

static void sum_expert(const inspect_view *view, inspect_stats *out, const moepack_record *record)
{
    uint32_t first_desc, count;
    moepack_index_schema(view->index, record->schema, &first_desc, &count);
    for (uint32_t s = 0; s < count; s++) {
        moepack_desc desc;
        moepack_section section;
        moepack_index_desc(view->index, first_desc + s, &desc);
        moepack_index_section(view->index, record->first_section + s, &section);
        add_section(view, out, &desc, section.stored_length);
    }
}

static void sum_trunk(const inspect_view *view, inspect_stats *out)
{
    uint32_t count = moepack_index_tensors(view->index);
    for (uint32_t i = 0; i < count; i++) {
        moepack_tensor tensor;
        moepack_desc desc;
        moepack_section section;
        moepack_index_tensor(view->index, i, &tensor);
        if (view->block != INSPECT_NONE && tensor.block != view->block) continue;
        moepack_index_desc(view->index, tensor.desc, &desc);
        moepack_index_section(view->index, tensor.section, &section);
        add_section(view, out, &desc, section.stored_length);
    }
}

/* ------------------------------------------------------------------------------------------------- scales */

static moepack_status fail(moepack_error *error, moepack_status status, const char *file, const char *fmt, ...)
    MOEPACK_PRINTF(4, 5);

static moepack_status fail(moepack_error *error, moepack_status status, const char *file, const char *fmt, ...)
{
    va_list args;
    memset(error, 0, sizeof *error);
    error->status = status;
    error->expert = error->offset = -1;
    snprintf(error->file, sizeof error->file, "%s", file);
    va_start(args, fmt);
    vsnprintf(error->message, sizeof error->message, fmt, args);
    va_end(args);
    return status;
}

static moepack_status read_range(const char *file, uint64_t offset, void *buf, size_t size, moepack_error *error)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(error, errno == ENOENT ? MOEPACK_E_INCOMPLETE : MOEPACK_E_IO, file, "cannot open: %s",
                    strerror(errno));
    moepack_status status = MOEPACK_OK;
    for (size_t done = 0; done < size && status == MOEPACK_OK;) {
        ssize_t n = pread(fd, (char *)buf + done, size - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status = fail(error, MOEPACK_E_IO, file, "cannot read: %s", strerror(errno));
        if (n == 0)
            status =
                fail(error, MOEPACK_E_INCOMPLETE, file, "ends before byte %llu", (unsigned long long)(offset + size));
        if (n > 0) done += (size_t)n;
    }
    close(fd);
    return status;
}

/* A section's published bytes, after its stored hash was checked. */
static moepack_status load_section(const char *file, const moepack_desc *desc, const moepack_section *section,
                                   const moepack_matrix *matrix, uint8_t *stored, uint8_t *published,
                                   moepack_error *error)
{
    char expected[17], found[17];
    moepack_status status = read_range(file, section->offset, stored, section->stored_length, error);
    if (status != MOEPACK_OK) return status;
    uint64_t hash = moepack_hash64(stored, section->stored_length);
    if (hash != section->xxh3_stored) {
        moepack_hash64_text(section->xxh3_stored, expected);
        moepack_hash64_text(hash, found);
        return fail(error, MOEPACK_E_CORRUPT, file, "hash %s, expected %s", found, expected);
    }
    if (desc->layout == MOEPACK_LAYOUT_CANONICAL) {
        memcpy(published, stored, desc->canonical_length);
        return MOEPACK_OK;
    }
    return moepack_panel_to_canonical(matrix, 1, stored, section->stored_length, published, desc->canonical_length,
                                      error);
}

static moepack_status count_section(const inspect_view *view, uint32_t expert, uint32_t s, const moepack_record *record,
                                    const moepack_desc *desc, const moepack_matrix *matrix, inspect_stats *out,
                                    moepack_error *error)
{
    moepack_section section;
    moepack_shard shard;
    char file[4096];
    moepack_index_section(view->index, record->first_section + s, &section);
    moepack_index_shard(view->index, record->shard, &shard);
    snprintf(file, sizeof file, "%s/%.*s", view->path, (int)shard.name.length, shard.name.data);
    if (section.stored_length == 0 || section.codec != MOEPACK_CODEC_RAW) return MOEPACK_OK;
    uint8_t *stored = malloc(section.stored_length), *published = malloc(desc->canonical_length);
    moepack_status status = stored != NULL && published != NULL
                                ? load_section(file, desc, &section, matrix, stored, published, error)
                                : fail(error, MOEPACK_E_REFUSED, file, "no memory for %llu bytes",
                                       (unsigned long long)section.stored_length);
    if (status == MOEPACK_OK) {
        out->scales = true;
        for (uint64_t i = 0; i < desc->canonical_length; i++) out->exponents[published[i]]++;
    } else {
        moepack_index_label(view->index, view->block, error->layer);
        error->expert = expert;
        error->offset = (int64_t)section.offset;
        moepack_index_section_name(view->index, view->block, expert, s, error->tensor, sizeof error->tensor);
    }
    free(stored);
    free(published);
    return status;
}

static moepack_status count_scales(const inspect_view *view, uint32_t expert, const moepack_record *record,
                                   inspect_stats *out, moepack_error *error)
{
    uint32_t first_desc, count;
    moepack_index_schema(view->index, record->schema, &first_desc, &count);
    for (uint32_t s = 0; s < count; s++) {
        moepack_desc desc;
        moepack_matrix matrix;
        moepack_index_desc(view->index, first_desc + s, &desc);
        if (desc.matrix_count != 1) continue;
        moepack_index_matrix(view->index, desc.first_matrix, &matrix);
        if (matrix.plane != MOEPACK_PLANE_SCALE || matrix.encoding != MOEPACK_ENC_E8M0) continue;
        moepack_status status = count_section(view, expert, s, record, &desc, &matrix, out, error);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------- gather */

static moepack_status gather_block(const inspect_view *view, uint32_t number, inspect_stats *out, moepack_error *error)
{
    moepack_block block;
    moepack_index_block(view->index, number, &block);
    uint32_t begin = view->expert != INSPECT_NONE ? view->expert : 0;
    uint32_t end = view->expert != INSPECT_NONE ? view->expert + 1 : block.experts;
    for (uint32_t e = begin; e < end; e++) {
        moepack_record record;
        moepack_index_record(view->index, block.first_record + e, &record);
        if (record.shard == MOEPACK_NO_SHARD) continue;
        if (cli_cancelled) return fail(error, MOEPACK_E_INTERRUPTED, view->path, "interrupted");
        sum_expert(view, out, &record);
        if (view->block == INSPECT_NONE) continue;
        moepack_status status = count_scales(view, e, &record, out, error);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}

moepack_status inspect_gather_stats(const inspect_view *view, inspect_stats *out, moepack_error *error)
{
    memset(out, 0, sizeof *out);
    if (view->expert == INSPECT_NONE) sum_trunk(view, out);
    if (view->block != INSPECT_NONE) return gather_block(view, view->block, out, error);
    uint32_t blocks = moepack_index_blocks(view->index);
    for (uint32_t b = 0; b < blocks; b++) {
        moepack_status status = gather_block(view, b, out, error);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}
