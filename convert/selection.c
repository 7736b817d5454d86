/* Parses --layers and --experts. */
#include "selection.h"

#include "error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const stack_names[] = {
    [MOEPACK_STACK_MAIN] = "",
    [MOEPACK_STACK_ENCODER] = "encoder",
    [MOEPACK_STACK_DECODER] = "decoder",
    [MOEPACK_STACK_MTP] = "mtp",
};
#define STACKS (sizeof stack_names / sizeof stack_names[0])

const char *mpk_stack_name(moepack_stack stack)
{
    return (size_t)stack < STACKS ? stack_names[stack] : "unknown";
}

void mpk_block_label(moepack_stack stack, uint32_t number, char *buf)
{
    const char *name = mpk_stack_name(stack);
    snprintf(buf, MOEPACK_LABEL_MAX, "%s%s%" PRIu32, name, name[0] ? "." : "", number);
}

/* One item of a list: [first, last] of a stack. `text` and `length` are its spelling, for messages. */
typedef struct item {
    const char *text;
    size_t length;
    moepack_stack stack;
    uint64_t first, last;
    bool range;
} item;

static bool read_number(const char **at, const char *end, uint64_t *number)
{
    const char *p = *at;
    uint64_t value = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        value = value * 10 + (uint64_t)(*p - '0');
        if (value > UINT32_MAX) return false;
    }
    bool some = p > *at;
    *at = p;
    *number = value;
    return some;
}

static bool read_item(const char *text, size_t length, bool stacks, item *out)
{
    const char *p = text, *end = text + length;
    *out = (item){.text = text, .length = length, .stack = MOEPACK_STACK_MAIN};
    for (size_t s = 0; stacks && s < STACKS; s++) {
        size_t n = strlen(stack_names[s]);
        if (n == 0 || n >= length || strncmp(text, stack_names[s], n) != 0 || text[n] != '.') continue;
        out->stack = (moepack_stack)s;
        p = text + n + 1;
    }
    if (!read_number(&p, end, &out->first)) return false;
    out->last = out->first;
    if (p < end && *p == '-') {
        p++;
        out->range = true;
        if (!read_number(&p, end, &out->last)) return false;
    }
    return p == end && out->first <= out->last;
}

static moepack_status bad_item(const item *it, const char *option, const char *what, moepack_error *error)
{
    int length = it->length < 60 ? (int)it->length : 60;
    return mpk_fail(error, MOEPACK_E_USAGE, "%s: \"%.*s\" %s", option, length, it->text, what);
}

/* Calls `apply` for every item. */
static moepack_status each_item(const char *text, const char *option, bool stacks,
                                moepack_status (*apply)(void *user, const item *it, moepack_error *error), void *user,
                                moepack_error *error)
{
    for (const char *p = text;; p++) {
        size_t length = strcspn(p, ",");
        item it;
        if (!read_item(p, length, stacks, &it))
            return bad_item(&(item){.text = p, .length = length}, option,
                            stacks ? "is neither a layer (3, encoder.1, mtp.0) nor a range (3-7)"
                                   : "is neither an expert number nor a range (0-13)",
                            error);
        moepack_status status = apply(user, &it, error);
        if (status) return status;
        p += length;
        if (*p == 0) return MOEPACK_OK;
    }
}

typedef struct layer_target {
    const mpk_selection_block *blocks;
    size_t count;
    uint8_t *selected;
    bool part;
} layer_target;

static moepack_status apply_layers(void *user, const item *it, moepack_error *error)
{
    const layer_target *target = user;
    uint64_t highest = 0;
    bool stack_exists = false, hit = false;
    for (size_t i = 0; i < target->count; i++) {
        if (target->blocks[i].stack != it->stack) continue;
        uint64_t number = target->blocks[i].number;
        stack_exists = true;
        if (number > highest) highest = number;
        if (number < it->first || number > it->last) continue;
        target->selected[i] = 1;
        hit = true;
    }
    char what[128];
    if (!hit && target->part) return bad_item(it, "layers", "is not in this container", error);
    if (target->part) return MOEPACK_OK;
    if (!stack_exists) return bad_item(it, "layers", "names a stack that this model does not have", error);
    if (it->last > highest) {
        snprintf(what, sizeof what, "is beyond the model, whose last MoE layer is %" PRIu64, highest);
        return bad_item(it, "layers", what, error);
    }
    if (!hit) return bad_item(it, "layers", it->range ? "holds no MoE layer" : "is no MoE layer", error);
    return MOEPACK_OK;
}

moepack_status mpk_select_layers(const char *text, const mpk_selection_block *blocks, size_t count, uint8_t *selected,
                                 moepack_error *error)
{
    return mpk_select_layers_of_part(text, blocks, count, false, selected, error);
}

moepack_status mpk_select_layers_of_part(const char *text, const mpk_selection_block *blocks, size_t count, bool part,
                                         uint8_t *selected, moepack_error *error)
{
    memset(selected, text ? 0 : 1, count);
    layer_target target = {blocks, count, selected, part};
    return text ? each_item(text, "layers", true, apply_layers, &target, error) : MOEPACK_OK;
}

typedef struct expert_target {
    size_t count;
    uint8_t *selected;
} expert_target;

static moepack_status apply_experts(void *user, const item *it, moepack_error *error)
{
    const expert_target *target = user;
    if (it->last >= target->count) {
        char what[128];
        snprintf(what, sizeof what, "is beyond the model, which has %zu experts", target->count);
        return bad_item(it, "experts", what, error);
    }
    memset(target->selected + it->first, 1, (size_t)(it->last - it->first + 1));
    return MOEPACK_OK;
}

moepack_status mpk_select_experts(const char *text, size_t count, uint8_t *selected, moepack_error *error)
{
    memset(selected, text ? 0 : 1, count);
    expert_target target = {count, selected};
    return text ? each_item(text, "experts", false, apply_experts, &target, error) : MOEPACK_OK;
}
