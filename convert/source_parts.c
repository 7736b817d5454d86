/* Matrices that tensors of their own hold, one expert or one dense part at a time, in any storage form: collects the
 * tensors of each, then chooses its form (storage_forms.h). */
#include "source_internal.h"

#include "bytes.h"
#include "error.h"
#include "storage_forms.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Matrices of an expert, at most. */
#define PARTS_MAX 4
_Static_assert(PARTS_MAX *MPK_FORM_PLANES <= sizeof((mpk_source_schema){0}.sections) / sizeof(mpk_source_section),
               "a schema holds all planes of all matrices");

/* What tells two schemas apart: form, dtype and rank of everything in them. Shapes follow from these. */
typedef struct signature {
    uint8_t form[PARTS_MAX], dtype[PARTS_MAX][MPK_SUFFIXES], rank[PARTS_MAX][MPK_SUFFIXES];
} signature;

struct mpk_parts {
    const mpk_family_form *plain; /* names the matrices and their sizes; NULL: the family has none */
    uint32_t **slots;             /* [blocks] NULL or [experts x matrices x suffixes] */
    uint32_t *role_slots;         /* [blocks x roles x suffixes] */
    signature *signatures;        /* of the schemas made here */
    uint32_t *schema_of;
    size_t signature_count;
    const char *pattern[PARTS_MAX][MPK_SUFFIXES];
    bool told; /* that the config says something else */
};

moepack_status mpk_parts_new(mpk_opening *o)
{
    const size_t blocks = o->source->block_count, roles = o->state->family->role_count;
    mpk_parts *p = o->parts = calloc(1, sizeof *p);
    if (!p) return mpk_source_oom(o);
    p->plain = mpk_family_plain(o->state->family);
    p->slots = calloc(blocks + 1, sizeof *p->slots);
    p->role_slots = malloc((blocks * roles + 1) * MPK_SUFFIXES * sizeof *p->role_slots);
    if (!p->slots || !p->role_slots) return mpk_source_oom(o);
    memset(p->role_slots, 0xFF, (blocks * roles + 1) * MPK_SUFFIXES * sizeof *p->role_slots);
    return MOEPACK_OK;
}

void mpk_parts_free(mpk_opening *o)
{
    mpk_parts *p = o->parts;
    if (!p) return;
    for (uint32_t b = 0; p->slots && b < o->source->block_count; b++) free(p->slots[b]);
    free(p->slots);
    free(p->role_slots);
    free(p->signatures);
    free(p->schema_of);
    free(p);
    o->parts = NULL;
}

bool mpk_parts_hold(const mpk_opening *o, uint32_t block)
{
    return o->parts->slots[block] != NULL;
}

/* ------------------------------------------------------------------------------------------------ one tensor */

static mpk_form_tensor form_tensor(const mpk_opening *o, uint32_t tensor)
{
    const mpk_source_tensor *t = &o->source->tensors[tensor];
    return (mpk_form_tensor){(moepack_dtype)t->dtype, t->rank, t->dims};
}

static moepack_status blame(mpk_opening *o, moepack_status status, uint32_t tensor)
{
    return mpk_source_blame(o, status, o->source->tensors[tensor].file, o->source->tensors[tensor].name);
}

static mpk_term divided(mpk_term term, uint8_t by)
{
    term.div = (uint16_t)(term.div * by);
    return term;
}

/* Whether any form has this suffix with this dtype and this shape for a matrix [dims[0], dims[1]]. */
static moepack_status check_tensor(mpk_opening *o, uint32_t tensor, uint32_t suffix, const mpk_term dims[2])
{
    const mpk_form_tensor t = form_tensor(o, tensor);
    bool more;
    const mpk_form_plane *plane = mpk_form_known(suffix, t.dtype, &more);
    if (!plane) {
        mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "dtype %s is in no storage form of %s", moepack_dtype_name(t.dtype),
                 o->state->family->name);
        return blame(o, MOEPACK_E_UNSUPPORTED, tensor);
    }
    if (!more && (plane->extent == MPK_EXTENT_WEIGHT || plane->extent == MPK_EXTENT_GROUPS)) {
        const mpk_term wanted[2] = {dims[0], divided(dims[1], plane->unit)};
        return mpk_source_check_shape(o, tensor, wanted, 2, MPK_SEPARATE);
    }
    uint64_t out = 0, in = 0;
    bool fits = false, sizes = mpk_term_value(dims[0], o->state->config.size, &out) &&
                               mpk_term_value(dims[1], o->state->config.size, &in);
    for (size_t f = 0; sizes && mpk_storage_form_at(f); f++) {
        const mpk_storage_form *form = mpk_storage_form_at(f);
        for (uint32_t p = 0; p < form->count; p++)
            fits = fits || (form->planes[p].suffix == suffix && mpk_form_plane_fits(&form->planes[p], &t, out, in));
    }
    if (fits) return MOEPACK_OK;
    mpk_fail(o->error, MOEPACK_E_CORRUPT,
             "shape is %s, which no storage form has beside a matrix of [%" PRIu64 ", %" PRIu64 "]",
             mpk_source_show_shape(t.dims, t.rank, (char[96]){0}, 96), out, in);
    return blame(o, MOEPACK_E_CORRUPT, tensor);
}

static moepack_status take_slot(mpk_opening *o, uint32_t tensor, uint32_t block, uint32_t *slot)
{
    if (*slot != MPK_NO_TENSOR && o->source->blocks[block].selected) return mpk_source_doubled(o, *slot, tensor);
    *slot = tensor;
    return MOEPACK_OK;
}

moepack_status mpk_parts_add(mpk_opening *o, uint32_t tensor, uint32_t block, const mpk_name *name)
{
    mpk_parts *p = o->parts;
    const mpk_source_block *b = &o->source->blocks[block];
    const mpk_family_section *matrix = &p->plain->sections[name->part];
    moepack_status status = check_tensor(o, tensor, name->form_suffix, matrix->dims);
    if (status) return status;
    const size_t entries = (size_t)b->experts * p->plain->count * MPK_SUFFIXES;
    if (!p->slots[block]) {
        p->slots[block] = malloc(entries * sizeof **p->slots);
        if (!p->slots[block]) return mpk_source_oom(o);
        memset(p->slots[block], 0xFF, entries * sizeof **p->slots);
    }
    if (!b->selected || !o->source->expert_selected[name->expert]) return MOEPACK_OK;
    return take_slot(
        o, tensor, block,
        &p->slots[block][(name->expert * p->plain->count + name->part) * MPK_SUFFIXES + name->form_suffix]);
}

moepack_status mpk_parts_add_role(mpk_opening *o, uint32_t tensor, uint32_t block, const mpk_name *name)
{
    const mpk_family *family = o->state->family;
    const size_t role = (size_t)block * family->role_count + (size_t)(name->role - family->roles);
    moepack_status status = check_tensor(o, tensor, name->form_suffix, name->role->dims);
    return status ? status
                  : take_slot(o, tensor, block, &o->parts->role_slots[role * MPK_SUFFIXES + name->form_suffix]);
}

/* ------------------------------------------------------------------------------------------------ one matrix */

/* "PATTERN" with another suffix: patterns end in ".weight". */
static void with_suffix(const char *pattern, uint32_t suffix, char *buf, size_t size)
{
    snprintf(buf, size, "%.*s%s", (int)(strlen(pattern) - strlen("weight")), pattern, mpk_form_suffix(suffix));
}

static moepack_status lacking(mpk_opening *o, uint32_t block, const char *pattern, uint32_t suffix, int64_t expert)
{
    char other[128], name[160];
    with_suffix(pattern, suffix, other, sizeof other);
    mpk_pattern_fill(other, (uint64_t)expert, name, sizeof name);
    return mpk_source_missing(o, &o->source->blocks[block], name, expert);
}

/* The suffix that codes have elsewhere in the block: what a matrix lacks that has no tensor at all. */
static uint32_t usual_suffix(const mpk_opening *o, const uint32_t *slots, size_t matrices)
{
    for (size_t i = 0; i < matrices * MPK_SUFFIXES; i++) {
        if (slots[i] == MPK_NO_TENSOR) continue;
        const mpk_form_plane *plane =
            mpk_form_known((uint32_t)(i % MPK_SUFFIXES), (moepack_dtype)o->source->tensors[slots[i]].dtype, NULL);
        if (plane && plane->extent == MPK_EXTENT_WEIGHT) return plane->suffix;
    }
    return MPK_SUFFIX_WEIGHT;
}

/* Chooses the form of one matrix. `slots` are its tensors, all those of `matrices` matrices begin at `all`. */
static moepack_status choose(mpk_opening *o, uint32_t block, int64_t expert, const char *pattern,
                             const mpk_term dims[2], const uint32_t *slots, const uint32_t *all, size_t matrices,
                             const mpk_storage_form **out)
{
    mpk_form_tensor tensors[MPK_SUFFIXES] = {0};
    uint32_t last = MPK_NO_TENSOR, lack;
    uint64_t rows = 0, cols = 0;
    const mpk_storage_form *nearest;
    for (uint32_t s = 0; s < MPK_SUFFIXES; s++) {
        if (slots[s] == MPK_NO_TENSOR) continue;
        tensors[s] = form_tensor(o, slots[s]);
        last = slots[s];
    }
    if (last == MPK_NO_TENSOR) return lacking(o, block, pattern, usual_suffix(o, all, matrices), expert);
    bool sizes =
        mpk_term_value(dims[0], o->state->config.size, &rows) && mpk_term_value(dims[1], o->state->config.size, &cols);
    *out = sizes ? mpk_form_choose(tensors, rows, cols, &nearest, &lack) : NULL;
    if (*out) return MOEPACK_OK;
    if (sizes && nearest && lack < MPK_SUFFIXES) return lacking(o, block, pattern, lack, expert);
    char found[256];
    size_t used = 0;
    found[0] = 0;
    for (uint32_t s = 0; s < MPK_SUFFIXES && used < sizeof found; s++) {
        char shape[96];
        if (slots[s] == MPK_NO_TENSOR) continue;
        used += (size_t)snprintf(found + used, sizeof found - used, "%s%s %s %s", used ? ", " : "", mpk_form_suffix(s),
                                 moepack_dtype_name(tensors[s].dtype),
                                 mpk_source_show_shape(tensors[s].dims, tensors[s].rank, shape, sizeof shape));
    }
    mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "a matrix of [%" PRIu64 ", %" PRIu64 "] is stored in no known form: %s",
             rows, cols, found);
    return blame(o, MOEPACK_E_UNSUPPORTED, last);
}

/* The config may be wrong about what is stored; the user should know. */
static void compare_claim(mpk_opening *o, const mpk_storage_form *form)
{
    const char *claim = o->state->config.quant;
    if (o->parts->told || mpk_form_claimed(form, claim)) return;
    o->parts->told = true;
    mpk_source_warn(o, "quantization_config says %s, the experts are stored as %s: the tensors decide",
                    claim[0] ? claim : "nothing", form->name);
}

/* ------------------------------------------------------------------------------------------------ schemas */

static moepack_status pattern_of(mpk_opening *o, uint32_t part, uint32_t suffix, const char **pattern)
{
    const char **known = &o->parts->pattern[part][suffix];
    if (!*known) {
        char text[128];
        with_suffix(o->parts->plain->sections[part].pattern, suffix, text, sizeof text);
        *known = mpk_arena_string(o->source->arena, text);
        if (!*known) return mpk_source_oom(o);
    }
    *pattern = *known;
    return MOEPACK_OK;
}

static moepack_status add_section(mpk_opening *o, mpk_source_schema *schema, uint32_t part, const mpk_form_plane *plane,
                                  uint32_t tensor)
{
    const mpk_family_section *matrix = &o->parts->plain->sections[part];
    const mpk_form_tensor t = form_tensor(o, tensor);
    mpk_source_section *to = &schema->sections[schema->count];
    uint64_t out, in;
    moepack_status status = pattern_of(o, part, plane->suffix, &to->pattern);
    if (status) return status;
    if (!mpk_term_value(matrix->dims[0], o->state->config.size, &out) ||
        !mpk_term_value(matrix->dims[1], o->state->config.size, &in))
        return mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "%s has no whole size", to->pattern);
    to->dtype = t.dtype;
    to->rank = t.rank;
    for (uint32_t d = 0; d < t.rank; d++) to->dims[d] = t.dims[d];
    to->length = o->source->tensors[tensor].length;
    to->matrix_count = 1;
    mpk_form_matrix(plane, &t, (moepack_role)matrix->matrices[0].role, out, in, &to->matrices[0]);
    schema->count++;
    return MOEPACK_OK;
}

/* The schema of an expert whose matrices have these forms; made when it is the first of its kind. */
static moepack_status schema_of(mpk_opening *o, const mpk_storage_form *const *forms, const uint32_t *slots,
                                uint32_t *out)
{
    mpk_parts *p = o->parts;
    mpk_source *source = o->source;
    signature mine = {0};
    for (uint32_t part = 0; part < p->plain->count; part++) {
        mine.form[part] = (uint8_t)(forms[part] - mpk_storage_form_at(0));
        for (uint32_t s = 0; s < MPK_SUFFIXES; s++) {
            const uint32_t tensor = slots[part * MPK_SUFFIXES + s];
            if (tensor == MPK_NO_TENSOR) continue;
            mine.dtype[part][s] = (uint8_t)source->tensors[tensor].dtype;
            mine.rank[part][s] = (uint8_t)source->tensors[tensor].rank;
        }
    }
    for (size_t i = p->signature_count; i-- > 0;) {
        if (memcmp(&p->signatures[i], &mine, sizeof mine) != 0) continue;
        *out = p->schema_of[i];
        return MOEPACK_OK;
    }
    signature *signatures = realloc(p->signatures, (p->signature_count + 1) * sizeof *signatures);
    if (signatures) p->signatures = signatures;
    uint32_t *numbers = realloc(p->schema_of, (p->signature_count + 1) * sizeof *numbers);
    if (numbers) p->schema_of = numbers;
    mpk_source_schema *schemas = realloc(source->schemas, (source->schema_count + 1) * sizeof *schemas);
    if (schemas) source->schemas = schemas;
    if (!signatures || !numbers || !schemas) return mpk_source_oom(o);
    mpk_source_schema *schema = &schemas[source->schema_count];
    memset(schema, 0, sizeof *schema);
    moepack_status status = MOEPACK_OK;
    for (uint32_t part = 0; part < p->plain->count; part++)
        for (uint32_t i = 0; i < forms[part]->count && !status; i++) {
            const mpk_form_plane *plane = &forms[part]->planes[i];
            const uint32_t tensor = slots[part * MPK_SUFFIXES + plane->suffix];
            if (tensor != MPK_NO_TENSOR) status = add_section(o, schema, part, plane, tensor);
        }
    if (status) return status;
    signatures[p->signature_count] = mine;
    numbers[p->signature_count++] = *out = source->schema_count++;
    return MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------ blocks */

static moepack_status settle_expert(mpk_opening *o, uint32_t block, uint32_t expert)
{
    mpk_parts *p = o->parts;
    mpk_source_block *b = &o->source->blocks[block];
    const uint32_t count = p->plain->count, *all = p->slots[block];
    const uint32_t *slots = all + (size_t)expert * count * MPK_SUFFIXES;
    const mpk_storage_form *forms[PARTS_MAX];
    for (uint32_t part = 0; part < count; part++) {
        const mpk_family_section *matrix = &p->plain->sections[part];
        moepack_status status = choose(o, block, expert, matrix->pattern, matrix->dims, slots + part * MPK_SUFFIXES,
                                       all, (size_t)b->experts * count, &forms[part]);
        if (status) return status;
        compare_claim(o, forms[part]);
    }
    moepack_status status = schema_of(o, forms, slots, &b->expert_schema[expert]);
    if (status) return status;
    uint32_t *section = b->section + (size_t)expert * b->stride;
    for (uint32_t part = 0; part < count; part++)
        for (uint32_t i = 0; i < forms[part]->count; i++) {
            const uint32_t tensor = slots[part * MPK_SUFFIXES + forms[part]->planes[i].suffix];
            if (tensor != MPK_NO_TENSOR) *section++ = tensor;
        }
    b->schema = b->expert_schema[expert];
    return MOEPACK_OK;
}

moepack_status mpk_parts_settle(mpk_opening *o, uint32_t block)
{
    mpk_source_block *b = &o->source->blocks[block];
    b->stride = o->parts->plain->count * MPK_FORM_PLANES;
    const size_t entries = (size_t)b->experts * b->stride;
    b->section = malloc(entries * sizeof *b->section);
    b->expert_schema = malloc(b->experts * sizeof *b->expert_schema);
    if (!b->section || !b->expert_schema) return mpk_source_oom(o);
    memset(b->section, 0xFF, entries * sizeof *b->section);
    moepack_status status = MOEPACK_OK;
    for (uint32_t e = 0; e < b->experts && !status; e++)
        if (o->source->expert_selected[e]) status = settle_expert(o, block, e);
    for (uint32_t e = 0; e < b->experts; e++) /* absent from the container, so any schema will do */
        if (!o->source->expert_selected[e]) b->expert_schema[e] = b->schema;
    return status;
}

moepack_status mpk_parts_settle_role(mpk_opening *o, uint32_t block, const mpk_family_role *role)
{
    const mpk_family *family = o->state->family;
    const size_t number = (size_t)block * family->role_count + (size_t)(role - family->roles);
    const uint32_t *slots = o->parts->role_slots + number * MPK_SUFFIXES;
    const mpk_storage_form *form;
    moepack_status status = choose(o, block, -1, role->name, role->dims, slots, slots, 1, &form);
    uint64_t out = 0, in = 0;
    if (status || !mpk_term_value(role->dims[0], o->state->config.size, &out) ||
        !mpk_term_value(role->dims[1], o->state->config.size, &in))
        return status;
    for (uint32_t i = 0; i < form->count; i++) {
        const mpk_form_plane *plane = &form->planes[i];
        if (slots[plane->suffix] == MPK_NO_TENSOR) continue;
        mpk_source_tensor *t = &o->source->tensors[slots[plane->suffix]];
        const mpk_form_tensor tensor = form_tensor(o, slots[plane->suffix]);
        moepack_matrix matrix;
        mpk_form_matrix(plane, &tensor, role->role, out, in, &matrix);
        t->role = (uint16_t)matrix.role;
        t->plane = (uint16_t)matrix.plane;
        t->encoding = (uint16_t)matrix.encoding;
        t->group_rows = matrix.group_rows;
        t->group_cols = matrix.group_cols;
    }
    return MOEPACK_OK;
}
