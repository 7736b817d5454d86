/* Names and dims of a source live in one arena: half a million small strings, freed at once. */
#include "source_internal.h"

#include <stdlib.h>
#include <string.h>

/* Large enough that half a million names take a few dozen blocks, small enough to waste nothing on a tiny model. */
#define ARENA_BLOCK (1u << 20)

typedef struct arena_block {
    struct arena_block *next;
    size_t used, size;
    uint64_t data[];
} arena_block;

struct mpk_arena {
    arena_block *block;
};

mpk_arena *mpk_arena_new(void)
{
    return calloc(1, sizeof(mpk_arena));
}

void mpk_arena_free(mpk_arena *arena)
{
    if (!arena) return;
    for (arena_block *block = arena->block; block;) {
        arena_block *next = block->next;
        free(block);
        block = next;
    }
    free(arena);
}

void *mpk_arena_alloc(mpk_arena *arena, size_t size)
{
    if (size > SIZE_MAX - sizeof(arena_block) - 8) return NULL;
    size_t need = (size + 7) / 8 * 8;
    arena_block *block = arena->block;
    if (!block || block->size - block->used < need) {
        size_t room = need > ARENA_BLOCK ? need : ARENA_BLOCK;
        block = malloc(sizeof *block + room);
        if (!block) return NULL;
        *block = (arena_block){arena->block, 0, room};
        arena->block = block;
    }
    void *memory = (char *)block->data + block->used;
    block->used += need;
    return memory;
}

char *mpk_arena_string(mpk_arena *arena, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = mpk_arena_alloc(arena, size);
    if (copy) memcpy(copy, text, size);
    return copy;
}
