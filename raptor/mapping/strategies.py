"""Mapping strategies by name, as `--mapping` takes them (docs/developers/design.md)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision
from raptor.mapping.knobs import DEFAULT, Knobs
from raptor.mapping.paces import Pace, paced, usual_pace
from raptor.mapping.pixelwise import map_pixelwise
from raptor.mapping.reference import map_raptor
from raptor.mapping.rows import map_rows
from raptor.target.arch import Target

Strategy = Callable[[Graph, Target], Decision]


def rows(graph: Graph, arch: Target, knobs: Knobs = DEFAULT) -> Decision:
    """Returns the decision of `map_rows`, by the usual pace for the graph and the chip.

    Raises `CapacityError` if the chip is too small.
    """
    return at_pace(usual_pace(graph, arch), partial(map_rows, knobs=knobs), graph, arch)


def at_pace(pace: Pace, strategy: Strategy, graph: Graph, arch: Target) -> Decision:
    """Returns the decision of a strategy by a pace. Raises `CapacityError` if the chip is too small."""
    return replace(strategy(graph, paced(arch, pace)), pace=pace)


STRATEGIES: dict[str, Strategy] = {"rows": rows, "raptor": map_raptor, "pixelwise": map_pixelwise}
