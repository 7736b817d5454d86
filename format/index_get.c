/* Getters of an opened index: each decodes one entry of a table that was checked when the index was opened. */
#include "error.h"
#include "header.h"
#include "index.h"
#include "names.h"
#include "policy.h"

#include <string.h>

static moepack_str str_at(const moepack_index *x, const uint8_t *field)
{
    uint32_t offset = mpk_load32(field), length = mpk_load32(field + 4);
    return (moepack_str){(const char *)x->tables.t[MPK_T_STRINGS].data + offset, length};
}

/* Entry i, or NULL with *out zeroed when it is beyond the table. */
static const uint8_t *entry_or_zero(const moepack_index *x, uint32_t table, uint64_t i, void *out, size_t size)
{
    if (i < mpk_index_count(x, table)) return mpk_index_entry(x, table, i);
    memset(out, 0, size);
    return NULL;
}

void moepack_index_info(const moepack_index *x, moepack_info *out)
{
    const uint8_t *e = mpk_index_entry(x, MPK_T_INFO, 0);
    *out = (moepack_info){
        .canonical_root = mpk_load_hash128(e),
        .plan_id = mpk_load_hash128(e + 16),
        .family = str_at(x, e + 32),
        .model_type = str_at(x, e + 40),
        .page_size = mpk_load32(e + 48),
        .writer_revision = mpk_load32(e + 52),
        .layout = (moepack_layout)mpk_load32(e + 56),
        .codec = mpk_load32(e + 60),
        .subset = (mpk_load32(e + 64) & 1) != 0,
        .quantized = (mpk_load32(e + 64) & 2) != 0,
        .source_bytes = mpk_load64(e + 72),
        .source_tensors = mpk_load64(e + 80),
    };
}

moepack_hash128 moepack_index_root_hash(const moepack_index *x)
{
    return x->root;
}

uint64_t moepack_index_file_length(const moepack_index *x)
{
    return x->size;
}

uint32_t moepack_index_shards(const moepack_index *x)
{
    return (uint32_t)mpk_index_count(x, MPK_T_SHARDS);
}

uint32_t moepack_index_blocks(const moepack_index *x)
{
    return (uint32_t)mpk_index_count(x, MPK_T_BLOCKS);
}

uint32_t moepack_index_schemas(const moepack_index *x)
{
    return (uint32_t)mpk_index_count(x, MPK_T_SCHEMAS);
}

uint32_t moepack_index_tensors(const moepack_index *x)
{
    return (uint32_t)mpk_index_count(x, MPK_T_TENSORS);
}

uint32_t moepack_index_source_files(const moepack_index *x)
{
    return (uint32_t)mpk_index_count(x, MPK_T_FILES);
}

uint64_t moepack_index_records(const moepack_index *x)
{
    return mpk_index_count(x, MPK_T_RECORDS);
}

uint64_t moepack_index_sections(const moepack_index *x)
{
    return mpk_index_count(x, MPK_T_SECTIONS);
}

void moepack_index_shard(const moepack_index *x, uint32_t i, moepack_shard *out)
{
    const uint8_t *e = entry_or_zero(x, MPK_T_SHARDS, i, out, sizeof *out);
    if (e == NULL) return;
    *out = (moepack_shard){
        .name = str_at(x, e),
        .kind = (moepack_shard_kind)mpk_load32(e + 8),
        .file_length = mpk_load64(e + 16),
        .tail_offset = mpk_load64(e + 24),
        .tail_length = mpk_load64(e + 32),
        .root = mpk_load_hash128(e + 40),
    };
}

void moepack_index_block(const moepack_index *x, uint32_t i, moepack_block *out)
{
    const uint8_t *e = entry_or_zero(x, MPK_T_BLOCKS, i, out, sizeof *out);
    if (e == NULL) return;
    *out = (moepack_block){
        .stack = (moepack_stack)mpk_load32(e),
        .number = mpk_load32(e + 4),
        .prefix = str_at(x, e + 8),
        .experts = mpk_load32(e + 16),
        .policy = mpk_load32(e + 20),
        .first_record = mpk_load64(e + 24),
        .first_role = mpk_load32(e + 32),
        .role_count = mpk_load32(e + 36),
    };
}

void moepack_index_schema(const moepack_index *x, uint32_t i, uint32_t *first_desc, uint32_t *count)
{
    bool there = i < mpk_index_count(x, MPK_T_SCHEMAS);
    const uint8_t *e = there ? mpk_index_entry(x, MPK_T_SCHEMAS, i) : NULL;
    *first_desc = there ? mpk_load32(e) : 0;
    *count = there ? mpk_load32(e + 4) : 0;
}

void moepack_index_desc(const moepack_index *x, uint32_t i, moepack_desc *out)
{
    const uint8_t *e = entry_or_zero(x, MPK_T_DESCS, i, out, sizeof *out);
    if (e == NULL) return;
    *out = (moepack_desc){
        .name = str_at(x, e),
        .dtype = (moepack_dtype)mpk_load16(e + 8),
        .layout = (moepack_layout)e[10],
        .fused = (e[11] & 1) != 0,
        .flat = (e[11] & 2) != 0,
        .rank = mpk_load32(e + 12),
        .first_dim = mpk_load32(e + 16),
        .first_matrix = mpk_load32(e + 20),
        .matrix_count = mpk_load32(e + 24),
        .canonical_length = mpk_load64(e + 32),
        .decoded_length = mpk_load64(e + 40),
    };
}

uint64_t moepack_index_dim(const moepack_index *x, uint32_t i)
{
    return i < mpk_index_count(x, MPK_T_DIMS) ? mpk_load64(mpk_index_entry(x, MPK_T_DIMS, i)) : 0;
}

void moepack_index_matrix(const moepack_index *x, uint32_t i, moepack_matrix *out)
{
    const uint8_t *e = entry_or_zero(x, MPK_T_MATRICES, i, out, sizeof *out);
    if (e == NULL) return;
    *out = (moepack_matrix){
        .role = (moepack_role)mpk_load16(e),
        .plane = (moepack_plane)mpk_load16(e + 2),
        .encoding = (moepack_encoding)mpk_load16(e + 4),
        .bits = mpk_load16(e + 6),
        .group_rows = mpk_load32(e + 8),
        .group_cols = mpk_load32(e + 12),
        .rows = mpk_load64(e + 16),
        .cols = mpk_load64(e + 24),
        .base = mpk_load64(e + 32),
        .row_stride = mpk_load64(e + 40),
        .col_stride = mpk_load64(e + 48),
    };
}

void moepack_index_tensor(const moepack_index *x, uint32_t i, moepack_tensor *out)
{
    const uint8_t *e = entry_or_zero(x, MPK_T_TENSORS, i, out, sizeof *out);
    if (e == NULL) return;
    *out = (moepack_tensor){
        .name = str_at(x, e),
        .desc = mpk_load32(e + 8),
        .source_file = mpk_load32(e + 12),
        .section = mpk_load64(e + 16),
        .shard = mpk_load32(e + 24),
        .block = mpk_load32(e + 28),
    };
}

void moepack_index_source_file(const moepack_index *x, uint32_t i, moepack_source_file *out)
{
    const uint8_t *e = entry_or_zero(x, MPK_T_FILES, i, out, sizeof *out);
    if (e == NULL) return;
    *out = (moepack_source_file){
        .name = str_at(x, e),
        .kind = (moepack_source_kind)mpk_load32(e + 8),
        .shard = mpk_load32(e + 12),
        .section = mpk_load64(e + 16),
        .length = mpk_load64(e + 24),
        .hash = mpk_load_hash128(e + 32),
    };
}

void moepack_index_record(const moepack_index *x, uint64_t i, moepack_record *out)
{
    const uint8_t *e = entry_or_zero(x, MPK_T_RECORDS, i, out, sizeof *out);
    if (e == NULL) return;
    *out = (moepack_record){
        .shard = mpk_load32(e),
        .schema = mpk_load32(e + 4),
        .offset = mpk_load64(e + 8),
        .length = mpk_load64(e + 16),
        .first_section = mpk_load64(e + 24),
    };
}

void moepack_index_section(const moepack_index *x, uint64_t i, moepack_section *out)
{
    const uint8_t *e = entry_or_zero(x, MPK_T_SECTIONS, i, out, sizeof *out);
    if (e == NULL) return;
    *out = (moepack_section){
        .offset = mpk_load64(e),
        .stored_length = mpk_load64(e + 8),
        .xxh3_stored = mpk_load64(e + 16),
        .xxh3_canonical = mpk_load64(e + 24),
        .first_part = mpk_load32(e + 32),
        .codec = (moepack_codec)e[36],
    };
}

void moepack_index_role(const moepack_index *x, uint32_t i, moepack_role_entry *out)
{
    const uint8_t *e = entry_or_zero(x, MPK_T_ROLES, i, out, sizeof *out);
    if (e == NULL) return;
    *out = (moepack_role_entry){
        .role = (moepack_role)mpk_load16(e),
        .plane = (moepack_plane)mpk_load16(e + 2),
        .tensor = mpk_load32(e + 4),
    };
}

void moepack_index_part(const moepack_index *x, uint32_t i, uint32_t *stored_length, uint64_t *xxh3)
{
    bool there = i < mpk_index_count(x, MPK_T_PARTS);
    const uint8_t *e = there ? mpk_index_entry(x, MPK_T_PARTS, i) : NULL;
    *stored_length = there ? mpk_load32(e) : 0;
    *xxh3 = there ? mpk_load64(e + 8) : 0;
}

/* ---- policies ---- */

static moepack_status decode_field(const moepack_index *x, uint64_t i, uint32_t *last_key, moepack_policy *out,
                                   uint32_t *overrides, moepack_error *error)
{
    const uint8_t *e = mpk_index_entry(x, MPK_T_FIELDS, i);
    uint32_t key = mpk_load16(e), type = mpk_load16(e + 2), flags = mpk_load32(e + 4);
    size_t k = mpk_policy_key_find((uint16_t)key);
    if (k == SIZE_MAX)
        return mpk_index_bad(x, error, MOEPACK_E_UNSUPPORTED, MPK_T_FIELDS, i, "unknown policy key %u", (unsigned)key);
    if (key <= *last_key) return mpk_index_bad(x, error, MOEPACK_E_CORRUPT, MPK_T_FIELDS, i, "keys do not ascend");
    if (type != (uint32_t)mpk_policy_key_type(k)) {
        return mpk_index_bad(x, error, MOEPACK_E_UNSUPPORTED, MPK_T_FIELDS, i, "policy key %s has type %u",
                             mpk_policy_key_name(k), (unsigned)type);
    }
    if ((flags & ~1u) != 0) return mpk_index_bad(x, error, MOEPACK_E_CORRUPT, MPK_T_FIELDS, i, "reserved flag is set");
    mpk_policy_set_bits(out, k, mpk_load64(e + 8));
    if (!mpk_policy_value_known(out, k)) {
        return mpk_index_bad(x, error, MOEPACK_E_UNSUPPORTED, MPK_T_FIELDS, i, "policy key %s has unknown value %llu",
                             mpk_policy_key_name(k), (unsigned long long)mpk_load64(e + 8));
    }
    *last_key = key;
    *overrides += flags & 1;
    return MOEPACK_OK;
}

moepack_status mpk_index_decode_policy(const moepack_index *x, uint32_t i, moepack_policy *out, uint32_t *overrides,
                                       moepack_error *error)
{
    const uint8_t *e = mpk_index_entry(x, MPK_T_POLICIES, i);
    uint32_t first = mpk_load32(e), count = mpk_load32(e + 4), last_key = 0;
    uint64_t fields = mpk_index_count(x, MPK_T_FIELDS);
    *overrides = 0;
    moepack_policy_init(out);
    if (first > fields || count > fields - first)
        return mpk_index_bad(x, error, MOEPACK_E_CORRUPT, MPK_T_POLICIES, i, "fields lie outside their table");
    for (uint32_t f = 0; f < count; ++f) {
        moepack_status status = decode_field(x, (uint64_t)first + f, &last_key, out, overrides, error);
        if (status != MOEPACK_OK) return status;
    }
    /* Known keys that ascend: as many as there are keys means every one is there. */
    if (count != moepack_policy_key_count()) {
        return mpk_index_bad(x, error, MOEPACK_E_CORRUPT, MPK_T_POLICIES, i, "%u fields, %zu are needed",
                             (unsigned)count, moepack_policy_key_count());
    }
    return MOEPACK_OK;
}

moepack_status moepack_index_policy(const moepack_index *x, uint32_t i, moepack_policy *out, uint32_t *overrides,
                                    moepack_error *error)
{
    uint32_t ignored;
    if (i >= mpk_index_count(x, MPK_T_POLICIES))
        return mpk_fail(error, MOEPACK_E_USAGE, "the container has no policy %u", (unsigned)i);
    return mpk_index_decode_policy(x, i, out, overrides != NULL ? overrides : &ignored, error);
}

/* ---- look-ups ---- */

void moepack_index_label(const moepack_index *x, uint32_t block, char *buf)
{
    moepack_block b;
    moepack_index_block(x, block, &b);
    mpk_label(b.stack, b.number, buf);
}

uint32_t moepack_index_find_block(const moepack_index *x, const char *label)
{
    if (label == NULL) return MOEPACK_NO_BLOCK;
    size_t length = strlen(label);
    for (uint32_t i = 0; i < moepack_index_blocks(x); ++i) {
        moepack_block b;
        char own[MOEPACK_LABEL_MAX];
        moepack_index_block(x, i, &b);
        mpk_label(b.stack, b.number, own);
        if (strcmp(own, label) == 0) return i;
        bool with_dot = length > 0 && b.prefix.length == length, without = b.prefix.length == length + 1;
        if ((with_dot || (without && length > 0)) && memcmp(b.prefix.data, label, length) == 0) return i;
    }
    return MOEPACK_NO_BLOCK;
}

uint32_t moepack_index_find_tensor(const moepack_index *x, const char *name, size_t length)
{
    if (name == NULL || length > UINT32_MAX) return UINT32_MAX;
    const moepack_str wanted = {name, (uint32_t)length};
    uint32_t low = 0, high = moepack_index_tensors(x);
    while (low < high) { /* first entry that is not below `wanted` */
        uint32_t middle = low + (high - low) / 2;
        if (mpk_str_compare(str_at(x, mpk_index_entry(x, MPK_T_TENSORS, middle)), wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == moepack_index_tensors(x)) return UINT32_MAX;
    return mpk_str_compare(str_at(x, mpk_index_entry(x, MPK_T_TENSORS, low)), wanted) == 0 ? low : UINT32_MAX;
}

size_t moepack_index_section_name(const moepack_index *x, uint32_t block, uint32_t expert, uint32_t s, char *buf,
                                  size_t size)
{
    moepack_block b;
    moepack_record record;
    moepack_desc desc;
    uint32_t first, count;
    if (size > 0) buf[0] = '\0';
    moepack_index_block(x, block, &b);
    if (expert >= b.experts) return 0;
    moepack_index_record(x, b.first_record + expert, &record);
    if (record.shard == MOEPACK_NO_SHARD) return 0;
    moepack_index_schema(x, record.schema, &first, &count);
    if (s >= count) return 0;
    moepack_index_desc(x, first + s, &desc);
    return mpk_section_name(b.prefix, desc.name, expert, buf, size);
}
