/* Reads config.json by the keys and names of a family's table into a policy and a layer rule. What the record cannot
 * say is refused, never approximated. */
#include "config_internal.h"

#include "bytes.h"
#include "error.h"
#include "moepack/convert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *mpk_config_key_name(const mpk_family *family, mpk_key key)
{
    for (uint32_t i = 0; i < family->key_count; i++) {
        if (family->keys[i].key == key && family->keys[i].name) return family->keys[i].name;
    }
    return "a key that this family does not have";
}

bool mpk_config_has_key(const mpk_family *family, mpk_key key)
{
    for (uint32_t i = 0; i < family->key_count; i++) {
        if (family->keys[i].key == key && family->keys[i].name) return true;
    }
    return false;
}

moepack_status mpk_config_blame(const reader *r, moepack_status status)
{
    mpk_error_file(r->error, r->path);
    return status;
}

/* ------------------------------------------------------------------------------------------------ single keys */

static const char *const kind_words[] = {
    [MPK_KIND_COUNT] = "a positive integer",
    [MPK_KIND_COUNT0] = "a non-negative integer",
    [MPK_KIND_REAL] = "a number",
    [MPK_KIND_BOOL] = "true or false",
    [MPK_KIND_NAME] = "a string",
    [MPK_KIND_LAYERS] = "a list of layers",
    [MPK_KIND_TYPES] = "a list of types of layers",
    [MPK_KIND_PATTERN] = "a string of one letter per layer",
};

/* The values that the family's table allows; a key that is no name and has none there may have any. */
static moepack_status read_name(const reader *r, const mpk_family_key *key, const char *called, const json_t *value,
                                uint64_t *out)
{
    char known[160] = "", text[80];
    if (json_is_string(value))
        snprintf(text, sizeof text, "%s", json_string_value(value));
    else
        mpk_json_show(value, text, sizeof text);
    for (uint32_t i = 0; i < r->family->name_count; i++) {
        const mpk_family_name *name = &r->family->names[i];
        if (name->key != key->key) continue;
        if (strcmp(name->text, text) == 0) {
            *out = name->value;
            return MOEPACK_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", name->text);
    }
    if (key->kind != MPK_KIND_NAME && !known[0]) return MOEPACK_OK;
    char shown[80];
    return FAIL(r, MOEPACK_E_UNSUPPORTED, "%s is %s; known for %s: %s", called,
                mpk_json_show(value, shown, sizeof shown), r->family->name, known);
}

static bool is_list(const json_t *value, mpk_kind kind)
{
    uint64_t number;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (kind == MPK_KIND_LAYERS ? !mpk_json_u64(item, &number) : !json_is_string(item)) return false;
    }
    return json_is_array(value);
}

static bool has_kind(const json_t *value, mpk_kind kind, uint64_t *number, double *real)
{
    switch (kind) {
    case MPK_KIND_COUNT:
        return mpk_json_u64(value, number) && *number >= 1 && *number < UINT32_MAX;
    case MPK_KIND_COUNT0:
        return mpk_json_u64(value, number) && *number < UINT32_MAX;
    case MPK_KIND_BOOL:
        *number = json_is_true(value);
        return json_is_boolean(value);
    case MPK_KIND_REAL:
        *real = json_number_value(value);
        return json_is_number(value) && isfinite(*real);
    case MPK_KIND_NAME:
    case MPK_KIND_PATTERN:
        return json_is_string(value);
    case MPK_KIND_LAYERS:
    case MPK_KIND_TYPES:
        return is_list(value, kind);
    }
    return false;
}

/* The value at the end of a dotted path; NULL where it breaks off. */
static const json_t *at_path(const json_t *object, const char *path)
{
    for (const char *dot; object && (dot = strchr(path, '.')); path = dot + 1)
        object = json_object_getn(object, path, (size_t)(dot - path));
    return object ? json_object_get(object, path) : NULL;
}

/* A key's value under any of its names; several must agree. Null counts as absent. *called is the name that was found.
 */
static moepack_status find_value(const reader *r, const json_t *text, const mpk_family_key *key, const char **called,
                                 const json_t **found)
{
    *called = key->name;
    *found = key->name ? at_path(text, key->name) : NULL;
    if (json_is_null(*found)) *found = NULL;
    for (uint32_t i = 0; i < r->family->alias_count; i++) {
        const mpk_family_alias *alias = &r->family->aliases[i];
        const json_t *value = alias->key == key->key ? at_path(text, alias->name) : NULL;
        char first[80], second[80];
        if (!value || json_is_null(value)) continue;
        if (*found && !json_equal(*found, value))
            return FAIL(r, MOEPACK_E_CORRUPT, "%s is %s, but %s is %s", *called,
                        mpk_json_show(*found, first, sizeof first), alias->name,
                        mpk_json_show(value, second, sizeof second));
        if (!*found) *called = alias->name;
        *found = value;
    }
    return MOEPACK_OK;
}

static moepack_status read_key(const reader *r, const json_t *text, const mpk_family_key *key, key_values *values)
{
    const json_t *value;
    const char *called;
    uint64_t *number = &values->number[key->key];
    double *real = &values->real[key->key];
    moepack_status status = find_value(r, text, key, &called, &value);
    if (status) return status;
    if (!value) {
        if (key->required)
            return FAIL(r, MOEPACK_E_INCOMPLETE, "key %s is %s", key->name,
                        at_path(text, key->name) ? "null" : "missing");
        *number = (uint64_t)key->fallback;
        *real = key->fallback;
        return MOEPACK_OK;
    }
    values->present[key->key] = true;
    values->list[key->key] = value;
    if (!has_kind(value, key->kind, number, real)) {
        char shown[80];
        return FAIL(r, MOEPACK_E_CORRUPT, "%s is %s, not %s", called, mpk_json_show(value, shown, sizeof shown),
                    kind_words[key->kind]);
    }
    if (key->kind == MPK_KIND_TYPES || key->kind == MPK_KIND_PATTERN) return MOEPACK_OK; /* names stand for the parts */
    return read_name(r, key, called, value, number);
}

/* ------------------------------------------------------------------------------------------------ meaning */

static moepack_status set_sizes(const reader *r, const key_values *v, mpk_config *out)
{
    const mpk_family *family = r->family;
    uint64_t *size = out->size;
    size[MPK_ONE] = 1;
    size[MPK_E] = v->number[MPK_KEY_EXPERTS];
    size[MPK_H] = v->number[MPK_KEY_HIDDEN];
    size[MPK_I] = v->number[MPK_KEY_INTERMEDIATE];
    size[MPK_K] = v->number[MPK_KEY_TOP_K];
    size[MPK_V] = v->number[MPK_KEY_VOCABULARY];
    size[MPK_L] = v->present[MPK_KEY_LATENT] ? v->number[MPK_KEY_LATENT] : size[MPK_H];
    size[MPK_S] = v->number[MPK_KEY_SHARED] * size[MPK_I]; /* both below 2^32 */
    if (v->present[MPK_KEY_SHARED_WIDTH]) size[MPK_S] = v->number[MPK_KEY_SHARED_WIDTH];
    uint64_t k = v->number[MPK_KEY_TOP_K];
    if (k > size[MPK_E])
        return FAIL(r, MOEPACK_E_CORRUPT, "%s is %llu, more than %s, which is %llu",
                    mpk_config_key_name(family, MPK_KEY_TOP_K), (unsigned long long)k,
                    mpk_config_key_name(family, MPK_KEY_EXPERTS), (unsigned long long)size[MPK_E]);
    return MOEPACK_OK;
}

static moepack_status set_activation(const reader *r, const key_values *v, moepack_policy *policy)
{
    policy->activation = v->number[MPK_KEY_ACTIVATION];
    policy->shared_activation = policy->activation;
    policy->gated = 1;
    if (policy->activation != MOEPACK_ACT_SITU) return MOEPACK_OK;
    double beta = v->real[MPK_KEY_SITU_BETA], linear = v->real[MPK_KEY_SITU_LINEAR_BETA];
    const char *beta_key = mpk_config_key_name(r->family, MPK_KEY_SITU_BETA);
    const char *linear_key = mpk_config_key_name(r->family, MPK_KEY_SITU_LINEAR_BETA);
    if (beta < 0) return FAIL(r, MOEPACK_E_UNSUPPORTED, "%s is %g; it must not be negative", beta_key, beta);
    /* null means "not capped" and is 0 in the record; a published 0 would divide by zero. */
    if (v->present[MPK_KEY_SITU_LINEAR_BETA] && !(linear > 0))
        return FAIL(r, MOEPACK_E_UNSUPPORTED, "%s is %g; it must be positive, or null for no cap", linear_key, linear);
    policy->situ_beta = beta == 0 ? 1.0 : beta; /* the published code takes 0 for "not set" */
    policy->situ_linear_beta = v->present[MPK_KEY_SITU_LINEAR_BETA] ? linear : 0;
    return MOEPACK_OK;
}

static const struct {
    moepack_select select;
    moepack_group_score group_score;
    moepack_group_mask group_mask;
} methods[MPK_METHOD_COUNT] = {
    [MPK_METHOD_BEST] = {MOEPACK_SELECT_SCORE, MOEPACK_GROUP_TOP2_SUM, MOEPACK_MASK_NEG_INF},
    [MPK_METHOD_GROUP_MAX] = {MOEPACK_SELECT_SCORE, MOEPACK_GROUP_MAX, MOEPACK_MASK_ZERO},
    [MPK_METHOD_BIASED] = {MOEPACK_SELECT_BIASED, MOEPACK_GROUP_TOP2_SUM, MOEPACK_MASK_NEG_INF},
};

/* What the published code of a strict family stops at. Elsewhere groups that drop nothing are as if there were none. */
static moepack_status check_groups(const reader *r, const key_values *v, uint64_t experts, const moepack_policy *policy)
{
    uint64_t groups = v->number[MPK_KEY_GROUPS], kept = v->number[MPK_KEY_GROUPS_KEPT];
    const char *groups_key = mpk_config_key_name(r->family, MPK_KEY_GROUPS);
    const char *kept_key = mpk_config_key_name(r->family, MPK_KEY_GROUPS_KEPT);
    if (!v->present[MPK_KEY_GROUPS] || !v->present[MPK_KEY_GROUPS_KEPT])
        return FAIL(r, MOEPACK_E_INCOMPLETE, "key %s is missing", v->present[MPK_KEY_GROUPS] ? kept_key : groups_key);
    if (kept > groups)
        return FAIL(r, MOEPACK_E_CORRUPT, "%s is %llu, more than %s, which is %llu", kept_key, (unsigned long long)kept,
                    groups_key, (unsigned long long)groups);
    if (experts % groups != 0)
        return FAIL(r, MOEPACK_E_CORRUPT, "%s is %llu, which does not divide %s, %llu", groups_key,
                    (unsigned long long)groups, mpk_config_key_name(r->family, MPK_KEY_EXPERTS),
                    (unsigned long long)experts);
    if (policy->group_score == MOEPACK_GROUP_TOP2_SUM && groups > 1 && experts / groups < 2)
        return FAIL(r, MOEPACK_E_CORRUPT, "%s is %llu: groups of one expert have no two best", groups_key,
                    (unsigned long long)groups);
    return MOEPACK_OK;
}

/* Groups act only when there are several and not all of them are kept. */
static moepack_status set_groups(const reader *r, const key_values *v, const mpk_config *config, moepack_policy *policy)
{
    uint64_t groups = v->number[MPK_KEY_GROUPS], kept = v->number[MPK_KEY_GROUPS_KEPT], experts = config->size[MPK_E];
    uint64_t method = v->number[MPK_KEY_METHOD];
    policy->groups = 1;
    policy->groups_kept = 1;
    policy->select = methods[method].select;
    policy->group_score = methods[method].group_score;
    policy->group_mask = methods[method].group_mask;
    if (method == MPK_METHOD_BEST) return MOEPACK_OK;
    bool named = mpk_config_has_key(r->family, MPK_KEY_GROUPS);
    moepack_status status = r->family->strict && named ? check_groups(r, v, experts, policy) : MOEPACK_OK;
    if (status || groups <= 1 || groups <= kept) return status;
    const char *groups_key = mpk_config_key_name(r->family, MPK_KEY_GROUPS);
    if (v->number[MPK_KEY_GROUPED] == 0)
        return FAIL(r, MOEPACK_E_UNSUPPORTED, "%s is false, but %s is %llu and %s %llu",
                    mpk_config_key_name(r->family, MPK_KEY_GROUPED), groups_key, (unsigned long long)groups,
                    mpk_config_key_name(r->family, MPK_KEY_GROUPS_KEPT), (unsigned long long)kept);
    if (experts % groups != 0)
        return FAIL(r, MOEPACK_E_CORRUPT, "%s is %llu, which does not divide %s, %llu", groups_key,
                    (unsigned long long)groups, mpk_config_key_name(r->family, MPK_KEY_EXPERTS),
                    (unsigned long long)experts);
    if (policy->top_k > kept * (experts / groups))
        return FAIL(r, MOEPACK_E_CORRUPT, "%s is %llu, but %llu of %llu groups hold only %llu experts",
                    mpk_config_key_name(r->family, MPK_KEY_TOP_K), (unsigned long long)policy->top_k,
                    (unsigned long long)kept, (unsigned long long)groups,
                    (unsigned long long)(kept * (experts / groups)));
    policy->groups = groups;
    policy->groups_kept = kept;
    return MOEPACK_OK;
}

/* What the family says of all its models, then what its config says of one field each. */
static moepack_status set_fields(const reader *r, const json_t *text, moepack_policy *policy)
{
    moepack_status status = MOEPACK_OK;
    for (uint32_t i = 0; i < r->family->setting_count && !status; i++)
        status = moepack_policy_set(policy, r->family->settings[i].field, r->family->settings[i].value, r->error);
    for (uint32_t i = 0; i < r->family->number_count && !status; i++) {
        const mpk_family_number *number = &r->family->numbers[i];
        const json_t *value = at_path(text, number->name);
        char shown[80], digits[40];
        if (!value || json_is_null(value)) {
            if (number->required)
                return FAIL(r, MOEPACK_E_INCOMPLETE, "key %s is %s", number->name, value ? "null" : "missing");
            continue;
        }
        if (!json_is_number(value))
            return FAIL(r, MOEPACK_E_CORRUPT, "%s is %s, not a number", number->name,
                        mpk_json_show(value, shown, sizeof shown));
        if (json_is_integer(value))
            snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(value));
        else
            snprintf(digits, sizeof digits, "%.17g", json_real_value(value));
        status = moepack_policy_set(policy, number->field, digits, r->error);
        if (status) return FAIL(r, MOEPACK_E_UNSUPPORTED, "%s is %s", number->name, digits);
    }
    return status ? mpk_config_blame(r, status) : MOEPACK_OK;
}

static moepack_status check_musts(const reader *r, const json_t *text)
{
    for (uint32_t i = 0; i < r->family->must_count; i++) {
        const mpk_family_must *must = &r->family->musts[i];
        const json_t *value = at_path(text, must->name);
        if (!value) continue;
        char shown[80];
        mpk_json_show(value, shown, sizeof shown);
        const char *at = must->values;
        size_t length = strlen(shown);
        while (at && (strncmp(at, shown, length) != 0 || (at[length] != 0 && at[length] != '|'))) {
            at = strchr(at, '|');
            if (at) at++;
        }
        if (!at)
            return FAIL(r, MOEPACK_E_UNSUPPORTED, "%s is %s; known for %s: %s", must->name, shown, r->family->name,
                        must->values);
    }
    return MOEPACK_OK;
}

static moepack_status set_policy(const reader *r, const json_t *text, const key_values *v, mpk_config *out)
{
    moepack_policy *policy = &out->policy;
    moepack_policy_init(policy);
    policy->hidden = out->size[MPK_H];
    policy->expert_input = out->size[MPK_L];
    policy->intermediate = out->size[MPK_I];
    policy->top_k = v->number[MPK_KEY_TOP_K];
    policy->score = v->number[MPK_KEY_SCORE];
    policy->weight_from = MOEPACK_WEIGHT_UNBIASED;
    policy->renorm_eps = r->family->renorm_eps;
    policy->renormalize = policy->renorm_eps > 0 ? MOEPACK_RENORM_SUM_EPS : MOEPACK_RENORM_SUM;
    if (!v->number[MPK_KEY_RENORMALIZE]) policy->renormalize = MOEPACK_RENORM_NONE;
    policy->renorm_k1 = r->family->renorm_k1;
    policy->scale = v->real[MPK_KEY_SCALE];
    policy->scale_when = MOEPACK_SCALE_ALWAYS;
    policy->latent = v->present[MPK_KEY_LATENT];
    policy->latent_norm = policy->latent && v->number[MPK_KEY_LATENT_NORM];
    policy->shared_width = out->size[MPK_S];
    policy->router_dtype = (uint64_t)r->family->router_dtype;
    if (policy->latent_norm) {
        const char *eps_key = mpk_config_key_name(r->family, MPK_KEY_NORM_EPS);
        if (!v->present[MPK_KEY_NORM_EPS])
            return FAIL(r, MOEPACK_E_INCOMPLETE, "key %s is missing, and the experts' sum is normalised", eps_key);
        if (!(v->real[MPK_KEY_NORM_EPS] >= 0))
            return FAIL(r, MOEPACK_E_UNSUPPORTED, "%s is %g; it must not be negative", eps_key,
                        v->real[MPK_KEY_NORM_EPS]);
        policy->norm_eps = v->real[MPK_KEY_NORM_EPS];
    }
    moepack_status status = set_activation(r, v, policy);
    if (!status) status = set_groups(r, v, out, policy);
    if (!status) status = set_fields(r, text, policy);
    if (status) return status;
    status = moepack_policy_check(policy, out->size[MPK_E], r->error);
    return status ? mpk_config_blame(r, status) : MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------ whole configs */

static bool type_matches(const mpk_family_type *type, const char *model_type, const json_t *text)
{
    if (strcmp(type->model_type, model_type) != 0) return false;
    if (!type->key) return true;
    const json_t *value = json_object_get(text, type->key);
    if (!value || json_is_null(value)) return false;
    return !type->value || (json_is_string(value) && strcmp(json_string_value(value), type->value) == 0);
}

static const mpk_family *find_family(const char *model_type, const json_t *text)
{
    const mpk_family *family;
    for (size_t i = 0; (family = mpk_family_at(i)); i++) {
        for (uint32_t t = 0; t < family->type_count; t++) {
            if (type_matches(&family->types[t], model_type, text)) return family;
        }
    }
    return NULL;
}

static moepack_status unknown_type(const reader *r, const char *model_type)
{
    const char *reason = mpk_family_refusal(model_type);
    if (reason)
        return FAIL(r, MOEPACK_E_UNSUPPORTED, "model_type \"%s\" is not supported by this version: %s", model_type,
                    reason);
    char known[256] = "";
    const mpk_family *family;
    for (size_t i = 0; (family = mpk_family_at(i)); i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", family->name);
    }
    return FAIL(r, MOEPACK_E_UNSUPPORTED, "model_type \"%.60s\" is not known; known: %s", model_type, known);
}

/* The object that the text model's keys sit in, and its type where it has one. */
static moepack_status find_text(reader *r, const json_t *root, mpk_config *out, const json_t **text)
{
    const json_t *type = json_object_get(root, "model_type"), *nested = json_object_get(root, "text_config");
    char shown[80];
    if (!json_is_object(root)) return FAIL(r, MOEPACK_E_CORRUPT, "config is %s, not an object", mpk_json_kind(root));
    if (!type) return FAIL(r, MOEPACK_E_INCOMPLETE, "key model_type is missing");
    if (!json_is_string(type) || strlen(json_string_value(type)) >= sizeof out->model_type)
        return FAIL(r, MOEPACK_E_CORRUPT, "model_type is %s, not a short string",
                    mpk_json_show(type, shown, sizeof shown));
    if (nested && !json_is_null(nested) && !json_is_object(nested))
        return FAIL(r, MOEPACK_E_CORRUPT, "text_config is %s, not an object",
                    mpk_json_show(nested, shown, sizeof shown));
    *text = json_is_object(nested) ? nested : root;
    snprintf(out->model_type, sizeof out->model_type, "%s", json_string_value(type));
    r->family = out->family = find_family(out->model_type, *text);
    if (!r->family) return unknown_type(r, out->model_type);
    const json_t *inner = *text == root ? NULL : json_object_get(*text, "model_type");
    if (inner && (!json_is_string(inner) || strcmp(json_string_value(inner), r->family->text_type) != 0))
        return FAIL(r, MOEPACK_E_UNSUPPORTED, "text_config.model_type is %s; known for %s: %s",
                    mpk_json_show(inner, shown, sizeof shown), out->model_type, r->family->text_type);
    return MOEPACK_OK;
}

/* The wrapper and the nested text model may each have one; both must be understood. */
static moepack_status read_quant(const reader *r, const json_t *root, const json_t *text, mpk_config *out)
{
    const json_t *places[2] = {root, text};
    for (int i = 0; i < 2; i++) {
        const json_t *quant = json_object_get(places[i], "quantization_config");
        if (!quant || json_is_null(quant)) continue;
        moepack_status status = mpk_config_quant(r->family, quant, r->path, out->quant, r->error);
        if (status) return status;
    }
    return MOEPACK_OK;
}

static moepack_status read_tree(const json_t *root, const char *path, mpk_config *out, moepack_error *error)
{
    reader r = {path, NULL, error};
    const json_t *text;
    moepack_status status = find_text(&r, root, out, &text);
    if (status) return status;
    key_values values = {0};
    for (uint32_t i = 0; i < r.family->key_count; i++) {
        if ((status = read_key(&r, text, &r.family->keys[i], &values))) return status;
    }
    if ((status = read_quant(&r, root, text, out))) return status;
    if ((status = set_sizes(&r, &values, out))) return status;
    if ((status = mpk_config_set_layers(&r, &values, out))) return status;
    if ((status = check_musts(&r, text))) return status;
    return set_policy(&r, text, &values, out);
}

moepack_status mpk_config_read(const char *text, size_t size, const char *path, mpk_config *out, moepack_error *error)
{
    memset(out, 0, sizeof *out);
    json_t *root;
    moepack_status status = mpk_json_parse(text, size, path, 0, &root, error);
    if (status) return status;
    status = read_tree(root, path, out, error);
    json_decref(root);
    return status;
}
