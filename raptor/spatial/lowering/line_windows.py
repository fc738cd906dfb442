"""Sliding windows restricted to one output line: the input lines and columns that each output line and cell reads."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from raptor.graph.ir import Stencil
from raptor.graph.window import Window, WindowTable
from raptor.mapping.modes.line_streaming import Range
from raptor.mapping.modes.line_unfolding import input_columns
from raptor.mapping.modes.window_axis import LinesRead, input_lines_read
from raptor.spatial.lowering.cell_grid import LineCell
from raptor.target.tensor_layout import Image


@dataclass(frozen=True, slots=True)
class LineWindow:
    """A 2-D window that computes one output line, as row `row` of its result.

    lines: (row in this window, input line) of the lines that it reads. taps: for a 3-D window, the kernel positions of
    these rows, without the last dimension; empty for a 2-D window, which is kept as it is.
    """

    window: Window
    row: int
    lines: tuple[tuple[int, int], ...]
    taps: tuple[int, ...] = ()

    @classmethod
    def for_line(cls, window: Window, y: int, read: LinesRead) -> "LineWindow":
        """Makes the window of output line `y`, which reads lines `read`. Lines of a volume become rows of an image."""
        if len(window.kernel) == 2:
            return cls(window, y, tuple((line, line) for line, _ in read))
        flat = Window(
            in_dims=(len(read), window.in_dims[-1]),
            out_dims=(1, window.out_dims[-1]),
            kernel=(len(read), window.kernel[-1]),
            strides=(1, window.strides[-1]),
            pads=(0, window.pads[-1]),
            dilations=(1, window.dilations[-1]),
        )
        return cls(flat, 0, tuple((i, line) for i, (line, _) in enumerate(read)), tuple(tap for _, tap in read))

    @property
    def under(self) -> Range:
        """Range of the rows under the window, without padding."""
        window = self.window
        first = self.row * window.strides[0] - window.pads[0]
        last = first + (window.kernel[0] - 1) * window.dilations[0] + 1
        return max(0, first), min(last, window.in_dims[0])

    @property
    def above(self) -> int:
        """Number of padding rows above the rows under the window."""
        return self.under[0] - (self.row * self.window.strides[0] - self.window.pads[0])

    def with_weights_of(self, operator: Stencil) -> Stencil:
        """Returns `operator` with the weights of the kernel positions of this window."""
        if not self.taps:
            return operator
        pixels, _, channels = operator.weights.shape
        rows = operator.weights.reshape(pixels, -1, self.window.kernel[-1], channels)[:, list(self.taps)]
        return replace(operator, weights=rows.reshape(pixels, -1, channels))


@cache
def line_windows(window: Window) -> tuple[LineWindow, ...]:
    """Returns the window of each output line."""
    return tuple(LineWindow.for_line(window, y, read) for y, read in enumerate(input_lines_read(window)))


@dataclass(frozen=True, slots=True, eq=False)
class LineStencil:
    """The part of a `Stencil` that computes some columns of one output line.

    pixels: the columns that it reads. lines: (row in the window of the operator, input line). key: equal for parts that
    differ in their lines only. together: whether neighbouring pixels have equal weights and contiguous sources, so that
    one instruction can weight several. operator: makes the `Stencil` over these lines and columns; one call per `key`
    is enough.
    """

    pixels: Range
    lines: tuple[tuple[int, int], ...]
    key: Hashable
    together: bool
    operator: Callable[[], Stencil]

    @classmethod
    def for_columns(cls, operator: Stencil, y: int, cols: Range, before: Image, after: Image) -> "LineStencil":
        """Makes the part for columns `cols` of output line `y`. before, after: the images of input and output."""
        if isinstance(operator.window, Window):
            return cls._of_window(operator, operator.window, y, cols)
        outs = slice(*(y * after.width + x for x in cols))
        return cls._of_table(operator, operator.window, outs, before.width)

    @classmethod
    def _of_window(cls, operator: Stencil, window: Window, y: int, cols: Range) -> "LineStencil":
        here, pixels = line_windows(window)[y], input_columns(window, cols)
        low, high = here.under
        pads = here.above, pixels[0] - cols[0] * window.strides[-1] + window.pads[-1]
        given, made = (high - low, pixels[1] - pixels[0]), (1, cols[1] - cols[0])
        lines = tuple([(row - low, line) for row, line in here.lines])

        def local() -> Stencil:
            over = replace(here.window, in_dims=given, out_dims=made, pads=pads)
            return replace(here.with_weights_of(operator), window=over)

        return cls(pixels, lines, (given, made, pads, here.taps), window.strides[-1] == 1, local)

    @classmethod
    def _of_table(cls, operator: Stencil, table: WindowTable, outs: slice, width: int) -> "LineStencil":
        weights = operator.weights if len(operator.weights) == 1 else operator.weights[outs]
        alike = bool((weights == weights[:1]).all())
        weights, sources = weights[:1] if alike else weights, table.pixels[outs]
        read = sources >= 0
        line, column = np.divmod(sources, width)
        rows_read, row = np.unique(line[read], return_inverse=True)
        lines: list[int] = rows_read.tolist()
        pixels = int(column[read].min()), int(column[read].max()) + 1
        local = np.full_like(sources, -1)
        local[read] = row.reshape(-1) * (pixels[1] - pixels[0]) + column[read] - pixels[0]
        window = WindowTable(local, len(lines) * (pixels[1] - pixels[0]))
        key = pixels[1] - pixels[0], local.tobytes(), weights.tobytes()
        return cls(pixels, tuple(enumerate(lines)), key, alike, lambda: Stencil(weights, window))


def reads_few_lines(table: WindowTable, before: Image, after: Image, most: int) -> bool:
    """True if each output pixel reads at least one pixel, and each output line at most `most` input lines."""
    lines = np.sort(np.where(table.pixels < 0, -1, table.pixels // before.width).reshape(after.rows, -1), axis=1)
    others = (lines[:, 1:] != lines[:, :-1]) & (lines[:, 1:] >= 0)
    count = (lines[:, 0] >= 0) + others.sum(axis=1)
    return bool((table.pixels >= 0).any(axis=1).all() and (count <= most).all())


def reads_everywhere(window: Window, cols: Range) -> bool:
    """True if every output line reads at least one pixel that is not padding in these columns."""
    first, last = input_columns(window, cols)
    return first < last and all(input_lines_read(window))


@cache
def middle_lines(window: Window) -> tuple[int, ...]:
    """Returns, for each output line, the middle one of the input lines that it reads; 0 if it reads padding only."""
    return tuple(lines[len(lines) // 2][1] if (lines := here.lines) else 0 for here in line_windows(window))


def window_cells(window: Window, cells: tuple[LineCell, ...]) -> Iterator[tuple[Range, LineCell]]:
    """Yields (output pixels, cell) for each input cell: output x is computed on the core of input x * stride."""
    return _shared(cells, window.out_dims[-1], 1, window.strides[-1])


def table_cells(before: Image, after: Image, cells: tuple[LineCell, ...]) -> Iterator[tuple[Range, LineCell]]:
    """Yields (output pixels, cell) for each input cell: the same fraction of the width of the output."""
    return _shared(cells, after.width, after.width, before.width)


def _shared(cells: tuple[LineCell, ...], width: int, times: int, stride: int) -> Iterator[tuple[Range, LineCell]]:
    """Yields the output pixels of each cell: x belongs to input x * stride / times. The last cell gets the rest."""
    first = 0
    for i, cell in enumerate(cells):
        last = width if i == len(cells) - 1 else -(-cell.cols[1] * times // stride)
        last = min(last, width)
        if first < last:
            yield (first, last), cell
        first = max(first, last)
