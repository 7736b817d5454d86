/* Limits of memory: one buffer, larger than the caches, read, copied and hashed. */
#include "bench.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20)
#define HASH_BLOCK ((size_t)4 << 20)

/* ------------------------------------------------------------------------------------------------- the buffer */

static uint64_t choose_size(bench *b, uint64_t size)
{
    if (size == 0) {
        size = 4 * b->machine.last_cache > (uint64_t)1 << 30 ? 4 * b->machine.last_cache : (uint64_t)1 << 30;
        if (b->machine.memory_available > 0 && size > b->machine.memory_available / 4)
            size = b->machine.memory_available / 4;
    }
    size = size / HUGE_PAGE * HUGE_PAGE;
    if (size < HUGE_PAGE) size = HUGE_PAGE;
    b->buffer_bounded = size < 4 * b->machine.last_cache;
    return size;
}

moepack_status bench_buffer_make(bench *b, uint64_t size, moepack_error *error)
{
    if (b->buffer != NULL) return MOEPACK_OK;
    size = choose_size(b, size);
    b->buffer_map_size = (size_t)size + HUGE_PAGE;
    b->buffer_map = mmap(NULL, b->buffer_map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->buffer_map == MAP_FAILED) {
        b->buffer_map = NULL;
        return bench_fail(error, MOEPACK_E_REFUSED, "no memory for a buffer of %llu bytes: %s",
                          (unsigned long long)size, strerror(errno));
    }
    b->buffer = (uint8_t *)b->buffer_map + (HUGE_PAGE - (uintptr_t)b->buffer_map % HUGE_PAGE) % HUGE_PAGE;
    b->buffer_size = (size_t)size;
    const uint64_t before = bench_huge_bytes();
#ifdef MADV_HUGEPAGE
    madvise(b->buffer, b->buffer_size, MADV_HUGEPAGE); /* what a load asks for its weights, too */
#endif
    const size_t pages = b->buffer_size / HUGE_PAGE;
#pragma omp parallel for num_threads((int)b->threads)
    for (size_t i = 0; i < pages; i++) memset(b->buffer + i * HUGE_PAGE, (int)(i & 0xff), HUGE_PAGE);
    const uint64_t after = bench_huge_bytes();
    b->buffer_huge = after > before ? after - before : 0;
    return MOEPACK_OK;
}

void bench_buffer_free(bench *b)
{
    if (b->buffer_map != NULL) munmap(b->buffer_map, b->buffer_map_size);
    b->buffer_map = NULL;
    b->buffer = NULL;
}

/* ------------------------------------------------------------------------------------------------- the scan */

/* All variants read 256 bytes a step into four sums. */
static uint64_t scan_plain(const uint8_t *p, size_t size, size_t ahead)
{
    uint64_t sum[4] = {0};
    for (size_t i = 0; i + 256 <= size; i += 256) {
        for (size_t j = 0; j < 256; j += 64) __builtin_prefetch(p + i + j + ahead);
        for (size_t j = 0; j < 256; j += 8) {
            uint64_t word;
            memcpy(&word, p + i + j, sizeof word);
            sum[j / 8 % 4] += word;
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t scan_avx2(const uint8_t *p, size_t size, size_t ahead)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i + 256 <= size; i += 256) {
        for (size_t j = 0; j < 256; j += 64) _mm_prefetch((const char *)p + i + j + ahead, _MM_HINT_T0);
        for (size_t j = 0; j < 256; j += 128) {
            a = _mm256_add_epi64(a, _mm256_loadu_si256((const __m256i *)(const void *)(p + i + j)));
            b = _mm256_add_epi64(b, _mm256_loadu_si256((const __m256i *)(const void *)(p + i + j + 32)));
            c = _mm256_add_epi64(c, _mm256_loadu_si256((const __m256i *)(const void *)(p + i + j + 64)));
            d = _mm256_add_epi64(d, _mm256_loadu_si256((const __m256i *)(const void *)(p + i + j + 96)));
        }
    }
    uint64_t lane[4];
    _mm256_storeu_si256((__m256i *)(void *)lane, _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d)));
    return lane[0] + lane[1] + lane[2] + lane[3];
}

__attribute__((target("avx512f"))) static uint64_t scan_avx512(const uint8_t *p, size_t size, size_t ahead)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i + 256 <= size; i += 256) {
        for (size_t j = 0; j < 256; j += 64) _mm_prefetch((const char *)p + i + j + ahead, _MM_HINT_T0);
        a = _mm512_add_epi64(a, _mm512_loadu_si512(p + i));
        b = _mm512_add_epi64(b, _mm512_loadu_si512(p + i + 64));
        c = _mm512_add_epi64(c, _mm512_loadu_si512(p + i + 128));
        d = _mm512_add_epi64(d, _mm512_loadu_si512(p + i + 192));
    }
    uint64_t lane[8], sum = 0;
    _mm512_storeu_si512(lane, _mm512_add_epi64(_mm512_add_epi64(a, b), _mm512_add_epi64(c, d)));
    for (int i = 0; i < 8; i++) sum += lane[i];
    return sum;
}
#endif

uint64_t bench_read_bytes(const uint8_t *data, size_t size, size_t ahead)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return scan_avx512(data, size, ahead);
    if (__builtin_cpu_supports("avx2")) return scan_avx2(data, size, ahead);
#endif
    return scan_plain(data, size, ahead);
}

/* Which of these is best differs from machine to machine, and with the number of threads: tried once, then kept. */
static const size_t distances[] = {512, 2048, 8192};

/* A pass reads this much of the buffer, and the next one goes on behind it: short enough to be repeated in turns with a
 * figure, and nothing is read again before the whole buffer was. */
#define PASS ((size_t)128 << 20)

static double scan_once(bench *b, unsigned threads, size_t ahead)
{
    const size_t size = b->buffer_size < PASS ? b->buffer_size : PASS, part = size / threads / 256 * 256;
    if (b->scan_at + size > b->buffer_size) b->scan_at = 0;
    const uint8_t *from = b->buffer + b->scan_at;
    uint64_t sum = 0;
    b->scan_at += size;
    const double started = cli_seconds();
#pragma omp parallel for num_threads((int)threads) schedule(static) reduction(+ : sum)
    for (unsigned i = 0; i < threads; i++) sum += bench_read_bytes(from + i * part, part, ahead);
    const double seconds = cli_seconds() - started;
    __asm__ volatile("" : : "r"(sum));
    return (double)(part * threads) / seconds;
}

double bench_scan(bench *b, unsigned threads)
{
    if (b->scan_threads != threads) {
        double best = 0;
        for (size_t i = 0; i < sizeof distances / sizeof distances[0]; i++) {
            const double first = scan_once(b, threads, distances[i]), second = scan_once(b, threads, distances[i]);
            const double rate = first > second ? first : second;
            if (rate > best) b->scan_ahead = distances[i];
            if (rate > best) best = rate;
        }
        b->scan_threads = threads;
    }
    return scan_once(b, threads, b->scan_ahead);
}

double bench_scan_for(bench *b, unsigned threads, double seconds)
{
    const double started = cli_seconds();
    double inverse = 0; /* mean of equal amounts: the harmonic one */
    unsigned passes = 0;
    do {
        inverse += 1 / bench_scan(b, threads);
        passes++;
    } while (cli_seconds() - started < seconds && !cli_cancelled);
    return passes / inverse;
}

double bench_peak_for(const char *kernels, bench_peak peak, unsigned threads, double seconds)
{
    const double started = cli_seconds();
    double inverse = 0;
    unsigned passes = 0;
    do {
        inverse += 1 / bench_peak_run(kernels, peak, threads);
        passes++;
    } while (cli_seconds() - started < seconds && !cli_cancelled);
    return passes / inverse;
}

/* ------------------------------------------------------------------------------------------------- copy and hash */

double bench_copy(const bench *b, unsigned threads)
{
    const size_t half = b->buffer_size / 2, part = half / threads / 64 * 64;
    const double started = cli_seconds();
#pragma omp parallel for num_threads((int)threads) schedule(static)
    for (unsigned i = 0; i < threads; i++) memcpy(b->buffer + half + i * part, b->buffer + i * part, part);
    return (double)(part * threads) / (cli_seconds() - started);
}

double bench_hash(const bench *b, unsigned threads)
{
    const size_t block = b->buffer_size < HASH_BLOCK ? b->buffer_size : HASH_BLOCK, blocks = b->buffer_size / block;
    uint64_t sum = 0;
    const double started = cli_seconds();
#pragma omp parallel for num_threads((int)threads) schedule(static) reduction(^ : sum)
    for (size_t i = 0; i < blocks; i++) sum ^= moepack_hash64(b->buffer + i * block, block);
    const double seconds = cli_seconds() - started;
    __asm__ volatile("" : : "r"(sum));
    return (double)(block * blocks) / seconds;
}

/* ------------------------------------------------------------------------------------------------- overview */

enum {
    OVERVIEW_RUNS = 3
};

static double scan_line(bench *b, unsigned threads)
{
    return bench_scan(b, threads);
}

static double copy_line(bench *b, unsigned threads)
{
    return bench_copy(b, threads);
}

static double hash_line(bench *b, unsigned threads)
{
    return bench_hash(b, threads);
}

static double f32_line(bench *b, unsigned threads)
{
    return bench_peak_run(b->kernels, BENCH_PEAK_F32, threads);
}

static double word_line(bench *b, unsigned threads)
{
    return bench_peak_run(b->kernels, BENCH_PEAK_WORD, threads);
}

moepack_status bench_limits(bench *b, moepack_error *error)
{
    const struct {
        const char *name, *unit;
        double (*run)(bench *b, unsigned threads);
    } lines[] = {
        {"read scan", "GB/s", scan_line},
        {"memcpy", "GB/s", copy_line},
        {"XXH3-64", "GB/s", hash_line},
        {bench_peak_name(b->kernels, BENCH_PEAK_F32), "GFLOP/s", f32_line},
        {bench_peak_name(b->kernels, BENCH_PEAK_WORD), "GFLOP/s", word_line},
    };
    moepack_status status = bench_buffer_make(b, 0, error);
    for (unsigned which = 0; which < 2 && status == MOEPACK_OK; which++) {
        if (which == 1 && b->threads == 1) break;
        for (size_t i = 0; i < sizeof lines / sizeof lines[0] && status == MOEPACK_OK; i++) {
            bench_limit *limit = &b->limits[b->limit_count++];
            *limit =
                (bench_limit){.name = lines[i].name, .unit = lines[i].unit, .threads = which == 0 ? 1 : b->threads};
            for (int r = 0; r < OVERVIEW_RUNS; r++) bench_add(&limit->samples, lines[i].run(b, limit->threads));
            status = bench_go_on(error);
        }
    }
    return status;
}
