/* The routing policy record: one table of keys, and everything that is driven by it.
 * spec/container.md section 6 lists the same keys; a test compares the two. */
#include "policy.h"

#include "bytes.h"
#include "error.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const mpk_policy_value yes_no[] = {{0, "no"}, {1, "yes"}};
static const mpk_policy_value scores[] = {
    {MOEPACK_SCORE_SOFTMAX, "softmax"},
    {MOEPACK_SCORE_SIGMOID, "sigmoid"},
    {MOEPACK_SCORE_SQRT_SOFTPLUS, "sqrt_softplus"},
    {MOEPACK_SCORE_SOFTMAX_SELECTED, "softmax_selected"},
    {MOEPACK_SCORE_SIGMOID_SELECTED, "sigmoid_selected"},
    {MOEPACK_SCORE_SPARSEMIXER, "sparsemixer"},
};
static const mpk_policy_value selects[] = {
    {MOEPACK_SELECT_SCORE, "score"},
    {MOEPACK_SELECT_BIASED, "biased"},
    {MOEPACK_SELECT_TOKEN_TABLE, "token_table"},
};
static const mpk_policy_value weight_sources[] = {{MOEPACK_WEIGHT_UNBIASED, "unbiased"},
                                                  {MOEPACK_WEIGHT_BIASED, "biased"}};
static const mpk_policy_value renormalizations[] = {
    {MOEPACK_RENORM_NONE, "none"},
    {MOEPACK_RENORM_SUM, "sum"},
    {MOEPACK_RENORM_SUM_EPS, "sum_eps"},
};
static const mpk_policy_value scale_whens[] = {
    {MOEPACK_SCALE_ALWAYS, "always"},
    {MOEPACK_SCALE_IF_NOT_RENORMALIZED, "if_not_renormalized"},
};
static const mpk_policy_value group_scores[] = {{MOEPACK_GROUP_MAX, "max"}, {MOEPACK_GROUP_TOP2_SUM, "top2_sum"}};
static const mpk_policy_value group_masks[] = {{MOEPACK_MASK_NEG_INF, "neg_inf"}, {MOEPACK_MASK_ZERO, "zero"}};
static const mpk_policy_value activations[] = {
    {MOEPACK_ACT_RELU, "relu"},
    {MOEPACK_ACT_RELU2, "relu2"},
    {MOEPACK_ACT_SILU, "silu"},
    {MOEPACK_ACT_SILU_CLAMPED, "silu_clamped"},
    {MOEPACK_ACT_SWIGLU_OAI, "swiglu_oai"},
    {MOEPACK_ACT_GELU, "gelu"},
    {MOEPACK_ACT_SITU, "situ"},
    {MOEPACK_ACT_GELU_TANH, "gelu_tanh"},
};
static const mpk_policy_value shared_gates[] = {{MOEPACK_SHARED_GATE_NONE, "none"},
                                                {MOEPACK_SHARED_GATE_SIGMOID, "sigmoid"}};
static const mpk_policy_value weight_places[] = {
    {MOEPACK_APPLY_OUTPUT, "output"},
    {MOEPACK_APPLY_HIDDEN, "hidden"},
    {MOEPACK_APPLY_INPUT, "input"},
};
static const mpk_policy_value capacities[] = {
    {MOEPACK_CAPACITY_NONE, "none"},
    {MOEPACK_CAPACITY_PER_SEQUENCE, "per_sequence"},
    {MOEPACK_CAPACITY_FACTOR, "factor"},
};
/* Only these four ever hold logits in a published model. */
static const mpk_policy_value logit_dtypes[] = {
    {MOEPACK_DTYPE_F16, "F16"},
    {MOEPACK_DTYPE_BF16, "BF16"},
    {MOEPACK_DTYPE_F32, "F32"},
    {MOEPACK_DTYPE_F64, "F64"},
};

typedef struct policy_key {
    uint16_t id; /* never reused for another meaning */
    uint16_t type;
    const char *name;
    size_t at; /* offset of the field in moepack_policy */
    const mpk_policy_value *values;
    size_t value_count;
    uint64_t u64_default;
    double f64_default;
    bool not_negative;
} policy_key;

#define FIELD(name) #name, offsetof(moepack_policy, name)
#define NUMBER(id, name, start)                                     \
    {                                                               \
        id, MPK_POLICY_U64, FIELD(name), NULL, 0, start, 0.0, false \
    }
#define REAL(id, name, start)                                     \
    {                                                             \
        id, MPK_POLICY_F64, FIELD(name), NULL, 0, 0, start, false \
    }
/* Epsilons, limits and betas: a negative one has no meaning in any formula. */
#define MAGNITUDE(id, name, start)                               \
    {                                                            \
        id, MPK_POLICY_F64, FIELD(name), NULL, 0, 0, start, true \
    }
#define CHOICE(id, name, values, start)                                           \
    {                                                                             \
        id, MPK_POLICY_U64, FIELD(name), values, COUNT(values), start, 0.0, false \
    }

/* Defaults: a plain softmax top-1 layer without groups, latent or shared experts. Real numbers that a family does not
 * use keep the value its formula would need to have no effect, or the one every known family uses (1e-20, 1.702). */
static const policy_key keys[] = {
    NUMBER(1, hidden, 0),
    NUMBER(2, expert_input, 0),
    NUMBER(3, intermediate, 0),
    NUMBER(4, top_k, 1),
    CHOICE(5, score, scores, MOEPACK_SCORE_SOFTMAX),
    CHOICE(6, select, selects, MOEPACK_SELECT_SCORE),
    CHOICE(7, weight_from, weight_sources, MOEPACK_WEIGHT_UNBIASED),
    CHOICE(8, renormalize, renormalizations, MOEPACK_RENORM_NONE),
    MAGNITUDE(9, renorm_eps, 1e-20),
    CHOICE(10, renorm_k1, yes_no, 0),
    REAL(11, scale, 1.0),
    CHOICE(12, scale_when, scale_whens, MOEPACK_SCALE_ALWAYS),
    NUMBER(13, groups, 1),
    NUMBER(14, groups_kept, 1),
    CHOICE(15, group_score, group_scores, MOEPACK_GROUP_MAX),
    CHOICE(16, group_mask, group_masks, MOEPACK_MASK_NEG_INF),
    CHOICE(17, logit_bias, yes_no, 0),
    CHOICE(18, activation, activations, MOEPACK_ACT_SILU),
    CHOICE(19, gated, yes_no, 1),
    REAL(20, act_alpha, 1.702),
    MAGNITUDE(21, act_limit, 0.0),
    MAGNITUDE(22, situ_beta, 1.0),
    MAGNITUDE(23, situ_linear_beta, 0.0),
    CHOICE(24, expert_bias, yes_no, 0),
    CHOICE(25, latent, yes_no, 0),
    CHOICE(26, latent_norm, yes_no, 0),
    MAGNITUDE(27, norm_eps, 1e-5),
    NUMBER(28, shared_width, 0),
    CHOICE(29, shared_gate, shared_gates, MOEPACK_SHARED_GATE_NONE),
    CHOICE(30, shared_activation, activations, MOEPACK_ACT_SILU),
    MAGNITUDE(31, shared_act_limit, 0.0),
    CHOICE(32, weight_applied, weight_places, MOEPACK_APPLY_OUTPUT),
    CHOICE(33, token_ids, yes_no, 0),
    MAGNITUDE(34, sparsemixer_eps, 0.01),
    CHOICE(35, capacity, capacities, MOEPACK_CAPACITY_NONE),
    NUMBER(36, capacity_tokens, 0),
    REAL(37, capacity_factor, 1.0),
    NUMBER(38, capacity_min, 0),
    CHOICE(39, router_dtype, logit_dtypes, MOEPACK_DTYPE_F32),
};

_Static_assert(sizeof(moepack_policy) == COUNT(keys) * 8, "every field of moepack_policy has a key");
_Static_assert(COUNT(keys) <= 64, "mpk_policy_entry.overridden has one bit a key");

size_t moepack_policy_key_count(void)
{
    return COUNT(keys);
}

uint16_t mpk_policy_key_id(size_t i)
{
    return keys[i].id;
}

mpk_policy_type mpk_policy_key_type(size_t i)
{
    return (mpk_policy_type)keys[i].type;
}

const char *mpk_policy_key_name(size_t i)
{
    return keys[i].name;
}

size_t mpk_policy_values(size_t i, const mpk_policy_value **values)
{
    *values = keys[i].values;
    return keys[i].value_count;
}

size_t mpk_policy_key_find(uint16_t id)
{
    for (size_t i = 0; i < COUNT(keys); ++i) {
        if (keys[i].id == id) return i;
    }
    return SIZE_MAX;
}

static size_t find_name(const char *name)
{
    for (size_t i = 0; i < COUNT(keys); ++i) {
        if (strcmp(keys[i].name, name) == 0) return i;
    }
    return SIZE_MAX;
}

/* Both types of field are 8 bytes wide, so one copy serves them. */
uint64_t mpk_policy_bits(const moepack_policy *policy, size_t i)
{
    uint64_t bits;
    memcpy(&bits, (const char *)policy + keys[i].at, sizeof bits);
    return bits;
}

void mpk_policy_set_bits(moepack_policy *policy, size_t i, uint64_t bits)
{
    memcpy((char *)policy + keys[i].at, &bits, sizeof bits);
}

static double real_value(const moepack_policy *policy, size_t i)
{
    uint64_t bits = mpk_policy_bits(policy, i);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void set_real(moepack_policy *policy, size_t i, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    mpk_policy_set_bits(policy, i, bits);
}

static const char *value_name(const policy_key *key, uint64_t value)
{
    for (size_t v = 0; v < key->value_count; ++v) {
        if (key->values[v].value == value) return key->values[v].name;
    }
    return NULL;
}

bool mpk_policy_value_known(const moepack_policy *policy, size_t i)
{
    return keys[i].values == NULL || value_name(&keys[i], mpk_policy_bits(policy, i)) != NULL;
}

const char *mpk_policy_value_name(const moepack_policy *policy, const char *key)
{
    size_t i = find_name(key);
    const char *name = i == SIZE_MAX ? NULL : value_name(&keys[i], mpk_policy_bits(policy, i));
    return name != NULL ? name : "?";
}

void moepack_policy_init(moepack_policy *policy)
{
    memset(policy, 0, sizeof *policy);
    for (size_t i = 0; i < COUNT(keys); ++i) {
        if (keys[i].type == MPK_POLICY_F64)
            set_real(policy, i, keys[i].f64_default);
        else
            mpk_policy_set_bits(policy, i, keys[i].u64_default);
    }
}

static moepack_status fail_value(const policy_key *key, const char *value, moepack_error *error)
{
    if (key->values == NULL) {
        return mpk_fail(error, MOEPACK_E_USAGE, "policy key %s needs %s, not \"%.60s\"", key->name,
                        key->type == MPK_POLICY_F64 ? "a finite number" : "a whole number", value);
    }
    char allowed[200] = "";
    size_t used = 0;
    for (size_t v = 0; v < key->value_count && used < sizeof allowed; ++v) {
        used += (size_t)snprintf(allowed + used, sizeof allowed - used, "%s%s", v > 0 ? ", " : "", key->values[v].name);
    }
    return mpk_fail(error, MOEPACK_E_USAGE, "policy key %s is one of %s, not \"%.60s\"", key->name, allowed, value);
}

static bool parse_u64(const char *text, uint64_t *out)
{
    if (text[0] < '0' || text[0] > '9') return false; /* strtoull would take signs and spaces */
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    *out = value;
    return errno == 0 && *end == '\0';
}

static bool parse_real(const char *text, double *out)
{
    if (text[0] == '\0' || strspn(text, "+-.0123456789eE") != strlen(text)) return false;
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

moepack_status moepack_policy_set(moepack_policy *policy, const char *key, const char *value, moepack_error *error)
{
    if (policy == NULL || key == NULL || value == NULL) {
        return mpk_fail(error, MOEPACK_E_USAGE, "moepack_policy_set: missing argument");
    }
    size_t i = find_name(key);
    if (i == SIZE_MAX) {
        return mpk_fail(error, MOEPACK_E_USAGE, "\"%.60s\" is no policy key", key);
    }
    if (keys[i].type == MPK_POLICY_F64) {
        double real;
        if (!parse_real(value, &real)) return fail_value(&keys[i], value, error);
        set_real(policy, i, real);
        return MOEPACK_OK;
    }
    for (size_t v = 0; v < keys[i].value_count; ++v) {
        if (strcmp(keys[i].values[v].name, value) == 0) {
            mpk_policy_set_bits(policy, i, keys[i].values[v].value);
            return MOEPACK_OK;
        }
    }
    uint64_t number;
    bool boolean = keys[i].values == yes_no; /* 0 and 1 are accepted for no and yes */
    if ((keys[i].values != NULL && !boolean) || !parse_u64(value, &number) || (boolean && number > 1)) {
        return fail_value(&keys[i], value, error);
    }
    mpk_policy_set_bits(policy, i, number);
    return MOEPACK_OK;
}

/* Shortest decimal text that reads back as the same double. */
static void real_text(double value, char *buf, size_t size)
{
    for (int digits = 1; digits <= 17; ++digits) {
        snprintf(buf, size, "%.*g", digits, value);
        if (strtod(buf, NULL) == value) return;
    }
}

moepack_status moepack_policy_get(const moepack_policy *policy, size_t i, const char **key, char *value,
                                  size_t value_size)
{
    if (policy == NULL || i >= COUNT(keys)) return MOEPACK_E_USAGE;
    char text[40];
    uint64_t bits = mpk_policy_bits(policy, i);
    const char *name = value_name(&keys[i], bits);
    if (keys[i].type == MPK_POLICY_F64) {
        real_text(real_value(policy, i), text, sizeof text);
        name = text;
    } else if (name == NULL) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)bits);
        name = text;
    }
    if (key != NULL) *key = keys[i].name;
    if (value != NULL && value_size > 0) snprintf(value, value_size, "%s", name);
    return MOEPACK_OK;
}

/* Layers compute in F32, so a number that F32 cannot hold is none they could use. */
static moepack_status check_real(const policy_key *key, double value, moepack_error *error)
{
    if (!isfinite(value)) return mpk_fail(error, MOEPACK_E_USAGE, "policy: %s is not a finite number", key->name);
    if (!isfinite((float)value))
        return mpk_fail(error, MOEPACK_E_USAGE, "policy: %s is %g, beyond the range of F32", key->name, value);
    if (key->not_negative && value < 0)
        return mpk_fail(error, MOEPACK_E_USAGE, "policy: %s is %g, must not be negative", key->name, value);
    return MOEPACK_OK;
}

static moepack_status check_values(const moepack_policy *p, moepack_error *error)
{
    for (size_t i = 0; i < COUNT(keys); ++i) {
        if (!mpk_policy_value_known(p, i)) {
            return mpk_fail(error, MOEPACK_E_USAGE, "policy: %s has no value %llu", keys[i].name,
                            (unsigned long long)mpk_policy_bits(p, i));
        }
        if (keys[i].type == MPK_POLICY_F64) {
            moepack_status status = check_real(&keys[i], real_value(p, i), error);
            if (status != MOEPACK_OK) return status;
        }
    }
    return MOEPACK_OK;
}

bool moepack_policy_same_structure(const moepack_policy *stored, const moepack_policy *changed)
{
    const moepack_policy *a = stored, *b = changed;
    return a->hidden == b->hidden && a->expert_input == b->expert_input && a->intermediate == b->intermediate &&
           a->gated == b->gated && a->expert_bias == b->expert_bias && a->logit_bias == b->logit_bias &&
           a->latent == b->latent && a->latent_norm >= b->latent_norm && a->shared_width == b->shared_width &&
           a->shared_gate == b->shared_gate && a->token_ids == b->token_ids;
}

moepack_status moepack_policy_check(const moepack_policy *p, uint64_t experts, moepack_error *error)
{
    moepack_status status = check_values(p, error);
    if (status != MOEPACK_OK) return status;
    const unsigned long long k = p->top_k, n = experts, g = p->groups, kept = p->groups_kept;
    if (k < 1 || k > n) {
        return mpk_fail(error, MOEPACK_E_USAGE, "policy: top_k is %llu of %llu experts", k, n);
    }
    if (g < 1 || n % g != 0) {
        return mpk_fail(error, MOEPACK_E_USAGE, "policy: %llu experts do not split into %llu groups", n, g);
    }
    if (kept < 1 || kept > g) {
        return mpk_fail(error, MOEPACK_E_USAGE, "policy: groups_kept is %llu of %llu groups", kept, g);
    }
    uint64_t reachable; /* cannot overflow: kept <= g, so the product is at most n */
    if (!mpk_mul64(kept, n / g, &reachable) || k > reachable) {
        return mpk_fail(error, MOEPACK_E_USAGE, "policy: top_k is %llu, but the %llu kept groups hold %llu experts", k,
                        kept, (unsigned long long)(kept * (n / g)));
    }
    if (!((float)p->situ_beta > 0)) { /* tiny values are 0 in F32 */
        return mpk_fail(error, MOEPACK_E_USAGE, "policy: situ_beta is %g, must be above 0", p->situ_beta);
    }
    if (p->latent == 0 && p->expert_input != p->hidden) {
        return mpk_fail(error, MOEPACK_E_USAGE, "policy: expert_input is %llu and hidden %llu without a latent space",
                        (unsigned long long)p->expert_input, (unsigned long long)p->hidden);
    }
    return MOEPACK_OK;
}
