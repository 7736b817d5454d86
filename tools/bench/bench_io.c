/* Figures of files: reading, writing, hashing, opening, converting, verifying and loading containers.
 *
 * Before every cold run the files are dropped from the page cache, and mincore is asked whether they are gone; what is
 * left is written into the result's note. */
#include "bench.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Models that open is measured with have as many experts a layer as Kimi K3, of the smallest size. */
enum {
    OPEN_EXPERTS = 896,
    OPEN_LAYERS_QUICK = 1,
    OPEN_LAYERS = 8,
    OPEN_REPEATS = 10
};

typedef struct files_run {
    bench *b;
    bench_dir dir;
    char source[PATH_MAX], container[PATH_MAX], out[PATH_MAX], small[PATH_MAX];
    bench_files source_files, files;
    bench_load load;
    uint64_t amount; /* bytes of the last run */
    double resident; /* largest fraction that was cached before a cold run */
    bool buffered;   /* O_DIRECT was refused */
    char said[120];  /* what the last run has to say */
} files_run;

/* One run: bytes per second. */
typedef moepack_status io_step(files_run *io, double *rate, moepack_error *error);

typedef struct io_figure {
    unsigned bit;
    const char *name, *limit_name;
    io_step *limit, *figure;
    bool one_thread;
} io_figure;

/* ------------------------------------------------------------------------------------------------- limits */

static moepack_status cold(files_run *io, const bench_files *files, moepack_error *error)
{
    double resident = 0;
    moepack_status status = bench_drop_cache(files, &resident, error);
    if (resident > io->resident) io->resident = resident;
    return status;
}

static double rate_of(files_run *io, const bench_stream *stream, uint64_t bytes)
{
    if (!stream->direct) io->buffered = true;
    return stream->seconds > 0 ? (double)bytes / stream->seconds : 0;
}

static moepack_status read_files(files_run *io, bool fresh, double *rate, moepack_error *error)
{
    bench_stream stream = {0};
    moepack_status status = cold(io, &io->files, error);
    if (status == MOEPACK_OK) status = bench_stream_read(&io->files, fresh, &stream, error);
    *rate = rate_of(io, &stream, io->files.bytes);
    return status;
}

static moepack_status limit_read(files_run *io, double *rate, moepack_error *error)
{
    return read_files(io, false, rate, error);
}

/* What a load can reach: its memory must be found and zeroed by the system, which the plain read is spared. */
static moepack_status limit_fresh(files_run *io, double *rate, moepack_error *error)
{
    return read_files(io, true, rate, error);
}

static moepack_status limit_write(files_run *io, double *rate, moepack_error *error)
{
    bench_stream stream = {0};
    moepack_status status = bench_stream_write(io->dir.path, io->files.bytes, &stream, error);
    *rate = rate_of(io, &stream, io->files.bytes);
    return status;
}

static moepack_status limit_copy(files_run *io, double *rate, moepack_error *error)
{
    bench_stream stream = {0};
    moepack_status status = cold(io, &io->source_files, error);
    if (status == MOEPACK_OK) status = bench_stream_copy(&io->source_files, io->dir.path, &stream, error);
    *rate = rate_of(io, &stream, io->source_files.bytes);
    return status;
}

static moepack_status limit_scan(files_run *io, double *rate, moepack_error *error)
{
    *rate = bench_scan(io->b, io->b->threads);
    return bench_go_on(error);
}

/* The index file, read and hashed: what no reader that checks it can be faster than. */
static moepack_status limit_index(files_run *io, double *rate, moepack_error *error)
{
    char path[PATH_MAX];
    const int length = snprintf(path, sizeof path, "%s/index.mpk", io->small);
    const size_t size = (size_t)io->amount;
    uint64_t hash = 0;
    bool well = length > 0 && (size_t)length < sizeof path;
    const double started = cli_seconds();
    for (int i = 0; i < OPEN_REPEATS && well; i++) {
        uint8_t *data = malloc(size + 1);
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        well = data != NULL && fd >= 0 && read(fd, data, size) == (ssize_t)size;
        if (well) hash ^= moepack_hash64(data, size);
        if (fd >= 0) close(fd);
        free(data);
    }
    __asm__ volatile("" : : "r"(hash));
    *rate = (double)size * OPEN_REPEATS / (cli_seconds() - started);
    return well ? bench_go_on(error) : bench_fail(error, MOEPACK_E_IO, "%.300s cannot be read", path);
}

/* ------------------------------------------------------------------------------------------------- figures */

static moepack_status load_with(files_run *io, moepack_check check, double *rate, moepack_error *error)
{
    moepack_status status = cold(io, &io->files, error);
    moepack_load_free(io->load.load);
    io->load.load = NULL;
    const double started = cli_seconds();
    if (status == MOEPACK_OK) status = bench_load_run(&io->load, check, error);
    if (status != MOEPACK_OK) return status;
    const moepack_load_report *report = &io->load.report;
    io->amount = report->bytes_wanted;
    *rate = (double)io->amount / (cli_seconds() - started);
    snprintf(io->said, sizeof io->said, "%s%.100s", report->io == MOEPACK_IO_DIRECT ? "direct" : "mmap",
             report->io_reason);
    if (report->io_reason[0] != '\0') snprintf(io->said, sizeof io->said, "%.100s", report->io_reason);
    return MOEPACK_OK;
}

static moepack_status run_read(files_run *io, double *rate, moepack_error *error)
{
    return load_with(io, MOEPACK_CHECK_NONE, rate, error);
}

static moepack_status run_load(files_run *io, double *rate, moepack_error *error)
{
    return load_with(io, MOEPACK_CHECK_ON_LOAD, rate, error);
}

/* Every hash there is: the published bytes' too, which takes undoing the weight order. */
static moepack_status run_load_full(files_run *io, double *rate, moepack_error *error)
{
    return load_with(io, MOEPACK_CHECK_FULL, rate, error);
}

/* One tensor through the safetensors writer, synced as every file of this library. */
static moepack_status run_write(files_run *io, double *rate, moepack_error *error)
{
    char path[PATH_MAX];
    moepack_safetensors_writer *writer = NULL;
    const uint64_t size = io->files.bytes, step = io->b->buffer_size;
    snprintf(path, sizeof path, "%s/written.safetensors", io->dir.path);
    const double started = cli_seconds();
    moepack_status status = moepack_safetensors_create(path, true, &writer, error);
    if (status != MOEPACK_OK) return status;
    status = moepack_safetensors_add(writer, "x", MOEPACK_DTYPE_U8, 1, &size, error);
    for (uint64_t done = 0; done < size && status == MOEPACK_OK; done += step) {
        const uint64_t left = size - done;
        status = moepack_safetensors_append(writer, io->b->buffer, (size_t)(left < step ? left : step), error);
    }
    if (status == MOEPACK_OK)
        status = moepack_safetensors_finish(writer, error);
    else
        moepack_safetensors_abort(writer);
    io->amount = size;
    *rate = (double)size / (cli_seconds() - started);
    unlink(path);
    return status;
}

static moepack_status run_hash(files_run *io, double *rate, moepack_error *error)
{
    *rate = bench_hash(io->b, io->b->threads);
    io->amount = io->b->buffer_size;
    return bench_go_on(error);
}

static moepack_status run_open(files_run *io, double *rate, moepack_error *error)
{
    moepack_status status = MOEPACK_OK;
    uint64_t sections = 0;
    const double started = cli_seconds();
    for (int i = 0; i < OPEN_REPEATS && status == MOEPACK_OK; i++) {
        moepack_pack *pack = NULL;
        status = moepack_open(io->small, &pack, error);
        if (status == MOEPACK_OK) {
            io->amount = moepack_index_file_length(moepack_pack_index(pack));
            sections = moepack_index_sections(moepack_pack_index(pack));
        }
        moepack_close(pack);
    }
    const double seconds = (cli_seconds() - started) / OPEN_REPEATS;
    *rate = (double)io->amount / seconds;
    snprintf(io->said, sizeof io->said, "%llu sections, %.3f ms (warm)", (unsigned long long)sections, seconds * 1e3);
    return status == MOEPACK_OK ? bench_go_on(error) : status;
}

static moepack_status run_convert(files_run *io, double *rate, moepack_error *error)
{
    moepack_convert_report report;
    moepack_status status = cold(io, &io->source_files, error);
    const double started = cli_seconds();
    if (status == MOEPACK_OK) status = bench_convert(io->source, io->out, &report, error);
    if (status != MOEPACK_OK) return status;
    io->amount = report.source_bytes;
    *rate = (double)io->amount / (cli_seconds() - started);
    bench_remove_tree(io->out);
    return MOEPACK_OK;
}

static moepack_status run_verify(files_run *io, double *rate, moepack_error *error)
{
    moepack_verify_options options;
    moepack_verify_report report;
    moepack_verify_options_init(&options);
    options.callbacks.cancel = &cli_cancelled;
    moepack_status status = cold(io, &io->files, error);
    const double started = cli_seconds();
    if (status == MOEPACK_OK) status = moepack_verify(io->container, &options, &report, error);
    if (status != MOEPACK_OK) return status;
    io->amount = report.checked_bytes;
    *rate = (double)io->amount / (cli_seconds() - started);
    return MOEPACK_OK;
}

static const io_figure figures[] = {
    {BENCH_READ, "read", "O_DIRECT read of the same files", limit_read, run_read, false},
    {BENCH_WRITE, "write", "O_DIRECT write of as many bytes, synced", limit_write, run_write, false},
    {BENCH_HASH, "hash", "read scan", limit_scan, run_hash, false},
    {BENCH_OPEN, "open", "index read and hashed", limit_index, run_open, true},
    {BENCH_CONVERT, "convert", "O_DIRECT copy of the source, synced", limit_copy, run_convert, false},
    {BENCH_VERIFY, "verify", "O_DIRECT read of the same files", limit_read, run_verify, false},
    {BENCH_LOAD, "load", "O_DIRECT read of the same files", limit_read, run_load, false},
    {BENCH_LOAD, "load.fresh", "O_DIRECT read into fresh memory", limit_fresh, run_load, false},
    {BENCH_LOAD, "load.full", "O_DIRECT read into fresh memory", limit_fresh, run_load_full, false},
};

/* ------------------------------------------------------------------------------------------------- measuring */

static moepack_status measure(files_run *io, const io_figure *f, moepack_error *error)
{
    bench *b = io->b;
    bench_result *result = bench_result_new(b, f->name, "GB/s", 1e9);
    if (result == NULL) return bench_fail(error, MOEPACK_E_REFUSED, "no memory");
    result->limit_name = f->limit_name;
    result->threads = f->one_thread ? 1 : b->threads;
    io->resident = 0;
    io->buffered = false;
    io->said[0] = '\0';
    double unused;
    moepack_status status = f->bit == BENCH_OPEN ? run_open(io, &unused, error) : MOEPACK_OK; /* warm, and its size */
    const double started = cli_seconds();
    for (unsigned runs = 0; status == MOEPACK_OK && bench_more(b, started, runs); runs++) {
        double limit = 0, rate = 0;
        status = f->limit(io, &limit, error);
        if (status == MOEPACK_OK) status = f->figure(io, &rate, error);
        if (status != MOEPACK_OK) break;
        bench_add(&result->limit, limit);
        bench_add(&result->figure, rate);
    }
    if (status == MOEPACK_OK) status = bench_go_on(error);
    if (status != MOEPACK_OK) return status;
    result->bytes = (double)io->amount;
    snprintf(result->note, sizeof result->note, "%.90s", io->said);
    const size_t used = strlen(result->note);
    if (io->buffered || io->resident > 0.01)
        snprintf(result->note + used, sizeof result->note - used, "%slimit %s, %.0f %% of the pages were cached",
                 used > 0 ? "; " : "", io->buffered ? "buffered" : "direct", 100 * io->resident);
    bench_result_done(b, result);
    return MOEPACK_OK;
}

/* ------------------------------------------------------------------------------------------------- material */

/* Experts of full size, and as little as possible of everything else. */
static mpk_synth_geometry experts_only(const bench *b)
{
    mpk_synth_geometry g = b->geometry;
    if (g.latent != 0 && g.hidden > 256) g.hidden = 256;
    g.experts = b->io_experts;
    if (g.top_k > g.experts) g.top_k = g.experts;
    g.shared = 1;
    return g;
}

static mpk_synth_geometry many_experts(const bench *b)
{
    mpk_synth_geometry g = b->geometry;
    g.hidden = 64;
    g.latent = g.intermediate = 32;
    g.experts = OPEN_EXPERTS;
    g.top_k = 16;
    g.shared = 1;
    g.layers = 1 + (b->quick ? OPEN_LAYERS_QUICK : OPEN_LAYERS);
    return g;
}

static moepack_status make_container(files_run *io, moepack_error *error)
{
    moepack_convert_report report;
    const mpk_synth_geometry g = experts_only(io->b);
    moepack_status status = bench_synth(io->b, &g, io->source, error);
    if (status == MOEPACK_OK) status = bench_convert(io->source, io->container, &report, error);
    if (status == MOEPACK_OK) status = bench_files_list(io->source, &io->source_files, error);
    if (status == MOEPACK_OK) status = bench_files_list(io->container, &io->files, error);
    if (status == MOEPACK_OK) status = bench_plan_open(&io->load, io->container, error);
    return status;
}

static moepack_status make_small(files_run *io, moepack_error *error)
{
    char source[PATH_MAX];
    moepack_convert_report report;
    const mpk_synth_geometry g = many_experts(io->b);
    snprintf(source, sizeof source, "%s/small", io->dir.path);
    moepack_status status = bench_synth(io->b, &g, source, error);
    if (status == MOEPACK_OK) status = bench_convert(source, io->small, &report, error);
    return status;
}

static moepack_status prepare(files_run *io, unsigned what, moepack_error *error)
{
    const unsigned files = BENCH_READ | BENCH_WRITE | BENCH_CONVERT | BENCH_VERIFY | BENCH_LOAD;
    const mpk_synth_geometry large = experts_only(io->b), small = many_experts(io->b);
    uint64_t bytes = 0;
    if (what & files)
        bytes += 3 * bench_checkpoint_bytes(&large); /* source, container, and one that is being written */
    if (what & BENCH_OPEN) bytes += 8 * bench_checkpoint_bytes(&small); /* records are whole pages */
    moepack_status status = MOEPACK_OK;
    if (what & (BENCH_HASH | BENCH_WRITE)) status = bench_buffer_make(io->b, 0, error);
    if (bytes == 0 || status != MOEPACK_OK) return status;
    status = bench_dir_make(&io->dir, bench_tmpdir(io->b), bytes, error);
    snprintf(io->source, sizeof io->source, "%s/source", io->dir.path);
    snprintf(io->container, sizeof io->container, "%s/c.moepack", io->dir.path);
    snprintf(io->out, sizeof io->out, "%s/out.moepack", io->dir.path);
    snprintf(io->small, sizeof io->small, "%s/small.moepack", io->dir.path);
    if (status == MOEPACK_OK && (what & files)) status = make_container(io, error);
    if (status == MOEPACK_OK && (what & BENCH_OPEN)) status = make_small(io, error);
    return status;
}

moepack_status bench_io(bench *b, unsigned what, moepack_error *error)
{
    files_run io = {.b = b};
    moepack_status status = prepare(&io, what, error);
    for (size_t i = 0; i < sizeof figures / sizeof figures[0] && status == MOEPACK_OK; i++)
        if (what & figures[i].bit) status = measure(&io, &figures[i], error);
    bench_load_close(&io.load);
    bench_files_free(&io.source_files);
    bench_files_free(&io.files);
    bench_dir_remove(&io.dir);
    return status;
}
