/* Reading many spans with a pool of threads, directly or through the page cache.
 *
 * Spans are cut into chunks, so that several threads share a large one. A chunk ends where the file offset is a
 * multiple of CHUNK, which keeps the inner chunks of any span aligned for direct I/O. */
#include "bytes.h"
#include "error.h"
#include "io/fault.h"
#include "io/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Large enough that one request costs nothing beside its data, small enough for 8 threads' bounce buffers to be no
 * burden. */
#define CHUNK ((uint64_t)8 << 20)
#define BOUNCE (CHUNK + 2 * MPK_PAGE)

typedef struct source {
    const char *path;
    int fd;        /* through the page cache */
    int direct_fd; /* O_DIRECT, -1: not used */
    bool direct;   /* changes to false once, under the lock */
} source;

typedef struct pool {
    source *sources;
    size_t source_count;
    const mpk_span *spans;
    size_t span_count;
    const mpk_span_reader_options *options;
    pthread_mutex_t lock;
    /* all below: under the lock */
    size_t next_span;
    uint64_t next_at; /* bytes of that span handed out already */
    uint64_t *left;   /* per span: bytes still to come */
    uint64_t bytes_read;
    char reason[128];
    moepack_status status;
    moepack_error error;
} pool;

typedef struct chunk {
    size_t span;
    uint64_t offset, length; /* in the file */
    uint8_t *dest;
} chunk;

static void pool_fail(pool *p, moepack_status status, const moepack_error *error)
{
    pthread_mutex_lock(&p->lock);
    if (p->status == MOEPACK_OK) {
        p->status = status;
        p->error = *error;
    }
    pthread_mutex_unlock(&p->lock);
}

/* Next piece of work; false when there is none or the reading has failed. */
static bool take(pool *p, chunk *out)
{
    pthread_mutex_lock(&p->lock);
    bool some = p->status == MOEPACK_OK && p->next_span < p->span_count;
    if (some) {
        const mpk_span *span = &p->spans[p->next_span];
        uint64_t offset = span->offset + p->next_at, left = span->length - p->next_at;
        uint64_t to_boundary = CHUNK - offset % CHUNK, length = left < to_boundary ? left : to_boundary;
        *out = (chunk){p->next_span, offset, length, length > 0 ? (uint8_t *)span->dest + p->next_at : NULL};
        p->next_at += length;
        if (p->next_at == span->length) {
            ++p->next_span;
            p->next_at = 0;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return some;
}

/* Notes that a chunk has arrived; true for the last one of its span. */
static bool arrived(pool *p, const chunk *c, uint64_t asked)
{
    pthread_mutex_lock(&p->lock);
    p->left[c->span] -= c->length;
    p->bytes_read += asked;
    bool complete = p->left[c->span] == 0;
    pthread_mutex_unlock(&p->lock);
    return complete;
}

static bool is_direct(pool *p, const source *s)
{
    pthread_mutex_lock(&p->lock);
    bool direct = s->direct;
    pthread_mutex_unlock(&p->lock);
    return direct;
}

static void give_up_direct(pool *p, source *s, const char *what, int errno_value)
{
    char words[64];
    const char *name = strrchr(s->path, '/');
    pthread_mutex_lock(&p->lock);
    s->direct = false;
    if (p->reason[0] == '\0') {
        snprintf(p->reason, sizeof p->reason, "%.60s: %s with O_DIRECT: %s", name != NULL ? name + 1 : s->path, what,
                 strerror_r(errno_value, words, sizeof words));
    }
    pthread_mutex_unlock(&p->lock);
}

/* Reads [offset, offset + length) directly; offset, length and `to` are multiples of a page. A file may end inside: at
 * least `wanted` bytes must come. Returns 0 or an errno value; -1: the file ends early, *got says after how many bytes.
 */
static int direct_pread(const source *s, uint8_t *to, uint64_t length, uint64_t offset, uint64_t wanted, uint64_t *got)
{
    *got = 0;
    while (*got < wanted) {
        /* After a short read go on from a whole block: direct I/O takes nothing else. */
        uint64_t from = *got & ~(uint64_t)(MPK_PAGE - 1);
        size_t want = (size_t)(length - from);
        ssize_t n = -1;
        int fault = mpk_fault("read", s->path);
        if (fault > 0)
            errno = fault;
        else
            n = pread(s->direct_fd, to + from, want, (off_t)(offset + from));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (from + (uint64_t)n <= *got) return -1;
        *got = from + (uint64_t)n;
    }
    return 0;
}

static moepack_status ended(const source *s, uint64_t offset, moepack_error *error)
{
    mpk_fail(error, MOEPACK_E_INCOMPLETE, "the file ends here, more bytes were expected");
    mpk_error_file(error, s->path);
    mpk_error_offset(error, offset);
    return MOEPACK_E_INCOMPLETE;
}

/* Direct read of a chunk, straight into its place where alignment allows, else through the thread's bounce buffer. */
static moepack_status read_direct(pool *p, source *s, const chunk *c, uint8_t *bounce, uint64_t *asked, bool *fell_back,
                                  moepack_error *error)
{
    const uint64_t page = MPK_PAGE;
    uint64_t start = c->offset & ~(page - 1);
    uint64_t end = (c->offset + c->length + page - 1) & ~(page - 1); /* checked: offset + length <= 2^63 - 1 - page */
    bool aligned = start == c->offset && end == c->offset + c->length && (uintptr_t)c->dest % page == 0;
    uint8_t *to = aligned ? c->dest : bounce;
    uint64_t skip = c->offset - start, got;
    int rc = direct_pread(s, to, end - start, start, skip + c->length, &got);
    if (rc == EINVAL) {
        give_up_direct(p, s, "cannot read", rc);
        *fell_back = true;
        return MOEPACK_OK;
    }
    if (rc < 0) return ended(s, start + got, error);
    if (rc > 0) {
        mpk_fail_errno(error, MOEPACK_E_IO, rc, "read failed");
        mpk_error_file(error, s->path);
        mpk_error_offset(error, start);
        return MOEPACK_E_IO;
    }
    if (!aligned) memcpy(c->dest, bounce + skip, (size_t)c->length);
    *asked = end - start;
    return MOEPACK_OK;
}

static moepack_status read_chunk(pool *p, const chunk *c, uint8_t *bounce, uint64_t *asked, moepack_error *error)
{
    source *s = &p->sources[p->spans[c->span].source];
    *asked = c->length;
    if (c->length == 0) return MOEPACK_OK;
    if (bounce != NULL && is_direct(p, s)) {
        bool fell_back = false;
        moepack_status status = read_direct(p, s, c, bounce, asked, &fell_back, error);
        if (!fell_back) return status;
        *asked = c->length;
    }
    return mpk_file_pread(s->fd, c->dest, (size_t)c->length, c->offset, s->path, error);
}

static void *work(void *argument)
{
    pool *p = (pool *)argument;
    const mpk_span_reader_options *o = p->options;
    moepack_error error = {.expert = -1, .offset = -1};
    uint8_t *bounce = NULL;
    if (o->direct) {
        bounce = aligned_alloc(MPK_PAGE, BOUNCE);
        if (bounce == NULL) {
            moepack_status status = mpk_fail(&error, MOEPACK_E_REFUSED, "no memory for a read buffer");
            pool_fail(p, status, &error);
            return NULL;
        }
    }
    chunk c;
    while (take(p, &c)) {
        uint64_t asked;
        moepack_status status = MOEPACK_OK;
        if (o->cancel != NULL && __atomic_load_n(o->cancel, __ATOMIC_RELAXED) != 0)
            status = mpk_fail(&error, MOEPACK_E_INTERRUPTED, "interrupted");
        if (status == MOEPACK_OK) status = read_chunk(p, &c, bounce, &asked, &error);
        if (status == MOEPACK_OK && arrived(p, &c, asked) && o->done != NULL)
            status = o->done(o->user, &p->spans[c.span], &error);
        if (status != MOEPACK_OK) {
            pool_fail(p, status, &error);
            break;
        }
    }
    free(bounce);
    return NULL;
}

static moepack_status open_sources(pool *p, const char *const *paths, moepack_error *error)
{
    for (size_t i = 0; i < p->source_count; ++i) {
        source *s = &p->sources[i];
        s->path = paths[i];
        s->fd = s->direct_fd = -1;
    }
    for (size_t i = 0; i < p->source_count; ++i) {
        source *s = &p->sources[i];
        moepack_status status = mpk_file_open(s->path, &s->fd, NULL, error);
        if (status != MOEPACK_OK) return status;
        if (!p->options->direct) continue;
#ifdef O_DIRECT
        int reason;
        s->direct = mpk_file_open_flags(s->path, O_DIRECT, &s->direct_fd, NULL, &reason, NULL) == MOEPACK_OK;
        if (!s->direct) give_up_direct(p, s, "cannot open", reason);
#else
        give_up_direct(p, s, "cannot open", ENOTSUP);
#endif
    }
    return MOEPACK_OK;
}

/* Checks the spans and adds up what is wanted. */
static moepack_status check_spans(pool *p, uint64_t *wanted, uint64_t *chunks, moepack_error *error)
{
    *wanted = *chunks = 0;
    for (size_t i = 0; i < p->span_count; ++i) {
        const mpk_span *span = &p->spans[i];
        uint64_t end;
        if (span->source < 0 || (size_t)span->source >= p->source_count ||
            !mpk_add64(span->offset, span->length, &end) || end > INT64_MAX - MPK_PAGE ||
            !mpk_add64(*wanted, span->length, wanted) || span->length > SIZE_MAX) {
            return mpk_fail(error, MOEPACK_E_USAGE, "span %zu is out of range", i);
        }
        p->left[i] = span->length;
        *chunks += span->length / CHUNK + 1;
    }
    return MOEPACK_OK;
}

static unsigned thread_count(const mpk_span_reader_options *options, uint64_t chunks)
{
    unsigned n = options->threads;
    if (n == 0) {
        const unsigned cores = mpk_cpus();
        n = cores < 4 ? 2 * cores : 8; /* each waits for the disk about half of its time */
    }
    return n > chunks ? (unsigned)chunks : n;
}

static moepack_status run(pool *p, unsigned threads, moepack_error *error)
{
    pthread_t *ids = threads > 1 ? calloc(threads, sizeof *ids) : NULL;
    unsigned started = 0;
    /* The caller works too. Should the system refuse more threads, those there are do it. */
    while (ids != NULL && started + 1 < threads && pthread_create(&ids[started], NULL, work, p) == 0) ++started;
    if (p->span_count > 0) work(p);
    for (unsigned i = 0; i < started; ++i) pthread_join(ids[i], NULL);
    free(ids);
    if (p->status != MOEPACK_OK && error != NULL) *error = p->error;
    return p->status;
}

static void report_to(const pool *p, uint64_t wanted, mpk_span_report *report)
{
    memset(report, 0, sizeof *report);
    report->bytes_wanted = wanted;
    report->bytes_read = p->bytes_read;
    report->direct = p->options->direct;
    for (size_t i = 0; i < p->source_count; ++i) report->direct = report->direct && p->sources[i].direct;
    memcpy(report->reason, p->reason, sizeof report->reason);
}

moepack_status mpk_span_read(const char *const *paths, size_t path_count, const mpk_span *spans, size_t span_count,
                             const mpk_span_reader_options *options, mpk_span_report *report, moepack_error *error)
{
    pool p = {.source_count = path_count, .spans = spans, .span_count = span_count, .options = options};
    uint64_t wanted = 0, chunks = 0;
    p.sources = calloc(path_count > 0 ? path_count : 1, sizeof *p.sources);
    p.left = calloc(span_count > 0 ? span_count : 1, sizeof *p.left);
    pthread_mutex_init(&p.lock, NULL);
    moepack_status status = MOEPACK_OK;
    if (p.sources == NULL || p.left == NULL) {
        p.source_count = 0;
        status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    if (status == MOEPACK_OK) status = open_sources(&p, paths, error);
    if (status == MOEPACK_OK) status = check_spans(&p, &wanted, &chunks, error);
    if (status == MOEPACK_OK) status = run(&p, thread_count(options, chunks), error);
    if (report != NULL) report_to(&p, wanted, report);
    for (size_t i = 0; i < p.source_count; ++i) {
        if (p.sources[i].fd >= 0) close(p.sources[i].fd);
        if (p.sources[i].direct_fd >= 0) close(p.sources[i].direct_fd);
    }
    free(p.sources);
    free(p.left);
    pthread_mutex_destroy(&p.lock);
    return status;
}
