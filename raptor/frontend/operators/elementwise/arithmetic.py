"""Element-wise arithmetic of tensors and constants, with broadcasting."""

from collections.abc import Callable
from functools import reduce

import numpy as np
from onnx import helper

from raptor.frontend.constant_pixels import make_scalar_pixels
from raptor.frontend.formulas import division, selection
from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import Array, NodeView
from raptor.frontend.read_quantiser import find_code_type
from raptor.frontend.registry import importer
from raptor.frontend.types.integer_ranges import IntegerInterval
from raptor.graph.ir import Bound, Constant, Floats, Map, Rename, Tensor

MOST_EXPONENT = 15
"""Maximum exponent of a Pow whose exponents differ."""


@importer("Clip", since=1, counts=True)
def import_clip(node: NodeView, ctx: ImportContext) -> None:
    """min(max(x, low), high), with bounds as attributes."""
    _lower_clip(node, ctx, node.number("min", -np.inf), node.number("max", np.inf))


@importer("Clip", since=11, counts=True)
def import_clip_of_inputs(node: NodeView, ctx: ImportContext) -> None:
    """min(max(x, low), high), with bounds as inputs, constant or computed."""
    bounds = [i for i in node.inputs[1:] if i]
    if all(ctx.constant(i) is not None for i in bounds):
        _lower_clip(node, ctx, _bound(node, ctx, 1, -np.inf), _bound(node, ctx, 2, np.inf))
        return
    if ctx.tensor(node.inputs[0]).element.kind == "int":
        raise ImportRefusal("its input is of integers, and its bounds are computed; give it constant bounds")
    f = FormulaBuilder.for_node(node, ctx, node.inputs[:1])
    low, high = node.input(1), node.input(2)
    above = f.operand(node.inputs[0])
    above = above if low is None else f.max(above, f.operand(low))
    f.finish(above if high is None else f.min(above, f.operand(high)))


@importer("Add", since=7, counts=True)
def import_add(node: NodeView, ctx: ImportContext) -> None:
    """a + b."""
    _lower_chain(node, ctx, FormulaBuilder.add)


@importer("Sum", since=6, counts=True)
def import_sum(node: NodeView, ctx: ImportContext) -> None:
    """a + b + ..."""
    _lower_chain(node, ctx, FormulaBuilder.add)


@importer("Mean", since=6)
def import_mean(node: NodeView, ctx: ImportContext) -> None:
    """(a + b + ...) / n."""
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    total = reduce(f.add, _tensors_first(f, node))
    f.finish(f.mul(total, 1 / len(node.inputs)))


@importer("Mul", since=7, counts=True)
def import_mul(node: NodeView, ctx: ImportContext) -> None:
    """a * b."""
    _lower_chain(node, ctx, lambda f, x, y: f.apply("mul", x, y))


@importer("Max", since=6, counts=True)
def import_max(node: NodeView, ctx: ImportContext) -> None:
    """max(a, b, ...)."""
    _lower_chain(node, ctx, FormulaBuilder.max)


@importer("Min", since=6, counts=True)
def import_min(node: NodeView, ctx: ImportContext) -> None:
    """min(a, b, ...) = -max(-a, -b, ...)."""
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    values = _tensors_first(f, node)
    f.finish(values[0] if len(values) == 1 else f.neg(reduce(f.max, map(f.neg, values))))


@importer("Sub", since=7, counts=True)
def import_sub(node: NodeView, ctx: ImportContext) -> None:
    """a - b."""
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    f.finish(f.sub(*(f.operand(i) for i in node.inputs)))


@importer(
    "Div", since=7, counts=True, limits="a constant divisor without zeros is multiplied as its float32 reciprocal"
)
def import_div(node: NodeView, ctx: ImportContext) -> None:
    """a / b; for integers rounded towards 0."""
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    if ctx.is_integer_type(node.output):
        f.finish(division.quotient(f, *(f.operand(i) for i in node.inputs)))
        return
    a = f.operand(node.inputs[0])
    if ctx.constant(node.inputs[1]) is None:
        f.finish(f.div(a, f.operand(node.inputs[1])))
        return
    divisor = ctx.read_float32(node.inputs[1])
    if not divisor.all():
        raise ImportRefusal("divides by zero")
    with np.errstate(over="ignore"):
        inverse = (1 / divisor.astype(np.float64)).astype(np.float32)
    exact = np.isfinite(inverse).all() and bool((np.abs(inverse) >= np.finfo(np.float32).tiny).all())
    f.finish(f.apply("mul", a, f.constant(inverse)) if exact else f.div(a, f.constant(divisor)))


@importer("Mod", since=10, counts=True, limits="of floats with fmod=1, where a / b has few digits before the point")
def import_mod(node: NodeView, ctx: ImportContext) -> None:
    """Remainder of a / b with the sign of b, or with fmod=1 of a."""
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    x, y = (f.operand(i) for i in node.inputs)
    rest = division.remainder(f, x, y) if ctx.is_integer_type(node.output) else division.float_remainder(f, x, y)
    f.finish(rest if node.integer("fmod", 0) else division.match_sign(f, rest, y))


@importer(
    "Pow",
    since=7,
    counts=True,
    limits="a constant exponent, the same for all elements or whole numbers; or a constant base above 0",
)
def import_pow(node: NodeView, ctx: ImportContext) -> None:
    """a to the power of b, by multiplication if b is an integer."""
    base, exponent = (ctx.constant(i) for i in node.inputs)
    if exponent is not None:
        f = FormulaBuilder.for_node(node, ctx, node.inputs[:1])
        x = f.operand(node.inputs[0])
        uniform = (exponent == exponent.flat[0]).all()
        f.finish(emit_power(f, x, float(exponent.flat[0])) if uniform else _varied_power(f, x, exponent))
    elif base is not None:
        _lower_power_of_constant(node, ctx, base.astype(np.float32))
    else:
        raise ImportRefusal("neither base nor exponent is a constant: the sign of a negative base would be lost")


def emit_power(f: FormulaBuilder, x: Value, exponent: float) -> Value:
    """Emits x ** exponent; NaN for negative x and an exponent that is no integer."""
    if exponent < 0:
        return f.div(1, emit_power(f, x, -exponent))
    if exponent == int(exponent):
        return _integer_power(f, x, int(exponent))
    if exponent * 2 == int(exponent * 2) and exponent < 8:
        root = f.apply("sqrt", x)
        return root if exponent < 1 else f.mul(_integer_power(f, x, int(exponent)), root)
    # log(0) is -inf and log of a negative number is NaN; exp then gives 0 and NaN, as a power does.
    return f.apply("exp", f.mul(f.apply("log", x), exponent))


def _integer_power(f: FormulaBuilder, x: Value, exponent: int) -> Value:
    if exponent == 0:
        return Constant(make_scalar_pixels(1))
    result: Value | None = None
    while True:
        if exponent & 1:
            result = x if result is None else f.mul(result, x)
        exponent >>= 1
        if exponent == 0:
            break
        x = f.mul(x, x)
    assert result is not None, "the highest bit is set"
    return result


def _varied_power(f: FormulaBuilder, x: Value, exponent: Array) -> Value:
    """Computes powers with different integer exponents by repeated squaring; unneeded factors of an element are 1."""
    if (exponent < 0).any() or (exponent != np.rint(exponent)).any() or exponent.max() > MOST_EXPONENT:
        raise ImportRefusal(
            f"its exponent differs from element to element, and is not always a whole number 0..{MOST_EXPONENT}"
        )
    left, result = exponent.astype(np.int64), None
    while left.any():
        needed = f.constant((left & 1).astype(np.float32))
        factor = selection.select_where(f, needed, x, f.constant(np.ones((), np.float32)))
        result = factor if result is None else f.mul(result, factor)
        left >>= 1
        x = f.mul(x, x)
    assert result is not None, "not all exponents are equal"
    return result


def _lower_power_of_constant(node: NodeView, ctx: ImportContext, base: Floats) -> None:
    """Emits base ** x = exp(x * log(base))."""
    if (base <= 0).any():
        raise ImportRefusal("its constant base is not above 0")
    f = FormulaBuilder.for_node(node, ctx, node.inputs[1:])
    logarithm = f.constant(np.log(base.astype(np.float64)).astype(np.float32))
    f.finish(f.apply("exp", f.mul(f.operand(node.inputs[1]), logarithm)))


def _lower_chain(node: NodeView, ctx: ImportContext, function: Callable[[FormulaBuilder, Value, Value], Value]) -> None:
    f = FormulaBuilder.for_node(node, ctx, node.inputs)
    f.finish(reduce(lambda x, y: function(f, x, y), _tensors_first(f, node)))


def _tensors_first(f: FormulaBuilder, node: NodeView) -> list[Value]:
    """Returns the operands, tensors before constants, so that no two constants are combined."""
    return sorted(map(f.operand, node.inputs), key=lambda v: isinstance(v, Constant))


def _bound(node: NodeView, ctx: ImportContext, position: int, default: float) -> float:
    name = node.input(position)
    return default if name is None else float(ctx.read_float32(name).item())


def _lower_clip(node: NodeView, ctx: ImportContext, low: float, high: float) -> None:
    x = ctx.tensor(node.inputs[0])
    if x.element.kind == "int":
        _clip_codes(node, ctx, x, low, high)
    else:
        ctx.emit_chain(node, (x.name,), x.image, *_lower_bound(low), *_upper_bound(high))
        if low <= high:
            ctx.declare_bounds(node.output, low, high)


def _clip_codes(node: NodeView, ctx: ImportContext, x: Tensor, low: float, high: float) -> None:
    """Clips quantised integers, between QuantizeLinear and DequantizeLinear, as exports of QCDQ models do.

    Raises `ImportRefusal` if no integer is between the bounds.
    """
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(ctx.numpy_dtype(node.inputs[0])))
    offset, known = find_code_type(node, kind).offset, ctx.code_range(x)
    least, most = max(low - offset, known.low), min(high - offset, known.high)
    if least > most:
        raise ImportRefusal(f"no integer of its input is from {low:g} to {high:g}")
    found = IntegerInterval(int(least), int(most))
    bound = Bound(None if found.low == known.low else found.low, None if found.high == known.high else found.high)
    cut = Rename() if bound == Bound(None, None) else bound
    ctx.emit(node, (x.name,), x.image, cut, None, x.element, found)


def _lower_bound(low: float) -> list[Map]:
    if low == -np.inf:
        return []
    return [Map("relu", (0,)) if low == 0 else Map("max", (0, Constant(make_scalar_pixels(low))))]


def _upper_bound(high: float) -> list[Map]:
    """Returns the maps of min(x, high) = 0 - max(0 - x, -high); exact, as negation does not round."""
    if high == np.inf:
        return []
    negate = Map("sub", (Constant(make_scalar_pixels(0)), 0))
    return [negate, Map("max", (0, Constant(make_scalar_pixels(-high)))), negate]
