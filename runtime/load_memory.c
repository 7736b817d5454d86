/* Memory of a load: arenas, and the sections that kernels cannot use where they were read. */
#include "load.h"

#include "bytes.h"
#include "error.h"
#include "io/machine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

moepack_status mpk_load_memory_make(mpk_load_memory *arena, uint64_t size, moepack_error *error)
{
    memset(arena, 0, sizeof *arena);
    if (size == 0) return MOEPACK_OK;
    if (size > SIZE_MAX - 2 * HUGE_PAGE)
        return mpk_fail(error, MOEPACK_E_REFUSED, "%" PRIu64 " bytes do not fit the address space", size);
    const size_t map_size = (size_t)size + HUGE_PAGE;
    void *map = mmap(NULL, map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return mpk_fail_errno(error, MOEPACK_E_REFUSED, errno, "no memory for %" PRIu64 " bytes", size);
    arena->map = map;
    arena->map_size = map_size;
    arena->base = (uint8_t *)map + (HUGE_PAGE - (uintptr_t)map % HUGE_PAGE) % HUGE_PAGE;
    arena->size = (size_t)size;
#ifdef MADV_HUGEPAGE
    madvise(arena->base, arena->size, MADV_HUGEPAGE); /* advice: less address translation when weights stream by */
#endif
    mpk_memory_spread(arena->base, arena->size);
    return MOEPACK_OK;
}

void mpk_load_memory_free(mpk_load_memory *arena)
{
    if (arena->map != NULL) munmap(arena->map, arena->map_size);
    memset(arena, 0, sizeof *arena);
}

/* ---- what moves ---- */

static bool is_matrix_role(moepack_role role)
{
    switch (role) {
    case MOEPACK_ROLE_GATE:
    case MOEPACK_ROLE_UP:
    case MOEPACK_ROLE_DOWN:
    case MOEPACK_ROLE_ROUTER:
    case MOEPACK_ROLE_LATENT_DOWN:
    case MOEPACK_ROLE_LATENT_UP:
    case MOEPACK_ROLE_SHARED_GATE:
    case MOEPACK_ROLE_SHARED_UP:
    case MOEPACK_ROLE_SHARED_DOWN:
    case MOEPACK_ROLE_SHARED_ROUTER:
        return true;
    default:
        return false;
    }
}

/* Whether kernels need panels where the container holds published order. */
static bool needs_panels(const moepack_index *index, const moepack_desc *desc)
{
    if (desc->layout != MOEPACK_LAYOUT_CANONICAL) return false;
    for (uint32_t m = 0; m < desc->matrix_count; m++) {
        moepack_matrix matrix;
        moepack_index_matrix(index, desc->first_matrix + m, &matrix);
        if (!is_matrix_role(matrix.role) || matrix.bits == 64) continue;
        if (matrix.plane == MOEPACK_PLANE_WEIGHT) return true;
        if (matrix.plane == MOEPACK_PLANE_SCALE && matrix.group_rows == 1) return true;
    }
    return false;
}

static bool panel_length(const moepack_index *index, const moepack_desc *desc, uint64_t *length)
{
    *length = 0;
    for (uint32_t m = 0; m < desc->matrix_count; m++) {
        moepack_matrix matrix;
        uint64_t one;
        moepack_index_matrix(index, desc->first_matrix + m, &matrix);
        if (!moepack_panel_length(&matrix, &one) || !mpk_add64(*length, one, length)) return false;
    }
    return true;
}

/* When most bytes are rearranged, everything else is copied too, and what was read is given up. */
static bool mostly_rearranged(const mpk_load_job *job)
{
    uint64_t rearranged = 0, all = 0;
    for (size_t i = 0; i < job->load->piece_count; i++) {
        const mpk_piece *piece = &job->load->pieces[i];
        all += piece->stored;
        if (piece->move == MPK_MOVE_REARRANGE) rearranged += piece->stored;
    }
    return rearranged > all / 2;
}

moepack_status mpk_load_plan_move(const moepack_load *load, mpk_piece *piece, moepack_error *error)
{
    moepack_desc desc;
    moepack_index_desc(load->index, piece->desc, &desc);
    piece->length = piece->stored;
    if (piece->stored == 0) return MOEPACK_OK;
    if (needs_panels(load->index, &desc)) {
        piece->move = MPK_MOVE_REARRANGE;
        if (!panel_length(load->index, &desc, &piece->length))
            return mpk_load_fail_at(load, piece, mpk_fail(error, MOEPACK_E_UNSUPPORTED, "has no panel form"), error);
    } else if ((uintptr_t)piece->bytes % MPK_VIEW_ALIGNMENT != 0) {
        piece->move = MPK_MOVE_COPY;
    }
    return MOEPACK_OK;
}

moepack_status mpk_load_plan_moves(mpk_load_job *job, moepack_error *error)
{
    moepack_load *load = job->load;
    for (size_t i = 0; i < load->piece_count; i++) {
        moepack_status status = mpk_load_plan_move(load, &load->pieces[i], error);
        if (status != MOEPACK_OK) return status;
    }
    job->gives_up_stored = mostly_rearranged(job);
    uint64_t total = 0;
    for (size_t i = 0; i < load->piece_count; i++) {
        mpk_piece *piece = &load->pieces[i];
        if (job->gives_up_stored && piece->stored > 0 && piece->move == MPK_MOVE_NOT) piece->move = MPK_MOVE_COPY;
        if (piece->move == MPK_MOVE_NOT) continue;
        uint64_t padded;
        if (!mpk_align64(piece->length, MPK_VIEW_ALIGNMENT, &padded) || !mpk_add64(total, padded, &total))
            return mpk_fail(error, MOEPACK_E_REFUSED, "more bytes than the address space has");
    }
    moepack_status status = mpk_load_memory_make(&load->moved, total, error);
    if (status != MOEPACK_OK) return status;
    total = 0;
    for (size_t i = 0; i < load->piece_count; i++) {
        mpk_piece *piece = &load->pieces[i];
        piece->data = piece->bytes;
        if (piece->move == MPK_MOVE_NOT) continue;
        piece->data = load->moved.base + total;
        total += (piece->length + MPK_VIEW_ALIGNMENT - 1) / MPK_VIEW_ALIGNMENT * MPK_VIEW_ALIGNMENT;
    }
    return MOEPACK_OK;
}

/* Gives the whole pages inside a section's stored bytes back, so that memory does not hold everything twice. Of
 * memory's pages: the kernel would round a length up, and take the beginning of the next section. */
static void drop_pages(const mpk_piece *piece)
{
    size_t begin;
    const size_t bytes = mpk_whole_pages(piece->bytes, (size_t)piece->stored, mpk_memory_page(), &begin);
    if (bytes > 0) madvise((void *)((uintptr_t)piece->bytes + begin), bytes, MADV_DONTNEED);
}

moepack_status mpk_load_move_piece(mpk_load_job *job, mpk_piece *piece, moepack_error *error)
{
    moepack_load *load = job->load;
    if (piece->move == MPK_MOVE_NOT) return MOEPACK_OK;
    uint8_t *to = load->moved.base + (piece->data - load->moved.base);
    if (piece->move == MPK_MOVE_COPY) {
        memcpy(to, piece->bytes, (size_t)piece->stored);
    } else {
        moepack_desc desc;
        moepack_index_desc(load->index, piece->desc, &desc);
        moepack_matrix *matrices = calloc(desc.matrix_count, sizeof *matrices);
        if (matrices == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        for (uint32_t m = 0; m < desc.matrix_count; m++)
            moepack_index_matrix(load->index, desc.first_matrix + m, &matrices[m]);
        moepack_status status = moepack_panel_from_canonical(matrices, desc.matrix_count, piece->bytes,
                                                             (size_t)piece->stored, to, (size_t)piece->length, error);
        free(matrices);
        if (status != MOEPACK_OK) return mpk_load_fail_at(load, piece, status, error);
    }
    if (job->gives_up_stored) drop_pages(piece);
    return MOEPACK_OK;
}

void mpk_load_release_stored(mpk_load_job *job)
{
    moepack_load *load = job->load;
    mpk_load_memory_free(&load->stored);
    const uint32_t shards = moepack_index_shards(load->index);
    for (uint32_t s = 0; s < shards; s++) {
        if (load->mappings[s].map == NULL) continue;
        munmap(load->mappings[s].map, load->mappings[s].size);
        load->mappings[s] = (mpk_mapping){NULL, 0};
    }
    for (size_t i = 0; i < load->piece_count; i++) load->pieces[i].bytes = NULL;
}
