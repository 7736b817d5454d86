"""The families beside Kimi K3: conversion and back, layer results against the goldens, and what must be refused."""
import filecmp
import json
import math
import os
import struct

import tensors
from run_cli_tests import check, equal

# Fixture and family.
FIXTURES = [
    ("mixtral", "mixtral"), ("mixtral_tf5", "mixtral"), ("deepseek_moe_16b", "deepseek"), ("deepseek_v2", "deepseek_v2"),
    ("deepseek_v3", "deepseek_v3"), ("qwen3_moe", "qwen3_moe"), ("olmoe", "olmoe"), ("glm4_moe", "glm4_moe"),
    ("kimi_linear", "kimi_linear"), ("kimi_linear_tf5", "kimi_linear"), ("mixtral_tf5_fused", "mixtral"), ("qwen2_moe", "qwen2_moe"),
    ("qwen3_next", "qwen3_next"), ("qwen3_5_moe", "qwen3_5_moe"), ("gpt_oss", "gpt_oss"), ("gpt_oss_bf16", "gpt_oss"),
    ("granitemoe", "granitemoe"), ("llama4", "llama4"), ("dbrx", "dbrx"), ("phimoe", "phimoe"), ("nemotron_h_latent", "nemotron_h"),
    ("nemotron_h_nano", "nemotron_h"), ("switch_transformers", "switch_transformers"), ("switch_transformers_f32", "switch_transformers"),
    ("deepseek_v4", "deepseek_v4"), ("minimax_m2_fp8", "minimax_m2"), ("deepseek_v3_fp8", "deepseek_v3"), ("deepseek_v3_fp8_ue8m0", "deepseek_v3"), ("kimi_k2_int4", "deepseek_v3"),
    ("deepseek_v4_fp4", "deepseek_v4"), ("nemotron_h_nvfp4", "nemotron_h"), ("nemotron_h_nvfp4_ct", "nemotron_h"),
]

# rel-L2 against y_f64 (tests/fixtures/README.md).
LIMITS = {"f32": 2e-6, "bf16": 5e-3}

REFUSED = ["qwen3_vl_moe"]


# ---- helpers

def goldens(ctx, fixture):
    """Layer, path and options of each golden of a fixture."""
    with open(ctx.golden("index.json", fixture), encoding="utf-8") as file:
        listed = json.load(file)["goldens"]
    check(listed, "no goldens of " + fixture)
    for entry in listed:
        options = ["--policy", "weight_from=biased"] if entry.get("variant") == "biased" else []
        if "capacity" in entry:
            continue # test_capacity
        yield entry["prefix"] + ".", ctx.golden(os.path.basename(entry["file"]), fixture), options


def run(ctx, pack, layer, golden, *options):
    out = ctx.path("y.safetensors")
    ctx.ok(["run", pack, "--layer", layer, "--input", golden, "--output", out, "--quiet"] + list(options))
    return tensors.read(out)


def compare(found, golden, limit, what):
    equal(found["topk_ids"].rows(), golden["topk_ids"].rows(), what + ": topk_ids")
    weights = golden["topk_weights"].values()
    worst = max(abs(a - b) for a, b in zip(found["topk_weights"].values(), weights))
    check(worst <= 1e-6 * max(1.0, max(weights)), "%s: topk_weights differ by %g" % (what, worst))
    wanted = golden.get("y_f64_exact", golden["y_f64"])  # codes times scales; y_f64 has them rounded to BF16
    equal(found["y"].shape, wanted.shape, what + ": shape of y")
    distance = tensors.rel_l2(found["y"].values(), wanted.values())
    check(distance <= limit, "%s: y is %.3g away, limit %g" % (what, distance, limit))


def same_bits(a, b, what):
    equal(sorted(a), sorted(b), what + ": tensors")
    for name in a:
        check(a[name].data == b[name].data, "%s: %s differs" % (what, name))


def edited(ctx, fixture, keys=None, change=None):
    """A copy of a checkpoint as one file: config keys replaced (None removes), tensors changed by change(dict)."""
    out, found = ctx.path(fixture), {}
    os.makedirs(out)
    with open(os.path.join(ctx.source(fixture), "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    for key, value in (keys or {}).items():
        config.pop(key, None)
        if value is not None:
            config[key] = value
    for name in sorted(os.listdir(ctx.source(fixture))):
        if name.endswith(".safetensors"):
            found.update(tensors.read(os.path.join(ctx.source(fixture), name)))
    if change:
        change(found)
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    tensors.write(os.path.join(out, "model.safetensors"), found)
    return out


def convert(ctx, source, *options):
    out = ctx.path("edited.moepack")
    ctx.ok(["convert", source, out, "--quiet"] + list(options))
    return out


def refused(ctx, source, code, *parts):
    out = ctx.path("refused.moepack")
    result = ctx.fails(["convert", source, out, "--quiet"], code, *parts)
    check(not os.path.exists(out) and not os.path.exists(out + ".partial"), "something was left behind", result)


def remove(found, part):
    for name in [name for name in found if part in name]:
        del found[name]


def bf16(shape):
    return tensors.Tensor("BF16", shape, b"\x80\x3f" * math.prod(shape))


# ---- what works

def test_round_trips(ctx):
    for fixture, family in FIXTURES:
        for layout in ("panel", "canonical"):
            pack = ctx.pack(fixture, "--layout", layout)
            equal(ctx.json(["inspect", pack])["family"], family, "family")
            ctx.ok(["verify", pack, "--quiet"])
            again = ctx.path("again")
            ctx.ok(["export", pack, again, "--quiet"])
            names = sorted(os.listdir(ctx.source(fixture)))
            equal(sorted(os.listdir(again)), names, "files")
            equal(filecmp.cmpfiles(ctx.source(fixture), again, names, shallow=False), (names, [], []), "files that match")


def test_layers(ctx):
    """Every golden, both precisions; the layout does not show in the result."""
    for fixture, _ in FIXTURES:
        for layer, path, options in goldens(ctx, fixture):
            golden = tensors.read(path)
            for mode, limit in LIMITS.items():
                what = "%s %s %s" % (fixture, os.path.basename(path), mode)
                found = run(ctx, ctx.pack(fixture, "--layout", "panel"), layer, path, "--compute", mode, *options)
                compare(found, golden, limit, what)
                other = run(ctx, ctx.pack(fixture, "--layout", "canonical"), layer, path, "--compute", mode, *options)
                same_bits(found, other, what)
                for kernels in kernel_families(ctx):
                    out = ctx.path("y.safetensors")
                    ctx.ok(["run", ctx.pack(fixture, "--layout", "panel"), "--layer", layer, "--input", path, "--output", out, "--quiet",
                            "--compute", mode] + options, env={"MOEPACK_KERNELS": kernels})
                    same_bits(found, tensors.read(out), "%s with %s kernels" % (what, kernels))


def kernel_families(ctx):
    """Those that this processor runs: the scalar one always, AVX2 where it is there."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = file.read()
    return ["scalar"] + (["avx2"] if " avx2 " in flags and " fma " in flags else [])


def test_capacity(ctx):
    """Switch drops tokens, counted for each sequence: the same ones as the official module, and their y is 0."""
    for fixture in ("switch_transformers", "switch_transformers_f32"):
        with open(ctx.golden("index.json", fixture), encoding="utf-8") as file:
            listed = [entry for entry in json.load(file)["goldens"] if "capacity" in entry]
        check(listed, "no goldens with a capacity")
        for entry in listed:
            golden = tensors.read(ctx.golden(os.path.basename(entry["file"]), fixture))
            x, path = golden["x"], ctx.path("sequences.safetensors")
            tensors.write(path, {"x": tensors.Tensor(x.dtype, entry["batch"] + x.shape[1:], x.data)})
            out, layer = ctx.path("y.safetensors"), entry["prefix"] + "."
            for mode, limit in LIMITS.items():
                what = "%s %s %s" % (fixture, entry["file"], mode)
                report = ctx.json(["run", ctx.pack(fixture, "--layout", "panel"), "--layer", layer, "--input", path, "--output", out,
                                   "--overwrite", "--capacity", "config", "--compute", mode])
                found = tensors.read(out)
                equal(found["kept"].values(), golden["kept"].values(), what + ": kept")
                equal(found["kept"].shape, entry["batch"], what + ": shape of kept")
                equal(found["topk_ids"].values(), golden["topk_ids"].values(), what + ": topk_ids")
                distance = tensors.rel_l2(found["y"].values(), golden["y_f64"].values())
                check(distance <= limit, "%s: y is %.3g away" % (what, distance))
                equal(report["capacity"], "per_sequence %d" % entry["capacity"], what + ": capacity")
                equal(report["dropped"], entry["dropped_tokens"], what + ": dropped")


def test_token_ids(ctx):
    """A layer that routes by token ids says so where they are missing or wrong."""
    layer, path, _ = next(iter(goldens(ctx, "deepseek_v4")))
    pack, golden = ctx.pack("deepseek_v4", "--layout", "panel"), tensors.read(path)
    without, wrong = ctx.path("without.safetensors"), ctx.path("wrong.safetensors")
    tensors.write(without, {"x": golden["x"]})
    ids = golden["token_ids"]
    tensors.write(wrong, {"x": golden["x"], "token_ids": tensors.Tensor(ids.dtype, ids.shape, b"\xff\xff\xff\x7f" + ids.data[4:])})
    ctx.fails(["run", pack, "--layer", layer, "--input", without, "--output", ctx.path("y.safetensors")], 4, "token_ids")
    ctx.fails(["run", pack, "--layer", layer, "--input", wrong, "--output", ctx.path("y.safetensors")], 2, "token 0")


def test_biased_weights_are_another_result(ctx):
    """The goldens of the remote code tell the two apart; the default is the unbiased weight."""
    layer, path, _ = next(g for g in goldens(ctx, "kimi_linear") if g[2])
    found = run(ctx, ctx.pack("kimi_linear", "--layout", "panel"), layer, path, "--compute", "f32")
    distance = tensors.rel_l2(found["y"].values(), tensors.read(path)["y_f64"].values())
    check(distance > 0.01, "no difference to be seen: %g" % distance)


def test_goldens_tell_policies_apart(ctx):
    """Near misses of a policy choose other experts: these goldens are no proof of anything else."""
    for fixture, number, override in (("deepseek_v3", 1, "group_mask=zero"), ("deepseek_v3", 1, "group_score=max"), ("deepseek_v2", 0, "group_score=top2_sum"),
                                      ("deepseek_v3", 0, "groups_kept=4"), ("glm4_moe", 0, "select=score")):
        layer, path, _ = list(goldens(ctx, fixture))[number]
        found = run(ctx, ctx.pack(fixture, "--layout", "panel"), layer, path, "--compute", "f32", "--policy", override)
        check(found["topk_ids"].rows() != tensors.read(path)["topk_ids"].rows(), "%s: %s changes nothing" % (fixture, override))


def test_parts(ctx):
    """The ranks' sums make the whole: one layer of every fixture."""
    for fixture, _ in FIXTURES:
        layer, path, options = next(iter(goldens(ctx, fixture)))
        pack = ctx.pack(fixture, "--layout", "panel")
        options = ["--compute", "f32"] + options
        whole = run(ctx, pack, layer, path, *options)["s"].values()
        total = [0.0] * len(whole)
        for rank in range(3):
            part = run(ctx, pack, layer, path, "--ranks", "3", "--rank", str(rank), *options)["s"].values()
            total = [a + b for a, b in zip(total, part)]
        distance = tensors.rel_l2(total, whole)
        check(distance <= LIMITS["f32"], "%s: the ranks' sum is %g away" % (fixture, distance))


def test_f32_experts(ctx):
    """Widened to F32 the weights are the same numbers, and so is the result."""
    def widen(found):
        for name, tensor in found.items():
            if ".experts." in name:
                halves = struct.unpack("<%dH" % (len(tensor.data) // 2), tensor.data)
                found[name] = tensors.Tensor("F32", tensor.shape, b"".join(struct.pack("<HH", 0, half) for half in halves))

    for fixture in ("mixtral_tf5", "qwen3_moe", "deepseek_v2"):
        layer, path, _ = next(iter(goldens(ctx, fixture)))
        source = edited(ctx, fixture, change=widen)
        expected = run(ctx, ctx.pack(fixture, "--layout", "panel"), layer, path, "--compute", "f32")
        for layout in ("panel", "canonical"):
            pack = convert(ctx, source, "--layout", layout)
            same_bits(run(ctx, pack, layer, path, "--compute", "f32"), expected, "%s as F32, %s" % (fixture, layout))
            compare(run(ctx, pack, layer, path), tensors.read(path), LIMITS["bf16"], fixture + " as F32, default compute")


def test_kimi_k2_is_deepseek_v3(ctx):
    pack = convert(ctx, edited(ctx, "deepseek_v3", {"model_type": "kimi_k2"}))
    equal(ctx.json(["inspect", pack])["family"], "deepseek_v3", "family")
    layer, path, _ = next(iter(goldens(ctx, "deepseek_v3")))
    compare(run(ctx, pack, layer, path, "--compute", "f32"), tensors.read(path), LIMITS["f32"], "kimi_k2")


def test_keys_that_libraries_leave_out(ctx):
    """transformers saves V3 without scoring_func and topk_method, and calls the number of experts by other names."""
    pack = convert(ctx, edited(ctx, "deepseek_v3", {"scoring_func": None, "topk_method": None, "moe_layer_freq": None,
                                                    "n_routed_experts": None, "num_local_experts": 24}))
    layer, path, _ = list(goldens(ctx, "deepseek_v3"))[1]
    compare(run(ctx, pack, layer, path, "--compute", "f32"), tensors.read(path), LIMITS["f32"], "bare config")
    pack = convert(ctx, edited(ctx, "qwen3_moe", {"num_local_experts": None, "num_experts": 23, "decoder_sparse_step": None,
                                                  "shared_expert_intermediate_size": 0}))
    layer, path, _ = next(iter(goldens(ctx, "qwen3_moe")))
    compare(run(ctx, pack, layer, path, "--compute", "f32"), tensors.read(path), LIMITS["f32"], "published names")


def test_prediction_layer(ctx):
    """A layer behind the last is a block of its own, with the same results."""
    pack = convert(ctx, edited(ctx, "deepseek_v3", {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}))
    _, path, _ = list(goldens(ctx, "deepseek_v3"))[1]
    compare(run(ctx, pack, "mtp.0", path, "--compute", "f32"), tensors.read(path), LIMITS["f32"], "mtp.0")


def test_prediction_layer_that_was_dropped(ctx):
    """Saved copies lack it and keep the key: told, not refused. One that is there in part is refused."""
    out = ctx.path("glm.moepack")
    result = ctx.ok(["convert", ctx.source("glm4_moe"), out])
    check("num_nextn_predict_layers is 1" in result.err, "no warning", result)
    source = edited(ctx, "glm4_moe", change=lambda found: found.update({"model.layers.3.eh_proj.weight": bf16([64, 128])}))
    refused(ctx, source, 5, "num_nextn_predict_layers is 1", "layer 3")
    refused(ctx, edited(ctx, "glm4_moe", {"num_hidden_layers": 2, "num_nextn_predict_layers": 0}), 5, "layer 2")


def test_greedy_ignores_groups(ctx):
    """DeepSeek-V2-Lite's method: plain top-k of the softmax, whatever n_group says, times the scale. Recomputed here."""
    layer, path, _ = next(iter(goldens(ctx, "deepseek_v2")))
    source = edited(ctx, "deepseek_v2", {"topk_method": "greedy"})
    found = run(ctx, convert(ctx, source), layer, path, "--compute", "f32")
    gate = tensors.read(os.path.join(source, "model.safetensors"))[layer + "gate.weight"].rows()
    golden, other = tensors.read(path), 0
    for x, ids, weights, grouped in zip(golden["x"].rows(), found["topk_ids"].rows(), found["topk_weights"].rows(), golden["topk_ids"].rows()):
        logits = [math.fsum(a * b for a, b in zip(x, row)) for row in gate]
        total = math.fsum(math.exp(v) for v in logits)
        equal(ids, sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:3], "topk_ids")
        for expert, weight in zip(ids, weights):
            expected = 16.0 * math.exp(logits[expert]) / total
            check(abs(weight - expected) <= 1e-5 * expected, "weight %g, expected %g" % (weight, expected))
        other += ids != grouped
    check(other > 0, "groups would have chosen the same experts everywhere")


def test_layer_rules(ctx):
    """decoder_sparse_step counts from 1; mlp_only_layers are dense whatever the step says."""
    path = list(goldens(ctx, "qwen3_moe"))[0][1]
    source = edited(ctx, "qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": []},
                    lambda found: remove(found, "layers.2.mlp.experts.") or remove(found, "layers.2.mlp.gate.weight"))
    pack = convert(ctx, source)
    compare(run(ctx, pack, "1", path, "--compute", "f32"), tensors.read(path), LIMITS["f32"], "step 2")
    ctx.fails(["run", pack, "--layer", "2", "--input", path, "--output", ctx.path("y")], 2, "2")
    refused(ctx, edited(ctx, "qwen3_moe", {"decoder_sparse_step": 2}), 3, "makes layer 2 dense", "decoder_sparse_step 2", "mlp_only_layers")
    refused(ctx, edited(ctx, "qwen3_moe", {"mlp_only_layers": [0, 2]}), 3, "makes layer 2 dense")
    refused(ctx, edited(ctx, "qwen3_moe", {"mlp_only_layers": []}), 5, "layer 0, tensor model.layers.0.mlp.")
    refused(ctx, edited(ctx, "qwen3_moe", {"mlp_only_layers": []}, lambda found: remove(found, "layers.0.mlp.")), 4, "model.layers.0.mlp.gate.weight")
    refused(ctx, edited(ctx, "kimi_linear", {"mlp_layer_types": ["dense", "dense", "sparse"]}), 3, "makes layer 1 dense")
    convert(ctx, edited(ctx, "kimi_linear", {"first_k_dense_replace": None, "moe_layer_freq": None}))


def test_mixed_forms(ctx):
    """Any form for any matrix of any expert, in any family: converts, comes back and computes the same values."""
    def widened(found, name, dtype):
        tensor = found[name]
        values = tensor.values()
        found[name] = tensors.f32(tensor.shape, values) if dtype == "F32" else tensors.Tensor(dtype, tensor.shape, struct.pack("<%de" % len(values), *values))

    def mixed(found):
        experts = "model.layers.1.mlp.experts."
        widened(found, experts + "3.up_proj.weight", "F32")
        widened(found, "model.layers.1.mlp.shared_experts.up_proj.weight", "F32")
        for name in [name for name in found if name.startswith(experts + "2.")]:
            widened(found, name, "F32")

    golden = ctx.golden("layer_1.safetensors", "deepseek_v3")
    plain = run(ctx, ctx.pack("deepseek_v3"), "1", golden)
    source = edited(ctx, "deepseek_v3", change=mixed)
    pack = convert(ctx, source)
    ctx.ok(["verify", pack, "--quiet"])
    again = ctx.path("again")
    ctx.ok(["export", pack, again, "--quiet"])
    check(filecmp.cmp(os.path.join(source, "model.safetensors"), os.path.join(again, "model.safetensors"), False), "exported bytes differ")
    same_bits(run(ctx, pack, "1", golden), plain, "mixed forms")


# ---- what must be refused

def test_refused_families(ctx):
    for name in REFUSED:
        refused(ctx, edited(ctx, "olmoe", {"model_type": name}), 5, "\"%s\" is not supported" % name)
    refused(ctx, edited(ctx, "olmoe", {"model_type": "llama"}), 5, "\"llama\" is not known", "deepseek_v3")


def as_type(dtype, size):
    """Turns every expert matrix into another type, filled with zeros."""
    def change(found):
        for name, tensor in list(found.items()):
            if ".experts." in name:
                found[name] = tensors.Tensor(dtype, tensor.shape, bytes(size * math.prod(tensor.shape)))
    return change


def test_refused_storage(ctx):
    """Nothing is taken for a form that it is not."""
    def scaled_twice(found):
        for name in [name for name in found if name.endswith("weight_scale_inv")]:
            found[name[:-4]] = found[name]

    def zero_points(found):
        found["model.layers.1.mlp.experts.3.up_proj.weight_zero_point"] = tensors.Tensor("I32", [8, 3], bytes(96))

    fp8 = {"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    int8 = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    cases = [
        ("deepseek_v3", {}, as_type("F8_E5M2", 1), ("F8_E5M2", "in no storage form of deepseek_v3")),
        ("deepseek_v3_fp8", {}, scaled_twice, ("layer 1", "no known form", "weight_scale_inv F32")),
        ("deepseek_v3", {"quantization_config": fp8}, None, ("fmt is \"e5m2\"",)),
        ("glm4_moe", {"quantization_config": int8}, None, ("format is \"int-quantized\"",)),
        ("kimi_k2_int4", {}, zero_points, ("no storage form of deepseek_v3", "weight_zero_point")),
        ("mixtral_tf5", {}, lambda found: found.update({"model.layers.0.mlp.experts.gate_up_proj": bf16([5, 80, 48])}), ("two ways",)),
        ("qwen3_moe", {}, lambda found: found.update({"model.layers.1.mlp.experts.gate_up_proj": bf16([23, 32, 64])}), ("two ways",)),
    ]
    for fixture, keys, change, parts in cases:
        refused(ctx, edited(ctx, fixture, keys, change), 5, *parts)


def test_refused_tensors(ctx):
    """A part of the block that would be left out is not left out silently."""
    for fixture, name, shape in (
            ("qwen3_moe", "model.layers.1.mlp.shared_expert_gate.weight", [1, 64]),
            ("qwen3_moe", "model.layers.1.mlp.shared_expert.gate_proj.weight", [16, 64]),
            ("olmoe", "model.layers.0.mlp.gate.bias", [16]),
            ("olmoe", "model.layers.0.mlp.experts.0.gate_proj.bias", [24]),
            ("mixtral", "model.layers.0.block_sparse_moe.e_score_correction_bias", [6]),
            ("glm4_moe", "model.layers.1.mlp.shared_experts.gate_proj.weight_scale", [24])):
        refused(ctx, edited(ctx, fixture, change=lambda found: found.update({name: bf16(shape)})), 5, name)
    refused(ctx, edited(ctx, "deepseek_v2", change=lambda found: found.update({"model.layers.1.mlp.gate.e_score_correction_bias": bf16([12])})), 3,
            "topk_method", "no such tensor")
    refused(ctx, edited(ctx, "deepseek_v3", change=lambda found: remove(found, "layers.2.mlp.gate.e_score")), 4,
            "model.layers.2.mlp.gate.e_score_correction_bias")
    refused(ctx, edited(ctx, "deepseek_v3", {"n_shared_experts": 2}), 3, "shared_experts")
    refused(ctx, edited(ctx, "deepseek_v3", {"n_shared_experts": None}), 3, "n_shared_experts")


def test_damaged_checkpoints(ctx):
    """Of every fixture, one expert tensor and the router: absent, of another shape, of another type."""
    def experts(found):
        return sorted(name for name in found if "shared" not in name and "input_scale" not in name and ("experts" in name or "put_linear" in name))

    def routers(found):
        return sorted(name for name in found if name.endswith(("mlp.gate.weight", "moe.gate.weight", "mixer.gate.weight", "ffn.gate.weight",
                                                               "router.weight", "router.layer.weight", "classifier.weight")))

    def longer(tensor):
        rows = tensor.shape[0]
        return tensors.Tensor(tensor.dtype, [rows + 1] + tensor.shape[1:], tensor.data + tensor.data[:len(tensor.data) // rows])

    def retyped(tensor):
        return tensors.Tensor("I16", tensor.shape, bytes(2 * math.prod(tensor.shape)))

    for fixture, _ in FIXTURES:
        for pick in (experts, routers):
            for code, damage in ((4, None), (3, longer), (5, retyped)):
                named = []

                def change(found):
                    name = pick(found)[0]
                    named.append(name)
                    tensor = found.pop(name)
                    if damage:
                        found[name] = damage(tensor)

                refused(ctx, edited(ctx, fixture, change=change), code, named and named[0] or "")


def test_refused_configs(ctx):
    refused(ctx, edited(ctx, "deepseek_v2", {"norm_topk_prob": True}), 5, "norm_topk_prob is true")
    refused(ctx, edited(ctx, "qwen3_moe", {"num_experts_per_tok": 24}), 3, "num_experts_per_tok is 24")
    refused(ctx, edited(ctx, "qwen3_moe", {"num_experts": 24}), 3, "num_experts is 24, but num_local_experts is 23")


# ---- the list

def test_list(ctx):
    report = ctx.json(["families"])
    equal(sorted(report), ["families"], "keys")
    names = [family["name"] for family in report["families"]]
    equal(len(names), len(set(names)), "names that occur once")
    for _, family in FIXTURES:
        check(family in names, "%s is not listed" % family)
    for family in report["families"]:
        equal(sorted(family), ["about", "forms", "model_types", "name", "tested"], "keys of a family")
        check(all(family.values()), "an empty field: %s" % family)
        check(any(form.startswith("bf16") for form in family["forms"]), "no BF16 experts: %s" % family)
    text = ctx.ok(["families"])
    for part in names + ["kimi_k2", "mxfp4, nvfp4, int4", "transformers 5.24.0"]:
        check(part in text.out, "%r is not in the text" % part, text)
    ctx.fails(["families", "kimi_k3"], 2)
