"""Cost of the epilogue of a layer: element-wise operations, pools and depthwise layers that run on the layer's cores.

Lines stay where they are made, so the cores of a layer also compute its epilogue, each for its own columns and channel
ranges. Some element-wise functions run where their result is read (`find_sunk_maps`), and are charged to that layer. A
vector operation on few channels takes as long as one on many channels, which matters in a depthwise layer.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from raptor.graph.ir import Concat, Elementwise, Filter, Graph, Node, Stencil
from raptor.graph.layers import filter_key, is_pointwise
from raptor.graph.streaming_layout import is_token_layout
from raptor.graph.window import Window
from raptor.mapping.modes.critical_operand import find_critical_positions
from raptor.mapping.modes.line_readers import find_line_readers
from raptor.mapping.modes.line_streaming import find_views, line_channel_ranges
from raptor.mapping.modes.operator_cost import copies_ns, operator_ns
from raptor.mapping.modes.spread_moves import NO_SPREAD_MOVES, SpreadMoves
from raptor.target.arch import Target
from raptor.target.timing import best_pixels_per_op, pixel_runs_ns


@dataclass(frozen=True, slots=True)
class _Stencil:
    """A depthwise layer: `operations` vector operations for each of `lines` x `width` output pixels.

    arch: the target with the widths of its sums. strided: neighbouring outputs do not read neighbouring inputs.
    """

    arch: Target
    lines: int
    width: int
    operations: int
    strided: bool

    def core_ns(self, columns: float, channels: int) -> float:
        """Returns the time in ns for a fraction `columns` of the columns, and one range of `channels` channels."""
        pixels = math.ceil(self.width * columns)
        together = 1 if self.strided else best_pixels_per_op(self.arch, pixels, channels)
        return self.lines * self.operations * pixel_runs_ns(self.arch, pixels, channels, together)


@dataclass(slots=True)
class Epilogue:
    """The epilogue of a layer.

    `elements_ns`: total time of its operations on whole lines. `stencils`: its depthwise layers.
    """

    elements_ns: float = 0.0
    stencils: list[_Stencil] = field(default_factory=list[_Stencil])

    @property
    def cost_key(self) -> object:
        """Hashable key: epilogues with equal keys have equal times."""
        return self.elements_ns, tuple(self.stencils)

    def core_ns(self, columns: float, channels: float, ranges: Iterable[int]) -> float:
        """Returns the time in ns of the epilogue on one core of the layer.

        columns, channels: fractions of the layer's columns and channels on the core. ranges: channels of each of its
        channel ranges.
        """
        weighted = (stencil.core_ns(columns, count) for count in ranges for stencil in self.stencils)
        return columns * channels * self.elements_ns + sum(weighted)


NO_EPILOGUE = Epilogue()
_Owners = tuple[tuple[str, int], ...]
"""Layers on whose cores a tensor is, each with the number of its channels there."""


def find_sunk_maps(graph: Graph) -> dict[str, str]:
    """Returns the tensors that are computed on the cores of the layer that reads them: name -> key of that layer.

    These are results of chains of element-wise functions between a tensor with several readers and a layer that reads
    each pixel once. On the cores of the producer they would prolong its occupancy until the reader is ready; in a
    DenseNet, until the last layer of the block.
    """
    maker = {node.output: node for node in graph.nodes}
    readers = Counter(name for node in graph.nodes for name in node.inputs)
    readers.update(graph.outputs)
    found: dict[str, str] = {}
    for node in graph.nodes:
        if not isinstance(node.operator, Filter) or not is_pointwise(node.operator.window):
            continue
        name, between = node.inputs[0], list[str]()
        while readers[name] == 1 and name in maker and _maps_one(maker[name]):
            between.append(name)
            (name,) = maker[name].inputs
        if between and readers[name] > 1 and not is_token_layout(graph.tensors[name].image):
            found |= dict.fromkeys(between, filter_key(node))
    return found


def _of_views(graph: Graph, arch: Target) -> dict[str, str]:
    """Returns the results of element-wise functions of views only: name -> key of the layer that reads them.

    Such views are materialised where the next layer reads them, also through these functions (`TokenLowering.wanted`).
    """
    views = find_views(graph, line_channel_ranges(graph, arch))
    readers = graph.readers()
    found: dict[str, str] = {}
    for node in graph.nodes if views else ():
        if isinstance(node.operator, Elementwise) and views.issuperset(node.inputs):
            layer, _ = next(find_line_readers(graph, readers, node.inputs[0]), (None, 0))
            if layer is not None and is_token_layout(graph.tensors[node.output].image):
                found[node.output] = filter_key(layer)
    return found


def _maps_one(node: Node) -> bool:
    """True if a node is an element-wise function of one tensor and constants."""
    return isinstance(node.operator, Elementwise) and len(node.inputs) == 1


def find_epilogues(graph: Graph, arch: Target, spread: SpreadMoves = NO_SPREAD_MOVES) -> dict[str, Epilogue]:
    """Returns the epilogue of each layer, by its key, including operators that run on its cores before it.

    Operators on a model input alone run where the input is loaded, or its lines are gathered; the key is then the name
    of the input, or of the result of the gather. `spread`: moves of computed tensors that have cores of their own.
    """
    gathers = spread.gathers(graph, line_channel_ranges(graph, arch))
    early = {*graph.inputs, *gathers} - spread.moves.keys()
    owners: dict[str, _Owners] = {name: ((name, graph.tensors[name].image.channels),) for name in graph.inputs}
    at_reader = find_sunk_maps(graph) | _of_views(graph, arch)
    found: defaultdict[str, Epilogue] = defaultdict(Epilogue)
    made = find_critical_positions(graph)
    for node in graph.nodes:
        if node.output in gathers:
            owners[node.output] = ((node.output, graph.tensors[node.output].image.channels),)
            continue
        if isinstance(node.operator, Filter):
            owners[node.output] = ((filter_key(node), graph.tensors[node.output].image.channels),)
            if node.operator.relu:
                _charge(found, owners[node.output], graph, node, arch)
            continue
        if node.output in at_reader:
            owners[node.output] = ((at_reader[node.output], graph.tensors[node.output].image.channels),)
            _charge(found, owners[node.output], graph, node, arch)
            continue
        given = [name for name in node.inputs if name in owners]
        # A tensor of one pixel, such as the gate of a squeeze-and-excitation block, is sent to those who repeat it.
        given = [name for name in given if graph.tensors[name].image.pixels > 1] or given
        # What a layer has made comes later than an input, and others wait for it.
        given = [name for name in given if owners[name][0][0] not in early] or given
        if given:
            if isinstance(node.operator, Concat):
                owners[node.output] = tuple(pair for name in given for pair in owners[name])
                continue
            lead = max(given, key=made.__getitem__)
            owners[node.output] = owners[lead]
            # NOTE: where a layer and a shortcut are added, counting that where it is done makes MobileNet-v2 and
            # EfficientNet-B0 8 % worse (latency x interval).
            charged = lead if is_token_layout(graph.tensors[node.output].image) else given[0]
            if node.output in spread.following:
                _charge_ns(found, owners[charged], copies_ns(graph, node, arch))
            _charge(found, owners[charged], graph, node, arch)
    return found


def _charge(found: defaultdict[str, Epilogue], owners: _Owners, graph: Graph, node: Node, arch: Target) -> None:
    """Adds the work of a node to the epilogues of the layers that own its result."""
    image = graph.tensors[node.output].image
    if isinstance(node.operator, Stencil):
        window, holding = node.operator.window, arch.with_element(graph.tensors[node.output].element)
        strided = not isinstance(window, Window) or window.strides[-1] > 1
        stencil = _Stencil(holding, image.rows, image.width, 2 * window.tap_count - 1, strided)
        for key in dict.fromkeys(key for key, _ in owners):
            found[key].stencils.append(stencil)
        return
    _charge_ns(found, owners, operator_ns(graph, node, arch))


def _charge_ns(found: defaultdict[str, Epilogue], owners: _Owners, work_ns: float) -> None:
    """Divides a time in ns among the epilogues of the layers that own a result, in proportion to their channels."""
    total = sum(channels for _, channels in owners)
    for key, channels in owners:
        found[key].elements_ns += work_ns * channels / total
