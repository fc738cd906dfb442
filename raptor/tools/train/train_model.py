"""Trains a float model for a device: starts from its weights or new ones, chooses the noise on validation samples."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from onnx import ModelProto
from pydantic import Field

from raptor.common.errors import UserError
from raptor.common.files.schema_types import JsonArray, StrictSchema
from raptor.common.optional_packages import require_packages
from raptor.common.options import arguments
from raptor.options import InputKeywords, ModelInputs, read_options
from raptor.tools.harden.harden_model import parse_weight_bits, read_device
from raptor.tools.harden.weight_layers import LayerConstants, find_weight_layers
from raptor.tools.quantise.calibration_data import read_sampled_inputs
from raptor.tools.quantise.model_file import ModelFile
from raptor.tools.quantise.options import ALL_BITS_OPSET
from raptor.tools.quantise.prepare_model import PreparedFloats, prepare_floats
from raptor.tools.train.train_data import TrainingData, read_training_data
from validator.accuracy.labelled_data import LabelledData
from validator.crossbar.weight_errors import WeightErrors, tabulate_code_errors

if TYPE_CHECKING:
    from raptor.tools.train.fit_network import NoisyLayers
    from raptor.tools.train.torch_graph import TorchGraph

NOISES: tuple[float | Literal["device"], ...] = (0.06, 0.12, "device")
"""Noises that `auto` tries: standard deviations as shares of a channel's largest weight, and errors of the cells."""
PACKAGE = "'raptor-crossbar[train]'"
"""Requirement of `pip install` that brings PyTorch."""
CLIP = 2.5
"""Largest weight in training, in standard deviations of the weights of its layer."""
_CHIPS = 5
"""Chips on which a trained network is validated. They are drawn here: simulated chips have other errors."""
_CHIP_SEED = 2**40


class ValidatedNoise(StrictSchema):
    """A noise that was trained with, and what the network reaches on validation samples."""

    noise: float | Literal["device"]
    floats: float = Field(description="share of validation samples that the float network classifies rightly")
    chips: float = Field(description="mean of that share over chips, for quantised weights with errors of cells")
    lowest: float = Field(description="of the chips")


class TrainingReport(StrictSchema):
    """Report of a training. `version` changes with the fields."""

    version: Literal[1] = 1
    model: str
    device: str
    weights: int = Field(description="bits")
    epochs: int
    seed: int
    training: int = Field(description="samples")
    validation: int = Field(description="samples, none of which is equal to one of training")
    before: ValidatedNoise = Field(description="the model as given; noise 0")
    tried: JsonArray[ValidatedNoise] = Field(description="in the order of training")
    chosen: float | Literal["device"]
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class TrainedModel(ModelFile):
    """A trained float model. `onnx_bytes`: content of the ONNX file."""

    report: TrainingReport


@dataclass(frozen=True, slots=True, eq=False)
class _TrainingTask:
    """Data and options of a call, which all its trainings share. `errors`: of the cells, by code."""

    prepared: PreparedFloats
    data: TrainingData
    errors: WeightErrors
    weights: int
    epochs: int
    rate: float
    shift: int
    seed: int
    scratch: bool
    tick: Callable[[str], None]


def train(
    model: "str | Path | ModelProto",
    *,
    cells: str | Path,
    data: str | Path,
    noise: float | Literal["auto", "device"] = "auto",
    weights: int = 8,
    epochs: int = 100,
    validation: float = 0.15,
    test: Sequence[str | Path] = (),
    seed: int = 0,
    rate: float = 0.003,
    shift: int = 0,
    scratch: bool = False,
    settings: Mapping[str, object] | None = None,
    tick: Callable[[str], None] = lambda text: None,
    **inputs: Unpack[InputKeywords],
) -> TrainedModel:
    """Trains a classifier so that errors of cells cost little accuracy. Returns a float model, to be quantised.

    `cells`: device file or preset, with the `settings` of `raptor accuracy --with`. `data`: an .npz file with inputs
    and labels `y`, as for `raptor accuracy`; the share `validation` of its samples is not trained on. `test`: files
    whose samples `data` must not have. `noise`: standard deviation of the errors in training, as a share of the largest
    weight of each channel; `device`: the errors of the cells; `auto`: the best of several on validation samples.
    `weights`: bits of a weight on the chip. `rate`: of Adam. `shift`: largest random shift of images and signals.
    `scratch`: start from new weights, drawn from `seed`. `tick` gets a text about the progress.

    Raises `UserError` for invalid arguments and files, for operators that cannot be differentiated, and without
    PyTorch.
    """
    with require_packages("raptor train", PACKAGE):
        import_module("torch")
    started = time.monotonic()
    levels = _parse_noise(noise)
    setup, device = read_device(cells, settings)
    bits = parse_weight_bits(weights)
    share = arguments.parse_finite("validation", validation, 0)
    prepared = _prepare(model, read_options(ModelInputs, inputs, InputKeywords))
    file, tests = arguments.parse_path("data", data), [arguments.parse_path("test", path) for path in test]
    read = read_training_data(file, read_sampled_inputs(prepared.proto), _count_classes(prepared), share, tests)
    numbers = (
        arguments.parse_integer("epochs", epochs, 1),
        arguments.parse_finite("rate", rate, 0),
        arguments.parse_integer("shift", shift, 0, 64),
        arguments.parse_integer("seed", seed, 0),
    )
    errors, starts_anew = tabulate_code_errors(bits, setup), arguments.parse_flag("scratch", scratch)
    task = _TrainingTask(prepared, read, errors, bits, *numbers, starts_anew, tick)
    before, tried, network = _train_all(task, levels)
    report = _describe(task, device, before, tried, time.monotonic() - started)
    return TrainedModel(_write_weights(prepared.proto, network, report), report)


def _describe(
    task: _TrainingTask, device: str, before: ValidatedNoise, tried: Sequence[ValidatedNoise], seconds: float
) -> TrainingReport:
    return TrainingReport(
        model=task.prepared.name,
        device=device,
        weights=task.weights,
        epochs=task.epochs,
        seed=task.seed,
        training=task.data.training.count,
        validation=task.data.validation.count,
        before=before,
        tried=tuple(tried),
        chosen=max(tried, key=lambda found: found.chips).noise,
        seconds=round(seconds, 1),
    )


def _prepare(model: "str | Path | ModelProto", inputs: ModelInputs) -> PreparedFloats:
    """Returns the model as `quantize` prepares it, with constants of its own for each layer."""
    with tempfile.TemporaryDirectory(prefix="raptor-") as folder:
        prepared = prepare_floats(model, inputs, ALL_BITS_OPSET, Path(folder))
    LayerConstants(prepared.proto)
    return prepared


def _parse_noise(noise: object) -> tuple[float | Literal["device"], ...]:
    """Returns the noises to train with. Raises `UserError` for anything but `auto`, `device` and a share."""
    if noise == "auto":
        return NOISES
    if noise == "device":
        return ("device",)
    try:
        share = float(noise)  # pyright: ignore[reportArgumentType] the error is caught
    except (TypeError, ValueError):
        raise arguments.argument_error("noise", noise, "auto, device, or a share of the largest weight") from None
    if not 0 <= share <= 1:
        raise arguments.argument_error("noise", noise, "a share from 0 to 1")
    return (share,)


def _count_classes(prepared: PreparedFloats) -> int:
    """Returns the number of scores of the one output. Raises `UserError` if the model is no classifier."""
    outputs = prepared.proto.graph.output
    sizes = [d.dim_value for d in outputs[0].type.tensor_type.shape.dim]
    many = [size for size in sizes if size != 1]
    if len(outputs) != 1 or len(many) != 1:
        raise UserError(
            f"{prepared.name}: output {outputs[0].name!r} {sizes}: training needs a classifier, with one output that "
            "has a score for each of two classes or more, and a batch of 1"
        )
    return many[0]


def _train_all(
    task: _TrainingTask, levels: Sequence[float | Literal["device"]]
) -> tuple[ValidatedNoise, list[ValidatedNoise], "TorchGraph"]:
    """Trains a network for each noise; returns the results, and the network that is best on validation samples."""
    from raptor.tools.train.torch_graph import TorchGraph

    before = _validate(TorchGraph(task.prepared.proto), task, 0.0)
    tried: list[ValidatedNoise] = []
    best = TorchGraph(task.prepared.proto)
    for level in levels:
        network = _train_one(task, level)
        found = _validate(network, task, level)
        if not tried or found.chips > max(t.chips for t in tried):
            best = network
        tried.append(found)
    return before, tried, best


def _train_one(task: _TrainingTask, level: float | Literal["device"]) -> "TorchGraph":
    from raptor.tools.train.fit_network import TrainingSchedule, fit_network
    from raptor.tools.train.torch_graph import TorchGraph

    torch: Any = import_module("torch")
    generator = torch.Generator().manual_seed(task.seed)
    network = TorchGraph(task.prepared.proto)
    if task.scratch:
        _draw_weights(network, task.prepared.proto, generator)
    layers = _noisy_layers(network, task, level, clip=CLIP, quantised=False, generator=generator)

    def tick(epoch: int, loss: float) -> None:
        task.tick(f"noise {level}, epoch {epoch} of {task.epochs}: loss {loss:.4f}")

    nodes = task.prepared.proto.graph.node
    last = next(n.op_type for n in nodes if task.prepared.proto.graph.output[0].name in n.output)
    schedule = TrainingSchedule(task.epochs, task.rate, task.shift, task.seed)
    probabilities = last == "Softmax"
    fit_network(network, task.data.training, layers, schedule, generator, has_probabilities=probabilities, tick=tick)
    return network.eval()


def _draw_weights(network: "TorchGraph", proto: ModelProto, generator: Any) -> None:
    """Draws the weights of layers with the variance 2 / fan-in (He et al., 2015); biases become 0."""
    constants = LayerConstants(proto)
    parameters = network.list_weights()
    for layer in find_weight_layers(constants):
        shape = layer.arrange(constants.read_value(layer.weight)).shape
        parameters[layer.weight].data.normal_(0.0, float(np.sqrt(2 / (shape[1] * shape[2]))), generator=generator)
        if layer.bias in parameters:
            parameters[layer.bias].data.zero_()


def _noisy_layers(
    network: "TorchGraph",
    task: _TrainingTask,
    level: float | Literal["device"],
    *,
    clip: float | None,
    quantised: bool,
    generator: Any,
) -> "NoisyLayers":
    """Returns the noise of the weights on crossbars."""
    from raptor.tools.train.fit_network import NoisyLayers
    from raptor.tools.train.weight_noise import CodeNoise, WeightNoise

    noise = CodeNoise.from_errors(task.errors) if level == "device" else CodeNoise.uniform(task.weights, level)
    constants = LayerConstants(task.prepared.proto)
    trained = network.list_weights()
    return NoisyLayers(
        {
            layer.weight: WeightNoise(
                noise, axis=int(layer.transposed), clip=clip, quantised=quantised, generator=generator
            )
            for layer in find_weight_layers(constants)
            if layer.weight in trained and layer.is_on_crossbars(constants.read_value(layer.weight))
        }
    )


def _validate(network: "TorchGraph", task: _TrainingTask, level: float | Literal["device"]) -> ValidatedNoise:
    """Measures a network on the validation samples: as floats, and with quantised weights on several chips."""
    from raptor.tools.train.fit_network import classify

    torch: Any = import_module("torch")
    generator = torch.Generator().manual_seed(_CHIP_SEED)
    layers = _noisy_layers(network, task, "device", clip=None, quantised=True, generator=generator)
    data: LabelledData = task.data.validation
    floats = float((classify(network, data.inputs) == data.labels).mean())
    chips = [
        float((classify(network, data.inputs, layers.draw_chip(network)) == data.labels).mean()) for _ in range(_CHIPS)
    ]
    return ValidatedNoise(noise=level, floats=floats, chips=float(np.mean(chips)), lowest=min(chips))


def _write_weights(proto: ModelProto, network: "TorchGraph", report: TrainingReport) -> bytes:
    """Returns the ONNX file with the trained weights, and with the device, the noise and the seed as its metadata."""
    constants = LayerConstants(proto)
    for name, parameter in network.list_weights().items():
        constants.write_value(name, parameter.detach().numpy())
    for key in ("device", "chosen", "weights", "epochs", "seed"):
        entry = proto.metadata_props.add()
        entry.key, entry.value = f"raptor.train.{key}", f"{getattr(report, key)}"
    return proto.SerializeToString(deterministic=True)
