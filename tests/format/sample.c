#include "sample.h"

#include "error.h"
#include "hash.h"
#include "names.h"
#include "policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t sample_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static moepack_str str(sample *s, const char *text)
{
    moepack_str out;
    assert_true(mpk_tables_string(&s->t, text, strlen(text), &out));
    return out;
}

#define PUSH(array, count, ...)                                    \
    do {                                                           \
        assert_true(mpk_grow(&(array), (count), sizeof *(array))); \
        (array)[(count)++] = __VA_ARGS__;                          \
    } while (0)

typedef struct desc_spec {
    const char *name;
    moepack_dtype dtype;
    moepack_layout layout;
    bool fused;
    uint32_t rank;
    uint64_t dims[3];
    uint32_t matrix_count;
    moepack_matrix matrices[2];
} desc_spec;

#define WEIGHT(r, e, b, n, k)                                                                                      \
    {                                                                                                              \
        .role = r, .plane = MOEPACK_PLANE_WEIGHT, .encoding = e, .bits = b, .rows = n, .cols = k, .row_stride = k, \
        .col_stride = 1                                                                                            \
    }
#define SCALE(r, e, b, n, k, g)                                                                              \
    {                                                                                                        \
        .role = r, .plane = MOEPACK_PLANE_SCALE, .encoding = e, .bits = b, .group_rows = 1, .group_cols = g, \
        .rows = n, .cols = k, .row_stride = k, .col_stride = 1                                               \
    }

/* Schema 0 is the first six, schema 1 the next three, the rest are trunk tensors. */
static const desc_spec desc_specs[] = {
    {"experts.{expert}.w1.weight_packed",
     MOEPACK_DTYPE_U8,
     MOEPACK_LAYOUT_PANEL,
     false,
     2,
     {17, 20},
     1,
     {WEIGHT(MOEPACK_ROLE_GATE, MOEPACK_ENC_E2M1, 4, 17, 40)}},
    {"experts.{expert}.w1.weight_scale",
     MOEPACK_DTYPE_U8,
     MOEPACK_LAYOUT_PANEL,
     false,
     2,
     {17, 2},
     1,
     {SCALE(MOEPACK_ROLE_GATE, MOEPACK_ENC_E8M0, 8, 17, 2, 32)}},
    {"experts.{expert}.w2.weight_packed",
     MOEPACK_DTYPE_U8,
     MOEPACK_LAYOUT_PANEL,
     false,
     2,
     {64, 48},
     1,
     {WEIGHT(MOEPACK_ROLE_DOWN, MOEPACK_ENC_E2M1, 4, 64, 96)}},
    {"experts.{expert}.w2.weight_scale",
     MOEPACK_DTYPE_U8,
     MOEPACK_LAYOUT_CANONICAL,
     false,
     2,
     {64, 3},
     1,
     {SCALE(MOEPACK_ROLE_DOWN, MOEPACK_ENC_E8M0, 8, 64, 3, 32)}},
    {"experts.{expert}.w2.shape", MOEPACK_DTYPE_I64, MOEPACK_LAYOUT_CANONICAL, false, 1, {2}, 0, {{0}}},
    {"experts.{expert}.nothing", MOEPACK_DTYPE_BF16, MOEPACK_LAYOUT_CANONICAL, false, 2, {0, 7}, 0, {{0}}},

    /* rows of gate and up take turns: [12, 10], as a fused tensor of all experts */
    {"experts.gate_up",
     MOEPACK_DTYPE_BF16,
     MOEPACK_LAYOUT_PANEL,
     true,
     2,
     {12, 10},
     2,
     {{.role = MOEPACK_ROLE_GATE,
       .plane = MOEPACK_PLANE_WEIGHT,
       .encoding = MOEPACK_ENC_BF16,
       .bits = 16,
       .rows = 6,
       .cols = 10,
       .base = 0,
       .row_stride = 20,
       .col_stride = 1},
      {.role = MOEPACK_ROLE_UP,
       .plane = MOEPACK_PLANE_WEIGHT,
       .encoding = MOEPACK_ENC_BF16,
       .bits = 16,
       .rows = 6,
       .cols = 10,
       .base = 10,
       .row_stride = 20,
       .col_stride = 1}}},
    /* transposed: [16, 40] holds a matrix of 40 rows and 16 columns */
    {"experts.down",
     MOEPACK_DTYPE_F32,
     MOEPACK_LAYOUT_PANEL,
     true,
     2,
     {16, 40},
     1,
     {{.role = MOEPACK_ROLE_DOWN,
       .plane = MOEPACK_PLANE_WEIGHT,
       .encoding = MOEPACK_ENC_F32,
       .bits = 32,
       .rows = 40,
       .cols = 16,
       .row_stride = 1,
       .col_stride = 40}}},
    {"experts.down_bias",
     MOEPACK_DTYPE_F32,
     MOEPACK_LAYOUT_CANONICAL,
     true,
     1,
     {40},
     1,
     {{.role = MOEPACK_ROLE_DOWN,
       .plane = MOEPACK_PLANE_BIAS,
       .encoding = MOEPACK_ENC_F32,
       .bits = 32,
       .rows = 40,
       .cols = 1,
       .row_stride = 1,
       .col_stride = 1}}},

    {"",
     MOEPACK_DTYPE_F32,
     MOEPACK_LAYOUT_PANEL,
     false,
     2,
     {3, 20},
     1,
     {WEIGHT(MOEPACK_ROLE_ROUTER, MOEPACK_ENC_F32, 32, 3, 20)}},
    {"", MOEPACK_DTYPE_F32, MOEPACK_LAYOUT_CANONICAL, false, 1, {3}, 0, {{0}}},
    {"", MOEPACK_DTYPE_F64, MOEPACK_LAYOUT_CANONICAL, false, 0, {0}, 0, {{0}}},
    {"", MOEPACK_DTYPE_BF16, MOEPACK_LAYOUT_CANONICAL, false, 2, {0, 4}, 0, {{0}}},
    {"", MOEPACK_DTYPE_F6_E2M3, MOEPACK_LAYOUT_CANONICAL, false, 2, {4, 1000}, 0, {{0}}},
    {"", MOEPACK_DTYPE_U8, MOEPACK_LAYOUT_CANONICAL, false, 1, {9u << 20}, 0, {{0}}},
};
enum {
    ROUTER_DESC = 9,
    BIAS_DESC,
    SCALAR_DESC,
    EMPTY_DESC,
    SIX_BIT_DESC,
    BIG_DESC
};

static void add_desc(sample *s, const desc_spec *spec)
{
    moepack_desc d = {
        .name = str(s, spec->name),
        .dtype = spec->dtype,
        .layout = spec->layout,
        .fused = spec->fused,
        .rank = spec->rank,
        .first_dim = (uint32_t)s->t.dim_count,
        .first_matrix = (uint32_t)s->t.matrix_count,
        .matrix_count = spec->matrix_count,
    };
    uint64_t bits = moepack_dtype_bits(spec->dtype);
    for (uint32_t i = 0; i < spec->rank; ++i) {
        PUSH(s->t.dims, s->t.dim_count, spec->dims[i]);
        bits *= spec->dims[i];
    }
    d.canonical_length = d.decoded_length = bits / 8;
    if (d.layout == MOEPACK_LAYOUT_PANEL) d.decoded_length = 0;
    for (uint32_t i = 0; i < spec->matrix_count; ++i) {
        uint64_t length;
        PUSH(s->t.matrices, s->t.matrix_count, spec->matrices[i]);
        assert_true(moepack_panel_length(&spec->matrices[i], &length));
        if (d.layout == MOEPACK_LAYOUT_PANEL) d.decoded_length += length;
    }
    PUSH(s->t.descs, s->t.desc_count, d);
}

/* Content of one section, and its entry; the place is set later. */
static void add_section(sample *s, const moepack_desc *d, uint64_t canonical, uint64_t decoded)
{
    size_t n = s->t.section_count;
    assert_true(mpk_grow(&s->canonical, n, sizeof *s->canonical));
    assert_true(mpk_grow(&s->stored, n, sizeof *s->stored));
    assert_true(mpk_grow(&s->canonical_size, n, sizeof *s->canonical_size));
    uint8_t *bytes = malloc(canonical + 1), *stored = malloc(decoded + 1);
    assert_non_null(bytes);
    assert_non_null(stored);
    uint64_t state = 1000 + n;
    for (uint64_t i = 0; i < canonical; ++i) bytes[i] = (uint8_t)sample_random(&state);
    if (d != NULL && d->layout == MOEPACK_LAYOUT_PANEL) {
        moepack_error error;
        assert_status(MOEPACK_OK,
                      moepack_panel_from_canonical(s->t.matrices + d->first_matrix, d->matrix_count, bytes, canonical,
                                                   stored, decoded, &error),
                      &error);
    } else {
        memcpy(stored, bytes, canonical);
    }
    s->canonical[n] = bytes;
    s->stored[n] = stored;
    s->canonical_size[n] = canonical;
    moepack_section section = {
        .stored_length = decoded,
        .xxh3_stored = moepack_hash64(stored, decoded),
        .xxh3_canonical = moepack_hash64(bytes, canonical),
        .first_part = MOEPACK_NO_PARTS,
    };
    if (decoded > MPK_PARTED) {
        section.first_part = (uint32_t)s->t.part_count;
        for (uint64_t done = 0; done < decoded; done += MPK_PART) {
            uint32_t length = (uint32_t)(decoded - done < MPK_PART ? decoded - done : MPK_PART);
            mpk_part_entry part = {length, moepack_hash64(stored + done, length)};
            PUSH(s->t.parts, s->t.part_count, part);
        }
    }
    PUSH(s->t.sections, s->t.section_count, section);
}

static uint64_t up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Places the sections of a record from `at` on; returns where it ends. */
static uint64_t place_record(sample *s, uint64_t first, uint32_t count, uint64_t at)
{
    bool first_small = true;
    for (uint32_t k = 0; k < count; ++k) {
        moepack_section *section = &s->t.sections[first + k];
        if (section->stored_length <= MPK_SMALL) continue;
        section->offset = up(at, 4096);
        at = section->offset + section->stored_length;
    }
    for (uint32_t k = 0; k < count; ++k) {
        moepack_section *section = &s->t.sections[first + k];
        if (section->stored_length == 0 || section->stored_length > MPK_SMALL) continue;
        section->offset = up(at, first_small ? 4096 : 8);
        at = section->offset + section->stored_length;
        first_small = false;
    }
    return up(at, 4096);
}

static void add_experts(sample *s, uint64_t *shard_end)
{
    /* schema of expert e in block b; -1: absent */
    static const int schema_of[2][3] = {{0, 0, 1}, {0, -1, 1}};
    for (uint32_t b = 0; b < 2; ++b) {
        for (uint32_t e = 0; e < 3; ++e) {
            if (schema_of[b][e] < 0) {
                PUSH(s->t.records, s->t.record_count, (moepack_record){.shard = MOEPACK_NO_SHARD});
                continue;
            }
            uint32_t schema = (uint32_t)schema_of[b][e], shard = e == 2 ? 2 : 1;
            const mpk_schema_entry entry = s->t.schemas[schema];
            moepack_record r = {shard, schema, shard_end[shard], 0, s->t.section_count};
            for (uint32_t k = 0; k < entry.count; ++k) {
                const moepack_desc *d = &s->t.descs[entry.first_desc + k];
                add_section(s, d, d->canonical_length, d->decoded_length);
            }
            shard_end[shard] = place_record(s, r.first_section, entry.count, r.offset);
            r.length = shard_end[shard] - r.offset;
            PUSH(s->t.records, s->t.record_count, r);
        }
    }
}

static void place_trunk(sample *s, uint64_t section, uint64_t *end)
{
    moepack_section *e = &s->t.sections[section];
    if (e->stored_length == 0) return;
    e->offset = up(*end, e->stored_length <= MPK_SMALL ? 64 : 4096);
    *end = e->offset + e->stored_length;
}

static void add_trunk(sample *s, unsigned flags, uint64_t *end)
{
    /* in order of name; storage rank: role tensors of block 0, of block 1, then the others in file order */
    static const struct {
        const char *name;
        uint32_t desc, file, block, rank;
    } specs[] = {
        {"empty", EMPTY_DESC, 1, MOEPACK_NO_BLOCK, 6},      {"layers.1.moe.gate.bias", BIAS_DESC, 0, 0, 1},
        {"layers.1.moe.gate.weight", ROUTER_DESC, 0, 0, 0}, {"layers.2.moe.gate.bias", BIAS_DESC, 1, 1, 3},
        {"layers.2.moe.gate.weight", ROUTER_DESC, 1, 1, 2}, {"scalar", SCALAR_DESC, 0, MOEPACK_NO_BLOCK, 4},
        {"six", SIX_BIT_DESC, 0, MOEPACK_NO_BLOCK, 5},      {"six", SIX_BIT_DESC, 1, MOEPACK_NO_BLOCK, 7},
        {"zbig", BIG_DESC, 1, MOEPACK_NO_BLOCK, 8},
    };
    uint32_t n = (flags & SAMPLE_BIG) != 0 ? 9 : 8;
    uint64_t first = s->t.section_count;
    for (uint32_t rank = 0; rank < n; ++rank) {
        for (uint32_t i = 0; i < n; ++i) {
            if (specs[i].rank != rank) continue;
            const moepack_desc *d = &s->t.descs[specs[i].desc];
            add_section(s, d, d->canonical_length, d->decoded_length);
            place_trunk(s, first + rank, end);
        }
    }
    for (uint32_t i = 0; i < n; ++i) {
        moepack_tensor t = {str(s, specs[i].name), specs[i].desc,        specs[i].file, 0,
                            specs[i].block,        first + specs[i].rank};
        PUSH(s->t.tensors, s->t.tensor_count, t);
    }
    static const moepack_role_entry roles[] = {{MOEPACK_ROLE_ROUTER, MOEPACK_PLANE_WEIGHT, 2},
                                               {MOEPACK_ROLE_ROUTER_BIAS, MOEPACK_PLANE_WEIGHT, 1},
                                               {MOEPACK_ROLE_ROUTER, MOEPACK_PLANE_WEIGHT, 4},
                                               {MOEPACK_ROLE_ROUTER_BIAS, MOEPACK_PLANE_WEIGHT, 3}};
    for (uint32_t i = 0; i < 4; ++i) PUSH(s->t.roles, s->t.role_count, roles[i]);
}

static void add_files(sample *s, uint64_t *end)
{
    static const struct {
        const char *name;
        moepack_source_kind kind;
        uint64_t stored, length;
    } specs[] = {
        {"model-00001.safetensors", MOEPACK_SOURCE_SAFETENSORS, 300, 90000},
        {"model-00002.safetensors", MOEPACK_SOURCE_SAFETENSORS, 3000, 70000},
        {"model.safetensors.index.json", MOEPACK_SOURCE_INDEX_JSON, 411, 411},
        {"config.json", MOEPACK_SOURCE_CONFIG, 77, 77},
        {"empty.txt", MOEPACK_SOURCE_SIDE, 0, 0},
        {"sub/tokenizer.model", MOEPACK_SOURCE_SIDE, 5000, 5000},
    };
    for (uint32_t i = 0; i < sizeof specs / sizeof specs[0]; ++i) {
        uint64_t section = s->t.section_count;
        add_section(s, NULL, specs[i].stored, specs[i].stored);
        place_trunk(s, section, end);
        moepack_source_file f = {str(s, specs[i].name), specs[i].kind, 0, section, specs[i].length, {i * 11u, i * 7u}};
        PUSH(s->t.files, s->t.file_count, f);
    }
}

static void add_policies(sample *s)
{
    moepack_error error;
    mpk_policy_entry p = {.overridden = 0};
    moepack_policy_init(&p.policy);
    p.policy.hidden = p.policy.expert_input = 40;
    p.policy.intermediate = 17;
    p.policy.top_k = 2;
    PUSH(s->t.policies, s->t.policy_count, p);
    assert_status(MOEPACK_OK, moepack_policy_set(&p.policy, "score", "sigmoid", &error), &error);
    assert_status(MOEPACK_OK, moepack_policy_set(&p.policy, "scale", "2.5", &error), &error);
    p.overridden = UINT64_C(1) << 10 | UINT64_C(1) << 4; /* scale and score */
    PUSH(s->t.policies, s->t.policy_count, p);
}

void sample_make(sample *s, unsigned flags)
{
    memset(s, 0, sizeof *s);
    moepack_error error;
    s->t.info = (moepack_info){
        .canonical_root = {0x1111, 0x2222},
        .family = str(s, "sample_family"),
        .model_type = str(s, "sample"),
        .page_size = MPK_PAGE_SIZE,
        .writer_revision = MPK_WRITER_REVISION,
        .layout = MOEPACK_LAYOUT_PANEL,
        .subset = true,
        .source_bytes = 12345,
        .source_tensors = 40,
    };
    for (size_t i = 0; i < sizeof desc_specs / sizeof desc_specs[0]; ++i) add_desc(s, &desc_specs[i]);
    PUSH(s->t.schemas, s->t.schema_count, (mpk_schema_entry){0, 6});
    PUSH(s->t.schemas, s->t.schema_count, (mpk_schema_entry){6, 3});
    add_policies(s);
    static const char *const names[] = {"trunk-000.mpk", "experts-0000-0001.mpk", "experts-0002-0002.mpk"};
    for (uint32_t i = 0; i < 3; ++i) {
        moepack_shard shard = {.name = str(s, names[i]), .kind = i == 0 ? MOEPACK_SHARD_TRUNK : MOEPACK_SHARD_EXPERTS};
        PUSH(s->t.shards, s->t.shard_count, shard);
    }
    PUSH(s->t.blocks, s->t.block_count, (moepack_block){MOEPACK_STACK_MAIN, 1, str(s, "layers.1.moe."), 3, 0, 0, 0, 2});
    PUSH(s->t.blocks, s->t.block_count, (moepack_block){MOEPACK_STACK_MTP, 0, str(s, "layers.2.moe."), 3, 1, 3, 2, 2});
    uint64_t end[3] = {4096, 4096, 4096};
    add_experts(s, end);
    add_trunk(s, flags, &end[0]);
    add_files(s, &end[0]);
    for (uint32_t i = 0; i < 3; ++i) {
        moepack_shard *shard = &s->t.shards[i];
        shard->tail_offset = up(end[i], 4096);
        assert_status(MOEPACK_OK, mpk_tail_length(&s->t, i, &shard->tail_length, &error), &error);
        shard->file_length = shard->tail_offset + shard->tail_length;
    }
    assert_status(MOEPACK_OK, mpk_plan_id(&s->t, &s->t.info.plan_id, &error), &error);
    for (uint32_t i = 0; i < 3; ++i) {
        mpk_buf tail = {0};
        if (i == 0)
            assert_status(MOEPACK_OK, mpk_encode_trunk_tail(&s->t, i, &tail, &error), &error);
        else
            assert_status(MOEPACK_OK, mpk_encode_expert_tail(&s->t, i, &tail, &error), &error);
        assert_int_equal(tail.size, s->t.shards[i].tail_length);
        s->t.shards[i].root = moepack_hash128_of(tail.data, tail.size);
        free(tail.data);
    }
}

void sample_free(sample *s)
{
    for (size_t i = 0; i < s->t.section_count; ++i) {
        free(s->canonical[i]);
        free(s->stored[i]);
    }
    free(s->canonical);
    free(s->stored);
    free(s->canonical_size);
    mpk_tables_free(&s->t);
}

/* The shard that holds a section, found from its owner. */
static uint32_t shard_of(const sample *s, uint64_t section)
{
    for (size_t i = 0; i < s->t.record_count; ++i) {
        const moepack_record *r = &s->t.records[i];
        if (r->shard == MOEPACK_NO_SHARD) continue;
        if (section >= r->first_section && section - r->first_section < s->t.schemas[r->schema].count) return r->shard;
    }
    return 0;
}

void sample_encode_shard(const sample *s, uint32_t shard, mpk_buf *out)
{
    moepack_error error;
    const moepack_shard *entry = &s->t.shards[shard];
    assert_non_null(mpk_buf_append(out, NULL, (size_t)entry->tail_offset));
    mpk_encode_shard_header(&s->t, shard, out->data);
    for (size_t i = 0; i < s->t.section_count; ++i) {
        const moepack_section *section = &s->t.sections[i];
        if (section->stored_length > 0 && shard_of(s, i) == shard)
            memcpy(out->data + section->offset, s->stored[i], (size_t)section->stored_length);
    }
    if (shard == 0)
        assert_status(MOEPACK_OK, mpk_encode_trunk_tail(&s->t, shard, out, &error), &error);
    else
        assert_status(MOEPACK_OK, mpk_encode_expert_tail(&s->t, shard, out, &error), &error);
    assert_int_equal(out->size, entry->file_length);
}

static void write_file(const char *dir, const char *name, size_t name_length, const mpk_buf *bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%.*s", dir, (int)name_length, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes->data, 1, bytes->size, file), bytes->size);
    assert_int_equal(fclose(file), 0);
}

void sample_write(const sample *s, const char *dir)
{
    moepack_error error;
    mpk_buf bytes = {0};
    for (uint32_t i = 0; i < s->t.shard_count; ++i) {
        bytes.size = 0;
        sample_encode_shard(s, i, &bytes);
        write_file(dir, s->t.shards[i].name.data, s->t.shards[i].name.length, &bytes);
    }
    bytes.size = 0;
    assert_status(MOEPACK_OK, mpk_encode_index(&s->t, &bytes, &error), &error);
    write_file(dir, "index.mpk", 9, &bytes);
    free(bytes.data);
}

moepack_index *sample_open(const sample *s, mpk_buf *bytes)
{
    moepack_error error;
    moepack_index *index = NULL;
    assert_status(MOEPACK_OK, mpk_encode_index(&s->t, bytes, &error), &error);
    assert_status(MOEPACK_OK, moepack_index_open(bytes->data, bytes->size, "index.mpk", &index, &error), &error);
    return index;
}

/* ---- walking an accepted index ---- */

static void walk_str(moepack_str text)
{
    volatile char sum = 0; /* reads every byte, so that a sanitizer sees a wrong one */
    for (uint32_t i = 0; i < text.length; ++i) sum = (char)(sum + text.data[i]);
    (void)sum;
}

static void walk_section(const moepack_index *x, uint64_t i, uint32_t shard)
{
    moepack_section s;
    moepack_shard entry;
    assert_true(i < moepack_index_sections(x));
    assert_true(shard < moepack_index_shards(x));
    moepack_index_section(x, i, &s);
    moepack_index_shard(x, shard, &entry);
    if (s.stored_length == 0) {
        assert_true(s.offset == 0);
    } else {
        assert_true(s.offset >= 4096 && s.offset <= entry.tail_offset);
        assert_true(s.stored_length <= entry.tail_offset - s.offset);
    }
    if (s.first_part == MOEPACK_NO_PARTS) return;
    uint64_t sum = 0, parts = 0;
    for (uint32_t part = s.first_part; sum < s.stored_length; ++part, ++parts) {
        uint32_t stored;
        uint64_t hash;
        moepack_index_part(x, part, &stored, &hash);
        assert_true(parts < moepack_index_file_length(x) / 16); /* an endless walk would be an error of its own */
        sum += stored;
    }
    assert_true(sum == s.stored_length);
}

static void walk_descs(const moepack_index *x)
{
    moepack_desc d;
    for (uint32_t i = 0;; ++i) {
        moepack_index_desc(x, i, &d);
        if (d.dtype == MOEPACK_DTYPE_INVALID) break;
        walk_str(d.name);
        uint64_t panel = 0;
        for (uint32_t k = 0; k < d.rank; ++k) moepack_index_dim(x, d.first_dim + k);
        for (uint32_t k = 0; k < d.matrix_count; ++k) {
            moepack_matrix m;
            uint64_t length;
            moepack_index_matrix(x, d.first_matrix + k, &m);
            assert_true(m.bits != 0);
            assert_true(moepack_panel_length(&m, &length) || d.layout == MOEPACK_LAYOUT_CANONICAL);
            if (d.layout == MOEPACK_LAYOUT_PANEL) panel += length;
        }
        assert_true(d.decoded_length == (d.layout == MOEPACK_LAYOUT_PANEL ? panel : d.canonical_length));
    }
}

static void walk_block(const moepack_index *x, uint32_t b, uint64_t *sections)
{
    char label[MOEPACK_LABEL_MAX], name[400], again[400];
    moepack_block block;
    moepack_policy policy;
    moepack_index_block(x, b, &block);
    walk_str(block.prefix);
    moepack_index_label(x, b, label);
    assert_true(moepack_index_find_block(x, label) == b);
    assert_int_equal(moepack_index_policy(x, block.policy, &policy, NULL, NULL), MOEPACK_OK);
    assert_int_equal(moepack_policy_check(&policy, block.experts, NULL), MOEPACK_OK);
    for (uint32_t e = 0; e < block.experts; ++e) {
        moepack_record r;
        uint32_t first, count;
        moepack_index_record(x, block.first_record + e, &r);
        if (r.shard == MOEPACK_NO_SHARD) continue;
        moepack_index_schema(x, r.schema, &first, &count);
        assert_true(r.first_section == *sections);
        *sections += count;
        for (uint32_t k = 0; k < count; ++k) {
            walk_section(x, r.first_section + k, r.shard);
            size_t length = moepack_index_section_name(x, b, e, k, name, sizeof name);
            assert_true(length > 0);
            assert_true(moepack_index_section_name(x, b, e, k, again, 5) == length);
        }
    }
    for (uint32_t i = 0; i < block.role_count; ++i) {
        moepack_role_entry role;
        moepack_index_role(x, block.first_role + i, &role);
        assert_true(role.tensor < moepack_index_tensors(x));
    }
}

void sample_walk(const moepack_index *x)
{
    moepack_info info;
    uint64_t sections = 0;
    moepack_index_info(x, &info);
    walk_str(info.family);
    walk_str(info.model_type);
    walk_descs(x);
    for (uint32_t i = 0; i < moepack_index_blocks(x); ++i) walk_block(x, i, &sections);
    for (uint32_t i = 0; i < moepack_index_tensors(x); ++i) {
        moepack_tensor t;
        moepack_index_tensor(x, i, &t);
        walk_section(x, t.section, t.shard);
        assert_true(t.section >= sections);
        uint32_t found = moepack_index_find_tensor(x, t.name.data, t.name.length);
        assert_true(found <= i); /* the first of that name */
    }
    for (uint32_t i = 0; i < moepack_index_source_files(x); ++i) {
        moepack_source_file f;
        moepack_index_source_file(x, i, &f);
        walk_str(f.name);
        walk_section(x, f.section, f.shard);
    }
    for (uint32_t i = 0; i < moepack_index_shards(x); ++i) {
        mpk_buf tail = {0};
        assert_int_equal(mpk_index_tail(x, i, &tail, NULL), MOEPACK_OK);
        free(tail.data);
    }
}
