"""Repairs an output directory for a chip, and writes the result as another output directory."""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.options import arguments
from raptor.output import files, repair_files
from raptor.output.repair_files import CELL_PARTS, RepairedLayer
from raptor.output.variant_writer import write_variant
from raptor.target.arch import read_stored_target
from raptor.target.chip_file import Chip, chip_to_json
from raptor.target.device_file import DeviceFile
from raptor.tools.repair.repair_matrix import RepairMethod
from raptor.tools.repair.repair_program import ProgramRepairer, make_cell_setup
from validator.crossbar.repaired_cells import CellRepair, check_repair
from validator.load.output_directory import load_output
from validator.program.program import LoadedProgram
from validator.program.segment_list import require_one_segment


@dataclass(frozen=True, slots=True, eq=False)
class RepairedOutput:
    """A program of an output directory with the cells of one chip."""

    source: Path
    program: LoadedProgram
    repair: CellRepair

    @property
    def layers(self) -> tuple[RepairedLayer, ...]:
        return self.repair.table.layers

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Writes an output directory that differs from the source in `repair.json`, `chip.json`, cells and manifest.

        `force`: replace an output directory. Raises `UserError` if the folder may not be replaced or written.
        """
        target = arguments.parse_path("folder", folder)
        cells = io.BytesIO()
        np.savez_compressed(cells, allow_pickle=False, **dict(_name_arrays(self.repair)))
        contents = {
            repair_files.CHIP: chip_to_json(self.repair.chip.file),
            repair_files.REPAIR: file_access.model_to_json(self.repair.table),
            repair_files.CELLS: cells.getvalue(),
        }
        return write_variant(self.source, self.program.manifest, contents, target, force=force)


def _name_arrays(repair: CellRepair) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
    for group in repair.groups:
        for part, dtype in CELL_PARTS.items():
            name = repair_files.member_name(group.core, group.group, part).removesuffix(".npy")
            yield name, np.ascontiguousarray(getattr(group, part).astype(dtype))


def repair_output(
    folder: Path,
    chip: Chip,
    device: DeviceFile | None,
    settings: Mapping[str, str],
    tick: Callable[[], None] = lambda: None,
) -> RepairedOutput:
    """Repairs the program of an output directory for a chip; an earlier repair is replaced.

    `device`, `settings`: how cells hold weights, by the names of `raptor accuracy --with`. `tick`: see
    `ProgramRepairer.repair`. Raises `UserError` for a program or a chip that cannot be repaired.
    """
    require_one_segment(folder, "a repair")
    program = replace(load_output(folder), repair=None, crossbars=None)
    if program.trim is not None and program.trim.chip is not None:
        raise UserError(
            f"{folder}: trimmed for {program.trim.chip}; repair the program as it was compiled, then trim the result"
        )
    target = read_stored_target(folder, files.ARCH)
    repairer = ProgramRepairer(program, target, make_cell_setup(target, device, settings))
    found = repairer.repair(chip, RepairMethod(), tick)
    layers = repairer.describe_layers(found)
    found = replace(found, table=found.table.model_copy(update={"layers": layers}))
    check_repair(found)
    return RepairedOutput(folder, program, found)
