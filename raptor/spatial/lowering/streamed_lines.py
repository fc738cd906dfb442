"""Tensors as lines: bound to cells on cores, cut out of tiles, regrouped by channels, and copied to cores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import (
    Filter,
    Node,
)
from raptor.graph.layers import filter_key
from raptor.mapping.decision import LineFlow
from raptor.mapping.modes.critical_operand import CriticalPosition, find_critical_positions
from raptor.mapping.modes.epilogue_cost import find_sunk_maps
from raptor.mapping.modes.line_streaming import ChannelRanges, Range, line_channel_ranges
from raptor.spatial.compute_op import Compute
from raptor.spatial.ir import Copy, TensorPart
from raptor.spatial.lowering.cell_grid import (
    CellGrid,
    LineCell,
    MadeCells,
    cell_name,
    ranges_overlap,
    runs_into_tile,
    runs_out_of_tile,
)
from raptor.spatial.lowering.tile_lowering import PlacedCompute, TileLowering
from raptor.spatial.operations import Move as MoveTile
from raptor.spatial.operations import Vector
from raptor.spatial.tiles import Tile
from raptor.target.tensor_layout import TensorRegion

Ints = npt.NDArray[np.int64]


_COPIES = {Copy, MoveTile}
"""Classes of operations that only move elements, so that an unread result can be dropped."""


@dataclass(slots=True)
class StreamedLines(TileLowering):
    """The lines of streamed tensors, which operations are lowered on.

    parts_of: channel ranges of each streamed tensor. grids: tensors that exist as lines so far. steps: tensors that
    each layer computes, by its key; a recurrent layer has one per time step. born: position of each tensor in the
    critical path (see `find_critical_positions`). at_reader: tensors computed on the cores of a reader (see
    `find_sunk_maps`)."""

    parts_of: dict[str, ChannelRanges] = field(default_factory=dict[str, ChannelRanges])
    grids: dict[str, CellGrid] = field(default_factory=dict[str, CellGrid])
    steps: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    born: dict[str, CriticalPosition] = field(default_factory=dict[str, CriticalPosition])
    at_reader: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.parts_of = line_channel_ranges(self.graph, self.arch)
        self.at_reader = find_sunk_maps(self.graph)
        self.born = find_critical_positions(self.graph)
        for node in self.graph.nodes:
            if isinstance(node.operator, Filter):
                self.steps.setdefault(filter_key(node), []).append(node.output)

    def core_for(self, compute: Compute) -> int:
        """Returns the default core of a compute: of the latest operand of a one-pixel vector, else of the first one.

        In a recurrent layer, the other operands (products of the input) then wait where the state arrives last.
        """
        if isinstance(compute.body[0], Vector) and compute.body[0].result.pixels == 1:
            return self.residency.core_of_last(compute.inputs)
        return TileLowering.core_for(self, compute)

    def core_for_pixels(self, pixels: Sequence[Tile]) -> int | None:
        """Returns the core of the tile that is made last, such as the state of the last step of a recurrent layer."""
        return self.residency.core_of_last(pixels)

    def core_for_sum(self, _node: Node, _index: int) -> int | None:
        """Returns the core of the tile with the same channels of the operand, if that is one pixel.

        So each core goes on with its own channels, as in a norm of one token, and only the sum is sent to it.
        """
        parts = self.parts(_node.inputs[0])
        same = self.graph.tensors[_node.inputs[0]].image.pixels == 1 and _index < len(parts)
        return self.residency.core_of(parts[_index].tile) if same else None

    @property
    def flow(self) -> LineFlow:
        assert isinstance(self.decision.flow, LineFlow), "the other flows have other lowerings"
        return self.decision.flow

    def finish(self) -> None:
        self.drop_copies()

    def drop_copies(self) -> None:
        """Drops copies without readers, such as input lines that a strided window skips."""
        used = {part.tile.name for tensor in self.tensors.values() for part in tensor.parts}
        kept: list[PlacedCompute] = []
        for placed in reversed(self.computes):  # a reader comes after the copy
            body = placed.compute.body
            if _COPIES.issuperset(map(type, body)) and used.isdisjoint([t.name for t in placed.compute.results]):
                continue
            for op in body:
                for tile in op.operands:
                    used.add(tile.name)
            kept.append(placed)
        self.computes = kept[::-1]

    def bind_input(self, name: str) -> None:
        """Creates the lines of a model input that is streamed, else its tiles."""
        if name not in self.parts_of:
            self.bind_input_tiles(name)
            return
        image, parts = self.graph.tensors[name].image, self.parts_of[name]
        cols, element = (0, image.width), self.element(name)
        lines = (
            tuple(
                (LineCell(cols, Tile(cell_name(name, y, p, cols), 1, image.width, b - a, element)),)
                for p, (a, b) in enumerate(parts)
            )
            for y in range(image.rows)
        )
        self.bind_grid(name, "", CellGrid(parts, tuple(lines)))
        if name in self.flow.loaders:
            self.load(name, self.flow.loaders[name])

    def load(self, name: str, loaders: tuple[tuple[Range, int], ...]) -> None:
        """Emits copies of a model input to its loader cores, which pass its lines on to all readers."""
        given = self.grids[name]
        lines = (
            tuple(tuple(self.loaded(name, y, p, cells[0], loaders)) for p, cells in enumerate(line))
            for y, line in enumerate(given.lines)
        )
        self.grids[name] = CellGrid(given.parts, tuple(lines))

    def loaded(
        self, name: str, y: int, p: int, whole: LineCell, loaders: tuple[tuple[Range, int], ...]
    ) -> Iterator[LineCell]:
        """Emits a copy of a line on each loader core, as part of the first node that reads it. Yields the cells."""
        reader = next(node for node in self.graph.nodes if name in node.inputs)
        channels, position = whole.tile.channels, y / len(self.grids[name].lines)
        for cols, core in loaders:
            width = cols[1] - cols[0]
            tile = Tile(f"{cell_name(name, y, p, cols)}.loaded", 1, width, channels, whole.tile.element)
            op = Copy(tile, whole.tile, cols[0] * channels, 0, width * channels)
            self.emit(Compute(reader.name, reader.op_type, "", (), (op,), (tile,)), core, position)
            yield LineCell(cols, tile)

    def bind_grid(self, name: str, node: str, grid: CellGrid) -> None:
        """Records that a tensor consists of these lines."""
        width = self.graph.tensors[name].image.width
        self.grids[name] = grid
        regions = (
            (TensorRegion(grid.parts[p], (y, y + 1), None if c.cols == (0, width) else c.cols), c.tile)
            for y, p, c in grid.cells()
        )
        self.bind(name, node, list(regions))

    def bind_cells(self, node: Node, parts: ChannelRanges, made: MadeCells) -> None:
        """Records that the output of a node consists of these cells."""
        rows = self.graph.tensors[node.output].image.rows
        self.bind_grid(node.output, node.name, CellGrid.from_cells(parts, rows, made))

    def parts(self, name: str) -> tuple[TensorPart, ...]:
        """Returns the tiles of all rows of a tensor. The first call assembles them from lines."""
        tensor = self.tensors[name]
        if name not in self.grids or (len(tensor.parts) == 1 and tensor.image.rows == 1):
            return tensor.parts
        if not tensor.whole:
            whole = tuple(
                TensorPart(region, self.together(name, i, region)) for i, region in self.regions(tensor.image)
            )
            self.tensors[name] = tensor = replace(tensor, whole=whole)
        return tensor.whole

    def together(self, name: str, index: int, region: TensorRegion) -> Tile:
        """Emits the assembly of all lines of a range of channels into one tile."""
        image, grid = self.graph.tensors[name].image, self.grids[name]
        tile = Tile(f"{name}.whole{index}", image.rows, image.width, region.channel_count, self.element(name))
        cells = [(y, grid.parts[p], c) for y, p, c in grid.cells() if ranges_overlap(grid.parts[p], region.channels)]
        runs = [
            runs_into_tile(i, y, part, cell, region.channels, image.width) for i, (y, part, cell) in enumerate(cells)
        ]
        self.emit_move(name, tile, tuple(c.tile for *_, c in cells), np.concatenate(runs))
        return tile

    def emit_move(
        self, name: str, tile: Tile, sources: tuple[Tile, ...], runs: Ints, core: int | None = None, at: float = 1.0
    ) -> None:
        """Emits a `Move` into `tile`, which is a part of tensor `name`. core, at: core and position, see `emit`."""
        op = MoveTile(tile, sources, runs[np.argsort(runs[:, 0], kind="stable")])
        self.emit(Compute(self.tensors[name].node, "Move", name, (), (op,), (tile,)), core, at)

    def grid(self, name: str) -> CellGrid:
        """Returns the lines of a tensor. The first call cuts them out of its tiles."""
        if name not in self.grids:
            self.grids[name] = self.cut(name, self.parts_of[name], name)
        return self.grids[name]

    def cut(self, name: str, parts: ChannelRanges, grid: str) -> CellGrid:
        """Emits lines `grid` of a tensor, for channel ranges `parts`, from its tiles of all rows."""
        image = self.graph.tensors[name].image
        whole = self.parts(name)
        cols = (0, image.width)
        lines: list[tuple[tuple[LineCell, ...], ...]] = []
        for y in range(image.rows):
            line: list[tuple[LineCell, ...]] = []
            for p, part in enumerate(parts):
                stem = f"{cell_name(grid, y, p, cols)}.cut"
                tile = Tile(stem, 1, image.width, part[1] - part[0], self.element(name))
                sources = [w for w in whole if ranges_overlap(w.region.channels, part)]
                runs = [runs_out_of_tile(i, y, w, part, image.width) for i, w in enumerate(sources)]
                self.emit_move(name, tile, tuple(w.tile for w in sources), np.concatenate(runs))
                line.append((LineCell(cols, tile),))
            lines.append(tuple(line))
        return CellGrid(parts, tuple(lines))

    def with_channel_ranges(self, name: str, parts: ChannelRanges) -> str:
        """Returns the key in `grids` of a tensor with channel ranges `parts`. The first call converts the lines."""
        held = self.grid(name)
        if held.parts == parts:
            return name
        grid = f"{name}.by{'-'.join(str(b) for _, b in parts)}"
        if grid not in self.grids:
            on_cores = all(self.residency.core_of(cell.tile) is not None for _, _, cell in held.cells())
            alike = held.is_uniformly_cut and on_cores
            self.grids[grid] = self.regroup_channels(name, parts, grid) if alike else self.cut(name, parts, grid)
        return grid

    def regroup_channels(self, name: str, parts: ChannelRanges, grid: str) -> CellGrid:
        """Emits lines `grid` with other channel ranges; each cell is assembled where its first range is."""
        made: MadeCells = {}
        held = self.grids[name]
        for y, line in enumerate(held.lines):
            for cells in zip(*line, strict=True):
                cols, core, at = cells[0].cols, self.residency.core_of(cells[0].tile), y / len(held.lines)
                row = [TensorPart(TensorRegion(p, (0, 1)), c.tile) for p, c in zip(held.parts, cells, strict=True)]
                for p, part in enumerate(parts):
                    width = cols[1] - cols[0]
                    tile = Tile(cell_name(grid, y, p, cols), 1, width, part[1] - part[0], self.element(name))
                    sources = [w for w in row if ranges_overlap(w.region.channels, part)]
                    runs = [runs_out_of_tile(i, 0, w, part, width) for i, w in enumerate(sources)]
                    self.emit_move(name, tile, tuple(w.tile for w in sources), np.concatenate(runs), core, at)
                    made.setdefault((y, p), []).append(LineCell(cols, tile))
        return CellGrid.from_cells(parts, len(held.lines), made)

    def line_on(
        self, node: Node, name: str, y: int, p: int, cols: Range, core: int, *, exact: bool = False
    ) -> LineCell:
        """Returns a cell on a core that contains pixels of a line; copies them there if there is none.

        With `exact`, the cell contains no other pixels.
        """
        place = (name, y, p, core)
        cell = self.residency.find_cell(place, self.grid(name).lines[y][p], cols, exact=exact)
        return cell or self.residency.record_copy(
            place, LineCell(cols, self.band_on(node, name, (y, y + 1), p, cols, core))
        )

    def band_on(self, node: Node, name: str, lines: Range, p: int, cols: Range, core: int) -> Tile:
        """Returns a tile on a core with some columns of neighbouring lines. The first call copies it there."""
        grid = self.grid(name)
        channels, width = grid.parts[p][1] - grid.parts[p][0], cols[1] - cols[0]
        last = "" if lines[1] - lines[0] == 1 else f"-r{lines[1]}"
        stem = f"{cell_name(name, lines[0], p, cols)}-{cols[1]}{last}"
        tile = Tile(f"{stem}@{core}", lines[1] - lines[0], width, channels, grid.lines[0][p][0].tile.element)
        if self.residency.core_of(tile) is not None:  # copied for another layer on this core
            return tile
        left, right = cols
        for y in range(*lines):
            for cell in grid.cells_under(y, p, cols):
                begin, end = cell.cols
                low, high = max(left, begin), min(right, end)
                first, at = low - begin, (y - lines[0]) * width + low - left
                op = Copy(tile, cell.tile, first * channels, at * channels, (high - low) * channels)
                position = y / len(grid.lines)
                self.emit(Compute(node.name, node.op_type, "", (), (op,), (tile,)), core, position)
        return tile
