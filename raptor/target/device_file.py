"""The device file: cells of a crossbar, its read-out, time and energy of writing it, and the writes that it endures.

It stands beside the architecture file, whose format has no field for them. Numbers of real devices differ by four
orders of magnitude, and a fast write costs endurance, so a file describes one device of one source.
"""

import math
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from raptor.common import storage
from raptor.common.arguments import path
from raptor.common.errors import UserError
from raptor.common.strict import Schema
from raptor.target.analog import Cells, ReadOut

_LIMIT_BYTES = 2**16
Positive = Annotated[float, Field(gt=0, le=1e18)]


class WriteCost(Schema):
    """Cost of a write. `at_once`: crossbars that are written at the same time; null: all of them."""

    unit: Literal["cell", "row", "crossbar"] = Field(description="what one write of `ns` sets")
    ns: Positive = Field(description="time of one pulse on a unit")
    verify_pulses: Positive = Field(1.0, description="mean number of pulses until the cells hold their values")
    pj_per_cell: Positive | None = Field(None, description="energy of a written cell; null: not known")
    at_once: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        None, description="crossbars written at the same time; null: all"
    )

    def time_ns(self, rows: int, cells: int) -> float:
        """Returns the time to write `rows` rows that have `cells` cells in all."""
        units = {"cell": cells, "row": rows, "crossbar": 1}[self.unit]
        return units * self.ns * self.verify_pulses


class ProductCost(Schema):
    """Cost of a product of a vector and a crossbar, if the source of the device gives it."""

    ns: Positive = Field(description="time of a product")
    pj_per_cell: Positive = Field(description="energy of a cell that takes part")


class DeviceFile(Schema):
    """A device: the cells of a crossbar as one source describes them."""

    version: Literal[1]
    name: Annotated[str, Field(min_length=1, max_length=100)]
    source: Annotated[str, Field(min_length=1, max_length=2000)] = Field(
        description="document that has the numbers, and what is assumed"
    )
    cells: Cells | None = Field(None, description="null: ideal cells")
    read_out: ReadOut = Field(ReadOut(), description="left out: offset encoding and ideal converters")
    write: WriteCost | None = Field(None, description="null: not known; then a write takes no time")
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
    file = path("device", source)
    if str(source) in device_presets():
        file = Path(str(_folder())) / f"{source}.json"
    elif not file.is_file():
        raise UserError(f"device {file}: no such file; give a file or one of: {', '.join(device_presets())}")
    return storage.read(DeviceFile, file.parent, file.name, limit_bytes=_LIMIT_BYTES)


def _folder() -> Traversable:
    return resources.files("raptor.target") / "devices"
