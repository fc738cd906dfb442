"""Conversion between targets and architecture files of pimsim-nn, in both directions.

Each table below pairs the fields of a section of the file with the fields of a record of `Target`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.target.arch.area_table import AreaPart, AreaTable
from raptor.target.arch.flit_cost_table import FlitCostTable
from raptor.target.arch.pimsim_schema import (
    ARCH_LIMIT_BYTES,
    NETWORK_FILE,
    ArchFile,
    AreaConfig,
    ChipConfig,
    CoreConfig,
    MatrixConfig,
    MemoryConfig,
    NetworkConfig,
)
from raptor.target.arch.target import (
    Converters,
    Core,
    CorePower,
    CrossbarHardware,
    CrossbarPower,
    Link,
    Memory,
    MemoryEnergy,
    Network,
    SimulatorSettings,
    Target,
    Widths,
)

T = TypeVar("T")
FieldNames = Mapping[str, str]
"""Field names in the file -> field names in a record of `Target`."""

_MEMORY: FieldNames = {
    "data_width": "beat_bytes",
    "period": "period_ns",
    "read_latency_cycle": "read_cycles",
    "write_latency_cycle": "write_cycles",
    "memory_size": "size_bytes",
}
_MEMORY_ENERGY: FieldNames = {
    "static_power": "static_mw",
    "read_dynamic_energy": "read_pj",
    "write_dynamic_energy": "write_pj",
}
_CONVERTERS: FieldNames = {
    "period": "period_ns",
    "pipeline_mode": "pipelined",
    "dac_resolution": "dac_bits",
    "dac_count": "dacs",
    "dac_latency_cycle": "dac_cycles",
    "sample_hold_latency_cycle": "sample_hold_cycles",
    "adc_resolution": "adc_bits",
    "adc_count": "adcs",
    "adc_latency_cycle": "adc_cycles",
    "shift_adder_latency_cycle": "shift_add_cycles",
    "output_buffer_latency_cycle": "output_buffer_cycles",
}
_CROSSBAR: FieldNames = {"cell_precision": "cell_bits", "xbar_latency": "read_ns"}
_CROSSBAR_POWER: FieldNames = {
    "xbar_read_power": "read_mw",
    "dac_dynamic_power": "dac_mw",
    "dac_static_power": "dac_static_mw",
    "sample_hold_dynamic_power": "sample_hold_mw",
    "sample_hold_static_power": "sample_hold_static_mw",
    "adc_dynamic_power": "adc_mw",
    "adc_static_power": "adc_static_mw",
    "shift_adder_dynamic_power": "shift_add_mw",
    "shift_adder_static_power": "shift_add_static_mw",
    "input_buffer_dynamic_power": "input_buffer_mw",
    "input_buffer_static_power": "input_buffer_static_mw",
    "output_buffer_dynamic_power": "output_buffer_mw",
    "output_buffer_static_power": "output_buffer_static_mw",
}
_CORE: FieldNames = {
    "period": "period_ns",
    "rob_size": "rob_size",
    "vector_width": "vector_width",
    # The unit is ns, although the name of the field says cycles.
    "vector_latency_cycle": "vector_step_ns",
}
_CORE_POWER: FieldNames = {
    "vector_alu_dynamic_energy": "vector_step_pj",
    "vector_alu_static_power": "vector_static_mw",
    "vector_reg_read_dynamic_energy": "vector_read_pj",
    "vector_reg_write_dynamic_energy": "vector_write_pj",
    "vector_reg_static_power": "vector_registers_static_mw",
    "inst_fetch_dynamic_power": "fetch_mw",
    "inst_fetch_static_power": "fetch_static_mw",
    "inst_decode_dynamic_power": "decode_mw",
    "inst_decode_static_power": "decode_static_mw",
    "inst_decode_offset_dynamic_power": "decode_offset_mw",
    "inst_decode_offset_static_power": "decode_offset_static_mw",
    "reg_file_read_dynamic_power": "register_read_mw",
    "reg_file_write_dynamic_power": "register_write_mw",
    "reg_file_static_power": "registers_static_mw",
    "scalar_dynamic_power": "scalar_mw",
    "scalar_static_power": "scalar_static_mw",
    "transfer_dynamic_power": "transfer_mw",
    "transfer_static_power": "transfer_static_mw",
    "controller_dynamic_power": "controller_mw",
    "controller_static_power": "controller_static_mw",
}
_NETWORK: FieldNames = {"bus_topology": "topology", "bus_width": "flit_bytes"}
_LINK: FieldNames = {"link_ns": "ns", "link_pj": "pj"}
_SIMULATOR: FieldNames = {
    "sim_time": "throughput_ms",
    "latency_timeout_ms": "timeout_ms",
    "report_verbose_level": "verbosity",
}


def arch_presets() -> tuple[str, ...]:
    """Returns the names of the architecture files that come with RAPTOR; they can be given instead of a path."""
    folder = resources.files("raptor.target") / "presets"
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")))


def read_arch(source: str | Path) -> dict[str, Any]:
    """Reads an architecture file, or a preset: a JSON object in UTF-8 of at most `ARCH_LIMIT_BYTES`.

    Does not check the content of the object. Raises `UserError`, which names the file.
    """
    try:
        raw = json.loads(_content(source).decode())
    except OSError as e:
        raise UserError(
            f"architecture {source}: {e.strerror or e}; give a file or one of: {', '.join(arch_presets())}"
        ) from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"architecture {source}: not a JSON file: {e}") from e
    if not isinstance(raw, dict):
        raise UserError(f"architecture {source}: expected an object with chip_config")
    return raw  # pyright: ignore[reportUnknownVariableType] callers check it by the schema


def _content(source: str | Path) -> bytes:
    if str(source) in arch_presets():
        return (resources.files("raptor.target") / "presets" / f"{source}.json").read_bytes()
    with Path(source).open("rb") as stream:
        content = stream.read(ARCH_LIMIT_BYTES + 1)
    if len(content) > ARCH_LIMIT_BYTES:
        raise UserError(f"architecture {source}: more than the {ARCH_LIMIT_BYTES} bytes expected")
    return content


def read_stored_target(folder: Path, name: str) -> Target:
    """Reads the architecture file of an output directory, without its network table. Raises `UserError`."""
    return ChipDescription(file_access.read_json_file(ArchFile, folder, name, limit_bytes=ARCH_LIMIT_BYTES)).target()


def make_default_target(cores: int, layout: tuple[int, int]) -> Target:
    """Returns the target of `cores` cores on a mesh of rows and columns, with the simulator's default for all else."""
    network = NetworkConfig(layout=layout, net_config_file_path=NETWORK_FILE)
    chip = ChipConfig(core_cnt=cores, network_config=network)
    return ChipDescription(ArchFile(chip_config=chip)).target()


@dataclass(frozen=True, slots=True)
class ChipDescription:
    """An architecture file that follows the schema.

    `table`: the network table that it names; None if it was not read, or is the mesh's table. `notes`: see `Target`.
    """

    file: ArchFile
    table: FlitCostTable | None = None
    notes: tuple[str, ...] = ()

    @property
    def network_file(self) -> str | None:
        """Path of the network table as the file gives it; None if it gives none."""
        network = self.file.chip_config.network_config
        return network.net_config_file_path if "net_config_file_path" in network.model_fields_set else None

    @property
    def memory_ids(self) -> tuple[int, int]:
        """Name of the global memory in the network table: (for the chip, for its cores)."""
        chip = self.file.chip_config
        return chip.global_memory_switch_id, chip.core_config.global_memory_switch_id

    def target(self, element_bits: int = 8) -> Target:
        """Makes the target that the file describes, with elements of `element_bits` everywhere."""
        chip, chips, sim = self.file.chip_config, self.file.chips, self.file.sim_config
        rows, cols = chip.network_config.layout
        link = None if chips is None else _read(Link, _LINK, chips)
        places = {"rows": rows, "cols": cols, "memory_id": chip.global_memory_switch_id}
        return Target(
            core_count=chip.core_cnt,
            chips=chips.count if chips else 1,
            core=_core(chip.core_config),
            memory=_memory(chip.global_memory_config),
            network=_read(Network, _NETWORK, chip.network_config, **places, table=self.table, link=link),
            widths=Widths(element_bits, element_bits, element_bits),
            simulator=_read(SimulatorSettings, _SIMULATOR, sim, is_latency_mode=sim.sim_mode == 1),
            interface=self.file.interface,
            area=None if self.file.area is None else _area(self.file.area),
            notes=self.notes,
        )


def _area(area: AreaConfig) -> AreaTable:
    """Returns the table of areas. A part without a range has its area as both ends."""
    parts = tuple(
        AreaPart(
            name=part.name,
            level=part.level,
            count=part.count,
            um2=part.um2,
            low_um2=part.um2 if part.low_um2 is None else part.low_um2,
            high_um2=part.um2 if part.high_um2 is None else part.high_um2,
            kind=part.kind,
            source=part.source,
        )
        for part in area.parts
    )
    sizes = area.model_dump(exclude={"parts"})
    return AreaTable(**sizes, parts=parts)


def _read(record: Callable[..., T], names: FieldNames, section: BaseModel, **others: object) -> T:
    return record(**{ours: getattr(section, theirs) for theirs, ours in names.items()}, **others)


def _core(core: CoreConfig) -> Core:
    return _read(
        Core,
        _CORE,
        core,
        xbar_count=core.matrix_config.xbar_array_count,
        xbar=_crossbar(core.matrix_config),
        memory=_memory(core.local_memory_config),
        power=_read(CorePower, _CORE_POWER, core),
    )


def _crossbar(matrix: MatrixConfig) -> CrossbarHardware:
    rows, cols = matrix.xbar_size
    converters, power = _read(Converters, _CONVERTERS, matrix), _read(CrossbarPower, _CROSSBAR_POWER, matrix)
    return _read(CrossbarHardware, _CROSSBAR, matrix, rows=rows, cols=cols, converters=converters, power=power)


def _memory(memory: MemoryConfig) -> Memory:
    given = "memory_size" in memory.model_fields_set
    return _read(Memory, _MEMORY, memory, size_given=given, energy=_read(MemoryEnergy, _MEMORY_ENERGY, memory))


def arch_json(target: Target) -> bytes:
    """Returns the architecture file of a target, with every field; its network table is `NETWORK_FILE` beside it.

    Widths of elements, notes and places have no field in the file.
    """
    return file_access.model_to_json(_file(target))


def hardware_json(target: Target) -> str:
    """Returns the hardware of `arch_json` as text, without links between chips and settings of the simulator."""
    return _file(target).chip_config.model_dump_json()


def _file(target: Target) -> ArchFile:
    network, link = target.network, target.network.link
    chips = None if link is None else {"count": target.chips} | _written(_LINK, link)
    places = {"layout": (network.rows, network.cols), "net_config_file_path": NETWORK_FILE}
    chip = {
        "core_cnt": target.core_count,
        "core_config": _core_section(target.core, network.memory_id),
        "global_memory_config": _memory_section(target.memory),
        "network_config": _written(_NETWORK, network) | places,
        "global_memory_switch_id": network.memory_id,
    }
    sim = _written(_SIMULATOR, target.simulator) | {"sim_mode": int(target.simulator.is_latency_mode)}
    sections = {"chip_config": chip, "sim_config": sim, "chips": chips, "interface": target.interface}
    if target.area is not None:
        sections["area"] = asdict(target.area)
    return ArchFile.model_validate(sections)


def _written(names: FieldNames, record: object) -> dict[str, Any]:
    return {theirs: getattr(record, ours) for theirs, ours in names.items()}


def _core_section(core: Core, memory_id: int) -> dict[str, Any]:
    xbar = core.xbar
    matrix = _written(_CONVERTERS, xbar.converters) | _written(_CROSSBAR, xbar) | _written(_CROSSBAR_POWER, xbar.power)
    return (
        _written(_CORE, core)
        | _written(_CORE_POWER, core.power)
        | {
            "matrix_config": matrix | {"xbar_array_count": core.xbar_count, "xbar_size": (xbar.rows, xbar.cols)},
            "local_memory_config": _memory_section(core.memory),
            "global_memory_switch_id": memory_id,
        }
    )


def _memory_section(memory: Memory) -> dict[str, Any]:
    return _written(_MEMORY, memory) | _written(_MEMORY_ENERGY, memory.energy)
