"""Schema of rounds.json: segments that take turns on the chip, and what is written before each."""

from typing import Annotated, Literal

from pydantic import Field

from raptor.common.files.schema_types import JsonArray, StrictSchema
from raptor.output.files import FORMAT_VERSION, Address, Count, GroupWrite


class RoundEntry(StrictSchema):
    """A segment of the chip, and what is written before it runs. `cores`: number of cores that it uses.

    `writes`: array groups that the crossbars do not hold from earlier rounds or the previous batch. `write_pj` is null
    if the device file has no energy. `waits`: tensors in global memory while it runs, for it or for later rounds;
    `memory_bytes`: global memory, including these tensors for all samples of a batch.
    """

    path: str
    cores: Count
    writes: JsonArray[GroupWrite]
    write_ns: Annotated[float, Field(ge=0)]
    write_pj: Annotated[float, Field(ge=0)] | None
    waits: JsonArray[str]
    memory_bytes: Address


class CutAlternative(StrictSchema):
    """Another method to cut the model: its rounds, and the estimated time of a batch; null if nothing fits."""

    name: str
    rounds: Count
    batch_ns: Annotated[float, Field(ge=0)] | None


class RoundCut(StrictSchema):
    """A cut of the model: a new round begins with the ONNX node `before`.

    `waiting_bytes`: tensors of a sample that wait there. `apart_ns`, `joined_ns`: estimated time of a batch for the
    rounds on both sides, and for one round in their place; null if that does not fit the chip.
    """

    before: str
    waiting_bytes: Address
    apart_ns: Annotated[float, Field(ge=0)]
    joined_ns: Annotated[float, Field(ge=0)] | None


class RoundList(StrictSchema):
    """`rounds.json`: segments that take turns on the chip, because their weights do not fit all at once.

    For each batch of `batch` samples, each round is written and then runs for all samples, before the next round is
    written. Times and energies of writing are for the device in `device.json`.
    """

    version: Literal[1] = FORMAT_VERSION
    batch: Annotated[int, Field(ge=1, le=2**31 - 1)]
    device: str
    source: str = Field(description="where the numbers of the device come from")
    cells: Address = Field(description="cells of all crossbars of the chip")
    rounds: JsonArray[RoundEntry]
    split: JsonArray[str] = Field(description="layers that are too large for the chip and were cut into parts")
    estimated_ns: Annotated[float, Field(ge=0)] = Field(description="time of a batch by which the cuts were chosen")
    cuts: JsonArray[RoundCut]
    alternatives: JsonArray[CutAlternative]

    @property
    def written_cells(self) -> int:
        """Number of cells that are written per batch."""
        return sum(write.cells for one in self.rounds for write in one.writes)

    @property
    def worst_writes(self) -> int:
        """Number of writes per batch of the crossbar that is written most often."""
        count: dict[tuple[int, int], int] = {}
        for write in (write for one in self.rounds for write in one.writes):
            for xbar in range(write.first, write.first + write.xbars):
                count[write.core, xbar] = count.get((write.core, xbar), 0) + 1
        return max(count.values(), default=0)
