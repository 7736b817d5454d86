"""inspect: every view, as text and as JSON."""
import os

from run_cli_tests import check, equal

SECTIONS = ["experts.{expert}.%s.%s" % (matrix, plane) for matrix in ("w1", "w2", "w3") for plane in ("weight_packed", "weight_scale")]


def test_overview_text(ctx):
    ctx.expect("inspect_k3_tiny", ctx.ok(["inspect", ctx.pack()]).out)


def test_overview_says_what_one_wants_first(ctx):
    text = ctx.ok(["inspect", ctx.pack()]).out
    for part in ("kimi_k3", "3: 1-3", "H 112", "L 96", "I 64", "E 23", "k 5", "shared 2", "sigmoid", "MiB", "panel", "raw", "moepack verify",
                 "3 safetensors", "527 tensors"):
        check(part in text, "%r is not in the overview:\n%s" % (part, text))


def test_json_keys(ctx):
    info = ctx.json(["inspect", ctx.pack()])
    for key in ("format_version", "family", "root_hash", "layout", "layers", "shards", "trunk_tensors"):
        check(key in info, "no key %s" % key)
    equal(info["family"], "kimi_k3", "family")
    equal(info["layout"], "panel", "layout")
    equal(info["trunk_tensors"], 527 - 3 * 23 * 6, "trunk_tensors")
    equal(len(info["root_hash"]), 32, "digits of root_hash")
    equal([layer["layer"] for layer in info["layers"]], [1, 2, 3], "layers")
    for layer in info["layers"]:
        for key in ("layer", "experts", "policy", "sections"):
            check(key in layer, "no key %s in a layer" % key)
        equal(layer["experts"], 23, "experts")
        equal(layer["policy"]["top_k"], 5, "top_k")
        equal(sorted(section["name"] for section in layer["sections"]), SECTIONS, "sections")
        for section in layer["sections"]:
            for key in ("name", "dtype", "shape", "codec"):
                check(key in section, "no key %s in a section" % key)
            equal(section["codec"], "raw", "codec")
            equal(section["dtype"], "U8", "dtype")
    shapes = {section["name"]: section["shape"] for section in info["layers"][0]["sections"]}
    equal(shapes["experts.{expert}.w1.weight_packed"], [64, 48], "shape of w1")
    equal(shapes["experts.{expert}.w2.weight_scale"], [96, 2], "shape of the scales of w2")


def test_json_shards(ctx):
    pack = ctx.pack("k3_tiny", "--shard-by", "layer")
    info = ctx.json(["inspect", pack, "--shards"])
    for shard in info["shards"]:
        for key in ("file", "bytes", "experts", "layers"):
            check(key in shard, "no key %s in a shard" % key)
        equal(shard["bytes"], os.path.getsize(os.path.join(pack, shard["file"])), "bytes of " + shard["file"])
        check(shard["present"], "present")
    equal(sum(shard["experts"] for shard in info["shards"]), 69, "experts in all shards")
    equal(sorted(layer for shard in info["shards"] for layer in shard["layers"]), [1, 2, 3], "layers of all shards")
    text = ctx.ok(["inspect", pack, "--shards"]).out
    for shard in info["shards"]:
        check(shard["file"] in text and str(shard["bytes"]) in text, "%s is not in the table:\n%s" % (shard["file"], text))


def test_layer(ctx):
    for label in ("2", "language_model.model.layers.2.block_sparse_moe", "language_model.model.layers.2.block_sparse_moe."):
        info = ctx.json(["inspect", ctx.pack(), "--layer", label])
        equal([layer["layer"] for layer in info["layers"]], [2], "layers")
        equal([record["expert"] for record in info["records"]], list(range(23)), "records")
        names = {tensor["name"] for tensor in info["tensors"]}
        check("language_model.model.layers.2.block_sparse_moe.gate.weight" in names, "router is not listed")
        check(all(tensor["layer"] == 2 for tensor in info["tensors"]), "tensors of other layers")
        text = ctx.ok(["inspect", ctx.pack(), "--layer", label]).out
        check("layer 2: language_model.model.layers.2.block_sparse_moe." in text and "gate.weight" in text, "text:\n" + text)


def test_expert(ctx):
    pack = ctx.pack()
    info = ctx.json(["inspect", pack, "--layer", "2", "--expert", "11"])
    for key in ("shard", "offset", "length", "sections"):
        check(key in info, "no key %s" % key)
    equal([info["layer"], info["expert"]], [2, 11], "layer and expert")
    equal(info["offset"] % 4096, 0, "alignment of the record")
    equal(info["length"] % 4096, 0, "length of the record")
    equal(len(info["sections"]), 6, "sections")
    size = os.path.getsize(os.path.join(pack, info["shard"]))
    for section in info["sections"]:
        for key in ("name", "offset", "stored_bytes", "codec", "xxh3"):
            check(key in section, "no key %s in a section" % key)
        check(section["name"].startswith("language_model.model.layers.2.block_sparse_moe.experts.11.w"), section["name"])
        check(info["offset"] <= section["offset"] and section["offset"] + section["stored_bytes"] <= info["offset"] + info["length"] <= size,
              "section outside its record")
        equal(len(section["xxh3"]), 16, "digits of xxh3")
    ctx.expect("inspect_expert", ctx.ok(["inspect", pack, "--layer", "2", "--expert", "11"]).out)


def test_expert_bytes_in_canonical_layout(ctx):
    """offset and stored_bytes lead to the published bytes."""
    import json
    import struct
    pack = ctx.pack("k3_tiny", "--layout", "canonical")
    info = ctx.json(["inspect", pack, "--layer", "3", "--expert", "0"])
    published = {}
    for name in sorted(os.listdir(ctx.source())):
        if name.endswith(".safetensors"):
            with open(os.path.join(ctx.source(), name), "rb") as file:
                data = file.read()
            length = struct.unpack("<Q", data[:8])[0]
            for tensor, entry in json.loads(data[8:8 + length]).items():
                if tensor != "__metadata__":
                    begin, end = entry["data_offsets"]
                    published[tensor] = data[8 + length + begin:8 + length + end]
    with open(os.path.join(pack, info["shard"]), "rb") as file:
        data = file.read()
    for section in info["sections"]:
        equal(data[section["offset"]:section["offset"] + section["stored_bytes"]], published[section["name"]], "bytes of " + section["name"])
    for tensor in ctx.json(["inspect", pack, "--tensors"])["tensors"]:
        with open(os.path.join(pack, tensor["file"]), "rb") as file:
            file.seek(tensor["offset"])
            equal(file.read(tensor["stored_bytes"]), published[tensor["name"]], "bytes of " + tensor["name"])


def test_tensors(ctx):
    info = ctx.json(["inspect", ctx.pack(), "--tensors"])
    equal(len(info["tensors"]), info["trunk_tensors"], "number of tensors")
    by_name = {tensor["name"]: tensor for tensor in info["tensors"]}
    scalar = by_name["vision_tower.scalar_buffer"]
    equal([scalar["dtype"], scalar["shape"], scalar["bytes"], scalar["layer"]], ["F32", [], 4, None], "scalar tensor")
    empty = by_name["vision_tower.empty_buffer"]
    equal([empty["shape"], empty["bytes"], empty["stored_bytes"]], [[0, 112], 0, 0], "empty tensor")
    text = ctx.ok(["inspect", ctx.pack(), "--tensors"]).out
    equal(text.count("\n"), info["trunk_tensors"], "lines of the table")


def test_policy(ctx):
    text = ctx.ok(["inspect", ctx.pack(), "--policy"]).out
    for part in ("MoE layers 1-3", "sigmoid", "top_k", "situ_beta"):
        check(part in text, "%r is not in the text:\n%s" % (part, text))
    ctx.expect("inspect_policy", text)


def test_stats(ctx):
    whole = ctx.json(["inspect", ctx.pack(), "--stats"])["stats"]
    sums = {entry["name"]: entry for entry in whole["bytes_by_role"]}
    equal(sums["gate weight"]["count"], 69, "gate matrices")
    equal(sums["gate weight"]["bytes"], 69 * 64 * 48, "bytes of gate weights")
    equal(sums["down scale"]["bytes"], 69 * 96 * 2, "bytes of down scales")
    equal(sums["router weight"]["count"], 3, "routers")
    check("scale_exponents" not in whole, "scales are read for a layer or expert only")
    expert = ctx.json(["inspect", ctx.pack(), "--layer", "1", "--expert", "4", "--stats"])["stats"]
    equal(sum(expert["scale_exponents"].values()), 64 * 3 + 64 * 3 + 96 * 2, "scales of an expert")
    equal(expert["nan_scales"], 0, "NaN scales")
    # Expert 4 of layer 1 has scale bytes 0, 1 and 254 (see the fixtures' README).
    for exponent in ("-127", "-126", "127"):
        check(exponent in expert["scale_exponents"], "no scale of 2^%s" % exponent)
    canonical = ctx.json(["inspect", ctx.pack("k3_tiny", "--layout", "canonical"), "--layer", "1", "--expert", "4", "--stats"])["stats"]
    equal(canonical["scale_exponents"], expert["scale_exponents"], "scales do not depend on the layout")
    layer = ctx.json(["inspect", ctx.pack(), "--layer", "1", "--stats"])["stats"]
    equal(sum(layer["scale_exponents"].values()), 23 * (64 * 3 + 64 * 3 + 96 * 2), "scales of a layer")
    check("2^-127" in ctx.ok(["inspect", ctx.pack(), "--layer", "1", "--expert", "4", "--stats"]).out, "histogram")


def test_unknown_layer_and_expert(ctx):
    ctx.fails(["inspect", ctx.pack(), "--layer", "0"], 2, "no such MoE layer", "1-3")
    ctx.fails(["inspect", ctx.pack(), "--layer", "encoder.1"], 2, "no such MoE layer")
    ctx.fails(["inspect", ctx.pack(), "--layer", "1", "--expert", "23"], 2, "experts 0 to 22")


def test_index_alone_suffices(ctx):
    pack = ctx.path("k3.moepack")
    os.mkdir(pack)
    with open(os.path.join(ctx.pack(), "index.mpk"), "rb") as source, open(os.path.join(pack, "index.mpk"), "wb") as out:
        out.write(source.read())
    os.chmod(os.path.join(pack, "index.mpk"), 0o444)
    os.chmod(pack, 0o555)
    for view in ([], ["--shards"], ["--layer", "1"], ["--layer", "1", "--expert", "2"], ["--tensors"], ["--policy"], ["--stats"]):
        for json in ([], ["--json"]):
            ctx.ok(["inspect", pack] + view + json)
    check("NOT HERE" in ctx.ok(["inspect", pack, "--shards"]).out, "missing shards are not marked")
    check(not any(shard["present"] for shard in ctx.json(["inspect", pack])["shards"]), "present")
    ctx.fails(["inspect", pack, "--layer", "1", "--stats"], 4)
    os.chmod(pack, 0o755)


def test_damaged_index(ctx):
    pack = ctx.copy_pack()
    index = os.path.join(pack, "index.mpk")
    with open(index, "rb") as file:
        good = file.read()
    for position in (0, 9, 60, 70, 125, 130, len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[position] ^= 0x10
        with open(index, "wb") as file:
            file.write(bad)
        ctx.fails(["inspect", pack], 3, "index.mpk")
        equal(ctx.error(["inspect", pack], 3)["exit_code"], 3, "exit code")
    for length in (0, 63, 64, 127, 128, len(good) - 1):
        with open(index, "wb") as file:
            file.write(good[:length])
        ctx.fails(["inspect", pack], 4, "index.mpk")
    with open(index, "wb") as file:
        file.write(good + b"\0")
    ctx.fails(["inspect", pack], 3, "index.mpk")
    os.remove(index)
    ctx.fails(["inspect", pack], 4, "index.mpk")
    ctx.no_such_folder(["inspect", None])
