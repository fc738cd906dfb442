"""Times at which cores wait, by an estimate for one sample: there they move rows of caches.

That work has no reader in the sample, or can begin before all other work. A list schedule would begin it whenever a
core is free, before work that others wait for.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from raptor.mapping.scheduling.schedule_kernel import Ints, SampleWork

Bools = npt.NDArray[np.bool_]

SLACK_NS = 3000.0
"""Time by which a gap must be longer than the work that is put into it: the times are estimates."""


@dataclass(slots=True)
class IdleGap:
    """A core waits from `start_ns` to `end_ns`, after step `after` of the order (-1: none) and before `before`."""

    after: int
    before: int
    start_ns: float
    end_ns: float

    def takes(self, needed_ns: float) -> bool:
        """Returns True if there is time for some work, which is used then."""
        fits = self.end_ns - self.start_ns >= needed_ns + SLACK_NS
        self.start_ns += needed_ns if fits else 0.0
        return fits


@dataclass(frozen=True, slots=True, eq=False)
class IdleGaps:
    """The gaps of each core, in order. What is put into a gap makes it shorter."""

    of_core: dict[int, list[IdleGap]] = field(default_factory=dict[int, list[IdleGap]])

    @classmethod
    def from_order(cls, work: "SampleWork", order: "Ints") -> "IdleGaps":
        """Finds the gaps of a sample whose steps are run in an order; `order` may leave some out."""
        from raptor.mapping.scheduling.schedule_kernel import idle_chip, run_in_order

        found = cls()
        ready_ns = np.zeros(len(work.core))
        run_in_order(ready_ns, idle_chip(work), work, order)
        asked_ns = np.where(work.peer >= 0, work.request_ns + work.grant_ns, 0.0)
        columns = work.core, work.peer, ready_ns, work.occupied_ns, asked_ns + work.sender_ns
        last: dict[int, tuple[int, float]] = {}  # by core: its last step so far, and the end of that
        rows = zip(*(column[order].tolist() for column in columns), strict=True)
        for place, (core, peer, ready, own_ns, peer_ns) in enumerate(rows):
            both = {core: own_ns} if peer < 0 else {core: own_ns, peer: peer_ns}
            start = max(ready, *(last.get(c, (-1, 0.0))[1] for c in both))
            for c, busy_ns in both.items():
                after, free = last.get(c, (-1, 0.0))
                if start > free:
                    found.of_core.setdefault(c, []).append(IdleGap(after, place, free, start))
                last[c] = place, start + busy_ns
        return found

    def take_first(self, core: int, after: int, needed_ns: float) -> int | None:
        """Returns the first step of the order, not before `after`, after which a core has time; None if there is none.

        That time is used then.
        """
        gaps = (gap for gap in self.of_core.get(core, []) if gap.before > after)
        return next((max(after, gap.after) for gap in gaps if gap.takes(needed_ns)), None)

    def take_last(self, core: int, before: int, needed_ns: float) -> int | None:
        """Returns the last step of the order after which a core has time before step `before`; None if there is none.

        That time is used then.
        """
        gaps = (gap for gap in reversed(self.of_core.get(core, [])) if gap.before <= before)
        return next((gap.after for gap in gaps if gap.takes(needed_ns)), None)


def delay_moves(work: "SampleWork", moves: Bools, order: "Ints") -> "Ints":
    """Returns the order with moves of states where their core waits: the last time before a step reads the result.

    Moves that no step reads come where their core waits first, or at the end. `moves`: True for moves of states.
    """
    late = moves[order]
    if not late.any():
        return order
    others = order[~late]
    place = np.full(len(order), len(others))
    place[others] = np.arange(len(others))
    gaps, after = IdleGaps.from_order(work, others), dict[int, list[int]]()
    for step in order[late].tolist():
        users = work.users[work.first_user[step] : work.first_user[step + 1]]
        reader = int(place[users].min(initial=len(others)))
        core, needed_ns = int(work.core[step]), float(work.occupied_ns[step])
        if reader < len(others):
            found = gaps.take_last(core, reader, needed_ns)
        else:
            found = gaps.take_first(core, -1, needed_ns)
        after.setdefault(reader - 1 if found is None else found, []).append(step)
    result = [*after.get(-1, [])]
    for k, step in enumerate(others.tolist()):
        result += [step, *after.get(k, [])]
    return np.array(result, np.int64)
