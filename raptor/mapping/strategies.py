"""Mapping strategies by name, as `--mapping` takes them (docs/design.md)."""

from collections.abc import Callable
from dataclasses import replace

from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision
from raptor.mapping.knobs import DEFAULT, Knobs
from raptor.mapping.paces import paced, usual_pace
from raptor.mapping.pixelwise import map_pixelwise
from raptor.mapping.reference import map_raptor
from raptor.mapping.rows import map_rows
from raptor.target.arch import Target

Strategy = Callable[[Graph, Target], Decision]


def rows(graph: Graph, arch: Target, knobs: Knobs = DEFAULT) -> Decision:
    """Returns the decision of `map_rows`, by the usual pace for the graph and the chip.

    Raises `CapacityError` if the chip is too small.
    """
    pace = usual_pace(graph, arch)
    return replace(map_rows(graph, paced(arch, pace), knobs), pace=pace)


STRATEGIES: dict[str, Strategy] = {"rows": rows, "raptor": map_raptor, "pixelwise": map_pixelwise}
