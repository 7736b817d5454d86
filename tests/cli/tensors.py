"""safetensors files and comparison of numbers with the standard library alone."""
import array
import json
import math
import struct
import sys

CODES = {"F32": "f", "F64": "d", "I32": "i", "I64": "q"}


class Tensor:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), data

    def values(self):
        """Flat list of numbers."""
        if self.dtype == "BF16":
            halves = array.array("H", self.data)
            return list(struct.unpack("<%df" % len(halves), b"".join(b"\0\0" + struct.pack("<H", half) for half in halves)))
        values = array.array(CODES[self.dtype], self.data)
        if sys.byteorder == "big":
            values.byteswap()
        return values.tolist()

    def rows(self):
        values, width = self.values(), self.shape[-1]
        return [values[i:i + width] for i in range(0, len(values), width)]


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: Tensor(entry["dtype"], entry["shape"], data[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]])
            for name, entry in header.items()}


def write(path, tensors):
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, offset + len(tensor.data)]}
        offset += len(tensor.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in tensors.values()))


def f32(shape, values):
    return Tensor("F32", shape, struct.pack("<%df" % len(values), *values))


def rel_l2(found, expected):
    """|found - expected| / |expected|; 0 / 0 is 0."""
    difference = math.fsum((a - b) ** 2 for a, b in zip(found, expected))
    size = math.fsum(b * b for b in expected)
    if len(found) != len(expected):
        return math.inf
    if difference == 0:
        return 0.0
    return math.sqrt(difference / size) if size > 0 else math.inf


def worst_row(found, expected):
    return max((rel_l2(a, b) for a, b in zip(found, expected)), default=0.0)
