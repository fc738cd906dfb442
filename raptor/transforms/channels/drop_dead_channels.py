"""Drops channels on which no result depends: those that zeros make, and those that only zeros read."""

from collections.abc import Container, Mapping

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import ConstantTensor, Filter, Graph, Move, Node
from raptor.graph.layers import graph_tile_channels
from raptor.target.arch import Target
from raptor.transforms.channels.channel_sets import ChannelSets, channels_of_move, find_channel_sets, keeps_channels
from raptor.transforms.channels.constant_channels import find_zero_channels
from raptor.transforms.channels.select_channels import SelectedChannels, select_channels
from raptor.transforms.channels.weight_blocks import WeightBlocks

Bools = npt.NDArray[np.bool_]


def drop_dead_channels(graph: Graph, arch: Target) -> SelectedChannels:
    """Returns the graph without dead channels. The graph stays as it is if it has none.

    A channel is dead if each layer that reads it has only weights of 0 for it, or if it is 0 for all inputs. A set of
    tensors keeps one channel at least. It keeps all if others would move into tiles where they need more matrices.
    """
    return _without_dead(graph, arch) if _has_zeros(graph) else select_channels(graph, {})


def drop_dead_features(graph: Graph, arch: Target) -> SelectedChannels:
    """Returns the graph without dead channels of tensors that were laid out for streaming.

    There, the features of a sequence are channels, which in the imported graph are pixels of a line: bands of a
    spectrum that no filter reads, or zeros between real numbers. Graphs with integers stay: their requantisations are
    chosen for all channels.
    """
    if graph.arithmetic != "float" or not any(test(graph) for test in (_has_zeros, _leaves_out, _holds_zeros)):
        return select_channels(graph, {})
    return _without_dead(graph, arch)


def _without_dead(graph: Graph, arch: Target) -> SelectedChannels:
    sets, zero = find_channel_sets(graph), find_zero_channels(graph)
    tile = arch.xbar_rows, graph_tile_channels(graph, arch)
    before, whole = WeightBlocks(graph, tile), set(sets.fixed)
    while True:
        found = select_channels(graph, _find_kept(graph, sets, zero, whole))
        after = WeightBlocks(found.graph, tile)
        worse = {name for name in before.free if name not in whole and after.count(name) > before.count(name)}
        if not worse:
            return found
        whole |= worse


def _find_kept(
    graph: Graph, sets: ChannelSets, zero: Mapping[str, Bools], whole: Container[str]
) -> dict[str, npt.NDArray[np.int64]]:
    """Returns the channels that are not dead of each tensor that has dead ones. `whole`: sets that keep all."""
    dead = {name: np.full(size, name not in whole) for name, size in sets.sizes.items()}
    while _revive(graph, sets, zero, dead) or _keep_one(dead):
        pass
    kept = {name: np.flatnonzero(~gone) for name, gone in dead.items() if gone.any()}
    return {n: kept[sets.find(n)] for n in graph.tensors if sets.find(n) in kept}


def _has_zeros(graph: Graph) -> bool:
    """True if all weights of a channel of a layer are 0: of one that it reads, or of one that it makes."""
    layers = (node.operator for node in graph.nodes if isinstance(node.operator, Filter))
    return any(
        not (weights.any(axis=(0, 1)).all() and weights.any(axis=(0, 2)).all())
        for weights in (layer.weights for layer in layers)
    )


def _holds_zeros(graph: Graph) -> bool:
    """True if a channel of a constant tensor is 0."""
    constants = (node.operator.pixels for node in graph.nodes if isinstance(node.operator, ConstantTensor))
    return any(not pixels.any(axis=(0, 1)).all() for pixels in constants)


def _leaves_out(graph: Graph) -> bool:
    """True if a rearrangement reads not all elements of its operands."""
    for node in graph.nodes:
        if isinstance(node.operator, Move):
            sources = node.operator.sources
            read = np.zeros(sum(graph.tensors[name].image.elements for name in node.inputs), np.bool_)
            read[sources[sources >= 0]] = True
            if not read.all():
                return True
    return False


def _revive(graph: Graph, sets: ChannelSets, zero: Mapping[str, Bools], dead: dict[str, Bools]) -> bool:
    """Takes channels out of `dead` that a result depends on, by one look at each node. Returns whether any was."""
    changed = False
    for node in reversed(graph.nodes):
        if keeps_channels(node.operator):
            continue
        for k, name in enumerate(node.inputs):
            own = dead[sets.find(name)]
            if not own.any():
                continue
            lost = own & _is_needed(graph, node, k, dead[sets.find(node.output)]) & ~zero[name]
            if lost.any():
                own &= ~lost
                changed = True
    return changed


def _keep_one(dead: dict[str, Bools]) -> bool:
    """Takes a channel out of sets that are dead as a whole. Returns whether there was such a set."""
    whole = [gone for gone in dead.values() if gone.all()]
    for gone in whole:
        gone[0] = False
    return bool(whole)


def _is_needed(graph: Graph, node: Node, operand: int, dead: Bools) -> Bools:
    """Returns which channels of an operand the channels of the result that are not `dead` depend on."""
    channels = graph.tensors[node.inputs[operand]].image.channels
    match node.operator:
        case Filter() as layer if layer.groups == 1:
            kept = layer.weights[:, :, ~dead] if dead.any() else layer.weights
            return np.asarray(kept.any(axis=(0, 2)), np.bool_)
        case Move():
            operands, places = channels_of_move(node, graph)
            read = places[:, ~dead][operands[:, ~dead] == operand]
            found = np.zeros(channels, np.bool_)
            found[read] = True
            return found
        case _:
            return np.ones(channels, np.bool_)
