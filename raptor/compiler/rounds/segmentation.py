"""Minimum-cost segmentation of a sequence, where the cost is the sum over the pieces."""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection
from heapq import heappop, heappush
from itertools import pairwise

PieceCost = Callable[[int, int], float | None]
"""Cost of a piece from one unit to another (excluded); None if neither it nor any longer piece is possible."""


_ROUNDING = 1 + 1e-9

PieceBound = Callable[[int, int], float]
"""Lower bound of the total cost from one unit to another (excluded), however it is cut."""


def find_best_cuts(
    count: int, cuts: Collection[int], cost: PieceCost, least: PieceBound = lambda _, __: 0.0
) -> tuple[tuple[int, ...], float] | None:
    """Returns the cuts (without 0) of least total cost, and that cost; of equal ones, the fewest pieces.

    `count`: number of units. `cuts`: units at which a piece may begin. `least`: a lower bound. Returns None if no
    segmentation is possible. The search is A* over the begins of pieces, so it evaluates far fewer than all O(count *
    m) pieces, where m is the length of the longest possible piece.
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


def cut_greedily(count: int, cuts: Collection[int], cost: PieceCost) -> tuple[tuple[int, ...], float] | None:
    """Cuts greedily: each piece is as long as possible. Returns the cuts and their total cost; None if it gets stuck.

    An infinite cost forbids a piece, but not a longer one.
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


def cut_everywhere(count: int, cuts: Collection[int], cost: PieceCost) -> tuple[tuple[int, ...], float] | None:
    """Cuts wherever possible. Returns the cuts and their total cost; None if a piece does not fit."""
    begun = [0, *sorted(cuts), count]
    own = [cost(a, b) for a, b in pairwise(begun)]
    known = [ns for ns in own if ns is not None]
    return None if len(known) < len(own) else (tuple(begun[1:-1]), sum(known))
