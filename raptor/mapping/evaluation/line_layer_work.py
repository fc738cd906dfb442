"""The work of layers with weights: line by line on a grid of cores, or with matrices of whole tiles."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from raptor.graph.ir import Filter, Node
from raptor.graph.layers import layer_target
from raptor.mapping.decision import LineUnfolding
from raptor.mapping.evaluation.cell_layout import CellLayout, PlacedCell
from raptor.mapping.evaluation.graph_facts import LineProducts
from raptor.mapping.evaluation.node_work import NodeWork
from raptor.mapping.evaluation.walk import WorkWalk, window_steps
from raptor.mapping.modes.integer_costs import with_accumulators
from raptor.mapping.modes.line_streaming import Range
from raptor.mapping.modes.line_unfolding import (
    BandShape,
    block_shape,
    count_bands,
    count_blocks,
    count_inside,
    count_lane_bands,
    cut_bands,
    find_summed_groups,
    outputs_reading,
    pixels_per_block,
)
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, mvmul_ns, vector_element_ns, vector_ns


@dataclass(slots=True)
class _LineLayer:
    """A layer that is computed line by line."""

    walk: WorkWalk
    node: Node
    operator: Filter
    chosen: LineUnfolding
    chip: Target
    segments: tuple[tuple[Range, Range], ...] = field(init=False)
    """Output lines and columns of each segment of the grid."""

    def __post_init__(self) -> None:
        self.segments = tuple(self.chosen.grid.segments(self.operator.window.out_lines))

    def limit(self, work: NodeWork, place: int | tuple[int, int], lane: Range) -> None:
        """Records that a core, or the messages between two, are busy for a lane only, if the layer has lanes."""
        if self.chosen.grid.lanes:
            work.widen_span(place, lane)

    def lines_read(self, lane: Range) -> Range:
        """Returns the range of the input lines that a lane reads; all lines if there are no lanes."""
        window = self.operator.window
        if not self.chosen.grid.lanes:
            return 0, window.in_lines
        grid = self.chosen.grid
        bands = [band for band, _ in cut_bands(window, grid.height, clipped=grid.clipped, lane=lane)]
        low, high = (band.lines[0] for band in bands), (band.lines[1] for band in bands)
        return min(low, default=0), max(high, default=0)

    def products(self, lane: Range, cols: Range, part: Range, width: int) -> LineProducts | None:
        """Returns the products of `part` input channels for `width` output channels; None if nothing is read."""
        grid = self.chosen.grid
        pixels = min(grid.pixels, pixels_per_block(part, self.walk.arch.xbar_rows))
        key = self.node.output, lane, cols, pixels, width, grid.height, grid.outputs, grid.clipped
        known = self.walk.facts.products
        if key not in known:
            known[key] = self.add_up(lane, cols, pixels, width)
        return known[key]

    def bands(self, lane: Range) -> Mapping[tuple[BandShape, int], int]:
        """Returns the number of bands of a lane by shape and number of output lines that products are added to."""
        height, clipped = self.chosen.grid.height, self.chosen.grid.clipped
        if self.chosen.grid.lanes:
            return count_lane_bands(self.operator.window, height, clipped=clipped, lane=lane)
        counted = count_bands(self.operator.window, height, clipped=clipped)
        return {(band, len(band.outs)): count for band, count in counted.items()}

    def add_up(self, lane: Range, cols: Range, pixels: int, width: int) -> LineProducts | None:
        """Returns the products of blocks of `pixels` pixels."""
        grid, window, columns = self.chosen.grid, self.operator.window, self.chip.outputs_per_xbar
        blocks = count_blocks(window, cols, pixels, grid.outputs, clipped=grid.clipped)
        own = count_inside(window, cols, pixels, grid.outputs, clipped=grid.clipped)
        if not blocks:
            return None
        products_ns, crossbars, shapes, terms, runs = 0.0, 0, set[object](), 0, 0
        for (band, outs), count in self.bands(lane).items():
            for (block, alike), (inside, within) in zip(blocks, own, strict=True):
                side = -(-len(band.outs) * len(block.outs) * width // columns)
                products_ns += alike * count * (mvmul_ns(self.chip, side) + ISSUE_NS)
                terms += count * outs * inside
                runs += count * outs * within
                shape = band, block_shape(window, block)
                crossbars += 0 if shape in shapes else side
                shapes.add(shape)
        span = blocks[0][0].pixels[0], blocks[-1][0].pixels[1]
        return LineProducts(products_ns, terms, runs, span, crossbars)

    def add_core(self, works: Mapping[Range, NodeWork], core: int, segment: int, group: int, outs: Range) -> None:
        """Adds the work of one core of the grid, but not the sums over groups."""
        (name,), tiles = self.node.inputs, self.walk.facts.parts[self.node.output]
        lane, cols = self.segments[segment]
        steps = lane if self.chosen.grid.lanes else None
        given, sums = self.walk.layouts[name], with_accumulators(self.chip)
        lines = sum(band.lines * count for (band, _), count in self.bands(lane).items())
        rows = self.lines_read(lane)
        terms = own = 0
        # What is made last is added last: the first results are not added to anything.
        for part in sorted(self.chosen.grid.ins[group], key=lambda part: works[part].number):
            work = works[part]
            self.limit(work, core, lane)
            for reading in outputs_reading(self.operator, part, outs, tiles):
                width = reading[1] - reading[0]
                found = self.products(lane, cols, part, width)
                if found is None:
                    continue
                work.compute_ns[core] += found.products_ns
                ranges = sum(reading[0] <= low and high <= reading[1] for low, high in tiles)
                before, terms = max(terms - own, 0), terms + found.terms * width
                own = max(own, (lane[1] - lane[0]) * (cols[1] - cols[0]) * width)
                added_ns = max(max(terms - own, 0) - before, 0) * vector_element_ns(sums)
                work.compute_ns[core] += added_ns + found.runs * ranges * ISSUE_NS
                self.walk.crossbars[core] += found.crossbars * self.chosen.grid.copies
                at = _range_with(given, part)
                self.walk.bring_lines(work, name, rows, at, found.span, core, lines=lines, steps=steps)

    def add_sums(self, work: NodeWork, segment: int, part: int, outs: Range, number: int) -> int:
        """Adds the sums of an output range over all groups of input channels. Returns the core of the result."""
        grid, sums = self.chosen.grid, with_accumulators(self.chip)
        groups = find_summed_groups(self.operator, grid.ins, outs)
        home = self.chosen.core(segment, groups[part % len(groups)], number)
        lane, cols = self.segments[segment]
        lines = lane[1] - lane[0]
        elements = (cols[1] - cols[0]) * (outs[1] - outs[0])
        for group in groups:
            core = self.chosen.core(segment, group, number)
            if core != home:
                work.send(sums, core, home, elements, lines)
                self.limit(work, (core, home), lane)
                work.compute_ns[home] += lines * (vector_ns(sums, elements, 2) + ISSUE_NS)
        if self.operator.relu:
            work.compute_ns[home] += lines * (vector_ns(self.walk.chip(self.node.output), elements, 1) + ISSUE_NS)
        return home


def add_line_layer(walk: WorkWalk, node: Node, operator: Filter, chosen: LineUnfolding) -> None:
    """Adds a layer with line unfolding, whose input is lines."""
    grid, window, parts = chosen.grid, operator.window, walk.facts.parts[node.output]
    image = walk.image(node.output)
    stride, spread, reach = window_steps(window)
    ranges = [part for group in grid.ins for part in group]
    lines = stride, spread, reach + grid.height - 1
    works = walk.start_by_channels(node, image.rows, node.inputs[0], ranges, lines=lines, sums=True)
    last, by_range = max(works, key=attrgetter("number")), dict(zip(ranges, works, strict=True))
    layer = _LineLayer(walk, node, operator, chosen, layer_target(walk.graph, node, walk.arch))
    cells: list[list[PlacedCell]] = [[] for _ in parts]
    numbers = [next(n for n, r in enumerate(grid.outs) if r[0] <= part[0] < r[1]) for part in parts]
    for segment, (_, cols) in enumerate(layer.segments):
        for group in range(len(grid.ins)):
            for n, outs in enumerate(grid.outs):
                layer.add_core(by_range, chosen.core(segment, group, n), segment, group, outs)
        for p, part in enumerate(parts):
            home = layer.add_sums(last, segment, p, part, numbers[p])
            cells[p].append(PlacedCell(*cols, home))
    width = len(grid.cols)
    made = (tuple(tuple(own[i : i + width]) for own in cells) for i in range(0, grid.segment_count, width))
    walk.layouts[node.output] = CellLayout(image, parts, tuple(made), starts=tuple(low for low, _ in grid.lanes))


def _range_with(layout: CellLayout, part: Range) -> int:
    """Returns the number of the channel range of a layout that begins with, or contains, channels `part`."""
    return next(i for i, (low, high) in enumerate(layout.parts) if low <= part[0] < high)
