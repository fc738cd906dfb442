"""Chooses the physical crossbars of a core, and the spare columns of each, for the matrices of the core."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.target.chip_file import Chip
from raptor.tools.repair.closest_values import Bytes, ClosestValues, Ints
from raptor.tools.repair.repair_matrix import MatrixStack, RepairedMatrix, RepairMethod, repair_matrix

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
    """A part in a physical crossbar. `lines` [cols, slices]: columns of cells. `states`: see `repair_matrix`."""

    crossbar: int
    lines: Ints
    states: Bytes
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
    if not method.crossbars:
        return [_place(core, part, crossbar, chip, method) for part, crossbar in zip(parts, working, strict=False)]
    tried = working[: max(len(parts), _MOST_TRIALS // len(parts))]
    chosen = assign_rows(_try_crossbars(core, parts, tried, chip))
    return [_place(core, part, tried[k], chip, method) for part, k in zip(parts, chosen, strict=True)]


def _try_crossbars(core: int, parts: Sequence[CrossbarPart], tried: Sequence[int], chip: Chip) -> Floats:
    """Returns the error of each part in each crossbar, [parts, crossbars], without spare columns."""
    costs = np.zeros((len(parts), len(tried)))
    numbers: dict[ClosestValues, list[int]] = {}
    for i, part in enumerate(parts):
        numbers.setdefault(part.tables, []).append(i)
    stacks = {tables: MatrixStack.make([parts[i].matrix for i in held], tables) for tables, held in numbers.items()}
    for k, crossbar in enumerate(tried):
        for tables, stack in stacks.items():
            costs[numbers[tables], k] = stack.estimate_errors(_read_codes(core, crossbar, tables, chip), tables)
    return costs


def _read_codes(core: int, crossbar: int, tables: ClosestValues, chip: Chip) -> Ints:
    """Returns the sets of stuck cells of a crossbar, [rows, columns of weights]."""
    layout = tables.layout
    width = chip.size.columns // layout.slices
    states = np.stack([chip.read_states(core, crossbar, array) for array in range(layout.arrays)])
    return tables.make_codes(states[:, :, : width * layout.slices].reshape(layout.arrays, -1, width, layout.slices))


def _place(core: int, part: CrossbarPart, crossbar: int, chip: Chip, method: RepairMethod) -> PlacedPart:
    """Returns a part in a crossbar, with the spare columns that help it."""
    rows, cols = part.matrix.shape
    layout = part.tables.layout
    every = np.stack([chip.read_states(core, crossbar, array)[:rows] for array in range(layout.arrays)])
    lines = np.arange(int(cols) * layout.slices, dtype=np.int64).reshape(-1, layout.slices)
    states = every[:, :, lines]
    repaired = repair_matrix(part.matrix, states, part.tables, method)
    if method.crossbars and chip.size.spare_columns and repaired.errors.any():
        _use_spares(part, every, lines, repaired.errors.copy(), chip, method)
        states = every[:, :, lines]
        repaired = repair_matrix(part.matrix, states, part.tables, method)
    return PlacedPart(crossbar, lines, states, repaired)


def _use_spares(
    part: CrossbarPart, every: Bytes, lines: Ints, errors: Floats, chip: Chip, method: RepairMethod
) -> None:
    """Puts each spare column of cells in the place where it helps most, among the columns with the largest errors.

    `lines` and `errors` are changed.
    """
    for spare in range(chip.size.columns, chip.size.all_columns):
        best = (0.0, 0, 0)
        for col in np.argsort(-errors, kind="stable")[:_TRIED_COLUMNS].tolist():
            for k in range(part.tables.layout.slices):
                if lines[col, k] >= chip.size.columns:
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
    row_potential, col_potential = np.zeros(n + 1), np.zeros(m + 1)
    owner, before = np.full(m + 1, n), np.zeros(m + 1, np.int64)
    for row in range(n):
        owner[m] = row
        least, seen, col = np.full(m + 1, np.inf), np.zeros(m + 1, bool), m
        while owner[col] != n:
            seen[col] = True
            here = int(owner[col])
            reduced = costs[here] - row_potential[here] - col_potential[:m]
            nearer = ~seen[:m] & (reduced < least[:m])
            least[:m][nearer], before[:m][nearer] = reduced[nearer], col
            following = int(np.argmin(np.where(seen[:m], np.inf, least[:m])))
            step = least[following]
            row_potential[owner[seen]] += step
            col_potential[seen] -= step
            least[~seen] -= step
            col = following
        while col != m:
            earlier = int(before[col])
            owner[col], col = owner[earlier], earlier
    found = np.zeros(n, np.int64)
    for col in range(m):
        if owner[col] != n:
            found[owner[col]] = col
    return found.tolist()
