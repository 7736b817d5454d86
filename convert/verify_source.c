/* What ties sections together: the hash of every source file, canonical_root, plan_id and the counts of INFO.
 * Everything here is computed from the tables and hashes of the index, which the sections themselves have been compared
 * with. */
#include "verify_internal.h"

#include "bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void found_root(mpk_verify *v, const char *section, moepack_hash128 expected, moepack_hash128 found,
                       const char *message)
{
    moepack_finding finding = {.file = "index.mpk", .expert = -1};
    char text[33];
    moepack_hash128_text(expected, text);
    snprintf(finding.expected, sizeof finding.expected, "%s", text);
    moepack_hash128_text(found, text);
    snprintf(finding.found, sizeof finding.found, "%s", text);
    snprintf(finding.section, sizeof finding.section, "%.*s", (int)sizeof finding.section - 1, section);
    snprintf(finding.message, sizeof finding.message, "%s", message);
    mpk_verify_found(v, UINT32_MAX, &finding);
}

static void found_header(mpk_verify *v, const mpk_check *check, const moepack_error *error)
{
    moepack_finding finding;
    mpk_verify_describe(v, check, &finding);
    if (error->status == MOEPACK_E_IO || error->status == MOEPACK_E_REFUSED)
        mpk_verify_explain(error, &finding);
    else
        snprintf(finding.message, sizeof finding.message, "source header: %.*s", (int)sizeof finding.message - 32,
                 error->message);
    mpk_verify_found(v, check->shard, &finding);
}

/* A number of INFO that is not what the tables add up to. */
static void found_count(mpk_verify *v, uint64_t expected, uint64_t found, const char *message)
{
    moepack_finding finding = {.file = "index.mpk", .section = "INFO", .expert = -1};
    snprintf(finding.expected, sizeof finding.expected, "%llu", (unsigned long long)expected);
    snprintf(finding.found, sizeof finding.found, "%llu", (unsigned long long)found);
    snprintf(finding.message, sizeof finding.message, "%s", message);
    mpk_verify_found(v, UINT32_MAX, &finding);
}

/* ---- source files ---- */

/* Position of pieces among those of their source file, and whether all headers could be asked. */
typedef struct named_pieces {
    uint32_t *place; /* NOT_NAMED: no source header names it */
    bool all_asked;
} named_pieces;
#define NOT_NAMED UINT32_MAX

/* Reads a section that was found sound. */
static moepack_status read_section(const mpk_verify *v, const mpk_check *check, uint8_t **bytes, moepack_error *error)
{
    moepack_shard shard;
    int fd = -1;
    uint64_t size;
    moepack_index_shard(v->index, check->shard, &shard);
    char *name = strndup(shard.name.data, shard.name.length);
    char *path = name ? mpk_path_join(v->dir, name) : NULL;
    *bytes = malloc(check->length ? check->length : 1);
    moepack_status status =
        path && *bytes ? mpk_file_open(path, &fd, &size, error) : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    if (status == MOEPACK_OK) status = mpk_file_pread(fd, *bytes, check->length, check->offset, path, error);
    if (fd >= 0) close(fd);
    free(name);
    free(path);
    return status;
}

/* False where the header could not be used; that is reported then. */
static bool hash_file(mpk_verify *v, const mpk_check *check, const moepack_source_file *file, named_pieces *pieces,
                      moepack_hash128 *hash, uint64_t *missing)
{
    moepack_error error = {.offset = -1};
    mpk_placed *placed = NULL;
    size_t count = 0;
    uint8_t *bytes = NULL;
    moepack_status status = MOEPACK_OK;
    *missing = 0;
    if (file->kind == MOEPACK_SOURCE_SAFETENSORS) {
        status = read_section(v, check, &bytes, &error);
        if (status == MOEPACK_OK)
            status = mpk_pieces_place(&v->pieces, check->file, bytes, check->length, &placed, &count, missing, &error);
    }
    if (status == MOEPACK_OK) status = mpk_pieces_file_hash(&v->pieces, check->file, placed, count, hash, &error);
    for (size_t i = 0; status == MOEPACK_OK && i < count; i++) pieces->place[placed[i].piece] = (uint32_t)i;
    free(placed);
    free(bytes);
    if (status != MOEPACK_OK) found_header(v, check, &error);
    return status == MOEPACK_OK;
}

static void check_file(mpk_verify *v, const mpk_check *check, named_pieces *pieces)
{
    moepack_source_file file;
    moepack_hash128 hash;
    uint64_t missing;
    char name[256];
    moepack_index_source_file(v->index, check->file, &file);
    snprintf(name, sizeof name, "%.*s", (int)(file.name.length < 255 ? file.name.length : 255), file.name.data);
    if (check->bad || !hash_file(v, check, &file, pieces, &hash, &missing)) {
        pieces->all_asked = false;
        return;
    }
    if (missing) hash = (moepack_hash128){0}; /* a subset holds the file in part and says so with zero */
    if (hash.low != file.hash.low || hash.high != file.hash.high)
        found_root(v, name, file.hash, hash, "hash of this source file is not that of its pieces");
}

/* Trunk tensors that the header of their source file does not name (spec/container.md 4.10). Experts do not say which
 * file they are from. False if there are any. */
static bool check_named(mpk_verify *v, const named_pieces *pieces)
{
    bool all = true;
    for (size_t i = 0; i < v->check_count; i++) {
        const mpk_check *check = &v->checks[i];
        if (check->piece == MPK_NO_PIECE || pieces->place[check->piece] != NOT_NAMED) continue;
        if (v->pieces.piece[check->piece].expert != UINT32_MAX) continue;
        moepack_finding finding;
        mpk_verify_describe(v, check, &finding);
        snprintf(finding.message, sizeof finding.message, "the header of its source file does not name this tensor");
        mpk_verify_found(v, check->shard, &finding);
        all = false;
    }
    return all;
}

static moepack_status check_files(mpk_verify *v, moepack_error *error)
{
    named_pieces pieces = {.place = calloc(v->pieces.count + 1, sizeof *pieces.place), .all_asked = true};
    moepack_status status = pieces.place ? MOEPACK_OK : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (size_t i = 0; pieces.place && i < v->pieces.count; i++) pieces.place[i] = NOT_NAMED;
    for (size_t i = 0; status == MOEPACK_OK && i < v->check_count; i++) {
        if (mpk_cancelled(&v->options->callbacks))
            status = mpk_fail(error, MOEPACK_E_INTERRUPTED, "interrupted");
        else if (v->checks[i].piece == MPK_NO_PIECE)
            check_file(v, &v->checks[i], &pieces);
    }
    /* What a header that is damaged or of unknown codec would say is not known. */
    if (status == MOEPACK_OK && pieces.all_asked && check_named(v, &pieces))
        status = mpk_verify_order(v, pieces.place, error);
    free(pieces.place);
    return status;
}

/* ---- the whole ---- */

static bool same_name(const mpk_index_piece *a, const mpk_index_piece *b)
{
    return a->name_length == b->name_length && memcmp(a->name, b->name, a->name_length) == 0;
}

/* The counts of spec/container.md 4.2. Slices of a fused tensor stand next to one another, and nothing else of that
 * name between them. */
static void check_info(mpk_verify *v)
{
    const mpk_pieces *pieces = &v->pieces;
    uint64_t bytes = 0, tensors = 0;
    bool fits = true;
    for (size_t i = 0; i < pieces->count; i++) {
        const mpk_index_piece *piece = &pieces->piece[i], *before = i > 0 ? piece - 1 : NULL;
        bool slice = before && piece->expert != UINT32_MAX && before->expert != UINT32_MAX && same_name(piece, before);
        fits = fits && mpk_add64(bytes, pieces->descs[piece->desc].desc.canonical_length, &bytes);
        tensors += !slice;
    }
    if (!fits || bytes != v->info.source_bytes)
        found_count(v, v->info.source_bytes, fits ? bytes : UINT64_MAX,
                    "the container holds another number of bytes of tensors");
    if (tensors != v->info.source_tensors)
        found_count(v, v->info.source_tensors, tensors, "the container holds another number of source tensors");
}

static moepack_status check_roots(mpk_verify *v, moepack_error *error)
{
    moepack_hash128 root, plan;
    moepack_status status = mpk_pieces_canonical_root(&v->pieces, &root, error);
    if (status == MOEPACK_OK) status = mpk_index_plan_id(v->index, &plan, error);
    if (status != MOEPACK_OK) return status;
    if (root.low != v->info.canonical_root.low || root.high != v->info.canonical_root.high)
        found_root(v, "canonical_root", v->info.canonical_root, root, "canonical_root is not that of the sections");
    if (plan.low != v->info.plan_id.low || plan.high != v->info.plan_id.high)
        found_root(v, "plan_id", v->info.plan_id, plan, "plan_id is not that of the tables");
    return MOEPACK_OK;
}

moepack_status mpk_verify_source(mpk_verify *v, moepack_error *error)
{
    moepack_status status = check_files(v, error);
    if (status == MOEPACK_OK) check_info(v);
    return status == MOEPACK_OK ? check_roots(v, error) : status;
}
