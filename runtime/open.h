/* What the runtime's own files know about the public handles. Internal. */
#ifndef MOEPACK_RUNTIME_OPEN_H
#define MOEPACK_RUNTIME_OPEN_H

#include "io/pack.h"
#include "moepack/runtime.h"

#include <string.h>

struct moepack_pack {
    mpk_pack *files;
};

/* Copies a caller's option record, whose first member is its size_t size, over a record of defaults. A caller built
 * against an older header passes a smaller record and keeps the defaults of what it does not know. False: no size this
 * library knows. */
static inline bool mpk_take_options(void *defaults, size_t known_size, const void *given)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > known_size) return false;
    memcpy(defaults, given, size);
    return true;
}

#endif
