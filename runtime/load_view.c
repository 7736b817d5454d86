/* From sections in memory to the mpk_layer_view of a block. */
#include "load.h"

#include "bytes.h"
#include "element.h"
#include "error.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>

/* Vectors are padded with zeros to whole kernel blocks of 32 columns. */
#define VECTOR_BLOCK 32u

/* ---- matrices ---- */

typedef struct matrix_slot {
    moepack_role role;
    size_t offset;
} matrix_slot;

static const matrix_slot expert_slots[] = {
    {MOEPACK_ROLE_GATE, offsetof(mpk_expert_view, gate)},
    {MOEPACK_ROLE_UP, offsetof(mpk_expert_view, up)},
    {MOEPACK_ROLE_DOWN, offsetof(mpk_expert_view, down)},
};

static const matrix_slot dense_slots[] = {
    {MOEPACK_ROLE_ROUTER, offsetof(mpk_layer_view, router)},
    {MOEPACK_ROLE_LATENT_DOWN, offsetof(mpk_layer_view, latent_down)},
    {MOEPACK_ROLE_LATENT_UP, offsetof(mpk_layer_view, latent_up)},
    {MOEPACK_ROLE_SHARED_GATE, offsetof(mpk_layer_view, shared_gate)},
    {MOEPACK_ROLE_SHARED_UP, offsetof(mpk_layer_view, shared_up)},
    {MOEPACK_ROLE_SHARED_DOWN, offsetof(mpk_layer_view, shared_down)},
    {MOEPACK_ROLE_SHARED_ROUTER, offsetof(mpk_layer_view, shared_router)},
};

static mpk_matrix_view *slot_of(const matrix_slot *slots, size_t count, void *view, moepack_role role)
{
    for (size_t i = 0; i < count; i++)
        if (slots[i].role == role) return (mpk_matrix_view *)(void *)((uint8_t *)view + slots[i].offset);
    return NULL;
}

/* How the scales of a plane are shared out. `weights` may come later, so groups are judged against the plane's own
 * rows and columns: a group is as large as its matrix where there is one in that direction. */
static bool place_scales(const moepack_matrix *m, const uint8_t *at, mpk_matrix_view *to)
{
    to->scales = at;
    to->scale_encoding = m->encoding;
    to->group_cols = m->group_cols;
    if (m->rows == 1 && m->cols == 1 && m->group_rows > 1 && (m->group_rows != 128 || m->group_cols != 128))
        to->scale_kind = MPK_SCALE_ONE;
    else if (m->group_rows == 128 && m->group_cols == 128)
        to->scale_kind = MPK_SCALE_GRID;
    else if (m->group_rows == 1 && (m->group_cols == 16 || m->group_cols == 32))
        to->scale_kind = MPK_SCALE_GROUPS;
    else if (m->group_rows == 1 && m->cols == 1)
        to->scale_kind = MPK_SCALE_ROWS;
    else
        return false;
    return true;
}

/* Enters one plane into its matrix. What the layer has no place for is an error, because leaving it out would compute
 * something else; planes that only describe (shapes, input scales) are passed over. */
static moepack_status place_plane(const moepack_matrix *m, const uint8_t *at, mpk_matrix_view *to, moepack_error *error)
{
    const char *role = moepack_role_name(m->role), *plane = moepack_plane_name(m->plane);
    switch (m->plane) {
    case MOEPACK_PLANE_WEIGHT:
        to->weights = at;
        to->encoding = m->encoding;
        to->rows = m->rows;
        to->cols = m->cols;
        return MOEPACK_OK;
    case MOEPACK_PLANE_SCALE:
        if (to->scales == NULL && place_scales(m, at, to)) return MOEPACK_OK;
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED,
                        "this version cannot compute with scales of %" PRIu32 " x %" PRIu32 " weights of the %s matrix",
                        m->group_rows, m->group_cols, role);
    case MOEPACK_PLANE_GLOBAL_SCALE:
    case MOEPACK_PLANE_GLOBAL_DIVISOR:
        if (to->global != NULL || m->encoding != MOEPACK_ENC_F32 || m->rows != 1 || m->cols != 1)
            return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "the %s of the %s matrix is not one F32", plane, role);
        to->global = at;
        to->global_divides = m->plane == MOEPACK_PLANE_GLOBAL_DIVISOR;
        return MOEPACK_OK;
    case MOEPACK_PLANE_BIAS: /* read by place_biases */
    case MOEPACK_PLANE_SHAPE:
    case MOEPACK_PLANE_OTHER:
        return MOEPACK_OK;
    default:
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "this version cannot compute with a %s of the %s matrix",
                        plane == NULL ? "plane" : plane, role);
    }
}

/* All matrices of a piece into the slots of a view. Only matrices in panel form have an address in the sense of a view.
 */
static moepack_status place_matrices(const moepack_load *load, const mpk_piece *piece, const matrix_slot *slots,
                                     size_t count, void *view, moepack_error *error)
{
    moepack_desc desc;
    moepack_index_desc(load->index, piece->desc, &desc);
    const bool panel = desc.layout == MOEPACK_LAYOUT_PANEL || piece->move == MPK_MOVE_REARRANGE;
    uint64_t at = 0;
    for (uint32_t i = 0; i < desc.matrix_count; i++) {
        moepack_matrix m;
        uint64_t length = 0;
        moepack_index_matrix(load->index, desc.first_matrix + i, &m);
        if (panel && !moepack_panel_length(&m, &length))
            return mpk_load_fail_at(load, piece, mpk_fail(error, MOEPACK_E_UNSUPPORTED, "has no panel form"), error);
        mpk_matrix_view *slot = slot_of(slots, count, view, m.role);
        if (slot != NULL) {
            const uint64_t start = panel ? at : m.base * m.bits / 8;
            moepack_status status = place_plane(&m, piece->data + start, slot, error);
            if (status != MOEPACK_OK) return mpk_load_fail_at(load, piece, status, error);
        }
        at += length;
    }
    return MOEPACK_OK;
}

/* ---- vectors ---- */

static moepack_status decode_vector(const moepack_load *load, const mpk_piece *piece, const moepack_matrix *m,
                                    float *to, moepack_error *error)
{
    for (uint64_t r = 0; r < m->rows; r++) {
        const uint64_t element = m->base + r * m->row_stride;
        switch (m->encoding) {
        case MOEPACK_ENC_F32:
            to[r] = mpk_value_f32(mpk_load32(piece->data + element * 4));
            break;
        case MOEPACK_ENC_BF16:
            to[r] = mpk_value_bf16(mpk_load16(piece->data + element * 2));
            break;
        case MOEPACK_ENC_F16:
            to[r] = mpk_value_f16(mpk_load16(piece->data + element * 2));
            break;
        default:
            return mpk_load_fail_at(
                load, piece,
                mpk_fail(error, MOEPACK_E_UNSUPPORTED, "a vector of %s is not something this version can read",
                         moepack_encoding_name(m->encoding) == NULL ? "no encoding"
                                                                    : moepack_encoding_name(m->encoding)),
                error);
        }
    }
    return MOEPACK_OK;
}

/* The vector of a role as F32, zero-padded; `length` is what the layer needs. */
static moepack_status place_vector(const moepack_load *load, const mpk_piece *piece, uint64_t length, float **own,
                                   moepack_error *error)
{
    moepack_desc desc;
    moepack_matrix m = {0};
    moepack_index_desc(load->index, piece->desc, &desc);
    if (desc.matrix_count == 1) moepack_index_matrix(load->index, desc.first_matrix, &m);
    if (desc.matrix_count != 1 || desc.layout != MOEPACK_LAYOUT_CANONICAL || m.cols != 1 || *own != NULL)
        return mpk_load_fail_at(load, piece, mpk_fail(error, MOEPACK_E_UNSUPPORTED, "is not stored as one vector"),
                                error);
    if (m.rows != length)
        return mpk_load_fail_at(load, piece,
                                mpk_fail(error, MOEPACK_E_UNSUPPORTED,
                                         "has %" PRIu64 " elements, the layer needs %" PRIu64, m.rows, length),
                                error);
    /* m.rows elements lie in a section that is in memory, so this cannot overflow. */
    const size_t bytes = (size_t)((m.rows + VECTOR_BLOCK - 1) / VECTOR_BLOCK * VECTOR_BLOCK) * sizeof(float);
    *own = aligned_alloc(MPK_VIEW_ALIGNMENT, bytes == 0 ? MPK_VIEW_ALIGNMENT : bytes);
    if (*own == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    memset(*own, 0, bytes);
    return decode_vector(load, piece, &m, *own, error);
}

/* The table of experts by token id as I32, with every id checked: the router reads it blindly. */
static moepack_status place_token_table(const moepack_load *load, const mpk_piece *piece, mpk_load_block *entry,
                                        uint32_t experts, moepack_error *error)
{
    moepack_desc desc;
    moepack_matrix m = {0};
    moepack_index_desc(load->index, piece->desc, &desc);
    if (desc.matrix_count == 1) moepack_index_matrix(load->index, desc.first_matrix, &m);
    const bool wide = m.encoding == MOEPACK_ENC_I64;
    if (desc.matrix_count != 1 || (!wide && m.encoding != MOEPACK_ENC_I32) || entry->token_table != NULL ||
        m.cols != entry->view.policy.top_k || piece->move == MPK_MOVE_REARRANGE ||
        desc.layout != MOEPACK_LAYOUT_CANONICAL)
        return mpk_load_fail_at(load, piece,
                                mpk_fail(error, MOEPACK_E_UNSUPPORTED,
                                         "is not a table of %" PRIu64 " expert ids a token, I32 or I64",
                                         entry->view.policy.top_k),
                                error);
    /* rows x cols elements lie in a section that is in memory, so this cannot overflow. */
    entry->token_table = malloc((size_t)(m.rows * m.cols) * sizeof(int32_t) + 1);
    if (entry->token_table == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (uint64_t i = 0; i < m.rows * m.cols; i++) {
        const uint64_t element = m.base + i / m.cols * m.row_stride + i % m.cols * m.col_stride;
        const uint64_t id = wide ? mpk_load64(piece->data + element * 8) : mpk_load32(piece->data + element * 4);
        if (id >= experts)
            return mpk_load_fail_at(load, piece,
                                    mpk_fail(error, MOEPACK_E_CORRUPT,
                                             "token %" PRIu64 " is sent to expert %" PRId64 " of %" PRIu32, i / m.cols,
                                             wide ? (int64_t)id : (int32_t)(uint32_t)id, experts),
                                    error);
        entry->token_table[i] = (int32_t)id;
    }
    entry->view.token_table = entry->token_table;
    entry->view.vocabulary = m.rows;
    return MOEPACK_OK;
}

static uint64_t whole_blocks(uint64_t n)
{
    return (n + VECTOR_BLOCK - 1) / VECTOR_BLOCK * VECTOR_BLOCK;
}

/* One bias of an expert into its place in the block's array. */
static moepack_status place_bias(const moepack_load *load, mpk_load_block *entry, uint32_t expert,
                                 const mpk_piece *piece, const moepack_matrix *m, moepack_error *error)
{
    const moepack_policy *p = &entry->view.policy;
    const uint64_t inner = whole_blocks(p->intermediate), all = 2 * inner + whole_blocks(p->expert_input);
    mpk_expert_view *x = &entry->experts[expert];
    const bool down = m->role == MOEPACK_ROLE_DOWN;
    const float **slot = down ? &x->down_bias : m->role == MOEPACK_ROLE_UP ? &x->up_bias : &x->gate_bias;
    const uint64_t length = down ? p->expert_input : p->intermediate;
    if (m->rows != length || m->cols != 1 || *slot != NULL || !p->expert_bias)
        return mpk_load_fail_at(load, piece,
                                mpk_fail(error, MOEPACK_E_UNSUPPORTED,
                                         "a bias of %" PRIu64 " x %" PRIu64 " elements where the policy says %" PRIu64,
                                         m->rows, m->cols, p->expert_bias ? length : 0),
                                error);
    float *to = entry->expert_bias + expert * all + (down ? 2 * inner : m->role == MOEPACK_ROLE_UP ? inner : 0);
    *slot = to;
    return decode_vector(load, piece, m, to, error);
}

/* The biases among a section's matrices. */
static moepack_status place_biases(const moepack_load *load, mpk_load_block *entry, uint32_t expert,
                                   const mpk_piece *piece, moepack_error *error)
{
    moepack_desc desc;
    moepack_index_desc(load->index, piece->desc, &desc);
    for (uint32_t i = 0; i < desc.matrix_count; i++) {
        moepack_matrix m;
        moepack_index_matrix(load->index, desc.first_matrix + i, &m);
        if (m.plane != MOEPACK_PLANE_BIAS) continue;
        if (desc.layout != MOEPACK_LAYOUT_CANONICAL || piece->move == MPK_MOVE_REARRANGE)
            return mpk_load_fail_at(
                load, piece, mpk_fail(error, MOEPACK_E_UNSUPPORTED, "biases share a section with weights"), error);
        moepack_status status = place_bias(load, entry, expert, piece, &m, error);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}

moepack_status mpk_load_make_biases(mpk_load_block *entry, uint32_t experts, uint64_t *bytes, moepack_error *error)
{
    const moepack_policy *p = &entry->view.policy;
    uint64_t count;
    *bytes = 0;
    if (!p->expert_bias) return MOEPACK_OK;
    if (p->intermediate > UINT32_MAX || p->expert_input > UINT32_MAX ||
        !mpk_mul64(2 * whole_blocks(p->intermediate) + whole_blocks(p->expert_input), experts, &count) ||
        count > SIZE_MAX / sizeof(float))
        return mpk_fail(error, MOEPACK_E_REFUSED, "more bytes than the address space has");
    *bytes = count * sizeof(float);
    entry->expert_bias = calloc((size_t)count, sizeof(float));
    return entry->expert_bias != NULL ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
}

/* ---- blocks ---- */

/* The tensors of the router, or all others. */
static moepack_status place_dense(const moepack_load *load, mpk_load_block *entry, const moepack_block *block,
                                  bool router, moepack_error *error)
{
    mpk_layer_view *view = &entry->view;
    for (uint32_t r = 0; r < block->role_count; r++) {
        moepack_role_entry role;
        moepack_index_role(load->index, block->first_role + r, &role);
        if (mpk_router_role(role.role) != router) continue;
        const mpk_piece *piece = mpk_load_tensor(load, role.tensor);
        if (piece == NULL) return mpk_fail(error, MOEPACK_E_INCOMPLETE, "a tensor of the layer was not loaded");
        moepack_status status;
        if (role.role == MOEPACK_ROLE_ROUTER_BIAS)
            status = place_vector(load, piece, block->experts, &entry->router_bias, error);
        else if (role.role == MOEPACK_ROLE_LOGIT_BIAS)
            status = place_vector(load, piece, block->experts, &entry->logit_bias, error);
        else if (role.role == MOEPACK_ROLE_TOKEN_TABLE)
            status = place_token_table(load, piece, entry, block->experts, error);
        else if (role.role == MOEPACK_ROLE_LATENT_NORM)
            status = place_vector(load, piece, view->policy.expert_input, &entry->latent_norm, error);
        else
            status = place_matrices(load, piece, dense_slots, sizeof dense_slots / sizeof *dense_slots, view, error);
        if (status != MOEPACK_OK) return status;
    }
    view->router_bias = entry->router_bias;
    view->logit_bias = entry->logit_bias;
    view->latent_norm = entry->latent_norm;
    return MOEPACK_OK;
}

moepack_status mpk_load_place_expert(const moepack_load *load, mpk_load_block *entry, uint32_t expert,
                                     moepack_error *error)
{
    moepack_block block;
    moepack_record record;
    uint32_t first_desc, sections;
    moepack_index_block(load->index, entry->block, &block);
    entry->experts[expert] = (mpk_expert_view){0}; /* a residency places an expert again and again */
    moepack_index_record(load->index, block.first_record + expert, &record);
    moepack_index_schema(load->index, record.schema, &first_desc, &sections);
    for (uint32_t s = 0; s < sections; s++) {
        const mpk_piece *piece = &load->pieces[entry->first_piece[expert] + s];
        moepack_status status = place_matrices(load, piece, expert_slots, sizeof expert_slots / sizeof *expert_slots,
                                               &entry->experts[expert], error);
        if (status == MOEPACK_OK) status = place_biases(load, entry, expert, piece, error);
        if (status != MOEPACK_OK) return status;
    }
    return MOEPACK_OK;
}

static moepack_status make_view(const moepack_load *load, mpk_load_block *entry, moepack_error *error)
{
    uint64_t bytes;
    moepack_block block;
    moepack_index_block(load->index, entry->block, &block);
    moepack_status status = moepack_index_policy(load->index, block.policy, &entry->view.policy, NULL, error);
    if (status != MOEPACK_OK) return status;
    entry->view.experts = block.experts;
    entry->view.expert = entry->experts;
    entry->view.present = entry->holds;
    if (!load->dense && !load->router_only)
        return mpk_fail(error, MOEPACK_E_INCOMPLETE, "the layer's router and other dense tensors were not loaded");
    status = place_dense(load, entry, &block, true, error);
    entry->has_router = status == MOEPACK_OK;
    if (load->router_only && status == MOEPACK_OK)
        return mpk_fail(error, MOEPACK_E_INCOMPLETE, "only the layer's router was loaded");
    if (status == MOEPACK_OK) status = place_dense(load, entry, &block, false, error);
    if (status == MOEPACK_OK) status = mpk_load_make_biases(entry, block.experts, &bytes, error);
    for (uint32_t e = 0; e < block.experts && status == MOEPACK_OK; e++)
        if (entry->holds[e]) status = mpk_load_place_expert(load, entry, e, error);
    return status;
}

/* A block that cannot be computed can still be loaded: the reason is kept and given by moepack_layer_run. */
moepack_status mpk_load_make_views(moepack_load *load, moepack_error *error)
{
    for (size_t i = 0; i < load->block_count; i++) {
        mpk_load_block *entry = &load->blocks[i];
        moepack_error why = {0};
        entry->view_status = make_view(load, entry, &why);
        if (entry->view_status == MOEPACK_OK) continue;
        char label[MOEPACK_LABEL_MAX];
        moepack_index_label(load->index, entry->block, label);
        mpk_error_layer(&why, label);
        mpk_error_file(&why, moepack_pack_path(load->pack));
        entry->view_error = why;
        if (entry->view_status == MOEPACK_E_REFUSED) {
            if (error != NULL) *error = why;
            return entry->view_status;
        }
    }
    return MOEPACK_OK;
}

void mpk_load_free_views(mpk_load_block *block)
{
    free(block->router_bias);
    free(block->logit_bias);
    free(block->latent_norm);
    free(block->expert_bias);
    free(block->token_table);
    free(block->experts);
    free(block->holds);
    free(block->computes);
    free(block->first_piece);
}
