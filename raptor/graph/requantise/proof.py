"""Proves from the steps alone that a recipe computes its requantisation.

1. Interval arithmetic: no value leaves 32 bits.
2. Normal form: by symbolic execution, the result is floor((sum a * x + c + b) / 2^e), where b is 0 or the parity of an
   earlier value of the same form. With a >= 1 (or a >= 0 and no b) it is monotone in every operand, because b adds at
   most 1; the definition is monotone, too.
3. One term: two step functions are equal if they agree at both ends of the operand's range and at both sides of every
   threshold of the definition. Two terms of few values: all pairs are compared. Otherwise the normal form is compared
   algebraically with the definition: a / 2^e must be the multipliers, and c and b must implement the rounding.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from raptor.common.errors import VerifyError
from raptor.graph.requantise.definition import ParameterSets, Requantise, find_parameter_sets
from raptor.graph.requantise.normal_form import NormalForm, SymbolicExecution
from raptor.graph.requantise.rounding_slack import MOST_PAIRS, compute_staircase, enumerate_pairs, find_possible_ties
from raptor.graph.requantise.trim_stage import remove_trim_stage
from raptor.graph.requantise.vector_program import (
    Ints,
    RangeError,
    RequantiseRecipe,
    VectorStep,
    compute_ranges,
    execute_steps,
)

MOST_OPERANDS = 2**24
"""Largest number of operand values that are computed, summed over all parameter sets."""
_AT_ONCE = 2**18
_FEW_RESULTS = 255
"""Thresholds of each parameter set that are checked in addition to the algebraic proof."""


def prove_recipe(requantise: Requantise, recipe: RequantiseRecipe) -> None:
    """Raises `VerifyError` unless the recipe's results are exact up to the number of flips that it declares."""
    recipe = remove_trim_stage(recipe)
    claim = _claim(requantise, recipe)
    _prove_ranges(claim)
    if recipe.low == recipe.high:
        return
    form = _normal_form(claim)
    if recipe.flips:
        if recipe.flips != (found := _differences(claim, form)):
            raise VerifyError(f"requantisation: recipe admits {recipe.flips} flips, but has {found}")
    elif len(requantise.terms) == 1 and claim.given.size * (recipe.high - recipe.low) <= MOST_OPERANDS:
        _prove_staircase(claim, most=recipe.high - recipe.low)
    elif _few_pairs(claim.given):
        _prove_pairs(claim)
    else:
        _prove_algebra(claim, form)


def count_differences(requantise: Requantise, recipe: RequantiseRecipe) -> int:
    """Returns the sum of |recipe's result - exact result| over all operand values and parameters.

    An upper bound if two or more terms have more than 2^16 combinations of values.
    """
    claim = _claim(requantise, recipe)
    _prove_ranges(claim)
    return _differences(claim, _normal_form(claim))


@dataclass(frozen=True, slots=True, eq=False)
class _Claim:
    """A recipe and its definition, for each distinct set of parameters and constants. Constants: [S, 1]."""

    given: ParameterSets
    recipe: RequantiseRecipe
    steps: list[VectorStep]

    def results(self, operands: Sequence[Ints]) -> Ints:
        """Returns the recipe's results in 32-bit arithmetic, which is enough once the ranges are proved."""
        values = execute_steps(self.steps, [x.astype(np.int32) for x in operands])[-1]
        return np.clip(values, self.recipe.low, self.recipe.high)

    def parts(self, width: int) -> Iterator["_Claim"]:
        """Yields groups of parameter sets, so small that arrays [sets, width] fit a cache."""
        size = _sets_at_once(width)
        for start in range(0, self.given.size, size):
            yield self.select(np.arange(start, min(start + size, self.given.size)))

    def select(self, chosen: Ints) -> "_Claim":
        given = self.given.select(chosen)
        return _Claim(given, self.recipe, _with_constants(self.recipe.steps, given.extra))

    def where(self, number: int) -> str:
        """Returns the place in the parameter arrays of one element that has parameter set `number`."""
        row, column, channel = np.unravel_index(int(self.given.first[number]), self.given.set_numbers.shape)
        return f"requantisation: class {row}, column {column}, channel {channel}"

    def refuse(self, wrong: Ints, why: str) -> None:
        """Raises `VerifyError` for the first parameter set with a True in `wrong` [S, any]."""
        if wrong.any():
            raise VerifyError(f"{self.where(int(np.argwhere(wrong)[0, 0]))}: {why}")

    def refuse_different(self, wrong: Ints, operands: Sequence[Ints]) -> None:
        """Raises `VerifyError` with results for the first operand at which `wrong` [S, any] is True."""
        if not wrong.any():
            return
        number, place = (int(i) for i in np.argwhere(wrong)[0])
        one = self.select(np.array([number]))
        values = [np.broadcast_to(x, wrong.shape)[number, place].reshape(1, 1) for x in operands]
        found, right = int(one.results(values)[0, 0]), int(one.given.results(values)[0, 0])
        where = ", ".join(str(int(v[0, 0])) for v in values)
        raise VerifyError(f"{self.where(number)}: operand {where} gives {found} instead of {right}")


def _sets_at_once(width: int) -> int:
    return max(1, _AT_ONCE // max(1, width))


def _with_constants(steps: Sequence[VectorStep], constants: Sequence[Ints]) -> list[VectorStep]:
    left = iter(constants)
    return [s if isinstance(s.right, int) else VectorStep(s.op, s.left, next(left)) for s in steps]


def _claim(requantise: Requantise, recipe: RequantiseRecipe) -> _Claim:
    constants = [step.right for step in recipe.steps if not isinstance(step.right, int)]
    given = find_parameter_sets(requantise, constants)
    expected = (given.operands, requantise.low, requantise.high)
    if (recipe.operands, recipe.low, recipe.high) != expected or len(recipe.bounds) != len(recipe.steps):
        raise VerifyError("requantisation: recipe is for other ranges of operands or results")
    return _Claim(given, recipe, _with_constants(recipe.steps, given.extra))


def _prove_ranges(claim: _Claim) -> None:
    operands = claim.recipe.operands
    try:
        found = compute_ranges(claim.steps, operands)
    except RangeError as e:
        raise VerifyError(f"{claim.where(e.where[0])}: step {e.step} reaches {e.value}") from None
    for i, ((low, high), bounds) in enumerate(zip(found[len(operands) :], claim.recipe.bounds, strict=True)):
        if int(low.min()) < bounds[0] or int(high.max()) > bounds[1]:
            raise VerifyError(f"requantisation: step {i} leaves the recorded range {bounds[0]}..{bounds[1]}")


def _prove_staircase(claim: _Claim, most: int) -> None:
    """Compares both ends and at most `most` thresholds of each set; a proof if no set has more thresholds."""
    for part in claim.parts(min(most, claim.recipe.high - claim.recipe.low)):
        given, ends = part.given, np.array([part.given.operands[0]], np.int64)
        part.refuse_different(part.results([ends]) != given.results([ends]), [ends])
        moving, results, at = compute_staircase(given, most)
        if not moving.any():
            continue
        part, given = part.select(moving), given.select(moving)
        reaches, misses = given.results([at]) >= results, given.results([at - 1]) < results
        part.refuse(~(reaches & misses), "wrong threshold")
        part.refuse_different(part.results([at]) < results, [at])
        part.refuse_different(part.results([at - 1]) >= results, [at - 1])


def _few_pairs(given: ParameterSets) -> bool:
    if len(given.operands) != 2:
        return False
    count = (given.operands[0][1] - given.operands[0][0] + 1) * (given.operands[1][1] - given.operands[1][0] + 1)
    return count <= MOST_PAIRS and count * given.size <= MOST_OPERANDS


def _prove_pairs(claim: _Claim) -> None:
    operands = enumerate_pairs(claim.given)
    for i in range(claim.given.size):
        part = claim.select(np.array([i]))
        part.refuse_different(part.results(operands) != part.given.results(operands), operands)


def _normal_form(claim: _Claim) -> NormalForm:
    """Returns the normal form of the result. Raises `VerifyError` if it may not be monotone."""
    follower = SymbolicExecution(claim.steps, claim.recipe.operands, claim.given.size)
    form = follower.to_normal_form(len(follower.forms) - 1, parity=True)
    # A carry of 1 that does not reach the result may come from any parity.
    idle = (form.constant >> form.shift) == ((form.constant + (form.even is not None)) >> form.shift)
    still = np.logical_and.reduce([f == 0 for f in form.factors]) & idle
    rising = np.logical_and.reduce([f >= (form.even is not None) for f in form.factors])
    bad = ~(still | rising).astype(bool)
    claim.refuse(bad, "the result may fall when the operand rises")
    return form


def _prove_algebra(claim: _Claim, form: NormalForm) -> None:
    """Compares the normal form with the definition; with one term, also some thresholds of each set."""
    given = claim.given
    right = _equal(given, form)
    if len(given.operands) == 1:
        ends, inner = (np.array([e], np.int64) for e in (given.operands[0], form.clamps[0]))
        bounded = (given.results([ends]) == given.results([inner])).all(axis=1, keepdims=True)
        still = (form.factors[0] == 0) & (given.results([ends[:, :1]]) == given.results([ends[:, 1:]]))
        right = (right & bounded) | still
    claim.refuse(~right, "the recipe is not the definition")
    if len(given.operands) == 1:
        _prove_staircase(claim, most=_FEW_RESULTS)


def _equal(given: ParameterSets, form: NormalForm) -> Ints:
    """Returns [S, 1] bool: the normal form without operand clamps equals the definition without its clamp."""
    same = np.ones((given.size, 1), bool)
    for own, factor in zip(form.factors, given.factors, strict=True):
        same &= (own << given.shift.astype(object) == factor.astype(object) << form.shift).astype(bool)
    half = (1 << form.shift) >> 1
    rest = form.constant - _offsets(given, form)
    if form.even is None:
        whole = given.shift == 0
        fine = (rest == half) & ~find_possible_ties(given) | whole & (rest >= 0) & (rest < (1 << form.shift))
        return same & fine.astype(bool)
    # At a tie, the first run gives k plus the zero point in its constant, which must be even.
    first = form.even.constant - _offsets(given, form.even) - (half - 1) + (given.zero_point << form.shift)
    fine = (rest == half - 1) & (form.shift > 0) & (first % (2 << form.shift) == 0)
    for own, other in zip((*form.factors, form.shift), (*form.even.factors, form.even.shift), strict=True):
        fine = fine & (own == other)
    return same & fine.astype(bool) & (form.clamps == form.even.clamps)


def _offsets(given: ParameterSets, form: NormalForm) -> Ints:
    """Returns sum of factor * offset, plus the zero point, in units of the form's constant."""
    folded = given.zero_point << form.shift
    for factor, offset in zip(form.factors, given.offsets, strict=True):
        folded = folded + factor * offset.astype(object)
    return folded


def _differences(claim: _Claim, form: NormalForm) -> int:
    given = claim.given
    often = np.bincount(given.set_numbers.reshape(-1), minlength=given.size).astype(object)
    if len(given.operands) == 1:
        size = _sets_at_once(given.high - given.low)
        groups = [np.arange(start, min(start + size, given.size)) for start in range(0, given.size, size)]
        return int(np.hstack([_moved(claim.select(g), form.select(g)) for g in groups]) @ often)
    if _few_pairs(given):
        operands = enumerate_pairs(given)
        parts = (claim.select(np.array([i])) for i in range(given.size))
        wrong = [int(abs(p.results(operands) - p.given.results(operands)).sum()) for p in parts]
    else:
        wrong = [_at_most(given, form, i) for i in range(given.size)]
    return int(np.array(wrong, object) @ often)


def _moved(claim: _Claim, form: NormalForm) -> Ints:
    """Returns [S]: how far the recipe moves the thresholds in sum; verifies the recipe at its own thresholds."""
    given, (low, high), (least, most) = claim.given, claim.given.operands[0], form.clamps[0]
    if form.even is not None:
        raise VerifyError("requantisation: a recipe with flips makes ties even")
    k, ends = np.arange(given.low + 1, given.high + 1), given.result_ends()
    moving = ends[:, 0] < ends[:, 1]
    right = np.zeros((given.size, len(k)), np.int64)
    right[moving] = given.select(moving).thresholds(np.clip(k, ends[moving, :1] + 1, ends[moving, 1:]))
    right = np.where(k <= ends[:, :1], low, np.where(k > ends[:, 1:], high + 1, right))
    own = _reaching(k, form)
    own = np.where(own <= least, low, np.where(own > most, high + 1, own)).astype(np.int64)
    wrong = claim.results([np.minimum(own, high)]) < np.where(own > high, given.low, k)
    wrong |= claim.results([np.maximum(own - 1, low)]) >= np.where(own > low, k, given.high + 1)
    claim.refuse(wrong, "the recipe is not its normal form")
    return abs(own - right).sum(axis=1)


def _reaching(results: Ints, form: NormalForm) -> Ints:
    """Returns the smallest x in 33 bits with floor((x * factor + constant) / 2^shift) >= result, [S, results]."""
    largest = (int(abs(results).max()) << int(form.shift.max())) + int(abs(form.constant).max())
    kind, far = np.int64 if largest < 2**62 else object, 2**32
    factor, constant, shift = (a.astype(kind) for a in (form.factors[0], form.constant, form.shift))
    missing = (results.astype(kind) << shift) - constant
    reached = np.clip(-(-missing // np.maximum(factor, 1)), -far, far)
    return np.where(factor > 0, reached, np.where(missing <= 0, -far, far))


def _at_most(given: ParameterSets, form: NormalForm, number: int) -> int:
    """Returns an upper bound of the differences of one parameter set.

    A sum that is off by at most d can differ only within d of a tie; along one operand with multiplier M, at most 2 d /
    M + 1 values lie within d of a given tie.
    """
    scale, own_scale = Fraction(1, 1 << int(given.shift[number, 0])), Fraction(1, 1 << int(form.shift[number, 0]))
    multipliers = [int(f[number, 0]) * scale for f in given.factors]
    offset = int(form.constant[number, 0]) * own_scale - given.zero_point - Fraction(1, 2)
    error = [abs(offset - sum(int(o[number, 0]) * m for o, m in zip(given.offsets, multipliers, strict=True)))]
    for (low, high), factor, multiplier in zip(given.operands, form.factors, multipliers, strict=True):
        error.append(abs(int(factor[number, 0]) * own_scale - multiplier) * max(-low, high))
    values = [high - low + 1 for low, high in given.operands]
    near = [int(2 * sum(error) / m + 1) * math.prod(values) // v for m, v in zip(multipliers, values, strict=True)]
    return min((given.high - given.low + 2) * min(near), (given.high - given.low) * math.prod(values))
