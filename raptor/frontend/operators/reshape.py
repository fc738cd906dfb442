"""Operators that change only the shape, and Concat."""

import math
from dataclasses import replace

import numpy as np

from raptor.frontend.constant_pixels import natural_image
from raptor.frontend.formulas.builder import OperatorBuilder, number_elements, read_axis
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.operators.operand_checks import is_channel_axis, outer_size
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.constant_arrays import copy_contiguous
from raptor.graph.ir import Concat, ConstantTensor, Rename, Tensor
from raptor.target.tensor_layout import Image


def emit_rename(node: NodeView, ctx: ImportContext) -> None:
    """Adds an alias of the node's input.

    Its image has the channels of the output shape if that moves no element; else the input's image is kept.
    """
    x = ctx.tensor(node.inputs[0])
    natural = natural_image(ctx.shape(node.output))
    image = natural if natural.has_layout_of(x.image) else x.image
    ctx.emit(node, (x.name,), image, Rename())


@importer("Identity", since=1)
def import_identity(node: NodeView, ctx: ImportContext) -> None:
    """The input."""
    emit_rename(node, ctx)


@importer("Size", since=1, counts=True)
def import_size(node: NodeView, ctx: ImportContext) -> None:
    """Number of elements, a constant."""
    ctx.set_constant(node.output, np.array(math.prod(ctx.operand_shape(node.inputs[0])), np.int64))


@importer("EyeLike", since=9, counts=True)
def import_eye_like(node: NodeView, ctx: ImportContext) -> None:
    """Matrix of the input's shape with ones on a diagonal, a constant."""
    shape, diagonal = ctx.operand_shape(node.inputs[0]), node.integer("k", 0)
    image = natural_image(shape)
    pixels = image.to_pixels(np.eye(*shape, k=diagonal, dtype=np.float32))
    ctx.emit(node, (), image, ConstantTensor(copy_contiguous(pixels)))


@importer("Dropout", since=1, limits="inference", all_outputs=True)
def import_dropout(node: NodeView, ctx: ImportContext) -> None:
    """The input, as in inference nothing is dropped. The mask is a constant."""
    mask = node.outputs[1] if len(node.outputs) > 1 else ""
    if mask in ctx.read_names:
        ctx.set_constant(mask, np.ones(ctx.shape(node.inputs[0]), ctx.numpy_dtype(mask)))
    training = ctx.constant(node.input(2))
    if node.input(2) is not None and (training is None or training.any()):
        raise ImportRefusal("training_mode must be the constant false")
    emit_rename(node, ctx)


@importer("Flatten", since=1)
def import_flatten(node: NodeView, ctx: ImportContext) -> None:
    """The input reshaped to a matrix; no element moves."""
    emit_rename(node, ctx)


@importer("Reshape", since=5, limits="a constant shape")
def import_reshape(node: NodeView, ctx: ImportContext) -> None:
    """The input in another shape; no element moves."""
    emit_rename(node, ctx)


@importer("Squeeze", since=1)
def import_squeeze(node: NodeView, ctx: ImportContext) -> None:
    """The input without dimensions of size 1."""
    emit_rename(node, ctx)


@importer("Unsqueeze", since=1)
def import_unsqueeze(node: NodeView, ctx: ImportContext) -> None:
    """The input with additional dimensions of size 1."""
    emit_rename(node, ctx)


@importer("Concat", since=1)
def import_concat(node: NodeView, ctx: ImportContext) -> None:
    """Concatenation along an axis: channels side by side if it is the channel axis, else by moving elements."""
    build = OperatorBuilder(node, ctx)
    tensors = [build.operand(i) for i in node.inputs]
    axis = read_axis(node, len(tensors[0].shape), 1)
    image = _side_by_side(tensors, axis)
    if image is None:
        build.finish(build.rearrange(np.concatenate(number_elements(tensors), axis=axis), *tensors))
    else:
        build.finish(build.add(Concat(), image, *tensors))


def _side_by_side(tensors: list[Tensor], axis: int) -> Image | None:
    """Returns the image of the result if concatenating the channels of each pixel gives it; else None."""
    first = tensors[0].image
    pixels, at = first.pixel_dims, first.channel_axis
    for tensor in tensors:
        if tensor.image.pixel_dims != pixels or tensor.image.channel_axis != at:
            return None
        # Concatenating flattened images of equal pixels in C order concatenates their channels.
        if not is_channel_axis(tensor, axis) and outer_size(tensor.shape, axis) != outer_size(first.shape, at):
            return None
    channels = sum(t.image.channels for t in tensors)
    return replace(first, shape=(*first.shape[:at], channels, *first.shape[at + 1 :]))
