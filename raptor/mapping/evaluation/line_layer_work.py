"""The work of layers with weights: line by line on a grid of cores, or with matrices of whole tiles."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from raptor.graph.ir import Filter, Node
from raptor.graph.layers import layer_target
from raptor.mapping.decision import LineUnfolding
from raptor.mapping.evaluation.cell_layout import CellLayout, PlacedCell
from raptor.mapping.evaluation.line_products import LineProducts
from raptor.mapping.evaluation.node_work import NodeWork
from raptor.mapping.evaluation.walk import WorkWalk, window_steps
from raptor.mapping.modes.integer_costs import with_accumulators
from raptor.mapping.modes.line_streaming import Range
from raptor.mapping.modes.line_unfolding import (
    block_shape,
    count_bands,
    count_blocks,
    count_inside,
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

    def products(self, cols: Range, part: Range, width: int) -> LineProducts | None:
        """Returns the products of `part` input channels for `width` output channels; None if nothing is read."""
        grid = self.chosen.grid
        pixels = min(grid.pixels, pixels_per_block(part, self.walk.arch.xbar_rows))
        key = self.node.output, cols, pixels, width, grid.height, grid.outputs, grid.clipped
        known = self.walk.facts.products
        if key not in known:
            known[key] = self.add_up(cols, pixels, width)
        return known[key]

    def add_up(self, cols: Range, pixels: int, width: int) -> LineProducts | None:
        """Returns the products of blocks of `pixels` pixels."""
        grid, window, columns = self.chosen.grid, self.operator.window, self.chip.outputs_per_xbar
        blocks = count_blocks(window, cols, pixels, grid.outputs, clipped=grid.clipped)
        own = count_inside(window, cols, pixels, grid.outputs, clipped=grid.clipped)
        if not blocks:
            return None
        products_ns, crossbars, shapes, terms, runs = 0.0, 0, set[object](), 0, 0
        for band, count in count_bands(window, grid.height, clipped=grid.clipped).items():
            for (block, alike), (inside, within) in zip(blocks, own, strict=True):
                side = -(-len(band.outs) * len(block.outs) * width // columns)
                products_ns += alike * count * (mvmul_ns(self.chip, side) + ISSUE_NS)
                terms += count * len(band.outs) * inside
                runs += count * len(band.outs) * within
                shape = band, block_shape(window, block)
                crossbars += 0 if shape in shapes else side
                shapes.add(shape)
        span = blocks[0][0].pixels[0], blocks[-1][0].pixels[1]
        return LineProducts(products_ns, terms, runs, span, crossbars)

    def add_core(self, works: Mapping[Range, NodeWork], core: int, segment: int, group: int, outs: Range) -> None:
        """Adds the work of one core of the grid, but not the sums over groups."""
        (name,), tiles = self.node.inputs, self.walk.facts.parts[self.node.output]
        cols, window = self.chosen.grid.cols[segment], self.operator.window
        given, sums = self.walk.layouts[name], with_accumulators(self.chip)
        bands = count_bands(window, self.chosen.grid.height, clipped=self.chosen.grid.clipped)
        lines = sum(band.lines * count for band, count in bands.items())
        terms = own = 0
        # What is made last is added last: the first results are not added to anything.
        for part in sorted(self.chosen.grid.ins[group], key=lambda part: works[part].number):
            work = works[part]
            for reading in outputs_reading(self.operator, part, outs, tiles):
                width = reading[1] - reading[0]
                found = self.products(cols, part, width)
                if found is None:
                    continue
                work.compute_ns[core] += found.products_ns
                ranges = sum(reading[0] <= low and high <= reading[1] for low, high in tiles)
                before, terms = max(terms - own, 0), terms + found.terms * width
                own = max(own, window.out_lines * (cols[1] - cols[0]) * width)
                added_ns = max(max(terms - own, 0) - before, 0) * vector_element_ns(sums)
                work.compute_ns[core] += added_ns + found.runs * ranges * ISSUE_NS
                self.walk.crossbars[core] += found.crossbars * self.chosen.grid.copies
                self.walk.bring_line(work, name, (0, _range_with(given, part)), found.span, core, lines=lines)

    def add_sums(self, work: NodeWork, segment: int, part: int, outs: Range, number: int) -> int:
        """Adds the sums of an output range over all groups of input channels. Returns the core of the result."""
        grid, sums = self.chosen.grid, with_accumulators(self.chip)
        groups = find_summed_groups(self.operator, grid.ins, outs)
        home = self.chosen.core(segment, groups[part % len(groups)], number)
        lines, cols = self.operator.window.out_lines, grid.cols[segment]
        elements = (cols[1] - cols[0]) * (outs[1] - outs[0])
        for group in groups:
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
    ranges = [part for group in grid.ins for part in group]
    lines = stride, spread, reach + grid.height - 1
    works = walk.start_by_channels(node, image.rows, node.inputs[0], ranges, lines=lines, sums=True)
    last, by_range = max(works, key=attrgetter("number")), dict(zip(ranges, works, strict=True))
    layer = _LineLayer(walk, node, operator, chosen, layer_target(walk.graph, node, walk.arch))
    cells: list[list[PlacedCell]] = [[] for _ in parts]
    numbers = [next(n for n, r in enumerate(grid.outs) if r[0] <= part[0] < r[1]) for part in parts]
    for segment, cols in enumerate(grid.cols):
        for group in range(len(grid.ins)):
            for n, outs in enumerate(grid.outs):
                layer.add_core(by_range, chosen.core(segment, group, n), segment, group, outs)
        for p, part in enumerate(parts):
            home = layer.add_sums(last, segment, p, part, numbers[p])
            cells[p].append(PlacedCell(*cols, home))
    walk.layouts[node.output] = CellLayout(image, parts, (tuple(map(tuple, cells)),))


def _range_with(layout: CellLayout, part: Range) -> int:
    """Returns the number of the channel range of a layout that begins with, or contains, channels `part`."""
    return next(i for i, (low, high) in enumerate(layout.parts) if low <= part[0] < high)
