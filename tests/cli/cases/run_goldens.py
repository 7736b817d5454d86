"""run against the expected results of the fixtures: routing exactly, weights, s and y within the fixtures' tolerances."""
from run_cli_tests import check, equal
import tensors

LAYERS = [("k3_tiny", 1), ("k3_tiny", 2), ("k3_tiny", 3), ("k3_quant", 1)]

# Limits of rel-L2 over the tensor and over the worst row (tests/fixtures/README.md, "Tolerances").
LIMITS = {"f32": (2e-6, 5e-6), "bf16": (5e-3, 1.5e-2), "int8": (2e-2, 6e-2)}
TIES_F32 = 1e-5


def compute(ctx, pack, layer, golden, *options, **keywords):
    out = ctx.path("y.safetensors")
    ctx.ok(["run", pack, "--layer", str(layer), "--input", golden, "--output", out] + list(options), **keywords)
    return tensors.read(out)


def compare_routing(found, golden, what):
    equal(found["topk_ids"].dtype, "I32", "dtype of topk_ids")
    equal(found["topk_ids"].shape, golden["topk_ids"].shape, "shape of topk_ids")
    equal(found["topk_ids"].rows(), golden["topk_ids"].rows(), what + ": topk_ids")
    worst = max(abs(a - b) for a, b in zip(found["topk_weights"].values(), golden["topk_weights"].values()))
    check(worst <= 1e-6, "%s: topk_weights differ by %g" % (what, worst))


def compare_values(found, expected, limits, what):
    equal([found.dtype, found.shape], ["F32", expected.shape], what + ": dtype and shape")
    whole, row = tensors.rel_l2(found.values(), expected.values()), tensors.worst_row(found.rows(), expected.rows())
    check(whole <= limits[0] and row <= limits[1], "%s: rel-L2 %.3g (limit %g), worst row %.3g (limit %g)" % (what, whole, limits[0], row, limits[1]))
    return whole


def test_layers(ctx):
    for fixture, layer in LAYERS:
        path = ctx.golden("layer_%d.safetensors" % layer, fixture)
        golden = tensors.read(path)
        for mode, limits in LIMITS.items():
            what = "%s layer %d %s" % (fixture, layer, mode)
            found = compute(ctx, ctx.pack(fixture), layer, path, "--compute", mode)
            equal(sorted(found), ["s", "topk_ids", "topk_weights", "y"], "tensors")
            compare_routing(found, golden, what)
            s = compare_values(found["s"], golden["s_f64"], limits, what + " s")
            y = compare_values(found["y"], golden["y_f64"], limits, what + " y")
            if mode == "int8":
                check(s > 2e-3 and y > 2e-4, "%s: no 8-bit inputs to be seen (s %g, y %g)" % (what, s, y))
            if mode == "bf16":
                check(s > 1e-5 and y > 1e-5, "%s: no rounding to BF16 to be seen (s %g, y %g)" % (what, s, y))


def test_default_is_bf16(ctx):
    path = ctx.golden("layer_1.safetensors")
    default, named = compute(ctx, ctx.pack(), 1, path), compute(ctx, ctx.pack(), 1, path, "--compute", "bf16")
    equal(default["y"].data, named["y"].data, "y")


def test_ties(ctx):
    """Exact ties: higher choice first, then lower id; weights that are all zero, and a renormalisation whose 1e-20 counts."""
    path = ctx.golden("ties_layer_3.safetensors")
    golden = tensors.read(path)
    for mode in LIMITS:
        found = compute(ctx, ctx.pack(), 3, path, "--compute", mode)
        compare_routing(found, golden, "ties " + mode)
    found = compute(ctx, ctx.pack(), 3, path, "--compute", "f32")
    compare_values(found["s"], golden["s_f64"], (TIES_F32, TIES_F32), "ties s")
    compare_values(found["y"], golden["y_f64"], (TIES_F32, TIES_F32), "ties y")


def test_ranks(ctx):
    """Three ranks: each one's partial sum, and all together the whole."""
    for fixture, layer in LAYERS:
        path = ctx.golden("layer_%d_ep3.safetensors" % layer, fixture)
        golden, whole = tensors.read(path), tensors.read(ctx.golden("layer_%d.safetensors" % layer, fixture))
        rows, width = whole["s_f64"].shape
        expected = golden["s_partial_f64"].values()
        for mode, limits in LIMITS.items():
            total = [0.0] * (rows * width)
            for rank in range(3):
                found = compute(ctx, ctx.pack(fixture), layer, path, "--ranks", "3", "--rank", str(rank), "--compute", mode)
                equal(sorted(found), ["s", "topk_ids", "topk_weights"], "tensors of a rank")
                compare_routing(found, whole, "rank %d" % rank)
                part = found["s"].values()
                distance = tensors.rel_l2(part, expected[rank * rows * width:(rank + 1) * rows * width])
                check(distance <= limits[0], "%s layer %d %s rank %d: rel-L2 %g" % (fixture, layer, mode, rank, distance))
                total = [a + b for a, b in zip(total, part)]
            distance = tensors.rel_l2(total, whole["s_f64"].values())
            check(distance <= limits[0], "%s layer %d %s: the ranks' sum is %g away" % (fixture, layer, mode, distance))


def test_any_placement_adds_up(ctx):
    path = ctx.golden("layer_2.safetensors")
    whole = tensors.read(path)
    for ranks in (2, 4):
        total = [0.0] * len(whole["s_f64"].values())
        for rank in range(ranks):
            found = compute(ctx, ctx.pack(), 2, path, "--ranks", str(ranks), "--rank", str(rank), "--placement", "round-robin", "--compute", "f32")
            total = [a + b for a, b in zip(total, found["s"].values())]
        distance = tensors.rel_l2(total, whole["s_f64"].values())
        check(distance <= LIMITS["f32"][0], "%d ranks round-robin: %g" % (ranks, distance))


def test_replicas_are_computed_once(ctx):
    """An expert on two ranks adds to the sum of the first one listed only."""
    import json
    path = ctx.golden("layer_1.safetensors")
    spec = ctx.path("replicas.json")
    with open(spec, "w", encoding="utf-8") as file:
        json.dump({"ranks": 2, "layers": {"*": [[e % 2, 1 - e % 2] for e in range(23)]}}, file)
    total = None
    for rank in range(2):
        part = compute(ctx, ctx.pack(), 1, path, "--ranks", "2", "--rank", str(rank), "--placement", spec, "--compute", "f32")["s"].values()
        total = part if total is None else [a + b for a, b in zip(total, part)]
    distance = tensors.rel_l2(total, tensors.read(path)["s_f64"].values())
    check(distance <= LIMITS["f32"][0], "rel-L2 %g" % distance)


def test_same_bits(ctx):
    """Threads, batch, I/O path, layout, sharding, checks and kernels do not show in the result."""
    for fixture, layer in (("k3_tiny", 2), ("k3_quant", 1)):
        path = ctx.golden("layer_%d.safetensors" % layer, fixture)
        for mode in ("f32", "bf16"):
            reference = compute(ctx, ctx.pack(fixture), layer, path, "--compute", mode)
            variants = [
                (ctx.pack(fixture), ["--threads", "1"], {}),
                (ctx.pack(fixture), ["--threads", "3"], {}),
                (ctx.pack(fixture), ["--io", "mmap"], {}),
                (ctx.pack(fixture), ["--io", "mmap", "--check", "full"], {}),
                (ctx.pack(fixture), ["--check", "none"], {}),
                (ctx.pack(fixture, "--layout", "canonical"), [], {}),
                (ctx.pack(fixture, "--layout", "canonical"), ["--io", "mmap"], {}),
                (ctx.pack(fixture, "--shard-by", "layer"), [], {}),
                (ctx.pack(fixture), [], {"env": {"MOEPACK_KERNELS": "scalar"}}),
                (ctx.pack(fixture), [], {"env": {"OMP_NUM_THREADS": "2"}}),
            ]
            for pack, options, keywords in variants:
                found = compute(ctx, pack, layer, path, "--compute", mode, *options, **keywords)
                for name, tensor in reference.items():
                    check(found[name].data == tensor.data, "%s %s: %s differs with %s %s" % (fixture, mode, name, options, keywords))


def test_rows_one_by_one(ctx):
    """Row i of a batch is a batch of one."""
    path = ctx.golden("layer_1.safetensors")
    reference = compute(ctx, ctx.pack(), 1, path)
    x = tensors.read(path)["x"]
    width = x.shape[1]
    for row in (0, 7, x.shape[0] - 1):
        single = ctx.path("row.safetensors")
        tensors.write(single, {"x": tensors.Tensor("BF16", [1, width], x.data[2 * width * row:2 * width * (row + 1)])})
        found = compute(ctx, ctx.pack(), 1, single)
        for name, tensor in found.items():
            size = len(tensor.data)
            check(tensor.data == reference[name].data[row * size:(row + 1) * size], "row %d: %s differs" % (row, name))
