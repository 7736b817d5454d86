/* The byte plan of one rank, from the index alone.
 *
 * Reads are counted in whole pages of 4096 bytes: records and large tensors start on a page and what follows their last
 * byte up to the next page is padding, so whole pages cost nothing more, can be read directly (O_DIRECT), and
 * neighbours merge into one read. */
#include "plan.h"

#include "bytes.h"
#include "error.h"
#include "io/io.h"

#include <inttypes.h>
#include <stdlib.h>

void moepack_plan_options_init(moepack_plan_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->dense = true;
}

static int compare_u32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static size_t unique_u32(uint32_t *values, size_t count)
{
    if (count == 0) return 0;
    qsort(values, count, sizeof *values, compare_u32);
    size_t kept = 1;
    for (size_t i = 1; i < count; i++)
        if (values[i] != values[kept - 1]) values[kept++] = values[i];
    return kept;
}

static moepack_status choose_blocks(moepack_plan *plan, const moepack_plan_options *options, moepack_error *error)
{
    const uint32_t all = moepack_index_blocks(moepack_pack_index(plan->pack));
    const uint32_t count = options->blocks == NULL ? all : options->block_count;
    plan->blocks = calloc((size_t)count + 1, sizeof *plan->blocks);
    if (plan->blocks == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (uint32_t i = 0; i < count; i++) {
        plan->blocks[i] = options->blocks == NULL ? i : options->blocks[i];
        if (plan->blocks[i] >= all)
            return mpk_fail(error, MOEPACK_E_USAGE, "block %" PRIu32 " does not exist, the container has %" PRIu32,
                            plan->blocks[i], all);
    }
    plan->block_count = (uint32_t)unique_u32(plan->blocks, count);
    return MOEPACK_OK;
}

static bool add_item(moepack_plan *plan, const mpk_plan_item *item)
{
    if (plan->item_count == plan->item_capacity) {
        const size_t capacity = plan->item_capacity == 0 ? 64 : plan->item_capacity * 2;
        if (capacity > SIZE_MAX / sizeof *plan->items) return false;
        mpk_plan_item *grown = realloc(plan->items, capacity * sizeof *grown);
        if (grown == NULL) return false;
        plan->items = grown;
        plan->item_capacity = capacity;
    }
    plan->items[plan->item_count++] = *item;
    return true;
}

/* Widens the item's range to a section's pages, and adds the section's bytes. The index guarantees offset + length
 * below the tail offset, a page multiple. */
static void cover_section(const moepack_index *index, uint64_t number, mpk_plan_item *item, uint64_t *bytes)
{
    moepack_section section;
    moepack_index_section(index, number, &section);
    if (section.stored_length == 0) return;
    *bytes += section.stored_length;
    const uint64_t first = section.offset & ~(uint64_t)(MPK_PAGE - 1);
    const uint64_t end = (section.offset + section.stored_length + MPK_PAGE - 1) & ~(uint64_t)(MPK_PAGE - 1);
    if (item->length == 0) {
        item->offset = first;
        item->length = end - first;
        return;
    }
    const uint64_t old_end = item->offset + item->length;
    const uint64_t new_end = end > old_end ? end : old_end;
    if (first < item->offset) item->offset = first;
    item->length = new_end - item->offset;
}

static moepack_status add_expert(moepack_plan *plan, const moepack_block *block, uint32_t number, uint32_t expert,
                                 moepack_error *error)
{
    const moepack_index *index = moepack_pack_index(plan->pack);
    moepack_record record;
    moepack_index_record(index, block->first_record + expert, &record);
    if (record.shard == MOEPACK_NO_SHARD) {
        char label[MOEPACK_LABEL_MAX];
        moepack_index_label(index, number, label);
        mpk_fail(error, MOEPACK_E_INCOMPLETE, "the container is a subset that does not hold this expert");
        mpk_error_file(error, moepack_pack_path(plan->pack));
        mpk_error_layer(error, label);
        mpk_error_expert(error, expert);
        return MOEPACK_E_INCOMPLETE;
    }
    uint32_t first_desc, sections;
    moepack_index_schema(index, record.schema, &first_desc, &sections);
    mpk_plan_item item = {0, 0, record.shard, number, expert, 0};
    for (uint32_t s = 0; s < sections; s++) cover_section(index, record.first_section + s, &item, &plan->expert_bytes);
    if (!add_item(plan, &item)) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    plan->experts++;
    return MOEPACK_OK;
}

static moepack_status add_experts(moepack_plan *plan, const moepack_placement *placement, moepack_error *error)
{
    for (uint32_t i = 0; i < plan->block_count; i++) {
        moepack_block block;
        moepack_index_block(moepack_pack_index(plan->pack), plan->blocks[i], &block);
        for (uint32_t e = 0; e < block.experts; e++) {
            if (!moepack_placement_holds(placement, plan->rank, plan->blocks[i], e)) continue;
            moepack_status status = add_expert(plan, &block, plan->blocks[i], e, error);
            if (status != MOEPACK_OK) return status;
        }
    }
    return MOEPACK_OK;
}

/* Tensors that play a role (of the router, with router_only) in one of the blocks, each once even if two blocks share
 * it. */
static moepack_status add_dense(moepack_plan *plan, moepack_error *error)
{
    const moepack_index *index = moepack_pack_index(plan->pack);
    size_t count = 0;
    for (uint32_t i = 0; i < plan->block_count; i++) {
        moepack_block block;
        moepack_index_block(index, plan->blocks[i], &block);
        count += block.role_count;
    }
    uint32_t *tensors = calloc(count + 1, sizeof *tensors);
    if (tensors == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    count = 0;
    for (uint32_t i = 0; i < plan->block_count; i++) {
        moepack_block block;
        moepack_index_block(index, plan->blocks[i], &block);
        for (uint32_t r = 0; r < block.role_count; r++) {
            moepack_role_entry role;
            moepack_index_role(index, block.first_role + r, &role);
            if (!plan->router_only || mpk_router_role(role.role)) tensors[count++] = role.tensor;
        }
    }
    count = unique_u32(tensors, count);
    bool ok = true;
    for (size_t i = 0; i < count && ok; i++) {
        moepack_tensor tensor;
        moepack_index_tensor(index, tensors[i], &tensor);
        mpk_plan_item item = {0, 0, tensor.shard, MOEPACK_NO_BLOCK, MPK_NO_EXPERT, tensors[i]};
        cover_section(index, tensor.section, &item, &plan->dense_bytes);
        ok = add_item(plan, &item);
    }
    free(tensors);
    return ok ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
}

static int compare_items(const void *pa, const void *pb)
{
    const mpk_plan_item *a = pa, *b = pb;
    if (a->shard != b->shard) return a->shard < b->shard ? -1 : 1;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    if (a->block != b->block) return a->block < b->block ? -1 : 1;
    if (a->expert != b->expert) return a->expert < b->expert ? -1 : 1;
    return (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

static moepack_status merge_reads(moepack_plan *plan, moepack_error *error)
{
    if (plan->item_count > 0) qsort(plan->items, plan->item_count, sizeof *plan->items, compare_items);
    plan->reads = calloc(plan->item_count + 1, sizeof *plan->reads);
    if (plan->reads == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (size_t i = 0; i < plan->item_count; i++) {
        const mpk_plan_item *item = &plan->items[i];
        if (item->length == 0) continue;
        moepack_read *last = plan->read_count == 0 ? NULL : &plan->reads[plan->read_count - 1];
        if (last != NULL && last->shard == item->shard && item->offset <= last->offset + last->length) {
            const uint64_t end = item->offset + item->length;
            if (end > last->offset + last->length) last->length = end - last->offset;
        } else {
            plan->reads[plan->read_count++] = (moepack_read){item->shard, item->offset, item->length};
        }
    }
    return MOEPACK_OK;
}

static moepack_status fill_plan(moepack_plan *plan, const moepack_placement *placement,
                                const moepack_plan_options *options, moepack_error *error)
{
    moepack_status status = choose_blocks(plan, options, error);
    if (status == MOEPACK_OK && !plan->router_only) status = add_experts(plan, placement, error);
    if (status == MOEPACK_OK && (plan->dense || plan->router_only)) status = add_dense(plan, error);
    if (status == MOEPACK_OK) status = merge_reads(plan, error);
    if (status != MOEPACK_OK) return status;
    const uint64_t wanted = plan->expert_bytes + plan->dense_bytes;
    if (options->budget != 0 && wanted > options->budget)
        return mpk_fail(error, MOEPACK_E_REFUSED, "rank %" PRIu32 " needs %" PRIu64 " bytes, budget is %" PRIu64,
                        plan->rank, wanted, options->budget);
    return MOEPACK_OK;
}

moepack_status moepack_plan_create(const moepack_pack *pack, const moepack_placement *placement, uint32_t rank,
                                   const moepack_plan_options *options, moepack_plan **out, moepack_error *error)
{
    if (out == NULL || pack == NULL || placement == NULL)
        return mpk_fail(error, MOEPACK_E_USAGE, "a container, a placement and a place for the result are needed");
    *out = NULL;
    moepack_plan_options given;
    moepack_plan_options_init(&given);
    if (options != NULL && !mpk_take_options(&given, sizeof given, options))
        return mpk_fail(error, MOEPACK_E_USAGE, "plan options of unknown size");
    if (rank >= moepack_placement_ranks(placement))
        return mpk_fail(error, MOEPACK_E_USAGE, "rank %" PRIu32 " is outside 0..%" PRIu32, rank,
                        moepack_placement_ranks(placement) - 1);
    moepack_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    plan->pack = pack;
    plan->rank = rank;
    plan->dense = given.dense && !given.router_only;
    plan->router_only = given.router_only;
    moepack_status status = fill_plan(plan, placement, &given, error);
    if (status != MOEPACK_OK) {
        moepack_plan_free(plan);
        return status;
    }
    *out = plan;
    return MOEPACK_OK;
}

moepack_status mpk_plan_dense(const moepack_pack *pack, uint32_t rank, const uint32_t *blocks, uint32_t block_count,
                              moepack_plan **out, moepack_error *error)
{
    moepack_plan_options options;
    moepack_plan_options_init(&options);
    options.blocks = blocks;
    options.block_count = block_count;
    *out = NULL;
    moepack_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    plan->pack = pack;
    plan->rank = rank;
    plan->dense = plan->no_experts = true;
    moepack_status status = choose_blocks(plan, &options, error);
    if (status == MOEPACK_OK) status = add_dense(plan, error);
    if (status == MOEPACK_OK) status = merge_reads(plan, error);
    if (status == MOEPACK_OK)
        *out = plan;
    else
        moepack_plan_free(plan);
    return status;
}

void moepack_plan_free(moepack_plan *plan)
{
    if (plan == NULL) return;
    free(plan->blocks);
    free(plan->items);
    free(plan->reads);
    free(plan);
}

uint64_t moepack_plan_experts(const moepack_plan *plan)
{
    return plan->experts;
}

uint64_t moepack_plan_expert_bytes(const moepack_plan *plan)
{
    return plan->expert_bytes;
}

uint64_t moepack_plan_dense_bytes(const moepack_plan *plan)
{
    return plan->dense_bytes;
}

size_t moepack_plan_reads(const moepack_plan *plan)
{
    return plan->read_count;
}

void moepack_plan_read(const moepack_plan *plan, size_t i, moepack_read *out)
{
    *out = i < plan->read_count ? plan->reads[i] : (moepack_read){0, 0, 0};
}
