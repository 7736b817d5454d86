"""export: the published files again, to the byte."""
import filecmp
import os

from run_cli_tests import check, equal


def files(folder):
    return sorted(os.path.relpath(os.path.join(base, name), folder) for base, _, names in os.walk(folder) for name in names)


def same(ctx, name, pack):
    out = ctx.path("again")
    result = ctx.ok(["export", pack, out])
    check(out in result.out, "directory is not named", result)
    equal(files(out), files(ctx.source(name)), "files")
    for file in files(out):
        check(filecmp.cmp(os.path.join(out, file), os.path.join(ctx.source(name), file), shallow=False), "%s differs" % file)
    check(not os.path.exists(out + ".partial"), "work folder left behind")


def test_round_trips(ctx):
    for name in ("k3_tiny", "k3_quant"):
        for options in ([], ["--layout", "canonical"], ["--shard-by", "layer"]):
            same(ctx, name, ctx.pack(name, *options))


def test_json(ctx):
    out = ctx.path("again")
    report = ctx.json(["export", ctx.pack(), out])
    equal(report["directory"], out, "directory")
    equal(report["files"], len(files(ctx.source())), "files")
    equal(report["written_bytes"], sum(os.path.getsize(os.path.join(out, file)) for file in files(out)), "written_bytes")


def test_existing_output(ctx):
    out = ctx.path("again")
    ctx.ok(["export", ctx.pack(), out])
    os.truncate(os.path.join(out, "config.json"), 3)
    ctx.fails(["export", ctx.pack(), out], 6, out)
    equal(os.path.getsize(os.path.join(out, "config.json")), 3, "size of a file in a refused directory")
    ctx.ok(["export", ctx.pack(), out, "--overwrite"])
    check(filecmp.cmp(os.path.join(out, "config.json"), os.path.join(ctx.source(), "config.json"), shallow=False), "config.json differs")


def test_damaged_container(ctx):
    """Bytes that are not the published ones never get the final name."""
    pack = ctx.copy_pack()
    info = ctx.json(["inspect", pack, "--layer", "3", "--expert", "5"])
    with open(os.path.join(pack, info["shard"]), "r+b") as file:
        file.seek(info["sections"][0]["offset"] + 7)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    out = ctx.path("again")
    error = ctx.error(["export", pack, out], 3)
    equal([error["layer"], error["expert"]], [3, 5], "layer and expert")
    check(not os.path.exists(out) and not os.path.exists(out + ".partial"), "something was left behind")


def test_missing_shard(ctx):
    pack = ctx.copy_pack()
    shard = next(shard["file"] for shard in ctx.json(["inspect", pack])["shards"] if shard["kind"] == "experts")
    os.remove(os.path.join(pack, shard))
    out = ctx.path("again")
    ctx.fails(["export", pack, out], 4, shard)
    check(not os.path.exists(out) and not os.path.exists(out + ".partial"), "something was left behind")
