"""Pooling, means and interpolation of exact numbers: sums of integers with one scale."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from validator.definition import moves, products
from validator.definition.nodes import Node, Result
from validator.definition.values import ONE, Array, Ints, Real, Term, Value, is_codes, shape_of
from validator.model.windows import Window, pool_window

_STEPS = 3
"""Float32 roundings of a mean, besides the roundings of its sum."""


def max_pool(node: Node) -> Result:
    if len(node.writes) > 1:
        return None

    def largest(x: Array) -> Array:
        window, _ = pool_window(node.attributes, x.shape[2:])
        return products.pooled(window, x.astype(np.int64), np.maximum, -(2**62)).astype(x.dtype)

    return _largest(node.get(0), largest)


def _largest(x: Value | None, function: Callable[[Array], Array]) -> Result:
    """Applies a maximum to codes, or to numbers with one scale; None for others."""
    if isinstance(x, np.ndarray):
        return [function(x)] if is_codes(x) else None
    if x is None or len(x.terms) != 1 or x.terms[0].scale.size != 1 or x.terms[0].over.size != 1:
        return None
    term = x.terms[0]
    largest = replace(term, units=function(term.units), size=lambda: function(term.size()))
    return [replace(x, terms=(largest,), kind="plain" if x.kind == "plain" else "other")]


def average_pool(node: Node) -> Result:
    found = averaged(node, node.get(0))
    return None if found is None else [found]


def averaged(node: Node, value: Value | None) -> Real | None:
    x = uniform(value)
    if x is None:
        return None
    window, behind = pool_window(node.attributes, x.units.shape[2:])
    over = _counts(window, behind, include=bool(node.attributes.get("count_include_pad", 0)))

    def size() -> Ints:
        return products.pooled(window, x.size(), np.add, 0)

    units = products.pooled(window, x.units, np.add, 0)
    most = int(over.max())
    return Real((Term(units, x.scale, over, size, most + _STEPS + x.steps - 1, most * x.slack),), "other")


def global_max_pool(node: Node) -> Result:
    return _largest(node.get(0), lambda x: np.max(x, axis=tuple(range(2, x.ndim)), keepdims=True))


def uniform(value: Value | None) -> Term | None:
    """Returns the only term of numbers with one scale, so that operators can add them; None for other values."""
    term = value.whole if isinstance(value, Real) else None
    return term if term is not None and term.uniform else None


def _counts(window: Window, behind: Sequence[int], *, include: bool) -> Ints:
    """Returns the number of elements of each window, [1, 1, ...]. `include`: elements in the padding count."""
    if include:
        lengths = [b + n + e for b, n, e in zip(window.before, window.image, behind, strict=True)]
        window = replace(window, image=tuple(lengths), before=(0,) * len(lengths))
    return products.pooled(window, np.ones((1, 1, *window.image), np.int64), np.add, 0)


def global_average_pool(node: Node) -> Result:
    x = uniform(node.get(0))
    return None if x is None else [mean(x, tuple(range(2, x.units.ndim)), keep=True)]


def mean(x: Term, axes: tuple[int, ...], *, keep: bool) -> Real:
    """Returns the mean of numbers over the axes `axes`."""
    count = int(np.prod([x.units.shape[a] for a in axes]))
    units = x.units.sum(axis=axes, keepdims=keep)

    def size() -> Ints:
        return x.size().sum(axis=axes, keepdims=keep)

    steps = count + _STEPS + x.steps - 1
    return Real((Term(units, x.scale, np.asarray(count), size, steps, count * x.slack),), "other")


def total(x: Term, axes: tuple[int, ...], *, keep: bool) -> Real:
    """Returns the sum of numbers over the axes `axes`."""
    found = mean(x, axes, keep=keep)
    return replace(found, terms=(replace(found.terms[0], over=ONE),))


def reduce_mean(node: Node) -> Result:
    return _reduced(node, mean)


def reduce_sum(node: Node) -> Result:
    return _reduced(node, total)


def _reduced(node: Node, function: Callable[..., Real]) -> Result:
    value, given, operand = node.get(0), node.attributes, node.get(1)
    if not isinstance(value, Real):
        return None
    axes = operand.tolist() if isinstance(operand, np.ndarray) else given.get("axes")
    if not axes and given.get("noop_with_empty_axes", 0):
        return None
    shape, keep = shape_of(value), bool(given.get("keepdims", 1))
    chosen = tuple(sorted({a % len(shape) for a in axes or range(len(shape))}))
    if all(shape[a] == 1 for a in chosen):
        return [value.moved(lambda a: a if keep else a.squeeze(chosen))]
    x = uniform(value)
    return None if x is None else [function(x, chosen, keep=keep)]


def interpolated(x: Value, matrices: Mapping[int, Any]) -> Result:
    term = uniform(x)
    below = moves.denominator(list(matrices.values()))
    if term is None or not term.plain or below is None:
        return None
    whole = {axis: np.rint(m * below).astype(np.int64) for axis, m in matrices.items()}

    def weighted(a: Array) -> Ints:
        for axis, matrix in whole.items():
            a = moves.along(matrix, axis, a)
        return a.astype(np.int64)

    over = np.asarray(below ** len(whole), np.int64)
    return [Real((Term(weighted(term.units), term.scale, over, lambda: weighted(term.size()), 4 * _STEPS),), "other")]
