"""The schema of a pimsim-nn architecture file: names, units, defaults and effect of each field.

Names and defaults are those of the simulator. It ignores misspelt fields; RAPTOR refuses them. In the ranges given
here, the simulator works; outside, it also accepts zeros that make it hang (`period`, `rob_size`) or divide by zero.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from raptor.common.files.schema_types import is_none
from raptor.target.arch.area_table import AreaKind, AreaLevel

GLOBAL_MEMORY_ID = -10
NETWORK_FILE = "network.json"
ARCH_LIMIT_BYTES = 2**20
"""Largest architecture file: all its mistakes are collected, and each takes a kilobyte of memory."""

Positive = Annotated[int, Field(gt=0, le=2**31 - 1)]
NonNegative = Annotated[int, Field(ge=0, le=2**31 - 1)]
Power = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=1e-3, le=1e9, allow_inf_nan=False)]
"""Time in ns: from the resolution of the simulator to a second."""
SimulatedTime = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_NOT_COUNTED = "mW; the simulator does not count it"


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MatrixConfig(_Schema):
    """Crossbars of a core and their converters. One MVM takes ibiw/dac_resolution * rows/dac_count steps."""

    xbar_array_count: Positive = Field(default=1, description="crossbars in a core: the limit for its array groups")
    xbar_size: tuple[Positive, Positive] = Field(
        default=(128, 128), description="rows (inputs), columns of one crossbar"
    )
    cell_precision: Positive = Field(
        default=2, description="bits of a cell; a weight takes neighbouring cells of a row"
    )
    period: Duration = Field(default=0.78125, description="ns, clock of the crossbars and converters")
    pipeline_mode: bool = Field(
        default=True, description="whether conversion overlaps with the next read of the crossbar"
    )
    dac_resolution: Positive = Field(
        default=1, description="bits of input converted at a time; at most the input width"
    )
    dac_count: Positive = Field(default=128, description="DACs of a crossbar; at most, and best a divisor of, its rows")
    dac_latency_cycle: NonNegative = Field(default=1, description="cycles of the matrix period")
    dac_dynamic_power: Power = Field(default=0, description="mW of one DAC while it converts")
    dac_static_power: Power = Field(default=0, description=_NOT_COUNTED)
    xbar_latency: Duration = Field(default=30, description="ns to read a crossbar (not cycles)")
    xbar_read_power: Power = Field(default=0, description="mW of one crossbar while it is read")
    sample_hold_latency_cycle: NonNegative = Field(default=1, description="cycles of the matrix period")
    sample_hold_dynamic_power: Power = Field(default=0, description="mW of one column")
    sample_hold_static_power: Power = Field(default=0, description=_NOT_COUNTED)
    adc_resolution: Positive = Field(default=1, description="bits; no effect in the simulator")
    adc_count: Positive = Field(
        default=1, description="ADCs of a crossbar; at most, and best a divisor of, its columns"
    )
    adc_latency_cycle: NonNegative = Field(default=1, description="cycles of the matrix period for one conversion")
    adc_dynamic_power: Power = Field(default=0, description="mW of one ADC while it converts")
    adc_static_power: Power = Field(default=0, description=_NOT_COUNTED)
    shift_adder_latency_cycle: NonNegative = Field(default=1, description="cycles of the matrix period")
    shift_adder_dynamic_power: Power = Field(default=0, description="mW while it adds")
    shift_adder_static_power: Power = Field(default=0, description=_NOT_COUNTED)
    input_buffer_dynamic_power: Power = Field(default=0, description="mW; no effect, its latency is always 0")
    input_buffer_static_power: Power = Field(default=0, description=_NOT_COUNTED)
    output_buffer_latency_cycle: NonNegative = Field(default=1, description="cycles of the matrix period")
    output_buffer_dynamic_power: Power = Field(default=0, description="mW while it is written")
    output_buffer_static_power: Power = Field(default=0, description=_NOT_COUNTED)


class MemoryConfig(_Schema):
    """A local memory, or the global one: one port; an access takes ceil(bytes / data_width) beats."""

    data_width: Positive = Field(default=16, description="bytes a beat")
    period: Duration = Field(default=1, description="ns")
    read_latency_cycle: NonNegative = Field(default=8, description="cycles of the memory's period for one beat")
    write_latency_cycle: NonNegative = Field(default=10, description="cycles of the memory's period for one beat")
    memory_size: Positive = Field(default=2**20, description="bytes; not enforced by the simulator, so checked here")
    static_power: Power = Field(default=1, description="mW")
    read_dynamic_energy: Power = Field(default=0, description="pJ a beat")
    write_dynamic_energy: Power = Field(default=0, description="pJ a beat")


class CoreConfig(_Schema):
    """A core; all cores are equal."""

    period: Duration = Field(default=1, description="ns, clock of the pipeline; everything is rounded up to it")
    rob_size: Positive = Field(default=1, description="instructions in flight; with 1 nothing overlaps in a core")
    vector_width: Positive = Field(default=16, description="elements a step")
    vector_latency_cycle: NonNegative = Field(default=8, description="ns a step (not cycles, whatever the name says)")
    vector_alu_dynamic_energy: Power = Field(default=0, description="pJ a step")
    vector_alu_static_power: Power = Field(default=0, description="mW")
    vector_reg_read_dynamic_energy: Power = Field(default=0, description="pJ, twice a step")
    vector_reg_write_dynamic_energy: Power = Field(default=0, description="pJ a step")
    vector_reg_static_power: Power = Field(default=0, description="mW")
    inst_fetch_static_power: Power = Field(default=0, description="mW")
    inst_fetch_dynamic_power: Power = Field(default=0, description="mW for one period per instruction")
    inst_decode_static_power: Power = Field(default=0, description="mW")
    inst_decode_dynamic_power: Power = Field(default=0, description="mW for one or two periods per instruction")
    inst_decode_offset_static_power: Power = Field(default=0, description="mW")
    inst_decode_offset_dynamic_power: Power = Field(default=0, description="mW, as inst_decode_dynamic_power")
    reg_file_static_power: Power = Field(default=0, description="mW")
    reg_file_read_dynamic_power: Power = Field(default=0, description="mW for about two periods per scalar instruction")
    reg_file_write_dynamic_power: Power = Field(default=0, description="mW for about one period per scalar instruction")
    scalar_static_power: Power = Field(default=0, description="mW")
    scalar_dynamic_power: Power = Field(default=0, description="mW for one period per execution")
    transfer_static_power: Power = Field(default=0, description="mW")
    transfer_dynamic_power: Power = Field(default=0, description=_NOT_COUNTED)
    controller_static_power: Power = Field(default=0, description=_NOT_COUNTED)
    controller_dynamic_power: Power = Field(default=0, description=_NOT_COUNTED)
    matrix_config: MatrixConfig = Field(default=MatrixConfig(), description="crossbars and converters")
    local_memory_config: MemoryConfig = Field(default=MemoryConfig(), description="the core's own memory")
    global_memory_switch_id: int = Field(
        default=GLOBAL_MEMORY_ID, description="the same as in chip_config, or it crashes"
    )


class NetworkConfig(_Schema):
    """The network on chip: a table of ns and pJ per flit for each ordered pair, without contention."""

    bus_topology: str = Field(default="mesh", description="no effect in the simulator: the table counts")
    bus_width: Positive = Field(default=16, description="bytes a flit")
    layout: tuple[Positive, Positive] = Field(
        description="rows, columns of the built-in mesh; without effect beside a table"
    )
    net_config_file_path: str = Field(
        NETWORK_FILE, description="the table, relative to this file; without it RAPTOR takes the built-in mesh"
    )


class ChipConfig(_Schema):
    """The whole chip."""

    core_cnt: Positive = Field(default=1, description="cores; programs may use fewer")
    core_config: CoreConfig = Field(default=CoreConfig(), description="one core")
    global_memory_config: MemoryConfig = Field(default=MemoryConfig(), description="the memory all cores share")
    network_config: NetworkConfig = Field(description="the network on chip")
    global_memory_switch_id: int = Field(default=GLOBAL_MEMORY_ID, description="name of the global memory in the table")


class SimConfig(_Schema):
    """Settings of a simulation."""

    sim_mode: Annotated[int, Field(ge=0, le=1)] = Field(default=0, description="0 throughput (streams loop), 1 latency")
    sim_time: SimulatedTime = Field(default=1, description="simulated ms, throughput mode only")
    latency_timeout_ms: SimulatedTime = Field(
        default=60000, description="simulated ms until a hanging program is stopped, latency mode"
    )
    report_verbose_level: Annotated[int, Field(ge=0, le=2)] = Field(
        default=0, description="1 adds a line a core; 2 aborts"
    )


class ChipsConfig(_Schema):
    """Several equal chips in a row, each linked with the next; the first has the global memory.

    The simulator ignores this section: the network table has the latencies and energies that follow from it.
    """

    count: Annotated[int, Field(ge=2, le=2**16)] = Field(description="chips; each has an equal part of core_cnt")
    link_ns: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = Field(
        description="ns that a flit takes more over each link, which carries one flit in this time"
    )
    link_pj: Power = Field(description="pJ of a flit over a link")


Area = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1, max_length=500)]


class AreaPartConfig(_Schema):
    """A part of the chip with its area. A part whose area is not known has none, and then the chip has none."""

    name: Text = Field(description="what it is")
    level: AreaLevel = Field(description="whether `count` is for each crossbar, each core or the chip")
    count: Annotated[float, Field(gt=0, le=1e9)] = Field(default=1, description="parts; below 1 for a shared one")
    um2: Area | None = Field(default=None, description="um2 of one part; null: not known")
    low_um2: Area | None = Field(default=None, description="least um2; null: as um2")
    high_um2: Area | None = Field(default=None, description="most um2; null: as um2")
    kind: AreaKind = Field(
        description="MEASURED on silicon, PUBLISHED (the model of a paper), MODELLED by a tool, or ASSUMED"
    )
    source: Text = Field(description="where the number can be looked up")


class AreaConfig(_Schema):
    """Areas of the chip. The simulator ignores this section.

    The sizes say for which chip the areas are; a chip of another size has no known area. A size that is left out may
    have any value.
    """

    node_nm: Annotated[float, Field(ge=1, le=1000)] = Field(description="process node")
    cores: Positive | None = Field(default=None, description="cores of a chip")
    xbars_per_core: Positive | None = Field(default=None, description="xbar_array_count")
    xbar_size: tuple[Positive, Positive] | None = Field(default=None, description="rows, columns of a crossbar")
    adc_count: Positive | None = Field(default=None, description="ADCs a crossbar")
    adc_bits: Positive | None = Field(default=None, description="adc_resolution")
    parts: Annotated[tuple[AreaPartConfig, ...], Field(min_length=1, max_length=200)] = Field(description="the parts")


Interface = Literal["core", "crossbar", "wordline"]


class ArchFile(_Schema):
    """A pimsim-nn architecture file."""

    chip_config: ChipConfig = Field(description="the hardware")
    sim_config: SimConfig = Field(default=SimConfig(), description="the simulation")
    chips: ChipsConfig | None = Field(default=None, exclude_if=is_none, description="left out for one chip")
    area: AreaConfig | None = Field(default=None, exclude_if=is_none, description="left out if no areas are known")
    interface: Interface | None = Field(
        default=None,
        exclude_if=is_none,
        description="what a program can ask of the crossbars: that cores compute a layer (core), that crossbars "
        "multiply (crossbar, as without this field), or that some of their rows do, dac_count at once (wordline); "
        "only the file of --emit-ops depends on it",
    )


def field_model(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Returns the schema of a field that is an object; None for other fields."""
    known = model.model_fields.get(name)
    annotation = known.annotation if known else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
