"""Ways to compute a layer by line, and the cores for all layers where several have to share them.

Without sharing, the cores that a layer needs for its crossbars stand idle while other layers are the slow ones.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from raptor.mapping.decision import LineGrid

STEP = 1.02
"""Factor between the times that are tried."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to compute a layer, and what it costs.

    `xbars`: crossbars that each core of the grid needs at most, for each of the copies of its matrices. `core_ns`: what
    the busiest of them works for a sample.
    """

    grid: LineGrid
    xbars: int
    core_ns: float

    @property
    def cores(self) -> int:
        return self.grid.cores


@dataclass(frozen=True, slots=True)
class Placed:
    """A plan and its cores."""

    plan: Plan
    cores: tuple[int, ...]


def pareto(plans: Iterable[Plan]) -> list[Plan]:
    """Plans that no other beats in cores and time, from few cores to many."""
    front: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (p.cores, p.core_ns)):
        if not front or plan.core_ns < front[-1].core_ns:
            front.append(plan)
    return front


def in_order(plans: Mapping[str, Plan]) -> dict[str, Placed]:
    """Cores of their own for each plan, one after another."""
    ends = accumulate((plan.cores for plan in plans.values()), initial=0)
    return {
        key: Placed(plan, tuple(range(first, first + plan.cores)))
        for first, (key, plan) in zip(ends, plans.items(), strict=False)
    }


def share_cores(plans: Mapping[str, list[Plan]], cores: int, xbars: int) -> dict[str, Placed] | None:
    """A plan for each layer on cores of `xbars` crossbars, so that the busiest core has little to do.

    None where they do not fit. The times tried grow by `STEP`.
    """
    slowest = sum(max(p.core_ns for p in found) for found in plans.values())
    core_ns = max(1.0, sum(min(p.core_ns * p.cores for p in found) for found in plans.values()) / cores)
    while core_ns < slowest * STEP:
        for weigh in (_size, _rounded_size):
            placed = _pack(plans, _Limit(cores, xbars, core_ns), weigh)
            if placed is not None:
                return placed
        core_ns *= STEP
    return None


@dataclass(frozen=True, slots=True)
class _Limit:
    """How many cores there are, their crossbars, and how long each may work for a sample."""

    cores: int
    xbars: int
    core_ns: float


def _size(plan: Plan, limit: _Limit) -> float:
    """The part of a core that one of the plan's cores needs."""
    return max(plan.xbars / limit.xbars, plan.core_ns / limit.core_ns)


def _rounded_size(plan: Plan, limit: _Limit) -> float:
    """As if a core were shared by equals only, which shows what is left over."""
    return 1 / int(1 / _size(plan, limit))


@dataclass(slots=True)
class _Core:
    """What is free of a core, and the layers on it."""

    xbars: int
    free_ns: float
    layers: set[str] = field(default_factory=set[str])

    def takes(self, key: str, plan: Plan) -> bool:
        return key not in self.layers and plan.xbars <= self.xbars and plan.core_ns <= self.free_ns

    def take(self, key: str, plan: Plan) -> None:
        self.xbars -= plan.xbars
        self.free_ns -= plan.core_ns
        self.layers.add(key)


def _pack(
    plans: Mapping[str, list[Plan]], limit: _Limit, weigh: Callable[[Plan, _Limit], float]
) -> dict[str, Placed] | None:
    """First fit, the largest first: no core works longer than allowed, and none has two parts of one layer."""
    chosen: dict[str, Plan] = {}
    for key, found in plans.items():
        quick = [p for p in found if p.core_ns <= limit.core_ns]
        if not quick:
            return None
        chosen[key] = min(quick, key=lambda p: (p.cores * weigh(p, limit), p.cores, p.core_ns))
    bins: list[_Core] = []
    where: dict[str, tuple[int, ...]] = {}
    for key in sorted(chosen, key=lambda k: -_size(chosen[k], limit)):
        where[key] = tuple(_first_fit(bins, key, chosen[key], limit) for _ in range(chosen[key].cores))
    return _numbered(chosen, where) if len(bins) <= limit.cores else None


def _first_fit(bins: list[_Core], key: str, plan: Plan, limit: _Limit) -> int:
    i = next((i for i, core in enumerate(bins) if core.takes(key, plan)), len(bins))
    if i == len(bins):
        bins.append(_Core(limit.xbars, limit.core_ns))
    bins[i].take(key, plan)
    return i


def _numbered(chosen: Mapping[str, Plan], where: Mapping[str, tuple[int, ...]]) -> dict[str, Placed]:
    """Cores in the order of the first layers that they work for."""
    number: dict[int, int] = {}
    for key in chosen:
        for core in where[key]:
            number.setdefault(core, len(number))
    return {key: Placed(plan, tuple(number[c] for c in where[key])) for key, plan in chosen.items()}
