/* MXFP4 encoder. Everything is exact or in double precision in a fixed order, so that all machines agree. */
#include "mxfp4.h"

#include "bytes.h"

#include <math.h>

#define BLOCK MPK_MXFP4_BLOCK

/* Scales that are tried, counted from the one that puts the largest magnitude between 4 and 8. */
#define FIRST_TRIED (-1)
#define LAST_TRIED 2

/* Magnitude of a value in units of the scale -> code, ties to the even code: the midpoints of 0, .5, 1, 1.5, 2, 3,
 * 4, 6. */
static unsigned magnitude_code(float a)
{
    return (unsigned)(a > 0.25f) + (unsigned)(a >= 0.75f) + (unsigned)(a > 1.25f) + (unsigned)(a >= 1.75f) +
           (unsigned)(a > 2.5f) + (unsigned)(a >= 3.5f) + (unsigned)(a > 5.0f);
}

static const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

/* A power of two as a float; exponent in -127 .. 127. */
static float power(int exponent)
{
    return ldexpf(1.0f, exponent);
}

/* Squared error of a block at one scale, in units of the source. The products of two floats are exact in double. */
static double error_at(const float *x, int exponent)
{
    const double unit = (double)power(exponent);
    double sum = 0;
    for (int i = 0; i < BLOCK; i++) {
        const double scaled = fabs((double)x[i]) / unit; /* exact: a power of two, and double has the range */
        const double off = scaled - (double)magnitudes[magnitude_code((float)scaled)];
        sum += off * off;
    }
    return sum * unit * unit;
}

bool mpk_mxfp4_encode(const float x[BLOCK], uint8_t codes[BLOCK / 2], uint8_t *scale)
{
    float most = 0;
    for (int i = 0; i < BLOCK; i++) {
        if (!isfinite(x[i])) return false;
        if (fabsf(x[i]) > most) most = fabsf(x[i]);
    }
    int exponent = 0;
    if (most > 0) {
        int top;
        frexpf(most, &top); /* most = f 2^top with f in [1/2, 1) */
        const int usual = top - 3;
        double best = 0;
        bool any = false;
        for (int tried = usual + FIRST_TRIED; tried <= usual + LAST_TRIED; tried++) {
            /* 6 x 2^125 is the largest value that is finite in F32 */
            const int e = tried < -127 ? -127 : tried > 125 ? 125 : tried;
            const double error = error_at(x, e);
            if (any && !(error < best)) continue; /* the smallest scale of equals */
            any = true;
            best = error;
            exponent = e;
        }
    }
    const double unit = (double)power(exponent);
    for (int i = 0; i < BLOCK; i += 2) {
        const unsigned low = magnitude_code((float)(fabs((double)x[i]) / unit)) | (signbit(x[i]) ? 8u : 0u);
        const unsigned high = magnitude_code((float)(fabs((double)x[i + 1]) / unit)) | (signbit(x[i + 1]) ? 8u : 0u);
        codes[i / 2] = (uint8_t)(low | high << 4);
    }
    *scale = (uint8_t)(exponent + 127);
    return true;
}

double mpk_mxfp4_error(const float x[BLOCK], const uint8_t codes[BLOCK / 2], uint8_t scale)
{
    const double unit = (double)power(scale - 127);
    double sum = 0;
    for (int i = 0; i < BLOCK; i++) {
        const unsigned code = ((unsigned)codes[i / 2] >> i % 2 * 4) & 15u;
        const double value = (code & 8u ? -1.0 : 1.0) * (double)magnitudes[code & 7u] * unit;
        sum += ((double)x[i] - value) * ((double)x[i] - value);
    }
    return sum;
}
