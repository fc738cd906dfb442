"""Truth values as 1 and 0, exact: comparisons, logic, and the choice between two numbers.

Of whole numbers a difference of at least 1 says that they differ; floats need a larger number first.
"""

import numpy as np

from raptor.frontend import steps
from raptor.frontend.formulas import Formula, Value
from raptor.graph.ir import Constant

LARGEST = float(np.finfo(np.float32).max)
_HUGE = 2.0**127
"""Its square is beyond float32: an infinity that no constant has to hold."""


def is_zero_or_less(f: Formula, x: Value) -> Value:
    """1 where x <= 0, else 0."""
    if is_whole(f, x):
        return f.relu(f.sub(1, f.relu(x)))
    return f.relu(f.sub(1, f.mul(f.mul(f.relu(x), _HUGE), _HUGE)))


def is_above_zero(f: Formula, x: Value) -> Value:
    """1 where x > 0, else 0."""
    return f.sub(1, is_zero_or_less(f, x)) if is_whole(f, x) else steps.is_positive(f, x)


def is_equal(f: Formula, x: Value, y: Value) -> Value:
    """1 where x = y, else 0."""
    for one, other in ((x, y), (y, x)):
        if isinstance(other, Constant) and np.isinf(other.pixels).all() and np.unique(other.pixels).size == 1:
            # An infinity less itself is no number; but only the infinity is beyond the largest number.
            return is_above_zero(f, f.sub(one if other.pixels.flat[0] > 0 else f.neg(one), LARGEST))
    return is_zero_or_less(f, f.abs(f.sub(x, y)))


def is_nonzero(f: Formula, x: Value) -> Value:
    """1 where x is not 0, else 0: the truth value of a number."""
    return is_above_zero(f, f.abs(x))


def negated(f: Formula, x: Value) -> Value:
    """1 where x is 0, and 0 where it is 1."""
    return f.sub(1, x)


def differs(f: Formula, x: Value, y: Value) -> Value:
    """1 where just one of two truth values is 1."""
    return f.abs(f.sub(x, y))


def choice(f: Formula, condition: Value, x: Value, y: Value) -> Value:
    """x where the condition is 1, else y; exact, also where the other one is infinite."""
    if is_finite(f, x) and is_finite(f, y):
        return f.add(f.mul(condition, x), f.mul(negated(f, condition), y))
    # Infinite bounds choose: min(x, inf) is x and min(x, -inf) is -inf, where the other operand is larger.
    against = f.mul(f.mul(f.sub(0.5, condition), _HUGE), _HUGE)
    taken = f.max(f.neg(x), against)
    other = f.max(f.neg(y), f.neg(against))
    return f.max(f.neg(taken), f.neg(other))


def is_whole(f: Formula, x: Value) -> bool:
    """Tells whether all values are whole numbers that float32 holds."""
    if isinstance(x, Constant):
        return bool((np.rint(x.pixels) == x.pixels).all())
    return f.ctx.whole(x) is not None


def is_finite(f: Formula, x: Value) -> bool:
    """Tells whether no value can be infinite: constants, and numbers with a proved range."""
    return bool(np.isfinite(x.pixels).all()) if isinstance(x, Constant) else f.ctx.whole(x) is not None
