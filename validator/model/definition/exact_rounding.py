"""Exact rounding of real numbers to integers, ties to even. Multipliers are float32, so dyadic fractions."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from validator.model.definition.exact_values import (
    Array,
    Doubles,
    ExactReal,
    Ints,
    RoundedCodes,
    ScaledTerm,
    Singles,
    code_limits,
    largest,
)

FLOAT32_UNIT = 2.0**-24
"""Largest relative error of one rounding to float32."""
MANTISSA_BITS = 24
_FAR = 62
"""Shift by which every number below 2^61 is rounded to 0."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizeTarget:
    """The quantised tensor to compute: scale and zero point (broadcast to it), type, name of the node for messages.

    `steps`: float32 roundings in onnxruntime's quantisation, besides the terms' own. `with_zero`: onnxruntime
    rounds after adding the zero point, and multiplies the zero points of operands separately.
    """

    scale: Singles
    zero: Ints
    dtype: "np.dtype[np.generic]"
    where: str
    steps: int = 6
    with_zero: bool = False


def compute_multiplier(term: ScaledTerm, target: QuantizeTarget) -> Singles:
    """Returns float32(scale / float32(scale of the target * number of averaged elements))."""
    with np.errstate(over="ignore", divide="ignore"):
        below = np.asarray(target.scale * term.over.astype(np.float32), np.float32)
        found = np.asarray(term.scale / below, np.float32)
    if not np.isfinite(found).all():
        raise UserError(f"{target.where}: the scales are too far apart: {term.scale.max():g} and {below.min():g}")
    return found


def to_dyadic(numbers: Singles) -> tuple[Ints, Ints]:
    """Returns integers m below 2^24 and s such that each number is m / 2^s."""
    fraction, exponent = np.frexp(numbers.astype(np.float64))
    return (fraction * 2.0**MANTISSA_BITS).astype(np.int64), MANTISSA_BITS - exponent.astype(np.int64)


def shift_to_even(product: Array, shift: Array) -> Array:
    """Returns product / 2^shift, rounded to integers, ties to even. `product`: below 2^61, or Python integers."""
    below = product >> shift
    rest = product - (below << shift)
    half = (1 << shift) >> 1
    up = (rest > half) | ((rest == half) & (shift > 0) & (below & 1 == 1))
    return below + up


def quantise_exactly(real: ExactReal, target: QuantizeTarget) -> RoundedCodes:
    """Returns clamp(round(sum of units * multiplier) + zero point); bounds of the number are quantised as well."""
    low, high = code_limits(target.dtype)
    codes = _rounded(real, target) + target.zero
    if real.is_bounded:
        first, last = (quantise_floats(np.float32(bound), target) for bound in (real.low, real.high))
        codes = np.minimum(np.maximum(codes, first), last)
    codes = np.clip(codes, low, high).astype(np.int64).astype(target.dtype)
    return RoundedCodes(codes, target.zero, lambda: _with_error_bound(real, target))


def quantise_floats(numbers: Singles | np.float32, target: QuantizeTarget) -> Ints:
    """Quantises float32 numbers as QuantizeLinear does: a division in float32, ties to even, saturated."""
    low, high = code_limits(target.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.rint(np.asarray(numbers / target.scale, np.float32)).astype(np.float64)
    if np.isnan(scaled).any():
        raise UserError(f"{target.where}: an operand is not a number")
    return np.clip(scaled + target.zero, low, high).astype(np.int64)


def _rounded(real: ExactReal, target: QuantizeTarget) -> Array:
    factors = [to_dyadic(compute_multiplier(term, target)) for term in real.terms]
    if len(factors) == 1 and largest(real.terms[0].units) < 2**37:
        (mantissa, shift), units = factors[0], real.terms[0].units
        # A factor of 2^24 or more saturates every type with or without the rest of the shift.
        return shift_to_even(units * mantissa, np.clip(shift, 0, _FAR))
    shift = np.maximum.reduce(np.broadcast_arrays(np.int64(0), *(s for _, s in factors)))
    if sum(_bound(t, shift - s) for t, (_, s) in zip(real.terms, factors, strict=True)) < 2**61:
        return shift_to_even(_sum(real, factors, shift), np.minimum(shift, _FAR))
    # Scales that differ by more than about 2^28: Python's integers have no limit.
    limitless = replace(real, terms=tuple(replace(t, units=t.units.astype(object)) for t in real.terms))
    far = np.broadcast_to(shift, np.broadcast_shapes(shift.shape, *(t.units.shape for t in real.terms))).astype(object)
    return np.clip(shift_to_even(_sum(limitless, factors, far), far), -(2**40), 2**40)


def _sum(real: ExactReal, factors: list[tuple[Array, Array]], shift: Array) -> Array:
    parts = [(t.units * m) << (shift - s) for t, (m, s) in zip(real.terms, factors, strict=True)]
    return np.asarray(sum(parts[1:], parts[0]))


def _bound(term: ScaledTerm, left: Ints) -> int:
    return largest(term.units) << (MANTISSA_BITS + int(left.max(initial=0)))


def _with_error_bound(real: ExactReal, target: QuantizeTarget) -> tuple[Doubles, Doubles]:
    """Returns values before rounding (to 2^-53) and a bound on onnxruntime's errors, in units of the scale."""
    low, high = (np.float64(np.float32(bound)) / target.scale for bound in (real.low, real.high))
    exact, doubt = np.zeros(()), np.zeros(())
    for term in real.terms:
        factor = compute_multiplier(term, target).astype(np.float64)
        exact = exact + term.units * factor
        roundings = (term.steps + target.steps) * FLOAT32_UNIT
        doubt = doubt + roundings / (1 - roundings) * factor * np.maximum(term.size(), np.abs(term.units))
        doubt = doubt + term.slack * factor
    if target.with_zero:
        doubt = doubt + target.steps * FLOAT32_UNIT * np.abs(target.zero)
    return np.clip(exact, low, high), np.where(_without_rounding(real, target), 0.0, doubt)


def _without_rounding(real: ExactReal, target: QuantizeTarget) -> npt.NDArray[np.bool_]:
    """Marks where onnxruntime's float32 arithmetic is exact: sums of few bits, all scales powers of two."""
    parts = [np.asarray(t.scale / t.over.astype(np.float64)) for t in real.terms]
    scales = [*parts, np.asarray(target.scale)]
    if target.with_zero or any(t.slack for t in real.terms) or not all(map(are_powers_of_two, scales)):
        return np.zeros((), np.bool_)
    least = np.minimum.reduce(np.broadcast_arrays(*parts))
    sums = [t.size() * (part / least) for t, part in zip(real.terms, parts, strict=True)]
    return np.asarray(sum(sums[1:], sums[0]) < 2.0**MANTISSA_BITS)


def are_powers_of_two(numbers: Array) -> bool:
    """Checks whether all numbers are powers of two."""
    return bool((np.frexp(numbers.astype(np.float64))[0] == 0.5).all())
