"""Compares tensors of a program with onnxruntime's, within a tolerance."""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from raptor.common.files.schema_types import JsonNumber
from raptor.target.tensor_layout import Floats

K = TypeVar("K")
Doubles = npt.NDArray[np.float64]
FEWEST_GROUP_VALUES = 16
"""Least size of a group of values whose maximum is not small by chance."""
SMALLEST_SCALE = 2.0**-10
"""Smallest scale of an error, as a share of the tensor's largest value: the measure of errors near zero."""


@dataclass(frozen=True, slots=True)
class RoundingVerdict:
    """Judgement of a tensor by float64, at the element whose error is largest relative to rounding.

    `error`: error of `got` against `exact`. `deviation`: standard deviation of the element by rounding to float32;
    0 if float64 agrees with `got` within the tolerance: then onnxruntime's float32 was wrong, and nothing else is
    needed.
    """

    passed: bool
    at: tuple[int, ...]
    got: JsonNumber
    exact: JsonNumber
    error: JsonNumber
    deviation: JsonNumber

    @property
    def ratio(self) -> float:
        """Error in standard deviations."""
        if not self.error or not self.deviation:
            return 0.0 if self.passed else float("inf")
        return self.error / self.deviation


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """Result for one tensor. `max_relative`: largest error, relative to the wanted values near it (see `measure`).

    Errors are infinite where one side is NaN or infinite and the other differs. `max_absolute`: largest absolute error.
    `worst`: index of the largest relative error; `got` and `want`: the values there. `rounding`: judgement by float64,
    if `max_relative` is above the tolerance and float64 can compute the model.
    """

    name: str
    shape: tuple[int, ...]
    max_absolute: JsonNumber
    max_relative: JsonNumber
    worst: tuple[int, ...]
    got: JsonNumber
    want: JsonNumber
    passed: bool
    rounding: RoundingVerdict | None = None


@dataclass(slots=True, eq=False)
class ErrorTally:
    """Errors of one tensor over several inputs: for each element the largest error and the largest wanted value.

    `largest`: of finite absolute values. `got`, `want`: at the largest error. `finite`: some wanted value was finite.
    """

    error: Doubles
    largest: Floats
    got: Floats
    want: Floats
    inputs: int = 1
    finite: bool = True

    def add(self, other: "ErrorTally") -> None:
        """Adds one more input."""
        worse = other.error > self.error
        for mine, new in ((self.error, other.error), (self.got, other.got), (self.want, other.want)):
            np.copyto(mine, new, where=worse)
        np.maximum(self.largest, other.largest, out=self.largest)
        self.inputs += other.inputs
        self.finite |= other.finite


def tally_errors(got: Floats, want: Floats) -> ErrorTally:
    """Returns the errors of one input. `got` has as many elements as `want`, and is reshaped to it."""
    got, finite = got.reshape(want.shape).copy(), np.isfinite(want)
    return ErrorTally(
        absolute_errors(got, want),
        np.where(finite, np.abs(want), np.float32(0)),
        got,
        want.copy(),
        1,
        bool(finite.any()),
    )


def add_tally(found: dict[K, ErrorTally], key: K, one: ErrorTally) -> None:
    """Adds the tally of one more input to those of the tensors."""
    if key in found:
        found[key].add(one)
    else:
        found[key] = one


def compute_error_scale(largest: Floats, inputs: int) -> Floats:
    """Returns the scale of each element's error, in a shape that broadcasts to the shape of `largest`.

    It is the largest wanted value in a group that contains the element: the tensor, a slice (a channel, a row, a
    column), or the element alone, over all inputs. The group with the smallest maximum counts, so that errors of small
    values beside large ones are seen. Groups of fewer than `FEWEST_GROUP_VALUES` do not count: a few values may be
    small by chance. The scale is at least `SMALLEST_SCALE` times the tensor's largest value, and 1 for a tensor of
    zeros."""
    if not largest.any():
        return np.ones((1,) * largest.ndim, np.float32)
    whole = largest.max(initial=0)
    least = np.full((1,) * largest.ndim, whole, np.float32)
    for axis, length in enumerate(largest.shape):
        if largest.size // length * inputs >= FEWEST_GROUP_VALUES:
            others = tuple(a for a in range(largest.ndim) if a != axis)
            least = np.minimum(least, largest.max(axis=others, keepdims=True))
    least = np.minimum(least, largest) if inputs >= FEWEST_GROUP_VALUES else least
    return np.maximum(least, np.float32(SMALLEST_SCALE) * whole)


def allowed_errors(found: ErrorTally, tolerance: float) -> Doubles:
    """Returns the error allowed for each element."""
    return tolerance * compute_error_scale(found.largest, found.inputs).astype(np.float64)


def compare_tensor(name: str, found: ErrorTally, tolerance: float) -> TensorComparison:
    """Judges a tensor by the tolerance alone; passes if no error is larger than the tolerance allows."""
    ratio = found.error / compute_error_scale(found.largest, found.inputs).astype(np.float64)
    worst = tuple(int(i) for i in np.unravel_index(int(ratio.argmax()), ratio.shape))
    return TensorComparison(
        name=name,
        shape=found.want.shape,
        max_absolute=float(found.error.max()),
        max_relative=float(ratio[worst]),
        worst=worst,
        got=float(found.got[worst]),
        want=float(found.want[worst]),
        passed=bool((found.error <= allowed_errors(found, tolerance)).all()),
    )


_LOWEST = np.finfo(np.float32).min


def absolute_errors(got: Floats, want: npt.NDArray[np.floating[Any]]) -> Doubles:
    """Returns absolute errors: 0 where both are NaN or the same infinity, infinite where only one is."""
    with np.errstate(invalid="ignore", over="ignore"):
        same = (got == want.astype(np.float32)) & ~np.isfinite(got) | (np.isnan(got) & np.isnan(want))
        # onnxruntime's maximum of numbers that are all -inf is the lowest finite number, from which it begins.
        same |= np.isneginf(got) & (want.astype(np.float32) == _LOWEST)
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
