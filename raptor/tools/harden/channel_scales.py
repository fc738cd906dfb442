"""Scales of channels that leave the function of a model unchanged: which channels must share one, and which have none.

A layer with weights takes any positive scale of an input channel out of its weights, and puts any scale of an output
channel into them. Between two layers, a scale passes through operators that are positively homogeneous and keep
channels apart (Relu, MaxPool). The operands of an Add share a scale. Every other operator, the inputs and the outputs
of the model need the scale 1 (Meller et al., "Same, Same But Different", ICML 2019; Nagel et al., ICCV 2019).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto

from raptor.frontend.proto.nodes import read_attributes
from raptor.tools.harden.weight_layers import Floats, LayerConstants, WeightLayer, find_weight_layers

Indices = npt.NDArray[np.int64]
_HOMOGENEOUS = {
    *("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    *("Identity", "Dropout", "Abs", "Neg"),
}
_FIXED = 0
"""Number of the scale that is 1."""


@dataclass(frozen=True, slots=True, eq=False)
class ScaledLayer:
    """A layer, and the numbers of its scales: of input channels by group [groups, channels], of output channels."""

    layer: WeightLayer
    inputs: Indices
    outputs: Indices

    def input_scales(self, scales: Floats) -> Floats:
        """Returns the scale of each weight's input, [outputs, input channels of a group]."""
        return np.repeat(scales[self.inputs], len(self.outputs) // len(self.inputs), axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class ChannelScales:
    """The layers of a model with their scales. `count`: number of scales; number 0 is always 1.

    `added`: constants [channels] that are added to a tensor, with the scales of its channels.
    """

    layers: tuple[ScaledLayer, ...]
    added: Mapping[str, Indices]
    count: int

    def apply_scales(self, constants: LayerConstants, scales: Floats) -> None:
        """Multiplies the weights of outputs and divides those of inputs, so that tensors are multiplied by `scales`."""
        for found in self.layers:
            layer = found.layer
            values = constants.read_value(layer.weight)
            arranged = layer.arrange(values).astype(np.float64)
            arranged *= scales[found.outputs][:, None, None] / found.input_scales(scales)[:, :, None]
            constants.write_value(layer.weight, layer.restore(arranged, values.shape))
            if layer.bias is not None:
                constants.write_value(layer.bias, constants.read_value(layer.bias) * scales[found.outputs])
        for name, numbers in self.added.items():
            values = constants.read_value(name)
            constants.write_value(name, values * scales[numbers].reshape(values.shape))


def find_channel_scales(constants: LayerConstants) -> ChannelScales:
    """Returns the scales that may differ from 1. A tensor without a known shape is fixed, as are its neighbours."""
    search = _ScaleSearch(constants)
    for node in constants.model.graph.node:
        search.visit(node)
    for value in (*constants.model.graph.input, *constants.model.graph.output):
        search.fix(value.name)
    return search.finish()


class _ScaleSearch:
    """Union-find over the channels of all tensors. The number of a set is that of its root."""

    def __init__(self, constants: LayerConstants) -> None:
        self.constants = constants
        self.shapes = _shapes(constants.model)
        self.layers = {layer.name: layer for layer in find_weight_layers(constants)}
        self.parents = [_FIXED]
        self.numbers: dict[str, Indices] = {}
        self.added: dict[str, Indices] = {}

    def visit(self, node: NodeProto) -> None:
        """Joins or fixes the channels of the inputs and outputs of a node."""
        first = [self.channels(name) for name in (*node.input[:1], *node.output[:1])]
        layer = self.layers.get(node.name)
        if layer is not None and all(len(x) for x in first) and self._fits(layer):
            return
        if len(node.output) == 1 and all(len(x) for x in first):
            if node.op_type in _HOMOGENEOUS or (node.op_type == "PRelu" and node.input[1] in self.constants):
                return self.join(*first)
            if node.op_type in ("Flatten", "Reshape") and self._flattens(node):
                return self.join(np.repeat(first[0], len(first[1]) // len(first[0])), first[1])
            if node.op_type == "Concat" and read_attributes(node)["axis"] == 1:
                return self.join(np.concatenate([self.channels(name) for name in node.input]), first[1])
            if node.op_type == "Add" and self._joins_sum(node):
                return None
        for name in (*node.input, *node.output):
            self.fix(name)
        return None

    def _fits(self, layer: WeightLayer) -> bool:
        """True if the channels of a layer's input and output are those of its weights."""
        outputs, inputs, _ = layer.arrange(self.constants.read_value(layer.weight)).shape
        found = [len(self.channels(name)) for name in (layer.node.input[0], layer.node.output[0])]
        is_flat = layer.node.op_type == "Conv" or len(self.shapes[layer.node.input[0]]) == 2
        return is_flat and found == [inputs * layer.groups, outputs]

    def _flattens(self, node: NodeProto) -> bool:
        """True if the output is [batch, channels * rest], so that each channel is a run of columns."""
        before, after = (self.shapes[name] for name in (node.input[0], node.output[0]))
        return len(after) == 2 and after[0] == before[0]

    def _joins_sum(self, node: NodeProto) -> bool:
        """Joins two tensors of one shape, or notes a constant with a number for each channel. Returns False if none."""
        constant = [name for name in node.input if name in self.constants]
        tensors = [name for name in node.input if name not in self.constants]
        result = self.channels(node.output[0])
        if len(tensors) == 2 and self.shapes.get(tensors[0]) == self.shapes.get(tensors[1]):
            for name in tensors:
                self.join(self.channels(name), result)
            return True
        rank = len(self.shapes[node.output[0]])
        per_channel = [((len(result),) + (1,) * (rank - 2)), ((1, len(result)) + (1,) * (rank - 2))]
        if len(constant) == 1:
            shape = self.constants.read_value(constant[0]).shape
            if shape in per_channel and self.shapes.get(tensors[0]) == self.shapes[node.output[0]]:
                self.join(self.channels(tensors[0]), result)
                self.added[constant[0]] = result
                return True
        return False

    def channels(self, name: str) -> Indices:
        """Returns the numbers of the channels (axis 1) of a tensor; empty if its shape is unknown or has no axis 1."""
        if name not in self.numbers:
            shape = self.shapes.get(name, ())
            count = shape[1] if len(shape) >= 2 and name not in self.constants else 0
            self.numbers[name] = np.arange(len(self.parents), len(self.parents) + count)
            self.parents.extend(range(len(self.parents), len(self.parents) + count))
        return self.numbers[name]

    def fix(self, name: str) -> None:
        self.join(self.channels(name), np.full(len(self.channels(name)), _FIXED))

    def join(self, first: Indices, second: Indices) -> None:
        """Joins channels pairwise; the smaller root stays, so that the scale 1 stays number 0."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            low, high = sorted((self.root(a), self.root(b)))
            self.parents[high] = low

    def root(self, number: int) -> int:
        while self.parents[number] != number:
            self.parents[number] = self.parents[self.parents[number]]
            number = self.parents[number]
        return number

    def finish(self) -> ChannelScales:
        roots = [self.root(number) for number in range(len(self.parents))]
        kept, numbers = np.unique(roots, return_inverse=True)
        layers: list[ScaledLayer] = []
        for node in self.constants.model.graph.node:
            layer = self.layers.get(node.name)
            if layer is None:
                continue
            inputs, outputs = (numbers[self.channels(name)] for name in (node.input[0], node.output[0]))
            if len(inputs) and len(outputs) and self._fits(layer):
                layers.append(ScaledLayer(layer, inputs.reshape(layer.groups, -1), outputs))
        return ChannelScales(tuple(layers), {k: numbers[v] for k, v in self.added.items()}, len(kept))


def _shapes(model: ModelProto) -> dict[str, Sequence[int]]:
    """Returns the shapes of tensors whose sizes are all known."""
    found: dict[str, Sequence[int]] = {}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kind = value.type.tensor_type
        sizes = tuple(d.dim_value for d in kind.shape.dim)
        if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
            found[value.name] = sizes
    return found
