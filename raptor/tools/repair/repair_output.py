"""Repairs an output directory for a chip, and writes the result as another output directory."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

import numpy as np

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.options import arguments
from raptor.output import files, repair_files
from raptor.output.move_cores import write_moved
from raptor.output.repair_files import CELL_PARTS, RepairedLayer
from raptor.output.variant_writer import refuse_same_folder, write_variant
from raptor.target.arch import Target, read_stored_target
from raptor.target.avoid_defects import avoid_defects
from raptor.target.chip_file import Chip, chip_to_json, load_chip_file
from raptor.target.device_file import DeviceFile
from raptor.target.message_partners import renumber_partners
from raptor.tools.repair.choose_cores import choose_cores
from raptor.tools.repair.repair_matrix import RepairMethod
from raptor.tools.repair.repair_program import ProgramRepairer, make_cell_setup
from validator.crossbar.repaired_cells import CellRepair, check_repair
from validator.load.output_directory import load_moved, load_output
from validator.program.program import LoadedProgram
from validator.program.segment_list import require_one_segment


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RepairedOutput:
    """A program of an output directory with the cells of one chip.

    If cores moved, the files of `program` are in a temporary folder, which goes with this object.
    """

    source: Path
    program: LoadedProgram
    repair: CellRepair

    @property
    def layers(self) -> tuple[RepairedLayer, ...]:
        return self.repair.table.layers

    def save(self, folder: str | Path, *, force: bool = False) -> Path:
        """Writes an output directory that differs from the source in `repair.json`, `chip.json`, cells and manifest.

        If cores moved, their numbers differ, too.

        `force`: replace an output directory. Raises `UserError` if the folder may not be replaced or written.
        """
        target = arguments.parse_path("folder", folder)
        contents = {
            repair_files.CHIP: chip_to_json(self.repair.chip.file),
            repair_files.REPAIR: file_access.model_to_json(self.repair.table),
            repair_files.CELLS: _pack_arrays(self.repair),
        }
        refuse_same_folder(target, self.source)
        return write_variant(self.program.folder, self.program.manifest, contents, target, force=force)


def _pack_arrays(repair: CellRepair) -> bytes:
    """Returns an .npz archive of all parts of all groups, compressed fast: else this takes longer than the repair."""
    cells = io.BytesIO()
    with zipfile.ZipFile(cells, "w") as archive:
        for group in repair.groups:
            for part, dtype in CELL_PARTS.items():
                member = io.BytesIO()
                np.save(member, np.ascontiguousarray(getattr(group, part).astype(dtype)), allow_pickle=False)
                info = zipfile.ZipInfo(repair_files.member_name(group.core, group.group, part))
                archive.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=1)
    return cells.getvalue()


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
    program = _load_unrepaired(folder)
    if program.trim is not None and program.trim.chip is not None:
        raise UserError(
            f"{folder}: trimmed for {program.trim.chip}; repair the program as it was compiled, then trim the result"
        )
    target = read_stored_target(folder, files.ARCH)
    setup = make_cell_setup(target, device, settings)
    repairer = ProgramRepairer(program, target, setup)
    repairer.check_chip(chip)
    cores = choose_cores(program, repairer.parts, chip)
    if cores is None:
        return RepairedOutput(folder, program, _repair(repairer, chip, (), tick))
    moved = Path(mkdtemp(prefix="raptor-repair-"))
    try:
        placement = _move_placement(folder, program.manifest, target, chip, cores)
        before: list[int] = np.argsort(cores).tolist()
        streams = [renumber_partners(program.streams[core], cores) for core in before]
        copy = write_moved(folder, program.manifest, cores, placement, moved / "out", streams)
        program = load_moved(copy, program, cores, streams)
        pairs = [(old, new) for old, new in enumerate(cores) if old != new and len(program.streams[new])]
        made = RepairedOutput(folder, program, _repair(ProgramRepairer(program, target, setup), chip, pairs, tick))
    except BaseException:
        rmtree(moved, ignore_errors=True)
        raise
    finalize(made, rmtree, moved, ignore_errors=True)
    return made


def _repair(
    repairer: ProgramRepairer, chip: Chip, moved: Sequence[tuple[int, int]], tick: Callable[[], None]
) -> CellRepair:
    """Returns the checked repair of a program. `moved`: see `RepairTable`."""
    found = repairer.repair(chip, RepairMethod(), tick)
    table = found.table.model_copy(update={"layers": repairer.describe_layers(found), "moved": tuple(moved)})
    found = replace(found, table=table)
    check_repair(found)
    return found


def _load_unrepaired(folder: Path) -> LoadedProgram:
    return replace(load_output(folder), repair=None, crossbars=None)


def _move_placement(
    folder: Path, manifest: files.OutputManifest, target: Target, chip: Chip, cores: Sequence[int]
) -> list[int] | None:
    """Returns the placement of the mapping of a program whose core k becomes `cores[k]`.

    It numbers the cores that the program may use. None without a mapping, and if it would need another core.
    """
    if files.MAPPING not in manifest.files:
        return None
    before = after = list(range(target.core_count))
    if manifest.options.get("chip"):
        compiled = avoid_defects(target, load_chip_file(folder / repair_files.CHIP), repair_files.CHIP)
        before = list(compiled.places or before)
        after = list(avoid_defects(target, chip, "--chip").places or after)
    stored = json.loads(file_access.read_bytes(folder, files.MAPPING, limit_bytes=2**30))
    placement: dict[str, list[int]] = stored["decision"]["placement"] or {}
    places = placement.get("places") or list(range(len(before)))
    number = {core: k for k, core in enumerate(after)}
    found = [number.get(cores[before[place]]) for place in places]
    return [place for place in found if place is not None] if None not in found else None
