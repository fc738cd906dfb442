"""Computes functions of a sum over channels on one element, where the image is one pixel.

A norm divides each channel by a root of the same sum. The sum, the root and all between have the same value in every
channel of a token, so one element is enough. It is repeated where other channels are computed with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from raptor.graph.ir import ChannelSum, Constant, Graph, Map, Move, Node, Operator, Rename, Tensor, unused_name
from raptor.graph.layers import graph_tile_channels
from raptor.target.arch import Target
from raptor.target.tensor_layout import Image


def narrow_sums(graph: Graph, arch: Target) -> Graph:
    """Returns the graph in which what follows from sums over the channels of one pixel has one channel.

    Sums without such functions stay, as do those of several pixels, which are laid out as lines, and those of several
    tiles: each core with a tile repeats the sum itself.
    """
    narrow = _find_narrow(graph, graph_tile_channels(graph, arch))
    if not narrow:
        return graph
    writer = _NarrowWriter(graph, narrow, dict(graph.tensors))
    nodes = tuple(made for node in graph.nodes for made in writer.nodes(node))
    return replace(graph, nodes=nodes, tensors=writer.tensors)


def _find_narrow(graph: Graph, tile: int) -> set[str]:
    """Returns the tensors that get one channel: sums over a tile, and functions of these; no sum without any."""
    kept, narrow, used = {*graph.outputs, *graph.residency.state_outputs}, set[str](), set[str]()
    for node in graph.nodes:
        image, operator = graph.tensors[node.output].image, node.operator
        if image.pixels > 1 or not 1 < image.channels <= tile or node.output in kept:
            continue
        if isinstance(operator, ChannelSum):
            narrow.add(node.output)
        elif _follows(operator) and node.inputs and narrow.issuperset(node.inputs):
            narrow.add(node.output)
            used.update(node.inputs)
    makers = {node.output: node.operator for node in graph.nodes}
    return {name for name in narrow if name in used or not isinstance(makers[name], ChannelSum)}


def _follows(operator: Operator) -> bool:
    """Checks whether the channels of the result of an operator are equal if those of its operands are."""
    if not isinstance(operator, Map):
        return isinstance(operator, Rename)
    constants = [operand.pixels for operand in operator.operands if isinstance(operand, Constant)]
    return all(bool((pixels == pixels.flat[0]).all()) for pixels in constants)


@dataclass(slots=True)
class _NarrowWriter:
    """Writes the nodes of the new graph. `narrow`: tensors that get one channel. `wide`: those repeated so far."""

    graph: Graph
    narrow: set[str]
    tensors: dict[str, Tensor]
    wide: dict[str, str] = field(default_factory=dict[str, str])

    def nodes(self, node: Node) -> Iterator[Node]:
        """Yields the new node, after those that repeat its operands."""
        if node.output in self.narrow:
            found = self.tensors[node.output]
            self.tensors[node.output] = replace(found, shape=(1, 1, 1), image=Image((1, 1, 1), 2), in_model=False)
            operator = node.operator
            if isinstance(operator, Map):
                given = tuple(
                    Constant(o.pixels[:1, :1, :1]) if isinstance(o, Constant) else o for o in operator.operands
                )
                node = replace(node, operator=replace(operator, operands=given))
            yield node
            return
        for name in dict.fromkeys(node.inputs):
            if name in self.narrow and name not in self.wide:
                self.wide[name] = unused_name(f"{name}.repeated", self.tensors)
                before = self.graph.tensors[name]
                self.tensors[self.wide[name]] = replace(before, name=self.wide[name], in_model=False)
                sources = np.zeros((1, before.image.channels), np.int64)
                yield Node(node.name, node.op_type, Move(sources), (name,), self.wide[name])
        yield replace(node, inputs=tuple(self.wide.get(name, name) for name in node.inputs))
