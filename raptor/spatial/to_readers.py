"""Work on model inputs alone, moved to the cores that read it first.

What reads nothing but model inputs and constants, such as a mask or the rows of an embedding, could run anywhere, and
the lowering puts all of it on the first core. If its readers are layers far behind, that core waits until they take a
sample's mask, and begins the next sample only then. On the core of its first reader nothing waits for it.
"""

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import ByLine, Decision
from raptor.spatial.even_out import movable
from raptor.spatial.ir import Copy
from raptor.spatial.placed import Partition
from raptor.spatial.spans import reads

Ints = npt.NDArray[np.int64]


def move_to_readers(partition: Partition, decision: Decision) -> Partition:
    """Returns the partition with such computes of the first core on the cores of their first readers.

    Those of which something on the first core reads a result stay there.
    """
    if not isinstance(decision.flow, ByLine) or not decision.flow.streamed or not _may_move(partition):
        return partition
    cores = np.array(partition.cores, np.int64)
    given, reader = reads(partition)
    free = _from_inputs(movable(partition) & (cores == 0), given, reader)
    order = np.lexsort((reader, given))
    given, reader = given[order], reader[order]
    for compute in np.flatnonzero(free)[::-1].tolist():
        low, high = np.searchsorted(given, (compute, compute + 1))
        wanted = cores[reader[low:high]]
        if len(wanted) and 0 not in wanted:
            cores[compute] = wanted[0]
    return Partition(partition.graph, tuple(cores.tolist()), partition.positions)


def _may_move(partition: Partition) -> bool:
    """Tells whether a compute of the first core reads nothing but model inputs and constants.

    Most models have none, which is found without the dataflow of all computes.
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
    """Returns which of the `chosen` computes read results of such computes only. `reader` reads compute `given`."""
    while True:
        others = reader[~chosen[given]]
        if not chosen[others].any():
            return chosen
        chosen = chosen.copy()
        chosen[others] = False
