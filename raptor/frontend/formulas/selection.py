"""Exact selection of elements by truth values, whatever the elements are.

A sum of products with 1 and 0 would not do: infinities times 0 are NaN, and -0 would become 0. Instead, an element that
is not selected becomes -infinity, and the maximum is the selected element.

`kept` has two forms. Published instructions propagate NaN even from elements that are not selected. The extended
instruction vvmask does not; it is used where an operand may be NaN: extended instructions compute it (0 / 0), or a
constant has NaN, as exporters fill what a mean is not to count.
"""

import numpy as np

from raptor.frontend.constant_pixels import make_scalar_pixels
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.graph.ir import Constant, Floats, Tensor

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


def select_where_or_nan(f: FormulaBuilder, condition: Value, x: Value, y: Value) -> Value:
    """Emits x where the condition is 1, else y; constants may have NaN, which is computed: no program holds it."""
    of_x, of_y = _mark_nan(x), _mark_nan(y)
    if of_x.all():
        result = _without_nan(y)
    elif of_y.all():
        result = _without_nan(x)
    else:
        result = select_where(f, condition, _without_nan(x), _without_nan(y))
    if of_x.any():
        result = _nan_where(f, result, condition if of_x.all() else f.mul(condition, Constant(of_x)))
    if of_y.any():
        other = f.sub(1, condition)
        result = _nan_where(f, result, other if of_y.all() else f.mul(other, Constant(of_y)))
    return result


def _mark_nan(value: Value) -> Floats:
    """Returns 1 for each element of a constant that is NaN, else 0; one 0 for a tensor."""
    return np.isnan(value.pixels).astype(np.float32) if isinstance(value, Constant) else np.zeros((1, 1, 1), np.float32)


def _without_nan(value: Value) -> Value:
    """Returns a constant with 0 for NaN; a tensor stays as it is."""
    if not isinstance(value, Constant):
        return value
    return Constant(np.where(_mark_nan(value) > 0, np.float32(0), value.pixels))


def _nan_where(f: FormulaBuilder, x: Value, mark: Value) -> Value:
    """Emits NaN where the mark is 1, and x where it is 0."""
    if isinstance(mark, Constant):
        mark = f.add(f.relu(f.neg(f.abs(x))), mark)  # 0 + mark, computed, so that it does not become a constant NaN
    nothing = _nan_or_zero(f, mark)
    if isinstance(nothing, Tensor):
        f.ctx.declare_nan(nothing.name)
    return f.add(x, nothing)


def nan_where_not(f: FormulaBuilder, x: Value, mask: Value) -> Value:
    """Emits x where the mask is 1, and NaN where it is 0."""
    return f.add(x, _nan_or_zero(f, f.sub(1, mask)))


def _nan_or_zero(f: FormulaBuilder, mark: Value) -> Value:
    """Emits NaN where the mark is 1, and -0, which changes no sum, where it is 0."""
    return f.mul(_infinite(f, mark), Constant(make_scalar_pixels(-0.0)))  # inf * -0 is NaN


def may_be_nan(f: FormulaBuilder, *values: Value) -> bool:
    """Checks whether one of the values is a tensor that may hold NaN."""
    return any(not isinstance(v, Constant) and f.ctx.may_be_nan(v) for v in values)


def is_finite(f: FormulaBuilder, x: Value) -> bool:
    """Checks whether no element can be infinite: finite constants, and integers in a proved range."""
    return bool(np.isfinite(x.pixels).all()) if isinstance(x, Constant) else f.ctx.integer_range(x) is not None


def _infinite(f: FormulaBuilder, x: Value) -> Value:
    """Emits infinity with the sign of x, and 0 where x is 0."""
    return f.mul(f.mul(x, HUGE), HUGE)
