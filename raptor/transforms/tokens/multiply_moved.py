"""Replaces permuted and scaled copies of a one-pixel layer's result by layers with permuted and scaled weights.

A rotary embedding adds a token to a copy of it whose halves are exchanged, one of them negated. After the product, a
core would move many short runs for that. The exchanged copy is a product, too: of the same input with other columns of
the weights, on another core at the same time.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Concat, Constant, Filter, Graph, Indices, Map, Move, Node, Rename, Tensor, unused_name
from raptor.graph.layers import is_dense
from raptor.target.arch import Target
from raptor.target.chip_elements import MODELLED_FLOAT
from raptor.target.tensor_layout import Image
from raptor.target.timing import copy_ns, message_ns, vector_ns


@dataclass(frozen=True, slots=True, eq=False)
class _Moved:
    """A tensor whose element k is channel `channel[k]` of the result of the node `layer`, times `factor[k]`.

    scaled: whether a core multiplies elements with factors on the way.
    """

    layer: Node
    channel: Indices
    factor: npt.NDArray[np.float32]
    scaled: bool = False

    @property
    def filter(self) -> Filter:
        """The layer that makes the tensor itself."""
        assert isinstance(self.layer.operator, Filter), "layers are filters"
        columns = self.layer.operator.weights[:, :, self.channel] * self.factor
        return replace(self.layer.operator, weights=np.ascontiguousarray(columns))

    def computed_ns(self, arch: Target) -> float:
        """Returns the time in ns in which a core permutes and scales the layer's result; 0 if nothing changes."""
        channels = self.layer.operator.weights.shape[2] if isinstance(self.layer.operator, Filter) else 0
        if np.array_equal(self.channel, np.arange(channels)) and not self.scaled:
            return 0.0
        cuts = np.flatnonzero(np.diff(self.channel) != 1) + 1
        runs = np.diff([0, *cuts.tolist(), len(self.channel)]).tolist()
        return sum(copy_ns(arch, run) for run in runs) + self.scaled * vector_ns(arch, len(self.channel), 2)


def multiply_moved(graph: Graph, arch: Target) -> Graph:
    """Returns the graph with an own layer for each permuted and scaled tensor that such a layer computes faster.

    That takes a message with the input, or nothing, if the layer replaces the one before. Only where each layer makes
    one pixel, and there are cores for all matrices: one crossbar multiplies while others do.
    """
    layers = [node.operator for node in graph.nodes if isinstance(node.operator, Filter)]
    if not layers or not all(is_dense(layer) for layer in layers):
        return graph
    moved, kept = _find_moved(graph), {*graph.outputs, *graph.residency.state_outputs}
    others = (n for n in graph.nodes if n.output not in moved or isinstance(n.operator, Filter))
    read = kept | {name for node in others for name in node.inputs}
    wanted = {node.output: moved[node.output] for node in graph.nodes if node.output in moved and node.output in read}
    results = Counter(found.layer.output for found in wanted.values())
    chosen = {
        name: found.filter
        for name, found in wanted.items()
        if found.computed_ns(arch) > (results[found.layer.output] > 1) * message_ns(arch, found.filter.in_channels)
    }
    matrices = sum(_count_matrices(layer, arch) for layer in (*layers, *chosen.values()))
    if not chosen or matrices > arch.usable_cores:
        return graph
    used = {found.layer.output for name, found in wanted.items() if name not in chosen}
    alone = {moved[name].layer.output: name for name in reversed(chosen) if moved[name].layer.output not in used}
    writer = _LayerWriter(moved, chosen, alone, dict(graph.tensors))
    nodes = tuple(made for node in graph.nodes for made in writer.nodes(node))
    return _without_unread(replace(graph, nodes=nodes, tensors=writer.tensors), moved, kept)


def _count_matrices(layer: Filter, arch: Target) -> int:
    """Returns the number of matrices of a layer, each in one crossbar."""
    taps, rows, columns = layer.weights.shape
    return taps * -(-rows // arch.xbar_rows) * -(-columns // arch.outputs_per_xbar)


def _find_moved(graph: Graph) -> dict[str, _Moved]:
    """Returns the tensors of floats that are made of the result of one layer by moves and products with constants."""
    found: dict[str, _Moved] = {}
    for node in graph.nodes:
        made = _moved(graph, node, [found.get(name) for name in node.inputs])
        if made is not None and graph.tensors[node.output].element == MODELLED_FLOAT:
            found[node.output] = made
    return found


def _moved(graph: Graph, node: Node, given: list[_Moved | None]) -> _Moved | None:
    """Returns the result of a node, if it is moved or scaled. `given`: the same about its operands."""
    if isinstance(node.operator, Filter):
        alone = not (node.operator.key or node.operator.relu) and node.operator.groups == 1
        channels = graph.tensors[node.output].image.channels
        return _Moved(node, np.arange(channels), np.ones(channels, np.float32)) if alone else None
    whole = [each for each in given if each is not None]
    if not whole or len(whole) < len(given) or any(each.layer is not whole[0].layer for each in whole):
        return None
    channel, factor = (np.concatenate([getattr(each, name) for each in whole]) for name in ("channel", "factor"))
    scaled, images = any(each.scaled for each in whole), [graph.tensors[name].image for name in node.inputs]
    match node.operator:
        case Rename():
            return whole[0]
        case Move() | Concat() as operator:
            places = (operator.sources if isinstance(operator, Move) else Concat.sources(images)).reshape(-1)
            if (places < 0).any():
                return None
            return _Moved(whole[0].layer, channel[places], factor[places], scaled)
        case Map("mul", operands) if len(whole) == 1 and any(isinstance(each, Constant) for each in operands):
            image, values = graph.tensors[node.output].image, np.ones(1)
            for each in operands:
                values = each.pixels if isinstance(each, Constant) else values
            values = np.broadcast_to(values, (image.rows, image.width, image.channels)).reshape(-1)
            known = image.elements == len(channel) and bool(np.isfinite(values).all())
            return _Moved(whole[0].layer, channel, (factor * values).astype(np.float32), True) if known else None
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _LayerWriter:
    """Writes the nodes of the new graph, and its `tensors`. moved, chosen: tensors that new layers make.

    alone: layers whose result nothing reads as it is, with the tensor that each makes instead, under its own name.
    """

    moved: Mapping[str, _Moved]
    chosen: Mapping[str, Filter]
    alone: Mapping[str, str]
    tensors: dict[str, Tensor]

    def nodes(self, node: Node) -> Iterator[Node]:
        """Yields a node, or for a chosen tensor the layer that makes it, and a move into its image."""
        if node.output in self.alone:
            yield self.layer(node, self.alone[node.output], node.output)
        elif node.output in self.chosen:
            layer, result = self.moved[node.output].layer, self.tensors[node.output]
            name = layer.output
            if self.alone.get(name) != node.output:
                name = unused_name(f"{node.output}.products", self.tensors)
                yield self.layer(layer, node.output, name)
            places = np.arange(result.image.elements).reshape(result.image.pixels, result.image.channels)
            yield Node(node.name, node.op_type, Move(places), (name,), node.output)
        else:
            yield node

    def layer(self, layer: Node, result: str, name: str) -> Node:
        """Returns the layer that makes a chosen tensor `result`, as one pixel `name`. Adds that to the tensors."""
        image = Image((1, 1, self.tensors[result].image.elements), 2)
        self.tensors[name] = replace(self.tensors[result], name=name, shape=image.shape, image=image, in_model=False)
        return replace(layer, operator=self.chosen[result], output=name)


def _without_unread(graph: Graph, moved: Container[str], kept: Container[str]) -> Graph:
    """Returns the graph without moved tensors that nothing reads."""
    left, read = list[Node](), set[str]()
    for node in reversed(graph.nodes):
        if node.output not in moved or node.output in read or node.output in kept:
            left.append(node)
            read.update(node.inputs)
    names = {*graph.inputs, *(node.output for node in left)}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in names}
    return replace(graph, nodes=tuple(left[::-1]), tensors=tensors)
