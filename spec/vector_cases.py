"""The cases of vectors/invalid.json: for each, how a valid container is changed and the verdict it must get."""
import struct

from vector_writer import BLOCKS, DESCS, DIMS, DTYPE, ENUMS, FIELDS, FILES, INFO, MATRICES, NONE32, PARTS, POLICIES, POLICY_KEYS
from vector_writer import RECORDS, ROLES, SCHEMAS, SECTIONS, SHARDS, SIZE, STRINGS, TAIL_OWNERS, TAIL_RECORDS, TENSORS
from vector_writer import B, Container, Shape, Trunk, basic, by_expert, h64, minimal, put_experts

# ------------------------------------------------------------------------------------------------ the invalid cases
#
# Each breaks one rule; hashes around it are right, so that only that rule can reject it. `at` says when: "open": reading
# the index alone must refuse; "directory": the files are fine, their place is not; "content": the index is fine and a
# shard is not; "verify": refused there at the latest.

CASES = []
CORRUPT, INCOMPLETE, UNSUPPORTED, OK = "corrupt", "incomplete", "unsupported", "ok"
TRUNK, EXPERTS_0, EXPERTS_2 = "trunk-000.mpk", "experts-0000-0001.mpk", "experts-0002-0002.mpk"


def case(name, verdict, at, rule, base="basic-panel", build=None, directory=None, **hooks):
    """hooks: `change` works on the tables before sealing, the others are those of Container.seal. directory: its name."""
    assert name not in [c["name"] for c in CASES], name
    CASES.append({"name": name, "verdict": verdict, "at": at, "rule": rule, "base": base, "build": build, "directory": directory, "hooks": hooks})


def poke(offset, form, *new):
    """A hook that stores numbers in bytes."""
    return lambda *args: struct.pack_into("<" + form, args[-1], offset, *new)


def poke_shard(number, offset, form, *new):
    return lambda n, raw: struct.pack_into("<" + form, raw, offset, *new) if n == number else None


def flip(file, offset, mask=1):
    """A hook that damages a finished file; a negative offset counts from its end."""
    def hook(files):
        files[file][offset] ^= mask
    return hook


def cut(file, length):
    """Truncates; a negative length leaves that much off."""
    def hook(files):
        del files[file][length:]
    return hook


def both(*hooks):
    def hook(*args):
        for h in hooks:
            h(*args)
    return hook


def put(table, entry, offset, form, *new):
    return lambda c: c.put(table, entry, offset, form, *new)


def add(table, entry, offset, form, by):
    return lambda c: c.put(table, entry, offset, form, (c.get(table, entry, offset, form) + by) % (1 << 8 * struct.calcsize("<" + form)))


def rename(table, entry, offset, name):
    return lambda c: c.t[table].__setitem__(slice(entry * SIZE[table] + offset, entry * SIZE[table] + offset + 8), c.text(name))


def swap(table, i, j):
    def change(c):
        n, t = SIZE[table], c.t[table]
        t[i * n:i * n + n], t[j * n:j * n + n] = t[j * n:j * n + n], t[i * n:i * n + n]
    return change


def more(table, *raw):
    """Appends an entry that nothing refers to."""
    return lambda c: c.t[table].extend(b"".join(raw))


def directory(table, offset, form, *new):
    """A hook on the assembled table set: changes the directory entry of one table."""
    return poke(8 + 32 * (table - 1) + offset, form, *new)


def file_header_cases():
    flip_magic = {"wrong": flip("index.mpk", 1, 0x20), "seven-bit": flip("index.mpk", 0, 0x80)}
    for name, hook in flip_magic.items():
        case("magic-" + name, CORRUPT, "open", "3.1", files=hook)
    case("magic-text-mode", CORRUPT, "open", "3.1", files=lambda files: files["index.mpk"].__delitem__(slice(4, 5)))
    case("shard-magic-wrong", CORRUPT, "content", "3.1", files=flip(EXPERTS_0, 3))
    for name, offset, form, value, verdict in (
            ("version-minor-newer", 10, "H", 2, UNSUPPORTED), ("version-minor-older", 10, "H", 0, UNSUPPORTED),
            ("version-major-newer", 8, "H", 1, UNSUPPORTED), ("must-understand-low", 16, "Q", 1, UNSUPPORTED),
            ("must-understand-high", 16, "Q", 1 << 63, UNSUPPORTED), ("may-ignore-low", 24, "Q", 1, OK),
            ("may-ignore-all", 24, "Q", (1 << 64) - 1, OK), ("header-length-64", 32, "I", 64, CORRUPT),
            ("header-length-4096", 32, "I", 4096, CORRUPT), ("header-reserved-36", 36, "I", 1, CORRUPT),
            ("header-reserved-48", 48, "Q", 1 << 40, CORRUPT), ("kind-unknown", 12, "I", 4, CORRUPT), ("kind-zero", 12, "I", 0, CORRUPT)):
        rule = "12" if name.startswith("version") else "3.1"
        case("index-" + name, verdict, "open", rule, index_header=poke(offset, form, value))
        case("shard-" + name, verdict, "content", rule, shard_header=poke_shard(1, offset, form, value))
        if name in ("version-minor-newer", "may-ignore-low", "header-reserved-36"):
            case("trunk-" + name, verdict, "content", rule, shard_header=poke_shard(0, offset, form, value))
    case("index-kind-shard", CORRUPT, "open", "3.1", index_header=poke(12, "I", 3))
    case("shard-kind-trunk", CORRUPT, "content", "3.1", shard_header=poke_shard(1, 12, "I", 2))
    case("shard-kind-index", CORRUPT, "content", "3.1", shard_header=poke_shard(1, 12, "I", 1))
    case("index-hash-first", CORRUPT, "open", "3.1", files=flip("index.mpk", 57))
    case("index-hash-before-version", CORRUPT, "open", "10", files=flip("index.mpk", 10, 3))
    case("shard-hash-first", CORRUPT, "content", "3.1", files=flip(EXPERTS_2, 63))
    case("index-hash-second", CORRUPT, "open", "3.2", files=flip("index.mpk", 120))
    case("index-set-offset", CORRUPT, "open", "3.2", index_header=poke(64, "Q", 192))
    case("index-set-length", CORRUPT, "open", "3.2", index_header=lambda raw: struct.pack_into("<Q", raw, 72, struct.unpack_from("<Q", raw, 72)[0] - 64))
    case("index-reserved-96", CORRUPT, "open", "3.2", index_header=poke(96, "B", 1))
    case("index-reserved-119", CORRUPT, "open", "3.2", index_header=poke(119, "B", 1))
    case("index-root-hash", CORRUPT, "open", "5.5", index_header=poke(80, "Q", 1))
    case("index-table-flipped", CORRUPT, "open", "5.5", files=flip("index.mpk", -1))
    case("shard-hash-second", CORRUPT, "content", "3.3", files=flip(EXPERTS_0, 127))
    case("shard-reserved-84", CORRUPT, "content", "3.3", shard_header=poke_shard(1, 84, "I", 1))
    case("shard-header-padding", CORRUPT, "content", "3.3", files=flip(EXPERTS_0, 4095))
    case("trunk-header-padding", CORRUPT, "content", "3.3", files=flip(TRUNK, 128))


def file_length_cases():
    for length in (0, 7, 40, 64, 127, 128, 1000, -1):
        name = "one-less" if length < 0 else str(length)
        case("index-truncated-%s" % name, INCOMPLETE, "open", "10", files=cut("index.mpk", length))
        case("shard-truncated-%s" % name, INCOMPLETE, "content", "10", files=cut(EXPERTS_0, length))
    case("shard-truncated-data", INCOMPLETE, "content", "10", files=cut(EXPERTS_0, 5000))
    case("trunk-truncated-data", INCOMPLETE, "content", "10", files=cut(TRUNK, 9000))
    case("index-truncated-wrong-magic", CORRUPT, "open", "10", files=both(flip("index.mpk", 2), cut("index.mpk", 9)))
    case("index-truncated-wrong-header", CORRUPT, "open", "10", files=both(flip("index.mpk", 70), cut("index.mpk", 900)))
    case("shard-truncated-wrong-header", CORRUPT, "content", "10", files=both(flip(EXPERTS_0, 70), cut(EXPERTS_0, 6000)))
    case("shard-truncated-wrong-section", CORRUPT, "content", "10", files=both(flip(EXPERTS_0, 4097), cut(EXPERTS_0, -1)))
    case("shard-truncated-wrong-plan", CORRUPT, "content", "10", shard_header=poke_shard(1, 64, "B", 1), files=cut(EXPERTS_0, -1))
    case("index-extended", CORRUPT, "open", "10", files=lambda files: files["index.mpk"].extend(b"\0"))
    case("shard-extended", CORRUPT, "content", "10", files=lambda files: files[EXPERTS_2].extend(bytes(4096)))
    case("trunk-extended", CORRUPT, "content", "10", files=lambda files: files[TRUNK].extend(b"\0"))
    case("index-length-smaller", CORRUPT, "open", "10", index_header=lambda raw: struct.pack_into("<Q", raw, 40, struct.unpack_from("<Q", raw, 40)[0] - 64))

    def larger(raw):
        for at in (40, 72):
            struct.pack_into("<Q", raw, at, struct.unpack_from("<Q", raw, at)[0] + 64)
    case("index-length-larger", INCOMPLETE, "open", "10", index_header=larger)
    case("index-missing", INCOMPLETE, "open", "10", files=lambda files: files.pop("index.mpk"))
    case("shard-missing", INCOMPLETE, "content", "10", files=lambda files: files.pop(EXPERTS_2))
    case("trunk-missing", INCOMPLETE, "content", "10", files=lambda files: files.pop(TRUNK))
    case("shard-missing-and-damage", CORRUPT, "content", "10", files=both(lambda files: files.pop(EXPERTS_2), flip(EXPERTS_0, 4100)))
    case("shard-other-container", CORRUPT, "content", "3.3", copy=(TRUNK, "by-layer", TRUNK))
    case("index-other-container", CORRUPT, "content", "3.3", copy=("index.mpk", "subset", "index.mpk"))
    case("directory-partial", INCOMPLETE, "directory", "10", directory="case.moepack.partial")
    case("shard-swapped", CORRUPT, "content", "3.3", copy=(EXPERTS_0, "basic-panel", EXPERTS_2))


def shard_identity_cases():
    case("shard-plan-id", CORRUPT, "content", "3.3", shard_header=poke_shard(2, 64, "Q", 5))
    case("shard-number", CORRUPT, "content", "3.3", shard_header=poke_shard(2, 80, "I", 1))
    case("shard-root-in-header", CORRUPT, "content", "5.2", shard_header=poke_shard(2, 104, "Q", 5))
    case("shard-root-in-index", CORRUPT, "content", "5.2", shards=lambda c: c.put(SHARDS, 2, 40, "Q", 5))
    case("shard-length-in-index", CORRUPT, "content", "10", shards=lambda c: c.put(SHARDS, 2, 16, "QQQ", c.get(SHARDS, 2, 16, "Q") + 4096,
                                                                           c.get(SHARDS, 2, 24, "Q") + 4096, c.get(SHARDS, 2, 32, "Q")))
    case("shard-tail-offset-unaligned", CORRUPT, "content", "3.3", shard_header=lambda n, raw: struct.pack_into(
        "<QQ", raw, 88, struct.unpack_from("<Q", raw, 88)[0] + 64, struct.unpack_from("<Q", raw, 96)[0] - 64) if n == 1 else None,
        shards=lambda c: c.put(SHARDS, 1, 24, "QQ", c.get(SHARDS, 1, 24, "Q") - 64, c.get(SHARDS, 1, 32, "Q") + 64))
    case("shard-tail-flipped", CORRUPT, "content", "5.2", files=flip(EXPERTS_0, -1))
    case("trunk-tail-flipped", CORRUPT, "content", "5.2", files=flip(TRUNK, -1))
    tail = lambda number, action: lambda n, tables: action(tables) if n == number else None
    for name, shard, table, offset in (
            ("expert-tail-block", 1, TAIL_RECORDS, 0), ("expert-tail-expert", 1, TAIL_RECORDS, 4), ("expert-tail-schema", 1, TAIL_RECORDS, 8),
            ("expert-tail-reserved", 1, TAIL_RECORDS, 12), ("expert-tail-offset", 1, TAIL_RECORDS, 16), ("expert-tail-length", 1, TAIL_RECORDS, 24),
            ("expert-tail-first-section", 1, TAIL_RECORDS, 32), ("expert-tail-section-hash", 1, SECTIONS, 16),
            ("expert-tail-canonical-hash", 1, SECTIONS, 24), ("trunk-tail-owner", 0, TAIL_OWNERS, 4), ("trunk-tail-owner-kind", 0, TAIL_OWNERS, 0),
            ("trunk-tail-section", 0, SECTIONS, 16), ("trunk-tail-desc", 0, DESCS, 8), ("trunk-tail-policy", 0, FIELDS, 8),
            ("trunk-tail-string", 0, STRINGS, 3), ("trunk-tail-canonical-root", 0, INFO, 0), ("trunk-tail-shard-root", 0, SHARDS, 40)):
        case(name, CORRUPT, "content", "8" if shard == 0 else "7",
             tail_tables=tail(shard, lambda t, table=table, offset=offset: t[table].__setitem__(offset, t[table][offset] ^ 1)))
    case("expert-tail-table-missing", CORRUPT, "content", "7", tail_tables=tail(1, lambda t: t.pop(PARTS)))
    case("expert-tail-table-more", CORRUPT, "content", "7", tail_tables=tail(1, lambda t: t.update({DIMS: bytearray(8)})))
    case("expert-tail-record-missing", CORRUPT, "content", "7", tail_tables=tail(1, lambda t: t[TAIL_RECORDS].__delitem__(slice(-40, None))))
    case("trunk-tail-table-missing", CORRUPT, "content", "8", tail_tables=tail(0, lambda t: t.pop(PARTS)))
    case("trunk-tail-records", CORRUPT, "content", "8", tail_tables=tail(0, lambda t: t.update({RECORDS: bytearray(32)})))
    case("expert-tail-unknown-table", CORRUPT, "content", "4.1", tail_bytes=lambda n, raw: struct.pack_into("<I", raw, 8 + 64, 22) if n == 1 else None)


def table_set_cases():
    case("tables-none", CORRUPT, "open", "4.1", index_set=poke(0, "I", 0))
    case("tables-65", CORRUPT, "open", "4.1", index_set=poke(0, "I", 65))
    case("tables-reserved", CORRUPT, "open", "4.1", index_set=poke(4, "I", 1))
    case("table-reserved", CORRUPT, "open", "4.1", index_set=directory(5, 24, "Q", 1))
    case("table-unknown", CORRUPT, "open", "4.1", index_tables=lambda tables: tables.append((17, bytearray(64))))
    case("table-of-a-tail", CORRUPT, "open", "4.1", index_tables=lambda tables: tables.append((TAIL_OWNERS, bytearray(64))))
    case("table-missing", CORRUPT, "open", "4.1", index_tables=lambda tables: tables.pop(11))
    case("tables-out-of-order", CORRUPT, "open", "4.1", index_tables=lambda tables: tables.insert(4, tables.pop(3)))
    case("table-twice", CORRUPT, "open", "4.1", index_tables=lambda tables: tables.insert(7, tables[6]))
    case("table-entry-size", CORRUPT, "open", "4.1", index_set=directory(RECORDS, 4, "IQ", 64, 3))
    case("table-entry-size-zero", CORRUPT, "open", "4.1", index_set=directory(PARTS, 4, "I", 0))
    case("table-too-many-entries", CORRUPT, "open", "4.1", index_set=directory(STRINGS, 8, "Q", 1 << 20))
    case("table-count-overflow", CORRUPT, "open", "4.1", index_set=directory(DIMS, 8, "Q", 1 << 61))
    case("table-offset-huge", CORRUPT, "open", "4.1", index_set=directory(STRINGS, 16, "Q", (1 << 64) - 64))
    case("table-set-longer", CORRUPT, "open", "4.1", index_set=lambda raw: raw.extend(bytes(64)))

    def shift(raw):
        """64 more bytes before table 2: aligned, but not the first multiple of 64."""
        at = struct.unpack_from("<Q", raw, 8 + 32 + 16)[0]
        raw[at:at] = bytes(64)
        for i in range(1, 16):
            struct.pack_into("<Q", raw, 8 + 32 * i + 16, struct.unpack_from("<Q", raw, 8 + 32 * i + 16)[0] + 64)
    case("table-gap-too-wide", CORRUPT, "open", "4.1", index_set=shift)

    def dirty(raw):
        """A byte in the gap behind the directory."""
        assert struct.unpack_from("<Q", raw, 8 + 16)[0] > 8 + 32 * 16
        raw[8 + 32 * 16] = 1
    case("table-gap-not-zero", CORRUPT, "open", "4.1", index_set=dirty)


def one_of_two():
    """minimal with a second expert, which is absent."""
    source, blocks, trunk = minimal()
    blocks[0].experts, blocks[0].schema_of = 2, [0, 0]
    put_experts(source, blocks[0], [1])
    return Container(source, blocks, trunk, 1, lambda b, e: "experts-0000-0000.mpk", present=lambda b, e: e == 0, model="synthetic",
                     store_files=False)


def info_cases():
    case("info-two", CORRUPT, "open", "4.1", change=lambda c: c.t[INFO].extend(c.t[INFO]), tail_tables=lambda n, t: None)
    case("info-none", CORRUPT, "open", "4.1", index_tables=lambda tables: tables.__setitem__(0, (INFO, b"")))
    for name, offset, form, value, verdict in (("family-outside", 36, "I", 1 << 31, CORRUPT), ("model-outside", 40, "I", NONE32, CORRUPT),
                                               ("page-size", 48, "I", 8192, CORRUPT), ("layout", 56, "I", 2, CORRUPT),
                                               ("flags", 64, "I", 4, CORRUPT), ("reserved", 88, "I", 1, CORRUPT),
                                               ("reserved-end", 127, "B", 1, CORRUPT)):
        case("info-" + name, verdict, "open", "4.2", change=put(INFO, 0, offset, form, value))
    case("info-canonical-root", CORRUPT, "verify", "5.4", roots=lambda c: c.put(INFO, 0, 0, "B", c.get(INFO, 0, 0, "B") ^ 1))
    case("info-plan-id", CORRUPT, "verify", "5.6", plan=lambda c: c.put(INFO, 0, 31, "B", c.get(INFO, 0, 31, "B") ^ 1))
    case("info-source-bytes", CORRUPT, "verify", "4.2", change=add(INFO, 0, 72, "Q", 1))
    case("info-source-tensors", CORRUPT, "verify", "4.2", change=add(INFO, 0, 80, "Q", 1))
    case("info-codec-unknown", OK, "open", "4.3", change=put(INFO, 0, 60, "I", 77))
    case("info-quantized-whole", CORRUPT, "open", "4.2", change=put(INFO, 0, 64, "I", 2))
    case("info-quantized-subset", OK, "open", "4.2", base="subset", change=put(INFO, 0, 64, "I", 3))
    case("info-not-subset", CORRUPT, "verify", "4.2", base="subset", change=put(INFO, 0, 64, "I", 0))
    # the same without a file of the source whose missing hash would show it
    case("info-not-subset-record", CORRUPT, "verify", "4.2", base="minimal", build=one_of_two, change=put(INFO, 0, 64, "I", 0))
    case("info-subset-record", OK, "open", "4.8", base="minimal", build=one_of_two)


def shard_table_cases():
    for name, text in (("slash", "sub/shard.mpk"), ("empty", ""), ("dot", "."), ("dot-dot", ".."), ("zero-byte", "a\0b")):
        case("shards-name-" + name, CORRUPT, "open", "4.4", change=rename(SHARDS, 1, 0, text))
    case("shards-name-twice", CORRUPT, "open", "4.4", change=rename(SHARDS, 2, 0, EXPERTS_0))
    case("shards-name-outside", CORRUPT, "open", "4.11", change=put(SHARDS, 1, 4, "I", NONE32))
    for name, offset, form, value in (("kind", 8, "I", 1), ("reserved-12", 12, "I", 1), ("reserved-56", 56, "Q", 1)):
        case("shards-" + name, CORRUPT, "open", "4.4", change=put(SHARDS, 1, offset, form, value))
    case("shards-tail-unaligned", CORRUPT, "open", "4.4", shards=lambda c: c.put(SHARDS, 1, 24, "QQ", c.get(SHARDS, 1, 24, "Q") + 8,
                                                                             c.get(SHARDS, 1, 32, "Q") - 8))
    case("shards-tail-past-end", CORRUPT, "open", "4.4", shards=add(SHARDS, 1, 32, "Q", 8))
    case("shards-tail-overflow", CORRUPT, "open", "4.4", shards=lambda c: c.put(SHARDS, 1, 24, "QQ", (1 << 64) - 4096, c.get(SHARDS, 1, 16, "Q") + 4096))


def block_cases():
    for name, offset, form, value in (("stack", 0, "I", 4), ("prefix-outside", 12, "I", NONE32), ("policy", 20, "I", 1), ("first-record", 24, "Q", 2),
                                      ("first-role", 32, "I", NONE32), ("roles-outside", 36, "I", 9), ("reserved", 40, "Q", 1), ("experts", 16, "I", 4)):
        case("blocks-" + name, CORRUPT, "open", "4.5", change=put(BLOCKS, 1, offset, form, value))
    case("blocks-prefix-without-dot", CORRUPT, "open", "4.5", change=add(BLOCKS, 1, 12, "I", -1))
    case("blocks-experts-huge", CORRUPT, "open", "4.5", change=put(BLOCKS, 1, 16, "I", NONE32))
    case("blocks-twice", CORRUPT, "open", "4.5", change=put(BLOCKS, 1, 4, "I", 1))
    case("blocks-order", CORRUPT, "open", "4.5", change=put(BLOCKS, 0, 4, "I", 7))


def desc_raw(c, dtype, dims, length, name="", layout=0, matrices=0):
    """A description that nothing uses."""
    first = len(c.t[DIMS]) // 8
    for d in dims:
        c.t[DIMS] += struct.pack("<Q", d)
    c.t[DESCS] += c.text(name) + struct.pack("<HBBIIIIIQQ16s", DTYPE[dtype], layout, 0, len(dims), first, 0, matrices, 0, length, length, bytes(16))


def entry_with(c, table, offset, form, value):
    """The first entry of a table with this value in a field."""
    return next(i for i in range(len(c.t[table]) // SIZE[table]) if c.get(table, i, offset, form) == value)


def schema_cases():
    case("schemas-empty", CORRUPT, "open", "4.6", change=more(SCHEMAS, struct.pack("<II", 0, 0)))
    case("schemas-outside", CORRUPT, "open", "4.6", change=more(SCHEMAS, struct.pack("<II", 1, NONE32)))
    for name, offset, form, value, verdict in (
            ("name-outside", 4, "I", NONE32, CORRUPT), ("dtype-zero", 8, "H", 0, UNSUPPORTED), ("dtype-unknown", 8, "H", 23, UNSUPPORTED),
            ("layout", 10, "B", 2, CORRUPT), ("flags", 11, "B", 4, CORRUPT), ("flat-not-fused", 11, "B", 2, CORRUPT), ("dims-outside", 12, "I", 1 << 30, CORRUPT),
            ("first-dim", 16, "I", NONE32, CORRUPT), ("matrices-outside", 24, "I", NONE32, CORRUPT), ("first-matrix", 20, "I", NONE32, CORRUPT),
            ("reserved-28", 28, "I", 1, CORRUPT), ("reserved-48", 48, "Q", 1, CORRUPT), ("reserved-63", 63, "B", 1, CORRUPT)):
        case("descs-" + name, verdict, "open", "4.3" if verdict == UNSUPPORTED else "4.6", change=put(DESCS, 0, offset, form, value))
    case("descs-canonical-length", CORRUPT, "open", "4.6", change=add(DESCS, 0, 32, "Q", 1))
    case("descs-decoded-length", CORRUPT, "open", "4.6", change=add(DESCS, 0, 40, "Q", 256))
    case("descs-panel-opaque", CORRUPT, "open", "4.6", change=put(DESCS, 0, 24, "I", 0))
    case("descs-two-experts", CORRUPT, "open", "4.6", change=rename(DESCS, 0, 0, "experts.{expert}.{expert}.w1"))
    case("descs-fused-with-expert", CORRUPT, "open", "4.6", change=put(DESCS, 0, 11, "B", 1))
    case("descs-fused-trunk", CORRUPT, "open", "4.6", change=put(DESCS, 6, 11, "B", 1))
    case("descs-not-fused-without-expert", CORRUPT, "open", "4.6", base="families",
         change=lambda c: c.put(DESCS, entry_with(c, DESCS, 11, "B", 1), 11, "B", 0))
    case("descs-name-not-fused", CORRUPT, "open", "4.6", change=rename(DESCS, 0, 0, "experts.w1.weight_packed"))
    case("descs-overflow", CORRUPT, "open", "10", change=lambda c: desc_raw(c, "U8", (1 << 33, 1 << 33), 1 << 66 & (1 << 64) - 1))
    case("descs-overflow-bits", CORRUPT, "open", "10", change=lambda c: desc_raw(c, "F64", (1 << 58,), 1 << 55))
    case("descs-half-byte", CORRUPT, "open", "4.3", change=lambda c: desc_raw(c, "F4", (3,), 1))
    case("descs-six-bits", CORRUPT, "open", "4.3", change=lambda c: desc_raw(c, "F6_E2M3", (3,), 2))
    for name, offset, form, value, verdict in (
            ("role", 0, "H", 4, UNSUPPORTED), ("role-high", 0, "H", 27, UNSUPPORTED), ("plane", 2, "H", 8, UNSUPPORTED),
            ("encoding", 4, "H", 10, UNSUPPORTED), ("bits", 6, "H", 12, CORRUPT), ("bits-zero", 6, "H", 0, CORRUPT), ("reserved", 56, "Q", 1, CORRUPT),
            ("base", 32, "Q", 1, CORRUPT), ("row-stride", 40, "Q", 33, CORRUPT), ("col-stride", 48, "Q", 2, CORRUPT),
            ("stride-overflow", 40, "Q", 1 << 63, CORRUPT), ("base-overflow", 32, "Q", (1 << 64) - 1, CORRUPT)):
        case("matrices-" + name, verdict, "open", "4.3" if verdict == UNSUPPORTED else "4.6", change=put(MATRICES, 0, offset, form, value))
    case("matrices-group-rows-zero", CORRUPT, "open", "4.6", change=put(MATRICES, 1, 8, "I", 0))
    case("matrices-group-of-weights", CORRUPT, "open", "4.6", change=put(MATRICES, 0, 8, "II", 1, 32))
    # E4M3 has 8 bits
    case("matrices-bits-of-encoding", CORRUPT, "open", "4.6", change=put(MATRICES, 0, 4, "H", 5))
    # 39 of 40 rows: the last one is in no matrix, and the panel has the same length
    case("matrices-not-covering", CORRUPT, "open", "4.6", change=add(MATRICES, 0, 16, "Q", -1))
    case("matrices-not-covering-column", CORRUPT, "open", "4.6", change=add(MATRICES, 0, 24, "Q", -1))
    # interleaved gate and up: both on the places of gate, or gate's rows all on the first
    case("matrices-overlap", CORRUPT, "open", "4.6", base="families", change=lambda c: c.put(MATRICES, entry_with(c, MATRICES, 32, "Q", 1), 32, "Q", 0))
    case("matrices-overlap-rows", CORRUPT, "open", "4.6", base="families",
         change=lambda c: c.put(MATRICES, entry_with(c, MATRICES, 32, "Q", 1) - 1, 40, "Q", 0))
    case("matrices-overlap-one", CORRUPT, "open", "4.6", change=put(MATRICES, 0, 40, "Q", 31))
    case("matrices-rows", CORRUPT, "open", "4.6", change=add(MATRICES, 0, 16, "Q", 1))
    case("matrices-rows-overflow", CORRUPT, "open", "10", change=put(MATRICES, 0, 16, "Q", (1 << 64) - 1))


def policy_field(name, form, value, block=None):
    """Changes one field of the policy that all blocks of basic-panel share."""
    key = next(k for k, (n, _) in POLICY_KEYS.items() if n == name)
    return put(FIELDS, sorted(POLICY_KEYS).index(key), 8, form, value)


def policy_cases():
    last = len(POLICY_KEYS) - 1
    case("policies-outside", CORRUPT, "open", "4.7", change=put(POLICIES, 0, 4, "I", last + 2))
    case("policies-first", CORRUPT, "open", "4.7", change=put(POLICIES, 0, 0, "I", NONE32))
    case("fields-key-unknown", UNSUPPORTED, "open", "6", change=put(FIELDS, last, 0, "H", 60000))
    case("fields-type", UNSUPPORTED, "open", "6", change=put(FIELDS, 0, 2, "H", 2))
    case("fields-type-unknown", UNSUPPORTED, "open", "6", change=put(FIELDS, 0, 2, "H", 3))
    case("fields-flags", CORRUPT, "open", "4.7", change=put(FIELDS, 0, 4, "I", 2))
    case("fields-overridden", OK, "open", "4.7", change=put(FIELDS, 0, 4, "I", 1))
    case("fields-order", CORRUPT, "open", "4.7", change=swap(FIELDS, 0, 1))
    case("fields-twice", CORRUPT, "open", "4.7", change=lambda c: c.t[FIELDS].__setitem__(slice(16, 32), c.t[FIELDS][0:16]))
    case("fields-missing", CORRUPT, "open", "6", change=lambda c: (c.t[FIELDS].__delitem__(slice(-16, None)), c.put(POLICIES, 0, 4, "I", last)))
    for name in ENUMS:
        case("policy-value-" + name.replace("_", "-"), UNSUPPORTED, "open", "6", change=policy_field(name, "Q", 250))
    for name, key, form, value in (
            ("top-k-zero", "top_k", "Q", 0), ("top-k-above", "top_k", "Q", 4), ("groups-zero", "groups", "Q", 0), ("groups-two", "groups", "Q", 2),
            ("groups-kept-zero", "groups_kept", "Q", 0), ("groups-kept-above", "groups_kept", "Q", 2), ("scale-infinite", "scale", "d", float("inf")),
            ("scale-nan", "scale", "Q", 0x7FF8000000000000), ("renorm-eps-infinite", "renorm_eps", "d", float("-inf")),
            ("norm-eps-nan", "norm_eps", "Q", 0x7FF8000000000001), ("act-limit-infinite", "act_limit", "d", float("inf")),
            ("scale-beyond-binary32", "scale", "d", 1e300), ("norm-eps-negative", "norm_eps", "d", -1.0),
            ("situ-linear-beta-negative", "situ_linear_beta", "d", -25.0), ("situ-beta-zero-as-binary32", "situ_beta", "d", 1e-50),
            ("situ-beta-zero", "situ_beta", "d", 0.0), ("situ-beta-negative", "situ_beta", "d", -4.0), ("latent", "latent", "Q", 0)):
        case("policy-" + name, CORRUPT, "open", "6", change=policy_field(key, form, value))
    for key, (name, kind) in POLICY_KEYS.items():
        if kind == 2:
            case("policy-not-finite-" + name.replace("_", "-"), CORRUPT, "open", "6",
                 change=policy_field(name, "d", float("inf") if key % 2 else float("nan")))
    case("policy-groups-too-small", CORRUPT, "open", "6", change=policy_field("groups", "Q", 3))


def record_cases():
    for name, offset, form, value in (
            ("shard", 0, "I", 3), ("shard-trunk", 0, "I", 0), ("schema", 4, "I", 1), ("offset-unaligned", 8, "Q", 4160), ("offset-zero", 8, "Q", 0),
            ("offset-outside", 8, "Q", 1 << 40), ("offset-overflow", 8, "Q", (1 << 64) - 4096), ("length-unaligned", 16, "Q", 8191),
            ("length-outside", 16, "Q", 1 << 40), ("length-overflow", 16, "Q", (1 << 64) - 4096), ("first-section", 24, "Q", 12),
            ("first-section-outside", 24, "Q", (1 << 64) - 1)):
        case("records-" + name, CORRUPT, "open", "4.8", change=put(RECORDS, 1, offset, form, value))
    case("records-absent-not-zero", CORRUPT, "open", "4.8", base="subset", change=put(RECORDS, 0, 8, "Q", 4096))
    case("records-absent-section", CORRUPT, "open", "4.8", base="subset", change=put(RECORDS, 0, 24, "Q", 1))

    def overlap(c):
        """Expert 1 uses the record of expert 0 as well; both have the right hashes for what lies there."""
        move = c.get(RECORDS, 1, 8, "Q") - c.get(RECORDS, 0, 8, "Q")
        add(RECORDS, 1, 8, "Q", -move)(c)
        for s in range(6):
            add(SECTIONS, 6 + s, 0, "Q", -move)(c)
            c.rehash(1, 6 + s)
            c.put(SECTIONS, 6 + s, 24, "Q", c.get(SECTIONS, s, 24, "Q"))
    case("records-overlap", CORRUPT, "open", "10", change=overlap)


def section_cases():
    outside = lambda c: c.put(SECTIONS, 6, 0, "Q", c.get(RECORDS, 0, 8, "Q"))
    case("sections-outside-record", CORRUPT, "open", "10", change=lambda c: (outside(c), c.rehash(1, 6)))
    case("sections-offset-overflow", CORRUPT, "open", "10", change=put(SECTIONS, 6, 0, "Q", (1 << 64) - 8))
    case("sections-overlap", CORRUPT, "open", "10", change=lambda c: (add(SECTIONS, 7, 0, "Q", -8)(c), c.rehash(1, 7)))
    case("sections-stored-length", CORRUPT, "open", "4.9", change=add(SECTIONS, 5, 8, "Q", -8))


    def one_part(c):
        """Section 6 with a part of its own, as small raw sections never have and all others must."""
        c.put(SECTIONS, 6, 32, "I", 0)
        c.t[PARTS] += struct.pack("<IIQ", c.get(SECTIONS, 6, 8, "Q"), 0, c.get(SECTIONS, 6, 16, "Q"))
    case("sections-codec", UNSUPPORTED, "content", "4.3", change=lambda c: (one_part(c), c.put(SECTIONS, 6, 36, "B", 77)))
    case("sections-codec-damaged", CORRUPT, "content", "5.1", change=lambda c: (one_part(c), c.put(SECTIONS, 6, 36, "B", 77)),
         files=lambda files: flip(EXPERTS_0, 8192 + 5)(files))

    def two_parts(first, second, unused=False):
        """Sections 6 and 7 of an unknown codec, with one part each at the given places."""
        def change(c):
            entry = lambda s: struct.pack("<IIQ", c.get(SECTIONS, s, 8, "Q"), 0, c.get(SECTIONS, s, 16, "Q"))
            c.t[PARTS] += b"".join(entry(s) for _, s in sorted([(first, 6), (second, 7)]))
            if unused:
                c.t[PARTS][0:0] = bytes(16)
            for section, part in ((6, first), (7, second)):
                c.put(SECTIONS, section, 32, "IB", part, 77)
        return change
    case("parts-of-two", UNSUPPORTED, "content", "4.9", change=two_parts(0, 1))
    case("parts-out-of-order", CORRUPT, "open", "4.9", change=two_parts(1, 0))
    case("parts-gap", CORRUPT, "open", "4.9", change=two_parts(1, 2, True))
    case("sections-reserved", CORRUPT, "open", "4.9", change=put(SECTIONS, 6, 39, "B", 1))
    case("sections-parts-of-small", CORRUPT, "open", "4.9", change=one_part)
    case("sections-too-many", CORRUPT, "open", "4.9", change=lambda c: c.t[SECTIONS].extend(c.t[SECTIONS][-40:]))
    empty = lambda c: next(i for i in range(len(c.t[SECTIONS]) // 40) if c.get(SECTIONS, i, 8, "Q") == 0)
    case("sections-empty-offset", CORRUPT, "open", "4.9", change=lambda c: c.put(SECTIONS, empty(c), 0, "Q", 4096))
    case("sections-empty-hash", CORRUPT, "verify", "5.1", change=lambda c: c.put(SECTIONS, empty(c), 16, "Q", 1))
    case("sections-empty-canonical-hash", CORRUPT, "verify", "5.1", change=lambda c: c.put(SECTIONS, empty(c), 24, "Q", 1))
    case("sections-expert-empty-offset", CORRUPT, "open", "4.9", base="families",
         change=lambda c: c.put(SECTIONS, empty(c), 0, "Q", c.get(SECTIONS, empty(c) - 1, 0, "Q")))
    case("sections-trunk-outside", CORRUPT, "open", "10", change=put(SECTIONS, 36, 0, "Q", 1 << 30))
    case("sections-trunk-in-header", CORRUPT, "open", "10", change=lambda c: c.put(SECTIONS, 36, 0, "Q", 64))
    case("sections-trunk-overflow", CORRUPT, "open", "10", change=put(SECTIONS, 36, 0, "Q", (1 << 64) - 64))

    def trunk_overlap(c):
        c.put(SECTIONS, 37, 0, "Q", c.get(SECTIONS, 36, 0, "Q"))
        c.rehash(0, 37)
        at = c.get(SECTIONS, 37, 0, "Q") - 4096
        c.put(SECTIONS, 37, 24, "Q", h64(bytes(c.data[0][at:at + c.get(SECTIONS, 37, 8, "Q")])))
    case("sections-trunk-overlap", CORRUPT, "open", "10", change=trunk_overlap)


def content_cases():
    case("expert-flipped", CORRUPT, "content", "5.1", files=flip(EXPERTS_0, 4096))
    case("expert-last-flipped", CORRUPT, "content", "5.1", files=lambda files: flip(EXPERTS_2, 4096 + 4096)(files))
    case("trunk-flipped", CORRUPT, "content", "5.1", files=flip(TRUNK, 4096, 0x80))
    record_gap = lambda c: c.get(SECTIONS, 5, 0, "Q") + c.get(SECTIONS, 5, 8, "Q") - 4096
    case("record-padding", CORRUPT, "content", "3.3", change=lambda c: c.data[1].__setitem__(record_gap(c), 1))

    def trunk_gap(c):
        """The first gap behind a section of the trunk."""
        spans = sorted((c.get(SECTIONS, n, 0, "Q") - 4096, c.get(SECTIONS, n, 8, "Q")) for n, _, _ in c.owners[0] if c.get(SECTIONS, n, 8, "Q"))
        return next(a[0] + a[1] for a, b in zip(spans, spans[1:]) if a[0] + a[1] < b[0])
    case("trunk-padding", CORRUPT, "content", "3.3", change=lambda c: c.data[0].__setitem__(trunk_gap(c), 1))
    case("tail-padding", CORRUPT, "content", "3.3", change=lambda c: c.data[0].extend(bytes(70) + b"\1"))
    case("stored-hash", CORRUPT, "content", "5.1", change=add(SECTIONS, 3, 16, "Q", 1))
    case("canonical-hash", CORRUPT, "content", "5.1", change=add(SECTIONS, 3, 24, "Q", 1))
    case("canonical-hash-trunk", CORRUPT, "content", "5.1", change=add(SECTIONS, 36, 24, "Q", 1))
    case("file-hash", CORRUPT, "verify", "5.3", roots=lambda c: c.put(FILES, 0, 32, "Q", 1))
    case("file-hash-config", CORRUPT, "verify", "5.3", roots=lambda c: c.put(FILES, 3, 32, "Q", 1))
    case("file-hash-zero", CORRUPT, "verify", "5.3", roots=lambda c: c.put(FILES, 0, 32, "16s", bytes(16)))
    case("file-hash-subset", CORRUPT, "verify", "4.10", base="subset", roots=lambda c: c.put(FILES, 0, 32, "Q", 1))

    def panel_padding(section, at):
        """A byte outside the matrix; the stored hash is right for it, so the canonical bytes and all hashes are."""
        def change(c):
            offset = c.get(SECTIONS, section, 0, "Q") - 4096 + at
            shard = 1 if section < 36 else 0
            c.data[shard][offset] ^= 0x10
            c.rehash(shard, section)
        return change
    # w1 of expert 0: 40 rows in blocks of 16; row 8 of the third block is padding
    case("panel-padding-row", CORRUPT, "content", "9", change=panel_padding(0, 2 * 256 + 8 * 4))
    # w2: 40 columns in tiles of 32; columns 40..63 of row 0 are padding: tile 1, line 1
    case("panel-padding-column", CORRUPT, "content", "9", change=panel_padding(4, 256 + 64))
    # scales of w1: 40 rows, byte 40 belongs to a padding row
    case("panel-padding-scale", CORRUPT, "content", "9", change=panel_padding(1, 40))


def trunk_table_cases():
    case("tensors-order", CORRUPT, "open", "4.10", change=swap(TENSORS, 0, 1))
    case("tensors-twice", CORRUPT, "open", "4.10", change=lambda c: c.t[TENSORS].__setitem__(slice(32, 40), c.t[TENSORS][0:8]) or
         c.put(TENSORS, 1, 12, "I", c.get(TENSORS, 0, 12, "I")))
    for name, offset, form, value in (("desc", 8, "I", NONE32), ("file", 12, "I", 99), ("file-kind", 12, "I", 3), ("section", 16, "Q", 0),
                                      ("section-outside", 16, "Q", 1 << 40), ("section-of-file", 16, "Q", None), ("shard", 24, "I", 3),
                                      ("shard-experts", 24, "I", 1), ("block", 28, "I", 2), ("name-outside", 4, "I", NONE32)):
        if value is None:
            case("tensors-" + name, CORRUPT, "open", "4.9", change=lambda c: c.put(TENSORS, 0, 16, "Q", len(c.t[SECTIONS]) // 40 - 1))
        else:
            case("tensors-" + name, CORRUPT, "open", "4.10", change=put(TENSORS, 0, offset, form, value))
    case("tensors-section-twice", CORRUPT, "open", "4.9", change=lambda c: c.put(TENSORS, 0, 16, "Q", c.get(TENSORS, 1, 16, "Q")))
    for name, text in (("dot-dot", "figures/../../x"), ("absolute", "/etc/passwd"), ("empty", ""), ("empty-part", "a//b"), ("dot", "./a"), ("trailing", "x/")):
        case("files-name-" + name, CORRUPT, "open", "4.10", change=rename(FILES, 6, 0, text), tail_tables=lambda n, t: None)
    case("files-name-zero-byte", CORRUPT, "open", "4.10", change=rename(FILES, 6, 0, "figures/no\0te.txt"))
    case("files-name-not-utf8", OK, "open", "2", change=rename(FILES, 6, 0, b"figures/\xff\xfe.txt"))
    # a side file with the name of config.json, which has another kind: both are where the order wants them
    case("files-name-twice", CORRUPT, "open", "4.10", change=rename(FILES, 4, 0, "config.json"))
    case("files-order", CORRUPT, "open", "4.10", change=swap(FILES, 4, 5))
    case("files-kind", CORRUPT, "open", "4.10", change=put(FILES, 6, 8, "I", 4))
    case("files-shard", CORRUPT, "open", "4.10", change=put(FILES, 6, 12, "I", 1))
    case("files-section", CORRUPT, "open", "4.9", change=put(FILES, 6, 16, "Q", 40))
    case("files-reserved", CORRUPT, "open", "4.10", change=put(FILES, 6, 63, "B", 1))
    case("files-length", CORRUPT, "verify", "4.10", change=add(FILES, 3, 24, "Q", 1))
    case("files-length-safetensors", CORRUPT, "verify", "4.10", change=add(FILES, 0, 24, "Q", 1))
    case("roles-order", CORRUPT, "open", "4.10", change=swap(ROLES, 0, 1))
    case("roles-twice", CORRUPT, "open", "4.10", change=lambda c: c.put(ROLES, 1, 0, "HH", c.get(ROLES, 0, 0, "H"), c.get(ROLES, 0, 2, "H")))
    case("roles-tensor", CORRUPT, "open", "4.10", change=put(ROLES, 0, 4, "I", 999))
    case("roles-role-of-an-expert", CORRUPT, "open", "4.3", change=put(ROLES, 0, 0, "H", 3))
    case("roles-role", UNSUPPORTED, "open", "4.3", change=put(ROLES, 7, 0, "H", 200))
    case("roles-plane", UNSUPPORTED, "open", "4.3", change=put(ROLES, 7, 2, "H", 9))


def order_cases():
    """7, 8: content is where the document puts it, though everything could be found elsewhere too."""
    def record_gap(c):
        """An empty page between two records of experts-0002-0002."""
        at = c.get(RECORDS, 5, 8, "Q")
        c.data[2][at - 4096:at - 4096] = bytes(4096)
        add(RECORDS, 5, 8, "Q", 4096)(c)
        for s in range(30, 36):
            add(SECTIONS, s, 0, "Q", 4096)(c)
    case("record-gap", OK, "open", "7", change=record_gap)
    case("record-gap-not-zero", CORRUPT, "content", "3.3",
         change=lambda c: (record_gap(c), c.data[2].__setitem__(c.get(RECORDS, 5, 8, "Q") - 4096 - 1, 1)))

    def longer_record(c):
        """A zero page too many at the end of the last record."""
        c.data[2] += bytes(4096)
        add(RECORDS, 5, 16, "Q", 4096)(c)
    case("record-longer", CORRUPT, "open", "7", change=longer_record)

    def section_shift(c):
        """The last small section of a record, 8 bytes late."""
        at, length = c.get(SECTIONS, 5, 0, "Q") - 4096, c.get(SECTIONS, 5, 8, "Q")
        c.data[1][at:at + length + 8] = bytes(8) + c.data[1][at:at + length]
        add(SECTIONS, 5, 0, "Q", 8)(c)
    case("record-section-shifted", CORRUPT, "open", "7", change=section_shift)

    def first_page_late(c):
        """The last record with an empty page before its sections."""
        at = c.get(RECORDS, 5, 8, "Q") - 4096
        c.data[2][at:at] = bytes(4096)
        for s in range(30, 36):
            add(SECTIONS, s, 0, "Q", 4096)(c)
        add(RECORDS, 5, 16, "Q", 4096)(c)
    case("record-section-page-late", CORRUPT, "open", "7", change=first_page_late)

    def exchange(shard, i, j):
        """Two sections of a record and of one length, each in the place of the other."""
        def change(c):
            a, b, n = c.get(SECTIONS, i, 0, "Q"), c.get(SECTIONS, j, 0, "Q"), c.get(SECTIONS, i, 8, "Q")
            assert n == c.get(SECTIONS, j, 8, "Q")
            data, x, y = c.data[shard], slice(a - 4096, a - 4096 + n), slice(b - 4096, b - 4096 + n)
            data[x], data[y] = data[y], data[x]
            c.put(SECTIONS, i, 0, "Q", b)
            c.put(SECTIONS, j, 0, "Q", a)
        return change
    case("record-sections-exchanged", CORRUPT, "open", "7", change=exchange(2, 31, 33))
    # weights of gate and up of the first expert: above 2 KiB
    case("record-large-exchanged", CORRUPT, "open", "7", base="families", change=exchange(1, 0, 2))

    def trunk_shift(c):
        """The last section of the trunk, 64 bytes late."""
        last = max(range(36, len(c.t[SECTIONS]) // 40), key=lambda n: c.get(SECTIONS, n, 0, "Q"))
        at = c.get(SECTIONS, last, 0, "Q") - 4096
        c.data[0][at:at] = bytes(64)
        add(SECTIONS, last, 0, "Q", 64)(c)
    case("trunk-section-shifted", CORRUPT, "verify", "8", change=trunk_shift)

    def swap_sections(c):
        """Two tensors exchange section numbers, with all their entries."""
        names = [i for i in range(len(c.t[TENSORS]) // 32) if c.get(TENSORS, i, 28, "I") == NONE32]
        i, j = names[0], names[1]
        a, b = c.get(TENSORS, i, 16, "Q"), c.get(TENSORS, j, 16, "Q")
        c.put(TENSORS, i, 16, "Q", b)
        c.put(TENSORS, j, 16, "Q", a)
        swap(SECTIONS, a, b)(c)
        exchange = {a: b, b: a}
        c.owners[0] = [(exchange.get(s, s), what, k) for s, what, k in c.owners[0]]
        c.items = [item[:5] + (exchange.get(item[5], item[5]),) for item in c.items]
        c.pieces = {f: [exchange.get(s, s) for s in sections] for f, sections in c.pieces.items()}
    case("trunk-storage-order", CORRUPT, "verify", "8", change=swap_sections)


def large():
    """basic-panel with one tensor of zeros that needs parts: as edits it takes no room."""
    source, blocks, trunk = basic(1)
    shape = Shape("", "U8", ((8 << 20) + 4096,))
    source.add(B, "zeros.large", "U8", shape.dims, bytes(shape.length))
    trunk.append(Trunk(B, "zeros.large", shape, bytes(shape.length)))
    return Container(source, blocks, trunk, 1, by_expert)


def part_cases():
    section = lambda c: next(i for i in range(len(c.t[SECTIONS]) // 40) if c.get(SECTIONS, i, 8, "Q") > 8 << 20)
    for name, verdict, at, change in (
            ("good", OK, "open", None), ("none", CORRUPT, "open", lambda c: c.put(SECTIONS, section(c), 32, "I", NONE32)),
            ("outside", CORRUPT, "open", lambda c: c.put(SECTIONS, section(c), 32, "I", 1)),
            ("sum", CORRUPT, "open", lambda c: add(PARTS, 2, 0, "I", 8)(c)),
            ("sizes", CORRUPT, "open", lambda c: (add(PARTS, 0, 0, "I", -8)(c), add(PARTS, 1, 0, "I", 8)(c))),
            ("reserved", CORRUPT, "open", lambda c: c.put(PARTS, 1, 4, "I", 1)),
            ("hash", CORRUPT, "content", lambda c: add(PARTS, 1, 8, "Q", 1)(c))):
        case("parts-" + name, verdict, at, "4.9", build=large, **({"change": change} if change else {}))


def all_cases():
    if not CASES:
        for group in (file_header_cases, file_length_cases, shard_identity_cases, table_set_cases, info_cases, shard_table_cases, block_cases,
                      schema_cases, policy_cases, record_cases, section_cases, content_cases, trunk_table_cases, order_cases, part_cases):
            group()
    return CASES
