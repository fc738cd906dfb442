"""Compares what was computed with what should have been."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raptor.layout import Floats


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor. `max_relative` is the largest absolute error over the largest absolute value wanted of any input.

    Errors are infinite where one side is NaN or infinite and the other differs. `worst` is the index of the largest
    error, `got` and `want` are the values there.
    """

    name: str
    shape: tuple[int, ...]
    max_absolute: float
    max_relative: float
    worst: tuple[int, ...]
    got: float
    want: float
    passed: bool


@dataclass(frozen=True, slots=True)
class Deviation:
    """One tensor of one input, where it is furthest off.

    `largest` is the largest finite absolute value wanted; None if no value is finite.
    """

    shape: tuple[int, ...]
    absolute: float
    worst: tuple[int, ...]
    got: float
    want: float
    largest: float | None


def deviation(got: Floats, want: Floats) -> Deviation:
    """Of as many elements as were wanted, in the shape of `want`."""
    got = got.reshape(want.shape)
    error = _errors(got, want)
    worst = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
    finite = np.abs(want[np.isfinite(want)])
    largest = float(finite.max()) if finite.size else None
    return Deviation(want.shape, float(error[worst]), worst, float(got[worst]), float(want[worst]), largest)


def compare(name: str, found: Sequence[Deviation], tolerance: float) -> Comparison:
    """Judges a tensor by what was `found` for each input; passes if `max_relative` <= `tolerance`.

    One input alone may give a number that is nearly zero, and rounding would count too much: the largest value of any
    input is the measure.
    """
    furthest = max(found, key=lambda d: d.absolute)
    scale = max(d.largest or 0.0 for d in found)
    relative = furthest.absolute / scale if scale else furthest.absolute
    return Comparison(
        name=name,
        shape=furthest.shape,
        max_absolute=furthest.absolute,
        max_relative=relative,
        worst=furthest.worst,
        got=furthest.got,
        want=furthest.want,
        passed=relative <= tolerance,
    )


def _errors(got: Floats, want: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
