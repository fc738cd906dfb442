"""Element types: the type of one number in a memory of the chip, and its relation to values of the model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class ElementType(msgspec.Struct, frozen=True, gc=False):
    """A float, or an integer in two's complement, of `bits`. In memory it takes whole bytes, the low byte first.

    `bits` is 0 for the floats of a float program: their values are float32, but they have the size of an activation of
    the target.
    """

    kind: Literal["float", "int"]
    bits: int

    @property
    def low(self) -> int:
        """The smallest integer."""
        return -(1 << (self.bits - 1))

    @property
    def high(self) -> int:
        """The largest integer."""
        return (1 << (self.bits - 1)) - 1

    def __str__(self) -> str:
        return f"{self.kind}{self.bits}" if self.bits else self.kind


MODELLED_FLOAT = ElementType("float", 0)
"""A float of the width that the target models."""
FLOAT32 = ElementType("float", 32)


MOST_EXACT_INTEGER = 2**24
"""Largest magnitude up to which float32 holds all integers."""


def integer_type(bits: int) -> ElementType:
    """Returns the type of signed integers of `bits` bits."""
    return ElementType("int", bits)


def bytes_of(bits: int) -> int:
    """Returns the number of bytes of an element of `bits` bits in memory."""
    return -(-bits // 8)


def to_bytes(values: npt.NDArray[Any], element: ElementType) -> Bytes:
    """Returns the bytes of elements in memory. Asserts that integers fit the type."""
    if element.kind == "float":
        return np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1)
    assert values.size == 0 or (element.low <= values.min() and values.max() <= element.high), "constant out of range"
    wide = np.ascontiguousarray(values, "<i4").reshape(-1, 1).view(np.uint8)
    return np.ascontiguousarray(wide[:, : bytes_of(element.bits)]).reshape(-1)


@dataclass(frozen=True, slots=True)
class ElementCoding:
    """The way in which elements on the chip stand for values of the model's tensor of type `dtype` (numpy's name).

    Without `scale`, value = element + `offset`: unsigned types are stored as signed ones. With `scale`, the model's
    values are floats: value = (element - zero_point) * scale, in float32. `scale` and `zero_point` have one entry, or
    one for each index of `axis`.

    Float elements stand for their own values, even if the model's type is an integer. `low` and `high`: range of an
    input's values for which the program is exact; None without bounds.
    """

    dtype: str
    offset: int = 0
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = (0,)
    axis: int | None = None
    low: int | None = None
    high: int | None = None

    def reshape_to(self, shape: Sequence[int], other: Sequence[int]) -> "ElementCoding":
        """Returns the coding of the same elements in the shape `other`, which must have the dimension `axis`, too."""
        if self.axis is None or tuple(shape) == tuple(other):
            return self
        place = math.prod(shape[: self.axis]), shape[self.axis]
        axis = next(k for k, size in enumerate(other) if (math.prod(other[:k]), size) == place)
        return replace(self, axis=axis)
