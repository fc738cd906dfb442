"""`resident.json`: what stays in local memory between two samples, and where it is."""

from typing import Annotated, Literal

from pydantic import Field

from raptor.common.files.schema_types import JsonArray, StrictSchema
from raptor.output.files import FORMAT_VERSION, CodedTensor, Count, Dimension, Range
from raptor.target.tensor_layout import Image, TensorRegion


class ResidentCore(StrictSchema):
    """The local memory of a core that keeps its content between samples: [first byte, number of bytes] of each span."""

    core: Count
    spans: JsonArray[Range]


class LocalTile(StrictSchema):
    """A tile of a tensor in the local memory of `core`, at byte `address`."""

    channels: Range
    rows: Range
    cols: Range | None = None
    core: Count
    address: Count

    @property
    def region(self) -> TensorRegion:
        return TensorRegion(self.channels, self.rows, self.cols)


class ResidentState(CodedTensor):
    """A state: when a sample begins, `tiles` hold the value of the model's `input`, and afterwards that of `output`.

    The first value is that of the input in global memory when the streams in the folder `init` run. Those in `save`
    store the state there, those in `restore` load it from there. Layout as in `TensorPlace`; several cores may hold the
    same part, each for itself.
    """

    input: str
    output: str
    shape: JsonArray[Dimension]
    image_shape: JsonArray[Dimension]
    channel_axis: Count
    tiles: JsonArray[LocalTile]

    @property
    def name(self) -> str:
        """The name of the model's output, whose value the tiles have after a sample."""
        return self.output

    @property
    def image(self) -> Image:
        return Image(self.image_shape, self.channel_axis)


class OutputDelay(StrictSchema):
    """The delay of an output: pass k over the streams stores that of the sample that pass k - `passes` begins."""

    output: str
    passes: Annotated[int, Field(ge=1)]


class ResidentMap(StrictSchema):
    """`resident.json`: what stays in local memory between two samples.

    The streams in the folder `init` write it, once after power-up; all other memory of a core has any content when a
    sample begins.
    """

    version: Literal[1] = FORMAT_VERSION
    cores: JsonArray[ResidentCore]
    states: JsonArray[ResidentState] = ()
    delays: JsonArray[OutputDelay] = Field(
        default=(),
        exclude_if=lambda delays: not delays,
        description="left out if a pass ends each sample that it begins",
    )
