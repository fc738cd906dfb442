"""Lowering of element rearrangements (`Move`) line by line: each result line is gathered from its input lines.

A line is gathered on a core that holds the operand that is ready last. Whole pixels are sent there even if only some
channels are needed: a slightly longer message takes less time than packing elements on a core.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Node
from raptor.graph.rearrangement import MoveOrigins
from raptor.graph.run_encoding import find_runs
from raptor.mapping.modes.line_streaming import ChannelRanges, Range
from raptor.spatial.compute_op import Compute
from raptor.spatial.lowering.cell_grid import CellGrid, LineCell, cell_name
from raptor.spatial.lowering.tile_residency import EmitCompute
from raptor.spatial.operations import Move
from raptor.spatial.tiles import Tile
from raptor.target.chip_elements import ElementType

Ints = npt.NDArray[np.int64]

CellOnCore = Callable[[str, int, int, Range, int], LineCell]
"""(tensor, line, channel range number, columns, core) -> a cell on that core that holds these pixels."""


@dataclass(frozen=True, slots=True)
class LineMove:
    """A `Move` that is lowered line by line.

    element: element type of the result. parts: channel ranges of the result. operands: the lines of each operand. lead:
    number of the operand on whose cores the lines are gathered. gatherers: column ranges of the result and the core
    that gathers each; empty if the cores of the leading operand do. loaded: see `columns_loaded`.
    """

    node: Node
    element: ElementType
    parts: ChannelRanges
    places: MoveOrigins
    operands: tuple[CellGrid, ...]
    lead: int
    gatherers: Sequence[tuple[Range, int]] = ()
    loaded: dict[Range, Mapping[tuple[int, int], Range]] = field(
        default_factory=dict[Range, Mapping[tuple[int, int], Range]]
    )

    def lower(self, emit: EmitCompute, on_core: CellOnCore, core_of: Callable[[Tile], int | None]) -> CellGrid:
        """Emits the lines, and returns them. A result line that equals an operand line reuses its cells.

        If several result lines are equal, only the first one reuses the cells and the others are copies: pixels of
        lines under a window need distinct storage.
        """
        gathered, segments = dict(self.gatherers), self.segments()
        lines: list[tuple[tuple[LineCell, ...], ...]] = []
        above: set[tuple[LineCell, ...]] = set()
        for y in range(len(self.places.tensor)):
            line: list[tuple[LineCell, ...]] = []
            for p in range(len(self.parts)):
                cores = (gathered[c] if gathered else core_of(self.near(y, p, c)) or 0 for c in segments)
                made = (self.cell(emit, on_core, (y, p), c, core) for c, core in zip(segments, cores, strict=True))
                same = None if gathered else self.same(y, p)
                line.append(tuple(made) if same is None or same in above else same)
            lines.append(tuple(line))
            above.update(line)
        return CellGrid(self.parts, tuple(lines))

    def same(self, y: int, p: int) -> tuple[LineCell, ...] | None:
        """Returns the cells of the operand line that equals a line and channel range of the result, or None."""
        (t, line, q), found = (
            self.find_origin(y, 0, self.parts[p][0]),
            self.found(y, p, (0, self.places.tensor.shape[1])),
        )
        if t < 0 or self.operands[t].lines[line][q][-1].cols[1] != len(found[0]):
            return None
        low, high = self.operands[t].parts[q]
        tensor, lines, col, channel = found
        channels, width = high - low, len(tensor)
        here = (tensor == t) & (lines == line) & (col == np.arange(width)[:, None])
        equal = tensor.shape[1] == channels and bool(np.all(here & (channel == np.arange(low, high))))
        return self.operands[t].lines[line][q] if equal else None

    def found(self, y: int, p: int, cols: Range) -> tuple[Ints, ...]:
        """Returns operand, line, column and channel of the elements of a cell, each [width, channels]."""
        cell = y, slice(*cols), slice(*self.parts[p])
        return self.places.tensor[cell], self.places.line[cell], self.places.col[cell], self.places.channel[cell]

    def find_origin(self, y: int, x: int, c: int) -> tuple[int, int, int]:
        """Returns operand, line and channel range number of the origin of an element."""
        t, channel = int(self.places.tensor[y, x, c]), int(self.places.channel[y, x, c])
        ends = [b for _, b in self.operands[t].parts]
        return t, int(self.places.line[y, x, c]), int(np.searchsorted(ends, channel, side="right"))

    def segments(self) -> list[Range]:
        """Cuts the columns of the result: for the gatherers, or where the leading operand is in another cell."""
        if self.gatherers:
            return [cols for cols, _ in self.gatherers]
        cells = self.operands[self.lead].lines[0][0]
        ends = np.array([cell.cols[1] for cell in cells])
        read: Ints = np.where(self.places.tensor == self.lead, self.places.col, ends[-1]).min(axis=(0, 2))
        cell: Ints = np.searchsorted(ends, read, side="right")
        known = np.flatnonzero(cell < len(ends))  # padding belongs to the column before it
        before = np.maximum(np.searchsorted(known, np.arange(len(cell)), side="right") - 1, 0)
        cuts = np.flatnonzero(np.diff(cell[known[before]])) + 1 if len(known) else ()
        return list(pairwise([0, *map(int, cuts), len(cell)]))

    def near(self, y: int, p: int, cols: Range) -> Tile:
        """Returns the source tile on whose core a cell is gathered; if possible a tile of the leading operand."""
        tensor, _, col, _ = self.found(y, p, cols)
        leading = tensor == self.lead
        places = np.argwhere(leading if leading.any() else tensor >= 0)
        if not len(places):
            return self.operands[self.lead].lines[0][0][0].tile
        x, c = places[0].tolist()
        t, line, q = self.find_origin(y, cols[0] + x, self.parts[p][0] + c)
        return next(cell.tile for cell in self.operands[t].lines[line][q] if col[x, c] < cell.cols[1])

    def columns_loaded(self, cols: Range) -> Mapping[tuple[int, int], Range]:
        """Returns the columns of operand lines that a gatherer loads at once, for all lines of the result."""
        if not self.gatherers:
            return {}
        if cols not in self.loaded:
            self.loaded[cols] = self.places.columns_read(cols)
        return self.loaded[cols]

    def cell(self, emit: EmitCompute, on_core: CellOnCore, at: tuple[int, int], cols: Range, core: int) -> LineCell:
        """Emits the `Move` that gathers a cell on a core. `at`: line and channel range number."""
        tensor, line, col, channel = (found.reshape(-1) for found in self.found(*at, cols))
        part = np.full(len(tensor), -1)
        for t, operand in enumerate(self.operands):
            ends = [b for _, b in operand.parts]
            part = np.where(tensor == t, np.searchsorted(ends, channel, side="right"), part)
        where, offset, sources = np.full(len(tensor), -1), np.zeros(len(tensor), np.int64), list[Tile]()
        places: set[tuple[int, int, int]] = set(zip(tensor.tolist(), line.tolist(), part.tolist(), strict=True))
        for t, y, q in sorted(places):
            if t < 0:
                continue
            own = (tensor == t) & (line == y) & (part == q)
            read = int(col[own].min()), int(col[own].max()) + 1
            given = on_core(self.node.inputs[t], y, q, self.columns_loaded(cols).get((t, y), read), core)
            low, high = self.operands[t].parts[q]
            where[own] = len(sources)
            offset[own] = (col[own] - given.cols[0]) * (high - low) + channel[own] - low
            sources.append(given.tile)
        (y, p), (low, high) = at, self.parts[at[1]]
        tile = Tile(cell_name(self.node.output, y, p, cols), 1, cols[1] - cols[0], high - low, self.element)
        op = Move(tile, tuple(sources), find_runs(where, offset))
        position = y / len(self.places.tensor)
        emit(Compute(self.node.name, self.node.op_type, self.node.output, (), (op,), (tile,)), core, position)
        return LineCell(cols, tile)
