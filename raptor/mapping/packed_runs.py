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


class PackedRuns(NamedTuple):
    """Runs (see `find_runs`) that pack the spans of all sources, and runs from there. elements: of the packed tile."""

    packing: Ints
    unpacking: Ints
    elements: int


def runs_ns(runs: Ints, arch: Target) -> float:
    """Returns the time in ns of runs: those with a stride pass through the vector unit, all others are local copies."""
    if len(runs) <= FEW_RUNS:
        few: list[tuple[int, int]] = runs[:, 3:].tolist()
        found = sorted(Counter(2 * elements + (stride != 1 and elements > 1) for stride, elements in few).items())
    else:
        _, _, _, stride, elements = runs.T
        kinds, counts = np.unique(2 * elements + ((stride != 1) & (elements > 1)), return_counts=True)
        found = zip(kinds.tolist(), counts.tolist(), strict=True)
    return sum(count * _run_ns(kind, arch) for kind, count in found)


def _run_ns(kind: int, arch: Target) -> float:
    """Returns the time in ns of a run of `kind // 2` elements, with a stride if `kind` is odd."""
    return (vector_ns(arch, kind // 2, 1) if kind % 2 else copy_ns(arch, kind // 2)) + ISSUE_NS


def pack_runs(runs: Ints, arch: Target) -> PackedRuns | None:
    """Returns other runs for the same elements, through a packed tile; None if that is not much faster.

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
