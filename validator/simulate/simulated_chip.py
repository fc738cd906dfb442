"""Reads architecture file and network table as pimsim-nn does, and takes from them the numbers of the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from raptor.common import storage
from raptor.common.errors import UserError
from raptor.common.given import check_given
from raptor.common.spelling import option
from raptor.common.strict import faults
from raptor.output import files
from raptor.target import arch as architectures
from raptor.target.arch import ArchFile, MatrixConfig, read_arch
from validator.network import KINDS, FileTable, MeshTable, NetworkTable
from validator.simulate.state import Chip

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_PS = 1000.0
_MOST_NAMED = 50


@dataclass(frozen=True, slots=True)
class SimulatedChip:
    """A chip to simulate: an architecture file or preset (`source`) and its network table."""

    file: ArchFile
    table: NetworkTable
    source: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Cost of one flit between the cores of a program that talk. (A table of all pairs of 4000 cores takes 270 MB.)

    The pairs that begin at core i (its place in the program) are entries `first[i]` to `first[i + 1]`. `to` is the
    place of the other core, ascending; the number of cores stands for global memory. `missing`: true for pairs that the
    network table lacks.
    """

    first: Ints
    to: Ints
    latency_ns: Floats
    energy_pj: Floats
    missing: npt.NDArray[np.bool_]

    @property
    def latencies(self) -> tuple[Ints, Ints, Floats]:
        """Arrays in which the kernels look up the latency of a pair (`cost_kernels.flit_cost`), ns."""
        return self.first, self.to, self.latency_ns

    @property
    def energies(self) -> tuple[Ints, Ints, Floats]:
        """Arrays in which the kernels look up the energy of a pair, pJ."""
        return self.first, self.to, self.energy_pj

    def flit_ns(self, source: int, to: int) -> float | None:
        """Returns the latency of one flit, ns, for a pair that talks; None if the table lacks the pair."""
        low, high = self.first[source : source + 2]
        at = int(low + np.searchsorted(self.to[low:high], to))
        return None if self.missing[at] else float(self.latency_ns[at])


def read_target(source: str | Path) -> SimulatedChip:
    """Reads an architecture file and its network table (relative to its folder), or takes a preset.

    The network of a preset, and of a file that names no table, is the built-in mesh. A field that the simulator does
    not know gives a warning and is ignored, because the simulator ignores it silently. Raises `UserError`.
    """
    source = architectures.check_source(source)
    if is_preset(source):
        preset = architectures.load(source).file
        return SimulatedChip(preset, MeshTable(preset), str(source), ())
    path = Path(source)
    if not path.is_file():
        presets = ", ".join(architectures.presets())
        raise UserError(f"architecture {source}: no such file; give a file or one of: {presets}")
    storage.check_regular(path.parent, path.name)
    arch, warnings = _validate(read_arch(path), path)
    if "net_config_file_path" not in arch.chip_config.network_config.model_fields_set:
        return SimulatedChip(arch, MeshTable(arch), str(path), tuple(warnings))
    table = FileTable(path.parent / arch.chip_config.network_config.net_config_file_path)
    return SimulatedChip(arch, table, str(path), tuple(warnings))


def beside(program: Path) -> Path:
    """Returns the path of the `arch.json` in, or beside, a program. Raises `UserError` if there is none."""
    check_given(program)
    path = (program if program.is_dir() else program.parent) / files.ARCH
    if not path.is_file():
        raise UserError(f"{path}: no such file; give the architecture with {option('arch')}")
    return path


def is_preset(source: str | Path) -> bool:
    return str(source) in architectures.presets()


def _validate(raw: dict[str, Any], path: Path) -> tuple[ArchFile, list[str]]:
    warnings: list[str] = []
    try:
        return ArchFile.model_validate(raw), warnings
    except ValidationError as e:
        unknown = [fault["loc"] for fault in e.errors() if fault["type"] == "extra_forbidden"]
    for place in unknown:
        part = raw
        for key in place[:-1]:
            part = part[cast(str, key)]
        part.pop(cast(str, place[-1]))
    warnings += [
        f"{path.name}: no field {'.'.join(map(str, place))}; the simulator ignores it"
        for place in unknown[:_MOST_NAMED]
    ]
    if len(unknown) > _MOST_NAMED:
        warnings.append(f"{path.name}: {len(unknown) - _MOST_NAMED} more such fields")
    try:
        return ArchFile.model_validate(raw), warnings
    except ValidationError as e:
        mistakes = (f"  {fault}" for fault in faults(e, 5))
        raise UserError("\n".join([f"{path}: not an architecture file:", *mistakes])) from e


def timing(arch: ArchFile, *, counting: bool) -> Chip:
    """Returns the numbers that the kernels need. `counting`: also count accesses of decode, registers, scalar unit."""
    core = arch.chip_config.core_config
    matrix, local, memory = core.matrix_config, core.local_memory_config, arch.chip_config.global_memory_config
    front, back = stage_cycles(matrix)
    return Chip(
        period_ps=_picoseconds(core.period),
        rob_size=core.rob_size,
        vector_width=core.vector_width,
        vector_ps=core.vector_latency_cycle * 1000,
        local_width=local.data_width,
        local_read_cycles=local.read_latency_cycle,
        local_write_cycles=local.write_latency_cycle,
        local_period_ns=float(local.period),
        global_width=memory.data_width,
        global_read_cycles=memory.read_latency_cycle,
        global_write_cycles=memory.write_latency_cycle,
        global_period_ns=float(memory.period),
        bus_width=arch.chip_config.network_config.bus_width,
        rows=matrix.xbar_size[0],
        row_bits=matrix.cell_precision * matrix.xbar_size[1],
        matrix_period_ns=float(matrix.period),
        dac_resolution=matrix.dac_resolution,
        dac_passes=matrix.xbar_size[0] // matrix.dac_count,
        front_cycles=front,
        back_cycles=back,
        pipelined=int(matrix.pipeline_mode),
        counting=int(counting),
    )


def _picoseconds(ns: float) -> int:
    return int(ns * _PS + 0.5)


def stage_cycles(matrix: MatrixConfig) -> tuple[int, int]:
    """Returns the cycles of the two stages of a crossbar.

    The first stage converts the inputs and reads the crossbar once; the second converts all its columns back.
    """
    read = int(np.ceil(matrix.xbar_latency / matrix.period))
    front = matrix.dac_latency_cycle + read + matrix.sample_hold_latency_cycle
    digital = matrix.shift_adder_latency_cycle + matrix.output_buffer_latency_cycle
    # The simulator rounds down here: columns beyond a multiple of adc_count are converted in no time.
    passes = matrix.xbar_size[1] // matrix.adc_count
    back = matrix.adc_latency_cycle + digital + (passes - 1) * max(matrix.adc_latency_cycle, digital)
    return front, back


def network_of(target: SimulatedChip, cores: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64]) -> Network:
    """Looks up latency and energy of the pairs of cores that talk.

    `pairs`: sorted, without repetitions; indices into `cores`, or len(cores) for global memory. A pair that the table
    lacks costs nothing, as in the simulator, and is marked as missing.
    """
    memory = str(target.file.chip_config.core_config.global_memory_switch_id)
    names = [*map(str, cores), memory]
    found = [
        tuple(target.table.cost(kind, names[source], names[to]) for kind in KINDS)
        for source, to in cast(list[tuple[int, int]], pairs.tolist())
    ]
    latency, energy = np.array([[cost or 0.0 for cost in pair] for pair in found], np.float64).reshape(-1, 2).T.copy()
    missing = np.array([None in pair for pair in found], np.bool_)
    first = np.searchsorted(pairs[:, 0], np.arange(len(cores) + 1)).astype(np.int64)
    return Network(first, pairs[:, 1].copy(), latency, energy, missing)
