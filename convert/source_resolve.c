/* What each tensor is: expert section, role of a block, or carried as it is. Every name is accounted for. */
#include "source_internal.h"

#include "bytes.h"
#include "error.h"
#include "selection.h"
#include "storage_forms.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A config may claim any number of layers and experts. Tables are allocated for at most this many entries, or for 16
 * per tensor of the source if that is more: K3 needs 494,592, and a claim beyond it is a lie about the files. */
#define TABLE_FLOOR ((uint64_t)16 << 20)

/* ------------------------------------------------------------------------------------------------ names to blocks */

uint32_t mpk_source_block_of(const mpk_source_state *state, const mpk_name *name)
{
    if (name->kind == MPK_NAME_TRUNK) return MOEPACK_NO_BLOCK;
    uint32_t stack = (uint32_t)state->family->prefixes[name->prefix].stack, number = name->layer;
    uint64_t main_layers = state->config.stack[MOEPACK_STACK_MAIN].count;
    if (stack == MOEPACK_STACK_MAIN && number >= main_layers) {
        stack = MOEPACK_STACK_MTP;
        number -= (uint32_t)main_layers;
    }
    uint32_t low = 0, high = state->open.block_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const mpk_source_block *block = &state->open.blocks[middle];
        if (block->stack == (moepack_stack)stack && block->number == number) return middle;
        if ((uint32_t)block->stack < stack || ((uint32_t)block->stack == stack && block->number < number))
            low = middle + 1;
        else
            high = middle;
    }
    return MOEPACK_NO_BLOCK;
}

bool mpk_source_name_kept(const mpk_source_state *state, bool moe_only, const char *text)
{
    mpk_name name;
    mpk_family_match(state->family, text, &name);
    uint32_t block = mpk_source_block_of(state, &name);
    if (block == MOEPACK_NO_BLOCK) return !moe_only;
    const mpk_source_block *b = &state->open.blocks[block];
    if (!b->selected) return false;
    if (name.kind != MPK_NAME_EXPERT || name.expert == UINT64_MAX) return true;
    return name.expert < b->experts && state->open.expert_selected[name.expert];
}

/* ------------------------------------------------------------------------------------------------ blocks */

/* Names of the source, whether a shard holds them or only the index json lists them in a missing one. */
static size_t name_count(const mpk_opening *o)
{
    return (size_t)o->source->tensor_count + o->map.count;
}

static const char *name_at(const mpk_opening *o, size_t i)
{
    return i < o->source->tensor_count ? o->source->tensors[i].name : o->map.entries[i - o->source->tensor_count].name;
}

/* A source uses one naming scheme per stack: with two, one of the copies would be lost. */
static moepack_status choose_prefixes(mpk_opening *o)
{
    const mpk_family *family = o->state->family;
    for (size_t s = 0; s < MPK_STACKS; s++) o->prefix[s] = UINT32_MAX;
    for (size_t i = 0; i < name_count(o); i++) {
        mpk_name name;
        mpk_family_match(family, name_at(o, i), &name);
        if (name.kind == MPK_NAME_TRUNK || name.kind == MPK_NAME_OTHER) continue;
        uint32_t *chosen = &o->prefix[family->prefixes[name.prefix].stack];
        if (*chosen == UINT32_MAX) *chosen = name.prefix;
        if (*chosen == name.prefix) continue;
        mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "MoE blocks are named in two ways, as %s... and as %s...",
                 family->prefixes[*chosen].pattern, family->prefixes[name.prefix].pattern);
        return mpk_source_blame(o, MOEPACK_E_UNSUPPORTED, UINT32_MAX, name_at(o, i));
    }
    for (size_t s = 0; s < MPK_STACKS; s++)
        if (o->prefix[s] != UINT32_MAX) return MOEPACK_OK;
    mpk_fail(o->error, MOEPACK_E_INCOMPLETE, "no tensor of a MoE block was found; %s names them %s...", family->name,
             family->prefixes[0].pattern);
    mpk_error_file(o->error, o->source->dir);
    return MOEPACK_E_INCOMPLETE;
}

/* Only layers of configs that list layers can be. */
static bool is_hashed(const mpk_config *config, uint64_t layer)
{
    return layer < MPK_LISTED_LAYERS && (config->hashed[layer / 64] >> layer % 64 & 1);
}

static moepack_status add_block(mpk_opening *o, moepack_stack stack, uint64_t number, uint64_t layer)
{
    mpk_source_block *block = &o->source->blocks[o->source->block_count];
    const mpk_family *family = o->state->family;
    uint32_t prefix = o->prefix[stack == MOEPACK_STACK_MTP ? MOEPACK_STACK_MAIN : stack];
    for (uint32_t p = 0; prefix == UINT32_MAX; p++) /* the source lacks this stack; its first name serves the message */
        if (family->prefixes[p].stack == stack) prefix = p;
    const char *pattern = family->prefixes[prefix].pattern;
    size_t size = mpk_pattern_fill(pattern, layer, NULL, 0) + 1;
    block->prefix = mpk_arena_alloc(o->source->arena, size);
    if (!block->prefix) return mpk_source_oom(o);
    mpk_pattern_fill(pattern, layer, block->prefix, size);
    block->stack = stack;
    block->number = (uint32_t)number;
    block->experts = (uint32_t)o->state->config.size[MPK_E];
    block->policy = stack == MOEPACK_STACK_MAIN && is_hashed(&o->state->config, number);
    mpk_block_label(stack, block->number, block->label);
    o->source->block_count++;
    return MOEPACK_OK;
}

/* Whether the source has any tensor at all, of whatever kind, of a layer behind the last. */
static bool has_later_layers(const mpk_opening *o)
{
    const char *pattern = o->state->family->prefixes[o->prefix[MOEPACK_STACK_MAIN]].pattern, *rest;
    char layer[128];
    uint64_t number;
    snprintf(layer, sizeof layer, "%.*s.", (int)(strchr(pattern, '}') + 1 - pattern), pattern);
    for (size_t i = 0; i < name_count(o); i++) {
        if (mpk_pattern_match(layer, name_at(o, i), &number, &rest) &&
            number >= o->state->config.stack[MOEPACK_STACK_MAIN].count)
            return true;
    }
    return false;
}

/* Layers behind the last predict further tokens. They have the names of any other layer, or we do not know them. */
static moepack_status check_mtp(mpk_opening *o)
{
    mpk_layers *mtp = &o->state->config.stack[MOEPACK_STACK_MTP];
    const uint64_t layers = o->state->config.stack[MOEPACK_STACK_MAIN].count;
    const char *key = mpk_config_key_name(o->state->family, MPK_KEY_MTP);
    if (mtp->count == 0) return MOEPACK_OK;
    if (o->state->family->mtp_may_lack && !has_later_layers(o)) {
        mpk_source_warn(o, "%s is %" PRIu64 ", but the source has no tensor of such a layer", key, mtp->count);
        mtp->count = 0;
        return MOEPACK_OK;
    }
    uint8_t *seen = calloc((size_t)mtp->count, 1);
    if (!seen) return mpk_source_oom(o);
    for (size_t i = 0; i < name_count(o); i++) {
        mpk_name name;
        mpk_family_match(o->state->family, name_at(o, i), &name);
        if (name.kind != MPK_NAME_ROLE && name.kind != MPK_NAME_EXPERT) continue;
        if (name.layer >= layers && name.layer - layers < mtp->count) seen[name.layer - layers] = 1;
    }
    const uint8_t *hole = memchr(seen, 0, (size_t)mtp->count);
    uint64_t layer = hole ? layers + (uint64_t)(hole - seen) : 0;
    free(seen);
    if (!hole) return MOEPACK_OK;
    mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "%s is %" PRIu64 ", but no MoE block is found for layer %" PRIu64, key,
             mtp->count, layer);
    mpk_error_file(o->error, o->source->dir);
    return MOEPACK_E_UNSUPPORTED;
}

/* Refuses claims that no table should be allocated for. */
static moepack_status check_claims(mpk_opening *o, uint64_t blocks)
{
    const mpk_config *config = &o->state->config;
    uint64_t experts = config->size[MPK_E], limit = (uint64_t)name_count(o) * 16, entries;
    if (limit < TABLE_FLOOR) limit = TABLE_FLOOR;
    uint64_t most = 1; /* sections of the largest form */
    for (uint32_t f = 0; f < o->state->family->form_count; f++) {
        if (o->state->family->forms[f].count > most) most = o->state->family->forms[f].count;
    }
    const mpk_family_form *plain = mpk_family_plain(o->state->family);
    if (plain && plain->count * MPK_FORM_PLANES > most) most = plain->count * MPK_FORM_PLANES;
    bool sane = mpk_mul64(blocks, experts, &entries) && mpk_mul64(entries, most, &entries) && entries <= limit &&
                blocks <= name_count(o);
    if (sane) return MOEPACK_OK;
    mpk_fail(o->error, MOEPACK_E_CORRUPT,
             "config.json claims %" PRIu64 " MoE blocks of %" PRIu64 " experts, the source has %zu tensors", blocks,
             experts, name_count(o));
    mpk_error_file(o->error, o->source->dir);
    return MOEPACK_E_CORRUPT;
}

static moepack_status make_blocks(mpk_opening *o)
{
    const mpk_layers *stacks = o->state->config.stack;
    uint64_t claimed = 0; /* at least one, and each count is below 2^32: config_layers.c made sure */
    for (size_t s = 0; s < MPK_STACKS; s++) claimed += mpk_layers_moe_count(&stacks[s]);
    moepack_status status = check_claims(o, claimed);
    if (!status) status = check_mtp(o);
    if (status) return status;
    size_t blocks = 0, roles = o->state->family->role_count;
    for (size_t s = 0; s < MPK_STACKS; s++) blocks += (size_t)mpk_layers_moe_count(&stacks[s]);
    o->source->blocks = calloc(blocks, sizeof *o->source->blocks);
    o->form = malloc(blocks * sizeof *o->form);
    o->role_tensor = malloc(blocks * roles * sizeof *o->role_tensor);
    if (!o->source->blocks || !o->form || !o->role_tensor) return mpk_source_oom(o);
    memset(o->form, 0xFF, blocks * sizeof *o->form);
    memset(o->role_tensor, 0xFF, blocks * roles * sizeof *o->role_tensor);
    const uint64_t behind = stacks[MOEPACK_STACK_MAIN].count; /* prediction layers count on from there */
    for (uint32_t stack = 0; stack < MPK_STACKS && !status; stack++) {
        const mpk_layers *layers = &stacks[stack];
        for (uint64_t i = mpk_layers_next(layers, 0); i < layers->count && !status; i = mpk_layers_next(layers, i + 1))
            status = add_block(o, (moepack_stack)stack, i, stack == MOEPACK_STACK_MTP ? behind + i : i);
    }
    return status;
}

static moepack_status select_parts(mpk_opening *o)
{
    mpk_source *source = o->source;
    size_t experts = (size_t)o->state->config.size[MPK_E], blocks = source->block_count;
    mpk_selection_block *numbers = calloc(blocks, sizeof *numbers);
    uint8_t *selected = calloc(blocks, 1);
    source->expert_selected = calloc(experts, 1);
    moepack_status status = numbers && selected && source->expert_selected ? MOEPACK_OK : mpk_source_oom(o);
    for (size_t b = 0; b < blocks && !status; b++)
        numbers[b] = (mpk_selection_block){source->blocks[b].stack, source->blocks[b].number};
    if (!status) status = mpk_select_layers(o->options->layers, numbers, blocks, selected, o->error);
    if (!status) status = mpk_select_experts(o->options->experts, experts, source->expert_selected, o->error);
    for (size_t b = 0; b < blocks && !status; b++) source->blocks[b].selected = selected[b];
    free(numbers);
    free(selected);
    return status;
}

/* ------------------------------------------------------------------------------------------------ single tensors */

static moepack_status blame_tensor(mpk_opening *o, moepack_status status, uint32_t tensor)
{
    return mpk_source_blame(o, status, o->source->tensors[tensor].file, o->source->tensors[tensor].name);
}

moepack_status mpk_source_doubled(mpk_opening *o, uint32_t first, uint32_t second)
{
    const mpk_source *source = o->source;
    mpk_fail(o->error, MOEPACK_E_CORRUPT, "tensor is in %s and again in %s",
             source->files[source->tensors[first].file].name, source->files[source->tensors[second].file].name);
    return blame_tensor(o, MOEPACK_E_CORRUPT, second);
}

/* Whether a block has such a tensor, and otherwise which key of the config says that it has not. */
static bool role_wanted(const moepack_policy *policy, mpk_when when, mpk_key *key)
{
    switch (when) {
    case MPK_ALWAYS:
        return true;
    case MPK_IF_BIASED:
        *key = MPK_KEY_METHOD;
        return policy->select == MOEPACK_SELECT_BIASED;
    case MPK_IF_LATENT:
        *key = MPK_KEY_LATENT;
        return policy->latent != 0;
    case MPK_IF_LATENT_NORM:
        *key = MPK_KEY_LATENT_NORM;
        return policy->latent_norm != 0;
    case MPK_IF_SHARED:
        *key = MPK_KEY_SHARED;
        return policy->shared_width != 0;
    case MPK_IF_SHARED_GATED:
        *key = MPK_KEY_SHARED_WIDTH;
        return policy->shared_width != 0 && policy->shared_gate != MOEPACK_SHARED_GATE_NONE;
    case MPK_IF_LOGIT_BIAS:
        return policy->logit_bias != 0;
    case MPK_IF_TOKEN_TABLE:
        *key = MPK_KEY_LAYER_TYPES;
        return policy->token_ids != 0;
    }
    return false;
}

static moepack_status assign_role(mpk_opening *o, uint32_t tensor, uint32_t block, const mpk_name *name)
{
    const mpk_family_role *role = name->role;
    mpk_source_tensor *t = &o->source->tensors[tensor];
    const mpk_family *family = o->state->family;
    mpk_key key = MPK_KEY_COUNT;
    if (!role_wanted(&o->source->policies[o->source->blocks[block].policy].policy, role->when, &key)) {
        mpk_fail(o->error, MOEPACK_E_CORRUPT, "config.json (%s) says that there is no such tensor",
                 mpk_config_key_name(family, key));
        return blame_tensor(o, MOEPACK_E_CORRUPT, tensor);
    }
    if (mpk_family_role_has_forms(role)) return mpk_parts_add_role(o, tensor, block, name);
    moepack_status status = mpk_source_check_shape(o, tensor, role->dims, role->rank, MPK_SEPARATE);
    if (status) return status;
    bool table = role->role == MOEPACK_ROLE_TOKEN_TABLE;
    moepack_encoding encoding =
        table ? mpk_table_encoding((moepack_dtype)t->dtype) : mpk_dense_encoding((moepack_dtype)t->dtype);
    if (encoding == MOEPACK_ENC_NONE) {
        mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "dtype is %s; supported here: %s",
                 moepack_dtype_name((moepack_dtype)t->dtype), table ? "I64, I32" : "BF16, F16, F32");
        return blame_tensor(o, MOEPACK_E_UNSUPPORTED, tensor);
    }
    uint32_t *slot = &o->role_tensor[block * family->role_count + (uint32_t)(role - family->roles)];
    if (*slot != MPK_NO_TENSOR && o->source->blocks[block].selected) return mpk_source_doubled(o, *slot, tensor);
    *slot = tensor;
    t->role = (uint16_t)role->role;
    t->plane = MOEPACK_PLANE_WEIGHT;
    t->encoding = (uint16_t)encoding;
    return MOEPACK_OK;
}

/* Storage form and section by name and dtype: one name may be stored in several types. Returns how many forms have such
 * a section; of several the known form is taken, else the first. */
static uint32_t find_section(const mpk_family *family, const char *suffix, moepack_dtype dtype, uint32_t known,
                             uint32_t *form, uint32_t *section)
{
    uint64_t number;
    uint32_t found = 0;
    for (uint32_t f = 0; f < family->form_count; f++) {
        for (uint32_t s = 0; s < family->forms[f].count; s++) {
            const mpk_family_section *candidate = &family->forms[f].sections[s];
            if (candidate->dtype != dtype || !mpk_pattern_match(candidate->pattern, suffix, &number, NULL)) continue;
            if (found++ > 0 && f != known) break;
            *form = f;
            *section = s;
            break;
        }
    }
    return found;
}

static moepack_status two_forms(mpk_opening *o, uint32_t tensor, const char *other)
{
    mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "experts of one block are stored in two ways, this one and %s", other);
    return blame_tensor(o, MOEPACK_E_UNSUPPORTED, tensor);
}

/* Fused experts: the first tensor of a block decides the form of all of them. */
static moepack_status settle_form(mpk_opening *o, uint32_t tensor, uint32_t block, uint32_t form)
{
    mpk_source_block *b = &o->source->blocks[block];
    const mpk_family_form *forms = o->state->family->forms;
    if (o->form[block] == form) return MOEPACK_OK;
    if (o->form[block] != UINT32_MAX) {
        mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "experts of one block are stored in two forms, %s and %s",
                 forms[o->form[block]].name, forms[form].name);
        return blame_tensor(o, MOEPACK_E_UNSUPPORTED, tensor);
    }
    moepack_status status = mpk_source_schema_of(o, form, &b->schema);
    if (status) return blame_tensor(o, status, tensor);
    o->form[block] = form;
    size_t entries = (size_t)b->experts * forms[form].count;
    b->section = malloc(entries * sizeof *b->section);
    if (!b->section) return mpk_source_oom(o);
    memset(b->section, 0xFF, entries * sizeof *b->section);
    return MOEPACK_OK;
}

static moepack_status fill_slots(mpk_opening *o, uint32_t tensor, uint32_t block, uint32_t section, uint64_t expert)
{
    mpk_source_block *b = &o->source->blocks[block];
    uint32_t count = o->state->family->forms[o->form[block]].count;
    bool fused = expert == UINT64_MAX;
    for (uint64_t e = fused ? 0 : expert; e < (fused ? b->experts : expert + 1); e++) {
        if (!b->selected || !o->source->expert_selected[e]) continue;
        uint32_t *slot = &b->section[e * count + section];
        if (*slot != MPK_NO_TENSOR) return mpk_source_doubled(o, *slot, tensor);
        *slot = tensor;
    }
    return MOEPACK_OK;
}

static moepack_status assign_expert(mpk_opening *o, uint32_t tensor, uint32_t block, const mpk_name *name)
{
    const mpk_source_tensor *t = &o->source->tensors[tensor];
    const mpk_family *family = o->state->family;
    const mpk_source_block *b = &o->source->blocks[block];
    if (name->expert != UINT64_MAX && name->expert >= b->experts) {
        mpk_fail(o->error, MOEPACK_E_CORRUPT, "tensor of expert %" PRIu64 ", but config.json has %s %" PRIu32,
                 name->expert, mpk_config_key_name(family, MPK_KEY_EXPERTS), b->experts);
        return blame_tensor(o, MOEPACK_E_CORRUPT, tensor);
    }
    if (name->part != UINT32_MAX) {
        if (o->form[block] == UINT32_MAX) return mpk_parts_add(o, tensor, block, name);
        return two_forms(o, tensor, family->forms[o->form[block]].name);
    }
    if (mpk_parts_hold(o, block)) return two_forms(o, tensor, "one tensor per matrix");
    uint32_t form = 0, section = 0;
    uint32_t found = find_section(family, name->suffix, (moepack_dtype)t->dtype, o->form[block], &form, &section);
    if (found > 1 && o->form[block] == UINT32_MAX && !o->settle) {
        o->deferred[o->deferred_count++] = tensor;
        return MOEPACK_OK;
    }
    if (found == 0) {
        mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "dtype %s is in no storage form of %s",
                 moepack_dtype_name((moepack_dtype)t->dtype), family->name);
        return blame_tensor(o, MOEPACK_E_UNSUPPORTED, tensor);
    }
    moepack_status status = settle_form(o, tensor, block, form);
    const mpk_family_section *shape = &family->forms[form].sections[section];
    const mpk_fusion fusion = name->expert != UINT64_MAX ? MPK_SEPARATE : shape->flat ? MPK_FLAT : MPK_FUSED;
    if (!status) status = mpk_source_check_shape(o, tensor, shape->dims, shape->rank, fusion);
    return status ? status : fill_slots(o, tensor, block, section, name->expert);
}

/* A tensor that looks like a MoE block's where config.json has none. */
static moepack_status outside(mpk_opening *o, uint32_t tensor, const mpk_name *name)
{
    const mpk_config *config = &o->state->config;
    const mpk_family *family = o->state->family;
    if (name->kind == MPK_NAME_OTHER) return MOEPACK_OK; /* dense layers may share the prefix */
    const mpk_layers *layers = &config->stack[family->prefixes[name->prefix].stack];
    if (name->layer >= layers->count) {
        mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "layer %" PRIu32 " is beyond %s %" PRIu64 " and %s %" PRIu64,
                 name->layer, mpk_config_key_name(family, MPK_KEY_LAYERS), layers->count,
                 mpk_config_key_name(family, MPK_KEY_MTP), config->stack[MOEPACK_STACK_MTP].count);
        return blame_tensor(o, MOEPACK_E_UNSUPPORTED, tensor);
    }
    char rule[160];
    mpk_config_layer_rule(config, rule, sizeof rule);
    mpk_fail(o->error, MOEPACK_E_CORRUPT, "tensor of a MoE block, but config.json makes layer %" PRIu32 " dense (%s)",
             name->layer, rule);
    return blame_tensor(o, MOEPACK_E_CORRUPT, tensor);
}

static moepack_status assign(mpk_opening *o, uint32_t tensor)
{
    mpk_name name;
    mpk_family_match(o->state->family, o->source->tensors[tensor].name, &name);
    if (name.kind == MPK_NAME_TRUNK) return MOEPACK_OK;
    uint32_t block = mpk_source_block_of(o->state, &name);
    if (block == MOEPACK_NO_BLOCK) return outside(o, tensor, &name);
    o->source->tensors[tensor].block = block;
    switch (name.kind) {
    case MPK_NAME_ROLE:
        return assign_role(o, tensor, block, &name);
    case MPK_NAME_EXPERT:
        return assign_expert(o, tensor, block, &name);
    case MPK_NAME_UNKNOWN_EXPERT:
        mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "an expert's tensor that no storage form of %s has",
                 o->state->family->name);
        return blame_tensor(o, MOEPACK_E_UNSUPPORTED, tensor);
    default:
        if (o->state->family->strict) {
            mpk_fail(o->error, MOEPACK_E_UNSUPPORTED, "a MoE block's tensor that no table of %s has",
                     o->state->family->name);
            return blame_tensor(o, MOEPACK_E_UNSUPPORTED, tensor);
        }
        if (o->unknown++ == 0) o->first_unknown = o->source->tensors[tensor].name;
        return MOEPACK_OK;
    }
}

/* ------------------------------------------------------------------------------------------------ completeness */

moepack_status mpk_source_missing(mpk_opening *o, const mpk_source_block *block, const char *suffix, int64_t expert)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", block->prefix, suffix);
    mpk_fail(o->error, MOEPACK_E_INCOMPLETE, "tensor is in no shard");
    mpk_error_file(o->error, o->source->dir);
    mpk_error_layer(o->error, block->label);
    mpk_error_expert(o->error, expert);
    mpk_error_tensor(o->error, name, -1);
    return MOEPACK_E_INCOMPLETE;
}

static moepack_status check_experts(mpk_opening *o, uint32_t block)
{
    const mpk_source_block *b = &o->source->blocks[block];
    const mpk_family_form *form = &o->state->family->forms[o->form[block] == UINT32_MAX ? 0 : o->form[block]];
    if (mpk_parts_hold(o, block)) return mpk_parts_settle(o, block);
    for (uint32_t e = 0; e < b->experts; e++) {
        if (!o->source->expert_selected[e]) continue;
        for (uint32_t s = 0; s < form->count; s++) {
            if (b->section && b->section[(size_t)e * form->count + s] != MPK_NO_TENSOR) continue;
            char suffix[128];
            mpk_pattern_fill(form->sections[s].pattern, e, suffix, sizeof suffix);
            return mpk_source_missing(o, b, suffix, e);
        }
    }
    return MOEPACK_OK;
}

static moepack_status check_block(mpk_opening *o, uint32_t block)
{
    const mpk_family *family = o->state->family;
    const mpk_source_block *b = &o->source->blocks[block];
    for (uint32_t r = 0; r < family->role_count; r++) {
        mpk_key key;
        if (!role_wanted(&o->source->policies[b->policy].policy, family->roles[r].when, &key)) continue;
        if (mpk_family_role_has_forms(&family->roles[r])) {
            moepack_status status = mpk_parts_settle_role(o, block, &family->roles[r]);
            if (status) return status;
        } else if (o->role_tensor[block * family->role_count + r] == MPK_NO_TENSOR)
            return mpk_source_missing(o, b, family->roles[r].name, -1);
    }
    return check_experts(o, block);
}

/* Blocks outside the selection may lack everything; their tables then are empty ones of the first schema. */
static moepack_status complete_unselected(mpk_opening *o, uint32_t block)
{
    mpk_source_block *b = &o->source->blocks[block];
    if (b->section) return MOEPACK_OK;
    size_t entries = (size_t)b->experts * o->source->schemas[0].count;
    b->section = malloc(entries * sizeof *b->section);
    if (!b->section) return mpk_source_oom(o);
    memset(b->section, 0xFF, entries * sizeof *b->section);
    b->schema = 0;
    return MOEPACK_OK;
}

static moepack_status check_complete(mpk_opening *o)
{
    moepack_status status = MOEPACK_OK;
    for (uint32_t b = 0; b < o->source->block_count && !status; b++) {
        if (o->source->blocks[b].selected) status = check_block(o, b);
    }
    for (uint32_t b = 0; b < o->source->block_count && !status; b++) {
        if (!o->source->blocks[b].selected) status = complete_unselected(o, b);
    }
    return status;
}

static void compare_quant(mpk_opening *o)
{
    const char *claimed = o->state->config.quant;
    for (uint32_t b = 0; b < o->source->block_count; b++) {
        if (o->form[b] == UINT32_MAX) continue;
        const mpk_family_form *form = &o->state->family->forms[o->form[b]];
        if (strcmp(form->quant ? form->quant : "", claimed) == 0) continue;
        mpk_source_warn(o, "quantization_config says %s, the experts are stored as %s: the tensors decide",
                        claimed[0] ? claimed : "nothing", form->name);
        return;
    }
}

/* ------------------------------------------------------------------------------------------------ policies */

static moepack_status override(mpk_opening *o, const char *text, mpk_source_policy *into)
{
    const char *equals = strchr(text, '=');
    char key[64];
    if (!equals || (size_t)(equals - text) >= sizeof key)
        return mpk_fail(o->error, MOEPACK_E_USAGE, "policy \"%.80s\" is not KEY=VALUE", text);
    snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
    moepack_policy before = into->policy;
    moepack_status status = moepack_policy_set(&into->policy, key, equals + 1, o->error);
    if (status) return status;
    if (!moepack_policy_same_structure(&before, &into->policy))
        return mpk_fail(o->error, MOEPACK_E_USAGE, "policy %.80s: this field follows from the tensors", text);
    for (size_t i = 0; i < moepack_policy_key_count(); i++) {
        const char *name;
        char value[64];
        if (moepack_policy_get(&into->policy, i, &name, value, sizeof value) == MOEPACK_OK && strcmp(name, key) == 0)
            into->overridden |= (uint64_t)1 << i;
    }
    return MOEPACK_OK;
}

static moepack_status make_policy(mpk_opening *o, mpk_source_policy *policy)
{
    moepack_status status = MOEPACK_OK;
    for (size_t i = 0; i < o->options->policy_count && !status; i++)
        status = override(o, o->options->policy[i], policy);
    if (status || o->options->policy_count == 0) return status;
    return moepack_policy_check(&policy->policy, o->state->config.size[MPK_E], o->error);
}

/* One record for all blocks, and a second one where some choose experts by token id: they have a table and no bias. */
static moepack_status make_policies(mpk_opening *o)
{
    bool hashed = false;
    for (uint32_t b = 0; b < o->source->block_count; b++) hashed = hashed || o->source->blocks[b].policy != 0;
    o->source->policies = calloc(2, sizeof *o->source->policies);
    if (!o->source->policies) return mpk_source_oom(o);
    o->source->policy_count = hashed ? 2 : 1;
    for (uint32_t i = 0; i < 2; i++) o->source->policies[i].policy = o->state->config.policy;
    o->source->policies[1].policy.select = MOEPACK_SELECT_TOKEN_TABLE;
    o->source->policies[1].policy.token_ids = 1;
    moepack_status status = MOEPACK_OK;
    for (uint32_t i = 0; i < o->source->policy_count && !status; i++) status = make_policy(o, &o->source->policies[i]);
    return status;
}

/* ------------------------------------------------------------------------------------------------ all of it */

moepack_status mpk_source_resolve(mpk_opening *o)
{
    uint32_t forms = o->state->family->form_count;
    o->form_schema = malloc(forms * sizeof *o->form_schema);
    o->source->schemas = calloc(forms, sizeof *o->source->schemas);
    o->deferred = calloc((size_t)o->source->tensor_count + 1, sizeof *o->deferred);
    if (!o->form_schema || !o->source->schemas || !o->deferred) return mpk_source_oom(o);
    memset(o->form_schema, 0xFF, forms * sizeof *o->form_schema);

    moepack_status status = choose_prefixes(o);
    if (!status) status = make_blocks(o);
    if (!status) status = select_parts(o);
    if (!status) status = make_policies(o);
    if (!status) status = mpk_parts_new(o);
    for (uint32_t i = 0; i < o->source->tensor_count && !status; i++) status = assign(o, i);
    o->settle = true;
    for (size_t i = 0; i < o->deferred_count && !status; i++) status = assign(o, o->deferred[i]);
    if (!status) status = mpk_source_check_index(o);
    if (!status) status = check_complete(o);
    if (status) return status;
    if (o->unknown)
        mpk_source_warn(o, "%zu tensors of MoE blocks are not known to %s and take no part in them, the first is %s",
                        o->unknown, o->state->family->name, o->first_unknown);
    compare_quant(o);
    return MOEPACK_OK;
}
