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
#define TIMES(mul, a) {(a), MPK_ONE, (mul), 1}
#define PRODUCT(a, b) {(a), (b), 1, 1}
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

/* The three matrices of a gated expert under a family's names for them. */
#define GATED(type, gate, up, down)                                                       \
    type(gate, MOEPACK_ROLE_GATE, MPK_I, MPK_L), type(up, MOEPACK_ROLE_UP, MPK_I, MPK_L), \
        type(down, MOEPACK_ROLE_DOWN, MPK_L, MPK_I)

/* Element types of fused tensors: dtype, encoding, bits. */
#define BF16_ELEMENTS MOEPACK_DTYPE_BF16, MOEPACK_ENC_BF16, 16
#define F16_ELEMENTS MOEPACK_DTYPE_F16, MOEPACK_ENC_F16, 16
#define F32_ELEMENTS MOEPACK_DTYPE_F32, MOEPACK_ENC_F32, 32

/* One matrix of a fused tensor: where (0, 0) lies in an expert's slice and how far rows and columns are apart. */
#define INSIDE(role, code, width, out, in, base, row_stride, col_stride)                                       \
    {                                                                                                          \
        (role), MOEPACK_PLANE_WEIGHT, (code), (width), 0, 0, SIZE(out), SIZE(in), base, row_stride, col_stride \
    }

/* Fused, [E, 2I, L] and [E, L, I] for y = x W^T: the gate's rows, then the up rows. */
#define HALVES(gate_up, down, type) HALVES_(gate_up, down, type)
#define HALVES_(gate_up, down, element, code, width)                                                                \
    {.pattern = (gate_up),                                                                                          \
     .dtype = (element),                                                                                            \
     .rank = 2,                                                                                                     \
     .dims = {TIMES(2, MPK_I), SIZE(MPK_L)},                                                                        \
     .matrix_count = 2,                                                                                             \
     .matrices = {INSIDE(MOEPACK_ROLE_GATE, code, width, MPK_I, MPK_L, ZERO, SIZE(MPK_L), NUM(1)),                  \
                  INSIDE(MOEPACK_ROLE_UP, code, width, MPK_I, MPK_L, PRODUCT(MPK_I, MPK_L), SIZE(MPK_L), NUM(1))}}, \
    {                                                                                                               \
        .pattern = (down), .dtype = (element), .rank = 2, .dims = {SIZE(MPK_L), SIZE(MPK_I)}, .matrix_count = 1,    \
        .matrices = {                                                                                               \
            INSIDE(MOEPACK_ROLE_DOWN, code, width, MPK_L, MPK_I, ZERO, SIZE(MPK_I), NUM(1))                         \
        }                                                                                                           \
    }

/* Fused and transposed, [E, L, 2I] and [E, I, L] for y = x W: `up` is where the first up column lies (a size), `step`
 * the distance of two gate columns: halves (I, 1) or interleaved (1, 2). */
#define TRANSPOSED(gate_up, down, up, step, type) TRANSPOSED_(gate_up, down, up, step, type)
#define TRANSPOSED_(gate_up, down, up, step, element, code, width)                                               \
    {.pattern = (gate_up),                                                                                       \
     .dtype = (element),                                                                                         \
     .rank = 2,                                                                                                  \
     .dims = {SIZE(MPK_L), TIMES(2, MPK_I)},                                                                     \
     .matrix_count = 2,                                                                                          \
     .matrices = {INSIDE(MOEPACK_ROLE_GATE, code, width, MPK_I, MPK_L, ZERO, NUM(step), TIMES(2, MPK_I)),        \
                  INSIDE(MOEPACK_ROLE_UP, code, width, MPK_I, MPK_L, SIZE(up), NUM(step), TIMES(2, MPK_I))}},    \
    {                                                                                                            \
        .pattern = (down), .dtype = (element), .rank = 2, .dims = {SIZE(MPK_I), SIZE(MPK_L)}, .matrix_count = 1, \
        .matrices = {                                                                                            \
            INSIDE(MOEPACK_ROLE_DOWN, code, width, MPK_L, MPK_I, ZERO, NUM(1), SIZE(MPK_L))                      \
        }                                                                                                        \
    }

/* Role tables' lines. */
#define ROUTER(name)                                \
    {                                               \
        (name), MOEPACK_ROLE_ROUTER, MPK_ALWAYS, 2, \
        {                                           \
            SIZE(MPK_E), SIZE(MPK_H)                \
        }                                           \
    }
#define SHARED(stem)                                                                                   \
    {stem "gate_proj.weight", MOEPACK_ROLE_SHARED_GATE, MPK_IF_SHARED, 2, {SIZE(MPK_S), SIZE(MPK_H)}}, \
        {stem "up_proj.weight", MOEPACK_ROLE_SHARED_UP, MPK_IF_SHARED, 2, {SIZE(MPK_S), SIZE(MPK_H)}}, \
    {                                                                                                  \
        stem "down_proj.weight", MOEPACK_ROLE_SHARED_DOWN, MPK_IF_SHARED, 2,                           \
        {                                                                                              \
            SIZE(MPK_H), SIZE(MPK_S)                                                                   \
        }                                                                                              \
    }

/* The tables of a file with one family, under these names. */
#define OWN_TABLES                                                                                                     \
    .types = types, .type_count = COUNT(types), .prefixes = prefixes, .prefix_count = COUNT(prefixes), .forms = forms, \
    .form_count = COUNT(forms), .roles = roles, .role_count = COUNT(roles), .keys = keys, .key_count = COUNT(keys),    \
    .names = names, .name_count = COUNT(names), .musts = musts, .must_count = COUNT(musts)

/* Keys that a family's configs do not have, with what is true of it instead. */
#define NO_KEY(key, truth)                           \
    {                                                \
        (key), NULL, MPK_KIND_COUNT0, false, (truth) \
    }
#define NO_LATENT NO_KEY(MPK_KEY_LATENT, 0), NO_KEY(MPK_KEY_LATENT_NORM, 0), NO_KEY(MPK_KEY_NORM_EPS, 0)
#define NO_SITU NO_KEY(MPK_KEY_SITU_BETA, 1), NO_KEY(MPK_KEY_SITU_LINEAR_BETA, 0)

/* The keys of a family that takes the best of its scores over all experts: no groups, no latent space, no SiTU. */
#define PLAIN_KEYS(hidden, layers, experts, top_k, score) \
    {MPK_KEY_TOP_K, top_k, MPK_KIND_COUNT, true, 0}, PLAIN_KEYS_BUT_K(hidden, layers, experts, score)
#define PLAIN_KEYS_BUT_K(hidden, layers, experts, score)                                                     \
    {MPK_KEY_HIDDEN, hidden, MPK_KIND_COUNT, true, 0}, {MPK_KEY_LAYERS, layers, MPK_KIND_COUNT, true, 0},    \
        NO_KEY(MPK_KEY_FIRST_DENSE, 0), NO_KEY(MPK_KEY_LAYER_STEP, 1), NO_KEY(MPK_KEY_LAYER_TYPES, 0),       \
        NO_KEY(MPK_KEY_MTP, 0), {MPK_KEY_EXPERTS, experts, MPK_KIND_COUNT, true, 0}, NO_LATENT, NO_SITU,     \
        NO_KEY(MPK_KEY_SCORE, (score)), NO_KEY(MPK_KEY_METHOD, MPK_METHOD_BEST), NO_KEY(MPK_KEY_GROUPED, 0), \
        NO_KEY(MPK_KEY_GROUPS, 1), NO_KEY(MPK_KEY_GROUPS_KEPT, 1), NO_KEY(MPK_KEY_SCALE, 1)

/* The families, in files by kinship. */
extern const mpk_family mpk_family_kimi_k3, mpk_family_kimi_linear; /* families_kimi.c */
extern const mpk_family mpk_family_deepseek, mpk_family_deepseek_v2, mpk_family_deepseek_v3, mpk_family_glm4_moe;
extern const mpk_family mpk_family_mixtral, mpk_family_qwen3_moe, mpk_family_olmoe;          /* families_softmax.c */
extern const mpk_family mpk_family_qwen2_moe, mpk_family_qwen3_next, mpk_family_qwen3_5_moe; /* families_qwen.c */
extern const mpk_family mpk_family_gpt_oss, mpk_family_granitemoe, mpk_family_llama4;        /* families_fused.c */
extern const mpk_family mpk_family_dbrx, mpk_family_phimoe;                                  /* families_fused.c */
extern const mpk_family mpk_family_minimax_m2, mpk_family_nemotron_h, mpk_family_switch, mpk_family_deepseek_v4;

#endif
