"""Sums of products: Conv, ConvTranspose, MatMul, Gemm, and their bias, from integers with scales."""

from collections.abc import Callable

import numpy as np

from raptor.common.errors import UserError
from validator.definition import products
from validator.definition.nodes import Node, Result
from validator.definition.values import ONE, Ints, Real, Singles, Term, Value, fits_int32
from validator.definition.windows import transposed_window

BOTH = 3
"""Roundings of a product of two dequantised numbers: one for each of them, and one for the product of scales."""


def factors(node: Node) -> tuple[Term, Term] | None:
    """Returns the first two operands as integers with scales, if they are."""
    first, second = node.get(0), node.get(1)
    if not isinstance(first, Real) or not isinstance(second, Real):
        return None
    x, w = first.single, second.single
    if x is None or w is None or first.kind != "plain" or second.kind != "plain":
        return None
    return x, w


def scales(node: Node, x: Term, w: Term, factor: float = 1.0) -> Singles:
    """Returns float32(x scale * w scale). Raises `UserError` if it is 0 or infinite in float32."""
    with np.errstate(over="ignore", under="ignore"):
        scale = np.asarray(np.asarray(np.float32(factor) * x.scale, np.float32) * w.scale, np.float32)
    if not (np.isfinite(scale).all() and (scale != 0).all()):
        raise UserError(
            f"{node.where}: the product of the scales {x.scale.max():g} and {w.scale.max():g} leaves float32"
        )
    return scale


def _sums(units: Ints, scale: Singles, size: Callable[[], Ints], count: int) -> Real:
    """Returns sums of `count` products; float arithmetic rounds each operand and each scale too."""
    return Real((Term(units, scale, ONE, size, count + BOTH),), "sums")


def conv(node: Node) -> Result:
    found = factors(node)
    return None if found is None else convolved(node, *found, node.get(2))


def convolved(node: Node, x: Term, w: Term, bias: Value | None) -> list[Real] | None:
    """Computes Conv from integers; None if the scales differ inside of a sum."""
    rank = w.units.ndim
    if not x.uniform or not _only(w, rank, 0):
        return None
    scale = _per_channel(scales(node, x, w), rank)
    units = products.conv(node.proto, x.units, w.units)

    def size() -> Ints:
        return products.conv(node.proto, np.abs(x.units), np.abs(w.units))

    return _with_bias(node, _sums(units, scale, size, w.units[0].size), bias, rank - 2)


def _only(w: Term, rank: int, axis: int) -> bool:
    """Tells whether scales differ along one axis alone."""
    if w.over.size != 1:
        return False
    return w.scale.size == 1 or (w.scale.ndim == rank and all(n == 1 for a, n in enumerate(w.scale.shape) if a != axis))


def _per_channel(scale: Singles, rank: int) -> Singles:
    return scale.reshape(()) if scale.size == 1 else scale.reshape(1, -1, *[1] * (rank - 2))


def conv_transpose(node: Node) -> Result:
    found = factors(node)
    if found is None:
        return None
    x, w = found
    group, rank = node.attributes.get("group", 1), w.units.ndim
    if not x.uniform or not (w.scale.size == 1 or (_only(w, rank, 1) and group == 1)):
        return None
    window = transposed_window(node.attributes, x.units.shape[2:], w.units.shape[2:])
    units = products.conv_transpose(window, group, x.units, w.units)

    def size() -> Ints:
        return products.conv_transpose(window, group, np.abs(x.units), np.abs(w.units))

    count = w.units.shape[0] // group * w.units[0, 0].size
    made = _sums(units, _per_channel(scales(node, x, w), rank), size, count)
    return _with_bias(node, made, node.get(2), rank - 2)


def matmul(node: Node) -> Result:
    found = factors(node)
    return None if found is None else multiplied(node, *found)


def multiplied(node: Node, a: Term, b: Term, factor: float = 1.0) -> list[Real] | None:
    """Computes MatMul from integers; None if the scales differ inside of a sum."""
    if not (_along(a, -1) and _along(b, -2)):
        return None
    units = products.matmul(a.units, b.units)

    def size() -> Ints:
        return products.matmul(np.abs(a.units), np.abs(b.units))

    return [_checked(node, _sums(units, scales(node, a, b, factor), size, a.units.shape[-1]))]


def _along(term: Term, axis: int) -> bool:
    """Tells whether scales are equal along an axis, and so for each sum."""
    if term.over.size != 1:
        return False
    return term.scale.size == 1 or (term.scale.ndim == term.units.ndim and term.scale.shape[axis] == 1)


def gemm(node: Node) -> Result:
    found, given = factors(node), node.attributes
    bias = node.get(2)
    if found is None or (bias is not None and given.get("beta", 1.0) != 1.0):
        return None
    a, b = (
        _transposed(term) if given.get(name, 0) else term
        for term, name in zip(found, ("transA", "transB"), strict=True)
    )
    made = multiplied(node, a, b, given.get("alpha", 1.0))
    return made if made is None or bias is None else _with_bias(node, made[0], bias, 0)


def _transposed(term: Term) -> Term:
    scale = term.scale if term.scale.size == 1 else term.scale.T
    return Term(term.units.T, scale, term.over, lambda: term.size().T, term.steps, term.slack)


def _with_bias(node: Node, sums: Real, bias: Value | None, behind: int) -> list[Real] | None:
    """Adds a bias that stands `behind` axes before the last; None if it has no exact form."""
    if bias is None:
        return [_checked(node, sums)]
    term = sums.terms[0]
    channels = term.scale.reshape(-1) if behind and term.scale.size > 1 else term.scale
    found = bias_units(node, bias, channels)
    if found is None:
        return None
    units, slack = found
    return [_plus(node, sums, units.reshape(-1, *[1] * behind) if behind else units, slack)]


def biased(node: Node, sums: Real, bias: Value) -> Result:
    """Adds a constant behind sums of products, as their bias."""
    shape = bias.shape if isinstance(bias, np.ndarray) else bias.terms[0].units.shape
    if np.broadcast_shapes(shape, sums.terms[0].units.shape) != sums.terms[0].units.shape:
        return None
    found = bias_units(node, bias, sums.terms[0].scale)
    return None if found is None else [_plus(node, sums, *found)]


def _plus(node: Node, sums: Real, added: Ints, slack: float) -> Real:
    term = sums.terms[0]
    units = fits_int32(term.units + added, node.where)
    return Real((Term(units, term.scale, ONE, lambda: term.size() + np.abs(added), term.steps + 2, slack),), "other")


def _checked(node: Node, sums: Real) -> Real:
    fits_int32(sums.terms[0].units, node.where)
    return sums


def bias_units(node: Node, bias: Value, scale: Singles) -> tuple[Ints, float] | None:
    """Returns a bias in units of the sums, and by how much of a unit it was rounded.

    Integers of just this scale are taken as they are. Other numbers become round(bias / scale), in float32.
    """
    if isinstance(bias, Real):
        term = bias.single
        if term is None or bias.kind != "plain":
            return None
        own = np.broadcast_to(term.scale, np.broadcast_shapes(term.scale.shape, scale.shape))
        if np.array_equal(own, np.broadcast_to(scale, own.shape)):
            return term.units, 0.0
        bias = bias.floats()
    if bias.dtype != np.float32:
        return None
    with np.errstate(over="ignore"):
        numbers = np.rint(np.asarray(bias / scale, np.float32)).astype(np.float64)
    if not (np.abs(numbers) < 2**31).all():
        raise UserError(
            f"{node.where}: the bias {float(np.abs(bias).max()):g} does not fit 32 bits of scale {scale.min():g}"
        )
    return numbers.astype(np.int64), 0.5
