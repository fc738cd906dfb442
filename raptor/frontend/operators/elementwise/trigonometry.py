"""Trigonometric and hyperbolic functions: each emits the maps of a formula and returns their result.

Angles are first reduced to one turn. The polynomials are Taylor series on an interval where their error is below
float32 precision.
"""

import math
from collections.abc import Mapping, Sequence

from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.import_context import ImportContext
from raptor.frontend.operators.elementwise.activations import Activation, lower_activation
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import ImportFunction, importer

_ROUNDING = 1.5 * 2.0**23
"""Adding and subtracting it rounds a number below 2^22 to an integer."""
_TURN = (6.28125, 0.0019340515136718750, 1.2556659146e-06)
"""2 pi as a sum of numbers with few bits, whose products with the number of turns are exact."""
_PI = (3.140625, 0.000967653589793)
_HALF_PI = (1.5703125, 0.000483826794897)
_SINE = tuple((-1) ** i / math.factorial(2 * i + 1) for i in range(7))
_ARCTANGENT = tuple((-1) ** i / (2 * i + 1) for i in range(9))
_FAR = 1e18
"""Beyond it, the arctangent is pi / 2 in float32, and the square would overflow."""


def sine(f: FormulaBuilder, x: Value) -> Value:
    """Emits sin(x) = sin(r) = sin(pi - r), where r is the angle reduced to one turn."""
    angle = _within_turn(f, x)
    sides = [_nearer(f, f.relu(a)) for a in (angle, f.neg(angle))]
    return _series(f, f.sub(*sides), _SINE)


def cosine(f: FormulaBuilder, x: Value) -> Value:
    """Emits cos(x) = sin(pi / 2 - |r|), where r is the angle reduced to one turn."""
    return _series(f, _minus(f, _HALF_PI, f.abs(_within_turn(f, x))), _SINE)


def tangent(f: FormulaBuilder, x: Value) -> Value:
    return f.div(sine(f, x), cosine(f, x))


def arctangent(f: FormulaBuilder, x: Value) -> Value:
    """Emits atan(x) = 2 atan(x / (1 + sqrt(1 + x * x)))."""
    return f.mul(_of_half(f, _halved(f, f.min(f.max(x, -_FAR), _FAR))), 2)


def arcsine(f: FormulaBuilder, x: Value) -> Value:
    """Emits asin(x) = 2 atan(x / (1 + sqrt(1 - x * x)))."""
    cosine_ = f.apply("sqrt", f.mul(f.sub(1, x), f.add(x, 1)))
    return f.mul(_of_half(f, f.div(x, f.add(cosine_, 1))), 2)


def arccosine(f: FormulaBuilder, x: Value) -> Value:
    """Emits acos(x) = 2 atan(sqrt((1 - x) / (1 + x)))."""
    return f.mul(arctangent(f, f.apply("sqrt", f.div(f.sub(1, x), f.add(x, 1)))), 2)


def hyperbolic_sine(f: FormulaBuilder, x: Value) -> Value:
    """Emits sinh(x) = tanh(x) cosh(x), which subtracts no nearly equal numbers."""
    return f.mul(f.apply("tanh", x), hyperbolic_cosine(f, x))


def hyperbolic_cosine(f: FormulaBuilder, x: Value) -> Value:
    """Emits cosh(x) = a / 2 * a + b / 2 * b with a = exp(x / 2) and b = exp(-x / 2), as exp(x) overflows earlier."""
    half = f.mul(x, 0.5)
    roots = f.apply("exp", half), f.apply("exp", f.neg(half))
    return f.add(*(f.mul(f.mul(root, 0.5), root) for root in roots))


def area_sine(f: FormulaBuilder, x: Value) -> Value:
    """Emits asinh(x) = log(y + sqrt(y * y + 1)) with y = |x|, and the sign of x.

    As log(m) + log(1 + u) with m = max(y, 1) and u = y / m + (sqrt(y * y + 1) / m - 1), where no square overflows.
    """
    size = f.abs(x)
    most, part = f.max(size, 1), f.min(size, 1)  # part = y / m, also if y is infinite
    one = f.div(1, most)
    square, other = f.mul(part, part), f.mul(one, one)
    root = f.apply("sqrt", f.add(square, other))
    beyond = f.add(part, f.div(f.add(square, f.sub(other, 1)), f.add(root, 1)))
    result = f.add(f.apply("log", most), _log1p(f, beyond, beyond))
    return f.min(f.max(x, f.neg(result)), result)  # the result is not larger than |x|


def area_cosine(f: FormulaBuilder, x: Value) -> Value:
    """Emits acosh(x) = 2 log(sqrt((x - 1) / 2) + sqrt((x + 1) / 2)), which does not overflow."""
    roots = (f.apply("sqrt", f.mul(square, 0.5)) for square in (f.sub(x, 1), f.add(x, 1)))
    return f.mul(f.apply("log", f.add(*roots)), 2)


def area_tangent(f: FormulaBuilder, x: Value) -> Value:
    """Emits atanh(x) = log(1 + 2 y / (1 - y)) / 2 with y = |x|, and the sign of x."""
    positive, negative = (_area_tangent(f, f.relu(side)) for side in (x, f.neg(x)))
    return f.sub(positive, negative)


def _area_tangent(f: FormulaBuilder, x: Value) -> Value:
    beyond = f.div(f.mul(x, 2), f.sub(1, x))
    return f.mul(_log1p(f, beyond, f.min(beyond, 1)), 0.5)


def _log1p(f: FormulaBuilder, x: Value, near: Value) -> Value:
    """Emits log(1 + x) for x >= 0, corrected by the bits that 1 + x loses; `near`: x where x <= 1, and finite."""
    return f.add(f.apply("log", f.add(x, 1)), f.sub(near, f.sub(f.add(near, 1), 1)))


def _within_turn(f: FormulaBuilder, x: Value) -> Value:
    """Emits the angle modulo 2 pi, from -pi to pi, even where rounding of a large angle exceeds a turn."""
    turns = f.sub(f.add(f.mul(x, 1 / math.tau), _ROUNDING), _ROUNDING)
    for part in _TURN:
        x = f.sub(x, f.mul(turns, part))
    return f.min(f.max(x, -math.pi), math.pi)


def _minus(f: FormulaBuilder, constant: Sequence[float], x: Value) -> Value:
    """Emits constant - x; the constant is given as summands, the first with few bits."""
    return f.add(f.sub(constant[0], x), constant[1])


def _nearer(f: FormulaBuilder, x: Value) -> Value:
    """Emits min(x, pi - x)."""
    return f.min(x, _minus(f, _PI, x))


def _series(f: FormulaBuilder, x: Value, coefficients: Sequence[float]) -> Value:
    """Emits x * (c[0] + c[1] x^2 + c[2] x^4 + ...)."""
    square = f.mul(x, x)
    total = f.mul(square, coefficients[-1])
    for coefficient in coefficients[-2:0:-1]:
        total = f.mul(f.add(total, coefficient), square)
    return f.add(x, f.mul(x, total)) if coefficients[0] == 1 else f.mul(x, f.add(total, coefficients[0]))


def _halved(f: FormulaBuilder, tangent_: Value) -> Value:
    """Emits the tangent of half the angle that has tangent `tangent_`."""
    return f.div(tangent_, f.add(f.apply("sqrt", f.add(f.mul(tangent_, tangent_), 1)), 1))


def _of_half(f: FormulaBuilder, tangent_: Value) -> Value:
    """Emits the arctangent of a number from -1 to 1."""
    return f.mul(_series(f, _halved(f, tangent_), _ARCTANGENT), 2)


_FUNCTIONS: Mapping[str, tuple[int, Activation, str]] = {
    "Sin": (7, sine, "Sine, by a polynomial, to 1e-6 for angles up to 10000."),
    "Cos": (7, cosine, "Cosine, by a polynomial, to 1e-6 for angles up to 10000."),
    "Tan": (7, tangent, "Sine / cosine."),
    "Atan": (7, arctangent, "Arctangent, by a polynomial."),
    "Asin": (7, arcsine, "Arcsine, by a polynomial."),
    "Acos": (7, arccosine, "Arccosine, by a polynomial."),
    "Sinh": (9, hyperbolic_sine, "tanh(x) * cosh(x)."),
    "Cosh": (9, hyperbolic_cosine, "(exp(x) + exp(-x)) / 2, by exp(x / 2)."),
    "Asinh": (9, area_sine, "log(x + sqrt(x * x + 1))."),
    "Acosh": (9, area_cosine, "2 log(sqrt((x - 1) / 2) + sqrt((x + 1) / 2))."),
    "Atanh": (9, area_tangent, "log(1 + 2 x / (1 - x)) / 2."),
}
"""Operator -> (first version, function, summary for the documentation)."""


def _register(op_type: str, since: int, function: Activation, summary: str) -> None:
    def import_function(node: NodeView, ctx: ImportContext) -> None:
        lower_activation(node, ctx, function)

    import_function.__doc__ = summary
    decorated: ImportFunction = import_function
    importer(op_type, since=since)(decorated)


for _op_type, (_since, _function, _summary) in _FUNCTIONS.items():
    _register(_op_type, _since, _function, _summary)
