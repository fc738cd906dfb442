"""Rewrites pools over groups of n neighbouring tokens as element-wise functions of n tensors, one for each neighbour.

The largest of 8 neighbours of each of 64 points is a pool over 512 tokens. Its result has a line of 64 pixels, but no
layout of tokens if it is an output of the model: one core would receive all tokens. As a function of 8 tensors, each of
one neighbour of all points, it runs on the cores that have the tokens.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from raptor.graph.ir import Graph, Map, Move, Node, Pool, Rename, Tensor, unused_name
from raptor.graph.streaming_layout import can_stream, is_token_layout
from raptor.graph.window import cached_input_pixels
from raptor.target.tensor_layout import Image

MOST_NEIGHBOURS = 16
"""Largest number of tokens of a group: each is a tensor of its own."""


def pool_neighbours(graph: Graph) -> Graph:
    """Returns the graph with functions in place of pools over groups of neighbouring tokens that cannot stream."""
    if not any(_pools_groups(graph, node) for node in graph.nodes):
        return graph
    tensors, nodes = dict(graph.tensors), list[Node]()
    for node in graph.nodes:
        nodes += _make_functions(node, tensors) if _pools_groups(graph, node) else (node,)
    return replace(graph, tensors=tensors, nodes=tuple(nodes))


def _make_functions(pool: Node, tensors: dict[str, Tensor]) -> Iterator[Node]:
    """Yields nodes that compute a pool over groups of n tokens. `tensors`: gets their results.

    A move takes the first token of each group, another one the second, and so on. Functions combine these tensors.
    """
    assert isinstance(pool.operator, Pool)
    (name,), window = pool.inputs, pool.operator.window
    function, given = Map("max" if pool.operator.function == "max" else "add", (0, 1)), tensors[name]
    channels, shape = given.image.channels, (1, window.out_pixels, given.image.channels)

    def make_node(operator: Map | Move, inputs: tuple[str, ...], suffix: str) -> Node:
        result = unused_name(f"{pool.output}.{suffix}", tensors)
        tensors[result] = replace(given, name=result, shape=shape, image=Image(shape, 2), in_model=False)
        return Node(pool.name, pool.op_type, operator, inputs, result)

    sofar = ""
    for place, pixels in enumerate(cached_input_pixels(window).T.astype(np.int64)):
        yield (token := make_node(Move(pixels[:, None] * channels + np.arange(channels)), (name,), f"token{place}"))
        if sofar:
            yield (token := make_node(function, (sofar, token.output), f"of{place + 1}"))
        sofar = token.output
    yield Node(pool.name, pool.op_type, Rename(), (sofar,), pool.output)


def _pools_groups(graph: Graph, node: Node) -> bool:
    """True for a pool over groups of neighbouring tokens, each token in one group, with a result that cannot stream."""
    if not isinstance(node.operator, Pool) or graph.tensors[node.output].element.kind != "float":
        return False
    given, made, window = graph.tensors[node.inputs[0]].image, graph.tensors[node.output].image, node.operator.window
    if not is_token_layout(given) or given.rows > 1 or can_stream(made) or made.channels != given.channels:
        return False
    if made.pixels == 1 or not 1 < window.tap_count <= MOST_NEIGHBOURS:
        return False
    return np.array_equal(cached_input_pixels(window).reshape(-1), np.arange(given.pixels))
