"""Operators of random quantised models, in all forms: groups of DequantizeLinear and QuantizeLinear, and QLinear*."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.all_graphs.builder import MisfitError
from tests.fuzz.quantised_builder import (
    CONTRIBUTED,
    MAX_ELEMENTS,
    Builder,
    Codes,
    Shape,
    Step,
    Weights,
    limits,
    of_type,
)
from tests.tiny_models import Array

STEPS: list[Step] = []
BYTES = ("uint8", "int8")
UNARY = ("LeakyRelu", "Sigmoid", "HardSwish", "Tanh", "Elu", "HardSigmoid", "Abs", "Neg", "Gelu", "Softplus", "Erf")


def step(times: int):
    """Registers a step, to be drawn so many times as often as others."""

    def add(function: Step) -> Step:
        STEPS.extend([function] * times)
        return function

    return add


def finish(b: Builder, name: str, values: Array, like: Codes | None = None) -> Codes:
    """Adds an activation at times, where it leaves more than a few values, then QuantizeLinear."""
    kind, size = b.pick(("", "", "Relu", "Clip")), float(np.abs(values).max())
    low, high = 0.0, math.inf
    if kind == "Clip":
        low = b.pick((0.0, size * b.rng.uniform(-1, 0.5)))
        high = low + size * b.rng.uniform(0.2, 1)
    bounded = np.clip(values, np.float32(low), np.float32(high))
    if kind and float(np.ptp(bounded)) > size / 10:
        more = [b.constant(np.float32(end)) for end in (low, high)] if kind == "Clip" else []
        name, values = b.emit(kind, [name, *more]), bounded
    return b.rounded(name, values, like)


def window(b: Builder, spatial: Shape, *, least: int = 1, dilated: bool = True) -> dict[str, Any]:
    """Draws kernel, strides, dilations and pads that fit an image."""
    kernel = [b.number(least, 3) for _ in spatial]
    dilations = [b.pick((1, 1, 2)) if dilated else 1 for _ in spatial]
    pads = [b.number(0, min(2, d * (k - 1))) for _ in "ab" for k, d in zip(kernel, dilations, strict=True)]
    for n, k, d, low, high in zip(spatial, kernel, dilations, pads[: len(kernel)], pads[len(kernel) :], strict=True):
        b.need(n + low + high >= d * (k - 1) + 1)
    drawn = {"kernel_shape": kernel, "strides": [b.number(1, 2) for _ in spatial], "pads": pads}
    return drawn | ({"dilations": dilations} if dilated else {})


def geometry(b: Builder, x: Codes) -> tuple[dict[str, Any], int, int]:
    """Draws a window, groups and output channels of a convolution."""
    channels = x.shape[1]
    group = b.pick([g for g in range(1, channels + 1) if channels % g == 0])
    each = b.number(1, 3) if group > 1 else b.number(1, 7)
    return window(b, x.shape[2:]) | {"group": group}, group, group * each


def bias_of(b: Builder, count: int, scale: Array, values: Array) -> tuple[str, Array]:
    return b.real_bias(count, np.asarray(scale, np.float32), 0.3 * float(np.abs(values).max()) + 1e-3)


@step(6)
def conv(b: Builder) -> None:
    x = b.operand(3, 4, 4, 4, 5)
    given, group, outs = geometry(b, x)
    w = b.weights((outs, x.shape[1] // group, *given["kernel_shape"]), b.pick((None, 0)))
    (values,) = b.computed("Conv", [x.real, w.real], **given)
    names = [b.real(x), b.real_weights(w)]
    if not b.chance(3):
        name, bias = bias_of(b, outs, x.scale * w.scale, values)
        names, values = [*names, name], values + bias.reshape(1, -1, *[1] * (x.codes.ndim - 2))
    finish(b, b.emit("Conv", names, **given), values)


@step(2)
def conv_transpose(b: Builder) -> None:
    x = b.operand(3, 4, 4)
    given = window(b, x.shape[2:])
    group = b.pick([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0])
    given["group"] = group
    axis = b.pick((None, 1)) if group == 1 else None
    w = b.weights((x.shape[1], b.number(1, 4), *given["kernel_shape"]), axis)
    (values,) = b.computed("ConvTranspose", [x.real, w.real], **given)
    names = [b.real(x), b.real_weights(w)]
    if b.chance():
        name, bias = bias_of(b, values.shape[1], x.scale * w.scale, values)
        names, values = [*names, name], values + bias.reshape(1, -1, *[1] * (x.codes.ndim - 2))
    finish(b, b.emit("ConvTranspose", names, **given), values)


@step(3)
def gemm(b: Builder) -> None:
    x = b.operand(2, 2, 3, 4)
    if x.codes.ndim != 2:
        x = reshaped(b, x, (x.shape[0], -1))
    turned, outs = b.number(0, 1), b.number(1, 12)
    shape = (outs, x.shape[1]) if turned else (x.shape[1], outs)
    w = b.weights(shape, b.pick((None, 1 - turned)))
    given: dict[str, Any] = {"transB": turned, "alpha": b.rng.uniform(0.2, 2) if b.chance(4) else 1.0}
    (values,) = b.computed("Gemm", [x.real, w.real], **given)
    names = [b.real(x), b.real_weights(w)]
    if not b.chance(3):
        name, bias = bias_of(b, outs, x.scale * w.scale, values)
        names, values = [*names, name], values + bias
    finish(b, b.emit("Gemm", names, **given), values)


@step(3)
def matmul(b: Builder) -> None:
    """A product with constants on either side, sometimes with a bias behind."""
    x = b.operand(2, 3, 3, 4)
    left = b.chance(4)
    size, outs = x.shape[-2 if left else -1], b.number(1, 9)
    w = b.weights((outs, size) if left else (size, outs), b.pick((None, 0 if left else 1)))
    operands, names = [x.real, w.real], [b.real(x), b.real_weights(w)]
    if left:
        operands, names = operands[::-1], names[::-1]
    (values,) = b.computed("MatMul", operands)
    name = b.emit("MatMul", names)
    if not left and b.chance():
        added, bias = bias_of(b, outs, x.scale * w.scale, values)
        name, values = b.emit("Add", b.pick(([name, added], [added, name]))), values + bias
    finish(b, name, values)


@step(2)
def product_of_two(b: Builder) -> None:
    x = b.operand(2, 3, 4)
    y = transposed(b, x) if b.chance() else b.operand(len(x.shape))
    (values,) = b.computed("MatMul", [x.real, y.real])
    finish(b, b.emit("MatMul", [b.real(x), b.real(y)]), values)


@step(6)
def two_operands(b: Builder) -> None:
    """A sum or product of two tensors, which may be broadcast."""
    x, op = b.operand(), b.pick(("Add", "Add", "Sub", "Mul"))
    y = partner(b, x)
    pair = b.pick(((x, y), (y, x)))
    (values,) = b.computed(op, [c.real for c in pair])
    finish(b, b.emit(op, [b.real(c) for c in pair]), values)


def partner(b: Builder, x: Codes) -> Codes:
    """Returns a tensor that can be broadcast with another: one that there is, or a new input."""
    fits = [c for c in b.pool if all(m in (1, n) for m, n in zip(c.shape[::-1], x.shape[::-1], strict=False))]
    fits = [c for c in fits if len(c.shape) <= len(x.shape)]
    if fits and not b.chance(4):
        return b.pick(fits)
    b.need(len(b.inputs) < 4)
    return b.input(
        tuple(1 if b.chance(4) else n for n in x.shape)[b.number(0, len(x.shape) - 1) if b.chance(4) else 0 :]
    )


@step(2)
def with_a_constant(b: Builder) -> None:
    x, op = b.operand(), b.pick(("Add", "Sub", "Mul"))
    w = b.weights(tuple(1 if b.chance() else n for n in x.shape), None, BYTES)
    (values,) = b.computed(op, [x.real, w.real])
    names = [b.real(x), b.real_weights(w)]
    if op == "Sub" and b.chance():
        values, names = -values, names[::-1]
    finish(b, b.emit(op, names), values)


@step(3)
def three_terms(b: Builder) -> None:
    """Sums of sums without rounding between."""
    x = b.operand()
    same = [c for c in b.pool if c.shape == x.shape]
    others = [b.pick(same) for _ in range(2)]
    name, values = b.real(x), x.real
    for other in others:
        name, values = b.emit("Add", [name, b.real(other)]), values + other.real
    finish(b, name, values)


@step(2)
def without_rounding(b: Builder) -> None:
    """Several operators before the numbers are rounded."""
    x = b.operand()
    name, values = b.real(x), x.real
    for _ in range(b.number(2, 3)):
        other = b.pick([c for c in b.pool if c.shape == x.shape])
        op = b.pick(("Add", "Sub", "Mul", "Sum", "Concat", "Relu", "GlobalMaxPool", "ReduceSum"))
        names, operands, given = [name, b.real(other)], [values, other.real], dict[str, Any]()
        if op in ("Relu", "GlobalMaxPool"):
            b.need(op == "Relu" or values.ndim == 4)
            names, operands = names[:1], operands[:1]
        elif op == "ReduceSum":
            axes = np.array([b.number(0, values.ndim - 1)])
            names, operands = [name, b.constant(axes)], [values, axes]
        elif op == "Concat":
            given = {"axis": values.ndim - 1}
        (values,) = b.computed(op, operands, **given)
        name = b.emit(op, names, **given)
    b.floats = True  # some of them only floats can compute
    finish(b, name, values)


@step(4)
def function_of_one(b: Builder) -> None:
    x = b.operand()
    name, values = b.real(x), x.real
    for _ in range(b.pick((1, 1, 2))):
        op = b.pick(UNARY[:-3] if b.opset < 20 else UNARY)
        given: dict[str, Any] = (
            {"alpha": float(b.rng.uniform(0.01, 0.5))} if op in ("LeakyRelu", "Elu", "HardSigmoid") else {}
        )
        (values,) = b.computed(op, [values], **given)
        name = b.emit(op, [name], **given)
    b.floats |= x.dtype not in BYTES
    finish(b, name, values) if b.chance(4) else b.rounded(name, values)


@step(2)
def bounded(b: Builder) -> None:
    x = b.operand()
    finish(b, b.real(x), x.real)


@step(3)
def pool(b: Builder) -> None:
    x, op = b.operand(3, 4, 4, 4, 5), b.pick(("MaxPool", "AveragePool"))
    given: dict[str, Any] = window(b, x.shape[2:], dilated=False) | {"ceil_mode": b.number(0, 1)}
    b.need(b.opset >= 22 or not given["ceil_mode"] or _last_begins_inside(x.shape[2:], given))
    half = [k // 2 for k in given["kernel_shape"]]
    b.need(all(p <= h for p, h in zip(given["pads"], half * 2, strict=True)))
    if op == "AveragePool":
        given["count_include_pad"] = b.number(0, 1)
    (values,) = b.computed(op, [x.real], **given)
    finish(b, b.emit(op, [b.real(x)], **given), values, x if op == "MaxPool" and b.chance() else None)


def _last_begins_inside(spatial: Shape, given: dict[str, Any]) -> bool:
    """True if no window of ceil_mode begins behind the image: older opsets infer an output too many for it."""
    sizes = zip(
        spatial, given["kernel_shape"], given["strides"], given["pads"], given["pads"][len(spatial) :], strict=False
    )
    return all(-(-(n + low + high - k) // s) * s < n + low for n, k, s, low, high in sizes)


@step(2)
def whole_mean(b: Builder) -> None:
    if b.chance():
        x = b.operand(3, 4)
        (values,) = b.computed("GlobalAveragePool", [x.real])
        finish(b, b.emit("GlobalAveragePool", [b.real(x)]), values)
        return
    x = b.operand(2, 3, 4)
    axes = sorted(b.rng.sample(range(x.codes.ndim), b.number(1, x.codes.ndim - 1)))
    op = b.pick(("ReduceMean", "ReduceMean", "ReduceSum"))
    keep = b.number(0, 1)
    b.need(b.opset >= 18 or op == "ReduceSum")
    values = (np.mean if op == "ReduceMean" else np.sum)(x.real, axis=tuple(axes), keepdims=bool(keep))
    finish(b, b.emit(op, [b.real(x), b.constant(np.array(axes))], keepdims=keep), np.asarray(values, np.float32))


# Moves


def moved(b: Builder, x: Codes, op: str, more: Sequence[Array], **attributes: Any) -> None:
    """Adds an operator that moves elements: of the real numbers, mostly, or of the integers themselves."""
    (values,) = b.computed(op, [x.real, *more], **attributes)
    constants = [b.constant(m) for m in more]
    if b.chance(3):
        b.put(b.emit(op, [x.name, *constants], **attributes), values, x.dtype, x.scale, x.zero)
        return
    name = b.emit(op, [b.real(x), *constants], **attributes)
    finish(b, name, values) if b.chance() else b.rounded(name, values, x)


def reshaped(b: Builder, x: Codes, shape: Sequence[int]) -> Codes:
    values = x.real.reshape(shape)
    name = b.emit("Reshape", [b.real(x), b.constant(np.array(values.shape))])
    return b.rounded(name, values, x)


def transposed(b: Builder, x: Codes) -> Codes:
    order = [*range(x.codes.ndim - 2), x.codes.ndim - 1, x.codes.ndim - 2]
    return b.rounded(b.emit("Transpose", [b.real(x)], perm=order), x.real.transpose(order), x)


@step(2)
def concat(b: Builder) -> None:
    x = b.operand(2, 3, 4)
    axis = b.number(0, x.codes.ndim - 1)
    alike = [c for c in b.pool if len(c.shape) == len(x.shape)]
    others = [c for c in alike if np.delete(c.shape, axis).tolist() == np.delete(x.shape, axis).tolist()]
    parts = [x, *(b.pick(others) for _ in range(b.number(1, 2)))]
    values = np.concatenate([c.real for c in parts], axis)
    finish(b, b.emit("Concat", [b.real(c) for c in parts], axis=axis), values, b.pick((None, None, parts[-1])))


@step(1)
def split(b: Builder) -> None:
    x = b.operand(2, 3, 4)
    axis = b.pick([a for a, n in enumerate(x.shape) if n > 1] or [0])
    b.need(x.shape[axis] > 1)
    first = b.number(1, x.shape[axis] - 1)
    name = b.emit("Split", [b.real(x), b.constant(np.array([first, x.shape[axis] - first]))], 2, axis=axis)
    for part, values in zip((name, f"{name}.1"), np.split(x.real, [first], axis), strict=True):
        b.rounded(part, values, b.pick((x, None)))


@step(1)
def cut(b: Builder) -> None:
    x = b.operand(2, 3, 4)
    axis = b.number(0, x.codes.ndim - 1)
    start, count = b.number(0, x.shape[axis] - 1), b.number(1, 2)
    parts = [np.array([n]) for n in (start, x.shape[axis], axis, count)]
    moved(b, x, "Slice", parts)


@step(1)
def turn(b: Builder) -> None:
    x = b.operand(2, 3, 4)
    moved(b, x, "Transpose", [], perm=b.rng.sample(range(x.codes.ndim), x.codes.ndim))


@step(1)
def reshape(b: Builder) -> None:
    x = b.operand()
    size = x.codes.size
    first = b.pick([n for n in range(1, size + 1) if size % n == 0])
    second = b.pick([n for n in range(1, size // first + 1) if (size // first) % n == 0])
    shape = b.pick(
        ((first, size // first), (1, first, second, size // first // second), (first, second, size // first // second))
    )
    moved(b, x, "Reshape", [np.array(shape)])


@step(2)
def pad(b: Builder) -> None:
    x = b.operand(2, 3, 4)
    pads = [b.pick((0, 0, 1, 2)) for _ in range(2 * x.codes.ndim)]
    value = np.float32(0) if b.chance() else np.float32((b.number(*limits(x.dtype)) - x.zero) * x.scale)
    values = np.pad(
        x.real, list(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True)), constant_values=value
    )
    name = b.emit("Pad", [b.real(x), b.constant(np.array(pads)), *([b.constant(value)] if value or b.chance() else [])])
    finish(b, name, values) if b.chance() else b.rounded(name, values, x)


@step(1)
def nearest(b: Builder) -> None:
    x = b.operand(4)
    scales = np.array([1, 1, b.pick((1, 2)), b.pick((2, 3))], np.float32)
    name = b.emit(
        "Resize",
        [b.real(x), "", b.constant(scales)],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    values = x.real.repeat(int(scales[2]), 2).repeat(int(scales[3]), 3)
    finish(b, name, values, b.pick((None, x)))


# Operators that read and write integers


def triple(b: Builder, x: Codes) -> list[str]:
    return [x.name, *b.parameters(x.scale, x.zero, x.dtype)]


def byte_operand(b: Builder, *ranks: int, dtype: str = "") -> Codes:
    known = [c for c in b.pool if (not ranks or len(c.shape) in ranks) and c.dtype in ((dtype,) if dtype else BYTES)]
    b.need(bool(known))
    return b.pick(known)


def constant_triple(b: Builder, w: Weights) -> list[str]:
    return [b.constant(of_type(w.codes, w.dtype)), *b.parameters(w.scale, w.zero, w.dtype)]


def closed(
    b: Builder, op: str, names: list[str], values: Array, dtype: str, domain: str = CONTRIBUTED, **given: Any
) -> None:
    """Adds an operator whose result has scale and zero point after its other inputs."""
    b.need(0 < values.size <= MAX_ELEMENTS)
    _, scale, zero = b.fitted(values, dtype)
    b.put(b.emit(op, [*names, *b.parameters(scale, zero, dtype)], domain=domain, **given), values, dtype, scale, zero)


@step(3)
def qlinear_conv(b: Builder) -> None:
    x = byte_operand(b, 3, 4)
    given, group, outs = geometry(b, x)
    types = BYTES if x.dtype == "uint8" else ("int8",)
    w = b.weights((outs, x.shape[1] // group, *given["kernel_shape"]), b.pick((None, 0)), types)
    (values,) = b.computed("Conv", [x.real, w.real], **given)
    units = np.asarray(x.scale * w.scale, np.float32)
    bias = np.rint(b.numbers.normal(0, 0.3 * float(np.abs(values).max()) + 1e-6, outs) / units).astype(np.int32)
    values = values + (bias * units).astype(np.float32).reshape(1, -1, *[1] * (x.codes.ndim - 2))
    _, scale, zero = b.fitted(values, x.dtype)
    b.need(values.size <= MAX_ELEMENTS)
    names = [*triple(b, x), *constant_triple(b, w), *b.parameters(scale, zero, x.dtype), b.constant(bias)]
    b.put(b.emit("QLinearConv", names, **given), values, x.dtype, scale, zero)


@step(2)
def qlinear_matmul(b: Builder) -> None:
    x = byte_operand(b, 2, 3)
    types = BYTES if x.dtype == "uint8" else ("int8",)
    w = b.weights((x.shape[-1], b.number(1, 9)), b.pick((None, 1)), types)
    closed(b, "QLinearMatMul", [*triple(b, x), *constant_triple(b, w)], x.real @ w.real, x.dtype, "")


@step(1)
def qgemm(b: Builder) -> None:
    x = byte_operand(b, 2)
    turned, outs = b.number(0, 1), b.number(1, 9)
    types = BYTES if x.dtype == "uint8" else ("int8",)
    w = b.weights((outs, x.shape[1]) if turned else (x.shape[1], outs), None, types)
    values = x.real @ (w.real.T if turned else w.real)
    units = np.float32(x.scale * w.scale)
    bias = np.rint(b.numbers.normal(0, 0.3 * float(np.abs(values).max()) + 1e-6, outs) / units).astype(np.int32)
    names = [*triple(b, x), *constant_triple(b, w), b.constant(bias)]
    alpha = float(np.float32(b.rng.uniform(0.2, 2))) if b.chance(4) else 1.0
    values = np.asarray(alpha * (values + (bias * units).astype(np.float32)), np.float32)
    closed(b, "QGemm", names, values, x.dtype, transB=turned, alpha=alpha)


@step(2)
def qlinear_two(b: Builder) -> None:
    x = byte_operand(b)
    fits = [c for c in b.pool if c.dtype == x.dtype and c.shape == x.shape]
    y, op = b.pick(fits), b.pick(("Add", "Mul"))
    values = x.real + y.real if op == "Add" else x.real * y.real
    closed(b, f"QLinear{op}", [*triple(b, x), *triple(b, y)], values, x.dtype)


@step(2)
def qlinear_pool(b: Builder) -> None:
    x = byte_operand(b, 4)
    if b.chance():
        values = x.real.mean(axis=(2, 3), keepdims=True)
        _, scale, zero = b.fitted(values, x.dtype)
        # onnxruntime computes with a factor of fixed point, which ends here.
        b.need(float(x.scale) < 255 * float(scale) * int(np.prod(x.shape[2:])))
        names = [*triple(b, x), *b.parameters(scale, zero, x.dtype)]
        b.put(
            b.emit("QLinearGlobalAveragePool", names, domain=CONTRIBUTED, channels_last=0), values, x.dtype, scale, zero
        )
        return
    given: dict[str, Any] = window(b, x.shape[2:], dilated=False) | {"count_include_pad": b.number(0, 1)}
    b.need(all(p <= k // 2 for p, k in zip(given["pads"], given["kernel_shape"] * 2, strict=True)))
    (values,) = b.computed("AveragePool", [x.real], **given)
    closed(b, "QLinearAveragePool", triple(b, x), values, x.dtype, **given)


@step(1)
def qlinear_concat(b: Builder) -> None:
    x = byte_operand(b, 2, 3, 4)
    parts = [x, b.pick([c for c in b.pool if c.dtype == x.dtype and c.shape == x.shape])]
    values = np.concatenate([c.real for c in parts], 1)
    _, scale, zero = b.fitted(values, x.dtype)
    b.need(values.size <= MAX_ELEMENTS)
    names = [*b.parameters(scale, zero, x.dtype), *(n for c in parts for n in triple(b, c))]
    b.put(b.emit("QLinearConcat", names, domain=CONTRIBUTED, axis=1), values, x.dtype, scale, zero)


@step(1)
def qlinear_table(b: Builder) -> None:
    x, op = byte_operand(b), b.pick(("Sigmoid", "LeakyRelu"))
    given: dict[str, Any] = {"alpha": float(b.rng.uniform(0.01, 0.5))} if op == "LeakyRelu" else {}
    (values,) = b.computed(op, [x.real], **given)
    closed(b, f"QLinear{op}", triple(b, x), values, x.dtype, **given)


@step(1)
def plain_integers(b: Builder) -> None:
    """Sums of 32 bits that are an output, or become real numbers by a product."""
    is_conv = b.chance()
    x = byte_operand(b, 4, dtype="uint8") if is_conv else byte_operand(b, 2, 3)
    types = BYTES if x.dtype == "uint8" else ("int8",)
    given: dict[str, Any] = {}
    if is_conv:
        given, group, outs = geometry(b, x)
        w = b.weights((outs, x.shape[1] // group, *given["kernel_shape"]), None, ("uint8",))
        (values,) = b.computed("Conv", [x.real, w.real], **given)
    else:
        w = b.weights((x.shape[-1], b.number(1, 9)), None, types)
        values = x.real @ w.real
    b.need(0 < values.size <= MAX_ELEMENTS)
    zeros = [b.constant(of_type(c.zero, c.dtype)) for c in (x, w)]
    op = "ConvInteger" if is_conv else "MatMulInteger"
    name = b.emit(op, [x.name, b.constant(of_type(w.codes, w.dtype)), *zeros], **given)
    b.outputs.append(helper.make_tensor_value_info(name, TensorProto.INT32, values.shape))


# Floats


@step(1)
def section_of_floats(b: Builder) -> None:
    b.need(b.chance(3))
    b.floats = True
    x = b.operand(2, 3, 4)
    op = b.pick(("Softmax", "LayerNormalization", "Resize"))
    if op == "Softmax":
        (values,) = b.computed(op, [x.real], axis=-1)
        b.rounded(b.emit(op, [b.real(x)], axis=-1), values)
    elif op == "LayerNormalization":
        b.need(b.opset >= 17 and x.shape[-1] > 2)
        scale = b.numbers.uniform(0.5, 1.5, x.shape[-1]).astype(np.float32)
        (values,) = b.computed(op, [x.real, scale], axis=-1)
        b.rounded(b.emit(op, [b.real(x), b.constant(scale)], axis=-1), values)
    else:
        b.need(x.codes.ndim == 4)
        scales = np.array([1, 1, 2, b.pick((1, 2))], np.float32)
        (values,) = b.computed(op, [x.real, np.zeros(0, np.float32), scales], mode="linear")
        b.rounded(b.emit(op, [b.real(x), "", b.constant(scales)], mode="linear"), values)


def build(b: Builder, most: int) -> None:
    """Adds inputs, and up to `most` steps."""
    for _ in range(b.number(1, 2)):
        rank = b.pick((2, 3, 4, 4, 4, 4, 5))
        shape = (b.pick((1, 1, 1, 2)), *(b.number(1, 7) for _ in range(rank - 1)))
        b.input(shape if math.prod(shape) <= 250 else (*shape[:2], *[3] * (rank - 2)))
    wanted, tries = b.number(1, most), 0
    while wanted and tries < 60:
        kept = b.state()
        tries += 1
        try:
            b.pick(STEPS)(b)
            wanted -= 1
        except MisfitError:
            b.restore(kept)
