"""Next values of states: runs of elements of the tiles that hold both, and when those of caches move."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.pim.global_order import GlobalOrder
from raptor.pim.value_numbering import ValueNumbering
from raptor.spatial.ir import SpatialGraph, TensorParts
from raptor.spatial.placed_graph import Schedule
from raptor.spatial.scheduling.idle_gaps import IdleGaps
from raptor.spatial.scheduling.list_schedule import ScheduleProblem
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, copy_ns

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class StateRuns:
    """Runs of consecutive elements, as columns: `elements` elements of tile `state` from element `into` on.

    Their next values are those of tile `source` from element `first` on.
    """

    state: Ints
    into: Ints
    source: Ints
    first: Ints
    elements: Ints

    @classmethod
    def from_graph(cls, graph: SpatialGraph, values: ValueNumbering) -> "StateRuns":
        """Finds the runs of all states of a graph; both tensors of a state have equal elements in C order."""
        found = [np.zeros((0, 5), np.int64)]
        for pair in graph.residency.states:
            source, first = _locate(graph.tensors[pair.output], values)
            found.append(_runs(_tiles(graph.tensors[pair.input], values), source, first))
        return cls(*np.concatenate(found).T)


def _tiles(tensor: TensorParts, values: ValueNumbering) -> list[tuple[int, Ints]]:
    """Returns each tile of a tensor with the C-order numbers of its elements, in the order of the tile."""
    numbers = tensor.image.to_pixels(np.arange(tensor.image.elements))
    return [(values.tile(part.tile), numbers[part.region.index()].ravel()) for part in tensor.parts]


def _locate(tensor: TensorParts, values: ValueNumbering) -> tuple[Ints, Ints]:
    """Returns the tile of each element of a tensor, and its place there, by number in C order."""
    tile, place = np.full((2, tensor.image.elements), -1)
    for number, elements in _tiles(tensor, values):
        tile[elements], place[elements] = number, np.arange(len(elements))
    assert (tile >= 0).all(), "the parts of a tensor cover it"
    return tile, place


def _runs(tiles: Sequence[tuple[int, Ints]], source: Ints, first: Ints) -> Ints:
    """Returns [runs, 5], the columns of `StateRuns`, of the tiles of a state, each with the numbers of its elements.

    source, first: tile and place where each element of the state is made, by number.
    """
    sizes = [len(numbers) for _, numbers in tiles]
    state, begin = (np.repeat(column, sizes) for column in ([tile for tile, _ in tiles], np.cumsum([0, *sizes[:-1]])))
    numbers = np.concatenate([numbers for _, numbers in tiles])
    source, first = source[numbers], first[numbers]
    ends = (np.diff(state) != 0) | (np.diff(source) != 0) | (np.diff(first) != 1)
    at = np.append(0, np.flatnonzero(ends) + 1)
    elements = np.diff(np.append(at, len(numbers)))
    return np.stack([state[at], at - begin[at], source[at], first[at], elements], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class WaitingCores:
    """The gaps in the work of all cores. last: last turn of each step of the schedule, in order."""

    gaps: IdleGaps
    last: Ints
    arch: Target

    @classmethod
    def from_schedule(cls, schedule: Schedule, turns: GlobalOrder, arch: Target) -> "WaitingCores":
        """Finds the gaps of a schedule; none if its fetches are not those that its computes need."""
        problem = ScheduleProblem.from_graph(arch, schedule.placed, range(len(schedule.placed.cores)))
        order = np.array(schedule.order, np.int64)
        known = problem.fetched == schedule.fetches
        return cls(
            IdleGaps.from_order(problem.sample_work(), order) if known else IdleGaps(), turns.last_of_steps, arch
        )

    def choose_turns(self, core: Ints, state: Ints, elements: Ints, ready: Ints, ended: Ints) -> Ints:
        """Returns the turn after which each run of a cache gets its next value from another tile on its core.

        core: the core of each run. state, elements: its tile, and its number of elements. ready: turns after which a
        run may be written. ended: turns after which its core has no other work. Runs of one tile on one core stay
        together.
        """
        found = ended.copy()
        keys = core * (int(state.max(initial=0)) + 1) + state
        together = np.argsort(keys, kind="stable")
        groups = np.split(together, np.flatnonzero(np.diff(keys[together])) + 1)
        for runs in sorted(groups, key=lambda group: int(ready[group].max(initial=-1))):
            first = int(ready[runs].max())
            sizes = Counter[int](elements[runs].tolist())
            needed_ns = sum(count * (copy_ns(self.arch, size) + ISSUE_NS) for size, count in sizes.items())
            after = int(np.searchsorted(self.last, first))
            place = self.gaps.take_first(int(core[runs[0]]), after, needed_ns)
            if place is not None:
                found[runs] = max(first, int(self.last[place]))
        return found
