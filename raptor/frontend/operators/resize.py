"""Resize and Upsample."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raptor.frontend.constant_pixels import Shape
from raptor.frontend.formulas.builder import OperatorBuilder, number_elements
from raptor.frontend.formulas.interpolation import AxisTaps, ResizeAxis, ResizeMethod, compute_taps
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal, NeedsConstantError
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.ir import ConstantTensor, Floats, Stencil, Tensor
from raptor.graph.rearrangement import c_order
from raptor.graph.window import WindowTable
from raptor.target.tensor_layout import Image

RESIZE_LIMIT = "constant scales, sizes and roi"


@importer("Upsample", since=7)
def import_upsample(node: NodeView, ctx: ImportContext) -> None:
    """Upsampling, nearest or linear, by scales given as an attribute."""
    scales = [float(s) for s in node.attributes["scales"]]
    _lower(node, ctx, scales, _old_method(node))


@importer("Upsample", since=9, limits=RESIZE_LIMIT)
def import_upsample_of_input(node: NodeView, ctx: ImportContext) -> None:
    """Upsampling, nearest or linear, by scales given as an input."""
    _lower(node, ctx, _numbers(node, ctx, 1), _old_method(node))


@importer("Resize", since=10, limits=RESIZE_LIMIT)
def import_resize_of_scales(node: NodeView, ctx: ImportContext) -> None:
    """Resampling, nearest or linear, by scales."""
    _lower(node, ctx, _numbers(node, ctx, 1), _old_method(node))


@importer("Resize", since=11, limits=RESIZE_LIMIT)
def import_resize(node: NodeView, ctx: ImportContext) -> None:
    """Resampling: nearest (elements are moved), linear or cubic (a weighted sum along each axis), with antialias."""
    method = ResizeMethod(
        node.string("mode", "nearest"),
        node.string("coordinate_transformation_mode", "half_pixel"),
        node.string("nearest_mode", "round_prefer_floor"),
        node.number("cubic_coeff_a", -0.75),
        bool(node.integer("exclude_outside", 0)),
        bool(node.integer("antialias", 0)),
    )
    shape = ctx.shape(node.inputs[0])
    chosen = tuple(a % len(shape) for a in node.ints("axes", range(len(shape))))
    scales = _numbers(node, ctx, 2) or _scales_of_sizes(node, ctx, [shape[a] for a in chosen])
    roi = _numbers(node, ctx, 1) or [0.0] * len(chosen) + [1.0] * len(chosen)
    all_scales, all_roi = [1.0] * len(shape), [(0.0, 1.0)] * len(shape)
    for i, axis in enumerate(chosen):
        all_scales[axis], all_roi[axis] = scales[i], (roi[i], roi[len(chosen) + i])
    method = replace(method, channels_last=len(shape) == 4 and all_scales[1] != 1)
    _lower(node, ctx, all_scales, method, all_roi, by_sizes=node.input(3) is not None)


def _old_method(node: NodeView) -> ResizeMethod:
    return ResizeMethod(node.string("mode", "nearest"), "asymmetric", "simple")


def _numbers(node: NodeView, ctx: ImportContext, position: int) -> list[float]:
    """Returns an optional constant input; empty if absent. Raises `NeedsConstantError` for a computed one."""
    name = node.input(position)
    if name is None:
        return []
    value = ctx.constant(name)
    if value is None:
        raise NeedsConstantError(name)
    return [float(v) for v in value.ravel()]


def _scales_of_sizes(node: NodeView, ctx: ImportContext, old: Sequence[int]) -> list[float]:
    scales = [new / n for new, n in zip(_numbers(node, ctx, 3), old, strict=True)]
    policy = node.string("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales
    return [min(scales) if policy == "not_larger" else max(scales)] * len(scales)


def _lower(
    node: NodeView,
    ctx: ImportContext,
    scales: Sequence[float],
    method: ResizeMethod,
    roi: Sequence[tuple[float, float]] | None = None,
    *,
    by_sizes: bool = False,
) -> None:
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    new = ctx.shape(node.output)
    inferred = tuple(int(np.float32(scale) * np.float32(n)) for scale, n in zip(scales, x.shape, strict=True))
    if not by_sizes and inferred != new:
        raise ImportRefusal(
            f"the standard infers the shape {new}, onnxruntime {inferred}: scales on the edge of rounding"
        )
    roi = roi or [(0.0, 1.0)] * len(new)
    axes = [ResizeAxis(*axis, by_sizes) for axis in zip(x.shape, new, scales, roi, strict=True)]
    if new == x.shape and not any(axis.aligns_to_fraction(method) for axis in axes):
        # onnxruntime does the same, whatever the scales and the crop.
        build.finish(x)
        return
    found = [compute_taps(axis, method) for axis in axes]
    result = _moved(build, x, found) if method.mode == "nearest" else _interpolated(build, x, found)
    build.finish(_extrapolated(build, result, new, found, node.number("extrapolation_value", 0.0)))


def _moved(build: OperatorBuilder, x: Tensor, found: Sequence[AxisTaps]) -> Tensor:
    (wanted,) = number_elements([x])
    for axis, along in enumerate(found):
        wanted = wanted.take(along.positions[:, 0], axis=axis)
    return build.rearrange(wanted, x)


def _interpolated(build: OperatorBuilder, x: Tensor, found: Sequence[AxisTaps]) -> Tensor:
    """Interpolates one axis after another, axes that shrink most first."""
    result = build.natural_operand(x.name)
    for axis in sorted(range(len(found)), key=lambda a: len(found[a].positions) / x.shape[a]):
        matrix = _matrix(found[axis], result.image.shape[axis])
        if matrix.shape[0] != matrix.shape[1] or not np.array_equal(matrix, np.eye(len(matrix))):
            result = _along(build, result, axis, found[axis], matrix)
    return result


def _along(build: OperatorBuilder, x: Tensor, axis: int, along: AxisTaps, matrix: Floats) -> Tensor:
    """Interpolates one axis: channels by a product with `matrix`, pixels by a stencil."""
    image = x.image
    if axis == image.channel_axis:
        return build.multiply_by_matrix(x, matrix)
    pixel_axis = axis - (axis > image.channel_axis)
    inputs = c_order(image.pixel_dims)
    outputs = inputs.take(along.positions[:, 0], axis=pixel_axis)
    count = along.positions.shape[1]
    sources = [np.take(inputs, along.positions[:, t], axis=pixel_axis).reshape(-1) for t in range(count)]
    column = (-1, *(1,) * (len(image.pixel_dims) - pixel_axis - 1))
    weights = [np.broadcast_to(w.reshape(column), outputs.shape).reshape(-1) for w in np.moveaxis(along.weights, 1, 0)]
    shape = (*image.shape[:axis], len(along.positions), *image.shape[axis + 1 :])
    stencil = Stencil(
        np.stack(weights, axis=1)[:, :, None], WindowTable(np.stack(sources, axis=1).astype(np.int32), inputs.size)
    )
    return build.add(stencil, Image(shape, image.channel_axis), x)


def _matrix(along: AxisTaps, size: int) -> Floats:
    """Returns the taps as a matrix [inputs, outputs]; weights at equal positions are added."""
    matrix = np.zeros((size, len(along.positions)), np.float32)
    np.add.at(matrix, (along.positions, np.arange(len(along.positions))[:, None]), along.weights)
    return matrix


def _extrapolated(build: OperatorBuilder, x: Tensor, shape: Shape, found: Sequence[AxisTaps], value: float) -> Tensor:
    """Puts `value` where an element lies outside the input on any axis."""
    outside = np.zeros(shape, np.bool_)
    for axis, along in enumerate(found):
        outside |= along.outside.reshape(-1, *(1,) * (len(shape) - axis - 1))
    if not outside.any():
        return x
    filling = build.add(ConstantTensor(np.full((1, 1, 1), value, np.float32)), Image((1,), 0))
    return build.rearrange(np.where(outside, x.image.elements, c_order(shape)), x, filling)
