"""Dimensions of a window: which inputs an output reads, for ordinary and transposed windows alike.

Inputs lie on an axis of places, `spread` places apart; places in between are empty. Output o reads the places from o *
stride on, one for each kernel position, `dilation` places apart. An ordinary window has a spread of 1. A transposed
window has a stride of 1 and spreads its inputs by the stride of the model; it reads the kernel backwards.

The last dimension runs along a line. The others together identify a line: the row in an image, slice and row in a
volume. Lines are numbered in this order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import numpy.typing as npt

from raptor.graph.window import Window

Ints = npt.NDArray[np.int64]
Range = tuple[int, int]

LineIndex = tuple[int, ...]
"""Index of a line in every dimension but the last. The line may lie outside the image."""

LinesRead = tuple[tuple[int, int], ...]
"""Input lines that an output line reads, each with its kernel position, counted without the last dimension."""


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """One dimension of a window. `inputs`, `kernel`: its sizes. `pad`: the place of the first input.

    Place 0 is the first one that output 0 reads.
    """

    inputs: int
    kernel: int
    stride: int
    spread: int
    pad: int
    dilation: int
    backwards: bool

    @property
    def reach(self) -> int:
        """Distance between the first and the last place that an output reads."""
        return (self.kernel - 1) * self.dilation

    def place(self, given: int) -> int:
        """Returns the place of an input."""
        return given * self.spread + self.pad

    def shift(self, given: int, out: int) -> int:
        """Returns the first place that an output reads, counted from the place of an input."""
        return out * self.stride - self.place(given)

    def inputs_read(self, outs: Range) -> Range:
        """Returns the range of inputs that the outputs `outs` read; empty if they read padding only."""
        first = outs[0] * self.stride - self.pad
        last = (outs[1] - 1) * self.stride - self.pad + self.reach
        low, high = max(0, -(-first // self.spread)), min(self.inputs, last // self.spread + 1)
        return low, max(low, high)

    def input_runs(self, outs: Range) -> tuple[Range, ...]:
        """Returns the disjoint input ranges that the outputs `outs` read, from left to right.

        Only a dilation makes gaps: inputs that a stride skips are part of a range.
        """
        if self.dilation == 1:
            low, high = self.inputs_read(outs)
            return ((low, high),) if low < high else ()
        firsts = (outs[0] * self.stride - self.pad + k * self.dilation for k in range(self.kernel))
        step = (outs[1] - 1 - outs[0]) * self.stride
        ends = ((max(0, -(-a // self.spread)), min(self.inputs, (a + step) // self.spread + 1)) for a in firsts)
        found: list[Range] = []
        for low, high in ((low, high) for low, high in ends if low < high):
            if found and low <= found[-1][1]:
                low, _ = found.pop()
            found.append((low, high))
        return tuple(found)

    def outputs_reading(self, given: Range) -> tuple[int, ...]:
        """Returns the outputs that read at least one of the inputs `given`, in order, also outputs beyond the image."""
        if self.dilation == 1 and self.spread == 1:
            low, high = self.place(given[0]), self.place(given[1] - 1)
            return tuple(range(-(-(low - self.reach) // self.stride), high // self.stride + 1))
        firsts = (self.place(i) - k * self.dilation for i in range(*given) for k in range(self.kernel))
        found = (divmod(first, self.stride) for first in firsts)
        return tuple(sorted({out for out, rest in found if rest == 0}))

    def kernel_positions(self, distance: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Returns the kernel position of an input `distance` places after the first of an output, and a mask."""
        tap, rest = np.divmod(distance, self.dilation)
        inside = (rest == 0) & (tap >= 0) & (tap < self.kernel)
        return self.kernel - 1 - tap if self.backwards else tap, inside


@cache
def window_axis(window: Window, dim: int) -> WindowAxis:
    """Returns one dimension of a window."""
    inputs, kernel, dilation = window.in_dims[dim], window.kernel[dim], window.dilations[dim]
    stride, pad = window.strides[dim], window.pads[dim]
    if window.transposed:
        return WindowAxis(inputs, kernel, 1, stride, (kernel - 1) * dilation - pad, dilation, backwards=True)
    return WindowAxis(inputs, kernel, stride, 1, pad, dilation, backwards=False)


@cache
def line_axes(window: Window) -> tuple[WindowAxis, ...]:
    """Returns the dimensions that identify a line: all but the last."""
    return tuple(window_axis(window, dim) for dim in range(len(window.kernel) - 1))


def line_indices(dims: tuple[int, ...]) -> Iterator[LineIndex]:
    """Yields the place of each line of an image with these dimensions, in order."""
    return product(*map(range, dims[:-1]))


@cache
def input_lines_read(window: Window) -> tuple[LinesRead, ...]:
    """Returns, for each output line, the input lines that it reads, in order, without padding."""
    found: list[LinesRead] = []
    for out in line_indices(window.out_dims):
        lines: list[tuple[int, int]] = [(0, 0)]
        for axis, at in zip(line_axes(window), out, strict=True):
            given = np.arange(*axis.inputs_read((at, at + 1)))
            taps, inside = axis.kernel_positions(-np.array([axis.shift(i, at) for i in given.tolist()], np.int64))
            read = list(zip(given[inside].tolist(), taps[inside].tolist(), strict=True))
            lines = [(line * axis.inputs + i, tap * axis.kernel + k) for line, tap in lines for i, k in read]
        found.append(tuple(lines))
    return tuple(found)
