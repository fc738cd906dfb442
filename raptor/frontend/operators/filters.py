"""Products with constant matrices."""

import numpy as np

from raptor.frontend.constants import constant_pixels, natural_image, owned
from raptor.frontend.graph import Constant, Filter, Floats, Map, Tensor
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import NodeView
from raptor.frontend.operators.shared import require_natural
from raptor.frontend.registry import Refusal, importer
from raptor.frontend.windows import padded_window
from raptor.layout import Image
from raptor.window import Window


@importer("Conv", since=1, limits="constant weights; group 1")
def import_conv(node: NodeView, ctx: ImportContext) -> None:
    """Convolution of any rank, with strides, pads, dilations and auto_pad."""
    x = require_natural(ctx.tensor(node.inputs[0]))
    group = node.integer("group", 1)
    if group != 1:
        raise Refusal(f"group is {group}; grouped and depthwise convolutions are not supported")
    weights = ctx.weights(node.inputs[1])
    window = padded_window(node, x.image, weights.shape[2:]).window
    outs, ins = weights.shape[:2]
    taps = owned(weights.reshape(outs, ins, -1).transpose(2, 1, 0))
    bias = node.input(2)
    addend = None if bias is None else ctx.weights(bias).reshape(-1, *(1,) * len(window.kernel))
    _lower(node, ctx, x, Filter(taps, window), addend)


@importer("Gemm", since=7, limits="constant B and C; transA 0")
def import_gemm(node: NodeView, ctx: ImportContext) -> None:
    """Fully connected layer: alpha * A * B + beta * C."""
    if node.integer("transA", 0):
        raise Refusal("transA is 1: the input would have to be transposed")
    x = ctx.tensor(node.inputs[0])
    matrix = ctx.weights(node.inputs[1])
    matrix = matrix.T if node.integer("transB", 0) else matrix
    bias = node.input(2)
    addend = None if bias is None else _scaled(ctx.weights(bias), node.number("beta", 1.0))
    _lower_matrix(node, ctx, x, _scaled(matrix, node.number("alpha", 1.0)), addend)


@importer("MatMul", since=1, limits="constant right operand of rank 2; left operand of rank 2")
def import_matmul(node: NodeView, ctx: ImportContext) -> None:
    """Fully connected layer without bias."""
    x = ctx.tensor(node.inputs[0])
    matrix = ctx.weights(node.inputs[1])
    if len(x.shape) != 2 or matrix.ndim != 2:
        raise Refusal(f"ranks are {len(x.shape)} and {matrix.ndim}, both must be 2")
    _lower_matrix(node, ctx, x, matrix, None)


def _scaled(values: Floats, factor: float) -> Floats:
    # Without a factor no copy: the matrix of a fully connected layer can be most of the model.
    return values if factor == 1 else values * np.float32(factor)


def _lower_matrix(node: NodeView, ctx: ImportContext, x: Tensor, matrix: Floats, bias: Floats | None) -> None:
    """y (N, F) = x (N, K) * matrix (K, F): a convolution whose kernel covers the image (thesis, appendix B).

    If x is a flattened image (N, C, spatial...), row c * pixels + p of the matrix belongs to channel c at tap p.
    """
    batch, image = x.shape[0], x.image
    if (batch, image.channel_axis) == (image.shape[0], 1) and len(image.shape) > 2:
        dims = image.shape[2:]
        ones = (1,) * len(dims)
        window = Window(dims, ones, dims, ones, (0,) * len(dims), ones, batch)
    elif image == natural_image(x.shape):
        window = Window.point((batch,))
    else:
        raise Refusal(f"its input was reshaped from {image.shape} to {x.shape}, which mixes pixels of several images")
    taps = matrix.reshape(image.channels, window.tap_count, -1).swapaxes(0, 1)
    _lower(node, ctx, x, Filter(owned(taps), window), bias)


def _lower(node: NodeView, ctx: ImportContext, x: Tensor, products: Filter, bias: Floats | None) -> None:
    """The filter, and the addition of the bias unless it is zero."""
    shape = ctx.shape(node.output)
    image = natural_image(shape)
    ctx.lower(node, (x.name,), image, products, *_bias_map(bias, shape, image))


def _bias_map(bias: Floats | None, shape: tuple[int, ...], image: Image) -> tuple[Map, ...]:
    if bias is None or not bias.any():
        return ()
    return (Map("add", (0, Constant(constant_pixels(bias, shape, image)))),)
