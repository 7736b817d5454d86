"""Shards, sections and published tensors of a moepack container: sections 5 and 10 of container.md.

Part of reader.py, the independent reader. Numbers in docstrings are sections of container.md.
"""
import json
import os
import struct
import sys

try:
    import xxhash
except ImportError:
    sys.exit("this needs the Python module xxhash (package python3-xxhash; plain python3 may be another one)")

from reader_format import CODECS, DTYPES, HEADER_LENGTH, LIMIT_64, NONE32, Finding, corrupt, hash64, hash128, incomplete
from reader_format import read_shard_header, read_table_set, text64, text128, unsupported
from reader_index import Index
from reader_panel import from_panel


class ShardFile:
    """An open shard whose header and tail are checked (section 10, steps 1 to 8)."""

    def __init__(self, pack, number):
        self.entry = pack.index.shards[number]
        self.number, name = number, self.entry.name
        self.path = os.path.join(pack.path, name)
        self.handle = open_file(self.path, name)
        self.real_length = os.fstat(self.handle.fileno()).st_size
        head = self.handle.read(HEADER_LENGTH)
        header, short = read_shard_header(head, self.real_length, name, self.entry.kind)
        for what, mine, other in (("plan_id", header.plan_id, pack.index.plan_id), ("shard number", header.number, number),
                                  ("file length", header.file_length, self.entry.file_length),
                                  ("tail offset", header.tail_offset, self.entry.tail_offset),
                                  ("tail length", header.tail_length, self.entry.tail_length),
                                  ("shard_root", header.root, self.entry.root)):
            if mine != other:
                raise corrupt("3.3", "%s differs from the index's" % what, file=name, expected=show(other), found=show(mine))
        if short:
            raise short
        tail = self.read(header.tail_offset, header.tail_length)
        if hash128(tail) != header.root:
            raise corrupt("5.2", "shard_root does not match the tail", file=name, offset=header.tail_offset,
                          length=len(tail), expected=text128(header.root), found=text128(hash128(tail)))
        self.tail = read_table_set(tail, name, header.tail_offset)

    def read(self, offset, length):
        self.handle.seek(offset)
        data = self.handle.read(length)
        if len(data) != length:
            raise incomplete("3.1", "file became shorter while it was read", file=self.entry.name, offset=offset)
        return data


def show(value):
    return text128(value) if isinstance(value, bytes) else value


def open_file(path, name):
    """10 step 1. Only a file that is not there is incomplete; other refusals of the system are errors of their own."""
    try:
        return open(path, "rb")
    except (FileNotFoundError, NotADirectoryError):
        raise incomplete("10", "file is missing", file=name) from None


class Pack:
    """A container directory. Shards are opened when first needed."""

    def __init__(self, path):
        self.path = path
        if os.path.basename(os.path.abspath(path)).endswith(".partial"):
            raise incomplete("10", "an unfinished conversion", file=path)
        with open_file(os.path.join(path, "index.mpk"), "index.mpk") as handle:
            self.index = Index(handle.read())
        self.open_shards = {}

    def shard(self, number):
        if number not in self.open_shards:
            try:
                self.open_shards[number] = ShardFile(self, number)
            except Finding as finding:
                self.open_shards[number] = finding
        found = self.open_shards[number]
        if isinstance(found, Finding):
            raise found
        return found

    def stored(self, shard_number, section, where):
        """10: the stored bytes of a section after their hash (or the hash of each part) was checked."""
        where.setdefault("file", self.index.shards[shard_number].name)
        if not section.stored_length:
            return b""
        data = self.shard(shard_number).read(section.offset, section.stored_length)
        if section.first_part != NONE32:
            at = part = 0
            while at < section.stored_length:
                length, expected = self.index.parts[section.first_part + part]
                if hash64(data[at:at + length]) != expected:
                    raise corrupt("5.1", "hash of part %d does not match" % part, offset=section.offset + at, length=length,
                                  expected=text64(expected), found=text64(hash64(data[at:at + length])), **where)
                at, part = at + length, part + 1
        if hash64(data) != section.stored_hash:
            raise corrupt("5.1", "hash of the stored bytes does not match", offset=section.offset, length=len(data),
                          expected=text64(section.stored_hash), found=text64(hash64(data)), **where)
        return data

    def canonical(self, shard_number, section, desc, where, check_padding=False):
        """5.1, 9: the published bytes of a section. desc None: a file, stored as it is."""
        data = self.stored(shard_number, section, where)
        if section.codec not in CODECS:
            raise unsupported("4.3", "codec %d" % section.codec, **where)
        if desc is not None and desc.layout == 1:
            data, padding = from_panel(desc, data)
            if check_padding and not padding:
                raise corrupt("9", "padding inside the section is not as prescribed", offset=section.offset,
                              length=section.stored_length, **where)
        if hash64(data) != section.canonical_hash:
            raise corrupt("5.1", "hash of the published bytes does not match", offset=section.offset, length=section.stored_length,
                          expected=text64(section.canonical_hash), found=text64(hash64(data)), **where)
        return data

    def expert_section(self, block, expert, record, s, **options):
        index = self.index
        desc = index.schemas[record.schema][s]
        where = {"layer": index.label(block), "expert": expert, "section": index.section_name(block, expert, desc)}
        return self.canonical(record.shard, index.sections[record.first_section + s], index.descs[desc], where, **options)

    def tensor(self, tensor, **options):
        where = {"section": tensor.name}
        if tensor.block != NONE32:
            where["layer"] = self.index.label(tensor.block)
        return self.canonical(tensor.shard, self.index.sections[tensor.section], self.index.descs[tensor.desc], where, **options)

    def file_section(self, source):
        return self.canonical(source.shard, self.index.sections[source.section], None, {"section": source.name})


# ------------------------------------------------------------------------------------------------ published tensors


class Names:
    """Published tensor names: where their bytes are."""

    def __init__(self, index):
        self.trunk = {}   # (name, source file) -> tensor
        self.expert = {}  # name -> (block, expert, record, s)
        self.fused = {}   # name -> {expert: (block, expert, record, s)}
        for tensor in index.tensors:
            self.trunk[tensor.name, tensor.file] = tensor
        for b, e, record in index.experts():
            for s, desc in enumerate(index.schemas[record.schema]):
                name, place = index.section_name(b, e, desc), (b, e, record, s)
                if index.descs[desc].fused:
                    slices = self.fused.setdefault(name, {})
                    if slices and next(iter(slices.values()))[0] != b or e in slices or name in self.expert:
                        raise corrupt("4.6", "two sections are named %r" % name, file=index.name)
                    slices[e] = place
                elif name in self.expert or name in self.fused:
                    raise corrupt("4.6", "two sections are named %r" % name, file=index.name)
                else:
                    self.expert[name] = place


def parse_safetensors(data, name):
    """4.10: the stored first 8 + N bytes of a safetensors file: [(begin, end, tensor name, dtype name, shape)] by offset."""
    if len(data) < 8 or struct.unpack_from("<Q", data)[0] != len(data) - 8:
        raise corrupt("4.10", "section is not the length word and header of a safetensors file", section=name)
    try:
        header = json.loads(data[8:].decode("utf-8"))
        found = []
        for key, value in header.items():
            if key == "__metadata__":
                continue
            begin, end = value["data_offsets"]
            shape = tuple(value["shape"])
            if not all(type(n) is int and n >= 0 for n in (begin, end) + shape) or begin > end or not isinstance(value["dtype"], str):
                raise ValueError("numbers")
            found.append((begin, end, key, value["dtype"], shape))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise corrupt("4.10", "stored safetensors header cannot be read", section=name) from None
    found.sort(key=lambda t: (t[0], t[1], t[2].encode("utf-8", "surrogatepass")))
    at = 0
    for begin, end, key, _, _ in found:
        if begin != at:
            raise corrupt("4.10", "tensor %r does not follow the one before" % key, section=name)
        at = end
    return found


class Sources:
    """The published files, from their stored headers and the pieces (5.3)."""

    def __init__(self, pack, names):
        self.pack, self.index, self.names = pack, pack.index, names
        self.headers = {}

    def header(self, number):
        """Stored header of a safetensors file and its tensors by offset."""
        if number not in self.headers:
            source = self.index.files[number]
            raw = self.pack.file_section(source)
            self.headers[number] = raw, parse_safetensors(raw, source.name)
        return self.headers[number]

    def pieces(self, number):
        """5.3: the pieces of a file by offset: [(kind, place or None when it is not stored, length)]."""
        index, found = self.index, []
        for begin, end, name, dtype, shape in self.header(number)[1]:
            trunk = self.names.trunk.get((name, number))
            slices = self.names.fused.get(name)
            if trunk is not None:
                self.compare(number, name, dtype, shape, index.descs[trunk.desc], index.descs[trunk.desc].dims)
                found.append((trunk, None, end - begin))
            elif slices is not None:
                block = next(iter(slices.values()))[0]
                for e in range(index.blocks[block].experts):
                    place = slices.get(e)
                    if place is not None:
                        desc = index.schemas[place[2].schema][place[3]]
                        self.compare(number, name, dtype, shape, index.descs[desc], index.published_shape(block, desc))
                    found.append((None, place, (end - begin) // index.blocks[block].experts))
            else:
                place = self.names.expert.get(name)
                if place is not None:
                    desc = index.schemas[place[2].schema][place[3]]
                    self.compare(number, name, dtype, shape, index.descs[desc], index.descs[desc].dims)
                found.append((None, place, end - begin))
        return found

    def compare(self, number, name, dtype, shape, desc, dims):
        """4.6: the description says what the published header says."""
        if DTYPES[desc.dtype][0] != dtype or tuple(dims) != shape:
            raise corrupt("4.6", "dtype or shape differs from the stored header of %s" % self.index.files[number].name,
                          file=self.index.name, section=name)

    def section_of(self, piece):
        tensor, place, _ = piece
        return self.index.sections[tensor.section if tensor else place[2].first_section + place[3]]

    def file_hash(self, number):
        """5.3; None when the file is not stored whole."""
        source = self.index.files[number]
        words = [self.index.sections[source.section].canonical_hash]
        if source.kind == 0:
            for piece in self.pieces(number):
                if piece[0] is None and piece[1] is None:
                    return None
                words.append(self.section_of(piece).canonical_hash)
        return hash128(struct.pack("<%dQ" % len(words), *words))

    def write(self, number, out):
        """The published file, piece by piece."""
        source = self.index.files[number]
        out.write(self.pack.file_section(source))
        if source.kind == 0:
            for tensor, place, _ in self.pieces(number):
                out.write(self.pack.tensor(tensor) if tensor else self.pack.expert_section(*place))


def canonical_root(index):
    """5.4"""
    items = []
    for b, e, record in index.experts():
        for s, d in enumerate(index.schemas[record.schema]):
            items.append((index.section_name(b, e, d), 0, e, index.descs[d].dtype, index.published_shape(b, d),
                          index.sections[record.first_section + s].canonical_hash))
    for t in index.tensors:
        items.append((t.name, t.file, LIMIT_64 - 1, index.descs[t.desc].dtype, index.descs[t.desc].dims,
                      index.sections[t.section].canonical_hash))
    items = [(name.encode("utf-8", "surrogateescape"),) + rest for name, *rest in items for rest in [tuple(rest)]]
    items.sort(key=lambda item: item[:3])
    state = xxhash.xxh3_128()
    for name, _, expert, dtype, dims, value in items:
        state.update(struct.pack("<I", len(name)) + name + struct.pack("<HHI", dtype, 0, len(dims)) +
                     struct.pack("<%dQ" % len(dims), *dims) + struct.pack("<QQ", expert, value))
    return state.intdigest().to_bytes(16, "little")
