"""Constants of the float model that a quantised one was made from."""

from typing import Any

import numpy.typing as npt
from onnx import ModelProto, NodeProto, numpy_helper

Array = npt.NDArray[Any]


class Originals:
    """Constants of the float model, by node and position; the names of nodes are the same in both models."""

    def __init__(self, floats: ModelProto) -> None:
        self.constants = {t.name: t for t in floats.graph.initializer}
        self.nodes = {n.name: n for n in floats.graph.node}

    def value(self, reader: NodeProto, position: int) -> Array:
        """Returns the constant that a node of the quantised model reads at a position."""
        return numpy_helper.to_array(self.constants[self.nodes[reader.name].input[position]])
