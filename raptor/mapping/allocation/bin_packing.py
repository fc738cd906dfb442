"""Bin packing: plans for all layers on shared cores, by first fit of the largest.

With cores of its own, a layer that needs them only for its crossbars leaves them idle while slower layers work.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from raptor.mapping.modes.plan_choice import LayerPlan, PlacedPlan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LIMIT_FACTOR = 1.02
"""Factor from one time limit that `pack_layers` tries to the next."""

_ROUNDING = 1 + 1e-9


def pack_layers(plans: Mapping[str, Sequence[LayerPlan]], cores: int, xbars: int) -> dict[str, PlacedPlan] | None:
    """Chooses plans for all layers on `cores` shared cores of `xbars` crossbars: the busiest core gets little work.

    Tries limits on the load of a core, each `LIMIT_FACTOR` times the one before, and takes the first with which the
    layers fit. Returns None if they never do. Layers that share cores have one copy of each matrix."""
    plans = {key: sorted(found, key=lambda plan: (plan.cores, plan.core_ns)) for key, found in plans.items()}
    table = _PlanTable.from_plans([*plans.values()])
    if table.least_xbars > cores * xbars:
        return None
    slowest_ns = sum(max(p.core_ns for p in found) for found in plans.values())
    core_ns = max(1.0, sum(min(p.core_ns * p.cores for p in found) for found in plans.values()) / cores)
    while core_ns < slowest_ns * LIMIT_FACTOR:
        limit = _Limit(cores, xbars, core_ns)
        for chosen in table.choices(limit):
            where = _pack(table, chosen, limit)
            if where is not None:
                found = {key: own[int(k)] for (key, own), k in zip(plans.items(), chosen, strict=True)}
                return _numbered(found, where)
        core_ns *= LIMIT_FACTOR
    return None


@dataclass(frozen=True, slots=True)
class _Limit:
    """Limits of packing: number of cores, crossbars of a core, load in ns of a core for a sample."""

    cores: int
    xbars: int
    core_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class _PlanTable:
    """Cores, crossbars and times of the plans of all layers: arrays [layers, most plans of a layer].

    Layers with fewer plans have further ones of infinite time.
    """

    cores: Ints
    xbars: Ints
    core_ns: Floats

    @classmethod
    def from_plans(cls, plans: Sequence[Sequence[LayerPlan]]) -> "_PlanTable":
        shape = len(plans), max(map(len, plans), default=0)
        cores, xbars, core_ns = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, np.inf)
        for row, found in enumerate(plans):
            for column, plan in enumerate(found):
                cores[row, column], xbars[row, column], core_ns[row, column] = plan.cores, plan.xbars, plan.core_ns
        return cls(cores, xbars, core_ns)

    @property
    def least_xbars(self) -> int:
        """Fewest crossbars that hold all layers."""
        held = np.where(np.isinf(self.core_ns), np.iinfo(np.int64).max, self.cores * self.xbars)
        return int(held.min(axis=1, initial=np.iinfo(np.int64).max).sum())

    def choices(self, limit: _Limit) -> Iterator[Ints]:
        """Yields selections of one plan per layer that need few cores; none if a layer has no plan within the limits.

        Each place of a plan uses a fraction of a core. The first selection minimises the sum of the fractions, the
        second counts the unused rest too, as if each core held only places of this size.
        """
        quick = (self.core_ns <= limit.core_ns) & (self.xbars <= limit.xbars)
        if not quick.any(axis=1).all():
            return
        size = np.where(quick, np.maximum(self.xbars / limit.xbars, self.core_ns / limit.core_ns), 1.0)
        for weight in (size, 1 / np.floor(1 / size)):
            yield np.where(quick, self.cores * weight, np.inf).argmin(axis=1)


def _pack(table: _PlanTable, chosen: Ints, limit: _Limit) -> list[list[int]] | None:
    """Packs layers on cores by first fit decreasing. Returns the cores of each layer; None if they do not fit.

    No core exceeds the limits, and none has two places of one layer.
    """
    rows = np.arange(len(chosen))
    cores, xbars, core_ns = table.cores[rows, chosen], table.xbars[rows, chosen], table.core_ns[rows, chosen]
    if cores @ xbars > limit.cores * limit.xbars or cores @ core_ns > limit.cores * limit.core_ns * _ROUNDING:
        return None
    largest = np.argsort(-np.maximum(xbars / limit.xbars, core_ns / limit.core_ns), kind="stable")
    where, free = [list[int]() for _ in rows], _Free(limit)
    for row, count, needed, ns in zip(*(a[largest].tolist() for a in (rows, cores, xbars, core_ns)), strict=True):
        where[row] = free.take(count, needed, ns)
    return where if len(free.xbars) <= limit.cores else None


@dataclass(frozen=True, slots=True)
class _Free:
    """Free crossbars and free time in ns of each core in use."""

    limit: _Limit
    xbars: list[int] = field(default_factory=list[int])
    ns: list[float] = field(default_factory=list[float])

    def take(self, count: int, xbars: int, ns: float) -> list[int]:
        """Takes room for `count` places of a plan on the first cores that have it, or new ones. Returns the cores."""
        taken, core = list[int](), 0
        while len(taken) < count:
            if core == len(self.xbars):
                self.xbars.append(self.limit.xbars)
                self.ns.append(self.limit.core_ns)
            if xbars <= self.xbars[core] and ns <= self.ns[core]:
                self.xbars[core] -= xbars
                self.ns[core] -= ns
                taken.append(core)
            core += 1
        return taken


def _numbered(chosen: Mapping[str, LayerPlan], where: Sequence[Sequence[int]]) -> dict[str, PlacedPlan]:
    """Renumbers the cores in the order in which the layers use them."""
    number: dict[int, int] = {}
    for core in chain.from_iterable(where):
        number.setdefault(core, len(number))
    return {
        key: PlacedPlan(plan.with_one_copy(), tuple(number[core] for core in cores))
        for (key, plan), cores in zip(chosen.items(), where, strict=True)
    }
