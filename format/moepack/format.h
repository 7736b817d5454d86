/* moepack/format.h - the meaning of a moepack container's bytes.
 *
 * What is here: status codes and the error record that every moepack call fills, data types, the routing policy record,
 * the index reader, and the "panel" weight order with its inverse. Everything works on memory the caller owns; nothing
 * here opens a file, starts a thread, prints, exits or keeps process-wide state.
 *
 * The normative text is spec/container.md (bytes) and spec/numerics.md (arithmetic); where this header and those
 * disagree, they win.
 *
 * Threads: a `const moepack_index *` may be read by any number of threads. All other functions are re-entrant.
 */
#ifndef MOEPACK_FORMAT_H
#define MOEPACK_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MOEPACK_VERSION_MAJOR 0
#define MOEPACK_VERSION_MINOR 1
#define MOEPACK_VERSION_PATCH 0

/* Version of the container format this library writes. Before 1.0 a reader accepts exactly this pair. */
#define MOEPACK_FORMAT_MAJOR 0
#define MOEPACK_FORMAT_MINOR 1

#if defined(__GNUC__)
#define MOEPACK_API __attribute__((visibility("default")))
#define MOEPACK_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define MOEPACK_API
#define MOEPACK_PRINTF(f, a)
#endif

/* ------------------------------------------------------------------------------------------------- errors */

/* What kind of failure. The values are the exit codes of the command line and will not change. */
typedef enum moepack_status {
    MOEPACK_OK = 0,
    MOEPACK_E_IO = 1,           /* the system refused: open, read, write, sync ...; errno's text is in the message */
    MOEPACK_E_USAGE = 2,        /* an argument is outside its documented range */
    MOEPACK_E_CORRUPT = 3,      /* bytes contradict their hash or the format's rules */
    MOEPACK_E_INCOMPLETE = 4,   /* something that should be there is missing or shorter than recorded */
    MOEPACK_E_UNSUPPORTED = 5,  /* valid, but not something this version can do: model, dtype, version, device */
    MOEPACK_E_REFUSED = 6,      /* possible but not done: would overwrite, not enough disk, out of memory */
    MOEPACK_E_INTERRUPTED = 130 /* the caller's cancel flag was set */
} moepack_status;

/* Which object failed and why. Owned by the caller; every function that takes one fills it when it returns anything but
 * MOEPACK_OK and leaves it alone otherwise. NULL is accepted everywhere. Unknown parts are "" or -1. */
typedef struct moepack_error {
    moepack_status status;
    char file[256];    /* path as the caller gave it, or a name inside the container; a long one keeps its end */
    char layer[32];    /* label of the MoE block: "12", "encoder.1", "mtp.0" */
    int64_t expert;    /* expert id in that block, -1: none */
    char tensor[192];  /* published tensor name or section name */
    int64_t offset;    /* byte offset in `file`, -1: none */
    char message[512]; /* one sentence, no trailing full stop or newline */
} moepack_error;

/* "corrupt data", "unsupported" ... Never NULL. */
MOEPACK_API const char *moepack_status_name(moepack_status status);

/* Writes "FILE: layer L, expert E, tensor T, offset O: MESSAGE" (only the known parts) into buf, always terminated when
 * size > 0. Returns the length it wanted, as snprintf does. */
MOEPACK_API size_t moepack_error_format(const moepack_error *error, char *buf, size_t size);

/* "0.1.0" */
MOEPACK_API const char *moepack_version(void);

/* ------------------------------------------------------------------------------------------------- data types */

/* Element types of tensors: those of safetensors 0.8. The numbers are stored in containers (spec/container.md 4.3). */
typedef enum moepack_dtype {
    MOEPACK_DTYPE_INVALID = 0,
    MOEPACK_DTYPE_BOOL = 1,
    MOEPACK_DTYPE_U8 = 2,
    MOEPACK_DTYPE_I8 = 3,
    MOEPACK_DTYPE_I16 = 4,
    MOEPACK_DTYPE_U16 = 5,
    MOEPACK_DTYPE_F16 = 6,
    MOEPACK_DTYPE_BF16 = 7,
    MOEPACK_DTYPE_I32 = 8,
    MOEPACK_DTYPE_U32 = 9,
    MOEPACK_DTYPE_F32 = 10,
    MOEPACK_DTYPE_F64 = 11,
    MOEPACK_DTYPE_I64 = 12,
    MOEPACK_DTYPE_U64 = 13,
    MOEPACK_DTYPE_C64 = 14,
    MOEPACK_DTYPE_F8_E4M3 = 15,
    MOEPACK_DTYPE_F8_E5M2 = 16,
    MOEPACK_DTYPE_F8_E8M0 = 17,
    MOEPACK_DTYPE_F8_E4M3FNUZ = 18,
    MOEPACK_DTYPE_F8_E5M2FNUZ = 19,
    MOEPACK_DTYPE_F6_E2M3 = 20,
    MOEPACK_DTYPE_F6_E3M2 = 21,
    MOEPACK_DTYPE_F4 = 22, /* E2M1; shape counts elements, two to a byte */
    MOEPACK_DTYPE_COUNT
} moepack_dtype;

/* Name as in a safetensors header ("BF16"), or NULL for a value that is no dtype. */
MOEPACK_API const char *moepack_dtype_name(moepack_dtype dtype);
/* Inverse of the above; MOEPACK_DTYPE_INVALID for an unknown name. */
MOEPACK_API moepack_dtype moepack_dtype_parse(const char *name);
/* Width of one element in bits (4 for F4, 6 for F6_*), 0 for a value that is no dtype. */
MOEPACK_API unsigned moepack_dtype_bits(moepack_dtype dtype);

/* ------------------------------------------------------------------------------------------------- roles */

/* What a logical matrix or vector does in a MoE block. Stored in containers. */
typedef enum moepack_role {
    MOEPACK_ROLE_NONE = 0,
    MOEPACK_ROLE_GATE = 1,           /* expert: [I, L], the activated branch */
    MOEPACK_ROLE_UP = 2,             /* expert: [I, L], the linear branch */
    MOEPACK_ROLE_DOWN = 3,           /* expert: [L, I] */
    MOEPACK_ROLE_ROUTER = 16,        /* block: [E, H] */
    MOEPACK_ROLE_ROUTER_BIAS = 17,   /* block: [E], added to scores for selection only */
    MOEPACK_ROLE_LOGIT_BIAS = 18,    /* block: [E], added to logits */
    MOEPACK_ROLE_LATENT_DOWN = 19,   /* block: [L, H] */
    MOEPACK_ROLE_LATENT_NORM = 20,   /* block: [L], RMSNorm weight applied to the expert sum */
    MOEPACK_ROLE_LATENT_UP = 21,     /* block: [H, L] */
    MOEPACK_ROLE_SHARED_GATE = 22,   /* block: [S, H], S = fused width of the shared experts */
    MOEPACK_ROLE_SHARED_UP = 23,     /* block: [S, H] */
    MOEPACK_ROLE_SHARED_DOWN = 24,   /* block: [H, S] */
    MOEPACK_ROLE_SHARED_ROUTER = 25, /* block: [1, H], sigmoid gate of the shared experts */
    MOEPACK_ROLE_TOKEN_TABLE = 26    /* block: [V, k], expert ids by token id */
} moepack_role;

/* Which part of a role's data a matrix holds. Stored in containers. */
typedef enum moepack_plane {
    MOEPACK_PLANE_NONE = 0,
    MOEPACK_PLANE_WEIGHT = 1,        /* the codes or values themselves */
    MOEPACK_PLANE_SCALE = 2,         /* one per group of group_rows x group_cols weights */
    MOEPACK_PLANE_GLOBAL_SCALE = 3,  /* one per matrix */
    MOEPACK_PLANE_BIAS = 4,          /* one per output row */
    MOEPACK_PLANE_SHAPE = 5,         /* integers that repeat the shape (compressed-tensors weight_shape) */
    MOEPACK_PLANE_OTHER = 6,         /* carried, not computed with (input scales ...) */
    MOEPACK_PLANE_GLOBAL_DIVISOR = 7 /* one per matrix, that products are divided by */
} moepack_plane;

/* How one element of a matrix is encoded. Stored in containers. */
typedef enum moepack_encoding {
    MOEPACK_ENC_NONE = 0,
    MOEPACK_ENC_F32 = 1,
    MOEPACK_ENC_BF16 = 2,
    MOEPACK_ENC_F16 = 3,
    MOEPACK_ENC_E2M1 = 4,        /* 4 bits: sign, {0,.5,1,1.5,2,3,4,6}; even column in the low nibble */
    MOEPACK_ENC_E4M3 = 5,        /* FP8, no infinities, NaN 0x7f and 0xff */
    MOEPACK_ENC_E8M0 = 6,        /* 2^(byte - 127); 255 is NaN */
    MOEPACK_ENC_INT4_OFFSET = 7, /* 4 bits: code - 8 */
    MOEPACK_ENC_I32 = 8,
    MOEPACK_ENC_I64 = 9
} moepack_encoding;

/* "gate", "latent_down" ...; NULL for an unknown value. */
MOEPACK_API const char *moepack_role_name(moepack_role role);
MOEPACK_API const char *moepack_plane_name(moepack_plane plane);
MOEPACK_API const char *moepack_encoding_name(moepack_encoding encoding);

/* ------------------------------------------------------------------------------------------------- policy */

typedef enum moepack_score {
    MOEPACK_SCORE_SOFTMAX = 0,
    MOEPACK_SCORE_SIGMOID = 1,
    MOEPACK_SCORE_SQRT_SOFTPLUS = 2,
    MOEPACK_SCORE_SOFTMAX_SELECTED = 3,
    MOEPACK_SCORE_SIGMOID_SELECTED = 4,
    MOEPACK_SCORE_SPARSEMIXER = 5
} moepack_score;
typedef enum moepack_select {
    MOEPACK_SELECT_SCORE = 0,
    MOEPACK_SELECT_BIASED = 1,
    MOEPACK_SELECT_TOKEN_TABLE = 2
} moepack_select;
typedef enum moepack_weight_from {
    MOEPACK_WEIGHT_UNBIASED = 0,
    MOEPACK_WEIGHT_BIASED = 1
} moepack_weight_from;
typedef enum moepack_renormalize {
    MOEPACK_RENORM_NONE = 0,
    MOEPACK_RENORM_SUM = 1,
    MOEPACK_RENORM_SUM_EPS = 2
} moepack_renormalize;
typedef enum moepack_group_score {
    MOEPACK_GROUP_MAX = 0,
    MOEPACK_GROUP_TOP2_SUM = 1
} moepack_group_score;
typedef enum moepack_group_mask {
    MOEPACK_MASK_NEG_INF = 0,
    MOEPACK_MASK_ZERO = 1
} moepack_group_mask;
typedef enum moepack_activation {
    MOEPACK_ACT_RELU = 0,
    MOEPACK_ACT_RELU2 = 1,
    MOEPACK_ACT_SILU = 2,
    MOEPACK_ACT_SILU_CLAMPED = 3,
    MOEPACK_ACT_SWIGLU_OAI = 4,
    MOEPACK_ACT_GELU = 5, /* by the error function */
    MOEPACK_ACT_SITU = 6,
    MOEPACK_ACT_GELU_TANH = 7 /* the approximation by tanh */
} moepack_activation;
typedef enum moepack_scale_when {
    MOEPACK_SCALE_ALWAYS = 0,
    MOEPACK_SCALE_IF_NOT_RENORMALIZED = 1
} moepack_scale_when;
typedef enum moepack_weight_applied {
    MOEPACK_APPLY_OUTPUT = 0,
    MOEPACK_APPLY_HIDDEN = 1,
    MOEPACK_APPLY_INPUT = 2
} moepack_weight_applied;
typedef enum moepack_shared_gate {
    MOEPACK_SHARED_GATE_NONE = 0,
    MOEPACK_SHARED_GATE_SIGMOID = 1
} moepack_shared_gate;
typedef enum moepack_capacity {
    MOEPACK_CAPACITY_NONE = 0,
    MOEPACK_CAPACITY_PER_SEQUENCE = 1,
    MOEPACK_CAPACITY_FACTOR = 2
} moepack_capacity;

/* The routing policy of one MoE block: everything that distinguishes one family's layer from another's. A zeroed record
 * is not valid; moepack_policy_init gives the defaults. Keys, types and value names are listed in spec/container.md
 * section 6; a test compares that table with the code. Enumerations are held as uint64_t. */
typedef struct moepack_policy {
    uint64_t hidden;       /* H: width of x and y */
    uint64_t expert_input; /* L: width the experts see; = hidden where there is no latent */
    uint64_t intermediate; /* I */
    uint64_t top_k;        /* k */
    uint64_t score;        /* moepack_score */
    uint64_t select;       /* moepack_select */
    uint64_t weight_from;  /* moepack_weight_from */
    uint64_t renormalize;  /* moepack_renormalize */
    double renorm_eps;     /* added to the sum (1e-20) */
    uint64_t renorm_k1;    /* 1: also when top_k == 1 */
    double scale;          /* routed_scaling_factor */
    uint64_t scale_when;   /* moepack_scale_when */
    uint64_t groups;       /* 1: no groups */
    uint64_t groups_kept;
    uint64_t group_score;    /* moepack_group_score */
    uint64_t group_mask;     /* moepack_group_mask */
    uint64_t logit_bias;     /* 1: a [E] vector is added to the logits */
    uint64_t activation;     /* moepack_activation */
    uint64_t gated;          /* 1: act(gate) * up; 0: act(up) */
    double act_alpha;        /* swiglu-oai: 1.702 */
    double act_limit;        /* clamp; 0: none */
    double situ_beta;        /* > 0 */
    double situ_linear_beta; /* 0: the linear branch is not capped */
    uint64_t expert_bias;    /* 1: gate, up and down have biases */
    uint64_t latent;         /* 1: down and up projection around the experts */
    uint64_t latent_norm;    /* 1: RMSNorm between expert sum and up projection */
    double norm_eps;
    uint64_t shared_width;      /* S: fused inner width of the shared experts, 0: none */
    uint64_t shared_gate;       /* moepack_shared_gate */
    uint64_t shared_activation; /* moepack_activation of the shared experts */
    double shared_act_limit;
    uint64_t weight_applied; /* moepack_weight_applied */
    uint64_t token_ids;      /* 1: routing needs token ids */
    double sparsemixer_eps;
    uint64_t capacity; /* moepack_capacity */
    uint64_t capacity_tokens;
    double capacity_factor;
    uint64_t capacity_min;
    uint64_t router_dtype; /* moepack_dtype the reference computes logits in; we always use F32 */
} moepack_policy;

MOEPACK_API void moepack_policy_init(moepack_policy *policy);

/* Sets one field from text ("weight_from", "biased"). MOEPACK_E_USAGE names the key or the allowed values. */
MOEPACK_API moepack_status moepack_policy_set(moepack_policy *policy, const char *key, const char *value,
                                              moepack_error *error);

/* Number of keys, and one key with its value as text. `value` is terminated; MOEPACK_E_USAGE past the end. */
MOEPACK_API size_t moepack_policy_key_count(void);
MOEPACK_API moepack_status moepack_policy_get(const moepack_policy *policy, size_t i, const char **key, char *value,
                                              size_t value_size);

/* Whether `changed` describes the same tensors as `stored`: sizes, biases, latent, shared experts and gates are what
 * the checkpoint holds and no override may change them; the latent norm may be switched off, not on. */
MOEPACK_API bool moepack_policy_same_structure(const moepack_policy *stored, const moepack_policy *changed);

/* Checks the record against itself and against an expert count: k <= E, E divisible by groups, betas in range ...
 * Error: USAGE, naming the key; whoever took the record from a file decides what that makes of the file. */
MOEPACK_API moepack_status moepack_policy_check(const moepack_policy *policy, uint64_t experts, moepack_error *error);

/* Several lines of plain English: "router: sigmoid scores + selection bias, top 16 of 896 ..." snprintf's contract. */
MOEPACK_API size_t moepack_policy_describe(const moepack_policy *policy, uint64_t experts, char *buf, size_t size);

/* ------------------------------------------------------------------------------------------------- the index */

typedef enum moepack_layout {
    MOEPACK_LAYOUT_CANONICAL = 0,
    MOEPACK_LAYOUT_PANEL = 1
} moepack_layout;
typedef enum moepack_codec {
    MOEPACK_CODEC_RAW = 0
} moepack_codec;
typedef enum moepack_shard_kind {
    MOEPACK_SHARD_TRUNK = 2,
    MOEPACK_SHARD_EXPERTS = 3
} moepack_shard_kind;
typedef enum moepack_stack {
    MOEPACK_STACK_MAIN = 0,
    MOEPACK_STACK_ENCODER = 1,
    MOEPACK_STACK_DECODER = 2,
    MOEPACK_STACK_MTP = 3
} moepack_stack;
typedef enum moepack_source_kind {
    MOEPACK_SOURCE_SAFETENSORS = 0,
    MOEPACK_SOURCE_INDEX_JSON = 1,
    MOEPACK_SOURCE_CONFIG = 2,
    MOEPACK_SOURCE_SIDE = 3
} moepack_source_kind;

#define MOEPACK_NO_SHARD UINT32_MAX
#define MOEPACK_NO_BLOCK UINT32_MAX
#define MOEPACK_NO_PARTS UINT32_MAX
#define MOEPACK_LABEL_MAX 32

/* 128-bit hash as two halves; text form is high then low, 32 lower-case hex digits, as xxhsum -H2 prints it. */
typedef struct moepack_hash128 {
    uint64_t low, high;
} moepack_hash128;

/* A string inside the index: not terminated by a zero, may hold any byte. Lives as long as the index. */
typedef struct moepack_str {
    const char *data;
    uint32_t length;
} moepack_str;

typedef struct moepack_info {
    moepack_hash128 canonical_root, plan_id;
    moepack_str family, model_type;
    uint32_t page_size, writer_revision;
    moepack_layout layout; /* what convert was asked for; each section says for itself */
    uint32_t codec;
    bool subset;    /* some tensors of the source are not in the container */
    bool quantized; /* experts were encoded anew when the container was made: not the source's bits; also a subset */
    uint64_t source_bytes, source_tensors; /* of the stored part: bytes of tensor data, number of tensors */
} moepack_info;

typedef struct moepack_shard {
    moepack_str name;
    moepack_shard_kind kind;
    uint64_t file_length, tail_offset, tail_length;
    moepack_hash128 root;
} moepack_shard;

typedef struct moepack_block {
    moepack_stack stack;
    uint32_t number;    /* layer number in that stack */
    moepack_str prefix; /* tensor-name prefix with its final dot: "model.layers.3.block_sparse_moe." */
    uint32_t experts;   /* E; records of experts that a subset leaves out have shard MOEPACK_NO_SHARD */
    uint32_t policy;
    uint64_t first_record; /* record of expert e = first_record + e */
    uint32_t first_role, role_count;
} moepack_block;

typedef struct moepack_record {
    uint32_t shard, schema;
    uint64_t offset, length; /* whole pages of the shard file */
    uint64_t first_section;  /* section s of the schema = first_section + s */
} moepack_record;

typedef struct moepack_section {
    uint64_t offset, stored_length; /* in the shard file; an empty section has offset 0 */
    uint64_t xxh3_stored;           /* of the bytes as stored */
    uint64_t xxh3_canonical;        /* of the published bytes */
    uint32_t first_part;            /* MOEPACK_NO_PARTS: none */
    moepack_codec codec;
} moepack_section;

/* Describes one section of a schema, or one trunk tensor. */
typedef struct moepack_desc {
    moepack_str name; /* sections: pattern after the block's prefix, "experts.{expert}.w1.weight_packed"; tensors: "" */
    moepack_dtype dtype;
    moepack_layout layout;
    bool fused; /* the pattern has no {expert}: the section is one expert's slice of a tensor of all experts */
    bool flat;  /* fused, and the tensor's first dimension is E times the section's; else E stands in front of them */
    uint32_t rank, first_dim;
    uint32_t first_matrix, matrix_count;
    uint64_t canonical_length; /* published bytes */
    uint64_t decoded_length;   /* bytes in the stored order, after the codec */
} moepack_desc;

typedef struct moepack_matrix {
    moepack_role role;
    moepack_plane plane;
    moepack_encoding encoding;
    uint32_t bits;                         /* width of one element */
    uint32_t group_rows, group_cols;       /* scale planes: weights per scale; else 0 */
    uint64_t rows, cols;                   /* of this plane, in elements */
    uint64_t base, row_stride, col_stride; /* in elements from the start of the canonical section */
} moepack_matrix;

typedef struct moepack_tensor {
    moepack_str name;
    uint32_t desc, source_file, shard;
    uint32_t block; /* MoE block it belongs to, MOEPACK_NO_BLOCK: none */
    uint64_t section;
} moepack_tensor;

typedef struct moepack_source_file {
    moepack_str name; /* relative to the source directory, '/' separated */
    moepack_source_kind kind;
    uint32_t shard;
    uint64_t section;     /* safetensors: the length word and header verbatim; others: the whole file */
    uint64_t length;      /* of the published file */
    moepack_hash128 hash; /* spec/container.md 5.3; zero in a subset */
} moepack_source_file;

typedef struct moepack_role_entry {
    moepack_role role;
    moepack_plane plane;
    uint32_t tensor;
} moepack_role_entry;

typedef struct moepack_index moepack_index;

/* Reads an index.mpk held in memory. The bytes are checked completely (hashes, every reference, every limit) before
 * this returns; getters then cannot fail for arguments in range. `data` must stay unchanged until moepack_index_close
 * and stays the caller's. `name` is used in errors only. Costs one pass over the bytes and no allocation per expert.
 * Errors: CORRUPT, UNSUPPORTED (version or must-understand bit), INCOMPLETE (shorter than its recorded length). */
MOEPACK_API moepack_status moepack_index_open(const void *data, size_t size, const char *name, moepack_index **out,
                                              moepack_error *error);
MOEPACK_API void moepack_index_close(moepack_index *index); /* NULL is fine */

MOEPACK_API void moepack_index_info(const moepack_index *index, moepack_info *out);
MOEPACK_API moepack_hash128 moepack_index_root_hash(const moepack_index *index);
MOEPACK_API uint64_t moepack_index_file_length(const moepack_index *index);

/* Table sizes. */
MOEPACK_API uint32_t moepack_index_shards(const moepack_index *index);
MOEPACK_API uint32_t moepack_index_blocks(const moepack_index *index);
MOEPACK_API uint32_t moepack_index_schemas(const moepack_index *index);
MOEPACK_API uint32_t moepack_index_tensors(const moepack_index *index);
MOEPACK_API uint32_t moepack_index_source_files(const moepack_index *index);
MOEPACK_API uint64_t moepack_index_records(const moepack_index *index);
MOEPACK_API uint64_t moepack_index_sections(const moepack_index *index);

/* Entry i of a table. O(1). The caller keeps i below the table's size; beyond it the entry is all zero. */
MOEPACK_API void moepack_index_shard(const moepack_index *index, uint32_t i, moepack_shard *out);
MOEPACK_API void moepack_index_block(const moepack_index *index, uint32_t i, moepack_block *out);
MOEPACK_API void moepack_index_schema(const moepack_index *index, uint32_t i, uint32_t *first_desc, uint32_t *count);
MOEPACK_API void moepack_index_desc(const moepack_index *index, uint32_t i, moepack_desc *out);
MOEPACK_API uint64_t moepack_index_dim(const moepack_index *index, uint32_t i);
MOEPACK_API void moepack_index_matrix(const moepack_index *index, uint32_t i, moepack_matrix *out);
MOEPACK_API void moepack_index_tensor(const moepack_index *index, uint32_t i, moepack_tensor *out);
MOEPACK_API void moepack_index_source_file(const moepack_index *index, uint32_t i, moepack_source_file *out);
MOEPACK_API void moepack_index_record(const moepack_index *index, uint64_t i, moepack_record *out);
MOEPACK_API void moepack_index_section(const moepack_index *index, uint64_t i, moepack_section *out);
MOEPACK_API void moepack_index_role(const moepack_index *index, uint32_t i, moepack_role_entry *out);
/* Policy record i; `overrides` (may be NULL) receives the number of fields that a user overrode. */
MOEPACK_API moepack_status moepack_index_policy(const moepack_index *index, uint32_t i, moepack_policy *out,
                                                uint32_t *overrides, moepack_error *error);
/* Entry i of the block table: stored length and XXH3-64 of one 4 MiB part (spec/container.md 4.9). */
MOEPACK_API void moepack_index_part(const moepack_index *index, uint32_t i, uint32_t *stored_length, uint64_t *xxh3);

/* Label of a block ("3", "encoder.1") into buf of MOEPACK_LABEL_MAX bytes. */
MOEPACK_API void moepack_index_label(const moepack_index *index, uint32_t block, char *buf);
/* Block by label or by tensor-name prefix (with or without its final dot); MOEPACK_NO_BLOCK if there is none. */
MOEPACK_API uint32_t moepack_index_find_block(const moepack_index *index, const char *label);
/* Tensor of the trunk by name, O(log n); UINT32_MAX if there is none. */
MOEPACK_API uint32_t moepack_index_find_tensor(const moepack_index *index, const char *name, size_t length);
/* Published name of section s of an expert, e.g. "model.layers.3.block_sparse_moe.experts.17.w1.weight_packed".
 * snprintf's contract. */
MOEPACK_API size_t moepack_index_section_name(const moepack_index *index, uint32_t block, uint32_t expert, uint32_t s,
                                              char *buf, size_t size);

/* ------------------------------------------------------------------------------------------------- hashes */

/* XXH3-64 and XXH3-128, seed 0. */
MOEPACK_API uint64_t moepack_hash64(const void *data, size_t size);
MOEPACK_API moepack_hash128 moepack_hash128_of(const void *data, size_t size);
/* 16 resp. 32 lower-case hex digits and a zero. */
MOEPACK_API void moepack_hash64_text(uint64_t hash, char buf[17]);
MOEPACK_API void moepack_hash128_text(moepack_hash128 hash, char buf[33]);

/* ------------------------------------------------------------------------------------------------- panel order */

/* Bytes that the stored form of a matrix needs: panel tiles (weights), group-scale planes, or as published (anything
 * else). Returns false on overflow or a width that has no panel form (only 4, 8, 16 and 32 bits have). */
MOEPACK_API bool moepack_panel_length(const moepack_matrix *matrix, uint64_t *length);

/* One section from published bytes to stored order, and back. `matrices` are the section's, in order; src and dst must
 * not overlap and must have exactly the given lengths (canonical and decoded length of its desc). Padding is written as
 * the spec says and ignored on the way back. Errors: USAGE when lengths and matrices contradict. */
MOEPACK_API moepack_status moepack_panel_from_canonical(const moepack_matrix *matrices, uint32_t count, const void *src,
                                                        size_t src_size, void *dst, size_t dst_size,
                                                        moepack_error *error);
MOEPACK_API moepack_status moepack_panel_to_canonical(const moepack_matrix *matrices, uint32_t count, const void *src,
                                                      size_t src_size, void *dst, size_t dst_size,
                                                      moepack_error *error);

#ifdef __cplusplus
}
#endif
#endif
