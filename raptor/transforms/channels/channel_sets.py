"""Sets of tensors that have their channels in common: a channel can be dropped or moved in all of them at once.

A fully connected or convolutional layer begins a set with its result, and ends one with its operand. Element-wise
operators, pools and depthwise layers join their operands and their result.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.union_find import DisjointSets
from raptor.graph.ir import ConstantTensor, Elementwise, Filter, Graph, Move, Node, Pool, Rename, Stencil

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelSets:
    """`sets`: joins tensors with common channels. `fixed`: representatives of sets whose channels must stay.

    `sizes`: number of channels, keyed by representative.
    """

    sets: DisjointSets
    fixed: frozenset[str]
    sizes: Mapping[str, int]

    def find(self, name: str) -> str:
        """Returns the representative of the set of a tensor."""
        return self.sets.find(name)


def keeps_channels(operator: object) -> bool:
    """Checks whether each channel of the result depends on the same channel of the operands alone."""
    return isinstance(operator, Elementwise | Pool | Stencil | Rename) or is_by_channel(operator)


def is_by_channel(operator: object) -> bool:
    """Checks whether a layer with weights has a group for each channel, and shares no crossbars."""
    if not isinstance(operator, Filter) or operator.key:
        return False
    return operator.groups > 1 and operator.groups == operator.in_channels == operator.weights.shape[2]


def is_channel_border(operator: object) -> bool:
    """Checks whether the operand and the result of an operator have channels of their own, in any order."""
    plain = isinstance(operator, Filter) and operator.groups == 1 and not operator.key and not operator.relu
    return plain or isinstance(operator, Move)


def find_channel_sets(graph: Graph) -> ChannelSets:
    """Returns the sets of a graph. Inputs, outputs, and operands of operators of other kinds are fixed."""
    sets, fixed = DisjointSets(), [*graph.inputs, *graph.outputs, *_of_states(graph)]
    for node in graph.nodes:
        if keeps_channels(node.operator):
            for name in node.inputs:
                sets.union(node.output, name)
            if len({graph.tensors[name].image.channels for name in (*node.inputs, node.output)}) > 1:
                fixed.append(node.output)
        elif not is_channel_border(node.operator) and not isinstance(node.operator, ConstantTensor):
            fixed += [*node.inputs, node.output]
    sizes = {sets.find(name): tensor.image.channels for name, tensor in graph.tensors.items()}
    return ChannelSets(sets, frozenset(map(sets.find, fixed)), sizes)


def _of_states(graph: Graph) -> list[str]:
    return [name for pair in graph.residency.states for name in (pair.input, pair.output)]


def channels_of_move(node: Node, graph: Graph) -> tuple[Indices, Indices]:
    """Returns the operand and the channel of each element [pixels, channels] that a move copies; -1 for zeros."""
    assert isinstance(node.operator, Move)
    images = [graph.tensors[name].image for name in node.inputs]
    ends = np.cumsum([image.elements for image in images])
    sources = node.operator.sources
    operand = np.where(sources < 0, -1, np.searchsorted(ends, sources, side="right"))
    sizes = np.array([image.channels for image in images])
    first = ends - np.array([image.elements for image in images])
    return operand, np.where(sources < 0, -1, (sources - first[operand]) % sizes[operand])
