"""Minimum-cost cuts of a sequence of units into at most a given number of stages, by uniform-cost search."""

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

RangeValue = Callable[[int, int], float]
"""(first, last) -> value of the units from `first` to `last` (excluded)."""

StageCuts = tuple[tuple[int, ...], float]
"""Begins of the stages (without 0), and their combined cost."""


@dataclass(frozen=True, slots=True)
class StageProblem:
    """`count` units to be cut into at most `stages` stages, at some of the `cuts`.

    `cost`: cost of a stage; infinite if it is impossible. `least`: a cheap lower bound of the cost, monotone in the
    range.
    """

    count: int
    cuts: Collection[int]
    stages: int
    cost: RangeValue
    least: RangeValue = lambda _, __: 0.0

    def even_cost(self) -> float:
        """Returns the cost of the dearest stage if the lower bound, or else the number of units, is divided evenly."""
        ends, total = sorted(self.cuts), self.least(0, self.count)
        done: Callable[[int], float] = (lambda end: self.least(0, end)) if total else float
        shares = [(total or self.count) * number / self.stages for number in range(1, self.stages)]
        nearest = (min(ends, key=lambda end: abs(done(end) - share)) for share in shares if ends)
        begun = sorted({0, self.count, *nearest})
        return max(self.cost(a, b) for a, b in pairwise(begun))

    def minimise_slowest(self) -> StageCuts | None:
        """Returns the stages that minimise the largest cost; None if there are none."""
        return self._cheapest(self.even_cost(), self.least, self.cost, max)

    def minimise_traffic(self, crossing: RangeValue, least: RangeValue, limit: float) -> StageCuts | None:
        """Returns the stages that cost at most `limit` each and have the least traffic between them; None if none.

        `crossing`: traffic into a stage from the units before it; `least`: a lower bound of it.
        """
        return self._cheapest(limit, least, crossing, operator.add)

    def _cheapest(
        self, limit: float, least: RangeValue, value: RangeValue, together: Callable[[float, float], float]
    ) -> StageCuts | None:
        """Uniform-cost search (Dijkstra) over cuts. Returns the stages with the least combined value; None if none fit.

        `together`: monotone combiner of values (max or +). No stage may cost more than `limit`. A stage is evaluated
        only when it is the most promising one, so few are.
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
