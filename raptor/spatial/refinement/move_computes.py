"""Moves computes to other virtual cores, as runs of consecutive computes that a mapping file can hold."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from raptor.mapping.refinement import MovedComputes, RefinementError
from raptor.spatial.ir import Copy
from raptor.spatial.placed_graph import Partition
from raptor.target.arch import Target

Ints = npt.NDArray[np.int64]


def find_movable(partition: Partition) -> npt.NDArray[np.bool_]:
    """Returns whether each compute can run on any core: no matrix, no copy, and no other compute fills its results."""
    flow = partition.graph.dataflow
    found = np.array([not compute.matrices for compute in partition.graph.computes], np.bool_)
    found[flow.op_compute[flow.is_op_class(Copy)]] = False
    makers = np.bincount(flow.op_result, minlength=len(flow.tiles))
    found[flow.op_compute[makers[flow.op_result] > 1]] = False
    return found


def moves_to(cores: Ints, partition: Partition) -> tuple[MovedComputes, ...]:
    """Returns the moves after which each compute is on its core of `cores`."""
    before = np.array(partition.cores, np.int64)
    moved = np.flatnonzero(cores != before)
    starts = np.diff(moved, prepend=-2) != 1
    starts[1:] |= np.diff(cores[moved]) != 0
    runs = np.split(moved, np.flatnonzero(starts)[1:]) if len(moved) else []
    return tuple(MovedComputes(int(run[0]), int(run[-1]) + 1, int(cores[run[0]])) for run in runs)


def move_computes(partition: Partition, moves: Sequence[MovedComputes]) -> Partition:
    """Returns the partition with the moves made; the partition itself if there are none."""
    if not moves:
        return partition
    cores = list(partition.cores)
    for move in moves:
        cores[move.first : move.stop] = [move.core] * (move.stop - move.first)
    return replace(partition, cores=tuple(cores))


def check_moves(field: str, moves: Sequence[MovedComputes], partition: Partition, arch: Target) -> None:
    """Raises `RefinementError` for moves in `field` that are not in order, or of computes that cannot move."""
    if not moves:
        return
    count, end, free = len(partition.cores), 0, find_movable(partition)
    for i, move in enumerate(moves):
        if not end <= move.first < move.stop <= count:
            raise RefinementError(f"{field}[{i}]: computes {move}, expected some of {end} to {count}, in order")
        if not 0 <= move.core < arch.usable_cores:
            raise RefinementError(f"{field}[{i}]: computes {move} of {arch.usable_cores}")
        if not free[move.first : move.stop].all():
            compute = move.first + int(np.argmin(free[move.first : move.stop]))
            raise RefinementError(f"{field}[{i}]: compute {compute} of {_named(partition, compute)} cannot move")
        end = move.stop


def _named(partition: Partition, compute: int) -> str:
    return partition.graph.computes[compute].node or "the model inputs"
