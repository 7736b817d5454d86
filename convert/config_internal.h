/* What the parts of the config reader share: config.c, config_layers.c. */
#ifndef MOEPACK_CONVERT_CONFIG_INTERNAL_H
#define MOEPACK_CONVERT_CONFIG_INTERNAL_H

#include "config.h"
#include "error.h"

/* What the keys of one config say. */
typedef struct key_values {
    bool present[MPK_KEY_COUNT];
    uint64_t number[MPK_KEY_COUNT]; /* counts, booleans, enumerations */
    double real[MPK_KEY_COUNT];
    const json_t *list[MPK_KEY_COUNT]; /* the value itself, for lists and patterns */
} key_values;

typedef struct reader {
    const char *path;
    const mpk_family *family;
    moepack_error *error;
} reader;

/* Adds the config's path to the error; returns its status. */
moepack_status mpk_config_blame(const reader *r, moepack_status status);

/* mpk_fail with the config's path, as an expression. */
#define FAIL(r, status, ...) (mpk_fail((r)->error, status, __VA_ARGS__), mpk_config_blame(r, status))

/* Whether the family's configs have such a key at all. */
bool mpk_config_has_key(const mpk_family *family, mpk_key key);

/* Fills out->stack and out->hashed (config_layers.c). */
moepack_status mpk_config_set_layers(const reader *r, const key_values *v, mpk_config *out);

#endif
