/* Input and output of `moepack run`, partly of `moepack route`: safetensors files with x, and with y, s and the
 * routing; the policy with what --policy overrides. */
#ifndef MOEPACK_TOOLS_RUN_IO_H
#define MOEPACK_TOOLS_RUN_IO_H

#include "cli.h"

/* --policy, applied to a copy of the block's record. */
moepack_status run_policy(const moepack_pack *pack, uint32_t block, const cli_list *overrides, moepack_policy *out,
                          moepack_error *error);

/* The tensor x of an input file: [T, H], or [S, T, H] for S sequences, which count as S x T tokens. */
typedef struct run_input {
    moepack_safetensors *file;
    const char *path;
    size_t tensor;       /* number of x in the file */
    moepack_dtype dtype; /* BF16 or F32 */
    uint32_t lead_rank;  /* dims of x without the last */
    uint64_t lead[2];
    uint64_t tokens, hidden;
    int32_t *token_ids; /* [tokens] of the tensor of that name, read with run_input_token_ids; NULL: not read */
} run_input;

moepack_status run_input_open(const char *path, uint64_t hidden, run_input *out, moepack_error *error);
void run_input_close(run_input *input);
/* Reads tensor token_ids, I32 or I64, one for each token of x. INCOMPLETE where the file has none. */
moepack_status run_input_token_ids(run_input *input, moepack_error *error);
/* Rows [first, first + count) as F32; `raw` has room for count x hidden x 4 bytes. */
moepack_status run_input_read(const run_input *input, uint64_t first, uint64_t count, void *raw, float *x,
                              moepack_error *error);

/* The results of all tokens. */
typedef struct run_result {
    float *y, *s, *topk_weights; /* y NULL: partial */
    int32_t *topk_ids;
    int32_t *kept; /* slots within the capacity; NULL: no capacity was asked for */
    uint64_t tokens, hidden, expert_input, top_k;
} run_result;

moepack_status run_result_create(uint64_t tokens, const moepack_policy *policy, bool partial, bool kept,
                                 run_result *out, moepack_error *error);
void run_result_free(run_result *result);

/* Whether the output can be written, as far as that shows without creating anything: asked before weights are read, so
 * that a mistake does not cost the load. The file itself is made when there is something to write: a killed run leaves
 * none behind. */
moepack_status run_check_output(const char *path, bool overwrite, moepack_error *error);
/* REFUSED when writing the output would replace the input or a file of the container, or add one to it. */
moepack_status run_check_apart(const char *path, const char *pack, const char *input, moepack_error *error);
moepack_status run_write(const char *path, bool overwrite, const run_input *input, const run_result *result,
                         moepack_error *error);

#endif
