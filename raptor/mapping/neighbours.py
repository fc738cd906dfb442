"""Neighbouring layers on the same cores: a layer that reads another one works at nearly the same time as that one.

A layer may leave its cores idle: it has so few outputs that one core is more than it needs, or it needs many cores for
its crossbars. Two neighbours that share cores fill them, and are occupied by a sample hardly longer than one of them.
Distant layers would be: a core is occupied from its first work of a sample to its last.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from raptor.graph.ir import Filter, Graph
from raptor.graph.layers import filter_key
from raptor.mapping.plans import Placed, Plan, grow

WORTH_SHARING = 0.99
"""Time of the busiest core, relative to that without shared cores, from which on neighbours share: they wait more.

A DenseNet on 32 pixels and 500 cores, with 22 pairs for 0.1 %, had 5 % more time between samples.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """Plans of a layer, or of two that share cores, by their keys.

    `cores`: number of cores, of which a plan takes the first ones. `core_ns`: time that the busiest of them works for a
    sample.
    """

    cores: int
    core_ns: float
    plans: Mapping[str, Plan]


Fronts = Sequence[Sequence[Option]]
"""The options of each layer or pair, from few cores and slow to many and fast."""


@dataclass(frozen=True, slots=True)
class Division:
    """Cores of all layers: the options of each layer or pair, and the number of the one that is taken."""

    fronts: Fronts
    at: Sequence[int]

    @classmethod
    def apart(cls, fronts: Mapping[str, Sequence[Plan]], placed: Mapping[str, Placed]) -> "Division":
        """Makes the division in which each layer has cores of its own. `placed`: the plans that are taken."""
        options = [[_alone(key, plan) for plan in front] for key, front in fronts.items()]
        return cls(options, [[*front].index(placed[key].plan) for key, front in fronts.items()])

    @property
    def taken(self) -> list[Option]:
        """The options that are taken."""
        return [front[i] for front, i in zip(self.fronts, self.at, strict=True)]

    @property
    def cores(self) -> int:
        return sum(option.cores for option in self.taken)

    @property
    def slowest_ns(self) -> float:
        return max((option.core_ns for option in self.taken), default=0.0)

    def placed(self) -> dict[str, Placed]:
        """Gives each option cores of its own, one after another."""
        found: dict[str, Placed] = {}
        first = 0
        for option in self.taken:
            for key, plan in option.plans.items():
                found[key] = Placed(plan, tuple(range(first, first + plan.cores)))
            first += option.cores
        return found


def _alone(key: str, plan: Plan) -> Option:
    return Option(plan.cores, plan.core_ns, {key: plan})


def share_neighbours(
    graph: Graph, plans: Mapping[str, Sequence[Plan]], apart: Division, cores: int, xbars: int, factor: float
) -> Division:
    """Returns the division in which neighbours share cores, if the busiest core is then quicker by `WORTH_SHARING`.

    Of all limits for the working time of a core, the least is taken for which the layers fit on `cores` cores of
    `xbars` crossbars each. `apart`: without shared cores, which is returned if they are not worth it. `factor`: how
    much longer than its work a pair is taken to need, because its layers wait for others at different times.
    """
    keys = [next(iter(option.plans)) for option in apart.taken]
    read = layers_read(graph)
    pairs = {(a, b): _joined(a, b, plans, xbars, factor) for a, b in pairwise(keys) if a in read.get(b, ())}
    single = dict(zip(keys, apart.fronts, strict=True))
    fronts = (*single.values(), *pairs.values())
    most_ns = WORTH_SHARING * apart.slowest_ns
    limits = sorted({option.core_ns for front in fronts for option in front if option.core_ns <= most_ns})

    def fits(limit_ns: float) -> bool:
        found = _fewest(keys, single, pairs, limit_ns)
        return found is not None and found.cores <= cores

    i = bisect_left(limits, True, key=fits)
    found = _fewest(keys, single, pairs, limits[i]) if i < len(limits) else None
    if found is None:
        return apart
    return replace(found, at=grow(found.fronts, found.at, cores - found.cores))


def layers_read(graph: Graph) -> dict[str, frozenset[str]]:
    """Returns for each layer, by its key, the layers whose results it reads with no other layer in between."""
    makers: dict[str, frozenset[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for node in graph.nodes:
        read = frozenset[str]().union(*(makers.get(name, frozenset()) for name in node.inputs))
        if isinstance(node.operator, Filter):
            found[filter_key(node)], read = read, frozenset([filter_key(node)])
        makers[node.output] = read
    return found


def _joined(a: str, b: str, plans: Mapping[str, Sequence[Plan]], xbars: int, factor: float) -> list[Option]:
    """Returns the options of two layers on the same cores, each with one copy of its matrices."""
    found: dict[int, Option] = {}
    for first, second in product(_light(plans[a]), _light(plans[b])):
        cores, core_ns = max(first.cores, second.cores), factor * (first.core_ns + second.core_ns)
        quick = cores not in found or core_ns < found[cores].core_ns
        if quick and first.xbars + second.xbars <= xbars:
            found[cores] = Option(cores, core_ns, {a: _single(first), b: _single(second)})
    front: list[Option] = []
    for _, option in sorted(found.items()):
        if not front or option.core_ns < front[-1].core_ns:
            front.append(option)
    return front


def _light(plans: Sequence[Plan]) -> Iterator[Plan]:
    """Yields the plans that no other one of as many cores beats in both crossbars and time."""
    cores, least_ns = -1, 0.0
    for plan in sorted(plans, key=lambda p: (p.cores, p.xbars, p.core_ns)):
        if plan.cores != cores or plan.core_ns < least_ns:
            cores, least_ns = plan.cores, plan.core_ns
            yield plan


def _single(plan: Plan) -> Plan:
    return replace(plan, grid=replace(plan.grid, copies=1))


def _fewest(
    keys: Sequence[str],
    single: Mapping[str, Sequence[Option]],
    pairs: Mapping[tuple[str, str], Sequence[Option]],
    limit_ns: float,
) -> Division | None:
    """Returns the division with the fewest cores of which none works longer than a limit; None if there is none.

    By dynamic programming over the layers in their order: the last one is alone, or with the one before it.
    """
    best: list[tuple[int, tuple[tuple[Sequence[Option], int], ...]] | None] = [(0, ())]
    for i, key in enumerate(keys):
        ends = [(best[i], single[key])]
        if i and (keys[i - 1], key) in pairs:
            ends.append((best[i - 1], pairs[keys[i - 1], key]))
        found: list[tuple[int, tuple[tuple[Sequence[Option], int], ...]]] = []
        for before, front in ends:
            at = next((j for j, option in enumerate(front) if option.core_ns <= limit_ns), None)
            if before is not None and at is not None:
                found.append((before[0] + front[at].cores, (*before[1], (front, at))))
        best.append(min(found, key=lambda f: f[0], default=None))
    last = best[-1]
    return None if last is None else Division([front for front, _ in last[1]], [at for _, at in last[1]])
