/* The planner: from an opened source to the tables of the container. Pure; the parts are in plan_desc.c (descriptions),
 * plan_trunk.c (trunk and files) and plan_shards.c (expert shards). */
#include "plan.h"

#include "layout.h"
#include "pipeline_hash.h"
#include "pipeline_jobs.h"
#include "plan_internal.h"

#include <stdio.h>

moepack_status mpk_plan_oom(mpk_planner *planner)
{
    return mpk_fail(planner->error, MOEPACK_E_REFUSED, "out of memory while planning");
}

moepack_status mpk_plan_too_large(mpk_planner *planner)
{
    return mpk_fail(planner->error, MOEPACK_E_UNSUPPORTED, "the container would pass a limit of the format");
}

moepack_status mpk_plan_section(mpk_planner *planner, uint64_t stored_length, uint64_t *section)
{
    mpk_tables *t = planner->tables;
    if (!mpk_grow(&t->sections, t->section_count, sizeof *t->sections)) return mpk_plan_oom(planner);
    *section = t->section_count;
    t->sections[t->section_count++] =
        (moepack_section){.stored_length = stored_length, .first_part = MOEPACK_NO_PARTS, .codec = MOEPACK_CODEC_RAW};
    return MOEPACK_OK;
}

/* ---- blocks and records ---- */

static moepack_status intern_policy(mpk_planner *planner, uint32_t source_policy, uint32_t *policy)
{
    mpk_tables *t = planner->tables;
    *policy = planner->policy_entry[source_policy];
    if (*policy != UINT32_MAX) return MOEPACK_OK;
    const mpk_source_policy *from = &planner->source->policies[source_policy];
    for (size_t i = 0; i < t->policy_count && *policy == UINT32_MAX; i++)
        if (t->policies[i].overridden == from->overridden &&
            memcmp(&t->policies[i].policy, &from->policy, sizeof from->policy) == 0)
            *policy = (uint32_t)i;
    if (*policy == UINT32_MAX) {
        if (!mpk_grow(&t->policies, t->policy_count, sizeof *t->policies)) return mpk_plan_oom(planner);
        t->policies[t->policy_count] = (mpk_policy_entry){.policy = from->policy, .overridden = from->overridden};
        *policy = (uint32_t)t->policy_count++;
    }
    planner->policy_entry[source_policy] = *policy;
    return MOEPACK_OK;
}

/* One expert's record: present when the source has all its sections. */
static moepack_status make_record(mpk_planner *planner, const mpk_source_block *block, uint32_t expert, uint32_t schema)
{
    mpk_tables *t = planner->tables;
    uint32_t count = planner->source->schemas[mpk_source_expert_schema(block, expert)].count;
    const uint32_t *tensor = mpk_source_expert_tensors(planner->source, block, expert);
    if (!mpk_grow(&t->records, t->record_count, sizeof *t->records)) return mpk_plan_oom(planner);
    moepack_record *record = &t->records[t->record_count++];
    *record = (moepack_record){.shard = MOEPACK_NO_SHARD};
    for (uint32_t s = 0; s < count; s++)
        if (tensor[s] == MPK_NO_TENSOR) return MOEPACK_OK;
    *record = (moepack_record){
        .schema = schema, .length = planner->geometry[schema].length, .first_section = t->section_count};
    planner->plan->record_count++;
    if (block->published != NULL) {
        const mpk_source_schema *published = &planner->source->published[mpk_source_expert_schema(block, expert)];
        const uint32_t *all = mpk_source_published_tensors(block, expert);
        for (uint32_t s = 0; s < published->count; s++) /* those left out, too, do not belong to the trunk */
            planner->in_record[all[s]] = 1;
    }
    for (uint32_t s = 0; s < count; s++) {
        uint64_t section = 0;
        planner->in_record[tensor[s]] = 1;
        uint64_t length = t->descs[t->schemas[schema].first_desc + s].decoded_length;
        moepack_status status = mpk_plan_section(planner, length, &section);
        if (status != MOEPACK_OK) return status;
        t->sections[section].offset = length ? planner->geometry[schema].offset[s] : 0;
    }
    return MOEPACK_OK;
}

static moepack_status make_block(mpk_planner *planner, uint32_t source_block)
{
    mpk_tables *t = planner->tables;
    mpk_plan *plan = planner->plan;
    const mpk_source_block *from = &planner->source->blocks[source_block];
    if (!from->selected) return MOEPACK_OK;
    if (t->block_count >= UINT32_MAX - 1) return mpk_plan_too_large(planner);
    if (!mpk_grow(&t->blocks, t->block_count, sizeof *t->blocks) ||
        !mpk_grow(&plan->source_block, t->block_count, sizeof *plan->source_block))
        return mpk_plan_oom(planner);
    plan->source_block[t->block_count] = source_block;
    planner->block_entry[source_block] = (uint32_t)t->block_count;
    moepack_block *to = &t->blocks[t->block_count++];
    *to = (moepack_block){
        .stack = from->stack, .number = from->number, .experts = from->experts, .first_record = t->record_count};
    if (!mpk_tables_string(t, from->prefix, strlen(from->prefix), &to->prefix)) return mpk_plan_oom(planner);
    moepack_status status = intern_policy(planner, from->policy, &to->policy);
    for (uint32_t e = 0; e < from->experts && status == MOEPACK_OK; e++) {
        uint32_t schema = 0;
        status = mpk_plan_schema(planner, mpk_source_expert_schema(from, e), &schema);
        if (status == MOEPACK_OK) status = make_record(planner, from, e, schema);
    }
    return status;
}

/* ---- pieces ---- */

static moepack_status add_piece(mpk_planner *planner, const mpk_piece *piece)
{
    mpk_plan *plan = planner->plan;
    if (!mpk_grow(&plan->pieces, plan->piece_count, sizeof *plan->pieces)) return mpk_plan_oom(planner);
    plan->pieces[plan->piece_count++] = *piece;
    plan->source_bytes += piece->length;
    return MOEPACK_OK;
}

/* Where in the source the bytes of a quantised section are. */
static void quantize_piece(const mpk_planner *planner, uint32_t block, uint32_t expert,
                           const mpk_source_section *derived, mpk_piece *piece)
{
    const mpk_source *source = planner->source;
    const mpk_source_block *from = &source->blocks[planner->plan->source_block[block]];
    const mpk_source_schema *published = &source->published[mpk_source_expert_schema(from, expert)];
    const mpk_source_section *weight = &published->sections[derived->published];
    piece->quantized = weight;
    piece->length = weight->length;
    piece->offset = source->tensors[piece->tensor].offset + (weight->fused ? weight->length * expert : 0);
    if (derived->published_scale == UINT32_MAX) return;
    const uint32_t tensor = mpk_source_published_tensors(from, expert)[derived->published_scale];
    piece->scale = &published->sections[derived->published_scale];
    piece->scale_file = planner->file_entry[source->tensors[tensor].file];
    piece->scale_offset = source->tensors[tensor].offset + (piece->scale->fused ? piece->scale->length * expert : 0);
}

static moepack_status record_pieces(mpk_planner *planner, uint32_t block, uint32_t expert)
{
    const mpk_tables *t = planner->tables;
    const moepack_record *record = &t->records[t->blocks[block].first_record + expert];
    if (record->shard == MOEPACK_NO_SHARD) return MOEPACK_OK;
    const mpk_schema_entry *schema = &t->schemas[record->schema];
    const uint32_t *tensor = mpk_source_expert_tensors(
        planner->source, &planner->source->blocks[planner->plan->source_block[block]], expert);
    moepack_status status = MOEPACK_OK;
    const mpk_source_block *from_block = &planner->source->blocks[planner->plan->source_block[block]];
    for (uint32_t s = 0; s < schema->count && status == MOEPACK_OK; s++) {
        const mpk_source_section *source =
            &planner->source->schemas[mpk_source_expert_schema(from_block, expert)].sections[s];
        const moepack_desc *desc = &t->descs[schema->first_desc + s];
        const mpk_source_tensor *from = &planner->source->tensors[tensor[s]];
        uint64_t slice = desc->fused ? desc->canonical_length * expert : 0;
        planner->stored_bytes += desc->canonical_length;
        mpk_piece piece = {.offset = from->offset + slice,
                           .length = desc->canonical_length,
                           .section = record->first_section + s,
                           .file = planner->file_entry[from->file],
                           .shard = record->shard,
                           .desc = schema->first_desc + s,
                           .tensor = tensor[s],
                           .block = block,
                           .expert = expert};
        if (source->derived == MPK_DERIVED_SCALES) continue; /* with its codes */
        if (source->derived == MPK_DERIVED_CODES) quantize_piece(planner, block, expert, source, &piece);
        status = add_piece(planner, &piece);
    }
    return status;
}

static int piece_order(const void *left, const void *right)
{
    const mpk_piece *a = left, *b = right;
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    if (a->tensor != b->tensor) return a->tensor < b->tensor ? -1 : 1;
    return a->expert < b->expert ? -1 : a->expert > b->expert;
}

static moepack_status make_pieces(mpk_planner *planner)
{
    const mpk_tables *t = planner->tables;
    moepack_status status = MOEPACK_OK;
    for (uint32_t b = 0; b < t->block_count; b++)
        for (uint32_t e = 0; e < t->blocks[b].experts && status == MOEPACK_OK; e++)
            status = record_pieces(planner, b, e);
    for (uint32_t i = 0; i < planner->source->tensor_count && status == MOEPACK_OK; i++) {
        if (planner->tensor_entry[i] == UINT32_MAX) continue;
        const moepack_tensor *tensor = &t->tensors[planner->tensor_entry[i]];
        planner->stored_bytes += planner->source->tensors[i].length;
        mpk_piece piece = {.offset = planner->source->tensors[i].offset,
                           .length = planner->source->tensors[i].length,
                           .section = tensor->section,
                           .file = tensor->source_file,
                           .shard = tensor->shard,
                           .desc = tensor->desc,
                           .tensor = i,
                           .block = tensor->block,
                           .expert = UINT32_MAX};
        status = add_piece(planner, &piece);
    }
    planner->tables->info.source_bytes = planner->stored_bytes; /* of tensors alone */
    for (uint32_t i = 0; i < t->file_count && status == MOEPACK_OK; i++) {
        mpk_piece piece = {.length = t->sections[t->files[i].section].stored_length,
                           .section = t->files[i].section,
                           .file = i,
                           .shard = t->files[i].shard,
                           .desc = MPK_NO_DESC,
                           .tensor = MPK_NO_TENSOR,
                           .block = MOEPACK_NO_BLOCK,
                           .expert = UINT32_MAX};
        status = add_piece(planner, &piece);
    }
    if (status == MOEPACK_OK && planner->plan->piece_count)
        qsort(planner->plan->pieces, planner->plan->piece_count, sizeof(mpk_piece), piece_order);
    return status;
}

/* Nothing may get lost: unless a selection was asked for, the pieces of every file cover it from its first to its last
 * byte. */
static moepack_status check_coverage(mpk_planner *planner)
{
    const mpk_tables *t = planner->tables;
    const mpk_plan *plan = planner->plan;
    size_t i = 0;
    for (uint32_t f = 0; f < t->file_count; f++) {
        uint64_t end = 0;
        bool whole = true;
        for (; i < plan->piece_count && plan->pieces[i].file == f; i++) {
            whole = whole && plan->pieces[i].offset == end;
            end = plan->pieces[i].offset + plan->pieces[i].length;
        }
        if ((whole && end == t->files[f].length) || t->info.subset) continue;
        moepack_status status =
            mpk_fail(planner->error, MOEPACK_E_CORRUPT, "the tensors found cover only part of the file's %llu bytes",
                     (unsigned long long)t->files[f].length);
        mpk_error_file(planner->error, planner->source->files[plan->source_file[f]].name);
        return status;
    }
    return MOEPACK_OK;
}

/* ---- the whole ---- */

/* Tensors that the sections of records would be: one for each of an expert's own, one for all experts of a fused one.
 */
static uint64_t derived_tensors(const mpk_planner *planner)
{
    const mpk_tables *t = planner->tables;
    uint64_t count = 0;
    for (uint32_t b = 0; b < t->block_count; b++) {
        uint32_t present = 0, schema = UINT32_MAX;
        for (uint32_t e = 0; e < t->blocks[b].experts; e++) {
            const moepack_record *record = &t->records[t->blocks[b].first_record + e];
            if (record->shard == MOEPACK_NO_SHARD) continue;
            present++;
            schema = record->schema;
        }
        for (uint32_t s = 0; present > 0 && s < t->schemas[schema].count; s++)
            count += t->descs[t->schemas[schema].first_desc + s].fused ? 1 : present;
    }
    return count;
}

static moepack_status make_info(mpk_planner *planner)
{
    mpk_tables *t = planner->tables;
    const mpk_source *source = planner->source;
    moepack_info *info = &t->info;
    info->page_size = MPK_PAGE;
    info->writer_revision = MPK_WRITER_REVISION;
    info->layout = planner->options->layout;
    info->codec = (uint32_t)planner->options->codec;
    info->subset = source->subset || t->file_count < source->file_count;
    info->quantized = source->quantized;
    for (uint32_t i = 0; i < source->tensor_count; i++)
        info->source_tensors += (planner->in_record[i] && !source->quantized) || planner->tensor_entry[i] != UINT32_MAX;
    if (source->quantized) info->source_tensors += derived_tensors(planner);
    if (!mpk_tables_string(t, source->family, strlen(source->family), &info->family) ||
        !mpk_tables_string(t, source->model_type, strlen(source->model_type), &info->model_type))
        return mpk_plan_oom(planner);
    return MOEPACK_OK;
}

/* Lengths that need the finished tables: the index's. */
static moepack_status measure(mpk_planner *planner)
{
    mpk_plan *plan = planner->plan;
    const mpk_tables *t = planner->tables;
    moepack_status status = mpk_plan_id(t, &planner->tables->info.plan_id, planner->error);
    mpk_buf index = {0};
    if (status == MOEPACK_OK) status = mpk_encode_index(t, &index, planner->error);
    plan->written_bytes = index.size;
    plan->needed_bytes = (index.size + MPK_PAGE - 1) / MPK_PAGE * MPK_PAGE;
    free(index.data);
    for (size_t i = 0; i < t->shard_count && status == MOEPACK_OK; i++) {
        uint64_t blocks;
        if (!mpk_add64(plan->written_bytes, t->shards[i].file_length, &plan->written_bytes) ||
            !mpk_align64(t->shards[i].file_length, MPK_PAGE, &blocks) ||
            !mpk_add64(plan->needed_bytes, blocks, &plan->needed_bytes) || plan->written_bytes > INT64_MAX)
            status = mpk_plan_too_large(planner);
    }
    return status;
}

static uint32_t *new_map(uint32_t count)
{
    uint32_t *map = malloc((count ? count : 1) * sizeof *map);
    if (map) memset(map, 0xFF, count * sizeof *map);
    return map;
}

static moepack_status make_maps(mpk_planner *planner)
{
    const mpk_source *source = planner->source;
    planner->in_record = calloc(source->tensor_count ? source->tensor_count : 1, 1);
    planner->tensor_entry = new_map(source->tensor_count);
    planner->file_entry = new_map(source->file_count);
    planner->block_entry = new_map(source->block_count);
    planner->schema_entry = new_map(source->schema_count);
    planner->policy_entry = new_map(source->policy_count);
    planner->plan->source_file = new_map(source->file_count);
    if (!planner->in_record || !planner->tensor_entry || !planner->file_entry || !planner->block_entry ||
        !planner->schema_entry || !planner->policy_entry || !planner->plan->source_file)
        return mpk_plan_oom(planner);
    uint32_t next = 0;
    for (uint32_t i = 0; i < source->file_count; i++)
        if (!source->files[i].missing) {
            planner->plan->source_file[next] = i;
            planner->file_entry[i] = next++;
        }
    return MOEPACK_OK;
}

static void free_maps(mpk_planner *planner)
{
    for (size_t i = 0; i < planner->tables->schema_count; i++) free(planner->geometry[i].offset);
    free(planner->geometry);
    free(planner->in_record);
    free(planner->tensor_entry);
    free(planner->file_entry);
    free(planner->block_entry);
    free(planner->schema_entry);
    free(planner->policy_entry);
    free(planner->storage);
}

moepack_status mpk_plan_make(const mpk_source *source, const mpk_plan_options *options, mpk_plan *plan,
                             moepack_error *error)
{
    *plan = (mpk_plan){0};
    mpk_planner planner = {.source = source, .options = options, .plan = plan, .tables = &plan->tables, .error = error};
    moepack_status status = make_maps(&planner);
    for (uint32_t i = 0; i < source->block_count && status == MOEPACK_OK; i++) status = make_block(&planner, i);
    if (status == MOEPACK_OK) status = mpk_plan_trunk(&planner);
    if (status == MOEPACK_OK) status = make_info(&planner);
    if (status == MOEPACK_OK) status = mpk_plan_shards(&planner);
    if (status == MOEPACK_OK) status = make_pieces(&planner);
    if (status == MOEPACK_OK) status = check_coverage(&planner);
    if (status == MOEPACK_OK) status = measure(&planner);
    free_maps(&planner);
    if (status != MOEPACK_OK) mpk_plan_free(plan);
    return status;
}

void mpk_plan_free(mpk_plan *plan)
{
    mpk_tables_free(&plan->tables);
    free(plan->pieces);
    free(plan->source_file);
    free(plan->source_block);
    *plan = (mpk_plan){0};
}

void mpk_plan_shape(const mpk_plan *plan, const mpk_piece *piece, mpk_shape *out)
{
    if (piece->desc == MPK_NO_DESC) {
        mpk_shape_opaque(piece->length, out);
        return;
    }
    const moepack_desc *desc = &plan->tables.descs[piece->desc];
    mpk_shape_of(desc, plan->tables.matrices ? plan->tables.matrices + desc->first_matrix : NULL, out);
}

uint64_t mpk_plan_memory(const mpk_plan *plan, const mpk_source *source, unsigned jobs)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < plan->piece_count; i++) {
        mpk_shape shape;
        mpk_chunker chunker;
        uint64_t in, out;
        mpk_plan_shape(plan, &plan->pieces[i], &shape);
        mpk_chunker_init(&chunker, &shape, MPK_LANE_BYTES);
        mpk_chunker_need(&chunker, &in, &out);
        if ((in > MPK_LANE_BYTES || out > MPK_LANE_BYTES) && in + out > largest) largest = in + out;
    }
    if (largest > MPK_POOL_BYTES / 2) largest = MPK_POOL_BYTES / 2;
    /* A tensor costs its entry and about 96 bytes of name and dims in the source, and its item of canonical_root; a
     * section its entry, its piece, and (a record's share) its bytes in the index, which is in memory twice when it is
     * read back. */
    uint64_t tables =
        (uint64_t)source->tensor_count * (sizeof(mpk_source_tensor) + 96) +
        (uint64_t)plan->piece_count * (sizeof(mpk_piece) + sizeof(moepack_section) + sizeof(mpk_root_item) + 2 * 48);
    return mpk_lanes_memory(jobs, largest) + tables + ((uint64_t)16 << 20);
}
