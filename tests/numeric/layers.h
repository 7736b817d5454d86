/* Whole layers of small random geometries for the numeric tests. */
#ifndef MOEPACK_TESTS_NUMERIC_LAYERS_H
#define MOEPACK_TESTS_NUMERIC_LAYERS_H

#include "common.h"

/* A layer with its weights in both forms. */
typedef struct layer {
    mpk_layer_view view;
    test_matrix router, latent_down, latent_up, shared[3];
    test_matrix (*expert)[3];
    mpk_expert_view *experts;
    uint8_t *present;
    float *bias, *norm;
} layer;

/* What differs between the layers that are tested. Widths are no multiples of 16 or 32 where it says so. */
typedef struct geometry {
    const char *name;
    uint64_t hidden, input, inner, shared, k;
    uint32_t experts;
    moepack_encoding expert_encoding, dense_encoding;
    moepack_activation activation, shared_activation;
    double linear_beta;
    bool latent, norm, softmax;
} geometry;

/* Results of one run. */
typedef struct result {
    float *y, *s, *weights;
    int32_t *ids;
} result;

/* Gaussian weights from a seed; everything is present. Its pointers may be changed before free_layer. */
layer make_layer(const geometry *g, uint64_t seed);
void free_layer(layer *l);

/* Gaussian inputs [tokens, hidden], exact in BF16. Free with free(). */
float *make_x(const geometry *g, size_t tokens, uint64_t seed);

/* Runs the layer and fails the test where it does not succeed; y only where it is wanted. */
result run(const layer *l, const float *x, size_t tokens, const mpk_layer_options *options, bool want_y);
void free_result(result *r);

/* Fails unless two results agree bit for bit. */
void same_results(const layer *l, const result *a, const result *b, size_t tokens, const char *what);

#endif
