/* Containers whose hashes are all right but whose tables contradict one another: damage that no checksum shows, such as
 * a writer's mistake. verify compares the tables themselves. */
#include "test_pack_files.h"

#include "bytes.h"
#include "tableset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPERTS "experts-0000-0022.mpk"
#define TRUNK "trunk-000.mpk"

static const char *pristine(void)
{
    static const char *path;
    if (!path) {
        path = at("pristine.moepack");
        convert_to(TINY, path, NULL, NULL);
    }
    return path;
}

/* Experts 0 to 10 alone. */
static const char *subset(void)
{
    static const char *path;
    if (!path) {
        moepack_convert_options options = options_of(MOEPACK_LAYOUT_PANEL, MOEPACK_SHARD_BY_EXPERT, 0, 1);
        path = at("subset.moepack");
        options.experts = "0-10";
        convert_to(TINY, path, &options, NULL);
    }
    return path;
}

/* With a side file that is large enough to have parts. */
static const char *parted(void)
{
    static const char *path;
    if (!path) {
        const size_t size = (9 << 20) + 5;
        const char *source = at("parted-source");
        uint8_t *bytes = malloc(size);
        assert_non_null(bytes);
        for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(i * 2654435761u >> 11);
        copy_tree(TINY, source);
        write_file(at2(source, "tokenizer.json"), bytes, size);
        free(bytes);
        path = at("parted.moepack");
        convert_to(source, path, NULL, NULL);
    }
    return path;
}

/* A file of the copy in memory. */
typedef struct image {
    const char *path;
    uint8_t *bytes;
    size_t size;
} image;

static image load(const char *name)
{
    image i = {.path = at2(at("forged.moepack"), name)};
    i.bytes = (uint8_t *)read_file(i.path, &i.size);
    return i;
}

static void store(image *i)
{
    write_file(i->path, i->bytes, i->size);
    free(i->bytes);
}

static void store_hash128(uint8_t *to, moepack_hash128 hash)
{
    mpk_store64(to, hash.low);
    mpk_store64(to + 8, hash.high);
}

/* A table of a set, writable; the set's directory is spec/container.md 4.1. */
static uint8_t *table(uint8_t *set, uint32_t id)
{
    uint32_t count = mpk_load32(set);
    for (uint32_t i = 0; i < count; i++)
        if (mpk_load32(set + 8 + 32 * i) == id) return set + mpk_load64(set + 24 + 32 * i);
    fail_msg("no table %u", id);
    return NULL;
}

/* Makes the hashes of a changed index right: root_hash and the header's second hash. */
static void seal_index(image *index)
{
    store_hash128(index->bytes + 80, moepack_hash128_of(index->bytes + 128, index->size - 128));
    mpk_store64(index->bytes + 120, moepack_hash64(index->bytes + 64, 56));
}

/* Makes the hashes of a changed shard right, in the shard and in the index. */
static void seal_shard(image *shard, image *index, uint32_t number)
{
    uint64_t tail = mpk_load64(shard->bytes + 88), length = mpk_load64(shard->bytes + 96);
    moepack_hash128 root = moepack_hash128_of(shard->bytes + tail, length);
    store_hash128(shard->bytes + 104, root);
    mpk_store64(shard->bytes + 120, moepack_hash64(shard->bytes + 64, 56));
    store_hash128(table(index->bytes + 128, MPK_T_SHARDS) + 64 * (size_t)number + 40, root);
    seal_index(index);
}

static void begin_with(const char *pack)
{
    const char *copy = at("forged.moepack");
    if (exists(copy)) remove_tree(copy);
    copy_tree(pack, copy);
}

static void begin(void)
{
    begin_with(pristine());
}

/* Makes the hash of the first 64 bytes, and that of the next 56, right. */
static void seal_header(image *file)
{
    mpk_store64(file->bytes + 56, moepack_hash64(file->bytes, 56));
    mpk_store64(file->bytes + 120, moepack_hash64(file->bytes + 64, 56));
}

/* Byte `byte` of table `id` in the index and in the copy that the trunk's tail has of it. */
static void change_both(image *index, image *trunk, uint32_t id, size_t byte, uint8_t mask)
{
    table(index->bytes + 128, id)[byte] ^= mask;
    table(trunk->bytes + mpk_load64(trunk->bytes + 88), id)[byte] ^= mask;
}

/* Section `number` of the index in the trunk's tail: the only trunk shard holds all sections behind those of experts.
 */
static uint8_t *section_in_tail(image *index, image *trunk, uint64_t number)
{
    moepack_index *opened;
    moepack_error error;
    assert_status(moepack_index_open(index->bytes, index->size, "", &opened, &error), MOEPACK_OK, &error, "");
    uint64_t trunk_sections = moepack_index_tensors(opened) + moepack_index_source_files(opened);
    uint64_t first = moepack_index_sections(opened) - trunk_sections;
    moepack_index_close(opened);
    assert_true(number >= first);
    return table(trunk->bytes + mpk_load64(trunk->bytes + 88), MPK_T_SECTIONS) + 40 * (number - first);
}

static moepack_status verify_forged(findings *found, moepack_verify_report *report)
{
    moepack_error error;
    return verify_into(at("forged.moepack"), NULL, found, report, &error);
}

static const moepack_finding *expect_status(findings *found, moepack_status status, const char *file,
                                            const char *section, const char *message)
{
    moepack_error error;
    assert_status(verify_into(at("forged.moepack"), NULL, found, NULL, &error), status, &error, "");
    for (size_t i = 0; i < found->count; i++)
        if (strcmp(found->item[i].file, file) == 0 && strcmp(found->item[i].section, section) == 0 &&
            strstr(found->item[i].message, message))
            return &found->item[i];
    for (size_t i = 0; i < found->count; i++)
        print_error("%s: %s: %s\n", found->item[i].file, found->item[i].section, found->item[i].message);
    fail_msg("no finding about %s, %s, \"%s\"", file, section, message);
    return NULL;
}

static const moepack_finding *expect(findings *found, const char *file, const char *section, const char *message)
{
    return expect_status(found, MOEPACK_E_CORRUPT, file, section, message);
}

/* Changes one byte of a table of a shard's tail and makes all hashes right again. */
static void forge_tail(const char *name, uint32_t id, size_t byte, const char *message)
{
    static findings found;
    begin();
    image shard = load(name), index = load("index.mpk");
    uint32_t number = mpk_load32(shard.bytes + 80);
    table(shard.bytes + mpk_load64(shard.bytes + 88), id)[byte] ^= 1;
    seal_shard(&shard, &index, number);
    store(&shard);
    store(&index);
    expect(&found, name, "tail", message);
    assert_int_equal(found.count, 1);
}

static void tails_are_compared_with_the_index(void **state)
{
    (void)state;
    forge_tail(EXPERTS, MPK_T_TAIL_RECORDS, 40 * 3 + 0, "TAIL_RECORDS");  /* block */
    forge_tail(EXPERTS, MPK_T_TAIL_RECORDS, 40 * 3 + 4, "TAIL_RECORDS");  /* expert: another one's offset */
    forge_tail(EXPERTS, MPK_T_TAIL_RECORDS, 40 * 3 + 17, "TAIL_RECORDS"); /* offset */
    forge_tail(EXPERTS, MPK_T_TAIL_RECORDS, 40 * 3 + 32, "TAIL_RECORDS"); /* first section */
    forge_tail(EXPERTS, MPK_T_SECTIONS, 40 * 100 + 24, "SECTIONS");       /* canonical hash */
    forge_tail(TRUNK, MPK_T_SECTIONS, 40 * 5 + 16, "SECTIONS");
    forge_tail(TRUNK, MPK_T_TAIL_OWNERS, 8 * 2 + 4, "");
    forge_tail(TRUNK, MPK_T_STRINGS, 3, "");
    forge_tail(TRUNK, MPK_T_FIELDS, 8, "");
    forge_tail(TRUNK, MPK_T_INFO, 0, ""); /* canonical_root must be zero there */
}

/* Records twice, missing or out of order: the sums are right, the tail is not. */
static void tail_records_have_one_order(void **state)
{
    (void)state;
    static findings found;
    for (unsigned swap = 0; swap < 2; swap++) {
        begin();
        image shard = load(EXPERTS), index = load("index.mpk");
        uint8_t *records = table(shard.bytes + mpk_load64(shard.bytes + 88), MPK_T_TAIL_RECORDS), kept[40];
        memcpy(kept, records + 40 * 3, 40);
        memcpy(records + 40 * 3, records + 40 * 4, 40);
        if (swap) memcpy(records + 40 * 4, kept, 40);
        seal_shard(&shard, &index, mpk_load32(shard.bytes + 80));
        store(&shard);
        store(&index);
        expect(&found, EXPERTS, "tail", "TAIL_RECORDS, entry 3");
        assert_int_equal(found.count, 1);
    }
}

/* A shard of another format version, or with features this version does not know: neither sound nor damaged. */
static void other_versions_are_unsupported(void **state)
{
    (void)state;
    static findings found;
    static const struct {
        uint32_t at;
        uint8_t mask;
    } changes[] = {{8, 1}, {10, 2}, {10, 1}, {16, 1}, {23, 0x80}};
    const char *names[] = {EXPERTS, TRUNK};
    for (size_t n = 0; n < 2; n++)
        for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
            begin();
            image shard = load(names[n]);
            shard.bytes[changes[i].at] ^= changes[i].mask;
            seal_header(&shard);
            store(&shard);
            const char *other = at2(at("forged.moepack"), names[1 - n]);
            moepack_verify_report report;
            assert_int_equal(verify_forged(&found, &report), MOEPACK_E_UNSUPPORTED);
            assert_int_equal(report.bad + report.missing, 0);
            assert_int_equal(report.unsupported, 1);
            const moepack_finding *finding =
                expect_status(&found, MOEPACK_E_UNSUPPORTED, names[n], "header", i < 3 ? "version" : "features");
            assert_true(finding->unsupported && !finding->missing);
            assert_int_equal(found.count, 1);
            /* Damage elsewhere outweighs, and so does a missing file. */
            flip(other, 4096, 1);
            assert_int_equal(verify_forged(&found, &report), MOEPACK_E_CORRUPT);
            assert_int_equal(report.bad, 1);
            assert_int_equal(report.unsupported, 1);
            assert_int_equal(remove(other), 0);
            assert_int_equal(verify_forged(&found, &report), MOEPACK_E_INCOMPLETE);
            assert_int_equal(report.missing, 1);
            assert_int_equal(report.unsupported, 1);
        }
}

/* The error describes the kind of finding that decided, not one that comes before it. */
static void error_is_of_the_kind_that_decides(void **state)
{
    (void)state;
    static findings found;
    moepack_error error;
    begin();
    image trunk = load(TRUNK);
    trunk.bytes[10] ^= 2;
    seal_header(&trunk);
    store(&trunk);
    const char *experts = at2(at("forged.moepack"), EXPERTS);
    flip(experts, 4096, 1);
    assert_status(verify_into(at("forged.moepack"), NULL, &found, NULL, &error), MOEPACK_E_CORRUPT, &error,
                  "layer 1, expert 0");
}

static void unsupported_index_is_a_finding(void **state)
{
    (void)state;
    static findings found;
    begin();
    image index = load("index.mpk");
    index.bytes[10] ^= 2;
    seal_header(&index);
    store(&index);
    const moepack_finding *finding = expect_status(&found, MOEPACK_E_UNSUPPORTED, "index.mpk", "index", "version");
    assert_true(finding->unsupported);
    assert_int_equal(found.count, 1);
}

/* Cut short, and of another container as well. */
static void short_shards_are_compared_with_the_index(void **state)
{
    (void)state;
    static findings found;
    static const uint32_t fields[] = {64, 80}; /* plan_id, shard number */
    const uint64_t lengths[] = {64, 127, 128, 4096, 20000};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            begin();
            image shard = load(EXPERTS);
            shard.bytes[fields[f]] ^= 2;
            seal_header(&shard);
            shard.size = lengths[i];
            store(&shard);
            if (lengths[i] < 128) {
                assert_int_equal(verify_forged(&found, NULL), MOEPACK_E_INCOMPLETE);
                continue;
            }
            expect(&found, EXPERTS, "header", "another");
            expect(&found, EXPERTS, "header", "are recorded");
            assert_true(found.item[0].missing);
        }
}

/* The published bytes of an unknown codec cannot be checked; the stored ones can. */
static void unknown_codecs_are_unsupported(void **state)
{
    (void)state;
    static findings found;
    begin_with(parted());
    image index = load("index.mpk"), trunk = load(TRUNK);
    uint64_t sections = 0, number = UINT64_MAX;
    void *bytes;
    moepack_index *opened = open_index(parted(), &bytes);
    moepack_section section = {0};
    sections = moepack_index_sections(opened);
    for (uint64_t i = 0; i < sections && number == UINT64_MAX; i++) {
        moepack_index_section(opened, i, &section);
        if (section.first_part != MOEPACK_NO_PARTS) number = i;
    }
    moepack_index_close(opened);
    free(bytes);
    assert_true(number != UINT64_MAX);
    section_in_tail(&index, &trunk, number)[36] = 77;
    table(index.bytes + 128, MPK_T_SECTIONS)[40 * number + 36] = 77;
    seal_shard(&trunk, &index, 0);
    store(&trunk);
    store(&index);
    const moepack_finding *finding = expect_status(&found, MOEPACK_E_UNSUPPORTED, TRUNK, "tokenizer.json", "codec 77");
    assert_true(finding->unsupported);
    assert_int_equal(finding->length, section.stored_length);
    assert_int_equal(found.count, 1);
    const char *path = at2(at("forged.moepack"), TRUNK);
    flip(path, section.offset + (8 << 20) + 3, 1);
    finding = expect(&found, TRUNK, "tokenizer.json", "part");
    assert_int_equal(finding->offset, section.offset + (8 << 20));
    assert_int_equal(finding->length, (1 << 20) + 5);
    expect(&found, TRUNK, "tokenizer.json", "codec 77");
    assert_int_equal(found.count, 2);
    truncate_to(path, section.offset + (5 << 20));
    assert_int_equal(verify_forged(&found, NULL), MOEPACK_E_INCOMPLETE);
}

/* The routers of the fixture have 23 rows in blocks of 16: nine rows of padding. */
static void padding_elements_are_checked(void **state)
{
    (void)state;
    static findings found;
    begin();
    image index = load("index.mpk"), trunk = load(TRUNK);
    void *bytes;
    moepack_index *opened = open_index(pristine(), &bytes);
    unsigned tried = 0;
    for (uint32_t i = 0; i < moepack_index_tensors(opened) && tried == 0; i++) {
        moepack_tensor tensor;
        moepack_desc desc;
        moepack_section section;
        char name[192], label[MOEPACK_LABEL_MAX];
        moepack_index_tensor(opened, i, &tensor);
        moepack_index_desc(opened, tensor.desc, &desc);
        if (desc.decoded_length == desc.canonical_length) continue;
        tried++;
        moepack_index_section(opened, tensor.section, &section);
        moepack_index_label(opened, tensor.block, label);
        snprintf(name, sizeof name, "%.*s", (int)tensor.name.length, tensor.name.data);
        uint64_t at = section.offset + section.stored_length - 1; /* the last row of the last block */
        trunk.bytes[at] ^= 0x20;
        uint64_t hash = moepack_hash64(trunk.bytes + section.offset, section.stored_length);
        mpk_store64(section_in_tail(&index, &trunk, tensor.section) + 16, hash);
        mpk_store64(table(index.bytes + 128, MPK_T_SECTIONS) + 40 * tensor.section + 16, hash);
        seal_shard(&trunk, &index, 0);
        store(&trunk);
        store(&index);
        const moepack_finding *finding = expect(&found, TRUNK, name, "padding elements");
        assert_int_equal(finding->offset, at - at % 2); /* where the element of 16 bits begins */
        assert_string_equal(finding->layer, label);
        assert_int_equal(found.count, 1);
    }
    assert_int_equal(tried, 1);
    moepack_index_close(opened);
    free(bytes);
}

/* Everything in the container says the same, and all of it is wrong. */
static void counts_and_plan_id_are_computed(void **state)
{
    (void)state;
    static findings found;
    static const struct {
        uint32_t byte;
        const char *section, *message;
    } fields[] = {{16, "plan_id", "plan_id"}, {72, "INFO", "bytes"}, {80, "INFO", "source tensors"}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        begin();
        image index = load("index.mpk"), trunk = load(TRUNK), experts = load(EXPERTS);
        change_both(&index, &trunk, MPK_T_INFO, fields[i].byte, 1);
        if (fields[i].byte == 16) {
            trunk.bytes[64] ^= 1;
            experts.bytes[64] ^= 1;
        }
        seal_shard(&experts, &index, 1);
        seal_shard(&trunk, &index, 0);
        store(&index);
        store(&trunk);
        store(&experts);
        expect(&found, "index.mpk", fields[i].section, fields[i].message);
        assert_int_equal(found.count, 1);
    }
}

static void absent_experts_make_a_subset(void **state)
{
    (void)state;
    static findings found;
    begin_with(subset());
    assert_int_equal(verify_forged(&found, NULL), MOEPACK_OK);
    image index = load("index.mpk"), trunk = load(TRUNK);
    change_both(&index, &trunk, MPK_T_INFO, 64, 1);
    seal_shard(&trunk, &index, 0);
    store(&index);
    store(&trunk);
    expect(&found, "index.mpk", "index", "subset");
}

/* A trunk tensor that is said to be from a file whose header does not have it. */
static void trunk_tensors_are_in_their_files(void **state)
{
    (void)state;
    static findings found;
    begin_with(subset());
    image index = load("index.mpk"), trunk = load(TRUNK);
    uint8_t *tensor = table(index.bytes + 128, MPK_T_TENSORS) + 32 * 3;
    uint8_t mask = mpk_load32(tensor + 12) == 1 ? 1 : (uint8_t)(mpk_load32(tensor + 12) ^ 1);
    moepack_str name;
    void *bytes;
    moepack_index *opened = open_index(subset(), &bytes);
    moepack_tensor entry;
    moepack_index_tensor(opened, 3, &entry);
    name = entry.name;
    char text[192];
    snprintf(text, sizeof text, "%.*s", (int)name.length, name.data);
    moepack_index_close(opened);
    free(bytes);
    change_both(&index, &trunk, MPK_T_TENSORS, 32 * 3 + 12, mask);
    seal_shard(&trunk, &index, 0);
    store(&index);
    store(&trunk);
    expect(&found, TRUNK, text, "does not name this tensor");
    expect(&found, "index.mpk", "plan_id", "");
}

static void swap_bytes(uint8_t *a, uint8_t *b, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        uint8_t kept = a[i];
        a[i] = b[i];
        b[i] = kept;
    }
}

/* Two trunk tensors of the same length that have changed places, in the tables and in the file. */
static void exchange(uint32_t a, uint32_t b)
{
    image index = load("index.mpk"), trunk = load(TRUNK);
    uint8_t *tail = trunk.bytes + mpk_load64(trunk.bytes + 88), *sections = table(index.bytes + 128, MPK_T_SECTIONS);
    uint8_t *tensors = table(index.bytes + 128, MPK_T_TENSORS);
    uint64_t x = mpk_load64(tensors + 32 * (size_t)a + 16), y = mpk_load64(tensors + 32 * (size_t)b + 16);
    uint8_t *here = section_in_tail(&index, &trunk, x), *there = section_in_tail(&index, &trunk, y);
    uint8_t *owners = table(tail, MPK_T_TAIL_OWNERS), *first = table(tail, MPK_T_SECTIONS);
    uint64_t length = mpk_load64(here + 8);
    assert_int_equal(length, mpk_load64(there + 8));
    swap_bytes(trunk.bytes + mpk_load64(here), trunk.bytes + mpk_load64(there), length);
    swap_bytes(owners + (here - first) / 40 * 8, owners + (there - first) / 40 * 8, 8);
    swap_bytes(here + 16, there + 16, 16); /* hashes */
    swap_bytes(sections + 40 * x + 16, sections + 40 * y + 16, 16);
    swap_bytes(tensors + 32 * (size_t)a + 16, tensors + 32 * (size_t)b + 16, 8);
    tensors = table(tail, MPK_T_TENSORS);
    swap_bytes(tensors + 32 * (size_t)a + 16, tensors + 32 * (size_t)b + 16, 8);
    seal_shard(&trunk, &index, 0);
    store(&trunk);
    store(&index);
}

/* Everything fits together, but the trunk is not in its order: role tensors exchanged, others exchanged. */
static void storage_order_of_the_trunk_is_checked(void **state)
{
    (void)state;
    static findings found;
    static const struct {
        const char *a, *b;
    } pairs[] = {
        {".block_sparse_moe.shared_experts.gate_proj.weight", ".block_sparse_moe.shared_experts.up_proj.weight"},
        {".input_layernorm.weight", ".post_attention_layernorm.weight"}};
    void *bytes;
    moepack_index *opened = open_index(pristine(), &bytes);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        uint32_t tensor[2];
        char name[192], other[192];
        snprintf(name, sizeof name, "language_model.model.layers.2%s", pairs[i].a);
        snprintf(other, sizeof other, "language_model.model.layers.2%s", pairs[i].b);
        tensor[0] = moepack_index_find_tensor(opened, name, strlen(name));
        tensor[1] = moepack_index_find_tensor(opened, other, strlen(other));
        assert_true(tensor[0] != UINT32_MAX && tensor[1] != UINT32_MAX);
        begin();
        exchange(tensor[0], tensor[1]);
        assert_int_equal(verify_forged(&found, NULL), MOEPACK_E_CORRUPT);
        assert_int_equal(found.count, 1);
        assert_string_equal(found.item[0].file, TRUNK);
        assert_non_null(strstr(found.item[0].message, "storage order"));
        exchange(tensor[0], tensor[1]);
        assert_int_equal(verify_forged(&found, NULL), MOEPACK_OK);
    }
    moepack_index_close(opened);
    free(bytes);
}

/* A sound hash in the index that is not the hash of the published bytes. */
static void canonical_hashes_are_checked(void **state)
{
    (void)state;
    static findings found;
    void *bytes;
    moepack_index *opened = open_index(pristine(), &bytes);
    section_at place;
    find_section(opened, 1, 4, 0, &place);
    moepack_block block;
    moepack_record record;
    moepack_index_block(opened, 1, &block);
    moepack_index_record(opened, block.first_record + 4, &record);
    begin();
    image index = load("index.mpk");
    table(index.bytes + 128, MPK_T_SECTIONS)[40 * record.first_section + 24] ^= 1;
    seal_index(&index);
    store(&index);
    const moepack_finding *finding = expect(&found, EXPERTS, place.name, "published bytes");
    assert_int_equal(finding->expert, 4);
    expect(&found, EXPERTS, "tail", "SECTIONS");
    expect(&found, "index.mpk", "canonical_root", "");
    moepack_index_close(opened);
    free(bytes);
}

static void roots_are_checked(void **state)
{
    (void)state;
    static findings found;
    begin();
    image index = load("index.mpk");
    table(index.bytes + 128, MPK_T_INFO)[0] ^= 1;
    seal_index(&index);
    store(&index);
    expect(&found, "index.mpk", "canonical_root", "");
    assert_int_equal(found.count, 1);
    begin();
    index = load("index.mpk");
    table(index.bytes + 128, MPK_T_FILES)[64 * 2 + 32] ^= 1; /* hash of the third weight file */
    seal_index(&index);
    store(&index);
    expect(&found, "index.mpk", "model-00003-of-00003.safetensors", "pieces");
    assert_int_equal(found.count, 1);
    /* export refuses to publish such a file. */
    moepack_error error;
    assert_status(moepack_export(at("forged.moepack"), at("back"), NULL, NULL, &error), MOEPACK_E_CORRUPT, &error,
                  "model-00003-of-00003.safetensors");
    assert_false(exists(at("back")));
    assert_false(exists(at("back.partial")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tails_are_compared_with_the_index), cmocka_unit_test(tail_records_have_one_order),
        cmocka_unit_test(other_versions_are_unsupported),    cmocka_unit_test(error_is_of_the_kind_that_decides),
        cmocka_unit_test(unsupported_index_is_a_finding),    cmocka_unit_test(short_shards_are_compared_with_the_index),
        cmocka_unit_test(unknown_codecs_are_unsupported),    cmocka_unit_test(padding_elements_are_checked),
        cmocka_unit_test(counts_and_plan_id_are_computed),   cmocka_unit_test(absent_experts_make_a_subset),
        cmocka_unit_test(trunk_tensors_are_in_their_files),  cmocka_unit_test(storage_order_of_the_trunk_is_checked),
        cmocka_unit_test(canonical_hashes_are_checked),      cmocka_unit_test(roots_are_checked),
    };
    return cmocka_run_group_tests(tests, setup_dir, teardown_dir);
}
