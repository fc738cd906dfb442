"""The files of a program that is repaired for a chip: `repair.json`, and the cells of each array group."""

from typing import Annotated, Literal

from pydantic import Field

from raptor.common.files.schema_types import JsonArray, JsonPair, StrictSchema
from raptor.target.cell_models import SliceLevels

CHIP = "chip.json"
REPAIR = "repair.json"
CELLS = "weights/cells.npz"
CELL_PARTS = {"levels": "|u1", "signs": "|i1", "lines": "<i4", "weights": "<i2"}
"""Arrays of an array group in `CELLS`, and their types. Names: `CORE_GROUP_PART.npy`."""
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Figure = Annotated[float, Field(ge=0, le=1e18)]


def member_name(core: int, group: int, part: str) -> str:
    """Returns the name of an array of `CELLS`."""
    return f"{core}_{group}_{part}.npy"


class RepairedPlace(StrictSchema):
    """The physical crossbars that hold the columns of an array group, in order."""

    core: Count
    group: Count
    crossbars: JsonArray[Count]


class RepairedLayer(StrictSchema):
    """Cost of the defects for a layer. Errors are root mean squares over its weights, in steps of the weights.

    `stuck`: weights with a stuck cell; `changed`: weights with another value; `negated`: columns stored negated;
    `replaced`: columns of cells that a spare one replaces; `wider`: columns whose sums can be larger than before.
    `unrepaired_error`: if the cells were written as if none was stuck.
    """

    node: str
    weights: Count
    stuck: Count
    changed: Count
    negated: Count
    replaced: Count
    wider: Count
    error: Figure
    unrepaired_error: Figure


class RepairTable(StrictSchema):
    """`repair.json`: the chip that a program is repaired for, and the crossbars of its matrices.

    `chip_sha256`: digest of `chip.json`. `encoding`, `levels`, `cell_bits`: how cells hold weights. `moved`: pairs of
    numbers, as compiled and in this program, of the cores that run elsewhere because the chip's own do not do.
    """

    version: Literal[1] = 1
    chip: str
    chip_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    encoding: str
    levels: SliceLevels
    cell_bits: Annotated[int, Field(ge=1, le=8)]
    moved: JsonArray[JsonPair[Count, Count]] = Field(default=(), exclude_if=lambda moved: not moved)
    groups: JsonArray[RepairedPlace]
    layers: JsonArray[RepairedLayer]
