/* Schemas and descriptions: what a section is. Equal content gets one entry. */
#include "layout.h"
#include "names.h"
#include "plan_internal.h"

/* Matrices that panel order changes: tiles and group scales (spec/container.md section 9). */
static bool panel_changes(const moepack_matrix *m)
{
    if (m->plane == MOEPACK_PLANE_WEIGHT) return m->cols > 1 && m->bits <= 32;
    return m->plane == MOEPACK_PLANE_SCALE && m->group_rows == 1 && (m->group_cols == 16 || m->group_cols == 32) &&
           (m->bits == 8 || m->bits == 16 || m->bits == 32);
}

/* Layout and decoded length of a section under the layout that was asked for. */
static void choose_layout(const mpk_planner *planner, const moepack_matrix *matrices, uint32_t count,
                          moepack_desc *desc)
{
    desc->layout = MOEPACK_LAYOUT_CANONICAL;
    desc->decoded_length = desc->canonical_length;
    if (planner->options->layout != MOEPACK_LAYOUT_PANEL || desc->canonical_length == 0) return;
    bool changes = false;
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t length;
        changes = changes || panel_changes(&matrices[i]);
        if (!moepack_panel_length(&matrices[i], &length) || !mpk_add64(total, length, &total)) return;
    }
    if (!changes) return;
    desc->layout = MOEPACK_LAYOUT_PANEL;
    desc->decoded_length = total;
}

static moepack_status intern_dims(mpk_planner *planner, const uint64_t *dims, uint32_t rank, uint32_t *first)
{
    mpk_tables *t = planner->tables;
    *first = 0;
    if (rank == 0) return MOEPACK_OK;
    for (size_t i = 0; i + rank <= t->dim_count; i++)
        if (memcmp(t->dims + i, dims, rank * sizeof *dims) == 0) {
            *first = (uint32_t)i;
            return MOEPACK_OK;
        }
    if (t->dim_count > UINT32_MAX - 1 - (size_t)rank) return mpk_plan_too_large(planner);
    *first = (uint32_t)t->dim_count;
    for (uint32_t i = 0; i < rank; i++) {
        if (!mpk_grow(&t->dims, t->dim_count, sizeof *t->dims)) return mpk_plan_oom(planner);
        t->dims[t->dim_count++] = dims[i];
    }
    return MOEPACK_OK;
}

static bool matrix_equal(const moepack_matrix *a, const moepack_matrix *b)
{
    return a->role == b->role && a->plane == b->plane && a->encoding == b->encoding && a->bits == b->bits &&
           a->group_rows == b->group_rows && a->group_cols == b->group_cols && a->rows == b->rows &&
           a->cols == b->cols && a->base == b->base && a->row_stride == b->row_stride && a->col_stride == b->col_stride;
}

static moepack_status intern_matrices(mpk_planner *planner, const moepack_matrix *matrices, uint32_t count,
                                      uint32_t *first)
{
    mpk_tables *t = planner->tables;
    *first = 0;
    if (count == 0) return MOEPACK_OK;
    for (size_t i = 0; i + count <= t->matrix_count; i++) {
        uint32_t same = 0;
        while (same < count && matrix_equal(&t->matrices[i + same], &matrices[same])) same++;
        if (same == count) {
            *first = (uint32_t)i;
            return MOEPACK_OK;
        }
    }
    if (t->matrix_count > UINT32_MAX - 1 - (size_t)count) return mpk_plan_too_large(planner);
    *first = (uint32_t)t->matrix_count;
    for (uint32_t i = 0; i < count; i++) {
        if (!mpk_grow(&t->matrices, t->matrix_count, sizeof *t->matrices)) return mpk_plan_oom(planner);
        t->matrices[t->matrix_count++] = matrices[i];
    }
    return MOEPACK_OK;
}

/* Strings are interned, so equal names have equal addresses. */
static bool desc_equal(const moepack_desc *a, const moepack_desc *b)
{
    return a->name.data == b->name.data && a->name.length == b->name.length && a->dtype == b->dtype &&
           a->layout == b->layout && a->fused == b->fused && a->flat == b->flat && a->rank == b->rank &&
           a->first_dim == b->first_dim && a->first_matrix == b->first_matrix && a->matrix_count == b->matrix_count &&
           a->canonical_length == b->canonical_length && a->decoded_length == b->decoded_length;
}

static moepack_status append_desc(mpk_planner *planner, const moepack_desc *desc)
{
    mpk_tables *t = planner->tables;
    if (t->desc_count >= UINT32_MAX - 1) return mpk_plan_too_large(planner);
    if (!mpk_grow(&t->descs, t->desc_count, sizeof *t->descs)) return mpk_plan_oom(planner);
    t->descs[t->desc_count++] = *desc;
    return MOEPACK_OK;
}

static moepack_status section_desc(mpk_planner *planner, const mpk_source_section *section, moepack_desc *desc)
{
    *desc = (moepack_desc){.dtype = section->dtype,
                           .fused = section->fused,
                           .flat = section->flat,
                           .rank = section->rank,
                           .matrix_count = section->matrix_count,
                           .canonical_length = section->length};
    if (!mpk_tables_string(planner->tables, section->pattern, strlen(section->pattern), &desc->name))
        return mpk_plan_oom(planner);
    choose_layout(planner, section->matrices, section->matrix_count, desc);
    moepack_status status = intern_dims(planner, section->dims, section->rank, &desc->first_dim);
    if (status == MOEPACK_OK)
        status = intern_matrices(planner, section->matrices, section->matrix_count, &desc->first_matrix);
    return status;
}

/* Places of the sections in a record: spec/container.md section 7. */
static moepack_status make_geometry(mpk_planner *planner, const moepack_desc *descs, uint32_t count)
{
    mpk_tables *t = planner->tables;
    mpk_record_geometry *g;
    if (!mpk_grow(&planner->geometry, t->schema_count, sizeof *planner->geometry)) return mpk_plan_oom(planner);
    g = &planner->geometry[t->schema_count];
    *g = (mpk_record_geometry){.offset = calloc(count, sizeof *g->offset)};
    if (!g->offset) return mpk_plan_oom(planner);
    bool fits = true;
    uint64_t at = 0;
    for (int small = 0; small < 2; small++) {
        fits = fits && mpk_align64(at, MPK_PAGE, &at);
        for (uint32_t i = 0; i < count && fits; i++) {
            uint64_t length = descs[i].decoded_length;
            if (length == 0 || (length <= MPK_SMALL) != (small == 1)) continue;
            fits = mpk_align64(at, small ? 8 : MPK_PAGE, &at);
            g->offset[i] = at;
            fits = fits && mpk_add64(at, length, &at);
        }
    }
    fits = fits && mpk_align64(at, MPK_PAGE, &at);
    g->length = at;
    if (fits) return MOEPACK_OK;
    free(g->offset);
    return mpk_plan_too_large(planner);
}

/* Appends a schema, or finds an equal one. */
static moepack_status intern_schema(mpk_planner *planner, const moepack_desc *descs, uint32_t count, uint32_t *schema)
{
    mpk_tables *t = planner->tables;
    for (size_t i = 0; i < t->schema_count; i++) {
        if (t->schemas[i].count != count) continue;
        uint32_t same = 0;
        while (same < count && desc_equal(&t->descs[t->schemas[i].first_desc + same], &descs[same])) same++;
        if (same == count) {
            *schema = (uint32_t)i;
            return MOEPACK_OK;
        }
    }
    moepack_status status = make_geometry(planner, descs, count);
    if (status != MOEPACK_OK) return status;
    mpk_schema_entry entry = {.first_desc = (uint32_t)t->desc_count, .count = count};
    if (!mpk_grow(&t->schemas, t->schema_count, sizeof *t->schemas)) {
        free(planner->geometry[t->schema_count].offset);
        return mpk_plan_oom(planner);
    }
    *schema = (uint32_t)t->schema_count;
    t->schemas[t->schema_count++] = entry;
    for (uint32_t i = 0; i < count && status == MOEPACK_OK; i++) status = append_desc(planner, &descs[i]);
    return status;
}

moepack_status mpk_plan_schema(mpk_planner *planner, uint32_t source_schema, uint32_t *schema)
{
    *schema = planner->schema_entry[source_schema];
    if (*schema != UINT32_MAX) return MOEPACK_OK;
    const mpk_source_schema *source = &planner->source->schemas[source_schema];
    moepack_desc descs[sizeof source->sections / sizeof *source->sections];
    moepack_status status = MOEPACK_OK;
    for (uint32_t i = 0; i < source->count && status == MOEPACK_OK; i++)
        status = section_desc(planner, &source->sections[i], &descs[i]);
    if (status == MOEPACK_OK) status = intern_schema(planner, descs, source->count, schema);
    if (status == MOEPACK_OK) planner->schema_entry[source_schema] = *schema;
    return status;
}

/* The matrix that a trunk tensor with a role holds. False: its bytes have no such form and stay opaque. Packed codes
 * (4-bit elements in U8 or I32 words) count elements, so one dimension of the matrix is wider than the tensor's. */
static bool role_matrix(const mpk_source_tensor *tensor, moepack_matrix *out)
{
    unsigned bits = mpk_encoding_bits((moepack_encoding)tensor->encoding);
    unsigned width = moepack_dtype_bits((moepack_dtype)tensor->dtype);
    if (tensor->role == MOEPACK_ROLE_NONE || bits == 0 || width < bits || width % bits != 0) return false;
    if (tensor->rank > 2) return false;
    uint64_t rows = tensor->rank > 0 ? tensor->dims[0] : 1, cols = tensor->rank == 2 ? tensor->dims[1] : 1;
    uint64_t packed = width / bits;
    if (packed > 1 && (tensor->rank != 2 || !mpk_mul64(cols, packed, &cols))) return false;
    *out = (moepack_matrix){.role = (moepack_role)tensor->role,
                            .plane = (moepack_plane)tensor->plane,
                            .encoding = (moepack_encoding)tensor->encoding,
                            .bits = bits,
                            .group_rows = tensor->group_rows,
                            .group_cols = tensor->group_cols,
                            .rows = rows,
                            .cols = cols,
                            .row_stride = cols,
                            .col_stride = 1};
    return rows != 0 && cols != 0;
}

moepack_status mpk_plan_tensor_desc(mpk_planner *planner, const mpk_source_tensor *tensor, uint32_t *entry)
{
    mpk_tables *t = planner->tables;
    moepack_matrix matrix;
    moepack_desc desc = {.dtype = (moepack_dtype)tensor->dtype,
                         .rank = tensor->rank,
                         .matrix_count = role_matrix(tensor, &matrix) ? 1 : 0,
                         .canonical_length = tensor->length};
    if (!mpk_tables_string(t, "", 0, &desc.name)) return mpk_plan_oom(planner);
    choose_layout(planner, &matrix, desc.matrix_count, &desc);
    moepack_status status = intern_dims(planner, tensor->dims, tensor->rank, &desc.first_dim);
    if (status == MOEPACK_OK) status = intern_matrices(planner, &matrix, desc.matrix_count, &desc.first_matrix);
    if (status != MOEPACK_OK) return status;
    for (size_t i = 0; i < t->desc_count; i++)
        if (desc_equal(&t->descs[i], &desc)) {
            *entry = (uint32_t)i;
            return MOEPACK_OK;
        }
    *entry = (uint32_t)t->desc_count;
    return append_desc(planner, &desc);
}
