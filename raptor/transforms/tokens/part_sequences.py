"""Parts sequences whose operators need tokens of different lengths, where a reshape lies between them.

A reshape of [1, 49, 16, 24] to [1, 49, 384] moves nothing, so both have one layout. But layers and norms of the first
need tokens of 24 channels, those of the second tokens of 384: where patches are merged, or have pixels of their own.
As a move, the reshape has a layout on each side.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from raptor.common.union_find import DisjointSets
from raptor.graph.ir import Elementwise, Filter, Graph, Node, Pool, Rename, Softmax
from raptor.graph.layers import is_pointwise
from raptor.graph.streaming_layout import move_in_place
from raptor.transforms.tokens.token_layouts import is_channels_last, puts_together


def part_sequences(graph: Graph) -> Graph:
    """Returns the graph with a move for each reshape between tokens of different lengths."""
    alike = DisjointSets()
    for node in graph.nodes:
        if isinstance(node.operator, Elementwise | Softmax):
            for name in node.inputs:
                if graph.tensors[name].image == graph.tensors[node.output].image:
                    alike.union(node.output, name)
    lengths = defaultdict[str, set[int]](set)
    for node in graph.nodes:
        for name, channels in _token_lengths(graph, node):
            lengths[alike.find(name)].add(channels)
    nodes: list[Node] = []
    for node in graph.nodes:
        if isinstance(node.operator, Rename):
            sides = [lengths[alike.find(name)] for name in (node.inputs[0], node.output)]
            if all(sides) and sides[0] != sides[1]:
                node = replace(node, operator=move_in_place(graph.tensors[node.output].image))
            else:
                alike.union(node.output, node.inputs[0])
                lengths[alike.find(node.output)] = sides[0] | sides[1]
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _token_lengths(graph: Graph, node: Node) -> Iterator[tuple[str, int]]:
    """Yields (tensor, channels of a token) where an operator fixes these: a layer, or a sum over channels."""
    match node.operator:
        case Filter(window=window) if is_pointwise(window):
            names = (*node.inputs, node.output)
            images = {name: graph.tensors[name].image for name in names}
            yield from ((n, image.channels) for n, image in images.items() if is_channels_last(image))
        case Pool(function="sum"):
            given, made = (graph.tensors[name].image for name in (node.inputs[0], node.output))
            channels = given.elements // made.elements
            if channels > 1 and puts_together(graph, node, np.arange(made.elements * channels).reshape(-1, channels)):
                yield node.inputs[0], channels
        case _:
            pass
