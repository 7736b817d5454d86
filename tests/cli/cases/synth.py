"""synth: a checkpoint from nothing, through the whole chain."""
import json
import os

from run_cli_tests import check, equal


def test_chain(ctx):
    source, x = ctx.path("k3"), ctx.path("x.safetensors")
    report = ctx.json(["synth", "kimi_k3", source, "--seed", "7", "--experts", "40", "--layers", "3", "--input", x, "--tokens", "9"])
    equal(report["experts"], 80, "experts")
    check(os.path.exists(os.path.join(source, "config.json")), "no config.json")
    pack = ctx.path("k3.moepack")
    converted = ctx.json(["convert", source, pack])
    equal([converted["experts"], converted["tensors"]], [report["experts"], report["tensors"]], "experts and tensors")
    ctx.ok(["verify", pack])
    for layer in ("1", "2"):
        equal(ctx.json(["run", pack, "--layer", layer, "--input", x, "--output", ctx.path("y")])["tokens"], 9, "tokens")
    back = ctx.path("back")
    ctx.ok(["export", pack, back])
    for name in os.listdir(source):
        with open(os.path.join(source, name), "rb") as a, open(os.path.join(back, name), "rb") as b:
            check(a.read() == b.read(), "%s differs" % name)


def test_same_seed_same_bytes(ctx):
    folders = [ctx.path("k3") for _ in range(3)]
    for folder, seed, jobs in zip(folders, ("3", "3", "4"), ("1", "4", "1")):
        ctx.ok(["synth", "kimi_k3", folder, "--seed", seed, "--jobs", jobs, "--quiet"])
    names = sorted(os.listdir(folders[0]))
    equal(names, sorted(os.listdir(folders[1])), "files")

    def content(folder):
        return [open(os.path.join(folder, name), "rb").read() for name in names]
    check(content(folders[0]) == content(folders[1]), "same seed, other bytes")
    check(content(folders[0]) != content(folders[2]), "other seed, same bytes")


def test_refusals(ctx):
    ctx.fails(["synth", "no_such_model", ctx.path("out")], 5, "no_such_model", "kimi_k3")
    source = ctx.path("k3")
    ctx.ok(["synth", "kimi_k3", source, "--quiet"])
    ctx.fails(["synth", "kimi_k3", source], 6, source)
    result = ctx.run(["synth", "kimi_k3", ctx.path("out"), "--latent", "33"])
    equal(result.code, 2, "exit code", result)
    check(json.loads(ctx.run(["synth", "kimi_k3", source, "--json"]).out)["error"]["exit_code"] == 6, "error in JSON")
