/* Tensor names against the family table. */
#include "families.h"

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
    uint64_t layer = 0;
    uint32_t p = 0;
    while (p < family->prefix_count && !mpk_pattern_match(family->prefixes[p].pattern, name, &layer, &out->suffix)) p++;
    if (p == family->prefix_count || layer >= UINT32_MAX) return;
    out->prefix = p;
    out->layer = (uint32_t)layer;
    out->kind = MPK_NAME_OTHER;
    for (uint32_t r = 0; r < family->role_count; r++) {
        if (strcmp(family->roles[r].name, out->suffix) != 0) continue;
        out->role = &family->roles[r];
        out->kind = MPK_NAME_ROLE;
        return;
    }
    if (match_sections(family, out->suffix, &out->expert))
        out->kind = MPK_NAME_EXPERT;
    else if (family->expert_stem && strncmp(out->suffix, family->expert_stem, strlen(family->expert_stem)) == 0)
        out->kind = MPK_NAME_UNKNOWN_EXPERT;
}
