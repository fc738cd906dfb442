"""Plans of layers with line unfolding, and their Pareto fronts."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from raptor.mapping.decision import LineGrid


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One way to compute a layer line by line, with its cost.

    `xbars`: upper bound on the crossbars of a core of the grid, with one copy of each matrix. `work_ns`: work of the
    busiest core for a sample; `products_ns` of it are for MVMs, and `behind_ns` follow the last load. `port_ns`: time
    for which loads of inputs keep the port of global memory busy.
    """

    grid: LineGrid
    xbars: int
    work_ns: float
    products_ns: float = 0.0
    port_ns: float = 0.0
    behind_ns: float = 0.0

    @property
    def core_ns(self) -> float:
        """Time in ns of a sample: work of the busiest core, or loads at the port of global memory and work behind."""
        return max(self.work_ns, self.port_ns + self.behind_ns)

    @property
    def cores(self) -> int:
        return self.grid.cores

    def scaled(self, factor: float, grid: LineGrid) -> "LayerPlan":
        """Returns a plan with another grid, and `factor` times all work."""
        times_ns = self.work_ns, self.products_ns, self.port_ns, self.behind_ns
        return LayerPlan(grid, self.xbars, *(factor * ns for ns in times_ns))

    def with_one_copy(self) -> "LayerPlan":
        """Returns the plan with one copy of each matrix."""
        return replace(self, grid=replace(self.grid, copies=1))

    def on_first_cores(self) -> "PlacedPlan":
        """Places the plan on cores numbered from 0."""
        return PlacedPlan(self, tuple(range(self.cores)))

    def weighted(self, products: float, correction: float = 1.0) -> "LayerPlan":
        """Returns the plan with `products` times the work of MVMs, and then `correction` times all work.

        No correction shortens the time at the port, which follows from the sizes of the loads.
        """
        if products == correction == 1:
            return self
        work_ns = correction * (self.work_ns + (products - 1) * self.products_ns)
        products_ns, behind_ns = correction * products * self.products_ns, correction * self.behind_ns
        return replace(self, work_ns=work_ns, products_ns=products_ns, behind_ns=behind_ns)


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A plan, and the cores of its grid in order."""

    plan: LayerPlan
    cores: tuple[int, ...]

    def numbered_from(self, first: int) -> "PlacedPlan":
        """Returns the plan on cores whose numbers are larger by `first`."""
        return PlacedPlan(self.plan, tuple(first + core for core in self.cores))


def pareto_front(plans: Iterable[LayerPlan]) -> list[LayerPlan]:
    """Returns the Pareto front of plans in cores and time, from few cores to many."""
    front: list[LayerPlan] = []
    for plan in sorted(plans, key=lambda p: (p.cores, p.core_ns)):
        if not front or plan.core_ns < front[-1].core_ns:
            front.append(plan)
    return front


def front_within(plans: Iterable[LayerPlan], xbars: int) -> list[LayerPlan]:
    """Returns the Pareto front of plans that need at most `xbars` crossbars of a core, with one copy of each matrix."""
    return [plan.with_one_copy() for plan in pareto_front(plan for plan in plans if plan.xbars <= xbars)]
