/* config.json: which family, which sizes, which routing policy. Internal.
 *
 * Nothing is approximated: a value that the policy record cannot say is MOEPACK_E_UNSUPPORTED with key and value, a
 * missing key that would change results is MOEPACK_E_INCOMPLETE, a wrong JSON type or values that contradict each other
 * are MOEPACK_E_CORRUPT. */
#ifndef MOEPACK_CONVERT_CONFIG_H
#define MOEPACK_CONVERT_CONFIG_H

#include "families.h"
#include "json.h"

/* Configs that list layers may have this many; the longest model there is has 126. */
#define MPK_LISTED_LAYERS 4096

/* Values of moepack_stack. */
#define MPK_STACKS 4

/* The layers of one stack: MoE from first_dense on where step divides number + offset, and the layer is not listed. */
typedef struct mpk_layers {
    uint64_t count;
    uint64_t first_dense, step, offset; /* step 0: no layer is MoE */
    bool listed;
    uint64_t dense[MPK_LISTED_LAYERS / 64]; /* bit set */
} mpk_layers;

typedef struct mpk_config {
    const mpk_family *family;
    char model_type[64];                     /* of the outermost object */
    mpk_layers stack[MPK_STACKS];            /* by moepack_stack; MTP: the prediction layers, all MoE */
    uint64_t hashed[MPK_LISTED_LAYERS / 64]; /* bit set: layers of the main stack that choose experts by token id */
    uint64_t size[MPK_SIZE_COUNT];
    moepack_policy policy; /* of layers that are not hashed */
    char quant[64];        /* quantization_config.format; "": none */
} mpk_config;

/* Reads the text of a config.json. `path` is for errors. */
moepack_status mpk_config_read(const char *text, size_t size, const char *path, mpk_config *out, moepack_error *error);

/* Whether a layer is a MoE block. */
bool mpk_layers_is_moe(const mpk_layers *layers, uint64_t layer);

/* The first MoE block from this layer on; layers->count when there is none. */
uint64_t mpk_layers_next(const mpk_layers *layers, uint64_t layer);

/* Number of MoE blocks. */
uint64_t mpk_layers_moe_count(const mpk_layers *layers);

/* The keys that say which layers are MoE blocks, with their values, for messages. */
void mpk_config_layer_rule(const mpk_config *config, char *buf, size_t size);

/* The family's name of a key, for messages. */
const char *mpk_config_key_name(const mpk_family *family, mpk_key key);

/* Checks a quantization_config (config_quant.c). */
moepack_status mpk_config_quant(const mpk_family *family, const json_t *quant, const char *path, char format[64],
                                moepack_error *error);

#endif
