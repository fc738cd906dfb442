"""Core sharing at the tail: fully connected layers at the end of a model share cores with the streamed layers before.

They need many crossbars and little time. On cores of their own, they take crossbars from layers that need time. So they
are spread over more cores, with fewer crossbars on each, and the last streamed layers use the crossbars that are left
there. A core that serves both is occupied by a sample from the first line of its streamed layer to the last sum of the
model: for the time of the slowest layer, plus the delay of the layers after it. The choice minimises that estimate.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from raptor.mapping.modes.plan_choice import LayerPlan, PlacedPlan, choose_plans, front_within, pareto_front

T = TypeVar("T")

LIMIT_COUNT = 16
"""Number of limits on the crossbars of a core that are tried."""

LINE_DELAY = 2
"""Delay of a layer after the layer before it, in its own lines: a window of 3x3 waits for the next line."""


@dataclass(frozen=True, slots=True)
class TailChoice(Generic[T]):
    """A choice of shared cores.

    last: the last layers as `place` returns them, on cores from `first` to `end` (excluded). placed: plans of the other
    layers. interval_ns: estimated interval between samples.
    """

    last: T
    first: int
    end: int
    placed: dict[str, PlacedPlan]
    interval_ns: float


@dataclass(frozen=True, slots=True)
class TailSharing(Generic[T]):
    """Search for the cores of a model whose last layers may share them.

    plans: of each streamed layer and each input, in the order of the graph. lines: output lines of each layer. place:
    (limit on the crossbars of a core) -> the last layers on cores from 0, and the number of cores. least: the lowest
    limit. cores, xbars: available cores, and crossbars of a core. share: see `TuningKnobs`.
    """

    plans: Mapping[str, list[LayerPlan]]
    lines: Mapping[str, int]
    place: Callable[[int], tuple[T, int]]
    least: int
    cores: int
    xbars: int
    share: float

    def find_best(self) -> TailChoice[T] | None:
        """Returns the choice with the least interval (fewest shared layers on ties); None if there is none."""
        return min(self.choices(), key=lambda choice: choice.interval_ns, default=None)

    def choices(self) -> Iterator[TailChoice[T]]:
        """Yields choices: without sharing, then for each limit with ever more of the last streamed layers sharing."""
        keys = list(self.lines)
        fronts = {key: pareto_front(found) for key, found in self.plans.items()}
        for step in range(LIMIT_COUNT, 0, -1):
            limit = self.xbars * step // LIMIT_COUNT
            if limit < self.least:
                return
            last, cores = self.place(limit)
            if cores > self.cores:
                return
            left = (
                {key: front_within(self.plans[key], self.xbars - limit) for key in keys} if step < LIMIT_COUNT else {}
            )
            for count in range(len(keys) + 1):
                late = {key: left.get(key, []) for key in keys[len(keys) - count :]}
                if not all(late.values()):
                    break
                found = self.make_choice(fronts, late, last, cores)
                if found is not None:
                    yield found

    def make_choice(
        self, fronts: dict[str, list[LayerPlan]], late: dict[str, list[LayerPlan]], last: T, cores: int
    ) -> TailChoice[T] | None:
        """Returns the choice in which the layers `late` share the cores of the last layers; None if they do not fit."""
        early = {key: front for key, front in fronts.items() if key not in late}
        apart, together = choose_plans(early, self.cores, cores, self.share), choose_plans(late, cores, 0, 1.0)
        if apart is None or together is None:
            return None
        first = 1 + max((core for p in apart.values() for core in p.cores), default=-1)
        moved = {key: PlacedPlan(p.plan, tuple(core + first for core in p.cores)) for key, p in together.items()}
        placed = apart | moved
        slowest = max((p.plan.core_ns for p in placed.values()), default=0.0)
        behind = sum(LINE_DELAY * p.plan.core_ns / self.lines[key] for key, p in moved.items())
        return TailChoice(last, first, first + cores, {key: placed[key] for key in fronts}, slowest + behind)
