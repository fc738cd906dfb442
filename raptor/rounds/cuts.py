"""The best cuts of a sequence, by dynamic programming: optimal for the sum of the costs of the pieces."""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection
from heapq import heappop, heappush
from itertools import pairwise

Cost = Callable[[int, int], float | None]
"""Cost of the piece from one unit up to another (excluded); None if neither it nor any longer one is possible."""


_ROUNDING = 1 + 1e-9

Least = Callable[[int, int], float]
"""Lower bound of the cost of all pieces from one unit up to another, however they are cut."""


def best_cuts(
    count: int, cuts: Collection[int], cost: Cost, least: Least = lambda _, __: 0.0
) -> tuple[tuple[int, ...], float] | None:
    """Returns where pieces begin (without 0) and the sum of their costs, the least; of equal ones the fewest pieces.

    `count`: number of units. `cuts`: units at which a piece may begin. Returns None if no cut is possible. Begins of
    pieces are tried from the one that by `least` promises most (A*), so the others' O(count * m) costs are not asked
    for, m = most units of a possible piece.
    """
    ends = [*sorted(cuts), count]
    best: dict[int, tuple[float, int, tuple[int, ...]]] = {0: (0.0, 0, ())}
    open_ = [(least(0, count), 0)]
    tried = dict[int, tuple[float, int, tuple[int, ...]]]()
    while open_:
        promised, first = heappop(open_)
        if promised > best.get(count, (math.inf,))[0] * _ROUNDING:
            break
        total, pieces, begun = best[first]
        if first == count or tried.get(first) == best[first]:
            continue
        tried[first] = best[first]
        for last in ends[bisect_right(ends, first) :]:
            if total + least(first, last) > best.get(last, (math.inf,))[0]:
                continue
            own = cost(first, last)
            if own is None:
                break
            way = total + own, pieces + 1, (*begun, first) if first else ()
            if last not in best or way < best[last]:
                best[last] = way
                heappush(open_, (way[0] + least(last, count), last))
    return (best[count][2], best[count][0]) if count in best else None


def first_fit(count: int, cuts: Collection[int], cost: Cost) -> tuple[tuple[int, ...], float] | None:
    """Returns the cuts, and the sum of their costs, if each piece is as long as possible. None if that ends nowhere.

    A piece whose cost is infinite is not possible, but a longer one may be.
    """
    begun, total, first = list[int](), 0.0, 0
    while first < count:
        longest = None
        for last in range(first + 1, count + 1):
            own = cost(first, last)
            if own is None:
                break
            if (last == count or last in cuts) and not math.isinf(own):
                longest = last, own
        if longest is None:
            return None
        first, total = longest[0], total + longest[1]
        begun.append(first)
    return tuple(begun[:-1]), total


def one_by_one(count: int, cuts: Collection[int], cost: Cost) -> tuple[tuple[int, ...], float] | None:
    """Returns the cuts, and the sum of their costs, if each piece is as short as possible. None if one does not fit."""
    begun = [0, *sorted(cuts), count]
    own = [cost(a, b) for a, b in pairwise(begun)]
    known = [ns for ns in own if ns is not None]
    return None if len(known) < len(own) else (tuple(begun[1:-1]), sum(known))
