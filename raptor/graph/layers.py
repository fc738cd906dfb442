"""The layers of a graph: its filters by key, their kinds, and the tiles and element widths that they have on a chip."""

import numpy as np

from raptor.graph.ir import Filter, Graph, Node
from raptor.graph.window import Window, cached_input_pixels
from raptor.target.arch import Target, Widths
from raptor.target.chip_elements import MODELLED_FLOAT


def filter_key(node: Node) -> str:
    """Returns the name of a layer in the decision: its output, or the key that steps of a recurrent layer share."""
    assert isinstance(node.operator, Filter)
    return node.operator.key or node.output


def find_layer_nodes(graph: Graph) -> dict[str, Node]:
    """Returns the node of each layer by its key, in the order of the graph; the first if several share crossbars."""
    found: dict[str, Node] = {}
    for node in graph.nodes:
        if isinstance(node.operator, Filter):
            found.setdefault(filter_key(node), node)
    return found


def find_filters(graph: Graph) -> dict[str, Filter]:
    """Returns the filter of each layer by its key, in the order of the graph."""
    return {key: node.operator for key, node in find_layer_nodes(graph).items() if isinstance(node.operator, Filter)}


def is_pointwise(window: object) -> bool:
    """Checks whether every output pixel reads the input pixel of the same number."""
    if not isinstance(window, Window) or window.tap_count != 1 or window.transposed:
        return False
    return window.in_dims == window.out_dims and not any(window.pads) and set(window.strides) <= {1}


def is_depthwise(operator: Filter) -> bool:
    """Checks whether the vector unit can compute the layer: every channel is a group of its own.

    It must share no crossbars with other layers, and have no ReLU folded into it.
    """
    alone = not operator.relu and not operator.key
    return alone and operator.groups > 1 and operator.groups == operator.in_channels == operator.weights.shape[2]


def is_dense(filter_: Filter) -> bool:
    """Checks whether a layer has a single output pixel, and is not depthwise.

    Such a layer can have matrices of several output tiles; those between channels of different groups are left out.
    Its pixel must read at least one pixel of the image.
    """
    alone = filter_.window.out_pixels == 1 and not is_depthwise(filter_)
    return alone and len(find_inner_taps(filter_)) > 0


def find_inner_taps(filter_: Filter) -> list[int]:
    """Returns the kernel positions that do not lie in the padding. The layer has one output pixel."""
    return np.flatnonzero(cached_input_pixels(filter_.window)[0] >= 0).tolist()


def is_channel_sum(graph: Graph, node: Node) -> bool:
    """Checks whether all weights of a layer are one number, so that it adds up the channels of each pixel."""
    filter_, floats = (
        node.operator,
        all(graph.tensors[n].element == MODELLED_FLOAT for n in (*node.inputs, node.output)),
    )
    if not isinstance(filter_, Filter) or filter_.groups > 1 or filter_.key or filter_.relu or not floats:
        return False
    weights, first = filter_.weights, filter_.weights.flat[0]
    # Most layers differ in their first weights, and comparing all of a large one takes time.
    return is_pointwise(filter_.window) and bool((weights[0, 0] == first).all() and (weights == first).all())


def has_narrow_weights(graph: Graph, node: Node) -> bool:
    """Checks whether the weights of a layer fit elements of its input: a vector product reads both at one width.

    Weights of uint8 with a zero point have up to 9 bits. Floats always fit.
    """
    operator = node.operator
    assert isinstance(operator, Filter)
    return operator.weight_bits <= graph.tensors[node.inputs[0]].element.bits


def layer_target(graph: Graph, node: Node, arch: Target) -> Target:
    """Returns the target with the widths of a layer: weights, the input's elements, the sums that crossbars write."""
    given, sums = graph.tensors[node.inputs[0]].element, graph.tensors[node.output].element
    if given == MODELLED_FLOAT or not isinstance(node.operator, Filter):
        return arch
    return arch.with_widths(Widths(node.operator.weight_bits or arch.widths.weights, given.bits, sums.bits))


def graph_tile_channels(graph: Graph, arch: Target) -> int:
    """Returns the number of channels of a tile, given the widest weights of a graph."""
    return tile_channels(arch, max((filter_.weight_bits for filter_ in find_filters(graph).values()), default=0))


def tile_channels(arch: Target, weight_bits: int = 0) -> int:
    """Returns the number of channels of a tile: the outputs of crossbars side by side, up to the rows of a crossbar.

    It spans at least one crossbar and at most all crossbars of a core. For a square crossbar whose cell holds a whole
    weight, a tile has as many channels as the crossbar has rows (thesis, 4.3.1). Several crossbars form a tile if they
    are narrow, or if weights are sliced over cells. weight_bits: bits of the widest weights; 0: the target's.
    """
    outputs = min(arch.outputs_per_xbar, arch.weight_columns(weight_bits))
    side_by_side = max(1, min(arch.xbar_rows // outputs, arch.xbars_per_core))
    return side_by_side * outputs
