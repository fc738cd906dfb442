"""Sinks transpositions of operands of products below element-wise functions, which are then computed on the tokens.

PyTorch writes the attention of a query on keys as (a q) (a k)^T, with the factor after the transposition of the keys. A
transposition of tokens is a view, of which only the elements exist that are read. A function of a view is a tensor of
its own, which would have to be complete first. So the function is computed on the tokens, and the view reads its
results. The keys may also be channels of an image, as in CoAtNet. Of one head, they are a rename of the tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from raptor.graph.ir import Bound, Constant, Dot, Graph, Indices, Lookup, Map, Move, Node, Rename, Tensor, unused_name
from raptor.graph.rearrangement import through_move
from raptor.graph.streaming_layout import can_stream, drop_unused_moves, is_token_layout, move_in_place
from raptor.target.tensor_layout import Image


def sink_transposes(graph: Graph) -> Graph:
    """Returns the graph with functions of moved tokens computed before the move, where only products read the result.

    Of several functions in a row, such as those of quantised keys, each is. The results are the same to the bit.
    """
    while early := dict(_late_functions(graph)):
        tensors, nodes = dict(graph.tensors), list[Node]()
        for node in graph.nodes:
            nodes += _function_before_move(node, *early[node.output], tensors) if node.output in early else (node,)
        made = {node.output: node for node in nodes if node.output in early}
        graph = drop_unused_moves(replace(graph, nodes=tuple(_join_moves(n, made) for n in nodes), tensors=tensors))
    return graph


def _join_moves(node: Node, made: Mapping[str, Node]) -> Node:
    """Joins a move with the move that makes its operand, if that is in `made`; returns other nodes as they are."""
    before = made.get(node.inputs[0]) if len(node.inputs) == 1 else None
    if before is None or not isinstance(node.operator, Move) or not isinstance(before.operator, Move):
        return node
    return replace(node, inputs=before.inputs, operator=_composed(node.operator, before.operator))


def _composed(move: Move, before: Move) -> Move:
    """Returns the move that makes in one step what a move makes of the result of another one."""
    return Move(through_move(before.sources, move.sources))


def _late_functions(graph: Graph) -> Iterator[tuple[str, tuple[Node, Move]]]:
    """Yields each function of moved tokens: (name of its result, (node and operator of the move before it)).

    Only products read the result, directly, or after moves, renames and more functions.
    """
    made, multiplied = {node.output: node for node in graph.nodes}, _only_multiplied(graph)
    for node in graph.nodes:
        if node.output not in multiplied or not _is_uniform(node):
            continue
        moved = _find_turning_move(node.inputs[0], graph, made)
        if moved is not None:
            yield node.output, moved


def _only_multiplied(graph: Graph) -> set[str]:
    """Returns the tensors that only products read, or moves, renames and functions of which that is true as well."""
    others, found = set(graph.outputs), set[str]()
    for node in reversed(graph.nodes):
        passes = _is_uniform(node) or (isinstance(node.operator, Move | Rename) and len(node.inputs) == 1)
        if isinstance(node.operator, Dot) or (passes and node.output in found - others):
            found.update(node.inputs)
        else:
            others.update(node.inputs)
    return found - others


def _find_turning_move(name: str, graph: Graph, made: Mapping[str, Node]) -> tuple[Node, Move] | None:
    """Returns the moves and renames between tokens and a tensor that cannot stream, as one node and its operator.

    The node reads the tokens, or an image of which some channels are moved. None for other tensors. `made`: the node
    that makes each tensor.
    """
    node = made.get(name)
    if node is None or not isinstance(node.operator, Move | Rename):
        return None
    given = [graph.tensors[n].image for n in node.inputs]
    move = node.operator if isinstance(node.operator, Move) else move_in_place(given[0])
    if _turns(move, given, graph.tensors[name].image):
        return node, move
    before = _find_turning_move(node.inputs[0], graph, made) if len(given) == 1 else None
    if before is None:
        return None
    return replace(node, inputs=before[0].inputs), _composed(move, before[1])


def _turns(move: Move, given: Sequence[Image], image: Image) -> bool:
    """Checks whether a move makes a tensor that cannot stream of tokens, or of some channels of an image."""
    if all(map(is_token_layout, given)):
        return not is_token_layout(image)
    if len(given) > 1 or not can_stream(given[0]) or can_stream(image):
        return False
    return _taken(move.sources, given[0]) is not None


def _is_uniform(node: Node) -> bool:
    """Checks whether a node computes the same function of one operand for each element."""
    if not isinstance(node.operator, Bound | Lookup | Map) or len(node.inputs) != 1:
        return False
    constants = node.operator.operands if isinstance(node.operator, Map) else ()
    return all(o.pixels.size == 1 for o in constants if isinstance(o, Constant))


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


def _function_before_move(node: Node, move: Node, moved: Move, tensors: dict[str, Tensor]) -> Iterator[Node]:
    """Yields the nodes that compute a function before a move: the tokens that are moved, their function, the move.

    If the move takes the same channels of all tokens, the function is computed on these channels. Otherwise it is
    computed on the pixels of the moved tensor.
    """
    given = tensors[move.inputs[0]].image
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
    early, names = unused_name(f"{node.output}.early", tensors), move.inputs
    alike = replace(tensors[names[0]], shape=image.shape, image=image, in_model=False)
    if channels is None or len(channels) < given.channels:
        yield Node(move.name, move.op_type, Move(taken), names, part := unused_name(f"{node.output}.taken", tensors))
        tensors[part], names = replace(alike, name=part), (part,)
    yield replace(node, inputs=names, output=early)
    tensors[early] = replace(tensors[node.output], name=early, shape=image.shape, image=image, in_model=False)
    yield Node(move.name, move.op_type, Move(place), (early,), node.output)
