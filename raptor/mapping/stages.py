"""Stages of a pipeline: a sequence of units is cut into few ranges, by dynamic programming."""

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

Range = Callable[[int, int], float]
"""A number for the units from one up to another (excluded)."""

Found = tuple[tuple[int, ...], float]
"""Begins of stages (without 0), and what they cost together."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Units to be cut into at most `stages` ranges, at some of the `cuts`.

    `cost`: infinite for units that are no stage. `least`: a lower bound of it that takes no time; it only grows with
    more units.
    """

    count: int
    cuts: Collection[int]
    stages: int
    cost: Range
    least: Range = lambda _, __: 0.0

    def evenly(self) -> float:
        """Returns what the dearest stage costs if the lower bound, or the units, are shared evenly."""
        ends, total = sorted(self.cuts), self.least(0, self.count)
        done: Callable[[int], float] = (lambda end: self.least(0, end)) if total else float
        shares = [(total or self.count) * number / self.stages for number in range(1, self.stages)]
        nearest = (min(ends, key=lambda end: abs(done(end) - share)) for share in shares if ends)
        begun = sorted({0, self.count, *nearest})
        return max(self.cost(a, b) for a, b in pairwise(begun))

    def slowest(self) -> Found | None:
        """Returns the stages of which the dearest costs least; None if there are none."""
        return self._cheapest(self.evenly(), self.least, self.cost, max)

    def fewest(self, crossing: Range, least: Range, limit: float) -> Found | None:
        """Returns the stages none of which costs more than `limit`, with the least sum of what crosses their begins.

        `crossing`: what the units from one up to another get from those before; `least`: a lower bound of it.
        """
        return self._cheapest(limit, least, crossing, operator.add)

    def _cheapest(
        self, limit: float, least: Range, value: Range, together: Callable[[float, float], float]
    ) -> Found | None:
        """Returns the stages whose values are least `together`, which grows with each. No stage costs over `limit`.

        What promises least goes on first (Dijkstra), and a stage is looked at only when its turn comes: by then few are
        left.
        """
        ends = [*sorted(self.cuts), self.count]
        promised: list[tuple[float, int, tuple[int, ...], float | None]] = [(0.0, 0, (0,), None)]
        done = set[tuple[int, int]]()
        while promised:
            total, used, begun, before = heappop(promised)
            first = begun[-1]
            if (used, first) in done:
                continue
            if before is not None:
                own = self.cost(begun[-2], first)
                if own <= limit and own < math.inf:
                    heappush(promised, (together(before, value(begun[-2], first)), used, begun, None))
                continue
            if first == self.count:
                return begun[1:-1], total
            done.add((used, first))
            left = self.stages - used - 1
            for last in ends[bisect_right(ends, first) :]:
                if self.least(first, last) > limit:
                    break
                if last == self.count or (left and self.least(last, self.count) <= limit * left):
                    heappush(promised, (together(total, least(first, last)), used + 1, (*begun, last), total))
        return None
