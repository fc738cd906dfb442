"""Runs of a rearrangement whose elements come from many tiles, packed into one tile first.

A run copies elements of one source. Where neighbouring elements of the result come from different sources, such as the
same channel of tokens that different cores have sent, each is a run of its own, and the transposition of a sequence
takes one instruction an element. Once all tokens lie one after another, a run with a stride takes a channel of all.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raptor.common.index_ranges import concatenate_ranges
from raptor.graph.run_encoding import find_runs
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, copy_ns, vector_ns

Ints = npt.NDArray[np.int64]

PACKING_GAIN = 2
"""Factor by which the time of the copies must fall for elements to be packed, because it takes memory, too."""

FEW_RUNS = 16
"""Largest number of runs of a move that are counted one by one: numpy takes longer for so few."""

RunCounts = tuple[tuple[int, bool, int], ...]
"""(length, whether it has a stride, number of such runs) of each kind of run, in ascending order."""


class PackedRuns(NamedTuple):
    """Runs (see `find_runs`) that pack the spans of all sources into one tile, and runs that read this tile instead.

    elements: number of elements of the packed tile.
    """

    packing: Ints
    unpacking: Ints
    elements: int


def count_runs(runs: Ints) -> RunCounts:
    """Counts the runs of a rearrangement (see `find_runs`) by length and by whether they have a stride."""
    if len(runs) <= FEW_RUNS:
        few: list[tuple[int, int]] = runs[:, 3:].tolist()
        found = sorted(Counter(2 * length + (stride != 1 and length > 1) for stride, length in few).items())
    else:
        stride, length = runs[:, 3:].T
        kinds, counts = np.unique(2 * length + ((stride != 1) & (length > 1)), return_counts=True)
        found = zip(kinds.tolist(), counts.tolist(), strict=True)
    return tuple((kind // 2, bool(kind % 2), count) for kind, count in found)


def run_ns(length: int, strided: bool, arch: Target) -> float:
    """Returns the time in ns of a run: with a stride it passes through the vector unit, else it is a local copy."""
    return (vector_ns(arch, length, 1) if strided else copy_ns(arch, length)) + ISSUE_NS


def runs_ns(runs: Ints, arch: Target) -> float:
    """Returns the time in ns of all runs of a rearrangement (see `find_runs`) on one core."""
    return sum(count * run_ns(length, strided, arch) for length, strided, count in count_runs(runs))


def pack_runs(runs: Ints, arch: Target) -> PackedRuns | None:
    """Returns runs that move the same elements through a packed tile; None if they are not much faster than `runs`.

    The packed tile is no longer than the result. It has the used span of each source, in the order of first use.
    """
    read = runs[runs[:, 1] >= 0]
    used, first_use = np.unique(read[:, 1], return_index=True)
    if len(used) < 2 or len(runs) <= PACKING_GAIN * len(used):
        return None
    used = used[np.argsort(first_use)]
    low, end = _used_spans(read)
    length = end[used] - low[used]
    begins = np.cumsum(length) - length
    if length.sum() > runs[:, 4].sum():
        return None
    packing = np.stack([begins, used, low[used], np.ones_like(used), length], axis=1)
    moved = np.zeros(used.max() + 2, np.int64)  # the last one is for zeros, whose source is -1
    moved[used] = begins - low[used]
    unpacking = _read_packed(runs, moved)
    if PACKING_GAIN * (runs_ns(packing, arch) + runs_ns(unpacking, arch)) > runs_ns(runs, arch):
        return None
    return PackedRuns(packing, unpacking, int(length.sum()))


def _used_spans(runs: Ints) -> tuple[Ints, Ints]:
    """Returns the first element of each source that some runs read, and the end after the last one."""
    _, source, first, stride, elements = runs.T
    low, end = np.full(source.max() + 1, np.iinfo(np.int64).max), np.zeros(source.max() + 1, np.int64)
    np.minimum.at(low, source, first)
    np.maximum.at(end, source, first + stride * (elements - 1) + 1)
    return low, end


def _read_packed(runs: Ints, moved: Ints) -> Ints:
    """Returns runs that read the packed tile. moved: by how far the elements of each source lie later there."""
    _, source, first, stride, elements = runs[np.argsort(runs[:, 0], kind="stable")].T
    within, i = concatenate_ranges(elements)
    return find_runs(np.minimum(source, 0)[i], (first + moved[source])[i] + stride[i] * within)
