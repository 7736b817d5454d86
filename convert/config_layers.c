/* Which layers are MoE blocks: by first layer and step, by lists, by a type or a letter for each layer, in one stack or
 * in an encoder and a decoder. */
#include "config_internal.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------ rules */

static bool is_listed_dense(const mpk_layers *layers, uint64_t layer)
{
    return layers->listed && layer < MPK_LISTED_LAYERS && (layers->dense[layer / 64] >> layer % 64 & 1);
}

uint64_t mpk_layers_next(const mpk_layers *layers, uint64_t layer)
{
    uint64_t step = layers->step, offset = layers->offset;
    if (step == 0) return layers->count;
    if (layer < layers->first_dense) layer = layers->first_dense;
    layer = (layer + offset + step - 1) / step * step - offset; /* all far below 2^64 */
    while (layer < layers->count && is_listed_dense(layers, layer)) layer += step;
    return layer < layers->count ? layer : layers->count;
}

bool mpk_layers_is_moe(const mpk_layers *layers, uint64_t layer)
{
    return layer < layers->count && mpk_layers_next(layers, layer) == layer;
}

uint64_t mpk_layers_moe_count(const mpk_layers *layers)
{
    uint64_t count = 0, layer = mpk_layers_next(layers, 0);
    if (!layers->listed) return layer < layers->count ? (layers->count - 1 - layer) / layers->step + 1 : 0;
    for (; layer < layers->count; layer = mpk_layers_next(layers, layer + 1)) count++;
    return count;
}

void mpk_config_layer_rule(const mpk_config *config, char *buf, size_t size)
{
    const mpk_layers *main = &config->stack[MOEPACK_STACK_MAIN];
    const struct {
        mpk_key key;
        uint64_t value;
        bool list;
    } parts[] = {
        {MPK_KEY_FIRST_DENSE, main->first_dense, false},
        {MPK_KEY_LAYER_STEP, main->step, false},
        {MPK_KEY_SPARSE_STEP, main->step, false},
        {MPK_KEY_ENCODER_STEP, config->stack[MOEPACK_STACK_ENCODER].step, false},
        {MPK_KEY_DECODER_STEP, config->stack[MOEPACK_STACK_DECODER].step, false},
        {MPK_KEY_DENSE_LAYERS, 0, true},
        {MPK_KEY_MOE_LAYERS, 0, true},
        {MPK_KEY_PATTERN, 0, true},
    };
    size_t used = 0;
    snprintf(buf, size, "every layer");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && used < size; i++) {
        if (!mpk_config_has_key(config->family, parts[i].key)) continue;
        const char *name = mpk_config_key_name(config->family, parts[i].key), *comma = used ? ", " : "";
        used += parts[i].list ? (size_t)snprintf(buf + used, size - used, "%s%s", comma, name)
                              : (size_t)snprintf(buf + used, size - used, "%s%s %llu", comma, name,
                                                 (unsigned long long)parts[i].value);
    }
}

/* ------------------------------------------------------------------------------------------------ from the keys */

static void mark(uint64_t *bits, uint64_t layer)
{
    bits[layer / 64] |= UINT64_C(1) << layer % 64;
}

static void mark_dense(mpk_layers *layers, uint64_t layer)
{
    mark(layers->dense, layer);
    layers->listed = true;
}

/* What families without names of their own call their layers. */
static const mpk_family_name usual_types[] = {
    {MPK_KEY_LAYER_TYPES, "dense", MPK_LAYER_DENSE},
    {MPK_KEY_LAYER_TYPES, "sparse", MPK_LAYER_MOE},
};

static moepack_status type_of(const reader *r, mpk_key key, const char *text, size_t length, mpk_layer_type *type)
{
    const mpk_family_name *names = r->family->names;
    size_t count = r->family->name_count;
    bool own = false;
    for (size_t i = 0; i < count; i++) own = own || names[i].key == key;
    if (!own) {
        names = usual_types;
        count = sizeof usual_types / sizeof usual_types[0];
    }
    char known[160] = "";
    for (size_t i = 0; i < count; i++) {
        if (names[i].key != key) continue;
        if (strlen(names[i].text) == length && memcmp(names[i].text, text, length) == 0) {
            *type = (mpk_layer_type)names[i].value;
            return MOEPACK_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", names[i].text);
    }
    return FAIL(r, MOEPACK_E_UNSUPPORTED, "%s has a layer of type \"%.*s\"; known for %s: %s",
                mpk_config_key_name(r->family, key), length > 60 ? 60 : (int)length, text, r->family->name, known);
}

static moepack_status wrong_count(const reader *r, mpk_key key, size_t entries, const mpk_layers *layers)
{
    return FAIL(r, MOEPACK_E_CORRUPT, "%s has %zu entries, %s is %llu", mpk_config_key_name(r->family, key), entries,
                mpk_config_key_name(r->family, MPK_KEY_LAYERS), (unsigned long long)layers->count);
}

/* The type of a layer according to a list of words or a string of letters. */
static moepack_status type_at(const reader *r, mpk_key key, const json_t *value, size_t layer, mpk_layer_type *type)
{
    if (json_is_string(value)) return type_of(r, key, json_string_value(value) + layer, 1, type);
    const json_t *item = json_array_get(value, layer);
    return type_of(r, key, json_string_value(item), json_string_length(item), type);
}

/* One entry per layer. It decides, and where other keys say something about layers too, they must say the same. */
static moepack_status set_types(const reader *r, const key_values *v, mpk_key key, bool ruled, mpk_config *out)
{
    mpk_layers *layers = &out->stack[MOEPACK_STACK_MAIN];
    const json_t *value = v->list[key];
    if (!value) return MOEPACK_OK;
    size_t entries = json_is_string(value) ? json_string_length(value) : json_array_size(value);
    if (entries != layers->count) return wrong_count(r, key, entries, layers);
    for (size_t layer = 0; layer < entries; layer++) {
        mpk_layer_type type;
        moepack_status status = type_at(r, key, value, layer, &type);
        if (status) return status;
        char rule[160];
        mpk_config_layer_rule(out, rule, sizeof rule);
        if (ruled && (type != MPK_LAYER_DENSE) != mpk_layers_is_moe(layers, layer))
            return FAIL(r, MOEPACK_E_CORRUPT, "%s makes layer %zu %s, against %s", mpk_config_key_name(r->family, key),
                        layer, type == MPK_LAYER_DENSE ? "dense" : "sparse", rule);
        if (!ruled && type == MPK_LAYER_DENSE) mark_dense(layers, layer);
        if (type == MPK_LAYER_HASHED) mark(out->hashed, layer);
    }
    return MOEPACK_OK;
}

/* The list decides alone, as in the published code: the step that stands beside it is only its default. */
static void set_moe_layers(const json_t *list, mpk_layers *layers)
{
    layers->first_dense = 0;
    layers->offset = 0;
    layers->step = 1;
    for (uint64_t layer = 0; layer < layers->count; layer++) mark_dense(layers, layer);
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint64_t layer;
        if (mpk_json_u64(json_array_get(list, i), &layer) && layer < layers->count)
            layers->dense[layer / 64] &= ~(UINT64_C(1) << layer % 64);
    }
}

/* Of the first layers, how many choose experts by token; where a list says so too, both must agree. */
static moepack_status set_hashed(const reader *r, const key_values *v, mpk_config *out)
{
    if (!v->present[MPK_KEY_HASH_LAYERS]) return MOEPACK_OK;
    const uint64_t count = v->number[MPK_KEY_HASH_LAYERS], layers = out->stack[MOEPACK_STACK_MAIN].count;
    for (uint64_t layer = 0; layer < layers; layer++) {
        bool listed = out->hashed[layer / 64] >> layer % 64 & 1;
        if (v->list[MPK_KEY_LAYER_TYPES] && listed != (layer < count))
            return FAIL(r, MOEPACK_E_CORRUPT, "%s is %llu, against the type of layer %llu in %s",
                        mpk_config_key_name(r->family, MPK_KEY_HASH_LAYERS), (unsigned long long)count,
                        (unsigned long long)layer, mpk_config_key_name(r->family, MPK_KEY_LAYER_TYPES));
        if (layer < count) mark(out->hashed, layer);
    }
    return MOEPACK_OK;
}

/* Layers 1, 1 + step ... of a stack, as in Switch Transformers: step 1 is every layer, 0 none. */
static mpk_layers odd_layers(uint64_t count, uint64_t step)
{
    return (mpk_layers){.count = count, .step = step, .offset = step > 1 ? step - 1 : 0};
}

static moepack_status no_moe_layer(const reader *r, const mpk_config *out)
{
    uint64_t count = 0;
    for (size_t s = 0; s < MPK_STACKS; s++) count += s == MOEPACK_STACK_MTP ? 0 : out->stack[s].count;
    char rule[160];
    mpk_config_layer_rule(out, rule, sizeof rule);
    return FAIL(r, MOEPACK_E_UNSUPPORTED, "no layer is a MoE block: %s %llu, %s",
                mpk_config_key_name(r->family, MPK_KEY_LAYERS), (unsigned long long)count, rule);
}

static moepack_status set_two_stacks(const reader *r, const key_values *v, mpk_config *out)
{
    uint64_t encoder = v->number[MPK_KEY_LAYERS];
    uint64_t decoder = v->present[MPK_KEY_DECODER_LAYERS] ? v->number[MPK_KEY_DECODER_LAYERS] : encoder;
    out->stack[MOEPACK_STACK_ENCODER] = odd_layers(encoder, v->number[MPK_KEY_ENCODER_STEP]);
    out->stack[MOEPACK_STACK_DECODER] = odd_layers(decoder, v->number[MPK_KEY_DECODER_STEP]);
    bool any = mpk_layers_moe_count(&out->stack[MOEPACK_STACK_ENCODER]) ||
               mpk_layers_moe_count(&out->stack[MOEPACK_STACK_DECODER]);
    return any ? MOEPACK_OK : no_moe_layer(r, out);
}

moepack_status mpk_config_set_layers(const reader *r, const key_values *v, mpk_config *out)
{
    if (mpk_config_has_key(r->family, MPK_KEY_ENCODER_STEP)) return set_two_stacks(r, v, out);
    const json_t *dense = v->list[MPK_KEY_DENSE_LAYERS], *moe = v->list[MPK_KEY_MOE_LAYERS];
    bool counted = v->present[MPK_KEY_SPARSE_STEP];
    mpk_layers *layers = &out->stack[MOEPACK_STACK_MAIN];
    *layers = (mpk_layers){.count = v->number[MPK_KEY_LAYERS],
                           .first_dense = v->number[MPK_KEY_FIRST_DENSE],
                           .offset = counted,
                           .step = v->number[counted ? MPK_KEY_SPARSE_STEP : MPK_KEY_LAYER_STEP]};
    out->stack[MOEPACK_STACK_MTP] = (mpk_layers){.count = v->number[MPK_KEY_MTP], .step = 1};
    bool lists = json_array_size(dense) || moe || v->list[MPK_KEY_LAYER_TYPES] || v->list[MPK_KEY_PATTERN] ||
                 v->present[MPK_KEY_HASH_LAYERS];
    if (lists && layers->count > MPK_LISTED_LAYERS)
        return FAIL(r, MOEPACK_E_UNSUPPORTED, "%s is %llu; configs that list layers may have %d",
                    mpk_config_key_name(r->family, MPK_KEY_LAYERS), (unsigned long long)layers->count,
                    MPK_LISTED_LAYERS);
    for (size_t i = 0; i < json_array_size(dense); i++) { /* the published code ignores layers that are not there */
        uint64_t layer;
        if (mpk_json_u64(json_array_get(dense, i), &layer) && layer < layers->count) mark_dense(layers, layer);
    }
    if (moe) set_moe_layers(moe, layers);
    bool ruled = v->present[MPK_KEY_FIRST_DENSE] || v->present[MPK_KEY_LAYER_STEP] || counted;
    moepack_status status = set_types(r, v, MPK_KEY_PATTERN, ruled, out);
    if (!status) status = set_types(r, v, MPK_KEY_LAYER_TYPES, ruled || v->list[MPK_KEY_PATTERN], out);
    if (!status) status = set_hashed(r, v, out);
    if (status || mpk_layers_next(layers, 0) < layers->count) return status;
    return no_moe_layer(r, out);
}
