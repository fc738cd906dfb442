"""Graph to SpatialIR line by line: a layer starts when the lines that it needs are there (cross-layer, CLSA-CIM).

A streamed tensor is a grid of cells: for each line and each range of channels, tiles of neighbouring pixels, each on
the core that makes it. What cannot work on lines works on the whole tensor, which is put together first, and cut again
where lines are asked for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import (
    Concat,
    Filter,
    Map,
    Node,
    Operator,
    Pool,
    Rename,
    Stencil,
)
from raptor.graph.window import Window
from raptor.mapping.decision import ByLine, FullyConnected, LineUnfolding, filter_key
from raptor.mapping.line_unfolding import input_range
from raptor.mapping.streaming import (
    Parts,
    Range,
    keeps_channels,
    line_parts,
)
from raptor.spatial.fully_connected import DenseLayer, Source
from raptor.spatial.ir import Bring, Compute, MoveTile, Part, PoolTile, StencilTile, Tile
from raptor.spatial.line_filter import LayerLines
from raptor.spatial.line_pools import ImagePool, is_global, pool_ops
from raptor.spatial.lower_tiles import Lowering, map_op, stencil_op
from raptor.target.layout import Region

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cell:
    """Pixels `cols` of a line and a range of channels."""

    cols: Range
    tile: Tile


@dataclass(frozen=True, slots=True)
class Grid:
    """A streamed tensor: `lines[y][p]` are the cells of line y and channel range `parts[p]`, from left to right."""

    parts: Parts
    lines: tuple[tuple[tuple[Cell, ...], ...], ...]

    def cells(self) -> Iterator[tuple[int, int, Cell]]:
        for y, line in enumerate(self.lines):
            for p, cells in enumerate(line):
                for cell in cells:
                    yield y, p, cell


_Made = dict[tuple[int, int], list[Cell]]
"""By line and channel range: the cells so far."""


@dataclass(slots=True)
class LineLowering(Lowering):
    """`grids`: the tensors that are there as lines. `homes`: the core of each tile computed so far.

    `brought`: pieces of lines by tensor, line, channel range and core. `there`: names of all tiles that are brought.
    """

    parts_of: dict[str, Parts] = field(default_factory=dict[str, Parts])
    grids: dict[str, Grid] = field(default_factory=dict[str, Grid])
    homes: dict[str, int] = field(default_factory=dict[str, int])
    settled: int = 0
    brought: dict[tuple[str, int, int, int], list[Cell]] = field(
        default_factory=dict[tuple[str, int, int, int], list[Cell]]
    )

    there: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.parts_of = line_parts(self.graph, self.flow.xbar[0])

    @property
    def flow(self) -> ByLine:
        assert isinstance(self.decision.flow, ByLine), "the other flows have other lowerings"
        return self.decision.flow

    def finish(self) -> None:
        self.settle()
        self.drop_copies()

    def drop_copies(self) -> None:
        """Copies that nobody reads go, such as the lines of an input that no window of a stride meets."""
        used = {part.tile.name for tensor in self.tensors.values() for part in tensor.parts}
        kept: list[Compute] = []
        for compute in reversed(self.computes):
            copies = all(isinstance(op, Bring | MoveTile) for op in compute.body)
            if not copies or any(tile.name in used for tile in compute.results):
                used.update(tile.name for op in compute.body for tile in op.reads)
                kept.append(compute)
        self.computes = kept[::-1]

    def settle(self) -> None:
        """Every compute gets its core: one without matrices runs where its first input is, as in `pim.place`."""
        for i in range(self.settled, len(self.computes)):
            compute = self.computes[i]
            if compute.core is None:
                core = next((self.homes[t.name] for t in compute.inputs if t.name in self.homes), 0)
                compute = self.computes[i] = replace(compute, core=core)
            self.homes |= dict.fromkeys((op.result.name for op in compute.body), compute.core or 0)
        self.settled = len(self.computes)

    def home(self, tile: Tile) -> int | None:
        """None for tiles in global memory."""
        self.settle()
        return self.homes.get(tile.name)

    def bind_input(self, name: str) -> None:
        if name not in self.parts_of:
            Lowering.bind_input(self, name)
            return
        image, parts = self.graph.tensors[name].image, self.parts_of[name]
        cols = (0, image.width)
        lines = (
            tuple(
                (Cell(cols, Tile(cell_name(name, y, p, cols), 1, image.width, b - a)),)
                for p, (a, b) in enumerate(parts)
            )
            for y in range(image.rows)
        )
        self.bind_grid(name, "", Grid(parts, tuple(lines)))
        if name in self.flow.loaders:
            self.load(name, self.flow.loaders[name])

    def load(self, name: str, loaders: tuple[tuple[Range, int], ...]) -> None:
        """A model input comes from the cores that load it."""
        given = self.grids[name]
        lines = (
            tuple(tuple(self.loaded(name, y, p, cells[0], loaders)) for p, cells in enumerate(line))
            for y, line in enumerate(given.lines)
        )
        self.grids[name] = Grid(given.parts, tuple(lines))

    def loaded(self, name: str, y: int, p: int, whole: Cell, loaders: tuple[tuple[Range, int], ...]) -> Iterator[Cell]:
        """A line, cut into what each core loads of it, for the first node that reads it."""
        reader = next(node for node in self.graph.nodes if name in node.inputs)
        channels, position = whole.tile.channels, y / len(self.grids[name].lines)
        for cols, core in loaders:
            width = cols[1] - cols[0]
            tile = Tile(f"{cell_name(name, y, p, cols)}.loaded", 1, width, channels)
            op = Bring(tile, whole.tile, cols[0] * channels, 0, width * channels)
            self.computes.append(Compute(reader.name, reader.op_type, "", (), core, (op,), (tile,), position))
            yield Cell(cols, tile)

    def bind_grid(self, name: str, node: str, grid: Grid) -> None:
        width = self.graph.tensors[name].image.width
        self.grids[name] = grid
        regions = (
            (Region(grid.parts[p], (y, y + 1), None if c.cols == (0, width) else c.cols), c.tile)
            for y, p, c in grid.cells()
        )
        self.bind(name, node, list(regions))

    def bind_made(self, node: Node, parts: Parts, made: _Made) -> bool:
        rows = self.graph.tensors[node.output].image.rows
        lines = tuple(tuple(tuple(made[y, p]) for p in range(len(parts))) for y in range(rows))
        self.bind_grid(node.output, node.name, Grid(parts, lines))
        return True

    def parts(self, name: str) -> tuple[Part, ...]:
        """The tensor as tiles of all its rows."""
        tensor = self.tensors[name]
        if name not in self.grids or (len(tensor.parts) == 1 and tensor.image.rows == 1):
            return tensor.parts
        if not tensor.whole:
            whole = tuple(Part(region, self.together(name, i, region)) for i, region in self.regions(tensor.image))
            self.tensors[name] = tensor = replace(tensor, whole=whole)
        return tensor.whole

    def together(self, name: str, index: int, region: Region) -> Tile:
        """All lines of a range of channels as one tile."""
        image, grid = self.graph.tensors[name].image, self.grids[name]
        tile = Tile(f"{name}.whole{index}", image.rows, image.width, region.channel_count)
        cells = [(y, grid.parts[p], c) for y, p, c in grid.cells() if _overlap(grid.parts[p], region.channels)]
        runs = [_runs(i, y, part, cell, region.channels, image.width) for i, (y, part, cell) in enumerate(cells)]
        self.move(name, tile, tuple(c.tile for *_, c in cells), np.concatenate(runs))
        return tile

    def move(self, name: str, tile: Tile, sources: tuple[Tile, ...], runs: Ints) -> None:
        op = MoveTile(tile, sources, runs[np.argsort(runs[:, 0], kind="stable")])
        self.computes.append(Compute(self.tensors[name].node, "Move", name, (), None, (op,), (tile,)))

    def grid(self, name: str) -> Grid:
        """The tensor as lines."""
        if name not in self.grids:
            self.grids[name] = self.cut(name, self.parts_of[name], name)
        return self.grids[name]

    def cut(self, name: str, parts: Parts, grid: str) -> Grid:
        """Lines of a tensor that is there as tiles of all rows. `grid`: what the lines are called."""
        image = self.graph.tensors[name].image
        whole = self.parts(name)
        cols = (0, image.width)
        lines: list[tuple[tuple[Cell, ...], ...]] = []
        for y in range(image.rows):
            line: list[tuple[Cell, ...]] = []
            for p, part in enumerate(parts):
                tile = Tile(f"{cell_name(grid, y, p, cols)}.cut", 1, image.width, part[1] - part[0])
                sources = [w for w in whole if _overlap(w.region.channels, part)]
                runs = [_cut_runs(i, y, w, part, image.width) for i, w in enumerate(sources)]
                self.move(name, tile, tuple(w.tile for w in sources), np.concatenate(runs))
                line.append((Cell(cols, tile),))
            lines.append(tuple(line))
        return Grid(parts, tuple(lines))

    def as_parts(self, name: str, parts: Parts) -> str:
        """Which of `grids` is the tensor as lines of tiles of certain channels; cut once if there is none."""
        if self.grid(name).parts == parts:
            return name
        grid = f"{name}.by{'-'.join(str(b) for _, b in parts)}"
        if grid not in self.grids:
            self.grids[grid] = self.cut(name, parts, grid)
        return grid

    def piece(self, node: Node, name: str, y: int, p: int, cols: Range, core: int, *, exact: bool = False) -> Cell:
        """A tile on a core that holds pixels of a line, brought there if it is not; with `exact`, no others."""
        grid = self.grid(name)
        for cell in grid.lines[y][p]:
            if _holds(cell.cols, cols, exact=exact) and self.home(cell.tile) == core:
                return cell
        known = self.brought.setdefault((name, y, p, core), [])
        for cell in known:
            if _holds(cell.cols, cols, exact=exact):
                return cell
        known.append(Cell(cols, self.bring(node, name, (y, y + 1), p, cols, core)))
        return known[-1]

    def bring(self, node: Node, name: str, lines: Range, p: int, cols: Range, core: int) -> Tile:
        """Pixels of lines on a core, one line after another."""
        grid = self.grid(name)
        channels, width = grid.parts[p][1] - grid.parts[p][0], cols[1] - cols[0]
        last = "" if lines[1] - lines[0] == 1 else f"-r{lines[1]}"
        stem = f"{cell_name(name, lines[0], p, cols)}-{cols[1]}{last}"
        tile = Tile(f"{stem}@{core}", lines[1] - lines[0], width, channels)
        if tile.name in self.there:  # for another layer on this core
            return tile
        self.there.add(tile.name)
        for y in range(*lines):
            for cell in grid.lines[y][p]:
                low, high = max(cols[0], cell.cols[0]), min(cols[1], cell.cols[1])
                if low < high:
                    first, at = (low - cell.cols[0], (y - lines[0]) * width + low - cols[0])
                    op = Bring(tile, cell.tile, first * channels, at * channels, (high - low) * channels)
                    position = y / len(grid.lines)
                    self.computes.append(Compute(node.name, node.op_type, "", (), core, (op,), (tile,), position))
        return tile

    def lower(self, node: Node) -> None:
        by_line = _BY_LINE.get(type(node.operator))
        if by_line is None or not by_line(self, node, node.operator):
            Lowering.lower(self, node)

    def filter_lines(self, node: Node, operator: Filter) -> bool:
        match self.decision.layers[filter_key(node)]:
            case LineUnfolding() as chosen:
                return self.filter_by_line(node, operator, chosen)
            case FullyConnected() as chosen:
                return self.dense(node, operator, chosen)
            case _:
                return False

    def filter_by_line(self, node: Node, operator: Filter, chosen: LineUnfolding) -> bool:
        (name,) = node.inputs
        parts = self.parts_of[node.output]
        made: _Made = {}
        layer = LayerLines(node, operator, chosen, self.grid(name).parts, parts, self.flow.xbar)

        def piece(lines: Range, p: int, cols: Range, core: int) -> tuple[Tile, int]:
            if lines[1] - lines[0] > 1:
                return self.bring(node, name, lines, p, cols, core), cols[0]
            cell = self.piece(node, name, lines[0], p, cols, core)
            return cell.tile, cell.cols[0]

        for y, p, cols, tile in layer.lower(self.computes, piece):
            made.setdefault((y, p), []).append(Cell(cols, tile))
        return self.bind_made(node, parts, made)

    def dense(self, node: Node, operator: Filter, chosen: FullyConnected) -> bool:
        layer = DenseLayer(node, operator, chosen, self.computes, partial(self.source, node.inputs[0]))
        self.bind(node.output, node.name, list(layer.lower(self.regions(self.graph.tensors[node.output].image))))
        return True

    def source(self, name: str, pixel: int, channels: Range) -> Source:
        """Where channels of a pixel are: in a line if there is one that has them all, else in a tile of all rows."""
        image = self.graph.tensors[name].image
        if name in self.grids:
            grid, (y, x) = self.grids[name], divmod(pixel, image.width)
            for p, (low, high) in enumerate(grid.parts):
                if low <= channels[0] and channels[1] <= high:
                    cell = next(c for c in grid.lines[y][p] if c.cols[0] <= x < c.cols[1])
                    first = (x - cell.cols[0]) * cell.tile.channels + channels[0] - low
                    return Source(cell.tile, first, y / image.rows)
        part = next(p for p in self.parts(name) if p.region.channels[0] <= channels[0] < p.region.channels[1])
        first = pixel * part.tile.channels + channels[0] - part.region.channels[0]
        return Source(part.tile, first, 1.0)

    def map_lines(self, node: Node, operator: Map) -> bool:
        image = self.graph.tensors[node.output].image
        lead = self.lead(node)
        if lead is None or node.output not in self.parts_of or not keeps_channels(self.graph, lead, node.output):
            return False
        if not all(self.same_pixels(n, node.output) or self.graph.tensors[n].image.pixels == 1 for n in node.inputs):
            return False
        parts = self.parts_of[node.output]
        make = map_op(operator)
        made: _Made = {}
        for y, p, cell in self.grids[self.as_parts(lead, parts)].cells():
            tile = Tile(cell_name(node.output, y, p, cell.cols), 1, cell.tile.width, cell.tile.channels)
            core = self.home(cell.tile)
            operands = [cell.tile if n == lead else self.operand(node, n, y, p, cell, core, parts) for n in node.inputs]
            op = make(tile, operands, Region(parts[p], (y, y + 1), cell.cols))
            body, position = (op,), y / image.rows
            self.computes.append(Compute(node.name, node.op_type, node.output, (), core, body, (tile,), position))
            made.setdefault((y, p), []).append(Cell(cell.cols, tile))
        return self.bind_made(node, parts, made)

    def lead(self, node: Node) -> str | None:
        """The operand whose cells are followed: one that is on cores, rather than in global memory."""
        there = (n for n in node.inputs if n in self.grids and self.same_pixels(n, node.output))
        return min(there, key=lambda n: self.home(self.grids[n].lines[0][0][0].tile) is None, default=None)

    def same_pixels(self, name: str, other: str) -> bool:
        a, b = (self.graph.tensors[n].image for n in (name, other))
        return name in self.parts_of and (a.rows, a.width) == (b.rows, b.width)

    def operand(self, node: Node, name: str, y: int, p: int, cell: Cell, core: int | None, parts: Parts) -> Tile:
        """What meets a cell: the same pixels, or the one pixel there is, of the same channels."""
        if not self.same_pixels(name, node.output):
            return self.pixel(name, p, parts[p])
        grid = self.as_parts(name, parts)
        cells = self.grids[grid].lines[y][p]
        same = next((c.tile for c in cells if c.cols == cell.cols), None)
        if same is not None or core is None:
            return same if same is not None else cells[0].tile
        return self.piece(node, grid, y, p, cell.cols, core, exact=True).tile

    def pixel(self, name: str, p: int, part: Range) -> Tile:
        """Channels of a tensor of one pixel."""
        whole = self.parts(name)
        same = next((w.tile for w in whole if w.region.channels == part), None)
        if same is not None:
            return same
        tile = Tile(f"{name}.c{p}.{part[0]}-{part[1]}", 1, 1, part[1] - part[0])
        if tile.name not in self.homes:
            sources = [w for w in whole if _overlap(w.region.channels, part)]
            runs = [_cut_runs(i, 0, w, part, 1) for i, w in enumerate(sources)]
            self.move(name, tile, tuple(w.tile for w in sources), np.concatenate(runs))
            self.settle()
        return tile

    def pool_lines(self, node: Node, operator: Pool) -> bool:
        (name,) = node.inputs
        window = operator.window
        image = self.graph.tensors[node.output].image
        if name in self.grids and is_global(window):
            return self.pool_image(node, operator)
        if name not in self.grids or node.output not in self.parts_of or len(window.kernel) != 2:
            return False
        grid = self.grid(name)
        made: _Made = {}
        for p, cells in enumerate(grid.lines[0]):
            for cols, cell in _pool_cells(window, cells):
                for y in range(image.rows):
                    tile = self.pool_cell(node, operator, (y, p), cols, self.home(cell.tile))
                    made.setdefault((y, p), []).append(Cell(cols, tile))
        return self.bind_made(node, grid.parts, made)

    def pool_image(self, node: Node, operator: Pool) -> bool:
        """Lines are added to one another where they are made, so that little is left to do after the last one."""
        (name,) = node.inputs
        grid, image = self.grid(name), self.graph.tensors[node.output].image
        sources: list[Part] = []
        for p, part in enumerate(grid.parts):
            pool = ImagePool(node, operator.function, f"{node.output}.c{p}")
            columns: dict[Range, list[Tile]] = {}
            for cell in (cell for line in grid.lines for cell in line[p]):
                columns.setdefault(cell.cols, []).append(cell.tile)
            cores = [self.home(tiles[0]) for tiles in columns.values()]
            tile = pool.lower(self.computes, list(zip(columns.values(), cores, strict=True)))
            sources.append(Part(Region(part, (0, 1)), tile))
        self.bind(
            node.output, node.name, [(r, self.gathered(node, i, r, image, sources)) for i, r in self.regions(image)]
        )
        return True

    def pool_cell(self, node: Node, operator: Pool, at: tuple[int, int], cols: Range, core: int | None) -> Tile:
        window, (y, p) = operator.window, at
        (name,) = node.inputs
        pixels = input_range(window, cols)
        grid = self.grid(name)
        above = (y * window.strides[0] - window.pads[0] + k * window.dilations[0] for k in range(window.kernel[0]))
        lines = [i for i in above if 0 <= i < len(grid.lines)]
        inputs = tuple((i, self.piece(node, name, i, p, pixels, core or 0, exact=True).tile) for i in lines)
        local = replace(
            window,
            in_dims=(window.in_dims[0], pixels[1] - pixels[0]),
            out_dims=(window.out_dims[0], cols[1] - cols[0]),
            pads=(window.pads[0], pixels[0] - cols[0] * window.strides[1] + window.pads[1]),
        )
        channels = grid.parts[p][1] - grid.parts[p][0]
        tile = Tile(cell_name(node.output, y, p, cols), 1, cols[1] - cols[0], channels)
        body = tuple(pool_ops(PoolTile(tile, inputs, operator.function, local, y)))
        position = y / window.out_dims[0]
        self.computes.append(Compute(node.name, node.op_type, node.output, (), core or 0, body, (tile,), position))
        return tile

    def stencil_lines(self, node: Node, operator: Stencil) -> bool:
        (name,) = node.inputs
        window = operator.window
        if not isinstance(window, Window) or window.transposed or len(window.kernel) != 2 or window.batch != 1:
            return False
        if name not in self.grids or node.output not in self.parts_of or operator.weights.shape[0] > 1:
            return False
        grid = self.grid(name)
        found = [(p, cols, cell) for p, cells in enumerate(grid.lines[0]) for cols, cell in _pool_cells(window, cells)]
        if not all(_reads_everywhere(window, cols) for _, cols, _ in found):
            return False
        made: _Made = {}
        for p, cols, cell in found:
            self.stencil_cells(node, operator, p, cols, self.home(cell.tile) or 0, made)
        return self.bind_made(node, grid.parts, made)

    def stencil_cells(self, node: Node, operator: Stencil, p: int, cols: Range, core: int, made: _Made) -> None:
        """All lines of some columns, each from a copy of the lines it reads."""
        window, (name,), part = operator.window, node.inputs, self.grid(node.inputs[0]).parts[p]
        assert isinstance(window, Window)
        known: dict[Window, StencilTile] = {}
        pixels = input_range(window, cols)
        for y in range(window.out_dims[0]):
            first, lines = y * window.strides[0] - window.pads[0], _lines_read(window, y)
            local = replace(
                window,
                in_dims=(lines[1] - lines[0], pixels[1] - pixels[0]),
                out_dims=(1, cols[1] - cols[0]),
                pads=(lines[0] - first, pixels[0] - cols[0] * window.strides[1] + window.pads[1]),
            )
            given = self.bring(node, name, lines, p, pixels, core)
            tile = Tile(cell_name(node.output, y, p, cols), 1, cols[1] - cols[0], given.channels)
            if local not in known:
                op = stencil_op(replace(operator, window=local))(tile, [given], Region(part, (0, 1)))
                assert isinstance(op, StencilTile)
                known[local] = op
            body, position = (replace(known[local], result=tile, input=given),), y / window.out_dims[0]
            self.computes.append(Compute(node.name, node.op_type, node.output, (), core, body, (tile,), position))
            made.setdefault((y, p), []).append(Cell(cols, tile))

    def concat_lines(self, node: Node, _: Concat) -> bool:
        if node.output not in self.parts_of or not all(n in self.grids for n in node.inputs):
            return False
        grids = [self.grids[self.as_parts(n, self.parts_of[n])] for n in node.inputs]
        rows = self.graph.tensors[node.output].image.rows
        lines = tuple(tuple(cells for grid in grids for cells in grid.lines[y]) for y in range(rows))
        self.bind_grid(node.output, node.name, Grid(self.parts_of[node.output], lines))
        return True

    def rename_lines(self, node: Node, _: Rename) -> bool:
        (name,) = node.inputs
        if name not in self.grids or node.output not in self.parts_of or not self.same_pixels(name, node.output):
            return False
        self.bind_grid(node.output, node.name, self.grids[name])
        return True


_BY_LINE: dict[type[Operator], Callable[[LineLowering, Node, Any], bool]] = {
    Filter: LineLowering.filter_lines,
    Map: LineLowering.map_lines,
    Pool: LineLowering.pool_lines,
    Concat: LineLowering.concat_lines,
    Rename: LineLowering.rename_lines,
    Stencil: LineLowering.stencil_lines,
}
"""Each returns False where it cannot work on lines."""


def _lines_read(window: Window, y: int) -> Range:
    """Input lines under the window of output line y."""
    first = y * window.strides[0] - window.pads[0]
    last = first + (window.kernel[0] - 1) * window.dilations[0] + 1
    return max(0, first), min(last, window.in_dims[0])


def _reads_everywhere(window: Window, cols: Range) -> bool:
    """Whether every output of these columns has an input that is not padding."""
    spans = [input_range(window, cols), *(_lines_read(window, y) for y in range(window.out_dims[0]))]
    return all(first < last for first, last in spans)


def cell_name(tensor: str, y: int, p: int, cols: Range) -> str:
    return f"{tensor}.r{y}.c{p}.x{cols[0]}"


def _holds(have: Range, want: Range, *, exact: bool) -> bool:
    return have == want if exact else have[0] <= want[0] and want[1] <= have[1]


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _pool_cells(window: Window, cells: tuple[Cell, ...]) -> Iterator[tuple[Range, Cell]]:
    """The output pixels of each cell, those whose window begins in it; the last cell takes the rest."""
    first = 0
    for i, cell in enumerate(cells):
        last = window.out_dims[1] if i == len(cells) - 1 else -(-cell.cols[1] // window.strides[1])
        last = min(last, window.out_dims[1])
        if first < last:
            yield (first, last), cell
        first = max(first, last)


def _runs(source: int, y: int, part: Range, cell: Cell, channels: Range, width: int) -> Ints:
    """A cell's pixels as runs of a tile of all rows and certain channels."""
    low, high = max(part[0], channels[0]), min(part[1], channels[1])
    wide, count = channels[1] - channels[0], cell.cols[1] - cell.cols[0]
    at = y * width + cell.cols[0]
    if part == channels:
        return np.array([[at * wide, source, 0, 1, count * wide]])
    pixel = np.arange(count)
    first = pixel * (part[1] - part[0]) + low - part[0]
    target = (at + pixel) * wide + low - channels[0]
    return np.stack(np.broadcast_arrays(target, source, first, 1, high - low), axis=1)


def _cut_runs(source: int, y: int, whole: Part, part: Range, width: int) -> Ints:
    """A line of certain channels as runs of a tile of all rows."""
    channels = whole.region.channels
    low, high = max(part[0], channels[0]), min(part[1], channels[1])
    wide, own = channels[1] - channels[0], part[1] - part[0]
    if part == channels:
        return np.array([[0, source, y * width * wide, 1, width * wide]])
    pixel = np.arange(width)
    first = (y * width + pixel) * wide + low - channels[0]
    return np.stack(np.broadcast_arrays(pixel * own + low - part[0], source, first, 1, high - low), axis=1)
