"""Architecture files of pimsim-nn: their schema, presets, and the few numbers the compiler needs.

Field names, units and defaults are the simulator's. It ignores misspelt fields; here they are refused.
"""

import json
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from raptor.errors import UserError

GLOBAL_MEMORY_ID = -10
NETWORK_FILE = "network.json"

Positive = Annotated[int, Field(gt=0, le=2**31 - 1)]
NonNegative = Annotated[int, Field(ge=0, le=2**31 - 1)]
Power = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MatrixConfig(_Schema):
    """Crossbars of a core and their converters."""

    xbar_array_count: Positive = Field(1, description="crossbars in a core")
    xbar_size: tuple[Positive, Positive] = Field((128, 128), description="rows, columns")
    cell_precision: Positive = Field(2, description="bits of a cell")
    period: Duration = Field(0.78125, description="ns")
    pipeline_mode: bool = True
    dac_resolution: Positive = Field(1, description="bits")
    dac_count: Positive = 128
    dac_latency_cycle: NonNegative = 1
    dac_dynamic_power: Power = Field(0, description="mW")
    dac_static_power: Power = Field(0, description="mW")
    xbar_latency: Duration = Field(30, description="ns")
    xbar_read_power: Power = Field(0, description="mW")
    sample_hold_latency_cycle: NonNegative = 1
    sample_hold_dynamic_power: Power = Field(0, description="mW")
    sample_hold_static_power: Power = Field(0, description="mW")
    adc_resolution: Positive = Field(1, description="bits")
    adc_count: Positive = 1
    adc_latency_cycle: NonNegative = 1
    adc_dynamic_power: Power = Field(0, description="mW")
    adc_static_power: Power = Field(0, description="mW")
    shift_adder_latency_cycle: NonNegative = 1
    shift_adder_dynamic_power: Power = Field(0, description="mW")
    shift_adder_static_power: Power = Field(0, description="mW")
    input_buffer_dynamic_power: Power = Field(0, description="mW")
    input_buffer_static_power: Power = Field(0, description="mW")
    output_buffer_latency_cycle: NonNegative = 1
    output_buffer_dynamic_power: Power = Field(0, description="mW")
    output_buffer_static_power: Power = Field(0, description="mW")


class MemoryConfig(_Schema):
    """A local memory, or the global one."""

    data_width: Positive = Field(16, description="bytes a beat")
    period: Duration = Field(1, description="ns")
    read_latency_cycle: NonNegative = 8
    write_latency_cycle: NonNegative = 10
    memory_size: Positive = Field(2**20, description="bytes")
    static_power: Power = Field(1, description="mW")
    read_dynamic_energy: Power = Field(0, description="pJ a beat")
    write_dynamic_energy: Power = Field(0, description="pJ a beat")


class CoreConfig(_Schema):
    """One core; all are alike."""

    period: Duration = Field(1, description="ns")
    rob_size: Positive = 1
    vector_width: Positive = Field(16, description="elements a step")
    vector_latency_cycle: NonNegative = Field(8, description="ns a step")
    vector_alu_dynamic_energy: Power = Field(0, description="pJ")
    vector_alu_static_power: Power = Field(0, description="mW")
    vector_reg_read_dynamic_energy: Power = Field(0, description="pJ")
    vector_reg_write_dynamic_energy: Power = Field(0, description="pJ")
    vector_reg_static_power: Power = Field(0, description="mW")
    inst_fetch_static_power: Power = Field(0, description="mW")
    inst_fetch_dynamic_power: Power = Field(0, description="mW")
    inst_decode_static_power: Power = Field(0, description="mW")
    inst_decode_dynamic_power: Power = Field(0, description="mW")
    inst_decode_offset_static_power: Power = Field(0, description="mW")
    inst_decode_offset_dynamic_power: Power = Field(0, description="mW")
    reg_file_static_power: Power = Field(0, description="mW")
    reg_file_read_dynamic_power: Power = Field(0, description="mW")
    reg_file_write_dynamic_power: Power = Field(0, description="mW")
    scalar_static_power: Power = Field(0, description="mW")
    scalar_dynamic_power: Power = Field(0, description="mW")
    transfer_static_power: Power = Field(0, description="mW")
    transfer_dynamic_power: Power = Field(0, description="mW")
    controller_static_power: Power = Field(0, description="mW")
    controller_dynamic_power: Power = Field(0, description="mW")
    matrix_config: MatrixConfig = MatrixConfig()
    local_memory_config: MemoryConfig = MemoryConfig()
    global_memory_switch_id: int = GLOBAL_MEMORY_ID


class NetworkConfig(_Schema):
    """The network on chip."""

    bus_topology: str = "mesh"
    bus_width: Positive = Field(16, description="bytes a flit")
    layout: tuple[Positive, Positive] = Field(description="rows, columns of the mesh")
    net_config_file_path: str = NETWORK_FILE


class ChipConfig(_Schema):
    """The whole chip."""

    core_cnt: Positive = 1
    core_config: CoreConfig = CoreConfig()
    global_memory_config: MemoryConfig = MemoryConfig()
    network_config: NetworkConfig
    global_memory_switch_id: int = GLOBAL_MEMORY_ID


class SimConfig(_Schema):
    """How the simulator runs."""

    sim_mode: Annotated[int, Field(ge=0, le=1)] = Field(0, description="0 throughput, 1 latency")
    sim_time: Duration = Field(1, description="ms, throughput mode")
    latency_timeout_ms: Duration = Field(60000, description="simulated ms, latency mode")
    report_verbose_level: Annotated[int, Field(ge=0, le=2)] = 0


class ArchFile(_Schema):
    """A pimsim-nn architecture file."""

    chip_config: ChipConfig
    sim_config: SimConfig = SimConfig()


@dataclass(frozen=True, slots=True)
class Arch:
    """What the compiler needs to know of a chip.

    `memory_size_bytes` is the local memory of a core; `memory_size_enforced` says whether the architecture file names
    it (then exceeding it is an error) or it is the simulator's default (then it is a warning).
    """

    file: ArchFile
    element_bits: int
    memory_size_enforced: bool
    notes: tuple[str, ...] = ()

    @property
    def core_count(self) -> int:
        return self.file.chip_config.core_cnt

    @property
    def xbars_per_core(self) -> int:
        return self._matrix.xbar_array_count

    @property
    def xbar_rows(self) -> int:
        return self._matrix.xbar_size[0]

    @property
    def xbar_cols(self) -> int:
        return self._matrix.xbar_size[1]

    @property
    def cell_bits(self) -> int:
        return self._matrix.cell_precision

    @property
    def outputs_per_xbar(self) -> int:
        """Columns of weights in one crossbar: a weight takes `element_bits` of neighbouring cells."""
        return self.cell_bits * self.xbar_cols // self.element_bits

    @property
    def element_bytes(self) -> int:
        return -(-self.element_bits // 8)

    @property
    def memory_size_bytes(self) -> int:
        return self.file.chip_config.core_config.local_memory_config.memory_size

    @property
    def _matrix(self) -> MatrixConfig:
        return self.file.chip_config.core_config.matrix_config


def presets() -> tuple[str, ...]:
    """Names that `load` takes instead of a path."""
    folder = resources.files("raptor") / "presets"
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")))


def load(
    source: str | Path | None = None,
    *,
    xbar: tuple[int, int] | None = None,
    cores: int | None = None,
    xbars_per_core: int | None = None,
    cell_bits: int | None = None,
    element_bits: int = 8,
) -> Arch:
    """Reads an architecture file or preset and overrides its sizes.

    Without `source` the preset `bench`. With another core count the mesh is laid out anew, as square as possible;
    with smaller crossbars the numbers of DACs and ADCs are lowered to fit (the simulator computes nonsense otherwise).
    Raises `UserError` for a file that cannot be read or does not follow the schema, and for sizes that make no sense.
    """
    raw = _read(source or "bench")
    chip = raw.setdefault("chip_config", {})
    core = chip.setdefault("core_config", {})
    if cores is not None:
        chip["core_cnt"] = cores
        chip.setdefault("network_config", {})["layout"] = list(mesh_layout(cores))
    matrix = core.setdefault("matrix_config", {})
    notes: list[str] = []
    if xbar is not None:
        matrix["xbar_size"] = list(xbar)
        notes += _fit_converters(matrix, xbar)
    if xbars_per_core is not None:
        matrix["xbar_array_count"] = xbars_per_core
    if cell_bits is not None:
        matrix["cell_precision"] = cell_bits
    enforced = "memory_size" in core.get("local_memory_config", {})
    chip.setdefault("network_config", {})["net_config_file_path"] = NETWORK_FILE
    arch = Arch(_parse(raw, source), element_bits, enforced, tuple(notes))
    _check(arch)
    return arch


def mesh_layout(cores: int) -> tuple[int, int]:
    """Rows and columns of the most square mesh that holds `cores`, filled row by row."""
    cols = max(1, math.isqrt(max(cores, 1) - 1) + 1)
    return max(1, -(-cores // cols)), cols


def network_table(arch: Arch) -> dict[str, dict[str, dict[str, int]]]:
    """Per-flit latency (ns) and energy (pJ) for every ordered pair of cores and for global memory.

    2 ns for each router on the path and 46 pJ a flit; 15 ns and 46 pJ to global memory, as in the simulator's example.
    """
    _, cols = arch.file.chip_config.network_config.layout
    ids = range(arch.core_count)
    memory = str(GLOBAL_MEMORY_ID)
    latency: dict[str, dict[str, int]] = {}
    for a in ids:
        hops = (abs(a // cols - b // cols) + abs(a % cols - b % cols) for b in ids)
        latency[str(a)] = {str(b): 2 + 2 * h for b, h in zip(ids, hops, strict=True) if a != b} | {memory: 15}
    latency[memory] = {str(a): 15 for a in ids}
    energy = {src: dict.fromkeys(row, 46) for src, row in latency.items()}
    return {"latency": latency, "energy": energy}


def _read(source: str | Path) -> dict[str, Any]:
    try:
        if str(source) in presets():
            content = (resources.files("raptor") / "presets" / f"{source}.json").read_text()
        else:
            content = Path(source).read_text()
        raw = json.loads(content)
    except OSError as e:
        raise UserError(
            f"architecture {source}: {e.strerror or e}; give a file or one of: {', '.join(presets())}"
        ) from e
    except ValueError as e:
        raise UserError(f"architecture {source}: not a JSON file: {e}") from e
    if not isinstance(raw, dict):
        raise UserError(f"architecture {source}: expected an object with chip_config")
    return raw  # pyright: ignore[reportUnknownVariableType] checked by the schema next


def _parse(raw: dict[str, Any], source: str | Path | None) -> ArchFile:
    try:
        return ArchFile.model_validate(raw)
    except ValidationError as e:
        faults = (f"  {'.'.join(map(str, f['loc']))}: {f['msg']} (got {f['input']!r:.60})" for f in e.errors())
        raise UserError("\n".join([f"architecture {source or 'bench'}:", *faults])) from e


def _fit_converters(matrix: dict[str, Any], xbar: tuple[int, int]) -> list[str]:
    notes: list[str] = []
    for key, limit in (("dac_count", xbar[0]), ("adc_count", xbar[1])):
        count = matrix.get(key)
        if isinstance(count, int) and count > limit:
            matrix[key] = limit
            notes.append(f"{key} lowered from {count} to {limit} to fit a crossbar of {xbar[0]}x{xbar[1]}")
    return notes


def _check(arch: Arch) -> None:
    if not 1 <= arch.element_bits <= 32:
        raise UserError(f"--bits {arch.element_bits}: expected 1 to 32")
    if arch.outputs_per_xbar < 1:
        cells = -(-arch.element_bits // arch.cell_bits)
        raise UserError(
            f"a weight of {arch.element_bits} bits takes {cells} cells of {arch.cell_bits} bits, but a crossbar has "
            f"only {arch.xbar_cols} columns; try --xbar {arch.xbar_rows}x{cells} or --cell-bits {arch.element_bits}"
        )
    rows, cols = arch.file.chip_config.network_config.layout
    if rows * cols < arch.core_count:
        raise UserError(f"network layout {rows}x{cols} has no room for {arch.core_count} cores")
