/* A container back into its source directory, byte for byte. Each source file is its stored header and its pieces at
 * the places that header names; every piece is checked against both of its hashes on the way, and the file's hash ties
 * them together. */
#include "moepack/convert.h"

#include "error.h"
#include "io/io.h"
#include "io/pack.h"
#include "pieces.h"
#include "pipeline_jobs.h"
#include "progress.h"
#include "publish.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void moepack_export_options_init(moepack_export_options *options)
{
    *options = (moepack_export_options){.size = sizeof *options};
}

typedef struct exporter {
    const moepack_export_options *options;
    moepack_export_report *report;
    mpk_pack *pack;
    const moepack_index *index;
    mpk_pieces pieces;
    mpk_publish publish;
    mpk_meter meter;
    mpk_lanes lanes;
    unsigned jobs;
    uint64_t written_pieces;
    char (*labels)[MOEPACK_LABEL_MAX];
    /* the file being written */
    const char *path;
    int fd;
    const mpk_placed *placed;
} exporter;

/* ---- names ---- */

/* The index reader has refused such names already; a file must not leave the output directory even if that ever fails.
 */
static bool safe_name(const char *name)
{
    if (name[0] == '\0' || name[0] == '/') return false;
    for (const char *part = name; part;) {
        const char *slash = strchr(part, '/');
        size_t length = slash ? (size_t)(slash - part) : strlen(part);
        if (length == 0 || (length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        part = slash ? slash + 1 : NULL;
    }
    return true;
}

static char *file_name(const exporter *e, uint32_t file)
{
    moepack_source_file source;
    moepack_index_source_file(e->index, file, &source);
    if (memchr(source.name.data, 0, source.name.length)) return NULL;
    return strndup(source.name.data, source.name.length);
}

static bool holds_name(const exporter *e, const char *name)
{
    size_t length = strlen(name);
    for (uint32_t i = 0; i < moepack_index_source_files(e->index); i++) {
        moepack_source_file source;
        moepack_index_source_file(e->index, i, &source);
        if (source.name.length == length && memcmp(source.name.data, name, length) == 0) return true;
    }
    return false;
}

/* Adds nothing to a directory list's rules but looks where it does not: names that begin with a dot, at any depth. */
static moepack_status refuse_hidden(const char *dir, const char *shown, moepack_error *error)
{
    DIR *list = opendir(dir);
    if (!list) return mpk_fail_errno(error, MOEPACK_E_IO, errno, "cannot read the directory");
    moepack_status status = MOEPACK_OK;
    for (const struct dirent *entry; status == MOEPACK_OK && (entry = readdir(list));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char *path = mpk_path_join(dir, entry->d_name);
        char *name = shown[0] ? mpk_path_join(shown, entry->d_name) : strdup(entry->d_name);
        struct stat st;
        if (!path || !name)
            status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        else if (entry->d_name[0] == '.')
            status = mpk_fail(error, MOEPACK_E_REFUSED,
                              "not replaced: it holds '%s', which is not part of the container", name);
        else if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
            status = refuse_hidden(path, name, error);
        free(path);
        free(name);
    }
    closedir(list);
    return status;
}

/* Only a directory all of whose files the export will write again is replaced: nothing can get lost. */
static moepack_status directory_replaceable(void *user, const char *dir, moepack_error *error)
{
    const exporter *e = user;
    mpk_file_list list;
    moepack_status status = mpk_dir_list(dir, &list, error);
    if (status != MOEPACK_OK) return status;
    for (size_t i = 0; i < list.count && status == MOEPACK_OK; i++)
        if (!holds_name(e, list.name[i]))
            status = mpk_fail(error, MOEPACK_E_REFUSED,
                              "not replaced: it holds '%s', which is not part of the container", list.name[i]);
    mpk_file_list_free(&list);
    return status == MOEPACK_OK ? refuse_hidden(dir, "", error) : status;
}

/* ---- pieces ---- */

/* Where a piece is, for errors. */
static void error_piece(const exporter *e, const mpk_index_piece *piece, const moepack_section *section,
                        moepack_error *error)
{
    mpk_error_file(error, mpk_pack_shard_path(e->pack, piece->shard));
    if (piece->block != MOEPACK_NO_BLOCK) mpk_error_layer(error, e->labels[piece->block]);
    if (piece->expert != UINT32_MAX) mpk_error_expert(error, piece->expert);
    mpk_error_tensor(error, piece->name, (long)piece->name_length);
    mpk_error_offset(error, section->offset);
}

static moepack_status hash_error(const char *which, uint64_t expected, uint64_t found, moepack_error *error)
{
    char a[17], b[17];
    moepack_hash64_text(expected, a);
    moepack_hash64_text(found, b);
    return mpk_fail(error, MOEPACK_E_CORRUPT, "%s bytes do not match their hash: expected %s, found %s", which, a, b);
}

static void ignore_part(void *user, uint64_t i, uint64_t xxh3)
{
    (void)user; /* the hash of the whole section covers its parts */
    (void)i;
    (void)xxh3;
}

static moepack_status copy_chunks(exporter *e, mpk_lane *lane, const mpk_placed *placed, const mpk_index_piece *piece,
                                  const moepack_section *section, int shard_fd, mpk_section_hash *hasher,
                                  moepack_error *error)
{
    mpk_shape shape;
    mpk_chunker chunker;
    mpk_chunk chunk;
    mpk_buffers buffers;
    uint64_t canonical, stored;
    mpk_pieces_shape(&e->pieces, piece, &shape);
    mpk_chunker_init(&chunker, &shape, lane->bytes);
    mpk_chunker_need(&chunker, &canonical, &stored);
    bool same = shape.layout == MOEPACK_LAYOUT_CANONICAL;
    mpk_section_hash_init(hasher, lane, same, shape.decoded_length, ignore_part, NULL);
    moepack_status status = mpk_buffers_take(lane, same ? canonical : stored, same ? 0 : canonical, &buffers, error);
    if (status != MOEPACK_OK) return status;
    const char *from = mpk_pack_shard_path(e->pack, piece->shard);
    while (status == MOEPACK_OK && mpk_chunker_next(&chunker, &chunk)) {
        if (mpk_cancelled(&e->options->callbacks)) status = mpk_fail(error, MOEPACK_E_INTERRUPTED, "interrupted");
        if (status == MOEPACK_OK)
            status = mpk_file_pread(shard_fd, buffers.in, chunk.stored_length, section->offset + chunk.stored_offset,
                                    from, error);
        if (status != MOEPACK_OK) break;
        mpk_section_hash_stored(hasher, buffers.in, chunk.stored_length);
        const uint8_t *bytes = buffers.in;
        if (!chunk.same) {
            status = moepack_panel_to_canonical(chunk.matrices, chunk.matrix_count, buffers.in, chunk.stored_length,
                                                buffers.out, chunk.canonical_length, error);
            bytes = buffers.out;
            if (status == MOEPACK_OK) mpk_section_hash_canonical(hasher, bytes, chunk.canonical_length);
        }
        if (status == MOEPACK_OK)
            status = mpk_file_pwrite(e->fd, bytes, chunk.canonical_length, placed->offset + chunk.canonical_offset,
                                     e->path, error);
        mpk_meter_add(&e->meter, piece->block == MOEPACK_NO_BLOCK ? "" : e->labels[piece->block],
                      chunk.canonical_length);
    }
    mpk_buffers_return(lane, &buffers);
    return status;
}

static moepack_status copy_piece(void *user, unsigned lane, size_t item, moepack_error *error)
{
    exporter *e = user;
    const mpk_placed *placed = &e->placed[item];
    const mpk_index_piece *piece = &e->pieces.piece[placed->piece];
    moepack_section section;
    mpk_section_hash hasher;
    int shard_fd;
    moepack_index_section(e->index, piece->section, &section);
    moepack_status status = mpk_pack_shard(e->pack, piece->shard, &shard_fd, error);
    if (status != MOEPACK_OK) return status;
    status = copy_chunks(e, &e->lanes.lane[lane], placed, piece, &section, shard_fd, &hasher, error);
    if (status == MOEPACK_E_INTERRUPTED) return status;
    if (status == MOEPACK_OK) {
        uint64_t canonical, stored;
        mpk_section_hash_end(&hasher, &canonical, &stored);
        if (stored != section.xxh3_stored)
            status = hash_error("stored", section.xxh3_stored, stored, error);
        else if (canonical != section.xxh3_canonical)
            status = hash_error("published", section.xxh3_canonical, canonical, error);
    }
    if (status != MOEPACK_OK) error_piece(e, piece, &section, error);
    return status;
}

/* ---- files ---- */

/* The pieces must fill the file from the end of its header to its end: a hole would be published as zeros. */
static moepack_status check_cover(const mpk_placed *placed, size_t count, uint64_t header, uint64_t length,
                                  moepack_error *error)
{
    uint64_t end = header;
    for (size_t i = 0; i < count; i++) {
        if (placed[i].offset != end) break;
        end += placed[i].length;
    }
    if (end == length) return MOEPACK_OK;
    return mpk_fail(error, MOEPACK_E_CORRUPT, "the container's tensors do not fill this source file");
}

static moepack_status check_hash(const exporter *e, uint32_t file, const moepack_source_file *source,
                                 const mpk_placed *placed, size_t count, moepack_error *error)
{
    moepack_hash128 hash;
    moepack_status status = mpk_pieces_file_hash(&e->pieces, file, placed, count, &hash, error);
    if (status != MOEPACK_OK || (hash.low == source->hash.low && hash.high == source->hash.high)) return status;
    char expected[33], found[33];
    moepack_hash128_text(source->hash, expected);
    moepack_hash128_text(hash, found);
    return mpk_fail(error, MOEPACK_E_CORRUPT, "file hash: expected %s, found %s", expected, found);
}

static moepack_status make_parent(const char *path, moepack_error *error)
{
    char *parent = strdup(path);
    if (!parent) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    char *slash = strrchr(parent, '/');
    moepack_status status = MOEPACK_OK;
    if (slash) {
        *slash = '\0';
        status = mpk_dir_make(parent, error);
    }
    free(parent);
    return status;
}

static moepack_status write_file(exporter *e, const void *own, uint64_t own_size, const moepack_source_file *source,
                                 size_t count, moepack_error *error)
{
    moepack_status status = make_parent(e->path, error);
    if (status == MOEPACK_OK) status = mpk_file_create(e->path, &e->fd, error);
    if (status == MOEPACK_OK) status = mpk_file_reserve(e->fd, source->length, e->path, error);
    if (status == MOEPACK_OK) status = mpk_file_pwrite(e->fd, own, own_size, 0, e->path, error);
    if (status == MOEPACK_OK) mpk_meter_add(&e->meter, "", own_size);
    unsigned jobs = e->jobs < count ? e->jobs : (unsigned)count;
    if (status == MOEPACK_OK && count) status = mpk_jobs_run(jobs, count, &e->options->callbacks, copy_piece, e, error);
    if (status == MOEPACK_OK) status = mpk_file_sync(e->fd, e->path, error);
    if (e->fd >= 0) close(e->fd);
    e->fd = -1;
    return status;
}

static moepack_status export_file(exporter *e, uint32_t file, moepack_error *error)
{
    moepack_source_file source;
    mpk_section_place place;
    mpk_placed *placed = NULL;
    size_t count = 0;
    uint64_t own_size = 0, missing;
    void *own = NULL;
    moepack_index_source_file(e->index, file, &source);
    char *name = file_name(e, file);
    if (!name || !safe_name(name)) {
        free(name);
        return mpk_fail(error, MOEPACK_E_CORRUPT, "source file %u has a name that leaves the directory", file);
    }
    char *path = mpk_path_join(e->publish.partial, name);
    mpk_pack_place_file(e->pack, file, &place);
    moepack_status status = path ? mpk_pack_read_canonical(e->pack, &place, &own, &own_size, error)
                                 : mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    if (status == MOEPACK_OK && source.kind == MOEPACK_SOURCE_SAFETENSORS)
        status = mpk_pieces_place(&e->pieces, file, own, own_size, &placed, &count, &missing, error);
    if (status == MOEPACK_OK) status = check_cover(placed, count, own_size, source.length, error);
    if (status == MOEPACK_OK) status = check_hash(e, file, &source, placed, count, error);
    e->path = path;
    e->placed = placed;
    if (status == MOEPACK_OK) status = write_file(e, own, own_size, &source, count, error);
    if (status != MOEPACK_OK) mpk_error_file(error, name);
    if (status == MOEPACK_OK) {
        e->report->files++;
        e->report->written_bytes += source.length;
        e->written_pieces += count;
    }
    free(own);
    free(placed);
    free(path);
    free(name);
    return status;
}

/* ---- directories ---- */

/* Every directory that holds a file of the output, deepest last; syncing makes the names in them durable. */
static moepack_status sync_directories(const exporter *e, moepack_error *error)
{
    moepack_status status = MOEPACK_OK;
    for (uint32_t i = 0; i < moepack_index_source_files(e->index) && status == MOEPACK_OK; i++) {
        char *name = file_name(e, i);
        char *path = name ? mpk_path_join(e->publish.partial, name) : NULL;
        if (!path) status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
        for (size_t slashes = 0; path && name[slashes] && status == MOEPACK_OK; slashes++) {
            if (name[slashes] != '/') continue;
            size_t end = strlen(e->publish.partial) + 1 + slashes;
            path[end] = '\0';
            status = mpk_dir_sync(path, error);
            path[end] = '/';
        }
        free(path);
        free(name);
    }
    return status == MOEPACK_OK ? mpk_dir_sync(e->publish.partial, error) : status;
}

/* ---- entry ---- */

static moepack_status load_labels(exporter *e, moepack_error *error)
{
    uint32_t blocks = moepack_index_blocks(e->index);
    e->labels = calloc((size_t)blocks + 1, sizeof *e->labels);
    if (!e->labels) return mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    for (uint32_t i = 0; i < blocks; i++) moepack_index_label(e->index, i, e->labels[i]);
    return MOEPACK_OK;
}

static moepack_status check_space(exporter *e, moepack_error *error)
{
    uint64_t needed = 0, available;
    for (uint32_t i = 0; i < moepack_index_source_files(e->index); i++) {
        moepack_source_file source;
        moepack_index_source_file(e->index, i, &source);
        if (source.length > INT64_MAX || needed > INT64_MAX - source.length)
            return mpk_fail(error, MOEPACK_E_CORRUPT, "source files add up to more than 2^63 bytes");
        needed += source.length;
    }
    mpk_meter_stage(&e->meter, "export", needed);
    return mpk_publish_space(e->publish.out, needed, &available, error);
}

static moepack_status export_all(exporter *e, moepack_error *error)
{
    e->jobs = mpk_jobs_choose(e->options->jobs, e->pieces.count);
    uint64_t largest = 0;
    for (size_t i = 0; i < e->pieces.count; i++) {
        const moepack_desc *desc = &e->pieces.descs[e->pieces.piece[i].desc].desc;
        uint64_t bytes = desc->decoded_length > desc->canonical_length ? desc->decoded_length : desc->canonical_length;
        if (bytes > largest) largest = bytes;
    }
    moepack_status status = mpk_lanes_init(&e->lanes, e->jobs, largest, error);
    if (status != MOEPACK_OK) return status;
    status = mpk_publish_begin(&e->publish, error);
    for (uint32_t i = 0; i < moepack_index_source_files(e->index) && status == MOEPACK_OK; i++) {
        if (mpk_cancelled(&e->options->callbacks))
            status = mpk_fail(error, MOEPACK_E_INTERRUPTED, "interrupted");
        else
            status = export_file(e, i, error);
    }
    if (status == MOEPACK_OK && e->written_pieces != e->pieces.count)
        status =
            mpk_fail(error, MOEPACK_E_UNSUPPORTED,
                     "%llu of %llu tensors and slices of the container are named by no source file",
                     (unsigned long long)(e->pieces.count - e->written_pieces), (unsigned long long)e->pieces.count);
    if (status == MOEPACK_OK) status = sync_directories(e, error);
    mpk_lanes_free(&e->lanes);
    return status;
}

moepack_status moepack_export(const char *pack, const char *out_dir, const moepack_export_options *options,
                              moepack_export_report *report, moepack_error *error)
{
    moepack_export_options defaults;
    moepack_export_report unused;
    moepack_export_options_init(&defaults);
    exporter e = {
        .options = options ? options : &defaults, .report = report ? report : &unused, .publish = {.fd = -1}, .fd = -1};
    *e.report = (moepack_export_report){0};
    double start = mpk_seconds();
    if (!pack || !out_dir) return mpk_fail(error, MOEPACK_E_USAGE, "container and output directory are needed");
    if (out_dir[0] == '\0') return mpk_fail(error, MOEPACK_E_USAGE, "the output's name is empty");
    if (e.options->size != sizeof *e.options) return mpk_fail(error, MOEPACK_E_USAGE, "options of another version");
    moepack_status status = mpk_pack_open(pack, &e.pack, error);
    if (status != MOEPACK_OK) return status;
    mpk_meter_init(&e.meter, &e.options->callbacks);
    e.index = mpk_pack_index(e.pack);
    moepack_info info;
    moepack_index_info(e.index, &info);
    if (info.quantized) {
        status = mpk_fail(error, MOEPACK_E_UNSUPPORTED,
                          "its experts were quantised when it was made (--quantize): they are not the source's bits");
        mpk_error_file(error, pack);
    } else if (info.subset) {
        status = mpk_fail(error, MOEPACK_E_UNSUPPORTED, "the container holds only a part of its source");
        mpk_error_file(error, pack);
    }
    if (status == MOEPACK_OK) status = load_labels(&e, error);
    if (status == MOEPACK_OK)
        status = mpk_publish_init(&e.publish, out_dir, pack, e.options->overwrite, directory_replaceable, &e, error);
    if (status == MOEPACK_OK) status = check_space(&e, error);
    if (status == MOEPACK_OK) status = mpk_pieces_open(e.index, &e.pieces, error);
    if (status == MOEPACK_OK) status = export_all(&e, error);
    if (status == MOEPACK_OK) status = mpk_publish_end(&e.publish, &e.meter, error);
    mpk_meter_end(&e.meter);
    e.report->seconds = mpk_seconds() - start;
    mpk_publish_free(&e.publish);
    mpk_pieces_close(&e.pieces);
    free(e.labels);
    mpk_meter_free(&e.meter);
    mpk_pack_close(e.pack);
    return status;
}
