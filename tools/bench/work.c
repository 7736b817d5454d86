/* Temporary directories, and the checkpoints and containers in them. */
#include "bench.h"

#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

moepack_status bench_fail(moepack_error *error, moepack_status status, const char *fmt, ...)
{
    va_list args;
    *error = (moepack_error){.status = status, .expert = -1, .offset = -1};
    va_start(args, fmt);
    vsnprintf(error->message, sizeof error->message, fmt, args);
    va_end(args);
    return status;
}

moepack_status bench_go_on(moepack_error *error)
{
    return cli_cancelled ? bench_fail(error, MOEPACK_E_INTERRUPTED, "interrupted") : MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------- directories */

static uint64_t free_bytes(const char *path)
{
    struct statvfs info;
    return statvfs(path, &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : 0;
}

const char *bench_tmpdir(const bench *b)
{
    const char *variable = getenv("TMPDIR");
    if (b->tmpdir != NULL) return b->tmpdir;
    return variable != NULL && variable[0] != '\0' ? variable : "/var/tmp";
}

/* Half of the free memory must remain: the weights are loaded from there. */
const char *bench_memdir(const bench *b, uint64_t bytes)
{
    const char *shared = "/dev/shm";
    const bool room = b->machine.memory_available / 4 > bytes && free_bytes(shared) > 2 * bytes;
    return b->tmpdir == NULL && room && access(shared, W_OK | X_OK) == 0 ? shared : bench_tmpdir(b);
}

moepack_status bench_dir_make(bench_dir *dir, const char *parent, uint64_t bytes, moepack_error *error)
{
    const uint64_t available = free_bytes(parent);
    if (available < bytes) {
        char need[CLI_SIZE_TEXT], have[CLI_SIZE_TEXT];
        return bench_fail(error, MOEPACK_E_REFUSED,
                          "%.300s: %s are needed for temporary files, %s are free (--tmpdir, --experts)", parent,
                          cli_size_short(bytes, need), cli_size_short(available, have));
    }
    const int length = snprintf(dir->path, sizeof dir->path, "%s/moepack-bench-XXXXXX", parent);
    if (length < 0 || (size_t)length >= sizeof dir->path)
        return bench_fail(error, MOEPACK_E_USAGE, "the path of the temporary directory is too long");
    if (mkdtemp(dir->path) == NULL) return bench_fail(error, MOEPACK_E_IO, "%.300s: %s", dir->path, strerror(errno));
    dir->made = true;
    return MOEPACK_OK;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)walk;
    (void)(type == FTW_DP || type == FTW_D ? rmdir(path) : unlink(path));
    return 0;
}

bool bench_remove_tree(const char *path)
{
    struct stat info;
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return lstat(path, &info) != 0 && errno == ENOENT;
}

void bench_dir_remove(bench_dir *dir)
{
    if (dir->made && !bench_remove_tree(dir->path))
        fprintf(stderr, "moepack: warning: %s could not be removed\n", dir->path);
    dir->made = false;
}

/* ------------------------------------------------------------------------------------------------- checkpoints */

uint64_t bench_checkpoint_bytes(const mpk_synth_geometry *geometry)
{
    mpk_synth_plan plan;
    moepack_error error;
    if (mpk_synth_plan_make(&plan, &mpk_synth_kimi_k3, geometry, 1, 0, &error) != MOEPACK_OK) return 0;
    const uint64_t bytes = plan.disk_bytes;
    mpk_synth_plan_free(&plan);
    return bytes;
}

moepack_status bench_synth(const bench *b, const mpk_synth_geometry *geometry, const char *path, moepack_error *error)
{
    mpk_synth_plan plan;
    mpk_synth_report report;
    const moepack_callbacks callbacks = {.cancel = &cli_cancelled};
    moepack_status status = mpk_synth_plan_make(&plan, &mpk_synth_kimi_k3, geometry, 1, 0, error);
    if (status != MOEPACK_OK) return status;
    status = mpk_synth_write(&plan, path, b->threads, &callbacks, &report, error);
    mpk_synth_plan_free(&plan);
    return status;
}

moepack_status bench_convert(const char *src, const char *out, moepack_convert_report *report, moepack_error *error)
{
    moepack_convert_options options;
    moepack_convert_options_init(&options);
    options.callbacks.cancel = &cli_cancelled;
    return moepack_convert(src, out, &options, report, error);
}

/* ------------------------------------------------------------------------------------------------- loads */

moepack_status bench_plan_open(bench_load *load, const char *path, moepack_error *error)
{
    moepack_plan_options options;
    moepack_plan_options_init(&options);
    *load = (bench_load){0};
    moepack_status status = moepack_open(path, &load->pack, error);
    if (status == MOEPACK_OK) status = moepack_placement_create(load->pack, "linear", 1, &load->placement, error);
    if (status == MOEPACK_OK)
        status = moepack_plan_create(load->pack, load->placement, 0, &options, &load->plan, error);
    if (status != MOEPACK_OK) bench_load_close(load);
    return status;
}

moepack_status bench_load_run(bench_load *load, moepack_check check, moepack_error *error)
{
    moepack_load_options options;
    moepack_load_options_init(&options);
    options.check = check;
    options.cancel = &cli_cancelled;
    moepack_load_free(load->load);
    load->load = NULL;
    return moepack_load_create(load->pack, load->placement, 0, load->plan, &options, &load->load, &load->report, error);
}

void bench_load_close(bench_load *load)
{
    moepack_load_free(load->load);
    moepack_plan_free(load->plan);
    moepack_placement_free(load->placement);
    moepack_close(load->pack);
    *load = (bench_load){0};
}
