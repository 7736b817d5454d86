/* Whether matrices hold every bit of a section exactly once (spec/container.md 4.6). Internal. */
#ifndef MOEPACK_FORMAT_COVER_H
#define MOEPACK_FORMAT_COVER_H

#include "moepack/format.h"

typedef enum mpk_cover {
    MPK_COVER_YES,
    MPK_COVER_NO,
    MPK_COVER_UNKNOWN, /* too involved for the budget, or out of memory */
} mpk_cover;

/* At most 64 matrices, all elements of which lie inside the section, and which together have as many bits as it has.
 * *budget is what may still be spent on counting element by element, in half bytes; the usual arrangements need none of
 * it. */
mpk_cover mpk_matrices_cover(const moepack_matrix *matrices, uint32_t count, uint64_t canonical_length,
                             uint64_t *budget);

#endif
