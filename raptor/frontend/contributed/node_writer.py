"""Builds the standard ONNX nodes that replace one operator of onnxruntime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper, numpy_helper

from raptor.frontend.control_flow.inline_subgraphs import UniqueNames
from raptor.frontend.proto.nodes import Array, NodeView

_SPLIT_INPUT, _REDUCE_INPUT = 13, 18
"""First versions in which Split and Unsqueeze, and the reductions, take their sizes and axes as inputs."""


class CannotExpandError(Exception):
    """Raised for an operator in a form without an expansion; the text says which form."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownTensors:
    """Shapes and element types of tensors that are known before an expansion."""

    dims: Mapping[str, tuple[int | str, ...]]
    types: Mapping[str, int]


@dataclass(slots=True, eq=False)
class ExpansionWriter:
    """Collects the nodes that replace `view`. `version`: operator set of the model."""

    view: NodeView
    version: int
    names: UniqueNames
    known: "KnownTensors"
    weights: Mapping[str, TensorProto]
    nodes: list[NodeProto] = field(default_factory=list[NodeProto])
    constants: list[TensorProto] = field(default_factory=list[TensorProto])

    def add(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Adds a node with one output, and returns the name of the output."""
        return self.add_many(op_type, inputs, 1, **attributes)[0]

    def add_many(self, op_type: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """Adds a node with several outputs, and returns their names."""
        stem = f"{self.view.outputs[0]}.{op_type.lower()}"
        names = [self.names.unique_tensor(stem) for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(op_type, list(inputs), names, name=self.names.unique_node(stem), **attributes)
        )
        return names

    def finish(self, value: str, output: int = 0) -> None:
        """Makes a tensor the output of the replaced operator, if the model uses that output."""
        name = self.view.outputs[output] if output < len(self.view.outputs) else ""
        if not name:
            return
        maker = next((n for n in self.nodes if value in n.output), None)
        if maker is None or value in self.view.outputs:
            self.nodes.append(helper.make_node("Identity", [value], [name], name=self.names.unique_node(name)))
            return
        for node in self.nodes:
            node.input[:] = [name if x == value else x for x in node.input]
            node.output[:] = [name if x == value else x for x in node.output]

    def constant(self, values: npt.ArrayLike) -> str:
        """Adds a constant, and returns its name."""
        name = self.names.unique_tensor(f"{self.view.outputs[0]}.constant")
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def integers(self, *values: int) -> str:
        """Adds a constant of int64, [values], and returns its name."""
        return self.constant(np.array(values, np.int64))

    def number(self, value: float) -> str:
        """Adds a scalar constant of float32, and returns its name."""
        return self.constant(np.float32(value))

    def reshape(self, x: str, *sizes: int) -> str:
        """Adds a Reshape; 0 keeps a size, -1 is what remains."""
        return self.add("Reshape", [x, self.integers(*sizes)])

    def unsqueeze(self, x: str, axis: int) -> str:
        """Adds an Unsqueeze."""
        if self.version < _SPLIT_INPUT:
            return self.add("Unsqueeze", [x], axes=[axis])
        return self.add("Unsqueeze", [x, self.integers(axis)])

    def split(self, x: str, axis: int, sizes: Sequence[int]) -> list[str]:
        """Adds a Split into parts of the given sizes."""
        if self.version < _SPLIT_INPUT:
            return self.add_many("Split", [x], len(sizes), axis=axis, split=list(sizes))
        return self.add_many("Split", [x, self.integers(*sizes)], len(sizes), axis=axis)

    def mean(self, x: str, axes: int = 1) -> str:
        """Adds the mean over the last `axes` axes, which stay with size 1."""
        last = range(-axes, 0)
        if self.version < _REDUCE_INPUT:
            return self.add("ReduceMean", [x], axes=[*last], keepdims=1)
        return self.add("ReduceMean", [x, self.integers(*last)], keepdims=1)

    def slice(self, x: str, begin: int, end: int, axis: int, step: int = 1) -> str:
        """Adds a Slice along one axis."""
        return self.add("Slice", [x, *(self.integers(n) for n in (begin, end, axis, step))])

    def size(self, x: str, axis: int) -> str:
        """Adds nodes for the size of an axis, an int64 scalar."""
        return self.add("Gather", [self.add("Shape", [x]), self.constant(np.int64(axis))], axis=0)

    def rank(self, x: str) -> int:
        """Returns the rank of an input. Raises `CannotExpandError` if it is not known."""
        return len(self.shape(x))

    def shape(self, x: str) -> tuple[int | str, ...]:
        """Returns the sizes of an input, and names of open ones. Raises `CannotExpandError` if the rank is unknown."""
        if x in self.weights:
            return tuple(self.weights[x].dims)
        if x not in self.known.dims:
            raise CannotExpandError(f"the rank of its input {x} is not known")
        return self.known.dims[x]

    def weight(self, position: int, what: str) -> Array:
        """Returns the value of an input that must be a constant. Raises `CannotExpandError` if it is not."""
        name = self.view.input(position)
        if name is None or name not in self.weights:
            raise CannotExpandError(f"its {what} must be constant")
        return numpy_helper.to_array(self.weights[name])

    def refuse_inputs(self, names: Mapping[int, str]) -> None:
        """Raises `CannotExpandError` if one of these inputs is given. `names`: by position."""
        for position, name in names.items():
            if self.view.input(position):
                raise CannotExpandError(f"its input {name} is not supported")

    def refuse_outputs(self, first: int, *, without: int | None = None) -> None:
        """Raises `CannotExpandError` if an output from number `first` on is used, other than number `without`."""
        for k, name in enumerate(self.view.outputs):
            if name and k >= first and k != without:
                raise CannotExpandError(f"its output {name} is not supported")
