"""The cells of a program that is repaired for a chip, and the checks that they can be what the chip holds.

Nothing here knows how a repair decides. Physics come from the chip file: a stuck cell has its level whatever was
written, and a cell on a dead line adds nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.output.repair_files import CELLS, CHIP, REPAIR, RepairTable
from raptor.target.chip_file import CellState, Chip, ChipSize
from validator.crossbar.cell_layout import CellLayout, Levels

Ints = npt.NDArray[np.int64]
States = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class RepairedGroup:
    """An array group on a chip. The column c of the matrix is in crossbar `crossbars[c // width]` of the core.

    `lines` [cols, slices]: the column of cells of each slice in its crossbar. `levels` [arrays, rows, cols, slices]:
    levels that are written. `signs` [cols]: 1, or -1 for a column that is stored negated. `weights` [rows, cols]: the
    weights that cells and signs make.
    """

    core: int
    group: int
    layout: CellLayout
    width: int
    crossbars: tuple[int, ...]
    lines: Ints
    levels: Levels
    signs: Ints
    weights: Ints

    @property
    def name(self) -> str:
        return f"core {self.core}, group {self.group}"

    def read_states(self, chip: Chip) -> States:
        """Returns the state of each cell, [arrays, rows, cols, slices]."""
        return gather_states(chip, self.core, self.crossbars, self.lines, self.width, self.levels.shape)

    def held_levels(self, states: States) -> Levels:
        """Returns the levels that the cells of a chip hold after `levels` are written."""
        held, stuck = self.levels.copy(), np.flatnonzero(states != CellState.FREE)
        highest = np.array(self.layout.highest, np.uint8)[stuck % self.layout.slices]
        held.ravel()[stuck] = np.where(states.ravel()[stuck] == CellState.ON, highest, np.uint8(0))
        return held


@dataclass(frozen=True, slots=True, eq=False)
class CellRepair:
    """The cells of all array groups of a program, core by core, on one chip."""

    table: RepairTable
    chip: Chip
    groups: tuple[RepairedGroup, ...]


def gather_states(
    chip: Chip, core: int, crossbars: Sequence[int], lines: Ints, width: int, shape: tuple[int, ...]
) -> States:
    """Returns the states [arrays, rows, cols, slices] of the cells of a matrix. `width`: its columns in a crossbar."""
    arrays, rows, cols, slices = shape
    found = np.zeros(shape, np.uint8)
    for k, crossbar in enumerate(crossbars):
        part = slice(k * width, min((k + 1) * width, cols))
        columns = lines[part].ravel()
        first, last = int(columns[0]), int(columns[-1])
        has_spares = last - first != len(columns) - 1 or (np.diff(columns) != 1).any()
        held = columns if has_spares else slice(first, last + 1)
        for array in range(arrays):
            states = chip.read_states(core, crossbar, array)[:rows]
            found[array, :, part] = states[:, held].reshape(rows, -1, slices)
    return found


def check_repair(repair: CellRepair) -> None:
    """Raises `UserError` unless the chip can hold the cells, and they make the weights that are said.

    No dead core or crossbar is used, none twice; a column of cells is used once, by its own column or as a spare; no
    cell on a dead line is written; stuck cells count as what they are.
    """
    chip, size = repair.chip, repair.chip.size
    if repair.table.chip_sha256 != chip.digest or repair.table.chip != chip.file.name:
        raise UserError(f"{REPAIR}: repaired for chip {repair.table.chip!r}, but {CHIP} is another chip or has changed")
    used: Counter[tuple[int, int]] = Counter()
    for group in repair.groups:
        _check_places(group, chip)
        used.update((group.core, crossbar) for crossbar in group.crossbars)
        _check_lines(group, size)
        _check_cells(group, group.read_states(chip))
    for (core, crossbar), times in used.items():
        if times > 1:
            raise UserError(f"{REPAIR}: {times} matrices are in crossbar {crossbar} of core {core}")


def _check_places(group: RepairedGroup, chip: Chip) -> None:
    wanted = -(-group.weights.shape[1] // group.width)
    if len(group.crossbars) != wanted:
        raise UserError(f"{REPAIR}: {group.name}: {len(group.crossbars)} crossbars, expected {wanted}")
    if group.core in chip.dead_cores:
        raise UserError(f"{REPAIR}: {group.name}: core {group.core} is dead")
    working = chip.list_crossbars(group.core)
    for crossbar in group.crossbars:
        if crossbar not in working:
            raise UserError(f"{REPAIR}: {group.name}: crossbar {crossbar} is dead, or not there")


def _check_lines(group: RepairedGroup, size: ChipSize) -> None:
    cols, slices = group.lines.shape
    columns, within = (np.arange(int(count), dtype=np.int64) for count in (cols, slices))
    own = (columns % group.width)[:, None] * slices + within
    is_spare = (group.lines >= size.columns) & (group.lines < size.all_columns)
    if not ((group.lines == own) | is_spare).all():
        col = int(np.flatnonzero(((group.lines != own) & ~is_spare).any(axis=1))[0])
        raise UserError(f"{CELLS}: {group.name}, column {col}: neither its own columns of cells nor spare ones")
    for start in range(0, cols, group.width):
        part = group.lines[start : start + group.width].ravel()
        if len(np.unique(part)) != len(part):
            raise UserError(f"{CELLS}: {group.name}, columns from {start}: a column of cells is used twice")


def _check_cells(group: RepairedGroup, states: States) -> None:
    spans = (1 << np.array(group.layout.bits)) - 1
    highest = group.levels.max(axis=(0, 1), initial=0).max(axis=0, initial=0)  # together they take ten times as long
    if (highest > np.maximum(spans, group.layout.highest)).any():
        raise UserError(f"{CELLS}: {group.name}: a level is above the highest of its slice")
    dead = (states == CellState.DEAD) & (group.levels != 0)
    if dead.any():
        _, row, col, _ = np.argwhere(dead)[0].tolist()
        raise UserError(f"{CELLS}: {group.name}, row {row}, column {col}: uses a cell of a dead row or column")
    if not np.isin(group.signs, (1, -1)).all():
        raise UserError(f"{CELLS}: {group.name}: a sign is neither 1 nor -1")
    found = group.layout.decode(group.held_levels(states)) * group.signs
    wrong = np.argwhere(found != group.weights)
    if len(wrong):
        row, col = wrong[0].tolist()
        raise UserError(
            f"{CELLS}: {group.name}, row {row}, column {col}: the cells make {found[row, col]}, not the weight "
            f"{group.weights[row, col]}"
        )
