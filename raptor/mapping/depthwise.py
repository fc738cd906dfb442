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
from raptor.mapping.cut_lines import cut_lines
from raptor.mapping.decision import ByLine, Decision, JoinedLayer, OnVectorUnit, filter_key, filters_of, layer_nodes
from raptor.mapping.early_maps import map_before_moves
from raptor.mapping.joined import join_layers
from raptor.mapping.kernel_unfolding import tile_channels
from raptor.mapping.operands import operands_as_lines
from raptor.mapping.signals import lift_signals
from raptor.mapping.strided import read_in_place
from raptor.mapping.sums import join_sums
from raptor.mapping.token_layout import lay_tokens
from raptor.mapping.widths import layer_target
from raptor.target.arch import Target
from raptor.target.timing import mvmul_ns, vector_ns


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
    return join_layers(as_lines(as_stencils(join_sums(graph, joined), on_vectors)), joined)


def as_lines(graph: Graph) -> Graph:
    """Returns the graph with its sequences, long lines, signals and volumes laid out for the flow by line."""
    return lift_signals(cut_lines(operands_as_lines(map_before_moves(lay_tokens(read_in_place(graph))))))


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


def is_depthwise(operator: Filter) -> bool:
    """Tells whether the vector unit can compute the layer: every channel is a group of its own.

    It must share no crossbars with other layers, and have no ReLU folded into it.
    """
    alone = not operator.relu and not operator.key
    return alone and operator.groups > 1 and operator.groups == operator.in_channels == operator.weights.shape[2]


def has_narrow_weights(graph: Graph, node: Node) -> bool:
    """Tells whether the weights of a layer fit elements of its input: a vector product reads both at one width.

    Weights of uint8 with a zero point have up to 9 bits. Floats always fit.
    """
    operator = node.operator
    assert isinstance(operator, Filter)
    return operator.weight_bits <= graph.tensors[node.inputs[0]].element.bits


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
