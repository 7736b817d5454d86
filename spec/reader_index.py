"""The index of a moepack container, checked: sections 4, 6 and 10 of container.md.

Part of reader.py, the independent reader. Numbers in docstrings are sections of container.md.
"""
import collections
import math
import struct

from reader_format import DTYPES, EMPTY_HASH, ENCODINGS, ENTRY_SIZE, F64, FILE_KINDS, HEADER_LENGTH, INDEX_TABLES, KIND_EXPERTS
from reader_format import KIND_TRUNK, LAYOUTS, LIMIT_FILE, NONE32, PAGE, PART, PARTS_ABOVE, PLANES, PLAN_TABLES, POLICY_KEYS, ROLES, ROLE_ORDER
from reader_format import SCALE, SMALL_SECTION, STACKS, TABLES, align, ceil_div, check_tail_place, corrupt, entries_of, hash128
from reader_format import read_index_header, read_table_set, table_set, text, text128, unsupported
from reader_panel import matrices_cover, panel_length

Shard = collections.namedtuple("Shard", "name kind file_length tail_offset tail_length root")
Block = collections.namedtuple("Block", "stack number prefix experts policy first_record first_role role_count")
Desc = collections.namedtuple("Desc", "pattern dtype layout fused dims matrices canonical_length decoded_length")
Matrix = collections.namedtuple("Matrix", "role plane encoding bits group_rows group_cols rows cols base row_stride col_stride")
Record = collections.namedtuple("Record", "shard schema offset length first_section")
Section = collections.namedtuple("Section", "offset stored_length stored_hash canonical_hash first_part codec")
Tensor = collections.namedtuple("Tensor", "name desc file section shard block")
SourceFile = collections.namedtuple("SourceFile", "name kind shard section length hash")

NOT_NEGATIVE = ("renorm_eps", "act_limit", "situ_linear_beta", "norm_eps", "shared_act_limit", "sparsemixer_eps")


def as_binary32(value):
    """The value rounded to binary32, infinite beyond its range."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


class Index:
    """The checked content of index.mpk."""

    def __init__(self, data, name="index.mpk", real_length=None):
        self.name = name
        self.header = read_index_header(data, len(data) if real_length is None else real_length, name)
        whole = data[HEADER_LENGTH:]
        if hash128(whole) != self.header.root_hash:
            raise corrupt("5.5", "root_hash does not match the table set", file=name, expected=text128(self.header.root_hash),
                          found=text128(hash128(whole)))
        self.tables = read_table_set(whole, name, HEADER_LENGTH)
        for table in INDEX_TABLES:
            if table not in self.tables:
                raise corrupt("4.1", "table %s is missing" % TABLES[table][0], file=name)
        for table in self.tables:
            if table not in INDEX_TABLES:
                raise corrupt("4.1", "table %s does not belong in an index" % TABLES[table][0], file=name)
        self.read_info()
        self.read_shards()
        self.dims = [d for (d,) in entries_of(self.tables, 7)]
        self.read_matrices()
        self.read_descs()
        self.read_schemas()
        self.read_policies()
        self.read_roles()
        self.read_blocks()
        self.parts = self.check_parts()
        self.part_count = {}  # section -> number of its parts
        self.sections = [Section(o, n, h, c, p, codec) for o, n, h, c, p, codec, _ in self.raw_sections()]
        self.read_records()
        self.read_files()
        self.read_tensors()
        self.check_roles()
        self.check_trunk_sections()
        self.check_part_order()

    # -- small helpers

    def bad(self, rule, message, **where):
        where.setdefault("file", self.name)
        return corrupt(rule, message, **where)

    def string(self, offset, length, what):
        """2: str."""
        strings = self.tables[16]
        if offset > len(strings) or length > len(strings) - offset:
            raise self.bad("4.11", "%s lies outside STRINGS" % what)
        return strings[offset:offset + length]

    def reserved(self, value, rule, what):
        if (any(value) if isinstance(value, bytes) else value):
            raise self.bad(rule, "reserved field of %s is not zero" % what)

    def span(self, first, count, total, rule, what):
        if first > total or count > total - first:
            raise self.bad(rule, "%s lies outside its table" % what)

    def raw_sections(self):
        """4.9, the fields that need no other table."""
        for i, entry in enumerate(struct.iter_unpack(TABLES[11][1], self.tables[11])):
            self.reserved(entry[6], "4.9", "section %d" % i)
            yield entry

    # -- one function per table

    def read_info(self):
        """4.2"""
        entries = entries_of(self.tables, 1)
        if len(entries) != 1:
            raise self.bad("4.1", "INFO has %d entries" % len(entries))
        (self.canonical_root, self.plan_id, family, family_n, model, model_n, page, self.writer_revision, layout, self.codec, flags,
         self.zstd_version, self.source_bytes, self.source_tensors, reserved) = entries[0]
        self.reserved(reserved, "4.2", "INFO")
        self.family = self.string(family, family_n, "family")
        self.model_type = self.string(model, model_n, "model_type")
        if page != PAGE:
            raise self.bad("4.2", "page size %d" % page)
        if layout not in LAYOUTS:
            raise self.bad("4.2", "layout %d" % layout)
        self.layout = layout
        self.reserved(flags & ~3, "4.2", "INFO (flags)")
        if flags & 3 == 2:
            raise self.bad("4.2", "INFO: quantised, but no subset")
        self.subset = bool(flags & 1)

    def read_shards(self):
        """4.4"""
        self.shards, seen = [], set()
        for i, (at, n, kind, res1, length, tail, tail_n, root, res2) in enumerate(entries_of(self.tables, 2)):
            what = "shard %d" % i
            self.reserved(res1, "4.4", what)
            self.reserved(res2, "4.4", what)
            name = self.string(at, n, "name of " + what)
            if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
                raise self.bad("4.4", "%s has the name %r" % (what, text(name)))
            if name in seen:
                raise self.bad("4.4", "two shards are named %r" % text(name))
            seen.add(name)
            if kind not in (KIND_TRUNK, KIND_EXPERTS):
                raise self.bad("4.4", "%s has kind %d" % (what, kind))
            check_tail_place(tail, tail_n, length, self.name)
            self.shards.append(Shard(text(name), kind, length, tail, tail_n, root))

    def read_matrices(self):
        """4.6"""
        self.matrices = []
        for i, m in enumerate(entries_of(self.tables, 6)):
            matrix = Matrix(*m[:11])
            what = "matrix %d" % i
            for value, known, kind in ((matrix.role, ROLES, "role"), (matrix.plane, PLANES, "plane"),
                                       (matrix.encoding, ENCODINGS, "encoding")):
                if value not in known:
                    raise unsupported("4.3", "%s has %s %d" % (what, kind, value), file=self.name)
            self.reserved(m[11], "4.6", what)
            if matrix.bits not in (4, 8, 16, 32, 64):
                raise self.bad("4.6", "%s has elements of %d bits" % (what, matrix.bits))
            if ENCODINGS[matrix.encoding][1] not in (None, matrix.bits):
                raise self.bad("4.6", "%s: %s has not %d bits" % (what, ENCODINGS[matrix.encoding][0], matrix.bits))
            if matrix.plane != SCALE and (matrix.group_rows or matrix.group_cols):
                raise self.bad("4.6", "%s has groups but is no scale plane" % what)
            if (matrix.group_rows == 0) != (matrix.group_cols == 0):
                raise self.bad("4.6", "%s has groups of %d x %d" % (what, matrix.group_rows, matrix.group_cols))
            self.matrices.append(matrix)

    def read_descs(self):
        """4.6"""
        self.descs = []
        for i, (at, n, dtype, layout, flags, rank, dim, mat, mat_n, res1, length, decoded, res2) in enumerate(entries_of(self.tables, 5)):
            what = "description %d" % i
            pattern = self.string(at, n, "name of " + what)
            if dtype not in DTYPES:
                raise unsupported("4.3", "%s has dtype %d" % (what, dtype), file=self.name)
            if layout not in LAYOUTS:
                raise self.bad("4.3", "%s has layout %d" % (what, layout))
            self.reserved(flags & ~3, "4.6", what)
            self.reserved(res1, "4.6", what)
            self.reserved(res2, "4.6", what)
            self.span(dim, rank, len(self.dims), "4.6", "dims of " + what)
            self.span(mat, mat_n, len(self.matrices), "4.6", "matrices of " + what)
            if pattern.count(b"{expert}") > 1:
                raise self.bad("4.6", "%s: {expert} occurs twice" % what)
            if pattern and bool(flags & 1) == (b"{expert}" in pattern):
                raise self.bad("4.6", "%s: %r and the fused flag contradict each other" % (what, text(pattern)))
            if flags & 1 and not pattern:
                raise self.bad("4.6", "%s: fused, but it is no section of an expert" % what)
            if flags & 2 and not (flags & 1 and rank):
                raise self.bad("4.6", "%s: flat, but no slice of a tensor of all experts" % what)
            desc = Desc(pattern, dtype, layout, flags & 3, tuple(self.dims[dim:dim + rank]),
                        tuple(self.matrices[mat:mat + mat_n]), length, decoded)
            self.check_desc(desc, what)
            self.descs.append(desc)

    def check_desc(self, desc, what):
        """4.6: lengths follow from dims, dtype and matrices; every element lies inside."""
        bits = DTYPES[desc.dtype][1]
        for dim in desc.dims:
            bits *= dim
        if 0 not in desc.dims and bits // 8 >= LIMIT_FILE or bits % 8 or bits // 8 != desc.canonical_length:
            raise self.bad("4.6", "%s: canonical length %d contradicts dtype and dims" % (what, desc.canonical_length))
        if desc.layout == 1 and not desc.matrices:
            raise self.bad("4.6", "%s: opaque bytes in panel order" % what)
        for m in desc.matrices:
            if m.rows and m.cols:
                last = m.base + (m.rows - 1) * m.row_stride + (m.cols - 1) * m.col_stride
                if last >= desc.canonical_length * 8 // m.bits:
                    raise self.bad("4.6", "%s: a matrix reaches outside the section" % what)
        expected = desc.canonical_length if desc.layout == 0 else sum(panel_length(m) for m in desc.matrices)
        if expected >= LIMIT_FILE or desc.decoded_length != expected:
            raise self.bad("4.6", "%s: decoded length %d instead of %d" % (what, desc.decoded_length, expected))
        if desc.layout == 1 and not matrices_cover(desc.matrices, desc.canonical_length):
            raise self.bad("4.6", "%s: the matrices do not cover every bit of the section once" % what)

    def read_schemas(self):
        """4.6"""
        self.schemas = []
        for i, (first, count) in enumerate(entries_of(self.tables, 4)):
            if not count:
                raise self.bad("4.6", "schema %d is empty" % i)
            self.span(first, count, len(self.descs), "4.6", "schema %d" % i)
            if not all(desc.pattern for desc in self.descs[first:first + count]):
                raise self.bad("4.6", "schema %d has the description of a trunk tensor" % i)
            self.schemas.append(list(range(first, first + count)))

    def read_policies(self):
        """4.7, 6"""
        fields = entries_of(self.tables, 9)
        self.policies, self.overrides = [], []
        for i, (first, count) in enumerate(entries_of(self.tables, 8)):
            self.span(first, count, len(fields), "4.7", "policy %d" % i)
            policy, overridden = self.read_policy(i, fields[first:first + count])
            self.policies.append(policy)
            self.overrides.append(overridden)

    def read_policy(self, number, fields):
        """6: known keys in ascending order, each with its type and an allowed value; every key present."""
        what, values, last, overridden = "policy %d" % number, {}, -1, []
        for key, kind, flags, raw in fields:
            self.reserved(flags & ~1, "4.7", what)
            if key <= last:
                raise self.bad("4.7", "%s: key %d after key %d" % (what, key, last))
            last = key
            if key not in POLICY_KEYS:
                raise unsupported("6", "%s: unknown key %d" % (what, key), file=self.name)
            name, expected, allowed = POLICY_KEYS[key]
            if kind != expected:
                raise unsupported("6", "%s: %s has type %d" % (what, name, kind), file=self.name)
            value = struct.unpack("<d", struct.pack("<Q", raw))[0] if kind == F64 else raw
            if allowed is not None and value not in allowed:
                raise unsupported("6", "%s: %s has the value %d" % (what, name, value), file=self.name)
            values[name] = value
            if flags & 1:
                overridden.append(name)
        if len(values) != len(POLICY_KEYS):
            missing = [name for name, _, _ in POLICY_KEYS.values() if name not in values]
            raise self.bad("6", "%s: %s is missing" % (what, missing[0]))
        return values, overridden

    def check_policy(self, label, policy, experts):
        """6: what a policy must satisfy for a block of `experts` experts."""
        def need(condition, message):
            if not condition:
                raise self.bad("6", message, layer=label)
        need(1 <= policy["top_k"] <= experts, "top_k %d of %d experts" % (policy["top_k"], experts))
        groups, kept = policy["groups"], policy["groups_kept"]
        need(groups >= 1 and experts % groups == 0, "%d experts in %d groups" % (experts, groups))
        need(1 <= kept <= groups, "%d of %d groups kept" % (kept, groups))
        need(policy["top_k"] <= kept * (experts // groups), "top_k %d exceeds the kept groups" % policy["top_k"])
        for name, kind, _ in POLICY_KEYS.values():
            need(kind != F64 or math.isfinite(as_binary32(policy[name])), "%s is not finite as binary32" % name)
        for name in NOT_NEGATIVE:
            need(policy[name] >= 0, "%s is negative" % name)
        need(as_binary32(policy["situ_beta"]) > 0, "situ_beta %g" % policy["situ_beta"])
        need(policy["latent"] or policy["expert_input"] == policy["hidden"], "expert_input differs from hidden without a latent space")

    def read_roles(self):
        """4.10"""
        self.roles = entries_of(self.tables, 15)
        for role, plane, _ in self.roles:
            if role not in ROLES or plane not in PLANES:
                raise unsupported("4.3", "role %d, plane %d" % (role, plane), file=self.name)
            if role not in ROLE_ORDER:
                raise self.bad("4.3", "%s is no role of a block" % ROLES[role])

    def read_blocks(self):
        """4.5"""
        self.blocks, first_record, last = [], 0, (-1, -1)
        for i, (stack, number, at, n, experts, policy, record, role, role_n, reserved) in enumerate(entries_of(self.tables, 3)):
            what = "block %d" % i
            self.reserved(reserved, "4.5", what)
            if stack not in STACKS:
                raise self.bad("4.5", "%s has stack %d" % (what, stack))
            if (stack, number) <= last:
                raise self.bad("4.5", "%s is out of order or occurs twice" % what)
            last = (stack, number)
            if policy >= len(self.policies):
                raise self.bad("4.5", "%s has policy %d" % (what, policy))
            if record != first_record:
                raise self.bad("4.5", "%s starts at record %d instead of %d" % (what, record, first_record))
            first_record += experts
            self.span(role, role_n, len(self.roles), "4.5", "roles of " + what)
            prefix = self.string(at, n, "prefix of " + what)
            if not prefix.endswith(b"."):
                raise self.bad("4.5", "prefix of %s does not end with a dot" % what)
            block = Block(stack, number, prefix, experts, policy, record, role, role_n)
            self.blocks.append(block)
            self.check_policy(self.label(i), self.policies[policy], experts)
            keys = [r[:2] for r in self.roles[role:role + role_n]]
            if any(a >= b for a, b in zip(keys, keys[1:])):
                raise self.bad("4.10", "roles of %s are out of order" % what)
        if first_record != len(self.tables[10]) // ENTRY_SIZE[10]:
            raise self.bad("4.5", "RECORDS does not have the sum of all E")

    def check_parts(self):
        """4.9"""
        parts = []
        for i, (stored, reserved, value) in enumerate(entries_of(self.tables, 12)):
            self.reserved(reserved, "4.9", "part %d" % i)
            parts.append((stored, value))
        return parts

    def read_records(self):
        """4.8, and of 4.9 and section 10 what concerns the sections of records"""
        self.records, expected = [], 0
        spans = collections.defaultdict(list)
        for b, block in enumerate(self.blocks):
            for e in range(block.experts):
                at = ENTRY_SIZE[10] * (block.first_record + e)
                record = Record(*struct.unpack_from(TABLES[10][1], self.tables[10], at))
                where = {"layer": self.label(b), "expert": e}
                self.records.append(record)
                if record.shard == NONE32:
                    if any(record[1:]):
                        raise self.bad("4.8", "fields of an absent record are not zero", **where)
                    continue
                self.check_record(record, where, expected)
                expected += len(self.schemas[record.schema])
                spans[record.shard].append((record.offset, record.offset + record.length, where))
        self.record_sections = expected
        for shard_spans in spans.values():
            shard_spans.sort(key=lambda s: s[:2])
            for a, b in zip(shard_spans, shard_spans[1:]):
                if b[0] < a[1]:
                    raise self.bad("10", "record overlaps another", **b[2])

    def check_record(self, record, where, expected_section):
        """4.8, 10: a record lies in the data of its shard, its sections lie in it."""
        if record.shard >= len(self.shards) or self.shards[record.shard].kind != KIND_EXPERTS:
            raise self.bad("4.8", "record in shard %d, which is no expert shard" % record.shard, **where)
        if record.schema >= len(self.schemas):
            raise self.bad("4.8", "record with schema %d" % record.schema, **where)
        shard = self.shards[record.shard]
        if record.offset % PAGE or record.length % PAGE:
            raise self.bad("4.8", "record at %d with %d bytes is not page-aligned" % (record.offset, record.length), **where)
        if record.offset < PAGE or record.offset > shard.tail_offset or record.length > shard.tail_offset - record.offset:
            raise self.bad("10", "record lies outside the data of its shard", **where)
        if record.first_section != expected_section:
            raise self.bad("4.9", "first section %d instead of %d" % (record.first_section, expected_section), **where)
        schema = self.schemas[record.schema]
        self.span(record.first_section, len(schema), len(self.sections), "4.8", "sections of a record")
        spans = []
        for s, d in enumerate(schema):
            section = self.sections[record.first_section + s]
            named = dict(where, section=text(self.descs[d].pattern))
            self.check_section(record.first_section + s, self.descs[d].decoded_length, self.descs[d].canonical_length, named)
            if section.stored_length:
                if section.offset < record.offset or section.stored_length > record.length or \
                        section.offset - record.offset > record.length - section.stored_length:
                    raise self.bad("10", "section lies outside its record", **named)
                spans.append((section, named))
        self.check_record_layout(record, spans, where)

    def check_record_layout(self, record, sections, where):
        """7: the places of the non-empty sections of a record, which come in schema order. Rules out overlaps."""
        large = [x for x in sections if x[0].stored_length > SMALL_SECTION]
        small = [x for x in sections if x[0].stored_length <= SMALL_SECTION]
        at = record.offset
        for i, (section, named) in enumerate(large + small):
            at = align(at, PAGE if i <= len(large) else 8)
            if section.offset != at:
                raise self.bad("7", "section at %d instead of %d, where its record puts it" % (section.offset, at), **named)
            at += section.stored_length
        if align(at, PAGE) != record.offset + record.length:
            raise self.bad("7", "record does not end at the page behind its sections", offset=record.offset, **where)

    def check_section(self, number, decoded, canonical, where):
        """4.9: lengths, hashes of the empty section, parts. decoded None: not known (a compressed file)."""
        section = self.sections[number]
        raw = section.codec == 0
        if raw and decoded is not None and section.stored_length != decoded:
            raise self.bad("4.9", "raw section with %d stored and %d decoded bytes" % (section.stored_length, decoded), **where)
        if not section.stored_length and section.offset:
            raise self.bad("4.9", "empty section at offset %d" % section.offset, **where)
        if not section.stored_length and section.stored_hash != EMPTY_HASH or canonical == 0 and section.canonical_hash != EMPTY_HASH:
            raise self.bad("5.1", "hash of an empty section", **where)
        length = section.stored_length if decoded is None else decoded
        if raw and length <= PARTS_ABOVE:
            if section.first_part != NONE32:
                raise self.bad("4.9", "small raw section with parts", **where)
            return
        if section.first_part == NONE32:
            raise self.bad("4.9", "section without parts", **where)
        count = ceil_div(length, PART)
        self.span(section.first_part, count, len(self.parts), "4.9", "parts of a section")
        lengths = [n for n, _ in self.parts[section.first_part:section.first_part + count]]
        if raw and lengths != [PART] * (count - 1) + [length - PART * (count - 1)]:
            raise self.bad("4.9", "a part of a raw section has a wrong length", **where)
        if sum(lengths) != section.stored_length:
            raise self.bad("4.9", "the parts of a section do not add up", **where)
        self.part_count[number] = count

    def trunk_place(self, shard, section, where):
        """10: a section of the trunk lies in the data of a trunk shard."""
        if shard >= len(self.shards) or self.shards[shard].kind != KIND_TRUNK:
            raise self.bad("4.10", "shard %d is no trunk shard" % shard, **where)
        if section >= len(self.sections) or section < self.record_sections:
            raise self.bad("4.9", "section %d is none of the trunk" % section, **where)
        s, tail = self.sections[section], self.shards[shard].tail_offset
        if s.stored_length and (s.offset < PAGE or s.offset > tail or s.stored_length > tail - s.offset):
            raise self.bad("10", "section lies outside the data of its shard", **where)

    def read_files(self):
        """4.10"""
        self.files, last, names = [], (-1, b""), set()
        entries = entries_of(self.tables, 14)
        first = len(self.sections) - len(entries)
        for i, (at, n, kind, shard, section, length, value, reserved) in enumerate(entries):
            what = "file %d" % i
            self.reserved(reserved, "4.10", what)
            name = self.string(at, n, "name of " + what)
            if b"\0" in name or any(part in (b"", b".", b"..") for part in name.split(b"/")):
                raise self.bad("4.10", "%s has the name %r" % (what, text(name)))
            if kind not in FILE_KINDS:
                raise self.bad("4.10", "%s has kind %d" % (what, kind))
            if (kind, name) <= last or name in names:
                raise self.bad("4.10", "%s is out of order or occurs twice" % what)
            last = (kind, name)
            names.add(name)
            where = {"section": text(name)}
            self.trunk_place(shard, section, where)
            if section != first + i:
                raise self.bad("4.9", "%s has section %d instead of %d" % (what, section, first + i), **where)
            if length >= LIMIT_FILE:
                raise self.bad("11", "%s has %d bytes" % (what, length), **where)
            s = self.sections[section]
            self.check_section(section, None if kind == 0 else length, length if kind else None, where)
            if kind == 0 and s.codec == 0 and s.stored_length > length:
                raise self.bad("4.10", "section of %d bytes for a file of %d" % (s.stored_length, length), **where)
            self.files.append(SourceFile(text(name), kind, shard, section, length, value))

    def read_tensors(self):
        """4.10"""
        self.tensors, last, used = [], (b"", -1), set()
        entries = entries_of(self.tables, 13)
        if len(self.sections) != self.record_sections + len(entries) + len(self.files):
            raise self.bad("4.9", "SECTIONS does not have one entry per section of records, tensor and file")
        for i, (at, n, desc, source, section, shard, block) in enumerate(entries):
            name = self.string(at, n, "name of tensor %d" % i)
            where = {"section": text(name)}
            if i and (name, source) <= last:
                raise self.bad("4.10", "tensors are out of order", **where)
            last = (name, source)
            if desc >= len(self.descs) or source >= len(self.files) or block != NONE32 and block >= len(self.blocks):
                raise self.bad("4.10", "a reference lies outside its table", **where)
            if self.files[source].kind != 0:
                raise self.bad("4.10", "tensor of a file that is no safetensors file", **where)
            if self.descs[desc].pattern or self.descs[desc].fused:
                raise self.bad("4.6", "tensor with the description of an expert's section", **where)
            self.trunk_place(shard, section, where)
            if section in used or section >= self.record_sections + len(entries):
                raise self.bad("4.9", "section %d is not this tensor's" % section, **where)
            used.add(section)
            self.check_section(section, self.descs[desc].decoded_length, self.descs[desc].canonical_length, where)
            self.tensors.append(Tensor(text(name), desc, source, section, shard, block))

    def check_roles(self):
        """4.10: every role names a tensor."""
        for role, _, tensor in self.roles:
            if tensor >= len(self.tensors):
                raise self.bad("4.10", "role %s names tensor %d" % (ROLES[role], tensor))

    def check_trunk_sections(self):
        """10: sections of the trunk do not overlap."""
        spans = collections.defaultdict(list)
        for item in self.tensors + self.files:
            s = self.sections[item.section]
            if s.stored_length:
                spans[item.shard].append((s.offset, s.offset + s.stored_length, item.name))
        for shard_spans in spans.values():
            shard_spans.sort()
            for a, b in zip(shard_spans, shard_spans[1:]):
                if b[0] < a[1]:
                    raise self.bad("10", "section overlaps another", section=b[2])

    def check_part_order(self):
        """4.9: PARTS in section order, without gaps."""
        expected = 0
        for number in sorted(self.part_count):
            if self.sections[number].first_part != expected:
                raise self.bad("4.9", "section %d has its first part at %d instead of %d" % (
                    number, self.sections[number].first_part, expected))
            expected += self.part_count[number]
        if expected != len(self.parts):
            raise self.bad("4.9", "%d parts belong to no section" % (len(self.parts) - expected))

    # -- what the tables say

    def label(self, block):
        """4.5"""
        b = self.blocks[block]
        return str(b.number) if b.stack == 0 else "%s.%d" % (STACKS[b.stack], b.number)

    def experts(self):
        """All present records: (block, expert, record)."""
        for b, block in enumerate(self.blocks):
            for e in range(block.experts):
                record = self.records[block.first_record + e]
                if record.shard != NONE32:
                    yield b, e, record

    def section_name(self, block, expert, desc):
        """4.6: the published name."""
        pattern = self.descs[desc].pattern.replace(b"{expert}", b"%d" % expert)
        return text(self.blocks[block].prefix + pattern)

    def published_shape(self, block, desc):
        """4.6, 5.4: fused sections prepend E, flat ones multiply their first dimension by it."""
        d = self.descs[desc]
        if d.fused & 2:
            return (self.blocks[block].experts * d.dims[0],) + d.dims[1:]
        return ((self.blocks[block].experts,) if d.fused else ()) + d.dims

    def plan(self):
        """5.6: plan_id, recomputed."""
        return hash128(table_set([(t, plan_table(self.tables, t, False)) for t in PLAN_TABLES]))


def plan_table(tables, table, keep_sections):
    """5.6 and 8: a table of the index with the fields zeroed that depend on content."""
    raw = bytearray(tables[table])
    clear = {2: (16, 56), 14: (32, 48), 1: (0, 16)}.get(table)
    if clear:
        for at in range(0, len(raw), ENTRY_SIZE[table]):
            raw[at + clear[0]:at + clear[1]] = bytes(clear[1] - clear[0])
    if table in (13, 14) and not keep_sections:
        for at in range(16, len(raw), ENTRY_SIZE[table]):
            raw[at:at + 8] = bytes(8)
    return bytes(raw)
