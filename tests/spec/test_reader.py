#!/usr/bin/env python3
"""The independent reader reaches the verdict that each container vector names.

    test_reader.py SPEC_DIR WORK_DIR

Valid containers must list, verify, give every tensor and rebuild every file; each case of vectors/invalid.json is applied
to a copy in WORK_DIR. Also checks that the committed vectors are what make_vectors.py writes, and throws random damage with
repaired hashes at the reader: whatever it answers, it must answer with a verdict.
"""
import contextlib
import io
import json
import os
import random
import shutil
import struct
import sys

SKIP = 77
try:
    import xxhash  # noqa: F401
except ImportError:
    print("SKIP: this Python has no xxhash module (package python3-xxhash): the independent reader was NOT run")
    sys.exit(SKIP)

SPEC, WORK = sys.argv[1], sys.argv[2]
sys.path.insert(0, SPEC)
sys.dont_write_bytecode = True
import make_vectors  # noqa: E402
import reader  # noqa: E402

VECTORS = os.path.join(SPEC, "vectors")
failures = []


def fail(name, message):
    failures.append(name)
    print("FAIL %s: %s" % (name, message))


def verify(path):
    """Verdict and findings of the verify command."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = reader.main(["verify", path, "--json"])
    answer = json.loads(out.getvalue())
    assert code == reader.EXIT_CODE.get(answer["verdict"], 0)
    return answer["verdict"], answer["bad"]


def opens(path):
    try:
        reader.Pack(path)
        return "ok"
    except reader.Finding as finding:
        return finding.verdict


def opens_bytes(path):
    with open(path, "rb") as handle:
        try:
            reader.Index(handle.read())
            return "ok"
        except reader.Finding as finding:
            return finding.verdict


def write(path, files):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    for name, raw in files.items():
        with open(os.path.join(path, name), "wb") as out:
            out.write(raw)
    return path


def source_of(name):
    """The published files of a vector, from the generator's own description."""
    container = make_vectors.fresh(make_vectors.valid_containers()[name], name)
    source = container.source
    files = {f: source.file(f) for f in source.order}
    files.update({n: data for _, n, data in source.other})
    return container, files


def check_valid(name, path):
    """Verdict, published bytes of every stored tensor, and rebuilt files."""
    verdict, bad = verify(path)
    if verdict != "ok":
        fail(name, bad)
    container, files = source_of(name)
    pack = reader.Pack(path)
    stored = {e["name"] for x in reader.listing(pack.index)["experts"] for e in x["sections"]}
    fused = {pack.index.section_name(b, 0, d) for b in range(len(pack.index.blocks)) for d in range(len(pack.index.descs)) if pack.index.descs[d].fused}
    compared = 0
    for (file, tensor), (_, _, data) in container.source.tensors.items():
        trunk = any(t.name == tensor and t.file == file for t in container.trunk)
        if trunk or tensor in stored:
            found = reader.find_tensor(pack, tensor, None, file if trunk else None)
            compared += 1
            if found != data:
                fail(name, "published bytes of %s differ" % tensor)
            if tensor in fused:
                half = reader.find_tensor(pack, tensor, 1, None)
                if half != data[len(data) // 2:]:
                    fail(name, "slice of %s differs" % tensor)
    if not compared:
        fail(name, "no tensor was compared")
    out = os.path.join(WORK, "files")
    shutil.rmtree(out, ignore_errors=True)
    with contextlib.redirect_stderr(io.StringIO()):
        code = reader.main(["files", path, out])
    if code != (5 if container.subset and container.files else 0):
        fail(name, "files ended with %d" % code)
    for source in pack.index.files:
        if any(source.hash):
            with open(os.path.join(out, source.name), "rb") as handle:
                if handle.read() != files[source.name]:
                    fail(name, "rebuilt %s differs" % source.name)
    if not container.subset and len(pack.index.files) != len(files):
        fail(name, "%d files instead of %d" % (len(pack.index.files), len(files)))
    for command in (["list", path], ["list", path, "--json"], ["roots", path]):
        with contextlib.redirect_stdout(io.StringIO()):
            if reader.main(command) != 0:
                fail(name, "%s failed" % command[0])
    return compared


def check_case(entry, containers):
    name, expected = entry["name"], entry["verdict"]
    path = write(os.path.join(WORK, entry.get("directory", "case")), make_vectors.apply_edits(containers[entry["base"]], entry["edits"], containers))
    opened, (verdict, bad) = opens(path), verify(path)
    if verdict != expected:
        fail(name, "verdict %s instead of %s: %s" % (verdict, expected, bad))
    if entry["at"] in ("open", "directory") and opened != expected:
        fail(name, "opening answered %s instead of %s" % (opened, expected))
    if entry["at"] == "directory" and opens_bytes(os.path.join(path, "index.mpk")) != "ok":
        fail(name, "the index is fine")
    if entry["at"] == "content" and opened != "ok":
        fail(name, "opening answered %s: the index is fine" % opened)
    if expected != "ok" and not bad:
        fail(name, "no finding")


def check_places(containers):
    """A flipped byte in a section is reported with file, layer, expert and section."""
    index = reader.Index(containers["basic-panel"]["index.mpk"])
    for b, e, record in index.experts():
        section = index.sections[record.first_section + 4]
        files = {n: bytearray(raw) for n, raw in containers["basic-panel"].items()}
        shard = index.shards[record.shard].name
        files[shard][section.offset + 7] ^= 4
        verdict, bad = verify(write(os.path.join(WORK, "case"), files))
        wanted = {"file": shard, "layer": index.label(b), "expert": e,
                  "section": index.section_name(b, e, index.schemas[record.schema][4]), "offset": section.offset}
        if verdict != "corrupt" or len(bad) != 1 or any(bad[0][k] != v for k, v in wanted.items()):
            fail("place %d/%d" % (b, e), "%s: %s" % (verdict, bad))


def reseal(files, shard, number):
    """Hashes after damage, so that the damage reaches the checks behind them."""
    if shard:
        raw = files[shard]
        offset, length = struct.unpack_from("<QQ", raw, 88)
        if offset + length == len(raw):
            struct.pack_into("<16s", raw, 104, make_vectors.h128(bytes(raw[offset:])))
            table = struct.unpack_from("<Q", files["index.mpk"], 128 + 8 + 32 + 16)[0]
            struct.pack_into("<16s", files["index.mpk"], 128 + table + 64 * number + 40, raw[104:120])
        make_vectors.Container.finish_header(raw)
    raw = files["index.mpk"]
    struct.pack_into("<16s", raw, 80, make_vectors.h128(bytes(raw[128:])))
    make_vectors.Container.finish_header(raw)


def damage(rng, raw, first):
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(first, len(raw))
        if rng.random() < 0.5:
            raw[at] ^= 1 << rng.randrange(8)
        else:
            raw[at:at + 8] = rng.choice([b"\xff" * 8, bytes(8), struct.pack("<Q", 1 << rng.randrange(64))])[:len(raw) - at]


def check_random_damage(containers, rounds):
    """No damage may be accepted, or end in anything but a verdict."""
    rng = random.Random(20261130)
    verdicts = {}
    for name in ("basic-panel", "families"):
        shards = [s.name for s in reader.Index(containers[name]["index.mpk"]).shards]
        for i in range(rounds):
            files = {n: bytearray(raw) for n, raw in containers[name].items()}
            number = i % 5 - 2  # two of five rounds damage the index, the others a shard's header or tail
            shard = shards[number] if number >= 0 else None
            first = 64 if not shard or i % 10 == 9 else struct.unpack_from("<Q", files[shard], 88)[0]
            damage(rng, files[shard or "index.mpk"], first)
            reseal(files, shard, number)
            try:
                verdict = verify(write(os.path.join(WORK, "case"), files))[0]
                verdicts[verdict] = verdicts.get(verdict, 0) + 1
                if verdict == "ok" and any(bytes(raw) != containers[name][n] for n, raw in files.items()):
                    fail("random damage of " + name, "round %d was accepted" % i)
            except Exception as error:  # noqa: BLE001 - the very thing that must not happen
                shutil.copytree(os.path.join(WORK, "case"), os.path.join(WORK, "crash"), dirs_exist_ok=True)
                fail("random damage of " + name, "%s: %s" % (type(error).__name__, error))
    print("random damage: %s" % verdicts)


def main():
    os.makedirs(WORK, exist_ok=True)
    if make_vectors.check(VECTORS):
        fail("make_vectors", "committed vectors differ from what make_vectors.py writes")
    containers = make_vectors.read_containers(VECTORS)
    for name in containers:
        tensors = check_valid(name, os.path.join(VECTORS, "valid", name))
        print("valid %s: %d tensors" % (name, tensors))
    with open(os.path.join(VECTORS, "invalid.json")) as handle:
        cases = json.load(handle)
    for entry in cases:
        check_case(entry, containers)
    check_places(containers)
    check_random_damage(containers, 250)
    print("%d valid containers, %d cases, %d failures" % (len(containers), len(cases), len(failures)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
