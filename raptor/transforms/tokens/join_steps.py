"""Layers with one matrix that read parts of what is known before all of them, as one layer of tokens.

A recurrent network that a loop in PyTorch wrote multiplies the input of each step by itself: as many layers of one
pixel as there are steps, all with the same weights. None of these waits for another. Together they are a layer over a
line of tokens, as in an ONNX `LSTM`; the weights are on the chip once, and the line can be divided among cores.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from raptor.graph.ir import Filter, Graph, Indices, Move, Node, Tensor, unused_name
from raptor.graph.layers import find_filters
from raptor.graph.streaming_layout import drop_unused_moves
from raptor.graph.window import Window
from raptor.target.tensor_layout import Image
from raptor.transforms.rewrite_choices import JoinedLayer, RewriteChoice

LEAST_STEPS = 4
"""Layers that are worth a line. Two or three, as the branches of a Siamese network, work at the same time apart."""


def find_steps(graph: Graph, fused: Mapping[str, JoinedLayer]) -> dict[str, JoinedLayer]:
    """Returns the layers, by key, that the tokens of an earlier layer with the same weights can compute.

    fused: layers that others compute for another reason; they and these stay as they are.
    """
    found = dict[str, JoinedLayer]()
    for steps in _find_steps(graph, find_filters(graph).keys() - _named(fused)):
        first, *others = steps.layers
        found |= {layer.output: JoinedLayer(first.output) for layer in others}
    return found


def join_steps(graph: Graph, rewrites: RewriteChoice) -> Graph:
    """Returns the graph in which the layers with equal weights that the choice joins are one layer of tokens."""
    chosen, at = rewrites.joined, dict[str, _Steps]()
    for steps in _find_steps(graph, _named(chosen)) if chosen else ():
        first, *others = steps.layers
        if all(chosen.get(layer.output) == JoinedLayer(first.output) for layer in others):
            at[first.output] = steps
    if not at:
        return graph
    gone = {layer.output for steps in at.values() for layer in steps.layers}
    tensors, nodes, own_result = dict(graph.tensors), list[Node](), dict[str, str]()
    for node in graph.nodes:
        if node.output in at:
            # The result of the first layer gets another name: that of all of them is called as it was.
            own_result[node.output] = unused_name(f"{node.output}.first", tensors)
            nodes += at[node.output].joined(tensors, own_result[node.output])
        elif node.output not in gone:
            nodes.append(replace(node, inputs=tuple(own_result.get(n, n) for n in node.inputs)))
    return drop_unused_moves(replace(graph, tensors=tensors, nodes=tuple(nodes)))


def _named(joined: Mapping[str, JoinedLayer]) -> set[str]:
    """Returns the keys of joined layers and of those that compute them."""
    return {*joined, *(record.layer for record in joined.values())}


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """Layers of one matrix, all of which can be computed where the first of them is.

    sources: the tensors of which they read elements. taken: [layers, channels], the number of each element among those
    of all sources, as in `Move`.
    """

    layers: tuple[Node, ...]
    sources: tuple[str, ...]
    taken: Indices

    def joined(self, tensors: dict[str, Tensor], own_result: str) -> Iterator[Node]:
        """Yields a move of all inputs to tokens, the layer of these, and its tokens as the results; adds tensors.

        own_result: name for the result of the first layer.
        """
        first = self.layers[0]
        assert isinstance(first.operator, Filter)
        read, made = tensors[first.inputs[0]], tensors[first.output]
        tokens, window = unused_name(f"{first.output}.tokens", tensors), Window.pointwise((len(self.layers),))
        tensors[own_result] = replace(made, name=own_result)
        tensors[tokens] = self.of_tokens(read, tokens)
        tensors[first.output] = self.of_tokens(made, first.output)
        yield Node(first.name, first.op_type, Move(self.taken), self.sources, tokens)
        yield replace(first, operator=replace(first.operator, window=window), inputs=(tokens,))
        outs = made.image.channels
        for number, node in enumerate(self.layers):
            result = node.output if number else own_result
            taken = np.arange(number * outs, (number + 1) * outs).reshape(1, outs)
            yield replace(node, operator=Move(taken), inputs=(first.output,), output=result)

    def of_tokens(self, one: Tensor, name: str) -> Tensor:
        """Returns a tensor `name` with a token for each layer, given the tensor of one of them."""
        shape = (len(self.layers), one.image.channels)
        return replace(one, name=name, shape=shape, image=Image(shape, 1), in_model=False, coding=None)


def _find_steps(graph: Graph, among: Set[str]) -> Iterator[_Steps]:
    """Yields the layers that can become one, of those with a key in `among`."""
    places = {node.output: place for place, node in enumerate(graph.nodes)}
    makers = {node.output: node for node in graph.nodes}
    for layers in _equal_layers(graph, makers, among):
        before = places[layers[0].output]
        moves = [makers[layer.inputs[0]] for layer in layers]
        known = [
            (layer, move)
            for layer, move in zip(layers, moves, strict=True)
            if all(places.get(name, -1) < before for name in move.inputs)
        ]
        # The result of the first gets another name, which an output of the model cannot have.
        if len(known) >= LEAST_STEPS and known[0][0] is layers[0] and layers[0].output not in graph.outputs:
            sources, taken = _taken([move for _, move in known], graph)
            yield _Steps(tuple(layer for layer, _ in known), sources, taken)


def _equal_layers(graph: Graph, makers: Mapping[str, Node], among: Set[str]) -> Iterator[list[Node]]:
    """Yields the layers of one pixel of each matrix, in order, that read results of moves."""
    found = dict[tuple[object, ...], list[Node]]()
    for node in graph.nodes:
        made = makers.get(node.inputs[0]) if node.inputs else None
        if made is not None and isinstance(made.operator, Move) and node.output in among and _is_step(node):
            assert isinstance(node.operator, Filter)
            layer, element = node.operator, graph.tensors[node.inputs[0]].element
            content = blake2b(np.ascontiguousarray(layer.weights).data).digest()
            key = (layer.weights.shape, layer.weights.dtype, layer.weight_bits, layer.relu, element, content)
            found.setdefault(key, []).append(node)
    yield from found.values()


def _is_step(node: Node) -> bool:
    """Checks whether a node is a layer of one pixel with crossbars of its own."""
    layer = node.operator
    if not isinstance(layer, Filter) or layer.groups > 1 or layer.key:
        return False
    return layer.window.in_pixels == 1 and layer.window.out_pixels == 1 and layer.window.tap_count == 1


def _taken(moves: Sequence[Node], graph: Graph) -> tuple[tuple[str, ...], Indices]:
    """Returns the tensors that some moves read, and [moves, channels] the elements that they take of these."""
    sources = tuple(dict.fromkeys(name for move in moves for name in move.inputs))
    counts = [graph.tensors[name].image.elements for name in sources]
    firsts = dict(zip(sources, np.cumsum([0, *counts]).tolist(), strict=False))
    taken = list[Indices]()
    for move in moves:
        assert isinstance(move.operator, Move)
        numbers = [firsts[name] + np.arange(graph.tensors[name].image.elements) for name in move.inputs]
        taken.append(np.concatenate([*numbers, np.array([-1])])[move.operator.sources.reshape(-1)])
    return sources, np.stack(taken)
