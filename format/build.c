/* Tables in memory to bytes: the index. */
#include "build.h"

#include "bytes.h"
#include "error.h"
#include "header.h"
#include "policy.h"
#include "string_pool.h"
#include "tail.h"

#include <stdlib.h>
#include <string.h>

void *mpk_buf_append(mpk_buf *buf, const void *bytes, size_t size)
{
    if (size > SIZE_MAX / 2 || buf->size > SIZE_MAX / 2 - size) return NULL;
    if (buf->data == NULL || size > buf->capacity - buf->size) {
        size_t capacity = buf->capacity < 4096 ? 4096 : buf->capacity;
        while (capacity < buf->size + size) capacity *= 2;
        uint8_t *bigger = realloc(buf->data, capacity);
        if (bigger == NULL) return NULL;
        buf->data = bigger;
        buf->capacity = capacity;
    }
    uint8_t *at = buf->data + buf->size;
    if (bytes == NULL)
        memset(at, 0, size);
    else if (size > 0)
        memcpy(at, bytes, size);
    buf->size += size;
    return at;
}

bool mpk_grow(void *array_pointer, size_t count, size_t element_size)
{
    const size_t least = 16;
    void *array;
    memcpy(&array, array_pointer, sizeof array);
    bool full = count >= least && (count & (count - 1)) == 0;
    if (array != NULL && count != 0 && !full) return true;
    size_t capacity = count < least ? least : 2 * count;
    if (capacity < count || capacity > SIZE_MAX / element_size) return false;
    void *bigger = realloc(array, capacity * element_size);
    if (bigger == NULL) return false;
    memcpy(array_pointer, &bigger, sizeof bigger);
    return true;
}

void mpk_tables_free(mpk_tables *tables)
{
    free(tables->shards);
    free(tables->blocks);
    free(tables->schemas);
    free(tables->descs);
    free(tables->matrices);
    free(tables->dims);
    free(tables->policies);
    free(tables->records);
    free(tables->sections);
    free(tables->parts);
    free(tables->tensors);
    free(tables->files);
    free(tables->roles);
    mpk_strings_free(tables->strings);
    memset(tables, 0, sizeof *tables);
}

/* ---- one writer a table; `e` is the table's zeroed place ---- */

typedef struct writer {
    const mpk_tables *tables;
    bool strings_missing; /* a text was not in the pool */
} writer;

static void put_str(writer *w, uint8_t *to, moepack_str text)
{
    uint32_t offset;
    if (!mpk_strings_find(w->tables->strings, text, &offset)) w->strings_missing = true;
    mpk_store32(to, offset);
    mpk_store32(to + 4, text.length);
}

static void put_info(writer *w, uint8_t *e)
{
    const moepack_info *info = &w->tables->info;
    mpk_store_hash128(e, info->canonical_root);
    mpk_store_hash128(e + 16, info->plan_id);
    put_str(w, e + 32, info->family);
    put_str(w, e + 40, info->model_type);
    mpk_store32(e + 48, info->page_size);
    mpk_store32(e + 52, info->writer_revision);
    mpk_store32(e + 56, (uint32_t)info->layout);
    mpk_store32(e + 60, info->codec);
    mpk_store32(e + 64, (info->subset ? 1u : 0) | (info->quantized ? 2u : 0));
    mpk_store64(e + 72, info->source_bytes);
    mpk_store64(e + 80, info->source_tensors);
}

static void put_shards(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->shard_count; ++i, e += 64) {
        const moepack_shard *s = &w->tables->shards[i];
        put_str(w, e, s->name);
        mpk_store32(e + 8, (uint32_t)s->kind);
        mpk_store64(e + 16, s->file_length);
        mpk_store64(e + 24, s->tail_offset);
        mpk_store64(e + 32, s->tail_length);
        mpk_store_hash128(e + 40, s->root);
    }
}

static void put_blocks(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->block_count; ++i, e += 64) {
        const moepack_block *b = &w->tables->blocks[i];
        mpk_store32(e, (uint32_t)b->stack);
        mpk_store32(e + 4, b->number);
        put_str(w, e + 8, b->prefix);
        mpk_store32(e + 16, b->experts);
        mpk_store32(e + 20, b->policy);
        mpk_store64(e + 24, b->first_record);
        mpk_store32(e + 32, b->first_role);
        mpk_store32(e + 36, b->role_count);
    }
}

static void put_schemas(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->schema_count; ++i, e += 8) {
        mpk_store32(e, w->tables->schemas[i].first_desc);
        mpk_store32(e + 4, w->tables->schemas[i].count);
    }
}

static void put_descs(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->desc_count; ++i, e += 64) {
        const moepack_desc *d = &w->tables->descs[i];
        put_str(w, e, d->name);
        mpk_store16(e + 8, (uint16_t)d->dtype);
        e[10] = (uint8_t)d->layout;
        e[11] = (uint8_t)((d->fused ? 1 : 0) | (d->flat ? 2 : 0));
        mpk_store32(e + 12, d->rank);
        mpk_store32(e + 16, d->first_dim);
        mpk_store32(e + 20, d->first_matrix);
        mpk_store32(e + 24, d->matrix_count);
        mpk_store64(e + 32, d->canonical_length);
        mpk_store64(e + 40, d->decoded_length);
    }
}

static void put_matrices(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->matrix_count; ++i, e += 64) {
        const moepack_matrix *m = &w->tables->matrices[i];
        mpk_store16(e, (uint16_t)m->role);
        mpk_store16(e + 2, (uint16_t)m->plane);
        mpk_store16(e + 4, (uint16_t)m->encoding);
        mpk_store16(e + 6, (uint16_t)m->bits);
        mpk_store32(e + 8, m->group_rows);
        mpk_store32(e + 12, m->group_cols);
        mpk_store64(e + 16, m->rows);
        mpk_store64(e + 24, m->cols);
        mpk_store64(e + 32, m->base);
        mpk_store64(e + 40, m->row_stride);
        mpk_store64(e + 48, m->col_stride);
    }
}

static void put_dims(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->dim_count; ++i, e += 8) mpk_store64(e, w->tables->dims[i]);
}

/* Every policy has every key, so its fields start at a multiple of their number. */
static void put_policies(writer *w, uint8_t *e)
{
    uint32_t keys = (uint32_t)moepack_policy_key_count();
    for (size_t i = 0; i < w->tables->policy_count; ++i, e += 8) {
        mpk_store32(e, (uint32_t)i * keys);
        mpk_store32(e + 4, keys);
    }
}

static void put_fields(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->policy_count; ++i) {
        const mpk_policy_entry *p = &w->tables->policies[i];
        for (size_t k = 0; k < moepack_policy_key_count(); ++k, e += 16) {
            mpk_store16(e, mpk_policy_key_id(k));
            mpk_store16(e + 2, (uint16_t)mpk_policy_key_type(k));
            mpk_store32(e + 4, (uint32_t)(p->overridden >> k & 1));
            mpk_store64(e + 8, mpk_policy_bits(&p->policy, k));
        }
    }
}

static void put_records(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->record_count; ++i, e += 32) {
        const moepack_record *r = &w->tables->records[i];
        mpk_store32(e, r->shard);
        mpk_store32(e + 4, r->schema);
        mpk_store64(e + 8, r->offset);
        mpk_store64(e + 16, r->length);
        mpk_store64(e + 24, r->first_section);
    }
}

static void put_sections(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->section_count; ++i, e += 40) {
        const moepack_section *s = &w->tables->sections[i];
        mpk_store64(e, s->offset);
        mpk_store64(e + 8, s->stored_length);
        mpk_store64(e + 16, s->xxh3_stored);
        mpk_store64(e + 24, s->xxh3_canonical);
        mpk_store32(e + 32, s->first_part);
        e[36] = (uint8_t)s->codec;
    }
}

static void put_parts(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->part_count; ++i, e += 16) {
        mpk_store32(e, w->tables->parts[i].stored_length);
        mpk_store64(e + 8, w->tables->parts[i].xxh3);
    }
}

static void put_tensors(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->tensor_count; ++i, e += 32) {
        const moepack_tensor *t = &w->tables->tensors[i];
        put_str(w, e, t->name);
        mpk_store32(e + 8, t->desc);
        mpk_store32(e + 12, t->source_file);
        mpk_store64(e + 16, t->section);
        mpk_store32(e + 24, t->shard);
        mpk_store32(e + 28, t->block);
    }
}

static void put_files(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->file_count; ++i, e += 64) {
        const moepack_source_file *f = &w->tables->files[i];
        put_str(w, e, f->name);
        mpk_store32(e + 8, (uint32_t)f->kind);
        mpk_store32(e + 12, f->shard);
        mpk_store64(e + 16, f->section);
        mpk_store64(e + 24, f->length);
        mpk_store_hash128(e + 32, f->hash);
    }
}

static void put_roles(writer *w, uint8_t *e)
{
    for (size_t i = 0; i < w->tables->role_count; ++i, e += 8) {
        const moepack_role_entry *r = &w->tables->roles[i];
        mpk_store16(e, (uint16_t)r->role);
        mpk_store16(e + 2, (uint16_t)r->plane);
        mpk_store32(e + 4, r->tensor);
    }
}

static void put_strings(writer *w, uint8_t *e)
{
    mpk_strings_write(w->tables->strings, e);
}

/* ---- the whole set ---- */

void mpk_tables_count(const mpk_tables *t, bool data, uint64_t *counts)
{
    memset(counts, 0, MPK_T_END * sizeof *counts);
    counts[MPK_T_INFO] = 1;
    counts[MPK_T_SHARDS] = t->shard_count;
    counts[MPK_T_BLOCKS] = t->block_count;
    counts[MPK_T_SCHEMAS] = t->schema_count;
    counts[MPK_T_DESCS] = t->desc_count;
    counts[MPK_T_MATRICES] = t->matrix_count;
    counts[MPK_T_DIMS] = t->dim_count;
    counts[MPK_T_POLICIES] = t->policy_count;
    counts[MPK_T_FIELDS] = (uint64_t)t->policy_count * moepack_policy_key_count();
    counts[MPK_T_RECORDS] = data ? t->record_count : 0;
    counts[MPK_T_SECTIONS] = data ? t->section_count : 0;
    counts[MPK_T_PARTS] = data ? t->part_count : 0;
    counts[MPK_T_TENSORS] = t->tensor_count;
    counts[MPK_T_FILES] = t->file_count;
    counts[MPK_T_ROLES] = t->role_count;
    counts[MPK_T_STRINGS] = mpk_strings_size(t->strings);
}

static moepack_status encode_set(const mpk_tables *tables, bool data, mpk_buf *out, mpk_tables_view *view,
                                 moepack_error *error)
{
    static void (*const put[MPK_T_END])(writer *, uint8_t *) = {
        [MPK_T_INFO] = put_info,       [MPK_T_SHARDS] = put_shards,     [MPK_T_BLOCKS] = put_blocks,
        [MPK_T_SCHEMAS] = put_schemas, [MPK_T_DESCS] = put_descs,       [MPK_T_MATRICES] = put_matrices,
        [MPK_T_DIMS] = put_dims,       [MPK_T_POLICIES] = put_policies, [MPK_T_FIELDS] = put_fields,
        [MPK_T_RECORDS] = put_records, [MPK_T_SECTIONS] = put_sections, [MPK_T_PARTS] = put_parts,
        [MPK_T_TENSORS] = put_tensors, [MPK_T_FILES] = put_files,       [MPK_T_ROLES] = put_roles,
        [MPK_T_STRINGS] = put_strings,
    };
    uint64_t counts[MPK_T_END];
    uint8_t *entries[MPK_T_END] = {NULL};
    mpk_tables_count(tables, data, counts);
    for (uint32_t id = MPK_T_SHARDS; id <= MPK_T_STRINGS; ++id) {
        if (counts[id] >= UINT32_MAX && id != MPK_T_RECORDS && id != MPK_T_SECTIONS)
            return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "table %s needs 2^32 entries or more", mpk_table_name(id));
    }
    moepack_status status = mpk_tableset_append(out, mpk_index_table_ids, MPK_INDEX_TABLES, counts, entries, error);
    if (status != MOEPACK_OK) return status;
    writer w = {tables, false};
    if (view != NULL) memset(view, 0, sizeof *view);
    for (uint32_t id = MPK_T_INFO; id <= MPK_T_STRINGS; ++id) {
        if (counts[id] > 0 && (data || (id != MPK_T_RECORDS && id != MPK_T_SECTIONS && id != MPK_T_PARTS)))
            put[id](&w, entries[id]);
        if (view != NULL) view->t[id] = (mpk_table){entries[id], counts[id]};
    }
    if (w.strings_missing)
        return mpk_fail(error, MOEPACK_E_USAGE, "tables hold a text that is not in their string pool");
    return MOEPACK_OK;
}

moepack_status mpk_encode_index_tables(const mpk_tables *tables, mpk_buf *out, moepack_error *error)
{
    return encode_set(tables, true, out, NULL, error);
}

moepack_status mpk_encode_index(const mpk_tables *tables, mpk_buf *out, moepack_error *error)
{
    size_t start = out->size;
    if (mpk_buf_append(out, NULL, MPK_HEADER) == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    moepack_status status = mpk_encode_index_tables(tables, out, error);
    if (status != MOEPACK_OK) return status;
    size_t length = out->size - start;
    mpk_index_header_write(out->data + start, length);
    return MOEPACK_OK;
}

moepack_status mpk_plan_id(const mpk_tables *tables, moepack_hash128 *out, moepack_error *error)
{
    mpk_buf set = {0};
    mpk_tables_view view;
    moepack_status status = encode_set(tables, false, &set, &view, error);
    if (status == MOEPACK_OK) status = mpk_view_plan_id(&view, out, error);
    free(set.data);
    return status;
}

static moepack_status encode_tail(const mpk_tables *tables, uint32_t shard, moepack_shard_kind kind, mpk_buf *out,
                                  moepack_error *error)
{
    if (shard >= tables->shard_count || tables->shards[shard].kind != kind)
        return mpk_fail(error, MOEPACK_E_USAGE, "shard %u is not of the kind asked for", (unsigned)shard);
    mpk_buf set = {0};
    mpk_tables_view view;
    moepack_status status = encode_set(tables, true, &set, &view, error);
    if (status == MOEPACK_OK) status = mpk_view_tail(&view, shard, out, error);
    free(set.data);
    return status;
}

moepack_status mpk_encode_expert_tail(const mpk_tables *tables, uint32_t shard, mpk_buf *out, moepack_error *error)
{
    return encode_tail(tables, shard, MOEPACK_SHARD_EXPERTS, out, error);
}

moepack_status mpk_encode_trunk_tail(const mpk_tables *tables, uint32_t shard, mpk_buf *out, moepack_error *error)
{
    return encode_tail(tables, shard, MOEPACK_SHARD_TRUNK, out, error);
}

moepack_status mpk_canonical_item(mpk_buf *out, const char *name, size_t name_length, moepack_dtype dtype,
                                  const uint64_t *dims, uint32_t rank, uint64_t expert, uint64_t hash,
                                  moepack_error *error)
{
    if (name_length > UINT32_MAX) return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "tensor name of 2^32 bytes or more");
    size_t size = 4 + name_length + 8 + (size_t)rank * 8 + 16;
    uint8_t *e = (uint8_t *)mpk_buf_append(out, NULL, size);
    if (e == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    mpk_store32(e, (uint32_t)name_length);
    if (name_length > 0) memcpy(e + 4, name, name_length);
    e += 4 + name_length;
    mpk_store16(e, (uint16_t)dtype);
    mpk_store32(e + 4, rank);
    e += 8;
    for (uint32_t i = 0; i < rank; ++i, e += 8) mpk_store64(e, dims[i]);
    mpk_store64(e, expert);
    mpk_store64(e + 8, hash);
    return MOEPACK_OK;
}
