"""ALAP (as late as possible) times of the steps of a sample, and the occupancy of each core that follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from raptor.mapping.scheduling.order_selection import schedule_early
from raptor.spatial.dataflow import GroupedLists
from raptor.spatial.placed_graph import Partition, PlacedGraph
from raptor.spatial.scheduling.list_schedule import ScheduleProblem
from raptor.spatial.tiles import Tile
from raptor.target.arch import Target

if TYPE_CHECKING:
    from raptor.mapping.scheduling.schedule_kernel import SampleWork

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WaitingTile:
    """A tile that waits to be taken to another core.

    step: number of the step that transfers it. reader: the compute that this step serves, equal to `step` if the
    compute begins with a copy. made_ns, read_ns: when the tile is ready, and when it is taken.
    """

    step: int
    reader: int
    tile: Tile
    made_ns: float
    read_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class AlapSchedule:
    """ALAP schedule of one sample that delays none of its results.

    work: all steps; see `ScheduleProblem`. order: that of the forward schedule. at_ns, end_ns: begin and end of each
    step.
    """

    problem: ScheduleProblem
    work: "SampleWork"
    order: Ints
    at_ns: Floats
    end_ns: Floats

    @classmethod
    def from_partition(cls, partition: Partition, patience_ns: float, arch: Target) -> "AlapSchedule":
        """Schedules one sample forwards, then moves all steps as late as possible."""
        problem = _problem(partition, arch)
        work = problem.sample_work()
        order, early_ns = schedule_early(work, patience_ns)
        at_ns = latest_starts(work, order, early_ns)
        return cls(problem, work, order, at_ns, at_ns + work.occupied_ns)

    def beside_operands(self) -> "AlapSchedule":
        """Returns the schedule in which work with an operand of its own core stays where that is.

        See `start_where_operands_are`.
        """
        at_ns = start_where_operands_are(self.work, self.order, self.at_ns)
        return replace(self, at_ns=at_ns, end_ns=at_ns + self.work.occupied_ns)

    def longest_occupancy_ns(self, relayed: Sequence[WaitingTile] = ()) -> float:
        """Returns the longest occupancy of a core: from the first to the last of its work, sending included.

        Tiles in `relayed` count as sent as soon as they are made.
        """
        first_ns, last_ns = self.occupied_ns(int(self.work.core.max()) + 1, relayed)
        return float((last_ns - first_ns).max())

    def occupied_ns(self, cores: int, relayed: Sequence[WaitingTile] = ()) -> tuple[Floats, Floats]:
        """Returns begin and end of the occupancy of each of `cores` cores, sending included; inf and -inf without work.

        Tiles in `relayed` count as sent as soon as they are made.
        """
        sent_ns, sends = self.at_ns.copy(), self.work.peer >= 0
        sent_ns[[each.step for each in relayed]] = [each.made_ns for each in relayed]
        owners = np.concatenate([self.work.core, self.work.core, self.work.peer[sends]])
        return min_max_by_core(owners, np.concatenate([self.at_ns, self.end_ns, sent_ns[sends]]), cores)

    @property
    def busiest_ns(self) -> float:
        """The largest total work of a core."""
        return float(np.bincount(self.work.core, self.end_ns - self.at_ns).max())

    def waiting_tiles(self) -> list[WaitingTile]:
        """Returns the tiles that steps take from other cores."""
        needs, computes = self.problem.needs, self.problem.computes
        made_ns = np.zeros(len(needs.flow.tiles))
        np.maximum.at(made_ns, needs.flow.result_tile, self.end_ns[needs.flow.result_compute])
        reader = np.append(np.arange(computes), needs.fetch_user)
        steps = np.flatnonzero(self.work.peer >= 0)
        taken = needs.taken[steps]
        numbers: list[list[int]] = np.stack([steps, reader[steps], taken], axis=1).tolist()
        waits_ns: list[list[float]] = np.stack([made_ns[taken], self.at_ns[steps]], axis=1).tolist()
        rows = zip(numbers, waits_ns, strict=True)
        return [WaitingTile(i, user, needs.flow.tiles[t], *between) for (i, user, t), between in rows]


def latest_starts(work: "SampleWork", order: Ints, early_ns: Floats) -> Floats:
    """Returns the latest start of each step that delays no result, if each core keeps the order.

    early_ns: when the inputs of each step are ready in the forward schedule.
    """
    from raptor.spatial.scheduling.alap_kernel import delay_steps  # compiled code is loaded only where it runs

    start_ns = early_ns.copy()
    delay_steps(start_ns, np.full(work.core_count, np.inf), work, work.occupied_ns, order)
    return start_ns


def start_where_operands_are(work: "SampleWork", order: Ints, at_ns: Floats) -> Floats:
    """Returns the start of each step if work with an operand of its own core starts as soon as all operands are there.

    The transfers of its other operands start when the last one of its own core is there. Otherwise its core would be
    occupied with these until it starts. Afterwards, another core can hold the result.
    """
    from raptor.spatial.scheduling.alap_kernel import start_beside_operands

    count, maker, start_ns = len(work.core), work.used_steps, at_ns.copy()
    moves = work.peer[maker] >= 0
    taken = GroupedLists.group_by(work.users[moves], maker[moves], count)
    own_ns, ready_ns = np.full(count, -1.0), np.zeros(count)
    start_beside_operands(start_ns, own_ns, ready_ns, work, work.occupied_ns, order, taken.first, taken.values)
    return start_ns


def partition_work(partition: Partition, arch: Target) -> "SampleWork":
    """Returns all steps of a sample, for the list scheduler."""
    return _problem(partition, arch).sample_work()


def _problem(partition: Partition, arch: Target) -> ScheduleProblem:
    placed = PlacedGraph(partition.graph, partition.cores, partition.positions)
    return ScheduleProblem.from_graph(arch, placed, range(len(partition.cores)))


def has_distant_chains(partition: Partition, factor: float) -> bool:
    """Returns whether some core has work far apart in a dependence chain: a cheap filter that needs no times.

    Far apart means a distance of more than `factor` times the largest number of computes on any core.
    """
    cores = np.array(partition.cores, np.int64)
    made, reader = compute_dependences(partition)
    order = np.argsort(reader, kind="stable")
    level = [0] * len(cores)
    for before, after in zip(made[order].tolist(), reader[order].tolist(), strict=True):
        if level[before] >= level[after]:
            level[after] = level[before] + 1
    levels = np.array(level, np.float64)
    first, last = min_max_by_core(
        np.concatenate([cores, cores[made]]), np.concatenate([levels, levels[reader]]), cores.max() + 1
    )
    return float((last - first).max()) > factor * np.bincount(cores).max()


def compute_dependences(partition: Partition) -> tuple[Ints, Ints]:
    """Returns the dependences between computes: arrays of makers and of readers."""
    flow = partition.graph.dataflow
    maker = np.full(len(flow.tiles), -1)
    maker[flow.result_tile] = flow.result_compute
    reader, tile = flow.inputs()
    made = maker[tile]
    return made[made >= 0], reader[made >= 0]


def min_max_by_core(cores: Ints, at: Floats, count: int) -> tuple[Floats, Floats]:
    """Returns the minimum and the maximum of `at` for each of `count` cores; inf and -inf without entries."""
    first, last = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(first, cores, at)
    np.maximum.at(last, cores, at)
    return first, last
