"""Graph to Graph: depthwise convolutions go to the crossbars or to the vector unit, whichever is faster."""

from dataclasses import replace

from raptor.graph.ir import (
    Filter,
    Graph,
    Node,
    Stencil,
)
from raptor.mapping.decision import tile_channels
from raptor.target.arch import Arch
from raptor.target.timing import mvmul_ns, vector_ns


def choose_depthwise(graph: Graph, arch: Arch) -> Graph:
    """A filter in which every channel is a group of its own becomes a stencil where that takes less time.

    A kernel position costs a product with a crossbar of which only a diagonal is used, or a vector product; the sums
    over the positions are the same. Filters that share their crossbars, or clip their sums, stay.
    """
    return replace(graph, nodes=tuple(_chosen(node, arch) for node in graph.nodes))


def _chosen(node: Node, arch: Arch) -> Node:
    operator = node.operator
    if not isinstance(operator, Filter) or not _is_depthwise(operator) or not _is_faster_as_vectors(operator, arch):
        return node
    return replace(node, operator=Stencil(operator.weights.swapaxes(0, 1), operator.window))


def _is_depthwise(operator: Filter) -> bool:
    alone = not operator.relu and not operator.key
    return alone and operator.groups > 1 and operator.groups == operator.in_channels == operator.weights.shape[2]


def _is_faster_as_vectors(operator: Filter, arch: Arch) -> bool:
    tile = tile_channels(arch)
    sizes = [min(tile, operator.groups - start) for start in range(0, operator.groups, tile)]
    vectors = sum(vector_ns(arch, size, operands=2) for size in sizes)
    products = sum(_products_ns(arch, size) for size in sizes)
    return vectors < products


def _products_ns(arch: Arch, channels: int) -> float:
    """The products of one tile with its part of the diagonal: as many as the tile has row blocks, then added up."""
    blocks = -(-channels // arch.xbar_rows)
    xbars = -(-channels // arch.outputs_per_xbar)
    return blocks * mvmul_ns(arch, xbars) + (blocks - 1) * vector_ns(arch, channels, operands=2)
