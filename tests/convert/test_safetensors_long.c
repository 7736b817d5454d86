/* Headers of Kimi K3's size: time and peak memory, against the limits that the project promises (5 s and 600 MB for a
 * header with 494,592 tensors; 600 MB for the headers of a whole source). Files are sparse: 1.5 TB by name, 80 MB on
 * disk. Runs only with MOEPACK_TEST_LONG in the environment. */
#include "test_source_files.h"

#include "source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LAYERS = 93,
    EXPERTS = 896,
    H = 7168,
    L = 3584,
    I = 3072
};
#define PREFIX "language_model.model.layers.%d.block_sparse_moe."
#define LIMIT_MB 600.0
#define LIMIT_SECONDS 5.0

/* Text of a header in the making. */
typedef struct header {
    FILE *file;
    uint64_t offset;
    size_t tensors;
} header;

static void add(header *h, const char *name, const char *dtype, unsigned width, uint64_t a, uint64_t b)
{
    uint64_t end = h->offset + width * a * (b ? b : 1);
    char shape[48];
    snprintf(shape, sizeof shape, b ? "%llu,%llu" : "%llu", (unsigned long long)a, (unsigned long long)b);
    fprintf(h->file, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}", h->tensors++ ? "," : "",
            name, dtype, shape, (unsigned long long)h->offset, (unsigned long long)end);
    h->offset = end;
}

static void add_experts(header *h, int layer)
{
    static const struct {
        const char *w;
        uint64_t out, in;
    } matrices[] = {{"w1", I, L}, {"w2", L, I}, {"w3", I, L}};
    char name[160];
    for (int e = 0; e < EXPERTS; e++) {
        int id = (e * 5 + 3) % EXPERTS; /* published files are not in order of ids */
        for (int m = 0; m < 3; m++) {
            snprintf(name, sizeof name, PREFIX "experts.%d.%s.weight_packed", layer, id, matrices[m].w);
            add(h, name, "U8", 1, matrices[m].out, matrices[m].in / 2);
            snprintf(name, sizeof name, PREFIX "experts.%d.%s.weight_scale", layer, id, matrices[m].w);
            add(h, name, "U8", 1, matrices[m].out, matrices[m].in / 32);
        }
    }
}

static void add_roles(header *h, int layer)
{
    static const struct {
        const char *name, *dtype;
        unsigned width;
        uint64_t a, b;
    } roles[] = {
        {"gate.weight", "BF16", 2, EXPERTS, H},
        {"gate.e_score_correction_bias", "F32", 4, EXPERTS, 0},
        {"routed_expert_down_proj.weight", "BF16", 2, L, H},
        {"routed_expert_norm.weight", "BF16", 2, L, 0},
        {"routed_expert_up_proj.weight", "BF16", 2, H, L},
        {"shared_experts.gate_proj.weight", "BF16", 2, 2 * I, H},
        {"shared_experts.up_proj.weight", "BF16", 2, 2 * I, H},
        {"shared_experts.down_proj.weight", "BF16", 2, H, 2 * I},
    };
    char name[160];
    for (size_t r = 0; r < sizeof roles / sizeof roles[0]; r++) {
        snprintf(name, sizeof name, PREFIX "%s", layer, roles[r].name);
        add(h, name, roles[r].dtype, roles[r].width, roles[r].a, roles[r].b);
    }
}

static header begin(const char *path)
{
    header h = {.file = fopen(path, "wb")};
    assert_non_null(h.file);
    fwrite("\0\0\0\0\0\0\0\0{", 1, 9, h.file);
    return h;
}

/* Closes the header and makes the file as long as it says. */
static uint64_t end(header *h)
{
    fputc('}', h->file);
    uint64_t size = (uint64_t)ftell(h->file) - 8;
    rewind(h->file);
    for (int i = 0; i < 8; i++) fputc((int)(size >> (8 * i) & 0xFF), h->file);
    fflush(h->file);
    bool sparse = ftruncate(fileno(h->file), (off_t)(8 + size + h->offset)) == 0;
    assert_int_equal(fclose(h->file), 0);
    if (!sparse) {
        print_message("this file system holds no sparse file of %llu bytes\n",
                      (unsigned long long)(8 + size + h->offset));
        exit(77);
    }
    return size;
}

/* Runs in a child of its own, so that its peak memory is its own; prints and checks both figures. */
static void measure(const char *what, void (*action)(const char *path), const char *path, double seconds_limit)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        action(path);
        _exit(0);
    }
    int status;
    struct rusage usage;
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    double seconds = (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6 +
                     (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec * 1e-6;
    double megabytes = (double)usage.ru_maxrss * 1024 / 1e6;
    print_message("%s: %.2f s of processor time, %.0f MB at most\n", what, seconds, megabytes);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#ifndef __SANITIZE_ADDRESS__
    assert_true(megabytes <= LIMIT_MB);
    assert_true(seconds <= seconds_limit);
#else
    (void)seconds_limit;
#endif
}

static void open_header(const char *path)
{
    moepack_safetensors *file;
    moepack_error error;
    expect_ok(moepack_safetensors_open(path, &file, &error), &error);
    assert_int_equal(moepack_safetensors_count(file), (LAYERS - 1) * EXPERTS * 6);
    size_t found =
        moepack_safetensors_find(file, "language_model.model.layers.92.block_sparse_moe.experts.895.w3.weight_scale");
    moepack_safetensors_tensor t;
    moepack_safetensors_get(file, found, &t);
    assert_int_equal(t.length, I * L / 32);
    moepack_safetensors_close(file);
}

static void one_huge_header(void **state)
{
    (void)state;
    const char *dir = make_dir();
    const char *path = in_dir(dir, "model.safetensors");
    header h = begin(path);
    for (int layer = 1; layer < LAYERS; layer++) add_experts(&h, layer);
    uint64_t size = end(&h);
    print_message("%zu tensors, header of %.1f MB, file of %.2f TB\n", h.tensors, (double)size / 1e6,
                  (double)h.offset / 1e12);
    measure("one header", open_header, path, LIMIT_SECONDS);
    remove_dir(dir);
}

static const char config[] =
    "{\"model_type\":\"kimi_k3\",\"text_config\":{\"model_type\":\"kimi_linear\",\"hidden_size\":7168,"
    "\"num_hidden_layers\":93,\"first_k_dense_replace\":1,\"moe_layer_freq\":1,\"num_experts\":896,"
    "\"num_experts_per_token\":16,\"num_shared_experts\":2,\"moe_intermediate_size\":3072,"
    "\"routed_expert_hidden_size\":3584,\"latent_moe_use_norm\":true,\"rms_norm_eps\":1e-05,\"hidden_act\":\"situ\","
    "\"moe_router_activation_func\":\"sigmoid\",\"moe_renormalize\":true,\"routed_scaling_factor\":1.0}}";

static void open_source(const char *path)
{
    const mpk_source_options options = {0};
    mpk_source *source;
    moepack_error error;
    expect_ok(mpk_source_open(path, &options, &source, &error), &error);
    assert_int_equal(source->block_count, LAYERS - 1);
    assert_false(source->subset);
    mpk_source_close(source);
}

/* 96 shards and an index json with all 497,220 names of the release (its 1,892 others are stood for by scalars). */
static void whole_source(void **state)
{
    (void)state;
    enum {
        SHARDS = 96,
        OTHERS = 1892
    };
    char *dir = strdup(make_dir());
    FILE *index = fopen(in_dir(dir, "model.safetensors.index.json"), "wb");
    assert_non_null(index);
    fprintf(index, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    size_t tensors = 0;
    for (int s = 0; s < SHARDS; s++) {
        char shard[64], name[160];
        snprintf(shard, sizeof shard, "model-%05d-of-%06d.safetensors", s + 1, SHARDS);
        char *path = strdup(in_dir(dir, shard));
        header h = begin(path);
        int layer = s < LAYERS - 1 ? s + 1 : 0;
        if (layer) {
            add_experts(&h, layer);
            add_roles(&h, layer);
        }
        for (int i = s; i < OTHERS; i += SHARDS) {
            snprintf(name, sizeof name, "language_model.model.other.%d", i);
            add(&h, name, "BF16", 2, 1, 0);
        }
        end(&h);
        moepack_safetensors *file;
        moepack_error error;
        expect_ok(moepack_safetensors_open(path, &file, &error), &error);
        for (size_t i = 0; i < moepack_safetensors_count(file); i++) {
            moepack_safetensors_tensor t;
            moepack_safetensors_get(file, i, &t);
            fprintf(index, "%s\n\"%s\": \"%s\"", tensors++ ? "," : "", t.name, shard);
        }
        moepack_safetensors_close(file);
        free(path);
    }
    fprintf(index, "}}");
    print_message("%zu tensors in %d shards, index json of %.1f MB\n", tensors, SHARDS, (double)ftell(index) / 1e6);
    assert_int_equal(fclose(index), 0);
    write_text(in_dir(dir, "config.json"), config);
    measure("whole source", open_source, dir, 3 * LIMIT_SECONDS);
    remove_dir(dir);
    free(dir);
}

int main(void)
{
    if (!getenv("MOEPACK_TEST_LONG")) {
        print_message("SKIP: set MOEPACK_TEST_LONG to read headers of 494,592 tensors\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_huge_header), cmocka_unit_test(whole_source)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
