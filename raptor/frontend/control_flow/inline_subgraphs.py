"""Inlines subgraphs (branches of If, bodies of loops) into the enclosing graph."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from raptor.frontend.operator_sets import STANDARD_DOMAINS
from raptor.frontend.proto.read_model import subgraphs, walk_graphs

_NUMBERS: Mapping[str, npt.DTypeLike] = MappingProxyType(
    {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
)
"""Attributes of Constant that are not tensors -> type of the value."""


class UniqueNames:
    """Names of tensors and nodes in use; makes new unique names."""

    def __init__(self, graph: GraphProto) -> None:
        self._tensors = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        self._tensors |= {name for node in graph.node for name in node.output}
        self._nodes = {node.name for node in graph.node}
        self._copies: dict[str, int] = {}

    def unique_tensor(self, name: str) -> str:
        """Returns `name`, or `name.2`, `name.3`, ... if a tensor has that name."""
        return self._fresh(name, self._tensors)

    def unique_node(self, name: str) -> str:
        """Returns a free node name, as `tensor` does; '' stays ''."""
        return self._fresh(name, self._nodes) if name else ""

    def _fresh(self, name: str, taken: set[str]) -> str:
        found = name
        while found in taken:
            self._copies[name] = self._copies.get(name, 1) + 1
            found = f"{name}.{self._copies[name]}"
        taken.add(found)
        return found


def hoist_constants(graph: GraphProto, names: UniqueNames) -> list[TensorProto]:
    """Moves constants out of all subgraphs, so that unrolling does not copy them; returns them."""
    # Innermost first: hoisting replaces the nodes of a graph by copies, and with them their subgraphs.
    inner_first = list(walk_graphs(graph))[:0:-1]
    return [tensor for inner in inner_first for tensor in _hoisted(inner, names)]


def _hoisted(graph: GraphProto, names: UniqueNames) -> Iterator[TensorProto]:
    found = {t.name: t for t in graph.initializer}
    found |= {n.output[0]: t for n in graph.node if n.output and (t := read_constant(n)) is not None}
    outputs = {v.name for v in graph.output}
    nodes = [n for n in graph.node if not (n.output and n.output[0] in found)]
    renamed: dict[str, str] = {}
    for name, tensor in found.items():
        hoisted = TensorProto()
        hoisted.CopyFrom(tensor)
        # An output must be computed in the graph itself.
        hoisted.name = names.unique_tensor(f"{name}.constant" if name in outputs else name)
        yield hoisted
        if name in outputs:
            nodes.insert(0, helper.make_node("Identity", [hoisted.name], [name]))
        if hoisted.name != name:
            renamed[name] = hoisted.name
    del graph.initializer[:]
    replace_nodes(graph, nodes)
    for node in graph.node:
        rename_reads(node, {k: v for k, v in renamed.items() if k not in outputs})


def read_constant(node: NodeProto) -> TensorProto | None:
    """Returns the value of a Constant; None for another node, or a value of another kind."""
    if node.op_type != "Constant" or node.domain not in STANDARD_DOMAINS or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value" and attribute.HasField("t"):
        return attribute.t
    if attribute.name in _NUMBERS:
        value = np.asarray(helper.get_attribute_value(attribute), _NUMBERS[attribute.name])
        return numpy_helper.from_array(value)
    return None


def rename_reads(node: NodeProto, names: Mapping[str, str]) -> None:
    """Renames the tensors that a node reads, in place, in its subgraphs too."""
    for position, name in enumerate(node.input):
        if name in names:
            node.input[position] = names[name]
    for graph in subgraphs(node):
        own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        own |= {name for inner in graph.node for name in inner.output}
        others = {k: v for k, v in names.items() if k not in own}
        for inner in graph.node:
            rename_reads(inner, others)


def inline_body(
    body: GraphProto, inputs: Mapping[str, str], names: UniqueNames, wanted: Sequence[str] = ()
) -> tuple[list[NodeProto], list[str]]:
    """Returns copies of the nodes of a body with its inputs replaced by `inputs`, and the names of its outputs.

    wanted: names for the first outputs; an empty name means any.
    """
    made = {name for node in body.node for name in node.output if name}
    renamed = dict(inputs)
    outputs = [v.name for v in body.output]
    for own, name in zip(outputs, wanted, strict=False):
        if name and own in made and own not in renamed:
            renamed[own] = name
    for name in (o for node in body.node for o in node.output if o and o not in renamed):
        renamed[name] = names.unique_tensor(name)
    nodes = [_copy(node, renamed, names) for node in body.node]
    found = [renamed.get(own, own) for own in outputs]
    for position, name in enumerate(wanted):
        if name and found[position] != name:
            nodes.append(helper.make_node("Identity", [found[position]], [name]))
    return nodes, [*(w or f for w, f in zip(wanted, found, strict=False)), *found[len(wanted) :]]


def _copy(node: NodeProto, renamed: Mapping[str, str], names: UniqueNames) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.name = names.unique_node(node.name)
    rename_reads(copy, renamed)
    for position, name in enumerate(node.output):
        copy.output[position] = renamed.get(name, name)
    return copy


def replace_nodes(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    """Replaces the nodes of a graph; the new nodes may include old ones."""
    kept = list(nodes)
    del graph.node[:]
    graph.node.extend(kept)
