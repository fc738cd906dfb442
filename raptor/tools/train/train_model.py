"""Trains a float model for a device: starts from its weights or new ones, chooses the noise on validation samples."""

import math
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
from raptor.common.option_spelling import spell_option
from raptor.common.optional_packages import require_packages
from raptor.common.options import arguments
from raptor.options import InputKeywords, ModelInputs, read_options
from raptor.tools.harden.harden_model import parse_weight_bits, read_device
from raptor.tools.harden.weight_layers import LayerConstants, find_weight_layers
from raptor.tools.quantise.calibration_data import read_sampled_inputs
from raptor.tools.quantise.model_file import ModelFile
from raptor.tools.quantise.options import ALL_BITS_OPSET
from raptor.tools.quantise.policy import Policy, PolicySearch, parse_policy
from raptor.tools.quantise.prepare_model import PreparedFloats, prepare_floats
from raptor.tools.train.train_data import TrainingData, read_training_data
from validator.accuracy.labelled_data import LabelledData
from validator.crossbar.weight_errors import WeightErrors, tabulate_code_errors

if TYPE_CHECKING:
    from raptor.tools.train.fit_network import NoisyLayers
    from raptor.tools.train.torch_graph import TorchGraph

NOISES: tuple[float | Literal["device"], ...] = (0.06, 0.09, 0.12, "device")
"""Noises that `auto` tries: standard deviations as shares of a channel's largest weight, and errors of the cells."""
PACKAGE = "'raptor-crossbar[train]'"
"""Requirement of `pip install` that brings PyTorch."""
FINE_BITS = 8
"""Weights with fewer bits are quantised in training."""
CLIP = 2.5
"""Largest weight in training, in standard deviations of the weights of its layer."""
_CHIPS = 20
"""Chips on which a trained network is validated. They are drawn here: simulated chips have other errors."""
_CHIP_SEED = 2**40


class ValidatedNoise(StrictSchema):
    """A noise that was trained with, and what the network reaches on validation samples."""

    noise: float | Literal["device"]
    floats: float = Field(description="share of validation samples that the float network classifies rightly")
    chips: float = Field(description="mean of that share over chips, for quantised weights with errors of cells")
    lowest: float = Field(description="of the chips")
    loss: float = Field(description="mean cross-entropy on these chips, by which the noise is chosen")


class TrainingReport(StrictSchema):
    """Report of a training. `version` changes with the fields."""

    version: Literal[1] = 1
    model: str
    device: str
    weights: int = Field(description="bits, unless the policy has others")
    policy: Policy
    epochs: int
    seed: int
    training: int = Field(description="samples")
    validation: int = Field(description="samples, none of which is equal to one of training")
    before: ValidatedNoise = Field(description="the model as given; noise 0")
    tried: JsonArray[ValidatedNoise] = Field(description="in the order of training; none if refit has one noise")
    chosen: float | Literal["device"]
    refit: bool = Field(description="trained once more with the chosen noise, on the samples of validation, too")
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class TrainedModel(ModelFile):
    """A trained float model. `onnx_bytes`: content of the ONNX file."""

    report: TrainingReport


@dataclass(frozen=True, slots=True, eq=False)
class _TrainingTask:
    """Data and options of a call, which all its trainings share. `errors`: of the cells by code, keyed by bits."""

    prepared: PreparedFloats
    data: TrainingData
    errors: Mapping[int, WeightErrors]
    weights: int
    policy: Policy
    epochs: int
    rate: float
    shift: int
    seed: int
    scratch: bool
    refit: bool
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
    refit: bool = False,
    policy: str | Path | Policy | PolicySearch | None = None,
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
    `scratch`: start from new weights, drawn from `seed`. `refit`: after the choice, train once more with the chosen
    noise, on all samples; at once if `noise` leaves no choice. `policy`: bits of weights and inputs of single layers,
    as for `quantize`; inputs of few bits are quantised in training, too. `tick` gets a text about the progress.

    Raises `UserError` for invalid arguments and files, for operators that cannot be differentiated, for a training
    that diverges, and without PyTorch.
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
    of_layers = Policy() if policy is None else parse_policy(policy)
    _check_policy(of_layers, prepared)
    errors = {width: tabulate_code_errors(width, setup) for width in {bits, *of_layers.weights.values()}}
    flags = (arguments.parse_flag("scratch", scratch), arguments.parse_flag("refit", refit))
    task = _TrainingTask(prepared, read, errors, bits, of_layers, *numbers, *flags, tick)
    before, tried, network = _train_all(task, levels)
    chosen = choose_noise(tried) if tried else levels[0]
    report = _describe(task, device, before, tried, chosen, time.monotonic() - started)
    return TrainedModel(_write_weights(prepared.proto, network, report), report)


def _describe(
    task: _TrainingTask,
    device: str,
    before: ValidatedNoise,
    tried: Sequence[ValidatedNoise],
    chosen: float | Literal["device"],
    seconds: float,
) -> TrainingReport:
    return TrainingReport(
        model=task.prepared.name,
        device=device,
        weights=task.weights,
        policy=task.policy,
        epochs=task.epochs,
        seed=task.seed,
        training=task.data.training.count,
        validation=task.data.validation.count,
        before=before,
        tried=tuple(tried),
        chosen=chosen,
        refit=task.refit,
        seconds=round(seconds, 1),
    )


def choose_noise(tried: Sequence[ValidatedNoise]) -> float | Literal["device"]:
    """Returns the noise with the least loss on validated chips. (Few samples give many equal accuracies.)"""
    return min(tried, key=lambda found: found.loss).noise


def _check_policy(policy: Policy, prepared: PreparedFloats) -> None:
    """Raises `UserError` for a layer that has no constant weights."""
    known = [layer.name for layer in find_weight_layers(LayerConstants(prepared.proto))]
    unknown = sorted((policy.weights.keys() | policy.inputs.keys()) - set(known))
    if unknown:
        raise UserError(
            f"{spell_option('policy')}: {unknown[0]}: no layer with constant weights; layers are {', '.join(known)}"
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
    """Trains a network for each noise; returns the results, and the network with the chosen noise."""
    from raptor.tools.train.torch_graph import TorchGraph

    before = _validate(TorchGraph(task.prepared.proto), task, 0.0)
    if task.refit and len(levels) == 1:
        return before, [], _train_one(task, levels[0], task.data.join())
    networks = [_train_one(task, level, task.data.training) for level in levels]
    tried = [_validate(network, task, level) for network, level in zip(networks, levels, strict=True)]
    chosen = choose_noise(tried)
    if task.refit:
        return before, tried, _train_one(task, chosen, task.data.join())
    return before, tried, networks[levels.index(chosen)]


def _train_one(task: _TrainingTask, level: float | Literal["device"], data: LabelledData) -> "TorchGraph":
    """Returns a network that is trained with a noise. Raises `UserError` if its weights or its loss become infinite."""
    from raptor.tools.train.fit_network import TrainingSchedule, fit_network
    from raptor.tools.train.torch_graph import TorchGraph

    torch: Any = import_module("torch")
    generator = torch.Generator().manual_seed(task.seed)
    network = TorchGraph(task.prepared.proto)
    if task.scratch:
        _draw_weights(network, task.prepared.proto, generator)
    layers = _noisy_layers(network, task, level, on_chips=False, generator=generator)

    def tick(epoch: int, loss: float) -> None:
        if not math.isfinite(loss):
            raise UserError(
                f"{spell_option('rate', task.rate)}: the loss of epoch {epoch} with noise {level} is {loss}; a smaller "
                "rate may help, or inputs scaled to about -1 to 1"
            )
        task.tick(f"noise {level}, epoch {epoch} of {task.epochs}: loss {loss:.4f}")

    schedule = TrainingSchedule(task.epochs, task.rate, task.shift, task.seed)
    fit_network(network, data, layers, schedule, generator, has_probabilities=_has_probabilities(task), tick=tick)
    return network.eval()


def _has_probabilities(task: _TrainingTask) -> bool:
    graph = task.prepared.proto.graph
    return next(n.op_type for n in graph.node if graph.output[0].name in n.output) == "Softmax"


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
    network: "TorchGraph", task: _TrainingTask, level: float | Literal["device"], *, on_chips: bool, generator: Any
) -> "NoisyLayers":
    """Returns the errors of weights in training, or as chips have them, which hold quantised weights.

    Weights of 4 bits of depthwise layers are quantised in training, too: they have no errors of cells in whose shadow
    their rounding would be.
    """
    from raptor.tools.train.fit_network import NoisyLayers
    from raptor.tools.train.weight_noise import CodeNoise, WeightNoise

    constants = LayerConstants(task.prepared.proto)
    trained, found = network.list_weights(), dict[str, WeightNoise]()
    for layer in find_weight_layers(constants):
        bits = task.policy.weights.get(layer.name, task.weights)
        is_on_crossbars = layer.is_on_crossbars(constants.read_value(layer.weight))
        if layer.weight not in trained or not (is_on_crossbars or on_chips or bits < FINE_BITS):
            continue
        if not is_on_crossbars:
            noise = CodeNoise.uniform(bits, 0.0)
        elif level == "device":
            noise = CodeNoise.from_errors(task.errors[bits])
        else:
            noise = CodeNoise.uniform(bits, level)
        clip = CLIP if is_on_crossbars and not on_chips else None
        axis, is_quantised = int(layer.transposed), on_chips or not is_on_crossbars
        found[layer.weight] = WeightNoise(noise, axis=axis, clip=clip, quantised=is_quantised, generator=generator)
    return NoisyLayers(found, task.policy.inputs)


def _validate(network: "TorchGraph", task: _TrainingTask, level: float | Literal["device"]) -> ValidatedNoise:
    """Measures a network on the validation samples: as floats, and with quantised weights on several chips."""
    from raptor.tools.train.fit_network import compute_scores, log_probabilities, to_tensors

    torch: Any = import_module("torch")
    generator = torch.Generator().manual_seed(_CHIP_SEED)
    layers = _noisy_layers(network, task, "device", on_chips=True, generator=generator)
    data = task.data.validation
    quantisers = layers.measure_inputs(network, to_tensors(task.data.training))
    inputs, labels = to_tensors(data), torch.from_numpy(data.labels)
    floats = compute_scores(network, inputs)
    chips = [compute_scores(network, inputs, layers.draw_chip(network), quantisers) for _ in range(_CHIPS)]
    right = [_share_of_right(scores, labels) for scores in chips]
    log_chances = [log_probabilities(scores, _has_probabilities(task)) for scores in chips]
    losses = [float(-found.gather(1, labels[:, None]).mean()) for found in log_chances]
    return ValidatedNoise(
        noise=level,
        floats=_share_of_right(floats, labels),
        chips=float(np.mean(right)),
        lowest=min(right),
        loss=float(np.mean(losses)),
    )


def _share_of_right(scores: Any, labels: Any) -> float:
    return float((scores.argmax(1) == labels).numpy().mean())


def _write_weights(proto: ModelProto, network: "TorchGraph", report: TrainingReport) -> bytes:
    """Returns the ONNX file with the trained weights, and with the device, the noise and the seed as its metadata."""
    constants = LayerConstants(proto)
    for name, parameter in network.list_weights().items():
        constants.write_value(name, parameter.detach().numpy())
    for key in ("device", "chosen", "weights", "epochs", "seed"):
        entry = proto.metadata_props.add()
        entry.key, entry.value = f"raptor.train.{key}", f"{getattr(report, key)}"
    return proto.SerializeToString(deterministic=True)
