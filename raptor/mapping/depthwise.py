"""Chooses for each depthwise convolution the crossbars or the vector unit, whichever is faster."""

from collections.abc import Container
from dataclasses import replace

from raptor.graph.ir import (
    ChannelSum,
    Filter,
    Graph,
    Node,
    Stencil,
)
from raptor.graph.layers import (
    filter_key,
    filters_of,
    has_narrow_weights,
    is_depthwise,
    layer_nodes,
    layer_target,
    tile_channels,
)
from raptor.mapping.decision import ByLine, Decision
from raptor.target.arch import Target
from raptor.target.timing import mvmul_ns, vector_ns
from raptor.transforms.choices import JoinedLayer, OnVectorUnit
from raptor.transforms.compose_gathers import compose_gathers
from raptor.transforms.fold_space_to_depth import fold_space_to_depth
from raptor.transforms.fuse_horizontally import fuse_horizontally
from raptor.transforms.fuse_parallel_branches import fuse_parallel_branches
from raptor.transforms.lay_out_matmuls import lay_out_matmuls
from raptor.transforms.lay_out_tokens import lay_out_tokens
from raptor.transforms.lift_to_2d import lift_to_2d
from raptor.transforms.sink_transposes import sink_transposes
from raptor.transforms.split_rows import split_rows


def choose_depthwise(graph: Graph, arch: Target) -> dict[str, OnVectorUnit]:
    """Returns the depthwise layers, by key, that take less time on the vector unit than on crossbars.

    A kernel position costs an MVM with a crossbar of which only a diagonal is used, or a vector product. The additions
    over the positions cost the same in both cases. Filters that share their crossbars, that have a ReLU folded into
    them, or whose weights are wider than their input, stay on crossbars.
    """
    layers = layer_nodes(graph)
    candidates = {key: f for key, f in filters_of(graph).items() if has_narrow_weights(graph, layers[key])}
    depthwise = {key: f for key, f in candidates.items() if is_depthwise(f)}
    chips = {key: layer_target(graph, layers[key], arch) for key in depthwise}
    return {key: OnVectorUnit() for key, f in depthwise.items() if _is_faster_as_vectors(f, chips[key])}


def use_vector_unit(graph: Graph, decision: Decision) -> Graph:
    """Returns the graph as the decision computes it: without crossbars for the layers on the vector unit.

    If the flow is by line, sequences are laid out as tokens, signals are images of one line, and joined layers are one.
    """
    on_vectors = {key for key, layer in decision.layers.items() if isinstance(layer, OnVectorUnit)}
    if not isinstance(decision.flow, ByLine):
        return as_stencils(graph, on_vectors)
    joined = {key: layer for key, layer in decision.layers.items() if isinstance(layer, JoinedLayer)}
    return fuse_horizontally(as_lines(as_stencils(fuse_parallel_branches(graph, joined), on_vectors)), joined)


def use_views(graph: Graph, decision: Decision) -> Graph:
    """Returns the graph with joined rearrangements if the decision is by line, else the graph as it is."""
    return compose_gathers(graph) if isinstance(decision.flow, ByLine) else graph


def as_lines(graph: Graph) -> Graph:
    """Returns the graph with its sequences, long lines, signals and volumes laid out for the flow by line."""
    return lift_to_2d(split_rows(lay_out_matmuls(sink_transposes(lay_out_tokens(fold_space_to_depth(graph))))))


def as_stencils(graph: Graph, layers: Container[str]) -> Graph:
    """Returns the graph with operators without crossbars in place of the filters whose keys are in `layers`."""
    return replace(graph, nodes=tuple(_as_stencil(node, layers) for node in graph.nodes))


def _as_stencil(node: Node, layers: Container[str]) -> Node:
    operator = node.operator
    if not isinstance(operator, Filter) or filter_key(node) not in layers:
        return node
    if operator.groups == 1:
        return replace(node, operator=ChannelSum(float(operator.weights.flat[0])))
    return replace(node, operator=Stencil(operator.weights.swapaxes(0, 1), operator.window))


def _is_faster_as_vectors(operator: Filter, arch: Target) -> bool:
    """Tells whether one kernel position takes less time as vector products than as MVMs."""
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
