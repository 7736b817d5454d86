/* Writes small containers for the runtime's tests straight through format/build.h, so that these tests depend neither
 * on a source checkpoint nor on convert/, and can build what a converter refuses. */
#ifndef TESTS_RUNTIME_CONTAINER_H
#define TESTS_RUNTIME_CONTAINER_H

#include "moepack/runtime.h"

#define CONTAINER_BLOCKS_MAX 4u
#define CONTAINER_SECTIONS 6u /* of a record: packed and scale planes of gate (w1), up (w3), down (w2) */
#define CONTAINER_ROLES 8u    /* trunk tensors of a block */

typedef struct container_block {
    moepack_stack stack;
    uint32_t number, experts;
} container_block;

typedef struct container_spec {
    container_block blocks[CONTAINER_BLOCKS_MAX];
    uint32_t block_count;
    uint32_t hidden, latent, intermediate, shared, top_k;
    uint32_t ids_per_shard; /* experts of every block in one shard file */
    moepack_layout layout;
    /* What may be wrong or missing; UINT32_MAX: nothing. The expert is one of block 0. */
    uint32_t absent_expert;          /* left out, as in a subset */
    uint32_t nan_expert;             /* one scale byte of its down matrix is 255 */
    uint32_t wrong_canonical_expert; /* recorded canonical hash of its first section is wrong */
    bool dirty_padding;              /* one padding byte behind the last section of expert 0 is not zero */
} container_spec;

/* 3 blocks: main 1 and 2 with 7 experts, encoder 0 with 5; H 128, L 64, I 96, S 64, k 2; 3 ids a shard; panel layout.
 */
container_spec container_default(void);

/* Writes the container directory. Fails the test on any error. */
void container_write(const container_spec *spec, const char *dir);

#endif
