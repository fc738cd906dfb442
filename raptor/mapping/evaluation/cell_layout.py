"""Layout of a tensor on cores: cells of a line, or whole tiles."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raptor.mapping.modes.line_streaming import ChannelRanges, Range
from raptor.target.tensor_layout import Image

Ints = npt.NDArray[np.int64]

GLOBAL_MEMORY = -1
"""The place of model inputs and constants, in columns of cores."""


class PlacedCell(NamedTuple):
    """Pixels `first` to `last` - 1 of a line, on a core or in global memory."""

    first: int
    last: int
    core: int

    @property
    def width(self) -> int:
        return self.last - self.first

    @property
    def cols(self) -> Range:
        return self.first, self.last


CellLine = tuple[tuple[PlacedCell, ...], ...]
"""Cells of a line from left to right, by channel range."""


@dataclass(frozen=True, eq=False)
class CellLayout:
    """Cells of a tensor with `rows` lines of channel ranges `parts`.

    lines: cells of each line, or of one line if all are alike, or of a line of each lane. starts: the first line of
    each lane, if there are lanes: ranges of lines that are alike. A tensor that is no sequence of lines has one line
    for all its rows (`whole`): each of its cells is a tile.
    """

    image: Image
    parts: ChannelRanges
    lines: tuple[CellLine, ...]
    whole: bool = False
    starts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Number of lines that are made one after another."""
        return 1 if self.whole else self.image.rows

    @property
    def pixel_lines(self) -> int:
        """Number of image lines in each line of cells."""
        return self.image.rows if self.whole else 1

    @property
    def rounds(self) -> int:
        """Number of steps in which a function of each line is computed: lines on different cores are done at once."""
        if len(self.lines) == 1 or self.starts:
            return self.rows
        on_cores = ({cell.core for cells in line for cell in cells} for line in self.lines)
        return max(Counter(core for cores in on_cores for core in cores).values())

    def index(self, row: int) -> int:
        """Returns the index in `lines` of the cells of an image line: the lane of the line, if there are lanes."""
        if self.starts:
            return bisect_right(self.starts, row) - 1
        return row if len(self.lines) > 1 else 0

    def line(self, row: int) -> CellLine:
        """Returns the cells of a line."""
        return self.lines[self.index(row)]

    @property
    def spans(self) -> list[Range]:
        """The range of image lines that each entry of `lines` describes: a lane, a single line, or all lines."""
        if len(self.lines) == 1:
            return [(0, self.rows)]
        return [*pairwise((*(self.starts or range(self.rows)), self.rows))]

    def under(self, rows: Range) -> Iterator[tuple[int, int]]:
        """Yields (a line, number of lines like it) of the entries of `lines` that contain some of these rows."""
        for low, high in self.spans:
            if low < rows[1] and rows[0] < high:
                yield max(low, rows[0]), min(high, rows[1]) - max(low, rows[0])

    def distinct(self) -> Iterator[tuple[CellLine, int]]:
        """Yields each line of cells with the number of lines that are alike."""
        for line, (low, high) in zip(self.lines, self.spans, strict=True):
            yield line, high - low

    def elements(self, part: int, cell: PlacedCell) -> int:
        """Returns the number of elements of a cell."""
        low, high = self.parts[part]
        return self.pixel_lines * cell.width * (high - low)

    @property
    def first_core(self) -> int:
        return self.lines[0][0][0].core

    @cached_property
    def cell_cores(self) -> Ints:
        """The core of each cell, in the order of lines, channel ranges and columns."""
        return np.array([cell.core for line in self.lines for cells in line for cell in cells], np.int64)

    def core_of(self, element: int) -> int:
        """Returns the core of an element; elements are numbered by line, column and channel."""
        pixel, channel = divmod(element, self.image.channels)
        row, column = divmod(pixel, self.image.width)
        part = next(k for k, (_, high) in enumerate(self.parts) if channel < high)
        cells = self.line(0 if self.whole else row)[part]
        return cells[bisect_right(cells, column, key=_end)].core

    @cached_property
    def cell_of_element(self) -> Ints:
        """The number of the cell (as in `cell_cores`) of each element: [lines, columns, channels]."""
        image, number = self.image, 0
        found = np.empty((self.rows * self.pixel_lines, image.width, image.channels), np.int64)
        for line, (first, stop) in zip(self.lines, self.spans, strict=True):
            rows = slice(first * self.pixel_lines, stop * self.pixel_lines)
            for (low, high), cells in zip(self.parts, line, strict=True):
                for cell in cells:
                    found[rows, cell.first : cell.last, low:high] = number
                    number += 1
        if not self.whole:  # equal cells of different lines are different tiles
            before = np.concatenate([np.arange(high - low) for low, high in self.spans])
            found += before[:, None, None] * number
        return found


def cells_under(cells: tuple[PlacedCell, ...], cols: Range) -> Iterator[tuple[PlacedCell, int]]:
    """Yields the cells, in order, that intersect the pixels `cols`, with the number of pixels in both."""
    for cell in cells[bisect_right(cells, cols[0], key=_end) :]:
        if cell.first >= cols[1]:
            break
        yield cell, min(cell.last, cols[1]) - max(cell.first, cols[0])


def _end(cell: PlacedCell) -> int:
    return cell.last
