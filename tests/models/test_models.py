"""The models build, run, have the published sizes and topologies, and are the same bytes for the same seed."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
import pytest
from numpy.typing import NDArray

import models
from models.model_builder import ModelBuilder

Array = NDArray[np.float32]
Options = dict[str, models.Value]

_SMALL: Options = {"image_size": 64, "width": 0.125, "classes": 100}
_SMALL_OF: dict[str, Options] = {
    "alexnet": {**_SMALL, "image_size": 127, "width": 0.25},
    "inception_v3": {**_SMALL, "image_size": 96},
    "densenet121": _SMALL,
    "mobilenet_v2": _SMALL,
    "shufflenet_v2": _SMALL,
    "efficientnet_b0": _SMALL,
    "unet": {"image_size": 32, "width": 0.125},
    "tiny_yolo_v4": {"image_size": 64, "width": 0.125, "classes": 5},
    "mlp3": {"features": 64},
    "wavenet_cell": {"samples": 32, "channels": 16, "skip": 24},
    "lstm": {"steps": 5, "features": 12, "hidden": 16},
    "vit_tiny": {"image_size": 48, "depth": 2, "dim": 24},
    "bert_tiny": {"tokens": 12, "dim": 32},
}
_IMAGENET = ("resnet18", "resnet34", "resnet50", "vgg16", "vgg19", "googlenet", "squeezenet")
_CASES: list[tuple[str, Options]] = [
    ("mlp", {}),
    ("lenet5", {}),
    ("lenet5", {"pool": "max"}),
    *((name, _SMALL) for name in _IMAGENET),
    ("resnet18", {**_SMALL, "head": "global_average_pool"}),
    ("resnet18", {**_SMALL, "image_size": 1}),
    ("vgg16", {**_SMALL, "image_size": 32}),
    ("vgg19", {**_SMALL, "image_size": 32}),
    ("googlenet", {**_SMALL, "image_size": 31}),
    ("squeezenet", {**_SMALL, "image_size": 25}),
    *_SMALL_OF.items(),
    ("alexnet", {**_SMALL, "image_size": 63}),
    ("inception_v3", {**_SMALL, "image_size": 75}),
    ("densenet121", {**_SMALL, "image_size": 29}),
    ("mobilenet_v2", {**_SMALL, "image_size": 32}),
    ("shufflenet_v2", {**_SMALL, "image_size": 32}),
    ("efficientnet_b0", {**_SMALL, "image_size": 32}),
    ("wavenet_cell", {"dilation": 8}),
    ("ds_cnn", {}),
    ("resnet8", {}),
    ("fc_autoencoder", {}),
]
_PUBLISHED = {
    "mlp": 784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10,
    "lenet5": 61_706,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "googlenet": 6_624_904,
    "squeezenet": 1_235_496,
    "alexnet": 61_100_840,
    "inception_v3": 27_161_264 - 3_326_696,  # without the auxiliary head
    "densenet121": 7_978_856,
    "mobilenet_v2": 3_504_872,
    "shufflenet_v2": 2_278_604,
    "efficientnet_b0": 5_288_548,
    "unet": 31_037_698,
    "tiny_yolo_v4": (24_251_276 - 20) // 4 - 2 * 3104,  # the weights file less header and running statistics
    "mlp3": 3 * (256 * 256 + 256),
    "wavenet_cell": 2 * (32 * 32 * 2 + 32) + (32 * 32 + 32) + (32 * 64 + 64),
    "lstm": 4 * 64 * (64 + 64) + 8 * 64 + 64 * 10 + 10,
    "vit_tiny": 5_717_416 - 192,  # the class token is part of its position
    "bert_tiny": 4_385_920 - (30_522 + 512 + 2) * 128,  # without the tables of words, positions and segments
    "ds_cnn": 24_908 - 2 * 64 * 9,  # less running statistics; so for the next two
    "resnet8": 78_666 - 2 * (3 * 16 + 2 * 32 + 2 * 64),
    "fc_autoencoder": 269_992 - 2 * (8 * 128 + 8),
}

each_case = pytest.mark.parametrize(("name", "options"), _CASES)
each_model = pytest.mark.parametrize("name", list(models.MODELS))


def small_options(name: str) -> Options:
    """A version of the model that takes a fraction of a second."""
    return _SMALL if name in _IMAGENET else _SMALL_OF.get(name, {})


@cache
def _build_cached(name: str, options: tuple[tuple[str, models.Value], ...]) -> onnx.ModelProto:
    return models.build(name, seed=0, **dict(options))


def _build(name: str, options: Options) -> onnx.ModelProto:
    return _build_cached(name, tuple(options.items()))


def _shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _inputs(model: onnx.ModelProto, count: int) -> list[Array]:
    rng = np.random.default_rng(1234)
    return [rng.standard_normal(_shape(model.graph.input[0]), dtype=np.float32) for _ in range(count)]


def _run(model: onnx.ModelProto, inputs: list[Array]) -> dict[str, Array]:
    """Return each graph output, for the inputs one after the other along the first axis."""
    session = cast(Any, onnxruntime).InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = [session.run(None, {"input": x}) for x in inputs]
    names = [output.name for output in model.graph.output]
    return {name: np.concatenate(arrays) for name, arrays in zip(names, zip(*results, strict=True), strict=True)}


@each_case
def test_is_valid_and_sensitive_to_its_input(name: str, options: Options) -> None:
    model = _build(name, options)
    cast(Any, onnx.checker).check_model(model, full_check=True)
    for output, y in zip(model.graph.output, _run(model, _inputs(model, 8)).values(), strict=True):
        assert y.shape[1:] == _shape(output)[1:]
        if model.graph.node[-1].op_type == "Softmax":
            np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-5)
            y = np.log(y)  # the logits but for a constant
        y = y.reshape(len(y), -1)
        assert 0.3 < y.std(axis=1).mean() < 3
        assert np.abs(y[1:] - y[0]).max(axis=1).min() > 0.1 * y.std()


@each_model
def test_same_seed_same_bytes(name: str) -> None:
    first, again, other = (models.build(name, seed=seed, **small_options(name)) for seed in (3, 3, 4))
    assert first.SerializeToString() == again.SerializeToString()
    weights = [_weights(model) for model in (first, other)]
    assert weights[0].keys() == weights[1].keys()
    for key in filter(_is_drawn, weights[0]):
        assert not np.array_equal(weights[0][key], weights[1][key]), key


def _weights(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


_FIXED = (".ratio", ".constant", ".min", ".max", ".scales", ".shape", ".starts", ".ends", ".axes", ".pads")


def _is_drawn(key: str) -> bool:
    """Tells whether a tensor depends on the seed: weights and statistics do, parts of the topology do not."""
    return not key.endswith(_FIXED)


@each_model
def test_parameters_are_those_published(name: str) -> None:
    spec = models.MODELS[name]
    assert spec.count_parameters() == _PUBLISHED[name]
    assert f"{_PUBLISHED[name] / 1e6:.2f} M parameters" in spec.summary


@each_case
def test_parameters_counted_are_those_built(name: str, options: Options) -> None:
    drawn = {key: w for key, w in _weights(_build(name, options)).items() if _is_drawn(key)}
    trained = [w for key, w in drawn.items() if not key.endswith(("_mean", "_var"))]
    assert models.MODELS[name].count_parameters(**options) == sum(w.size for w in trained)


@each_case
def test_names_are_unique_and_used(name: str, options: Options) -> None:
    graph = _build(name, options).graph
    nodes = [node.name for node in graph.node]
    assert len(set(nodes)) == len(nodes)
    made = ["input", *(tensor.name for tensor in graph.initializer), *(f"{node}_output" for node in nodes)]
    assert len(set(made)) == len(made)
    used = {name for node in graph.node for name in node.input if name} | {output.name for output in graph.output}
    assert used == set(made)


def _expose(model: onnx.ModelProto, op_type: str) -> tuple[onnx.ModelProto, list[onnx.NodeProto]]:
    """Return a copy whose outputs are those of the nodes of this type, and these nodes."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = [node for node in model.graph.node if node.op_type == op_type]
    assert nodes
    del model.graph.output[:]
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None) for node in nodes
    )
    return model, nodes


_SWITCHED = dict.fromkeys(models.MODELS, "Relu") | {"mobilenet_v2": "Clip"}
for other in ("efficientnet_b0", "tiny_yolo_v4", "wavenet_cell", "lstm", "vit_tiny", "bert_tiny"):
    del _SWITCHED[other]  # no activation that is 0 for half of its inputs


@pytest.mark.parametrize("name", _SWITCHED)
def test_most_channels_change_sign(name: str) -> None:
    """Otherwise an error in the weights behind a Relu that is always off would not be seen."""
    model, _ = _expose(_build(name, small_options(name)), _SWITCHED[name])
    for relu, y in _run(model, _inputs(model, 8)).items():
        off = (y == 0).reshape(*y.shape[:2], -1).all(axis=(0, 2))
        assert off.mean() < 0.2, relu


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "googlenet"])
def test_batch_norm_is_calibrated(name: str) -> None:
    """The scale is near 1, the bias near 0; without them each channel has mean 0 and variance 1 over the batch."""
    model, norms = _expose(_build(name, _SMALL), "BatchNormalization")
    batch = ModelBuilder(name, seed=0).input(*_shape(model.graph.input[0])).value
    assert batch is not None
    outputs, weights = _run(model, list(batch[:, None])), _weights(model)
    for node in norms:
        scale, bias = weights[node.input[1]], weights[node.input[2]]
        assert 0.8 < scale.mean() < 1.2
        assert abs(bias.mean()) < 0.2
        y = outputs[node.output[0]]
        np.testing.assert_allclose(y.mean(axis=(0, 2, 3)), bias, atol=0.01, err_msg=node.name)
        np.testing.assert_allclose(y.std(axis=(0, 2, 3)), scale, rtol=0.02, err_msg=node.name)


def test_options_shape_the_model() -> None:
    model = _build("resnet18", {**_SMALL, "classes": 7})
    assert _shape(model.graph.input[0]) == (1, 3, 64, 64)
    assert _shape(model.graph.output[0]) == (1, 7)
    assert _weights(model)["conv1.weight"].shape == (8, 3, 7, 7)


@pytest.mark.parametrize(
    ("name", "option", "value", "op_type"),
    [
        ("resnet18", "head", "reduce_mean", "ReduceMean"),
        ("resnet18", "head", "global_average_pool", "GlobalAveragePool"),
        ("lenet5", "pool", "average", "AveragePool"),
        ("lenet5", "pool", "max", "MaxPool"),
        ("vgg16", "width", 0.125, "Dropout"),
        ("squeezenet", "width", 0.125, "Concat"),
    ],
)
def test_operators(name: str, option: str, value: models.Value, op_type: str) -> None:
    options = {**small_options(name), option: value}
    assert op_type in {node.op_type for node in _build(name, options).graph.node}


def test_resnet50_strides_in_the_3x3() -> None:
    graph = _build("resnet50", _SMALL).graph
    strides = {node.name: list(a.ints) for node in graph.node for a in node.attribute if a.name == "strides"}
    assert strides["layer2.0.conv1"] == [1, 1]
    assert strides["layer2.0.conv2"] == [2, 2]
    assert strides["layer2.0.downsample.0"] == [2, 2]


def test_versions_load_everywhere() -> None:
    model = _build("mlp", {})
    assert model.ir_version == 8
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    assert model.doc_string == "mlp by raptor.models, random weights, seed 0, classes=10, width=1.0"


def test_options_may_be_text() -> None:
    text = models.build("resnet18", image_size="32", width="0.125", classes="10")
    typed = models.build("resnet18", image_size=32, width=0.125, classes=10)
    assert text.SerializeToString() == typed.SerializeToString()


def test_unknown_model() -> None:
    with pytest.raises(KeyError, match=r"^unknown model 'resnet19'; the models are: mlp, lenet5, resnet18, "):
        models.build("resnet19")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "x"}, "model resnet18 has no option heads; its options are: head, image_size, classes, width"),
        ({"head": "x"}, "option head is 'x', must be one of: reduce_mean, global_average_pool"),
        ({"image_size": 0}, "option image_size is 0, must be a whole number, 1 to 100000"),
        ({"image_size": 32.5}, "option image_size is 32.5, must be a whole number, 1 to 100000"),
        ({"classes": "ten"}, "option classes is 'ten', must be a whole number, 1 to 100000"),
        ({"width": "inf"}, "option width is 'inf', must be a number, 0.01 to 100000"),
    ],
)
def test_wrong_option(options: Options, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        models.build("resnet18", seed=0, **options)


@pytest.mark.parametrize(("name", "step"), [("unet", 16), ("tiny_yolo_v4", 32)])
def test_size_must_be_a_multiple(name: str, step: int) -> None:
    with pytest.raises(ValueError, match=f"^option image_size is 40, must be a multiple of {step}$"):
        models.build(name, image_size=40)


def test_wrong_seed() -> None:
    with pytest.raises(ValueError, match=r"^seed is -1, must be a whole number, at least 0$"):
        models.build("mlp", seed=-1)


@each_model
def test_defaults_satisfy_their_options(name: str) -> None:
    spec = models.MODELS[name]
    assert spec.name == name
    assert spec.parse({}) == {key: option.default for key, option in spec.options.items()}


def test_builder_refuses_a_second_name() -> None:
    b = ModelBuilder("twice", seed=None)
    x = b.relu(b.input(1, 4), "relu")
    with pytest.raises(ValueError, match="two nodes or weights are named relu"):
        b.relu(x, "relu")


def test_import_is_cheap() -> None:
    code = "import models, sys; print({'numpy', 'onnx', 'onnxruntime'} & sys.modules.keys())"
    root = Path(models.__file__).parents[1]
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
