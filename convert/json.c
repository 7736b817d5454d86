/* Parsing JSON through jansson: duplicate keys refused, errors with path and offset. */
#include "json.h"

#include "error.h"

#include <string.h>

static moepack_status parse(const char *text, size_t size, size_t flags, const char *path, uint64_t base, json_t **out,
                            size_t *used, moepack_error *error)
{
    json_error_t detail;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | flags, &detail);
    *used = detail.position > 0 ? (size_t)detail.position : 0;
    if (!root) {
        bool memory = json_error_code(&detail) == json_error_out_of_memory;
        moepack_status status = memory ? MOEPACK_E_REFUSED : MOEPACK_E_CORRUPT;
        mpk_fail(error, status, "not valid JSON: %s", detail.text);
        mpk_error_file(error, path);
        mpk_error_offset(error, base + *used);
        return status;
    }
    *out = root;
    return MOEPACK_OK;
}

moepack_status mpk_json_parse(const char *text, size_t size, const char *path, uint64_t base, json_t **out,
                              moepack_error *error)
{
    size_t used;
    return parse(text, size, 0, path, base, out, &used, error);
}

moepack_status mpk_json_parse_part(const char *text, size_t size, const char *path, uint64_t base, json_t **out,
                                   size_t *used, moepack_error *error)
{
    return parse(text, size, JSON_DISABLE_EOF_CHECK, path, base, out, used, error);
}

const char *mpk_json_kind(const json_t *value)
{
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    }
    return "an unknown value";
}

/* json_dumpb would need memory for the whole of a large value; the callback stops it as soon as the buffer is full. */
typedef struct shown_text {
    char *buf;
    size_t size, used;
    bool cut;
} shown_text;

static int show_part(const char *part, size_t length, void *user)
{
    shown_text *text = user;
    size_t room = text->size - 1 - text->used;
    size_t take = length < room ? length : room;
    memcpy(text->buf + text->used, part, take);
    text->used += take;
    text->cut = take < length;
    return text->cut ? -1 : 0;
}

const char *mpk_json_show(const json_t *value, char *buf, size_t size)
{
    if (size == 0) return buf;
    shown_text text = {buf, size, 0, false};
    if (value) json_dump_callback(value, show_part, &text, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    buf[text.used] = 0;
    if (text.cut && size > 4) memcpy(buf + size - 4, "...", 4);
    return buf;
}

bool mpk_json_u64(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value)) return false;
    json_int_t number = json_integer_value(value);
    if (number < 0) return false;
    *out = (uint64_t)number;
    return true;
}
