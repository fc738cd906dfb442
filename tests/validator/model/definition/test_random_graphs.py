"""Random small groups: the definition against loops with fractions, and against onnxruntime."""

import numpy as np
import pytest

from tests.validator.model.definition.by_fractions import (
    F32,
    clamped,
    element_wise,
    exact,
    sums_of_conv,
    sums_of_matmul,
    windows,
)
from tests.validator.model.definition.quantised import LIMITS, Graph, defined

TYPES = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"), ("uint16", "int8"), ("int16", "int8")]
SEEDS = range(6)


def near(sums, *factors):
    """Returns a scale for which sums have results all over the range, and ties among them."""
    spread = max(float(np.abs(np.asarray(sums, float)).max()), 1.0)
    scale = F32(1)
    for factor in factors:
        scale = F32(scale * F32(np.max(factor)))
    return F32(float(scale) * spread / 150)


def requantised(sums, multipliers, zero, dtype, low=None, high=None):
    """Returns the codes for sums times multipliers (float32, broadcast)."""
    first, last = LIMITS[dtype]
    first, last = max(first, first if low is None else low), min(last, last if high is None else high)
    codes = element_wise(lambda s, m: clamped(s * exact(m), int(zero), first, last), sums, multipliers)
    return codes.astype(dtype)


def check(graph, output, want):
    _, (got,), found = defined(graph.model(output), graph.values)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    assert [d for d in found if d.unexplained] == []


def per_channel(multiplier, rank):
    return multiplier.reshape([1, -1, *[1] * (rank - 2)]) if multiplier.size > 1 else multiplier


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("activation", "weight"), TYPES)
@pytest.mark.parametrize("form", ["QDQ", "QLinear"])
def test_conv(form, activation, weight, seed):
    if form == "QLinear" and activation not in ("uint8", "int8"):
        return
    g = Graph([seed, 1, TYPES.index((activation, weight))])
    group = int(g.rng.choice([1, 2, 4]))
    geometry = {
        "strides": g.rng.integers(1, 3, 2).tolist(),
        "pads": g.rng.integers(0, 2, 4).tolist(),
        "dilations": g.rng.integers(1, 3, 2).tolist(),
    }
    x, w = g.codes(activation, (2, 4, 5, 6)), g.codes(weight, (4, 4 // group, 2, 2))
    wide = bool(g.rng.integers(2))
    xs, ws = g.scale(), g.scale(shape=(4,) if wide else ())
    xz, wz = g.zero(activation), g.zero(weight)
    units_x, units_w = x.astype(np.int64) - int(xz), w.astype(np.int64) - int(wz)
    sums = sums_of_conv(units_x, units_w, group=group, **geometry)
    bias = g.rng.integers(-3000, 3000, 4).astype(np.int32)
    sums = sums + bias.reshape(1, -1, 1, 1)
    ys, yz = near(sums, xs, ws), g.zero(activation)
    both = F32(xs * ws)
    want = requantised(sums, per_channel((both / ys).astype(F32), 4), yz, activation)
    wzs = np.full(ws.shape, wz)
    if form == "QDQ":
        parts = [g.dequantized(g.given(x), xs, xz), g.dequantized(g.constant(w), ws, wzs, axis=0)]
        parts.append(g.dequantized(g.constant(bias), both, np.zeros(both.shape, np.int32), axis=0))
        y = g.quantized(g.op("Conv", parts, group=group, **geometry), ys, yz)
    else:
        operands = [g.given(x), *map(g.constant, (xs, xz, w, ws, wzs, ys, yz, bias))]
        y = g.op("QLinearConv", operands, group=group, **geometry)
    check(g, y, want)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "QLinearMatMul", "QGemm"])
def test_products(kind, seed):
    g = Graph([seed, 2])
    a, b = g.codes("uint8", (3, 7)), g.codes("int8", (7, 5))
    sa, sb = g.scale(), g.scale(shape=(5,) if seed % 2 else ())
    za, zb = g.zero("uint8"), g.zero("int8", sb.shape)
    units = sums_of_matmul(a.astype(np.int64) - int(za), b.astype(np.int64) - zb.astype(np.int64))
    bias = g.rng.integers(-2000, 2000, 5).astype(np.int32) if kind in ("Gemm", "QGemm") else np.zeros(5, np.int32)
    sums = units + bias
    both = F32(sa * sb)
    ys, yz = near(sums, sa, sb), g.zero("uint8")
    want = requantised(sums, (both / ys).astype(F32), yz, "uint8")
    x = g.given(a)
    if kind in ("MatMul", "Gemm"):
        operands = [g.dequantized(x, sa, za), g.dequantized(g.constant(b), sb, zb, axis=1)]
        if kind == "Gemm":
            operands.append(g.dequantized(g.constant(bias), both, np.zeros(both.shape, np.int32), axis=0))
        y = g.quantized(g.op(kind, operands), ys, yz)
    elif kind == "QLinearMatMul":
        y = g.op(kind, [x, *map(g.constant, (sa, za, b, sb, zb, ys, yz))])
    else:
        y = g.op(kind, [x, *map(g.constant, (sa, za, b, sb, zb, bias, ys, yz))], "com.microsoft")
    check(g, y, want)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_two_operands(dtype, kind, seed):
    g = Graph([seed, 3, len(dtype)])
    a, b = g.codes(dtype, (2, 3, 40)), g.codes(dtype, (3, 40) if seed % 2 else (2, 1, 40))
    sa, sb, za, zb = g.scale(), g.scale(), g.zero(dtype), g.zero(dtype)
    ua, ub = a.astype(np.int64) - int(za), b.astype(np.int64) - int(zb)
    yz = g.zero(dtype)
    low, high = LIMITS[dtype]
    if kind.endswith("Mul"):
        ys = near(ua * np.abs(ub).max(), sa, sb)
        m = F32(F32(sa * sb) / ys)
        want = element_wise(lambda p, q: clamped(p * q * exact(m), int(yz), low, high), ua, ub)
    else:
        ys, sign = F32(2 * max(sa, sb)), -1 if kind == "Sub" else 1
        ma, mb = exact(F32(sa / ys)), exact(F32(sb / ys))
        want = element_wise(lambda p, q: clamped(p * ma + sign * q * mb, int(yz), low, high), ua, ub)
    x, y = g.given(a), g.given(b)
    if kind.startswith("QLinear"):
        out = g.op(kind, [x, g.constant(sa), g.constant(za), y, *map(g.constant, (sb, zb, ys, yz))], "com.microsoft")
    else:
        out = g.quantized(g.op(kind, [g.dequantized(x, sa, za), g.dequantized(y, sb, zb)]), ys, yz)
    check(g, out, want.astype(dtype))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["AveragePool", "QLinearAveragePool"])
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool(include, kind, seed):
    g = Graph([seed, 4, include])
    x, sx, zx = g.codes("uint8", (1, 3, 7, 6)), g.scale(), g.zero("uint8")
    ys, yz = F32(sx * g.rng.uniform(0.5, 1.5)), g.zero("uint8")
    given = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "count_include_pad": include}

    def mean(elements):
        count = 6 if include else len(elements)
        return clamped(sum(elements) * exact(F32(sx / F32(ys * F32(count)))), int(yz), 0, 255)

    want = windows(x.astype(np.int64) - int(zx), [3, 2], [2, 1], given["pads"], mean).astype(np.uint8)
    if kind == "AveragePool":
        out = g.quantized(g.op(kind, [g.dequantized(g.given(x), sx, zx)], **given), ys, yz)
    else:
        out = g.op(kind, [g.given(x), *map(g.constant, (sx, zx, ys, yz))], "com.microsoft", **given)
    check(g, out, want)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["GlobalAveragePool", "ReduceMean", "QLinearGlobalAveragePool"])
def test_whole_means(kind, seed):
    g = Graph([seed, 5])
    x, sx, zx = g.codes("int8", (2, 5, 3, 7)), g.scale(), g.zero("int8")
    ys, yz = F32(sx * g.rng.uniform(0.2, 0.6)), g.zero("int8")
    m = exact(F32(sx / F32(ys * F32(21))))
    sums = (x.astype(np.int64) - int(zx)).sum(axis=(2, 3), keepdims=True)
    want = element_wise(lambda s: clamped(s * m, int(yz), -128, 127), sums).astype(np.int8)
    if kind.startswith("QLinear"):
        out = g.op(kind, [g.given(x), *map(g.constant, (sx, zx, ys, yz))], "com.microsoft", channels_last=0)
    else:
        axes = [g.constant(np.array([2, 3]))] if kind == "ReduceMean" else []
        out = g.quantized(g.op(kind, [g.dequantized(g.given(x), sx, zx), *axes]), ys, yz)
    check(g, out, want)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("form", ["QDQ", "QLinear"])
def test_concat(form, seed):
    g = Graph([seed, 6])
    parts = [(g.codes("uint8", (2, n, 9)), g.scale(0.01, 0.1), g.zero("uint8")) for n in (1, 3, 2)]
    ys, yz = g.scale(0.01, 0.1), g.zero("uint8")
    pieces = [requantised(x.astype(np.int64) - int(z), F32(s / ys), yz, "uint8") for x, s, z in parts]
    want = np.concatenate(pieces, 1)
    names = [g.given(x) for x, _, _ in parts]
    if form == "QDQ":
        reals = [g.dequantized(n, s, z) for n, (_, s, z) in zip(names, parts, strict=True)]
        out = g.quantized(g.op("Concat", reals, axis=1), ys, yz)
    else:
        triples = [
            n for name, (_, s, z) in zip(names, parts, strict=True) for n in (name, g.constant(s), g.constant(z))
        ]
        out = g.op("QLinearConcat", [g.constant(ys), g.constant(yz), *triples], "com.microsoft", axis=1)
    check(g, out, want)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["Relu", "Clip", "MaxPool", "nothing"])
def test_bounds(kind, seed):
    """Relu and Clip bound the result by the codes of their bounds, MaxPool selects."""
    g = Graph([seed, 7])
    x, sx, zx = g.codes("int8", (1, 2, 6, 6)), g.scale(0.02, 0.05), g.zero("int8")
    ys, yz = F32(sx * g.rng.uniform(0.6, 1.7)), g.zero("int8")
    units = x.astype(np.int64) - int(zx)
    real = g.dequantized(g.given(x), sx, zx)
    low = high = None
    if kind == "Relu":
        real, low = g.op("Relu", [real]), int(yz)
    elif kind == "Clip":
        bounds = F32(-1.3), F32(2.1)
        low, high = (int(np.clip(np.rint(F32(b / ys)) + int(yz), -128, 127)) for b in bounds)
        real = g.op("Clip", [real, *map(g.constant, bounds)])
    elif kind == "MaxPool":
        real = g.op("MaxPool", [real], kernel_shape=[3, 2], strides=[1, 2], pads=[1, 0, 0, 1])
        units = windows(units, [3, 2], [1, 2], [1, 0, 0, 1], max)
    check(g, g.quantized(real, ys, yz), requantised(units, F32(sx / ys), yz, "int8", low, high))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_float_bias_is_rounded_to_units_of_the_sums(seed):
    g = Graph([seed, 8])
    a, b = g.codes("int8", (4, 6)), g.codes("int8", (6, 3))
    sa, sb = g.scale(), g.scale(shape=(3,))
    ua, ub = a.astype(np.int64), b.astype(np.int64)
    bias = g.rng.normal(0, 1, 3).astype(np.float32)
    both = F32(sa * sb)
    sums = sums_of_matmul(ua, ub) + np.rint(F32(bias / both)).astype(np.int64)
    ys, zero = near(sums, sa, sb), np.int8(0)
    real = [g.dequantized(g.given(a), sa, zero), g.dequantized(g.constant(b), sb, np.zeros(3, np.int8), axis=1)]
    product = g.op("Add", [g.op("MatMul", real), g.constant(bias)])
    check(g, g.quantized(product, ys, zero), requantised(sums, F32(both / ys), zero, "int8"))


@pytest.mark.parametrize("seed", SEEDS)
def test_scales_far_apart_are_exact(seed):
    """Two terms whose multipliers differ by 2^40 need more than 64 bits."""
    g = Graph([seed, 9])
    a, b = g.codes("int16", (30,)), g.codes("int16", (30,))
    sa, sb, ys = F32(2.0**-40 * 1.234567), F32(0.7654321), F32(0.93)
    ma, mb = exact(F32(sa / ys)), exact(F32(sb / ys))
    want = element_wise(lambda p, q: clamped(int(p) * ma + int(q) * mb, 0, -32768, 32767), a, b).astype(np.int16)
    zero = np.int16(0)
    real = [g.dequantized(g.given(a), sa, zero), g.dequantized(g.given(b), sb, zero)]
    check(g, g.quantized(g.op("Add", real), ys, zero), want)


def test_ties_go_to_even():
    g = Graph(0)
    x = np.arange(-128, 128).astype(np.int8)
    want = np.array([round(k / 2) for k in range(-128, 128)], np.int8)
    check(g, g.quantized(g.dequantized(g.given(x), F32(0.5), np.int8(0)), F32(1), np.int8(0)), want)
