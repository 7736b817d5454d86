/* Shapes: from the family's terms and the config's sizes to numbers, and tensors against them. */
#include "source_internal.h"

#include "bytes.h"
#include "error.h"
#include "safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static moepack_status bad_term(mpk_opening *o, const char *form, const char *pattern, const char *what)
{
    const uint64_t *size = o->state->config.size;
    return mpk_fail(o->error, MOEPACK_E_UNSUPPORTED,
                    "storage form %s cannot hold %s: the %s is no whole number at hidden %" PRIu64
                    ", expert input %" PRIu64 ", intermediate %" PRIu64,
                    form, pattern, what, size[MPK_H], size[MPK_L], size[MPK_I]);
}

static bool matrix_of(const mpk_family_matrix *from, const uint64_t *size, moepack_matrix *to)
{
    to->role = (moepack_role)from->role;
    to->plane = (moepack_plane)from->plane;
    to->encoding = (moepack_encoding)from->encoding;
    to->bits = from->bits;
    to->group_rows = from->group_rows;
    to->group_cols = from->group_cols;
    return mpk_term_value(from->rows, size, &to->rows) && mpk_term_value(from->cols, size, &to->cols) &&
           mpk_term_value(from->base, size, &to->base) && mpk_term_value(from->row_stride, size, &to->row_stride) &&
           mpk_term_value(from->col_stride, size, &to->col_stride);
}

static moepack_status section_of(mpk_opening *o, const mpk_family_form *form, const mpk_family_section *from,
                                 mpk_source_section *to)
{
    const uint64_t *size = o->state->config.size;
    to->pattern = from->pattern;
    to->dtype = from->dtype;
    to->fused = strchr(from->pattern, '{') == NULL;
    to->flat = from->flat;
    to->rank = from->rank;
    for (uint32_t d = 0; d < from->rank; d++) {
        if (!mpk_term_value(from->dims[d], size, &to->dims[d])) return bad_term(o, form->name, from->pattern, "shape");
    }
    if (!mpk_tensor_bytes(to->dtype, to->rank, to->dims, &to->length))
        return bad_term(o, form->name, from->pattern, "number of bytes");
    to->matrix_count = from->matrix_count;
    for (uint32_t m = 0; m < from->matrix_count; m++) {
        if (!matrix_of(&from->matrices[m], size, &to->matrices[m]))
            return bad_term(o, form->name, from->pattern, "matrix inside it");
    }
    return MOEPACK_OK;
}

moepack_status mpk_source_schema_of(mpk_opening *o, uint32_t form, uint32_t *schema)
{
    if (o->form_schema[form] == UINT32_MAX) {
        const mpk_family_form *from = &o->state->family->forms[form];
        mpk_source_schema *to = &o->source->schemas[o->source->schema_count];
        to->count = from->count;
        for (uint32_t s = 0; s < from->count; s++) {
            moepack_status status = section_of(o, from, &from->sections[s], &to->sections[s]);
            if (status) return status;
        }
        o->form_schema[form] = o->source->schema_count++;
    }
    *schema = o->form_schema[form];
    return MOEPACK_OK;
}

const char *mpk_source_show_shape(const uint64_t *dims, uint32_t rank, char *buf, size_t size)
{
    size_t used = (size_t)snprintf(buf, size, "[");
    for (uint32_t d = 0; d < rank && used < size; d++)
        used += (size_t)snprintf(buf + used, size - used, "%s%" PRIu64, d ? ", " : "", dims[d]);
    if (used < size) snprintf(buf + used, size - used, "]");
    return buf;
}

moepack_status mpk_source_check_shape(mpk_opening *o, uint32_t tensor, const mpk_term *dims, uint32_t rank,
                                      mpk_fusion fusion)
{
    const mpk_source_tensor *t = &o->source->tensors[tensor];
    const uint64_t *size = o->state->config.size;
    uint64_t wanted[MPK_RANK_MAX + 1];
    uint32_t wanted_rank = 0;
    bool whole = true;
    if (fusion == MPK_FUSED) wanted[wanted_rank++] = size[MPK_E];
    for (uint32_t d = 0; d < rank; d++) whole = mpk_term_value(dims[d], size, &wanted[wanted_rank++]) && whole;
    if (fusion == MPK_FLAT) whole = rank > 0 && whole && mpk_mul64(wanted[0], size[MPK_E], &wanted[0]);
    if (whole && t->rank == wanted_rank && memcmp(t->dims, wanted, wanted_rank * sizeof *wanted) == 0)
        return MOEPACK_OK;

    char found[96], expected[96] = "no whole numbers";
    mpk_source_show_shape(t->dims, t->rank, found, sizeof found);
    if (whole) mpk_source_show_shape(wanted, wanted_rank, expected, sizeof expected);
    mpk_fail(o->error, MOEPACK_E_CORRUPT,
             "shape is %s, config.json makes it %s (experts %" PRIu64 ", hidden %" PRIu64 ", expert input %" PRIu64
             ", intermediate %" PRIu64 ", shared %" PRIu64 ")",
             found, expected, size[MPK_E], size[MPK_H], size[MPK_L], size[MPK_I], size[MPK_S]);
    return mpk_source_blame(o, MOEPACK_E_CORRUPT, t->file, t->name);
}

moepack_encoding mpk_dense_encoding(moepack_dtype dtype)
{
    switch (dtype) {
    case MOEPACK_DTYPE_BF16:
        return MOEPACK_ENC_BF16;
    case MOEPACK_DTYPE_F16:
        return MOEPACK_ENC_F16;
    case MOEPACK_DTYPE_F32:
        return MOEPACK_ENC_F32;
    default:
        return MOEPACK_ENC_NONE;
    }
}

moepack_encoding mpk_table_encoding(moepack_dtype dtype)
{
    return dtype == MOEPACK_DTYPE_I64   ? MOEPACK_ENC_I64
           : dtype == MOEPACK_DTYPE_I32 ? MOEPACK_ENC_I32
                                        : MOEPACK_ENC_NONE;
}
