"""The device file: cells of a crossbar, its read-out, time and energy of writing it, and the writes that it endures.

It stands beside the architecture file, whose format has no field for them. Numbers of real devices differ by four
orders of magnitude, and a fast write costs endurance, so a file describes one device of one source.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from raptor.common.errors import UserError
from raptor.common.files import file_access
from raptor.common.files.schema_types import StrictSchema
from raptor.common.options.arguments import parse_path
from raptor.target.cell_models import CellModel, ReadOut

_LIMIT_BYTES = 2**16
Positive = Annotated[float, Field(gt=0, le=1e18)]
Time = Annotated[float, Field(ge=0, le=1e18)]


class WriteCost(StrictSchema):
    """Cost of a write. `at_once`: crossbars that are written at the same time; null: all of them."""

    unit: Literal["cell", "row", "crossbar"] = Field(description="what one write of `ns` sets")
    ns: Time = Field(description="time of one pulse on a unit; 0: not known, and a write takes no time")
    verify_pulses: Positive = Field(1.0, description="mean number of pulses until the cells hold their values")
    pj_per_cell: Positive | None = Field(None, description="energy of a written cell; null: not known")
    at_once: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        None, description="crossbars written at the same time; null: all"
    )

    at_once_per_core: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        None, description="crossbars of a core written at the same time; null: all"
    )
    bytes_per_ns: Positive | None = Field(None, description="bytes of cells that the host sends; null: no limit")

    def time_ns(self, rows: int, cells: int) -> float:
        """Returns the time to write `rows` rows that have `cells` cells in all."""
        units = {"cell": cells, "row": rows, "crossbar": 1}[self.unit]
        return units * self.ns * self.verify_pulses

    def all_ns(self, writes: "Sequence[CrossbarWrite]", cell_bits: int) -> float:
        """Returns the time to write some crossbars of a chip, as many at the same time as the device can."""
        times: defaultdict[int, list[float]] = defaultdict(list)
        for write in writes:
            times[write.core].append(self.time_ns(write.rows, write.cells))
        cores = max((_in_turns(found, self.at_once_per_core) for found in times.values()), default=0.0)
        chip = _in_turns([ns for found in times.values() for ns in found], self.at_once)
        sent = sum(w.cells for w in writes) * cell_bits / 8 / self.bytes_per_ns if self.bytes_per_ns else 0.0
        return max(cores, chip, sent)


UNKNOWN_WRITE_COST = WriteCost.model_validate({"unit": "row", "ns": 0.0})


class CrossbarWrite(NamedTuple):
    """The write of one crossbar of a core: its rows that hold weights, and the cells in them."""

    core: int
    rows: int
    cells: int


def _in_turns(times: Sequence[float], at_once: int | None) -> float:
    """Returns the time of writes of which `at_once` run at the same time, the longest first."""
    step = at_once or max(1, len(times))
    return sum(sorted(times, reverse=True)[::step])


class ProductCost(StrictSchema):
    """Cost of a product of a vector and a crossbar, if the source of the device gives it."""

    ns: Positive = Field(description="time of a product")
    pj_per_cell: Positive = Field(description="energy of a cell that takes part")


class DeviceFile(StrictSchema):
    """A device: the cells of a crossbar as one source describes them."""

    version: Literal[1]
    name: Annotated[str, Field(min_length=1, max_length=100)]
    source: Annotated[str, Field(min_length=1, max_length=2000)] = Field(
        description="document that has the numbers, and what is assumed"
    )
    cells: CellModel | None = Field(None, description="null: ideal cells")
    read_out: ReadOut = Field(ReadOut(), description="left out: offset encoding and ideal converters")
    write: WriteCost = Field(default=UNKNOWN_WRITE_COST, description="left out: not known; then a write takes no time")
    product: ProductCost | None = Field(None, description="null: as the architecture file says")
    endurance_cycles: Annotated[int, Field(ge=1, le=10**18)] | None = Field(
        None, description="writes that a cell endures; null: not known, or unlimited"
    )

    def years(self, writes_per_second: float) -> float | None:
        """Returns the life of a cell that is written so often; None if the endurance is not known."""
        if self.endurance_cycles is None:
            return None
        seconds = self.endurance_cycles / writes_per_second if writes_per_second else math.inf
        return seconds / (365.25 * 24 * 3600)


def device_presets() -> tuple[str, ...]:
    """Returns the names of the device files that come with RAPTOR."""
    return tuple(sorted(file.name.removesuffix(".json") for file in _folder().iterdir() if file.name.endswith(".json")))


def load_device(source: str | Path) -> DeviceFile:
    """Reads a device file, or a preset by its name. Raises `UserError` that names the file and the field at fault."""
    file = parse_path("device", source)
    if str(source) in device_presets():
        file = Path(str(_folder())) / f"{source}.json"
    elif not file.is_file():
        raise UserError(f"device {file}: no such file; give a file or one of: {', '.join(device_presets())}")
    return file_access.read_json_file(DeviceFile, file.parent, file.name, limit_bytes=_LIMIT_BYTES)


def _folder() -> Traversable:
    return resources.files("raptor.target") / "devices"
