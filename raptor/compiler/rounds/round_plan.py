"""The plan of rounds: where the model is cut, how many cores each round uses, and what the alternatives cost."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from raptor.common.errors import UserError
from raptor.common.option_spelling import spell_option
from raptor.common.options.option_values import CutMethod
from raptor.compiler.rounds.range_estimate import RangeEstimates, RoundConfiguration
from raptor.compiler.rounds.segmentation import cut_everywhere, cut_greedily, find_best_cuts

FoundCuts = tuple[tuple[int, ...], float] | None


_IN_WORDS: Mapping[CutMethod, str] = {
    "best": "best cuts",
    "first-fit": "longest rounds first",
    "each-layer": "one layer a round",
}
"""Names of the cutting methods in the list of alternatives."""


@dataclass(frozen=True, slots=True)
class MethodResult:
    """A cutting method, its number of rounds, and its estimated time of a batch; None if it finds no plan."""

    name: str
    rounds: int
    batch_ns: float | None


@dataclass(frozen=True, slots=True)
class CutReason:
    """Estimated times of a batch with a cut (`apart_ns`) and without it (`joined_ns`; None if that does not fit)."""

    cut: int
    apart_ns: float
    joined_ns: float | None


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The chosen cuts and the configuration of each round (`ways`), with reasons and the results of other methods."""

    cuts: tuple[int, ...]
    ways: tuple[RoundConfiguration, ...]
    batch: int
    reasons: tuple[CutReason, ...]
    alternatives: tuple[MethodResult, ...]

    @property
    def batch_ns(self) -> float:
        return sum(way.batch_ns(self.batch) for way in self.ways)


@dataclass(frozen=True, slots=True)
class WaitingMemory:
    """Global memory for waiting tensors. `needed`: bytes per sample in a round. `limit_bytes`: None for no limit."""

    needed: Callable[[int, int], int]
    limit_bytes: int | None

    def fits(self, first: int, last: int, batch: int) -> bool:
        """True if the tensors that a round reads, makes or passes on fit in global memory for a batch."""
        return self.limit_bytes is None or batch * self.needed(first, last) <= self.limit_bytes


def plan_rounds(
    ranges: RangeEstimates, cuts: Collection[int], batch: int, memory: WaitingMemory, method: CutMethod = "best"
) -> RoundPlan:
    """Returns the plan by a cutting method. Raises `UserError` with the layer or memory that makes it impossible."""
    count = len(ranges.units.nodes)

    def cost(first: int, last: int) -> float | None:
        way = ranges.best_configuration(first, last)
        if way is None:
            return None
        own = float(way.cells) if ranges.goal == "writes" else way.batch_ns(batch)
        return own if memory.fits(first, last, batch) else math.inf

    every: dict[CutMethod, FoundCuts] = {
        "best": find_best_cuts(count, cuts, cost, ranges.least),
        "first-fit": cut_greedily(count, cuts, cost),
        "each-layer": cut_everywhere(count, cuts, cost),
    }
    found = every.pop(method)
    if found is None or math.isinf(found[1]):
        raise _no_plan_error(ranges, cuts, batch, memory)
    ways = _ways(ranges, found[0], count, batch)
    others = tuple(_alternative(_IN_WORDS[name], known, ranges, count, batch) for name, known in every.items())
    return RoundPlan(found[0], ways, batch, tuple(_reasons(ranges, found[0], ways, batch)), others)


def _reasons(
    ranges: RangeEstimates, cuts: tuple[int, ...], ways: tuple[RoundConfiguration, ...], batch: int
) -> Iterator[CutReason]:
    ends = (0, *cuts, len(ranges.units.nodes))
    for k, cut in enumerate(cuts):
        joined = ranges.best_configuration(ends[k], ends[k + 2])
        apart_ns = ways[k].batch_ns(batch) + ways[k + 1].batch_ns(batch)
        yield CutReason(cut, apart_ns, None if joined is None else joined.batch_ns(batch))


def _ways(ranges: RangeEstimates, cuts: tuple[int, ...], count: int, batch: int) -> tuple[RoundConfiguration, ...]:
    found = (ranges.best_configuration(a, b) for a, b in zip((0, *cuts), (*cuts, count), strict=True))
    return tuple(way for way in found if way is not None)


def _alternative(name: str, found: FoundCuts, ranges: RangeEstimates, count: int, batch: int) -> MethodResult:
    if found is None or math.isinf(found[1]):
        return MethodResult(name, 0, None)
    ways = _ways(ranges, found[0], count, batch)
    return MethodResult(name, len(ways), sum(way.batch_ns(batch) for way in ways))


def find_too_large(ranges: RangeEstimates, cuts: Collection[int]) -> list[int]:
    """Returns the first unit of each shortest piece that does not fit the chip."""
    begun = [0, *sorted(cuts), len(ranges.units.nodes)]
    return [a for a, b in pairwise(begun) if not ranges.configurations(a, b)]


def _no_plan_error(ranges: RangeEstimates, cuts: Collection[int], batch: int, memory: WaitingMemory) -> UserError:
    """Makes the error that names the layer, or the global memory, which makes all plans impossible."""
    large = find_too_large(ranges, cuts)
    if large:
        levers = f"try {spell_option('cores')} or {spell_option('xbars_per_core')}"
        why = ranges.refusal(large[0]) or levers
        name, cores = ranges.units.unit_name(large[0]), ranges.arch.core_count
        return UserError(f"{name}: too large for a round of its own on {cores} cores; {why}")
    begun = [0, *sorted(cuts), len(ranges.units.nodes)]
    needed = max(memory.needed(a, b) for a, b in pairwise(begun))
    limit = memory.limit_bytes or 0
    largest = limit // max(1, needed)
    advice = f"try {spell_option('batch', largest)}, or a larger" if largest else "try a larger"
    return UserError(
        f"{spell_option('batch', batch)}: the tensors that wait between rounds need {needed:,} bytes of "
        f"global memory for a sample, {batch * needed:,} for the batch; the chip has {limit:,}; "
        f"{advice} global_memory_config.memory_size"
    )
