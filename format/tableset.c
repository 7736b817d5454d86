/* Table sets: encoding and decoding of the directory. */
#include "tableset.h"

#include "bytes.h"
#include "error.h"

static const struct {
    const char *name;
    uint32_t entry;
} specs[MPK_T_END] = {
    [MPK_T_INFO] = {"INFO", 128},
    [MPK_T_SHARDS] = {"SHARDS", 64},
    [MPK_T_BLOCKS] = {"BLOCKS", 64},
    [MPK_T_SCHEMAS] = {"SCHEMAS", 8},
    [MPK_T_DESCS] = {"DESCS", 64},
    [MPK_T_MATRICES] = {"MATRICES", 64},
    [MPK_T_DIMS] = {"DIMS", 8},
    [MPK_T_POLICIES] = {"POLICIES", 8},
    [MPK_T_FIELDS] = {"FIELDS", 16},
    [MPK_T_RECORDS] = {"RECORDS", 32},
    [MPK_T_SECTIONS] = {"SECTIONS", 40},
    [MPK_T_PARTS] = {"PARTS", 16},
    [MPK_T_TENSORS] = {"TENSORS", 32},
    [MPK_T_FILES] = {"FILES", 64},
    [MPK_T_ROLES] = {"ROLES", 8},
    [MPK_T_STRINGS] = {"STRINGS", 1},
    [MPK_T_TAIL_RECORDS] = {"TAIL_RECORDS", 40},
    [MPK_T_TAIL_OWNERS] = {"TAIL_OWNERS", 8},
};

const uint32_t mpk_index_table_ids[MPK_INDEX_TABLES] = {
    MPK_T_INFO,    MPK_T_SHARDS,   MPK_T_BLOCKS, MPK_T_SCHEMAS, MPK_T_DESCS,    MPK_T_MATRICES,
    MPK_T_DIMS,    MPK_T_POLICIES, MPK_T_FIELDS, MPK_T_RECORDS, MPK_T_SECTIONS, MPK_T_PARTS,
    MPK_T_TENSORS, MPK_T_FILES,    MPK_T_ROLES,  MPK_T_STRINGS,
};

const char *mpk_table_name(uint32_t id)
{
    return id < MPK_T_END && specs[id].name != NULL ? specs[id].name : "?";
}

uint32_t mpk_table_entry(uint32_t id)
{
    return id < MPK_T_END ? specs[id].entry : 0;
}

#define DIRECTORY_START 8u
#define DIRECTORY_ENTRY 32u

static moepack_status bad(moepack_error *error, uint64_t offset, const char *what, uint32_t id)
{
    mpk_fail(error, MOEPACK_E_CORRUPT, "table directory: %s (table %u, %s)", what, (unsigned)id, mpk_table_name(id));
    mpk_error_offset(error, offset);
    return MOEPACK_E_CORRUPT;
}

static bool all_zero(const uint8_t *bytes, uint64_t length)
{
    for (uint64_t i = 0; i < length; ++i) {
        if (bytes[i] != 0) return false;
    }
    return true;
}

/* Checks directory entry `e`; `*end` is where the bytes before this table end, and is moved behind it. */
static moepack_status decode_entry(const uint8_t *set, uint64_t length, uint64_t file_offset, const uint8_t *e,
                                   uint32_t id, uint64_t *end, mpk_table *out, moepack_error *error)
{
    uint64_t at = file_offset + (uint64_t)(e - set), count = mpk_load64(e + 8), offset = mpk_load64(e + 16);
    uint64_t expected, size;
    if (mpk_load32(e) != id) return bad(error, at, "another id was expected", id);
    if (mpk_load32(e + 4) != mpk_table_entry(id)) return bad(error, at + 4, "wrong entry size", id);
    if (mpk_load64(e + 24) != 0) return bad(error, at + 24, "reserved field is not zero", id);
    if (!mpk_align64(*end, MPK_TABLE_ALIGN, &expected) || offset != expected)
        return bad(error, at + 16, "the table is not where it should start", id);
    if (!mpk_mul64(count, mpk_table_entry(id), &size) || offset > length || size > length - offset)
        return bad(error, at + 8, "the table reaches beyond the set", id);
    /* Only these two may have 2^32 - 1 entries or more; references to the others are 32 bits wide. */
    if (count >= UINT32_MAX && id != MPK_T_RECORDS && id != MPK_T_SECTIONS)
        return bad(error, at + 8, "too many entries", id);
    if (!all_zero(set + *end, offset - *end)) return bad(error, file_offset + *end, "gap is not zero before", id);
    *out = (mpk_table){set + offset, count};
    *end = offset + size;
    return MOEPACK_OK;
}

moepack_status mpk_tableset_decode(const uint8_t *set, uint64_t length, uint64_t file_offset, const uint32_t *ids,
                                   size_t id_count, mpk_tables_view *out, moepack_error *error)
{
    memset(out, 0, sizeof *out);
    uint64_t end = DIRECTORY_START + DIRECTORY_ENTRY * (uint64_t)id_count;
    if (length < end) return bad(error, file_offset, "the set is too short", 0);
    if (mpk_load32(set) != id_count) return bad(error, file_offset, "wrong number of tables", 0);
    if (mpk_load32(set + 4) != 0) return bad(error, file_offset + 4, "reserved field is not zero", 0);
    for (size_t i = 0; i < id_count; ++i) {
        const uint8_t *entry = set + DIRECTORY_START + DIRECTORY_ENTRY * i;
        moepack_status status = decode_entry(set, length, file_offset, entry, ids[i], &end, &out->t[ids[i]], error);
        if (status != MOEPACK_OK) return status;
    }
    if (end != length) return bad(error, file_offset + end, "bytes behind the last table", ids[id_count - 1]);
    return MOEPACK_OK;
}

bool mpk_tableset_length(const uint32_t *ids, size_t id_count, const uint64_t *counts, uint64_t *length)
{
    uint64_t end = DIRECTORY_START + DIRECTORY_ENTRY * (uint64_t)id_count, size;
    for (size_t i = 0; i < id_count; ++i) {
        if (!mpk_align64(end, MPK_TABLE_ALIGN, &end) || !mpk_mul64(counts[ids[i]], mpk_table_entry(ids[i]), &size) ||
            !mpk_add64(end, size, &end))
            return false;
    }
    *length = end;
    return true;
}

moepack_status mpk_tableset_append(mpk_buf *out, const uint32_t *ids, size_t id_count, const uint64_t *counts,
                                   uint8_t **entries, moepack_error *error)
{
    uint64_t length;
    if (!mpk_tableset_length(ids, id_count, counts, &length) || length > INT64_MAX || length > SIZE_MAX)
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "tables of more than 2^63 bytes");
    uint8_t *set = (uint8_t *)mpk_buf_append(out, NULL, (size_t)length);
    if (set == NULL) {
        return mpk_fail(error, MOEPACK_E_REFUSED, "no memory for %llu bytes of tables", (unsigned long long)length);
    }
    mpk_store32(set, (uint32_t)id_count);
    uint64_t end = DIRECTORY_START + DIRECTORY_ENTRY * (uint64_t)id_count;
    for (size_t i = 0; i < id_count; ++i) {
        uint8_t *e = set + DIRECTORY_START + DIRECTORY_ENTRY * i;
        mpk_align64(end, MPK_TABLE_ALIGN, &end); /* cannot fail: the length was computed the same way */
        mpk_store32(e, ids[i]);
        mpk_store32(e + 4, mpk_table_entry(ids[i]));
        mpk_store64(e + 8, counts[ids[i]]);
        mpk_store64(e + 16, end);
        entries[ids[i]] = set + end;
        end += counts[ids[i]] * mpk_table_entry(ids[i]);
    }
    return MOEPACK_OK;
}
