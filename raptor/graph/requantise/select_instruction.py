"""Instruction selection for requantisation: the parameters of `vrequant`, and the proof that they are right."""

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.graph.requantise.definition import Requantise
from raptor.graph.requantise.vrequant import Ints, VrequantParams

_HALF = 2**15


def find_vrequant(requantise: Requantise) -> VrequantParams | None:
    """Returns the `vrequant` parameters of a requantisation; None for several terms, or parameters that do not fit."""
    if len(requantise.terms) != 1:
        return None
    (term,) = requantise.terms
    factor, shift = _dyadic(term.multiplier)
    ends = requantise.zero_point, requantise.low, requantise.high
    fits = all(-_HALF <= end < _HALF for end in ends) and shift.min() >= 0 and factor.max() < 2**31
    if not fits or np.abs(term.offset).max() >= 2**31:
        return None
    return VrequantParams(term.offset.astype(np.int64), factor, shift, *ends)


def _dyadic(multiplier: npt.NDArray[np.float32]) -> tuple[Ints, Ints]:
    """Returns integers (factor, shift) with multiplier = factor / 2^shift and shift >= 0."""
    mantissa, exponent = np.frexp(multiplier.astype(np.float64))
    factor, shift = np.ldexp(mantissa, 24).astype(np.int64), 24 - exponent.astype(np.int64)
    raised = np.maximum(0, -shift)
    return factor << np.minimum(raised, 32), shift + raised


def prove_vrequant(requantise: Requantise, found: VrequantParams) -> None:
    """Raises `VerifyError` unless the instruction computes the requantisation.

    The instruction has the same definition as the requantisation, so it suffices that the parameters are equal.
    """
    (term,) = requantise.terms
    same = np.array_equal(np.ldexp(found.factor.astype(np.float64), -found.shift), term.multiplier.astype(np.float64))
    ends = requantise.zero_point, requantise.low, requantise.high
    if not same or not np.array_equal(found.bias, term.offset) or (found.zero_point, found.low, found.high) != ends:
        raise VerifyError("vrequant has other parameters than the definition")
