"""Step functions of floats, exact in the published instructions: where a number is positive, and whole numbers.

A float32 of at least 2**23 is whole, and one between 2**23 and 2**24 has no digits behind the point. So adding 2**23 to
a smaller number rounds it, half to even, as the adder does, and subtracting it again leaves the rounded number.
"""

from collections.abc import Callable

from raptor.frontend.formulas import Formula, Value

MOST_EXACT = 2**24
"""Whole numbers up to this one are exact in float32."""
_WHOLE = 2.0**23
_SCALE = 2.0**127
"""Its square makes every positive float32 larger than 1."""


def is_positive(f: Formula, x: Value) -> Value:
    """1 where x > 0, else 0."""
    large = f.mul(f.mul(f.relu(x), _SCALE), _SCALE)
    return f.min(large, 1)


def sign(f: Formula, x: Value) -> Value:
    """1, 0 or -1."""
    return f.sub(is_positive(f, x), is_positive(f, f.neg(x)))


def round_half_even(f: Formula, x: Value) -> Value:
    """The nearest whole number; of two the even one."""
    return f.sub(_nearest(f, f.relu(x)), _nearest(f, f.relu(f.neg(x))))


def floor(f: Formula, x: Value) -> Value:
    """The largest whole number that is not larger."""
    return f.sub(_below(f, f.relu(x)), _above(f, f.relu(f.neg(x))))


def ceil(f: Formula, x: Value) -> Value:
    """The smallest whole number that is not smaller."""
    return f.sub(_above(f, f.relu(x)), _below(f, f.relu(f.neg(x))))


def truncate(f: Formula, x: Value) -> Value:
    """The whole number towards 0."""
    return f.sub(_below(f, f.relu(x)), _below(f, f.relu(f.neg(x))))


def _nearest(f: Formula, x: Value) -> Value:
    return _whole(f, x, lambda nearest, _: nearest)


def _below(f: Formula, x: Value) -> Value:
    return _whole(f, x, lambda nearest, more: f.sub(nearest, is_positive(f, more)))


def _above(f: Formula, x: Value) -> Value:
    return _whole(f, x, lambda nearest, more: f.add(nearest, is_positive(f, f.neg(more))))


def _whole(f: Formula, x: Value, corrected: Callable[[Value, Value], Value]) -> Value:
    """Rounds numbers that are not negative.

    corrected: from the nearest whole number, and how much more that is, to the wanted one. What is above 2**23 is added
    again. From 2**47 on that may round; but there x - 1 is x.
    """
    negative = f.max(f.neg(x), -_WHOLE)
    nearest = f.sub(f.sub(_WHOLE, negative), _WHOLE)
    result = corrected(nearest, f.add(nearest, negative))
    return f.max(f.add(result, f.add(x, negative)), f.sub(x, 1))
