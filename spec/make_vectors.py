#!/usr/bin/env python3
"""Writes the container test vectors of spec/vectors/, from container.md alone.

    make_vectors.py OUT_DIR      writes OUT_DIR/valid/*/ and OUT_DIR/invalid.json
    make_vectors.py --check DIR  compares DIR with what would be written; exit 1 when they differ
    make_vectors.py --apply DIR CASE OUT   one case of DIR/invalid.json as a container directory

The containers are those of vector_writer.py, the cases those of vector_cases.py. The output depends on nothing but these.
"""
import copy
import difflib
import json
import os
import shutil
import sys

sys.dont_write_bytecode = True
from vector_cases import OK, all_cases  # noqa: E402
from vector_writer import Container, h128, up, valid_containers  # noqa: E402,F401 - Container and h128 for the tests


# ------------------------------------------------------------------------------------------------ edits


def replace_edits(file, old, new):
    """Runs of differing bytes of two files of one length; runs less than 16 apart become one."""
    edits, runs = [], []
    for block in range(0, len(old), 4096):
        if old[block:block + 4096] == new[block:block + 4096]:
            continue
        for i in range(block, min(block + 4096, len(old))):
            if old[i] == new[i]:
                continue
            if runs and i - runs[-1][1] < 16:
                runs[-1][1] = i + 1
            else:
                runs.append([i, i + 1])
    for begin, end in runs:
        edits.append({"op": "replace", "file": file, "offset": begin, "hex": new[begin:end].hex()})
    return edits


def splices(file, old, new):
    """Edits between files of different length: what a table grows by moves everything behind it by whole words."""
    size = 8
    a = [old[i:i + size] for i in range(0, len(old), size)]
    b = [new[i:i + size] for i in range(0, len(new), size)]
    edits = []
    for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(lambda word: not any(word), a, b, autojunk=False).get_opcodes():
        if tag != "equal":
            raw = b"".join(b[b1:b2])
            edits.append({"op": "splice", "file": file, "offset": a1 * size, "remove": len(b"".join(a[a1:a2])), "hex": raw.hex()})
    return edits[::-1]  # from the end, so that offsets are those of the unchanged file


def file_edits(file, old, new):
    """How to get from one file to the other."""
    if len(old) == len(new):
        return replace_edits(file, old, new)
    if old[:len(new)] == new:
        return [{"op": "truncate", "file": file, "length": len(new)}]
    begin = len(os.path.commonprefix([old, new]))
    end = min(len(os.path.commonprefix([old[::-1], new[::-1]])), min(len(old), len(new)) - begin)
    if len(old) - begin - end <= 8:
        middle = new[begin:len(new) - end]
        if middle.strip(b"\0") or len(middle) < 4096:
            return [{"op": "splice", "file": file, "offset": begin, "remove": len(old) - begin - end, "hex": middle.hex()}]
    edits, zeros = [], len(new) - len(old)
    if zeros > 4095:  # large runs of zeros go in as a number
        at = up(new.find(bytes(zeros // 4096 * 4096)), 4096) if zeros > 1 << 20 else begin
        edits.append({"op": "insert_zeros", "file": file, "offset": at, "length": zeros // 4096 * 4096})
        old = old[:at] + bytes(zeros // 4096 * 4096) + old[at:]
        at = up(at, 4096) + zeros // 4096 * 4096
        if zeros > 1 << 20:  # keep the zeros out of the comparison
            head, tail = replace_edits(file, old[:at], new[:at]), splices(file, old[at:], new[at:])
            return edits + [dict(e, offset=e["offset"] + at) for e in tail] + head
    return edits + (replace_edits(file, old, new) if len(old) == len(new) else splices(file, old, new))


BUILT = {}


def fresh(build, key):
    """A container that was not sealed or changed yet; each is built once."""
    if key not in BUILT:
        BUILT[key] = build()
    return copy.deepcopy(BUILT[key])


def build_case(entry, containers):
    """One case as an entry of invalid.json."""
    hooks = dict(entry["hooks"])
    base = containers[entry["base"]]
    out = {"name": entry["name"], "rule": entry["rule"], "base": entry["base"], "verdict": entry["verdict"], "at": entry["at"]}
    if entry["directory"]:
        out["directory"] = entry["directory"]
    if "copy" in hooks:
        file, container, source = hooks["copy"]
        return dict(out, edits=[{"op": "copy", "file": file, "container": container, "from": source}])
    container = fresh(entry["build"] or valid_containers()[entry["base"]], entry["build"] or entry["base"])
    change = hooks.pop("change", None)
    if change:
        change(container)
    files = container.seal(**hooks)
    edits = []
    for name in sorted(base):
        if name not in files:
            edits.append({"op": "delete", "file": name})
        elif files[name] != base[name]:
            edits += file_edits(name, base[name], files[name])
    assert edits or entry["directory"] or entry["verdict"] == OK, entry["name"]
    assert apply_edits(base, edits, containers) == files, entry["name"]
    return dict(out, edits=edits)


def apply_edits(base, edits, containers):
    """Applies edits to {file name: bytes}."""
    files = {name: bytearray(raw) for name, raw in base.items()}
    for e in edits:
        name, op = e["file"], e["op"]
        if op == "delete":
            del files[name]
        elif op == "copy":
            files[name] = bytearray(containers[e["container"]][e["from"]])
        elif op == "truncate":
            del files[name][e["length"]:]
        elif op == "insert_zeros":
            files[name][e["offset"]:e["offset"]] = bytes(e["length"])
        elif op == "splice":
            files[name][e["offset"]:e["offset"] + e["remove"]] = bytes.fromhex(e["hex"])
        elif op == "replace":
            raw = bytes.fromhex(e["hex"])
            files[name][e["offset"]:e["offset"] + len(raw)] = raw
        else:
            raise ValueError(op)
    return {name: bytes(raw) for name, raw in files.items()}


# ------------------------------------------------------------------------------------------------ commands


def generate():
    """{relative path: bytes} of everything."""
    containers = {name: build().seal() for name, build in valid_containers().items()}
    out = {os.path.join("valid", c, name): raw for c, files in containers.items() for name, raw in files.items()}
    cases = [build_case(entry, containers) for entry in all_cases()]
    text = "[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n"
    out["invalid.json"] = text.encode()
    return out


def read_containers(root):
    containers = {}
    for name in sorted(os.listdir(os.path.join(root, "valid"))):
        folder = os.path.join(root, "valid", name)
        containers[name] = {f: open(os.path.join(folder, f), "rb").read() for f in sorted(os.listdir(folder))}
    return containers


def write_files(root, files):
    for path, raw in sorted(files.items()):
        path = os.path.join(root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(raw)


def check(root):
    """Committed vectors are what this program writes; edits may be worded differently if they lead to the same files."""
    expected, problems = generate(), []
    present = {os.path.relpath(os.path.join(folder, n), root) for folder, _, names in os.walk(os.path.join(root, "valid")) for n in names}
    for path in sorted(set(expected) | present):
        full = os.path.join(root, path)
        if path == "invalid.json":
            continue
        if path not in expected or not os.path.isfile(full) or open(full, "rb").read() != expected[path]:
            problems.append(path)
    with open(os.path.join(root, "invalid.json"), "rb") as handle:
        raw = handle.read()
    if raw != expected["invalid.json"] and not problems:
        containers = read_containers(root)
        ours, theirs = json.loads(expected["invalid.json"]), json.loads(raw)
        if [dict(c, edits=0) for c in ours] != [dict(c, edits=0) for c in theirs]:
            problems.append("invalid.json")
        else:
            problems += [a["name"] for a, b in zip(ours, theirs) if a["edits"] != b["edits"] and apply_edits(
                containers[a["base"]], a["edits"], containers) != apply_edits(containers[b["base"]], b["edits"], containers)]
    for problem in problems:
        print("differs: %s" % problem)
    return 1 if problems else 0


def main(argv):
    if len(argv) == 2 and argv[0] == "--check":
        return check(argv[1])
    if len(argv) == 4 and argv[0] == "--apply":
        containers = read_containers(argv[1])
        with open(os.path.join(argv[1], "invalid.json")) as handle:
            entry = next(c for c in json.load(handle) if c["name"] == argv[2])
        write_files(argv[3], apply_edits(containers[entry["base"]], entry["edits"], containers))
        return 0
    if len(argv) == 1 and not argv[0].startswith("-"):
        shutil.rmtree(os.path.join(argv[0], "valid"), ignore_errors=True)
        write_files(argv[0], generate())
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
