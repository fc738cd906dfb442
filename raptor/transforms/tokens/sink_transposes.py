"""Sinks transpositions of operands of products below element-wise functions, which are then computed on the tokens.

PyTorch writes the attention of a query on keys as (a q) (a k)^T, with the factor after the transposition of the keys. A
transposition of tokens is a view, of which only the elements exist that are read. A function of a view is a tensor of
its own, which would have to be complete first. So the function is computed on the tokens, and the view reads its
results. The keys may also be channels of an image, as in CoAtNet. Of one head, they are a rename of the tokens.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from raptor.graph.ir import Constant, Dot, Graph, Indices, Map, Move, Node, Rename, Tensor
from raptor.graph.streaming_layout import can_stream, drop_unused_moves, is_token_layout, move_in_place
from raptor.target.tensor_layout import Image


def sink_transposes(graph: Graph) -> Graph:
    """Returns the graph with functions of moved tokens computed before the move, where only products read the result.

    The results are the same to the bit.
    """
    early = dict(_late_maps(graph))
    if not early:
        return graph
    tensors, nodes = dict(graph.tensors), list[Node]()
    for node in graph.nodes:
        nodes += _swapped(node, early[node.output], tensors) if node.output in early else (node,)
    return drop_unused_moves(replace(graph, nodes=tuple(nodes), tensors=tensors))


def _late_maps(graph: Graph) -> Iterator[tuple[str, Node]]:
    """Yields (result, move or rename) for each function of one operand that a move or a rename makes from tokens.

    Only products read the result, directly or after a rename.
    """
    made = {node.output: node for node in graph.nodes}
    others = {name for node in graph.nodes if not isinstance(node.operator, Dot | Rename) for name in node.inputs}
    renamed = {name: node.output for node in graph.nodes if isinstance(node.operator, Rename) for name in node.inputs}
    others.update(graph.outputs)
    multiplied = {name for node in graph.nodes if isinstance(node.operator, Dot) for name in node.inputs}
    for node in graph.nodes:
        if not _is_uniform(node) or node.output in others:
            continue
        if node.output not in multiplied and renamed.get(node.output) not in multiplied - others:
            continue
        move = made.get(node.inputs[0])
        if move is not None and isinstance(move.operator, Move | Rename) and _turns(move, graph):
            yield node.output, move


def _turns(move: Node, graph: Graph) -> bool:
    """Checks whether a move makes a tensor that cannot stream from tokens, or from some channels of an image."""
    given, made = [graph.tensors[n].image for n in move.inputs], graph.tensors[move.output].image
    if all(map(is_token_layout, given)):
        return not is_token_layout(made)
    if not isinstance(move.operator, Move) or len(given) > 1 or not can_stream(given[0]) or can_stream(made):
        return False
    return _taken(move.operator.sources, given[0]) is not None


def _is_uniform(node: Node) -> bool:
    """Checks whether a node computes the same function of one operand for each element."""
    if not isinstance(node.operator, Map) or len(node.inputs) != 1:
        return False
    return all(o.pixels.size == 1 for o in node.operator.operands if isinstance(o, Constant))


def _taken(sources: Indices, given: Image) -> Indices | None:
    """Returns the channels that a move takes, if it takes the same channels of each pixel, each once; else None."""
    elements = sources.reshape(-1)
    if elements.size == 0 or elements.min() < 0:
        return None
    taken = np.zeros(given.elements, bool)
    taken[elements] = True
    channels = np.flatnonzero(taken[: given.channels])
    same = (taken.reshape(given.pixels, given.channels) == taken[: given.channels]).all()
    return channels if same and elements.size == len(channels) * given.pixels else None


def _swapped(node: Node, move: Node, tensors: dict[str, Tensor]) -> Iterator[Node]:
    """Yields the nodes that compute a function before a move: the tokens that are moved, their function, the move.

    If the move takes the same channels of all tokens, the function is computed on these channels. Otherwise it is
    computed on the pixels of the moved tensor.
    """
    given = tensors[move.inputs[0]].image
    moved = move.operator if isinstance(move.operator, Move) else move_in_place(given)
    sources = moved.sources
    channels = _taken(sources, given) if len(move.inputs) == 1 else None
    if channels is None:
        image, taken, place = Image((1, *sources.shape), 2), sources, np.arange(sources.size).reshape(sources.shape)
    else:
        axis = given.channel_axis
        image = Image((*given.shape[:axis], len(channels), *given.shape[axis + 1 :]), axis)
        taken = np.arange(given.pixels)[:, None] * given.channels + channels
        pixel, channel = np.divmod(sources, given.channels)
        place = pixel * len(channels) + np.searchsorted(channels, channel)
    element, early, names = tensors[node.output].element, f"{node.output}.early", move.inputs
    alike = replace(tensors[names[0]], shape=image.shape, image=image, in_model=False)
    if channels is None or len(channels) < given.channels:
        yield Node(move.name, move.op_type, Move(taken), names, part := f"{node.output}.taken")
        tensors[part], names = replace(alike, name=part), (part,)
    yield replace(node, inputs=names, output=early)
    tensors[early] = replace(alike, name=early, element=element)
    yield Node(move.name, move.op_type, Move(place), (early,), node.output)
