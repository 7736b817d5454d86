#!/usr/bin/env python3
"""An independent reader of moepack containers, written from container.md alone.

It shares no code with the C library: the suite compares the two, so that a rule which the document leaves open shows up
as a difference. It reads whole sections into memory and is meant for checking, not for speed.

    reader.py list    PACK [--json]                 what is in the container (reads index.mpk only)
    reader.py verify  PACK [--json]                 everything that section 10 asks for, all findings listed
    reader.py extract PACK NAME [--expert E] [-o F] published bytes of one tensor (or of one expert's slice)
    reader.py files   PACK OUT_DIR                  the published files, byte for byte
    reader.py roots   PACK                          recomputed canonical_root, plan_id, root_hash and file hashes

Exit codes: 0 ok, 1 input/output, 2 usage, 3 corrupt, 4 incomplete, 5 unsupported, 6 limit. Needs python3-xxhash.
This file is the command line. The document's chapters are in reader_format.py (2, 3, 4.1), reader_index.py (4, 6, 10),
reader_panel.py (9), reader_pack.py (5, 10: content) and reader_verify.py (10: verify). Numbers in docstrings are its sections.
"""
import argparse
import json
import os
import sys

sys.dont_write_bytecode = True
from reader_format import CODECS, CORRUPT, DTYPES, EXIT_CODE, FILE_KINDS, INDEX_TABLES, KIND_TRUNK, LAYOUTS, NONE32  # noqa: E402
from reader_format import PLANES, ROLES, UNSUPPORTED, VERSION, Finding, corrupt, hash128, table_set, text, text64  # noqa: E402
from reader_format import text128, unsupported, verdict_of  # noqa: E402
from reader_index import Index  # noqa: E402,F401 - for the tests
from reader_pack import Names, Pack, Sources, canonical_root  # noqa: E402
from reader_verify import Verify  # noqa: E402


def codec_name(codec):
    """4.3: a reader can list what it cannot decode."""
    return CODECS.get(codec, "codec %d" % codec)


def describe_section(index, section, desc, name):
    return {"name": name, "dtype": DTYPES[desc.dtype][0], "shape": list(desc.dims), "layout": LAYOUTS[desc.layout],
            "codec": codec_name(section.codec), "offset": section.offset, "stored_bytes": section.stored_length,
            "canonical_bytes": desc.canonical_length, "xxh3": text64(section.stored_hash),
            "xxh3_canonical": text64(section.canonical_hash)}


def listing(index):
    """Everything the index says, as one object."""
    out = {"format_version": "%d.%d" % VERSION, "family": text(index.family), "model_type": text(index.model_type),
           "root_hash": text128(index.header.root_hash), "canonical_root": text128(index.canonical_root),
           "plan_id": text128(index.plan_id), "writer_revision": index.writer_revision, "layout": LAYOUTS[index.layout],
           "codec": codec_name(index.codec), "subset": index.subset, "source_bytes": index.source_bytes,
           "source_tensors": index.source_tensors, "index_bytes": index.header.file_length}
    out["shards"] = [{"file": s.name, "kind": "trunk" if s.kind == KIND_TRUNK else "experts", "bytes": s.file_length,
                      "tail_offset": s.tail_offset, "tail_length": s.tail_length, "root": text128(s.root)} for s in index.shards]
    out["policies"] = index.policies
    out["blocks"] = []
    for b, block in enumerate(index.blocks):
        roles = index.roles[block.first_role:block.first_role + block.role_count]
        out["blocks"].append({
            "layer": index.label(b), "prefix": text(block.prefix), "experts": block.experts, "policy": block.policy,
            "overrides": index.overrides[block.policy],
            "present": sum(index.records[block.first_record + e].shard != NONE32 for e in range(block.experts)),
            "roles": [{"role": ROLES[r], "plane": PLANES[p], "tensor": index.tensors[t].name} for r, p, t in roles]})
    out["experts"] = []
    for b, e, record in index.experts():
        sections = [describe_section(index, index.sections[record.first_section + s], index.descs[d], index.section_name(b, e, d))
                    for s, d in enumerate(index.schemas[record.schema])]
        out["experts"].append({"layer": index.label(b), "expert": e, "shard": index.shards[record.shard].name,
                               "offset": record.offset, "length": record.length, "schema": record.schema, "sections": sections})
    out["tensors"] = []
    for t in index.tensors:
        entry = describe_section(index, index.sections[t.section], index.descs[t.desc], t.name)
        entry.update(shard=index.shards[t.shard].name, source=index.files[t.file].name,
                     layer=None if t.block == NONE32 else index.label(t.block))
        out["tensors"].append(entry)
    out["files"] = [{"name": f.name, "kind": FILE_KINDS[f.kind], "bytes": f.length, "hash": text128(f.hash),
                     "shard": index.shards[f.shard].name, "offset": index.sections[f.section].offset,
                     "stored_bytes": index.sections[f.section].stored_length} for f in index.files]
    return out


def printable(value):
    """Names may hold any byte; standard output takes UTF-8 only."""
    return str(value).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def dump(value):
    print(json.dumps(value, indent=1))


def command_list(args):
    index = Pack(args.pack).index
    out = listing(index)
    if args.json:
        dump(out)
        return 0
    print("family %s, layout %s, codec %s%s" % (printable(out["family"]), out["layout"], out["codec"], ", subset" if index.subset else ""))
    print("root_hash %s" % out["root_hash"])
    for s in out["shards"]:
        print("shard %s: %s, %d bytes" % (printable(s["file"]), s["kind"], s["bytes"]))
    for b in out["blocks"]:
        print("layer %s: %d of %d experts, policy %d, %s" % (b["layer"], b["present"], b["experts"], b["policy"], printable(b["prefix"])))
    for e in out["experts"]:
        print("layer %s expert %d: %s +%d, %d bytes" % (e["layer"], e["expert"], printable(e["shard"]), e["offset"], e["length"]))
        for s in e["sections"]:
            print("  %s %s %s, %s, +%d, %d bytes, %s" % (printable(s["name"]), s["dtype"], s["shape"], s["layout"], s["offset"],
                                                          s["stored_bytes"], s["xxh3"]))
    for t in out["tensors"]:
        print("tensor %s %s %s: %s +%d, %d bytes" % (printable(t["name"]), t["dtype"], t["shape"], printable(t["shard"]), t["offset"],
                                                     t["stored_bytes"]))
    for f in out["files"]:
        print("file %s: %s, %d bytes, %s" % (printable(f["name"]), f["kind"], f["bytes"], f["hash"]))
    return 0


def command_verify(args):
    check = Verify(args.pack)
    verdict = verdict_of(check.findings)
    if args.json:
        dump({"ok": not check.findings, "verdict": verdict, "checked_bytes": check.checked_bytes,
              "checked_sections": check.checked_sections, "bad": [f.as_json() for f in check.findings]})
    else:
        for finding in check.findings:
            print(printable(finding.line()))
        print("%s: %d sections, %d bytes checked" % (verdict, check.checked_sections, check.checked_bytes))
    return EXIT_CODE.get(verdict, 0)


def find_tensor(pack, name, expert, source):
    """Published bytes of a tensor, or of one expert's slice of a fused one."""
    names = Names(pack.index)
    files = [n for (tensor, n) in names.trunk if tensor == name and source in (None, pack.index.files[n].name)]
    if files:
        return pack.tensor(names.trunk[name, min(files)])
    if name in names.expert:
        return pack.expert_section(*names.expert[name])
    if name not in names.fused:
        raise Finding("usage", "no tensor of that name", section=name)
    slices = names.fused[name]
    wanted = [expert] if expert is not None else range(pack.index.blocks[next(iter(slices.values()))[0]].experts)
    missing = [e for e in wanted if e not in slices]
    if missing:
        raise unsupported("4.8", "expert %d is not in this container" % missing[0], section=name)
    return b"".join(pack.expert_section(*slices[e]) for e in wanted)


def command_extract(args):
    data = find_tensor(Pack(args.pack), args.name, args.expert, args.source)
    if args.output:
        with open(args.output, "wb") as out:
            out.write(data)
    else:
        sys.stdout.buffer.write(data)
    return 0


def command_files(args):
    pack = Pack(args.pack)
    sources = Sources(pack, Names(pack.index))
    result = 0
    for number, source in enumerate(pack.index.files):
        value = sources.file_hash(number)
        if value is None:
            print(printable("unsupported: %s is not stored whole (subset)" % source.name), file=sys.stderr)
            result = EXIT_CODE[UNSUPPORTED]
            continue
        if value != source.hash:
            raise corrupt("5.3", "file hash does not match", file=pack.index.name, section=source.name)
        path = os.path.join(args.out, *source.name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            sources.write(number, out)
            if out.tell() != source.length:
                raise corrupt("4.10", "%d bytes rebuilt, %d recorded" % (out.tell(), source.length), file=source.name)
    return result


def command_roots(args):
    pack = Pack(args.pack)
    index = pack.index
    sources = Sources(pack, Names(index))
    rows = [("root_hash", index.header.root_hash, hash128(table_set([(t, index.tables[t]) for t in INDEX_TABLES]))),
            ("canonical_root", index.canonical_root, canonical_root(index)), ("plan_id", index.plan_id, index.plan())]
    rows += [(f.name, f.hash, sources.file_hash(n) or bytes(16)) for n, f in enumerate(index.files)]
    for name, stored, computed in rows:
        note = "" if stored == computed else "  differs, computed %s" % text128(computed)
        print(printable("%s  %s%s" % (text128(stored), name, note)))
    return 0 if all(stored == computed for _, stored, computed in rows) else EXIT_CODE[CORRUPT]


def arguments(argv):
    parser = argparse.ArgumentParser(description="independent reader of moepack containers")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, action in (("list", command_list), ("verify", command_verify), ("extract", command_extract), ("files", command_files),
                         ("roots", command_roots)):
        sub = commands.add_parser(name)
        sub.add_argument("pack")
        sub.set_defaults(action=action)
        if name in ("list", "verify"):
            sub.add_argument("--json", action="store_true")
        if name == "extract":
            sub.add_argument("name")
            sub.add_argument("--expert", type=int, help="one expert's slice of a tensor that holds all experts")
            sub.add_argument("--source", help="source file, when several hold a tensor of this name")
            sub.add_argument("-o", "--output")
        if name == "files":
            sub.add_argument("out")
    return parser.parse_args(argv)


def main(argv=None):
    args = arguments(argv)
    try:
        return args.action(args)
    except Finding as finding:
        if getattr(args, "json", False):
            dump({"ok": False, "verdict": finding.verdict, "checked_bytes": 0, "checked_sections": 0, "bad": [finding.as_json()]})
        print(printable(finding.line()), file=sys.stderr)
        return EXIT_CODE.get(finding.verdict, 2)
    except OSError as error:
        print(printable("error: %s" % error), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
