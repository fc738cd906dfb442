"""Line blocks: a product of a few neighbouring input pixels with everything they contribute to.

An image line is cut into blocks of neighbouring pixels that fill a crossbar's rows. One `mvmul` multiplies a block with
a matrix whose columns are (kernel row, output pixel, output channel): all outputs that the block reaches, in all output
lines, so an input is multiplied once or hardly more (parallel windows, SDK and VW-SDK, in both dimensions; the columns
are crossbars side by side). What different blocks and lines contribute to an output is added up afterwards.

Blocks that overlap by the kernel can instead own their output pixels, so that less is added up; `outputs` says which:
0 for blocks side by side, else the output pixels of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.frontend.graph import Filter
from raptor.window import Window

Floats = npt.NDArray[np.float32]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Block:
    """Input pixels `pixels` of a line, and the output pixels `outs` of a line that they are multiplied for.

    `outs` may reach beyond the image.
    """

    pixels: Range
    outs: Range


@dataclass(frozen=True, slots=True)
class LineMatrix:
    """The weights between a block and its outputs. Occupies `xbars` crossbars side by side.

    Rows are (pixel of the block, input channel of `ins`), columns (kernel row of `kernel_rows`, output pixel, output
    channel of `outs`). `shift`: the input pixel that the first kernel column of the first output pixel reads, counted
    from the first pixel of the block.
    """

    ins: Range
    outs: Range
    pixels: int
    shift: int
    count: int
    kernel_rows: tuple[int, ...]
    xbars: int

    @property
    def rows(self) -> Range:
        return 0, self.pixels * (self.ins[1] - self.ins[0])

    @property
    def cols(self) -> Range:
        return 0, len(self.kernel_rows) * self.count * (self.outs[1] - self.outs[0])

    def values(self, filter_: Filter) -> Floats:
        """[rows, cols]; zero where an output does not read a pixel."""
        window = filter_.window
        height, width = window.kernel
        weights = filter_.weights.reshape(height, width, *filter_.weights.shape[1:])
        weights = weights[list(self.kernel_rows), :, slice(*self.ins), slice(*self.outs)]
        offset = np.arange(self.pixels)[:, None] - self.shift - np.arange(self.count) * window.strides[1]
        tap, rest = np.divmod(offset, window.dilations[1])
        inside = (rest == 0) & (tap >= 0) & (tap < width)
        # [kernel rows, pixels, output pixels, ins, outs]
        chosen = weights[:, np.where(inside, tap, 0)] * inside[None, :, :, None, None]
        rows, cols = self.rows[1], self.cols[1]
        return np.ascontiguousarray(chosen.transpose(1, 3, 0, 2, 4), np.float32).reshape(rows, cols)


def input_range(window: Window, outs: Range) -> Range:
    """The input pixels of a line that the output pixels `outs` read; empty where they read padding only."""
    reach = (window.kernel[1] - 1) * window.dilations[1]
    first = outs[0] * window.strides[1] - window.pads[1]
    last = (outs[1] - 1) * window.strides[1] - window.pads[1] + reach
    low, high = max(0, first), min(window.in_dims[1], last + 1)
    return low, max(low, high)


def reached(window: Window, pixels: Range) -> Range:
    """The output pixels, inside the image or not, that read any of the input pixels."""
    reach = (window.kernel[1] - 1) * window.dilations[1]
    stride = window.strides[1]
    low = -((reach - pixels[0] - window.pads[1]) // stride)
    return low, max(low, (pixels[1] - 1 + window.pads[1]) // stride + 1)


def line_blocks(window: Window, outs: Range, pixels: int, outputs: int) -> tuple[Block, ...]:
    """The blocks of at most `pixels` pixels for the output pixels `outs`, from left to right."""
    if outputs:
        return tuple(_owning(window, outs, outputs))
    low, high = input_range(window, outs)
    # A whole last block, where the image has the pixels for it, needs no matrix of its own.
    missing = -(high - low) % pixels
    high, missing = min(window.in_dims[1], high + missing), max(0, high + missing - window.in_dims[1])
    low = max(0, low - missing)
    cuts = [(at, min(at + pixels, high)) for at in range(low, high, pixels)]
    return tuple(Block(cut, reached(window, cut)) for cut in cuts if reached(window, cut)[0] < reached(window, cut)[1])


def _owning(window: Window, outs: Range, outputs: int) -> Iterator[Block]:
    for first in range(*outs, outputs):
        own = (first, min(first + outputs, outs[1]))
        pixels = input_range(window, own)
        if pixels[0] < pixels[1]:
            yield Block(pixels, own)


def block_outputs(window: Window, pixels: int) -> int:
    """The most output pixels that a block of `pixels` input pixels can own; 0 if not even one."""
    reach = (window.kernel[1] - 1) * window.dilations[1]
    return max(0, (pixels - 1 - reach) // window.strides[1] + 1)


def kernel_rows(window: Window, line: int) -> tuple[int, ...]:
    """The kernel rows through which an input line meets output lines, whether those exist or not.

    Equal for lines that differ by a stride.
    """
    at = line + window.pads[0]
    return tuple(k for k in range(window.kernel[0]) if (at - k * window.dilations[0]) % window.strides[0] == 0)


def output_line(window: Window, line: int, kernel_row: int) -> int | None:
    """The output line that meets an input line through a kernel row."""
    at = (line + window.pads[0] - kernel_row * window.dilations[0]) // window.strides[0]
    return at if 0 <= at < window.out_dims[0] else None
