"""Row windows: several neighbouring outputs of an image row from one product (SDK, VW-SDK; a patch is a window of one).

The patch of a window of `outputs` neighbours is `patch_width` input pixels wide and one kernel high. As a vector it is
read row by row, and in each row pixel by pixel: one contiguous run of a line buffer for each kernel row. The matrix of
the whole patch has these elements as rows and (output of the window, output channel) as columns; kernel positions
that an output does not read are zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.frontend.graph import Filter
from raptor.window import Window

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowWindow:
    """How the outputs of one row of a two-dimensional window are grouped. All in pixels."""

    outputs: int
    stride: int
    dilation: int
    kernel_rows: int
    kernel_cols: int
    pad: int
    in_width: int
    out_width: int

    @classmethod
    def of(cls, window: Window, outputs: int) -> "RowWindow":
        """Of a two-dimensional window."""
        kernel_rows, kernel_cols = window.kernel
        stride, dilation, pad = window.strides[1], window.dilations[1], window.pads[1]
        in_width, out_width = window.in_dims[1], window.out_dims[1]
        return cls(outputs, stride, dilation, kernel_rows, kernel_cols, pad, in_width, out_width)

    @property
    def patch_width(self) -> int:
        return (self.outputs - 1) * self.stride + (self.kernel_cols - 1) * self.dilation + 1

    def first_outputs(self) -> npt.NDArray[np.int64]:
        """First output of each window of a row; the last window may overlap the one before, never the end."""
        starts = np.arange(0, self.out_width, self.outputs)
        return np.minimum(starts, self.out_width - self.outputs)

    @property
    def pads(self) -> tuple[int, int]:
        """Zero columns that a line buffer needs before and behind the image, so that every patch lies inside."""
        last = int(self.first_outputs()[-1]) * self.stride - self.pad + self.patch_width
        return self.pad, max(0, last - self.in_width)


@dataclass(frozen=True, slots=True)
class PatchMatrix:
    """Rows `rows` of the matrix of a whole patch, all columns. Occupies `xbars` crossbars side by side."""

    outputs: int
    rows: tuple[int, int]
    cols: tuple[int, int]
    xbars: int

    def values(self, filter_: Filter) -> Floats:
        """[rows, outputs * output channels]."""
        shape = RowWindow.of(filter_.window, self.outputs)
        _, ins, outs = filter_.weights.shape
        row = np.arange(*self.rows)
        line, rest = np.divmod(row, shape.patch_width * ins)
        pixel, channel = np.divmod(rest, ins)
        columns: list[Floats] = []
        for k in range(self.outputs):
            tap, remainder = np.divmod(pixel - k * shape.stride, shape.dilation)
            inside = (remainder == 0) & (tap >= 0) & (tap < shape.kernel_cols)
            taps = line * shape.kernel_cols + np.where(inside, tap, 0)
            columns.append(np.where(inside[:, None], filter_.weights[taps, channel], np.float32(0)))
        return np.concatenate(columns, axis=1).reshape(len(row), self.outputs * outs)


def blocks(shape: RowWindow, channels: int, xbar_rows: int, *, gather: bool) -> Iterator[tuple[int, int]]:
    """Row ranges of the patch matrix, one for each product.

    A gathered patch is cut every `xbar_rows`; one read in place is cut at the ends of its runs too.
    """
    run = shape.patch_width * channels
    total = run * shape.kernel_rows
    step = total if gather else run
    for start in range(0, total, step):
        stop = start + step
        yield from ((first, min(first + xbar_rows, stop)) for first in range(start, stop, xbar_rows))
