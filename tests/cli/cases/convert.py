"""convert: reports, refusals, reproducibility."""
import errno
import filecmp
import json
import math
import mmap
import os
import shutil
import signal
import tempfile
import time

import tensors

from run_cli_tests import Failure, Skip, check, equal

KEYS = ["container", "source_bytes", "written_bytes", "experts", "tensors", "seconds", "resumed_bytes"]


def files(folder):
    return sorted(os.path.relpath(os.path.join(base, name), folder) for base, _, names in os.walk(folder) for name in names)


def same_folder(a, b):
    equal(files(a), files(b), "files")
    for name in files(a):
        check(filecmp.cmp(os.path.join(a, name), os.path.join(b, name), shallow=False), "%s differs" % name)


def nothing_left(out):
    for path in (out, out + ".partial"):
        check(not os.path.lexists(path), "%s was left behind" % path)


def test_report(ctx):
    out = ctx.path("k3.moepack")
    result = ctx.ok(["convert", ctx.source(), out])
    for part in (out, "527 tensors", "69 experts", "root hash"):
        check(part in result.out, "%r is not in the report" % part, result)
    equal(result.err, "", "stderr without a terminal", result)
    check(os.path.exists(os.path.join(out, "index.mpk")), "no index")
    check(not os.path.exists(out + ".partial"), "work folder left behind")


def test_json(ctx):
    out = ctx.path("k3.moepack")
    report = ctx.json(["convert", ctx.source(), out])
    for key in KEYS:
        check(key in report, "no key %s" % key)
    equal(report["container"], out, "container")
    equal(report["experts"], 69, "experts")
    equal(report["tensors"], 527, "tensors")
    equal(report["resumed_bytes"], 0, "resumed_bytes")
    equal(report["written_bytes"], sum(os.path.getsize(os.path.join(out, name)) for name in files(out)), "written_bytes")
    check(report["source_bytes"] >= 1441448, "source_bytes")
    for key in ("needed_disk_bytes", "available_disk_bytes", "peak_memory_bytes"):
        check(report["plan"][key] > 0, key)
    equal(report["root_hash"], ctx.json(["inspect", out])["root_hash"], "root_hash")


def takes_direct(path):
    """Whether a file can be read past the page cache: opened and read, because some file systems refuse only the second."""
    page = mmap.mmap(-1, 4096)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        return error.errno != errno.EINVAL
    try:
        os.readv(fd, [page])
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def reports_io(ctx, folder):
    """Converts into a folder and compares what convert and verify report with what its file system does. True: directly."""
    out = os.path.join(folder, "io.moepack")
    report = ctx.json(["convert", ctx.source(), out])
    direct = takes_direct(os.path.join(out, next(name for name in files(out) if name != "index.mpk")))
    verified = ctx.json(["verify", out])
    equal(verified["io"], "direct" if direct else "buffered", "io of verify in %s" % folder)
    equal(verified["io_reason"] == "", direct, "io_reason of verify: %r" % verified["io_reason"])
    equal(report["io"], "direct" if report["io_reason"] == "" else "buffered", "io of convert in %s" % folder)
    check(direct or report["io"] == "buffered", "io of convert in %s" % folder)
    text = ctx.ok(["verify", out])
    equal("page cache (" in text.out, not direct, "reason in the text", text)
    text = ctx.ok(["convert", ctx.source(), out, "--overwrite"])
    equal("buffered (" in text.out, report["io"] == "buffered", "reason in the text", text)
    return direct


def test_io_on_disk(ctx):
    reports_io(ctx, ctx.path("") or ".")
    check("io" not in ctx.json(["convert", ctx.source(), ctx.path("dry.moepack"), "--dry-run"]), "a dry run moves no bytes")


def test_io_without_direct(ctx):
    """A file system that has no direct I/O, where this machine has one: tmpfs before Linux 6.6."""
    if not os.access("/dev/shm", os.W_OK):
        raise Skip("no /dev/shm to write to")
    folder = tempfile.mkdtemp(prefix="moepack_cli_", dir="/dev/shm")
    try:
        if reports_io(ctx, folder):
            raise Skip("/dev/shm takes O_DIRECT here; tests/convert/test_pipeline.c refuses it by a hook")
    finally:
        shutil.rmtree(folder)


def test_dry_run(ctx):
    out = ctx.path("k3.moepack")
    report = ctx.json(["convert", ctx.source(), out, "--dry-run"])
    for key in ("needed_disk_bytes", "available_disk_bytes", "peak_memory_bytes"):
        check(report["plan"][key] > 0, key)
    equal(report["written_bytes"], 0, "written_bytes")
    nothing_left(out)
    text = ctx.ok(["convert", ctx.source(), out, "--dry-run"])
    for part in ("would read", "would write", "disk needed", "disk free", "memory needed", "MiB"):
        check(part in text.out, "%r is not in the text" % part, text)
    nothing_left(out)
    ctx.ok(["convert", ctx.source(), out, "--quiet"])
    written = sum(os.path.getsize(os.path.join(out, name)) for name in files(out))
    equal(report["plan"]["container_bytes"], written, "announced and written bytes")
    check(report["plan"]["needed_disk_bytes"] >= written, "needed_disk_bytes is less than what was written")


def test_same_bytes(ctx):
    """The container depends on the source and the options alone."""
    first = ctx.pack()
    for options in (["--jobs", "1"], ["--jobs", "5"], ["--verify"]):
        out = ctx.path("again.moepack")
        ctx.ok(["convert", ctx.source(), out] + options)
        same_folder(first, out)
    copied = ctx.copy_source()
    out = ctx.path("copy.moepack")
    ctx.ok(["convert", copied + "/", out + "/"])
    same_folder(first, out)


def test_source_is_not_changed(ctx):
    source = ctx.copy_source()
    before = {name: os.stat(os.path.join(source, name)).st_mtime_ns for name in files(source)}
    ctx.ok(["convert", source, ctx.path("k3.moepack")])
    equal({name: os.stat(os.path.join(source, name)).st_mtime_ns for name in files(source)}, before, "files of the source")


def test_layouts_and_shards(ctx):
    roots = set()
    for options in ([], ["--layout", "canonical"], ["--shard-by", "layer"], ["--shard-by", "size", "--shard-size", "200K"],
                    ["--shard-size", "400000"]):
        pack = ctx.pack("k3_tiny", *options)
        ctx.ok(["verify", pack])
        info = ctx.json(["inspect", pack])
        equal(info["layout"], "canonical" if "canonical" in options else "panel", "layout")
        roots.add(info["canonical_root"])
    equal(len(roots), 1, "number of canonical roots: it must not depend on layout and sharding")
    by_layer = ctx.json(["inspect", ctx.pack("k3_tiny", "--shard-by", "layer")])["shards"]
    check(any(shard["file"].startswith("layers-") for shard in by_layer), "names of layer shards")


def test_subset(ctx):
    out = ctx.path("subset.moepack")
    report = ctx.json(["convert", ctx.source(), out, "--layers", "1,3", "--experts", "0-3,20", "--moe-only"])
    equal(report["experts"], 10, "experts")
    info = ctx.json(["inspect", out])
    equal([layer["layer"] for layer in info["layers"]], [1, 3], "layers")
    check(info["subset"], "subset flag")
    equal(sum(shard["experts"] for shard in info["shards"]), 10, "records")
    ctx.ok(["verify", out])
    ctx.fails(["inspect", out, "--layer", "1", "--expert", "4"], 4, "layer 1", "expert 4")
    ctx.fails(["export", out, ctx.path("out")], 5)
    for bad in ("7", "1-", "x", "3-1", "1,,2", ""):
        ctx.fails(["convert", ctx.source(), ctx.path("out"), "--layers", bad], 2)
    for bad in ("23", "0-23", "-1"):
        ctx.fails(["convert", ctx.source(), ctx.path("out"), "--experts=" + bad], 2)


def test_policy_override(ctx):
    out = ctx.path("policy.moepack")
    ctx.ok(["convert", ctx.source(), out, "--policy", "weight_from=biased", "--policy", "scale=2.5"])
    layer = ctx.json(["inspect", out])["layers"][0]
    equal(layer["policy"]["weight_from"], "biased", "weight_from")
    equal(layer["policy"]["scale"], 2.5, "scale")
    equal(layer["policy_overrides"], 2, "overrides")
    check("overridden" in ctx.ok(["inspect", out]).out, "inspect does not tell of the override")
    for bad in ("nonsense=1", "weight_from=never", "weight_from", "top_k=0", "top_k=24"):
        ctx.fails(["convert", ctx.source(), ctx.path("out"), "--policy", bad], 2)


def test_existing_output(ctx):
    out = ctx.path("k3.moepack")
    ctx.ok(["convert", ctx.source(), out])
    before = os.stat(os.path.join(out, "index.mpk")).st_mtime_ns
    ctx.fails(["convert", ctx.source(), out], 6, out)
    equal(os.stat(os.path.join(out, "index.mpk")).st_mtime_ns, before, "the container was touched")
    ctx.ok(["convert", ctx.source(), out, "--overwrite", "--layout", "canonical"])
    equal(ctx.json(["inspect", out])["layout"], "canonical", "layout after --overwrite")
    other = ctx.path("file")
    with open(other, "w", encoding="utf-8") as file:
        file.write("mine")
    ctx.fails(["convert", ctx.source(), other], 6)
    with open(other, encoding="utf-8") as file:
        equal(file.read(), "mine", "content of a file in the way")


def test_left_over_partial(ctx):
    out = ctx.path("k3.moepack")
    os.mkdir(out + ".partial")
    marker = os.path.join(out + ".partial", "marker")
    with open(marker, "w", encoding="utf-8"):
        pass
    ctx.fails(["convert", ctx.source(), out], 6, ".partial")
    check(os.path.exists(marker), "a .partial of an earlier run was deleted")
    check(not os.path.exists(out), "output although refused")
    ctx.fails(["inspect", out + ".partial"], 4)


def test_missing_parts(ctx):
    ctx.no_such_folder(["convert", None, ctx.path("out")])
    source = ctx.copy_source()
    shard = os.path.join(source, "model-00002-of-00003.safetensors")
    os.remove(shard)
    out = ctx.path("out")
    ctx.fails(["convert", source, out], 4, "model-00002-of-00003.safetensors")
    nothing_left(out)
    error = ctx.error(["convert", source, out], 4)
    check("model-00002-of-00003.safetensors" in (error["file"] or "") + error["message"], "the error does not name the shard")


def test_truncated_shard(ctx):
    source = ctx.copy_source()
    shard = os.path.join(source, "model-00001-of-00003.safetensors")
    os.truncate(shard, os.path.getsize(shard) - 1)
    out = ctx.path("out")
    result = ctx.run(["convert", source, out])
    check(result.code in (3, 4), "exit code %d" % result.code, result)
    check("model-00001-of-00003.safetensors" in result.err, "file is not named", result)
    nothing_left(out)


def change_config(source, change):
    path = os.path.join(source, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    change(config)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)


def test_unknown_model(ctx):
    source = ctx.copy_source()

    def rename(config):
        config["model_type"] = "brand_new_moe"
        config.get("text_config", {})["model_type"] = "brand_new_text"
        config["architectures"] = ["BrandNewForCausalLM"]
    change_config(source, rename)
    result = ctx.run(["convert", source, ctx.path("out")])
    equal(result.code, 5, "exit code", result)
    check("brand_new" in result.err and "kimi_k3" in result.err, "neither the type nor the known ones are named", result)


def test_contradicting_config(ctx):
    source = ctx.copy_source()

    def grow(config):
        config.get("text_config", config)["moe_intermediate_size"] = 96
    change_config(source, grow)
    out = ctx.path("out")
    result = ctx.run(["convert", source, out])
    check(result.code in (3, 5), "exit code %d" % result.code, result)
    check("[128, 112]" in result.err and "[192, 112]" in result.err, "not both shapes are named", result)
    nothing_left(out)


def find_tensor(source, wanted):
    """Shard file and absolute offset of a tensor's data."""
    import struct
    for name in sorted(os.listdir(source)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(source, name), "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
        for tensor, entry in header.items():
            if tensor.endswith(wanted):
                return os.path.join(source, name), 8 + length + entry["data_offsets"][0], tensor
    raise Failure("no tensor ends with " + wanted)


def test_nan_scale(ctx):
    source = ctx.copy_source()
    path, offset, name = find_tensor(source, "layers.2.block_sparse_moe.experts.9.w3.weight_scale")
    with open(path, "r+b") as file:
        file.seek(offset + 5)
        file.write(b"\xff")
    out = ctx.path("out")
    error = ctx.error(["convert", source, out], 3)
    equal(error["layer"], 2, "layer")
    equal(error["expert"], 9, "expert")
    check("w3.weight_scale" in (error["tensor"] or ""), "tensor %r" % error["tensor"])
    nothing_left(out)
    ctx.ok(["convert", source, out, "--allow-nan-scales", "--quiet"])
    ctx.ok(["verify", out])
    stats = ctx.json(["inspect", out, "--layer", "2", "--expert", "9", "--stats"])["stats"]
    equal(stats["nan_scales"], 1, "NaN scales counted")
    x = ctx.golden("layer_2.safetensors")
    error = ctx.error(["run", out, "--layer", "2", "--input", x, "--output", ctx.path("y")], 3)
    equal([error["layer"], error["expert"]], [2, 9], "layer and expert")


def test_progress(ctx):
    result = ctx.ok(["convert", ctx.source(), ctx.path("k3.moepack"), "--progress"])
    check("ETA" in result.err and "%" in result.err, "no progress on stderr", result)
    check("ETA" not in result.out, "progress on stdout", result)
    quiet = ctx.ok(["convert", ctx.source(), ctx.path("k3.moepack"), "--progress", "--quiet"])
    equal(quiet.err, "", "stderr with --quiet", quiet)


def test_interrupt(ctx):
    """Ctrl-C once the work has begun: exit code 130, and nothing that looks like a container."""
    source = ctx.path("big")
    ctx.ok(["synth", "kimi_k3", source, "--hidden", "512", "--latent", "512", "--intermediate", "512", "--experts", "128", "--layers", "4", "--quiet"])
    for number in (signal.SIGINT, signal.SIGTERM):
        out = ctx.path("big.moepack")
        process = ctx.start(["convert", source, out, "--jobs", "1", "--progress", "--json", "--verify"])
        deadline = time.monotonic() + 30
        while not os.path.exists(out + ".partial") and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
        check(process.returncode == 130, "exit code %d\n%s\n%s" % (process.returncode, stdout.decode(), stderr.decode()))
        equal(json.loads(stdout)["error"]["exit_code"], 130, "exit_code in JSON")
        nothing_left(out)
    shutil.rmtree(source)


def test_memory(ctx):
    """Experts of full Kimi K3 size: memory stays bounded whatever the number of jobs, and so do the bytes written."""
    source, first = ctx.path("wide"), None
    ctx.ok(["synth", "kimi_k3", source, "--hidden", "64", "--latent", "3584", "--intermediate", "3072", "--experts", "8",
            "--layers", "2", "--shared", "1", "--quiet"])
    for jobs in ("1", "2", "16", "256"):
        out = ctx.path("wide-%s.moepack" % jobs)
        process = ctx.start(["convert", source, out, "--jobs", jobs, "--quiet"])
        _, status, usage = os.wait4(process.pid, 0)  # says nothing: --quiet
        process.stdout.close()
        process.stderr.close()
        process.returncode = os.waitstatus_to_exitcode(status)
        equal(process.returncode, 0, "exit code with %s jobs" % jobs)
        check(usage.ru_maxrss < 1000000, "%d kB of memory with %s jobs" % (usage.ru_maxrss, jobs))
        if first is None:
            first = out
        else:
            same_folder(first, out)
            shutil.rmtree(out)
    ctx.ok(["verify", first, "--quiet"])
    shutil.rmtree(first)
    shutil.rmtree(source)
# ---- quantising

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def encode_mxfp4(block):
    """The rule of spec/numerics.md, written from the text: scale byte and codes of 32 values."""
    most = max(abs(x) for x in block)
    if most == 0:
        return 127, [8 if math.copysign(1, x) < 0 else 0 for x in block]

    def nearest(a):
        return min(range(8), key=lambda code: (abs(E2M1[code] - min(a, 6.0)), code % 2))

    best = None
    for exponent in range(math.frexp(most)[1] - 4, math.frexp(most)[1]):
        exponent = max(-127, min(125, exponent))
        error = sum((abs(x) - E2M1[nearest(abs(x) / 2.0 ** exponent)] * 2.0 ** exponent) ** 2 for x in block)
        if best is None or error < best[0]:
            best = error, exponent
    return best[1] + 127, [nearest(abs(x) / 2.0 ** best[1]) | (8 if math.copysign(1, x) < 0 else 0) for x in block]


def section_bytes(ctx, pack, layer, expert):
    report = ctx.json(["inspect", pack, "--layer", str(layer), "--expert", str(expert)])
    with open(os.path.join(pack, report["shard"]), "rb") as file:
        data = file.read()
    return {section["name"]: data[section["offset"]:section["offset"] + section["stored_bytes"]] for section in report["sections"]}


def test_quantize(ctx):
    """Codes and scales against the rule, recomputed here; what the container says of itself; and that export refuses."""
    source, pack, panel = ctx.source("deepseek_v4"), ctx.path("canonical.moepack"), ctx.path("panel.moepack")
    for out, layout in ((pack, "canonical"), (panel, "panel")):
        ctx.ok(["convert", source, out, "--quantize", "mxfp4", "--layout", layout, "--quiet"])
        ctx.ok(["verify", out, "--quiet"])
    reports = [ctx.json(["inspect", out]) for out in (pack, panel)]
    equal(reports[0]["canonical_root"], reports[1]["canonical_root"], "canonical_root of both layouts")
    check(reports[0]["quantized"] and reports[0]["subset"], "the container does not say that it is quantised")
    check("QUANTISED" in ctx.ok(["inspect", panel]).out, "inspect does not say so")
    ctx.fails(["export", panel, ctx.path("again")], 5, "quantised")
    published = {}
    for name in sorted(os.listdir(source)):
        if name.endswith(".safetensors"):
            published.update(tensors.read(os.path.join(source, name)))
    for layer, expert, matrix in ((0, 0, "w1"), (1, 7, "w2"), (1, 9, "w3")):
        weights = published["model.layers.%d.ffn.experts.%d.%s.weight" % (layer, expert, matrix)].values()
        found = section_bytes(ctx, pack, layer, expert)
        codes, scales = (next(found[name] for name in found if name.endswith("%s.weight_%s" % (matrix, plane))) for plane in ("packed", "scale"))
        for block in range(len(weights) // 32):
            scale, wanted = encode_mxfp4(weights[32 * block:32 * block + 32])
            equal(scales[block], scale, "scale of block %d of %s" % (block, matrix))
            equal([codes[16 * block + i // 2] >> i % 2 * 4 & 15 for i in range(32)], wanted, "codes of block %d of %s" % (block, matrix))


def test_quantize_refusals(ctx):
    out = ctx.path("out.moepack")
    ctx.fails(["convert", ctx.source(), out, "--quantize", "mxfp4"], 6, "4 bits already", "--force-requantize")
    ctx.fails(["convert", ctx.source("mixtral"), out, "--quantize", "mxfp4"], 5, "blocks of 32", "w1.weight")
    ctx.fails(["convert", ctx.source(), out, "--force-requantize"], 2, "--quantize")
    ctx.fails(["convert", ctx.source(), out, "--quantize", "int3"], 2, "mxfp4")
    check(not os.path.exists(out), "something was left behind")


def test_requantize(ctx):
    """Values that are codes already keep their values: the layer gives the same bits."""
    golden = ctx.golden("layer_1.safetensors")
    results = []
    for options in ([], ["--quantize", "mxfp4", "--force-requantize"]):
        pack, out = ctx.path("pack.moepack"), ctx.path("y.safetensors")
        ctx.ok(["convert", ctx.source(), pack, "--quiet"] + options)
        ctx.ok(["run", pack, "--layer", "1", "--input", golden, "--output", out, "--compute", "f32", "--quiet"])
        results.append(tensors.read(out))
    distance = tensors.rel_l2(results[1]["y"].values(), results[0]["y"].values())
    check(distance < 1e-6, "the layer changed by %g" % distance)
