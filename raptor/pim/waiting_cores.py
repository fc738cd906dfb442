"""When the rows of caches move: while their core waits, or after all other work."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.pim.global_order import GlobalOrder
from raptor.spatial.placed_graph import Schedule
from raptor.spatial.scheduling.idle_gaps import IdleGaps
from raptor.spatial.scheduling.list_schedule import ScheduleProblem
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, copy_ns

Ints = npt.NDArray[np.int64]


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
        return cls(IdleGaps.from_order(problem, order) if known else IdleGaps(), turns.last_of_steps, arch)

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
            first, sizes = int(ready[runs].max()), elements[runs].tolist()
            needed_ns = sum(copy_ns(self.arch, size) + ISSUE_NS for size in sizes)
            after = int(np.searchsorted(self.last, first))
            place = self.gaps.take_first(int(core[runs[0]]), after, needed_ns)
            if place is not None:
                found[runs] = max(first, int(self.last[place]))
        return found
