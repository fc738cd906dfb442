"""Convolutions and transposed convolutions of any rank and number of groups."""

import numpy as np
import numpy.typing as npt

from raptor.frontend.constant_pixels import natural_image
from raptor.frontend.formulas.builder import OperatorBuilder
from raptor.frontend.formulas.node_windows import read_window, spatial_dims
from raptor.frontend.import_context import ImportContext
from raptor.frontend.import_refusal import ImportRefusal
from raptor.frontend.operators.operand_checks import require_bias
from raptor.frontend.proto.nodes import NodeView
from raptor.frontend.registry import importer
from raptor.graph.constant_arrays import copy_contiguous
from raptor.graph.ir import Filter, Floats, Tensor
from raptor.graph.window import Window

Sizes = npt.NDArray[np.int64]


@importer("Conv", since=1, limits="constant weights")
def import_conv(node: NodeView, ctx: ImportContext) -> None:
    """Convolution of any rank, with groups, strides, pads, dilations and auto_pad."""
    build = OperatorBuilder(node, ctx)
    weights = ctx.read_float32(node.inputs[1])
    x = build.natural_operand(node.inputs[0])
    window = read_window(node, x.image, weights.shape[2:]).window
    outs, ins = weights.shape[:2]
    taps = copy_contiguous(weights.reshape(outs, ins, -1).transpose(2, 1, 0))
    _lower(build, x, Filter(taps, window, node.integer("group", 1)))


@importer("ConvTranspose", since=1, limits="constant weights")
def import_conv_transpose(node: NodeView, ctx: ImportContext) -> None:
    """Transposed convolution of any rank, with groups, strides, dilations, output_padding and all padding modes."""
    build = OperatorBuilder(node, ctx)
    weights = ctx.read_float32(node.inputs[1])
    x = build.natural_operand(node.inputs[0])
    window = _transposed_window(node, x, weights.shape[2:])
    if window.out_dims != ctx.shape(node.output)[2:]:
        # The standard's shape inference and onnxruntime differ for output_padding with auto_pad SAME, and for outputs
        # smaller than the input.
        raise ImportRefusal(f"the standard infers {ctx.shape(node.output)[2:]} outputs, there are {window.out_dims}")
    groups = node.integer("group", 1)
    # ONNX: [input channels, output channels / groups, kernel...]
    ins, outs = x.image.channels // groups, weights.shape[1]
    taps = weights.reshape(groups, ins, outs, -1).transpose(3, 1, 0, 2).reshape(-1, ins, groups * outs)
    _lower(build, x, Filter(copy_contiguous(taps), window, groups))


def _lower(build: OperatorBuilder, x: Tensor, products: Filter) -> None:
    node, ctx = build.node, build.ctx
    bias = node.input(2)
    shape = ctx.shape(node.output)
    result = build.add(products, natural_image(shape), x)
    addend: Floats | None = None if bias is None else ctx.read_float32(bias)
    if addend is not None:
        require_bias(node, addend.shape, shape)
        if addend.any():
            column = addend.reshape(-1, *(1,) * len(products.window.kernel))
            result = build.map("add", result, build.constant(column, shape, result.image))
    build.finish(result)


def _transposed_window(node: NodeView, x: Tensor, kernel: tuple[int, ...]) -> Window:
    dims = spatial_dims(x.image)
    if not dims:
        raise ImportRefusal("its input has no spatial dimensions")
    ones = (1,) * len(dims)
    strides, dilations = node.ints("strides", ones), node.ints("dilations", ones)
    extra = node.ints("output_padding", (0,) * len(dims))
    sizes = zip(dims, strides, kernel, dilations, extra, strict=True)
    whole = np.array([(n - 1) * s + (k - 1) * d + 1 + e for n, s, k, d, e in sizes])
    begins, outs = _cut(node, whole, np.array([n * s for n, s in zip(dims, strides, strict=True)]))
    return Window(dims, _ints(outs), kernel, strides, _ints(begins), dilations, x.image.shape[0], transposed=True)


def _cut(node: NodeView, whole: Sizes, same: Sizes) -> tuple[Sizes, Sizes]:
    """Returns the sizes cut off before the `whole` result, and the remaining sizes. `same`: sizes of auto_pad SAME."""
    mode = node.string("auto_pad", "NOTSET")
    given = node.ints("output_shape")
    if given or mode.startswith("SAME"):
        outs = np.array(given[-len(whole) :]) if given else same
        total = np.maximum(whole - outs, 0)
        return (total // 2 if mode == "SAME_UPPER" else total - total // 2), outs
    if mode == "VALID":
        return np.zeros_like(whole), whole
    pads = np.array(node.ints("pads", (0,) * 2 * len(whole))).reshape(2, -1)
    return pads[0], whole - pads.sum(axis=0)


def _ints(values: Sizes) -> tuple[int, ...]:
    return tuple(map(int, values))
