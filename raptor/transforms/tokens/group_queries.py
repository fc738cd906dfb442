"""Products with repeated matrices of a state become products of more rows with each matrix once.

Decoders with grouped heads repeat keys and values for all heads of a group. A repeated cache would be moved and stored
for each head. Rows of one batch after another are the rows of a larger batch, so only names of the operands change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from raptor.graph.ir import Dot, Graph, Indices, Move, Node, Rename, Tensor, unused_name
from raptor.graph.streaming_layout import drop_unused_moves
from raptor.target.tensor_layout import Image


def group_queries(graph: Graph) -> Graph:
    """Returns the graph whose products with states read them as they are, if each of their matrices is repeated."""
    nodes, tensors, makers = list[Node](), dict(graph.tensors), {node.output: node for node in graph.nodes}
    states = set(graph.residency.state_outputs)
    for node in graph.nodes:
        found = _find_state(graph, node, makers, states)
        nodes += [node] if found is None else _grouped(graph, node, found, tensors)
    if len(nodes) == len(graph.nodes):
        return graph
    return drop_unused_moves(replace(graph, nodes=tuple(nodes), tensors=tensors))


@dataclass(frozen=True, slots=True, eq=False)
class _Repeated:
    """A state of which a product repeats each matrix `times` times. sources: of the elements of each matrix once."""

    state: str
    times: int
    sources: Indices


def _find_state(graph: Graph, node: Node, makers: Mapping[str, Node], states: set[str]) -> _Repeated | None:
    """Returns the state that the second operand of a product repeats; None for other nodes."""
    if not isinstance(node.operator, Dot):
        return None
    name = node.inputs[1]
    sources = np.arange(graph.tensors[name].image.elements)
    while name not in states:
        maker = makers.get(name)
        if maker is None or len(maker.inputs) != 1 or not isinstance(maker.operator, Move | Rename):
            return None
        if isinstance(maker.operator, Move):
            sources = np.where(sources < 0, -1, maker.operator.sources.reshape(-1)[sources])
        name = maker.inputs[0]
    matrices = sources.reshape(node.operator.batch, -1)
    firsts = np.flatnonzero(np.append(True, (np.diff(matrices, axis=0) != 0).any(axis=1)))
    times, rest = divmod(len(matrices), len(firsts))
    if times == 1 or rest or not np.array_equal(firsts, np.arange(0, len(matrices), times)):
        return None
    return _Repeated(name, times, matrices[firsts].reshape(-1, graph.tensors[node.inputs[1]].image.channels))


def _grouped(graph: Graph, node: Node, found: _Repeated, tensors: dict[str, Tensor]) -> list[Node]:
    """Returns the product of more rows, with the names of its operands and of its result. Adds their tensors."""
    operator, left, result = node.operator, graph.tensors[node.inputs[0]], graph.tensors[node.output]
    assert isinstance(operator, Dot), "only products are grouped"
    groups, rows = operator.batch // found.times, operator.rows * found.times
    grouped = Dot(groups, rows, operator.cols)

    def named(given: Tensor, end: str, pixels: int = rows) -> str:
        channels, name = given.image.channels, unused_name(f"{node.output}.{end}", tensors)
        first = given.image.channel_axis == 1
        shape = (groups, channels, pixels) if first else (groups, pixels, channels)
        tensors[name] = replace(given, name=name, shape=shape, image=Image(shape, 1 if first else 2), in_model=False)
        return name

    before, after = named(left, "grouped"), named(result, "by_group")
    once = named(graph.tensors[node.inputs[1]], "once", operator.cols)
    return [
        Node(node.name, node.op_type, Move(found.sources), (found.state,), once),
        Node(node.name, node.op_type, Rename(), (left.name,), before),
        Node(node.name, node.op_type, grouped, (before, once), after),
        Node(node.name, node.op_type, Rename(), (after,), node.output),
    ]
