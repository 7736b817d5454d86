/* Whole synthetic checkpoints: the same files for a seed whatever the number of jobs, the published layout, nothing
 * left behind after a failure. */
#include "synth.h"

#include <dirent.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const moepack_callbacks silent;

#define PATH 512

/* ------------------------------------------------------------------------------------------------- helpers */

static char home[PATH]; /* of all files of this test; removed in the end */

static int make_home(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(home, sizeof home, "%s/moepack-synth-XXXXXX", tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp");
    return mkdtemp(home) == NULL;
}

static void remove_directory(const char *path)
{
    DIR *dir = opendir(path);
    if (dir == NULL) return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) unlinkat(dirfd(dir), entry->d_name, 0);
    }
    closedir(dir);
    rmdir(path);
}

static int remove_home(void **state)
{
    (void)state;
    DIR *dir = opendir(home);
    if (dir == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[2 * PATH];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", home, entry->d_name);
        if (unlink(path) != 0) remove_directory(path);
    }
    closedir(dir);
    return rmdir(home);
}

static const char *in_home(const char *name)
{
    static char paths[4][2 * PATH];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", home, name);
    return path;
}

static bool exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

static char *read_file(const char *dir, const char *name, size_t *size)
{
    char path[3 * PATH];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s is missing", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *size = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*size + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, f), *size);
    data[*size] = '\0';
    fclose(f);
    return data;
}

static void file_hash(const char *dir, const char *name, char text[33])
{
    size_t size;
    char *data = read_file(dir, name, &size);
    moepack_hash128_text(moepack_hash128_of(data, size), text);
    free(data);
}

static const mpk_synth_family *k3(void)
{
    const mpk_synth_family *family = mpk_synth_family_find("kimi_k3");
    assert_non_null(family);
    return family;
}

static moepack_status make(const char *out, const mpk_synth_geometry *geometry, uint64_t seed, uint64_t shards,
                           unsigned jobs, const moepack_callbacks *callbacks, moepack_error *error)
{
    mpk_synth_plan plan;
    mpk_synth_report report;
    moepack_status status = mpk_synth_plan_make(&plan, k3(), geometry, seed, shards, error);
    if (status == MOEPACK_OK) status = mpk_synth_write(&plan, out, jobs, callbacks, &report, error);
    mpk_synth_plan_free(&plan);
    return status;
}

static void must_make(const char *out, const mpk_synth_geometry *geometry, uint64_t seed, uint64_t shards,
                      unsigned jobs)
{
    moepack_error error = {0};
    if (make(out, geometry, seed, shards, jobs, &silent, &error) != MOEPACK_OK)
        fail_msg("%s: %s", error.file, error.message);
}

/* ------------------------------------------------------------------------------------------------- determinism */

/* The default checkpoint with seed 1. These hashes change only together with a note in the change log. */
static const char *const golden[][2] = {
    {"LICENSE", "fd9686ad88f919b09096eee6e9494341"},
    {"README.md", "232b2188842c1cce118055696c4d905f"},
    {"config.json", "ac0e21b5657592c61e124ebd1cc61589"},
    {"generation_config.json", "620f1df80c422b004cc9bd320be0aab3"},
    {"model-00001-of-000003.safetensors", "2469515b8702a9bbe8c0d47d90225d2c"},
    {"model-00002-of-000003.safetensors", "3f535ead186f6d7fb0524b547d664e07"},
    {"model-00003-of-000003.safetensors", "9014c3bad4edf33ae6ced9476605d626"},
    {"model.safetensors.index.json", "c427bb0b349b777cb2d3d04127be7f65"},
    {"tokenizer_config.json", "3840281b475b1a0e6c7d668daefc44a7"},
};
enum {
    GOLDEN_COUNT = sizeof golden / sizeof golden[0]
};

static void golden_files(void **state)
{
    (void)state;
    static const unsigned jobs[] = {1, 4};
    for (unsigned i = 0; i < 2; i++) {
        const char *out = in_home("golden");
        char hash[33];
        unsigned files = 0;
        must_make(out, &k3()->small, 1, 0, jobs[i]);
        for (unsigned f = 0; f < GOLDEN_COUNT; f++) {
            file_hash(out, golden[f][0], hash);
            if (strcmp(hash, golden[f][1]) != 0)
                fail_msg("%u jobs: %s is %s, not %s", jobs[i], golden[f][0], hash, golden[f][1]);
        }
        DIR *dir = opendir(out);
        assert_non_null(dir);
        for (struct dirent *entry; (entry = readdir(dir)) != NULL;) files += entry->d_name[0] != '.';
        closedir(dir);
        assert_int_equal(files, GOLDEN_COUNT);
        assert_false(exists(in_home("golden.partial")));
        remove_directory(out);
    }
}

/* Wide enough for several pieces a tensor, with more jobs than processors. */
static void jobs_do_not_change_bytes(void **state)
{
    (void)state;
    mpk_synth_geometry g = {.hidden = 1000,
                            .latent = 512,
                            .intermediate = 64,
                            .experts = 9,
                            .top_k = 2,
                            .shared = 1,
                            .layers = 2,
                            .first_dense = 1,
                            .dense_intermediate = 700,
                            .vocab = 5000};
    char first[33], second[33], other[33];
    must_make(in_home("a"), &g, 7, 2, 1);
    must_make(in_home("b"), &g, 7, 2, 13);
    must_make(in_home("c"), &g, 8, 2, 2);
    for (unsigned s = 1; s <= 2; s++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05u-of-000002.safetensors", s);
        file_hash(in_home("a"), name, first);
        file_hash(in_home("b"), name, second);
        file_hash(in_home("c"), name, other);
        assert_string_equal(first, second);
        assert_string_not_equal(first, other);
    }
    remove_directory(in_home("a"));
    remove_directory(in_home("b"));
    remove_directory(in_home("c"));
}

/* ------------------------------------------------------------------------------------------------- layout */

/* What was seen of one checkpoint. */
typedef struct survey {
    uint64_t tensors, bytes, experts;
    int last_expert;
    unsigned descents; /* places where an expert's number is below that of the one before */
} survey;

/* An expert's six tensors must follow one another in this order. */
static const char *const expert_parts[6] = {"w1.weight_packed", "w1.weight_scale",  "w2.weight_packed",
                                            "w2.weight_scale",  "w3.weight_packed", "w3.weight_scale"};

static void check_expert_tensor(const char *name, unsigned *part, int *layer, int *expert, survey *s)
{
    int l = 0, e = 0, at = 0;
    if (sscanf(name, "language_model.model.layers.%d.block_sparse_moe.experts.%d.%n", &l, &e, &at) != 2 || at == 0) {
        if (*part != 0) fail_msg("%s stands inside an expert", name);
        return;
    }
    if (strcmp(name + at, expert_parts[*part]) != 0) fail_msg("%s: %s expected", name, expert_parts[*part]);
    if (*part == 0) {
        s->experts++;
        s->descents += e < s->last_expert;
        s->last_expert = e;
        *layer = l;
        *expert = e;
    } else if (l != *layer || e != *expert) {
        fail_msg("%s belongs to another expert than what is before it", name);
    }
    *part = (*part + 1) % 6;
}

static void survey_shard(const char *dir, const char *file, json_t *map, survey *s)
{
    moepack_safetensors *shard;
    moepack_error error = {0};
    char path[3 * PATH];
    unsigned part = 0;
    int layer = -1, expert = -1;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (moepack_safetensors_open(path, &shard, &error) != MOEPACK_OK) fail_msg("%s: %s", path, error.message);
    assert_string_equal(moepack_safetensors_metadata(shard, "format"), "pt");
    assert_true(moepack_safetensors_count(shard) > 0);
    for (size_t i = 0; i < moepack_safetensors_count(shard); i++) {
        moepack_safetensors_tensor tensor;
        moepack_safetensors_get(shard, i, &tensor);
        check_expert_tensor(tensor.name, &part, &layer, &expert, s);
        const char *listed = json_string_value(json_object_get(map, tensor.name));
        if (listed == NULL || strcmp(listed, file) != 0) fail_msg("%s is not listed for %s", tensor.name, file);
        s->tensors++;
        s->bytes += tensor.length;
    }
    if (part != 0) fail_msg("%s ends inside an expert", file);
    moepack_safetensors_close(shard);
}

static survey survey_checkpoint(const char *dir, unsigned shards)
{
    survey s = {.last_expert = -1};
    size_t size;
    char *text = read_file(dir, "model.safetensors.index.json", &size);
    json_t *index = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *map = json_object_get(index, "weight_map");
    assert_non_null(map);
    for (unsigned n = 1; n <= shards; n++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05u-of-%06u.safetensors", n, shards);
        survey_shard(dir, name, map, &s);
    }
    assert_int_equal(json_object_size(map), s.tensors);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")), s.bytes);
    json_decref(index);
    free(text);
    return s;
}

static void published_layout(void **state)
{
    (void)state;
    const mpk_synth_geometry *g = &k3()->small;
    must_make(in_home("layout"), g, 2, 0, 2);
    survey s = survey_checkpoint(in_home("layout"), 3);
    assert_int_equal(s.experts, 2 * 32);
    assert_true(s.descents > 16); /* 32 are expected of a random order, 1 of id order */
    /* 3 outside the layers, 8 in every layer, 3 in the dense one, 8 in a MoE layer. */
    assert_int_equal(s.tensors, 3 + 3 * 8 + 3 + 2 * (8 + 32 * 6));
    remove_directory(in_home("layout"));
}

static void any_number_of_shards(void **state)
{
    (void)state;
    mpk_synth_geometry g = {.hidden = 32,
                            .latent = 32,
                            .intermediate = 32,
                            .experts = 5,
                            .top_k = 2,
                            .shared = 0,
                            .layers = 2,
                            .first_dense = 0,
                            .dense_intermediate = 1,
                            .vocab = 3};
    enum {
        ATOMS = 3 + 2 * (8 + 5 + 5)
    }; /* tensors and whole experts, which are never cut */
    moepack_error error = {0};
    static const unsigned counts[] = {1, 3, 7, 20, ATOMS};
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        must_make(in_home("shards"), &g, 1, counts[i], 1);
        survey s = survey_checkpoint(in_home("shards"), counts[i]);
        assert_int_equal(s.experts, 10);
        remove_directory(in_home("shards"));
    }
    assert_int_equal(make(in_home("shards"), &g, 1, ATOMS + 1, 1, &silent, &error), MOEPACK_E_USAGE);
    assert_non_null(strstr(error.message, "--shards 40"));
}

static void without_latent_space(void **state)
{
    (void)state;
    mpk_synth_geometry g = k3()->small;
    moepack_error error = {0};
    moepack_safetensors *shard;
    moepack_safetensors_tensor tensor;
    g.latent = 0;
    must_make(in_home("wide"), &g, 1, 0, 1);
    char *path = strdup(in_home("wide/model-00002-of-000003.safetensors"));
    assert_int_equal(moepack_safetensors_open(path, &shard, &error), MOEPACK_OK);
    assert_true(moepack_safetensors_find(
                    shard, "language_model.model.layers.1.block_sparse_moe.routed_expert_norm.weight") == SIZE_MAX);
    size_t at =
        moepack_safetensors_find(shard, "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_packed");
    assert_true(at != SIZE_MAX);
    moepack_safetensors_get(shard, at, &tensor);
    assert_int_equal(tensor.dims[0], 96);
    assert_int_equal(tensor.dims[1], 128);
    moepack_safetensors_close(shard);
    free(path);
    size_t size;
    char *text = read_file(in_home("wide"), "config.json", &size);
    assert_non_null(strstr(text, "\"routed_expert_hidden_size\": null"));
    free(text);
    remove_directory(in_home("wide"));
}

/* The sizes of k3-checkpoint: 82,432 experts of 17,547,264 bytes each. */
static void full_size_plan(void **state)
{
    (void)state;
    mpk_synth_plan plan;
    moepack_error error = {0};
    assert_int_equal(mpk_synth_plan_make(&plan, k3(), &k3()->published, 1, 0, &error), MOEPACK_OK);
    assert_int_equal(plan.experts, 82432);
    assert_int_equal(plan.shard_count, 93);
    uint64_t bytes = 0;
    unsigned parts = 0;
    const mpk_synth_atom *atom = &plan.atoms[plan.atom_count - 3]; /* before the last norm and the head: an expert */
    assert_true(atom->expert >= 0);
    for (size_t t = 0; t < mpk_synth_atom_tensors(&plan, atom); t++) {
        const mpk_synth_tensor *tensor = &k3()->tensors[atom->tensor + t];
        for (unsigned part = 0; part < mpk_synth_parts(tensor); part++, parts++) {
            mpk_synth_item item;
            mpk_synth_item_make(&plan, atom, tensor, part, &item);
            bytes += item.bytes;
        }
    }
    assert_int_equal(parts, 6);
    assert_int_equal(bytes, 17547264);
    assert_true(plan.total_bytes > UINT64_C(82432) * 17547264 && plan.total_bytes < UINT64_C(1560000000000));
    mpk_synth_plan_free(&plan);
}

/* ------------------------------------------------------------------------------------------------- config */

static void config_matches(void **state)
{
    (void)state;
    mpk_synth_geometry g = k3()->small;
    size_t size;
    must_make(in_home("config"), &g, 1, 0, 1);
    char *text = read_file(in_home("config"), "config.json", &size);
    json_t *config = json_loads(text, JSON_REJECT_DUPLICATES, NULL), *t = json_object_get(config, "text_config");
    assert_non_null(t);
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"hidden_size", g.hidden},
                   {"routed_expert_hidden_size", g.latent},
                   {"moe_intermediate_size", g.intermediate},
                   {"num_experts", g.experts},
                   {"num_experts_per_token", g.top_k},
                   {"num_shared_experts", g.shared},
                   {"num_hidden_layers", g.layers},
                   {"first_k_dense_replace", g.first_dense},
                   {"vocab_size", g.vocab},
                   {"intermediate_size", g.dense_intermediate},
                   {"moe_layer_freq", 1}};
    for (unsigned i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        json_t *value = json_object_get(t, numbers[i].key);
        if (!json_is_integer(value) || (uint64_t)json_integer_value(value) != numbers[i].value)
            fail_msg("%s", numbers[i].key);
    }
    assert_string_equal(json_string_value(json_object_get(config, "model_type")), "kimi_k3");
    assert_string_equal(json_string_value(json_object_get(t, "model_type")), "kimi_linear");
    assert_true(json_real_value(json_object_get(t, "rms_norm_eps")) == 1e-5);
    assert_true(json_real_value(json_object_get(t, "activation_situ_linear_beta")) == 25.0);
    assert_non_null(json_object_get(t, "quantization_config"));
    assert_null(strstr(text, "real:"));
    json_decref(config);
    free(text);
    remove_directory(in_home("config"));
}

/* ------------------------------------------------------------------------------------------------- refusals */

static void bad_geometry(void **state)
{
    (void)state;
    const uint64_t most = INT32_MAX;
    const struct {
        size_t field;
        uint64_t value;
        const char *says;
    } cases[] = {{offsetof(mpk_synth_geometry, hidden), 0, "--hidden"},
                 {offsetof(mpk_synth_geometry, hidden), most + 1, "--hidden"},
                 {offsetof(mpk_synth_geometry, latent), 100, "multiple of 32"},
                 {offsetof(mpk_synth_geometry, intermediate), 0, "--intermediate"},
                 {offsetof(mpk_synth_geometry, intermediate), 48, "multiple of 32"},
                 {offsetof(mpk_synth_geometry, experts), 3, "--top-k 4 is more than --experts 3"},
                 {offsetof(mpk_synth_geometry, experts), most, "4294967295"},
                 {offsetof(mpk_synth_geometry, layers), most, "4294967295"},
                 {offsetof(mpk_synth_geometry, top_k), 0, "--top-k"},
                 {offsetof(mpk_synth_geometry, layers), 0, "--layers"},
                 {offsetof(mpk_synth_geometry, first_dense), 4, "--first-dense 4"},
                 {offsetof(mpk_synth_geometry, vocab), UINT64_MAX, "--vocab"}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mpk_synth_geometry g = k3()->small;
        moepack_error error = {0};
        memcpy((char *)&g + cases[i].field, &cases[i].value, sizeof cases[i].value);
        assert_int_equal(make(in_home("bad"), &g, 1, 0, 1, &silent, &error), MOEPACK_E_USAGE);
        if (strstr(error.message, cases[i].says) == NULL)
            fail_msg("\"%s\" is not in \"%s\"", cases[i].says, error.message);
        assert_false(exists(in_home("bad")));
    }
}

/* Products of allowed sizes that leave 62 bits. */
static void overflow_is_noticed(void **state)
{
    (void)state;
    mpk_synth_geometry g = k3()->small;
    moepack_error error = {0};
    g.hidden = g.vocab = INT32_MAX;
    assert_int_equal(make(in_home("bad"), &g, 1, 0, 1, &silent, &error), MOEPACK_E_USAGE);
    assert_non_null(strstr(error.message, "2^62"));
    g = k3()->small;
    g.shared = INT32_MAX;
    g.intermediate = INT32_MAX - 31;
    g.hidden = INT32_MAX;
    assert_int_equal(make(in_home("bad"), &g, 1, 0, 1, &silent, &error), MOEPACK_E_USAGE);
    assert_non_null(strstr(error.message, "2^62"));
}

static void too_large_for_the_disk(void **state)
{
    (void)state;
    mpk_synth_geometry g = k3()->published;
    moepack_error error = {0};
    g.vocab = INT32_MAX; /* 61 TB */
    assert_int_equal(make(in_home("large"), &g, 1, 0, 1, &silent, &error), MOEPACK_E_REFUSED);
    assert_non_null(strstr(error.message, "need "));
    assert_non_null(strstr(error.message, "have "));
    assert_false(exists(in_home("large")) || exists(in_home("large.partial")));
}

static void never_overwrites(void **state)
{
    (void)state;
    moepack_error error = {0};
    assert_int_equal(mkdir(in_home("full"), 0777), 0);
    assert_int_equal(mkdir(in_home("full/kept"), 0777), 0);
    assert_int_equal(make(in_home("full"), &k3()->small, 1, 0, 1, &silent, &error), MOEPACK_E_REFUSED);
    assert_true(exists(in_home("full/kept")));
    assert_int_equal(rmdir(in_home("full/kept")), 0);
    must_make(in_home("full"), &k3()->small, 1, 0, 1); /* an empty directory is fine */
    remove_directory(in_home("full"));

    assert_int_equal(mkdir(in_home("new.partial"), 0777), 0);
    assert_int_equal(make(in_home("new"), &k3()->small, 1, 0, 1, &silent, &error), MOEPACK_E_REFUSED);
    assert_non_null(strstr(error.file, "new.partial"));
    assert_true(exists(in_home("new.partial")));
    assert_int_equal(rmdir(in_home("new.partial")), 0);

    assert_int_equal(make(in_home("no/such/place"), &k3()->small, 1, 0, 1, &silent, &error), MOEPACK_E_IO);
    FILE *f = fopen(in_home("file"), "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(make(in_home("file"), &k3()->small, 1, 0, 1, &silent, &error), MOEPACK_E_REFUSED);
    assert_int_equal(unlink(in_home("file")), 0);
}

static volatile int stop;

static void stop_soon(void *user, const moepack_progress *progress)
{
    unsigned *calls = user;
    ++*calls;
    stop = progress->done_bytes > 0;
}

static void cancelled(void **state)
{
    (void)state;
    moepack_error error = {0};
    unsigned calls = 0;
    moepack_callbacks callbacks = {.progress = stop_soon, .user = &calls, .cancel = &stop};
    stop = 0;
    assert_int_equal(make(in_home("stopped"), &k3()->small, 1, 0, 3, &callbacks, &error), MOEPACK_E_INTERRUPTED);
    assert_int_equal(calls, 1);
    assert_false(exists(in_home("stopped")) || exists(in_home("stopped.partial")));
}

static void last_progress(void *user, const moepack_progress *progress)
{
    *(moepack_progress *)user = *progress;
}

static void progress_ends_at_the_total(void **state)
{
    (void)state;
    moepack_error error = {0};
    moepack_progress last = {0};
    moepack_callbacks callbacks = {.progress = last_progress, .user = &last};
    assert_int_equal(make(in_home("shown"), &k3()->small, 1, 0, 3, &callbacks, &error), MOEPACK_OK);
    assert_true(last.total_bytes > 0);
    assert_int_equal(last.done_bytes, last.total_bytes);
    remove_directory(in_home("shown"));
}

/* ------------------------------------------------------------------------------------------------- input */

static void input_file(void **state)
{
    (void)state;
    const char *path = in_home("x.safetensors");
    moepack_error error = {0};
    moepack_safetensors *file;
    moepack_safetensors_tensor tensor;
    char hash[33];
    assert_int_equal(mpk_synth_write_input(path, 1, 16, 256, &error), MOEPACK_OK);
    file_hash(home, "x.safetensors", hash);
    assert_string_equal(hash, "22e1cdd61bbef0797379dd75c2cdd778");
    assert_int_equal(moepack_safetensors_open(path, &file, &error), MOEPACK_OK);
    assert_int_equal(moepack_safetensors_count(file), 1);
    moepack_safetensors_get(file, 0, &tensor);
    assert_string_equal(tensor.name, "x");
    assert_int_equal(tensor.dtype, MOEPACK_DTYPE_BF16);
    assert_int_equal(tensor.rank, 2);
    assert_int_equal(tensor.dims[0], 16);
    assert_int_equal(tensor.dims[1], 256);
    moepack_safetensors_close(file);
    assert_int_equal(mpk_synth_write_input(path, 1, 16, 256, &error), MOEPACK_E_REFUSED);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_files),
                                       cmocka_unit_test(jobs_do_not_change_bytes),
                                       cmocka_unit_test(published_layout),
                                       cmocka_unit_test(any_number_of_shards),
                                       cmocka_unit_test(without_latent_space),
                                       cmocka_unit_test(full_size_plan),
                                       cmocka_unit_test(config_matches),
                                       cmocka_unit_test(bad_geometry),
                                       cmocka_unit_test(overflow_is_noticed),
                                       cmocka_unit_test(too_large_for_the_disk),
                                       cmocka_unit_test(never_overwrites),
                                       cmocka_unit_test(cancelled),
                                       cmocka_unit_test(progress_ends_at_the_total),
                                       cmocka_unit_test(input_file)};
    return cmocka_run_group_tests(tests, make_home, remove_home);
}
