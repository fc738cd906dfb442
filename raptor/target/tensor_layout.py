"""Layout of tensors in memory: channel tiles, each stored pixel by pixel (docs/reference/forms.md).

Every tensor is seen as an image of `rows x width` pixels of `channels` elements: the channel axis is moved to the end,
the last remaining axis is the width, and the others together are the rows. One pixel of a tile is a contiguous vector.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Image:
    """A tensor of `shape` seen as rows x width pixels with the channels on `channel_axis`.

    turned: the last two dimensions besides the channels are exchanged, so that the width is the height of the image.
    """

    shape: tuple[int, ...]
    channel_axis: int
    turned: bool = False

    @property
    def channels(self) -> int:
        return self.shape[self.channel_axis]

    @property
    def pixel_dims(self) -> tuple[int, ...]:
        """All dimensions but the channels, outermost first, as they are stored."""
        dims = self.shape[: self.channel_axis] + self.shape[self.channel_axis + 1 :]
        return (*dims[:-2], dims[-1], dims[-2]) if self.turned else dims

    @property
    def width(self) -> int:
        """Number of pixels of a row: the last dimension besides the channels; 1 for a tensor of one dimension."""
        return self.pixel_dims[-1] if len(self.shape) > 1 else 1

    @property
    def rows(self) -> int:
        """Number of rows: the product of all other dimensions."""
        return math.prod(self.pixel_dims[:-1])

    @property
    def pixels(self) -> int:
        """Number of pixels of the image, in all rows."""
        return math.prod(self.pixel_dims)

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    def has_layout_of(self, other: "Image") -> bool:
        """True if each element (index in C order) is the same channel of the same pixel in both images.

        Rows and width may differ: pixels follow one another row by row.
        """
        return self._layout == other._layout

    def has_lines_of(self, other: "Image") -> bool:
        """True if both images have equal numbers of rows and columns."""
        return (self.rows, self.width) == (other.rows, other.width)

    def has_pixels_of(self, other: "Image") -> bool:
        """True if both images have equal numbers of rows, columns and channels, so that they can share memory.

        The order of the elements in C order may differ, as with channels first and channels last.
        """
        return (self.rows, self.width, self.channels) == (other.rows, other.width, other.channels)

    @property
    def _layout(self) -> tuple[int, ...]:
        # The sizes before, at and after the channel axis determine the transposition, and those of a turned image.
        turned = self.pixel_dims[-2:] if self.turned else ()
        return self.pixels, self.channels, math.prod(self.shape[: self.channel_axis]), *turned

    def to_pixels(self, array: npt.NDArray[T]) -> npt.NDArray[T]:
        """Returns `array` (any shape with the same number of elements, C order) as [rows, width, channels]."""
        moved = np.moveaxis(array.reshape(self.shape), self.channel_axis, -1)
        moved = moved.swapaxes(-3, -2) if self.turned else moved
        return moved.reshape(self.rows, self.width, self.channels)

    def from_pixels(self, pixels: npt.NDArray[T]) -> npt.NDArray[T]:
        """Turns [rows, width, channels] into `shape`: the inverse of `to_pixels`."""
        split = pixels.reshape(*self.pixel_dims, self.channels)
        return np.moveaxis(split.swapaxes(-3, -2) if self.turned else split, -1, self.channel_axis)


class TensorRegion(msgspec.Struct, frozen=True, gc=False):
    """A channel range, a row range and a column range of one tensor, half open; `cols` is None for whole rows."""

    channels: tuple[int, int]
    rows: tuple[int, int]
    cols: tuple[int, int] | None = None

    @property
    def channel_count(self) -> int:
        return self.channels[1] - self.channels[0]

    @property
    def row_count(self) -> int:
        return self.rows[1] - self.rows[0]

    def width(self, image: Image) -> int:
        """Returns the number of columns of the region in an image."""
        return image.width if self.cols is None else self.cols[1] - self.cols[0]

    def elements(self, image: Image) -> int:
        """Returns the number of elements of the region in an image."""
        return self.row_count * self.width(image) * self.channel_count

    def shape(self, image: Image) -> tuple[int, int, int]:
        """Returns rows, width and channels of the region in an image."""
        return self.row_count, self.width(image), self.channel_count

    def index(self) -> tuple[slice, slice, slice]:
        """Returns the index of the region's elements in an array [rows, width, channels]."""
        cols = slice(None) if self.cols is None else slice(*self.cols)
        return slice(*self.rows), cols, slice(*self.channels)

    def __str__(self) -> str:
        cols = "" if self.cols is None else f" x{self.cols[0]}:{self.cols[1]}"
        return f"c{self.channels[0]}:{self.channels[1]} r{self.rows[0]}:{self.rows[1]}{cols}"


def cut_channel_tiles(image: Image, tile: int) -> tuple[TensorRegion, ...]:
    """Cuts an image into regions of at most `tile` channels each, with all pixels."""
    rows = (0, image.rows)
    starts = range(0, image.channels, tile)
    return tuple(TensorRegion((c, min(c + tile, image.channels)), rows) for c in starts)
