"""Softmax and LogSoftmax over any axis."""

import math
from dataclasses import replace

from raptor.frontend.formulas.builder import OperatorBuilder
from raptor.frontend.formulas.reductions import ReductionLayout, broadcast_to_image, emit_broadcast_sum, emit_reduction
from raptor.frontend.import_context import ImportContext
from raptor.frontend.operators.operand_checks import is_channel_axis
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.ir import Softmax, Tensor
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
    laid = _laid_out(node, ctx, shape, axis)
    ctx.emit(node, (laid.name,), laid.image, Softmax())


def _lower_log_softmax(node: NodeView, ctx: ImportContext, shape: tuple[int, ...], axis: int) -> None:
    """Emits x - m - log(sum(exp(x - m))), where m is the maximum: no exponential overflows, and not all vanish.

    The axis is that of the channels, as for a softmax. So each pixel stays on its core.
    """
    laid = _laid_out(node, ctx, shape, axis)
    build = OperatorBuilder(node, ctx)
    largest = broadcast_to_image(build, emit_reduction(build, _channel_reduction(laid), "max"), laid.image)
    shifted = build.map("sub", laid, largest)
    total = emit_broadcast_sum(build, _channel_reduction(build.map("exp", shifted)), 1.0)
    build.finish(build.map("sub", shifted, build.map("log", broadcast_to_image(build, total, laid.image))))


def _laid_out(node: NodeView, ctx: ImportContext, shape: tuple[int, ...], axis: int) -> Tensor:
    """Returns the node's input as a tensor of another shape, laid out with the softmax axis as its channels."""
    x = ctx.tensor(node.inputs[0])
    image = x.image if is_channel_axis(replace(x, shape=shape), axis) else Image(shape, axis)
    return ctx.lay_out(node, x, image)


def _channel_reduction(x: Tensor) -> ReductionLayout:
    """Returns the reduction of a tensor over its channels."""
    return ReductionLayout(x, tuple(d == x.image.channel_axis for d in range(len(x.image.shape))))
