"""Layers as products of crossbars: what a layer demands, and what a product covers of it at most."""

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

from validator.bounds.chip_times import ChipTimes

MOST_STEPS = 2**11
"""Largest kernel times stride for which the phases of a window are told apart."""


class Cover(NamedTuple):
    """Coverage of neighbouring inputs, at most: `ins` that are read, `pairs` with an output for 1, 2, ... outputs."""

    ins: int
    pairs: tuple[int, ...]


class Block(NamedTuple):
    """Inputs of a product: lines x pixels. `inputs`: channels that an output reads. `outputs`: most for a pixel."""

    lines: int
    pixels: int
    inputs: int
    outputs: int


class Axis(NamedTuple):
    """A dimension of a window; that of a transposed convolution is `turned`. `copies`: images one after another."""

    given: int
    made: int
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    turned: bool = False
    copies: int = 1

    def taps(self) -> list[range]:
        """Returns for each kernel position the outputs (inputs if turned) for which it lies inside the image."""
        count, other = (self.given, self.made) if self.turned else (self.made, self.given)
        shifts = [self.pad - t * self.dilation for t in range(self.kernel)]
        bounds = [(max(0, -(-s // self.stride)), min(count, (other - 1 + s) // self.stride + 1)) for s in shifts]
        return [range(first, end) for first, end in bounds]

    @property
    def pairs(self) -> int:
        """Number of pairs of an input and an output that reads it."""
        return self.copies * sum(map(len, self.taps()))

    @property
    def ins(self) -> int:
        """Number of inputs that an output reads."""
        return self.copies * _count_read(self)


@lru_cache(2**10)
def _count_read(axis: Axis) -> int:
    read, step = set[int](), axis.stride
    for t, indices in enumerate(axis.taps()):
        shift = t * axis.dilation - axis.pad
        read.update(indices if axis.turned else range(indices.start * step + shift, indices.stop * step + shift, step))
    return len(read)


@lru_cache(2**14)
def cover_axis(axis: Axis, size: int) -> Cover:
    """Returns the most that `size` neighbouring inputs cover, as if the axis had no ends."""
    step, most = axis.stride, axis.made * axis.copies
    reads = {t * axis.dilation % step for t in range(axis.kernel)}  # of each `step` inputs
    if (
        axis.kernel * step > MOST_STEPS
    ):  # an output reads each input once, an input has a reader for each kernel position
        counts = [Counter({o: min(size, axis.kernel) for o in range(min(most, size * axis.kernel))})]
    elif axis.turned:
        counts = [Counter(i * step + t * axis.dilation for t in range(axis.kernel) for i in range(size))]
    else:
        firsts = ([phase - t * axis.dilation for t in range(axis.kernel)] for phase in range(step))
        counts = [Counter(o for f in fs for o in range(-(-f // step), -(-(f + size) // step))) for fs in firsts]
    totals = [np.cumsum(sorted(found.values(), reverse=True)[:most]).tolist() for found in counts]
    longest, pairs = max(map(len, totals)), min(axis.pairs, size * axis.kernel)
    best = [max(total[min(i, len(total) - 1)] if total else 0 for total in totals) for i in range(longest)]
    dense = axis.turned or axis.kernel * step > MOST_STEPS
    ins = size if dense else max(sum((phase + i) % step in reads for i in range(size)) for phase in range(step))
    return Cover(min(ins, axis.ins), tuple(min(count, pairs) for count in best))


class ChannelRange(NamedTuple):
    """Equal ranges of input channels; `channels` 0 stands for ranges of any size. `single`: a pixel at a time."""

    channels: int
    number: int = 1
    single: bool = False


class ProductLayer:
    """Equal layers of a model: `nodes` names the nodes of each; layers of one image side by side are one layer.

    `y`, `x`: the window, in which a window of one pixel has all pixels in `x`. `times`: steps of a recurrent layer.
    `ranges`: sizes of the channel ranges of the image, None for any. `forms`: ways to cut the input channels, of which
    a mapping takes one, or several for parts of the layer. `vector_ns`: time on the vector unit, None if no mapping
    computes the layer there. `held_xbars`: crossbars that hold its weights once.
    """

    def __init__(
        self,
        y: Axis,
        x: Axis,
        ins: int,
        outs: int,
        groups: int,
        times: int,
        ranges: tuple[int, ...] | None,
        chip: ChipTimes,
    ) -> None:
        self.nodes, self.chip, self.add_ns = list[list[str]](), chip, chip.vector_ns(2, chip.sum_bytes)
        self.y, self.x, self.ins, self.outs, self.groups, self.times = y, x, ins, outs, groups, times
        self.results = times * outs * y.made * y.copies * x.made * x.copies
        apart, taps = groups == ins == outs > 1, sum(map(bool, y.taps())) * sum(map(bool, x.taps()))
        self.forms = [[ChannelRange(0)]]
        if ranges is not None and (groups == 1 or apart):
            self.forms = [[ChannelRange(c, count) for c, count in sorted(Counter(ranges).items())]]
            tiles = sorted(Counter(cut_channels(ins, chip.rows)).items())
            self.forms += [[ChannelRange(c, count, single=True) for c, count in tiles]]
        self.vector_ns = (2 * outs * y.pairs * x.pairs - self.results) * self.add_ns if apart else None
        self.held_xbars = 0 if apart else ceil(Fraction(outs * ins // groups * taps, chip.rows * chip.outputs))

    def demand(self, part: ChannelRange) -> tuple[int, int, int, int]:
        """Returns what products must cover at least, for pairs of an input channel of a range and an output channel.

        Counts lines x pixels that are read, lines x pairs of pixels, pairs of lines x pixels, and pairs x pairs.
        """
        n = self.times * self.outs * (min(part.channels or self.ins, self.ins // self.groups))
        if part.channels and self.groups > 1:
            n = self.times * part.channels
        y, x = self.y, self.x
        return n * y.ins * x.ins, n * y.ins * x.pairs, n * y.pairs * x.ins, n * y.pairs * x.pairs

    def blocks(self, part: ChannelRange) -> Iterator[Block]:
        """Yields the inputs of products, without those that others cover at the same cost."""
        rows, reads = self.chip.rows, self.ins // self.groups
        most_lines, most_pixels = self.y.given * self.y.copies, self.x.given * self.x.copies
        for lines in range(1, 1 + (1 if part.single else min(rows // max(1, part.channels), most_lines))):
            most = 0
            for pixels in range(1 if part.single else min(rows // lines, most_pixels), 0, -1):
                channels = min(part.channels or self.ins, rows // (lines * pixels))
                if most < channels and channels >= part.channels:
                    most, outs = channels, max(self.outs // self.groups, ceil(Fraction(channels * self.outs, self.ins)))
                    yield Block(lines, pixels, min(channels, reads), self.outs if self.groups == 1 else outs)


def cut_channels(channels: int, rows: int) -> tuple[int, ...]:
    """Cuts channels into ranges of the rows of a crossbar."""
    return tuple(min(rows, channels - first) for first in range(0, channels, rows))
