"""Traces pixels of copied tiles back to the pixels of a tensor, for verifiers."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raptor.common.errors import VerifyError
from raptor.common.index_ranges import concatenate_ranges
from raptor.spatial.compute_op import Compute
from raptor.spatial.ir import Copy, TensorParts
from raptor.spatial.operations import ApplyLine, Move
from raptor.spatial.tiles import Tile
from raptor.target.tensor_layout import TensorRegion

Ints = npt.NDArray[np.int64]
Range = tuple[int, int]
NOWHERE = -1


@dataclass(slots=True)
class PixelOrigins:
    """Global numbering of the pixels of all tiles that are copied or multiplied, with the origin of each.

    number: index of each tile in `tiles` and `first`, by name. moves: the `Move` that makes a tile, by name. first:
    first pixel of each tile. owner: tile of each pixel. origin: the pixel that each pixel is a copy of; itself if it is
    no copy; `NOWHERE` unless exactly one `Copy` of whole pixels fills it.
    """

    tiles: list[Tile] = field(default_factory=list[Tile])
    number: dict[str, int] = field(default_factory=dict[str, int])
    moves: dict[str, Move[Tile]] = field(default_factory=dict[str, Move[Tile]])
    first: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    owner: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    origin: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def from_computes(cls, computes: Iterable[Compute]) -> "PixelOrigins":
        """Collects the copies of a graph. Raises `VerifyError` if a tile is read before it is complete."""
        copies = cls()
        runs: list[tuple[int, ...]] = []
        read: set[str] = set()
        for compute in computes:
            for op in compute.body:
                if isinstance(op, Copy):
                    runs.append((copies.add(op.result), op.at, copies.add(op.source), op.first, op.elements))
                    read.add(op.source.name)
                    if op.result.name in read:
                        raise VerifyError(f"spatial: {compute.node}: {op.result} is read before all of it is there")
                elif isinstance(op, ApplyLine):
                    for tile in op.lines:
                        copies.add(tile)
                        read.add(tile.name)
                elif isinstance(op, Move):
                    copies.moves[op.result.name] = op
        copies.follow_copies(np.array(runs, np.int64).reshape(-1, 5))
        return copies

    def add(self, tile: Tile) -> int:
        """Returns the number of a tile; adds the tile if it is new."""
        if tile.name not in self.number:
            self.number[tile.name] = len(self.tiles)
            self.tiles.append(tile)
        return self.number[tile.name]

    def tile(self, pixel: int) -> Tile:
        """Returns the tile that contains a pixel."""
        return self.tiles[int(self.owner[pixel])]

    def follow_copies(self, runs: Ints) -> None:
        """Computes `first`, `owner` and `origin`.

        runs: [copies, 5], rows (result, first element in it, source, first element in it, number of elements).
        """
        pixels, channels = np.array([(t.pixels, t.channels) for t in self.tiles], np.int64).reshape(-1, 2).T
        self.first = np.cumsum(pixels) - pixels
        self.owner = np.repeat(np.arange(len(pixels)), pixels)
        # The extra last entry makes index -1, NOWHERE, its own origin.
        self.origin = np.append(np.arange(len(self.owner)), NOWHERE)
        self.origin[np.flatnonzero(np.isin(self.owner, runs[:, 0]))] = NOWHERE
        wide = channels[runs[:, 0]]
        result, at, source, skip, elements = runs[(wide == channels[runs[:, 2]]) & _whole(runs, wide)].T
        wide = channels[result]
        k, i = concatenate_ranges(elements // wide)
        target = (self.first[result] + at // wide)[i] + k
        self.origin[target] = (self.first[source] + skip // wide)[i] + k
        self.origin[target[np.bincount(target, minlength=1)[target] > 1]] = NOWHERE
        # A copy may be of a copy: each round follows twice as many copies as the one before.
        for _ in range(len(runs).bit_length()):
            self.origin = self.origin[self.origin]


def _whole(runs: Ints, channels: Ints) -> npt.NDArray[np.bool_]:
    """Returns, for each run, whether it consists of whole pixels."""
    return (runs[:, [1, 3, 4]] % channels[:, None] == 0).all(axis=1)


def region_corner(region: TensorRegion) -> tuple[int, int]:
    """Returns the first row and the first column of a region."""
    return region.rows[0], 0 if region.cols is None else region.cols[0]


@dataclass(slots=True)
class TensorPixels:
    """Regions of a tensor, with the tiles that hold them.

    held: regions by name of the tile; several if equal channels of the tensor share the tile.
    """

    tensor: TensorParts
    copies: PixelOrigins
    held: dict[str, list[TensorRegion]] = field(default_factory=dict[str, list[TensorRegion]])

    def __post_init__(self) -> None:
        for part in (*self.tensor.parts, *self.tensor.whole):
            self.held.setdefault(part.tile.name, []).append(part.region)

    def find_places(self, pixels: Ints, channels: Ints, ranges: list[Range]) -> tuple[Ints, Ints]:
        """Returns row and column in the tensor of pixels of `copies`, read as channels `ranges[channels]`.

        Raises `VerifyError` if a pixel is not copied exactly once, or does not hold these channels of the tensor.
        """
        origin = self.copies.origin[pixels]
        for at in pixels[origin == NOWHERE].tolist():
            raise self.error(f"not every pixel of {self.copies.tile(at)} is copied once")
        key = origin * len(ranges) + channels
        self.add_cut_tiles(np.setdiff1d(key, self.table(ranges)[0]).tolist(), ranges)
        known, place = self.table(ranges)
        at = np.searchsorted(known, key)
        for i in np.flatnonzero(np.append(known, NOWHERE)[at] != key).tolist():
            raise self.error(f"{self.copies.tile(int(pixels[i]))} does not hold channels {ranges[int(channels[i])]}")
        row, col = np.divmod(place[at], self.tensor.image.width)
        return row, col

    def add_cut_tiles(self, keys: list[int], ranges: list[Range]) -> None:
        """Adds tiles to `held` that are cut out of the tensor as lines.

        keys: pixel * len(ranges) + index in `ranges`, of a pixel of each tile and the channels it is read as.
        """
        for pixel, channels in (divmod(key, len(ranges)) for key in keys):
            tile = self.copies.tile(pixel)
            if tile.name not in self.held:
                self.held[tile.name] = [self.moved(tile, ranges[channels])]

    def table(self, ranges: list[Range]) -> tuple[Ints, Ints]:
        """Returns the sorted keys (see `add_cut_tiles`) of all held pixels by origin, and the tensor's pixels."""
        copies, image = self.copies, self.tensor.image
        rows = [
            (
                copies.first[copies.number[name]],
                ranges.index(r.channels),
                *region_corner(r),
                r.width(image),
                r.row_count,
            )
            for name, regions in self.held.items()
            for r in regions
            if name in copies.number and r.channels in ranges
        ]
        first, channels, row, col, width, height = np.array(rows, np.int64).reshape(-1, 6).T
        k, i = concatenate_ranges(width * height)
        down, right = np.divmod(k, width[i])
        key = copies.origin[first[i] + k] * len(ranges) + channels[i]
        key, index = np.unique(key, return_index=True)
        return key, ((row[i] + down) * image.width + col[i] + right)[index]

    def error(self, what: str) -> VerifyError:
        return VerifyError(f"spatial: {self.tensor.node or 'model input'}: {self.tensor.name}: {what}")

    def moved(self, tile: Tile, channels: Range) -> TensorRegion:
        """Returns the region of the tensor that a `Move` cuts out into a tile.

        Raises `VerifyError` if the tile is not a line of these channels.
        """
        if tile.name not in self.copies.moves:
            raise self.error(f"{tile} does not hold channels {channels}")
        op = self.copies.moves[tile.name]
        target, source, first, stride, count = op.runs.T
        k, i = concatenate_ranges(count)
        element, offset = target[i] + k, first[i] + k * stride[i]
        pixel, channel = np.divmod(element, tile.channels)
        place = np.full(len(element), NOWHERE)
        for s, given in enumerate(op.sources):
            own = source[i] == s
            place[own] = self.pixels_of_channel(given, offset[own], channels[0] + channel[own])
        row, col = divmod(int(place[0]), self.tensor.image.width)
        fits = tile.channels == channels[1] - channels[0] and col + tile.width <= self.tensor.image.width
        if not fits or place[0] == NOWHERE or (place != place[0] + pixel).any():
            raise self.error(f"{tile} is not cut out of channels {channels}")
        return TensorRegion(channels, (row, row + tile.rows), (col, col + tile.width))

    def pixels_of_channel(self, tile: Tile, offset: Ints, channel: Ints) -> Ints:
        """Returns the tensor's pixel of each element of a tile; `NOWHERE` if the element has another channel."""
        place = np.full(len(offset), NOWHERE)
        for region in self.held.get(tile.name, []):
            pixel, own = np.divmod(offset, region.channel_count)
            down, right = np.divmod(pixel, region.width(self.tensor.image))
            row, col = region_corner(region)
            at = (row + down) * self.tensor.image.width + col + right
            place = np.where(region.channels[0] + own == channel, at, place)
        return place
