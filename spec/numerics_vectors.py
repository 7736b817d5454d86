#!/usr/bin/env python3
"""Makes vectors/numerics.json: test vectors for numerics.md, computed from that document alone.

Numbers are exact fractions; every operation rounds once to binary32. Nothing but the standard library is used, no floating
point hardware takes part, so the output is the same everywhere. Patterns are written as hexadecimal words.

    python3 numerics_vectors.py > vectors/numerics.json
    python3 numerics_vectors.py --check     # compare with the committed file
"""
import json
import math
import os
import sys
from fractions import Fraction

NAN, INF, NEG_INF = 0x7FC00000, 0x7F800000, 0xFF800000
ONE, TWO = 0x3F800000, 0x40000000

# ------------------------------------------------------------------------------------------------ binary32


def is_nan(b):
    return (b & 0x7FFFFFFF) > INF


def is_inf(b):
    return (b & 0x7FFFFFFF) == INF


def sign(b):
    return b >> 31


def value(b):
    """Exact value of a finite pattern."""
    exponent, fraction = b >> 23 & 255, b & 0x7FFFFF
    v = Fraction(fraction, 1 << 149) if exponent == 0 else Fraction((1 << 23) + fraction) * two_to(exponent - 150)
    return -v if sign(b) else v


def two_to(e):
    return Fraction(1 << e) if e >= 0 else Fraction(1, 1 << -e)


def floor_log2(v):
    e = v.numerator.bit_length() - v.denominator.bit_length()
    return e if two_to(e) <= v else e - 1


def pattern(v, zero_sign=0):
    """Nearest binary32, ties to even. zero_sign: sign of a result that is exactly zero."""
    if v == 0:
        return zero_sign << 31
    s, a = (1, -v) if v < 0 else (0, v)
    unit = max(floor_log2(a) - 23, -149)
    n = round(a / two_to(unit))  # Python rounds halves to even
    if n == 1 << 24:
        n, unit = 1 << 23, unit + 1
    if n >= 1 << 23 and unit + 23 > 127:
        return s << 31 | INF
    return s << 31 | (n if n < 1 << 23 else (unit + 150 << 23) + n - (1 << 23))


def neg(a):
    return a ^ 0x80000000


def mul(a, b):
    s = sign(a) ^ sign(b)
    if is_nan(a) or is_nan(b):
        return NAN
    if is_inf(a) or is_inf(b):
        zero = a & 0x7FFFFFFF == 0 or b & 0x7FFFFFFF == 0
        return NAN if zero else s << 31 | INF
    return pattern(value(a) * value(b), s)


def fma(a, b, c):
    s = sign(a) ^ sign(b)
    if is_nan(a) or is_nan(b) or is_nan(c):
        return NAN
    if is_inf(a) or is_inf(b):
        product = mul(a, b)
        return NAN if is_nan(product) or (is_inf(c) and sign(c) != s) else product
    if is_inf(c):
        return c
    product, addend = value(a) * value(b), value(c)
    # an exact zero is +0 unless both terms are negative zeros
    return pattern(product + addend, s & sign(c) if product == 0 and addend == 0 else 0)


def add(a, b):
    return fma(a, ONE, b)


def sub(a, b):
    return add(a, neg(b))


def div(a, b):
    s = sign(a) ^ sign(b)
    if is_nan(a) or is_nan(b) or (is_inf(a) and is_inf(b)):
        return NAN
    if b & 0x7FFFFFFF == 0:
        return NAN if a & 0x7FFFFFFF == 0 else s << 31 | INF
    if is_inf(a):
        return s << 31 | INF
    if is_inf(b):
        return s << 31
    return pattern(value(a) / value(b), s)


def sqrt(a):
    if is_nan(a) or (sign(a) and a != 0x80000000):
        return NAN
    if a in (INF, 0, 0x80000000):
        return a
    v = value(a) * two_to(400)  # enough bits; the sticky bit keeps the rounding right
    n = math.isqrt(v.numerator // v.denominator)
    exact = n * n == v
    return pattern((Fraction(2 * n) + (0 if exact else 1)) * two_to(-201))


def less(a, b):
    if is_nan(a) or is_nan(b):
        return False
    return order(a) > order(b)


def order(b):
    """Section 5.3 without the number: smaller comes first."""
    if is_nan(b):
        return 1 << 40
    magnitude = b & 0x7FFFFFFF
    return magnitude if sign(b) else -magnitude


def canonical(b):
    return NAN if is_nan(b) else b


def f32(x):
    """Pattern nearest to a decimal or hexadecimal number of Python (exact as a fraction)."""
    return pattern(Fraction(x), 0)


def round_bf16(b):
    if is_nan(b):
        return NAN
    low, high = b & 0xFFFF, b >> 16
    return (high + (low > 0x8000 or (low == 0x8000 and high & 1))) << 16


# ------------------------------------------------------------------------------------------------ section 6


def constant(text):
    return f32(float.fromhex(text))


LOG2E, MAGIC = constant("0x1.715476p+0"), constant("0x1.8p+23")
LN2_HIGH, LN2_LOW = constant("-0x1.62e430p-1"), constant("0x1.05c610p-29")
EXP_Q = [constant(t) for t in ("0x1.6a1a72p-10", "0x1.123fc6p-7", "0x1.555916p-5", "0x1.55548ap-3", "0x1.fffffcp-2")]
TANH_P = [constant(t) for t in ("-0x1.75d50ap-8", "0x1.5223dep-6", "-0x1.b83bf4p-5", "0x1.110724p-3", "-0x1.555532p-2")]


def polynomial(coefficients, x):
    p = coefficients[0]
    for c in coefficients[1:]:
        p = fma(p, x, c)
    return p


def exp(x):
    if is_nan(x):
        return NAN
    if less(x, f32(-104)):
        x = f32(-104)
    if less(f32(89), x):
        x = f32(89)
    j = fma(x, LOG2E, MAGIC)
    n = sub(j, MAGIC)
    r = fma(n, LN2_LOW, fma(n, LN2_HIGH, x))
    q = polynomial(EXP_Q, r)
    a = add(ONE, r)
    b = sub(r, sub(a, ONE))
    e = add(a, fma(mul(r, r), q, b))
    i = j - MAGIC
    h = i // 2
    return mul(mul(e, pattern(two_to(h))), pattern(two_to(i - h)))


def sigmoid(x):
    if is_nan(x):
        return NAN
    negative = less(x, 0)
    e = exp(x | 0x80000000)
    t = div(e if negative else ONE, add(ONE, e))
    return fma(neg(e), t, e) if negative else t


def tanh(x):
    a = x & 0x7FFFFFFF
    if less(a, f32(0.625)):
        z = mul(a, a)
        v = fma(mul(a, z), polynomial(TANH_P, z), a)
    else:
        v = sub(ONE, div(TWO, add(exp(add(a, a)), ONE)))
    return NAN if is_nan(v) else v & 0x7FFFFFFF | x & 0x80000000


SOFTPLUS_P = [constant(t) for t in ("0x1.1efa3ap-3", "0x1.1eb5bcp-3", "0x1.99d280p-3", "0x1.555500p-2")]
ERF_P = [constant(t) for t in ("0x1.4996f6p-14", "-0x1.a40958p-11", "0x1.540898p-8", "-0x1.b7f97ep-6", "0x1.ce2d00p-4",
                               "-0x1.81273ep-2", "0x1.06eba8p-3")]
ERF_Q = [constant(t) for t in ("0x1.8e86d0p-13", "-0x1.8732ecp-9", "0x1.684a10p-6", "-0x1.a7aa64p-4", "-0x1.46882cp-1",
                               "-0x1.20989ap+0", "-0x1.26c0b8p-12")]
HALF = 0x3F000000


def sqrt_softplus(x):
    if is_nan(x):
        return NAN
    if less(x, f32(-40)):
        return exp(mul(HALF, x))
    e = exp(x | 0x80000000)
    r = div(e, add(TWO, e))
    z, d = mul(r, r), add(r, r)
    n = fma(mul(d, z), polynomial(SOFTPLUS_P, z), d)
    return sqrt(add(x, n) if less(0, x) else n)


def erf(x):
    a = x & 0x7FFFFFFF
    if less(f32(4), a):
        a = f32(4)
    if less(a, ONE):
        v = fma(a, polynomial(ERF_P, mul(a, a)), a)
    else:
        v = sub(ONE, exp(polynomial(ERF_Q, a)))
    return NAN if is_nan(v) else v & 0x7FFFFFFF | x & 0x80000000


def relu(v):
    return 0 if less(v, 0) else v


def silu(v):
    return mul(v, sigmoid(v))


def gelu(v):
    return mul(mul(HALF, v), add(ONE, erf(mul(v, constant("0x1.6a09e6p-1")))))


def gelu_tanh(v):
    inner = fma(mul(mul(constant("0x1.6e4e26p-5"), v), v), v, v)
    return mul(mul(HALF, v), add(ONE, tanh(mul(constant("0x1.988454p-1"), inner))))


BRANCHES = {"relu": relu, "relu2": lambda v: mul(relu(v), relu(v)), "silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}


def upper(v, limit):
    return limit if limit and less(limit, v) else v


def clamp(v, limit):
    return upper(neg(limit) if limit and less(v, neg(limit)) else v, limit)


def activate(kind, p, g, u):
    """p: patterns of situ_beta, situ_linear_beta, act_alpha, act_limit. u is None without a gate."""
    beta, linear_beta, alpha, limit = p
    if kind in BRANCHES:
        v = BRANCHES[kind](g)
        return v if u is None else mul(v, u)
    if kind == "silu_clamped":
        return mul(silu(upper(g, limit)), clamp(u, limit))
    if kind == "swiglu_oai":
        g = upper(g, limit)
        return mul(mul(g, sigmoid(mul(alpha, g))), add(clamp(u, limit), ONE))
    bounded = mul(mul(beta, tanh(div(g, beta))), sigmoid(g))
    return mul(bounded, u if linear_beta == 0 else mul(linear_beta, tanh(div(u, linear_beta))))


# ------------------------------------------------------------------------------------------------ sections 3, 4, 7

E2M1 = [f32(v) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
E2M1 += [neg(v) for v in E2M1]


def scale_of(byte):
    return NAN if byte == 255 else pattern(two_to(byte - 127))


def blocks(n):
    return [range(b, min(b + 32, n)) for b in range(0, n, 32)]


def chain(w, v, columns):
    c = 0
    for i in columns:
        c = fma(w[i], v[i], c)
    return c


def row_f32(w, v):
    y = 0
    for b in blocks(len(w)):
        y = add(y, chain(w, v, b))
    return canonical(y)


def row_e2m1(codes, scales, v):
    w, y = [E2M1[c] for c in codes], 0
    for n, b in enumerate(blocks(len(w))):
        y = fma(chain(w, v, b), scale_of(scales[n]), y)
    return canonical(y)


def code_value(encoding, code):
    """3: the value of a code, as a pattern."""
    if encoding == "E2M1":
        return E2M1[code]
    if encoding == "INT4_OFFSET":
        return f32(code - 8)
    if encoding == "F32":
        return code
    if encoding == "BF16":
        return code << 16
    if encoding == "E8M0":
        return scale_of(code)
    bits, bias = (10, 15) if encoding == "F16" else (3, 7)
    width = 15 if encoding == "F16" else 7
    negative, magnitude = code >> width, code & (1 << width) - 1
    exponent, fraction = magnitude >> bits, magnitude & (1 << bits) - 1
    if encoding == "F16" and exponent == 31:
        return NAN if fraction else negative << 31 | INF
    if encoding == "E4M3" and magnitude == 0x7F:
        return NAN
    v = fraction * two_to(1 - bias - bits) if exponent == 0 else ((1 << bits) + fraction) * two_to(exponent - bias - bits)
    return pattern(-v if negative else v, negative)


def row_groups(w, scales, v, width):
    """3.2"""
    y = 0
    for n, first in enumerate(range(0, len(w), width)):
        y = fma(chain(w, v, range(first, min(first + width, len(w)))), scales[n], y)
    return y


def row_grid(w, scales, v):
    """3.3"""
    y = 0
    for n, first in enumerate(range(0, len(w), 128)):
        p = 0
        for block in range(first, min(first + 128, len(w)), 32):
            p = add(p, chain(w, v, range(block, min(block + 32, len(w)))))
        y = fma(p, scales[n], y)
    return y


def whole_rows(y, scale, global_scale, divides):
    """3.4"""
    if scale is not None:
        y = fma(y, scale, 0)
    if global_scale is not None:
        y = add(div(y, global_scale), 0) if divides else fma(y, global_scale, 0)
    return canonical(y)


def row_fix16_groups(w, scales, v, width):
    """4.2 and 4.3 for groups of 16 or 32 columns"""
    parts = []
    for b in blocks(len(w)):
        q, f = fix16_inputs([v[i] for i in b])
        for first in range(0, len(b), width):
            total = sum(int(2 * value(w[b[n]])) * q[n] for n in range(first, min(first + width, len(b))))
            parts.append((b[0] // 32, mul(pattern(Fraction(total)), f)))
    y, last = 0, parts[-1][0]
    for group in range(0, last + 1, 16):
        p = 0
        for segment in range(group, min(group + 16, last + 1), 4):
            c = 0
            for n, (block, d) in enumerate(parts):
                if segment <= block < segment + 4:
                    c = fma(d, scales[n], c)
            p = add(p, c)
        y = add(y, p)
    return y


def fix16_inputs(v):
    """q and f of one block; a partial block has fewer than 32."""
    if any(is_nan(b) or is_inf(b) for b in v):
        return [0] * len(v), NAN
    m = max(abs(value(b)) for b in v)
    if m == 0:
        return [0] * len(v), 0
    k = 15 - (floor_log2(m) + 1)
    if round(m * two_to(k)) > 32639:
        k -= 1
    return [round(value(b) * two_to(k)) for b in v], pattern(two_to(-k - 1))


def int8_inputs(v):
    """Section 12: q and f of one block; a partial block has fewer than 32."""
    if any(is_nan(b) or is_inf(b) for b in v):
        return [0] * len(v), NAN
    m = max(abs(value(b)) for b in v)
    if m == 0:
        return [0] * len(v), 0
    e = floor_log2(m) + 1
    g = math.ceil(m * two_to(15 - e) / 127)
    r = div(f32(1 << 15), f32(g))
    return ([round(value(mul(pattern(value(b) * two_to(-e)), r))) for b in v], pattern(g * two_to(e - 16)))


def row_fix16(codes, scales, v, segment_blocks=4, group_blocks=16, inputs=fix16_inputs):
    """Blocks are 4 and 16; others show whether a row would notice a wrong nesting."""
    d = []
    for b in blocks(len(codes)):
        q, f = inputs([v[i] for i in b])
        total = sum(int(2 * value(E2M1[codes[i]])) * q[n] for n, i in enumerate(b))
        d.append(mul(pattern(Fraction(total)), f))
    y = 0
    for group in range(0, len(d), group_blocks):
        p = 0
        for segment in range(group, min(group + group_blocks, len(d)), segment_blocks):
            c = 0
            for b in range(segment, min(segment + segment_blocks, len(d), group + group_blocks)):
                c = fma(d[b], scale_of(scales[b]), c)
            p = add(p, c)
        y = add(y, p)
    return canonical(y)


def row_int8(codes, scales, v):
    return row_fix16(codes, scales, v, inputs=int8_inputs)


def norm(s, w, eps):
    m = 0
    for b in blocks(len(s)):
        m = add(m, chain(s, s, b))
    v = div(ONE, sqrt(add(div(m, f32(len(s))), eps)))
    return [mul(mul(a, v), b) for a, b in zip(s, w)]


# ------------------------------------------------------------------------------------------------ section 5


def scores(kind, logits):
    if kind in ("sigmoid", "sqrt_softplus"):
        return [(sigmoid if kind == "sigmoid" else sqrt_softplus)(v) for v in logits]
    if kind != "softmax":
        return list(logits)
    top = NEG_INF
    for v in logits:
        top = v if less(top, v) else top
    e = [exp(sub(v, top)) for v in logits]
    total = sum_of_blocks(e)
    return [div(v, total) for v in e]


def sum_of_blocks(e):
    total = 0
    for b in blocks(len(e)):
        part = 0
        for i in b:
            part = add(part, e[i])
        total = add(total, part)
    return total


def sparsemixer(p, logits):
    left, ids, weights = list(range(len(logits))), [], []
    limit = mul(TWO, f32(p["sparsemixer_eps"]))
    for _ in range(p["top_k"]):
        best = min(left, key=lambda i: (order(logits[i]), i))
        top, e = logits[best], [0] * len(logits)
        for i in left:
            size = logits[i] & 0x7FFFFFFF
            if not less(limit, div(sub(top, logits[i]), top if less(size, top) else size)):
                e[i] = exp(sub(logits[i], top))
        ids.append(best)
        weights.append(div(e[best], sum_of_blocks(e)))
        left.remove(best)
    return ids, weights


def over_selected(kind, weights):
    if kind == "sigmoid_selected":
        return [sigmoid(w) for w in weights]
    if kind != "softmax_selected":
        return weights
    top = NEG_INF
    for w in weights:
        top = w if less(top, w) else top
    e, total = [exp(sub(w, top)) for w in weights], 0
    for v in e:
        total = add(total, v)
    return [div(v, total) for v in e]


def ranked(values):
    return sorted(range(len(values)), key=lambda i: (order(values[i]), i))


def route(p, logits, bias, row=None):
    """row: the token's row of the table, with select = token_table."""
    if p["score"] == "sparsemixer":
        return finish_weights(p, *sparsemixer(p, logits))
    score = scores(p["score"], logits)
    biased = [add(s, b) for s, b in zip(score, bias)] if "biased" in (p["select"], p["weight_from"]) else score
    choice = list(biased if p["select"] == "biased" else score)
    groups, kept, k = p["groups"], p["groups_kept"], p["top_k"]
    if groups > 1 and groups > kept:
        size = len(logits) // groups
        group_scores = []
        for g in range(groups):
            run = choice[g * size:(g + 1) * size]
            best = ranked(run)
            v = run[best[0]]
            group_scores.append(add(v, run[best[1]]) if p["group_score"] == "top2_sum" and size > 1 else v)
        for g in ranked(group_scores)[kept:]:
            choice[g * size:(g + 1) * size] = [NEG_INF if p["group_mask"] == "neg_inf" else 0] * size
    ids = row if p["select"] == "token_table" else ranked(choice)[:k]
    weights = over_selected(p["score"], [(biased if p["weight_from"] == "biased" else score)[i] for i in ids])
    return finish_weights(p, ids, weights)


def finish_weights(p, ids, weights):
    k = p["top_k"]
    renormalized = p["renormalize"] != "none" and (k > 1 or p["renorm_k1"] == 1)
    if renormalized:
        total = 0
        for w in weights:
            total = add(total, w)
        if p["renormalize"] == "sum_eps":
            total = add(total, f32(p["renorm_eps"]))
        weights = [div(w, total) for w in weights]
    if not renormalized or p["scale_when"] == "always":
        weights = [mul(w, f32(p["scale"])) for w in weights]
    return ids, [canonical(w) for w in weights]


# ------------------------------------------------------------------------------------------------ section 2


def product(matrix, x, mode):
    if matrix["encoding"] != "E2M1":
        return [row_f32(row, x) for row in matrix["rows"]]
    row_function = {"bf16": row_fix16, "f32": row_e2m1, "int8": row_int8}[mode]
    return [row_function(row, s, x) for row, s in zip(matrix["rows"], matrix["scales"])]


def layer(l, x, mode):
    """One token. Returns ids, weights, s, y."""
    p = l["policy"]
    cast = (lambda v: [round_bf16(b) for b in v]) if mode != "f32" else list
    numbers = (f32(p["situ_beta"]), f32(p["situ_linear_beta"]), 0, 0)

    def network(gate, up, down, v):
        g, u = product(gate, v, mode), product(up, v, mode)
        return product(down, cast([activate("situ", numbers, a, b) for a, b in zip(g, u)]), mode)

    ids, weights = route(p, product(l["router"], x, mode), l["router_bias"])
    xr = cast(x)
    z = cast(product(l["latent_down"], xr, mode))
    s = [0] * len(z)
    for e, w in zip(ids, weights):
        o = network(*l["experts"][e], z)
        s = [fma(w, a, b) for a, b in zip(o, s)]
    n = cast(norm(s, l["latent_norm"], f32(p["norm_eps"])))
    r = product(l["latent_up"], n, mode)
    h = network(*l["shared"], xr)
    return ids, weights, [canonical(v) for v in s], [canonical(add(a, b)) for a, b in zip(r, h)]


# ------------------------------------------------------------------------------------------------ the vectors


class Random:
    """A 64-bit linear congruential generator; only the upper half is used."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.state >> 32) * n >> 32

    def normal(self, scale=1):
        """Roughly Gaussian: the sum of twelve uniform numbers."""
        return pattern((Fraction(sum(self.below(1 << 24) for _ in range(12)), 1 << 24) - 6) * Fraction(scale))

    def bf16(self, scale=1):
        return round_bf16(self.normal(scale))


SPECIAL = [0, 0x80000000, 1, 0x80000001, 0x00400000, 0x007FFFFF, 0x00800000, ONE, neg(ONE), 0x7F7FFFFF, 0xFF7FFFFF, INF,
           NEG_INF, NAN, 0xFFC00001, 0x7F800001]


def words(v):
    return " ".join("%08x" % b for b in v)


def function_vectors(r):
    xs = SPECIAL + [f32(v) for v in (88.72283, 88.72284, -87.33655, -103.2789, -103.9721, -104, 89, 0.625, -0.625,
                                     0.6249999, 9.0109, -17.3287, -39.5, -40.5, -123.25, 44.5, 1e-4, -1e-4, 0.3465736, -3.446)]
    xs += [r.normal(s) for s in (Fraction(1, 1000), Fraction(1, 10), 1, 1, 1, 10, 10, 30) for _ in range(8)]
    out = {"x": words(xs)}
    for name, function in (("exp", exp), ("sigmoid", sigmoid), ("tanh", tanh), ("sqrt_softplus", sqrt_softplus), ("erf", erf),
                           ("round_bf16", round_bf16)):
        out[name] = words(canonical(function(x)) for x in xs)
    return out


ACTIVATIONS = [("situ", 4, 25, 0, 0, True), ("situ", 1.5, 0, 0, 0, True), ("silu_clamped", 1, 0, 0, 1.25, True),
               ("silu_clamped", 1, 0, 0, 0, True), ("swiglu_oai", 1, 0, 1.702, 7, True), ("swiglu_oai", 1, 0, 1.5, 0, True)]
ACTIVATIONS += [(kind, 1, 0, 0, 0, gated) for kind in ("relu", "relu2", "silu", "gelu", "gelu_tanh") for gated in (True, False)]


def activation_vectors(r):
    out = []
    for kind, beta, linear_beta, alpha, limit, gated in ACTIVATIONS:
        g = [r.normal(s) for s in (1, 4, 20) for _ in range(8)] + SPECIAL[:8]
        u = [r.normal(s) for s in (1, 30) for _ in range(12)] + [r.normal() for _ in range(8)]
        if limit:
            g[:4], u[:4] = [f32(limit), f32(-limit), INF, NEG_INF], [f32(limit), INF, f32(-limit), NEG_INF]
        numbers = tuple(f32(v) for v in (beta, linear_beta, alpha, limit))
        y = [canonical(activate(kind, numbers, a, b if gated else None)) for a, b in zip(g, u)]
        out.append({"activation": kind, "gated": gated, "situ_beta": beta, "situ_linear_beta": linear_beta, "act_alpha": alpha,
                    "act_limit": limit, "gate": words(g), "up": words(u), "out": words(y)})
    return out


def block_of(r, kind):
    x = [r.bf16(kind if isinstance(kind, Fraction) else 1) for _ in range(32)]
    if kind == "outlier":
        x[r.below(32)] = r.bf16(1000)
    if kind == "zero":
        x = [0x80000000 if r.below(2) else 0 for _ in range(32)]
    if kind == "top":  # significand 255: the largest that would not fit
        x[3] = 0x407F0000
    if kind == "tie":  # multiples of half a unit next to a large value
        x = [0x46000000] + [pattern(Fraction(2 * r.below(64) - 63, 8)) for _ in range(31)]
    if kind == "infinite":
        x[7] = NEG_INF
    if kind == "nan":
        x[31] = NAN
    if kind == "subnormal":
        x = [r.below(2) << 31 | r.below(8) << 16 for _ in range(32)]
    if kind == "largest":
        x[0] = 0x7F7F0000
    return x


KINDS = ["plain", "outlier", "zero", "top", "tie", "infinite", "nan", "subnormal", "largest", Fraction(1, 1 << 100),
         Fraction(1 << 100)]


def fix16_vectors(r):
    out = []
    for kind in KINDS:
        x = block_of(r, kind)
        q, f = fix16_inputs(x)
        out.append({"x": words(x), "q": q, "f": words([f])})
    return out


def int8_vectors(r):
    """Also inputs that are no BF16 values, and magnitudes at the ends of what one step serves."""
    out = []
    odd = [[r.normal(scale) for _ in range(32)] for scale in (1, Fraction(1, 1 << 126), Fraction(1, 1 << 147), 1 << 120)]
    odd += [[f32(m)] + [f32(Fraction(m) * Fraction(2 * r.below(127) - 253, 254)) for _ in range(31)]
            for m in (1, Fraction(127, 128), Fraction(255, 256), Fraction(129, 256))]
    for x in [block_of(r, kind) for kind in KINDS] + odd:
        q, f = int8_inputs(x)
        assert all(abs(v) <= 127 for v in q)
        out.append({"x": words(x), "q": q, "f": words([f])})
    return out


def e2m1_row(r, cols, extreme):
    x = []
    while len(x) < cols:
        x += block_of(r, KINDS[r.below(9)] if extreme and r.below(3) == 0 and cols < 500 else "plain")
    # scales of many sizes: with equal ones the sums are nearly exact and no order would show
    pick = (0, 1, 127, 253, 254) if extreme else range(108, 124)
    return [r.below(16) for _ in range(cols)], [pick[r.below(len(pick))] for _ in blocks(cols)], x[:cols]


def telling_row(r, cols, nesting):
    """A row that the given wrong nesting gets wrong."""
    while True:
        row = e2m1_row(r, cols, False)
        if row_fix16(*row) != row_fix16(*row, *nesting):
            return row


def row_vectors(r):
    """E2M1 rows in all modes, and BF16 and F32 rows."""
    rows, dense = [], []
    for cols in (1, 31, 32, 33, 100, 128, 160, 512, 540, 1056):
        rows += [e2m1_row(r, cols, False), e2m1_row(r, cols, True)]
        for name, w in (("BF16", [r.bf16(Fraction(1, 50)) for _ in range(cols)]),
                        ("F32", [r.normal(Fraction(1, 50)) for _ in range(cols)])):
            x = [r.normal(1) for _ in range(cols)]
            if cols <= 600:
                dense.append({"encoding": name, "x": words(x), "w": words(w), "y": words([row_f32(w, x)])})
    for nesting in ((4, 8), (4, 32), (2, 16), (8, 16), (1, 16), (1 << 20, 1 << 20)):
        rows.append(telling_row(r, 700, nesting))
    four_bits = [{"x": words(x), "codes": "".join("%x" % c for c in codes), "scales": scales,
                  "fix16": words([row_fix16(codes, scales, x)]), "int8": words([row_int8(codes, scales, x)]),
                  "f32": words([row_e2m1(codes, scales, x)])}
                 for codes, scales, x in rows]
    return four_bits, dense


FORMS = [  # weights, their width, how scales are shared, columns of a group, encodings of scales
    ("F16", 16, "none", 0, [None]), ("E4M3", 8, "none", 0, [None]), ("E4M3", 8, "one", 0, ["F32", "BF16"]),
    ("E4M3", 8, "rows", 0, ["BF16", "F16", "F32"]), ("E4M3", 8, "grid", 128, ["F32", "BF16", "E8M0"]),
    ("E4M3", 8, "groups", 32, ["E8M0"]), ("INT4_OFFSET", 4, "groups", 32, ["BF16", "F16", "F32"]),
    ("E2M1", 4, "groups", 16, ["E4M3"])]


def form_code(r, encoding, width, special):
    code = r.below(1 << width)
    if not special and encoding == "E4M3" and code & 127 == 127:
        code -= 1
    if not special and encoding == "F16":
        code &= 0xBFFF
    return code


def scale_code(r, encoding):
    if encoding == "E8M0":
        return 110 + r.below(20)
    if encoding == "E4M3":
        return 1 + r.below(126)
    if encoding == "F16":
        return 0x2000 + r.below(0x1C00)
    return r.bf16(1) >> 16 if encoding == "BF16" else r.normal(1)


def form_vectors(r):
    """Rows in the storage forms of section 3 other than plain and MXFP4 ones."""
    out = []
    for encoding, width, kind, group, kinds in FORMS:
        for cols in (16, 48, 130, 160, 560):
            for special in (False, True) if cols == 160 else (False,):
                cols = cols // 32 * 32 if encoding == "INT4_OFFSET" and cols > 32 else cols
                scale_encoding = kinds[r.below(len(kinds))]
                count = {"none": 0, "one": 1, "rows": 1}.get(kind)
                count = -(-cols // group) if count is None else count
                codes = [form_code(r, encoding, width, special) for _ in range(cols)]
                scales = [scale_code(r, scale_encoding) for _ in range(count)]
                x = [r.bf16(1) for _ in range(cols)]
                has_global = encoding == "E2M1"
                divides = has_global and bool(r.below(2))
                global_scale = r.normal(1) if has_global else None
                w, s = [code_value(encoding, c) for c in codes], [code_value(scale_encoding, c) for c in scales]
                y = row_groups(w, s, x, group) if kind == "groups" else row_grid(w, s, x) if kind == "grid" else row_f32(w, x)
                own = s[0] if kind in ("one", "rows") else None
                item = {"encoding": encoding, "kind": kind, "group": group, "scale_encoding": scale_encoding or "none", "codes": codes,
                        "scales": scales, "x": words(x), "f32": words([whole_rows(y, own, global_scale, divides)])}
                if has_global:
                    item["global"], item["divides"] = words([global_scale]), divides
                if width == 4:
                    item["fix16"] = words([whole_rows(row_fix16_groups(w, s, x, group), None, global_scale, divides)])
                out.append(item)
    return out


def norm_vectors(r):
    out = []
    for n, scale in ((1, 1), (31, 1), (33, Fraction(1, 100)), (96, Fraction(1, 1 << 70)), (100, 1 << 70), (160, 5)):
        s, w = [r.normal(scale) for _ in range(n)], [r.bf16(1) for _ in range(n)]
        out.append({"norm_eps": 1e-5, "s": words(s), "w": words(w), "out": words(canonical(v) for v in norm(s, w, f32(1e-5)))})
    return out


def router_policy(r, groups, experts):
    pick = lambda *names: names[r.below(len(names))]
    p = {"score": pick("sigmoid", "softmax", "sqrt_softplus", "softmax_selected", "sigmoid_selected", "sparsemixer"),
         "select": pick("score", "biased", "token_table"), "weight_from": pick("unbiased", "biased"),
         "groups": groups, "groups_kept": 1 + r.below(groups), "group_score": pick("max", "top2_sum"),
         "group_mask": pick("neg_inf", "zero"), "top_k": 1 + r.below(min(experts, 9)), "sparsemixer_eps": pick(0.01, 0.1, 0.5),
         "renormalize": pick("none", "sum", "sum_eps"), "renorm_eps": pick(1e-20, 0.125), "renorm_k1": r.below(2),
         "scale": pick(1.0, 2.5), "scale_when": pick("always", "if_not_renormalized")}
    if p["score"] == "sparsemixer":
        p.update(select="score", weight_from="unbiased")
    if p["score"] == "sparsemixer" or p["select"] == "token_table":
        p.update(groups=1, groups_kept=1)
    return p


def router_vectors(r):
    out = []
    for n in range(96):
        groups = 1 if n % 3 else 1 + r.below(6)
        experts = groups * (1 + r.below(12)) if n % 7 else 40
        p = router_policy(r, groups if experts % groups == 0 else 1, experts)
        ties = n % 2 == 0
        logits = [f32(Fraction(r.below(9) - 4, 2)) if ties else r.normal(2) for _ in range(experts)]
        bias = [f32(Fraction(r.below(5) - 2, 64)) if ties else r.normal(Fraction(1, 20)) for _ in range(experts)]
        if n % 10 == 9:
            for odd in (NAN, INF, NEG_INF):
                logits[r.below(experts)] = odd
        row = [r.below(experts) for _ in range(p["top_k"])] if p["select"] == "token_table" else None
        ids, weights = route(p, logits, bias, row)
        out.append({"policy": p, "logits": words(logits), "bias": words(bias), "ids": ids, "weights": words(weights)})
    return out


def random_matrix(r, encoding, rows, cols, scale):
    if encoding == "E2M1":
        return {"encoding": encoding, "rows": [[r.below(16) for _ in range(cols)] for _ in range(rows)],
                "scales": [[122 + r.below(3) for _ in blocks(cols)] for _ in range(rows)]}
    return {"encoding": encoding, "rows": [[r.bf16(scale) for _ in range(cols)] for _ in range(rows)]}


def written(m):
    if m["encoding"] == "E2M1":
        return {"encoding": "E2M1", "rows": ["".join("%x" % c for c in row) for row in m["rows"]], "scales": m["scales"]}
    return {"encoding": m["encoding"], "rows": [words(row) for row in m["rows"]]}


def layer_vector(r):
    """A whole layer whose widths are no multiples of anything, two tokens, all modes."""
    h, l, i, s, e, k = 41, 35, 37, 9, 5, 3
    p = {"hidden": h, "expert_input": l, "intermediate": i, "shared_width": s, "top_k": k, "score": "sigmoid",
         "select": "biased", "weight_from": "unbiased", "groups": 1, "groups_kept": 1, "group_score": "max",
         "group_mask": "neg_inf", "renormalize": "sum_eps", "renorm_eps": 1e-20, "renorm_k1": 0, "scale": 1.25,
         "scale_when": "always", "situ_beta": 4.0, "situ_linear_beta": 25.0, "norm_eps": 1e-5}
    sixth = Fraction(1, 6)
    make = lambda rows, cols: random_matrix(r, "BF16", rows, cols, sixth)
    four = lambda rows, cols: random_matrix(r, "E2M1", rows, cols, None)
    data = {"policy": p, "router": make(e, h), "router_bias": [r.normal(Fraction(1, 20)) for _ in range(e)],
            "latent_down": make(l, h), "latent_norm": [r.bf16(1) for _ in range(l)], "latent_up": make(h, l),
            "shared": [make(s, h), make(s, h), make(h, s)],
            "experts": [[four(i, l), four(i, l), four(l, i)] for _ in range(e)]}
    x = [[r.normal(1) for _ in range(h)] for _ in range(2)]  # not BF16 values: the router must see them unrounded
    results = {}
    for mode in ("bf16", "f32", "int8"):
        tokens = [layer(data, row, mode) for row in x]
        results[mode] = {"ids": [t[0] for t in tokens], "weights": [words(t[1]) for t in tokens],
                         "s": [words(t[2]) for t in tokens], "y": [words(t[3]) for t in tokens]}
    return {"policy": p, "router": written(data["router"]), "router_bias": words(data["router_bias"]),
            "latent_down": written(data["latent_down"]), "latent_norm": words(data["latent_norm"]),
            "latent_up": written(data["latent_up"]), "shared": [written(m) for m in data["shared"]],
            "experts": [[written(m) for m in expert] for expert in data["experts"]], "x": [words(row) for row in x],
            "results": results}


def make_all():
    four_bits, dense = row_vectors(Random(3))
    return {"document": "spec/numerics.md", "functions": function_vectors(Random(1)),
            "activations": activation_vectors(Random(2)), "fix16_inputs": fix16_vectors(Random(4)),
            "int8_inputs": int8_vectors(Random(8)), "e2m1_rows": four_bits,
            "dense_rows": dense, "norm": norm_vectors(Random(5)), "router": router_vectors(Random(6)),
            "layer": layer_vector(Random(7)), "form_rows": form_vectors(Random(8))}


def to_text(everything):
    """JSON with one test vector a line."""
    parts = []
    for key, item in everything.items():
        lines = ",\n  ".join(json.dumps(i) for i in item) if isinstance(item, list) else None
        parts.append('"%s": %s' % (key, json.dumps(item) if lines is None else "[\n  " + lines + "]"))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main():
    text = to_text(make_all())
    if sys.argv[1:] == ["--check"]:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vectors", "numerics.json")
        with open(path, encoding="utf-8") as f:
            if f.read() != text:
                sys.exit("vectors/numerics.json is not what numerics_vectors.py makes")
        print("vectors/numerics.json is up to date")
        return
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
