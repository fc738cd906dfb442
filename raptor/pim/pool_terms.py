"""Order of the terms of a pool: one after another, or a long sum as a tree of blocks.

A float32 sum of thousands of sequential terms loses digits, because each term is rounded to the precision of the large
partial sum. So a sum of more than `MOST_SEQUENTIAL_TERMS` terms is made of blocks of `SUM_BLOCK_TERMS` terms, these of
blocks of `SUM_BLOCK_TERMS` blocks, and so on. Each level has a total of its own: the result for the highest level,
scratch buffers for all lower ones."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.spatial.operations import count_block_levels

Ints = npt.NDArray[np.intp]

ONE, BOTH, NEXT, TOTAL, UNUSED = range(5)
"""Values of `Terms.reads`: copy of one pixel; sum of two pixels; one more pixel; the total of a lower level."""


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """Terms as columns, in order. A step is completed for all its pixels before the next step begins.

    total: the total that is written, 0 for the result, else 1 + number of the scratch buffer. left, right: pixels of
    the input (for `NEXT`, `left` is the pixel of the total). part: for `TOTAL`, the total that is added.
    """

    step: Ints
    pixel: Ints
    reads: Ints
    total: Ints
    left: Ints
    right: Ints
    part: Ints

    def select(self, chosen: Ints) -> "PoolTerms":
        """Returns the terms at indices `chosen`."""
        columns = (self.step, self.pixel, self.reads, self.total, self.left, self.right, self.part)
        return PoolTerms(*(column[chosen] for column in columns))


def order_terms(taps: npt.NDArray[np.integer], counts: Ints, block: int) -> PoolTerms:
    """Returns the terms that combine the first `counts[i]` input pixels of `taps[i]` into each output pixel i.

    taps: [output pixels, taps]. block: number of terms of a block; 0 for a sequential sum.
    """
    steps = np.array(list(_steps(int(counts.max(initial=0)), block)), np.intp).reshape(-1, 5)
    # The first two of a block are combined at once; if there is only one, it is copied.
    steps = np.repeat(steps, 2, axis=0)
    steps[::2, 0] = np.where(steps[::2, 0] == BOTH, ONE, UNUSED)
    reads, first, tap = steps[:, :1], steps[:, 1:2], steps[:, 2:3]
    needed = np.where(reads == ONE, counts == first + 1, counts > tap) & (reads != UNUSED)
    step, pixel = np.nonzero(needed)
    reads, first, tap, total, part = steps[step].T
    left = np.where(reads == BOTH, taps[pixel, first], pixel)
    right = np.where(reads == TOTAL, pixel, taps[pixel, np.where(reads == ONE, first, tap)])
    return PoolTerms(step, pixel, reads, total, left, right, part)


def _steps(count: int, block: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields (`reads`, first tap of its block, last tap read, total written, total added) of each step."""
    size = block or max(count, 1)
    top = count_block_levels(count, size)
    held: dict[int, int] = {top: 0}
    for number, first in enumerate(range(0, count, size)):
        level = top if number == 0 else _level(number, size)
        yield from _flushed(held, level, top)
        held[level] = first
        last = min(first + size, count)
        yield BOTH, first, first + 1, top - level, 0
        yield from ((NEXT, first, tap, top - level, 0) for tap in range(first + 2, last))
    yield from _flushed(held, top - 1, top)


def _flushed(held: dict[int, int], level: int, top: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Adds the totals of levels up to `level` to the next higher level in use. `held`: first tap of each total."""
    for k in sorted(k for k in held if k <= level and k < top):
        first = held.pop(k)
        above = min(k for k in held)
        yield TOTAL, first, first, top - above, top - k


def _level(number: int, size: int) -> int:
    """Returns how often `number` is divisible by `size`."""
    level = 0
    while number % size == 0:
        number, level = number // size, level + 1
    return level
