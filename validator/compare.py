"""Compares what was computed with what should have been."""

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


def largest(want: Floats) -> float:
    """The largest absolute value that is finite; 0 if none is."""
    finite = np.abs(want[np.isfinite(want)])
    return float(finite.max()) if finite.size else 0.0


def compare(name: str, got: Floats, want: Floats, tolerance: float, scale: float | None = None) -> Comparison:
    """Compares two tensors of as many elements, in the shape of `want`; passes if `max_relative` <= `tolerance`.

    `scale`: the largest value wanted of any input, if there are others. One input alone may give a number that is
    nearly zero, and rounding would count too much.
    """
    got = got.reshape(want.shape)
    scale = largest(want) if scale is None else scale
    error = _errors(got, want)
    worst = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
    absolute = float(error[worst])
    relative = absolute / scale if scale else absolute
    passed = relative <= tolerance
    return Comparison(name, want.shape, absolute, relative, worst, float(got[worst]), float(want[worst]), passed)


def _errors(got: Floats, want: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
