/* The views of `inspect` as JSON. Every view but that of an expert starts from the same object. */
#include "inspect.h"

#include <string.h>

static json_t *shard_name_json(const inspect_view *view, uint32_t number)
{
    moepack_shard shard;
    moepack_index_shard(view->index, number, &shard);
    return cli_json_str(shard.name);
}

static json_t *block_label_json(const inspect_view *view, uint32_t block)
{
    char label[MOEPACK_LABEL_MAX];
    if (block == MOEPACK_NO_BLOCK) return json_null();
    moepack_index_label(view->index, block, label);
    return cli_json_label(label);
}

/* ------------------------------------------------------------------------------------------------- layers */

static json_t *schema_json(const inspect_view *view, const moepack_record *record)
{
    json_t *sections = json_array();
    uint32_t first_desc, count;
    moepack_index_schema(view->index, record->schema, &first_desc, &count);
    for (uint32_t s = 0; s < count; s++) {
        moepack_desc desc;
        moepack_section section;
        moepack_index_desc(view->index, first_desc + s, &desc);
        moepack_index_section(view->index, record->first_section + s, &section);
        json_array_append_new(sections,
                              json_pack("{s:o, s:s, s:o, s:s, s:s, s:o, s:o}", "name", cli_json_str(desc.name), "dtype",
                                        moepack_dtype_name(desc.dtype), "shape", summary_shape_json(view->index, &desc),
                                        "codec", summary_codec_name(section.codec), "layout",
                                        summary_layout_name(desc.layout), "bytes", cli_json_u64(desc.canonical_length),
                                        "stored_bytes", cli_json_u64(section.stored_length)));
    }
    return sections;
}

static json_t *layer_json(const inspect_view *view, uint32_t number)
{
    moepack_block block;
    moepack_record record;
    moepack_policy policy;
    uint32_t overrides = 0;
    json_t *policy_object = NULL;
    moepack_index_block(view->index, number, &block);
    if (moepack_index_policy(view->index, block.policy, &policy, &overrides, NULL) == MOEPACK_OK)
        policy_object = summary_policy_json(&policy);
    bool stored = summary_first_record(view->index, &block, &record);
    return json_pack("{s:o, s:o, s:o, s:o, s:I, s:o}", "layer", block_label_json(view, number), "experts",
                     cli_json_u64(block.experts), "prefix", cli_json_str(block.prefix), "policy",
                     policy_object != NULL ? policy_object : json_null(), "policy_overrides", (json_int_t)overrides,
                     "sections", stored ? schema_json(view, &record) : json_array());
}

static json_t *layers_json(const inspect_view *view)
{
    json_t *layers = json_array();
    uint32_t blocks = moepack_index_blocks(view->index);
    for (uint32_t b = 0; b < blocks; b++) {
        if (view->block == INSPECT_NONE || view->block == b) json_array_append_new(layers, layer_json(view, b));
    }
    return layers;
}

/* ------------------------------------------------------------------------------------------------- shards, tensors,
 * records */

static json_t *shards_json(const inspect_view *view)
{
    json_t *shards = json_array();
    for (uint32_t i = 0; i < view->summary.shard_count; i++) {
        moepack_shard shard;
        const shard_summary *summary = &view->summary.shards[i];
        moepack_index_shard(view->index, i, &shard);
        json_t *layers = json_array();
        for (size_t b = 0; b < summary->block_count; b++)
            json_array_append_new(layers, block_label_json(view, summary->blocks[b]));
        json_t *range = summary->records > 0
                            ? json_pack("[I, I]", (json_int_t)summary->first_expert, (json_int_t)summary->last_expert)
                            : json_null();
        json_array_append_new(
            shards, json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "file", cli_json_str(shard.name), "kind",
                              shard.kind == MOEPACK_SHARD_TRUNK ? "trunk" : "experts", "bytes",
                              cli_json_u64(shard.file_length), "experts", cli_json_u64(summary->records),
                              "expert_range", range, "layers", layers, "tensors", cli_json_u64(summary->tensors),
                              "root", cli_json_hash128(shard.root), "present", summary->present));
    }
    return shards;
}

static json_t *tensor_json(const inspect_view *view, uint32_t number)
{
    moepack_tensor tensor;
    moepack_desc desc;
    moepack_section section;
    moepack_source_file source;
    moepack_index_tensor(view->index, number, &tensor);
    moepack_index_desc(view->index, tensor.desc, &desc);
    moepack_index_section(view->index, tensor.section, &section);
    moepack_index_source_file(view->index, tensor.source_file, &source);
    return json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:s, s:o, s:o}", "name", cli_json_str(tensor.name),
                     "dtype", moepack_dtype_name(desc.dtype), "shape", summary_shape_json(view->index, &desc), "bytes",
                     cli_json_u64(desc.canonical_length), "layer", block_label_json(view, tensor.block), "file",
                     shard_name_json(view, tensor.shard), "offset", cli_json_u64(section.offset), "stored_bytes",
                     cli_json_u64(section.stored_length), "layout", summary_layout_name(desc.layout), "codec",
                     summary_codec_name(section.codec), "xxh3", cli_json_hash64(section.xxh3_canonical), "source",
                     cli_json_str(source.name));
}

static json_t *tensors_json(const inspect_view *view)
{
    json_t *tensors = json_array();
    uint32_t count = moepack_index_tensors(view->index);
    for (uint32_t i = 0; i < count; i++) {
        moepack_tensor tensor;
        moepack_index_tensor(view->index, i, &tensor);
        if (view->block == INSPECT_NONE || tensor.block == view->block)
            json_array_append_new(tensors, tensor_json(view, i));
    }
    return tensors;
}

static json_t *records_json(const inspect_view *view)
{
    json_t *records = json_array();
    moepack_block block;
    moepack_index_block(view->index, view->block, &block);
    for (uint32_t e = 0; e < block.experts; e++) {
        moepack_record record;
        moepack_index_record(view->index, block.first_record + e, &record);
        if (record.shard == MOEPACK_NO_SHARD) continue;
        json_array_append_new(records, json_pack("{s:I, s:o, s:o, s:o}", "expert", (json_int_t)e, "shard",
                                                 shard_name_json(view, record.shard), "offset",
                                                 cli_json_u64(record.offset), "length", cli_json_u64(record.length)));
    }
    return records;
}

static json_t *sources_json(const inspect_view *view)
{
    static const char *const kinds[] = {"safetensors", "index", "config", "side"};
    json_t *sources = json_array();
    uint32_t count = moepack_index_source_files(view->index);
    for (uint32_t i = 0; i < count; i++) {
        moepack_source_file file;
        moepack_index_source_file(view->index, i, &file);
        bool hashed = file.hash.low != 0 || file.hash.high != 0;
        json_array_append_new(sources, json_pack("{s:o, s:s, s:o, s:o}", "file", cli_json_str(file.name), "kind",
                                                 kinds[(unsigned)file.kind & 3u], "bytes", cli_json_u64(file.length),
                                                 "hash", hashed ? cli_json_hash128(file.hash) : json_null()));
    }
    return sources;
}

/* ------------------------------------------------------------------------------------------------- statistics */

static json_t *sum_json(const char *name, const inspect_sum *sum)
{
    return json_pack("{s:s, s:o, s:o, s:o}", "name", name, "count", cli_json_u64(sum->matrices), "bytes",
                     cli_json_u64(sum->published_bytes), "stored_bytes", cli_json_u64(sum->stored_bytes));
}

static json_t *stats_json(const inspect_stats *stats)
{
    json_t *sums = json_array(), *object = json_pack("{s:o}", "bytes_by_role", sums);
    for (unsigned role = 0; role < INSPECT_ROLES; role++) {
        for (unsigned plane = 0; plane < INSPECT_PLANES; plane++) {
            char name[64];
            inspect_sum_name(role, plane, name, sizeof name);
            if (stats->sums[role][plane].matrices > 0)
                json_array_append_new(sums, sum_json(name, &stats->sums[role][plane]));
        }
    }
    if (stats->carried.matrices > 0) json_array_append_new(sums, sum_json("carried", &stats->carried));
    if (stats->scales) {
        json_t *exponents = json_object();
        for (int i = 0; i < INSPECT_SCALES - 1; i++) {
            char key[16];
            snprintf(key, sizeof key, "%d", i - 127);
            if (stats->exponents[i] > 0) json_object_set_new(exponents, key, cli_json_u64(stats->exponents[i]));
        }
        json_object_set_new(object, "scale_exponents", exponents);
        json_object_set_new(object, "nan_scales", cli_json_u64(stats->exponents[INSPECT_SCALES - 1]));
    }
    return object;
}

/* ------------------------------------------------------------------------------------------------- the views */

static json_t *expert_json(const inspect_view *view)
{
    moepack_record record;
    uint32_t first_desc, count;
    json_t *sections = json_array();
    inspect_expert_record(view, &record, &first_desc, &count);
    for (uint32_t s = 0; s < count; s++) {
        moepack_desc desc;
        moepack_section section;
        char name[1024];
        moepack_index_desc(view->index, first_desc + s, &desc);
        moepack_index_section(view->index, record.first_section + s, &section);
        moepack_index_section_name(view->index, view->block, view->expert, s, name, sizeof name);
        json_array_append_new(
            sections,
            json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:s, s:s, s:o, s:o}", "name", cli_json_text(name, strlen(name)),
                      "dtype", moepack_dtype_name(desc.dtype), "shape", summary_shape_json(view->index, &desc),
                      "offset", cli_json_u64(section.offset), "stored_bytes", cli_json_u64(section.stored_length),
                      "bytes", cli_json_u64(desc.canonical_length), "codec", summary_codec_name(section.codec),
                      "layout", summary_layout_name(desc.layout), "xxh3", cli_json_hash64(section.xxh3_stored),
                      "xxh3_canonical", cli_json_hash64(section.xxh3_canonical)));
    }
    return json_pack("{s:o, s:I, s:o, s:o, s:o, s:o}", "layer", block_label_json(view, view->block), "expert",
                     (json_int_t)view->expert, "shard", shard_name_json(view, record.shard), "offset",
                     cli_json_u64(record.offset), "length", cli_json_u64(record.length), "sections", sections);
}

static json_t *base_json(const inspect_view *view)
{
    char version[32];
    const moepack_info *info = &view->info;
    const pack_summary *summary = &view->summary;
    snprintf(version, sizeof version, "%d.%d", MOEPACK_FORMAT_MAJOR, MOEPACK_FORMAT_MINOR);
    json_t *object =
        json_pack("{s:s, s:o, s:o, s:o, s:o, s:s, s:s, s:b, s:b}", "format_version", version, "family",
                  cli_json_str(info->family), "model_type", cli_json_str(info->model_type), "root_hash",
                  cli_json_hash128(moepack_index_root_hash(view->index)), "canonical_root",
                  cli_json_hash128(info->canonical_root), "layout", summary_layout_name(info->layout), "codec",
                  summary_codec_name(info->codec), "subset", info->subset, "quantized", info->quantized);
    json_t *sizes = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "source_bytes", cli_json_u64(info->source_bytes), "source_tensors",
        cli_json_u64(info->source_tensors), "total_bytes",
        cli_json_u64(summary->index_bytes + summary->trunk_file_bytes + summary->expert_file_bytes), "index_bytes",
        cli_json_u64(summary->index_bytes), "experts", cli_json_u64(summary->experts), "writer_revision",
        cli_json_u64(info->writer_revision), "trunk_tensors", (json_int_t)moepack_index_tensors(view->index));
    if (object == NULL || sizes == NULL) {
        json_decref(object);
        json_decref(sizes);
        return NULL;
    }
    json_object_update(object, sizes);
    json_decref(sizes);
    json_object_set_new(object, "layers", layers_json(view));
    json_object_set_new(object, "shards", shards_json(view));
    json_object_set_new(object, "source_files", sources_json(view));
    return object;
}

json_t *inspect_json(const inspect_view *view)
{
    json_t *object = view->expert != INSPECT_NONE ? expert_json(view) : base_json(view);
    if (object == NULL) return NULL;
    if (view->expert == INSPECT_NONE && view->block != INSPECT_NONE)
        json_object_set_new(object, "records", records_json(view));
    if (view->args->tensors || (view->block != INSPECT_NONE && view->expert == INSPECT_NONE))
        json_object_set_new(object, "tensors", tensors_json(view));
    if (view->stats != NULL) json_object_set_new(object, "stats", stats_json(view->stats));
    return object;
}
