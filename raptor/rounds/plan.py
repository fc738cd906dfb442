"""The plan of rounds: where the model is cut, how many cores each round uses, and what the alternatives cost."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from raptor.common.errors import UserError
from raptor.common.option_values import Cuts
from raptor.common.spelling import option
from raptor.rounds.cuts import best_cuts, first_fit, one_by_one
from raptor.rounds.ranges import Ranges, Way

Found = tuple[tuple[int, ...], float] | None


_IN_WORDS: Mapping[Cuts, str] = {
    "best": "best cuts",
    "first-fit": "longest rounds first",
    "each-layer": "one layer a round",
}
"""Names of the cutting methods in the list of alternatives."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A cutting method, its number of rounds, and its estimated time of a batch; None if it finds no plan."""

    name: str
    rounds: int
    batch_ns: float | None


@dataclass(frozen=True, slots=True)
class Reason:
    """Estimated times of a batch with a cut (`apart_ns`) and without it (`joined_ns`; None if that does not fit)."""

    cut: int
    apart_ns: float
    joined_ns: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The chosen cuts and the configuration of each round (`ways`), with reasons and the results of other methods."""

    cuts: tuple[int, ...]
    ways: tuple[Way, ...]
    batch: int
    reasons: tuple[Reason, ...]
    alternatives: tuple[Alternative, ...]

    @property
    def batch_ns(self) -> float:
        return sum(way.batch_ns(self.batch) for way in self.ways)


@dataclass(frozen=True, slots=True)
class Memory:
    """Global memory for waiting tensors. `needed`: bytes per sample in a round. `limit_bytes`: None for no limit."""

    needed: Callable[[int, int], int]
    limit_bytes: int | None

    def fits(self, first: int, last: int, batch: int) -> bool:
        """True if the tensors that a round reads, makes or passes on fit in global memory for a batch."""
        return self.limit_bytes is None or batch * self.needed(first, last) <= self.limit_bytes


def plan_rounds(ranges: Ranges, cuts: Collection[int], batch: int, memory: Memory, method: Cuts = "best") -> Plan:
    """Returns the plan by a cutting method. Raises `UserError` with the layer or memory that makes it impossible."""
    count = len(ranges.units.nodes)

    def cost(first: int, last: int) -> float | None:
        way = ranges.way(first, last)
        if way is None:
            return None
        own = float(way.cells) if ranges.goal == "writes" else way.batch_ns(batch)
        return own if memory.fits(first, last, batch) else math.inf

    every: dict[Cuts, Found] = {
        "best": best_cuts(count, cuts, cost, ranges.least),
        "first-fit": first_fit(count, cuts, cost),
        "each-layer": one_by_one(count, cuts, cost),
    }
    found = every.pop(method)
    if found is None or math.isinf(found[1]):
        raise _no_plan_error(ranges, cuts, batch, memory)
    ways = _ways(ranges, found[0], count, batch)
    others = tuple(_alternative(_IN_WORDS[name], known, ranges, count, batch) for name, known in every.items())
    return Plan(found[0], ways, batch, tuple(_reasons(ranges, found[0], ways, batch)), others)


def _reasons(ranges: Ranges, cuts: tuple[int, ...], ways: tuple[Way, ...], batch: int) -> Iterator[Reason]:
    ends = (0, *cuts, len(ranges.units.nodes))
    for k, cut in enumerate(cuts):
        joined = ranges.way(ends[k], ends[k + 2])
        apart_ns = ways[k].batch_ns(batch) + ways[k + 1].batch_ns(batch)
        yield Reason(cut, apart_ns, None if joined is None else joined.batch_ns(batch))


def _ways(ranges: Ranges, cuts: tuple[int, ...], count: int, batch: int) -> tuple[Way, ...]:
    found = (ranges.way(a, b) for a, b in zip((0, *cuts), (*cuts, count), strict=True))
    return tuple(way for way in found if way is not None)


def _alternative(name: str, found: Found, ranges: Ranges, count: int, batch: int) -> Alternative:
    if found is None or math.isinf(found[1]):
        return Alternative(name, 0, None)
    ways = _ways(ranges, found[0], count, batch)
    return Alternative(name, len(ways), sum(way.batch_ns(batch) for way in ways))


def too_large(ranges: Ranges, cuts: Collection[int]) -> list[int]:
    """Returns the first unit of each shortest piece that does not fit the chip."""
    begun = [0, *sorted(cuts), len(ranges.units.nodes)]
    return [a for a, b in pairwise(begun) if not ranges.ways(a, b)]


def _no_plan_error(ranges: Ranges, cuts: Collection[int], batch: int, memory: Memory) -> UserError:
    """Makes the error that names the layer, or the global memory, which makes all plans impossible."""
    large = too_large(ranges, cuts)
    if large:
        levers = f"try {option('cores')} or {option('xbars_per_core')}"
        why = ranges.refusal(large[0]) or levers
        name, cores = ranges.units.name(large[0]), ranges.arch.core_count
        return UserError(f"{name}: too large for a round of its own on {cores} cores; {why}")
    begun = [0, *sorted(cuts), len(ranges.units.nodes)]
    needed = max(memory.needed(a, b) for a, b in pairwise(begun))
    limit = memory.limit_bytes or 0
    largest = limit // max(1, needed)
    advice = f"try {option('batch', largest)}, or a larger" if largest else "try a larger"
    return UserError(
        f"{option('batch', batch)}: the tensors that wait between rounds need {needed:,} bytes of global memory for a "
        f"sample, {batch * needed:,} for the batch; the chip has {limit:,}; {advice} global_memory_config.memory_size"
    )
