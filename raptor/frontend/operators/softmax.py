"""Softmax and LogSoftmax over any axis."""

import math
from dataclasses import replace

import numpy as np

from raptor.frontend.formulas.formula import FormulaBuilder, Value
from raptor.frontend.import_context import ImportContext
from raptor.frontend.operators.operand_checks import is_channel_axis
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.ir import Pool, Softmax, Tensor
from raptor.graph.rearrangement import c_order, make_move
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image


@importer("Softmax", since=1)
def import_softmax(node: NodeView, ctx: ImportContext) -> None:
    """exp(x) / sum(exp(x)) over all dimensions from the axis on."""
    _lower_softmax(node, ctx, *_spanned(node, ctx.tensor(node.inputs[0])))


@importer("Softmax", since=13)
def import_softmax_of_axis(node: NodeView, ctx: ImportContext) -> None:
    """exp(x) / sum(exp(x)) over one axis."""
    x = ctx.tensor(node.inputs[0])
    _lower_softmax(node, ctx, x.shape or (1,), _axis(node, x, -1))


@importer("LogSoftmax", since=1)
def import_log_softmax(node: NodeView, ctx: ImportContext) -> None:
    """x - log(sum(exp(x))) over all dimensions from the axis on."""
    _lower_log_softmax(node, ctx, *_spanned(node, ctx.tensor(node.inputs[0])))


@importer("LogSoftmax", since=13)
def import_log_softmax_of_axis(node: NodeView, ctx: ImportContext) -> None:
    """x - log(sum(exp(x))) over one axis."""
    x = ctx.tensor(node.inputs[0])
    _lower_log_softmax(node, ctx, x.shape or (1,), _axis(node, x, -1))


def _axis(node: NodeView, x: Tensor, default: int) -> int:
    return node.integer("axis", default) % max(len(x.shape), 1)


def _spanned(node: NodeView, x: Tensor) -> tuple[tuple[int, ...], int]:
    """Returns shape and axis of a softmax before operator set 13, which reshapes its input to a matrix.

    The input keeps its own shape if only one dimension from the axis on is larger than 1.
    """
    shape = x.shape or (1,)
    axis = _axis(node, x, 1) if len(shape) > 1 else 0
    wide = [a for a in range(axis, len(shape)) if shape[a] > 1]
    if len(wide) <= 1:
        return shape, wide[0] if wide else axis
    return (math.prod(shape[:axis]), math.prod(shape[axis:])), 1


def _lower_softmax(node: NodeView, ctx: ImportContext, shape: tuple[int, ...], axis: int) -> None:
    x = ctx.tensor(node.inputs[0])
    shown = replace(x, shape=shape)
    image = x.image if is_channel_axis(shown, axis) else Image(shape, axis)
    laid = ctx.lay_out(node, x, image)
    ctx.emit(node, (laid.name,), image, Softmax())


def _lower_log_softmax(node: NodeView, ctx: ImportContext, shape: tuple[int, ...], axis: int) -> None:
    """Emits x - m - log(sum(exp(x - m))), where m is the maximum: no exponential overflows, and not all vanish."""
    x = ctx.tensor(node.inputs[0])
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    lanes = _turned(node, ctx, x, (outer, shape[axis], inner))
    f = FormulaBuilder(node, ctx, lanes.shape, lanes.image)
    shifted = f.sub(lanes, _pooled(node, ctx, lanes, "max"))
    raised = f.apply("exp", shifted)
    assert isinstance(raised, Tensor)
    total = _pooled(node, ctx, raised, "sum")
    result = f.sub(shifted, FormulaBuilder(node, ctx, total.shape, total.image).apply("log", total))
    if min(outer, inner) == 1:
        f.finish(result)
        return
    _turn_back(node, ctx, result, (outer, shape[axis], inner))


def _turned(node: NodeView, ctx: ImportContext, x: Tensor, dims: tuple[int, int, int]) -> Tensor:
    """Returns the tensor with the axis as pixels and one channel per softmax."""
    outer, length, inner = dims
    if min(outer, inner) == 1:
        image = Image((outer, length), 0) if inner == 1 else Image((length, inner), 1)
        return ctx.lay_out(node, x, image)
    image = Image((length, outer * inner), 1)
    wanted = np.moveaxis(c_order(dims), 1, 0)
    operator = make_move([x.image], wanted, image)
    return ctx.emit_inner(node, (x.name,), image.shape, image, operator, f"{node.output}.turned")


def _turn_back(node: NodeView, ctx: ImportContext, result: Value, dims: tuple[int, int, int]) -> None:
    assert isinstance(result, Tensor)
    outer, length, inner = dims
    image = Image(dims, 1)
    wanted = np.moveaxis(c_order((length, outer, inner)), 0, 1)
    ctx.emit(node, (result.name,), image, make_move([result.image], wanted, image))


def _pooled(node: NodeView, ctx: ImportContext, x: Tensor, function: str) -> Tensor:
    size = x.image.pixels
    window = Window((size,), (1,), (size,), (1,), (0,), (1,))
    image = Image((x.image.channels,), 0)
    operator = Pool("max" if function == "max" else "sum", window)
    return ctx.emit_inner(node, (x.name,), image.shape, image, operator, f"{node.output}.pooled")
