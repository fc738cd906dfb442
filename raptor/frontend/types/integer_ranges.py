"""Integer range analysis: the narrowest element type that is proved to hold every result of an operator."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raptor.common.errors import InternalError
from raptor.graph.ir import (
    Constant,
    ConstantTensor,
    Dot,
    Filter,
    Map,
    Move,
    Numbers,
    Operator,
    Pool,
    Take,
    Tensor,
)
from raptor.target.chip_elements import ElementType, integer_type

Ints = npt.NDArray[np.int64]
WIDTHS = (8, 16, 24, 32)
"""Bits of the integer types that a memory of the chip holds in whole bytes."""


class IntegerInterval(NamedTuple):
    """A range of integers, both ends included."""

    low: int
    high: int

    @classmethod
    def from_element(cls, element: ElementType) -> "IntegerInterval":
        return cls(element.low, element.high)

    def times(self, other: "IntegerInterval") -> "IntegerInterval":
        """Returns the range of products of two integers."""
        corners = [a * b for a in self for b in other]
        return IntegerInterval(min(corners), max(corners))

    def with_zero(self) -> "IntegerInterval":
        """Returns the range extended to contain 0."""
        return IntegerInterval(min(self.low, 0), max(self.high, 0))


class OverflowFault(Exception):  # noqa: N818 (callers turn it into an error that names the node)
    """Raised for sums that may exceed 32 bits."""


def find_narrowest_type(found: IntegerInterval, least: int = 16) -> ElementType:
    """Returns the narrowest type of at least `least` bits that holds a range. Raises `OverflowFault` above 32 bits."""
    for bits in (b for b in WIDTHS if b >= least):
        if integer_type(bits).low <= found.low and found.high <= integer_type(bits).high:
            return integer_type(bits)
    raise OverflowFault(
        f"its sums reach {found.low} to {found.high}, more than 32 bits hold; narrower activations or weights fit"
    )


def infer_result_type(
    operator: Operator, sources: Sequence[tuple[Tensor, IntegerInterval | None]], floats: ElementType
) -> tuple[ElementType, IntegerInterval | None]:
    """Returns the element type of an operator's result and, for integers, its proved range.

    sources: operands, with their ranges if they are integers. floats: element type of a float result. Raises
    `OverflowFault` for sums that may exceed 32 bits.
    """
    ranges = [r for _, r in sources if r is not None]
    values = _values(operator)
    if values is not None and values.dtype.kind == "i":
        found = _of_values(values)
        return find_narrowest_type(found, least=8), found
    if values is not None or not ranges or (isinstance(operator, Map) and operator.function == "float"):
        return floats, None
    match operator:
        case Filter():
            found = _sums(operator.weights, ranges[0])
            return find_narrowest_type(found), found
        case Dot():
            product, count = ranges[0].times(ranges[1]), sources[0][0].image.channels
            found = IntegerInterval(product.low * count, product.high * count).with_zero()
            return find_narrowest_type(found), found
        case Map("mul"):
            found = IntegerInterval.times(*_operands(operator, ranges))
            return find_narrowest_type(found), found
        case _:
            element, found = sources[0][0].element, _alike(operator, ranges)
    if found.low < element.low or found.high > element.high:
        raise InternalError(f"{operator} reaches {found}, beyond {element}")
    return element, found


def _values(operator: Operator) -> Numbers | None:
    """Returns the constants that the result elements are taken from, if the operator does no arithmetic; else None."""
    match operator:
        case ConstantTensor(pixels):
            return pixels
        case Take(table):
            return table
        case _:
            return None


def _sums(weights: Numbers, source: IntegerInterval) -> IntegerInterval:
    """Returns the range of all partial sums of a filter, for any input in the range."""
    positive = np.maximum(weights, 0).sum(axis=(0, 1), dtype=np.int64)
    negative = np.minimum(weights, 0).sum(axis=(0, 1), dtype=np.int64)
    low, high = source.with_zero()
    return IntegerInterval(int((positive * low + negative * high).min()), int((positive * high + negative * low).max()))


def _alike(operator: Operator, ranges: Sequence[IntegerInterval]) -> IntegerInterval:
    hull = IntegerInterval(min(r.low for r in ranges), max(r.high for r in ranges))
    match operator:
        case Move(sources):
            return hull.with_zero() if (sources < 0).any() else hull
        case Pool("sum", window):
            return IntegerInterval(hull.low * window.tap_count, hull.high * window.tap_count).with_zero()
        case Map("add"):
            a, b = _operands(operator, ranges)
            return IntegerInterval(a.low + b.low, a.high + b.high)
        case Map("sub"):
            a, b = _operands(operator, ranges)
            return IntegerInterval(a.low - b.high, a.high - b.low)
        case Map("max"):
            a, b = _operands(operator, ranges)
            return IntegerInterval(max(a.low, b.low), max(a.high, b.high))
        case Map("relu"):
            return IntegerInterval(max(hull.low, 0), max(hull.high, 0))
        case _:
            return hull


def _operands(operator: Map, ranges: Sequence[IntegerInterval]) -> tuple[IntegerInterval, IntegerInterval]:
    a, b = (_of_values(o.pixels) if isinstance(o, Constant) else ranges[o] for o in operator.operands)
    return a, b


def _of_values(values: Numbers) -> IntegerInterval:
    return IntegerInterval(int(values.min()), int(values.max()))
