/* A small checkpoint in the layout of Kimi K3, to be bent in one place before it is written: the tensors are a list,
 * the config is a JSON object, the index json is made from both. Tensor data is counting bytes. */
#ifndef TEST_SOURCE_MODEL_H
#define TEST_SOURCE_MODEL_H

#include "test_source_files.h"

#include <jansson.h>

typedef struct model_tensor {
    char name[160];
    const char *dtype;
    uint32_t rank;
    uint64_t dims[4];
    int shard;     /* 1.. */
    bool listed;   /* in the index json */
    int listed_in; /* 0: where it is */
} model_tensor;

typedef struct model {
    json_t *config, *text; /* text: the nested text_config, or config itself */
    const char *prefix;    /* "language_model.model.layers." */
    int shards;
    model_tensor *tensors;
    size_t count;
    bool bf16;     /* experts stored as BF16 */
    json_t *index; /* NULL: made from the tensors */
    bool no_index;
} model;

enum {
    MODEL_H = 64,
    MODEL_L = 32,
    MODEL_I = 96,
    MODEL_E = 5,
    MODEL_K = 2,
    MODEL_SHARED = 2,
    MODEL_LAYERS = 4
};

/* Layer 0 dense, layers 1..3 MoE, 3 shards (shard = layer, layer 0 in the first). */
model *model_new(void);
/* The same with BF16 experts; the same as a text-only copy (flat config, names begin with "model.layers."). */
model *model_new_bf16(void);
model *model_new_text_only(void);
void model_free(model *m);

model_tensor *model_add(model *m, const char *name, const char *dtype, uint32_t rank, uint64_t a, uint64_t b,
                        int shard);
/* The tensor of this name after the layer's block prefix, e.g. (1, "experts.0.w1.weight_packed"). Fails the test if
 * none. */
model_tensor *model_find(model *m, int layer, const char *suffix);
void model_remove(model *m, int layer, const char *suffix);
void model_remove_matching(model *m, const char *part);
void model_set(model *m, const char *key, json_t *value); /* in the text config; NULL removes */

/* Writes the directory's files. */
void model_write(const model *m, const char *dir);

#endif
