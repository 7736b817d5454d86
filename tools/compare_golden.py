#!/usr/bin/env python3
"""Compares what `moepack run` wrote with a golden file (tests/fixtures): ids exactly, numbers by relative L2 distance.

usage: compare_golden.py RESULT.safetensors GOLDEN.safetensors LIMIT
"""
import json
import math
import struct
import sys
from array import array

TYPES = {"F32": "f", "F64": "d", "I32": "i"}


def load(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in TYPES:
            begin, end = entry["data_offsets"]
            tensors[name] = array(TYPES[entry["dtype"]], data[8 + length + begin:8 + length + end])
    return tensors


def distance(found, wanted):
    error = math.fsum((a - b) ** 2 for a, b in zip(found, wanted))
    return math.sqrt(error / math.fsum(b * b for b in wanted))


def main():
    result, golden, limit = load(sys.argv[1]), load(sys.argv[2]), float(sys.argv[3])
    same_ids = result["topk_ids"] == golden["topk_ids"]
    print(f"experts chosen: {len(golden['topk_ids'])} ids {'all equal' if same_ids else 'DIFFER'}")
    worst = 0.0
    for name, reference in (("s", "s_f64"), ("y", "y_f64")):
        if len(result[name]) != len(golden[reference]):
            sys.exit(f"{name}: {len(result[name])} values, the golden has {len(golden[reference])}")
        d = distance(result[name], golden[reference])
        worst = max(worst, d)
        print(f"{name}: relative L2 distance to the float64 golden {d:.2e} (limit {limit:.0e})")
    return 0 if same_ids and worst <= limit else 1


sys.exit(main())
