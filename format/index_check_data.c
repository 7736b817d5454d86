/* Checks of RECORDS, SECTIONS and PARTS: where everything lies in its shard.
 *
 * Records, sections and parts are numbered without gaps in one order (spec 4.9), and inside a record, as inside the
 * trunk, each section's place follows from the ones before it (spec 7, 8). So one pass with a few counters checks all
 * of them, and nothing can overlap. */
#include "error.h"
#include "hash.h"
#include "index.h"

#include <stdlib.h>

#define CORRUPT(table, entry, ...) mpk_index_bad(x, error, MOEPACK_E_CORRUPT, table, entry, __VA_ARGS__)

typedef struct walk {
    const moepack_index *x;
    moepack_error *error;
    uint64_t next_section, next_part;
} walk;

static uint64_t part_stored(const moepack_index *x, uint64_t i)
{
    return mpk_load32(mpk_index_entry(x, MPK_T_PARTS, i));
}

/* Parts of section i: as many as its decoded length asks for, following the parts of earlier sections, adding up. A
 * decoded length of UINT64_MAX is not known (compressed source headers): then the parts end where they add up. */
static moepack_status check_parts(walk *w, uint64_t i, const moepack_section *s, uint64_t decoded)
{
    const moepack_index *x = w->x;
    moepack_error *error = w->error;
    const uint64_t left = mpk_index_count(x, MPK_T_PARTS) - w->next_part;
    const bool open_end = decoded == UINT64_MAX;
    uint64_t n = open_end ? left : mpk_part_count(decoded, s->codec), sum = 0, done = 0;
    if (open_end ? s->stored_length == 0 : n == 0) {
        if (s->first_part != MOEPACK_NO_PARTS) return CORRUPT(MPK_T_SECTIONS, i, "has parts but needs none");
        return MOEPACK_OK;
    }
    if (s->first_part != w->next_part || n > left)
        return CORRUPT(MPK_T_SECTIONS, i, "its parts do not follow those of the sections before");
    for (; done < n && !(open_end && sum >= s->stored_length); ++done) {
        uint64_t part = w->next_part + done, stored = part_stored(x, part);
        if (mpk_load32(mpk_index_entry(x, MPK_T_PARTS, part) + 4) != 0)
            return CORRUPT(MPK_T_PARTS, part, "reserved field is not zero");
        if (s->codec == MOEPACK_CODEC_RAW && stored != (done + 1 < n ? MPK_PART : decoded - MPK_PART * done))
            return CORRUPT(MPK_T_PARTS, part, "a raw part is not 4 MiB or the rest");
        sum += stored; /* cannot overflow: fewer than 2^32 parts of fewer than 2^32 bytes */
    }
    if (sum != s->stored_length) return CORRUPT(MPK_T_SECTIONS, i, "its parts do not add up to its stored length");
    w->next_part += done;
    return MOEPACK_OK;
}

/* What holds for any section, wherever it lies. */
static moepack_status check_section(walk *w, uint64_t i, const moepack_section *s, uint64_t decoded, uint64_t canonical)
{
    const moepack_index *x = w->x;
    moepack_error *error = w->error;
    const uint8_t *e = mpk_index_entry(x, MPK_T_SECTIONS, i);
    if ((mpk_load32(e + 36) >> 8) != 0) return CORRUPT(MPK_T_SECTIONS, i, "reserved field is not zero");
    if (s->codec == MOEPACK_CODEC_RAW && s->stored_length != decoded) {
        return CORRUPT(MPK_T_SECTIONS, i, "raw section of %llu bytes should have %llu",
                       (unsigned long long)s->stored_length, (unsigned long long)decoded);
    }
    if (s->stored_length == 0 && (s->offset != 0 || s->xxh3_stored != MPK_HASH64_EMPTY))
        return CORRUPT(MPK_T_SECTIONS, i, "an empty section has offset 0 and the hash of no bytes");
    if (canonical == 0 && s->xxh3_canonical != MPK_HASH64_EMPTY)
        return CORRUPT(MPK_T_SECTIONS, i, "no published bytes, but not the hash of none");
    return check_parts(w, i, s, decoded);
}

/* ---- records ---- */

/* The section must start at the next multiple of `unit`; moves *at behind it. */
static moepack_status place(walk *w, uint64_t i, const moepack_section *s, uint64_t unit, uint64_t end, uint64_t *at)
{
    const moepack_index *x = w->x;
    moepack_error *error = w->error;
    uint64_t start = 0;
    if (!mpk_align64(*at, unit, &start) || s->offset != start)
        return CORRUPT(MPK_T_SECTIONS, i, "offset is %llu, the place of this section is %llu",
                       (unsigned long long)s->offset, (unsigned long long)start);
    if (start > end || s->stored_length > end - start)
        return CORRUPT(MPK_T_SECTIONS, i, "reaches beyond its record or the data of its shard");
    *at = start + s->stored_length;
    return MOEPACK_OK;
}

/* Sections of one record: large ones on pages, then small ones together (spec 7). */
static moepack_status check_record_sections(walk *w, uint64_t record, const moepack_record *r, uint32_t first_desc,
                                            uint32_t count)
{
    const moepack_index *x = w->x;
    moepack_error *error = w->error;
    const uint64_t end = r->offset + r->length;
    uint64_t at = r->offset, page_end;
    uint32_t small = 0;
    moepack_section s;
    for (uint32_t k = 0; k < count; ++k) {
        const uint8_t *desc = mpk_index_entry(x, MPK_T_DESCS, first_desc + k);
        uint64_t i = r->first_section + k;
        moepack_index_section(x, i, &s);
        moepack_status status = check_section(w, i, &s, mpk_load64(desc + 40), mpk_load64(desc + 32));
        if (status == MOEPACK_OK && s.stored_length > MPK_SMALL) status = place(w, i, &s, MPK_PAGE_SIZE, end, &at);
        if (status != MOEPACK_OK) return status;
        small += s.stored_length > 0 && s.stored_length <= MPK_SMALL;
    }
    uint64_t unit = MPK_PAGE_SIZE; /* of the first small one; 8 for the others */
    for (uint32_t k = 0; k < count && small > 0; ++k) {
        moepack_index_section(x, r->first_section + k, &s);
        if (s.stored_length == 0 || s.stored_length > MPK_SMALL) continue;
        moepack_status status = place(w, r->first_section + k, &s, unit, end, &at);
        if (status != MOEPACK_OK) return status;
        unit = 8;
        --small;
    }
    if (!mpk_align64(at, MPK_PAGE_SIZE, &page_end) || page_end != end)
        return CORRUPT(MPK_T_RECORDS, record, "the record does not end behind its last section");
    return MOEPACK_OK;
}

/* A record's own fields; for present records *shard and the schema's descs are filled. */
static moepack_status check_record(walk *w, uint64_t i, const moepack_record *r)
{
    const moepack_index *x = w->x;
    moepack_error *error = w->error;
    moepack_shard shard;
    if (r->shard >= moepack_index_shards(x)) return CORRUPT(MPK_T_RECORDS, i, "shard lies outside its table");
    moepack_index_shard(x, r->shard, &shard);
    if (shard.kind != MOEPACK_SHARD_EXPERTS) return CORRUPT(MPK_T_RECORDS, i, "not in a shard of experts");
    if (r->schema >= moepack_index_schemas(x)) return CORRUPT(MPK_T_RECORDS, i, "schema lies outside its table");
    if (r->offset < MPK_PAGE_SIZE || r->offset % MPK_PAGE_SIZE != 0 || r->length % MPK_PAGE_SIZE != 0 ||
        r->offset > shard.tail_offset || r->length > shard.tail_offset - r->offset)
        return CORRUPT(MPK_T_RECORDS, i, "lies outside the data of its shard or not on whole pages");
    uint32_t first_desc, count;
    moepack_index_schema(x, r->schema, &first_desc, &count);
    if (r->first_section != w->next_section || count > mpk_index_count(x, MPK_T_SECTIONS) - w->next_section)
        return CORRUPT(MPK_T_RECORDS, i, "its sections do not follow those of the record before");
    moepack_status status = check_record_sections(w, i, r, first_desc, count);
    w->next_section += count;
    return status;
}

typedef struct by_place_argument {
    const moepack_index *x;
} by_place_argument;

/* Order of present records: shard, offset, length. */
static int by_place(const void *a, const void *b, void *argument)
{
    const moepack_index *x = ((const by_place_argument *)argument)->x;
    moepack_record ra, rb;
    moepack_index_record(x, *(const uint64_t *)a, &ra);
    moepack_index_record(x, *(const uint64_t *)b, &rb);
    if (ra.shard != rb.shard) return ra.shard < rb.shard ? -1 : 1;
    if (ra.offset != rb.offset) return ra.offset < rb.offset ? -1 : 1;
    return ra.length < rb.length ? -1 : ra.length > rb.length;
}

/* Records that are not in (block, expert) order in their shard, as after a repair: sort them by place and look at
 * neighbours. 8 bytes a record. */
static moepack_status check_overlap_sorted(const moepack_index *x, moepack_error *error)
{
    uint64_t n = mpk_index_count(x, MPK_T_RECORDS), present = 0;
    uint64_t *order = n > SIZE_MAX / sizeof *order ? NULL : malloc((size_t)n * sizeof *order);
    if (order == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (uint64_t i = 0; i < n; ++i) {
        if (mpk_load32(mpk_index_entry(x, MPK_T_RECORDS, i)) != MOEPACK_NO_SHARD) order[present++] = i;
    }
    by_place_argument argument = {x};
    qsort_r(order, (size_t)present, sizeof *order, by_place, &argument);
    moepack_status status = MOEPACK_OK;
    for (uint64_t i = 1; i < present && status == MOEPACK_OK; ++i) {
        moepack_record a, b;
        moepack_index_record(x, order[i - 1], &a);
        moepack_index_record(x, order[i], &b);
        if (a.shard == b.shard && a.offset + a.length > b.offset)
            status = CORRUPT(MPK_T_RECORDS, order[i], "overlaps record %llu", (unsigned long long)order[i - 1]);
    }
    free(order);
    return status;
}

static moepack_status check_records(walk *w)
{
    const moepack_index *x = w->x;
    moepack_error *error = w->error;
    uint64_t *shard_end = calloc((size_t)moepack_index_shards(x) + 1, sizeof *shard_end);
    if (shard_end == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    bool in_order = true, subset = (mpk_load32(mpk_index_entry(x, MPK_T_INFO, 0) + 64) & 1) != 0;
    moepack_status status = MOEPACK_OK;
    for (uint64_t i = 0; i < mpk_index_count(x, MPK_T_RECORDS) && status == MOEPACK_OK; ++i) {
        moepack_record r;
        moepack_index_record(x, i, &r);
        if (r.shard == MOEPACK_NO_SHARD) {
            if (r.schema != 0 || r.offset != 0 || r.length != 0 || r.first_section != 0)
                status = CORRUPT(MPK_T_RECORDS, i, "an absent expert has fields that are not zero");
            else if (!subset)
                status = CORRUPT(MPK_T_RECORDS, i, "an expert is absent, but INFO does not say that this is a subset");
            continue;
        }
        status = check_record(w, i, &r);
        if (status != MOEPACK_OK) break;
        in_order = in_order && r.offset >= shard_end[r.shard];
        shard_end[r.shard] = r.offset + r.length;
    }
    free(shard_end);
    if (status == MOEPACK_OK && !in_order) status = check_overlap_sorted(x, error);
    return status;
}

/* ---- trunk ---- */

typedef struct trunk_place {
    uint32_t shard;
    uint64_t at, end;
} trunk_place;

/* A trunk section follows the one before it in the same shard, or begins a later shard (spec 8). */
static moepack_status place_trunk(walk *w, uint64_t i, const moepack_section *s, uint32_t shard, trunk_place *p)
{
    const moepack_index *x = w->x;
    moepack_error *error = w->error;
    if (s->stored_length == 0) return MOEPACK_OK;
    if (p->shard == MOEPACK_NO_SHARD || shard != p->shard) {
        moepack_shard entry;
        if (p->shard != MOEPACK_NO_SHARD && shard < p->shard)
            return CORRUPT(MPK_T_SECTIONS, i, "lies in an earlier shard than the section before it");
        moepack_index_shard(x, shard, &entry);
        *p = (trunk_place){shard, MPK_PAGE_SIZE, entry.tail_offset};
    }
    return place(w, i, s, s->stored_length <= MPK_SMALL ? 64 : MPK_PAGE_SIZE, p->end, &p->at);
}

/* Which tensor owns each trunk section; each must own one. */
static moepack_status map_owners(const walk *w, uint32_t *owners)
{
    const moepack_index *x = w->x;
    moepack_error *error = w->error;
    uint32_t n = moepack_index_tensors(x);
    for (uint32_t i = 0; i < n; ++i) owners[i] = UINT32_MAX;
    for (uint32_t i = 0; i < n; ++i) {
        uint64_t section = mpk_load64(mpk_index_entry(x, MPK_T_TENSORS, i) + 16);
        if (section < w->next_section || section - w->next_section >= n ||
            owners[section - w->next_section] != UINT32_MAX)
            return CORRUPT(MPK_T_TENSORS, i, "its section is none of the trunk, or another tensor's");
        owners[section - w->next_section] = i;
    }
    return MOEPACK_OK;
}

static moepack_status check_trunk_tensors(walk *w, trunk_place *p)
{
    const moepack_index *x = w->x;
    uint32_t n = moepack_index_tensors(x);
    uint32_t *owners = malloc(((size_t)n + 1) * sizeof *owners);
    if (owners == NULL) return mpk_fail(w->error, MOEPACK_E_REFUSED, "out of memory");
    moepack_status status = map_owners(w, owners);
    for (uint32_t k = 0; k < n && status == MOEPACK_OK; ++k) {
        moepack_tensor t;
        moepack_desc d;
        moepack_section s;
        moepack_index_tensor(x, owners[k], &t);
        moepack_index_desc(x, t.desc, &d);
        moepack_index_section(x, w->next_section + k, &s);
        status = check_section(w, w->next_section + k, &s, d.decoded_length, d.canonical_length);
        if (status == MOEPACK_OK) status = place_trunk(w, w->next_section + k, &s, t.shard, p);
    }
    free(owners);
    w->next_section += n;
    return status;
}

static moepack_status check_trunk_files(walk *w, trunk_place *p)
{
    const moepack_index *x = w->x;
    moepack_error *error = w->error;
    for (uint32_t i = 0; i < moepack_index_source_files(x); ++i) {
        moepack_source_file f;
        moepack_section s;
        moepack_index_source_file(x, i, &f);
        if (f.section != w->next_section) return CORRUPT(MPK_T_FILES, i, "its section is not the next one");
        moepack_index_section(x, w->next_section, &s);
        /* Files have no description: their own length is the decoded one, but of safetensors only the header is stored.
         */
        uint64_t decoded = f.length, canonical = f.length;
        if (f.kind == MOEPACK_SOURCE_SAFETENSORS) {
            decoded = s.codec == MOEPACK_CODEC_RAW ? s.stored_length : UINT64_MAX;
            canonical = UINT64_MAX;
            if (s.codec == MOEPACK_CODEC_RAW && (s.stored_length < 8 || s.stored_length > f.length))
                return CORRUPT(MPK_T_FILES, i, "the header is shorter than its length word or longer than the file");
        }
        moepack_status status = check_section(w, w->next_section, &s, decoded, canonical);
        if (status == MOEPACK_OK) status = place_trunk(w, w->next_section, &s, f.shard, p);
        if (status != MOEPACK_OK) return status;
        ++w->next_section;
    }
    return MOEPACK_OK;
}

moepack_status mpk_index_check_data(const moepack_index *x, moepack_error *error)
{
    walk w = {x, error, 0, 0};
    moepack_status status = check_records(&w);
    if (status != MOEPACK_OK) return status;
    uint64_t trunk = (uint64_t)moepack_index_tensors(x) + moepack_index_source_files(x);
    if (mpk_index_count(x, MPK_T_SECTIONS) - w.next_section != trunk) {
        return CORRUPT(
            MPK_T_SECTIONS, w.next_section, "%llu entries behind those of experts for %llu tensors and files",
            (unsigned long long)(mpk_index_count(x, MPK_T_SECTIONS) - w.next_section), (unsigned long long)trunk);
    }
    trunk_place p = {MOEPACK_NO_SHARD, 0, 0};
    status = check_trunk_tensors(&w, &p);
    if (status == MOEPACK_OK) status = check_trunk_files(&w, &p);
    if (status == MOEPACK_OK && w.next_part != mpk_index_count(x, MPK_T_PARTS))
        status = CORRUPT(MPK_T_PARTS, w.next_part, "belongs to no section");
    return status;
}
