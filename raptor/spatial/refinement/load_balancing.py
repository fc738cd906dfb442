"""Load balancing: moves computes without matrices from the busiest core to idle ones.

By default, a compute without matrices runs on the core of its operand. After the heads of a detector, for instance,
moves and softmax of whole tensors all run on the core of one layer; a wide depthwise layer has no more cores than the
layer before it. Such cores become the bottleneck. These computes can run on any core at the cost of messages: operands
are sent there once, and the result to its readers.

A core starts a sample only after it has finished the previous one. If a core of a late layer also computed for an early
layer, each sample would wait for all layers between them. So the time from the first to the last work of a sample on a
core (its occupancy) is limited, for cores that receive computes. Two limits are tried: the longest occupancy before any
move, and the least limit for which the busiest core works no longer than with that. The best of both results and of no
moves, by latency x interval in a list schedule, is returned.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.mapping.decision import LineFlow
from raptor.mapping.knobs import chip_patience_ns
from raptor.mapping.refinement import MovedComputes
from raptor.mapping.scheduling.order_selection import balanced_cost
from raptor.spatial.dataflow import Dataflow
from raptor.spatial.mesh_placement import usable_cores
from raptor.spatial.operation_costs import operation_times_ns
from raptor.spatial.placed_graph import Partition
from raptor.spatial.refinement.move_computes import find_movable, move_computes, moves_to
from raptor.spatial.scheduling.alap_schedule import AlapSchedule, partition_work
from raptor.target.arch import Target
from raptor.target.timing import message_element_ns, message_ns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LEAST = 0.02
"""Smallest time of a movable compute, as a share of the work of the busiest core."""
_UNEVEN = 1.5
"""Cores are relieved only above this factor of the largest immovable load, because messages cost time, too."""
_HALVINGS = 5
"""Number of steps of the binary search for the occupancy limit."""


def balance_load(partition: Partition, flow: LineFlow, arch: Target) -> tuple[MovedComputes, ...]:
    """Returns moves of long computes off the busiest cores; none if that is better.

    Computes stay on their chip. `flow`: that of the decision. Where products of computed tensors have cores of their
    own, the mapping has balanced these chains already.
    """
    if flow.products:
        return ()
    graph, cores = partition.graph, np.array(partition.cores, np.int64)
    table = graph.dataflow
    times_ns = operation_times_ns(table, graph.filters, arch)
    work_ns = np.bincount(table.op_compute, times_ns, len(cores)).astype(np.float64)
    core_ns = np.bincount(cores, work_ns, len(usable_cores(arch))).astype(np.float64)
    messages_ns = _elements(table, len(cores)) * message_element_ns(arch) + 2 * message_ns(arch, 1)
    is_long = (work_ns >= _LEAST * core_ns.max()) & (work_ns >= messages_ns)
    long = np.flatnonzero(find_movable(partition) & is_long)
    enough_ns = _UNEVEN * float((core_ns - np.bincount(cores[long], work_ns[long], len(core_ns))).max())
    if not len(long) or core_ns.max() <= enough_ns:
        return ()
    patience_ns, times = chip_patience_ns(arch), AlapSchedule.from_partition(partition, 0.0, arch)
    chip = np.arange(len(core_ns)) // arch.cores_per_chip
    balancing = _Moves(times, long, work_ns, messages_ns, enough_ns, chip)
    _, *moved = balancing.choices(_LoadState(cores, core_ns, *times.occupied_ns(len(core_ns))))
    others = [moves_to(state.cores, partition) for state in moved]
    works = [((), times.work), *((moves, partition_work(move_computes(partition, moves), arch)) for moves in others)]
    return min(works, key=lambda choice: balanced_cost(choice[1], patience_ns))[0]


def _elements(flow: Dataflow, computes: int) -> Floats:
    """Returns the number of elements that each compute exchanges with other computes."""
    user, tile = flow.inputs()
    users, tiles = np.concatenate([user, flow.result_compute]), np.concatenate([tile, flow.result_tile])
    return np.bincount(users, flow.tile_elements[tiles], computes).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _LoadState:
    """Core of each compute; for each core its work, and when its work of a sample begins and ends."""

    cores: Ints
    core_ns: Floats
    first_ns: Floats
    last_ns: Floats

    @property
    def busiest_ns(self) -> float:
        return float(self.core_ns.max())

    @property
    def longest_ns(self) -> float:
        """The longest occupancy of a core by a sample."""
        return float((self.last_ns - self.first_ns).max())

    def copy(self) -> "_LoadState":
        return _LoadState(self.cores.copy(), self.core_ns.copy(), self.first_ns.copy(), self.last_ns.copy())


@dataclass(frozen=True, slots=True, eq=False)
class _Moves:
    """Moves computes from the busiest core to others.

    times: ALAP times of computes before any move. long: numbers of the computes that may move. work_ns, messages_ns:
    time of each compute, and of sending its operands and results. enough_ns: load below which a core is not relieved.
    chip: chip of each core.
    """

    times: AlapSchedule
    long: Ints
    work_ns: Floats
    messages_ns: Floats
    enough_ns: float
    chip: Ints

    def choices(self, before: _LoadState) -> tuple[_LoadState, ...]:
        """Returns the states without moves, with the longest occupancy as the limit, and with the least limit."""
        longest = self.move_all(before, before.longest_ns)
        return before, longest, self.with_least_limit(before, longest)

    def with_least_limit(self, before: _LoadState, longest: _LoadState) -> _LoadState:
        """Searches for the smallest occupancy limit that does not raise the load of the busiest core.

        longest: the state with the largest limit.
        """
        low_ns, high_ns, found = 0.0, before.longest_ns, longest
        for _ in range(_HALVINGS):
            limit_ns = (low_ns + high_ns) / 2
            tried = self.move_all(before, limit_ns)
            if tried.busiest_ns <= found.busiest_ns:
                found, high_ns = tried, limit_ns
            else:
                low_ns = limit_ns
        return found

    def move_all(self, before: _LoadState, limit_ns: float) -> _LoadState:
        """Moves computes until no move lowers the load of the busiest core, or that load is at most `enough_ns`."""
        state = before.copy()
        while state.busiest_ns > self.enough_ns and self.make_best_move(state, limit_ns):
            pass
        return state

    def make_best_move(self, state: _LoadState, limit_ns: float) -> bool:
        """Makes the move that relieves the busiest core most, in place; returns False if none does.

        The compute goes to the least loaded core of the chip that it would not occupy for more than `limit_ns`.
        """
        busiest = int(state.core_ns.argmax())
        own = self.long[state.cores[self.long] == busiest]
        if not len(own):
            return False
        first_ns = np.minimum(state.first_ns, self.times.at_ns[own, None])
        last_ns = np.maximum(state.last_ns, self.times.end_ns[own, None])
        free = (last_ns - first_ns <= limit_ns) & (self.chip == self.chip[busiest])
        there_ns = np.where(free, state.core_ns + self.work_ns[own, None], np.inf)
        here_ns = state.core_ns[busiest] - self.work_ns[own]
        after_ns = np.maximum(here_ns, there_ns.min(axis=1)) + self.messages_ns[own]
        best = int(after_ns.argmin())
        if after_ns[best] >= state.core_ns[busiest]:
            return False
        compute, core = int(own[best]), int(there_ns[best].argmin())
        state.cores[compute] = core
        state.core_ns[busiest] = here_ns[best] + self.messages_ns[compute]
        state.core_ns[core] += self.messages_ns[compute] + self.work_ns[compute]
        state.first_ns[core], state.last_ns[core] = first_ns[best, core], last_ns[best, core]
        return True
