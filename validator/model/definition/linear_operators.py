"""Exact sums of products of integers with scales: Conv, ConvTranspose, MatMul, Gemm, and their bias."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from raptor.common.errors import UserError
from validator.model.definition import integer_products
from validator.model.definition.exact_values import (
    MOST_INT32,
    UNIT_DIVISOR,
    ExactReal,
    Ints,
    ScaledTerm,
    Singles,
    Value,
    check_int32,
    largest,
    shape_of,
)
from validator.model.definition.nodes import OperatorNode, OperatorResult
from validator.model.windows import make_transposed_window

MATRIX_RANK = 2
PRODUCT_ROUNDINGS = 3
"""Float32 roundings of a product of two dequantised numbers: one of each number, and one of the product of scales."""


def factor_terms(node: OperatorNode) -> tuple[ScaledTerm, ScaledTerm] | None:
    """Returns the first two operands as integers with scales; None if one of them has no such form."""
    first, second = node.operand(0), node.operand(1)
    x, w = (value.integer_term if isinstance(value, ExactReal) else None for value in (first, second))
    return None if x is None or w is None else (x, w)


def multiply_scales(node: OperatorNode, x: ScaledTerm, w: ScaledTerm, factor: float = 1.0) -> Singles:
    """Returns float32(factor * x scale * w scale). Raises `UserError` if it is 0 or infinite."""
    with np.errstate(over="ignore", under="ignore"):
        scale = np.asarray(np.asarray(np.float32(factor) * x.scale, np.float32) * w.scale, np.float32)
    if not (np.isfinite(scale).all() and (scale != 0).all()):
        raise UserError(
            f"{node.where}: the product of the scales {x.scale.max():g} and {w.scale.max():g} leaves float32"
        )
    return scale


def multiply_terms(
    x: ScaledTerm, w: ScaledTerm, scale: Singles, count: int, multiply: Callable[[Ints, Ints], Ints]
) -> ScaledTerm | None:
    """Returns exact sums of `count` products, with a bound on the rounding errors of float arithmetic.

    Returns None if operands that are sums themselves are too large for an exact form.
    """
    plain = x.is_plain and w.is_plain
    if not plain and count * largest(x.magnitude()) * largest(w.magnitude()) >= integer_products.EXACT_FLOAT64:
        return None
    units = multiply(x.units, w.units)
    if not plain and largest(units) > MOST_INT32:
        return None

    def size() -> Ints:
        return multiply(x.magnitude(), w.magnitude())

    lost = 0.0
    if x.slack or w.slack:
        lost = count * (x.slack * (largest(w.magnitude()) + w.slack) + w.slack * largest(x.magnitude()))
    return ScaledTerm(units, scale, UNIT_DIVISOR, size, count + PRODUCT_ROUNDINGS + x.steps + w.steps - 2, lost)


def _sums(
    x: ScaledTerm, w: ScaledTerm, scale: Singles, count: int, multiply: Callable[[Ints, Ints], Ints]
) -> ExactReal | None:
    term = multiply_terms(x, w, scale, count, multiply)
    return None if term is None else ExactReal((term,), "sums")


def conv(node: OperatorNode) -> OperatorResult:
    found = factor_terms(node)
    return None if found is None else convolve_terms(node, *found, node.operand(2))


def convolve_terms(node: OperatorNode, x: ScaledTerm, w: ScaledTerm, bias: Value | None) -> list[ExactReal] | None:
    """Computes Conv on integers; None if scales differ within a sum."""
    rank = w.units.ndim
    if not x.is_uniform or not _differs_only_along(w, rank, 0):
        return None
    scale = _per_channel(multiply_scales(node, x, w), rank)
    made = _sums(x, w, scale, w.units[0].size, lambda a, b: integer_products.conv(node.proto, a, b))
    return _with_bias(node, made, bias, rank - 2)


def _differs_only_along(w: ScaledTerm, rank: int, axis: int) -> bool:
    """Checks whether scales differ along one axis only."""
    if w.over.size != 1:
        return False
    return w.scale.size == 1 or (w.scale.ndim == rank and all(n == 1 for a, n in enumerate(w.scale.shape) if a != axis))


def _per_channel(scale: Singles, rank: int) -> Singles:
    return scale.reshape(()) if scale.size == 1 else scale.reshape(1, -1, *[1] * (rank - 2))


def conv_transpose(node: OperatorNode) -> OperatorResult:
    found = factor_terms(node)
    if found is None:
        return None
    x, w = found
    group, rank = node.attributes.get("group", 1), w.units.ndim
    if not x.is_uniform or not (w.scale.size == 1 or (_differs_only_along(w, rank, 1) and group == 1)):
        return None
    window = make_transposed_window(node.attributes, x.units.shape[2:], w.units.shape[2:])
    count, scale = w.units.shape[0] // group * w.units[0, 0].size, _per_channel(multiply_scales(node, x, w), rank)
    made = _sums(x, w, scale, count, lambda a, b: integer_products.conv_transpose(window, group, a, b))
    return _with_bias(node, made, node.operand(2), rank - 2)


def matmul(node: OperatorNode) -> OperatorResult:
    found = factor_terms(node)
    return None if found is None else matmul_terms(node, *found)


def matmul_terms(node: OperatorNode, a: ScaledTerm, b: ScaledTerm, factor: float = 1.0) -> list[ExactReal] | None:
    """Computes MatMul on integers; None if scales differ within a sum, except scales of `b` by blocks of rows."""
    if not _is_equal_along(a, -1):
        return None
    if not _is_equal_along(b, -2):
        return _by_blocks(node, a, b, factor)
    scale = multiply_scales(node, a, b, factor)
    if scale.ndim > 1 and a.units.ndim == 1:
        scale = scale[..., 0, :]  # the product with a vector has no rows
    elif scale.ndim > 1 and b.units.ndim == 1:
        scale = scale[..., 0]
    made = _sums(a, b, scale, a.units.shape[-1], integer_products.matmul)
    return None if made is None else [_checked(node, made)]


def _by_blocks(node: OperatorNode, a: ScaledTerm, b: ScaledTerm, factor: float) -> list[ExactReal] | None:
    """Computes MatMul as a sum of products, one for each block of rows of `b` with equal scales."""
    if b.over.size != 1 or b.scale.ndim != MATRIX_RANK or b.units.ndim != MATRIX_RANK:
        return None
    starts = [0, *(np.flatnonzero((b.scale[1:] != b.scale[:-1]).any(axis=1)) + 1).tolist(), len(b.scale)]
    terms: list[ScaledTerm] = []
    for start, stop in pairwise(starts):
        part = replace(a, units=a.units[..., start:stop], size=lambda at=slice(start, stop): a.size()[..., at])
        block = replace(b, units=b.units[start:stop], scale=b.scale[start : start + 1])
        block = replace(block, size=lambda at=slice(start, stop): b.size()[at])
        found = multiply_terms(
            part, block, multiply_scales(node, part, block, factor), stop - start, integer_products.matmul
        )
        if found is None:
            return None
        terms.append(replace(found, steps=found.steps + len(starts) - 2))
    return [ExactReal(tuple(terms), "other")]


def _is_equal_along(term: ScaledTerm, axis: int) -> bool:
    """Checks whether scales are equal along an axis, and so within each sum."""
    if term.over.size != 1:
        return False
    return term.scale.size == 1 or (term.scale.ndim == term.units.ndim and term.scale.shape[axis] == 1)


def gemm(node: OperatorNode) -> OperatorResult:
    found, given = factor_terms(node), node.attributes
    bias = node.operand(2)
    if found is None or (bias is not None and given.get("beta", 1.0) != 1.0):
        return None
    a, b = (
        _transposed(term) if given.get(name, 0) else term
        for term, name in zip(found, ("transA", "transB"), strict=True)
    )
    made = matmul_terms(node, a, b, given.get("alpha", 1.0))
    return made if made is None or bias is None else _with_bias(node, made[0], bias, 0)


def _transposed(term: ScaledTerm) -> ScaledTerm:
    scale = term.scale if term.scale.size == 1 else term.scale.T
    return ScaledTerm(term.units.T, scale, term.over, lambda: term.size().T, term.steps, term.slack)


def _with_bias(node: OperatorNode, sums: ExactReal | None, bias: Value | None, behind: int) -> list[ExactReal] | None:
    """Adds a bias along the axis that `behind` other axes follow; None if the bias has no exact form."""
    if sums is None or bias is None:
        return None if sums is None else [_checked(node, sums)]
    term, *others = sums.terms
    if others:
        return None
    channels = term.scale.reshape(-1) if behind and term.scale.size > 1 else term.scale
    found = quantise_bias(node, bias, channels)
    if found is None:
        return None
    units, slack = found
    return [_plus(node, sums, units.reshape(-1, *[1] * behind) if behind else units, slack)]


def add_bias(node: OperatorNode, sums: ExactReal, bias: Value) -> OperatorResult:
    """Adds a constant to sums of products as their bias; None if it has no exact form."""
    if np.broadcast_shapes(shape_of(bias), shape_of(sums)) != shape_of(sums):
        return None
    found = quantise_bias(node, bias, sums.terms[0].scale)
    return None if found is None else [_plus(node, sums, *found)]


def _plus(node: OperatorNode, sums: ExactReal, added: Ints, slack: float) -> ExactReal:
    term = sums.terms[0]
    units = check_int32(term.units + added, node.where)
    lost = term.slack + slack
    return ExactReal(
        (ScaledTerm(units, term.scale, UNIT_DIVISOR, lambda: term.size() + np.abs(added), term.steps + 2, lost),),
        "other",
    )


def _checked(node: OperatorNode, sums: ExactReal) -> ExactReal:
    check_int32(sums.terms[0].units, node.where)
    return sums


def quantise_bias(node: OperatorNode, bias: Value, scale: Singles) -> tuple[Ints, float] | None:
    """Returns a bias in units of the sums, and the rounding error of this in units; None if it has no exact form.

    Integers with the scale of the sums are taken unchanged. Other numbers become round(bias / scale), in float32.
    """
    if isinstance(bias, ExactReal):
        term = bias.single_term
        if term is None or bias.kind != "plain":
            return None
        own = np.broadcast_to(term.scale, np.broadcast_shapes(term.scale.shape, scale.shape))
        if np.array_equal(own, np.broadcast_to(scale, own.shape)):
            return term.units, 0.0
        bias = bias.to_floats()
    if bias.dtype != np.float32:
        return None
    with np.errstate(over="ignore"):
        numbers = np.rint(np.asarray(bias / scale, np.float32)).astype(np.float64)
    if not (np.abs(numbers) < 2**31).all():
        raise UserError(
            f"{node.where}: the bias {float(np.abs(bias).max()):g} does not fit 32 bits of scale {scale.min():g}"
        )
    return numbers.astype(np.int64), 0.5
