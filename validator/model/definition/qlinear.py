"""Operators on quantised tensors: QLinearConv, QLinearMatMul, ConvInteger, MatMulInteger, and com.microsoft's.

Each is computed as DequantizeLinear, the operator on exact numbers, QuantizeLinear.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from raptor.common.errors import UserError
from validator.model.definition import elementwise, integer_products, join_split, linear_operators, pooling
from validator.model.definition.exact_rounding import quantise_exactly
from validator.model.definition.exact_values import Array, ExactReal, Ints, Value, along, check_int32, largest
from validator.model.definition.nodes import (
    ExactOperator,
    OperatorNode,
    OperatorResult,
    dequantize_exactly,
    make_output_target,
    read_scale,
    read_single_zero_point,
    read_zero_point,
)

_EXACT_FLOAT = 2**24


def _operand(node: OperatorNode, at: int, what: str, *, raw: bool = False) -> ExactReal:
    """Returns the quantised operand at `at`, whose scale and zero point follow it, as exact numbers."""
    x = node.code_operand(at, what)
    scale = read_scale(node, at + 1, what)
    zero = read_zero_point(node, at + 2, what, x.dtype, scale)
    if scale.size != 1:
        raise UserError(f"{node.where}: {what} has {scale.size} scales, expected one")
    return dequantize_exactly(x, scale.reshape(()), zero.reshape(()), raw=raw)


def _with_operands(node: OperatorNode, operands: Sequence[Value | None]) -> OperatorNode:
    """Returns the node with the operands of the operator on exact numbers."""
    return replace(node, operands=operands, constant_operands=[True] * len(operands))


def _number(node: OperatorNode, found: OperatorResult, missing: str = "has no exact form") -> ExactReal:
    """Returns the only result. Raises `UserError` with the reason `missing` if there is none."""
    if found is None:
        raise UserError(f"{node.where}: {missing}")
    (number,) = found
    assert isinstance(number, ExactReal)
    return number


def _sum_rounded(node: OperatorNode, found: OperatorResult, scale: int, dtype: "np.dtype[Any]") -> OperatorResult:
    """Quantises sums of products. onnxruntime converts them to float32, multiplies, rounds, adds the zero point."""
    number = _number(node, found, "the scales differ inside of a sum")
    term = number.terms[0]
    large = largest(term.units) >= _EXACT_FLOAT
    sharp = replace(number, terms=(replace(term, size=lambda: np.abs(term.units), steps=int(large)),))
    made = make_output_target(node, scale, scale + 1, dtype, 1)
    return [quantise_exactly(sharp, replace(made, with_zero=False))]


def qlinear_conv(node: OperatorNode) -> OperatorResult:
    x, w = _operand(node, 0, "x"), node.code_operand(3, "w")
    scale = read_scale(node, 4, "w")
    zero = read_single_zero_point(node, 5, "w", w.dtype, scale)
    if scale.size not in (1, len(w)):
        raise UserError(f"{node.where}: w has {len(w)} output channels and {scale.size} scales")
    weights = dequantize_exactly(w, along(scale, 0, w.ndim), zero.ravel()[:1].reshape(()))
    found = linear_operators.convolve_terms(node, x.terms[0], weights.terms[0], None)
    return _sum_rounded(node, _plus_int32(node, found, 8, w.ndim - 2), 6, node.code_operand(0, "x").dtype)


def _plus_int32(node: OperatorNode, found: OperatorResult, at: int, behind: int) -> OperatorResult:
    """Adds an int32 bias, which is in units of the sums."""
    if found is None or node.operand(at) is None:
        return found
    bias = node.code_operand(at, "the bias")
    if bias.dtype != np.int32:
        raise UserError(f"{node.where}: the bias is {bias.dtype.name}, expected int32")
    number = _number(node, found)
    added = bias.astype(np.int64).reshape(-1, *[1] * behind) if behind else bias.astype(np.int64)
    units = check_int32(number.terms[0].units + added, node.where)
    return [replace(number, terms=(replace(number.terms[0], units=units),))]


def qlinear_matmul(node: OperatorNode) -> OperatorResult:
    a, b = (_matrix(node, at, what, axis) for at, what, axis in ((0, "a", -2), (3, "b", -1)))
    found = linear_operators.matmul_terms(node, a.terms[0], b.terms[0])
    return _sum_rounded(node, found, 6, node.code_operand(0, "a").dtype)


def _matrix(node: OperatorNode, at: int, what: str, axis: int) -> ExactReal:
    """Returns a matrix with one scale, or one for each row of a (axis -2) or column of b (axis -1)."""
    x = node.code_operand(at, what)
    scale = read_scale(node, at + 1, what)
    zero = read_zero_point(node, at + 2, what, x.dtype, scale)
    return dequantize_exactly(x, _per_line(node, scale, x, what, axis), _per_line(node, zero, x, what, axis))


def _per_line(node: OperatorNode, parameter: Array, x: Array, what: str, axis: int) -> Array:
    if parameter.size == 1:
        return parameter.reshape(())
    if parameter.ndim == 1 and x.ndim > 1 and parameter.size == x.shape[axis]:
        return along(parameter, axis, x.ndim)
    other = -1 if axis == -2 else -2
    if parameter.ndim == x.ndim and parameter.shape[other] == 1 and parameter.shape[axis] == x.shape[axis]:
        return parameter
    shapes = f"shape {list(parameter.shape)} do not fit {what} of shape {list(x.shape)}"
    raise UserError(f"{node.where}: scales or zero points of {shapes}")


def qgemm(node: OperatorNode) -> OperatorResult:
    given = node.attributes
    a = _operand(node, 0, "A")
    w = node.code_operand(3, "B")
    scale = read_scale(node, 4, "B")
    zero = read_zero_point(node, 5, "B", w.dtype, scale)
    axis = 0 if given.get("transB", 0) else 1
    b = dequantize_exactly(w, along(scale, axis, 2), along(zero, axis, 2))
    found = linear_operators.gemm(_with_operands(node, [a, b]))
    found = _plus_int32(node, found, 6, 0)
    if node.operand(7) is None and found is not None:
        return [replace(v, kind="plain") for v in found if isinstance(v, ExactReal)]
    return _sum_rounded(node, found, 7, node.code_operand(0, "A").dtype)


def conv_integer(node: OperatorNode) -> OperatorResult:
    x, w = node.code_operand(0, "x"), node.code_operand(1, "w")
    zeros = [_integer_zero(node, 2, "x", x), _integer_zero(node, 3, "w", w)]
    per_channel = along(zeros[1], 0, w.ndim)
    units = integer_products.conv(
        node.proto, x.astype(np.int64) - zeros[0].reshape(()), w.astype(np.int64) - per_channel
    )
    return [check_int32(units, node.where).astype(np.int32)]


def matmul_integer(node: OperatorNode) -> OperatorResult:
    a, b = node.code_operand(0, "A"), node.code_operand(1, "B")
    rows = _per_line(node, _integer_zero(node, 2, "A", a), a, "A", -2)
    columns = _per_line(node, _integer_zero(node, 3, "B", b), b, "B", -1)
    units = integer_products.matmul(a.astype(np.int64) - rows, b.astype(np.int64) - columns)
    return [check_int32(units, node.where).astype(np.int32)]


def _integer_zero(node: OperatorNode, at: int, what: str, x: Array) -> Ints:
    if node.operand(at) is None:
        return np.zeros((), np.int64)
    zero = node.code_operand(at, f"the zero point of {what}")
    if zero.dtype != x.dtype:
        raise UserError(f"{node.where}: the zero point of {what} is {zero.dtype.name}, but {what} is {x.dtype.name}")
    return zero.astype(np.int64)


def _quantise_result(node: OperatorNode, found: OperatorResult, scale: int, steps: int) -> OperatorResult:
    """Quantises the result of an operator on exact numbers."""
    made = make_output_target(node, scale, scale + 1, node.code_operand(0, "the operand").dtype, steps)
    return [quantise_exactly(_number(node, found), made)]


def qlinear_add(node: OperatorNode) -> OperatorResult:
    a, b = _operand(node, 0, "A", raw=True), _operand(node, 3, "B", raw=True)
    return _quantise_result(node, elementwise.add(_with_operands(node, [a, b])), 6, 8)


def qlinear_mul(node: OperatorNode) -> OperatorResult:
    a, b = _operand(node, 0, "A"), _operand(node, 3, "B")
    return _quantise_result(node, elementwise.mul(_with_operands(node, [a, b])), 6, 8)


def qlinear_average_pool(node: OperatorNode) -> OperatorResult:
    return _pooled(node, pooling.average_pool)


def qlinear_global_average_pool(node: OperatorNode) -> OperatorResult:
    return _pooled(node, pooling.global_average_pool)


def _pooled(node: OperatorNode, pool: ExactOperator) -> OperatorResult:
    if node.attributes.get("channels_last", 0):
        raise UserError(f"{node.where}: channels_last is not supported; transpose the tensor")
    return _quantise_result(node, pool(_with_operands(node, [_operand(node, 0, "X", raw=True)])), 3, 8)


def qlinear_concat(node: OperatorNode) -> OperatorResult:
    parts = [_operand(node, at, f"input {at // 3}", raw=True) for at in range(2, len(node.operands), 3)]
    found = join_split.concat_numbers(parts, node.attributes.get("axis", 0))
    return [
        quantise_exactly(
            _number(node, found), make_output_target(node, 0, 1, node.code_operand(2, "the operand").dtype, 8)
        )
    ]


QLINEAR_OPERATORS: Mapping[str, ExactOperator] = MappingProxyType(
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
