"""route: loads against the goldens, balancing rules, ranks and placements, the bias file, refusals."""
import json
import math
import os

from run_cli_tests import check, equal
import tensors

GOLDENS = [("k3_tiny", "qb_layer_1_t460.safetensors", 5), ("k3_tiny", "qb_layer_1_t512.safetensors", 5),
           ("k3_quant", "qb_layer_1_t448.safetensors", 16)]
BIAS = "language_model.model.layers.1.block_sparse_moe.gate.e_score_correction_bias"


def arguments(ctx, *options, pack=None, layer="1", x=None):
    return ["route", pack or ctx.pack(), "--layer", layer, "--input", x or ctx.golden(GOLDENS[0][1])] + list(options)


def near(found, expected, limit, what):
    equal(len(found), len(expected), "length of " + what)
    worst = max(abs(a - b) for a, b in zip(found, expected))
    check(worst <= limit, "%s: off by %g, limit %g" % (what, worst, limit))


def statistics(load):
    mean = sum(load) / len(load)
    variation = math.sqrt(sum((rows - mean) ** 2 for rows in load) / len(load)) / mean
    entropy = -sum(rows / sum(load) * math.log2(rows / sum(load)) for rows in load if rows)
    return [max(load) / mean, variation, entropy, load.count(0)]


def figures(report, suffix=""):
    return [report[key + suffix] for key in ("imbalance", "variation", "entropy", "idle_experts")]


def test_loads_are_the_goldens(ctx):
    for fixture, name, k in GOLDENS:
        x = ctx.golden(name, fixture)
        golden = tensors.read(x)
        report = ctx.json(arguments(ctx, "--balance", pack=ctx.pack(fixture), x=x))
        equal(report["load"], golden["load_before"].values(), "load of " + name)
        near(report["bias"], golden["bias_new_f64"].values(), 1e-6, "bias of " + name)
        equal(report["load_after"], golden["load_after"].values(), "load_after of " + name)
        near(figures(report), statistics(report["load"]), 1e-9, "figures of " + name)
        near(figures(report, "_after"), statistics(report["load_after"]), 1e-9, "figures after of " + name)
        equal([report[key] for key in ("layer", "tokens", "experts", "top_k", "rule", "rounds")],
              [1, golden["x"].shape[0], golden["bias_old"].shape[0], k, "quantile", 1], "report of " + name)
        equal([entry["bias"] for entry in report["compared"]], ["none", "checkpoint", "quantile", "sign"], "compared")
        near(figures(report["compared"][1]), figures(report), 0, "the checkpoint's bias")
        near(figures(report["compared"][2]), figures(report, "_after"), 0, "the new bias")
        check(report["imbalance_after"] < report["compared"][0]["imbalance"] < report["imbalance"], "no improvement in " + name)


def test_layer_goldens(ctx):
    """Also the layer with exact ties."""
    for layer, name in (("1", "layer_1"), ("2", "layer_2"), ("3", "layer_3"), ("3", "ties_layer_3")):
        x = ctx.golden(name + ".safetensors")
        for env in ({}, {"MOEPACK_KERNELS": "scalar"}):
            report = ctx.json(arguments(ctx, layer=layer, x=x), env=env)
            equal(report["load"], tensors.read(x)["load"].values(), "load of " + name)
            check("bias" not in report and "load_after" not in report, "balanced without --balance")


def test_text(ctx):
    ctx.expect("route_k3_tiny", ctx.ok(arguments(ctx)).out)
    ctx.expect("route_balance", ctx.ok(arguments(ctx, "--balance", "--ranks", "3")).out)


def test_only_the_router_is_read(ctx):
    """The shards with experts may be missing, and the bytes wanted are those of gate and bias."""
    pack = ctx.copy_pack()
    report = ctx.json(arguments(ctx, pack=pack))
    equal(report["bytes_wanted"], 32 * 112 * 2 + 23 * 4, "bytes_wanted: a BF16 matrix of 23 rows padded to 32, and an F32 bias")
    check(report["bytes_wanted"] <= report["bytes_read"] <= 4 * 4096, "bytes_read")
    for name in os.listdir(pack):
        if name.startswith("experts-"):
            os.remove(os.path.join(pack, name))
    equal(ctx.json(arguments(ctx, pack=pack)), report, "report without the experts")


def test_bytes_of_a_batch(ctx):
    whole = ctx.json(["plan", ctx.pack(), "--ranks", "1"])["ranks"][0]["expert_bytes"]
    report = ctx.json(arguments(ctx))
    equal(report["expert_bytes"] * 3, whole, "expert bytes of one of three equal layers")
    active = sum(1 for rows in report["load"] if rows)
    equal(report["read_bytes"] * 23, report["expert_bytes"] * active, "read_bytes of equal experts")
    check(abs(report["read_share"] - active / 23) < 1e-12, "read_share %r" % report["read_share"])
    subset = ctx.pack("k3_tiny", "--experts", "0-9")
    part = ctx.json(arguments(ctx, pack=subset))
    equal(part["load"], report["load"], "load from a subset")
    equal(part["read_absent"], sum(1 for rows in report["load"][10:] if rows), "selected experts that the subset lacks")


def test_ranks(ctx):
    chosen = ctx.path("y.safetensors")
    x = ctx.golden("layer_1.safetensors")
    ctx.ok(["run", ctx.pack(), "--layer", "1", "--input", x, "--output", chosen])
    ids = tensors.read(chosen)["topk_ids"].rows()
    placement = ctx.path("placement.json")
    with open(placement, "w", encoding="utf-8") as file:
        json.dump({"ranks": 3, "layers": {"*": [[2, 0]] * 20 + [[0]] * 3}}, file)
    cases = {"linear": lambda e: 0 if e < 8 else 1 if e < 16 else 2, "round-robin": lambda e: e % 3, placement: lambda e: 2 if e < 20 else 0}
    for spec, rank_of in cases.items():
        report = ctx.json(arguments(ctx, "--ranks", "3", "--placement", spec, x=x))
        for rank, entry in enumerate(report["ranks"]):
            equal(entry["rank"], rank, "rank")
            equal(entry["experts"], sum(rank_of(e) == rank for e in range(23)), "experts of rank %d" % rank)
            equal(entry["rows"], sum(rank_of(e) == rank for row in ids for e in row), "rows of rank %d" % rank)
            equal(entry["tokens"], sum(any(rank_of(e) == rank for e in row) for row in ids), "tokens of rank %d" % rank)
        rows = [entry["rows"] for entry in report["ranks"]]
        check(abs(report["rank_imbalance"] - max(rows) * 3 / sum(rows)) < 1e-12, "rank_imbalance")
        equal(sum(entry["read_bytes"] for entry in report["ranks"]), report["read_bytes"], "bytes of all ranks")
    after = ctx.json(arguments(ctx, "--ranks", "3", "--balance"))
    starts = [0, 8, 16, 23]
    equal([entry["rows"] for entry in after["ranks_after"]], [sum(after["load_after"][a:b]) for a, b in zip(starts, starts[1:])], "rows after")
    check("ranks" not in ctx.json(arguments(ctx)), "ranks although not asked for")


def test_sign_rule(ctx):
    """By hand: each step moves every expert by gamma towards the mean."""
    old = tensors.read(ctx.golden(GOLDENS[0][1]))["bias_old"].values()
    report = ctx.json(arguments(ctx, "--balance", "--rule", "sign", "--gamma", "0.01"))
    mean = 460 * 5 / 23
    expected = [bias + 0.01 * ((load < mean) - (load > mean)) for bias, load in zip(old, report["load"])]
    near(report["bias"], expected, 1e-7, "bias after one step")
    equal([report["rule"], report["gamma"]], ["sign", 0.01], "rule")
    near(figures(report["compared"][3]), figures(report, "_after"), 0, "the new bias")
    many = ctx.json(arguments(ctx, "--balance", "--rule", "sign", "--gamma", "0.01", "--rounds", "30"))
    check(many["imbalance_after"] < report["imbalance_after"], "thirty steps are no better than one")
    near(ctx.json(arguments(ctx, "--balance", "--rule", "sign"))["bias"], old, 0.001 + 1e-7, "default step")


def test_rounds(ctx):
    golden = tensors.read(ctx.golden(GOLDENS[1][1]))
    report = ctx.json(arguments(ctx, "--balance", "--rounds", "8", x=ctx.golden(GOLDENS[1][1])))
    near(report["bias"], golden["bias_8_f64"].values(), 1e-4, "bias after eight steps (near, from F32 scores)")
    check(report["imbalance_after"] <= ctx.json(arguments(ctx, "--balance", x=ctx.golden(GOLDENS[1][1])))["imbalance_after"], "worse than one step")


def test_write_bias(ctx):
    """The file holds what was reported; a checkpoint with this bias has the load that was promised."""
    out = ctx.path("bias.safetensors")
    report = ctx.json(arguments(ctx, "--balance", "--rounds", "3", "--write-bias", out))
    equal(report["output"], out, "output")
    written = tensors.read(out)
    equal(list(written), [BIAS], "tensors")
    equal([written[BIAS].dtype, written[BIAS].shape], ["F32", [23]], "dtype and shape")
    equal(written[BIAS].values(), tensors.f32([23], report["bias"]).values(), "bias")
    source = ctx.copy_source()
    for name in sorted(os.listdir(source)):
        path = os.path.join(source, name)
        if not name.endswith(".safetensors"):
            continue
        with open(path, "rb") as file:
            data = bytearray(file.read())
        length = int.from_bytes(data[:8], "little")
        entry = json.loads(data[8:8 + length]).get(BIAS)
        if entry is not None:
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            data[begin:end] = written[BIAS].data
            with open(path, "wb") as file:
                file.write(data)
    pack = ctx.path("new.moepack")
    ctx.ok(["convert", source, pack, "--quiet"])
    equal(ctx.json(arguments(ctx, pack=pack))["load"], report["load_after"], "load with the new bias")
    ctx.fails(arguments(ctx, "--balance", "--write-bias", out), 6, out, "--overwrite")
    equal(tensors.read(out)[BIAS].data, written[BIAS].data, "file in the way")
    ctx.ok(arguments(ctx, "--balance", "--write-bias", out, "--overwrite"))
    check(tensors.read(out)[BIAS].data != written[BIAS].data, "not overwritten")
    ctx.fails(arguments(ctx, "--balance", "--write-bias", os.path.join(ctx.path("nowhere"), "b")), 1)
    ctx.fails(arguments(ctx, "--balance", "--write-bias", os.path.join(ctx.pack(), "b")), 6, "inside the container")
    ctx.fails(arguments(ctx, "--balance", "--write-bias", ctx.golden(GOLDENS[0][1]), "--overwrite"), 6, "is the input file")


def test_policy(ctx):
    golden = tensors.read(ctx.golden("layer_1.safetensors"))
    x = ctx.golden("layer_1.safetensors")
    first = ctx.json(arguments(ctx, "--policy", "top_k=1", x=x))
    expected = [0] * 23
    for row in golden["topk_ids"].rows():
        expected[row[0]] += 1
    equal(first["load"], expected, "load of the first choices")
    unbiased = ctx.json(arguments(ctx, "--policy", "select=score", "--balance"))
    equal(figures(unbiased), figures(unbiased["compared"][0]), "select=score is no bias")
    equal(figures(unbiased), figures(unbiased["compared"][1]), "the checkpoint's bias is not in use")
    check(unbiased["imbalance_after"] < unbiased["imbalance"], "the new bias is not used with select=score")
    equal(figures(unbiased), figures(ctx.json(arguments(ctx, "--balance"))["compared"][0]), "no bias")
    ctx.fails(arguments(ctx, "--policy", "nonsense=1"), 2, "nonsense")
    ctx.fails(arguments(ctx, "--policy", "top_k"), 2, "KEY=VALUE")
    ctx.fails(arguments(ctx, "--policy", "hidden=96"), 2, "hidden=96", "follows from the tensors")


def test_what_cannot_be_balanced(ctx):
    ctx.fails(arguments(ctx, "--balance", "--policy", "top_k=23"), 2, "all 23 experts")
    equal(ctx.json(arguments(ctx, "--policy", "top_k=23"))["load"], [460] * 23, "load with k = E")
    quant = {"pack": ctx.pack("k3_quant"), "x": ctx.golden(GOLDENS[2][1], "k3_quant")}
    groups = ["--policy", "groups=4", "--policy", "groups_kept=2"]
    ctx.fails(arguments(ctx, "--balance", *groups, **quant), 5, "4 groups")
    equal(sum(ctx.json(arguments(ctx, *groups, **quant))["load"]), 448 * 16, "rows with groups")
    width = 112
    values = tensors.read(ctx.golden("layer_1.safetensors"))["x"].values()[:3 * width]
    one, broken = ctx.path("x.safetensors"), ctx.path("x.safetensors")
    tensors.write(one, {"x": tensors.f32([1, width], values[:width])})
    tensors.write(broken, {"x": tensors.f32([3, width], values[:width + 7] + [math.nan] + values[width + 8:])})
    ctx.fails(arguments(ctx, "--balance", x=broken), 2, "token 1", "not finite")
    equal(sum(ctx.json(arguments(ctx, x=broken))["load"]), 15, "rows with a NaN")
    report = ctx.json(arguments(ctx, "--balance", x=one))
    equal([report["tokens"], sum(report["load"]), sum(report["load_after"])], [1, 5, 5], "one token")


def test_no_tokens(ctx):
    for shape in ([0, 112], [3, 0, 112]):
        x = ctx.path("x.safetensors")
        tensors.write(x, {"x": tensors.f32(shape, [])})
        report = ctx.json(arguments(ctx, "--ranks", "2", x=x))
        equal(report["load"], [0] * 23, "load")
        equal([report[key] for key in ("imbalance", "variation", "entropy", "rank_imbalance")], [None] * 4, "ratios of nothing")
        equal([report["read_bytes"], report["read_share"]], [0, 0], "bytes")
        ctx.ok(arguments(ctx, "--ranks", "2", x=x))
        ctx.fails(arguments(ctx, "--balance", x=x), 2, "at least one token")


def test_sequences_and_threads(ctx):
    """[S, T, H] counts all its tokens; more of them than are routed together; any number of threads."""
    x = tensors.read(ctx.golden(GOLDENS[0][1]))["x"]
    path = ctx.path("x.safetensors")
    tensors.write(path, {"x": tensors.Tensor("BF16", [5] + x.shape, x.data * 5)})
    once = ctx.json(arguments(ctx, "--balance"))
    for threads in ("1", "2", "5"):
        report = ctx.json(arguments(ctx, "--threads", threads, x=path))
        equal([report["tokens"], report["load"]], [5 * 460, [5 * rows for rows in once["load"]]], "five times the same tokens")
        equal(ctx.json(arguments(ctx, "--threads", threads, "--balance"), env={"OMP_NUM_THREADS": threads}), once, "threads")


def test_misuse(ctx):
    ctx.fails(["route", "a"], 2, "--layer and --input")
    needed = ["route", "a", "--layer", "1", "--input", "x"]
    for option in (["--rule", "sign"], ["--rule", "quantile"], ["--gamma", "1"], ["--rounds", "2"], ["--write-bias", "b"]):
        ctx.fails(needed + option, 2, option[0] + " needs --balance")
    ctx.fails(needed + ["--placement", "linear"], 2, "--placement needs --ranks")
    ctx.fails(needed + ["--overwrite"], 2, "--overwrite needs --write-bias")
    for bad in ("0", "-1", "nan", "inf", "", "1x", "1e999"):
        ctx.fails(needed + ["--balance", "--gamma", bad], 2, "--gamma")
    ctx.fails(needed + ["--balance", "--rounds", "0"], 2, "--rounds")
    ctx.fails(needed + ["--balance", "--rule", "random"], 2, "quantile, sign")
    ctx.fails(arguments(ctx, layer="0"), 2, "no such MoE layer", "1-3")
    ctx.fails(arguments(ctx, "--ranks", "2", "--placement", ctx.path("nowhere.json")), 2, "nowhere.json")
    ctx.fails(arguments(ctx, x=ctx.golden(GOLDENS[2][1], "k3_quant")), 2, "256", "112")
    ctx.no_such_folder(["route", None, "--layer", "1", "--input", "x"])


def test_damage(ctx):
    """A flipped bit in this layer's router is found; the other layers do not mind."""
    pack = ctx.copy_pack()
    name = "language_model.model.layers.1.block_sparse_moe.gate.weight"
    entry = {tensor["name"]: tensor for tensor in ctx.json(["inspect", pack, "--tensors"])["tensors"]}[name]
    with open(os.path.join(pack, entry["file"]), "r+b") as file:
        file.seek(entry["offset"] + 5)
        byte = file.read(1)[0]
        file.seek(entry["offset"] + 5)
        file.write(bytes([byte ^ 1]))
    ctx.fails(arguments(ctx, pack=pack), 3, entry["file"], "layer 1", name)
    ctx.ok(arguments(ctx, pack=pack, layer="2"))


def test_write_trace(ctx):
    """The experts of each token in slot order, as run gives them."""
    x, trace, out = ctx.golden("layer_1.safetensors"), ctx.path("trace.txt"), ctx.path("y.safetensors")
    command = ["route", ctx.pack(), "--layer", "1", "--input", x, "--write-trace", trace]
    ctx.ok(command)
    ctx.ok(["run", ctx.pack(), "--layer", "1", "--input", x, "--output", out])
    with open(trace, encoding="ascii") as file:
        found = [[int(word) for word in line.split(" ")] for line in file]
    equal(found, tensors.read(out)["topk_ids"].rows(), "experts")
    ctx.fails(command, 6, trace, "--overwrite")
    ctx.ok(command + ["--overwrite"])
    ctx.fails(command[:-1] + [x, "--overwrite"], 6, "input")
    ctx.fails(command[:-1] + [os.path.join(ctx.path("nowhere"), "t")], 1)
    ctx.fails(command[:-1] + ["same", "--balance", "--write-bias", "same"], 2, "same file")
    equal([name for name in os.listdir(os.path.dirname(trace)) if "partial" in name], [], "files left behind")
