"""Operators on quantised tensors: QLinearConv, QLinearMatMul, ConvInteger, MatMulInteger, and com.microsoft's.

Each is computed as DequantizeLinear, the operator on exact numbers, QuantizeLinear.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from raptor.common.errors import UserError
from validator.definition import elementwise, pools, products, shapes, sums
from validator.definition.nodes import Node, Operator, Result, one_zero, real, scale_of, target, zero_of
from validator.definition.rounding import quantise
from validator.definition.values import Array, Ints, Real, Value, along, fits_int32, largest

_EXACT_FLOAT = 2**24


def _operand(node: Node, at: int, what: str, *, raw: bool = False) -> Real:
    """Returns the quantised operand at `at`, whose scale and zero point follow it, as exact numbers."""
    x = node.codes(at, what)
    scale = scale_of(node, at + 1, what)
    zero = zero_of(node, at + 2, what, x.dtype, scale)
    if scale.size != 1:
        raise UserError(f"{node.where}: {what} has {scale.size} scales, expected one")
    return real(x, scale.reshape(()), zero.reshape(()), raw=raw)


def _with_operands(node: Node, operands: Sequence[Value | None]) -> Node:
    """Returns the node with the operands of the operator on exact numbers."""
    return replace(node, operands=operands, fixed=[True] * len(operands))


def _number(node: Node, found: Result, missing: str = "has no exact form") -> Real:
    """Returns the only result. Raises `UserError` with the reason `missing` if there is none."""
    if found is None:
        raise UserError(f"{node.where}: {missing}")
    (number,) = found
    assert isinstance(number, Real)
    return number


def _sum_rounded(node: Node, found: Result, scale: int, dtype: "np.dtype[Any]") -> Result:
    """Quantises sums of products. onnxruntime converts them to float32, multiplies, rounds, adds the zero point."""
    number = _number(node, found, "the scales differ inside of a sum")
    term = number.terms[0]
    large = largest(term.units) >= _EXACT_FLOAT
    sharp = replace(number, terms=(replace(term, size=lambda: np.abs(term.units), steps=int(large)),))
    made = target(node, scale, scale + 1, dtype, 1)
    return [quantise(sharp, replace(made, with_zero=False))]


def qlinear_conv(node: Node) -> Result:
    x, w = _operand(node, 0, "x"), node.codes(3, "w")
    scale = scale_of(node, 4, "w")
    zero = one_zero(node, 5, "w", w.dtype, scale)
    if scale.size not in (1, len(w)):
        raise UserError(f"{node.where}: w has {len(w)} output channels and {scale.size} scales")
    weights = real(w, along(scale, 0, w.ndim), zero.ravel()[:1].reshape(()))
    found = sums.convolved(node, x.terms[0], weights.terms[0], None)
    return _sum_rounded(node, _plus_int32(node, found, 8, w.ndim - 2), 6, node.codes(0, "x").dtype)


def _plus_int32(node: Node, found: Result, at: int, behind: int) -> Result:
    """Adds an int32 bias, which is in units of the sums."""
    if found is None or node.get(at) is None:
        return found
    bias = node.codes(at, "the bias")
    if bias.dtype != np.int32:
        raise UserError(f"{node.where}: the bias is {bias.dtype.name}, expected int32")
    number = _number(node, found)
    added = bias.astype(np.int64).reshape(-1, *[1] * behind) if behind else bias.astype(np.int64)
    units = fits_int32(number.terms[0].units + added, node.where)
    return [replace(number, terms=(replace(number.terms[0], units=units),))]


def qlinear_matmul(node: Node) -> Result:
    a, b = (_matrix(node, at, what, axis) for at, what, axis in ((0, "a", -2), (3, "b", -1)))
    found = sums.multiplied(node, a.terms[0], b.terms[0])
    return _sum_rounded(node, found, 6, node.codes(0, "a").dtype)


def _matrix(node: Node, at: int, what: str, axis: int) -> Real:
    """Returns a matrix with one scale, or one for each row of a (axis -2) or column of b (axis -1)."""
    x = node.codes(at, what)
    scale = scale_of(node, at + 1, what)
    zero = zero_of(node, at + 2, what, x.dtype, scale)
    return real(x, _per_line(node, scale, x, what, axis), _per_line(node, zero, x, what, axis))


def _per_line(node: Node, parameter: Array, x: Array, what: str, axis: int) -> Array:
    if parameter.size == 1:
        return parameter.reshape(())
    if parameter.ndim == 1 and x.ndim > 1 and parameter.size == x.shape[axis]:
        return along(parameter, axis, x.ndim)
    other = -1 if axis == -2 else -2
    if parameter.ndim == x.ndim and parameter.shape[other] == 1 and parameter.shape[axis] == x.shape[axis]:
        return parameter
    shapes = f"shape {list(parameter.shape)} do not fit {what} of shape {list(x.shape)}"
    raise UserError(f"{node.where}: scales or zero points of {shapes}")


def qgemm(node: Node) -> Result:
    given = node.attributes
    a = _operand(node, 0, "A")
    w = node.codes(3, "B")
    scale = scale_of(node, 4, "B")
    zero = zero_of(node, 5, "B", w.dtype, scale)
    axis = 0 if given.get("transB", 0) else 1
    b = real(w, along(scale, axis, 2), along(zero, axis, 2))
    found = sums.gemm(_with_operands(node, [a, b]))
    found = _plus_int32(node, found, 6, 0)
    if node.get(7) is None and found is not None:
        return [replace(v, kind="plain") for v in found if isinstance(v, Real)]
    return _sum_rounded(node, found, 7, node.codes(0, "A").dtype)


def conv_integer(node: Node) -> Result:
    x, w = node.codes(0, "x"), node.codes(1, "w")
    zeros = [_integer_zero(node, 2, "x", x), _integer_zero(node, 3, "w", w)]
    per_channel = along(zeros[1], 0, w.ndim)
    units = products.conv(node.proto, x.astype(np.int64) - zeros[0].reshape(()), w.astype(np.int64) - per_channel)
    return [fits_int32(units, node.where).astype(np.int32)]


def matmul_integer(node: Node) -> Result:
    a, b = node.codes(0, "A"), node.codes(1, "B")
    rows = _per_line(node, _integer_zero(node, 2, "A", a), a, "A", -2)
    columns = _per_line(node, _integer_zero(node, 3, "B", b), b, "B", -1)
    units = products.matmul(a.astype(np.int64) - rows, b.astype(np.int64) - columns)
    return [fits_int32(units, node.where).astype(np.int32)]


def _integer_zero(node: Node, at: int, what: str, x: Array) -> Ints:
    if node.get(at) is None:
        return np.zeros((), np.int64)
    zero = node.codes(at, f"the zero point of {what}")
    if zero.dtype != x.dtype:
        raise UserError(f"{node.where}: the zero point of {what} is {zero.dtype.name}, but {what} is {x.dtype.name}")
    return zero.astype(np.int64)


def _quantise_result(node: Node, found: Result, scale: int, steps: int) -> Result:
    """Quantises the result of an operator on exact numbers."""
    made = target(node, scale, scale + 1, node.codes(0, "the operand").dtype, steps)
    return [quantise(_number(node, found), made)]


def qlinear_add(node: Node) -> Result:
    a, b = _operand(node, 0, "A", raw=True), _operand(node, 3, "B", raw=True)
    return _quantise_result(node, elementwise.add(_with_operands(node, [a, b])), 6, 8)


def qlinear_mul(node: Node) -> Result:
    a, b = _operand(node, 0, "A"), _operand(node, 3, "B")
    return _quantise_result(node, elementwise.mul(_with_operands(node, [a, b])), 6, 8)


def qlinear_average_pool(node: Node) -> Result:
    return _pooled(node, pools.average_pool)


def qlinear_global_average_pool(node: Node) -> Result:
    return _pooled(node, pools.global_average_pool)


def _pooled(node: Node, pool: Operator) -> Result:
    if node.attributes.get("channels_last", 0):
        raise UserError(f"{node.where}: channels_last is not supported; transpose the tensor")
    return _quantise_result(node, pool(_with_operands(node, [_operand(node, 0, "X", raw=True)])), 3, 8)


def qlinear_concat(node: Node) -> Result:
    parts = [_operand(node, at, f"input {at // 3}", raw=True) for at in range(2, len(node.operands), 3)]
    found = shapes.joined(parts, node.attributes.get("axis", 0))
    return [quantise(_number(node, found), target(node, 0, 1, node.codes(2, "the operand").dtype, 8))]


QLINEAR: Mapping[str, Operator] = MappingProxyType(
    {
        "ConvInteger": conv_integer,
        "MatMulInteger": matmul_integer,
        "QGemm": qgemm,
        "QLinearAdd": qlinear_add,
        "QLinearAveragePool": qlinear_average_pool,
        "QLinearConcat": qlinear_concat,
        "QLinearConv": qlinear_conv,
        "QLinearGlobalAveragePool": qlinear_global_average_pool,
        "QLinearMatMul": qlinear_matmul,
        "QLinearMul": qlinear_mul,
    }
)
"""Functions that compute operators on quantised tensors, keyed by operator type."""
