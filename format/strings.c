/* Interned strings: each text once, at an address that stays, numbered in order of first use. */
#include "string_pool.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)64 << 10)

typedef struct chunk {
    struct chunk *next;
    size_t used, size;
    char bytes[];
} chunk;

typedef struct entry {
    const char *data;
    uint32_t length, offset;
} entry;

struct mpk_strings {
    chunk *first, *last;
    entry *entries;
    size_t count;
    uint32_t *slots; /* entry number + 1; a power of two of them, at least half empty */
    size_t slot_count;
    uint64_t bytes;
};

void mpk_strings_free(mpk_strings *strings)
{
    if (strings == NULL) return;
    for (chunk *c = strings->first; c != NULL;) {
        chunk *next = c->next;
        free(c);
        c = next;
    }
    free(strings->entries);
    free(strings->slots);
    free(strings);
}

uint64_t mpk_strings_size(const mpk_strings *strings)
{
    return strings == NULL ? 0 : strings->bytes;
}

void mpk_strings_write(const mpk_strings *strings, uint8_t *out)
{
    if (strings == NULL) return;
    for (size_t i = 0; i < strings->count; ++i) {
        memcpy(out + strings->entries[i].offset, strings->entries[i].data, strings->entries[i].length);
    }
}

/* Slot of a text, or the empty one where it belongs. */
static size_t slot_of(const mpk_strings *s, const char *text, size_t length)
{
    size_t at = (size_t)moepack_hash64(text, length) & (s->slot_count - 1);
    while (s->slots[at] != 0) {
        const entry *e = &s->entries[s->slots[at] - 1];
        if (e->length == length && memcmp(e->data, text, length) == 0) break;
        at = (at + 1) & (s->slot_count - 1);
    }
    return at;
}

static bool grow_slots(mpk_strings *s)
{
    size_t more = s->slot_count == 0 ? 64 : 2 * s->slot_count;
    uint32_t *slots = calloc(more, sizeof *slots);
    if (slots == NULL) return false;
    free(s->slots);
    s->slots = slots;
    s->slot_count = more;
    for (size_t i = 0; i < s->count; ++i)
        s->slots[slot_of(s, s->entries[i].data, s->entries[i].length)] = (uint32_t)i + 1;
    return true;
}

static char *copy_text(mpk_strings *s, const char *text, size_t length)
{
    if (s->last == NULL || s->last->size - s->last->used < length) {
        size_t size = length > CHUNK ? length : CHUNK;
        chunk *c = malloc(sizeof *c + size);
        if (c == NULL) return NULL;
        *c = (chunk){.next = NULL, .used = 0, .size = size};
        if (s->last != NULL)
            s->last->next = c;
        else
            s->first = c;
        s->last = c;
    }
    char *at = s->last->bytes + s->last->used;
    memcpy(at, text, length);
    s->last->used += length;
    return at;
}

bool mpk_strings_find(const mpk_strings *strings, moepack_str text, uint32_t *offset)
{
    *offset = 0;
    if (text.length == 0) return true;
    if (strings == NULL || strings->slot_count == 0) return false;
    uint32_t slot = strings->slots[slot_of(strings, text.data, text.length)];
    if (slot == 0) return false;
    *offset = strings->entries[slot - 1].offset;
    return true;
}

bool mpk_tables_string(mpk_tables *tables, const char *text, size_t length, moepack_str *out)
{
    *out = (moepack_str){"", 0};
    if (length == 0) return true;
    if (tables->strings == NULL) tables->strings = calloc(1, sizeof *tables->strings);
    mpk_strings *s = tables->strings;
    if (s == NULL) return false;
    if (2 * (s->count + 1) > s->slot_count && !grow_slots(s)) return false;
    size_t at = slot_of(s, text, length);
    if (s->slots[at] == 0) {
        /* STRINGS has fewer than 2^32 - 1 entries, which are bytes. */
        if (length >= UINT32_MAX || s->bytes + length >= UINT32_MAX || s->count >= UINT32_MAX - 1) return false;
        if (!mpk_grow(&s->entries, s->count, sizeof *s->entries)) return false;
        char *copy = copy_text(s, text, length);
        if (copy == NULL) return false;
        s->entries[s->count++] = (entry){copy, (uint32_t)length, (uint32_t)s->bytes};
        s->bytes += length;
        s->slots[at] = (uint32_t)s->count;
    }
    const entry *e = &s->entries[s->slots[at] - 1];
    *out = (moepack_str){e->data, e->length};
    return true;
}
