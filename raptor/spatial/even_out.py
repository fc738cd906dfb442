"""Work on whole tensors, moved from the cores that work most to those that work least.

What does not stream runs where its operand is. Behind the heads of a detector, for instance, moves and softmax of whole
tensors follow one another on the core of one layer, which then works longer than all others. Such a compute can run on
any core: its operands are sent there once, and its result to its readers.
"""

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import ByLine, Decision
from raptor.spatial.costs import Costs
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.ir import Copy
from raptor.spatial.mesh_placement import usable
from raptor.spatial.placed import Partition
from raptor.target.arch import Target
from raptor.target.timing import message_element_ns, message_ns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LEAST = 0.02
"""Share of the work of the busiest core below which a compute is not moved."""
_UNEVEN = 1.5
"""Times the work that cannot move that a core may do: waiting for messages outweighs a smaller difference."""


def even_out(partition: Partition, decision: Decision, arch: Target) -> Partition:
    """Returns the partition with long computes on other cores, as long as the core that works most works less then.

    Computes stay on their chip. Layer by layer, cores take turns, so their work need not be even; and where products of
    computed tensors have cores of their own, the mapping has evened out the work of the chains.
    """
    by_line = isinstance(decision.flow, ByLine) and decision.flow.streamed and not decision.flow.products
    if not by_line or not partition.cores:
        return partition
    graph, cores = partition.graph, np.array(partition.cores, np.int64)
    flow, costs = graph.dataflow, Costs(arch, graph.filters)
    of_form = np.array([costs.op_ns(op, compute) for op, compute in flow.forms])
    work_ns = np.bincount(flow.op_compute, of_form[flow.op_form], len(cores)).astype(np.float64)
    core_ns = np.bincount(cores, work_ns, len(usable(arch))).astype(np.float64)
    messages_ns = _elements(flow, len(cores)) * message_element_ns(arch) + 2 * message_ns(arch, 1)
    is_long = (work_ns >= _LEAST * core_ns.max()) & (work_ns >= messages_ns)
    long = np.flatnonzero(movable(partition) & is_long)
    enough_ns = _UNEVEN * float((core_ns - np.bincount(cores[long], work_ns[long], len(core_ns))).max())
    if not len(long) or core_ns.max() <= enough_ns:
        return partition
    _move(long, cores, core_ns, work_ns, messages_ns, enough_ns, arch.cores_per_chip)
    return Partition(graph, tuple(cores.tolist()), partition.positions)


def movable(partition: Partition) -> npt.NDArray[np.bool_]:
    """Tells for each compute whether it can run on any core: it has no matrices, and makes all of its results."""
    flow = partition.graph.dataflow
    found = np.array([not compute.matrices for compute in partition.graph.computes], np.bool_)
    found[flow.op_compute[flow.is_form(Copy)]] = False
    makers = np.bincount(flow.op_result, minlength=len(flow.tiles))
    found[flow.op_compute[makers[flow.op_result] > 1]] = False
    return found


def _elements(flow: Dataflow, computes: int) -> Floats:
    """Returns how many elements each compute reads and makes for others."""
    user, tile = flow.inputs()
    users, tiles = np.concatenate([user, flow.result_compute]), np.concatenate([tile, flow.result_tile])
    return np.bincount(users, flow.tile_elements[tiles], computes).astype(np.float64)


def _move(
    long: Ints,
    cores: Ints,
    core_ns: Floats,
    work_ns: Floats,
    messages_ns: Floats,
    enough_ns: float,
    cores_per_chip: int,
) -> None:
    """Moves computes from the busiest core to another one, as long as the larger work of the two falls.

    The other one is that which works least of those on the chip that begin no earlier in the graph: a core with layers
    from farther up would wait for this sample before it could begin the next. `cores` and the work of each core,
    `core_ns`, are changed. messages_ns: time to send what a compute reads and makes. enough_ns: work of a core that is
    little enough.
    """
    begin = np.full(len(core_ns), len(cores))
    np.minimum.at(begin, cores, np.arange(len(cores)))
    chip = np.arange(len(core_ns)) // cores_per_chip
    while core_ns.max() > enough_ns:
        busiest = int(core_ns.argmax())
        near = (chip == chip[busiest]) & (begin >= begin[busiest])
        idlest = int(np.where(near, core_ns, np.inf).argmin())
        own = long[cores[long] == busiest]
        after = np.maximum(core_ns[busiest] - work_ns[own], core_ns[idlest] + work_ns[own]) + messages_ns[own]
        if not len(own) or after.min() >= core_ns[busiest]:
            return
        moved = int(own[after.argmin()])
        cores[moved] = idlest
        core_ns[busiest] += messages_ns[moved] - work_ns[moved]
        core_ns[idlest] += messages_ns[moved] + work_ns[moved]
