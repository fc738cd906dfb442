"""Compiled loops (numba) of memory allocation and of its verifier."""

import numpy as np
import numpy.typing as npt

from raptor.common.jit.decorators import interpret_first, kernel

Ints = npt.NDArray[np.int64]


@kernel
@interpret_first(us=lambda args: len(args[0]) ** 2, until_us=3e5)
def first_fit(order: Ints, first: Ints, last: Ints, rest: Ints, wake: Ints, size: Ints) -> Ints:
    """Returns the address of each range of `size` bytes.

    Ranges are placed in `order`, each at the lowest address that is free from step `first` to step `last`, but for the
    steps after `rest` and before `wake`.
    """
    start = np.zeros_like(size)
    placed = np.empty_like(order)  # sorted by start
    for count in range(len(order)):
        i = order[count]
        end = 0
        for j in placed[:count]:
            apart = first[j] > last[i] or last[j] < first[i]
            apart = apart or (first[j] > rest[i] and last[j] < wake[i]) or (first[i] > rest[j] and last[i] < wake[j])
            if not apart:
                if start[j] - end >= size[i]:
                    break
                end = max(end, start[j] + size[j])
        start[i] = end
        k = count
        while k > 0 and start[placed[k - 1]] > end:
            placed[k] = placed[k - 1]
            k -= 1
        placed[k] = i
    return start


@kernel
@interpret_first(us=lambda args: len(args[0]) ** 2, until_us=3e5)
def first_clash(first: Ints, last: Ints, rest: Ints, wake: Ints, low: Ints, high: Ints) -> tuple[int, int]:
    """Returns the first range i that overlaps an earlier range j in time and memory, and j; -1 and -1 if there is none.

    Range i occupies `low[i]` to `high[i]` from step `first[i]` to step `last[i]`, but not after `rest[i]` and before
    `wake[i]`. `first` must be ascending.
    """
    alive = np.empty_like(low)
    count = 0
    for i in range(len(low)):
        kept = 0
        for k in range(count):
            j = alive[k]
            if last[j] < first[i]:
                continue
            if low[j] < high[i] and low[i] < high[j] and not (first[i] > rest[j] and last[i] < wake[j]):
                return i, j
            alive[kept] = j
            kept += 1
        alive[kept] = i
        count = kept + 1
    return -1, -1
