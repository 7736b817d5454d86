/* The family table: how checkpoints of one model family name, shape, store and configure their MoE blocks. Internal.
 *
 * A family is data. The config reader (config.c), the name matcher (family_match.c) and the resolver (source_resolve.c)
 * walk these tables and know no model by name; adding a family means a table in a families_*.c and a line in
 * families.c.
 *
 * Names lie: the same tensor name means different things in different families, and square matrices hide a
 * transposition. So nothing is ever guessed from shapes: model type and tensor name choose the entry, and then shape
 * and dtype must agree. */
#ifndef MOEPACK_CONVERT_FAMILIES_H
#define MOEPACK_CONVERT_FAMILIES_H

#include "moepack/format.h"

/* Sizes of a block that shapes are made of. */
typedef enum mpk_size {
    MPK_ONE = 0,
    MPK_E, /* experts */
    MPK_H, /* hidden */
    MPK_L, /* width the experts see; = H where there is no latent space */
    MPK_I, /* inner width of an expert */
    MPK_S, /* fused inner width of the shared experts */
    MPK_K, /* experts per token */
    MPK_V, /* vocabulary */
    MPK_SIZE_COUNT
} mpk_size;

/* A number made of sizes: a x b x mul / div. mul = 0 is the number zero; the division must be exact. */
typedef struct mpk_term {
    uint8_t a, b; /* mpk_size */
    uint16_t mul, div;
} mpk_term;

#define MPK_RANK_MAX 4
#define MPK_MATRICES_MAX 4

/* One logical matrix inside a section, as spec/container.md 4.6 describes it. An interleaved gate_up tensor has two
 * with row stride 2L; a transposed one has row stride 1. */
typedef struct mpk_family_matrix {
    uint16_t role, plane, encoding, bits;
    uint16_t group_rows, group_cols;
    mpk_term rows, cols, base, row_stride, col_stride;
} mpk_family_matrix;

/* One section of an expert. A pattern without {expert} names one tensor of all experts (fused): its tensor has E in
 * front of `dims`; or, flat, its first dimension is E times the section's. */
typedef struct mpk_family_section {
    const char *pattern; /* after the block's prefix */
    bool flat;
    moepack_dtype dtype;
    uint32_t rank;
    mpk_term dims[MPK_RANK_MAX];
    uint32_t matrix_count;
    mpk_family_matrix matrices[MPK_MATRICES_MAX];
} mpk_family_section;

/* A way in which a family's experts are stored, or named: see mpk_family_plain. Chosen by the tensors found, never by
 * the config. */
typedef struct mpk_family_form {
    const char *name;  /* "mxfp4" */
    const char *quant; /* quantization_config.format that goes with it; NULL: none */
    uint32_t count;
    const mpk_family_section *sections;
} mpk_family_form;

/* When a block has a role tensor. Decided by the policy; a tensor against it is a contradiction. */
typedef enum mpk_when {
    MPK_ALWAYS,
    MPK_IF_BIASED,
    MPK_IF_LATENT,
    MPK_IF_LATENT_NORM,
    MPK_IF_SHARED,
    MPK_IF_SHARED_GATED,
    MPK_IF_LOGIT_BIAS,
    MPK_IF_TOKEN_TABLE
} mpk_when;

/* A dense tensor of a block. Its encoding follows from its dtype: BF16, F16 or F32. */
typedef struct mpk_family_role {
    const char *name; /* after the block's prefix */
    moepack_role role;
    mpk_when when;
    uint32_t rank;
    mpk_term dims[2];
} mpk_family_role;

typedef struct mpk_family_prefix {
    const char *pattern; /* "model.layers.{layer}.mlp." */
    moepack_stack stack;
} mpk_family_prefix;

/* What a config key is about. config.c knows what each means; the family says what it is called. */
typedef enum mpk_key {
    MPK_KEY_HIDDEN,
    MPK_KEY_LAYERS,
    MPK_KEY_FIRST_DENSE,  /* layers below are dense */
    MPK_KEY_LAYER_STEP,   /* a layer is MoE iff its number, from 0, is a multiple */
    MPK_KEY_SPARSE_STEP,  /* the same, counting from 1; a family has one of the two */
    MPK_KEY_DENSE_LAYERS, /* list of layers that are dense whatever the step says */
    MPK_KEY_LAYER_TYPES,  /* list of words, one per layer; "dense" and "sparse" unless the family names others */
    MPK_KEY_MTP,          /* layers behind the last that predict further tokens */
    MPK_KEY_EXPERTS,
    MPK_KEY_TOP_K,
    MPK_KEY_SHARED, /* number of shared experts, stored as one MLP of that many times I */
    MPK_KEY_INTERMEDIATE,
    MPK_KEY_LATENT,
    MPK_KEY_LATENT_NORM,
    MPK_KEY_NORM_EPS,
    MPK_KEY_ACTIVATION,
    MPK_KEY_SITU_BETA,
    MPK_KEY_SITU_LINEAR_BETA,
    MPK_KEY_SCORE,
    MPK_KEY_METHOD,
    MPK_KEY_GROUPED,
    MPK_KEY_GROUPS,
    MPK_KEY_GROUPS_KEPT,
    MPK_KEY_RENORMALIZE,
    MPK_KEY_SCALE,
    /* From here on a family lists only those that its configs have. */
    MPK_KEY_SHARED_WIDTH, /* fused inner width of the shared experts, where it is no multiple of I */
    MPK_KEY_MOE_LAYERS,   /* list of the layers that are MoE; decides when it is there */
    MPK_KEY_PATTERN,      /* string of one letter per layer */
    MPK_KEY_HASH_LAYERS,  /* so many first layers choose experts by token id */
    MPK_KEY_VOCABULARY,
    MPK_KEY_ENCODER_STEP, /* of two stacks (MPK_KEY_LAYERS is the encoder's): layers 1, 1 + step ...; 0: none */
    MPK_KEY_DECODER_STEP,
    MPK_KEY_DECODER_LAYERS,
    MPK_KEY_COUNT
} mpk_key;
#define MPK_KEY_OPTIONAL MPK_KEY_SHARED_WIDTH

typedef enum mpk_kind {
    MPK_KIND_COUNT,  /* integer >= 1 */
    MPK_KIND_COUNT0, /* integer >= 0 */
    MPK_KIND_REAL,   /* any finite number */
    MPK_KIND_BOOL,
    MPK_KIND_NAME,   /* one of the family's names for this key */
    MPK_KIND_LAYERS, /* list of integers >= 0 */
    MPK_KIND_TYPES,  /* list of words: names of this key, values mpk_layer_type */
    MPK_KIND_PATTERN /* string of letters: likewise */
} mpk_kind;

typedef enum mpk_layer_type {
    MPK_LAYER_DENSE, /* or anything else that is no MoE block */
    MPK_LAYER_MOE,
    MPK_LAYER_HASHED /* MoE, experts chosen by token id */
} mpk_layer_type;

/* How experts are chosen from their scores; what MPK_KEY_METHOD's names stand for. */
typedef enum mpk_method {
    MPK_METHOD_BEST,      /* the best of all; groups that the config may mention have no effect */
    MPK_METHOD_GROUP_MAX, /* the best of the groups whose best expert is best; the others count as 0 */
    MPK_METHOD_BIASED,    /* score + bias; groups by the sum of their two best, the others out of reach */
    MPK_METHOD_COUNT
} mpk_method;

/* `name` may lead into objects: "ffn_config.moe_top_k". Absent and null are the same. `fallback` is what the published
 * configuration class uses when the key is absent; required keys are those whose absence would silently change results.
 * A family lists every mpk_key once; one that its configs do not have has no name, and its fallback says what is true
 * of the family. */
typedef struct mpk_family_key {
    mpk_key key;
    const char *name;
    mpk_kind kind;
    bool required;
    double fallback;
} mpk_family_key;

/* Another spelling of a key, used by some library versions. Where both are there they must agree. */
typedef struct mpk_family_alias {
    mpk_key key;
    const char *name;
} mpk_family_alias;

/* A value that a key may have. For MPK_KIND_NAME the string; keys of other kinds are free unless the table has names
 * for them, which then are the only values that are understood ("false", "0"). */
typedef struct mpk_family_name {
    mpk_key key;
    const char *text;
    uint64_t value;
} mpk_family_name;

/* A policy field that is the same for all models of the family, as moepack_policy_set takes it. */
typedef struct mpk_family_setting {
    const char *field, *value;
} mpk_family_setting;

/* A config key whose number is a policy field: nothing depends on it but the field itself. */
typedef struct mpk_family_number {
    const char *name, *field;
    bool required; /* else an absent key leaves the setting or the record's default */
} mpk_family_number;

/* A config key that may have no other value: what else it could say is not in the record. Several are separated by '|',
 * as JSON. Absent is fine. */
typedef struct mpk_family_must {
    const char *name, *values;
} mpk_family_must;

/* A config that belongs to the family: model_type, and where that is not enough a key of the text config that must be
 * there (not null), with this value if one is given. */
typedef struct mpk_family_type {
    const char *model_type, *key, *value;
} mpk_family_type;

typedef struct mpk_family {
    const char *name, *about;
    const char *tested; /* what conversion and results were checked against */
    const mpk_family_type *types;
    uint32_t type_count;
    const char *text_type; /* model_type expected in a nested text_config */
    const mpk_family_prefix *prefixes;
    uint32_t prefix_count;
    const char
        *expert_stem; /* after the prefix; whatever begins so belongs to an expert. NULL: nothing but the patterns */
    const mpk_family_form *forms;
    uint32_t form_count;
    const mpk_family_role *roles;
    uint32_t role_count;
    const mpk_family_key *keys;
    uint32_t key_count;
    const mpk_family_name *names;
    uint32_t name_count;
    const mpk_family_alias *aliases;
    uint32_t alias_count;
    const mpk_family_setting *settings;
    uint32_t setting_count;
    const mpk_family_number *numbers;
    uint32_t number_count;
    const mpk_family_must *musts;
    uint32_t must_count;
    double renorm_eps;          /* added to the sum; 0: the published code adds nothing */
    bool renorm_k1;             /* renormalises one expert, too */
    moepack_dtype router_dtype; /* in which the published code computes logits */
    bool strict;                /* tensors of a block that no table knows, and groups that do not fit, are errors */
    bool mtp_may_lack;          /* saved copies drop the prediction layers and keep the key that counts them */
} mpk_family;

/* The form that names single matrices: per expert, plain weights called "....weight", one to a tensor. NULL: all
 * experts are fused. Each matrix that it names, and each dense matrix called so, may be stored in any of
 * storage_forms.h. */
const mpk_family_form *mpk_family_plain(const mpk_family *family);
/* Whether a dense part may be stored in any form: all but routers and their like, which every family keeps plain. */
bool mpk_family_role_has_forms(const mpk_family_role *role);

/* Family i, NULL past the end. */
const mpk_family *mpk_family_at(size_t i);

/* What a known model_type that is not converted has that this version cannot say; NULL for any other type. */
const char *mpk_family_refusal(const char *model_type);

/* Value of a term; false when it overflows or does not divide. */
bool mpk_term_value(mpk_term term, const uint64_t size[MPK_SIZE_COUNT], uint64_t *value);

/* ---- names (family_match.c) ---- */

typedef enum mpk_name_kind {
    MPK_NAME_TRUNK, /* under no block prefix */
    MPK_NAME_OTHER, /* under a block prefix, known to no pattern */
    MPK_NAME_ROLE,
    MPK_NAME_EXPERT,
    MPK_NAME_UNKNOWN_EXPERT /* begins like an expert's tensor, known to no pattern */
} mpk_name_kind;

typedef struct mpk_name {
    mpk_name_kind kind;
    uint32_t prefix; /* which of the family's; unless TRUNK */
    uint32_t layer;
    const char *suffix; /* what follows the block's prefix */
    const mpk_family_role *role;
    uint64_t expert;      /* UINT64_MAX for a fused tensor of all experts */
    uint32_t part;        /* section of mpk_family_plain, UINT32_MAX: a tensor of another form */
    uint32_t form_suffix; /* with `part`, or a role that has forms: which tensor of the matrix */
} mpk_name;

/* What a tensor's name says. */
void mpk_family_match(const mpk_family *family, const char *name, mpk_name *out);
/* Whether text is a pattern with its {expert} or {layer} filled in; *number is UINT64_MAX if the pattern has none. The
 * number must be written as a program would write it: no sign, no leading zero. *rest, if wanted, gets what follows the
 * pattern; otherwise text must end with it. */
bool mpk_pattern_match(const char *pattern, const char *text, uint64_t *number, const char **rest);
/* Fills the number into a pattern. snprintf's contract. */
size_t mpk_pattern_fill(const char *pattern, uint64_t number, char *buf, size_t size);

#endif
