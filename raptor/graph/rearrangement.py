"""Expresses a rearrangement of elements as a `Move`: numpy functions are applied to element numbers, not values."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Indices, Move
from raptor.target.tensor_layout import Image


def c_order(shape: Sequence[int], first: int = 0) -> Indices:
    """Returns an array of `shape` whose elements are their own positions in C order, starting at `first`."""
    return np.arange(first, first + int(np.prod(shape)), dtype=np.int64).reshape(shape)


def make_move(sources: Sequence[Image], wanted: npt.NDArray[np.integer], result: Image) -> Move:
    """Returns the `Move` from tensors of images `sources` to image `result`.

    wanted: for each element of the result, in C order, the C-order position of its source among the elements of all
    `sources` one after another; -1 for zero. Its shape does not matter.
    """
    number = np.concatenate([*_numbers(sources), np.array([-1])])
    flat = np.asarray(wanted, np.int64).reshape(result.shape)
    pixels = np.moveaxis(number[flat], result.channel_axis, -1)
    return Move(np.ascontiguousarray(pixels.reshape(result.pixels, result.channels)))


def _numbers(sources: Sequence[Image]) -> list[Indices]:
    """Returns for each source an array from C-order position to the element's number in `Move` (pixel by pixel)."""
    numbers: list[Indices] = []
    first = 0
    for image in sources:
        by_pixel = c_order((*image.pixel_dims, image.channels), first)
        numbers.append(np.moveaxis(by_pixel, -1, image.channel_axis).reshape(-1))
        first += image.elements
    return numbers
