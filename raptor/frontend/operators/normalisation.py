"""Normalisations."""

import numpy as np

from raptor.frontend.constants import per_channel
from raptor.frontend.graph import Constant, Map, Softmax, Tensor
from raptor.frontend.importing import ImportContext
from raptor.frontend.nodes import NodeView
from raptor.frontend.operators.shared import is_channel_axis, require_natural
from raptor.frontend.registry import Refusal, importer


@importer("BatchNormalization", since=7, limits="inference; constant statistics")
def import_batch_normalization(node: NodeView, ctx: ImportContext) -> None:
    """A multiplication and an addition per channel, unless the optimiser has folded it into a convolution."""
    if node.integer("training_mode", 0) or not node.integer("spatial", 1):
        raise Refusal("training_mode 1 and spatial 0 are not supported")
    x = require_natural(ctx.tensor(node.inputs[0]))
    gamma, beta, mean, variance = (ctx.weights(i).astype(np.float64) for i in node.inputs[1:5])
    scale = gamma / np.sqrt(variance + node.number("epsilon", 1e-5))
    steps = (Map("mul", (0, Constant(per_channel(scale)))), Map("add", (0, Constant(per_channel(beta - mean * scale)))))
    ctx.lower(node, (x.name,), x.image, *steps)


@importer("Softmax", since=1, limits="over the channels")
def import_softmax(node: NodeView, ctx: ImportContext) -> None:
    """Softmax of old: over all dimensions from the axis on, of which one may be larger than 1."""
    x = ctx.tensor(node.inputs[0])
    axis = node.integer("axis", 1) % len(x.shape)
    if any(n != 1 for n in x.shape[axis + 1 :]):
        raise Refusal(f"before opset 13 it spans all dimensions from {axis} on; only the channels are supported")
    _lower_softmax(node, ctx, x, axis)


@importer("Softmax", since=13, limits="over the channels")
def import_softmax_of_axis(node: NodeView, ctx: ImportContext) -> None:
    """Softmax over one axis."""
    x = ctx.tensor(node.inputs[0])
    _lower_softmax(node, ctx, x, node.integer("axis", -1) % len(x.shape))


def _lower_softmax(node: NodeView, ctx: ImportContext, x: Tensor, axis: int) -> None:
    if not is_channel_axis(x, axis):
        raise Refusal(f"axis {axis} of {x.shape} is not the channel axis")
    ctx.emit(node, (x.name,), x.image, Softmax())
