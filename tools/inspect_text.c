/* The views of `inspect` for people. */
#include "inspect.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

/* Width of the column of names in the overviews. */
#define FIELD "  %-16s"

static void put_field(const char *name)
{
    printf(FIELD, name);
}

/* Several lines, each with the same indentation. */
static void put_indented(const char *text, const char *indent)
{
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        if (length > 0) {
            fputs(indent, stdout);
            cli_put_text(stdout, text, length);
            putchar('\n');
        }
        text += length + (text[length] == '\n');
    }
}

static void put_policy_words(const inspect_view *view, uint32_t number, uint32_t experts, const char *indent)
{
    moepack_policy policy;
    char words[2048];
    if (moepack_index_policy(view->index, number, &policy, NULL, NULL) != MOEPACK_OK) return;
    moepack_policy_describe(&policy, experts, words, sizeof words);
    put_indented(words, indent);
}

/* ------------------------------------------------------------------------------------------------- overview */

/* "hidden H 7168, latent L 3584, inner I 3072, experts E 896, selected k 16, shared 2 (width S 6144)" */
static void put_geometry(const moepack_policy *policy, uint32_t experts)
{
    printf("hidden H %llu, ", (ull)policy->hidden);
    if (policy->latent) printf("latent L %llu, ", (ull)policy->expert_input);
    printf("inner I %llu, experts E %u, selected k %llu, ", (ull)policy->intermediate, experts, (ull)policy->top_k);
    if (policy->shared_width == 0) {
        fputs("no shared experts", stdout);
    } else if (policy->intermediate > 0 && policy->shared_width % policy->intermediate == 0) {
        printf("shared %llu (width S %llu)", (ull)(policy->shared_width / policy->intermediate),
               (ull)policy->shared_width);
    } else {
        printf("shared width S %llu", (ull)policy->shared_width);
    }
    putchar('\n');
}

/* Blocks with the same policy and number of experts, described once. `done` marks the ones already printed. */
static void put_block_group(const inspect_view *view, uint32_t first, bool *done, uint32_t *members)
{
    moepack_block block, other;
    moepack_policy policy;
    uint32_t overrides = 0, blocks = moepack_index_blocks(view->index);
    size_t count = 0;
    moepack_index_block(view->index, first, &block);
    for (uint32_t b = first; b < blocks; b++) {
        moepack_index_block(view->index, b, &other);
        if (other.policy != block.policy || other.experts != block.experts) continue;
        done[b] = true;
        members[count++] = b;
    }
    char *labels = summary_labels(view->index, members, count);
    put_field("MoE layers");
    printf("%zu: %s\n", count, labels != NULL ? labels : "?");
    free(labels);
    if (moepack_index_policy(view->index, block.policy, &policy, &overrides, NULL) != MOEPACK_OK) return;
    put_field("  geometry");
    put_geometry(&policy, block.experts);
    put_field("  policy");
    puts(overrides > 0 ? "with fields overridden at conversion (see --policy)" : "as published");
    put_policy_words(view, block.policy, block.experts, "                    ");
}

static void put_blocks(const inspect_view *view)
{
    uint32_t blocks = moepack_index_blocks(view->index);
    bool *done = calloc((size_t)blocks + 1, sizeof *done);
    uint32_t *members = calloc((size_t)blocks + 1, sizeof *members);
    if (done != NULL && members != NULL) {
        for (uint32_t b = 0; b < blocks; b++) {
            if (!done[b]) put_block_group(view, b, done, members);
        }
    }
    if (blocks == 0) {
        put_field("MoE layers");
        puts("none");
    }
    free(done);
    free(members);
}

static void put_sizes(const inspect_view *view)
{
    const pack_summary *s = &view->summary;
    char size[CLI_SIZE_TEXT];
    put_field("size");
    puts(cli_size(s->index_bytes + s->trunk_file_bytes + s->expert_file_bytes, size));
    put_field("  experts");
    printf("%s in %u shard file%s, %llu experts", cli_size(s->expert_file_bytes, size), s->expert_files,
           s->expert_files == 1 ? "" : "s", (ull)s->experts);
    if (s->experts > 0) printf(" of %s on average", cli_size_short(s->expert_bytes / s->experts, size));
    if (s->absent > 0) printf("; %llu more were left out", (ull)s->absent);
    putchar('\n');
    put_field("  trunk");
    printf("%s in %u file%s, %u tensors\n", cli_size(s->trunk_file_bytes, size), s->trunk_files,
           s->trunk_files == 1 ? "" : "s", moepack_index_tensors(view->index));
    put_field("  index");
    puts(cli_size(s->index_bytes, size));
    put_field("  files here");
    if (s->missing_files == 0) {
        printf("all %u shard files, with their recorded lengths\n", s->shard_count);
    } else {
        printf("%u of %u shard files; %u missing or not of their recorded length\n", s->shard_count - s->missing_files,
               s->shard_count, s->missing_files);
    }
}

static void put_source(const inspect_view *view)
{
    uint32_t count = moepack_index_source_files(view->index), tensor_files = 0, hashed = 0;
    char size[CLI_SIZE_TEXT];
    for (uint32_t i = 0; i < count; i++) {
        moepack_source_file file;
        moepack_index_source_file(view->index, i, &file);
        if (file.kind == MOEPACK_SOURCE_SAFETENSORS) tensor_files++;
        if (file.hash.low != 0 || file.hash.high != 0) hashed++;
    }
    put_field("made from");
    printf("%u safetensors and %u other files, hashes of %u recorded\n", tensor_files, count - tensor_files, hashed);
    put_field("");
    printf("%llu tensors, %s%s\n", (ull)view->info.source_tensors, cli_size(view->info.source_bytes, size),
           view->info.quantized ? ": experts QUANTISED when it was made, not the source's bits, not exportable"
           : view->info.subset  ? ": a PART of the source, not exportable"
                                : "");
}

static void put_overview(const inspect_view *view)
{
    char hash[33];
    cli_put_text(stdout, view->path, strlen(view->path));
    putchar('\n');
    put_field("family");
    cli_put_str(stdout, view->info.family);
    fputs(" (model type ", stdout);
    cli_put_str(stdout, view->info.model_type);
    puts(")");
    put_blocks(view);
    put_sizes(view);
    put_field("layout, codec");
    printf("%s, %s\n", summary_layout_name(view->info.layout), summary_codec_name(view->info.codec));
    put_field("format");
    printf("%d.%d, writer revision %u, page size %u\n", MOEPACK_FORMAT_MAJOR, MOEPACK_FORMAT_MINOR,
           view->info.writer_revision, view->info.page_size);
    put_field("checksums");
    puts("index verified; run `moepack verify` for the rest");
    put_field("root hash");
    moepack_hash128_text(moepack_index_root_hash(view->index), hash);
    puts(hash);
    put_field("canonical root");
    moepack_hash128_text(view->info.canonical_root, hash);
    printf("%s (the same for every layout and sharding)\n", hash);
    put_source(view);
}

/* ------------------------------------------------------------------------------------------------- tables */

static void put_shards(const inspect_view *view)
{
    char size[CLI_SIZE_TEXT];
    printf("%-28s %16s  %10s  %10s  %-13s  %s\n", "file", "bytes", "size", "experts", "ids", "layers");
    for (uint32_t i = 0; i < view->summary.shard_count; i++) {
        const shard_summary *summary = &view->summary.shards[i];
        moepack_shard shard;
        char ids[32] = "-";
        moepack_index_shard(view->index, i, &shard);
        if (summary->records > 0) snprintf(ids, sizeof ids, "%u-%u", summary->first_expert, summary->last_expert);
        char *labels = summary_labels(view->index, summary->blocks, summary->block_count);
        cli_put_str(stdout, shard.name);
        printf("%*s %16llu  %10s  %10llu  %-13s  ", shard.name.length < 28 ? (int)(28 - shard.name.length) : 0, "",
               (ull)shard.file_length, cli_size_short(shard.file_length, size), (ull)summary->records, ids);
        if (shard.kind == MOEPACK_SHARD_TRUNK) {
            printf("trunk: %llu tensors", (ull)summary->tensors);
        } else {
            fputs(labels != NULL && labels[0] != '\0' ? labels : "-", stdout);
        }
        puts(summary->present ? "" : "  NOT HERE");
        free(labels);
    }
}

static void put_desc(const inspect_view *view, const moepack_desc *desc, const moepack_section *section)
{
    char shape[128], size[CLI_SIZE_TEXT];
    summary_shape_text(view->index, desc, shape, sizeof shape);
    printf("  %-7s %-16s %10s  %-9s %s", moepack_dtype_name(desc->dtype), shape,
           cli_size_short(section->stored_length, size), summary_layout_name(desc->layout),
           summary_codec_name(section->codec));
}

static void put_name(moepack_str name, int width)
{
    cli_put_str(stdout, name);
    printf("%*s", (int)name.length < width ? width - (int)name.length : 0, "");
}

/* Width of the column of names: that of the longest one shown, unless it is excessive. */
static int tensor_width(const inspect_view *view)
{
    uint32_t count = moepack_index_tensors(view->index), width = 0;
    for (uint32_t i = 0; i < count; i++) {
        moepack_tensor tensor;
        moepack_index_tensor(view->index, i, &tensor);
        if (view->block != INSPECT_NONE && tensor.block != view->block) continue;
        if (tensor.name.length > width) width = tensor.name.length;
    }
    return width < 100 ? (int)width : 100;
}

static void put_tensors(const inspect_view *view)
{
    uint32_t count = moepack_index_tensors(view->index);
    int width = tensor_width(view);
    for (uint32_t i = 0; i < count; i++) {
        moepack_tensor tensor;
        moepack_desc desc;
        moepack_section section;
        moepack_shard shard;
        moepack_index_tensor(view->index, i, &tensor);
        if (view->block != INSPECT_NONE && tensor.block != view->block) continue;
        moepack_index_desc(view->index, tensor.desc, &desc);
        moepack_index_section(view->index, tensor.section, &section);
        moepack_index_shard(view->index, tensor.shard, &shard);
        put_name(tensor.name, width);
        put_desc(view, &desc, &section);
        fputs("  ", stdout);
        cli_put_str(stdout, shard.name);
        printf(" at %llu\n", (ull)section.offset);
    }
}

static void put_schema(const inspect_view *view, const moepack_record *record)
{
    uint32_t first_desc, count;
    moepack_index_schema(view->index, record->schema, &first_desc, &count);
    for (uint32_t s = 0; s < count; s++) {
        moepack_desc desc;
        moepack_section section;
        moepack_index_desc(view->index, first_desc + s, &desc);
        moepack_index_section(view->index, record->first_section + s, &section);
        put_name(desc.name, 40);
        put_desc(view, &desc, &section);
        putchar('\n');
    }
}

/* ------------------------------------------------------------------------------------------------- one layer, one
 * expert, policies */

/* Where a layer's experts lie, one line per shard. */
static void put_layer_shards(const inspect_view *view, const moepack_block *block)
{
    uint32_t current = MOEPACK_NO_SHARD, first = 0;
    for (uint32_t e = 0; e <= block->experts; e++) {
        moepack_record record = {.shard = MOEPACK_NO_SHARD};
        moepack_shard shard;
        if (e < block->experts) moepack_index_record(view->index, block->first_record + e, &record);
        if (e < block->experts && e > 0 && record.shard == current) continue;
        if (e > 0 && current != MOEPACK_NO_SHARD) {
            moepack_index_shard(view->index, current, &shard);
            printf("  experts %u-%u in ", first, e - 1);
            cli_put_str(stdout, shard.name);
            putchar('\n');
        } else if (e > 0) {
            printf("  experts %u-%u are not in this container\n", first, e - 1);
        }
        current = record.shard;
        first = e;
    }
}

static void put_layer(const inspect_view *view)
{
    moepack_block block;
    moepack_record record;
    moepack_policy policy;
    char label[MOEPACK_LABEL_MAX];
    moepack_index_block(view->index, view->block, &block);
    moepack_index_label(view->index, view->block, label);
    printf("layer %s: ", label);
    cli_put_str(stdout, block.prefix);
    putchar('\n');
    if (moepack_index_policy(view->index, block.policy, &policy, NULL, NULL) == MOEPACK_OK) {
        fputs("  ", stdout);
        put_geometry(&policy, block.experts);
        put_policy_words(view, block.policy, block.experts, "  ");
    }
    puts("\nEach expert:");
    if (summary_first_record(view->index, &block, &record)) put_schema(view, &record);
    puts("\nWhere they are:");
    put_layer_shards(view, &block);
    puts("\nTensors beside the experts:");
    put_tensors(view);
}

static void put_expert(const inspect_view *view)
{
    moepack_record record;
    moepack_shard shard;
    char label[MOEPACK_LABEL_MAX], size[CLI_SIZE_TEXT];
    uint32_t first_desc, count;
    moepack_block block;
    inspect_expert_record(view, &record, &first_desc, &count);
    moepack_index_block(view->index, view->block, &block);
    moepack_index_label(view->index, view->block, label);
    moepack_index_shard(view->index, record.shard, &shard);
    printf("layer %s, expert %u: ", label, view->expert);
    cli_put_str(stdout, shard.name);
    printf(", offset %llu, length %llu (%s)\n\n", (ull)record.offset, (ull)record.length,
           cli_size_short(record.length, size));
    printf("%-40s  %-7s %-16s %10s  %-9s %-5s  %12s  %s\n", "section", "dtype", "shape", "stored", "layout", "codec",
           "offset", "XXH3 as stored");
    for (uint32_t s = 0; s < count; s++) {
        moepack_desc desc;
        moepack_section section;
        char hash[17], name[1024];
        moepack_index_desc(view->index, first_desc + s, &desc);
        moepack_index_section(view->index, record.first_section + s, &section);
        moepack_hash64_text(section.xxh3_stored, hash);
        moepack_index_section_name(view->index, view->block, view->expert, s, name, sizeof name);
        const char *own = name + (strlen(name) > block.prefix.length ? block.prefix.length : 0);
        put_name((moepack_str){own, (uint32_t)strlen(own)}, 40);
        put_desc(view, &desc, &section);
        printf("%*s  %12llu  %s\n", 2, "", (ull)section.offset, hash);
    }
}

static void put_policies(const inspect_view *view)
{
    uint32_t blocks = moepack_index_blocks(view->index), shown = UINT32_MAX;
    for (uint32_t b = 0; b < blocks; b++) {
        moepack_block block;
        moepack_policy policy;
        uint32_t overrides = 0;
        moepack_index_block(view->index, b, &block);
        /* Policies are numbered in the order of their first block. */
        if (shown != UINT32_MAX && block.policy <= shown) continue;
        shown = block.policy;
        char *labels = summary_all_labels(view->index, block.policy);
        printf("%sMoE layers %s\n", b > 0 ? "\n" : "", labels != NULL ? labels : "?");
        free(labels);
        put_policy_words(view, block.policy, block.experts, "  ");
        if (moepack_index_policy(view->index, block.policy, &policy, &overrides, NULL) != MOEPACK_OK) continue;
        if (overrides > 0) printf("  fields overridden at conversion: %u\n", overrides);
        putchar('\n');
        for (size_t i = 0; i < moepack_policy_key_count(); i++) {
            const char *key = NULL;
            char value[128];
            if (moepack_policy_get(&policy, i, &key, value, sizeof value) == MOEPACK_OK)
                printf("  %-22s%s\n", key, value);
        }
    }
}

/* ------------------------------------------------------------------------------------------------- statistics */

static void put_sum(const char *name, const inspect_sum *sum)
{
    char published[CLI_SIZE_TEXT], stored[CLI_SIZE_TEXT];
    printf("%-28s %10llu  %12s  %12s\n", name, (ull)sum->matrices, cli_size_short(sum->published_bytes, published),
           cli_size_short(sum->stored_bytes, stored));
}

static void put_stats(const inspect_stats *stats)
{
    uint64_t total = 0;
    printf("\n%-28s %10s  %12s  %12s\n", "bytes by role", "count", "published", "stored");
    for (unsigned role = 0; role < INSPECT_ROLES; role++) {
        for (unsigned plane = 0; plane < INSPECT_PLANES; plane++) {
            char name[64];
            inspect_sum_name(role, plane, name, sizeof name);
            if (stats->sums[role][plane].matrices > 0) put_sum(name, &stats->sums[role][plane]);
        }
    }
    if (stats->carried.matrices > 0) put_sum("carried", &stats->carried);
    if (!stats->scales) return;
    for (int i = 0; i < INSPECT_SCALES; i++) total += stats->exponents[i];
    printf("\n%-12s %12s  %7s\n", "scale", "groups", "share");
    for (int i = 0; i < INSPECT_SCALES; i++) {
        char name[16];
        if (stats->exponents[i] == 0) continue;
        snprintf(name, sizeof name, "2^%d", i - 127);
        if (i == INSPECT_SCALES - 1) snprintf(name, sizeof name, "NaN");
        printf("%-12s %12llu  %6.2f%%\n", name, (ull)stats->exponents[i],
               100 * (double)stats->exponents[i] / (double)total);
    }
}

void inspect_print_text(const inspect_view *view)
{
    if (view->args->shards) {
        put_shards(view);
    } else if (view->args->tensors) {
        put_tensors(view);
    } else if (view->args->policy) {
        put_policies(view);
    } else if (view->expert != INSPECT_NONE) {
        put_expert(view);
    } else if (view->block != INSPECT_NONE) {
        put_layer(view);
    } else {
        put_overview(view);
    }
    if (view->stats != NULL) put_stats(view->stats);
}
