"""Network tables, as pimsim-nn reads them: cost of a flit from one core to another, as time (ns) and energy (pJ).

The table of 4000 cores has 317 MB. So a file is decoded row by row, and a preset's table is computed pair by pair.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from raptor.common.errors import UserError
from raptor.target.arch import Target, mesh_pair_cost
from raptor.target.arch.flit_cost_table import COST_KINDS, CostKind, FlitCostFile


class NetworkTable(Protocol):
    """Cost of a flit. Cores are named by their numbers, as text, as in the file."""

    def cost(self, kind: CostKind, source: str, to: str) -> float | None:
        """Returns the cost in ns or pJ; None for a pair that the table lacks, which costs nothing in the simulator."""
        ...


class MeshTable:
    """The mesh table that RAPTOR writes for a chip, computed instead of read."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def cost(self, kind: CostKind, source: str, to: str) -> float | None:
        found = mesh_pair_cost(self._target, int(source), int(to))
        return None if found is None else found[COST_KINDS.index(kind)]


class FileTable:
    """A table from a file. Each row is decoded once if pairs are requested in the order of their sources."""

    def __init__(self, path: Path) -> None:
        """Raises `UserError` for a file that is not a table."""
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: not a regular file")
        try:
            content = path.read_bytes()
        except OSError as e:
            raise UserError(f"{path}: {e.strerror or e}") from e
        self._file = FlitCostFile(path, content)
        self._last: dict[CostKind, tuple[str, Mapping[str, object]]] = {}

    def cost(self, kind: CostKind, source: str, to: str) -> float | None:
        if kind not in self._last or self._last[kind][0] != source:
            self._last[kind] = source, self._file.row(kind, source)
        value = self._last[kind][1].get(to)
        if value is None:
            return None
        try:
            number = float(cast(Any, value))
        except (TypeError, ValueError):
            number = math.nan
        if not 0 <= number < math.inf:
            raise self._file.number_error(kind, source, to, value)
        return number
