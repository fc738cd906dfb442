"""Fuses 1x1 layers of one image, such as the branches of an Inception module, into one layer (horizontal fusion).

The time of a product hardly depends on the number of columns of its matrix. So the weights of these layers stand side
by side in the same crossbars, and each pixel is multiplied once for all of them. Functions that follow all layers
alike, such as a bias and a ReLU, are computed for all channels at once; then each layer takes its own channels.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raptor.graph.ir import Constant, Filter, Graph, Map, Move, Node, Tensor, unused_name
from raptor.graph.layers import is_dense
from raptor.graph.streaming_layout import is_token_layout
from raptor.target.arch import Target
from raptor.target.chip_elements import MODELLED_FLOAT
from raptor.target.timing import mvmul_ns
from raptor.transforms.rewrite_choices import JoinedLayer, RewriteChoice

LEAST_SAVED = 0.1
"""Share of the time of all products that a fusion must save, because each layer then has to take its channels."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """A layer, and the chain of element-wise functions after it, each the only reader of the one before."""

    filter: Node
    functions: tuple[Node, ...]

    @property
    def channels(self) -> int:
        assert isinstance(self.filter.operator, Filter)
        return self.filter.operator.weights.shape[2]


def find_fusions(graph: Graph, arch: Target) -> dict[str, JoinedLayer]:
    """Returns the layers to fuse into an earlier layer, by key, where that saves a share `LEAST_SAVED` of the time."""
    found: dict[str, JoinedLayer] = {}
    for first, *others in find_fusible_groups(graph):
        xbars = [-(-branch.channels // arch.outputs_per_xbar) for branch in (first, *others)]
        apart_ns, together_ns = sum(mvmul_ns(arch, x) for x in xbars), mvmul_ns(arch, sum(xbars))
        if sum(xbars) <= arch.xbars_per_core and together_ns <= (1 - LEAST_SAVED) * apart_ns:
            found |= {branch.filter.output: JoinedLayer(first.filter.output) for branch in others}
    return found


def find_fusible_groups(graph: Graph) -> list[list[_Branch]]:
    """Returns the groups of two or more layers that can be fused, in the order of the graph."""
    groups: defaultdict[object, list[_Branch]] = defaultdict(list)
    for branch in _branches(graph):
        assert isinstance(branch.filter.operator, Filter)
        groups[branch.filter.inputs, branch.filter.operator.window, _function(branch.functions[0])].append(branch)
    return [group for group in groups.values() if len(group) > 1]


def _branches(graph: Graph) -> Iterator[_Branch]:
    """Yields the 1x1 layers of floats whose result only one element-wise function reads, such as a bias."""
    readers = graph.readers()

    def functions(node: Node) -> Iterator[Node]:
        """Yields the chain of functions after a node; it ends where a result has another reader."""
        while node.output not in graph.outputs and len(readers.get(node.output, ())) == 1:
            (node,) = readers[node.output]
            if not _is_function(node):
                return
            yield node

    for node in graph.nodes:
        if isinstance(node.operator, Filter) and _is_simple(graph, node, node.operator):
            found = tuple(functions(node))
            if found:
                yield _Branch(node, found)


def _is_simple(graph: Graph, node: Node, operator: Filter) -> bool:
    """Checks whether a layer is 1x1, of floats, without groups, ReLU or shared weights, and its result is internal."""
    result, window = graph.tensors[node.output], operator.window
    alone = operator.groups == 1 and not operator.key and not operator.relu and not result.in_model
    floats = result.element == MODELLED_FLOAT and graph.tensors[node.inputs[0]].element == MODELLED_FLOAT
    single = window.kernel == (1, 1) and not window.transposed and not is_dense(operator)
    return alone and floats and single and not is_token_layout(result.image) and result.shape == result.image.shape


def _is_function(node: Node) -> bool:
    """Checks whether a node is an element-wise function of one tensor and of constants per channel."""
    if not isinstance(node.operator, Map) or len(node.inputs) != 1:
        return False
    return all(o == 0 if isinstance(o, int) else o.pixels.shape[:2] == (1, 1) for o in node.operator.operands)


def fuse_horizontally(graph: Graph, rewrites: RewriteChoice) -> Graph:
    """Returns the graph with one wide layer for each group of layers that the choice joins.

    A layer stays as it is if it cannot be fused with the layer that its record names (`find_fusible_groups`).
    """
    layers = rewrites.joined
    if not layers:
        return graph
    groups = [
        [first, *(b for b in others if layers.get(b.filter.output) == JoinedLayer(first.filter.output))]
        for first, *others in find_fusible_groups(graph)
    ]
    joined = {group[0].filter.output: _FusedLayers(graph, group) for group in groups if len(group) > 1}
    gone = {name for found in joined.values() for name in found.replaced}
    nodes: list[Node] = []
    tensors = dict(graph.tensors)
    for node in graph.nodes:
        if node.output in joined:
            for made, tensor in joined[node.output].nodes():
                nodes.append(made)
                tensors[made.output] = tensor
        elif node.output not in gone:
            nodes.append(node)
    names = {*graph.inputs, *(node.output for node in nodes)}
    return replace(graph, nodes=tuple(nodes), tensors={name: t for name, t in tensors.items() if name in names})


@dataclass(frozen=True, slots=True)
class _FusedLayers:
    """A group of layers that become one layer, whose result has the name of the first."""

    graph: Graph
    branches: Sequence[_Branch]

    @property
    def alike(self) -> int:
        """Length of the common prefix of the function chains of all layers."""
        steps = zip(*(branch.functions for branch in self.branches), strict=False)
        different = (i for i, step in enumerate(steps) if len({_function(node) for node in step}) > 1)
        return next(different, min(len(branch.functions) for branch in self.branches))

    @property
    def replaced(self) -> set[str]:
        """The results of the nodes that are removed or replaced."""
        nodes = (node for branch in self.branches for node in (branch.filter, *branch.functions[: self.alike]))
        return {node.output for node in nodes}

    def nodes(self) -> Iterator[tuple[Node, Tensor]]:
        """Yields the nodes that replace these layers, with their results."""
        filters = [branch.filter for branch in self.branches]
        weights = np.concatenate([f.operator.weights for f in filters if isinstance(f.operator, Filter)], axis=2)
        assert isinstance(filters[0].operator, Filter)
        last = filters[0].output
        yield self.node(filters, replace(filters[0].operator, weights=weights), filters[0].inputs, last)
        for step in range(self.alike):
            same = [branch.functions[step] for branch in self.branches]
            name = unused_name(f"{filters[0].output}.{step}", self.graph.tensors)
            yield self.node(same, self.function(same), (last,), name)
            last = name
        yield from self.taken(last)

    def node(
        self, nodes: Sequence[Node], operator: Filter | Map, inputs: tuple[str, ...], output: str
    ) -> tuple[Node, Tensor]:
        """Returns one node that computes the channels of all `nodes`, and its result."""
        tensor = self.graph.tensors[nodes[0].output]
        axis, shape = tensor.image.channel_axis, list(tensor.shape)
        shape[axis] = sum(branch.channels for branch in self.branches)
        image = replace(tensor.image, shape=tuple(shape))
        names = " + ".join(dict.fromkeys(node.name for node in nodes))
        wide = replace(tensor, name=output, shape=tuple(shape), image=image, in_model=False)
        return Node(names, nodes[0].op_type, operator, inputs, output), wide

    def function(self, nodes: Sequence[Node]) -> Map:
        """Returns one function of all channels, which applies the function of each node to its own channels."""
        found = [node.operator for node in nodes if isinstance(node.operator, Map)]
        operands = zip(*(operator.operands for operator in found), strict=True)
        return replace(found[0], operands=tuple(self.operand(same) for same in operands))

    def operand(self, operands: Sequence[int | Constant]) -> int | Constant:
        """Returns the operand with the constants of all channels side by side."""
        constants = [
            np.broadcast_to(operand.pixels, (1, 1, branch.channels))
            for operand, branch in zip(operands, self.branches, strict=True)
            if isinstance(operand, Constant)
        ]
        return Constant(np.concatenate(constants, axis=2)) if constants else 0

    def taken(self, joined: str) -> Iterator[tuple[Node, Tensor]]:
        """Yields the nodes that take the channels of each layer from the `joined` result."""
        total, first = sum(branch.channels for branch in self.branches), 0
        for branch in self.branches:
            node = branch.functions[self.alike - 1]
            tensor = self.graph.tensors[node.output]
            pixels = np.arange(tensor.image.elements // branch.channels)[:, None] * total
            channels = np.arange(first, first + branch.channels)[None]
            yield replace(node, operator=Move(pixels + channels), inputs=(joined,)), tensor
            first += branch.channels


def _function(node: Node) -> tuple[object, ...]:
    """Returns a key that is equal for nodes that can be merged: the function, and which operands are constants."""
    assert isinstance(node.operator, Map)
    return node.operator.function, *(isinstance(o, Constant) for o in node.operator.operands)
