"""Exact selection of elements by truth values, whatever the elements are.

A sum of products with 1 and 0 would not do: infinities times 0 are NaN, and -0 would become 0. Instead, an element that
is not selected becomes -infinity, and the maximum is the selected element.

`kept` has two forms. Published instructions propagate NaN even from elements that are not selected. The extended
instruction vvmask does not; it is used where extended instructions compute an operand, because NaN may arise there (0 /
0), and the program needs the extension anyway.
"""

import numpy as np

from raptor.frontend.constant_pixels import make_scalar_pixels
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.graph.ir import Constant

HUGE = 2.0**127
"""Multiplying twice by it makes every number but tiny ones infinite, so that no constant has to be infinite."""


def keep_where(f: FormulaBuilder, x: Value, mask: Value) -> Value:
    """Emits x where the mask is 1, and -infinity where it is 0."""
    if may_be_nan(f, x, mask):
        return f.apply("mask", x, mask)
    # min(x, inf) is x, and min(x, -inf) is -inf.
    return f.neg(f.max(f.neg(x), _infinite(f, f.sub(0.5, mask))))


def select_where(f: FormulaBuilder, condition: Value, x: Value, y: Value) -> Value:
    """Emits x where the condition is 1, else y."""
    if is_finite(f, x) and is_finite(f, y):
        return f.add(f.mul(condition, x), f.mul(f.sub(1, condition), y))
    if may_be_nan(f, condition, x, y):
        return f.max(f.apply("mask", x, condition), f.apply("mask", y, f.sub(1, condition)))
    against = _infinite(f, f.sub(0.5, condition))
    taken = f.max(f.neg(x), against)
    other = f.max(f.neg(y), f.neg(against))
    return f.max(f.neg(taken), f.neg(other))


def nan_where_not(f: FormulaBuilder, x: Value, mask: Value) -> Value:
    """Emits x where the mask is 1, and NaN where it is 0."""
    # inf * -0 is NaN, and adding -0 changes no x.
    return f.add(x, f.mul(_infinite(f, f.sub(1, mask)), Constant(make_scalar_pixels(-0.0))))


def may_be_nan(f: FormulaBuilder, *values: Value) -> bool:
    """Checks whether one of the values may be NaN because extended instructions compute it."""
    return any(not isinstance(v, Constant) and f.ctx.is_extended(v) for v in values)


def is_finite(f: FormulaBuilder, x: Value) -> bool:
    """Checks whether no element can be infinite: finite constants, and integers in a proved range."""
    return bool(np.isfinite(x.pixels).all()) if isinstance(x, Constant) else f.ctx.integer_range(x) is not None


def _infinite(f: FormulaBuilder, x: Value) -> Value:
    """Emits infinity with the sign of x, and 0 where x is 0."""
    return f.mul(f.mul(x, HUGE), HUGE)
