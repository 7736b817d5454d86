/* What the arithmetic units can do: loops that keep them busy and touch no memory.
 *
 * The unit is the one that the kernel family uses. 4-bit weights are multiplied by 16-bit inputs: AVX-512 kernels do it
 * with vpdpbusd on the two bytes of an input, which is the rate of one vpdpwssd for both; AVX2 kernels with vpmaddwd
 * and an addition. 8-bit inputs: vpdpbusd, or vpmaddubsw and an addition. */
#include "bench.h"

#include <string.h>

/* Independent chains: more than latency times units of any processor (5 cycles, 2 units). */
#define CHAINS 12

/* Rounds of one call: some milliseconds. */
#define ROUNDS 1500000u
#define PLAIN_ROUNDS 200000u

/* A loop is worth this many operations. Results go to a place that the compiler must assume is read. */
typedef struct peak_loop {
    const char *kernels;
    bench_peak peak;
    const char *name;
    double operations;
    void (*run)(float *sink);
} peak_loop;

/* ------------------------------------------------------------------------------------------------- any processor */

static void plain_f32(float *sink)
{
    float a[CHAINS * 4], x = 0.5f, y = 0.25f;
    __asm__ volatile("" : "+m"(x), "+m"(y));
    for (int i = 0; i < CHAINS * 4; i++) a[i] = (float)i;
    for (unsigned r = 0; r < PLAIN_ROUNDS; r++) {
        for (int i = 0; i < CHAINS * 4; i++) a[i] = a[i] * x + y;
    }
    for (int i = 0; i < CHAINS * 4; i++) *sink += a[i];
}

static void plain_word(float *sink)
{
    uint32_t a[CHAINS * 4], x = 3;
    int16_t w[CHAINS * 4];
    __asm__ volatile("" : "+m"(x));
    for (int i = 0; i < CHAINS * 4; i++) {
        a[i] = (uint32_t)i;
        w[i] = (int16_t)i;
    }
    for (unsigned r = 0; r < PLAIN_ROUNDS; r++) {
        for (int i = 0; i < CHAINS * 4; i++) a[i] += (uint32_t)((int32_t)w[i] * (int32_t)x);
        __asm__ volatile("" : "+m"(x)); /* else the rounds would become one product */
    }
    for (int i = 0; i < CHAINS * 4; i++) *sink += (float)a[i];
}

/* ------------------------------------------------------------------------------------------------- x86-64 */

#if defined(__x86_64__)

/* In assembler: what the compilers make of twelve accumulators in a loop is sometimes mostly moves. Registers 4 to 15
 * are the chains, 0 and 1 the inputs, all zero: no denormals, no overflow. */
#define EACH(M) M("4") M("5") M("6") M("7") M("8") M("9") M("10") M("11") M("12") M("13") M("14") M("15")
#define CLEAR(n) "vpxor %%xmm" n ", %%xmm" n ", %%xmm" n "\n\t"
#define TOUCHED                                                                                                 \
    "xmm0", "xmm1", "xmm2", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
        "xmm14", "xmm15", "cc"

/* `step` ROUNDS times for every chain. */
#define LOOP(step)                                                                                              \
    do {                                                                                                        \
        uint32_t rounds = ROUNDS;                                                                               \
        __asm__ volatile(CLEAR("0") CLEAR("1") EACH(CLEAR) "1:\n\t" EACH(step) "dec %0\n\tjnz 1b\n\tvzeroupper" \
                         : "+r"(rounds)                                                                         \
                         :                                                                                      \
                         : TOUCHED);                                                                            \
    } while (0)

#define FMA_256(n) "vfmadd231ps %%ymm0, %%ymm1, %%ymm" n "\n\t"
#define FMA_512(n) "vfmadd231ps %%zmm0, %%zmm1, %%zmm" n "\n\t"
#define WORD_256(n) "vpmaddwd %%ymm0, %%ymm1, %%ymm2\n\tvpaddd %%ymm2, %%ymm" n ", %%ymm" n "\n\t"
#define WORD_512(n) "vpdpwssd %%zmm0, %%zmm1, %%zmm" n "\n\t"

#define BYTE_256(n) "vpmaddubsw %%ymm0, %%ymm1, %%ymm2\n\tvpaddw %%ymm2, %%ymm" n ", %%ymm" n "\n\t"
#define BYTE_VNNI(n) "%{vex%} vpdpbusd %%ymm0, %%ymm1, %%ymm" n "\n\t"
#define BYTE_512(n) "vpdpbusd %%zmm0, %%zmm1, %%zmm" n "\n\t"

static void avx2_f32(float *sink)
{
    (void)sink;
    LOOP(FMA_256);
}

static void avx2_word(float *sink)
{
    (void)sink;
    LOOP(WORD_256);
}

static void avx2_byte(float *sink)
{
    (void)sink;
    LOOP(BYTE_256);
}

static void avxvnni_byte(float *sink)
{
    (void)sink;
    LOOP(BYTE_VNNI);
}

static void avx512_byte(float *sink)
{
    (void)sink;
    LOOP(BYTE_512);
}

static void avx512_f32(float *sink)
{
    (void)sink;
    LOOP(FMA_512);
}

static void avx512_word(float *sink)
{
    (void)sink;
    LOOP(WORD_512);
}

#endif

/* ------------------------------------------------------------------------------------------------- choice */

static const peak_loop loops[] = {
    {"scalar", BENCH_PEAK_F32, "F32 multiply and add, as compiled", 2.0 * 4 * CHAINS *PLAIN_ROUNDS, plain_f32},
    {"scalar", BENCH_PEAK_WORD, "16-bit multiply and add, as compiled", 2.0 * 4 * CHAINS *PLAIN_ROUNDS, plain_word},
    {"scalar", BENCH_PEAK_BYTE, "16-bit multiply and add, as compiled", 2.0 * 4 * CHAINS *PLAIN_ROUNDS, plain_word},
#if defined(__x86_64__)
    {"avx2", BENCH_PEAK_F32, "F32 FMA, 256 bits", 2.0 * 8 * CHAINS *ROUNDS, avx2_f32},
    {"avx2", BENCH_PEAK_WORD, "vpmaddwd and vpaddd, 256 bits", 4.0 * 8 * CHAINS *ROUNDS, avx2_word},
    {"avx2", BENCH_PEAK_BYTE, "vpmaddubsw and vpaddw, 256 bits", 8.0 * 8 * CHAINS *ROUNDS, avx2_byte},
    {"avxvnni", BENCH_PEAK_F32, "F32 FMA, 256 bits", 2.0 * 8 * CHAINS *ROUNDS, avx2_f32},
    {"avxvnni", BENCH_PEAK_WORD, "vpmaddwd and vpaddd, 256 bits", 4.0 * 8 * CHAINS *ROUNDS, avx2_word},
    {"avxvnni", BENCH_PEAK_BYTE, "vpdpbusd, 256 bits", 8.0 * 8 * CHAINS *ROUNDS, avxvnni_byte},
    {"avx512", BENCH_PEAK_BYTE, "vpdpbusd, 512 bits", 8.0 * 16 * CHAINS *ROUNDS, avx512_byte},
    {"avx512", BENCH_PEAK_F32, "F32 FMA, 512 bits", 2.0 * 16 * CHAINS *ROUNDS, avx512_f32},
    {"avx512", BENCH_PEAK_WORD, "vpdpwssd, 512 bits", 4.0 * 16 * CHAINS *ROUNDS, avx512_word},
#endif
};

/* Families that have no loop of their own are held against the plain one. */
static const peak_loop *find(const char *kernels, bench_peak peak)
{
    const peak_loop *found = NULL;
    for (size_t i = 0; i < sizeof loops / sizeof loops[0]; i++) {
        const bool mine = strcmp(loops[i].kernels, kernels) == 0;
        if (loops[i].peak == peak && (found == NULL || mine)) found = &loops[i];
    }
    return found;
}

double bench_peak_run(const char *kernels, bench_peak peak, unsigned threads)
{
    const peak_loop *loop = find(kernels, peak);
    float total = 0;
    double rate = 0;
    /* Each thread's own time: how long it took to wake it up is no property of the unit. */
#pragma omp parallel num_threads((int)threads) reduction(+ : total, rate)
    {
        float sink = 0;
        const double started = cli_seconds();
        loop->run(&sink);
        rate += loop->operations / (cli_seconds() - started);
        total += sink;
    }
    __asm__ volatile("" : : "m"(total));
    return rate;
}

const char *bench_peak_name(const char *kernels, bench_peak peak)
{
    return find(kernels, peak)->name;
}
