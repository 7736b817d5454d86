/* The safetensors reader: every rule of the format, broken one at a time, and what a good file says. */
#include "test_source_files.h"

#include "safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *dir;

static int setup(void **state)
{
    (void)state;
    dir = strdup(make_dir());
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_dir(dir);
    free((char *)dir);
    return 0;
}

#define WHOLE UINT64_MAX /* the length word says how long the header is */

typedef struct broken {
    const char *what;
    uint64_t word;
    const char *header;
    size_t data;
    moepack_status status;
    const char *part; /* of the error text */
} broken;

#define T(rest) "{\"a\":{" rest "}}"
#define EMPTY(name) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}"

static const broken files[] = {
    {"empty header", WHOLE, "", 0, MOEPACK_E_CORRUPT, "begin with '{'"},
    {"header is a list", WHOLE, "[]", 0, MOEPACK_E_CORRUPT, "begin with '{'"},
    {"space before", WHOLE, " {}", 0, MOEPACK_E_CORRUPT, "begin with '{'"},
    {"byte order mark", WHOLE, "\xef\xbb\xbf{}", 0, MOEPACK_E_CORRUPT, "begin with '{'"},
    {"newline behind", WHOLE, "{}\n", 0, MOEPACK_E_CORRUPT, "end with '}'"},
    {"text behind", WHOLE, "{} {}", 0, MOEPACK_E_CORRUPT, "offset 10: not valid JSON"},
    {"not closed", WHOLE, "{" EMPTY("a"), 0, MOEPACK_E_CORRUPT, "',' or '}' expected"},
    {"no comma", WHOLE, "{" EMPTY("a") EMPTY("b") "}", 0, MOEPACK_E_CORRUPT,
     "offset 60: not valid JSON: ',' or '}' expected"},
    {"comma behind the last", WHOLE, "{" EMPTY("a") ",}", 0, MOEPACK_E_CORRUPT, "name in quotes expected"},
    {"comma alone", WHOLE, "{,}", 0, MOEPACK_E_CORRUPT, "name in quotes expected"},
    {"no colon", WHOLE, "{\"a\" {}}", 0, MOEPACK_E_CORRUPT, "':' expected"},
    {"no value", WHOLE, "{\"a\":}", 0, MOEPACK_E_CORRUPT, "not valid JSON"},
    {"name without quotes", WHOLE, "{a:{}}", 0, MOEPACK_E_CORRUPT, "name in quotes expected"},
    {"number for a name", WHOLE, "{1:{}}", 0, MOEPACK_E_CORRUPT, "name in quotes expected"},
    {"zero byte between", WHOLE, "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}\x01}", 0,
     MOEPACK_E_CORRUPT, "',' or '}' expected"},
    {"not UTF-8", WHOLE, "{\"\xff\":{}}", 0, MOEPACK_E_CORRUPT, "not valid JSON"},
    {"half a surrogate", WHOLE, "{\"\\ud800\":{}}", 0, MOEPACK_E_CORRUPT, "not valid JSON"},
    {"zero byte in a name", WHOLE, "{\"\\u0000\":{}}", 0, MOEPACK_E_CORRUPT, "not valid JSON"},
    {"length word too large", 100000001, "{}", 0, MOEPACK_E_CORRUPT, "100000001 is above"},
    {"length word huge", WHOLE - 1, "{}", 0, MOEPACK_E_CORRUPT, "18446744073709551614 is above"},
    {"length word beyond the file", 3, "{}", 0, MOEPACK_E_INCOMPLETE, "file has 10 bytes, its header alone ends at 11"},
    {"duplicate tensor", WHOLE, "{" EMPTY("a") "," EMPTY("b") "," EMPTY("a") "}", 0, MOEPACK_E_CORRUPT,
     "tensor a: duplicate key"},
    {"duplicate through an escape", WHOLE, "{" EMPTY("a") "," EMPTY("\\u0061") "}", 0, MOEPACK_E_CORRUPT,
     "tensor a: duplicate key"},
    {"two __metadata__", WHOLE, "{\"__metadata__\":{},\"__metadata__\":{}}", 0, MOEPACK_E_CORRUPT, "duplicate key"},
    {"duplicate key inside", WHOLE, T("\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]"), 0,
     MOEPACK_E_CORRUPT, "duplicate"},
    {"duplicate in __metadata__", WHOLE, "{\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}}", 0, MOEPACK_E_CORRUPT,
     "duplicate"},
    {"__metadata__ is a list", WHOLE, "{\"__metadata__\":[]}", 0, MOEPACK_E_CORRUPT, "__metadata__ is a list"},
    {"__metadata__ of numbers", WHOLE, "{\"__metadata__\":{\"k\":1}}", 0, MOEPACK_E_CORRUPT, "\"k\" is an integer"},
    {"entry is a list", WHOLE, "{\"a\":[]}", 0, MOEPACK_E_CORRUPT, "tensor a: entry is a list"},
    {"no dtype", WHOLE, T("\"shape\":[0],\"data_offsets\":[0,0]"), 0, MOEPACK_E_CORRUPT, "dtype is nothing"},
    {"no shape", WHOLE, T("\"dtype\":\"U8\",\"data_offsets\":[0,0]"), 0, MOEPACK_E_CORRUPT, "shape is nothing"},
    {"no offsets", WHOLE, T("\"dtype\":\"U8\",\"shape\":[0]"), 0, MOEPACK_E_CORRUPT, "data_offsets"},
    {"a fourth key", WHOLE, T("\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1"), 0, MOEPACK_E_CORRUPT,
     "other keys"},
    {"dtype is a number", WHOLE, T("\"dtype\":8,\"shape\":[0],\"data_offsets\":[0,0]"), 0, MOEPACK_E_CORRUPT,
     "dtype is an integer"},
    {"unknown dtype", WHOLE, T("\"dtype\":\"Q4_K\",\"shape\":[0],\"data_offsets\":[0,0]"), 0, MOEPACK_E_UNSUPPORTED,
     "tensor a: unknown dtype \"Q4_K\""},
    {"dtype in lower case", WHOLE, T("\"dtype\":\"bf16\",\"shape\":[0],\"data_offsets\":[0,0]"), 0,
     MOEPACK_E_UNSUPPORTED, "\"bf16\""},
    {"shape is a number", WHOLE, T("\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]"), 4, MOEPACK_E_CORRUPT,
     "shape is an integer"},
    {"negative dim", WHOLE, T("\"dtype\":\"U8\",\"shape\":[-1,-4],\"data_offsets\":[0,4]"), 4, MOEPACK_E_CORRUPT,
     "[-1,-4]"},
    {"real dim", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4.0],\"data_offsets\":[0,4]"), 4, MOEPACK_E_CORRUPT, "[4.0]"},
    {"text dim", WHOLE, T("\"dtype\":\"U8\",\"shape\":[\"4\"],\"data_offsets\":[0,4]"), 4, MOEPACK_E_CORRUPT, "shape"},
    {"dim of 2^63", WHOLE, T("\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,4]"), 4,
     MOEPACK_E_CORRUPT, "not valid JSON"},
    {"product overflows", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0,
     MOEPACK_E_CORRUPT, "too large"},
    {"product wraps to the right size", WHOLE,
     T("\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]"), 4, MOEPACK_E_CORRUPT, "too large"},
    {"bits overflow", WHOLE, T("\"dtype\":\"F64\",\"shape\":[1152921504606846976],\"data_offsets\":[0,0]"), 0,
     MOEPACK_E_CORRUPT, "too large"},
    {"half a byte", WHOLE, T("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"), 2, MOEPACK_E_CORRUPT,
     "whole number"},
    {"quarter bytes", WHOLE, T("\"dtype\":\"F6_E2M3\",\"shape\":[2],\"data_offsets\":[0,2]"), 2, MOEPACK_E_CORRUPT,
     "whole number"},
    {"offsets reversed", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]"), 4, MOEPACK_E_CORRUPT,
     "[4,0]"},
    {"one offset", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4]"), 4, MOEPACK_E_CORRUPT, "[4]"},
    {"three offsets", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,8]"), 4, MOEPACK_E_CORRUPT,
     "[0,4,8]"},
    {"negative offset", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-4,0]"), 4, MOEPACK_E_CORRUPT,
     "[-4,0]"},
    {"real offset", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4e0]"), 4, MOEPACK_E_CORRUPT,
     "offsets"},
    {"offset of 2^63", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,9223372036854775808]"), 4,
     MOEPACK_E_CORRUPT, "not valid JSON"},
    {"size contradicts shape", WHOLE, T("\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,4]"), 4,
     MOEPACK_E_CORRUPT, "has 8 bytes, data_offsets span 4"},
    {"hole before", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]"), 8, MOEPACK_E_CORRUPT, "hole"},
    {"hole between", WHOLE,
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[5,9]}}",
     9, MOEPACK_E_CORRUPT, "tensor b: data_offsets begin at 5, leaving a hole after"},
    {"overlap", WHOLE,
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[3,7]}}",
     7, MOEPACK_E_CORRUPT, "tensor b: data_offsets begin at 3, overlapping"},
    {"two tensors share their data", WHOLE,
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],"
     "\"data_offsets\":[0,4]}}",
     4, MOEPACK_E_CORRUPT, "overlapping"},
    {"empty tensor inside another", WHOLE,
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[0],"
     "\"data_offsets\":[2,2]}}",
     4, MOEPACK_E_CORRUPT, "overlapping"},
    {"empty tensor behind the end", WHOLE,
     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[0],"
     "\"data_offsets\":[9,9]}}",
     4, MOEPACK_E_CORRUPT, "hole"},
    {"file too short", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]"), 3, MOEPACK_E_INCOMPLETE,
     "file has 3 bytes of data, its header describes 4"},
    {"file too long", WHOLE, T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]"), 5, MOEPACK_E_CORRUPT,
     "file has 5 bytes of data, its header describes 4"},
    {"data without tensors", WHOLE, "{}", 1, MOEPACK_E_CORRUPT, "belong to no tensor"},
};

static void broken_files_are_refused(void **state)
{
    (void)state;
    const char *path = in_dir(dir, "broken.safetensors");
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        const broken *b = &files[i];
        print_message("%s\n", b->what);
        write_safetensors(path, b->word, b->header, strlen(b->header), b->data);
        moepack_safetensors *file = NULL;
        moepack_error error;
        memset(&error, 0, sizeof error);
        moepack_status status = moepack_safetensors_open(path, &file, &error);
        expect_error(status, b->status, &error, b->part);
        expect_error(status, b->status, &error, "broken.safetensors");
        assert_null(file);
        assert_int_equal(moepack_safetensors_open(path, &file, NULL), b->status);
    }
}

static void short_files_are_incomplete(void **state)
{
    (void)state;
    static const char header[] = T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]");
    const char *path = in_dir(dir, "short.safetensors");
    write_safetensors(path, WHOLE, header, strlen(header), 4);
    size_t size;
    char *bytes = read_text(path, &size);
    for (size_t length = 0; length < size; length++) {
        write_bytes(path, bytes, length);
        moepack_safetensors *file = NULL;
        moepack_error error;
        expect_error(moepack_safetensors_open(path, &file, &error), MOEPACK_E_INCOMPLETE, &error, "short.safetensors");
    }
    free(bytes);
    moepack_safetensors *file = NULL;
    moepack_error error;
    expect_error(moepack_safetensors_open(in_dir(dir, "none"), &file, &error), MOEPACK_E_INCOMPLETE, &error, "none");
}

/* Every byte of a small file flipped in every bit: opens or is refused, never more, and the data stays inside the file.
 */
static void flipped_bits_do_no_harm(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"BF16\",\"shape\":[2,2],"
        "\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}  ";
    const char *path = in_dir(dir, "flip.safetensors");
    write_safetensors(path, WHOLE, header, strlen(header), 9);
    size_t size, refused = 0;
    char *bytes = read_text(path, &size);
    for (size_t at = 0; at < 8 + strlen(header); at++) {
        for (int bit = 0; bit < 8; bit++) {
            bytes[at] = (char)(bytes[at] ^ (1 << bit));
            write_bytes(path, bytes, size);
            bytes[at] = (char)(bytes[at] ^ (1 << bit));
            moepack_safetensors *file = NULL;
            moepack_error error;
            if (moepack_safetensors_open(path, &file, &error) != MOEPACK_OK) {
                refused++;
                continue;
            }
            for (size_t i = 0; i < moepack_safetensors_count(file); i++) {
                moepack_safetensors_tensor t;
                moepack_safetensors_get(file, i, &t);
                assert_true(t.offset >= moepack_safetensors_data_start(file) && t.offset <= size);
                assert_true(t.length <= size - t.offset);
            }
            moepack_safetensors_close(file);
        }
    }
    free(bytes);
    assert_true(refused > 1000); /* of 1,408; the rest are names and metadata */
}

static void nesting_is_bounded(void **state)
{
    (void)state;
    size_t depth = 4u << 20;
    char *text = malloc(2 * depth + 16);
    assert_non_null(text);
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', depth);
    memset(text + 5 + depth, ']', depth);
    text[5 + 2 * depth] = '}';
    const char *path = in_dir(dir, "deep.safetensors");
    write_safetensors(path, WHOLE, text, 6 + 2 * depth, 0);
    free(text);
    moepack_safetensors *file = NULL;
    moepack_error error;
    expect_error(moepack_safetensors_open(path, &file, &error), MOEPACK_E_CORRUPT, &error, "maximum parsing depth");
}

static void good_file_is_described(void **state)
{
    (void)state;
    static const char header[] =
        "{\"z\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},"
        "\"e2\":{\"dtype\":\"F64\",\"shape\":[0,9223372036854775807],\"data_offsets\":[8,8]},"
        "\"e1\":{\"dtype\":\"BF16\",\"shape\":[3,0],\"data_offsets\":[8,8]},"
        "\"w\":{\"shape\":[2,1,2],\"data_offsets\":[0,8],\"dtype\":\"BF16\"},"
        "\"caf\\u00e9 \\\"q\\\"\":{\"dtype\":\"F6_E3M2\",\"shape\":[4],\"data_offsets\":[12,15]},"
        "\"f4\":{\"dtype\":\"F4\",\"shape\":[2,1],\"data_offsets\":[15,16]},"
        "\"__metadata__\":{\"format\":\"pt\",\"\":\"empty key\"}}   ";
    const char *path = in_dir(dir, "good.safetensors");
    write_safetensors(path, WHOLE, header, strlen(header), 16);
    moepack_safetensors *file = NULL;
    moepack_error error;
    expect_ok(moepack_safetensors_open(path, &file, &error), &error);
    static const struct {
        const char *name;
        moepack_dtype dtype;
        uint32_t rank;
        uint64_t offset, length;
    } want[] = {
        {"w", MOEPACK_DTYPE_BF16, 3, 0, 8},
        {"e1", MOEPACK_DTYPE_BF16, 2, 8, 0},
        {"e2", MOEPACK_DTYPE_F64, 2, 8, 0},
        {"z", MOEPACK_DTYPE_F32, 0, 8, 4},
        {"caf\xc3\xa9 \"q\"", MOEPACK_DTYPE_F6_E3M2, 1, 12, 3},
        {"f4", MOEPACK_DTYPE_F4, 2, 15, 1},
    };
    assert_int_equal(moepack_safetensors_count(file), 6);
    uint64_t start = moepack_safetensors_data_start(file);
    assert_int_equal(start, 8 + strlen(header));
    for (size_t i = 0; i < 6; i++) {
        moepack_safetensors_tensor t;
        moepack_safetensors_get(file, i, &t);
        assert_string_equal(t.name, want[i].name);
        assert_int_equal(t.dtype, want[i].dtype);
        assert_int_equal(t.rank, want[i].rank);
        assert_int_equal(t.offset, start + want[i].offset);
        assert_int_equal(t.length, want[i].length);
        assert_int_equal(moepack_safetensors_find(file, want[i].name), i);
    }
    moepack_safetensors_tensor w;
    moepack_safetensors_get(file, 0, &w);
    assert_int_equal(w.dims[0], 2);
    assert_int_equal(w.dims[1], 1);
    assert_true(moepack_safetensors_find(file, "missing") == SIZE_MAX);
    assert_true(moepack_safetensors_find(file, NULL) == SIZE_MAX);
    assert_true(moepack_safetensors_find(file, "__metadata__") == SIZE_MAX);
    assert_string_equal(moepack_safetensors_metadata(file, "format"), "pt");
    assert_string_equal(moepack_safetensors_metadata(file, ""), "empty key");
    assert_null(moepack_safetensors_metadata(file, "pt"));

    uint8_t bytes[4];
    expect_ok(moepack_safetensors_read(file, 3, 1, bytes, 3, &error), &error);
    assert_int_equal(bytes[0], 9);
    assert_int_equal(bytes[2], 11);
    expect_ok(moepack_safetensors_read(file, 1, 0, bytes, 0, &error), &error);
    expect_error(moepack_safetensors_read(file, 3, 1, bytes, 4, &error), MOEPACK_E_USAGE, &error, "tensor z");
    expect_error(moepack_safetensors_read(file, 3, UINT64_MAX, bytes, 1, &error), MOEPACK_E_USAGE, &error, "tensor z");
    expect_error(moepack_safetensors_read(file, 6, 0, bytes, 1, &error), MOEPACK_E_USAGE, &error, "6 of 6");
    moepack_safetensors_close(file);
    moepack_safetensors_close(NULL);
}

/* White space is legal wherever JSON has it. */
static void spaced_out_header_is_read(void **state)
{
    (void)state;
    static const char header[] =
        "{ \t\r\n\"a\" : { \"dtype\" :\"U8\", \"shape\": [ 2 ] ,\n\"data_offsets\":[0 , 2]}\t,\r\n"
        "\"__metadata__\"\n:\n{\"k\" : \"v\"} }   ";
    const char *path = in_dir(dir, "spaced.safetensors");
    write_safetensors(path, WHOLE, header, strlen(header), 2);
    moepack_safetensors *file = NULL;
    moepack_error error;
    expect_ok(moepack_safetensors_open(path, &file, &error), &error);
    assert_int_equal(moepack_safetensors_find(file, "a"), 0);
    assert_string_equal(moepack_safetensors_metadata(file, "k"), "v");
    moepack_safetensors_close(file);
    write_safetensors(path, WHOLE, "{ }", 3, 0);
    expect_ok(moepack_safetensors_open(path, &file, &error), &error);
    assert_int_equal(moepack_safetensors_count(file), 0);
    assert_true(moepack_safetensors_find(file, "a") == SIZE_MAX);
    assert_null(moepack_safetensors_metadata(file, "k"));
    moepack_safetensors_close(file);
}

/* Ten thousand names, found one by one; the data of each is its number. */
static void many_tensors_are_found(void **state)
{
    (void)state;
    enum {
        COUNT = 10000
    };
    const char *path = in_dir(dir, "many.safetensors");
    moepack_safetensors_writer *writer = NULL;
    moepack_safetensors *file = NULL;
    moepack_error error;
    char name[32];
    expect_ok(moepack_safetensors_create(path, false, &writer, &error), &error);
    for (uint32_t i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "tensor.%u", i * 7919 % COUNT);
        expect_ok(moepack_safetensors_add(writer, name, MOEPACK_DTYPE_U32, 0, NULL, &error), &error);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t number = i * 7919 % COUNT;
        expect_ok(moepack_safetensors_append(writer, &number, 4, &error), &error);
    }
    expect_ok(moepack_safetensors_finish(writer, &error), &error);
    expect_ok(moepack_safetensors_open(path, &file, &error), &error);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t number;
        snprintf(name, sizeof name, "tensor.%u", i);
        size_t found = moepack_safetensors_find(file, name);
        assert_true(found < COUNT);
        expect_ok(moepack_safetensors_read(file, found, 0, &number, 4, &error), &error);
        assert_int_equal(number, i);
    }
    moepack_safetensors_close(file);
}

static void every_dtype_is_known(void **state)
{
    (void)state;
    const char *path = in_dir(dir, "dtype.safetensors");
    for (int d = 1; d < MOEPACK_DTYPE_COUNT; d++) {
        moepack_dtype dtype = (moepack_dtype)d;
        char header[160];
        unsigned bytes = moepack_dtype_bits(dtype); /* of 8 elements */
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%u]}}",
                 moepack_dtype_name(dtype), bytes);
        write_safetensors(path, WHOLE, header, strlen(header), bytes);
        moepack_safetensors *file = NULL;
        moepack_error error;
        expect_ok(moepack_safetensors_open(path, &file, &error), &error);
        moepack_safetensors_tensor t;
        moepack_safetensors_get(file, 0, &t);
        assert_int_equal(t.dtype, dtype);
        moepack_safetensors_close(file);
    }
}

/* Shards of the fixtures, written by the official library. */
static void official_files_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        size_t count;
    } shards[] = {
        {"k3_tiny/checkpoint/model-00001-of-00003.safetensors", 0},
        {"k3_tiny/checkpoint/model-00002-of-00003.safetensors", 0},
        {"k3_tiny/checkpoint/model-00003-of-00003.safetensors", 527},
        {"k3_quant/checkpoint/model-00001-of-00002.safetensors", 0},
        {"k3_quant/checkpoint/model-00002-of-00002.safetensors", 393},
    };
    size_t count = 0;
    for (size_t i = 0; i < sizeof shards / sizeof shards[0]; i++) {
        moepack_safetensors *file = NULL;
        moepack_error error;
        expect_ok(moepack_safetensors_open(in_dir(MOEPACK_FIXTURES, shards[i].path), &file, &error), &error);
        count += moepack_safetensors_count(file);
        if (shards[i].count) {
            assert_int_equal(count, shards[i].count);
            count = 0;
        }
        assert_string_equal(moepack_safetensors_metadata(file, "format"), "pt");
        moepack_safetensors_close(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_files_are_refused), cmocka_unit_test(short_files_are_incomplete),
        cmocka_unit_test(flipped_bits_do_no_harm),  cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(good_file_is_described),   cmocka_unit_test(every_dtype_is_known),
        cmocka_unit_test(official_files_are_read),  cmocka_unit_test(spaced_out_header_is_read),
        cmocka_unit_test(many_tensors_are_found),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
