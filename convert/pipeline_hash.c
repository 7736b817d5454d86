/* Section, part, file and root hashes, computed while bytes pass by. */
#include "pipeline_hash.h"

#include "build.h"
#include "bytes.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>

void mpk_section_hash_init(mpk_section_hash *hasher, mpk_lane *lane, bool same, uint64_t decoded_length,
                           mpk_part_done done, void *user)
{
    *hasher = (mpk_section_hash){.lane = lane,
                                 .same = same,
                                 .part_count = mpk_part_count(decoded_length, MOEPACK_CODEC_RAW),
                                 .done = done,
                                 .user = user};
    mpk_hasher_reset(lane->first);
    mpk_hasher_reset(lane->second);
    mpk_hasher_reset(lane->part);
}

void mpk_section_hash_canonical(mpk_section_hash *hasher, const void *bytes, size_t size)
{
    if (!hasher->same) mpk_hasher_add(hasher->lane->first, bytes, size);
}

static void end_part(mpk_section_hash *hasher)
{
    hasher->done(hasher->user, hasher->part, mpk_hasher_hash64(hasher->lane->part));
    mpk_hasher_reset(hasher->lane->part);
    hasher->part++;
    hasher->filled = 0;
}

void mpk_section_hash_stored(mpk_section_hash *hasher, const void *bytes, size_t size)
{
    mpk_hasher_add(hasher->lane->second, bytes, size);
    const uint8_t *at = bytes;
    while (hasher->part_count && size > 0) {
        uint64_t room = MPK_PART - hasher->filled;
        size_t step = size < room ? size : (size_t)room;
        mpk_hasher_add(hasher->lane->part, at, step);
        hasher->filled += step;
        at += step;
        size -= step;
        if (hasher->filled == MPK_PART) end_part(hasher);
    }
}

void mpk_section_hash_end(mpk_section_hash *hasher, uint64_t *canonical, uint64_t *stored)
{
    if (hasher->part_count && hasher->filled) end_part(hasher);
    *stored = mpk_hasher_hash64(hasher->lane->second);
    *canonical = hasher->same ? *stored : mpk_hasher_hash64(hasher->lane->first);
}

static int by_name_file_expert(const void *left, const void *right)
{
    const mpk_root_item *a = left, *b = right;
    size_t common = a->name_length < b->name_length ? a->name_length : b->name_length;
    int order = memcmp(a->name, b->name, common);
    if (order != 0) return order;
    if (a->name_length != b->name_length) return a->name_length < b->name_length ? -1 : 1;
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    if (a->expert != b->expert) return a->expert < b->expert ? -1 : 1;
    return 0;
}

/* Appends one encoded item to an emptied buffer. */
static moepack_status encode_item(const mpk_root_item *item, mpk_buf *buf, mpk_buf *dims, moepack_error *error)
{
    buf->size = 0;
    if (!item->slices)
        return mpk_canonical_item(buf, item->name, item->name_length, item->dtype, item->dims, item->rank, item->expert,
                                  item->hash, error);
    dims->size = 0;
    uint64_t first = item->slices;
    if (item->flat && !mpk_mul64(first, item->dims[0], &first))
        return mpk_fail(error, MOEPACK_E_CORRUPT, "%.*s: its dimensions overflow", (int)item->name_length, item->name);
    const uint32_t skip = item->flat ? 1 : 0;
    if (!mpk_buf_append(dims, &first, sizeof first) ||
        (item->rank > skip && !mpk_buf_append(dims, item->dims + skip, (item->rank - skip) * sizeof *item->dims)))
        return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    return mpk_canonical_item(buf, item->name, item->name_length, item->dtype, (const uint64_t *)(void *)dims->data,
                              item->rank - skip + 1, item->expert, item->hash, error);
}

moepack_status mpk_canonical_root(mpk_root_item *items, size_t count, moepack_hash128 *out, moepack_error *error)
{
    if (count) qsort(items, count, sizeof *items, by_name_file_expert);
    mpk_hasher *hasher = mpk_hasher_new(128);
    if (!hasher) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    mpk_buf buf = {0}, dims = {0};
    moepack_status status = MOEPACK_OK;
    for (size_t i = 0; i < count && status == MOEPACK_OK; i++) {
        status = encode_item(&items[i], &buf, &dims, error);
        if (status == MOEPACK_OK) mpk_hasher_add(hasher, buf.data, buf.size);
    }
    *out = mpk_hasher_hash128(hasher);
    free(buf.data);
    free(dims.data);
    mpk_hasher_free(hasher);
    return status;
}

bool mpk_word_hash_begin(mpk_word_hash *hash)
{
    hash->state = mpk_hasher_new(128);
    return hash->state != NULL;
}

void mpk_word_hash_add(mpk_word_hash *hash, uint64_t word)
{
    uint8_t bytes[8];
    mpk_store64(bytes, word);
    mpk_hasher_add(hash->state, bytes, sizeof bytes);
}

moepack_hash128 mpk_word_hash_end(mpk_word_hash *hash)
{
    moepack_hash128 digest = mpk_hasher_hash128(hash->state);
    mpk_hasher_free(hash->state);
    hash->state = NULL;
    return digest;
}
