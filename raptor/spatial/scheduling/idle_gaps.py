"""Times at which cores wait, by an estimate for one sample: there they move rows of caches.

That work has no reader in the sample, so a list schedule would begin it whenever a core is free, before work that others
wait for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from raptor.spatial.scheduling.list_schedule import ScheduleProblem

if TYPE_CHECKING:
    from raptor.mapping.scheduling.schedule_kernel import Ints

MARGIN = 2.0
"""Length of a gap for a piece of work, relative to the time of that work: times are estimates."""


@dataclass(slots=True)
class IdleGap:
    """A core waits from `start_ns` to `end_ns`, after step `after` of the order and before step `before`."""

    after: int
    before: int
    start_ns: float
    end_ns: float


@dataclass(slots=True, eq=False)
class IdleGaps:
    """The gaps of each core, in order. What is put into a gap makes it shorter."""

    of_core: dict[int, list[IdleGap]] = field(default_factory=dict[int, list[IdleGap]])

    @classmethod
    def from_order(cls, problem: ScheduleProblem, order: "Ints") -> "IdleGaps":
        """Finds the gaps of a sample whose steps are run in an order; `order` may leave some out."""
        from raptor.mapping.scheduling.schedule_kernel import idle_chip, run_in_order

        work, found = problem.work(), cls()
        ready_ns = np.zeros((1, len(work.core)))
        run_in_order(np.zeros(1), ready_ns, idle_chip(work, 1), work, order)
        asked_ns = np.where(work.peer >= 0, work.request_ns + work.grant_ns, 0.0)
        columns = (work.core, work.peer, ready_ns[0], work.occupied_ns, asked_ns + work.sender_ns)
        end: dict[int, tuple[int, float]] = {}
        for place, (core, peer, ready, own_ns, peer_ns) in enumerate(zip(*(c[order].tolist() for c in columns), strict=True)):
            both = (core,) if peer < 0 else (core, peer)
            start = max(ready, *(end.get(c, (-1, 0.0))[1] for c in both), 0.0)
            for c, busy_ns in zip(both, (own_ns, peer_ns), strict=False):
                after, free = end.get(c, (-1, 0.0))
                if start > free:
                    found.of_core.setdefault(c, []).append(IdleGap(after, place, free, start))
                end[c] = place, start + busy_ns
        return found

    def take(self, cores: Sequence[int], after: int, needed_ns: float) -> int | None:
        """Returns the step of the order after which all `cores` wait for long enough at once, and uses that time.

        It is the first such place not before step `after`; None if there is none.
        """
        first, *others = (self.of_core.get(core, []) for core in cores)
        for gap in first:
            if gap.before <= after or gap.end_ns - gap.start_ns < MARGIN * needed_ns:
                continue
            met = [gap, *(self._meeting(more, gap, after, MARGIN * needed_ns) for more in others)]
            chosen = [each for each in met if each is not None]
            if len(chosen) == len(met):
                start = max(each.start_ns for each in chosen)
                for each in chosen:
                    each.start_ns = start + needed_ns
                return max(after, *(each.after for each in chosen))
        return None

    def take_last(self, core: int, before: int, needed_ns: float) -> int | None:
        """Returns the last step of the order after which a core waits for long enough, and uses that time.

        The gap ends at step `before` of the order, or earlier. None if there is none.
        """
        for gap in reversed(self.of_core.get(core, [])):
            if gap.before <= before and gap.end_ns - gap.start_ns >= MARGIN * needed_ns:
                gap.start_ns += needed_ns
                return gap.after
        return None

    @staticmethod
    def _meeting(gaps: list[IdleGap], other: IdleGap, after: int, needed_ns: float) -> IdleGap | None:
        """Returns the gap that has enough time in common with another one, and steps of the order, too."""
        for gap in gaps:
            if gap.start_ns >= other.end_ns:
                return None
            common = min(gap.end_ns, other.end_ns) - max(gap.start_ns, other.start_ns)
            if common >= needed_ns and max(after, gap.after, other.after) < min(gap.before, other.before):
                return gap
        return None


def delay_moves(problem: ScheduleProblem, order: "Ints") -> "Ints":
    """Returns the order with moves of states where their core waits: the last time before a step reads the result.

    Moves that no step reads come where their core waits first, or at the end.
    """
    work, moves = problem.work(), problem.moves_state
    late = moves[order]
    if not late.any():
        return order
    others = order[~late]
    place = np.full(len(order), len(others))
    place[others] = np.arange(len(others))
    gaps, after = IdleGaps.from_order(problem, others), dict[int, list[int]]()
    first, users = work.first_user.tolist(), work.users
    for step in order[late].tolist():
        reader = int(place[users[first[step] : first[step + 1]]].min(initial=len(others)))
        core, needed_ns = int(work.core[step]), float(work.occupied_ns[step])
        if reader < len(others):
            found = gaps.take_last(core, reader, needed_ns)
        else:
            found = gaps.take([core], -1, needed_ns)
        after.setdefault(reader - 1 if found is None else found, []).append(step)
    result = [*after.get(-1, [])]
    for k, step in enumerate(others.tolist()):
        result += [step, *after.get(k, [])]
    return np.array(result, np.int64)
