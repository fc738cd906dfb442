"""Turns products of computed tensors so that the queries of an attention are pixels: x y^T is (y x^T)^T.

Each core computes an attention for some queries, which are pixels: scores and shares of a query are the channels of one
pixel. Networks that have the channels of tokens first multiply values with transposed shares, V P^T, or compute keys
times queries and take the softmax along the keys. Then the shares of a query would be spread over all pixels.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from raptor.graph.ir import (
    Constant,
    Dot,
    Elementwise,
    Graph,
    Indices,
    Map,
    Move,
    Node,
    Rename,
    Softmax,
    Tensor,
    unused_name,
)
from raptor.graph.streaming_layout import keeps_elements_in_place, move_in_place
from raptor.target.tensor_layout import Image


def turn_products(graph: Graph) -> Graph:
    """Returns the graph with products turned whose transpose a softmax reads, or whose right operand is shares.

    Products whose left operand is shares are as they should be.
    """
    readers, makers = graph.readers(), {node.output: node for node in graph.nodes}
    shares, scores = _find_shares(graph), _find_scores(graph)
    tensors, changed = dict(graph.tensors), dict[str, tuple[Node, ...]]()
    for node in graph.nodes:
        if not isinstance(node.operator, Dot) or node.inputs[0] in shares:
            continue
        if node.inputs[1] in shares:
            changed[node.output] = tuple(_turned_back(node, node.operator, tensors, makers))
        elif node.output in scores and (chain := _transposed_chain(node, graph, readers)):
            changed |= {n.output: (made,) for n, made in zip(chain, _turned_chain(chain, tensors), strict=True)}
    if not changed:
        return graph
    nodes = tuple(made for node in graph.nodes for made in changed.get(node.output, (node,)))
    made = {*graph.inputs, *(node.output for node in nodes)}
    return replace(graph, tensors={n: t for n, t in tensors.items() if n in made}, nodes=nodes)


_PASSING = Elementwise | Rename | Move
"""Operators between a product and a softmax."""


def _find_shares(graph: Graph) -> Collection[str]:
    """Returns results of softmaxes, and what element-wise functions and rearrangements make of them."""
    found: set[str] = set()
    for node in graph.nodes:
        if isinstance(node.operator, Softmax) or (
            isinstance(node.operator, _PASSING) and not found.isdisjoint(node.inputs)
        ):
            found.add(node.output)
    return found


def _find_scores(graph: Graph) -> Collection[str]:
    """Returns what softmaxes read, and of what element-wise functions and rearrangements make it."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if isinstance(node.operator, Softmax) or (isinstance(node.operator, _PASSING) and node.output in found):
            found.update(node.inputs)
    return found


def _transposition(product: Dot) -> Indices:
    """Returns the sources of the move that transposes the matrices of a product: [batch x columns, rows]."""
    numbers = np.arange(product.batch * product.rows * product.cols)
    shaped = numbers.reshape(product.batch, product.rows, product.cols).swapaxes(1, 2)
    return np.ascontiguousarray(shaped.reshape(product.batch * product.cols, product.rows))


def _transposed_chain(node: Node, graph: Graph, readers: Mapping[str, Sequence[Node]]) -> list[Node]:
    """Returns a product, functions of single elements behind it, and a transposition, if nothing else reads these."""
    assert isinstance(node.operator, Dot)
    wanted, chain = _transposition(node.operator), [node]
    while chain[-1].output not in graph.outputs:
        (reader, *others) = readers.get(chain[-1].output, ()) or (None,)
        if reader is None or others or len(reader.inputs) > 1:
            break
        chain.append(reader)
        if isinstance(reader.operator, Move):
            return chain if np.array_equal(reader.operator.sources, wanted) else []
        if not _is_of_elements(reader):
            break
    return []


def _is_of_elements(node: Node) -> bool:
    """Checks whether a node computes the same function of each element, whatever its place."""
    if isinstance(node.operator, Map):
        return all(o.pixels.size == 1 for o in node.operator.operands if isinstance(o, Constant))
    return isinstance(node.operator, Rename)


def _turned_chain(chain: Sequence[Node], tensors: dict[str, Tensor]) -> Iterator[Node]:
    """Yields the nodes of a chain with the product turned, and its transposition as a move that changes no place.

    Adds the turned tensors between them.
    """
    first, *between, last = chain
    product, (left, right) = first.operator, first.inputs
    assert isinstance(product, Dot)
    turned = Dot(product.batch, product.cols, product.rows)
    image = _image(turned)
    names = {node.output: _add_turned(node.output, image, tensors) for node in (first, *between)}
    yield replace(first, operator=turned, inputs=(right, left), output=names[first.output])
    yield from (replace(n, inputs=(names[n.inputs[0]],), output=names[n.output]) for n in between)
    yield replace(last, operator=move_in_place(image), inputs=(names[last.inputs[0]],))


def _image(product: Dot) -> Image:
    return Image((product.batch, product.rows, product.cols), 2)


def _add_turned(name: str, image: Image, tensors: dict[str, Tensor]) -> str:
    """Adds a tensor for the transposed matrices of another one. Returns its name."""
    turned = unused_name(f"{name}.turned", tensors)
    tensors[turned] = replace(tensors[name], name=turned, shape=image.shape, image=image, in_model=False)
    return turned


def _turned_back(node: Node, product: Dot, tensors: dict[str, Tensor], makers: Mapping[str, Node]) -> Iterator[Node]:
    """Yields a turned product, of a new tensor, and the move that makes the result of it."""
    left, right = node.inputs
    matrix = tensors[right].image
    while (maker := makers.get(right)) is not None and keeps_elements_in_place(maker):
        given = tensors[maker.inputs[0]].image
        if (given.pixels, given.channels) != (matrix.pixels, matrix.channels):
            break  # the same elements in other rows and columns
        (right,) = maker.inputs
    turned = Dot(product.batch, product.cols, product.rows)
    name = _add_turned(node.output, _image(turned), tensors)
    yield replace(node, operator=turned, inputs=(right, left), output=name)
    yield Node(node.name, node.op_type, Move(_transposition(turned)), (name,), node.output)
