"""Exact element-wise operators: quantisation, sums, products and bounds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from raptor.common.errors import UserError
from validator.definition.nodes import Node, Result, real, scale_of, spread, zero_of
from validator.definition.rounding import UNIT, Target, powers_of_two, quantise, quantised
from validator.definition.sums import BOTH, biased, factors, multiplied_units, scales
from validator.definition.values import BITS, Real, Rounded, Term, Value, is_codes, shape_of


def dequantize(node: Node) -> Result:
    x = node.codes(0, "the operand")
    scale = scale_of(node, 1, "the operand")
    zero = zero_of(node, 2, "the operand", x.dtype, scale)
    shape = x.shape
    return [real(x, spread(node, scale, shape, "the operand"), spread(node, zero, shape, "the operand"))]


def quantize(node: Node) -> Result:
    x = node.get(0)
    if x is None:
        return None
    if isinstance(x, np.ndarray) and x.dtype != np.float32:
        raise UserError(f"{node.where}: the operand is {x.dtype.name}, expected float32")
    made = wanted(node, shape_of(x))
    if isinstance(x, Real):
        return [quantise(x, made)]
    codes = quantised(x, made).astype(made.dtype)
    exact = x.astype(np.float64) / made.scale
    unit = 0.0 if powers_of_two(made.scale) else UNIT
    return [Rounded(codes, made.zero, lambda: (exact, np.abs(exact) * unit))]


def wanted(node: Node, shape: Sequence[int]) -> Target:
    """Returns the type, scale and zero point of a QuantizeLinear whose result has this shape."""
    output, scale = node.attributes.get("output_dtype", 0), scale_of(node, 1, "the result")
    zero = zero_of(node, 2, "the result", None, scale)
    dtype = zero.dtype
    if output:
        import onnx

        dtype = onnx.helper.tensor_dtype_to_np_dtype(output)
        if node.get(2) is not None and dtype != zero.dtype:
            raise UserError(f"{node.where}: the zero point is {zero.dtype.name}, output_dtype is {dtype.name}")
    if BITS.get(dtype.name, 32) == 32:
        raise UserError(f"{node.where}: cannot quantise to {dtype.name}")
    factor, point = (spread(node, a, shape, "the result") for a in (scale, zero))
    return Target(factor, point.astype(np.int64), dtype, node.where)


def add(node: Node) -> Result:
    return _added(node, 1)


def sub(node: Node) -> Result:
    return _added(node, -1)


def total(node: Node) -> Result:
    """Computes ONNX's Sum, of any number of operands."""
    return _added(node, 1)


def _added(node: Node, sign: int) -> Result:
    """Adds exact numbers; the second with a sign. A constant that is added to sums of products is their bias."""
    made = _biased(node) if len(node.operands) == 2 and sign == 1 else None
    if made is not None:
        return made
    terms: list[Term] = []
    for k, value in enumerate(node.operands):
        found = _terms(value)
        if found is None:
            return None
        terms += [replace(term, units=-term.units) for term in found] if k and sign < 0 else found
    shape = np.broadcast_shapes(*(term.units.shape for term in terms))
    more = len(terms) - 2  # additions beyond the one that every quantised sum has
    return [Real(tuple(replace(_broadcast(term, shape), steps=term.steps + more) for term in terms), "other")]


def _biased(node: Node) -> Result:
    first, second = node.get(0), node.get(1)
    for sums, other, k in ((first, second, 1), (second, first, 0)):
        if isinstance(sums, Real) and sums.kind == "sums" and other is not None and node.fixed[k]:
            return biased(node, sums, other)
    return None


def _terms(value: Value | None) -> Sequence[Term] | None:
    """Returns the terms of a number; None if it has bounds that are not integers in its scale."""
    if not isinstance(value, Real):
        return None
    if not value.bounded:
        return value.terms
    return None if value.whole is None else [value.whole]


def _broadcast(term: Term, shape: Sequence[int]) -> Term:
    return replace(term, units=np.broadcast_to(term.units, shape))


def mul(node: Node) -> Result:
    found = factors(node)
    if found is None:
        return None
    made = multiplied_units(*found, scales(node, *found), 1, lambda a, b: a * b)
    return None if made is None else [Real((replace(made, steps=made.steps + BOTH - 1),), "other")]


def relu(node: Node) -> Result:
    x = node.get(0)
    if isinstance(x, np.ndarray) and is_codes(x):
        return [np.maximum(x, np.zeros((), x.dtype))]
    if not isinstance(x, Real):
        return None
    if x.kind == "plain" and x.single is not None:
        units = np.maximum(x.terms[0].units, 0)
        return [replace(x, terms=(replace(x.terms[0], units=units, size=lambda: units),))]
    return [x.clamped(0.0, np.inf)]


def clip(node: Node) -> Result:
    x = node.get(0)
    if isinstance(x, np.ndarray) and is_codes(x):
        low, high = (None if b is None else np.asarray(b) for b in (node.get(1), node.get(2)))
        return [np.clip(x, low, high).astype(x.dtype)]
    ends = bounds(node)
    return [x.clamped(*ends)] if isinstance(x, Real) and ends is not None else None


def bounds(node: Node) -> tuple[float, float] | None:
    """Returns the bounds of a Relu or Clip; None if a bound is not known."""
    if node.proto.op_type == "Relu":
        return 0.0, np.inf
    given = node.attributes
    low, high = (_bound(node.get(1), given.get("min", -np.inf)), _bound(node.get(2), given.get("max", np.inf)))
    return None if low is None or high is None else (low, high)


def cast(node: Node) -> Result:
    """Returns exact numbers unchanged if they are cast to float32; None for other casts."""
    x = node.get(0)
    return [x] if isinstance(x, Real) and node.attributes["to"] == TensorProto.FLOAT else None


def _bound(value: Value | None, default: float) -> float | None:
    """Returns a bound of a Clip, None if it is not one number. A dequantised constant counts as its float32 value."""
    if isinstance(value, Real):
        value = value.floats() if value.kind == "plain" and value.single is not None else np.zeros(0)
    if value is None:
        return float(np.float32(default))
    return float(np.float32(value.reshape(-1)[0])) if value.size == 1 else None
