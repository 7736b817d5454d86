/* The list of families, and what the public headers tell of them. The tables are in families_*.c; their facts come from
 * the published files of each family and the modelling code published with them. */
#include "families_tables.h"

#include "bytes.h"
#include "moepack/convert.h"
#include "storage_forms.h"

#include <string.h>

/* Ordered: the first whose type matches is taken. */
static const mpk_family *const families[] = {
    &mpk_family_kimi_k3,     &mpk_family_kimi_linear, &mpk_family_deepseek,   &mpk_family_deepseek_v2,
    &mpk_family_deepseek_v3, &mpk_family_glm4_moe,    &mpk_family_mixtral,    &mpk_family_qwen3_moe,
    &mpk_family_olmoe,       &mpk_family_qwen2_moe,   &mpk_family_qwen3_next, &mpk_family_qwen3_5_moe,
    &mpk_family_gpt_oss,     &mpk_family_granitemoe,  &mpk_family_llama4,     &mpk_family_dbrx,
    &mpk_family_phimoe,      &mpk_family_nemotron_h,  &mpk_family_switch,     &mpk_family_deepseek_v4,
    &mpk_family_minimax_m2,
};

/* Model types that somebody may well try, and what of them has no table or no field in this version. */
static const struct {
    const char *model_type, *reason;
} refused[] = {
    {"qwen3_vl_moe", "its experts are fused tensors, transposed"},
};

/* ------------------------------------------------------------------------------------------------ access */

const mpk_family *mpk_family_at(size_t i)
{
    return i < COUNT(families) ? families[i] : NULL;
}

const char *moepack_family_name(size_t i)
{
    return i < COUNT(families) ? families[i]->name : NULL;
}

const char *mpk_family_refusal(const char *model_type)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        if (strcmp(refused[i].model_type, model_type) == 0) return refused[i].reason;
    }
    return NULL;
}

const char *moepack_family_about(size_t i)
{
    return i < COUNT(families) ? families[i]->about : NULL;
}

const char *moepack_family_tested(size_t i)
{
    return i < COUNT(families) ? families[i]->tested : NULL;
}

/* A type may be in the table several times, with different conditions; it is told once. */
const char *moepack_family_type(size_t i, size_t t)
{
    if (i >= COUNT(families)) return NULL;
    const mpk_family *family = families[i];
    for (uint32_t k = 0; k < family->type_count; k++) {
        bool told = false;
        for (uint32_t j = 0; j < k; j++)
            told = told || strcmp(family->types[j].model_type, family->types[k].model_type) == 0;
        if (!told && t-- == 0) return family->types[k].model_type;
    }
    return NULL;
}

/* Those of single matrices, each once, where the family has such; then fused ones. */
const char *moepack_family_form(size_t i, size_t f)
{
    if (i >= COUNT(families)) return NULL;
    const mpk_family_form *plain = mpk_family_plain(families[i]);
    const mpk_storage_form *form, *last = NULL;
    for (size_t k = 0; plain && (form = mpk_storage_form_at(k)) != NULL; k++) {
        if (last && strcmp(last->name, form->name) == 0) continue;
        last = form;
        if (f-- == 0) return form->name;
    }
    for (uint32_t k = 0; k < families[i]->form_count; k++) {
        if (strchr(families[i]->forms[k].sections[0].pattern, '{')) continue;
        if (f-- == 0) return families[i]->forms[k].name;
    }
    return NULL;
}

bool mpk_term_value(mpk_term term, const uint64_t size[MPK_SIZE_COUNT], uint64_t *value)
{
    uint64_t product = term.mul;
    if (!mpk_mul64(product, size[term.a], &product) || !mpk_mul64(product, size[term.b], &product)) return false;
    if (product % term.div != 0) return false;
    *value = product / term.div;
    return true;
}
