/* The trunk: tensors that belong to no expert, which of them play a role in a MoE block, and the source files. */
#include "plan_internal.h"

/* Place of each block role in the trunk's storage order, a device's one stream (spec/container.md section 8). */
static const uint8_t role_rank[] = {
    [MOEPACK_ROLE_ROUTER] = 1,      [MOEPACK_ROLE_ROUTER_BIAS] = 2,  [MOEPACK_ROLE_LOGIT_BIAS] = 3,
    [MOEPACK_ROLE_TOKEN_TABLE] = 4, [MOEPACK_ROLE_LATENT_DOWN] = 5,  [MOEPACK_ROLE_SHARED_ROUTER] = 6,
    [MOEPACK_ROLE_SHARED_GATE] = 7, [MOEPACK_ROLE_SHARED_UP] = 8,    [MOEPACK_ROLE_LATENT_NORM] = 9,
    [MOEPACK_ROLE_LATENT_UP] = 10,  [MOEPACK_ROLE_SHARED_DOWN] = 11,
};

/* A role tensor while roles are sorted. */
typedef struct role_claim {
    uint32_t block; /* entry of BLOCKS */
    uint16_t role, plane;
    uint32_t tensor; /* source tensor */
} role_claim;

static int claim_order(const void *left, const void *right)
{
    const role_claim *a = left, *b = right;
    if (a->block != b->block) return a->block < b->block ? -1 : 1;
    if (a->role != b->role) return a->role < b->role ? -1 : 1;
    if (a->plane != b->plane) return a->plane < b->plane ? -1 : 1;
    return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

static int storage_claim_order(const void *left, const void *right)
{
    const role_claim *a = left, *b = right;
    if (a->role != b->role) return role_rank[a->role] < role_rank[b->role] ? -1 : 1;
    return a->plane < b->plane ? -1 : a->plane > b->plane;
}

static bool stored_in_trunk(const mpk_planner *planner, uint32_t tensor)
{
    return !planner->in_record[tensor] && planner->file_entry[planner->source->tensors[tensor].file] != UINT32_MAX &&
           (!planner->options->kept || planner->options->kept[tensor]);
}

static int name_order(const void *left, const void *right, void *argument)
{
    const mpk_source *source = argument;
    uint32_t i = *(const uint32_t *)left, j = *(const uint32_t *)right;
    int order = strcmp(source->tensors[i].name, source->tensors[j].name);
    if (order != 0) return order;
    return i < j ? -1 : i > j; /* tensors are sorted by file first */
}

/* Source tensors are numbered in (file, offset, length, name) order, which is the one asked for. */
static int number_order(const void *left, const void *right)
{
    uint32_t i = *(const uint32_t *)left, j = *(const uint32_t *)right;
    return i < j ? -1 : i > j;
}

static moepack_status make_tensors(mpk_planner *planner, uint32_t *kept, uint32_t count)
{
    const mpk_source *source = planner->source;
    mpk_tables *t = planner->tables;
    qsort_r(kept, count, sizeof *kept, name_order, (void *)(uintptr_t)source);
    for (uint32_t i = 0; i < count; i++) {
        const mpk_source_tensor *from = &source->tensors[kept[i]];
        if (!mpk_grow(&t->tensors, t->tensor_count, sizeof *t->tensors)) return mpk_plan_oom(planner);
        moepack_tensor *to = &t->tensors[t->tensor_count];
        *to = (moepack_tensor){.source_file = planner->file_entry[from->file],
                               .block = from->block == MOEPACK_NO_BLOCK ? MOEPACK_NO_BLOCK
                                                                        : planner->block_entry[from->block]};
        if (!mpk_tables_string(t, from->name, strlen(from->name), &to->name)) return mpk_plan_oom(planner);
        moepack_status status = mpk_plan_tensor_desc(planner, from, &to->desc);
        if (status != MOEPACK_OK) return status;
        planner->tensor_entry[kept[i]] = (uint32_t)t->tensor_count++;
    }
    return MOEPACK_OK;
}

/* All (block, role, plane) claims of kept tensors, sorted; of two tensors with the same claim (a trunk tensor that two
 * files hold) the first keeps it. */
static moepack_status collect_claims(mpk_planner *planner, const uint32_t *kept, uint32_t count, role_claim **out,
                                     uint32_t *claim_count)
{
    role_claim *claims = calloc(count ? count : 1, sizeof *claims);
    if (!claims) return mpk_plan_oom(planner);
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        const mpk_source_tensor *tensor = &planner->source->tensors[kept[i]];
        if (tensor->role == MOEPACK_ROLE_NONE || tensor->block == MOEPACK_NO_BLOCK) continue;
        if (tensor->role >= sizeof role_rank || role_rank[tensor->role] == 0) continue;
        uint32_t block = planner->block_entry[tensor->block];
        if (block == MOEPACK_NO_BLOCK) continue;
        claims[n++] = (role_claim){.block = block, .role = tensor->role, .plane = tensor->plane, .tensor = kept[i]};
    }
    if (n) qsort(claims, n, sizeof *claims, claim_order);
    uint32_t unique = 0;
    for (uint32_t i = 0; i < n; i++) {
        const role_claim *last = unique ? &claims[unique - 1] : NULL;
        if (last && last->block == claims[i].block && last->role == claims[i].role && last->plane == claims[i].plane)
            continue;
        claims[unique++] = claims[i];
    }
    *out = claims;
    *claim_count = unique;
    return MOEPACK_OK;
}

/* Fills ROLES, and the start of the storage order with the role tensors. */
static moepack_status make_roles(mpk_planner *planner, role_claim *claims, uint32_t count, uint32_t *stored)
{
    mpk_tables *t = planner->tables;
    uint32_t at = 0;
    for (uint32_t b = 0; b < t->block_count; b++) {
        uint32_t first = at;
        while (at < count && claims[at].block == b) {
            if (!mpk_grow(&t->roles, t->role_count, sizeof *t->roles)) return mpk_plan_oom(planner);
            t->roles[t->role_count++] = (moepack_role_entry){.role = (moepack_role)claims[at].role,
                                                             .plane = (moepack_plane)claims[at].plane,
                                                             .tensor = planner->tensor_entry[claims[at].tensor]};
            at++;
        }
        t->blocks[b].first_role = first;
        t->blocks[b].role_count = at - first;
        if (at > first) qsort(claims + first, at - first, sizeof *claims, storage_claim_order);
        for (uint32_t i = first; i < at; i++) planner->storage[(*stored)++] = planner->tensor_entry[claims[i].tensor];
    }
    return MOEPACK_OK;
}

static moepack_status make_storage_order(mpk_planner *planner, uint32_t *kept, uint32_t count)
{
    mpk_tables *t = planner->tables;
    role_claim *claims = NULL;
    uint32_t claim_count = 0, stored = 0;
    uint8_t *placed = calloc(count ? count : 1, 1);
    planner->storage = calloc(count ? count : 1, sizeof *planner->storage);
    moepack_status status = placed && planner->storage ? collect_claims(planner, kept, count, &claims, &claim_count)
                                                       : mpk_plan_oom(planner);
    if (status == MOEPACK_OK) status = make_roles(planner, claims, claim_count, &stored);
    for (uint32_t i = 0; status == MOEPACK_OK && i < stored; i++) placed[planner->storage[i]] = 1;
    if (status == MOEPACK_OK) qsort(kept, count, sizeof *kept, number_order);
    for (uint32_t i = 0; status == MOEPACK_OK && i < count; i++) {
        uint32_t entry = planner->tensor_entry[kept[i]];
        if (!placed[entry]) planner->storage[stored++] = entry;
    }
    for (uint32_t i = 0; status == MOEPACK_OK && i < stored; i++) {
        moepack_tensor *tensor = &t->tensors[planner->storage[i]];
        status = mpk_plan_section(planner, t->descs[tensor->desc].decoded_length, &tensor->section);
    }
    free(claims);
    free(placed);
    return status;
}

/* FILES: every source file that is there, in the source's order; its section is what no tensor covers. */
static moepack_status make_files(mpk_planner *planner)
{
    const mpk_source *source = planner->source;
    mpk_tables *t = planner->tables;
    for (uint32_t i = 0; i < source->file_count; i++) {
        if (planner->file_entry[i] == UINT32_MAX) continue;
        const mpk_source_file *from = &source->files[i];
        if (!mpk_grow(&t->files, t->file_count, sizeof *t->files)) return mpk_plan_oom(planner);
        moepack_source_file *to = &t->files[t->file_count++];
        *to = (moepack_source_file){.kind = from->kind, .length = from->size};
        if (!mpk_tables_string(t, from->name, strlen(from->name), &to->name)) return mpk_plan_oom(planner);
        uint64_t own = from->kind == MOEPACK_SOURCE_SAFETENSORS ? from->data_start : from->size;
        moepack_status status = mpk_plan_section(planner, own, &to->section);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}

moepack_status mpk_plan_trunk(mpk_planner *planner)
{
    const mpk_source *source = planner->source;
    uint32_t *kept = calloc(source->tensor_count ? source->tensor_count : 1, sizeof *kept);
    if (!kept) return mpk_plan_oom(planner);
    uint32_t count = 0;
    for (uint32_t i = 0; i < source->tensor_count; i++)
        if (stored_in_trunk(planner, i)) kept[count++] = i;
    planner->first_trunk_section = planner->tables->section_count;
    moepack_status status = make_tensors(planner, kept, count);
    if (status == MOEPACK_OK) status = make_storage_order(planner, kept, count);
    if (status == MOEPACK_OK) status = make_files(planner);
    free(kept);
    return status;
}
