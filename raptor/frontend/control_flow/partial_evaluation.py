"""Partial evaluation of small values that constants and shapes determine: conditions, loop counts."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from raptor.frontend.operator_sets import RANDOM_OPS, STANDARD_DOMAINS
from raptor.frontend.proto.model_checks import FLOAT_TYPES
from raptor.frontend.proto.onnx_wrappers import infer_shapes, run_constant_model
from raptor.frontend.proto.read_model import INLINE_BYTES, subgraphs

Array = npt.NDArray[Any]
MOST_ELEMENTS = 2**16
"""Maximum number of elements of any tensor that is evaluated."""


class UndecidedError(Exception):
    """Raised if constants and shapes do not determine a value. The message names what it depends on."""


class PartialEvaluator:
    """The resolved part of a graph, with a memo of known values and shapes of its tensors.

    decided: tensors that were evaluated to determine some value.
    """

    def __init__(self, proto: ModelProto) -> None:
        self.nodes: list[NodeProto] = []
        self.constants = {t.name: t for t in proto.graph.initializer}
        self._model = proto
        self._inputs = {v.name: v for v in proto.graph.input if v.name not in self.constants}
        self._at: dict[str, int] = {}
        self.evaluated: set[str] = set()
        self._values: dict[str, Array] = {}
        self._typed: dict[str, ValueInfoProto] = {}

    def add(self, node: NodeProto) -> None:
        """Adds a node to the graph."""
        self._at.update((name, len(self.nodes)) for name in node.output if name)
        self.nodes.append(node)

    def drop_nodes_from(self, count: int) -> None:
        """Removes all nodes from number `count` on."""
        for name in (o for node in self.nodes[count:] for o in node.output):
            for known in (self._at, self._values, self._typed):
                known.pop(name, None)
        del self.nodes[count:]

    def evaluate(self, name: str) -> Array:
        """Returns the value of a tensor. Raises `UndecidedError` if it depends on inputs, weights or large tensors."""
        if name not in self._values:
            nodes, leaves = self._slice(name)
            self._values[name] = self._compute(name, nodes, leaves)
        return self._values[name]

    def static_shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor. Raises `UndecidedError` if it does not follow from the input shapes."""
        if name in self.constants:
            return tuple(self.constants[name].dims)
        if name in self._inputs:
            return _static(self._inputs[name])
        if name not in self._typed:
            self._infer(name)
        if name not in self._typed:
            raise UndecidedError(f"the shape of '{name}'")
        return _static(self._typed[name])

    def static_length(self, name: str, axis: int) -> int:
        """Returns the length of an axis of a tensor. Raises `UndecidedError` if shapes do not tell it."""
        dims = self.static_shape(name)
        if not -len(dims) <= axis < len(dims):
            raise UndecidedError("an axis that is none of its input")
        return dims[axis]

    def _slice(self, name: str) -> tuple[list[NodeProto], list[TensorProto]]:
        waiting, places, leaves = [name], set[int](), dict[str, TensorProto]()
        while waiting:
            name = waiting.pop()
            if name in leaves or self._at.get(name) in places:
                continue
            if name in self._values or self._is_of_a_shape(name):
                leaves[name] = numpy_helper.from_array(self._values[name], name)
            elif name in self.constants:
                leaves[name] = self._small(name)
            else:
                places.add(self._place(name))
                self.evaluated.add(name)
                waiting += [i for i in self.nodes[self._at[name]].input if i]
        return [self.nodes[i] for i in sorted(places)], list(leaves.values())

    def _small(self, name: str) -> TensorProto:
        tensor = self.constants[name]
        if tensor.data_location == TensorProto.EXTERNAL or tensor.ByteSize() > MOST_ELEMENTS:
            raise UndecidedError(f"the weights '{name}'")
        return tensor

    def _place(self, name: str) -> int:
        if name in self._inputs:
            raise UndecidedError(f"the input '{name}'")
        if name not in self._at:
            raise UndecidedError(f"'{name}'")
        node = self.nodes[self._at[name]]
        if node.op_type in RANDOM_OPS or any(True for _ in subgraphs(node)):
            raise UndecidedError(f"'{name}', which {node.op_type} makes")
        return self._at[name]

    def _is_of_a_shape(self, name: str) -> bool:
        """Checks whether a Shape or Size computes the tensor; if so, stores its value."""
        node = self.nodes[self._at[name]] if name in self._at else NodeProto()
        if node.op_type not in ("Shape", "Size") or node.domain not in STANDARD_DOMAINS or not node.input:
            return False
        dims = np.array(self.static_shape(node.input[0]), np.int64)
        ends = {a.name: a.i for a in node.attribute}
        self.evaluated.add(name)
        part = dims[ends.get("start", 0) : ends.get("end", len(dims))]
        self._values[name] = part if node.op_type == "Shape" else np.array(dims.prod(), np.int64)
        return True

    def _compute(self, name: str, nodes: Sequence[NodeProto], leaves: Sequence[TensorProto]) -> Array:
        known = next((t for t in leaves if t.name == name), None)
        if known is not None:
            return numpy_helper.to_array(known)
        model = self._part(nodes, (), leaves, name)
        try:
            shapes = {v.name: v for v in _values_of(infer_shapes(model))}
            for node in nodes:
                outputs = [o for o in node.output if o]
                if not all(o in shapes and _is_static(shapes[o]) for o in outputs) and self._know_operands(node):
                    return self._compute(name, *self._slice(name))
                for output in outputs:
                    if output not in shapes or np.prod(_static(shapes[output]), dtype=float) > MOST_ELEMENTS:
                        raise UndecidedError(f"'{output}', whose size is not known, or large")
            return np.asarray(run_constant_model(model))
        except UndecidedError:
            raise
        except Exception as error:  # onnx and onnxruntime raise a dozen types that have only Exception in common
            raise UndecidedError(f"'{name}', which cannot be computed") from error

    def _know_operands(self, node: NodeProto) -> bool:
        """Evaluates the operands of a node whose size depends on their values, as a Tile's; False if all were known."""
        unknown = [name for name in node.input if name and name not in self._values and name not in self.constants]
        for name in unknown:
            self.evaluate(name)
        return bool(unknown)

    def _infer(self, name: str) -> None:
        """Infers shapes, starting from the nearest float tensors whose shapes are known."""
        waiting, places, leaves, inputs = [name], set[int](), dict[str, TensorProto](), dict[str, ValueInfoProto]()
        while waiting:
            at = waiting.pop()
            if at in self._typed or at in self._inputs:
                inputs[at] = self._typed.get(at) or self._inputs[at]
            elif at in self.constants:
                leaves[at] = self.constants[at]
            elif at in self._at and self._at[at] not in places:
                places.add(self._at[at])
                waiting += [i for i in self.nodes[self._at[at]].input if i]
        inputs |= {n: _declared(t) for n, t in leaves.items() if t.ByteSize() > INLINE_BYTES}
        small = [t for n, t in leaves.items() if n not in inputs]
        model = self._part([self.nodes[i] for i in sorted(places)], list(inputs.values()), small, name)
        try:
            found = list(_values_of(infer_shapes(model)))
        except Exception as error:  # as above
            raise UndecidedError(f"the shape of '{name}'") from error
        for value in found:
            if _is_static(value) and (value.type.tensor_type.elem_type in FLOAT_TYPES or value.name == name):
                self._typed[value.name] = value

    def _part(
        self,
        nodes: Sequence[NodeProto],
        inputs: Sequence[ValueInfoProto],
        constants: Sequence[TensorProto],
        output: str,
    ) -> ModelProto:
        graph = helper.make_graph(nodes, "part", inputs, [ValueInfoProto(name=output)], constants)
        whole = self._model
        return helper.make_model(
            graph, opset_imports=whole.opset_import, functions=whole.functions, ir_version=whole.ir_version
        )


def _values_of(proto: ModelProto) -> Iterator[ValueInfoProto]:
    yield from (*proto.graph.value_info, *proto.graph.output)


def _declared(tensor: TensorProto) -> ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def _is_static(value: ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    return kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)


def _static(value: ValueInfoProto) -> tuple[int, ...]:
    if not _is_static(value):
        raise UndecidedError(f"the shape of '{value.name}'")
    return tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
