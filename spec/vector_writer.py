"""An independent writer of small moepack containers, from container.md alone.

Used by make_vectors.py. It shares no code with the C library or with reader.py: elements are moved one by one with the
formulas of section 9. Numbers in comments are sections of container.md.
"""
import hashlib
import json
import struct
import sys

try:
    import xxhash
except ImportError:
    sys.exit("this needs the Python module xxhash (package python3-xxhash; plain python3 may be another one)")

MAGIC = b"\x89MPK\r\n\x1a\n"
NONE32 = 0xFFFFFFFF
INFO, SHARDS, BLOCKS, SCHEMAS, DESCS, MATRICES, DIMS, POLICIES = range(1, 9)
FIELDS, RECORDS, SECTIONS, PARTS, TENSORS, FILES, ROLES, STRINGS = range(9, 17)
TAIL_RECORDS, TAIL_OWNERS = 20, 21
SIZE = {INFO: 128, SHARDS: 64, BLOCKS: 64, SCHEMAS: 8, DESCS: 64, MATRICES: 64, DIMS: 8, POLICIES: 8, FIELDS: 16, RECORDS: 32,
        SECTIONS: 40, PARTS: 16, TENSORS: 32, FILES: 64, ROLES: 8, STRINGS: 1, TAIL_RECORDS: 40, TAIL_OWNERS: 8}
PLAN = [2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16]

# 4.3
DTYPE = {name: i + 1 for i, name in enumerate(
    "BOOL U8 I8 I16 U16 F16 BF16 I32 U32 F32 F64 I64 U64 C64 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ F6_E2M3 F6_E3M2 F4".split())}
WIDTH = dict(zip(DTYPE, [8, 8, 8, 16, 16, 16, 16, 32, 32, 32, 64, 64, 64, 64, 8, 8, 8, 8, 8, 6, 6, 4]))
GATE, UP, DOWN = 1, 2, 3
ROUTER, ROUTER_BIAS, LOGIT_BIAS, LATENT_DOWN, LATENT_NORM, LATENT_UP = 16, 17, 18, 19, 20, 21
SHARED_GATE, SHARED_UP, SHARED_DOWN, SHARED_ROUTER, TOKEN_TABLE = 22, 23, 24, 25, 26
STORAGE_ORDER = [ROUTER, ROUTER_BIAS, LOGIT_BIAS, TOKEN_TABLE, LATENT_DOWN, SHARED_ROUTER, SHARED_GATE, SHARED_UP, LATENT_NORM,
                 LATENT_UP, SHARED_DOWN]
WEIGHT, SCALE, GLOBAL_SCALE, BIAS, SHAPE, OTHER = 1, 2, 3, 4, 5, 6
F32, BF16, F16, E2M1, E4M3, E8M0, INT4, I32, I64 = 1, 2, 3, 4, 5, 6, 7, 8, 9
ONE = {E8M0: b"\x7f", E4M3: b"\x38", BF16: b"\x80\x3f", F16: b"\x00\x3c", F32: b"\x00\x00\x80\x3f"}

H, L, I, S = 48, 32, 40, 24

# 6: name, type (1 u64, 2 f64), value in the vectors; keys are numbered from 1. Names of enumerations end with "=".
POLICY = [
    ("hidden", 1, H), ("expert_input", 1, L), ("intermediate", 1, I), ("top_k", 1, 2), ("score=", 1, 1), ("select=", 1, 1), ("weight_from=", 1, 0),
    ("renormalize=", 1, 2), ("renorm_eps", 2, 1e-20), ("renorm_k1=", 1, 0), ("scale", 2, 1.0), ("scale_when=", 1, 0), ("groups", 1, 1),
    ("groups_kept", 1, 1), ("group_score=", 1, 0), ("group_mask=", 1, 0), ("logit_bias=", 1, 0), ("activation=", 1, 6), ("gated=", 1, 1),
    ("act_alpha", 2, 0.0), ("act_limit", 2, 0.0), ("situ_beta", 2, 4.0), ("situ_linear_beta", 2, 25.0), ("expert_bias=", 1, 0), ("latent=", 1, 1),
    ("latent_norm=", 1, 1), ("norm_eps", 2, 1e-05), ("shared_width", 1, S), ("shared_gate=", 1, 0), ("shared_activation=", 1, 6),
    ("shared_act_limit", 2, 0.0), ("weight_applied=", 1, 0), ("token_ids=", 1, 0), ("sparsemixer_eps", 2, 0.0), ("capacity=", 1, 0),
    ("capacity_tokens", 1, 0), ("capacity_factor", 2, 0.0), ("capacity_min", 1, 0), ("router_dtype=", 1, DTYPE["F32"])]
POLICY_KEYS = {i: (name.strip("="), kind) for i, (name, kind, _) in enumerate(POLICY, 1)}
POLICY_DEFAULTS = {name.strip("="): value for name, _, value in POLICY}
ENUMS = [name.strip("=") for name, _, _ in POLICY if name.endswith("=")]


def up(value, to):
    return -(-value // to) * to


def h64(data):
    return xxhash.xxh3_64(data).intdigest()


def h128(data):
    value = xxhash.xxh3_128(data).intdigest()
    return struct.pack("<QQ", value & (1 << 64) - 1, value >> 64)


def table_set(tables):
    """4.1: tables is a list of (id, bytes)."""
    out = bytearray(struct.pack("<II", len(tables), 0) + bytes(32 * len(tables)))
    for i, (number, raw) in enumerate(tables):
        out += bytes(up(len(out), 64) - len(out))
        struct.pack_into("<IIQQQ", out, 8 + 32 * i, number, SIZE.get(number, 64), len(raw) // SIZE.get(number, 64), len(out), 0)
        out += raw
    return out


# ------------------------------------------------------------------------------------------------ 9 weight order


class Matrix:
    """4.6: one logical matrix."""

    def __init__(self, role, plane, encoding, bits, rows, cols, group=(0, 0), base=0, strides=None):
        self.role, self.plane, self.encoding, self.bits, self.rows, self.cols = role, plane, encoding, bits, rows, cols
        self.group, self.base, self.strides = group, base, strides or (cols, 1)

    def pack(self):
        return struct.pack("<HHHHIIQQQQQQ", self.role, self.plane, self.encoding, self.bits, *self.group, self.rows, self.cols,
                           self.base, *self.strides, 0)

    def group_scale(self):
        return self.plane == SCALE and self.group[0] == 1 and self.group[1] in (16, 32) and self.bits in (8, 16, 32)

    def element(self, data, r, c):
        """Element (r, c) of the canonical bytes as an integer."""
        n = self.base + r * self.strides[0] + c * self.strides[1]
        if self.bits == 4:
            return data[n // 2] >> 4 * (n % 2) & 15
        size = self.bits // 8
        return int.from_bytes(data[n * size:(n + 1) * size], "little")

    def panel(self, data):
        """The matrix in panel order, element by element."""
        b, rows, cols = self.bits, self.rows, self.cols
        if self.plane == WEIGHT and b in (4, 8, 16, 32):
            tile_cols, w = 128 // b, 32 // b
            tc = -(-cols // tile_cols)
            out = bytearray(-(-rows // 16) * tc * 256)
            for r in range(rows):
                for c in range(cols):
                    byte = ((r // 16) * tc + c // tile_cols) * 256 + (c % tile_cols) // w * 64 + r % 16 * 4 + (c % w) * b // 8
                    value = self.element(data, r, c)
                    if b == 4:
                        out[byte] |= value << ((c % w) * b % 8)
                    else:
                        out[byte:byte + b // 8] = value.to_bytes(b // 8, "little")
            return out
        if self.group_scale():
            k = b // 8
            out = bytearray(ONE[self.encoding] * (-(-rows // 16) * 16 * cols))
            for r in range(rows):
                for g in range(cols):
                    at = ((r // 16) * cols + g) * 16 * k + r % 16 * k
                    out[at:at + k] = self.element(data, r, g).to_bytes(k, "little")
            return out
        out = bytearray()
        assert b >= 8
        for r in range(rows):
            for c in range(cols):
                out += self.element(data, r, c).to_bytes(b // 8, "little")
        return out


FLAT = 3  # flags of a description: fused and flat


class Shape:
    """A description (4.6) before it has numbers: of an expert's section (pattern) or of a trunk tensor (pattern '')."""

    def __init__(self, pattern, dtype, dims, matrices=(), layout=0, fused=False):
        self.pattern, self.dtype, self.dims, self.matrices, self.fused = pattern, dtype, tuple(dims), list(matrices), fused
        self.layout = layout if matrices else 0
        bits = WIDTH[dtype]
        for d in dims:
            bits *= d
        assert bits % 8 == 0
        self.length = bits // 8

    def whole(self, experts):
        """Dims of the source tensor."""
        if self.fused == FLAT:
            return (experts * self.dims[0],) + self.dims[1:]
        return ((experts,) if self.fused else ()) + self.dims

    def stored(self, data):
        return bytes(data) if self.layout == 0 else b"".join(bytes(m.panel(data)) for m in self.matrices)

    def decoded(self):
        return len(self.stored(bytes(self.length)))


# ------------------------------------------------------------------------------------------------ sources


def noise(seed, length):
    """Reproducible bytes."""
    return hashlib.shake_256(seed.encode()).digest(length)


def values(seed, dtype, length):
    """Reproducible bytes that are harmless numbers in the given type."""
    raw = bytearray(noise(seed, length))
    if dtype in ("BF16", "F32"):  # exponents near 1: keep sign and mantissa of random bits
        step = 2 if dtype == "BF16" else 4
        for i in range(step - 1, length, step):
            raw[i] = raw[i] & 0x80 | 0x3E
    elif dtype == "SCALE":
        raw = bytearray(121 + b % 8 for b in raw)
    elif dtype == "F8_E4M3":
        raw = bytearray(b & 0xBF for b in raw)
    return bytes(raw)


class Source:
    """A published checkpoint: tensors in safetensors files, other files."""

    def __init__(self):
        self.tensors = {}  # (file name, tensor name) -> (dtype, shape, data)
        self.order = {}    # file name -> tensor names by offset
        self.other = []    # (kind, name, data)

    def add(self, file, name, dtype, shape, data):
        self.tensors[file, name] = (dtype, tuple(shape), data)
        self.order.setdefault(file, []).append(name)

    def header(self, file):
        """8 + N bytes: length word and header, padded with spaces. Its order is not that of the offsets: only those count."""
        entries, at = {}, 0
        for name in self.order[file]:
            dtype, shape, data = self.tensors[file, name]
            entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
            at += len(data)
        entries = {"__metadata__": {"format": "pt"}, **{name: entries[name] for name in sorted(entries, reverse=True)}}
        raw = json.dumps(entries, separators=(",", ":")).encode()
        raw += b" " * (up(len(raw), 8) - len(raw))
        return struct.pack("<Q", len(raw)) + raw

    def file(self, name):
        return self.header(name) + b"".join(self.tensors[name, t][2] for t in self.order[name])

    def add_index_json(self):
        total = sum(len(t[2]) for t in self.tensors.values())
        weight_map = {name: file for file, name in self.tensors}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1, sort_keys=True) + "\n"
        self.other.append((1, "model.safetensors.index.json", text.encode()))


# ------------------------------------------------------------------------------------------------ containers


class Block:
    """One MoE block: expert shapes per schema, which schema each expert uses, role tensors."""

    def __init__(self, stack, number, prefix, experts, policy, schemas, schema_of=None, overrides=()):
        self.stack, self.number, self.prefix, self.experts, self.policy = stack, number, prefix, experts, policy
        self.schemas, self.schema_of, self.overrides = schemas, schema_of or [0] * experts, set(overrides)
        self.roles = {}  # (role, plane) -> trunk tensor name


class Trunk:
    """One trunk tensor."""

    def __init__(self, file, name, shape, data, block=None):
        self.file, self.name, self.shape, self.data, self.block = file, name, shape, data, block


class Container:
    """The tables of an index as bytes, the data of each shard, and what is needed to seal them into files."""

    def __init__(self, source, blocks, trunk, layout, plan, present=lambda b, e: True, trunk_size=1 << 40, model="kimi_k3",
                 store_files=True, order=None):
        """plan(block, expert) -> shard name, in SHARDS order of first use; order: key to sort records inside a shard."""
        self.t = {number: bytearray() for number in range(1, 17)}
        self.strings, self.source, self.blocks, self.layout = {}, source, blocks, layout
        self.files = sorted([(0, f.encode()) for f in source.order] + [(k, n.encode()) for k, n, _ in source.other]) if store_files else []
        self.subset = not store_files or not all(present(b, e) for b, x in enumerate(blocks) for e in range(x.experts))
        self.data, self.shard_names, self.shard_kinds = [], [], []
        self.records, self.owners = {}, {}
        self.stored_sections, self.items, self.pieces = [], [], {}
        self.trunk = sorted(trunk, key=lambda t: (t.name.encode(), t.file))
        self.number_shapes()
        self.number_policies()
        self.place_trunk(trunk_size)
        self.place_experts(plan, present, order or (lambda b, e: (b, e)))
        self.number_tensors(model)

    # -- strings, schemas, descriptions

    def text(self, value):
        """2: str, in STRINGS once."""
        value = value if isinstance(value, bytes) else value.encode()
        if value not in self.strings:
            self.strings[value] = len(self.t[STRINGS])
            self.t[STRINGS] += value
        return struct.pack("<II", self.strings[value], len(value))

    def desc(self, shape):
        """4.6: adds a description and returns its number."""
        first_dim, first_matrix = len(self.t[DIMS]) // 8, len(self.t[MATRICES]) // 64
        for dim in shape.dims:
            self.t[DIMS] += struct.pack("<Q", dim)
        for matrix in shape.matrices:
            self.t[MATRICES] += matrix.pack()
        self.t[DESCS] += self.text(shape.pattern) + struct.pack(
            "<HBBIIIIIQQ16s", DTYPE[shape.dtype], shape.layout, shape.fused, len(shape.dims), first_dim, first_matrix,
            len(shape.matrices), 0, shape.length, shape.decoded(), bytes(16))
        return len(self.t[DESCS]) // 64 - 1

    def number_shapes(self):
        known = {}
        for block in self.blocks:
            block.numbers = []
            for shapes in block.schemas:
                key = tuple((s.pattern, s.dtype, s.dims, s.layout, s.fused, tuple(m.pack() for m in s.matrices)) for s in shapes)
                if key not in known:
                    first = [self.desc(s) for s in shapes][0]
                    known[key] = len(self.t[SCHEMAS]) // 8
                    self.t[SCHEMAS] += struct.pack("<II", first, len(shapes))
                block.numbers.append(known[key])
        trunk_known = {}
        for tensor in self.trunk:
            s = tensor.shape
            key = (s.dtype, s.dims, s.layout, tuple(m.pack() for m in s.matrices))
            if key not in trunk_known:
                trunk_known[key] = self.desc(s)
            tensor.desc = trunk_known[key]

    def number_policies(self):
        """4.7: deduplicated policies."""
        known = {}
        for block in self.blocks:
            raw = b""
            for key, (name, kind) in sorted(POLICY_KEYS.items()):
                value = block.policy[name]
                raw += struct.pack("<HHI", key, kind, name in block.overrides) + struct.pack("<d" if kind == 2 else "<Q", value)
            if raw not in known:
                known[raw] = len(self.t[POLICIES]) // 8
                self.t[POLICIES] += struct.pack("<II", len(self.t[FIELDS]) // 16, len(raw) // 16)
                self.t[FIELDS] += raw
            block.policy_number = known[raw]

    # -- 8: trunk

    def trunk_order(self):
        """8: (what, object) in storage order."""
        placed, order = set(), []
        for block in self.blocks:
            for role in STORAGE_ORDER:
                for plane in range(1, 7):
                    name = block.roles.get((role, plane))
                    for t in self.trunk:
                        if t.name == name and id(t) not in placed:
                            placed.add(id(t))
                            order.append((0, t))
        for _, file in self.files:
            for name in self.source.order.get(file.decode(), []):
                order += [(0, t) for t in self.trunk if (t.file, t.name) == (file.decode(), name) and id(t) not in placed]
        return order + [(1, f) for f in self.files]

    def file_bytes(self, kind, name):
        if kind == 0:
            return self.source.header(name.decode())
        return next(data for k, n, data in self.source.other if (k, n.encode()) == (kind, name))

    def add_shard(self, name, kind):
        self.shard_names.append(name)
        self.shard_kinds.append(kind)
        self.data.append(bytearray())
        return len(self.data) - 1

    def place_trunk(self, size):
        """8: sections of the trunk into trunk shards. Section numbers are given later, records come first."""
        shard = self.add_shard("trunk-000.mpk", 2)
        self.owners[shard] = []
        self.trunk_sections = []
        for what, item in self.trunk_order():
            canonical = item.data if what == 0 else self.file_bytes(*item)
            stored = item.shape.stored(canonical) if what == 0 else canonical
            step = 64 if len(stored) <= 2048 else 4096
            at = up(4096 + len(self.data[shard]), step)
            if stored and at + len(stored) > size and self.data[shard]:
                shard = self.add_shard("trunk-%03d.mpk" % len(self.shard_names), 2)
                self.owners[shard] = []
                at = 4096
            if stored:
                self.data[shard] += bytes(at - 4096 - len(self.data[shard])) + stored
            self.trunk_sections.append((what, item, shard, self.section(at, stored, canonical)))

    def section(self, at, stored, canonical):
        """4.9: an entry of SECTIONS but for its first part, and its parts."""
        parts = b""
        for i in range(0, len(stored) if len(stored) > 8 << 20 else 0, 4 << 20):
            part = stored[i:i + (4 << 20)]
            parts += struct.pack("<IIQ", len(part), 0, h64(part))
        return struct.pack("<QQQQ", at if stored else 0, len(stored), h64(stored), h64(canonical)), parts

    def add_section(self, entry, parts):
        """4.9: sections get their numbers, and parts their places, in this order."""
        self.t[SECTIONS] += entry + struct.pack("<IB3s", len(self.t[PARTS]) // 16 if parts else NONE32, 0, bytes(3))
        self.t[PARTS] += parts

    # -- 7: records

    def expert_bytes(self, block, expert, shape):
        """The published bytes of a section and the file it comes from."""
        name = block.prefix + shape.pattern.replace("{expert}", str(expert))
        for (file, tensor), (_, _, data) in self.source.tensors.items():
            if tensor == name:
                return file, name, data[expert * shape.length:(expert + 1) * shape.length] if shape.fused else data
        raise KeyError(name)

    def place_experts(self, plan, present, order):
        groups = {}
        for b, block in enumerate(self.blocks):
            for e in range(block.experts):
                if present(b, e):
                    groups.setdefault(plan(b, e), []).append((b, e))
        placed = {}
        for name in sorted(groups):
            shard = self.add_shard(name, 3)
            self.records[shard] = sorted(groups[name], key=lambda x: order(*x))
            for b, e in self.records[shard]:
                placed[b, e] = (shard,) + self.place_record(shard, b, e)
        for b, block in enumerate(self.blocks):
            for e in range(block.experts):
                if (b, e) not in placed:
                    self.t[RECORDS] += struct.pack("<IIQQQ", NONE32, 0, 0, 0, 0)
                    continue
                shard, offset, length, entries = placed[b, e]
                first = len(self.t[SECTIONS]) // 40
                self.t[RECORDS] += struct.pack("<IIQQQ", shard, block.numbers[block.schema_of[e]], offset, length, first)
                for entry in entries:
                    self.add_section(*entry)

    def place_record(self, shard, b, e):
        """7: one record at the end of a shard."""
        block, data = self.blocks[b], self.data[shard]
        start = 4096 + len(data)
        shapes = block.schemas[block.schema_of[e]]
        contents = [self.expert_bytes(block, e, s)[2] for s in shapes]
        stored = [s.stored(c) for s, c in zip(shapes, contents)]
        entries, place = [b""] * len(shapes), {}
        large = [i for i, s in enumerate(stored) if len(s) > 2048]
        small = [i for i, s in enumerate(stored) if 0 < len(s) <= 2048]
        for i in large + small:
            step = 8 if i in small and i != small[0] else 4096
            data += bytes(up(len(data), step) - len(data))
            place[i] = 4096 + len(data)
            data += stored[i]
        data += bytes(up(len(data), 4096) - len(data))
        for i, (s, c) in enumerate(zip(stored, contents)):
            entries[i] = self.section(place.get(i, 0), s, c)
        return start, 4096 + len(data) - start, entries

    # -- remaining tables

    def number_tensors(self, model):
        first = len(self.t[SECTIONS]) // 40
        self.section_of = {}
        for i, (what, item, shard, entry) in enumerate(self.trunk_sections):
            self.section_of[id(item)] = (first + i, shard)
            self.add_section(*entry)
        file_number = {name.decode(): i for i, (_, name) in enumerate(self.files)}
        for i, t in enumerate(self.trunk):
            section, shard = self.section_of[id(t)]
            self.owners[shard].append((section, 0, i))
            self.t[TENSORS] += self.text(t.name) + struct.pack("<IIQII", t.desc, file_number[t.file], section, shard,
                                                               NONE32 if t.block is None else t.block)
        for i, item in enumerate(self.files):
            section, shard = self.section_of[id(item)]
            self.owners[shard].append((section, 1, i))
            kind, name = item
            length = len(self.source.file(name.decode())) if kind == 0 else len(self.file_bytes(kind, name))
            self.t[FILES] += self.text(name) + struct.pack("<IIQQ16s16s", kind, shard, section, length, bytes(16), bytes(16))
        first_record = 0
        for block in self.blocks:
            first_role = len(self.t[ROLES]) // 8
            for (role, plane), name in sorted(block.roles.items()):
                number = next(i for i, t in enumerate(self.trunk) if t.name == name)
                self.t[ROLES] += struct.pack("<HHI", role, plane, number)
            self.t[BLOCKS] += struct.pack("<II", block.stack, block.number) + self.text(block.prefix) + struct.pack(
                "<IIQII24s", block.experts, block.policy_number, first_record, first_role, len(block.roles), bytes(24))
            first_record += block.experts
        for name, kind in zip(self.shard_names, self.shard_kinds):
            self.t[SHARDS] += self.text(name) + struct.pack("<IIQQQ16sQ", kind, 0, 0, 0, 0, bytes(16), 0)
        total, count = self.collect(file_number)
        self.t[INFO] += bytes(32) + self.text(model) + self.text(model) + struct.pack(
            "<IIIIIIQQ40s", 4096, 1, self.layout, 0, int(self.subset), 0, total, count, bytes(40))

    def collect(self, file_number):
        """Items of canonical_root and pieces of files, by section number. Returns stored bytes and tensors (4.2)."""
        total, names = 0, set()
        pieces = {}  # (file, tensor) -> {expert: section}
        for b, block in enumerate(self.blocks):
            for e in range(block.experts):
                record = sum(x.experts for x in self.blocks[:b]) + e
                shard, _, _, _, first = struct.unpack_from("<IIQQQ", self.t[RECORDS], 32 * record)
                for s, shape in enumerate(block.schemas[block.schema_of[e]]):
                    file, name, _ = self.expert_bytes(block, e, shape)
                    if shard == NONE32:
                        pieces.setdefault((file, name), {})[e] = None
                        continue
                    pieces.setdefault((file, name), {})[e] = first + s
                    dims = shape.whole(block.experts)
                    self.items.append((name.encode(), 0, e, DTYPE[shape.dtype], dims, first + s))
                    total += shape.length
                    names.add(name)
        for t in self.trunk:
            section = self.section_of[id(t)][0]
            self.items.append((t.name.encode(), file_number[t.file], (1 << 64) - 1, DTYPE[t.shape.dtype], t.shape.dims, section))
            pieces[t.file, t.name] = {0: section}
            total += t.shape.length
        self.items.sort(key=lambda item: item[:3])
        for i, (kind, name) in enumerate(self.files):
            self.pieces[i] = [self.section_of[id(self.files[i])][0]]
            for tensor in self.source.order.get(name.decode(), []) if kind == 0 else []:
                found = pieces.get((name.decode(), tensor), {0: None})
                self.pieces[i] += [found[e] for e in sorted(found)]
        return total, len(names) + len(self.trunk)

    # -- changing tables, for invalid vectors

    def put(self, table, entry, offset, form, *new):
        struct.pack_into("<" + form, self.t[table], entry * SIZE[table] + offset, *new)

    def get(self, table, entry, offset, form):
        return struct.unpack_from("<" + form, self.t[table], entry * SIZE[table] + offset)[0]

    def rehash(self, shard, section):
        """Stored hash of a section after its data changed."""
        at, length = self.get(SECTIONS, section, 0, "Q"), self.get(SECTIONS, section, 8, "Q")
        self.put(SECTIONS, section, 16, "Q", h64(bytes(self.data[shard][at - 4096:at - 4096 + length])))

    # -- sealing

    def canonical_hash(self, section):
        return bytes(self.t[SECTIONS][40 * section + 24:40 * section + 32])

    def seal(self, **hooks):
        """5: all hashes from the inside out. Hooks change the bytes at one stage; everything outside follows."""
        call = lambda name, *a: hooks[name](*a) if name in hooks else None
        self.set_root()
        self.set_file_hashes()
        call("roots", self)
        self.put(INFO, 0, 16, "16s", self.plan_id())
        call("plan", self)
        plan = self.t[INFO][16:32]
        files = {}
        for n, name in enumerate(self.shard_names):
            data = bytes(4096) + self.data[n] + bytes(up(len(self.data[n]), 4096) - len(self.data[n]))
            tables = self.trunk_tail(n) if self.shard_kinds[n] == 2 else self.expert_tail(n)
            call("tail_tables", n, tables)
            tail = table_set(sorted(tables.items()))
            call("tail_bytes", n, tail)
            header = bytearray(MAGIC + struct.pack("<HHIQQIIQQQ", 0, 1, self.shard_kinds[n], 0, 0, 128, 0, len(data) + len(tail), 0, 0))
            header += plan + struct.pack("<IIQQ16sQ", n, 0, len(data), len(tail), h128(bytes(tail)), 0)
            call("shard_header", n, header)
            self.put(SHARDS, n, 16, "QQQ16s", *struct.unpack_from("<Q", header, 40), *struct.unpack_from("<QQ16s", header, 88))
            self.finish_header(header)
            files[name] = header + data[128:] + tail
        call("shards", self)
        tables = [(n, self.t[n]) for n in sorted(self.t)]
        call("index_tables", tables)
        whole = table_set(tables)
        call("index_set", whole)
        header = bytearray(MAGIC + struct.pack("<HHIQQIIQQQ", 0, 1, 1, 0, 0, 128, 0, 128 + len(whole), 0, 0))
        header += struct.pack("<QQ16s24sQ", 128, len(whole), h128(bytes(whole)), bytes(24), 0)
        call("index_header", header)
        self.finish_header(header)
        files["index.mpk"] = header + whole
        call("files", files)
        return {name: bytes(raw) for name, raw in files.items()}

    @staticmethod
    def finish_header(header):
        struct.pack_into("<Q", header, 56, h64(bytes(header[:56])))
        struct.pack_into("<Q", header, 120, h64(bytes(header[64:120])))

    def set_root(self):
        """5.4"""
        raw = b""
        for name, _, expert, dtype, dims, section in self.items:
            raw += struct.pack("<I", len(name)) + name + struct.pack("<HHI", dtype, 0, len(dims))
            raw += b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<Q", expert) + self.canonical_hash(section)
        self.put(INFO, 0, 0, "16s", h128(raw))

    def set_file_hashes(self):
        """5.3"""
        for i, sections in self.pieces.items():
            whole = None not in sections
            self.put(FILES, i, 32, "16s", h128(b"".join(map(self.canonical_hash, sections))) if whole else bytes(16))

    def cleared(self, table, keep_sections=False):
        """5.6, 8: a table without the fields that depend on content."""
        raw = bytearray(self.t[table])
        for i in range(len(raw) // SIZE[table]):
            at = i * SIZE[table]
            if table == SHARDS:
                raw[at + 16:at + 56] = bytes(40)
            if table == FILES:
                raw[at + 32:at + 48] = bytes(16)
            if table in (TENSORS, FILES) and not keep_sections:
                raw[at + 16:at + 24] = bytes(8)
            if table == INFO:
                raw[at:at + 16] = bytes(16)
        return raw

    def plan_id(self):
        return h128(bytes(table_set([(n, self.cleared(n)) for n in PLAN])))

    def tail_sections(self, numbers):
        """7: SECTIONS and PARTS of a tail."""
        sections, parts = bytearray(), bytearray()
        for n in numbers:
            entry = bytearray(self.t[SECTIONS][40 * n:40 * n + 40])
            length, first = struct.unpack_from("<Q", entry, 8)[0], struct.unpack_from("<I", entry, 32)[0]
            if first != NONE32:
                struct.pack_into("<I", entry, 32, len(parts) // 16)
                parts += self.t[PARTS][16 * first:16 * (first + -(-length // (4 << 20)))]
            sections += entry
        return {SECTIONS: sections, PARTS: parts}

    def trunk_tail(self, shard):
        """8"""
        tables = {n: self.cleared(n, True) for n in [1] + PLAN}
        owners = sorted(self.owners[shard])
        tables.update(self.tail_sections([n for n, _, _ in owners]))
        tables[TAIL_OWNERS] = bytearray(b"".join(struct.pack("<II", what, i) for _, what, i in owners))
        return tables

    def expert_tail(self, shard):
        """7"""
        records, numbers = bytearray(), []
        for b, e in self.records[shard]:
            record = sum(x.experts for x in self.blocks[:b]) + e
            _, schema, offset, length, first = struct.unpack_from("<IIQQQ", self.t[RECORDS], 32 * record)
            records += struct.pack("<IIIIQQQ", b, e, schema, 0, offset, length, len(numbers))
            count = len(self.blocks[b].schemas[self.blocks[b].schema_of[e]])
            numbers += range(self.first_sections[b, e], self.first_sections[b, e] + count)
        tables = self.tail_sections(numbers)
        tables[TAIL_RECORDS] = records
        return tables

    @property
    def first_sections(self):
        """First section of each present record, by counting: a vector may have a wrong number in RECORDS."""
        found, at = {}, 0
        present = {x for order in self.records.values() for x in order}
        for b, block in enumerate(self.blocks):
            for e in range(block.experts):
                if (b, e) in present:
                    found[b, e] = at
                    at += len(block.schemas[block.schema_of[e]])
        return found


# ------------------------------------------------------------------------------------------------ the valid containers


def policy(**changes):
    """A K3-like policy."""
    base = dict(POLICY_DEFAULTS)
    base.update(changes)
    return base


def mx_schema(layout, latent=L, inner=I):
    """MXFP4 experts: packed codes and one scale per 32 columns."""
    shapes = []
    for part, role, rows, cols in (("w1", GATE, inner, latent), ("w3", UP, inner, latent), ("w2", DOWN, latent, inner)):
        groups = -(-cols // 32)
        shapes.append(Shape("experts.{expert}.%s.weight_packed" % part, "U8", (rows, cols // 2),
                            [Matrix(role, WEIGHT, E2M1, 4, rows, cols)], layout))
        shapes.append(Shape("experts.{expert}.%s.weight_scale" % part, "U8", (rows, groups),
                            [Matrix(role, SCALE, E8M0, 8, rows, groups, (1, 32))], layout))
    return shapes


def dense(role, rows, cols, layout, encoding=BF16, dtype="BF16", plane=WEIGHT):
    """A trunk tensor that plays a role: matrices in panel order, vectors as published."""
    bits = WIDTH[dtype]
    dims = (rows, cols) if cols > 1 else (rows,)
    return Shape("", dtype, dims, [Matrix(role, plane, encoding, bits, rows, cols)], layout if cols > 1 else 0)


A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def put_trunk(source, trunk, file, name, shape, block=None):
    kind = shape.dtype if shape.dtype in ("BF16", "F32", "F8_E4M3") else "raw"
    data = values(file + name, kind, shape.length)
    source.add(file, name, shape.dtype, shape.dims, data)
    trunk.append(Trunk(file, name, shape, data, block))


def put_experts(source, block, experts, cut=None):
    """Tensors of experts in the given order; after `cut` (expert, pattern) the rest goes to the second file."""
    file = A
    for e in experts:
        for shape in block.schemas[block.schema_of[e]]:
            name = block.prefix + shape.pattern.replace("{expert}", str(e))
            kind = "SCALE" if shape.matrices and shape.matrices[0].encoding == E8M0 else shape.dtype
            source.add(file, name, shape.dtype, shape.dims, values(name, kind, shape.length))
            if cut == (e, shape.pattern):
                file = B
    return file


def basic(layout):
    """Two MoE blocks of three MXFP4 experts in a latent space, shared experts, and every kind of carried tensor."""
    source, trunk, blocks = Source(), [], []
    put_trunk(source, trunk, A, "model.embed_tokens.weight", Shape("", "BF16", (10, H)))
    for n, layer in enumerate((1, 2)):
        prefix = "model.layers.%d.block_sparse_moe." % layer
        block = Block(0, layer, prefix, 3, policy(), [mx_schema(layout)])
        cut = (0, "experts.{expert}.w2.weight_packed") if layer == 2 else None
        file = put_experts(source, block, [2, 0, 1], cut)
        for name, role, rows, cols, dtype, plane in (
                ("gate.weight", ROUTER, 3, H, "BF16", WEIGHT), ("gate.e_score_correction_bias", ROUTER_BIAS, 3, 1, "F32", WEIGHT),
                ("routed_expert_down_proj.weight", LATENT_DOWN, L, H, "BF16", WEIGHT),
                ("routed_expert_norm.weight", LATENT_NORM, L, 1, "BF16", WEIGHT),
                ("routed_expert_up_proj.weight", LATENT_UP, H, L, "BF16", WEIGHT),
                ("shared_experts.gate_proj.weight", SHARED_GATE, S, H, "BF16", WEIGHT),
                ("shared_experts.up_proj.weight", SHARED_UP, S, H, "BF16", WEIGHT),
                ("shared_experts.down_proj.weight", SHARED_DOWN, H, S, "BF16", WEIGHT)):
            put_trunk(source, trunk, file, prefix + name, dense(role, rows, cols, layout, F32 if dtype == "F32" else BF16, dtype, plane), n)
            block.roles[role, plane] = prefix + name
        blocks.append(block)
    for name, dtype, dims in (("model.norm.weight", "BF16", (H,)), ("vision.empty", "BF16", (0, H)), ("vision.scalar", "F32", ()),
                              ("odd.f6", "F6_E2M3", (2, 4)), ("odd.f4", "F4", (6,)), ("odd.complex", "C64", (2,)),
                              ("odd.bool", "BOOL", (3,)), ("odd.i64", "I64", (2, 1))):
        put_trunk(source, trunk, B, name, Shape("", dtype, dims))
    for file in (A, B):
        put_trunk(source, trunk, file, "twice.buffer", Shape("", "F32", (4,)))
    source.add_index_json()
    config = {"model_type": "kimi_k3", "text_config": {"hidden_size": H, "num_experts": 3, "num_experts_per_token": 2}}
    source.other += [(2, "config.json", json.dumps(config, indent=1).encode()), (3, "README.md", b"# A vector\n"),
                     (3, "figures/note.txt", b"a side file in a sub-folder\n"), (3, "empty.txt", b"")]
    return source, blocks, trunk


def by_expert(b, e):
    return "experts-0000-0001.mpk" if e < 2 else "experts-0002-0002.mpk"


def families(layout=1):
    """Other stacks and storage forms: BF16 and F32 with biases; fused, transposed and interleaved; NVFP4, FP8, int4."""
    source, trunk, blocks = Source(), [], []
    rows, cols = 33, 40
    plain = []
    for dtype, encoding in (("BF16", BF16), ("F32", F32)):
        shapes = []
        for part, role, r, c in (("gate_proj", GATE, rows, cols), ("up_proj", UP, rows, cols), ("down_proj", DOWN, cols, rows)):
            shapes.append(Shape("experts.{expert}.%s.weight" % part, dtype, (r, c), [Matrix(role, WEIGHT, encoding, WIDTH[dtype], r, c)], layout))
            shapes.append(Shape("experts.{expert}.%s.bias" % part, dtype, (r,), [Matrix(role, BIAS, encoding, WIDTH[dtype], r, 1)]))
        plain.append(shapes)
    common = dict(hidden=cols, expert_input=cols, intermediate=rows, latent=0, latent_norm=0, shared_width=0)
    blocks.append(Block(1, 1, "encoder.block.1.layer.1.mlp.", 2, policy(top_k=1, score=0, select=0, renormalize=0, expert_bias=1, activation=2, **common),
                        plain, [0, 1]))
    fused = [Shape("experts.gate_up_proj", "BF16", (cols, 2 * rows),
                   [Matrix(GATE, WEIGHT, BF16, 16, rows, cols, base=0, strides=(2, 2 * rows)),
                    Matrix(UP, WEIGHT, BF16, 16, rows, cols, base=1, strides=(2, 2 * rows))], layout, True),
             Shape("experts.gate_up_proj_bias", "BF16", (2 * rows,),
                   [Matrix(GATE, BIAS, BF16, 16, rows, 1, base=0, strides=(2, 1)),
                    Matrix(UP, BIAS, BF16, 16, rows, 1, base=1, strides=(2, 1))], 0, True),
             Shape("experts.down_proj", "BF16", (rows, cols), [Matrix(DOWN, WEIGHT, BF16, 16, cols, rows, strides=(1, cols))], layout, True),
             Shape("experts.blocks", "U8", (8, 3), [Matrix(0, WEIGHT, INT4, 4, 6, 8, strides=(1, 6))], layout, FLAT),
             Shape("experts.nothing", "BF16", (0, cols), (), 0, True)]
    blocks.append(Block(2, 1, "decoder.block.1.mlp.", 2, policy(top_k=2, score=3, select=0, renormalize=0, expert_bias=1, activation=4, **common), [fused]))
    r, c = 24, 48
    mixed = [Shape("experts.{expert}.w1.weight", "U8", (r, c // 2), [Matrix(GATE, WEIGHT, E2M1, 4, r, c)], layout),
             Shape("experts.{expert}.w1.weight_scale", "F8_E4M3", (r, c // 16), [Matrix(GATE, SCALE, E4M3, 8, r, c // 16, (1, 16))], layout),
             Shape("experts.{expert}.w1.weight_scale_2", "F32", (), [Matrix(GATE, GLOBAL_SCALE, F32, 32, 1, 1)]),
             Shape("experts.{expert}.w1.input_scale", "F32", (1,), [Matrix(GATE, OTHER, F32, 32, 1, 1)]),
             Shape("experts.{expert}.w3.weight", "F8_E4M3", (r, c), [Matrix(UP, WEIGHT, E4M3, 8, r, c)], layout),
             Shape("experts.{expert}.w3.weight_scale_inv", "F32", (1, 1), [Matrix(UP, SCALE, F32, 32, 1, 1, (128, 128))], layout),
             Shape("experts.{expert}.w2.weight_packed", "I32", (c, r // 8), [Matrix(DOWN, WEIGHT, INT4, 4, c, r)], layout),
             Shape("experts.{expert}.w2.weight_scale", "BF16", (c, 1), [Matrix(DOWN, SCALE, BF16, 16, c, 1, (1, 32))], layout),
             Shape("experts.{expert}.w2.weight_shape", "I64", (2,), [Matrix(DOWN, SHAPE, I64, 64, 2, 1)])]
    blocks.append(Block(3, 0, "mtp.0.mlp.", 2, policy(top_k=1, score=2, select=2, token_ids=1, renormalize=1, hidden=c, expert_input=c, intermediate=r,
                                                     latent=0, latent_norm=0, shared_width=8, shared_gate=1, logit_bias=1), [mixed],
                        overrides=["weight_from"]))
    for block in (blocks[0], blocks[2]):
        put_experts(source, block, [1, 0])
    for shape in fused:
        name = blocks[1].prefix + shape.pattern
        source.add(A, name, shape.dtype, shape.whole(2), values(name, shape.dtype, 2 * shape.length))
    for b, name, shape, plane in (
            (0, "router.classifier.weight", dense(ROUTER, 2, cols, layout), WEIGHT),
            (1, "router.weight", dense(ROUTER, 2, cols, layout), WEIGHT), (1, "router.bias", dense(LOGIT_BIAS, 2, 1, layout), WEIGHT),
            (2, "gate.weight", dense(ROUTER, 2, c, layout), WEIGHT), (2, "gate.bias", dense(LOGIT_BIAS, 2, 1, layout), WEIGHT),
            (2, "gate.tid2eid", dense(TOKEN_TABLE, 5, 1, layout, I64, "I64"), WEIGHT),
            (2, "shared.gate_proj.weight", dense(SHARED_GATE, 8, c, layout, E4M3, "F8_E4M3"), WEIGHT),
            (2, "shared.gate_proj.weight_scale_inv", Shape("", "F32", (1, 1), [Matrix(SHARED_GATE, SCALE, F32, 32, 1, 1, (128, 128))], layout), SCALE),
            (2, "shared.up_proj.weight", dense(SHARED_UP, 8, c, layout), WEIGHT), (2, "shared.down_proj.weight", dense(SHARED_DOWN, c, 8, layout), WEIGHT),
            (2, "shared_gate.weight", dense(SHARED_ROUTER, 1, c, layout), WEIGHT)):
        put_trunk(source, trunk, B, blocks[b].prefix + name, shape, b)
        blocks[b].roles[shape.matrices[0].role, plane] = blocks[b].prefix + name
    source.add_index_json()
    source.other.append((2, "config.json", b"{}"))
    return source, blocks, trunk


def minimal():
    """One block, one expert, no trunk tensor and no file: a subset whose trunk shard holds nothing."""
    source = Source()
    block = Block(0, 0, "moe.", 1, policy(hidden=8, expert_input=8, intermediate=8, top_k=1, latent=0, latent_norm=0, shared_width=0),
                  [[Shape("experts.{expert}.gate", "BF16", (8, 8), [Matrix(GATE, WEIGHT, BF16, 16, 8, 8)], 1)]])
    put_experts(source, block, [0])
    return source, [block], []


def by_layer(b, e):
    return "layers-%05d-%05d.mpk" % (b + 1, b + 1)


def valid_containers():
    """name -> function that builds a fresh, unsealed container."""
    return {
        "basic-panel": lambda: Container(*basic(1), 1, by_expert),
        "basic-canonical": lambda: Container(*basic(0), 0, lambda b, e: "part-0000.mpk"),
        "by-layer": lambda: Container(*basic(1), 1, by_layer, trunk_size=24000),
        "families": lambda: Container(*families(), 1, lambda b, e: "experts-%04d-%04d.mpk" % (e, e), model="synthetic"),
        "subset": lambda: Container(*basic(1), 1, by_expert, present=lambda b, e: e == 1 or (b, e) == (1, 0)),
        "minimal": lambda: Container(*minimal(), 1, lambda b, e: "experts-0000-0000.mpk", model="synthetic", store_files=False),
        "repaired": lambda: Container(*basic(1), 1, lambda b, e: "experts-0000-0002.mpk", order=lambda b, e: ((b, e) == (0, 1), b, e)),
    }
