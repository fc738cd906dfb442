"""Requantisation by one extended instruction, `vrequant`, which multiplies and rounds exactly in hardware."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.graph.requantise import Requantise

Ints = npt.NDArray[np.int64]

_HALF = 2**15


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """Parameters of `vrequant`: y = clamp(round((x + bias) * factor / 2^shift) + zero_point, low, high); ties to even.

    bias, factor, shift: [classes or 1, width or 1, channels or 1], as in `Requantise`.
    """

    bias: Ints
    factor: Ints
    shift: Ints
    zero_point: int
    low: int
    high: int

    def parameters(self) -> Ints:
        """Returns the parameter records as stored in memory: [classes, width or 1, channels or 1, 4 words]."""
        bias, factor, shift = np.broadcast_arrays(self.bias, self.factor, self.shift)
        rounding = _pair(shift, np.full_like(shift, self.zero_point))
        bounds = _pair(np.full_like(shift, self.low), np.full_like(shift, self.high))
        return np.stack([bias, factor, rounding, bounds], axis=-1)


def _pair(low: Ints, high: Ints) -> Ints:
    return (low & (2 * _HALF - 1)) | (high << 16)


def instruction(requantise: Requantise) -> Instruction | None:
    """Returns the `vrequant` parameters of a requantisation; None for several terms, or parameters that do not fit."""
    if len(requantise.terms) != 1:
        return None
    (term,) = requantise.terms
    factor, shift = _dyadic(term.multiplier)
    ends = requantise.zero_point, requantise.low, requantise.high
    fits = all(-_HALF <= end < _HALF for end in ends) and shift.min() >= 0 and factor.max() < 2**31
    if not fits or np.abs(term.offset).max() >= 2**31:
        return None
    return Instruction(term.offset.astype(np.int64), factor, shift, *ends)


def _dyadic(multiplier: npt.NDArray[np.float32]) -> tuple[Ints, Ints]:
    """Returns integers (factor, shift) with multiplier = factor / 2^shift and shift >= 0."""
    mantissa, exponent = np.frexp(multiplier.astype(np.float64))
    factor, shift = np.ldexp(mantissa, 24).astype(np.int64), 24 - exponent.astype(np.int64)
    raised = np.maximum(0, -shift)
    return factor << np.minimum(raised, 32), shift + raised


def prove_instruction(requantise: Requantise, found: Instruction) -> None:
    """Raises `VerifyError` unless the instruction computes the requantisation.

    The instruction has the same definition as the requantisation, so it suffices that the parameters are equal.
    """
    (term,) = requantise.terms
    same = np.array_equal(np.ldexp(found.factor.astype(np.float64), -found.shift), term.multiplier.astype(np.float64))
    ends = requantise.zero_point, requantise.low, requantise.high
    if not same or not np.array_equal(found.bias, term.offset) or (found.zero_point, found.low, found.high) != ends:
        raise VerifyError("vrequant has other parameters than the definition")
