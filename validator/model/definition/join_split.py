"""Operators that join, split, move and select elements."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from validator.model.definition import data_movement
from validator.model.definition.exact_values import (
    CODE_BITS,
    UNIT_DIVISOR,
    Array,
    ExactReal,
    Ints,
    ScaledTerm,
    Singles,
    Value,
    is_codes,
    shape_of,
)
from validator.model.definition.nodes import OperatorNode, OperatorResult
from validator.model.definition.pooling import interpolate


def concat(node: OperatorNode) -> OperatorResult:
    values, axis = node.operands, node.attributes.get("axis", 1)
    if all(isinstance(v, np.ndarray) for v in values):
        return [np.concatenate([v for v in values if isinstance(v, np.ndarray)], axis)] if _one_type(values) else None
    return (
        concat_numbers([v for v in values if isinstance(v, ExactReal)], axis)
        if all(isinstance(v, ExactReal) for v in values)
        else None
    )


def _one_type(values: Sequence[Value | None]) -> bool:
    types = {v.dtype.name for v in values if isinstance(v, np.ndarray)}
    return len(types) == 1 and types <= CODE_BITS.keys()


def concat_numbers(values: Sequence[ExactReal], axis: int) -> OperatorResult:
    """Concatenates plain numbers along an axis; every part keeps its scale. Returns None if a part is not plain."""
    terms = [v.single_term for v in values if v.kind == "plain"]
    whole = [t for t in terms if t is not None and t.over.size == 1]
    if len(whole) != len(values):
        return None
    scales = {float(t.scale.flat[0]) if t.scale.size == 1 else None for t in whole}
    units = np.concatenate([t.units for t in whole], axis)
    same = None not in scales and len(scales) == 1
    scale = whole[0].scale.reshape(()) if same else np.concatenate([_spread(t) for t in whole], axis)

    def size() -> Ints:
        return np.concatenate([t.size() for t in whole], axis)

    return [ExactReal((ScaledTerm(units, scale, UNIT_DIVISOR, size),), "plain")]


def _spread(term: ScaledTerm) -> Singles:
    return np.broadcast_to(term.scale, term.units.shape)


def split(node: OperatorNode) -> OperatorResult:
    x = node.operand(0)
    parameters = node.array_parameters()
    if isinstance(x, np.ndarray):
        return data_movement.split_array(node.proto, parameters, x) if is_codes(x) else None
    if x is None:
        return None

    def part(k: int) -> Callable[[Array], Array]:
        return lambda a: data_movement.split_array(node.proto, parameters, a)[k]

    return [x.apply_move(part(k)) for k in range(len(node.proto.output))]


def move(node: OperatorNode) -> OperatorResult:
    x = node.operand(0)
    function = data_movement.make_mover(node.proto, node.opsets, node.array_parameters())
    if isinstance(x, np.ndarray):
        return [function(x)] if is_codes(x) else None
    return None if x is None else [x.apply_move(function)]


def pad(node: OperatorNode) -> OperatorResult:
    """Pads codes with a code, and exact numbers with a multiple of their scale; None for other values."""
    x, given = node.operand(0), node.attributes
    if given.get("mode", b"constant") != b"constant":
        return move(node)
    value = node.operand(2)
    number = value.to_floats() if isinstance(value, ExactReal) and value.kind == "plain" else value
    if isinstance(number, ExactReal):
        return None
    fill: Any = given.get("value", 0.0) if number is None or not number.size else number.reshape(-1)[0]
    if isinstance(x, np.ndarray):
        return [_padded(node, x, fill)] if is_codes(x) else None
    if x is None or x.single_term is None or x.kind != "plain" or not x.single_term.is_uniform:
        return None
    term = x.single_term
    unit = int(np.rint(np.float64(fill) / np.float64(term.scale)))
    if np.float32(unit) * term.scale != np.float32(fill):
        return None

    def size() -> Ints:
        return _padded(node, term.size(), abs(unit))

    return [replace(x, terms=(replace(term, units=_padded(node, term.units, unit), size=size),))]


def _padded(node: OperatorNode, x: Array, fill: Any) -> Array:
    operand, axes = node.operand(1), node.operand(3)
    pads = operand.tolist() if isinstance(operand, np.ndarray) else list(node.attributes.get("pads", ()))
    chosen = [a % x.ndim for a in axes.tolist()] if isinstance(axes, np.ndarray) and axes.size else list(range(x.ndim))
    half = len(chosen)
    for k, axis in enumerate(chosen):
        before, behind = pads[k], pads[k + half]
        x = x[
            tuple(
                slice(max(-before, 0), n - max(-behind, 0)) if a == axis else slice(None) for a, n in enumerate(x.shape)
            )
        ]
        widths = [(max(before, 0), max(behind, 0)) if a == axis else (0, 0) for a in range(x.ndim)]
        x = np.pad(x, widths, constant_values=np.asarray(fill).astype(x.dtype))
    return x


def resize(node: OperatorNode) -> OperatorResult:
    """Selects elements, or interpolates if the weights are dyadic fractions; None for other weights."""
    x = node.operand(0)
    if x is None:
        return None
    matrices = data_movement.make_resize_matrices(node.proto, node.opsets, node.array_parameters(), shape_of(x))
    if matrices is None:
        return None
    if all(((m == 0) | (m == 1)).all() and (m.sum(axis=1) == 1).all() for m in matrices.values()):

        def select(a: Array) -> Array:
            for axis, matrix in matrices.items():
                a = data_movement.select_along_axis(matrix, axis, a)
            return a

        if isinstance(x, np.ndarray):
            return [select(x)] if is_codes(x) else None
        return [x.apply_move(select)]
    return interpolate(x, matrices)
