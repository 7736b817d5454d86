"""run: reports, inputs and outputs of every kind, refusals, damage."""
import filecmp
import json
import math
import os
import re
import resource
import shutil
import signal

from run_cli_tests import check, equal
import tensors

KEYS = ["bytes_wanted", "dense_bytes", "expert_bytes", "bytes_read", "bytes_verified", "io", "io_reason", "kernels", "threads", "load_seconds",
        "compute_seconds", "tokens"]
LONG = 400  # times 17 tokens: long enough to be interrupted


def arguments(ctx, *options, pack=None, layer="1", x=None, out=None):
    x = x or ctx.golden("layer_1.safetensors")
    return ["run", pack or ctx.pack(), "--layer", layer, "--input", x, "--output", out or ctx.path("y.safetensors")] + list(options)


def test_report(ctx):
    out = ctx.path("y.safetensors")
    result = ctx.ok(arguments(ctx, out=out))
    for part in ("layer 1: 17 tokens to", out, "wanted", "read", "verified", "load", "compute", "kernels"):
        check(part in result.out, "%r is not in the report" % part, result)
    equal(result.err, "", "stderr", result)


def test_json(ctx):
    plan = ctx.json(["plan", ctx.pack(), "--ranks", "1"])["ranks"][0]
    for options, io in (([], None), (["--io", "mmap"], "mmap"), (["--io", "direct"], None)):
        report = ctx.json(arguments(ctx, "--threads", "2", *options))
        for key in KEYS:
            check(key in report, "no key %s" % key)
        equal(report["bytes_wanted"], report["dense_bytes"] + report["expert_bytes"], "bytes_wanted")
        check(0 < report["bytes_wanted"] < plan["bytes_wanted"], "one layer wants less than all")
        equal(report["expert_bytes"] * 3, plan["expert_bytes"], "expert bytes of one of three equal layers")
        check(report["bytes_read"] >= report["bytes_wanted"] or report["io"] == "mmap", "bytes_read")
        check(report["bytes_verified"] >= report["bytes_wanted"], "bytes_verified")
        equal(report["tokens"], 17, "tokens")
        equal(report["threads"], 2, "threads")
        equal(report["layer"], 1, "layer")
        check(io is None or report["io"] == io, "io")
        check(report["io"] in ("direct", "mmap", "buffered"), "io %r" % report["io"])
        check(report["load_seconds"] >= 0 and report["compute_seconds"] >= 0, "seconds")
    equal(ctx.json(arguments(ctx, "--check", "none"))["bytes_verified"], 0, "bytes_verified without checks")
    equal(ctx.json(arguments(ctx), env={"MOEPACK_KERNELS": "scalar"})["kernels"], "scalar", "kernels")
    equal(ctx.json(arguments(ctx), env={"OMP_NUM_THREADS": "3"})["threads"], 3, "threads from OMP_NUM_THREADS")


def test_a_rank_reads_its_own_experts_only(ctx):
    whole = ctx.json(arguments(ctx))
    wanted = 0
    for rank in range(3):
        report = ctx.json(arguments(ctx, "--ranks", "3", "--rank", str(rank)))
        wanted += report["expert_bytes"]
        equal(report["dense_bytes"], whole["dense_bytes"], "dense bytes")
        check(report["bytes_read"] < whole["bytes_read"] or report["io"] == "mmap", "rank %d read as much as all" % rank)
        equal([report["rank"], report["ranks"]], [rank, 3], "rank")
    equal(wanted, whole["expert_bytes"], "expert bytes of all ranks")


def test_layer_by_prefix(ctx):
    a, b, c = (ctx.path("y.safetensors") for _ in range(3))
    prefix = "language_model.model.layers.2.block_sparse_moe"
    x = ctx.golden("layer_2.safetensors")
    ctx.ok(arguments(ctx, layer="2", x=x, out=a))
    ctx.ok(arguments(ctx, layer=prefix, x=x, out=b))
    ctx.ok(arguments(ctx, layer=prefix + ".", x=x, out=c))
    check(filecmp.cmp(a, b, shallow=False) and filecmp.cmp(a, c, shallow=False), "results differ")
    ctx.fails(arguments(ctx, layer="0"), 2, "no such MoE layer", "1-3")
    ctx.fails(arguments(ctx, layer="04"), 2)


def test_f32_input_and_sequences(ctx):
    x = tensors.read(ctx.golden("layer_1.safetensors"))["x"]
    rows, width = x.shape
    values = x.values()
    reference = ctx.path("y.safetensors")
    ctx.ok(arguments(ctx, out=reference))
    expected = tensors.read(reference)
    variants = {
        "F32": tensors.f32([rows, width], values),
        "one sequence": tensors.Tensor("BF16", [1, rows, width], x.data),
        "one token each": tensors.Tensor("BF16", [rows, 1, width], x.data),
    }
    for what, tensor in variants.items():
        path, out = ctx.path("x.safetensors"), ctx.path("y.safetensors")
        tensors.write(path, {"before": tensors.f32([3], [1, 2, 3]), "x": tensor, "z_after": tensors.f32([], [1])})
        report = ctx.json(arguments(ctx, x=path, out=out))
        equal(report["tokens"], rows, "tokens")
        found = tensors.read(out)
        for name in expected:
            equal(found[name].shape, tensor.shape[:-1] + expected[name].shape[-1:], "%s: shape of %s" % (what, name))
            check(found[name].data == expected[name].data, "%s: %s differs" % (what, name))


def test_no_tokens(ctx):
    for shape in ([0, 112], [0, 5, 112], [4, 0, 112]):
        path, out = ctx.path("x.safetensors"), ctx.path("y.safetensors")
        tensors.write(path, {"x": tensors.f32(shape, [])})
        report = ctx.json(arguments(ctx, x=path, out=out))
        equal(report["tokens"], 0, "tokens")
        found = tensors.read(out)
        equal(found["y"].shape, shape, "shape of y")
        equal(found["topk_ids"].shape, shape[:-1] + [5], "shape of topk_ids")


def test_nan_stays_in_its_row(ctx):
    x = tensors.read(ctx.golden("layer_1.safetensors"))["x"]
    rows, width = x.shape
    values = x.values()
    values[3 * width + 50] = math.nan
    path, out, reference = ctx.path("x.safetensors"), ctx.path("y.safetensors"), ctx.path("y.safetensors")
    tensors.write(path, {"x": tensors.f32([rows, width], values)})
    ctx.ok(arguments(ctx, x=path, out=out))
    ctx.ok(arguments(ctx, out=reference))
    found, expected = tensors.read(out), tensors.read(reference)
    check(all(math.isnan(value) for value in found["y"].rows()[3]), "row 3 is not all NaN")
    for name in expected:
        size = len(expected[name].data) // rows
        for row in range(rows):
            if row != 3:
                check(found[name].data[row * size:(row + 1) * size] == expected[name].data[row * size:(row + 1) * size], "row %d of %s changed" % (row, name))


def test_bad_inputs(ctx):
    def run(tensor, code, *parts, name="x"):
        path = ctx.path("bad.safetensors")
        tensors.write(path, {name: tensor})
        out = ctx.path("y.safetensors")
        ctx.fails(arguments(ctx, x=path, out=out), code, "bad.safetensors", *parts)
        check(not os.path.exists(out), "output although refused")
    run(tensors.f32([2, 96], [0] * 192), 2, "tensor x", "96", "112")
    run(tensors.f32([112], [0] * 112), 2, "tensor x", "1 dimension")
    run(tensors.f32([1, 1, 1, 112], [0] * 112), 2, "tensor x", "4 dimension")
    run(tensors.Tensor("F16", [1, 112], bytes(224)), 5, "tensor x", "F16", "BF16")
    run(tensors.Tensor("I32", [1, 112], bytes(448)), 5, "tensor x", "I32")
    run(tensors.f32([1, 112], [0] * 112), 4, "tensor x", name="hidden_states")
    ctx.fails(arguments(ctx, x=ctx.path("nowhere.safetensors")), 4, "nowhere.safetensors")
    broken = ctx.path("broken.safetensors")
    with open(broken, "wb") as file:
        file.write(b"\xff" * 100)
    ctx.fails(arguments(ctx, x=broken), 3, "broken.safetensors")


def test_existing_output(ctx):
    out = ctx.path("y.safetensors")
    with open(out, "w", encoding="utf-8") as file:
        file.write("mine")
    result = ctx.fails(arguments(ctx, out=out), 6, out)
    with open(out, encoding="utf-8") as file:
        equal(file.read(), "mine", "content of the file in the way", result)
    check("--overwrite" in result.err, "--overwrite is not offered", result)
    ctx.ok(arguments(ctx, "--overwrite", out=out))
    check("y" in tensors.read(out), "no y")
    equal(sorted(name for name in os.listdir(os.path.dirname(out)) if name.startswith(os.path.basename(out))), [os.path.basename(out)], "files left beside")
    ctx.fails(arguments(ctx, out=os.path.join(ctx.path("nowhere"), "y")), 1)


def test_overwrite_replaces_plain_files_only(ctx):
    """Not a pipe, a link, the input, or a file of the container."""
    pack = ctx.copy_pack()
    fifo, link, x, target = ctx.path("fifo"), ctx.path("link"), ctx.path("x.safetensors"), ctx.path("target")
    os.mkfifo(fifo)
    with open(target, "w", encoding="utf-8") as file:
        file.write("mine")
    os.symlink(target, link)
    shutil.copyfile(ctx.golden("layer_1.safetensors"), x)
    alias, same = ctx.path("pack"), ctx.path("same.safetensors")
    os.symlink(pack, alias)
    os.link(x, same)
    inside = [os.path.join(pack, name) for name in sorted(os.listdir(pack))]
    cases = [(fifo, "regular file"), (link, "regular file"), (x, "input"), (same, "input")]
    cases += [(path, "inside the container") for path in inside + [os.path.join(pack, "new"), os.path.join(alias, "index.mpk"), pack + "/../" + os.path.basename(pack) + "/new"]]
    before = {path: os.lstat(path) for path in [fifo, link, x, target] + inside}
    for path, why in cases:
        ctx.fails(arguments(ctx, "--overwrite", pack=pack, x=x, out=path), 6, why)
    equal({path: (os.lstat(path).st_ino, os.lstat(path).st_mtime_ns, os.lstat(path).st_mode) for path in before},
          {path: (st.st_ino, st.st_mtime_ns, st.st_mode) for path, st in before.items()}, "files")
    equal(sorted(os.path.join(pack, name) for name in os.listdir(pack)), inside, "files of the container")
    # A folder whose name begins like the container's is another one.
    beside = pack + "2"
    os.mkdir(beside)
    ctx.ok(arguments(ctx, pack=pack, x=x, out=os.path.join(beside, "y")))


def test_policy_override(ctx):
    reference, out = ctx.path("y.safetensors"), ctx.path("y.safetensors")
    ctx.ok(arguments(ctx, out=reference))
    ctx.ok(arguments(ctx, "--policy", "weight_from=biased", out=out))
    expected, found = tensors.read(reference), tensors.read(out)
    equal(found["topk_ids"].data, expected["topk_ids"].data, "selection")
    check(tensors.rel_l2(found["y"].values(), expected["y"].values()) > 0.01, "weights from biased scores change nothing")
    fewer = ctx.path("y.safetensors")
    ctx.ok(arguments(ctx, "--policy", "top_k=2", out=fewer))
    equal([row[:2] for row in expected["topk_ids"].rows()], tensors.read(fewer)["topk_ids"].rows(), "the two first choices")
    for bad in ("nonsense=1", "top_k=24", "weight_from=x", "top_k", "=1"):
        ctx.fails(arguments(ctx, "--policy", bad), 2)
    # Widths are what the tensors are; an override cannot change them.
    for wrong in ("hidden=128", "intermediate=32", "expert_input=64", "shared_width=1", "gated=no", "token_ids=yes"):
        ctx.fails(arguments(ctx, "--policy", wrong), 2, wrong, "follows from the tensors")
    # Numbers that no formula can use; config.json and convert refuse them too.
    for key, value in (("norm_eps", "-1"), ("scale", "1e300"), ("situ_beta", "1e308"), ("act_limit", "-7")):
        for args in (arguments(ctx, "--policy", key + "=" + value), ["convert", ctx.source(), ctx.path("out"), "--policy", key + "=" + value]):
            ctx.fails(args, 2, key)


def test_kernels_by_name(ctx):
    ctx.ok(arguments(ctx), env={"MOEPACK_KERNELS": ""})
    result = ctx.fails(arguments(ctx), 2, "mmx", env={"MOEPACK_KERNELS": "mmx"})
    check("scalar" in result.err, "known kernels are not named", result)


def least_budget(ctx, *options, **more):
    """What a refusal says that is needed, beside the budget."""
    out = ctx.path("y.safetensors")
    result = ctx.fails(arguments(ctx, *options, "--budget", "4096", out=out, **more), 6, "the budget is 4096")
    check(not os.path.exists(out), "output although refused")
    needed = int(re.search(r"needs (?:at least )?(\d+) bytes", result.err).group(1))
    result = ctx.run(arguments(ctx, *options, "--budget", str(needed), **more))
    if result.code == 6:  # dense tensors that are rearranged take more than is known before they are read
        needed = int(re.search(r"needs (\d+) bytes", result.err).group(1))
    ctx.fails(arguments(ctx, *options, "--budget", str(needed - 1), **more), 6, str(needed), "the budget is %d" % (needed - 1))
    return needed


def test_budget(ctx):
    """The same bits from fewer bytes, whatever gives way; and what the report counts."""
    canonical = ctx.pack("k3_tiny", "--layout", "canonical")
    for options, more in (([], {}), (["--io", "mmap"], {}), (["--compute", "f32"], {}), ([], {"pack": canonical}),
                          (["--ranks", "3", "--rank", "1"], {}), (["--ranks", "3", "--rank", "2", "--placement", "round-robin"], {})):
        whole, out = ctx.path("y.safetensors"), ctx.path("y.safetensors")
        full = ctx.json(arguments(ctx, *options, out=whole, **more))
        check("residency" not in full, "a residency without --budget")
        least = least_budget(ctx, *options, **more)
        for budget in (least, least + 3 * 16384, 1 << 30):
            report = ctx.json(arguments(ctx, *options, "--budget", str(budget), "--overwrite", out=out, **more))
            check(filecmp.cmp(whole, out, shallow=False), "a budget of %d bytes changes the result" % budget)
            resident = report["residency"]
            used = len(set(tensors.read(out)["topk_ids"].values()) & held(ctx, options))
            equal(report["bytes_wanted"], full["bytes_wanted"], "bytes_wanted")
            equal(resident["budget"], budget, "budget")
            check(resident["resident_bytes"] <= resident["budget_used"] <= budget, "more than the budget: %r" % resident)
            check(resident["misses"] >= used, "%d misses of %d experts" % (resident["misses"], used))
            check(resident["bytes_read"] > 0 and report["bytes_read"] >= resident["bytes_read"], "bytes_read")
            check(report["bytes_verified"] >= resident["bytes_verified"] > 0, "bytes_verified")
            check(resident["misses_in_time"] <= resident["misses"] and resident["wait_seconds"] >= 0, "waiting")
            if used > resident["slots"]:
                check(resident["evictions"] >= used - resident["slots"], "nothing gave way: %r" % resident)
            check(budget > least or resident["slots"] < resident["experts"], "all fit: %r" % resident)
            if resident["slots"] == resident["experts"]:
                equal([resident["misses"], resident["hits"], resident["evictions"]], [used, 0, 0], "misses, hits, evictions")
    equal(ctx.json(arguments(ctx, "--budget", "1G", "--check", "none"))["bytes_verified"], 0, "bytes_verified without checks")


def held(ctx, options):
    """Experts of the rank that the options name: k3_tiny has 23, so that three ranks hold 8, 8 and 7."""
    if "--ranks" not in options:
        return set(range(23))
    rank = int(options[3])
    return {e for e in range(23) if (e % 3 if "round-robin" in options else e // 8) == rank}


def test_budget_with_other_models(ctx):
    """Biases, fused tensors, other storage forms and weights on the inputs of experts."""
    for name in sorted(os.listdir(ctx.fixtures)):
        golden = os.path.join(ctx.fixtures, name, "golden")
        layers = sorted(file for file in os.listdir(golden) if re.fullmatch(r"layer_\d+\.safetensors", file)) if os.path.isdir(golden) else []
        if not layers or not os.path.isdir(os.path.join(ctx.fixtures, name, "checkpoint")):
            continue
        layer = layers[-1][len("layer_"):-len(".safetensors")]
        whole, out = ctx.path("y.safetensors"), ctx.path("y.safetensors")
        command = arguments(ctx, pack=ctx.pack(name), layer=layer, x=os.path.join(golden, layers[-1]), out=whole)
        ctx.ok(command)
        command[command.index(whole)] = out
        result = ctx.fails(command + ["--budget", "1"], 6)
        needed = int(re.search(r"needs (?:at least )?(\d+) bytes", result.err).group(1))
        for budget in (2 * needed, 1 << 30):
            ctx.ok(command + ["--budget", str(budget), "--overwrite"])
            check(filecmp.cmp(whole, out, shallow=False), "%s: a budget of %d bytes changes the result" % (name, budget))


def test_budget_text(ctx):
    result = ctx.ok(arguments(ctx, "--budget", "1G"))
    for part in ("budget", "slots of", "resident", "hits", "misses", "evictions", "waited"):
        check(part in result.out, "%r is not in the report" % part, result)


def test_budget_parts(ctx):
    """More tokens than are computed at a time: experts that stayed are hits."""
    x = tensors.read(ctx.golden("layer_1.safetensors"))["x"]
    path, whole, out = ctx.path("x.safetensors"), ctx.path("y.safetensors"), ctx.path("y.safetensors")
    tensors.write(path, {"x": tensors.Tensor("BF16", [17 * 40, 112], x.data * 40)})
    ctx.ok(arguments(ctx, x=path, out=whole))
    resident = ctx.json(arguments(ctx, "--budget", "1G", x=path, out=out))["residency"]
    check(filecmp.cmp(whole, out, shallow=False), "a budget changes the result")
    used = len(set(tensors.read(out)["topk_ids"].values()))
    equal([resident["misses"], resident["hits"]], [used, 2 * used], "misses and hits of three parts")


def damage(ctx, layer, expert, part):
    pack = ctx.copy_pack()
    info = ctx.json(["inspect", pack, "--layer", str(layer), "--expert", str(expert)])
    section = next(section for section in info["sections"] if part in section["name"])
    with open(os.path.join(pack, info["shard"]), "r+b") as file:
        file.seek(section["offset"] + section["stored_bytes"] // 3)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x20]))
    return pack, info["shard"], section


def test_damage_is_named(ctx):
    pack, shard, section = damage(ctx, 2, 11, "w2.weight_packed")
    x = ctx.golden("layer_2.safetensors")
    for options in (["--io", "direct"], ["--io", "mmap"]):
        out = ctx.path("y.safetensors")
        result = ctx.fails(arguments(ctx, *options, pack=pack, layer="2", x=x, out=out), 3, shard, "layer 2", "expert 11", "w2.weight_packed",
                           "offset %d" % section["offset"])
        equal(result.out, "", "stdout", result)
        check(not os.path.exists(out), "output although damaged")
        error = ctx.error(arguments(ctx, *options, pack=pack, layer="2", x=x), 3)
        equal([os.path.basename(error["file"]), error["layer"], error["expert"], error["offset"]], [shard, 2, 11, section["offset"]], "places")
        check("w2.weight_packed" in error["tensor"], "tensor %r" % error["tensor"])
    # Other layers, and ranks that do not hold the expert, do not read it.
    ctx.ok(arguments(ctx, pack=pack, layer="1"))
    ctx.ok(arguments(ctx, "--ranks", "3", "--rank", "0", pack=pack, layer="2", x=x))
    ctx.fails(arguments(ctx, "--ranks", "3", "--rank", "1", pack=pack, layer="2", x=x), 3, "expert 11")


def test_damage_under_a_budget(ctx):
    """Read when a token selects it, named as by a load."""
    x = ctx.golden("layer_2.safetensors")
    chosen = tensors.read(x)["topk_ids"].values()[0]
    pack, shard, section = damage(ctx, 2, chosen, "w2.weight_packed")
    for options in (["--io", "direct"], ["--io", "mmap"]):
        out = ctx.path("y.safetensors")
        ctx.fails(arguments(ctx, *options, "--budget", "1G", pack=pack, layer="2", x=x, out=out), 3, shard, "layer 2", "expert %d" % chosen,
                  "w2.weight_packed", "offset %d" % section["offset"])
        check(not os.path.exists(out), "output although damaged")
    ctx.ok(arguments(ctx, "--budget", "1G", pack=pack, layer="1"))


def test_missing_and_short_shards(ctx):
    pack = ctx.copy_pack()
    info = ctx.json(["inspect", pack, "--layer", "1", "--expert", "3"])
    path = os.path.join(pack, info["shard"])
    os.truncate(path, os.path.getsize(path) - 1)
    ctx.fails(arguments(ctx, pack=pack), 4, info["shard"])
    os.remove(path)
    ctx.fails(arguments(ctx, pack=pack), 4, info["shard"])
    ctx.fails(arguments(ctx, "--io", "mmap", pack=pack), 4, info["shard"])
    ctx.ok(["inspect", pack])


def test_subset(ctx):
    """Whole runs of a subset need every expert that the router picks; a rank whose experts are all there runs."""
    pack = ctx.pack("k3_tiny", "--experts", "0-7")
    result = ctx.run(arguments(ctx, pack=pack))
    equal(result.code, 4, "exit code", result)
    ctx.ok(arguments(ctx, "--ranks", "3", "--rank", "0", pack=pack))


def test_no_container(ctx):
    args = arguments(ctx)
    ctx.no_such_folder(args[:1] + [None] + args[2:])
    ctx.fails(arguments(ctx, pack=ctx.source()), 4)


def start_long_run(ctx, out, *options, pack=None):
    """A run that computes for some seconds, as soon as its weights are loaded."""
    x = tensors.read(ctx.golden("layer_1.safetensors"))["x"]
    path = ctx.path("long.safetensors")
    tensors.write(path, {"x": tensors.Tensor("BF16", [17 * LONG, 112], x.data * LONG)})
    process = ctx.start(arguments(ctx, "--progress", "--threads", "1", *options, pack=pack, x=path, out=out), env={"MOEPACK_KERNELS": "scalar"})
    line = process.stderr.readline().decode()
    while line and "100 %" not in line:
        line = process.stderr.readline().decode()
    check("100 %" in line, "no progress of loading: %r" % line)
    return process


def test_file_that_shrinks_under_a_mapping(ctx):
    """The system answers an access behind the new end with SIGBUS; that must end in an error that names the container."""
    pack, out = ctx.copy_pack(), ctx.path("y.safetensors")
    process = start_long_run(ctx, out, "--io", "mmap", "--json", pack=pack)
    for name in os.listdir(pack):
        os.truncate(os.path.join(pack, name), 0)
    stdout, stderr = process.communicate(timeout=60)
    text = stderr.decode()
    equal(process.returncode, 1, "exit code (stderr: %r)" % text)
    check(text.startswith("moepack: error: ") and pack in text and "mapped" in text, "stderr: %r" % text)
    error = json.loads(stdout)["error"]
    equal([error["exit_code"], error["file"], error["layer"]], [1, pack, None], "error in JSON")
    check("mapped" in error["message"], "message: " + error["message"])
    equal([name for name in os.listdir(os.path.dirname(out)) if name.startswith(os.path.basename(out))], [], "files left behind")


def test_interrupt(ctx):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        out = ctx.path("y.safetensors")
        process = start_long_run(ctx, out)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=120)
        equal(process.returncode, 130, "exit code after %s" % number)
        check("moepack: error: " in stderr.decode(), "stderr: %r" % stderr)
        equal([name for name in os.listdir(os.path.dirname(out)) if name.startswith(os.path.basename(out))], [], "files left behind")


def test_nohup(ctx):
    """What was started with SIGHUP ignored goes on after it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start_long_run(ctx, ctx.path("y.safetensors"))
        process.send_signal(signal.SIGHUP)
        _, stderr = process.communicate(timeout=120)
        equal([process.returncode, stderr], [0, b""], "exit code and stderr")
    finally:
        signal.signal(signal.SIGHUP, before)


def test_limit_on_file_sizes(ctx):
    """`ulimit -f`: an I/O error that leaves nothing behind, not the signal that ends a process by default."""
    out = ctx.path("y.safetensors")
    result = ctx.fails(arguments(ctx, out=out), 1, os.path.basename(out),
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))
    equal([name for name in os.listdir(os.path.dirname(out)) if name.startswith(os.path.basename(out))], [], "files left behind", result)
