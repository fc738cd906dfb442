"""Float constants from which the constants of a quantised model were made."""

from typing import Any

import numpy.typing as npt
from onnx import ModelProto, NodeProto, numpy_helper

Array = npt.NDArray[Any]


class FloatConstants:
    """Constants of the float model, keyed by node and input position. Nodes have the same names in both models."""

    def __init__(self, floats: ModelProto) -> None:
        self.constants = {t.name: t for t in floats.graph.initializer}
        self.nodes = {n.name: n for n in floats.graph.node}

    def read_value(self, reader: NodeProto, position: int) -> Array:
        """Returns the float constant that a node of the quantised model reads at an input position."""
        return numpy_helper.to_array(self.constants[self.nodes[reader.name].input[position]])
