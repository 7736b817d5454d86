/* The first bytes of a shard, and a tail: as they are, and with the header's hashes made right. The first 8 bytes of
 * the input are the length that the file is said to have, so that every relation of lengths is tried. */
#include "build.h"
#include "repair.h"
#include "tableset.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_header(const uint8_t *data, size_t size, uint64_t length)
{
    mpk_shard_header h = {0};
    moepack_error error;
    moepack_status status = mpk_decode_shard_header(data, size, length, &h, &error);
    if (status == MOEPACK_OK) {
        if (h.file_length != length || h.tail_offset < 4096 || h.tail_offset % 4096 != 0) abort();
        if (h.tail_length != length - h.tail_offset) abort();
    } else if (error.status != status || error.message[0] == '\0') {
        abort();
    }
}

static void try_tail(const uint8_t *data, size_t size)
{
    static const uint32_t experts[] = {MPK_T_SECTIONS, MPK_T_PARTS, MPK_T_TAIL_RECORDS};
    mpk_tables_view view;
    if (mpk_tableset_decode(data, size, 4096, experts, 3, &view, NULL) != MOEPACK_OK) return;
    for (size_t i = 0; i < 3; ++i) {
        const mpk_table *t = &view.t[experts[i]];
        if (t->count > 0 && t->data + t->count * mpk_table_entry(experts[i]) > data + size) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_tail(data, size);
    if (size < 8) return 0;
    uint64_t length = mpk_load64(data);
    data += 8;
    size -= 8;
    try_header(data, size, length);
    try_header(data, size, size);
    uint8_t *copy = malloc(size + 1);
    if (copy == NULL) return 0;
    memcpy(copy, data, size);
    repair_header(copy, size);
    try_header(copy, size, length);
    if (size >= 48) try_header(copy, size, mpk_load64(copy + 40)); /* the recorded length itself */
    free(copy);
    return 0;
}
