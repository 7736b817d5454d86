/* Which shard each record and trunk section goes to, and where in it. */
#include "plan_internal.h"

#include "layout.h"

#include <stdio.h>

static moepack_status add_shard(mpk_planner *planner, moepack_shard_kind kind, const char *name, uint32_t *shard)
{
    mpk_tables *t = planner->tables;
    if (t->shard_count >= UINT32_MAX - 1) return mpk_plan_too_large(planner);
    if (!mpk_grow(&t->shards, t->shard_count, sizeof *t->shards)) return mpk_plan_oom(planner);
    *shard = (uint32_t)t->shard_count;
    moepack_shard *entry = &t->shards[t->shard_count++];
    /* Until the tail is placed, file_length is where the next byte goes. */
    *entry = (moepack_shard){.kind = kind, .file_length = MPK_PAGE};
    return mpk_tables_string(t, name, strlen(name), &entry->name) ? MOEPACK_OK : mpk_plan_oom(planner);
}

/* ---- trunk ---- */

static moepack_status add_trunk_shard(mpk_planner *planner, uint32_t *shard)
{
    char name[32];
    snprintf(name, sizeof name, "trunk-%03u.mpk", (unsigned)planner->tables->shard_count);
    return add_shard(planner, MOEPACK_SHARD_TRUNK, name, shard);
}

/* Spec/container.md section 8: large sections on pages, small ones on cache lines, empty ones nowhere. */
static moepack_status place_trunk_section(mpk_planner *planner, uint64_t section, uint32_t *shard)
{
    mpk_tables *t = planner->tables;
    moepack_section *s = &t->sections[section];
    if (s->stored_length == 0) return MOEPACK_OK;
    uint64_t unit = s->stored_length <= MPK_SMALL ? 64 : MPK_PAGE, start, end;
    if (!mpk_align64(t->shards[*shard].file_length, unit, &start) || !mpk_add64(start, s->stored_length, &end))
        return mpk_plan_too_large(planner);
    if (end - MPK_PAGE > planner->options->shard_size && t->shards[*shard].file_length > MPK_PAGE) {
        moepack_status status = add_trunk_shard(planner, shard);
        if (status != MOEPACK_OK) return status;
        start = MPK_PAGE;
        if (!mpk_add64(start, s->stored_length, &end)) return mpk_plan_too_large(planner);
    }
    s->offset = start;
    t->shards[*shard].file_length = end;
    return MOEPACK_OK;
}

static moepack_status place_trunk(mpk_planner *planner)
{
    mpk_tables *t = planner->tables;
    uint32_t shard;
    moepack_status status = add_trunk_shard(planner, &shard);
    for (size_t i = 0; i < t->tensor_count && status == MOEPACK_OK; i++) {
        moepack_tensor *tensor = &t->tensors[planner->storage[i]];
        status = place_trunk_section(planner, tensor->section, &shard);
        tensor->shard = shard;
    }
    for (size_t i = 0; i < t->file_count && status == MOEPACK_OK; i++) {
        status = place_trunk_section(planner, t->files[i].section, &shard);
        t->files[i].shard = shard;
    }
    return status;
}

/* ---- experts ---- */

static bool present(const moepack_record *record)
{
    return record->shard != MOEPACK_NO_SHARD;
}

/* Puts a record at the end of a shard; its sections' offsets are still relative to it. */
static moepack_status place_record(mpk_planner *planner, moepack_record *record, uint32_t shard)
{
    mpk_tables *t = planner->tables;
    record->shard = shard;
    record->offset = t->shards[shard].file_length;
    if (!mpk_add64(record->offset, record->length, &t->shards[shard].file_length)) return mpk_plan_too_large(planner);
    for (uint32_t s = 0; s < t->schemas[record->schema].count; s++) {
        moepack_section *section = &t->sections[record->first_section + s];
        if (section->stored_length) section->offset += record->offset;
    }
    return MOEPACK_OK;
}

/* Bytes of one expert id over all blocks, the largest of all ids; and which ids have a record at all. */
static uint64_t bytes_of_ids(const mpk_planner *planner, uint64_t *bytes, uint32_t ids)
{
    const mpk_tables *t = planner->tables;
    uint64_t largest = 0;
    for (size_t b = 0; b < t->block_count; b++)
        for (uint32_t e = 0; e < t->blocks[b].experts && e < ids; e++) {
            const moepack_record *record = &t->records[t->blocks[b].first_record + e];
            if (present(record) && !mpk_add64(bytes[e], record->length, &bytes[e])) bytes[e] = UINT64_MAX;
            if (bytes[e] > largest) largest = bytes[e];
        }
    return largest;
}

static moepack_status place_ids(mpk_planner *planner, const uint8_t *has_record, uint32_t first, uint32_t last)
{
    mpk_tables *t = planner->tables;
    char name[64];
    uint32_t shard;
    snprintf(name, sizeof name, "experts-%04u-%04u.mpk", first, last);
    moepack_status status = add_shard(planner, MOEPACK_SHARD_EXPERTS, name, &shard);
    for (size_t b = 0; b < t->block_count; b++)
        for (uint32_t e = first; e <= last && e < t->blocks[b].experts && status == MOEPACK_OK; e++) {
            moepack_record *record = &t->records[t->blocks[b].first_record + e];
            if (has_record[e] && present(record)) status = place_record(planner, record, shard);
        }
    return status;
}

static moepack_status shard_by_expert(mpk_planner *planner)
{
    const mpk_tables *t = planner->tables;
    uint32_t ids = 0;
    for (size_t b = 0; b < t->block_count; b++)
        if (t->blocks[b].experts > ids) ids = t->blocks[b].experts;
    if (ids == 0) return MOEPACK_OK;
    uint64_t *bytes = calloc(ids, sizeof *bytes);
    uint8_t *has_record = calloc(ids, 1);
    moepack_status status = bytes && has_record ? MOEPACK_OK : mpk_plan_oom(planner);
    uint64_t largest = status == MOEPACK_OK ? bytes_of_ids(planner, bytes, ids) : 0;
    for (size_t b = 0; b < t->block_count && status == MOEPACK_OK; b++)
        for (uint32_t e = 0; e < t->blocks[b].experts; e++)
            has_record[e] |= present(&t->records[t->blocks[b].first_record + e]);
    uint64_t per_shard = largest ? planner->options->shard_size / largest : ids;
    if (per_shard == 0) per_shard = 1;
    for (uint32_t e = 0; e < ids && status == MOEPACK_OK; e++) {
        if (!has_record[e]) continue;
        uint32_t last = e;
        uint64_t taken = 1;
        for (uint32_t next = e + 1; next < ids && taken < per_shard; next++)
            if (has_record[next]) {
                last = next;
                taken++;
            }
        status = place_ids(planner, has_record, e, last);
        e = last;
    }
    free(bytes);
    free(has_record);
    return status;
}

static uint64_t block_bytes(const mpk_planner *planner, size_t block, bool *any)
{
    const mpk_tables *t = planner->tables;
    uint64_t bytes = 0;
    *any = false;
    for (uint32_t e = 0; e < t->blocks[block].experts; e++) {
        const moepack_record *record = &t->records[t->blocks[block].first_record + e];
        *any = *any || present(record);
        if (!mpk_add64(bytes, record->length, &bytes)) return UINT64_MAX;
    }
    return bytes;
}

static moepack_status place_blocks(mpk_planner *planner, size_t first, size_t last)
{
    mpk_tables *t = planner->tables;
    char name[64];
    uint32_t shard;
    snprintf(name, sizeof name, "layers-%05zu-%05zu.mpk", first, last);
    moepack_status status = add_shard(planner, MOEPACK_SHARD_EXPERTS, name, &shard);
    for (size_t b = first; b <= last; b++)
        for (uint32_t e = 0; e < t->blocks[b].experts && status == MOEPACK_OK; e++) {
            moepack_record *record = &t->records[t->blocks[b].first_record + e];
            if (present(record)) status = place_record(planner, record, shard);
        }
    return status;
}

static moepack_status shard_by_layer(mpk_planner *planner)
{
    const mpk_tables *t = planner->tables;
    moepack_status status = MOEPACK_OK;
    for (size_t b = 0; b < t->block_count && status == MOEPACK_OK; b++) {
        bool any;
        uint64_t sum = block_bytes(planner, b, &any);
        if (!any) continue;
        size_t last = b;
        for (size_t next = b + 1; next < t->block_count; next++) {
            uint64_t more = block_bytes(planner, next, &any), total;
            if (!mpk_add64(sum, more, &total) || total > planner->options->shard_size) break;
            sum = total;
            if (any) last = next;
        }
        status = place_blocks(planner, b, last);
        b = last;
    }
    return status;
}

static moepack_status shard_by_size(mpk_planner *planner)
{
    mpk_tables *t = planner->tables;
    moepack_status status = MOEPACK_OK;
    uint32_t shard = MOEPACK_NO_SHARD;
    unsigned parts = 0;
    for (size_t i = 0; i < t->record_count && status == MOEPACK_OK; i++) {
        moepack_record *record = &t->records[i];
        if (!present(record)) continue;
        uint64_t used = shard == MOEPACK_NO_SHARD ? 0 : t->shards[shard].file_length - MPK_PAGE;
        bool full = used > planner->options->shard_size || record->length > planner->options->shard_size - used;
        if (shard == MOEPACK_NO_SHARD || (full && used > 0)) {
            char name[32];
            snprintf(name, sizeof name, "part-%04u.mpk", parts++);
            status = add_shard(planner, MOEPACK_SHARD_EXPERTS, name, &shard);
        }
        if (status == MOEPACK_OK) status = place_record(planner, record, shard);
    }
    return status;
}

/* ---- parts and tails ---- */

static moepack_status make_parts(mpk_planner *planner)
{
    mpk_tables *t = planner->tables;
    for (size_t i = 0; i < t->section_count; i++) {
        moepack_section *section = &t->sections[i];
        uint64_t parts = mpk_part_count(section->stored_length, section->codec), left = section->stored_length;
        if (parts == 0) continue;
        if (parts > UINT32_MAX - 1 - t->part_count) return mpk_plan_too_large(planner);
        section->first_part = (uint32_t)t->part_count;
        for (uint64_t p = 0; p < parts; p++) {
            if (!mpk_grow(&t->parts, t->part_count, sizeof *t->parts)) return mpk_plan_oom(planner);
            uint64_t length = left < MPK_PART ? left : MPK_PART;
            t->parts[t->part_count++] = (mpk_part_entry){.stored_length = (uint32_t)length};
            left -= length;
        }
    }
    return MOEPACK_OK;
}

static moepack_status place_tails(mpk_planner *planner)
{
    mpk_tables *t = planner->tables;
    for (uint32_t i = 0; i < t->shard_count; i++) {
        moepack_shard *shard = &t->shards[i];
        if (!mpk_align64(shard->file_length, MPK_PAGE, &shard->tail_offset)) return mpk_plan_too_large(planner);
        moepack_status status = mpk_tail_length(t, i, &shard->tail_length, planner->error);
        if (status != MOEPACK_OK) return status;
        if (!mpk_add64(shard->tail_offset, shard->tail_length, &shard->file_length) || shard->file_length > INT64_MAX)
            return mpk_plan_too_large(planner);
    }
    return MOEPACK_OK;
}

moepack_status mpk_plan_shards(mpk_planner *planner)
{
    static moepack_status (*const by[])(mpk_planner *) = {[MOEPACK_SHARD_BY_EXPERT] = shard_by_expert,
                                                          [MOEPACK_SHARD_BY_LAYER] = shard_by_layer,
                                                          [MOEPACK_SHARD_BY_SIZE] = shard_by_size};
    if ((size_t)planner->options->shard_by >= sizeof by / sizeof *by)
        return mpk_fail(planner->error, MOEPACK_E_USAGE, "unknown way of sharding %d", (int)planner->options->shard_by);
    moepack_status status = place_trunk(planner);
    if (status == MOEPACK_OK) status = by[planner->options->shard_by](planner);
    if (status == MOEPACK_OK) status = make_parts(planner);
    if (status == MOEPACK_OK) status = place_tails(planner);
    return status;
}
