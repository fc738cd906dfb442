"""Windows with a maximum or a mean, and reductions over the image."""

from dataclasses import replace

import numpy as np

from raptor.frontend.constants import Shape, constant_pixels, natural_image, scalar
from raptor.frontend.graph import Constant, Floats, Map, Pool, Tensor
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import NodeView
from raptor.frontend.operators.shared import require_natural
from raptor.frontend.registry import Refusal, importer
from raptor.frontend.windows import Padded, padded_window, spatial_dims
from raptor.window import Window


@importer("MaxPool", since=1, limits="first output only; no window wholly in the padding")
def import_max_pool(node: NodeView, ctx: ImportContext) -> None:
    """Maximum over a window, with strides, pads, dilations, ceil_mode and auto_pad."""
    x = require_natural(ctx.tensor(node.inputs[0]))
    window = padded_window(node, x.image, node.ints("kernel_shape")).window
    _require_inferred(node, ctx, window)
    _taps_inside(window)
    ctx.lower(node, (x.name,), natural_image(ctx.shape(node.output)), Pool("max", window))


@importer("AveragePool", since=1, limits="no window wholly in the padding")
def import_average_pool(node: NodeView, ctx: ImportContext) -> None:
    """Mean over a window: the sum times the reciprocal of the number of elements."""
    x = require_natural(ctx.tensor(node.inputs[0]))
    padded = padded_window(node, x.image, node.ints("kernel_shape"))
    _require_inferred(node, ctx, padded.window)
    counts = _taps_in_padded(padded) if node.integer("count_include_pad", 0) else _taps_inside(padded.window)
    _lower_mean(node, ctx, x, padded.window, counts)


@importer("GlobalAveragePool", since=1)
def import_global_average_pool(node: NodeView, ctx: ImportContext) -> None:
    """Mean over the image."""
    _lower_reduction(node, ctx, _spatial_axes(ctx.tensor(node.inputs[0])), "mean")


@importer("GlobalMaxPool", since=1)
def import_global_max_pool(node: NodeView, ctx: ImportContext) -> None:
    """Maximum over the image."""
    _lower_reduction(node, ctx, _spatial_axes(ctx.tensor(node.inputs[0])), "max")


@importer("ReduceMean", since=1, limits="spatial axes")
def import_reduce_mean(node: NodeView, ctx: ImportContext) -> None:
    """Mean over spatial axes: an average pool (thesis, 4.2)."""
    _lower_reduction(node, ctx, _axes(node, ctx), "mean")


@importer("ReduceSum", since=1, limits="spatial axes")
def import_reduce_sum(node: NodeView, ctx: ImportContext) -> None:
    """Sum over spatial axes."""
    _lower_reduction(node, ctx, _axes(node, ctx), "sum")


@importer("ReduceMax", since=1, limits="spatial axes")
def import_reduce_max(node: NodeView, ctx: ImportContext) -> None:
    """Maximum over spatial axes."""
    _lower_reduction(node, ctx, _axes(node, ctx), "max")


def _require_inferred(node: NodeView, ctx: ImportContext, window: Window) -> None:
    """Before opset 22, onnx infers one output too many where ceil_mode would start a window behind the image."""
    inferred = ctx.shape(node.output)[2:]
    if inferred != window.out_dims:
        raise Refusal(f"ceil_mode: the standard infers {inferred} outputs, there are {window.out_dims}; use opset 22")


def _spatial_axes(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, len(x.shape)))


def _axes(node: NodeView, ctx: ImportContext) -> tuple[int, ...]:
    """The reduced axes, sorted; none given means all of them, or none of them if the node says so."""
    rank = len(ctx.tensor(node.inputs[0]).shape)
    name = node.input(1)
    given = ctx.constant(name)
    if name is not None and given is None:
        raise Refusal("its axes must be a constant")
    axes = node.ints("axes") if given is None else tuple(map(int, given.ravel()))
    if not axes:
        return () if node.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(a % rank for a in axes))


def _lower_reduction(node: NodeView, ctx: ImportContext, axes: tuple[int, ...], function: str) -> None:
    """A pool with a kernel as large as the image along `axes` and 1 elsewhere."""
    x = require_natural(ctx.tensor(node.inputs[0]))
    dims = spatial_dims(x.image)
    if not dims or any(a < 2 for a in axes):
        raise Refusal(
            f"axes {list(axes)} of {len(x.shape)} dimensions: only the spatial axes, from 2 on, are supported"
        )
    kernel = tuple(n if a in axes else 1 for a, n in enumerate(dims, 2))
    outs = tuple(1 if a in axes else n for a, n in enumerate(dims, 2))
    ones = (1,) * len(dims)
    window = Window(dims, outs, kernel, ones, (0,) * len(dims), ones, x.shape[0])
    if function == "mean":
        _lower_mean(node, ctx, x, window, np.full(outs, window.tap_count))
    else:
        pool = Pool("max" if function == "max" else "sum", window)
        ctx.lower(node, (x.name,), natural_image(ctx.shape(node.output)), pool)


def _lower_mean(node: NodeView, ctx: ImportContext, x: Tensor, window: Window, counts: np.ndarray) -> None:
    """`counts`: elements of each mean, one for each output pixel of an image."""
    shape = ctx.shape(node.output)
    image = natural_image(shape)
    steps = [Pool("sum", window), Map("mul", (0, Constant(_reciprocals(counts, shape))))]
    ctx.lower(node, (x.name,), image, *steps[: 1 if np.all(counts == 1) else 2])


def _reciprocals(counts: np.ndarray, shape: Shape) -> Floats:
    if np.all(counts == counts.flat[0]):
        return scalar(1 / int(counts.flat[0]))
    return constant_pixels((1 / counts).astype(np.float32)[None, None], shape, natural_image(shape))


def _taps_inside(window: Window) -> np.ndarray:
    """[outputs...] -> taps inside the image, of which there must be one."""
    counts = (replace(window, batch=1).input_pixels() >= 0).sum(axis=1)
    if counts.min() == 0:
        raise Refusal("a window lies wholly in the padding")
    return counts.reshape(window.out_dims)


def _taps_in_padded(padded: Padded) -> np.ndarray:
    """[outputs...] -> taps inside the image or its padding. Where ceil_mode reaches further, taps do not count."""
    window = padded.window
    dims = tuple(map(sum, zip(window.in_dims, window.pads, padded.end_pads, strict=True)))
    return _taps_inside(replace(window, in_dims=dims, pads=(0,) * len(dims)))
