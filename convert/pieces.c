/* Names every piece of a container once and places pieces in their source files: what verify and export share. */
#include "pieces.h"

#include "build.h"
#include "bytes.h"
#include "error.h"
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

/* ---- descriptions ---- */

static moepack_status load_desc(mpk_pieces *pieces, uint32_t number, moepack_error *error)
{
    while (pieces->desc_count <= number) {
        if (!mpk_grow(&pieces->descs, pieces->desc_count, sizeof *pieces->descs))
            return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        pieces->descs[pieces->desc_count++] = (mpk_index_desc){0};
    }
    mpk_index_desc *d = &pieces->descs[number];
    if (d->loaded) return MOEPACK_OK;
    moepack_index_desc(pieces->index, number, &d->desc);
    d->dims = calloc((size_t)d->desc.rank + 1, sizeof *d->dims);
    d->matrices = calloc((size_t)d->desc.matrix_count + 1, sizeof *d->matrices);
    d->loaded = true;
    if (!d->dims || !d->matrices) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (uint32_t i = 0; i < d->desc.rank; i++) d->dims[i] = moepack_index_dim(pieces->index, d->desc.first_dim + i);
    for (uint32_t i = 0; i < d->desc.matrix_count; i++)
        moepack_index_matrix(pieces->index, d->desc.first_matrix + i, &d->matrices[i]);
    return MOEPACK_OK;
}

/* ---- names ---- */

/* Names under construction: pieces hold positions until the text stops moving. */
typedef struct name_text {
    char *text;
    size_t size, capacity;
} name_text;

static bool reserve_text(name_text *names, size_t more)
{
    if (names->capacity - names->size >= more) return true;
    size_t capacity = names->capacity ? names->capacity : 4096;
    while (capacity - names->size < more) {
        if (capacity > SIZE_MAX / 2) return false;
        capacity *= 2;
    }
    char *text = realloc(names->text, capacity);
    if (!text) return false;
    names->text = text;
    names->capacity = capacity;
    return true;
}

static moepack_status add_expert_name(const moepack_index *index, mpk_index_piece *piece, uint32_t s, name_text *names,
                                      size_t *position, moepack_error *error)
{
    size_t room = names->capacity - names->size;
    size_t length = moepack_index_section_name(index, piece->block, piece->expert, s,
                                               room ? names->text + names->size : NULL, room);
    if (length >= room) {
        if (!reserve_text(names, length + 1)) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        moepack_index_section_name(index, piece->block, piece->expert, s, names->text + names->size,
                                   names->capacity - names->size);
    }
    *position = names->size;
    names->size += length;
    piece->name_length = (uint32_t)length;
    return MOEPACK_OK;
}

typedef struct builder {
    mpk_pieces *pieces;
    name_text names;
    size_t *position; /* of each expert piece's name */
} builder;

static moepack_status add_piece(builder *b, const mpk_index_piece *piece, moepack_error *error)
{
    mpk_pieces *pieces = b->pieces;
    if (!mpk_grow(&pieces->piece, pieces->count, sizeof *pieces->piece) ||
        !mpk_grow(&b->position, pieces->count, sizeof *b->position))
        return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    b->position[pieces->count] = 0;
    pieces->piece[pieces->count++] = *piece;
    return load_desc(pieces, piece->desc, error);
}

static moepack_status add_record(builder *b, uint32_t block, uint32_t expert, const moepack_record *record,
                                 moepack_error *error)
{
    uint32_t first, count;
    moepack_index_schema(b->pieces->index, record->schema, &first, &count);
    moepack_status status = MOEPACK_OK;
    for (uint32_t s = 0; s < count && status == MOEPACK_OK; s++) {
        mpk_index_piece piece = {.desc = first + s,
                                 .shard = record->shard,
                                 .block = block,
                                 .expert = expert,
                                 .section = record->first_section + s};
        size_t position = 0;
        status = add_expert_name(b->pieces->index, &piece, s, &b->names, &position, error);
        if (status == MOEPACK_OK) status = add_piece(b, &piece, error);
        if (status == MOEPACK_OK) b->position[b->pieces->count - 1] = position;
    }
    return status;
}

static moepack_status add_tensor(builder *b, uint32_t tensor, moepack_error *error)
{
    moepack_tensor t;
    moepack_index_tensor(b->pieces->index, tensor, &t);
    mpk_index_piece piece = {.name = t.name.data,
                             .name_length = t.name.length,
                             .desc = t.desc,
                             .shard = t.shard,
                             .block = t.block,
                             .expert = UINT32_MAX,
                             .file = t.source_file,
                             .section = t.section};
    return add_piece(b, &piece, error);
}

static int name_order(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t common = a_length < b_length ? a_length : b_length;
    int order = common ? memcmp(a, b, common) : 0;
    if (order != 0) return order;
    return a_length < b_length ? -1 : a_length > b_length;
}

static int piece_order(const void *left, const void *right)
{
    const mpk_index_piece *a = left, *b = right;
    int order = name_order(a->name, a->name_length, b->name, b->name_length);
    if (order != 0) return order;
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    return a->expert < b->expert ? -1 : a->expert > b->expert;
}

moepack_status mpk_pieces_open(const moepack_index *index, mpk_pieces *out, moepack_error *error)
{
    *out = (mpk_pieces){.index = index};
    builder b = {.pieces = out};
    moepack_status status = MOEPACK_OK;
    for (uint32_t i = 0; i < moepack_index_blocks(index); i++) {
        moepack_block block;
        moepack_index_block(index, i, &block);
        for (uint32_t e = 0; e < block.experts && status == MOEPACK_OK; e++) {
            moepack_record record;
            moepack_index_record(index, block.first_record + e, &record);
            if (record.shard != MOEPACK_NO_SHARD) status = add_record(&b, i, e, &record, error);
        }
    }
    size_t expert_pieces = out->count;
    for (uint32_t i = 0; i < moepack_index_tensors(index) && status == MOEPACK_OK; i++)
        status = add_tensor(&b, i, error);
    for (size_t i = 0; status == MOEPACK_OK && i < expert_pieces; i++)
        out->piece[i].name = b.names.text + b.position[i];
    out->names = b.names.text;
    free(b.position);
    if (status != MOEPACK_OK)
        mpk_pieces_close(out);
    else if (out->count)
        qsort(out->piece, out->count, sizeof *out->piece, piece_order);
    return status;
}

void mpk_pieces_close(mpk_pieces *pieces)
{
    for (size_t i = 0; i < pieces->desc_count; i++) {
        free(pieces->descs[i].dims);
        free(pieces->descs[i].matrices);
    }
    free(pieces->descs);
    free(pieces->piece);
    free(pieces->names);
    *pieces = (mpk_pieces){0};
}

void mpk_pieces_shape(const mpk_pieces *pieces, const mpk_index_piece *piece, mpk_shape *out)
{
    mpk_shape_of(&pieces->descs[piece->desc].desc, pieces->descs[piece->desc].matrices, out);
}

/* Number of experts that a fused tensor's slices belong to. */
static uint32_t experts_of(const mpk_pieces *pieces, const mpk_index_piece *piece)
{
    moepack_block block;
    moepack_index_block(pieces->index, piece->block, &block);
    return block.experts;
}

moepack_status mpk_pieces_canonical_root(const mpk_pieces *pieces, moepack_hash128 *out, moepack_error *error)
{
    mpk_root_item *items = calloc(pieces->count ? pieces->count : 1, sizeof *items);
    if (!items) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (size_t i = 0; i < pieces->count; i++) {
        const mpk_index_piece *piece = &pieces->piece[i];
        const mpk_index_desc *desc = &pieces->descs[piece->desc];
        moepack_section section;
        moepack_index_section(pieces->index, piece->section, &section);
        items[i] = (mpk_root_item){.name = piece->name,
                                   .name_length = piece->name_length,
                                   .dims = desc->dims,
                                   .rank = desc->desc.rank,
                                   .dtype = desc->desc.dtype,
                                   .slices = desc->desc.fused ? experts_of(pieces, piece) : 0,
                                   .flat = desc->desc.flat,
                                   .expert = piece->expert == UINT32_MAX ? UINT64_MAX : piece->expert,
                                   .file = piece->file,
                                   .hash = section.xxh3_canonical};
    }
    moepack_status status = mpk_canonical_root(items, pieces->count, out, error);
    free(items);
    return status;
}

/* ---- places in a source file ---- */

/* First piece whose name is not below `name`. */
static size_t lower_bound(const mpk_pieces *pieces, const char *name, size_t length)
{
    size_t low = 0, high = pieces->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const mpk_index_piece *piece = &pieces->piece[middle];
        if (name_order(piece->name, piece->name_length, name, length) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool has_name(const mpk_pieces *pieces, size_t i, const char *name, size_t length)
{
    return i < pieces->count && pieces->piece[i].name_length == length &&
           memcmp(pieces->piece[i].name, name, length) == 0;
}

/* A piece must be what the header says of its tensor (or, fused, of one slice of it). */
static bool agrees(const mpk_pieces *pieces, const mpk_index_piece *piece, const moepack_safetensors_tensor *tensor)
{
    const mpk_index_desc *d = &pieces->descs[piece->desc];
    const uint64_t *dims = tensor->dims;
    uint32_t rank = tensor->rank;
    uint64_t length = tensor->length, first = rank > 0 ? dims[0] : 0;
    if (d->desc.fused) {
        uint32_t experts = experts_of(pieces, piece);
        if (rank == 0 || experts == 0 || length % experts != 0) return false;
        if (d->desc.flat ? dims[0] % experts != 0 : dims[0] != experts) return false;
        length /= experts;
        if (d->desc.flat) {
            first /= experts;
        } else {
            dims++;
            rank--;
            first = rank > 0 ? dims[0] : 0;
        }
    }
    return d->desc.dtype == tensor->dtype && d->desc.rank == rank && d->desc.canonical_length == length &&
           (rank == 0 || (d->dims[0] == first && memcmp(d->dims + 1, dims + 1, (rank - 1) * sizeof *dims) == 0));
}

typedef struct placing {
    const mpk_pieces *pieces;
    uint32_t file;
    mpk_placed *placed;
    size_t count;
    uint64_t missing;
} placing;

static moepack_status place_tensor(placing *p, const moepack_safetensors_tensor *tensor, uint32_t order,
                                   moepack_error *error)
{
    size_t length = strlen(tensor->name);
    uint32_t found = 0, wanted = 1;
    moepack_status status = MOEPACK_OK;
    for (size_t i = lower_bound(p->pieces, tensor->name, length); has_name(p->pieces, i, tensor->name, length); i++) {
        const mpk_index_piece *piece = &p->pieces->piece[i];
        bool trunk = piece->expert == UINT32_MAX, fused = p->pieces->descs[piece->desc].desc.fused;
        if (trunk && piece->file != p->file) continue;
        if (!agrees(p->pieces, piece, tensor)) {
            status = mpk_fail(error, MOEPACK_E_CORRUPT, "the stored source header and the index disagree");
            break;
        }
        uint64_t bytes = p->pieces->descs[piece->desc].desc.canonical_length;
        if (fused) wanted = experts_of(p->pieces, piece);
        if (!mpk_grow(&p->placed, p->count, sizeof *p->placed))
            return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        p->placed[p->count++] = (mpk_placed){.offset = tensor->offset + (fused ? bytes * piece->expert : 0),
                                             .length = bytes,
                                             .order = order,
                                             .piece = i};
        found++;
    }
    if (status == MOEPACK_OK && found > wanted)
        status = mpk_fail(error, MOEPACK_E_CORRUPT, "the container holds this tensor twice");
    if (status != MOEPACK_OK) mpk_error_tensor(error, tensor->name, -1);
    p->missing += found < wanted ? wanted - found : 0;
    return status;
}

/* Offset, then the shorter (empty) one first, then the header's own order of equals, which is by name. */
static int placed_order(const void *left, const void *right)
{
    const mpk_placed *a = left, *b = right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    if (a->order != b->order) return a->order < b->order ? -1 : 1;
    return a->piece < b->piece ? -1 : a->piece > b->piece;
}

static moepack_status parse_header(const void *section, size_t size, uint64_t file_size, const char *name,
                                   moepack_safetensors **out, moepack_error *error)
{
    *out = NULL;
    if (size < 8 || mpk_load64(section) != size - 8)
        return mpk_fail(error, MOEPACK_E_CORRUPT, "the stored source header has a wrong length word");
    moepack_safetensors *file = calloc(1, sizeof *file);
    if (!file) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    file->fd = -1;
    moepack_status status = mpk_safetensors_parse(file, (const char *)section + 8, size - 8, file_size, name, error);
    if (status != MOEPACK_OK) {
        moepack_safetensors_close(file);
        return status;
    }
    *out = file;
    return MOEPACK_OK;
}

moepack_status mpk_pieces_place(const mpk_pieces *pieces, uint32_t file, const void *section, size_t size,
                                mpk_placed **placed, size_t *count, uint64_t *missing, moepack_error *error)
{
    placing p = {.pieces = pieces, .file = file};
    moepack_source_file source;
    moepack_safetensors *header;
    moepack_info info;
    char name[256];
    *placed = NULL;
    *count = 0;
    *missing = 0;
    moepack_index_info(pieces->index, &info);
    moepack_index_source_file(pieces->index, file, &source);
    size_t length = source.name.length < sizeof name ? source.name.length : sizeof name - 1;
    memcpy(name, source.name.data, length);
    name[length] = '\0';
    moepack_status status = parse_header(section, size, source.length, name, &header, error);
    for (size_t i = 0; status == MOEPACK_OK && i < moepack_safetensors_count(header); i++) {
        moepack_safetensors_tensor tensor;
        moepack_safetensors_get(header, i, &tensor);
        status = place_tensor(&p, &tensor, (uint32_t)i, error);
        if (status == MOEPACK_OK && p.missing && !info.subset) {
            status = mpk_fail(error, MOEPACK_E_CORRUPT, "the container lacks a tensor of its source");
            mpk_error_tensor(error, tensor.name, -1);
        }
    }
    moepack_safetensors_close(header);
    if (status != MOEPACK_OK) {
        mpk_error_file(error, name);
        free(p.placed);
        return status;
    }
    if (p.count) qsort(p.placed, p.count, sizeof *p.placed, placed_order);
    *placed = p.placed;
    *count = p.count;
    *missing = p.missing;
    return MOEPACK_OK;
}

moepack_status mpk_pieces_file_hash(const mpk_pieces *pieces, uint32_t file, const mpk_placed *placed, size_t count,
                                    moepack_hash128 *out, moepack_error *error)
{
    mpk_word_hash hash;
    moepack_source_file source;
    moepack_section section;
    if (!mpk_word_hash_begin(&hash)) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    moepack_index_source_file(pieces->index, file, &source);
    moepack_index_section(pieces->index, source.section, &section);
    mpk_word_hash_add(&hash, section.xxh3_canonical);
    for (size_t i = 0; i < count; i++) {
        moepack_index_section(pieces->index, pieces->piece[placed[i].piece].section, &section);
        mpk_word_hash_add(&hash, section.xxh3_canonical);
    }
    *out = mpk_word_hash_end(&hash);
    return MOEPACK_OK;
}
