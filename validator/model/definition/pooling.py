"""Pooling, means and interpolation of exact numbers: sums of integers with one scale."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from validator.model.definition import data_movement, integer_products
from validator.model.definition.exact_values import (
    UNIT_DIVISOR,
    Array,
    ExactReal,
    Ints,
    ScaledTerm,
    Value,
    is_codes,
    shape_of,
)
from validator.model.definition.nodes import OperatorNode, OperatorResult
from validator.model.windows import PoolWindow, make_pool_window

_STEPS = 3
"""Float32 roundings of a mean, besides the roundings of its sum."""


def max_pool(node: OperatorNode) -> OperatorResult:
    if len(node.writes) > 1:
        return None

    def largest(x: Array) -> Array:
        window, _ = make_pool_window(node.attributes, x.shape[2:])
        return integer_products.reduce_windows(window, x.astype(np.int64), np.maximum, -(2**62)).astype(x.dtype)

    return _largest(node.operand(0), largest)


def _largest(x: Value | None, function: Callable[[Array], Array]) -> OperatorResult:
    """Applies a maximum to codes, or to numbers with one scale; None for others."""
    if isinstance(x, np.ndarray):
        return [function(x)] if is_codes(x) else None
    if x is None or len(x.terms) != 1 or x.terms[0].scale.size != 1 or x.terms[0].over.size != 1:
        return None
    term = x.terms[0]
    largest = replace(term, units=function(term.units), size=lambda: function(term.size()))
    return [replace(x, terms=(largest,), kind="plain" if x.kind == "plain" else "other")]


def average_pool(node: OperatorNode) -> OperatorResult:
    found = average_windows(node, node.operand(0))
    return None if found is None else [found]


def average_windows(node: OperatorNode, value: Value | None) -> ExactReal | None:
    x = single_scale_term(value)
    if x is None:
        return None
    window, behind = make_pool_window(node.attributes, x.units.shape[2:])
    over = _counts(window, behind, include=bool(node.attributes.get("count_include_pad", 0)))

    def size() -> Ints:
        return integer_products.reduce_windows(window, x.size(), np.add, 0)

    units = integer_products.reduce_windows(window, x.units, np.add, 0)
    most = int(over.max())
    return ExactReal((ScaledTerm(units, x.scale, over, size, most + _STEPS + x.steps - 1, most * x.slack),), "other")


def global_max_pool(node: OperatorNode) -> OperatorResult:
    return _largest(node.operand(0), lambda x: np.max(x, axis=tuple(range(2, x.ndim)), keepdims=True))


def single_scale_term(value: Value | None) -> ScaledTerm | None:
    """Returns the only term of numbers with one scale, so that operators can add them; None for other values."""
    term = value.integer_term if isinstance(value, ExactReal) else None
    return term if term is not None and term.is_uniform else None


def _counts(window: PoolWindow, behind: Sequence[int], *, include: bool) -> Ints:
    """Returns the number of elements of each window, [1, 1, ...]. `include`: elements in the padding count."""
    if include:
        lengths = [b + n + e for b, n, e in zip(window.before, window.image, behind, strict=True)]
        window = replace(window, image=tuple(lengths), before=(0,) * len(lengths))
    return integer_products.reduce_windows(window, np.ones((1, 1, *window.image), np.int64), np.add, 0)


def global_average_pool(node: OperatorNode) -> OperatorResult:
    x = single_scale_term(node.operand(0))
    return None if x is None else [mean_over_axes(x, tuple(range(2, x.units.ndim)), keep=True)]


def mean_over_axes(x: ScaledTerm, axes: tuple[int, ...], *, keep: bool) -> ExactReal:
    """Returns the mean of numbers over the axes `axes`."""
    count = int(np.prod([x.units.shape[a] for a in axes]))
    units = x.units.sum(axis=axes, keepdims=keep)

    def size() -> Ints:
        return x.size().sum(axis=axes, keepdims=keep)

    steps = count + _STEPS + x.steps - 1
    return ExactReal((ScaledTerm(units, x.scale, np.asarray(count), size, steps, count * x.slack),), "other")


def sum_over_axes(x: ScaledTerm, axes: tuple[int, ...], *, keep: bool) -> ExactReal:
    """Returns the sum of numbers over the axes `axes`."""
    found = mean_over_axes(x, axes, keep=keep)
    return replace(found, terms=(replace(found.terms[0], over=UNIT_DIVISOR),))


def reduce_mean(node: OperatorNode) -> OperatorResult:
    return _reduced(node, mean_over_axes)


def reduce_sum(node: OperatorNode) -> OperatorResult:
    return _reduced(node, sum_over_axes)


def _reduced(node: OperatorNode, function: Callable[..., ExactReal]) -> OperatorResult:
    value, given, operand = node.operand(0), node.attributes, node.operand(1)
    if not isinstance(value, ExactReal):
        return None
    axes = operand.tolist() if isinstance(operand, np.ndarray) else given.get("axes")
    if not axes and given.get("noop_with_empty_axes", 0):
        return None
    shape, keep = shape_of(value), bool(given.get("keepdims", 1))
    chosen = tuple(sorted({a % len(shape) for a in axes or range(len(shape))}))
    if all(shape[a] == 1 for a in chosen):
        return [value.apply_move(lambda a: a if keep else a.squeeze(chosen))]
    x = single_scale_term(value)
    return None if x is None else [function(x, chosen, keep=keep)]


def interpolate(x: Value, matrices: Mapping[int, Any]) -> OperatorResult:
    term = single_scale_term(x)
    below = data_movement.find_denominator(list(matrices.values()))
    if term is None or not term.is_plain or below is None:
        return None
    whole = {axis: np.rint(m * below).astype(np.int64) for axis, m in matrices.items()}

    def weighted(a: Array) -> Ints:
        for axis, matrix in whole.items():
            a = data_movement.multiply_axis(matrix, axis, a)
        return a.astype(np.int64)

    over = np.asarray(below ** len(whole), np.int64)
    return [
        ExactReal(
            (ScaledTerm(weighted(term.units), term.scale, over, lambda: weighted(term.size()), 4 * _STEPS),), "other"
        )
    ]
