"""Parts of the device file about values: the cells of a crossbar, and how products are read out of it.

Conductances are in the unit of the file. `off` and `on` are those of the lowest and the highest level of a cell; the
levels between are equally far apart. A slice of a weight may have fewer bits than a cell: `ReadOut.levels` says which
level is then the highest. A part that a file leaves out is ideal.
"""

from typing import Annotated, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from raptor.common.files.schema_types import JsonArray, JsonPair, StrictSchema

Floats = npt.NDArray[np.float64]
Encoding = Literal["offset", "flipped", "differential", "differential_analog", "twos_complement", "xnor"]
InputCoding = Literal["twos_complement", "offset", "two_passes"]
AdcRange = Literal["full", "unit", "calibrated"]
AdcScope = Literal["chip", "layer", "column"]
SliceLevels = Literal["full", "shared"]
IdleCells = Literal["programmed", "unformed"]
ENCODINGS: tuple[str, ...] = get_args(Encoding)
INPUT_CODINGS: tuple[str, ...] = get_args(InputCoding)
MOST_ADC_BITS = 24
Positive = Annotated[float, Field(gt=0, le=1e18)]
NonNegative = Annotated[float, Field(ge=0, le=1e18)]
Number = Annotated[float, Field(ge=-1e18, le=1e18)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Bits = Annotated[int, Field(ge=1, le=8)]


class ConductanceSpread(StrictSchema):
    """Standard deviation of a conductance g: a polynomial, plus A (1 - exp(-g / B)); a negative one counts as 0."""

    polynomial: JsonArray[Number] = Field(default=(), description="coefficients of 1, g, g^2, ...")
    saturation: JsonPair[Number, Positive] | None = Field(default=None, description="A and B; null: none")
    after_s: NonNegative = Field(default=0.0, description="time since programming from which on it holds")

    def std(self, g: Floats) -> Floats:
        """Returns the standard deviation at each conductance."""
        found = sum((a * g**k for k, a in enumerate(self.polynomial)), np.zeros_like(g))
        if self.saturation is not None:
            found = found + self.saturation[0] * (1 - np.exp(-g / self.saturation[1]))
        return np.maximum(found, 0.0)


class FlickerNoise(StrictSchema):
    """1/f noise of a read: std = g min(factor / x^exponent, most) sqrt(ln((t + read_s) / (2 read_s))), x = g / on."""

    factor: NonNegative
    exponent: NonNegative
    most: Positive
    read_s: Positive

    def std(self, g: Floats, on: float, seconds: float) -> Floats:
        """Returns the standard deviation of a read `seconds` after programming."""
        share = np.maximum(np.maximum(g, 0.0) / on, 1e-12) ** self.exponent
        relative = np.minimum(self.factor / np.maximum(share, 1e-3), self.most)
        return g * relative * np.sqrt(np.log(max((seconds + self.read_s) / (2 * self.read_s), 1.0)))


class ClampedLogLine(StrictSchema):
    """A number that depends on x = g / on: slope ln(x) + intercept, at least `low` and at most `high`."""

    slope: Number
    intercept: Number
    low: Number
    high: Number

    def evaluate(self, share: Floats) -> Floats:
        return np.clip(self.slope * np.log(np.maximum(share, 1e-12)) + self.intercept, self.low, self.high)


class ConductanceDrift(StrictSchema):
    """Loss of conductance: g(t) = g (t / t0)^-nu. Each cell has its own nu = |mean + std N(0, 1)|."""

    t0_s: Positive = Field(description="time of the first read; before it, nothing drifts")
    mean: ClampedLogLine
    std: ClampedLogLine


class CellModel(StrictSchema):
    """Cells of a crossbar. A value that is left out is ideal."""

    unit: Literal["uS", "nA"] = Field(
        default="uS", description="unit of conductances; nA: the current at the read voltage"
    )
    off: NonNegative = Field(description="conductance of level 0")
    on: Positive = Field(description="conductance of the highest level")
    programming: JsonArray[ConductanceSpread] = Field(
        default=(), description="errors of a cell after a time; the last of them that has begun holds"
    )
    read: ConductanceSpread | None = Field(default=None, description="noise of each read; null: none")
    flicker: FlickerNoise | None = Field(default=None, description="1/f noise of each read; null: none")
    drift: ConductanceDrift | None = Field(default=None, description="null: none")
    stuck_off: Fraction = Field(default=0.0, description="share of cells that stay at `off`")
    stuck_on: Fraction = Field(default=0.0, description="share of cells that stay at `on`")
    wire_ohm: NonNegative = Field(default=0.0, description="resistance of a wire from one cell to the next; needs uS")
    idle: IdleCells = Field(
        default="programmed",
        description="both cells of a pair whose weight is 0: written to `off`, or never formed, so that they conduct "
        "nothing and have no error; unformed needs encoding differential_analog",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.off >= self.on:
            raise ValueError(f"off {self.off:g} is not below on {self.on:g}")
        if self.wire_ohm and self.unit != "uS":
            raise ValueError("wire_ohm needs conductances in uS")
        if self.stuck_off + self.stuck_on > 1:
            raise ValueError("more than all cells are stuck")
        return self


class Adc(StrictSchema):
    """Converters of sums. A converter rounds a sum to the nearest of its 2^bits codes; others become the last one.

    `full`: the codes reach from 0 to the largest sum that a crossbar can have, at most as fine as a level. `unit`: a
    code is a level, and larger sums are cut. `calibrated`: the codes reach over the sums of calibration samples.
    """

    bits: Annotated[int, Field(ge=1, le=MOST_ADC_BITS)]
    range: AdcRange = "full"
    scope: AdcScope = Field(default="layer", description="what shares a calibrated range")
    noise_lsb: NonNegative = Field(
        default=0.0, description="standard deviation of a conversion, in steps of the converter"
    )


class ReadOut(StrictSchema):
    """Weights in cells, inputs on rows, and the conversion of sums.

    7 bits of a magnitude in cells of 4 bits are a slice of 4 bits and one of 3 bits. With `full`, the highest level of
    each is at `on`; the slices are scaled after the conversion. With `shared`, a level of all slices is the same
    conductance, so the slice of 3 bits uses 7 of 15 steps and errors of its cells weigh more.
    """

    encoding: Encoding = Field(default="offset", description="weights as levels of cells")
    inputs: InputCoding = Field(default="twos_complement", description="signed inputs as unsigned steps of DACs")
    levels: SliceLevels = Field(
        default="full",
        description="range of a slice with fewer bits than a cell: all of `off` to `on`, or the step of a whole cell",
    )
    cell_bits: Bits | None = Field(default=None, description="bits of a cell; null: as the architecture file says")
    dac_bits: Bits | None = Field(default=None, description="bits of a step; null: as the architecture file says")
    rows_at_once: Annotated[int, Field(ge=1, le=2**20)] | None = Field(
        default=None, description="rows driven at the same time; null: the DACs of the architecture file"
    )
    adc: Adc | None = Field(default=None, description="null: ideal converters")
