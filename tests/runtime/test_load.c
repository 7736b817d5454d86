/* Loading: both I/O paths give the same bytes, damage is found by name, only what the plan names is touched. */
#include "support.h"

#include "container.h"
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPERT_BYTES UINT64_C(9792)

static char root[256], panel_path[300], canonical_path[300];

static int set_up(void **state)
{
    (void)state;
    container_spec spec = container_default();
    new_dir(root, NULL);
    snprintf(panel_path, sizeof panel_path, "%s/panel.moepack", root);
    snprintf(canonical_path, sizeof canonical_path, "%s/canonical.moepack", root);
    container_write(&spec, panel_path);
    spec.layout = MOEPACK_LAYOUT_CANONICAL;
    container_write(&spec, canonical_path);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(root);
    return 0;
}

static void copy_of(const char *name, char path[300])
{
    snprintf(path, 300, "%s/%s.moepack", root, name);
    copy_tree(panel_path, path);
}

/* ---- the same bytes on every path ---- */

static void assert_same_sections(const session *a, const session *b)
{
    for (uint32_t block = 0; block < 3; block++)
        for (uint32_t e = 0; e < 7; e++)
            for (uint32_t s = 0; s < CONTAINER_SECTIONS; s++) {
                uint64_t length_a, length_b;
                const void *at_a = moepack_load_section(a->load, block, e, s, &length_a);
                const void *at_b = moepack_load_section(b->load, block, e, s, &length_b);
                assert_int_equal(at_a == NULL, at_b == NULL);
                assert_int_equal(at_a == NULL, !moepack_placement_holds(a->placement, 1, block, e));
                if (at_a == NULL) continue;
                assert_int_equal(length_a, length_b);
                assert_int_equal(length_a, s % 2 == 0 ? 3072 : 192);
                assert_int_equal((uintptr_t)at_a % 64, 0);
                assert_int_equal((uintptr_t)at_b % 64, 0);
                assert_memory_equal(at_a, at_b, length_a);
            }
}

static void every_path_gives_the_same_bytes(void **state)
{
    (void)state;
    static const struct {
        bool canonical;
        moepack_io io;
        moepack_check check;
    } ways[] = {
        {false, MOEPACK_IO_MMAP, MOEPACK_CHECK_NONE},   {false, MOEPACK_IO_MMAP, MOEPACK_CHECK_ON_LOAD},
        {false, MOEPACK_IO_MMAP, MOEPACK_CHECK_FULL},   {false, MOEPACK_IO_DIRECT, MOEPACK_CHECK_NONE},
        {false, MOEPACK_IO_DIRECT, MOEPACK_CHECK_FULL}, {true, MOEPACK_IO_MMAP, MOEPACK_CHECK_NONE},
        {true, MOEPACK_IO_MMAP, MOEPACK_CHECK_FULL},    {true, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD},
        {true, MOEPACK_IO_DIRECT, MOEPACK_CHECK_FULL},
    };
    session base;
    session_plan(&base, panel_path, "linear", 3, 1, NULL);
    assert_ok(session_load(&base, 1, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &base.error);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        session s;
        session_plan(&s, ways[i].canonical ? canonical_path : panel_path, "linear", 3, 1, NULL);
        assert_ok(session_load(&s, 1, ways[i].io, ways[i].check), &s.error);
        assert_int_equal(s.report.io, ways[i].io);
        assert_int_equal(s.report.bytes_wanted, moepack_plan_expert_bytes(s.plan) + moepack_plan_dense_bytes(s.plan));
        assert_int_equal(s.report.bytes_verified, ways[i].check == MOEPACK_CHECK_NONE ? 0 : s.report.bytes_wanted);
        assert_int_equal(strstr(s.report.io_reason, "canonical layout rearranged in memory") != NULL,
                         ways[i].canonical);
        assert_same_sections(&base, &s);
        session_close(&s);
    }
    assert_null(moepack_load_section(base.load, 0, 7, 0, NULL));
    assert_null(moepack_load_section(base.load, 3, 0, 0, NULL));
    assert_null(moepack_load_section(base.load, 0, 3, CONTAINER_SECTIONS, NULL));
    session_close(&base);
}

/* ---- counters ---- */

static uint64_t planned_length(const moepack_plan *plan)
{
    uint64_t total = 0;
    for (size_t i = 0; i < moepack_plan_reads(plan); i++) {
        moepack_read read;
        moepack_plan_read(plan, i, &read);
        total += read.length;
    }
    return total;
}

static void counters(void **state)
{
    (void)state;
    session s;
    session_plan(&s, panel_path, "linear", 3, 2, NULL);
    assert_ok(session_load(&s, 2, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    assert_int_equal(s.report.bytes_read, planned_length(s.plan));
    assert_true(s.report.seconds >= 0);
    moepack_load_free(s.load);
    assert_ok(session_load(&s, 2, MOEPACK_IO_MMAP, MOEPACK_CHECK_ON_LOAD), &s.error);
    assert_int_equal(s.report.bytes_read, planned_length(s.plan));
    assert_string_equal(s.report.io_reason, "");
    moepack_load_free(s.load);
    /* Unverified mappings touch only the small scale planes that are not aligned for kernels and are copied. */
    assert_ok(session_load(&s, 2, MOEPACK_IO_MMAP, MOEPACK_CHECK_NONE), &s.error);
    assert_true(s.report.bytes_read < s.report.bytes_wanted / 8);
    session_close(&s);
}

typedef struct progress_log {
    uint64_t last, total;
    unsigned calls;
    volatile int cancel;
    unsigned cancel_at;
} progress_log;

static void on_progress(void *user, uint64_t done, uint64_t total)
{
    progress_log *log = user;
    assert_true(done > log->last);
    assert_true(done <= total);
    log->last = done;
    log->total = total;
    if (++log->calls == log->cancel_at) __atomic_store_n(&log->cancel, 1, __ATOMIC_RELAXED);
}

static void progress_and_cancel(void **state)
{
    (void)state;
    static const moepack_io paths[] = {MOEPACK_IO_DIRECT, MOEPACK_IO_MMAP};
    for (size_t i = 0; i < 2; i++) {
        session s;
        progress_log log = {0};
        moepack_load_options options;
        moepack_load_options_init(&options);
        options.io = paths[i];
        options.threads = 2;
        options.progress = on_progress;
        options.user = &log;
        options.cancel = &log.cancel;
        session_plan(&s, panel_path, "round-robin", 2, 0, NULL);
        assert_ok(moepack_load_create(s.pack, s.placement, 0, s.plan, &options, &s.load, &s.report, &s.error),
                  &s.error);
        assert_int_equal(log.last, planned_length(s.plan));
        assert_int_equal(log.total, log.last);
        assert_true(log.calls > 1);
        moepack_load_free(s.load);

        const unsigned calls = log.calls;
        log = (progress_log){.cancel_at = 1};
        assert_status(moepack_load_create(s.pack, s.placement, 0, s.plan, &options, &s.load, NULL, &s.error),
                      MOEPACK_E_INTERRUPTED, &s.error);
        assert_null(s.load);
        assert_true(log.calls < calls);
        log = (progress_log){.cancel = 1};
        assert_status(moepack_load_create(s.pack, s.placement, 0, s.plan, &options, &s.load, NULL, &s.error),
                      MOEPACK_E_INTERRUPTED, &s.error);
        assert_int_equal(log.calls, 0);
        session_close(&s);
    }
}

/* ---- damage ---- */

static void flips_are_found_by_name(void **state)
{
    (void)state;
    for (uint32_t block = 0; block < 3; block++)
        for (uint32_t e = 0; e < (block == 2 ? 5u : 7u); e++) {
            char path[300], name[128], wanted[64], label[MOEPACK_LABEL_MAX], offset[40];
            moepack_section section;
            session s;
            copy_of("flip", path);
            session_plan(&s, path, "linear", 1, 0, NULL);
            const uint32_t number = (block + e) % CONTAINER_SECTIONS;
            place_of(s.pack, block, e, number, name, &section);
            flip_byte(path, name, section.offset + section.stored_length / 2, 0x10);
            moepack_index_label(moepack_pack_index(s.pack), block, label);
            snprintf(wanted, sizeof wanted, "layer %s, expert %u", label, e);
            snprintf(offset, sizeof offset, "offset %llu", (unsigned long long)section.offset);
            static const char *const tensors[] = {"w1.weight_packed", "w1.weight_scale",  "w3.weight_packed",
                                                  "w3.weight_scale",  "w2.weight_packed", "w2.weight_scale"};
            for (int io = 0; io < 2; io++) {
                assert_status(session_load(&s, 0, (moepack_io)io, MOEPACK_CHECK_ON_LOAD), MOEPACK_E_CORRUPT, &s.error);
                assert_null(s.load);
                assert_mentions(&s.error, name);
                assert_mentions(&s.error, wanted);
                assert_mentions(&s.error, tensors[number]);
                assert_mentions(&s.error, offset);
                assert_mentions(&s.error, "expected ");
                assert_mentions(&s.error, "found ");
            }
            assert_ok(session_load(&s, 0, MOEPACK_IO_MMAP, MOEPACK_CHECK_NONE), &s.error);
            session_close(&s);
            /* Another rank does not read this expert and is not disturbed. */
            session_plan(&s, path, "round-robin", 7, e == 6 ? 0 : e + 1, NULL);
            assert_ok(session_load(&s, e == 6 ? 0 : e + 1, MOEPACK_IO_DIRECT, MOEPACK_CHECK_FULL), &s.error);
            session_close(&s);
            remove_tree(path);
        }
}

static void damaged_dense_tensors_are_found(void **state)
{
    (void)state;
    char path[300];
    session s;
    copy_of("dense", path);
    session_plan(&s, path, "linear", 1, 0, NULL);
    const moepack_index *index = moepack_pack_index(s.pack);
    static const char name[] = "model.layers.2.block_sparse_moe.routed_expert_norm.weight";
    const uint32_t t = moepack_index_find_tensor(index, name, strlen(name));
    assert_true(t != UINT32_MAX);
    moepack_tensor tensor;
    moepack_section section;
    moepack_index_tensor(index, t, &tensor);
    moepack_index_section(index, tensor.section, &section);
    flip_byte(path, "trunk-000.mpk", section.offset, 1);
    for (int io = 0; io < 2; io++) {
        assert_status(session_load(&s, 0, (moepack_io)io, MOEPACK_CHECK_ON_LOAD), MOEPACK_E_CORRUPT, &s.error);
        assert_mentions(&s.error, name);
        assert_mentions(&s.error, "layer 2");
        assert_mentions(&s.error, "trunk-000.mpk");
    }
    session_close(&s);
    remove_tree(path);
}

static void full_checks_padding_and_published_hashes(void **state)
{
    (void)state;
    for (int which = 0; which < 2; which++) {
        char path[300];
        container_spec spec = container_default();
        spec.dirty_padding = which == 0;
        spec.wrong_canonical_expert = which == 1 ? 4 : UINT32_MAX;
        snprintf(path, sizeof path, "%s/full-%d.moepack", root, which);
        container_write(&spec, path);
        session s;
        session_plan(&s, path, "linear", 1, 0, NULL);
        for (int io = 0; io < 2; io++) {
            assert_ok(session_load(&s, 0, (moepack_io)io, MOEPACK_CHECK_ON_LOAD), &s.error);
            moepack_load_free(s.load);
            assert_status(session_load(&s, 0, (moepack_io)io, MOEPACK_CHECK_FULL), MOEPACK_E_CORRUPT, &s.error);
            assert_mentions(&s.error, which == 0 ? "layer 1, expert 0" : "layer 1, expert 4");
            assert_mentions(&s.error, which == 0 ? "padding" : "published bytes");
        }
        session_close(&s);
        remove_tree(path);
    }
}

static void nan_scales_are_refused(void **state)
{
    (void)state;
    for (int layout = 0; layout < 2; layout++) {
        char path[300];
        container_spec spec = container_default();
        spec.layout = (moepack_layout)layout;
        spec.nan_expert = 3;
        snprintf(path, sizeof path, "%s/nan-%d.moepack", root, layout);
        container_write(&spec, path);
        session s;
        session_plan(&s, path, "linear", 1, 0, NULL);
        static const struct {
            moepack_io io;
            moepack_check check;
        } ways[] = {{MOEPACK_IO_DIRECT, MOEPACK_CHECK_NONE},
                    {MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD},
                    {MOEPACK_IO_MMAP, MOEPACK_CHECK_ON_LOAD},
                    {MOEPACK_IO_MMAP, MOEPACK_CHECK_FULL}};
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            assert_status(session_load(&s, 0, ways[i].io, ways[i].check), MOEPACK_E_CORRUPT, &s.error);
            assert_mentions(&s.error, "layer 1, expert 3");
            assert_mentions(&s.error, "w2.weight_scale");
            assert_mentions(&s.error, "NaN");
        }
        session_close(&s);
        /* Ranks without that expert go on. */
        session_plan(&s, path, "linear", 7, 2, NULL);
        assert_ok(session_load(&s, 2, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
        session_close(&s);
        remove_tree(path);
    }
}

/* ---- missing files ---- */

static void only_the_plans_shards_are_touched(void **state)
{
    (void)state;
    char path[300], file[400];
    session s;
    moepack_plan_options options;
    moepack_plan_options_init(&options);
    copy_of("partial-copy", path);
    snprintf(file, sizeof file, "%s/experts-0003-0005.mpk", path);
    assert_int_equal(unlink(file), 0);
    snprintf(file, sizeof file, "%s/experts-0006-0008.mpk", path);
    assert_int_equal(unlink(file), 0);
    for (int io = 0; io < 2; io++) {
        /* Rank 0 of 3: experts 0..2 of the main layers, 0..1 of the encoder: trunk and the first shard. */
        session_plan(&s, path, "linear", 3, 0, NULL);
        assert_ok(session_load(&s, 0, (moepack_io)io, MOEPACK_CHECK_FULL), &s.error);
        session_close(&s);
        session_plan(&s, path, "linear", 3, 1, NULL);
        assert_status(session_load(&s, 1, (moepack_io)io, MOEPACK_CHECK_ON_LOAD), MOEPACK_E_INCOMPLETE, &s.error);
        assert_mentions(&s.error, "experts-0003-0005.mpk");
        session_close(&s);
    }
    snprintf(file, sizeof file, "%s/trunk-000.mpk", path);
    assert_int_equal(unlink(file), 0);
    options.dense = false;
    session_plan(&s, path, "linear", 3, 0, &options);
    assert_ok(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_FULL), &s.error);
    session_close(&s);
    session_plan(&s, path, "linear", 3, 0, NULL);
    assert_status(session_load(&s, 0, MOEPACK_IO_DIRECT, MOEPACK_CHECK_FULL), MOEPACK_E_INCOMPLETE, &s.error);
    assert_mentions(&s.error, "trunk-000.mpk");
    session_close(&s);
    remove_tree(path);
}

static void short_shards_are_incomplete(void **state)
{
    (void)state;
    char path[300], file[400];
    copy_of("short", path);
    snprintf(file, sizeof file, "%s/experts-0000-0002.mpk", path);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    for (int io = 0; io < 2; io++) {
        session s;
        assert_int_equal(truncate(file, st.st_size - 1), 0);
        session_plan(&s, path, "linear", 3, 0, NULL);
        assert_status(session_load(&s, 0, (moepack_io)io, MOEPACK_CHECK_ON_LOAD), MOEPACK_E_INCOMPLETE, &s.error);
        assert_mentions(&s.error, "experts-0000-0002.mpk");
        session_close(&s);
    }
    remove_tree(path);
}

/* A file that shrinks after it was opened must be noticed before it is mapped. */
static void shrunk_shards_are_not_mapped(void **state)
{
    (void)state;
    char path[300], file[400];
    session s;
    copy_of("shrunk", path);
    session_plan(&s, path, "linear", 3, 0, NULL);
    assert_ok(session_load(&s, 0, MOEPACK_IO_MMAP, MOEPACK_CHECK_ON_LOAD), &s.error);
    moepack_load_free(s.load);
    s.load = NULL;
    snprintf(file, sizeof file, "%s/experts-0000-0002.mpk", path);
    assert_int_equal(truncate(file, 8192), 0);
    for (int io = 0; io < 2; io++) {
        assert_status(session_load(&s, 0, (moepack_io)io, MOEPACK_CHECK_ON_LOAD), MOEPACK_E_INCOMPLETE, &s.error);
        assert_mentions(&s.error, "experts-0000-0002.mpk");
    }
    session_close(&s);
    remove_tree(path);
}

static void partial_directories_are_incomplete(void **state)
{
    (void)state;
    char path[300];
    moepack_pack *pack = NULL;
    moepack_error error = {0};
    snprintf(path, sizeof path, "%s/half.moepack.partial", root);
    copy_tree(panel_path, path);
    assert_status(moepack_open(path, &pack, &error), MOEPACK_E_INCOMPLETE, &error);
    assert_null(pack);
    assert_mentions(&error, "half.moepack.partial");
    snprintf(path, sizeof path, "%s/absent.moepack", root);
    assert_true(moepack_open(path, &pack, &error) != MOEPACK_OK);
    assert_mentions(&error, "absent.moepack");
    assert_status(moepack_open(NULL, &pack, &error), MOEPACK_E_USAGE, &error);
}

/* ---- other storage ---- */

static bool takes_direct(const char *dir)
{
    char path[400];
    snprintf(path, sizeof path, "%s/index.mpk", dir);
    const int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) return false;
    void *page = aligned_alloc(4096, 4096);
    assert_non_null(page);
    const bool taken = pread(fd, page, 4096, 0) > 0;
    free(page);
    close(fd);
    return taken;
}

/* Direct I/O where the file system has it, a buffered read with the reason in the report where it has not. */
static void check_path_taken(const char *path, bool direct)
{
    session base, s;
    session_plan(&base, panel_path, "linear", 3, 1, NULL);
    assert_ok(session_load(&base, 1, MOEPACK_IO_MMAP, MOEPACK_CHECK_ON_LOAD), &base.error);
    session_plan(&s, path, "linear", 3, 1, NULL);
    assert_ok(session_load(&s, 1, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    print_message("%s takes O_DIRECT: %s; reason reported: \"%s\"\n", path, direct ? "yes" : "no", s.report.io_reason);
    assert_int_equal(s.report.io_reason[0] == '\0', direct);
    if (!direct) assert_non_null(strstr(s.report.io_reason, "O_DIRECT"));
    assert_int_equal(s.report.bytes_read, planned_length(s.plan));
    assert_int_equal(s.report.bytes_verified, s.report.bytes_wanted);
    assert_same_sections(&base, &s);
    session_close(&s);
    session_close(&base);
}

static void tmpfs_and_disk(void **state)
{
    (void)state;
    char shm[256], path[300];
    check_path_taken(panel_path, takes_direct(panel_path));
    if (access("/dev/shm", W_OK) != 0) {
        print_message("/dev/shm cannot be written: the part on tmpfs is skipped\n");
        return;
    }
    new_dir(shm, "/dev/shm");
    snprintf(path, sizeof path, "%s/small.moepack", shm);
    copy_tree(panel_path, path);
    check_path_taken(path, takes_direct(path));
    remove_tree(shm);
}

static int reads_to_refuse;

static int refuse_first_reads(const char *operation, const char *path)
{
    (void)path;
    return strcmp(operation, "read") == 0 && reads_to_refuse > 0 && reads_to_refuse-- > 0 ? EINVAL : 0;
}

/* A file system that opens a file for direct I/O and then refuses to read it so. */
static void refused_direct_reads_fall_back(void **state)
{
    (void)state;
    session base, s;
    if (!takes_direct(panel_path)) {
        print_message("no direct I/O on this file system: skipped\n");
        skip();
    }
    session_plan(&base, panel_path, "linear", 3, 1, NULL);
    assert_ok(session_load(&base, 1, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &base.error);
    assert_string_equal(base.report.io_reason, "");
    session_plan(&s, panel_path, "linear", 3, 1, NULL);
    assert_ok(session_load(&s, 1, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error); /* opens the shards */
    moepack_load_free(s.load);
    moepack_load_options options;
    moepack_load_options_init(&options);
    options.threads = 1;
    reads_to_refuse = 1;
    mpk_fault_hook_set(refuse_first_reads);
    const moepack_status status =
        moepack_load_create(s.pack, s.placement, 1, s.plan, &options, &s.load, &s.report, &s.error);
    mpk_fault_hook_set(NULL);
    assert_ok(status, &s.error);
    assert_non_null(strstr(s.report.io_reason, "O_DIRECT"));
    assert_int_equal(s.report.bytes_read, planned_length(s.plan));
    assert_same_sections(&base, &s);
    session_close(&s);
    session_close(&base);
}

static int fail_reads_of_shard(const char *operation, const char *path)
{
    return strcmp(operation, "read") == 0 && strstr(path, "experts-0003") != NULL ? EIO : 0;
}

/* An error of the drive is an error of the load, with the file's name. */
static void read_errors_are_reported(void **state)
{
    (void)state;
    session s;
    session_plan(&s, panel_path, "linear", 3, 1, NULL);
    assert_ok(session_load(&s, 1, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD), &s.error);
    moepack_load_free(s.load);
    mpk_fault_hook_set(fail_reads_of_shard);
    const moepack_status status = session_load(&s, 1, MOEPACK_IO_DIRECT, MOEPACK_CHECK_ON_LOAD);
    mpk_fault_hook_set(NULL);
    assert_status(status, MOEPACK_E_IO, &s.error);
    assert_null(s.load);
    assert_mentions(&s.error, "experts-0003-0005.mpk");
    session_close(&s);
}

/* Sections above 8 MiB are verified in parts: here the shared experts' matrices, 2304 x 2048 BF16 each. */
static void large_sections_are_checked_in_parts(void **state)
{
    (void)state;
    char path[300];
    container_spec spec = container_default();
    spec.block_count = 1;
    spec.hidden = 2304;
    spec.shared = 2048;
    snprintf(path, sizeof path, "%s/large.moepack", root);
    container_write(&spec, path);
    session s;
    session_plan(&s, path, "linear", 1, 0, NULL);
    for (int io = 0; io < 2; io++) {
        assert_ok(session_load(&s, 0, (moepack_io)io, MOEPACK_CHECK_FULL), &s.error);
        assert_int_equal(s.report.bytes_verified, s.report.bytes_wanted);
        moepack_load_free(s.load);
    }
    const moepack_index *index = moepack_pack_index(s.pack);
    static const char name[] = "model.layers.1.block_sparse_moe.shared_experts.up_proj.weight";
    moepack_tensor tensor;
    moepack_section section;
    moepack_index_tensor(index, moepack_index_find_tensor(index, name, strlen(name)), &tensor);
    moepack_index_section(index, tensor.section, &section);
    assert_true(section.first_part != MOEPACK_NO_PARTS);
    /* In the second part: the error points at that part. */
    flip_byte(path, "trunk-000.mpk", section.offset + (5u << 20), 0x80);
    char offset[40];
    snprintf(offset, sizeof offset, "offset %llu", (unsigned long long)section.offset + (4u << 20));
    for (int io = 0; io < 2; io++) {
        assert_status(session_load(&s, 0, (moepack_io)io, MOEPACK_CHECK_ON_LOAD), MOEPACK_E_CORRUPT, &s.error);
        assert_mentions(&s.error, name);
        assert_mentions(&s.error, offset);
        assert_mentions(&s.error, "4194304 bytes");
    }
    session_close(&s);
    remove_tree(path);
}

static void bad_arguments(void **state)
{
    (void)state;
    session s, other;
    moepack_load *load = NULL;
    moepack_load_options options;
    session_plan(&s, panel_path, "linear", 2, 0, NULL);
    session_plan(&other, canonical_path, "round-robin", 2, 0, NULL);
    assert_status(moepack_load_create(s.pack, s.placement, 1, s.plan, NULL, &load, NULL, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_status(moepack_load_create(other.pack, s.placement, 0, s.plan, NULL, &load, NULL, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_status(moepack_load_create(s.pack, other.placement, 0, s.plan, NULL, &load, NULL, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_mentions(&s.error, "another placement");
    moepack_load_options_init(&options);
    options.io = (moepack_io)7;
    assert_status(moepack_load_create(s.pack, s.placement, 0, s.plan, &options, &load, NULL, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    moepack_load_options_init(&options);
    options.size = 0;
    assert_status(moepack_load_create(s.pack, s.placement, 0, s.plan, &options, &load, NULL, &s.error), MOEPACK_E_USAGE,
                  &s.error);
    assert_null(load);
    moepack_load_free(NULL);
    session_close(&s);
    session_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_path_gives_the_same_bytes),
        cmocka_unit_test(counters),
        cmocka_unit_test(progress_and_cancel),
        cmocka_unit_test(flips_are_found_by_name),
        cmocka_unit_test(damaged_dense_tensors_are_found),
        cmocka_unit_test(full_checks_padding_and_published_hashes),
        cmocka_unit_test(nan_scales_are_refused),
        cmocka_unit_test(only_the_plans_shards_are_touched),
        cmocka_unit_test(short_shards_are_incomplete),
        cmocka_unit_test(shrunk_shards_are_not_mapped),
        cmocka_unit_test(partial_directories_are_incomplete),
        cmocka_unit_test(tmpfs_and_disk),
        cmocka_unit_test(refused_direct_reads_fall_back),
        cmocka_unit_test(read_errors_are_reported),
        cmocka_unit_test(large_sections_are_checked_in_parts),
        cmocka_unit_test(bad_arguments),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
