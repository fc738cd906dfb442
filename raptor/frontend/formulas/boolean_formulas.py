"""Comparisons and logic as exact formulas: truth values are 1 and 0. (`selection` selects by them.)

Each function emits the maps of a formula and returns their result. Different integers differ by at least 1, so their
difference decides; differences of floats are scaled up first. Infinities compare like other numbers, although inf - inf
is NaN. Where extended instructions compute an operand, it may be NaN, which is neither above, nor below, nor equal to
any number.
"""

from typing import NamedTuple

import numpy as np

from raptor.frontend.formulas import step_functions
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.formulas.selection import HUGE, is_finite, may_be_nan
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import Constant

LARGEST_FLOAT = float(np.finfo(np.float32).max)


class ComparisonEnds(NamedTuple):
    """An operand of a comparison, twice: clamped on one side, so that no difference is inf - inf.

    near: the number, which distinguishes all finite numbers. far: half of it, which distinguishes the largest finite
    number from infinity.
    """

    near: Value
    far: Value


def is_above(f: FormulaBuilder, x: Value, y: Value) -> Value:
    """Emits 1 where x > y, else 0."""
    if is_exact_integer(f, x) and is_exact_integer(f, y):
        return is_above_zero(f, f.sub(x, y))
    if may_be_nan(f, x, y):
        return is_positive_number(f, f.sub(x, y))
    if is_finite(f, x) or is_finite(f, y):
        return step_functions.is_positive(f, f.sub(x, y))
    return is_above_end(f, make_upper_ends(f, x), make_lower_ends(f, y))


def is_at_least(f: FormulaBuilder, x: Value, y: Value) -> Value:
    """Emits 1 where x >= y, else 0."""
    if (is_exact_integer(f, x) and is_exact_integer(f, y)) or (
        not may_be_nan(f, x, y) and (is_finite(f, x) or is_finite(f, y))
    ):
        return is_zero_or_less(f, f.sub(y, x))
    return f.sub(_are_numbers(f, x, y), is_above(f, y, x))


def is_equal(f: FormulaBuilder, x: Value, y: Value) -> Value:
    """Emits 1 where x = y, else 0."""
    if is_exact_integer(f, x) and is_exact_integer(f, y):
        return is_zero_or_less(f, f.abs(f.sub(x, y)))
    if not may_be_nan(f, x, y):
        for one, other in ((x, y), (y, x)):
            if isinstance(other, Constant) and np.isinf(other.pixels).all() and np.unique(other.pixels).size == 1:
                # Only infinity exceeds the largest finite number.
                return is_above_zero(f, f.sub(one if other.pixels.flat[0] > 0 else f.neg(one), LARGEST_FLOAT))
        if is_finite(f, x) or is_finite(f, y):
            return is_zero_or_less(f, f.abs(f.sub(x, y)))
    return f.sub(f.sub(_are_numbers(f, x, y), is_above(f, x, y)), is_above(f, y, x))


def make_upper_ends(f: FormulaBuilder, x: Value) -> ComparisonEnds:
    """Returns x as the left operand of `is_above_end`: negated, clamped from below."""
    return ComparisonEnds(f.max(f.neg(x), -LARGEST_FLOAT), f.max(f.mul(x, -0.5), -HUGE))


def make_lower_ends(f: FormulaBuilder, x: Value) -> ComparisonEnds:
    """Returns x as the right operand of `is_above_end`: clamped from below."""
    return ComparisonEnds(f.max(x, -LARGEST_FLOAT), f.max(f.mul(x, 0.5), -HUGE))


def is_above_end(f: FormulaBuilder, x: ComparisonEnds, y: ComparisonEnds) -> Value:
    """Emits 1 where x > y, else 0; each operand is bounded on one side, so no two equal infinities are subtracted."""
    missing = f.add(f.add(x.near, y.near), f.add(x.far, y.far))
    return step_functions.is_positive(f, f.neg(missing))


def is_positive_number(f: FormulaBuilder, x: Value) -> Value:
    """Emits 1 where x > 0, else 0, also where x is NaN; an extended instruction."""
    found = f.relu(f.apply("mask", Constant(_ONE), x))
    if not isinstance(found, Constant):
        f.ctx.declare_range(found.name, IntegerInterval(0, 1))
    return found


def is_number(f: FormulaBuilder, x: Value) -> Value:
    """Emits 1 where x is a number or infinite, and 0 where it is NaN; an extended instruction."""
    return is_positive_number(f, f.add(f.relu(x), 1))


def is_zero_or_less(f: FormulaBuilder, x: Value) -> Value:
    """Emits 1 where x <= 0, else 0."""
    if is_exact_integer(f, x):
        return f.relu(f.sub(1, f.relu(x)))
    return f.relu(f.sub(1, f.mul(f.mul(f.relu(x), HUGE), HUGE)))


def is_above_zero(f: FormulaBuilder, x: Value) -> Value:
    """Emits 1 where x > 0, else 0."""
    return f.sub(1, is_zero_or_less(f, x)) if is_exact_integer(f, x) else step_functions.is_positive(f, x)


def is_nonzero(f: FormulaBuilder, x: Value) -> Value:
    """Emits 1 where x is not 0, else 0: the truth value of a number."""
    return is_above_zero(f, f.abs(x))


def emit_not(f: FormulaBuilder, x: Value) -> Value:
    """Emits logical not: 1 - x."""
    return f.sub(1, x)


def emit_xor(f: FormulaBuilder, x: Value, y: Value) -> Value:
    """Emits logical exclusive or of two truth values."""
    return f.abs(f.sub(x, y))


def is_exact_integer(f: FormulaBuilder, x: Value) -> bool:
    """Checks whether all values of an operand are integers that float32 holds exactly."""
    if isinstance(x, Constant):
        return bool((np.rint(x.pixels) == x.pixels).all())
    return f.ctx.integer_range(x) is not None


def _are_numbers(f: FormulaBuilder, x: Value, y: Value) -> Value:
    """Emits 1 where neither is NaN; the constant 1 unless extended instructions compute an operand."""
    return is_number(f, f.max(x, y)) if may_be_nan(f, x, y) else Constant(_ONE)


_ONE = np.ones((1, 1, 1), np.float32)
