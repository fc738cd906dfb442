"""Folds gains and biases of channels into the layers that read them, as those of a norm before a layer.

((x * gain) + bias) W is x (gain W) + (bias W): the gain scales the rows of the matrix, and the bias becomes a part of
the bias that is added to the product. No vector instruction remains of either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Constant, Filter, Graph, Map, Node, Rename
from raptor.graph.window import cached_input_pixels
from raptor.target.chip_elements import MODELLED_FLOAT

Values = npt.NDArray[np.float64]


def fold_gains(graph: Graph) -> Graph:
    """Returns the graph without products and sums with a constant of each channel that only layers of floats read.

    Only where each layer makes one pixel: streams of lines with less work between layers are not always faster.
    Products with 1 and sums with 0 vanish, too, whatever reads them. A sum is folded if no such layer pads its input,
    and a bias is added to the result of each of them anyway.
    """
    layers = [node.operator for node in graph.nodes if isinstance(node.operator, Filter)]
    if any(layer.window.out_pixels > 1 for layer in layers):
        return graph
    folder = _Folder(graph, graph.readers(), {*graph.outputs, *graph.residency.state_outputs})
    for node in reversed(graph.nodes):
        folder.fold(node)
    if not folder.source:
        return graph
    nodes = tuple(folder.renamed(folder.changed.get(node.output, node)) for node in graph.nodes)
    other = folder.other | folder.source.keys()
    tensors = {n: replace(t, in_model=t.in_model and n not in other) for n, t in graph.tensors.items()}
    return replace(graph, nodes=nodes, tensors=tensors)


@dataclass(slots=True)
class _Folder:
    """Folds one node after another, from the last one to the first one.

    readers: the nodes that read each tensor. kept: tensors that have to be computed. changed: new nodes, by output.
    source: results of folded nodes, with the operand that takes their place. other: results of layers without a bias
    that is added to them.
    """

    graph: Graph
    readers: Mapping[str, Sequence[Node]]
    kept: set[str]
    changed: dict[str, Node] = field(default_factory=dict[str, Node])
    source: dict[str, str] = field(default_factory=dict[str, str])
    other: set[str] = field(default_factory=set[str])

    def renamed(self, node: Node) -> Node:
        """Returns a node, or the name of its operand for a folded one: the shapes of the two may differ."""
        return replace(node, operator=Rename()) if node.output in self.source else node

    def fold(self, node: Node) -> None:
        """Folds a sum or product with a constant into the layers that read its result, if nothing else reads it."""
        if node.output not in self.kept and self.is_neutral(node):
            self.source[node.output] = node.inputs[0]
            return
        values, layers = self.values(node), self.layers(node.output)
        if values is None or not layers:
            return
        assert isinstance(node.operator, Map), "other operators have no values"
        if node.operator.function == "mul":
            made = [self.scaled(layer, values) for layer in layers]
        else:
            made = [self.biased(layer, values) for layer in layers]
        if all(made):
            if node.operator.function == "add":
                self.other.update(name for layer in layers for name in self.names(layer.output))
            self.changed |= {each.output: each for each in made if each}
            self.source[node.output] = node.inputs[0]

    def is_neutral(self, node: Node) -> bool:
        """Checks whether a node multiplies a tensor of floats by 1, or adds 0 to it."""
        made, operator = self.graph.tensors[node.output], node.operator
        if not isinstance(operator, Map) or made.element != MODELLED_FLOAT or len(node.inputs) != 1:
            return False
        neutral = {"mul": 1, "add": 0}.get(operator.function)
        constants = [operand.pixels for operand in operator.operands if isinstance(operand, Constant)]
        alike = self.graph.tensors[node.inputs[0]].image.has_layout_of(made.image)
        return alike and len(constants) == 1 and bool((constants[0] == neutral).all())

    def values(self, node: Node) -> Values | None:
        """Returns the constant of each channel that a node multiplies a tensor of floats with, or adds to it."""
        operator, made = node.operator, self.graph.tensors[node.output]
        if not isinstance(operator, Map) or operator.function not in ("mul", "add") or made.element != MODELLED_FLOAT:
            return None
        constants = [operand.pixels for operand in operator.operands if isinstance(operand, Constant)]
        if len(constants) != 1 or constants[0].shape[:2] != (1, 1) or not np.isfinite(constants[0]).all():
            return None
        given = self.graph.tensors[node.inputs[0]].image
        if (given.pixels, given.channels) != (made.image.pixels, made.image.channels):
            return None
        return np.broadcast_to(constants[0].reshape(-1).astype(np.float64), made.image.channels)

    def layers(self, name: str) -> list[Node] | None:
        """Returns the layers that read a tensor, under any name; None if it is read, or needed, in another way."""
        found: list[Node] = []
        for reader in () if name in self.kept else self.readers.get(name, ()):
            is_name = isinstance(reader.operator, Rename) or reader.output in self.source
            behind = self.layers(reader.output) if is_name else [reader]
            if behind is None or not all(map(self.can_change, behind)):
                return None
            found += behind
        return None if name in self.kept else found

    def can_change(self, node: Node) -> bool:
        """Checks whether a node is a layer of floats with weights of its own."""
        alone = isinstance(node.operator, Filter) and node.operator.groups == 1 and not node.operator.key
        return alone and self.graph.tensors[node.output].element == MODELLED_FLOAT

    def scaled(self, layer: Node, gains: Values) -> Node | None:
        """Returns a layer that multiplies its input with gains; None if a weight becomes too large."""
        layer = self.changed.get(layer.output, layer)
        assert isinstance(layer.operator, Filter), "layers are filters"
        weights = layer.operator.weights * gains.astype(np.float32)[:, None]
        return replace(layer, operator=replace(layer.operator, weights=weights)) if np.isfinite(weights).all() else None

    def biased(self, layer: Node, biases: Values) -> Node | None:
        """Returns the bias addition behind a layer, with the folded biases of its input added; None if it has none."""
        layer, name = self.changed.get(layer.output, layer), self.names(layer.output)[-1]
        filter_, readers = layer.operator, self.readers.get(name, ())
        assert isinstance(filter_, Filter), "layers are filters"
        if name in self.kept or len(readers) != 1 or filter_.relu or (cached_input_pixels(filter_.window) < 0).any():
            return None
        if readers[0].output in self.source:
            return None  # the next layer has that bias
        found = self.changed.get(readers[0].output, readers[0])
        before = self.values(found)
        if before is None or not isinstance(found.operator, Map) or found.operator.function != "add":
            return None
        pixels = (before + sum(biases @ weights for weights in filter_.weights)).astype(np.float32)
        operands = tuple(
            Constant(pixels[None, None]) if isinstance(o, Constant) else o for o in found.operator.operands
        )
        return replace(found, operator=replace(found.operator, operands=operands))

    def names(self, name: str) -> list[str]:
        """Returns the names of a tensor from one on, as far as it is read under the next one alone."""
        found, readers = [name], self.readers.get(name, ())
        while found[-1] not in self.kept and len(readers) == 1 and isinstance(readers[0].operator, Rename):
            found.append(readers[0].output)
            readers = self.readers.get(found[-1], ())
        return found
