"""Schema of `trim.json`: where a chip can be trimmed, and its present gains and biases."""

from typing import Annotated, Literal

from pydantic import Field

from raptor.common.files.schema_types import JsonArray, StrictSchema
from raptor.output.files import Address, Count, Range, TensorProbe

TRIM_VERSION = 2
"""Version of `trim.json`: since 2, gains and biases belong to parts of a layer."""


class TrimmedPart(StrictSchema):
    """Gains and biases of tiles whose sums one core computes, with cells of its own: one for each channel.

    `tiles`: numbers of the tiles in `sums`, which have the same `channels`. `gain`, `bias`: addresses among the
    constants. A gain has `gain_bytes` bytes, a bias 4; both are in two's complement, the low byte first. `gains`,
    `biases`: present values; as compiled, 2^`shift` and half of that.
    """

    channels: Range
    tiles: JsonArray[Count]
    gain: Address
    gain_bytes: Annotated[int, Field(ge=1, le=4)]
    bias: Address
    gains: JsonArray[Annotated[int, Field(ge=0, le=2**31 - 1)]]
    biases: JsonArray[Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]]


class TrimmedLayer(StrictSchema):
    """A layer whose sums x a chip can trim: x' = clamp((x * gain + bias) >> `shift`, `low`, `high`).

    `sums`: where the untrimmed sums can be read while the program runs. `most_gain`, `most_bias`: largest absolute
    values that fit. `parts`: gains and biases; each tile of `sums` is in one part.
    """

    sums: TensorProbe
    shift: Annotated[int, Field(ge=1, le=30)]
    low: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
    high: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
    most_gain: Annotated[int, Field(ge=1, le=2**31 - 1)]
    most_bias: Annotated[int, Field(ge=1, le=2**31 - 1)]
    parts: JsonArray[TrimmedPart]


class TrimTable(StrictSchema):
    """`trim.json`: the layers that can be trimmed, in the order of computation.

    `chip`: what the program is trimmed for; null as compiled. `samples`: inputs that it was trimmed with.
    """

    version: Literal[2] = TRIM_VERSION
    layers: JsonArray[TrimmedLayer]
    chip: str | None = None
    samples: Count = 0
