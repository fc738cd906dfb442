"""Layers with constant weights in a prepared float model, and their weights as [outputs, input channels, positions]."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from raptor.frontend.proto.nodes import read_attributes

Floats = npt.NDArray[Any]
_LAYERS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True, eq=False)
class WeightLayer:
    """A Conv, a Gemm or a MatMul whose weights are constant.

    `weight`, `bias`: names of the constants; `bias` may be None. `groups`: groups of channels of a Conv, otherwise 1.
    `transposed`: the constant is [inputs, outputs], not [outputs, inputs].
    """

    node: NodeProto
    weight: str
    bias: str | None
    groups: int
    transposed: bool

    @property
    def name(self) -> str:
        return self.node.name

    def arrange(self, values: Floats) -> Floats:
        """Returns the weights as a view [outputs, input channels of a group, positions of the kernel]."""
        matrix = values.T if self.transposed else values
        return matrix.reshape(*matrix.shape[:2], -1)

    def restore(self, arranged: Floats, shape: tuple[int, ...]) -> Floats:
        """Returns arranged weights in the shape of the constant."""
        return np.ascontiguousarray(arranged[:, :, 0].T if self.transposed else arranged.reshape(shape))

    def is_on_crossbars(self, values: Floats) -> bool:
        """True unless the layer is a depthwise convolution, which vector units compute, without errors of cells."""
        return self.groups == 1 or self.arrange(values).shape[1] > 1


class LayerConstants:
    """The constants of a model by name. Each input of a node gets a constant of its own.

    (onnxruntime's preparation joins equal constants, such as biases that are all 0.)
    """

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self._tensors: dict[str, TensorProto] = {t.name: t for t in model.graph.initializer}
        seen: set[str] = set()
        for node in model.graph.node:
            for position, name in enumerate(node.input):
                if name in self._tensors and name in seen:
                    node.input[position] = self._copy(name, f"{node.name}.{position}")
                seen.add(name)

    def _copy(self, name: str, wanted: str) -> str:
        """Adds a copy of a constant; returns its name, which is `wanted` or, if that is taken, a longer one."""
        taken = {*self._tensors, *(name for node in self.model.graph.node for name in node.output)}
        while wanted in taken:
            wanted += "_"
        tensor = self.model.graph.initializer.add()
        tensor.CopyFrom(self._tensors[name])
        tensor.name = wanted
        self._tensors[wanted] = tensor
        return wanted

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def read_value(self, name: str) -> Floats:
        return numpy_helper.to_array(self._tensors[name])

    def write_value(self, name: str, values: Floats) -> None:
        """Replaces the values of a constant; the type stays."""
        kept = self._tensors[name]
        dtype = numpy_helper.to_array(kept).dtype
        kept.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values, dtype), name))


def find_weight_layers(constants: LayerConstants) -> Iterator[WeightLayer]:
    """Yields the layers of a model that have constant weights and biases, in the order of the model."""
    for node in constants.model.graph.node:
        if node.op_type not in _LAYERS or node.input[1] not in constants:
            continue
        attributes = read_attributes(node)
        bias = node.input[2] if len(node.input) > 2 and node.input[2] else None
        rank = constants.read_value(node.input[1]).ndim
        plain = attributes.get("alpha", 1.0) == 1 and attributes.get("beta", 1.0) == 1 and not attributes.get("transA")
        if (bias is not None and bias not in constants) or not plain or (node.op_type == "MatMul" and rank != 2):
            continue
        transposed = node.op_type == "MatMul" or (node.op_type == "Gemm" and not attributes.get("transB"))
        yield WeightLayer(node, node.input[1], bias, attributes.get("group", 1), transposed)
