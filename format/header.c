/* File headers: the 64 bytes that are the same in all versions, and what follows them in index and shards. */
#include "header.h"

#include "bytes.h"
#include "error.h"

static const uint8_t magic[8] = {0x89, 'M', 'P', 'K', '\r', '\n', 0x1a, '\n'};

enum { /* offsets, spec 3.1 */
    AT_MAJOR = 8,
    AT_MINOR = 10,
    AT_KIND = 12,
    AT_MUST = 16,
    AT_MAY = 24,
    AT_HEADER_LENGTH = 32,
    AT_RESERVED_1 = 36,
    AT_FILE_LENGTH = 40,
    AT_RESERVED_2 = 48,
    AT_HASH = 56,
    AT_SECOND = 64,
    AT_SECOND_HASH = 120,
};

enum { /* index, spec 3.2 */
    INDEX_SET_OFFSET = 64,
    INDEX_SET_LENGTH = 72,
    INDEX_ROOT = 80,
    INDEX_RESERVED = 96,
};

enum { /* shards, spec 3.3 */
    SHARD_PLAN_ID = 64,
    SHARD_NUMBER = 80,
    SHARD_RESERVED = 84,
    SHARD_TAIL_OFFSET = 88,
    SHARD_TAIL_LENGTH = 96,
    SHARD_ROOT = 104,
};

void mpk_store_hash128(uint8_t *to, moepack_hash128 hash)
{
    mpk_store64(to, hash.low);
    mpk_store64(to + 8, hash.high);
}

moepack_hash128 mpk_load_hash128(const uint8_t *from)
{
    return (moepack_hash128){.low = mpk_load64(from), .high = mpk_load64(from + 8)};
}

static moepack_status corrupt(moepack_error *error, uint64_t offset, const char *what)
{
    mpk_fail(error, MOEPACK_E_CORRUPT, "header: %s", what);
    mpk_error_offset(error, offset);
    return MOEPACK_E_CORRUPT;
}

/* Rules 1 and 2. */
static moepack_status check_magic(const uint8_t *data, uint64_t size, moepack_error *error)
{
    size_t common = size < sizeof magic ? (size_t)size : sizeof magic;
    if (common > 0 && memcmp(data, magic, common) != 0)
        return corrupt(error, 0, "this is no moepack file (wrong magic)");
    if (size < MPK_PREAMBLE) {
        mpk_fail(error, MOEPACK_E_INCOMPLETE, "header: the file has only %llu bytes", (unsigned long long)size);
        return MOEPACK_E_INCOMPLETE;
    }
    if (moepack_hash64(data, AT_HASH) != mpk_load64(data + AT_HASH))
        return corrupt(error, AT_HASH, "hash of the first 64 bytes does not match");
    return MOEPACK_OK;
}

/* Rules 3 and 4. */
static moepack_status check_version(const uint8_t *data, moepack_error *error)
{
    unsigned major = mpk_load16(data + AT_MAJOR), minor = mpk_load16(data + AT_MINOR);
    if (major != MOEPACK_FORMAT_MAJOR || minor != MOEPACK_FORMAT_MINOR) {
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "container version %u.%u, this program reads %d.%d", major, minor,
                        MOEPACK_FORMAT_MAJOR, MOEPACK_FORMAT_MINOR);
    }
    uint64_t must = mpk_load64(data + AT_MUST);
    if (must != 0) {
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "container needs features this program does not know (bits %llx)",
                        (unsigned long long)must);
    }
    return MOEPACK_OK;
}

moepack_status mpk_header_check(const uint8_t *data, uint64_t size, uint64_t real_length, unsigned kind_mask,
                                uint32_t *kind, uint64_t *file_length, bool *truncated, moepack_error *error)
{
    if (size > real_length) size = real_length;
    moepack_status status = check_magic(data, size, error);
    if (status == MOEPACK_OK) status = check_version(data, error);
    if (status != MOEPACK_OK) return status;
    /* Rule 5. */
    if (mpk_load32(data + AT_RESERVED_1) != 0) return corrupt(error, AT_RESERVED_1, "reserved field is not zero");
    if (mpk_load64(data + AT_RESERVED_2) != 0) return corrupt(error, AT_RESERVED_2, "reserved field is not zero");
    *kind = mpk_load32(data + AT_KIND);
    if (*kind >= 32 || (kind_mask >> *kind & 1) == 0)
        return corrupt(error, AT_KIND, "another kind of file was expected");
    if (mpk_load32(data + AT_HEADER_LENGTH) != MPK_HEADER)
        return corrupt(error, AT_HEADER_LENGTH, "header length is not 128");
    /* Rule 6. */
    *file_length = mpk_load64(data + AT_FILE_LENGTH);
    if (*file_length > INT64_MAX || *file_length < MPK_HEADER)
        return corrupt(error, AT_FILE_LENGTH, "impossible file length");
    if (real_length > *file_length) {
        mpk_fail(error, MOEPACK_E_CORRUPT, "header: the file has %llu bytes, %llu are recorded",
                 (unsigned long long)real_length, (unsigned long long)*file_length);
        mpk_error_offset(error, *file_length);
        return MOEPACK_E_CORRUPT;
    }
    *truncated = real_length < *file_length;
    return MOEPACK_OK;
}

moepack_status mpk_header_truncated(uint64_t file_length, uint64_t real_length, moepack_error *error)
{
    mpk_fail(error, MOEPACK_E_INCOMPLETE, "header: the file has %llu bytes, %llu are recorded",
             (unsigned long long)real_length, (unsigned long long)file_length);
    mpk_error_offset(error, real_length);
    return MOEPACK_E_INCOMPLETE;
}

moepack_status mpk_header_check_second(const uint8_t *data, moepack_error *error)
{
    if (moepack_hash64(data + AT_SECOND, AT_SECOND_HASH - AT_SECOND) != mpk_load64(data + AT_SECOND_HASH))
        return corrupt(error, AT_SECOND_HASH, "hash of bytes 64 to 119 does not match");
    return MOEPACK_OK;
}

moepack_status mpk_decode_index_header(const uint8_t *data, uint64_t size, mpk_index_header *out, moepack_error *error)
{
    uint32_t kind;
    bool truncated;
    moepack_status status =
        mpk_header_check(data, size, size, 1u << MPK_KIND_INDEX, &kind, &out->file_length, &truncated, error);
    if (status != MOEPACK_OK) return status;
    if (size < MPK_HEADER) return mpk_header_truncated(out->file_length, size, error);
    status = mpk_header_check_second(data, error);
    if (status != MOEPACK_OK) return status;
    for (unsigned i = 0; i < 3; ++i) {
        if (mpk_load64(data + INDEX_RESERVED + 8 * i) != 0)
            return corrupt(error, INDEX_RESERVED + 8 * i, "reserved field is not zero");
    }
    if (mpk_load64(data + INDEX_SET_OFFSET) != MPK_HEADER)
        return corrupt(error, INDEX_SET_OFFSET, "the table set does not start behind the header");
    out->set_length = mpk_load64(data + INDEX_SET_LENGTH);
    if (out->set_length != out->file_length - MPK_HEADER)
        return corrupt(error, INDEX_SET_LENGTH, "the table set does not end with the file");
    out->root = mpk_load_hash128(data + INDEX_ROOT);
    return truncated ? mpk_header_truncated(out->file_length, size, error) : MOEPACK_OK;
}

moepack_status mpk_decode_shard_header(const void *bytes, size_t size, uint64_t real_length, mpk_shard_header *out,
                                       moepack_error *error)
{
    const uint8_t *data = (const uint8_t *)bytes;
    bool truncated;
    moepack_status status = mpk_header_check(data, size, real_length, 1u << MPK_KIND_TRUNK | 1u << MPK_KIND_EXPERTS,
                                             &out->kind, &out->file_length, &truncated, error);
    if (status != MOEPACK_OK) return status;
    if (size < MPK_HEADER || real_length < MPK_HEADER)
        return mpk_header_truncated(out->file_length, real_length, error);
    status = mpk_header_check_second(data, error);
    if (status != MOEPACK_OK) return status;
    out->plan_id = mpk_load_hash128(data + SHARD_PLAN_ID);
    out->number = mpk_load32(data + SHARD_NUMBER);
    out->tail_offset = mpk_load64(data + SHARD_TAIL_OFFSET);
    out->tail_length = mpk_load64(data + SHARD_TAIL_LENGTH);
    out->root = mpk_load_hash128(data + SHARD_ROOT);
    if (mpk_load32(data + SHARD_RESERVED) != 0) return corrupt(error, SHARD_RESERVED, "reserved field is not zero");
    if (out->tail_offset < MPK_PAGE_SIZE || out->tail_offset % MPK_PAGE_SIZE != 0 ||
        out->tail_offset > out->file_length)
        return corrupt(error, SHARD_TAIL_OFFSET, "impossible offset of the tail");
    if (out->tail_length != out->file_length - out->tail_offset)
        return corrupt(error, SHARD_TAIL_LENGTH, "the tail does not end with the file");
    return truncated ? mpk_header_truncated(out->file_length, real_length, error) : MOEPACK_OK;
}

void mpk_header_start(uint8_t *header, uint32_t kind, uint64_t file_length)
{
    memset(header, 0, MPK_HEADER);
    memcpy(header, magic, sizeof magic);
    mpk_store16(header + AT_MAJOR, MOEPACK_FORMAT_MAJOR);
    mpk_store16(header + AT_MINOR, MOEPACK_FORMAT_MINOR);
    mpk_store32(header + AT_KIND, kind);
    mpk_store32(header + AT_HEADER_LENGTH, MPK_HEADER);
    mpk_store64(header + AT_FILE_LENGTH, file_length);
    mpk_store64(header + AT_HASH, moepack_hash64(header, AT_HASH));
}

void mpk_header_finish(uint8_t *header)
{
    mpk_store64(header + AT_SECOND_HASH, moepack_hash64(header + AT_SECOND, AT_SECOND_HASH - AT_SECOND));
}

void mpk_index_header_write(uint8_t *file, uint64_t length)
{
    mpk_header_start(file, MPK_KIND_INDEX, length);
    mpk_store64(file + INDEX_SET_OFFSET, MPK_HEADER);
    mpk_store64(file + INDEX_SET_LENGTH, length - MPK_HEADER);
    mpk_store_hash128(file + INDEX_ROOT, moepack_hash128_of(file + MPK_HEADER, (size_t)(length - MPK_HEADER)));
    mpk_header_finish(file);
}

void mpk_encode_shard_header(const mpk_tables *tables, uint32_t number, uint8_t page[4096])
{
    const moepack_shard *shard = &tables->shards[number];
    memset(page, 0, MPK_PAGE_SIZE);
    mpk_header_start(page, (uint32_t)shard->kind, shard->file_length);
    mpk_store_hash128(page + SHARD_PLAN_ID, tables->info.plan_id);
    mpk_store32(page + SHARD_NUMBER, number);
    mpk_store64(page + SHARD_TAIL_OFFSET, shard->tail_offset);
    mpk_store64(page + SHARD_TAIL_LENGTH, shard->tail_length);
    mpk_store_hash128(page + SHARD_ROOT, shard->root);
    mpk_header_finish(page);
}
