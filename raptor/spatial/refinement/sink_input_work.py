"""Sinks computes that depend on model inputs only to the cores of their first readers.

A compute that reads only model inputs and constants, such as a mask or an embedding lookup, can run anywhere, and the
lowering puts all of them on core 0. If its readers are much later layers, core 0 waits until they have taken a sample's
mask, and only then begins the next sample. On the core of its first reader nothing waits for it.
"""

import numpy as np
import numpy.typing as npt

from raptor.mapping.refinement import MovedComputes
from raptor.spatial.ir import Copy
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.move_computes import find_movable, moves_to
from raptor.spatial.scheduling.alap_schedule import compute_dependences

Ints = npt.NDArray[np.int64]


def sink_to_readers(partition: Partition) -> tuple[MovedComputes, ...]:
    """Returns moves of input-only computes from core 0 to the cores of their first readers.

    A compute stays if something on core 0 reads its result.
    """
    if not _may_move(partition):
        return ()
    cores = np.array(partition.cores, np.int64)
    given, reader = compute_dependences(partition)
    free = _from_inputs(find_movable(partition) & (cores == 0), given, reader)
    order = np.lexsort((reader, given))
    given, reader = given[order], reader[order]
    for compute in np.flatnonzero(free)[::-1].tolist():
        low, high = np.searchsorted(given, (compute, compute + 1))
        wanted = cores[reader[low:high]]
        if len(wanted) and 0 not in wanted:
            cores[compute] = wanted[0]
    return moves_to(cores, partition)


def _may_move(partition: Partition) -> bool:
    """Returns whether core 0 has a compute that reads only model inputs and constants.

    Most models have none, which this finds without building the dataflow tables.
    """
    graph = partition.graph
    given = {part.tile.name for name in graph.inputs for part in graph.tensors[name].parts}
    first = (compute for compute, core in zip(graph.computes, partition.cores, strict=True) if core == 0)
    return any(
        not compute.matrices
        and not any(isinstance(op, Copy) for op in compute.body)
        and given.issuperset([tile.name for tile in compute.inputs])
        for compute in first
    )


def _from_inputs(chosen: npt.NDArray[np.bool_], given: Ints, reader: Ints) -> npt.NDArray[np.bool_]:
    """Returns which `chosen` computes depend on such computes only. `reader` reads results of compute `given`."""
    while True:
        others = reader[~chosen[given]]
        if not chosen[others].any():
            return chosen
        chosen = chosen.copy()
        chosen[others] = False
