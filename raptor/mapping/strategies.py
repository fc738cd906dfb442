"""Mapping strategies by name, as `--mapping` takes them (docs/design.md)."""

from collections.abc import Callable

from raptor.graph.ir import Graph
from raptor.mapping.decision import Decision
from raptor.mapping.pixelwise import map_pixelwise
from raptor.mapping.reference import map_raptor
from raptor.mapping.rows import map_rows
from raptor.target.arch import Target

Strategy = Callable[[Graph, Target], Decision]

STRATEGIES: dict[str, Strategy] = {"rows": map_rows, "raptor": map_raptor, "pixelwise": map_pixelwise}
