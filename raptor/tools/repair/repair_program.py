"""Repairs a program for a chip: what each cell holds, and which crossbar of its core holds each matrix."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raptor.common.errors import UserError
from raptor.output.repair_files import RepairedLayer, RepairedPlace, RepairTable
from raptor.target.arch import Target
from raptor.target.avoid_defects import check_chip_fits
from raptor.target.chip_file import Chip
from raptor.target.device_file import DeviceFile
from raptor.tools.repair.choose_crossbars import CrossbarPart, PlacedPart, place_parts
from raptor.tools.repair.closest_values import ClosestValues, Ints
from raptor.tools.repair.repair_matrix import RepairMethod
from validator.crossbar.cell_layout import CellLayout
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.chip_programming import list_group_uses
from validator.crossbar.chip_settings import make_setup
from validator.crossbar.load_repair import make_group_layout
from validator.crossbar.programmed_chip import GroupUse
from validator.crossbar.repaired_cells import CellRepair, RepairedGroup
from validator.program.program import LoadedProgram

_SETTINGS = ("encoding", "levels", "cell_bits")
"""Settings of crossbars that say how cells hold weights."""


def make_cell_setup(target: Target, device: DeviceFile | None, settings: Mapping[str, str]) -> ChipSetup:
    """Returns how cells hold weights, by a device file and settings of the user. Others raise `UserError`."""
    odd = sorted(set(settings) - set(_SETTINGS))
    if odd:
        known = ", ".join(_SETTINGS)
        raise UserError(f"--with {odd[0]}={settings[odd[0]]}: has no effect on a repair; it knows {known}")
    return make_setup("sliced", target, device, settings)


@dataclass(frozen=True, slots=True, eq=False)
class GroupParts:
    """An array group and its matrix. `width`: columns of the matrix in a crossbar."""

    use: GroupUse
    matrix: Ints
    width: int
    tables: ClosestValues

    @property
    def parts(self) -> list[CrossbarPart]:
        starts = range(0, self.matrix.shape[1], self.width)
        return [CrossbarPart(self.matrix[:, k : k + self.width], self.tables, self.use.layer) for k in starts]


class ProgramRepairer:
    """A program whose crossbars are repaired for one chip after another. Tables of nearest weights are shared.

    `setup`: how cells hold weights. Raises `UserError` for programs of floats, and for an encoding without repair.
    """

    def __init__(self, program: LoadedProgram, target: Target, setup: ChipSetup) -> None:
        if not program.has_integers:
            raise UserError(
                f"{program.folder}: a program of float32 numbers has no bits to put into cells; quantise the model "
                "with raptor quantize, its activations too, and compile that"
            )
        self.program, self.target, self.setup = program, target, setup
        tables: dict[CellLayout, ClosestValues] = {}
        self.groups: list[GroupParts] = []
        for use in list_group_uses(program):
            layout = make_group_layout(program, use, setup, target)
            known = tables.setdefault(layout, ClosestValues(layout))
            matrix = program.weights.matrix(use.core, use.group).astype(np.int64)
            self.groups.append(GroupParts(use, matrix, target.weight_columns(use.weight_bits), known))

    @property
    def arrays(self) -> int:
        """Arrays of cells that a crossbar needs: 2 if pairs are subtracted."""
        return max((group.tables.layout.arrays for group in self.groups), default=1)

    @property
    def cores(self) -> list[int]:
        """The cores that have array groups, in ascending order."""
        return sorted({group.use.core for group in self.groups})

    @property
    def parts(self) -> dict[int, list[CrossbarPart]]:
        """The matrices of each core, one for each crossbar that the program uses."""
        found: dict[int, list[CrossbarPart]] = defaultdict(list)
        for group in self.groups:
            found[group.use.core] += group.parts
        return dict(found)

    @property
    def most_parts(self) -> int:
        """Most crossbars that the program uses of a core."""
        return max(map(len, self.parts.values()), default=0)

    def check_chip(self, chip: Chip) -> None:
        """Raises `UserError` if a chip is of another kind than the program is compiled for, or lacks pairs of cells."""
        check_chip_fits(chip, self.target, "--chip")
        if chip.size.arrays < self.arrays:
            raise UserError(
                f"--chip: chip {chip.file.name!r} has one array in a crossbar, but encoding={self.setup.encoding} "
                "subtracts pairs of cells; take --with encoding=offset, or a chip file whose size has arrays 2"
            )

    def repair(self, chip: Chip, method: RepairMethod, tick: Callable[[], None] = lambda: None) -> CellRepair:
        """Returns the cells of the program on a chip. `tick` is called after each core.

        Raises `UserError` if the chip is of another kind, or if a core has too few working crossbars.
        """
        self.check_chip(chip)
        by_core: dict[int, list[int]] = defaultdict(list)
        for k, group in enumerate(self.groups):
            by_core[group.use.core].append(k)
        found: dict[int, list[PlacedPart]] = {}
        for core, numbers in by_core.items():
            parts = [part for k in numbers for part in self.groups[k].parts]
            placed = iter(place_parts(core, parts, chip, method))
            for k in numbers:
                found[k] = [next(placed) for _ in self.groups[k].parts]
            tick()
        repaired = [_join(group, found[k]) for k, group in enumerate(self.groups)]
        table = RepairTable(
            chip=chip.file.name,
            chip_sha256=chip.digest,
            encoding=self.setup.encoding,
            levels=self.setup.levels,
            cell_bits=self.setup.cell_bits,
            groups=tuple(RepairedPlace(core=g.core, group=g.group, crossbars=g.crossbars) for g in repaired),
            layers=(),
        )
        return CellRepair(table, chip, tuple(repaired))

    def describe_layers(self, repair: CellRepair) -> tuple[RepairedLayer, ...]:
        """Returns what the defects cost each layer, in the order of the cores."""
        layers: dict[str, list[int]] = defaultdict(list)
        for k, group in enumerate(self.groups):
            layers[group.use.layer].append(k)
        return tuple(self._describe(repair, node, numbers) for node, numbers in layers.items())

    def _describe(self, repair: CellRepair, node: str, numbers: Sequence[int]) -> RepairedLayer:
        counts = dict.fromkeys(("weights", "stuck", "changed", "negated", "replaced", "wider"), 0)
        squares = plain = 0.0
        for group, found in ((self.groups[k], repair.groups[k]) for k in numbers):
            matrix, tables = group.matrix, group.tables
            stuck = tables.find_stuck(tables.make_codes(found.read_states(repair.chip))[None])
            wished = matrix.ravel()[stuck.places]
            changed = np.flatnonzero(found.weights != matrix)
            counts["weights"] += matrix.size
            counts["stuck"] += len(wished)
            counts["changed"] += len(changed)
            counts["negated"] += int((found.signs < 0).sum())
            counts["replaced"] += int((found.lines >= repair.chip.size.columns).sum())
            counts["wider"] += int(find_wider_columns(matrix, found.weights).sum())
            squares += float(((found.weights.ravel()[changed] - matrix.ravel()[changed]) ** 2).sum())
            plain += float(((tables.find_unrepaired(stuck, wished) - wished) ** 2).sum())
        error, before = (float(np.sqrt(s / max(1, counts["weights"]))) for s in (squares, plain))
        return RepairedLayer(node=node, **counts, error=error, unrepaired_error=before)


def find_wider_columns(matrix: Ints, weights: Ints) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Returns True for each column whose positive or negative sum is larger in `weights` than in `matrix`."""
    at, width = np.flatnonzero(matrix != weights), matrix.shape[1]
    before, after = matrix.ravel()[at], weights.ravel()[at]
    plus, minus = (
        np.bincount(at % width, np.maximum(side * after, 0) - np.maximum(side * before, 0), width) for side in (1, -1)
    )
    return (plus > 0) | (minus > 0)


def _join(group: GroupParts, placed: Sequence[PlacedPart]) -> RepairedGroup:
    return RepairedGroup(
        core=group.use.core,
        group=group.use.group,
        layout=group.tables.layout,
        width=group.width,
        crossbars=tuple(part.crossbar for part in placed),
        lines=np.concatenate([part.lines for part in placed]),
        levels=np.concatenate([part.repaired.levels for part in placed], axis=2),
        signs=np.concatenate([part.repaired.signs for part in placed]),
        weights=np.concatenate([part.repaired.weights for part in placed], axis=1),
    )
