"""Weight order of a moepack container: section 9 of container.md, and what section 4.6 asks of matrices for its sake.

Part of reader.py, the independent reader.
"""
import array

from reader_format import ENCODINGS, LIMIT, SCALE, WEIGHT, Finding, align, ceil_div

MAX_COVER = 1 << 31  # nibbles of a section whose matrices are counted one by one


def is_group_scale(m):
    """9: which planes are laid 16 rows side by side."""
    return m.plane == SCALE and m.group_rows == 1 and m.group_cols in (16, 32) and m.bits in (8, 16, 32)


def panel_length(m):
    """9: bytes of one matrix in panel order."""
    if m.plane == WEIGHT and m.bits <= 32:
        return ceil_div(m.rows, 16) * ceil_div(m.cols, 128 // m.bits) * 256
    if is_group_scale(m):
        return ceil_div(m.rows, 16) * m.cols * 16 * m.bits // 8
    return ceil_div(m.rows * m.cols * m.bits, 8)


def panel_rows(m, data):
    """9: the rows of one matrix, padding rows and columns included: yields (row, bytes).

    Word k of a row (k = column div w) lies at byte (r div 16) x TC x 256 + k x 64 + (r mod 16) x 4, so a row is every
    16th 32-bit word of its row block. The scale planes have the same form with words of one scale.
    """
    if not m.rows or not m.cols:
        return
    if m.plane == WEIGHT and m.bits <= 32:
        words, per_row = array.array("I", data), 4 * ceil_div(m.cols, 128 // m.bits)
    elif is_group_scale(m):
        words, per_row = array.array({8: "B", 16: "H", 32: "I"}[m.bits], data), m.cols
    else:
        row_bits = m.cols * m.bits
        if row_bits % 8:  # only 4-bit planes that are no weights: unpack nibbles across row ends
            nibbles = [n for byte in data for n in (byte & 15, byte >> 4)]
            for r in range(m.rows):
                row = nibbles[r * m.cols:(r + 1) * m.cols] + [0]
                yield r, bytes(row[i] | row[i + 1] << 4 for i in range(0, m.cols, 2))
        else:
            for r in range(m.rows):
                yield r, data[r * row_bits // 8:(r + 1) * row_bits // 8]
        return
    for r in range(align(m.rows, 16)):
        start = r // 16 * per_row * 16
        yield r, words[start + r % 16:start + per_row * 16:16].tobytes()


def place_row(m, r, row, out):
    """4.6: writes the elements of row r to their places in the canonical bytes."""
    first, row_bits = m.base + r * m.row_stride, m.cols * m.bits
    if m.col_stride == 1 and first * m.bits % 8 == 0 and row_bits % 8 == 0:
        start = first * m.bits // 8
        out[start:start + row_bits // 8] = row[:row_bits // 8]
        return
    if m.bits > 4:
        size = m.bits // 8
        for c in range(m.cols):
            at = (first + c * m.col_stride) * size
            out[at:at + size] = row[c * size:(c + 1) * size]
        return
    for c in range(m.cols):
        code = row[c // 2] >> (4 * (c & 1)) & 15
        element = first + c * m.col_stride
        shift = 4 * (element & 1)
        out[element // 2] = out[element // 2] & (0xF0 >> shift) | code << shift


def padding_ok(m, r, row):
    """9: zero codes outside the matrix, 1.0 in the padding rows of group scales."""
    if is_group_scale(m):
        if r < m.rows:
            return True
        one = ENCODINGS[m.encoding][2]
        return one is None or row == one * m.cols
    if r >= m.rows:
        return not any(row)
    used = m.cols * m.bits
    rest = row[ceil_div(used, 8):]
    return not any(rest) and (used % 8 == 0 or not row[used // 8] >> 4)


def from_panel(desc, stored):
    """9, inverted. Returns the canonical bytes and whether all padding is as prescribed."""
    out, at, good = bytearray(desc.canonical_length), 0, True
    for m in desc.matrices:
        length = panel_length(m)
        for r, row in panel_rows(m, stored[at:at + length]):
            if r < m.rows:
                place_row(m, r, row, out)
            good = good and padding_ok(m, r, row)
        at += length
    return bytes(out), good


def matrices_cover(matrices, length):
    """4.6: do the matrices hold every bit of `length` bytes exactly once? All elements are known to lie inside."""
    matrices = [m for m in matrices if m.rows and m.cols]
    if sum(m.rows * m.cols * m.bits for m in matrices) != 8 * length:
        return False
    if len(matrices) == 1:  # as many elements as places, so they need only be distinct: the usual two orders are
        m = matrices[0]
        if (m.row_stride, m.col_stride) in ((m.cols, 1), (1, m.rows)):
            return True
    if 2 * length > MAX_COVER:
        raise Finding(LIMIT, "matrices of a section of %d bytes in an unusual order" % length, "4.6")
    seen = bytearray(2 * length)  # one per 4 bits, which is the narrowest element
    for m in matrices:
        mark_elements(m, seen)
    return 0 not in seen


def mark_elements(m, seen):
    """Marks the nibbles of one matrix, a row or a column at a time, whichever is longer."""
    lines = [(m.rows, m.row_stride), (m.cols, m.col_stride)]
    lines.sort()
    (outer, outer_stride), (inner, inner_stride) = lines
    if inner > 1 and not inner_stride:
        return  # all of a line is one element: the others stay unmarked
    width = m.bits // 4
    for i in range(outer):
        first = (m.base + i * outer_stride) * width
        stop = first + (inner - 1) * inner_stride * width + 1
        for k in range(width):
            seen[first + k:stop + k:max(inner_stride, 1) * width] = b"\1" * inner
