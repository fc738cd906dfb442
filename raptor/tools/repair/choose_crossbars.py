"""Chooses the physical crossbars of a core, and the spare columns of each, for the matrices of the core."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.target.chip_file import Chip, ChipSize
from raptor.tools.repair.closest_values import Bytes, ClosestValues, Ints
from raptor.tools.repair.repair_matrix import RepairedMatrix, RepairMethod, estimate_errors, repair_matrix
from validator.crossbar.cell_layout import CellLayout

K = TypeVar("K", bound=Hashable)
_MOST_TRIALS = 64
"""Most pairs of a matrix and a crossbar that are tried in a core, unless it has more matrices than that."""
_TRIED_COLUMNS = 4
"""Columns with the largest errors that are tried with a spare one."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CrossbarPart:
    """The columns of a matrix [rows, cols] that are in one crossbar. `layer`: its ONNX node."""

    matrix: Ints
    tables: ClosestValues
    layer: str


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPart:
    """A part in a physical crossbar. `lines` [cols, slices]: columns of cells."""

    crossbar: int
    lines: Ints
    repaired: RepairedMatrix


def place_parts(core: int, parts: Sequence[CrossbarPart], chip: Chip, method: RepairMethod) -> list[PlacedPart]:
    """Returns a crossbar of its own for each part of a core, so that the sum of squared errors is the least.

    Without `method.crossbars`, parts take the working crossbars in order. Raises `UserError` if there are too few.
    """
    working = chip.list_crossbars(core)
    if len(working) < len(parts):
        found = "is dead" if core in chip.dead_cores else f"has {len(working)} working crossbars"
        raise UserError(
            f"core {core} {found}, but the program uses {len(parts)} of it ({parts[0].layer}); compile the model with "
            "--chip, which avoids what is dead"
        )
    tried = working[: max(len(parts), _MOST_TRIALS // len(parts)) if method.crossbars else len(parts)]
    cells = _CoreCells(core, tried, chip)
    if not method.crossbars:
        return _repair_parts(parts, range(len(parts)), cells, method)
    return _repair_parts(parts, assign_rows(_try_crossbars(parts, cells)), cells, method)


class _CoreCells:
    """The cells of some crossbars of a core. `states` [arrays, crossbars, rows, columns with spares]."""

    def __init__(self, core: int, crossbars: Sequence[int], chip: Chip) -> None:
        arrays = range(chip.size.arrays)
        self.crossbars, self.size = crossbars, chip.size
        self.states = np.stack([np.stack([chip.read_states(core, k, array) for k in crossbars]) for array in arrays])
        self._codes: dict[ClosestValues, Ints] = {}

    def own_states(self, layout: CellLayout) -> Bytes:
        """Returns states [arrays, crossbars, rows, columns of weights, slices], without spare columns."""
        width = self.size.columns // layout.slices
        own = self.states[: layout.arrays, :, :, : width * layout.slices]
        return own.reshape(*own.shape[:3], width, layout.slices)

    def make_codes(self, tables: ClosestValues) -> Ints:
        """Returns the sets of stuck cells, [crossbars, rows, columns of weights]."""
        if tables not in self._codes:
            arrays, crossbars, rows, cols, slices = (states := self.own_states(tables.layout)).shape
            codes = tables.make_codes(states.reshape(arrays, crossbars * rows, cols, slices))
            self._codes[tables] = codes.reshape(crossbars, rows, cols)
        return self._codes[tables]


def _try_crossbars(parts: Sequence[CrossbarPart], cells: _CoreCells) -> Floats:
    """Returns the error of each part in each crossbar, [parts, crossbars], without spare columns."""
    costs = np.zeros((len(parts), len(cells.crossbars)))
    for tables, numbers in _group(part.tables for part in parts).items():
        costs[numbers] = estimate_errors([parts[k].matrix for k in numbers], cells.make_codes(tables), tables)
    return costs


def _group(keys: Iterable[K]) -> dict[K, list[int]]:
    """Returns the indices of each key."""
    found: dict[K, list[int]] = {}
    for k, key in enumerate(keys):
        found.setdefault(key, []).append(k)
    return found


def _repair_parts(
    parts: Sequence[CrossbarPart], chosen: Sequence[int], cells: _CoreCells, method: RepairMethod
) -> list[PlacedPart]:
    """Returns the parts in the chosen crossbars of `cells`. Parts of one height are repaired side by side."""
    placed: dict[int, PlacedPart] = {}
    for (tables, rows), numbers in _group((part.tables, len(part.matrix)) for part in parts).items():
        layout, codes = tables.layout, cells.make_codes(tables)
        own = cells.own_states(layout)
        widths = [parts[i].matrix.shape[1] for i in numbers]
        wide = repair_matrix(
            np.concatenate([parts[i].matrix for i in numbers], axis=1),
            np.concatenate([own[:, chosen[i], :rows, :cols] for i, cols in zip(numbers, widths, strict=True)], axis=2),
            tables,
            method,
            np.concatenate([codes[chosen[i], :rows, :cols] for i, cols in zip(numbers, widths, strict=True)], axis=1),
        )
        end = 0
        for i, cols in zip(numbers, widths, strict=True):
            start, end = end, end + cols
            lines = np.arange(cols * layout.slices, dtype=np.int64).reshape(-1, layout.slices)
            made = PlacedPart(cells.crossbars[chosen[i]], lines, wide.take(slice(start, end)))
            placed[i] = _with_spares(
                parts[i], made, cells.states[: layout.arrays, chosen[i], :rows], cells.size, method
            )
    return [placed[i] for i in range(len(parts))]


def _with_spares(
    part: CrossbarPart, placed: PlacedPart, every: Bytes, size: ChipSize, method: RepairMethod
) -> PlacedPart:
    """Returns a part with the spare columns that help it. `every`: states [arrays, rows, columns with spares]."""
    if not (method.crossbars and size.spare_columns and placed.repaired.errors.any()):
        return placed
    lines = placed.lines.copy()
    _use_spares(part, every, lines, placed.repaired.errors.copy(), size, method)
    return replace(placed, lines=lines, repaired=repair_matrix(part.matrix, every[:, :, lines], part.tables, method))


def _use_spares(
    part: CrossbarPart, every: Bytes, lines: Ints, errors: Floats, size: ChipSize, method: RepairMethod
) -> None:
    """Puts each spare column of cells in the place where it helps most, among the columns with the largest errors.

    `lines` and `errors` are changed.
    """
    for spare in range(size.columns, size.all_columns):
        best = (0.0, 0, 0)
        for col in np.argsort(-errors, kind="stable")[:_TRIED_COLUMNS].tolist():
            for k in range(part.tables.layout.slices):
                if lines[col, k] >= size.columns:
                    continue
                chosen = lines[col].copy()
                chosen[k] = spare
                tried = repair_matrix(part.matrix[:, [col]], every[:, :, chosen[None]], part.tables, method)
                best = min(best, (float(tried.errors[0] - errors[col]), col, k))
        gain, col, k = best
        if gain < 0:
            lines[col, k] = spare
            errors[col] += gain


def assign_rows(costs: Floats) -> list[int]:
    """Returns a column of its own for each row of a matrix [n, m], n <= m, so that the sum of costs is the least.

    The Hungarian method with potentials, row by row; n x n x m steps (Kuhn 1955, Jonker and Volgenant 1987).
    """
    n, m = costs.shape
    row_potential, col_potential = np.zeros(n), np.zeros(m)
    owner, before = np.full(m + 1, n), np.zeros(m, np.int64)
    for row in range(n):
        owner[m] = row  # column m stands for the start of the shortest path to a free column
        seen, distances = [m], [0.0]
        least, blocked = np.full(m, np.inf), col_potential.copy()
        while owner[seen[-1]] != n:
            here = int(owner[seen[-1]])
            lengths = costs[here] + (distances[-1] - row_potential[here]) - blocked
            before[lengths < least] = seen[-1]
            np.minimum(least, lengths, out=least)
            following = int(least.argmin())
            seen.append(following)
            distances.append(float(least[following]))
            least[following], blocked[following] = np.inf, -np.inf
        col, left = seen.pop(), distances.pop() - np.array(distances)
        row_potential[owner[seen]] += left
        col_potential[seen[1:]] -= left[1:]
        while col != m:
            earlier = int(before[col])
            owner[col], col = owner[earlier], earlier
    found = np.zeros(n, np.int64)
    for col in range(m):
        if owner[col] != n:
            found[owner[col]] = col
    return found.tolist()
