/* Checks of an index (spec/container.md section 10): everything but records, sections and parts (index_check_data.c).
 *
 * Tables are checked in the order in which later ones rely on earlier ones. Time is linear in the file's length up to
 * the limits of layout.h; memory beside the caller's bytes is 4 bytes a desc and a tensor. */
#include "cover.h"
#include "error.h"
#include "index.h"
#include "names.h"
#include "policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

moepack_status mpk_index_bad(const moepack_index *x, moepack_error *error, moepack_status status, uint32_t table,
                             uint64_t entry, const char *format, ...)
{
    if (error == NULL) return status;
    char text[sizeof error->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    mpk_fail(error, status, "table %s, entry %llu: %.400s", mpk_table_name(table), (unsigned long long)entry, text);
    uint64_t start = (uint64_t)(x->tables.t[table].data - x->data);
    mpk_error_offset(error, start + entry * mpk_table_entry(table));
    return status;
}

#define CORRUPT(table, entry, ...) mpk_index_bad(x, error, MOEPACK_E_CORRUPT, table, entry, __VA_ARGS__)
#define UNSUPPORTED(table, entry, ...) mpk_index_bad(x, error, MOEPACK_E_UNSUPPORTED, table, entry, __VA_ARGS__)

static bool range_inside(uint64_t first, uint64_t count, uint64_t size)
{
    return first <= size && count <= size - first;
}

static bool zero_bytes(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        if (bytes[i] != 0) return false;
    }
    return true;
}

/* The string of a field, checked. */
static moepack_status check_str(const moepack_index *x, uint32_t table, uint64_t entry, const uint8_t *field,
                                moepack_str *out, moepack_error *error)
{
    uint32_t offset = mpk_load32(field), length = mpk_load32(field + 4);
    *out = (moepack_str){"", 0};
    if (!range_inside(offset, length, mpk_index_count(x, MPK_T_STRINGS)))
        return CORRUPT(table, entry, "string lies outside STRINGS");
    if (length > MPK_NAME_MAX) return UNSUPPORTED(table, entry, "name of %u bytes", (unsigned)length);
    *out = (moepack_str){(const char *)x->tables.t[MPK_T_STRINGS].data + offset, length};
    return MOEPACK_OK;
}

static moepack_status check_info(const moepack_index *x, moepack_error *error)
{
    if (mpk_index_count(x, MPK_T_INFO) != 1)
        return CORRUPT(MPK_T_INFO, 0, "%llu entries, must be 1", (unsigned long long)mpk_index_count(x, MPK_T_INFO));
    const uint8_t *e = mpk_index_entry(x, MPK_T_INFO, 0);
    moepack_str text;
    moepack_status status = check_str(x, MPK_T_INFO, 0, e + 32, &text, error);
    if (status == MOEPACK_OK) status = check_str(x, MPK_T_INFO, 0, e + 40, &text, error);
    if (status != MOEPACK_OK) return status;
    if (mpk_load32(e + 48) != MPK_PAGE_SIZE) return CORRUPT(MPK_T_INFO, 0, "page size is not 4096");
    if (mpk_load32(e + 56) > MOEPACK_LAYOUT_PANEL) return CORRUPT(MPK_T_INFO, 0, "unknown layout");
    if ((mpk_load32(e + 64) & ~3u) != 0) return CORRUPT(MPK_T_INFO, 0, "reserved flag is set");
    if ((mpk_load32(e + 64) & 3u) == 2) return CORRUPT(MPK_T_INFO, 0, "quantised, but not a subset");
    if (!zero_bytes(e + 88, 40)) return CORRUPT(MPK_T_INFO, 0, "reserved field is not zero");
    return MOEPACK_OK;
}

/* ---- shards ---- */

static bool shard_name_ok(moepack_str name)
{
    if (name.length == 0) return false;
    if (memchr(name.data, '/', name.length) != NULL || memchr(name.data, '\0', name.length) != NULL) return false;
    return !(name.data[0] == '.' && (name.length == 1 || (name.length == 2 && name.data[1] == '.')));
}

static moepack_status check_shard(const moepack_index *x, uint32_t i, moepack_error *error)
{
    const uint8_t *e = mpk_index_entry(x, MPK_T_SHARDS, i);
    moepack_str name;
    moepack_status status = check_str(x, MPK_T_SHARDS, i, e, &name, error);
    if (status != MOEPACK_OK) return status;
    if (!shard_name_ok(name)) return CORRUPT(MPK_T_SHARDS, i, "not a file name");
    if (name.length > MPK_SHARD_NAME_MAX)
        return UNSUPPORTED(MPK_T_SHARDS, i, "file name of %u bytes", (unsigned)name.length);
    uint32_t kind = mpk_load32(e + 8);
    if (kind != MOEPACK_SHARD_TRUNK && kind != MOEPACK_SHARD_EXPERTS)
        return CORRUPT(MPK_T_SHARDS, i, "unknown kind %u", (unsigned)kind);
    if (mpk_load32(e + 12) != 0 || mpk_load64(e + 56) != 0)
        return CORRUPT(MPK_T_SHARDS, i, "reserved field is not zero");
    uint64_t length = mpk_load64(e + 16), tail = mpk_load64(e + 24), tail_length = mpk_load64(e + 32);
    if (length > INT64_MAX || tail < MPK_PAGE_SIZE || tail % MPK_PAGE_SIZE != 0 || tail > length ||
        tail_length != length - tail)
        return CORRUPT(MPK_T_SHARDS, i, "file length, tail offset and tail length contradict each other");
    return MOEPACK_OK;
}

typedef struct by_name_argument { /* qsort_r passes no pointers to const */
    const moepack_index *x;
    uint32_t table;
} by_name_argument;

/* The name of an entry of SHARDS or FILES: both begin with it. */
static moepack_str name_of(const by_name_argument *a, uint32_t i)
{
    const uint8_t *e = mpk_index_entry(a->x, a->table, i);
    return (moepack_str){(const char *)a->x->tables.t[MPK_T_STRINGS].data + mpk_load32(e), mpk_load32(e + 4)};
}

static int by_name(const void *a, const void *b, void *argument)
{
    const by_name_argument *by = (const by_name_argument *)argument;
    return mpk_str_compare(name_of(by, *(const uint32_t *)a), name_of(by, *(const uint32_t *)b));
}

/* No name twice, in a table whose names are checked already. */
static moepack_status check_unique(const moepack_index *x, uint32_t table, moepack_error *error)
{
    uint32_t n = (uint32_t)mpk_index_count(x, table);
    uint32_t *order = malloc(((size_t)n + 1) * sizeof *order);
    if (order == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (uint32_t i = 0; i < n; ++i) order[i] = i;
    by_name_argument argument = {x, table};
    qsort_r(order, n, sizeof *order, by_name, &argument);
    moepack_status status = MOEPACK_OK;
    for (uint32_t i = 1; i < n && status == MOEPACK_OK; ++i) {
        if (by_name(&order[i - 1], &order[i], &argument) == 0)
            status = CORRUPT(table, order[i], "another entry has the same name");
    }
    free(order);
    return status;
}

static moepack_status check_shards(const moepack_index *x, moepack_error *error)
{
    uint32_t n = moepack_index_shards(x);
    for (uint32_t i = 0; i < n; ++i) {
        moepack_status status = check_shard(x, i, error);
        if (status != MOEPACK_OK) return status;
    }
    return check_unique(x, MPK_T_SHARDS, error);
}

/* ---- descriptions ---- */

/* Elements from (0, 0) to the last one must lie inside the section. */
static bool matrix_inside(const moepack_matrix *m, uint64_t canonical_length)
{
    if (m->rows == 0 || m->cols == 0) return true;
    uint64_t down, right, last, bits;
    return mpk_mul64(m->rows - 1, m->row_stride, &down) && mpk_mul64(m->cols - 1, m->col_stride, &right) &&
           mpk_add64(m->base, down, &last) && mpk_add64(last, right, &last) && mpk_add64(last, 1, &last) &&
           mpk_mul64(last, m->bits, &bits) && bits / 8 + (bits % 8 != 0) <= canonical_length;
}

static moepack_status check_matrix(const moepack_index *x, uint32_t i, moepack_error *error)
{
    moepack_matrix m;
    moepack_index_matrix(x, i, &m);
    if (moepack_role_name(m.role) == NULL) return UNSUPPORTED(MPK_T_MATRICES, i, "unknown role %u", (unsigned)m.role);
    if (moepack_plane_name(m.plane) == NULL)
        return UNSUPPORTED(MPK_T_MATRICES, i, "unknown plane %u", (unsigned)m.plane);
    if (moepack_encoding_name(m.encoding) == NULL)
        return UNSUPPORTED(MPK_T_MATRICES, i, "unknown encoding %u", (unsigned)m.encoding);
    if (m.bits != 4 && m.bits != 8 && m.bits != 16 && m.bits != 32 && m.bits != 64)
        return CORRUPT(MPK_T_MATRICES, i, "elements of %u bits", (unsigned)m.bits);
    unsigned needed = mpk_encoding_bits(m.encoding);
    if (needed != 0 && needed != m.bits)
        return CORRUPT(MPK_T_MATRICES, i, "elements of %u bits with an encoding of %u", (unsigned)m.bits, needed);
    bool grouped = m.group_rows != 0 && m.group_cols != 0, plain = m.group_rows == 0 && m.group_cols == 0;
    if (m.plane == MOEPACK_PLANE_SCALE ? !grouped : !plain)
        return CORRUPT(MPK_T_MATRICES, i, "group of %u x %u on a plane of kind %s", (unsigned)m.group_rows,
                       (unsigned)m.group_cols, moepack_plane_name(m.plane));
    if (mpk_load64(mpk_index_entry(x, MPK_T_MATRICES, i) + 56) != 0)
        return CORRUPT(MPK_T_MATRICES, i, "reserved field is not zero");
    return MOEPACK_OK;
}

/* Canonical length from dims and dtype. A dim of 0 makes an empty tensor whatever the others are. */
static bool dims_length(const moepack_index *x, const moepack_desc *d, uint64_t *length)
{
    uint64_t bits = moepack_dtype_bits(d->dtype);
    for (uint32_t i = 0; i < d->rank; ++i) {
        if (moepack_index_dim(x, d->first_dim + i) == 0) {
            *length = 0;
            return true;
        }
    }
    for (uint32_t i = 0; i < d->rank; ++i) {
        if (!mpk_mul64(bits, moepack_index_dim(x, d->first_dim + i), &bits)) return false;
    }
    *length = bits / 8;
    return bits % 8 == 0;
}

/* Matrices of a desc: inside the section, and in panel order the exact lengths. */
static moepack_status check_desc_matrices(const moepack_index *x, uint32_t i, const moepack_desc *d, uint64_t *budget,
                                          moepack_error *error)
{
    moepack_matrix matrices[MPK_MATRICES_MAX];
    uint64_t panel = 0, bits = 0;
    for (uint32_t k = 0; k < d->matrix_count; ++k) {
        moepack_matrix m;
        uint64_t length, elements;
        moepack_index_matrix(x, d->first_matrix + k, &m);
        if (!matrix_inside(&m, d->canonical_length))
            return CORRUPT(MPK_T_DESCS, i, "matrix %u reaches beyond the section", (unsigned)k);
        matrices[k] = m;
        if (d->layout != MOEPACK_LAYOUT_PANEL) continue;
        if (!moepack_panel_length(&m, &length) || !mpk_add64(panel, length, &panel) ||
            !mpk_mul64(m.rows, m.cols, &elements) || !mpk_mul64(elements, m.bits, &elements) ||
            !mpk_add64(bits, elements, &bits))
            return CORRUPT(MPK_T_DESCS, i, "matrix %u is larger than 2^64", (unsigned)k);
    }
    if (d->layout != MOEPACK_LAYOUT_PANEL) {
        if (d->decoded_length != d->canonical_length)
            return CORRUPT(MPK_T_DESCS, i, "decoded and canonical length differ in canonical order");
        return MOEPACK_OK;
    }
    if (d->matrix_count == 0) return CORRUPT(MPK_T_DESCS, i, "opaque bytes in panel order");
    if (panel != d->decoded_length) {
        return CORRUPT(MPK_T_DESCS, i, "decoded length is %llu, the matrices need %llu",
                       (unsigned long long)d->decoded_length, (unsigned long long)panel);
    }
    /* Panel order drops what no matrix holds: the published bytes must all be there. */
    if (bits / 8 != d->canonical_length || bits % 8 != 0)
        return CORRUPT(MPK_T_DESCS, i, "the matrices do not hold all bytes of the section");
    mpk_cover cover = mpk_matrices_cover(matrices, d->matrix_count, d->canonical_length, budget);
    if (cover == MPK_COVER_NO) return CORRUPT(MPK_T_DESCS, i, "the matrices hold some bytes of the section twice");
    if (cover == MPK_COVER_UNKNOWN)
        return UNSUPPORTED(MPK_T_DESCS, i, "the matrices lie too involved in the section to be checked");
    return MOEPACK_OK;
}

static moepack_status check_desc(const moepack_index *x, uint32_t i, uint64_t *budget, moepack_error *error)
{
    const uint8_t *e = mpk_index_entry(x, MPK_T_DESCS, i);
    moepack_str name;
    moepack_status status = check_str(x, MPK_T_DESCS, i, e, &name, error);
    if (status != MOEPACK_OK) return status;
    moepack_desc d;
    moepack_index_desc(x, i, &d);
    if (moepack_dtype_name(d.dtype) == NULL) return UNSUPPORTED(MPK_T_DESCS, i, "unknown dtype %u", (unsigned)d.dtype);
    if (d.layout != MOEPACK_LAYOUT_CANONICAL && d.layout != MOEPACK_LAYOUT_PANEL)
        return CORRUPT(MPK_T_DESCS, i, "unknown layout %u", (unsigned)d.layout);
    if ((e[11] & ~3u) != 0) return CORRUPT(MPK_T_DESCS, i, "reserved flag is set");
    if (mpk_load32(e + 28) != 0 || !zero_bytes(e + 48, 16))
        return CORRUPT(MPK_T_DESCS, i, "reserved field is not zero");
    if (name.length > MPK_PATH_MAX) return UNSUPPORTED(MPK_T_DESCS, i, "name of %u bytes", (unsigned)name.length);
    unsigned experts = mpk_pattern_experts(name);
    if (experts > 1) return CORRUPT(MPK_T_DESCS, i, "{expert} occurs more than once in the name");
    if (name.length == 0 ? d.fused : d.fused != (experts == 0))
        return CORRUPT(MPK_T_DESCS, i, "the fused flag contradicts the name");
    if (d.flat && (!d.fused || d.rank == 0))
        return CORRUPT(MPK_T_DESCS, i, "flat, but not a slice of a tensor of all experts");
    if (!range_inside(d.first_dim, d.rank, mpk_index_count(x, MPK_T_DIMS)))
        return CORRUPT(MPK_T_DESCS, i, "dims lie outside their table");
    if (!range_inside(d.first_matrix, d.matrix_count, mpk_index_count(x, MPK_T_MATRICES)))
        return CORRUPT(MPK_T_DESCS, i, "matrices lie outside their table");
    if (d.rank > MPK_RANK_MAX) return UNSUPPORTED(MPK_T_DESCS, i, "%u dimensions", (unsigned)d.rank);
    if (d.matrix_count > MPK_MATRICES_MAX)
        return UNSUPPORTED(MPK_T_DESCS, i, "%u matrices in one section", (unsigned)d.matrix_count);
    uint64_t length;
    if (!dims_length(x, &d, &length) || length != d.canonical_length)
        return CORRUPT(MPK_T_DESCS, i, "canonical length contradicts dims and dtype");
    return check_desc_matrices(x, i, &d, budget, error);
}

/* Schemas use named descs, trunk tensors unnamed ones. named[i] = number of named descs below i. */
static moepack_status check_schemas(const moepack_index *x, const uint32_t *named, moepack_error *error)
{
    for (uint32_t i = 0; i < moepack_index_schemas(x); ++i) {
        uint32_t first, count;
        moepack_index_schema(x, i, &first, &count);
        if (count == 0 || !range_inside(first, count, mpk_index_count(x, MPK_T_DESCS)))
            return CORRUPT(MPK_T_SCHEMAS, i, "descriptions lie outside their table");
        if (named[first + count] - named[first] != count) return CORRUPT(MPK_T_SCHEMAS, i, "a section without a name");
    }
    return MOEPACK_OK;
}

static moepack_status check_descs(const moepack_index *x, moepack_error *error)
{
    moepack_status status = MOEPACK_OK;
    uint32_t matrices = (uint32_t)mpk_index_count(x, MPK_T_MATRICES), descs = (uint32_t)mpk_index_count(x, MPK_T_DESCS);
    for (uint32_t i = 0; i < matrices && status == MOEPACK_OK; ++i) status = check_matrix(x, i, error);
    if (status != MOEPACK_OK) return status;
    uint64_t budget = MPK_COVER_BUDGET;
    uint32_t *named = malloc(((size_t)descs + 1) * sizeof *named);
    if (named == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    named[0] = 0;
    for (uint32_t i = 0; i < descs && status == MOEPACK_OK; ++i) {
        status = check_desc(x, i, &budget, error);
        named[i + 1] = named[i] + (mpk_load32(mpk_index_entry(x, MPK_T_DESCS, i) + 4) != 0);
    }
    if (status == MOEPACK_OK) status = check_schemas(x, named, error);
    free(named);
    return status;
}

/* ---- blocks ---- */

static moepack_status check_roles(const moepack_index *x, const moepack_block *b, moepack_error *error)
{
    uint32_t last = 0;
    for (uint32_t i = b->first_role; i < b->first_role + b->role_count; ++i) {
        moepack_role_entry r;
        moepack_index_role(x, i, &r);
        if (moepack_role_name(r.role) == NULL) return UNSUPPORTED(MPK_T_ROLES, i, "unknown role %u", (unsigned)r.role);
        if (moepack_plane_name(r.plane) == NULL)
            return UNSUPPORTED(MPK_T_ROLES, i, "unknown plane %u", (unsigned)r.plane);
        if (r.role < MOEPACK_ROLE_ROUTER) return CORRUPT(MPK_T_ROLES, i, "not a role of a block");
        if (r.tensor >= moepack_index_tensors(x)) return CORRUPT(MPK_T_ROLES, i, "tensor lies outside its table");
        uint32_t key = (uint32_t)r.role << 16 | (uint32_t)r.plane;
        if (key <= last) return CORRUPT(MPK_T_ROLES, i, "roles of a block do not ascend");
        last = key;
    }
    return MOEPACK_OK;
}

static moepack_status check_block(const moepack_index *x, uint32_t i, moepack_block *b, moepack_error *error)
{
    const uint8_t *e = mpk_index_entry(x, MPK_T_BLOCKS, i);
    moepack_str prefix;
    moepack_status status = check_str(x, MPK_T_BLOCKS, i, e + 8, &prefix, error);
    if (status != MOEPACK_OK) return status;
    moepack_index_block(x, i, b);
    if ((unsigned)b->stack > MOEPACK_STACK_MTP) return CORRUPT(MPK_T_BLOCKS, i, "unknown stack %u", (unsigned)b->stack);
    if (prefix.length == 0 || prefix.data[prefix.length - 1] != '.')
        return CORRUPT(MPK_T_BLOCKS, i, "the prefix does not end with a dot");
    if (!zero_bytes(e + 40, 24)) return CORRUPT(MPK_T_BLOCKS, i, "reserved field is not zero");
    if (b->policy >= mpk_index_count(x, MPK_T_POLICIES))
        return CORRUPT(MPK_T_BLOCKS, i, "policy lies outside its table");
    if (!range_inside(b->first_role, b->role_count, mpk_index_count(x, MPK_T_ROLES)))
        return CORRUPT(MPK_T_BLOCKS, i, "roles lie outside their table");
    status = check_roles(x, b, error);
    if (status != MOEPACK_OK) return status;
    moepack_policy policy;
    uint32_t overrides;
    moepack_error why = {.expert = -1, .offset = -1};
    status = mpk_index_decode_policy(x, b->policy, &policy, &overrides, error);
    if (status != MOEPACK_OK) return status;
    if (moepack_policy_check(&policy, b->experts, &why) != MOEPACK_OK)
        return CORRUPT(MPK_T_BLOCKS, i, "%s", why.message);
    return MOEPACK_OK;
}

static moepack_status check_blocks(const moepack_index *x, moepack_error *error)
{
    moepack_status status;
    for (uint32_t i = 0; i < (uint32_t)mpk_index_count(x, MPK_T_POLICIES); ++i) {
        moepack_policy policy;
        uint32_t overrides;
        status = mpk_index_decode_policy(x, i, &policy, &overrides, error);
        if (status != MOEPACK_OK) return status;
    }
    uint64_t last = 0, records = 0;
    for (uint32_t i = 0; i < moepack_index_blocks(x); ++i) {
        moepack_block b;
        status = check_block(x, i, &b, error);
        if (status != MOEPACK_OK) return status;
        uint64_t key = (uint64_t)b.stack << 32 | b.number;
        if (i > 0 && key <= last) return CORRUPT(MPK_T_BLOCKS, i, "blocks are not in order of stack and number");
        if (b.first_record != records) return CORRUPT(MPK_T_BLOCKS, i, "first record is not where the last block ends");
        last = key;
        records += b.experts; /* cannot overflow: fewer than 2^32 blocks of fewer than 2^32 experts */
    }
    if (records != mpk_index_count(x, MPK_T_RECORDS)) {
        return CORRUPT(MPK_T_RECORDS, 0, "%llu entries for %llu experts",
                       (unsigned long long)mpk_index_count(x, MPK_T_RECORDS), (unsigned long long)records);
    }
    return MOEPACK_OK;
}

/* ---- source files and tensors ---- */

static bool path_ok(moepack_str path)
{
    uint32_t start = 0;
    if (path.length == 0 || memchr(path.data, '\0', path.length) != NULL) return false;
    for (uint32_t i = 0; i <= path.length; ++i) {
        if (i < path.length && path.data[i] != '/') continue;
        moepack_str part = {path.data + start, i - start};
        if (!shard_name_ok(part)) return false;
        start = i + 1;
    }
    return true;
}

static bool is_trunk_shard(const moepack_index *x, uint32_t shard)
{
    if (shard >= moepack_index_shards(x)) return false;
    return mpk_load32(mpk_index_entry(x, MPK_T_SHARDS, shard) + 8) == MOEPACK_SHARD_TRUNK;
}

static moepack_status check_files(const moepack_index *x, moepack_error *error)
{
    moepack_source_file last = {0};
    for (uint32_t i = 0; i < moepack_index_source_files(x); ++i) {
        const uint8_t *e = mpk_index_entry(x, MPK_T_FILES, i);
        moepack_str name;
        moepack_status status = check_str(x, MPK_T_FILES, i, e, &name, error);
        if (status != MOEPACK_OK) return status;
        moepack_source_file f;
        moepack_index_source_file(x, i, &f);
        if (name.length > MPK_PATH_MAX) return UNSUPPORTED(MPK_T_FILES, i, "path of %u bytes", (unsigned)name.length);
        if (!path_ok(name)) return CORRUPT(MPK_T_FILES, i, "not a relative path");
        if ((unsigned)f.kind > MOEPACK_SOURCE_SIDE) return CORRUPT(MPK_T_FILES, i, "unknown kind %u", (unsigned)f.kind);
        if (!is_trunk_shard(x, f.shard)) return CORRUPT(MPK_T_FILES, i, "not in a trunk shard");
        if (!zero_bytes(e + 48, 16)) return CORRUPT(MPK_T_FILES, i, "reserved field is not zero");
        if (f.length > INT64_MAX) return CORRUPT(MPK_T_FILES, i, "impossible file length");
        if (i > 0 && (f.kind < last.kind || (f.kind == last.kind && mpk_str_compare(last.name, name) >= 0)))
            return CORRUPT(MPK_T_FILES, i, "files are not in order of kind and name");
        last = f;
    }
    return check_unique(x, MPK_T_FILES, error);
}

static moepack_status check_tensors(const moepack_index *x, moepack_error *error)
{
    moepack_tensor last = {0};
    for (uint32_t i = 0; i < moepack_index_tensors(x); ++i) {
        moepack_str name;
        moepack_status status = check_str(x, MPK_T_TENSORS, i, mpk_index_entry(x, MPK_T_TENSORS, i), &name, error);
        if (status != MOEPACK_OK) return status;
        moepack_tensor t;
        moepack_index_tensor(x, i, &t);
        if (t.desc >= mpk_index_count(x, MPK_T_DESCS) || mpk_load32(mpk_index_entry(x, MPK_T_DESCS, t.desc) + 4) != 0)
            return CORRUPT(MPK_T_TENSORS, i, "description is none of a trunk tensor");
        if (t.source_file >= moepack_index_source_files(x) ||
            mpk_load32(mpk_index_entry(x, MPK_T_FILES, t.source_file) + 8) != MOEPACK_SOURCE_SAFETENSORS)
            return CORRUPT(MPK_T_TENSORS, i, "source file is none with tensors");
        if (!is_trunk_shard(x, t.shard)) return CORRUPT(MPK_T_TENSORS, i, "not in a trunk shard");
        if (t.block != MOEPACK_NO_BLOCK && t.block >= moepack_index_blocks(x))
            return CORRUPT(MPK_T_TENSORS, i, "block lies outside its table");
        int order = i > 0 ? mpk_str_compare(last.name, name) : -1;
        if (order > 0 || (order == 0 && last.source_file >= t.source_file))
            return CORRUPT(MPK_T_TENSORS, i, "tensors are not in order of name and source file");
        last = t;
    }
    return MOEPACK_OK;
}

moepack_status mpk_index_check(const moepack_index *x, moepack_error *error)
{
    static moepack_status (*const checks[])(const moepack_index *, moepack_error *) = {
        check_info, check_shards, check_descs, check_blocks, check_files, check_tensors, mpk_index_check_data,
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; ++i) {
        moepack_status status = checks[i](x, error);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}
