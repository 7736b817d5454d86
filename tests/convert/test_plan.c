/* The planner on hand-made sources: every rule of spec/container.md sections 4, 7 and 8 about where bytes go, checked
 * against an independent account of the plan. No files are involved. */
#include "test_pack_files.h"

#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a source under construction ---- */

typedef struct model {
    mpk_source source;
    mpk_source_schema schemas[2];
    mpk_source_block blocks[8];
    mpk_source_policy policies[2];
    mpk_source_file files[8];
    mpk_source_tensor tensors[4096];
    uint64_t end[8]; /* of each file so far */
    char names[4096][96];
    uint64_t dims[4096][4];
    uint32_t sections[8][1024];
    uint8_t kept[4096];
} model;

static model *new_model(uint32_t weight_files)
{
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->source = (mpk_source){.dir = (char *)(uintptr_t) "/nowhere",
                             .family = "made_up",
                             .model_type = (char *)(uintptr_t) "made_up_text",
                             .files = m->files,
                             .tensors = m->tensors,
                             .blocks = m->blocks,
                             .schemas = m->schemas,
                             .policies = m->policies};
    static const char *const names[] = {"a.safetensors", "b.safetensors", "c.safetensors"};
    for (uint32_t i = 0; i < weight_files; i++) {
        m->files[i] = (mpk_source_file){
            .name = (char *)(uintptr_t)names[i], .kind = MOEPACK_SOURCE_SAFETENSORS, .data_start = 1000 + i};
        m->end[i] = 1000 + i;
    }
    m->source.file_count = weight_files;
    m->policies[0].policy.hidden = 64;
    m->policies[1].policy.hidden = 128;
    m->source.policy_count = 2;
    memset(m->kept, 1, sizeof m->kept);
    return m;
}

static uint32_t add_tensor(model *m, uint32_t file, const char *name, moepack_dtype dtype, uint32_t rank,
                           const uint64_t *dims, uint32_t block, moepack_role role, moepack_encoding encoding)
{
    uint32_t i = m->source.tensor_count++;
    uint64_t length = moepack_dtype_bits(dtype) / 8;
    snprintf(m->names[i], sizeof m->names[i], "%s", name);
    for (uint32_t d = 0; d < rank; d++) {
        m->dims[i][d] = dims[d];
        length *= dims[d];
    }
    m->tensors[i] = (mpk_source_tensor){.name = m->names[i],
                                        .dims = m->dims[i],
                                        .offset = m->end[file],
                                        .length = length,
                                        .file = file,
                                        .block = block,
                                        .rank = rank,
                                        .dtype = (uint16_t)dtype,
                                        .role = (uint16_t)role,
                                        .plane = role ? MOEPACK_PLANE_WEIGHT : MOEPACK_PLANE_NONE,
                                        .encoding = (uint16_t)encoding};
    m->end[file] += length;
    return i;
}

static void add_section(mpk_source_schema *schema, const char *pattern, bool fused, moepack_dtype dtype, uint32_t rank,
                        uint64_t rows, uint64_t cols, const moepack_matrix *matrix)
{
    mpk_source_section *s = &schema->sections[schema->count++];
    *s = (mpk_source_section){.pattern = pattern, .dtype = dtype, .fused = fused, .rank = rank, .dims = {rows, cols}};
    s->length = moepack_dtype_bits(dtype) / 8 * (rank > 0 ? rows : 1) * (rank > 1 ? cols : 1);
    if (matrix) {
        s->matrices[0] = *matrix;
        s->matrix_count = 1;
    }
}

static moepack_matrix weights(uint64_t rows, uint64_t cols)
{
    return (moepack_matrix){.role = MOEPACK_ROLE_GATE,
                            .plane = MOEPACK_PLANE_WEIGHT,
                            .encoding = MOEPACK_ENC_E2M1,
                            .bits = 4,
                            .rows = rows,
                            .cols = cols,
                            .row_stride = cols,
                            .col_stride = 1};
}

/* Schema 0: a packed weight of 20 x 192 codes (1,920 bytes published, 3,072 in tiles of 16 rows), a large opaque
 * tensor, a scalar, an empty one, a small vector. */
static void make_schema(model *m)
{
    moepack_matrix w = weights(20, 192);
    add_section(&m->schemas[0], "e.{expert}.w", false, MOEPACK_DTYPE_U8, 2, 20, 96, &w);
    add_section(&m->schemas[0], "e.{expert}.scalar", false, MOEPACK_DTYPE_F32, 0, 0, 0, NULL);
    add_section(&m->schemas[0], "e.{expert}.none", false, MOEPACK_DTYPE_BF16, 2, 0, 7, NULL);
    add_section(&m->schemas[0], "e.{expert}.big", false, MOEPACK_DTYPE_U8, 2, 50, 101, NULL);
    add_section(&m->schemas[0], "e.{expert}.odd", false, MOEPACK_DTYPE_U8, 1, 13, 0, NULL);
    m->source.schema_count = 1;
}

static uint32_t add_block(model *m, moepack_stack stack, uint32_t number, uint32_t experts, uint32_t policy,
                          char *prefix)
{
    uint32_t b = m->source.block_count++;
    m->blocks[b] = (mpk_source_block){.stack = stack,
                                      .number = number,
                                      .prefix = prefix,
                                      .experts = experts,
                                      .policy = policy,
                                      .selected = true,
                                      .section = m->sections[b]};
    memset(m->sections[b], 0xFF, sizeof m->sections[b]);
    return b;
}

static void add_expert(model *m, uint32_t file, uint32_t block, uint32_t expert)
{
    const mpk_source_schema *schema = &m->schemas[m->blocks[block].schema];
    for (uint32_t s = 0; s < schema->count; s++) {
        char name[96], id[16];
        snprintf(id, sizeof id, "%u", expert);
        const char *rest = strstr(schema->sections[s].pattern, "{expert}");
        snprintf(name, sizeof name, "%se.%s%s", m->blocks[block].prefix, id, rest + strlen("{expert}"));
        m->sections[block][expert * schema->count + s] =
            add_tensor(m, file, name, schema->sections[s].dtype, schema->sections[s].rank, schema->sections[s].dims,
                       block, MOEPACK_ROLE_NONE, MOEPACK_ENC_NONE);
    }
}

static int tensor_order(const void *left, const void *right)
{
    const mpk_source_tensor *a = left, *b = right;
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    if (a->length != b->length) return a->length < b->length ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Tensors were added file by file but not in file order: sort, and renumber the experts' sections. */
static void finish(model *m)
{
    qsort(m->tensors, m->source.tensor_count, sizeof *m->tensors, tensor_order);
    uint32_t place[4096];
    for (uint32_t i = 0; i < m->source.tensor_count; i++)
        place[(size_t)(m->tensors[i].name - m->names[0]) / sizeof m->names[0]] = i;
    for (uint32_t b = 0; b < m->source.block_count; b++)
        for (uint32_t i = 0; i < m->blocks[b].experts * m->schemas[m->blocks[b].schema].count; i++)
            if (m->sections[b][i] != MPK_NO_TENSOR) m->sections[b][i] = place[m->sections[b][i]];
    for (uint32_t f = 0; f < m->source.file_count; f++)
        if (m->files[f].kind == MOEPACK_SOURCE_SAFETENSORS) m->files[f].size = m->end[f];
    m->source.files[m->source.file_count++] =
        (mpk_source_file){.name = (char *)(uintptr_t) "config.json", .kind = MOEPACK_SOURCE_CONFIG, .size = 300};
    m->source.files[m->source.file_count++] = (mpk_source_file){
        .name = (char *)(uintptr_t) "tokenizer.json", .kind = MOEPACK_SOURCE_SIDE, .size = (9 << 20) + 5};
    m->source.files[m->source.file_count++] =
        (mpk_source_file){.name = (char *)(uintptr_t) "void.txt", .kind = MOEPACK_SOURCE_SIDE, .size = 0};
}

/* Three blocks of 10, 10 and 6 experts in two files, experts not in order, and a trunk. */
static model *usual_model(void)
{
    model *m = new_model(2);
    make_schema(m);
    add_block(m, MOEPACK_STACK_MAIN, 1, 10, 0, (char *)(uintptr_t) "l.1.");
    add_block(m, MOEPACK_STACK_MAIN, 2, 10, 0, (char *)(uintptr_t) "l.2.");
    add_block(m, MOEPACK_STACK_MTP, 0, 6, 1, (char *)(uintptr_t) "mtp.0.");
    for (uint32_t b = 0; b < 3; b++)
        for (uint32_t e = m->blocks[b].experts; e-- > 0;) add_expert(m, (b + e) % 2, b, e); /* files alternate */
    const uint64_t router[] = {10, 64}, bias[] = {10}, norm[] = {64}, down[] = {64, 40}, embed[] = {3000, 64},
                   empty[] = {0, 5};
    add_tensor(m, 1, "l.1.shared.down", MOEPACK_DTYPE_BF16, 2, down, 0, MOEPACK_ROLE_SHARED_DOWN, MOEPACK_ENC_BF16);
    add_tensor(m, 1, "l.1.norm", MOEPACK_DTYPE_BF16, 1, norm, 0, MOEPACK_ROLE_LATENT_NORM, MOEPACK_ENC_BF16);
    add_tensor(m, 0, "l.1.gate.bias", MOEPACK_DTYPE_F32, 1, bias, 0, MOEPACK_ROLE_ROUTER_BIAS, MOEPACK_ENC_F32);
    add_tensor(m, 1, "l.1.gate", MOEPACK_DTYPE_BF16, 2, router, 0, MOEPACK_ROLE_ROUTER, MOEPACK_ENC_BF16);
    add_tensor(m, 0, "l.2.gate", MOEPACK_DTYPE_BF16, 2, router, 1, MOEPACK_ROLE_ROUTER, MOEPACK_ENC_BF16);
    add_tensor(m, 0, "embed", MOEPACK_DTYPE_BF16, 2, embed, MOEPACK_NO_BLOCK, MOEPACK_ROLE_NONE, MOEPACK_ENC_NONE);
    add_tensor(m, 0, "z.empty", MOEPACK_DTYPE_F32, 2, empty, MOEPACK_NO_BLOCK, MOEPACK_ROLE_NONE, MOEPACK_ENC_NONE);
    add_tensor(m, 0, "a.scalar", MOEPACK_DTYPE_F32, 0, NULL, MOEPACK_NO_BLOCK, MOEPACK_ROLE_NONE, MOEPACK_ENC_NONE);
    add_tensor(m, 1, "embed", MOEPACK_DTYPE_BF16, 2, embed, MOEPACK_NO_BLOCK, MOEPACK_ROLE_NONE,
               MOEPACK_ENC_NONE); /* twice */
    finish(m);
    return m;
}

static mpk_plan plan_of(const model *m, moepack_layout layout, moepack_shard_by by, uint64_t shard_size)
{
    moepack_error error;
    mpk_plan plan;
    mpk_plan_options options = {.kept = m->kept, .shard_by = by, .shard_size = shard_size, .layout = layout};
    assert_status(mpk_plan_make(&m->source, &options, &plan, &error), MOEPACK_OK, &error, "");
    return plan;
}

/* ---- what must hold of every plan ---- */

static bool name_is(moepack_str name, const char *text)
{
    return name.length == strlen(text) && memcmp(name.data, text, name.length) == 0;
}

static uint64_t up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Sections of a record: section 7 of the spec, recomputed here in its own words. */
static void check_record(const mpk_tables *t, const moepack_record *record)
{
    const mpk_schema_entry *schema = &t->schemas[record->schema];
    uint64_t next = 0;
    assert_int_equal(record->offset % 4096, 0);
    assert_int_equal(record->length % 4096, 0);
    for (int small = 0; small < 2; small++) {
        bool first = true;
        for (uint32_t s = 0; s < schema->count; s++) {
            const moepack_section *section = &t->sections[record->first_section + s];
            const moepack_desc *desc = &t->descs[schema->first_desc + s];
            assert_int_equal(section->stored_length, desc->decoded_length);
            if (section->stored_length == 0) assert_int_equal(section->offset, 0);
            if (section->stored_length == 0 || (section->stored_length <= 2048) != (small == 1)) continue;
            next = up(next, !small || first ? 4096 : 8);
            first = false;
            assert_int_equal(section->offset, record->offset + next);
            next += section->stored_length;
        }
    }
    assert_int_equal(record->length, up(next, 4096));
}

static void check_shard_contents(const mpk_tables *t, uint32_t shard)
{
    const moepack_shard *entry = &t->shards[shard];
    uint64_t next = 4096;
    if (entry->kind == MOEPACK_SHARD_EXPERTS) {
        size_t held = 0;
        /* By-expert shards go block by block, by-layer and by-size ones too: always (block, expert) order, without
         * gaps. */
        for (size_t i = 0; i < t->record_count; i++)
            if (t->records[i].shard == shard) {
                assert_int_equal(t->records[i].offset, next);
                next += t->records[i].length;
                held++;
            }
        assert_true(held > 0);
    } else {
        for (size_t i = 0; i < t->section_count; i++) {
            bool mine = false;
            for (size_t k = 0; k < t->tensor_count; k++)
                mine = mine || (t->tensors[k].section == i && t->tensors[k].shard == shard);
            for (size_t k = 0; k < t->file_count; k++)
                mine = mine || (t->files[k].section == i && t->files[k].shard == shard);
            if (!mine || t->sections[i].stored_length == 0) continue;
            next = up(next, t->sections[i].stored_length <= 2048 ? 64 : 4096);
            assert_int_equal(t->sections[i].offset, next);
            next += t->sections[i].stored_length;
        }
    }
    assert_int_equal(entry->tail_offset, up(next, 4096));
    assert_int_equal(entry->file_length, entry->tail_offset + entry->tail_length);
    uint64_t tail;
    moepack_error error;
    assert_status(mpk_tail_length(t, shard, &tail, &error), MOEPACK_OK, &error, "");
    assert_int_equal(entry->tail_length, tail);
}

static void check_parts(const mpk_tables *t)
{
    size_t parts = 0;
    for (size_t i = 0; i < t->section_count; i++) {
        const moepack_section *section = &t->sections[i];
        if (section->stored_length <= (uint64_t)8 << 20) {
            assert_true(section->first_part == MOEPACK_NO_PARTS);
            continue;
        }
        assert_int_equal(section->first_part, parts);
        for (uint64_t left = section->stored_length; left > 0; parts++) {
            uint64_t length = left < (uint64_t)4 << 20 ? left : (uint64_t)4 << 20;
            assert_true(parts < t->part_count);
            assert_int_equal(t->parts[parts].stored_length, length);
            left -= length;
        }
    }
    assert_int_equal(parts, t->part_count);
}

/* Pieces: every byte of every file once, and each to a section of the right length. */
static void check_pieces(const mpk_plan *plan)
{
    uint8_t *seen = calloc(plan->tables.section_count, 1);
    size_t i = 0;
    uint64_t total = 0;
    for (uint32_t f = 0; f < plan->tables.file_count; f++) {
        uint64_t end = 0;
        for (; i < plan->piece_count && plan->pieces[i].file == f; i++) {
            const mpk_piece *piece = &plan->pieces[i];
            assert_int_equal(piece->offset, end);
            end += piece->length;
            assert_int_equal(seen[piece->section], 0);
            seen[piece->section] = 1;
            mpk_shape shape;
            mpk_plan_shape(plan, piece, &shape);
            assert_int_equal(shape.canonical_length, piece->length);
            assert_int_equal(shape.decoded_length, plan->tables.sections[piece->section].stored_length);
            total += piece->length;
        }
        assert_int_equal(end, plan->tables.files[f].length);
    }
    assert_int_equal(i, plan->piece_count);
    assert_int_equal(plan->piece_count, plan->tables.section_count);
    assert_int_equal(total, plan->source_bytes);
    free(seen);
}

static void check_plan(const mpk_plan *plan)
{
    const mpk_tables *t = &plan->tables;
    uint64_t next_section = 0, next_record = 0, bytes = 0;
    moepack_error error;
    for (size_t b = 0; b < t->block_count; b++) {
        assert_int_equal(t->blocks[b].first_record, next_record);
        next_record += t->blocks[b].experts;
    }
    assert_int_equal(next_record, t->record_count);
    for (size_t i = 0; i < t->record_count; i++) {
        if (t->records[i].shard == MOEPACK_NO_SHARD) continue;
        assert_int_equal(t->records[i].first_section, next_section);
        next_section += t->schemas[t->records[i].schema].count;
        check_record(t, &t->records[i]);
    }
    for (size_t i = 1; i < t->tensor_count; i++) {
        const moepack_tensor *a = &t->tensors[i - 1], *b = &t->tensors[i];
        size_t common = a->name.length < b->name.length ? a->name.length : b->name.length;
        int order = memcmp(a->name.data, b->name.data, common);
        if (order == 0) order = (int)a->name.length - (int)b->name.length;
        assert_true(order < 0 || (order == 0 && a->source_file < b->source_file));
    }
    assert_int_equal(next_section + t->tensor_count + t->file_count, t->section_count);
    for (size_t f = 0; f < t->file_count; f++)
        assert_int_equal(t->files[f].section, next_section + t->tensor_count + f);
    for (uint32_t s = 0; s < t->shard_count; s++) {
        check_shard_contents(t, s);
        bytes += t->shards[s].file_length;
    }
    check_parts(t);
    mpk_buf index = {0};
    assert_status(mpk_encode_index(t, &index, &error), MOEPACK_OK, &error, "");
    assert_int_equal(plan->written_bytes, bytes + index.size);
    /* The reader's own checks agree: overlaps, ranges, sort orders, references. Policies here are not valid ones, so
     * the index of a real model is opened elsewhere. */
    free(index.data);
}

static void plans_keep_the_rules(void **state)
{
    (void)state;
    model *m = usual_model();
    static const uint64_t sizes[] = {1, 20000, 60000, 200000, 2000000, MPK_SHARD_SIZE_DEFAULT, UINT64_MAX};
    for (unsigned layout = 0; layout < 2; layout++)
        for (unsigned by = 0; by < 3; by++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                mpk_plan plan = plan_of(m, (moepack_layout)layout, (moepack_shard_by)by, sizes[s]);
                check_plan(&plan);
                check_pieces(&plan);
                assert_int_equal(plan.record_count, 26);
                assert_false(plan.tables.info.subset);
                mpk_plan_free(&plan);
            }
    free(m);
}

static uint32_t shard_of(const mpk_tables *t, uint32_t block, uint32_t expert)
{
    return t->records[t->blocks[block].first_record + expert].shard;
}

static void shards_by_expert(void **state)
{
    (void)state;
    model *m = usual_model();
    mpk_plan plan = plan_of(m, MOEPACK_LAYOUT_CANONICAL, MOEPACK_SHARD_BY_EXPERT, MPK_SHARD_SIZE_DEFAULT);
    const mpk_tables *t = &plan.tables;
    uint64_t record = t->records[0].length;
    assert_int_equal(t->shard_count, 2);
    assert_true(name_is(t->shards[0].name, "trunk-000.mpk"));
    assert_true(name_is(t->shards[1].name, "experts-0000-0009.mpk"));
    mpk_plan_free(&plan);
    /* An id has a record in up to three blocks; room for 4 of them and a bit: floor. */
    plan = plan_of(m, MOEPACK_LAYOUT_CANONICAL, MOEPACK_SHARD_BY_EXPERT, 3 * record * 5 - 1);
    uint32_t first = 0;
    while (plan.tables.shards[first].kind == MOEPACK_SHARD_TRUNK) first++;
    assert_int_equal(plan.tables.shard_count - first, 3);
    static const char *const names[] = {"experts-0000-0003.mpk", "experts-0004-0007.mpk", "experts-0008-0009.mpk"};
    for (uint32_t i = 0; i < 3; i++) assert_true(name_is(plan.tables.shards[first + i].name, names[i]));
    for (uint32_t b = 0; b < 3; b++)
        for (uint32_t e = 0; e < m->blocks[b].experts; e++)
            assert_int_equal(shard_of(&plan.tables, b, e), first + e / 4);
    mpk_plan_free(&plan);
    /* Less than one id fits: still one id a shard. */
    plan = plan_of(m, MOEPACK_LAYOUT_CANONICAL, MOEPACK_SHARD_BY_EXPERT, record);
    uint32_t shards = 0;
    for (size_t i = 0; i < plan.tables.shard_count; i++) shards += plan.tables.shards[i].kind == MOEPACK_SHARD_EXPERTS;
    assert_int_equal(shards, 10);
    mpk_plan_free(&plan);
    free(m);
}

static void shards_by_layer(void **state)
{
    (void)state;
    model *m = usual_model();
    mpk_plan plan = plan_of(m, MOEPACK_LAYOUT_CANONICAL, MOEPACK_SHARD_BY_LAYER, MPK_SHARD_SIZE_DEFAULT);
    uint64_t record = plan.tables.records[0].length;
    assert_true(name_is(plan.tables.shards[1].name, "layers-00000-00002.mpk"));
    mpk_plan_free(&plan);
    plan = plan_of(m, MOEPACK_LAYOUT_CANONICAL, MOEPACK_SHARD_BY_LAYER, 16 * record);
    uint32_t first = 0;
    while (plan.tables.shards[first].kind == MOEPACK_SHARD_TRUNK) first++;
    assert_int_equal(plan.tables.shard_count - first, 2); /* 10 records; 10 + 6 */
    assert_true(name_is(plan.tables.shards[first].name, "layers-00000-00000.mpk"));
    assert_true(name_is(plan.tables.shards[first + 1].name, "layers-00001-00002.mpk"));
    mpk_plan_free(&plan);
    free(m);
}

static void shards_by_size(void **state)
{
    (void)state;
    model *m = usual_model();
    mpk_plan plan = plan_of(m, MOEPACK_LAYOUT_CANONICAL, MOEPACK_SHARD_BY_SIZE, MPK_SHARD_SIZE_DEFAULT);
    uint64_t record = plan.tables.records[0].length;
    assert_true(name_is(plan.tables.shards[1].name, "part-0000.mpk"));
    mpk_plan_free(&plan);
    for (uint64_t each = 1; each <= 7; each++)
        for (uint64_t slack = 0; slack < 2; slack++) {
            plan = plan_of(m, MOEPACK_LAYOUT_CANONICAL, MOEPACK_SHARD_BY_SIZE, each * record + slack * (record - 1));
            uint32_t first = 0;
            while (plan.tables.shards[first].kind == MOEPACK_SHARD_TRUNK) first++;
            assert_int_equal(plan.tables.shard_count - first, (26 + each - 1) / each);
            for (size_t i = 0; i < 26; i++) assert_int_equal(plan.tables.records[i].shard, first + i / each);
            mpk_plan_free(&plan);
        }
    free(m);
}

static size_t tensor_entry(const mpk_tables *t, const char *name, uint32_t file)
{
    for (size_t i = 0; i < t->tensor_count; i++)
        if (name_is(t->tensors[i].name, name) && t->tensors[i].source_file == file) return i;
    fail_msg("no trunk tensor %s", name);
    return 0;
}

static void trunk_is_in_storage_order(void **state)
{
    (void)state;
    model *m = usual_model();
    mpk_plan plan = plan_of(m, MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, MPK_SHARD_SIZE_DEFAULT);
    const mpk_tables *t = &plan.tables;
    /* Roles of each block in the device's order, then all others by (file, offset). */
    static const struct {
        const char *name;
        uint32_t file;
    } order[] = {{"l.1.gate", 1},        {"l.1.gate.bias", 0}, {"l.1.norm", 1},
                 {"l.1.shared.down", 1}, {"l.2.gate", 0},      {"embed", 0},
                 {"z.empty", 0},         {"a.scalar", 0},      {"embed", 1}};
    const size_t count = sizeof order / sizeof *order;
    assert_int_equal(t->tensor_count, count);
    uint64_t first = t->files[0].section - count;
    for (size_t i = 0; i < count; i++)
        assert_int_equal(t->tensors[tensor_entry(t, order[i].name, order[i].file)].section, first + i);
    /* ROLES: ascending roles per block. */
    static const moepack_role roles[] = {MOEPACK_ROLE_ROUTER, MOEPACK_ROLE_ROUTER_BIAS, MOEPACK_ROLE_LATENT_NORM,
                                         MOEPACK_ROLE_SHARED_DOWN, MOEPACK_ROLE_ROUTER};
    assert_int_equal(t->role_count, 5);
    for (size_t i = 0; i < 5; i++) assert_int_equal(t->roles[i].role, roles[i]);
    assert_int_equal(t->blocks[0].role_count, 4);
    assert_int_equal(t->blocks[1].first_role, 4);
    assert_int_equal(t->blocks[1].role_count, 1);
    assert_int_equal(t->blocks[2].role_count, 0);
    assert_int_equal(t->tensors[t->roles[4].tensor].block, 1);
    mpk_plan_free(&plan);
    free(m);
}

/* Matrices go to panel order; vectors, and bytes without meaning, stay as published. */
static void layouts_are_chosen_by_meaning(void **state)
{
    (void)state;
    model *m = usual_model();
    for (unsigned layout = 0; layout < 2; layout++) {
        mpk_plan plan = plan_of(m, (moepack_layout)layout, MOEPACK_SHARD_BY_EXPERT, MPK_SHARD_SIZE_DEFAULT);
        const mpk_tables *t = &plan.tables;
        static const struct {
            const char *name;
            uint32_t file;
            bool matrix;
            uint32_t matrices;
        } cases[] = {{"l.1.gate", 1, true, 1},        {"l.1.gate.bias", 0, false, 1}, {"l.1.norm", 1, false, 1},
                     {"l.1.shared.down", 1, true, 1}, {"embed", 0, false, 0},         {"a.scalar", 0, false, 0}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const moepack_desc *desc = &t->descs[t->tensors[tensor_entry(t, cases[i].name, cases[i].file)].desc];
            assert_int_equal(desc->layout, cases[i].matrix && layout ? MOEPACK_LAYOUT_PANEL : MOEPACK_LAYOUT_CANONICAL);
            assert_int_equal(desc->matrix_count, cases[i].matrices);
            if (desc->layout == MOEPACK_LAYOUT_CANONICAL)
                assert_int_equal(desc->decoded_length, desc->canonical_length);
        }
        /* [10, 64] BF16: one row block of four tile columns of 16 (spec section 9). */
        const moepack_desc *gate = &t->descs[t->tensors[tensor_entry(t, "l.1.gate", 1)].desc];
        assert_int_equal(gate->decoded_length, layout ? 64 / 8 * 256 : 10 * 64 * 2);
        /* 20 x 192 codes: two row blocks of six tiles. */
        const moepack_desc *expert = &t->descs[t->schemas[0].first_desc];
        assert_int_equal(expert->canonical_length, 1920);
        assert_int_equal(expert->decoded_length, layout ? 2 * 6 * 256 : 1920);
        mpk_plan_free(&plan);
    }
    free(m);
}

static void equal_things_are_stored_once(void **state)
{
    (void)state;
    model *m = usual_model();
    m->schemas[1] = m->schemas[0]; /* a second schema with the same content */
    m->source.schema_count = 2;
    m->blocks[1].schema = 1;
    m->policies[1] = m->policies[0];
    mpk_plan plan = plan_of(m, MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, MPK_SHARD_SIZE_DEFAULT);
    const mpk_tables *t = &plan.tables;
    assert_int_equal(t->schema_count, 1);
    assert_int_equal(t->policy_count, 1);
    /* Both gates and both embeddings share their descriptions. */
    assert_int_equal(t->tensors[tensor_entry(t, "l.1.gate", 1)].desc, t->tensors[tensor_entry(t, "l.2.gate", 0)].desc);
    assert_int_equal(t->tensors[tensor_entry(t, "embed", 0)].desc, t->tensors[tensor_entry(t, "embed", 1)].desc);
    assert_int_equal(t->desc_count, 5 + 7);
    check_plan(&plan);
    mpk_plan_free(&plan);
    m->policies[1].overridden = 4; /* the same values, but a user said so: not the same record */
    plan = plan_of(m, MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, MPK_SHARD_SIZE_DEFAULT);
    assert_int_equal(plan.tables.policy_count, 2);
    mpk_plan_free(&plan);
    free(m);
}

static void trunk_shards_are_bounded(void **state)
{
    (void)state;
    model *m = usual_model();
    mpk_plan plan = plan_of(m, MOEPACK_LAYOUT_CANONICAL, MOEPACK_SHARD_BY_EXPERT, 500000);
    const mpk_tables *t = &plan.tables;
    unsigned trunk = 0;
    for (size_t s = 0; s < t->shard_count; s++) {
        if (t->shards[s].kind != MOEPACK_SHARD_TRUNK) continue;
        char name[32];
        snprintf(name, sizeof name, "trunk-%03u.mpk", trunk++);
        assert_true(name_is(t->shards[s].name, name));
        /* The 9 MiB side file is larger than a shard and has one to itself. */
        bool alone = t->files[3].shard == s;
        assert_true(t->shards[s].tail_offset <= up(4096 + (alone ? t->files[3].length : 500000), 4096));
    }
    assert_true(trunk >= 3);
    mpk_plan_free(&plan);
    free(m);
}

/* A fused tensor: expert e's section is slice e of its first dimension. */
static void fused_tensors_are_sliced(void **state)
{
    (void)state;
    model *m = new_model(1);
    moepack_matrix w = weights(32, 64);
    add_section(&m->schemas[0], "e.w", true, MOEPACK_DTYPE_U8, 2, 32, 32, &w);
    add_section(&m->schemas[0], "e.b", true, MOEPACK_DTYPE_F32, 1, 32, 0, NULL);
    m->source.schema_count = 1;
    add_block(m, MOEPACK_STACK_MAIN, 0, 12, 0, (char *)(uintptr_t) "m.0.");
    const uint64_t wide[] = {12, 32, 32}, biases[] = {12, 32};
    uint32_t tw = add_tensor(m, 0, "m.0.e.w", MOEPACK_DTYPE_U8, 3, wide, 0, MOEPACK_ROLE_NONE, MOEPACK_ENC_NONE);
    uint32_t tb = add_tensor(m, 0, "m.0.e.b", MOEPACK_DTYPE_F32, 2, biases, 0, MOEPACK_ROLE_NONE, MOEPACK_ENC_NONE);
    for (uint32_t e = 0; e < 12; e++) {
        m->sections[0][e * 2] = tw;
        m->sections[0][e * 2 + 1] = tb;
    }
    finish(m);
    mpk_plan plan = plan_of(m, MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, MPK_SHARD_SIZE_DEFAULT);
    check_plan(&plan);
    check_pieces(&plan);
    assert_int_equal(plan.tables.info.source_tensors, 2);
    assert_int_equal(plan.tables.info.source_bytes, 12 * (1024 + 128));
    for (size_t i = 0; i < plan.piece_count; i++) {
        const mpk_piece *piece = &plan.pieces[i];
        if (piece->tensor != tw) continue;
        assert_int_equal(piece->offset, m->tensors[tw].offset + piece->expert * 1024);
        assert_int_equal(piece->section, plan.tables.records[piece->expert].first_section);
    }
    mpk_plan_free(&plan);
    free(m);
}

static void selections_leave_gaps(void **state)
{
    (void)state;
    model *m = usual_model();
    m->source.subset = true;
    m->blocks[0].selected = false;
    for (uint32_t b = 1; b < 3; b++)
        for (uint32_t e = 0; e < m->blocks[b].experts; e++)
            for (uint32_t s = 0; s < 5 && (e == 2 || e == 5); s++) m->sections[b][e * 5 + s] = MPK_NO_TENSOR;
    for (uint32_t i = 0; i < m->source.tensor_count; i++)
        m->kept[i] = strstr(m->tensors[i].name, "l.1.") == NULL && strstr(m->tensors[i].name, "e.2.") == NULL &&
                     strstr(m->tensors[i].name, "e.5.") == NULL && strcmp(m->tensors[i].name, "embed") != 0;
    for (unsigned by = 0; by < 3; by++) {
        mpk_plan plan = plan_of(m, MOEPACK_LAYOUT_PANEL, (moepack_shard_by)by, 70000);
        const mpk_tables *t = &plan.tables;
        check_plan(&plan);
        assert_true(t->info.subset);
        assert_int_equal(t->block_count, 2);
        assert_int_equal(t->record_count, 16);
        assert_int_equal(plan.record_count, 12);
        assert_int_equal(plan.source_block[0], 1);
        for (uint32_t b = 0; b < 2; b++) {
            const moepack_record *gap = &t->records[t->blocks[b].first_record + 2];
            assert_true(gap->shard == MOEPACK_NO_SHARD);
            assert_int_equal(gap->schema + gap->offset + gap->length + gap->first_section, 0);
        }
        assert_int_equal(t->tensor_count, 3); /* l.2.gate, z.empty, a.scalar */
        mpk_plan_free(&plan);
    }
    free(m);
}

/* Bytes that no tensor covers would be lost: refused, unless a selection was asked for. */
static void lost_bytes_are_noticed(void **state)
{
    (void)state;
    model *m = usual_model();
    moepack_error error;
    mpk_plan plan;
    mpk_plan_options options = {.kept = m->kept, .shard_size = MPK_SHARD_SIZE_DEFAULT, .layout = MOEPACK_LAYOUT_PANEL};
    m->kept[m->source.tensor_count - 1] = 0;
    assert_status(mpk_plan_make(&m->source, &options, &plan, &error), MOEPACK_E_CORRUPT, &error, "b.safetensors");
    m->source.subset = true;
    assert_status(mpk_plan_make(&m->source, &options, &plan, &error), MOEPACK_OK, &error, "");
    mpk_plan_free(&plan);
    /* A file that is not there makes a subset and is left out of FILES. */
    m->source.subset = false;
    memset(m->kept, 1, sizeof m->kept);
    m->files[4].missing = true;
    assert_status(mpk_plan_make(&m->source, &options, &plan, &error), MOEPACK_OK, &error, "");
    assert_true(plan.tables.info.subset);
    assert_int_equal(plan.tables.file_count, m->source.file_count - 1);
    mpk_plan_free(&plan);
    free(m);
}

/* Sizes near 2^63 are an error, not a wrap. */
static void huge_sizes_do_not_wrap(void **state)
{
    (void)state;
    model *m = new_model(1);
    const uint64_t dims[] = {(uint64_t)1 << 40, 1 << 20};
    moepack_error error;
    mpk_plan plan;
    mpk_plan_options options = {.shard_size = MPK_SHARD_SIZE_DEFAULT, .layout = MOEPACK_LAYOUT_PANEL};
    for (unsigned i = 0; i < 9; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", i);
        add_tensor(m, 0, name, MOEPACK_DTYPE_U8, 2, dims, MOEPACK_NO_BLOCK, MOEPACK_ROLE_NONE, MOEPACK_ENC_NONE);
    }
    finish(m);
    moepack_status status = mpk_plan_make(&m->source, &options, &plan, &error);
    assert_status(status, MOEPACK_E_UNSUPPORTED, &error, "limit");
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_keep_the_rules),
        cmocka_unit_test(shards_by_expert),
        cmocka_unit_test(shards_by_layer),
        cmocka_unit_test(shards_by_size),
        cmocka_unit_test(trunk_is_in_storage_order),
        cmocka_unit_test(layouts_are_chosen_by_meaning),
        cmocka_unit_test(equal_things_are_stored_once),
        cmocka_unit_test(trunk_shards_are_bounded),
        cmocka_unit_test(fused_tensors_are_sliced),
        cmocka_unit_test(selections_leave_gaps),
        cmocka_unit_test(lost_bytes_are_noticed),
        cmocka_unit_test(huge_sizes_do_not_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
