"""Depthwise convolutions and sums over channels as operators of the vector unit, which need no crossbars.

A layer goes to the vector unit if that takes less time than its products on crossbars.
"""

from collections.abc import Container
from dataclasses import replace

from raptor.graph.ir import ChannelSum, Filter, Graph, Node, Stencil
from raptor.graph.layers import (
    filter_key,
    find_filters,
    find_layer_nodes,
    has_narrow_weights,
    is_channel_sum,
    is_depthwise,
    layer_target,
    tile_channels,
)
from raptor.target.arch import Target
from raptor.target.timing import mvmul_ns, vector_ns
from raptor.transforms.rewrite_choices import OnVectorUnit, RewriteChoice


def use_vector_unit(graph: Graph, rewrites: RewriteChoice) -> Graph:
    """Returns the graph with a `Stencil` or a `ChannelSum` in place of each layer chosen for the vector unit.

    Each of these layers must be depthwise (`is_depthwise`) or a mean (`is_mean`).
    """
    layers = rewrites.on_vector_unit
    return replace(graph, nodes=tuple(_on_vector_unit(node, layers) for node in graph.nodes)) if layers else graph


def _on_vector_unit(node: Node, layers: Container[str]) -> Node:
    operator = node.operator
    if not isinstance(operator, Filter) or filter_key(node) not in layers:
        return node
    if operator.groups == 1:
        return replace(node, operator=ChannelSum(float(operator.weights.flat[0])))
    return replace(node, operator=Stencil(operator.weights.swapaxes(0, 1), operator.window))


def find_depthwise(graph: Graph, arch: Target) -> dict[str, OnVectorUnit]:
    """Returns the depthwise layers, by key, that take less time on the vector unit than on crossbars.

    A kernel position costs an MVM that uses only the diagonal of a crossbar, or a vector product. The additions over
    the positions cost the same in both cases. Filters that share their crossbars, that have a ReLU folded into
    them, or whose weights are wider than their input, stay on crossbars.
    """
    layers = find_layer_nodes(graph)
    candidates = {key: f for key, f in find_filters(graph).items() if has_narrow_weights(graph, layers[key])}
    depthwise = {key: f for key, f in candidates.items() if is_depthwise(f)}
    chips = {key: layer_target(graph, layers[key], arch) for key in depthwise}
    return {key: OnVectorUnit() for key, f in depthwise.items() if _is_faster_as_vectors(f, chips[key])}


def find_means(graph: Graph, arch: Target) -> dict[str, OnVectorUnit]:
    """Returns the layers, by key, that only add up their channels, and take less time on the vector unit.

    The front end makes them for means, as in a layer normalisation.
    """
    layers = find_layer_nodes(graph)
    means = {key: f for key, f in find_filters(graph).items() if is_channel_sum(graph, layers[key])}
    return {
        key: OnVectorUnit()
        for key, f in means.items()
        if channel_sum_ns(arch, *f.weights.shape[1:]) < _mean_ns(arch, f)
    }


def _mean_ns(arch: Target, filter_: Filter) -> float:
    """Returns the time of the MVMs of one pixel of a layer with one kernel position."""
    _, channels, results = filter_.weights.shape
    return -(-channels // arch.xbar_rows) * mvmul_ns(arch, -(-results // arch.outputs_per_xbar))


def channel_sum_ns(arch: Target, channels: int, results: int) -> float:
    """Returns the time in ns to add up the channels of a pixel, and to repeat the sum in `results` channels."""
    return vector_ns(arch, channels, 1) + (vector_ns(arch, results, 1) if results > 1 else 0.0)


def _is_faster_as_vectors(operator: Filter, arch: Target) -> bool:
    """Checks whether one kernel position takes less time as vector products than as MVMs."""
    tile = tile_channels(arch)
    sizes = [min(tile, operator.groups - start) for start in range(0, operator.groups, tile)]
    vectors = sum(vector_ns(arch, size, operands=2) for size in sizes)
    products = sum(_products_ns(arch, size) for size in sizes)
    return vectors < products


def _products_ns(arch: Target, channels: int) -> float:
    """Returns the time of one kernel position of one tile on crossbars: an MVM per row block, and their additions."""
    blocks = -(-channels // arch.xbar_rows)
    xbars = -(-channels // arch.outputs_per_xbar)
    return blocks * mvmul_ns(arch, xbars) + (blocks - 1) * vector_ns(arch, channels, operands=2)
