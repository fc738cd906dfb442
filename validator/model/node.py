"""Nodes of an ONNX model: the tensors that they read and write, and their attributes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import AttributeProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Opsets = Sequence[OperatorSetIdProto]


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Returns the attributes of a node as Python values, keyed by name."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


@dataclass(frozen=True, slots=True, eq=False)
class ModelNode:
    """A node with the names of the tensors that it needs and computes, in the model's order without empty ones.

    `reads` contains its inputs, then the outer tensors that graphs inside of it read.
    """

    proto: NodeProto
    opsets: Opsets
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the node for messages: its own, or that of its first result."""
        return self.proto.name or self.writes[0]

    @property
    def where(self) -> str:
        """Name and operator of the node, for messages."""
        return f"node {self.name!r} ({self.proto.op_type})"

    @property
    def attributes(self) -> dict[str, Any]:
        return attributes_of(self.proto)

    @property
    def opset(self) -> int:
        """Version of ONNX's operators."""
        return next((o.version for o in self.opsets if o.domain in ("", "ai.onnx")), 1)


def nodes_of(protos: Sequence[NodeProto], opsets: Opsets) -> list[ModelNode]:
    return [ModelNode(p, opsets, _reads(p), tuple(filter(None, p.output))) for p in protos]


def _reads(proto: NodeProto) -> tuple[str, ...]:
    inner = (name for a in proto.attribute if a.type == AttributeProto.GRAPH for name in _captured(a.g))
    return tuple(dict.fromkeys([*filter(None, proto.input), *inner]))


def _captured(graph: GraphProto) -> Iterator[str]:
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own |= {name for n in graph.node for name in n.output}
    yield from (name for n in graph.node for name in _reads(n) if name not in own)
    yield from (v.name for v in graph.output if v.name not in own)


def constants_of(nodes: Sequence[NodeProto], initializers: Sequence[TensorProto] = ()) -> dict[str, Array]:
    """Returns initializers and the numbers of Constant nodes, keyed by name, in their own types."""
    found = {t.name: numpy_helper.to_array(t) for t in initializers}
    values = ((node.output[0], _numbers(a)) for node in nodes if node.op_type == "Constant" for a in node.attribute)
    return found | {name: array for name, array in values if array is not None}


def _numbers(attribute: AttributeProto) -> Array | None:
    match attribute.name:
        case "value":
            return numpy_helper.to_array(attribute.t)
        case "value_float" | "value_floats":
            return np.asarray(helper.get_attribute_value(attribute), np.float32)
        case "value_int" | "value_ints":
            return np.asarray(helper.get_attribute_value(attribute), np.int64)
        case _:
            return None
