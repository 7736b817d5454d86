/* Which tensors a synthetic checkpoint has, how large they are and which shard they are in. Pure: no files. */
#include "synth.h"

#include "rng.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const mpk_synth_family *const families[] = {&mpk_synth_kimi_k3};

const mpk_synth_family *mpk_synth_family_get(size_t i)
{
    return i < sizeof families / sizeof families[0] ? families[i] : NULL;
}

const mpk_synth_family *mpk_synth_family_find(const char *name)
{
    for (size_t i = 0; mpk_synth_family_get(i) != NULL; i++) {
        if (strcmp(families[i]->name, name) == 0) return families[i];
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- tensors */

unsigned mpk_synth_parts(const mpk_synth_tensor *tensor)
{
    return tensor->store == MPK_SYNTH_MXFP4 ? 2 : 1;
}

size_t mpk_synth_atom_tensors(const mpk_synth_plan *plan, const mpk_synth_atom *atom)
{
    if (atom->expert < 0) return 1;
    size_t end = atom->tensor;
    while (end < plan->family->tensor_count && plan->family->tensors[end].place == MPK_SYNTH_EXPERT) end++;
    return end - atom->tensor;
}

/* Copies a name pattern with {layer} and {expert} replaced. Patterns are ours: at most about 100 characters. */
static void expand(const char *pattern, const mpk_synth_atom *atom, char name[MPK_SYNTH_NAME])
{
    size_t at = 0;
    while (*pattern != '\0' && at + 16 < MPK_SYNTH_NAME) {
        if (strncmp(pattern, "{layer}", 7) == 0) {
            at += (size_t)snprintf(name + at, MPK_SYNTH_NAME - at, "%" PRIu32, atom->layer);
            pattern += 7;
        } else if (strncmp(pattern, "{expert}", 8) == 0) {
            at += (size_t)snprintf(name + at, MPK_SYNTH_NAME - at, "%" PRId32, atom->expert);
            pattern += 8;
        } else {
            name[at++] = *pattern++;
        }
    }
    name[at] = '\0';
}

/* No product can overflow: mpk_synth_plan_make has checked the largest of them. */
void mpk_synth_item_make(const mpk_synth_plan *plan, const mpk_synth_atom *atom, const mpk_synth_tensor *tensor,
                         unsigned part, mpk_synth_item *item)
{
    static const char *const suffix[2] = {"_packed", "_scale"};
    static const unsigned columns_per_byte[2] = {2, MPK_SYNTH_BLOCK};
    uint64_t rows = plan->dims[tensor->rows], cols = plan->dims[tensor->cols];
    expand(tensor->name, atom, item->name);
    if (tensor->store == MPK_SYNTH_MXFP4) {
        strcat(item->name, suffix[part]);
        cols /= columns_per_byte[part];
        item->dtype = MOEPACK_DTYPE_U8;
    } else {
        item->dtype = tensor->store == MPK_SYNTH_BF16 ? MOEPACK_DTYPE_BF16 : MOEPACK_DTYPE_F32;
    }
    item->rank = tensor->rank;
    item->dims[0] = tensor->rank == 2 ? rows : cols;
    item->dims[1] = tensor->rank == 2 ? cols : 0;
    item->bytes = rows * cols * (moepack_dtype_bits(item->dtype) / 8);
}

static moepack_status atom_visit(const mpk_synth_plan *plan, const mpk_synth_atom *atom, mpk_synth_visit *visit,
                                 void *user, moepack_error *error)
{
    size_t end = atom->tensor + mpk_synth_atom_tensors(plan, atom);
    for (size_t t = atom->tensor; t < end; t++) {
        const mpk_synth_tensor *tensor = &plan->family->tensors[t];
        for (unsigned part = 0; part < mpk_synth_parts(tensor); part++) {
            mpk_synth_item item;
            mpk_synth_item_make(plan, atom, tensor, part, &item);
            moepack_status status = visit(user, &item, error);
            if (status != MOEPACK_OK) return status;
        }
    }
    return MOEPACK_OK;
}

moepack_status mpk_synth_shard_visit(const mpk_synth_plan *plan, uint32_t shard, mpk_synth_visit *visit, void *user,
                                     moepack_error *error)
{
    for (size_t i = 0; i < plan->atom_count; i++) {
        if (plan->atoms[i].shard < shard) continue;
        if (plan->atoms[i].shard > shard) break;
        moepack_status status = atom_visit(plan, &plan->atoms[i], visit, user, error);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}

void mpk_synth_shard_name(const mpk_synth_plan *plan, uint32_t shard, char name[MPK_SYNTH_FILE])
{
    snprintf(name, MPK_SYNTH_FILE, "model-%05" PRIu32 "-of-%06" PRIu32 ".safetensors", shard + 1, plan->shard_count);
}

/* ------------------------------------------------------------------------------------------------- checks */

/* Every size fits 31 bits (they become numbers of a config file that many programs read as int); products are checked.
 */
static moepack_status check_geometry(const mpk_synth_geometry *g, moepack_error *error)
{
    const struct {
        const char *option;
        uint64_t value, least;
    } sizes[] = {{"--hidden", g->hidden, 1},
                 {"--latent", g->latent, 0},
                 {"--intermediate", g->intermediate, 1},
                 {"--experts", g->experts, 1},
                 {"--top-k", g->top_k, 1},
                 {"--shared", g->shared, 0},
                 {"--layers", g->layers, 1},
                 {"--first-dense", g->first_dense, 0},
                 {"--dense-intermediate", g->dense_intermediate, 1},
                 {"--vocab", g->vocab, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value < sizes[i].least || sizes[i].value > INT32_MAX) {
            return mpk_synth_fail(error, MOEPACK_E_USAGE, 0,
                                  "%s must be between %" PRIu64 " and %" PRId32 ", not %" PRIu64, sizes[i].option,
                                  sizes[i].least, INT32_MAX, sizes[i].value);
        }
    }
    if (g->latent % MPK_SYNTH_BLOCK != 0) {
        return mpk_synth_fail(error, MOEPACK_E_USAGE, 0,
                              "--latent must be a multiple of 32 (MXFP4 blocks), not %" PRIu64, g->latent);
    }
    if (g->latent == 0 && g->hidden % MPK_SYNTH_BLOCK != 0) {
        return mpk_synth_fail(error, MOEPACK_E_USAGE, 0,
                              "--hidden must be a multiple of 32 (MXFP4 blocks) without a latent space, not %" PRIu64,
                              g->hidden);
    }
    if (g->intermediate % MPK_SYNTH_BLOCK != 0) {
        return mpk_synth_fail(error, MOEPACK_E_USAGE, 0,
                              "--intermediate must be a multiple of 32 (MXFP4 blocks), not %" PRIu64, g->intermediate);
    }
    if (g->top_k > g->experts) {
        return mpk_synth_fail(error, MOEPACK_E_USAGE, 0, "--top-k %" PRIu64 " is more than --experts %" PRIu64,
                              g->top_k, g->experts);
    }
    if (g->first_dense > g->layers) {
        return mpk_synth_fail(error, MOEPACK_E_USAGE, 0, "--first-dense %" PRIu64 " is more than --layers %" PRIu64,
                              g->first_dense, g->layers);
    }
    return MOEPACK_OK;
}

static void set_dims(mpk_synth_plan *plan)
{
    const mpk_synth_geometry *g = &plan->geometry;
    plan->dims[MPK_SYNTH_ONE] = 1;
    plan->dims[MPK_SYNTH_HIDDEN] = g->hidden;
    plan->dims[MPK_SYNTH_WIDTH] = g->latent == 0 ? g->hidden : g->latent;
    plan->dims[MPK_SYNTH_INTERMEDIATE] = g->intermediate;
    plan->dims[MPK_SYNTH_EXPERTS] = g->experts;
    plan->dims[MPK_SYNTH_SHARED] = g->shared * g->intermediate; /* below 2^62 */
    plan->dims[MPK_SYNTH_DENSE] = g->dense_intermediate;
    plan->dims[MPK_SYNTH_VOCAB] = g->vocab;
    plan->dims[MPK_SYNTH_ATTENTION] = MPK_SYNTH_HEAD_COUNT * MPK_SYNTH_HEAD_WIDTH;
    plan->dims[MPK_SYNTH_HEADS] = MPK_SYNTH_HEAD_COUNT;
}

static bool wanted(const mpk_synth_plan *plan, const mpk_synth_tensor *tensor)
{
    switch (tensor->need) {
    case MPK_SYNTH_NEEDS_LATENT:
        return plan->geometry.latent != 0;
    case MPK_SYNTH_NEEDS_SHARED:
        return plan->geometry.shared != 0;
    case MPK_SYNTH_ALWAYS:
        break;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------- layout */

/* Bytes of names and punctuation that one tensor costs in its shard's header and in the index, at most. */
enum {
    HEADER_BYTES_PER_TENSOR = 2 * MPK_SYNTH_NAME + 256,
    SIDE_FILE_BYTES = 1 << 16
};

/* Adds an atom's size to the plan's totals; false when 2^62 bytes are exceeded. */
static bool add_size(mpk_synth_plan *plan, const mpk_synth_atom *atom, uint64_t *bytes)
{
    static const uint64_t limit = UINT64_C(1) << 62;
    *bytes = 0;
    size_t end = atom->tensor + mpk_synth_atom_tensors(plan, atom);
    for (size_t t = atom->tensor; t < end; t++) {
        const mpk_synth_tensor *tensor = &plan->family->tensors[t];
        uint64_t count, rows = plan->dims[tensor->rows], cols = plan->dims[tensor->cols];
        if (__builtin_mul_overflow(rows, cols, &count) || count > limit / 8) return false;
        for (unsigned part = 0; part < mpk_synth_parts(tensor); part++) {
            mpk_synth_item item;
            mpk_synth_item_make(plan, atom, tensor, part, &item);
            *bytes += item.bytes;
            plan->tensors++;
        }
    }
    plan->total_bytes += *bytes;
    return plan->total_bytes <= limit && *bytes <= limit;
}

/* Atoms of one place for one layer; with atoms == NULL only their number. */
static size_t place_atoms(const mpk_synth_plan *plan, mpk_synth_place place, uint32_t layer, mpk_synth_atom *atoms)
{
    size_t count = 0;
    for (size_t t = 0; t < plan->family->tensor_count; t++) {
        const mpk_synth_tensor *tensor = &plan->family->tensors[t];
        if (tensor->place != place || !wanted(plan, tensor)) continue;
        if (atoms != NULL) atoms[count] = (mpk_synth_atom){.layer = layer, .expert = -1, .tensor = (uint32_t)t};
        count++;
    }
    return count;
}

static uint32_t first_expert_tensor(const mpk_synth_family *family)
{
    uint32_t t = 0;
    while (family->tensors[t].place != MPK_SYNTH_EXPERT) t++;
    return t;
}

static size_t expert_atoms(const mpk_synth_plan *plan, uint32_t layer, uint32_t *order, mpk_synth_atom *atoms)
{
    char name[64];
    uint32_t count = (uint32_t)plan->geometry.experts, tensor = first_expert_tensor(plan->family);
    snprintf(name, sizeof name, "expert order of layer %" PRIu32, layer);
    mpk_synth_shuffle(mpk_synth_key(plan->seed, name), order, count);
    for (uint32_t i = 0; i < count; i++) {
        atoms[i] = (mpk_synth_atom){.layer = layer, .expert = (int32_t)order[i], .tensor = tensor};
    }
    return count;
}

static void fill_atoms(mpk_synth_plan *plan, uint32_t *order)
{
    mpk_synth_atom *at = plan->atoms;
    at += place_atoms(plan, MPK_SYNTH_AT_START, 0, at);
    for (uint32_t layer = 0; layer < plan->geometry.layers; layer++) {
        bool dense = layer < plan->geometry.first_dense;
        at += place_atoms(plan, MPK_SYNTH_EVERY_LAYER, layer, at);
        at += place_atoms(plan, dense ? MPK_SYNTH_DENSE_LAYER : MPK_SYNTH_MOE_LAYER, layer, at);
        if (!dense) at += expert_atoms(plan, layer, order, at);
    }
    place_atoms(plan, MPK_SYNTH_AT_END, (uint32_t)plan->geometry.layers - 1, at);
}

/* Number of atoms, in 64 bits: 2^31 layers of 2^31 experts overflow nothing. */
static uint64_t count_atoms(const mpk_synth_plan *plan)
{
    const mpk_synth_geometry *g = &plan->geometry;
    uint64_t moe_layers = g->layers - g->first_dense;
    return place_atoms(plan, MPK_SYNTH_AT_START, 0, NULL) + place_atoms(plan, MPK_SYNTH_AT_END, 0, NULL) +
           g->layers * place_atoms(plan, MPK_SYNTH_EVERY_LAYER, 0, NULL) +
           g->first_dense * place_atoms(plan, MPK_SYNTH_DENSE_LAYER, 0, NULL) +
           moe_layers * (place_atoms(plan, MPK_SYNTH_MOE_LAYER, 0, NULL) + g->experts);
}

/* One shard per layer; what comes before the first and after the last layer joins these. */
static void shards_by_layer(mpk_synth_plan *plan)
{
    for (size_t i = 0; i < plan->atom_count; i++) plan->atoms[i].shard = plan->atoms[i].layer;
}

/* Shards of about equal size, none empty: a shard ends with the atom that reaches its share of all bytes, or as soon as
 * there is only one atom left for each further shard. */
static void shards_by_size(mpk_synth_plan *plan, const uint64_t *bytes)
{
    uint32_t shard = 0;
    uint64_t before = 0;
    bool empty = true;
    for (size_t i = 0; i < plan->atom_count; i++) {
        size_t atoms_left = plan->atom_count - i;
        uint32_t shards_left = plan->shard_count - shard - 1; /* after the current one */
        bool full = (double)before >= (double)plan->total_bytes / plan->shard_count * (shard + 1.0);
        if (!empty && shards_left > 0 && (full || atoms_left <= shards_left)) {
            shard++;
        }
        plan->atoms[i].shard = shard;
        empty = false;
        before += bytes[i];
    }
}

static moepack_status layout(mpk_synth_plan *plan, uint64_t shards, uint64_t *bytes, uint32_t *order,
                             moepack_error *error)
{
    fill_atoms(plan, order);
    for (size_t i = 0; i < plan->atom_count; i++) {
        if (!add_size(plan, &plan->atoms[i], &bytes[i])) {
            return mpk_synth_fail(error, MOEPACK_E_USAGE, 0, "a checkpoint of this size would exceed 2^62 bytes");
        }
    }
    if (shards > plan->atom_count) {
        return mpk_synth_fail(error, MOEPACK_E_USAGE, 0,
                              "--shards %" PRIu64 " is more than the %zu tensors and experts there are to distribute",
                              shards, plan->atom_count);
    }
    plan->shard_count = (uint32_t)(shards == 0 ? plan->geometry.layers : shards);
    if (plan->shard_count == plan->geometry.layers) {
        shards_by_layer(plan);
    } else {
        shards_by_size(plan, bytes);
    }
    plan->experts = (plan->geometry.layers - plan->geometry.first_dense) * plan->geometry.experts;
    plan->disk_bytes = plan->total_bytes + plan->tensors * HEADER_BYTES_PER_TENSOR +
                       plan->shard_count * UINT64_C(4096) + SIDE_FILE_BYTES;
    return MOEPACK_OK;
}

moepack_status mpk_synth_plan_make(mpk_synth_plan *plan, const mpk_synth_family *family,
                                   const mpk_synth_geometry *geometry, uint64_t seed, uint64_t shards,
                                   moepack_error *error)
{
    memset(plan, 0, sizeof *plan);
    moepack_status status = check_geometry(geometry, error);
    if (status != MOEPACK_OK) return status;
    plan->family = family;
    plan->geometry = *geometry;
    plan->seed = seed;
    set_dims(plan);
    uint64_t count = count_atoms(plan);
    if (count > UINT32_MAX) {
        return mpk_synth_fail(error, MOEPACK_E_USAGE, 0,
                              "%" PRIu64 " experts and tensors are more than the 4294967295 that fit one checkpoint",
                              count);
    }
    plan->atom_count = (size_t)count;
    plan->atoms = calloc(plan->atom_count, sizeof *plan->atoms);
    uint64_t *bytes = calloc(plan->atom_count, sizeof *bytes);
    uint32_t *order = calloc((size_t)geometry->experts, sizeof *order);
    if (plan->atoms == NULL || bytes == NULL || order == NULL) {
        status = mpk_synth_fail(error, MOEPACK_E_REFUSED, 0,
                                "not enough memory to plan %" PRIu64 " experts and tensors", count);
    } else {
        status = layout(plan, shards, bytes, order, error);
    }
    free(bytes);
    free(order);
    if (status != MOEPACK_OK) mpk_synth_plan_free(plan);
    return status;
}

void mpk_synth_plan_free(mpk_synth_plan *plan)
{
    free(plan->atoms);
    plan->atoms = NULL;
    plan->atom_count = 0;
}
