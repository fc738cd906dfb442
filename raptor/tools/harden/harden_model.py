"""Hardens a float model for a device from inputs without labels: equalisation, and clipped weights."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np
from pydantic import Field

from raptor.common.errors import UserError
from raptor.common.files.schema_types import JsonArray, StrictSchema
from raptor.common.option_spelling import spell_option
from raptor.common.options import arguments
from raptor.options import InputKeywords, ModelInputs, read_options
from raptor.target.arch import load
from raptor.target.device_file import load_device
from raptor.tools.harden.channel_scales import find_channel_scales
from raptor.tools.harden.clip_weights import ChannelMoments, clip_layer
from raptor.tools.harden.equalise import LayerNoise, choose_scales, describe_noise
from raptor.tools.harden.weight_layers import Floats, LayerConstants
from raptor.tools.quantise.calibration_data import Sample, read_sampled_inputs, read_samples
from raptor.tools.quantise.model_file import ModelFile
from raptor.tools.quantise.noise import OutputNoise, with_outputs
from raptor.tools.quantise.options import ALL_BITS_OPSET, WEIGHT_BITS
from raptor.tools.quantise.ort_quantizer import OrtSession
from raptor.tools.quantise.prepare_model import prepare_floats
from validator.crossbar.chip_parameters import ChipSetup
from validator.crossbar.chip_settings import make_setup
from validator.crossbar.weight_errors import tabulate_code_errors

if TYPE_CHECKING:
    from onnx import ModelProto

REFERENCE_ARCH = "bench"
"""Architecture with the bits of cells and converters that neither the device file nor the settings name."""


class HardenedLayer(StrictSchema):
    """A layer on crossbars, and the standard deviation of its noise after hardening, relative to the one before."""

    node: str
    op_type: str
    noise: float = Field(description="of its sums, root mean square over channels, relative to the model as given")
    clipped: int = Field(description="output channels with clipped weights")


class HardeningReport(StrictSchema):
    """Report of a hardening. `version` changes with the fields."""

    version: Literal[1] = 1
    model: str
    device: str
    samples: int
    error: float = Field(description="standard deviation of a weight, as a share of the largest of its channel")
    scaled_channels: int = Field(description="groups of channels that have a scale of their own")
    difference: float = Field(description="largest difference of an output, relative to the largest output")
    layers: JsonArray[HardenedLayer]


@dataclass(frozen=True, slots=True, eq=False)
class HardenedModel(ModelFile):
    """A hardened float model. `onnx_bytes`: content of the ONNX file."""

    report: HardeningReport


def harden(
    model: "str | Path | ModelProto",
    *,
    cells: str | Path,
    data: str | Path,
    weights: int = 8,
    settings: Mapping[str, object] | None = None,
    samples: int | None = None,
    clip: bool = False,
    **inputs: Unpack[InputKeywords],
) -> HardenedModel:
    """Returns a float model with the same function whose sums change less by errors of cells.

    Channels are scaled so that the weights of each layer use the range of the cells where inputs are large. `cells`: a
    device file or preset. `data`: an .npz file of inputs, as for `quantize`; `samples` of them are used, by default
    all. `weights`: bits of a weight. `settings`: those of `raptor accuracy --with`. `clip`: also clip weights where
    that costs less than it saves, which changes the function; the report says how much.

    Raises `UserError` for invalid arguments and files, and for models that `quantize` would refuse.
    """
    file = arguments.parse_path("data", data)
    count = arguments.parse_optional_integer("samples", samples, 1)
    clips = arguments.parse_flag("clip", clip)
    setup, device = read_device(cells, settings)
    error = relative_error(parse_weight_bits(weights), setup)
    with tempfile.TemporaryDirectory(prefix="raptor-") as folder:
        prepared = prepare_floats(model, read_options(ModelInputs, inputs, InputKeywords), ALL_BITS_OPSET, Path(folder))
    read = read_samples(file, read_sampled_inputs(prepared.proto), count)
    before = OutputNoise(prepared.proto, read)
    found, layers = _harden_constants(LayerConstants(prepared.proto), read, error if clips else None)
    report = HardeningReport(
        model=prepared.name,
        device=device,
        samples=len(read),
        error=error,
        scaled_channels=found,
        difference=before.largest_difference(prepared.proto),
        layers=tuple(layers),
    )
    return HardenedModel(prepared.proto.SerializeToString(deterministic=True), report)


def parse_weight_bits(weights: object) -> int:
    """Returns the bits of a weight. Raises `UserError` for a width that `quantize` does not have."""
    bits = arguments.parse_integer("weights", weights, 1, expected="8 or 4")
    if bits not in WEIGHT_BITS:
        raise arguments.argument_error("weights", weights, "8 or 4")
    return bits


def read_device(cells: str | Path, settings: Mapping[str, object] | None) -> tuple[ChipSetup, str]:
    """Returns the setup of noisy crossbars of a device file with settings, and the name of the device.

    Raises `UserError` for a file that cannot be read, for invalid settings, and for a device whose cells have no error.
    """
    given = arguments.parse_dict(
        "settings", {} if settings is None else settings, "settings by name, such as {'adc_bits': 8}"
    )
    device = load_device(cells)
    setup = make_setup("noisy", load(REFERENCE_ARCH), device, {name: f"{value}" for name, value in given.items()})
    if setup.cells is None or not tabulate_code_errors(8, setup).total_std.any():
        raise UserError(f"{spell_option('cells', cells)}: its cells have no errors, so there is nothing to harden for")
    return setup, device.name


def relative_error(weight_bits: int, setup: ChipSetup) -> float:
    """Returns the root mean square of the error of a code, as a share of the largest code."""
    table = tabulate_code_errors(weight_bits, setup)
    return float(np.sqrt(np.mean(table.total_std**2 + table.mean**2)) / (len(table.mean) // 2))


def _harden_constants(
    constants: LayerConstants, samples: Sequence[Sample], error: float | None
) -> tuple[int, list[HardenedLayer]]:
    """Changes the constants of the model. `error`: clip for this error of a weight; None: do not clip.

    Returns the number of scales that are free, and the layers on crossbars.
    """
    found = find_channel_scales(constants)
    moments = measure_moments(constants.model, [s.layer.node.input[0] for s in found.layers], samples)
    layers = describe_noise(found, constants, {name: m.power for name, m in moments.items()})
    scales = choose_scales(layers, found.count)
    found.apply_scales(constants, scales)
    noises = [_noise_ratio(layer, scales) for layer in layers]
    clipped = dict.fromkeys((layer.scaled.layer.name for layer in layers), 0)
    if error is not None:
        moments = measure_moments(constants.model, [s.layer.node.input[0] for s in found.layers], samples)
        clipped = {layer.scaled.layer.name: clip_layer(layer.scaled, constants, moments, error) for layer in layers}
    nodes = [layer.scaled.layer.node for layer in layers]
    return found.count - 1, [
        HardenedLayer(node=n.name, op_type=n.op_type, noise=ratio, clipped=clipped[n.name])
        for n, ratio in zip(nodes, noises, strict=True)
    ]


def _noise_ratio(layer: LayerNoise, scales: Floats) -> float:
    before, after = layer.measure(np.ones_like(scales)), layer.measure(scales)
    return float(np.sqrt(np.mean(after / np.maximum(before, 1e-300))))


def measure_moments(model: "ModelProto", names: Sequence[str], samples: Sequence[Sample]) -> dict[str, ChannelMoments]:
    """Returns the moments of the channels (axis 1) of tensors with at least two axes."""
    session = OrtSession(with_outputs(model, names))
    sums = {name: np.zeros(0) for name in names}
    for sample in samples:
        values = session.run(sample)
        for name in sums:
            rows = np.moveaxis(values[name].astype(np.float64), 1, 0).reshape(values[name].shape[1], -1)
            moments = np.stack([rows.mean(axis=1), (rows**2).mean(axis=1)])
            sums[name] = moments if not sums[name].size else sums[name] + moments
    return {name: ChannelMoments(*(total / len(samples))) for name, total in sums.items()}
