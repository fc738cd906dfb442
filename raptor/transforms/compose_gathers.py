"""Composes rearrangements of elements, so that streaming layers gather a few long runs and no other element moves.

A split, a slice and a channel shuffle are `Move`s, one after another. Two steps remove most of them:

- A `Move` of a `Move`, or of a concatenation, reads the operands of these instead. A `Move` without readers is dropped.
  Composition stops at the operands of a concatenation: an operand that is itself a rearrangement is computed and passed
  on from layer to layer, so that no core keeps an old value until its last reader has finished.
- The channels of a `Move` are put into the order in which they lie in its operands, if all readers accept any order: a
  layer permutes the rows of its matrix in the same way. After a shuffle of two halves, each half is then one run of
  channels of a pixel, and not one run per channel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raptor.graph.ir import Concat, Constant, Filter, Graph, Indices, Map, Move, Node, Operator, Pool, Rename, Stencil
from raptor.graph.layers import is_depthwise
from raptor.graph.rearrangement import through_move
from raptor.graph.streaming_layout import can_stream
from raptor.target.tensor_layout import Image


def compose_gathers(graph: Graph) -> Graph:
    """Returns the graph with as few `Move`s between streamed tensors, and as few runs in each, as possible."""
    joiner = _Joiner(graph)
    joined = replace(graph, nodes=tuple(joiner.joined(node) for node in graph.nodes))
    return _Orders(_without_unread(joined, graph)).reordered()


def _without_unread(graph: Graph, before: Graph) -> Graph:
    """Removes the rearrangements that lost their last reader: read in the graph `before`, unread now."""
    read = {name for node in before.nodes for name in node.inputs}
    wanted, kept = set(graph.outputs), list[Node]()
    for node in reversed(graph.nodes):
        moves = isinstance(node.operator, Move | Rename | Concat)
        if node.output in wanted or not (moves and node.output in read):
            wanted.update(node.inputs)
            kept.append(node)
    names = {*graph.inputs, *(node.output for node in kept)}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in names}
    return replace(graph, nodes=tuple(kept[::-1]), tensors=tensors)


_Origin = tuple[tuple[str, ...], Indices]
"""Source tensors, and for each element of a tensor the number of its source element, counted as in `Move`."""


@dataclass(slots=True)
class _Joiner:
    """Composes the `Move`s of a graph. `origins`: origin of each rearranged tensor so far, by name."""

    graph: Graph
    origins: dict[str, _Origin] = field(default_factory=dict[str, _Origin])

    def joined(self, node: Node) -> Node:
        """Returns the node; a `Move` between tensors that can stream reads the origins of its operands instead."""
        match node.operator:
            case Rename() if node.inputs[0] in self.origins:
                self.origins[node.output] = self.origin(node.inputs[0])
            case Concat():
                images = [self.graph.tensors[name].image for name in node.inputs]
                self.origins[node.output] = node.inputs, Concat.sources(images).reshape(-1)
            case Move() as operator:
                inputs, sources = self.through(node, operator)
                self.origins[node.output] = inputs, sources.reshape(-1)
                joined = replace(node, operator=Move(sources), inputs=inputs)
                return joined if _streams(self.graph, joined) else node
            case _:
                pass
        return node

    def origin(self, name: str) -> _Origin:
        """Returns the origin of a tensor: the tensor itself if no rearrangement computes it, or if it is an output."""
        if name in self.origins and name not in self.graph.outputs:
            return self.origins[name]
        return (name,), np.arange(self.elements((name,)))

    def elements(self, names: Sequence[str]) -> int:
        return sum(self.graph.tensors[name].image.elements for name in names)

    def through(self, node: Node, operator: Move) -> _Origin:
        """Returns the origin of the result of a `Move`, through the rearrangements of its inputs."""
        inputs: tuple[str, ...] = ()
        numbers: list[Indices] = []
        for name in node.inputs:
            names, found = self.origin(name)
            numbers.append(np.where(found < 0, -1, found + self.elements(inputs)))
            inputs += names
        return inputs, through_move(np.concatenate(numbers), operator.sources)


def _streams(graph: Graph, node: Node) -> bool:
    """Checks whether the layouts of the result and of all inputs of a node stream."""
    return all(can_stream(graph.tensors[name].image) for name in (node.output, *node.inputs))


@dataclass(slots=True)
class _Orders:
    """Permutes channels. `orders`: tensor -> number in the model of each stored channel.

    A tensor without an entry is stored in the order of the model.
    """

    graph: Graph
    orders: dict[str, Indices] = field(default_factory=dict[str, Indices])
    readers: dict[str, list[Node]] = field(default_factory=dict[str, list[Node]])

    def reordered(self) -> Graph:
        """Returns the graph with the channels of each `Move` in the order of its operands, where possible."""
        self.readers = self.graph.readers()
        nodes = tuple(replace(node, operator=self.operator(node)) for node in self.graph.nodes)
        # Another order of channels than the model's: the two cannot be compared.
        changed = {name: replace(self.graph.tensors[name], in_model=False) for name in self.orders}
        return replace(self.graph, nodes=nodes, tensors={**self.graph.tensors, **changed})

    def operator(self, node: Node) -> Operator:
        """Returns the operator of a node for its inputs as they are stored, and records the order of its output."""
        if isinstance(node.operator, Move):
            return self.moved(node, node.operator)
        known = [self.orders[name] for name in node.inputs if name in self.orders]
        if not known:
            return node.operator
        if isinstance(node.operator, Concat):
            self.orders[node.output] = self.concatenated(node)
            return node.operator
        order = known[0]
        if not isinstance(node.operator, Filter) or is_depthwise(node.operator):
            self.orders[node.output] = order
        return _with_order(node.operator, order)

    def concatenated(self, node: Node) -> Indices:
        """Returns the order of the channels of a concatenation."""
        counts = [self.graph.tensors[name].image.channels for name in node.inputs]
        firsts = np.cumsum([0, *counts])
        each = (self.orders.get(n, np.arange(c)) + f for n, c, f in zip(node.inputs, counts, firsts, strict=False))
        return np.concatenate(list(each))

    def moved(self, node: Node, operator: Move) -> Operator:
        """Returns the `Move` of the stored inputs, or an equivalent `Concat` or `Rename`; records the stored order."""
        images = [self.graph.tensors[name].image for name in node.inputs]
        stored = np.concatenate([*self.stored(node.inputs, images), np.array([-1])])
        sources = stored[operator.sources]
        made = self.graph.tensors[node.output].image
        if not all(can_stream(image) or image.pixels == 1 for image in (*images, made)):
            return Move(sources)
        middle = sources[len(sources) // 2]
        order = np.argsort(middle, kind="stable")
        if _pieces(middle[order]) < _pieces(middle) and self.is_free(node.output):
            self.orders[node.output] = order
            sources = sources[:, order]
        sizes = {(i.rows, i.width) for i in (*images, self.graph.tensors[node.output].image)}
        if len(sizes) == 1 and np.array_equal(Concat.sources(images), sources):
            if len(images) > 1:
                return Concat()
            if images[0].has_layout_of(self.graph.tensors[node.output].image):
                return Rename()
        return Move(np.ascontiguousarray(sources))

    def stored(self, names: Sequence[str], images: Sequence[Image]) -> list[Indices]:
        """Returns for each tensor the stored number of each element, counted over all tensors."""
        found: list[Indices] = []
        first = 0
        for name, image in zip(names, images, strict=True):
            numbers = np.arange(first, first + image.elements).reshape(image.pixels, image.channels)
            if name in self.orders:
                numbers = numbers[:, np.argsort(self.orders[name])]
            found.append(numbers.reshape(-1))
            first += image.elements
        return found

    def is_free(self, name: str) -> bool:
        """Checks whether all readers of a tensor accept any order of its channels; False for an output of the model."""
        if name in self.graph.outputs:
            return False
        return all(self.takes_any_order(node) for node in self.readers.get(name, ()))

    def takes_any_order(self, node: Node) -> bool:
        """Checks whether a node accepts inputs with any order of channels."""
        match node.operator:
            case Move():
                return True
            case Filter() as operator if operator.groups == 1 and not operator.key:
                return True
            case Filter() as operator if not is_depthwise(operator):
                return False
            case Filter() | Stencil() | Pool() | Rename():
                return self.is_free(node.output)
            case Map():
                return len(node.inputs) == 1 and self.is_free(node.output)
            case Concat():
                return self.is_free(node.output)
            case _:
                return False


def _with_order(operator: Operator, order: Indices) -> Operator:
    """Returns the operator for an input whose channels are stored in this order."""
    match operator:
        case Filter(weights) if operator.groups > 1:
            return replace(operator, weights=np.ascontiguousarray(weights[:, :, order]))
        case Filter(weights):
            return replace(operator, weights=np.ascontiguousarray(weights[:, order]))
        case Stencil(weights) if weights.shape[2] > 1:
            return replace(operator, weights=np.ascontiguousarray(weights[:, :, order]))
        case Map(_, operands):
            return replace(operator, operands=tuple(_constant_in_order(operand, order) for operand in operands))
        case _:
            return operator


def _constant_in_order(operand: int | Constant, order: Indices) -> int | Constant:
    if not isinstance(operand, Constant) or operand.pixels.shape[2] == 1:
        return operand
    return Constant(np.ascontiguousarray(operand.pixels[:, :, order]))


def _pieces(channels: Indices) -> int:
    """Counts the runs of consecutive elements from which the channels of a pixel are taken."""
    return 1 + int(np.count_nonzero(np.diff(channels) != 1))
