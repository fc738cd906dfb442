"""Batch, layer, RMS, instance, mean-variance, p-norm and local response normalisation."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from raptor.frontend.formulas import reductions
from raptor.frontend.formulas.builder import OperatorBuilder, read_axis
from raptor.frontend.formulas.reductions import ReductionLayout
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.ir import Floats, Tensor
from raptor.graph.rearrangement import c_order

CONSTANT_LIMIT = "constant scale and bias"
_LEAST_SUM, _LEAST_ROOT = 2.0**-149, 2.0**-75
"""Below any non-zero sum of absolute float32 values, and any non-zero root of a sum of squares."""


@importer("BatchNormalization", since=7, limits="inference; constant statistics")
def import_batch_normalization(node: NodeView, ctx: ImportContext) -> None:
    """One multiplication and addition per channel, unless it was folded into a convolution."""
    if node.integer("training_mode", 0):
        raise ImportRefusal("training_mode must be 0: export the model for inference")
    if not node.integer("spatial", 1):
        raise ImportRefusal("spatial must be 1")
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    gamma, beta, mean, variance = (ctx.read_float32(i).astype(np.float64) for i in node.inputs[1:5])
    scale = gamma / np.sqrt(variance + node.number("epsilon", 1e-5))
    build.finish(_scaled(build, x, x.shape, _column(scale, x), _column(beta - mean * scale, x)))


@importer("LayerNormalization", since=17, limits=CONSTANT_LIMIT, all_outputs=True)
def import_layer_normalization(node: NodeView, ctx: ImportContext) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over all dimensions from the axis on."""
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    seen = reductions.lay_out_reduction(build, x, range(read_axis(node, len(x.shape), -1), len(x.shape)))
    mean = reductions.emit_broadcast_sum(build, seen, 1 / seen.reduced_count)
    centred = _centred(build, seen, mean)
    deviation = _root_mean_square(build, centred, node.number("epsilon", 1e-5))
    _finish_statistics(build, seen, mean, deviation)
    result = _divided(build, centred, deviation)
    build.finish(_scaled(build, result, x.shape, *_scale_and_bias(node, ctx)))


@importer("RMSNormalization", since=23, limits="constant scale")
def import_rms_normalization(node: NodeView, ctx: ImportContext) -> None:
    """x / sqrt(mean of x * x + epsilon) * scale over all dimensions from the axis on."""
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    seen = reductions.lay_out_reduction(build, x, range(read_axis(node, len(x.shape), -1), len(x.shape)))
    deviation = _root_mean_square(build, seen, node.number("epsilon", 1e-5))
    result = _divided(build, seen, deviation)
    build.finish(_scaled(build, result, x.shape, ctx.read_float32(node.inputs[1]), None))


@importer("InstanceNormalization", since=1, limits=CONSTANT_LIMIT)
def import_instance_normalization(node: NodeView, ctx: ImportContext) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the pixels of each channel."""
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    scale, bias = (ctx.read_float32(i) for i in node.inputs[1:3])
    seen = reductions.lay_out_reduction(build, x, range(2, len(x.shape)), grouped=build.has_crossbars(x))
    centred = _centred(build, seen, reductions.emit_broadcast_sum(build, seen, 1 / seen.reduced_count))
    result = _divided(build, centred, _root_mean_square(build, centred, node.number("epsilon", 1e-5)))
    build.finish(_scaled(build, result, x.shape, _column(scale, x), _column(bias, x)))


@importer("MeanVarianceNormalization", since=9)
def import_mean_variance_normalization(node: NodeView, ctx: ImportContext) -> None:
    """(x - mean) / (standard deviation + 1e-9) over axes."""
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    chosen = {a % len(x.shape) for a in node.ints("axes", (0, 2, 3))}
    seen = reductions.lay_out_reduction(build, x, sorted(chosen))
    centred = _centred(build, seen, reductions.emit_broadcast_sum(build, seen, 1 / seen.reduced_count))
    deviation = build.map("add", _root_mean_square(build, centred, 0.0), 1e-9)
    build.finish(_divided(build, centred, deviation))


@importer("LpNormalization", since=1)
def import_lp_normalization(node: NodeView, ctx: ImportContext) -> None:
    """x / (sum of |x| ** p over one axis) ** (1 / p), for p = 1 or 2."""
    build = OperatorBuilder(node, ctx)
    x = ctx.tensor(node.inputs[0])
    seen = reductions.lay_out_reduction(build, x, (read_axis(node, len(x.shape), -1),))
    if node.integer("p", 2) == 1:
        norm, least = (
            reductions.emit_broadcast_sum(build, ReductionLayout(build.absolute(seen.tensor), seen.reduced), 1.0),
            _LEAST_SUM,
        )
    else:
        norm, least = _root_mean_square(build, seen, 0.0, mean=False), _LEAST_ROOT
    norm = build.map("max", norm, least)  # 0 / 0 must give 0, and x / (a sum that underflowed) no large number
    build.finish(_divided(build, seen, norm))


@importer("LRN", since=1)
def import_lrn(node: NodeView, ctx: ImportContext) -> None:
    """x / (bias + alpha / size * sum of x * x over near channels) ** beta; the sum is a product with a band matrix."""
    build = OperatorBuilder(node, ctx)
    x = build.natural_operand(node.inputs[0])
    size = node.integer("size", 1)
    channel = np.arange(x.image.channels)
    distance = channel[:, None] - channel[None, :]
    # An even window has one more channel after than before.
    near = (distance >= -((size - 1) // 2)) & (distance <= size // 2)
    band = near.astype(np.float32) * np.float32(node.number("alpha", 1e-4) / size)
    total = build.map("add", build.multiply_by_matrix(build.map("mul", x, x), band), node.number("bias", 1.0))
    build.finish(build.map("div", x, _power(build, total, node.number("beta", 0.75))))


def _centred(build: OperatorBuilder, seen: ReductionLayout, mean: Tensor) -> ReductionLayout:
    return replace(seen, tensor=build.map("sub", seen.tensor, reductions.broadcast_to_image(build, mean, seen.image)))


def _divided(build: OperatorBuilder, seen: ReductionLayout, divisor: Tensor) -> Tensor:
    return build.map("div", seen.tensor, reductions.broadcast_to_image(build, divisor, seen.image))


def _root_mean_square(build: OperatorBuilder, seen: ReductionLayout, epsilon: float, *, mean: bool = True) -> Tensor:
    """Emits sqrt(mean (or sum) of x * x + epsilon)."""
    squares = replace(seen, tensor=build.map("mul", seen.tensor, seen.tensor))
    result = reductions.emit_broadcast_sum(build, squares, 1 / seen.reduced_count if mean else 1.0)
    return build.map("sqrt", build.map("add", result, epsilon) if epsilon else result)


def _finish_statistics(build: OperatorBuilder, seen: ReductionLayout, mean: Tensor, deviation: Tensor) -> None:
    """Adds the outputs Mean and InvStdDev, if they are used; one of their equal channels is kept."""
    for output, tensor in zip(build.node.outputs[1:], (mean, deviation), strict=False):
        if output not in build.ctx.read_names:
            continue
        result = tensor if tensor is mean else build.map("div", 1.0, tensor)
        if seen.reduces_channels and build.has_crossbars(result):
            result = build.rearrange(c_order(result.image.shape).take([0], result.image.channel_axis), result)
        build.finish(result, output)


def _scale_and_bias(node: NodeView, ctx: ImportContext) -> tuple[Floats, Floats | None]:
    bias = node.input(2)
    return ctx.read_float32(node.inputs[1]), None if bias is None else ctx.read_float32(bias)


def _column(values: npt.ArrayLike, x: Tensor) -> Floats:
    """Returns values per channel in a shape that broadcasts to x."""
    return np.asarray(values, np.float32).reshape(-1, *(1,) * (len(x.shape) - 2))


def _scaled(build: OperatorBuilder, x: Tensor, shape: Sequence[int], scale: Floats, bias: Floats | None) -> Tensor:
    result = build.map("mul", x, build.constant(scale, tuple(shape), x.image))
    if bias is None:
        return result
    return build.map("add", result, build.constant(bias, tuple(shape), x.image))


def _power(build: OperatorBuilder, x: Tensor, exponent: float) -> Tensor:
    """Emits x ** exponent for x > 0, by square roots if the exponent is 1/4, 1/2, 3/4 or 1."""
    quarters = exponent * 4
    if quarters not in (1, 2, 3, 4):
        return build.map("exp", build.map("mul", build.map("log", x), exponent))
    if quarters == 4:
        return x
    root = build.map("sqrt", x)
    if quarters == 2:
        return root
    fourth = build.map("sqrt", root)
    return fourth if quarters == 1 else build.map("mul", root, fourth)
