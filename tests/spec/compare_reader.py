#!/usr/bin/env python3
"""The command line tool and the independent reader must agree about a container.

    compare_reader.py MOEPACK PACK [--source SRC_DIR] [--work DIR]
    compare_reader.py --all MOEPACK SPEC_DIR FIXTURES WORK_DIR

The first form compares `inspect` (all views), `verify` and `export` of the binary MOEPACK with spec/reader.py on PACK: the
same blocks, experts, sections, dtypes, shapes, offsets and hashes; every tensor's published bytes as the reader decodes them
against the exported files, and against SRC_DIR when it is given. The second form does that for every container vector and for
containers that the tool converts from the fixtures in different shapes. Exit code 1 when anything differs.
"""
import argparse
import filecmp
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

try:
    import xxhash  # noqa: F401
except ImportError:
    print("SKIP: this Python has no xxhash module (package python3-xxhash): the comparison was NOT run")
    sys.exit(77)

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "spec"))
import make_vectors  # noqa: E402
import reader  # noqa: E402

MAX_EXPERT_VIEWS = 16  # one process each
WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ckpt", ".h5", ".onnx", ".msgpack")


class Comparison:
    def __init__(self, moepack, pack, source, work):
        self.moepack, self.path, self.source, self.work = moepack, pack, source, work
        self.differences, self.checks = [], 0
        self.pack = reader.Pack(pack)
        self.index = self.pack.index
        self.listing = reader.listing(self.index)

    def equal(self, what, tool, ours):
        self.checks += 1
        if tool != ours:
            self.differences.append("%s: the tool says %r, the reader %r" % (what, tool, ours))

    def run(self, *args):
        return subprocess.run([self.moepack] + list(args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)

    def json(self, *args):
        done = self.run(*args)
        try:
            return done.returncode, json.loads(done.stdout)
        except ValueError:
            self.differences.append("%s: exit code %d, no JSON: %s" % (" ".join(args), done.returncode, done.stderr.decode(errors="replace")))
            return done.returncode, {}

    def fields(self, what, tool, ours, names):
        """Compares named fields; a pair names the tool's key and the reader's."""
        for name in names:
            mine, other = (name, name) if isinstance(name, str) else name
            self.equal("%s, %s" % (what, mine), tool.get(mine, "(no such key)"), ours[other])

    def label(self, block):
        """A label as the tool's JSON has it: an integer for the main stack."""
        label = self.index.label(block)
        return int(label) if label.isdigit() else label

    # -- inspect

    def compare_overview(self):
        code, seen = self.json("inspect", self.path, "--json")
        self.equal("exit code of inspect", code, 0)
        self.fields("inspect", seen, self.listing, ("format_version", "family", "model_type", "root_hash", "canonical_root", "layout", "codec",
                                                    "subset", "source_bytes", "source_tensors", "index_bytes", "writer_revision"))
        self.equal("trunk_tensors", seen.get("trunk_tensors"), len(self.index.tensors))
        self.equal("number of layers", len(seen.get("layers", [])), len(self.index.blocks))
        for b, layer in enumerate(seen.get("layers", [])):
            self.compare_layer(b, layer)
        self.compare_shards(seen.get("shards", []))
        self.equal("number of source files", len(seen.get("source_files", [])), len(self.index.files))
        for tool, ours in zip(seen.get("source_files", []), self.listing["files"]):
            expected = None if ours["hash"] == "0" * 32 else ours["hash"]
            self.fields("source file " + ours["name"], tool, dict(ours, hash=expected), (("file", "name"), "kind", "bytes", "hash"))

    def compare_layer(self, b, layer):
        block, what = self.index.blocks[b], "layer %s" % self.index.label(b)
        self.equal(what + ", label", layer.get("layer"), self.label(b))
        self.equal(what + ", experts", layer.get("experts"), block.experts)
        self.equal(what + ", prefix", layer.get("prefix"), reader.text(block.prefix))
        self.equal(what + ", overrides", layer.get("policy_overrides"), len(self.index.overrides[block.policy]))
        self.compare_policy(what, layer.get("policy") or {}, self.index.policies[block.policy])
        first = next((r for x, e, r in self.index.experts() if x == b), None)
        descs = [self.index.descs[d] for d in self.index.schemas[first.schema]] if first else []
        self.equal(what + ", number of sections", len(layer.get("sections", [])), len(descs))
        for s, (tool, desc) in enumerate(zip(layer.get("sections", []), descs)):
            section = self.index.sections[first.first_section + s]
            ours = reader.describe_section(self.index, section, desc, reader.text(desc.pattern))
            self.fields(what + ", section " + ours["name"], tool, ours,
                        ("name", "dtype", "shape", "codec", "layout", ("bytes", "canonical_bytes"), "stored_bytes"))

    def compare_policy(self, what, tool, ours):
        """The tool writes names for enumerations; numbers must agree, names must be one per value."""
        self.equal(what + ", policy keys", sorted(tool), sorted(ours))
        for name, value in ours.items():
            if name in tool and isinstance(tool[name], (int, float)) and not isinstance(tool[name], bool):
                self.equal("%s, policy %s" % (what, name), float(tool[name]), float(value))

    def compare_shards(self, shards):
        self.equal("number of shards", len(shards), len(self.index.shards))
        for n, (tool, ours) in enumerate(zip(shards, self.listing["shards"])):
            held = [(b, e) for b, e, r in self.index.experts() if r.shard == n]
            self.fields("shard " + ours["file"], tool, ours, ("file", "kind", "bytes", "root"))
            self.equal("experts of " + ours["file"], tool.get("experts"), len(held))
            self.equal("layers of " + ours["file"], tool.get("layers"), [self.label(b) for b in sorted({b for b, _ in held})])

    def compare_tensors(self, what, tool, ours):
        self.equal(what + ", number of tensors", len(tool), len(ours))
        for mine, other in zip(tool, ours):
            layer = other["layer"]
            expected = dict(other, layer=int(layer) if layer and layer.isdigit() else layer)
            self.fields("tensor " + other["name"], mine, expected, (
                "name", "dtype", "shape", ("bytes", "canonical_bytes"), "layer", ("file", "shard"), "offset", "stored_bytes", "layout", "codec",
                ("xxh3", "xxh3_canonical"), "source"))

    def compare_views(self):
        _, seen = self.json("inspect", self.path, "--tensors", "--json")
        self.compare_tensors("inspect --tensors", seen.get("tensors", []), self.listing["tensors"])
        for b in range(len(self.index.blocks)):
            label = self.index.label(b)
            _, seen = self.json("inspect", self.path, "--layer", label, "--json")
            ours = [e for e in self.listing["experts"] if e["layer"] == label]
            self.equal("records of layer " + label, [(r["expert"], r["shard"], r["offset"], r["length"]) for r in seen.get("records", [])],
                       [(e["expert"], e["shard"], e["offset"], e["length"]) for e in ours])
            self.compare_tensors("layer " + label, seen.get("tensors", []), [t for t in self.listing["tensors"] if t["layer"] == label])
        experts = self.listing["experts"]
        step = max(1, len(experts) // MAX_EXPERT_VIEWS)
        for ours in experts[::step]:
            self.compare_expert(ours)

    def compare_expert(self, ours):
        what = "layer %s expert %d" % (ours["layer"], ours["expert"])
        _, seen = self.json("inspect", self.path, "--layer", ours["layer"], "--expert", str(ours["expert"]), "--json")
        self.fields(what, seen, ours, ("expert", "shard", "offset", "length"))
        self.equal(what + ", number of sections", len(seen.get("sections", [])), len(ours["sections"]))
        for tool, mine in zip(seen.get("sections", []), ours["sections"]):
            self.fields(what + ", " + mine["name"], tool, mine, ("name", "dtype", "shape", "offset", "stored_bytes", ("bytes", "canonical_bytes"),
                                                                 "codec", "layout", "xxh3", "xxh3_canonical"))

    # -- verify, export

    def compare_verify(self):
        check = reader.Verify(self.path)
        for finding in check.findings:
            self.differences.append("the reader finds " + finding.line())
        code, seen = self.json("verify", self.path, "--json")
        self.equal("exit code of verify", code, reader.EXIT_CODE.get(reader.verdict_of(check.findings), 0))
        self.fields("verify", seen, {"ok": not check.findings, "checked_sections": check.checked_sections, "bad": [], "missing": []},
                    ("ok", "checked_sections", "bad", "missing"))

    def compare_files(self):
        """Exported files against the reader's, and every tensor against the bytes in them (or in the source)."""
        exported, rebuilt = os.path.join(self.work, "exported"), os.path.join(self.work, "rebuilt")
        for folder in (exported, rebuilt):
            shutil.rmtree(folder, ignore_errors=True)
        done = self.run("export", self.path, exported)
        if self.index.subset:
            self.equal("exit code of export of a subset", done.returncode, 5)
            exported = None
        else:
            self.equal("exit code of export", done.returncode, 0)
        whole = self.rebuild(rebuilt)
        if exported and done.returncode == 0:
            self.same_files("exported", exported, rebuilt)
        if self.source:
            for name in whole:
                self.equal("rebuilt %s equals the source" % name, True,
                           filecmp.cmp(os.path.join(rebuilt, name), os.path.join(self.source, name), shallow=False))
            if not self.index.subset:
                self.equal("source files", sorted(whole), published_files(self.source))
        self.compare_bytes(self.source or rebuilt)

    def rebuild(self, out):
        """All whole files by the reader; returns their names."""
        os.makedirs(out)
        sources, names = reader.Sources(self.pack, reader.Names(self.index)), []
        for number, source in enumerate(self.index.files):
            if sources.file_hash(number) is None:
                continue
            path = os.path.join(out, source.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as handle:
                sources.write(number, handle)
            names.append(source.name)
        return names

    def same_files(self, what, a, b):
        files = [sorted(os.path.relpath(os.path.join(d, n), root) for d, _, names in os.walk(root) for n in names) for root in (a, b)]
        self.equal(what + " files", files[0], files[1])
        for name in sorted(set(files[0]) & set(files[1])):
            self.equal("%s %s equals the reader's" % (what, name), True, filecmp.cmp(os.path.join(a, name), os.path.join(b, name), shallow=False))

    def compare_bytes(self, folder):
        """Published bytes of every stored tensor against the safetensors files in a folder."""
        names = reader.Names(self.index)
        for number, source in enumerate(self.index.files):
            path = os.path.join(folder, source.name)
            if source.kind != 0 or not os.path.isfile(path):
                continue
            with open(path, "rb") as handle:
                length = struct.unpack("<Q", handle.read(8))[0]
                header = json.loads(handle.read(length))
                for name, entry in header.items():
                    trunk = (name, number) in names.trunk
                    if name == "__metadata__" or not (trunk or name in names.expert or name in names.fused):
                        continue
                    if name in names.fused and len(names.fused[name]) < entry["shape"][0]:
                        continue
                    begin, end = entry["data_offsets"]
                    handle.seek(8 + length + begin)
                    self.equal("bytes of " + name, True,
                               handle.read(end - begin) == reader.find_tensor(self.pack, name, None, source.name if trunk else None))

    def compare(self):
        self.compare_overview()
        self.compare_views()
        self.compare_verify()
        self.compare_files()
        return self.differences


def published_files(source):
    """What a conversion stores besides weights that the index does not list: every regular file that is not hidden."""
    found = []
    with open(os.path.join(source, "model.safetensors.index.json")) as handle:
        listed = set(json.load(handle)["weight_map"].values())
    for folder, folders, names in os.walk(source):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), source)
            if not name.startswith(".") and (not name.endswith(WEIGHT_FILES) or path in listed):
                found.append(path)
    return sorted(found)


def compare_one(moepack, pack, source, work):
    os.makedirs(work, exist_ok=True)
    comparison = Comparison(moepack, pack, source, work)
    differences = comparison.compare()
    for line in differences[:40]:
        print("DIFFERS %s: %s" % (pack, line))
    print("%s: %d comparisons, %d differences" % (pack, comparison.checks, len(differences)))
    return len(differences) + (comparison.checks == 0)


def compare_damage(moepack, vectors, work):
    """Damage is reported with the same place by both."""
    containers = make_vectors.read_containers(vectors)
    with open(os.path.join(vectors, "invalid.json")) as handle:
        cases = {c["name"]: c for c in json.load(handle)}
    wrong = 0
    for name in ("expert-flipped", "expert-last-flipped", "trunk-flipped", "stored-hash", "canonical-hash", "shard-missing", "shard-truncated-data"):
        path = os.path.join(work, "damaged")
        shutil.rmtree(path, ignore_errors=True)
        make_vectors.write_files(path, make_vectors.apply_edits(containers[cases[name]["base"]], cases[name]["edits"], containers))
        ours = reader.Verify(path).findings
        done = subprocess.run([moepack, "verify", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        seen = json.loads(done.stdout)
        place = lambda f, l, e, s: (os.path.basename(f or ""), str(l) if l is not None else None, e, s)
        tool = {place(f["file"], f["layer"], f["expert"], f["section"]) for f in seen["bad"] + seen["missing"]}
        mine = {place(f.file, f.layer, f.expert, f.section) for f in ours}
        code = reader.EXIT_CODE[reader.verdict_of(ours)]
        if done.returncode != code or not tool & mine:
            print("DIFFERS %s: the tool says %d %s, the reader %d %s" % (name, done.returncode, sorted(tool, key=str), code, sorted(mine, key=str)))
            wrong += 1
    return wrong


CONVERSIONS = {
    "panel": [],
    "canonical": ["--layout", "canonical"],
    "by-layer": ["--shard-by", "layer"],
    "by-size": ["--shard-by", "size", "--shard-size", "300000"],
    "small-shards": ["--shard-size", "150000"],
    "subset": ["--layers", "1", "--experts", "2-6"],
    "moe-only": ["--moe-only", "--policy", "weight_from=biased"],
}


def compare_all(moepack, spec, fixtures, work):
    vectors, wrong = os.path.join(spec, "vectors"), 0
    for name in sorted(os.listdir(os.path.join(vectors, "valid"))):
        wrong += compare_one(moepack, os.path.join(vectors, "valid", name), None, os.path.join(work, "files"))
    wrong += compare_damage(moepack, vectors, work)
    roots = {}
    for fixture in ("k3_tiny", "k3_quant"):
        source = os.path.join(fixtures, fixture, "checkpoint")
        for name, options in CONVERSIONS.items():
            if fixture == "k3_quant" and name not in ("panel", "canonical", "by-size"):
                continue
            pack = os.path.join(work, "%s-%s.moepack" % (fixture, name))
            for stale in (pack, pack + ".partial"):
                shutil.rmtree(stale, ignore_errors=True)
            done = subprocess.run([moepack, "convert", source, pack] + options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
            if done.returncode:
                print("DIFFERS %s: convert ended with %d: %s" % (pack, done.returncode, done.stderr.decode(errors="replace")))
                wrong += 1
                continue
            wrong += compare_one(moepack, pack, source, os.path.join(work, "files"))
            roots.setdefault((fixture, name in ("subset", "moe-only") and name), set()).add(reader.Pack(pack).index.canonical_root)
            shutil.rmtree(pack)
    for key, values in roots.items():
        if len(values) != 1:
            print("DIFFERS %s: canonical_root depends on layout or sharding" % (key,))
            wrong += 1
    print("%d differences in all" % wrong)
    return 1 if wrong else 0


def main(argv):
    if argv[:1] == ["--all"] and len(argv) == 5:
        os.makedirs(argv[4], exist_ok=True)
        return compare_all(*argv[1:])
    parser = argparse.ArgumentParser(description="compares the moepack binary with the independent reader on one container")
    parser.add_argument("moepack")
    parser.add_argument("pack")
    parser.add_argument("--source", help="the checkpoint the container was made from")
    parser.add_argument("--work", help="folder for exported files; default: a temporary one")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        return 1 if compare_one(args.moepack, args.pack, args.source, args.work or folder) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
