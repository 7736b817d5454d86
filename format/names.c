/* Names of roles, planes and encodings; labels of blocks; published names of sections. */
#include "names.h"

#include <stdio.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char *const role_names[] = {
    [MOEPACK_ROLE_NONE] = "none",
    [MOEPACK_ROLE_GATE] = "gate",
    [MOEPACK_ROLE_UP] = "up",
    [MOEPACK_ROLE_DOWN] = "down",
    [MOEPACK_ROLE_ROUTER] = "router",
    [MOEPACK_ROLE_ROUTER_BIAS] = "router_bias",
    [MOEPACK_ROLE_LOGIT_BIAS] = "logit_bias",
    [MOEPACK_ROLE_LATENT_DOWN] = "latent_down",
    [MOEPACK_ROLE_LATENT_NORM] = "latent_norm",
    [MOEPACK_ROLE_LATENT_UP] = "latent_up",
    [MOEPACK_ROLE_SHARED_GATE] = "shared_gate",
    [MOEPACK_ROLE_SHARED_UP] = "shared_up",
    [MOEPACK_ROLE_SHARED_DOWN] = "shared_down",
    [MOEPACK_ROLE_SHARED_ROUTER] = "shared_router",
    [MOEPACK_ROLE_TOKEN_TABLE] = "token_table",
};

static const char *const plane_names[] = {
    [MOEPACK_PLANE_NONE] = "none",   [MOEPACK_PLANE_WEIGHT] = "weight",
    [MOEPACK_PLANE_SCALE] = "scale", [MOEPACK_PLANE_GLOBAL_SCALE] = "global_scale",
    [MOEPACK_PLANE_BIAS] = "bias",   [MOEPACK_PLANE_SHAPE] = "shape",
    [MOEPACK_PLANE_OTHER] = "other", [MOEPACK_PLANE_GLOBAL_DIVISOR] = "global_divisor",
};

static const struct {
    const char *name;
    unsigned bits;
} encodings[] = {
    [MOEPACK_ENC_NONE] = {"none", 0},  [MOEPACK_ENC_F32] = {"F32", 32},
    [MOEPACK_ENC_BF16] = {"BF16", 16}, [MOEPACK_ENC_F16] = {"F16", 16},
    [MOEPACK_ENC_E2M1] = {"E2M1", 4},  [MOEPACK_ENC_E4M3] = {"E4M3", 8},
    [MOEPACK_ENC_E8M0] = {"E8M0", 8},  [MOEPACK_ENC_INT4_OFFSET] = {"INT4_OFFSET", 4},
    [MOEPACK_ENC_I32] = {"I32", 32},   [MOEPACK_ENC_I64] = {"I64", 64},
};

const char *moepack_role_name(moepack_role role)
{
    return (unsigned)role < COUNT(role_names) ? role_names[role] : NULL;
}

const char *moepack_plane_name(moepack_plane plane)
{
    return (unsigned)plane < COUNT(plane_names) ? plane_names[plane] : NULL;
}

const char *moepack_encoding_name(moepack_encoding encoding)
{
    return (unsigned)encoding < COUNT(encodings) ? encodings[encoding].name : NULL;
}

unsigned mpk_encoding_bits(moepack_encoding encoding)
{
    return (unsigned)encoding < COUNT(encodings) ? encodings[encoding].bits : 0;
}

void mpk_label(moepack_stack stack, uint32_t number, char *buf)
{
    static const char *const stacks[] = {"", "encoder.", "decoder.", "mtp."};
    const char *stack_name = (unsigned)stack < COUNT(stacks) ? stacks[stack] : "?.";
    snprintf(buf, MOEPACK_LABEL_MAX, "%s%u", stack_name, (unsigned)number);
}

static const char placeholder[] = "{expert}";
#define PLACEHOLDER_LENGTH (sizeof placeholder - 1)

/* Where the first placeholder at or after `from` starts; the pattern's length if there is none. */
static uint32_t find_placeholder(moepack_str pattern, uint32_t from)
{
    if (from >= pattern.length) return pattern.length;
    const char *found = memmem(pattern.data + from, pattern.length - from, placeholder, PLACEHOLDER_LENGTH);
    return found == NULL ? pattern.length : (uint32_t)(found - pattern.data);
}

unsigned mpk_pattern_experts(moepack_str pattern)
{
    unsigned n = 0;
    uint32_t at = find_placeholder(pattern, 0);
    while (at < pattern.length) {
        ++n;
        at = find_placeholder(pattern, at + (uint32_t)PLACEHOLDER_LENGTH);
    }
    return n;
}

static size_t put(char *buf, size_t size, size_t used, const char *bytes, size_t length)
{
    if (length > 0 && size > 0 && used < size - 1) {
        size_t room = size - 1 - used;
        memcpy(buf + used, bytes, length < room ? length : room);
    }
    return used + length;
}

size_t mpk_section_name(moepack_str prefix, moepack_str pattern, uint32_t expert, char *buf, size_t size)
{
    char digits[16];
    int digit_count = snprintf(digits, sizeof digits, "%u", (unsigned)expert);
    uint32_t at = find_placeholder(pattern, 0);
    size_t used = put(buf, size, 0, prefix.data, prefix.length);
    used = put(buf, size, used, pattern.data, at);
    if (at < pattern.length) {
        uint32_t rest = at + (uint32_t)PLACEHOLDER_LENGTH;
        used = put(buf, size, used, digits, (size_t)digit_count);
        used = put(buf, size, used, pattern.data + rest, pattern.length - rest);
    }
    if (size > 0) buf[used < size ? used : size - 1] = '\0';
    return used;
}

int mpk_str_compare(moepack_str a, moepack_str b)
{
    uint32_t common = a.length < b.length ? a.length : b.length;
    /* Strings may share bytes: equal starts need no look. */
    int order = common == 0 || a.data == b.data ? 0 : memcmp(a.data, b.data, common);
    if (order != 0) return order;
    return a.length < b.length ? -1 : a.length > b.length;
}
