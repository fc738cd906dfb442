"""First-fit placement, compiled (numba)."""

import numpy as np
import numpy.typing as npt

from raptor.common.jit import kernel

Ints = npt.NDArray[np.int64]


@kernel
def first_fit(order: Ints, first: Ints, last: Ints, size: Ints) -> Ints:
    """Returns the start of each range of `size` bytes.

    Ranges are placed in `order`, each at the lowest start that is free from step `first` to step `last`.
    """
    start = np.zeros_like(size)
    placed = np.empty_like(order)  # by start
    for count in range(len(order)):
        i = order[count]
        end = 0
        for j in placed[:count]:
            if first[j] <= last[i] and last[j] >= first[i]:
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
