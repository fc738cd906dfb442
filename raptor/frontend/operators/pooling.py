"""Pooling: maximum, mean or p-norm over a window."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.frontend.constant_pixels import natural_image
from raptor.frontend.formulas import reductions
from raptor.frontend.formulas.builder import OperatorBuilder
from raptor.frontend.formulas.node_windows import PaddedWindow, read_window
from raptor.frontend.formulas.reductions import ReductionLayout
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.ir import Pool, Tensor
from raptor.graph.window import Window

Counts = npt.NDArray[np.integer[Any]]

MOST_POWERS = 64
"""Maximum exponent; float32 overflows soon after."""


@importer("MaxPool", since=1, limits="first output only; no window wholly in the padding")
def import_max_pool(node: NodeView, ctx: ImportContext) -> None:
    """Maximum over a window, with strides, pads, dilations, ceil_mode and auto_pad."""
    build = OperatorBuilder(node, ctx)
    x = build.natural_operand(node.inputs[0])
    window = read_window(node, x.image, node.ints("kernel_shape")).window
    require_inferred_shape(node, ctx, window)
    _taps_inside(window)
    build.finish(build.add(Pool("max", window), natural_image(ctx.shape(node.output)), x))


@importer("AveragePool", since=1, limits="no window wholly in the padding")
def import_average_pool(node: NodeView, ctx: ImportContext) -> None:
    """Mean over a window: the sum times the reciprocal of the number of elements."""
    build = OperatorBuilder(node, ctx)
    x = build.natural_operand(node.inputs[0])
    padded = read_window(node, x.image, node.ints("kernel_shape"))
    require_inferred_shape(node, ctx, padded.window)
    counts, _ = count_taps(node, padded)
    _lower_mean(build, x, padded.window, counts)


def count_taps(node: NodeView, padded: PaddedWindow) -> tuple[Counts, Counts]:
    """Returns for each output pixel the divisor of an AveragePool, and the number of elements that it sums."""
    inside = _taps_inside(padded.window)
    return (_taps_in_padded(padded) if node.integer("count_include_pad", 0) else inside), inside


@importer("LpPool", since=2, limits="p from 1 to 64")
def import_lp_pool(node: NodeView, ctx: ImportContext) -> None:
    """(sum of |x| ** p over a window) ** (1 / p)."""
    build = OperatorBuilder(node, ctx)
    p = _exponent(node)
    x = build.natural_operand(node.inputs[0])
    window = read_window(node, x.image, node.ints("kernel_shape")).window
    require_inferred_shape(node, ctx, window)
    total = build.add(Pool("sum", window), natural_image(ctx.shape(node.output)), _power(build, x, p))
    build.finish(_root(build, total, p))


@importer("GlobalAveragePool", since=1)
def import_global_average_pool(node: NodeView, ctx: ImportContext) -> None:
    """Mean over the image."""
    _lower_global(node, ctx, lambda build, seen: reductions.emit_reduction(build, seen, "sum", 1 / seen.reduced_count))


@importer("GlobalMaxPool", since=1)
def import_global_max_pool(node: NodeView, ctx: ImportContext) -> None:
    """Maximum over the image."""
    _lower_global(node, ctx, lambda build, seen: reductions.emit_reduction(build, seen, "max"))


@importer("GlobalLpPool", since=2, limits="p from 1 to 64")
def import_global_lp_pool(node: NodeView, ctx: ImportContext) -> None:
    """(sum of |x| ** p over the image) ** (1 / p)."""
    p = _exponent(node)

    def norm(build: OperatorBuilder, seen: ReductionLayout) -> Tensor:
        return _root(
            build,
            reductions.emit_reduction(build, ReductionLayout(_power(build, seen.tensor, p), seen.reduced), "sum"),
            p,
        )

    _lower_global(node, ctx, norm)


def require_inferred_shape(node: NodeView, ctx: ImportContext, window: Window) -> None:
    """Raises `ImportRefusal` if onnx inferred another output shape than the window has.

    Before operator set 22, onnx infers one output too many with ceil_mode, whose window would start after the image.
    """
    inferred = ctx.shape(node.output)[2:]
    if inferred != window.out_dims:
        raise ImportRefusal(
            f"ceil_mode: the standard infers {inferred} outputs, there are {window.out_dims}; use opset 22"
        )


def _lower_global(
    node: NodeView, ctx: ImportContext, finish: Callable[[OperatorBuilder, ReductionLayout], Tensor]
) -> None:
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    if len(x.shape) < 3:
        raise ImportRefusal("its input has no spatial dimensions")
    build.finish(finish(build, reductions.lay_out_reduction(build, x, range(2, len(x.shape)))))


def _lower_mean(build: OperatorBuilder, x: Tensor, window: Window, counts: Counts) -> None:
    """Emits the mean. `counts`: divisor of each output pixel of one image."""
    shape = build.ctx.shape(build.node.output)
    total = build.add(Pool("sum", window), natural_image(shape), x)
    if not np.all(counts == 1):
        factors = (1 / counts).astype(np.float32)[None, None]
        total = build.map("mul", total, build.constant(factors, shape, total.image))
    build.finish(total)


def _exponent(node: NodeView) -> int:
    """Returns `p` of an LpPool. Raises `ImportRefusal` unless 1 <= p <= 64; p takes p multiplications."""
    p = node.integer("p", 2)
    if not 1 <= p <= MOST_POWERS:
        raise ImportRefusal(f"p is {p}, supported are 1 to {MOST_POWERS}")
    return p


def _power(build: OperatorBuilder, x: Tensor, p: int) -> Tensor:
    """Emits |x| ** p."""
    if p % 2 == 0:
        square = build.map("mul", x, x)
        return functools.reduce(lambda y, _: build.map("mul", y, square), range(p // 2 - 1), square)
    size = build.absolute(x)
    return functools.reduce(lambda y, _: build.map("mul", y, size), range(p - 1), size)


def _root(build: OperatorBuilder, x: Tensor, p: int) -> Tensor:
    """Emits x ** (1 / p), for x >= 0."""
    while p % 2 == 0:
        x, p = build.map("sqrt", x), p // 2
    if p == 1:
        return x
    return build.map("exp", build.map("mul", build.map("log", x), 1 / p))  # of 0, exp(-infinity) is 0


def _taps_inside(window: Window) -> Counts:
    """Returns [outputs...] -> number of taps inside the image. Raises `ImportRefusal` if a window has none."""
    counts = (replace(window, batch=1).input_pixels() >= 0).sum(axis=1)
    if counts.min() == 0:
        raise ImportRefusal("a window lies wholly in the padding")
    return counts.reshape(window.out_dims)


def _taps_in_padded(padded: PaddedWindow) -> Counts:
    """Returns [outputs...] -> number of taps in the image or its padding, without taps that ceil_mode adds beyond."""
    window = padded.window
    dims = tuple(map(sum, zip(window.in_dims, window.pads, padded.end_pads, strict=True)))
    return _taps_inside(replace(window, in_dims=dims, pads=(0,) * len(dims)))
