"""Reads architecture file and network table as pimsim-nn does, and takes from them the numbers of the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.files.program_path import check_program_path
from raptor.common.option_spelling import spell_option
from raptor.common.options.option_values import parse_arch_source
from raptor.output import files
from raptor.target import arch as architectures
from raptor.target.arch import ChipDescription, CrossbarHardware, Target, drop_wrong_fields, parse_arch, read_arch
from validator.program.network_table import COST_KINDS, FileTable, MeshTable, NetworkTable

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_PS = 1000.0
_MOST_NAMED, _MOST_MISTAKES = 50, 5


@dataclass(frozen=True, slots=True)
class SimulatedChip:
    """A chip to simulate. `table`: its network table, instead of the table of `target`; `source`: name for messages."""

    target: Target
    table: NetworkTable
    source: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FlitCosts:
    """Cost of one flit between the cores of a program that talk. (A table of all pairs of 4000 cores takes 270 MB.)

    The pairs that begin at core i (its place in the program) are entries `first[i]` to `first[i + 1]`. `to` is the
    place of the other core, ascending; the number of cores stands for global memory. `missing`: true for pairs that the
    network table lacks.
    """

    first: Ints
    destination: Ints
    latency_ns: Floats
    energy_pj: Floats
    is_missing: npt.NDArray[np.bool_]

    @property
    def latency_table(self) -> tuple[Ints, Ints, Floats]:
        """Arrays in which the kernels look up the latency of a pair (`cost_kernels.look_up_flit_cost`), ns."""
        return self.first, self.destination, self.latency_ns

    @property
    def energy_table(self) -> tuple[Ints, Ints, Floats]:
        """Arrays in which the kernels look up the energy of a pair, pJ."""
        return self.first, self.destination, self.energy_pj

    def flit_ns(self, source: int, to: int) -> float | None:
        """Returns the latency of one flit, ns, for a pair that talks; None if the table lacks the pair."""
        low, high = self.first[source : source + 2]
        at = int(low + np.searchsorted(self.destination[low:high], to))
        return None if self.is_missing[at] else float(self.latency_ns[at])


def read_simulated_chip(source: str | Path) -> SimulatedChip:
    """Reads an architecture file and its network table (relative to its folder), or takes a preset.

    The network of a preset, and of a file that names no table, is the built-in mesh. A field that the simulator does
    not know gives a warning and is ignored, because the simulator ignores it silently. Raises `UserError`.
    """
    source = parse_arch_source("arch", source)
    if is_preset(source):
        preset = architectures.load(source)
        return SimulatedChip(preset, MeshTable(preset), str(source), ())
    path = Path(source)
    if not path.is_file():
        presets = ", ".join(architectures.arch_presets())
        raise UserError(f"architecture {source}: no such file; give a file or one of: {presets}")
    file_access.check_regular_file(path.parent, path.name)
    description, warnings = _described(read_arch(path), path)
    chip_id, core_id = description.memory_ids
    if chip_id != core_id:
        raise UserError(f"{path}: global_memory_switch_id differs between chip_config and core_config")
    target, network = description.target(), description.network_file
    table = MeshTable(target) if network is None else FileTable(path.parent / network)
    return SimulatedChip(target, table, str(path), tuple(warnings))


def find_arch_file(program: Path) -> Path:
    """Returns the path of the `arch.json` in, or beside, a program. Raises `UserError` if there is none."""
    check_program_path(program)
    path = (program if program.is_dir() else program.parent) / files.ARCH
    if not path.is_file():
        raise UserError(f"{path}: no such file; give the architecture with {spell_option('arch')}")
    return path


def is_preset(source: str | Path) -> bool:
    return str(source) in architectures.arch_presets()


def _described(raw: dict[str, Any], path: Path) -> tuple[ChipDescription, list[str]]:
    """Returns the description without unknown fields, and a warning for each. Raises `UserError` for wrong values."""
    description, problems = parse_arch(raw)
    unknown = [problem for problem in problems if problem.kind == "unknown"]
    if unknown:
        drop_wrong_fields(raw, unknown)
        description, problems = parse_arch(raw)
    if description is None:
        mistakes = (f"  {problem.name}: {problem.message}" for problem in problems[:_MOST_MISTAKES])
        raise UserError("\n".join([f"{path}: not an architecture file:", *mistakes]))
    warnings = [f"{path.name}: no field {p.name}; the simulator ignores it" for p in unknown[:_MOST_NAMED]]
    if len(unknown) > _MOST_NAMED:
        warnings.append(f"{path.name}: {len(unknown) - _MOST_NAMED} more such fields")
    return description, warnings


class ChipNumbers(NamedTuple):
    """Numbers of a chip by which the kernels compute times. Widths are in bytes; `*_ns` are times of one cycle."""

    period_ps: int
    rob_size: int
    vector_width: int
    vector_ps: int
    local_width: int
    local_read_cycles: int
    local_write_cycles: int
    local_period_ns: float
    global_width: int
    global_read_cycles: int
    global_write_cycles: int
    global_period_ns: float
    bus_width: int
    rows: int
    row_bits: int
    matrix_period_ns: float
    dac_resolution: int
    dac_passes: int
    front_cycles: int
    back_cycles: int
    pipelined: int
    counting: int


def make_chip_numbers(target: Target, *, counting: bool) -> ChipNumbers:
    """Returns the numbers of a target. `counting`: also count accesses of decode, registers, scalar unit."""
    core, xbar, local, memory = target.core, target.core.xbar, target.core.memory, target.memory
    front, back = stage_cycles(xbar)
    return ChipNumbers(
        period_ps=_picoseconds(core.period_ns),
        rob_size=core.rob_size,
        vector_width=core.vector_width,
        vector_ps=_picoseconds(core.vector_step_ns),
        local_width=local.beat_bytes,
        local_read_cycles=local.read_cycles,
        local_write_cycles=local.write_cycles,
        local_period_ns=local.period_ns,
        global_width=memory.beat_bytes,
        global_read_cycles=memory.read_cycles,
        global_write_cycles=memory.write_cycles,
        global_period_ns=memory.period_ns,
        bus_width=target.network.flit_bytes,
        rows=xbar.rows,
        row_bits=xbar.cell_bits * xbar.cols,
        matrix_period_ns=xbar.converters.period_ns,
        dac_resolution=xbar.converters.dac_bits,
        dac_passes=xbar.rows // xbar.converters.dacs,
        front_cycles=front,
        back_cycles=back,
        pipelined=int(xbar.converters.pipelined),
        counting=int(counting),
    )


def _picoseconds(ns: float) -> int:
    return int(ns * _PS + 0.5)


def stage_cycles(xbar: CrossbarHardware) -> tuple[int, int]:
    """Returns the cycles of the two stages of a crossbar.

    The first stage converts the inputs and reads the crossbar once; the second converts all its columns back.
    """
    parts = xbar.converters
    read = int(np.ceil(xbar.read_ns / parts.period_ns))
    front = parts.dac_cycles + read + parts.sample_hold_cycles
    digital = parts.shift_add_cycles + parts.output_buffer_cycles
    # The simulator rounds down here: columns beyond a multiple of the ADCs are converted in no time.
    passes = xbar.cols // parts.adcs
    back = parts.adc_cycles + digital + (passes - 1) * max(parts.adc_cycles, digital)
    return front, back


def look_up_flit_costs(chip: SimulatedChip, cores: npt.NDArray[np.int64], pairs: npt.NDArray[np.int64]) -> FlitCosts:
    """Looks up latency and energy of the pairs of cores that talk.

    `pairs`: sorted, without repetitions; indices into `cores`, or len(cores) for global memory. A pair that the table
    lacks costs nothing, as in the simulator, and is marked as missing.
    """
    memory = str(chip.target.memory_id)
    names = [*map(str, cores), memory]
    found = [
        tuple(chip.table.cost(kind, names[source], names[to]) for kind in COST_KINDS)
        for source, to in cast(list[tuple[int, int]], pairs.tolist())
    ]
    latency, energy = np.array([[cost or 0.0 for cost in pair] for pair in found], np.float64).reshape(-1, 2).T.copy()
    missing = np.array([None in pair for pair in found], np.bool_)
    first = np.searchsorted(pairs[:, 0], np.arange(len(cores) + 1)).astype(np.int64)
    return FlitCosts(first, pairs[:, 1].copy(), latency, energy, missing)
