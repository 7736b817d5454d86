#include "common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The same sources built against tests/numeric/emulate_*.h. */
extern const mpk_kernels mpk_kernels_avx2_emulated;
extern const mpk_kernels mpk_kernels_avxvnni_emulated;
extern const mpk_kernels mpk_kernels_avx512_emulated;
#if defined(__x86_64__)
void mpk_int8_gemv_avxvnni_as_avx512(const mpk_gemv *op);
#endif

static const struct emulated {
    const char *name;
    const mpk_kernels *kernels;
} emulated[] = {
#ifndef MOEPACK_NO_EMULATED_FAMILIES
    {"avx2", &mpk_kernels_avx2_emulated},
    {"avxvnni", &mpk_kernels_avxvnni_emulated},
    {"avx512", &mpk_kernels_avx512_emulated},
#endif
    {NULL, NULL}};

const test_family *test_families(size_t *count)
{
    static test_family families[16];
    size_t n = 0;
    for (size_t i = 0; mpk_kernels_name(i) != NULL; i++) {
        const mpk_kernels *kernels;
        if (mpk_kernels_select(mpk_kernels_name(i), &kernels, NULL) == MOEPACK_OK)
            families[n++] = (test_family){kernels, "native"};
    }
    for (size_t i = 0; emulated[i].name != NULL; i++) families[n++] = (test_family){emulated[i].kernels, "emulated"};
#if defined(__x86_64__)
    static mpk_kernels vnni;
    const mpk_kernels *wide;
    if (mpk_kernels_select("avx512", &wide, NULL) == MOEPACK_OK) {
        vnni = mpk_kernels_avxvnni;
        vnni.gemv_int8 = mpk_int8_gemv_avxvnni_as_avx512;
        families[n++] = (test_family){&vnni, "as avx512"};
    }
#endif
    *count = n;
    return families;
}

void test_print_families(void)
{
    size_t count;
    const test_family *families = test_families(&count);
    printf("kernel families in this test:");
    for (size_t i = 0; mpk_kernels_name(i) != NULL; i++) {
        const char *name = mpk_kernels_name(i);
        size_t ways = 0;
        printf("%s %s ", i == 0 ? "" : ",", name);
        for (size_t f = 0; f < count; f++)
            if (strcmp(families[f].kernels->name, name) == 0) printf("%s%s", ways++ == 0 ? "" : "+", families[f].how);
        if (ways == 0) printf("NOT RUN");
    }
    printf("\n");
    fflush(stdout);
}

uint64_t test_next(test_random *r)
{
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    return r->state * UINT64_C(0x2545f4914f6cdd1d);
}

uint32_t test_below(test_random *r, uint32_t limit)
{
    return (uint32_t)((test_next(r) >> 32) * limit >> 32);
}

double test_uniform(test_random *r)
{
    return ((double)(test_next(r) >> 12) + 0.5) * 0x1p-52;
}

double test_normal(test_random *r)
{
    return sqrt(-2.0 * log(test_uniform(r))) * cos(6.283185307179586 * test_uniform(r));
}

void *test_alloc(size_t bytes)
{
    const size_t rounded = (bytes + 64) / 64 * 64;
    void *p = aligned_alloc(64, rounded);
    assert_non_null(p);
    memset(p, 0, rounded);
    return p;
}

static size_t bits_of(moepack_encoding encoding)
{
    return encoding == MOEPACK_ENC_E2M1 ? 4 : encoding == MOEPACK_ENC_BF16 ? 16 : 32;
}

/* Address of the 32-bit word that holds an element: tile of 16 rows, line within the tile, row within the line. */
static uint32_t *word_at(const test_matrix *m, uint64_t row, uint64_t col)
{
    const uint64_t per_word = 32 / bits_of(m->view.encoding), tile_cols = 4 * per_word;
    const uint64_t tiles = (m->view.cols + tile_cols - 1) / tile_cols;
    const uint64_t tile = row / 16 * tiles + col / tile_cols, line = col % tile_cols / per_word;
    return (uint32_t *)m->weights + tile * 64 + line * 16 + row % 16;
}

void test_panel_set(const test_matrix *m, uint64_t row, uint64_t col, uint32_t bits)
{
    const unsigned width = (unsigned)bits_of(m->view.encoding), shift = (unsigned)(col % (32 / width)) * width;
    const uint32_t mask = width == 32 ? UINT32_MAX : (1u << width) - 1;
    uint32_t *word = word_at(m, row, col);
    *word = (*word & ~(mask << shift)) | bits << shift;
}

uint32_t test_panel_get(const test_matrix *m, uint64_t row, uint64_t col)
{
    const unsigned width = (unsigned)bits_of(m->view.encoding), shift = (unsigned)(col % (32 / width)) * width;
    const uint32_t mask = width == 32 ? UINT32_MAX : (1u << width) - 1;
    return *word_at(m, row, col) >> shift & mask;
}

uint8_t *test_scale_at(const test_matrix *m, uint64_t row, uint64_t col)
{
    const uint64_t groups = (m->view.cols + 31) / 32;
    return m->scales + (row / 16 * groups + col / 32) * 16 + row % 16;
}

static double set_random(test_random *r, const test_matrix *m, uint64_t row, uint64_t col, double spread)
{
    static const double codes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    if (m->view.encoding == MOEPACK_ENC_E2M1) {
        const uint32_t code = test_below(r, 16);
        test_panel_set(m, row, col, code);
        const double v = ldexp(codes[code & 7], *test_scale_at(m, row, col) - 127);
        return code & 8 ? -v : v;
    }
    float v = (float)(test_normal(r) * spread);
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (m->view.encoding == MOEPACK_ENC_BF16) bits &= 0xffff0000u;
    memcpy(&v, &bits, sizeof v);
    test_panel_set(m, row, col, m->view.encoding == MOEPACK_ENC_BF16 ? bits >> 16 : bits);
    return v;
}

test_matrix test_matrix_random(test_random *r, moepack_encoding encoding, uint64_t rows, uint64_t cols, double spread)
{
    const size_t tile_cols = 128 / bits_of(encoding), tiles = (cols + tile_cols - 1) / tile_cols;
    const size_t row_blocks = (rows + 15) / 16, groups = (cols + 31) / 32;
    test_matrix m = {.view = {.encoding = encoding, .rows = rows, .cols = cols}};
    m.view.weights = m.weights = test_alloc(row_blocks * tiles * 256);
    m.value = test_alloc(rows * cols * sizeof(double));
    if (encoding == MOEPACK_ENC_E2M1) {
        m.view.scales = m.scales = test_alloc(row_blocks * groups * 16);
        m.view.scale_kind = MPK_SCALE_GROUPS;
        m.view.scale_encoding = MOEPACK_ENC_E8M0;
        m.view.group_cols = 32;
        memset(m.scales, 127, row_blocks * groups * 16);
        /* root mean square of the sixteen codes is 2.9 */
        const int typical = 127 + (int)lrint(log2(spread / 2.9));
        for (uint64_t row = 0; row < rows; row++)
            for (uint64_t col = 0; col < cols; col += 32)
                *test_scale_at(&m, row, col) = (uint8_t)(typical - 1 + (int)test_below(r, 3));
    }
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t col = 0; col < cols; col++) m.value[row * cols + col] = set_random(r, &m, row, col, spread);
    return m;
}

void test_matrix_free(test_matrix *m)
{
    free(m->weights);
    free(m->scales);
    free(m->value);
    *m = (test_matrix){0};
}

void test_same_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t x, y;
        memcpy(&x, a + i, 4);
        memcpy(&y, b + i, 4);
        if (x != y) fail_msg("%s: element %zu is %a (%08x) and %a (%08x)", what, i, (double)a[i], x, (double)b[i], y);
    }
}

double test_relative_l2(const float *a, const double *b, size_t n)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}
