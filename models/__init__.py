"""ONNX models of well-known topologies with seeded weights, for the command line, the tests and the benchmarks.

Listing the models imports no large package; building one does.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Concatenate, NamedTuple, cast

if TYPE_CHECKING:
    import onnx

    from models.model_builder import ModelBuilder, Tensor

    Topology = Callable[Concatenate[ModelBuilder, ...], Tensor | Sequence[Tensor]]

__all__ = ["MODELS", "ModelSpec", "Option", "UnknownModelError", "Value", "build"]

Value = int | float | str
_MOST = 100_000
"""Largest value of a numeric option: no model has more layers, channels or pixels, and memory would be full."""


class UnknownModelError(KeyError):
    """The name is not in `MODELS`; unlike its base class, prints as plain text."""

    def __str__(self) -> str:
        return str(self.args[0])


class Option(NamedTuple):
    """An option of a model. Without choices it is a finite number of the default's type, at least `minimum`."""

    default: Value
    choices: tuple[Value, ...]
    meaning: str
    minimum: float = 0

    def parse(self, name: str, value: Value) -> Value:
        """Returns the value (or its text, as on a command line) in the default's type, or raises ValueError."""
        if self.choices:
            if not isinstance(value, str) or value not in self.choices:
                raise ValueError(f"option {name} is {value!r}, must be one of: {', '.join(map(str, self.choices))}")
            return value
        kind = type(self.default)
        try:
            number = math.nan if _is_flag(value) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not self.minimum <= number <= _MOST or kind(number) != number:
            noun = "a whole number" if kind is int else "a number"
            raise ValueError(f"option {name} is {value!r}, must be {noun}, {self.minimum:g} to {_MOST}")
        return kind(number)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model that can be built; `source` is `module:function` of its topology, a function of (Builder, **options)."""

    name: str
    summary: str
    source: str
    options: Mapping[str, Option]

    def build(self, *, seed: int = 0, **options: Value) -> onnx.ModelProto:
        """Builds the model: opset 17, IR 8, batch 1. On one machine, equal arguments give equal bytes."""
        from models.model_builder import ModelBuilder

        seed, values = _parse_seed(seed), self.parse(options)
        text = ", ".join(f"{name}={value}" for name, value in values.items())
        builder = ModelBuilder(self.name, seed)
        return builder.finish(self._topology()(builder, **values), options=text)

    def count_parameters(self, **options: Value) -> int:
        """Counts trainable parameters (no running means or variances) from shapes alone, without drawing weights."""
        from models.model_builder import ModelBuilder

        builder = ModelBuilder(self.name, seed=None)
        self._topology()(builder, **self.parse(options))
        return builder.parameters

    def parse(self, options: Mapping[str, Value]) -> dict[str, Value]:
        """Returns every option with its given or default value, or raises ValueError."""
        if unknown := sorted(options.keys() - self.options.keys()):
            known = ", ".join(self.options)
            raise ValueError(f"model {self.name} has no option {', '.join(unknown)}; its options are: {known}")
        return {name: option.parse(name, options.get(name, option.default)) for name, option in self.options.items()}

    def _topology(self) -> Topology:
        return pkgutil.resolve_name(self.source)


def build(name: str, *, seed: int = 0, **options: Value) -> onnx.ModelProto:
    """Builds the named model with weights drawn from `seed`; see `MODELS` for the names and their options.

    Raises UnknownModelError for an unknown name, and ValueError for an invalid seed or option.
    """
    if not _is_name(name):
        raise UnknownModelError(f"unknown model {name!r}; the models are: {', '.join(MODELS)}")
    return MODELS[name].build(seed=seed, **options)


def _is_flag(value: object) -> bool:
    """Returns whether a value is True or False, which Python accepts as numbers."""
    return isinstance(value, bool)


def _parse_seed(value: object) -> int:
    try:
        seed = -1 if _is_flag(value) else index(cast(int, value))
    except TypeError:
        seed = -1
    if seed < 0:
        raise ValueError(f"seed is {value!r}, must be a whole number, at least 0")
    return seed


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value in MODELS


def _options(classes: int, **more: Option) -> dict[str, Option]:
    return {
        **more,
        "classes": Option(classes, (), "number of classes", 1),
        "width": Option(1.0, (), "multiplies the channels of every hidden layer (down to 8 at least)", 0.01),
    }


def _imagenet(smallest: int, *, classes: int = 1000, image_size: int = 224, **more: Option) -> dict[str, Option]:
    size = Option(image_size, (), "height and width of the input, in pixels", smallest)
    return _options(classes, **more, image_size=size)


def _count(default: int, meaning: str) -> Option:
    return Option(default, (), meaning, 1)


_HEAD = Option("reduce_mean", ("reduce_mean", "global_average_pool"), "operator that averages the last feature map")
_POOL = Option("average", ("average", "max"), "kind of both pooling layers")

_SPECS = (
    ModelSpec(
        "mlp", "perceptron 784-256-128-10, 1x784, 0.24 M parameters", "models.small_classifiers:mlp", _options(10)
    ),
    ModelSpec(
        "lenet5",
        "LeNet-5 with Relu, 1x1x28x28, 0.06 M parameters",
        "models.small_classifiers:lenet5",
        _options(10, pool=_POOL),
    ),
    ModelSpec(
        "resnet18",
        "ResNet-18, 1x3x224x224, 11.69 M parameters",
        "models.resnet:resnet18",
        _imagenet(1, head=_HEAD),
    ),
    ModelSpec(
        "resnet34",
        "ResNet-34, 1x3x224x224, 21.80 M parameters",
        "models.resnet:resnet34",
        _imagenet(1, head=_HEAD),
    ),
    ModelSpec(
        "resnet50",
        "ResNet-50 v1.5, 1x3x224x224, 25.56 M parameters",
        "models.resnet:resnet50",
        _imagenet(1, head=_HEAD),
    ),
    ModelSpec(
        "vgg16",
        "VGG-16 with Dropout, 1x3x224x224, 138.36 M parameters",
        "models.vgg:vgg16",
        _imagenet(32),
    ),
    ModelSpec(
        "vgg19",
        "VGG-19 with Dropout, 1x3x224x224, 143.67 M parameters",
        "models.vgg:vgg19",
        _imagenet(32),
    ),
    ModelSpec(
        "googlenet",
        "GoogLeNet with BatchNorm, 1x3x224x224, 6.62 M parameters",
        "models.googlenet:googlenet",
        _imagenet(31),
    ),
    ModelSpec(
        "squeezenet",
        "SqueezeNet 1.1, 1x3x224x224, 1.24 M parameters",
        "models.squeezenet:squeezenet",
        _imagenet(25),
    ),
    ModelSpec(
        "alexnet",
        "AlexNet with Dropout, 1x3x224x224, 61.10 M parameters",
        "models.alexnet:alexnet",
        _imagenet(63),
    ),
    ModelSpec(
        "inception_v3",
        "Inception v3, 1x3x299x299, 23.83 M parameters",
        "models.inception:inception_v3",
        _imagenet(75, image_size=299),
    ),
    ModelSpec(
        "densenet121",
        "DenseNet-121, 1x3x224x224, 7.98 M parameters",
        "models.densenet:densenet121",
        _imagenet(29),
    ),
    ModelSpec(
        "mobilenet_v2",
        "MobileNet v2, 1x3x224x224, 3.50 M parameters",
        "models.mobilenet:mobilenet_v2",
        _imagenet(32),
    ),
    ModelSpec(
        "shufflenet_v2",
        "ShuffleNet v2 1.0x, 1x3x224x224, 2.28 M parameters",
        "models.shufflenet:shufflenet_v2",
        _imagenet(32),
    ),
    ModelSpec(
        "efficientnet_b0",
        "EfficientNet-B0, 1x3x224x224, 5.29 M parameters",
        "models.efficientnet:efficientnet_b0",
        _imagenet(32),
    ),
    ModelSpec(
        "unet",
        "U-Net with BatchNorm, 1x3x256x256, 31.04 M parameters",
        "models.unet:unet",
        _imagenet(16, classes=2, image_size=256),
    ),
    ModelSpec(
        "tiny_yolo_v4",
        "Tiny YOLO v4 with two heads, 1x3x416x416, 6.06 M parameters",
        "models.yolo:tiny_yolo_v4",
        _imagenet(32, classes=80, image_size=416),
    ),
    ModelSpec(
        "mlp3",
        "OCC's perceptron of three layers, 1x256, 0.20 M parameters",
        "models.small_classifiers:mlp3",
        {"features": _count(256, "size of every layer")},
    ),
    ModelSpec(
        "wavenet_cell",
        "WaveNet cell of OCC, 1x32x256, 0.01 M parameters",
        "models.sequence_models:wavenet_cell",
        {
            "samples": _count(256, "length of the sequence"),
            "dilation": _count(2, "samples between both taps"),
            "channels": _count(32, "residual and dilation channels"),
            "skip": _count(64, "skip channels"),
        },
    ),
    ModelSpec(
        "lstm",
        "LSTM and classifier, 1x16x64, 0.03 M parameters",
        "models.sequence_models:lstm",
        {
            "steps": _count(16, "length of the sequence"),
            "features": _count(64, "inputs of a step"),
            "hidden": _count(64, "size of the state"),
            "classes": _count(10, "number of classes"),
        },
    ),
    ModelSpec(
        "vit_tiny",
        "ViT-tiny with patches of 16x16, 1x3x224x224, 5.72 M parameters",
        "models.transformers:vit_tiny",
        {
            "image_size": Option(224, (), "height and width of the input, in pixels", 16),
            "depth": _count(12, "encoder layers"),
            "dim": _count(192, "size of a token"),
            "heads": _count(3, "attention heads, which share the token equally"),
            "classes": _count(1000, "number of classes"),
        },
    ),
    ModelSpec(
        "bert_tiny",
        "BERT-tiny encoder on embeddings, 1x128x128, 0.41 M parameters",
        "models.transformers:bert_tiny",
        {
            "tokens": _count(128, "length of the text"),
            "depth": _count(2, "encoder layers"),
            "dim": _count(128, "size of a token"),
            "heads": _count(2, "attention heads, which share the token equally"),
        },
    ),
    ModelSpec(
        "ds_cnn",
        "DS-CNN for key words of MLPerf Tiny, 1x1x49x10, 0.02 M parameters",
        "models.tiny_networks:ds_cnn",
        _options(12),
    ),
    ModelSpec(
        "resnet8",
        "ResNet-8 of MLPerf Tiny, 1x3x32x32, 0.08 M parameters",
        "models.tiny_networks:resnet8",
        _options(10),
    ),
    ModelSpec(
        "fc_autoencoder",
        "autoencoder for sounds of machines of MLPerf Tiny, 1x640, 0.27 M parameters",
        "models.tiny_networks:fc_autoencoder",
        {
            "features": _count(640, "size of the input and of the output"),
            "width": Option(1.0, (), "multiplies the size of every hidden layer but the smallest", 0.01),
        },
    ),
)
MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}
