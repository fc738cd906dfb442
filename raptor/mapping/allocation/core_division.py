"""Division of the cores of a chip among units: layers by line, inputs, and neighbourhoods of layers that do not stream.

Each unit has a front of options, from few cores (slow) to many (fast). Every unit begins with its fewest cores; then
the slowest one gets its next option, until the cores are used up.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from raptor.mapping.decision import DotGrid, FullyConnected, KernelUnfolding, renumber_record
from raptor.mapping.modes.plan_choice import LayerPlan, PlacedPlan

WholeLayer = KernelUnfolding | FullyConnected
UnitRecord = WholeLayer | DotGrid


@dataclass(frozen=True, slots=True)
class CoreOption:
    """One way to compute a unit: a layer by line, two that share cores, an input, or layers that do not stream.

    `cores`: number of cores. `core_ns`: work of the busiest core for a sample. `plans`: of layers by line and inputs,
    by key, and `whole`: layers that do not stream, or a product of two computed tensors; both on cores numbered from 0.
    Without either, the cores are left for relays.
    """

    cores: int
    core_ns: float
    plans: Mapping[str, PlacedPlan] = field(default_factory=dict[str, PlacedPlan])
    whole: Mapping[str, UnitRecord] = field(default_factory=dict[str, UnitRecord])


def select_whole_layers(records: Mapping[str, UnitRecord]) -> dict[str, WholeLayer]:
    """Returns the records of layers that do not stream, without those of products of two computed tensors."""
    return {key: record for key, record in records.items() if not isinstance(record, DotGrid)}


OptionFronts = Sequence[Sequence[CoreOption]]
"""Pareto front of options for each unit, from few cores (slow) to many (fast)."""


@dataclass(frozen=True, slots=True)
class CoreDivision:
    """Division of the cores among units: a front for each unit, and the index of the option taken (`at`)."""

    fronts: OptionFronts
    at: Sequence[int]

    @classmethod
    def with_fewest_cores(cls, fronts: OptionFronts) -> "CoreDivision":
        """Makes the division in which each unit has its first option."""
        return cls(fronts, [0] * len(fronts))

    @property
    def chosen_options(self) -> list[CoreOption]:
        """The option taken for each unit."""
        return [front[i] for front, i in zip(self.fronts, self.at, strict=True)]

    @property
    def cores(self) -> int:
        return sum(option.cores for option in self.chosen_options)

    @property
    def slowest_ns(self) -> float:
        return max((option.core_ns for option in self.chosen_options), default=0.0)

    def within(self, cores: int, share: float) -> int:
        """Returns how many of `cores` cores the units may have: a `share` of them, and their fewest at least."""
        return max(self.cores, cores - int(cores * (1 - share)))

    def grown(self, cores: int) -> "CoreDivision":
        """Returns the division after the slowest units got their next options, until `cores` cores are used up.

        A unit whose next option needs too many cores keeps its option.
        """
        at, free = [*self.at], cores - self.cores
        growing = dict.fromkeys(range(len(at)))
        while growing:
            slowest = max(growing, key=lambda k: self.fronts[k][at[k]].core_ns)
            front, i = self.fronts[slowest], at[slowest]
            if i + 1 == len(front) or front[i + 1].cores - front[i].cores > free:
                del growing[slowest]
                continue
            free -= front[i + 1].cores - front[i].cores
            at[slowest] += 1
        return replace(self, at=at)

    def with_faster_unit(self) -> "CoreDivision | None":
        """Returns the division in which the slowest unit that has a next option has it; None if no unit has one."""
        growing = [k for k, i in enumerate(self.at) if i + 1 < len(self.fronts[k])]
        slowest = max(growing, key=lambda k: self.fronts[k][self.at[k]].core_ns, default=None)
        return None if slowest is None else replace(self, at=[i + (k == slowest) for k, i in enumerate(self.at)])

    def placed(self) -> tuple[dict[str, UnitRecord], dict[str, PlacedPlan]]:
        """Gives each option cores of its own, one after another. Returns `whole` of all, and plans."""
        whole, placed = dict[str, UnitRecord](), dict[str, PlacedPlan]()
        first = 0
        for option in self.chosen_options:
            placed |= {key: plan.numbered_from(first) for key, plan in option.plans.items()}
            whole |= {key: renumber_record(layer, first.__add__) for key, layer in option.whole.items()}
            first += option.cores
        return whole, placed


def plan_options(key: str, front: Iterable[LayerPlan]) -> list[CoreOption]:
    """Returns the options of a layer by line or an input, from its plans."""
    return [CoreOption(plan.cores, plan.core_ns, {key: plan.on_first_cores()}) for plan in front]
