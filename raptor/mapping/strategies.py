"""Mapping strategies by name, as `--mapping` takes them (docs/developers/mapping.md)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision
from raptor.mapping.knobs import TuningKnobs
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
    `CapacityError` if the chip is too small. `streaming`: the graph gets the rewrites for streaming. `pace`: the timing
    profile for `place` and the choices; None for the default of the graph and the chip. `fallback`: the strategy for a
    chip that is too small to stream any layer, for which `place` raises `NothingStreamsError`.
    """

    place: Callable[[Graph, Target, PlanCache], Decision]
    streaming: bool = False
    pace: Pace | None = "own"
    fallback: "Strategy | None" = None

    def at_pace(self, pace: Pace | None) -> "Strategy":
        """Returns the strategy with another pace."""
        return replace(self, pace=pace)


RAPTOR = Strategy(lambda graph, arch, _: map_raptor(graph, arch))
ROWS = Strategy(map_rows, streaming=True, fallback=RAPTOR)
"""The strategy `rows` with the chip's own times."""


def rows_strategy(knobs: TuningKnobs) -> Strategy:
    """Returns the strategy `rows` with other knobs, and the chip's own times."""
    return replace(ROWS, place=partial(map_rows, knobs=knobs))


STRATEGIES: dict[str, Strategy] = {
    "rows": ROWS.at_pace(None),
    "raptor": RAPTOR,
    "pixelwise": Strategy(lambda graph, arch, _: map_pixelwise(graph, arch)),
}
