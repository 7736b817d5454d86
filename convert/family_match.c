/* Tensor names against the family table. */
#include "families.h"
#include "storage_forms.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Decimal digits without a leading zero; NULL when there are none or the value does not fit. */
static const char *read_number(const char *text, uint64_t *number)
{
    uint64_t value = 0;
    const char *p = text;
    if (*p < '0' || *p > '9' || (p[0] == '0' && p[1] >= '0' && p[1] <= '9')) return NULL;
    for (; *p >= '0' && *p <= '9'; p++) {
        unsigned digit = (unsigned)(*p - '0');
        if (value > (UINT64_MAX - 1 - digit) / 10) return NULL; /* UINT64_MAX itself stands for "no number" */
        value = value * 10 + digit;
    }
    *number = value;
    return p;
}

bool mpk_pattern_match(const char *pattern, const char *text, uint64_t *number, const char **rest)
{
    const char *hole = strchr(pattern, '{');
    *number = UINT64_MAX;
    if (hole) {
        size_t head = (size_t)(hole - pattern);
        if (strncmp(pattern, text, head) != 0) return false;
        text = read_number(text + head, number);
        if (!text) return false;
        pattern = strchr(hole, '}') + 1;
    }
    size_t tail = strlen(pattern);
    if (strncmp(pattern, text, tail) != 0) return false;
    if (rest) {
        *rest = text + tail;
        return true;
    }
    return text[tail] == 0;
}

size_t mpk_pattern_fill(const char *pattern, uint64_t number, char *buf, size_t size)
{
    const char *hole = strchr(pattern, '{');
    if (!hole) return (size_t)snprintf(buf, size, "%s", pattern);
    const char *tail = strchr(hole, '}') + 1;
    return (size_t)snprintf(buf, size, "%.*s%" PRIu64 "%s", (int)(hole - pattern), pattern, number, tail);
}

/* ------------------------------------------------------------------------------------------------ storage forms */

static bool ends_in_weight(const char *pattern)
{
    const size_t length = strlen(pattern), tail = strlen(".weight");
    return length > tail && strcmp(pattern + length - tail, ".weight") == 0;
}

const mpk_family_form *mpk_family_plain(const mpk_family *family)
{
    for (uint32_t f = 0; f < family->form_count; f++) {
        const mpk_family_form *form = &family->forms[f];
        bool plain = true;
        for (uint32_t s = 0; s < form->count; s++) {
            const mpk_family_section *section = &form->sections[s];
            plain = plain && section->rank == 2 && section->matrix_count == 1 && strchr(section->pattern, '{') &&
                    ends_in_weight(section->pattern);
        }
        if (plain) return form;
    }
    return NULL;
}

bool mpk_family_role_has_forms(const mpk_family_role *role)
{
    return role->rank == 2 && role->role != MOEPACK_ROLE_ROUTER && role->role != MOEPACK_ROLE_SHARED_ROUTER &&
           ends_in_weight(role->name);
}

/* Whether text is a pattern that ends in "weight" with anything instead of that; *rest is what. */
static bool match_stem(const char *pattern, const char *text, uint64_t *number, const char **rest)
{
    char stem[128];
    const size_t length = strlen(pattern) - strlen("weight");
    if (length >= sizeof stem) return false;
    memcpy(stem, pattern, length);
    stem[length] = 0;
    return mpk_pattern_match(stem, text, number, rest);
}

static bool match_plain(const mpk_family *family, mpk_name *out)
{
    const mpk_family_form *plain = mpk_family_plain(family);
    for (uint32_t s = 0; plain && s < plain->count; s++) {
        uint64_t expert;
        const char *rest;
        if (!match_stem(plain->sections[s].pattern, out->suffix, &expert, &rest) ||
            !mpk_form_find_suffix(rest, &out->form_suffix))
            continue;
        out->expert = expert;
        out->part = s;
        return true;
    }
    return false;
}

/* A role's tensor by its whole name; or one of the other tensors of a matrix. What stands beside a matrix and is in no
 * form could change its values. */
static bool match_role(const mpk_family *family, mpk_name *out)
{
    const mpk_family_role *beside = NULL;
    for (uint32_t r = 0; r < family->role_count; r++) {
        const mpk_family_role *role = &family->roles[r];
        uint64_t number;
        const char *rest;
        const bool same = strcmp(role->name, out->suffix) == 0;
        out->form_suffix = MPK_SUFFIX_WEIGHT;
        out->role = role;
        out->kind = MPK_NAME_ROLE;
        if (same) return true;
        if (!mpk_family_role_has_forms(role) || !match_stem(role->name, out->suffix, &number, &rest)) continue;
        if (mpk_form_find_suffix(rest, &out->form_suffix)) return true;
        beside = role;
    }
    out->role = NULL;
    out->kind = beside ? MPK_NAME_UNKNOWN_EXPERT : MPK_NAME_OTHER;
    return beside != NULL;
}

/* ------------------------------------------------------------------------------------------------ names */

static bool match_sections(const mpk_family *family, const char *suffix, uint64_t *expert)
{
    for (uint32_t f = 0; f < family->form_count; f++) {
        for (uint32_t s = 0; s < family->forms[f].count; s++) {
            if (mpk_pattern_match(family->forms[f].sections[s].pattern, suffix, expert, NULL)) return true;
        }
    }
    return false;
}

void mpk_family_match(const mpk_family *family, const char *name, mpk_name *out)
{
    memset(out, 0, sizeof *out);
    out->expert = UINT64_MAX;
    out->part = UINT32_MAX;
    uint64_t layer = 0;
    uint32_t p = 0;
    while (p < family->prefix_count && !mpk_pattern_match(family->prefixes[p].pattern, name, &layer, &out->suffix)) p++;
    if (p == family->prefix_count || layer >= UINT32_MAX) return;
    out->prefix = p;
    out->layer = (uint32_t)layer;
    out->kind = MPK_NAME_OTHER;
    if (match_role(family, out)) return;
    if (match_plain(family, out) || match_sections(family, out->suffix, &out->expert))
        out->kind = MPK_NAME_EXPERT;
    else if (family->expert_stem && strncmp(out->suffix, family->expert_stem, strlen(family->expert_stem)) == 0)
        out->kind = MPK_NAME_UNKNOWN_EXPERT;
}
