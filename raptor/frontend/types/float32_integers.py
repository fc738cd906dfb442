"""Range analysis of integers that float programs hold as float32: every value must be exactly representable."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import (
    Concat,
    Constant,
    ConstantTensor,
    Dot,
    Filter,
    Map,
    Move,
    Numbers,
    Operator,
    Pool,
    Rename,
    Stencil,
    Take,
    Tensor,
)
from raptor.target.chip_elements import MOST_EXACT_INTEGER

EXACT_RANGE = IntegerInterval(-MOST_EXACT_INTEGER, MOST_EXACT_INTEGER)
"""Range of consecutive integers that float32 holds exactly."""
LEAST_INPUT_BOUND = 2**3
"""Smallest bound that is tried for the absolute values of an integer input."""


class BoundRefusal(ImportRefusal):
    """Raised where integers may exceed what float32 holds exactly; a smaller bound of the inputs may help."""

    def __init__(self, found: IntegerInterval | None, limits: IntegerInterval = EXACT_RANGE) -> None:
        reach = f"reach {found.low} to {found.high}" if found else "have no known bound"
        super().__init__(f"its integers {reach}; they must stay within {limits.low} to {limits.high}")


def is_integer_type(kind: "np.dtype[Any]") -> bool:
    """Checks whether a type is integer or bool. (Types of less than 8 bits come from `ml_dtypes`, not from numpy.)"""
    return kind.kind in "iub" or kind.name.lstrip("u").startswith("int")


def is_small_float(kind: "np.dtype[Any]") -> bool:
    """Checks whether a type is a float of 4 or 8 bits."""
    return kind.name.startswith(("float4", "float8"))


def find_type_limits(kind: "np.dtype[Any]") -> IntegerInterval:
    """Returns the value range of an integer type or bool."""
    if kind == np.bool_:
        return IntegerInterval(0, 1)
    bits = int(kind.name.lstrip("uint"))
    return (
        IntegerInterval(0, 2**bits - 1)
        if kind.name.startswith("u")
        else IntegerInterval(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )


def is_within(found: IntegerInterval, limits: IntegerInterval) -> bool:
    """Checks whether a range lies inside `limits`."""
    return limits.low <= found.low and found.high <= limits.high


def intersect_ranges(a: IntegerInterval, b: IntegerInterval) -> IntegerInterval:
    """Returns the intersection of two overlapping ranges."""
    return IntegerInterval(max(a.low, b.low), min(a.high, b.high))


def infer_integer_range(
    operator: Operator, tensors: Sequence[Tensor], ranges: Sequence[IntegerInterval | None]
) -> IntegerInterval | None:
    """Returns the range of a result that is an integer for integer operands; None for other results.

    ranges: ranges of the operands, None for operands that are not integers. The range includes all partial sums.
    """
    if isinstance(operator, ConstantTensor):
        return _of_values(operator.pixels)
    if isinstance(operator, Map):
        return _of_map(operator, ranges)
    known = [r for r in ranges if r is not None]
    if len(known) < len(ranges) or not known:
        return None
    hull = IntegerInterval(min(r.low for r in known), max(r.high for r in known))
    match operator:
        case Rename() | Concat() | Pool("max"):
            return hull
        case Move(sources):
            return hull.with_zero() if (sources < 0).any() else hull
        case Take(table):
            return _of_values(table)
        case Pool("sum", window):
            return IntegerInterval(hull.low * window.tap_count, hull.high * window.tap_count).with_zero()
        case Dot():
            product, count = known[0].times(known[1]), tensors[0].image.channels
            return IntegerInterval(product.low * count, product.high * count).with_zero()
        case Filter(weights) | Stencil(weights):
            return _sums(weights, hull) if _of_values(weights) else None
        case _:
            return None


def _of_map(operator: Map, ranges: Sequence[IntegerInterval | None]) -> IntegerInterval | None:
    operands = [_of_values(o.pixels) if isinstance(o, Constant) else ranges[o] for o in operator.operands]
    known = [r for r in operands if r is not None]
    if len(known) < len(operands):
        return None
    match operator.function, known:
        case "add", (a, b):
            return IntegerInterval(a.low + b.low, a.high + b.high)
        case "sub", (a, b):
            return IntegerInterval(a.low - b.high, a.high - b.low)
        case "mul", (a, b):
            return a.times(b)
        case "max", (a, b):
            return IntegerInterval(max(a.low, b.low), max(a.high, b.high))
        case "relu", (a,):
            return IntegerInterval(max(a.low, 0), max(a.high, 0))
        case _:
            return None


def _of_values(values: Numbers) -> IntegerInterval | None:
    if not values.size or not np.isfinite(values).all() or (np.rint(values) != values).any():
        return None
    return IntegerInterval(int(values.min()), int(values.max()))


def _sums(weights: Numbers, source: IntegerInterval) -> IntegerInterval:
    wide = weights.astype(np.float64)
    positive, negative = np.maximum(wide, 0).sum(axis=(0, 1)), np.minimum(wide, 0).sum(axis=(0, 1))
    low, high = source.with_zero()
    return IntegerInterval(int((positive * low + negative * high).min()), int((positive * high + negative * low).max()))
