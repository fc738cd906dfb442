"""Reads the cells of a repaired program. The files are not trusted: every fault in them is a `UserError`."""

import io
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.output import repair_files
from raptor.output.repair_files import CELL_PARTS, CELLS, CHIP, REPAIR, RepairTable
from raptor.target.arch import Target
from raptor.target.avoid_defects import check_chip_fits
from raptor.target.cell_models import ENCODINGS
from raptor.target.chip_file import read_chip_file
from validator.crossbar.cell_layout import CellLayout, make_layout
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.chip_programming import list_group_uses, program_crossbars
from validator.crossbar.chip_settings import make_setup
from validator.crossbar.programmed_chip import GroupUse
from validator.crossbar.repaired_cells import CellRepair, RepairedGroup, check_repair
from validator.program.group_weights import ZIP_ERRORS
from validator.program.npy import read_array_data, read_header
from validator.program.program import LoadedProgram

_CELLS_LIMIT_BYTES = 16 * 2**30


def load_repair(program: LoadedProgram, target: Target) -> CellRepair | None:
    """Returns the cells that a program is repaired for; None without `repair.json`. Raises `UserError` for faults."""
    folder, listed = program.folder, program.manifest.files
    if REPAIR not in listed:
        return None
    for name in (CHIP, CELLS):
        if name not in listed:
            raise UserError(f"{folder}: {REPAIR} is there, but not {name}; repair the program again")
    table = file_access.read_json_file(RepairTable, folder, REPAIR)
    if table.encoding not in ENCODINGS:
        raise UserError(f"{REPAIR}: encoding {table.encoding!r:.40}: expected one of {', '.join(ENCODINGS)}")
    chip = read_chip_file(folder, CHIP)
    check_chip_fits(chip, target, CHIP)
    uses = list_group_uses(program)
    if [(place.core, place.group) for place in table.groups] != [(use.core, use.group) for use in uses]:
        raise UserError(f"{REPAIR}: has other array groups than the program")
    setup = make_repair_setup(target, table)
    layouts = {(use.core, use.group): make_group_layout(program, use, setup, target) for use in uses}
    arrays = _read_cells(folder, program, layouts)
    groups = [
        RepairedGroup(
            place.core,
            place.group,
            layouts[place.core, place.group],
            target.weight_columns(use.weight_bits),
            place.crossbars,
            **arrays[place.core, place.group],
        )
        for place, use in zip(table.groups, uses, strict=True)
    ]
    found = CellRepair(table, chip, tuple(groups))
    check_repair(found)
    return found


def with_repair(program: LoadedProgram, target: Target) -> LoadedProgram:
    """Returns a repaired program with its products computed by the weights that the cells of its chip make."""
    repair = load_repair(program, target)
    return program if repair is None else install_repair(program, repair, target)


def install_repair(program: LoadedProgram, repair: CellRepair, target: Target) -> LoadedProgram:
    """Returns the program on the cells of a repair, with exact arithmetic."""
    setup = replace(make_repair_setup(target, repair.table), kind="whole")
    return program_crossbars(replace(program, repair=repair, crossbars=None), setup)


def make_repair_setup(target: Target, table: RepairTable) -> ChipSetup:
    """Returns the setup of crossbars with perfect converters whose cells hold weights as a repair says."""
    given = {"encoding": table.encoding, "levels": table.levels, "cell_bits": f"{table.cell_bits}"}
    return make_setup("sliced", target, None, given)


def make_group_layout(program: LoadedProgram, use: GroupUse, setup: ChipSetup, target: Target) -> CellLayout:
    """Returns the layout of the cells of an array group. Raises `UserError` if its weights do not fit a crossbar."""
    matrix = program.weights.matrix(use.core, use.group)
    try:
        layout = make_layout(matrix, use.weight_bits, setup)
    except UserError as e:
        raise UserError(f"{use.layer}: {e}") from None
    if layout.slices * min(target.weight_columns(use.weight_bits), matrix.shape[1]) > target.xbar_cols:
        raise UserError(
            f"{use.layer}: encoding={setup.encoding} needs {layout.slices} cells side by side for a weight of "
            f"{use.weight_bits} bits; a crossbar of {target.xbar_cols} columns has room for "
            f"{target.weight_columns(use.weight_bits)} weights; take another encoding, or compile with other cell bits"
        )
    return layout


def _read_cells(
    folder: Path, program: LoadedProgram, layouts: Mapping[tuple[int, int], CellLayout]
) -> dict[tuple[int, int], dict[str, Any]]:
    content = file_access.read_bytes(folder, CELLS, limit_bytes=_CELLS_LIMIT_BYTES)
    wanted = {repair_files.member_name(*place, part) for place in layouts for part in CELL_PARTS}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            if len(set(names)) != len(names) or set(names) != wanted:
                raise UserError(f"{folder / CELLS}: has other array groups than the program")
            return {
                place: {part: _read_part(archive, folder, program, place, layout, part) for part in CELL_PARTS}
                for place, layout in layouts.items()
            }
    except ZIP_ERRORS as e:
        raise UserError(f"{folder / CELLS}: not a .npz file: {e}") from e


def _read_part(
    archive: zipfile.ZipFile,
    folder: Path,
    program: LoadedProgram,
    place: tuple[int, int],
    layout: CellLayout,
    part: str,
) -> Any:
    """Reads an array. Its header is checked before data are unpacked."""
    rows, cols = program.weights.matrix(*place).shape
    shape = {
        "levels": (layout.arrays, rows, cols, layout.slices),
        "signs": (cols,),
        "lines": (cols, layout.slices),
        "weights": (rows, cols),
    }[part]
    name = repair_files.member_name(*place, part)
    where = f"{folder / CELLS}, {name}"
    with archive.open(name) as stream:
        found, dtype = read_header(stream, where, (CELL_PARTS[part],))
        if found != shape:
            raise UserError(f"{where}: expected shape {shape}, found {found}")
        held = read_array_data(stream, shape, dtype, where)
    return held if part == "levels" else held.astype(np.int64)
