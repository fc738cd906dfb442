"""Exact quotients and remainders of integers held as float32, and remainders of floats."""

import numpy as np

from raptor.frontend.formulas import boolean_formulas, selection, step_functions
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.types.float32_integers import EXACT_RANGE, BoundRefusal
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import Constant, Tensor


def quotient(f: FormulaBuilder, x: Value, y: Value) -> Value:
    """Emits x / y for integers, rounded towards 0."""
    found, _ = _parts(f, x, y)
    signed = f.mul(found, f.mul(step_functions.sign(f, x), step_functions.sign(f, y)))
    return _declared(f, signed, _signed(f, x, y, _most(f, x)))


def remainder(f: FormulaBuilder, x: Value, y: Value) -> Value:
    """Emits the remainder of the integer division x / y, with the sign of x."""
    _, rest = _parts(f, x, y)
    most = max(_most(f, y) - 1, 0)
    return _declared(f, f.mul(rest, step_functions.sign(f, x)), _signed(f, x, x, most))


def float_remainder(f: FormulaBuilder, x: Value, y: Value) -> Value:
    """Emits x - y * truncate(x / y) for floats; x where y is infinite."""
    finite = (
        y
        if selection.is_finite(f, y)
        else f.min(f.max(y, -boolean_formulas.LARGEST_FLOAT), boolean_formulas.LARGEST_FLOAT)
    )
    return f.sub(x, f.mul(finite, step_functions.truncate(f, f.div(x, y))))


def match_sign(f: FormulaBuilder, rest: Value, y: Value) -> Value:
    """Emits a remainder with the sign of y: y is added to it if their signs differ."""
    known = None if isinstance(rest, Constant) else f.ctx.integer_range(rest)
    other = step_functions.is_positive(f, f.neg(f.mul(step_functions.sign(f, rest), y)))
    # 0 * inf is NaN.
    nothing = f.constant(np.zeros((), np.float32))
    added = f.mul(other, y) if selection.is_finite(f, y) else selection.select_where(f, other, y, nothing)
    signed = f.add(rest, added)
    if known is None:
        return signed
    most = max(-known.low, known.high)
    return _declared(f, signed, _signed(f, y, y, most))


def _parts(f: FormulaBuilder, x: Value, y: Value) -> tuple[Value, Value]:
    """Returns quotient and remainder of |x| / |y|. The rounded quotient can be 1 too large; then both are corrected."""
    a, b = _size(f, x), _size(f, y)
    rough = step_functions.floor(f, f.div(a, b))
    rest = f.sub(a, f.mul(rough, b))
    over = step_functions.is_positive(f, f.neg(rest))
    return f.sub(rough, over), f.add(rest, f.mul(over, b))


def _size(f: FormulaBuilder, x: Value) -> Value:
    if not boolean_formulas.is_exact_integer(f, x):
        raise BoundRefusal(None)
    return f.abs(x)


def _most(f: FormulaBuilder, x: Value) -> int:
    if isinstance(x, Constant):
        return int(abs(x.pixels).max())
    found = f.ctx.integer_range(x) or EXACT_RANGE
    return max(-found.low, found.high)


def _signed(f: FormulaBuilder, x: Value, y: Value, most: int) -> IntegerInterval:
    """Returns the range of results with |result| <= most, negative only if an operand may be."""
    lows = [v.pixels.min() if isinstance(v, Constant) else (f.ctx.integer_range(v) or EXACT_RANGE).low for v in (x, y)]
    return IntegerInterval(-most if min(lows) < 0 else 0, most)


def _declared(f: FormulaBuilder, x: Value, found: IntegerInterval) -> Value:
    if isinstance(x, Tensor):
        f.ctx.declare_range(x.name, found)
    return x
