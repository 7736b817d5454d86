/* A shard as a file: header page, identity, tail, padding. */
#include "verify_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void mpk_verify_zero(mpk_verify *v, mpk_lane *lane, const mpk_verify_shard *shard, uint64_t begin, uint64_t end)
{
    if (end > shard->real_length) end = shard->real_length; /* what is missing is reported with the header */
    uint64_t first = UINT64_MAX, last = 0;
    for (uint64_t at = begin; at < end;) {
        uint64_t size = end - at < lane->bytes ? end - at : lane->bytes;
        moepack_error error = {.offset = -1};
        if (mpk_file_pread(shard->fd, lane->in, size, at, shard->path, &error) != MOEPACK_OK) {
            mpk_verify_found_error(v, shard->number, "padding", at, size, &error);
            return;
        }
        for (uint64_t i = 0; i < size; i++)
            if (lane->in[i] != 0) {
                if (first == UINT64_MAX) first = at + i;
                last = at + i;
            }
        at += size;
    }
    if (begin < end) mpk_verify_count(v, end - begin, 0);
    if (first == UINT64_MAX) return;
    moepack_finding finding;
    mpk_verify_name_shard(v, shard->number, &finding);
    snprintf(finding.section, sizeof finding.section, "padding");
    snprintf(finding.expected, sizeof finding.expected, "zero padding");
    snprintf(finding.found, sizeof finding.found, "other bytes");
    snprintf(finding.message, sizeof finding.message, "padding is not zero");
    finding.offset = first;
    finding.length = last - first + 1;
    mpk_verify_found(v, shard->number, &finding);
}

static bool same_hash(moepack_hash128 a, moepack_hash128 b)
{
    return a.low == b.low && a.high == b.high;
}

static void found_hash128(mpk_verify *v, const mpk_verify_shard *shard, const char *section, uint64_t offset,
                          uint64_t length, moepack_hash128 expected, moepack_hash128 found, const char *message)
{
    moepack_finding finding;
    mpk_verify_name_shard(v, shard->number, &finding);
    char text[33];
    moepack_hash128_text(expected, text);
    snprintf(finding.expected, sizeof finding.expected, "%s", text);
    moepack_hash128_text(found, text);
    snprintf(finding.found, sizeof finding.found, "%s", text);
    snprintf(finding.section, sizeof finding.section, "%s", section);
    snprintf(finding.message, sizeof finding.message, "%s", message);
    finding.offset = offset;
    finding.length = length;
    mpk_verify_found(v, shard->number, &finding);
}

/* Hash of the tail where the index says it is. False when it cannot be read; that is then reported. */
static bool load_tail(mpk_verify *v, const mpk_verify_shard *shard, uint8_t **tail)
{
    moepack_error error = {.offset = -1};
    *tail = NULL;
    uint64_t offset = shard->entry.tail_offset, length = shard->entry.tail_length;
    if (offset > shard->real_length || length > shard->real_length - offset) {
        mpk_fail(&error, MOEPACK_E_INCOMPLETE, "the tail is beyond the end of the file");
    } else if (!(*tail = malloc(length ? length : 1))) {
        mpk_fail(&error, MOEPACK_E_REFUSED, "out of memory for the tail");
    } else if (mpk_file_pread(shard->fd, *tail, length, offset, shard->path, &error) == MOEPACK_OK) {
        mpk_verify_count(v, length, 0);
        return true;
    }
    mpk_verify_found_error(v, shard->number, "tail", offset, length, &error);
    free(*tail);
    *tail = NULL;
    return false;
}

static const char *kind_name(uint32_t kind)
{
    return kind == MOEPACK_SHARD_TRUNK ? "trunk" : kind == MOEPACK_SHARD_EXPERTS ? "experts" : "unknown kind";
}

/* Number and kind decide, the plan id is the same. */
static void found_number(mpk_verify *v, const mpk_verify_shard *shard, const mpk_shard_header *header)
{
    moepack_finding finding;
    mpk_verify_name_shard(v, shard->number, &finding);
    snprintf(finding.expected, sizeof finding.expected, "shard %u (%s)", shard->number,
             kind_name((uint32_t)shard->entry.kind));
    snprintf(finding.found, sizeof finding.found, "shard %u (%s)", header->number, kind_name(header->kind));
    snprintf(finding.section, sizeof finding.section, "header");
    snprintf(finding.message, sizeof finding.message, "another shard of this container under this name");
    finding.length = MPK_HEADER;
    mpk_verify_found(v, shard->number, &finding);
}

/* Whether a sound header belongs to this place of this container. `tail_sound`: the tail has the hash the header gives.
 */
static bool belongs(mpk_verify *v, mpk_verify_shard *shard, const mpk_shard_header *header, bool tail_sound)
{
    const char *what = NULL;
    moepack_hash128 expected = v->info.plan_id, found = header->plan_id;
    if (!same_hash(header->plan_id, v->info.plan_id)) {
        what = "a shard of another container (plan id)";
    } else if (header->number != shard->number || header->kind != (uint32_t)shard->entry.kind) {
        found_number(v, shard, header);
        return false;
    } else if (!same_hash(header->root, shard->entry.root) && tail_sound) {
        what = "a shard of another container with the same shape (shard root)";
        expected = shard->entry.root;
        found = header->root;
    }
    if (!what) return true;
    found_hash128(v, shard, "header", 0, MPK_HEADER, expected, found, what);
    return false;
}

static moepack_status read_header(const mpk_verify_shard *shard, mpk_shard_header *header, moepack_error *error)
{
    uint8_t bytes[MPK_HEADER];
    size_t size = shard->real_length < sizeof bytes ? (size_t)shard->real_length : sizeof bytes;
    moepack_status status = mpk_file_pread(shard->fd, bytes, size, 0, shard->path, error);
    return status == MOEPACK_OK ? mpk_decode_shard_header(bytes, size, shard->real_length, header, error) : status;
}

/* Header and index must agree on lengths even when all hashes are right. */
static void check_lengths(mpk_verify *v, const mpk_verify_shard *shard, const mpk_shard_header *header)
{
    const moepack_shard *entry = &shard->entry;
    if (header->file_length == entry->file_length && header->tail_offset == entry->tail_offset &&
        header->tail_length == entry->tail_length && same_hash(header->root, entry->root))
        return;
    moepack_error error = {.offset = -1};
    mpk_fail(&error, MOEPACK_E_CORRUPT, "the header differs from the index (lengths or shard root)");
    mpk_verify_found_error(v, shard->number, "header", 0, MPK_HEADER, &error);
}

static void check_shard(mpk_verify *v, mpk_verify_shard *shard)
{
    moepack_error error = {.offset = -1};
    mpk_shard_header header = {0};
    uint8_t *tail;
    moepack_status status = read_header(shard, &header, &error);
    if (status != MOEPACK_OK) mpk_verify_found_error(v, shard->number, "header", 0, MPK_HEADER, &error);
    /* A file cut short behind its header still has one to compare, decoded to its end (no tail begins at 0): being of
     * another container is the worse news. */
    bool sound = status == MOEPACK_OK || (status == MOEPACK_E_INCOMPLETE && header.tail_offset > 0);
    mpk_verify_count(v, shard->real_length < MPK_HEADER ? shard->real_length : MPK_HEADER, 0);
    if (status == MOEPACK_E_UNSUPPORTED) {
        shard->skip = true; /* rules 3 and 4 of section 10 come before all others: what follows may mean anything */
        return;
    }
    if (sound && !same_hash(header.plan_id, v->info.plan_id)) {
        shard->skip = !belongs(v, shard, &header, false);
        return;
    }
    bool readable = load_tail(v, shard, &tail);
    moepack_hash128 root = {0};
    if (readable) root = moepack_hash128_of(tail, shard->entry.tail_length);
    if (sound && !belongs(v, shard, &header, readable && same_hash(root, header.root))) {
        shard->skip = true;
    } else {
        if (sound) check_lengths(v, shard, &header);
        if (readable && !same_hash(root, shard->entry.root))
            found_hash128(v, shard, "tail", shard->entry.tail_offset, shard->entry.tail_length, shard->entry.root, root,
                          "the tail does not match its hash");
        else if (readable)
            mpk_verify_tail(v, shard, tail);
        mpk_verify_zero(v, &v->lanes.lane[0], shard, MPK_HEADER, MPK_PAGE);
    }
    free(tail);
}

moepack_status mpk_verify_shard_open(mpk_verify *v, uint32_t number, mpk_verify_shard *shard, moepack_error *error)
{
    *shard = (mpk_verify_shard){.number = number, .fd = -1, .direct = {.direct_fd = -1}};
    moepack_index_shard(v->index, number, &shard->entry);
    char *name = strndup(shard->entry.name.data, shard->entry.name.length);
    shard->path = name ? mpk_path_join(v->dir, name) : NULL;
    free(name);
    if (!shard->path) {
        shard->skip = true;
        return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    moepack_error local = {.offset = -1};
    if (mpk_file_open(shard->path, &shard->fd, &shard->real_length, &local) != MOEPACK_OK ||
        mpk_direct_begin(&shard->direct, shard->fd, shard->path, false, &local) != MOEPACK_OK) {
        mpk_verify_found_error(v, number, "", 0, shard->entry.file_length, &local);
        shard->skip = true;
        return MOEPACK_OK;
    }
    check_shard(v, shard);
    return MOEPACK_OK;
}
