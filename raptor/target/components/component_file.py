"""The file of a chip's components (TOML): each part with its time, energy, static power, area and their source."""

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from raptor.common.errors import UserError
from raptor.common.files.file_access import read_bytes
from raptor.target.arch.area_table import AreaKind
from raptor.target.arch.flit_cost import MOST_CORES
from raptor.target.components.part_tables import fill_from_tables

LIMIT_BYTES = 2**16
EXAMPLE = "example"
_MOST_FAULTS = 5

Count = Annotated[int, Field(ge=1, le=2**20)]
Ns = Annotated[float, Field(gt=0, le=1e6)]
Pj = Annotated[float, Field(ge=0, le=1e9)]
Mw = Annotated[float, Field(ge=0, le=1e9)]
Um2 = Annotated[float, Field(ge=0, le=1e12)]
Cite = Annotated[str, Field(min_length=1, max_length=400)]


class _ComponentTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ChipPart(_ComponentTable):
    """Static power and area of one part. Without `um2` the area is not known, and the chip's neither."""

    table: Literal["isaac", "puma"] | None = Field(None, description="published chip that gives what is left out")
    static_mw: Mw = Field(0.0, description="static power of one part")
    um2: Um2 | None = Field(None, description="area of one part; left out: not known")
    low_um2: Um2 | None = Field(None, description="least area")
    high_um2: Um2 | None = Field(None, description="most area")
    kind: AreaKind = Field("ASSUMED", description="evidence for the area")
    cite: Cite | None = Field(None, description="source of the numbers; needed for every kind but ASSUMED")


class ChipSizes(_ComponentTable):
    """The chip and its clock."""

    cores: Annotated[int, Field(ge=1, le=MOST_CORES)] = Field(description="cores")
    clock_ns: Ns = Field(1.0, description="period of a core and of its memories")
    rob_size: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="instructions in flight")


class CrossbarPart(ChipPart):
    """The array of cells. `um2` is of the whole array."""

    per_core: Count = Field(description="crossbars of a core")
    rows: Count
    cols: Count
    cell_bits: Annotated[int, Field(ge=1, le=16)]
    read_ns: Ns = Field(description="time of one read of the array")
    read_pj: Pj = Field(description="energy of one read of the array")


class ConverterTiming(_ComponentTable):
    """Time steps of a crossbar's periphery. Times of converters and digital parts are whole numbers of periods."""

    period_ns: Ns | None = Field(None, description="left out: the time of a conversion")
    pipelined: bool = Field(True, description="a crossbar is read while the ADCs convert the read before")


class AdcPart(ChipPart):
    """ADCs. Either `rate_gsps` or, for a converter that decides bit after bit, `bit_ns`.

    `model` "survey" gives energy, static power and area by `adc_model.estimate_adc`; else `pj` is needed.
    """

    bits: Annotated[int, Field(ge=1, le=20)] = Field(description="resolution")
    per_crossbar: Count = Field(description="ADCs of a crossbar")
    rate_gsps: Annotated[float, Field(gt=0, le=1e3)] | None = Field(None, description="conversions a nanosecond")
    bit_ns: Ns | None = Field(None, description="time of one bit: a conversion takes `bits` of them")
    model: Literal["survey"] | None = Field(None, description="left out: the numbers are given here")
    pj: Pj | None = Field(None, description="energy of a conversion")

    @property
    def conversion_ns(self) -> float:
        return 1 / self.rate_gsps if self.rate_gsps is not None else self.bits * (self.bit_ns or 0.0)


class DacPart(ChipPart):
    """DACs, or row drivers. Static power and area are of one."""

    bits: Annotated[int, Field(ge=1, le=16)] = Field(1, description="bits of an input that a pass takes")
    per_crossbar: Count | None = Field(None, description="rows driven at once; left out: all")
    periods: Annotated[int, Field(ge=1, le=10**6)] = Field(1, description="periods before the array is read")
    pj: Pj = Field(description="energy of one row in a pass, for as long as it is driven")


class PeripheryPart(ChipPart):
    """A part that handles the results of a crossbar. `pj` is of one column in a pass; area of the crossbar's part."""

    periods: Annotated[int, Field(ge=0, le=10**6)] = Field(1, description="periods that it takes")
    pj: Pj = Field(0.0, description="energy of one column in a pass")


class MemoryPart(ChipPart):
    """A memory with one port. `read_pj` and `write_pj` are of `width` bytes.

    `model` "sram" gives times, energies, static power and area by `sram_model.estimate_sram`.
    """

    bytes: Annotated[int, Field(ge=1, le=2**40)]
    width: Count = Field(description="bytes of an access")
    model: Literal["sram"] | None = Field(None, description="left out: the numbers are given here")
    read_ns: Ns | None = None
    write_ns: Ns | None = None
    read_pj: Pj = 0.0
    write_pj: Pj = 0.0


class VectorPart(ChipPart):
    """The vector unit of a core."""

    lanes: Count = Field(description="elements at a time")
    step_ns: Ns = Field(description="time for `lanes` elements")
    lane_pj: Pj = Field(0.0, description="energy of one element")


class RouterPart(ChipPart):
    """Routers of the mesh: a flit takes `ns` and `pj` at each router and `wire_pj` between two."""

    shared_by: Count = Field(1, description="cores that share a router's area")
    flit_bytes: Count
    ns: Ns
    pj: Pj = 0.0
    wire_pj: Pj = 0.0
    memory_ns: Ns | None = Field(None, description="time of a flit to global memory; left out: `ns` of two routers")


class DevicePart(_ComponentTable):
    """The cells, for accuracies: a device file or preset, whose bits follow this file."""

    preset: str = Field(description="preset of raptor arch device")


NO_PART = ChipPart.model_validate({"um2": 0.0})
NO_PERIPHERY = PeripheryPart.model_validate({"um2": 0.0, "periods": 0})
"""Parts that a chip does not have."""


class ComponentFile(_ComponentTable):
    """A chip as a list of its components."""

    version: Literal[1] = 1
    node_nm: Annotated[float, Field(ge=1, le=1000)] = Field(description="process node of all parts")
    chip: ChipSizes
    crossbar: CrossbarPart
    adc: AdcPart
    dac: DacPart
    sample_hold: PeripheryPart = NO_PERIPHERY
    shift_add: PeripheryPart = NO_PERIPHERY
    output_buffer: PeripheryPart = NO_PERIPHERY
    input_buffer: ChipPart = NO_PART
    converters: ConverterTiming = ConverterTiming.model_validate({})
    vector: VectorPart
    controller: ChipPart = ChipPart.model_validate({})
    local_memory: MemoryPart
    global_memory: MemoryPart
    router: RouterPart
    link: ChipPart | None = None
    device: DevicePart | None = None


def read_component_file(source: str | Path, changes: Sequence[str] = ()) -> ComponentFile:
    """Reads a component file, or the shipped one by the name `example`, and sets values such as `adc.bits=6`.

    Raises `UserError` that names the file and the values at fault.
    """
    path = Path(source)
    if str(source) == EXAMPLE:
        content = (resources.files("raptor.target.components") / "example.toml").read_bytes()
    elif path.is_file():
        content = read_bytes(path.parent, path.name, limit_bytes=LIMIT_BYTES)
    else:
        raise UserError(f"--components {source}: no such file; give a file, or {EXAMPLE}")
    try:
        raw = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise UserError(f"--components {source}: not a TOML file: {e}") from e
    for change in changes:
        _change(raw, change)
    try:
        return ComponentFile.model_validate(fill_from_tables(raw))
    except ValidationError as e:
        faults = [f"  {_place(fault['loc'])}: {fault['msg']}" for fault in e.errors(include_url=False)]
        more = [f"  and {len(faults) - _MOST_FAULTS} more"] if len(faults) > _MOST_FAULTS else []
        raise UserError("\n".join([f"--components {source}:", *faults[:_MOST_FAULTS], *more])) from e


def _place(location: Sequence[object]) -> str:
    return ".".join(map(str, location))


def _change(raw: dict[str, Any], change: str) -> None:
    """Sets the value of `part.name=value` in the raw file."""
    name, equals, text = change.partition("=")
    part, dot, key = name.strip().partition(".")
    if not equals or not part or (dot and not key):
        raise UserError(f"--set {change}: expected PART.NAME=VALUE, such as adc.bits=6")
    value = _parse_value(text.strip())
    if not dot:
        raw[part] = value
        return
    section = raw.setdefault(part, {})
    if not isinstance(section, Mapping):
        raise UserError(f"--set {change}: {part} is a value, not a part")
    cast(dict[str, Any], section)[key] = value


def _parse_value(text: str) -> object:
    """Parses a value as TOML does; other text is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
