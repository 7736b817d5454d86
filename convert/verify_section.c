/* Content of one section: stored hash, part hashes, canonical hash after undoing the weight order, padding elements,
 * and the padding behind it. */
#include "verify_internal.h"

#include "codec.h"

#include <stdio.h>
#include <string.h>

static void set_hashes(moepack_finding *finding, uint64_t expected, uint64_t found)
{
    char text[17];
    moepack_hash64_text(expected, text);
    snprintf(finding->expected, sizeof finding->expected, "%s", text);
    moepack_hash64_text(found, text);
    snprintf(finding->found, sizeof finding->found, "%s", text);
}

static void found_hash(mpk_verify *v, mpk_check *check, uint64_t offset, uint64_t length, uint64_t expected,
                       uint64_t found, const char *message)
{
    moepack_finding finding;
    mpk_verify_describe(v, check, &finding);
    finding.offset = offset;
    finding.length = length;
    set_hashes(&finding, expected, found);
    snprintf(finding.message, sizeof finding.message, "%s", message);
    check->bad = true;
    mpk_verify_found(v, check->shard, &finding);
}

/* Bytes that could not be read or are beyond the end of the file. */
static void found_unread(mpk_verify *v, mpk_check *check, const moepack_error *error)
{
    moepack_finding finding;
    mpk_verify_describe(v, check, &finding);
    mpk_verify_explain(error, &finding);
    check->bad = true;
    mpk_verify_found(v, check->shard, &finding);
}

/* An element outside the matrix that is not the padding value; `at` from the section's start. */
static void found_padding(mpk_verify *v, mpk_check *check, uint64_t at)
{
    moepack_finding finding;
    mpk_verify_describe(v, check, &finding);
    finding.offset = check->offset + at;
    finding.length = 1;
    snprintf(finding.expected, sizeof finding.expected, "zero codes, scales of 1.0");
    snprintf(finding.found, sizeof finding.found, "other values");
    snprintf(finding.message, sizeof finding.message, "padding elements are not what the weight order asks for");
    mpk_verify_found(v, check->shard, &finding);
}

static void found_codec(mpk_verify *v, mpk_check *check, unsigned codec)
{
    moepack_finding finding;
    mpk_verify_describe(v, check, &finding);
    finding.unsupported = true;
    snprintf(finding.message, sizeof finding.message,
             "codec %u is not known to this version: the published bytes cannot be checked", codec);
    check->bad = true;
    mpk_verify_found(v, check->shard, &finding);
}

/* ---- parts ---- */

typedef struct part_check {
    mpk_verify *v;
    mpk_check *check;
    uint32_t first;
} part_check;

static void check_part(void *user, uint64_t i, uint64_t xxh3)
{
    part_check *p = user;
    uint32_t length;
    uint64_t expected;
    moepack_index_part(p->v->index, p->first + (uint32_t)i, &length, &expected);
    if (xxh3 != expected)
        found_hash(p->v, p->check, p->check->offset + i * MPK_PART, length, expected, xxh3,
                   "stored bytes of this part do not match their hash");
}

/* ---- sections ---- */

void mpk_verify_shape(const mpk_verify *v, const mpk_check *check, mpk_shape *out)
{
    if (check->piece == MPK_NO_PIECE)
        mpk_shape_opaque(check->length, out);
    else
        mpk_pieces_shape(&v->pieces, &v->pieces.piece[check->piece], out);
}

/* A chunk in weight order: both hashes, and padding elements; `stored` is read from memory once. */
static moepack_status restore(const mpk_chunk *chunk, const uint8_t *stored, uint8_t *canonical,
                              mpk_section_hash *hasher, uint64_t *padding, moepack_error *error)
{
    mpk_chunker steps;
    mpk_chunk step;
    moepack_status status = MOEPACK_OK;
    mpk_chunk_steps(chunk, &steps);
    while (status == MOEPACK_OK && mpk_chunker_next(&steps, &step)) {
        const uint8_t *from = stored + step.stored_offset;
        uint64_t at;
        mpk_section_hash_stored(hasher, from, step.stored_length);
        status = moepack_panel_to_canonical(step.matrices, step.matrix_count, from, step.stored_length, canonical,
                                            step.canonical_length, error);
        if (status != MOEPACK_OK) break;
        mpk_section_hash_canonical(hasher, canonical, step.canonical_length);
        if (*padding == UINT64_MAX && !mpk_panel_padding(step.matrices, step.matrix_count, from, &at))
            *padding = chunk->stored_offset + step.stored_offset + at;
    }
    return status;
}

/* Reads and checks chunk by chunk. *padding: the first byte with a wrong padding element, UINT64_MAX if none. */
static moepack_status run_chunks(mpk_verify *v, mpk_lane *lane, mpk_verify_shard *shard, const mpk_check *check,
                                 const mpk_shape *shape, mpk_section_hash *hasher, uint64_t *padding,
                                 moepack_error *error)
{
    mpk_chunker chunker;
    mpk_chunk chunk;
    mpk_buffers buffers;
    uint64_t canonical, stored;
    *padding = UINT64_MAX;
    mpk_chunker_init(&chunker, shape, lane->bytes);
    mpk_chunker_need(&chunker, &canonical, &stored);
    bool same = shape->layout == MOEPACK_LAYOUT_CANONICAL;
    uint32_t block = check->piece == MPK_NO_PIECE ? MOEPACK_NO_BLOCK : v->pieces.piece[check->piece].block;
    moepack_status status = mpk_buffers_take(lane, same ? canonical : stored, same ? 0 : canonical, &buffers, error);
    if (status != MOEPACK_OK) return status;
    while (status == MOEPACK_OK && mpk_chunker_next(&chunker, &chunk)) {
        uint8_t *bytes = NULL;
        if (mpk_cancelled(&v->options->callbacks)) status = mpk_fail(error, MOEPACK_E_INTERRUPTED, "interrupted");
        if (status == MOEPACK_OK)
            status = mpk_direct_read(&shard->direct, buffers.in, chunk.stored_length,
                                     check->offset + chunk.stored_offset, &bytes, error);
        if (status != MOEPACK_OK) break;
        if (chunk.same)
            mpk_section_hash_stored(hasher, bytes, chunk.stored_length);
        else
            status = restore(&chunk, bytes, buffers.out, hasher, padding, error);
        mpk_meter_add(&v->meter, block == MOEPACK_NO_BLOCK ? "" : v->labels[block], chunk.stored_length);
    }
    mpk_buffers_return(lane, &buffers);
    return status;
}

/* Stored bytes of a section that cannot be decoded: their hash, and those of its parts wherever they begin. */
static moepack_status check_stored(mpk_verify *v, mpk_lane *lane, mpk_verify_shard *shard, mpk_check *check,
                                   const moepack_section *section, moepack_error *error)
{
    bool parts = section->first_part != MOEPACK_NO_PARTS;
    uint32_t part = section->first_part, part_length = 0;
    uint64_t in_part = 0, expected = 0;
    moepack_status status = MOEPACK_OK;
    mpk_hasher_reset(lane->second);
    if (parts) moepack_index_part(v->index, part, &part_length, &expected);
    mpk_hasher_reset(lane->part);
    for (uint64_t at = 0; at < check->length && status == MOEPACK_OK;) {
        uint64_t size = check->length - at < lane->bytes ? check->length - at : lane->bytes;
        if (parts && part_length - in_part < size) size = part_length - in_part;
        if (mpk_cancelled(&v->options->callbacks)) return mpk_fail(error, MOEPACK_E_INTERRUPTED, "interrupted");
        uint8_t *bytes = NULL;
        status = mpk_direct_read(&shard->direct, lane->in, size, check->offset + at, &bytes, error);
        if (status != MOEPACK_OK) break;
        mpk_hasher_add(lane->second, bytes, size);
        if (parts) mpk_hasher_add(lane->part, bytes, size);
        mpk_meter_add(&v->meter, "", size);
        at += size;
        in_part += size;
        if (!parts || in_part < part_length) continue;
        uint64_t found = mpk_hasher_hash64(lane->part);
        if (found != expected)
            found_hash(v, check, check->offset + at - in_part, part_length, expected, found,
                       "stored bytes of this part do not match their hash");
        mpk_hasher_reset(lane->part);
        in_part = 0;
        if (at < check->length) moepack_index_part(v->index, ++part, &part_length, &expected);
    }
    if (status != MOEPACK_OK) return status;
    mpk_verify_count(v, check->length, 1);
    uint64_t stored = mpk_hasher_hash64(lane->second);
    if (!check->bad && stored != section->xxh3_stored)
        found_hash(v, check, check->offset, check->length, section->xxh3_stored, stored,
                   "stored bytes do not match their hash");
    found_codec(v, check, section->codec);
    return MOEPACK_OK;
}

static moepack_status check_content(mpk_verify *v, mpk_lane *lane, mpk_verify_shard *shard, mpk_check *check,
                                    moepack_error *error)
{
    moepack_section section;
    mpk_shape shape;
    mpk_section_hash hasher;
    moepack_index_section(v->index, check->section, &section);
    if (!mpk_codec_name(section.codec)) return check_stored(v, lane, shard, check, &section, error);
    mpk_verify_shape(v, check, &shape);
    part_check part = {.v = v, .check = check, .first = section.first_part};
    mpk_section_hash_init(&hasher, lane, shape.layout == MOEPACK_LAYOUT_CANONICAL, shape.decoded_length, check_part,
                          &part);
    uint64_t canonical, stored, padding;
    moepack_status status = run_chunks(v, lane, shard, check, &shape, &hasher, &padding, error);
    if (status != MOEPACK_OK) return status;
    mpk_section_hash_end(&hasher, &canonical, &stored);
    mpk_verify_count(v, check->length, 1);
    if (check->bad) return MOEPACK_OK; /* a part has said so, more exactly */
    if (stored != section.xxh3_stored)
        found_hash(v, check, check->offset, check->length, section.xxh3_stored, stored,
                   "stored bytes do not match their hash");
    else if (canonical != section.xxh3_canonical)
        found_hash(v, check, check->offset, check->length, section.xxh3_canonical, canonical,
                   "published bytes do not match their hash");
    else if (padding != UINT64_MAX)
        found_padding(v, check, padding);
    return MOEPACK_OK;
}

moepack_status mpk_verify_section(mpk_verify *v, mpk_lane *lane, mpk_verify_shard *shard, mpk_check *check,
                                  moepack_error *error)
{
    if (!check->selected) return MOEPACK_OK;
    moepack_error local = {.offset = -1};
    if (check->length && (check->offset > shard->real_length || check->length > shard->real_length - check->offset)) {
        mpk_fail(&local, MOEPACK_E_INCOMPLETE, "beyond the end of the file");
        found_unread(v, check, &local);
        return MOEPACK_OK;
    }
    moepack_status status = check_content(v, lane, shard, check, &local);
    if (status == MOEPACK_E_IO || status == MOEPACK_E_INCOMPLETE || status == MOEPACK_E_USAGE) {
        /* One unreadable place does not end the run: the rest is worth knowing. */
        found_unread(v, check, &local);
        status = MOEPACK_OK;
    }
    if (status != MOEPACK_OK) {
        if (error) *error = local;
        return status;
    }
    if (check->gap_end > check->offset + check->length)
        mpk_verify_zero(v, lane, shard, check->offset + check->length, check->gap_end);
    return MOEPACK_OK;
}
