#!/usr/bin/env python3
"""`moepack synth` as a user calls it: exit codes, messages, reports, and that files do not depend on --jobs.

    cli.py MOEPACK
"""
import filecmp
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

MOEPACK = os.path.abspath(sys.argv[1])
SMALL = "--hidden 64 --latent 32 --intermediate 32 --experts 5 --top-k 2 --layers 2 --vocab 8".split()


def run(*args):
    done = subprocess.run([MOEPACK, "synth", *args], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def expect(code, *args, err=None, out=None):
    found, stdout, stderr = run(*args)
    assert found == code, f"synth {args}: exit code {found}, not {code}\n{stdout}\n{stderr}"
    assert err is None or err in stderr, f"synth {args}: {err!r} is not in\n{stderr}"
    assert out is None or out in stdout, f"synth {args}: {out!r} is not in\n{stdout}"
    return stdout


def shapes(path):
    with open(path, "rb") as f:
        return {name: (entry["dtype"], entry["shape"]) for name, entry in
                json.loads(f.read(struct.unpack("<Q", f.read(8))[0])).items() if name != "__metadata__"}


def same(a, b):
    names = sorted(os.listdir(a))
    assert names == sorted(os.listdir(b))
    match, mismatch, errors = filecmp.cmpfiles(a, b, names, shallow=False)
    return len(match) == len(names)


def usage():
    expect(0, "--help", out="OUT_DIR")
    expect(2)
    expect(2, "kimi_k3")
    expect(2, "kimi_k3", "out", "--hidden", "x")
    expect(2, "kimi_k3", "out", "--shared", "-1")
    expect(2, "kimi_k3", "out", "--latent", "100", err="multiple of 32")
    expect(2, "kimi_k3", "out", "--experts", "3", err="--top-k 4 is more than --experts 3")
    expect(2, "kimi_k3", "out", "--preset", "nothing", err="known: k3")
    expect(2, "kimi_k3", "out", "--tokens", "3", err="--tokens needs --input")
    expect(2, "kimi_k3", "out", "--input", "out/x.safetensors", err="outside OUT_DIR")
    expect(2, "kimi_k3", "out", "--shards", "1000", err="--shards 1000")
    expect(5, "mixtral", "out", err="known: kimi_k3")
    assert os.listdir(".") == [], os.listdir(".")


def writes():
    text = expect(0, "kimi_k3", "a", "--seed", "9", "--jobs", "1", "--input", "x.safetensors", "--tokens", "3", *SMALL)
    assert "seed 9" in text and "x [3, 64]" in text, text
    report = json.loads(expect(0, "kimi_k3", "b", "--seed", "9", "--jobs", "4", "--json", *SMALL))
    assert same("a", "b")
    assert report["family"] == "kimi_k3" and report["seed"] == 9 and report["experts"] == 5 and report["shards"] == 2, report
    assert report["written_bytes"] == sum(os.path.getsize(os.path.join("b", n)) for n in os.listdir("b")), report
    with open("b/model.safetensors.index.json", encoding="utf-8") as f:
        index = json.load(f)
    assert report["tensor_bytes"] == index["metadata"]["total_size"] and report["tensors"] == len(index["weight_map"])
    assert shapes("x.safetensors") == {"x": ("BF16", [3, 64])}
    expect(0, "kimi_k3", "c", "--seed", "10", "--quiet", *SMALL)
    assert not same("a", "c")


def refuses():
    before = sorted(os.listdir("a"))
    expect(6, "kimi_k3", "a", *SMALL, err="a: ")
    assert sorted(os.listdir("a")) == before
    expect(6, "kimi_k3", "d", "--input", "x.safetensors", *SMALL, err="x.safetensors")
    expect(6, "kimi_k3", "d", "--preset", "k3", "--vocab", "2147483647", err="not enough disk space: need ")
    expect(1, "kimi_k3", "no/such/folder", *SMALL, err="no/such")
    report = json.loads(run("kimi_k3", "a", "--json", *SMALL)[1])
    assert report["error"]["exit_code"] == 6, report
    assert not os.path.exists("d") and not os.path.exists("d.partial")


def preset():
    sizes = "--layers 2 --experts 2 --top-k 1 --vocab 2 --dense-intermediate 2 --shared 0 --first-dense 1 --shards 1".split()
    expect(0, "kimi_k3", "e", "--preset", "k3", *sizes)
    found = shapes("e/model-00001-of-000001.safetensors")
    expert = "language_model.model.layers.1.block_sparse_moe.experts.1."
    assert found[expert + "w1.weight_packed"] == ("U8", [3072, 1792])
    assert found[expert + "w2.weight_scale"] == ("U8", [3584, 96])
    shutil.rmtree("e")


def interrupt():
    process = subprocess.Popen([MOEPACK, "synth", "kimi_k3", "f", "--progress", "--hidden", "4096", "--vocab", "100000", "--layers", "1"],
                               stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    process.stderr.read(1)  # first progress: the work has begun
    process.send_signal(signal.SIGINT)
    process.stderr.read()
    code = process.wait(timeout=60)
    assert code == 130, code
    assert not os.path.exists("f") and not os.path.exists("f.partial")


def main():
    folder = tempfile.mkdtemp(prefix="moepack-synth-")
    try:
        os.chdir(folder)
        for test in (usage, writes, refuses, preset, interrupt):
            test()
            print(f"{test.__name__}: ok")
    finally:
        os.chdir("/")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
