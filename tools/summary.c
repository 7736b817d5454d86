/* What a container holds per shard, added up once for the views of inspect. */
#include "summary.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ------------------------------------------------------------------------------------------------- shards */

static bool shard_add_block(shard_summary *shard, uint32_t block)
{
    /* Blocks come in ascending order. */
    if (shard->block_count > 0 && shard->blocks[shard->block_count - 1] == block) return true;
    if (shard->block_count == shard->block_capacity) {
        size_t capacity = shard->block_capacity == 0 ? 8 : 2 * shard->block_capacity;
        uint32_t *blocks = realloc(shard->blocks, capacity * sizeof *blocks);
        if (blocks == NULL) return false;
        shard->blocks = blocks;
        shard->block_capacity = capacity;
    }
    shard->blocks[shard->block_count++] = block;
    return true;
}

static bool add_records(const moepack_index *index, pack_summary *out)
{
    uint32_t blocks = moepack_index_blocks(index);
    for (uint32_t b = 0; b < blocks; b++) {
        moepack_block block;
        moepack_index_block(index, b, &block);
        for (uint32_t e = 0; e < block.experts; e++) {
            moepack_record record;
            moepack_index_record(index, block.first_record + e, &record);
            if (record.shard == MOEPACK_NO_SHARD) {
                out->absent++;
                continue;
            }
            shard_summary *shard = &out->shards[record.shard];
            if (shard->records == 0 || e < shard->first_expert) shard->first_expert = e;
            if (shard->records == 0 || e > shard->last_expert) shard->last_expert = e;
            shard->records++;
            out->experts++;
            out->expert_bytes += record.length;
            if (!shard_add_block(shard, b)) return false;
        }
    }
    return true;
}

/* Looks whether the shard's file is there with its recorded length. */
static bool file_present(const char *path, const moepack_shard *shard)
{
    char name[4096];
    struct stat st;
    int length = snprintf(name, sizeof name, "%s/%.*s", path, (int)shard->name.length, shard->name.data);
    if (length < 0 || (size_t)length >= sizeof name) return false;
    return stat(name, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == shard->file_length;
}

static void add_files(const moepack_index *index, const char *path, pack_summary *out)
{
    out->index_bytes = moepack_index_file_length(index);
    for (uint32_t i = 0; i < out->shard_count; i++) {
        moepack_shard shard;
        moepack_index_shard(index, i, &shard);
        bool trunk = shard.kind == MOEPACK_SHARD_TRUNK;
        *(trunk ? &out->trunk_files : &out->expert_files) += 1;
        *(trunk ? &out->trunk_file_bytes : &out->expert_file_bytes) += shard.file_length;
        out->shards[i].present = file_present(path, &shard);
        if (!out->shards[i].present) out->missing_files++;
    }
}

bool summary_create(const moepack_index *index, const char *path, pack_summary *out)
{
    *out = (pack_summary){.shard_count = moepack_index_shards(index)};
    out->shards = calloc((size_t)out->shard_count + 1, sizeof *out->shards);
    if (out->shards == NULL) return false;
    if (!add_records(index, out)) {
        summary_free(out);
        return false;
    }
    uint32_t tensors = moepack_index_tensors(index);
    for (uint32_t i = 0; i < tensors; i++) {
        moepack_tensor tensor;
        moepack_index_tensor(index, i, &tensor);
        if (tensor.shard < out->shard_count) out->shards[tensor.shard].tensors++;
    }
    add_files(index, path, out);
    return true;
}

void summary_free(pack_summary *summary)
{
    if (summary->shards != NULL) {
        for (uint32_t i = 0; i < summary->shard_count; i++) free(summary->shards[i].blocks);
    }
    free(summary->shards);
    summary->shards = NULL;
}

/* ------------------------------------------------------------------------------------------------- labels */

/* Writes one run of consecutive numbers of a stack: "3-5", "encoder.0-2". */
static void put_run(FILE *stream, const moepack_index *index, uint32_t first, uint32_t last_number, bool comma)
{
    char label[MOEPACK_LABEL_MAX];
    moepack_block block;
    moepack_index_block(index, first, &block);
    moepack_index_label(index, first, label);
    fprintf(stream, "%s%s", comma ? "," : "", label);
    if (last_number > block.number) fprintf(stream, "-%u", last_number);
}

char *summary_labels(const moepack_index *index, const uint32_t *blocks, size_t count)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (stream == NULL) return NULL;
    for (size_t i = 0; i < count;) {
        moepack_block first, next;
        moepack_index_block(index, blocks[i], &first);
        size_t end = i + 1;
        uint32_t last = first.number;
        for (; end < count; end++) {
            moepack_index_block(index, blocks[end], &next);
            if (next.stack != first.stack || next.number != last + 1) break;
            last = next.number;
        }
        put_run(stream, index, blocks[i], last, i > 0);
        i = end;
    }
    if (fclose(stream) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

char *summary_all_labels(const moepack_index *index, uint32_t policy)
{
    uint32_t blocks = moepack_index_blocks(index);
    uint32_t *chosen = calloc((size_t)blocks + 1, sizeof *chosen);
    size_t count = 0;
    if (chosen == NULL) return NULL;
    for (uint32_t i = 0; i < blocks; i++) {
        moepack_block block;
        moepack_index_block(index, i, &block);
        if (policy == UINT32_MAX || block.policy == policy) chosen[count++] = i;
    }
    char *text = summary_labels(index, chosen, count);
    free(chosen);
    return text;
}

uint32_t summary_find_block(const cli_common *common, const moepack_pack *pack, const char *label)
{
    const moepack_index *index = moepack_pack_index(pack);
    uint32_t block = moepack_index_find_block(index, label);
    if (block != MOEPACK_NO_BLOCK) return block;
    char *labels = summary_all_labels(index, UINT32_MAX);
    cli_failf(common, MOEPACK_E_USAGE, "--layer %.100s: %.200s has no such MoE layer; it has %.150s", label,
              moepack_pack_path(pack), labels != NULL && labels[0] != '\0' ? labels : "none");
    free(labels);
    return MOEPACK_NO_BLOCK;
}

/* ------------------------------------------------------------------------------------------------- descriptions */

const char *summary_layout_name(moepack_layout layout)
{
    return layout == MOEPACK_LAYOUT_PANEL ? "panel" : "canonical";
}

const char *summary_codec_name(uint32_t codec)
{
    return codec == MOEPACK_CODEC_RAW ? "raw" : "unknown";
}

void summary_shape_text(const moepack_index *index, const moepack_desc *desc, char *buf, size_t size)
{
    size_t used = (size_t)snprintf(buf, size, "[");
    for (uint32_t i = 0; i < desc->rank && used < size; i++) {
        used += (size_t)snprintf(buf + used, size - used, "%s%llu", i > 0 ? ", " : "",
                                 (unsigned long long)moepack_index_dim(index, desc->first_dim + i));
    }
    if (used < size) snprintf(buf + used, size - used, "]");
}

json_t *summary_shape_json(const moepack_index *index, const moepack_desc *desc)
{
    json_t *shape = json_array();
    for (uint32_t i = 0; i < desc->rank; i++)
        json_array_append_new(shape, cli_json_u64(moepack_index_dim(index, desc->first_dim + i)));
    return shape;
}

/* "5", "1e-05" and "-2" as numbers, anything else as a string. */
static json_t *value_json(const char *text)
{
    uint64_t number;
    char *end = NULL;
    if (cli_read_number(text, &number) && number <= INT64_MAX) return cli_json_u64(number);
    errno = 0;
    double value = strtod(text, &end);
    /* json_real refuses infinities and NaN, which stay words. */
    if (end != text && *end == '\0' && errno == 0) {
        json_t *real = json_real(value);
        if (real != NULL) return real;
    }
    return cli_json_text(text, strlen(text));
}

json_t *summary_policy_json(const moepack_policy *policy)
{
    json_t *object = json_object();
    for (size_t i = 0; i < moepack_policy_key_count(); i++) {
        const char *key = NULL;
        char value[128];
        if (moepack_policy_get(policy, i, &key, value, sizeof value) == MOEPACK_OK)
            json_object_set_new(object, key, value_json(value));
    }
    return object;
}

bool summary_first_record(const moepack_index *index, const moepack_block *block, moepack_record *record)
{
    for (uint32_t e = 0; e < block->experts; e++) {
        moepack_index_record(index, block->first_record + e, record);
        if (record->shard != MOEPACK_NO_SHARD) return true;
    }
    return false;
}
