#include "pipeline_hash.h"

#include "build.h"
#include "bytes.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>

void mpk_hasher_init(mpk_hasher *hasher, mpk_lane *lane, bool same, uint64_t decoded_length, mpk_part_done done,
                     void *user)
{
    *hasher = (mpk_hasher){.lane = lane,
                           .same = same,
                           .part_count = mpk_part_count(decoded_length, MOEPACK_CODEC_RAW),
                           .done = done,
                           .user = user};
    XXH3_64bits_reset(lane->first);
    XXH3_64bits_reset(lane->second);
    XXH3_64bits_reset(lane->part);
}

void mpk_hasher_canonical(mpk_hasher *hasher, const void *bytes, size_t size)
{
    if (!hasher->same) XXH3_64bits_update(hasher->lane->first, bytes, size);
}

static void end_part(mpk_hasher *hasher)
{
    hasher->done(hasher->user, hasher->part, XXH3_64bits_digest(hasher->lane->part));
    XXH3_64bits_reset(hasher->lane->part);
    hasher->part++;
    hasher->filled = 0;
}

void mpk_hasher_stored(mpk_hasher *hasher, const void *bytes, size_t size)
{
    XXH3_64bits_update(hasher->lane->second, bytes, size);
    const uint8_t *at = bytes;
    while (hasher->part_count && size > 0) {
        uint64_t room = MPK_PART - hasher->filled;
        size_t step = size < room ? size : (size_t)room;
        XXH3_64bits_update(hasher->lane->part, at, step);
        hasher->filled += step;
        at += step;
        size -= step;
        if (hasher->filled == MPK_PART) end_part(hasher);
    }
}

void mpk_hasher_end(mpk_hasher *hasher, uint64_t *canonical, uint64_t *stored)
{
    if (hasher->part_count && hasher->filled) end_part(hasher);
    *stored = XXH3_64bits_digest(hasher->lane->second);
    *canonical = hasher->same ? *stored : XXH3_64bits_digest(hasher->lane->first);
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
    if (!mpk_buf_append(dims, &item->slices, sizeof item->slices) ||
        (item->rank && !mpk_buf_append(dims, item->dims, item->rank * sizeof *item->dims)))
        return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    return mpk_canonical_item(buf, item->name, item->name_length, item->dtype, (const uint64_t *)(void *)dims->data,
                              item->rank + 1, item->expert, item->hash, error);
}

moepack_status mpk_canonical_root(mpk_root_item *items, size_t count, moepack_hash128 *out, moepack_error *error)
{
    if (count) qsort(items, count, sizeof *items, by_name_file_expert);
    XXH3_state_t *state = XXH3_createState();
    if (!state) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    XXH3_128bits_reset(state);
    mpk_buf buf = {0}, dims = {0};
    moepack_status status = MOEPACK_OK;
    for (size_t i = 0; i < count && status == MOEPACK_OK; i++) {
        status = encode_item(&items[i], &buf, &dims, error);
        if (status == MOEPACK_OK) XXH3_128bits_update(state, buf.data, buf.size);
    }
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    *out = (moepack_hash128){.low = hash.low64, .high = hash.high64};
    free(buf.data);
    free(dims.data);
    XXH3_freeState(state);
    return status;
}

bool mpk_word_hash_begin(mpk_word_hash *hash)
{
    hash->state = XXH3_createState();
    if (hash->state) XXH3_128bits_reset(hash->state);
    return hash->state != NULL;
}

void mpk_word_hash_add(mpk_word_hash *hash, uint64_t word)
{
    uint8_t bytes[8];
    mpk_store64(bytes, word);
    XXH3_128bits_update(hash->state, bytes, sizeof bytes);
}

moepack_hash128 mpk_word_hash_end(mpk_word_hash *hash)
{
    XXH128_hash_t digest = XXH3_128bits_digest(hash->state);
    XXH3_freeState(hash->state);
    hash->state = NULL;
    return (moepack_hash128){.low = digest.low64, .high = digest.high64};
}
