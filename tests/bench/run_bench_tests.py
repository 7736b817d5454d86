"""moepack bench on a layer of a few kilobytes.

Checks what the report says about itself: which results there are, that every ratio is value / limit, that minimum,
median and maximum are in order, that bytes are counted exactly, and that no temporary file is left, whether bench ends
well, fails or is interrupted. No speed is asserted.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

TINY = ["--experts", "4", "--hidden", "128", "--latent", "64", "--intermediate", "96", "--top-k", "2"]
FAST = ["--quick", "--seconds", "0.01", "--buffer", "8M", "--threads", "2"]
RESULT_KEYS = {"name", "value", "unit", "limit", "ratio", "threads", "kernels", "min", "median", "max", "runs"}
IO_NAMES = ["read", "write", "hash", "open", "convert", "verify", "load", "load.fresh", "load.full"]
COMPUTE_NAMES = ["router.t1", "router.t64", "expert.t1", "expert.t1", "expert.t2", "expert.t8", "expert.t64", "expert.t64.int8", "dense.t1",
                 "dense.t64", "layer.t1", "layer.t8", "layer.t64", "layer.t8.skewed"]


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def bench(tool, directory, *arguments, json_wanted=True):
    command = [tool, "bench", *arguments, "--tmpdir", directory] + (["--json"] if json_wanted else [])
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


def report_of(done):
    check(done.returncode == 0, f"exit code {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def check_result(result):
    name = result["name"]
    check(RESULT_KEYS <= result.keys(), f"{name}: keys {RESULT_KEYS - result.keys()} are missing")
    check(result["value"] > 0 and result["limit"] > 0, f"{name}: {result['value']} of {result['limit']}")
    expected = result["value"] / result["limit"]
    check(abs(result["ratio"] - expected) <= 1e-6 * expected, f"{name}: ratio {result['ratio']}, not {expected}")
    check(result["min"] <= result["median"] <= result["max"], f"{name}: minimum, median, maximum out of order")
    check(result["value"] == result["median"], f"{name}: value is not the median")
    check(result["limit_min"] <= result["limit"] <= result["limit_max"], f"{name}: limit out of order")
    check(result["runs"] >= 1, f"{name}: no runs")
    check(result["suspect"] == (result["ratio"] > 1.05), f"{name}: suspect is {result['suspect']} at {result['ratio']}")
    check(result["unit"] in ("GB/s", "GFLOP/s"), f"{name}: unit {result['unit']}")
    check(result["limit_name"] != "", f"{name}: the limit has no name")


def everything(tool, directory):
    """Names, ratios, machine; and the bytes and operations of the shapes asked for."""
    report = report_of(bench(tool, directory, "all", *FAST, *TINY))
    for key in ("processor", "isa", "processors", "memory_bytes", "page_bytes", "last_level_cache_bytes",
                "transparent_huge_pages", "scan_buffer_bytes", "scan_buffer_huge_bytes", "load_average"):
        check(key in report["machine"], f"machine: {key} is missing")
    check(len(report["limits"]) == 10, "five limits, with one thread and with two")
    for limit in report["limits"]:
        check(0 < limit["min"] <= limit["value"] <= limit["max"], f"limit {limit['name']} out of order")
    check([r["name"] for r in report["results"]] == IO_NAMES + COMPUTE_NAMES, str([r["name"] for r in report["results"]]))
    for result in report["results"]:
        check_result(result)
    compute = [r for r in report["results"] if "." in r["name"]]
    check(len({r["kernels"] for r in compute} - {""}) == 1, "one kernel set is named")
    both = [r for r in compute if r["name"] == "expert.t1"]
    check([r["threads"] for r in both] == [2, 1], "decode with all threads, then with one")
    # Three matrices of 96 x 64 weights: half a byte each, and a scale byte for 32.
    expert = 3 * (96 * 64 // 2 + 96 * 64 // 32)
    check(both[0]["bytes"] == 2 * expert, f"2 experts are {2 * expert} bytes, not {both[0]['bytes']}")
    check(both[0]["unit"] == "GB/s" and both[0]["limit_name"] == "read scan", "decode stands beside the read scan")
    batch = next(r for r in compute if r["name"] == "expert.t64")
    flops = 64 * 2 * 3 * 2 * 96 * 64
    check(batch["flops"] == flops and batch["unit"] == "GFLOP/s", f"{flops} operations, not {batch['flops']}")


def one_group(tool, directory):
    """A group alone, one thread, a named kernel set."""
    report = report_of(bench(tool, directory, "router", *FAST, *TINY, "--threads", "1", "--kernels", "scalar"))
    check([r["name"] for r in report["results"]] == ["router.t1", "router.t64"], "router alone")
    for result in report["results"]:
        check_result(result)
        check(result["kernels"] == "scalar" and result["threads"] == 1, "kernels and threads as asked")


def lru_hit_rate(trace, slots):
    """Of the second half. A token's own experts never make room for each other."""
    order, hits, count = [], 0, 0
    for number, token in enumerate(trace):
        present = [e for e in token if e in order]
        for expert in token:
            if expert not in order:
                if len(order) == slots:
                    order.remove(next(e for e in order if e not in token))
                order.append(expert)
        for expert in token:
            order.remove(expert)
            order.append(expert)
        if number >= len(trace) // 2:
            hits, count = hits + len(present), count + len(token)
    return hits / count


def residency(tool, directory):
    """Drawn traces: every policy and budget. A trace of a file: the hit rate of LRU is that of a plain one."""
    shape = ["--experts", "16", "--hidden", "128", "--latent", "64", "--intermediate", "96", "--top-k", "2"]
    report = report_of(bench(tool, directory, "residency", *FAST, *shape))
    rates = {r["name"]: r["hit_rate"] for r in report["results"]}
    check(list(rates) == [f"residency.{trace}.{policy}.{percent}" for trace in ("uniform", "zipf", "locality")
                          for policy in ("lru", "lfu", "pinned") for percent in (25, 50, 75)], str(list(rates)))
    for result in report["results"]:
        check(0 <= result["hit_rate"] <= 1, f"{result['name']}: hit rate {result['hit_rate']}")
        if "no misses" not in result["note"]:
            check_result(result)
    for trace in ("uniform", "zipf", "locality"):
        check(rates[f"residency.{trace}.lru.25"] < rates[f"residency.{trace}.lru.75"], f"{trace}: more memory, fewer hits")
    check(rates["residency.locality.lru.25"] > rates["residency.uniform.lru.25"] + 0.2, "locality does not show")
    check(rates["residency.zipf.lfu.25"] > rates["residency.uniform.lfu.25"] + 0.1, "skew does not show")

    trace = [[(7 * t + i * i * 3) % 12 for i in range(2)] if t % 3 else [t % 5, 5 + t % 4] for t in range(40)]
    with tempfile.TemporaryDirectory(prefix="moepack-bench-test-") as place:
        path = os.path.join(place, "trace.txt")
        with open(path, "w", encoding="ascii") as file:
            file.write("\n" + "\n".join(" ".join(map(str, token)) for token in trace) + "\n\n")
        report = report_of(bench(tool, directory, "residency", *FAST, *TINY[2:-2], "--trace", path))
        check(len(report["results"]) == 9, "three policies, three budgets")
        for result in report["results"]:
            _, source, policy, percent = result["name"].split(".")
            check(source == "file", f"{result['name']}: not the file")
            expected = lru_hit_rate(trace, max(2, 12 * int(percent) // 100))
            check(policy != "lru" or abs(result["hit_rate"] - expected) < 1e-6, f"{result['name']}: {result['hit_rate']}, not {expected}")
        for content, code in (("1 2\n3 x\n", 2), ("1 2\n", 2), ("1 -2\n3 4\n", 2), ("1 2\0\n3 4\n", 2), ("1 99999\n3 4\n", 2)):
            with open(path, "w", encoding="ascii") as file:
                file.write(content)
            done = bench(tool, directory, "residency", *FAST, "--trace", path)
            check(done.returncode == code and "trace.txt" in done.stderr, f"{content!r}: exit code {done.returncode}: {done.stderr}")
        check(bench(tool, directory, "residency", "--trace", path + "2").returncode == 1, "no such file")
        check(bench(tool, directory, "load", "--trace", path).returncode == 2, "a trace for load")


def text(tool, directory):
    done = bench(tool, directory, "dense", *FAST, *TINY, json_wanted=False)
    check(done.returncode == 0, done.stderr)
    for word in ("processor", "ratio", "dense.t1", "dense.t64", "read scan"):
        check(word in done.stdout, f"'{word}' is not printed")


def mistakes(tool, directory):
    """Wrong uses are refused before anything is made."""
    for arguments, code in ((["everything"], 2), ([], 2), (["all", "--seconds", "soon"], 2),
                            (["layer", *FAST, *TINY, "--kernels", "abacus"], 2),
                            (["layer", "--quick", "--buffer", "8M", "--experts", "20000"], 6),
                            (["layer", *FAST, *TINY, "--top-k", "9"], 2)):
        done = bench(tool, directory, *arguments)
        check(done.returncode == code, f"{arguments}: exit code {done.returncode}, not {code}: {done.stderr}")
    missing = os.path.join(directory, "missing")
    done = bench(tool, missing, "load", *FAST, *TINY)
    check(done.returncode in (1, 6), f"no such directory: exit code {done.returncode}")
    check("missing" in done.stderr, "the directory is named")


def wait_for_work(process, directory):
    """Until the temporary directory is there."""
    for _ in range(2000):
        if os.listdir(directory):
            return
        check(process.poll() is None, "bench ended before it made anything")
        time.sleep(0.005)
    raise AssertionError("no temporary directory appeared")


def interrupted(tool, directory):
    """Ctrl-C and SIGTERM, while files are made and while they are measured."""
    for number, delay, what in ((signal.SIGINT, 0.0, "all"), (signal.SIGINT, 0.5, "load"), (signal.SIGTERM, 0.2, "convert")):
        command = [tool, "bench", what, *TINY, "--buffer", "8M", "--seconds", "60", "--tmpdir", directory, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait_for_work(process, directory)
            time.sleep(delay)
            process.send_signal(number)
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
        check(process.returncode == 130, f"{what}: exit code {process.returncode}: {err}")
        check("error" in json.loads(out), "the report is an error")
        check(os.listdir(directory) == [], f"{what}: left behind: {os.listdir(directory)}")


def main():
    tool = sys.argv[1]
    for test in (everything, one_group, residency, text, mistakes, interrupted):
        with tempfile.TemporaryDirectory(prefix="moepack-bench-test-") as directory:
            test(tool, directory)
            check(os.listdir(directory) == [], f"{test.__name__}: left behind: {os.listdir(directory)}")
        print(f"ok {test.__name__}")


if __name__ == "__main__":
    main()
