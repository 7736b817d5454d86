/* Files around the shards, the checkpoint's publication, and the input file. */
#include "synth.h"

#include "rng.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------- failures */

moepack_status mpk_synth_fail(moepack_error *error, moepack_status status, int errno_value, const char *fmt, ...)
{
    if (error == NULL) return status;
    memset(error, 0, sizeof *error);
    error->status = status;
    error->expert = -1;
    error->offset = -1;
    va_list list;
    va_start(list, fmt);
    vsnprintf(error->message, sizeof error->message, fmt, list);
    va_end(list);
    size_t length = strlen(error->message);
    if (errno_value != 0)
        snprintf(error->message + length, sizeof error->message - length, ": %s", strerror(errno_value));
    return status;
}

/* Names the file; of a long path the end is kept. */
static moepack_status at_file(moepack_error *error, const char *path, moepack_status status)
{
    if (error == NULL) return status;
    size_t length = strlen(path), room = sizeof error->file - 1;
    snprintf(error->file, sizeof error->file, "%s", length > room ? path + (length - room) : path);
    return status;
}

static moepack_status no_memory(moepack_error *error)
{
    return mpk_synth_fail(error, MOEPACK_E_REFUSED, 0, "not enough memory");
}

/* ------------------------------------------------------------------------------------------------- small files */

static moepack_status write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return MOEPACK_E_IO;
        data += n;
        size -= (size_t)n;
    }
    return fsync(fd) == 0 ? MOEPACK_OK : MOEPACK_E_IO;
}

static moepack_status write_file(const char *dir, const char *name, const char *text, moepack_error *error)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, name) < 0) return no_memory(error);
    moepack_status status = MOEPACK_OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = at_file(error, path, mpk_synth_fail(error, MOEPACK_E_IO, errno, "cannot create"));
    } else {
        status = write_all(fd, text, strlen(text));
        int code = errno;
        if (close(fd) != 0 && status == MOEPACK_OK) {
            status = MOEPACK_E_IO;
            code = errno;
        }
        if (status != MOEPACK_OK) at_file(error, path, mpk_synth_fail(error, MOEPACK_E_IO, code, "cannot write"));
    }
    free(path);
    return status;
}

/* Replaces "real:1e-05" (a string) by 1e-05 (a number), in place. Versions of jansson print reals differently; files
 * must not depend on that, so families give reals as text. */
static void unquote_reals(char *text)
{
    static const char mark[] = "\"real:";
    char *to = text, *from = text;
    while (*from != '\0') {
        if (strncmp(from, mark, sizeof mark - 1) != 0) {
            *to++ = *from++;
            continue;
        }
        from += sizeof mark - 1;
        while (*from != '"') *to++ = *from++;
        from++;
    }
    *to = '\0';
}

/* Takes the object; NULL means that there was no memory for it. Keys are sorted, so that the text is always the same.
 */
static moepack_status write_json(const char *dir, const char *name, json_t *object, moepack_error *error)
{
    char *text = object == NULL ? NULL : json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(object);
    if (text == NULL) return no_memory(error);
    unquote_reals(text);
    moepack_status status = write_file(dir, name, text, error);
    free(text);
    return status;
}

typedef struct mapping {
    json_t *map, *file;
} mapping;

static moepack_status map_tensor(void *user, const mpk_synth_item *item, moepack_error *error)
{
    const mapping *m = user;
    return json_object_set(m->map, item->name, m->file) == 0 ? MOEPACK_OK : no_memory(error);
}

static moepack_status write_index(const mpk_synth_plan *plan, const char *dir, moepack_error *error)
{
    json_t *map = json_object();
    json_t *index =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)plan->total_bytes, "weight_map", map);
    moepack_status status = index == NULL ? no_memory(error) : MOEPACK_OK;
    for (uint32_t shard = 0; status == MOEPACK_OK && shard < plan->shard_count; shard++) {
        char name[MPK_SYNTH_FILE];
        mpk_synth_shard_name(plan, shard, name);
        mapping m = {map, json_string(name)};
        status = m.file == NULL ? no_memory(error) : mpk_synth_shard_visit(plan, shard, map_tensor, &m, error);
        json_decref(m.file);
    }
    if (status == MOEPACK_OK) return write_json(dir, "model.safetensors.index.json", index, error);
    json_decref(index);
    return status;
}

static const char licence_text[] =
    "These files hold random numbers made by 'moepack synth'. They carry no weights of any published model.\n"
    "No rights are claimed in them: use, change and share them as you like.\n";

static const char readme_text[] = "# Synthetic checkpoint\n\n"
                                  "Synthetic weights: random numbers in the layout of a published model, for tests and "
                                  "measurements. Not a language model.\n";

static moepack_status write_side_files(const mpk_synth_plan *plan, const char *dir, moepack_error *error)
{
    json_t *generation = json_pack("{s:b, s:i, s:i, s:i}", "_from_model_config", 1, "bos_token_id", 1, "eos_token_id",
                                   2, "max_length", 4096);
    json_t *tokenizer = json_pack("{s:{}, s:i, s:s}", "added_tokens_decoder", "model_max_length", 4096,
                                  "tokenizer_class", "SyntheticTokenizer");
    moepack_status status = write_json(dir, "generation_config.json", generation, error);
    if (status == MOEPACK_OK) {
        status = write_json(dir, "tokenizer_config.json", tokenizer, error);
    } else {
        json_decref(tokenizer);
    }
    if (status == MOEPACK_OK) status = write_file(dir, "LICENSE", licence_text, error);
    if (status == MOEPACK_OK) status = write_file(dir, "README.md", readme_text, error);
    if (status == MOEPACK_OK) status = write_json(dir, "config.json", plan->family->config(&plan->geometry), error);
    return status;
}

/* ------------------------------------------------------------------------------------------------- directories */

typedef struct paths {
    char *out, *partial, *parent;
} paths;

static void paths_free(paths *p)
{
    free(p->out);
    free(p->partial);
    free(p->parent);
}

static moepack_status paths_make(paths *p, const char *out, moepack_error *error)
{
    memset(p, 0, sizeof *p);
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/') length--;
    if (length == 0) return mpk_synth_fail(error, MOEPACK_E_USAGE, 0, "the name of the output directory is empty");
    p->out = strndup(out, length);
    if (p->out == NULL || asprintf(&p->partial, "%s.partial", p->out) < 0) {
        p->partial = NULL;
        return no_memory(error);
    }
    const char *slash = strrchr(p->out, '/');
    p->parent = slash == NULL ? strdup(".") : slash == p->out ? strdup("/") : strndup(p->out, (size_t)(slash - p->out));
    return p->parent == NULL ? no_memory(error) : MOEPACK_OK;
}

/* Calls unlink for everything in a directory that we made; with `remove` false only says whether it is empty. */
static bool directory_empty(const char *path, bool remove)
{
    DIR *dir = opendir(path);
    if (dir == NULL) return false;
    bool empty = true;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (!remove || unlinkat(dirfd(dir), entry->d_name, 0) != 0) empty = false;
    }
    closedir(dir);
    return empty;
}

static moepack_status check_out(const paths *p, moepack_error *error)
{
    struct stat info;
    if (lstat(p->out, &info) == 0) {
        if (!S_ISDIR(info.st_mode))
            return at_file(error, p->out, mpk_synth_fail(error, MOEPACK_E_REFUSED, 0, "exists and is no directory"));
        if (!directory_empty(p->out, false))
            return at_file(error, p->out, mpk_synth_fail(error, MOEPACK_E_REFUSED, 0, "exists and is not empty"));
    } else if (errno != ENOENT) {
        return at_file(error, p->out, mpk_synth_fail(error, MOEPACK_E_IO, errno, "cannot look at it"));
    }
    return MOEPACK_OK;
}

static moepack_status check_space(const paths *p, uint64_t need, moepack_error *error)
{
    struct statvfs info;
    if (statvfs(p->parent, &info) != 0) {
        return at_file(error, p->parent,
                       mpk_synth_fail(error, MOEPACK_E_IO, errno, "cannot find out how much space is free"));
    }
    uint64_t have;
    if (__builtin_mul_overflow((uint64_t)info.f_bavail, (uint64_t)info.f_frsize, &have)) have = UINT64_MAX;
    if (have >= need) return MOEPACK_OK;
    return at_file(error, p->parent,
                   mpk_synth_fail(error, MOEPACK_E_REFUSED, 0,
                                  "not enough disk space: need %" PRIu64 " bytes (%.2f GB), have %" PRIu64
                                  " bytes (%.2f GB)",
                                  need, (double)need / 1e9, have, (double)have / 1e9));
}

static moepack_status sync_directory(const char *path, moepack_error *error)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL); /* EINVAL: a file system without it */
    int code = errno;
    if (fd >= 0) close(fd);
    return ok ? MOEPACK_OK
              : at_file(error, path, mpk_synth_fail(error, MOEPACK_E_IO, code, "cannot sync the directory"));
}

static uint64_t directory_bytes(const char *path)
{
    DIR *dir = opendir(path);
    uint64_t bytes = 0;
    if (dir == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        struct stat info;
        if (fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode))
            bytes += (uint64_t)info.st_size;
    }
    closedir(dir);
    return bytes;
}

/* ------------------------------------------------------------------------------------------------- the checkpoint */

static unsigned default_jobs(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return processors < 1 ? 1 : processors > 8 ? 8 : (unsigned)processors;
}

static moepack_status write_partial(const mpk_synth_plan *plan, const paths *p, unsigned jobs,
                                    const moepack_callbacks *callbacks, moepack_error *error)
{
    moepack_status status = write_side_files(plan, p->partial, error);
    if (status == MOEPACK_OK) status = mpk_synth_write_shards(plan, p->partial, jobs, callbacks, error);
    if (status == MOEPACK_OK) status = write_index(plan, p->partial, error);
    if (status == MOEPACK_OK) status = sync_directory(p->partial, error);
    return status;
}

static moepack_status publish(const paths *p, moepack_error *error)
{
    if (rename(p->partial, p->out) != 0) { /* replaces an empty directory, and nothing else */
        moepack_status status =
            errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR ? MOEPACK_E_REFUSED : MOEPACK_E_IO;
        return at_file(error, p->out,
                       mpk_synth_fail(error, status, errno, "cannot give the finished directory its name"));
    }
    return sync_directory(p->parent, error);
}

static moepack_status write_checkpoint(const mpk_synth_plan *plan, const paths *p, unsigned jobs,
                                       const moepack_callbacks *callbacks, mpk_synth_report *report,
                                       moepack_error *error)
{
    moepack_status status = check_out(p, error);
    if (status == MOEPACK_OK) status = check_space(p, plan->disk_bytes, error);
    if (status != MOEPACK_OK) return status;
    if (mkdir(p->partial, 0777) != 0) {
        return errno == EEXIST
                   ? at_file(error, p->partial,
                             mpk_synth_fail(error, MOEPACK_E_REFUSED, 0,
                                            "exists: left over from an interrupted run, or another one is writing it"))
                   : at_file(error, p->partial,
                             mpk_synth_fail(error, MOEPACK_E_IO, errno, "cannot create the directory"));
    }
    status = write_partial(plan, p, jobs, callbacks, error);
    report->written_bytes = directory_bytes(p->partial);
    if (status == MOEPACK_OK) status = publish(p, error);
    if (status != MOEPACK_OK && directory_empty(p->partial, true)) rmdir(p->partial);
    return status;
}

moepack_status mpk_synth_write(const mpk_synth_plan *plan, const char *out, unsigned jobs,
                               const moepack_callbacks *callbacks, mpk_synth_report *report, moepack_error *error)
{
    struct timespec start, end;
    paths p;
    clock_gettime(CLOCK_MONOTONIC, &start);
    memset(report, 0, sizeof *report);
    moepack_status status = paths_make(&p, out, error);
    if (status == MOEPACK_OK)
        status = write_checkpoint(plan, &p, jobs == 0 ? default_jobs() : jobs, callbacks, report, error);
    paths_free(&p);
    clock_gettime(CLOCK_MONOTONIC, &end);
    report->tensors = plan->tensors;
    report->experts = plan->experts;
    report->shards = plan->shard_count;
    report->tensor_bytes = plan->total_bytes;
    report->seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    return status;
}

/* ------------------------------------------------------------------------------------------------- input */

/* Gain of each channel: uneven, and four times larger for two massive ones. */
static void channel_gains(uint64_t seed, uint64_t hidden, float *gain)
{
    uint64_t key = mpk_synth_key(seed, "input channel gain");
    for (uint64_t i = 0; i < hidden; i++) gain[i] = (float)mpk_synth_factor(mpk_synth_nth(key, i), 0.27);
    for (uint64_t i = 0; i < 2; i++) gain[mpk_synth_nth(key, hidden + i) % hidden] *= 4.0f;
}

static float load_f32(const uint8_t *p)
{
    uint32_t bits = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void input_row(uint64_t key, uint64_t row, uint64_t hidden, const float *gain, uint8_t *drawn, uint8_t *out)
{
    static const mpk_synth_law law = {.centre = 0.0, .std = 1.0, .spread = 0.0};
    mpk_synth_kernels_get(0)->f32(key, row, 1, hidden, &law, drawn);
    for (uint64_t i = 0; i < hidden; i++) {
        uint16_t bits = mpk_synth_bf16(load_f32(drawn + 4 * i) * gain[i]);
        out[2 * i] = (uint8_t)bits;
        out[2 * i + 1] = (uint8_t)(bits >> 8);
    }
}

moepack_status mpk_synth_write_input(const char *path, uint64_t seed, uint64_t tokens, uint64_t hidden,
                                     moepack_error *error)
{
    moepack_safetensors_writer *file = NULL;
    uint64_t dims[2] = {tokens, hidden}, key = mpk_synth_key(seed, "input");
    moepack_status status = moepack_safetensors_create(path, false, &file, error);
    if (status != MOEPACK_OK) return status;
    float *gain = calloc((size_t)hidden, sizeof *gain);
    uint8_t *drawn = calloc((size_t)hidden, 4), *row = calloc((size_t)hidden, 2);
    status = gain == NULL || drawn == NULL || row == NULL
                 ? no_memory(error)
                 : moepack_safetensors_add(file, "x", MOEPACK_DTYPE_BF16, 2, dims, error);
    if (status == MOEPACK_OK) channel_gains(seed, hidden, gain);
    for (uint64_t t = 0; status == MOEPACK_OK && t < tokens; t++) {
        input_row(key, t, hidden, gain, drawn, row);
        status = moepack_safetensors_append(file, row, (size_t)hidden * 2, error);
    }
    free(gain);
    free(drawn);
    free(row);
    if (status == MOEPACK_OK) return moepack_safetensors_finish(file, error);
    moepack_safetensors_abort(file);
    return status;
}
