"""Exact step functions of floats in published instructions: sign, floor, ceil, round, truncate.

Each function emits the maps of a formula and returns their result. A float32 of at least 2^23 is an integer. So adding
2^23 to a smaller number rounds it half to even, in the adder, and subtracting 2^23 again leaves the rounded number.
"""

from collections.abc import Callable

from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.graph.ir import Constant

MOST_EXACT = 2**24
"""Largest bound up to which float32 holds all integers exactly."""
_WHOLE = 2.0**23
_BESIDE_ZERO, _SMALL = 1.5 * 2.0**23, 2.0**22
"""A number that rounds the sum with any number of at most `_SMALL` to an integer, and the largest such number."""
_SCALE = 2.0**127
"""Multiplying twice by it makes every positive float32 larger than 1."""


def is_positive(f: FormulaBuilder, x: Value) -> Value:
    """Emits 1 where x > 0, else 0."""
    large = f.mul(f.mul(f.relu(x), _SCALE), _SCALE)
    return f.min(large, 1)


def sign(f: FormulaBuilder, x: Value) -> Value:
    """Emits the sign: 1, 0 or -1."""
    return f.sub(is_positive(f, x), is_positive(f, f.neg(x)))


def round_half_even(f: FormulaBuilder, x: Value) -> Value:
    """Emits the nearest integer, ties to even; in two maps if the values of x are known to be small."""
    bounds = None if isinstance(x, Constant) else f.ctx.float_bounds(x)
    if bounds is not None and -_SMALL <= bounds[0] <= bounds[1] <= _SMALL:
        return f.sub(f.add(x, _BESIDE_ZERO), _BESIDE_ZERO)
    return f.sub(_nearest(f, f.relu(x)), _nearest(f, f.relu(f.neg(x))))


def floor(f: FormulaBuilder, x: Value) -> Value:
    """Emits the largest integer not above x."""
    return f.sub(_below(f, f.relu(x)), _above(f, f.relu(f.neg(x))))


def ceil(f: FormulaBuilder, x: Value) -> Value:
    """Emits the smallest integer not below x."""
    return f.sub(_above(f, f.relu(x)), _below(f, f.relu(f.neg(x))))


def truncate(f: FormulaBuilder, x: Value) -> Value:
    """Emits x rounded towards 0."""
    return f.sub(_below(f, f.relu(x)), _below(f, f.relu(f.neg(x))))


def _nearest(f: FormulaBuilder, x: Value) -> Value:
    return _whole(f, x, lambda nearest, _: nearest)


def _below(f: FormulaBuilder, x: Value) -> Value:
    return _whole(f, x, lambda nearest, more: f.sub(nearest, is_positive(f, more)))


def _above(f: FormulaBuilder, x: Value) -> Value:
    return _whole(f, x, lambda nearest, more: f.add(nearest, is_positive(f, f.neg(more))))


def _whole(f: FormulaBuilder, x: Value, corrected: Callable[[Value, Value], Value]) -> Value:
    """Rounds numbers x >= 0.

    corrected: function of the nearest integer and its excess over x; returns the wanted integer. The part above 2^23 is
    added again. From 2^47 on that may round, but there x - 1 is x.
    """
    negative = f.max(f.neg(x), -_WHOLE)
    nearest = f.sub(f.sub(_WHOLE, negative), _WHOLE)
    result = corrected(nearest, f.add(nearest, negative))
    return f.max(f.add(result, f.add(x, negative)), f.sub(x, 1))
