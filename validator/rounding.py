"""The second judge: whether what is off by more than the tolerance is off by no more than float32 has to be.

The model is computed in float64 (`exact`), once as it is and several times with errors, as large as one rounding, put
into every node. By how much the results then vary, at each element and for this input, is what float32 can promise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.target.layout import Floats
from validator.compare import Doubles, Rounding, errors
from validator.exact import Array, Exact, UnknownError
from validator.samples import Shown

ALLOWED = 32
"""Times the standard deviation by rounding that an error may be; docs/verdict.md says why."""
FEWEST_DRAWS, MOST_DRAWS = 4, 16
"""Of few draws the deviation is known badly: clear cases end after the fewest."""
CLEAR = 32
"""An error of this many times what is allowed is no bad luck."""


@dataclass(frozen=True, slots=True, eq=False)
class Doubt:
    """A tensor of one input that is off by more than the tolerance: what was computed, and how much may differ."""

    got: Floats
    wanted: Floats
    within: Doubles

    @property
    def off(self) -> npt.NDArray[np.bool_]:
        return errors(self.got, self.wanted) > self.within


def judge(exact: Exact, inputs: Mapping[str, Floats], doubts: Mapping[Shown, Doubt]) -> dict[Shown, Rounding]:
    """Judges tensors of one input. Raises `UnknownError` where float64 is not to be had."""
    known = _exact(exact, inputs, doubts)
    apart = {shown: _apart(doubt, known[shown]) for shown, doubt in doubts.items()}
    unsettled = {shown: error for shown, error in apart.items() if error.any()}
    deviation = _deviation(exact, inputs, known, unsettled) if unsettled else {}
    return {shown: _verdict(doubt, known[shown], apart[shown], deviation.get(shown)) for shown, doubt in doubts.items()}


def _exact(exact: Exact, inputs: Mapping[str, Floats], doubts: Mapping[Shown, Doubt]) -> dict[Shown, Doubles]:
    values = exact.run(inputs, list({shown.tensor for shown in doubts}))
    for shown, doubt in doubts.items():
        if (shape := values[shown.tensor].shape) != doubt.wanted.shape:
            raise UnknownError(f"tensor {shown.tensor!r} has shape {list(shape)} there")
    return {shown: values[shown.tensor].astype(np.float64) for shown in doubts}


def _apart(doubt: Doubt, exact: Array) -> Doubles:
    """Errors of the elements that are in doubt, and that float64 does not confirm within the tolerance; else 0."""
    error = errors(doubt.got, exact)
    return np.where(doubt.off & (error > doubt.within), error, 0.0)


def _deviation(
    exact: Exact, inputs: Mapping[str, Floats], known: Mapping[Shown, Doubles], apart: Mapping[Shown, Doubles]
) -> dict[Shown, Doubles]:
    """By how much rounding moves each element: the root mean square of `FEWEST_DRAWS` to `MOST_DRAWS` draws."""
    squares = {shown: np.zeros(error.shape) for shown, error in apart.items()}
    names, deviation = list({shown.tensor for shown in apart}), dict[Shown, Doubles]()
    for draw in range(1, MOST_DRAWS + 1):
        moved = exact.run(inputs, names, np.random.default_rng(draw))
        for shown, total in squares.items():
            total += _squared(moved[shown.tensor], known[shown])
        deviation = {shown: np.sqrt(total / draw) for shown, total in squares.items()}
        if draw >= FEWEST_DRAWS and all(_clear(error, deviation[shown]) for shown, error in apart.items()):
            break
    return deviation


def _squared(moved: Array, known: Doubles) -> Doubles:
    """A draw that leaves the numbers excuses nothing."""
    if moved.shape != known.shape:
        raise UnknownError(f"by rounding, a shape becomes {list(moved.shape)} instead of {list(known.shape)}")
    with np.errstate(invalid="ignore", over="ignore"):
        square = np.square(moved - known)
    return np.where(np.isfinite(square), square, 0.0)


def _clear(error: Doubles, deviation: Doubles) -> bool:
    allowed = ALLOWED * deviation
    return bool((error <= allowed).all() or (error > CLEAR * allowed).any())


def _verdict(doubt: Doubt, exact: Doubles, error: Doubles, deviation: Doubles | None) -> Rounding:
    if deviation is None:
        with np.errstate(divide="ignore", invalid="ignore"):
            at = _largest(np.where(doubt.off, errors(doubt.got, doubt.wanted) / doubt.within, 0.0))
        return Rounding(True, at, float(doubt.got[at]), float(exact[at]), float(errors(doubt.got, exact)[at]), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        at = _largest(np.where(error == 0, 0.0, error / deviation))
    passed = bool((error <= ALLOWED * deviation).all())
    return Rounding(passed, at, float(doubt.got[at]), float(exact[at]), float(error[at]), float(deviation[at]))


def _largest(array: Doubles) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(array.argmax()), array.shape))


def worst(found: Sequence[Rounding]) -> Rounding:
    """Of several inputs."""
    return max(found, key=lambda r: (not r.passed, r.ratio))
