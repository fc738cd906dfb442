"""Windows that move over lines: which lines an output line reads, and which columns each cell of a line makes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from raptor.graph.ir import Stencil
from raptor.graph.window import Window
from raptor.mapping.line_unfolding import input_range
from raptor.mapping.streaming import Range
from raptor.mapping.window_axis import lines_read
from raptor.spatial.line_grid import Cell


@dataclass(frozen=True, slots=True)
class LineWindow:
    """A window of two dimensions for one output line, which is `row` of its result.

    lines: the input lines that it reads, each with its row in this window. taps: for a window of more dimensions, the
    kernel positions of these rows, counted without the last dimension; else empty, and the window is the given one.
    """

    window: Window
    row: int
    lines: tuple[tuple[int, int], ...]
    taps: tuple[int, ...] = ()

    @classmethod
    def of(cls, window: Window, y: int) -> "LineWindow":
        """Makes the window of output line `y`. Of a volume, the lines that it reads are the rows, one below another."""
        read = lines_read(window)[y]
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
        """Number of rows of padding above those under the window."""
        return self.under[0] - (self.row * self.window.strides[0] - self.window.pads[0])

    def stencil(self, operator: Stencil) -> Stencil:
        """Returns a stencil with the weights of this window."""
        if not self.taps:
            return operator
        pixels, _, channels = operator.weights.shape
        rows = operator.weights.reshape(pixels, -1, self.window.kernel[-1], channels)[:, list(self.taps)]
        return replace(operator, weights=rows.reshape(pixels, -1, channels))


def reads_everywhere(window: Window, cols: Range) -> bool:
    """True if every output line of these columns reads pixels that are not padding."""
    first, last = input_range(window, cols)
    return first < last and all(lines_read(window))


def window_cells(window: Window, cells: tuple[Cell, ...]) -> Iterator[tuple[Range, Cell]]:
    """Yields the output pixels that are computed on the core of each cell.

    Output x belongs to the cell that holds input x * stride; the last cell takes the rest.
    """
    first = 0
    for i, cell in enumerate(cells):
        last = window.out_dims[-1] if i == len(cells) - 1 else -(-cell.cols[1] // window.strides[-1])
        last = min(last, window.out_dims[-1])
        if first < last:
            yield (first, last), cell
        first = max(first, last)
