"""Expresses a rearrangement of elements as a `Move`, and finds the origins of the elements of a `Move`.

Numpy functions are applied to element numbers, not values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.graph.ir import Indices, Move, Node, Rename
from raptor.target.tensor_layout import Image

MOSTLY = 0.5
"""Smallest share of the pixels of a range that must be needed for a core to load the range at once."""

ELEMENTS_PER_RUN = 32
"""Number of elements that a core of `bench` loads in about the time of the copy of a short run."""


def c_order(shape: Sequence[int], first: int = 0) -> Indices:
    """Returns an array of `shape` whose elements are their own positions in C order, starting at `first`."""
    return np.arange(first, first + int(np.prod(shape)), dtype=np.int64).reshape(shape)


def through_move(numbers: Indices, sources: Indices) -> Indices:
    """Returns, for each element of a move's result, the number of its source; -1 for zeros, of either.

    numbers: of the elements of all operands, in order. sources: see `Move`.
    """
    return np.append(numbers, -1)[sources]


def make_move(sources: Sequence[Image], wanted: npt.NDArray[np.integer], result: Image) -> Move:
    """Returns the `Move` from tensors of images `sources` to image `result`.

    wanted: for each element of the result, in C order, the C-order position of its source among the elements of all
    `sources` one after another; -1 for zero. Its shape does not matter.
    """
    return make_moves(sources, wanted, [result])[0]


def make_moves(sources: Sequence[Image], wanted: npt.NDArray[np.integer], results: Sequence[Image]) -> list[Move]:
    """Returns the `Move` to each of several images of the same result, as `make_move` does."""
    number = through_move(_numbers(sources), np.asarray(wanted, np.int64))
    pixels = ((image, image.to_pixels(number)) for image in results)
    return [Move(np.ascontiguousarray(found.reshape(image.pixels, image.channels))) for image, found in pixels]


def find_moves(name: str, makers: Mapping[str, Node]) -> list[Node]:
    """Returns the rearrangements of one tensor that made a tensor, the last one first. makers: nodes by result."""
    found: list[Node] = []
    while (made := makers.get(name)) and isinstance(made.operator, Rename | Move) and len(made.inputs) == 1:
        found.append(made)
        (name,) = made.inputs
    return found


def trace_moves(moves: Sequence[Node], elements: int) -> Indices:
    """Returns which element, pixel by pixel, each element of a tensor was before `moves` (last first); -1 for zero."""
    numbers = c_order((elements,))
    for made in moves:
        if isinstance(made.operator, Move):
            numbers = through_move(made.operator.sources, numbers)
    return numbers


def count_move_work(move: Move, given: Sequence[Image], made: Image) -> float:
    """Returns the work of a move, in copies of runs: of neighbouring elements of a line that stay neighbours in a line.

    A line of the result loads of each line of an operand all between the first and the last pixel that it needs.
    """
    lines = [size for image in given for size in [image.width * image.channels] * image.rows]
    starts, channels = np.cumsum([0, *lines[:-1]]), np.repeat([i.channels for i in given], [i.rows for i in given])
    element, row = move.sources.reshape(-1), np.repeat(np.arange(made.rows), made.width * made.channels)
    taken = element >= 0
    element, row = element[taken], row[taken]
    line = np.searchsorted(starts, element, side="right") - 1
    new = (np.diff(line) != 0) | (np.diff(row) != 0)
    repeats = np.diff(element) == 0
    runs = np.count_nonzero(~repeats & (new | (np.diff(element) != 1))) + np.count_nonzero(repeats & new) + 1
    pairs, pair = np.unique(row * len(starts) + line, return_inverse=True)
    low, high = np.full(len(pairs), made.elements + starts[-1] + lines[-1]), np.zeros(len(pairs), np.int64)
    np.minimum.at(low, pair, (element - starts[line]) // channels[line])
    np.maximum.at(high, pair, (element - starts[line]) // channels[line])
    loaded = ((high + 1 - low) * channels[pairs % len(starts)]).sum()
    return float(runs + loaded / ELEMENTS_PER_RUN)


def _numbers(sources: Sequence[Image]) -> Indices:
    """Returns, for the C-order positions of all sources, the element's number in `Move` (pixel by pixel)."""
    numbers = [np.zeros(0, np.int64)]
    first = 0
    for image in sources:
        numbers.append(image.from_pixels(c_order((image.elements,), first)).reshape(-1))
        first += image.elements
    return np.concatenate(numbers)


@dataclass(frozen=True, slots=True)
class MoveOrigins:
    """The origin of each result element of a `Move`, as arrays [rows, width, channels] of the result.

    tensor: number of the operand; -1 for zero. line, col, channel: coordinates in the operand.
    """

    tensor: Indices
    line: Indices
    col: Indices
    channel: Indices

    @classmethod
    def from_sources(cls, sources: Indices, result: Image, operands: Sequence[Image]) -> "MoveOrigins":
        """Converts flat source indices of a `Move` to coordinates. `operands`: the images of the operands."""
        wanted = sources.reshape(result.rows, result.width, result.channels)
        firsts = np.cumsum([0, *(image.elements for image in operands)])
        tensor = np.where(wanted < 0, -1, np.searchsorted(firsts, wanted, side="right") - 1)
        channels = np.array([*(image.channels for image in operands), 1])
        width = np.array([*(image.width for image in operands), 1])
        pixel, channel = np.divmod(wanted - firsts[tensor], channels[tensor])
        line, col = np.divmod(pixel, width[tensor])
        return cls(tensor, line, col, channel)

    def most_lines(self, names: Sequence[str]) -> int:
        """Returns the largest number of distinct input lines that one result line reads. `names`: of the operands."""
        number = np.array([*map(names.index, names), -1])[self.tensor]
        key = np.where(number < 0, -1, number * (int(self.line.max()) + 1) + self.line)
        return max(len(np.unique(line[line >= 0])) for line in key)

    def columns_read(self, cols: tuple[int, int]) -> dict[tuple[int, int], tuple[int, int]]:
        """Returns what the result columns `cols` read of each operand line: (operand, line) -> its columns.

        Of most columns between the first and the last one, something must be read; other lines are left out.
        """
        place = (found[:, slice(*cols)].reshape(-1) for found in (self.tensor, self.line, self.col))
        tensor, line, col = (np.asarray(found) for found in place)
        taken = tensor >= 0
        lines = int(self.line.max()) + 1
        width = int(self.col.max()) + 1
        pixels = np.unique((tensor[taken] * lines + line[taken]) * width + col[taken])
        keys, first, counts = np.unique(pixels // width, return_index=True, return_counts=True)
        low, high = pixels[first] % width, pixels[first + counts - 1] % width + 1
        dense = np.flatnonzero((high - low) * MOSTLY <= counts)
        return {(int(keys[i]) // lines, int(keys[i]) % lines): (int(low[i]), int(high[i])) for i in dense}
