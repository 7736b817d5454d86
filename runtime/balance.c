/* What a selection bias does to the load of the experts, and two rules that change it. The formulas stand in runtime.h.
 *
 * Order statistics are found by radix selection on the bits of the values: eight passes at most, whatever the values
 * are. */
#include "moepack/runtime.h"

#include "error.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* ---- order statistics ---- */

/* An integer that sorts as the number does. */
static uint64_t key_of(double value)
{
    uint64_t u;
    memcpy(&u, &value, sizeof u);
    return u >> 63 != 0 ? ~u : u | UINT64_C(1) << 63;
}

static double value_of(uint64_t key)
{
    const uint64_t u = key >> 63 != 0 ? key & ~(UINT64_C(1) << 63) : ~key;
    double value;
    memcpy(&value, &u, sizeof value);
    return value;
}

/* m[rank] of the n values in ascending order, rank < n. `key` has room for n. */
static double order_statistic(const double *values, size_t n, size_t rank, uint64_t *key)
{
    for (size_t i = 0; i < n; i++) key[i] = key_of(values[i]);
    for (unsigned shift = 64; shift > 0 && n > 1;) {
        size_t count[256] = {0}, kept = 0;
        unsigned byte = 0;
        shift -= 8;
        for (size_t i = 0; i < n; i++) count[key[i] >> shift & 255]++;
        while (rank >= count[byte]) rank -= count[byte++];
        for (size_t i = 0; i < n; i++)
            if ((key[i] >> shift & 255) == byte) key[kept++] = key[i];
        n = kept;
    }
    return value_of(key[0]);
}

/* m[rank + 1], given v = m[rank]. */
static double next_statistic(const double *values, size_t n, size_t rank, double v)
{
    size_t up_to = 0;
    double next = INFINITY;
    for (size_t i = 0; i < n; i++) {
        if (values[i] <= v)
            up_to++;
        else if (values[i] < next)
            next = values[i];
    }
    return up_to > rank + 1 ? v : next;
}

/* ---- arguments ---- */

static moepack_status check_scores(const double *scores, size_t tokens, uint32_t experts, uint32_t top_k,
                                   const double *bias, moepack_error *error)
{
    if (bias == NULL || (scores == NULL && tokens > 0))
        return mpk_fail(error, MOEPACK_E_USAGE, "scores and a bias are needed");
    if (experts > INT32_MAX || top_k == 0 || top_k > experts)
        return mpk_fail(error, MOEPACK_E_USAGE, "cannot select %" PRIu32 " of %" PRIu32 " experts", top_k, experts);
    if (tokens > PTRDIFF_MAX / sizeof *scores / experts) return mpk_fail(error, MOEPACK_E_USAGE, "too many tokens");
    for (uint32_t e = 0; e < experts; e++) {
        if (isfinite(bias[e])) continue;
        mpk_fail(error, MOEPACK_E_USAGE, "the bias is not finite");
        mpk_error_expert(error, e);
        return MOEPACK_E_USAGE;
    }
    for (size_t i = 0; i < tokens * experts; i++) {
        if (isfinite(scores[i])) continue;
        mpk_fail(error, MOEPACK_E_USAGE, "the score of token %zu is not finite", i / experts);
        mpk_error_expert(error, (int64_t)(i % experts));
        return MOEPACK_E_USAGE;
    }
    return MOEPACK_OK;
}

/* ---- load ---- */

moepack_status moepack_balance_load(const double *scores, size_t tokens, uint32_t experts, uint32_t top_k,
                                    const double *bias, uint64_t *load, moepack_error *error)
{
    if (load == NULL) return mpk_fail(error, MOEPACK_E_USAGE, "a place for the load is needed");
    moepack_status status = check_scores(scores, tokens, experts, top_k, bias, error);
    if (status != MOEPACK_OK) return status;
    double *choice = malloc(experts * sizeof *choice);
    uint64_t *key = malloc(experts * sizeof *key);
    if (choice != NULL && key != NULL) {
        memset(load, 0, experts * sizeof *load);
        for (size_t t = 0; t < tokens; t++) {
            for (uint32_t e = 0; e < experts; e++) choice[e] = scores[t * experts + e] + bias[e];
            const double last = order_statistic(choice, experts, experts - top_k, key);
            uint32_t left = top_k;
            for (uint32_t e = 0; e < experts; e++) {
                if (!(choice[e] > last)) continue;
                load[e]++;
                left--;
            }
            for (uint32_t e = 0; left > 0; e++) { /* of equal ones, the lowest ids; numerically, so -0 equals +0 */
                if (choice[e] != last) continue;
                load[e]++;
                left--;
            }
        }
    } else {
        status = mpk_fail(error, MOEPACK_E_REFUSED, "out of memory");
    }
    free(choice);
    free(key);
    return status;
}

/* ---- Quantile Balancing ---- */

/* What one step works on. */
typedef struct step {
    const double *scores;
    size_t tokens;
    uint32_t experts, top_k;
    double *alpha, *c; /* [T], [E] */
    double *values;    /* [threads][longest of a row and a column], scratch */
    uint64_t *keys;    /* the same */
    size_t stride;
    int threads;
} step;

static void find_cutoffs(const step *s, const double *bias)
{
#pragma omp parallel for num_threads(s->threads) schedule(static)
    for (size_t t = 0; t < s->tokens; t++) {
        const size_t own = (size_t)omp_get_thread_num() * s->stride;
        double *choice = s->values + own;
        for (uint32_t e = 0; e < s->experts; e++) choice[e] = s->scores[t * s->experts + e] + bias[e];
        s->alpha[t] = order_statistic(choice, s->experts, s->experts - 1 - s->top_k, s->keys + own);
    }
}

static void find_quantiles(const step *s)
{
    /* (T-1)(E-k)/E in integers: whole multiples of E first, so that nothing overflows. */
    const size_t last = s->tokens - 1, e_minus_k = s->experts - s->top_k;
    const size_t part = last % s->experts * e_minus_k; /* below 2^62 */
    const size_t floor = last / s->experts * e_minus_k + part / s->experts;
    const double rest = (double)(part % s->experts) / (double)s->experts;
#pragma omp parallel for num_threads(s->threads) schedule(static)
    for (uint32_t e = 0; e < s->experts; e++) {
        const size_t own = (size_t)omp_get_thread_num() * s->stride;
        double *margin = s->values + own;
        for (size_t t = 0; t < s->tokens; t++) margin[t] = s->scores[t * s->experts + e] - s->alpha[t];
        const double low = order_statistic(margin, s->tokens, floor, s->keys + own);
        s->c[e] = low;
        if (rest > 0) s->c[e] += rest * (next_statistic(margin, s->tokens, floor, low) - low);
    }
}

/* b = -c - mean(-c), unless that is not finite. */
static moepack_status take_quantiles(const step *s, double *bias, moepack_error *error)
{
    double sum = 0;
    for (uint32_t e = 0; e < s->experts; e++) sum -= s->c[e];
    const double mean = sum / (double)s->experts;
    bool finite = isfinite(mean);
    for (uint32_t e = 0; e < s->experts; e++) finite = finite && isfinite(-s->c[e] - mean);
    if (!finite) return mpk_fail(error, MOEPACK_E_USAGE, "the scores and the bias are too large to balance");
    for (uint32_t e = 0; e < s->experts; e++) bias[e] = -s->c[e] - mean;
    return MOEPACK_OK;
}

static moepack_status allocate(step *s, double *alpha, double *c, moepack_error *error)
{
    uint64_t count;
    s->threads = omp_get_max_threads();
    s->stride = s->tokens > s->experts ? s->tokens : s->experts;
    s->alpha = alpha != NULL ? alpha : calloc(s->tokens, sizeof *alpha);
    s->c = c != NULL ? c : calloc(s->experts, sizeof *c);
    if (!__builtin_mul_overflow((uint64_t)s->stride, (uint64_t)s->threads, &count) &&
        count <= PTRDIFF_MAX / sizeof *s->values) {
        s->values = malloc((size_t)count * sizeof *s->values);
        s->keys = malloc((size_t)count * sizeof *s->keys);
    }
    if (s->alpha != NULL && s->c != NULL && s->values != NULL && s->keys != NULL) return MOEPACK_OK;
    return mpk_fail(error, MOEPACK_E_REFUSED, "not enough memory to balance %zu tokens", s->tokens);
}

moepack_status moepack_balance_quantile(const double *scores, size_t tokens, uint32_t experts, uint32_t top_k,
                                        double *bias, double *alpha, double *c, moepack_error *error)
{
    moepack_status status = check_scores(scores, tokens, experts, top_k, bias, error);
    if (status != MOEPACK_OK) return status;
    if (top_k == experts)
        return mpk_fail(error, MOEPACK_E_USAGE,
                        "all %" PRIu32 " experts are selected for every token: nothing to balance", experts);
    if (tokens == 0) return mpk_fail(error, MOEPACK_E_USAGE, "balancing needs at least one token");
    step s = {.scores = scores, .tokens = tokens, .experts = experts, .top_k = top_k};
    status = allocate(&s, alpha, c, error);
    if (status == MOEPACK_OK) {
        find_cutoffs(&s, bias);
        find_quantiles(&s);
        status = take_quantiles(&s, bias, error);
    }
    if (s.alpha != alpha) free(s.alpha);
    if (s.c != c) free(s.c);
    free(s.values);
    free(s.keys);
    return status;
}

/* ---- the sign rule ---- */

moepack_status moepack_balance_sign(const uint64_t *load, uint32_t experts, double gamma, double *bias,
                                    moepack_error *error)
{
    uint64_t total = 0;
    if (load == NULL || bias == NULL || experts == 0)
        return mpk_fail(error, MOEPACK_E_USAGE, "a load and a bias are needed");
    if (!(gamma > 0) || !isfinite(gamma))
        return mpk_fail(error, MOEPACK_E_USAGE, "the step size must be a positive number");
    for (uint32_t e = 0; e < experts; e++)
        if (__builtin_add_overflow(total, load[e], &total))
            return mpk_fail(error, MOEPACK_E_USAGE, "the load is too large");
    /* An integer is above total / E if it is above its floor, and below if it is below its ceiling. */
    const uint64_t floor = total / experts, ceiling = floor + (total % experts != 0);
    for (uint32_t e = 0; e < experts; e++) {
        if (load[e] > floor) bias[e] -= gamma;
        if (load[e] < ceiling) bias[e] += gamma;
    }
    return MOEPACK_OK;
}
