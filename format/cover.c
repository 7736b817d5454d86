/* Do the matrices of a section hold each of its bits exactly once?
 *
 * In half bytes, a matrix is a run (one element, or elements side by side) repeated at one or two strides. Matrices
 * that take turns have equal strides, and their runs fill one period: together they are one longer run. Folding such
 * groups until nothing changes leaves plain runs for every arrangement that anyone publishes: whole, transposed,
 * halves, rows in turns, elements in turns. Anything else is counted element by element, as long as it is small. */
#include "cover.h"

#include "layout.h"

#include <stdlib.h>
#include <string.h>

typedef struct piece {
    uint64_t base, run;     /* in half bytes */
    uint64_t n[2], step[2]; /* levels of repetition, smaller step first; n = 1: none */
} piece;

static void swap_levels(piece *p)
{
    uint64_t n = p->n[0], step = p->step[0];
    p->n[0] = p->n[1];
    p->step[0] = p->step[1];
    p->n[1] = n;
    p->step[1] = step;
}

/* Levels that do not repeat go last, runs that touch become one, two levels that continue each other become one.
 * Nothing overflows: all places are inside the section, so run, n and step stay below its length or twice that. */
static void normalise(piece *p)
{
    for (unsigned i = 0; i < 2; ++i) {
        if (p->n[i] == 1) p->step[i] = 0;
    }
    if (p->n[0] == 1 || (p->n[1] > 1 && p->step[1] < p->step[0])) swap_levels(p);
    while (p->n[0] > 1 && p->step[0] == p->run) {
        p->run *= p->n[0];
        p->n[0] = 1;
        p->step[0] = 0;
        swap_levels(p);
    }
    if (p->n[1] > 1 && p->step[1] == p->n[0] * p->step[0]) {
        p->n[0] *= p->n[1];
        p->n[1] = 1;
        p->step[1] = 0;
    }
}

static int compare(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

/* Pieces with equal levels together, in order of place. */
static int by_levels(const void *a, const void *b)
{
    const piece *pa = (const piece *)a, *pb = (const piece *)b;
    for (unsigned i = 0; i < 2; ++i) {
        if (pa->n[i] != pb->n[i]) return compare(pa->n[i], pb->n[i]);
        if (pa->step[i] != pb->step[i]) return compare(pa->step[i], pb->step[i]);
    }
    return compare(pa->base, pb->base);
}

static bool same_levels(const piece *a, const piece *b)
{
    return a->n[0] == b->n[0] && a->n[1] == b->n[1] && a->step[0] == b->step[0] && a->step[1] == b->step[1];
}

/* Finds one group whose runs fill a period and makes it one piece; false if there is none. */
static bool fold_one(piece *pieces, uint32_t *count)
{
    qsort(pieces, *count, sizeof *pieces, by_levels);
    for (uint32_t i = 0; i < *count; ++i) {
        piece *p = &pieces[i];
        uint64_t filled = 0;
        uint32_t j = i;
        if (p->n[0] == 1) continue;
        while (j < *count && filled < p->step[0] && same_levels(p, &pieces[j]) && pieces[j].base == p->base + filled)
            filled += pieces[j++].run;
        if (filled != p->step[0]) continue;
        p->run = p->n[0] * p->step[0];
        p->n[0] = 1;
        normalise(p);
        memmove(pieces + i + 1, pieces + j, (*count - j) * sizeof *pieces);
        *count -= j - i - 1;
        return true;
    }
    return false;
}

/* What is left are runs one behind the other, or something else. */
static mpk_cover judge(const piece *pieces, uint32_t count, uint64_t length)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < count; ++i) {
        if (pieces[i].n[0] > 1) return MPK_COVER_UNKNOWN;
    }
    for (uint32_t i = 0; i < count; ++i) { /* sorted by place: all levels are equal */
        if (pieces[i].base != end) return MPK_COVER_NO;
        end += pieces[i].run;
    }
    return end == length ? MPK_COVER_YES : MPK_COVER_NO;
}

/* Marks each half byte; a second mark is the answer. */
static mpk_cover count_all(const moepack_matrix *matrices, uint32_t count, uint64_t length, uint64_t *budget)
{
    if (length > *budget) return MPK_COVER_UNKNOWN;
    *budget -= length;
    uint8_t *marked = calloc((size_t)length + 1, 1);
    if (marked == NULL) return MPK_COVER_UNKNOWN;
    bool twice = false;
    for (uint32_t i = 0; i < count && !twice; ++i) {
        const moepack_matrix *m = &matrices[i];
        const uint64_t width = m->bits / 4;
        for (uint64_t r = 0; r < m->rows && !twice; ++r) {
            for (uint64_t c = 0; c < m->cols; ++c) {
                uint8_t *at = marked + (m->base + r * m->row_stride + c * m->col_stride) * width;
                for (uint64_t k = 0; k < width; ++k) twice = twice || at[k]++ != 0;
                if (twice) break;
            }
        }
    }
    free(marked);
    return twice ? MPK_COVER_NO : MPK_COVER_YES; /* as many bits as there are, none twice: all */
}

mpk_cover mpk_matrices_cover(const moepack_matrix *matrices, uint32_t count, uint64_t canonical_length,
                             uint64_t *budget)
{
    piece pieces[MPK_MATRICES_MAX];
    uint32_t used = 0;
    if (count > MPK_MATRICES_MAX) return MPK_COVER_UNKNOWN;
    for (uint32_t i = 0; i < count; ++i) {
        const moepack_matrix *m = &matrices[i];
        const uint64_t width = m->bits / 4;
        if (m->rows == 0 || m->cols == 0) continue;
        if ((m->rows > 1 && m->row_stride == 0) || (m->cols > 1 && m->col_stride == 0)) return MPK_COVER_NO;
        pieces[used] = (piece){m->base * width,
                               width,
                               {m->rows, m->cols},
                               {m->rows > 1 ? m->row_stride * width : 0, m->cols > 1 ? m->col_stride * width : 0}};
        normalise(&pieces[used++]);
    }
    while (fold_one(pieces, &used)) continue;
    mpk_cover cover = judge(pieces, used, 2 * canonical_length);
    return cover == MPK_COVER_UNKNOWN ? count_all(matrices, count, 2 * canonical_length, budget) : cover;
}
