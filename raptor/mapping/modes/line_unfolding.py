"""Line unfolding: one MVM multiplies a few neighbouring input pixels for all outputs that use them.

An image line is cut into blocks of neighbouring pixels that fill a crossbar's rows. One `mvmul` multiplies a block with
a matrix whose columns are (output line, output pixel, output channel): all outputs that the block reaches. So an input
is multiplied only once, or a little more often. (The literature calls this parallel windows, SDK or VW-SDK; here it is
done in both dimensions, and the columns are crossbars side by side.) The results of different blocks for the same
output are added afterwards.

In a transposed convolution, a block is multiplied with all kernel positions at once. If the stride is the kernel, no
two blocks reach the same output, and there is nothing to add.

Some blocks also reach outputs beyond the image or the columns of a core. They may have the same matrix as other blocks,
or `clipped` ones without columns for these outputs. If the kernel is wide compared with the image, that saves most of
the columns.

Alternatively, blocks overlap by the kernel, and each owns its output pixels, so that fewer additions are needed. The
parameter `outputs` selects this: 0 for blocks side by side, else the number of output pixels of a block. If a line has
too few elements to fill the rows of a crossbar, a block takes several lines, called a band.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product, zip_longest

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Filter, Numbers
from raptor.graph.window import Window
from raptor.graph.zero_weights import has_weights
from raptor.mapping.decision import LineGrid
from raptor.mapping.modes.window_axis import LineIndex, line_axes, line_indices, window_axis

Ints = npt.NDArray[np.int64]
Range = tuple[int, int]
Pixels = tuple[int, ...]

MOST_ADDED = 8
"""Largest number of partial sums of the same outputs, from different cores, that one core adds."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """A range `pixels` of input pixels of a line, and the output pixels `outs` for which they are multiplied.

    `outs` are in order. They may lie beyond the image, unless they are clipped. In a dilated window, there are gaps
    between them.
    """

    pixels: Range
    outs: Pixels


@dataclass(frozen=True, slots=True)
class LineBand:
    """A range `lines` of input lines that are multiplied together, and the output lines `outs` that use them.

    The lines of a band are in one slice of a volume. `outs` may lie beyond the image, unless they are clipped.
    """

    lines: Range
    outs: tuple[LineIndex, ...]


@dataclass(frozen=True, slots=True)
class BandShape:
    """The shape of a band: bands of equal shape share their matrices.

    `lines`: number of input lines. `shift`: what the first output line reads first, counted from the first line of the
    band (`WindowAxis.shift` in each dimension). `outs`: output lines, counted from the
    first."""

    lines: int
    shift: LineIndex
    outs: tuple[LineIndex, ...]


@dataclass(frozen=True, slots=True)
class LineMatrix:
    """The matrix of weights between a block and its outputs. It takes `xbars` crossbars side by side.

    Rows are (line of the band, pixel of the block, input channel of `ins`), columns (output line of the band, output
    pixel, output channel of `outs`). `pixels`: number of input pixels. `shift`: the place that the first output pixel
    reads first, counted from the place of the first pixel of the block. `places`: output pixels, counted from the
    first. `copy`: number of this one among equal matrices.
    """

    ins: Range
    outs: Range
    band: BandShape
    pixels: int
    shift: int
    places: Pixels
    xbars: int
    copy: int = 0

    @property
    def rows(self) -> Range:
        """Range of all rows, which begins at 0, as in `Matrix`."""
        return 0, self.band.lines * self.pixels * (self.ins[1] - self.ins[0])

    @property
    def cols(self) -> Range:
        """Range of all columns, which begins at 0, as in `Matrix`."""
        return 0, len(self.band.outs) * len(self.places) * (self.outs[1] - self.outs[0])

    def find_taps(self, window: Window) -> set[int]:
        """Returns the kernel positions whose weights are in the matrix."""
        row, in_y = _line_taps(window, self.band)
        col, in_x = _taps(window, -1, self.pixels, self.shift, np.array(self.places, np.int64))
        return {y * window.kernel[-1] + x for y in set(row[in_y].tolist()) for x in set(col[in_x].tolist())}

    def values(self, filter_: Filter) -> Numbers:
        """Returns the weights as [rows, cols], with zeros where an output does not read a pixel."""
        window, band = filter_.window, self.band
        row, in_y = _line_taps(window, band)
        col, in_x = _taps(window, -1, self.pixels, self.shift, np.array(self.places, np.int64))
        # [lines, output lines, pixels, output pixels]
        tap = row[:, :, None, None] * window.kernel[-1] + col
        inside = in_y[:, :, None, None] & in_x
        taps: list[int] = tap[inside].tolist()
        weights = {k: filter_.matrix(k, self.ins, self.outs) for k in set(taps)}
        inputs, outputs = (b - a for a, b in (self.ins, self.outs))
        sizes = band.lines, self.pixels, inputs, len(band.outs), len(self.places), outputs
        found = np.zeros(sizes, filter_.weights.dtype)
        # NOTE: an element is touched once. Indices of all of them at once would make arrays of the same size.
        for (line, out_line, pixel, out), k in zip(np.argwhere(inside).tolist(), taps, strict=True):
            found[line, pixel, :, out_line, out] = weights[k]
        return found.reshape(self.rows[1], self.cols[1])


def _line_taps(window: Window, band: BandShape) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Returns `_taps` for the lines of a band: [lines, output lines], over all dimensions but the last."""
    outs = np.array(band.outs, np.int64)
    shape = band.lines, len(outs)
    tap, inside = np.zeros(shape, np.int64), np.ones(shape, np.bool_)
    for dim, shift in enumerate(band.shift):
        lines = band.lines if dim == len(band.shift) - 1 else 1
        own, there = _taps(window, dim, lines, shift, outs[:, dim])
        tap, inside = tap * window.kernel[dim] + own, inside & there
    return tap, inside


def _taps(window: Window, dim: int, inputs: int, shift: int, outs: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Returns two arrays [inputs, outs]: the kernel position with which an output reads an input, and a mask."""
    axis = window_axis(window, dim)
    return axis.kernel_positions(np.arange(inputs)[:, None] * axis.spread - shift - outs * axis.stride)


def input_columns(window: Window, outs: Range) -> Range:
    """Returns the input pixels of a line that the output pixels `outs` read; empty if they read padding only."""
    return window_axis(window, -1).inputs_read(outs)


def outputs_reading(filter_: Filter, part: Range, outs: Range, tiles: Sequence[Range]) -> tuple[Range, ...]:
    """Returns the ranges of output channels among `outs` that read input channels of `part`, without neighbours.

    In a grouped convolution, and where weights are 0, these may be fewer than `outs`. tiles: channel ranges of the
    output, which are not cut.
    """
    found: list[Range] = []
    for tile in tiles:
        if outs[0] <= tile[0] and tile[1] <= outs[1] and has_weights(filter_, part, tile):
            start = found.pop()[0] if found and found[-1][1] == tile[0] else tile[0]
            found.append((start, tile[1]))
    return tuple(found)


def find_summed_groups(filter_: Filter, groups: Sequence[Sequence[Range]], tile: Range) -> tuple[int, ...]:
    """Returns the numbers of the groups of input channels whose products make the output channels `tile`.

    Groups whose weights to them are 0 make none, but outputs whose weights are all 0 keep the first group.
    """
    found = (n for n, parts in enumerate(groups) if any(has_weights(filter_, part, tile) for part in parts))
    return tuple(found) or (0,)


@lru_cache(maxsize=4096)
def cut_line_blocks(window: Window, outs: Range, pixels: int, outputs: int, *, clipped: bool) -> tuple[LineBlock, ...]:
    """Cuts the input of the output pixels `outs` into blocks of at most `pixels` pixels, from left to right.

    With `outputs` above 0, each block has the input pixels of `outputs` output pixels; then blocks may overlap.
    clipped: the blocks are multiplied for the outputs `outs` only.
    """
    if outputs:
        owned = (_owning(window, (first, min(first + outputs, outs[1]))) for first in range(*outs, outputs))
        return tuple(block for block in owned if block.pixels[0] < block.pixels[1])
    axis, runs = window_axis(window, -1), _whole_runs(window, outs, pixels)
    cuts = ((at, min(at + pixels, high)) for low, high in runs for at in range(low, high, pixels))
    met = ((cut, axis.outputs_reading(cut)) for cut in cuts)
    found = ((cut, tuple([x for x in xs if outs[0] <= x < outs[1]]) if clipped else xs) for cut, xs in met)
    return tuple(LineBlock(cut, xs) for cut, xs in found if xs)


def _whole_runs(window: Window, outs: Range, pixels: int) -> list[Range]:
    """Returns the input ranges that the output pixels `outs` read, in multiples of `pixels` if the line is long enough.

    The last block of a range then needs no matrix of its own.
    """
    runs, found = window_axis(window, -1).input_runs(outs), list[Range]()
    for (low, high), (end, _) in zip_longest(runs, runs[1:], fillvalue=(window.in_dims[-1],) * 2):
        missing = -(high - low) % pixels
        high, missing = min(end, high + missing), max(0, high + missing - end)
        found.append((max(found[-1][1] if found else 0, low - missing), high))
    return found


@lru_cache(maxsize=4096)
def count_blocks(
    window: Window, outs: Range, pixels: int, outputs: int, *, clipped: bool
) -> tuple[tuple[LineBlock, int], ...]:
    """Returns blocks of `cut_line_blocks`, from left to right, each with the number of blocks that it stands for.

    The time does not depend on the length of the line, unless blocks are clipped: away from the ends of the line, the
    shapes repeat, since a block depends on where it begins between two outputs (modulo the stride) or, in a transposed
    window, between two inputs. Some of the returned blocks may have equal shapes. The first and the last block of
    `cut_line_blocks` are among them.
    """
    if clipped:
        return tuple((block, 1) for block in cut_line_blocks(window, outs, pixels, outputs, clipped=True))
    counted = _count_owning(window, outs, outputs) if outputs else _count_side_by_side(window, outs, pixels)
    return tuple(counted)


def _count_side_by_side(window: Window, outs: Range, pixels: int) -> Iterator[tuple[LineBlock, int]]:
    """Yields blocks that cover the input of `outs` side by side, each with the number of blocks that it stands for."""
    axis = window_axis(window, -1)
    for low, high in _whole_runs(window, outs, pixels):
        count = -(-(high - low) // pixels)
        for number, alike in _representatives(count, (0, count), pixels * axis.spread, axis.stride):
            cut = low + number * pixels, min(low + (number + 1) * pixels, high)
            if met := axis.outputs_reading(cut):
                yield LineBlock(cut, met), alike


def _count_owning(window: Window, outs: Range, outputs: int) -> Iterator[tuple[LineBlock, int]]:
    """Yields blocks that own `outputs` output pixels each, with the number of blocks that each stands for."""
    axis = window_axis(window, -1)
    # An output from `first` on reads nothing before the line, and one up to `last` nothing behind it.
    first, last = -(-axis.pad // axis.stride), (axis.place(axis.inputs - 1) - axis.reach) // axis.stride
    inside = -(-max(0, first - outs[0]) // outputs), max(0, last + 1 - outs[0]) // outputs
    count = -(-(outs[1] - outs[0]) // outputs)
    for number, alike in _representatives(count, inside, outputs * axis.stride, axis.spread):
        begin = outs[0] + number * outputs
        block = _owning(window, (begin, min(begin + outputs, outs[1])))
        if block.pixels[0] < block.pixels[1]:
            yield block, alike


def _representatives(count: int, inside: Range, step: int, modulus: int) -> Iterator[tuple[int, int]]:
    """Yields block numbers below `count` in order, each with the number of blocks that it stands for.

    Two blocks in the range `inside` are alike if their numbers times `step` are equal modulo `modulus`. All others
    stand for themselves, and so do the last block, which may be narrower, and the blocks of the period before it.
    """
    period = modulus // math.gcd(step, modulus)
    first = min(inside[0], count)
    last = max(first, min(inside[1], count - 1) - period)
    yield from ((i, 1) for i in range(first))
    yield from ((i, len(range(i, last, period))) for i in range(first, min(first + period, last)))
    yield from ((i, 1) for i in range(last, count))


@lru_cache(maxsize=4096)
def count_inside(
    window: Window, outs: Range, pixels: int, outputs: int, *, clipped: bool
) -> tuple[tuple[int, int], ...]:
    """Returns, for each block of `count_blocks` and all that it stands for, two numbers.

    The first is of their outputs that are among `outs`, the second of blocks that have such an output. Blocks of equal
    shape differ there: near the ends of `outs`, some of their outputs belong to another core.
    """
    axis, found = window_axis(window, -1), list[tuple[int, int]]()
    step, modulus = (outputs * axis.stride, axis.spread) if outputs else (pixels * axis.spread, axis.stride)
    # From one of these blocks to the next, which begins at the same place between outputs, or between inputs.
    apart = outputs * (modulus // math.gcd(step, modulus)) if outputs else step // math.gcd(step, modulus)
    for block, alike in count_blocks(window, outs, pixels, outputs, clipped=clipped):
        made = np.array(block.outs, np.int64)[:, None] + apart * np.arange(alike)
        inside = (outs[0] <= made) & (made < outs[1])
        found.append((int(inside.sum()), int(inside.any(axis=0).sum())))
    return tuple(found)


@lru_cache(maxsize=4096)
def distinct_segments(window: Window, cols: tuple[Range, ...], pixels: int) -> tuple[Range, ...]:
    """Returns one column segment of each kind whose blocks may have a different shape.

    Segments near the ends of a line are kinds of their own. All others are so far from the ends that they read no
    padding, even if a block gets up to `pixels` pixels more; their kind is the width, and the place between two inputs.
    """
    axis, margin = window_axis(window, -1), pixels * window_axis(window, -1).spread
    first, last = axis.pad + margin, axis.place(axis.inputs) - margin - axis.reach
    kinds: dict[object, Range] = {}
    for begin, end in cols:
        inside = begin * axis.stride >= first and (end - 1) * axis.stride < last
        kinds.setdefault((end - begin, begin * axis.stride % axis.spread) if inside else begin, (begin, end))
    return tuple(kinds.values())


def grid_blocks(window: Window, xbar_rows: int, grid: LineGrid, part: Range, cols: Range) -> tuple[LineBlock, ...]:
    """Returns the blocks of input channels `part` that a core of a grid multiplies for the output columns `cols`."""
    pixels = min(grid.pixels, pixels_per_block(part, xbar_rows))
    return cut_line_blocks(window, cols, pixels, grid.outputs, clipped=grid.clipped)


def _owning(window: Window, own: Range) -> LineBlock:
    """Returns the block that owns the output pixels `own`; it has no pixels if they read padding only."""
    return LineBlock(input_columns(window, own), tuple(range(*own)))


def bundle_sums(groups: int) -> tuple[range, ...]:
    """Partitions the partial sums of `groups` input groups into bundles: each is added on a core, then their sums.

    Up to `MOST_ADDED` sums are one bundle. More are cut into about sqrt(groups) bundles, so that no core adds all.
    """
    count = 1 if groups <= MOST_ADDED else math.isqrt(groups)
    return tuple(range(groups * i // count, groups * (i + 1) // count) for i in range(count))


def most_additions(groups: int) -> int:
    """Returns the largest number of additions of a core for an output with `groups` partial sums (`bundle_sums`)."""
    found = bundle_sums(groups)
    return max(map(len, found)) - 1 + len(found) - 1


def pixels_per_block(channels: Range, rows: int) -> int:
    """Returns the number of pixels of a block that fills the rows of a crossbar; at least 1."""
    return max(1, rows // (channels[1] - channels[0]))


def outputs_per_block(window: Window, pixels: int) -> int:
    """Returns the largest number of output pixels that a block of `pixels` input pixels can own; 0 if none."""
    axis = window_axis(window, -1)
    return max(0, (pixels * axis.spread - 1 - axis.reach) // axis.stride + 1)


def block_shape(window: Window, block: LineBlock) -> tuple[int, int, Pixels]:
    """Returns `pixels`, `shift` and `places` of a block's matrix (`LineMatrix`). Blocks of equal shape share it."""
    first = block.outs[0]
    shift = window_axis(window, -1).shift(block.pixels[0], first)
    return block.pixels[1] - block.pixels[0], shift, tuple([out - first for out in block.outs])


@lru_cache(maxsize=1024)
def cut_bands(
    window: Window, height: int, *, clipped: bool, lane: Range | None = None
) -> tuple[tuple[LineBand, BandShape], ...]:
    """Cuts the input lines into bands of `height` lines, without bands that no output line of the image reads.

    Bands of equal shape share their matrices. clipped: bands are multiplied for output lines of the image only. lane:
    range of output lines, if not all are of interest.
    """
    if lane is None:
        return tuple(_bands(window, height, clipped=clipped))
    counts = count_lane_outs(window, height, lane, clipped=clipped)
    found = zip(cut_bands(window, height, clipped=clipped), counts.tolist(), strict=True)
    return tuple(each for each, count in found if count)


@lru_cache(maxsize=1024)
def count_lane_bands(window: Window, height: int, *, clipped: bool, lane: Range) -> Mapping[tuple[BandShape, int], int]:
    """Returns the number of bands of each shape by the number of their output lines that are in a lane."""
    counts = count_lane_outs(window, height, lane, clipped=clipped)
    bands = zip(cut_bands(window, height, clipped=clipped), counts.tolist(), strict=True)
    return Counter((shape, count) for (_, shape), count in bands if count)


def count_lane_outs(window: Window, height: int, lane: Range, *, clipped: bool) -> Ints:
    """Returns, for each band of `cut_bands`, the number of its output lines that are in a lane."""
    lines, band, bands = _number_band_outs(window, height, clipped=clipped)
    return np.bincount(band[(lane[0] <= lines) & (lines < lane[1])], minlength=bands)


@lru_cache(maxsize=1024)
def _number_band_outs(window: Window, height: int, *, clipped: bool) -> tuple[Ints, Ints, int]:
    """Returns the output lines of all bands, the number of the band of each one, and the number of bands."""
    found = cut_bands(window, height, clipped=clipped)
    pairs = [(out, n) for n, (band, _) in enumerate(found) for out in band.outs if _is_inside(window, out)]
    dims = window.out_dims[:-1]
    outs = np.array([out for out, _ in pairs], np.int64).reshape(-1, len(dims))
    return np.ravel_multi_index(tuple(outs.T), dims), np.array([n for _, n in pairs], np.int64), len(found)


@lru_cache(maxsize=1024)
def count_bands(window: Window, height: int, *, clipped: bool) -> Mapping[BandShape, int]:
    """Returns the number of bands of each shape, without keeping the bands: the mapping counts many heights."""
    return Counter(shape for _, shape in _bands(window, height, clipped=clipped))


def _bands(window: Window, height: int, *, clipped: bool) -> Iterator[tuple[LineBand, BandShape]]:
    shapes: dict[BandShape, BandShape] = {}
    for first in line_indices(window.in_dims):
        if first[-1] % height == 0:
            band, shape = _band(window, first, min(height, window.in_dims[-2] - first[-1]), clipped=clipped)
            if any(_is_inside(window, out) for out in band.outs):
                yield band, shapes.setdefault(shape, shape)


def _band(window: Window, first: LineIndex, height: int, *, clipped: bool) -> tuple[LineBand, BandShape]:
    """Makes the band of `height` input lines from `first` on, with all output lines that read one of them, if any."""
    line, axes = int(np.ravel_multi_index(first, window.in_dims[:-1])), line_axes(window)
    ends = (*(at + 1 for at in first[:-1]), first[-1] + height)
    met = product(*(axis.outputs_reading((a, b)) for axis, a, b in zip(axes, first, ends, strict=True)))
    outs = tuple(out for out in met if not clipped or _is_inside(window, out))
    shift = tuple(axis.shift(at, out) for axis, at, out in zip(axes, first, outs[0] if outs else first, strict=True))
    relative = tuple(tuple(a - b for a, b in zip(out, outs[0], strict=True)) for out in outs)
    return LineBand((line, line + height), outs), BandShape(height, shift, relative)


def _is_inside(window: Window, out: LineIndex) -> bool:
    """True if an output line lies inside the image."""
    return all(0 <= at < size for at, size in zip(out, window.out_dims, strict=False))


@cache
def inside_share(window: Window) -> float:
    """Returns the fraction of (input, output that reads it) pairs whose output lies inside the image.

    Without clipping, matrices have columns for all outputs.
    """
    share = 1.0
    for dim in range(len(window.kernel)):
        axis, size = window_axis(window, dim), window.out_dims[dim]
        met = [out for given in range(window.in_dims[dim]) for out in axis.outputs_reading((given, given + 1))]
        share *= sum(0 <= out < size for out in met) / max(1, len(met))
    return share
