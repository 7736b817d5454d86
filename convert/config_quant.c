/* quantization_config: only what the storage forms can say, exactly as published. What is quantised is decided by the
 * tensors; the ignore list of published files does not name everything that is not. */
#include "config.h"

#include "error.h"

#include <stdio.h>
#include <string.h>

static moepack_status unsupported(const char *path, const char *key, const json_t *value, const char *wanted,
                                  moepack_error *error)
{
    char shown[120];
    mpk_fail(error, MOEPACK_E_UNSUPPORTED, "quantization_config: %s is %s; supported: %s", key,
             value ? mpk_json_show(value, shown, sizeof shown) : "missing", wanted);
    mpk_error_file(error, path);
    return MOEPACK_E_UNSUPPORTED;
}

static bool is_text(const json_t *value, const char *wanted)
{
    return json_is_string(value) && strcmp(json_string_value(value), wanted) == 0;
}

static bool is_unset(const json_t *value)
{
    return !value || json_is_null(value);
}

/* Whether the JSON text of a value is one of those separated by '|'. */
static bool is_one_of(const json_t *value, const char *texts)
{
    char shown[80];
    mpk_json_show(value, shown, sizeof shown);
    const size_t length = strlen(shown);
    for (const char *at = texts; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, shown, length) == 0 && (at[length] == 0 || at[length] == '|')) return true;
    }
    return false;
}

/* A key and the values that it may have, as JSON. */
typedef struct rule {
    const char *key, *values;
    bool required;
} rule;

#define RULES_MAX 6

static moepack_status check_rules(const json_t *object, const rule *rules, const char *where, const char *path,
                                  moepack_error *error)
{
    for (size_t i = 0; i < RULES_MAX && rules[i].key; i++) {
        const json_t *value = json_object_get(object, rules[i].key);
        if (is_unset(value) ? !rules[i].required : is_one_of(value, rules[i].values)) continue;
        char key[160];
        snprintf(key, sizeof key, "%s%s", where, rules[i].key);
        return unsupported(path, key, value, rules[i].values, error);
    }
    return MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------ compressed-tensors
 */

/* Formats, and what the weights of a group of config_groups then must be. */
static const struct ct_format {
    const char *format;
    rule rules[RULES_MAX];
} ct_formats[] = {
#define COMMON                     \
    {"symmetric", "true", false},  \
    {                              \
        "actorder", "false", false \
    }
    {"mxfp4-pack-quantized",
     {{"num_bits", "4", true},
      {"group_size", "32", true},
      {"type", "\"float\"", false},
      {"strategy", "\"group\"", false},
      COMMON}},
    {"pack-quantized",
     {{"num_bits", "4", true},
      {"group_size", "32", true},
      {"type", "\"int\"", false},
      {"strategy", "\"group\"", false},
      COMMON}},
    {"nvfp4-pack-quantized",
     {{"num_bits", "4", true},
      {"group_size", "16", true},
      {"type", "\"float\"", false},
      {"strategy", "\"tensor_group\"|\"group\"", false},
      COMMON}},
    {"float-quantized",
     {{"num_bits", "8", true},
      {"type", "\"float\"", true},
      {"strategy", "\"channel\"|\"tensor\"|\"block\"", true},
      {"block_structure", "[128,128]", false},
      COMMON}},
    {"mxfp8-quantized",
     {{"num_bits", "8", true},
      {"group_size", "32", true},
      {"type", "\"float\"", false},
      {"strategy", "\"group\"", false},
      COMMON}},
#undef COMMON
};
#define CT_COUNT (sizeof ct_formats / sizeof ct_formats[0])
#define CT_NAMES                                                                                                  \
    "mxfp4-pack-quantized, pack-quantized (int4), nvfp4-pack-quantized, float-quantized (FP8), mxfp8-quantized, " \
    "mixed-precision"

static const struct ct_format *find_format(const json_t *name)
{
    for (size_t i = 0; i < CT_COUNT; i++)
        if (is_text(name, ct_formats[i].format)) return &ct_formats[i];
    return NULL;
}

static moepack_status check_group(const json_t *group, const char *name, const struct ct_format *format,
                                  const char *path, moepack_error *error)
{
    char key[120];
    const json_t *own = json_object_get(group, "format"), *weights = json_object_get(group, "weights");
    snprintf(key, sizeof key, "config_groups.%.60s.format", name);
    if (format && !is_unset(own) && !is_text(own, format->format))
        return unsupported(path, key, own, format->format, error);
    if (!format && !(format = find_format(own))) return unsupported(path, key, own, CT_NAMES, error);
    snprintf(key, sizeof key, "config_groups.%.60s.weights", name);
    if (!json_is_object(weights)) return unsupported(path, key, weights, "an object", error);
    snprintf(key, sizeof key, "config_groups.%.60s.weights.", name);
    return check_rules(weights, format->rules, key, path, error);
}

static moepack_status check_compressed(const json_t *quant, const char *path, char claim[64], moepack_error *error)
{
    const json_t *name = json_object_get(quant, "format"), *groups = json_object_get(quant, "config_groups");
    const struct ct_format *format = find_format(name);
    const bool mixed = is_text(name, "mixed-precision");
    if (!format && !mixed) return unsupported(path, "format", name, CT_NAMES, error);
    snprintf(claim, 64, "%s", mixed ? "mixed" : format->format);
    if (!json_is_object(groups) || json_object_size(groups) == 0)
        return unsupported(path, "config_groups", groups, "an object with one group", error);
    const char *group_name;
    json_t *group;
    json_object_foreach((json_t *)groups, group_name, group)
    {
        moepack_status status = check_group(group, group_name, format, path, error);
        if (status) return status;
    }
    return MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------ other methods */

/* Methods without groups: what else the object must say, and what experts then are called. */
static const struct method {
    const char *name, *claim;
    rule rules[RULES_MAX];
} methods[] = {
    {"fp8", "fp8", {{"fmt", "\"e4m3\"|\"float8_e4m3fn\"", false}, {"weight_block_size", "[128,128]|[1,32]", false}}},
    {"mxfp8", "mxfp8", {{"fmt", "\"e4m3\"|\"float8_e4m3fn\"", false}, {"weight_block_size", "[1,32]", false}}},
    {"modelopt",
     "modelopt",
     {{"quant_algo", "\"NVFP4\"|\"FP8\"|\"FP8_PER_CHANNEL_PER_TOKEN\"|\"MXFP8\"|\"MIXED_PRECISION\"", false},
      {"group_size", "16|32", false}}},
};
#define METHOD_COUNT (sizeof methods / sizeof methods[0])
#define METHOD_NAMES "compressed-tensors, fp8, mxfp8, modelopt"

static moepack_status check_method(const json_t *quant, const char *path, char claim[64], moepack_error *error)
{
    const json_t *method = json_object_get(quant, "quant_method");
    if (is_text(method, "compressed-tensors")) return check_compressed(quant, path, claim, error);
    for (size_t i = 0; i < METHOD_COUNT; i++) {
        if (!is_text(method, methods[i].name)) continue;
        const bool mixed = is_text(json_object_get(quant, "quant_algo"), "MIXED_PRECISION") ||
                           is_text(json_object_get(quant, "expert_dtype"), "fp4");
        snprintf(claim, 64, "%s", mixed ? "mixed" : methods[i].claim);
        return check_rules(quant, methods[i].rules, "", path, error);
    }
    return unsupported(path, "quant_method", method, METHOD_NAMES, error);
}

/* Families of fused tensors alone have the forms of their table; gpt-oss's method says it all. */
static moepack_status check_fused(const mpk_family *family, const json_t *quant, const char *path, char claim[64],
                                  moepack_error *error)
{
    const json_t *method = json_object_get(quant, "quant_method");
    const char *known = "none for this family";
    for (uint32_t f = 0; f < family->form_count; f++) {
        const char *name = family->forms[f].quant;
        if (!name) continue;
        known = name;
        if (!is_text(method, name)) continue;
        snprintf(claim, 64, "%s", name);
        return MOEPACK_OK;
    }
    return unsupported(path, "quant_method", method, known, error);
}

moepack_status mpk_config_quant(const mpk_family *family, const json_t *quant, const char *path, char claim[64],
                                moepack_error *error)
{
    if (!json_is_object(quant)) {
        char shown[80];
        mpk_fail(error, MOEPACK_E_CORRUPT, "quantization_config is %s, not an object: %s", mpk_json_kind(quant),
                 mpk_json_show(quant, shown, sizeof shown));
        mpk_error_file(error, path);
        return MOEPACK_E_CORRUPT;
    }
    return mpk_family_plain(family) ? check_method(quant, path, claim, error)
                                    : check_fused(family, quant, path, claim, error);
}
