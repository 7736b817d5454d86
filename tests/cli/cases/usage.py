"""Help, versions, and every way to hold it wrong."""
import os
import re
import subprocess

from run_cli_tests import check, equal

COMMANDS = ["convert", "inspect", "verify", "export", "plan", "run", "route", "synth", "families"]


def test_version(ctx):
    result = ctx.ok(["--version"])
    check(re.fullmatch(r"moepack \d+\.\d+\.\d+ \(container format \d+\.\d+\)\n", result.out), "version line", result)
    equal(result.err, "", "stderr", result)


def test_overview(ctx):
    texts = [ctx.ok(args).out for args in (["help"], ["--help"], ["-h"], ["help", "help"])]
    equal(len(set(texts)), 1, "different texts of the overview")
    for name in COMMANDS + ["kimi_k3", "130 interrupted"]:
        check(name in texts[0], "%s is not in the overview" % name)


def test_help_of_each_command(ctx):
    for name in COMMANDS:
        result = ctx.ok(["help", name])
        equal(result.err, "", "stderr", result)
        check(result.out.startswith("Usage: moepack %s " % name), "first line", result)
        for option in ("--json", "--quiet", "--progress", "--help"):
            check("  %s " % option in result.out, "%s is not in the help" % option, result)
        check(max(map(len, result.out.split("\n"))) <= 130, "lines are too long", result)
        equal(ctx.ok([name, "--help"]).out, result.out, "--help and help differ")
        equal(ctx.ok([name, "-h"]).out, result.out, "-h and help differ")


def test_help_texts(ctx):
    for name in ("verify", "plan", "route"):
        ctx.expect("help_" + name, ctx.ok(["help", name]).out)


def test_contract_options_exist(ctx):
    """The options that the documentation promises."""
    promised = {
        "convert": "layers experts shard-by shard-size codec layout moe-only policy jobs verify dry-run overwrite json allow-nan-scales",
        "inspect": "shards layer expert tensors policy stats json",
        "verify": "rank ranks layers experts jobs json",
        "export": "overwrite json",
        "plan": "ranks rank placement budget json",
        "run": "layer input output device rank ranks placement budget compute policy threads io check overwrite json",
        "route": "layer input balance rule gamma rounds policy ranks placement write-bias write-trace overwrite threads json",
        "synth": "seed hidden experts layers json",
    }
    for name, options in promised.items():
        text = ctx.ok(["help", name]).out
        for option in options.split():
            check(re.search(r"^  --%s\b" % option, text, re.M), "help %s lacks --%s" % (name, option))


def test_no_command(ctx):
    result = ctx.fails([], 2, "no command")
    equal(result.out, "", "stdout", result)
    for name in COMMANDS:
        check(name in result.err, "%s is not listed" % name, result)


def test_unknown_command(ctx):
    result = ctx.fails(["frobnicate"], 2, "unknown command 'frobnicate'")
    equal(result.out, "", "stdout", result)
    for name in COMMANDS:
        check("  %s" % name in result.err, "%s is not listed" % name, result)
    ctx.fails(["help", "frobnicate"], 2, "unknown command")
    equal(ctx.error(["frobnicate"], 2)["message"], "unknown command 'frobnicate'", "message")


def test_unknown_option(ctx):
    for name in COMMANDS:
        result = ctx.fails([name, "--frobnicate"], 2, "unknown option --frobnicate")
        equal(result.out, "", "stdout", result)
        check("Try 'moepack help %s'." % name in result.err, "no pointer to the help", result)
        ctx.fails([name, "-x"], 2, "unknown option -x")


def test_abbreviations_are_refused(ctx):
    """--lay works until there is a second option that begins so: no script may come to depend on it."""
    ctx.fails(["convert", "a", "b", "--lay", "canonical"], 2, "unknown option --lay")
    ctx.fails(["convert", "a", "b", "--exp=1"], 2, "unknown option --exp")
    ctx.fails(["inspect", "a", "--shard"], 2, "unknown option --shard")


def test_values_of_options(ctx):
    ctx.fails(["convert", "a", "b", "--jobs"], 2, "--jobs needs a value")
    ctx.fails(["convert", "a", "b", "--verify=yes"], 2, "--verify", "takes no value")
    for bad in ("0", "-1", "+1", "1x", "", " 1", "1.5", "99999999999999999999999", "4294967296"):
        ctx.fails(["convert", "a", "b", "--jobs", bad], 2, "--jobs")
    for bad in ("0", "-1", "K", "1.5", "1k", "1.1234567G", "1.G", ".5G", "1 G", "1GiBs", "9999999999T", "0x10"):
        ctx.fails(["convert", "a", "b", "--shard-size", bad], 2, "--shard-size")
    ctx.fails(["convert", "a", "b", "--layout", "row"], 2, "'row'", "panel, canonical")
    ctx.fails(["run", "a", "--compute", "bf"], 2, "bf16, f32, int8")


def test_sizes_that_are_accepted(ctx):
    """A size is read before the source is looked for, so a missing source shows that the size was fine."""
    for size in ("1", "4096", "4096B", "1.5G", "22GiB", "24GB", "1.25KiB", "3K", "3Ki", "2T"):
        ctx.no_such_folder(["convert", None, ctx.path("out"), "--shard-size", size])


def test_operands(ctx):
    ctx.fails(["convert"], 2, "convert needs SRC OUT")
    ctx.fails(["convert", "a"], 2, "convert needs SRC OUT")
    ctx.fails(["convert", "a", "b", "c"], 2, "'c' is one operand too many")
    ctx.fails(["inspect"], 2, "inspect needs PACK")
    ctx.fails(["inspect", "a", "b"], 2, "'b' is one operand too many")
    ctx.fails(["help", "convert", "plan"], 2, "one command")


def test_empty_values(ctx):
    """An empty shell variable is a mistake, found before anything is read."""
    ctx.fails(["run", "a", "--layer", "1", "--input", "x", "--output", ""], 2, "--output needs a value")
    ctx.fails(["run", "a", "--layer", "", "--input", "x", "--output", "y"], 2, "--layer needs a value")
    ctx.fails(["convert", "a", "b", "--layers="], 2, "--layers needs a value")
    ctx.fails(["convert", "a", ""], 2, "an operand is empty", "SRC OUT")
    ctx.fails(["verify", ""], 2, "an operand is empty", "PACK")


def test_options_that_belong_together(ctx):
    ctx.fails(["inspect", "a", "--expert", "1"], 2, "--expert needs --layer")
    ctx.fails(["inspect", "a", "--shards", "--tensors"], 2, "different views")
    ctx.fails(["verify", "a", "--rank", "0"], 2, "belong together")
    ctx.fails(["verify", "a", "--ranks", "2", "--rank", "2"], 2, "ranks 0 to 1")
    ctx.fails(["plan", "a"], 2, "--ranks is needed")
    ctx.fails(["plan", "a", "--ranks", "0"], 2, "--ranks")
    ctx.fails(["plan", "a", "--ranks", "2", "--rank", "2"], 2, "ranks 0 to 1")
    ctx.fails(["run", "a"], 2, "--layer, --input and --output")
    needed = ["run", "a", "--layer", "1", "--input", "x", "--output", "y"]
    ctx.fails(needed + ["--rank", "1"], 2, "--rank needs --ranks")
    ctx.fails(needed + ["--ranks", "2"], 2, "--ranks needs --rank")
    ctx.fails(needed + ["--device", "tpu"], 2, "neither cpu nor cuda")


def test_usage_errors_in_json(ctx):
    error = ctx.error(["convert", "a", "--frobnicate"], 2)
    equal(error["message"], "unknown option --frobnicate", "message")
    equal([error[key] for key in ("file", "layer", "expert", "tensor", "offset")], [None] * 5, "places")
    equal(ctx.error(["plan", "a"], 2)["exit_code"], 2, "exit code")


def test_not_in_this_version(ctx):
    """Valid wishes for later versions: unsupported, not a usage error."""
    for codec in ("scales", "zstd"):
        ctx.fails(["convert", ctx.source(), ctx.path("out"), "--codec", codec], 5, codec, "not in this version")
    needed = ["run", "a", "--layer", "1", "--input", "x", "--output", "y"]
    ctx.fails(needed + ["--device", "cuda:0"], 5, "built without CUDA")


def test_output_that_cannot_be_written(ctx):
    """A full disk, a closed pipe and a closed stdout are failures of every command, not of some."""
    pack = ctx.pack()
    commands = [["help"], ["--version"], ["inspect", pack], ["inspect", pack, "--json"], ["plan", pack, "--ranks", "2"], ["verify", pack, "--json"]]
    for args in commands:
        if os.path.exists("/dev/full"):
            with open("/dev/full", "wb") as full:
                ctx.fails(args, 1, "standard output", stdout=full)
        ctx.fails(args, 1, "standard output", stdout=None, preexec_fn=lambda: os.close(1))
        reader, writer = os.pipe()
        os.close(reader)
        ctx.fails(args, 1, "standard output", stdout=writer)
        os.close(writer)


def test_closed_standard_streams_do_not_reach_files(ctx):
    """With stdout closed, a file that a command opens must not get its number: the report would be written into it."""
    out = ctx.path("out.moepack")
    result = ctx.run(["convert", ctx.source(), out], stdout=None, preexec_fn=lambda: os.close(1))
    equal(result.code, 1, "exit code", result)
    ctx.ok(["verify", out])
    again = ctx.path("again.moepack")
    done = subprocess.run([ctx.binary, "convert", ctx.source(), again, "--progress"], stdout=subprocess.DEVNULL,
                          preexec_fn=lambda: (os.close(0), os.close(2)), check=False)
    equal(done.returncode, 0, "exit code with stdin and stderr closed")
    ctx.ok(["verify", again])


def test_control_characters_are_not_printed(ctx):
    """Names come from files and command lines; they must not move the cursor."""
    result = ctx.run(["inspect", ctx.path("bad\x1b[31m\nname")])
    check("\x1b" not in result.err, "an escape character was printed", result)
    equal(result.err.count("\n"), 1, "lines on stderr", result)
