"""Architecture file and network table as pimsim-nn reads them, and what it takes from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import ValidationError

from raptor import arch as architectures
from raptor import files
from raptor.arch import ARCH_LIMIT_BYTES, ArchFile, MatrixConfig
from raptor.errors import UserError
from raptor.strict import faults
from validator.network import KINDS, FileTable, MeshTable, NetworkTable
from validator.simulate.state import Chip

Floats = npt.NDArray[np.float64]

_PS = 1000.0
_MOST_NAMED = 50


@dataclass(frozen=True, slots=True)
class Target:
    """A chip to simulate: an architecture file or preset (`source`) and its network table."""

    file: ArchFile
    table: NetworkTable
    source: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """The table of the cores of one program: row and column i are `cores[i]`; the last column is global memory."""

    latency_ns: Floats
    energy_pj: Floats
    missing: npt.NDArray[np.bool_]


def read_target(source: str | Path) -> Target:
    """Reads an architecture file and, relative to its folder, its network table; or takes a preset.

    Fields that the simulator does not know are ignored with a warning, as it ignores them silently.
    """
    if is_preset(source):
        preset = architectures.load(source).file
        return Target(preset, MeshTable(preset), str(source), ())
    path = Path(source)
    if not path.is_file():
        presets = ", ".join(architectures.presets())
        raise UserError(f"architecture {source}: no such file; give a file or one of: {presets}")
    arch, warnings = _validate(_parse(path), path)
    table = FileTable(path.parent / arch.chip_config.network_config.net_config_file_path)
    return Target(arch, table, str(path), tuple(warnings))


def is_preset(source: str | Path) -> bool:
    return str(source) in architectures.presets()


def _parse(path: Path) -> dict[str, Any]:
    content = files.read_bytes(path.parent, path.name, limit_bytes=ARCH_LIMIT_BYTES)
    try:
        raw = orjson.loads(content)
    except orjson.JSONDecodeError as e:
        raise UserError(f"{path}: not a JSON file: {e}") from e
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected an object")
    return cast(dict[str, Any], raw)


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
    """The numbers the kernels need. `counting`: also count accesses of decode, registers and scalar unit."""
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
    """Cycles of the two stages of a crossbar: converting and reading once, and converting back all its columns."""
    read = int(np.ceil(matrix.xbar_latency / matrix.period))
    front = matrix.dac_latency_cycle + read + matrix.sample_hold_latency_cycle
    digital = matrix.shift_adder_latency_cycle + matrix.output_buffer_latency_cycle
    # The simulator rounds down here: columns beyond a multiple of adc_count are converted in no time.
    passes = matrix.xbar_size[1] // matrix.adc_count
    back = matrix.adc_latency_cycle + digital + (passes - 1) * max(matrix.adc_latency_cycle, digital)
    return front, back


def network_of(target: Target, cores: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64]) -> Network:
    """The latencies and energies of the pairs of cores (indices into `cores`, or len(cores) for memory) that talk.

    Pairs that the table lacks cost nothing in the simulator, nor here; they are marked as missing.
    """
    count = len(cores)
    latency, energy = np.zeros((count, count + 1)), np.zeros((count, count + 1))
    missing = np.zeros((count, count + 1), np.bool_)
    memory = str(target.file.chip_config.core_config.global_memory_switch_id)
    names = [*map(str, cores), memory]
    for source, to in cast(list[tuple[int, int]], sorted(pairs.tolist())):
        time, work = (target.table.cost(kind, names[source], names[to]) for kind in KINDS)
        missing[source, to] = time is None or work is None
        latency[source, to], energy[source, to] = time or 0.0, work or 0.0
    return Network(latency, energy, missing)
