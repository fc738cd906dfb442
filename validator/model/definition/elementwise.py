"""Exact element-wise operators: quantisation, sums, products and bounds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from raptor.common.errors import UserError
from validator.model.definition.exact_rounding import (
    FLOAT32_UNIT,
    QuantizeTarget,
    are_powers_of_two,
    quantise_exactly,
    quantise_floats,
)
from validator.model.definition.exact_values import (
    CODE_BITS,
    ExactReal,
    RoundedCodes,
    ScaledTerm,
    Value,
    is_codes,
    shape_of,
)
from validator.model.definition.linear_operators import (
    PRODUCT_ROUNDINGS,
    add_bias,
    factor_terms,
    multiply_scales,
    multiply_terms,
)
from validator.model.definition.nodes import (
    OperatorNode,
    OperatorResult,
    broadcast_parameter,
    dequantize_exactly,
    read_scale,
    read_zero_point,
)


def dequantize(node: OperatorNode) -> OperatorResult:
    x = node.code_operand(0, "the operand")
    scale = read_scale(node, 1, "the operand")
    zero = read_zero_point(node, 2, "the operand", x.dtype, scale)
    shape = x.shape
    return [
        dequantize_exactly(
            x,
            broadcast_parameter(node, scale, shape, "the operand"),
            broadcast_parameter(node, zero, shape, "the operand"),
        )
    ]


def quantize(node: OperatorNode) -> OperatorResult:
    x = node.operand(0)
    if x is None:
        return None
    if isinstance(x, np.ndarray) and x.dtype != np.float32:
        raise UserError(f"{node.where}: the operand is {x.dtype.name}, expected float32")
    made = quantize_target(node, shape_of(x))
    if isinstance(x, ExactReal):
        return [quantise_exactly(x, made)]
    codes = quantise_floats(x, made).astype(made.dtype)
    exact = x.astype(np.float64) / made.scale
    unit = 0.0 if are_powers_of_two(made.scale) else FLOAT32_UNIT
    return [RoundedCodes(codes, made.zero, lambda: (exact, np.abs(exact) * unit))]


def quantize_target(node: OperatorNode, shape: Sequence[int]) -> QuantizeTarget:
    """Returns the type, scale and zero point of a QuantizeLinear whose result has this shape."""
    output, scale = node.attributes.get("output_dtype", 0), read_scale(node, 1, "the result")
    zero = read_zero_point(node, 2, "the result", None, scale)
    dtype = zero.dtype
    if output:
        import onnx

        dtype = onnx.helper.tensor_dtype_to_np_dtype(output)
        if node.operand(2) is not None and dtype != zero.dtype:
            raise UserError(f"{node.where}: the zero point is {zero.dtype.name}, output_dtype is {dtype.name}")
    if CODE_BITS.get(dtype.name, 32) == 32:
        raise UserError(f"{node.where}: cannot quantise to {dtype.name}")
    factor, point = (broadcast_parameter(node, a, shape, "the result") for a in (scale, zero))
    return QuantizeTarget(factor, point.astype(np.int64), dtype, node.where)


def add(node: OperatorNode) -> OperatorResult:
    return _added(node, 1)


def sub(node: OperatorNode) -> OperatorResult:
    return _added(node, -1)


def sum_operands(node: OperatorNode) -> OperatorResult:
    """Computes ONNX's Sum, of any number of operands."""
    return _added(node, 1)


def _added(node: OperatorNode, sign: int) -> OperatorResult:
    """Adds exact numbers; the second with a sign. A constant that is added to sums of products is their bias."""
    made = _biased(node) if len(node.operands) == 2 and sign == 1 else None
    if made is not None:
        return made
    terms: list[ScaledTerm] = []
    for k, value in enumerate(node.operands):
        found = _terms(value)
        if found is None:
            return None
        terms += [replace(term, units=-term.units) for term in found] if k and sign < 0 else found
    shape = np.broadcast_shapes(*(term.units.shape for term in terms))
    more = len(terms) - 2  # additions beyond the one that every quantised sum has
    return [ExactReal(tuple(replace(_broadcast(term, shape), steps=term.steps + more) for term in terms), "other")]


def _biased(node: OperatorNode) -> OperatorResult:
    first, second = node.operand(0), node.operand(1)
    for sums, other, k in ((first, second, 1), (second, first, 0)):
        if isinstance(sums, ExactReal) and sums.kind == "sums" and other is not None and node.constant_operands[k]:
            return add_bias(node, sums, other)
    return None


def _terms(value: Value | None) -> Sequence[ScaledTerm] | None:
    """Returns the terms of a number; None if it has bounds that are not integers in its scale."""
    if not isinstance(value, ExactReal):
        return None
    if not value.is_bounded:
        return value.terms
    return None if value.integer_term is None else [value.integer_term]


def _broadcast(term: ScaledTerm, shape: Sequence[int]) -> ScaledTerm:
    return replace(term, units=np.broadcast_to(term.units, shape))


def mul(node: OperatorNode) -> OperatorResult:
    found = factor_terms(node)
    if found is None:
        return None
    made = multiply_terms(*found, multiply_scales(node, *found), 1, lambda a, b: a * b)
    return None if made is None else [ExactReal((replace(made, steps=made.steps + PRODUCT_ROUNDINGS - 1),), "other")]


def relu(node: OperatorNode) -> OperatorResult:
    x = node.operand(0)
    if isinstance(x, np.ndarray) and is_codes(x):
        return [np.maximum(x, np.zeros((), x.dtype))]
    if not isinstance(x, ExactReal):
        return None
    if x.kind == "plain" and x.single_term is not None:
        units = np.maximum(x.terms[0].units, 0)
        return [replace(x, terms=(replace(x.terms[0], units=units, size=lambda: units),))]
    return [x.clamp(0.0, np.inf)]


def clip(node: OperatorNode) -> OperatorResult:
    x = node.operand(0)
    if isinstance(x, np.ndarray) and is_codes(x):
        low, high = (None if b is None else np.asarray(b) for b in (node.operand(1), node.operand(2)))
        return [np.clip(x, low, high).astype(x.dtype)]
    ends = clip_bounds(node)
    return [x.clamp(*ends)] if isinstance(x, ExactReal) and ends is not None else None


def clip_bounds(node: OperatorNode) -> tuple[float, float] | None:
    """Returns the bounds of a Relu or Clip; None if a bound is not known."""
    if node.proto.op_type == "Relu":
        return 0.0, np.inf
    given = node.attributes
    low, high = (_bound(node.operand(1), given.get("min", -np.inf)), _bound(node.operand(2), given.get("max", np.inf)))
    return None if low is None or high is None else (low, high)


def cast(node: OperatorNode) -> OperatorResult:
    """Returns exact numbers unchanged if they are cast to float32; None for other casts."""
    x = node.operand(0)
    return [x] if isinstance(x, ExactReal) and node.attributes["to"] == TensorProto.FLOAT else None


def _bound(value: Value | None, default: float) -> float | None:
    """Returns a bound of a Clip, None if it is not one number. A dequantised constant counts as its float32 value."""
    if isinstance(value, ExactReal):
        value = value.to_floats() if value.kind == "plain" and value.single_term is not None else np.zeros(0)
    if value is None:
        return float(np.float32(default))
    return float(np.float32(value.reshape(-1)[0])) if value.size == 1 else None
