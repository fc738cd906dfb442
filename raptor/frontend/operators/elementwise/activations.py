"""Activation functions, element by element.

Functions are expressed in published instructions where possible (docs/reference/programs.md); `exp`, `log`, `sqrt`,
`erf` and division are extended instructions.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from raptor.frontend.constant_pixels import make_scalar_pixels
from raptor.frontend.formulas.boolean_formulas import is_above
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.formulas.selection import is_finite, select_where
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import ImportFunction, importer
from raptor.graph.ir import Constant

SMALLEST_FLOAT = float(np.finfo(np.float32).smallest_subnormal)
Activation = Callable[[FormulaBuilder, Value], Value]


def relu(f: FormulaBuilder, x: Value) -> Value:
    return f.relu(x)


def tanh(f: FormulaBuilder, x: Value) -> Value:
    return f.apply("tanh", x)


def sigmoid(f: FormulaBuilder, x: Value) -> Value:
    return f.apply("sigmoid", x)


def erf(f: FormulaBuilder, x: Value) -> Value:
    return f.apply("erf", x)


def exp(f: FormulaBuilder, x: Value) -> Value:
    return f.apply("exp", x)


def log(f: FormulaBuilder, x: Value) -> Value:
    return f.apply("log", x)


def sqrt(f: FormulaBuilder, x: Value) -> Value:
    return f.apply("sqrt", x)


def negate(f: FormulaBuilder, x: Value) -> Value:
    return f.neg(x)


def absolute(f: FormulaBuilder, x: Value) -> Value:
    return f.abs(x)


def reciprocal(f: FormulaBuilder, x: Value) -> Value:
    return f.div(1, x)


def leaky_relu(alpha: float) -> Activation:
    """Returns max(x, alpha x), or min(x, alpha x) if alpha is above 1, as a formula."""
    if alpha == 0:
        return relu
    return lambda f, x: f.max(x, f.mul(x, alpha)) if alpha <= 1 else f.min(x, f.mul(x, alpha))


def thresholded_relu(alpha: float) -> Activation:
    """Returns x if x > alpha else 0, as a formula.

    Multiplies x by 1 or 0: a positive number divided by itself, or 0 divided by the smallest positive number.
    """

    def function(f: FormulaBuilder, x: Value) -> Value:
        excess = f.min(f.relu(f.sub(x, alpha)), 1)
        return f.mul(f.max(x, alpha), f.div(excess, f.max(excess, SMALLEST_FLOAT)))

    return function


def scaled_expm1(f: FormulaBuilder, x: Value, scale: float, width: float = 1) -> Value:
    """Emits scale * (exp(min(x, 0) / width) - 1); 0 for positive x, so that no exponential overflows."""
    negative = f.mul(f.relu(f.neg(x)), -1 / width)
    return f.mul(f.sub(f.apply("exp", negative), 1), scale)


def elu(alpha: float, gamma: float = 1) -> Activation:
    """Returns gamma * (x if x > 0 else alpha (exp(x) - 1)), as a formula."""
    return lambda f, x: f.add(f.mul(f.relu(x), gamma), scaled_expm1(f, x, gamma * alpha))


def celu(alpha: float) -> Activation:
    """Returns max(x, 0) + min(alpha (exp(x / alpha) - 1), 0), as a formula."""
    return lambda f, x: f.add(f.relu(x), scaled_expm1(f, x, alpha, alpha))


def hard_sigmoid(alpha: float, beta: float) -> Activation:
    """Returns max(0, min(1, alpha x + beta)), as a formula."""
    return lambda f, x: f.relu(f.min(f.add(f.mul(x, alpha), beta), 1))


def hard_swish(f: FormulaBuilder, x: Value) -> Value:
    return f.mul(x, hard_sigmoid(1 / 6, 0.5)(f, x))


def softplus(f: FormulaBuilder, x: Value) -> Value:
    """Emits log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    return f.add(f.relu(x), f.apply("log", f.add(f.apply("exp", f.neg(f.abs(x))), 1)))


def mish(f: FormulaBuilder, x: Value) -> Value:
    return f.mul(x, tanh(f, softplus(f, x)))


def softsign(f: FormulaBuilder, x: Value) -> Value:
    return f.div(x, f.add(f.abs(x), 1))


def swish(alpha: float) -> Activation:
    return lambda f, x: f.mul(x, sigmoid(f, f.mul(x, alpha)))


def gelu(f: FormulaBuilder, x: Value) -> Value:
    """Emits x / 2 * (1 + erf(x / sqrt(2)))."""
    return f.mul(f.mul(x, 0.5), f.add(erf(f, f.mul(x, math.sqrt(0.5))), 1))


def tanh_gelu(f: FormulaBuilder, x: Value) -> Value:
    """Emits x / 2 * (1 + tanh(u)) = x * sigmoid(2 u), where u = sqrt(2 / pi) * x * (1 + 0.044715 x^2)."""
    scale = 2 * math.sqrt(2 / math.pi)
    doubled = f.mul(x, f.add(f.mul(f.mul(x, x), 0.044715 * scale), scale))
    return f.mul(x, sigmoid(f, doubled))


def lower_activation(node: NodeView, ctx: ImportContext, function: Activation) -> None:
    """Lowers a node with one operand by the formula of a function."""
    formula = FormulaBuilder.for_node(node, ctx, node.inputs[:1])
    formula.finish(function(formula, formula.operand(node.inputs[0])))


_PLAIN: Mapping[str, tuple[int, Activation, str]] = {
    "Relu": (1, relu, "max(x, 0)."),
    "Tanh": (1, tanh, "Hyperbolic tangent."),
    "Sigmoid": (1, sigmoid, "1 / (1 + exp(-x))."),
    "Erf": (9, erf, "Error function."),
    "Exp": (1, exp, "e to the power of x."),
    "Log": (1, log, "Natural logarithm."),
    "Sqrt": (1, sqrt, "Square root."),
    "Neg": (1, negate, "-x."),
    "Abs": (1, absolute, "max(x, -x)."),
    "Reciprocal": (1, reciprocal, "1 / x."),
    "HardSwish": (14, hard_swish, "x * max(0, min(1, x / 6 + 1 / 2))."),
    "Softplus": (1, softplus, "log(1 + exp(x))."),
    "Softsign": (1, softsign, "x / (1 + |x|)."),
    "Mish": (18, mish, "x * tanh(log(1 + exp(x)))."),
}
"""Operators without attributes -> (first version, function, summary for the documentation)."""


_OF_INTEGERS = ("Relu", "Neg", "Abs")


def _register(op_type: str, since: int, function: Activation, summary: str) -> None:
    def import_plain(node: NodeView, ctx: ImportContext) -> None:
        lower_activation(node, ctx, function)

    import_plain.__doc__ = summary
    decorated: ImportFunction = import_plain
    importer(op_type, since=since, counts=op_type in _OF_INTEGERS)(decorated)


for _op_type, (_since, _function, _summary) in _PLAIN.items():
    _register(_op_type, _since, _function, _summary)


@importer("LeakyRelu", since=1)
def import_leaky_relu(node: NodeView, ctx: ImportContext) -> None:
    """x if x > 0 else alpha x."""
    lower_activation(node, ctx, leaky_relu(node.number("alpha", 0.01)))


@importer("ThresholdedRelu", since=1)
def import_thresholded_relu(node: NodeView, ctx: ImportContext) -> None:
    """x if x > alpha else 0."""
    lower_activation(node, ctx, thresholded_relu(node.number("alpha", 1)))


@importer("Elu", since=1)
def import_elu(node: NodeView, ctx: ImportContext) -> None:
    """x if x > 0 else alpha (exp(x) - 1)."""
    lower_activation(node, ctx, elu(node.number("alpha", 1)))


@importer("Selu", since=1)
def import_selu(node: NodeView, ctx: ImportContext) -> None:
    """gamma * (x if x > 0 else alpha (exp(x) - 1))."""
    old = node.version < 6
    alpha = node.number("alpha", 1.6732 if old else 1.67326319217681884765625)
    lower_activation(node, ctx, elu(alpha, node.number("gamma", 1.0507 if old else 1.05070102214813232421875)))


@importer("Celu", since=12, limits="alpha above 0")
def import_celu(node: NodeView, ctx: ImportContext) -> None:
    """x if x > 0 else alpha (exp(x / alpha) - 1)."""
    alpha = node.number("alpha", 1)
    if alpha <= 0:
        raise ImportRefusal(f"alpha is {alpha}, must be above 0")
    lower_activation(node, ctx, celu(alpha))


@importer("HardSigmoid", since=1)
def import_hard_sigmoid(node: NodeView, ctx: ImportContext) -> None:
    """max(0, min(1, alpha x + beta))."""
    lower_activation(node, ctx, hard_sigmoid(node.number("alpha", 0.2), node.number("beta", 0.5)))


@importer("Swish", since=24)
def import_swish(node: NodeView, ctx: ImportContext) -> None:
    """x * sigmoid(alpha x)."""
    lower_activation(node, ctx, swish(node.number("alpha", 1)))


@importer("Gelu", since=20)
def import_gelu(node: NodeView, ctx: ImportContext) -> None:
    """x / 2 * (1 + erf(x / sqrt(2))), or its tanh approximation."""
    is_tanh = node.string("approximate", "none") == "tanh"
    lower_activation(node, ctx, tanh_gelu if is_tanh else gelu)


@importer("PRelu", since=7)
def import_prelu(node: NodeView, ctx: ImportContext) -> None:
    """max(x, 0) - slope max(-x, 0), with a constant or computed slope."""
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    x, slope = (f.operand(i) for i in node.inputs)
    if not is_finite(f, slope):  # an infinite slope times 0 is NaN
        slope = select_where(f, is_above(f, Constant(make_scalar_pixels(0)), x), slope, Constant(make_scalar_pixels(0)))
    f.finish(f.sub(f.relu(x), f.mul(slope, f.relu(f.neg(x)))))
