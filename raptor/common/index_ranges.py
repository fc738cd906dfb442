"""Ranges of integers as arrays."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def concatenate_ranges(counts: Ints) -> tuple[Ints, Ints]:
    """Returns the concatenated ranges 0 to `counts[i] - 1`, and the i of each number."""
    index = np.repeat(np.arange(len(counts)), counts)
    return np.arange(len(index)) - (np.cumsum(counts) - counts)[index], index
