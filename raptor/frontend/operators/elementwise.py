"""Element-wise functions of tensors and constants."""

import numpy as np

from raptor.frontend.constants import constant_pixels, scalar
from raptor.frontend.graph import Constant, Map, MapFunction
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import NodeView
from raptor.frontend.operators.shared import common_image
from raptor.frontend.registry import Refusal, importer

BROADCAST = "tensors of equal shape; constants may be broadcast"
LARGEST = float(np.finfo(np.float32).max)


@importer("Relu", since=1)
def import_relu(node: NodeView, ctx: ImportContext) -> None:
    """max(x, 0)."""
    _lower_function(node, ctx, "relu")


@importer("Sigmoid", since=1)
def import_sigmoid(node: NodeView, ctx: ImportContext) -> None:
    """1 / (1 + exp(-x))."""
    _lower_function(node, ctx, "sigmoid")


@importer("Tanh", since=1)
def import_tanh(node: NodeView, ctx: ImportContext) -> None:
    """Hyperbolic tangent."""
    _lower_function(node, ctx, "tanh")


@importer("Clip", since=1, limits="constant bounds")
def import_clip(node: NodeView, ctx: ImportContext) -> None:
    """min(max(x, low), high), the bounds as attributes."""
    _lower_clip(node, ctx, node.number("min", -LARGEST), node.number("max", LARGEST))


@importer("Clip", since=11, limits="constant bounds")
def import_clip_of_inputs(node: NodeView, ctx: ImportContext) -> None:
    """min(max(x, low), high), the bounds as inputs."""
    _lower_clip(node, ctx, _bound(node, ctx, 1, -LARGEST), _bound(node, ctx, 2, LARGEST))


@importer("Add", since=7, limits=BROADCAST)
def import_add(node: NodeView, ctx: ImportContext) -> None:
    """a + b."""
    _lower_commutative(node, ctx, "add")


@importer("Sum", since=6, limits=BROADCAST)
def import_sum(node: NodeView, ctx: ImportContext) -> None:
    """a + b + ..."""
    _lower_commutative(node, ctx, "add")


@importer("Mul", since=7, limits=BROADCAST)
def import_mul(node: NodeView, ctx: ImportContext) -> None:
    """a * b."""
    _lower_commutative(node, ctx, "mul")


@importer("Max", since=6, limits=BROADCAST)
def import_max(node: NodeView, ctx: ImportContext) -> None:
    """max(a, b, ...)."""
    _lower_commutative(node, ctx, "max")


@importer("Sub", since=7, limits=BROADCAST)
def import_sub(node: NodeView, ctx: ImportContext) -> None:
    """a - b."""
    tensors = [ctx.tensor(i) for i in node.inputs if ctx.constant(i) is None]
    shape = ctx.shape(node.output)
    image = common_image(tensors, shape)
    names = tuple(dict.fromkeys(t.name for t in tensors))
    operands = tuple(names.index(i) if i in names else ctx.constant_operand(i, shape, image) for i in node.inputs)
    ctx.emit(node, names, image, Map("sub", operands))


@importer("Div", since=7, limits="constant divisor, multiplied as its float32 reciprocal")
def import_div(node: NodeView, ctx: ImportContext) -> None:
    """a / constant."""
    x, divisor = ctx.tensor(node.inputs[0]), ctx.weights(node.inputs[1])
    shape = ctx.shape(node.output)
    image = common_image([x], shape)
    if not divisor.all():
        raise Refusal("divides by zero")
    reciprocal = (1 / divisor.astype(np.float64)).astype(np.float32)
    ctx.emit(node, (x.name,), image, Map("mul", (0, Constant(constant_pixels(reciprocal, shape, image)))))


def _lower_function(node: NodeView, ctx: ImportContext, function: MapFunction) -> None:
    x = ctx.tensor(node.inputs[0])
    ctx.emit(node, (x.name,), x.image, Map(function, (0,)))


def _lower_commutative(node: NodeView, ctx: ImportContext, function: MapFunction) -> None:
    """A chain of maps, tensors before constants, so that every step has a tensor."""
    constants = [i for i in node.inputs if ctx.constant(i) is not None]
    tensors = [ctx.tensor(i) for i in node.inputs if i not in constants]
    shape = ctx.shape(node.output)
    image = common_image(tensors, shape)
    result, *others = [t.name for t in tensors]
    steps = [_tensor_step(function, result, other) for other in others[:1]]
    steps += [((other,), Map(function, (0, 1))) for other in others[1:]]
    steps += [((), Map(function, (0, ctx.constant_operand(c, shape, image)))) for c in constants]
    for extra, operator in steps[:-1]:
        result = ctx.step(node, (result, *extra), image, operator)
    extra, operator = steps[-1] if steps else ((), None)
    ctx.lower(node, (result, *extra), image, *([operator] if operator else []))


def _tensor_step(function: MapFunction, left: str, right: str) -> tuple[tuple[str, ...], Map]:
    """(further inputs, map): a tensor combined with itself is read once."""
    return ((), Map(function, (0, 0))) if left == right else ((right,), Map(function, (0, 1)))


def _bound(node: NodeView, ctx: ImportContext, position: int, default: float) -> float:
    name = node.input(position)
    return default if name is None else float(ctx.weights(name).item())


def _lower_clip(node: NodeView, ctx: ImportContext, low: float, high: float) -> None:
    x = ctx.tensor(node.inputs[0])
    ctx.lower(node, (x.name,), x.image, *_lower_bound(low), *_upper_bound(high))


def _lower_bound(low: float) -> list[Map]:
    if low <= -LARGEST:
        return []
    return [Map("relu", (0,)) if low == 0 else Map("max", (0, Constant(scalar(low))))]


def _upper_bound(high: float) -> list[Map]:
    """min(x, high) = 0 - max(0 - x, -high), exact: negation does not round."""
    if high >= LARGEST:
        return []
    negate = Map("sub", (Constant(scalar(0)), 0))
    return [negate, Map("max", (0, Constant(scalar(-high)))), negate]
