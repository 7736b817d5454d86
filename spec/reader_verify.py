"""Verification of a moepack container: what section 10 of container.md asks of `verify`.

Part of reader.py, the independent reader. Numbers in docstrings are sections of container.md.
"""
import os
import struct

from reader_format import ENTRY_SIZE, EXPERT_TAIL_TABLES, HEADER_LENGTH, INCOMPLETE, KIND_TRUNK, NONE32, PAGE, PLAN_TABLES
from reader_format import ROLE_ORDER, SMALL_SECTION, TABLES, TRUNK_TAIL_TABLES, Finding, align, corrupt, entries_of, hash64
from reader_format import incomplete, text64, text128
from reader_index import plan_table
from reader_pack import Names, Pack, Sources, canonical_root


class Verify:
    """10: everything that can be checked without the source. Goes on after a finding."""

    def __init__(self, path):
        self.findings, self.checked_bytes, self.checked_sections = [], 0, 0
        self.pack = None
        if self.guard(lambda: setattr(self, "pack", Pack(path))):
            self.index = self.pack.index
            self.run()

    def guard(self, action):
        try:
            action()
            return True
        except Finding as finding:
            if finding not in self.findings:
                self.findings.append(finding)
            return False

    def run(self):
        index = self.index
        good = [n for n in range(len(index.shards)) if self.guard(lambda n=n: self.pack.shard(n))]
        owned = self.sections_by_shard()
        for n in range(len(index.shards)):
            if n not in good:
                self.damaged_shard(n, owned[n])
                continue
            shard = self.pack.shard(n)
            self.guard(lambda: self.check_tail(shard))
            for item in owned[n]:
                self.guard(lambda item=item: self.check_content(item))
            self.guard(lambda: self.check_padding(shard, owned[n]))
        self.check_whole()

    def sections_by_shard(self):
        """Per shard: [(section, what, place)], what is record, tensor or file."""
        index, owned = self.index, [[] for _ in self.index.shards]
        for b, e, record in index.experts():
            for s in range(len(index.schemas[record.schema])):
                owned[record.shard].append((index.sections[record.first_section + s], "record", (b, e, record, s)))
        for tensor in index.tensors:
            owned[tensor.shard].append((index.sections[tensor.section], "tensor", tensor))
        for source in index.files:
            owned[source.shard].append((index.sections[source.section], "file", source))
        return owned

    def check_content(self, item):
        section, what, place = item
        if what == "record":
            self.pack.expert_section(*place, check_padding=True)
        elif what == "tensor":
            self.pack.tensor(place, check_padding=True)
        else:
            self.pack.file_section(place)
        self.checked_sections += 1
        self.checked_bytes += section.stored_length

    def damaged_shard(self, number, items):
        """10: corrupt wins over incomplete, so what is left of a short shard is still looked at."""
        name = self.index.shards[number].name
        path = os.path.join(self.pack.path, name)
        if self.pack.open_shards[number].verdict != INCOMPLETE or not os.path.isfile(path):
            return
        with open(path, "rb") as handle:
            data = handle.read()
        for section, what, place in items:
            end = section.offset + section.stored_length
            where = {"file": name, "offset": section.offset, "length": section.stored_length}
            if what == "record":
                desc = self.index.schemas[place[2].schema][place[3]]
                where.update(layer=self.index.label(place[0]), expert=place[1], section=self.index.section_name(place[0], place[1], desc))
            else:
                where.update(section=place.name)
            if end > len(data):
                self.findings.append(incomplete("10", "section reaches beyond the end of the file", **where))
            elif section.stored_length and hash64(data[section.offset:end]) != section.stored_hash:
                self.findings.append(corrupt("5.1", "hash of the stored bytes does not match", expected=text64(section.stored_hash),
                                             found=text64(hash64(data[section.offset:end])), **where))

    def check_padding(self, shard, items):
        """3.3: every byte before the tail that is neither header nor section is zero."""
        spans = sorted((s.offset, s.offset + s.stored_length) for s, _, _ in items if s.stored_length)
        at = HEADER_LENGTH
        for begin, end in spans + [(shard.entry.tail_offset, 0)]:
            if begin > at:
                gap = shard.read(at, begin - at)
                if gap.strip(b"\0"):
                    first = at + len(gap) - len(gap.lstrip(b"\0"))
                    self.findings.append(corrupt("3.3", "padding is not zero", file=shard.entry.name, offset=first,
                                                 length=begin - first, expected="zero padding"))
            at = max(at, end)

    def same(self, shard, table, expected, rule):
        if shard.tail[table] != expected:
            raise corrupt(rule, "table %s of the tail differs from the index" % TABLES[table][0], file=shard.entry.name,
                          offset=shard.entry.tail_offset)

    def check_tail(self, shard):
        """7, 8: the tail against the index."""
        wanted = TRUNK_TAIL_TABLES if shard.entry.kind == KIND_TRUNK else EXPERT_TAIL_TABLES
        if sorted(shard.tail) != wanted:
            raise corrupt("4.1", "tail with the tables %s" % sorted(shard.tail), file=shard.entry.name, offset=shard.entry.tail_offset)
        if shard.entry.kind == KIND_TRUNK:
            self.check_trunk_tail(shard)
        else:
            self.check_expert_tail(shard)

    def tail_sections(self, sections):
        """7: SECTIONS and PARTS as they must be in a tail, from sections of the index."""
        raw, parts = bytearray(), bytearray()
        for number in sections:
            s = self.index.sections[number]
            first = NONE32
            if s.first_part != NONE32:
                first = len(parts) // ENTRY_SIZE[12]
                count = self.index.part_count[number]
                parts += self.index.tables[12][ENTRY_SIZE[12] * s.first_part:ENTRY_SIZE[12] * (s.first_part + count)]
            raw += struct.pack(TABLES[11][1], *s[:4], first, s.codec, bytes(3))
        return bytes(raw), bytes(parts)

    def check_trunk_tail(self, shard):
        """8"""
        for table in PLAN_TABLES + [1]:
            self.same(shard, table, plan_table(self.index.tables, table, True), "8")
        owners = [(t.section, 0, i) for i, t in enumerate(self.index.tensors) if t.shard == shard.number]
        owners += [(f.section, 1, i) for i, f in enumerate(self.index.files) if f.shard == shard.number]
        owners.sort()
        self.same(shard, 21, b"".join(struct.pack("<II", what, i) for _, what, i in owners), "8")
        sections, parts = self.tail_sections([number for number, _, _ in owners])
        self.same(shard, 11, sections, "8")
        self.same(shard, 12, parts, "8")
        at = PAGE
        for number, what, i in owners:
            s = self.index.sections[number]
            if s.stored_length:
                at = align(at, 64 if s.stored_length <= SMALL_SECTION else PAGE)
                if s.offset != at:
                    name = (self.index.files if what else self.index.tensors)[i].name
                    raise corrupt("8", "section is not at %d, where the storage order puts it" % at, file=shard.entry.name,
                                  section=name, offset=s.offset)
                at += s.stored_length

    def check_expert_tail(self, shard):
        """7"""
        expected = {(b, e): record for b, e, record in self.index.experts() if record.shard == shard.number}
        at, sections = PAGE, []
        for b, e, schema, reserved, offset, length, first in entries_of(shard.tail, 20):
            record = expected.pop((b, e), None)
            if record is None or reserved or (schema, offset, length) != (record.schema, record.offset, record.length):
                raise corrupt("7", "TAIL_RECORDS entry for block %d, expert %d differs from the index" % (b, e),
                              file=shard.entry.name, offset=shard.entry.tail_offset)
            where = {"file": shard.entry.name, "layer": self.index.label(b), "expert": e}
            if offset < at:  # zero pages before it are allowed; check_padding looks at them
                raise corrupt("7", "record is behind one of a higher offset", offset=offset, **where)
            if first != len(sections):
                raise corrupt("7", "first section %d in the tail instead of %d" % (first, len(sections)), **where)
            at = offset + length
            sections += range(record.first_section, record.first_section + len(self.index.schemas[schema]))
        if expected:
            b, e = min(expected)
            raise corrupt("7", "record is not in TAIL_RECORDS", file=shard.entry.name, layer=self.index.label(b), expert=e)
        raw, parts = self.tail_sections(sections)
        self.same(shard, 11, raw, "7")
        self.same(shard, 12, parts, "7")

    def check_whole(self):
        """5.3, 5.4, 5.6, 4.2, 8: what concerns the container as a whole."""
        index = self.index
        if index.plan() != index.plan_id:
            self.findings.append(corrupt("5.6", "plan_id does not match", file=index.name, expected=text128(index.plan_id),
                                         found=text128(index.plan())))
        root = canonical_root(index)
        if root != index.canonical_root:
            self.findings.append(corrupt("5.4", "canonical_root does not match", file=index.name,
                                         expected=text128(index.canonical_root), found=text128(root)))
        names = []
        if not self.guard(lambda: names.append(Names(index))):
            return
        self.guard(lambda: self.check_info(names[0]))
        sources = Sources(self.pack, names[0])
        readable = True
        for number, source in enumerate(index.files):
            readable = self.guard(lambda: self.check_file(sources, number, source)) and readable
        if readable:
            self.guard(lambda: self.check_storage_order(sources))

    def check_info(self, names):
        """4.2: bytes and number of stored tensors; the subset flag."""
        index = self.index
        total = sum(index.descs[t.desc].canonical_length for t in index.tensors)
        for b, e, record in index.experts():
            total += sum(index.descs[d].canonical_length for d in index.schemas[record.schema])
        count = len(names.trunk) + len(names.expert) + len(names.fused)
        if (total, count) != (index.source_bytes, index.source_tensors):
            raise corrupt("4.2", "INFO counts %d bytes in %d tensors" % (index.source_bytes, index.source_tensors), file=index.name,
                          expected="%d in %d" % (total, count))
        if not index.subset and any(record.shard == NONE32 for record in index.records):
            raise corrupt("4.2", "experts are absent but the subset flag is not set", file=index.name)

    def check_file(self, sources, number, source):
        """5.3, 4.10"""
        value = sources.file_hash(number)
        if value is None and not self.index.subset:
            raise corrupt("4.2", "not stored whole but the subset flag is not set", file=self.index.name, section=source.name)
        expected = bytes(16) if value is None else value
        if source.hash != expected:
            raise corrupt("5.3", "file hash does not match", file=self.index.name, section=source.name,
                          expected=text128(source.hash), found=text128(expected))
        if source.kind == 0:
            raw, tensors = sources.header(number)
            if len(raw) + (tensors[-1][1] if tensors else 0) != source.length:
                raise corrupt("4.10", "length of the file contradicts its header", file=self.index.name, section=source.name)

    def check_storage_order(self, sources):
        """8: the numbering of trunk sections."""
        index, order, seen = self.index, [], set()
        for block in index.blocks:
            roles = index.roles[block.first_role:block.first_role + block.role_count]
            for role, plane, tensor in sorted(roles, key=lambda r: (ROLE_ORDER.index(r[0]) if r[0] in ROLE_ORDER else 99, r[1])):
                if tensor not in seen:
                    seen.add(tensor)
                    order.append(tensor)
        place = {}
        for number, source in enumerate(index.files):
            if source.kind == 0:
                for position, entry in enumerate(sources.header(number)[1]):
                    place[entry[2], number] = position
        rest = [i for i in range(len(index.tensors)) if i not in seen]
        for i in rest:
            if (index.tensors[i].name, index.tensors[i].file) not in place:
                raise corrupt("4.10", "tensor is not in the header of its file", file=index.name, section=index.tensors[i].name)
        rest.sort(key=lambda i: (index.tensors[i].file, place[index.tensors[i].name, index.tensors[i].file]))
        last_shard = 0
        for expected, i in enumerate(order + rest, index.record_sections):
            tensor = index.tensors[i]
            if tensor.section != expected:
                raise corrupt("8", "section %d, the storage order says %d" % (tensor.section, expected), file=index.name, section=tensor.name)
        for item in [index.tensors[i] for i in order + rest] + index.files:
            if item.shard < last_shard:
                raise corrupt("8", "shard %d after shard %d in storage order" % (item.shard, last_shard), file=index.name, section=item.name)
            last_shard = item.shard
