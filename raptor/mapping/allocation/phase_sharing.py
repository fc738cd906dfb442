"""Core sharing by phases: layers of different phases of a sample share cores.

A layer that reads a mean over a whole image, as in squeeze-and-excitation, waits for its last line. A model with such
barriers works in phases, and a sample is in one of them at a time. With cores of its own, a layer would be idle while
the sample is in other phases. So neighbouring phases form groups. A group has cores of its own, and each of its phases
may use all of them. Few groups are good for the latency; many for the interval, because more samples are in flight.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Generic, TypeVar

from raptor.graph.ir import Filter, Graph, Pool
from raptor.graph.layers import filter_key
from raptor.mapping.allocation.core_division import CoreDivision, plan_options
from raptor.mapping.modes.plan_choice import LayerPlan, PlacedPlan, front_within

T = TypeVar("T")

DIVISION_ROUNDS = 4
"""Number of times that cores are divided among the groups, each time in proportion to the previous times."""


def number_phases(graph: Graph) -> dict[str, int]:
    """Returns the phase of each layer, by key: the largest number of barriers on a path from an input to it."""
    before: dict[str, int] = {}
    found: dict[str, int] = {}
    for node in graph.nodes:
        number = max((before.get(name, 0) for name in node.inputs), default=0)
        if isinstance(node.operator, Filter):
            found[filter_key(node)] = number
        image = graph.tensors[node.inputs[0]].image if node.inputs else None
        waits = isinstance(node.operator, Pool) and graph.tensors[node.output].image.pixels == 1
        before[node.output] = number + (waits and image is not None and image.pixels > 1)
    return found


@dataclass(frozen=True, slots=True)
class PhaseGroup:
    """Neighbouring phases with cores of their own: estimated time of each phase in ns, and plans of all layers."""

    phases_ns: tuple[float, ...]
    placed: dict[str, PlacedPlan]

    @property
    def total_ns(self) -> float:
        """Time in ns for which a sample is in the group."""
        return sum(self.phases_ns)


@dataclass(frozen=True, slots=True)
class GroupedPhases(Generic[T]):
    """A choice of groups. rest: the layers that do not stream, on cores after the cores of the groups."""

    groups: tuple[PhaseGroup, ...]
    rest: T

    @property
    def latency_ns(self) -> float:
        """Estimated latency in ns: a sample passes through the phases one after another."""
        return sum(group.total_ns for group in self.groups)

    @property
    def interval_ns(self) -> float:
        """Estimated interval between samples in ns: the longest occupancy of a group."""
        return max(self.occupied_ns)

    @property
    def occupied_ns(self) -> tuple[float, ...]:
        """Estimated occupancy of each group by a sample, in ns: its phases, and the first phase of the next group."""
        then = (*(group.phases_ns[0] for group in self.groups[1:]), 0.0)
        return tuple(group.total_ns + more for group, more in zip(self.groups, then, strict=True))

    @property
    def placed(self) -> dict[str, PlacedPlan]:
        """The plans of all layers, with consecutive cores for the groups."""
        found: dict[str, PlacedPlan] = {}
        first = 0
        for group in self.groups:
            found |= {k: PlacedPlan(p.plan, tuple(core + first for core in p.cores)) for k, p in group.placed.items()}
            first = 1 + max(core for p in found.values() for core in p.cores)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PhaseSharing(Generic[T]):
    """Search for the groups of a model in phases.

    fronts: for each phase, the plans of its layers, from few cores to many. place: (group of each phase) -> the layers
    that do not stream, on cores, and their number of cores. cores, xbars: cores of the chip, and crossbars of a core.
    share: see `TuningKnobs`. known, limited: memos of `fit_phase` and `fronts_within`.
    """

    fronts: Sequence[Mapping[str, Sequence[LayerPlan]]]
    place: Callable[[Sequence[int]], tuple[T, int]]
    cores: int
    xbars: int
    share: float
    known: dict[tuple[int, int, int], dict[str, PlacedPlan] | None] = field(
        default_factory=dict[tuple[int, int, int], dict[str, PlacedPlan] | None]
    )
    limited: dict[tuple[int, int], dict[str, list[LayerPlan]]] = field(
        default_factory=dict[tuple[int, int], dict[str, list[LayerPlan]]]
    )

    def choices(self) -> Iterator[GroupedPhases[T]]:
        """Yields a choice for each number of groups below the number of phases, if the cores suffice."""
        for count in range(1, len(self.fronts)):
            found = self.make_groups(count)
            if found is not None:
                yield found

    def make_groups(self, count: int) -> GroupedPhases[T] | None:
        """Returns a choice of `count` groups that take about equally long; None if the cores do not suffice."""
        times = [self.phase_ns(phase, self.cores // count, self.xbars) for phase in range(len(self.fronts))]
        starts = [*_starts(times, count), len(times)]
        numbers = [sum(start <= phase for start in starts) - 1 for phase in range(len(times))]
        rest, used = self.place(numbers)
        ranges, free = [range(*ends) for ends in pairwise(starts)], self.cores - used
        weights, best = [1.0] * count, None
        for _ in range(DIVISION_ROUNDS):
            cores = divide_in_proportion(weights, free)
            groups = [self.group(phases, n) for phases, n in zip(ranges, cores, strict=True)]
            found = [group for group in groups if group is not None]
            if len(found) < count:
                return best
            choice = GroupedPhases(tuple(found), rest)
            if best is None or choice.interval_ns < best.interval_ns:
                best = choice
            weights = [n * ns for n, ns in zip(cores, choice.occupied_ns, strict=True)]
        return best

    def group(self, phases: range, cores: int) -> PhaseGroup | None:
        """Returns the group of some phases on `cores` cores; None if they do not suffice."""
        limit = self.xbars
        while limit:
            found = [self.fit_phase(phase, cores, limit) for phase in phases]
            chosen = [placed for placed in found if placed is not None]
            packed = _packed(chosen, cores, self.xbars) if len(chosen) == len(phases) else None
            if packed is not None:
                return PhaseGroup(tuple(map(_longest_ns, chosen)), packed)
            limit //= 2
        return None

    def phase_ns(self, phase: int, cores: int, limit: int) -> float:
        """Returns the estimated time in ns of a phase on `cores` cores; 0 if they do not suffice."""
        placed = self.fit_phase(phase, cores, limit)
        return 0.0 if placed is None else _longest_ns(placed)

    def fronts_within(self, phase: int, limit: int) -> dict[str, list[LayerPlan]]:
        """Returns, for each layer of a phase, its plans that need at most `limit` crossbars of a core."""
        if (phase, limit) not in self.limited:
            self.limited[phase, limit] = {k: front_within(plans, limit) for k, plans in self.fronts[phase].items()}
        return self.limited[phase, limit]

    def fit_phase(self, phase: int, cores: int, limit: int) -> dict[str, PlacedPlan] | None:
        """Returns plans for the layers of a phase on `cores` cores, with at most `limit` crossbars of each; or None."""
        key = phase, cores, limit
        if key not in self.known:
            fronts = self.fronts_within(phase, limit)
            fits = cores > 0 and all(fronts.values())
            division = CoreDivision.with_fewest_cores([plan_options(k, f) for k, f in fronts.items()] if fits else [])
            fits = fits and division.cores <= cores
            self.known[key] = division.grown(division.within(cores, self.share)).placed()[1] if fits else None
        return self.known[key]


def _longest_ns(placed: Mapping[str, PlacedPlan]) -> float:
    return max(p.plan.core_ns for p in placed.values())


def _starts(times: Sequence[float], count: int) -> list[int]:
    """Returns the starts of `count` groups of about equal total times; each has at least one element."""
    ends, total = list(accumulate(times)), sum(times)
    starts = [0]
    for i in range(1, count):
        middle = next(k for k, end in enumerate(ends) if end - times[k] / 2 >= total * i / count or k == len(times) - 1)
        starts.append(min(max(middle, starts[-1] + 1), len(times) - count + i))
    return starts


def divide_in_proportion(weights: Sequence[float], cores: int) -> list[int]:
    """Divides cores in proportion to weights."""
    ends = [int(cores * end / sum(weights)) for end in accumulate(weights)]
    return [b - a for a, b in pairwise([0, *ends])]


def _packed(phases: Sequence[Mapping[str, PlacedPlan]], cores: int, xbars: int) -> dict[str, PlacedPlan] | None:
    """Puts the layers of each phase on cores of the group, most crossbars where most are free; None if none fit.

    Layers of one phase have different cores.
    """
    used = [0] * cores
    found: dict[str, PlacedPlan] = {}
    for placed in phases:
        places = [(key, place) for key, p in placed.items() for place in range(len(p.cores))]
        places.sort(key=lambda at: -placed[at[0]].plan.xbars)
        where: dict[tuple[str, int], int] = {}
        for at, core in zip(places, sorted(range(cores), key=used.__getitem__), strict=False):
            where[at], used[core] = core, used[core] + placed[at[0]].plan.xbars
        found |= {k: PlacedPlan(p.plan, tuple(where[k, i] for i in range(len(p.cores)))) for k, p in placed.items()}
    return found if max(used) <= xbars else None
