/* Checkpoints that are as they should be: what each tensor is, which files belong, what is left out and said. */
#include "test_source_model.h"

#include "source_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char warnings[16384];

static void take_warning(void *user, const char *line)
{
    (void)user;
    size_t used = strlen(warnings);
    snprintf(warnings + used, sizeof warnings - used, "%s\n", line);
}

static const moepack_callbacks callbacks = {.warn = take_warning};
static moepack_error error;

static mpk_source *open_with(const char *dir, const mpk_source_options *options)
{
    mpk_source *source = NULL;
    warnings[0] = 0;
    expect_ok(mpk_source_open(dir, options, &source, &error), &error);
    return source;
}

static mpk_source *open_all(const char *dir)
{
    const mpk_source_options options = {.callbacks = &callbacks};
    return open_with(dir, &options);
}

static char *write_model(model *m)
{
    char *dir = strdup(make_dir());
    model_write(m, dir);
    return dir;
}

static void drop(mpk_source *source, char *dir, model *m)
{
    mpk_source_close(source);
    if (dir) remove_dir(dir);
    free(dir);
    if (m) model_free(m);
}

static uint32_t tensor_named(const mpk_source *source, const char *name)
{
    for (uint32_t i = 0; i < source->tensor_count; i++) {
        if (strcmp(source->tensors[i].name, name) == 0) return i;
    }
    fail_msg("no tensor %s", name);
    return 0;
}

/* Roles of block b with their shapes, and every slot of every expert by its name. */
static void check_block(const mpk_source *source, uint32_t b, uint64_t H, uint64_t L, uint64_t I, uint64_t E,
                        uint64_t S)
{
    const mpk_source_block *block = &source->blocks[b];
    const struct {
        moepack_role role;
        const char *name;
        uint64_t rows, cols;
        moepack_encoding encoding;
    } roles[] = {
        {MOEPACK_ROLE_ROUTER, "gate.weight", E, H, MOEPACK_ENC_BF16},
        {MOEPACK_ROLE_ROUTER_BIAS, "gate.e_score_correction_bias", E, 0, MOEPACK_ENC_F32},
        {MOEPACK_ROLE_LATENT_DOWN, "routed_expert_down_proj.weight", L, H, MOEPACK_ENC_BF16},
        {MOEPACK_ROLE_LATENT_NORM, "routed_expert_norm.weight", L, 0, MOEPACK_ENC_BF16},
        {MOEPACK_ROLE_LATENT_UP, "routed_expert_up_proj.weight", H, L, MOEPACK_ENC_BF16},
        {MOEPACK_ROLE_SHARED_GATE, "shared_experts.gate_proj.weight", S, H, MOEPACK_ENC_BF16},
        {MOEPACK_ROLE_SHARED_UP, "shared_experts.up_proj.weight", S, H, MOEPACK_ENC_BF16},
        {MOEPACK_ROLE_SHARED_DOWN, "shared_experts.down_proj.weight", H, S, MOEPACK_ENC_BF16},
    };
    char name[256];
    for (size_t r = 0; r < sizeof roles / sizeof roles[0]; r++) {
        snprintf(name, sizeof name, "%s%s", block->prefix, roles[r].name);
        const mpk_source_tensor *t = &source->tensors[tensor_named(source, name)];
        assert_int_equal(t->role, roles[r].role);
        assert_int_equal(t->plane, MOEPACK_PLANE_WEIGHT);
        assert_int_equal(t->encoding, roles[r].encoding);
        assert_int_equal(t->block, b);
        assert_int_equal(t->rank, roles[r].cols ? 2 : 1);
        assert_int_equal(t->dims[0], roles[r].rows);
        if (roles[r].cols) assert_int_equal(t->dims[1], roles[r].cols);
    }
    const mpk_source_schema *schema = &source->schemas[block->schema];
    static const char *const parts[] = {"w1.weight_packed", "w1.weight_scale",  "w3.weight_packed",
                                        "w3.weight_scale",  "w2.weight_packed", "w2.weight_scale"};
    static const moepack_role part_role[] = {MOEPACK_ROLE_GATE, MOEPACK_ROLE_UP, MOEPACK_ROLE_DOWN};
    assert_int_equal(schema->count, 6);
    assert_int_equal(block->experts, E);
    for (uint32_t s = 0; s < 6; s++) {
        const mpk_source_section *section = &schema->sections[s];
        const moepack_matrix *m = &section->matrices[0];
        bool scale = s % 2 == 1, down = s >= 4;
        uint64_t rows = down ? L : I, cols = down ? I : L;
        assert_int_equal(section->matrix_count, 1);
        assert_int_equal(section->dtype, MOEPACK_DTYPE_U8);
        assert_false(section->fused);
        assert_int_equal(section->length, rows * cols / (scale ? 32 : 2));
        assert_int_equal(m->role, part_role[s / 2]);
        assert_int_equal(m->plane, scale ? MOEPACK_PLANE_SCALE : MOEPACK_PLANE_WEIGHT);
        assert_int_equal(m->encoding, scale ? MOEPACK_ENC_E8M0 : MOEPACK_ENC_E2M1);
        assert_int_equal(m->bits, scale ? 8 : 4);
        assert_int_equal(m->group_rows, scale ? 1 : 0);
        assert_int_equal(m->group_cols, scale ? 32 : 0);
        assert_int_equal(m->rows, rows);
        assert_int_equal(m->cols, scale ? cols / 32 : cols);
        assert_int_equal(m->base, 0);
        assert_int_equal(m->row_stride, m->cols);
        assert_int_equal(m->col_stride, 1);
        for (uint32_t e = 0; e < E; e++) {
            snprintf(name, sizeof name, "%sexperts.%u.%s", block->prefix, e, parts[s]);
            const mpk_source_tensor *t = &source->tensors[mpk_source_expert_tensors(source, block, e)[s]];
            assert_string_equal(t->name, name);
            assert_int_equal(t->length, section->length);
            assert_int_equal(t->role, MOEPACK_ROLE_NONE);
            assert_int_equal(t->block, b);
        }
    }
}

static void check_order(const mpk_source *source)
{
    for (uint32_t i = 1; i < source->tensor_count; i++) {
        const mpk_source_tensor *a = &source->tensors[i - 1], *b = &source->tensors[i];
        assert_true(a->file < b->file || (a->file == b->file && a->offset + a->length == b->offset));
    }
    for (uint32_t i = 1; i < source->file_count; i++) {
        const mpk_source_file *a = &source->files[i - 1], *b = &source->files[i];
        assert_true(a->kind < b->kind || (a->kind == b->kind && strcmp(a->name, b->name) < 0));
    }
}

static void fixtures_are_understood(void **state)
{
    (void)state;
    const struct {
        const char *path;
        uint32_t tensors, files, shards, blocks, E;
        uint64_t H, L, I, k, bytes;
    } want[] = {
        {"k3_tiny/checkpoint", 527, 0, 3, 3, 23, 112, 96, 64, 5, 1441448},
        {"k3_quant/checkpoint", 393, 0, 2, 1, 56, 256, 128, 96, 16, 1926132},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mpk_source *source = open_all(in_dir(MOEPACK_FIXTURES, want[i].path));
        assert_string_equal(warnings, "");
        assert_int_equal(source->warnings, 0);
        assert_string_equal(source->family, "kimi_k3");
        assert_string_equal(source->model_type, "kimi_k3");
        assert_int_equal(source->tensor_count, want[i].tensors);
        assert_int_equal(source->block_count, want[i].blocks);
        assert_int_equal(source->ignored_files, 0);
        assert_false(source->subset);
        check_order(source);
        uint64_t bytes = 0;
        const mpk_source_options options = {0};
        for (uint32_t t = 0; t < source->tensor_count; t++) {
            bytes += source->tensors[t].length;
            assert_true(mpk_source_tensor_kept(source, &options, t));
        }
        assert_int_equal(bytes, want[i].bytes);
        for (uint32_t b = 0; b < source->block_count; b++) {
            char prefix[96];
            snprintf(prefix, sizeof prefix, "language_model.model.layers.%u.block_sparse_moe.", b + 1);
            assert_string_equal(source->blocks[b].prefix, prefix);
            assert_int_equal(source->blocks[b].number, b + 1);
            assert_int_equal(source->blocks[b].stack, MOEPACK_STACK_MAIN);
            assert_true(source->blocks[b].selected);
            check_block(source, b, want[i].H, want[i].L, want[i].I, want[i].E, 2 * want[i].I);
        }
        const moepack_policy *p = &source->policies[0].policy;
        assert_int_equal(source->policy_count, 1);
        assert_int_equal(p->top_k, want[i].k);
        assert_int_equal(p->hidden, want[i].H);
        assert_int_equal(p->expert_input, want[i].L);
        /* Side files, in a folder too; shards come first. */
        uint32_t kinds[4] = {0};
        bool nested = false;
        for (uint32_t f = 0; f < source->file_count; f++) {
            kinds[source->files[f].kind]++;
            nested = nested || strcmp(source->files[f].name, "figures/note.txt") == 0;
            assert_true(source->files[f].size > 0 && source->files[f].stamp.size == source->files[f].size);
        }
        assert_int_equal(kinds[MOEPACK_SOURCE_SAFETENSORS], want[i].shards);
        assert_int_equal(kinds[MOEPACK_SOURCE_INDEX_JSON], 1);
        assert_int_equal(kinds[MOEPACK_SOURCE_CONFIG], 1);
        assert_int_equal(kinds[MOEPACK_SOURCE_SIDE], 7);
        assert_true(nested);
        mpk_source_close(source);
    }
}

static void small_model_in_all_forms(void **state)
{
    (void)state;
    model *(*const make[])(void) = {model_new, model_new_text_only};
    for (size_t i = 0; i < 2; i++) {
        model *m = make[i]();
        char *dir = write_model(m);
        mpk_source *source = open_all(dir);
        assert_string_equal(warnings, "");
        assert_string_equal(source->family, "kimi_k3");
        assert_string_equal(source->model_type, i == 0 ? "kimi_k3" : "kimi_linear");
        assert_int_equal(source->block_count, 3);
        for (uint32_t b = 0; b < 3; b++)
            check_block(source, b, MODEL_H, MODEL_L, MODEL_I, MODEL_E, MODEL_SHARED * MODEL_I);
        drop(source, dir, m);
    }
    model *m = model_new_bf16();
    char *dir = write_model(m);
    mpk_source *source = open_all(dir);
    assert_string_equal(warnings, "");
    const mpk_source_schema *schema = &source->schemas[0];
    assert_int_equal(schema->count, 3);
    assert_string_equal(schema->sections[1].pattern, "experts.{expert}.w3.weight");
    assert_int_equal(schema->sections[2].matrices[0].rows, MODEL_L);
    assert_int_equal(schema->sections[2].matrices[0].encoding, MOEPACK_ENC_BF16);
    assert_int_equal(schema->sections[2].length, MODEL_L * MODEL_I * 2);
    drop(source, dir, m);
}

static void one_file_needs_no_index(void **state)
{
    (void)state;
    model *m = model_new();
    m->no_index = true;
    m->shards = 1;
    for (size_t i = 0; i < m->count; i++) m->tensors[i].shard = 1;
    char *dir = write_model(m);
    mpk_source *source = open_all(dir);
    assert_string_equal(warnings, "");
    assert_int_equal(source->file_count, 2);
    mpk_source_close(source);

    /* Under another name it is still the only one; a second one is a broken download. */
    assert_int_equal(rename(in_dir(dir, "model.safetensors"), in_dir(dir, "weights.safetensors")), 0);
    source = open_all(dir);
    assert_int_equal(source->block_count, 3);
    mpk_source_close(source);
    write_safetensors(in_dir(dir, "more.safetensors"), UINT64_MAX, "{}", 2, 0);
    const mpk_source_options options = {0};
    expect_error(mpk_source_open(dir, &options, &source, &error), MOEPACK_E_INCOMPLETE, &error,
                 "index.json is missing");
    /* With model.safetensors there, the others are other copies. */
    assert_int_equal(rename(in_dir(dir, "weights.safetensors"), in_dir(dir, "model.safetensors")), 0);
    source = open_all(dir);
    assert_non_null(strstr(warnings, "more.safetensors"));
    drop(source, dir, m);
}

static void parts_may_be_absent(void **state)
{
    (void)state;
    /* No latent space: experts at full width, no projections, no norm. */
    model *m = model_new();
    model_set(m, "routed_expert_hidden_size", json_null());
    model_remove_matching(m, "routed_expert_");
    for (size_t i = 0; i < m->count; i++) {
        model_tensor *t = &m->tensors[i];
        if (!strstr(t->name, ".experts.")) continue;
        if (strstr(t->name, "w2."))
            t->dims[0] = MODEL_H;
        else
            t->dims[1] *= MODEL_H / MODEL_L;
    }
    char *dir = write_model(m);
    mpk_source *source = open_all(dir);
    assert_int_equal(source->policies[0].policy.latent, 0);
    assert_int_equal(source->policies[0].policy.latent_norm, 0);
    assert_int_equal(source->policies[0].policy.expert_input, MODEL_H);
    drop(source, dir, m);

    /* No norm; no shared experts, as 0 and as null. */
    for (int i = 0; i < 2; i++) {
        m = model_new();
        model_set(m, "latent_moe_use_norm", json_false());
        model_set(m, "num_shared_experts", i ? json_null() : json_integer(0));
        model_remove_matching(m, "routed_expert_norm");
        model_remove_matching(m, "shared_experts");
        dir = write_model(m);
        source = open_all(dir);
        assert_string_equal(warnings, "");
        assert_int_equal(source->policies[0].policy.latent, 1);
        assert_int_equal(source->policies[0].policy.latent_norm, 0);
        assert_int_equal(source->policies[0].policy.shared_width, 0);
        drop(source, dir, m);
    }

    /* Every second layer is MoE: of 1, 2, 3 only 2. */
    m = model_new();
    model_set(m, "moe_layer_freq", json_integer(2));
    model_remove_matching(m, "layers.1.block_sparse_moe");
    model_remove_matching(m, "layers.3.block_sparse_moe");
    dir = write_model(m);
    source = open_all(dir);
    assert_int_equal(source->block_count, 1);
    assert_int_equal(source->blocks[0].number, 2);
    drop(source, dir, m);
}

/* The smaller sibling: same names and keys, but SiLU, full width and BF16. Libraries save its dense layer under the
 * name of a MoE block. */
static void kimi_linear_is_understood(void **state)
{
    (void)state;
    model *m = model_new_text_only();
    model_set(m, "routed_expert_hidden_size", NULL);
    model_set(m, "latent_moe_use_norm", NULL);
    model_set(m, "quantization_config", NULL);
    model_set(m, "hidden_act", json_string("silu"));
    model_set(m, "routed_scaling_factor", json_real(2.446));
    model_remove_matching(m, "routed_expert_");
    model_remove_matching(m, ".experts.");
    model_add(m, "model.layers.0.block_sparse_moe.gate_proj.weight", "BF16", 2, 160, MODEL_H, 1);
    for (int layer = 1; layer < MODEL_LAYERS; layer++) {
        for (int w = 0; w < 3 * MODEL_E; w++) {
            char name[96];
            bool down = w % 3 == 1;
            snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe.experts.%d.w%d.weight", layer, w / 3,
                     w % 3 + 1);
            model_add(m, name, "BF16", 2, down ? MODEL_H : MODEL_I, down ? MODEL_I : MODEL_H, layer);
        }
    }
    char *dir = write_model(m);
    mpk_source *source = open_all(dir);
    assert_string_equal(warnings, "");
    assert_string_equal(source->family, "kimi_linear");
    assert_int_equal(source->block_count, 3);
    assert_int_equal(source->tensor_count, m->count);
    const moepack_policy *p = &source->policies[0].policy;
    assert_int_equal(p->activation, MOEPACK_ACT_SILU);
    assert_int_equal(p->weight_from, MOEPACK_WEIGHT_UNBIASED);
    assert_int_equal(p->latent, 0);
    assert_true(p->scale == 2.446);
    const mpk_source_schema *schema = &source->schemas[source->blocks[0].schema];
    assert_int_equal(schema->count, 3);
    assert_int_equal(schema->sections[0].matrices[0].cols, MODEL_H);
    drop(source, dir, m);
}

static void prediction_layers_are_blocks(void **state)
{
    (void)state;
    model *m = model_new();
    model_set(m, "num_hidden_layers", json_integer(3));
    model_set(m, "num_nextn_predict_layers", json_integer(1));
    char *dir = write_model(m);
    mpk_source_options options = {.callbacks = &callbacks};
    mpk_source *source = open_with(dir, &options);
    assert_int_equal(source->block_count, 3);
    assert_string_equal(source->blocks[2].label, "mtp.0");
    assert_string_equal(source->blocks[2].prefix, "language_model.model.layers.3.block_sparse_moe.");
    check_block(source, 2, MODEL_H, MODEL_L, MODEL_I, MODEL_E, MODEL_SHARED * MODEL_I);
    mpk_source_close(source);
    options.layers = "mtp.0";
    source = open_with(dir, &options);
    assert_true(source->blocks[2].selected && !source->blocks[1].selected);
    drop(source, dir, m);
}

static void side_and_stray_files(void **state)
{
    (void)state;
    model *m = model_new();
    char *dir = write_model(m);
    assert_int_equal(mkdir(in_dir(dir, "sub"), 0755), 0);
    assert_int_equal(mkdir(in_dir(dir, "sub/deep"), 0755), 0);
    assert_int_equal(mkdir(in_dir(dir, ".cache"), 0755), 0);
    static const char *const strays[] = {"old.safetensors", "pytorch_model.bin", "x.GGUF", "sub/model.onnx", "t.npz"};
    static const char *const sides[] = {"README.md", "chat_template.jinja", "sub/config.json", "sub/deep/a.txt",
                                        "tiktoken.model"};
    for (size_t i = 0; i < 5; i++) write_text(in_dir(dir, strays[i]), "stray");
    for (size_t i = 0; i < 5; i++) write_text(in_dir(dir, sides[i]), "side");
    write_text(in_dir(dir, ".hidden"), "hidden");
    write_text(in_dir(dir, ".cache/x"), "hidden");
    /* A shard, and a side file, behind links, as download caches lay them out. */
    assert_int_equal(rename(in_dir(dir, "model-00002-of-00003.safetensors"), in_dir(dir, ".cache/blob")), 0);
    assert_int_equal(symlink(".cache/blob", in_dir(dir, "model-00002-of-00003.safetensors")), 0);
    assert_int_equal(symlink(".cache/x", in_dir(dir, "linked.txt")), 0);
    mpk_source *source = open_all(dir);
    assert_int_equal(source->ignored_files, 5);
    assert_int_equal(source->warnings, 2);
    assert_non_null(strstr(warnings, "5 weight files"));
    assert_non_null(strstr(warnings, "entries left out (hidden): 2, the first is .cache"));
    assert_int_equal(source->file_count, 3 + 1 + 1 + 6);
    for (size_t i = 0; i < 5; i++) {
        bool found = false;
        for (uint32_t f = 0; f < source->file_count; f++)
            found =
                found || (strcmp(source->files[f].name, sides[i]) == 0 && source->files[f].kind == MOEPACK_SOURCE_SIDE);
        assert_true(found);
    }
    assert_false(source->subset);
    drop(source, dir, m);
}

static void stale_index_loses_nothing(void **state)
{
    (void)state;
    model *m = model_new();
    model_find(m, 2, "experts.1.w1.weight_scale")->listed = false;
    m->tensors[0].listed = false;
    model_find(m, 3, "gate.weight")->listed_in = 1;
    char *dir = write_model(m);
    mpk_source *source = open_all(dir);
    assert_int_equal(source->tensor_count, m->count);
    assert_non_null(strstr(warnings, "2 tensors that the index json does not list are kept"));
    assert_non_null(strstr(warnings, "1 tensors are in other shards"));
    for (uint32_t b = 0; b < 3; b++) check_block(source, b, MODEL_H, MODEL_L, MODEL_I, MODEL_E, MODEL_SHARED * MODEL_I);
    drop(source, dir, m);
}

static void doubled_trunk_tensors_are_kept(void **state)
{
    (void)state;
    model *m = model_new();
    model_add(m, "embed.weight", "BF16", 2, 16, MODEL_H, 3);
    char *dir = write_model(m);
    mpk_source *source = open_all(dir);
    uint32_t copies = 0;
    const mpk_source_options options = {0};
    for (uint32_t i = 0; i < source->tensor_count; i++) {
        if (strcmp(source->tensors[i].name, "embed.weight") != 0) continue;
        copies++;
        assert_true(mpk_source_tensor_kept(source, &options, i));
    }
    assert_int_equal(copies, 2);
    assert_non_null(strstr(warnings, "1 tensors are in two shards and kept twice, the first is embed.weight, in "
                                     "model-00001-of-00003.safetensors and "
                                     "in model-00003"));
    drop(source, dir, m);
}

static void unknown_block_tensors_are_carried(void **state)
{
    (void)state;
    model *m = model_new();
    model_add(m, "language_model.model.layers.1.block_sparse_moe.extra.weight", "F32", 1, 4, 0, 1);
    model_add(m, "language_model.model.layers.0.block_sparse_moe.gate_proj.weight", "F32", 1, 4, 0, 1);
    char *dir = write_model(m);
    mpk_source *source = open_all(dir);
    assert_int_equal(source->warnings, 1);
    assert_non_null(strstr(warnings,
                           "1 tensors of MoE blocks are not known to kimi_k3 and take no part in them, the first is "
                           "language_model.model.layers.1.block_sparse_moe.extra.weight"));
    const mpk_source_tensor *t =
        &source->tensors[tensor_named(source, "language_model.model.layers.1.block_sparse_moe.extra.weight")];
    assert_int_equal(t->block, 0);
    assert_int_equal(t->role, MOEPACK_ROLE_NONE);
    t = &source->tensors[tensor_named(source, "language_model.model.layers.0.block_sparse_moe.gate_proj.weight")];
    assert_int_equal(t->block, MOEPACK_NO_BLOCK);
    drop(source, dir, m);
}

static size_t kept_count(const mpk_source *source, const mpk_source_options *options)
{
    size_t kept = 0;
    for (uint32_t i = 0; i < source->tensor_count; i++) kept += mpk_source_tensor_kept(source, options, i);
    return kept;
}

static void selections_keep_their_part(void **state)
{
    (void)state;
    model *m = model_new();
    char *dir = write_model(m);
    const size_t trunk = 3, roles = 8, all = m->count;
    static const struct {
        const char *layers, *experts;
        bool moe_only;
        size_t blocks, experts_kept;
    } want[] = {
        {NULL, NULL, false, 3, 5}, {"2", NULL, false, 1, 5},  {"1-2", "0,3-4", false, 2, 3},
        {NULL, "4", true, 3, 1},   {"1,3", NULL, true, 2, 5}, {"0-3", "0-4", false, 3, 5},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const mpk_source_options options = {.layers = want[i].layers,
                                            .experts = want[i].experts,
                                            .moe_only = want[i].moe_only,
                                            .callbacks = &callbacks};
        mpk_source *source = open_with(dir, &options);
        size_t expected = (want[i].moe_only ? 0 : trunk) + want[i].blocks * (roles + 6 * want[i].experts_kept);
        assert_int_equal(kept_count(source, &options), expected);
        assert_int_equal(source->subset, expected != all);
        for (uint32_t b = 0; b < source->block_count; b++) {
            size_t filled = 0;
            const mpk_source_block *block = &source->blocks[b];
            for (uint32_t e = 0; e < MODEL_E; e++)
                for (uint32_t s = 0; s < 6; s++)
                    filled += mpk_source_expert_tensors(source, block, e)[s] != MPK_NO_TENSOR;
            assert_int_equal(filled, source->blocks[b].selected ? 6 * want[i].experts_kept : 0);
        }
        mpk_source_close(source);
    }
    drop(NULL, dir, m);
}

static void missing_shards_that_nobody_needs(void **state)
{
    (void)state;
    model *m = model_new();
    char *dir = write_model(m);
    assert_int_equal(unlink(in_dir(dir, "model-00002-of-00003.safetensors")), 0);
    /* As a download cache leaves it: a link to nowhere. */
    assert_int_equal(symlink("nowhere", in_dir(dir, "model-00002-of-00003.safetensors")), 0);
    mpk_source_options options = {.layers = "1,3", .callbacks = &callbacks};
    mpk_source *source = open_with(dir, &options);
    assert_true(source->subset);
    assert_true(source->files[1].missing);
    assert_false(source->files[0].missing || source->files[2].missing);
    assert_int_equal(source->block_count, 3);
    assert_non_null(strstr(warnings, "model-00002-of-00003.safetensors is missing"));
    mpk_source_close(source);
    /* The last shard has a trunk tensor: only --moe-only can do without it. */
    assert_int_equal(unlink(in_dir(dir, "model-00003-of-00003.safetensors")), 0);
    options.layers = "1";
    expect_error(mpk_source_open(dir, &options, &source, &error), MOEPACK_E_INCOMPLETE, &error, "head.weight");
    options.moe_only = true;
    source = open_with(dir, &options);
    drop(source, dir, m);
}

static void overrides_are_recorded(void **state)
{
    (void)state;
    model *m = model_new();
    char *dir = write_model(m);
    const char *const policy[] = {"weight_from=biased", "scale=2.5"};
    const mpk_source_options options = {.policy = policy, .policy_count = 2};
    mpk_source *source = open_with(dir, &options);
    const mpk_source_policy *p = &source->policies[0];
    assert_int_equal(p->policy.weight_from, MOEPACK_WEIGHT_BIASED);
    assert_true(p->policy.scale == 2.5);
    for (size_t i = 0; i < moepack_policy_key_count(); i++) {
        const char *key;
        char value[64];
        expect_ok(moepack_policy_get(&p->policy, i, &key, value, sizeof value), &error);
        bool set = strcmp(key, "weight_from") == 0 || strcmp(key, "scale") == 0;
        assert_int_equal(p->overridden >> i & 1, set);
    }
    drop(source, dir, m);
}

static void cancelling_stops(void **state)
{
    (void)state;
    volatile int cancel = 1;
    const moepack_callbacks stop = {.cancel = &cancel};
    const mpk_source_options options = {.callbacks = &stop};
    mpk_source *source = NULL;
    expect_error(mpk_source_open(in_dir(MOEPACK_FIXTURES, "k3_tiny/checkpoint"), &options, &source, &error),
                 MOEPACK_E_INTERRUPTED, &error, "interrupted");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixtures_are_understood),        cmocka_unit_test(small_model_in_all_forms),
        cmocka_unit_test(one_file_needs_no_index),        cmocka_unit_test(parts_may_be_absent),
        cmocka_unit_test(kimi_linear_is_understood),      cmocka_unit_test(prediction_layers_are_blocks),
        cmocka_unit_test(side_and_stray_files),           cmocka_unit_test(stale_index_loses_nothing),
        cmocka_unit_test(doubled_trunk_tensors_are_kept), cmocka_unit_test(unknown_block_tensors_are_carried),
        cmocka_unit_test(selections_keep_their_part),     cmocka_unit_test(missing_shards_that_nobody_needs),
        cmocka_unit_test(overrides_are_recorded),         cmocka_unit_test(cancelling_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
