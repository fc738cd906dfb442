"""The work of layers with weights: line by line on a grid of cores, or with matrices of whole tiles."""

from collections.abc import Mapping
from dataclasses import dataclass

from raptor.graph.ir import Filter, Node
from raptor.graph.layers import layer_target
from raptor.mapping.decision import LineUnfolding
from raptor.mapping.evaluation.cell_layout import CellLayout, PlacedCell
from raptor.mapping.evaluation.node_work import NodeWork
from raptor.mapping.evaluation.walk import WorkWalk, window_steps
from raptor.mapping.modes.integer_costs import with_accumulators
from raptor.mapping.modes.line_streaming import Range
from raptor.mapping.modes.line_unfolding import (
    BandShape,
    LineBlock,
    block_shape,
    count_bands,
    count_blocks,
    outputs_reading,
    pixels_per_block,
)
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, mvmul_ns, vector_element_ns, vector_ns


@dataclass(frozen=True, slots=True)
class _Products:
    """The products of a core with one range of input channels, for all lines of a sample.

    products_ns: time of the MVMs. terms: number of output pixels of the core that products are added to. runs: number
    of contiguous runs that are added. span: input pixels that are read. crossbars: for one copy of each matrix.
    """

    products_ns: float
    terms: int
    runs: int
    span: Range
    crossbars: int


@dataclass(slots=True)
class _LineLayer:
    """A layer that is computed line by line. known: products, by column segment, input and output channels."""

    walk: WorkWalk
    node: Node
    operator: Filter
    chosen: LineUnfolding
    bands: Mapping[BandShape, int]
    chip: Target
    known: dict[tuple[Range, int, int], _Products | None]

    def products(self, cols: Range, part: Range, width: int) -> _Products | None:
        """Returns the products of `part` input channels for `width` output channels; None if nothing is read."""
        key = cols, part[1] - part[0], width
        if key not in self.known:
            grid = self.chosen.grid
            pixels = min(grid.pixels, pixels_per_block(part, self.walk.arch.xbar_rows))
            blocks = count_blocks(self.operator.window, cols, pixels, grid.outputs, clipped=grid.clipped)
            self.known[key] = self.add_up(blocks, cols, width) if blocks else None
        return self.known[key]

    def add_up(self, blocks: tuple[tuple[LineBlock, int], ...], cols: Range, width: int) -> _Products:
        products_ns, terms, runs = 0.0, 0, 0
        shapes: set[object] = set()
        crossbars = 0
        for band, count in self.bands.items():
            for block, alike in blocks:
                columns = len(band.outs) * len(block.outs) * width
                side = -(-columns // self.chip.outputs_per_xbar)
                products_ns += alike * count * (mvmul_ns(self.chip, side) + ISSUE_NS)
                inside = sum(cols[0] <= out < cols[1] for out in block.outs)
                terms += alike * count * len(band.outs) * inside
                runs += alike * count * len(band.outs) * (inside > 0)
                shape = band, block_shape(self.operator.window, block)
                crossbars += 0 if shape in shapes else side
                shapes.add(shape)
        span = blocks[0][0].pixels[0], blocks[-1][0].pixels[1]
        return _Products(products_ns, terms, runs, span, crossbars)

    def add_core(self, work: NodeWork, core: int, segment: int, group: int, outs: Range) -> None:
        """Adds the work of one core of the grid, but not the sums over groups."""
        (name,), tiles = self.node.inputs, self.walk.facts.parts[self.node.output]
        cols, window = self.chosen.grid.cols[segment], self.operator.window
        given, sums = self.walk.layouts[name], with_accumulators(self.chip)
        lines = sum(band.lines * count for band, count in self.bands.items())
        terms = runs = own = 0
        for part in self.chosen.grid.ins[group]:
            reading = outputs_reading(self.operator, part, outs, tiles)
            width = reading[1] - reading[0]
            found = self.products(cols, part, width) if width else None
            if found is None:
                continue
            work.compute_ns[core] += found.products_ns
            ranges = sum(reading[0] <= low and high <= reading[1] for low, high in tiles)
            terms, runs = terms + found.terms * width, runs + found.runs * ranges
            own = max(own, window.out_lines * (cols[1] - cols[0]) * width)
            self.walk.crossbars[core] += found.crossbars * self.chosen.grid.copies
            self.walk.bring_line(work, name, (0, _range_with(given, part)), found.span, core, lines=lines)
        work.compute_ns[core] += max(terms - own, 0) * vector_element_ns(sums) + runs * ISSUE_NS

    def add_sums(self, work: NodeWork, segment: int, part: int, outs: Range, number: int) -> int:
        """Adds the sums of an output range over all groups of input channels. Returns the core of the result."""
        grid, sums = self.chosen.grid, with_accumulators(self.chip)
        home = self.chosen.core(segment, part % len(grid.ins), number)
        lines, cols = self.operator.window.out_lines, grid.cols[segment]
        elements = (cols[1] - cols[0]) * (outs[1] - outs[0])
        for group in range(len(grid.ins)):
            core = self.chosen.core(segment, group, number)
            if core != home:
                work.send(sums, core, home, elements, lines)
                work.compute_ns[home] += lines * (vector_ns(sums, elements, 2) + ISSUE_NS)
        if self.operator.relu:
            work.compute_ns[home] += lines * (vector_ns(self.walk.chip(self.node.output), elements, 1) + ISSUE_NS)
        return home


def add_line_layer(walk: WorkWalk, node: Node, operator: Filter, chosen: LineUnfolding) -> None:
    """Adds a layer with line unfolding, whose input is lines."""
    grid, window, parts = chosen.grid, operator.window, walk.facts.parts[node.output]
    image = walk.image(node.output)
    stride, spread, reach = window_steps(window)
    needs = walk.needs_lines(node, image.rows, stride, spread, reach + grid.height - 1)
    work = walk.start_work(node.output, image.rows, needs)
    bands = count_bands(window, grid.height, clipped=grid.clipped)
    layer = _LineLayer(walk, node, operator, chosen, bands, layer_target(walk.graph, node, walk.arch), {})
    cells: list[list[PlacedCell]] = [[] for _ in parts]
    numbers = [next(n for n, r in enumerate(grid.outs) if r[0] <= part[0] < r[1]) for part in parts]
    for segment, cols in enumerate(grid.cols):
        for group in range(len(grid.ins)):
            for n, outs in enumerate(grid.outs):
                layer.add_core(work, chosen.core(segment, group, n), segment, group, outs)
        for p, part in enumerate(parts):
            home = layer.add_sums(work, segment, p, part, numbers[p])
            cells[p].append(PlacedCell(*cols, home))
    walk.layouts[node.output] = CellLayout(image, parts, (tuple(map(tuple, cells)),))


def _range_with(layout: CellLayout, part: Range) -> int:
    """Returns the number of the channel range of a layout that begins with, or contains, channels `part`."""
    return next(i for i, (low, high) in enumerate(layout.parts) if low <= part[0] < high)
