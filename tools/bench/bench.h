/* moepack bench: every figure beside the limit that the same process measured, one after the other.
 *
 *   machine.c ...... what the machine says about itself
 *   peaks.c ........ arithmetic peaks, one loop per instruction set
 *   limits.c ....... read scan, copy, hash and peaks over a large buffer
 *   stream.c ....... sequential reads and writes past the page cache; emptying the cache
 *   work.c ......... temporary directories, checkpoints and containers to measure with
 *   bench_io.c ..... read, write, hash, open, convert, verify, load
 *   bench_compute.c  router, experts, dense parts, whole layers
 *   bench_residency.c traces of selected experts (trace.c) replayed through a residency
 *   results.c ...... samples, ratios, text and JSON */
#ifndef MOEPACK_TOOLS_BENCH_H
#define MOEPACK_TOOLS_BENCH_H

#include "../cli.h"
#include "../synth/synth.h"

#include <limits.h>

/* Fills an error and returns its status. */
moepack_status bench_fail(moepack_error *error, moepack_status status, const char *fmt, ...) MOEPACK_PRINTF(3, 4);
/* INTERRUPTED when Ctrl-C was pressed. */
moepack_status bench_go_on(moepack_error *error);

/* ------------------------------------------------------------------------------------------------- samples */

enum {
    BENCH_SAMPLES = 256
};

/* Rates of one thing that was measured again and again, per second. */
typedef struct bench_samples {
    double rate[BENCH_SAMPLES];
    unsigned count;
} bench_samples;

void bench_add(bench_samples *samples, double rate);
double bench_min(const bench_samples *samples);
double bench_median(const bench_samples *samples);
double bench_max(const bench_samples *samples);

/* Above this, a figure has beaten its own limit: the limit was measured in a bad moment, or a cache helped. */
#define BENCH_SUSPECT 1.05

typedef struct bench_result {
    char name[32];
    const char *unit; /* of the rates below, which are in 1 (not 10^9) per second */
    double scale;     /* what `unit` is: 1e9 */
    bench_samples figure, limit;
    const char *limit_name;
    unsigned threads;
    const char *kernels; /* "" where none are used */
    double bytes, flops; /* of one run, on average */
    bool has_hit_rate;
    double hit_rate; /* of a residency */
    char note[160];
} bench_result;

/* ------------------------------------------------------------------------------------------------- traces */

enum {
    BENCH_TRACE_EXPERTS = 65536, /* ids lie below */
    BENCH_TRACE_SEED = 1         /* of splitmix64; each kind adds its number */
};

/* Which experts tokens select. */
typedef struct bench_trace {
    int32_t *ids;  /* token by token */
    size_t *first; /* [tokens + 1] number of a token's first id */
    size_t tokens;
    uint32_t experts, most; /* largest id + 1; most ids of one token */
} bench_trace;

/* Drawn ones. Experts of a token differ. */
typedef enum bench_trace_kind {
    BENCH_TRACE_UNIFORM,  /* all experts alike */
    BENCH_TRACE_ZIPF,     /* chance proportional to 1 / rank */
    BENCH_TRACE_LOCALITY, /* each slot keeps its expert from token to token with a chance of 0.7; new ones uniform */
    BENCH_TRACES
} bench_trace_kind;

extern const char *const bench_trace_names[BENCH_TRACES];

moepack_status bench_trace_draw(bench_trace_kind kind, uint32_t experts, uint32_t top_k, size_t tokens,
                                bench_trace *trace, moepack_error *error);
/* Text: one line per token, expert ids separated by blanks. Empty lines are passed over. */
moepack_status bench_trace_read(const char *path, bench_trace *trace, moepack_error *error);
void bench_trace_free(bench_trace *trace);

/* ------------------------------------------------------------------------------------------------- machine */

typedef struct bench_machine {
    char model[128], isa[256], page_mode[64];
    unsigned processors; /* that this process may use */
    uint64_t page, last_cache, memory, memory_available;
    double load; /* of the last minute: others that use the machine */
} bench_machine;

void bench_machine_read(bench_machine *machine);
/* Bytes of this process that lie in huge pages; 0 where the system does not say. */
uint64_t bench_huge_bytes(void);

/* ------------------------------------------------------------------------------------------------- the run */

enum {
    BENCH_LIMITS = 10
};

/* A limit for its own sake, in an overview. */
typedef struct bench_limit {
    const char *name, *unit;
    unsigned threads;
    bench_samples samples;
} bench_limit;

typedef struct bench {
    const cli_common *common;
    bool quick;
    unsigned threads;
    const char *kernels_asked, *kernels;
    double seconds;              /* for one figure and its limit together */
    double deadline;             /* after this moment every figure is measured once or twice only */
    const char *tmpdir;          /* NULL: $TMPDIR or /var/tmp */
    mpk_synth_geometry geometry; /* of the layer that is computed; experts 0: as memory allows */
    uint64_t io_experts;         /* of the container that is read and written */
    bench_trace trace;           /* --trace; no tokens: traces are drawn */
    bench_machine machine;
    uint8_t *buffer; /* for limits: aligned to 2 MiB, touched */
    size_t buffer_size;
    void *buffer_map;
    size_t buffer_map_size;
    size_t scan_at, scan_ahead; /* where the next scan begins; prefetch distance chosen for scan_threads */
    unsigned scan_threads;
    bool buffer_bounded;  /* smaller than 4 times the last-level cache */
    uint64_t buffer_huge; /* bytes of it in huge pages */
    bench_limit limits[BENCH_LIMITS];
    size_t limit_count;
    bench_result *results;
    size_t result_count, result_capacity;
} bench;

/* A new result, NULL without memory; valid until the next one is added. */
bench_result *bench_result_new(bench *b, const char *name, const char *unit, double scale);
/* Prints the line of the newest result, unless JSON is wanted. */
void bench_result_done(const bench *b, const bench_result *result);
/* Whether a figure that was begun at `started` and measured `runs` times needs another run. */
bool bench_more(const bench *b, double started, unsigned runs);

void bench_print_machine(const bench *b);
void bench_print_limits(const bench *b);
json_t *bench_json(const bench *b);

/* ------------------------------------------------------------------------------------------------- limits */

/* Allocates and touches the buffer; `size` 0: 4 times the last-level cache, at least 1 GiB, at most a quarter of the
 * free memory. */
moepack_status bench_buffer_make(bench *b, uint64_t size, moepack_error *error);
void bench_buffer_free(bench *b);
/* Memory and arithmetic with one thread and with all: an overview, beside the limits that stand at each figure. */
moepack_status bench_limits(bench *b, moepack_error *error);

/* By that many threads, bytes per second: one pass over a part of the buffer, and over all of it. */
double bench_scan(bench *b, unsigned threads);
/* As many passes as take this long, at least one: a limit that is measured as long as its figure is disturbed as often.
 */
double bench_scan_for(bench *b, unsigned threads, double seconds);
double bench_copy(const bench *b, unsigned threads);
double bench_hash(const bench *b, unsigned threads);

/* The unit that does a kernel family's products. */
typedef enum bench_peak {
    BENCH_PEAK_F32,  /* multiply-add of F32: dense parts */
    BENCH_PEAK_WORD, /* products of 16-bit inputs and weights, summed by pairs: 4-bit weights (fix16) */
    BENCH_PEAK_BYTE  /* products of 8-bit inputs and weights: 4-bit weights with --compute int8 */
} bench_peak;

/* A short loop without memory accesses: operations per second, a multiply-add counts as two. */
double bench_peak_run(const char *kernels, bench_peak peak, unsigned threads);
double bench_peak_for(const char *kernels, bench_peak peak, unsigned threads, double seconds);
const char *bench_peak_name(const char *kernels, bench_peak peak);

/* Sum of all 64-bit words, with the widest loads there are; `ahead`: bytes of prefetch distance. */
uint64_t bench_read_bytes(const uint8_t *data, size_t size, size_t ahead);

/* ------------------------------------------------------------------------------------------------- streams */

/* The files of a directory, largest first. */
typedef struct bench_file {
    char path[PATH_MAX];
    uint64_t size;
} bench_file;

typedef struct bench_files {
    bench_file *file;
    size_t count;
    uint64_t bytes;
} bench_files;

moepack_status bench_files_list(const char *dir, bench_files *files, moepack_error *error);
void bench_files_free(bench_files *files);

/* What a stream did. */
typedef struct bench_stream {
    double seconds;
    bool direct; /* O_DIRECT; else buffered, because the file system refused it */
} bench_stream;

/* Reads all bytes of the files with the loader's pattern (4 readers, 8 MiB blocks) and throws them away. `fresh`: into
 * memory that was never touched, as a load must; else into the same few blocks. */
moepack_status bench_stream_read(const bench_files *files, bool fresh, bench_stream *out, moepack_error *error);
/* The same, and writes them to files of the same sizes in `dir`, synced; the copies are removed afterwards. */
moepack_status bench_stream_copy(const bench_files *files, const char *dir, bench_stream *out, moepack_error *error);
/* Writes `size` bytes to one file in `dir`, synced and removed. */
moepack_status bench_stream_write(const char *dir, uint64_t size, bench_stream *out, moepack_error *error);

/* Writes the files back and drops them from the page cache. `resident`: the fraction that is still there. */
moepack_status bench_drop_cache(const bench_files *files, double *resident, moepack_error *error);

/* ------------------------------------------------------------------------------------------------- work */

/* A temporary directory. */
typedef struct bench_dir {
    char path[PATH_MAX - 64];
    bool made;
} bench_dir;

/* Below `parent`, "moepack-bench-XXXXXX". REFUSED when less than `bytes` are free there. */
moepack_status bench_dir_make(bench_dir *dir, const char *parent, uint64_t bytes, moepack_error *error);
void bench_dir_remove(bench_dir *dir);
/* Removes a tree; false if something is left. */
bool bench_remove_tree(const char *path);
/* The directory for files that are measured on disk. */
const char *bench_tmpdir(const bench *b);
/* One for files that are only made to be loaded: a memory file system if it has room for `bytes`, else bench_tmpdir. */
const char *bench_memdir(const bench *b, uint64_t bytes);

/* A checkpoint with random weights at `path`. */
moepack_status bench_synth(const bench *b, const mpk_synth_geometry *geometry, const char *path, moepack_error *error);
moepack_status bench_convert(const char *src, const char *out, moepack_convert_report *report, moepack_error *error);
/* Upper bound of the bytes of such a checkpoint. */
uint64_t bench_checkpoint_bytes(const mpk_synth_geometry *geometry);

/* Everything between a container's path and a load of all of it. */
typedef struct bench_load {
    moepack_pack *pack;
    moepack_placement *placement;
    moepack_plan *plan;
    moepack_load *load;
    moepack_load_report report;
} bench_load;

moepack_status bench_plan_open(bench_load *load, const char *path, moepack_error *error);
/* Loads (again): an earlier load is freed first. */
moepack_status bench_load_run(bench_load *load, moepack_check check, moepack_error *error);
void bench_load_close(bench_load *load);

/* ------------------------------------------------------------------------------------------------- groups */

/* What is measured, one bit each, in the order in which it is measured. */
enum {
    BENCH_READ = 1 << 0,
    BENCH_WRITE = 1 << 1,
    BENCH_HASH = 1 << 2,
    BENCH_OPEN = 1 << 3,
    BENCH_CONVERT = 1 << 4,
    BENCH_VERIFY = 1 << 5,
    BENCH_LOAD = 1 << 6,
    BENCH_ROUTER = 1 << 7,
    BENCH_EXPERT = 1 << 8,
    BENCH_DENSE = 1 << 9,
    BENCH_LAYER = 1 << 10,
    BENCH_PREFILL = 1 << 11,
    BENCH_RESIDENCY = 1 << 12 /* not part of `all` */
};

moepack_status bench_io(bench *b, unsigned what, moepack_error *error);
moepack_status bench_compute(bench *b, unsigned what, moepack_error *error);
moepack_status bench_residency(bench *b, moepack_error *error);

#endif
