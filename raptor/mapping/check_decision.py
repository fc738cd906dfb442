"""Checks a stored decision against the graph and the chip. A decision without faults can be lowered by every pass.

The checks build on each other, so the first fault is the one to report: `next(decision_faults(...), None)`.
"""

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from raptor.common.options.option_values import STRATEGY
from raptor.graph.ir import Filter, Graph, Node
from raptor.graph.layers import (
    filter_key,
    find_layer_nodes,
    graph_tile_channels,
    has_narrow_weights,
    is_channel_sum,
    is_dense,
    is_depthwise,
)
from raptor.graph.window import Window
from raptor.mapping.decision import (
    Decision,
    DotGrid,
    FullyConnected,
    KernelUnfolding,
    LayerRecord,
    LineFlow,
    LineGrid,
    LineUnfolding,
    Matrix,
    PixelFlow,
    Range,
    SharedDot,
    StageSplit,
    count_matrix_crossbars,
)
from raptor.mapping.modes.dense_unfolding import unfold_dense
from raptor.mapping.modes.kernel_unfolding import unfold_kernel
from raptor.mapping.modes.line_streaming import (
    ChannelRanges,
    can_stream_layer,
    can_stream_product,
    find_gathers,
    find_views,
    line_channel_ranges,
)
from raptor.mapping.modes.line_unfolding import block_shape, cut_bands, grid_blocks, outputs_reading
from raptor.mapping.modes.spread_moves import can_spread
from raptor.mapping.pixelwise_mapping import check_operation_count
from raptor.target.arch import Target
from raptor.transforms.rewrite_choices import JoinedLayer, OnVectorUnit

MOST_GRID_SIZE = 2**31 - 1
MOST_PATIENCE_NS = 1e9
LATEST_SAMPLE = 15
"""Each sample that is scheduled takes time."""


def layer_name_faults(decision: Decision, graph: Graph) -> Iterator[str]:
    """Yields a sentence if the decision and the prepared graph do not have the same layers.

    If none is missing, further layers may be those that rewrites add: `decision_faults` knows.
    """
    wanted = find_layer_nodes(graph).keys()
    odd = sorted(wanted ^ decision.layers.keys())
    if wanted <= decision.layers.keys():
        odd = [key for key in odd if isinstance(decision.layers[key], JoinedLayer | OnVectorUnit)]
    if odd:
        fault = "is not mapped" if odd[0] in wanted else "is not of this model"
        yield f"layer {odd[0]} {fault}; {len(odd)} layers differ"


def record_faults(decision: Decision, graph: Graph, arch: Target) -> Iterator[str]:
    """Yields the faults of a decision that the prepared `graph` shows before its rewrites: settings, cores, kinds.

    Decision and graph must have the same layers. A decision without these faults says which rewrites the graph gets.
    """
    yield from _setting_faults(decision, graph, arch)
    for core in decision.cores:
        if not 0 <= core < arch.usable_cores:
            yield f"core {core} of {arch.usable_cores}"
    for key, node in find_layer_nodes(graph).items():
        yield from (f"layer {key}: {fault}" for fault in _kind_faults(decision, decision.layers[key], node, graph))


def decision_faults(decision: Decision, graph: Graph, arch: Target) -> Iterator[str]:
    """Yields a sentence for each fault of a decision, with the layer and the field at fault. `graph` has all rewrites.

    There must be no `record_faults`. Raises `UserError` if a decision by pixel makes too many operations.
    """
    nodes = find_layer_nodes(graph)
    yield from _joined_layer_faults(decision, nodes)
    yield from _added_layer_faults(decision, nodes)
    if decision.tile != (tile := graph_tile_channels(graph, arch)):
        yield f"tile: {decision.tile} channels, on this chip {tile}"
    chip = _Chip(graph, arch, decision.tile, line_channel_ranges(graph, arch))
    for key, node in nodes.items():
        yield from (f"layer {key}: {fault}" for fault in _layer_faults(chip, decision.layers[key], node))
    if isinstance(decision.flow, PixelFlow):
        check_operation_count(graph, decision)
    yield from _loader_faults(chip, decision)
    yield from _product_faults(chip, decision)
    yield from _crossbar_faults(chip, decision, nodes)


def _added_layer_faults(decision: Decision, nodes: Mapping[str, Node]) -> Iterator[str]:
    """Yields a sentence if the decision and the graph with all rewrites do not have the same layers with matrices."""
    own = {key for key, record in decision.layers.items() if not isinstance(record, JoinedLayer | OnVectorUnit)}
    odd = sorted(own ^ nodes.keys())
    if odd:
        fault = "is not mapped" if odd[0] in nodes else "is not of this model"
        yield f"layer {odd[0]} {fault}; {len(odd)} layers differ"


@dataclass(frozen=True, slots=True)
class _Chip:
    """The graph and the chip by which the records of layers are checked.

    `graph` has all rewrites. `parts`: channel ranges of its streamed tensors.
    """

    graph: Graph
    arch: Target
    tile: int
    parts: dict[str, ChannelRanges]


def _setting_faults(decision: Decision, graph: Graph, arch: Target) -> Iterator[str]:
    """Yields faults of what all layers share: strategy, placement, crossbar sizes, patience, sample of the order."""
    if decision.strategy not in STRATEGY.choices:
        yield f"strategy: expected one of: {', '.join(STRATEGY.choices)}"
    yield from _placement_faults(decision.placement.places if decision.placement else (), arch.usable_cores)
    if isinstance(decision.flow, LineFlow):
        xbar = arch.xbar_rows, arch.outputs_per_xbar
        if decision.flow.xbar != xbar:
            yield f"flow.xbar: {decision.flow.xbar}, on this chip {xbar}"
        if not 0 <= decision.flow.patience_ns <= MOST_PATIENCE_NS:
            yield f"flow.patience_ns: {decision.flow.patience_ns}, expected 0 to {MOST_PATIENCE_NS:g}"
        if not 0 <= decision.flow.sample <= LATEST_SAMPLE:
            yield f"flow.sample: {decision.flow.sample}, expected 0 to {LATEST_SAMPLE}"
        if decision.flow.stages is not None:
            yield from _stage_faults(decision.flow, decision.flow.stages, graph)


def _stage_faults(flow: LineFlow, stages: StageSplit, graph: Graph) -> Iterator[str]:
    """Yields faults of the stages of samples that overlap."""
    if not 0 < stages.interval_ns <= MOST_PATIENCE_NS:
        yield f"flow.stages.interval_ns: {stages.interval_ns}, expected more than 0, to {MOST_PATIENCE_NS:g}"
    if not 0 <= stages.patience_ns <= MOST_PATIENCE_NS:
        yield f"flow.stages.patience_ns: {stages.patience_ns}, expected 0 to {MOST_PATIENCE_NS:g}"
    if not 0 <= stages.sample <= LATEST_SAMPLE:
        yield f"flow.stages.sample: {stages.sample}, expected 0 to {LATEST_SAMPLE}"
    if not flow.streamed or graph.residency.states:
        yield "flow.stages: only for a streamed mapping of a model without states on the chip"


def _placement_faults(places: Sequence[int], cores: int) -> Iterator[str]:
    """Yields a sentence unless there are no places, or each of the places of all `cores` once."""
    if sorted(places) not in ([], [*range(cores)]):
        odd = next(iter(Counter(places) - Counter(range(cores))), None)
        found = f"{len(places)} places" if odd is None else f"one {odd} too many"
        yield f"placement: {found}, expected each of 0 to {cores - 1} once; null has it decided anew"


def _kind_faults(decision: Decision, layer: LayerRecord, node: Node, graph: Graph) -> Iterator[str]:
    """Yields a sentence if the operator of a layer, or the flow of the decision, does not allow the layer's kind."""
    operator = node.operator
    assert isinstance(operator, Filter)
    by_line = isinstance(decision.flow, LineFlow)
    if isinstance(layer, OnVectorUnit) and not is_depthwise(operator) and not is_channel_sum(graph, node):
        yield "kind: vector, but it is neither a depthwise layer nor a mean"
    if isinstance(layer, OnVectorUnit) and not has_narrow_weights(graph, node):
        yield f"kind: vector, but its weights have {operator.weight_bits} bits, more than its input"
    if isinstance(layer, FullyConnected | LineUnfolding | JoinedLayer) and not by_line:
        yield f"kind: {layer.kind}, but flow is by {decision.flow.kind}"
    if isinstance(layer, FullyConnected) and not is_dense(operator):
        yield "kind: fully_connected, but it has several output pixels, or is depthwise"


def _joined_layer_faults(decision: Decision, left: Container[str]) -> Iterator[str]:
    """Yields a sentence for each joined layer that is still a node of the graph (`left`): it could not be fused."""
    for key, layer in decision.layers.items():
        if isinstance(layer, JoinedLayer) and key in left:
            yield f"layer {key}: layer: {layer.layer}, which does not multiply the same pixels before it"


def _layer_faults(chip: _Chip, layer: LayerRecord, node: Node) -> Iterator[str]:
    """Yields the faults of the record of a layer, by its class."""
    assert isinstance(node.operator, Filter)
    match layer:
        case KernelUnfolding():
            yield from _matrix_faults(layer, tuple(unfold_kernel(node.operator, chip.arch, chip.tile)))
        case FullyConnected():
            yield from _fully_connected_faults(chip, layer, node, node.operator)
        case LineUnfolding():
            yield from _line_faults(chip, layer, node, node.operator)
        case OnVectorUnit() | JoinedLayer():
            pass


def _matrix_faults(layer: KernelUnfolding | FullyConnected, wanted: Sequence[Matrix], copies: int = 1) -> Iterator[str]:
    """Yields the faults of matrices. `wanted`: the only matrices that the layer and its kind allow."""
    if len(layer.matrices) != len(wanted):
        yield f"matrices: {len(layer.matrices)}, expected {len(wanted)}"
    for i, (given, other) in enumerate(zip(layer.matrices, wanted, strict=False)):
        if given != other:
            yield f"matrices[{i}]: {given}, expected {other}"
    if len(layer.cores) != len(wanted) * copies:
        yield f"cores: {len(layer.cores)} for {copies} x {len(layer.matrices)} matrices"


def _fully_connected_faults(chip: _Chip, layer: FullyConnected, node: Node, filter_: Filter) -> Iterator[str]:
    """Yields the faults of a fully connected layer: the width of its matrices, the matrices, their cores."""
    outs = filter_.weights.shape[2]
    width = layer.matrices[0].cols[1] if layer.matrices else 0
    if not 0 < width <= outs or (width < outs and width % chip.tile):
        yield f"matrices: the first has outputs 0:{width}, expected whole tiles of {chip.tile}, at most {outs}"
        return
    steps = sum(isinstance(n.operator, Filter) and filter_key(n) == filter_key(node) for n in chip.graph.nodes)
    copies = min(max(1, len(layer.cores) // len(layer.matrices)), steps)
    yield from _matrix_faults(layer, tuple(unfold_dense(filter_, chip.arch, chip.tile, -(-width // chip.tile))), copies)
    for step in range(steps):
        placed = zip(layer.matrices, layer.step_record(step, steps).cores, strict=False)
        for cols, group in groupby(placed, key=lambda pair: pair[0].cols):
            runs = [core for core, _ in groupby(core for _, core in group)]
            if len(set(runs)) < len(runs):
                yield f"cores: matrices of outputs {cols[0]}:{cols[1]} come back to a core"


def _line_faults(chip: _Chip, layer: LineUnfolding, node: Node, filter_: Filter) -> Iterator[str]:
    """Yields the faults of a layer with line unfolding: its grid, its cores, its blocks."""
    if not can_stream_layer(chip.graph, node, filter_, chip.parts, chip.arch.xbar_rows):
        yield "kind: line, but it cannot be computed by line"
        return
    grid, window = layer.grid, filter_.window
    for name, value, least, most in (
        ("height", grid.height, 1, window.in_dims[-2]),
        ("pixels", grid.pixels, 1, MOST_GRID_SIZE),
        ("outputs", grid.outputs, 0, MOST_GRID_SIZE),
        ("step", grid.step, 1, MOST_GRID_SIZE),
        ("copies", grid.copies, 1, MOST_GRID_SIZE),
    ):
        if not least <= value <= most:
            yield f"grid.{name}: {value}, expected {least} to {most}"
    yield from _range_faults("grid.cols", grid.cols, window.out_dims[-1])
    if grid.lanes:
        yield from _range_faults("grid.lanes", grid.lanes, window.out_lines)
    yield from _range_faults("grid.outs", grid.outs, filter_.weights.shape[2])
    ends = {stop for _, stop in chip.parts[node.output]}
    if any(stop not in ends for _, stop in grid.outs):
        yield f"grid.outs: {grid.outs}, cut elsewhere than the lines, at {sorted(ends)}"
    if not all(grid.ins) or tuple(part for group in grid.ins for part in group) != chip.parts[node.inputs[0]]:
        yield f"grid.ins: {grid.ins}, expected groups of {chip.parts[node.inputs[0]]}"
    if filter_.groups > 1 and len(grid.ins) > 1:
        yield f"grid.ins: {len(grid.ins)} groups, but a layer with groups of channels has one"
    if len(layer.cores) != grid.cores:
        yield f"cores: {len(layer.cores)} for a grid of {grid.cores}"
    elif len(set(layer.cores)) < len(layer.cores):
        yield from _repeated_core_faults(chip, layer, window)
    yield from _block_faults(chip, grid, window)


def _repeated_core_faults(chip: _Chip, layer: LineUnfolding, window: Window) -> Iterator[str]:
    """Yields a sentence for a core that the grid names twice, except in several segments with the same matrices."""
    grid, known = layer.grid, dict[int, object]()
    each = grid.cores // grid.segment_count
    for s, (_, cols) in enumerate(grid.segments(window.out_lines)):
        own = layer.cores[s * each : (s + 1) * each]
        if len(set(own)) < len(own):
            yield f"cores: one core twice for columns {cols[0]}:{cols[1]}"
        for k, core in enumerate(own):
            group = grid.ins[k // len(grid.outs)]
            blocks = [block for part in group for block in grid_blocks(window, chip.arch.xbar_rows, grid, part, cols)]
            matrices = k, tuple(dict.fromkeys(block_shape(window, block) for block in blocks))
            if known.setdefault(core, matrices) != matrices:
                yield f"cores: core {core} has other matrices for columns {cols[0]}:{cols[1]} than before"


def _range_faults(field: str, ranges: Sequence[Range], whole: int) -> Iterator[str]:
    """Yields a sentence unless the ranges cover 0 to `whole` one after another, and none is empty."""
    follow = all(a[1] == b[0] for a, b in pairwise(ranges))
    if not ranges or not follow or any(a >= b for a, b in ranges) or (ranges[0][0], ranges[-1][1]) != (0, whole):
        yield f"{field}: {ranges}, expected ranges that follow each other from 0 to {whole}"


def _block_faults(chip: _Chip, grid: LineGrid, window: Window) -> Iterator[str]:
    """Yields a sentence for blocks with more rows than a crossbar, and for several blocks side by side in a band."""
    for part in (part for group in grid.ins for part in group):
        for cols in grid.cols:
            blocks = grid_blocks(window, chip.arch.xbar_rows, grid, part, cols)
            rows = max((b.pixels[1] - b.pixels[0] for b in blocks), default=0) * grid.height * (part[1] - part[0])
            if rows > chip.arch.xbar_rows:
                yield f"grid: blocks of {rows} rows, a crossbar has {chip.arch.xbar_rows}"
            if grid.height > 1 and len(blocks) > 1:
                yield f"grid.height: {grid.height} lines, but columns {cols[0]}:{cols[1]} take {len(blocks)} blocks"


def _loader_faults(chip: _Chip, decision: Decision) -> Iterator[str]:
    """Yields the faults of loaders, which must load or gather all columns of an input that is read line by line."""
    read = {name for node in chip.graph.nodes for name in node.inputs} | {*chip.graph.outputs}
    views = find_views(chip.graph, chip.parts)
    fed = {*chip.graph.inputs, *find_gathers(chip.graph, chip.parts)}
    readers = chip.graph.readers()
    fed.update(
        node.output
        for node in chip.graph.nodes
        if can_spread(chip.graph, node, chip.parts, views, readers.get(node.output, ()))
    )
    for name, loaders in decision.flow.loaders.items() if isinstance(decision.flow, LineFlow) else ():
        if name not in fed or name not in chip.parts or name not in read:
            yield f"flow.loaders: {name} is not an input that is read by line"
            continue
        width = chip.graph.tensors[name].image.width
        yield from _range_faults(f"flow.loaders.{name}", [cols for cols, _ in loaders], width)


def _product_faults(chip: _Chip, decision: Decision) -> Iterator[str]:
    """Yields the faults of the cores of products, which must compute all lines and pixels of the result."""
    graph = chip.graph
    nodes = {node.output: node for node in graph.nodes}
    views = find_views(graph, chip.parts)
    for name, grid in decision.flow.products.items() if isinstance(decision.flow, LineFlow) else ():
        if name not in nodes or not can_stream_product(graph, nodes[name], chip.parts, views):
            yield f"flow.products: {name} is not a product of two computed tensors by line"
            continue
        image = graph.tensors[name].image
        yield from _range_faults(f"flow.products.{name}.rows", grid.rows, image.rows)
        if isinstance(grid, SharedDot):
            yield from _range_faults(f"flow.products.{name}.parts", grid.parts, image.channels)
            second = grid.parts
        else:
            yield from (f"flow.products.{name}.relays: {fault}" for fault in _relay_faults(graph, grid, image.width))
            yield from _range_faults(f"flow.products.{name}.cols", grid.cols, image.width)
            if grid.chain < 1:
                yield f"flow.products.{name}.chain: {grid.chain}, expected 1 or more"
            second = grid.cols
        if len(grid.cores) != len(grid.rows) * len(second):
            yield f"flow.products.{name}.cores: {len(grid.cores)} for {len(grid.rows)} x {len(second)} places"


def _relay_faults(graph: Graph, grid: DotGrid, queries: int) -> Iterator[str]:
    """Yields the faults of `DotGrid.relays`: each tensor must have a pixel for each of the `queries`."""
    for name in grid.relays:
        if name not in graph.tensors:
            yield f"{name} is no tensor"
        elif (pixels := graph.tensors[name].image.width) != queries:
            yield f"{name} has {pixels} pixels, not {queries} as the product"


def _crossbar_faults(chip: _Chip, decision: Decision, nodes: dict[str, Node]) -> Iterator[str]:
    """Yields a sentence for each core whose layers need more crossbars than it has."""
    used: Counter[int] = Counter()
    for key, node in nodes.items():
        used.update(_count_crossbars(chip, decision.layers[key], node))
    for core, xbars in sorted(used.items()):
        if xbars > chip.arch.xbars_per_core:
            yield f"cores: core {core} holds {xbars} crossbars, it has {chip.arch.xbars_per_core}"


def _count_crossbars(chip: _Chip, layer: LayerRecord, node: Node) -> Counter[int]:
    """Counts the crossbars of one layer on each of its cores."""
    match layer:
        case KernelUnfolding(matrices, cores) | FullyConnected(matrices, cores):
            return count_matrix_crossbars(matrices, cores)
        case LineUnfolding():
            assert isinstance(node.operator, Filter)
            return Counter(_count_line_crossbars(chip, layer, node.operator, chip.parts[node.output]))
        case OnVectorUnit() | JoinedLayer():
            return Counter()


def _count_line_crossbars(chip: _Chip, layer: LineUnfolding, filter_: Filter, tiles: ChannelRanges) -> dict[int, int]:
    """Counts the crossbars of a line layer by core. Blocks and bands of equal shape share a matrix and its copies.

    tiles: channel ranges of its output.
    """
    grid, window, most = layer.grid, filter_.window, chip.arch.weight_columns(filter_.weight_bits)
    phases = {shape for _, shape in cut_bands(window, grid.height, clipped=grid.clipped)}
    found: dict[int, int] = {}
    for s, (_, cols) in enumerate(grid.segments(window.out_lines)):
        for g, group in enumerate(grid.ins):
            shapes = Counter(
                (part, block_shape(window, block))
                for part in group
                for block in grid_blocks(window, chip.arch.xbar_rows, grid, part, cols)
            )
            for p, outs in enumerate(grid.outs):
                widths = {part: [b - a for a, b in outputs_reading(filter_, part, outs, tiles)] for part in group}
                core = layer.core(s, g, p)
                xbars = sum(
                    min(grid.copies, uses) * -(-len(band.outs) * len(places) * width // most)
                    for band in phases
                    for (part, (_, _, places)), uses in shapes.items()
                    for width in widths[part]
                )
                found[core] = max(found.get(core, 0), xbars)  # segments of a core share their matrices
    return found
