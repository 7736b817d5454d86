"""Conventions, file headers and table sets of a moepack container: sections 2, 3 and 4.1 of container.md, and its numbers.

Part of reader.py, the independent reader. Numbers in docstrings are sections of container.md.
"""
import collections
import struct
import sys

try:
    import xxhash
except ImportError:
    sys.exit("this needs the Python module xxhash (package python3-xxhash; plain python3 may be another one)")

CORRUPT, INCOMPLETE, UNSUPPORTED = "corrupt", "incomplete", "unsupported"
LIMIT = "limit"
EXIT_CODE = {CORRUPT: 3, INCOMPLETE: 4, UNSUPPORTED: 5, LIMIT: 6}

MAGIC = b"\x89MPK\r\n\x1a\n"
VERSION = (0, 1)
KIND_INDEX, KIND_TRUNK, KIND_EXPERTS = 1, 2, 3
HEADER_LENGTH = 128
PAGE = 4096
SMALL_SECTION = 2048
NONE32 = 0xFFFFFFFF
PART = 4 << 20
PARTS_ABOVE = 8 << 20
LIMIT_64 = 1 << 64
LIMIT_FILE = 1 << 63

# 4.1: id -> name, format of one entry
TABLES = {
    1: ("INFO", "<16s16sIIIIIIIIIIQQ40s"),
    2: ("SHARDS", "<IIIIQQQ16sQ"),
    3: ("BLOCKS", "<IIIIIIQII24s"),
    4: ("SCHEMAS", "<II"),
    5: ("DESCS", "<IIHBBIIIIIQQ16s"),
    6: ("MATRICES", "<HHHHIIQQQQQQ"),
    7: ("DIMS", "<Q"),
    8: ("POLICIES", "<II"),
    9: ("FIELDS", "<HHIQ"),
    10: ("RECORDS", "<IIQQQ"),
    11: ("SECTIONS", "<QQQQIB3s"),
    12: ("PARTS", "<IIQ"),
    13: ("TENSORS", "<IIIIQII"),
    14: ("FILES", "<IIIIQQ16s16s"),
    15: ("ROLES", "<HHI"),
    16: ("STRINGS", None),
    20: ("TAIL_RECORDS", "<IIIIQQQ"),
    21: ("TAIL_OWNERS", "<II"),
}
ENTRY_SIZE = {i: (struct.calcsize(f) if f else 1) for i, (_, f) in TABLES.items()}
INDEX_TABLES = list(range(1, 17))
PLAN_TABLES = list(range(2, 10)) + list(range(13, 17))
TRUNK_TAIL_TABLES = list(range(1, 10)) + list(range(11, 17)) + [21]
EXPERT_TAIL_TABLES = [11, 12, 20]

# 4.3: number -> name, width in bits
DTYPES = {1: ("BOOL", 8), 2: ("U8", 8), 3: ("I8", 8), 4: ("I16", 16), 5: ("U16", 16), 6: ("F16", 16), 7: ("BF16", 16),
          8: ("I32", 32), 9: ("U32", 32), 10: ("F32", 32), 11: ("F64", 64), 12: ("I64", 64), 13: ("U64", 64),
          14: ("C64", 64), 15: ("F8_E4M3", 8), 16: ("F8_E5M2", 8), 17: ("F8_E8M0", 8), 18: ("F8_E4M3FNUZ", 8),
          19: ("F8_E5M2FNUZ", 8), 20: ("F6_E2M3", 6), 21: ("F6_E3M2", 6), 22: ("F4", 4)}
ROLES = {0: "none", 1: "gate", 2: "up", 3: "down", 16: "router", 17: "router_bias", 18: "logit_bias", 19: "latent_down",
         20: "latent_norm", 21: "latent_up", 22: "shared_gate", 23: "shared_up", 24: "shared_down", 25: "shared_router",
         26: "token_table"}
PLANES = {0: "none", 1: "weight", 2: "scale", 3: "global_scale", 4: "bias", 5: "shape", 6: "other", 7: "global_divisor"}
WEIGHT, SCALE = 1, 2
# number -> name, width in bits, bytes of 1.0 where the encoding can be a group scale (section 9)
ENCODINGS = {0: ("none", None, None), 1: ("F32", 32, b"\x00\x00\x80\x3f"), 2: ("BF16", 16, b"\x80\x3f"), 3: ("F16", 16, b"\x00\x3c"),
             4: ("E2M1", 4, None), 5: ("E4M3", 8, b"\x38"), 6: ("E8M0", 8, b"\x7f"), 7: ("INT4_OFFSET", 4, None),
             8: ("I32", 32, None), 9: ("I64", 64, None)}
LAYOUTS = {0: "canonical", 1: "panel"}
CODECS = {0: "raw"}
STACKS = {0: "main", 1: "encoder", 2: "decoder", 3: "mtp"}
FILE_KINDS = {0: "safetensors", 1: "index", 2: "config", 3: "side"}
# section 8: the order of a block's role tensors in the trunk
ROLE_ORDER = [16, 17, 18, 26, 19, 25, 22, 23, 20, 21, 24]

U64, F64 = 1, 2
# 6: key -> name, type, allowed values of an enumeration or None
POLICY_KEYS = {
    1: ("hidden", U64, None),
    2: ("expert_input", U64, None),
    3: ("intermediate", U64, None),
    4: ("top_k", U64, None),
    5: ("score", U64, range(6)),
    6: ("select", U64, range(3)),
    7: ("weight_from", U64, range(2)),
    8: ("renormalize", U64, range(3)),
    9: ("renorm_eps", F64, None),
    10: ("renorm_k1", U64, range(2)),
    11: ("scale", F64, None),
    12: ("scale_when", U64, range(2)),
    13: ("groups", U64, None),
    14: ("groups_kept", U64, None),
    15: ("group_score", U64, range(2)),
    16: ("group_mask", U64, range(2)),
    17: ("logit_bias", U64, range(2)),
    18: ("activation", U64, range(8)),
    19: ("gated", U64, range(2)),
    20: ("act_alpha", F64, None),
    21: ("act_limit", F64, None),
    22: ("situ_beta", F64, None),
    23: ("situ_linear_beta", F64, None),
    24: ("expert_bias", U64, range(2)),
    25: ("latent", U64, range(2)),
    26: ("latent_norm", U64, range(2)),
    27: ("norm_eps", F64, None),
    28: ("shared_width", U64, None),
    29: ("shared_gate", U64, range(2)),
    30: ("shared_activation", U64, range(8)),
    31: ("shared_act_limit", F64, None),
    32: ("weight_applied", U64, range(3)),
    33: ("token_ids", U64, range(2)),
    34: ("sparsemixer_eps", F64, None),
    35: ("capacity", U64, range(3)),
    36: ("capacity_tokens", U64, None),
    37: ("capacity_factor", F64, None),
    38: ("capacity_min", U64, None),
    39: ("router_dtype", U64, (6, 7, 10, 11)),
}


class Finding(Exception):
    """One thing that is wrong: a verdict (section 2) and where it applies."""

    def __init__(self, verdict, message, rule="", file=None, layer=None, expert=None, section=None, offset=None,
                 length=None, expected=None, found=None):
        super().__init__(message)
        self.verdict, self.message, self.rule, self.file = verdict, message, rule, file
        self.layer, self.expert, self.section = layer, expert, section
        self.offset, self.length, self.expected, self.found = offset, length, expected, found

    def line(self):
        where = [str(self.file)] if self.file is not None else []
        for key in ("layer", "expert", "section", "offset"):
            value = getattr(self, key)
            if value is not None:
                where.append("%s %s" % (key, value))
        rule = " (container.md %s)" % self.rule if self.rule else ""
        return "%s: %s: %s%s" % (self.verdict, ", ".join(where), self.message, rule)

    def as_json(self):
        keys = ("verdict", "file", "layer", "expert", "section", "offset", "length", "expected", "found", "rule", "message")
        return {key: getattr(self, key) for key in keys}


def corrupt(rule, message, **where):
    return Finding(CORRUPT, message, rule, **where)


def unsupported(rule, message, **where):
    return Finding(UNSUPPORTED, message, rule, **where)


def incomplete(rule, message, **where):
    return Finding(INCOMPLETE, message, rule, **where)


def verdict_of(findings):
    """2: one verdict for several findings. Corrupt wins over incomplete; both over unsupported."""
    for verdict in (CORRUPT, INCOMPLETE, UNSUPPORTED, LIMIT):
        if any(f.verdict == verdict for f in findings):
            return verdict
    return "ok"


# ------------------------------------------------------------------------------------------------ 2 conventions


def hash64(data):
    """2: XXH3-64, seed 0."""
    return xxhash.xxh3_64_intdigest(data)


def hash128(data):
    """2: XXH3-128, seed 0, as the 16 stored bytes: low half, then high half."""
    return xxhash.xxh3_128_intdigest(data).to_bytes(16, "little")


def text64(value):
    return "%016x" % value


def text128(stored):
    """2: high half then low half."""
    return "%032x" % int.from_bytes(stored, "little")


EMPTY_HASH = hash64(b"")


def align(value, to):
    return (value + to - 1) // to * to


def ceil_div(a, b):
    return (a + b - 1) // b


def text(raw):
    """2: names are UTF-8; other bytes survive a round trip to the file system."""
    return raw.decode("utf-8", "surrogateescape")


# ------------------------------------------------------------------------------------------------ 3 file headers


def check_first_64(head, name):
    """3.1 and steps 1 to 5 of section 10, as far as they need the first 64 bytes only. Returns kind, file length."""
    if not MAGIC.startswith(head[:8]) and head[:8] != MAGIC:
        raise corrupt("3.1", "not a moepack file: wrong magic", file=name, offset=0)
    if len(head) < 64:
        raise incomplete("10", "shorter than 64 bytes", file=name, length=len(head))
    if hash64(head[:56]) != struct.unpack_from("<Q", head, 56)[0]:
        raise corrupt("3.1", "hash of the first 64 bytes does not match", file=name, offset=56)
    major, minor, kind, must, _may, header_length, reserved1, file_length, reserved2 = struct.unpack_from("<HHIQQIIQQ", head, 8)
    if (major, minor) != VERSION:
        raise unsupported("12", "version %d.%d, this reader knows %d.%d" % ((major, minor) + VERSION), file=name, offset=8)
    if must:
        raise unsupported("3.1", "must-understand bits %#x" % must, file=name, offset=16)
    if reserved1 or reserved2:
        raise corrupt("3.1", "reserved field is not zero", file=name, offset=36 if reserved1 else 48)
    if kind not in (KIND_INDEX, KIND_TRUNK, KIND_EXPERTS):
        raise corrupt("3.1", "unknown kind %d" % kind, file=name, offset=12)
    if header_length != HEADER_LENGTH:
        raise corrupt("3.1", "header length %d instead of 128" % header_length, file=name, offset=32)
    return kind, file_length


def check_second_64(head, name):
    """3.2, 3.3: the hash of bytes 64..119, the same for all kinds."""
    if len(head) < HEADER_LENGTH:
        raise corrupt("3.1", "file length leaves no room for the header", file=name)
    if hash64(head[64:120]) != struct.unpack_from("<Q", head, 120)[0]:
        raise corrupt("3.2", "hash of bytes 64..119 does not match", file=name, offset=120)


def check_length(real, recorded, name):
    """10 step 6. Returns a finding when the file is too short, because step 7 may still say corrupt."""
    if real > recorded:
        return corrupt("3.1", "%d bytes long, %d recorded" % (real, recorded), file=name, length=real)
    if real < recorded:
        return incomplete("3.1", "%d bytes long, %d recorded" % (real, recorded), file=name, length=real)
    return None


IndexHeader = collections.namedtuple("IndexHeader", "file_length set_offset set_length root_hash")
ShardHeader = collections.namedtuple("ShardHeader", "kind file_length plan_id number tail_offset tail_length root")


def read_index_header(head, real_length, name):
    """3.2 and steps 1 to 7 of section 10."""
    kind, file_length = check_first_64(head, name)
    if kind != KIND_INDEX:
        raise corrupt("3.1", "kind %d is not an index" % kind, file=name, offset=12)
    wrong_length = check_length(real_length, file_length, name)
    if wrong_length and (wrong_length.verdict == CORRUPT or len(head) < HEADER_LENGTH):
        raise wrong_length
    check_second_64(head, name)
    set_offset, set_length, root, reserved = struct.unpack_from("<QQ16s24s", head, 64)
    if any(reserved):
        raise corrupt("3.2", "reserved field is not zero", file=name, offset=96)
    if set_offset != HEADER_LENGTH or set_length != file_length - HEADER_LENGTH:
        raise corrupt("3.2", "table set does not fill the file", file=name, offset=64)
    if wrong_length:
        raise wrong_length
    return IndexHeader(file_length, set_offset, set_length, root)


def read_shard_header(head, real_length, name, expected_kind):
    """3.3 and steps 1 to 7 of section 10. Returns the header and a finding when the file is too short."""
    kind, file_length = check_first_64(head, name)
    if kind != expected_kind:
        raise corrupt("3.1", "kind %d, the index says %d" % (kind, expected_kind), file=name, offset=12)
    wrong_length = check_length(real_length, file_length, name)
    if wrong_length and (wrong_length.verdict == CORRUPT or len(head) < HEADER_LENGTH):
        raise wrong_length
    check_second_64(head, name)
    plan, number, reserved, tail_offset, tail_length, root = struct.unpack_from("<16sIIQQ16s", head, 64)
    if reserved:
        raise corrupt("3.3", "reserved field is not zero", file=name, offset=84)
    check_tail_place(tail_offset, tail_length, file_length, name)
    return ShardHeader(kind, file_length, plan, number, tail_offset, tail_length, root), wrong_length


def check_tail_place(tail_offset, tail_length, file_length, name):
    """3.3: a multiple of 4096, at least 4096, and the tail ends the file."""
    if tail_offset % PAGE or tail_offset < PAGE:
        raise corrupt("3.3", "tail offset %d" % tail_offset, file=name)
    if file_length >= LIMIT_FILE or tail_offset > file_length or tail_length != file_length - tail_offset:
        raise corrupt("3.3", "the tail does not end the file", file=name)


# ------------------------------------------------------------------------------------------------ 4.1 table set


def read_table_set(data, name, base):
    """4.1: data is the whole set, base its place in the file. Returns {id: bytes of the table}."""
    if len(data) < 8:
        raise corrupt("4.1", "table set shorter than its directory", file=name, offset=base)
    count, reserved = struct.unpack_from("<II", data, 0)
    if not 1 <= count <= 64:
        raise corrupt("4.1", "%d tables" % count, file=name, offset=base)
    if reserved:
        raise corrupt("4.1", "reserved field is not zero", file=name, offset=base + 4)
    end = 8 + 32 * count
    if len(data) < end:
        raise corrupt("4.1", "table set shorter than its directory", file=name, offset=base)
    tables, last = {}, 0
    for i in range(count):
        at = 8 + 32 * i
        table, size, entries, offset, reserved = struct.unpack_from("<IIQQQ", data, at)
        where = {"file": name, "offset": base + at}
        if table not in TABLES:
            raise corrupt("4.1", "unknown table %d" % table, **where)
        if table <= last:
            raise corrupt("4.1", "table %d after table %d" % (table, last), **where)
        if size != ENTRY_SIZE[table]:
            raise corrupt("4.1", "table %d has entries of %d bytes" % (table, size), **where)
        if reserved:
            raise corrupt("4.1", "reserved field is not zero", **where)
        start = align(end, 64)
        if offset != start:
            raise corrupt("4.1", "table %d starts at %d instead of %d" % (table, offset, start), **where)
        if start > len(data) or entries > (len(data) - start) // size:
            raise corrupt("4.1", "table %d does not fit" % table, **where)
        if data[end:start].strip(b"\0"):
            raise corrupt("4.1", "gap before table %d is not zero" % table, **where)
        if size > 1 and table not in (10, 11) and entries >= NONE32:
            raise corrupt("11", "table %d has %d entries" % (table, entries), **where)
        last, end = table, start + size * entries
        tables[table] = bytes(data[start:end])
    if end != len(data):
        raise corrupt("4.1", "table set ends %d bytes early" % (len(data) - end), file=name, offset=base + end)
    return tables


def entries_of(tables, table):
    """All entries of a table as tuples."""
    return list(struct.iter_unpack(TABLES[table][1], tables[table]))


def table_set(parts):
    """4.1, the other way round: the set that consists of (id, bytes) in ascending id."""
    directory, body = struct.pack("<II", len(parts), 0), bytearray()
    end = 8 + 32 * len(parts)
    start = end
    for table, raw in parts:
        offset = align(start + len(body), 64)
        body += bytes(offset - start - len(body)) + raw
        directory += struct.pack("<IIQQQ", table, ENTRY_SIZE[table], len(raw) // ENTRY_SIZE[table], offset, 0)
    return directory + bytes(body)
