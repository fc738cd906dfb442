"""Requantisation: a sum of scaled integers, rounded to integers of the result. Defines it and computes it exactly."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.graph.requantise.vector_program import Ints, RequantiseRecipe, select_by_row
from raptor.graph.requantise.vrequant import VrequantParams


@dataclass(frozen=True, slots=True, eq=False)
class RequantiseTerm:
    """One operand x of a requantisation; it contributes (x + offset) * multiplier.

    multiplier, offset: [classes or 1, width or 1, channels or 1]. multiplier: finite, above 0, the exact value of a
    float32. offset: bias minus zero point. low, high: proved range of the operand's elements, both included.
    """

    multiplier: npt.NDArray[np.float32]
    offset: npt.NDArray[np.int64]
    low: int
    high: int


@dataclass(frozen=True, slots=True, eq=False)
class Requantise:
    """y = clamp(round(sum over terms of (x + offset) * multiplier) + zero_point, low, high); ties go to even.

    The arithmetic is exact; only the sum is rounded, once, before the zero point is added. terms: one per input.
    row_class: [rows], for each row of the image the class that selects its parameters. recipe: the implementation on
    the vector unit; None until it is decided.
    """

    terms: tuple[RequantiseTerm, ...]
    row_class: npt.NDArray[np.int64]
    zero_point: int
    low: int
    high: int
    recipe: RequantiseRecipe | VrequantParams | None = None


def evaluate_requantise(requantise: Requantise, inputs: Sequence[Ints]) -> npt.NDArray[np.int64]:
    """Returns the exact result for integer images [rows, width, channels], one per term."""
    factors, shift = _whole([term.multiplier for term in requantise.terms])
    rows = requantise.row_class
    sums = [x.astype(np.int64) + select_by_row(t.offset, rows) for x, t in zip(inputs, requantise.terms, strict=True)]
    whole = round_scaled_sum(
        [f if len(f) == 1 else f[rows] for f in factors], shift if len(shift) == 1 else shift[rows], sums
    )
    return np.clip(whole + requantise.zero_point, requantise.low, requantise.high).astype(np.int64)


def round_scaled_sum(factors: Sequence[Ints], shift: Ints, operands: Sequence[Ints]) -> Ints:
    """Returns the sum of factor * operand / 2^shift, rounded half to even; dtype object where int64 could overflow."""
    largest = sum(_magnitude(f) * _magnitude(x) for f, x in zip(factors, operands, strict=True))
    if max(largest, *(_magnitude(f) for f in factors)) < 2**59:
        # NOTE: sums below 2^59 are rounded to 0 by a shift of 61, as by any larger shift.
        factors, shift = [f.astype(np.int64) for f in factors], np.minimum(shift, 61).astype(np.int64)
    else:
        factors, shift = [f.astype(object) for f in factors], shift.astype(object)
        operands = [x.astype(object) for x in operands]
    total: Ints = sum((f * x for f, x in zip(factors, operands, strict=True)), np.int64(0))  # pyright: ignore
    floor = total >> shift
    rest = total - (floor << shift)
    return floor + (2 * rest + (floor & 1) > (1 << shift))


def _magnitude(values: Ints) -> int:
    return max(abs(int(values.min())), abs(int(values.max()))) if values.size else 0


def _whole(multipliers: Sequence[Ints]) -> tuple[list[Ints], Ints]:
    """Returns integer factors and one common shift >= 0 with multiplier = factor / 2^shift.

    At least one factor is odd, or the shift is 0. The factors are Python integers if 64 bits are too few.
    """
    odd = [_odd(multiplier) for multiplier in multipliers]
    shift = np.maximum(0, odd[0][1])
    for _, own in odd[1:]:
        shift = np.maximum(shift, own)
    kind = np.int64 if max(int((shift - own).max()) for _, own in odd) < 38 else object
    return [m.astype(kind) << (shift - own).astype(kind) for m, own in odd], shift


def _odd(multiplier: Ints) -> tuple[Ints, Ints]:
    """Returns (m, s) with multiplier = m / 2^s, where m is odd and below 2^24."""
    mantissa, exponent = np.frexp(multiplier.astype(np.float64))
    m = (mantissa * 2.0**24).astype(np.int64)
    zeros = np.frexp((m & -m).astype(np.float64))[1].astype(np.int64) - 1
    return m >> zeros, 24 - exponent.astype(np.int64) - zeros


def find_distinct(arrays: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Returns (first, kinds): the distinct combinations of values among arrays that broadcast together.

    first: [S], the flat index of one element of each combination. kinds: array of the broadcast shape, the number of
    the combination of each element.
    """
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    kinds = np.zeros(int(np.prod(shape)), np.int64)
    first = np.zeros(1, np.int64)
    for array in arrays:
        different, numbers = np.unique(array, return_inverse=True)
        own = np.broadcast_to(numbers.reshape(array.shape), shape).reshape(-1)
        _, first, kinds = np.unique(kinds * len(different) + own, return_index=True, return_inverse=True)
    return first, kinds.reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class ParameterSets:
    """The S distinct parameter sets of a requantisation, each solved once.

    factors, offsets: one array [S, 1] per term; shift: [S, 1]; multiplier = factor / 2^shift. kinds: [classes, width,
    channels], the parameter set of each element. first: [S], flat index of one element of each set. extra: further
    arrays [S, 1], selected together with the parameters.
    """

    factors: list[Ints]
    offsets: list[Ints]
    shift: Ints
    operands: tuple[tuple[int, int], ...]
    zero_point: int
    low: int
    high: int
    first: Ints
    set_numbers: Ints
    extra: list[Ints]

    @property
    def size(self) -> int:
        """Number of parameter sets, S."""
        return len(self.shift)

    def results(self, operands: Sequence[Ints]) -> Ints:
        """Returns the exact results for operands [S or 1, any]."""
        sums = [x + offset for x, offset in zip(operands, self.offsets, strict=True)]
        return np.clip(round_scaled_sum(self.factors, self.shift, sums) + self.zero_point, self.low, self.high).astype(
            np.int64
        )

    def result_ends(self) -> Ints:
        """Returns the smallest and largest result of each parameter set, [S, 2]; one term only."""
        return self.results([np.array([self.operands[0]], np.int64)])

    def select(self, chosen: Ints) -> "ParameterSets":
        """Returns the problem of some parameter sets, selected by number or by mask; `kinds` is not changed."""
        cut = ([a[chosen] for a in arrays] for arrays in (self.factors, self.offsets, self.extra))
        factors, offsets, extra = cut
        fixed = (self.operands, self.zero_point, self.low, self.high, self.first[chosen], self.set_numbers)
        return ParameterSets(factors, offsets, self.shift[chosen], *fixed, extra)

    def thresholds(self, results: Ints) -> Ints:
        """Returns the smallest operand whose result is at least `results` [S, any]; one term only.

        Each value of `results` must be above the smallest of `ends` and at most the largest.
        """
        k = results - self.zero_point
        # (x + offset) * factor / 2^shift reaches k - 1/2; a tie goes up only to an even k.
        halves = ((2 * k - 1) << self.shift) + (k & 1)
        return -(-halves // (2 * self.factors[0])) - self.offsets[0]


def find_parameter_sets(requantise: Requantise, extra: Sequence[Ints] = ()) -> ParameterSets:
    """Returns the distinct parameter sets of a requantisation and of the `extra` arrays, broadcast together."""
    terms = requantise.terms
    arrays = [*(t.multiplier for t in terms), *(t.offset for t in terms), *extra]
    first, kinds = find_distinct(arrays)
    flat = [np.broadcast_to(array, kinds.shape).reshape(-1)[first][:, None] for array in arrays]
    factors, shift = _whole(flat[: len(terms)])
    operands = tuple((t.low, t.high) for t in terms)
    offsets = [offset.astype(np.int64) for offset in flat[len(terms) : 2 * len(terms)]]
    fixed = (operands, requantise.zero_point, requantise.low, requantise.high, first, kinds)
    return ParameterSets(factors, offsets, shift, *fixed, flat[2 * len(terms) :])
