"""Lowering of the Graph to SpatialIR line by line: a layer starts as soon as its first input lines exist (CLSA-CIM).

A streamed tensor is a grid of cells: for each line and each range of channels, tiles of neighbouring pixels, each on
the core that makes it. A node that cannot work on lines works on the whole tensor, which is assembled first. Its result
is cut into lines again when a later node needs lines.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
from msgspec import structs

from raptor.graph.ir import (
    Bound,
    Concat,
    Elementwise,
    Filter,
    Lookup,
    Map,
    Move,
    Node,
    Pool,
    Rename,
    Requantise,
    Stencil,
    Take,
)
from raptor.graph.layers import filter_key
from raptor.graph.rearrangement import MoveOrigins
from raptor.graph.streaming_layout import MOST_LINES, is_token_layout
from raptor.graph.window import Window, WindowTable
from raptor.mapping.decision import FullyConnected, LineUnfolding
from raptor.mapping.modes.critical_operand import is_early
from raptor.mapping.modes.line_streaming import ChannelRanges, Range, keeps_channels, slides_over_lines
from raptor.mapping.modes.line_unfolding import input_columns
from raptor.spatial.compute_op import Compute
from raptor.spatial.ir import TensorPart
from raptor.spatial.lowering.cell_grid import CellGrid, LineCell, MadeCells, cell_name, ranges_overlap, runs_out_of_tile
from raptor.spatial.lowering.dense_layer import DenseLayer, TileSlice
from raptor.spatial.lowering.line_layer import LineLayer
from raptor.spatial.lowering.line_moves import LineMove
from raptor.spatial.lowering.line_pools import GlobalPool, is_global_pool, split_pool
from raptor.spatial.lowering.line_windows import (
    LineStencil,
    line_windows,
    middle_lines,
    reads_everywhere,
    reads_few_lines,
    table_cells,
    window_cells,
)
from raptor.spatial.lowering.streamed_lines import StreamedLines
from raptor.spatial.lowering.tile_lowering import embedding_table
from raptor.spatial.lowering.tile_ops import stencil_op, tile_op_maker
from raptor.spatial.operations import Pool as PoolTile
from raptor.spatial.operations import Stencil as StencilTile
from raptor.spatial.tiles import Tile
from raptor.target.tensor_layout import TensorRegion
from raptor.target.timing import best_pixels_per_op

_Stencils = dict[tuple[Range, Hashable], StencilTile[Tile]]
"""Stencil operations, keyed by channel range and `LineStencil.key`."""


@dataclass(slots=True)
class LineLowering(StreamedLines):
    """Lowers each node line by line if possible, and otherwise on tiles of all rows."""

    def lower(self, node: Node) -> None:
        """Lowers a node by line if a case matches, else by tile.

        Guards have no side effects, and the lowering of a matching case cannot fail. So no node is lowered by two
        cases.
        """
        match node.operator:
            case Filter() as operator:
                self.lower_weights(node, operator)
            case Map() | Requantise() | Bound() | Lookup() as operator if self.maps_lines(node):
                self.map_lines(node, operator)
            case Pool() as operator if node.inputs[0] in self.grids and is_global_pool(operator.window):
                self.pool_image(node, operator)
            case Pool() as operator if self.pools_lines(node, operator.window):
                self.pool_lines(node, operator)
            case Stencil() as operator if self.weighs_lines(node, operator):
                self.stencil_lines(node, operator)
            case Concat() if self.has_lines(node):
                self.concat_lines(node)
            case Move() as operator if self.moves_lines(node, operator):
                self.move_lines(node, operator)
            case Take() as operator if node.output in self.flow.loaders:
                self.take_lines(node, operator)
            case Rename() if node.inputs[0] in self.grids and self.same_pixels(node.output, node.inputs[0]):
                self.bind_grid(node.output, node.name, self.grids[node.inputs[0]])
            case _:
                self.lower_by_tile(node)

    def lower_weights(self, node: Node, operator: Filter) -> None:
        """Lowers a layer with weights in the way that the decision records."""
        match self.decision.layers[filter_key(node)]:
            case LineUnfolding() as chosen:
                self.filter_lines(node, operator, chosen)
            case FullyConnected() as chosen:
                steps = self.steps[filter_key(node)]
                self.dense(node, operator, chosen.step_record(steps.index(node.output), len(steps)))
            case _:
                self.lower_by_tile(node)

    def filter_lines(self, node: Node, operator: Filter, chosen: LineUnfolding) -> None:
        """Lowers a layer with line unfolding."""
        (name,) = node.inputs
        parts = self.parts_of[node.output]
        made: MadeCells = {}
        element = self.element(node.output)
        xbar = self.flow.xbar[0], self.arch.weight_columns(operator.weight_bits)
        layer = LineLayer(node, operator, chosen, self.grid(name).parts, parts, element, xbar)

        def on_core(lines: Range, p: int, cols: Range, core: int) -> tuple[Tile, int]:
            if lines[1] - lines[0] > 1:
                return self.band_on(node, name, lines, p, cols, core), cols[0]
            cell = self.line_on(node, name, lines[0], p, cols, core)
            return cell.tile, cell.cols[0]

        for y, p, cols, tile in layer.lower(self.emit, on_core):
            made.setdefault((y, p), []).append(LineCell(cols, tile))
        self.bind_cells(node, parts, made)

    def dense(self, node: Node, operator: Filter, chosen: FullyConnected) -> None:
        """Lowers a fully connected layer (one output pixel)."""
        types = self.element(node.inputs[0]), self.element(node.output)
        layer = DenseLayer(node, operator, chosen, self.emit, partial(self.source, node.inputs[0]), *types)
        self.bind(node.output, node.name, list(layer.lower(self.regions(self.graph.tensors[node.output].image))))

    def source(self, name: str, pixel: int, channels: Range) -> TileSlice:
        """Locates some channels of a pixel: in a cell that has all of them, else in a tile of all rows."""
        image = self.graph.tensors[name].image
        if name in self.grids:
            grid, (y, x) = self.grids[name], divmod(pixel, image.width)
            for p, (low, high) in enumerate(grid.parts):
                if low <= channels[0] and channels[1] <= high:
                    cell = next(c for c in grid.lines[y][p] if c.cols[0] <= x < c.cols[1])
                    first = (x - cell.cols[0]) * cell.tile.channels + channels[0] - low
                    return TileSlice(cell.tile, first, y / image.rows)
        part = next(p for p in self.parts(name) if p.region.channels[0] <= channels[0] < p.region.channels[1])
        first = pixel * part.tile.channels + channels[0] - part.region.channels[0]
        return TileSlice(part.tile, first, 1.0)

    def maps_lines(self, node: Node) -> bool:
        """True if one operand is lines with the pixels and channels of the result, and all others fit it.

        Another operand fits if it has the same pixels, or a single one, which is broadcast.
        """
        lead = self.lead(node)
        if lead is None or node.output not in self.parts_of or not keeps_channels(self.graph, lead, node.output):
            return False
        return all(self.same_pixels(n, node.output) or self.graph.tensors[n].image.pixels == 1 for n in node.inputs)

    def map_lines(self, node: Node, operator: Elementwise) -> None:
        """Emits an element-wise function, cell by cell."""
        image, element = self.graph.tensors[node.output].image, self.element(node.output)
        lead, rows = self.lead(node), image.rows
        assert lead is not None
        parts = self.parts_of[node.output]
        make = tile_op_maker(operator, short=is_token_layout(image), core_of=self.residency.core_of)
        made: MadeCells = {}
        alike = {name for name in node.inputs if self.same_pixels(name, node.output)}
        for y, p, cell in self.mapped(node, self.with_channel_ranges(lead, parts)):
            first = cell.tile
            tile = Tile(cell_name(node.output, y, p, cell.cols), 1, first.width, first.channels, element)
            core = self.residency.core_of(first)
            operands = [
                first if n == lead
                else self.operand(node, n, y, p, cell, core, parts) if n in alike
                else self.pixel(n, p, parts[p])
                for n in node.inputs
            ]  # fmt: skip
            op = make(tile, operands, TensorRegion(parts[p], (y, y + 1), cell.cols))
            self.emit(Compute(node.name, node.op_type, node.output, (), (op,), (tile,)), core, y / rows)
            made.setdefault((y, p), []).append(LineCell(cell.cols, tile))
        self.bind_cells(node, parts, made)

    def mapped(self, node: Node, lead: str) -> Iterator[tuple[int, int, LineCell]]:
        """Yields line, channel range number and cell of the leading operand of an element-wise function.

        They are cells of `lead`, or copies on the cores of the layer that reads the result, each element on one core.
        """
        layer = self.decision.layers[self.at_reader[node.output]] if node.output in self.at_reader else None
        grid = self.grids[lead]
        if not isinstance(layer, LineUnfolding) or {part for g in layer.grid.ins for part in g} != {*grid.parts}:
            yield from grid.cells()
            return
        group_of = {part: g for g, group in enumerate(layer.grid.ins) for part in group}
        for y in range(len(grid.lines)):
            for p, part in enumerate(grid.parts):
                for segment, cols in layer.grid.segments_at(y):
                    core = layer.core(segment, group_of[part], p % len(layer.grid.outs))
                    yield y, p, LineCell(cols, self.line_on(node, lead, y, p, cols, core, exact=True).tile)

    def lead(self, node: Node) -> str | None:
        """Returns the operand that determines cells and cores of the result, or None.

        It has lines of the same pixels; among several on cores it is the one that is ready last. So a residual is added
        after the branch that it bypasses. The cores that made the shortcut would be occupied by each sample until then.
        If those with lines depend on model inputs only, it is the last of the others, which are cut into lines.
        """
        firsts = {n: self.grids[n].lines[0][0][0].tile for n in node.inputs if n in self.grids}
        there = [n for n in firsts if self.same_pixels(n, node.output)]
        made = {n: (self.residency.core_of(firsts[n]) is not None, self.born[n]) for n in there}
        lead = max(there, key=made.__getitem__, default=None)
        if lead is None or not is_early(self.born[lead]):
            return lead
        later = [n for n in node.inputs if self.same_pixels(n, node.output) and not is_early(self.born[n])]
        return max(later, key=self.born.__getitem__, default=lead)

    def same_pixels(self, name: str, other: str) -> bool:
        """True if tensor `name` is streamed and has as many rows and columns as `other`."""
        images = self.graph.tensors
        return name in self.parts_of and images[name].image.has_lines_of(images[other].image)

    def operand(
        self, node: Node, name: str, y: int, p: int, cell: LineCell, core: int | None, parts: ChannelRanges
    ) -> Tile:
        """Returns the tile of operand `name` with the channels and pixels of a cell."""
        grid = self.with_channel_ranges(name, parts)
        cells = self.grids[grid].cells_under(y, p, cell.cols)
        if cells[0].cols == cell.cols:
            return cells[0].tile
        if core is None:
            return self.grids[grid].lines[y][p][0].tile
        return self.line_on(node, grid, y, p, cell.cols, core, exact=True).tile

    def pixel(self, name: str, p: int, part: Range) -> Tile:
        """Returns a tile with channels `part` of a tensor of one pixel."""
        whole = self.parts(name)
        same = next((w.tile for w in whole if w.region.channels == part), None)
        if same is not None:
            return same
        tile = Tile(f"{name}.c{p}.{part[0]}-{part[1]}", 1, 1, part[1] - part[0], self.element(name))
        if tile.name not in self.residency.homes:
            sources = [w for w in whole if ranges_overlap(w.region.channels, part)]
            runs = [runs_out_of_tile(i, 0, w, part, 1) for i, w in enumerate(sources)]
            self.emit_move(name, tile, tuple(w.tile for w in sources), np.concatenate(runs))
        return tile

    def pools_lines(self, node: Node, window: Window) -> bool:
        """True if input and output are lines, over which the window slides."""
        there = node.inputs[0] in self.grids and node.output in self.parts_of
        return there and slides_over_lines(self.graph, node, window)

    def pool_lines(self, node: Node, operator: Pool) -> None:
        """Emits a pool, line by line on the cores that hold the cells of the input."""
        (name,) = node.inputs
        window = operator.window
        grid = self.grid(name)
        made: MadeCells = {}
        for p in range(len(grid.parts)):
            for lines, cells in self.group_by_leading_cells(name, p, middle_lines(window)):
                for cols, cell in window_cells(window, cells):
                    for y in lines:
                        tile = self.pool_cell(node, operator, (y, p), cols, self.residency.core_of(cell.tile))
                        made.setdefault((y, p), []).append(LineCell(cols, tile))
        self.bind_cells(node, grid.parts, made)

    def group_by_leading_cells(
        self, name: str, p: int, leads: Sequence[int]
    ) -> Iterator[tuple[list[int], tuple[LineCell, ...]]]:
        """Yields groups of result lines that are cut alike and computed on the same cores, with their leading cells.

        name, p: tensor and channel range of the operand. leads: for each result line the operand line whose cells it
        follows. Lines of an image that is a sequence of tokens may be on different cores.
        """
        found: dict[tuple[tuple[Range, int | None], ...], list[int]] = {}
        lines = self.grid(name).lines
        places = {lead: tuple((c.cols, self.residency.core_of(c.tile)) for c in lines[lead][p]) for lead in {*leads}}
        for y, lead in enumerate(leads):
            found.setdefault(places[lead], []).append(y)
        for alike in found.values():
            yield alike, lines[leads[alike[0]]][p]

    def pool_image(self, node: Node, operator: Pool) -> None:
        """Emits a global pool. Lines are reduced where they are made, so little work is left after the last line."""
        (name,) = node.inputs
        grid, image = self.grid(name), self.graph.tensors[node.output].image
        sources: list[TensorPart] = []
        for p, part in enumerate(grid.parts):
            pool = GlobalPool(node, operator.function, f"{node.output}.c{p}", p)
            there: dict[tuple[Range, int | None], list[Tile]] = {}
            for cell in (cell for line in grid.lines for cell in line[p]):
                there.setdefault((cell.cols, self.residency.core_of(cell.tile)), []).append(cell.tile)
            tile = pool.lower(self.emit, [(tiles, core) for (_, core), tiles in there.items()])
            sources.append(TensorPart(TensorRegion(part, (0, 1)), tile))
        self.bind(
            node.output,
            node.name,
            [(r, self.gather_sources(node, i, r, image, sources)) for i, r in self.regions(image)],
        )

    def pool_cell(self, node: Node, operator: Pool, at: tuple[int, int], cols: Range, core: int | None) -> Tile:
        """Emits the pool of output pixels `cols` of a line and channel range, `at`, on a core (None: core 0)."""
        (y, p), (name,) = at, node.inputs
        here = line_windows(operator.window)[y]
        window, pixels, grid = here.window, input_columns(operator.window, cols), self.grid(name)
        inputs = tuple(
            (i, self.line_on(node, name, line, p, pixels, core or 0, exact=True).tile) for i, line in here.lines
        )
        local = replace(
            window,
            in_dims=(window.in_dims[0], pixels[1] - pixels[0]),
            out_dims=(window.out_dims[0], cols[1] - cols[0]),
            pads=(window.pads[0], pixels[0] - cols[0] * window.strides[1] + window.pads[1]),
        )
        channels = grid.parts[p][1] - grid.parts[p][0]
        tile = Tile(cell_name(node.output, y, p, cols), 1, cols[1] - cols[0], channels, self.element(node.output))
        body = tuple(split_pool(PoolTile(tile, inputs, operator.function, local, here.row)))
        position = y / operator.window.out_lines
        self.emit(Compute(node.name, node.op_type, node.output, (), body, (tile,)), core or 0, position)
        return tile

    def weighs_lines(self, node: Node, operator: Stencil) -> bool:
        """True if a stencil can work line by line.

        Input and output must be lines, and each output pixel must read more than padding. A window must have the same
        weights for all pixels; the lines of a table must read few input lines.
        """
        (name,), window = node.inputs, operator.window
        if name not in self.grids or node.output not in self.parts_of:
            return False
        if isinstance(window, WindowTable):
            before, after = (self.graph.tensors[n].image for n in (name, node.output))
            return reads_few_lines(window, before, after, MOST_LINES)
        if window.transposed or window.batch != 1 or operator.weights.shape[0] > 1:
            return False
        if not slides_over_lines(self.graph, node, window):
            return False
        lines = self.grids[name].lines
        cut = {cells for lead in {*middle_lines(window)} for cells in lines[lead]}
        spans = {cols for cells in cut for cols, _ in window_cells(window, cells)}
        return all(reads_everywhere(window, cols) for cols in spans)

    def stencil_lines(self, node: Node, operator: Stencil) -> None:
        """Emits a stencil, line by line on the cores that hold the cells of the input."""
        (name,), window = node.inputs, operator.window
        before, after = (self.graph.tensors[n].image for n in (name, node.output))
        grid = self.grid(name)
        is_table = isinstance(window, WindowTable)
        leads = [y * before.rows // after.rows for y in range(after.rows)] if is_table else middle_lines(window)
        made: MadeCells = {}
        known: _Stencils = {}
        for p in range(len(grid.parts)):
            for lines, cells in self.group_by_leading_cells(name, p, leads):
                for cols, cell in table_cells(before, after, cells) if is_table else window_cells(window, cells):
                    core = self.residency.core_of(cell.tile) or 0
                    for y in lines:
                        part = LineStencil.for_columns(operator, y, cols, before, after)
                        tile = self.stencil_cell(node, part, (y, p), cols, core, known)
                        made.setdefault((y, p), []).append(LineCell(cols, tile))
        self.bind_cells(node, grid.parts, made)

    def stencil_cell(
        self, node: Node, part: LineStencil, at: tuple[int, int], cols: Range, core: int, known: _Stencils
    ) -> Tile:
        """Emits output columns `cols` of a line and channel range, `at`, on a core.

        known: stencils emitted before; stencils that differ in their tiles only share their weight tiles.
        """
        (name,), (y, p) = node.inputs, at
        image, channels = self.graph.tensors[node.output].image, self.grid(name).parts[p]
        given = tuple(
            (row, self.line_on(node, name, line, p, part.pixels, core, exact=True).tile) for row, line in part.lines
        )
        stem, width = cell_name(node.output, y, p, cols), cols[1] - cols[0]
        tile = Tile(stem, 1, width, channels[1] - channels[0], self.element(node.output))
        key = channels, part.key
        if key not in known:
            op = stencil_op(part.operator())(tile, [given[0][1]], TensorRegion(channels, (0, 1)))
            assert isinstance(op, StencilTile)
            at_once = best_pixels_per_op(self.arch.with_element(tile.element), tile.width, tile.channels)
            known[key] = structs.replace(op, together=at_once if part.together else 1)
        op = known[key]
        op = StencilTile(tile, given, op.vectors, op.index, op.window, op.together)
        self.emit(Compute(node.name, node.op_type, node.output, (), (op,), (tile,)), core, y / image.rows)
        return tile

    def has_lines(self, node: Node) -> bool:
        """True if the result and all operands can be streamed, and at least one operand exists as lines."""
        streamed = all(name in self.parts_of for name in (node.output, *node.inputs))
        return streamed and any(name in self.grids for name in node.inputs)

    def moves_lines(self, node: Node, operator: Move) -> bool:
        """True if a rearrangement can work line by line: it has cores, or each result line reads few input lines."""
        if node.output in self.flow.loaders:
            return True
        return self.has_lines(node) and self.places(node, operator).most_lines(node.inputs) <= MOST_LINES

    def places(self, node: Node, operator: Move) -> MoveOrigins:
        """Returns the origin of each result element of a `Move`."""
        images = [self.graph.tensors[name].image for name in node.inputs]
        return MoveOrigins.from_sources(operator.sources, self.graph.tensors[node.output].image, images)

    def move_lines(self, node: Node, operator: Move) -> None:
        """Emits a rearrangement line by line, on the cores of the operand that is ready last."""
        grids = tuple(self.grid(name) for name in node.inputs)
        on_cores = [self.residency.core_of(grid.lines[0][0][0].tile) is not None for grid in grids]
        lead = max(range(len(grids)), key=lambda t: (on_cores[t], self.born[node.inputs[t]]))
        parts, places = self.parts_of[node.output], self.places(node, operator)
        gatherers = self.flow.loaders.get(node.output, ())
        moved = LineMove(node, self.element(node.output), parts, places, grids, lead, gatherers)
        grid = moved.lower(self.emit, partial(self.line_on, node), self.residency.core_of)
        self.bind_grid(node.output, node.name, grid)

    def take_lines(self, node: Node, operator: Take) -> None:
        """Emits an embedding lookup, some columns of each line on each of its cores."""
        image, parts, element = (
            self.graph.tensors[node.output].image,
            self.parts_of[node.output],
            self.element(node.output),
        )
        made: MadeCells = {}
        for p, part in enumerate(parts):
            table = embedding_table(node.output, operator, TensorRegion(part, (0, image.rows)), element)
            for y, (cols, core) in product(range(image.rows), self.flow.loaders[node.output]):
                tile = Tile(cell_name(node.output, y, p, cols), 1, cols[1] - cols[0], part[1] - part[0], element)
                op = self.embedding_lookup(node, table, tile, y * image.width + np.arange(*cols))
                self.emit(Compute(node.name, node.op_type, node.output, (), (op,), (tile,)), core, y / image.rows)
                made.setdefault((y, p), []).append(LineCell(cols, tile))
        self.bind_cells(node, parts, made)

    def concat_lines(self, node: Node) -> None:
        """Binds a concatenation of channels to the cells of its inputs; nothing is moved."""
        grids = [self.grids[self.with_channel_ranges(n, self.parts_of[n])] for n in node.inputs]
        rows = self.graph.tensors[node.output].image.rows
        lines = tuple(tuple(cells for grid in grids for cells in grid.lines[y]) for y in range(rows))
        self.bind_grid(node.output, node.name, CellGrid(self.parts_of[node.output], lines))
