"""Synthesis of requantisation recipes: the cheapest programs on 32-bit integers with exactly the definition's results.

A multiplier is factor / 2^shift with integers, so the result is floor((sum x * factor + constant) / 2^shift). The
constant holds the offsets, the zero point and the half that rounds. Horner's scheme (`raptor.graph.requantise.horner`)
computes it in 32 bits. Two facts make it cheap:

- Operands are integers in a known range, so a whole interval of constants gives the same results
  (`raptor.graph.requantise.rounding_slack`). The constant with most trailing zeros needs no addition in the lower
  stages. Often a shorter factor, which needs one stage only, also has such an interval.
- Where the result is at its clamp, the operand does not matter: the operand may be clamped first.

Rounding half up differs from half to even where the sum is exactly k + 1/2. If operands reach such ties, the program
runs once with the half lowered by one unit, which gives k, and again with the parity of k added in the lowest stage.

Candidates are tried in order of cost; the first whose values all fit 32 bits is taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from raptor.common.errors import UserError
from raptor.graph.requantise.definition import ParameterSets, Requantise, find_parameter_sets
from raptor.graph.requantise.horner import ProgramShape, ScaledSum, write_program
from raptor.graph.requantise.proof import count_differences
from raptor.graph.requantise.rounding_slack import (
    SlackSamples,
    collect_samples,
    compute_end_thresholds,
    find_possible_ties,
)
from raptor.graph.requantise.vector_program import Ints, RangeError, RequantiseRecipe, VectorStep, compute_ranges

FEW_BITS = 15
"""Fewest bits of a rounded multiplier for which its operand is not clamped first."""
_MANTISSA = 24
_MOST_LIMBS = 5
_TRIAL = 8
_FEW = 256
"""Number of parameter sets, or of samples of each set, that usually suffices to reject a short multiplier."""
_CUT_WIDTHS = 10, 17
"""Smallest and largest mean width in bits of the limbs if the operand is split in two."""

_bit_length = np.frompyfunc(int.bit_length, 1, 1)


class NoRecipeError(UserError):
    """Raised if no 32-bit program computes a requantisation exactly. The message has the ranges, but not the node."""


def find_exact_recipe(requantise: Requantise) -> RequantiseRecipe:
    """Returns the cheapest recipe found with exact results. Raises `NoRecipeError` if there is none."""
    given = find_parameter_sets(requantise)
    for scaled, shape in _candidates(given):
        recipe = _fitting(given, scaled, shape)
        if recipe is not None:
            return recipe
    raise NoRecipeError(_too_wide(requantise))


def _too_wide(requantise: Requantise) -> str:
    terms = ", ".join(
        f"operand {t.low}..{t.high}, multiplier {t.multiplier.min():g}..{t.multiplier.max():g}, "
        f"offset {t.offset.min()}..{t.offset.max()}"
        for t in requantise.terms
    )
    multiplier = max(float(t.multiplier.max()) for t in requantise.terms)
    # A multiplier above 1: the result tensor is nearly constant, which gave it a tiny scale.
    advice = (
        "its scale is too fine for its operands; give it a larger one"
        if multiplier > 1
        else "narrower operands, or results of 8 bits, fit"
    )
    return f"requantisation does not fit 32-bit integers: {terms}; {advice}"


def find_short_recipe(requantise: Requantise) -> RequantiseRecipe:
    """Returns a recipe of one limb, its multiplier rounded to the bits that fit, with the number of `flips`.

    Returns the exact recipe if that has no more steps.
    """
    best, given = find_exact_recipe(requantise), find_parameter_sets(requantise)
    found = [(clamp, *_one_limb(given, clamp)) for clamp in _clamps(given, margin=True)]
    fitting = [(clamp, good, recipe) for clamp, good, recipe in found if recipe is not None]
    chosen = [recipe for clamp, good, recipe in fitting if clamp is not None or good or len(fitting) == 1]
    if not chosen or len(best.steps) <= len(chosen[0].steps):
        return best
    return replace(chosen[0], flips=count_differences(requantise, chosen[0]))


def _one_limb(given: ParameterSets, clamp: tuple[int, int] | None) -> tuple[bool, RequantiseRecipe | None]:
    """Returns whether all multipliers rounded to one limb are exact or long enough, and the recipe if it fits."""
    scaled = _rounded(given, _room(given, clamp or given.operands[0]))
    recipe = _fitting(given, _steady(given, scaled), ProgramShape((), clamp))
    both = zip(scaled.factors, given.factors, strict=True)
    good = [(_bit_length(a) >= FEW_BITS) | (a << _flat(given.shift) == _flat(b) << scaled.shift) for a, b in both]
    return all(g.all() for g in good), recipe


def _candidates(given: ParameterSets) -> Iterator[tuple[ScaledSum, ProgramShape]]:
    known, clamps = collect_samples(given), _clamps(given)
    slack = None if known is None else known.compute_slack([_flat(f) for f in given.factors], _flat(given.shift))
    half_up = _half_up(given, slack, 0)
    for clamp in clamps:
        if half_up is not None:
            yield half_up, ProgramShape((), clamp)
        fitted = None if known is None else _fitted(given, known, clamp or given.operands[0])
        if fitted is not None:
            yield fitted, ProgramShape((), clamp)
    wide = _even(given) if half_up is None else _half_up(given, slack, _MANTISSA)
    assert wide is not None
    for limbs in range(1, _MOST_LIMBS + 1):
        yield from ((wide, ProgramShape(w, clamp)) for clamp in clamps for w in _widths(given, wide, limbs, clamp))
    if len(given.operands) == 1:
        bits = max(abs(end) for end in given.operands[0]).bit_length()
        for limbs in range(2, _MOST_LIMBS + 1):
            totals = range(*((limbs - 1) * width for width in _CUT_WIDTHS))
            yield from ((wide, ProgramShape(w, split=bits // 2)) for w in _cuts(limbs, totals))


def _clamps(given: ParameterSets, margin: bool = False) -> list[tuple[int, int] | None]:
    """Returns None, and the range that contains all thresholds if it is narrower than the operand's range.

    margin: widens the range for thresholds that move a little.
    """
    ends = given.result_ends() if len(given.operands) == 1 else np.zeros((1, 2))
    moving = ends[:, 0] < ends[:, 1]
    if not moving.any():
        return [None]
    thresholds = compute_end_thresholds(given.select(moving))
    low, high = int(thresholds[:, 0].min()) - 1, int(thresholds[:, 1].max())
    more = 2 + ((high - low) >> 6) if margin else 0
    clamp = max(low - more, given.operands[0][0]), min(high + more, given.operands[0][1])
    return [None] if clamp == given.operands[0] else [None, clamp]


def _base(given: ParameterSets, factors: Sequence[Ints], shift: Ints) -> Ints:
    """Returns the constant of offsets and zero point, without the rounding half."""
    folded = given.zero_point << shift
    for factor, offset in zip(factors, given.offsets, strict=True):
        folded = folded + factor * _flat(offset)
    return folded


def _flat(values: Ints) -> Ints:
    """Reshapes [S, 1] to [S], as Python integers."""
    return values.reshape(-1).astype(object)


def _half(shift: Ints) -> Ints:
    return (1 << shift) >> 1


def _plain(given: ParameterSets, bits: int) -> ScaledSum:
    """Returns the exact multipliers with rounding half up; factors have at least `bits` bits."""
    factors, shift = [_flat(factor) for factor in given.factors], _flat(given.shift)
    plain = ScaledSum(factors, _base(given, factors, shift) + _half(shift), shift)
    plain = plain.raise_shift(shift + np.maximum(0, bits - _bit_length(np.maximum.reduce(factors))))
    # A shift of 0 needs no rounding half, but after raising it does.
    return replace(plain, constant=plain.constant + np.where(shift == 0, _half(plain.shift), 0))


def _half_up(given: ParameterSets, slack: tuple[Ints, Ints] | None, bits: int) -> ScaledSum | None:
    """Returns the exact multipliers with a constant that rounds half up or equivalently; None if ties must go to even.

    slack: least and largest exact constant [S] for the given multipliers; None if unknown.
    """
    plain = _plain(given, bits)
    if slack is None:
        return None if find_possible_ties(given).any() else _steady(given, plain)
    raised = plain.shift - _flat(given.shift)
    least, most = slack[0] << raised, ((slack[1] + 1) << raised) - 1
    if (least > most).any():
        return None
    base = _base(given, plain.factors, plain.shift)
    return _steady(given, replace(plain, constant=_roundest(base + least, base + most)))


def _even(given: ParameterSets) -> ScaledSum:
    plain, odd = _plain(given, 0).raise_shift(1), given.zero_point & 1
    constant = _base(given, plain.factors, plain.shift) - (odd << plain.shift) + _half(plain.shift) - 1
    return _steady(given, replace(plain, constant=constant, even=True, odd=odd))


def _steady(given: ParameterSets, scaled: ScaledSum) -> ScaledSum:
    """Replaces the factor by 0 in parameter sets that have a single result; one term only."""
    if len(given.operands) > 1:
        return scaled
    ends = given.result_ends()
    still = ends[:, 0] == ends[:, 1]
    shift = np.where(still, 0 if still.all() else scaled.shift[~still].min(), scaled.shift)
    constant = np.where(still, (_flat(ends[:, 0]) - scaled.odd) << shift, scaled.constant)
    return replace(scaled, factors=[np.where(still, 0, scaled.factors[0])], constant=constant, shift=shift)


def _roundest_of(low: int, high: int) -> int:
    if low <= 0 <= high:
        return 0
    zeros = max(0, ((low - 1) ^ high).bit_length() - 1)
    return high >> zeros << zeros


_roundest = np.frompyfunc(_roundest_of, 2, 1)
"""Returns, for each element, the number from low to high with most trailing zeros: lower limbs then add no constant."""


def _room(given: ParameterSets, operand: tuple[int, int]) -> Ints:
    """Returns the largest shifts [S] with which products and sums should fit 32 bits. `operand`: range of operand 0."""
    operands = [operand, *given.operands[1:]]
    products, sums = np.zeros(given.size), np.full(given.size, abs(given.zero_point) + 1.0)
    for (low, high), factor, offset in zip(operands, given.factors, given.offsets, strict=True):
        multiplier = np.ldexp(factor[:, 0].astype(np.float64), -given.shift[:, 0])
        products += max(-low, high, 1) * multiplier
        sums += np.maximum(abs(low + offset[:, 0]), abs(high + offset[:, 0])) * multiplier
    return np.clip(np.floor(30.999 - np.log2(np.maximum(products, sums))), 0, 31).astype(np.int64)


def _rounded(given: ParameterSets, shift: Ints, turns: Sequence[int] = ()) -> ScaledSum:
    """Returns the multipliers as multiples of 2^-shift, rounded, plus `turns` units (one per term), at least 1 unit."""
    scaled = [np.ldexp(factor[:, 0].astype(np.float64), shift - given.shift[:, 0]) for factor in given.factors]
    turned = [np.rint(s) + turn for s, turn in zip(scaled, turns or [0] * len(scaled), strict=True)]
    whole = [np.maximum(t, 1).astype(np.int64) for t in turned]
    # Keep factors that rounding does not change: a factor of 1 needs no product.
    kept = (shift >= given.shift[:, 0]) & np.logical_and.reduce([w == s for w, s in zip(whole, scaled, strict=True)])
    factors = [np.where(kept, _flat(f), w.astype(object)) for f, w in zip(given.factors, whole, strict=True)]
    exponent = np.where(kept, _flat(given.shift), shift.astype(object))
    return ScaledSum(factors, _base(given, factors, exponent) + _half(exponent), exponent)


def _fitted(given: ParameterSets, known: SlackSamples, operand: tuple[int, int]) -> ScaledSum | None:
    """Returns exact one-limb multipliers, found among shorter and neighbouring values; None if there are none."""
    if given.size > _TRIAL:
        # Usually there are none, and a few parameter sets show it quickly.
        trial = np.arange(given.size) < _TRIAL
        if _fitted(given.select(trial), known.select(trial), operand) is None:
            return None
    room, few = _room(given, operand), known.thin_out(_FEW)
    if few is not None and _fitted(given, few, operand) is None:
        return None
    found, missing = _rounded(given, room), known.moving.copy()
    for less, turns in product((0, 1), product((0, 1, -1), repeat=len(given.factors))):
        scaled = _rounded(given, np.maximum(room - less, 0), turns)
        least, most = known.compute_slack(scaled.factors, scaled.shift)
        base = _base(given, scaled.factors, scaled.shift)
        good = missing & (least <= most).astype(bool)
        found = _merged(found, replace(scaled, constant=_roundest(base + least, base + most)), good)
        missing &= ~good
        if not missing.any():
            return _steady(given, found)
    return None


def _merged(old: ScaledSum, new: ScaledSum, chosen: Ints) -> ScaledSum:
    factors = [np.where(chosen, b, a) for a, b in zip(old.factors, new.factors, strict=True)]
    return ScaledSum(factors, np.where(chosen, new.constant, old.constant), np.where(chosen, new.shift, old.shift))


def _widths(
    given: ParameterSets, scaled: ScaledSum, limbs: int, clamp: tuple[int, int] | None
) -> Iterator[tuple[int, ...]]:
    """Yields candidate widths of all limbs but the highest, with which the products may fit; narrow ones first."""
    if limbs == 1:
        yield ()
        return
    sizes = [max(-low, high, 1) for low, high in [clamp or given.operands[0], *given.operands[1:]]]
    largest = np.sum([factor * size for factor, size in zip(scaled.factors, sizes, strict=True)], axis=0)
    least = max(int(max(largest)).bit_length() - 32, limbs - 1, int(max(scaled.shift)) - 31)
    # Offsets and zero point may be larger than the products.
    whole = max(least, int(max(largest + abs(scaled.constant))).bit_length() - 32)
    most = (limbs - 1) * (33 - sum(sizes).bit_length())
    yield from _cuts(limbs, range(least, min(most, whole + 8) + 1))


def _cuts(limbs: int, totals: range) -> Iterator[tuple[int, ...]]:
    for total in totals:
        each, more = divmod(total, limbs - 1)
        yield tuple(each + (i < more) for i in range(limbs - 1))


def _fitting(given: ParameterSets, scaled: ScaledSum, shape: ProgramShape) -> RequantiseRecipe | None:
    try:
        steps = write_program(scaled, shape)
        bounds = compute_ranges(steps, given.operands)[len(given.operands) :]
    except (RangeError, OverflowError):
        return None
    ends = tuple((int(low.min()), int(high.max())) for low, high in bounds)
    spread = tuple(s if isinstance(s.right, int) else VectorStep(s.op, s.left, _spread(given, s.right)) for s in steps)
    return RequantiseRecipe(given.operands, spread, ends, given.low, given.high)


def _spread(given: ParameterSets, constants: Ints) -> Ints:
    """Returns constants [S, 1] as [classes or 1, width or 1, channels or 1], each axis as short as possible."""
    flat = constants.reshape(-1)
    wide = flat[given.set_numbers] if len(flat) > 1 else flat.reshape(1, 1, 1)
    for axis in range(wide.ndim):
        one = wide.take([0], axis)
        wide = one if (wide == one).all() else wide
    return wide.astype(np.int32)
