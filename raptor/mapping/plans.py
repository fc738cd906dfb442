"""Plans to compute a layer by line, and the choice of plans for all layers, with cores of their own or shared ones.

Without sharing, cores that a layer needs only for its crossbars are idle while slower layers work.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from raptor.mapping.decision import LineGrid

STEP = 1.02
"""Factor from one time limit that `share_cores` tries to the next."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to compute a layer by line, and its cost.

    `xbars`: upper bound on the crossbars of a core of the grid, with one copy of each matrix. `core_ns`: time that the
    busiest core works for a sample.
    """

    grid: LineGrid
    xbars: int
    core_ns: float

    @property
    def cores(self) -> int:
        return self.grid.cores


@dataclass(frozen=True, slots=True)
class Placed:
    """A plan, and the cores of its grid in order."""

    plan: Plan
    cores: tuple[int, ...]


def pareto(plans: Iterable[Plan]) -> list[Plan]:
    """Returns the plans that no other plan beats in both cores and time, from few cores to many."""
    front: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (p.cores, p.core_ns)):
        if not front or plan.core_ns < front[-1].core_ns:
            front.append(plan)
    return front


def in_order(plans: Mapping[str, Plan]) -> dict[str, Placed]:
    """Gives each plan cores of its own, one plan after another."""
    ends = accumulate((plan.cores for plan in plans.values()), initial=0)
    return {
        key: Placed(plan, tuple(range(first, first + plan.cores)))
        for first, (key, plan) in zip(ends, plans.items(), strict=False)
    }


def choose(fronts: dict[str, list[Plan]], cores: int, used: int, share: float) -> dict[str, Placed] | None:
    """Chooses a plan for each layer: the slowest layer gets its next faster one, until the cores are used up.

    A layer for whose next plan too few cores are left keeps its plan, and the next slowest one goes on. `fronts`: the
    plans of each layer, from slow to fast. `used`: number of cores that other layers take. `share`: see `Knobs`.
    Returns None if too few cores are left.
    """
    at = dict.fromkeys(fronts, 0)
    free = cores - used - sum(front[0].cores for front in fronts.values())
    if free < 0:
        return None
    free -= int(min(free, cores * (1 - share)))
    growing = dict.fromkeys(fronts)
    while growing:
        slowest = max(growing, key=lambda k: fronts[k][at[k]].core_ns)
        front, i = fronts[slowest], at[slowest]
        if i + 1 == len(front) or front[i + 1].cores - front[i].cores > free:
            del growing[slowest]
            continue
        free -= front[i + 1].cores - front[i].cores
        at[slowest] += 1
    return in_order({key: front[at[key]] for key, front in fronts.items()})


def share_cores(plans: Mapping[str, list[Plan]], cores: int, xbars: int) -> dict[str, Placed] | None:
    """Chooses a plan for each layer on `cores` cores of `xbars` crossbars, so that the busiest core has little to do.

    Tries limits for the working time of a core, each `STEP` times the one before, and takes the first for which the
    layers fit. Returns None if they never do.
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
    """Limits of packing: number of cores, crossbars of a core, time in ns that a core may work for a sample."""

    cores: int
    xbars: int
    core_ns: float


def _size(plan: Plan, limit: _Limit) -> float:
    """Returns the part of a core that one place of the plan's grid needs."""
    return max(plan.xbars / limit.xbars, plan.core_ns / limit.core_ns)


def _rounded_size(plan: Plan, limit: _Limit) -> float:
    """Returns the part of a core if it is shared only by places of this size, so that the unused rest counts, too."""
    return 1 / int(1 / _size(plan, limit))


@dataclass(slots=True)
class _Core:
    """A core that is being filled: its free crossbars, its free time in ns, and the layers on it."""

    xbars: int
    free_ns: float
    layers: set[str] = field(default_factory=set[str])

    def takes(self, key: str, plan: Plan) -> bool:
        """Tells whether one more place of a plan fits; a core takes only one place of each layer."""
        return key not in self.layers and plan.xbars <= self.xbars and plan.core_ns <= self.free_ns

    def take(self, key: str, plan: Plan) -> None:
        """Takes the crossbars and the time of a place of a plan."""
        self.xbars -= plan.xbars
        self.free_ns -= plan.core_ns
        self.layers.add(key)


def _pack(
    plans: Mapping[str, list[Plan]], limit: _Limit, weigh: Callable[[Plan, _Limit], float]
) -> dict[str, Placed] | None:
    """Packs layers on cores by first fit, the largest layer first; None if they do not fit.

    No core works longer than allowed, and none has two parts of one layer. `weigh` gives the part of a core by which
    the plan of a layer is chosen.
    """
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
    """Puts a place of a plan on the first core that has room, or on a new one. Returns the core's number."""
    i = next((i for i, core in enumerate(bins) if core.takes(key, plan)), len(bins))
    if i == len(bins):
        bins.append(_Core(limit.xbars, limit.core_ns))
    bins[i].take(key, plan)
    return i


def _numbered(chosen: Mapping[str, Plan], where: Mapping[str, tuple[int, ...]]) -> dict[str, Placed]:
    """Numbers the cores in the order in which the layers use them."""
    number: dict[int, int] = {}
    for key in chosen:
        for core in where[key]:
            number.setdefault(core, len(number))
    return {key: Placed(plan, tuple(number[c] for c in where[key])) for key, plan in chosen.items()}
