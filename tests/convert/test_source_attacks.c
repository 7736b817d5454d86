/* Checkpoints with one thing wrong each: the kind of failure, and the words that lead to it. */
#include "test_source_model.h"

#include "source_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct attack {
    const char *what;
    void (*bend)(model *m);
    moepack_status status;
    const char *parts[4]; /* of the error text */
} attack;

#define MOE(layer) "language_model.model.layers." #layer ".block_sparse_moe."

/* ---- tensors ---- */

static void lose_scale(model *m)
{
    model_remove(m, 2, "experts.3.w2.weight_scale");
}
static void lose_expert(model *m)
{
    model_remove_matching(m, "layers.3.block_sparse_moe.experts.4.");
}
static void lose_block(model *m)
{
    model_remove_matching(m, "layers.2.block_sparse_moe.");
}
static void lose_all(model *m)
{
    model_remove_matching(m, "block_sparse_moe.");
}
static void lose_router(model *m)
{
    model_remove(m, 1, "gate.weight");
}
static void lose_bias(model *m)
{
    model_remove(m, 1, "gate.e_score_correction_bias");
}
static void lose_norm(model *m)
{
    model_remove(m, 3, "routed_expert_norm.weight");
}
static void lose_shared(model *m)
{
    model_remove(m, 3, "shared_experts.up_proj.weight");
}

static void double_expert(model *m)
{
    model_add(m, MOE(2) "experts.1.w3.weight_packed", "U8", 2, MODEL_I, MODEL_L / 2, 3);
}

static void double_router(model *m)
{
    model_add(m, MOE(2) "gate.weight", "BF16", 2, MODEL_E, MODEL_H, 1);
}
static void w4(model *m)
{
    model_add(m, MOE(1) "experts.0.w4.weight_packed", "U8", 2, 1, 1, 1);
}
static void g_idx(model *m)
{
    model_add(m, MOE(1) "experts.0.w1.weight_g_idx", "I32", 1, 32, 0, 1);
}
static void leading_zero(model *m)
{
    strcpy(model_find(m, 1, "experts.3.w1.weight_packed")->name, MOE(1) "experts.03.w1.weight_packed");
}
static void expert_beyond(model *m)
{
    model_add(m, MOE(1) "experts.5.w1.weight_packed", "U8", 2, MODEL_I, MODEL_L / 2, 1);
}

static void huge_expert(model *m)
{
    model_add(m, MOE(1) "experts.18446744073709551615.w1.weight_packed", "U8", 2, 1, 1, 1);
}

static void layer_beyond(model *m)
{
    model_add(m, MOE(4) "experts.0.w1.weight_packed", "U8", 2, MODEL_I, MODEL_L / 2, 1);
}
static void dense_layer(model *m)
{
    model_add(m, MOE(0) "gate.weight", "BF16", 2, MODEL_E, MODEL_H, 1);
}
static void two_schemes(model *m)
{
    model_add(m, "model.layers.1.block_sparse_moe.gate.weight", "BF16", 2, MODEL_E, MODEL_H, 1);
}
static void swapped_shape(model *m)
{
    model_tensor *t = model_find(m, 2, "experts.2.w1.weight_packed");
    t->dims[0] = MODEL_L / 2;
    t->dims[1] = MODEL_I;
}
static void flat_shape(model *m)
{
    model_tensor *t = model_find(m, 2, "routed_expert_norm.weight");
    t->rank = 2;
    t->dims[1] = 1;
}
static void int_experts(model *m)
{
    model_find(m, 2, "experts.2.w1.weight_packed")->dtype = "I8";
}
static void fp8_shared(model *m)
{
    model_find(m, 2, "shared_experts.up_proj.weight")->dtype = "F8_E4M3";
}
static void two_forms(model *m)
{
    model_tensor *t = model_find(m, 1, "experts.2.w2.weight_packed");
    strcpy(t->name, MOE(1) "experts.2.w2.weight");
    t->dtype = "BF16";
    t->dims[1] = MODEL_I;
}
static void both_forms(model *m)
{
    model_add(m, MOE(1) "experts.2.w2.weight", "BF16", 2, MODEL_L, MODEL_I, 1);
}

/* ---- config against tensors ---- */

static void more_experts(model *m)
{
    model_set(m, "num_experts", json_integer(6));
}
static void fewer_experts(model *m)
{
    model_set(m, "num_experts", json_integer(4));
}
static void wider(model *m)
{
    model_set(m, "hidden_size", json_integer(128));
}
static void other_inner(model *m)
{
    model_set(m, "moe_intermediate_size", json_integer(64));
}
static void other_latent(model *m)
{
    model_set(m, "routed_expert_hidden_size", json_integer(64));
}
static void no_latent(model *m)
{
    model_set(m, "routed_expert_hidden_size", NULL);
}
static void no_norm(model *m)
{
    model_set(m, "latent_moe_use_norm", NULL);
}
static void no_shared(model *m)
{
    model_set(m, "num_shared_experts", json_integer(0));
}
static void one_shared(model *m)
{
    model_set(m, "num_shared_experts", json_integer(1));
}
static void fewer_layers(model *m)
{
    model_set(m, "num_hidden_layers", json_integer(3));
}
static void more_layers(model *m)
{
    model_set(m, "num_hidden_layers", json_integer(5));
}
static void later_moe(model *m)
{
    model_set(m, "first_k_dense_replace", json_integer(2));
}
static void promised_mtp(model *m)
{
    model_set(m, "num_nextn_predict_layers", json_integer(1));
}
static void many_layers(model *m)
{
    model_set(m, "num_hidden_layers", json_integer(4000000000));
}
static void many_experts(model *m)
{
    model_set(m, "num_experts", json_integer(4000000000));
}
static void many_mtp(model *m)
{
    model_set(m, "num_nextn_predict_layers", json_integer(4000000000));
}
static void odd_inner(model *m)
{
    model_set(m, "moe_intermediate_size", json_integer(40));
}

/* ---- index json ---- */

static void index_of(model *m, const char *name, json_t *value)
{
    m->index = json_pack("{s:{s:i}, s:{s:o}}", "metadata", "total_size", 1, "weight_map", name, value);
}
static void index_escape(model *m)
{
    index_of(m, "a", json_string("../model.safetensors"));
}
static void index_absolute(model *m)
{
    index_of(m, "a", json_string("/etc/model.safetensors"));
}
static void index_folder(model *m)
{
    index_of(m, "a", json_string("sub/model.safetensors"));
}
static void index_dots(model *m)
{
    index_of(m, "a", json_string(".."));
}
static void index_empty_name(model *m)
{
    index_of(m, "a", json_string(""));
}
static void index_number(model *m)
{
    index_of(m, "a", json_integer(1));
}
static void index_pickle(model *m)
{
    index_of(m, "a", json_string("pytorch_model.bin"));
}
static void index_config(model *m)
{
    index_of(m, "a", json_string("config.json"));
}
static void index_list(model *m)
{
    m->index = json_pack("{s:[]}", "weight_map");
}
static void index_nothing(model *m)
{
    m->index = json_pack("{s:{}}", "weight_map");
}
static void index_no_map(model *m)
{
    m->index = json_object();
}
static void index_ghost(model *m)
{
    model_tensor *t = model_add(m, "ghost.weight", "U8", 1, 1, 0, 9); /* there is no shard 9 to be written */
    t->listed_in = 2;
}
static void index_ghost_expert(model *m)
{
    model_tensor *t = model_find(m, 2, "experts.3.w2.weight_scale");
    t->shard = 9;
    t->listed_in = 2;
}

static const attack attacks[] = {
    {"scale missing", lose_scale, MOEPACK_E_INCOMPLETE, {"layer 2", "expert 3", MOE(2) "experts.3.w2.weight_scale"}},
    {"expert missing", lose_expert, MOEPACK_E_INCOMPLETE, {"layer 3", "expert 4", "w1.weight_packed"}},
    {"block missing", lose_block, MOEPACK_E_INCOMPLETE, {"layer 2", "gate.weight"}},
    {"all blocks missing", lose_all, MOEPACK_E_INCOMPLETE, {"no tensor of a MoE block"}},
    {"router missing", lose_router, MOEPACK_E_INCOMPLETE, {"layer 1", "gate.weight"}},
    {"bias missing", lose_bias, MOEPACK_E_INCOMPLETE, {"layer 1", "e_score_correction_bias"}},
    {"norm missing", lose_norm, MOEPACK_E_INCOMPLETE, {"layer 3", "routed_expert_norm"}},
    {"shared missing", lose_shared, MOEPACK_E_INCOMPLETE, {"layer 3", "up_proj"}},
    {"expert doubled",
     double_expert,
     MOEPACK_E_CORRUPT,
     {"expert 1", "model-00002-of-00003.safetensors", "model-00003-of"}},
    {"router doubled",
     double_router,
     MOEPACK_E_CORRUPT,
     {"layer 2", "model-00001-of-00003.safetensors", "model-00002-of"}},
    {"a fourth matrix", w4, MOEPACK_E_UNSUPPORTED, {"layer 1", "experts.0.w4.weight_packed"}},
    {"activation order", g_idx, MOEPACK_E_UNSUPPORTED, {"layer 1", "weight_g_idx"}},
    {"leading zero", leading_zero, MOEPACK_E_UNSUPPORTED, {"experts.03.w1"}},
    {"expert beyond", expert_beyond, MOEPACK_E_CORRUPT, {"layer 1", "expert 5", "num_experts 5"}},
    {"expert of 2^64 - 1", huge_expert, MOEPACK_E_UNSUPPORTED, {"18446744073709551615"}},
    {"layer beyond", layer_beyond, MOEPACK_E_UNSUPPORTED, {"layer 4 is beyond num_hidden_layers 4"}},
    {"MoE tensor in a dense layer", dense_layer, MOEPACK_E_CORRUPT, {"makes layer 0 dense", "first_k_dense_replace 1"}},
    {"two naming schemes", two_schemes, MOEPACK_E_UNSUPPORTED, {"named in two ways"}},
    {"transposed", swapped_shape, MOEPACK_E_CORRUPT, {"expert 2", "[16, 96]", "[96, 16]", "layer 2"}},
    {"rank 2 norm", flat_shape, MOEPACK_E_CORRUPT, {"[32, 1]", "[32]"}},
    {"I8 experts", int_experts, MOEPACK_E_UNSUPPORTED, {"dtype I8", "expert 2"}},
    {"FP8 shared without scales", fp8_shared, MOEPACK_E_INCOMPLETE, {"weight_scale", "layer 2"}},
    {"BF16 with a scale", two_forms, MOEPACK_E_UNSUPPORTED, {"no known form", "expert 2"}},
    {"both forms", both_forms, MOEPACK_E_UNSUPPORTED, {"no known form", "weight_packed U8", "expert 2"}},
    {"config: more experts", more_experts, MOEPACK_E_CORRUPT, {"gate.weight", "[5, 64]", "[6, 64]"}},
    {"config: fewer experts", fewer_experts, MOEPACK_E_CORRUPT, {"expert 4", "num_experts 4"}},
    {"config: wider", wider, MOEPACK_E_CORRUPT, {"gate.weight", "[5, 64]", "[5, 128]"}},
    {"config: other inner width", other_inner, MOEPACK_E_CORRUPT, {"w1.weight_packed", "[96, 16]", "[64, 16]"}},
    {"config: other latent", other_latent, MOEPACK_E_CORRUPT, {"w1.weight_packed", "[96, 16]", "[96, 32]"}},
    {"config: no latent", no_latent, MOEPACK_E_CORRUPT, {"[96, 16]", "[96, 32]"}},
    {"config: no norm", no_norm, MOEPACK_E_CORRUPT, {"latent_moe_use_norm", "routed_expert_norm.weight"}},
    {"config: no shared", no_shared, MOEPACK_E_CORRUPT, {"num_shared_experts", "shared_experts."}},
    {"config: one shared", one_shared, MOEPACK_E_CORRUPT, {"[192, 64]", "[96, 64]"}},
    {"config: fewer layers", fewer_layers, MOEPACK_E_UNSUPPORTED, {"layer 3 is beyond num_hidden_layers 3"}},
    {"config: more layers", more_layers, MOEPACK_E_INCOMPLETE, {"layer 4", "gate.weight"}},
    {"config: MoE later", later_moe, MOEPACK_E_CORRUPT, {"makes layer 1 dense"}},
    {"config: promises MTP", promised_mtp, MOEPACK_E_UNSUPPORTED, {"num_nextn_predict_layers is 1", "layer 4"}},
    {"config: 4e9 layers", many_layers, MOEPACK_E_CORRUPT, {"3999999999 MoE blocks"}},
    {"config: 4e9 experts", many_experts, MOEPACK_E_CORRUPT, {"4000000000 experts"}},
    {"config: 4e9 MTP layers", many_mtp, MOEPACK_E_CORRUPT, {"4000000003 MoE blocks"}},
    {"config: width not in whole groups", odd_inner, MOEPACK_E_CORRUPT, {"[96, 16]", "[40, 16]"}},
    {"index: leads upwards", index_escape, MOEPACK_E_CORRUPT, {"../model.safetensors", "plain file name"}},
    {"index: absolute", index_absolute, MOEPACK_E_CORRUPT, {"/etc/model.safetensors"}},
    {"index: folder", index_folder, MOEPACK_E_CORRUPT, {"sub/model.safetensors"}},
    {"index: dots", index_dots, MOEPACK_E_CORRUPT, {"\"..\""}},
    {"index: empty name", index_empty_name, MOEPACK_E_CORRUPT, {"plain file name"}},
    {"index: number", index_number, MOEPACK_E_CORRUPT, {"an integer"}},
    {"index: pickle", index_pickle, MOEPACK_E_UNSUPPORTED, {"pytorch_model.bin"}},
    {"index: config as a shard", index_config, MOEPACK_E_UNSUPPORTED, {"config.json"}},
    {"index: list", index_list, MOEPACK_E_CORRUPT, {"weight_map is a list"}},
    {"index: no tensor", index_nothing, MOEPACK_E_INCOMPLETE, {"lists no tensor"}},
    {"index: no map", index_no_map, MOEPACK_E_CORRUPT, {"weight_map is nothing"}},
    {"index: tensor in no shard", index_ghost, MOEPACK_E_INCOMPLETE, {"ghost.weight", "model-00002-of-00003"}},
    {"index: section in no shard",
     index_ghost_expert,
     MOEPACK_E_INCOMPLETE,
     {"model-00002-of-00003", "layer 2", "expert 3", "w2.weight_scale"}},
};

static moepack_status try_open(const char *dir, const mpk_source_options *options, moepack_error *error)
{
    mpk_source *source = NULL;
    moepack_status status = mpk_source_open(dir, options, &source, error);
    if (status == MOEPACK_OK) mpk_source_close(source);
    return status;
}

static void attacks_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof attacks / sizeof attacks[0]; i++) {
        const attack *a = &attacks[i];
        print_message("%s\n", a->what);
        model *m = model_new();
        a->bend(m);
        const char *dir = make_dir();
        model_write(m, dir);
        model_free(m);
        const mpk_source_options options = {0};
        moepack_error error;
        memset(&error, 0, sizeof error);
        moepack_status status = try_open(dir, &options, &error);
        for (size_t p = 0; p < 4; p++) expect_error(status, a->status, &error, a->parts[p] ? a->parts[p] : "");
        assert_int_equal(try_open(dir, &options, NULL), a->status);
        remove_dir(dir);
    }
}

/* What is wrong outside the selection stops nothing, if it is only missing. */
static void only_what_is_needed_is_missed(void **state)
{
    (void)state;
    model *m = model_new();
    lose_scale(m); /* layer 2, expert 3 */
    const char *dir = make_dir();
    model_write(m, dir);
    model_free(m);
    moepack_error error;
    static const struct {
        const char *layers, *experts;
        moepack_status status;
    } want[] = {
        {"1,3", NULL, MOEPACK_OK},
        {NULL, "0-2,4", MOEPACK_OK},
        {NULL, "3", MOEPACK_E_INCOMPLETE},
        {"2", NULL, MOEPACK_E_INCOMPLETE},
    };
    for (size_t i = 0; i < 4; i++) {
        const mpk_source_options options = {.layers = want[i].layers, .experts = want[i].experts};
        assert_int_equal(try_open(dir, &options, &error), want[i].status);
    }
    remove_dir(dir);
}

static void missing_shards_are_named(void **state)
{
    (void)state;
    model *m = model_new();
    const char *dir = make_dir();
    model_write(m, dir);
    model_free(m);
    assert_int_equal(unlink(in_dir(dir, "model-00002-of-00003.safetensors")), 0);
    assert_int_equal(unlink(in_dir(dir, "model-00003-of-00003.safetensors")), 0);
    static const struct {
        mpk_source_options options;
        const char *parts[4];
    } want[] = {
        {{0}, {"model-00002-of-00003.safetensors", "layer 2", "expert 0", "77 tensors"}},
        {{.experts = "2-3"}, {"model-00002-of-00003.safetensors", "layer 2", "expert 2", "41 tensors"}},
        {{.layers = "3", .experts = "4"}, {"model-00003-of-00003.safetensors", "layer 3", "expert 4", "15 tensors"}},
        {{.layers = "1"}, {"model-00003-of-00003.safetensors", "head.weight", "1 tensors", ""}},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        moepack_error error;
        moepack_status status = try_open(dir, &want[i].options, &error);
        for (size_t p = 0; p < 4; p++) expect_error(status, MOEPACK_E_INCOMPLETE, &error, want[i].parts[p]);
    }
    remove_dir(dir);
}

static void directories_that_are_none(void **state)
{
    (void)state;
    const mpk_source_options options = {0};
    moepack_error error;
    const char *dir = make_dir();
    expect_error(try_open(in_dir(dir, "none"), &options, &error), MOEPACK_E_INCOMPLETE, &error, "none");
    expect_error(try_open(dir, &options, &error), MOEPACK_E_INCOMPLETE, &error, "config.json is missing");
    write_text(in_dir(dir, "config.json"), "{}");
    expect_error(try_open(dir, &options, &error), MOEPACK_E_INCOMPLETE, &error, "no .safetensors file");
    write_safetensors(in_dir(dir, "model.safetensors"), UINT64_MAX, "{}", 2, 0);
    expect_error(try_open(dir, &options, &error), MOEPACK_E_INCOMPLETE, &error, "model_type is missing");
    write_text(in_dir(dir, "model.safetensors.index.json"), "{\"weight_map\":{\"a\":\"x.safetensors\"");
    expect_error(try_open(dir, &options, &error), MOEPACK_E_CORRUPT, &error, "index.json: offset");
    write_text(in_dir(dir, "model.safetensors.index.json"),
               "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"x.safetensors\"}}");
    expect_error(try_open(dir, &options, &error), MOEPACK_E_CORRUPT, &error, "duplicate");
    expect_error(try_open(in_dir(dir, "config.json"), &options, &error), MOEPACK_E_IO, &error, "config.json");
    remove_dir(dir);
}

/* A shard that is a folder or a FIFO is an error, not a missing shard and not a wait. */
static void shards_must_be_files(void **state)
{
    (void)state;
    model *m = model_new();
    const char *dir = make_dir();
    model_write(m, dir);
    model_free(m);
    const char *shard = in_dir(dir, "model-00002-of-00003.safetensors");
    const mpk_source_options options = {.layers = "1,3"};
    moepack_error error;
    assert_int_equal(unlink(shard), 0);
    assert_int_equal(mkfifo(shard, 0644), 0);
    expect_error(try_open(dir, &options, &error), MOEPACK_E_IO, &error, "model-00002-of-00003.safetensors");
    assert_int_equal(unlink(shard), 0);
    assert_int_equal(mkdir(shard, 0755), 0);
    expect_error(try_open(dir, &options, &error), MOEPACK_E_IO, &error, "model-00002-of-00003.safetensors");
    remove_dir(dir);
}

static void damaged_shards_are_named(void **state)
{
    (void)state;
    model *m = model_new();
    const char *dir = make_dir();
    model_write(m, dir);
    model_free(m);
    const char *shard = in_dir(dir, "model-00002-of-00003.safetensors");
    size_t size;
    char *bytes = read_text(shard, &size);
    const mpk_source_options options = {0};
    moepack_error error;
    write_bytes(shard, bytes, size - 1);
    expect_error(try_open(dir, &options, &error), MOEPACK_E_INCOMPLETE, &error, "model-00002-of-00003.safetensors");
    bytes[8] = '[';
    write_bytes(shard, bytes, size);
    expect_error(try_open(dir, &options, &error), MOEPACK_E_CORRUPT, &error, "model-00002-of-00003.safetensors");
    free(bytes);
    remove_dir(dir);
}

static void wrong_overrides_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } want[] = {
        {"scale", "KEY=VALUE"},        {"=1", ""},
        {"nonsense=1", "nonsense"},    {"score=cubic", ""},
        {"hidden=128", "tensors"},     {"latent=0", "tensors"},
        {"shared_width=0", "tensors"},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const mpk_source_options options = {.policy = &want[i].text, .policy_count = 1};
        moepack_error error;
        expect_error(try_open(in_dir(MOEPACK_FIXTURES, "k3_tiny/checkpoint"), &options, &error), MOEPACK_E_USAGE,
                     &error, want[i].part);
    }
    const char *const k = "top_k=24";
    const mpk_source_options options = {.policy = &k, .policy_count = 1};
    moepack_error error;
    assert_int_not_equal(try_open(in_dir(MOEPACK_FIXTURES, "k3_tiny/checkpoint"), &options, &error), MOEPACK_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attacks_are_named),           cmocka_unit_test(only_what_is_needed_is_missed),
        cmocka_unit_test(missing_shards_are_named),    cmocka_unit_test(directories_that_are_none),
        cmocka_unit_test(shards_must_be_files),        cmocka_unit_test(damaged_shards_are_named),
        cmocka_unit_test(wrong_overrides_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
