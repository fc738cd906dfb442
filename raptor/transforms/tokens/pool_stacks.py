"""Pools over stacked tensors, as element-wise functions of these.

`torch.stack([a, b, c], -1).max(-1)` is a rearrangement of three tensors into groups of three elements, and a pool over
each group. The largest of three tensors, element by element, needs no rearrangement.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from raptor.graph.ir import Graph, Indices, Map, Move, Node, Pool, Rename, unused_name
from raptor.graph.streaming_layout import drop_unused_moves
from raptor.graph.window import cached_input_pixels


def pool_stacks(graph: Graph) -> Graph:
    """Returns the graph whose pools over stacked tensors are element-wise functions of the tensors."""
    makers = {node.output: node for node in graph.nodes}
    stacks = {node.output: found for node in graph.nodes if (found := _find_stack(graph, node, makers)) is not None}
    if not stacks:
        return graph
    tensors, nodes = dict(graph.tensors), list[Node]()
    for node in graph.nodes:
        if node.output not in stacks:
            nodes.append(node)
            continue
        stack, sofar = stacks[node.output], stacks[node.output].names[0]
        for number, name in enumerate(stack.names[1:], 1):
            result = unused_name(f"{node.output}.of{number + 1}", tensors)
            tensors[result] = replace(graph.tensors[name], name=result, in_model=False)
            function = Map("max" if stack.largest else "add", (0, 1))
            nodes.append(Node(node.name, node.op_type, function, (sofar, name), result))
            sofar = result
        nodes.append(Node(node.name, node.op_type, Move(stack.sources), (sofar,), node.output))
    return drop_unused_moves(replace(graph, tensors=tensors, nodes=tuple(nodes)))


@dataclass(frozen=True, slots=True, eq=False)
class _Stack:
    """Tensors of one layout of which a pool takes one element each. sources: the elements, for each of the result."""

    names: tuple[str, ...]
    sources: Indices
    largest: bool


def _find_stack(graph: Graph, node: Node, makers: Mapping[str, Node]) -> _Stack | None:
    """Returns the tensors that a pool puts together element by element; None for other nodes."""
    if not isinstance(node.operator, Pool):
        return None
    move = makers.get(node.inputs[0])
    while move is not None and isinstance(move.operator, Rename):
        move = makers.get(move.inputs[0])
    if move is None or not isinstance(move.operator, Move) or len({*move.inputs}) < node.operator.window.tap_count:
        return None
    images = [graph.tensors[name].image for name in move.inputs]
    alike = all(image == images[0] for image in images) and graph.tensors[node.output].element.kind == "float"
    pixels = cached_input_pixels(node.operator.window)
    if not alike or pixels.min() < 0:
        return None
    sources = move.operator.sources[pixels.T]
    number, element = np.divmod(sources, images[0].elements)
    constant = (number == number[:, :1, :1]).all() and sources.min() >= 0
    if not constant or any(not np.array_equal(a, b) for a, b in pairwise(element)):
        return None
    names = tuple(move.inputs[int(n)] for n in number[:, 0, 0])
    return _Stack(names, element[0], node.operator.function == "max")
