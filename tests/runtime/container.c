#include "container.h"

#include "build.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

#define PAGE 4096u
#define SMALL 2048u /* sections up to this size share a page (spec/container.md 7, 8) */
#define PART (4u << 20)
#define PARTS_ABOVE (8u << 20)

typedef struct writer {
    const container_spec *spec;
    mpk_tables t;
    mpk_buf *shards; /* content of each file from its first byte */
    uint32_t expert_shards;
} writer;

container_spec container_default(void)
{
    container_spec spec = {
        .blocks = {{MOEPACK_STACK_MAIN, 1, 7}, {MOEPACK_STACK_MAIN, 2, 7}, {MOEPACK_STACK_ENCODER, 0, 5}},
        .block_count = 3,
        .hidden = 128,
        .latent = 64,
        .intermediate = 96,
        .shared = 64,
        .top_k = 2,
        .ids_per_shard = 3,
        .layout = MOEPACK_LAYOUT_PANEL,
        .absent_expert = UINT32_MAX,
        .nan_expert = UINT32_MAX,
        .wrong_canonical_expert = UINT32_MAX};
    return spec;
}

/* ---- small helpers ---- */

static moepack_str intern(writer *w, const char *text)
{
    moepack_str s;
    assert_true(mpk_tables_string(&w->t, text, strlen(text), &s));
    return s;
}

static uint64_t next_random(uint64_t *state)
{
    /* splitmix64: any fixed generator does; golden bytes do not depend on it */
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t seed_of(uint32_t block, uint32_t expert, uint32_t section)
{
    return (uint64_t)block << 48 | (uint64_t)expert << 16 | section;
}

/* ---- descriptions ---- */

static uint32_t add_desc(writer *w, const char *name, moepack_dtype dtype, uint64_t dim0, uint64_t dim1,
                         const moepack_matrix *m)
{
    mpk_tables *t = &w->t;
    moepack_desc *d = &t->descs[t->desc_count];
    *d = (moepack_desc){.dtype = dtype,
                        .rank = dim1 == 0 ? 1 : 2,
                        .first_dim = (uint32_t)t->dim_count,
                        .first_matrix = (uint32_t)t->matrix_count,
                        .matrix_count = m == NULL ? 0 : 1};
    d->name = intern(w, name);
    t->dims[t->dim_count++] = dim0;
    if (dim1 != 0) t->dims[t->dim_count++] = dim1;
    d->canonical_length = dim0 * (dim1 == 0 ? 1 : dim1) * moepack_dtype_bits(dtype) / 8;
    d->decoded_length = d->canonical_length;
    if (m != NULL) {
        t->matrices[t->matrix_count++] = *m;
        if (w->spec->layout == MOEPACK_LAYOUT_PANEL && m->cols > 1) {
            d->layout = MOEPACK_LAYOUT_PANEL;
            assert_true(moepack_panel_length(m, &d->decoded_length));
        }
    }
    return (uint32_t)t->desc_count++;
}

static moepack_matrix matrix(moepack_role role, moepack_plane plane, moepack_encoding encoding, uint32_t bits,
                             uint64_t rows, uint64_t cols)
{
    const bool scale = plane == MOEPACK_PLANE_SCALE;
    return (moepack_matrix){.role = role,
                            .plane = plane,
                            .encoding = encoding,
                            .bits = bits,
                            .group_rows = scale ? 1 : 0,
                            .group_cols = scale ? 32 : 0,
                            .rows = rows,
                            .cols = cols,
                            .row_stride = cols,
                            .col_stride = 1};
}

static void add_expert_matrix(writer *w, const char *name, moepack_role role, uint64_t rows, uint64_t cols)
{
    char text[64];
    const moepack_matrix packed = matrix(role, MOEPACK_PLANE_WEIGHT, MOEPACK_ENC_E2M1, 4, rows, cols);
    const moepack_matrix scale = matrix(role, MOEPACK_PLANE_SCALE, MOEPACK_ENC_E8M0, 8, rows, cols / 32);
    snprintf(text, sizeof text, "experts.{expert}.%s.weight_packed", name);
    add_desc(w, text, MOEPACK_DTYPE_U8, rows, cols / 2, &packed);
    snprintf(text, sizeof text, "experts.{expert}.%s.weight_scale", name);
    add_desc(w, text, MOEPACK_DTYPE_U8, rows, cols / 32, &scale);
}

typedef struct role_row {
    const char *name;
    moepack_role role;
    moepack_encoding encoding;
    moepack_dtype dtype;
    uint32_t rows, cols; /* cols 1: a vector */
} role_row;

/* Trunk tensors of a block in storage order. */
static void role_rows(const container_spec *s, uint32_t experts, role_row rows[CONTAINER_ROLES])
{
    const role_row all[CONTAINER_ROLES] = {
        {"gate.weight", MOEPACK_ROLE_ROUTER, MOEPACK_ENC_BF16, MOEPACK_DTYPE_BF16, experts, s->hidden},
        {"gate.e_score_correction_bias", MOEPACK_ROLE_ROUTER_BIAS, MOEPACK_ENC_F32, MOEPACK_DTYPE_F32, experts, 1},
        {"routed_expert_down_proj.weight", MOEPACK_ROLE_LATENT_DOWN, MOEPACK_ENC_BF16, MOEPACK_DTYPE_BF16, s->latent,
         s->hidden},
        {"shared_experts.gate_proj.weight", MOEPACK_ROLE_SHARED_GATE, MOEPACK_ENC_BF16, MOEPACK_DTYPE_BF16, s->shared,
         s->hidden},
        {"shared_experts.up_proj.weight", MOEPACK_ROLE_SHARED_UP, MOEPACK_ENC_BF16, MOEPACK_DTYPE_BF16, s->shared,
         s->hidden},
        {"routed_expert_norm.weight", MOEPACK_ROLE_LATENT_NORM, MOEPACK_ENC_BF16, MOEPACK_DTYPE_BF16, s->latent, 1},
        {"routed_expert_up_proj.weight", MOEPACK_ROLE_LATENT_UP, MOEPACK_ENC_BF16, MOEPACK_DTYPE_BF16, s->hidden,
         s->latent},
        {"shared_experts.down_proj.weight", MOEPACK_ROLE_SHARED_DOWN, MOEPACK_ENC_BF16, MOEPACK_DTYPE_BF16, s->hidden,
         s->shared},
    };
    memcpy(rows, all, sizeof all);
}

/* ---- published bytes ---- */

static void fill_bf16(uint8_t *to, uint64_t size, uint64_t *state)
{
    /* sign, exponent 119..122, random fraction: magnitudes 2^-8 .. 2^-4 */
    for (uint64_t i = 0; i + 1 < size; i += 2) {
        const uint64_t r = next_random(state);
        const unsigned bits = (unsigned)(r & 0x807f) | (unsigned)(119 + (r >> 20 & 3)) << 7;
        to[i] = (uint8_t)bits;
        to[i + 1] = (uint8_t)(bits >> 8);
    }
}

static void fill_f32(uint8_t *to, uint64_t size, uint64_t *state)
{
    for (uint64_t i = 0; i + 3 < size; i += 4) {
        const float value = (float)(next_random(state) & 1023) / 4096.0f;
        memcpy(to + i, &value, 4);
    }
}

static uint8_t *published(const writer *w, const moepack_desc *d, uint64_t seed)
{
    uint8_t *bytes = malloc((size_t)d->canonical_length + 1);
    assert_non_null(bytes);
    const bool scale = d->matrix_count == 1 && w->t.matrices[d->first_matrix].plane == MOEPACK_PLANE_SCALE;
    if (d->dtype == MOEPACK_DTYPE_BF16) {
        fill_bf16(bytes, d->canonical_length, &seed);
    } else if (d->dtype == MOEPACK_DTYPE_F32) {
        fill_f32(bytes, d->canonical_length, &seed);
    } else {
        for (uint64_t i = 0; i < d->canonical_length; i++)
            bytes[i] = (uint8_t)(scale ? 120 + (next_random(&seed) & 3) : next_random(&seed));
    }
    return bytes;
}

/* ---- shards ---- */

static void pad_to(mpk_buf *buf, uint64_t unit)
{
    const uint64_t gap = (unit - buf->size % unit) % unit;
    if (gap > 0) assert_non_null(mpk_buf_append(buf, NULL, (size_t)gap));
}

static void add_parts(writer *w, moepack_section *section, const uint8_t *stored)
{
    section->first_part = MOEPACK_NO_PARTS;
    if (section->stored_length <= PARTS_ABOVE) return;
    section->first_part = (uint32_t)w->t.part_count;
    for (uint64_t at = 0; at < section->stored_length; at += PART) {
        const uint64_t left = section->stored_length - at;
        const uint32_t length = left < PART ? (uint32_t)left : PART;
        w->t.parts[w->t.part_count++] = (mpk_part_entry){length, moepack_hash64(stored + at, length)};
    }
}

/* Appends a section's stored bytes to a shard and fills its entry. */
static void store(writer *w, uint32_t shard, uint64_t number, const moepack_desc *d, uint8_t *bytes,
                  uint64_t small_unit)
{
    mpk_buf *buf = &w->shards[shard];
    moepack_section *section = &w->t.sections[number];
    uint8_t *stored = bytes;
    uint64_t length = d->canonical_length;
    section->xxh3_canonical = moepack_hash64(bytes, (size_t)length);
    if (d->layout == MOEPACK_LAYOUT_PANEL) {
        length = d->decoded_length;
        stored = malloc((size_t)length);
        assert_non_null(stored);
        assert_int_equal(moepack_panel_from_canonical(&w->t.matrices[d->first_matrix], d->matrix_count, bytes,
                                                      (size_t)d->canonical_length, stored, (size_t)length, NULL),
                         MOEPACK_OK);
    }
    pad_to(buf, length > SMALL ? PAGE : small_unit);
    section->offset = buf->size;
    section->stored_length = length;
    section->xxh3_stored = moepack_hash64(stored, (size_t)length);
    add_parts(w, section, stored);
    assert_non_null(mpk_buf_append(buf, stored, (size_t)length));
    if (stored != bytes) free(stored);
    free(bytes);
}

static uint8_t *expert_bytes(const writer *w, uint32_t block, uint32_t expert, uint32_t s)
{
    uint8_t *bytes = published(w, &w->t.descs[s], seed_of(block, expert, s));
    if (block == 0 && expert == w->spec->nan_expert && s == CONTAINER_SECTIONS - 1) bytes[5] = 255;
    return bytes;
}

static void store_record(writer *w, uint32_t shard, uint32_t block, uint32_t expert, moepack_record *record)
{
    mpk_buf *buf = &w->shards[shard];
    pad_to(buf, PAGE);
    record->shard = shard;
    record->schema = 0;
    record->offset = buf->size;
    /* Large sections first, then the small ones share pages (spec/container.md 7). */
    for (uint32_t s = 0; s < CONTAINER_SECTIONS; s++)
        if (w->t.descs[s].decoded_length > SMALL)
            store(w, shard, record->first_section + s, &w->t.descs[s], expert_bytes(w, block, expert, s), PAGE);
    bool first = true;
    for (uint32_t s = 0; s < CONTAINER_SECTIONS; s++) {
        if (w->t.descs[s].decoded_length > SMALL) continue;
        store(w, shard, record->first_section + s, &w->t.descs[s], expert_bytes(w, block, expert, s), first ? PAGE : 8);
        first = false;
    }
    const size_t end = buf->size;
    pad_to(buf, PAGE);
    if (block == 0 && expert == 0 && w->spec->dirty_padding) {
        assert_true(buf->size > end);
        buf->data[end] = 1;
    }
    record->length = buf->size - record->offset;
    if (block == 0 && expert == w->spec->wrong_canonical_expert)
        w->t.sections[record->first_section].xxh3_canonical ^= 1;
}

/* ---- tables ---- */

static void add_policy(writer *w)
{
    moepack_policy p;
    moepack_policy_init(&p);
    p.hidden = w->spec->hidden;
    p.expert_input = w->spec->latent;
    p.intermediate = w->spec->intermediate;
    p.top_k = w->spec->top_k;
    p.score = MOEPACK_SCORE_SIGMOID;
    p.latent = 1;
    p.latent_norm = 1;
    p.norm_eps = 1e-5;
    p.shared_width = w->spec->shared;
    assert_int_equal(moepack_policy_set(&p, "select", "biased", NULL), MOEPACK_OK);
    assert_int_equal(moepack_policy_set(&p, "renormalize", "sum_eps", NULL), MOEPACK_OK);
    p.renorm_eps = 1e-20;
    p.gated = 1;
    p.activation = p.shared_activation = MOEPACK_ACT_SITU;
    p.situ_beta = 4;
    p.situ_linear_beta = 25;
    p.scale = 1;
    w->t.policies[0].policy = p;
    w->t.policy_count = 1;
}

static void add_block(writer *w, uint32_t b)
{
    const container_block *spec = &w->spec->blocks[b];
    static const char *const stacks[] = {"model", "encoder", "decoder", "mtp"};
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s.layers.%u.block_sparse_moe.", stacks[spec->stack], spec->number);
    w->t.blocks[b] = (moepack_block){.stack = spec->stack,
                                     .number = spec->number,
                                     .prefix = intern(w, prefix),
                                     .experts = spec->experts,
                                     .first_record = w->t.record_count,
                                     .first_role = b * CONTAINER_ROLES,
                                     .role_count = CONTAINER_ROLES};
    for (uint32_t e = 0; e < spec->experts; e++) {
        moepack_record *record = &w->t.records[w->t.record_count++];
        if (b == 0 && e == w->spec->absent_expert) {
            *record = (moepack_record){.shard = MOEPACK_NO_SHARD};
            continue;
        }
        record->first_section = w->t.section_count;
        w->t.section_count += CONTAINER_SECTIONS;
    }
    w->t.block_count++;
}

static int compare_tensors(const void *pa, const void *pb)
{
    const moepack_tensor *a = pa, *b = pb;
    const uint32_t shorter = a->name.length < b->name.length ? a->name.length : b->name.length;
    const int order = memcmp(a->name.data, b->name.data, shorter);
    return order != 0 ? order : (a->name.length > b->name.length) - (a->name.length < b->name.length);
}

/* Role tensors of all blocks and one tensor that belongs to none, sorted by name. */
static void add_tensors(writer *w)
{
    for (uint32_t b = 0; b < w->spec->block_count; b++) {
        role_row rows[CONTAINER_ROLES];
        role_rows(w->spec, w->spec->blocks[b].experts, rows);
        for (uint32_t r = 0; r < CONTAINER_ROLES; r++) {
            char name[160];
            const moepack_str prefix = w->t.blocks[b].prefix;
            snprintf(name, sizeof name, "%.*s%s", (int)prefix.length, prefix.data, rows[r].name);
            const moepack_matrix m = matrix(rows[r].role, MOEPACK_PLANE_WEIGHT, rows[r].encoding,
                                            moepack_dtype_bits(rows[r].dtype), rows[r].rows, rows[r].cols);
            const uint32_t desc =
                add_desc(w, "", rows[r].dtype, rows[r].rows, rows[r].cols == 1 ? 0 : rows[r].cols, &m);
            w->t.tensors[w->t.tensor_count++] =
                (moepack_tensor){.name = intern(w, name), .desc = desc, .block = b, .section = w->t.section_count++};
        }
    }
    const uint32_t desc = add_desc(w, "", MOEPACK_DTYPE_F32, 64, 16, NULL);
    w->t.tensors[w->t.tensor_count++] = (moepack_tensor){.name = intern(w, "model.embed_tokens.weight"),
                                                         .desc = desc,
                                                         .block = MOEPACK_NO_BLOCK,
                                                         .section = w->t.section_count++};
    qsort(w->t.tensors, w->t.tensor_count, sizeof *w->t.tensors, compare_tensors);
    for (uint32_t i = 0; i < w->t.tensor_count; i++) {
        const moepack_tensor *tensor = &w->t.tensors[i];
        if (tensor->block == MOEPACK_NO_BLOCK) continue;
        const moepack_matrix *m = &w->t.matrices[w->t.descs[tensor->desc].first_matrix];
        w->t.roles[w->t.role_count++] = (moepack_role_entry){m->role, m->plane, i};
    }
}

static int compare_roles(const void *pa, const void *pb)
{
    const moepack_role_entry *a = pa, *b = pb;
    return (a->role > b->role) - (a->role < b->role);
}

/* Roles were collected in the order of tensor names: bring each block's into its own range, in ascending role. */
static void sort_roles(writer *w)
{
    moepack_role_entry *sorted = calloc(w->t.role_count + 1, sizeof *sorted);
    assert_non_null(sorted);
    size_t at = 0;
    for (uint32_t b = 0; b < w->t.block_count; b++)
        for (size_t i = 0; i < w->t.role_count; i++)
            if (w->t.tensors[w->t.roles[i].tensor].block == b) sorted[at++] = w->t.roles[i];
    for (uint32_t b = 0; b < w->t.block_count; b++)
        qsort(sorted + b * CONTAINER_ROLES, CONTAINER_ROLES, sizeof *sorted, compare_roles);
    free(w->t.roles);
    w->t.roles = sorted;
}

static void allocate(writer *w)
{
    uint32_t experts = 0, most = 0;
    for (uint32_t b = 0; b < w->spec->block_count; b++) {
        experts += w->spec->blocks[b].experts;
        if (w->spec->blocks[b].experts > most) most = w->spec->blocks[b].experts;
    }
    w->expert_shards = (most + w->spec->ids_per_shard - 1) / w->spec->ids_per_shard;
    mpk_tables *t = &w->t;
    const size_t tensors = CONTAINER_BLOCKS_MAX * CONTAINER_ROLES + 1;
    t->shards = calloc(w->expert_shards + 1, sizeof *t->shards);
    t->blocks = calloc(CONTAINER_BLOCKS_MAX, sizeof *t->blocks);
    t->schemas = calloc(1, sizeof *t->schemas);
    t->descs = calloc(CONTAINER_SECTIONS + tensors + 1, sizeof *t->descs);
    t->matrices = calloc(CONTAINER_SECTIONS + tensors, sizeof *t->matrices);
    t->dims = calloc(2 * (CONTAINER_SECTIONS + tensors + 1), sizeof *t->dims);
    t->policies = calloc(1, sizeof *t->policies);
    t->records = calloc(experts, sizeof *t->records);
    t->sections = calloc(experts * CONTAINER_SECTIONS + tensors + 1, sizeof *t->sections);
    t->parts = calloc(4096, sizeof *t->parts);
    t->tensors = calloc(tensors, sizeof *t->tensors);
    t->files = calloc(1, sizeof *t->files);
    t->roles = calloc(tensors, sizeof *t->roles);
    w->shards = calloc(w->expert_shards + 1, sizeof *w->shards);
    assert_non_null(w->shards);
}

static void describe(writer *w)
{
    const container_spec *s = w->spec;
    allocate(w);
    w->t.info = (moepack_info){.family = intern(w, "kimi_k3"),
                               .model_type = intern(w, "kimi_k3"),
                               .page_size = PAGE,
                               .writer_revision = 1,
                               .layout = s->layout,
                               .subset = s->absent_expert != UINT32_MAX};
    add_expert_matrix(w, "w1", MOEPACK_ROLE_GATE, s->intermediate, s->latent);
    add_expert_matrix(w, "w3", MOEPACK_ROLE_UP, s->intermediate, s->latent);
    add_expert_matrix(w, "w2", MOEPACK_ROLE_DOWN, s->latent, s->intermediate);
    w->t.schemas[0] = (mpk_schema_entry){0, CONTAINER_SECTIONS};
    w->t.schema_count = 1;
    add_policy(w);
    for (uint32_t b = 0; b < s->block_count; b++) add_block(w, b);
    add_tensors(w);
    sort_roles(w);
    w->t.files[0] = (moepack_source_file){.name = intern(w, "model.safetensors"),
                                          .kind = MOEPACK_SOURCE_SAFETENSORS,
                                          .section = w->t.section_count++,
                                          .length = 16};
    w->t.file_count = 1;
    for (uint32_t i = 0; i <= w->expert_shards; i++) {
        char name[40];
        if (i == 0)
            snprintf(name, sizeof name, "trunk-000.mpk");
        else
            snprintf(name, sizeof name, "experts-%04u-%04u.mpk", (i - 1) * s->ids_per_shard, i * s->ids_per_shard - 1);
        w->t.shards[i].name = intern(w, name);
        w->t.shards[i].kind = i == 0 ? MOEPACK_SHARD_TRUNK : MOEPACK_SHARD_EXPERTS;
        assert_non_null(mpk_buf_append(&w->shards[i], NULL, PAGE));
    }
    w->t.shard_count = w->expert_shards + 1;
}

static void fill_shards(writer *w)
{
    for (uint32_t i = 1; i <= w->expert_shards; i++)
        for (uint32_t b = 0; b < w->t.block_count; b++)
            for (uint32_t e = (i - 1) * w->spec->ids_per_shard; e < i * w->spec->ids_per_shard; e++) {
                if (e >= w->t.blocks[b].experts) break;
                moepack_record *record = &w->t.records[w->t.blocks[b].first_record + e];
                if (record->shard != MOEPACK_NO_SHARD) store_record(w, i, b, e, record);
            }
    /* Trunk sections were numbered in storage order. */
    const uint64_t first = w->t.section_count - 1 - w->t.tensor_count;
    for (uint64_t number = first; number < w->t.section_count - 1; number++)
        for (size_t i = 0; i < w->t.tensor_count; i++) {
            if (w->t.tensors[i].section != number) continue;
            const moepack_desc *d = &w->t.descs[w->t.tensors[i].desc];
            store(w, 0, number, d, published(w, d, seed_of(99, 0, (uint32_t)(number - first))), 64);
        }
    uint8_t *header = calloc(1, 17);
    assert_non_null(header);
    memcpy(header, "\x08\0\0\0\0\0\0\0{}      ", 16);
    const moepack_desc plain = {.canonical_length = 16, .decoded_length = 16};
    store(w, 0, w->t.files[0].section, &plain, header, 64);
}

static void write_file(const char *dir, const char *name, size_t name_length, const void *data, size_t size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%.*s", dir, (int)name_length, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static void finish_shard(writer *w, uint32_t i, const char *dir)
{
    moepack_shard *shard = &w->t.shards[i];
    mpk_buf *buf = &w->shards[i], tail = {0};
    moepack_error error = {0};
    assert_ok(i == 0 ? mpk_encode_trunk_tail(&w->t, i, &tail, &error) : mpk_encode_expert_tail(&w->t, i, &tail, &error),
              &error);
    pad_to(buf, PAGE);
    shard->tail_offset = buf->size;
    shard->tail_length = tail.size;
    shard->file_length = buf->size + tail.size;
    shard->root = moepack_hash128_of(tail.data, tail.size);
    assert_non_null(mpk_buf_append(buf, tail.data, tail.size));
    mpk_encode_shard_header(&w->t, i, buf->data);
    write_file(dir, shard->name.data, shard->name.length, buf->data, buf->size);
    free(tail.data);
}

void container_write(const container_spec *spec, const char *dir)
{
    writer w = {.spec = spec};
    moepack_error error = {0};
    mpk_buf index = {0};
    make_dir(dir);
    describe(&w);
    fill_shards(&w);
    assert_ok(mpk_plan_id(&w.t, &w.t.info.plan_id, &error), &error);
    for (uint32_t i = 0; i <= w.expert_shards; i++) finish_shard(&w, i, dir);
    assert_ok(mpk_encode_index(&w.t, &index, &error), &error);
    write_file(dir, "index.mpk", strlen("index.mpk"), index.data, index.size);
    free(index.data);
    for (uint32_t i = 0; i <= w.expert_shards; i++) free(w.shards[i].data);
    free(w.shards);
    mpk_tables_free(&w.t);
}
