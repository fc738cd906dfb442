"""Moves late work off the cores of early operands, and chooses relays for the values that wait then.

By default, a compute without matrices runs on the core of its first operand. The norm of a skip that is joined with a
late tensor runs where the skip was made, so this core is occupied for all the time between, and the next sample waits.
If the norm runs on a core that is occupied late anyway, only the skip waits, and other cores can pass it on.
"""

import numpy as np
import numpy.typing as npt

from raptor.mapping.knobs import chip_patience_ns
from raptor.mapping.refinement import MovedComputes, Relay
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.move_computes import find_movable, move_computes, moves_to
from raptor.spatial.refinement.shared_relays import LEAST_GAIN, choose_shared_relays, compared_cost
from raptor.spatial.refinement.value_relays import choose_relays, relay_values
from raptor.spatial.scheduling.alap_schedule import AlapSchedule, min_max_by_core
from raptor.target.arch import Target

Ints = npt.NDArray[np.int64]


def choose_moves_and_relays(partition: Partition, arch: Target) -> tuple[tuple[MovedComputes, ...], tuple[Relay, ...]]:
    """Chooses moves of computes, and relays of values that wait long between their maker and a reader.

    Late work is moved, too, if latency x interval of the list schedule is less by `LEAST_GAIN` with it.
    """
    times = AlapSchedule.from_partition(partition, chip_patience_ns(arch), arch)
    near, relays = _relays_of(partition, times, arch)
    late = _move_late_work(partition, times, arch)
    if not late:
        return near, relays
    moved = move_computes(partition, late)
    nearer, others = _relays_of(moved, AlapSchedule.from_partition(moved, chip_patience_ns(arch), arch), arch)
    moved = move_computes(moved, nearer)
    plain_cost = compared_cost(relay_values(move_computes(partition, near), relays), arch)
    if compared_cost(relay_values(moved, others), arch) > LEAST_GAIN * plain_cost:
        return near, relays
    return moves_to(np.array(moved.cores, np.int64), partition), others


def _relays_of(
    partition: Partition, times: AlapSchedule, arch: Target
) -> tuple[tuple[MovedComputes, ...], tuple[Relay, ...]]:
    """Chooses relays through idle cores, with their moves; if there are none, relays through cores with other work."""
    near, relays = choose_relays(partition, arch)
    return (near, relays) if near or relays else ((), choose_shared_relays(partition, times, arch))


def _move_late_work(partition: Partition, times: AlapSchedule, arch: Target) -> tuple[MovedComputes, ...]:
    """Returns moves of all computes of a core after its longest wait, if all can move, to a core occupied then.

    A wait counts if it is longer than all work of the busiest core. The core that takes the computes is the one for
    which its longer occupancy and its work are least together.
    """
    cores = np.array(partition.cores, np.int64)
    at_ns, end_ns = times.at_ns[: len(cores)], times.end_ns[: len(cores)]
    groups = _late_groups(partition, times)
    stays = np.ones(len(cores), np.bool_)
    stays[[i for group in groups for i in group]] = False
    ends_ns = np.concatenate([at_ns[stays], end_ns[stays]])
    first_ns, last_ns = min_max_by_core(np.tile(cores[stays], 2), ends_ns, arch.usable_cores)
    work_ns = np.bincount(cores[stays], (end_ns - at_ns)[stays], arch.usable_cores).astype(np.float64)
    for group in groups:
        begin_ns, finish_ns = float(at_ns[group].min()), float(end_ns[group].max())
        occupied_ns = np.maximum(last_ns, finish_ns) - np.minimum(first_ns, begin_ns)
        core = int(np.argmin(np.maximum(occupied_ns, times.busiest_ns) + work_ns))
        cores[group] = core
        first_ns[core], last_ns[core] = min(first_ns[core], begin_ns), max(last_ns[core], finish_ns)
        work_ns[core] += (end_ns - at_ns)[group].sum()
    return moves_to(cores, partition)


def _late_groups(partition: Partition, times: AlapSchedule) -> list[Ints]:
    """Returns the late computes of each core: all after its longest wait. Groups are in the order of their starts.

    Cores with a wait no longer than all work of the busiest core, or with a late compute that cannot move, have none.
    Transfers are no work here: relays can take over the transfers of values that wait.
    """
    cores, free = np.array(partition.cores, np.int64), find_movable(partition)
    at_ns, end_ns = times.at_ns[: len(cores)], times.end_ns[: len(cores)]
    order = np.lexsort((at_ns, cores))
    groups: list[Ints] = []
    for own in np.split(order, np.flatnonzero(np.diff(cores[order])) + 1):
        waits_ns = at_ns[own[1:]] - np.maximum.accumulate(end_ns[own])[:-1]
        longest = int(waits_ns.argmax()) if len(waits_ns) else 0
        if len(waits_ns) and waits_ns[longest] > times.busiest_ns and free[own[longest + 1 :]].all():
            groups.append(own[longest + 1 :])
    return sorted(groups, key=lambda group: float(at_ns[group[0]]))
