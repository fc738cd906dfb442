"""Judgement by float64: an error above the tolerance passes if float32 cannot be more exact.

The model is computed in float64 (`exact`): once without errors, and several times with errors as large as one rounding
in every node. The variation of the results, at each element and for this input, is the precision of float32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.target.tensor_layout import Floats
from validator.judge.comparison import Doubles, RoundingVerdict, absolute_errors
from validator.judge.sample_runs import ComparedTensor
from validator.model.float64 import Float64Model, NoFloat64Error
from validator.model.node import Array

ALLOWED_DEVIATIONS = 32
"""Largest error, in standard deviations of rounding; docs/explanation/verdict.md gives the reason."""
FEWEST_DRAWS, MOST_DRAWS = 4, 16
"""Number of draws. Few draws give an uncertain deviation, so only clear cases end after the fewest."""
CLEAR_FACTOR = 32
"""Multiple of the allowed error that cannot be due to chance."""


@dataclass(frozen=True, slots=True, eq=False)
class DoubtfulTensor:
    """A tensor of one input with an error above the tolerance: computed and wanted values, and allowed errors."""

    got: Floats
    wanted: Floats
    allowed_errors: Doubles

    @property
    def doubtful_elements(self) -> npt.NDArray[np.bool_]:
        return absolute_errors(self.got, self.wanted) > self.allowed_errors


def judge_by_float64(
    exact: Float64Model, inputs: Mapping[str, Floats], doubts: Mapping[ComparedTensor, DoubtfulTensor]
) -> dict[ComparedTensor, RoundingVerdict]:
    """Judges tensors of one input. Raises `NoFloat64Error` if float64 cannot compute the model."""
    known = _exact(exact, inputs, doubts)
    apart = {shown: _unconfirmed_errors(doubt, known[shown]) for shown, doubt in doubts.items()}
    unsettled = {shown: error for shown, error in apart.items() if error.any()}
    deviation = _deviation(exact, inputs, known, unsettled) if unsettled else {}
    return {shown: _verdict(doubt, known[shown], apart[shown], deviation.get(shown)) for shown, doubt in doubts.items()}


def _exact(
    exact: Float64Model, inputs: Mapping[str, Floats], doubts: Mapping[ComparedTensor, DoubtfulTensor]
) -> dict[ComparedTensor, Doubles]:
    values = exact.run(inputs, list({shown.tensor for shown in doubts}))
    for shown, doubt in doubts.items():
        if (shape := values[shown.tensor].shape) != doubt.wanted.shape:
            raise NoFloat64Error(f"tensor {shown.tensor!r} has shape {list(shape)} there")
    return {shown: values[shown.tensor].astype(np.float64) for shown in doubts}


def _unconfirmed_errors(doubt: DoubtfulTensor, exact: Array) -> Doubles:
    """Returns the errors against float64 of the elements in doubt; 0 where float64 confirms them."""
    error = absolute_errors(doubt.got, exact)
    return np.where(doubt.doubtful_elements & (error > doubt.allowed_errors), error, 0.0)


def _deviation(
    exact: Float64Model,
    inputs: Mapping[str, Floats],
    known: Mapping[ComparedTensor, Doubles],
    apart: Mapping[ComparedTensor, Doubles],
) -> dict[ComparedTensor, Doubles]:
    """Returns how much rounding moves each element: the root mean square of `FEWEST_DRAWS` to `MOST_DRAWS` draws."""
    squares = {shown: np.zeros(error.shape) for shown, error in apart.items()}
    names, deviation = list({shown.tensor for shown in apart}), dict[ComparedTensor, Doubles]()
    for draw in range(1, MOST_DRAWS + 1):
        moved = exact.run(inputs, names, np.random.default_rng(draw))
        for shown, total in squares.items():
            total += _squared(moved[shown.tensor], known[shown])
        deviation = {shown: np.sqrt(total / draw) for shown, total in squares.items()}
        if draw >= FEWEST_DRAWS and all(_is_clear(error, deviation[shown]) for shown, error in apart.items()):
            break
    return deviation


def _squared(moved: Array, known: Doubles) -> Doubles:
    """Returns squared differences; values that are not finite count as 0, so that they excuse no error.

    Raises `NoFloat64Error` if rounding has changed the shape.
    """
    if moved.shape != known.shape:
        raise NoFloat64Error(f"by rounding, a shape becomes {list(moved.shape)} instead of {list(known.shape)}")
    with np.errstate(invalid="ignore", over="ignore"):
        square = np.square(moved - known)
    return np.where(np.isfinite(square), square, 0.0)


def _is_clear(error: Doubles, deviation: Doubles) -> bool:
    allowed = ALLOWED_DEVIATIONS * deviation
    return bool((error <= allowed).all() or (error > CLEAR_FACTOR * allowed).any())


def _verdict(doubt: DoubtfulTensor, exact: Doubles, error: Doubles, deviation: Doubles | None) -> RoundingVerdict:
    if deviation is None:
        with np.errstate(divide="ignore", invalid="ignore"):
            at = _largest(
                np.where(doubt.doubtful_elements, absolute_errors(doubt.got, doubt.wanted) / doubt.allowed_errors, 0.0)
            )
        return RoundingVerdict(
            True, at, float(doubt.got[at]), float(exact[at]), float(absolute_errors(doubt.got, exact)[at]), 0.0
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        at = _largest(np.where(error == 0, 0.0, error / deviation))
    passed = bool((error <= ALLOWED_DEVIATIONS * deviation).all())
    return RoundingVerdict(passed, at, float(doubt.got[at]), float(exact[at]), float(error[at]), float(deviation[at]))


def _largest(array: Doubles) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(array.argmax()), array.shape))


def worst_verdict(found: Sequence[RoundingVerdict]) -> RoundingVerdict:
    """Returns the worst judgement over several inputs."""
    return max(found, key=lambda r: (not r.passed, r.ratio))
