"""verify: what is damaged is found and named, and everything else is still checked."""
import json
import os
import shutil

from run_cli_tests import check, equal

FINDING = ["expected", "expert", "file", "found", "layer", "length", "offset", "section"]


def flip(path, offset, mask=0x01):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def section_of(ctx, pack, layer, expert, part):
    info = ctx.json(["inspect", pack, "--layer", str(layer), "--expert", str(expert)])
    section = next(section for section in info["sections"] if part in section["name"])
    return info["shard"], section


def verify_json(ctx, pack, code, *options):
    result = ctx.run(["verify", pack, "--json"] + list(options))
    equal(result.code, code, "exit code", result)
    report = result.json()
    for key in ("ok", "checked_bytes", "checked_sections", "bad", "missing"):
        check(key in report, "no key %s" % key, result)
    equal(report["ok"], code == 0, "ok", result)
    for finding in report["bad"]:
        check(set(FINDING) <= set(finding), "keys of a finding: %s" % sorted(finding), result)
        check(finding["kind"] in ("corrupt", "unsupported", "unreadable"), "kind %r" % finding["kind"], result)
    return report


def test_good_container(ctx):
    for options in ([], ["--layout", "canonical"]):
        pack = ctx.pack("k3_tiny", *options)
        result = ctx.ok(["verify", pack])
        check(": ok: " in result.out, "no ok", result)
        report = verify_json(ctx, pack, 0)
        equal([report["bad"], report["missing"]], [[], []], "findings")
        check("error" not in report, "error although ok")
        check(report["checked_sections"] >= 527, "checked_sections %d" % report["checked_sections"])
        check(report["checked_bytes"] >= 1441448, "checked_bytes %d" % report["checked_bytes"])


def test_flip_in_an_expert(ctx):
    pack = ctx.copy_pack()
    shard, section = section_of(ctx, pack, 2, 11, "w3.weight_packed")
    offset = section["offset"] + section["stored_bytes"] // 2
    flip(os.path.join(pack, shard), offset)
    report = verify_json(ctx, pack, 3)
    equal(len(report["bad"]), 1, "number of findings")
    bad = report["bad"][0]
    equal(os.path.basename(bad["file"]), shard, "file")
    equal([bad["layer"], bad["expert"]], [2, 11], "layer and expert")
    check("w3.weight_packed" in bad["section"], "section %r" % bad["section"])
    check(bad["offset"] <= offset < bad["offset"] + bad["length"], "range of the finding: %r" % bad)
    equal(bad["expected"], section["xxh3"], "expected hash")
    check(bad["found"] != bad["expected"] and len(bad["found"]) == 16, "found hash %r" % bad["found"])
    equal(report["missing"], [], "missing")
    equal(report["error"]["exit_code"], 3, "error")

    result = ctx.fails(["verify", pack], 3)
    line = next(line for line in result.out.split("\n") if line.startswith("BAD"))
    for part in (shard, "layer 2", "expert 11", "w3.weight_packed", "offset %d" % section["offset"]):
        check(part in line, "%r is not in the finding" % part, result)
    check("NOT ok" in result.out and "1 bad" in result.out, "summary", result)
    quiet = ctx.fails(["verify", pack, "--quiet"], 3)
    check("BAD" in quiet.out, "findings are data, --quiet leaves them", quiet)


def test_selection(ctx):
    """A part that is not asked about is not read; what is asked about is."""
    pack = ctx.copy_pack()
    shard, section = section_of(ctx, pack, 2, 11, "w1.weight_scale")
    flip(os.path.join(pack, shard), section["offset"])
    whole = verify_json(ctx, pack, 3)["checked_bytes"]
    for options, code in ((["--layers", "2"], 3), (["--layers", "1,3"], 0), (["--experts", "11"], 3), (["--experts", "0-10,12-22"], 0),
                          (["--layers", "2", "--experts", "11"], 3), (["--rank", "1", "--ranks", "3"], 3), (["--rank", "0", "--ranks", "3"], 0),
                          (["--rank", "2", "--ranks", "3"], 0)):
        report = verify_json(ctx, pack, code, *options)
        check(report["checked_bytes"] < whole, "%s checked as much as the whole" % options)
    ctx.fails(["verify", pack, "--layers", "9"], 2)
    ctx.fails(["verify", pack, "--experts", "23"], 2)


def test_everything_is_reported(ctx):
    """Three experts, a trunk tensor and padding: all named, in one run, whatever --jobs is."""
    pack = ctx.copy_pack()
    places = [(1, 0, "w1.weight_packed"), (2, 22, "w2.weight_scale"), (3, 7, "w3.weight_packed")]
    for layer, expert, part in places:
        shard, section = section_of(ctx, pack, layer, expert, part)
        flip(os.path.join(pack, shard), section["offset"] + section["stored_bytes"] - 1, 0x80)
    tensor = next(tensor for tensor in ctx.json(["inspect", pack, "--tensors"])["tensors"] if tensor["name"].endswith("layers.2.block_sparse_moe.gate.weight"))
    flip(os.path.join(pack, tensor["file"]), tensor["offset"])
    for jobs in ("1", "4"):
        report = verify_json(ctx, pack, 3, "--jobs", jobs)
        experts = sorted((bad["layer"], bad["expert"]) for bad in report["bad"] if bad["expert"] is not None)
        equal(experts, [(1, 0), (2, 22), (3, 7)], "experts found")
        check(any(bad["expert"] is None and "gate.weight" in (bad["section"] or "") for bad in report["bad"]), "trunk tensor not found: %r" % report["bad"])


def test_missing_shard(ctx):
    pack = ctx.copy_pack("k3_tiny", "--shard-by", "layer", "--shard-size", "600K")
    shards = [shard for shard in ctx.json(["inspect", pack])["shards"] if shard["kind"] == "experts"]
    check(len(shards) >= 2, "this test needs two shards")
    os.remove(os.path.join(pack, shards[0]["file"]))
    report = verify_json(ctx, pack, 4)
    check(any(os.path.basename(missing["file"]) == shards[0]["file"] for missing in report["missing"]), "missing: %r" % report["missing"])
    equal(report["bad"], [], "bad")
    result = ctx.fails(["verify", pack], 4)
    check("MISSING" in result.out and shards[0]["file"] in result.out, "missing shard is not named", result)
    # Damage elsewhere outweighs.
    with open(os.path.join(pack, shards[1]["file"]), "r+b") as file:
        file.seek(shards[1]["bytes"] - 1)
        last = file.read(1)[0]
        file.seek(shards[1]["bytes"] - 1)
        file.write(bytes([last ^ 1]))
    both = verify_json(ctx, pack, 3)
    check(both["bad"] and both["missing"], "one of the two was not reported")


def test_lengths(ctx):
    pack = ctx.copy_pack()
    shard = next(shard for shard in ctx.json(["inspect", pack])["shards"] if shard["kind"] == "experts")
    path = os.path.join(pack, shard["file"])
    with open(path, "ab") as file:
        file.write(b"\0")
    verify_json(ctx, pack, 3)
    os.truncate(path, shard["bytes"] - 1)
    report = verify_json(ctx, pack, 4)
    equal(os.path.basename(report["missing"][0]["file"]), shard["file"], "truncated file")


def test_unreadable_shard(ctx):
    """A shard that is there but no file is no damage: it says nothing about the container."""
    pack = ctx.copy_pack("k3_tiny", "--shard-by", "layer")
    name = next(shard["file"] for shard in ctx.json(["inspect", pack])["shards"] if shard["kind"] == "experts")
    os.remove(os.path.join(pack, name))
    os.mkdir(os.path.join(pack, name))
    report = verify_json(ctx, pack, 1)
    equal([(bad["file"], bad["kind"]) for bad in report["bad"]], [(name, "unreadable")], "findings")
    equal(report["missing"], [], "missing")
    result = ctx.fails(["verify", pack], 1, "unreadable: ")
    check("UNREADABLE  " + name in result.out and "0 bad, 0 missing, 1 unreadable" in result.out, "text", result)


def test_short_shard_in_text(ctx):
    """A K3 shard that is cut has thousands of sections behind its end: the text names ten, JSON all."""
    pack = ctx.copy_pack()
    shard = next(shard for shard in ctx.json(["inspect", pack])["shards"] if shard["kind"] == "experts")
    path = os.path.join(pack, shard["file"])
    os.truncate(path, shard["bytes"] // 4)
    missing = [finding for finding in verify_json(ctx, pack, 4)["missing"] if os.path.basename(finding["file"]) == shard["file"]]
    check(len(missing) > 20, "only %d findings" % len(missing))
    result = ctx.fails(["verify", pack], 4)
    lines = [line for line in result.out.split("\n") if line.startswith("MISSING") and shard["file"] in line]
    equal(len(lines), 11, "lines about the shard", result)
    check("... and %d more of " % (len(missing) - 10) in lines[-1], "last line", result)
    check("%d missing" % len(missing) in result.out, "the summary counts all", result)


def test_kind_of_a_finding(ctx):
    """Damage, what another version of the format wrote, and what cannot be read, in one list."""
    vectors = os.path.join(os.path.dirname(os.path.dirname(ctx.fixtures)), "spec", "vectors")
    with open(os.path.join(vectors, "invalid.json"), encoding="utf-8") as file:
        case = next(case for case in json.load(file) if case["name"] == "shard-version-major-newer")
    pack = ctx.path("pack")
    shutil.copytree(os.path.join(vectors, "valid", case["base"]), pack)
    for edit in case["edits"]:
        equal(edit["op"], "replace", "kind of edit")
        with open(os.path.join(pack, edit["file"]), "r+b") as file:
            file.seek(edit["offset"])
            file.write(bytes.fromhex(edit["hex"]))
    newer = case["edits"][0]["file"]
    label = ctx.json(["inspect", pack])["layers"][0]["layer"]
    damaged, section = section_of(ctx, pack, label, 2, "weight")
    check(damaged != newer, "this test needs two shards")
    flip(os.path.join(pack, damaged), section["offset"])
    trunk = next(shard["file"] for shard in ctx.json(["inspect", pack])["shards"] if shard["kind"] == "trunk")
    os.remove(os.path.join(pack, trunk))
    os.mkdir(os.path.join(pack, trunk))
    report = verify_json(ctx, pack, 3)
    kinds = {os.path.basename(bad["file"]): bad["kind"] for bad in report["bad"]}
    equal(kinds, {damaged: "corrupt", newer: "unsupported", trunk: "unreadable"}, "kinds of findings")
    lines = ctx.fails(["verify", pack], 3).out
    for word in ("BAD  ", "UNSUPPORTED  ", "UNREADABLE  ", "1 unreadable"):
        check(word in lines, "%r is not in the text:\n%s" % (word, lines))


def test_shard_of_another_container(ctx):
    pack, other = ctx.copy_pack("k3_tiny", "--shard-by", "layer"), ctx.pack("k3_tiny", "--shard-by", "layer", "--layout", "canonical")
    name = next(shard["file"] for shard in ctx.json(["inspect", pack])["shards"] if shard["kind"] == "experts")
    shutil.copyfile(os.path.join(other, name), os.path.join(pack, name))
    report = verify_json(ctx, pack, 3)
    check(any(os.path.basename(bad["file"]) == name for bad in report["bad"]), "the foreign shard is not named: %r" % report["bad"])


def test_no_container(ctx):
    ctx.no_such_folder(["verify", None])
    report = verify_json(ctx, ctx.source(), 4)
    check(report["missing"] or report["error"]["exit_code"] == 4, "neither finding nor error")
    ctx.fails(["verify", ctx.source()], 4, "index.mpk")


def test_progress(ctx):
    result = ctx.ok(["verify", ctx.pack(), "--progress"])
    check("ETA" in result.err and "ETA" not in result.out, "progress", result)
