/* An opened container: the index in memory, shards opened and checked when first needed, sections read and turned back.
 */
#include "io/pack.h"

#include "build.h"
#include "codec.h"
#include "error.h"
#include "hash.h"
#include "io/io.h"
#include "layout.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct shard_state {
    char *path;
    pthread_mutex_t lock;
    bool tried;
    int fd; /* -1: not open */
    moepack_status status;
    moepack_error error;
} shard_state;

struct mpk_pack {
    char *dir;
    void *bytes; /* of the index */
    moepack_index *index;
    shard_state *shards;
    uint32_t shard_count;
};

#define NO_DESC UINT32_MAX /* sections of source files have none */

static moepack_status fail_at(moepack_error *error, const char *file, moepack_status status, const char *words)
{
    mpk_fail(error, status, "%s", words);
    mpk_error_file(error, file);
    return status;
}

static moepack_status no_memory(moepack_error *error, const char *file)
{
    return fail_at(error, file, MOEPACK_E_REFUSED, "out of memory");
}

/* ---- opening ---- */

static bool is_partial(const char *dir)
{
    static const char ending[] = ".partial";
    size_t length = strlen(dir), n = sizeof ending - 1;
    while (length > 1 && dir[length - 1] == '/') --length;
    return length >= n && memcmp(dir + length - n, ending, n) == 0;
}

/* An index must fit in memory; a sparse file that claims terabytes must not take the machine down. */
static uint64_t index_limit(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages <= 0 || page <= 0 ? UINT64_C(1) << 32 : (uint64_t)pages / 2 * (uint64_t)page;
}

static moepack_status read_index(mpk_pack *pack, moepack_error *error)
{
    char *path = mpk_path_join(pack->dir, "index.mpk");
    size_t size = 0;
    if (path == NULL) return no_memory(error, pack->dir);
    uint64_t limit = index_limit();
    moepack_status status = mpk_file_read_all(path, limit, &pack->bytes, &size, error);
    if (status == MOEPACK_E_UNSUPPORTED)
        status = fail_at(error, path, MOEPACK_E_REFUSED, "the index is larger than half of this machine's memory");
    if (status == MOEPACK_OK) status = moepack_index_open(pack->bytes, size, path, &pack->index, error);
    free(path);
    return status;
}

static moepack_status prepare_shards(mpk_pack *pack, moepack_error *error)
{
    uint32_t n = moepack_index_shards(pack->index);
    pack->shards = calloc((size_t)n + 1, sizeof *pack->shards);
    if (pack->shards == NULL) return no_memory(error, pack->dir);
    for (uint32_t i = 0; i < n; ++i) {
        shard_state *state = &pack->shards[i];
        char name[MPK_SHARD_NAME_MAX + 1];
        moepack_shard shard;
        moepack_index_shard(pack->index, i, &shard);
        memcpy(name, shard.name.data, shard.name.length); /* at most MPK_SHARD_NAME_MAX: checked with the index */
        name[shard.name.length] = '\0';
        state->fd = -1;
        state->path = mpk_path_join(pack->dir, name);
        if (state->path == NULL) return no_memory(error, pack->dir);
        pthread_mutex_init(&state->lock, NULL);
        pack->shard_count = i + 1;
    }
    return MOEPACK_OK;
}

moepack_status mpk_pack_open(const char *dir, mpk_pack **out, moepack_error *error)
{
    *out = NULL;
    if (dir[0] == '\0') return mpk_fail(error, MOEPACK_E_USAGE, "the container's name is empty");
    if (!mpk_path_exists(dir)) return fail_at(error, dir, MOEPACK_E_INCOMPLETE, "no such directory");
    if (!mpk_path_is_dir(dir)) return fail_at(error, dir, MOEPACK_E_IO, "not a directory");
    if (is_partial(dir))
        return fail_at(error, dir, MOEPACK_E_INCOMPLETE, "an unfinished conversion (its name ends in .partial)");
    mpk_pack *pack = calloc(1, sizeof *pack);
    if (pack == NULL) return no_memory(error, dir);
    pack->dir = strdup(dir);
    moepack_status status = pack->dir == NULL ? no_memory(error, dir) : read_index(pack, error);
    if (status == MOEPACK_OK) status = prepare_shards(pack, error);
    if (status != MOEPACK_OK) {
        mpk_pack_close(pack);
        return status;
    }
    *out = pack;
    return MOEPACK_OK;
}

void mpk_pack_close(mpk_pack *pack)
{
    if (pack == NULL) return;
    for (uint32_t i = 0; i < pack->shard_count; ++i) {
        if (pack->shards[i].fd >= 0) close(pack->shards[i].fd);
        pthread_mutex_destroy(&pack->shards[i].lock);
        free(pack->shards[i].path);
    }
    free(pack->shards);
    moepack_index_close(pack->index);
    free(pack->bytes);
    free(pack->dir);
    free(pack);
}

const moepack_index *mpk_pack_index(const mpk_pack *pack)
{
    return pack->index;
}

const char *mpk_pack_dir(const mpk_pack *pack)
{
    return pack->dir;
}

const char *mpk_pack_shard_path(const mpk_pack *pack, uint32_t shard)
{
    return shard < pack->shard_count ? pack->shards[shard].path : "";
}

/* ---- shards ---- */

static moepack_status mismatch(moepack_error *error, const char *path, const char *what)
{
    mpk_fail(error, MOEPACK_E_CORRUPT, "header: %s is not the one in the index: a shard of another container?", what);
    mpk_error_file(error, path);
    return MOEPACK_E_CORRUPT;
}

static moepack_status compare_header(const mpk_pack *pack, uint32_t number, const mpk_shard_header *h,
                                     moepack_error *error)
{
    const char *path = pack->shards[number].path;
    moepack_info info;
    moepack_shard s;
    moepack_index_info(pack->index, &info);
    moepack_index_shard(pack->index, number, &s);
    if (h->kind != (uint32_t)s.kind) return mismatch(error, path, "the kind of shard");
    if (!mpk_hash128_equal(h->plan_id, info.plan_id)) return mismatch(error, path, "plan_id");
    if (h->number != number) return mismatch(error, path, "the shard number");
    if (h->file_length != s.file_length) return mismatch(error, path, "the file length");
    if (h->tail_offset != s.tail_offset || h->tail_length != s.tail_length)
        return mismatch(error, path, "the place of the tail");
    if (!mpk_hash128_equal(h->root, s.root)) return mismatch(error, path, "shard_root");
    return MOEPACK_OK;
}

static moepack_status check_tail(int fd, const char *path, const mpk_shard_header *h, moepack_error *error)
{
    const size_t piece = (size_t)1 << 20;
    uint8_t *buf = malloc(piece);
    mpk_hasher *hasher = mpk_hasher_new(128);
    moepack_status status = buf == NULL || hasher == NULL ? no_memory(error, path) : MOEPACK_OK;
    for (uint64_t done = 0; done < h->tail_length && status == MOEPACK_OK;) {
        uint64_t left = h->tail_length - done;
        size_t n = left < piece ? (size_t)left : piece;
        status = mpk_file_pread(fd, buf, n, h->tail_offset + done, path, error);
        if (status == MOEPACK_OK) mpk_hasher_add(hasher, buf, n);
        done += n;
    }
    if (status == MOEPACK_OK && !mpk_hash128_equal(mpk_hasher_hash128(hasher), h->root)) {
        char expected[33], found[33];
        moepack_hash128_text(h->root, expected);
        moepack_hash128_text(mpk_hasher_hash128(hasher), found);
        status = mpk_fail(error, MOEPACK_E_CORRUPT, "the shard's tail does not match its hash: expected %s, found %s",
                          expected, found);
        mpk_error_file(error, path);
        mpk_error_offset(error, h->tail_offset);
    }
    mpk_hasher_free(hasher);
    free(buf);
    return status;
}

/* Bytes 128 to 4095 are zero (spec 3.3). */
static moepack_status check_header_page(const uint8_t *page, const char *path, moepack_error *error)
{
    for (uint32_t i = MPK_HEADER; i < MPK_PAGE_SIZE; ++i) {
        if (page[i] == 0) continue;
        mpk_fail(error, MOEPACK_E_CORRUPT, "header: the rest of its page is not zero");
        mpk_error_file(error, path);
        mpk_error_offset(error, i);
        return MOEPACK_E_CORRUPT;
    }
    return MOEPACK_OK;
}

static moepack_status open_shard(const mpk_pack *pack, uint32_t number, int *fd, moepack_error *error)
{
    const char *path = pack->shards[number].path;
    uint8_t head[MPK_PAGE_SIZE] = {0};
    uint64_t length;
    mpk_shard_header header = {0};
    moepack_status status = mpk_file_open(path, fd, &length, error);
    if (status != MOEPACK_OK) return status;
    size_t size = length < sizeof head ? (size_t)length : sizeof head;
    status = mpk_file_pread(*fd, head, size, 0, path, error);
    if (status != MOEPACK_OK) return status;
    status = mpk_decode_shard_header(head, size, length, &header, error);
    mpk_error_file(status != MOEPACK_OK ? error : NULL, path);
    /* Cut short, and of another container as well: the second is the worse news. */
    bool whole_header = status == MOEPACK_OK || (status == MOEPACK_E_INCOMPLETE && size >= MPK_HEADER);
    if (whole_header) {
        moepack_error why = {.expert = -1, .offset = -1};
        moepack_status compared = compare_header(pack, number, &header, &why);
        if (compared != MOEPACK_OK) {
            if (error != NULL) *error = why;
            return compared;
        }
    }
    if (status == MOEPACK_OK) status = check_header_page(head, path, error);
    return status == MOEPACK_OK ? check_tail(*fd, path, &header, error) : status;
}

moepack_status mpk_pack_shard(mpk_pack *pack, uint32_t shard, int *fd, moepack_error *error)
{
    *fd = -1;
    if (shard >= pack->shard_count)
        return mpk_fail(error, MOEPACK_E_USAGE, "the container has no shard %u", (unsigned)shard);
    shard_state *state = &pack->shards[shard];
    pthread_mutex_lock(&state->lock);
    if (!state->tried) {
        state->tried = true;
        state->status = open_shard(pack, shard, &state->fd, &state->error);
        if (state->status != MOEPACK_OK && state->fd >= 0) {
            close(state->fd);
            state->fd = -1;
        }
    }
    *fd = state->fd;
    moepack_status status = state->status;
    if (status != MOEPACK_OK && error != NULL) *error = state->error;
    pthread_mutex_unlock(&state->lock);
    return status;
}

/* ---- places ---- */

static void copy_name(mpk_section_place *place, moepack_str name)
{
    size_t length = name.length < sizeof place->name ? name.length : sizeof place->name - 1;
    if (length > 0) memcpy(place->name, name.data, length);
    place->name[length] = '\0';
}

void mpk_pack_place_expert(const mpk_pack *pack, uint32_t block, uint32_t expert, uint32_t s, mpk_section_place *out)
{
    moepack_block b;
    moepack_record r = {.shard = MOEPACK_NO_SHARD};
    uint32_t first = 0, count = 0;
    *out = (mpk_section_place){.shard = MOEPACK_NO_SHARD, .desc = NO_DESC, .block = block, .expert = expert};
    moepack_index_block(pack->index, block, &b);
    if (expert < b.experts) moepack_index_record(pack->index, b.first_record + expert, &r);
    if (r.shard == MOEPACK_NO_SHARD) return;
    moepack_index_schema(pack->index, r.schema, &first, &count);
    if (s >= count) return;
    out->shard = r.shard;
    out->section = r.first_section + s;
    out->desc = first + s;
    moepack_index_section_name(pack->index, block, expert, s, out->name, sizeof out->name);
}

void mpk_pack_place_tensor(const mpk_pack *pack, uint32_t tensor, mpk_section_place *out)
{
    moepack_tensor t;
    *out = (mpk_section_place){.shard = MOEPACK_NO_SHARD, .desc = NO_DESC, .block = MOEPACK_NO_BLOCK, .expert = -1};
    if (tensor >= moepack_index_tensors(pack->index)) return;
    moepack_index_tensor(pack->index, tensor, &t);
    out->shard = t.shard;
    out->section = t.section;
    out->desc = t.desc;
    out->block = t.block;
    copy_name(out, t.name);
}

void mpk_pack_place_file(const mpk_pack *pack, uint32_t file, mpk_section_place *out)
{
    moepack_source_file f;
    *out = (mpk_section_place){.shard = MOEPACK_NO_SHARD, .desc = NO_DESC, .block = MOEPACK_NO_BLOCK, .expert = -1};
    if (file >= moepack_index_source_files(pack->index)) return;
    moepack_index_source_file(pack->index, file, &f);
    out->shard = f.shard;
    out->section = f.section;
    copy_name(out, f.name);
}

/* A source file is no tensor and lies in a shard: the message has to name it. Once, though places are added on each
 * level. */
static void name_source_file(const char *name, moepack_error *error)
{
    char start[16 + sizeof((mpk_section_place *)NULL)->name], message[sizeof error->message];
    if (error == NULL) return;
    int length = snprintf(start, sizeof start, "source file %s: ", name);
    if (strncmp(error->message, start, (size_t)length) == 0) return;
    snprintf(message, sizeof message, "%s", error->message);
    snprintf(error->message, sizeof error->message, "%s%.*s", start, (int)(sizeof message - sizeof start), message);
}

void mpk_pack_error_place(const mpk_pack *pack, const mpk_section_place *place, moepack_error *error)
{
    char label[MOEPACK_LABEL_MAX];
    moepack_section s;
    if (place->shard < pack->shard_count) mpk_error_file(error, pack->shards[place->shard].path);
    if (place->block < moepack_index_blocks(pack->index)) {
        moepack_index_label(pack->index, place->block, label);
        mpk_error_layer(error, label);
    }
    mpk_error_expert(error, place->expert);
    if (place->desc == NO_DESC && place->block == MOEPACK_NO_BLOCK && place->name[0] != '\0')
        name_source_file(place->name, error);
    else
        mpk_error_tensor(error, place->name, -1);
    if (place->shard != MOEPACK_NO_SHARD) {
        moepack_index_section(pack->index, place->section, &s);
        mpk_error_offset(error, s.offset);
    }
}

/* ---- content ---- */

static moepack_status wrong_hash(const mpk_pack *pack, const mpk_section_place *place, const char *what,
                                 uint64_t expected, uint64_t found, moepack_error *error)
{
    char expected_text[17], found_text[17];
    moepack_hash64_text(expected, expected_text);
    moepack_hash64_text(found, found_text);
    mpk_fail(error, MOEPACK_E_CORRUPT, "%s do not match their hash: expected %s, found %s", what, expected_text,
             found_text);
    mpk_pack_error_place(pack, place, error);
    return MOEPACK_E_CORRUPT;
}

moepack_status mpk_pack_read_stored(mpk_pack *pack, const mpk_section_place *place, bool verify, void *buf,
                                    moepack_error *error)
{
    moepack_status status;
    moepack_section s;
    int fd;
    if (place->shard == MOEPACK_NO_SHARD) {
        status = mpk_fail(error, MOEPACK_E_INCOMPLETE, "not in this container, which is a subset");
        mpk_error_file(error, pack->dir);
        mpk_pack_error_place(pack, place, error);
        return status;
    }
    moepack_index_section(pack->index, place->section, &s);
    status = mpk_pack_shard(pack, place->shard, &fd, error);
    if (status == MOEPACK_OK && s.stored_length > SIZE_MAX) status = no_memory(error, pack->shards[place->shard].path);
    if (status == MOEPACK_OK)
        status = mpk_file_pread(fd, buf, (size_t)s.stored_length, s.offset, pack->shards[place->shard].path, error);
    if (status != MOEPACK_OK) {
        mpk_pack_error_place(pack, place, error);
        return status;
    }
    if (!verify) return MOEPACK_OK;
    uint64_t found = moepack_hash64(buf, (size_t)s.stored_length);
    if (found != s.xxh3_stored) return wrong_hash(pack, place, "stored bytes", s.xxh3_stored, found, error);
    return MOEPACK_OK;
}

/* A buffer of at least one byte, so that NULL means failure. */
static void *allocate(uint64_t size)
{
    return size >= SIZE_MAX ? NULL : malloc((size_t)size + 1);
}

/* Stored bytes in `from` to decoded bytes in a new buffer: part by part where there are parts. */
static moepack_status decode(const mpk_pack *pack, const moepack_section *s, const uint8_t *from, uint8_t *to,
                             uint64_t decoded, moepack_error *error)
{
    if (s->first_part == MOEPACK_NO_PARTS)
        return mpk_codec_decode(s->codec, from, (size_t)s->stored_length, to, (size_t)decoded, error);
    moepack_status status = MOEPACK_OK;
    uint64_t done = 0;
    for (uint32_t part = s->first_part; done < decoded && status == MOEPACK_OK; ++part) {
        uint32_t stored;
        uint64_t hash, n = decoded - done < MPK_PART ? decoded - done : MPK_PART;
        moepack_index_part(pack->index, part, &stored, &hash);
        status = mpk_codec_decode(s->codec, from, stored, to + done, (size_t)n, error);
        from += stored; /* the parts' stored lengths add up to the section's: checked with the index */
        done += n;
    }
    return status;
}

/* Decoded bytes, in stored order, to published ones in a new buffer. */
static moepack_status unpanel(const mpk_pack *pack, const moepack_desc *d, const void *decoded, void **out,
                              moepack_error *error)
{
    moepack_matrix matrices[MPK_MATRICES_MAX]; /* more are refused with the index */
    for (uint32_t i = 0; i < d->matrix_count; ++i) moepack_index_matrix(pack->index, d->first_matrix + i, &matrices[i]);
    *out = allocate(d->canonical_length);
    if (*out == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    return moepack_panel_to_canonical(matrices, d->matrix_count, decoded, (size_t)d->decoded_length, *out,
                                      (size_t)d->canonical_length, error);
}

/* From stored bytes (taken over) to published ones. */
static moepack_status to_canonical(const mpk_pack *pack, const mpk_section_place *place, const moepack_section *s,
                                   void **buf, uint64_t *size, moepack_error *error)
{
    moepack_desc d = {.canonical_length = s->stored_length, .decoded_length = s->stored_length};
    if (place->desc != NO_DESC) moepack_index_desc(pack->index, place->desc, &d);
    *size = d.canonical_length;
    if (mpk_codec_name(s->codec) == NULL)
        return mpk_fail(error, MOEPACK_E_UNSUPPORTED, "codec %u is not known to this version", (unsigned)s->codec);
    if (s->codec != MOEPACK_CODEC_RAW) {
        void *decoded = allocate(d.decoded_length);
        if (decoded == NULL) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        moepack_status status = decode(pack, s, (const uint8_t *)*buf, (uint8_t *)decoded, d.decoded_length, error);
        free(*buf);
        *buf = decoded;
        if (status != MOEPACK_OK) return status;
    }
    if (place->desc == NO_DESC || d.layout == MOEPACK_LAYOUT_CANONICAL) return MOEPACK_OK;
    void *published = NULL;
    moepack_status status = unpanel(pack, &d, *buf, &published, error);
    free(*buf);
    *buf = published;
    return status;
}

moepack_status mpk_pack_read_canonical(mpk_pack *pack, const mpk_section_place *place, void **buf, uint64_t *size,
                                       moepack_error *error)
{
    moepack_section s = {0};
    *buf = NULL;
    *size = 0;
    if (place->shard != MOEPACK_NO_SHARD) moepack_index_section(pack->index, place->section, &s);
    /* The shard first: its real length bounds what is allocated below. */
    int fd;
    moepack_status status = MOEPACK_OK;
    if (place->shard != MOEPACK_NO_SHARD) status = mpk_pack_shard(pack, place->shard, &fd, error);
    void *bytes = NULL;
    if (status == MOEPACK_OK) {
        bytes = allocate(s.stored_length);
        if (bytes == NULL) status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    if (status == MOEPACK_OK) status = mpk_pack_read_stored(pack, place, true, bytes, error);
    if (status == MOEPACK_OK) status = to_canonical(pack, place, &s, &bytes, size, error);
    if (status != MOEPACK_OK) {
        free(bytes);
        mpk_pack_error_place(pack, place, error);
        return status;
    }
    uint64_t found = moepack_hash64(bytes, (size_t)*size);
    if (found != s.xxh3_canonical) {
        free(bytes);
        return wrong_hash(pack, place, "published bytes", s.xxh3_canonical, found, error);
    }
    *buf = bytes;
    return MOEPACK_OK;
}
