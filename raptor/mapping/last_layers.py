"""Fully connected layers at the end of a model share cores with the layers by line before them.

They need many crossbars and little time. On cores of their own, they take crossbars from layers that need time. So they
are spread over more cores, with fewer crossbars on each, and the last layers by line use what is left there. A core
that serves both is occupied by a sample from the first line of its layer by line to the last sum of the model: for the
time of the slowest layer, and for what the layers behind it are late. By that estimate, the choice is made.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from raptor.mapping.plans import Placed, Plan, choose, pareto

T = TypeVar("T")

STEPS = 16
"""Number of limits for the crossbars of a core that are tried."""

LINES_LATE = 2
"""Number of its lines by which a layer ends after the layer before it: a window of 3x3 waits for the next line."""


@dataclass(frozen=True, slots=True)
class Shared(Generic[T]):
    """A choice: the last layers, as `place` returns them, the first of their cores, and the plans of the others.

    end: the first core behind all of these. interval_ns: estimate of the time between samples.
    """

    last: T
    first: int
    end: int
    placed: dict[str, Placed]
    interval_ns: float


@dataclass(frozen=True, slots=True)
class LastLayers(Generic[T]):
    """A model whose last layers may share cores.

    plans: of each layer by line and each input, from the first to the last layer. lines: output lines of each layer.
    place: puts the last layers on cores numbered from 0, with a limit for the crossbars of a core, and returns them
    with the number of cores. least: the lowest limit. cores, xbars: cores for all of this, and crossbars of a core.
    share: see `Knobs`.
    """

    plans: Mapping[str, list[Plan]]
    lines: Mapping[str, int]
    place: Callable[[int], tuple[T, int]]
    least: int
    cores: int
    xbars: int
    share: float

    def best(self) -> Shared[T] | None:
        """Returns the choice with the least interval, the one with fewest shared layers of equal ones; None if none."""
        return min(self.choices(), key=lambda choice: choice.interval_ns, default=None)

    def choices(self) -> Iterator[Shared[T]]:
        """Yields choices: none shared, then some of the last layers by line on cores with so many crossbars left."""
        keys = list(self.lines)
        fronts = {key: pareto(found) for key, found in self.plans.items()}
        for step in range(STEPS, 0, -1):
            limit = self.xbars * step // STEPS
            if limit < self.least:
                return
            last, cores = self.place(limit)
            if cores > self.cores:
                return
            left = {key: self.within(key, self.xbars - limit) for key in keys} if step < STEPS else {}
            for count in range(len(keys) + 1):
                late = {key: left.get(key, []) for key in keys[len(keys) - count :]}
                if not all(late.values()):
                    break
                found = self.choice(fronts, late, last, cores)
                if found is not None:
                    yield found

    def within(self, key: str, xbars: int) -> list[Plan]:
        """Returns the best plans of a layer that need at most so many crossbars of a core."""
        return pareto(replace(p, grid=replace(p.grid, copies=1)) for p in self.plans[key] if p.xbars <= xbars)

    def choice(
        self, fronts: dict[str, list[Plan]], late: dict[str, list[Plan]], last: T, cores: int
    ) -> Shared[T] | None:
        """Returns the choice in which the layers `late` use the `cores` of the last layers; None if they do not fit."""
        early = {key: front for key, front in fronts.items() if key not in late}
        apart, together = choose(early, self.cores, cores, self.share), choose(late, cores, 0, 1.0)
        if apart is None or together is None:
            return None
        first = 1 + max((core for p in apart.values() for core in p.cores), default=-1)
        moved = {key: Placed(p.plan, tuple(core + first for core in p.cores)) for key, p in together.items()}
        placed = apart | moved
        slowest = max((p.plan.core_ns for p in placed.values()), default=0.0)
        behind = sum(LINES_LATE * p.plan.core_ns / self.lines[key] for key, p in moved.items())
        return Shared(last, first, first + cores, {key: placed[key] for key in fronts}, slowest + behind)
