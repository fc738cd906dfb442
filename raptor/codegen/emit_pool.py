"""Terms of a pool in the order in which they are combined: one after another, or a long sum in blocks.

A float32 sum of thousands of terms one after another loses digits: each term is rounded to those of the sum so far. So
a sum of more than `LONG` terms is made of blocks of `BLOCK` terms, these of blocks of as many blocks, and so on. Each
level has a total of its own: that of the highest level is the result, those below are scratch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.spatial.operations import levels_of

Ints = npt.NDArray[np.intp]

ONE, BOTH, NEXT, TOTAL, UNUSED = range(5)
"""Values of `Terms.reads`: an element that is copied; two elements; one that is added; the total of a lower level."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms as columns, in order. A step is done for all its pixels before the next one.

    total: the total that is written, 0 for the result, else 1 + the number of a scratch. left, right: pixels of the
    input (for `NEXT`, `left` is the pixel of the total). part: for `TOTAL`, the total that is added.
    """

    step: Ints
    pixel: Ints
    reads: Ints
    total: Ints
    left: Ints
    right: Ints
    part: Ints

    def at(self, chosen: Ints) -> "Terms":
        """Returns some of the terms."""
        columns = (self.step, self.pixel, self.reads, self.total, self.left, self.right, self.part)
        return Terms(*(column[chosen] for column in columns))


def terms_of(taps: npt.NDArray[np.integer], counts: Ints, block: int) -> Terms:
    """Returns the terms that combine the first `counts` pixels of `taps` [pixels, taps] for each pixel of the result.

    block: number of terms of a block; 0 for a single one.
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
    return Terms(step, pixel, reads, total, left, right, part)


def _steps(count: int, block: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields what is read, the first tap of its block, the tap that must be there, the total, and the total added."""
    size = block or max(count, 1)
    top = levels_of(count, size)
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
    """Adds the totals up to a level to the next one above that is in use; `held`: the first tap of each."""
    for k in sorted(k for k in held if k <= level and k < top):
        first = held.pop(k)
        above = min(k for k in held)
        yield TOTAL, first, first, top - above, top - k


def _level(number: int, size: int) -> int:
    """Returns how often a number can be divided by a size."""
    level = 0
    while number % size == 0:
        number, level = number // size, level + 1
    return level
