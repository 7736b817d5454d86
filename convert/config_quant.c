/* quantization_config: only forms that the family's table knows, exactly as published. What is quantised is decided by
 * the tensors; the ignore list of published files does not name everything that is not. */
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

static bool is_integer(const json_t *value, json_int_t wanted)
{
    return json_is_integer(value) && json_integer_value(value) == wanted;
}

static bool is_text(const json_t *value, const char *wanted)
{
    return json_is_string(value) && strcmp(json_string_value(value), wanted) == 0;
}

static bool is_unset(const json_t *value)
{
    return !value || json_is_null(value);
}

/* Weights of one group of compressed-tensors' config_groups. What is optional may be absent, but not different. */
static moepack_status check_weights(const json_t *weights, const char *group, const char *path, moepack_error *error)
{
    char key[160];
    static const struct {
        const char *key, *text;
        json_int_t number;
        bool required;
    } rules[] = {
        {"num_bits", NULL, 4, true},
        {"group_size", NULL, 32, true},
        {"type", "float", 0, false},
        {"strategy", "group", 0, false},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const json_t *value = json_object_get(weights, rules[i].key);
        if (is_unset(value) && !rules[i].required) continue;
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)rules[i].number);
        if (rules[i].text ? is_text(value, rules[i].text) : is_integer(value, rules[i].number)) continue;
        snprintf(key, sizeof key, "config_groups.%.60s.weights.%s", group, rules[i].key);
        return unsupported(path, key, value, rules[i].text ? rules[i].text : number, error);
    }
    const json_t *order = json_object_get(weights, "actorder"), *symmetric = json_object_get(weights, "symmetric");
    snprintf(key, sizeof key, "config_groups.%.60s.weights.actorder", group);
    if (!is_unset(order) && !json_is_false(order)) return unsupported(path, key, order, "null", error);
    snprintf(key, sizeof key, "config_groups.%.60s.weights.symmetric", group);
    if (!is_unset(symmetric) && !json_is_true(symmetric)) return unsupported(path, key, symmetric, "true", error);
    return MOEPACK_OK;
}

static moepack_status check_groups(const json_t *groups, const char *format, const char *path, moepack_error *error)
{
    if (!json_is_object(groups) || json_object_size(groups) == 0)
        return unsupported(path, "config_groups", groups, "an object with one group", error);
    const char *name;
    json_t *group;
    json_object_foreach((json_t *)groups, name, group)
    {
        char key[120];
        const json_t *own = json_object_get(group, "format"), *weights = json_object_get(group, "weights");
        snprintf(key, sizeof key, "config_groups.%.60s.format", name);
        if (!is_unset(own) && !is_text(own, format)) return unsupported(path, key, own, format, error);
        snprintf(key, sizeof key, "config_groups.%.60s.weights", name);
        if (!json_is_object(weights)) return unsupported(path, key, weights, "an object", error);
        moepack_status status = check_weights(weights, name, path, error);
        if (status) return status;
    }
    return MOEPACK_OK;
}

moepack_status mpk_config_quant(const mpk_family *family, const json_t *quant, const char *path, char format[64],
                                moepack_error *error)
{
    if (!json_is_object(quant)) {
        char shown[80];
        mpk_fail(error, MOEPACK_E_CORRUPT, "quantization_config is %s, not an object: %s", mpk_json_kind(quant),
                 mpk_json_show(quant, shown, sizeof shown));
        mpk_error_file(error, path);
        return MOEPACK_E_CORRUPT;
    }
    const json_t *method = json_object_get(quant, "quant_method"), *found = json_object_get(quant, "format");
    const char *known = NULL;
    for (uint32_t f = 0; f < family->form_count; f++) {
        if (family->forms[f].quant) known = family->forms[f].quant;
    }
    if (!known)
        return unsupported(path, found ? "format" : "quant_method", found ? found : method, "none for this family",
                           error);
    for (uint32_t f = 0; f < family->form_count; f++) { /* gpt-oss: the method says it all */
        const char *format_name = family->forms[f].quant;
        if (found || !format_name || !is_text(method, format_name)) continue;
        snprintf(format, 64, "%s", format_name);
        return MOEPACK_OK;
    }
    if (!is_text(method, "compressed-tensors"))
        return unsupported(path, "quant_method", method, "compressed-tensors", error);
    for (uint32_t f = 0; f < family->form_count; f++) {
        const char *format_name = family->forms[f].quant;
        if (!format_name || !is_text(found, format_name)) continue;
        snprintf(format, 64, "%s", format_name);
        return check_groups(json_object_get(quant, "config_groups"), format_name, path, error);
    }
    return unsupported(path, "format", found, known, error);
}
