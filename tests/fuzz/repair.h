/* Makes the hashes of a damaged index or shard header right again, so that what lies behind them is reached. Header
 * only, shared by fuzz targets and attack tests. Knows only spec/container.md section 3. */
#ifndef MOEPACK_TESTS_REPAIR_H
#define MOEPACK_TESTS_REPAIR_H

#include "bytes.h"
#include "moepack/format.h"

/* Both header hashes. */
static inline void repair_header(uint8_t *data, size_t size)
{
    if (size >= 64) mpk_store64(data + 56, moepack_hash64(data, 56));
    if (size >= 128) mpk_store64(data + 120, moepack_hash64(data + 64, 56));
}

/* Root hash and header hashes; the recorded lengths stay as they are. */
static inline void repair_index(uint8_t *data, size_t size)
{
    if (size >= 128) {
        moepack_hash128 root = moepack_hash128_of(data + 128, size - 128);
        mpk_store64(data + 80, root.low);
        mpk_store64(data + 88, root.high);
    }
    repair_header(data, size);
}

/* Also a valid start and lengths that match the size: nothing but the tables is left to be wrong. */
static inline void repair_index_fully(uint8_t *data, size_t size)
{
    static const uint8_t start[16] = {
        0x89, 'M', 'P', 'K', '\r', '\n', 0x1a, '\n', MOEPACK_FORMAT_MAJOR, 0, MOEPACK_FORMAT_MINOR, 0, 1};
    if (size < 128) return;
    memset(data, 0, 128);
    memcpy(data, start, sizeof start);
    mpk_store32(data + 32, 128);
    mpk_store64(data + 40, size);
    mpk_store64(data + 64, 128);
    mpk_store64(data + 72, size - 128);
    repair_index(data, size);
}

#endif
