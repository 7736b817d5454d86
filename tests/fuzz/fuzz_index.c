/* An index.mpk: as it is, and with its hashes and lengths made right, so that the tables behind them are reached.
 * Whatever is accepted must be consistent enough to walk: every getter of every entry, every tail. */
#include "build.h"
#include "repair.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink; /* what was read is used */

static void touch(moepack_str text)
{
    for (uint32_t i = 0; i < text.length; ++i) sink += (unsigned char)text.data[i];
}

static void walk_blocks(const moepack_index *x)
{
    char label[MOEPACK_LABEL_MAX], name[64];
    for (uint32_t b = 0; b < moepack_index_blocks(x); ++b) {
        moepack_block block;
        moepack_policy policy;
        moepack_index_block(x, b, &block);
        touch(block.prefix);
        moepack_index_label(x, b, label);
        if (moepack_index_find_block(x, label) > b) abort();
        if (moepack_index_policy(x, block.policy, &policy, NULL, NULL) != MOEPACK_OK) abort();
        sink += moepack_policy_describe(&policy, block.experts, name, sizeof name);
        for (uint32_t e = 0; e < block.experts; ++e) {
            moepack_record r;
            uint32_t first, count;
            moepack_index_record(x, block.first_record + e, &r);
            if (r.shard == MOEPACK_NO_SHARD) continue;
            moepack_index_schema(x, r.schema, &first, &count);
            for (uint32_t k = 0; k < count; ++k) {
                moepack_section s;
                moepack_index_section(x, r.first_section + k, &s);
                if (s.stored_length > 0 && (s.offset < r.offset || s.offset + s.stored_length > r.offset + r.length))
                    abort();
                sink += moepack_index_section_name(x, b, e, k, name, sizeof name);
            }
        }
    }
}

static void walk(const moepack_index *x)
{
    walk_blocks(x);
    for (uint32_t i = 0; i < moepack_index_tensors(x); ++i) {
        moepack_tensor t;
        moepack_index_tensor(x, i, &t);
        if (moepack_index_find_tensor(x, t.name.data, t.name.length) > i) abort();
        if (t.section >= moepack_index_sections(x)) abort();
    }
    for (uint32_t i = 0; i < moepack_index_source_files(x); ++i) {
        moepack_source_file f;
        moepack_index_source_file(x, i, &f);
        touch(f.name);
    }
    for (uint32_t i = 0; i < moepack_index_shards(x) && i < 4; ++i) {
        mpk_buf tail = {0};
        if (mpk_index_tail(x, i, &tail, NULL) != MOEPACK_OK) abort();
        free(tail.data);
    }
}

static void try_open(const uint8_t *data, size_t size)
{
    moepack_index *x = NULL;
    moepack_error error;
    moepack_status status = moepack_index_open(data, size, "fuzz", &x, &error);
    if ((status == MOEPACK_OK) != (x != NULL)) abort();
    if (status != MOEPACK_OK && (error.status != status || error.message[0] == '\0')) abort();
    if (x != NULL) walk(x);
    moepack_index_close(x);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_open(data, size);
    uint8_t *copy = malloc(size + (size == 0));
    if (copy == NULL) return 0;
    memcpy(copy, data, size);
    repair_index(copy, size);
    try_open(copy, size);
    repair_index_fully(copy, size);
    try_open(copy, size);
    free(copy);
    return 0;
}
