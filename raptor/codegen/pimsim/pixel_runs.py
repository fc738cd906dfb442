"""Runs of neighbouring pixels, which one instruction processes together."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raptor.codegen.pimsim.assign_registers import Ints


def find_pixel_runs(pixels: npt.NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Returns the first pixel and the length of each run of consecutive pixels."""
    starts, lengths = find_joint_runs([pixels])
    return pixels[starts].astype(np.intp), lengths


def pieces(starts: Ints, lengths: Ints, most: int) -> tuple[Ints, Ints]:
    """Cuts runs into pieces of at most `most`. Returns the start and the length of each piece."""
    counts = -(-lengths // most)
    number: Ints = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(starts, counts) + number * most, np.minimum(np.repeat(lengths, counts) - number * most, most)


def find_joint_runs(
    columns: Sequence[npt.NDArray[np.integer]], constant: Sequence[npt.NDArray[np.integer]] = ()
) -> tuple[Ints, Ints]:
    """Returns the first row and the length of each run of rows.

    Inside a run, every column of `columns` advances by one per row, and every column of `constant` stays equal.
    """
    count = len(columns[0])
    if count == 0:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    together = np.ones(count - 1, np.bool_)
    for column in columns:
        together &= np.diff(column) == 1
    for column in constant:
        together &= np.diff(column) == 0
    starts = np.concatenate([[0], np.flatnonzero(~together) + 1])
    return starts, np.diff(np.append(starts, count))
