/* The panel weight order and its inverse (spec/container.md section 9).
 *
 * One section holds one or more matrices. Each is moved by one of three rules: tiles of 16 rows for weights, 16 rows
 * side by side for group scales, row order for everything else. Published forms that keep 32-bit words of a row
 * together (all untransposed ones) move whole words; others move single elements. */
#include "bytes.h"
#include "error.h"

#define TILE_ROWS 16u
#define TILE_BYTES 256u
#define LINE_BYTES 64u /* 16 rows x one 32-bit word */

typedef enum form {
    FORM_TILES,
    FORM_GROUP_SCALES,
    FORM_ROWS,
    FORM_NONE
} form;

static form form_of(const moepack_matrix *m)
{
    bool tile_width = m->bits == 4 || m->bits == 8 || m->bits == 16 || m->bits == 32;
    if (!tile_width && m->bits != 64) return FORM_NONE;
    if (m->plane == MOEPACK_PLANE_WEIGHT && tile_width) return FORM_TILES;
    if (m->plane == MOEPACK_PLANE_SCALE && m->group_rows == 1 && (m->group_cols == 16 || m->group_cols == 32) &&
        (m->bits == 8 || m->bits == 16 || m->bits == 32))
        return FORM_GROUP_SCALES;
    return FORM_ROWS;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

bool moepack_panel_length(const moepack_matrix *m, uint64_t *length)
{
    uint64_t row_blocks = ceil_div(m->rows, TILE_ROWS), n;
    switch (form_of(m)) {
    case FORM_TILES:
        return mpk_mul64(row_blocks, ceil_div(m->cols, 128 / m->bits), &n) && mpk_mul64(n, TILE_BYTES, length);
    case FORM_GROUP_SCALES:
        return mpk_mul64(row_blocks, m->cols, &n) && mpk_mul64(n, TILE_ROWS * m->bits / 8, length);
    case FORM_ROWS:
        if (!mpk_mul64(m->rows, m->cols, &n)) return false;
        if (m->bits == 4) {
            *length = n / 2 + n % 2;
            return true;
        }
        return mpk_mul64(n, m->bits / 8, length);
    case FORM_NONE:
        break;
    }
    return false;
}

/* ---- one element at a time ---- */

/* Elements wider than a byte always start at a multiple of their width from the section's start, 4-bit ones are
 * nibbles. */
static uint64_t get_element(const uint8_t *base, unsigned bits, uint64_t i)
{
    switch (bits) {
    case 4:
        return base[i / 2] >> (4 * (i & 1)) & 15;
    case 8:
        return base[i];
    case 16:
        return mpk_load16(base + 2 * i);
    case 32:
        return mpk_load32(base + 4 * i);
    default:
        return mpk_load64(base + 8 * i);
    }
}

static void put_element(uint8_t *base, unsigned bits, uint64_t i, uint64_t value)
{
    switch (bits) {
    case 4: {
        unsigned shift = 4 * (unsigned)(i & 1);
        base[i / 2] = (uint8_t)((base[i / 2] & ~(15u << shift)) | (unsigned)value << shift);
        break;
    }
    case 8:
        base[i] = (uint8_t)value;
        break;
    case 16:
        mpk_store16(base + 2 * i, (uint16_t)value);
        break;
    case 32:
        mpk_store32(base + 4 * i, (uint32_t)value);
        break;
    default:
        mpk_store64(base + 8 * i, value);
        break;
    }
}

/* Element number of (r, c) in the canonical section. */
static uint64_t canonical_element(const moepack_matrix *m, uint64_t r, uint64_t c)
{
    return m->base + r * m->row_stride + c * m->col_stride;
}

static uint64_t scale_element(const moepack_matrix *m, uint64_t r, uint64_t g)
{
    return (r / TILE_ROWS * m->cols + g) * TILE_ROWS + r % TILE_ROWS;
}

/* `count` elements of 1, 2 or 4 bytes from places `src_step` bytes apart to places `dst_step` bytes apart. */
static void copy_strided(const uint8_t *src, uint64_t src_step, uint8_t *dst, uint64_t dst_step, uint64_t count,
                         unsigned width)
{
    switch (width) {
    case 1:
        for (uint64_t i = 0; i < count; ++i) dst[i * dst_step] = src[i * src_step];
        break;
    case 2:
        for (uint64_t i = 0; i < count; ++i) memcpy(dst + i * dst_step, src + i * src_step, 2);
        break;
    default:
        for (uint64_t i = 0; i < count; ++i) memcpy(dst + i * dst_step, src + i * src_step, 4);
        break;
    }
}

/* ---- tiles ---- */

/* Whether a row's 32-bit words lie in the published bytes as they do in a line: then words can move unchanged. */
static bool moves_words(const moepack_matrix *m)
{
    return m->col_stride == 1 && (m->bits != 4 || (m->base % 2 == 0 && m->row_stride % 2 == 0));
}

static uint64_t row_byte(const moepack_matrix *m, uint64_t r)
{
    return (m->base + r * m->row_stride) * m->bits / 8;
}

/* The 16 rows x 16 bytes of one whole tile, between rows of published bytes and lines. */
static void tile_from_rows(const uint8_t *src, uint64_t row_bytes, uint8_t *tile)
{
    for (unsigned r = 0; r < TILE_ROWS; ++r) {
        const uint8_t *row = src + r * row_bytes;
        for (unsigned line = 0; line < 4; ++line) memcpy(tile + line * LINE_BYTES + r * 4, row + line * 4, 4);
    }
}

static void tile_to_rows(const uint8_t *tile, uint8_t *dst, uint64_t row_bytes)
{
    for (unsigned r = 0; r < TILE_ROWS; ++r) {
        uint8_t *row = dst + r * row_bytes;
        for (unsigned line = 0; line < 4; ++line) memcpy(row + line * 4, tile + line * LINE_BYTES + r * 4, 4);
    }
}

/* `count` nibbles from numbers `from`, `from + from_step` ... of src to likewise ones of dst. */
static void copy_nibbles(const uint8_t *src, uint64_t from, uint64_t from_step, uint8_t *dst, uint64_t to,
                         uint64_t to_step, uint64_t count)
{
    for (; count > 0; --count, from += from_step, to += to_step) put_element(dst, 4, to, get_element(src, 4, from));
}

/* Columns [c0, cols) of a block of `rows` rows from row r0 on, element by element. `tiles_at` is where the block's
 * tiles lie, in dst when going forward, else in src. */
static void tile_elements(const moepack_matrix *m, uint64_t r0, uint64_t rows, uint64_t c0, const uint8_t *src,
                          uint8_t *dst, uint64_t tiles_at, bool forward)
{
    const uint64_t word = 32 / m->bits, columns = 4 * word; /* elements of a word, columns of a tile */
    const unsigned width = m->bits / 8;
    for (uint64_t c = c0; c < m->cols; ++c) {
        uint64_t tile = tiles_at + c / columns * TILE_BYTES;
        if (m->bits == 4) {
            uint64_t number = canonical_element(m, r0, c), in_tiles = 2 * (tile + c % 32 / 8 * LINE_BYTES) + c % 8;
            if (forward)
                copy_nibbles(src, number, m->row_stride, dst, in_tiles, 8, rows);
            else
                copy_nibbles(src, in_tiles, 8, dst, number, m->row_stride, rows);
            continue;
        }
        uint64_t canonical = canonical_element(m, r0, c) * width, step = m->row_stride * width;
        uint64_t stored = tile + c % columns / word * LINE_BYTES + c % word * width;
        if (forward)
            copy_strided(src + canonical, step, dst + stored, 4, rows, width);
        else
            copy_strided(src + stored, 4, dst + canonical, step, rows, width);
    }
}

static void move_tiles(const moepack_matrix *m, const uint8_t *src, uint8_t *dst, uint64_t length, bool forward)
{
    const uint64_t width = 128 / m->bits, tile_cols = ceil_div(m->cols, width);
    const bool words = moves_words(m);
    if (forward && (m->rows % TILE_ROWS != 0 || m->cols % width != 0)) memset(dst, 0, (size_t)length); /* padding */
    for (uint64_t r = 0; r < m->rows; r += TILE_ROWS) {
        uint64_t rows = m->rows - r < TILE_ROWS ? m->rows - r : TILE_ROWS;
        uint64_t whole = words && rows == TILE_ROWS ? m->cols / width : 0;
        uint64_t tiles_at = r / TILE_ROWS * tile_cols * TILE_BYTES, row_bytes = m->row_stride * m->bits / 8;
        for (uint64_t t = 0; t < whole; ++t) {
            uint64_t at = row_byte(m, r) + t * TILE_ROWS;
            if (forward)
                tile_from_rows(src + at, row_bytes, dst + tiles_at + t * TILE_BYTES);
            else
                tile_to_rows(src + tiles_at + t * TILE_BYTES, dst + at, row_bytes);
        }
        tile_elements(m, r, rows, whole * width, src, dst, tiles_at, forward);
    }
}

/* ---- group scales ---- */

/* The value of a padding row: 1.0. */
static uint64_t scale_one(moepack_encoding encoding)
{
    switch (encoding) {
    case MOEPACK_ENC_E8M0:
        return 0x7f;
    case MOEPACK_ENC_E4M3:
        return 0x38;
    case MOEPACK_ENC_BF16:
        return 0x3f80;
    case MOEPACK_ENC_F16:
        return 0x3c00;
    case MOEPACK_ENC_F32:
        return 0x3f800000;
    default:
        return 0;
    }
}

typedef uint8_t bytes16 __attribute__((vector_size(16)));

/* 16 x 16 bytes, rows `src_step` apart, become their transpose, rows `dst_step` apart. Interleaving vector i with
 * vector i + 8, four times, moves every byte's row number to its column number. */
static void transpose_bytes(const uint8_t *src, uint64_t src_step, uint8_t *dst, uint64_t dst_step)
{
    bytes16 v[16], w[16];
    for (unsigned i = 0; i < 16; ++i) memcpy(&v[i], src + i * src_step, 16);
    for (unsigned round = 0; round < 4; ++round) {
        for (unsigned i = 0; i < 8; ++i) {
            w[2 * i] = __builtin_shufflevector(v[i], v[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            w[2 * i + 1] =
                __builtin_shufflevector(v[i], v[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(v, w, sizeof v);
    }
    for (unsigned i = 0; i < 16; ++i) memcpy(dst + i * dst_step, &v[i], 16);
}

/* The first `columns` scale bytes, a multiple of 16, of the 16 rows from r0 on. */
static void scale_blocks(const moepack_matrix *m, const uint8_t *src, uint8_t *dst, uint64_t r0, uint64_t columns,
                         bool forward)
{
    for (uint64_t c = 0; c < columns; c += TILE_ROWS) {
        const uint64_t canonical = row_byte(m, r0) + c, stored = scale_element(m, r0, c);
        if (forward)
            transpose_bytes(src + canonical, m->row_stride, dst + stored, TILE_ROWS);
        else
            transpose_bytes(src + stored, TILE_ROWS, dst + canonical, m->row_stride);
    }
}

static void move_scales(const moepack_matrix *m, const uint8_t *src, uint8_t *dst, bool forward)
{
    const uint64_t padded = ceil_div(m->rows, TILE_ROWS) * TILE_ROWS, one = scale_one(m->encoding);
    const unsigned width = m->bits / 8;
    for (uint64_t r = 0; r < m->rows; ++r) {
        uint64_t canonical = row_byte(m, r), stored = scale_element(m, r, 0) * width, done = 0;
        if (width == 1 && m->col_stride == 1) {
            /* Whole blocks of 16 x 16 went with the block's first row. */
            done = m->rows - r / TILE_ROWS * TILE_ROWS >= TILE_ROWS ? m->cols / TILE_ROWS * TILE_ROWS : 0;
            if (r % TILE_ROWS == 0) scale_blocks(m, src, dst, r, done, forward);
        }
        uint64_t step = m->col_stride * width, panel_step = TILE_ROWS * width;
        canonical += done * step;
        stored += done * panel_step;
        if (forward)
            copy_strided(src + canonical, step, dst + stored, panel_step, m->cols - done, width);
        else
            copy_strided(src + stored, panel_step, dst + canonical, step, m->cols - done, width);
    }
    for (uint64_t r = m->rows; forward && r < padded; ++r) {
        for (uint64_t g = 0; g < m->cols; ++g) put_element(dst, m->bits, scale_element(m, r, g), one);
    }
}

/* ---- row order ---- */

static void move_rows(const moepack_matrix *m, const uint8_t *src, uint8_t *dst, uint64_t length, bool forward)
{
    if (forward && length > 0) dst[length - 1] = 0; /* an odd number of nibbles leaves one unused */
    for (uint64_t r = 0; r < m->rows; ++r) {
        uint64_t stored = r * m->cols;
        if (m->col_stride == 1 && m->bits >= 8) {
            const uint64_t width = m->bits / 8;
            uint64_t canonical = row_byte(m, r);
            if (forward)
                memcpy(dst + stored * width, src + canonical, (size_t)(m->cols * width));
            else
                memcpy(dst + canonical, src + stored * width, (size_t)(m->cols * width));
            continue;
        }
        for (uint64_t c = 0; c < m->cols; ++c) {
            uint64_t canonical = canonical_element(m, r, c);
            if (forward)
                put_element(dst, m->bits, stored + c, get_element(src, m->bits, canonical));
            else
                put_element(dst, m->bits, canonical, get_element(src, m->bits, stored + c));
        }
    }
}

/* ---- padding elements ---- */

/* The first byte of stored bytes with an element outside rows x cols that is not its padding value, UINT64_MAX if none.
 */
static uint64_t tiles_padding(const moepack_matrix *m, const uint8_t *stored)
{
    const uint64_t word = 32 / m->bits, columns = 4 * word, tile_cols = ceil_div(m->cols, columns);
    const uint64_t padded = ceil_div(m->rows, TILE_ROWS) * TILE_ROWS;
    for (uint64_t r = 0; r < padded; ++r) {
        uint64_t row = r / TILE_ROWS * tile_cols * TILE_BYTES + r % TILE_ROWS * 4;
        for (uint64_t c = r < m->rows ? m->cols : 0; c < tile_cols * columns; ++c) {
            uint64_t line = row + c / columns * TILE_BYTES + c % columns / word * LINE_BYTES, bit = c % word * m->bits;
            if (get_element(stored + line, m->bits, c % word) != 0) return line + bit / 8;
        }
    }
    return UINT64_MAX;
}

static uint64_t scales_padding(const moepack_matrix *m, const uint8_t *stored)
{
    const uint64_t padded = ceil_div(m->rows, TILE_ROWS) * TILE_ROWS, one = scale_one(m->encoding);
    for (uint64_t r = m->rows; r < padded; ++r) {
        for (uint64_t g = 0; g < m->cols; ++g) {
            uint64_t i = scale_element(m, r, g);
            if (get_element(stored, m->bits, i) != one) return i * m->bits / 8;
        }
    }
    return UINT64_MAX;
}

/* Only an odd number of nibbles leaves one unused. */
static uint64_t rows_padding(const moepack_matrix *m, const uint8_t *stored, uint64_t length)
{
    if (m->bits != 4 || m->rows % 2 == 0 || m->cols % 2 == 0) return UINT64_MAX;
    return stored[length - 1] >> 4 == 0 ? UINT64_MAX : length - 1;
}

bool mpk_panel_padding(const moepack_matrix *matrices, uint32_t count, const void *stored, uint64_t *at)
{
    const uint8_t *from = (const uint8_t *)stored;
    uint64_t begin = 0, length = 0;
    for (uint32_t i = 0; i < count; ++i, begin += length) {
        const moepack_matrix *m = &matrices[i];
        uint64_t bad = UINT64_MAX;
        if (!moepack_panel_length(m, &length)) return true; /* to_canonical refuses it */
        if (length == 0) continue;
        switch (form_of(m)) {
        case FORM_TILES:
            bad = tiles_padding(m, from + begin);
            break;
        case FORM_GROUP_SCALES:
            bad = scales_padding(m, from + begin);
            break;
        default:
            bad = rows_padding(m, from + begin, length);
            break;
        }
        if (bad == UINT64_MAX) continue;
        *at = begin + bad;
        return false;
    }
    return true;
}

/* ---- whole sections ---- */

/* Whether element (rows - 1, cols - 1), the last one, lies inside `size` bytes. */
static bool inside(const moepack_matrix *m, uint64_t size)
{
    if (m->rows == 0 || m->cols == 0) return true;
    uint64_t down, right, last, bits;
    return mpk_mul64(m->rows - 1, m->row_stride, &down) && mpk_mul64(m->cols - 1, m->col_stride, &right) &&
           mpk_add64(m->base, down, &last) && mpk_add64(last, right, &last) && mpk_add64(last, 1, &last) &&
           mpk_mul64(last, m->bits, &bits) && bits / 8 + (bits % 8 != 0) <= size;
}

/* Together the matrices must need exactly the decoded length and have exactly the elements of the canonical one: a
 * section that left bytes out could not be turned back. */
static moepack_status check(const moepack_matrix *matrices, uint32_t count, uint64_t canonical, uint64_t decoded,
                            moepack_error *error)
{
    uint64_t panel_sum = 0, bits_sum = 0, canonical_bits;
    for (uint32_t i = 0; i < count; ++i) {
        const moepack_matrix *m = &matrices[i];
        uint64_t length, bits;
        if (!moepack_panel_length(m, &length) || !mpk_add64(panel_sum, length, &panel_sum) ||
            !mpk_mul64(m->rows, m->cols, &bits) || !mpk_mul64(bits, m->bits, &bits) ||
            !mpk_add64(bits_sum, bits, &bits_sum)) {
            return mpk_fail(error, MOEPACK_E_USAGE, "matrix %u of the section has no panel form", (unsigned)i);
        }
        if (!inside(m, canonical)) {
            return mpk_fail(error, MOEPACK_E_USAGE, "matrix %u reaches beyond the section's %llu bytes", (unsigned)i,
                            (unsigned long long)canonical);
        }
    }
    if (panel_sum != decoded) {
        return mpk_fail(error, MOEPACK_E_USAGE, "matrices need %llu bytes in panel order, the section has %llu",
                        (unsigned long long)panel_sum, (unsigned long long)decoded);
    }
    if (!mpk_mul64(canonical, 8, &canonical_bits) || bits_sum != canonical_bits) {
        return mpk_fail(error, MOEPACK_E_USAGE, "matrices cover %llu bits of a section of %llu bytes",
                        (unsigned long long)bits_sum, (unsigned long long)canonical);
    }
    return MOEPACK_OK;
}

/* Whether the matrices are plain and lie one behind the other from the section's start: then they write every byte. */
static bool follow_one_another(const moepack_matrix *matrices, uint32_t count)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < count; ++i) {
        const moepack_matrix *m = &matrices[i];
        if (m->col_stride != 1 || m->row_stride != m->cols || m->base * m->bits != bits) return false;
        bits += m->rows * m->cols * m->bits; /* check has seen that this does not overflow */
    }
    return bits % 8 == 0;
}

static void move_matrix(const moepack_matrix *m, const uint8_t *src, uint8_t *dst, uint64_t length, bool forward)
{
    switch (form_of(m)) {
    case FORM_TILES:
        move_tiles(m, src, dst, length, forward);
        break;
    case FORM_GROUP_SCALES:
        move_scales(m, src, dst, forward);
        break;
    default:
        move_rows(m, src, dst, length, forward);
        break;
    }
}

moepack_status moepack_panel_from_canonical(const moepack_matrix *matrices, uint32_t count, const void *src,
                                            size_t src_size, void *dst, size_t dst_size, moepack_error *error)
{
    moepack_status status = check(matrices, count, src_size, dst_size, error);
    if (status != MOEPACK_OK) return status;
    uint8_t *to = (uint8_t *)dst;
    for (uint32_t i = 0; i < count; ++i) {
        uint64_t length = 0;
        moepack_panel_length(&matrices[i], &length);
        if (length > 0) move_matrix(&matrices[i], (const uint8_t *)src, to, length, true);
        to += length;
    }
    return MOEPACK_OK;
}

moepack_status moepack_panel_to_canonical(const moepack_matrix *matrices, uint32_t count, const void *src,
                                          size_t src_size, void *dst, size_t dst_size, moepack_error *error)
{
    moepack_status status = check(matrices, count, dst_size, src_size, error);
    if (status != MOEPACK_OK) return status;
    /* Matrices that overlap leave bytes unwritten; those must not be what memory held before. */
    if (dst_size > 0 && !follow_one_another(matrices, count)) memset(dst, 0, dst_size);
    const uint8_t *from = (const uint8_t *)src;
    for (uint32_t i = 0; i < count; ++i) {
        uint64_t length = 0;
        moepack_panel_length(&matrices[i], &length);
        if (length > 0) move_matrix(&matrices[i], from, (uint8_t *)dst, length, false);
        from += length;
    }
    return MOEPACK_OK;
}
