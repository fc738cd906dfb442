"""Compares what was computed with what should have been."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.common.strict import Figure
from raptor.target.layout import Floats

Doubles = npt.NDArray[np.float64]
FEWEST_VALUES = 16
"""The largest of so many values is not small by chance."""
SMALLEST = 2.0**-10
"""Of the largest value of a tensor: values near zero are measured as if they were as large."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """What float64 says of a tensor, at the element that is furthest off beside what rounding does.

    `error` is that of `got` against `exact`. `deviation`: by how much rounding to float32 moves the element; 0 where it
    was not needed, because float64 agrees within the tolerance: then onnxruntime's float32 is what was off.
    """

    passed: bool
    at: tuple[int, ...]
    got: Figure
    exact: Figure
    error: Figure
    deviation: Figure

    @property
    def ratio(self) -> float:
        """Errors in standard deviations."""
        if not self.error or not self.deviation:
            return 0.0 if self.passed else float("inf")
        return self.error / self.deviation


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor. `max_relative` is the largest error beside the values wanted near it (`measure`).

    Errors are infinite where one side is NaN or infinite and the other differs. `max_absolute` is the largest of all;
    `worst` is the index of the largest relative one, `got` and `want` are the values there. `rounding`: what float64
    says, if `max_relative` is above the tolerance and it could be asked.
    """

    name: str
    shape: tuple[int, ...]
    max_absolute: Figure
    max_relative: Figure
    worst: tuple[int, ...]
    got: Figure
    want: Figure
    passed: bool
    rounding: Rounding | None = None


@dataclass(slots=True, eq=False)
class Tally:
    """One tensor over several inputs: of each element the largest error, and the largest finite absolute value wanted.

    `got` and `want` are those of the largest error; `finite` says whether any value wanted was finite.
    """

    error: Doubles
    largest: Floats
    got: Floats
    want: Floats
    inputs: int = 1
    finite: bool = True

    def add(self, other: "Tally") -> None:
        """One more input."""
        worse = other.error > self.error
        for mine, new in ((self.error, other.error), (self.got, other.got), (self.want, other.want)):
            np.copyto(mine, new, where=worse)
        np.maximum(self.largest, other.largest, out=self.largest)
        self.inputs += other.inputs
        self.finite |= other.finite


def tally(got: Floats, want: Floats) -> Tally:
    """Of one input; as many elements as were wanted, in the shape of `want`."""
    got, finite = got.reshape(want.shape).copy(), np.isfinite(want)
    return Tally(
        errors(got, want), np.where(finite, np.abs(want), np.float32(0)), got, want.copy(), 1, bool(finite.any())
    )


def measure(largest: Floats, inputs: int) -> Floats:
    """What the error of each element is measured against, in a shape that broadcasts to that of `largest`.

    It is the largest value wanted in a group of the element: the tensor, each slice of it (a channel, a row, a column),
    or the element alone, all of them over all inputs. The group whose largest value is smallest counts, so that small
    values beside large ones are seen; but only groups of `FEWEST_VALUES`, because a few values may be small by chance,
    and never less than `SMALLEST`. Of a tensor that should be zero throughout it is 1.
    """
    if not largest.any():
        return np.ones((1,) * largest.ndim, np.float32)
    whole = largest.max(initial=0)
    least = np.full((1,) * largest.ndim, whole, np.float32)
    for axis, length in enumerate(largest.shape):
        if largest.size // length * inputs >= FEWEST_VALUES:
            others = tuple(a for a in range(largest.ndim) if a != axis)
            least = np.minimum(least, largest.max(axis=others, keepdims=True))
    least = np.minimum(least, largest) if inputs >= FEWEST_VALUES else least
    return np.maximum(least, np.float32(SMALLEST) * whole)


def within(found: Tally, tolerance: float) -> Doubles:
    """By how much each element may be off."""
    return tolerance * measure(found.largest, found.inputs).astype(np.float64)


def compare(name: str, found: Tally, tolerance: float) -> Comparison:
    """Judges a tensor by the tolerance alone; passes if no error is larger than it allows."""
    ratio = found.error / measure(found.largest, found.inputs).astype(np.float64)
    worst = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
    return Comparison(
        name=name,
        shape=found.want.shape,
        max_absolute=float(found.error.max()),
        max_relative=float(ratio[worst]),
        worst=worst,
        got=float(found.got[worst]),
        want=float(found.want[worst]),
        passed=bool((found.error <= within(found, tolerance)).all()),
    )


def errors(got: Floats, want: npt.NDArray[np.floating[Any]]) -> Doubles:
    """Absolute ones; none where both are NaN, or the same as float32."""
    with np.errstate(invalid="ignore", over="ignore"):
        same = (got == want.astype(np.float32)) & ~np.isfinite(got) | (np.isnan(got) & np.isnan(want))
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
