"""Trigonometric and hyperbolic functions, element by element.

Angles are first brought into one turn. The polynomials are Taylor series on an interval where float32 sees no error.
"""

import math
from collections.abc import Mapping, Sequence

from raptor.frontend.formulas import Formula, Value
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import NodeView
from raptor.frontend.operators.activations import Activation, lower_activation
from raptor.frontend.registry import ImportFunction, importer

_ROUNDING = 1.5 * 2.0**23
"""Added to a number below 2**22 and subtracted again, it rounds the number."""
_TURN = (6.28125, 0.0019340515136718750, 1.2556659146e-06)
"""2 pi as a sum of numbers of few bits: their products with the number of turns are exact."""
_PI = (3.140625, 0.000967653589793)
_HALF_PI = (1.5703125, 0.000483826794897)
_SINE = tuple((-1) ** i / math.factorial(2 * i + 1) for i in range(7))
_ARCTANGENT = tuple((-1) ** i / (2 * i + 1) for i in range(9))
_FAR = 1e18
"""Beyond it the arctangent is pi / 2 in float32, and the square would overflow."""


def sine(f: Formula, x: Value) -> Value:
    """sin(r) = sin(pi - r), r the angle in one turn."""
    angle = _within_turn(f, x)
    sides = [_nearer(f, f.relu(a)) for a in (angle, f.neg(angle))]
    return _series(f, f.sub(*sides), _SINE)


def cosine(f: Formula, x: Value) -> Value:
    """cos(r) = sin(pi / 2 - |r|)."""
    return _series(f, _minus(f, _HALF_PI, f.abs(_within_turn(f, x))), _SINE)


def tangent(f: Formula, x: Value) -> Value:
    return f.div(sine(f, x), cosine(f, x))


def arctangent(f: Formula, x: Value) -> Value:
    """atan(x) = 2 atan(x / (1 + sqrt(1 + x * x)))."""
    return f.mul(_of_half(f, _halved(f, f.min(f.max(x, -_FAR), _FAR))), 2)


def arcsine(f: Formula, x: Value) -> Value:
    """2 atan(x / (1 + sqrt(1 - x * x)))."""
    cosine_ = f.apply("sqrt", f.mul(f.sub(1, x), f.add(x, 1)))
    return f.mul(_of_half(f, f.div(x, f.add(cosine_, 1))), 2)


def arccosine(f: Formula, x: Value) -> Value:
    """2 atan(sqrt((1 - x) / (1 + x)))."""
    return f.mul(arctangent(f, f.apply("sqrt", f.div(f.sub(1, x), f.add(x, 1)))), 2)


def hyperbolic_sine(f: Formula, x: Value) -> Value:
    return f.mul(f.sub(f.apply("exp", x), f.apply("exp", f.neg(x))), 0.5)


def hyperbolic_cosine(f: Formula, x: Value) -> Value:
    return f.mul(f.add(f.apply("exp", x), f.apply("exp", f.neg(x))), 0.5)


def area_sine(f: Formula, x: Value) -> Value:
    """log(y + sqrt(y * y + 1)) with the sign of x, y = |x|: no difference of nearly equal numbers."""
    return f.sub(*(_area_sine(f, f.relu(side)) for side in (x, f.neg(x))))


def area_cosine(f: Formula, x: Value) -> Value:
    """log(x + sqrt(x - 1) sqrt(x + 1))."""
    root = f.mul(f.apply("sqrt", f.sub(x, 1)), f.apply("sqrt", f.add(x, 1)))
    return f.apply("log", f.add(x, root))


def area_tangent(f: Formula, x: Value) -> Value:
    """log((1 + x) / (1 - x)) / 2."""
    return f.mul(f.apply("log", f.div(f.add(x, 1), f.sub(1, x))), 0.5)


def _within_turn(f: Formula, x: Value) -> Value:
    """Subtracts whole turns: the result is from -pi to pi."""
    turns = f.sub(f.add(f.mul(x, 1 / math.tau), _ROUNDING), _ROUNDING)
    for part in _TURN:
        x = f.sub(x, f.mul(turns, part))
    return x


def _minus(f: Formula, constant: Sequence[float], x: Value) -> Value:
    """Subtracts x from a sum of constants, of which the first has few bits."""
    return f.add(f.sub(constant[0], x), constant[1])


def _nearer(f: Formula, x: Value) -> Value:
    """Returns the smaller one of x and pi - x."""
    return f.min(x, _minus(f, _PI, x))


def _series(f: Formula, x: Value, coefficients: Sequence[float]) -> Value:
    """Adds x * (c[0] + c[1] x^2 + c[2] x^4 + ...)."""
    square = f.mul(x, x)
    total = f.mul(square, coefficients[-1])
    for coefficient in coefficients[-2:0:-1]:
        total = f.mul(f.add(total, coefficient), square)
    return f.add(x, f.mul(x, total)) if coefficients[0] == 1 else f.mul(x, f.add(total, coefficients[0]))


def _halved(f: Formula, tangent_: Value) -> Value:
    """Returns the tangent of half of an angle."""
    return f.div(tangent_, f.add(f.apply("sqrt", f.add(f.mul(tangent_, tangent_), 1)), 1))


def _of_half(f: Formula, tangent_: Value) -> Value:
    """Returns the arctangent of a number from -1 to 1."""
    return f.mul(_series(f, _halved(f, tangent_), _ARCTANGENT), 2)


def _area_sine(f: Formula, x: Value) -> Value:
    """log(x + sqrt(x * x + 1)) for x of at least 0; the root is taken of numbers that do not overflow."""
    most = f.max(x, 1)
    part, one = f.div(x, most), f.div(1, most)
    root = f.mul(most, f.apply("sqrt", f.add(f.mul(part, part), f.mul(one, one))))
    return f.apply("log", f.add(x, root))


_FUNCTIONS: Mapping[str, tuple[int, Activation, str]] = {
    "Sin": (7, sine, "Sine, by a polynomial, to 1e-6 for angles up to 10000."),
    "Cos": (7, cosine, "Cosine, by a polynomial, to 1e-6 for angles up to 10000."),
    "Tan": (7, tangent, "Sine / cosine."),
    "Atan": (7, arctangent, "Arctangent, by a polynomial."),
    "Asin": (7, arcsine, "Arcsine, by a polynomial."),
    "Acos": (7, arccosine, "Arccosine, by a polynomial."),
    "Sinh": (9, hyperbolic_sine, "(exp(x) - exp(-x)) / 2."),
    "Cosh": (9, hyperbolic_cosine, "(exp(x) + exp(-x)) / 2."),
    "Asinh": (9, area_sine, "log(x + sqrt(x * x + 1))."),
    "Acosh": (9, area_cosine, "log(x + sqrt(x * x - 1))."),
    "Atanh": (9, area_tangent, "log((1 + x) / (1 - x)) / 2."),
}
"""Operators: first version, function, summary."""


def _register(op_type: str, since: int, function: Activation, summary: str) -> None:
    def import_function(node: NodeView, ctx: ImportContext) -> None:
        lower_activation(node, ctx, function)

    import_function.__doc__ = summary
    decorated: ImportFunction = import_function
    importer(op_type, since=since)(decorated)


for _op_type, (_since, _function, _summary) in _FUNCTIONS.items():
    _register(_op_type, _since, _function, _summary)
