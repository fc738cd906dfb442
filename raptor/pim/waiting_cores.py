"""When the rows of caches move: while their cores wait, or after all other work."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.pim.global_order import GlobalOrder
from raptor.spatial.placed_graph import Schedule
from raptor.spatial.scheduling.idle_gaps import IdleGaps
from raptor.spatial.scheduling.list_schedule import ScheduleProblem
from raptor.target.arch import Target
from raptor.target.timing import ISSUE_NS, copy_ns, message_ns

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

    def turns(self, sizes: Ints, core: Ints, home: Ints, state: Ints, ready: Ints, ended: Ints) -> Ints:
        """Returns the turn after which each run of a state gets its next value.

        sizes: bytes of each run. core, home: the core of the state, and the one of the next value. state: tile of the
        state; runs of one tile on one core stay together. ready, ended: turns after which the run may be written, and
        after which both cores have no other work.
        """
        found, at_core = ended.copy(), np.maximum(ready, -1)
        inside = home == core
        keys = np.where(inside, core * (int(state.max()) + 1) + state, -1 - np.arange(len(core)))
        for key in dict.fromkeys(keys[np.argsort(ready, kind="stable")].tolist()):
            runs = np.flatnonzero(keys == key)
            first, own = int(at_core[runs].max()), int(core[runs[0]])
            cores = (own,) if key >= 0 else (own, int(home[runs[0]]))
            cost = copy_ns if key >= 0 else message_ns
            each = (size // self.arch.element_bytes for size in sizes[runs].tolist())
            place = None
            if min(cores) >= 0:
                needed_ns = sum(cost(self.arch, elements) + ISSUE_NS for elements in each)
                place = self.gaps.take(cores, int(np.searchsorted(self.last, first)), needed_ns)
            if place is not None:
                found[runs] = max(first, int(self.last[place])) if place >= 0 else first
        return found
