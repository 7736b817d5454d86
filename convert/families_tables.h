/* Short forms for writing family tables (families_*.c). Internal. */
#ifndef MOEPACK_CONVERT_FAMILIES_TABLES_H
#define MOEPACK_CONVERT_FAMILIES_TABLES_H

#include "families.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Terms: a number, a size, a size divided. */
/* clang-format off */
#define ZERO {MPK_ONE, MPK_ONE, 0, 1}
#define NUM(n) {MPK_ONE, MPK_ONE, (n), 1}
#define SIZE(a) {(a), MPK_ONE, 1, 1}
#define PART(a, div) {(a), MPK_ONE, 1, (div)}
/* clang-format on */

/* A matrix of one expert in a tensor of its own, [out, in], one element after the other. */
#define PLAIN(which, matrix_role, out, in, element, code, width)                                                      \
    {                                                                                                                 \
        .pattern = "experts.{expert}." which ".weight", .dtype = (element), .rank = 2, .dims = {SIZE(out), SIZE(in)}, \
        .matrix_count = 1, .matrices = {                                                                              \
            {(matrix_role), MOEPACK_PLANE_WEIGHT, (code), (width), 0, 0, SIZE(out), SIZE(in), ZERO, SIZE(in), NUM(1)} \
        }                                                                                                             \
    }
#define PLAIN_BF16(which, role, out, in) PLAIN(which, role, out, in, MOEPACK_DTYPE_BF16, MOEPACK_ENC_BF16, 16)
#define PLAIN_F32(which, role, out, in) PLAIN(which, role, out, in, MOEPACK_DTYPE_F32, MOEPACK_ENC_F32, 32)

/* The three matrices of a gated expert under a family's names for them. */
#define GATED(type, gate, up, down)                                                       \
    type(gate, MOEPACK_ROLE_GATE, MPK_I, MPK_L), type(up, MOEPACK_ROLE_UP, MPK_I, MPK_L), \
        type(down, MOEPACK_ROLE_DOWN, MPK_L, MPK_I)

/* Keys that a family's configs do not have, with what is true of it instead. */
#define NO_KEY(key, truth)                           \
    {                                                \
        (key), NULL, MPK_KIND_COUNT0, false, (truth) \
    }
#define NO_LATENT NO_KEY(MPK_KEY_LATENT, 0), NO_KEY(MPK_KEY_LATENT_NORM, 0), NO_KEY(MPK_KEY_NORM_EPS, 0)
#define NO_SITU NO_KEY(MPK_KEY_SITU_BETA, 1), NO_KEY(MPK_KEY_SITU_LINEAR_BETA, 0)

/* The families, in files by kinship. */
extern const mpk_family mpk_family_kimi_k3, mpk_family_kimi_linear; /* families_kimi.c */
extern const mpk_family mpk_family_deepseek, mpk_family_deepseek_v2, mpk_family_deepseek_v3, mpk_family_glm4_moe;
extern const mpk_family mpk_family_mixtral, mpk_family_qwen3_moe, mpk_family_olmoe; /* families_softmax.c */

#endif
