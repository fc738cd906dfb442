"""Mapping strategies by name, as `--mapping` takes them (docs/developers/mapping.md)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision
from raptor.mapping.decision_search import search_rows
from raptor.mapping.evaluated_decisions import ComparedDecisions
from raptor.mapping.knobs import DEFAULT_KNOBS, TuningKnobs
from raptor.mapping.modes.plan_cache import PlanCache
from raptor.mapping.paces import Pace
from raptor.mapping.pixelwise_mapping import map_pixelwise
from raptor.mapping.reference_mapping import map_raptor
from raptor.mapping.row_mapping import map_rows
from raptor.target.arch import Target


@dataclass(frozen=True, slots=True)
class Strategy:
    """A mapping strategy.

    `place`: returns the decision about a graph after all rewrites, with a record for each of its layers; raises
    `CapacityError` if the chip is too small. `search`: returns a better decision by evaluating several, and
    those to compare when all computes are known; without a search, that of `place` stays. `streaming`: the graph gets
    the rewrites for streaming. `pace`: the timing profile for both and for the choices; None for the default of the
    graph and the chip. `fallback`: the strategy for a chip that is too small to stream any layer, for which `place`
    raises `NothingStreamsError`.
    """

    place: Callable[[Graph, Target, PlanCache], Decision]
    search: Callable[[Graph, Target, PlanCache], tuple[Decision, ComparedDecisions | None]] | None = None
    streaming: bool = False
    pace: Pace | None = "own"
    fallback: "Strategy | None" = None

    def at_pace(self, pace: Pace | None) -> "Strategy":
        """Returns the strategy with another pace."""
        return replace(self, pace=pace)

    def without_search(self) -> "Strategy":
        """Returns the strategy with its first decision: quicker, for estimates and for searches that simulate."""
        return replace(self, search=None)


RAPTOR = Strategy(lambda graph, arch, _: map_raptor(graph, arch))


def rows_strategy(knobs: TuningKnobs = DEFAULT_KNOBS) -> Strategy:
    """Returns the strategy `rows` with some knobs, and the chip's own times."""
    place, search = partial(map_rows, knobs=knobs), partial(search_rows, knobs=knobs)
    return Strategy(place, search, streaming=True, fallback=RAPTOR)


ROWS = rows_strategy()
"""The strategy `rows` with the chip's own times."""


STRATEGIES: dict[str, Strategy] = {
    "rows": ROWS.at_pace(None),
    "raptor": RAPTOR,
    "pixelwise": Strategy(lambda graph, arch, _: map_pixelwise(graph, arch)),
}
