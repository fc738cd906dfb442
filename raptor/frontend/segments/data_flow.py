"""Data flow between the nodes of an ONNX graph, reads inside subgraphs included."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnx import GraphProto, NodeProto

from raptor.frontend.proto.read_model import subgraphs

_SHARED = frozenset(("Constant", "DequantizeLinear", "QuantizeLinear", "Cast", "Reshape", "Transpose", "Identity"))
"""Operators that are copied into every segment that reads them, if they depend on constants only."""


def find_outer_reads(node: NodeProto) -> Iterator[str]:
    """Yields the tensors of the enclosing graph that a node reads, including reads in its subgraphs."""
    yield from (name for name in node.input if name)
    for body in subgraphs(node):
        yield from _outer(body)


def _outer(body: GraphProto) -> Iterator[str]:
    own = {v.name for v in body.input} | {t.name for t in body.initializer}
    own |= {o for node in body.node for o in node.output}
    yield from (v.name for v in body.output if v.name not in own)
    yield from (name for node in body.node for name in find_outer_reads(node) if name not in own)


@dataclass(frozen=True, slots=True, eq=False)
class DataFlow:
    """Nodes by index, in topological order, and the tensors between them.

    reads: non-constant tensors that each node reads. makers: tensor -> node that computes it. readers: tensor -> nodes
    that read it. shared: nodes that depend on constants only, copied into each segment that reads them. dead: nodes
    that no output needs.
    """

    nodes: Sequence[NodeProto]
    reads: tuple[tuple[str, ...], ...]
    producers: dict[str, int]
    readers: dict[str, list[int]]
    shared: frozenset[int]
    dead: frozenset[int]

    @property
    def placed_nodes(self) -> list[int]:
        """Nodes that belong to exactly one segment."""
        return [i for i in range(len(self.nodes)) if i not in self.shared and i not in self.dead]

    def predecessors(self, node: int) -> list[int]:
        """Returns the nodes whose results a node reads, without shared ones."""
        makers = (self.producers[name] for name in self.reads[node] if name in self.producers)
        return [i for i in dict.fromkeys(makers) if i not in self.shared]


def analyse_flow(graph: GraphProto) -> DataFlow:
    """Returns the data flow of a canonical graph."""
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    outputs = {v.name for v in graph.output}
    found = [tuple(dict.fromkeys(n for n in find_outer_reads(node) if n not in constants)) for node in graph.node]
    makers = {o: i for i, node in enumerate(graph.node) for o in node.output if o}
    shared: set[int] = set()
    for i, node in enumerate(graph.node):
        if (
            node.op_type in _SHARED
            and outputs.isdisjoint(node.output)
            and all(makers.get(n) in shared for n in found[i])
        ):
            shared.add(i)
    dead = frozenset(_dead(graph, found, makers, outputs))
    readers: defaultdict[str, list[int]] = defaultdict(list)
    for i, names in enumerate(found):
        for name in names if i not in dead else ():
            readers[name].append(i)
    return DataFlow(graph.node, tuple(found), makers, dict(readers), frozenset(shared), dead)


def _dead(
    graph: GraphProto, found: Sequence[Sequence[str]], makers: dict[str, int], outputs: set[str]
) -> Iterator[int]:
    needed = {makers[name] for name in outputs if name in makers}
    for i in reversed(range(len(graph.node))):
        if i in needed:
            needed.update(makers[name] for name in found[i] if name in makers)
        else:
            yield i
