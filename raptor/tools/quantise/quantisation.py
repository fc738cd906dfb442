"""The result of quantisation: the model, and a report with the noise of each tensor."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from raptor.common.files.schema_types import JsonArray, StrictSchema
from raptor.common.options.option_values import QuantisationScheme
from raptor.tools.quantise.model_file import ModelFile
from raptor.tools.quantise.policy import PolicySearch

_NO_NOISE = "; null: no difference, or all floats are 0"


class QuantisedLayer(StrictSchema):
    """A quantised tensor and the layer that makes it."""

    node: str = Field(description="layer that makes the tensor; the name of the tensor for an input of the model")
    op_type: str = Field(description='operator of the layer; "input" for an input of the model')
    tensor: str = Field(description="name in the float model")
    bits: int = Field(description="of the tensor")
    weight_bits: int | None = Field(description="of a layer with quantised weights, else null")
    scale: float
    zero_point: int
    snr_db: float | None = Field(description=f"signal to noise with all layers quantised, dB{_NO_NOISE}")
    own_snr_db: float | None = Field(
        description=f"signal to noise if the layer reads the quantised values of the float model, dB{_NO_NOISE}"
    )


class FloatNode(StrictSchema):
    """A node that still computes floats."""

    node: str
    op_type: str


class QuantisationReport(StrictSchema):
    """Report of a quantisation: its options, sizes and noise. `version` changes with the fields."""

    version: Literal[1] = 1
    model: str
    scheme: QuantisationScheme
    weights: int = Field(description="bits")
    activations: int = Field(description="bits")
    per_channel: bool
    samples: int = Field(description="inputs on which ranges and noise were measured")
    data: str | None = Field(description="file of the samples; null: standard normal inputs")
    seed: int | None = Field(description="seed of the first random sample; null with a file")
    float_bytes: int = Field(description="size of the float model that is ready to be quantised")
    quantised_bytes: int
    snr_db: float | None = Field(description=f"signal to noise of the outputs, dB{_NO_NOISE}")
    layers: JsonArray[QuantisedLayer] = Field(description="in the order of the model")
    floats: JsonArray[FloatNode] = Field(description="in the order of the model")
    notes: JsonArray[str] = Field(description="what was assumed of the inputs")
    search: PolicySearch | None = Field(None, description="the search that has found the bits of layers, if any")


@dataclass(frozen=True, slots=True, eq=False)
class Quantisation(ModelFile):
    """A quantised model. `onnx_bytes`: content of the ONNX file. `report`: options, sizes and noise."""

    report: QuantisationReport
