"""Plans of layers with line unfolding, Pareto fronts, and a greedy choice in which each layer has its own cores."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

from raptor.mapping.decision import LineGrid


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One way to compute a layer line by line, with its cost.

    `xbars`: upper bound on the crossbars of a core of the grid, with one copy of each matrix. `core_ns`: work of the
    busiest core for a sample; `products_ns` of it are for MVMs.
    """

    grid: LineGrid
    xbars: int
    core_ns: float
    products_ns: float = 0.0

    @property
    def cores(self) -> int:
        return self.grid.cores

    def scaled(self, factor: float, grid: LineGrid) -> "LayerPlan":
        """Returns a plan with another grid, and `factor` times all work."""
        return LayerPlan(grid, self.xbars, factor * self.core_ns, factor * self.products_ns)

    def weighted(self, products: float, correction: float = 1.0) -> "LayerPlan":
        """Returns the plan with `products` times the work of MVMs, and then `correction` times all work."""
        if products == correction == 1:
            return self
        core_ns = correction * (self.core_ns + (products - 1) * self.products_ns)
        return LayerPlan(self.grid, self.xbars, core_ns, correction * products * self.products_ns)


class CoreChoice(Protocol):
    """A choice with a number of cores, and the work in ns of its busiest core for a sample."""

    @property
    def cores(self) -> int: ...

    @property
    def core_ns(self) -> float: ...


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A plan, and the cores of its grid in order."""

    plan: LayerPlan
    cores: tuple[int, ...]


def pareto_front(plans: Iterable[LayerPlan]) -> list[LayerPlan]:
    """Returns the Pareto front of plans in cores and time, from few cores to many."""
    front: list[LayerPlan] = []
    for plan in sorted(plans, key=lambda p: (p.cores, p.core_ns)):
        if not front or plan.core_ns < front[-1].core_ns:
            front.append(plan)
    return front


def front_within(plans: Iterable[LayerPlan], xbars: int) -> list[LayerPlan]:
    """Returns the Pareto front of plans that need at most `xbars` crossbars of a core, with one copy of each matrix."""
    front = pareto_front(plan for plan in plans if plan.xbars <= xbars)
    return [replace(plan, grid=replace(plan.grid, copies=1)) for plan in front]


def place_in_order(plans: Mapping[str, LayerPlan]) -> dict[str, PlacedPlan]:
    """Gives each plan consecutive cores of its own, from core 0."""
    ends = accumulate((plan.cores for plan in plans.values()), initial=0)
    return {
        key: PlacedPlan(plan, tuple(range(first, first + plan.cores)))
        for first, (key, plan) in zip(ends, plans.items(), strict=False)
    }


def choose_plans(
    fronts: dict[str, list[LayerPlan]], cores: int, used: int, share: float
) -> dict[str, PlacedPlan] | None:
    """Chooses a plan for each layer greedily: the slowest layer gets its next faster plan, until the cores are used up.

    See `grow_greedily`. `fronts`: plans of each layer, from slow to fast. `used`: cores that other layers take.
    `share`: see `TuningKnobs`. Returns None if not even the first plans fit."""
    free = cores - used - sum(front[0].cores for front in fronts.values())
    if free < 0:
        return None
    free -= int(min(free, cores * (1 - share)))
    at = grow_greedily([*fronts.values()], [0] * len(fronts), free)
    return place_in_order({key: front[i] for (key, front), i in zip(fronts.items(), at, strict=True)})


def grow_greedily(
    fronts: Sequence[Sequence[CoreChoice]], at: Sequence[int], free: int, *, all_of_them: bool = True
) -> list[int]:
    """Advances the slowest front to its next faster choice until the cores are used up. Returns an index per front.

    `at`: initial indices. `free`: spare cores. A front whose next choice needs too many cores keeps its choice, and
    others grow on, unless not `all_of_them` do.
    """
    found = [*at]
    growing = dict.fromkeys(range(len(fronts)))
    while growing:
        slowest = max(growing, key=lambda k: fronts[k][found[k]].core_ns)
        front, i = fronts[slowest], found[slowest]
        if i + 1 == len(front) or front[i + 1].cores - front[i].cores > free:
            if not all_of_them:
                break
            del growing[slowest]
            continue
        free -= front[i + 1].cores - front[i].cores
        found[slowest] += 1
    return found
