/* Which experts a token goes to, and with what weights. Internal. The rules are spec/numerics.md section 5. */
#ifndef MOEPACK_RUNTIME_ROUTER_H
#define MOEPACK_RUNTIME_ROUTER_H

#include "cpu/kernels.h"
#include "moepack/format.h"

#include <stddef.h>
#include <stdint.h>

/* Scratch of one thread, mpk_router_scratch_size() bytes, aligned to 64. */
size_t mpk_router_scratch_size(uint32_t experts);

/* What the choice for one token is made of. */
typedef struct mpk_router_input {
    const float *logits;   /* [experts], logit bias added, padded to a multiple of 16 with anything */
    const float *bias;     /* [experts] selection bias; NULL where the policy has none */
    const int32_t *chosen; /* [top_k] of the token's row in the table, below `experts`; only with a token table */
} mpk_router_input;

/* Routes one token: top_k ids and weights in slot order: choice descending, then id ascending (a token table: as it
 * stands there). The policy has passed mpk_layer_policy_supported and moepack_policy_check. */
void mpk_route(const moepack_policy *policy, uint32_t experts, const mpk_router_input *in, const mpk_kernels *kernels,
               void *scratch, int32_t *ids, float *weights);

/* The unbiased scores of one token, as mpk_route makes them, to `score` [experts rounded up to 32]: the logits where
 * the function applies to the selected alone. */
void mpk_router_score(const moepack_policy *policy, uint32_t experts, const float *logits, const mpk_kernels *kernels,
                      float *score);

#endif
