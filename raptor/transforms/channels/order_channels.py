"""Puts channels between layers into the order in which most matrices of a crossbar's size are all zeros."""

import numpy as np

from raptor.graph.ir import Graph
from raptor.graph.layers import graph_tile_channels
from raptor.target.arch import Target
from raptor.transforms.channels.select_channels import SelectedChannels, select_channels
from raptor.transforms.channels.weight_blocks import WeightBlocks

_ROUNDS = 3
"""Times that the order of each set is looked at again, because the order of its neighbours may be another one."""


def order_channels(graph: Graph, arch: Target) -> SelectedChannels:
    """Returns the graph with the channels of each set in another order, if that leaves more matrices of zeros.

    Channels that use the same tiles of the layers around them become neighbours. The order of model inputs and
    outputs stays. Dense layers use all tiles, so their order stays, too.
    """
    blocks = WeightBlocks(graph, (arch.xbar_rows, graph_tile_channels(graph, arch)))
    if not blocks.have_zeros():
        return select_channels(graph, {})
    for _ in range(_ROUNDS):
        improved = [blocks.improve(name) for name in blocks.free]
        if not any(improved):
            break
    order, find = blocks.order, blocks.sets.find
    moved = {name for name, index in order.items() if (np.diff(index) < 0).any()}
    return select_channels(graph, {name: order[find(name)] for name in graph.tensors if find(name) in moved})
