"""Moves late work off the cores of early operands, and chooses relays for the values that wait then.

By default, a compute without matrices runs on the core of its first operand. The norm of a skip that is joined with a
late tensor runs where the skip was made, so this core is occupied for all the time between, and the next sample waits.
A decoder adds the query of each step to the keys where these were made, and computes its gates where its state was
made, so these cores are occupied from the first to the last step.

So the work of a core is cut into blocks of time. If a block can run anywhere, it goes to a core that is occupied at
that time anyway. Then only the skip or the keys wait, and other cores can pass them on.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from raptor.mapping.knobs import chip_patience_ns
from raptor.mapping.refinement import MovedComputes, Relay
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.move_computes import find_movable, move_computes, moves_to
from raptor.spatial.refinement.shared_relays import (
    LEAST_GAIN,
    WORTH_RELAYING,
    choose_shared_relays,
    compared_cost,
)
from raptor.spatial.refinement.value_relays import choose_relays, relay_values
from raptor.spatial.scheduling.alap_schedule import AlapSchedule, min_max_by_core
from raptor.target.arch import Target

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LIMITS = 4
"""Number of limits of the length of a block that are tried, up to the longest occupancy of a core."""

LONG_WAIT_SHARE = 0.5
"""Share of the longest wait within the limit that a wait must have for a block to end there."""

WORTH_CUTTING = 1.25
"""Largest occupancy of a core that longer blocks may cause, relative to shorter ones, because they take fewer messages.

Decided for a U-Net with norms on 64 cores, latency and interval in us: 1 gives 51 and 15.5, 1.25 gives 43 and 18.5.
"""


def choose_moves_and_relays(partition: Partition, arch: Target) -> tuple[tuple[MovedComputes, ...], tuple[Relay, ...]]:
    """Chooses moves of computes, and relays of values that wait long between their maker and a reader.

    Blocks of late work are moved, too, if latency x interval of the list schedule is less by `LEAST_GAIN` with it.
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
    """Returns moves of blocks with the longest limit that occupies cores for about the least time; none if none do.

    The least limit is the work of the busiest core, or of the port of global memory. Values that wait count as relayed.
    """
    longest_ns = times.longest_occupancy_ns()
    least_ns = max(times.busiest_ns, float(times.work.memory_ns.sum()))
    if longest_ns < WORTH_RELAYING * least_ns:
        return ()
    reached_ns: dict[tuple[MovedComputes, ...], float] = {(): longest_ns}
    for limit_ns in np.geomspace(least_ns, longest_ns / WORTH_RELAYING, LIMITS).tolist():
        moves = _move_blocks(partition, times, limit_ns, arch)
        if moves not in reached_ns:
            moved = move_computes(partition, moves)
            after = AlapSchedule.from_partition(moved, chip_patience_ns(arch), arch)
            reached_ns[moves] = max(after.busiest_ns, after.longest_occupancy_ns(after.waiting_tiles()))
    few = WORTH_CUTTING * min(reached_ns.values())
    return () if longest_ns <= few else [moves for moves, each_ns in reached_ns.items() if each_ns <= few][-1]


def _move_blocks(partition: Partition, times: AlapSchedule, limit_ns: float, arch: Target) -> tuple[MovedComputes, ...]:
    """Returns moves of blocks of at most `limit_ns`, so that no core is occupied for longer if all blocks can move.

    The core that takes a block is the one for which its longer occupancy and its work are least together.
    """
    cores = np.array(partition.cores, np.int64)
    at_ns, end_ns = times.at_ns[: len(cores)], times.end_ns[: len(cores)]
    blocks = sorted(moving_blocks(partition, times, limit_ns), key=lambda block: float(at_ns[block[0]]))
    stays = np.ones(len(cores), np.bool_)
    stays[[i for block in blocks for i in block]] = False
    ends_ns = np.concatenate([at_ns[stays], end_ns[stays]])
    first_ns, last_ns = min_max_by_core(np.tile(cores[stays], 2), ends_ns, arch.usable_cores)
    work_ns = np.bincount(cores[stays], (end_ns - at_ns)[stays], arch.usable_cores).astype(np.float64)
    for block in blocks:
        begin_ns, finish_ns = float(at_ns[block].min()), float(end_ns[block].max())
        occupied_ns = np.maximum(last_ns, finish_ns) - np.minimum(first_ns, begin_ns)
        core = int(np.argmin(np.maximum(occupied_ns, limit_ns) + work_ns))
        cores[block] = core
        first_ns[core], last_ns[core] = min(first_ns[core], begin_ns), max(last_ns[core], finish_ns)
        work_ns[core] += (end_ns - at_ns)[block].sum()
    return moves_to(cores, partition)


def moving_blocks(partition: Partition, times: AlapSchedule, limit_ns: float) -> Iterator[Ints]:
    """Yields the blocks of computes that leave their cores: all movable ones, but one stays if a whole core could move.

    Transfers are no work here: relays can take over the transfers of values that wait.
    """
    cores, free = np.array(partition.cores, np.int64), find_movable(partition)
    at_ns, end_ns = times.at_ns[: len(cores)], times.end_ns[: len(cores)]
    order = np.lexsort((at_ns, cores))
    for own in np.split(order, np.flatnonzero(np.diff(cores[order])) + 1):
        blocks = [own[slice(*block)] for block in cut_blocks(at_ns[own], end_ns[own], limit_ns)]
        moving = [block for block in blocks if free[block].all()]
        yield from moving[len(moving) == len(blocks) :]


def cut_blocks(at_ns: Floats, end_ns: Floats, limit_ns: float) -> Iterator[tuple[int, int]]:
    """Cuts the computes of a core into blocks of time, and yields the range (first, stop) of computes of each.

    at_ns, end_ns: start and end of each compute, in the order of starts. A block takes at most `limit_ns`, and ends at
    the last of the long waits within this time. A compute that takes longer is a block.
    """
    until_ns = np.maximum.accumulate(end_ns)
    waits_ns = np.append(at_ns[1:] - until_ns[:-1], np.inf)
    first, count = 0, len(at_ns)
    while first < count:
        stop = int(np.searchsorted(until_ns, float(at_ns[first]) + limit_ns, side="right"))
        found = waits_ns[first : max(first + 1, stop)]
        last = first + int(np.flatnonzero(found >= LONG_WAIT_SHARE * float(found.max()))[-1])
        yield first, last + 1
        first = last + 1
