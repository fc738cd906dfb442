"""Makes ONNX nodes and constants, written as the operator version of a model wants them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from raptor.frontend.control_flow.inline_subgraphs import UniqueNames

AXES_ARE_INPUTS = 13
"""First version of the standard operators in which Squeeze, Unsqueeze and Split read their numbers as inputs."""


@dataclass(frozen=True, slots=True)
class NodeMaker:
    """Makes nodes for a model, whose new tensors have names that the model does not use.

    version: the model's version of the standard operators. constants: all constants of the model, by name; those that
    are made here are added.
    """

    names: UniqueNames
    version: int
    constants: dict[str, TensorProto]

    def add_constant(self, value: int | bool | Sequence[int], stem: str) -> str:
        """Adds a constant, of 64-bit integers or of one truth value; returns its name."""
        name = self.names.unique_tensor(stem)
        dtype = np.bool_ if isinstance(value, bool) else np.int64
        self.constants[name] = numpy_helper.from_array(np.array(value, dtype), name)
        return name

    def make_unsqueeze(self, name: str, axis: int, output: str) -> NodeProto:
        """Returns the node that inserts an axis of length 1."""
        if self.version < AXES_ARE_INPUTS:
            return helper.make_node("Unsqueeze", [name], [output], axes=[axis])
        return helper.make_node("Unsqueeze", [name, self.add_constant([axis], f"{output}.axes")], [output])

    def make_split(self, name: str, lengths: Sequence[int], axis: int, outputs: Sequence[str]) -> NodeProto:
        """Returns the node that cuts a tensor into parts of these lengths along an axis."""
        if self.version < AXES_ARE_INPUTS:
            return helper.make_node("Split", [name], outputs, axis=axis, split=lengths)
        return helper.make_node(
            "Split", [name, self.add_constant(lengths, f"{outputs[0]}.lengths")], outputs, axis=axis
        )

    def make_stack(self, parts: Sequence[str], axis: int, output: str) -> list[NodeProto]:
        """Returns nodes that concatenate tensors along a new axis."""
        longer = [self.names.unique_tensor(f"{output}.turn") for _ in parts]
        nodes = [self.make_unsqueeze(part, axis, name) for part, name in zip(parts, longer, strict=True)]
        return [*nodes, helper.make_node("Concat", longer, [output], axis=axis)]
