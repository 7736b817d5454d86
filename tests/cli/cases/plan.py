"""plan: what each rank reads, and placement files good and bad."""
import json
import os

from run_cli_tests import check, equal


def placement(ctx, ranks, layers):
    path = ctx.path("placement.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"ranks": ranks, "layers": layers}, file)
    return path


def test_table(ctx):
    result = ctx.ok(["plan", ctx.pack(), "--ranks", "3"])
    ctx.expect("plan_k3_tiny", result.out)
    check("imbalance" in result.out, "no imbalance", result)


def test_json(ctx):
    pack = ctx.pack()
    report = ctx.json(["plan", pack, "--ranks", "3"])
    equal([rank["rank"] for rank in report["ranks"]], [0, 1, 2], "ranks")
    # 23 experts on 3 ranks: 8, 8, 7 in each of three layers.
    equal([rank["experts"] for rank in report["ranks"]], [24, 24, 21], "experts")
    sizes = {shard["file"]: shard["bytes"] for shard in ctx.json(["inspect", pack])["shards"]}
    for rank in report["ranks"]:
        equal(rank["bytes_wanted"], rank["expert_bytes"] + rank["dense_bytes"], "bytes_wanted")
        check(sum(read["length"] for read in rank["reads"]) >= rank["bytes_wanted"], "reads are shorter than what is wanted")
        order = [(read["file"], read["offset"]) for read in rank["reads"]]
        equal(len(set(order)), len(order), "reads that begin at the same place")
        last = {}
        for read in rank["reads"]:
            check(read["offset"] >= last.get(read["file"], 0), "reads are not sorted or overlap: %r" % read)
            last[read["file"]] = read["offset"] + read["length"]
            check(last[read["file"]] <= sizes[read["file"]], "read behind the end of %s" % read["file"])
    bytes_wanted = [rank["bytes_wanted"] for rank in report["ranks"]]
    check(abs(report["imbalance"] - max(bytes_wanted) / (sum(bytes_wanted) / 3)) < 1e-12, "imbalance %r" % report["imbalance"])


def test_expert_bytes_add_up(ctx):
    pack = ctx.pack()
    whole = ctx.json(["plan", pack, "--ranks", "1"])
    equal(whole["imbalance"], 1.0, "imbalance of one rank")
    for ranks in (2, 5, 23, 40):
        parts = ctx.json(["plan", pack, "--ranks", str(ranks)])["ranks"]
        equal(sum(part["expert_bytes"] for part in parts), whole["ranks"][0]["expert_bytes"], "expert bytes of %d ranks" % ranks)
        equal(sum(part["experts"] for part in parts), 69, "experts of %d ranks" % ranks)


def test_one_rank(ctx):
    pack = ctx.pack()
    whole = ctx.json(["plan", pack, "--ranks", "3"])
    one = ctx.json(["plan", pack, "--ranks", "3", "--rank", "1"])
    equal(one["ranks"], [whole["ranks"][1]], "rank 1")
    equal(one["imbalance"], whole["imbalance"], "imbalance")
    text = ctx.ok(["plan", pack, "--ranks", "3", "--rank", "1"]).out
    for read in one["ranks"][0]["reads"]:
        check(str(read["offset"]) in text and str(read["length"]) in text, "%r is not listed:\n%s" % (read, text))


def test_round_robin(ctx):
    parts = ctx.json(["plan", ctx.pack(), "--ranks", "4", "--placement", "round-robin"])["ranks"]
    equal([part["experts"] for part in parts], [18, 18, 18, 15], "experts")


def test_placement_files(ctx):
    pack = ctx.pack()
    linear = ctx.json(["plan", pack, "--ranks", "2"])
    same = placement(ctx, 2, {"*": [[0]] * 12 + [[1]] * 11})
    equal(ctx.json(["plan", pack, "--ranks", "2", "--placement", same]), linear, "the file of the linear placement")
    replicas = placement(ctx, 2, {"*": [[0, 1]] + [[0]] * 11 + [[1]] * 11, "2": [[e % 2] for e in range(23)]})
    parts = ctx.json(["plan", pack, "--ranks", "2", "--placement", replicas])["ranks"]
    equal([part["experts"] for part in parts], [36, 35], "experts with replicas and a layer of its own")


def test_broken_placements(ctx):
    """Each says what is wrong and where: file, layer, expert, rank."""
    pack = ctx.pack()
    good = [[0]] * 12 + [[1]] * 11
    cases = [
        (placement(ctx, 2, {"*": good[:-1]}), ["22", "23"]),
        (placement(ctx, 2, {"*": good + [[0]]}), ["24", "23"]),
        (placement(ctx, 2, {"*": good[:5] + [[]] + good[6:]}), ["expert 5"]),
        (placement(ctx, 2, {"*": good[:5] + [[2]] + good[6:]}), ["expert 5", "2"]),
        (placement(ctx, 2, {"*": good[:5] + [[-1]] + good[6:]}), ["expert 5"]),
        (placement(ctx, 2, {"*": good[:5] + ["0"] + good[6:]}), ["expert 5"]),
        (placement(ctx, 2, {"1": good, "2": good}), ["layer 3"]),
        (placement(ctx, 2, {"*": good, "9": good}), ["9"]),
        (placement(ctx, 3, {"*": good}), ["3", "2"]),
        (placement(ctx, "2", {"*": good}), ["ranks"]),
        (placement(ctx, 2, [good]), ["layers"]),
    ]
    for path, parts in cases:
        result = ctx.run(["plan", pack, "--ranks", "2", "--placement", path])
        check(result.code in (2, 3), "exit code %d" % result.code, result)
        for part in parts + [os.path.basename(path)]:
            check(part in result.err, "%r is not in the error line" % part, result)
    text = ctx.path("broken.json")
    with open(text, "w", encoding="utf-8") as file:
        file.write('{"ranks": 2, "layers": {')
    result = ctx.run(["plan", pack, "--ranks", "2", "--placement", text])
    check(result.code in (2, 3) and "broken.json" in result.err, "broken JSON", result)
    result = ctx.run(["plan", pack, "--ranks", "2", "--placement", ctx.path("nowhere.json")])
    check(result.code in (1, 2, 4) and "nowhere.json" in result.err, "missing file", result)


def test_budget(ctx):
    pack = ctx.pack()
    wanted = ctx.json(["plan", pack, "--ranks", "3"])["ranks"][0]["bytes_wanted"]
    ctx.ok(["plan", pack, "--ranks", "3", "--budget", str(wanted)])
    error = ctx.error(["plan", pack, "--ranks", "3", "--budget", str(wanted - 1)], 6)
    check(str(wanted) in error["message"] or "need" in error["message"], "message: " + error["message"])
    ctx.fails(["plan", pack, "--ranks", "3", "--budget", "1K"], 6)


def test_plan_needs_the_index_alone(ctx):
    pack = ctx.path("k3.moepack")
    os.mkdir(pack)
    with open(os.path.join(ctx.pack(), "index.mpk"), "rb") as source, open(os.path.join(pack, "index.mpk"), "wb") as out:
        out.write(source.read())
    equal(ctx.json(["plan", pack, "--ranks", "3"]), ctx.json(["plan", ctx.pack(), "--ranks", "3"]), "plan")


def test_subset(ctx):
    """A rank whose experts are not all in the container cannot be planned; one whose are can."""
    pack = ctx.pack("k3_tiny", "--experts", "0-11")
    one = ctx.json(["plan", pack, "--ranks", "2", "--rank", "0"])
    equal(one["ranks"][0]["experts"], 36, "experts of rank 0")
    equal(one["imbalance"], None, "imbalance")
    ctx.fails(["plan", pack, "--ranks", "2"], 4, "expert 12")


def test_many_ranks(ctx):
    """One rank of any number is planned at once; a list has a limit."""
    pack, most = ctx.pack(), 2 ** 32 - 1
    dense = ctx.json(["plan", pack, "--ranks", "1"])["ranks"][0]["dense_bytes"]
    listed = ctx.json(["plan", pack, "--ranks", "40"])
    for rule in ("linear", "round-robin"):
        one = ctx.json(["plan", pack, "--ranks", "40", "--rank", "30", "--placement", rule])
        equal(one["ranks"], [listed["ranks"][30]], "rank without experts")
        equal([one["ranks"][0]["experts"], one["ranks"][0]["bytes_wanted"]], [0, dense], "what it reads")
        check(abs(one["imbalance"] - listed["imbalance"]) < 1e-12, "imbalance %r, %r in the list" % (one["imbalance"], listed["imbalance"]))
        for rank in (0, 22, 23, most - 1):
            one = ctx.json(["plan", pack, "--ranks", str(most), "--rank", str(rank), "--placement", rule], timeout=5)
            equal([one["ranks"][0]["rank"], one["ranks"][0]["experts"]], [rank, 3 if rank < 23 else 0], "rank and experts")
            check(one["imbalance"] > 1, "imbalance %r" % one["imbalance"])
    path = placement(ctx, most, {"*": [[most - 1]] * 23})
    one = ctx.json(["plan", pack, "--ranks", str(most), "--rank", str(most - 1), "--placement", path], timeout=5)
    equal([one["ranks"][0]["experts"], one["imbalance"]], [69, None], "a placement file of many ranks")
    result = ctx.ok(["plan", pack, "--ranks", str(most), "--rank", "0", "--placement", path], timeout=5)
    check("imbalance not known" in result.out and "too many" in result.out, "no reason", result)
    for ranks in (most, 4097):
        ctx.fails(["plan", pack, "--ranks", str(ranks)], 2, "4096", "--rank R", timeout=5)


def loads(ctx, *reports):
    path = ctx.path("load.json")
    with open(path, "w", encoding="utf-8") as file:
        for layer, load in reports:
            json.dump({"layer": layer, "load": load, "tokens": 1}, file)
            file.write("\n")
    return path


def test_balance(ctx):
    """From the router's own report to a placement that plan and run read again."""
    pack, trace = ctx.pack(), ctx.path("trace.json")
    with open(trace, "w", encoding="utf-8") as file:
        for layer in ("1", "2", "1"):
            file.write(ctx.ok(["route", pack, "--layer", layer, "--input", ctx.golden("layer_%s.safetensors" % layer), "--json"]).out)
    out = ctx.path("placement.json")
    report = ctx.json(["plan", pack, "--ranks", "3", "--placement", "balance", "--trace", trace, "--write-placement", out])
    equal([entry["layer"] for entry in report["balance"]], [1, 2], "layers")
    for entry in report["balance"]:
        check(entry["imbalance"] <= entry["imbalance_linear"], "worse than linear: %r" % entry)
        equal((entry["replicas"], entry["imbalance_divided"]), (0, entry["imbalance"]), "replicas and divided")
    check(any(entry["imbalance"] < entry["imbalance_linear"] for entry in report["balance"]), "nothing was gained: %r" % report["balance"])
    counts = [rank["experts"] for rank in report["ranks"]]
    check(max(counts) - min(counts) <= 1 and sum(counts) == 69, "experts %r" % counts)
    again = ctx.json(["plan", pack, "--ranks", "3", "--placement", out])
    equal(again["ranks"], report["ranks"], "ranks of the written file")
    ctx.fails(["plan", pack, "--ranks", "3", "--placement", "balance", "--trace", trace, "--write-placement", out], 6, out)
    text = ctx.ok(["plan", pack, "--ranks", "3", "--placement", "balance", "--trace", trace]).out
    check("balanced" in text and "linear" in text, text)


def test_balance_replicas(ctx):
    pack = ctx.pack()
    trace = loads(ctx, (1, [1000] + [10] * 22))
    alone = ctx.json(["plan", pack, "--ranks", "3", "--placement", "balance", "--trace", trace])
    largest = max(rank["bytes_wanted"] for rank in alone["ranks"])
    budget = largest + 3 * (alone["ranks"][0]["expert_bytes"] // alone["ranks"][0]["experts"] + 4096)
    report = ctx.json(["plan", pack, "--ranks", "3", "--placement", "balance", "--trace", trace, "--budget", str(budget)])
    entry = report["balance"][0]
    check(entry["replicas"] == 2 and entry["imbalance_divided"] < 1.1 < entry["imbalance"], "%r" % entry)
    check(all(rank["bytes_wanted"] <= budget for rank in report["ranks"]), "over budget")
    ctx.fails(["plan", pack, "--ranks", "3", "--placement", "balance", "--trace", trace, "--budget", str(largest - 1)], 6)


def test_balance_refusals(ctx):
    pack, good = ctx.pack(), [1] * 23
    ctx.fails(["plan", pack, "--ranks", "3", "--placement", "balance"], 2, "--trace")
    ctx.fails(["plan", pack, "--ranks", "3", "--trace", loads(ctx, (1, good))], 2, "balance")
    ctx.fails(["plan", pack, "--ranks", "3", "--placement", "balance", "--trace", ctx.path("none.json")], 4, "none.json")
    for reports, part in (([(9, good)], "no such layer"), ([(1, good[1:])], "each expert"), ([(1, good[1:] + [-1])], "number of rows"),
                          ([(1, good), (2, [0.5] * 23)], "report 2"), ([(None, good)], "no such layer"), ([], "empty")):
        ctx.fails(["plan", pack, "--ranks", "3", "--placement", "balance", "--trace", loads(ctx, *reports)], 2, part)
    broken = ctx.path("broken.json")
    with open(broken, "w", encoding="utf-8") as file:
        file.write('{"layer": 1, "load": [1,')
    ctx.fails(["plan", pack, "--ranks", "3", "--placement", "balance", "--trace", broken], 2, "report 1")
