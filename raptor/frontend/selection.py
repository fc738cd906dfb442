"""Selection of elements by truth values: exact, whatever the elements are.

Infinities, subnormal numbers and -0 are values as any other, so a selection is no sum of products with 1 and 0: -inf
times 0 is no number. An element that is not wanted becomes -infinity, and the maximum is the one that is wanted.

`kept` has two forms. That of published instructions passes on what is no number (NaN) also where it is not wanted. The
extended instruction vvmask does not. It is taken where extended instructions make an operand: there, NaN may arise
(0 / 0), and the program needs the extension anyway.
"""

import numpy as np

from raptor.frontend.constants import scalar
from raptor.frontend.formulas import Formula, Value
from raptor.graph.ir import Constant

HUGE = 2.0**127
"""Multiplying by it twice makes every number but tiny ones infinite, so that no constant has to be infinite."""


def kept(f: Formula, x: Value, mask: Value) -> Value:
    """x where the mask is 1, and -infinity where it is 0."""
    if is_extended(f, x, mask):
        return f.apply("mask", x, mask)
    # min(x, inf) is x, and min(x, -inf) is -inf.
    return f.neg(f.max(f.neg(x), _infinite(f, f.sub(0.5, mask))))


def choice(f: Formula, condition: Value, x: Value, y: Value) -> Value:
    """x where the condition is 1, else y."""
    if is_finite(f, x) and is_finite(f, y):
        return f.add(f.mul(condition, x), f.mul(f.sub(1, condition), y))
    if is_extended(f, condition, x, y):
        return f.max(f.apply("mask", x, condition), f.apply("mask", y, f.sub(1, condition)))
    against = _infinite(f, f.sub(0.5, condition))
    taken = f.max(f.neg(x), against)
    other = f.max(f.neg(y), f.neg(against))
    return f.max(f.neg(taken), f.neg(other))


def number_where(f: Formula, x: Value, mask: Value) -> Value:
    """x where the mask is 1, and no number (NaN) where it is 0."""
    # inf * -0 is no number, and -0 is what changes no x.
    return f.add(x, f.mul(_infinite(f, f.sub(1, mask)), Constant(scalar(-0.0))))


def is_extended(f: Formula, *values: Value) -> bool:
    """Tells whether one of the values may be no number because extended instructions make it."""
    return any(not isinstance(v, Constant) and f.ctx.is_extended(v) for v in values)


def is_finite(f: Formula, x: Value) -> bool:
    """Tells whether no value can be infinite: constants, and numbers with a proved range."""
    return bool(np.isfinite(x.pixels).all()) if isinstance(x, Constant) else f.ctx.whole(x) is not None


def _infinite(f: Formula, x: Value) -> Value:
    """Infinity with the sign of x, and 0 where x is 0."""
    return f.mul(f.mul(x, HUGE), HUGE)
