/* Which sections are quantised and what they become, and the decoding of their elements. */
#include "quantize.h"

#include "bytes.h"
#include "element.h"
#include "error.h"
#include "mxfp4.h"
#include "safetensors.h"
#include "source_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ------------------------------------------------------------------------------------------------ schemas */

typedef struct rewriter {
    mpk_source *source;
    const mpk_source_block *block; /* for messages */
    bool force;
    moepack_error *error;
} rewriter;

static moepack_status refuse(const rewriter *r, moepack_status status, const mpk_source_section *section,
                             const char *why)
{
    mpk_fail(r->error, status, "cannot be quantised: %s", why);
    mpk_error_file(r->error, r->source->dir);
    mpk_error_layer(r->error, r->block->label);
    mpk_error_tensor(r->error, section->pattern, -1);
    return status;
}

static bool is_weight(const mpk_source_section *section)
{
    for (uint32_t m = 0; m < section->matrix_count; m++)
        if (section->matrices[m].plane == MOEPACK_PLANE_WEIGHT && section->matrices[m].cols > 1) return true;
    return false;
}

/* Whether sections are planes of the same matrices. */
static bool same_roles(const mpk_source_section *a, const mpk_source_section *b)
{
    if (a->matrix_count != b->matrix_count) return false;
    for (uint32_t m = 0; m < a->matrix_count; m++)
        if (a->matrices[m].role != b->matrices[m].role) return false;
    return true;
}

static uint32_t find_plane(const mpk_source_schema *schema, uint32_t weight, moepack_plane plane)
{
    for (uint32_t s = 0; s < schema->count; s++) {
        const mpk_source_section *section = &schema->sections[s];
        if (section->matrix_count > 0 && section->matrices[0].plane == plane &&
            same_roles(section, &schema->sections[weight]))
            return s;
    }
    return UINT32_MAX;
}

static bool scaled(moepack_encoding encoding)
{
    return encoding == MOEPACK_ENC_E4M3 || encoding == MOEPACK_ENC_E2M1 || encoding == MOEPACK_ENC_INT4_OFFSET;
}

static moepack_status check_weight(const rewriter *r, const mpk_source_schema *schema, uint32_t weight, uint32_t *scale)
{
    const mpk_source_section *section = &schema->sections[weight];
    const moepack_encoding encoding = section->matrices[0].encoding;
    *scale = UINT32_MAX;
    for (uint32_t m = 0; m < section->matrix_count; m++) {
        const moepack_matrix *matrix = &section->matrices[m];
        if (matrix->cols % MPK_MXFP4_BLOCK != 0)
            return refuse(r, MOEPACK_E_UNSUPPORTED, section, "its rows are not whole blocks of 32 columns");
        if (matrix->cols != section->matrices[0].cols || matrix->encoding != encoding)
            return refuse(r, MOEPACK_E_UNSUPPORTED, section, "its matrices differ in width");
    }
    if ((encoding == MOEPACK_ENC_E2M1 || encoding == MOEPACK_ENC_INT4_OFFSET) && !r->force)
        return refuse(
            r, MOEPACK_E_REFUSED, section,
            "it has 4 bits already, and a second rounding adds its error to the first; --force-requantize does "
            "it all the same");
    if (find_plane(schema, weight, MOEPACK_PLANE_GLOBAL_SCALE) != UINT32_MAX)
        return refuse(r, MOEPACK_E_UNSUPPORTED, section, "weights with a scale for the whole matrix are not read here");
    if (encoding == MOEPACK_ENC_F32 || encoding == MOEPACK_ENC_BF16 || encoding == MOEPACK_ENC_F16) return MOEPACK_OK;
    if (!scaled(encoding))
        return refuse(r, MOEPACK_E_UNSUPPORTED, section, "this version does not read its encoding here");
    *scale = find_plane(schema, weight, MOEPACK_PLANE_SCALE);
    if (*scale == UINT32_MAX) return refuse(r, MOEPACK_E_UNSUPPORTED, section, "it has no scales");
    return MOEPACK_OK;
}

/* "x.weight" -> "x.weight_packed"; a name that the source has published stays apart by its `_packed` being replaced. */
static char *derived_name(mpk_source *source, const char *pattern, const char *suffix)
{
    size_t length = strlen(pattern);
    static const char *const endings[] = {"_packed", "_blocks"};
    for (size_t i = 0; i < COUNT(endings); i++) {
        const size_t ending = strlen(endings[i]);
        if (length > ending && strcmp(pattern + length - ending, endings[i]) == 0) length -= ending;
    }
    char *name = mpk_arena_alloc(source->arena, length + strlen(suffix) + 1);
    if (name) sprintf(name, "%.*s%s", (int)length, pattern, suffix);
    return name;
}

/* Codes or scales of all matrices of a section, one after the other, [rows, cols / per]. */
static bool derive(mpk_source *source, const mpk_source_section *from, mpk_derived kind, mpk_source_section *to)
{
    const bool codes = kind == MPK_DERIVED_CODES;
    const uint64_t cols = from->matrices[0].cols / (codes ? 1 : MPK_MXFP4_BLOCK);
    *to = (mpk_source_section){.dtype = MOEPACK_DTYPE_U8,
                               .fused = from->fused,
                               .rank = 2,
                               .matrix_count = from->matrix_count,
                               .derived = kind};
    to->pattern = derived_name(source, from->pattern, codes ? "_packed" : "_scale");
    if (!to->pattern) return false;
    uint64_t rows = 0;
    for (uint32_t m = 0; m < from->matrix_count; m++) {
        to->matrices[m] = (moepack_matrix){.role = from->matrices[m].role,
                                           .plane = codes ? MOEPACK_PLANE_WEIGHT : MOEPACK_PLANE_SCALE,
                                           .encoding = codes ? MOEPACK_ENC_E2M1 : MOEPACK_ENC_E8M0,
                                           .bits = codes ? 4 : 8,
                                           .group_rows = codes ? 0 : 1,
                                           .group_cols = codes ? 0 : MPK_MXFP4_BLOCK,
                                           .rows = from->matrices[m].rows,
                                           .cols = cols,
                                           .base = rows * cols,
                                           .row_stride = cols,
                                           .col_stride = 1};
        rows += from->matrices[m].rows;
    }
    to->dims[0] = rows;
    to->dims[1] = codes ? cols / 2 : cols;
    to->length = rows * to->dims[1];
    return true;
}

/* Planes that go with a matrix that is encoded anew say nothing any more. */
static bool is_left_out(const mpk_source_schema *schema, uint32_t s)
{
    const mpk_source_section *section = &schema->sections[s];
    if (section->matrix_count == 0) return false;
    const moepack_plane plane = section->matrices[0].plane;
    if (plane != MOEPACK_PLANE_SCALE && plane != MOEPACK_PLANE_SHAPE && plane != MOEPACK_PLANE_OTHER) return false;
    for (uint32_t w = 0; w < schema->count; w++)
        if (is_weight(&schema->sections[w]) && same_roles(&schema->sections[w], section)) return true;
    return false;
}

static moepack_status rewrite_schema(rewriter *r, const mpk_source_schema *from, mpk_source_schema *to)
{
    *to = (mpk_source_schema){0};
    for (uint32_t s = 0; s < from->count; s++) {
        if (is_left_out(from, s)) continue;
        uint32_t scale = UINT32_MAX;
        if (to->count + 2 > COUNT(to->sections))
            return refuse(r, MOEPACK_E_UNSUPPORTED, &from->sections[s], "the expert would have too many sections");
        if (!is_weight(&from->sections[s])) {
            to->sections[to->count] = from->sections[s];
            to->sections[to->count++].published = s;
            continue;
        }
        moepack_status status = check_weight(r, from, s, &scale);
        if (status != MOEPACK_OK) return status;
        for (mpk_derived kind = MPK_DERIVED_CODES; kind <= MPK_DERIVED_SCALES; kind++) {
            mpk_source_section *section = &to->sections[to->count++];
            if (!derive(r->source, &from->sections[s], kind, section))
                return mpk_fail(r->error, MOEPACK_E_REFUSED, "out of memory");
            section->published = s;
            section->published_scale = scale;
        }
    }
    return MOEPACK_OK;
}

/* The new sections' tensors: those whose bytes they are made of. */
static bool rewrite_block(const mpk_source *source, mpk_source_block *block, const mpk_source_schema *schemas)
{
    const size_t stride = COUNT(schemas->sections);
    uint32_t *tensor = malloc((block->experts * stride + 1) * sizeof *tensor);
    if (!tensor) return false;
    for (uint32_t e = 0; e < block->experts; e++) {
        const mpk_source_schema *to = &schemas[mpk_source_expert_schema(block, e)];
        const uint32_t *from = mpk_source_expert_tensors(source, block, e);
        for (uint32_t s = 0; s < to->count; s++) tensor[e * stride + s] = from[to->sections[s].published];
    }
    block->published = block->section;
    block->published_stride = block->stride ? block->stride : source->schemas[block->schema].count;
    block->section = tensor;
    block->stride = (uint32_t)stride;
    return true;
}

static bool uses_schema(const mpk_source_block *block, uint32_t schema)
{
    for (uint32_t e = 0; e < block->experts; e++)
        if (mpk_source_expert_schema(block, e) == schema) return true;
    return false;
}

moepack_status mpk_source_quantize(mpk_source *source, bool force, moepack_error *error)
{
    mpk_source_schema *schemas = calloc(source->schema_count + 1, sizeof *schemas);
    if (!schemas) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    moepack_status status = MOEPACK_OK;
    for (uint32_t i = 0; i < source->schema_count && status == MOEPACK_OK; i++) {
        rewriter r = {source, &source->blocks[0], force, error};
        for (uint32_t b = 0; b < source->block_count; b++)
            if (source->blocks[b].selected && uses_schema(&source->blocks[b], i)) r.block = &source->blocks[b];
        status = rewrite_schema(&r, &source->schemas[i], &schemas[i]);
    }
    for (uint32_t b = 0; b < source->block_count && status == MOEPACK_OK; b++) {
        if (!rewrite_block(source, &source->blocks[b], schemas))
            status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    if (status != MOEPACK_OK) {
        free(schemas);
        return status;
    }
    source->published = source->schemas;
    source->schemas = schemas;
    source->quantized = true;
    source->subset = true; /* the source's own bytes are not all there */
    return MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------ elements */

static double element(moepack_encoding encoding, const uint8_t *bytes, uint64_t i)
{
    const unsigned nibble = ((unsigned)bytes[i / 2] >> i % 2 * 4) & 15u;
    switch (encoding) {
    case MOEPACK_ENC_F32:
        return (double)mpk_value_f32(mpk_load32(bytes + 4 * i));
    case MOEPACK_ENC_BF16:
        return (double)mpk_value_bf16(mpk_load16(bytes + 2 * i));
    case MOEPACK_ENC_F16:
        return (double)mpk_value_f16(mpk_load16(bytes + 2 * i));
    case MOEPACK_ENC_E4M3:
        return (double)mpk_value_e4m3(bytes[i]);
    case MOEPACK_ENC_E8M0:
        return bytes[i] == 255 ? (double)NAN : ldexp(1, bytes[i] - 127);
    case MOEPACK_ENC_E2M1:
        return (double)mpk_value_e2m1(nibble);
    case MOEPACK_ENC_INT4_OFFSET:
        return (double)mpk_value_int4(nibble);
    default:
        return (double)NAN;
    }
}

/* Scale of element (r, c): one for a group of rows and columns; a plane without groups has one for each row. */
static double scale_at(const mpk_quantize_input *input, uint32_t m, uint64_t r, uint64_t c)
{
    if (!input->scale) return 1;
    const moepack_matrix *s = &input->scale->matrices[m];
    const uint64_t rows = s->group_rows ? s->group_rows : 1, cols = s->group_cols ? s->group_cols : UINT64_MAX;
    return element(s->encoding, input->scale_bytes, s->base + r / rows * s->row_stride + c / cols * s->col_stride);
}

moepack_status mpk_quantize_rows(const mpk_quantize_input *input, uint32_t m, uint64_t row, uint64_t count,
                                 uint8_t *codes, uint8_t *scales, uint64_t *bad, moepack_error *error)
{
    const moepack_matrix *matrix = &input->weight->matrices[m];
    float block[MPK_MXFP4_BLOCK];
    for (uint64_t r = row; r < row + count; r++) {
        for (uint64_t c = 0; c < matrix->cols; c += MPK_MXFP4_BLOCK) {
            for (uint64_t i = 0; i < MPK_MXFP4_BLOCK; i++) {
                const uint64_t at = matrix->base + r * matrix->row_stride + (c + i) * matrix->col_stride;
                block[i] = (float)(element(matrix->encoding, input->weight_bytes, at - input->first) *
                                   scale_at(input, m, r, c + i));
                if (isfinite(block[i])) continue;
                *bad = at;
                return mpk_fail(error, MOEPACK_E_CORRUPT,
                                "row %llu, column %llu is infinite or NaN and has no MXFP4 code", (unsigned long long)r,
                                (unsigned long long)(c + i));
            }
            mpk_mxfp4_encode(block, codes, scales);
            codes += MPK_MXFP4_BLOCK / 2;
            scales++;
        }
    }
    return MOEPACK_OK;
}
