"""Tensors that are streamed by line, as grids of cells; conversion between cells and tiles of all rows."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from raptor.mapping.modes.line_streaming import ChannelRanges, Range
from raptor.spatial.ir import TensorPart, Tile

Ints = npt.NDArray[np.int64]


class LineCell(msgspec.Struct, frozen=True, gc=False):
    """A tile that holds pixels `cols` of a line, for a range of channels."""

    cols: Range
    tile: Tile

    def holds(self, cols: Range, *, exact: bool) -> bool:
        """True if the cell contains all pixels `cols`; with `exact`, only if it contains no others."""
        return self.cols == cols if exact else self.cols[0] <= cols[0] and cols[1] <= self.cols[1]


MadeCells = dict[tuple[int, int], list[LineCell]]
"""Cells emitted so far, from left to right, keyed by (line, number of the channel range)."""


@dataclass(frozen=True, slots=True)
class CellGrid:
    """A streamed tensor: `lines[y][p]` are the cells of line y and channel range `parts[p]`, from left to right.

    Each pixel of a line is in exactly one of its cells.
    """

    parts: ChannelRanges
    lines: tuple[tuple[tuple[LineCell, ...], ...], ...]

    @classmethod
    def from_cells(
        cls, parts: ChannelRanges, rows: int, made: Mapping[tuple[int, int], Sequence[LineCell]]
    ) -> "CellGrid":
        """Makes a grid of `rows` lines from emitted cells; see `MadeCells`."""
        return cls(parts, tuple(tuple(tuple(made[y, p]) for p in range(len(parts))) for y in range(rows)))

    @property
    def is_uniformly_cut(self) -> bool:
        """True if the cells of each line have the same columns for all channel ranges."""
        return all([c.cols for c in cells] == [c.cols for c in line[0]] for line in self.lines for cells in line)

    def cells_under(self, y: int, p: int, cols: Range) -> Sequence[LineCell]:
        """Returns the cells of line y and channel range p that intersect the pixels `cols`."""
        cells = self.lines[y][p]
        if len(cells) == 1:
            return cells
        first = bisect_right(cells, cols[0], key=_end)
        return cells[first : bisect_left(cells, cols[1], first, key=_begin)]

    def cells(self) -> Iterator[tuple[int, int, LineCell]]:
        """Yields line, number of the channel range, and cell."""
        for y, line in enumerate(self.lines):
            for p, cells in enumerate(line):
                for cell in cells:
                    yield y, p, cell


def _begin(cell: LineCell) -> int:
    return cell.cols[0]


def _end(cell: LineCell) -> int:
    return cell.cols[1]


def cell_name(tensor: str, y: int, p: int, cols: Range) -> str:
    """Returns the name of a cell: tensor, line, number of the channel range, first column."""
    return f"{tensor}.r{y}.c{p}.x{cols[0]}"


def ranges_overlap(a: Range, b: Range) -> bool:
    """True if the half-open ranges intersect."""
    return a[0] < b[1] and b[0] < a[1]


def runs_into_tile(source: int, y: int, part: Range, cell: LineCell, channels: Range, width: int) -> Ints:
    """Returns the runs (see `Move`) that copy a cell of line `y` into a tile of all rows.

    source: operand number of the cell. part: channels of the cell. channels, width: channels of the tile, and pixels of
    one of its rows.
    """
    low, high = max(part[0], channels[0]), min(part[1], channels[1])
    wide, count = channels[1] - channels[0], cell.cols[1] - cell.cols[0]
    at = y * width + cell.cols[0]
    if part == channels:
        return np.array([[at * wide, source, 0, 1, count * wide]])
    pixel = np.arange(count)
    first = pixel * (part[1] - part[0]) + low - part[0]
    target = (at + pixel) * wide + low - channels[0]
    return np.stack(np.broadcast_arrays(target, source, first, 1, high - low), axis=1)


def runs_out_of_tile(source: int, y: int, whole: TensorPart, part: Range, width: int) -> Ints:
    """Returns the runs (see `Move`) that copy line `y` out of a tile of all rows.

    source: operand number of the tile. part, width: channels and pixels of the line.
    """
    channels = whole.region.channels
    low, high = max(part[0], channels[0]), min(part[1], channels[1])
    wide, own = channels[1] - channels[0], part[1] - part[0]
    if part == channels:
        return np.array([[0, source, y * width * wide, 1, width * wide]])
    pixel = np.arange(width)
    first = (y * width + pixel) * wide + low - channels[0]
    return np.stack(np.broadcast_arrays(pixel * own + low - part[0], source, first, 1, high - low), axis=1)
